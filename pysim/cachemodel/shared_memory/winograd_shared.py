# SPDX-License-Identifier: Apache-2.0
"""Shared-memory accesses of a fused Winograd convolution: what the warps of a block load, store and copy in a k-iteration of 8 channels.

The formulas are those of `native/cuda/conv/winograd/fused2.cuh`. A block of F(2x2) has 64 filters and 32 tiles in 16 planes, and 8 warps.
In a stage, of plane p and channel c,

    filter slot s   at word (p 8 + c) 64 + s
    tile slot x     at word 8192 + (p 8 + c) 32 + (x ^ swizzle(c)),    swizzle(c) = 4 c under NHWC, 0 under NCHW

In a k-iteration:  copies     transformed filters, asynchronous, 16 bytes a thread
                   patches    a thread stores the 16 planes of one tile and channel; lanes are tiles (NCHW), or 8 channels of 4 tiles (NHWC)
                   fragments  16-byte loads: lanes (l, l ^ 1) share filters, lanes (l, l ^ 2) share tiles

Fused F(4x4) (`native/cuda/conv/winograd/fused4.cuh`) has 32 filters, 32 tiles, 36 planes and 16 warps, and the same kinds of accesses.
Tile x of plane p and channel c is at word p 296 + c 36 + x of a stage, filter f at word 10656 + (p 8 + c) 32 + f; shuffles between lanes
are not counted. Variant `single` also transforms its filters, then at word 10656 + (p 8 + c) 36 + f. In a k-iteration it copies weights,
4 bytes a thread, to word 72 f + i of a buffer behind both stages; warps of 4 filters and 8 channels load and transform them.

Whole launches with their epilogue: `lab/benchmarks/cuda/winograd_launch.py`, which is compared with Nsight Compute's counters.

Worked number: a k-iteration of F(2x2) copies 16 planes x 8 channels x 64 filters = 8192 words, 64 instructions of 32 lanes x 4 words, of 4
wavefronts each.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.shared_memory.banks import LANES
from pysim.cachemodel.shared_memory.gemm_shared import Access
from pysim.errors import OperandError
from pysim.registry.cuda import ConvKernel

Integers = NDArray[np.int64]

PLANES, WARPS = 16, 8
F2_VARIANTS = ("reference", "sts64", "compact")
F4_VARIANTS = ("fused", "drained", "single")  # the stores of drained accumulators are not described
F4_PLANES, F4_WARPS, F4_FILTERS, F4_CHANNELS, F4_PADDED, F4_PLANE_PITCH = 36, 16, 32, 8, 36, 296
LANE = np.arange(LANES)
_BH = LANE % 2 + LANE // 16 * 2


def iteration(kernel: ConvKernel, nhwc: bool) -> tuple[Access, ...]:
    """The shared-memory accesses of one block in one k-iteration of 8 channels. Raises OperandError for another kernel."""
    check(kernel)
    if kernel.variant in F4_VARIANTS:
        filters = _f4_weights(kernel, nhwc) if kernel.variant == "single" else _copies(kernel)
        return (*filters, *_f4_patches(nhwc), *_f4_fragments(kernel, nhwc))
    return (*_copies(kernel), *_patches(kernel, nhwc), *_fragments(kernel, nhwc))


def check(kernel: ConvKernel) -> None:
    if kernel.outputs == 1 or kernel.variant not in (*F2_VARIANTS, *F4_VARIANTS):
        raise OperandError(f"{kernel.name} is not a fused Winograd kernel (variants {', '.join((*F2_VARIANTS, *F4_VARIANTS))})")


def access(
    operand: str, store: bool, width: int, words: Integers, active: NDArray[np.bool_] | None = None, asynchronous: bool = False
) -> Access:
    lanes: NDArray[np.bool_] = np.ones(words.shape, np.bool_)
    if active is not None:
        lanes = lanes & active
    return Access(operand, store, asynchronous, width, 4 * words.reshape(-1, LANES), lanes.reshape(-1, LANES))


def loops(*sizes: int) -> list[Integers]:
    """Loop variables that broadcast against the lanes, as arrays of shape (*sizes, 1)."""
    return [grid[..., None] for grid in np.indices(sizes)]


def _copies(kernel: ConvKernel) -> Iterator[Access]:
    planes = (kernel.outputs + 2) ** 2
    (instruction,) = loops(planes * kernel.block_k * kernel.block_filters // (4 * LANES))
    tiles = F4_PLANES * F4_PLANE_PITCH if kernel.variant in F4_VARIANTS else 0  # which precede them
    yield access("filters", True, 16, tiles + 4 * (instruction * LANES + LANE), asynchronous=True)


def _patches(kernel: ConvKernel, nhwc: bool) -> Iterator[Access]:
    plane, warp = loops(PLANES, WARPS)
    channel = LANE % 8 + 0 * warp if nhwc else warp + 0 * LANE
    tile = 16 * (LANE // 16) + 2 * warp + LANE // 8 % 2 if nhwc else LANE + 0 * warp
    place = tile % 16 // 2 * 4 + tile // 16 * 2 + 1 - tile % 2
    yield access("patches", True, 4, _tile_word(kernel, nhwc, plane, channel, place))


def _tile_word(kernel: ConvKernel, nhwc: bool, plane: Integers, channel: Integers, place: Integers) -> Integers:
    filters = PLANES * kernel.block_k * kernel.block_filters
    return filters + (plane * kernel.block_k + channel) * kernel.block_windows + (place ^ (4 * channel if nhwc else 0))


def _fragments(kernel: ConvKernel, nhwc: bool) -> Iterator[Access]:
    channel, half, warp = loops(kernel.block_k, 2, WARPS)
    plane = warp + 8 * half
    for second in (0, 1):
        slot = 4 * (LANE % 16 // 2) + 32 * second
        yield access("filters", False, 16, (plane * kernel.block_k + channel) * kernel.block_filters + slot)
    for second in (0, 1):
        yield access("tiles", False, 16, _tile_word(kernel, nhwc, plane, channel, 4 * _BH + 16 * second))


# F(4x4)


def _f4_patches(nhwc: bool) -> Iterator[Access]:
    """Half of the lanes store rows 1, 3 and 0 of each column of a transformed patch, the others rows 2, 4 and 5."""
    warp, which, column = loops(F4_WARPS, 3, 6)
    channel, tile = (warp % 2 * 4 + LANE % 4, warp // 2 * 4 + LANE // 4 % 4) if nhwc else (warp // 2, warp % 2 * 16 + LANE % 16)
    row = np.array([[1, 2], [3, 4], [0, 5]])[which, LANE // 16]
    yield access("patches", True, 4, _f4_tile_word(6 * row + column, channel, tile))


def _f4_tile_word(plane: Integers, channel: Integers, tile: Integers) -> Integers:
    return plane * F4_PLANE_PITCH + channel * F4_PADDED + tile


def _f4_filter_word(kernel: ConvKernel, plane: Integers, channel: Integers, line: Integers) -> Integers:
    return F4_PLANES * F4_PLANE_PITCH + (plane * F4_CHANNELS + channel) * (F4_PADDED if kernel.variant == "single" else F4_FILTERS) + line


def _f4_weights(kernel: ConvKernel, nhwc: bool) -> Iterator[Access]:
    """Each half of a warp copies 16 words, 72 of a filter; a warp loads 9 taps and stores six planes of each of three rows."""
    buffer = 2 * F4_PLANES * (F4_PLANE_PITCH + F4_CHANNELS * F4_PADDED)  # behind both stages
    i, warp = loops(5, F4_WARPS)
    line, word = warp // 2 * 4 + warp % 2 + LANE // 16 * 2, LANE % 16 + 16 * i + 0 * warp
    yield access("weights", True, 4, buffer + line * 9 * F4_CHANNELS + word, word < 9 * F4_CHANNELS, asynchronous=True)
    tap, warp = loops(9, F4_WARPS)
    line, channel = warp % 8 * 4 + LANE // 8, LANE % 8
    yield access("weights", False, 4, buffer + line * 9 * F4_CHANNELS + (8 * tap + channel if nhwc else 9 * channel + tap))
    row, column, warp = loops(3, 6, F4_WARPS)
    line, channel = warp % 8 * 4 + LANE // 8, LANE % 8
    plane = 6 * (row + 3 * (warp // 8)) + column
    yield access("filters", True, 4, _f4_filter_word(kernel, plane, channel, line))


def f4_fragments(warp: Integers) -> tuple[tuple[Integers, ...], tuple[Integers, ...]]:
    """(plane, first slot, first line) of a lane's 8 x 8 accumulators of a plane, and of its 4 x 2 of a quarter of another plane. Slots
    are tiles under NCHW."""
    whole = 2 * warp + LANE // 16, 4 * (LANE // 2 % 2 + LANE // 8 % 2 * 2), 4 * (LANE % 2 + LANE // 4 % 2 * 2)
    slots = warp // 2 % 2 * 16 + 4 * (LANE // 2 % 2 + LANE // 16 * 2)
    return whole, (32 + warp // 4 + 0 * LANE, slots, warp % 2 * 16 + 2 * (LANE % 2 + LANE // 4 % 4 * 2))


def _f4_fragments(kernel: ConvKernel, nhwc: bool) -> Iterator[Access]:
    warp, channel = loops(F4_WARPS, F4_CHANNELS)

    def one(of_slots: bool, width: int, plane: Integers, first: Integers) -> Access:
        if of_slots == nhwc:
            return access("filters", False, width, _f4_filter_word(kernel, plane, channel, first))
        return access("tiles", False, width, _f4_tile_word(plane, channel, first))

    (plane, slot, line), (rest, rest_slot, rest_line) = f4_fragments(warp)
    for second in (0, 16):
        yield one(True, 16, plane, slot + second)
        yield one(False, 16, plane, line + second)
    yield one(True, 16, rest, rest_slot)
    yield one(False, 8, rest, rest_line)
