# SPDX-License-Identifier: Apache-2.0
"""Whether a result is right: the same question for every contender, on every machine.

    exact fill    every element equals the reference, bit for bit (the sign of zero aside); of an algorithm that rounds whole numbers, too,
                  it stays within that algorithm's bound
    random fill   every element is finite, and those that the reference knows (some; on a GPU all) stay within `bounds.allowed`

Outputs start as NaN, and NaN, an unwritten element or another shape fails. Results of which too many are zero prove little, and are
mistrusted.
"""

import math
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import numpy as np

from pysim.algorithms.contract import Bound
from pysim.check.bounds import allowed, of_rms
from pysim.check.fills import UNWRITTEN, Array
from pysim.check.reference import Pair, Trial, shapes

MOST_ZEROS = 0.3  # share of zero outputs above which a pass proves nothing
CHUNK_ELEMENTS = 1 << 22  # outputs compared at a time

Everywhere = Callable[[], Pair | None]


class Verdict(NamedTuple):
    """`error` is the largest |got - want|, in `judge`'s over |A||B| on the random fill (NaN where there is none); `over_rms` is the largest
    there over the root mean square of what is right; `reason` says what is wrong, and where."""

    status: Literal["passed", "failed", "mistrusted"]
    error: float
    reason: str = ""
    over_rms: float = math.nan

    @property
    def passed(self) -> bool:
        """Whether a time may be measured and shown."""
        return self.status == "passed"


def judge(t: Trial, bound: Bound, exact: Array, random: Callable[[], Array], everywhere: Everywhere = lambda: None) -> Verdict:
    """The verdict on the results of both fills; the random one is asked for where the exact one is right."""
    found = on_exact(t, bound, exact)
    return on_random(t, bound, random(), everywhere) if found.passed else found


def on_exact(t: Trial, bound: Bound, got: Array) -> Verdict:
    """The result of the exact fill."""
    expected = shapes(t.workload).out
    if got.shape != expected:
        return Verdict("failed", math.nan, f"exact fill: the result has shape {got.shape}, right is {expected}")
    for rows in _chunks(expected):
        want = t.want.rows(rows)
        found = compare(got[rows], want, of_rms(bound, want))
        if not found.passed:
            return found._replace(error=math.nan, reason=f"exact fill: {found.reason}{_counted(rows)}")
    return Verdict("passed", math.nan)


def on_random(t: Trial, bound: Bound, got: Array, everywhere: Everywhere = lambda: None) -> Verdict:
    """The result of the random fill; `everywhere` gives (A B, |A||B|) at every element, rounded as the result is, if that is known."""
    expected, where = shapes(t.workload).out, t.picked
    if got.shape != expected:
        return Verdict("failed", math.nan, f"random fill: the result has shape {got.shape}, right is {expected}")
    if bad := sum(int(np.count_nonzero(~np.isfinite(got[rows]))) for rows in _chunks(expected)):
        return Verdict("failed", math.nan, f"random fill: {bad} of {got.size} elements are NaN, infinite or were never written")
    taken = where.of(got)
    found = compare(taken, where.want, allowed(bound, t.sums, where.want, where.scale))
    off, tiny = np.abs(taken.astype(np.float64) - where.want), np.finfo(np.float64).tiny
    error = float(np.max(off / np.maximum(where.scale, tiny)))
    over_rms = float(off.max() / max(math.sqrt(float(np.mean(where.want**2))), tiny))
    reason = found.reason
    if found.passed and (known_everywhere := everywhere()):
        want, scale = known_everywhere
        for rows in _chunks(expected):
            known, size = want[rows].astype(np.float64), scale[rows].astype(np.float64)
            found = compare(got[rows], known, allowed(bound, t.sums, known, size, stored=2))
            if not found.passed:
                reason = found.reason + _counted(rows)
                break
    return Verdict(found.status, error, reason and f"random fill: {reason}", over_rms)


def compare(got: Array, want: Array, off: Array | float = 0.0) -> Verdict:
    """Every |got - want| is at most `off` (NaN and infinity are not), and not too many results are zero."""
    if got.shape != want.shape:
        return Verdict("failed", math.nan, f"the result has shape {got.shape}, right is {want.shape}")
    if not got.size:
        return Verdict("mistrusted", math.nan, "the result has no element, so nothing was checked")
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.abs(got.astype(np.float64) - want.astype(np.float64))
        bad = ~((difference <= off) & (difference < np.inf))
    if count := int(np.count_nonzero(bad)):
        where = tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))
        unset = int(np.count_nonzero(got == UNWRITTEN if got.dtype.kind == "i" else np.isnan(got)))
        nans = f", {unset} are NaN or were never written" if unset else ""
        first = f"the first at {where} is {got[where]!s}, right is {want[where]!s}"
        return Verdict("failed", float(difference.max()), f"{count} of {got.size} elements are wrong{nans}; {first}")
    zeros = (got.size - np.count_nonzero(got)) / got.size
    if zeros > MOST_ZEROS:
        return Verdict("mistrusted", float(difference.max()), f"{zeros:.0%} of the results are zero, so a pass proves little")
    return Verdict("passed", float(difference.max()))


def _chunks(shape: tuple[int, ...]) -> Iterator[slice]:
    """Parts of the first axis that have about CHUNK_ELEMENTS."""
    step = max(1, CHUNK_ELEMENTS // max(1, math.prod(shape[1:])))
    return (slice(first, first + step) for first in range(0, shape[0], step))


def _counted(rows: slice) -> str:
    return f", counted from {rows.start} on the first axis" if rows.start else ""
