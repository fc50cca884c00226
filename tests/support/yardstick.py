# SPDX-License-Identifier: Apache-2.0
"""CPU time as a quiet machine would take it: work is timed between slices of a yardstick, and neighbours slow both alike.

    quiet seconds = CPU seconds of the work / CPU seconds of as many slices as stand between its parts x QUIET_SECONDS

A slice does what the planner does: calls of Python functions, small frozen values, NumPy operations on arrays that fit the first caches.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

# of one slice: the least of 2000, 0.97 to 0.99 ms in four runs on one core of a virtual Xeon (family 6 model 167 as the guest sees it,
# 2.7 GHz), CPython 3.11, NumPy 2.4; neighbours on the host make the median 1.0 to 1.6 ms
QUIET_SECONDS = 0.98e-3


class _Pair(NamedTuple):
    low: float
    high: float


def _combine(pair: _Pair, by: float) -> _Pair:
    return _Pair(min(pair.low, by), max(pair.high, by * 0.5 + pair.low))


def _slice(columns: np.ndarray) -> float:
    """One slice: the array is 20 x 300."""
    pair = _Pair(0.0, 1.0)
    for round_ in range(12):
        scaled = columns * 1.5 + columns[0]
        few = np.minimum(np.floor(scaled), 7.0)
        rows, found = np.nonzero((few > 2.0) & (columns < 0.25))
        few[rows, found] += np.sqrt(columns[rows, found])
        total = few.sum(axis=0)
        for index in range(25):
            small = np.where(total > index, total, 1.0)
            pair = _combine(pair, float(small[index]) + round_)
    return pair.high


def quiet_seconds(parts: Sequence[Callable[[], object]], rounds: int = 5) -> float:
    """CPU seconds that all `parts` take once on a quiet machine: the median of `rounds`, after one that warms caches up."""
    columns = np.random.default_rng(1).random((20, 300))
    found = []
    for _ in range(rounds + 1):
        work = slices = 0.0
        for part in parts:
            start = time.process_time()
            part()
            middle = time.process_time()
            _slice(columns)
            work += middle - start
            slices += time.process_time() - middle
        found.append(work / slices * len(parts) * QUIET_SECONDS)
    return median(found[1:])


def main() -> None:
    """Prints how long a slice takes on this machine; the least is QUIET_SECONDS."""
    columns, seconds = np.random.default_rng(1).random((20, 300)), []
    for _ in range(2000):
        start = time.process_time()
        _slice(columns)
        seconds.append(time.process_time() - start)
    print(f"least {min(seconds):.3e} s, a tenth below {np.quantile(seconds, 0.1):.3e} s, median {median(seconds):.3e} s")


if __name__ == "__main__":
    main()
