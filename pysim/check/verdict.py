# SPDX-License-Identifier: Apache-2.0
"""Decides whether a result is correct, in the same way for every candidate on every machine.

    exact fill    Every element equals the reference bit for bit, except for the sign of zero. For algorithms that round whole numbers,
                  it is within the algorithm's bound.
    random fill   Every element is finite, and within `bounds.allowed` where the reference is known (some elements; on a GPU all).

Outputs start as NaN. NaN, an unwritten element or another shape fails. A result with too many zeros proves little and is mistrusted.
"""

import math
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import numpy as np

from pysim.algorithms.interface import Bound
from pysim.check.bounds import allowed, of_rms
from pysim.check.fills import UNWRITTEN, Array
from pysim.check.reference import Pair, Trial, shapes

MAX_ZEROS = 0.3  # share of zero outputs above which a pass proves nothing
CHUNK_ELEMENTS = 1 << 22  # outputs compared at a time

Everywhere = Callable[[], Pair | None]


class Verdict(NamedTuple):
    """`error`: the largest |got - want|; from `judge`, that over |A||B| on the random fill (NaN without one). `over_rms`: the largest on
    the random fill over the root mean square of the correct result. `reason`: what is wrong, and where."""

    status: Literal["passed", "failed", "mistrusted"]
    error: float
    reason: str = ""
    over_rms: float = math.nan

    @property
    def passed(self) -> bool:
        """Whether a time may be measured and shown."""
        return self.status == "passed"


def judge(t: Trial, bound: Bound, exact: Array, random: Callable[[], Array], everywhere: Everywhere = lambda: None) -> Verdict:
    """The verdict on both fills. The random one is computed only if the exact one is correct."""
    verdict = on_exact(t, bound, exact)
    return on_random(t, bound, random(), everywhere) if verdict.passed else verdict


def on_exact(t: Trial, bound: Bound, got: Array) -> Verdict:
    """The verdict on the exact fill."""
    expected = shapes(t.workload).out
    if got.shape != expected:
        return Verdict("failed", math.nan, f"exact fill: the result has shape {got.shape}, expected {expected}")
    for rows in _chunks(expected):
        want = t.want.rows(rows)
        verdict = compare(got[rows], want, of_rms(bound, want))
        if not verdict.passed:
            return verdict._replace(error=math.nan, reason=f"exact fill: {verdict.reason}{_counted(rows)}")
    return Verdict("passed", math.nan)


def on_random(t: Trial, bound: Bound, got: Array, everywhere: Everywhere = lambda: None) -> Verdict:
    """The verdict on the random fill. `everywhere` gives (A B, |A||B|) at every element in the result's type, where known."""
    expected, where = shapes(t.workload).out, t.picked
    if got.shape != expected:
        return Verdict("failed", math.nan, f"random fill: the result has shape {got.shape}, expected {expected}")
    if bad := sum(int(np.count_nonzero(~np.isfinite(got[rows]))) for rows in _chunks(expected)):
        return Verdict("failed", math.nan, f"random fill: {bad} of {got.size} elements are NaN, infinite or were never written")
    taken = where.of(got)
    verdict = compare(taken, where.want, allowed(bound, t.sums, where.want, where.scale))
    off, tiny = np.abs(taken.astype(np.float64) - where.want), np.finfo(np.float64).tiny
    error = float(np.max(off / np.maximum(where.scale, tiny)))
    over_rms = float(off.max() / max(math.sqrt(float(np.mean(where.want**2))), tiny))
    reason = verdict.reason
    if verdict.passed and (known_everywhere := everywhere()):
        want, scale = known_everywhere
        for rows in _chunks(expected):
            known, size = want[rows].astype(np.float64), scale[rows].astype(np.float64)
            verdict = compare(got[rows], known, allowed(bound, t.sums, known, size, stored=2))
            if not verdict.passed:
                reason = verdict.reason + _counted(rows)
                break
    return Verdict(verdict.status, error, reason and f"random fill: {reason}", over_rms)


def compare(got: Array, want: Array, off: Array | float = 0.0) -> Verdict:
    """Passes if every |got - want| <= `off`, without NaN or infinity, and not too many results are zero."""
    if got.shape != want.shape:
        return Verdict("failed", math.nan, f"the result has shape {got.shape}, expected {want.shape}")
    if not got.size:
        return Verdict("mistrusted", math.nan, "the result has no element, so nothing was checked")
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.abs(got.astype(np.float64) - want.astype(np.float64))
        bad = ~((difference <= off) & (difference < np.inf))
    if count := int(np.count_nonzero(bad)):
        where = tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))
        unset = int(np.count_nonzero(got == UNWRITTEN if got.dtype.kind == "i" else np.isnan(got)))
        nans = f", {unset} are NaN or were never written" if unset else ""
        first = f"the first at {where} is {got[where]!s}, expected {want[where]!s}"
        return Verdict("failed", float(difference.max()), f"{count} of {got.size} elements are wrong{nans}; {first}")
    zeros = (got.size - np.count_nonzero(got)) / got.size
    if zeros > MAX_ZEROS:
        return Verdict("mistrusted", float(difference.max()), f"{zeros:.0%} of the results are zero, so a pass proves little")
    return Verdict("passed", float(difference.max()))


def _chunks(shape: tuple[int, ...]) -> Iterator[slice]:
    """Slices of the first axis with about CHUNK_ELEMENTS elements."""
    step = max(1, CHUNK_ELEMENTS // max(1, math.prod(shape[1:])))
    return (slice(first, first + step) for first in range(0, shape[0], step))


def _counted(rows: slice) -> str:
    return f", counted from {rows.start} on the first axis" if rows.start else ""
