# SPDX-License-Identifier: Apache-2.0
"""What each of several busy CPUs keeps of its rate alone, for every unit of this CPU: `[[core.units.together]]` of a machine file.

    python lab/benchmarks/units_together.py [--seconds S]

A trial runs a unit's multiply-adds on one CPU after the other, then on 2, 4, ... all at once. Printed for each unit: the slowest and the
mean share, medians over all trials, and the least and the largest rate of a CPU alone, since some units have a fast and a slow state.
"""

import argparse
import time
from functools import partial

import numpy as np

from pysim.calibration.detected import team_sizes
from pysim.measure.parallel_probe import all_at_once, one_by_one, usable
from pysim.registry.cpu import probed_dtype
from pysim.runtime import cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    sizes = team_sizes(len(usable()))
    targets = sorted({name.rpartition("__")[2] for name in cpu.available_kernels()})
    found = {(target, size): list[tuple[float, float]]() for target in targets for size in sizes}
    rates: dict[str, list[float]] = {target: [] for target in targets}
    end, trials = time.perf_counter() + given.seconds, 0
    while trials < 3 or time.perf_counter() < end:
        trials += 1
        for (target, size), shares in found.items():
            multiply = partial(cpu.probe_fma, target, probed_dtype(target))
            alone, together = one_by_one(multiply, size), all_at_once(multiply, size)
            kept = [min(1.0, rate / own) for own, rate in zip(alone, together, strict=True)]
            shares.append((min(kept), sum(kept) / size))
            rates[target] += alone
    print(f"{trials} trials")
    for target in targets:
        of = "; ".join("{}: {:.2f}, {:.2f}".format(size, *np.median(found[target, size], axis=0)) for size in sizes)
        print(
            f"{target}: alone {min(rates[target]) / 1e9:.3f} to {max(rates[target]) / 1e9:.3f} G/s; CPUs: slowest, mean share {of}",
            flush=True,
        )


if __name__ == "__main__":
    main()
