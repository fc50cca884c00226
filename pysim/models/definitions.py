# SPDX-License-Identifier: Apache-2.0
"""Standard operators of which the onnx package has no definition, or one that is not what https://onnx.ai/onnx/operators/ says.

Each is run(inputs, attributes) and gives the one output. What is wrong in the package's: GlobalMaxPool is of images alone, LpNormalization
adds up numbers for magnitudes and divides by a norm of 0, GatherElements refuses indices that leave some of an axis, Mean writes into its
first operand, MeanVarianceNormalization is of images alone,
Unsqueeze takes several axes one after the other.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_SMALL = 1e-9  # what a standard deviation gets added, of the function that defines MeanVarianceNormalization


def _norms(x: Array, axes: int | tuple[int, ...], p: int) -> Array:
    total: Array = np.sum(np.abs(x) ** p, axis=axes, keepdims=True)
    return total ** (1 / p)


def _planes(x: Array) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


def _global_lp_pool(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    return _norms(inputs[0], _planes(inputs[0]), attributes.get("p", 2)).astype(inputs[0].dtype)


def _global_max_pool(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    largest: Array = np.max(inputs[0], axis=_planes(inputs[0]), keepdims=True)
    return largest


def _lp_normalization(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    (x,) = inputs
    norms = _norms(x, attributes.get("axis", -1), attributes.get("p", 2))
    return np.divide(x, norms, out=np.zeros_like(x), where=norms != 0, casting="same_kind")


def _gather_elements(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    x, indices = inputs
    places: list[Any] = list(np.indices(indices.shape, sparse=True))
    places[attributes.get("axis", 0)] = indices
    found: Array = x[tuple(places)]
    return found


def _mean(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    total = inputs[0]
    for x in inputs[1:]:
        total = total + x
    return np.asarray(total / len(inputs), inputs[0].dtype)


def _mean_variance(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    (x,), axes = inputs, tuple(attributes.get("axes", (0, 2, 3)))
    from_mean = x - x.mean(axis=axes, keepdims=True)
    return np.asarray(from_mean / (np.sqrt(np.mean(from_mean**2, axis=axes, keepdims=True)) + _SMALL), x.dtype)


def _unsqueeze(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    axes = inputs[1].tolist() if len(inputs) > 1 else attributes["axes"]
    return np.expand_dims(inputs[0], tuple(np.atleast_1d(axes).tolist()))


def with_places(
    x: Array,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    outputs: Sequence[int],
    by_columns: bool,
) -> tuple[Array, Array]:
    """The largest element of each window of a pool, and its place among all of x, whose images lie row by row or column by column; the
    package's places are right for some windows alone."""
    axes = range(len(kernel))
    extents = [dilation * (size - 1) + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    ends = [max(0, (out - 1) * stride + extent - before - size)
            for out, stride, extent, before, size in zip(outputs, strides, extents, pads, x.shape[2:], strict=False)]  # fmt: skip
    around = [(0, 0), (0, 0), *((pads[axis], ends[axis]) for axis in axes)]
    images = np.arange(x.size).reshape(x.shape[:2] + x.shape[2:][::-1]).transpose(0, 1, *range(x.ndim - 1, 1, -1))
    places = images if by_columns else np.arange(x.size).reshape(x.shape)
    least = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    cut = (slice(None), slice(None), *(slice(0, (out - 1) * stride + 1, stride) for out, stride in zip(outputs, strides, strict=True)))
    taps: Any = (..., *(slice(None, None, dilation) for dilation in dilations))
    windows, at = (
        np.lib.stride_tricks.sliding_window_view(np.pad(of, around, constant_values=fill), extents, tuple(2 + axis for axis in axes))[cut][
            taps
        ]
        for of, fill in ((x, least), (places, -1))
    )
    flat, where = (of.reshape(*of.shape[: x.ndim], -1) for of in (windows, at))
    first = flat.argmax(axis=-1)[..., None]
    return np.take_along_axis(flat, first, -1)[..., 0], np.take_along_axis(where, first, -1)[..., 0].astype(np.int64)


def _of(function: Callable[[Sequence[Array], Mapping[str, Any]], Array]) -> Callable[[Any], Callable[[Sequence[Array]], Sequence[Array]]]:
    """An onnx.NodeProto -> what its inputs make."""

    def bound(node: Any) -> Callable[[Sequence[Array]], Sequence[Array]]:
        from onnx.helper import get_attribute_value

        attributes = {one.name: get_attribute_value(one) for one in node.attribute}
        return lambda inputs: [function(inputs, attributes)]

    return bound


DEFINED = {
    "GatherElements": _of(_gather_elements),
    "GlobalLpPool": _of(_global_lp_pool),
    "GlobalMaxPool": _of(_global_max_pool),
    "LpNormalization": _of(_lp_normalization),
    "Mean": _of(_mean),
    "MeanVarianceNormalization": _of(_mean_variance),
    "Unsqueeze": _of(_unsqueeze),
}
