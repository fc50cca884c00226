# SPDX-License-Identifier: Apache-2.0
"""Fits `core.together` of a machine file to plans timed with several threads: the share of its rate that a CPU keeps while others are busy.

    python lab/fits/fit_threads.py FILE.jsonl

FILE is written by thread_rounds.py and read by model_errors.py, too. The fit uses its set "fitted". The clock is chosen so
that the median single-threaded plan is predicted exactly. Then, for each number of threads, `mean_share` and `slowest_share` minimise the
mean of |log(predicted / measured)|. Printed are the fitted numbers and, for either set, the median and the 90th percentile of that error.
Everything else comes from the machine file. The fit is repeated with the sets exchanged, to show how much the choice of layers matters.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from model_errors import header, records

from pysim import planner
from pysim.algorithms import algorithm_named
from pysim.cachemodel.cpu.threads import busy_rate
from pysim.machine.cpu import Machine, Together
from pysim.machine.load import load_any
from pysim.machine.quantity import Number
from pysim.problem.text import parse
from pysim.record.cost import Cost

MEANS, SLOWEST = np.linspace(0.5, 1.0, 51), np.linspace(0.25, 1.0, 76)


class Timed(NamedTuple):
    """A timed plan: cycles of its largest part and of its forks; work items of that part; the whole plan's work over that part's; measured
    seconds."""

    of: str
    threads: int
    part: float
    forks: float
    items: int
    largest: float
    measured: float


def timed(path: Path, machine: Machine) -> list[Timed]:
    alone = msgspec.structs.replace(machine, core=msgspec.structs.replace(machine.core, together=()))
    found = []
    for row in records.lines(path)[1:]:
        problem, threads = parse(row["problem"]), row["threads"]
        plan = planner.plan(problem, alone, name=row["plan"], threads=threads)
        part = algorithm_named(plan.algorithm, problem, alone).largest_part(problem, plan.schedule, threads)  # type: ignore[attr-defined]
        assert isinstance(plan.cost, Cost)
        forks, largest = plan.cost.terms.get("threads", 0.0), min(threads, problem.flops / (part.share * part.problem.flops))
        found.append(Timed(row["set"], threads, plan.cost.cycles - forks, forks, part.items, largest, row["measured_seconds"]))
    return found


def with_shares(machine: Machine, known: Sequence[tuple[int, float, float]]) -> Machine:
    """The machine with these shares, given as (CPUs, slowest, mean)."""
    numbers = [(cpus, *(Number(value=float(value), kind="fitted", source="fit") for value in values)) for cpus, *values in known]
    together = tuple(Together(cpus=cpus, slowest_share=slowest, mean_share=mean) for cpus, slowest, mean in numbers)
    return msgspec.structs.replace(machine, core=msgspec.structs.replace(machine.core, together=together))


def errors(rows: Sequence[Timed], machine: Machine, hertz: float) -> list[float]:
    cycles = (one.part / busy_rate(machine, one.threads, one.items, one.largest) + one.forks for one in rows)
    return [abs(math.log(each / hertz / one.measured)) for each, one in zip(cycles, rows, strict=True)]


def fitted(rows: Sequence[Timed], machine: Machine) -> tuple[float, list[tuple[int, float, float]]]:
    """The clock in Hz, and (threads, slowest share, mean share) for each number of threads."""
    hertz = float(np.median([one.part / one.measured for one in rows if one.threads == 1]))
    known: list[tuple[int, float, float]] = []
    for threads in sorted({one.threads for one in rows} - {1}):
        some = [one for one in rows if one.threads == threads]
        tried = [(threads, slowest, mean) for mean in MEANS for slowest in SLOWEST if slowest <= mean]
        known.append(min(tried, key=lambda one: float(np.mean(errors(some, with_shares(machine, [*known, one]), hertz)))))
    return hertz, known


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    path = parser.parse_args().file
    machine = load_any(path.parent / header(path)["machine_file"])
    assert isinstance(machine, Machine)
    rows = timed(path, machine)
    for fit in sorted({one.of for one in rows}):
        hertz, known = fitted([one for one in rows if one.of == fit], machine)
        print(
            f"fitted to {fit}: {hertz / 1e9:.3f} GHz",
            *(f"{cpus}: slowest {slow:.2f}, mean {mean:.2f}" for cpus, slow, mean in known),
            sep="; ",
        )
        own = with_shares(machine, known)
        for threads in sorted({one.threads for one in rows}):
            error_texts = []
            for of in sorted({one.of for one in rows}):
                found = errors([one for one in rows if (one.of, one.threads) == (of, threads)], own, hertz)
                error_texts.append(f"{of} {np.median(found):.1%}, {np.quantile(found, 0.9):.1%}")
            print(f"  {threads:>2} threads: {'; '.join(error_texts)}")


if __name__ == "__main__":
    main()
