# SPDX-License-Identifier: Apache-2.0
"""The integer form of a convolution or product: signed bytes as weights, without a zero point.

Kernels multiply signed bytes, so unsigned inputs are read as x - 128. Then

    sum (x - zero) w = sum x' w - (zero - 128) sum w        x' = x - 128

and padding, which stands for 0, is the input's zero point.

Worked number: x = 130 with zero 128 and w = 3 is 2 * 3 = 6; x' = 2, and the offset is 0.
"""

from typing import NamedTuple

import numpy as np

from pysim.network.graph import Array, Node, Quantized, Tensor
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.runtime.integer_steps import BYTES


class Form(NamedTuple):
    """An integer layer: signed weights without a zero, their scales, one a filter, their sums over each filter. `problem`: of a padded
    image (`pads`: top, left, bottom, right), or None of a product."""

    problem: Conv | None
    pads: tuple[int, int, int, int]
    weights: Array
    scale: Array
    sums: Array


def form_of(node: Node, x: Tensor, weights: Quantized) -> Form | None:
    """Of a Conv or Linear; None if it has no integer form."""
    given = node.attributes.get("problem")
    if node.op == "Conv" and (not isinstance(given, Conv) or len(weights.values.shape) != 4):
        return None
    values = centred(weights)
    scale = None if values is None else weights.along(weights.scale, 0)
    if values is None or scale is None:
        return None
    flat = values.reshape(len(values), -1)
    sums = flat.astype(np.int64).sum(axis=1)
    scale = np.ascontiguousarray(np.broadcast_to(scale.astype(np.float32), len(values)))
    if node.op == "Linear":
        return Form(None, (0, 0, 0, 0), np.ascontiguousarray(values), scale, sums)
    assert isinstance(given, Conv)
    pads = (given.pad_top, given.pad_left, given.pad_bottom, given.pad_right)
    height, width = given.height + pads[0] + pads[2], given.width + pads[1] + pads[3]
    fields = {name: getattr(given, name) for name in _KEPT}
    return Form(Conv(height=height, width=width, dtype="s8", **fields), pads, np.ascontiguousarray(values), scale, sums)


_KEPT = ("batch", "channels", "filters", "kernel_h", "kernel_w", "stride_h", "stride_w", "dilation_h", "dilation_w", "groups")


def integer_problem(conv: Conv | None, weights: Array, x: Tensor) -> Workload:
    """The problem of an integer layer: a convolution, or the product of rows of x and weights."""
    if conv is not None:
        return conv
    filters, channels = weights.shape
    rows = x.nbytes // channels
    if rows > 1:
        return Gemm(m=rows, n=filters, k=channels, trans_b=True, dtype="s8")
    return Conv(channels=channels, height=1, width=1, filters=filters, kernel_h=1, kernel_w=1, dtype="s8")


def centred(weights: Quantized) -> Array | None:
    """Weights without their zero point, as signed bytes; None if these are too small."""
    if weights.values.dtype not in BYTES:
        return None
    zero = weights.along(weights.zero, weights.values.ndim - 1)
    if zero is None:
        return None
    values = weights.values.astype(np.int16) - zero.astype(np.int16)
    return values.astype(np.int8) if values.min() >= -128 and values.max() <= 127 else None


def wrapped(numbers: Array) -> Array:
    """Modulo 2^32, as sums are."""
    return numbers.astype(np.int64).astype(np.uint64).astype(np.uint32).view(np.int32)
