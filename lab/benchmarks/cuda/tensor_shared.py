# SPDX-License-Identifier: Apache-2.0
"""Predicts the shared-memory wavefronts of a whole launch of a tensor-core product: its warps' loads, stores and copies, bank by bank.

The formulas are those of `native/cuda/mainloop/mma/pipeline.cuh`, `mma.cuh`, `mma_f64.cuh`, `gemm/wmma/wmma.cu` and
`mainloop/wgmma/epilogue.cuh`. With e bytes per element, an operand's tile in a stage has rows of `columns` elements (along k if k is
contiguous in memory, else along m or n), each at

    byte(row, column) = row pitch + column e,    pitch = columns e, made an odd multiple of 16; 32 more if e = 4 and m (n) contiguous

A block does, for each k-iteration:           copies     asynchronous, 16 bytes per thread, neighbouring threads along a row
for each instruction of a k-iteration:        fragments  ldmatrix.x4, 4 x 8 rows of 16 bytes; words if e = 4 and m (n) is contiguous
for each tile that it shares with others:     fix-up     one thread stores a flag, every warp loads it
for each tile that it finishes:               epilogue   accumulators go to rows of block_n + 8 words; rows are read 16 bytes per lane,
                                                         as far as they are inside C
Kernels with more than 64 accumulators per thread prefetch fragments, so they load one instruction's fragments more per tile than they use.

f64: TMA writes the stages; chunk c (16 bytes) of row r is at chunk c ^ (r mod 8). Rows are 128 bytes; if m (n) is contiguous, a TMA box has
16 rows of k of 16 elements of m (n). Lane 4 g + t of a fragment of 16 rows (columns) loads rows 2 g and 2 g + 1 and, for e = 0, 1,
k = 2 t + (e ^ t / 2): 8 bytes each, or both rows of A in one load if they are neighbours. Of B with n contiguous it loads columns g and
g + 8. Results are stored from registers.
wgmma: the warps do only the fix-up. The tensor cores read the operands ("products"): for each instruction 64 x 32 and warp_n x 32 bytes,
128 bytes per wavefront; warpgroups share neither. Not counted: epilogues through shared memory, for rows that are not whole vectors; the
split-K fix-up in a cluster; and A of tf32 passed in registers.

Predicted loads, stores and products equal Nsight Compute's counts on an H200, launch by launch (wavefronts.py). Copies are
predicted as stores of 16 bytes. No counter measures them; on whole tiles the hardware reports no conflicts, where this predicts some.

Worked number, f16_mma_128x128x64_64x32_16x8_s3_c1x1: per k-iteration 4 instructions x 8 warps x (4 + 2) ldmatrix.x4 = 192 of 4 wavefronts.
"""

from collections.abc import Iterable, Iterator
from functools import cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.shared_memory.banks import LANES, SharedMemory
from pysim.cachemodel.shared_memory.gemm_shared import Access, Wavefronts, counted
from pysim.errors import OperandError
from pysim.problem.gemm import Gemm
from pysim.record.schedule import GpuSchedule
from pysim.registry.cuda import WARP, GemmKernel

Integers = NDArray[np.int64]
Counted = dict[str, Wavefronts]
KINDS = ("loads", "stores", "copies", "products")

_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "tf32x3": 4, "s8": 1, "f64": 8}
_CHUNK = 16  # bytes per copy of a thread, and per row of an ldmatrix
_MARGIN = 8  # padding of the epilogue's rows, in accumulators


class Pieces(msgspec.Struct, frozen=True):
    """How a launch divides its work: tiles of C, k-iterations of all tiles, (block, tile) pairs, and those of tiles in several parts."""

    tiles: int
    steps: int
    pieces: int
    shared: int


def pieces(kernel: GemmKernel, w: Gemm, schedule: GpuSchedule) -> Pieces:
    """The decomposition of `native/cuda/core/decomposition.cuh`; a cluster counts as one block with a tile of its size."""
    high, wide = kernel.block_m * kernel.cluster_m, kernel.block_n * kernel.cluster_n
    tiles, steps = -(-w.m // high) * -(-w.n // wide), -(-w.k // kernel.block_k)
    if schedule.decomposition == "data_parallel":
        return Pieces(tiles, tiles * steps, tiles, 0)
    if schedule.decomposition == "split_k":
        return Pieces(tiles, tiles * steps, tiles * schedule.splits, tiles * schedule.splits)
    edges = np.arange(schedule.splits + 1) * tiles * steps // schedule.splits
    inner = edges[1:-1]
    cuts = np.bincount(inner[inner % steps != 0] // steps, minlength=tiles)  # cuts inside each tile
    return Pieces(tiles, tiles * steps, tiles + int(cuts.sum()), int((cuts[cuts > 0] + 1).sum()))


def wavefronts(kernel: GemmKernel, w: Gemm, schedule: GpuSchedule, memory: SharedMemory | None = None) -> Counted:
    """Wavefronts of all blocks of a launch: "loads", "stores", "copies" (asynchronous ones), "products" (wgmma's reads).

    Operands are as the kernel reads them: for a kernel that needs k contiguous, the layout makes no difference. Layout conversion is not
    counted. Raises OperandError for a kernel of another family or type, and for tf32x3.
    """
    if kernel.tiles.parts > 1:
        raise OperandError(f"{kernel.name} reads A into registers and B three times, which nobody has counted yet")
    if not kernel.tiles.tensor or kernel.dtype != w.dtype:
        raise OperandError(f"{kernel.name} is no tensor-core kernel for {w.dtype}; this describes the families wmma, mma and wgmma")
    memory = memory or SharedMemory()
    cut = pieces(kernel, w, schedule)
    blocks = kernel.cluster_m * kernel.cluster_n
    meeting = _count(_meeting(kernel), memory)
    parts = [(meeting, cut.shared * blocks)]
    if kernel.tiles.by_warpgroups:
        parts.append((_products(kernel), cut.steps * blocks))
    else:
        instructions = kernel.block_k // _depth(kernel)
        ahead = cut.pieces if kernel.dtype != "f64" and kernel.warp_m * kernel.warp_n // WARP > 64 else 0
        k_major = kernel.k_major
        copied, fetched = _step(kernel, not k_major and w.trans_a, k_major or w.trans_b, memory)
        parts += [(copied, cut.steps), (fetched, cut.steps * instructions + ahead)]
        for rows, high in _extents(w.m, kernel.block_m) if kernel.dtype != "f64" else ():
            parts += [(_count(_way_out(kernel, rows, columns), memory), high * wide) for columns, wide in _extents(w.n, kernel.block_n)]
    return {kind: _sum((part[kind], times) for part, times in parts) for kind in KINDS}


def copies(kernel: GemmKernel, operand: str, k_last: bool) -> Iterator[Access]:
    """The copies of an operand's tile into its stage in one k-iteration."""
    if kernel.dtype == "f64":
        return
    rows, columns = _shape(kernel, operand, k_last)
    pitch, chunks, threads = pitch_of(kernel, operand, k_last), columns * _BYTES[kernel.dtype] // _CHUNK, kernel.math_threads
    thread = np.arange(threads).reshape(-1, LANES)
    for first in range(0, rows, threads // chunks):
        row = first + thread // chunks
        active = row < rows
        warps = active.any(axis=1)
        yield Access(operand, True, True, _CHUNK, (row * pitch + thread % chunks * _CHUNK)[warps], active[warps])


def fragments(kernel: GemmKernel, operand: str, k_last: bool) -> Iterator[Access]:
    """All warps' loads of one operand's fragments for one instruction, at the stage's first k.

    Further instructions of a k-iteration shift all lanes alike: to another column or row, or, f64, by an exclusive or with 64.
    """
    warp, warps_n = np.arange(kernel.math_threads // WARP), kernel.block_n // kernel.warp_n
    first = warp // warps_n * kernel.warp_m if operand == "A" else warp % warps_n * kernel.warp_n
    extent = kernel.warp_m if operand == "A" else kernel.warp_n
    base = (first[:, None] + np.arange(0, extent, 16)).reshape(-1, 1)  # 16 rows of A or columns of B at a time
    everyone = np.ones((len(base), LANES), np.bool_)
    lane: Integers = np.arange(LANES)
    if kernel.dtype == "f64":
        g, t = lane // 4, lane % 4
        pairs = k_last or operand == "A"
        for e in (0, 1):
            k = 2 * t + (e ^ t // 2)
            for row in (0, 1) if k_last or not pairs else (0,):
                m = 2 * g + row if pairs else g + 8 * row
                if k_last:
                    address = (base + m) * 128 + (k // 2 ^ m % 8) * _CHUNK + k % 2 * 8
                else:
                    address = base * 128 + k * 128 + (m // 2 ^ k) * _CHUNK + m % 2 * 8
                yield Access(operand, False, False, 8 if k_last or not pairs else _CHUNK, address, everyone)
        return
    # 16 rows (columns) x 32 bytes of k, or, with a transposing load, 16 of k x 16 rows
    upper, column_half = lane // 8 % 2, lane // 16
    if operand == "B":
        upper, column_half = column_half, upper
    element, pitch = _BYTES[kernel.dtype], pitch_of(kernel, operand, k_last)
    if element == 4 and not k_last:
        for down, right in ((0, 0), (1, 0), (0, 1), (1, 1)):
            address = (lane % 4 + 4 * right) * pitch + (base + lane // 4 + 8 * down) * element
            yield Access(operand, False, False, element, address, everyone)
        return
    if k_last:
        address = (base + lane % 8 + 8 * upper) * pitch + column_half * _CHUNK
    else:
        address = (lane % 8 + 8 * column_half) * pitch + (base + 8 * upper) * element
    yield Access(operand, False, False, _CHUNK, address, everyone)


def pitch_of(kernel: GemmKernel, operand: str, k_last: bool) -> int:
    """Bytes between rows of an operand's tile: SharedTile of pipeline.cuh."""
    element = _BYTES[kernel.dtype]
    size = _shape(kernel, operand, k_last)[1] * element
    if element == 4 and not k_last:
        return size + 32
    return size if size % 32 else size + 16


def _shape(kernel: GemmKernel, operand: str, k_last: bool) -> tuple[int, int]:
    """Rows and columns of an operand's tile in a stage."""
    extent = kernel.block_m if operand == "A" else kernel.block_n
    return (extent, kernel.block_k) if k_last else (kernel.block_k, extent)


def _depth(kernel: GemmKernel) -> int:
    """Elements of k per instruction: 32 bytes; f64: 8 elements."""
    return 8 if kernel.dtype == "f64" else 32 // _BYTES[kernel.dtype]


def _extents(size: int, block: int) -> Iterator[tuple[int, int]]:
    """Extents of blocks inside `size`, and the number of blocks with each."""
    if size >= block:
        yield block, size // block
    if size % block:
        yield size % block, 1


def _way_out(kernel: GemmKernel, rows: int, columns: int) -> Iterator[Access]:
    """The epilogue of a tile through shared memory; `rows` x `columns` of it are inside C."""
    size, threads = kernel.sum_bytes, kernel.math_threads
    pitch, width = (kernel.block_n + _MARGIN) * size, min(_CHUNK, 4 * size)
    lane, warp = np.arange(LANES), np.arange(threads // WARP)
    warps_n = kernel.block_n // kernel.warp_n
    i, j, h, of_warp = np.meshgrid(np.arange(kernel.warp_m // 16), np.arange(kernel.warp_n // 8), np.arange(2), warp, indexing="ij")
    row = (of_warp // warps_n * kernel.warp_m + 16 * i + 8 * h).reshape(-1, 1) + lane // 4
    column = (of_warp % warps_n * kernel.warp_n + 8 * j).reshape(-1, 1) + lane % 4 * 2
    yield Access("C", True, False, 2 * size, row * pitch + column * size, np.ones(row.shape, np.bool_))
    across = kernel.block_n * size // width
    vector = np.arange(kernel.block_m * across).reshape(-1, LANES)
    row, column = vector // across, vector % across * (width // size)
    active = (row < rows) & (column < columns)
    warps = active.any(axis=1)
    yield Access("C", False, False, width, (row * pitch + column * size)[warps], active[warps])


def _meeting(kernel: GemmKernel) -> Iterator[Access]:
    """One thread stores whether the block is the last of its tile; all threads load that."""
    warps = kernel.math_threads // WARP
    first = (np.arange(LANES) == 0)[None]
    yield Access("flag", True, False, 4, np.zeros((1, LANES), np.int64), first)
    yield Access("flag", False, False, 4, np.zeros((warps, LANES), np.int64), np.ones((warps, LANES), np.bool_))


def _products(kernel: GemmKernel) -> Counted:
    """The tensor cores' reads for a block's k-iteration: 4 instructions of 64 rows and 32 bytes of k for each 64 rows."""
    instructions = kernel.block_m // 64 * (kernel.block_n // kernel.warp_n) * 4
    total = instructions * (64 + kernel.warp_n) * 32 // 128
    return {kind: Wavefronts(instructions, total, total) if kind == "products" else Wavefronts(0, 0, 0) for kind in KINDS}


@cache
def _step(kernel: GemmKernel, trans_a: bool, trans_b: bool, memory: SharedMemory) -> tuple[Counted, ...]:
    """One k-iteration of a block: its copies, and one instruction's fragments."""
    ways = (("A", not trans_a), ("B", bool(trans_b)))
    return tuple(_count((access for way in ways for access in what(kernel, *way)), memory) for what in (copies, fragments))


def _count(accesses: Iterable[Access], memory: SharedMemory) -> Counted:
    return counted([(accesses, 1)], memory) | {"products": Wavefronts(0, 0, 0)}


def _sum(parts: Iterable[tuple[Wavefronts, int]]) -> Wavefronts:
    total = [0, 0, 0]
    for part, times in parts:
        for i, number in enumerate((part.instructions, part.total, part.minimum)):
            total[i] += number * times
    return Wavefronts(*total)
