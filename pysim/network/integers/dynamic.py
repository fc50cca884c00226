# SPDX-License-Identifier: Apache-2.0
"""Dynamically quantised layers: a DynamicQuantizeLinear, and a MatMulInteger or ConvInteger of its result with constant weights, together
with what ONNX Runtime's tool writes behind it:

    Cast to float32, times (x_scale w_scale), perhaps plus a bias        ->  IntegerLinear or IntegerConv (x, scale, zero)

The numbers are those of the single operators: the INT32 sum of (x - zero) w is exact; then a product and a sum, each rounded.
"""

import numpy as np

from pysim.network.graph import Array, Graph, Node, Quantized, live
from pysim.network.integers.forms import Rows, centred, form_of, wrapped
from pysim.runtime.integer_steps import Sums


def with_dynamic(graph: Graph, rows: Rows) -> Graph:
    """The graph with dynamically quantised layers as one node each."""
    dynamic = _Dynamic(graph, rows)
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.op == "DynamicQuantizeLinear" and graph.tensors[node.inputs[0]].dtype == np.float32:
            nodes.append(Node(node.op, node.name, node.inputs, node.outputs))
        else:
            nodes.append(dynamic.layers.get(node.output, node))
    return live(graph._replace(nodes=tuple(nodes)))


class _Dynamic:
    """`layers`: what replaces the last node of each pattern, by the name of its result."""

    def __init__(self, graph: Graph, rows: Rows) -> None:
        self._graph, self._users, self._rows = graph, graph.users(), rows
        self._makers = {name: node for node in graph.nodes for name in node.outputs if name}
        found = [self._layer(node) for node in graph.nodes if node.op in ("ConvInteger", "MatMulInteger")]
        self.layers = {layer.output: layer for layer in found if layer}

    def _reader(self, name: str, *ops: str) -> Node | None:
        """The one node that reads a value, if its op is one of these."""
        at = self._users.get(name, ())
        node = self._graph.nodes[at[0]] if len(at) == 1 and at[0] < len(self._graph.nodes) else None
        return node if node and node.op in ops else None

    def _layer(self, node: Node) -> Node | None:
        inputs, tensors = (*node.inputs, "", "")[:4], self._graph.tensors
        made, weights = self._makers.get(inputs[0]), self._weights(node, inputs[1], inputs[3])
        if made is None or made.op != "DynamicQuantizeLinear" or inputs[2] != made.outputs[2] or weights is None:
            return None
        cast = self._reader(node.output, "Cast")
        last = self._reader(cast.output, "Mul") if cast and tensors[cast.output].dtype == np.float32 else None
        scale = self._scale(cast, last, made.outputs[1]) if cast and last else None
        if cast is None or last is None or scale is None or tensors[last.output].shape != tensors[node.output].shape:
            return None
        about = Node("Conv" if node.op == "ConvInteger" else "Linear", node.name, node.inputs, last.outputs, node.attributes)
        form, shift = form_of(about, tensors[inputs[0]], weights), None
        count = len(weights.values)
        how = form.run_on(tensors[inputs[0]], self._rows, dynamic=True) if form is not None and scale.size in (1, count) else None
        if form is None or how is None:
            return None
        if (add := self._reader(last.output, "Add", "Affine")) is not None and (shift := self._shift(add, last, count)) is not None:
            last = add
        numbers = [np.ascontiguousarray(np.broadcast_to(one.reshape(-1), count), np.float32) for one in (scale, _none(shift))]
        exact = how["dtype"] == "f32"  # of numbers without the zero
        sums = Sums(numbers[0], numbers[1], wrapped(0 * form.sums if exact else -form.sums), None)
        what = {**how, "zero": 0, "sums": sums}
        op = "IntegerConv" if node.op == "ConvInteger" else "IntegerLinear"
        names = tuple(dict.fromkeys((cast.name, last.name)))
        return Node(op, node.name, (inputs[0], made.outputs[1], made.outputs[2]), last.outputs, what, names)

    def _weights(self, node: Node, name: str, zero: str) -> Quantized | None:
        """Of a layer, one filter a row; None if they are no constants, or more than bytes without their zero point."""
        constants = self._graph.constants
        if name not in constants or (zero and zero not in constants) or (node.op == "MatMulInteger" and constants[name].ndim != 2):
            return None
        values = constants[name]
        at = constants[zero] if zero else np.zeros((), values.dtype)
        found = Quantized(values, np.ones((), np.float32), at, 0)
        found = found._replace(axis=1).transposed() if node.op == "MatMulInteger" else found
        return found if centred(found) is not None else None

    def _scale(self, cast: Node, product: Node, of: str) -> Array | None:
        """The weights' scale, where a product is the cast sum times (`of` times that scale)."""
        other = product.inputs[1] if product.inputs[0] == cast.output else product.inputs[0]
        scales = self._makers.get(other)
        if scales is None or scales.op != "Mul" or of not in scales.inputs:
            return None
        name = scales.inputs[1] if scales.inputs[0] == of else scales.inputs[0]
        found = self._graph.constants.get(name)
        return found if found is not None and found.dtype == np.float32 else None

    def _shift(self, add: Node, product: Node, count: int) -> Array | None:
        """The bias that a node adds to each filter; None if it does something else."""
        constants, shape = self._graph.constants, self._graph.tensors[product.output].shape
        if self._graph.tensors[add.output].shape != shape:
            return None
        if add.op == "Affine":
            scale, shift = (constants.get(name) for name in add.inputs[1:])
            return shift if scale is not None and (scale == 1).all() and shape[1:2] == (count,) else None
        value = constants.get(add.inputs[1] if add.inputs[0] == product.output else add.inputs[0])
        if value is None or (value.size != 1 and value.shape[-1:] != (count,)) or value.size not in (1, count) or shape[-1] != count:
            return None
        return value


def _none(shift: Array | None) -> Array:
    return np.zeros((), np.float32) if shift is None else shift
