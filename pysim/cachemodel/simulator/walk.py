# SPDX-License-Identifier: Apache-2.0
"""A plan's trace from the description of its loops (`cachemodel.cpu.reuse.loops`): every touch in the order of the loops, as addresses.

A description says how many bytes of each operand a tile has, not where they lie. Here the data of one touch of the innermost kind is a
*cell* of consecutive bytes, cells follow one another in the order of the operand's dimensions, and buffers follow one another, each from a
page on. So a trace shows what the closed forms derive: reuse distances, partial sets at the edges, conflicts in sets of a real cache. It
does not show what no description has: conflicts of planes that lie a power of two apart, and loads of the same line by several
instructions. An access here is what one touch moves of one cell. Operands without a name only occupy cache in the model, and are left out.

Nests of one run follow one another. If all of them begin with a loop over images, they do so image by image, as the library runs them.

Worked number: 7 kept tiles of 1,000 bytes and 4 streamed tiles of 10, both touched inside: 28 pairs of touches, 28,280 bytes.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.cpu.reuse.loops import Extent, LoopNest, Number, Operand
from pysim.cachemodel.simulator.hierarchy import OPERANDS, Chunk, Hierarchy, Result
from pysim.errors import PlanError

PAGE = 4096  # bytes; every buffer starts on a page
MOST_AT_ONCE = 1 << 16  # iterations of loops that are laid out as arrays together
IMAGES = "images"
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


def number(value: Number) -> float:
    """A number of the only schedule of a nest."""
    return float(np.ravel(value)[0])


class Axis(NamedTuple):
    """An operand's bytes (or rows) along a dimension: those of an `Extent`, in cells of `cell`."""

    name: str
    tile: float  # from one tile to the next
    first: float  # of one tile alone
    overlap: float
    limit: float
    cell: float

    @property
    def cells(self) -> int:
        return max(1, int(np.ceil(self.limit / self.cell - 1e-9)))

    def span(self, start: Integers, stop: Integers) -> tuple[Floats, Floats]:
        """Begin and end of tiles start..stop. Memory that is filled again and again begins anew at its limit."""
        count = (stop - start).astype(np.float64)
        size = np.minimum(np.minimum(count * self.first, self.overlap + count * self.tile), self.limit)
        begin = np.asarray(start * self.tile, np.float64)
        begin = np.where(begin > self.limit * (1 - 1e-9), np.mod(begin, self.limit), begin)
        end: Floats = np.minimum(begin + size, self.limit)
        return np.asarray(begin), end


class Buffer(NamedTuple):
    """Where the operand `name` lies: from byte `start` on, as one nest sees it, with its share of a cell that a touch has."""

    axes: tuple[Axis, ...]
    start: int
    tag: int

    @property
    def cell_bytes(self) -> float:
        return float(np.prod([axis.cell for axis in self.axes]))

    @property
    def size_bytes(self) -> int:
        return int(np.ceil(self.cell_bytes * np.prod([float(axis.cells) for axis in self.axes])))


class Touches(NamedTuple):
    """Touches of one operand in any order: the place of each in the order of the run, its first byte and its size."""

    place: Integers
    addresses: Integers
    sizes: Integers
    written: bool
    tag: int


def buffers(nests: Sequence[LoopNest]) -> list[dict[str, Buffer]]:
    """The buffers of each nest; an operand with the same name is the same buffer in all of them."""
    axes = [{name: _axes(nest, name) for name in _named(nest)} for nest in nests]
    names = list(dict.fromkeys(name for one in axes for name in one))
    if len(names) >= len(OPERANDS):
        raise PlanError(f"a run with {len(names)} buffers is not simulated; at most {len(OPERANDS) - 1} are told apart")
    sizes = [max(Buffer(one[name], 0, 0).size_bytes for one in axes if name in one) for name in names]
    starts = itertools.accumulate((-(-size // PAGE) * PAGE for size in sizes), initial=PAGE)
    places = {name: (start, tag) for tag, (name, start) in enumerate(zip(names, starts, strict=False), start=1)}
    return [{name: Buffer(own, *places[name]) for name, own in one.items()} for one in axes]


def _named(nest: LoopNest) -> list[str]:
    rows = (row for row, one in enumerate(nest.operands) if one.name and number(nest.footprint(-1, row)) > 0)
    return list(dict.fromkeys(nest.operands[row].name for row in rows))


def _axes(nest: LoopNest, name: str) -> tuple[Axis, ...]:
    """The axes of an operand. A cell has as many tiles as the smallest touch."""
    rows = [row for row, one in enumerate(nest.operands) if one.name == name and number(nest.footprint(-1, row)) > 0]
    extents = nest.operands[rows[0]].extents
    found = []
    for along, extent in extents.items():
        tiles = min(number(nest.tiles(along)[nest.accesses[row].inside + 1]) if along in nest.total else 1.0 for row in rows)
        found.append(_axis(along, extent, max(1.0, tiles)))
    return tuple(found)


def _axis(name: str, extent: Extent, tiles: float) -> Axis:
    limit, tile = number(extent.limit), number(extent.per_tile)
    return Axis(name, tile, number(extent.tile), number(extent.overlap), limit, min(limit, tiles * tile) or limit)


# The order of the loops


class _Spans(NamedTuple):
    """Iterations of a loop, one column each: the tiles of every dimension that each has, and the iteration it is of every loop so far."""

    tiles: dict[str, tuple[Integers, Integers]]
    numbers: tuple[Integers, ...]

    @property
    def iterations(self) -> int:
        return int(next(iter(self.tiles.values()))[0].size)

    def only(self, at: int) -> "_Spans":
        """One of the iterations."""
        tiles = {name: (first[[at]], last[[at]]) for name, (first, last) in self.tiles.items()}
        return _Spans(tiles, tuple(of[[at]] for of in self.numbers))

    def inside(self, dimension: str, tiles: int) -> "tuple[_Spans, Integers]":
        """The iterations of a loop in each of these, and how many each has."""
        start, stop = self.tiles[dimension]
        trips = -((start - stop) // tiles)
        of = np.repeat(np.arange(start.size), trips)
        digit = np.arange(of.size) - np.repeat(np.cumsum(trips) - trips, trips)
        begin = start[of] + digit * tiles
        inner = {name: (first[of], last[of]) for name, (first, last) in self.tiles.items()}
        inner[dimension] = begin, np.minimum(begin + tiles, inner[dimension][1])
        return _Spans(inner, (*(one[of] for one in self.numbers), digit)), trips


def _whole(nest: LoopNest, image: int | None) -> _Spans:
    spans = {name: (np.zeros(1, np.int64), np.array([int(number(count))])) for name, count in nest.total.items()}
    if image is not None and IMAGES in spans:
        spans[IMAGES] = np.array([image]), np.array([image + 1])
    return _Spans(spans, ())


def walk(nest: LoopNest, places: Mapping[str, Buffer], image: int | None = None) -> Iterator[Chunk]:
    """The trace of one nest, or of one image of it, in chunks."""
    yield from _walk(nest, places, 0, _whole(nest, image))


def _walk(nest: LoopNest, places: Mapping[str, Buffer], loop: int, spans: _Spans) -> Iterator[Chunk]:
    if _iterations(nest, loop, spans) <= MOST_AT_ONCE or loop == len(nest.loops) - 1:
        yield from _ordered(_all(nest, places, loop, spans))
        return
    of = nest.loops[loop]
    inner, _ = spans.inside(of.dimension, int(number(of.tiles)))
    for at in range(inner.iterations):
        one = inner.only(at)
        for after in (False, True):
            yield from _ordered(_touched(nest, places, loop, one, np.zeros(1, np.int64), after))
            if not after:
                yield from _walk(nest, places, loop + 1, one)


def _iterations(nest: LoopNest, loop: int, spans: _Spans) -> float:
    """At most how many iterations the innermost loop has in these spans."""
    left = {name: float((last - first).sum()) for name, (first, last) in spans.tiles.items()}
    total = 1.0
    for of in nest.loops[loop:]:
        trips = -(-left[of.dimension] // int(number(of.tiles)))
        total, left[of.dimension] = total * max(1.0, trips), number(of.tiles)
    return total


def _all(nest: LoopNest, places: Mapping[str, Buffer], loop: int, spans: _Spans) -> Iterator[Touches]:
    """Touches in the loops from `loop` on. The place of a touch counts innermost iterations, and before and after within each."""
    levels, trips = [], []
    for of in nest.loops[loop:]:
        spans, count = spans.inside(of.dimension, int(number(of.tiles)))
        levels.append(spans)
        trips.append(count)
    depth, leaves = len(nest.loops), np.ones(spans.iterations, np.int64)
    for at in range(depth - 1, loop - 1, -1):
        ends = np.cumsum(leaves)
        for after in (False, True):
            place = (ends - 1 if after else ends - leaves) * 2 * (depth + 1)
            place += depth + 1 + depth - at if after else at
            yield from _touched(nest, places, at, levels[at - loop], place, after)
        around = np.repeat(np.arange(trips[at - loop].size), trips[at - loop])
        leaves = np.bincount(around, weights=leaves, minlength=trips[at - loop].size).astype(np.int64)


def _touched(nest: LoopNest, places: Mapping[str, Buffer], loop: int, spans: _Spans, place: Integers, after: bool) -> Iterator[Touches]:
    """Touches in the bodies of iterations of one loop, before or after the loops in it."""
    for operand, access in zip(nest.operands, nest.accesses, strict=True):
        if access.inside != loop or operand.after_loops != after or operand.name not in places:
            continue
        rows = np.arange(spans.iterations) if access.only_first < 0 else np.flatnonzero(spans.numbers[access.only_first] == 0)
        if rows.size:
            yield _laid_out(operand, places[operand.name], {name: (a[rows], b[rows]) for name, (a, b) in spans.tiles.items()}, place[rows])


def _laid_out(operand: Operand, buffer: Buffer, tiles: Mapping[str, tuple[Integers, Integers]], place: Integers) -> Touches:
    """The pieces of touches: one for each cell that a touch meets."""
    shape, cell = (1,) * len(buffer.axes), np.zeros(place.shape, np.float64)
    part, within = np.ones(place.shape), np.zeros(place.shape)
    for at, axis in enumerate(buffer.axes):
        begin, end = axis.span(*tiles[axis.name]) if axis.name in tiles else (np.zeros(place.shape), np.full(place.shape, axis.limit))
        first, last = np.floor(begin / axis.cell + 1e-9), np.ceil(end / axis.cell - 1e-9)
        most = int(max(1.0, (last - first).max()))
        own = (first[:, None] + np.arange(most)).reshape(-1, *shape[:at], most, *shape[at + 1 :])
        begin, end = (one.reshape(-1, *shape) for one in (begin, end))
        low, high = np.maximum(begin / axis.cell - own, 0.0), np.minimum(end / axis.cell - own, 1.0)
        width = np.maximum(0.0, high - low)
        cell, part, within = (one.reshape(-1, *shape) if one.ndim == 1 else one for one in (cell, part, within))
        cell, within, part = cell * axis.cells + own % axis.cells, within + low * part, part * width
    if operand.part is not None:
        part = part * number(operand.part)
    addresses = np.floor((cell + within) * buffer.cell_bytes)
    sizes = np.ceil(part * buffer.cell_bytes - 1e-6)
    where = np.broadcast_to(place.reshape(-1, *shape), sizes.shape).ravel()
    kept = np.flatnonzero(sizes.ravel() > 0)
    columns = where[kept], buffer.start + addresses.ravel()[kept].astype(np.int64), sizes.ravel()[kept].astype(np.int64)
    return Touches(*columns, operand.written, buffer.tag)


def _ordered(found: Iterator[Touches]) -> Iterator[Chunk]:
    """Touches as one chunk in the order of their places; touches of one place in the order of the operands."""
    touches = list(found)
    if not touches:
        return
    place, addresses, sizes = (np.concatenate([one[at] for one in touches]) for at in range(3))
    writes, tags = (np.concatenate([np.full(one.place.size, one[at], np.uint8) for one in touches]) for at in (3, 4))
    order = np.argsort(place, kind="stable")
    yield Chunk(addresses[order], sizes[order].astype(np.int32), writes[order], tags[order])


# Runs


def trace_of(nests: Sequence[LoopNest]) -> Iterator[Chunk]:
    """The trace of one run of nests."""
    places = buffers(nests)
    counts = {int(number(nest.total[IMAGES])) if nest.loops[0].dimension == IMAGES else 1 for nest in nests}
    together = len(nests) == 1 or len(counts) > 1 or counts == {1}
    for image in [None] if together else range(counts.pop()):
        for nest, of in zip(nests, places, strict=True):
            yield from walk(nest, of, image)


def lines(nests: Sequence[LoopNest], line_bytes: int) -> float:
    """About how many lines a run touches, touches of the same line counted each time."""
    total = 0.0
    for nest in nests:
        for row, access in enumerate(nest.accesses):
            times = np.prod([number(loop.trips) for at, loop in enumerate(nest.loops[: access.inside + 1]) if at != access.only_first])
            total += number(nest.accessed(row)) / line_bytes + float(times)
    return total


def simulate(nests: Sequence[LoopNest], hierarchy: Hierarchy, *, warm: bool = False) -> tuple[Result, dict[str, int]]:
    """Counts of one run, and the tag of each buffer's accesses. `warm`: of the second of two runs."""
    if warm:
        hierarchy.run(trace_of(nests))
    tags = {name: of.tag for one in buffers(nests) for name, of in one.items()}
    return hierarchy.run(trace_of(nests), warm=warm), tags
