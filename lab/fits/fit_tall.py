# SPDX-License-Identifier: Apache-2.0
"""Fits the constants of streams, pointwise convolutions and tall products, to timed products. Nothing is measured.

    python lab/fits/fit_tall.py        # lab/data/h200/products-streams.jsonl

`launch_seconds` and `efficiency` of each family: the point of a grid with the least mean of |log(predicted / measured)|. Prints them, for
both halves of the products with the errors of the other half, and for all; then cuBLAS's time over that of the plan and the regret, before
and after.
"""

import itertools
import math
from typing import Any

import msgspec
import numpy as np
import records
from rooms import DATA

from pysim import planner
from pysim.algorithms.gpu.gemm import graph_saving
from pysim.machine.gpu import Gpu
from pysim.machine.load import load_any
from pysim.machine.quantity import Number
from pysim.problem.gemm import Gemm
from pysim.problem.text import parse

MACHINE = "h200"
FAMILIES = {"conv_pointwise": ("f16", "bf16"), "conv_pointwise_tf32": ("tf32",)}
LAUNCHES = np.arange(2.6e-6, 5.1e-6, 0.2e-6)
EFFICIENCIES = np.arange(0.25, 0.75, 0.05)
Row = dict[str, Any]


def changed(gpu: Gpu, family: str, launch: float, efficiency: float) -> Gpu:
    numbers = {"launch_seconds": launch, "efficiency": efficiency}
    own = {name: Number(value=float(f"{value:.2g}"), kind="fitted", source="fit_tall") for name, value in numbers.items()}
    families = gpu.model.families | {family: msgspec.structs.replace(gpu.model.families[family], **own)}
    return msgspec.structs.replace(gpu, model=msgspec.structs.replace(gpu.model, families=families))


def predicted(gpu: Gpu, problem: str, algorithm: str) -> float:
    """Microseconds in a graph."""
    w, plan = parse(problem), planner.plan(problem, gpu, algorithm=algorithm)
    assert isinstance(w, Gemm)
    return 1e6 * (plan.cost.seconds - graph_saving(gpu, w, plan.launch))


def errors(gpu: Gpu, rows: list[Row]) -> np.ndarray:
    return np.array([abs(math.log(predicted(gpu, row["problem"], "tall") / row["tall"])) for row in rows])


def fitted(gpu: Gpu, family: str, rows: list[Row]) -> tuple[float, float]:
    points = itertools.product(LAUNCHES, EFFICIENCIES)
    return min(points, key=lambda point: float(errors(changed(gpu, family, *point), rows).mean()))


def chosen(gpu: Gpu, rows: list[Row]) -> str:
    """What the plans of all products take, if the better of both algorithms is planned as it is predicted."""
    streams = [predicted(gpu, row["problem"], "tall") < predicted(gpu, row["problem"], "gemm") for row in rows]
    times = [row["tall" if stream else "tiles"] for row, stream in zip(rows, streams, strict=True)]
    ratios = [row["cublas"] / time for row, time in zip(rows, times, strict=True)]
    regrets = [time / min(row["tall"], row["tiles"]) for row, time in zip(rows, times, strict=True)]
    mean, regret = (math.exp(float(np.mean(np.log(one)))) for one in (ratios, regrets))
    return f"cuBLAS over the plan {mean:.3f}, worst {min(ratios):.2f}; regret {regret:.3f}"


def main() -> None:
    gpu, rows = load_any(MACHINE), records.lines(DATA / MACHINE / "products-streams.jsonl")[1:]
    assert isinstance(gpu, Gpu)
    tiles = [row["cublas"] / row["tiles"] for row in rows]
    print(f"without streams: cuBLAS over the plan {math.exp(float(np.mean(np.log(tiles)))):.3f}, worst {min(tiles):.2f}")
    print(f"as the machine's file has them: {chosen(gpu, rows)}")
    after = gpu
    for family, dtypes in FAMILIES.items():
        own = [row for row in rows if row["problem"].rsplit(":", 1)[1] in dtypes]
        for fit, held in ((own[::2], own[1::2]), (own[1::2], own[::2]), (own, own)):
            point = fitted(gpu, family, fit)
            found = errors(changed(gpu, family, *point), held)
            words = f"error {np.median(found):.1%} in the median, {np.quantile(found, 0.9):.1%} at the 90th percentile of {len(held)}"
            print(f"{family}: launch {point[0] * 1e6:.1f} us, efficiency {point[1]:.2f}; {words}{'' if held is own else ' others'}")
        after = changed(after, family, *point)
    print(f"fitted: {chosen(after, rows)}")


if __name__ == "__main__":
    main()
