# SPDX-License-Identifier: Apache-2.0
"""A loop nest as data: its loops, its operands, their footprints and working sets, and the misses that follow.

A nest is a list of loops, outermost first, and a list of operands. Each operand is touched `inside` one loop: in the innermost body, or
in the body of an outer loop before (or after) the loops in it. A loop over one of its dimensions moves it to other data. A loop over
another dimension reuses the same data. Sizes are arrays with one column for each schedule, so a table of schedules is evaluated at
once.

Footprint. Along one dimension, n neighbouring tiles touch

    extent(n) = min(n first_tile, overlap + n per_tile, limit)

bytes. `overlap` is what two neighbours share: halos, or the rest of a line. `limit` is all there is; for memory that is filled again and
again (a packed panel) it is the size of that memory. Extents along several dimensions multiply. These are boxes of the footprints of
Verdoolaege et al., Algorithmica 48(1), 2007.

The reuses (`counts`) and their distances (`distances`) are derived from this description, once for each structure of a nest.

Misses. A cache of A ways holds data that is reused after less than A - 1 ways, and none after A + 1: sets differ by a line from the mean.
With x the reuse distance in ways,

    miss_share(x) = (x - (A - 1)) / 2    between 0 and 1

That is so for contiguous memory. A page of p bytes covers p / way of the sets of a level, and pages lie anywhere in physical memory. If p
is less than a way, x ways of pages put on each set lines with mean x and variance x (1 - p / way), and a line misses if A others do:

    miss_share(x) = Phi((x - (A - 1/3)) / sqrt(x (1 - p / way)))    Phi: the normal distribution

Others fill a shared level, too (`Level.others_bytes_per_cycle`): R c bytes while a run of c cycles touches all of its w bytes, and in
proportion between two uses. So a distance counts 1 + R c / w times, and a core that reads slowly keeps less.

Worked number: tiles of 8 rows with a halo of 2, in 56 rows of 224 bytes. One tile touches 10 rows (2,240 bytes), two touch 18, all 56.
16 ways of 128 KiB, pages of 4 KiB, 1.6 MB in between: x = 12.2, Phi(-3.5 / 3.44) = 0.16 of the lines miss; contiguous ones none.
"""

import itertools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np

from pysim.cachemodel.cpu.reuse.counts import AGAIN, Factored, OperandStructure, structure
from pysim.cachemodel.cpu.reuse.distances import Array as Array
from pysim.cachemodel.cpu.reuse.distances import Distances, Factors, Fixed, distances_of, evaluate_products
from pysim.cachemodel.cpu.reuse.distances import Use as Use
from pysim.cachemodel.equations import OfRows, Program, Programs, Recorder, as_rows, empty
from pysim.caches import lazy
from pysim.machine.cpu import Level
from pysim.record.state import State, runs_ago

np.empty(1 << 21)  # freeing one large block raises glibc's mmap threshold: later tables reuse memory instead of unmapping it

Number = Array | float


def _is(constant: float, number: Number) -> bool:
    """Whether a number is this constant for all schedules."""
    return isinstance(number, (int, float)) and number == constant


class Extent(msgspec.Struct, frozen=True):
    """Bytes (or rows) of n neighbouring tiles: min(n first_tile, overlap + n per_tile, limit).

    `first_tile` is overlap + per_tile unless given; `shared` is what a tile touches of the one before it, overlap unless given. Tiles that
    are touched `together` share nothing over time.
    """

    per_tile: Number
    limit: Number
    overlap: Number = 0.0
    first_tile: Number | None = None
    shared: Number | None = None
    together: bool = False

    @property
    def reused(self) -> Number:
        """Bytes that a tile shares with its neighbour."""
        return self.overlap if self.shared is None else self.shared

    @property
    def overlaps(self) -> bool:
        """Whether neighbouring tiles share anything."""
        return not _is(0.0, self.overlap) or not (self.shared is None or _is(0.0, self.shared))

    @property
    def tile(self) -> Number:
        """Bytes of one tile."""
        return self.overlap + self.per_tile if self.first_tile is None else self.first_tile

    def of_tiles(self, number: Number) -> Array:
        """Bytes of so many neighbouring tiles."""
        return np.minimum(np.minimum(number * self.tile, self.overlap + number * self.per_tile), self.limit)


class Loop(msgspec.Struct, frozen=True):
    """A loop of `trips` iterations over a `dimension`, each of `tiles` tiles. Several loops over one dimension tile it repeatedly."""

    name: str
    dimension: str
    tiles: Number
    trips: Number


class Operand(msgspec.Struct, frozen=True):
    """Data that is touched in the body of loop `inside`, with its extents along dimensions.

    `only_first`: only in the first iteration of this loop; `after_loops`: after the loops in the body, not before; `written`: its lines
    are written back. `refilled_by`: each iteration of this loop fills the same memory with other data, tile by tile as it is touched.
    `part`: the share of its footprint that one iteration touches, if only all iterations together touch all. Operands with the same
    name are one buffer; one without a name only occupies cache.
    """

    name: str
    extents: Mapping[str, Extent]
    inside: str
    only_first: str | None = None
    after_loops: bool = False
    written: bool = False
    refilled_by: str | None = None
    part: Number | None = None


class Reuse(NamedTuple):
    """`size` bytes of operand `row` are reused `times` times, in the next iteration of `loop` or in another phase of it (-1: in the
    next run).

    Each of the `distances` holds for a share of these bytes. `kind` is one of those of `counts`. `first`: the use overwrites older data.
    """

    row: int
    loop: int
    times: Array
    size: Array
    distances: Array
    shares: Sequence[Number]
    kind: str = AGAIN
    first: bool = False


def miss_share(levels: Sequence[Level], distance: Array) -> Array:
    """Share of lines that miss each level (levels x any shape) if they are reused after `distance` bytes."""
    return _miss_share(distance.reshape(1, -1), tuple(levels))[0].reshape(len(levels), *distance.shape)


@OfRows
def _miss_share(rows: Array, levels: tuple[Level, ...]) -> tuple[Array]:
    return (np.stack([_share(level, rows[0] / level.way_bytes) for level in levels]),)


def _share(level: Level, ways: Array) -> Array:
    """Of lines that are reused after so many ways of a level."""
    if level.page_share < 1:
        return _scattered(ways, level)
    return np.minimum(np.maximum((ways - (level.ways - 1)) / 2, 0.0), 1.0)


def crowding(level: Level, cycles: Array | float, working_set: Array) -> Array | float:
    """What reuse distances in a level grow by, because others fill it while a run takes so many cycles."""
    others = level.others_bytes_per_cycle
    return 1 + others.value * cycles / np.maximum(1.0, working_set) if others else 1.0


def fits(level: Level, size: float) -> bool:
    """Whether (practically) no line of `size` bytes misses a level. With pages scattered over 8 ways and a quarter full: 1 in 25,000."""
    return size <= (level.size_bytes / 4 if level.page_share < 1 else (level.ways - 1) * level.way_bytes)


def scattered_miss_share(level: Level, ways: Array) -> Array:
    """Share of lines that miss a level if scattered pages that fill `ways` ways (any shape) were touched since their last use."""
    return _scattered_share(ways.reshape(1, -1), level)[0].reshape(ways.shape)


@OfRows
def _scattered_share(rows: Array, level: Level) -> tuple[Array]:
    return (_scattered(rows[0], level),)


def _scattered(ways: Array, level: Level) -> Array:
    deviation = np.sqrt(np.maximum(1e-9, ways) * (1 - level.page_share))
    # the median of a Poisson distribution is a third below its mean
    return normal_distribution((ways - (level.ways - 1 / 3)) / deviation)


def normal_distribution(z: Array) -> Array:
    """Phi(z) within 1e-7 (Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26). Plans import no SciPy."""
    x = np.maximum(z, 0.0 - z) / math.sqrt(2)
    t = 1 / (1 + 0.3275911 * x)
    tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))) * np.exp(0.0 - x * x) / 2
    return np.where(z < 0, tail, 1 - tail)


_ONE = Extent(1.0, 1.0)
_bounds = operator.attrgetter("per_tile", "limit")


def _structure_of(operand: Operand) -> OperandStructure:
    shared = tuple((name, extent.together) for name, extent in operand.extents.items() if extent.overlaps)
    fields = operand.inside, operand.only_first, operand.after_loops, operand.refilled_by, operand.part is not None, operand.written
    return OperandStructure(operand.name, (*operand.extents,), shared, *fields)


class LoopNest:
    """Loops and operands of `columns` schedules. `total` has the number of tiles of each dimension. Loop 0 is the outermost; loop -1 is the
    whole run."""

    def __init__(self, loops: Sequence[Loop], operands: Sequence[Operand], total: Mapping[str, Number], columns: int) -> None:
        self.loops, self.operands, self.total, self.columns = tuple(loops), tuple(operands), dict(total), columns
        self.structure = of = structure(
            tuple((loop.name, loop.dimension, _is(1.0, loop.tiles)) for loop in loops),
            tuple(map(_structure_of, operands)),
        )
        self.accesses = of.accesses
        self._several = dict[tuple[int, ...], Array]()
        overlapping = [operands[row].extents[name] for row, name, _ in of.extents.overlapping]
        self._moving = tuple(not isinstance(extent.overlap, float) and extent.shared is None for extent in overlapping)

    @lazy
    def trips(self) -> Array:
        """Iterations of each loop."""
        return as_rows(self.columns, *(loop.trips for loop in self.loops))

    @lazy
    def _tiles(self) -> Array:
        """Tiles of each dimension and loop, as `Places` orders them."""
        counts = ((self.total.get(name, 1.0), *(self.loops[at].tiles for at in over)) for name, over in self.structure.places.over.items())
        return as_rows(self.columns, *itertools.chain(*counts))

    @lazy
    def _extents(self) -> Array:
        """The equation above for all pairs of an operand and a dimension, as `Extents` orders them."""
        of = self.structure.extents
        extents = [_ONE, *(self.operands[row].extents[name] for row, name in of.rows)]
        tiles = self._tiles.take(of.tiles, axis=0)
        per_tile, limit = (as_rows(self.columns, *column).take(of.pair, axis=0) for column in zip(*map(_bounds, extents), strict=True))
        per_tile *= tiles
        for row, name, rows in of.overlapping:
            extent = self.operands[row].extents[name]
            np.minimum(per_tile[rows] + extent.overlap, extent.tile * tiles[rows], out=per_tile[rows])
        return np.minimum(per_tile, limit, out=per_tile)

    @lazy
    def footprints(self) -> Array:
        """Bytes of operands x the whole run and one iteration of each loop x schedules."""
        found = evaluate_products(self._extents, *self.structure.extents.footprints)
        return found.reshape(len(self.operands), len(self.loops) + 1, -1)

    def _extent(self, row: int, name: str, loop: int = -1) -> Array:
        """Extent of an operand along a dimension, in one iteration of a loop."""
        return self._extents[self.structure.extents.rows[row, name][loop + 1]]

    def renamed(self, names: Mapping[str, str], without: str = "") -> "LoopNest":
        """The same loops with other names of operands; those that get one have no dimension `without`."""

        def other(one: Operand) -> Operand:
            extents = {name: extent for name, extent in one.extents.items() if name != without}
            return msgspec.structs.replace(one, name=names[one.name], extents=extents) if one.name in names else one

        return LoopNest(self.loops, [other(one) for one in self.operands], self.total, self.columns)

    def tiles(self, name: str) -> Array:
        """Tiles of a dimension: in the whole run, then in one iteration of each loop."""
        return self._tiles[self.structure.places.of[name]]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the operands."""
        return tuple(operand.name for operand in self.operands)

    def footprint(self, loop: int, row: int) -> Array:
        """Bytes of operand `row` in one iteration of a loop (-1: in the whole run)."""
        return self.footprints[row, loop + 1]

    def between(self, uses: tuple[Use | Fixed, ...]) -> Array:
        """Bytes of each operand between each use and the next: operands x uses x columns."""
        factors = Factors()
        return self._between(distances_of(uses, self.accesses, factors), factors.numbers(self))

    def _between(self, of: Distances, numbers: Array) -> Array:
        distances = of.formulas.evaluated(numbers)
        moving = {(row, name) for (row, name, _), moves in zip(self.structure.extents.overlapping, self._moving, strict=True) if moves}
        for at, row, loop in of.overlapping:
            if (row, name := self.loops[loop].dimension) in moving:
                shared = self.operands[row].extents[name].overlap / np.maximum(1e-9, self._extent(row, name, loop))
                distances[at] -= shared * np.maximum(0.0, distances[at] - self.footprint(loop, row))
        np.minimum(distances, numbers.take(of.limits, axis=0), out=distances)
        return distances.take(of.which, axis=0)

    @lazy
    def _reuse(self) -> Sequence[Array]:
        """Results of `_equations`, by the library where there is one."""
        if isinstance(self.columns, Recorder):
            return self._equations()

        def trace() -> Program:
            return Program.of(lambda rows: (self._traced(rows)._equations(), None), len(self._inputs()))

        program = self.structure.programs.setdefault(self._moving, Programs()).of(trace)
        return program(as_rows(self.columns, *self._inputs())) if program else self._equations()

    def _equations(self) -> tuple[Array, ...]:
        """`distances`, their sums over all operands, `working_set` and `reused_bytes`."""
        distances = self._merged(self._between(self.structure.distances, self._numbers))
        formulas = self.structure.bytes.formulas
        reused = formulas.evaluated(self._numbers).take(formulas.order, axis=0)
        return distances, distances.sum(axis=0), self._merged(self.footprints[:, 0].copy()), reused

    def _inputs(self) -> list[Number]:
        """All numbers of the description, in the order in which `_traced` puts others in their place."""
        numbers = [*itertools.chain(*((loop.tiles, loop.trips) for loop in self.loops)), *self.total.values()]
        for operand in self.operands:
            for extent in operand.extents.values():
                numbers += (
                    (extent.per_tile, extent.limit, extent.overlap, extent.tile, extent.reused) if extent.overlaps else _bounds(extent)
                )
            numbers += () if operand.part is None else (operand.part,)
        return numbers

    def _traced(self, rows: Array) -> "LoopNest":
        """The same nest with rows that are traced in place of its numbers."""
        numbers: Iterator[Any] = iter(rows)

        def extent(of: Extent) -> Extent:
            known = (next(numbers) for _ in range(5 if of.overlaps else 2))
            return msgspec.structs.replace(Extent(*known), together=of.together)

        loops = [msgspec.structs.replace(loop, tiles=next(numbers), trips=next(numbers)) for loop in self.loops]
        total = dict(zip(self.total, numbers, strict=False))
        operands = list[Operand]()
        for operand in self.operands:
            extents = {name: extent(of) for name, of in operand.extents.items()}
            part = None if operand.part is None else next(numbers)
            operands.append(msgspec.structs.replace(operand, extents=extents, part=part))
        nest = LoopNest.__new__(LoopNest)
        nest.loops, nest.operands, nest.total, nest.columns = tuple(loops), tuple(operands), total, cast("Any", rows).recorder
        nest.structure, nest.accesses, nest._several, nest._moving = self.structure, self.accesses, {}, self._moving
        return nest

    @property
    def distances(self) -> Array:
        """Bytes of each operand between the uses of `reuses`: operands x uses x columns. A buffer counts once."""
        return self._reuse[0]

    @property
    def total_distances(self) -> Array:
        """Reuse distances over all operands: uses x columns."""
        return self._reuse[1]

    @property
    def working_set(self) -> Array:
        """Distinct bytes of each operand that a run touches. A buffer counts once."""
        return self._reuse[2]

    @property
    def reused_bytes(self) -> Array:
        """The bytes of each use, grouped by operand."""
        return self._reuse[3]

    def _merged(self, sizes: Array) -> Array:
        """Rows of operands that are one buffer, as the largest of them in the first row."""
        for row, at in enumerate(self.structure.same):
            if at != row:
                sizes[at] = np.maximum(sizes[at], sizes[row])
                sizes[row] = 0.0
        return sizes

    def misses(self, levels: Sequence[Level], state: State = "hot", cycles: Array | float = 0.0) -> Array:
        """Bytes of each operand that a run misses in each cache (levels x operands x columns). An outer level misses at most what the level
        inside it misses. `state` is that of the caches before the run, `cycles` what the run takes at least."""
        missed = np.zeros((len(levels), len(self.operands), self.columns))
        touched = self.working_set.sum(axis=0)
        most, crowded = max(runs_ago(state, name) for name in self.names), {level: crowding(level, cycles, touched) for level in levels}
        spilled = [level for level in levels if level.starts_cold or not fits(level, (touched * crowded[level]).max() * most)]
        if not spilled:
            return missed
        uses, ago = self.structure.bytes, self.structure.runs_ago(state)
        distances = self.total_distances * np.maximum(ago, 1.0)[:, None]
        share = miss_share(spilled, distances)
        for of_level, level in zip(share, spilled, strict=True):
            if level.others_bytes_per_cycle:
                (of_level[...],) = miss_share([level], distances * crowded[level])
            if level.starts_cold:
                of_level[ago > 0] = 1.0
        share *= self.reused_bytes
        missed[: len(spilled)] = np.add.reduceat(share, uses.operands.searchsorted(np.arange(len(self.operands))), axis=1)
        missed[:, [not name for name in self.names]] = 0.0  # operands that only occupy cache
        for inner, outer in itertools.pairwise(missed):
            np.minimum(outer, inner, out=outer)
        return missed

    def reuses(self) -> Iterator[Reuse]:
        """Every reuse, grouped by operand, with the loop whose next iteration it is in (-1: the next run)."""

        def sum_of(products: Sequence[Factored]) -> Array:
            rows = ([self.structure.factors[factor] for factor in product] for product in products)
            return np.sum([self._numbers[of].prod(axis=0) for of in rows], axis=0)

        for row, loop, kind, uses, times, size, shares, first in self.structure.reuses:
            parts = [share if isinstance(share, float) else self._numbers[self.structure.factors[share]] for share in shares]
            yield Reuse(row, loop, sum_of(times), sum_of(size), self.total_distances[[*uses]], parts, kind, first)

    @lazy
    def _numbers(self) -> Array:
        """The table of numbers of the structure's factors."""
        return self.structure.factors.numbers(self)

    @lazy
    def counts(self) -> Array:
        """How often each loop iterates in one pass over its dimension: `reuse.Count` x loops x schedules."""
        outer, counts = self.structure.places.outer, empty((2, len(self.loops) + 1), self.columns)
        counts[:, -1] = 1.0  # of no loop
        total, own = self._tiles[self.structure.places.own]
        most = total / own
        most_full, most = np.maximum(1.0, most), np.ceil(most)
        iterations, full = counts[:, :-1]
        np.minimum(self.trips, most, out=iterations)
        np.minimum(self.trips, most_full, out=full)
        for at in (at for at, around in enumerate(outer) if around >= 0):
            iterations[at] = np.minimum(iterations[outer[at]] * self.trips[at], most[at])
            full[at] = np.minimum(full[outer[at]] * self.trips[at], most_full[at])
        firsts, full_firsts = counts[:, outer]
        full_iterations = np.minimum(full_firsts * self.trips, most)
        repeats = iterations - firsts
        second = np.minimum(firsts, repeats)
        return np.stack([iterations, repeats, full, full_iterations, full_iterations - full_firsts, second, repeats - second])

    def ends(self, loops: tuple[int, ...]) -> Array:
        """The share of the tiles that are the first or the last of `loops`: of the outermost that has more than one trip."""
        return np.minimum(1.0, 2 / self._outermost(loops))

    def _outermost(self, loops: tuple[int, ...]) -> Array:
        """Trips of the outermost of `loops` that has more than one."""
        if (known := self._several.get(loops)) is None:
            trips = self.trips[loops[0]]
            known = self._several[loops] = np.where(trips > 1, trips, self._outermost(loops[1:])) if loops[1:] else trips
        return known

    def part(self, row: int) -> Number:
        """The share of an operand's footprint that one iteration touches."""
        share = self.operands[row].part
        return 1.0 if share is None else share

    def overlap(self, row: int, name: str) -> Array:
        """Bytes that two neighbours along a dimension share."""
        return self.operands[row].extents[name].reused / np.maximum(1e-9, self._extent(row, name)) * self.footprints[row, 0]

    def tile(self, row: int, name: str, loop: int) -> Array:
        """Bytes of an operand in one iteration of a loop, of one tile along a dimension."""
        extent = self.operands[row].extents[name]
        return np.minimum(extent.tile, extent.limit) / np.maximum(1e-9, self._extent(row, name, loop)) * self.footprint(loop, row)

    def accessed(self, row: int) -> Array:
        """Bytes of an operand that all iterations together access, whole tiles."""
        of = self.accesses[row]
        trips = math.prod(loop.trips for at, loop in enumerate(self.loops[: of.inside + 1]) if at != of.only_first)
        return self.footprint(of.inside, row) * trips
