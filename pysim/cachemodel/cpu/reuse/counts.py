# SPDX-License-Identifier: Apache-2.0
"""How often the data of a loop nest is reused, and at which reuse distance (`distances`), for any trip counts.

A loop that does not index an operand reuses all of it (AGAIN): in each iteration but the first, and in each pass over the loop. Tiles that
are the first or the last of an inner loop have another distance than those between. A loop that indexes an operand has neighbouring tiles.
They share halos or lines ACROSS its iterations, or WITHIN one iteration that covers several tiles.

A buffer is written in one phase of a loop's body and read in another: before the inner loops, in them, or after them (BUFFER). Let a
share p of it be touched before the tile in question, 1 - p after; p is taken as each of FRACTIONS. From phase i to phase j

    distance = (1 - p) phase(i) + the phases in between + p phase(j)      phase of the inner loops: one pass over the buffer

in the same iteration, or from one iteration to the next if j precedes i. The buffer itself counts in full, like all that stays in use
meanwhile. Memory that is filled tile by tile (`refilled_by`) is written, read at once, and read by the next pass after more of it was
filled (AFTER_FILL).

Worked number: 98 tiles in 4 sets of up to 25; loop m has 5 iterations a set and does not index them. Each tile is reused 4 times in its
set, 392 reuses in all. Neighbours: 3 pairs of sets, 94 pairs of tiles within sets.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.cpu.reuse.distances import (
    NO_LOOP,
    Access,
    Array,
    Distances,
    Entry,
    Factor,
    Factors,
    Fixed,
    Formulas,
    Indices,
    Sizes,
    Sum,
    Use,
    distances_of,
    footprint,
    products_of,
)
from pysim.cachemodel.equations import Programs
from pysim.record.state import State, runs_ago

FRACTIONS = (0.25, 0.75)
AGAIN, AFTER_FILL, BUFFER, ACROSS, WITHIN = "again", "after fill", "buffer", "across", "within"


class Count(IntEnum):
    """How often a loop iterates in one pass over its dimension, whose last set of tiles may be partial.

    ITERATIONS of this loop; REPEATS: those that are not the first in an iteration of the enclosing loop over that dimension; FULL:
    iterations, with a partial one as a fraction; FULL_ITERATIONS, FULL_REPEATS: within full iterations of the enclosing loop; SECOND:
    repeats that follow a first iteration; LATER: the other repeats.
    """

    ITERATIONS, REPEATS, FULL, FULL_ITERATIONS, FULL_REPEATS, SECOND, LATER = range(7)


def count_of(count: Count, loop: int) -> Entry:
    """One of the counts of a loop."""
    return Entry(_counts, (count, loop))


def _counts(nest: Sizes) -> Array:
    return nest.counts


@dataclass(frozen=True, slots=True)
class Ends:
    """The share of the tiles that are the first or the last of `loops`: of the outermost that has more than one trip."""

    loops: tuple[int, ...]

    def of(self, nest: Sizes) -> Array:
        return nest.ends(self.loops)


@dataclass(frozen=True, slots=True)
class NotEnds(Ends):
    """The share of the other tiles."""

    def of(self, nest: Sizes) -> Array:
        return 1 - nest.ends(self.loops)


@dataclass(frozen=True, slots=True)
class Part:
    """The share of an operand's footprint that one iteration touches."""

    operand: int

    def of(self, nest: Sizes) -> Array | float:
        return nest.part(self.operand)


@dataclass(frozen=True, slots=True)
class Overlap:
    """Bytes that two neighbours along a dimension share."""

    operand: int
    dimension: str

    def of(self, nest: Sizes) -> Array:
        return nest.overlap(self.operand, self.dimension)


@dataclass(frozen=True, slots=True)
class Tile:
    """Bytes of an operand in one iteration of a loop, of one tile along a dimension."""

    operand: int
    dimension: str
    loop: int

    def of(self, nest: Sizes) -> Array:
        return nest.tile(self.operand, self.dimension, self.loop)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of neighbouring tiles within iterations of a dimension's `last` loop, if it has one."""

    dimension: str
    last: int | None

    def of(self, nest: Sizes) -> Array:
        iterations = 1.0 if self.last is None else nest.counts[Count.ITERATIONS, self.last]
        return np.maximum(0.0, nest.tiles(self.dimension)[0] - iterations)


AnyFactor = Factor | Entry
Factored = tuple[AnyFactor, ...]  # a product of factors


class ReuseFormula(NamedTuple):
    """A reuse of operand `row`: `times` x `size`, sums of products, are the bytes that are reused in the next iteration of `loop`. Each of
    `uses` has a distance, and the share of the bytes that lie that far apart. `first`: nothing was written there before in the
    iteration."""

    row: int
    loop: int
    kind: str
    uses: tuple[int, ...]
    times: tuple[Factored, ...]
    size: tuple[Factored, ...]
    shares: tuple[AnyFactor | float, ...]
    first: bool


class ReusedBytes(NamedTuple):
    """The bytes of every use as formulas, with the operand and the loop of each; `written`: the data lies where lines are
    written."""

    formulas: Formulas
    operands: Indices
    loops: Indices
    written: NDArray[np.bool_]


class Places(NamedTuple):
    """Rows of the table of tile counts, which has the total of each dimension and then the tiles in one iteration of each loop `over` it.

    `of`: per dimension, the row that holds in an iteration of each loop of the nest, the whole run first. `own`: per loop, the row of its
    dimension's total and its own row. `outer`: per loop, the enclosing loop over the same dimension, or -1.
    """

    over: dict[str, list[int]]
    of: dict[str, Indices]
    own: Indices
    outer: list[int]


def _places(along: Sequence[str], pairs: Sequence[tuple[int, str]]) -> Places:
    over = {name: [at for at, of in enumerate(along) if of == name] for name in dict.fromkeys(["", *along, *(name for _, name in pairs)])}
    starts = dict(zip(over, itertools.accumulate((1 + len(of) for of in over.values()), initial=0), strict=False))
    places = {name: starts[name] + np.cumsum([0, *(of == name for of in along)]) for name in over}
    own = np.array([(places[name][0], places[name][loop + 1]) for loop, name in enumerate(along)]).T
    outer = [next((at for at in reversed(over[name]) if at < loop), -1) for loop, name in enumerate(along)]
    return Places(over, places, own, outer)


class Extents(NamedTuple):
    """The extents of operands along dimensions: one for the whole run and for each loop over the dimension, of each pair (operand,
    dimension). The first is 1, the extent of an operand without dimensions.

    `tiles`: the row of tile counts of each; `pair`: its pair, counted from 1; `rows`: per pair, the row that holds in an iteration of each
    loop of the nest, the whole run first; `overlapping`: pairs whose neighbouring tiles share data, with all rows of the pair;
    `footprints`: products of extents, for each operand in the whole run and in each loop.
    """

    tiles: Indices
    pair: Indices
    rows: dict[tuple[int, str], Indices]
    overlapping: tuple[tuple[int, str, slice], ...]
    footprints: tuple[tuple[Indices, ...], Indices]


def _extents(pairs: list[tuple[int, str]], places: Places, operands: Sequence["OperandStructure"]) -> Extents:
    tiles, pair, rows = [0], [0], dict[tuple[int, str], Indices]()
    for number, (row, name) in enumerate(pairs, 1):
        first, counts = places.of[name][0], 1 + len(places.over[name])
        rows[row, name] = len(tiles) + places.of[name] - first
        tiles += range(first, first + counts)
        pair += [number] * counts
    loops = range(len(places.outer) + 1)
    products = [[rows[key][loop] for key in pairs if key[0] == row] for row in range(len(operands)) for loop in loops]
    shared = ((row, name) for row, operand in enumerate(operands) for name, _ in operand.shared)
    overlapping = tuple((row, name, slice(rows[row, name][0], rows[row, name][-1] + 1)) for row, name in shared)
    return Extents(np.array(tiles), np.array(pair), rows, overlapping, products_of(products))


@dataclass(frozen=True, eq=False)  # hashed by identity
class Structure:
    """All of a nest that does not depend on its sizes. `same`: per operand, the first operand that is the same buffer; `programs`: its
    equations once they were traced, by which overlaps of neighbours are arrays."""

    accesses: tuple[Access, ...]
    extents: Extents
    places: Places
    same: tuple[int, ...]
    reuses: tuple[ReuseFormula, ...]
    factors: Factors
    distances: Distances
    bytes: ReusedBytes
    names: tuple[str, ...]
    programs: dict[tuple[bool, ...], Programs] = field(default_factory=dict)

    def runs_ago(self, state: State) -> Array:
        """How many runs ago the data of each use was touched last; 0: in this run."""
        return np.array([runs_ago(state, name) for name in self.names])[self.bytes.operands] * (self.bytes.loops < 0)


class OperandStructure(msgspec.Struct, frozen=True):
    """What a nest's structure knows of an operand: its dimensions, those along which neighbours share data (and whether the tiles are
    touched `together`), and fields of `Operand`."""

    name: str
    dimensions: tuple[str, ...]
    shared: tuple[tuple[str, bool], ...]
    inside: str
    only_first: str | None
    after_loops: bool
    refilled_by: str | None
    partly: bool
    written: bool


# loops: names, dimensions, and whether an iteration is a single tile
@lru_cache(maxsize=256)
def structure(loops: tuple[tuple[str, str, bool], ...], operands: tuple[OperandStructure, ...]) -> Structure:
    """The formulas of a nest."""
    loop_names, along, _ = zip(*loops, strict=True)
    pairs = [(row, name) for row, operand in enumerate(operands) for name in operand.dimensions]
    places = _places(along, pairs)
    names = [operand.name for operand in operands]
    numbers = {None: NO_LOOP, **{name: at for at, name in enumerate(loop_names)}}
    accesses = tuple(
        Access(
            frozenset(at for name in operand.dimensions for at in places.over[name]),
            numbers[operand.inside],
            numbers[operand.only_first],
            operand.after_loops,
            numbers[operand.refilled_by],
        )
        for operand in operands
    )
    same = tuple(names.index(name) if name else row for row, name in enumerate(names))
    factors, formulas = Factors(), _Formulas(loops, [operand.dimensions for operand in operands], accesses, same, [], [])
    for row, operand in enumerate(operands):
        formulas.add(row, dict(operand.shared), operand.partly)
    return Structure(
        accesses,
        _extents(pairs, places, operands),
        places,
        same,
        (*formulas.reuses,),
        factors,
        distances_of(formulas.uses, accesses, factors),
        _bytes(formulas.reuses, [operand.written for operand in operands], factors),
        (*names,),
    )


def _bytes(reuses: Sequence[ReuseFormula], written: Sequence[bool], factors: Factors) -> ReusedBytes:
    sums, uses = list[Sum](), list[tuple[int, int, bool]]()
    for reuse in reuses:
        for share in reuse.shares:
            weight, factor = (share, ()) if isinstance(share, float) else (1.0, (share,))
            sums.append(
                Sum(
                    {
                        tuple(factors[one] for one in (*times, *size, *factor)): weight
                        for times, size in itertools.product(reuse.times, reuse.size)
                    }
                )
            )
            uses.append((reuse.row, reuse.loop, written[reuse.row] or (reuse.first and reuse.kind == BUFFER)))  # overwrites older data
    return ReusedBytes(Formulas.of(sums), *(np.array(column) for column in zip(*uses, strict=True)))


class _Formulas(NamedTuple):
    """The reuses of a nest while they are collected."""

    loops: tuple[tuple[str, str, bool], ...]
    dimensions: list[tuple[str, ...]]
    accesses: tuple[Access, ...]
    same: tuple[int, ...]
    reuses: list[ReuseFormula]
    uses: list[Use | Fixed]

    def add(self, row: int, shared: Mapping[str, bool], partly: bool) -> None:
        """The reuses of an operand. `shared`: dimensions along which neighbours share data, and whether both are touched together;
        `partly`: an iteration touches only a part of its footprint."""
        access = self.accesses[row]
        own, last, passes = self._first_use(row)
        size: tuple[Factored, ...] = ((self._footprint(row, -1 if access.refilled_by != NO_LOOP else last),),)
        for loop in (at for at in range(last + 1, access.inside + 1) if at != access.only_first):
            name = self.loops[loop][1]
            if loop in own.indexed_by:
                if name in shared:
                    body = tuple((at, self._footprint(at, loop), 1.0) for at, of in enumerate(self.accesses) if of.phase(loop) >= 0)
                    repeats, overlap = count_of(Count.REPEATS, loop), Overlap(row, name)
                    self._add(row, loop, ACROSS, (body,), ((repeats, *passes.values()),), ((overlap,),))
                    size += ((repeats, overlap),)
                continue
            full = any(of == name for _, of, _ in self.loops[: last + 1])
            others = tuple(count for at, count in passes.items() if at != name)
            count = Count.FULL_REPEATS if full else Count.REPEATS
            if access.refilled_by != NO_LOOP and any(of.only_first == loop for of in self.accesses):
                times: tuple[Factored, ...] = ((count_of(Count.SECOND, loop), *others),)
                self._add(row, loop, AFTER_FILL, [Use(own, loop, None, part) for part in FRACTIONS], times, size)
                count = Count.LATER
            times = ((count_of(count, loop), *others, *((Part(row),) if partly else ())),)
            if access.refilled_by != NO_LOOP and loop == access.inside:  # each tile is read as soon as it is packed
                times += (tuple(self._passes(access.refilled_by).values()),)
            if tiles := tuple(own.within(loop)):
                ends = [Use(own, loop, at_end) for at_end in (True, False)]
                self._add(row, loop, AGAIN, ends, times, size, (Ends(tiles), NotEnds(tiles)))
            else:
                self._add(row, loop, AGAIN, [Use(own, loop)], times, size)
            passes[name] = count_of(Count.FULL_ITERATIONS if full else Count.ITERATIONS, loop)
        self._within(row, (name for name, together in shared.items() if not together), tuple(passes.values()))

    def _first_use(self, row: int) -> tuple[Access, int, dict[str, AnyFactor]]:
        """Adds the first use of an operand in a run, or of its buffer after the phase before. Returns how it is accessed from then on, the
        loop of that use, and how often that loop iterates, by dimension."""
        access = self.accesses[row]
        alike = [at for at in range(len(self.same)) if self.same[at] == self.same[row]]
        before = alike[alike.index(row) - 1]
        if before == row and access.refilled_by == NO_LOOP:
            self._add(row, -1, AGAIN, [Use(access, -1)], ((),), ((self._footprint(row, -1),),), first=True)
            return access, -1, {}
        if access.refilled_by == NO_LOOP:
            loop, own = min(access.inside, self.accesses[before].inside), access
            uses: list[Use | Fixed] = [_between_phases(self.accesses, self.same, before, row, loop, part) for part in FRACTIONS]
            size, first = ((self._footprint(row, loop),),), before > row
        else:
            loop, own = access.refilled_by, access._replace(indexed_by=frozenset(access.within(access.refilled_by)))
            uses, size, first = [Use(own, loop, None, part) for part in FRACTIONS], ((self._footprint(row, -1),),), True
        passes = self._passes(loop)
        self._add(row, loop, BUFFER, uses, (tuple(passes.values()),), size, first=first)
        return own, loop, passes

    def _within(self, row: int, names: Iterable[str], passes: Factored) -> None:
        """Adds what neighbouring tiles of one iteration share; between them lies one tile of all that is touched in the same phase."""
        access = self.accesses[row]
        for name in names:
            over = [at for at, (_, of, _) in enumerate(self.loops) if of == name and at <= access.inside]
            if not any(self.loops[at][2] for at in over):
                tile = tuple(
                    (at, Tile(at, name, access.inside) if name in self.dimensions[at] else self._footprint(at, access.inside), 1.0)
                    for at, of in enumerate(self.accesses)
                    if of.phase(access.inside) == access.phase(access.inside)
                )
                times = ((Pairs(name, over[-1] if over else None), *passes),)
                self._add(row, access.inside, WITHIN, (tile,), times, ((Overlap(row, name),),))

    def _footprint(self, row: int, loop: int) -> Entry:
        return footprint(row, self.accesses[row].level(loop))

    def _passes(self, last: int) -> dict[str, AnyFactor]:
        """Full iterations of the loops up to `last`, by dimension."""
        return {self.loops[at][1]: count_of(Count.FULL, at) for at in range(last + 1)}

    def _add(
        self,
        row: int,
        loop: int,
        kind: str,
        uses: Sequence[Use | Fixed],
        times: tuple[Factored, ...],
        size: tuple[Factored, ...],
        shares: tuple[AnyFactor | float, ...] = (),
        first: bool = False,
    ) -> None:
        numbers = tuple(range(len(self.uses), len(self.uses) + len(uses)))
        self.uses.extend(uses)
        self.reuses.append(ReuseFormula(row, loop, kind, numbers, times, size, shares or (1 / len(uses),) * len(uses), first))


def _between_phases(accesses: tuple[Access, ...], same: tuple[int, ...], before: int, row: int, loop: int, fraction: float) -> Fixed:
    """Between two uses of a buffer in two phases of a loop's body, for the tile that a `fraction` of the buffer precedes."""
    phases = [of.phase(loop) for of in accesses]
    start, end = phases[before], phases[row]
    indexing = accesses[before if start == 1 else row].within(loop)
    innermost = indexing[0] - 1 if indexing else loop  # the innermost loop whose iteration passes over the whole buffer
    passed = {*range(start + 1, end)} if start < end else {0, 1, 2} - {*range(end, start + 1)}
    distance = list[tuple[int, AnyFactor, float]]()
    for at, phase in enumerate(phases):
        if same[at] == same[row] or phase in passed:
            distance.append((at, footprint(at, accesses[at].level(loop)), 1.0))
        elif phase in (start, end):
            share = 1.0 if phase == 1 and not accesses[at].indexed_by & {*indexing[:1]} else fraction if phase == end else 1 - fraction
            distance.append((at, footprint(at, accesses[at].level(innermost if phase == 1 else loop)), share))
    return (*distance,)
