# SPDX-License-Identifier: Apache-2.0
"""What each cache misses of the streams of `reuse`: how many lines of a distance fall on one cache set.

A line is still there when it is touched again unless more lines of its set than the cache has ways, itself among them, were touched
since. Bytes in between are known by operand, in ways of the cache (line size x sets); how they lie decides how many lines a set gets:

- A run of bytes of x ways (panels, filters) puts floor(x) lines on every set and one more on a share f = x - floor(x) of them. Where
  runs begin is taken as independent. A line of such a run finds more of its own: those sets hold f (floor(x) + 1) / x of its lines.
- Inputs and outputs lie in planes, a chunk of c bytes in each of K planes P apart. Over the sets their number has the mean
  x = K c / way and the variance

      V = x - x^2 + 2 / way * sum over d < K of (K - d) max(0, c - |d P|)        |d P|: distance to the next multiple of way

  as two chunks d planes apart share max(0, c - |d P|) bytes of sets: near 0 where planes spread evenly, large where P and way have a
  large common divisor. Lines of both operands together are uniform about the mean, as wide as V asks. A line of the chunks themselves
  finds x + V / x of them. Where V is more than x^2 chunks crowd: sets have x + V / x of them, with chance x^2 / (x^2 + V), or none. Rows
  of k of a transposed A that are packed lie so, too. Where one pass over a plane ends and the next begins, two halves of different planes
  lie in between.

So the share of misses is the chance that these add up to more than the ways. A run whose data fit a level at all misses nothing there:
buffers lie one after the other.

Worked number: 8 ways, panels of 6.5 ways, filters of 1.75. Panels find 7 lines of their own with chance 0.5 * 7 / 6.5 = 0.54, filters
add 2 with chance 0.75: 9 lines, a miss, with chance 0.40. On average there are 8.25 of 8: a model of one average would lose them all.
"""

from itertools import product
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.cpu.incore import Array, Table
from pysim.cachemodel.cpu.reuse import OPERANDS, Flows
from pysim.machine.cpu import Level
from pysim.record.state import NEVER

_SURE = 2.5  # lines about the mean beyond which sets do not differ, but for planes whose distance shares a divisor with the way
_MOST_PLANES = 1 << 14  # more are counted as so many: few bytes of each lie in a cache, evenly, or all in the same sets
ROWS = OPERANDS.index("input"), OPERANDS.index("output")  # which lie in planes


def crossing(table: Table, flows: Flows, surely: bool = False) -> Array:
    """Bytes of each operand in each schedule (columns) that come from each supplier, one way, whole run. Rows are what is only read
    and what is written of the first of OPERANDS, and so on.

    The first supplier, L2, stands for what misses L1, and so on to memory; nothing crosses further out than it did further in. A level is
    touched by as much of an operand's `once` bytes as crosses from it. What is `surely` missed is less, and soon known.
    """
    rates = table.rates
    levels, unique = rates.machine.levels, np.maximum(flows.once, 1.0)
    seen, last, never = np.ones_like(unique), flows.bytes, flows.before >= NEVER
    first: Any = 0.0
    crossed = np.zeros((len(levels), 2 * len(OPERANDS), last.shape[1]))
    for level, moved in zip(levels, crossed, strict=True):
        way = level.way_bytes
        over = np.maximum(0.0, (seen * unique).sum(axis=0) / way - level.ways)
        if level.forgets or never.any():
            first = (flows.before > 0 if level.forgets else never)[flows.kind].T
        most = over * ((level.ways + 1) / (level.ways + over)) + first  # what fits as a whole misses nothing once it was touched
        asked = (most > 0) & (last > 0)
        if not asked.any():
            break
        here = missing(level, table, seen / way, flows, asked, surely)
        np.minimum(here, most, out=here)
        if level.forgets:
            np.maximum(here, first, out=here)
        here *= flows.bytes
        last = np.minimum(here, last, out=here)
        for shares, span in zip(flows.shares, flows.columns, strict=True):
            moved[:, span] = shares @ last[:, span]
        seen = np.minimum(1.0, (moved[::2] + moved[1::2]) / unique)
    return crossed


def missing(level: Level, table: Table, scale: Array, flows: Flows, asked: NDArray[np.bool_], surely: bool = False) -> Array:
    """Share of lines that miss a level, streams x schedules; only what is `asked` for is exact, or what is `surely` missed.

    `scale` (OPERANDS x schedules) makes ways of the bytes of a distance.
    """
    reach = np.einsum("osn,on->sn", flows.between, scale)
    reach -= level.ways
    share: Array = (reach >= _SURE).astype(np.float64)
    if surely:
        return share
    nest = table.rates.nest
    way, pitches = level.way_bytes, [nest.input_pitch, nest.windows * nest.result_bytes]
    most = [nest.windows if nest.windows_transposed else nest.group_channels, nest.group_filters]
    rows: tuple[int, ...] = ROWS
    if nest.filter_rows:
        pitch, number = nest.filter_rows
        rows, most, pitches = (*ROWS, OPERANDS.index("filters")), [*most, number], [*pitches, pitch]
    crowd = any(gcd(pitch, way) > level.line_bytes and gcd(pitch, way) * most > way for pitch, most in zip(pitches, most, strict=True))
    asked &= reach > (-level.ways if crowd else -_SURE)
    asked &= reach < _SURE
    if not (places := np.flatnonzero(asked)).size:
        return share
    stream, column = np.divmod(places, asked.shape[1])
    kind = flows.kind[column]
    own, (inputs, outputs, turns) = flows.operand[kind, stream], flows.planes[:, flows.loops[kind, stream], column]
    between = flows.between[:, stream, column]
    lines, deep = between * scale[:, column] + 1e-9, inputs if nest.filters_in_rows_of_k else outputs
    if nest.windows_transposed:
        inputs = np.maximum(1.0, between[0] / (table.channels[column] * nest.element_bytes))
    chunks = np.stack([lines[0], lines[3] / turns, lines[2]][: len(rows)])
    planes = np.stack([inputs, outputs, deep][: len(rows)])
    if len({*pitches}) == 1:
        spread = variance(chunks, planes, pitches[0], way)
    else:
        spread = np.stack([variance(*case, way) for case in zip(chunks, planes, pitches, strict=True)])
    spread[1] *= turns
    np.put(share, places, overfull(level.ways, lines, spread, own, rows))
    return share


def overfull(room: int, ways: Array, spread: Array, own: NDArray[np.int64], in_rows: tuple[int, ...] = ROWS) -> Array:
    """Chance that a line of operand `own` finds more than `room` lines in its set, itself among them.

    Columns of `ways` (by operand, above 0) and of `spread` (variances of those that lie `in_rows`, inputs and outputs at least).
    """
    in_runs = [at for at in range(len(ways)) if at not in in_rows]
    runs, rows = ways[in_runs], ways[list(in_rows)]
    whole = np.floor(runs)
    parts = (runs - whole) * np.where(own == np.array(in_runs)[:, None], (whole + 1) / runs, 1.0)
    mine = own == np.array(in_rows)[:, None]
    met = rows + spread / rows  # lines of a set that chunks meet
    crowd = spread > np.maximum(1.0, rows * rows) * (1 + 1e-9)  # a schedule alone is rounded otherwise than in a table
    mean = np.where(mine, met, np.where(crowd, 0.0, rows)).sum(axis=0) + whole.sum(axis=0)
    wide = np.where(crowd, 0.0, spread - mine * np.minimum(spread, rows * np.maximum(0.0, 1 - rows))).sum(axis=0)
    found = _above(room, mean, wide, parts)
    crowd &= ~mine
    if (some := np.flatnonzero(crowd.any(axis=0))).size:
        found[some] = _crowded(room, mean[some], wide[some], parts[:, some], crowd[:, some] * (rows[:, some] / met[:, some]), met[:, some])
    return found


def _crowded(room: int, mean: Array, wide: Array, parts: Array, chance: Array, met: Array) -> Array:
    """The same where a set meets each of some rows with a `chance`, and then so many lines of it."""
    which = np.array([*product((False, True), repeat=len(met))])[:, :, None]
    cases = np.where(which, chance, 1 - chance).prod(axis=1)
    case, place = cases.nonzero()
    lines = mean[place] + np.where(which, met, 0.0).sum(axis=1)[case, place]
    found = np.zeros(mean.size)
    np.add.at(found, place, cases[case, place] * _above(room, lines, wide[place], parts[:, place]))
    return found


def _above(room: int, mean: Array, wide: Array, parts: Array) -> Array:
    """Chance of more than `room` lines: uniform about a mean, and one more of either run on a share of the sets."""
    part = mean - np.floor(mean)
    narrow = 1 / np.sqrt(1 + 12 * np.maximum(0.0, wide - part * (1 - part)))
    at = (mean - (room + 0.5)) * narrow + 0.5
    none, first, second = np.minimum(np.maximum(at + np.multiply.outer((0.0, 1.0, 2.0), narrow), 0.0), 1.0)
    more = first - none
    one, both = (parts[0] + parts[1], parts[0] * parts[1]) if len(parts) == 2 else (parts[0], 0.0)
    return none + one * more + both * (second - first - more)


def variance(ways: Array, planes: Array, pitch: int, way: int) -> Array:
    """V of the equation above: chunks that fill `ways` in all, one in each of `planes`."""
    planes = np.minimum(planes, _MOST_PLANES)
    chunk = ways * (way / planes)
    if chunk.max() > way / 2:
        chunk = np.mod(chunk, way)
        chunk = np.minimum(chunk, way - chunk)  # the sets left out vary as those that are met
    counts = (planes + 1e-6).astype(np.int64)  # a schedule alone is rounded otherwise than in a table
    used = np.bincount(counts.ravel()) > 0
    apart, shift = _shifts(pitch, way, used.size - 1, float(chunk.max()))
    closer = shift.searchsorted(chunk)
    terms = int(closer.max())
    # sums over the shifts that are closer than a chunk, for each count of planes: of K - d, and of that times the shift
    (some,) = used.nonzero()
    sums = np.zeros((2, some.size, terms + 1))
    np.maximum(0, some[:, None] - apart[:terms], out=sums[0, :, 1:])
    np.multiply(sums[0, :, 1:], shift[:terms], out=sums[1, :, 1:])
    sums.cumsum(axis=2, out=sums)
    row = (used.cumsum() - 1)[counts]
    mean = planes * chunk / way
    found: Array = mean - mean * mean + 2 / way * (chunk * sums[0, row, closer] - sums[1, row, closer])
    return np.maximum(0.0, found, out=found)


def _shifts(pitch: int, way: int, planes: int, most: float) -> tuple[Array, Array]:
    """How far apart in sets planes d apart are (bytes), those closer than `most`, nearest first: (d, distances)."""
    shift = np.arange(1, planes) * pitch % way
    np.minimum(shift, way - shift, out=shift)
    (close,) = np.nonzero(shift < most)
    close = close[np.argsort(shift[close], kind="stable")]
    return (close + 1).astype(np.float64), shift[close].astype(np.float64)
