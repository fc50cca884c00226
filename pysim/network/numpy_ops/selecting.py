# SPDX-License-Identifier: Apache-2.0
"""TopK, CumSum, GatherND, the indices of a MaxPool and half numbers in NumPy, without loops over elements.

    TopK      a partition finds the k-th element of each row; what is beyond it, and the first of those equal to it, is then sorted
    CumSum    sums of whole slices, unless they are short
    halves    become float32 by a table of all 65,536 of them: NumPy converts one by one, three times slower

Worked number: TopK of 2 from [1, 3, 3, 2, 3]: the threshold is 3, none is above it, so that the first two 3s are taken: places 1 and 2.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pysim.network.numpy_ops.convolutions import reaching

Array = NDArray[Any]
_SHORT = 32  # elements of a slice below which NumPy's own sums along an axis are faster


@cache
def _halves() -> Array:
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def widened(x: Array) -> Array:
    """Half numbers as float32; other arrays as they are."""
    return _halves().take(x.view(np.uint16)) if x.dtype == np.float16 and x.flags.c_contiguous else x


def top_k(x: Array, k: int, axis: int, largest: bool) -> tuple[Array, Array]:
    """The k largest or smallest elements along an axis, sorted, and their places; of equal ones the first. NaN is above all numbers."""
    rows = np.moveaxis(x, axis, -1)
    shape, size = rows.shape[:-1], rows.shape[-1]
    rows = np.ascontiguousarray(rows).reshape(-1, size)
    if 0 < k < size and not (rows != rows).any():
        places = _beyond(rows, k, largest)
        rows = np.take_along_axis(rows, places, -1)
    else:
        places = np.broadcast_to(np.arange(size), rows.shape)
    order = np.lexsort((-places if largest else places, rows), axis=-1)
    order = order[:, ::-1][:, :k] if largest else order[:, :k]
    values, places = (np.take_along_axis(of, order, -1).reshape(*shape, k) for of in (rows, places))
    return np.moveaxis(values, -1, axis), np.moveaxis(places, -1, axis).astype(np.int64)


def _beyond(rows: Array, k: int, largest: bool) -> Array:
    """The places of the k largest or smallest elements of each row, in the order of places."""
    size = rows.shape[-1]
    last = size - k if largest else k - 1
    threshold = np.partition(rows, last, axis=-1)[:, last, None]
    taken = rows >= threshold if largest else rows <= threshold
    if np.count_nonzero(taken) > k * len(rows):  # several are equal to the threshold
        equal = rows == threshold
        taken &= ~equal
        taken |= equal & (np.cumsum(equal, axis=-1) <= k - np.count_nonzero(taken, axis=-1)[:, None])
    return np.nonzero(taken)[1].reshape(-1, k)


def top_k_of(node: Any, opset: int) -> Callable[[Sequence[Array]], Sequence[Array]]:
    from onnx.helper import get_attribute_value

    given = {one.name: get_attribute_value(one) for one in node.attribute}
    made = [bool(name) for name in node.output]

    def run(inputs: Sequence[Array]) -> Sequence[Array]:
        x, *told = inputs
        k = int(told[0].reshape(())) if told else given["k"]
        axis = given.get("axis", -1)
        if not 0 <= k <= x.shape[axis]:
            raise ValueError(f"k is {k}, and its axis has {x.shape[axis]} elements")
        return [of for of, wanted in zip(top_k(x, k, axis, bool(given.get("largest", 1))), made, strict=False) if wanted]

    return run


def cum_sum(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    x, axis = inputs
    if axis.ndim:
        raise ValueError(f"its axis has the shape {list(axis.shape)}; expected a number")
    forward = slice(None, None, -1) if attributes.get("reverse", 0) else slice(None)
    y = np.empty_like(x, order="C")
    read, written = (np.moveaxis(of, int(axis), 0)[forward] for of in (x, y))
    if attributes.get("exclusive", 0) and len(read):
        written[0], read, written = 0, read[:-1], written[1:]
    if not read.size or read[0].size < _SHORT:
        written[...] = np.cumsum(read, axis=0, dtype=x.dtype)
        return y
    written[0] = read[0]
    for before, more, total in zip(written, read[1:], written[1:], strict=False):
        np.add(before, more, out=total)
    return y


@dataclass(frozen=True)
class Changing:
    """An operator whose result is its first input but for what `change(result, *other inputs)` writes."""

    change: Callable[..., None]

    def __call__(self, inputs: Sequence[Array]) -> Sequence[Array]:
        found = inputs[0].copy()
        self.change(found, *inputs[1:])
        return [found]


def gather_nd(node: Any, opset: int) -> Callable[[Sequence[Array]], Sequence[Array]] | None:
    """Without batches; others run by the package's definition."""
    if any(one.name == "batch_dims" and one.i for one in node.attribute):
        return None
    return lambda inputs: [inputs[0][places_of(inputs[1])]]


def places_of(indices: Array) -> tuple[Array, ...]:
    """The last axis of an array of places, taken apart."""
    return tuple(indices[..., axis] for axis in range(indices.shape[-1]))


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
    package's places are right for some windows alone. The first of equal ones is taken, and a NaN before all numbers."""
    sizes = x.shape[2:]
    apart = [int(np.prod(sizes[:axis] if by_columns else sizes[axis + 1 :])) for axis in range(len(sizes))]
    about = {"strides": strides, "dilations": dilations, "pads": pads}
    lies = [[*zip(*one, strict=True)] for one in product(*reaching(sizes, outputs, kernel, about))]
    far = [sum(number * dilation * step for number, dilation, step in zip(at, dilations, apart, strict=True)) for at, _, _ in lies]
    found, tap = _first_largest(x, [(of, to, by) for (_, to, of), by in zip(lies, far, strict=True)], (*x.shape[:2], *outputs))
    first = np.zeros((1,) * len(sizes), np.int64)  # the place in an image at which each window begins
    for axis, (out, stride, pad, step) in enumerate(zip(outputs, strides, pads, apart, strict=False)):
        first = first + ((np.arange(out) * stride - pad) * step).reshape(-1, *[1] * (len(sizes) - 1 - axis))
    images = np.arange(0, x.shape[0] * x.shape[1] * int(np.prod(sizes)), int(np.prod(sizes))).reshape(*x.shape[:2], *[1] * len(sizes))
    places = tap + first
    places += images
    if (tap < 0).any():
        places[tap < 0] = -1
    return found, places


def _first_largest(x: Array, lies: Sequence[tuple[Any, Any, int]], shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Of each window the largest element, and how far it lies behind the window's beginning; -1 if the window is empty. `lies`: for each
    tap the elements, the windows that they belong to, and how far they lie."""
    least = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    found, tap = np.full(shape, least, x.dtype), np.full(shape, -1, np.int32)
    for of, to, far in lies:
        value, most = x[(..., *of)], found[(..., *to)]
        np.copyto(tap[(..., *to)], far, where=value > most)
        np.maximum(most, value, out=most)
    if (found > least).all():  # no window has a NaN, which is above no number, or nothing above `least`
        return found, tap
    found[...], tap[...] = least, -1
    for of, to, far in lies:
        value, most, first = x[(..., *of)], found[(..., *to)], tap[(..., *to)]
        better = (value > most) | (first < 0) | ((value != value) & (most == most))
        np.copyto(first, far, where=better)
        np.copyto(most, value, where=better)
    return found, tap
