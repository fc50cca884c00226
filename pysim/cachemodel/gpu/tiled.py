# SPDX-License-Identifier: Apache-2.0
"""Tiled kernels as the GPU cost model has them (`waves.Columns`): what follows from tiles alone, and convolutions as products of their
tiles.

tiles   Tiles of filters x windows over k = (C/g) R S, as `native/cuda/conv/conv.h` has it: filters are A and windows B under NCHW, the
        other way round under NHWC and where a kernel turns them; groups stand one after another along the windows, each in whole tiles
        (of a cluster). Waves, steps, occupancy, split sums and the walk's reuse in L2 are those of a product of these sizes.
step    A step of the SIMT product, of which the windows are gathered: so many instructions an element (a vector where the layout has four
        elements side by side: a 1x1 convolution under NCHW, whole groups of four channels under NHWC), and L1 wavefronts of its loads.
bytes   L2 is asked for what each tile's windows touch (`windows`), memory for what all of them do, by the reuse distances of the walk.

Assumed, until there are measurements: that the constants of the SIMT products hold for the tiles of convolutions, and what machine files
call assumed. Not known: divergence at edges.

Worked number: conv:mb32ic64ih56oc64kh3ph1 by tiles of 64 x 128 x 16 is 32 56 56 / 128 = 784 tiles of 576 / 16 = 36 steps.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pysim.cachemodel.gpu.mainloop import EDGE_INSTRUCTIONS, VECTOR_BYTES, Work, estimated
from pysim.cachemodel.gpu.occupancy import occupancy, pipe_of
from pysim.cachemodel.gpu.waves import SUMS_AT_ONCE, Columns
from pysim.cachemodel.shared_memory.banks import SharedMemory
from pysim.cachemodel.shared_memory.gemm_shared import wavefronts
from pysim.machine.gpu import Gpu, GpuFamily
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SIZES
from pysim.record.plan import Layout
from pysim.registry.cuda import WARP, Attributes, ConvKernel, Tiles, gemm_of_tiles

SUB_CORES = 4


def columns_of(
    gpu: Gpu, tiles: Tiles, attributes: Attributes, step: Work, family: GpuFamily, efficiency: float | None, threads: int = 0
) -> Columns:
    """What follows from a kernel's tiles; no sizes of a problem. `threads` multiply, where they are others than one group a warp tile."""
    pipe, threads = pipe_of(gpu, tiles.pipe) or "", threads or tiles.math_threads
    taken = step.cycles / (efficiency or family.efficiency.value)
    results, resident = tiles.rows * tiles.columns, occupancy(gpu, attributes)
    return Columns(
        *(0.0,) * 11,
        tile_m=tiles.rows * tiles.cluster_rows,
        tile_n=tiles.columns * tiles.cluster_columns,
        block_k=tiles.depth,
        stages=tiles.stages,
        blocks=tiles.blocks,
        resident=min(1, resident) if tiles.by_warpgroups else resident,  # whose blocks stay for the whole product
        divides=True,
        stream_most=np.inf,
        whole=tiles.producer,
        outputs=results / tiles.math_threads,
        turns=np.ceil(results / threads / SUMS_AT_ONCE),
        step=taken,
        alone=taken * max(1.0, SUB_CORES * WARP / threads),
        shared=step.shared,
        bound=max(range(len(step)), key=lambda i: step[i]),
        fma=gpu.fma_per_cycle[pipe].value / tiles.products,
        sustained=gpu.sustained_hz[pipe].value if pipe in gpu.sustained_hz else gpu.clock_hz,
        relayouts=0,
        relaid=0,
        parts=tiles.parts,
        narrow=False,
        near=0,
        overlaps=tiles.producer,
        pingpong=tiles.pingpong,
        box_m=tiles.rows * tiles.cluster_rows,
        box_n=tiles.columns * tiles.cluster_columns,
        lines_a=1.0,
        lines_b=1.0,
        sectors=1.0,
        **{name: getattr(family, name).value for name in ("launch_seconds", "block_cycles", "step_cycles", "meet_cycles", "hidden")},
    )


def leans_on(gpu: Gpu, pipe: str, family: str, *others: str) -> tuple[str, ...]:
    """Beginnings of the paths of the machine's numbers that a kernel on a pipe leans on, and others do not."""
    own = pipe_of(gpu, pipe) or pipe
    return (f"fma_per_cycle.{own}", f"sustained_hz.{own}", f"model.families.{family}.", *others)


# Convolutions


PLAIN_BLOCK = Attributes(256, 40, 0)  # what a block without tiles is taken for


def estimate(row: ConvKernel) -> Attributes:
    """What a row's block is taken for where the compiler was not asked."""
    return estimated(row.tiles.turned if row.tiles.by_warpgroups else row.tiles) if row.tiles.rows else PLAIN_BLOCK


def turned(row: ConvKernel, layout: Layout) -> bool:
    """Whether windows are down and filters across: what lies side by side in the output is across, but where warpgroups multiply, whose
    windows are always down."""
    return layout == "nhwc" or row.tiles.by_warpgroups


def lying(row: ConvKernel, layout: Layout) -> Tiles:
    """A row's tiles of rows x columns of the product."""
    return row.tiles.turned if turned(row, layout) else row.tiles


def efficiency_of(tiles: Tiles, own: Attributes, known: dict[str, Attributes]) -> float | None:
    """A row's measured efficiency, or that of the product with the same tiles."""
    product = gemm_of_tiles(tiles)
    twin = known.get(product.name) if product else None
    return own.efficiency or (twin.efficiency if twin else None)


def lent_of(row: ConvKernel, family: str, known: dict[str, Attributes]) -> tuple[str, ...]:
    """What is assumed of a row beside the machine's numbers: constants of another family, registers that nobody counted."""
    *own, _ = row.families
    lent = () if family in own else (f"model.families.{own[-1]}: those of {family}",)
    return lent if row.name in known else (*lent, f"kernel_attributes.{row.name}")


@lru_cache(maxsize=1024)
def stored(rule: str, tiles: Tiles, k_inner: bool) -> tuple[float, float]:
    """(instructions, wavefronts) of a step's way into and out of the stages; gathered columns are stored as those with k contiguous."""
    counted = wavefronts(tiles, False, k_inner, SharedMemory(rule=rule)).values()
    return float(sum(one.instructions for one in counted)), float(sum(one.total for one in counted))


class Gather(NamedTuple):
    """How threads gather the windows of a step: `each` instructions an element, or a vector where they come `by_vectors`; stored with k
    contiguous or not; a warp's elements lie in `lines` of L1 each; `single`: filters come element by element."""

    each: float
    by_vectors: bool
    k_inner: bool
    lines: int
    single: bool = False


@lru_cache(maxsize=4096)
def gathered(gpu: Gpu, row: ConvKernel, tiles: Tiles, of: Gather) -> Work:
    """Cycles of an SM's resources for one step of one block of the SIMT product whose windows are gathered."""
    products, vector = tiles.rows * tiles.columns * tiles.depth, VECTOR_BYTES // SIZES[tiles.dtype]
    elements, filters = row.block_windows * tiles.depth / WARP, row.block_filters * tiles.depth / WARP  # of a warp's lanes
    count, shared = stored(gpu.shared_rule, tiles, of.k_inner)
    shared += elements if of.by_vectors else elements * min(WARP, of.lines)  # of L1, which shared memory is a part of
    issue = count + elements * (of.each / vector if of.by_vectors else of.each)
    issue += filters * (EDGE_INSTRUCTIONS if of.single else 2 / vector)
    arithmetic = products / gpu.fma_per_cycle[pipe_of(gpu, tiles.pipe) or ""].value
    return Work(arithmetic, shared, (products / WARP + issue) / gpu.schedulers_per_sm.value)


def in_vectors(w: Conv, layout: Layout) -> bool:
    """Whether the channels of a window lie together in whole vectors."""
    return layout == "nhwc" and w.group_channels % (VECTOR_BYTES // w.element_bytes) == 0
