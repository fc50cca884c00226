# SPDX-License-Identifier: Apache-2.0
"""im2col: columns of windows in the workspace, then a product by a row of `native/cuda/gemm`.

NCHW: filters x windows of one image and group. NHWC: windows x filters of as many images as fit in COLUMNS_BYTES of columns and GEMM_SIDE
windows (`native/cuda/limits.inc`). 1x1 convolutions of stride 1 are products without columns, also by rows that multiply parts of FP32
numbers: those of convolutions gather their windows, which saves nothing here.

Worked number: im2col of conv:mb32ic64ih56oc64kh3ph1 under NCHW keeps 576 x 3136 columns of one image, 7,225,344 bytes, and 256 to align.
"""

import math
from functools import partial
from typing import NamedTuple

import msgspec

from pysim.algorithms.convolution import MIN_HALVES, ByRow, Rows, legal_rows, order_in_memory, parts_of
from pysim.algorithms.gpu import gemm
from pysim.algorithms.interface import Bound
from pysim.cachemodel.gpu import launch_text
from pysim.cachemodel.gpu.copy_kernels import Pass
from pysim.cachemodel.gpu.launches import ALIGN, Candidates, prunes, round_up
from pysim.cachemodel.gpu.windows import Windows
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.record.contract import GpuContract
from pysim.record.cost import Reason, Rejected
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request
from pysim.record.schedule import GpuSchedule
from pysim.registry.cuda import cuda_limits, gemm_attributes, gemm_kernel


class Products(NamedTuple):
    """One of the products, their number, its images, pitches and alignments of A and B, bytes of its columns."""

    problem: Gemm
    times: int
    images: int
    pitches: tuple[int, int]
    aligned: tuple[bool, bool]
    columns: int


def products_of(w: Conv, layout: Layout) -> Products:
    """The products of a convolution, of a large one those of its first part."""
    w = parts_of(w, layout).first
    size, windows, k, filters = w.element_bytes, w.windows, w.products, w.group_filters
    if layout == "nchw":
        pitch = windows if w.pointwise else round_up(windows * size, 16) // size
        columns = 0 if w.pointwise else round_up(k * pitch * size, ALIGN)
        problem = Gemm(m=filters, n=windows, k=k, dtype=w.dtype)
        return Products(problem, w.batch * w.groups, 1, (k, pitch), (False, bool(columns)), columns)
    pitch = w.channels if w.pointwise else round_up(k * size, 16) // size
    most = cuda_limits()
    images = w.batch if w.pointwise else most["COLUMNS_BYTES"] // (windows * pitch * size)
    images = max(1, min(w.batch, images, most["GEMM_SIDE"] // windows))
    columns = 0 if w.pointwise else round_up(windows * images * pitch * size, ALIGN)
    problem = Gemm(m=windows * images, n=filters, k=k, trans_b=True, dtype=w.dtype)
    return Products(problem, math.ceil(w.batch / images) * w.groups, images, (pitch, k), (bool(columns), False), columns)


def passes(gpu: Gpu, w: Conv, layout: Layout) -> tuple[Pass, ...]:
    """The im2col passes; under NHWC one makes the columns of all groups."""
    if w.pointwise:
        return ()
    elements, times = w.groups * w.batch * w.windows * w.products, products_of(w, layout).times
    instructions = elements * gpu.model.passes.column_instructions.value
    return (Pass("columns", Windows(w, layout).bytes, elements * w.element_bytes, instructions, times),)


class ByProducts(Rows):
    """The interface's answers for schedules that also name a row of gemm/."""

    def refuses(self, problem: Conv, machine: Gpu, layout: Layout) -> Reason | None:
        return super().refuses(problem, machine, layout) or gemm.refuses(products_of(problem, layout).problem, machine)

    def prepare(self, problem: Conv, schedule: GpuSchedule, layout: Layout) -> None:
        """Nothing: filters already are a matrix."""

    def candidates(self, request: Request, limit: float | None = None) -> Candidates:
        gpu, named = request.gpu, request.schedule
        w, parts = parts_of(request.conv, request.layout)
        share = request.conv.flops / w.flops
        rows, rejected = legal_rows(request, self.NAME, self.by, lambda row: self.by(row, w, request.layout))
        of = products_of(w, request.layout)
        products = gemm.products()
        if isinstance(named, GpuSchedule):
            products = tuple(kernel for kernel in products if kernel.name == named.gemm)
        unnamed = msgspec.structs.replace(request, micro_kernel=None, schedule=None)
        usable = partial(
            gemm.usable_as_halves if w.pointwise and w.products >= MIN_HALVES else gemm.usable, unnamed, of.problem, self.NAME, products
        )
        kernels, unfit = usable(placement=(of.pitches, of.aligned)) if rows else ([], [])
        if rows and not kernels:
            first = unfit[0]
            rejected += [Rejected(row.name, f"no kernel multiplies its columns: {first.what}: {first.reason}", first.code) for row in rows]
        copies, result = tuple(copy.times(parts) for copy in passes(gpu, w, request.layout)), []
        numbers, times = ("model.passes.column_",) * bool(copies), of.times * share
        last = w.batch % of.images * w.windows  # windows of the last product: stream-K's blocks share its tiles, too
        least = msgspec.structs.replace(of.problem, m=last) if last else of.problem
        for kernel, one in zip(kernels, gemm.variants(gpu, of.problem, kernels, gemm_attributes(gpu.capability_number)), strict=True):
            columns, schedule = one.columns, partial(GpuSchedule, rows[0].name, gemm=one.kernel)
            if last and columns is not None:
                columns = columns._replace(max_stream_blocks=min(columns.max_stream_blocks, gemm.iterations_of(least, kernel)))
            own = {"kernel": rows[0].name, "schedule": schedule, "columns": columns, "numbers": (*one.numbers, *numbers)}
            result.append(msgspec.structs.replace(one, times=times, passes=copies, **own))
        return Candidates(request, tuple(result), (self.NAME,), tuple(rejected), prunes(request, limit))

    def workspace_bytes(self, problem: Conv, schedule: GpuSchedule, layout: Layout) -> int:
        of, kernel = products_of(problem, layout), gemm_kernel(schedule.gemm or "")
        assert kernel is not None
        total = round_up(of.columns + gemm.launch_bytes(of.problem, kernel, schedule, (of.pitches, of.aligned)), ALIGN)
        return total + ALIGN * bool(total)

    def tolerance(self, problem: Conv, schedule: GpuSchedule) -> Bound:
        """Of a sum, or of products of parts of numbers."""
        bound, kernel = super().tolerance(problem, schedule), gemm_kernel(schedule.gemm or "")
        return gemm.sums_of_parts(problem, kernel.tiles)._replace(finite=bound.finite) if kernel and kernel.promotion else bound

    def contract(self, problem: Conv, schedule: GpuSchedule, layout: Layout) -> GpuContract | None:
        of = products_of(problem, layout).problem
        return gemm.contract_of(of, gemm_kernel(schedule.gemm or ""), schedule, order_in_memory(problem, layout))

    def describe(self, plan: Plan) -> Description:
        kernel, of = gemm_kernel(plan.launch.gemm or ""), products_of(plan.conv, plan.layout)
        assert kernel is not None
        lines = (f"{'products':<18}{of.times:,} of {of.problem.text}, by {kernel.name}", *launch_text.tiling(of.problem, kernel.tiles))
        return launch_text.describe(plan, self.candidates, self.about, lines)


ALGORITHM = ByProducts("im2col", ByRow, "columns in the workspace, then products")
