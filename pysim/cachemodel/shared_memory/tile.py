# SPDX-License-Identifier: Apache-2.0
"""A tile in shared memory and the warps' accesses to it: the input of the bank model and of `fix`.

An access names the *elements* of the tile that lanes read or write; the layout gives their places. So the same accesses
can be counted under any layout. Elements are numbered row-major over the tile's shape.

Worked number: a 32 x 32 float tile, rows stored and columns loaded by 32 warps: 32 x 1 + 32 x 32 = 1,056 wavefronts
under row_major((32, 32)), and 32 + 32 = 64, the minimum, with Padding(32, 1).
"""

from math import prod

import msgspec
import numpy as np

from pysim.cachemodel.shared_memory.banks import LANES, Integers, Mask, SharedMemory, instruction
from pysim.cachemodel.shared_memory.layout import Layout, Map, offsets, row_major
from pysim.errors import OperandError

MOST_BYTES = 1 << 18  # of a tile that a user may describe: no GPU gives a thread block more shared memory


class Access(msgspec.Struct, frozen=True, eq=False):
    """n instructions of one kind.

    `index`: the row-major number of each lane's first element, shape (n, 32); `width`: bytes per lane, consecutive
    elements; `active`: which lanes take part, the same shape, None = all; `times`: how often each instruction runs.
    """

    name: str
    index: Integers
    width: int
    store: bool
    active: Mask | None = None
    times: int = 1

    @property
    def instruction(self) -> str:
        """Such as "STS.64"."""
        return instruction(self.width, self.store)


class Tile(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A tile of `shape` elements of `element_bytes`, laid out row-major and then through `maps`, with its accesses."""

    name: str
    about: str
    source: str
    shape: tuple[int, ...]
    element_bytes: int
    accesses: tuple[Access, ...]
    maps: tuple[Map, ...] = ()

    def __post_init__(self) -> None:
        for access in self.accesses:
            _check(self, access)

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def layout(self) -> Layout:
        """Coordinate -> element of shared memory."""
        return row_major(self.shape, *self.maps)

    @property
    def bytes(self) -> int:
        """Shared memory of the tile, padding of the last row included."""
        return self.layout.span() * self.element_bytes


class Tally(msgspec.Struct, frozen=True):
    """The cost of one access, summed over its instructions and repetitions; `worst` is the index of the most expensive instruction."""

    access: str
    instruction: str
    instructions: int
    wavefronts: int
    minimum: int
    worst: int

    @property
    def conflicts(self) -> int:
        """Wavefronts above the minimum."""
        return self.wavefronts - self.minimum


def addresses(tile: Tile, access: Access) -> Integers:
    """The byte offsets of an access under the tile's layout, shape (n, 32); 0 for lanes that are inactive.

    Raises OperandError where the layout separates a lane's consecutive elements.
    """
    table = offsets(tile.layout).ravel()
    active = np.ones(access.index.shape, np.bool_) if access.active is None else access.active
    first = np.where(active, access.index, 0)
    place: Integers = np.where(active, table[first], 0)
    for part in range(1, access.width // tile.element_bytes):
        separated = active & (table[np.where(active, first + part, 0)] != place + part)
        if separated.any():
            row, lane = np.argwhere(separated)[0]
            raise OperandError(
                f"{_who(access, row, lane)}, but element {first[row, lane] + part} does not follow it in memory; "
                f"a layout should keep the {access.width // tile.element_bytes} elements of a lane together"
            )
    return place * tile.element_bytes


def tally(tile: Tile, memory: SharedMemory) -> tuple[Tally, ...]:
    """Wavefronts and minimum of each access of a tile."""
    results = []
    for access in tile.accesses:
        counts = memory.count(addresses(tile, access), access.width, access.store, access.active)
        results.append(
            Tally(
                access.name,
                access.instruction,
                len(access.index) * access.times,
                int(counts.total.sum()) * access.times,
                int(counts.minimum.sum()) * access.times,
                int(counts.conflicts.argmax()),
            )
        )
    return tuple(results)


def _check(tile: Tile, access: Access) -> None:
    """The rules that make an access one of this tile."""
    where = f"{tile.name}: {access.name}"
    if access.index.ndim != 2 or access.index.shape[1] != LANES or not len(access.index):
        raise OperandError(f"{where}: index has the shape {access.index.shape}; it should be (instructions, {LANES})")
    if access.active is not None and access.active.shape != access.index.shape:
        raise OperandError(f"{where}: active has the shape {access.active.shape}; it should be {access.index.shape}")
    if access.width % tile.element_bytes:
        raise OperandError(f"{where}: width {access.width} is not a multiple of an element's {tile.element_bytes} bytes")
    if access.times < 1:
        raise OperandError(f"{where}: times is {access.times}; it should be at least 1")
    last = tile.elements - access.width // tile.element_bytes
    outside = (access.index < 0) | (access.index > last)
    if access.active is not None:
        outside &= access.active
    if outside.any():
        who = _who(access, *np.argwhere(outside)[0])
        raise OperandError(f"{tile.name}: {who}; the tile has the elements 0 to {tile.elements - 1}")


def _who(access: Access, row: int, lane: int) -> str:
    """One lane of one instruction, and its elements."""
    first = access.index[row, lane]
    return f"{access.name}: lane {lane} of instruction {row} wants {access.width} bytes from element {first} on"
