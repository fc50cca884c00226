#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which rows of the GPU registry the planner can do without: what random problems lose in predicted time, nothing is measured.

    python lab/fits/row_wins.py [-m h200] [--count 3000] [--seed S] [--dtypes f16,tf32] [--of products|layers] [--most 0.005]

Products are half log-uniform, half of networks (network_products.py); layers are those of benchmarks/regret.py, at more images, in both
layouts. Rows go one after another, each time the one without which the problems that are left lose least in the mean. A line says of how
many problems a row is the plan, and what all problems lose without it and those before it, in parts of their time, in the mean and at most.
"""

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / one) for one in ("benchmarks", "benchmarks/cuda")]
import msgspec
import network_products
import numpy as np
import regret

from pysim import planner
from pysim.calibration.gpu_lab import drawn
from pysim.errors import PysimError
from pysim.machine.load import load_any
from pysim.problem.text import Workload
from pysim.record.plan import LAYOUTS, Layout

MOST = 2e11  # multiply-adds of a product
IMAGES = (1, 4, 8, 32)  # a layer's


def problems(of: str, dtype: str, count: int, seed: int) -> Iterator[tuple[Workload | str, Layout]]:
    """Random problems of a type with the layout of their results (products: the first one, which they have not)."""
    if of == "products":
        for text in [*drawn(dtype, count - count // 2, seed, MOST), *network_products.drawn(dtype, count // 2, seed, MOST)]:
            yield text, LAYOUTS[0]
        return
    draw = random.Random(seed)
    for _, layer in regret.layers(seed, count):
        yield msgspec.structs.replace(layer, batch=draw.choice(IMAGES), dtype=dtype), draw.choice(LAYOUTS)


def seconds_of_rows(problem: Workload | str, layout: Layout, dtype: str, on: object) -> dict[str, float]:
    """The least predicted seconds of each row."""
    found: dict[str, float] = {}
    accuracy = "ieee" if dtype == "f32" else "standard"
    for plan in planner.plans(problem, on, top=10_000, accuracy=accuracy, layout=layout):
        found[plan.kernel] = min(found.get(plan.kernel, plan.cost.seconds), plan.cost.seconds)
    return found


def least_loss(costs: list[dict[str, float]], kept: list[str]) -> Iterator[tuple[float, float, str]]:
    """Rows in the order in which they can go, each time the one that costs least: what all that are gone cost, in the mean and at most."""
    table = np.array([[one.get(name, np.inf) for name in kept] for one in costs])
    best, left = table.min(axis=1), list(range(len(kept)))
    while len(left) > 1:
        without = [(table[:, [one for one in left if one != row]].min(axis=1) / best - 1, row) for row in left]
        lost, row = min(without, key=lambda one: float(one[0].mean()))
        left.remove(row)
        yield float(lost.mean()), float(lost.max()), kept[row]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--machine", default="h200")
    parser.add_argument("--count", type=int, default=3000, help="of problems of a type")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtypes", default="f16")
    parser.add_argument("--of", default="products", choices=("products", "layers"))
    parser.add_argument("--most", type=float, default=0.005, help="mean loss at which it ends")
    options = parser.parse_args()
    on = load_any(options.machine)
    for dtype in options.dtypes.split(","):
        costs = []
        for problem, layout in problems(options.of, dtype, options.count, options.seed):
            try:
                costs.append(seconds_of_rows(problem, layout, dtype, on))
            except PysimError as error:
                print(f"{problem}: {error}", file=sys.stderr)
        wins = Counter(min(one, key=one.__getitem__) for one in costs)
        for mean, most, name in least_loss(costs, sorted({name for one in costs for name in one})):
            if mean > options.most:
                break
            print(
                f"{name:60} plan of {wins[name] / len(costs):.4f}; lost until here {mean:.5f}, at most {most:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
