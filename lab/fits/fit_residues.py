# SPDX-License-Identifier: Apache-2.0
"""Fits `model.residues` of a GPU's machine file to products timed beside the plan without residues.

    python lab/fits/fit_residues.py FILE.jsonl [-m h200] [--dtype f64]

FILE is written by lab/benchmarks/cuda/residues.py, whose two plans took turns. A GPU's clock depends on what ran before, so ratios are
fitted: of the predicted times of both plans to that of the measured ones. The instructions of operands hide behind memory and stay. Each
constant in turn takes the value of a grid that minimises the mean of |log of it|, until none changes. Printed are the constants, the error
of the ratio, and each product for which the slower of both plans would be chosen.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from model_errors import records

from pysim import planner
from pysim.machine.gpu import Gpu
from pysim.machine.load import load_any
from pysim.machine.quantity import Number

GRIDS = {
    "efficiency": np.arange(1.2, 1.61, 0.08),
    "launch_seconds": np.arange(2e-6, 1.01e-5, 2e-6),
    "blocks_at_once": np.arange(3, 9),
    "across_share": np.arange(0.65, 1.01, 0.05),
    "result_instructions": np.arange(4, 6.5, 0.6),
}


class Timed(NamedTuple):
    """A product: seconds by residues over those without, and the predicted seconds without."""

    problem: str
    ratio: float
    without: float


def with_constants(gpu: Gpu, dtype: str, constants: dict[str, float]) -> Gpu:
    own = {name: Number(value=float(value), kind="fitted", source="residues") for name, value in constants.items()}
    residues = gpu.model.residues | {dtype: msgspec.structs.replace(gpu.model.residues[dtype], **own)}
    return msgspec.structs.replace(gpu, model=msgspec.structs.replace(gpu.model, residues=residues))


def seconds(problem: str, gpu: Gpu, algorithm: str) -> float:
    found = planner.plan(problem, gpu, algorithm=algorithm).seconds
    assert found
    return found


def logs(rows: Sequence[Timed], gpu: Gpu) -> Any:
    return np.log([seconds(row.problem, gpu, "residues") / row.without / row.ratio for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("-m", "--machine", default="h200")
    parser.add_argument("--dtype", default="f64")
    options = parser.parse_args()
    gpu, dtype = load_any(options.machine), options.dtype
    assert isinstance(gpu, Gpu)
    lines = [row for row in records.lines(options.file) if row.get("problem", "").endswith(f":{dtype}")]
    rows = [
        Timed(row["problem"], row["seconds"]["residues"] / row["seconds"]["gemm"], seconds(row["problem"], gpu, "gemm")) for row in lines
    ]
    best = {name: getattr(gpu.model.residues[dtype], name).value for name in GRIDS}
    error, before = float(np.mean(abs(logs(rows, gpu)))), np.inf
    print(f"as in the file: {error:.2%}")
    while error < before:
        before = error
        for name, grid in GRIDS.items():
            errors = {value: float(np.mean(abs(logs(rows, with_constants(gpu, dtype, best | {name: value}))))) for value in grid.tolist()}
            value = min(errors, key=lambda one: errors[one])
            if errors[value] < error:
                best, error = best | {name: value}, errors[value]
    off = logs(rows, with_constants(gpu, dtype, best))
    print({name: float(f"{value:.4g}") for name, value in best.items()})
    print(f"error {np.median(abs(off)):.1%} median, {np.quantile(abs(off), 0.9):.1%} 90th percentile")
    for row, log in zip(rows, off, strict=True):
        predicted = row.ratio * np.exp(log)
        if (predicted < 1) != (row.ratio < 1):
            print(f"{row.problem}: takes {row.ratio:.3f} of the time without residues, predicted {predicted:.3f}")


if __name__ == "__main__":
    main()
