# SPDX-License-Identifier: Apache-2.0
"""Resize and Upsample: which pixels of an axis each pixel of the result is made of, and the operator itself in NumPy.

Coordinate x in the image of pixel i of the result (https://onnx.ai/onnx/operators/onnx__Resize.html). scale = size of the result / size of
the image, unless the model gives another; then the size of the result is floor(size of the image * scale), a product in float32:

    half_pixel          x = (i + 1/2) / scale - 1/2;  pytorch_half_pixel: 0 where the result is one pixel
    align_corners       x = i (image - 1) / (image scale - 1), 0 where the result is one pixel; ONNX's tests have this, where ONNX Runtime
                        has result - 1, which differs if image scale is not whole
    asymmetric          x = i / scale;  tf_half_pixel_for_nn: x = (i + 1/2) / scale
    half_pixel_symmetric  half_pixel, centred if the scale is not the quotient of the sizes
    tf_crop_and_resize  align_corners of the part from start to end of the axis; outside the image is the extrapolation value

Linear interpolation has the shares 1 - |u| of the pixels at distance u < 1, cubic those of `cubic`. `antialias` stretches both by 1 / scale
where the result is smaller.

Coordinates are computed in float32, as in ONNX Runtime, so that ties round alike. Outside the image the nearest pixel's value holds.
An image all of whose sizes are kept is copied, also by scales that are not 1: ONNX's text has scale = size / size there, as ONNX Runtime.

Worked number: 2 pixels to 4, half_pixel: x = -1/4, 1/4, 3/4, 5/4. The results are the first pixel, (3/4, 1/4) and (1/4, 3/4) of both, and
the last pixel. 10 pixels by 0.7 are 7, as float32(10) * float32(0.7) is 7, though float32(0.7) is below 0.7.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim.errors import ProblemError

Array = NDArray[Any]
CROP = b"tf_crop_and_resize"
_REACH = {b"linear": 1, b"cubic": 2}  # of pixels, to either side
_OLD = b""  # until opset 10: ONNX's tests round i / 0.6 up and i / 2 down, as ONNX Runtime does
_TIE = np.float64(1e-6)  # coordinates this close to a half count as ties, as in ONNX Runtime 1.32


class Rule(NamedTuple):
    """What the attributes of a Resize or Upsample say, without its sizes."""

    mode: bytes
    place: bytes
    nearest: bytes
    a: float  # of the cubic kernel
    exclude_outside: bool
    extrapolation: float
    antialias: bool


class Axis(NamedTuple):
    """For each pixel of the result: the pixels that it is made of (taps, result) and their shares (None: one pixel); whether it is outside
    of the image (None: none is)."""

    indices: Array
    shares: Array | None
    outside: Array | None = None


def rule_of(op: str, given: Mapping[str, Any], is_old: bool) -> Rule | None:
    """None for unknown words. `is_old`: an Upsample, or a Resize of opset 10."""
    place = b"asymmetric" if is_old else given.get("coordinate_transformation_mode", b"half_pixel")
    mode, nearest = given.get("mode", b"nearest"), _OLD if is_old else given.get("nearest_mode", b"round_prefer_floor")
    known = (place in _PLACES or place == CROP) and mode in (b"nearest", b"linear", b"cubic") and nearest in (_OLD, *_ROUNDED)
    if not known:
        return None
    a, exclude = np.float32(given.get("cubic_coeff_a", -0.75)), bool(given.get("exclude_outside", 0))
    outside, antialias = float(np.float32(given.get("extrapolation_value", 0.0))), bool(given.get("antialias", 0))
    return Rule(mode, place, nearest, float(a), exclude, outside, antialias)


def sizes_by(scales: Sequence[float], sizes: Sequence[int]) -> list[int]:
    """The sizes of a result: products in float32, rounded down, as in ONNX Runtime and PyTorch."""
    return [int(np.float32(size) * np.float32(scale)) for size, scale in zip(sizes, scales, strict=True)]


def axis_of(rule: Rule, size: int, out: int, scale: float, crop: tuple[float, float] = (0.0, 1.0)) -> Axis:
    i, outside = np.arange(out, dtype=np.float32), None
    if rule.place == CROP:
        where = _cropped(np.arange(out, dtype=np.float64), size, out, *crop)
        outside = (where < 0) | (where > size - 1)
    else:
        where = _PLACES[rule.place](i, np.float32(scale), size, out).astype(np.float32)
    if rule.mode == b"nearest":
        nearest = rule.nearest if rule.nearest != _OLD else b"ceil" if scale < 1 else b"floor"
        return Axis(np.clip(_ROUNDED[nearest](where), 0, size - 1), None, outside)
    first = np.floor(where).astype(np.int64)
    stretch = min(scale, 1.0) if rule.antialias else 1.0
    before = math.floor(-_REACH[rule.mode] / stretch) + 1
    taps = np.arange(before, 2 - before)[:, None]
    distance = np.abs(taps - (where.astype(np.float64) - first)) * stretch
    at, shares = first + taps, np.clip(1 - distance, 0, 1) if rule.mode == b"linear" else cubic(distance, rule.a)
    if rule.exclude_outside:
        shares = np.where((at < 0) | (at >= size), 0, shares)
    if rule.exclude_outside or rule.antialias:
        shares = shares / shares.sum(axis=0)
    return Axis(np.clip(at, 0, size - 1), shares, outside)


def cubic(u: Array, a: float) -> Array:
    """The share of a pixel at distance u (Keys, "Cubic convolution interpolation for digital image processing", 1981)."""
    near, far = ((a + 2) * u - (a + 3)) * u * u + 1, a * (((u - 5) * u + 8) * u - 4)
    return np.asarray(np.where(u <= 1, near, np.where(u < 2, far, 0)))


def resize(node: Any, opset: int) -> Callable[[Sequence[Array]], Sequence[Array]] | None:
    """What runs an onnx.NodeProto with the named inputs (x[, roi][, scales][, sizes]); None for what `rule_of` leaves out."""
    from onnx.helper import get_attribute_value

    given = {one.name: get_attribute_value(one) for one in node.attribute}
    is_old = node.op_type == "Upsample" or opset < 11
    rule = rule_of(node.op_type, given, is_old)
    if rule is None:
        return None
    names = ("x", "scales") if is_old else ("x", "roi", "scales", "sizes")
    named = [place for place, name in zip(names, node.input, strict=False) if name]

    def run(inputs: Sequence[Array]) -> Sequence[Array]:
        return [_resized(rule, given, dict(zip(named, inputs, strict=True)))]

    return run


def _resized(rule: Rule, given: Mapping[str, Any], told: Mapping[str, Array]) -> Array:
    x = told["x"]
    axes = [axis % x.ndim for axis in given.get("axes", range(x.ndim))]
    sizes = [x.shape[axis] for axis in axes]
    if "sizes" in told and told["sizes"].size:
        out = told["sizes"].tolist()
        scales = [made / size for made, size in zip(out, sizes, strict=True)]
        if (policy := given.get("keep_aspect_ratio_policy", b"stretch")) != b"stretch":
            scale = min(scales) if policy == b"not_larger" else max(scales)
            scales, out = [scale] * len(axes), [int(np.floor(scale * size + 0.5)) for size in sizes]
    else:
        scales = told["scales"].tolist() if "scales" in told else list(given["scales"])
        out = sizes_by(scales, sizes)
        if rule.place == CROP and any(end - start != 1 for start, end in zip(*np.split(told["roi"], 2), strict=True)):
            why = "ONNX's text and its shape inference differ in the size of the result; expected sizes, not scales"
            raise ProblemError(f"it resizes a part of its input (roi {told['roi'].tolist()}) by scales; {why}")
    corners = told["roi"].tolist() if rule.place == CROP else [0.0] * len(axes) + [1.0] * len(axes)
    if out == sizes and rule.place != CROP:
        return x.copy()
    y, outside = x if rule.mode == b"nearest" else x.astype(np.result_type(x, np.float32)), np.zeros((), bool)
    for at, axis in enumerate(axes):
        if sizes[at] == out[at] and scales[at] == 1 and rule.place != CROP:
            continue
        found = axis_of(rule, sizes[at], out[at], scales[at], (corners[at], corners[at + len(axes)]))
        if found.shares is None:
            y = y.take(found.indices, axis)
        else:
            wide = found.shares.astype(y.dtype).reshape(len(found.shares), *[-1 if one == axis else 1 for one in range(x.ndim)])
            y = sum(y.take(places, axis) * share for places, share in zip(found.indices, wide, strict=True))
        if found.outside is not None:
            outside = outside | found.outside.reshape([-1 if one == axis else 1 for one in range(x.ndim)])
    y = np.where(outside, rule.extrapolation, y) if outside.any() else y
    return np.asarray(y if x.dtype.kind == "f" else np.rint(y) if y.dtype.kind == "f" else y).astype(x.dtype)


def _cropped(i: Array, size: int, out: int, start: float, end: float) -> Array:
    """In float64: where a part ends is seldom a float32, and its last pixel should not be outside for that."""
    last = size - 1
    return 0.5 * (start + end) * last + 0 * i if out == 1 else start * last + i * (end - start) * last / (out - 1)


def _half_pixel(i: Array, scale: np.float32, size: int, out: int) -> Array:
    return (i + np.float32(0.5)) / scale - np.float32(0.5)


def _aligned(i: Array, scale: np.float32, size: int, out: int) -> Array:
    length = scale * np.float32(size)  # no whole number if a model's scale leads to none
    return i * np.float32(size - 1) / (length - 1) if out > 1 else np.zeros_like(i)


def _symmetric(i: Array, scale: np.float32, size: int, out: int) -> Array:
    return (i + np.float32((1 - out) / 2)) / scale + np.float32((size - 1) / 2)  # exact in the middle


_PLACES: dict[bytes, Callable[[Array, np.float32, int, int], Array]] = {
    b"half_pixel": _half_pixel,
    b"pytorch_half_pixel": lambda i, scale, size, out: _half_pixel(i, scale, size, out) if out > 1 else np.zeros_like(i),
    b"align_corners": _aligned,
    b"asymmetric": lambda i, scale, size, out: i / scale,
    b"tf_half_pixel_for_nn": lambda i, scale, size, out: (i + np.float32(0.5)) / scale,
    b"half_pixel_symmetric": _symmetric,
}
_ROUNDED: dict[bytes, Callable[[Array], Array]] = {
    b"round_prefer_floor": lambda x: np.ceil(x - 0.5 - _TIE).astype(np.int64),
    b"round_prefer_ceil": lambda x: np.floor(x + 0.5 + _TIE).astype(np.int64),
    b"floor": lambda x: np.floor(x).astype(np.int64),
    b"ceil": lambda x: np.ceil(x).astype(np.int64),
}
