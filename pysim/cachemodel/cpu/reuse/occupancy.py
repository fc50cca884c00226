# SPDX-License-Identifier: Apache-2.0
"""Conflict and capacity misses of a set-associative LRU cache: how many lines of a reuse distance fall on one cache set.

A reuse hits unless more lines than the cache has ways, its own among them, were touched in its set since the last use. The bytes in
between are known for each operand (`nest_loops`). Here they are measured in ways of the cache (line size x sets). Two layouts differ:

- Contiguous data (panels, filters) of x ways puts floor(x) lines on every set, and one more on a share f = x - floor(x) of the sets. Where
  such data starts is taken as independent of the rest. A line of it is more likely in a set with the extra line: probability
  f (floor(x) + 1) / x.
- Inputs and outputs lie in planes: a chunk of c bytes in each of K planes, at a pitch of P bytes. A set gets x = K c / way of their
lines in
  the mean, with the variance

      V = x - x^2 + 2 / way * sum over d < K of (K - d) max(0, c - |d P|)        |d P|: distance to the next multiple of way

  because two chunks d planes apart share max(0, c - |d P|) bytes of sets. V is near 0 if planes spread evenly, and large if P and the
  way size have a large common divisor. The lines of inputs and outputs in a set are taken as uniform about their mean, with variance V.
  A line of the chunks themselves meets x + V / x of them. If V exceeds x^2, the chunks cluster: a set has x + V / x lines of them with
  probability x^2 / (x^2 + V), or none. Rows of k of a transposed A that is packed lie like planes. Where one pass over a plane ends and
  the next begins, halves of two planes lie in between.

The share of misses is the probability that the sum exceeds the ways. A run whose whole working set fits a level misses nothing there,
because its buffers are adjacent.

All this is for memory that is contiguous in physical addresses. In a level with pages scattered over its sets, lines of different pages
meet at random, whatever their operands and pitches: `loops.scattered_miss_share`.

Worked number: 8 ways, panels of 6.5 ways, filters of 1.75. A line of the panels meets 7 lines of them with probability 0.5 * 7 / 6.5 =
0.54, and 2 of the filters with probability 0.75. Together 9 lines, a miss, with probability 0.40. The mean, 8.25 lines for 8 ways,
would miss always.
"""

from functools import lru_cache
from itertools import product
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.cpu.incore import Array
from pysim.cachemodel.cpu.nest_loops import OPERANDS, TableStreams
from pysim.cachemodel.cpu.reuse.loops import crowding, scattered_miss_share
from pysim.cachemodel.cpu.tables import Table
from pysim.cachemodel.equations import OfRows
from pysim.machine.cpu import Level
from pysim.record.state import NEVER

CERTAIN_LINES = 2.5  # this many lines above or below the ways, all sets hit or all miss, unless planes cluster in few sets
_MAX_PLANES = 1 << 14  # beyond, the planes share few bytes of a cache or all sets: more of them change nothing
IN_PLANES = OPERANDS.index("input"), OPERANDS.index("output")


def traffic(table: Table, streams: TableStreams, cycles: Array | float = 0.0) -> Array:
    """Bytes that each supplier delivers, one way, in the whole run: suppliers x rows x schedules. Each of OPERANDS has two rows: what
    is only read and what is written.

    The first supplier, L2, delivers what misses L1, and so on to memory. No level delivers more than the one inside it asks for. A level
    sees as much of an operand's working set as crosses to it. `cycles`: what the run takes at least.
    """
    rates = table.rates
    levels, distinct = rates.machine.levels, np.maximum(streams.working_set, 1.0)
    seen, missed, never = np.ones_like(distinct), streams.bytes, streams.runs_ago >= NEVER
    cold: Any = 0.0
    moved = np.zeros((len(levels), 2 * len(OPERANDS), missed.shape[1]))
    for level, of_level in zip(levels, moved, strict=True):
        way = level.way_bytes
        crowded = crowding(level, cycles, distinct.sum(axis=0))
        excess = np.maximum(0.0, (seen * distinct).sum(axis=0) / way * crowded - level.ways)
        if level.starts_cold or never.any():
            cold = (streams.runs_ago > 0 if level.starts_cold else never)[streams.order].T
        most = excess * ((level.ways + 1) / (level.ways + excess)) + cold  # a working set that fits has cold misses only
        if level.page_share < 1:
            most = np.ones_like(excess)  # scattered pages conflict before they fill a level
        needed = (most > 0) & (missed > 0)
        if not needed.any():
            break
        share = miss_share(level, table, seen / way * crowded, streams, needed)
        np.minimum(share, most, out=share)
        if level.starts_cold:
            np.maximum(share, cold, out=share)
        share *= streams.bytes
        missed = np.minimum(share, missed, out=share)
        for shares, span in zip(streams.shares, streams.columns, strict=True):
            np.einsum("rs,sn->rn", shares, missed[:, span], out=of_level[:, span])
        seen = np.minimum(1.0, (of_level[::2] + of_level[1::2]) / distinct)
    return moved


def miss_share(level: Level, table: Table, scale: Array, streams: TableStreams, needed: NDArray[np.bool_]) -> Array:
    """Share of lines that miss a level, streams x schedules. It is exact only where it is `needed`.

    `scale` (OPERANDS x schedules) converts bytes of a distance to ways.
    """
    excess = np.einsum("osn,on->sn", streams.between, scale)
    if level.page_share < 1:
        return scattered_miss_share(level, excess)
    excess -= level.ways
    share: Array = (excess >= CERTAIN_LINES).astype(np.float64)
    nest = table.rates.nest
    way, pitches = level.way_bytes, [nest.input_pitch, nest.windows * nest.stored_bytes]
    most = [nest.windows if nest.windows_transposed else nest.group_channels, nest.group_filters]
    in_planes: tuple[int, ...] = IN_PLANES
    if nest.filter_rows:
        pitch, number = nest.filter_rows
        in_planes, most, pitches = (*IN_PLANES, OPERANDS.index("filters")), [*most, number], [*pitches, pitch]
    clusters = any(gcd(pitch, way) > level.line_bytes and gcd(pitch, way) * most > way for pitch, most in zip(pitches, most, strict=True))
    needed &= excess > (-level.ways if clusters else -CERTAIN_LINES)
    needed &= excess < CERTAIN_LINES
    if not (places := np.flatnonzero(needed)).size:
        return share
    stream, column = np.divmod(places, needed.shape[1])
    order = streams.order[column]
    own, loop = streams.operand[order, stream], streams.loops[order, stream]
    (inputs, outputs), interleaved = streams.planes[:, loop, column], streams.interleaved[order, loop]
    between = streams.between[:, stream, column]
    lines, rows_of_k = between * scale[:, column] + 1e-9, inputs if nest.filters_in_rows_of_k else outputs
    if nest.windows_transposed:
        inputs = np.maximum(1.0, between[0] / (table.channels[column] * nest.element_bytes))
    chunks = np.array([lines[0], lines[3] / interleaved, lines[2]][: len(in_planes)])
    planes = np.array([inputs, outputs, rows_of_k][: len(in_planes)])
    if len({*pitches}) == 1:
        spread = variance(chunks, planes, pitches[0], way)
    else:
        spread = np.array([variance(*case, way) for case in zip(chunks, planes, pitches, strict=True)])
    spread[1] *= interleaved
    np.put(share, places, overflow_probability(level.ways, lines, spread, own, in_planes))
    return share


def overflow_probability(room: int, ways: Array, spread: Array, own: NDArray[np.int64], in_planes: tuple[int, ...] = IN_PLANES) -> Array:
    """Probability that the set of a line of operand `own` has more than `room` lines, itself among them.

    One column for each reuse: `ways` of each operand in between (above 0), `spread` the variances of the operands that lie `in_planes`, at
    least inputs and outputs.
    """
    (probability, mean, var), extra, met, clusters = _overflow(np.concatenate([ways, spread, own[None]]), room, in_planes)
    others = clusters > 0
    if (some := np.flatnonzero(others.any(axis=0))).size:
        chance = others[:, some] * (ways[list(in_planes)][:, some] / met[:, some])
        probability[some] = _above_clustered(room, mean[some], var[some], extra[:, some], chance, met[:, some])
    return probability


@OfRows
def _overflow(rows: Array, room: int, in_planes: tuple[int, ...]) -> tuple[Array, Array, Array, Array]:
    """Of the rows `ways`, `spread` and `own`: the probability without clusters, and the mean and variance of the lines in a set; the
    probabilities of one line more of each contiguous operand; the lines of chunks in a set that has any; where other chunks cluster."""
    operands, own = len(rows) - 1 - len(in_planes), rows[-1]
    ways, spread = rows[:operands], rows[operands:-1]
    contiguous = [at for at in range(operands) if at not in in_planes]
    runs, chunks = ways[contiguous], ways[list(in_planes)]
    whole = np.floor(runs)
    extra = (runs - whole) * np.where(own == np.array(contiguous)[:, None], (whole + 1) / runs, 1.0)
    mine = own == np.array(in_planes)[:, None]
    met = chunks + spread / chunks  # lines of the chunks in a set that has any
    clusters = spread > np.maximum(1.0, chunks * chunks) * (1 + 1e-9)  # tolerant: rounding depends on the size of the table
    mean = np.where(mine, met, np.where(clusters, 0.0, chunks)).sum(axis=0) + whole.sum(axis=0)
    var = np.where(clusters, 0.0, spread - mine * np.minimum(spread, chunks * np.maximum(0.0, 1 - chunks))).sum(axis=0)
    return np.stack([_above(room, mean, var, extra), mean, var]), extra, met, clusters & ~mine


def _above_clustered(room: int, mean: Array, var: Array, extra: Array, chance: Array, met: Array) -> Array:
    """The same if a set has `met` more lines of each clustered operand with probability `chance`, or none."""
    which = np.array([*product((False, True), repeat=len(met))])[:, :, None]
    cases = np.where(which, chance, 1 - chance).prod(axis=1)
    case, place = cases.nonzero()
    lines = mean[place] + np.where(which, met, 0.0).sum(axis=1)[case, place]
    probability = np.zeros(mean.size)
    np.add.at(probability, place, cases[case, place] * _above(room, lines, var[place], extra[:, place]))
    return probability


def _above(room: int, mean: Array, var: Array, extra: Array) -> Array:
    """Probability of more than `room` lines: uniform about a mean, and one more of each contiguous operand with probability `extra`."""
    part = mean - np.floor(mean)
    slope = 1 / np.sqrt(1 + 12 * np.maximum(0.0, var - part * (1 - part)))
    at = (mean - (room + 0.5)) * slope + 0.5
    none, first, second = np.minimum(np.maximum(at + np.array([[0.0], [1.0], [2.0]]) * slope, 0.0), 1.0)
    more = first - none
    one, both = (extra[0] + extra[1], extra[0] * extra[1]) if len(extra) == 2 else (extra[0], 0.0)
    return none + one * more + both * (second - first - more)


def variance(ways: Array, planes: Array, pitch: int, way: int) -> Array:
    """V of the equation above: chunks that fill `ways` in all, one in each of `planes`."""
    planes = np.minimum(planes, _MAX_PLANES)
    chunk = ways * (way / planes)
    if chunk.max() > way / 2:
        chunk = np.mod(chunk, way)
        chunk = np.minimum(chunk, way - chunk)  # the complement has the same variance
    counts = (planes + 1e-6).astype(np.int64)  # tolerant: rounding depends on the size of the table
    used = np.bincount(counts.ravel()) > 0
    apart, shift = _shifts(pitch, way, 1 << (used.size - 2).bit_length(), 1 << int(chunk.max()).bit_length())
    closer = shift.searchsorted(chunk)
    terms = int(closer.max())
    # for each count of planes, prefix sums over the shifts from the nearest: of K - d, and of (K - d) times the shift
    (some,) = used.nonzero()
    sums = np.zeros((2, some.size, terms + 1))
    np.maximum(0, some[:, None] - apart[:terms], out=sums[0, :, 1:])
    np.multiply(sums[0, :, 1:], shift[:terms], out=sums[1, :, 1:])
    sums.cumsum(axis=2, out=sums)
    row = (used.cumsum() - 1)[counts]
    mean = planes * chunk / way
    var: Array = mean - mean * mean + 2 / way * (chunk * sums[0, row, closer] - sums[1, row, closer])
    return np.maximum(0.0, var, out=var)


@lru_cache(maxsize=64)
def _shifts(pitch: int, way: int, planes: int, most: int) -> tuple[Array, Array]:
    """Pairs (d, bytes of sets between planes d apart), nearest first: those of less than `most` bytes."""
    shift = np.arange(1, planes) * pitch % way
    np.minimum(shift, way - shift, out=shift)
    near = np.flatnonzero(shift < most)
    order = near[np.argsort(shift[near], kind="stable")]
    return (order + 1).astype(np.float64), shift[order].astype(np.float64)
