# SPDX-License-Identifier: Apache-2.0
"""Fits `tile_store_cycles` of a machine's matrix unit to plans with different sets of k.

    python lab/fits/fit_tiles.py FILE.jsonl

FILE is written by lab/benchmarks/tile_sets.py. A plan with sets of s of k stores each tile k / s times, so the times of one problem's plans
differ by that. For each problem the clock is free: it is chosen so that the median plan is predicted exactly. The fitted number minimises
the mean of |log(predicted / measured)|; printed with the medians of the fit and of 0 cycles, for all problems and for each type.
"""

import argparse
from collections import defaultdict
from pathlib import Path

import msgspec
import numpy as np
from model_errors import header, records

from pysim import planner
from pysim.machine.cpu import Machine
from pysim.machine.load import load_any
from pysim.machine.quantity import Number

TRIED = range(0, 1001, 25)


def with_cycles(machine: Machine, cycles: float) -> Machine:
    number = Number(value=float(cycles), kind="fitted", source="fit")
    units = tuple(
        msgspec.structs.replace(unit, tile_store_cycles=number) if unit.tile_store_cycles else unit for unit in machine.core.units
    )
    return msgspec.structs.replace(machine, core=msgspec.structs.replace(machine.core, units=units))


def errors(path: Path, machine: Machine) -> dict[str, list[float]]:
    """|log(predicted / measured)| of each plan by its problem's set, the median of each problem taken off."""
    logs = defaultdict[tuple[str, str], list[float]](list)
    for row in records.lines(path)[1:]:
        seconds = planner.plan(row["problem"], machine, name=row["plan"]).seconds
        assert seconds
        logs[row["set"], row["problem"]].append(float(np.log(seconds / row["measured_seconds"])))
    found = defaultdict[str, list[float]](list)
    for (of, _), some in logs.items():
        found[of] += np.abs(np.array(some) - np.median(some)).tolist()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    path = parser.parse_args().file
    machine = load_any(path.parent / name if (name := header(path)["machine_file"]).endswith(".toml") else name)
    assert isinstance(machine, Machine)
    by_cycles = {cycles: errors(path, with_cycles(machine, cycles)) for cycles in TRIED}
    for of in ("all", *by_cycles[0]):
        kinds = by_cycles[0] if of == "all" else [of]
        mean = {cycles: float(np.mean([error for kind in kinds for error in some[kind]])) for cycles, some in by_cycles.items()}
        best = min(mean, key=lambda cycles: mean[cycles])
        print(f"{of}: {best} cycles, mean error {mean[best]:.1%}; with 0 cycles {mean[0]:.1%}")


if __name__ == "__main__":
    main()
