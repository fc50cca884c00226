# SPDX-License-Identifier: Apache-2.0
"""How long a new problem takes to plan, for a CPU: python lab/benchmarks/planning.py [-m zen4] [-o FILE]

ResNet-50's convolutions and 60 random products with sizes of 1 to 4096. Process times, the least of three passes, each in a new process
without cached plans.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pysim
from pysim.calibration import host
from pysim.problem.text import distinct, resolve

PASSES, PRODUCTS, SEED = 3, 60, 5


def products() -> list[str]:
    draw = random.Random(SEED)
    return [f"gemm:{'x'.join(str(round(2 ** draw.uniform(0, 12))) for _ in range(3))}" for _ in range(PRODUCTS)]


def one_pass(machine: str) -> dict[str, list[float]]:
    """Milliseconds of each problem."""
    pysim.plan("conv:mb1ic8ih8oc8kh1", machine=machine)  # opens files and libraries
    found: dict[str, list[float]] = {"convolutions of resnet50": [], "products": []}
    sets: tuple[list[Any], list[Any]] = ([layer.workload for layer in distinct(resolve(["resnet50"]))], products())
    for what, problems in zip(found, sets, strict=True):
        for problem in problems:
            start = time.process_time()
            pysim.plan(problem, machine=machine)
            found[what].append(1e3 * (time.process_time() - start))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--machine", default="zen4")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--one-pass", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one_pass:
        print(json.dumps(one_pass(given.machine)))
        return
    command = [sys.executable, __file__, "--one-pass", "-m", given.machine]
    passes = [json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(PASSES)]
    least = {what: [min(times) for times in zip(*(one[what] for one in passes), strict=True)] for what in passes[0]}
    summary = {what: {"problems": len(times), "median_ms": statistics.median(times), "sum_ms": sum(times)} for what, times in least.items()}
    text = json.dumps(
        {"planned_for": given.machine, "on": host.machine("host").description, "seed": SEED, "passes": PASSES, **summary}, indent=1
    )
    print(text)
    if given.output:
        given.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
