# SPDX-License-Identifier: Apache-2.0
"""Fits `tile_store_cycles` of a machine's matrix unit to plans in both orders, with different sets.

    python lab/fits/fit_tiles.py FILE.jsonl

FILE is written by lab/benchmarks/tile_sets.py. One clock for all plans is free: it is chosen so that the median plan is predicted exactly.
The fitted number minimises the mean of |log(predicted / measured)|. Printed for all that are tried, best first: the mean and the 90th
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
from pysim.machine.cpu import Machine
from pysim.machine.load import load_any
from pysim.machine.quantity import Number
from pysim.record.schedule import STATIONARY

STORES = (1, 100, 200, 250, 300, 350, 400, 500)


class Fit(NamedTuple):
    mean: float
    ninth: float
    store: float
    clock: float
    regrets: dict[str, float]


def with_cycles(machine: Machine, cycles: float) -> Machine:
    number = Number(value=cycles, kind="fitted", source="fit")
    units = tuple(
        msgspec.structs.replace(unit, tile_store_cycles=number) if unit.tile_store_cycles else unit for unit in machine.core.units
    )
    return msgspec.structs.replace(machine, core=msgspec.structs.replace(machine.core, units=units))


def name_of(problem: str, plan: str) -> str:
    """The plan's name in full."""
    algorithm, letter, channels, k2 = plan.split()
    _, sizes, *rest = problem.split(":")
    order = next(name for name in STATIONARY if name[0] == letter)
    kernel, k3 = f"{rest[0] if rest else 'f32'}_tiles_32x32__amx", -(-int(sizes.split("x")[1]) // 32)
    return f"{algorithm},kernel={kernel},stationary={order},pack=tiles,windows=32,filters=32,channels={channels},k2={k2},k3={k3}"


def fit(rows: list[dict[str, Any]], machine: Machine, store: float) -> Fit:
    on, groups = with_cycles(machine, store), defaultdict[str, list[tuple[float, float]]](list)
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
    return Fit(float(errors.mean()), float(np.quantile(errors, 0.9)), store, clock, regrets)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    path = parser.parse_args().file
    machine = load_any(path.parent / name if (name := header(path)["machine"]).endswith(".toml") else name)
    assert isinstance(machine, Machine)
    rows = list(records.lines(path)[1:])
    for one in sorted(fit(rows, machine, store) for store in STORES):
        regrets = "  ".join(f"{name} {regret:.2f}" for name, regret in one.regrets.items())
        print(f"{one.store:.0f} cycles at {one.clock / 1e9:.2f} GHz: {one.mean:.1%}, {one.ninth:.1%}; {regrets}")


if __name__ == "__main__":
    main()
