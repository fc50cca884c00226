# SPDX-License-Identifier: Apache-2.0
"""What one step along k of one block of a tiled GPU kernel takes of its SM, and what a block holds.

    cycles = max(multiply-adds / fma_per_cycle[pipe], wavefronts of shared memory, instructions / schedulers)

Of threads that multiply, instructions and wavefronts are counted address by address (`gemm_shared`); of tensor cores they follow from what
the instructions read, without conflicts: a warp keeps fragments for its whole tile, a warpgroup's instruction reads its rows and columns
from shared memory. A producer's loads by TMA cost no instructions. Products of halves or thirds are made of fragments in registers, where
SPLIT_INSTRUCTIONS, or THIRDS_INSTRUCTIONS, make them of an element; warpgroups have A there alone, and read B's bytes three times. Each
promotion adds the accumulators to the sums. A warpgroup's A of tf32 that is not K-major passes through registers, too, and two lanes of
its loads meet in a bank.

Worked number: a step of 8 of 128 x 128 in FP32 on V100 takes 128 * 128 * 8 / 64 = 2048 cycles of an SM's FP32 pipe.
"""

from functools import lru_cache
from typing import NamedTuple

from pysim.cachemodel.gpu.occupancy import pipe_of
from pysim.cachemodel.shared_memory.banks import SharedMemory
from pysim.cachemodel.shared_memory.gemm_shared import wavefronts
from pysim.machine.gpu import Gpu
from pysim.problem.dtypes import SIZES, SUM_BYTES
from pysim.registry.cuda import WARP, Attributes, Tiles

LINE_BYTES = 128
VECTOR_BYTES = 16
INSTRUCTION_BYTES = 32  # along k, of a tensor-core instruction
EDGE_INSTRUCTIONS = 4  # of an element that is loaded on its own: compare, address, load, or else zero
SINGLE_INSTRUCTIONS = 2  # of one side by side with its neighbours, beyond its part of a vector's: 3 in all, load, store, part of an address
LINES_ALONG_K, LINES_ALONG_OUTPUTS = 4 * (1 + 28 / LINE_BYTES), 1 + 124 / LINE_BYTES  # of their loads: 4 x 32 bytes, or 128, from anywhere
SINGLES_MOST, SINGLES_PAD = 128 * 64, 16  # outputs of a tile whose elements may come so; bytes that a line of its stages has more
SPLIT_INSTRUCTIONS = 9  # of an element of A: a load, and its thirds; of halves 7 in all (native/cuda/core/split.cuh)
THIRDS_INSTRUCTIONS = 5.5  # of an element of A or B where both are split: of two, 3 conversions, 2 x 2 unpacked and subtracted
PACKED = {"f16": 2, "s8": 4}  # multiply-adds of a lane in one SIMT instruction: half2, dp4a
BARRIER_BYTES, FLAG_BYTES, ALIGNMENT = 16, 16, 1024  # of a producer's stages: two barriers each, a flag, room to align
PASSAGE_BYTES = 16 * 40 * 4  # of a warp of a warpgroup that multiplies, for rows of results that are no whole vectors
PASSAGE_ROWS, PASSAGE_PAD = 8, 4  # of another producer's warp, for all (native/cuda/mainloop/tensor/mma_f64.cuh)


class Work(NamedTuple):
    """What one step of one block costs its SM, before any efficiency: cycles of each resource."""

    arithmetic: float
    shared: float
    issue: float

    @property
    def cycles(self) -> float:
        return max(self)


def stage_bytes(tiles: Tiles) -> int:
    """Bytes of both operands that one stage keeps in shared memory, padding aside."""
    return round((tiles.rows + tiles.columns * tiles.parts) * tiles.depth * SIZES[tiles.dtype])


def by_singles(tiles: Tiles) -> bool:
    """Whether threads take operands that are no whole vectors element by element, side by side (native/cuda/mainloop/simt/shape.h)."""
    whole = tiles.dtype == "f32" and not tiles.tensor and tiles.vectors and tiles.spread
    return whole and tiles.stages < 3 and tiles.rows * tiles.columns <= SINGLES_MOST


def shared_bytes(tiles: Tiles) -> int:
    """Bytes of shared memory of a block: stages, and where it is larger the tile of results on its way out."""
    result, size = SUM_BYTES[tiles.dtype], SIZES[tiles.dtype]
    if tiles.producer:
        sets = 1 + tiles.pingpong
        passage = PASSAGE_BYTES if tiles.by_warpgroups else PASSAGE_ROWS * (tiles.warp_columns + PASSAGE_PAD) * size
        passages = sets * tiles.math_threads // WARP * passage
        return tiles.stages * (stage_bytes(tiles) + BARRIER_BYTES) + FLAG_BYTES * sets + passages + ALIGNMENT
    if not tiles.tensor:
        packed = 2 if tiles.dtype == "f16" else 1  # half2 sums
        padding = 2 * SINGLES_PAD * tiles.depth * by_singles(tiles)
        return max(tiles.stages * (stage_bytes(tiles) + padding), tiles.rows * tiles.columns * result // packed)
    row = tiles.depth * size
    pitch = row if row % 32 else row + 16  # rows of k are padded to an odd multiple of 16 bytes
    return max(tiles.stages * (tiles.rows + tiles.columns) * pitch, tiles.rows * (tiles.columns + 8) * result)


def estimated(tiles: Tiles) -> Attributes:
    """What follows from a kernel's tiles where nobody read it from the compiler."""
    words = SUM_BYTES[tiles.dtype] // 4
    sums = tiles.rows * tiles.columns * words // tiles.math_threads
    fragments = 24 if tiles.tensor else 2 * (tiles.thread_rows + tiles.thread_columns) * words
    registers = min(255, (sums + fragments + 40 + 7) // 8 * 8)
    if tiles.by_warpgroups:  # all registers of the SM, divided unevenly once the block runs
        registers = min(168, 65536 // tiles.threads // 8 * 8)
    elif tiles.promotion:  # as many as threads of an SM leave each (native/cuda/mainloop/tensor/pipeline.cuh)
        registers = 168 if sums <= 32 else 255
    elif tiles.producer:  # of its half of the SM, where it has four multiplying warps
        registers = 168 if tiles.math_threads == 256 else min(128, registers)
    return Attributes(tiles.threads, registers, shared_bytes(tiles))


@lru_cache(maxsize=4096)
def work(
    gpu: Gpu,
    tiles: Tiles,
    trans_a: bool = False,
    trans_b: bool = False,
    ragged: tuple[bool, ...] = (False, False),
    by_registers: bool = False,
) -> Work:
    """Cycles of a step of a product; `ragged` (A, B): rows are no whole vectors, and threads load element by element; `by_registers`: a
    warpgroup's A comes so."""
    size, products = SIZES[tiles.dtype], tiles.rows * tiles.columns * tiles.depth
    arithmetic = products * tiles.products / gpu.fma_per_cycle[pipe_of(gpu, tiles.pipe) or ""].value
    stage = stage_bytes(tiles)
    instructions_apart, apart = _singles(tiles, trans_a, trans_b, ragged)
    # loads, and their addresses
    copies = stage / VECTOR_BYTES / WARP * (0 if tiles.producer else 2) + instructions_apart
    if not tiles.tensor:
        counted = wavefronts(tiles, trans_a, trans_b, SharedMemory(rule=gpu.shared_rule)).values()
        issue = products / PACKED.get(tiles.dtype, 1) / WARP + sum(one.instructions for one in counted) + copies
        return Work(arithmetic, sum(one.total for one in counted) + apart, issue / gpu.schedulers_per_sm.value)
    groups, instructions = (
        tiles.math_threads // tiles.group,
        (tiles.warp_rows // tiles.thread_rows) * (tiles.warp_columns // tiles.thread_columns),
    )
    warp = tiles.warp_rows + tiles.warp_columns
    read = instructions * (tiles.thread_rows + tiles.thread_columns * tiles.products) if tiles.by_warpgroups else warp
    moved = groups * tiles.warp_rows * tiles.depth if by_registers else 0  # elements
    read += tiles.warp_rows - instructions * tiles.thread_rows if by_registers else 0
    shared = (groups * read * tiles.depth + moved) * size / LINE_BYTES + stage / LINE_BYTES + apart
    loads = 0 if tiles.by_warpgroups else groups * warp * tiles.depth * size / (VECTOR_BYTES * WARP)
    deep = INSTRUCTION_BYTES / size  # of one instruction along k; each of a warpgroup's four warps issues it
    issued = products * tiles.products / (tiles.thread_rows * tiles.thread_columns * deep) * (tiles.group // WARP)
    if tiles.promotion:
        split = tiles.warp_rows * SPLIT_INSTRUCTIONS if tiles.by_warpgroups else warp * THIRDS_INSTRUCTIONS
        issued += (groups * tiles.depth * split + 2 * products / tiles.promotion) / WARP
    issued += moved / WARP
    return Work(arithmetic, shared, (issued + 2 * loads + copies) / gpu.schedulers_per_sm.value)


def _singles(tiles: Tiles, trans_a: bool, trans_b: bool, ragged: tuple[bool, ...]) -> tuple[float, float]:
    """Instructions that loads of single elements take beyond those of vectors, and wavefronts; a producer's copy engine takes rows as they
    are."""
    if tiles.by_warpgroups:
        return 0.0, 0.0
    single = (ragged[0] * tiles.rows + ragged[1] * tiles.columns) * tiles.depth / WARP
    if not any(ragged) or not by_singles(tiles):  # lanes stay a vector apart, so each load touches as many lines as one of vectors
        return EDGE_INSTRUCTIONS * single, single * VECTOR_BYTES * WARP / LINE_BYTES
    along_k = tiles.rows * (not trans_a) + tiles.columns * trans_b  # both come so where one must
    outputs = tiles.rows + tiles.columns - along_k
    wavefronts = LINES_ALONG_K * along_k + LINES_ALONG_OUTPUTS * outputs
    return SINGLE_INSTRUCTIONS * (along_k + outputs) * tiles.depth / WARP, wavefronts * tiles.depth / WARP
