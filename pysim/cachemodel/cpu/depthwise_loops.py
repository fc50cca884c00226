# SPDX-License-Identifier: Apache-2.0
"""The loop nests of native/algorithms/depthwise.c, one for each form of its kernels (`pysim.algorithms.cpu.depthwise`)."""

from collections.abc import Sequence

import numpy as np

from pysim.cachemodel.cpu.direct_schedules import Rows
from pysim.cachemodel.cpu.nest import ceil_div
from pysim.cachemodel.cpu.reuse.loops import Array, Extent, Loop, LoopNest, Operand
from pysim.problem.conv import Conv
from pysim.registry.cpu import Kernel

ROWS, PLANES, BLOCKS, TAPS, LAST = "rows", "planes", "blocks", "taps", "last"  # forms of kernels


def kept_columns(w: Conv) -> int:
    """Columns of an input row that are transposed, with the padding."""
    return (w.out_w - 1) * w.stride_w + w.dilation_w * (w.kernel_w - 1) + 1


def kept_rows(w: Conv) -> int:
    """Rows of a padded input that are read."""
    return (w.out_h - 1) * w.stride_h + w.dilation_h * (w.kernel_h - 1) + 1


def described(w: Conv, rows: Rows) -> LoopNest:
    """The loop nest of native/algorithms/depthwise.c, for kernels of one form."""
    kinds = {ROWS: _rows_nest, PLANES: _planes_nest, BLOCKS: _blocks_nest, TAPS: _rows_nest, LAST: _rows_nest}
    return kinds[rows.kernels[0].form](w, rows.kernels)


def _lanes(kernels: Sequence[Kernel]) -> Array:
    """Groups per call of each kernel."""
    return np.array([float(kernel.lane_filters) for kernel in kernels])


def _sizes(w: Conv) -> tuple[float, float, float]:
    """Bytes of a group's input, of the weights of one filter, and of its outputs."""
    size, channels = w.element_bytes, w.group_channels
    rows = min(w.height, (w.out_h - 1) * w.stride_h + w.dilation_h * (w.kernel_h - 1) + 1)
    return channels * rows * w.width * size, channels * w.taps * size, w.windows * size


def last_shared(w: Conv) -> int:
    """Form last: rows of outputs whose windows the quads of rows of one hold."""
    return 1 if w.dilation_h > 1 else (ceil_div(w.kernel_h, 4) * 4 - w.kernel_h) // w.stride_h + 1


def last_bytes(w: Conv) -> int:
    """Form last: of a filter as it is prepared, words of four kernel rows of a column for each row that shares them, and their sum."""
    return 4 * (last_shared(w) * w.kernel_w * ceil_div(w.kernel_h, 4) + 1)


def _nest_of_lanes(w: Conv, lanes: Array, operands: Sequence[Operand]) -> LoopNest:
    """Loops over blocks of as many groups as lanes, and their rows of outputs."""
    loops = (
        Loop("images", "images", 1, w.batch),
        Loop("blocks of groups", "groups", lanes, np.ceil(w.groups / lanes)),
        Loop("rows", "rows", 1, w.out_h),
    )
    return LoopNest(loops, operands, {"images": w.batch, "groups": w.groups, "rows": w.out_h}, lanes.size)


def _planes_nest(w: Conv, kernels: Sequence[Kernel]) -> LoopNest:
    """The form planes: blocks of groups are transposed, convolved, and transposed back."""
    lanes, (image, weights, out) = _lanes(kernels), _sizes(w)
    images, kept = Extent(1.0, w.batch), lanes * (w.height * kept_columns(w) * w.element_bytes + weights)
    planes, sums = ({"rows": Extent(of / w.out_h, of)} for of in (kept, lanes * out))
    operands = (
        Operand("input", {"images": images, "groups": Extent(image, image * w.groups)}, "blocks of groups"),
        Operand("filters", {"groups": Extent(weights, weights * w.groups)}, "blocks of groups"),
        Operand("packed", planes, "blocks of groups", written=True),
        Operand("packed", planes, "rows"),
        Operand("sums", sums, "rows", written=True),
        Operand("sums", sums, "blocks of groups", after_loops=True),
        Operand("output", {"images": images, "groups": Extent(out, out * w.groups)}, "blocks of groups", after_loops=True, written=True),
    )
    return _nest_of_lanes(w, lanes, operands)


def _blocks_nest(w: Conv, kernels: Sequence[Kernel]) -> LoopNest:
    """The form blocks: operands in NCHWc."""
    lanes, (image, weights, out) = _lanes(kernels), _sizes(w)
    images, groups = Extent(1.0, w.batch), Extent(1.0, w.groups)
    shared = float(max(0, w.kernel_h - w.stride_h) * w.width * w.element_bytes)
    operands = (
        Operand("input", {"images": images, "groups": groups, "rows": Extent(image / w.out_h, image, shared)}, "rows"),
        Operand("filters", {"groups": Extent(weights, weights * w.groups)}, "rows"),
        Operand("output", {"images": images, "groups": groups, "rows": Extent(out / w.out_h, out)}, "rows", written=True),
    )
    return _nest_of_lanes(w, lanes, operands)


def _rows_nest(w: Conv, kernels: Sequence[Kernel]) -> LoopNest:
    """The form rows: tiles of some rows of outputs x some filters of a group."""
    filters, (image, weights, out) = w.group_filters, _sizes(w)
    weights = float(last_bytes(w)) if kernels[0].form == LAST and kernels[0].lane_filters > 1 else weights
    out /= w.out_d
    high, wide = np.array([(max(1, kernel.windows // kernel.lane_windows), kernel.filters) for kernel in kernels], dtype=np.float64).T
    tiles = np.ceil(w.out_h / high)
    loops = (
        Loop("images", "images", 1, w.batch),
        Loop("groups", "groups", 1, w.groups),
        *([Loop("slices", "slices", 1, w.out_d)] if w.is_volume else []),
        Loop("tiles of rows", "rows", 1, tiles),
        Loop("filters", "filters", wide, np.ceil(filters / wide)),
    )
    images, groups = Extent(1.0, w.batch), Extent(1.0, w.groups)
    shared = max(0, w.kernel_h - w.stride_h) * w.width * w.group_channels * w.element_bytes
    read = written = {"images": images, "groups": groups}
    if w.is_volume:
        reach, moved = w.slices.extent, min(w.stride_d, w.slices.extent)
        most = min(w.depth, (w.out_d - 1) * w.stride_d + reach)
        read = read | {"slices": Extent(float(moved), float(most), float(min(reach, most) - min(moved, most)))}
        written = written | {"slices": Extent(1.0, w.out_d)}
    outputs = written | {"rows": Extent(out / tiles, out), "filters": Extent(1.0, filters)}
    operands = (
        Operand("input", read | {"rows": Extent(image / tiles, image, float(shared))}, "filters"),
        Operand("filters", {"groups": groups, "filters": Extent(weights, weights * filters)}, "filters"),
        Operand("output", outputs, "filters", written=True),
    )
    totals = {"images": w.batch, "groups": w.groups, "slices": w.out_d, "rows": tiles, "filters": filters}
    return LoopNest(loops, operands, totals, len(kernels))
