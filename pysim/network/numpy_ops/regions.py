# SPDX-License-Identifier: Apache-2.0
"""Operators on regions of images, in NumPy: RoiAlign, MaxRoiPool, NonMaxSuppression and Col2Im (https://onnx.ai/onnx/operators/).

    RoiAlign    a region is cut into bins; a bin's value is the mean of bilinear samples at a grid of points in it. In mode max it is the
                largest of the samples' weighted pixels. Before opset 16 a coordinate is not shifted by half a pixel, and a region spans at
                least one pixel
    MaxRoiPool  the corners of a region are rounded to pixels; a bin's value is its largest pixel, 0 if it has none
    Col2Im      adds each column's block to the image at the places that im2col would read it from

Worked number: a region of 4 x 4 pixels and 2 x 2 bins: each bin spans 2 x 2, sampled at 2 x 2 points, or sampling_ratio squared.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def roi_align(node: Any, opset: int) -> Callable[[Sequence[Array]], Sequence[Array]]:
    from onnx.helper import get_attribute_value

    given = {one.name: get_attribute_value(one) for one in node.attribute}
    default = b"half_pixel" if opset >= 16 else b"output_half_pixel"
    shifted = given.get("coordinate_transformation_mode", default) == b"half_pixel"
    return lambda inputs: [_roi_align(inputs, given, shifted)]


def _roi_align(inputs: Sequence[Array], given: Mapping[str, Any], shifted: bool) -> Array:
    x, rois, images = inputs
    sizes = given.get("output_height", 1), given.get("output_width", 1)
    ratio, scale = given.get("sampling_ratio", 0), np.float32(given.get("spatial_scale", 1.0))
    kind = np.result_type(x, np.float32)
    largest = given.get("mode", b"avg").lower() == b"max"
    out = np.zeros((len(rois), x.shape[1], *sizes), x.dtype)
    for at, (roi, image) in enumerate(zip(rois.astype(kind), images.tolist(), strict=True)):
        axes = []
        for axis, count in enumerate(sizes):
            start, end = (roi[1 - axis + 2 * side] * scale - (0.5 if shifted else 0) for side in (0, 1))
            length = end - start if shifted else max(end - start, kind.type(1))
            grid = ratio if ratio > 0 else int(np.ceil(length / count))
            points = start + length / count * (np.arange(count)[:, None] + (np.arange(grid) + 0.5) / max(grid, 1))
            axes.append(_pixels(points, x.shape[2 + axis]))
        if any(not inside.size for _, _, inside in axes):
            continue
        plane, values = x[image].astype(kind), []
        for (row, down, row_inside), (column, along, column_inside) in product(_ends(*axes[0]), _ends(*axes[1])):
            weight = np.where(row_inside[:, :, None, None] & column_inside, down[:, :, None, None] * along, 0)
            values.append(plane[:, row[:, :, None, None], column] * weight)
        samples = np.maximum.reduce(values) if largest else np.add.reduce(values)
        out[at] = samples.max(axis=(2, 4)) if largest else samples.mean(axis=(2, 4))
    return out


def _pixels(points: Array, size: int) -> tuple[Array, Array, Array]:
    """(the pixel before each point, the distance from it, whether the point is in the image or at most a pixel outside)."""
    inside = (points >= -1) & (points <= size)
    points = np.clip(points, 0, size - 1)
    first = np.minimum(points.astype(np.int64), max(size - 2, 0))
    return first, points - first, inside


def _ends(first: Array, share: Array, inside: Array) -> list[tuple[Array, Array, Array]]:
    return [(first, 1 - share, inside), (np.where(share > 0, first + 1, first), share, inside)]


def max_roi_pool(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    x, rois = inputs
    sizes, scale = attributes["pooled_shape"], np.float32(attributes.get("spatial_scale", 1.0))
    out = np.zeros((len(rois), x.shape[1], *sizes), x.dtype)
    for at, roi in enumerate(rois):
        corners = np.floor(roi[1:].astype(np.float32) * scale + np.float32(0.5)).astype(int)
        bins = []
        for axis, count in enumerate(sizes):
            first, last, size = corners[1 - axis], corners[3 - axis], x.shape[2 + axis]
            each = np.float32(max(last - first + 1, 1)) / np.float32(count)
            edges = [(int(np.floor(np.float32(b) * each)), int(np.ceil(np.float32(b + 1) * each))) for b in range(count)]
            bins.append([slice(*np.clip((low + first, high + first), 0, size)) for low, high in edges])
        for (i, rows), (j, columns) in product(enumerate(bins[0]), enumerate(bins[1])):
            part = x[int(roi[0]), :, rows, columns]
            if part.size:
                out[at, :, i, j] = part.max(axis=(1, 2))
    return out


def col2im(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    x, image, block = inputs[0], inputs[1].tolist(), inputs[2].tolist()
    count = len(image)
    strides, dilations = (attributes.get(name, [1] * count) for name in ("strides", "dilations"))
    pads = attributes.get("pads", [0] * 2 * count)
    padded = [size + before + behind for size, before, behind in zip(image, pads[:count], pads[count:], strict=True)]
    extents = [dilation * (size - 1) + 1 for dilation, size in zip(dilations, block, strict=True)]
    places = [(size - extent) // stride + 1 for size, extent, stride in zip(padded, extents, strides, strict=True)]
    columns = x.reshape(len(x), -1, *block, *places)
    out = np.zeros((*columns.shape[:2], *padded), x.dtype)
    for tap in product(*map(range, block)):
        starts = [at * dilation for at, dilation in zip(tap, dilations, strict=True)]
        lies = zip(starts, places, strides, strict=True)
        to: Any = (..., *(slice(start, start + (n - 1) * by + 1, by) for start, n, by in lies))
        of: Any = (slice(None), slice(None), *tap)
        out[to] += columns[of]
    kept: tuple[Any, ...] = (..., *(slice(before, before + size) for before, size in zip(pads[:count], image, strict=True)))
    return out[kept]


def non_max_suppression(node: Any, opset: int) -> Callable[[Sequence[Array]], Sequence[Array]]:
    """(image, class, box) of the boxes with the largest scores, none of which overlaps a better one of its class by more than the
    threshold."""
    from onnx.helper import get_attribute_value

    centred = any(one.name == "center_point_box" and get_attribute_value(one) for one in node.attribute)
    names = ("boxes", "scores", "most", "overlap", "least")
    named = [place for place, name in zip(names, node.input, strict=False) if name]

    def run(inputs: Sequence[Array]) -> Sequence[Array]:
        given = dict(zip(named, inputs, strict=True))
        most, overlap = (of.reshape(-1)[0] if (of := given.get(name)) is not None and of.size else 0 for name in ("most", "overlap"))
        found = [
            (image, kind, box)
            for image, (boxes, scores) in enumerate(zip(_corners(given["boxes"], centred), given["scores"], strict=True))
            for kind, of in enumerate(scores)
            for box in _best(boxes, of, int(most), float(overlap), given.get("least"))
        ]
        return [np.array(found, np.int64).reshape(-1, 3)]

    return run


def _corners(boxes: Array, centred: bool) -> Array:
    """(smallest y, smallest x, largest y, largest x) of each box."""
    if centred:
        middle, half = boxes[..., [1, 0]], boxes[..., [3, 2]] / 2
        return np.concatenate([middle - half, middle + half], axis=-1)
    ends = boxes[..., :2], boxes[..., 2:]
    return np.concatenate([np.minimum(*ends), np.maximum(*ends)], axis=-1)


def _best(boxes: Array, scores: Array, most: int, overlap: float, least: Array | None) -> list[int]:
    order = np.argsort(-scores, kind="stable")
    if least is not None and least.size:
        order = order[scores[order] > least.reshape(-1)[0]]
    areas, kept = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1), list[int]()
    while order.size and len(kept) < most:
        box, order = int(order[0]), order[1:]
        kept.append(box)
        low, high = np.maximum(boxes[order, :2], boxes[box, :2]), np.minimum(boxes[order, 2:], boxes[box, 2:])
        shared = np.clip(high - low, 0, None).prod(axis=1)
        both = areas[order] + areas[box] - shared
        order = order[~(np.divide(shared, both, out=np.zeros_like(shared), where=both > 0) > overlap)]
    return kept
