# SPDX-License-Identifier: Apache-2.0
"""The integer form of a convolution or product: signed bytes as weights, without a zero point.

Rows of float32 compute the same where sums are below 2^24, and are often faster by channel, or where a CPU has no integer rows of its own.

Worked number: 9 weights of a filter by channel, of magnitude 127 at most, give sums below 255 * 9 * 127 = 291,465.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from pysim.network.graph import Array, Node, Quantized, Tensor
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.runtime.integer_steps import BYTES

TOGETHER = 16  # filters of a panel of form pixels
SEEN = 1 / 64  # of a step of a result, by which rounding a bias may change it before it is rounded
Rows = Callable[[Workload], str]  # the type, s8 or f32, whose rows compute an s8 problem fastest


class Form(NamedTuple):
    """An integer layer: signed weights without a zero, their scales, one a filter, their sums over each filter. `problem`: None of a
    product."""

    problem: Conv | None
    weights: Array
    scale: Array
    sums: Array

    @property
    def largest(self) -> int:
        """The largest sum of unsigned bytes times weights can have this magnitude."""
        return int(255 * np.abs(self.weights.reshape(len(self.weights), -1).astype(np.int64)).sum(axis=1).max())

    def run_on(self, x: Tensor, rows: Rows, dynamic: bool = False) -> dict[str, Any] | None:
        """What a node says of how the layer runs. An image of a dynamic zero point is padded before it meets integer rows (`pads`: top,
        left, bottom, right). None if it should run on rows of float32, and sums may exceed what that holds exactly."""
        dtype, conv, pads = rows(integer_problem(self.problem, self.weights, x)), self.problem, (0, 0, 0, 0)
        if dtype == "f32" and self.largest >= 1 << 24:
            return None
        if conv is not None and dtype == "s8" and dynamic:
            pads = (conv.pad_top, conv.pad_left, conv.pad_bottom, conv.pad_right)
            height, width = conv.height + pads[0] + pads[2], conv.width + pads[1] + pads[3]
            conv = replace(conv, height=height, width=width, pad_top=0, pad_left=0, pad_bottom=0, pad_right=0)
        return {"problem": conv, "weights": self.weights, "pads": pads, "dtype": dtype}


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
        return Form(None, np.ascontiguousarray(values), scale, sums)
    return Form(given, np.ascontiguousarray(values), scale, sums)


def integer_problem(conv: Conv | None, weights: Array, x: Tensor, dtype: str = "s8") -> Workload:
    """The problem of an integer layer: a convolution, or the product of rows of x and weights."""
    if conv is not None:
        return replace(conv, dtype=dtype)
    filters, channels = weights.shape
    rows = x.nbytes // channels
    if rows > 1:
        return Gemm(m=rows, n=filters, k=channels, trans_b=True, dtype=dtype)
    return Conv(channels=channels, height=1, width=1, filters=filters, kernel_h=1, kernel_w=1, dtype=dtype)


def centred(weights: Quantized) -> Array | None:
    """Weights without their zero point, as signed bytes; None if these are too small."""
    if weights.values.dtype not in BYTES:
        return None
    zero = weights.along(weights.zero, weights.values.ndim - 1)
    if zero is None:
        return None
    values = weights.values.astype(np.int16) - zero.astype(np.int16)
    return values.astype(np.int8) if values.min() >= -128 and values.max() <= 127 else None


def beyond_16_bits(weights: Array, channels_last: bool = False) -> float:
    """Of two neighbouring groups of 4 weights of a filter in panels the share where bytes times weights, added in 16 bits, may leave them,
    so that rows of form bounded list them (native/x86/groups/bounded.h). `channels_last`: of form pixels, which lists them for TOGETHER
    filters.

    Worked number: of 64 normally distributed weights, the largest 127, 59 %; of 1,024 such 28 %; of 7 bits nearly none.
    """
    filters, rows = len(weights), weights.reshape(len(weights), 1, -1)
    if weights.ndim == 4 and channels_last:
        rows = weights.transpose(0, 2, 3, 1).reshape(filters, 1, -1)
    elif weights.ndim == 4:  # panels have kernel rows, then channels, then kernel columns
        rows = weights.transpose(0, 2, 1, 3).reshape(filters, weights.shape[2], -1)
    k = np.pad(rows, ((0, 0), (0, 0), (0, -rows.shape[2] % 4))).reshape(filters, -1)
    pairs = np.pad(k, ((0, 0), (0, -k.shape[1] % 8))).reshape(filters, -1, 2, 2, 2).astype(np.int16)
    larger = np.abs(pairs).sum((2, 4)) + np.abs(pairs.sum((2, 4)))  # twice the larger of the sums of positive and of negative weights
    listed = (larger > 2 * 128).any(2)
    if channels_last:
        listed = np.logical_or.reduceat(listed, range(0, filters, TOGETHER))
    return float(listed.mean())


def wrapped(numbers: Array) -> Array:
    """Modulo 2^32, as sums are."""
    return numbers.astype(np.int64).astype(np.uint64).astype(np.uint32).view(np.int32)


def rounded_bias(numbers: Array | None, unit: Array, by: Array) -> Array | None:
    """A bias in float32 as whole numbers of a layer's own scale, as ONNX Runtime rounds it. None where half of one is more than SEEN of a
    step of the result."""
    if numbers is None or (by > 2 * SEEN).any():
        return None
    rounded = np.rint(numbers.reshape(-1).astype(np.float32) / unit)
    return rounded.astype(np.int64) if (np.abs(rounded) < 1 << 30).all() else None


def whole_bias(held: Quantized | None, scale: Array) -> Array | None:
    """A bias of whole numbers of a layer's own scale; None for another."""
    if held is None or held.values.dtype != np.int32 or held.zero.any():
        return None
    same = np.allclose(held.scale.reshape(-1), scale, rtol=1e-5, atol=0) if held.scale.size in (1, scale.size) else False
    return held.values.reshape(-1).astype(np.int64) if same else None
