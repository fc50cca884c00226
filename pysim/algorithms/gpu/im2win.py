# SPDX-License-Identifier: Apache-2.0
"""Convolutions as products of tiles whose windows are slices of a tensor of rows: N C P R W, for each row of outputs the kernel_h rows that
it reads, column by column (arXiv 2306.14316, equation 2, its stride added). Fused rows gather the same slices from the input instead.

Worked number: conv:mb1ic64ih56oc64kh3ph1 keeps 64 x 56 rows of 58 x 3 elements in whole vectors, 176: 2,523,136 bytes.
"""

from pysim.algorithms.contract import Bound, Prepared, sums_by
from pysim.algorithms.gpu import direct
from pysim.algorithms.gpu.implicit import list_refuses
from pysim.cachemodel.gpu import tiled, words
from pysim.cachemodel.gpu.launches import ALIGN, Candidates, Variant, cost, round_up
from pysim.cachemodel.gpu.mainloop import VECTOR_BYTES, Work, estimated
from pysim.cachemodel.gpu.passes import Pass
from pysim.cachemodel.gpu.tiled import Asked, Gather, gathered, in_vectors, lying
from pysim.cachemodel.gpu.windows import Windows
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SIZES
from pysim.record.cost import Reason
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request
from pysim.record.schedule import GpuConvSchedule
from pysim.registry.rows import Attributes, ConvKernel, conv_kernel

NAME = "im2win"
COMPUTES = Conv
# Instructions of an element that a thread gathers, as in `implicit`; of a vector of the tensor assumed
GATHER_TENSOR, GATHER_FUSED = 4.0, 8.0
LARGEST_INT = (1 << 31) - 1
TABLE_TAPS = 240  # of a tensor (native/cuda/conv_gather.cuh)


def refuses(problem: Conv, machine: Gpu, layout: Layout) -> Reason | None:
    return tiled.refuses(NAME, problem)


def row_refuses(row: ConvKernel, w: Conv, layout: Layout) -> Reason | None:
    """Why a row does not compute a problem that others do, in the library's words."""
    if not row.keeps_tensor:
        return list_refuses(w, layout)
    if row.tiles.rows and w.kernel_h * w.kernel_w > TABLE_TAPS:
        return Reason("shape", f"it takes kernels of up to {TABLE_TAPS} taps")
    if tensor_elements(w, layout) > LARGEST_INT:
        return Reason("size", "it takes windows whose tensor has up to 2^31 - 1 elements")
    return None


def tensor_elements(w: Conv, layout: Layout) -> int:
    """Elements of the tensor: for each row of outputs kernel_h rows, column by column, in whole vectors."""
    columns = (w.out_w - 1) * w.stride_w + (w.kernel_w - 1) * w.dilation_w + 1
    channels = w.channels // w.groups
    line = round_up(columns * w.kernel_h * (channels if layout == "nhwc" else 1), VECTOR_BYTES // SIZES[w.dtype])
    lines = w.batch * w.out_h * w.groups * (1 if layout == "nhwc" else channels)
    return line * lines if line < LARGEST_INT and lines < LARGEST_INT // line else LARGEST_INT + 1


def candidates(request: Request, limit: float | None = None) -> Candidates:
    asked = Asked.of(request)
    rows, rejected = tiled.legal_rows(asked, NAME, attributes, lambda row: row_refuses(row, asked.w, asked.layout))
    return Candidates(request, tuple(variant(asked, row) for row in rows), (NAME,), tuple(rejected))


def attributes(row: ConvKernel) -> Attributes:
    return estimated(row.tiles) if row.tiles.rows else direct.BLOCK


def variant(asked: Asked, row: ConvKernel, splits: int = 1) -> Variant:
    """A row; its first algorithm, without tiles, is `direct` on the tensor."""
    gpu, w, layout = asked.gpu, asked.w, asked.layout
    around = passes(gpu, row, w, layout)
    if not row.tiles.rows:
        return direct.variant(asked, row, direct.threads(gpu, w, layout), ("model.direct.", "l1_"))._replace(passes=around)
    windows = Windows(w, layout, tensor=row.keeps_tensor)
    return tiled.variant_of(gpu, windows, row, step(gpu, row, windows), asked.known, attributes(row), around)


def step(gpu: Gpu, row: ConvKernel, windows: Windows) -> Work:
    """A step of one block."""
    w, tiles = windows.conv, lying(row, windows.layout)
    vector, each = VECTOR_BYTES // SIZES[w.dtype], GATHER_TENSOR if row.keeps_tensor else GATHER_FUSED
    by_vectors = in_vectors(w, windows.layout)
    if row.keeps_tensor and not windows.together:
        by_vectors = w.dilation_w == 1 and w.stride_w * w.kernel_h % vector == w.kernel_w * w.kernel_h % vector == 0
    by_vectors = by_vectors and tiles.vectors
    side_by_side = windows.together or row.keeps_tensor
    of = Gather(each, by_vectors, side_by_side or not by_vectors, 1 if side_by_side else w.stride_w, not tiles.vectors)
    return gathered(gpu, row, tiles, of)


def filter_bytes(row: ConvKernel, w: Conv, layout: Layout) -> int:
    """Bytes of filters in the tensor's order, in whole vectors."""
    line = Windows(w, layout).k * SIZES[w.dtype]
    return round_up(w.filters * round_up(line, VECTOR_BYTES), ALIGN) if row.keeps_tensor else 0


def passes(gpu: Gpu, row: ConvKernel, w: Conv, layout: Layout) -> tuple[Pass, ...]:
    """Filters and tensor; a thread writes a vector of the tensor."""
    if not row.keeps_tensor:
        return ()
    windows, size, tensor = Windows(w, layout), SIZES[w.dtype], tensor_elements(w, layout) * SIZES[w.dtype]
    filters, each = w.filters * windows.k, gpu.model.passes.element_instructions.value
    return (
        Pass("filters", filters * size, filter_bytes(row, w, layout), filters * each),
        Pass("tensor", windows.bytes, tensor, tensor / size / 2 * each),
    )


def prepare(problem: Conv, schedule: GpuConvSchedule, layout: Layout) -> Prepared | None:
    row = conv_kernel(schedule.kernel)
    assert row is not None
    kept = filter_bytes(row, problem, layout)
    return Prepared("filters in the tensor's order", kept) if kept else None


def workspace_bytes(problem: Conv, schedule: GpuConvSchedule, layout: Layout) -> int:
    row = conv_kernel(schedule.kernel)
    assert row is not None
    tensor = tensor_elements(problem, layout) * SIZES[problem.dtype] if row.keeps_tensor else 0
    return tiled.workspace_bytes(problem, layout, row, schedule, filter_bytes(row, problem, layout) + tensor)


def tolerance(problem: Conv, schedule: GpuConvSchedule) -> Bound:
    return sums_by(schedule.kernel, problem)


def describe(plan: Plan) -> Description:
    what = "tiles of filters x windows, each window a slice of a tensor of rows (arXiv 2306.14316)"
    return words.describe(plan, words.one_launch(plan, candidates), what, words.tiles(plan))


__all__ = ["COMPUTES", "NAME", "candidates", "cost", "describe", "prepare", "refuses", "tolerance", "workspace_bytes"]
