# SPDX-License-Identifier: Apache-2.0
"""How well the current cost model predicts plans that were timed earlier. Nothing is measured.

    python lab/fits/model_errors.py [FILE...] [--machine MACHINE.toml] [--rows]

A file has one line per plan: {"set", "problem", "plan" (its name), "measured_seconds", "threads" (1), "layout" (nchw)}. Its first line,
{"kind": "header", "machine_file": FILE.toml, ...}, names a machine file in the same folder, or a shipped machine; --machine overrides it.
A plan with "superseded" is left out: its kernels or operands are others now, as the header says. Without files, all files of
lab/data with such a header are read. For each file, set and number of threads the tool prints the median and the 90th percentile of
|log(predicted / measured)| and the worst plan; with --rows also each plan.
"""

import argparse
import math
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))
import records
from rooms import DATA

from pysim import planner
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.machine.load import load_any


class Timed(NamedTuple):
    """One plan: where it stands, and its two times in seconds."""

    file: str
    of: str
    threads: int
    problem: str
    plan: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        return math.log(self.predicted / self.measured)


def recorded() -> list[Path]:
    """The files under lab/data whose header names a machine file."""
    return [path for path in sorted(DATA.glob("*/*.jsonl")) if "machine_file" in header(path)]


def header(path: Path) -> dict[str, Any]:
    return records.header(path)


def machine_of(path: Path) -> Machine | Gpu:
    """The machine that a file's plans are costed with: the file beside it that its header names, or the shipped machine."""
    named = header(path)["machine_file"]
    return load_any(path.parent / named if named.endswith(".toml") else named)


def predict(path: Path, on: Path | None = None) -> Iterator[Timed]:
    """Every plan of a file that is not superseded, as the model costs it today, on its machine or another."""
    machine = load_any(on) if on else machine_of(path)
    for row in records.lines(path)[1:]:
        if row.get("superseded"):
            continue
        threads, layout = row.get("threads", 1), row.get("layout", "nchw")
        seconds = planner.plan(row["problem"], machine, name=row["plan"], threads=threads, layout=layout).seconds
        assert seconds
        yield Timed(path.name, row["set"], row.get("threads", 1), row["problem"], row["plan"], seconds, row["measured_seconds"])


def groups(rows: Iterable[Timed]) -> dict[tuple[str, str, int], list[Timed]]:
    """By file, set and threads."""
    found: dict[tuple[str, str, int], list[Timed]] = {}
    for row in rows:
        found.setdefault((row.file, row.of, row.threads), []).append(row)
    return found


def errors(rows: Iterable[Timed]) -> tuple[float, float]:
    """(median, 90th percentile)."""
    sizes = [abs(row.error) for row in rows]
    return float(np.median(sizes)), float(np.quantile(sizes, 0.9))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--machine", type=Path)
    parser.add_argument("--rows", action="store_true", help="print each plan, too")
    given = parser.parse_args()
    for path in given.files or recorded():
        rows = list(predict(path, given.machine))
        if given.rows:
            for row in rows:
                both = f"{row.predicted * 1e3:9.3f} {row.measured * 1e3:9.3f} ms"
                print(f"{row.predicted / row.measured:6.2f}  {both}  {row.problem}  {row.plan}")
        for (file, of, threads), some in groups(rows).items():
            median, most = errors(some)
            worst = max(some, key=lambda row: abs(row.error))
            tail = f"worst {worst.predicted / worst.measured:.2f}x: {worst.problem}"
            print(
                f"{file:<32} {of:<12} {threads:>2} threads {len(some):>3} plans  median {median:5.1%}  90th percentile {most:5.1%}  {tail}"
            )


if __name__ == "__main__":
    main()
