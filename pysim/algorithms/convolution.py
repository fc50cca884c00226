# SPDX-License-Identifier: Apache-2.0
"""What the GPU convolution algorithms share: which rows of `native/cuda/conv` compute a problem, and their workspace.

    workspace = a row's own buffers + flags and partial sums of split-K and stream-K, each part aligned to ALIGN

Worked number: tiles of 64 filters x 128 windows of conv:mb32ic64ih56oc64kh3ph1 are 784; split-K by 2 keeps 784 flags, 3,328 bytes, and
2 x 784 x 64 x 128 x 4 = 51,380,224 bytes of partial sums.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from pysim.algorithms.interface import DIRECT_SUM, Bound, Prepared, in_parts
from pysim.cachemodel.gpu import launch_text, launches, product_columns
from pysim.cachemodel.gpu.columns import OF_SIZES, Columns
from pysim.cachemodel.gpu.copy_kernels import Pass
from pysim.cachemodel.gpu.launches import ALIGN, Candidates, Variant, constants_of, legal, partial_bytes, prunes, round_up
from pysim.cachemodel.gpu.mainloop import Work
from pysim.cachemodel.gpu.occupancy import occupancy, unable
from pysim.cachemodel.gpu.waves import FIXUP_LOADS_IN_FLIGHT
from pysim.cachemodel.gpu.windows import Windows, windows_of
from pysim.errors import PlanError
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.problem.dtypes import AS_HALVES, SUM_BYTES
from pysim.record.contract import GpuContract
from pysim.record.cost import Reason, Rejected
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request
from pysim.record.schedule import GpuSchedule
from pysim.registry.cuda import Attributes, ConvKernel, conv_kernel, conv_kernels, cuda_limits, gemm_attributes

# Instructions of a fused prologue: of an element (a multiply-add, a comparison, a selection), and of a channel's constants
PROLOGUE_ELEMENT, PROLOGUE_CHANNEL = 3.0, 4.0
MIN_L1_SHARE = 16  # at least 1/16 of L1 is not shared memory
# Products of a sum from which on halves are as accurate as FP32: their mean error, 1.5e-7 to 1.8e-7 of the results' root mean square, does
# not depend on the sum's length; that of FP32 sums is 1.25e-8 times its root: 1.64 times less for 64 products, 1.2 for 112 (H200, cuDNN's)
MIN_HALVES = 128


class ByRow:
    """A convolution by one row of `native/cuda/conv`, its windows in `chunks`. Algorithms override what differs; each has its own
    `variant`.

    `planes`: products of a tile; `epilogue_wavefronts` of a tile; `kind`: index of its algorithm's kinds; `in_parts`: whether rows compute
    f32 as products of parts of its numbers.
    """

    planes, epilogue_wavefronts, kind = 1, 0.0, 0
    in_parts: ClassVar[bool] = False

    def __init__(self, row: ConvKernel, w: Conv, layout: Layout, chunks: int = 1) -> None:
        self.row, self.layout, self.chunks = row, layout, chunks
        self.w, self.size, self.windows = _multiplied_by(w, layout, row.dtype, row.outputs)
        self.tiles = product_columns.product_tiles(row, layout)

    def refusal(self) -> Reason | None:
        """Why the row does not compute a problem that other rows do, as the native library says it."""
        return None

    def prologue_refusal(self) -> Reason | None:
        """Why it cannot apply a prologue to this problem's input."""
        return None

    def chunk_counts(self) -> list[int]:
        """The numbers of chunks that are candidates."""
        return [1]

    @property
    def buffers(self) -> dict[str, int]:
        """Bytes of its buffers in the workspace, by name; "filters" are those made of the weights."""
        return {}

    @property
    def read(self) -> Windows:
        """The windows as the kernel reads them."""
        return self.windows

    @property
    def window_count(self) -> int:
        """Windows of a group, padding between images included."""
        return self.windows.number

    @property
    def k(self) -> int:
        """Products of an output."""
        return self.windows.k

    @property
    def order(self) -> str | None:
        """The order of k (`pysim.record.contract.GpuContract`); None if it depends on more than the layer."""
        return None

    @property
    def threads(self) -> int:
        """Threads of a block that multiply."""
        return self.tiles.math_threads

    def requested_bytes(self, l1_bytes: float) -> float:
        """Bytes of windows that all tiles request of L2, where a block has `l1_bytes` of L1."""
        return self.read.requested_bytes(self.row.block_windows, l1_bytes)

    @classmethod
    def estimate(cls, row: ConvKernel) -> Attributes:
        """Estimated attributes of a row, where the compiler was not asked."""
        return product_columns.estimate(row)

    @classmethod
    def attributes(cls, gpu: Gpu, row: ConvKernel) -> Attributes:
        """What the compiler made of a row, or an estimate."""
        return gemm_attributes(gpu.capability_number).get(row.name) or cls.estimate(row)

    @classmethod
    def unfit(cls, gpu: Gpu, row: ConvKernel) -> Reason | None:
        """Why a machine does not run a row on any problem."""
        return unable(gpu, row, cls.attributes(gpu, row))

    def tolerance(self) -> Bound:
        """A sum's, and what must be finite for that: filters where padding is multiplied as zeros."""
        needs = self.row.needs_finite
        return DIRECT_SUM._replace(finite=needs if self.w.padded or needs != "filters" else "nothing")

    def lines(self) -> tuple[str, ...]:
        """The first lines of a plan's description: the tiles of filters x windows, and their number."""
        w, row = self.w, self.row
        if not row.tiles.rows:
            return ()
        of, windows, m = row.tiles, self.windows, row.outputs
        high, wide = -(-w.group_filters // of.rows), -(-windows.number // of.columns)
        useful = w.batch * w.windows * w.group_filters / (wide * of.columns * m**2 * high * of.rows)
        what, along = (f"tiles of {m}x{m} outputs", "channels") if m > 1 else ("windows", "k")
        groups = f" x {w.groups} groups" if w.groups > 1 else ""
        variant = () if row.variant == "full" else (f"{'variant':<18}{row.variant}",)
        return (
            *variant,
            f"{'block tile':<18}{of.rows} filters x {of.columns} {what}: {high} x {wide:,}{groups}, {useful:.1%} of their outputs useful; "
            f"{-(-self.k // of.depth)} k-iterations of {of.depth} over {along} = {windows.k}",
        )

    def variant(self, gpu: Gpu, known: dict[str, Attributes], prologue: bool = False) -> Variant:
        """The row as the model sees it, with a prologue or without. im2col, whose product is a row of gemm/, has none."""
        raise NotImplementedError

    def launched(self, gpu: Gpu, known: dict[str, Attributes], family: str, *numbers: str, **more: Any) -> Variant:
        """It as a variant, which uses a family's constants and the machine's `numbers` by prefixes of their paths; `more`: its columns and
        other fields."""
        row, name = self.row, self.row.name
        attributes = known.get(name) or self.estimate(row)
        used, assumed = product_columns.numbers_of(gpu, row.pipe, family, *numbers), product_columns.assumed_of(row, family, known)
        return Variant(name, partial(GpuSchedule, name), attributes, name in known, used, kind=self.kind, **({"assumed": assumed} | more))

    def tiled(self, gpu: Gpu, known: dict[str, Attributes], work: Work, passes: tuple[Pass, ...] = (), *numbers: str) -> Variant:
        """It as a product of tiles of filters x windows, with the `work` of a k-iteration."""
        w, row, tiles, windows, squares = self.w, self.row, self.tiles, self.read, self.row.outputs**2
        name, family = constants_of(gpu, row.families)
        own, threads = known.get(row.name) or self.estimate(row), self.threads
        columns = product_columns.columns_of(gpu, tiles, own, work, family, product_columns.efficiency_of(tiles, own, known), threads)
        blocks, l1 = float(columns.blocks_per_sm), float(gpu.l1_bytes.value)
        l1 = max(l1 / MIN_L1_SHARE, l1 - blocks * own.shared_bytes) / max(1.0, blocks)  # of a block
        of_filters = float(w.group_filters * windows.k * self.planes * self.size * tiles.parts)  # bytes, of a group
        # each row of tiles requests all windows, each column of tiles one group's filters
        sides = (
            (w.group_filters, w.groups * round_up(self.window_count, row.block_windows * row.cluster_windows)),
            (of_filters * w.groups, windows.bytes),
            (of_filters, self.requested_bytes(l1)),
        )
        (m, n), (a, b), requested = (pair[::-1] for pair in sides) if product_columns.windows_are_rows(row, self.layout) else sides
        size, of_kernel = self.size, columns[OF_SIZES:]
        if self.planes > 1 or squares > 1 or self.epilogue_wavefronts:
            of_kernel = columns._replace(
                fma=columns.fma / self.planes,
                fixup_rounds=np.ceil(tiles.rows * tiles.columns * squares / threads / FIXUP_LOADS_IN_FLIGHT),
                block_cycles=columns.block_cycles + self.epilogue_wavefronts,
            )[OF_SIZES:]
        sums = SUM_BYTES[w.dtype] * squares
        sizes = (m, n, self.k, size, a, b, w.output_elements * size, *requested, size * squares, sums)
        return self.launched(gpu, known, name, "l1_bytes", *numbers, columns=Columns._make((*sizes, *of_kernel)), work=work, passes=passes)


@lru_cache(maxsize=64)
def _multiplied_by(w: Conv, layout: Layout, dtype: str, outputs: int) -> tuple[Conv, int, Windows]:
    """What rows of a type compute at once of a problem, bytes of its elements, and its windows."""
    own = in_type(as_image(parts_of(w, layout).first), dtype)
    return own, own.element_bytes, windows_of(own, layout, outputs)


@dataclass(frozen=True)
class Rows:
    """The interface's answers for an algorithm whose rows are one kernel each, from `by`, its class for one row."""

    NAME: str
    by: type[ByRow]
    about: str
    kinds: tuple[str, ...] = ()

    COMPUTES: ClassVar[type] = Conv
    VOLUMES: ClassVar[bool] = True  # by rows that compute them, or as images
    cost = staticmethod(launches.cost)

    def of(self, problem: Conv, schedule: GpuSchedule, layout: Layout = "nchw") -> ByRow:
        """The row that a schedule names, on a problem."""
        return self.by(row_of(schedule), problem, layout, schedule.splits)

    def multiplied(self, problem: Conv) -> Conv:
        """The convolution in the type of its rows."""
        return in_type(problem, AS_HALVES.get(problem.dtype, problem.dtype)) if self.by.in_parts else problem

    def refuses(self, problem: Conv, machine: Gpu, layout: Layout) -> Reason | None:
        if reason := refuses(self.NAME, self.multiplied(problem), layout):
            return reason
        if self.by.in_parts and problem.dtype in AS_HALVES and problem.products < MIN_HALVES:
            return Reason("accuracy", f"sums of fewer than {MIN_HALVES} products are more accurate in FP32 than of halves")
        return None

    def candidates(self, request: Request, limit: float | None = None) -> Candidates:
        gpu, named = request.gpu, request.schedule
        w, known = self.multiplied(request.conv), gemm_attributes(gpu.capability_number)
        first, parts = parts_of(w, request.layout)
        rows_of_problem = dict[str, ByRow]()

        def made(row: ConvKernel) -> ByRow:
            if not (of := rows_of_problem.get(row.name)):
                of = rows_of_problem[row.name] = self.by(row, w, request.layout)
            return of

        of_type = request if w is request.problem else msgspec.structs.replace(request, problem=w)
        rows, rejected = legal_rows(of_type, self.NAME, self.by, made)
        variants = []
        for row in rows:
            one = made(row)
            for chunks in (named.splits,) if row.staged and isinstance(named, GpuSchedule) else one.chunk_counts():
                of = one if chunks == 1 else self.by(row, w, request.layout, chunks)
                variant = of.variant(gpu, known, request.prologue)
                if parts > 1:
                    passes = tuple(one.times(parts) for one in variant.passes)
                    variant = msgspec.structs.replace(variant, times=variant.times * w.flops / first.flops, passes=passes)
                if occupancy(gpu, variant.attributes):
                    variants.append(variant)
                else:
                    rejected.append(Rejected(row.name, f"no block of this problem fits on an SM of {gpu.name}", "machine"))
        return Candidates(request, tuple(variants), self.kinds or (self.NAME,), tuple(rejected), prunes(request, limit))

    def prepare(self, problem: Conv, schedule: GpuSchedule, layout: Layout) -> Prepared | None:
        kept = self.of(problem, schedule, layout).buffers.get("filters", 0)
        return Prepared("filters as the kernel reads them", kept) if kept else None

    def workspace_bytes(self, problem: Conv, schedule: GpuSchedule, layout: Layout) -> int:
        of = self.of(problem, schedule, layout)
        row, tiles, total = of.row, of.row.tiles, round_up(sum(of.buffers.values()), ALIGN)
        if not (schedule.decomposition == "split_k" and schedule.splits <= row.reduces_in_cluster) and tiles.rows:
            accumulators = tiles.rows * tiles.columns * row.outputs**2 * SUM_BYTES[problem.dtype]
            number = tiles_of(of.w, row, of.window_count)
            total += partial_bytes(schedule.decomposition, schedule.splits, number, tiles.blocks, accumulators)
        return total + ALIGN * bool(total)

    def tolerance(self, problem: Conv, schedule: GpuSchedule) -> Bound:
        return self.of(problem, schedule).tolerance()

    def contract(self, problem: Conv, schedule: GpuSchedule, layout: Layout) -> GpuContract | None:
        of = self.of(problem, schedule, layout)
        return None if of.order is None else in_parts(of.row, of.row.sums, of.order, schedule)

    def describe(self, plan: Plan) -> Description:
        lines, parts = self.of(plan.conv, plan.launch, plan.layout).lines(), parts_of(plan.conv, plan.layout)
        if parts.number > 1:
            lines = (f"{'parts':<18}{parts.number} one after another, of up to {parts.first.text}", *lines)
        return launch_text.describe(plan, self.candidates, self.about, lines)


def order_of(w: Conv, *axes: str) -> str:
    """The axes of k of which a group has several, the slowest first."""
    sizes = {"channels": w.group_channels, "slices": w.kernel_d, "rows": w.kernel_h, "columns": w.kernel_w}
    return ", ".join(axis for axis in axes if sizes[axis] > 1)


def order_in_memory(w: Conv, layout: Layout) -> str:
    """The order of k of filters of this layout."""
    return order_of(w, *(("slices", "rows", "columns", "channels") if layout == "nhwc" else ("channels", "slices", "rows", "columns")))


@lru_cache(maxsize=64)
def as_image(w: Conv) -> Conv:
    """A convolution as the library sees it: of images where its windows join no rows and no columns (native/cuda/abi/conv.cu)."""
    return w.folded if w.height * w.width <= cuda_limits()["CONV_SIZE"] else w


@lru_cache(maxsize=64)
def in_type(w: Conv, dtype: str) -> Conv:
    """A convolution in another type."""
    return w if w.dtype == dtype else msgspec.structs.replace(w, dtype=dtype)


@cache
def conv_rows(name: str) -> tuple[ConvKernel, ...]:
    """The rows of an algorithm."""
    return tuple(row for row in conv_kernels() if row.algorithm == name)


def refuses(name: str, w: Conv, layout: Layout) -> Reason | None:
    """Why an algorithm of conv/ cannot compute a problem on any machine: no row has its type, or it is too large."""
    return _lacks_type(name, w.dtype) or too_large(parts_of(w, layout).first)


@cache
def _lacks_type(name: str, dtype: str) -> Reason | None:
    known = sorted({row.dtype for row in conv_rows(name)})
    if dtype in known:
        return None
    there = f"the registry (native/cuda/conv) has {', '.join(known) or 'none'}"
    return Reason("type", f"there is no {dtype} CUDA kernel of it; {there}")


def legal_rows(
    request: Request, name: str, by: type[ByRow], made: Callable[[ConvKernel], ByRow]
) -> tuple[list[ConvKernel], list[Rejected]]:
    """The rows of an algorithm that a request may use, and the rejected ones with reasons; `made`: a row on the problem."""
    return legal(request, name, conv_rows(name), by.unfit, lambda row: row_refuses(made(row), request.prologue))


def row_refuses(of: ByRow, prologue: bool = False) -> Reason | None:
    """Why a row does not compute a problem, with a prologue or without, as the native library says it."""
    if not of.row.volumes and of.w.is_volume:
        return Reason("shape", "it computes images, and these are volumes (id, kd)")
    if prologue and not of.row.prologue:
        return Reason("shape", "it takes no prologue")
    return (of.prologue_refusal() if prologue else None) or of.refusal()


def row_of(schedule: GpuSchedule) -> ConvKernel:
    """The row that a schedule names."""
    row = conv_kernel(schedule.kernel)
    if row is None:
        raise PlanError(f"the registry has no CUDA convolution {schedule.kernel}; `pysim kernels --cuda` lists them")
    return row


def tiles_of(w: Conv, row: ConvKernel, windows: int) -> int:
    """Tiles of filters x `windows` in all groups; those of a cluster where the row has clusters."""
    tiles = row.tiles
    high, wide = -(-w.group_filters // (tiles.rows * tiles.cluster_rows)), -(-windows // (tiles.columns * tiles.cluster_columns))
    return high * w.groups * wide


class Parts(NamedTuple):
    """A convolution as the library computes it: a `number` of parts one after another, of which the `first` is the largest."""

    first: Conv
    number: int


@lru_cache(maxsize=64)
def parts_of(w: Conv, layout: Layout) -> Parts:
    """Parts whose operands lie one after another: of some images, or of one image under NCHW of some groups, or of one group of some
    filters (native/cuda/abi/conv.cu)."""
    count = 1
    for size in ("batch", "groups", "filters") if layout == "nchw" else ("batch",):
        if not too_large(w):
            break
        whole = getattr(w, size)
        low, high = 1, whole  # the most that fit
        while low < high:
            middle = low + (high - low + 1) // 2
            low, high = (low, middle - 1) if too_large(_part(w, size, middle)) else (middle, high)
        most = -(-whole // -(-whole // low))
        w, count = _part(w, size, most), count * -(-whole // most)
    return Parts(w, count)


def _part(w: Conv, size: str, most: int) -> Conv:
    more = {"channels": w.group_channels * most, "filters": w.group_filters * most} if size == "groups" else {}
    return msgspec.structs.replace(w, **{size: most}, **more)


@lru_cache(maxsize=64)
def too_large(w: Conv) -> Reason | None:
    """Why no CUDA kernel takes a problem of this size."""
    most, numbers = cuda_limits(), {name: getattr(w, name) for name in w.__struct_fields__ if name != "dtype"}
    for name, number in numbers.items():
        if number > most["CONV_SIZE"]:
            return Reason("size", f"{name} is {number:,}; the CUDA kernels take up to {most['CONV_SIZE']:,}")
    tensors = {
        "input": w.input_elements,
        "filters": w.filter_elements,
        "output": w.output_elements,
        "windows of all groups": w.groups * (w.batch * w.windows + most["SPARE_WINDOWS"]),
    }
    for name, elements in tensors.items():
        if elements > most["CONV_TENSOR"]:
            why = f"the {name} would have {elements:,} elements in one part; the CUDA kernels take up to {most['CONV_TENSOR']:,}"
            return Reason("size", why)
    return None
