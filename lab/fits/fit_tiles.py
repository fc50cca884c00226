# SPDX-License-Identifier: Apache-2.0
"""Fits numbers of a machine's matrix unit to plans in both orders, with different sets: each by itself, the others as in the file.

    python lab/fits/fit_tiles.py FILE.jsonl

FILE is written by lab/benchmarks/tile_sets.py. One clock for all plans is free: it is chosen so that the median plan is predicted exactly.
A fitted number minimises the mean of |log(predicted / measured)|. Printed for all that are tried, best first: the mean and the 90th
percentile of errors, and of each problem the time of the plan predicted fastest over that of the fastest, of B packed in the run and in
advance.
"""

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from model_errors import header, records

from pysim import planner
from pysim.machine.cpu import Machine, Unit
from pysim.machine.load import load_any
from pysim.machine.quantity import Number
from pysim.record.schedule import STATIONARY

GRIDS = {
    "tile_store_cycles": (1, 100, 200, 250, 300, 350, 400, 500),
    "page_cycles": (1, 4, 8, 11, 14, 20),
    "fetch_line_cycles": (0.001, 1, 1.5, 2, 2.5, 3),
}


class Fit(NamedTuple):
    mean: float
    ninth: float
    value: float
    clock: float
    regrets: dict[str, float]


def with_number(machine: Machine, name: str, value: float) -> Machine:
    number = Number(value=value, kind="fitted", source="fit")

    def changed(unit: Unit) -> Unit:
        if unit.short_calls is None:
            return unit
        own = name in Unit.__struct_fields__
        new: dict[str, Any] = {name: number} if own else {"short_calls": msgspec.structs.replace(unit.short_calls, **{name: number})}
        return msgspec.structs.replace(unit, **new)

    units = tuple(changed(unit) for unit in machine.core.units)
    return msgspec.structs.replace(machine, core=msgspec.structs.replace(machine.core, units=units))


def name_of(problem: str, plan: str) -> str:
    """The plan's name in full."""
    algorithm, letter, channels, k2 = plan.split()
    _, sizes, *rest = problem.split(":")
    order = next(name for name in STATIONARY if name[0] == letter)
    kernel, k3 = f"{rest[0] if rest else 'f32'}_tiles_32x32__amx", -(-int(sizes.split("x")[1]) // 32)
    return f"{algorithm},kernel={kernel},stationary={order},pack=tiles,windows=32,filters=32,channels={channels},k2={k2},k3={k3}"


def fit(rows: list[dict[str, Any]], machine: Machine, name: str, value: float) -> Fit:
    on, groups = with_number(machine, name, value), defaultdict[str, list[tuple[float, float]]](list)
    logs = []
    for problem, plan, us in ((row["problem"], *one) for row in rows for one in row["us"].items()):
        prepared = not plan.startswith("gemm")
        seconds = planner.plan(problem, on, name=name_of(problem, plan), prepared=prepared).seconds
        assert seconds
        logs.append(float(np.log(seconds * 1e6 / us)))
        groups[problem + " prepared" * prepared].append((seconds, us))
    errors = np.abs(np.array(logs) - np.median(logs))
    regrets = {name: min(some)[1] / min(us for _, us in some) for name, some in groups.items()}
    clock = machine.clock_hz * float(np.exp(np.median(logs)))
    return Fit(float(errors.mean()), float(np.quantile(errors, 0.9)), value, clock, regrets)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    path = parser.parse_args().file
    machine = load_any(path.parent / name if (name := header(path)["machine"]).endswith(".toml") else name)
    assert isinstance(machine, Machine)
    rows = list(records.lines(path)[1:])
    for name, grid in GRIDS.items():
        for one in sorted(fit(rows, machine, name, value) for value in grid):
            regrets = "  ".join(f"{problem} {regret:.2f}" for problem, regret in one.regrets.items())
            print(f"{name} {one.value:g} at {one.clock / 1e9:.2f} GHz: {one.mean:.1%}, {one.ninth:.1%}; {regrets}")


if __name__ == "__main__":
    main()
