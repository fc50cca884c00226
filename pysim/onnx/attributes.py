# SPDX-License-Identifier: Apache-2.0
"""The windows of convolutions and pools, read from the attributes of ONNX's nodes.

    floor((H + pads - extent) / stride) + 1     windows of a pool. With ceil_mode, ceil replaces floor, but no window starts in the padding
                                                after the image: the rule of PyTorch, ONNX Runtime and, since opset 22, ONNX
    ceil(H / stride)                            auto_pad SAME_UPPER, SAME_LOWER, whatever ceil_mode is

Worked number: 5 pixels, a window of 2, stride 2, one pixel of padding on either side and ceil_mode give 3 windows: a fourth would start
at the sixth pixel, which is padding.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pysim.errors import ProblemError
from pysim.network.numpy_ops.convolutions import Transposed, transposed_window
from pysim.onnx.protos import text_of


def integers_of(attributes: Mapping[str, Any], name: str, default: list[int]) -> list[int]:
    """An attribute with as many integers as the default."""
    value = attributes.get(name, default)
    numbers = value if isinstance(value, list) else [value]
    if len(numbers) != len(default) or not all(isinstance(number, int) for number in numbers):
        raise ProblemError(f"{name} is {text_of(repr(value))}; it should be {len(default)} whole numbers")
    return numbers


def pads_of(attributes: Mapping[str, Any], sizes: list[int], extents: list[int], strides: list[int]) -> list[int]:
    """Top, left, bottom, right; for any number of axes, the pads before each axis, then those after each."""
    rule, none = attributes.get("auto_pad", b"NOTSET"), [0] * (2 * len(sizes))
    if rule == b"NOTSET":
        return integers_of(attributes, "pads", none)
    if rule == b"VALID":
        return none
    if rule not in (b"SAME_UPPER", b"SAME_LOWER"):
        raise ProblemError(f"auto_pad is {text_of(repr(rule))}; it should be NOTSET, VALID, SAME_UPPER or SAME_LOWER")
    if min(strides) < 1:
        raise ProblemError(f"strides are {strides}; they should be at least 1")
    halves = []
    for size, extent, stride in zip(sizes, extents, strides, strict=True):
        total = max(0, (-(-size // stride) - 1) * stride + extent - size)
        halves.append((total // 2, total - total // 2))
    small, large = ([pair[side] for pair in halves] for side in (0, 1))
    return small + large if rule == b"SAME_UPPER" else large + small


class Pool(NamedTuple):
    """Parameters for each axis after the channels; pads before each axis, then pads after each."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    pads: list[int]
    outputs: list[int]


def pool_of(given: Mapping[str, Any], sizes: list[int]) -> Pool:
    """The windows of a pool with these attributes over an image of these sizes; ProblemError if the attributes do not fit."""
    ones = [1] * len(sizes)
    kernel, strides, dilations = (integers_of(given, name, ones) for name in ("kernel_shape", "strides", "dilations"))
    if min(*kernel, *strides, *dilations) < 1:
        raise ProblemError(f"its kernel is {kernel}, its strides {strides}, its dilations {dilations}; all should be at least 1")
    extents = [dilation * (size - 1) + 1 for dilation, size in zip(dilations, kernel, strict=True)]
    pads = pads_of(given, sizes, extents, strides)
    padded = [sum(sides) for sides in zip(sizes, pads, pads[len(sizes) :], strict=False)]
    rounds_up = given.get("ceil_mode") and given.get("auto_pad", b"NOTSET") in (b"NOTSET", b"VALID")
    outputs = []
    for size, extent, stride, before, all_of in zip(sizes, extents, strides, pads, padded, strict=False):
        free = all_of - extent
        windows = free // stride + 1
        another = rounds_up and free % stride and windows * stride < size + before
        outputs.append(windows + bool(another))
    if min(outputs) < 1:
        raise ProblemError(f"its window spans {extents}, more than the padded image, {padded}")
    return Pool(kernel, strides, dilations, pads, outputs)


def transposed_of(given: Mapping[str, Any], sizes: Sequence[int], kernel: Sequence[int]) -> Transposed:
    """The window of a transposed convolution with these attributes; ProblemError if their lengths are wrong."""
    count = len(sizes)
    lengths = {"strides": count, "dilations": count, "output_padding": count, "pads": 2 * count}
    checked = {name: integers_of(given, name, [0] * length) for name, length in lengths.items() if name in given}
    return transposed_window({**given, **checked}, sizes, kernel)
