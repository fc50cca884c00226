# SPDX-License-Identifier: Apache-2.0
"""What each family of `native/cuda/convs.inc` takes, what it keeps in the workspace, and which passes it makes around its main kernel.

The same rules as the CUDA library's, without it: a test compares the two wherever the library is there. Sizes that no kernel takes and
the workspace's order (own, flags, partial sums) are those of `native/cuda/conv.cu`.

Worked number: im2col of conv:mb32ic64ih56oc64kh3ph1 under NCHW keeps 576 x 3136 columns of one image, 7,225,344 bytes, and 256 to align.
"""

import math
from typing import NamedTuple

from pysim.cachemodel import gpu as model
from pysim.cachemodel.gpu_conv import Pass
from pysim.cachemodel.windows import Windows
from pysim.planner.gpu import ALIGN, round_up, workspace_bytes
from pysim.registry import ConvKernel, GemmKernel
from pysim.schedule import GpuConvSchedule
from pysim.workload import CONV_DTYPES, Conv, Gemm

LARGEST_SIZE, LARGEST_TENSOR, LARGEST_TILES = 1 << 24, 1 << 30, 1 << 30  # what the kernels take
COLUMNS_BYTES = 64 << 20  # of im2col's columns under NHWC at a time
SPARE_WINDOWS = 1024  # of a group, for its last tile


def too_large(w: Conv) -> str:
    """Why no CUDA kernel takes a problem of this size, or nothing."""
    names = [name for name in w.__struct_fields__ if name != "dtype" and getattr(w, name) > LARGEST_SIZE]
    if names:
        return f"{names[0]} is {getattr(w, names[0]):,}; the CUDA kernels take up to {LARGEST_SIZE:,}"
    tensors = {
        "input": w.batch * w.channels * w.height * w.width,
        "filters": w.filters * (w.channels // w.groups) * w.kernel_h * w.kernel_w,
        "output": w.batch * w.filters * w.windows,
        "windows of all groups": w.groups * (w.batch * w.windows + SPARE_WINDOWS),
    }
    for name, elements in tensors.items():
        if elements > LARGEST_TENSOR:
            return f"the {name} would have {elements:,} elements; the CUDA kernels take up to {LARGEST_TENSOR:,}"
    return ""


def refuses(row: ConvKernel, w: Conv, nhwc: bool) -> str:
    """Why a row does not compute a problem, in the library's words, or nothing."""
    if row.family == "depthwise" and w.channels != w.groups:
        return "it takes one channel a group"
    if row.family == "winograd":
        sizes = (w.kernel_h, w.kernel_w, w.stride_h, w.stride_w, w.dilation_h, w.dilation_w)
        if sizes != (3, 3, 1, 1, 1, 1):
            return "it takes 3x3 kernels with stride 1 and dilation 1"
    return ""


# The products of im2col


class Products(NamedTuple):
    """im2col's products: one of them, how often it is made, its images, pitches and alignments of A and B, bytes of its columns."""

    problem: Gemm
    times: int
    images: int
    pitches: tuple[int, int]
    aligned: tuple[bool, bool]
    columns: int


def products_of(w: Conv, nhwc: bool) -> Products:
    """NCHW: filters x windows of one image and group; NHWC: windows x filters of as many images as have COLUMNS_BYTES of columns."""
    size, windows, k = CONV_DTYPES[w.dtype], w.windows, Windows(w, nhwc).k
    filters = w.filters // w.groups
    if not nhwc:
        pitch = windows if w.pointwise else round_up(windows * size, 16) // size
        columns = 0 if w.pointwise else round_up(k * pitch * size, ALIGN)
        problem = Gemm(m=filters, n=windows, k=k, dtype=w.dtype)
        return Products(problem, w.batch * w.groups, 1, (k, pitch), (False, bool(columns)), columns)
    pitch = w.channels if w.pointwise else round_up(k * size, 16) // size
    images = w.batch if w.pointwise else min(w.batch, max(1, COLUMNS_BYTES // (windows * pitch * size)))
    columns = 0 if w.pointwise else round_up(windows * images * pitch * size, ALIGN)
    problem = Gemm(m=windows * images, n=filters, k=k, trans_b=True, dtype=w.dtype)
    return Products(problem, math.ceil(w.batch / images) * w.groups, images, (pitch, k), (bool(columns), False), columns)


# Workspace


def own_bytes(row: ConvKernel, w: Conv, nhwc: bool, schedule: GpuConvSchedule, gemm: GemmKernel | None = None) -> int:
    """Bytes that a row keeps for itself."""
    if row.family == "im2col":
        assert gemm is not None
        of = products_of(w, nhwc)
        return of.columns + workspace_bytes(of.problem, gemm, schedule, of.pitches, of.aligned)
    if row.family == "winograd":
        return transformed_filters(row, w)
    return 0


def transformed_filters(row: ConvKernel, w: Conv) -> int:
    """Bytes of the filters of a Winograd row, in whole blocks and steps."""
    blocks = math.ceil(w.filters // w.groups / row.block_filters) * math.ceil(w.channels // w.groups / row.block_k)
    return w.groups * blocks * (row.outputs + 2) ** 2 * row.block_k * row.block_filters * CONV_DTYPES[w.dtype]


def conv_workspace_bytes(row: ConvKernel, w: Conv, nhwc: bool, schedule: GpuConvSchedule, gemm: GemmKernel | None = None) -> int:
    """What a launch needs beside its operands: the row's own, the tiles' flags, the partial sums."""
    total = round_up(own_bytes(row, w, nhwc, schedule, gemm), ALIGN)
    if row.decomposes:
        tiles = tiles_of(row, w, nhwc)
        slots = {"data_parallel": 0, "split_k": tiles * schedule.splits, "stream_k": 2 * schedule.splits}[schedule.decomposition]
        if slots:
            total += round_up(tiles * 4, ALIGN)
            total += slots * row.block_filters * row.block_windows * row.outputs**2 * model.SUM_BYTES.get(w.dtype, 4)
    return total + ALIGN * bool(total)


def tiles_of(row: ConvKernel, w: Conv, nhwc: bool) -> int:
    """Tiles of filters x windows, all groups."""
    windows = Windows(w, nhwc, row.outputs).number
    return math.ceil(w.filters // w.groups / row.block_filters) * w.groups * math.ceil(windows / row.block_windows)


# Passes


def passes_of(row: ConvKernel, w: Conv, nhwc: bool) -> tuple[Pass, ...]:
    """The kernels that a row runs beside its main one."""
    size = CONV_DTYPES[w.dtype]
    filters = w.filters * Windows(w, nhwc).k
    if row.family == "im2col" and not w.pointwise:
        of = products_of(w, nhwc)
        elements = w.groups * w.batch * w.windows * of.problem.k
        # under NHWC groups' channels lie together
        return (Pass("columns", Windows(w, nhwc).bytes, elements * size, elements, of.times),)
    if row.family == "winograd":
        written = transformed_filters(row, w)
        return (Pass("filters", filters * size, written, filters),)
    return ()
