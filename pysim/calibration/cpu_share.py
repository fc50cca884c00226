# SPDX-License-Identifier: Apache-2.0
"""How much of the last level strangers leave: a virtual machine's cores share it with others', and Linux reports all of it.

What a plan keeps there depends on how soon it comes back for a line, so no loop of loads tells it: read over and over at full speed, 24
of a Zen 5's 32 MiB stayed; lines that are loaded one after another lost all from 12 MiB on, beside the same neighbours. So plans decide,
of layers of some MB up to more than there is, by the model that is to predict them:

    loss(ways) = mean over plans of min(|log(predicted with so many ways / measured)|, FAR)      plans whose prediction the ways change
    good       = those whose loss is at most least loss + NEAR; ways = the most of them

Linux is believed as far as plans do not speak against it. The error is half the range of what is good over RESAMPLES draws of the plans,
without the outer 10 %.

Worked number: plans of 9, 13 and 19 MB of which the last takes as long as if all came from memory: 7, 8 and 9 ways of 2 MiB lie between 13
and 19 MB; all are good, so it is 9, give or take 1.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from pysim import planner
from pysim.calibration.cpu_lab import Measured
from pysim.calibration.estimate import Estimate, Floats
from pysim.machine.cpu import Machine

FAR, NEAR = 0.3, 0.005
DEPENDS = 0.02  # change of a prediction from which on a plan says something
FEWEST_PLANS, RESAMPLES = 6, 200
DOUBT = 1 / 8  # of all ways: an error from which on the number is not sure


def with_ways(on: Machine, ways: int) -> Machine:
    """The machine whose last level has so many."""
    return msgspec.structs.replace(on, levels=(*on.levels[:-1], msgspec.structs.replace(on.levels[-1], ways=ways)))


def ways_left(on: Machine, most: int, plans: Sequence[Measured], measured: Floats) -> Estimate | None:
    """Ways of the last level, of at most so many, that predict the `measured` cycles of plans best; None where too few plans depend on
    them, or no other core uses the level."""
    last = on.levels[-1]
    inner = on.levels[-2].size_bytes if len(on.levels) > 1 else 0
    choices = [ways for ways in range(1, most + 1) if ways * last.way_bytes >= max(inner, last.way_bytes)]
    if not last.shared or len(choices) < 2:
        return None
    ends = [_predicted(with_ways(on, ways), plans) for ways in (choices[0], most)]
    telling = np.flatnonzero(np.abs(np.log(ends[0] / ends[1])) > DEPENDS).tolist()
    if len(telling) < FEWEST_PLANS:
        return None
    some = [plans[at] for at in telling]
    off = np.array([np.abs(np.log(_predicted(with_ways(on, ways), some) / measured[telling])) for ways in choices])
    off = np.minimum(off, FAR)

    def good(loss: Floats) -> tuple[int, int]:
        near = np.flatnonzero(loss <= loss.min() + NEAR)
        return choices[near[0]], choices[near[-1]]

    random = np.random.default_rng(0)
    draws = np.array([good(off[:, random.integers(0, len(telling), len(telling))].mean(axis=1)) for _ in range(RESAMPLES)])
    low, high = np.quantile(draws[:, 0], 0.05), np.quantile(draws[:, 1], 0.95)
    error = float(high - low) / 2
    return Estimate(good(off.mean(axis=1))[1], error, f"other plans would say {low:.0f} to {high:.0f}" if error > DOUBT * most else "")


def _predicted(on: Machine, plans: Sequence[Measured]) -> Floats:
    """Cycles."""
    seconds = [planner.plan(one.problem, on, name=one.name).seconds or np.nan for one in plans]
    return np.array(seconds) * on.clock_hz
