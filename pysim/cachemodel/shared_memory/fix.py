# SPDX-License-Identifier: Apache-2.0
"""Search for the layout of a tile whose accesses take the fewest wavefronts, and among those the least memory.

Candidates are the row-major layout and functions applied to it, each over all its parameters:

    padding    after every row, every group of rows or every 2^k elements; or after two of the tile's dimensions
    swizzle    XOR of 1 to 5 index bits within a row of banks with higher bits; no extra memory
    rotation   of segments by a multiple of the segment's number; no extra memory
    combined   where conflicts remain: each function that helped, followed by every swizzle or by a padding that helped

Parameters are multiples of the widest access, so that a lane's bytes stay together and aligned. Candidates of a kind are tried in the order
of their memory. A candidate is kept if it takes fewer wavefronts than all before it: the kept ones are the kind's frontier of wavefronts
against memory. A candidate is dropped once its count so far plus the minimum of the rest is no better. This loses nothing, since the
minimum does not depend on the layout.

Each option carries a proof that looks at every element, independent of the search: no two elements share a place, all are within the stated
memory, and every lane's bytes are together and aligned.

Users describe a tile in a file of `pysim.cachemodel.shared_memory.tilefile`, whose docstring has a worked example. Worked number: that
tile without its layout takes 1,056 wavefronts and 4,096 bytes, with padding(32,1) 64 and 4,224, with swizzle(5,0,5) 64 and 4,096.
"""

from collections.abc import Iterator
from math import prod
from typing import Literal

import msgspec
import numpy as np

from pysim.cachemodel.shared_memory.banks import SharedMemory, checked
from pysim.cachemodel.shared_memory.layout import Index, Map, Padding, Rotation, Swizzle, expression, offsets
from pysim.cachemodel.shared_memory.tile import Access, Tally, Tile, addresses, tally

Kind = Literal["present", "none", "padding", "swizzle", "rotation", "combined"]
_KINDS: tuple[Kind, ...] = ("present", "none", "padding", "swizzle", "rotation", "combined")  # simplest first
_SAMPLE = 8  # instructions of each access that are counted first, to drop bad candidates early


class Proof(msgspec.Struct, frozen=True):
    """The result of looking at every element's place. All numbers count elements; `vectors`: lane accesses checked."""

    elements: int
    places: int
    lowest: int
    highest: int
    span: int
    vectors: int

    @property
    def bijective(self) -> bool:
        """Whether every element has a place of its own."""
        return self.places == self.elements

    @property
    def in_bounds(self) -> bool:
        """Whether every place is within the tile's memory."""
        return self.lowest >= 0 and self.highest < self.span


class Option(msgspec.Struct, frozen=True):
    """A layout and its cost: wavefronts of all accesses, shared memory in bytes, and the proof that it is valid."""

    kind: Kind
    maps: tuple[Map, ...]
    wavefronts: int
    minimum: int
    bytes: int
    expression: str
    proof: Proof
    tallies: tuple[Tally, ...]

    @property
    def conflicts(self) -> int:
        """Wavefronts above the minimum; 0 means that no layout is faster."""
        return self.wavefronts - self.minimum


class Fixes(msgspec.Struct, frozen=True):
    """The tile's present layout, the options from best to worst, and the number of candidates tried."""

    present: Option
    options: tuple[Option, ...]
    considered: int

    @property
    def best(self) -> Option:
        """Fewest wavefronts, then least memory, then the simplest kind."""
        return self.options[0]


def fix(tile: Tile, memory: SharedMemory) -> Fixes:
    """The ranked layouts for a tile's accesses under a shared memory's rule."""
    plain = msgspec.structs.replace(tile, maps=())
    kept = [option(plain, (), "none", memory)]
    none, considered = kept[0], 1
    single = _candidates(plain, memory)
    for kind, candidates in single.items():
        better, tried = _frontier(plain, memory, none, kind, candidates)
        kept += better
        considered += tried
    if all(one.conflicts for one in kept):
        second = [*single["swizzle"], *(one.maps for one in kept if one.kind == "padding")]
        pairs = [(*one.maps, *maps) for one in kept if one.maps for maps in second]
        best = min(kept, key=_rank)
        better, tried = _frontier(plain, memory, best, "combined", _by_memory(plain, pairs))
        kept += better
        considered += tried
    return Fixes(option(tile, tile.maps, "present", memory), tuple(sorted(kept, key=_rank)), considered)


def _rank(one: Option) -> tuple[int, int, int]:
    return one.wavefronts, one.bytes, _KINDS.index(one.kind)


def _frontier(tile: Tile, memory: SharedMemory, start: Option, kind: Kind, candidates: list[tuple[Map, ...]]) -> tuple[list[Option], int]:
    """The candidates that take fewer wavefronts than `start` and all before them, and the number tried."""
    kept: list[Option] = []
    best = start.wavefronts
    for tried, maps in enumerate(candidates):
        if best == start.minimum:
            return kept, tried
        total = _total(tile, maps, memory, best, start.minimum)
        if total is not None:
            best = total
            kept.append(option(tile, maps, kind, memory))
    return kept, len(candidates)


def option(tile: Tile, maps: tuple[Map, ...], kind: Kind, memory: SharedMemory) -> Option:
    """One layout of the tile, counted in full and proven."""
    tile = msgspec.structs.replace(tile, maps=maps)
    tallies = tally(tile, memory)
    return Option(
        kind=kind,
        maps=maps,
        wavefronts=sum(one.wavefronts for one in tallies),
        minimum=sum(one.minimum for one in tallies),
        bytes=tile.bytes,
        expression=expression(maps, "i"),
        proof=prove(tile),
        tallies=tallies,
    )


def prove(tile: Tile) -> Proof:
    """Look at every element and every lane's bytes. Raises OperandError where a lane's bytes are torn or misaligned."""
    places = np.unique(offsets(tile.layout))
    vectors = 0
    for access in tile.accesses:
        checked(addresses(tile, access), access.width, access.active)
        vectors += access.index.size if access.active is None else int(access.active.sum())
    return Proof(tile.elements, len(places), int(places[0]), int(places[-1]), tile.layout.span(), vectors)


def _total(tile: Tile, maps: tuple[Map, ...], memory: SharedMemory, best: int, minimum: int) -> int | None:
    """The wavefronts of all accesses under `maps`, or None as soon as they cannot be fewer than `best`."""
    for sample in (_SAMPLE, None):
        total = minimum
        for access in tile.accesses:
            step = max(1, len(access.index) // sample) if sample else 1
            total += _conflicts(access, maps, tile.element_bytes, memory, slice(None, None, step))
            if total >= best:
                return None
    return total


def _conflicts(access: Access, maps: tuple[Map, ...], element_bytes: int, memory: SharedMemory, part: slice) -> int:
    """Conflicts of part of an access's instructions, from the places of their elements only."""
    active = None if access.active is None else access.active[part]
    place: Index = access.index[part] if active is None else np.where(active, access.index[part], 0)
    for function in maps:
        place = function(place)
    counts = memory.count(np.asarray(place) * element_bytes, access.width, access.store, active)
    return int(counts.conflicts.sum()) * access.times


def _candidates(tile: Tile, memory: SharedMemory) -> dict[Kind, list[tuple[Map, ...]]]:
    """Every candidate by kind, in the order of memory and then of the parameters."""
    unit = max(access.width for access in tile.accesses) // tile.element_bytes
    row = max(unit, memory.banks * memory.bank_bytes // tile.element_bytes)
    return {
        "padding": _by_memory(tile, list(_paddings(tile, unit, row))),
        "swizzle": _by_memory(tile, list(_swizzles(tile, unit, row))),
        "rotation": _by_memory(tile, list(_rotations(tile, unit, row))),
    }


def _by_memory(tile: Tile, candidates: list[tuple[Map, ...]]) -> list[tuple[Map, ...]]:
    def span(maps: tuple[Map, ...]) -> int:
        elements = tile.elements
        for function in maps:
            elements = function.span(elements)
        return elements

    return sorted(candidates, key=span)


def _paddings(tile: Tile, unit: int, row: int) -> Iterator[tuple[Map, ...]]:
    rows = [size for size in _rows(tile) if size % unit == 0]
    for every in sorted({*rows, *_powers(unit, tile.elements)}):
        for extra in range(unit, row, unit):
            yield (Padding(every, extra),)
    for inner in rows:
        for outer in (size for size in rows if size > inner):
            for first in _powers(unit, row):
                for second in _powers(unit, row):
                    yield (Padding(inner, first), Padding(outer // inner * (inner + first), second))


def _swizzles(tile: Tile, unit: int, row: int) -> Iterator[tuple[Map, ...]]:
    if row.bit_count() != 1 or unit.bit_count() != 1:
        return
    low, high, top = unit.bit_length() - 1, row.bit_length() - 1, (tile.elements - 1).bit_length()
    for bits in range(1, high - low + 1):
        for base in range(low, high - bits + 1):
            for shift in range(bits, top - base):
                yield (Swizzle(bits, base, shift),)


def _rotations(tile: Tile, unit: int, row: int) -> Iterator[tuple[Map, ...]]:
    for length in sorted({tile.shape[-1], row, row // 2}):
        if length % unit == 0 and tile.elements % length == 0:
            for step in range(unit, min(length, row), unit):
                for every in _powers(1, min(32, tile.elements // length)):
                    yield (Rotation(length, step, every),)


def _rows(tile: Tile) -> list[int]:
    """Elements of a row, of a plane, and so on: the strides of all dimensions but the last."""
    return sorted({prod(tile.shape[mode:]) for mode in range(1, len(tile.shape))} - {1, tile.elements})


def _powers(unit: int, limit: int) -> list[int]:
    """unit, 2 unit, 4 unit, ... below the limit."""
    return [unit << power for power in range(limit.bit_length()) if unit << power < limit]
