# SPDX-License-Identifier: Apache-2.0
"""Predicts shared-memory wavefronts of whole launches of fused Winograd convolutions, bank by bank, for conv_wavefronts.py.

`pysim.cachemodel.shared_memory.winograd_shared` has the k-iterations. This module adds the rest, by the formulas of
`native/cuda/conv/winograd/` `fused2.cuh` and `output.cuh`:

Per tile of the output, in 4 rounds:
              accumulators  stored to rows [kslot][plane] in the form's layout; then a thread loads 16 planes, twice a round
              outputs       32 words per thread, stored and, as far as they are inside the output, loaded by the same thread
Per block:    place         one thread writes the tile's position (`decomposition.cuh`) to 88 bytes that all warps read: `_place`

The epilogue of F(4x4) has one round. Its outputs pass through shared memory, too, except with a plain epilogue: then they are stored from
registers if the rows of outputs are whole vectors or the layout is NHWC; else a warp exchanges them so that lanes store neighbouring words
(16-byte stores, 4-byte loads).

`launch` counts all blocks of a data-parallel launch with a plain epilogue. If channels are in parts, two launches that differ only in
channels differ by their k-iterations. `wavefronts` counts one tile inside the output, without the place. The separate kernel that
transforms filters is not modelled.

Worked number: sts64 stores its accumulators with 4 rounds x 16 instructions x 8 warps = 512 instructions of 2 wavefronts; so do compact and
reference (half of its lanes are idle). Without the padding each would take 8.
"""

from collections.abc import Iterator

import numpy as np

from pysim.cachemodel.shared_memory.banks import LANES, SharedMemory
from pysim.cachemodel.shared_memory.gemm_shared import Access, Wavefronts, counted
from pysim.cachemodel.shared_memory.winograd_shared import (
    F4_FILTERS,
    F4_PLANES,
    F4_VARIANTS,
    F4_WARPS,
    LANE,
    PLANES,
    WARPS,
    Integers,
    access,
    check,
    f4_fragments,
    iteration,
    loops,
)  # fmt: skip
from pysim.problem.conv import Conv
from pysim.registry.cuda import ConvKernel

THREADS = WARPS * LANES
_ROW_WORDS = {"reference": 160, "sts64": 276, "compact": 256}  # of one plane and kslot, in the epilogue
_T, _Q, _BH = LANE % 8 // 2, LANE // 8 % 2, LANE % 2 + LANE // 16 * 2


def way_out(kernel: ConvKernel, nhwc: bool) -> tuple[Access, ...]:
    """Shared-memory wavefronts of a block in the epilogue of a tile. Raises OperandError for another kernel."""
    check(kernel)
    if kernel.variant in F4_VARIANTS:
        return tuple(_way_out_4())
    return (*_sums(kernel), *_planes(kernel, nhwc), *_outputs())


def wavefronts(kernel: ConvKernel, nhwc: bool, steps: int, memory: SharedMemory | None = None) -> dict[str, Wavefronts]:
    """Wavefronts of one tile of `steps` k-iterations: "loads", "stores" and "copies" (asynchronous ones)."""
    return counted(((iteration(kernel, nhwc), steps), (_first(kernel, nhwc), 1), (way_out(kernel, nhwc), 1)), memory)


def launch(kernel: ConvKernel, w: Conv, nhwc: bool, memory: SharedMemory | None = None) -> dict[str, Wavefronts]:
    """Wavefronts of all blocks of a data-parallel launch with a plain epilogue, one tile per block; keys as in `wavefronts`.

    Raises OperandError for another kernel.
    """
    check(kernel)
    m = kernel.outputs
    windows = w.batch * -(-w.out_h // m) * -(-w.out_w // m)
    tiles = w.groups * -(-windows // kernel.block_windows) * -(-w.filters // w.groups // kernel.block_filters)
    steps = -(-w.channels // w.groups // kernel.block_k)
    passes = kernel.variant not in F4_VARIANTS  # outputs pass through shared memory
    out = (one for one in way_out(kernel, nhwc) if one.operand == "sums" or (one.store and passes))
    once = (*_place(kernel), *_first(kernel, nhwc), *out)
    inside = (_inside(kernel, w, nhwc),) if passes else () if nhwc or w.out_w % 4 == 0 else tuple(_words(kernel, w))
    return counted(((iteration(kernel, nhwc), tiles * steps), (once, tiles), (inside, w.groups)), memory)


def _place(kernel: ConvKernel) -> Iterator[Access]:
    """How a block gets its tile, with nvcc 13.0's vectorisation, the same in all kernels: Tile is at byte 0, Work at 32, valid at 80.

    One thread constructs Work, then queries it twice, for the tile and for the end, and stores each time whether there is a tile.
    """
    warps = F4_WARPS if kernel.variant in F4_VARIANTS else WARPS

    def of(store: bool, width: int, byte: int, everyone: bool = False) -> Access:
        rows = warps if everyone else 1
        return access("place", store, width, np.full((rows, LANES), byte // 4), np.full((rows, LANES), everyone) | (LANE == 0))

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
    if kernel.variant in F4_VARIANTS:  # its row and column are reread after the main loop
        yield of(False, 8, 0, everyone=True)


def _first(kernel: ConvKernel, nhwc: bool) -> tuple[Access, ...]:
    """F(2x2): loads of unit 0 of 16 before the first k-iteration. Each k-iteration loads units 1 to 15 and the next one's unit 0."""
    fragments = (one for one in iteration(kernel, nhwc) if not one.store and kernel.variant not in F4_VARIANTS)
    return tuple(Access(one.operand, False, False, one.width, one.addresses[:WARPS], one.active[:WARPS]) for one in fragments)


def _sums(kernel: ConvKernel) -> Iterator[Access]:
    """All four rounds. In sts64 and compact all rounds have the same addresses (compact: in two buffers of whole rows)."""
    row_words = _ROW_WORDS[kernel.variant]
    if kernel.variant == "reference":
        of_round, half, k, e, warp = loops(4, 2, 4, 2, WARPS)
        words = (k * PLANES + warp + 8 * half) * row_words + 4 * (10 * _T + _BH + 4 * e)
        yield access("sums", True, 16, words, of_round // 2 == _Q)
        return
    _, half, kslot, e, d, warp = loops(4, 2, 2, 2, 2, WARPS)
    cell = _BH + 4 * e + 8 * _Q
    unit = 34 * _T + cell + 16 * d if kernel.variant == "sts64" else 32 * _T + (cell + 2 * _T) % 16 + 16 * d
    yield access("sums", True, 8, (kslot * PLANES + warp + 8 * half) * row_words + 2 * unit)


def _seen(kernel: ConvKernel, nhwc: bool, of_round: Integers, second: Integers, warp: Integers) -> tuple[Integers, Integers, Integers]:
    """(tile, filter, word of plane 0) of a lane in a round."""
    row_words = _ROW_WORDS[kernel.variant]
    t = LANE % 4 if nhwc else warp % 4
    if kernel.variant == "reference":
        kslot, x = warp // 4 + 2 * second, 8 * (warp % 4) + LANE // 4 if nhwc else LANE
        tile = 16 * (x // 2 % 2) + x // 4 * 2 + x % 2
        of = 32 * (of_round % 2) + 16 * (kslot // 2) + 8 * (kslot % 2) + 4 * (of_round // 2) + t
        return tile, of, kslot * PLANES * row_words + 40 * t + x
    kslot, q = warp // 4, LANE // 4 % 2 if nhwc else LANE // 16
    x = 4 * (warp % 4) + LANE // 8 if nhwc else LANE % 16
    within = (68 * t + 16 * q + x if kernel.variant == "sts64" else 64 * t + (16 * q + x + 4 * t) % 32) + 32 * second
    return 16 * second + x, 16 * of_round + 8 * kslot + 4 * q + t, kslot * PLANES * row_words + within


def _planes(kernel: ConvKernel, nhwc: bool) -> Iterator[Access]:
    of_round, second, plane, warp = loops(4, 2, PLANES, WARPS)
    _, _, word = _seen(kernel, nhwc, of_round, second, warp)
    yield access("sums", False, 4, word + plane * _ROW_WORDS[kernel.variant] + 0 * of_round)


def _own(word: Integers, warp: Integers) -> Integers:
    at: Integers = word * THREADS + warp * LANES + LANE
    return at


def _outputs() -> Iterator[Access]:
    words = _own(*loops(2 * PLANES, WARPS))
    yield access("outputs", True, 4, words)
    yield access("outputs", False, 4, words)


def _inside(kernel: ConvKernel, w: Conv, nhwc: bool) -> Access:
    """The loads of outputs of all tiles of one group, those inside the output."""
    high, wide, filters = -(-w.out_h // 2), -(-w.out_w // 2), w.filters // w.groups
    blocks = -(-w.batch * high * wide // kernel.block_windows), -(-filters // kernel.block_filters)
    of_tiles, of_filters, of_round, second, r, s, warp = loops(*blocks, 4, 2, 2, 2, WARPS)
    tile, of, _ = _seen(kernel, nhwc, of_round, second, warp)
    number = of_tiles * kernel.block_windows + tile
    down, across = number % (high * wide) // wide, number % wide
    active = (number < w.batch * high * wide) & (of_filters * kernel.block_filters + of < filters)
    active = active & (2 * down + r < w.out_h) & (2 * across + s < w.out_w)
    words = _own(4 * (2 * of_round + second) + 2 * r + s, warp) + 0 * number
    return access("outputs", False, 4, words, active)


def _word_4(plane: Integers, slot: Integers, line: Integers) -> Integers:
    word: Integers = plane * F4_FILTERS * F4_FILTERS + line * F4_FILTERS + (slot ^ line // 4 % 4 * 8 ^ line // 2 % 2 * 16)
    return word


def _way_out_4() -> Iterator[Access]:
    vector, n, warp = loops(2, 8, F4_WARPS)
    (plane, slot, line), _ = f4_fragments(warp)
    yield access("sums", True, 16, _word_4(plane, 16 * vector + slot, n // 4 * 16 + line + n % 4))
    n, warp = loops(2, F4_WARPS)
    _, (plane, slot, line) = f4_fragments(warp)
    yield access("sums", True, 16, _word_4(plane, slot + 0 * n, line + n))
    for operand, store, words in (("sums", False, F4_PLANES), ("outputs", True, 16), ("outputs", False, 16)):
        of, second, warp = loops(words, 2, F4_WARPS)
        yield access(operand, store, 4, _word_4(of, LANE + 0 * warp, warp + 16 * second + 0 * LANE))


def _words(kernel: ConvKernel, w: Conv) -> Iterator[Access]:
    """The outputs of all tiles of one group under NCHW if rows are not whole vectors: a warp stores those of 32 tiles and one filter, and
    loads those inside the output."""
    high, wide, filters = -(-w.out_h // 4), -(-w.out_w // 4), w.filters // w.groups
    blocks = -(-w.batch * high * wide // F4_FILTERS), -(-filters // F4_FILTERS)
    of_tiles, of_filters, second, r, warp = loops(*blocks, 2, 4, F4_WARPS)
    exists = of_filters * F4_FILTERS + warp + 16 * second < filters
    room = 512 * warp + 0 * (of_tiles + of_filters + second)
    yield access("outputs", True, 16, room + 128 * r + 4 * LANE, exists & (LANE >= 0))
    of_tiles, of_filters, second, eight, r, warp = loops(*blocks, 2, 4, 4, F4_WARPS)
    number = of_tiles * F4_FILTERS + 8 * eight + LANE // 4
    down, across = number % (high * wide) // wide, number % wide
    active = (number < w.batch * high * wide) & (of_filters * F4_FILTERS + warp + 16 * second < filters)
    active = active & (4 * down + r < w.out_h) & (4 * across + LANE % 4 < w.out_w)
    yield access("outputs", False, 4, 512 * warp + 128 * r + 32 * eight + LANE + 0 * (of_tiles + of_filters + second), active)
