# SPDX-License-Identifier: Apache-2.0
"""The time of exported plans beside the library's, in turns: the library's lower quartile over the export's, round by round; the median of
rounds and their quartiles. Lower quartiles, since a busy computer disturbs a sample in two.

taskset -c 1 python lab/benchmarks/exported_plans.py [PROBLEM...]
"""

import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import pysim
from pysim.problem.gemm import Gemm
from pysim.record.plan import Plan
from pysim.runtime.cpu import aligned
from pysim.runtime.cpu_launch import Launch

PROBLEMS = (
    "conv:mb1ic64ih56oc64kh3ph1",
    "conv:mb1ic256ih14oc1024kh1",
    "conv:mb1ic3ih224oc64kh7sh2ph3",
    "conv:mb1g144ic144ih56oc144kh3ph1",
    "conv:mb1ic128ih28oc128kh3sh1ph2dh1",
    "gemm:512x2048x1024",
)
ROUNDS, SECONDS = 15, 0.3


def main() -> None:
    for problem in sys.argv[1:] or PROBLEMS:
        plan = pysim.plan(problem, "host")
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "plan"
            pysim.export(plan, folder)
            subprocess.run(["make", "-s", "-C", str(folder), "test"], check=True, stdout=subprocess.DEVNULL)
            measured = ratios(plan, folder)
        low, middle, high = statistics.quantiles(measured, n=4)
        print(f"{middle:.3f} ({low:.3f} to {high:.3f}) {plan.algorithm}, {plan.kernel}: {problem}", flush=True)


def ratios(plan: Plan, folder: Path) -> list[float]:
    """The library's seconds over the export's in each round."""
    w, launch, random = plan.workload, Launch.of(plan), np.random.default_rng(1)
    product = isinstance(w, Gemm)
    filters = ((w.n, w.k) if w.trans_b else (w.k, w.n)) if product else (w.filters, w.channels // w.groups, w.kernel_h, w.kernel_w)
    first, out = aligned(launch.shapes[0], np.float32), aligned(launch.shapes[1], np.float32)
    first[...] = random.standard_normal(first.shape)
    weights, epilogue = launch.prepare(random.standard_normal(filters).astype(np.float32)), launch.epilogue(None, None)
    return [library_seconds(lambda: launch.run_prepared(first, weights, epilogue, out)) / exported_seconds(folder) for _ in range(ROUNDS)]


def library_seconds(run) -> float:
    run()
    samples, end = [], time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        samples.append(time.perf_counter() - start)
    return statistics.quantiles(samples, n=4)[0]


def exported_seconds(folder: Path) -> float:
    text = subprocess.run([folder / "plan", "benchmark", str(SECONDS)], check=True, capture_output=True, text=True).stdout
    return float(re.findall(r"quartiles ([\d.e-]+),", text)[0])


if __name__ == "__main__":
    main()
