# SPDX-License-Identifier: Apache-2.0
"""Reuse distances in a loop nest: the bytes of each operand that are touched between two consecutive uses of the same data.

Operand X is used in the body of loop l, and l does not index X. Then each iteration of l uses the same X again. Between two uses lie
the end of one iteration and the beginning of the next. around(l) is what both together touch of an operand Y. It is computed from the
innermost loop outwards. With m the next loop inside l, and T its trip count,

    around(l) = around(m)                                      m does not index X: the last iteration of m, then its first
              = around(m) + footprint(l) - footprint(m)        m indexes X and Y: the iterations after X's, and those before it
              = around(m) / T + 2 (1 - 1 / T) footprint(m)     m indexes X only: all of Y after X and before it, unless X is last or first

and one footprint in the body that touches X or Y. For tiles X that are the first or the last of m, the last line becomes
around(m) / 2 + footprint(m); for the other tiles, 2 footprint(m).

An operand Y may be touched only in the first iteration of a loop (`only_first`), like input that is packed on demand. It counts once in
that iteration if m indexes X. For the X packed from it, only a `fraction` of Y precedes or follows.

A distance is at most what all iterations of l touch. Lines that neighbouring tiles share count once. Reuse distances: Mattson et al.,
IBM Systems Journal 9(2), 1970; in loop nests: Beyls and D'Hollander, HPCC 2005.

The equations are solved symbolically, once for each structure of a nest (`distance_formulas`). The result is sums of products of
factors, such as footprints and 1 / T. `evaluate_sums` evaluates them for a table of schedules.

Worked number: tile I in the outer loop, K2 = 4 tiles F in the inner loop. F is used again one iteration of the outer loop later, after 4 F
and 1 / 4 + 2 (1 - 1 / 4) = 1.75 I: two I unless F is the first or the last tile.
"""

import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


NO_LOOP = -2


class Access(NamedTuple):
    """Where an operand is touched. Loops are numbers, outermost 0.

    `indexed_by`: loops that move the operand. It is touched inside loop `inside`: before the loops in that body, or `after_loops`;
    `only_first`: only in the first iteration of this loop. Each iteration of loop `refilled_by` fills the same memory with other data.
    """

    indexed_by: frozenset[int]
    inside: int
    only_first: int = NO_LOOP
    after_loops: bool = False
    refilled_by: int = NO_LOOP

    def level(self, loop: int) -> int:
        """The loop whose iteration touches the same data as an iteration of `loop`: the innermost one around that indexes the operand."""
        return max((at for at in self.indexed_by if at <= loop), default=-1)

    def phase(self, loop: int) -> int:
        """Phase of the body of a loop: 0 before its loops, 1 in them, 2 after them; -1: not in the body."""
        return -1 if self.inside < loop else 1 if self.inside > loop else 2 * self.after_loops

    def within(self, loop: int) -> list[int]:
        """Loops inside `loop` that index the operand."""
        return sorted(at for at in self.indexed_by if at > loop)


class Use(NamedTuple):
    """A use of data in one iteration of `loop` and in the next; loop -1 is the whole run.

    `at_end`: only tiles that are the first or the last of the loop that indexes them, or only the others; None: the mean of all tiles.
    `fraction`: this much of the operand is touched before the tile, of operands that are touched in one of the two iterations only.
    """

    of: Access
    loop: int
    at_end: bool | None = None
    fraction: float | None = None


# Iteration counts of each loop: `LoopNest._counts`
COUNTS = "iterations", "repeats", "full", "full iterations", "full repeats", "second", "later"
_PER_LOOP = {kind: at for at, kind in enumerate((*COUNTS, "1 / trips", "several trips"))}
Factor = tuple[Any, ...]  # kind, then the operand or the loops: a row of the table of numbers
Term = tuple[Factor, ...]  # a product of factors
Fixed = tuple[tuple[int, Factor, float], ...]  # a distance that is given: (operand, factor, weight) of each operand


class Rows(NamedTuple):
    """Which row of a nest's table of numbers holds a factor (`LoopNest._values`).

    The rows are 1, the COUNTS, 1 / trips and "more than one trip" of each loop, the footprints (operand, loop), the share of `ends`
    (tiles that are first or last in some loops), the share of the tiles between, and the `others`.
    """

    loops: int
    operands: int
    ends: tuple[Term, ...]
    others: Term

    def of(self, factor: Factor) -> int:
        kind, *rest = factor
        if kind in _PER_LOOP:
            return 1 + _PER_LOOP[kind] * self.loops + rest[0]
        at = 1 + len(_PER_LOOP) * self.loops
        if kind == "footprint":
            return at + rest[0] * (self.loops + 1) + rest[1] + 1
        at += self.operands * (self.loops + 1)
        if kind in ("ends", "between"):
            return at + (kind == "between") * len(self.ends) + self.ends.index(tuple(rest))
        return at + 2 * len(self.ends) + self.others.index(factor)


class Products(NamedTuple):
    """Products of rows of a table, the longest first: `factors[i]` has the i-th row of each product that has more than i rows; `order`
    has the position of each product."""

    factors: tuple[Indices, ...]
    order: Indices


def products_of(products: Sequence[Sequence[int]]) -> Products:
    """Products of rows of a table whose row 0 is 1."""
    order = sorted(range(len(products)), key=lambda at: -len(products[at]))
    factors = [[products[at][place] for at in order if place < len(products[at])] for place in range(max(map(len, products)))]
    factors[0] += [0] * (len(products) - len(factors[0]))
    return Products(tuple(np.array(rows, dtype=np.int64) for rows in factors), np.argsort(order))


def evaluate_products(values: Array, of: Products) -> Array:
    """Each product for every column of a table of values."""
    products = values.take(of.factors[0], axis=0)  # on short rows twice as fast as indexing
    for rows in of.factors[1:]:
        products[: rows.size] *= values.take(rows, axis=0)
    return products.take(of.order, axis=0)


class Sums(NamedTuple):
    """Sums of products with weights, the longest first: the first term of each sum, then the second of the `counts[1]` sums that have
    one, and so on; `order` has the position of each sum."""

    products: Products
    weights: Array
    counts: tuple[int, ...]
    order: Indices


def sums_of(sums: Sequence[Sequence[tuple[float, Sequence[int]]]]) -> Sums:
    """Sums of weights times products of rows."""
    order = sorted(range(len(sums)), key=lambda at: -len(sums[at]))
    rounds = [[sums[at][place] for at in order if place < len(sums[at])] for place in range(len(sums[order[0]]))]
    terms = [*itertools.chain(*rounds)]
    products = products_of([term for _, term in terms])
    return Sums(products, np.array([[weight] for weight, _ in terms]), tuple(map(len, rounds)), np.argsort(order))


def evaluate_sums(values: Array, of: Sums) -> Array:
    """Each sum for every column of a table of values, the longest sum first."""
    terms = evaluate_products(values, of.products)
    terms *= of.weights
    sums = terms[: of.counts[0]]
    for end, count in list(zip(itertools.accumulate(of.counts), of.counts, strict=True))[1:]:
        sums[:count] += terms[end - count : end]
    return sums


Sum = dict[tuple[int, ...], float]  # products of rows and their weights


def _add(to: Sum, weight: float, *factors: int) -> None:
    """Adds a product of factors, times a weight."""
    if total := to.get(factors, 0.0) + weight:
        to[factors] = total
    else:
        to.pop(factors, None)


class _Equations(NamedTuple):
    """The equations above for operand Y, number `row`; `footprints` are the rows of its footprints in each loop, -1 first."""

    rows: Rows
    row: int
    access: Access
    footprints: tuple[int, ...]

    def footprint(self, loop: int) -> int:
        return self.footprints[loop + 1]

    def around(self, use: Use) -> Sum:
        """around(use.loop), for X = use.of."""
        x, y, loop = use.of, self.access, use.loop
        if y.inside < loop:
            return {}
        innermost = min(body for body in (y.inside, x.inside, x.only_first - 1) if body >= loop)
        around: Sum = {(self.footprint(innermost),): 1.0}
        for m in range(innermost, loop, -1):
            if m not in x.indexed_by:
                continue
            tile = self.footprint(m)
            if m in y.indexed_by and m != y.only_first:
                _add(around, 1.0, self.footprint(m - 1))
                _add(around, -1.0, tile)
            elif m == y.only_first or use.at_end is None:
                passes, per_trip = 1.0 if m == y.only_first else 2.0, self.rows.of(("1 / trips", m))
                around = {(*term, per_trip): weight for term, weight in around.items()}
                _add(around, passes, tile)
                _add(around, -passes, tile, per_trip)
            else:
                share, several = 0.5 if use.at_end else 1.0, self.rows.of(("several trips", m))
                for term, weight in [*around.items()]:
                    _add(around, -share * weight, *term, several)
                _add(around, 2 * share, tile, several)
        return around

    def distance(self, use: Use) -> Sum:
        """Bytes of Y between a use and the next."""
        loop, first = use.loop, self.access.only_first
        if use.fraction is not None and (loop <= first or loop == self.access.inside):
            return {(self.footprint(max(loop, first)),): use.fraction}
        if loop == first:
            return {}
        around = self.around(use)
        if not NO_LOOP < first < loop:
            return around
        per_trip = self.rows.of(("1 / trips", first))
        return {(*term, per_trip): weight for term, weight in around.items()}


class DistanceFormulas(NamedTuple):
    """The distinct distances of some uses, as `sums`. Each is at most the footprint in row `limits`; the last is 0.

    `overlapping`: (distance, operand, loop) of distances that consist of neighbouring tiles, which share lines. `which`: the distance of
    each operand (rows) for each use (columns).
    """

    sums: Sums
    limits: list[int]
    overlapping: tuple[tuple[int, int, int], ...]
    which: Indices


@lru_cache(maxsize=64)
def distance_formulas(uses: tuple[Use | Fixed, ...], operands: tuple[Access, ...], rows: Rows) -> DistanceFormulas:
    """The equations above, solved for the uses of a nest, for any trip counts."""
    equations = [
        _Equations(rows, row, access, tuple(rows.of(("footprint", row, access.level(loop))) for loop in range(-1, rows.loops)))
        for row, access in enumerate(operands)
    ]
    places: dict[tuple[Any, ...], list[tuple[int, int]]] = {}  # of each distance: where it occurs, (operand, use)
    for (number, use), of in itertools.product(enumerate(uses), equations):
        overlapping, limit = None, of.footprint(-1)
        if isinstance(use, Use):
            terms, limit, body = of.distance(use), of.footprint(max(-1, use.loop - 1)), of.footprint(use.loop)
            if use.loop in of.access.indexed_by and {term[0] for term in terms} == {body} and terms != {(body,): 1.0}:
                overlapping = of.row, use.loop
        else:
            terms = {(rows.of(factor),): weight for operand, factor, weight in use if operand == of.row}
        if terms:
            places.setdefault((tuple(terms.items()), limit, overlapping), []).append((of.row, number))
    distances, which = sorted(places, key=lambda distance: -len(distance[0])), np.full((len(operands), len(uses)), len(places))
    for at, distance in enumerate(distances):
        which[tuple(zip(*places[distance], strict=True))] = at
    sums = [[(weight, term) for term, weight in terms] for terms, *_ in distances]
    return DistanceFormulas(
        sums_of([*sums, [(0.0, ())]]),
        [*(limit for _, limit, _ in distances), 0],
        tuple((at, *overlapping) for at, (*_, overlapping) in enumerate(distances) if overlapping),
        which,
    )
