# SPDX-License-Identifier: Apache-2.0
"""ONNX's conversions from and to bytes, and its convolution of bytes, as nodes of the network (`pysim.network.integers` combines them)."""

import math

import numpy as np

from pysim.errors import ProblemError
from pysim.network.graph import Graph, Node, Tensor
from pysim.network.lowering.array_operators import Constants, Parts, constant_of
from pysim.onnx import layers
from pysim.onnx.shape_inference import ValueType
from pysim.runtime.integer_steps import BYTES, Quantity

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
