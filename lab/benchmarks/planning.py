# SPDX-License-Identifier: Apache-2.0
"""How long a new problem takes to plan: python lab/benchmarks/planning.py [-m MACHINE ...] [-n PROBLEMS] [-o FILE]

Random convolutions, and products with sizes of 1 to 4096, uniform and log-uniform, for each machine. Process times on one core, the least
of three passes, each in a new process without cached plans; median and 90th percentile in milliseconds.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pysim
from pysim.calibration import host
from pysim.errors import PysimError

PASSES, PROBLEMS, SEED = 3, 300, 5
MACHINES = ("zen4", "zen5", "xeon-4208", "power10-e1050", "h200", "a100")
MOST_PRODUCTS = 1 << 38  # multiply-adds of a convolution


def product(draw: random.Random) -> str:
    return f"gemm:{'x'.join(str(draw.randint(1, 4096)) for _ in range(3))}"


def log_product(draw: random.Random) -> str:
    return f"gemm:{'x'.join(str(round(2 ** draw.uniform(0, 12))) for _ in range(3))}"


def convolution(draw: random.Random) -> str:
    """A layer of 1 to 1024 channels and filters, some in groups, some with a stride or a dilation."""
    kernel, stride, dilation = draw.choice((1, 1, 2, 3, 3, 3, 5, 7)), draw.choice((1, 1, 1, 2)), draw.choice((0,) * 6 + (1,))
    padding, batch = draw.choice((0, kernel // 2, kernel // 2)), draw.choice((1, 1, 1, 2, 4, 16, 32))
    channels, filters = (round(2 ** draw.uniform(0, 10)) for _ in range(2))
    size, groups = round(2 ** draw.uniform(2.6, 7.9)), 1
    if draw.random() < 0.25:
        groups = filters = channels
    elif draw.random() < 0.5:
        channels, filters = (max(1, count // 16) * 16 for count in (channels, filters))
    while batch > 1 and batch * channels * size**2 * filters * kernel**2 // groups > MOST_PRODUCTS:
        batch //= 2
    size = max(size, (kernel - 1) * (dilation + 1) + 1)
    return f"conv:g{groups}mb{batch}ic{channels}ih{size}oc{filters}kh{kernel}sh{stride}dh{dilation}ph{padding}"


def one_pass(machine: str, number: int) -> dict[str, list[float]]:
    """Milliseconds of each problem; problems that no kernel computes are left out."""
    for problem in ("conv:mb1ic8ih8oc8kh1", "gemm:33x44x55"):  # opens files and libraries
        pysim.plan(problem, machine=machine)
    found: dict[str, list[float]] = {}
    for what, one in (("convolutions", convolution), ("products", product), ("log-uniform products", log_product)):
        draw = random.Random(SEED)
        found[what] = []
        for problem in (one(draw) for _ in range(number)):
            start = time.process_time()
            try:
                pysim.plan(problem, machine=machine)
            except PysimError:
                continue
            found[what].append(1e3 * (time.process_time() - start))
    return found


def summary(times: list[float]) -> dict[str, float]:
    return {"problems": len(times), "median_ms": statistics.median(times), "p90_ms": sorted(times)[int(0.9 * len(times))]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--machine", nargs="+", default=MACHINES)
    parser.add_argument("-n", "--number", type=int, default=PROBLEMS)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--one-pass", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one_pass:
        print(json.dumps(one_pass(given.machine[0], given.number)))
        return
    found = {}
    for machine in given.machine:
        command = [sys.executable, __file__, "--one-pass", "-n", str(given.number), "-m", machine]
        passes = [json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(PASSES)]
        least = {what: [min(times) for times in zip(*(one[what] for one in passes), strict=True)] for what in passes[0]}
        found[machine] = {what: summary(times) for what, times in least.items()}
    about = {"on": host.machine("host").description, "seed": SEED, "passes": PASSES}
    text = json.dumps({**about, "planned_for": found}, indent=1)
    print(text)
    if given.output:
        given.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
