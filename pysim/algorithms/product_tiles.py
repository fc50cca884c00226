# SPDX-License-Identifier: Apache-2.0
"""The tiles of a product's launch by a row of `native/cuda/gemm`.

Rows whose tiles narrow (down to `narrows` columns, native/cuda/gemm/rows.h) take as many columns a tile as make the launch's last wave
full: a k-iteration takes as long as its tile has columns, and wide tiles leave SMs idle in the last wave. All tiles of a launch have
equally many. Where partial sums pass through memory tiles are whole.

Worked number: 577 x 4096 by tiles of 128 x 192 is 5 x 22 tiles, one wave of 132 SMs; 5 x 26 tiles of 160 columns are one wave, too.
"""

import msgspec

from pysim.machine.gpu import Gpu
from pysim.problem.gemm import Gemm
from pysim.record.schedule import GpuSchedule
from pysim.registry.cuda import GemmKernel, Tiles

COLUMNS, COLUMNS_ALONG_N = 16, 32  # that widths are multiples of, and those of a B whose rows lie along n


def computed(problem: Gemm, kernel: GemmKernel) -> Gemm:
    """The product as a kernel computes it: C' = B' A' where the kernel's second operand must be K-major, and only A is; or neither is, and
    copying A in place of B, read and written, saves more elements than C has, whose rows are columns then (native/cuda/abi/gemm.cu).

    Worked number: 160x4192x2544 of tn copies 1.6 MB in place of 43 MB."""
    m, n, k = problem.m, problem.n, problem.k
    if kernel.k_major != 2 or problem.trans_b or (problem.trans_a and 2 * (n - m) * k < m * n):
        return problem
    return msgspec.structs.replace(problem, m=problem.n, n=problem.m, trans_a=True, trans_b=not problem.trans_a)


def iterations_of(problem: Gemm, kernel: GemmKernel) -> int:
    """K-iterations of all whole tiles together."""
    return tiles_of(problem, kernel) * -(-problem.k // kernel.block_k)


def tiles_of(problem: Gemm, kernel: GemmKernel, tiles: Tiles | None = None) -> int:
    """Tiles of C, by default whole ones: those of a cluster where the kernel has clusters."""
    tiles, problem = tiles or kernel.tiles, computed(problem, kernel)
    return -(-problem.m // (tiles.rows * tiles.cluster_rows)) * -(-problem.n // (tiles.columns * tiles.cluster_columns))


def tiles_of_launch(gpu: Gpu, problem: Gemm, kernel: GemmKernel, schedule: GpuSchedule) -> Tiles:
    """The tiles of a launch."""
    through_memory = schedule.decomposition == "stream_k" or schedule.splits > max(1, kernel.reduces_in_cluster)
    return kernel.tiles if through_memory else narrowed(kernel.tiles, columns_of_tile(gpu, computed(problem, kernel), kernel))


def blocks_of(gpu: Gpu, problem: Gemm, kernel: GemmKernel, schedule: GpuSchedule) -> int:
    """Blocks of a launch, if each has one tile or part of one."""
    tiles = tiles_of_launch(gpu, problem, kernel, schedule)
    return schedule.splits * (1 if schedule.decomposition == "stream_k" else tiles_of(problem, kernel, tiles)) * tiles.blocks


def narrowed(tiles: Tiles, columns: int) -> Tiles:
    """Tiles with so many columns, of which one instruction has all if they are fewer."""
    if columns == tiles.columns:
        return tiles
    return msgspec.structs.replace(tiles, columns=columns, warp_columns=columns, thread_columns=columns)


def columns_of_tile(gpu: Gpu, own: Gemm, kernel: GemmKernel) -> int:
    """Columns of a block's tile where no partial sums pass through memory (native/cuda/mainloop/wgmma/kernel.cuh). `own`: the product as
    the kernel computes it."""
    tiles = kernel.tiles
    if not kernel.narrows or (kernel.k_major > 1 and own.trans_a):
        return tiles.columns
    unit = COLUMNS if own.trans_b or kernel.k_major else COLUMNS_ALONG_N
    return even_columns(-(-own.m // tiles.rows), own.n, kernel.narrows, tiles.columns, unit, gpu.sms.value)


def even_columns(tiles_m: int, n: int, least: int, most: int, unit: int, sms: int) -> int:
    """Columns of tiles of `least` to `most` columns, a multiple of `unit`, in `tiles_m` rows of tiles: as many tiles as run in the waves
    that the widest ones take, one an SM (native/cuda/mainloop/wgmma/shape.h)."""
    fewest, least = -(-n // most), -(-least // unit) * unit
    waves = -(-tiles_m * fewest // sms)
    tiles = max(fewest, min(waves * sms // tiles_m, -(-n // least)))
    columns = -(-n // tiles)
    return max(least, -(-columns // unit) * unit)
