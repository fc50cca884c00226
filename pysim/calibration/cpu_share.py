# SPDX-License-Identifier: Apache-2.0
"""Estimates how many ways of the last-level cache are left for this virtual machine. Linux reports all ways; neighbours use some of them.

A loop of loads cannot measure this, because how much data stays depends on how soon a program reuses it. Beside the same neighbours, a
loop at full speed kept 24 of a Zen 5's 32 MiB, and a chain of dependent loads kept nothing from 12 MiB on. So measured plans decide, of
layers from some MB to more than the cache:

    loss(ways) = mean over plans of min(|log(predicted with these ways / measured)|, MAX_LOSS)

Only plans whose prediction depends on the ways count. How much one layer decides is found by a Bayesian bootstrap (Rubin, The Annals of
Statistics 9(1), 1981): RESAMPLES times each layer gets a random weight, and the ways of least loss are noted (several where losses differ
by at most TIE). Layers and not plans are weighted, because the errors of the plans of one layer resemble each other. The result is the
median over the samples. If all ways are among the best in at least half of the samples, Linux is right. The error extends to the outer
5 % of the samples on either side.

Worked number: plans of 9, 13 and 19 MB, the last as slow as from memory. 7, 8 and 9 ways of 2 MiB lie between 13 and 19 MB and fit equally
well in every sample, so the result is 8 +- 1.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from pysim import planner
from pysim.calibration.cpu_lab import Measured
from pysim.calibration.estimate import Estimate, Floats
from pysim.machine.cpu import Machine

MAX_LOSS, TIE = 0.3, 5e-4
MIN_CHANGE = 0.05  # of log(prediction) from fewest to most ways, for a plan to count; the model's other errors are 4 to 7 % (median)
MIN_PLANS, RESAMPLES = 6, 200
MAX_ERROR = 1 / 8  # of all ways: above it the number is in doubt


def with_ways(on: Machine, ways: int) -> Machine:
    """The machine with this many ways in its last level."""
    return msgspec.structs.replace(on, levels=(*on.levels[:-1], msgspec.structs.replace(on.levels[-1], ways=ways)))


def ways_left(on: Machine, most: int, plans: Sequence[Measured], measured: Floats) -> Estimate | None:
    """The number of ways, at most `most`, that predicts the `measured` cycles best. None where too few plans depend on it, or the level is
    private to a core."""
    last = on.levels[-1]
    inner = on.levels[-2].size_bytes if len(on.levels) > 1 else 0
    choices = [ways for ways in range(1, most + 1) if ways * last.way_bytes >= max(inner, last.way_bytes)]
    if not last.shared or len(choices) < 2:
        return None
    ends = [cycles_of(with_ways(on, ways), plans) for ways in (choices[0], most)]
    sensitive = np.flatnonzero(np.abs(np.log(ends[0] / ends[1])) > MIN_CHANGE).tolist()
    if len(sensitive) < MIN_PLANS:
        return None
    some = [plans[at] for at in sensitive]
    off = np.array([np.abs(np.log(cycles_of(with_ways(on, ways), some) / measured[sensitive])) for ways in choices])
    best = _best_of_samples(np.minimum(off, MAX_LOSS), [one.problem for one in some], np.array(choices))
    low, high = float(np.quantile(best[:, 0], 0.05)), float(np.quantile(best[:, 1], 0.95))
    value = most if np.mean(best[:, 1] == most) >= 0.5 else math.ceil(np.median(best.mean(axis=1)))
    error = max(value - low, high - value)
    return Estimate(value, error, f"other plans would give {low:.0f} to {high:.0f}" if error > MAX_ERROR * most else "")


def _best_of_samples(off: Floats, layers: Sequence[str], choices: NDArray[np.int_]) -> Floats:
    """The fewest and the most ways of least loss, for each sample of weights. `off`: the plans' losses, [choice][plan]."""
    names = sorted(set(layers))
    weights = np.random.default_rng(0).exponential(size=(len(names), RESAMPLES))[[names.index(layer) for layer in layers]]
    loss = off @ weights / weights.sum(axis=0)
    least = [choices[one <= one.min() + TIE] for one in loss.T]
    return np.array([(some[0], some[-1]) for some in least], dtype=np.float64)


def cycles_of(on: Machine, plans: Sequence[Measured]) -> Floats:
    """Predicted cycles."""
    seconds = [planner.plan(one.problem, on, name=one.name).seconds or np.nan for one in plans]
    return np.array(seconds) * on.clock_hz
