# SPDX-License-Identifier: Apache-2.0
"""Convolutions as products on tensor cores: TMA gathers windows from channels that lie together, 16 bytes at once.

An input that does not lie so is copied: where its channels do not lie together in whole 16 bytes, in groups in whole steps of 128. Each
tap, or in a copy with padded rows each row of taps, has whole steps of 128 bytes of channels. L2 is asked for every tap.

Convolutions of f32 are three products of tf32 halves (native/cuda/core/split.cuh): those of the filters are made ahead, those of windows in
registers.

Worked number: conv:mb1ic72ih8oc8kh3ph1:f16 under NHWC has 9 taps of 72 x 2 = 144 bytes, so 9 x 2 steps of 64: k = 9 x 128.
"""

import msgspec

from pysim.algorithms.contract import Bound
from pysim.algorithms.convolution import Asked, Rows, row_of
from pysim.algorithms.gpu import gemm
from pysim.cachemodel.gpu import mainloop, tiled, words
from pysim.cachemodel.gpu.launches import ALIGN, Candidates, Variant, round_up
from pysim.cachemodel.gpu.launches import cost as cost
from pysim.cachemodel.gpu.mainloop import LINE_BYTES, VECTOR_BYTES
from pysim.cachemodel.gpu.passes import Pass
from pysim.cachemodel.gpu.tiled import Special, lying
from pysim.cachemodel.gpu.windows import Windows
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.problem.dtypes import AS_HALVES, SIZES
from pysim.record.cost import Reason
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request
from pysim.record.schedule import GpuConvSchedule
from pysim.registry.cuda import ConvKernel, cuda_limits

NAME = "wgmma"
COMPUTES = Conv


def row_refuses(row: ConvKernel, w: Conv, layout: Layout) -> Reason | None:
    """Why TMA cannot gather a problem's windows."""
    most = cuda_limits()
    stride, span, corner = most["TMA_STRIDE"], most["TMA_SPAN"] - 1, most["TMA_CORNER"]
    spans = ((w.kernel_h - 1) * w.dilation_h, (w.kernel_w - 1) * w.dilation_w)
    why = ""
    if max(w.stride_h, w.stride_w) > stride:
        why = f"it takes strides of up to {stride}"
    elif max(spans) > span:
        why = f"it takes kernels that span up to {span + 1} rows and columns"
    elif max(w.pad_top, w.pad_left) > corner:
        why = f"it takes padding of up to {corner}"
    elif row.promotion and w.filters * w.kernel_h * w.kernel_w > most["RELAYOUT_ROWS"]:
        why = f"it splits up to {most['RELAYOUT_ROWS']} taps of all filters"
    elif any(not -corner <= after - span < corner for after, span in zip((w.pad_bottom, w.pad_right), spans, strict=True)):
        why = f"its last window begins up to {corner} rows and columns before the input's end, or {corner - 1} after"
    return Reason("shape", why) if why else None


def padded_bytes(w: Conv) -> int:
    """Bytes of a group's channels of one pixel in its copies: whole 16."""
    return round_up(w.channels // w.groups * SIZES[w.dtype], VECTOR_BYTES)


def copied(w: Conv, layout: Layout) -> bool:
    """Whether it copies the input."""
    of_group = w.channels // w.groups * SIZES[w.dtype]
    return layout == "nchw" or padded_bytes(w) != of_group or (w.groups > 1 and of_group % LINE_BYTES != 0)


def rows_of_taps(w: Conv, layout: Layout) -> bool:
    """Whether its copy has padded rows, whose taps beside one another are channels: where that takes fewer steps."""
    padded = padded_bytes(w)
    vectors = w.batch * w.groups * w.height * (w.width + w.pad_left + w.pad_right) * padded // VECTOR_BYTES
    fewer = -(-w.kernel_w * padded // LINE_BYTES) < w.kernel_w * -(-padded // LINE_BYTES)
    return copied(w, layout) and w.dilation_w == 1 and fewer and vectors < 1 << 31


def whole_steps(row: ConvKernel, w: Conv, layout: Layout) -> int:
    """k: each tap, or each row of taps, has whole steps of 128 bytes of channels."""
    padded = padded_bytes(w)
    across = -(-w.kernel_w * padded // LINE_BYTES) if rows_of_taps(w, layout) else w.kernel_w * -(-padded // LINE_BYTES)
    return w.kernel_h * across * row.block_k


def variant(asked: Asked, row: ConvKernel, chunks: int = 1) -> Variant:
    """A row as the model knows it: windows lie as they do under NHWC, or in the copy."""
    gpu, w, layout, known = asked
    windows, around = Windows(w, "nhwc"), passes(gpu, w, layout)
    if row.promotion:
        around = (*around, halving(gpu, w))
    step = mainloop.work(gpu, lying(row, layout), False, True)
    every_tap = float(windows.number * windows.k * w.groups * SIZES[w.dtype])
    special = Special(k=whole_steps(row, w, layout), asked=every_tap)
    found = tiled.variant_of(gpu, windows, row, step, known, around, special)
    return found._replace(leans=(*found.leans, "model.passes.copied_") if around else found.leans)


def copies(w: Conv, layout: Layout) -> dict[str, int]:
    """Bytes of its copies (native/cuda/conv/wgmma/operands.cu): of an input that it cannot take as it lies, and of such filters."""
    padded, taps = padded_bytes(w), w.kernel_h * w.kernel_w
    kept = {}
    if copied(w, layout):
        wide = w.width + (w.pad_left + w.pad_right) * rows_of_taps(w, layout)
        kept["input"] = round_up(w.batch * w.height * wide * w.groups * padded, ALIGN)
    if padded != w.channels // w.groups * SIZES[w.dtype] or not (layout == "nhwc" or taps == 1):
        kept["filters"] = round_up(w.filters * taps * padded, ALIGN)
    return kept


def halves_bytes(w: Conv) -> int:
    """Of both halves of the filters."""
    return round_up(2 * w.filters * w.kernel_h * w.kernel_w * padded_bytes(w), ALIGN)


def kept(row: ConvKernel, w: Conv, layout: Layout) -> dict[str, int]:
    """Bytes of all that it makes, halves with the filters."""
    found = copies(w, layout)
    if row.promotion:
        found["filters"] = found.get("filters", 0) + halves_bytes(w)
    return found


def halving(gpu: Gpu, w: Conv) -> Pass:
    """What makes the halves."""
    elements = w.filters * w.kernel_h * w.kernel_w * padded_bytes(w) // SIZES[w.dtype]
    return Pass("halves", elements * SIZES[w.dtype], halves_bytes(w), elements * gpu.model.passes.copied_instructions.value)


def passes(gpu: Gpu, w: Conv, layout: Layout) -> tuple[Pass, ...]:
    """Its copies, by one kernel; 16 bytes share their place."""
    made, size, each = copies(w, layout), SIZES[w.dtype], gpu.model.passes.copied_instructions.value
    filters, pixels = w.filters * Windows(w, layout).k, w.batch * w.channels * w.height * w.width
    found = []
    if "filters" in made:
        found.append(Pass("filters", filters * size, made["filters"], filters * each))
    if "input" in made:
        found.append(Pass("channels last", pixels * size, made["input"], pixels * each, 0 if "filters" in made else 1))
    return tuple(found)


def describe(plan: Plan) -> Description:
    w, schedule = plan.workload, plan.schedule
    assert isinstance(w, Conv) and isinstance(schedule, GpuConvSchedule)
    return words.describe(plan, candidates, _ROWS.about, words.tiles(plan, whole_steps(row_of(schedule), w, plan.layout)))


_ABOUT = "implicit GEMM on tensor cores: TMA gathers windows from channels that lie together"
_ROWS = Rows(NAME, variant, _ABOUT, row_refuses, lambda row, w, layout, chunks: kept(row, w, layout))
prepare, workspace_bytes = _ROWS.prepare, _ROWS.workspace_bytes


def of_halves(w: Conv) -> Conv:
    """The convolution as these rows compute it."""
    return msgspec.structs.replace(w, dtype=AS_HALVES.get(w.dtype, w.dtype))


def refuses(problem: Conv, machine: Gpu, layout: Layout) -> Reason | None:
    return _ROWS.refuses(of_halves(problem), machine, layout)


def candidates(request: Request, limit: float | None = None) -> Candidates:
    assert isinstance(request.problem, Conv)
    return _ROWS.candidates(request._replace(problem=of_halves(request.problem)), limit)._replace(request=request)


def tolerance(problem: Conv, schedule: GpuConvSchedule) -> Bound:
    bound, tiles = _ROWS.tolerance(problem, schedule), row_of(schedule).tiles
    return gemm.sums_of_halves(problem, tiles)._replace(finite=bound.finite) if tiles.promotion else bound
