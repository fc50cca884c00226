# SPDX-License-Identifier: Apache-2.0
"""What ONNX's text (https://onnx.ai/onnx/operators/) says of a node: an oracle for the nodes where ONNX Runtime departs from the text, by
plain loops, by the onnx package's reference, or by ONNX Runtime for the same node with other attributes.

Each function returns the outputs of a `Node`; inputs that are left out are None."""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import ceil, floor
from typing import Any, NamedTuple

import numpy as np
import onnx

Attributes = Mapping[str, Any]
Inputs = Sequence[Any]


class Node(NamedTuple):
    attributes: Attributes
    inputs: Inputs
    opset: int
    op: str
    outputs: int
    content: bytes
    given: Mapping[str, Any]
    by_onnxruntime: Callable[[bytes, Mapping[str, Any]], list[Any]]


def reference(node: Node) -> list[Any]:
    from onnx.reference import ReferenceEvaluator

    return list(ReferenceEvaluator(onnx.ModelProto.FromString(node.content)).run(None, dict(node.given)))


def resized(node: Node) -> list[Any]:
    """By the package's reference, with scales that lead to sizes of products in float32: the package multiplies in float64."""
    x, scales = node.inputs[0], node.inputs[2]
    sizes = np.array([x.shape[axis] for axis in node.attributes.get("axes", range(x.ndim))], np.float32)
    mended = np.where(np.floor(sizes * scales) > np.floor(sizes * scales.astype(np.float64)), np.nextafter(scales, np.float32(9)), scales)
    model = onnx.ModelProto.FromString(node.content)
    name, given = model.graph.node[0].input[2], dict(node.given)
    if name in given:
        given[name] = mended
    for one in model.graph.initializer:
        if one.name == name:
            one.CopyFrom(onnx.numpy_helper.from_array(mended, name))
    return reference(node._replace(content=model.SerializeToString(), given=given))


_NEAREST: dict[bytes, Callable[[Fraction], int]] = {
    b"floor": floor, b"ceil": ceil, b"round_prefer_floor": lambda x: ceil(x - Fraction(1, 2)),
    b"round_prefer_ceil": lambda x: floor(x + Fraction(1, 2)),
}  # fmt: skip


def symmetric(node: Node) -> list[Any]:
    """Nearest pixels by half_pixel_symmetric, in fractions."""
    x, scales = node.inputs[0], node.inputs[2] if len(node.inputs) > 2 else None
    sizes = node.inputs[3].tolist() if scales is None or not scales.size else None
    nearest = _NEAREST[node.attributes.get("nearest_mode", b"round_prefer_floor")]
    for at, axis in enumerate(node.attributes.get("axes", range(x.ndim))):
        size = x.shape[axis]
        scale = Fraction(sizes[at], size) if sizes else Fraction(float(scales[at]))
        out = sizes[at] if sizes else int(np.float32(size) * scales[at])
        offset = Fraction(size, 2) * (1 - out / (scale * size))
        places = [nearest(offset + (i + Fraction(1, 2)) / scale - Fraction(1, 2)) for i in range(out)]
        x = x.take(np.clip(places, 0, size - 1), axis)
    return [x]


def with_attributes(node: Node, less: Sequence[str] = (), **more: Any) -> list[Any]:
    """By ONNX Runtime, with other attributes."""
    model = onnx.ModelProto.FromString(node.content)
    (one,) = model.graph.node
    left = [attribute for attribute in one.attribute if attribute.name not in (*less, *more)]
    del one.attribute[:]
    one.attribute.extend([*left, *(onnx.helper.make_attribute(name, value) for name, value in more.items())])
    return node.by_onnxruntime(model.SerializeToString(), node.given)


def pool(node: Node) -> list[Any]:
    """SAME_UPPER and SAME_LOWER as pads: ceil(size / stride) windows; none are needed where the stride is larger than the window."""
    given, sizes = node.attributes, node.inputs[0].shape[2:]
    ones = [1] * len(sizes)
    kernel, strides, dilations = (given.get(name, ones) for name in ("kernel_shape", "strides", "dilations"))
    small, large = [], []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = max(0, (-(-size // stride) - 1) * stride + dilation * (k - 1) + 1 - size)
        small.append(total // 2)
        large.append(total - total // 2)
    pads = small + large if given["auto_pad"] == b"SAME_UPPER" else large + small
    return with_attributes(node, ("auto_pad", "ceil_mode"), pads=pads)


def celu(node: Node) -> list[Any]:
    x, alpha = node.inputs[0].astype(np.float64), node.attributes.get("alpha", 1.0)
    with np.errstate(over="ignore"):
        return [(np.maximum(0, x) + np.minimum(0, alpha * np.expm1(x / alpha))).astype(node.inputs[0].dtype)]


def clipped(node: Node) -> list[Any]:
    """Bounds are numeric_limits' lowest and max where they are left out."""
    x, low, high = [*node.inputs, None, None][:3]
    most = np.finfo(x.dtype).max
    return [np.minimum(np.maximum(x, -most if low is None else low), most if high is None else high)]


def sigmoid(node: Node) -> list[Any]:
    with np.errstate(over="ignore"):
        return [(1 / (1 + np.exp(-node.inputs[0].astype(np.float64)))).astype(node.inputs[0].dtype)]


def softplus(node: Node) -> list[Any]:
    return [np.logaddexp(node.inputs[0].astype(np.float64), 0).astype(node.inputs[0].dtype)]


def kept(node: Node) -> list[Any]:
    """Dropout in inference."""
    return [node.inputs[0], np.ones(node.inputs[0].shape, bool)][: node.outputs]


def signs(node: Node) -> list[Any]:
    return [np.sign(node.inputs[0])]


def shrunk(node: Node) -> list[Any]:
    """In the numbers' own type: what is added is a whole number, too."""
    x, bias, limit = node.inputs[0], node.attributes.get("bias", 0.0), node.attributes.get("lambd", 0.5)
    wide = x.astype(np.float64)
    return [np.trunc(np.where(wide < -limit, wide + bias, np.where(wide > limit, wide - bias, 0))).astype(np.int64).astype(x.dtype)]


def normalised(node: Node) -> list[Any]:
    """MeanVarianceNormalization; its function adds 1e-9 to the deviation."""
    x, axes = node.inputs[0].astype(np.float64), tuple(node.attributes.get("axes", (0, 2, 3)))
    apart = x - x.mean(axis=axes, keepdims=True)
    return [(apart / (np.sqrt((apart**2).mean(axis=axes, keepdims=True)) + 1e-9)).astype(node.inputs[0].dtype)]


def of_groups(node: Node) -> list[Any]:
    """GroupNormalization."""
    x, *affine = (one.astype(np.float64) for one in node.inputs)
    groups = x.reshape(len(x), node.attributes["num_groups"], -1)
    apart = groups - groups.mean(axis=2, keepdims=True)
    y = (apart / np.sqrt((apart**2).mean(axis=2, keepdims=True) + node.attributes.get("epsilon", 1e-5))).reshape(x.shape)
    scale, shift = (np.repeat(one, x.shape[1] // len(one)).reshape(-1, *[1] * (x.ndim - 2)) for one in affine)
    return [(y * scale + shift).astype(node.inputs[0].dtype)]


def log_sum_exp(node: Node) -> list[Any]:
    """Of whole numbers: rounded down at the end."""
    x, given = node.inputs[0], node.attributes
    told = given.get("axes", node.inputs[1].tolist() if len(node.inputs) > 1 and node.inputs[1] is not None else [])
    if not told and given.get("noop_with_empty_axes"):
        return [x]
    axes = tuple(axis % x.ndim for axis in told) or tuple(range(x.ndim))
    y = np.log(np.exp(x.astype(np.longdouble)).sum(axis=axes, keepdims=bool(given.get("keepdims", 1))))
    return [np.asarray(y).astype(x.dtype)]


def folded(node: Node) -> list[Any]:
    """Col2Im, block by block."""
    x, image, block = node.inputs[0], node.inputs[1].tolist(), node.inputs[2].tolist()
    count = len(image)
    strides, dilations = (node.attributes.get(name, [1] * count) for name in ("strides", "dilations"))
    pads = node.attributes.get("pads", [0] * 2 * count)
    spans = [size + a + b - dilation * (k - 1) - 1
             for size, a, b, dilation, k in zip(image, pads, pads[count:], dilations, block, strict=False)]  # fmt: skip
    places = list(np.ndindex(*(span // stride + 1 for span, stride in zip(spans, strides, strict=True))))
    y = np.zeros((len(x), x.shape[1] // int(np.prod(block)), *image), x.dtype)
    for row, tap in enumerate(np.ndindex(*block)):
        for column, place in enumerate(places):
            lies = zip(place, strides, tap, dilations, pads, strict=False)
            at = [p * stride + t * dilation - pad for p, stride, t, dilation, pad in lies]
            if all(0 <= one < size for one, size in zip(at, image, strict=True)):
                y[(slice(None), slice(None), *at)] += x[:, row :: int(np.prod(block)), column]
    return [y]


_FUNCTIONS: dict[str, Callable[[Any, float, float], Any]] = {
    "affine": lambda x, a, b: a * x + b, "elu": lambda x, a, b: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0))),
    "hardsigmoid": lambda x, a, b: np.minimum(np.maximum(a * x + b, 0), 1), "leakyrelu": lambda x, a, b: np.where(x >= 0, x, a * x),
    "relu": lambda x, a, b: np.maximum(x, 0), "scaledtanh": lambda x, a, b: a * np.tanh(b * x),
    "sigmoid": lambda x, a, b: 1 / (1 + np.exp(-x)), "softplus": lambda x, a, b: np.log1p(np.exp(-abs(x))) + np.maximum(x, 0),
    "softsign": lambda x, a, b: x / (1 + abs(x)), "tanh": lambda x, a, b: np.tanh(x),
    "thresholdedrelu": lambda x, a, b: np.where(x > a, x, 0),
}  # fmt: skip
_DEFAULTS = {"elu": (1.0,), "hardsigmoid": (0.2, 0.5), "leakyrelu": (0.01,), "thresholdedrelu": (1.0,), "affine": (1.0, 0.0),
             "scaledtanh": (1.0, 1.0)}  # fmt: skip
_USUAL = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}


def _functions(node: Node, count: int) -> list[Callable[[Any], Any]]:
    """The activation functions of all directions, each of its clipped argument."""
    given, clip = node.attributes, node.attributes.get("clip", np.inf)
    alphas, betas = list(given.get("activation_alpha", ())), list(given.get("activation_beta", ()))
    found = []
    for name in [one.decode().lower() for one in given.get("activations", ())] or _USUAL[node.op] * count:
        own = list(_DEFAULTS.get(name, ()))
        for at, stated in enumerate((alphas, betas)[: len(own)]):
            own[at] = stated.pop(0) if stated else own[at]
        a, b = [*own, 0.0, 0.0][:2]
        found.append(lambda x, name=name, a=a, b=b: _FUNCTIONS[name](np.clip(x, -clip, clip), a, b))
    return found


def recurrent(node: Node) -> list[Any]:
    """LSTM, GRU and RNN in float64, sequence by sequence and step by step."""
    names = ("X", "W", "R", "B", "lengths", "h", "c", "P")
    of = {name: one.astype(np.float64) for name, one in zip(names, node.inputs, strict=False) if one is not None}
    x, (count, _, hidden) = of["X"], of["R"].shape
    steps, batch, _ = x.shape
    y, last = np.zeros((steps, count, batch, hidden)), np.zeros((2, count, batch, hidden))
    functions = _functions(node, count)
    per = len(functions) // count
    for at, row in np.ndindex(count, batch):
        w, r = of["W"][at], of["R"][at]
        bias = np.split(of["B"][at] if "B" in of else np.zeros(2 * len(w)), 2)
        h, c = (of[name][at, row] if name in of else np.zeros(hidden) for name in "hc")
        backward = node.attributes.get("direction") == b"reverse" or at == 1
        length = int(of["lengths"][row]) if "lengths" in of else steps
        step = _STEPS[node.op](node.attributes, functions[at * per : (at + 1) * per], of["P"][at] if "P" in of else np.zeros(3 * hidden))
        for t in range(length)[:: -1 if backward else 1]:
            y[t, at, row], c = h, c = step(w @ x[t, row] + bias[0], r, h, c, bias[1])
        last[:, at, row] = h, c
    return [one.astype(node.inputs[0].dtype) for one in (y, *last)[: node.outputs]]


def _lstm(given: Attributes, functions: Sequence[Callable[[Any], Any]], peepholes: Any) -> Callable[..., Any]:
    f, g, h_of = functions
    p_i, p_o, p_f = np.split(peepholes, 3)

    def step(sums: Any, r: Any, h: Any, c: Any, bias: Any) -> Any:
        i, o, forget, new = np.split(sums + r @ h + bias, 4)
        i = f(i + p_i * c)
        forget = 1 - i if given.get("input_forget") else f(forget + p_f * c)
        c = forget * c + i * g(new)
        return f(o + p_o * c) * h_of(c), c

    return step


def _gru(given: Attributes, functions: Sequence[Callable[[Any], Any]], peepholes: Any) -> Callable[..., Any]:
    f, g = functions

    def step(sums: Any, r: Any, h: Any, c: Any, bias: Any) -> Any:
        (x_z, x_r, x_n), (r_z, r_r, r_n), (b_z, b_r, b_n) = (np.split(one, 3) for one in (sums, r, bias))
        z, reset = f(x_z + r_z @ h + b_z), f(x_r + r_r @ h + b_r)
        n = g(x_n + (reset * (r_n @ h + b_n) if given.get("linear_before_reset") else r_n @ (reset * h) + b_n))
        return (1 - z) * n + z * h, c

    return step


def _rnn(given: Attributes, functions: Sequence[Callable[[Any], Any]], peepholes: Any) -> Callable[..., Any]:
    return lambda sums, r, h, c, bias: (functions[0](sums + r @ h + bias), c)


_STEPS = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}
