# SPDX-License-Identifier: Apache-2.0
"""GridSample of images and volumes, and AffineGrid, in NumPy (https://onnx.ai/onnx/operators/onnx__GridSample.html): y[n, c, i, j] =
x[n, c] at the point grid[n, i, j].

A grid coordinate g in -1 .. 1 is the pixel ((g + 1) size - 1) / 2, or (g + 1) / 2 (size - 1) with align_corners. Outside the image `border`
takes the nearest pixel and `reflection` mirrors at the image's edges: the centres of the outer pixels with align_corners, else their outer
sides.

Worked number: of 4 pixels, g = -1 is pixel -0.5; between `zeros` and the first pixel, a linear sample is half of the first pixel.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pysim.errors import ProblemError

Array = NDArray[Any]
_CUBIC = -0.75  # the coefficient of Keys' kernel


def grid_sample(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    """Nearest, linear or cubic samples of images (N, C, H, W) or volumes (N, C, D, H, W) at points (N, ..., axes), whose last axis is
    (column, row[, slice]); cubic ones are of images."""
    x, grid = inputs
    aligned, padding = bool(attributes.get("align_corners", 0)), attributes.get("padding_mode", b"zeros")
    weights, count = _WEIGHTS[attributes.get("mode", b"linear").removeprefix(b"bi")], x.ndim - 2
    if grid.shape[-1] != count or (weights is _cubic and count != 2):
        why = f"its input has {count} axes behind the channels, its points are of {grid.shape[-1]}; expected as many, of cubic samples 2"
        raise ProblemError(why)
    axes = []
    for at, size in enumerate(x.shape[2:]):
        g = grid[..., count - 1 - at]
        point = (g + 1) / 2 * (size - 1) if aligned else ((g + 1) * size - 1) / 2
        ends = (0, size - 1) if aligned else (-0.5, size - 0.5)
        if weights is _nearest:
            point = np.rint(point)
        outside = (point < ends[0]) | (point > ends[1])
        if weights is not _cubic:  # whose pixels alone are padded
            point = np.where(outside, _inside(point, size, ends, padding), point)
        axes.append([(*_pixel(tap, size, ends, padding), share) for tap, share in weights(point)])
    images = np.arange(len(x)).reshape(-1, *[1] * count)
    out = np.zeros((*grid.shape[:-1], x.shape[1]), np.result_type(x, grid))
    for taps in product(*axes):
        inside = np.logical_and.reduce([one[1] for one in taps])
        share = np.where(inside, math.prod(one[2] for one in taps), 0)
        places: Any = (images, slice(None), *(one[0] for one in taps))
        out += share[..., None] * x[places]
    return np.asarray(np.moveaxis(out, -1, 1), x.dtype)


def affine_grid(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    """Points (N, [D,] H, W, axes) of theta (N, axes, axes + 1) for a result of size (N, C, [D,] H, W)."""
    theta, size = inputs
    spans, aligned = [], attributes.get("align_corners", 0)
    if aligned and 1 in size.tolist()[2:]:
        raise ProblemError(f"its result is of size {size.tolist()}; with align_corners an axis of one pixel has no place that ONNX defines")
    for count in size.tolist()[2:]:
        last = 1.0 if aligned else (count - 1) / count
        spans.append(np.linspace(-last, last, count))
    points = np.stack([*np.meshgrid(*spans, indexing="ij")[::-1], np.ones([*map(len, spans)])], axis=-1)
    return np.einsum("...k,njk->n...j", points, theta).astype(theta.dtype)


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
