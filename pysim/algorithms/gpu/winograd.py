# SPDX-License-Identifier: Apache-2.0
"""Winograd's convolutions F(m x m, 3x3) (arXiv 1509.09308): tiles of m x m outputs from transformed patches and filters, a product for each
of the (m + 2)^2 planes of a transformed patch.

fused    F(2x2) and F(4x4): a block multiplies all planes; it transforms patches in its prologue and results in its epilogue, through shared
         memory. A pass transforms filters before, except in rows that reduce in a cluster, which transform them themselves.
staged   F(4x4): patches are transformed to the workspace; one product has all planes and groups along its windows; results are transformed
         back. Chunks of tiles keep the intermediate data in L2.

Worked number: for conv:mb32ic64ih56oc64kh3ph1 on the h200 a fused F(2x2) row has 28 x 28 x 32 / 32 = 784 blocks, 5.9 waves of 132.
"""

import math
from functools import lru_cache

import msgspec

from pysim.algorithms.accuracy import Size, random_walk, size_of
from pysim.algorithms.convolution import ByRow, Rows
from pysim.algorithms.gpu import gemm
from pysim.algorithms.interface import Bound
from pysim.cachemodel.gpu import product_columns
from pysim.cachemodel.gpu.copy_kernels import Pass
from pysim.cachemodel.gpu.launches import ALIGN, Variant, round_up
from pysim.cachemodel.gpu.mainloop import LINE_BYTES, Work
from pysim.cachemodel.gpu.occupancy import pipe_of
from pysim.cachemodel.shared_memory import winograd_shared
from pysim.cachemodel.shared_memory.banks import SharedMemory
from pysim.caches import lazy
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SIZES, SUM_UNITS
from pysim.problem.gemm import Gemm
from pysim.record.cost import Reason
from pysim.record.plan import Layout
from pysim.registry.cuda import WARP, Attributes, ConvKernel, cuda_limits

KINDS = ("F(2x2)", "F(4x4)")
CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # of staged rows
# Instructions of a gathered element of a patch. F(4x4): the remainder of the 893 and 1,033 instructions that a warp issues in a k-iteration
# (Nsight Compute); drained: more in proportion to its time, 7.7 % in the mean of eight layers on an H200; F(2x2): assumed
GATHER = {"fused": 9.7, "single": 15.9, "drained": 14.7}
GATHER_F2 = 5.0
TAPS = 9
PRODUCT_FAMILIES = ("simt_f32", "simt")  # of constants, for the products of staged rows

# Error of KINDS: (factor, channels) times the error of a direct sum with that many channels more, which stand for the transforms' own error
# (measured: lab/data/h200/accuracy.jsonl; lab/ablations/winograd_simulated.py)
ERRORS = ((0.6, 4), (1.6, 24))
DRAINED, TRANSFORMS = (0.65, 56), (1.6, 18)  # drained rows, whose sums have four parts or more; their minimum, for any number of channels
# Mean relative error of the drained rows: the transforms' constants are rounded. On an H200 the results of 18 layers of DenseNet-121 at
# batch 32 are 3.3e-8 too large, standard deviation 4e-9 (lab/data/h200/layers-mean-error-f4x4.jsonl)
MEAN_ERROR = 3.3e-8
SOURCES = (
    "transforms of F(2x2) add up to four operands (arXiv 1509.09308)",
    "F(4x4): twice the measured error; its a-priori bound is too loose",
)


class Chunks(msgspec.Struct, frozen=True):
    """Chunks of a staged row (native/cuda/conv/winograd/unfused4.cu): their number; tiles, pitch and blocks of the product of each."""

    number: int
    tiles: int
    pitch: int
    blocks: int


def planes_of(row: ConvKernel) -> int:
    """Planes of a transformed patch."""
    return (row.outputs + 2) ** 2


def threads_of(row: ConvKernel) -> int:
    """Threads of a block that multiply. A fused row has a warp for each two planes of a warp tile, in multiples of four: one for each
    scheduler."""
    return row.tiles.math_threads * (planes_of(row) // 2 // 4 * 4 if row.fused else 1)


class Winograd(ByRow):
    """A convolution by transformed patches and filters."""

    def __init__(self, row: ConvKernel, w: Conv, layout: Layout, chunks: int = 1) -> None:
        super().__init__(row, w, layout, chunks)
        self.kind = 1 if row.outputs > 2 else 0
        self.planes = planes_of(row)
        # results pass through shared memory, written and read once
        self.epilogue_wavefronts = 2 * self.size * float(self.planes * row.block_filters * row.block_windows) / LINE_BYTES

    @property
    def threads(self) -> int:
        return threads_of(self.row)

    @classmethod
    def estimate(cls, row: ConvKernel) -> Attributes:
        if not row.fused:
            return super().estimate(row)
        tiles, threads, planes = row.tiles, threads_of(row), planes_of(row)
        stage = (tiles.rows + tiles.columns) * tiles.depth * planes * SIZES[row.dtype]
        registers = min(255, tiles.rows * tiles.columns * planes // threads + 100, 65536 // threads)
        return Attributes(threads, registers, stage * max(1, tiles.stages))

    @property
    def order(self) -> str | None:
        """Products of a staged row begin with a k-iteration that is not whole."""
        return None if self.row.staged else "channels"

    def refusal(self) -> Reason | None:
        w, row, most = self.w, self.row, cuda_limits()["TILES"]
        if (w.kernel_h, w.kernel_w, w.stride_h, w.stride_w, w.dilation_h, w.dilation_w) != (3, 3, 1, 1, 1, 1):
            return Reason("shape", "it takes 3x3 kernels with stride 1 and dilation 1")
        if not row.staged:
            return Reason("size", "it takes fewer filters and groups") if self.pieces >= most else None
        products = self.planes * w.groups * self.chunked(1).blocks
        down = math.ceil(w.group_filters / row.block_filters)
        return Reason("size", "it takes fewer groups") if products * max(row.block_windows, down) > most else None

    @property
    def pieces(self) -> int:
        """Blocks of filters x k-iterations of channels of a fused row, in all groups."""
        w, row = self.w, self.row
        return w.groups * math.ceil(w.group_filters / row.block_filters) * math.ceil(w.group_channels / row.block_k)

    # Chunks

    def chunked(self, number: int) -> Chunks:
        """The tiles in up to `number` chunks of whole blocks."""
        windows, block = self.windows.number, self.row.block_windows
        tiles = min(windows, math.ceil(math.ceil(windows / number) / block) * block)
        return Chunks(math.ceil(windows / tiles), tiles, math.ceil(tiles / 4) * 4, math.ceil(tiles / block))

    def chunk_counts(self) -> list[int]:
        return sorted({self.chunked(most).number for most in CHUNKS}) if self.row.staged else [1]

    # Candidates

    def variant(self, gpu: Gpu, known: dict[str, Attributes], prologue: bool = False) -> Variant:
        if self.row.staged:
            return self.staged(gpu, known)
        return self.tiled(gpu, known, iteration(gpu, self.row, self.layout), self.passes(gpu))

    def staged(self, gpu: Gpu, known: dict[str, Attributes]) -> Variant:
        """The product of one chunk, as SIMT rows of gemm/ with these tiles compute it."""
        w, row, tiles, nhwc = self.w, self.row, self.tiles, self.layout == "nhwc"
        of, planes = self.chunked(self.chunks), self.planes * w.groups
        k, filters, across = w.group_channels, w.group_filters, planes * of.blocks * row.block_windows
        problem = Gemm(m=across, n=filters, k=k, dtype=w.dtype) if nhwc else Gemm(m=filters, n=across, k=k, trans_a=True, dtype=w.dtype)
        own = known.get(row.name) or self.estimate(row)
        columns, work, family = gemm.product(gpu, problem, tiles, PRODUCT_FAMILIES, own, product_columns.efficiency_of(tiles, own, known))
        plane, side = float(k * filters * self.size), "b" if nhwc else "a"  # each tile reads the filters of one plane
        of_filters = {f"bytes_{side}": plane * planes, f"requested_bytes_{side}": plane}
        columns = columns._replace(max_parts=1, **of_filters)
        return self.launched(
            gpu, known, family, "model.passes.patch_",
            columns=columns, work=work, times=of.number, chunks=of.number, passes=self.passes(gpu),
            assumed=() if row.name in known else (f"kernel_attributes.{row.name}",),
        )  # fmt: skip

    # Workspace and passes

    @lazy
    def buffers(self) -> dict[str, int]:
        """Transformed filters; in staged rows also patches and results of one chunk."""
        w, row, plane = self.w, self.row, self.planes * self.size
        if row.staged:
            pitch = self.chunked(self.chunks).pitch
            filters, patches = plane * w.channels * round_up(w.group_filters, 4), plane * w.channels * pitch
            return {"filters": round_up(filters, ALIGN), "patches": round_up(patches, ALIGN), "results": plane * w.filters * pitch}
        if row.reduces_in_cluster:  # it transforms filters in the kernel
            return {}
        return {"filters": self.pieces * plane * row.block_k * row.block_filters}

    def passes(self, gpu: Gpu) -> tuple[Pass, ...]:
        """Transforms of filters; in staged rows also those of patches and results, chunk by chunk."""
        w, buffers, passes = self.w, self.buffers, list[Pass]()
        of_filter, of_patch = gpu.model.passes.element_instructions.value, gpu.model.passes.patch_instructions.value
        if "filters" in buffers:
            passes.append(Pass("filters", w.filter_elements * self.size, buffers["filters"], w.filter_elements * of_filter))
        if "patches" in buffers:
            number, planes = self.chunked(self.chunks).number, self.planes * self.size
            patches, results = self.windows.number * w.channels, self.windows.number * w.filters
            passes.append(Pass("patches", self.windows.bytes, patches * planes, patches * of_patch, number))
            passes.append(Pass("outputs", results * planes, w.output_elements * self.size, results * of_patch, number))
        return tuple(passes)

    # Accuracy and description

    def tolerance(self) -> Bound:
        results, products = size_of(self.w)

        def error_of(factor: float, channels: int, products: int = products) -> float:
            return factor * random_walk(Size(results, products + TAPS * channels), SUM_UNITS[self.w.dtype])

        drained = self.row.variant == "drained"
        error = max(error_of(*DRAINED), error_of(*TRANSFORMS, products=0)) if drained else error_of(*ERRORS[self.kind])
        growth, rms = (1.0, 2 * error) if self.kind else (4.0, 0.0)
        mean = MEAN_ERROR if drained else 0.0
        return Bound(growth, rms, SOURCES[self.kind], "nothing", "transformed", error, mean, "window" if self.row.outputs == 2 else "tile")

    def lines(self) -> tuple[str, ...]:
        m, planes = self.row.outputs, self.planes
        return f"{'transform':<18}F({m}x{m}, 3x3): {planes} multiplications for {9 * m**2}, {planes} planes", *super().lines()


@lru_cache(maxsize=256)
def iteration(gpu: Gpu, row: ConvKernel, layout: Layout) -> Work:
    """A k-iteration of a block of a fused row. Patches are loaded element by element, transformed, and stored plane by plane; transformed
    filters are copied."""
    edge, tiles = row.outputs + 2, product_columns.product_tiles(row, layout)
    planes = edge**2
    adds = 4 * edge * row.outputs if row.outputs == 2 else 2 * edge * 12  # of B^T d B: 32 of 4 x 4, 144 of 6 x 6
    patches = row.block_windows * row.block_k / WARP
    instructions, shared = 0.0, patches * planes  # of L1: the patches' loads
    memory = SharedMemory(rule=gpu.shared_rule)
    for access in winograd_shared.iteration(row, layout == "nhwc"):
        instructions += len(access.addresses)
        shared += float(memory.count(access.addresses, access.width, access.store, access.active).total.sum())
    products = tiles.rows * tiles.columns * tiles.depth * planes
    issue = products / WARP + (instructions + patches * (planes * GATHER.get(row.variant, GATHER_F2) + adds))
    return Work(products / gpu.fma_per_cycle[pipe_of(gpu, row.pipe) or ""].value, shared, issue / gpu.schedulers_per_sm.value)


ALGORITHM = Rows(
    "winograd",
    Winograd,
    "tiles of outputs from transformed patches and filters, a product for each plane (arXiv 1509.09308)",
    KINDS,
)
