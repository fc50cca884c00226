# SPDX-License-Identifier: Apache-2.0
"""Fits the constants of pysim/torch/layers/expected_cpu.py, PRICES and PASSES, to measured times.

    python lab/fits/fit_torch.py lab/data/zen4/torch-operators.jsonl

Non-negative weights that minimize the relative errors, outliers weighted down (iteratively reweighted least squares): other processes
lengthen single measurements several times. The 30th percentile is fitted. Prints the constants, and per kind of operator the median error
and its 10th and 90th percentile.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import nnls

from pysim.calibration import host
from pysim.machine.cpu import Machine
from pysim.problem.text import parse
from pysim.torch.layers.expected_cpu import PASSES, kind_of, peak_flops, work_of

LOW = 0.3  # PyTorch's operators are the safe choice, so their times are not to be overestimated


class Measured(NamedTuple):
    """`numbers`: what the constants multiply."""

    kind: str
    problem: str
    seconds: float
    numbers: list[float]


def measured(rows: Iterable[dict[str, Any]], on: Machine) -> Iterator[Measured]:
    cycle = 1 / on.clock_hz
    for row in rows:
        op, seconds = row["op"], row["seconds"]
        if op in PASSES:
            yield Measured(op, row["problem"], seconds, [cycle, 4.0 * int(row["problem"]) * cycle])
            continue
        problem = parse(row["problem"])
        moved, kind = [one * cycle for one in work_of(problem)], kind_of(problem)
        # of one row or pixel the FLOP are in proportion to the bytes of the weights
        flops = 0.0 if kind in ("row", "pixel") else problem.flops / peak_flops("f32", on)
        yield Measured(kind + op.removeprefix("conv").removeprefix("linear"), row["problem"], seconds, [cycle, flops, *moved])


def fitted(rows: list[Measured], quantile: float) -> tuple[Any, Any]:
    """The constants, and the predicted over the measured times, of which `quantile` are shorter than predicted."""
    seconds = np.array([row.seconds for row in rows])
    relative = np.array([row.numbers for row in rows]) / seconds[:, None]
    scale = np.maximum(relative.max(0), 1e-300)
    trust = np.ones(len(rows))
    for _ in range(30):
        weights, _ = nnls(relative / scale * trust[:, None], trust)
        ratios = relative / scale @ weights
        share = np.where(ratios > 1, 1 - quantile, quantile)
        trust = np.sqrt(share / np.maximum(0.02, np.abs(ratios - 1)))
    return weights / scale, ratios


def main() -> None:
    on = host.runnable("host")
    kinds: dict[str, list[Measured]] = {}
    for path in map(Path, sys.argv[1:]):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for one in measured((row for row in rows if "op" in row), on):
            kinds.setdefault(one.kind, []).append(one)
    for kind, found in kinds.items():
        weights, ratios = fitted(found, LOW)
        numbers = [f"{weights[0]:.0f}", *(f"{one:.3f}" for one in weights[1:])]
        print(f'"{kind}": ({", ".join(numbers)}),  # {len(found)}: median error {np.median(np.abs(np.log(ratios))):.0%}, ', end="")
        print("{:+.0%} to {:+.0%}".format(*(np.percentile(ratios, [10, 90]) - 1)))


if __name__ == "__main__":
    main()
