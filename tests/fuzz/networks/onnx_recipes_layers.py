# SPDX-License-Identifier: Apache-2.0
"""Generated nodes of layers: convolutions, pools, norms, products, recurrent layers, samples, attention; `onnx_peer` compares them."""

from typing import Any

import numpy as np
from onnx_case import FLOATS, Case, Make, Refused

RULES = ("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET")


def image(m: Make, axes: int, channels: int | None = None, most: int = 7) -> tuple[int, ...]:
    return (m.whole(1, 2), channels or m.whole(1, 4), *(m.whole(2, most) for _ in range(axes)))


def window(m: Make, axes: int, dilated: bool = True) -> dict[str, Any]:
    found = m.some(strides=[m.whole(1, 3) for _ in range(axes)])
    if dilated:
        found |= m.some(dilations=[m.whole(1, 2) for _ in range(axes)])
    if m.chance(0.3):
        found["auto_pad"] = m.one(*RULES)
        return found
    return found | m.some(pads=[m.whole(0, 2) for _ in range(2 * axes)])


def conv(m: Make) -> Case:
    axes, groups = m.whole(1, 3), m.one(1, 1, 2, 3)
    c, filters = groups * m.whole(1, 2), groups * m.whole(1, 3)
    kernel, dtype = [m.whole(1, 3) for _ in range(axes)], m.one(*FLOATS)
    how = window(m, axes) | m.some(kernel_shape=kernel) | ({"group": groups} if groups > 1 or m.chance() else {})
    shape = image(m, axes, c)
    if m.op == "Conv":
        inputs = [m.x(shape, dtype), m.x((filters, c // groups, *kernel), dtype)]
        return m.case(inputs + [m.x((filters,), dtype)] * m.chance(), attributes=how)
    if m.chance(0.3):
        how["output_padding"] = [m.whole(0, stride - 1) for stride in how.get("strides", [1] * axes)]
    if m.chance(0.1):
        how["output_shape"] = [size * 2 + m.whole(0, 2) for size in shape[2:]]
    inputs = [m.x(shape, dtype), m.x((c, filters // groups, *kernel), dtype)]
    return m.case(inputs + [m.x((filters,), dtype)] * m.chance(), attributes=how)


def deform(m: Make) -> Case:
    if m.opset < 19:
        raise Refused
    groups, c, kernel = 1, m.whole(1, 3), [m.whole(1, 3), m.whole(1, 3)]
    n, _, h, w = image(m, 2, c)
    pads, strides, dilations = [m.whole(0, 1) for _ in range(4)], [m.whole(1, 2) for _ in range(2)], [m.whole(1, 2) for _ in range(2)]
    sizes = [(size + pads[a] + pads[a + 2] - dilations[a] * (kernel[a] - 1) - 1) // strides[a] + 1 for a, size in enumerate((h, w))]
    if min(sizes) < 1:
        raise Refused
    offsets, taps = m.one(1, c), kernel[0] * kernel[1]
    inputs = [m.x((n, c, h, w)), m.x((2, c // groups, *kernel)), m.x((n, offsets * taps * 2, *sizes)), m.x((2,)) if m.chance() else "",
              m.x((n, offsets * taps, *sizes)) if m.chance() else ""]  # fmt: skip
    how = {"pads": pads, "strides": strides, "dilations": dilations, "offset_group": offsets, "kernel_shape": kernel}
    return m.case(inputs, attributes=how)


def pool(m: Make) -> Case:
    axes = m.whole(1, 3)
    how = {"kernel_shape": [m.whole(1, 3) for _ in range(axes)]} | window(m, axes)
    how |= m.some(ceil_mode=m.whole(0, 1), count_include_pad=m.whole(0, 1), p=m.whole(1, 3))
    pads, extents = how.get("pads", [0] * 2 * axes), how["kernel_shape"]
    how["pads"] = [min(pad, extent - 1) for pad, extent in zip(pads, extents * 2, strict=True)]
    if how.get("auto_pad", "NOTSET") != "NOTSET":
        del how["pads"]
    dtype = m.one(*FLOATS, *(("int8", "uint8") if m.opset >= 12 and m.op == "MaxPool" else ()))
    several = m.op == "MaxPool" and m.opset >= 8 and m.chance(0.3)
    how |= m.some(storage_order=m.whole(0, 1)) if several else {}
    return m.case([m.x(image(m, axes), dtype)], 1 + several, how)


def global_pool(m: Make) -> Case:
    return m.case([m.x(image(m, m.whole(1, 3)), m.one(*FLOATS))], attributes=m.some(p=m.whole(1, 3)))


def unpool(m: Make) -> Case:
    n, c, h, w = image(m, 2)
    kernel = [m.whole(1, 3), m.whole(1, 3)]
    out = ((h - 1) * kernel[0] + kernel[0], (w - 1) * kernel[1] + kernel[1])
    flat = np.stack([m.rng.permutation(out[0] * out[1])[: h * w] + plane * out[0] * out[1] for plane in range(n * c)])
    return m.case([m.x((n, c, h, w)), m.ints(flat.reshape(n, c, h, w))], attributes={"kernel_shape": kernel, "strides": kernel})


def rois(m: Make) -> Case:
    n, c, h, w = image(m, 2, most=10)
    count = m.whole(1, 4)
    corners = np.sort(m.rng.uniform(0, 9, (count, 2, 2)), axis=1).reshape(count, 4)
    if m.op == "MaxRoiPool":
        regions = np.concatenate([m.rng.integers(0, n, (count, 1)), corners], axis=1)
        how = {"pooled_shape": [m.whole(1, 3), m.whole(1, 3)]} | m.some(spatial_scale=0.5)
        return m.case([m.x((n, c, h, w)), m.value(regions.round().astype("float32"))], attributes=how)
    how = m.some(output_height=m.whole(1, 3), output_width=m.whole(1, 3), sampling_ratio=m.whole(0, 3), spatial_scale=0.5)
    how |= m.some(mode=m.one("avg", "max"), coordinate_transformation_mode=m.one("half_pixel", "output_half_pixel"))
    return m.case([m.x((n, c, h, w)), m.value(corners.astype("float32")), m.ints(m.rng.integers(0, n, count))], attributes=how)


def norm(m: Make) -> Case:
    shape = image(m, m.whole(0, 3)) if m.op != "InstanceNormalization" else image(m, m.whole(1, 3), most=9)
    c, dtype = shape[1], m.one("float32", "float32", "float64", "float16")
    epsilon = m.some(epsilon=m.one(1e-5, 1e-3, 0.1))
    x = m.x(shape, dtype)
    if m.op == "BatchNormalization":
        numbers = [m.x((c,), dtype), m.x((c,), dtype), m.x((c,), dtype), m.x((c,), dtype, low=0.2, high=2)]
        return m.case([x, *numbers], attributes=epsilon | m.some(momentum=0.5))
    if m.op == "InstanceNormalization":
        return m.case([x, m.x((c,), dtype), m.x((c,), dtype)], attributes=epsilon)
    if m.op == "LRN":
        how = m.some(alpha=m.one(0.1, 1e-3), beta=m.one(0.5, 0.7, 1.0), bias=m.one(1.0, 2.0))
        return m.case([x], attributes={"size": m.whole(1, 6)} | how)
    if m.op == "LpNormalization":
        return m.case([x], attributes=m.some(axis=m.axis(len(shape)), p=m.whole(1, 2)))
    if m.op == "MeanVarianceNormalization":
        return m.case([x], attributes={"axes": m.axes(len(shape))} if len(shape) < 4 or m.chance() else {})
    if m.op == "GroupNormalization":
        groups = m.one(*(g for g in (1, 2, 3, 4) if c % g == 0))
        of = (c if m.opset >= 21 else groups,)
        return m.case([x, m.x(of, dtype), m.x(of, dtype)], attributes={"num_groups": groups} | epsilon)
    axis = m.axis(len(shape))
    of, how = (shape[axis:], {"axis": axis}) if m.chance(0.7) else (shape[-1:], {})
    if m.op == "RMSNormalization":
        return m.case([x, m.x(of, dtype)], attributes=how | epsilon)
    return m.case([x, m.x(of, dtype)] + [m.x(of, dtype)] * m.chance(), m.one(1, 1, 3), how | epsilon | m.some(stash_type=1))


def softmax(m: Make) -> Case:
    shape = m.shape(1, 4)
    return m.case([m.x(shape, m.one(*FLOATS))], attributes=m.some(axis=m.axis(len(shape))))


def dropout(m: Make) -> Case:
    return m.case([m.x(m.shape(1, 4), m.one(*FLOATS))], m.whole(1, 2))


def gemm(m: Make) -> Case:
    r, k, c = m.whole(1, 6), m.whole(1, 6), m.whole(1, 6)
    flip = m.whole(0, 1), m.whole(0, 1)
    dtype = m.one(*FLOATS) if m.opset < 9 or m.chance(0.8) else m.one("int32", "int64", "uint32")
    inputs = [m.x((k, r) if flip[0] else (r, k), dtype), m.x((c, k) if flip[1] else (k, c), dtype)]
    if m.opset < 11 or m.chance(0.7):
        inputs.append(m.x(m.one((c,), (1, c), (1,), (r, 1), (), (r, c)), dtype))
    how = m.some(alpha=m.one(0.5, 2.0, 0.0), beta=m.one(2.0, 0.0, 0.5), transA=flip[0], transB=flip[1])
    how |= {"transA": flip[0]} if flip[0] else {}
    how |= {"transB": flip[1]} if flip[1] else {}
    if np.dtype(dtype).kind in "iu":
        how = {name: value for name, value in how.items() if name.startswith("trans")}
    return m.case(inputs, attributes=how)


def matmul(m: Make) -> Case:
    r, k, c = m.whole(1, 6), m.whole(1, 6), m.whole(1, 6)
    dtype = m.one(*FLOATS) if m.opset < 9 or m.chance(0.8) else m.one("int32", "int64")
    batch = m.shape(0, 2, 3)
    a, b = m.one(((*batch, r, k), (*m.spread(batch), k, c)), ((k,), (k, c)), ((r, k), (k,)), ((k,), (k,)))
    return m.case([m.x(a, dtype), m.x(b, dtype)])


def einsum(m: Make) -> Case:
    sizes = {letter: m.whole(1, 4) for letter in "abcij"}
    terms = m.one("ij,jk->ik", "bij,bjk->bik", "ij,ij->", "ij->ji", "ii->i", "ii->", "ij->j", "i,j->ij", "bij,bij->bi",
                  "...ij,...jk->...ik", "ij,jk", "abi,cbi->ac", "bij,j->bi", "ij,i->ij", "ij, jk -> ki")  # fmt: skip
    sizes["k"] = m.whole(1, 4)
    left = terms.replace(" ", "").split("->")[0].split(",")
    shapes = [tuple(sizes[letter] for letter in one.replace("...", "ab")) for one in left]
    dtype = m.one("float32", "float64", "int32", "int64")
    return m.case([m.x(shape, dtype) for shape in shapes], attributes={"equation": terms})


NAMES = ("Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu", "Softsign", "Softplus")
_TAKES = {"Affine": 2, "LeakyRelu": 1, "ThresholdedRelu": 1, "ScaledTanh": 2, "HardSigmoid": 2, "Elu": 1}


def recurrent(m: Make) -> Case:
    gates, functions = {"LSTM": (4, 3), "GRU": (3, 2), "RNN": (1, 1)}[m.op]
    steps, batch, size, hidden = m.whole(1, 5), m.whole(1, 3), m.whole(1, 4), m.whole(1, 4)
    direction = m.one("forward", "reverse", "bidirectional")
    count = 1 + (direction == "bidirectional")
    dtype = "float64" if m.chance(0.05) else "float32"
    first = m.opset >= 14 and m.chance(0.1)
    state = (batch, count, hidden) if first else (count, batch, hidden)
    inputs = [m.x((batch, steps, size) if first else (steps, batch, size), dtype)]
    inputs += [m.value(m.numbers((count, gates * hidden, of), dtype) / 2, 0.8) for of in (size, hidden)]
    inputs.append(m.value(m.numbers((count, 2 * gates * hidden), dtype) / 2, 0.8) if m.chance(0.7) else "")
    inputs.append(m.value(m.rng.integers(1, steps + 1, batch).astype("int32"), 0.3) if m.chance() else "")
    inputs.append(m.x(state, dtype) if m.chance() else "")
    if m.op == "LSTM":
        inputs.append(m.x(state, dtype) if m.chance() else "")
        inputs.append(m.x((count, 3 * hidden), dtype) if m.chance(0.3) else "")
    how: dict[str, Any] = {"hidden_size": hidden} | ({"direction": direction} if direction != "forward" or m.chance() else {})
    how |= {"layout": 1} if first else {}
    if m.chance(0.4):
        how["clip"] = m.real(0.1, 2)
    how |= m.some(linear_before_reset=m.whole(0, 1)) if m.op == "GRU" else {}
    how |= {"input_forget": m.whole(0, 1)} if m.op == "LSTM" and m.chance(0.3) else {}
    if m.chance(0.5):
        names = [m.one(*NAMES) for _ in range(functions * count)]
        how["activations"] = names
        alphas, betas = [m.real(0.1, 1) for name in names if name in _TAKES], [m.real(0.1, 1) for name in names if _TAKES.get(name) == 2]
        stated = m.chance(0.7) or {"Affine", "ScaledTanh"} & {*names}
        how |= ({"activation_alpha": alphas} if alphas and stated else {}) | ({"activation_beta": betas} if betas and stated else {})
    return m.case(inputs, m.whole(1, 3 if m.op == "LSTM" else 2), how)


def grid(m: Make) -> Case:
    axes = 2 if m.opset < 20 or m.chance(0.6) else 3
    n, c, *sizes = image(m, axes, most=5)
    points = m.rng.uniform(-1.4, 1.4, (n, *(m.whole(1, 4) for _ in range(axes)), axes)).astype("float32")
    linear, cubic = ("bilinear", "bicubic") if m.opset < 20 else ("linear", "cubic")
    how = m.some(mode=m.one("nearest", linear, *([cubic] if axes == 2 else [])), padding_mode=m.one("zeros", "border", "reflection"),
                 align_corners=m.whole(0, 1))  # fmt: skip
    return m.case([m.x((n, c, *sizes)), m.value(points)], attributes=how)


def affine(m: Make) -> Case:
    axes = m.whole(2, 3)
    n = m.whole(1, 2)
    return m.case([m.x((n, axes, axes + 1)), m.ints([n, m.whole(1, 3), *(m.whole(1, 4) for _ in range(axes))])],
                  attributes=m.some(align_corners=m.whole(0, 1)))  # fmt: skip


def attention(m: Make) -> Case:
    n, heads, q, kv, d, dv = m.whole(1, 2), m.one(1, 2, 4), m.whole(1, 4), m.whole(1, 5), m.one(2, 4), m.one(2, 4)
    own = m.one(*(one for one in (1, 2, 4) if heads % one == 0))
    how = m.some(is_causal=m.whole(0, 1), scale=m.real(0.1, 1), softcap=m.one(0.0, 2.0))
    if m.chance():
        how |= {"q_num_heads": heads, "kv_num_heads": own}
        inputs = [m.x((n, q, heads * d)), m.x((n, kv, own * d)), m.x((n, kv, own * dv))]
    else:
        inputs = [m.x((n, heads, q, d)), m.x((n, own, kv, d)), m.x((n, own, kv, dv))]
    if m.chance(0.4):
        inputs.append(m.x(m.one((q, kv), (n, 1, q, kv), (1, heads, q, kv)), m.one("float32", "bool")))
    return m.case(inputs, attributes=how)


def rotary(m: Make) -> Case:
    n, heads, s, d = m.whole(1, 2), m.whole(1, 3), m.whole(1, 4), m.one(4, 8)
    cos, sin = m.numbers((n, s, d // 2)), m.numbers((n, s, d // 2))
    how = m.some(interleaved=m.whole(0, 1))
    if m.chance():
        return m.case([m.x((n, s, heads * d)), m.value(cos), m.value(sin)], attributes=how | {"num_heads": heads})
    return m.case([m.x((n, heads, s, d)), m.value(cos), m.value(sin)], attributes=how)


def integer(m: Make) -> Case:
    """ConvInteger, MatMulInteger, QLinearConv, QLinearMatMul."""
    a_kind, b_kind = m.one("uint8", "int8"), m.one("uint8", "int8")

    def zero(kind: str, sizes: tuple[int, ...] = ()) -> str:
        return m.value(m.numbers(sizes, kind, low=0, high=9), 0.7)

    def scale(sizes: tuple[int, ...] = ()) -> str:
        return m.value(m.numbers(sizes, low=0.01, high=0.2), 0.7)

    if "MatMul" in m.op:
        r, k, c = m.whole(1, 5), m.whole(1, 5), m.whole(1, 5)
        a, b = m.x((*m.shape(0, 1), r, k), a_kind, low=-120, high=250), m.x((k, c), b_kind, low=-120, high=250)
        if m.op == "MatMulInteger":
            zeros = [zero(a_kind)] if m.chance() else []
            return m.case([a, b, *zeros] + ([zero(b_kind, m.one((), (c,)))] if zeros and m.chance() else []))
        return m.case([a, scale(), zero(a_kind), b, scale(), zero(b_kind), scale(), zero(a_kind)])
    groups = m.one(1, 2)
    c, filters, kernel = groups * m.whole(1, 2), groups * m.whole(1, 2), [m.whole(1, 3), m.whole(1, 3)]
    x, w = m.x(image(m, 2, c), a_kind, low=-120, high=250), m.x((filters, c // groups, *kernel), b_kind, low=-120, high=250)
    how = window(m, 2) | {"group": groups}
    if m.op == "ConvInteger":
        zeros = [zero(a_kind)] if m.chance() else []
        return m.case([x, w, *zeros] + ([zero(b_kind)] if zeros and m.chance() else []), attributes=how)
    per = m.one((), (filters,))
    w_zero = m.value(np.zeros(per, b_kind), 0.7) if per else zero(b_kind)
    bias = [m.x((filters,), "int32")] if m.chance() else []
    return m.case([x, scale(), zero(a_kind), w, scale(per), w_zero, scale(), zero(a_kind), *bias], attributes=how)


def loss(m: Make) -> Case:
    n, c, axes = m.whole(1, 4), m.whole(2, 4), m.shape(0, 2)
    target = m.rng.integers(0, c, (n, *axes))
    inputs = [m.x((n, c, *axes)), m.ints(target)] + ([m.x((c,), low=0.1, high=2)] if m.chance() else [])
    return m.case(inputs, attributes=m.some(reduction=m.one("none", "sum", "mean"), ignore_index=m.whole(0, c - 1)))


def suppression(m: Make) -> Case:
    n, c, count = m.whole(1, 2), m.whole(1, 2), m.whole(1, 6)
    corners = np.sort(m.rng.uniform(0, 4, (n, count, 2, 2)), axis=2).reshape(n, count, 4).astype("float32")
    inputs = [m.value(corners, 1.0), m.value(m.rng.random((n, c, count)).astype("float32"), 1.0), m.value(np.int64(m.whole(1, 4)), 1.0)]
    inputs += [m.value(np.float32(m.real(0.1, 0.9)), 1.0), m.value(np.float32(m.real(0, 0.5)), 1.0)] if m.chance(0.8) else []
    return m.case(inputs, attributes=m.some(center_point_box=m.whole(0, 1)))


def transform(m: Make) -> Case:
    n, size = m.whole(1, 2), m.whole(2, 8)
    shape = (n, size, m.one(1, 2)) if m.op == "DFT" else (n, 16, 1)
    if m.op == "STFT":
        return m.case([m.x(shape), m.value(np.int64(m.whole(1, 4)), 1.0), m.x((8,)) if m.chance() else "", m.value(np.int64(8), 1.0)],
                      attributes=m.some(onesided=m.whole(0, 1)))  # fmt: skip
    inverse = m.whole(0, 1)
    how = m.some(inverse=inverse, onesided=0 if inverse or shape[2] == 2 else m.whole(0, 1))
    length = m.value(np.int64(m.whole(2, 8)), 1.0) if m.chance(0.4) else ""
    if m.opset < 20:
        return m.case([m.x(shape), length], attributes=how | m.some(axis=1))
    return m.case([m.x(shape), length, m.value(np.int64(m.one(1, -2)), 1.0) if m.chance() else ""], attributes=how)


def windowed(m: Make) -> Case:
    return m.case([m.value(np.asarray(m.whole(1, 12), m.one("int64", "int32")), 0.8)], attributes=m.some(periodic=m.whole(0, 1)))


def determinant(m: Make) -> Case:
    size = m.whole(1, 4)
    return m.case([m.x((*m.shape(0, 2), size, size), m.one("float32", "float64"))])


RECIPES = {
    **dict.fromkeys(("Conv", "ConvTranspose"), conv), "DeformConv": deform, **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"), global_pool), "MaxUnpool": unpool,
    **dict.fromkeys(("MaxRoiPool", "RoiAlign"), rois),
    **dict.fromkeys(("BatchNormalization", "GroupNormalization", "InstanceNormalization", "LRN", "LayerNormalization", "LpNormalization",
                     "MeanVarianceNormalization", "RMSNormalization"), norm),
    **dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax"), softmax), "Dropout": dropout, "Gemm": gemm, "MatMul": matmul, "Einsum": einsum,
    **dict.fromkeys(("GRU", "LSTM", "RNN"), recurrent), "GridSample": grid, "AffineGrid": affine, "Attention": attention,
    "RotaryEmbedding": rotary, **dict.fromkeys(("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"), integer),
    **dict.fromkeys(("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"), loss), "NonMaxSuppression": suppression,
    **dict.fromkeys(("DFT", "STFT"), transform), **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow"), windowed),
    "Det": determinant,
}  # fmt: skip
