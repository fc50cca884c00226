# SPDX-License-Identifier: Apache-2.0
"""How often data of a loop nest is used again, and at which of its distances (`distances`), whatever the sizes.

From the outermost loop inwards, a loop that does not move an operand uses all of it again in each of its iterations but the first, in each
pass by such loops so far. A loop that moves it makes neighbours, which share lines or halos, ACROSS its iterations, or WITHIN one. Uses of
tiles that are the first or the last of a loop, and of those between, have distances of their own.

Buffers. What one phase of a loop's body writes (ahead of the loops in it, in them, or after) and another one reads is written OVER in the
next iteration. A share p of it (PARTS) is used in a phase before the tile in question, 1 - p after. From phase i to phase j

    distance = (1 - p) phase(i) + all phases in between + p phase(j)      of itself, and of what stays while it passes: all of it

in the same iteration of the loop that both lie in, or, where j comes first, in the next. phase(of the loops) is one pass over the buffer.
`memory` that is filled tile by tile is written OVER, read at once, and used again by the next pass, after more was FILLED.

Worked number: 98 tiles in sets of 25, whose loop 5 others pass by: each comes again 4 times, 392 uses; of sets 3 neighbours, of tiles 94.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.cpu.distances import (
    Access,
    Derived,
    Factor,
    Fixed,
    Indices,
    Products,
    Rows,
    Sums,
    Term,
    Use,
    derived,
    products_of,
    sums_of,
)

PARTS = (0.25, 0.75)  # of what grows from the first tile of a set to the last
AGAIN, FILLED, OVER, ACROSS, WITHIN = "again", "filled", "over", "across", "within"


class Step(NamedTuple):
    """A reuse of an operand, whatever its sizes, by `uses`: `times` and `size` as sums of products, of each use a share of them."""

    row: int
    loop: int
    kind: str
    uses: tuple[int, ...]
    times: tuple[Term, ...]
    size: tuple[Term, ...]
    shares: tuple[Factor | float, ...]
    first: bool


class Bytes(NamedTuple):
    """Of all uses, whatever the sizes; and each use's operand, loop and whether it is the first of data that are written anew."""

    sums: Sums
    operands: Indices
    loops: Indices
    over: NDArray[np.bool_]


class Places(NamedTuple):
    """Where numbers of tiles stand: of each dimension all, then those in one iteration of each loop over it (`over`), one after another.
    `of` a dimension those that count in one iteration of each loop of the nest, `around` those of each operand's dimensions; of each loop
    `own` all tiles of its dimension and those of an iteration, and `outer` the loop around it over that dimension, or -1."""

    over: dict[str, list[int]]
    of: dict[str, Indices]
    around: Indices
    own: Indices
    outer: list[int]


def _places(along: Sequence[str], pairs: Sequence[tuple[int, str]]) -> Places:
    over = {name: [at for at, of in enumerate(along) if of == name] for name in dict.fromkeys(["", *along, *(name for _, name in pairs)])}
    begins = dict(zip(over, itertools.accumulate((1 + len(of) for of in over.values()), initial=0), strict=False))
    places = {name: begins[name] + np.cumsum([0, *(of == name for of in along)]) for name in over}
    around = np.array([places[""], *(places[name] for _, name in pairs)])
    own = np.array([(places[name][0], places[name][loop + 1]) for loop, name in enumerate(along)]).T
    outer = [next((at for at in reversed(over[name]) if at < loop), -1) for loop, name in enumerate(along)]
    return Places(over, places, around, own, outer)


class Shape(NamedTuple):
    """A nest whatever its sizes: `pairs` of operands and the dimensions that they extend along, and `products` of those of each operand,
    counted from 1; `places` of numbers of tiles; `same`: of each operand the first one that is the same buffer; `steps`: how operands are
    used again."""

    accesses: tuple[Access, ...]
    pairs: list[tuple[int, str]]
    products: Products
    places: Places
    same: tuple[int, ...]
    steps: tuple[Step, ...]
    rows: Rows
    distances: Derived
    bytes: Bytes


class Told(NamedTuple):
    """What of an operand a shape has: its dimensions, those along which neighbours share (and whether at once), and fields of `Operand`."""

    name: str
    dimensions: tuple[str, ...]
    shared: tuple[tuple[str, bool], ...]
    inside: str
    first: str | None
    after: bool
    memory: str | None
    partly: bool


# loops: names, dimensions and whether of single tiles
@lru_cache(maxsize=256)
def shape(loops: tuple[tuple[str, str, bool], ...], operands: tuple[Told, ...]) -> Shape:
    inside, along, _ = zip(*loops, strict=True)
    pairs = [(row, name) for row, one in enumerate(operands) for name in one.dimensions]
    places = _places(along, pairs)
    names = [one.name for one in operands]

    def place(loop: str | None) -> int | None:
        return None if loop is None else inside.index(loop)

    accesses = tuple(
        Access(
            frozenset(at for name in of.dimensions for at in places.over[name]),
            inside.index(of.inside),
            place(of.first),
            of.after,
            place(of.memory),
        )
        for of in operands
    )
    same = tuple(names.index(name) if name else row for row, name in enumerate(names))
    of = _Steps(loops, [one.dimensions for one in operands], accesses, same, [], [])
    for row, one in enumerate(operands):
        of.add(row, dict(one.shared), one.partly)
    rows = _rows(of, len(operands))
    return Shape(
        accesses,
        pairs,
        products_of([[at for at, (of_row, _) in enumerate(pairs, 1) if of_row == row] for row in range(len(operands))]),
        places,
        same,
        (*of.steps,),
        rows,
        derived((*of.uses,), accesses, rows),
        _bytes(of.steps, rows),
    )


def _rows(of: "_Steps", operands: int) -> Rows:
    """Of all factors, those that are not of every nest."""
    terms = [term for step in of.steps for term in (*step.times, *step.size, step.shares)]
    fixed = (factor for use in of.uses if not isinstance(use, Use) for _, factor, _ in use)
    factors = dict.fromkeys(factor for factor in itertools.chain(fixed, *terms) if isinstance(factor, tuple))
    ends = tuple(tuple(ends) for kind, *ends in factors if kind == "ends")
    return Rows(len(of.loops), operands, ends, tuple(factor for factor in factors if factor[0] in ("part", "each", "near", "tile")))


def _bytes(steps: Sequence[Step], rows: Rows) -> Bytes:
    sums, uses = list[list[tuple[float, Term]]](), list[tuple[int, int, bool]]()
    for step in steps:
        for share in step.shares:
            weight, factor = (1.0, (share,)) if isinstance(share, tuple) else (share, ())
            sums.append([(weight, (*times, *size, *factor)) for times, size in itertools.product(step.times, step.size)])
            uses.append((step.row, step.loop, step.first and step.kind == OVER))
    return Bytes(sums_of(sums, rows), *(np.array(column) for column in zip(*uses, strict=True)))


class _Steps(NamedTuple):
    """Of a nest's shape, as they are found."""

    loops: tuple[tuple[str, str, bool], ...]
    dimensions: list[tuple[str, ...]]
    accesses: tuple[Access, ...]
    same: tuple[int, ...]
    steps: list[Step]
    uses: list[Use | Fixed]

    def add(self, row: int, shared: Mapping[str, bool], partly: bool) -> None:
        """Those of an operand, which shares along dimensions, at once or not, and of which iterations touch a part."""
        one = self.accesses[row]
        own, last, done = self._begin(row)
        both = -1 if one.memory is not None else last
        size: tuple[Term, ...] = ((_all(row, both),),)
        for loop in (at for at in range(last + 1, one.inside + 1) if at != one.first):
            name, passes = self.loops[loop][1], tuple(done.values())
            if loop in own.moved:
                if name in shared:
                    body = tuple((at, _all(at, loop), 1.0) for at, of in enumerate(self.accesses) if of.phase(loop) >= 0)
                    more, each = ("more", loop), ("each", row, name)
                    self._step(row, loop, ACROSS, (body,), ((more, *passes),), ((each,),))
                    size += ((more, each),)
                continue
            full = " full" if any(of == name for _, of, _ in self.loops[: last + 1]) else ""
            others, again = tuple(of for at, of in done.items() if at != name), "more"
            if one.memory is not None and any(of.first == loop for of in self.accesses):
                times: tuple[Term, ...] = ((("fill", loop), *others),)
                self._step(row, loop, FILLED, [Use(own, loop, None, part) for part in PARTS], times, size)
                again = "rest"
            times = (((again + full, loop), *others, *((("part", row),) if partly else ())),)
            if one.memory is not None and loop == one.inside:  # read as soon as it is filled
                times += (tuple(self._full(one.memory).values()),)
            if moved := tuple(own.within(loop)):
                ends = [Use(own, loop, at_end) for at_end in (True, False)]
                self._step(row, loop, AGAIN, ends, times, size, (("ends", *moved), ("between", *moved)))
            else:
                self._step(row, loop, AGAIN, [Use(own, loop)], times, size)
            done[name] = ("now" + full, loop)
        self._within(row, (name for name, at_once in shared.items() if not at_once), tuple(done.values()))

    def _begin(self, row: int) -> tuple[Access, int, dict[str, Factor]]:
        """The first use of an operand in a run, or of its memory: what moves it after that, the loop, and how often that iterates."""
        one = self.accesses[row]
        alike = [at for at in range(len(self.same)) if self.same[at] == self.same[row]]
        before = alike[alike.index(row) - 1]
        if before == row and one.memory is None:
            self._step(row, -1, AGAIN, [Use(one, -1)], ((),), ((_all(row, -1),),), first=True)
            return one, -1, {}
        if one.memory is None:
            loop, own = min(one.inside, self.accesses[before].inside), one
            uses: list[Any] = [_apart(self.accesses, self.same, before, row, loop, part) for part in PARTS]
            size, first = ((_all(row, loop),),), before > row
        else:
            loop, own = one.memory, one._replace(moved=frozenset(one.within(one.memory)))
            uses, size, first = [Use(own, loop, None, part) for part in PARTS], ((_all(row, -1),),), True
        done = self._full(loop)
        self._step(row, loop, OVER, uses, (tuple(done.values()),), size, first=first)
        return own, loop, done

    def _within(self, row: int, names: Iterable[str], passes: Term) -> None:
        """What neighbours share in one body: a tile of what is in its phase lies in between."""
        one = self.accesses[row]
        for name in names:
            over = [at for at, (_, of, _) in enumerate(self.loops) if of == name and at <= one.inside]
            if not any(self.loops[at][2] for at in over):
                tile = tuple(
                    (at, ("tile", at, name, one.inside) if name in self.dimensions[at] else _all(at, one.inside), 1.0)
                    for at, of in enumerate(self.accesses)
                    if of.phase(one.inside) == one.phase(one.inside)
                )
                self._step(row, one.inside, WITHIN, (tile,), ((("near", name, *over[-1:]), *passes),), ((("each", row, name),),))

    def _full(self, last: int) -> dict[str, Factor]:
        return {self.loops[at][1]: ("full", at) for at in range(last + 1)}

    def _step(
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
        self.steps.append(Step(row, loop, kind, numbers, times, size, shares or (1 / len(uses),) * len(uses), first))


def _all(row: int, loop: int) -> Factor:
    return "footprint", row, loop


def _apart(accesses: tuple[Access, ...], same: tuple[int, ...], before: int, row: int, loop: int, part: float) -> Fixed:
    """Between the uses of a buffer in two phases of a loop's body, of a share `part` of it."""
    phases = [of.phase(loop) for of in accesses]
    start, end = phases[before], phases[row]
    moved = accesses[before if start == 1 else row].within(loop)
    once = moved[0] - 1 if moved else loop  # the last loop that passes over the whole buffer
    passed = {*range(start + 1, end)} if start < end else {0, 1, 2} - {*range(end, start + 1)}
    found = list[tuple[int, Factor, float]]()
    for at, phase in enumerate(phases):
        if same[at] == same[row] or phase in passed:
            found.append((at, _all(at, loop), 1.0))
        elif phase in (start, end):
            share = 1.0 if phase == 1 and not accesses[at].moved & {*moved[:1]} else part if phase == end else 1 - part
            found.append((at, _all(at, once if phase == 1 else loop), share))
    return (*found,)
