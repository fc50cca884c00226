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


def _by_channel(node: Node, graph: Graph, constants: Constants, bytes_of: str) -> tuple[str, Quantity] | None:
    """A constant with the scales of a conversion whose scales belong to the places of an axis, and what is left of scale 1; None where
    zeros differ, or of weights."""
    scales, zeros = constants.get(node.inputs[1]), constants.get(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
    x, y, dtype = graph.tensors[node.inputs[0]], graph.tensors[node.output], graph.tensors[bytes_of].dtype
    if dtype not in BYTES or {x.dtype, y.dtype} != {np.dtype(np.float32), dtype} or node.inputs[0] in constants or scales is None:
        return None
    if scales.ndim != 1 or scales.size == 1 or scales.dtype != np.float32 or not ((scales > 0) & np.isfinite(scales)).all():
        return None
    if (zeros is None) != (len(node.inputs) < 3 or not node.inputs[2]) or (zeros is not None and np.unique(zeros).size != 1):
        return None
    if node.attributes.get("block_size") or node.attributes.get("precision") not in _SINGLE:
        return None
    axis = node.attributes.get("axis", 1) % len(x.shape)
    shaped = scales.reshape(-1, *[1] * (len(x.shape) - 1 - axis))
    return constant_of(constants, node, "scales", shaped), Quantity(1.0, 0 if zeros is None else int(zeros.reshape(-1)[0]), dtype)


def quantize_by_channel(node: Node, graph: Graph, constants: Constants) -> Parts | None:
    """A division, and a conversion of scale 1."""
    if (found := _by_channel(node, graph, constants, node.output)) is None:
        return None
    (x, shape), divided = (node.inputs[0], graph.tensors[node.output].shape), f"{node.output}:divided"
    return [
        (Node("Div", f"{node.name}:divided", (x, found[0]), (divided,)), Tensor(shape, np.dtype(np.float32))),
        (Node("Quantize", node.name, (divided,), node.outputs, {"of": found[1]}), graph.tensors[node.output]),
    ]


def dequantize_by_channel(node: Node, graph: Graph, constants: Constants) -> Parts | None:
    """A conversion of scale 1, and a product."""
    if (found := _by_channel(node, graph, constants, node.inputs[0])) is None:
        return None
    whole, y = f"{node.output}:whole", graph.tensors[node.output]
    return [
        (Node("Dequantize", f"{node.name}:whole", node.inputs[:1], (whole,), {"of": found[1]}), y),
        (Node("Mul", node.name, (whole, found[0]), node.outputs), y),
    ]


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
