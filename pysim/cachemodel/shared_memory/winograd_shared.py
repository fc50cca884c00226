# SPDX-License-Identifier: Apache-2.0
"""Shared-memory wavefronts of a fused Winograd convolution: what the warps of a block, and of a launch, load, store and copy, bank by bank.

The formulas are those of `native/cuda/conv/winograd/fused2.cuh` and `output.cuh`. A block has 64 filters and 32 tiles in 16 planes,
8 warps, and steps of 8 channels. In a stage, of plane p and channel c,

    filter slot s   at word (p 8 + c) 64 + s
    tile place x    at word 8192 + (p 8 + c) 32 + (x ^ turn(c)),    turn(c) = 4 c under NHWC, 0 under NCHW

Once a step:  copies     transformed filters, asynchronous, 16 bytes a thread
              patches    a thread stores the 16 planes of one tile and channel: lanes are tiles (NCHW), or 8 channels of 4 tiles (NHWC)
              fragments  16-byte loads: lanes (l, l ^ 1) share the filters', (l, l ^ 2) the tiles'
Once a tile of the output, in 4 rounds:
              sums       stored to rows [kslot][plane] by the form's layout; then a thread loads 16 planes, twice a round
              outputs    32 words a thread, stored and, as far as they lie inside the output, loaded by the same thread
Once a block: place      one thread finds the tile (`decomposition.cuh`) in 88 bytes that all warps read: `_place`

Fused F(4x4) (`native/cuda/conv/winograd/fused4.cuh`) has 32 filters, 32 tiles, 36 planes and 16 warps, and the same kinds of accesses
but for its way out, which is one round. Plane p of channel c has tile x at word p 296 + c 36 + x of a stage and filter f at word 10656 +
(p 8 + c) 32 + f; shuffles between lanes are not counted. Its outputs pass but for a plain epilogue: that has them in registers where
rows of outputs are whole vectors, or NHWC; else a warp's lanes change them for neighbouring words of rows, 16 bytes in and 4 out. Form
single transforms its filters, too, which then lie at word 10656 + (p 8 + c) 36 + f: once a step weights are copied, 4 bytes a thread, to
word 72 f + i of a room after both stages, and read and transformed by warps of 4 filters and 8 channels.

`launch` counts all blocks of a data-parallel launch with a plain epilogue; benchmarks/cuda/conv_wavefronts.py compares it with Nsight
Compute. Where channels are in parts, two launches that differ in channels alone differ by their steps. `wavefronts` is of one tile, assumed
to lie inside the output, without the place. The kernel that transforms filters before is not described.

Worked number: sts64 stores its sums with 4 rounds x 16 instructions x 8 warps = 512 instructions of 2 wavefronts; so do compact, and
reference, of whose lanes half are idle. Without its padding each would take 8.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.shared_memory.banks import LANES, SharedMemory
from pysim.cachemodel.shared_memory.gemm_shared import Access, Wavefronts
from pysim.errors import OperandError
from pysim.problem.conv import Conv
from pysim.registry.cuda import ConvKernel

Integers = NDArray[np.int64]

PLANES, WARPS, THREADS = 16, 8, 256
LARGE = ("fused", "drained", "single")  # the forms of F(4x4); of drained, what it drains to is left out
LARGE_PLANES, LARGE_WARPS, SIDE, STEP, ROW, PITCH = 36, 16, 32, 8, 36, 296
_ROW_WORDS = {"reference": 160, "sts64": 276, "compact": 256}  # of one plane and kslot, on the way out
_LANE = np.arange(LANES)
_T, _Q, _BH = _LANE % 8 // 2, _LANE // 8 % 2, _LANE % 2 + _LANE // 16 * 2


def step(kernel: ConvKernel, nhwc: bool) -> tuple[Access, ...]:
    """What one block does to shared memory in one step of 8 channels. Raises OperandError for another kernel."""
    _check(kernel)
    if kernel.variant in LARGE:
        filters = _weights(kernel, nhwc) if kernel.variant == "single" else _copies(kernel)
        return (*filters, *_halves(nhwc), *_fragments_4(kernel, nhwc))
    return (*_copies(kernel), *_patches(kernel, nhwc), *_fragments(kernel, nhwc))


def way_out(kernel: ConvKernel, nhwc: bool) -> tuple[Access, ...]:
    """What one block does to shared memory on a tile's way out. Raises OperandError for another kernel."""
    _check(kernel)
    if kernel.variant in LARGE:
        return tuple(_way_out_4())
    return (*_sums(kernel), *_planes(kernel, nhwc), *_outputs())


def wavefronts(kernel: ConvKernel, nhwc: bool, steps: int, memory: SharedMemory | None = None) -> dict[str, Wavefronts]:
    """Wavefronts of one tile of `steps` steps, under "loads", "stores" and "copies" (asynchronous ones)."""
    return _sum(((step(kernel, nhwc), steps), (_first(kernel, nhwc), 1), (way_out(kernel, nhwc), 1)), memory)


def launch(kernel: ConvKernel, w: Conv, nhwc: bool, memory: SharedMemory | None = None) -> dict[str, Wavefronts]:
    """Wavefronts of all blocks of a data-parallel launch with a plain epilogue, under the names of `wavefronts`; blocks have a tile each.

    Raises OperandError for another kernel.
    """
    _check(kernel)
    m = kernel.outputs
    windows = w.batch * -(-w.out_h // m) * -(-w.out_w // m)
    tiles = w.groups * -(-windows // kernel.block_windows) * -(-w.filters // w.groups // kernel.block_filters)
    steps = -(-w.channels // w.groups // kernel.block_k)
    passes = kernel.variant not in LARGE  # the outputs, through shared memory
    out = (one for one in way_out(kernel, nhwc) if one.operand == "sums" or (one.store and passes))
    once = (*_place(kernel), *_first(kernel, nhwc), *out)
    inside = (_inside(kernel, w, nhwc),) if passes else () if nhwc or w.out_w % 4 == 0 else tuple(_words(kernel, w))
    return _sum(((step(kernel, nhwc), tiles * steps), (once, tiles), (inside, w.groups)), memory)


def _sum(parts: Iterable[tuple[Iterable[Access], int]], memory: SharedMemory | None) -> dict[str, Wavefronts]:
    """Accesses, each so many times."""
    sums = {kind: [0, 0, 0] for kind in ("loads", "stores", "copies")}
    for accesses, times in parts:
        for access in accesses:
            counts = (memory or SharedMemory()).count(access.addresses, access.width, access.store, access.active)
            kind = "copies" if access.asynchronous else "stores" if access.store else "loads"
            issued = int(access.active.any(axis=1).sum())
            for i, number in enumerate((issued, int(counts.total.sum()), int(counts.minimum.sum()))):
                sums[kind][i] += times * number
    return {kind: Wavefronts(*numbers) for kind, numbers in sums.items()}


def _check(kernel: ConvKernel) -> None:
    if kernel.outputs == 1 or kernel.variant not in (*_ROW_WORDS, *LARGE):
        raise OperandError(f"{kernel.name} is no fused Winograd kernel; this describes the forms {', '.join((*_ROW_WORDS, *LARGE))}")


def _access(
    operand: str, store: bool, width: int, words: Integers, active: NDArray[np.bool_] | None = None, asynchronous: bool = False
) -> Access:
    lanes: NDArray[np.bool_] = np.ones(words.shape, np.bool_)
    if active is not None:
        lanes = lanes & active
    return Access(operand, store, asynchronous, width, 4 * words.reshape(-1, LANES), lanes.reshape(-1, LANES))


def _loops(*sizes: int) -> list[Integers]:
    """Loop variables that broadcast against the lanes, as arrays of shape (*sizes, 1)."""
    return [grid[..., None] for grid in np.indices(sizes)]


def _place(kernel: ConvKernel) -> Iterator[Access]:
    """How a block finds its tile, as nvcc 13.0 joins the words, alike in all kernels: Tile lies at byte 0, Work at 32, valid at 80.

    One thread makes Work, and then twice, for the tile and for that there is no other, asks it and says whether there is one.
    """
    warps = LARGE_WARPS if kernel.variant in LARGE else WARPS

    def of(store: bool, width: int, byte: int, everyone: bool = False) -> Access:
        rows = warps if everyone else 1
        return _access("place", store, width, np.full((rows, LANES), byte // 4), np.full((rows, LANES), everyone) | (_LANE == 0))

    for width, byte in ((8, 32), (8, 40), (8, 48), (4, 56), (16, 64)):  # Work
        yield of(True, width, byte)
    for _ in range(2):
        for width, byte in ((8, 32), (8, 40), (4, 56)):
            yield of(False, width, byte)
        yield of(True, 4, 80)
        yield of(False, 4, 80, everyone=True)
    yield of(False, 8, 48)
    for width, byte in ((8, 0), (8, 8), (8, 16), (8, 24), (4, 56)):  # Tile, and which is next
        yield of(True, width, byte)
    for width, byte in ((16, 0), (16, 16)):
        yield of(False, width, byte, everyone=True)
    if kernel.variant in LARGE:  # its row and column are read again after the steps
        yield of(False, 8, 0, everyone=True)


def _copies(kernel: ConvKernel) -> Iterator[Access]:
    planes = (kernel.outputs + 2) ** 2
    (instruction,) = _loops(planes * kernel.block_k * kernel.block_filters // (4 * LANES))
    tiles = LARGE_PLANES * PITCH if kernel.variant in LARGE else 0  # which lie before
    yield _access("filters", True, 16, tiles + 4 * (instruction * LANES + _LANE), asynchronous=True)


def _patches(kernel: ConvKernel, nhwc: bool) -> Iterator[Access]:
    plane, warp = _loops(PLANES, WARPS)
    channel = _LANE % 8 + 0 * warp if nhwc else warp + 0 * _LANE
    tile = 16 * (_LANE // 16) + 2 * warp + _LANE // 8 % 2 if nhwc else _LANE + 0 * warp
    place = tile % 16 // 2 * 4 + tile // 16 * 2 + 1 - tile % 2
    yield _access("patches", True, 4, _tile_word(kernel, nhwc, plane, channel, place))


def _tile_word(kernel: ConvKernel, nhwc: bool, plane: Integers, channel: Integers, place: Integers) -> Integers:
    filters = PLANES * kernel.block_k * kernel.block_filters
    word: Integers = filters + (plane * kernel.block_k + channel) * kernel.block_windows + (place ^ (4 * channel if nhwc else 0))
    return word


def _first(kernel: ConvKernel, nhwc: bool) -> tuple[Access, ...]:
    """F(2x2): the first of 16 units of fragments, before the first step; each step loads those that follow, the last one once more."""
    if kernel.variant in LARGE:
        return ()
    all_units = _fragments(kernel, nhwc)
    return tuple(Access(one.operand, False, False, one.width, one.addresses[:WARPS], one.active[:WARPS]) for one in all_units)


def _fragments(kernel: ConvKernel, nhwc: bool) -> Iterator[Access]:
    channel, half, warp = _loops(kernel.block_k, 2, WARPS)
    plane = warp + 8 * half
    for second in (0, 1):
        slot = 4 * (_LANE % 16 // 2) + 32 * second
        yield _access("filters", False, 16, (plane * kernel.block_k + channel) * kernel.block_filters + slot)
    for second in (0, 1):
        yield _access("tiles", False, 16, _tile_word(kernel, nhwc, plane, channel, 4 * _BH + 16 * second))


def _sums(kernel: ConvKernel) -> Iterator[Access]:
    """All four rounds; those of sts64 and compact have the same addresses (compact: in two buffers of whole rows)."""
    row_words = _ROW_WORDS[kernel.variant]
    if kernel.variant == "reference":
        of_round, half, k, e, warp = _loops(4, 2, 4, 2, WARPS)
        words = (k * PLANES + warp + 8 * half) * row_words + 4 * (10 * _T + _BH + 4 * e)
        yield _access("sums", True, 16, words, of_round // 2 == _Q)
        return
    _, half, kslot, e, d, warp = _loops(4, 2, 2, 2, 2, WARPS)
    cell = _BH + 4 * e + 8 * _Q
    unit = 34 * _T + cell + 16 * d if kernel.variant == "sts64" else 32 * _T + (cell + 2 * _T) % 16 + 16 * d
    yield _access("sums", True, 8, (kslot * PLANES + warp + 8 * half) * row_words + 2 * unit)


def _seen(kernel: ConvKernel, nhwc: bool, of_round: Integers, second: Integers, warp: Integers) -> tuple[Integers, Integers, Integers]:
    """(tile, filter, word of plane 0) that a lane has in a round."""
    row_words = _ROW_WORDS[kernel.variant]
    t = _LANE % 4 if nhwc else warp % 4
    if kernel.variant == "reference":
        kslot, x = warp // 4 + 2 * second, 8 * (warp % 4) + _LANE // 4 if nhwc else _LANE
        tile = 16 * (x // 2 % 2) + x // 4 * 2 + x % 2
        of = 32 * (of_round % 2) + 16 * (kslot // 2) + 8 * (kslot % 2) + 4 * (of_round // 2) + t
        return tile, of, kslot * PLANES * row_words + 40 * t + x
    kslot, q = warp // 4, _LANE // 4 % 2 if nhwc else _LANE // 16
    x = 4 * (warp % 4) + _LANE // 8 if nhwc else _LANE % 16
    within = (68 * t + 16 * q + x if kernel.variant == "sts64" else 64 * t + (16 * q + x + 4 * t) % 32) + 32 * second
    return 16 * second + x, 16 * of_round + 8 * kslot + 4 * q + t, kslot * PLANES * row_words + within


def _planes(kernel: ConvKernel, nhwc: bool) -> Iterator[Access]:
    of_round, second, plane, warp = _loops(4, 2, PLANES, WARPS)
    _, _, word = _seen(kernel, nhwc, of_round, second, warp)
    yield _access("sums", False, 4, word + plane * _ROW_WORDS[kernel.variant] + 0 * of_round)


def _own(word: Integers, warp: Integers) -> Integers:
    at: Integers = word * THREADS + warp * LANES + _LANE
    return at


def _outputs() -> Iterator[Access]:
    words = _own(*_loops(2 * PLANES, WARPS))
    yield _access("outputs", True, 4, words)
    yield _access("outputs", False, 4, words)


def _inside(kernel: ConvKernel, w: Conv, nhwc: bool) -> Access:
    """The loads of outputs of all tiles of one group: of those that exist."""
    high, wide, filters = -(-w.out_h // 2), -(-w.out_w // 2), w.filters // w.groups
    blocks = -(-w.batch * high * wide // kernel.block_windows), -(-filters // kernel.block_filters)
    of_tiles, of_filters, of_round, second, r, s, warp = _loops(*blocks, 4, 2, 2, 2, WARPS)
    tile, of, _ = _seen(kernel, nhwc, of_round, second, warp)
    number = of_tiles * kernel.block_windows + tile
    down, across = number % (high * wide) // wide, number % wide
    active = (number < w.batch * high * wide) & (of_filters * kernel.block_filters + of < filters)
    active = active & (2 * down + r < w.out_h) & (2 * across + s < w.out_w)
    words = _own(4 * (2 * of_round + second) + 2 * r + s, warp) + 0 * number
    return _access("outputs", False, 4, words, active)


# F(4x4)


def _halves(nhwc: bool) -> Iterator[Access]:
    """Half of the lanes store sums 1, 3 and 0 of each column of a patch, the others 2, 4 and 5."""
    warp, which, column = _loops(LARGE_WARPS, 3, 6)
    channel, tile = (warp % 2 * 4 + _LANE % 4, warp // 2 * 4 + _LANE // 4 % 4) if nhwc else (warp // 2, warp % 2 * 16 + _LANE % 16)
    row = np.array([[1, 2], [3, 4], [0, 5]])[which, _LANE // 16]
    yield _access("patches", True, 4, _tiles_4(6 * row + column, channel, tile))


def _tiles_4(plane: Integers, channel: Integers, tile: Integers) -> Integers:
    word: Integers = plane * PITCH + channel * ROW + tile
    return word


def _filters_4(kernel: ConvKernel, plane: Integers, channel: Integers, line: Integers) -> Integers:
    word: Integers = LARGE_PLANES * PITCH + (plane * STEP + channel) * (ROW if kernel.variant == "single" else SIDE) + line
    return word


def _weights(kernel: ConvKernel, nhwc: bool) -> Iterator[Access]:
    """Copies of 16 words by each half of a warp, 72 of a filter; 9 loads of a warp's lanes, and of three rows of planes six stores each."""
    room = 2 * LARGE_PLANES * (PITCH + STEP * ROW)  # after two stages
    i, warp = _loops(5, LARGE_WARPS)
    line, word = warp // 2 * 4 + warp % 2 + _LANE // 16 * 2, _LANE % 16 + 16 * i + 0 * warp
    yield _access("weights", True, 4, room + line * 9 * STEP + word, word < 9 * STEP, asynchronous=True)
    tap, warp = _loops(9, LARGE_WARPS)
    line, channel = warp % 8 * 4 + _LANE // 8, _LANE % 8
    yield _access("weights", False, 4, room + line * 9 * STEP + (8 * tap + channel if nhwc else 9 * channel + tap))
    row, column, warp = _loops(3, 6, LARGE_WARPS)
    line, channel = warp % 8 * 4 + _LANE // 8, _LANE % 8
    plane = 6 * (row + 3 * (warp // 8)) + column
    yield _access("filters", True, 4, _filters_4(kernel, plane, channel, line))


def _places_4(warp: Integers) -> tuple[tuple[Integers, ...], tuple[Integers, ...]]:
    """(plane, first slot, first line) of a lane's 8 x 8 sums, and of its 4 x 2 of a quarter of a plane. Slots are tiles under NCHW."""
    whole = 2 * warp + _LANE // 16, 4 * (_LANE // 2 % 2 + _LANE // 8 % 2 * 2), 4 * (_LANE % 2 + _LANE // 4 % 2 * 2)
    slots = warp // 2 % 2 * 16 + 4 * (_LANE // 2 % 2 + _LANE // 16 * 2)
    return whole, (32 + warp // 4 + 0 * _LANE, slots, warp % 2 * 16 + 2 * (_LANE % 2 + _LANE // 4 % 4 * 2))


def _fragments_4(kernel: ConvKernel, nhwc: bool) -> Iterator[Access]:
    warp, channel = _loops(LARGE_WARPS, STEP)

    def one(of_slots: bool, width: int, plane: Integers, first: Integers) -> Access:
        if of_slots == nhwc:
            return _access("filters", False, width, _filters_4(kernel, plane, channel, first))
        return _access("tiles", False, width, _tiles_4(plane, channel, first))

    (plane, slot, line), (rest, rest_slot, rest_line) = _places_4(warp)
    for second in (0, 16):
        yield one(True, 16, plane, slot + second)
        yield one(False, 16, plane, line + second)
    yield one(True, 16, rest, rest_slot)
    yield one(False, 8, rest, rest_line)


def _word_4(plane: Integers, slot: Integers, line: Integers) -> Integers:
    word: Integers = plane * SIDE * SIDE + line * SIDE + (slot ^ line // 4 % 4 * 8 ^ line // 2 % 2 * 16)
    return word


def _way_out_4() -> Iterator[Access]:
    vector, n, warp = _loops(2, 8, LARGE_WARPS)
    (plane, slot, line), _ = _places_4(warp)
    yield _access("sums", True, 16, _word_4(plane, 16 * vector + slot, n // 4 * 16 + line + n % 4))
    n, warp = _loops(2, LARGE_WARPS)
    _, (plane, slot, line) = _places_4(warp)
    yield _access("sums", True, 16, _word_4(plane, slot + 0 * n, line + n))
    for operand, store, words in (("sums", False, LARGE_PLANES), ("outputs", True, 16), ("outputs", False, 16)):
        of, second, warp = _loops(words, 2, LARGE_WARPS)
        yield _access(operand, store, 4, _word_4(of, _LANE + 0 * warp, warp + 16 * second + 0 * _LANE))


def _words(kernel: ConvKernel, w: Conv) -> Iterator[Access]:
    """The outputs of all tiles of one group under NCHW where rows are no vectors: a warp stores those of 32 tiles and one filter, and loads
    what exists of them."""
    high, wide, filters = -(-w.out_h // 4), -(-w.out_w // 4), w.filters // w.groups
    blocks = -(-w.batch * high * wide // SIDE), -(-filters // SIDE)
    of_tiles, of_filters, second, r, warp = _loops(*blocks, 2, 4, LARGE_WARPS)
    exists = of_filters * SIDE + warp + 16 * second < filters
    room = 512 * warp + 0 * (of_tiles + of_filters + second)
    yield _access("outputs", True, 16, room + 128 * r + 4 * _LANE, exists & (_LANE >= 0))
    of_tiles, of_filters, second, eight, r, warp = _loops(*blocks, 2, 4, 4, LARGE_WARPS)
    number = of_tiles * SIDE + 8 * eight + _LANE // 4
    down, across = number % (high * wide) // wide, number % wide
    active = (number < w.batch * high * wide) & (of_filters * SIDE + warp + 16 * second < filters)
    active = active & (4 * down + r < w.out_h) & (4 * across + _LANE % 4 < w.out_w)
    yield _access("outputs", False, 4, 512 * warp + 128 * r + 32 * eight + _LANE + 0 * (of_tiles + of_filters + second), active)
