# SPDX-License-Identifier: Apache-2.0
"""Shared-memory wavefronts of a fused Winograd convolution: what the warps of one block load, store and copy, counted bank by bank.

The formulas are those of `native/cuda/conv_winograd.cuh` and `winograd_output.cuh`. A block has 64 filters and 32 tiles in 16 planes,
8 warps, and steps of 8 channels. In a stage, of plane p and channel c,

    filter slot s   at word (p 8 + c) 64 + s
    tile place x    at word 8192 + (p 8 + c) 32 + (x ^ turn(c)),    turn(c) = 4 c under NHWC, 0 under NCHW

Once a step:  copies     transformed filters, asynchronous, 16 bytes a thread
              patches    a thread stores the 16 planes of one tile and channel: lanes are tiles (NCHW), or 8 channels of 4 tiles (NHWC)
              fragments  16-byte loads: lanes (l, l ^ 1) share the filters', (l, l ^ 2) the tiles'
Once a tile of the output, in 4 rounds:
              sums       stored to rows [kslot][plane] by the form's layout; then a thread loads 16 planes, twice a round
              outputs    32 words a thread, stored and loaded by the same thread

Fused F(4x4) (`native/cuda/winograd_fused4.cuh`) has 32 filters, 32 tiles, 36 planes and 16 warps, and the same kinds of accesses but for
its way out, which is one round. Plane p of channel c has filter f at word (p 8 + c) 32 + f of a stage and tile x at word
9216 + p 296 + c 36 + x; shuffles between lanes are not counted, and outputs are, which a plain epilogue leaves in registers.

Assumed: all of the tile lies inside the output (loads of outputs beyond it are left out). Not described: the block's place.

Worked number: sts64 stores its sums with 4 rounds x 16 instructions x 8 warps = 512 instructions of 2 wavefronts; so do compact, and
reference, of whose lanes half are idle. Without its padding each would take 8.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.banks import LANES, SharedMemory
from pysim.cachemodel.gemm_shared import Access, Wavefronts
from pysim.errors import OperandError
from pysim.registry import ConvKernel

Integers = NDArray[np.int64]

PLANES, WARPS, THREADS = 16, 8, 256
LARGE = "fused"  # the form of F(4x4)
LARGE_PLANES, LARGE_WARPS, SIDE, STEP, ROW, PITCH = 36, 16, 32, 8, 36, 296
_ROW_WORDS = {"reference": 160, "sts64": 276, "compact": 256}  # of one plane and kslot, on the way out
_LANE = np.arange(LANES)
_T, _Q, _BH = _LANE % 8 // 2, _LANE // 8 % 2, _LANE % 2 + _LANE // 16 * 2


def step(kernel: ConvKernel, nhwc: bool) -> tuple[Access, ...]:
    """What one block does to shared memory in one step of 8 channels. Raises OperandError for another kernel."""
    _check(kernel)
    if kernel.form == LARGE:
        return (*_copies(kernel), *_halves(nhwc), *_fragments_4(nhwc))
    return (*_copies(kernel), *_patches(kernel, nhwc), *_fragments(kernel, nhwc))


def way_out(kernel: ConvKernel, nhwc: bool) -> tuple[Access, ...]:
    """What one block does to shared memory on a tile's way out. Raises OperandError for another kernel."""
    _check(kernel)
    if kernel.form == LARGE:
        return tuple(_way_out_4())
    return (*_sums(kernel), *_planes(kernel, nhwc), *_outputs())


def wavefronts(kernel: ConvKernel, nhwc: bool, steps: int, memory: SharedMemory | None = None) -> dict[str, Wavefronts]:
    """Wavefronts of one tile of `steps` steps, under "loads", "stores" and "copies" (asynchronous ones).

    F(2x2): the first fragments of a tile are loaded before its first step; each step loads those of the next one, the last in vain.
    """
    _check(kernel)
    first = () if kernel.form == LARGE else tuple(_fragments(kernel, nhwc))
    sums = {kind: [0, 0, 0] for kind in ("loads", "stores", "copies")}
    for accesses, times in ((step(kernel, nhwc), steps), (way_out(kernel, nhwc), 1)):
        for access in accesses:
            _add(sums, access, times, memory or SharedMemory())
    for access in first:  # one of the 16 units of a step
        unit = Access(access.operand, False, False, access.width, access.addresses[:WARPS], access.active[:WARPS])
        _add(sums, unit, 1, memory or SharedMemory())
    return {kind: Wavefronts(*numbers) for kind, numbers in sums.items()}


def _add(sums: dict[str, list[int]], access: Access, times: int, memory: SharedMemory) -> None:
    counts = memory.count(access.addresses, access.width, access.store, access.active)
    kind = "copies" if access.asynchronous else "stores" if access.store else "loads"
    for i, number in enumerate((len(access.addresses), int(counts.total.sum()), int(counts.minimum.sum()))):
        sums[kind][i] += times * number


def _check(kernel: ConvKernel) -> None:
    if kernel.family != "winograd" or kernel.form not in (*_ROW_WORDS, LARGE):
        raise OperandError(f"{kernel.name} is no fused Winograd kernel; this describes the forms {', '.join(_ROW_WORDS)} and {LARGE}")


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


def _copies(kernel: ConvKernel) -> Iterator[Access]:
    planes = (kernel.outputs + 2) ** 2
    (instruction,) = _loops(planes * kernel.block_k * kernel.block_filters // (4 * LANES))
    yield _access("filters", True, 16, 4 * (instruction * LANES + _LANE), asynchronous=True)


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
    row_words = _ROW_WORDS[kernel.form]
    if kernel.form == "reference":
        of_round, half, k, e, warp = _loops(4, 2, 4, 2, WARPS)
        words = (k * PLANES + warp + 8 * half) * row_words + 4 * (10 * _T + _BH + 4 * e)
        yield _access("sums", True, 16, words, of_round // 2 == _Q)
        return
    _, half, kslot, e, d, warp = _loops(4, 2, 2, 2, 2, WARPS)
    cell = _BH + 4 * e + 8 * _Q
    unit = 34 * _T + cell + 16 * d if kernel.form == "sts64" else 32 * _T + (cell + 2 * _T) % 16 + 16 * d
    yield _access("sums", True, 8, (kslot * PLANES + warp + 8 * half) * row_words + 2 * unit)


def _planes(kernel: ConvKernel, nhwc: bool) -> Iterator[Access]:
    row_words = _ROW_WORDS[kernel.form]
    _, second, plane, warp = _loops(4, 2, PLANES, WARPS)
    t = _LANE % 4 if nhwc else warp % 4
    if kernel.form == "reference":
        kslot, x = warp // 4 + 2 * second, 8 * (warp % 4) + _LANE // 4 if nhwc else _LANE
        within = 40 * t + x
    else:
        kslot, q = warp // 4, _LANE // 4 % 2 if nhwc else _LANE // 16
        x = 4 * (warp % 4) + _LANE // 8 if nhwc else _LANE % 16
        within = (68 * t + 16 * q + x if kernel.form == "sts64" else 64 * t + (16 * q + x + 4 * t) % 32) + 32 * second
    yield _access("sums", False, 4, (kslot * PLANES + plane) * row_words + within)


def _outputs() -> Iterator[Access]:
    word, warp = _loops(2 * PLANES, WARPS)
    words = word * THREADS + warp * LANES + _LANE
    yield _access("outputs", True, 4, words)
    yield _access("outputs", False, 4, words)


# F(4x4)


def _halves(nhwc: bool) -> Iterator[Access]:
    """Half of the lanes store sums 1, 3 and 0 of each column of a patch, the others 2, 4 and 5."""
    warp, which, column = _loops(LARGE_WARPS, 3, 6)
    channel, tile = (warp % 2 * 4 + _LANE % 4, warp // 2 * 4 + _LANE // 4 % 4) if nhwc else (warp // 2, warp % 2 * 16 + _LANE % 16)
    row = np.array([[1, 2], [3, 4], [0, 5]])[which, _LANE // 16]
    yield _access("patches", True, 4, _tiles_4(6 * row + column, channel, tile))


def _tiles_4(plane: Integers, channel: Integers, tile: Integers) -> Integers:
    word: Integers = LARGE_PLANES * STEP * SIDE + plane * PITCH + channel * ROW + tile
    return word


def _places_4(warp: Integers) -> tuple[tuple[Integers, ...], tuple[Integers, ...]]:
    """(plane, first slot, first line) of a lane's 8 x 8 sums, and of its 4 x 2 of a quarter of a plane. Slots are tiles under NCHW."""
    whole = 2 * warp + _LANE // 16, 4 * (_LANE // 2 % 2 + _LANE // 8 % 2 * 2), 4 * (_LANE % 2 + _LANE // 4 % 2 * 2)
    slots = warp // 2 % 2 * 16 + 4 * (_LANE // 2 % 2 + _LANE // 16 * 2)
    return whole, (32 + warp // 4 + 0 * _LANE, slots, warp % 2 * 16 + 2 * (_LANE % 2 + _LANE // 4 % 4 * 2))


def _fragments_4(nhwc: bool) -> Iterator[Access]:
    warp, channel = _loops(LARGE_WARPS, STEP)

    def one(of_slots: bool, width: int, plane: Integers, first: Integers) -> Access:
        if of_slots == nhwc:
            return _access("filters", False, width, (plane * STEP + channel) * SIDE + first)
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
