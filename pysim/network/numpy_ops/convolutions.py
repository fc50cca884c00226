# SPDX-License-Identifier: Apache-2.0
"""Convolutions and transposed convolutions over any number of axes, in NumPy, and the window of a transposed one.

A transposed convolution of an axis of H pixels has

    full = (H - 1) stride + dilation (k - 1) + 1 + output_padding                 outputs before its pads cut some away
    min(H stride, full)                                                           outputs with auto_pad SAME_UPPER, SAME_LOWER

Source: https://onnx.ai/onnx/operators/onnx__ConvTranspose.html; that SAME makes no more than the full outputs is ONNX Runtime's rule.

Worked number: 3 pixels, 3 taps, stride 2: 7 outputs in full, 6 with SAME. SAME_UPPER cuts the last one away, SAME_LOWER the first.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Attributes = Mapping[str, Any]
SAME = (b"SAME_UPPER", b"SAME_LOWER")


class Transposed(NamedTuple):
    """The window of a transposed convolution for each axis; pads before each axis, then pads after each."""

    strides: list[int]
    dilations: list[int]
    pads: list[int]
    outputs: list[int]


def transposed_window(given: Attributes, sizes: Sequence[int], kernel: Sequence[int]) -> Transposed:
    """The window that ONNX's attributes mean for an image of these sizes. An output_shape replaces the pads."""
    count = len(sizes)
    strides, dilations, more = (list(given.get(name, [fill] * count)) for name, fill in _PER_AXIS.items())
    axes = zip(sizes, kernel, strides, dilations, more, strict=True)
    full = [(size - 1) * stride + dilation * (k - 1) + 1 + extra for size, k, stride, dilation, extra in axes]
    rule = given.get("auto_pad", b"NOTSET")
    if "output_shape" in given:
        outputs = list(given["output_shape"])[-count:]
    elif rule in SAME:
        outputs = [min(size * stride, out) for size, stride, out in zip(sizes, strides, full, strict=True)]
    elif rule == b"VALID":
        outputs = full
    else:
        pads = list(given.get("pads", [0] * (2 * count)))
        return Transposed(strides, dilations, pads, [out - a - b for out, a, b in zip(full, pads, pads[count:], strict=False)])
    cut = [max(0, out - made) for out, made in zip(full, outputs, strict=True)]
    less, rest = [one // 2 for one in cut], [one - one // 2 for one in cut]
    return Transposed(strides, dilations, less + rest if rule == b"SAME_UPPER" else rest + less, outputs)


_PER_AXIS = {"strides": 1, "dilations": 1, "output_padding": 0}


def taps(size: int, out: int, kernel: int, stride: int, dilation: int, before: int) -> Iterator[tuple[slice, slice]]:
    """For each tap of a window along an axis: the slice of outputs whose tap is inside the input, and the slice of inputs they read."""
    for tap in range(kernel):
        shift = tap * dilation - before
        first = max(0, -(shift // stride) if shift < 0 else 0)
        last = min(out, (size - 1 - shift) // stride + 1)
        if first < last:
            yield slice(first, last), slice(first * stride + shift, (last - 1) * stride + shift + 1, stride)


def reaching(x: Sequence[int], out: Sequence[int], kernel: Sequence[int], attributes: Attributes) -> list[list[tuple[Any, ...]]]:
    """For each axis of a convolution of images of `x` to `out`: (tap, slice of outputs, slice of inputs) of the taps inside the image."""
    axes = zip(x, out, kernel, attributes["strides"], attributes["dilations"], attributes["pads"], strict=False)
    return [
        [(tap, *lie) for tap in range(count) for lie in taps(size, made, 1, stride, 1, before - tap * dilation)]
        for size, made, count, stride, dilation, before in axes
    ]


def convolution(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    """A product for each tap, added to the outputs that it reaches; of one channel for each filter, elementwise products."""
    x, weights, *bias = inputs
    batch, groups, axes = x.shape[0], attributes["group"], x.ndim - 2
    out[...] = bias[0].reshape(-1, *[1] * axes) if bias else 0
    more = np.empty_like(out)
    for lies in product(*reaching(x.shape[2:], out.shape[2:], weights.shape[2:], attributes)):
        at, to, of = ((..., *numbers) for numbers in zip(*lies, strict=True))
        if weights.shape[:2] == (groups, 1):
            np.multiply(x[of], weights[at].reshape(-1, *[1] * axes), out=more[to])
            out[to] += more[to]
            continue
        image = x[of].reshape(batch, groups, x.shape[1] // groups, -1)
        out[to] += (weights[at].reshape(groups, -1, image.shape[2]) @ image).reshape(out[to].shape)


def transposed(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    """One product multiplies each input by all weights. Its results are added to the outputs that a convolution would read at that tap."""
    x, weights, *bias = inputs
    (batch, channels, *sizes), (_, filters, *kernel), groups = x.shape, weights.shape, attributes["group"]
    across = weights.reshape(groups, channels // groups, -1).transpose(0, 2, 1)
    products = across @ x.reshape(batch, groups, channels // groups, -1)
    products = products.reshape(batch, groups * filters, *kernel, *sizes)
    out[...] = bias[0].reshape(-1, *[1] * len(sizes)) if bias else 0
    for lies in product(*reaching(out.shape[2:], sizes, kernel, attributes)):
        at, of, to = zip(*lies, strict=True)
        out[(..., *to)] += products[(slice(None), slice(None), *at, *of)]
