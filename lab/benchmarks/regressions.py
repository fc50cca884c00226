# SPDX-License-Identifier: Apache-2.0
"""Whether `pysim compare --baseline` finds a regression that is planted, and none where there is none.

    python lab/benchmarks/regressions.py [-o FILE] [--planted 10] [--plain 20] [--by 1.05] [PROBLEM...]

Measures the problems once as the baseline, then again and again in new processes: in some, each call of pysim's plan is followed by
waiting for the share of its own time that is planted. Busy neighbours are welcome: they are what a user has. Exit status 1 if one run of
the planted ones is not told as slower, or one of the others is.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pysim.calibration import host
from pysim.cli import main as pysim_main
from pysim.commands.history import UNDECIDED
from pysim.comparison import compare

PROBLEMS = ("conv:mb1ic64ih56oc64kh3ph1", "conv:mb1ic256ih14oc1024kh1", "gemm:384x768x768")
NAME = "planted"


def slower(call: Callable[[], object], by: float) -> Callable[[], None]:
    """A call that takes `by` times as long."""

    def both() -> None:
        start = time.process_time()  # others' time is not the call's
        call()
        end = start + by * (time.process_time() - start)
        while time.process_time() < end:
            pass

    return both


def plant(by: float) -> None:
    interleave: Any = compare.interleave

    def planted(calls: dict[str, Any], *given: Any, **named: Any) -> Any:
        return interleave({label: slower(call, by) if label == compare.OURS else call for label, call in calls.items()}, *given, **named)

    compare.interleave = planted  # type: ignore[assignment]  # in this process alone


def run(given: argparse.Namespace, store: str, by: float, *options: str) -> tuple[int, str]:
    """The exit status and output of `pysim compare` in a new process."""
    command = [sys.executable, __file__, "--inside", str(by), *given.problems, "--options", *options]
    done = subprocess.run(command, env={**os.environ, "PYSIM_STORE": store}, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", default=[*PROBLEMS])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--planted", type=int, default=10, help="runs with a regression")
    parser.add_argument("--plain", type=int, default=20, help="runs without")
    parser.add_argument("--by", type=float, default=1.05)
    parser.add_argument("--inside", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--options", nargs=argparse.REMAINDER, default=[], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside is not None:
        if given.inside > 1:
            plant(given.inside)
        pysim_main(["compare", *given.problems, *given.options], prog_name="pysim")
        return
    rows: list[dict[str, Any]] = [
        {"kind": "header", "machine": host.runnable("host").description, "by": given.by, "problems": given.problems}
    ]
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store.sqlite")
        status, told = run(given, store, 1.0, "--save", NAME)
        if status:
            sys.exit(f"the baseline was not measured: {told}")
        order = [given.by] * given.planted + [1.0] * given.plain
        random.Random(0).shuffle(order)  # both kinds see the same neighbours
        for by in order:
            start = time.monotonic()
            status, told = run(given, store, by, "--baseline", NAME)
            rows.append({"by": by, "slower": status == 1, "status": status, "load": os.getloadavg()[0]})
            print(f"{by}: exit status {status}, load {os.getloadavg()[0]:.1f}, {time.monotonic() - start:.0f} s", flush=True)
            if status != int(by > 1):
                print(told, flush=True)
    if given.output:
        given.output.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = sum(row["slower"] for row in rows[1:] if row["by"] > 1)
    false, undecided = sum(row["slower"] for row in rows[1:] if row["by"] == 1), sum(row["status"] == UNDECIDED for row in rows[1:])
    print(f"planted regressions found: {found} of {given.planted}; false: {false} of {given.plain}; undecided: {undecided}")
    sys.exit(found < given.planted or false > 0)


if __name__ == "__main__":
    main()
