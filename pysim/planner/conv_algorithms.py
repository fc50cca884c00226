# SPDX-License-Identifier: Apache-2.0
"""What each family of `native/cuda/convs.inc` takes, what it keeps in the workspace, and which passes it makes around its main kernel.

The same rules as the CUDA library's, without it: a test compares the two wherever the library is there. Sizes that no kernel takes and
the workspace's order (own, flags, partial sums) are those of `native/cuda/conv.cu`.

Worked number: im2col of conv:mb32ic64ih56oc64kh3ph1 under NCHW keeps 576 x 3136 columns of one image, 7,225,344 bytes, and 256 to align.
"""

import math
from typing import NamedTuple

from pysim.cachemodel.gpu import product as model
from pysim.cachemodel.gpu.conv import Pass, chunks_of, copied, keeps_tensor, padded_bytes, planes_of, rows_of_taps
from pysim.cachemodel.gpu.windows import Windows
from pysim.planner.gpu import ALIGN, round_up, workspace_bytes
from pysim.problem.text import CONV_DTYPES, Conv, Gemm
from pysim.record.schedule import GpuConvSchedule
from pysim.registry.rows import ConvKernel, GemmKernel, cuda_limits

MOST = cuda_limits()  # of native/cuda/limits.inc
LARGEST_INT = (1 << 31) - 1
COPIED = 0.25  # instructions of conv_channels_last.cu's elements over those of a pass's: 16 bytes share their place; assumed
PATCH_ELEMENTS = 8  # instructions of a 6x6 transform over those of a pass's element: 36 loads or stores, 144 to 200 adds; assumed


def too_large(w: Conv) -> str:
    """Why no CUDA kernel takes a problem of this size, or nothing."""
    names = [name for name in w.__struct_fields__ if name != "dtype" and getattr(w, name) > MOST["CONV_SIZE"]]
    if names:
        return f"{names[0]} is {getattr(w, names[0]):,}; the CUDA kernels take up to {MOST['CONV_SIZE']:,}"
    tensors = {
        "input": w.batch * w.channels * w.height * w.width,
        "filters": w.filters * (w.channels // w.groups) * w.kernel_h * w.kernel_w,
        "output": w.batch * w.filters * w.windows,
        "windows of all groups": w.groups * (w.batch * w.windows + MOST["SPARE_WINDOWS"]),
    }
    for name, elements in tensors.items():
        if elements > MOST["CONV_TENSOR"]:
            return f"the {name} would have {elements:,} elements; the CUDA kernels take up to {MOST['CONV_TENSOR']:,}"
    return ""


def refuses(row: ConvKernel, w: Conv, nhwc: bool) -> str:
    """Why a row does not compute a problem, in the library's words, or nothing."""
    if row.family == "depthwise" and w.channels != w.groups:
        return "it takes one channel a group"
    if row.family == "winograd":
        sizes = (w.kernel_h, w.kernel_w, w.stride_h, w.stride_w, w.dilation_h, w.dilation_w)
        if sizes != (3, 3, 1, 1, 1, 1):
            return "it takes 3x3 kernels with stride 1 and dilation 1"
        if row.form == "staged":
            products = planes_of(row) * w.groups * chunks_of(row, w, 1).blocks
            many = (
                products * row.block_windows > MOST["TILES"]
                or products * math.ceil(w.filters // w.groups / row.block_filters) > MOST["TILES"]
            )
            return "it takes fewer groups" if many else ""
        return "it takes fewer filters and groups" if _pieces(row, w) >= MOST["TILES"] else ""
    high, wide = w.height + w.pad_top + w.pad_bottom, w.width + w.pad_left + w.pad_right
    if keeps_tensor(row) and row.form != "basic" and w.kernel_h * w.kernel_w > MOST["TENSOR_TAPS"]:
        return f"it takes kernels of up to {MOST['TENSOR_TAPS']} taps"
    if keeps_tensor(row) and _tensor(w, nhwc) > LARGEST_INT:
        return "it takes windows whose tensor has up to 2^31 - 1 elements"
    if row.form == "fused" or (row.form == "offsets" and not _matrix(w, nhwc)):
        if w.kernel_h + w.kernel_w > MOST["LISTED_TAPS"]:
            return f"it takes kernels of up to {MOST['LISTED_TAPS']} rows and columns together"
        if high * wide * (w.channels if nhwc else 1) > MOST["LISTED_IMAGE"]:
            return "it takes padded images of up to 2^29 elements"
    if row.family == "wgmma":
        return _past_the_copy_engine(w)
    return ""


def _past_the_copy_engine(w: Conv) -> str:
    """Why the copy engine cannot gather a problem's windows, or nothing."""
    spans = ((w.kernel_h - 1) * w.dilation_h, (w.kernel_w - 1) * w.dilation_w)
    if max(w.stride_h, w.stride_w) > MOST["TMA_STRIDE"]:
        return f"it takes strides of up to {MOST['TMA_STRIDE']}"
    if max(spans) >= MOST["TMA_SPAN"]:
        return f"it takes kernels that span up to {MOST['TMA_SPAN']} rows and columns"
    reach = MOST["TMA_CORNER"]
    if max(w.pad_top, w.pad_left) > reach:
        return f"it takes padding of up to {reach}"
    if any(not -reach <= after - span < reach for after, span in zip((w.pad_bottom, w.pad_right), spans, strict=True)):
        return f"its last window begins up to {reach} rows and columns before the input's end, or {reach - 1} after"
    return ""


def _matrix(w: Conv, nhwc: bool) -> bool:
    """Whether windows lie as a matrix that is copied by 16 bytes."""
    return w.pointwise and (nhwc or w.windows % (16 // CONV_DTYPES[w.dtype]) == 0)


def _tensor(w: Conv, nhwc: bool) -> int:
    """Elements of im2win's tensor: for each row of outputs kernel_h rows, column by column, in whole vectors."""
    columns = (w.out_w - 1) * w.stride_w + (w.kernel_w - 1) * w.dilation_w + 1
    channels = w.channels // w.groups
    line = round_up(columns * w.kernel_h * (channels if nhwc else 1), 16 // CONV_DTYPES[w.dtype])
    lines = w.batch * w.out_h * w.groups * (1 if nhwc else channels)
    return line * lines if line < LARGEST_INT and lines < LARGEST_INT // line else LARGEST_INT + 1


def _pieces(row: ConvKernel, w: Conv) -> int:
    """Blocks of filters by steps of channels of a fused Winograd row, in all groups."""
    return w.groups * math.ceil(w.filters // w.groups / row.block_filters) * math.ceil(w.channels // w.groups / row.block_k)


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
    """NCHW: filters x windows of one image and group; NHWC: windows x filters of as many images as have COLUMNS_BYTES of columns
    and GEMM_SIDE windows."""
    size, windows, k = CONV_DTYPES[w.dtype], w.windows, Windows(w, nhwc).k
    filters = w.filters // w.groups
    if not nhwc:
        pitch = windows if w.pointwise else round_up(windows * size, 16) // size
        columns = 0 if w.pointwise else round_up(k * pitch * size, ALIGN)
        problem = Gemm(m=filters, n=windows, k=k, dtype=w.dtype)
        return Products(problem, w.batch * w.groups, 1, (k, pitch), (False, bool(columns)), columns)
    pitch = w.channels if w.pointwise else round_up(k * size, 16) // size
    fit = w.batch if w.pointwise else MOST["COLUMNS_BYTES"] // (windows * pitch * size)
    images = max(1, min(w.batch, fit, MOST["GEMM_SIDE"] // windows))
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
    return sum(_kept(row, w, nhwc, schedule.splits).values())


def _kept(row: ConvKernel, w: Conv, nhwc: bool, splits: int) -> dict[str, int]:
    """Bytes of each thing that a row which makes no products keeps: filters, transformed operands."""
    size, k = CONV_DTYPES[w.dtype], Windows(w, nhwc, row.outputs).k
    if row.form == "staged":
        of, plane = chunks_of(row, w, splits), planes_of(row) * size
        filters = plane * w.channels * round_up(w.filters // w.groups, 4)
        patches = plane * w.channels * of.pitch
        return {"filters": round_up(filters, ALIGN), "patches": round_up(patches, ALIGN), "sums": plane * w.filters * of.pitch}
    if row.form == "single":
        return {}
    if row.family == "winograd":
        return {"filters": _pieces(row, w) * planes_of(row) * row.block_k * row.block_filters * size}
    if row.family == "im2win":
        if row.form == "fused":
            return {}
        return {"filters": round_up(w.filters * round_up(k * size, 16), ALIGN), "tensor": _tensor(w, nhwc) * size}
    if row.form == "offsets":
        return {"filters": round_up(w.filters * round_up(k * size, 16), ALIGN)} if k * size % 16 else {}
    if row.family == "wgmma":
        return _channels_last(w, nhwc)
    return {}


def _channels_last(w: Conv, nhwc: bool) -> dict[str, int]:
    """Bytes of wgmma's copies (native/cuda/conv_wgmma.cu): of an input that it cannot take as it lies, and of such filters."""
    padded, taps = padded_bytes(w), w.kernel_h * w.kernel_w
    kept = {}
    if copied(w, nhwc):
        wide = w.width + (w.pad_left + w.pad_right) * rows_of_taps(w, nhwc)
        kept["input"] = round_up(w.batch * w.height * wide * w.groups * padded, ALIGN)
    if padded != w.channels // w.groups * CONV_DTYPES[w.dtype] or not (nhwc or taps == 1):
        kept["filters"] = round_up(w.filters * taps * padded, ALIGN)
    return kept


def conv_workspace_bytes(row: ConvKernel, w: Conv, nhwc: bool, schedule: GpuConvSchedule, gemm: GemmKernel | None = None) -> int:
    """What a launch needs beside its operands: the row's own, the tiles' flags, the partial sums."""
    total = round_up(own_bytes(row, w, nhwc, schedule, gemm), ALIGN)
    if row.decomposes:
        tiles = tiles_of(row, w, nhwc)
        slots = {"data_parallel": 0, "split_k": tiles * schedule.splits, "stream_k": 2 * schedule.splits}[schedule.decomposition]
        if slots and not (schedule.decomposition == "split_k" and schedule.splits <= row.near):
            clusters = row.cluster[0] * row.cluster[1]
            total += round_up(tiles * clusters * 4, ALIGN)
            total += slots * clusters * row.block_filters * row.block_windows * row.outputs**2 * model.SUM_BYTES.get(w.dtype, 4)
    return total + ALIGN * bool(total)


def tiles_of(row: ConvKernel, w: Conv, nhwc: bool) -> int:
    """Tiles of filters x windows, all groups; of a cluster, where the row has clusters."""
    windows = Windows(w, nhwc, row.outputs).number
    high, wide = row.block_filters * row.cluster[0], row.block_windows * row.cluster[1]
    return math.ceil(w.filters // w.groups / high) * w.groups * math.ceil(windows / wide)


# Passes


def passes_of(row: ConvKernel, w: Conv, nhwc: bool, splits: int = 1) -> tuple[Pass, ...]:
    """The kernels that a row runs beside its main one. `splits`: the chunks of a staged row."""
    size = CONV_DTYPES[w.dtype]
    filters = w.filters * Windows(w, nhwc).k
    if row.family == "im2col" and not w.pointwise:
        of = products_of(w, nhwc)
        elements = w.groups * w.batch * w.windows * of.problem.k
        # under NHWC groups' channels lie together
        return (Pass("columns", Windows(w, nhwc).bytes, elements * size, elements, of.times),)
    kept = _kept(row, w, nhwc, splits)
    found = []
    each = COPIED if row.family == "wgmma" else 1.0
    if "filters" in kept:
        found.append(Pass("filters", filters * size, kept["filters"], filters * each))
    if "input" in kept:
        elements = w.batch * w.channels * w.height * w.width
        # filters are copied by the same kernel
        found.append(Pass("channels last", elements * size, kept["input"], elements * each, 0 if "filters" in kept else 1))
    if "tensor" in kept:  # a thread writes a vector
        found.append(Pass("tensor", Windows(w, nhwc).bytes, kept["tensor"], kept["tensor"] / size / 2))
    if "patches" in kept:
        chunks, windows = chunks_of(row, w, splits), Windows(w, nhwc, row.outputs)
        patches, sums = windows.number * w.channels, windows.number * w.filters
        planes, outputs = planes_of(row) * size, w.batch * w.filters * w.windows * size
        found.append(Pass("patches", windows.bytes, patches * planes, patches * PATCH_ELEMENTS, chunks.number))
        found.append(Pass("outputs", sums * planes, outputs, sums * PATCH_ELEMENTS, chunks.number))
    return tuple(found)
