# SPDX-License-Identifier: Apache-2.0
"""SConv's packing beside im2col's transform, on the 3x3 convolutions of the given sets: one core, interleaved, medians.

    python lab/benchmarks/packing.py SET... [-m host|FILE.toml] [--seconds S]

SConv's paper (arXiv 2303.04739) claims that its packing takes 2.0 to 3.9 times less. The plan of each layer is the best one of `sconv`; its
profile gives the seconds in which it packs. im2col is the vectorised one of `pysim compare`.
"""

import argparse
import time

import numpy as np

from pysim import planner
from pysim.calibration import host
from pysim.machine.load import load_any
from pysim.peers.openblas import im2col
from pysim.problem.conv import Conv
from pysim.problem.text import distinct, resolve
from pysim.record.plan import Plan
from pysim.runtime import cpu, cpu_launch

FEWEST = 5  # samples of a layer


def measured(w: Conv, plan: Plan, seconds: float) -> tuple[float, float]:
    """Median seconds of the plan's packing and of im2col, for one image."""
    random = np.random.default_rng(0)
    x, columns = cpu.aligned((1, w.channels, w.height, w.width), np.float32), cpu.aligned((w.channels * 9, w.windows), np.float32)
    x[:] = random.random(x.shape)
    call = cpu_launch.Prepared(w, random.random((w.filters, w.channels, 3, 3), dtype=np.float32), plan.schedule)
    result, step = call(x), im2col(w, x[0], columns)
    packing, copying, end = list[float](), list[float](), time.perf_counter() + seconds
    while len(packing) < FEWEST or time.perf_counter() < end:
        packing.append(call.profile(x, result)["pack_seconds"])
        step()  # so that the columns are in the caches that they fit
        start = time.perf_counter()
        step()
        copying.append(time.perf_counter() - start)
    return float(np.median(packing)), float(np.median(copying))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+")
    parser.add_argument("-m", "--machine", default="host")
    parser.add_argument("--seconds", type=float, default=0.25)
    given = parser.parse_args()
    on = host.machine("host") if given.machine == "host" else load_any(given.machine)
    ratios: dict[int, list[float]] = {}
    for layer in distinct(resolve(given.sets)):
        w = layer.workload
        if not isinstance(w, Conv) or (w.kernel_h, w.kernel_w, w.groups, w.batch, w.dtype) != (3, 3, 1, 1, "f32"):
            continue
        plan = planner.plan(w, on, algorithm="sconv")
        packing, copying = measured(w, plan, given.seconds)
        ratios.setdefault(w.stride_h, []).append(packing / copying)
        print(f"{packing * 1e6:9.1f} us  im2col {copying * 1e6:9.1f} us  {packing / copying:.2f}  {w.text}  {plan.name}", flush=True)
    for stride, of in sorted(ratios.items()):
        mean, half = float(np.exp(np.mean(np.log(of)))), sum(one <= 0.5 for one in of)
        print(f"stride {stride}: {len(of)} layers, {mean:.2f} of im2col in the geometric mean, at most {max(of):.2f}, <= 0.5 on {half}")


if __name__ == "__main__":
    main()
