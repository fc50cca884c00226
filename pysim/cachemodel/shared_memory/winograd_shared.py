# SPDX-License-Identifier: Apache-2.0
"""Shared memory of a fused Winograd convolution: what the warps of a block load, store and copy in a step of its loop.

The formulas are those of `native/cuda/conv/winograd/fused2.cuh`. A block has 64 filters and 32 tiles in 16 planes, 8 warps, and steps of 8
channels. In a stage, of plane p and channel c,

    filter slot s   at word (p 8 + c) 64 + s
    tile place x    at word 8192 + (p 8 + c) 32 + (x ^ turn(c)),    turn(c) = 4 c under NHWC, 0 under NCHW

Once a step:  copies     transformed filters, asynchronous, 16 bytes a thread
              patches    a thread stores the 16 planes of one tile and channel: lanes are tiles (NCHW), or 8 channels of 4 tiles (NHWC)
              fragments  16-byte loads: lanes (l, l ^ 1) share the filters', (l, l ^ 2) the tiles'

Fused F(4x4) (`native/cuda/conv/winograd/fused4.cuh`) has 32 filters, 32 tiles, 36 planes and 16 warps, and the same kinds of accesses.
Plane p of channel c has tile x at word p 296 + c 36 + x of a stage and filter f at word 10656 + (p 8 + c) 32 + f; shuffles between lanes
are not counted. Form single transforms its filters, too, which then lie at word 10656 + (p 8 + c) 36 + f: once a step weights are copied,
4 bytes a thread, to word 72 f + i of a room after both stages, and read and transformed by warps of 4 filters and 8 channels.

Whole launches, their way out among them, are `benchmarks/cuda/winograd_launch.py`, which Nsight Compute's counters are compared with.

Worked number: a step of F(2x2) copies 16 planes x 8 channels x 64 filters = 8192 words, 64 instructions of 32 lanes x 4 words, of 4
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
SMALL = ("reference", "sts64", "compact")  # the forms of F(2x2)
LARGE = ("fused", "drained", "single")  # of F(4x4); of drained, what it drains to is left out
LARGE_PLANES, LARGE_WARPS, SIDE, STEP, ROW, PITCH = 36, 16, 32, 8, 36, 296
LANE = np.arange(LANES)
_BH = LANE % 2 + LANE // 16 * 2


def iteration(kernel: ConvKernel, nhwc: bool) -> tuple[Access, ...]:
    """What one block does to shared memory in one step of 8 channels. Raises OperandError for another kernel."""
    check(kernel)
    if kernel.variant in LARGE:
        filters = _weights(kernel, nhwc) if kernel.variant == "single" else _copies(kernel)
        return (*filters, *_halves(nhwc), *_fragments_4(kernel, nhwc))
    return (*_copies(kernel), *_patches(kernel, nhwc), *_fragments(kernel, nhwc))


def check(kernel: ConvKernel) -> None:
    if kernel.outputs == 1 or kernel.variant not in (*SMALL, *LARGE):
        raise OperandError(f"{kernel.name} is no fused Winograd kernel; this describes the forms {', '.join((*SMALL, *LARGE))}")


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
    tiles = LARGE_PLANES * PITCH if kernel.variant in LARGE else 0  # which lie before
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


def _halves(nhwc: bool) -> Iterator[Access]:
    """Half of the lanes store sums 1, 3 and 0 of each column of a patch, the others 2, 4 and 5."""
    warp, which, column = loops(LARGE_WARPS, 3, 6)
    channel, tile = (warp % 2 * 4 + LANE % 4, warp // 2 * 4 + LANE // 4 % 4) if nhwc else (warp // 2, warp % 2 * 16 + LANE % 16)
    row = np.array([[1, 2], [3, 4], [0, 5]])[which, LANE // 16]
    yield access("patches", True, 4, _tiles_4(6 * row + column, channel, tile))


def _tiles_4(plane: Integers, channel: Integers, tile: Integers) -> Integers:
    return plane * PITCH + channel * ROW + tile


def _filters_4(kernel: ConvKernel, plane: Integers, channel: Integers, line: Integers) -> Integers:
    return LARGE_PLANES * PITCH + (plane * STEP + channel) * (ROW if kernel.variant == "single" else SIDE) + line


def _weights(kernel: ConvKernel, nhwc: bool) -> Iterator[Access]:
    """Copies of 16 words by each half of a warp, 72 of a filter; 9 loads of a warp's lanes, and of three rows of planes six stores each."""
    room = 2 * LARGE_PLANES * (PITCH + STEP * ROW)  # after two stages
    i, warp = loops(5, LARGE_WARPS)
    line, word = warp // 2 * 4 + warp % 2 + LANE // 16 * 2, LANE % 16 + 16 * i + 0 * warp
    yield access("weights", True, 4, room + line * 9 * STEP + word, word < 9 * STEP, asynchronous=True)
    tap, warp = loops(9, LARGE_WARPS)
    line, channel = warp % 8 * 4 + LANE // 8, LANE % 8
    yield access("weights", False, 4, room + line * 9 * STEP + (8 * tap + channel if nhwc else 9 * channel + tap))
    row, column, warp = loops(3, 6, LARGE_WARPS)
    line, channel = warp % 8 * 4 + LANE // 8, LANE % 8
    plane = 6 * (row + 3 * (warp // 8)) + column
    yield access("filters", True, 4, _filters_4(kernel, plane, channel, line))


def places_4(warp: Integers) -> tuple[tuple[Integers, ...], tuple[Integers, ...]]:
    """(plane, first slot, first line) of a lane's 8 x 8 sums, and of its 4 x 2 of a quarter of a plane. Slots are tiles under NCHW."""
    whole = 2 * warp + LANE // 16, 4 * (LANE // 2 % 2 + LANE // 8 % 2 * 2), 4 * (LANE % 2 + LANE // 4 % 2 * 2)
    slots = warp // 2 % 2 * 16 + 4 * (LANE // 2 % 2 + LANE // 16 * 2)
    return whole, (32 + warp // 4 + 0 * LANE, slots, warp % 2 * 16 + 2 * (LANE % 2 + LANE // 4 % 4 * 2))


def _fragments_4(kernel: ConvKernel, nhwc: bool) -> Iterator[Access]:
    warp, channel = loops(LARGE_WARPS, STEP)

    def one(of_slots: bool, width: int, plane: Integers, first: Integers) -> Access:
        if of_slots == nhwc:
            return access("filters", False, width, _filters_4(kernel, plane, channel, first))
        return access("tiles", False, width, _tiles_4(plane, channel, first))

    (plane, slot, line), (rest, rest_slot, rest_line) = places_4(warp)
    for second in (0, 16):
        yield one(True, 16, plane, slot + second)
        yield one(False, 16, plane, line + second)
    yield one(True, 16, rest, rest_slot)
    yield one(False, 8, rest, rest_line)
