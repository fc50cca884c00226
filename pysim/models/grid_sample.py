# SPDX-License-Identifier: Apache-2.0
"""GridSample of images and volumes in NumPy (https://onnx.ai/onnx/operators/onnx__GridSample.html):

    y[n, c, i, j] = x[n, c] at the point grid[n, i, j]

A grid coordinate g in -1 .. 1 is the pixel ((g + 1) size - 1) / 2, or (g + 1) / 2 (size - 1) with align_corners. Outside the image `border`
takes the nearest pixel and `reflection` mirrors at the image's edges: the centres of the outer pixels with align_corners, else their outer
sides.

Worked number: of 4 pixels, g = -1 is pixel -0.5; between `zeros` and the first pixel, a linear sample is half of the first pixel.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pysim.errors import ProblemError

Array = NDArray[Any]
_CUBIC = -0.75  # the coefficient of Keys' kernel


def grid_sample(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    """Nearest, linear or cubic samples of images (N, C, H, W) at points (N, P, Q, 2), whose last axis is (column, row); likewise nearest or
    linear ones of volumes (N, C, D, H, W) at points (N, O, P, Q, 3)."""
    x, grid = inputs
    aligned, padding = bool(attributes.get("align_corners", 0)), attributes.get("padding_mode", b"zeros")
    weights = _WEIGHTS[attributes.get("mode", b"linear").removeprefix(b"bi")]
    if x.ndim > 4 and weights is _cubic:
        raise ProblemError('mode is "cubic", which is of images; of volumes it is "linear" or "nearest"')
    axes = []
    for size, g in zip(x.shape[2:], np.moveaxis(grid, -1, 0)[::-1], strict=True):
        point = (g + 1) / 2 * (size - 1) if aligned else ((g + 1) * size - 1) / 2
        ends = (0, size - 1) if aligned else (-0.5, size - 0.5)
        if weights is _nearest:
            point = np.rint(point)
        outside = (point < ends[0]) | (point > ends[1])
        if weights is not _cubic:  # whose pixels alone are padded
            point = np.where(outside, _inside(point, size, ends, padding), point)
        axes.append([(*_pixel(tap, size, ends, padding), share) for tap, share in weights(point)])
    images = np.arange(len(x)).reshape(-1, *[1] * (x.ndim - 2))
    out = np.zeros((len(x), *grid.shape[1:-1], x.shape[1]), np.result_type(x, grid))
    for taps in product(*axes):
        places, inside, shares = zip(*taps, strict=True)
        share = np.where(np.logical_and.reduce(inside), np.multiply.reduce(shares), 0)
        out += share[..., None] * x[(images, slice(None), *places)]
    return np.asarray(np.moveaxis(out, -1, 1), x.dtype)


def _inside(at: Array, size: int, ends: tuple[float, float], padding: bytes) -> Array:
    """Positions in the image; `zeros` leaves them outside."""
    if padding == b"border":
        return np.clip(at, 0, size - 1)
    if padding != b"reflection":
        return at
    low, length = ends[0], ends[1] - ends[0]
    if not length:
        return np.full_like(at, low)
    distance = np.mod(at - low, 2 * length)
    return np.asarray(low + np.where(distance > length, 2 * length - distance, distance), at.dtype)


def _pixel(at: Array, size: int, ends: tuple[float, float], padding: bytes) -> tuple[Array, Array]:
    """The index of a pixel, and whether it is in the image."""
    at = _inside(at, size, ends, padding)
    return np.clip(at, 0, size - 1).astype(np.int64), (at >= 0) & (at <= size - 1)


def _nearest(point: Array) -> list[tuple[Array, Array]]:
    return [(point, np.ones_like(point))]


def _linear(point: Array) -> list[tuple[Array, Array]]:
    first = np.floor(point)
    return [(first, first + 1 - point), (first + 1, point - first)]


def _cubic(point: Array) -> list[tuple[Array, Array]]:
    """Keys, "Cubic convolution interpolation for digital image processing", 1981."""
    first = np.floor(point)
    t = point - first

    def near(u: Array) -> Array:
        return ((_CUBIC + 2) * u - (_CUBIC + 3)) * u * u + 1

    def far(u: Array) -> Array:
        return _CUBIC * (((u - 5) * u + 8) * u - 4)

    return [(first - 1, far(t + 1)), (first, near(t)), (first + 1, near(1 - t)), (first + 2, far(2 - t))]


_WEIGHTS: dict[bytes, Callable[[Array], list[tuple[Array, Array]]]] = {b"nearest": _nearest, b"linear": _linear, b"cubic": _cubic}
