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
  finds x + V / x of them. Where one pass over a plane ends and the next begins, two halves of different planes lie in between.

So the share of misses is the chance that these add up to more than the ways. A run whose data fit a level at all misses nothing there:
buffers lie one after the other.

Worked number: 8 ways, panels of 6.5 ways, filters of 1.75. Panels find 7 lines of their own with chance 0.5 * 7 / 6.5 = 0.54, filters
add 2 with chance 0.75: 9 lines, a miss, with chance 0.40. On average there are 8.25 of 8: a model of one average would lose them all.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.incore import Array, Rates
from pysim.cachemodel.reuse import OPERANDS, Stream
from pysim.machine import Level

_SURE = 4.0  # lines about the mean beyond which sets do not differ, but for planes whose distance shares a divisor with the way


class Distances(NamedTuple):
    """Distances (rows) of schedules (columns): ways by operand, and variances (lines squared) of inputs and outputs."""

    ways: Array  # OPERANDS x distances x schedules
    planes: Array  # (of the input, of the output, turns) x distances x schedules


def crossing(rates: Rates, streams: Sequence[Stream], once: Array) -> dict[str, Array]:
    """Bytes of each stream (rows) in each schedule (columns) that come from each supplier, one way, whole run.

    Supplier L2 stands for what misses L1, and so on to "memory"; nothing crosses further out than it did further in. A level is
    touched by as much of an operand's `once` bytes as crosses from it.
    """
    nest, columns = rates.nest, once.shape[1]
    shared = list({id(stream.between): stream.between for stream in streams}.values())  # several streams have the same distance
    at = {id(distance): row for row, distance in enumerate(shared)}
    place = [at[id(stream.between)] for stream in streams]
    own = [OPERANDS.index(stream.operand) for stream in streams]
    writes = [stream.write for stream in streams]
    between = np.stack(shared, axis=1)
    written = sorted({row for row, write in zip(place, writes, strict=True) if write})
    size = np.empty((len(streams), columns))
    for row, stream in enumerate(streams):
        size[row] = stream.bytes
    size *= nest.repeats
    unique = np.maximum(once * np.array([nest.repeats, 1, nest.groups, nest.repeats])[:, None], 1.0)
    seen, inner = np.ones_like(once), 0
    levels = rates.machine.levels
    crossed: dict[str, Array] = {}
    suppliers = [*(level.name for level in levels[1:]), "memory"]
    for level, supplier in zip(levels, suppliers, strict=True):
        way = level.sets * level.line_bytes
        ways, planes = between[: len(OPERANDS)] * (seen / way)[:, None], between[len(OPERANDS) :]
        rows = place
        if inner:  # the cache inside writes lines back later, and only then their distance begins
            later = ways[:, written]
            gone = 1 - np.minimum(1.0, inner / way / np.maximum(later.sum(axis=0), 1.0))
            later[0] *= gone
            later[2] *= gone
            ways, planes = np.concatenate([ways, later], axis=1), np.concatenate([planes, planes[:, written]], axis=1)
            rows = [len(shared) + written.index(row) if write else row for row, write in zip(place, writes, strict=True)]
        pairs = list(dict.fromkeys(zip(rows, own, strict=True)))
        found = missing(level, (nest.plane_bytes, nest.windows * nest.element_bytes), ways, planes, pairs)
        total = (seen * unique).sum(axis=0) / way - level.ways
        np.minimum(found, np.clip(total * (level.ways + 1) / (level.ways + total), 0.0, 1.0), out=found)
        here = found[[pairs.index(pair) for pair in zip(rows, own, strict=True)]]
        here *= size
        crossed[supplier] = here = np.minimum(here, next(reversed(crossed.values()), here), out=here)
        seen, inner = np.zeros_like(once), level.size_bytes
        for operand, bytes_here in zip(own, here, strict=True):
            seen[operand] += bytes_here
        seen /= unique
        np.minimum(1.0, seen, out=seen)
    return crossed


def missing(level: Level, pitches: tuple[int, int], ways: Array, planes: Array, pairs: Sequence[tuple[int, int]]) -> Array:
    """Share of lines that miss a level, `pairs` x schedules: (row of the distance, operand that is touched again).

    `ways` is OPERANDS x distances x schedules, `planes` the planes that inputs and outputs lie in, `pitches` bytes from one to the next.
    """
    way = level.sets * level.line_bytes
    reach = ways.sum(axis=0)
    crowd = any(gcd(pitch, way) * planes[row].max() > way and gcd(pitch, way) > level.line_bytes for row, pitch in enumerate(pitches))
    near = (reach > (0.0 if crowd else level.ways - _SURE)) & (reach < level.ways + _SURE)
    distances, operands = (list(column) for column in zip(*pairs, strict=True))
    share = (reach[distances] > level.ways).astype(np.float64)
    if not near.any():
        return share
    variances = np.zeros((2, *reach.shape))
    counts, turns = planes[:2, near], planes[2, near]
    variances[0, near] = _variance(ways[0, near], counts[0], pitches[0], way, 1.0)
    variances[1, near] = _variance(ways[3, near], counts[1], pitches[1], way, turns)
    mask = near[distances]
    pair, column = np.nonzero(mask)
    row, own = np.array(distances)[pair], np.array(operands)[pair]
    share[mask] = _overfull(level.ways, ways[:, row, column], variances[:, row, column], own)
    return share


def _overfull(room: int, ways: Array, variances: Array, own: NDArray[np.int64]) -> Array:
    """Chance that a line of operand `own` finds more than `room` lines in its set, columns of `ways` and `variances`."""
    lines, runs = np.zeros_like(ways[0]), []
    for operand in (1, 2):
        whole = np.floor(ways[operand])
        more = ways[operand] - whole
        mine = own == operand
        more[mine] = np.where(ways[operand, mine] > 0, more[mine] * (whole[mine] + 1) / np.maximum(ways[operand, mine], 1e-30), 1.0)
        lines += whole
        runs.append(more)
    mean, variance = ways[0] + ways[3], variances[0] + variances[1]
    for row, operand in enumerate((0, 3)):
        mine = own == operand
        x, v = np.maximum(ways[operand, mine], 1e-9), variances[row, mine]
        mean[mine] += np.where(x > 1e-9, v / x, 1.0)
        variance[mine] -= np.minimum(v, x * np.maximum(0.0, 1 - x))
    part = mean - np.floor(mean)
    narrow = 1 / np.sqrt(1 + 12 * np.maximum(0.0, variance - part * (1 - part)))
    mean += lines - room - 0.5
    share = np.zeros_like(mean)
    packed, filters = runs
    for chance, more in (
        ((1 - packed) * (1 - filters), 0), (packed * (1 - filters) + (1 - packed) * filters, 1), (packed * filters, 2),
    ):  # fmt: skip
        share += chance * np.clip((mean + more) * narrow + 0.5, 0.0, 1.0)
    return share


def _variance(ways: Array, planes: Array, pitch: int, way: int, turns: Array | float) -> Array:
    """V of the equation above: chunks that fill `ways` in all, one in each of `planes`, in `turns` groups independent of each other."""
    chunk = np.mod(ways * way / (planes * turns), way)
    chunk = np.minimum(chunk, way - chunk)  # the sets left out vary as those that are met
    apart, shift = _shifts(pitch, way, int(planes.max()))
    terms = int(np.searchsorted(shift, chunk.max()))
    mean = planes * chunk / way
    total = np.zeros_like(chunk)
    for d, e in zip(apart[:terms], shift[:terms], strict=True):
        total += np.maximum(0.0, planes - d) * np.maximum(0.0, chunk - e)
    return turns * np.maximum(0.0, mean - mean * mean + 2 / way * total)


@lru_cache(maxsize=1024)
def _shifts(pitch: int, way: int, planes: int) -> tuple[list[float], Array]:
    """How far apart in sets planes d apart are (bytes), nearest first: (d, distances)."""
    d = np.arange(1, planes)
    shift = d * pitch % way
    shift = np.minimum(shift, way - shift)
    order = np.argsort(shift, kind="stable")
    return d[order].astype(np.float64).tolist(), shift[order].astype(np.float64)
