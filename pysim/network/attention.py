# SPDX-License-Identifier: Apache-2.0
"""Fuses attention into one operator, so that no matrix of scores is made:

    MatMul(q, k'), an Add of a mask, Softmax over the last axis, MatMul with v      -> Attention (q, k, v[, mask])

attributes: `of`, the quantities of q and k if both are bytes, whose Dequantize is part of the operator, else None; `alpha`, the factor of
the scores; `orders` and `result`, the transpositions of the products (`native_ops.arrays`); `zero_rows`: Where(IsNaN(shares), 0, shares)
stood behind the Softmax; `narrow`: q, k, v and shares are bf16 in the model. Nothing else may read the values between.

Worked number: 12 heads of 128 queries and keys have 196,608 scores, 768 KiB; 6 rows at a time, 3 KiB.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pysim.network.graph import Array, Graph, Node
from pysim.runtime.attention import attention_step
from pysim.runtime.steps import Step


def fuse_attention(graph: Graph) -> Graph:
    """The graph with every attention as one node."""
    found = _Attentions(graph)
    for at, node in enumerate(graph.nodes):
        if node.op == "MatMul" and "reference" not in node.attributes:
            found.visit(at, node)
    return graph._replace(nodes=tuple(node for node in found.nodes if node is not None))


class _Attentions:
    """`nodes` has None for absorbed nodes."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._makers, self._users = graph, graph.makers(), graph.users()
        self.nodes: list[Node | None] = list(graph.nodes)

    def visit(self, at: int, last: Node) -> None:
        """Replaces the product of shares and values at `at`, if its shares are the softmax of a product."""
        orders, result = last.attributes.get("orders", (None, None)), last.attributes.get("result")
        shares, v = last.inputs
        if orders[0] is not None or last.attributes.get("alpha", 1.0) != 1 or not self._graph.tensors[last.output].native:
            return
        absorbed = list[Node]()
        zero_rows = (guarded := self._without_nan(shares, absorbed)) is not None
        softmax = self._alone(guarded or shares, "Softmax", 2 if zero_rows else 1)
        scores = softmax.inputs[0] if softmax else ""
        rank = len(self._graph.tensors[scores].shape) if softmax else 0
        if softmax is None or rank < 2 or [*softmax.attributes["axes"]] != [rank - 1]:
            return
        absorbed.append(softmax)
        product, mask = self._alone(scores, "MatMul"), ""
        if product is None and (added := self._alone(scores, "Add")) is not None and not added.attributes.get("activation"):
            absorbed.append(added)
            product, mask = self._masked(added)
        if product is None or "reference" in product.attributes or product.attributes.get("result") is not None:
            return
        sides = product.attributes.get("orders", (None, None))
        about: dict[str, Any] = {"alpha": product.attributes.get("alpha", 1.0), "orders": (*sides, orders[1]), "result": result}
        about |= {"zero_rows": zero_rows, "of": None}
        inputs = (*product.inputs, v, *([mask] if mask else []))
        node = Node("Attention", last.name, inputs, last.outputs, about)
        whole = [self._alone(name, "Dequantize") for name in product.inputs]
        if all(whole) and len({*product.inputs}) == 2:
            scored = node._replace(inputs=(*(one.inputs[0] for one in whole if one), *inputs[2:]))
            scored = scored.having(of=tuple(one.attributes["of"] for one in whole if one))
            if _bound(self._graph, scored) is not None:
                node = scored
                absorbed += [one for one in whole if one]
                node = self._reading_moved(node, absorbed)
        if _bound(self._graph, node) is None:
            return
        names = [name for one in (product, *absorbed[::-1]) for name in (one.name, *one.absorbed)]
        self.nodes[at] = node._replace(absorbed=(*names, *last.absorbed))
        for one in (product, *absorbed):
            self.nodes[self._makers[one.output]] = None

    def _reading_moved(self, node: Node, absorbed: list[Node]) -> Node:
        """The attention with transpositions of its bytes as its own; adds these to `absorbed`."""
        for side in (0, 1):
            moved, orders = self._alone(node.inputs[side], "Transpose"), [*node.attributes["orders"]]
            if moved is None or orders[side] is not None or "perm" not in moved.attributes or moved in absorbed:
                continue
            orders[side] = tuple(moved.attributes["perm"])
            inputs = [moved.inputs[0] if at == side else name for at, name in enumerate(node.inputs)]
            reading = node._replace(inputs=tuple(inputs)).having(orders=tuple(orders))
            if _bound(self._graph, reading) is not None:
                node = reading
                absorbed.append(moved)
        return node

    def _masked(self, added: Node) -> tuple[Node | None, str]:
        """(the product, the mask) of a sum of both that has the product's shape."""
        for x, mask in (added.inputs, added.inputs[::-1]):
            product = self._alone(x, "MatMul")
            if product is not None and self._graph.tensors[x] == self._graph.tensors[added.output]:
                return product, mask
        return None, ""

    def _without_nan(self, name: str, absorbed: list[Node]) -> str | None:
        """The shares x of Where(IsNaN(x), 0, x); adds both nodes to `absorbed`. None if the value is another."""
        where = self._alone(name, "Where")
        test = self._alone(where.inputs[0], "IsNaN") if where and len(where.inputs) == 3 else None
        if where is None or test is None or test.inputs[0] != where.inputs[2]:
            return None
        zero = self._graph.constants.get(where.inputs[1])
        if zero is None or zero.size != 1 or zero.any() or self._graph.tensors[test.inputs[0]] != self._graph.tensors[name]:
            return None
        absorbed += [where, test]
        return test.inputs[0]

    def _alone(self, name: str, op: str, readers: int = 1) -> Node | None:
        """The node that computes a value, if it is such an operator and the value is read so often."""
        at = self._makers.get(name)
        node = self.nodes[at] if at is not None else None
        return node if node is not None and node.op == op and len(self._users[name]) == readers else None


def attention(out: Array, inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Step | None:
    q, k, v = (x if order is None else x.transpose(order) for x, order in zip(inputs, attributes["orders"], strict=False))
    result = attributes["result"]
    y = out if result is None else out.transpose(np.argsort(result))
    mask = inputs[3] if len(inputs) > 3 else None
    of, narrow = attributes.get("of"), attributes.get("narrow", False)
    return attention_step(y, q, k, v, mask, attributes["alpha"], attributes["zero_rows"], of, narrow)


def _bound(graph: Graph, node: Node) -> Step | None:
    """The step on placeholder memory, to see whether the library takes these shapes."""
    out, *inputs = (np.empty(graph.tensors[name].shape, graph.tensors[name].dtype) for name in (node.output, *node.inputs))
    return attention(out, inputs, node.attributes)
