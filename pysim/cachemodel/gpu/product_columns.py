# SPDX-License-Identifier: Apache-2.0
"""Tiled kernels as columns of the GPU cost model (`Columns`), and convolutions as products of their tiles.

tiles       Tiles of filters x windows over k = (C/g) R S, as in `native/cuda/conv/conv.h`. Under NCHW A is the filters and B the windows;
            under NHWC, and in kernels that transpose them, the other way round. Groups follow one another along the windows, each in whole
            tiles (of a cluster). Waves, k-iterations, occupancy, partial sums and reuse in L2 are those of a product of these sizes.
iteration   A k-iteration of the SIMT product whose windows are gathered: some instructions an element, or a vector where four elements are
            adjacent (a 1x1 convolution under NCHW, whole groups of four channels under NHWC), and the L1 wavefronts of its loads.
bytes       L2 is asked for what each tile's windows touch (`windows`); memory for what all of them touch, by the reuse distances of the
            rasterisation.

Assumed until measured: tiles of convolutions have the constants of the SIMT products, and the machine file's assumed numbers. Not modelled:
divergence at edges.

Worked number: conv:mb32ic64ih56oc64kh3ph1 by tiles of 64 x 128 x 16 is 32 56 56 / 128 = 784 tiles of 576 / 16 = 36 k-iterations.
"""

from functools import lru_cache

import msgspec
import numpy as np

from pysim.cachemodel.gpu.columns import Columns
from pysim.cachemodel.gpu.mainloop import EDGE_INSTRUCTIONS, VECTOR_BYTES, Work, estimated
from pysim.cachemodel.gpu.occupancy import occupancy, pipe_of
from pysim.cachemodel.gpu.waves import F64_OVERLAP_EXPONENT, FIXUP_LOADS_IN_FLIGHT, MOST_COPIED_BYTES, OVERLAP_EXPONENT
from pysim.cachemodel.shared_memory.banks import SharedMemory
from pysim.cachemodel.shared_memory.gemm_shared import wavefronts
from pysim.machine.gpu import Gpu, GpuFamily
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SIZES
from pysim.record.plan import Layout
from pysim.registry.cuda import WARP, Attributes, ConvKernel, Tiles, cuda_limits, gemm_of_tiles

SUB_CORES = 4
HIDING_BLOCKS = 2  # of a multiprocessor: more hide no more of a tile's start and end (752 launches by tiles of convolutions, H200)


@lru_cache(maxsize=4096)
def columns_of(
    gpu: Gpu, tiles: Tiles, attributes: Attributes, work: Work, family: GpuFamily, efficiency: float | None, threads: int = 0
) -> Columns:
    """The columns that follow from a kernel's tiles, without those of a problem. `threads` of a block multiply, if given."""
    pipe, threads = pipe_of(gpu, tiles.pipe) or "", threads or tiles.math_threads
    iteration = work.cycles / (efficiency or family.efficiency.value)
    results, resident = tiles.rows * tiles.columns, occupancy(gpu, attributes)
    blocks = min(1, resident) if tiles.by_warpgroups else resident  # warpgroups' blocks are persistent
    constants = {name: getattr(family, name).value for name in ("launch_seconds", "block_cycles", "step_cycles", "meet_cycles", "hidden")}
    # each resident block hides as much of what is left: an SM with one block stores while nothing else multiplies
    constants["hidden"] = 1 - (1 - constants["hidden"]) ** min(blocks, HIDING_BLOCKS)
    of_f64 = tiles.tensor and tiles.dtype == "f64"
    return Columns(
        *(0.0,) * 11,
        tile_m=tiles.rows * tiles.cluster_rows,
        tile_n=tiles.columns * tiles.cluster_columns,
        block_k=tiles.depth,
        stages=tiles.stages,
        cluster_blocks=tiles.blocks,
        blocks_per_sm=blocks,
        max_parts=np.inf,
        max_stream_blocks=np.inf,
        producer=tiles.producer,
        accumulators=results / tiles.math_threads,
        fixup_rounds=np.ceil(results / threads / FIXUP_LOADS_IN_FLIGHT),
        iteration=iteration,
        lone=iteration * max(1.0, SUB_CORES * WARP / threads),
        shared=work.shared,
        bound=max(range(len(work)), key=lambda i: work[i]),
        fma=gpu.fma_per_cycle[pipe].value / tiles.products,
        overlap=F64_OVERLAP_EXPONENT if of_f64 else OVERLAP_EXPONENT,
        sustained=gpu.sustained_hz[pipe].value if pipe in gpu.sustained_hz else gpu.clock_hz,
        conversions=0,
        conversion_bytes=0,
        conversion_element=MOST_COPIED_BYTES,
        a_parts=(tiles.rows + tiles.taps - 1) / tiles.rows / tiles.taps,
        b_parts=tiles.parts,
        unaligned_c=False,
        max_cluster_splits=0,
        part_unit=0,
        pingpong=tiles.pingpong,
        box_m=tiles.rows * tiles.cluster_rows,
        box_n=tiles.columns * tiles.cluster_columns,
        lines_a=1.0,
        lines_b=1.0,
        row_ends_a=0.0,
        row_ends_b=0.0,
        sectors=1.0,
        **constants,
    )


@lru_cache(maxsize=4096)
def numbers_of(gpu: Gpu, pipe: str, family: str, *others: str) -> tuple[str, ...]:
    """Prefixes of the paths of machine numbers that a kernel on a pipe uses and others do not."""
    own = pipe_of(gpu, pipe) or pipe
    return (f"fma_per_cycle.{own}", f"sustained_hz.{own}", f"model.families.{family}.", *others)


# Convolutions


PLAIN_BLOCK = Attributes(cuda_limits()["UNTILED_THREADS"], 40, 0)  # estimate of a block without tiles


def estimate(row: ConvKernel) -> Attributes:
    """Attributes of a row's block where the compiler was not asked."""
    return estimated(row.tiles.transposed if row.tiles.by_warpgroups else row.tiles) if row.tiles.rows else PLAIN_BLOCK


def windows_are_rows(row: ConvKernel, layout: Layout) -> bool:
    """Whether the product's rows are windows and its columns filters: the columns are contiguous in the output, except in warpgroups'
    kernels, whose rows are always windows."""
    return layout == "nhwc" or row.tiles.by_warpgroups


@lru_cache(maxsize=1024)
def product_tiles(row: ConvKernel, layout: Layout) -> Tiles:
    """A row's tiles as rows x columns of the product."""
    return row.tiles.transposed if windows_are_rows(row, layout) else row.tiles


def efficiency_of(tiles: Tiles, own: Attributes, known: dict[str, Attributes]) -> float | None:
    """A row's measured efficiency, else that of the product with the same tiles."""
    if own.efficiency:
        return own.efficiency
    product = gemm_of_tiles(tiles)
    twin = known.get(product.name) if product else None
    return twin.efficiency if twin else None


def assumed_of(row: ConvKernel, family: str, known: dict[str, Attributes]) -> tuple[str, ...]:
    """Assumptions about a row beside the machine's numbers: another family's constants, estimated attributes."""
    borrowed = () if family in row.families[:-1] else (f"model.families.{row.family}: those of {family}",)
    return borrowed if row.name in known else (*borrowed, f"kernel_attributes.{row.name}")


@lru_cache(maxsize=1024)
def stage_accesses(rule: str, tiles: Tiles, k_inner: bool) -> tuple[float, float]:
    """(instructions, wavefronts) of the stores to and loads from a stage in a k-iteration. Gathered windows have k contiguous."""
    counted = wavefronts(tiles, False, k_inner, SharedMemory(rule=rule)).values()
    return float(sum(one.instructions for one in counted)), float(sum(one.total for one in counted))


class Gather(msgspec.Struct, frozen=True):
    """How threads gather the windows of a k-iteration: `instructions` an element, or a vector where they load `by_vectors`; stored with k
    contiguous (`k_inner`) or not; `lines` of L1 that a warp's elements touch; `scalar_filters`: filters are loaded element by element."""

    instructions: float
    by_vectors: bool
    k_inner: bool
    lines: int
    scalar_filters: bool = False


@lru_cache(maxsize=4096)
def gathered(gpu: Gpu, row: ConvKernel, tiles: Tiles, gather: Gather) -> Work:
    """A k-iteration of the SIMT product whose windows are gathered."""
    products, vector = tiles.rows * tiles.columns * tiles.depth, VECTOR_BYTES // SIZES[tiles.dtype]
    elements, filters = row.block_windows * tiles.depth / WARP, row.block_filters * tiles.depth / WARP  # a lane
    count, shared = stage_accesses(gpu.shared_rule, tiles, gather.k_inner)
    shared += elements if gather.by_vectors else elements * min(WARP, gather.lines)  # L1 and shared memory are one
    issue = count + elements * (gather.instructions / vector if gather.by_vectors else gather.instructions)
    issue += filters * (EDGE_INSTRUCTIONS if gather.scalar_filters else 2 / vector)
    arithmetic = products / gpu.fma_per_cycle[pipe_of(gpu, tiles.pipe) or ""].value
    return Work(arithmetic, shared, (products / WARP + issue) / gpu.schedulers_per_sm.value)


def in_vectors(w: Conv, layout: Layout) -> bool:
    """Whether the channels of a window are contiguous in whole vectors."""
    return layout == "nhwc" and w.group_channels % (VECTOR_BYTES // w.element_bytes) == 0
