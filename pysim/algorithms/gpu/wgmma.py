# SPDX-License-Identifier: Apache-2.0
"""Convolutions as products on tensor cores: TMA gathers windows from channels that lie together, 16 bytes at once.

An input that does not lie so is copied: where its channels do not lie together in whole 16 bytes, in groups in whole steps. Each tap, or
in a copy with padded rows each row of taps, has whole steps of a row's bytes of channels, 128 or 64; where windows are more than a pixel
apart, a copy may have the pixels from one to the next as channels, and that of a pointwise convolution has no others than are taken. L2
is asked for every tap. Under NCHW the windows of most pointwise convolutions are taken as they lie, 128 bytes of a plane at once; of tf32
they pass through registers.

Convolutions of f32 are three products of tf32 halves (native/cuda/core/split.cuh): those of the filters are made ahead, those of windows in
registers.

Worked number: conv:mb1ic72ih8oc8kh3ph1:f16 under NHWC has 9 taps of 72 x 2 = 144 bytes, so 9 x 2 steps of 64: k = 9 x 128.
"""

from typing import NamedTuple

import msgspec

from pysim.algorithms.contract import Bound
from pysim.algorithms.convolution import BEGIN_CHANNEL, BEGIN_ELEMENT, Asked, Rows, row_of
from pysim.algorithms.gpu import gemm
from pysim.cachemodel.gpu import mainloop, tiled, words
from pysim.cachemodel.gpu.launches import ALIGN, Candidates, Variant, round_up
from pysim.cachemodel.gpu.launches import cost as cost
from pysim.cachemodel.gpu.mainloop import LINE_BYTES, VECTOR_BYTES
from pysim.cachemodel.gpu.passes import Pass
from pysim.cachemodel.gpu.tiled import Special, lying
from pysim.cachemodel.gpu.traffic import lines_of_row, sectors_of
from pysim.cachemodel.gpu.windows import SECTOR_BYTES, Windows
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.problem.dtypes import AS_HALVES, SIZES
from pysim.record.cost import Reason
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request
from pysim.record.schedule import GpuSchedule
from pysim.registry.cuda import ConvKernel, cuda_limits

NAME = "wgmma"
COMPUTES = Conv
INT_MAX = (1 << 31) - 1


def row_refuses(row: ConvKernel, w: Conv, layout: Layout) -> Reason | None:
    """Why TMA cannot gather a problem's windows."""
    most = cuda_limits()
    stride, span, corner = most["TMA_STRIDE"], most["TMA_SPAN"] - 1, most["TMA_CORNER"]
    spans = ((w.kernel_h - 1) * w.dilation_h, (w.kernel_w - 1) * w.dilation_w)
    why = ""
    if row.folds and not folded(row, w, layout):
        why = "it takes few channels, which it copies, and windows more than a pixel apart"
    elif max(w.stride_h, w.stride_w) > stride:
        why = f"it takes strides of up to {stride}"
    elif max(spans) > span:
        why = f"it takes kernels that span up to {span + 1} rows and columns"
    elif max(w.pad_top, w.pad_left) > corner:
        why = f"it takes padding of up to {corner}"
    elif any(not -corner <= after - span < corner for after, span in zip((w.pad_bottom, w.pad_right), spans, strict=True)):
        why = f"its last window begins up to {corner} rows and columns before the input's end, or {corner - 1} after"
    elif row.promotion and w.filters * w.kernel_h * w.kernel_w > most["RELAYOUT_ROWS"]:
        why = f"it splits up to {most['RELAYOUT_ROWS']} taps of all filters"
    return Reason("shape", why) if why else None


NOT_COPIED = Reason("shape", "it takes a prologue of an input that it copies")


def unbegun(row: ConvKernel, w: Conv, layout: Layout) -> Reason | None:
    """Why it takes no prologue."""
    return None if copied(row, w, layout) else NOT_COPIED


def padded_bytes(w: Conv) -> int:
    """Bytes of a group's channels of one pixel in its copies: whole 16."""
    return round_up(w.channels // w.groups * SIZES[w.dtype], VECTOR_BYTES)


def plane_windows(w: Conv) -> int:
    """Windows of an image where they lie in planes, in whole boxes of TMA."""
    return round_up(w.height * w.width, LINE_BYTES // SIZES[w.dtype])


def planes(w: Conv, layout: Layout) -> bool:
    """Whether it takes windows from planes as they lie (native/cuda/conv/wgmma/operands.cu)."""
    plane, size = w.height * w.width, SIZES[w.dtype]
    moved = w.pad_top or w.pad_left or w.pad_bottom or w.pad_right or w.groups > 1 or w.dtype in AS_HALVES.values()
    if layout == "nhwc" or moved or not w.kernel_h == w.kernel_w == w.stride_h == w.stride_w == 1:
        return False
    whole = plane * size % VECTOR_BYTES == 0 and w.channels * size % VECTOR_BYTES == 0
    return whole and 2 * plane_windows(w) <= 3 * plane


def numbered(w: Conv, layout: Layout) -> int:
    """Windows of a group as it numbers them."""
    return w.batch * (plane_windows(w) if planes(w, layout) else w.windows)


def step_bytes(row: ConvKernel) -> int:
    """Of a window's channels in a step."""
    return row.block_k * SIZES[row.dtype]


def copied(row: ConvKernel, w: Conv, layout: Layout) -> bool:
    """Whether it copies the input."""
    if planes(w, layout):
        return False
    of_group = w.channels // w.groups * SIZES[w.dtype]
    return layout == "nchw" or padded_bytes(w) != of_group or (w.groups > 1 and of_group % step_bytes(row) != 0)


def sparse(row: ConvKernel, w: Conv, layout: Layout) -> bool:
    """Whether its copy has only the pixels that windows take."""
    padded = w.pad_top or w.pad_left or w.pad_bottom or w.pad_right
    return copied(row, w, layout) and w.kernel_h * w.kernel_w == 1 and w.stride_h * w.stride_w > 1 and not padded


def rows_of_taps(row: ConvKernel, w: Conv, layout: Layout) -> bool:
    """Whether its copy has padded rows, whose taps beside one another are channels: where that takes fewer steps."""
    padded = padded_bytes(w)
    vectors = w.batch * w.groups * w.height * (w.width + w.pad_left + w.pad_right) * padded // VECTOR_BYTES
    step = step_bytes(row)
    fewer = -(-w.kernel_w * padded // step) < w.kernel_w * -(-padded // step)
    return copied(row, w, layout) and w.dilation_w == 1 and fewer and vectors < 1 << 31


class Folded(NamedTuple):
    """A copy whose squares of stride_h x stride_w pixels are the channels of one: bytes of such a place, its kernel and its rows."""

    padded: int
    kernel_h: int
    kernel_w: int
    rows: int
    wide: int

    @classmethod
    def of(cls, w: Conv) -> "Folded":
        high, wide = -(-w.kernel_h // w.stride_h), -(-w.kernel_w // w.stride_w)
        padded = round_up(w.stride_h * w.stride_w * w.channels * SIZES[w.dtype], VECTOR_BYTES)
        return cls(padded, high, wide, w.out_h + high - 1, w.out_w + wide - 1)

    def steps(self, row: ConvKernel) -> int:
        return self.kernel_h * -(-self.kernel_w * self.padded // step_bytes(row))


def steps_unfolded(row: ConvKernel, w: Conv, layout: Layout) -> int:
    """Each tap, or each row of taps, has whole steps of channels."""
    padded, step = padded_bytes(w), step_bytes(row)
    return w.kernel_h * (-(-w.kernel_w * padded // step) if rows_of_taps(row, w, layout) else w.kernel_w * -(-padded // step))


def folded(row: ConvKernel, w: Conv, layout: Layout) -> Folded | None:
    """A row's copy where that folds, as it does where that takes fewer steps, and no taps are added but by rows that may."""
    if not row.folds and (w.kernel_h % w.stride_h or w.kernel_w % w.stride_w):
        return None
    if not copied(row, w, layout) or w.groups > 1 or w.stride_h * w.stride_w == 1 or max(w.dilation_h, w.dilation_w) > 1:
        return None
    of = Folded.of(w)
    vectors = of.padded // VECTOR_BYTES
    fits = all(rows <= INT_MAX // (wide * vectors) for rows, wide in ((w.batch * of.rows, of.wide), (w.filters * of.kernel_h, of.kernel_w)))
    return of if of.steps(row) < steps_unfolded(row, w, layout) and fits else None


def whole_steps(row: ConvKernel, w: Conv, layout: Layout) -> int:
    """k, in whole steps."""
    of = folded(row, w, layout)
    return (of.steps(row) if of else steps_unfolded(row, w, layout)) * row.block_k


def stays(row: ConvKernel, w: Conv, layout: Layout) -> bool:
    """Whether filters stay in shared memory from tile to tile (native/cuda/mainloop/hopper/kernel.cuh): all are in one tile, whose steps
    return to the same stages."""
    one = w.groups == 1 and w.filters <= row.block_filters * row.cluster_filters
    return one and row.stages % (whole_steps(row, w, layout) // row.block_k) == 0


def variant(asked: Asked, row: ConvKernel, chunks: int = 1) -> Variant:
    """A row as the model knows it: windows lie as they do under NHWC, or in the copy."""
    gpu, w, layout, known, prologue = asked
    windows, around = Windows(w, "nhwc"), passes(gpu, row, w, layout)
    if prologue:
        around = (*around[:-1], begun(around[-1], w))
    if row.promotion:
        around = (*around, halving(gpu, row, w, layout))
    step = mainloop.work(gpu, lying(row, layout), False, True, by_registers=planes(w, layout) and SIZES[w.dtype] > 2)
    every_tap = float(windows.number * windows.k * w.groups * SIZES[w.dtype])
    special = Special(k=whole_steps(row, w, layout), asked=every_tap, windows=numbered(w, layout))
    found = tiled.variant_of(gpu, windows, row, step, known, around, special)
    columns = found.columns
    assert columns is not None
    columns = columns._replace(near=row.reduces_in_cluster, **pitched(row, w, layout))
    if stays(row, w, layout):
        share = min(1.0, gpu.sms.value // row.tiles.blocks / -(-columns.m // columns.tile_m))
        columns = columns._replace(asks_b=columns.asks_b * share, parts=columns.parts * share)
    found = found._replace(columns=columns)
    return found._replace(leans=(*found.leans, "model.passes.copied_") if around else found.leans)


def pitched(row: ConvKernel, w: Conv, layout: Layout) -> dict[str, float]:
    """Lines of L2 that rows of boxes of windows and filters lie in, and sectors of the output, by how far apart rows begin."""
    size, of = SIZES[w.dtype], folded(row, w, layout)
    pixel = w.height * w.width * size if planes(w, layout) else of.padded if of else w.groups * padded_bytes(w)
    lines = {"lines_a": pixel, "lines_b": filters_bytes(row, w, layout) // w.filters}
    found = {name: lines_of_row(pitch, step_bytes(row)) for name, pitch in lines.items()}
    return found | {"sectors": sectors_of((w.filters if layout == "nhwc" else w.windows) * size)}


def copies(row: ConvKernel, w: Conv, layout: Layout) -> dict[str, int]:
    """Bytes of its copies (native/cuda/conv/wgmma/operands.cu): of an input that it cannot take as it lies, and of such filters."""
    if of := folded(row, w, layout):
        filters = w.filters * of.kernel_h * of.kernel_w
        return {"input": round_up(w.batch * of.rows * of.wide * of.padded, ALIGN), "filters": round_up(filters * of.padded, ALIGN)}
    padded, taps = padded_bytes(w), w.kernel_h * w.kernel_w
    kept = {}
    if copied(row, w, layout):
        wide = w.width + (w.pad_left + w.pad_right) * rows_of_taps(row, w, layout)
        pixels = w.windows if sparse(row, w, layout) else w.height * wide
        kept["input"] = round_up(w.batch * pixels * w.groups * padded, ALIGN)
    if padded != w.channels // w.groups * SIZES[w.dtype] or not (layout == "nhwc" or taps == 1):
        kept["filters"] = round_up(w.filters * taps * padded, ALIGN)
    return kept


def filters_bytes(row: ConvKernel, w: Conv, layout: Layout) -> int:
    """Of the filters as the kernels read them."""
    of = folded(row, w, layout)
    return w.filters * (of.kernel_h * of.kernel_w * of.padded if of else w.kernel_h * w.kernel_w * padded_bytes(w))


def halves_bytes(row: ConvKernel, w: Conv, layout: Layout) -> int:
    """Of both halves of the filters."""
    return round_up(2 * filters_bytes(row, w, layout), ALIGN)


def kept(row: ConvKernel, w: Conv, layout: Layout) -> dict[str, int]:
    """Bytes of all that it makes, halves with the filters."""
    found = copies(row, w, layout)
    if row.promotion:
        found["filters"] = found.get("filters", 0) + halves_bytes(row, w, layout)
    return found


def halving(gpu: Gpu, row: ConvKernel, w: Conv, layout: Layout) -> Pass:
    """What makes the halves."""
    size = filters_bytes(row, w, layout)
    return Pass("halves", size, halves_bytes(row, w, layout), size / SIZES[w.dtype] * gpu.model.passes.copied_instructions.value)


def passes(gpu: Gpu, row: ConvKernel, w: Conv, layout: Layout) -> tuple[Pass, ...]:
    """Its copies, by one kernel; 16 bytes share their place."""
    made, size, each = copies(row, w, layout), SIZES[w.dtype], gpu.model.passes.copied_instructions.value
    filters, pixels = w.filters * Windows(w, layout).k, w.batch * w.channels * w.height * w.width
    read = pixels * size
    if sparse(row, w, layout):  # rows, of which sectors come whole
        pixels = w.batch * w.channels * w.windows
        read = pixels * min(w.stride_w * size, SECTOR_BYTES)
    found = []
    if "filters" in made:
        found.append(Pass("filters", filters * size, made["filters"], filters * each))
    if "input" in made:
        found.append(Pass("channels last", read, made["input"], pixels * each, 0 if "filters" in made else 1))
    return tuple(found)


def begun(copy: Pass, w: Conv) -> Pass:
    """A copy of the input with a prologue on the way."""
    return copy._replace(instructions=copy.instructions + w.batch * w.channels * w.height * w.width * (BEGIN_ELEMENT + BEGIN_CHANNEL))


def describe(plan: Plan) -> Description:
    w, schedule = plan.workload, plan.schedule
    assert isinstance(w, Conv) and isinstance(schedule, GpuSchedule)
    return words.describe(plan, _ROWS.candidates, _ROWS.about, words.tiles(plan, whole_steps(row_of(schedule), w, plan.layout)))


class PartsRows(Rows):
    """Rows of tensor cores, some of which compute f32 as products of parts of its numbers."""

    def refuses(self, problem: Conv, machine: Gpu, layout: Layout) -> Reason | None:
        return super().refuses(_of_parts(problem), machine, layout)

    def candidates(self, request: Request, limit: float | None = None) -> Candidates:
        assert isinstance(request.problem, Conv)
        return super().candidates(request._replace(problem=_of_parts(request.problem)), limit)._replace(request=request)

    def tolerance(self, problem: Conv, schedule: GpuSchedule) -> Bound:
        bound, tiles = super().tolerance(problem, schedule), row_of(schedule).tiles
        return gemm.sums_of_parts(problem, tiles)._replace(finite=bound.finite) if tiles.promotion else bound


def _of_parts(w: Conv) -> Conv:
    """The convolution as these rows compute it."""
    return msgspec.structs.replace(w, dtype=AS_HALVES.get(w.dtype, w.dtype))


_ABOUT = "implicit GEMM on tensor cores: TMA gathers windows from channels that lie together"
_ROWS = PartsRows(
    NAME,
    variant,
    _ABOUT,
    row_refuses,
    lambda row, w, layout, chunks: kept(row, w, layout),
    windows=lambda row, w, layout: numbered(w, layout),
    unbegun=unbegun,
)
refuses, candidates, tolerance = _ROWS.refuses, _ROWS.candidates, _ROWS.tolerance
prepare, workspace_bytes = _ROWS.prepare, _ROWS.workspace_bytes
