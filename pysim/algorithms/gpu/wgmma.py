# SPDX-License-Identifier: Apache-2.0
"""Convolutions as products on tensor cores: TMA gathers windows from channels that lie together, 16 bytes at once.

An input that does not lie so is copied: where its channels do not lie together in whole 16 bytes, in groups in whole steps of 128. Each
tap, or in a copy with padded rows each row of taps, has whole steps of 128 bytes of channels. L2 is asked for every tap.

Worked number: conv:mb1ic72ih8oc8kh3ph1:f16 under NHWC has 9 taps of 72 x 2 = 144 bytes, so 9 x 2 steps of 64: k = 9 x 128.
"""

from pysim.algorithms.contract import Bound, Prepared, sums_by
from pysim.cachemodel.gpu import mainloop, tiled, words
from pysim.cachemodel.gpu.launches import ALIGN, Candidates, Variant, cost, round_up
from pysim.cachemodel.gpu.mainloop import LINE_BYTES, VECTOR_BYTES, estimated
from pysim.cachemodel.gpu.passes import Pass
from pysim.cachemodel.gpu.tiled import Asked, Special, lying
from pysim.cachemodel.gpu.windows import Windows
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SIZES
from pysim.record.cost import Reason
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request
from pysim.record.schedule import GpuConvSchedule
from pysim.registry.rows import ConvKernel, conv_kernel

NAME = "wgmma"
COMPUTES = Conv
LARGEST_STRIDE, LARGEST_SPAN, CORNERS = 8, 255, (-128, 127)  # of TMA's im2col mode (native/cuda/conv_wgmma.cu)


def refuses(problem: Conv, machine: Gpu, layout: Layout) -> Reason | None:
    return tiled.refuses(NAME, problem)


def row_refuses(row: ConvKernel, w: Conv, layout: Layout) -> Reason | None:
    """Why TMA cannot gather a problem's windows."""
    spans = ((w.kernel_h - 1) * w.dilation_h, (w.kernel_w - 1) * w.dilation_w)
    why = ""
    if max(w.stride_h, w.stride_w) > LARGEST_STRIDE:
        why = f"it takes strides of up to {LARGEST_STRIDE}"
    elif max(spans) > LARGEST_SPAN:
        why = f"it takes kernels that span up to {LARGEST_SPAN + 1} rows and columns"
    elif max(w.pad_top, w.pad_left) > -CORNERS[0]:
        why = f"it takes padding of up to {-CORNERS[0]}"
    elif any(not CORNERS[0] <= after - span <= CORNERS[1] for after, span in zip((w.pad_bottom, w.pad_right), spans, strict=True)):
        why = f"its last window begins up to {-CORNERS[0]} rows and columns before the input's end, or {CORNERS[1]} after"
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


def candidates(request: Request, limit: float | None = None) -> Candidates:
    asked = Asked.of(request)
    rows, rejected = tiled.legal_rows(
        asked, NAME, lambda row: estimated(row.tiles.turned), lambda row: row_refuses(row, asked.w, asked.layout)
    )
    return Candidates(request, tuple(variant(asked, row) for row in rows), (NAME,), tuple(rejected))


def variant(asked: Asked, row: ConvKernel, splits: int = 1) -> Variant:
    """A row as the model knows it: windows lie as they do under NHWC, or in the copy."""
    gpu, w, layout = asked.gpu, asked.w, asked.layout
    windows, around = Windows(w, "nhwc"), passes(gpu, w, layout)
    step = mainloop.work(gpu, lying(row, layout), False, True)
    every_tap = float(windows.number * windows.k * w.groups * SIZES[w.dtype])
    special = Special(k=whole_steps(row, w, layout), asked=every_tap)
    found = tiled.variant_of(gpu, windows, row, step, asked.known, estimated(row.tiles.turned), around, special)
    return found._replace(leans=(*found.leans, "model.passes.copied_") if around else found.leans)


def copies(w: Conv, layout: Layout) -> dict[str, int]:
    """Bytes of its copies (native/cuda/conv_wgmma.cu): of an input that it cannot take as it lies, and of such filters."""
    padded, taps = padded_bytes(w), w.kernel_h * w.kernel_w
    kept = {}
    if copied(w, layout):
        wide = w.width + (w.pad_left + w.pad_right) * rows_of_taps(w, layout)
        kept["input"] = round_up(w.batch * w.height * wide * w.groups * padded, ALIGN)
    if padded != w.channels // w.groups * SIZES[w.dtype] or not (layout == "nhwc" or taps == 1):
        kept["filters"] = round_up(w.filters * taps * padded, ALIGN)
    return kept


def passes(gpu: Gpu, w: Conv, layout: Layout) -> tuple[Pass, ...]:
    """Its copies, by one kernel; 16 bytes share their place."""
    kept, size, each = copies(w, layout), SIZES[w.dtype], gpu.model.passes.copied_instructions.value
    filters, pixels = w.filters * Windows(w, layout).k, w.batch * w.channels * w.height * w.width
    found = []
    if "filters" in kept:
        found.append(Pass("filters", filters * size, kept["filters"], filters * each))
    if "input" in kept:
        found.append(Pass("channels last", pixels * size, kept["input"], pixels * each, 0 if "filters" in kept else 1))
    return tuple(found)


def prepare(problem: Conv, schedule: GpuConvSchedule, layout: Layout) -> Prepared | None:
    kept = copies(problem, layout)
    return Prepared("filters, channels last", kept["filters"]) if "filters" in kept else None


def workspace_bytes(problem: Conv, schedule: GpuConvSchedule, layout: Layout) -> int:
    row = conv_kernel(schedule.kernel)
    assert row is not None
    return tiled.workspace_bytes(problem, layout, row, schedule, sum(copies(problem, layout).values()))


def tolerance(problem: Conv, schedule: GpuConvSchedule) -> Bound:
    return sums_by(schedule.kernel, problem)


def describe(plan: Plan) -> Description:
    w, row = plan.workload, conv_kernel(plan.kernel)
    assert isinstance(w, Conv) and row is not None
    lines = words.tiles(plan, whole_steps(row, w, plan.layout))
    what = "implicit GEMM on tensor cores: TMA gathers windows from channels that lie together"
    return words.describe(plan, words.one_launch(plan, candidates), what, lines)


__all__ = ["COMPUTES", "NAME", "candidates", "cost", "describe", "prepare", "refuses", "tolerance", "workspace_bytes"]
