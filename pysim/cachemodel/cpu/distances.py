# SPDX-License-Identifier: Apache-2.0
"""Reuse distances in the loops of a nest, whatever their sizes: what of each operand is touched between two uses of the same data.

Loop l does not move operand X, which is used somewhere in its body and again in its next iteration. In between lie the rest of the one body
and the beginning of the next, around(l) together. From the innermost loop outwards, with T iterations of the next loop m, operand Y takes

    around(l) = around(m)                                      m does not move X: its last iteration, then its first
              = around(m) + footprint(l) - footprint(m)        m moves both: iterations after X's one, and before it in the next body
              = around(m) / T + 2 (1 - 1 / T) footprint(m)     m moves X alone: all of Y on either side, unless X is the last or the first

and one footprint in the body where X or Y is touched: the rest of that body and its beginning. For X that is the first or the last of m,
the last line is around(m) / 2 + footprint(m), for X between 2 footprint(m). Y that is only touched in the first iteration of m (`first`:
input that is packed on demand) lies in between where that one does: once, for X that m moves; for the X that is packed of it, what comes
before it or after it, a `part`. The distance is at most what l touches in all its iterations; lines that neighbouring tiles share count
once. Reuse distances: Mattson et al., IBM Systems Journal 9(2), 1970; of loop nests: Beyls and D'Hollander, HPCC 2005.

The equations are solved once for the shape of a nest (`derived`): sums of footprints times products of 1 / T.

Worked number: I in an outer loop, K2 = 4 tiles F past each in the inner one. F comes again an iteration of the outer loop later, after 4 F
and 1 / 4 + 2 (1 - 1 / 4) = 2 - 1 / 4 of I: whole before and after where F is neither last nor first.
"""

import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


class Access(NamedTuple):
    """Of data: the loops that move it, the one inside which it is touched, the one in whose first iteration alone it is, whether it is
    after the loops in that body, and the loop whose iterations take the same memory for other data."""

    moved: frozenset[int]
    inside: int
    first: int | None = None
    after: bool = False
    memory: int | None = None

    def level(self, loop: int) -> int:
        """The loop whose iterations have the same data as those of `loop`."""
        return max((at for at in self.moved if at <= loop), default=-1)

    def phase(self, loop: int) -> int:
        """Of the body of a loop: 0 ahead of its loops, 1 in them, 2 after; -1: not in it."""
        return -1 if self.inside < loop else 1 if self.inside > loop else 2 * self.after

    def within(self, loop: int) -> list[int]:
        """Loops in the body of a loop that move it."""
        return sorted(at for at in self.moved if at > loop)


class Use(NamedTuple):
    """A use of data in an iteration of `loop` (-1: a run of the nest) and the next, in its next one. `at_end`: of tiles that are the first
    or the last of the loop that moves them, or neither; by default, anywhere. `part`: of tiles that so much of all come before of, where
    what is only touched in the first iteration of a loop is touched in one of the two."""

    of: Access
    loop: int
    at_end: bool | None = None
    part: float | None = None


COUNTS = "now", "more", "full", "now full", "more full", "fill", "rest"  # of iterations of each loop: `LoopNest._counts`
Factor = tuple[Any, ...]  # a row of a table: its kind, and of which operand or loops
Term = tuple[Factor, ...]  # their product
Fixed = tuple[tuple[int, Factor, float], ...]  # a distance: so much of a factor of each of some operands


class Rows(NamedTuple):
    """The table of numbers of a nest: 1, counts of iterations of loops, one over their trips, whether these are several, footprints (of an
    operand in a loop), shares of tiles at the `ends` of loops and of those between, and `others`."""

    loops: int
    operands: int
    ends: tuple[Term, ...]
    others: Term

    def of(self, factor: Factor) -> int:
        kind, *rest = factor
        if kind in (*COUNTS, "part of", "several"):
            return 1 + (*COUNTS, "part of", "several").index(kind) * self.loops + rest[0]
        at = 1 + (len(COUNTS) + 2) * self.loops
        if kind == "footprint":
            return at + rest[0] * (self.loops + 1) + rest[1] + 1
        at += self.operands * (self.loops + 1)
        if kind in ("ends", "between"):
            return at + (kind == "between") * len(self.ends) + self.ends.index(tuple(rest))
        return at + 2 * len(self.ends) + self.others.index(factor)


class Products(NamedTuple):
    """Which rows are multiplied: the i-th ones of all products that have so many, which stand in falling order of that, and `order`, where
    each product stands."""

    rounds: tuple[Indices, ...]
    order: Indices


def products_of(products: Sequence[Sequence[int]]) -> Products:
    """Products of rows of a table, whose row 0 is 1."""
    order = sorted(range(len(products)), key=lambda at: -len(products[at]))
    rounds = [[products[at][place] for at in order if place < len(products[at])] for place in range(max(map(len, products)))]
    rounds[0] += [0] * (len(products) - len(rounds[0]))
    return Products(tuple(np.array(one, dtype=np.int64) for one in rounds), np.argsort(order))


def multiplied(values: Array, of: Products) -> Array:
    found = values.take(of.rounds[0], axis=0)  # of short rows in half the time that indices take
    for places in of.rounds[1:]:
        found[: places.size] *= values.take(places, axis=0)
    return found.take(of.order, axis=0)


class Sums(NamedTuple):
    """Sums of `products` times `weights`: first the first term of each, then the second of the `counts[1]` that have one; and where each
    sum stands."""

    products: Products
    weights: Array
    counts: tuple[int, ...]
    order: Indices


def sums_of(sums: Sequence[Sequence[tuple[float, Term]]], rows: Rows) -> Sums:
    order = sorted(range(len(sums)), key=lambda at: -len(sums[at]))
    rounds = [[sums[at][place] for at in order if place < len(sums[at])] for place in range(len(sums[order[0]]))]
    terms = [*itertools.chain(*rounds)]
    products = products_of([[rows.of(factor) for factor in term] for _, term in terms])
    return Sums(products, np.array([[weight] for weight, _ in terms]), tuple(map(len, rounds)), np.argsort(order))


def summed(values: Array, of: Sums) -> Array:
    """In falling order of their number of terms."""
    terms = multiplied(values, of.products)
    terms *= of.weights
    found = terms[: of.counts[0]]
    for end, count in list(zip(itertools.accumulate(of.counts), of.counts, strict=True))[1:]:
        found[:count] += terms[end - count : end]
    return found


Sum = dict[Term, float]  # products and what they are multiplied with


def _sum(*parts: tuple[Sum, float, Term]) -> Sum:
    found: Sum = {}
    for one, weight, factors in parts:
        for others, of in one.items():
            key = *others, *factors
            found[key] = found.get(key, 0.0) + weight * of
    return {key: weight for key, weight in found.items() if weight}


def _around(use: Use, loop: int, row: int, of: Access) -> Sum:
    """around(loop) of the equations above."""
    within = loop + 1
    body: Sum = {(("footprint", row, of.level(loop)),): 1.0}
    if of.inside < loop:
        return {}
    if loop in (of.inside, use.of.inside) or within == use.of.first:
        return body
    found = _around(use, within, row, of)
    some: Sum = {(("footprint", row, of.level(within)),): 1.0}
    if within not in use.of.moved:
        return found
    part, several = (("part of", within),), (("several", within),)
    if within == of.first:
        return _sum((found, 1.0, part), (some, 1.0, ()), (some, -1.0, part))
    if within in of.moved:
        return _sum((found, 1.0, ()), (body, 1.0, ()), (some, -1.0, ()))
    if use.at_end is None:
        return _sum((found, 1.0, part), (some, 2.0, ()), (some, -2.0, part))
    share = 0.5 if use.at_end else 1.0
    return _sum((found, 1.0, ()), (found, -share, several), (some, 2 * share, several))


def _distance(use: Use, row: int, of: Access) -> Sum:
    """Of an operand between a use and the next."""
    first, loop = of.first, use.loop
    if use.part is not None and (of.inside == loop or (first is not None and loop <= first)):
        return {(("footprint", row, of.level(first if first is not None and loop <= first else loop)),): use.part}
    if loop == first:
        return {}
    return _sum((_around(use, loop, row, of), 1.0, (("part of", first),) if first and loop > first else ()))


class Derived(NamedTuple):
    """The distances of the equations above, for any numbers of tiles, each once: at most the footprints in rows `most`; those of `joined`
    (distance, operand, loop) are of neighbouring tiles, which share lines. `which` each use has of each operand (rows), the last: none."""

    sums: Sums
    most: list[int]
    joined: tuple[tuple[int, int, int], ...]
    which: Indices


@lru_cache(maxsize=64)
def derived(uses: tuple[Use | Fixed, ...], operands: tuple[Access, ...], rows: Rows) -> Derived:
    known: dict[tuple[Any, ...], list[tuple[int, int]]] = {}  # by terms, the most, and operand and loop of joined tiles
    for (number, use), (row, of) in itertools.product(enumerate(uses), enumerate(operands)):
        joined, most = None, -1
        if isinstance(use, Use):
            found, most = _distance(use, row, of), of.level(use.loop - 1)
            whole = "footprint", row, use.loop
            joined = (
                (row, use.loop) if use.loop in of.moved and {term[0] for term in found} == {whole} and found != {(whole,): 1.0} else None
            )
        else:
            found = {(factor,): weight for at, factor, weight in use if at == row}
        if found:
            known.setdefault((tuple(found.items()), ("footprint", row, most), joined), []).append((row, number))
    found_of, which = sorted(known, key=lambda one: -len(one[0])), np.full((len(operands), len(uses)), len(known))
    for at, one in enumerate(found_of):
        which[tuple(zip(*known[one], strict=True))] = at
    sums = [[(weight, term) for term, weight in terms] for terms, *_ in found_of]
    return Derived(
        sums_of([*sums, [(0.0, ())]], rows),
        [*(rows.of(most) for _, most, _ in found_of), 0],
        tuple((at, *joined) for at, (*_, joined) in enumerate(found_of) if joined),
        which,
    )
