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
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.cpu.distances import (
    NO_LOOP,
    Access,
    Array,
    DistanceFormulas,
    Factor,
    Fixed,
    Indices,
    Products,
    Rows,
    Sums,
    Term,
    Use,
    distance_formulas,
    products_of,
    sums_of,
)
from pysim.record.state import State, runs_ago

FRACTIONS = (0.25, 0.75)
AGAIN, AFTER_FILL, BUFFER, ACROSS, WITHIN = "again", "after fill", "buffer", "across", "within"


class ReuseFormula(NamedTuple):
    """A reuse of operand `row`: `times` x `size`, sums of products, are the bytes that are reused in the next iteration of `loop`. Each of
    `uses` has a distance, and the share of the bytes that lie that far apart. `first`: nothing was written there before in the
    iteration."""

    row: int
    loop: int
    kind: str
    uses: tuple[int, ...]
    times: tuple[Term, ...]
    size: tuple[Term, ...]
    shares: tuple[Factor | float, ...]
    first: bool


class ReusedBytes(NamedTuple):
    """The bytes of every use as one table of sums, with the operand and the loop of each; `written`: the data lies where lines are
    written."""

    sums: Sums
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
    footprints: Products


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
    """All of a nest that does not depend on its sizes. `same`: per operand, the first operand that is the same buffer."""

    accesses: tuple[Access, ...]
    extents: Extents
    places: Places
    same: tuple[int, ...]
    reuses: tuple[ReuseFormula, ...]
    rows: Rows
    distances: DistanceFormulas
    bytes: ReusedBytes
    names: tuple[str, ...]

    def runs_ago(self, state: State) -> Array:
        """How many runs ago the data of each use was touched last; 0: in this run."""
        return np.array([runs_ago(state, name) for name in self.names])[self.bytes.operands] * (self.bytes.loops < 0)


class OperandStructure(NamedTuple):
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
    formulas = _Formulas(loops, [operand.dimensions for operand in operands], accesses, same, [], [])
    for row, operand in enumerate(operands):
        formulas.add(row, dict(operand.shared), operand.partly)
    rows = _rows(formulas, len(operands))
    return Structure(
        accesses,
        _extents(pairs, places, operands),
        places,
        same,
        (*formulas.reuses,),
        rows,
        distance_formulas((*formulas.uses,), accesses, rows),
        _bytes(formulas.reuses, rows, [operand.written for operand in operands]),
        (*names,),
    )


def _rows(of: "_Formulas", operands: int) -> Rows:
    """The table of numbers that the formulas need."""
    terms = [term for reuse in of.reuses for term in (*reuse.times, *reuse.size, reuse.shares)]
    fixed = (factor for use in of.uses if not isinstance(use, Use) for _, factor, _ in use)
    factors = dict.fromkeys(factor for factor in itertools.chain(fixed, *terms) if isinstance(factor, tuple))
    ends = tuple(tuple(ends) for kind, *ends in factors if kind == "ends")
    return Rows(len(of.loops), operands, ends, tuple(factor for factor in factors if factor[0] in ("part", "overlap", "pairs", "tile")))


def _bytes(reuses: Sequence[ReuseFormula], rows: Rows, written: Sequence[bool]) -> ReusedBytes:
    sums, uses = list[list[tuple[float, list[int]]]](), list[tuple[int, int, bool]]()
    for reuse in reuses:
        for share in reuse.shares:
            weight, factor = (1.0, (share,)) if isinstance(share, tuple) else (share, ())
            products = itertools.product(reuse.times, reuse.size)
            sums.append([(weight, [rows.of(one) for one in (*times, *size, *factor)]) for times, size in products])
            uses.append((reuse.row, reuse.loop, written[reuse.row] or (reuse.first and reuse.kind == BUFFER)))  # overwrites older data
    return ReusedBytes(sums_of(sums), *(np.array(column) for column in zip(*uses, strict=True)))


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
        size: tuple[Term, ...] = ((_footprint(row, -1 if access.refilled_by != NO_LOOP else last),),)
        for loop in (at for at in range(last + 1, access.inside + 1) if at != access.only_first):
            name = self.loops[loop][1]
            if loop in own.indexed_by:
                if name in shared:
                    body = tuple((at, _footprint(at, loop), 1.0) for at, of in enumerate(self.accesses) if of.phase(loop) >= 0)
                    repeats, overlap = ("repeats", loop), ("overlap", row, name)
                    self._add(row, loop, ACROSS, (body,), ((repeats, *passes.values()),), ((overlap,),))
                    size += ((repeats, overlap),)
                continue
            full = "full " if any(of == name for _, of, _ in self.loops[: last + 1]) else ""
            others, repeats_of = tuple(count for at, count in passes.items() if at != name), f"{full}repeats"
            if access.refilled_by != NO_LOOP and any(of.only_first == loop for of in self.accesses):
                times: tuple[Term, ...] = ((("second", loop), *others),)
                self._add(row, loop, AFTER_FILL, [Use(own, loop, None, part) for part in FRACTIONS], times, size)
                repeats_of = "later"
            times = (((repeats_of, loop), *others, *((("part", row),) if partly else ())),)
            if access.refilled_by != NO_LOOP and loop == access.inside:  # each tile is read as soon as it is packed
                times += (tuple(self._passes(access.refilled_by).values()),)
            if tiles := tuple(own.within(loop)):
                ends = [Use(own, loop, at_end) for at_end in (True, False)]
                self._add(row, loop, AGAIN, ends, times, size, (("ends", *tiles), ("between", *tiles)))
            else:
                self._add(row, loop, AGAIN, [Use(own, loop)], times, size)
            passes[name] = (f"{full}iterations", loop)
        self._within(row, (name for name, together in shared.items() if not together), tuple(passes.values()))

    def _first_use(self, row: int) -> tuple[Access, int, dict[str, Factor]]:
        """Adds the first use of an operand in a run, or of its buffer after the phase before. Returns how it is accessed from then on, the
        loop of that use, and how often that loop iterates, by dimension."""
        access = self.accesses[row]
        alike = [at for at in range(len(self.same)) if self.same[at] == self.same[row]]
        before = alike[alike.index(row) - 1]
        if before == row and access.refilled_by == NO_LOOP:
            self._add(row, -1, AGAIN, [Use(access, -1)], ((),), ((_footprint(row, -1),),), first=True)
            return access, -1, {}
        if access.refilled_by == NO_LOOP:
            loop, own = min(access.inside, self.accesses[before].inside), access
            uses: list[Any] = [_between_phases(self.accesses, self.same, before, row, loop, part) for part in FRACTIONS]
            size, first = ((_footprint(row, loop),),), before > row
        else:
            loop, own = access.refilled_by, access._replace(indexed_by=frozenset(access.within(access.refilled_by)))
            uses, size, first = [Use(own, loop, None, part) for part in FRACTIONS], ((_footprint(row, -1),),), True
        passes = self._passes(loop)
        self._add(row, loop, BUFFER, uses, (tuple(passes.values()),), size, first=first)
        return own, loop, passes

    def _within(self, row: int, names: Iterable[str], passes: Term) -> None:
        """Adds what neighbouring tiles of one iteration share; between them lies one tile of all that is touched in the same phase."""
        access = self.accesses[row]
        for name in names:
            over = [at for at, (_, of, _) in enumerate(self.loops) if of == name and at <= access.inside]
            if not any(self.loops[at][2] for at in over):
                tile = tuple(
                    (at, ("tile", at, name, access.inside) if name in self.dimensions[at] else _footprint(at, access.inside), 1.0)
                    for at, of in enumerate(self.accesses)
                    if of.phase(access.inside) == access.phase(access.inside)
                )
                times = ((("pairs", name, *over[-1:]), *passes),)
                self._add(row, access.inside, WITHIN, (tile,), times, ((("overlap", row, name),),))

    def _passes(self, last: int) -> dict[str, Factor]:
        """Full iterations of the loops up to `last`, by dimension."""
        return {self.loops[at][1]: ("full", at) for at in range(last + 1)}

    def _add(
        self,
        row: int,
        loop: int,
        kind: str,
        uses: Sequence[Use | Fixed],
        times: tuple[Term, ...],
        size: tuple[Term, ...],
        shares: tuple[Factor | float, ...] = (),
        first: bool = False,
    ) -> None:
        numbers = tuple(range(len(self.uses), len(self.uses) + len(uses)))
        self.uses.extend(uses)
        self.reuses.append(ReuseFormula(row, loop, kind, numbers, times, size, shares or (1 / len(uses),) * len(uses), first))


def _footprint(row: int, loop: int) -> Factor:
    return "footprint", row, loop


def _between_phases(accesses: tuple[Access, ...], same: tuple[int, ...], before: int, row: int, loop: int, fraction: float) -> Fixed:
    """Between two uses of a buffer in two phases of a loop's body, for the tile that a `fraction` of the buffer precedes."""
    phases = [of.phase(loop) for of in accesses]
    start, end = phases[before], phases[row]
    indexing = accesses[before if start == 1 else row].within(loop)
    innermost = indexing[0] - 1 if indexing else loop  # the innermost loop whose iteration passes over the whole buffer
    passed = {*range(start + 1, end)} if start < end else {0, 1, 2} - {*range(end, start + 1)}
    distance = list[tuple[int, Factor, float]]()
    for at, phase in enumerate(phases):
        if same[at] == same[row] or phase in passed:
            distance.append((at, _footprint(at, loop), 1.0))
        elif phase in (start, end):
            share = 1.0 if phase == 1 and not accesses[at].indexed_by & {*indexing[:1]} else fraction if phase == end else 1 - fraction
            distance.append((at, _footprint(at, innermost if phase == 1 else loop), share))
    return (*distance,)
