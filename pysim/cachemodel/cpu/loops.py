# SPDX-License-Identifier: Apache-2.0
"""A loop nest as values, and the reuse distance of everything in it: what other data is touched between two uses of the same.

A nest is loops, outermost first, and operands. An operand is touched `inside` a loop: with what the innermost loop does, or, in the body of
an outer one, ahead of the loops inside that. Loops over its dimensions move it; the others touch the same data again. Numbers are arrays
with a column for each schedule, so that one derivation serves a table of schedules, whatever each keeps and streams.

Footprint. Along a dimension n neighbouring tiles take

    extent(n) = min(n alone, base + n step, whole)

bytes: each its own, or, once they join, a step each and what they share (halos, rests of lines), at most all there is. Over several
dimensions extents multiply: rows of outputs are filters x bytes of a row. These are boxes of Presburger footprints (Verdoolaege et al.,
Algorithmica 48(1), 2007). Memory that is used again for other data (a packed panel) has the `whole` of that memory.

Everything else follows: how often data comes again, `reuses`, from `steps`, after how much, from `distances`. Both are solved once for the
shape of a nest; a schedule puts its numbers in.

Misses. A cache of A ways misses bytes that are used again after x ways: sets differ by up to one line from their mean,

    missing(x) = (x - (A - 1)) / 2    between 0 and 1

Worked number: tiles of 8 rows with halos of 2, of 56 rows of 224 bytes: one takes 10 rows, 2,240 bytes, two 18, all 56.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.cpu.distances import Array as Array
from pysim.cachemodel.cpu.distances import Derived, Fixed, Indices, Term, derived, multiplied, summed
from pysim.cachemodel.cpu.distances import Use as Use
from pysim.cachemodel.cpu.steps import AGAIN, Told, shape
from pysim.machine.cpu import Level
from pysim.record.state import State, runs_ago

np.empty(1 << 21)  # once this is gone, glibc keeps what tables of schedules leave, in place of giving it back page by page

Number = Array | float


class Extent(NamedTuple):
    """Bytes (or rows) of n neighbouring tiles: min(n alone, base + n step, whole); `alone` is base + step unless given. `again`: what a
    tile touches of the one before it, base unless given, but for tiles that are touched `at_once`."""

    step: Number
    whole: Number
    base: Number = 0.0
    alone: Number | None = None
    again: Number | None = None
    at_once: bool = False

    @property
    def shared(self) -> Number:
        return self.base if self.again is None else self.again


class Loop(NamedTuple):
    """`trips` iterations over a `dimension` of `tiles` tiles each; several loops over one dimension divide it further and further."""

    name: str
    dimension: str
    tiles: Number
    trips: Number


class Operand(NamedTuple):
    """What is touched inside a loop, its extents along dimensions; `first`: in the first iteration of this loop alone; `after` the loops in
    its body; `written`: its lines go back out. Operands of one name are one buffer; what has none only takes room. `memory`: each iteration
    of this loop fills the same memory anew, tile by tile as it is touched. `part`: how much of it an iteration touches, where only all of
    them together touch all."""

    name: str
    extents: Mapping[str, Extent]
    inside: str
    first: str | None = None
    after: bool = False
    written: bool = False
    memory: str | None = None
    part: Number | None = None


class Reuse(NamedTuple):
    """`size` bytes of operand `row` are used again `times` times, in the next iteration of `loop` or another phase of it (-1: in the next
    run), after each of several distances a share of them. `kind`: AGAIN; right after its first iteration,
    in which it is FILLED; OVER: written where other data lay or read from there, `first` where nothing did; by neighbouring tiles, of two
    iterations of `loop` (ACROSS) or of one (WITHIN)."""

    row: int
    loop: int
    times: Array
    size: Array
    distance: Array
    shares: Sequence[Number]
    kind: str = AGAIN
    first: bool = False


def _shares(extent: Extent) -> bool:
    """Whether neighbouring tiles have something in common."""
    return not isinstance(extent.shared, int | float) or extent.shared != 0


@lru_cache(maxsize=64)
def _ways(levels: tuple[Level, ...]) -> Array:
    """Ways, and bytes of one, of each level."""
    return np.array([(level.ways, level.way_bytes) for level in levels], dtype=np.float64).T


def missing(levels: Sequence[Level], distance: Array) -> Array:
    """Share of lines that miss each level (levels x any) when they are touched again after `distance` bytes."""
    ways, way = _ways(tuple(levels)).reshape(2, -1, *(1 for _ in distance.shape))
    share = distance / way
    share -= ways - 1
    share /= 2
    np.maximum(share, 0.0, out=share)
    return np.minimum(share, 1.0, out=share)


def stacked(columns: int, *rows: Any) -> Array:
    """Columns and constants as the rows of one array."""
    found = np.empty((len(rows), columns))
    for at, row in enumerate(rows):
        found[at] = row
    return found


class Streams(NamedTuple):
    """All reuses of a nest, one a use: bytes (x columns) of operand `rows` that are touched again, in the next iteration of `loops`;
    `before`: so many runs ago they were touched last, 0: in this one; `written`: they lie where other data did."""

    rows: Indices
    loops: Indices
    before: Array
    written: NDArray[np.bool_]
    bytes: Array


_ONE = Extent(1.0, 1.0)


def _told(one: Operand) -> Told:
    shared = tuple((name, extent.at_once) for name, extent in one.extents.items() if _shares(extent))
    return Told(one.name, (*one.extents,), shared, one.inside, one.first, one.after, one.memory, one.part is not None)


class LoopNest:
    """Loops and operands of `columns` schedules; `total` has the tiles of each dimension. Loops are numbered, outermost 0."""

    def __init__(self, loops: Sequence[Loop], operands: Sequence[Operand], total: Mapping[str, Number], columns: int) -> None:
        self.loops, self.operands, self.total, self.columns = tuple(loops), tuple(operands), dict(total), columns
        self._shape = of = shape(
            tuple((loop.name, loop.dimension, isinstance(loop.tiles, int | float) and loop.tiles == 1) for loop in loops),
            tuple(_told(one) for one in operands),
        )
        self.accesses, self._trips = of.accesses, stacked(columns, *(loop.trips for loop in loops))
        counts = ((self.total.get(name, 1.0), *(loops[at].tiles for at in over)) for name, over in of.places.over.items())
        self._tiles = stacked(columns, *itertools.chain(*counts))
        tiles = self._tiles.take(of.places.around, axis=0)  # of each operand and dimension: all tiles, then in one iteration of each loop
        extents = [_ONE, *(operands[row].extents[name] for row, name in of.pairs)]
        step, whole = (stacked(columns, *(one[at] for one in extents))[:, None] for at in range(2))
        found = step * tiles
        if joined := [at for at, one in enumerate(extents) if one.alone is not None or _shares(one)]:
            some = [extents[at] for at in joined]
            base = stacked(columns, *(one.base for one in some))[:, None]
            alone = stacked(columns, *(one.base + one.step if one.alone is None else one.alone for one in some))[:, None]
            found[joined] = np.minimum(found[joined] + base, alone * tiles[joined])
        self._extents = np.minimum(found, whole, out=found)
        self._footprints: Array = multiplied(found, of.products)  # of all tiles, then in one iteration of each loop

    def _extent(self, row: int, name: str, loop: int = -1) -> Array:
        """Of an operand along a dimension, in one iteration of a loop."""
        return self._extents[self._shape.pairs.index((row, name)) + 1, loop + 1]

    def tiles(self, name: str) -> Array:
        """Tiles of a dimension: all, then in one iteration of each loop."""
        return self._tiles[self._shape.places.of[name]]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the operands."""
        return tuple(one.name for one in self.operands)

    def footprint(self, loop: int, row: int) -> Array:
        """Bytes of operand `row` in one iteration of a loop (-1: in all)."""
        return self._footprints[row, loop + 1]

    def between(self, uses: tuple[Use | Fixed, ...]) -> Array:
        """Bytes of each operand between each use and the next, 0 of no use: operands x uses x columns."""
        return self._between(derived(uses, self.accesses, self._shape.rows))

    def _between(self, of: Derived) -> Array:
        found = summed(self._values, of.sums)
        for at, row, where in of.joined:
            base = self.operands[row].extents[name := self.loops[where].dimension].base
            if not isinstance(base, float):
                shared = base / np.maximum(1e-9, self._extent(row, name, where))
                found[at] -= shared * np.maximum(0.0, found[at] - self.footprint(where, row))
        np.minimum(found, self._values.take(of.most, axis=0), out=found)
        return found.take(of.which, axis=0)

    @cached_property
    def distances(self) -> Array:
        """Bytes of each operand between all uses that `reuses` names, of one buffer once: operands x uses x columns."""
        return self._once(self._between(self._shape.distances))

    @cached_property
    def apart(self) -> Array:
        """Those of all operands together."""
        return self.distances.sum(axis=0)

    @cached_property
    def all(self) -> Array:
        """Bytes of each operand that a run touches at least once, of one buffer once."""
        return self._once(self._footprints[:, 0].copy())

    def _once(self, found: Array) -> Array:
        """Rows of operands that are one buffer, as the first of them."""
        for row, at in enumerate(self._shape.same):
            if at != row:
                np.maximum(found[at], found[row], out=found[at])
                found[row] = 0.0
        return found

    def misses(self, levels: Sequence[Level], state: State = "hot") -> Array:
        """Bytes of each operand that a run misses in each cache (levels x operands x columns), no more further out than further in; caches
        are in a `state` at the start."""
        found = np.zeros((len(levels), len(self.operands), self.columns))
        whole = self.all.sum(axis=0).max() * max(runs_ago(state, name) for name in self.names)
        spilled = [level for level in levels if level.forgets or whole > (level.ways - 1) * level.way_bytes]
        if not spilled:  # all levels keep all
            return found
        of = self.streams(state)
        missed = missing(spilled, self.apart * np.maximum(of.before, 1.0)[:, None])
        for share, level in zip(missed, spilled, strict=True):
            if level.forgets:
                share[of.before > 0] = 1.0
        missed *= of.bytes
        for row in range(len(self.operands)):
            missed[:, slice(*of.rows.searchsorted((row, row + 1)))].sum(axis=1, out=found[: len(spilled), row])
        found[:, [not name for name in self.names]] = 0.0  # what only takes room
        for inner, outer in itertools.pairwise(found):
            np.minimum(outer, inner, out=outer)
        return found

    def streams(self, state: State = "hot") -> Streams:
        """Every reuse, those of an operand together."""
        of, ago = self._shape.bytes, np.array([runs_ago(state, name) for name in self.names])
        written = np.array([one.written for one in self.operands])
        return Streams(
            of.operands,
            of.loops,
            ago[of.operands] * (of.loops < 0),
            written[of.operands] | of.over,
            summed(self._values, of.sums).take(of.sums.order, axis=0),
        )

    def reuses(self) -> Iterator[Reuse]:
        """Every use of every operand, those of an operand together, by the loop whose next iteration it is in (-1: the next run)."""
        rows = self._shape.rows

        def sum_of(terms: Sequence[Term]) -> Array:
            return np.sum([self._values[[rows.of(factor) for factor in term]].prod(axis=0) for term in terms], axis=0)

        for row, loop, kind, uses, times, size, shares, first in self._shape.steps:
            parts = [self._values[rows.of(one)] if isinstance(one, tuple) else one for one in shares]
            yield Reuse(row, loop, sum_of(times), sum_of(size), self.apart[[*uses]], parts, kind, first)

    @cached_property
    def _values(self) -> Array:
        """The table that `Rows` describes."""
        rows, trips, one = self._shape.rows, self._trips, np.ones((1, self.columns))
        ends = [trips[of[-1]] for of in rows.ends]
        for at, of in enumerate(rows.ends):  # the outermost of these loops that has several iterations
            for loop in of[-2::-1]:
                ends[at] = np.where(trips[loop] > 1, trips[loop], ends[at])
        shares = np.minimum(1.0, 2 / stacked(self.columns, *ends))
        counts, footprints = self._counts(), self._footprints.reshape(-1, self.columns)
        others = stacked(self.columns, *(getattr(self, f"_{kind}")(counts[0], *of) for kind, *of in rows.others))
        return np.concatenate([one, *counts, 1 / trips, trips > 1, footprints, shares, 1 - shares, others])

    def _counts(self) -> tuple[Array, ...]:
        """Iterations of each loop in all those around it over its dimension, where the last of a set may be cut short; how many these are
        more than of the one around it; those that are full, and how many cut short and more than these; and of the further iterations the
        first ones and the rest."""
        outer, one = self._shape.places.outer, np.ones((1, self.columns))
        total, own = self._tiles[self._shape.places.own]
        most = total / own
        least, most = np.maximum(1.0, most), np.ceil(most)
        now, full = np.minimum(self._trips, most), np.minimum(self._trips, least)
        for at in (at for at, around in enumerate(outer) if around >= 0):
            now[at] = np.minimum(now[outer[at]] * self._trips[at], most[at])
            full[at] = np.minimum(full[outer[at]] * self._trips[at], least[at])
        before, filled = (np.concatenate([some, one])[outer] for some in (now, full))
        again = np.minimum(filled * self._trips, most)
        more = now - before
        fill = np.minimum(before, more)
        return now, more, full, again, again - filled, fill, more - fill

    def _part(self, now: Array, row: int) -> Number:
        part = self.operands[row].part
        assert part is not None  # asked of operands that have one alone
        return part

    def _each(self, now: Array, row: int, name: str) -> Array:
        """Bytes that two neighbours along a dimension share."""
        return self.operands[row].extents[name].shared / np.maximum(1e-9, self._extent(row, name)) * self._footprints[row, 0]

    def _tile(self, now: Array, row: int, name: str, loop: int) -> Array:
        """Bytes of an operand in one iteration of a loop, of one tile along a dimension."""
        of = self.operands[row].extents[name]
        one = np.minimum(of.base + of.step if of.alone is None else of.alone, of.whole)
        return one / np.maximum(1e-9, self._extent(row, name, loop)) * self.footprint(loop, row)

    def _near(self, now: Array, name: str, *last: int) -> Array:
        """Neighbours within iterations of a dimension's last loop."""
        return np.maximum(0.0, self.tiles(name)[0] - (now[last[0]] if last else 1.0))

    def touched(self, row: int) -> Array:
        """Bytes of an operand that all iterations touch, whole tiles."""
        of = self.accesses[row]
        trips = math.prod(loop.trips for at, loop in enumerate(self.loops[: of.inside + 1]) if at != of.first)
        return self.footprint(of.inside, row) * trips
