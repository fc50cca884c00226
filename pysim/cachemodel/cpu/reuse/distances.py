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

`around` is this recurrence. It runs once for each structure of a nest, on sums of products (`Sum`) instead of numbers; a factor of a
product is a value that takes its number from a nest (`footprint`, `per_trip`). `Formulas` evaluate many sums at once, for a whole table of
schedules.

Worked number: tile I in the outer loop, K2 = 4 tiles F in the inner loop. F is used again one iteration of the outer loop later, after 4 F
and 1 / 4 + 2 (1 - 1 / 4) = 1.75 I: two I unless F is the first or the last tile.
"""

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.equations import empty
from pysim.caches import lazy

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


class Sizes(Protocol):
    """A nest with its sizes, from which factors take their numbers: an element for each schedule. Loop -1 is the whole run."""

    @property
    def columns(self) -> int: ...
    @property
    def trips(self) -> Array: ...
    @property
    def counts(self) -> Array:
        """How often each loop iterates: `reuse.Count` x loops x schedules."""

    @property
    def footprints(self) -> Array:
        """Bytes of operands x the whole run and one iteration of each loop x schedules."""

    def footprint(self, loop: int, row: int) -> Array: ...
    def ends(self, loops: tuple[int, ...]) -> Array:
        """The share of the tiles that are the first or the last of `loops`."""

    def part(self, row: int) -> Array | float:
        """The share of an operand's footprint that one iteration touches."""

    def overlap(self, row: int, name: str) -> Array:
        """Bytes that two neighbours along a dimension share."""

    def tile(self, row: int, name: str, loop: int) -> Array:
        """Bytes of an operand in one iteration of a loop, of one tile along a dimension."""

    def tiles(self, name: str) -> Array:
        """Tiles of a dimension: in the whole run, then in one iteration of each loop."""


class Factor(Hashable, Protocol):
    """A number of each schedule, that only some factors have."""

    def of(self, nest: Sizes) -> Array | float: ...


class Entry(NamedTuple):
    """A factor that is an entry of an array of numbers: Footprint(operand, loop), ..."""

    of: Callable[[Sizes], Array]
    place: tuple[int, ...]


def footprint(operand: int, loop: int) -> Entry:
    """Bytes of an operand in one iteration of a loop."""
    return Entry(_footprints, (operand, loop + 1))


def per_trip(loop: int) -> Entry:
    """1 / trips of a loop."""
    return Entry(_per_trip, (loop,))


def several_trips(loop: int) -> Entry:
    """1 for a loop of more than one trip, 0 for others."""
    return Entry(_several_trips, (loop,))


def _footprints(nest: Sizes) -> Array:
    return nest.footprints


def _per_trip(nest: Sizes) -> Array:
    return 1 / nest.trips


def _several_trips(nest: Sizes) -> Array:
    return np.greater(nest.trips, 1).astype(np.float64)


Product = tuple[int, ...]  # rows of a table of numbers (`Factors`)
Fixed = tuple[tuple[int, Factor | Entry, float], ...]  # a distance that is given: (operand, factor, weight) of each operand


class Sum(dict[Product, float]):
    """A sum of products, each with its weight. Products without a weight left vanish."""

    def __add__(self, other: "Sum") -> "Sum":
        total = Sum(self)
        for product, weight in other.items():
            if left := total.get(product, 0.0) + weight:
                total[product] = left
            else:
                total.pop(product, None)
        return total

    def __sub__(self, other: "Sum") -> "Sum":
        return self + other * -1.0

    def __mul__(self, by: int | float) -> "Sum":
        """Times the factor in a row (an int), or times a number."""
        if isinstance(by, int):
            return Sum({(*product, by): weight for product, weight in self.items()})
        return Sum({product: weight * by for product, weight in self.items()})


class Factors(dict[Factor | Entry, int]):
    """The rows of a table of numbers: row 0 is 1, then each factor has one, in the order of their first use."""

    def __missing__(self, factor: Factor | Entry) -> int:
        return self.setdefault(factor, 1 + len(self))

    @lazy
    def _entries(self) -> list[tuple[Callable[[Sizes], Array], Indices, tuple[Indices, ...]]]:
        """For each array of numbers the rows of the table that come from it, and their places there."""
        rows = [(factor.of, row, factor.place) for factor, row in self.items() if isinstance(factor, Entry)]
        return [
            (of, np.array([row for one, row, _ in rows if one == of]), tuple(np.array([place for one, _, place in rows if one == of]).T))
            for of in dict.fromkeys(of for of, *_ in rows)
        ]

    def numbers(self, nest: Sizes) -> Array:
        """The table."""
        table = empty((1 + len(self),), nest.columns)
        table[0] = 1.0
        for of, rows, places in self._entries:
            table[rows] = of(nest)[places]
        for factor, row in self._others:
            table[row] = factor.of(nest)
        return table

    @lazy
    def _others(self) -> list[tuple[Factor, int]]:
        return [(factor, row) for factor, row in self.items() if not isinstance(factor, Entry)]


class Formulas(NamedTuple):
    """Sums of products of rows of a table of numbers.

    `products[i]`: rows of the i-th factor of all products that have one; products are ordered by their number of factors, most first.
    `terms`: the product of each term, `weights` of the terms; first the first terms of all sums, then the second terms of the `counts[1]`
    sums that have one, and so on. `order`: where each sum comes.
    """

    products: tuple[Indices, ...]
    terms: Indices
    weights: Array
    counts: tuple[int, ...]
    order: Indices

    @classmethod
    def of(cls, sums: Sequence[Sum]) -> "Formulas":
        order = sorted(range(len(sums)), key=lambda at: -len(sums[at]))
        rounds = [[[*sums[at].items()][place] for at in order if place < len(sums[at])] for place in range(len(sums[order[0]]))]
        terms = [*itertools.chain(*rounds)]
        return cls(
            *products_of([product for product, _ in terms]),
            np.array([[weight] for _, weight in terms]),
            tuple(map(len, rounds)),
            np.argsort(order),
        )

    def evaluated(self, numbers: Array) -> Array:
        """Each sum for every column, in `order`."""
        terms = evaluate_products(numbers, self.products, self.terms)
        terms *= self.weights
        sums = terms[: self.counts[0]]
        for end, count in list(zip(itertools.accumulate(self.counts), self.counts, strict=True))[1:]:
            sums[:count] += terms[end - count : end]
        return sums


def products_of(products: Sequence[Sequence[int]]) -> tuple[tuple[Indices, ...], Indices]:
    """Products of rows of a table whose row 0 is 1, as `Formulas` has them: `products`, and the place of each product."""
    order = sorted(range(len(products)), key=lambda at: -len(products[at]))
    factors = [[products[at][place] for at in order if place < len(products[at])] for place in range(max(map(len, products)))]
    factors[0] += [0] * (len(products) - len(factors[0]))
    return tuple(np.array(rows, dtype=np.int64) for rows in factors), np.argsort(order)


def evaluate_products(numbers: Array, products: tuple[Indices, ...], order: Indices) -> Array:
    """Each product for every column of a table of numbers."""
    found = numbers.take(products[0], axis=0)  # on short rows twice as fast as indexing
    for rows in products[1:]:
        found[: rows.size] *= numbers.take(rows, axis=0)
    return found.take(order, axis=0)


def around(use: Use, y: Access, bytes_in: Mapping[int, Sum], factors: Factors) -> Sum:
    """around(use.loop) of an operand Y with these footprints, for X = use.of."""
    x, loop = use.of, use.loop
    if y.inside < loop:
        return Sum()
    innermost = min(body for body in (y.inside, x.inside, x.only_first - 1) if body >= loop)
    between = bytes_in[innermost]
    for m in range(innermost, loop, -1):
        if m not in x.indexed_by:
            continue
        tile = bytes_in[m]
        if m in y.indexed_by and m != y.only_first:
            between = between + bytes_in[m - 1] - tile
        elif m == y.only_first or use.at_end is None:
            each, passes = factors[per_trip(m)], 1.0 if m == y.only_first else 2.0
            between = between * each + tile * passes - tile * passes * each
        else:
            several, share = factors[several_trips(m)], 0.5 if use.at_end else 1.0
            between = between - between * share * several + tile * (2 * share) * several
    return between


def distance(use: Use, y: Access, bytes_in: Mapping[int, Sum], factors: Factors) -> Sum:
    """Bytes of Y between a use and the next."""
    loop, first = use.loop, y.only_first
    if use.fraction is not None and (loop <= first or loop == y.inside):
        return bytes_in[max(loop, first)] * use.fraction
    if loop == first:
        return Sum()
    between = around(use, y, bytes_in, factors)
    return between * factors[per_trip(first)] if NO_LOOP < first < loop else between


class Distances(NamedTuple):
    """The distinct distances of some uses. Each is at most the number in row `limits`; the last is 0.

    `overlapping`: (distance, operand, loop) of distances that consist of neighbouring tiles, which share lines. `which`: the distance of
    each operand (rows) for each use (columns).
    """

    formulas: Formulas
    limits: Indices
    overlapping: tuple[tuple[int, int, int], ...]
    which: Indices


class _Distance(NamedTuple):
    """A distance, its limit, and the (operand, loop) whose neighbouring tiles it consists of."""

    terms: tuple[tuple[Product, float], ...]
    limit: int
    overlapping: tuple[int, int] | None


def distances_of(uses: Sequence[Use | Fixed], operands: Sequence[Access], factors: Factors) -> Distances:
    """The recurrence for the uses of a nest, whatever its trip counts."""
    loops = range(-1, 1 + max(y.inside for y in operands))
    rows = [{loop: factors[footprint(row, y.level(loop))] for loop in loops} for row, y in enumerate(operands)]
    footprints = [{loop: Sum({(at,): 1.0}) for loop, at in of.items()} for of in rows]
    places: dict[_Distance, list[tuple[int, int]]] = {}  # where each distance occurs: (operand, use)
    for (number, use), (row, y) in itertools.product(enumerate(uses), enumerate(operands)):
        overlapping, limit = None, rows[row][-1]
        if isinstance(use, Use):
            terms, limit, body = distance(use, y, footprints[row], factors), rows[row][max(-1, use.loop - 1)], rows[row][use.loop]
            if use.loop in y.indexed_by and {product[0] for product in terms} == {body} and terms != {(body,): 1.0}:
                overlapping = row, use.loop
        else:
            terms = Sum({(factors[factor],): weight for operand, factor, weight in use if operand == row})
        if terms:
            places.setdefault(_Distance(tuple(terms.items()), limit, overlapping), []).append((row, number))
    distances, which = sorted(places, key=lambda found: -len(found.terms)), np.full((len(operands), len(uses)), len(places))
    for at, found in enumerate(distances):
        which[tuple(zip(*places[found], strict=True))] = at
    return Distances(
        Formulas.of([*(Sum(found.terms) for found in distances), Sum({(): 0.0})]),
        np.array([*(found.limit for found in distances), 0]),
        tuple((at, *found.overlapping) for at, found in enumerate(distances) if found.overlapping),
        which,
    )
