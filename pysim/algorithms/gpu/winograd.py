# SPDX-License-Identifier: Apache-2.0
"""Winograd's convolutions F(m x m, 3x3) (arXiv 1509.09308): tiles of m x m outputs from transformed patches and filters, a product for each
of (m + 2)^2 planes.

fused    F(2x2) and F(4x4): a block makes the products of all planes side by side, transforms each patch on its way in and each sum on its
         way out through shared memory. Filters are transformed before, of rows that meet in a cluster within.
staged   F(4x4): transforms to the workspace, products of all planes and groups one after another along the windows, transforms back, in
         chunks of tiles, so that what lies between stays in L2.

Worked number: for conv:mb32ic64ih56oc64kh3ph1 on the h200 a fused F(2x2) row has 28 x 28 x 32 / 32 = 784 blocks, 5.9 waves of 132.
"""

import math
from functools import lru_cache
from typing import NamedTuple

from pysim.algorithms.accuracy import Size, size_of, walk
from pysim.algorithms.contract import Bound
from pysim.algorithms.convolution import Asked, Rows, row_of
from pysim.algorithms.gpu import gemm
from pysim.cachemodel.gpu import tiled, words
from pysim.cachemodel.gpu.launches import ALIGN, Variant, round_up
from pysim.cachemodel.gpu.launches import cost as cost
from pysim.cachemodel.gpu.mainloop import LINE_BYTES, Work
from pysim.cachemodel.gpu.occupancy import pipe_of
from pysim.cachemodel.gpu.passes import Pass
from pysim.cachemodel.gpu.tiled import Special, lying
from pysim.cachemodel.gpu.windows import Windows
from pysim.cachemodel.shared_memory import winograd_shared
from pysim.cachemodel.shared_memory.banks import SharedMemory
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SIZES, SUM_UNITS
from pysim.problem.gemm import Gemm
from pysim.record.cost import Reason
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan
from pysim.record.schedule import GpuSchedule
from pysim.registry.cuda import WARP, Attributes, ConvKernel, cuda_limits

NAME = "winograd"
COMPUTES = Conv
KINDS = ("F(2x2)", "F(4x4)")
CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # of staged rows
# Instructions of an element of a patch that a thread gathers: F(4x4)'s are what is left of the 893 and 1,033 instructions that a warp has
# in a step, as Nsight Compute counts them; drained: so many more as it takes longer, 7.7 % in the mean of eight layers on an H200; F(2x2)'s
# assumed
GATHER = {"fused": 9.7, "single": 15.9, "drained": 14.7}
GATHER_SMALL = 5.0
TAPS = 9
PRODUCTS = ("simt_f32", "simt")  # families of constants of a staged row's products

# What transforms make of a direct sum's error: so many times that of a sum of so many channels more, which stand for the transforms' own
# (measured: benchmarks/data/accuracy-h200.jsonl; tools/winograd_error.py)
ERRORS = ((0.6, 4), (1.6, 24))  # of KINDS
DRAINED, TRANSFORMS = (0.65, 56), (1.6, 18)  # of sums in four parts and more; what is left of such, of any channels
SOURCES = (
    "transforms of F(2x2) add up to four operands (arXiv 1509.09308)",
    "F(4x4) is held to twice what it comes to: no bound is of use",
)


def planes_of(row: ConvKernel) -> int:
    """Planes of a transformed patch: F(m x m, 3x3) has (m + 2)^2."""
    return (row.outputs + 2) ** 2


def kind_of(row: ConvKernel) -> int:
    """Of KINDS."""
    return 1 if row.outputs > 2 else 0


def threads_of(row: ConvKernel) -> int:
    """Threads of a block that multiply: of a fused row a warp for each two planes of a warp tile, in whole fours: one of each scheduler."""
    return row.tiles.math_threads * (planes_of(row) // 2 // 4 * 4 if row.fused else 1)


def attributes_of(row: ConvKernel) -> Attributes:
    """What a block is taken for where the compiler was not asked."""
    if not row.fused:
        return tiled.estimate(row)
    tiles, threads, planes = row.tiles, threads_of(row), planes_of(row)
    stage = (tiles.rows + tiles.columns) * tiles.depth * planes * SIZES[row.dtype]
    registers = min(255, tiles.rows * tiles.columns * planes // threads + 100, 65536 // threads)
    return Attributes(threads, registers, stage * max(1, tiles.stages))


# Legality


def row_refuses(row: ConvKernel, w: Conv, layout: Layout) -> Reason | None:
    """Why a row does not compute a problem, in the library's words."""
    if (w.kernel_h, w.kernel_w, w.stride_h, w.stride_w, w.dilation_h, w.dilation_w) != (3, 3, 1, 1, 1, 1):
        return Reason("shape", "it takes 3x3 kernels with stride 1 and dilation 1")
    if not row.staged:
        return Reason("size", "it takes fewer filters and groups") if pieces(row, w) >= cuda_limits()["TILES"] else None
    products = planes_of(row) * w.groups * chunks_of(row, w, 1).blocks
    down = math.ceil(w.filters // w.groups / row.block_filters)
    return Reason("size", "it takes fewer groups") if products * max(row.block_windows, down) > cuda_limits()["TILES"] else None


def pieces(row: ConvKernel, w: Conv) -> int:
    """Blocks of filters by steps of channels of a fused row, in all groups."""
    return w.groups * math.ceil(w.filters // w.groups / row.block_filters) * math.ceil(w.channels // w.groups / row.block_k)


# Candidates


def variant(asked: Asked, row: ConvKernel, chunks: int = 1) -> Variant:
    """A row as the model knows it."""
    return staged(asked, row, chunks) if row.staged else fused(asked, row)


def fused(asked: Asked, row: ConvKernel) -> Variant:
    """A row whose tiles make the products of all planes; its sums pass through shared memory, written and read once."""
    gpu, layout, planes = asked.gpu, asked.layout, planes_of(row)
    windows = Windows(asked.w, layout, row.outputs)
    leaving = 2 * SIZES[row.dtype] * float(planes * row.block_filters * row.block_windows) / LINE_BYTES
    special = Special(planes=planes, threads=threads_of(row), leaving=leaving, kind=kind_of(row))
    around = passes(gpu, row, asked.w, layout)
    return tiled.variant_of(gpu, windows, row, step(gpu, row, layout), asked.known, around, special, attributes_of(row))


@lru_cache(maxsize=256)
def step(gpu: Gpu, row: ConvKernel, layout: Layout) -> Work:
    """A step of one block of a fused row: patches come in element by element, are transformed and stored plane by plane; transformed
    filters are copied."""
    planes, edge, tiles = planes_of(row), row.outputs + 2, lying(row, layout)
    adds = 4 * edge * row.outputs if row.outputs == 2 else 2 * edge * 12  # of B^T d B: 32 of 4 x 4, 144 of 6 x 6
    patches = row.block_windows * row.block_k / WARP
    instructions, shared = 0.0, patches * planes  # of L1: the patches' loads
    memory = SharedMemory(rule=gpu.shared_rule)
    for access in winograd_shared.step(row, layout == "nhwc"):
        instructions += len(access.addresses)
        shared += float(memory.count(access.addresses, access.width, access.store, access.active).total.sum())
    products = tiles.rows * tiles.columns * tiles.depth * planes
    issue = products / WARP + (instructions + patches * (planes * GATHER.get(row.variant, GATHER_SMALL) + adds))
    return Work(products / gpu.fma_per_cycle[pipe_of(gpu, row.pipe) or ""].value, shared, issue / gpu.schedulers_per_sm.value)


def all_chunks(row: ConvKernel, w: Conv) -> list[int]:
    """The numbers of chunks that a row is launched in."""
    return sorted({chunks_of(row, w, most).number for most in CHUNKS}) if row.staged else [1]


class Chunks(NamedTuple):
    """Chunks of tiles of a staged row (native/cuda/conv/winograd/unfused4.cu): how many, tiles of each, their pitch, blocks of each
    product."""

    number: int
    tiles: int
    pitch: int
    blocks: int


def chunks_of(row: ConvKernel, w: Conv, number: int) -> Chunks:
    """The tiles in `number` chunks, or as few less as whole blocks make of it."""
    windows, block = Windows(w, "nchw", row.outputs).number, row.block_windows
    tiles = min(windows, math.ceil(math.ceil(windows / number) / block) * block)
    return Chunks(math.ceil(windows / tiles), tiles, math.ceil(tiles / 4) * 4, math.ceil(tiles / block))


def staged(asked: Asked, row: ConvKernel, number: int) -> Variant:
    """The products of one of `number` chunks, as SIMT rows of gemm/ with these tiles make them."""
    gpu, w, layout = asked.gpu, asked.w, asked.layout
    of, planes, tiles = chunks_of(row, w, number), planes_of(row) * w.groups, lying(row, layout)
    k, filters, size = w.channels // w.groups, w.filters // w.groups, SIZES[w.dtype]
    across = planes * of.blocks * row.block_windows
    turned = layout == "nhwc"
    problem = Gemm(m=across, n=filters, k=k, dtype=w.dtype) if turned else Gemm(m=filters, n=across, k=k, trans_a=True, dtype=w.dtype)
    own = asked.known.get(row.name) or attributes_of(row)
    columns, step_, family = gemm.product(gpu, problem, tiles, PRODUCTS, own, tiled.efficiency_of(tiles, own, asked.known))
    one = float(k * filters * size)  # each column of tiles asks for one plane's filters
    columns = columns._replace(divides=False, **({"b": one * planes, "asks_b": one} if turned else {"a": one * planes, "asks_a": one}))
    found = tiled.of_row(gpu, row, asked.known, own, family, "model.passes.patch_")._replace(
        lent=() if row.name in asked.known else (f"kernel_attributes.{row.name}",)  # the products' constants are its own
    )
    around = passes(gpu, row, w, layout, number)
    return found._replace(columns=columns, work=step_, kind=kind_of(row), times=of.number, chunks=of.number, passes=around)


# Workspace and passes


def kept(row: ConvKernel, w: Conv, layout: Layout, chunks: int) -> dict[str, int]:
    """Bytes of each thing that a row keeps: transformed filters; of a staged row patches and sums of one chunk."""
    size = SIZES[w.dtype]
    if row.staged:
        of, plane = chunks_of(row, w, chunks), planes_of(row) * size
        filters = plane * w.channels * round_up(w.filters // w.groups, 4)
        patches = plane * w.channels * of.pitch
        return {"filters": round_up(filters, ALIGN), "patches": round_up(patches, ALIGN), "sums": plane * w.filters * of.pitch}
    if row.reduces_in_cluster:  # transforms them as it goes
        return {}
    return {"filters": pieces(row, w) * planes_of(row) * row.block_k * row.block_filters * size}


def passes(gpu: Gpu, row: ConvKernel, w: Conv, layout: Layout, splits: int = 1) -> tuple[Pass, ...]:
    """Transforms of filters; of a staged row those of patches and sums, chunk by chunk."""
    keeps, size = kept(row, w, layout, splits), SIZES[w.dtype]
    filters, plain = w.filters * Windows(w, layout).k, gpu.model.passes.element_instructions.value
    found = [Pass("filters", filters * size, keeps["filters"], filters * plain)] if "filters" in keeps else []
    if "patches" in keeps:
        chunks, windows, each = chunks_of(row, w, splits), Windows(w, layout, row.outputs), gpu.model.passes.patch_instructions.value
        patches, sums = windows.number * w.channels, windows.number * w.filters
        planes, outputs = planes_of(row) * size, w.batch * w.filters * w.windows * size
        found.append(Pass("patches", windows.bytes, patches * planes, patches * each, chunks.number))
        found.append(Pass("outputs", sums * planes, outputs, sums * each, chunks.number))
    return tuple(found)


def tolerance(problem: Conv, schedule: GpuSchedule) -> Bound:
    row = row_of(schedule)
    kind = kind_of(row)
    results, products = size_of(problem)

    def of(times: float, channels: int, products: int = products) -> float:
        return times * walk(Size(results, products + TAPS * channels), SUM_UNITS[problem.dtype])

    error = max(of(*DRAINED), of(*TRANSFORMS, products=0)) if row.variant == "drained" else of(*ERRORS[kind])
    growth, rms = (1.0, 2 * error) if kind else (4.0, 0.0)
    return Bound(growth, rms, SOURCES[kind], "operands", error, "transformed")


def describe(plan: Plan) -> Description:
    assert isinstance(plan.schedule, GpuSchedule)
    row = row_of(plan.schedule)
    m, planes = row.outputs, planes_of(row)
    line = f"{'transform':<18}F({m}x{m}, 3x3): {planes} multiplications for {9 * m**2}, {planes} planes"
    return words.describe(plan, candidates, _ROWS.about, (line, *words.tiles(plan)))


_ABOUT = "tiles of outputs from transformed patches and filters, a product for each plane (arXiv 1509.09308)"
_ROWS = Rows(NAME, variant, _ABOUT, row_refuses, kept, attributes_of, all_chunks, KINDS)
refuses, candidates, prepare, workspace_bytes = _ROWS.refuses, _ROWS.candidates, _ROWS.prepare, _ROWS.workspace_bytes
