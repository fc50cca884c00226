# SPDX-License-Identifier: Apache-2.0
"""Nodes of random ONNX graphs (`onnx_walk.Walk`) that compute nothing: what they take is laid out, cut, joined, padded or looked up."""

from itertools import pairwise
from typing import Any

import numpy as np
from onnx import TensorProto, helper
from onnx_walk import Walk


def reshape(w: Walk) -> None:
    x = w.value(0, 5)
    shape = list(w.shape(x))
    kind = w.whole(0, 4)
    if kind == 0:
        w.add("Flatten", [x], **w.some(axis=w.axis(len(shape)) if w.opset >= 11 else w.whole(0, len(shape))))
    elif kind == 1:
        wanted = w.one([-1], [0, -1], shape[::-1], [*shape[:1], -1], [1, *shape], [*shape, 1], [0, 0, -1], [w.whole(1, 4), -1])
        how = {"allowzero": 0} if w.opset >= 14 and w.chance(0.2) else {}
        w.add("Reshape", [x, w.indices(wanted)], **how)
    elif kind == 2:
        axes = w.axes(len(shape) + 1) if w.opset >= 11 else [w.whole(0, len(shape))]
        inputs, how = ([x, w.indices(axes)], {}) if w.opset >= 13 else ([x], {"axes": axes})
        w.add("Unsqueeze", inputs, **how)
    elif kind == 3:
        ones = [at for at, size in enumerate(shape) if size == 1]
        if w.chance(0.3) or not ones:
            w.add("Squeeze", [x])
        else:
            axes = [w.one(*ones) - len(shape) * (w.opset >= 11 and w.chance())]
            inputs, how = ([x, w.indices(axes)], {}) if w.opset >= 13 else ([x], {"axes": axes})
            w.add("Squeeze", inputs, **how)
    else:
        shuffle(w)


def shuffle(w: Walk) -> None:
    x = w.image()
    n, c, h, v = w.shape(x)
    g = next((one for one in (3, 2) if c % one == 0), 1)
    y = w.add("Reshape", [x, w.indices([n, g, c // g, h, v])])
    y = y and w.add("Transpose", [y], perm=[0, 2, 1, 3, 4])
    if y:
        w.add("Reshape", [y, w.indices([0, -1, h, v] if w.chance() else [n, c, h, v])])


def transpose(w: Walk) -> None:
    x = w.value(1, 5)
    w.add("Transpose", [x], **w.some(perm=w.rng.permutation(len(w.shape(x))).tolist()))


def cut(w: Walk) -> None:
    x = w.value(1, 5)
    shape, rank = w.shape(x), len(w.shape(x))
    axes = w.axes(rank)
    starts = [w.whole(-shape[a] - 1, shape[a]) for a in axes]
    ends = [w.one(w.whole(-shape[a] - 1, shape[a] + 2), 1 << 31, (1 << 63) - 1, -(1 << 63), shape[a]) for a in axes]
    if w.opset < 10:
        w.add("Slice", [x], starts=starts, ends=ends, **({"axes": axes} if w.chance(0.7) or len(axes) < rank else {}))
        return
    steps = [w.one(1, 1, 2, -1, -2, 3) for _ in axes] if w.chance(0.6) else []
    ends = [end if step > 0 else -(1 << 63) if end > 1 << 30 else end for end, step in zip(ends, steps or [1] * len(ends), strict=True)]
    axes_input = w.indices(axes) if steps or w.chance(0.8) else ""
    w.add("Slice", [x, w.indices(starts), w.indices(ends), axes_input, w.indices(steps) if steps else ""])


def split(w: Walk) -> None:
    x = w.value(1, 5)
    axis = w.axis(len(w.shape(x)))
    axis = axis if w.opset >= 11 else axis % len(w.shape(x))
    size = w.shape(x)[axis]
    count = min(size, w.whole(1, 4))
    ends = [0, *sorted(w.rng.choice(range(1, size), count - 1, replace=False).tolist()), size] if size > 1 else [0, size]
    parts = [b - a for a, b in pairwise(ends)]
    if w.chance(0.1):
        parts.append(0)
    even = w.chance(0.4)
    how: dict[str, Any] = w.some(axis=axis) if axis == 0 else {"axis": axis}
    if even and w.opset >= 18:
        w.add("Split", [x], count, num_outputs=count, **how)
    elif even:
        w.add("Split", [x], count, **how)
    elif w.opset >= 13:
        w.add("Split", [x, w.indices(parts)], len(parts), **how)
    else:
        w.add("Split", [x], len(parts), split=parts, **how)


def concat(w: Walk) -> None:
    x = w.value(1, 5)
    shape, axis = w.shape(x), w.axis(len(w.shape(x)))
    axis = axis if w.opset >= 11 else axis % len(shape)

    def fits(array: Any) -> bool:
        others = [(a, b) for at, (a, b) in enumerate(zip(shape, array.shape, strict=False)) if at != axis % len(shape)]
        return array.ndim == len(shape) and array.dtype == w.values[x].dtype and all(a == b for a, b in others)

    near = [name for name, array in w.values.items() if fits(array)]
    parts = [str(w.one(*near)) for _ in range(w.whole(0, 3))]
    parts.insert(w.whole(0, len(parts)), x)
    y = w.add("Concat", parts, axis=axis)
    if y and w.chance(0.3):  # one that begins with the same parts
        w.add("Concat", [*parts, str(w.one(*near))], axis=axis)


def pad(w: Walk) -> None:
    x = w.value(1, 5)
    rank = len(w.shape(x))
    pads = w.rng.integers(-1 if w.chance(0.3) else 0, 3, 2 * rank).tolist()
    mode = w.one({}, {}, {"mode": "constant"}, {"mode": "reflect"}, {"mode": "edge"}, *[{"mode": "wrap"}] * (w.opset >= 19))
    if w.opset < 11:
        w.add("Pad", [x], pads=pads, **w.some(value=1.5), **mode)
        return
    inputs = [x, w.indices(pads), w.constant(np.array(-0.5)) if w.chance() else ""]
    if w.opset >= 18 and w.chance():
        axes = w.axes(rank)
        inputs[1:2] = [w.indices(w.rng.integers(0, 3, 2 * len(axes)))]
        inputs.append(w.indices(axes))
    w.add("Pad", inputs, **mode)


def chosen(w: Walk) -> None:
    """Indices of the largest, and values by indices."""
    x = w.value(1, 5)
    rank = len(w.shape(x))
    axis = w.axis(rank) if w.opset >= 11 else w.whole(0, rank - 1)
    size = w.shape(x)[axis]
    kind = w.whole(0, 5)
    if kind == 0:
        how = w.some(select_last_index=w.whole(0, 1)) if w.opset >= 12 else {}
        w.add(w.one("ArgMax", "ArgMin"), [x], sharp=True, **w.some(axis=axis, keepdims=w.whole(0, 1)), **how)
    elif kind == 1:
        k = w.whole(1, size)
        if w.opset < 10:
            w.add("TopK", [x], 2, sharp=True, axis=axis, k=k)
        else:
            w.add("TopK", [x, w.indices([k])], 2, sharp=True, axis=axis, **(w.some(largest=w.whole(0, 1)) if w.opset >= 11 else {}))
    elif kind == 2:
        low = -size if w.opset >= 11 else 0
        at = w.rng.integers(low, size, w.one((), (1,), (3,), (2, 2)))
        w.add("Gather", [x, w.constant(at, w.one(np.int64, np.int32))], **({"axis": axis} if axis or w.chance() else {}))
    elif kind == 3:
        shape = [w.whole(1, one) for one in w.shape(x)]
        w.add("GatherElements", [x, w.indices(w.rng.integers(0, size, shape))], axis=axis)
    elif kind == 4:
        at = [[w.whole(0, one - 1) for one in w.shape(x)[:2]] for _ in range(3)]
        w.add("GatherND", [x, w.indices(at)])
    else:
        at = w.rng.permutation(w.shape(x)[0])[:2].reshape(-1, 1)
        w.add("ScatterND", [x, w.indices(at), w.weights((len(at), *w.shape(x)[1:]))])


def spread(w: Walk) -> None:
    x = w.value(1, 4)
    shape = w.shape(x)
    kind = w.whole(0, 5)
    if kind == 0:
        w.add("Expand", [x, w.indices([*([2] * w.chance(0.3)), *(one if one > 1 or w.chance() else 3 for one in shape)])])
    elif kind == 1:
        w.add("Tile", [x, w.indices([w.whole(1, 2) for _ in shape])])
    elif kind == 2:
        w.add("CumSum", [x, w.constant(w.axis(len(shape)), np.int64)], **w.some(exclusive=1, reverse=1))
    elif kind == 3:
        w.add("Trilu", [x, *([w.constant(w.whole(-2, 2), np.int64)] * w.chance())], **w.some(upper=w.whole(0, 1)))
    elif kind == 4:
        w.add("Dropout", [x], w.one(1, 1, 2) if w.opset >= 12 else 1, **(w.some(ratio=0.3) if w.opset < 12 else {}))
    else:
        w.add("EyeLike", [w.value(2, 2)], **w.some(k=w.whole(-2, 2)))


def resize(w: Walk) -> None:
    x = w.image()
    scales = np.array([1, 1, *w.rng.choice([0.5, 1, 1.5, 2, 3], 2)], np.float32)
    if w.opset < 9:
        w.add("Upsample", [x], scales=np.maximum(scales, 1).tolist(), **w.some(mode=w.one("nearest", "linear")))
    elif w.opset == 9:
        w.add("Upsample", [x, w.constant(np.maximum(scales, 1), np.float32)], **w.some(mode=w.one("nearest", "linear")))
    elif w.opset == 10:
        w.add("Resize", [x, w.constant(scales, np.float32)], **w.some(mode=w.one("nearest", "linear")))
    else:
        how = w.some(mode=w.one("nearest", "linear", "cubic"), nearest_mode=w.one("floor", "ceil", "round_prefer_ceil"))
        how |= w.some(coordinate_transformation_mode=w.one("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"))
        if how.get("coordinate_transformation_mode") == "asymmetric":  # of a tie rounding decides
            how["nearest_mode"] = "floor"
        region = "" if w.opset >= 13 else w.constant(np.zeros(0), np.float32)
        sizes = [*w.shape(x)[:2], w.whole(1, 20), w.whole(1, 20)]
        if w.chance(0.4):
            none = "" if w.opset >= 13 else w.constant(np.zeros(0), np.float32)
            w.add("Resize", [x, region, none, w.indices(sizes)], sharp=how.get("mode", "nearest") == "nearest", **how)
        else:
            w.add("Resize", [x, region, w.constant(scales, np.float32)], sharp=how.get("mode", "nearest") == "nearest", **how)


def moved(w: Walk) -> None:
    x = w.image()
    if w.chance():
        w.add("DepthToSpace", [x], blocksize=2, **(w.some(mode=w.one("DCR", "CRD")) if w.opset >= 11 else {}))
    else:
        w.add("SpaceToDepth", [x], blocksize=w.whole(1, 2))


def sizes(w: Walk) -> None:
    """Shapes that are computed: a Reshape to what Shape, Gather and Concat make, as exporters write views."""
    x = w.value(2, 4)
    shape = w.add("Shape", [x], **(w.some(start=w.whole(-2, 1), end=w.whole(-1, 3)) if w.opset >= 15 else {}))
    kind = w.whole(0, 3)
    if not shape:
        return
    if kind == 0:
        first = w.add("Gather", [shape, w.indices(0)], axis=0)
        inputs, how = ([first or "", w.indices([0])], {}) if w.opset >= 13 else ([first or ""], {"axes": [0]})
        first = first and w.add("Unsqueeze", inputs, **how)
        wanted = first and w.add("Concat", [first, w.indices([-1])], axis=0)
        if wanted:
            w.add("Reshape", [x, wanted])
    elif kind == 1:
        w.add("ConstantOfShape", [shape], **w.some(value=helper.make_tensor("value", TensorProto.FLOAT, [1], [0.5])))
    elif kind == 2:
        w.add("Size", [x])
    else:
        number = w.add("Cast", [shape], to=helper.np_dtype_to_tensor_dtype(w.dtype))
        if number and w.chance():
            w.add("Mul", [number, w.constant(np.array(0.5))])
