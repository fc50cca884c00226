# SPDX-License-Identifier: Apache-2.0
"""Convolutions as products: columns of windows in the workspace, then a row of `native/cuda/gemm`.

NCHW: filters x windows of one image and group; NHWC: windows x filters of as many images as have
COLUMNS_BYTES of columns and GEMM_SIDE windows (`native/cuda/limits.inc`). 1x1 convolutions
with stride 1 are products as they lie.

Worked number: im2col of conv:mb32ic64ih56oc64kh3ph1 under NCHW keeps 576 x 3136 columns of one image, 7,225,344 bytes, and 256 to align.
"""

import math
from functools import partial
from typing import NamedTuple

import msgspec

from pysim.algorithms.convolution import ByRow, Rows, legal_rows
from pysim.algorithms.gpu import gemm
from pysim.cachemodel.gpu import words
from pysim.cachemodel.gpu.launches import ALIGN, Candidates, round_up
from pysim.cachemodel.gpu.passes import Pass
from pysim.cachemodel.gpu.windows import Windows
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.record.cost import Reason, Rejected
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request
from pysim.record.schedule import GpuSchedule
from pysim.registry.cuda import cuda_limits, gemm_attributes, gemm_kernel, gemm_kernels


class Products(NamedTuple):
    """One of its products, how often it is made, its images, pitches and alignments of A and B, bytes of its columns."""

    problem: Gemm
    times: int
    images: int
    pitches: tuple[int, int]
    aligned: tuple[bool, bool]
    columns: int


def products_of(w: Conv, layout: Layout) -> Products:
    """The products that a convolution is."""
    size, windows, k, filters = w.element_bytes, w.windows, w.products, w.group_filters
    if layout == "nchw":
        pitch = windows if w.pointwise else round_up(windows * size, 16) // size
        columns = 0 if w.pointwise else round_up(k * pitch * size, ALIGN)
        problem = Gemm(m=filters, n=windows, k=k, dtype=w.dtype)
        return Products(problem, w.batch * w.groups, 1, (k, pitch), (False, bool(columns)), columns)
    pitch = w.channels if w.pointwise else round_up(k * size, 16) // size
    most = cuda_limits()
    fit = w.batch if w.pointwise else most["COLUMNS_BYTES"] // (windows * pitch * size)
    images = max(1, min(w.batch, fit, most["GEMM_SIDE"] // windows))
    columns = 0 if w.pointwise else round_up(windows * images * pitch * size, ALIGN)
    problem = Gemm(m=windows * images, n=filters, k=k, trans_b=True, dtype=w.dtype)
    return Products(problem, math.ceil(w.batch / images) * w.groups, images, (pitch, k), (bool(columns), False), columns)


def passes(gpu: Gpu, w: Conv, layout: Layout) -> tuple[Pass, ...]:
    """Its columns; under NHWC those of all groups lie together."""
    if w.pointwise:
        return ()
    elements, each = w.groups * w.batch * w.windows * w.products, gpu.model.passes.element_instructions.value
    times = products_of(w, layout).times
    return (Pass("columns", Windows(w, layout).bytes, elements * w.element_bytes, elements * each, times),)


class ByProducts(Rows):
    """The contract's answers, where a schedule names a row of gemm/, too."""

    def refuses(self, problem: Conv, machine: Gpu, layout: Layout) -> Reason | None:
        return super().refuses(problem, machine, layout) or gemm.refuses(products_of(problem, layout).problem, machine)

    def prepare(self, problem: Conv, schedule: GpuSchedule, layout: Layout) -> None:
        """Nothing: filters are a matrix as they lie."""

    def candidates(self, request: Request, limit: float | None = None) -> Candidates:
        gpu, w, named = request.gpu, request.conv, request.schedule
        rows, rejected = legal_rows(request, self.NAME)
        of = products_of(w, request.layout)
        chosen = gemm_kernels()
        if isinstance(named, GpuSchedule):
            chosen = tuple(kernel for kernel in chosen if kernel.name == named.gemm)
        plain = request._replace(micro_kernel=None, schedule=None)
        kernels, unfit = gemm.usable(plain, of.problem, self.NAME, chosen, (of.pitches, of.aligned)) if rows else ([], [])
        if rows and not kernels:
            first = unfit[0]
            rejected += [Rejected(row.name, f"no product can run: {first.what}: {first.reason}", first.code) for row in rows]
        around, found = passes(gpu, w, request.layout), []
        last = w.batch % of.images * w.windows  # the last images' product has fewer tiles, which stream-K's blocks must share, too
        for kernel, one in zip(kernels, gemm.variants(gpu, of.problem, kernels, gemm_attributes(gpu.capability_number)), strict=True):
            if last and one.columns is not None:
                least = msgspec.structs.replace(of.problem, m=last)
                one = one._replace(columns=one.columns._replace(stream_most=gemm.steps_of(least, kernel)))
            schedule = partial(GpuSchedule, rows[0].name, gemm=one.kernel)
            found.append(one._replace(kernel=rows[0].name, schedule=schedule, times=of.times, passes=around))
        return Candidates(request, tuple(found), (self.NAME,), tuple(rejected))

    def workspace_bytes(self, problem: Conv, schedule: GpuSchedule, layout: Layout) -> int:
        of, kernel = products_of(problem, layout), gemm_kernel(schedule.gemm or "")
        assert kernel is not None
        total = round_up(of.columns + gemm.launch_bytes(of.problem, kernel, schedule, (of.pitches, of.aligned)), ALIGN)
        return total + ALIGN * bool(total)

    def describe(self, plan: Plan) -> Description:
        kernel, of = gemm_kernel(plan.launch.gemm or ""), products_of(plan.conv, plan.layout)
        assert kernel is not None
        lines = (f"{'products':<18}{of.times:,} of {of.problem.text}, by {kernel.name}", *words.products(of.problem, kernel.tiles))
        return words.describe(plan, self.candidates, self.about, lines)


ALGORITHM = ByProducts("im2col", ByRow, "columns in the workspace, then products")
