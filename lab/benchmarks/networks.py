# SPDX-License-Identifier: Apache-2.0
"""The SConv paper's comparison measured on this computer: its seven networks by SConv, by im2col and a product, and by the free choice.

    python lab/benchmarks/networks.py -o FILE [NETWORK ...] [--seconds 0.1]
    python lab/figures/update_pages.py          # puts the table into docs/cost-model.md

For every distinct convolution of arXiv 2303.04739, section 7, on one core, FP32, batch 1, hot caches: the best plans of `sconv`, of
`im2col` (this library's transform and product) and of all algorithms, and im2col with OpenBLAS. They are checked, then timed interleaved
in one run. Our filters are packed beforehand; OpenBLAS packs both operands in each product, as for the paper's Caffe. `packing` comes
from one profiled call; the rest of im2col's time is its transform. One JSON line per convolution.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from pysim import planner
from pysim.calibration import host
from pysim.comparison.bench import CpuBench
from pysim.measure.clock import CpuClock, interleave
from pysim.measure.store import environment
from pysim.peers import openblas
from pysim.problem.conv import Conv
from pysim.problem.text import distinct, resolve
from pysim.runtime import cpu

NETWORKS = ("googlenet", "inception_v2", "resnet18", "resnet50", "resnet152", "squeezenet", "vgg16")
CHOICES: dict[str, str | None] = {"sconv": "sconv", "im2col": "im2col", "free": None}
TOLERANCE = 1e-4  # of the results' root mean square; F(4x4)'s largest error is a tenth of it


def measure(problem: Conv, on: Any, seconds: float) -> dict[str, Any]:
    """Medians of all candidates, predictions and shares of packing. A layer without a plan of an algorithm has no entry of it."""
    bench = CpuBench(problem, on.levels[-1].size_bytes, 1, cpu.LOCAL, seed=0)
    given = bench.operands(exact=False)
    row: dict[str, Any] = {"problem": problem.text, "seconds": {}, "predicted": {}, "packing": {}, "plans": {}}
    theirs = openblas.make(problem, given)
    theirs.call()
    right = given.out.copy()
    calls = {"im2col_openblas": theirs.call}
    for name, algorithm in CHOICES.items():
        chosen = "sconv" if algorithm == "im2col" and problem.pointwise else algorithm  # which need no transform
        plan = planner.plan(problem, on, algorithm=chosen)
        ready = bench.make(plan, given)
        result = bench.result(ready, given)
        if not np.abs(result - right).max() <= TOLERANCE * np.sqrt(np.mean(np.square(right, dtype=np.float64))):
            raise SystemExit(f"{problem.text}: {plan.name} is wrong")
        calls[name], row["predicted"][name], row["plans"][name] = ready.call, plan.seconds, plan.name
        row["packing"][name] = bench.profile(plan)
    samples = interleave(calls, CpuClock(), min_samples=15, min_seconds=seconds, budget_seconds=4.0).samples
    row["seconds"] = {name: float(np.median(found)) for name, found in samples.items()}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=0.1, help="of samples of each candidate")
    given = parser.parse_args()
    on = host.detect()
    networks = {name: {layer.workload.text: layer.count for layer in distinct(resolve([name]))} for name in given.networks}
    together = distinct([layer for name in given.networks for layer in resolve([name])])
    with given.output.open("w", encoding="utf-8") as out:
        print(json.dumps({"kind": "header", "networks": networks, "environment": environment()}), file=out)
        for layer in together:
            assert isinstance(layer.workload, Conv)
            row = measure(layer.workload, on, given.seconds)
            print(json.dumps(row), file=out, flush=True)
            print("  ".join(f"{name} {value * 1e3:8.3f}" for name, value in row["seconds"].items()), layer.workload.text, flush=True)


if __name__ == "__main__":
    main()
