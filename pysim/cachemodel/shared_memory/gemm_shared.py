# SPDX-License-Identifier: Apache-2.0
"""Shared-memory instructions of the SIMT products: the address of each lane, and the wavefronts of a k-iteration.

The formulas are those of `native/cuda/mainloop/simt/copy.cuh` and `mainloop/simt/kernel.cuh`. A unit is one element; for s8 it is four
elements along k. In a stage, unit k of row (column) x of an operand of `extent` rows is at

    byte(k, x) = ((k extent + x) size) ^ swizzle(k),    swizzle(k) = (k / chunk mod lines) 128 / lines

`chunk`: units of k in 16 bytes of an operand whose k is contiguous; `lines`: such chunks in a k-iteration. Threads copy 16 bytes at a time:
with k contiguous they store each unit of k separately, otherwise all 16 bytes at once. For each k a warp then reads vectors of its rows of
A and of its columns of B; adjacent lanes share vectors.

Assumed: the tile is inside its operands, which are aligned to 16 bytes. Not described: the epilogue. Counts are those of one k-iteration of
one block; products whose k differs by n k-iterations differ by n times them.

Worked number, f32 block 128x128x8, warps 64x32, threads 8x8: 8 units x (2 + 2) LDS.128 x 8 warps = 256 instructions of 2 wavefronts.
"""

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.shared_memory.banks import LANES, SharedMemory
from pysim.errors import OperandError
from pysim.registry.cuda import Tiles

Integers = NDArray[np.int64]


class _Type(msgspec.Struct, frozen=True):
    """Layout of a dtype (`simt_types.cuh`). `lines_k`, `lines_out`: rows that 16 bytes are read from, where k or the other dimension is
    contiguous."""

    element_bytes: int
    unit_bytes: int
    depth: int
    chunk: int
    lines_k: int
    lines_out: int


_TYPES = {
    "f32": _Type(4, 4, 1, 4, 1, 1),
    "f64": _Type(8, 8, 1, 2, 1, 1),
    "f16": _Type(2, 2, 1, 4, 2, 1),
    "s8": _Type(1, 4, 4, 4, 1, 4),
}


class Access(msgspec.Struct, frozen=True, eq=False):
    """Instructions of one kind in a k-iteration: `addresses` (n, 32), bytes from the operand's start in a stage; `active` (n, 32) lanes.

    `asynchronous`: asynchronous copies from device memory, which hardware counters do not count as stores.
    """

    operand: str
    store: bool
    asynchronous: bool
    width: int
    addresses: Integers
    active: NDArray[np.bool_]


class Wavefronts(msgspec.Struct, frozen=True):
    """Instructions, wavefronts, and the minimum for the same lanes."""

    instructions: int
    total: int
    minimum: int


def accesses(tiles: Tiles, trans_a: bool, trans_b: bool) -> tuple[Access, ...]:
    """The shared-memory accesses of one block in one k-iteration. Raises OperandError for tensor-core tiles."""
    if tiles.tensor:
        raise OperandError(f"tiles on the pipe {tiles.pipe} are not those of a SIMT kernel")
    k_inner = {"A": not trans_a, "B": bool(trans_b)}
    return tuple(access for operand in "AB" for access in (*_copies(tiles, operand, k_inner[operand]), *_fragments(tiles, operand)))


def wavefronts(tiles: Tiles, trans_a: bool, trans_b: bool, memory: SharedMemory | None = None) -> dict[str, Wavefronts]:
    """Wavefronts of one k-iteration of one block, by the names of `counted`."""
    return counted([(accesses(tiles, trans_a, trans_b), 1)], memory)


def counted(parts: Iterable[tuple[Iterable[Access], int]], memory: SharedMemory | None = None) -> dict[str, Wavefronts]:
    """Wavefronts of (accesses, repetitions), as "loads", "stores" and "copies" (asynchronous stores)."""
    sums = {kind: [0, 0, 0] for kind in ("loads", "stores", "copies")}
    for part, times in parts:
        for access in part:
            counts = (memory or SharedMemory()).count(access.addresses, access.width, access.store, access.active)
            kind = "copies" if access.asynchronous else "stores" if access.store else "loads"
            issued = int(access.active.any(axis=1).sum())
            for i, number in enumerate((issued, int(counts.total.sum()), int(counts.minimum.sum()))):
                sums[kind][i] += times * number
    return {kind: Wavefronts(*numbers) for kind, numbers in sums.items()}


def byte_of(tiles: Tiles, operand: str, k: Integers, x: Integers) -> Integers:
    """byte(k, x) as in the head of this file, of operand "A" or "B"."""
    kind, extent = _TYPES[tiles.dtype], _extent(tiles, operand)
    lines = tiles.depth // kind.depth // kind.chunk
    swizzle = k // kind.chunk % lines * (128 // lines) if tiles.spread else 0
    return ((k * extent + x) * kind.unit_bytes) ^ swizzle


def _extent(tiles: Tiles, operand: str) -> int:
    return tiles.rows if operand == "A" else tiles.columns


def _copies(tiles: Tiles, operand: str, k_inner: bool) -> Iterator[Access]:
    """The stores of an operand to its stage, or asynchronous copies with 3 stages or more."""
    kind, extent, threads = _TYPES[tiles.dtype], _extent(tiles, operand), tiles.math_threads
    pieces = kind.lines_k if k_inner else kind.lines_out
    inner = 16 // pieces // kind.element_bytes
    across = (tiles.depth if k_inner else extent) // inner
    chunks = extent * tiles.depth * kind.element_bytes // 16
    chunk = np.arange(-(-chunks // threads) * threads).reshape(-1, LANES)
    at_inner, at_line = chunk % across * inner, chunk // across * pieces
    k, x = (at_inner, at_line) if k_inner else (at_line, at_inner)
    active = chunk < chunks
    warps = active.any(axis=1)
    k, x, active = k[warps] // kind.depth, x[warps], active[warps]
    width = 16 // kind.chunk if k_inner else 16
    split = width if tiles.vectors else min(width, 4)
    asynchronous = tiles.stages >= 3
    for i in range(kind.chunk if k_inner else 1):
        start = byte_of(tiles, operand, np.where(active, k + i, 0), np.where(active, x, 0))
        for offset in range(0, width, split):
            yield Access(operand, True, asynchronous, split, start + offset, active)


def _fragments(tiles: Tiles, operand: str) -> Iterator[Access]:
    """The vectors that warps load, one unit of k after another."""
    kind = _TYPES[tiles.dtype]
    lanes_m, lanes_n = tiles.warp_rows // tiles.thread_rows, tiles.warp_columns // tiles.thread_columns
    low = 1 if lanes_n > 1 else 0
    lane = np.arange(LANES)
    up = lane >> low
    lane_of = {"A": up % lanes_m, "B": (lane & low) | (up // lanes_m << low)}[operand]
    warps_m = tiles.rows // tiles.warp_rows
    warp = np.arange(tiles.math_threads // LANES)
    first = warp % warps_m * tiles.warp_rows if operand == "A" else warp // warps_m * tiles.warp_columns
    count, lanes = (tiles.thread_rows, lanes_m) if operand == "A" else (tiles.thread_columns, lanes_n)
    vector = min(count, 16 // kind.unit_bytes)
    width = vector * kind.unit_bytes
    split = width if tiles.vectors else kind.unit_bytes
    units = tiles.depth // kind.depth
    k, of_warp, of_vector = np.meshgrid(np.arange(units), first, np.arange(count // vector), indexing="ij")
    x = (of_warp + of_vector * lanes * vector).reshape(-1, 1) + lane_of * vector
    start = byte_of(tiles, operand, np.broadcast_to(k.reshape(-1, 1), x.shape), x)
    for offset in range(0, width, split):
        yield Access(operand, False, False, split, start + offset, np.ones(x.shape, np.bool_))
