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

Reuse distance. Loop l does not move operand X, which is used somewhere in its body and again in its next iteration. In between lie the rest
of the one body and the beginning of the next, around(l) together. From the innermost loop outwards, with T iterations of the next loop m,
operand Y takes

    around(l) = around(m)                                      m does not move X: its last iteration, then its first
              = around(m) + footprint(l) - footprint(m)        m moves both: iterations after X's one, and before it in the next body
              = around(m) / T + 2 (1 - 1 / T) footprint(m)     m moves X alone: all of Y on either side, unless X is the last or the first

and one footprint in the body where X or Y is touched: the rest of that body and its beginning. For X that is the first or the last of m,
the last line is around(m) / 2 + footprint(m), for X between 2 footprint(m). Y that is only touched in the first iteration of m (`first`:
panels packed on demand) lies in between where that one does: once, for X that m moves. The distance is at most what l touches in all its
iterations; lines that neighbouring tiles share count once. Reuse distances: Mattson et al., IBM Systems Journal 9(2), 1970; of loop nests:
Beyls and D'Hollander, HPCC 2005.

The equations are solved once for the shape of a nest (`_derived`): sums of footprints times products of 1 / T.

Phases. What lies ahead of the loops in a body, those loops, and what follows them (`after`) are phases of it. A buffer that one phase
writes and another one reads is an operand of both, under one name. A share p of it (PARTS) is used in a phase before the tile in question,
1 - p after. From its use in phase i to that in phase j

    distance = (1 - p) phase(i) + all phases in between + p phase(j)      of itself: all of it

in the same iteration of the loop that both lie in, or, where j comes first, in the next. phase(of the loops) is one pass over the buffer:
one iteration of the loops that do not move it.

Neighbours. What tile n shares with tile n + 1 (`base`) comes again after a tile's share of their phase, or, where an iteration of a loop
ends between them, after all that one touches.

Misses. A cache of A ways misses bytes that are used again after x ways: sets differ by up to one line from their mean,

    missing(x) = (x - (A - 1)) / 2    between 0 and 1

Worked number: I in an outer loop, K2 = 4 tiles F past each in the inner one. F comes again an iteration of the outer loop later, after 4 F
and 1 / 4 + 2 (1 - 1 / 4) = 2 - 1 / 4 of I: whole before and after where F is neither last nor first.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim.machine.cpu import Level
from pysim.record.state import State, runs_ago

np.empty(1 << 21)  # once this is gone, glibc keeps what tables of schedules leave, in place of giving it back page by page

Array = NDArray[np.float64]
Number = Array | float
PARTS = (0.25, 0.75)  # of what grows from the first tile of a set to the last
ACROSS, WITHIN = "across", "within"


class Extent(NamedTuple):
    """Bytes (or rows) of n neighbouring tiles: min(n alone, base + n step, whole); `alone` is base + step unless given."""

    step: Number
    whole: Number
    base: Number = 0.0
    alone: Number | None = None


class Loop(NamedTuple):
    """`trips` iterations over a `dimension` of `tiles` tiles each; several loops over one dimension divide it further and further."""

    name: str
    dimension: str
    tiles: Number
    trips: Number


class Operand(NamedTuple):
    """What is touched inside a loop, its extents along dimensions; `first`: in the first iteration of this loop alone; `after` the loops in
    its body; `written`: its lines go back out. Operands of one name are one buffer; what has none only takes room."""

    name: str
    extents: Mapping[str, Extent]
    inside: str
    first: str | None = None
    after: bool = False
    written: bool = False


class Access(NamedTuple):
    """Of data: the loops that move it, the one inside which it is touched, the one in whose first iteration alone it is, and whether it is
    after the loops in that body."""

    moved: frozenset[int]
    inside: int
    first: int | None = None
    after: bool = False

    def level(self, loop: int) -> int:
        """The loop whose iterations have the same data as those of `loop`."""
        return max((at for at in self.moved if at <= loop), default=-1)

    def phase(self, loop: int) -> int:
        """Of the body of a loop: 0 ahead of its loops, 1 in them, 2 after; -1: not in it."""
        return -1 if self.inside < loop else 1 if self.inside > loop else 2 * self.after


class Use(NamedTuple):
    """A use of data in an iteration of `loop` (-1: a run of the nest) and the next, in its next one. `at_end`: of tiles that are the first
    or the last of the loop that moves them, or neither; by default, anywhere."""

    of: Access
    loop: int
    at_end: bool | None = None


class Reuse(NamedTuple):
    """`size` bytes of operand `row` are used again `times` times, in the next iteration of `loop` or another phase of it (-1: in the next
    run), after `distance` bytes, or after each of several in equal parts. `first`: in the first of these times, after nothing. `shared`:
    by neighbouring tiles, of two iterations of `loop` (ACROSS) or of one (WITHIN)."""

    row: int
    loop: int
    times: Number
    size: Array
    distance: Array
    first: bool = False
    shared: str = ""


Factors = tuple[int, ...]  # m: 1 / trips of loop m; ~m: 1 where loop m has several
Sum = dict[tuple[int, Factors], float]  # footprints in one iteration of a loop, and what they are multiplied with
Weight = tuple[tuple[Factors, float], ...]  # that, of one footprint


def _sum(*parts: tuple[Sum, float, Factors]) -> Sum:
    found: Sum = {}
    for one, weight, factors in parts:
        for (level, others), of in one.items():
            key = level, tuple(sorted(others + factors))
            found[key] = found.get(key, 0.0) + weight * of
    return {key: weight for key, weight in found.items() if weight}


def _around(use: Use, loop: int, of: Access) -> Sum:
    """around(loop) of the equations above."""
    within = loop + 1
    body: Sum = {(of.level(loop), ()): 1.0}
    if of.inside < loop:
        return {}
    if loop in (of.inside, use.of.inside) or within == use.of.first:
        return body
    found = _around(use, within, of)
    some: Sum = {(of.level(within), ()): 1.0}
    if within not in use.of.moved:
        return found
    if within == of.first:
        return _sum((found, 1.0, (within,)), (some, 1.0, ()), (some, -1.0, (within,)))
    if within in of.moved:
        return _sum((found, 1.0, ()), (body, 1.0, ()), (some, -1.0, ()))
    if use.at_end is None:
        return _sum((found, 1.0, (within,)), (some, 2.0, ()), (some, -2.0, (within,)))
    return _sum((found, 1.0, ()), (found, -0.5, (~within,)), (some, 1.0, (~within,))) if use.at_end else _sum((some, 2.0, ()))


Indices = NDArray[np.int64]


class _Derived(NamedTuple):
    """The distances of the equations above, for any numbers of tiles: sums of terms, a footprint times a weight each.

    Round i of the terms is the i-th one of the first rounds[i] distances, which stand in falling order of their number. A `footprint` is
    that of an operand and a loop, a weight so much of each of `factors`. The distances are at most the footprints `most`; those of `joined`
    (distance, operand, loop) are of neighbouring tiles, which share lines. Of each operand (rows) each use has one, `which`, or -1: none.
    """

    footprints: tuple[Indices, Indices]
    factors: tuple[Factors, ...]
    weights: Array
    rounds: tuple[int, ...]
    weight: Indices
    footprint: Indices
    most: Indices
    joined: tuple[tuple[int, int, int], ...]
    which: Indices


@lru_cache(maxsize=64)
def _derived(uses: tuple[Use | None, ...], operands: tuple[Access, ...]) -> _Derived:
    known: dict[tuple[Any, ...], list[tuple[int, int]]] = {}  # by terms, operand, the most, and the loop of joined tiles
    for (number, use), (row, of) in itertools.product(enumerate(uses), enumerate(operands)):
        if use is None or use.loop == of.first:
            continue
        within = of.first is not None and use.loop > of.first
        terms: dict[int, Weight] = {}
        for (level, others), weight in _sum((_around(use, use.loop, of), 1.0, (of.first,) if within and of.first else ())).items():
            terms[level] = (*terms.get(level, ()), (others, weight))
        if terms:
            joined = use.loop in of.moved and [*terms] == [use.loop] and terms[use.loop] != (((), 1.0),)
            distance = tuple(terms.items()), row, of.level(use.loop - 1), use.loop if joined else None
            known.setdefault(distance, []).append((row, number))
    found, which = sorted(known, key=lambda one: -len(one[0])), np.full((len(operands), len(uses)), -1)
    for at, one in enumerate(found):
        which[tuple(zip(*known[one], strict=True))] = at
    rounds = [[(row, *terms[at]) for terms, row, *_ in found if at < len(terms)] for at in range(len(found[0][0]))]
    terms_of = [*itertools.chain(*rounds)]
    footprints = [*dict.fromkeys([(row, level + 1) for row, level, _ in terms_of] + [(row, most + 1) for _, row, most, _ in found])]
    weights = [*dict.fromkeys(weight for _, _, weight in terms_of)]
    rows, levels = np.array(footprints).T
    factors = [*dict.fromkeys(others for weight in weights for others, _ in weight)]
    return _Derived(
        (rows, levels),
        tuple(factors),
        np.array([[dict(weight).get(others, 0.0) for others in factors] for weight in weights]),
        tuple(map(len, rounds)),
        np.array([weights.index(weight) for _, _, weight in terms_of]),
        np.array([footprints.index((row, level + 1)) for row, level, _ in terms_of]),
        np.array([footprints.index((row, most + 1)) for _, row, most, _ in found]),
        tuple((at, row, loop) for at, (_, row, _, loop) in enumerate(found) if loop is not None),
        which,
    )


def _shares(extent: Extent) -> bool:
    """Whether neighbouring tiles have something in common."""
    return not isinstance(extent.base, int | float) or extent.base != 0


class _Shape(NamedTuple):
    """A nest whatever its sizes.

    `along`: of each dimension the operands, the loops over it, and how many of those lie around or at each loop. `before` is the operand
    that is the same buffer in the phase before, or the one before; `both` the innermost loop in whose body both are, -1 where there is one
    alone. `uses` are those again in the next iteration of a loop.

    Sums are of footprints together, those of one name once: `places` (operand, loop + 1) of which the largest counts, a weight each, and
    where each sum begins. The first is of all operands. `apart`: the first of a buffer's, for each of PARTS, since the phase before;
    `bodies`: that of what lies between neighbours, by operand and loop, or none: in one iteration.
    """

    accesses: tuple[Access, ...]
    along: dict[str, tuple[list[int], list[int], list[int]]]
    before: tuple[int, ...]
    both: tuple[int, ...]
    uses: tuple[Use, ...]
    places: Indices
    weights: Array
    starts: Indices
    apart: dict[int, int]
    bodies: dict[tuple[int, int | None], int]


# loops: names and dimensions; operands: names, dimensions and those along which neighbours share, and the fields behind the extents
@lru_cache(maxsize=256)
def _shape(loops: tuple[tuple[str, str], ...], operands: tuple[tuple[Any, ...], ...]) -> _Shape:
    inside, over = zip(*loops, strict=True)
    rows, names = range(len(operands)), [name for name, *_ in operands]
    along = {
        name: (
            [row for row in rows if name in operands[row][1]],
            [at for at, of in enumerate(over) if of == name],
            [*itertools.accumulate((of == name for of in over), initial=0)],
        )
        for name in dict.fromkeys(name for _, extents, *_ in operands for name in extents)
    }
    accesses = tuple(
        Access(frozenset(at for name in of for at in along[name][1]), inside.index(within), inside.index(first) if first else None, after)
        for _, of, _, within, first, after in operands
    )
    same = [[at for at in rows if names[at] == name] for name in names]
    before = tuple(of[of.index(row) - 1] for row, of in enumerate(same))
    both = tuple(min(accesses[row].inside, accesses[at].inside) if at != row else -1 for row, at in enumerate(before))
    uses = [
        Use(of, loop)
        for row, of in enumerate(accesses)
        for loop in range(both[row] + (before[row] != row), of.inside + 1)
        if loop not in of.moved
    ]
    sums: list[list[tuple[float, list[tuple[int, int]]]]] = []

    def added(*parts: tuple[float, int, Iterable[int]]) -> int:
        """A sum of parts, each so much of what some operands take in an iteration of a loop."""
        sums.append([])
        for weight, loop, of in parts:
            named = itertools.groupby(sorted(of, key=names.__getitem__), key=names.__getitem__)
            sums[-1] += [(weight, [(row, loop + 1) for row in some]) for _, some in named]
        return len(sums) - 1

    added((1.0, -1, rows))
    apart = dict[int, int]()
    for row, (at, loop) in enumerate(zip(before, both, strict=True)):
        if at != row:
            phases = [of.phase(loop) for of in accesses]
            start, end = phases[at], phases[row]
            within = (moved for moved in accesses[at if start == 1 else row].moved if moved > loop)
            once = min(within, default=loop + 1) - 1  # the last loop that passes over the whole buffer
            passed = {*range(start + 1, end)} if start < end else {0, 1, 2} - {*range(end, start + 1)}
            always = [other for other in rows if other in same[row] or phases[other] in passed]
            known = {names[other] for other in always}
            ends = [(once if of == 1 else loop, [at for at in rows if phases[at] == of and names[at] not in known]) for of in (start, end)]
            apart[row] = min([added((1.0, loop, always), (1 - part, *ends[0]), (part, *ends[1])) for part in PARTS])
    bodies = dict[tuple[int, int | None], int]()
    for row, (of, (_, _, shared, *_)) in enumerate(zip(accesses, operands, strict=True)):
        for at in (at for name in shared for at in along[name][1] if at <= of.inside):
            bodies[row, at] = added((1.0, at, (other for other in rows if accesses[other].phase(at) >= 0)))
        if shared:
            alike = (other for other in rows if accesses[other].phase(of.inside) == of.phase(of.inside))
            bodies[row, None] = added((1.0, of.inside, alike))
    terms = [*itertools.chain(*sums)]
    most = max(len(some) for _, some in terms)
    places = np.array([[*itertools.islice(itertools.cycle(some), most)] for _, some in terms]).T
    starts = np.array([*itertools.accumulate(map(len, sums[:-1]), initial=0)])
    return _Shape(accesses, along, before, both, tuple(uses), places, np.array([[weight] for weight, _ in terms]), starts, apart, bodies)


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


class LoopNest:
    """Loops and operands of `columns` schedules; `total` has the tiles of each dimension. Loops are numbered, outermost 0."""

    def __init__(self, loops: Sequence[Loop], operands: Sequence[Operand], total: Mapping[str, Number], columns: int) -> None:
        self.loops, self.operands, self.total, self.columns = tuple(loops), tuple(operands), dict(total), columns
        self._shape = _shape(
            tuple((loop.name, loop.dimension) for loop in loops),
            tuple(
                (name, (*of,), tuple(name for name in of if _shares(of[name])), inside, first, after)
                for name, of, inside, first, after, _ in operands
            ),
        )
        self.accesses = self._shape.accesses
        self._extents: dict[str, Array] = {}  # of each operand along a dimension: of all tiles, then by loop over it
        self._footprints: Array = np.ones((len(operands), len(loops) + 1, columns))  # of all tiles, then in one iteration of each loop
        for name, (rows, over, around) in self._shape.along.items():
            of = [operands[row].extents[name] for row in rows]
            counts = stacked(columns, total[name], *(loops[at].tiles for at in over))
            step, whole = (stacked(columns, *(one[at] for one in of))[:, None] for at in range(2))
            found = step * counts
            if any(one.alone is not None or _shares(one) for one in of):
                base = stacked(columns, *(one.base for one in of))[:, None]
                alone = stacked(columns, *(one.base + one.step if one.alone is None else one.alone for one in of))[:, None]
                found += base
                np.minimum(found, alone * counts, out=found)
            self._extents[name] = np.minimum(found, whole, out=found)
            self._footprints[rows] *= found[:, around]

    def _extent(self, row: int, name: str) -> Array:
        return self._extents[name][self._shape.along[name][0].index(row)]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the operands."""
        return tuple(one.name for one in self.operands)

    def footprint(self, loop: int, row: int) -> Array:
        """Bytes of operand `row` in one iteration of a loop (-1: in all)."""
        return self._footprints[row, loop + 1]

    def between(self, uses: tuple[Use | None, ...]) -> Array:
        """Bytes of each operand between each use and the next, 0 of no use: operands x uses x columns."""
        of, factor = _derived(uses, self.accesses), dict[int, Any]()
        for at, loop in enumerate(self.loops):
            factor[at], factor[~at] = 1 / loop.trips, np.greater(loop.trips, 1)
        factors = stacked(self.columns, *(reduce(np.multiply, (factor[at] for at in which), 1.0) for which in of.factors))
        sizes = self._footprints[of.footprints]
        terms = (of.weights @ factors)[of.weight]
        terms *= sizes[of.footprint]
        distances = np.zeros((of.rounds[0] + 1, self.columns))  # and none
        for end, count in zip(itertools.accumulate(of.rounds), of.rounds, strict=True):
            distances[:count] += terms[end - count : end]
        for at, row, where in of.joined:
            base = self.operands[row].extents[name := self.loops[where].dimension].base
            if not isinstance(base, float):
                one = self._extent(row, name)[self._shape.along[name][2][where + 1]]
                distances[at] -= base / np.maximum(1e-9, one) * np.maximum(0.0, distances[at] - self.footprint(where, row))
        np.minimum(distances[:-1], sizes[of.most], out=distances[:-1])
        return distances[of.which]

    def misses(self, levels: Sequence[Level], state: State = "hot") -> Array:
        """Bytes of each operand that a run misses in each cache (levels x operands x columns), no more further out than further in; caches
        are in a `state` at the start."""
        found = np.zeros((len(levels), len(self.operands), self.columns))
        ago = [runs_ago(state, name) for name in self.names]
        sums = self._sums()
        whole = sums[0].max() * max(ago)
        spilled = [level for level in levels if level.forgets or whole > (level.ways - 1) * level.way_bytes]
        if not spilled:  # all levels keep all
            return found
        rows, distances, sizes, before = list[int](), list[Array](), list[Array](), list[bool]()  # of what an earlier run touched last
        for one in self._reuses(sums):
            known = [(one.distance * ago[one.row], one.size, True)] if one.first else []
            if one.loop >= 0:
                known.append((one.distance, one.size * (one.times - one.first), False))
            for distance, size, first in known:
                for part in distance:
                    rows.append(one.row)
                    distances.append(part)
                    sizes.append(size / len(distance))
                    before.append(first)
        missed = missing(spilled, np.stack(distances))
        for share, level in zip(missed, spilled, strict=True):
            if level.forgets:
                share[before] = 1.0
        missed *= np.stack(sizes)
        found[: len(spilled)] = np.add.reduceat(missed, np.flatnonzero(np.diff(rows, prepend=-1)), axis=1)
        found[:, [not name for name in self.names]] = 0.0  # what only takes room
        for inner, outer in itertools.pairwise(found):
            np.minimum(outer, inner, out=outer)
        return found

    def reuses(self) -> Iterator[Reuse]:
        """Every use of every operand, those of an operand together, by the loop whose next iteration it is in (-1: the next run)."""
        return self._reuses(self._sums())

    def _sums(self) -> Array:
        """Those of footprints, as the shape has them."""
        of = self._shape
        largest = self._footprints[*of.places].max(axis=0)
        largest *= of.weights
        return np.add.reduceat(largest, of.starts, axis=0)

    def _reuses(self, sums: Array) -> Iterator[Reuse]:
        of = self._shape
        again = dict(zip(of.uses, self._together(self.between(of.uses))[:, None], strict=True))
        for row, (one, before, both) in enumerate(zip(of.accesses, of.before, of.both, strict=True)):
            passes, size = np.ones(self.columns), self.footprint(both, row)
            if before == row:
                yield Reuse(row, -1, passes, size, again[Use(one, -1)], True)
            else:
                passes = passes * math.prod(loop.trips for loop in self.loops[: both + 1])
                yield Reuse(row, both, passes, size, sums[of.apart[row] :][: len(PARTS)], before > row)
            for loop in range(both + 1, one.inside + 1):
                if loop not in one.moved:
                    yield Reuse(row, loop, passes * (self.loops[loop].trips - 1), size, again[Use(one, loop)])
                    passes = passes * self.loops[loop].trips
            for name in (name for name, extent in self.operands[row].extents.items() if _shares(extent)):
                yield from self._shared(row, name, passes, sums)

    def _shared(self, row: int, name: str, passes: Array, sums: Array) -> Iterator[Reuse]:
        """Of what neighbouring tiles along a dimension share."""
        inside, bodies = self.accesses[row].inside, self._shape.bodies
        base = self.operands[row].extents[name].base
        each, tiles = base / np.maximum(1e-9, self._extent(row, name)[0]) * self.footprint(-1, row), passes
        for at in (at for at in self._shape.along[name][1] if at <= inside):
            yield Reuse(row, at, (self.loops[at].trips - 1) * tiles, each, sums[bodies[row, at]][None], shared=ACROSS)
            tiles = tiles * self.loops[at].trips
        most = np.maximum(1.0, self.total[name] * passes / tiles)
        yield Reuse(row, inside, (most - 1) * tiles, each, sums[bodies[row, None]][None] / most, shared=WITHIN)

    def touched(self, row: int) -> Array:
        """Bytes of an operand that all iterations touch, whole tiles."""
        of = self.accesses[row]
        trips = math.prod(loop.trips for at, loop in enumerate(self.loops[: of.inside + 1]) if at != of.first)
        return self.footprint(of.inside, row) * trips

    def _together(self, sizes: Array) -> Array:
        """Bytes of operands by row, those of one name once."""
        found: dict[str, Array] = {}
        for name, size in zip(self.names, sizes, strict=True):
            found[name] = np.maximum(found[name], size) if name in found else size
        return reduce(np.add, found.values())
