# SPDX-License-Identifier: Apache-2.0
"""Products of two computed values of bytes, and softmax of bytes, as one operator each:

    Dequantize, Dequantize, MatMul, Quantize            ->  IntegerProducts (a, b)    `of`: what both and the result stand for
    the same of whole numbers and a QuantizeAffine (QLinearMatMul)
    Dequantize, Softmax over the last axis, Quantize    ->  IntegerSoftmax (x)        `of`: what it and the result stand for

Sums are exact, and rounded once with the product of the three scales, as ONNX Runtime rounds them; a softmax multiplies by the reciprocal
of its sum and of its result's scale.
"""

import math

import numpy as np

from pysim.network.graph import Graph, Node, live
from pysim.runtime.integer_steps import LONGEST_ROW, MOST_PRODUCTS, Quantity, Sums


def with_products(graph: Graph, softmax: bool) -> Graph:
    """The graph with such operators. `softmax`: quotients may be products with a reciprocal."""
    found = _Products(graph)
    replaced = {node.output: made for node in graph.nodes if (made := found.of(node, softmax)) is not None}
    return live(graph._replace(nodes=tuple(replaced.get(node.outputs[0], node) for node in graph.nodes))) if replaced else graph


class _Products:
    def __init__(self, graph: Graph) -> None:
        self._graph, self._users, self._makers = graph, graph.users(), {name: node for node in graph.nodes for name in node.outputs if name}

    def of(self, node: Node, softmax: bool) -> Node | None:
        """What replaces a Quantize, or a QuantizeAffine of one scale."""
        if node.op not in ("Quantize", "QuantizeAffine") or len(self._users.get(node.inputs[0], ())) != 1:
            return None
        made = self._makers.get(node.inputs[0])
        if made is None or "reference" in made.attributes:
            return None
        if made.op == "MatMul":
            return self._product(node, made)
        return self._softmax(node, made) if softmax and made.op == "Softmax" and node.op == "Quantize" else None

    def _bytes(self, name: str) -> tuple[str, Quantity] | None:
        made = self._makers.get(name)
        return (made.inputs[0], made.attributes["of"]) if made is not None and made.op == "Dequantize" else None

    def _product(self, node: Node, made: Node) -> Node | None:
        a, b = (self._bytes(name) for name in made.inputs)
        if a is None or b is None or made.attributes.keys() - {"whole"} or (found := _result(node, a[1], b[1])) is None:
            return None
        left, right = (self._graph.tensors[name].shape for name in (a[0], b[0]))
        fits = min(len(left), len(right)) >= 2 and left[:-2] == right[:-2] and left[-1] == right[-2] and left[-1] <= MOST_PRODUCTS
        if not fits or not math.prod((*left, *right)) or not 0 < found[1] < math.inf:
            return None
        about = {"of": (a[1], b[1], found[0]), "scale": found[1]}
        return Node("IntegerProducts", made.name, (a[0], b[0]), node.outputs, about, (*node.absorbed, *made.absorbed, node.name))

    def _softmax(self, node: Node, made: Node) -> Node | None:
        x, shape = self._bytes(made.inputs[0]), self._graph.tensors[made.inputs[0]].shape
        last = tuple(made.attributes.get("axes", ())) == (len(shape) - 1,)
        if x is None or not last or not 0 < shape[-1] <= LONGEST_ROW or not math.prod(shape):
            return None
        about = {"of": (x[1], node.attributes["of"])}
        return Node("IntegerSoftmax", made.name, (x[0],), node.outputs, about, (*node.absorbed, *made.absorbed, node.name))


def _result(node: Node, a: Quantity, b: Quantity) -> tuple[Quantity, float] | None:
    """What the bytes of a Quantize stand for, or of a QuantizeAffine of one scale, and what sums are multiplied by."""
    if node.op == "Quantize":
        of: Quantity = node.attributes["of"]
        return of, float(np.float32(a.scale) * np.float32(b.scale) / np.float32(of.scale))
    sums: Sums = node.attributes["sums"]
    single = sums.scale.size == 1 and not sums.shift.any() and not sums.offset.any() and sums.factors is None and a.scale == b.scale == 1
    if not single or sums.to is None or (sums.low, sums.high) != (sums.to.least, sums.to.most):
        return None
    return sums.to, float(sums.scale.reshape(()))
