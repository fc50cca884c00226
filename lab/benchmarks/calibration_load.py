#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Calibrations of this CPU beside busy processes, compared with calibrations of the same CPU when it was quiet.

    python lab/benchmarks/calibration_load.py record TAPE [--budget S] [--busy N] [--after FILE]
    python lab/benchmarks/calibration_load.py fit TAPE... > lab/data/calibration-load-CPU.jsonl
    python lab/benchmarks/calibration_load.py show lab/data/calibration-load-CPU.jsonl

`record` prepares the plans, waits until FILE exists, starts N busy processes, and measures for S seconds as `pysim machines calibrate`
does. TAPE keeps every measurement. Each calibration is a process of its own and has pages of its own. `fit` repeats the calibrations from
the tapes. It measures nothing, so the computer need not be quiet any more. `show` compares them: a number is *right* if it differs by at
most SURE (5 %) from the median of the quiet calibrations, and *said* if the calibration calls it doubtful or leaves it unchanged. A
calibration is *honest* if every number is right or said.

A busy process multiplies matrices of 4 MB on one thread: it uses a core, its vector units, L3 and memory.
"""

import argparse
import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pysim.calibration import cpu_calibrate, host
from pysim.calibration.cpu_lab import HostLab
from pysim.calibration.estimate import SURE
from pysim.measure.clock import pinned
from pysim.measure.store import environment

PROBES = ("clock", "fma", "read", "write", "latency", "fork_join", "shares", "times", "others")
FACTS = ("plans", "ways", "teams")
EDGE = 1024  # of the busy processes' matrices


class BudgetSpentError(Exception):
    """All is measured."""


class Recorder:
    """A lab that keeps every answer."""

    def __init__(self, lab: HostLab) -> None:
        self.answers: list[Any] = []
        self.facts = {name: getattr(lab, name) for name in FACTS}
        vars(self).update(self.facts)
        for name in PROBES:
            setattr(self, name, self._kept(getattr(lab, name)))

    def _kept(self, probe: Callable[..., Any]) -> Callable[..., Any]:
        def answer(*of: Any) -> Any:
            self.answers.append(probe(*of))
            return self.answers[-1]

        return answer


class Replay:
    """A lab that gives the answers that were kept."""

    def __init__(self, answers: list[Any], facts: dict[str, Any]) -> None:
        left = iter(answers)
        vars(self).update(facts)
        for name in PROBES:
            setattr(self, name, lambda *of: next(left))


def busy() -> None:
    a, b = np.random.default_rng(0).random((2, EDGE, EDGE), dtype=np.float32)
    while True:
        a @ b


def record(given: argparse.Namespace) -> None:
    machine = host.detect()
    lab = HostLab(machine)
    recorder = Recorder(lab)
    print("prepared", file=sys.stderr, flush=True)
    while given.after and not given.after.exists():
        time.sleep(0.2)
    one_thread = os.environ | dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    others = [subprocess.Popen([sys.executable, __file__, "busy"], env=one_thread) for _ in range(given.busy)]
    start, rounds = time.monotonic(), 0

    def stop(_: str) -> None:
        nonlocal rounds
        rounds += 1
        if time.monotonic() - start > given.budget and rounds >= cpu_calibrate.MIN_ROUNDS:
            raise BudgetSpentError

    try:
        with pinned():
            cpu_calibrate.calibrate(machine, recorder, float("inf"), stop)
    except BudgetSpentError:
        pass
    finally:
        for one in others:
            one.terminate()
    about = {"busy": given.busy, "rounds": rounds, "seconds": round(time.monotonic() - start, 1), "environment": environment()}
    given.tape.write_bytes(pickle.dumps(about | {"machine": machine, "facts": recorder.facts, "answers": recorder.answers}))


def fitted(path: Path) -> dict[str, Any]:
    """The calibration of a tape, as a line of the data. Its timer counts rounds, so that it ends with the tape."""
    kept = pickle.loads(path.read_bytes())
    finished = [0]
    lab = Replay(kept["answers"], kept["facts"])

    def count(_: str) -> None:
        finished[0] += 1

    found = cpu_calibrate.calibrate(kept["machine"], lab, kept["rounds"] + 0.5, count, lambda: float(finished[0]))
    numbers = {name: [one.value, one.error, one.doubt] for name, one in (found.numbers | found.fitted).items()}
    about = {name: kept[name] for name in ("busy", "rounds", "seconds")} | {"others": found.others, "shared": found.shared}
    return about | {"unchanged": found.rejected, "numbers": numbers}


def fit(given: argparse.Namespace) -> None:
    here = pickle.loads(given.tapes[0].read_bytes())["environment"]
    versions = {name: here[name] for name in ("system", "python", "numpy", "commit") if name in here}
    command = "python lab/benchmarks/calibration_load.py record TAPE --budget S --busy N, then fit TAPE..."
    print(json.dumps({"kind": "header", "device": f"{here['cpu']}, {here['cpus']} CPUs", "versions": versions, "command": command}))
    for path in given.tapes:
        print(json.dumps(fitted(path)), flush=True)


def compared(rows: list[dict[str, Any]]) -> Iterator[str]:
    """A line per number and per calibration, and the count of honest ones."""
    quiet, loaded = ([row for row in rows if (row["busy"] > 0) == beside] for beside in (False, True))
    names = list(dict.fromkeys(name for row in rows for name in row["numbers"]))
    reference = {name: float(np.median([row["numbers"][name][0] for row in quiet if name in row["numbers"]] or [np.nan])) for name in names}

    def off(row: dict[str, Any], name: str) -> float:
        value, right = row["numbers"][name][0], reference[name]
        return abs(value - right) / right if right else float(value != right)

    yield f"{'number':44} {'quiet':>14} {'within 5 %':>11} {'said':>5} {'wrong':>6}"
    for name in names:
        given = [row for row in loaded if name in row["numbers"]]
        wrong = sum(off(row, name) > SURE for row in given if not row["numbers"][name][2])
        close, said = sum(off(row, name) <= SURE for row in given), sum(bool(row["numbers"][name][2]) for row in given)
        yield f"{name:44} {reference[name]:14.6g} {close:11} {said + len(loaded) - len(given):5} {wrong:6}"
    honest = 0
    for row in loaded:
        sure = {name: off(row, name) for name, (_, _, doubt) in row["numbers"].items() if not doubt}
        wrong = [f"{name} {one:.1%}" for name, one in sure.items() if one > SURE]
        close = sum(off(row, name) <= SURE for name in row["numbers"])
        honest += not wrong
        yield (
            f"{row['rounds']} rounds in {row['seconds']:.0f} s, others used {row['others']:.2f} CPUs: {close} of {len(row['numbers'])} "
            f"numbers within {SURE:.0%}, {len(sure)} called sure, wrong: {', '.join(wrong) or 'none'}"
        )
    yield f"{honest} of {len(loaded)} calibrations are honest"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("tape", type=Path)
    recording.add_argument("--budget", type=float, default=120.0)
    recording.add_argument("--busy", type=int, default=0)
    recording.add_argument("--after", type=Path)
    commands.add_parser("fit").add_argument("tapes", nargs="+", type=Path)
    commands.add_parser("show").add_argument("data", type=Path)
    commands.add_parser("busy")
    given = parser.parse_args()
    if given.command == "show":
        print(*compared([json.loads(line) for line in given.data.read_text().splitlines()[1:]]), sep="\n")
    elif given.command == "busy":
        busy()
    else:
        {"record": record, "fit": fit}[given.command](given)


if __name__ == "__main__":
    main()
