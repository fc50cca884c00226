# SPDX-License-Identifier: Apache-2.0
"""ONNX's conversions from and to bytes, and its convolution of bytes, as nodes of the network (`pysim.network.integers` combines them)."""

import math
from typing import Any

import numpy as np

from pysim.errors import ProblemError
from pysim.network.graph import Graph, Node, Tensor
from pysim.network.lowering.array_operators import Constants, Parts, constant_of
from pysim.onnx import layers
from pysim.onnx.shape_inference import ValueType
from pysim.runtime.integer_steps import BYTES, Quantity, Sums

_WHOLE = 1 << 24  # float32 adds whole numbers below this exactly
_SINGLE = (None, 0, 1)  # precisions: unset, or float32


def _quantity(node: Node, graph: Graph, constants: Constants, bytes_of: str) -> Node | None:
    """A conversion from or to bytes, whose scale and zero are one constant each."""
    scale, zero = constants.get(node.inputs[1]), constants.get(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
    x, y, dtype = graph.tensors[node.inputs[0]], graph.tensors[node.output], graph.tensors[bytes_of].dtype
    if dtype not in BYTES or {x.dtype, y.dtype} != {np.dtype(np.float32), dtype}:
        return None
    if scale is None or scale.size != 1 or scale.dtype != np.float32 or (zero is None) != (len(node.inputs) < 3 or not node.inputs[2]):
        return None
    if (zero is not None and zero.size != 1) or node.attributes.get("block_size") or node.attributes.get("precision") not in _SINGLE:
        return None
    of = Quantity(float(scale.reshape(())), 0 if zero is None else int(zero.reshape(())), dtype)
    if not 0 < of.scale < math.inf:
        return None
    return Node(node.op.removesuffix("Linear"), node.name, node.inputs[:1], node.outputs, {"of": of})


def _by_channel(node: Node, graph: Graph, constants: Constants, bytes_of: str) -> tuple[str, Quantity, str] | None:
    """A constant with the scales of a conversion whose scales belong to the places of an axis, what is left of scale 1, and a constant
    with the zeros if they differ from place to place, else ""; None of weights."""
    scales, zeros = constants.get(node.inputs[1]), constants.get(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
    x, y, dtype = graph.tensors[node.inputs[0]], graph.tensors[node.output], graph.tensors[bytes_of].dtype
    if dtype not in BYTES or {x.dtype, y.dtype} != {np.dtype(np.float32), dtype} or node.inputs[0] in constants or scales is None:
        return None
    if scales.ndim != 1 or scales.size == 1 or scales.dtype != np.float32 or not ((scales > 0) & np.isfinite(scales)).all():
        return None
    if (zeros is None) != (len(node.inputs) < 3 or not node.inputs[2]) or (zeros is not None and zeros.size not in (1, scales.size)):
        return None
    if node.attributes.get("block_size") or node.attributes.get("precision") not in _SINGLE:
        return None
    axis = node.attributes.get("axis", 1) % len(x.shape)
    along = (-1, *[1] * (len(x.shape) - 1 - axis))
    differ = zeros is not None and np.unique(zeros).size > 1
    zero = 0 if zeros is None or differ else int(zeros.reshape(-1)[0])
    places = constant_of(constants, node, "zeros", zeros.reshape(along).astype(np.float32)) if zeros is not None and differ else ""
    return constant_of(constants, node, "scales", scales.reshape(along)), Quantity(1.0, zero, dtype), places


def quantize_by_channel(node: Node, graph: Graph, constants: Constants) -> Parts | None:
    """A division, and a conversion of scale 1. Zeros that differ are added to rounded quotients, which the conversion then bounds."""
    if (found := _by_channel(node, graph, constants, node.output)) is None:
        return None
    numbers = Tensor(graph.tensors[node.output].shape, np.dtype(np.float32))
    (scales, of, zeros), name = found, f"{node.output}:divided"
    parts = [(Node("Div", name, (node.inputs[0], scales), (name,)), numbers)]
    for op, more in (("Round", ()), ("Add", (zeros,))) if zeros else ():
        name, last = f"{node.output}:{op}", name
        parts.append((Node(op, name, (last, *more), (name,)), numbers))
    return [*parts, (Node("Quantize", node.name, (name,), node.outputs, {"of": of}), graph.tensors[node.output])]


def dequantize_by_channel(node: Node, graph: Graph, constants: Constants) -> Parts | None:
    """A conversion of scale 1, less the zeros if they differ, and a product."""
    if (found := _by_channel(node, graph, constants, node.inputs[0])) is None:
        return None
    (scales, of, zeros), name, y = found, f"{node.output}:whole", graph.tensors[node.output]
    parts = [(Node("Dequantize", name, node.inputs[:1], (name,), {"of": of}), y)]
    if zeros:
        name, last = f"{node.output}:centred", name
        parts.append((Node("Sub", name, (last, zeros), (name,)), y))
    return [*parts, (Node("Mul", node.name, (name, scales), node.outputs), y)]


def quantize(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    return _quantity(node, graph, constants, node.output)


def dequantize(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    return _quantity(node, graph, constants, node.inputs[0])


def conv_integer(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    """The node with its problem; it runs by its definition unless it becomes part of an integer layer."""
    if len(graph.tensors[node.inputs[0]].shape) != 4:
        return node
    x, w = (ValueType(graph.tensors[name].shape, "INT8") for name in node.inputs[:2])
    try:
        problem = layers.conv_of(x, w, node.attributes, "s8")
    except ProblemError:
        return node
    return node.having(problem=problem)


def product_of_bytes(node: Node, graph: Graph, constants: Constants) -> Parts | None:
    """A QLinearMatMul of two values as the product of their whole numbers, exact in float32, or in float64 where sums may be larger, and
    one pass that multiplies by the scales and rounds.

    Worked number: 64 products of bytes whose zeros are 128, each at most 128 * 128, have sums up to 2^20.
    """
    a, b, y = (graph.tensors[name] for name in (node.inputs[0], node.inputs[3], node.output))
    sides = [_single(constants, node.inputs[at], node.inputs[at + 1], of.dtype) for at, of in ((1, a), (4, b), (6, y))]
    if any(one is None for one in sides) or node.inputs[0] in constants or min(len(a.shape), len(b.shape)) < 2 or not a.nbytes * b.nbytes:
        return None
    of_a, of_b, of_y = (one for one in sides if one)
    largest = [max(of.most - of.zero, of.zero - of.least) for of in (of_a, of_b)]
    by = np.float32(of_a.scale) * np.float32(of_b.scale) / np.float32(of_y.scale)
    if not 0 < by < math.inf:
        return None
    exact = a.shape[-1] * largest[0] * largest[1] < _WHOLE
    number, wide, parts, names = np.dtype(np.float32), np.dtype(np.float32 if exact else np.float64), Parts(), list[str]()
    for at, x, of in ((0, node.inputs[0], of_a), (1, node.inputs[3], of_b)):
        shape = graph.tensors[x].shape
        names.append(f"{node.output}:{at}")
        parts.append((Node("Dequantize", names[-1], (x,), (names[-1],), {"of": of._replace(scale=1.0)}), Tensor(shape, number)))
        if not exact:
            names[-1] = f"{node.output}:wide {at}"
            parts.append((Node("Cast", names[-1], parts[-1][0].outputs, (names[-1],)), Tensor(shape, wide)))
    last = f"{node.output}:product"
    parts.append((Node("MatMul", node.name, tuple(names), (last,), {"whole": True}), Tensor(y.shape, wide)))
    if not exact:
        last, product = f"{node.output}:number", last
        parts.append((Node("Cast", last, (product,), (last,)), Tensor(y.shape, number)))
    zeros = np.zeros(1, np.float32), np.zeros(1, np.int32)
    sums = Sums(np.full(1, by, np.float32), *zeros, of_y, of_y.least, of_y.most)
    return [*parts, (Node("QuantizeAffine", f"{node.name}:rounded", (last,), node.outputs, {"sums": sums, "inner": math.prod(y.shape)}), y)]


def _single(constants: Constants, scale: str, zero: str, dtype: "np.dtype[Any]") -> Quantity | None:
    """What bytes stand for by one constant scale, in float32, and one constant zero."""
    numbers, zeros = constants.get(scale), constants.get(zero)
    if dtype not in BYTES or numbers is None or zeros is None or numbers.size != 1 or zeros.size != 1 or numbers.dtype != np.float32:
        return None
    of = Quantity(float(numbers.reshape(())), int(zeros.reshape(())), dtype)
    return of if 0 < of.scale < math.inf else None


EXPANSIONS = {"DequantizeLinear": dequantize_by_channel, "QLinearMatMul": product_of_bytes, "QuantizeLinear": quantize_by_channel}
LOWER = {"ConvInteger": conv_integer, "DequantizeLinear": dequantize, "QuantizeLinear": quantize}
