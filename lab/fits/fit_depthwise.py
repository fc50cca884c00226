# SPDX-License-Identifier: Apache-2.0
"""Fits a machine's numbers of depthwise kernels to plans that were timed. Nothing is measured.

    python lab/fits/fit_depthwise.py MACHINE        # of lab/data/MACHINE/depthwise.jsonl

`tile_row_cycles` is fitted to the plans of form `blocks` with stride 1, `deinterleave_instructions` to those of form `rows` on AVX2 with
stride 2: each the value of a grid with the least median of |log(predicted / measured)|. Prints the errors of every value.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import records
from model_errors import machine_of
from rooms import DATA

from pysim import planner
from pysim.machine.cpu import Machine
from pysim.machine.quantity import Number
from pysim.problem.conv import Conv
from pysim.problem.text import parse

Row = dict[str, Any]
GRIDS: dict[str, tuple[Sequence[float], Callable[[Conv, str], bool]]] = {
    "tile_row_cycles": (range(5, 31, 5), lambda w, plan: "_blocks_" in plan and w.stride_w == 1),
    "deinterleave_instructions": (range(1, 9), lambda w, plan: "_rows_" in plan and "__avx2" in plan and w.stride_w == 2),
}


def errors(machine: Machine, rows: Sequence[Row]) -> list[float]:
    """log(predicted / measured) of each plan."""
    found = []
    for row in rows:
        plan = planner.plan(row["problem"], machine, name=row["plan"], layout=row.get("layout", "nchw"))
        found.append(math.log(float(plan.seconds or 0) / row["measured_seconds"]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("machine", help="a folder of lab/data")
    path = DATA / parser.parse_args().machine / "depthwise.jsonl"
    machine, rows = machine_of(path), records.lines(path)[1:]
    assert isinstance(machine, Machine)
    for name, (grid, fits) in GRIDS.items():
        some = [row for row in rows if isinstance(w := parse(row["problem"]), Conv) and fits(w, row["plan"])]
        medians = dict[float, float]()
        for value in grid:
            core = msgspec.structs.replace(machine.core, **{name: Number(value=float(value), kind="fitted", source="fit")})
            found = errors(msgspec.structs.replace(machine, core=core), some)
            medians[value] = float(np.median(np.abs(found)))
            ratio = math.exp(float(np.median(found)))
            print(f"{name} {value:3}: error {medians[value]:5.1%} in the median, predicted over measured {ratio:.2f}, {len(some)} plans")
        print(f"{name} = {min(medians, key=medians.__getitem__)}")


if __name__ == "__main__":
    main()
