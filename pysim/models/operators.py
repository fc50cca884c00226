# SPDX-License-Identifier: Apache-2.0
"""Operators that are no convolution and no product, by NumPy: run(out, inputs, attributes) writes into the array `out`.

They mean what https://onnx.ai/onnx/operators/ says. The frequent ones are written here so that they allocate little; pools go along one
axis after the other, a slice for each tap. Every other standard operator is run by the onnx package's own definition of it
(`onnx.reference`), which is right and often slow.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pysim.errors import MissingError, ProblemError, printable
from pysim.models.graph import Array, Node

Attributes = Mapping[str, Any]
Run = Callable[[Array, Sequence[Array], Attributes], object]

_CHUNK = 1 << 17  # elements that steps go over at once: 512 KiB of float32 stay in a second-level cache


def taps(size: int, out: int, kernel: int, stride: int, dilation: int, before: int) -> Iterator[tuple[slice, slice]]:
    """For each tap of a window along an axis: which outputs read an input through it, and which inputs those are."""
    for tap in range(kernel):
        shift = tap * dilation - before
        first = max(0, -(shift // stride) if shift < 0 else 0)
        last = min(out, (size - 1 - shift) // stride + 1)
        if first < last:
            yield slice(first, last), slice(first * stride + shift, (last - 1) * stride + shift + 1, stride)


def _slide(x: Array, out: Array, attributes: Attributes, combine: Any, start: float) -> None:
    """Combines the windows of the last two axes of x into out, as many images at once as stay in a cache."""
    images, results = x.reshape(-1, *x.shape[-2:]), out.reshape(-1, *out.shape[-2:])
    step = max(1, _CHUNK // (x.shape[-2] * x.shape[-1]))
    rows = np.empty((step, out.shape[-2], x.shape[-1]), x.dtype)
    for first in range(0, len(images), step):
        piece = slice(first, first + step)
        _slide_piece(images[piece], rows[: len(images[piece])], results[piece], attributes, combine, start)


def _slide_piece(x: Array, rows: Array, out: Array, attributes: Attributes, combine: Any, start: float) -> None:
    """First down the columns into `rows`, then along these."""
    rows.fill(start)
    top, left = attributes["pads"][:2]
    (kernel_h, kernel_w), (stride_h, stride_w), (dilation_h, dilation_w) = (attributes[n] for n in ("kernel_shape", "strides", "dilations"))
    for to, of in taps(x.shape[-2], out.shape[-2], kernel_h, stride_h, dilation_h, top):
        combine(rows[..., to, :], x[..., of, :], out=rows[..., to, :])
    out.fill(start)
    for to, of in taps(x.shape[-1], out.shape[-1], kernel_w, stride_w, dilation_w, left):
        combine(out[..., to], rows[..., of], out=out[..., to])


def _max_pool(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    _slide(inputs[0], out, attributes, np.maximum, -np.inf)


def _average_pool(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    _slide(inputs[0], out, attributes, np.add, 0.0)
    counts = []
    for axis in (0, 1):
        before, after = attributes["pads"][axis], attributes["pads"][axis + 2]
        kernel, stride, dilation = (attributes[name][axis] for name in ("kernel_shape", "strides", "dilations"))
        size, length = inputs[0].shape[2 + axis], out.shape[2 + axis]
        if attributes["count_include_pad"]:
            size, before = size + before + after, 0
        count = np.zeros(length, out.dtype)
        for to, _ in taps(size, length, kernel, stride, dilation, before):
            count[to] += 1
        counts.append(count)
    out /= np.outer(*counts).astype(out.dtype)


def _global_average_pool(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    np.mean(inputs[0], axis=tuple(range(2, inputs[0].ndim)), keepdims=True, out=out)


def _lrn(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    (x,), size, channels = inputs, attributes["size"], inputs[0].shape[1]
    squares, sums = np.square(x), np.zeros_like(x)
    for to, of in taps(channels, channels, size, 1, 1, (size - 1) // 2):
        np.add(sums[:, to], squares[:, of], out=sums[:, to])
    sums *= attributes["alpha"] / size
    sums += attributes["bias"]
    np.power(sums, -attributes["beta"], out=sums)
    np.multiply(x, sums, out=out)


def _softmax(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    axes = tuple(attributes["axes"])
    np.subtract(inputs[0], inputs[0].max(axis=axes, keepdims=True), out=out)
    np.exp(out, out=out)
    out /= out.sum(axis=axes, keepdims=True)


def _concat(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    """Parts that lie in the result already are left where they are."""
    at, axis = 0, attributes["axis"]
    for x in inputs:
        part = out[(*[slice(None)] * axis, slice(at, at + x.shape[axis]))]
        if part.ctypes.data != x.ctypes.data:
            part[...] = x
        at += x.shape[axis]


def _chunks(out: Array, inputs: Sequence[Array]) -> Iterator[tuple[Array, ...]]:
    """Pieces of dense arrays of one shape that stay in a cache while several steps go over them."""
    flat = [x.reshape(-1) for x in (out, *inputs)]
    for start in range(0, out.size, _CHUNK):
        yield tuple(x[start : start + _CHUNK] for x in flat)


def _activate(out: Array, attributes: Attributes) -> None:
    if attributes.get("activation"):
        np.maximum(out, 0, out=out)


def _add(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    a, b = inputs
    if a.shape == b.shape and attributes.get("activation"):
        for to, left, right in _chunks(out, inputs):
            np.add(left, right, out=to)
            _activate(to, attributes)
    else:
        np.add(a, b, out=out)
        _activate(out, attributes)


def _affine(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    x, scale, shift = inputs
    channels = x.shape[1]
    shape = (x.shape[0], channels, -1)
    step = max(1, _CHUNK * channels // max(1, out.size // x.shape[0]))
    for image, to in zip(x.reshape(shape), out.reshape(shape), strict=True):
        for first in range(0, channels, step):
            piece = slice(first, first + step)
            np.multiply(image[piece], scale[piece, None], out=to[piece])
            np.add(to[piece], shift[piece, None], out=to[piece])
            _activate(to[piece], attributes)


def _clip(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    np.clip(inputs[0], attributes["min"], attributes["max"], out=out)


def _sigmoid(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    np.negative(inputs[0], out=out)
    with np.errstate(over="ignore"):  # exp is infinite, and its inverse 0, as it should be
        np.exp(out, out=out)
    out += 1
    np.reciprocal(out, out=out)


def _ufunc(function: Any) -> Run:
    def run(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
        function(*inputs, out=out)

    return run


def _relu(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    np.maximum(inputs[0], 0, out=out)


def _transpose(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    out[...] = inputs[0].transpose(attributes["perm"])


def _copy(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    out[...] = inputs[0].reshape(out.shape)


def _reduce_mean(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    out[...] = np.mean(inputs[0], axis=tuple(attributes["axes"])).reshape(out.shape)


OPERATORS: dict[str, Run] = {
    "Add": _add, "Affine": _affine, "AveragePool": _average_pool, "Clip": _clip, "Concat": _concat, "Div": _ufunc(np.divide),
    "GlobalAveragePool": _global_average_pool, "Identity": _copy, "LRN": _lrn, "MatMul": _ufunc(np.matmul), "MaxPool": _max_pool,
    "Mul": _ufunc(np.multiply), "ReduceMean": _reduce_mean, "Relu": _relu, "Sigmoid": _sigmoid, "Softmax": _softmax,
    "Sub": _ufunc(np.subtract), "Tanh": _ufunc(np.tanh), "Transpose": _transpose, "View": _copy,
}  # fmt: skip
# These read an element of an input before they write the element of the result in its place, and no other.
IN_PLACE = frozenset({"Add", "Affine", "Clip", "Div", "Mul", "Relu", "Sub", "Tanh"})
ACTIVATED = frozenset({"Add", "Affine"})  # which can have a ReLU behind them


def reference(node: Any, opset: int) -> Callable[[Sequence[Array]], Sequence[Array]]:
    """The onnx package's own definition of a node (an onnx.NodeProto). ProblemError where it has none."""
    try:
        import onnx
        from onnx.reference import ReferenceEvaluator
    except ImportError:
        raise MissingError("operators beside the frequent ones need the onnx package: pip install onnx") from None
    given = [name for name in dict.fromkeys(node.input) if name]
    kinds = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in (*given, *filter(None, node.output))]
    graph = onnx.helper.make_graph([node], "one", kinds[: len(given)], kinds[len(given) :])
    opsets = [onnx.helper.make_opsetid(node.domain, opset if node.domain in ("", "ai.onnx") else 1)]
    try:
        ready = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=opsets))
    except Exception as error:  # its own kinds for an unknown operator, domain or version
        raise ProblemError(f'{node.op_type} "{printable(node.name or node.output[0])}" cannot be run: {error}') from None

    def run(inputs: Sequence[Array]) -> Sequence[Array]:
        found: Any = ready.run(None, dict(zip(given, inputs, strict=True)))
        return list(found)

    return run


def by_reference(evaluate: Callable[[Sequence[Array]], Sequence[Array]], names: Sequence[str]) -> Callable[..., None]:
    """A reference as an operator of several outputs; an input that stands twice is given once."""
    first = [names.index(name) for name in dict.fromkeys(names)]

    def run(outs: Sequence[Array], inputs: Sequence[Array]) -> None:
        for out, found in zip(outs, evaluate([inputs[at] for at in first]), strict=False):
            out[...] = found

    return run


def operator(node: Node) -> Run | None:
    """What runs a node here, or None."""
    return OPERATORS.get(node.op)
