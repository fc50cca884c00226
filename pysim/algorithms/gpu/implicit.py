# SPDX-License-Identifier: Apache-2.0
"""Convolutions as products of tiles whose windows are gathered from the input as it lies.

Rows with offsets look a tap's place up in a table in shared memory, the others divide; of both, a 1x1 convolution's windows that lie as a
matrix are copied by 16 bytes. Rows with a table keep filters with a pitch of whole vectors, where they do not lie so.

Worked number: a step of 16 of 128 x 64 by offsets gathers 64 x 16 / 32 = 32 elements a lane, with 8 instructions each.
"""

from pysim.algorithms.contract import Bound, Prepared, sums_by
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
from pysim.registry.rows import ConvKernel, conv_kernel, cuda_limits

NAME = "implicit"
COMPUTES = Conv
# Instructions of an element (of a vector) that a thread gathers, its store aside: what the main loop of native/cuda/conv_gather.cuh has
# more than that of the same tiles on a matrix, over its elements (tools/cuda_loop.py)
GATHER = {"full": 40.0, "offsets": 8.0}
OF_MATRIX = 2.0  # a load and its address


def refuses(problem: Conv, machine: Gpu, layout: Layout) -> Reason | None:
    return tiled.refuses(NAME, problem)


def listed(row: ConvKernel) -> bool:
    """Whether a row has a table of taps."""
    return row.variant == "offsets"


def row_refuses(row: ConvKernel, w: Conv, layout: Layout) -> Reason | None:
    """Why a row does not compute a problem that others do, in the library's words."""
    return list_refuses(w, layout) if listed(row) and not matrix(w, layout) else None


def list_refuses(w: Conv, layout: Layout) -> Reason | None:
    """Why a table of taps does not have all of a problem's."""
    high, wide = w.height + w.pad_top + w.pad_bottom, w.width + w.pad_left + w.pad_right
    most = cuda_limits()
    if w.kernel_h + w.kernel_w > most["LISTED_TAPS"]:
        return Reason("shape", f"it takes kernels of up to {most['LISTED_TAPS']} rows and columns together")
    if high * wide * (w.channels if layout == "nhwc" else 1) > most["LISTED_IMAGE"]:
        return Reason("size", "it takes padded images of up to 2^29 elements")
    return None


def matrix(w: Conv, layout: Layout) -> bool:
    """Whether windows lie as a matrix that is copied by 16 bytes."""
    return w.pointwise and (layout == "nhwc" or w.windows % (VECTOR_BYTES // SIZES[w.dtype]) == 0)


def candidates(request: Request, limit: float | None = None) -> Candidates:
    asked = Asked.of(request)
    rows, rejected = tiled.legal_rows(asked, NAME, lambda row: estimated(row.tiles), lambda row: row_refuses(row, asked.w, asked.layout))
    return Candidates(request, tuple(variant(asked, row) for row in rows), (NAME,), tuple(rejected))


def variant(asked: Asked, row: ConvKernel, splits: int = 1) -> Variant:
    """A row as the model knows it."""
    windows = Windows(asked.w, asked.layout)
    step_ = step(asked.gpu, row, windows)
    return tiled.variant_of(asked.gpu, windows, row, step_, asked.known, estimated(row.tiles), passes(asked.gpu, row, windows))


def step(gpu: Gpu, row: ConvKernel, windows: Windows) -> Work:
    """A step of one block."""
    w, layout = windows.conv, windows.layout
    by_vectors = in_vectors(w, layout) or (not windows.together and matrix(w, layout))
    each = OF_MATRIX if by_vectors and w.pointwise else GATHER[row.variant]
    lines = 1 if windows.together else w.stride_w
    single = not listed(row) and windows.k * SIZES[w.dtype] % VECTOR_BYTES != 0
    return gathered(gpu, row, lying(row, layout), Gather(each, by_vectors, windows.together or not by_vectors, lines, single))


def kept_bytes(row: ConvKernel, windows: Windows) -> int:
    """Bytes of filters with whole vectors a row, 0 where they lie so."""
    line = windows.k * SIZES[windows.conv.dtype]
    return round_up(windows.conv.filters * round_up(line, VECTOR_BYTES), ALIGN) if listed(row) and line % VECTOR_BYTES else 0


def passes(gpu: Gpu, row: ConvKernel, windows: Windows) -> tuple[Pass, ...]:
    filters, kept = windows.conv.filters * windows.k, kept_bytes(row, windows)
    each = gpu.model.passes.element_instructions.value
    return (Pass("filters", filters * SIZES[windows.conv.dtype], kept, filters * each),) if kept else ()


def prepare(problem: Conv, schedule: GpuConvSchedule, layout: Layout) -> Prepared | None:
    row = conv_kernel(schedule.kernel)
    assert row is not None
    kept = kept_bytes(row, Windows(problem, layout))
    return Prepared("filters in whole vectors", kept) if kept else None


def workspace_bytes(problem: Conv, schedule: GpuConvSchedule, layout: Layout) -> int:
    row = conv_kernel(schedule.kernel)
    assert row is not None
    return tiled.workspace_bytes(problem, layout, row, schedule, kept_bytes(row, Windows(problem, layout)))


def tolerance(problem: Conv, schedule: GpuConvSchedule) -> Bound:
    return sums_by(schedule.kernel, problem)


def describe(plan: Plan) -> Description:
    costs = words.one_launch(plan, candidates)
    return words.describe(plan, costs, "tiles of filters x windows, the windows gathered from the input as it lies", words.tiles(plan))


__all__ = ["COMPUTES", "NAME", "candidates", "cost", "describe", "prepare", "refuses", "tolerance", "workspace_bytes"]
