# SPDX-License-Identifier: Apache-2.0
"""Errors of the CPU's Winograd against float64, beside those of direct sums: the figures that `tolerance` states.

    python lab/ablations/winograd_points.py [--channels 16 64 256 1024] [--size 28] [--filters 64] [--taps 3] [--row]

Operands uniform in [-1, 1). Each line: largest and mean error over the root mean square of the results, in units of the type's roundoff u,
of each F(m x m) of kernels with so many taps an axis (--row: F(1 x m) of kernels of one row), channels in one set and in sets of 128, and
of sconv; the largest over what it grows with, too.
"""

import argparse
from typing import Any

import numpy as np

from pysim import planner
from pysim.algorithms.cpu.winograd import outputs_of
from pysim.calibration import host
from pysim.check.reference import reference
from pysim.problem.text import parse
from pysim.record.schedule import Schedule
from pysim.runtime import cpu as runtime
from pysim.runtime import cpu_launch

KERNELS = {"f32": ("f32_win_8x4__portable", 8, 4), "f64": ("f64_win_8x4__portable", 8, 4)}
ROUNDOFF = {"f32": 2.0**-24, "f64": 2.0**-53}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--channels", type=int, nargs="+", default=[16, 64, 256, 1024])
    parser.add_argument("--size", type=int, default=28)
    parser.add_argument("--filters", type=int, default=64)
    parser.add_argument("--taps", type=int, default=3)
    parser.add_argument("--row", action="store_true")
    given = parser.parse_args()
    high = 1 if given.row else given.taps
    print(f"{'type':<6}{'channels':>9}{'set':>6}  {'algorithm':<10}{'largest/u':>10}{'mean/u':>10}{'grown':>8}")
    for dtype in KERNELS:
        for channels in given.channels:
            w = parse(f"conv:ic{channels}ih{given.size}oc{given.filters}kh{high}kw{given.taps}ph{high // 2}pw{given.taps // 2}:{dtype}")
            random = np.random.default_rng(0)
            kind: Any = runtime.NUMPY_DTYPES[dtype]
            x = (random.random((1, channels, given.size, given.size)) * 2 - 1).astype(kind)
            filters = (random.random((given.filters, channels, high, given.taps)) * 2 - 1).astype(kind)
            wide = np.longdouble if dtype == "f64" else np.float64
            exact = reference(w, x.astype(wide), filters.astype(wide))
            scale = np.sqrt(np.mean(np.square(exact))) * ROUNDOFF[dtype]
            name, windows, held = KERNELS[dtype]
            cases = [
                (
                    f"F({1 if given.row else m}x{m})",
                    at,
                    Schedule(name, "input_stationary", "tiles", windows, held, at, 64, 64, "winograd", m),
                )
                for m in outputs_of(w)
                for at in sorted({channels, min(channels, 128)}, reverse=True)
            ]
            direct = planner.plan(w, host.runnable("host"), algorithm="sconv").schedule
            cases.append(("sconv", direct.channels, direct))
            for label, at, schedule in cases:
                error = np.abs(cpu_launch.Launch(w, schedule).run(x, filters) - exact)
                grown = np.sqrt(at) + np.sqrt(-(-channels // at)) + 4
                largest, mean = error.max() / scale, error.mean() / scale
                print(f"{dtype:<6}{channels:>9}{at:>6}  {label:<10}{largest:>10.1f}{mean:>10.2f}{largest / grown:>8.1f}")


if __name__ == "__main__":
    main()
