# SPDX-License-Identifier: Apache-2.0
"""What exporters write as several nodes because their opset has no operator for it: GELU by erf, before opset 20.

Mul(Mul(x, Add(Erf(Div(x, sqrt 2)), 1)), 1/2)    with its operands in any order, and a product by 1/sqrt 2 for the quotient
"""

from math import sqrt

import numpy as np

from pysim.models.graph import Graph, Node, live


def with_gelus(graph: Graph) -> Graph:
    """The graph with a Gelu in the place of the last node of each, where nobody else reads what lies between."""
    found = _Gelus(graph)
    nodes = tuple(found.gelu(node) or node for node in graph.nodes)
    return live(graph._replace(nodes=nodes)) if nodes != graph.nodes else graph


class _Gelus:
    def __init__(self, graph: Graph) -> None:
        self._graph, self._makers, self._users = graph, graph.makers(), graph.users()

    def gelu(self, half: Node) -> Node | None:
        """The Gelu that ends with this node."""
        product = self._alone(self._by(half, ("Mul",), 0.5), "Mul")
        for x, other in (product.inputs, product.inputs[::-1]) if product else ():
            erf = self._alone(self._by(self._alone(other, "Add"), ("Add",), 1.0), "Erf")
            scaled = self._alone(erf.inputs[0], "Div", "Mul") if erf else None
            if (
                scaled
                and x in (self._by(scaled, ("Div",), sqrt(2)), self._by(scaled, ("Mul",), sqrt(0.5)))
                and self._graph.tensors[x].native
            ):
                return Node("Gelu", half.name, (x,), half.outputs)
        return None

    def _alone(self, name: str | None, *ops: str) -> Node | None:
        """The node of one of these kinds that makes a value which is read once."""
        at = self._makers.get(name or "")
        node = self._graph.nodes[at] if at is not None and name and len(self._users.get(name, ())) == 1 else None
        return node if node and node.op in ops else None

    def _by(self, node: Node | None, ops: tuple[str, ...], number: float) -> str | None:
        """The operand of a node whose other operand is this number; that of a quotient stands second."""
        if node is None or node.op not in ops or len(node.inputs) != 2:
            return None
        for x, other in (node.inputs, node.inputs[::-1])[: 1 if node.op == "Div" else 2]:
            value = self._graph.constants.get(other)
            if value is not None and value.size == 1 and np.isclose(value.reshape(()), number, rtol=1e-6, atol=0):
                return x if self._graph.tensors[x].shape == self._graph.tensors[node.output].shape else None
        return None
