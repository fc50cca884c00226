# SPDX-License-Identifier: Apache-2.0
"""Generated nodes of operators that lay out, look up, cut, pad and resize; `onnx_peer` compares them."""

from itertools import pairwise
from typing import Any

import numpy as np
from onnx_case import FLOATS, Case, Make, Refused, type_of

_ANY = (*FLOATS, "int64", "int32", "uint8", "int8", "bool")


def reshape(m: Make) -> Case:
    shape = list(m.shape(0, 4))
    if m.op == "Flatten":
        return m.case([m.x(shape, m.one(*_ANY))], attributes=m.some(axis=m.axis(len(shape)) if shape else 0))
    wanted = m.one([-1], [0, -1], shape[::-1], [*shape[:1], -1], [1, *shape], [*shape, 1], [0, 0, -1], [m.whole(1, 4), -1])
    return m.case([m.x(shape, m.one(*_ANY)), m.ints(wanted)], attributes=m.some(allowzero=m.whole(0, 1)))


def squeeze(m: Make) -> Case:
    shape = [1 if m.chance() else size for size in m.shape(1, 5)]
    ones = [at for at, size in enumerate(shape) if size == 1]
    x = m.x(shape, m.one(*_ANY))
    if m.op == "Squeeze" and (not ones or m.chance(0.3)):
        return m.case([x])
    rank = len(shape) + (m.op == "Unsqueeze")
    axes = [m.one(*ones)] if m.op == "Squeeze" else m.axes(rank)
    axes = [axis - rank * (m.opset >= 11 and axis >= 0 and m.chance(0.3)) for axis in axes]
    return m.case([x, m.ints(axes)]) if m.opset >= 13 else m.case([x], attributes={"axes": axes})


def transpose(m: Make) -> Case:
    shape = m.shape(1, 5)
    return m.case([m.x(shape, m.one(*_ANY))], attributes=m.some(perm=m.rng.permutation(len(shape)).tolist()))


def concat(m: Make) -> Case:
    shape, dtype = list(m.shape(1, 4)), m.one(*_ANY)
    axis = m.axis(len(shape))
    parts = []
    for _ in range(m.whole(1, 4)):
        shape[axis] = m.whole(1, 4)
        parts.append(m.x(shape, dtype))
    return m.case(parts, attributes={"axis": axis})


def split(m: Make) -> Case:
    shape = m.shape(1, 4)
    axis = m.axis(len(shape))
    size = shape[axis]
    count = m.whole(1, size)
    cuts = [0, *sorted(m.rng.choice(range(1, size), count - 1, replace=False).tolist()), size] if size > 1 else [0, size]
    parts = [b - a for a, b in pairwise(cuts)]
    x, how = m.x(shape, m.one(*_ANY)), {"axis": axis}
    if m.opset >= 18 and m.chance(0.4):
        return m.case([x], count, how | {"num_outputs": count})
    if m.opset >= 13:
        return m.case([x, m.ints(parts)], len(parts), how)
    return m.case([x], len(parts), how | {"split": parts})


def cut(m: Make) -> Case:
    shape = m.shape(1, 4, 7)
    axes = m.axes(len(shape))
    starts = [m.whole(-shape[a] - 1, shape[a]) for a in axes]
    ends = [m.one(m.whole(-shape[a] - 1, shape[a] + 2), (1 << 63) - 1, shape[a]) for a in axes]
    x = m.x(shape, m.one(*_ANY))
    if m.opset < 10:
        return m.case([x], attributes={"starts": starts, "ends": ends, "axes": axes})
    steps = [m.one(1, 1, 2, -1, -2, 3) for _ in axes]
    ends = [end if step > 0 or end < 1 << 60 else -(1 << 63) for end, step in zip(ends, steps, strict=True)]
    return m.case([x, m.ints(starts), m.ints(ends), m.ints(axes), *([m.ints(steps)] if m.chance(0.8) else [])])


def gather(m: Make) -> Case:
    shape = m.shape(1, 4)
    axis = m.axis(len(shape))
    low = -shape[axis] if m.opset >= 11 else 0
    indices = m.rng.integers(low, shape[axis], m.shape(0, 3))
    return m.case([m.x(shape, m.one(*_ANY)), m.ints(indices, m.one("int64", "int32"))], attributes={"axis": axis})


def elements(m: Make) -> Case:
    """GatherElements, ScatterElements, Scatter."""
    shape = m.shape(1, 4)
    axis = m.axis(len(shape))
    of = tuple(m.whole(1, size) for size in shape)
    if m.op == "GatherElements":
        of = tuple(m.whole(1, 6) if at == axis % len(shape) else size for at, size in enumerate(of))
        indices = m.rng.integers(-shape[axis], shape[axis], of)
        return m.case([m.x(shape, m.one(*_ANY)), m.ints(indices, m.one("int64", "int32"))], attributes={"axis": axis})
    dtype, how = m.one(*FLOATS, "int64", "int32"), {"axis": axis} if m.chance(0.8) or axis else {}
    how |= m.some(reduction=m.one("none", "add", "mul", "max", "min"))
    if m.opset < 18 and how.get("reduction") in ("max", "min"):
        raise Refused
    unique = np.argsort(m.rng.random(shape), axis=axis)[tuple(slice(0, size) for size in of)]  # no place twice
    indices = unique if how.get("reduction", "none") == "none" or m.op == "Scatter" else m.rng.integers(-shape[axis], shape[axis], of)
    if m.opset >= 11 and m.chance(0.3):
        indices = indices - shape[axis] * (indices >= 0)
    return m.case([m.x(shape, dtype), m.ints(indices, m.one("int64", "int32")), m.x(of, dtype)], attributes=how)


def places(m: Make) -> Case:
    """GatherND and ScatterND."""
    shape = m.shape(1, 4)
    depth = m.whole(1, len(shape))
    if m.op == "GatherND":
        batch = m.whole(0, depth - 1) if m.opset >= 12 else 0
        before = (*shape[:batch], *m.shape(0 if batch else 1, 2))
        if len(before) <= batch and batch:
            before = (*before, 2)
        last = m.whole(1, len(shape) - batch)
        columns = [m.rng.integers(-size, size, before) for size in shape[batch : batch + last]]
        how = {"batch_dims": batch} if batch or m.chance() else {}
        return m.case([m.x(shape, m.one(*_ANY)), m.ints(np.stack(columns, -1))], attributes=how)
    dtype, how = m.one(*FLOATS, "int64", "int32"), m.some(reduction=m.one("none", "add", "mul", "max", "min"))
    if m.opset < 18 and how.get("reduction") in ("max", "min"):
        raise Refused
    total = int(np.prod(shape[:depth]))
    count = m.whole(1, total)
    flat = m.rng.permutation(total)[:count] if how.get("reduction", "none") == "none" else m.rng.integers(0, total, count)
    indices = np.stack(np.unravel_index(flat, shape[:depth]), -1)
    return m.case([m.x(shape, dtype), m.ints(indices), m.x((count, *shape[depth:]), dtype)], attributes=how)


def spread(m: Make) -> Case:
    shape = m.shape(0, 4)
    if m.op == "Tile":
        return m.case([m.x(shape, m.one(*FLOATS, "int64", "int32", "uint8")), m.ints(m.rng.integers(1, 4, len(shape)))])
    small = m.spread(shape)
    wanted = shape if m.chance(0.7) else [1 if m.chance(0.3) else size for size in shape]
    return m.case([m.x(small, m.one(*_ANY)), m.ints(wanted)])


def pad(m: Make) -> Case:
    shape = m.shape(1, 4)
    mode = m.one("constant", "constant", "edge", "reflect", *(["wrap"] if m.opset >= 19 else []))
    axes = m.axes(len(shape)) if m.opset >= 18 and m.chance(0.4) else list(range(len(shape)))
    most = [min(3, shape[axis] - 1) if mode in ("reflect", "wrap") else 3 for axis in axes]
    least = [-1 if mode == "constant" and shape[axis] > 2 and m.chance(0.2) else 0 for axis in axes]
    pads = [m.whole(low, high) for _ in range(2) for low, high in zip(least, most, strict=True)]
    dtype = m.one(*FLOATS) if m.opset < 13 or m.chance(0.6) else m.one("int64", "int32", "int8", "uint8", "bool")
    x = m.x(shape, dtype)
    if m.opset < 11:
        return m.case([x], attributes={"pads": pads, "mode": mode} | m.some(value=m.real()))
    inputs = [x, m.ints(pads), m.x((), dtype) if m.chance() and mode == "constant" else ""]
    return m.case([*inputs, m.ints(axes, m.one("int64", "int32"))] if m.opset >= 18 and len(axes) != len(shape) else inputs,
                  attributes={"mode": mode} if mode != "constant" or m.chance() else {})  # fmt: skip


def depth(m: Make) -> Case:
    b = m.whole(1, 3)
    n, c, h, w = m.whole(1, 2), m.whole(1, 3), m.whole(1, 4), m.whole(1, 4)
    shape = (n, c * b * b, h, w) if m.op == "DepthToSpace" else (n, c, h * b, w * b)
    return m.case([m.x(shape, m.one(*FLOATS[:2]))], attributes={"blocksize": b} | m.some(mode=m.one("DCR", "CRD")))


def reverse(m: Make) -> Case:
    shape = m.shape(2, 4)
    batch = m.whole(0, 1)
    lengths = m.rng.integers(1, shape[1 - batch] + 1, shape[batch])
    how = {"batch_axis": batch, "time_axis": 1 - batch} if batch != 1 or m.chance() else {}
    return m.case([m.x(shape, m.one(*_ANY)), m.ints(lengths)], attributes=how)


def compress(m: Make) -> Case:
    shape = m.shape(1, 4)
    axis = m.axis(len(shape)) if m.chance(0.7) else None
    count = m.whole(1, shape[axis] if axis is not None else int(np.prod(shape)))
    flags = m.rng.integers(0, 2, count).astype(bool)
    flags[0] = True
    return m.case([m.x(shape, m.one(*_ANY)), m.value(flags, 0.7)], attributes={} if axis is None else {"axis": axis})


def one_hot(m: Make) -> Case:
    shape, count = m.shape(0, 3), m.whole(1, 6)
    indices = m.rng.integers(-count - 1 if m.opset >= 11 else 0, count + 2, shape)
    axis = m.one(-1, m.whole(0, len(shape)))
    kind = m.one("float32", "int64", "int32")
    inputs = [m.value(indices.astype(m.one("int64", "int32", "float32"))), m.value(np.asarray(count, "int64"), 0.7), m.x((2,), kind)]
    return m.case(inputs, attributes=m.some(axis=axis))


def triangle(m: Make) -> Case:
    shape = m.shape(2, 4)
    k = [m.value(np.asarray(m.whole(-6, 6), "int64"), 0.7)] if m.chance(0.7) else []
    return m.case([m.x(shape, m.one(*FLOATS[:2], "int64", "int32", "uint8", "bool")), *k], attributes=m.some(upper=m.whole(0, 1)))


def eye(m: Make) -> Case:
    return m.case([m.x(m.shape(2, 2), m.one("float32", "int64", "float64", "int32"))],
                  attributes=m.some(k=m.whole(-4, 4), dtype=type_of(m.one("FLOAT", "INT64", "DOUBLE"))))  # fmt: skip


def filled(m: Make) -> Case:
    from onnx import numpy_helper

    value = numpy_helper.from_array(m.numbers((1,), m.one("float32", "int64", "bool", "float16", "uint8")))
    return m.case([m.ints(m.shape(0, 4))], attributes=m.some(value=value))


def counted(m: Make) -> Case:
    kind = m.one("int64", "int32", "float32", "float64")
    step = m.one(1, 2, -1, -2, *([0.5, -0.3, 0.1] if kind.startswith("f") else []))
    start = m.whole(-4, 4)
    limit = start + step * m.whole(1, 9) + (m.one(0, 0.25, -0.25) * step if kind.startswith("f") else 0)
    return m.case([m.value(np.asarray(number, kind), 0.8) for number in (start, limit, step)])


def sizes(m: Make) -> Case:
    shape = m.shape(0, 5)
    how = m.some(start=m.whole(-6, 6), end=m.whole(-6, 6)) if m.op == "Shape" else {}
    return m.case([m.x(shape, m.one(*_ANY))], attributes=how)


def nonzero(m: Make) -> Case:
    return m.case([m.value(m.numbers(m.shape(1, 4), m.one("float32", "int64", "bool", "uint8"), low=0, high=2), 0.8)])


def unique(m: Make) -> Case:
    shape = m.shape(1, 3)
    how = m.some(sorted=m.whole(0, 1), axis=m.axis(len(shape)))
    return m.case([m.value(m.numbers(shape, m.one("float32", "int64", "int8"), low=0, high=2).round(), 0.9)], m.whole(1, 4), how)


def center(m: Make) -> Case:
    shape = m.shape(1, 4)
    axes = m.axes(len(shape)) if m.chance() else []
    wanted = [m.whole(1, 8) for _ in (axes or shape)]
    return m.case([m.x(shape, m.one(*FLOATS, "int32")), m.ints(wanted)], attributes={"axes": axes} if axes else {})


_SCALES = (0.35, 0.45, 0.5, 0.7, 0.9, 1.0, 1.3, 1.4, 1.5, 1.8, 1.9, 2.0, 2.3, 3.0)
_RULES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric", "tf_crop_and_resize")


def resize(m: Make) -> Case:
    mode = m.one("nearest", "linear", "cubic")
    rank = 4 if mode == "cubic" else m.whole(3, 5)
    shape = (m.whole(1, 2), m.whole(1, 3), *(m.whole(1, 10) for _ in range(rank - 2)))
    x = m.x(shape, m.one("float32", "float32", "float64", "uint8", "int8") if mode == "nearest" else "float32")
    scales = [1.0, 1.0, *(m.one(*_SCALES) for _ in range(rank - 2))]
    while any(int(np.float32(size) * np.float32(scale)) < 1 for size, scale in zip(shape, scales, strict=True)):
        scales = [max(scale, 1.0) for scale in scales]
    if m.op == "Upsample" or m.opset < 11:
        if mode == "cubic" or (m.op == "Upsample" and m.opset > 9):
            raise Refused
        if m.op == "Upsample":
            scales = [max(1.0, scale) for scale in scales]
        numbers = np.asarray(scales, "float32")
        return m.case([x], attributes={"mode": mode, "scales": numbers.tolist()}) if m.op == "Upsample" and m.opset < 9 else m.case(
            [x, m.value(numbers, 0.6)], attributes={"mode": mode})  # fmt: skip
    rule = m.one(*_RULES[: 6 if m.opset >= 11 else 5], "half_pixel")
    how = {"mode": mode} | ({"coordinate_transformation_mode": rule} if rule != "half_pixel" or m.chance() else {})
    if mode == "nearest":
        how |= m.some(nearest_mode=m.one("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"))
    if mode == "cubic":
        how |= m.some(cubic_coeff_a=-0.5)
    if m.opset >= 18 and mode != "nearest" and m.chance(0.2):
        how["antialias"] = 1
    how |= m.some(exclude_outside=m.whole(0, 1)) if mode == "cubic" else {}
    axes = list(range(rank))
    if m.opset >= 18 and m.chance(0.3):
        how["axes"] = axes = list(range(2, rank))
    roi = ""
    if rule == "tf_crop_and_resize":
        roi = m.value(np.asarray([0.0] * len(axes) + [1.0] * len(axes), "float32") * m.one(1, 0.8), 0.6)
        how |= m.some(extrapolation_value=m.real())
    elif m.opset < 13:
        roi = m.value(np.zeros(0 if m.chance() else 2 * rank, "float32"), 1.0)
    if m.chance():
        return m.case([x, roi, m.value(np.asarray([scales[axis] for axis in axes], "float32"), 0.6)], attributes=how)
    out = [max(1, round(shape[axis] * scales[axis])) for axis in axes]
    how |= m.some(keep_aspect_ratio_policy=m.one("stretch", "not_larger", "not_smaller")) if m.opset >= 18 and len(axes) < rank else {}
    empty = m.value(np.zeros(0, "float32"), 1.0) if m.opset < 13 else ""
    return m.case([x, roi, empty, m.ints(out)], attributes=how)


def col2im(m: Make) -> Case:
    axes = m.whole(1, 3)
    image, block = [m.whole(3, 7) for _ in range(axes)], [m.whole(1, 3) for _ in range(axes)]
    how: dict[str, Any] = m.some(strides=[m.whole(1, 2) for _ in range(axes)], dilations=[m.whole(1, 2) for _ in range(axes)],
                                 pads=[m.whole(0, 1) for _ in range(2 * axes)])  # fmt: skip
    strides, dilations, pads = how.get("strides", [1] * axes), how.get("dilations", [1] * axes), how.get("pads", [0] * 2 * axes)
    counts = [(image[a] + pads[a] + pads[a + axes] - dilations[a] * (block[a] - 1) - 1) // strides[a] + 1 for a in range(axes)]
    if min(counts) < 1:
        raise Refused
    shape = (m.whole(1, 2), m.whole(1, 2) * int(np.prod(block)), int(np.prod(counts)))
    return m.case([m.x(shape), m.ints(image), m.ints(block)], attributes=how)


RECIPES = {
    "Reshape": reshape, "Flatten": reshape, "Squeeze": squeeze, "Unsqueeze": squeeze, "Transpose": transpose, "Concat": concat,
    "Split": split, "Slice": cut, "Gather": gather, "GatherElements": elements, "ScatterElements": elements, "Scatter": elements,
    "GatherND": places, "ScatterND": places, "Tile": spread, "Expand": spread, "Pad": pad, "DepthToSpace": depth, "SpaceToDepth": depth,
    "ReverseSequence": reverse, "Compress": compress, "OneHot": one_hot, "Trilu": triangle, "EyeLike": eye, "ConstantOfShape": filled,
    "Range": counted, "Shape": sizes, "Size": sizes, "NonZero": nonzero, "Unique": unique, "CenterCropPad": center, "Resize": resize,
    "Upsample": resize, "Col2Im": col2im,
}  # fmt: skip
