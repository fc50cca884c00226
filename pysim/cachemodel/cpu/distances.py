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


Fixed = tuple[tuple[int, int, float], ...]  # a distance that is so much of operands' footprints in one iteration of loops


class Products(NamedTuple):
    """Which numbers are multiplied: the i-th ones of all products that have so many, which stand in falling order of that, and `order`,
    where each product stands."""

    rounds: tuple[Indices, ...]
    order: Indices


def products_of(products: Sequence[Sequence[int]]) -> Products:
    """Products of numbers of a table, whose row 0 is 1."""
    order = sorted(range(len(products)), key=lambda at: -len(products[at]))
    most = max(1, len(products[order[0]]))
    rounds = [[products[at][place] for at in order if place < len(products[at])] for place in range(most)]
    rounds[0] += [0] * (len(products) - len(rounds[0]))
    return Products(tuple(np.array(one, dtype=np.int64) for one in rounds), np.argsort(order))


def multiplied(values: Array, of: Products) -> Array:
    found = values[of.rounds[0]]
    for places in of.rounds[1:]:
        found[: places.size] *= values[places]
    return found[of.order]


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
    share = 0.5 if use.at_end else 1.0
    return _sum((found, 1.0, ()), (found, -share, (~within,)), (some, 2 * share, (~within,)))


def _distance(use: Use, of: Access) -> Sum:
    """Of an operand between a use and the next."""
    if use.part is not None and (of.inside == use.loop or (of.first is not None and use.loop <= of.first)):
        return {(of.level(of.first if of.first is not None and use.loop <= of.first else use.loop), ()): use.part}
    if use.loop == of.first:
        return {}
    within = of.first is not None and use.loop > of.first
    return _sum((_around(use, use.loop, of), 1.0, (of.first,) if within and of.first else ()))


class Derived(NamedTuple):
    """The distances of the equations above, for any numbers of tiles: sums of terms, a footprint times a weight each.

    Round i of the terms is the i-th one of the first rounds[i] distances, which stand in falling order of their number. A `footprint` is
    that of an operand and a loop, a weight so much of each of `factors`. The distances are at most the footprints `most`; those of `joined`
    (distance, operand, loop) are of neighbouring tiles, which share lines. Of each operand (rows) each use has one, `which`, or -1: none.
    """

    footprints: tuple[Indices, Indices]
    factors: Products
    weights: Array
    rounds: tuple[int, ...]
    weight: Indices
    footprint: Indices
    most: Indices
    joined: tuple[tuple[int, int, int], ...]
    which: Indices


@lru_cache(maxsize=64)
def derived(uses: tuple[Use | Fixed, ...], operands: tuple[Access, ...], loops: int) -> Derived:
    known: dict[tuple[Any, ...], list[tuple[int, int]]] = {}  # by terms, operand, the most, and the loop of joined tiles
    for (number, use), (row, of) in itertools.product(enumerate(uses), enumerate(operands)):
        terms: dict[int, Weight] = {}
        for (level, others), weight in (
            _distance(use, of) if isinstance(use, Use) else {(level, ()): weight for at, level, weight in use if at == row}
        ).items():
            terms[level] = (*terms.get(level, ()), (others, weight))
        if terms:
            loop = use.loop if isinstance(use, Use) else None
            joined = loop in of.moved and [*terms] == [loop] and terms[loop] != (((), 1.0),)
            most = -1 if loop is None else of.level(loop - 1)
            known.setdefault((tuple(terms.items()), row, most, loop if joined else None), []).append((row, number))
    found, which = sorted(known, key=lambda one: -len(one[0])), np.full((len(operands), len(uses)), -1)
    for at, one in enumerate(found):
        which[tuple(zip(*known[one], strict=True))] = at
    rounds = [[(row, *terms[at]) for terms, row, *_ in found if at < len(terms)] for at in range(len(found[0][0]))]
    terms_of = [*itertools.chain(*rounds)]
    footprints = [*dict.fromkeys([(row, level + 1) for row, level, _ in terms_of] + [(row, most + 1) for _, row, most, _ in found])]
    weights = [*dict.fromkeys(weight for _, _, weight in terms_of)]
    rows, levels = np.array(footprints).T
    factors = [*dict.fromkeys(others for weight in weights for others, _ in weight)]
    return Derived(
        (rows, levels),
        products_of([[1 + at if at >= 0 else 1 + loops + ~at for at in which] for which in factors] or [[0]]),
        np.array([[dict(weight).get(others, 0.0) for others in factors] for weight in weights]),
        tuple(map(len, rounds)),
        np.array([weights.index(weight) for _, _, weight in terms_of]),
        np.array([footprints.index((row, level + 1)) for row, level, _ in terms_of]),
        np.array([footprints.index((row, most + 1)) for _, row, most, _ in found]),
        tuple((at, row, loop) for at, (_, row, _, loop) in enumerate(found) if loop is not None),
        which,
    )
