# SPDX-License-Identifier: Apache-2.0
"""SM cycles of one k-iteration of one block of a tiled GPU kernel, and the resources that a block holds.

    cycles = max(multiply-adds / fma_per_cycle[pipe], shared-memory wavefronts, instructions / schedulers)

SIMT kernels: instructions and wavefronts are counted address by address (`gemm_shared`). Tensor-core kernels: both follow from what the
instructions read, without conflicts. A warp (mma) loads the fragments of its whole tile once; a warpgroup's instruction (wgmma) reads its
rows and columns from shared memory. TMA loads by a producer warp cost no instructions.

Products of FP32 as parts of its numbers (tf32 halves, bf16 thirds) make the parts in registers, at SPLIT_A_INSTRUCTIONS or
THIRDS_INSTRUCTIONS an element; warpgroups make those of A only, and read the bytes of B three times. Each promotion adds the tensor cores'
accumulators to FP32 registers. A warpgroup's tf32 A that is not K-major also passes through registers; each of its loads has a
two-way bank conflict, and the warpgroup multiplies only when they are done.

Worked number: a k-iteration of 8 of 128 x 128 in FP32 on V100 takes 128 * 128 * 8 / 64 = 2048 cycles of an SM's FP32 pipe.
"""

from functools import lru_cache
from typing import NamedTuple

from pysim.cachemodel.gpu.occupancy import pipe_of
from pysim.cachemodel.shared_memory.banks import SharedMemory
from pysim.cachemodel.shared_memory.gemm_shared import wavefronts
from pysim.machine.gpu import Gpu, SharedRule
from pysim.problem.dtypes import SIZES, SUM_BYTES
from pysim.registry.cuda import WARP, Attributes, Tiles

LINE_BYTES = 128
VECTOR_BYTES = 16
WORD_BYTES = 4
INSTRUCTION_BYTES = 32  # along k, of a tensor-core instruction
MMA_PRODUCTS = 16 * 8 * 16  # of a warp's instruction, m16n8k16
# Operands whose rows are no whole vectors: instructions of an element loaded on its own (compare, address, load, or zero); of one that
# adjacent lanes load side by side, beyond its part of a vector's (3 in all: load, store, part of an address); lines that such a load
# touches: 4 x 32 bytes along k, or 128 along the outputs, from any address; tiles that load so: their most outputs, padding of a line
EDGE_INSTRUCTIONS, SIDE_BY_SIDE_INSTRUCTIONS = 4, 2
LINES_ALONG_K, LINES_ALONG_OUTPUTS = 4 * (1 + 28 / LINE_BYTES), 1 + 124 / LINE_BYTES
SIDE_BY_SIDE_OUTPUTS, SIDE_BY_SIDE_PADDING = 128 * 64, 16
SINGLE_INSTRUCTIONS = (
    3  # of an element that a lane of `streamed` loads on its own (H200: of 2, 3, 4 and 6 the least error of 33 launches, 8 %)
)
SPLIT_A_INSTRUCTIONS = 9  # of an element of a warpgroup's A: a load, and its thirds; of halves 7 in all (native/cuda/core/split.cuh)
THIRDS_INSTRUCTIONS = 5.5  # of an element of A or B where warps split both: of two, 3 conversions, 2 x 2 unpacked and subtracted
A_LOAD_CYCLES = 4.5  # of 128 bytes of A on their way to a warpgroup's registers: two wavefronts, and waiting (fitted: docs/gpu.md)
PACKED = {"f16": 2, "s8": 4}  # multiply-adds of a lane in one SIMT instruction: half2, dp4a
BARRIER_BYTES, FLAG_BYTES, ALIGNMENT = 16, 16, 1024  # of a producer's stages: two barriers each, a flag, room to align
WARPGROUP_STORE_BYTES = 16 * 40 * 4  # staging of a warp of a warpgroup for rows of C that are no whole vectors
WARP_STORE_ROWS, WARP_STORE_PADDING = 8, 4  # staging of another producer kernel's warp (native/cuda/mainloop/mma/mma_f64.cuh)


class Work(NamedTuple):
    """Cycles of each SM resource that one k-iteration of one block takes, before any efficiency."""

    arithmetic: float
    shared: float
    issue: float

    @property
    def cycles(self) -> float:
        return max(self)


def stage_bytes(tiles: Tiles) -> int:
    """Bytes of both operands in one shared-memory stage, without padding."""
    row = tiles.depth * SIZES[tiles.dtype]
    first = tiles.rows * row
    if tiles.taps > 1:  # its rows serve all taps
        first = -(-(tiles.rows + tiles.taps - 1) * row // tiles.taps // ALIGNMENT) * ALIGNMENT
    return round(first + tiles.columns * tiles.parts * row)


def loads_side_by_side(tiles: Tiles) -> bool:
    """Whether adjacent lanes load adjacent elements where rows are no whole vectors (native/cuda/mainloop/simt/shape.h)."""
    vectors = tiles.dtype == "f32" and not tiles.tensor and tiles.vectors and tiles.spread
    return vectors and tiles.stages < 3 and tiles.rows * tiles.columns <= SIDE_BY_SIDE_OUTPUTS


def shared_bytes(tiles: Tiles) -> int:
    """Bytes of shared memory of a block: its stages, or the result tile of the epilogue where that is larger."""
    result, size = SUM_BYTES[tiles.dtype], SIZES[tiles.dtype]
    if tiles.producer:
        sets = 1 + tiles.pingpong
        of_warp = WARPGROUP_STORE_BYTES if tiles.by_warpgroups else WARP_STORE_ROWS * (tiles.warp_columns + WARP_STORE_PADDING) * size
        staging = sets * tiles.math_threads // WARP * of_warp
        return tiles.stages * (stage_bytes(tiles) + BARRIER_BYTES) + FLAG_BYTES * sets + staging + ALIGNMENT
    if tiles.k_warps > 1 and tiles.tensor:  # B and the parts of two rounds, and the results on their way to memory
        copies = 2 * tiles.columns * tiles.depth * size * tiles.k_warps
        return copies + tiles.rows * (2 * tiles.columns * tiles.k_warps + tiles.columns + 8) * result
    if tiles.k_warps > 1:
        return tiles.rows * tiles.columns * tiles.k_warps * result
    if not tiles.tensor:
        packed = 2 if tiles.dtype == "f16" else 1  # half2 accumulators
        padding = 2 * SIDE_BY_SIDE_PADDING * tiles.depth * loads_side_by_side(tiles)
        return max(tiles.stages * (stage_bytes(tiles) + padding), tiles.rows * tiles.columns * result // packed)
    row = tiles.depth * size
    pitch = row if row % 32 else row + 16  # rows of k are padded to an odd multiple of 16 bytes
    return max(tiles.stages * (tiles.rows + tiles.columns) * pitch, tiles.rows * (tiles.columns + 8) * result)


def estimated(tiles: Tiles) -> Attributes:
    """Threads, registers and shared memory by a kernel's tiles, where the compiler was not asked."""
    words = SUM_BYTES[tiles.dtype] // 4
    accumulators = tiles.rows * tiles.columns * words // tiles.math_threads
    fragments = 24 if tiles.tensor else 2 * (tiles.thread_rows + tiles.thread_columns) * words
    registers = min(255, (accumulators + fragments + 40 + 7) // 8 * 8)
    if tiles.by_warpgroups:  # all registers of the SM: a running block redistributes them
        registers = min(168, 65536 // tiles.threads // 8 * 8)
    elif tiles.promotion:  # the SM's registers over its threads (native/cuda/mainloop/mma/pipeline.cuh)
        registers = 168 if accumulators <= 32 else 255
    elif tiles.producer:  # four multiplying warps have half of the SM's
        registers = 168 if tiles.math_threads == 256 else min(128, registers)
    return Attributes(tiles.threads, registers, shared_bytes(tiles))


@lru_cache(maxsize=4096)
def _shared(tiles: Tiles, trans_a: bool, trans_b: bool, rule: SharedRule) -> tuple[int, int]:
    """Instructions and wavefronts of shared memory in a k-iteration of a SIMT kernel; GPUs of one rule have the same."""
    counted = wavefronts(tiles, trans_a, trans_b, SharedMemory(rule=rule)).values()
    return sum(one.instructions for one in counted), sum(one.total for one in counted)


@lru_cache(maxsize=4096)
def work(
    gpu: Gpu,
    tiles: Tiles,
    trans_a: bool = False,
    trans_b: bool = False,
    ragged: tuple[float, ...] = (0, 0),
    a_in_registers: bool = False,
    one_row: bool = False,
) -> Work:
    """A k-iteration of a product. `ragged` (A, B): loads of an element where rows are no whole vectors (`loads_of_element`), else 0;
    `a_in_registers`: a warpgroup reads A from registers; `one_row`: A has one row."""
    size, products = SIZES[tiles.dtype], tiles.rows * tiles.columns * tiles.depth
    arithmetic = products * tiles.products / gpu.fma_per_cycle[pipe_of(gpu, tiles.pipe) or ""].value
    stage = stage_bytes(tiles)
    if tiles.k_warps > 1 and tiles.tensor:  # warps make thirds of both and multiply them; one row is split once
        elements = ((1 if one_row else tiles.rows) + tiles.columns) * tiles.depth
        instructions = 2 * tiles.products * products / MMA_PRODUCTS
        issued = elements * THIRDS_INSTRUCTIONS / WARP + instructions + stage / size / WARP  # a load and its address for a pair
        return Work(arithmetic, stage / LINE_BYTES, issued / gpu.schedulers_per_sm.value)
    if tiles.k_warps > 1:  # lanes load vectors to registers, convert each element and add its products
        elements = (tiles.rows + tiles.columns) * tiles.depth
        loads = SINGLE_INSTRUCTIONS * elements if any(ragged) else 2 * stage / VECTOR_BYTES
        issued = products + elements * (size < WORD_BYTES) + loads
        return Work(arithmetic, stage / LINE_BYTES, issued / WARP / gpu.schedulers_per_sm.value)
    ragged_instructions, ragged_wavefronts = _ragged_loads(tiles, trans_a, trans_b, ragged)
    # loads and their addresses
    copies = stage / VECTOR_BYTES / WARP * (0 if tiles.producer else 2) + ragged_instructions
    if not tiles.tensor:
        shared_instructions, shared_wavefronts = _shared(tiles, trans_a, trans_b, gpu.shared_rule)
        issue = products / PACKED.get(tiles.dtype, 1) / WARP + shared_instructions + copies
        return Work(arithmetic, shared_wavefronts + ragged_wavefronts, issue / gpu.schedulers_per_sm.value)
    groups = tiles.math_threads // tiles.group  # warps, or warpgroups
    instructions = (tiles.warp_rows // tiles.thread_rows) * (tiles.warp_columns // tiles.thread_columns)
    both = tiles.warp_rows + tiles.warp_columns
    read = instructions * (tiles.thread_rows + tiles.thread_columns * tiles.products) if tiles.by_warpgroups else both
    through_registers = groups * tiles.warp_rows * tiles.depth if a_in_registers else 0  # elements of A
    read += tiles.warp_rows - instructions * tiles.thread_rows if a_in_registers else 0
    shared = (groups * read * tiles.depth + through_registers) * size / LINE_BYTES + stage / LINE_BYTES + ragged_wavefronts
    loads = 0 if tiles.by_warpgroups else groups * both * tiles.depth * size / (VECTOR_BYTES * WARP)
    depth = INSTRUCTION_BYTES / size  # of one instruction along k; each of a warpgroup's four warps issues it
    issued = products * tiles.products / (tiles.thread_rows * tiles.thread_columns * depth) * (tiles.group // WARP)
    if tiles.promotion:
        split = tiles.warp_rows * SPLIT_A_INSTRUCTIONS if tiles.by_warpgroups else both * THIRDS_INSTRUCTIONS
        issued += (groups * tiles.depth * split + 2 * products / tiles.promotion) / WARP
    issued += through_registers / WARP
    if a_in_registers:  # only another warpgroup's products hide these loads
        arithmetic = max(arithmetic, (arithmetic + A_LOAD_CYCLES * through_registers * size / LINE_BYTES) / groups)
    return Work(arithmetic, shared, (issued + 2 * loads + copies) / gpu.schedulers_per_sm.value)


def loads_of_element(tiles: Tiles, pitch: int) -> float:
    """Loads of an element of rows `pitch` bytes apart that are no whole vectors, else 0. Tensor-core kernels copy rows of whole words by
    words (native/cuda/mainloop/mma/pipeline.cuh)."""
    size = SIZES[tiles.dtype]
    if pitch % VECTOR_BYTES == 0:
        return 0
    return size / WORD_BYTES if tiles.tensor and size < WORD_BYTES and pitch % WORD_BYTES == 0 else 1


def _ragged_loads(tiles: Tiles, trans_a: bool, trans_b: bool, ragged: tuple[float, ...]) -> tuple[float, float]:
    """Instructions and wavefronts that element-by-element loads take beyond those of vectors. Warpgroups' operands come by TMA, aligned."""
    if tiles.by_warpgroups:
        return 0.0, 0.0
    single = (ragged[0] * tiles.rows + ragged[1] * tiles.columns) * tiles.depth / WARP
    if not any(ragged) or not loads_side_by_side(tiles):  # lanes stay a vector apart: each load touches as many lines as a vector load
        return EDGE_INSTRUCTIONS * single, single * VECTOR_BYTES * WARP / LINE_BYTES
    along_k = tiles.rows * (not trans_a) + tiles.columns * trans_b  # one ragged operand makes both load so
    outputs = tiles.rows + tiles.columns - along_k
    wavefronts = LINES_ALONG_K * along_k + LINES_ALONG_OUTPUTS * outputs
    return SIDE_BY_SIDE_INSTRUCTIONS * (along_k + outputs) * tiles.depth / WARP, wavefronts * tiles.depth / WARP
