# SPDX-License-Identifier: Apache-2.0
"""A sum of two quantised values becomes part of the convolution that computes one of them: `IntegerConv (x, residual)`, attribute `pair`.

The layer stands where the sum did, as the residual may be computed last. A value that another operator reads, too, stays, as does a sum
that no factors compute (`byte_sum_of`)."""

from collections.abc import Callable
from typing import Any

from pysim.network.graph import Graph, Node
from pysim.network.integers.layers import stored_whole
from pysim.runtime.integer_steps import byte_sum_of


def with_residuals(graph: Graph, adds: Callable[[Node, Graph], bool]) -> Graph:
    """Every sum in a convolution that alone makes one of its operands, if its plan `adds`; of two, in the later one, whose result has just
    been written."""
    users, makers = graph.users(), {node.output: (at, node) for at, node in enumerate(graph.nodes)}
    nodes: dict[int, Node] = dict(enumerate(graph.nodes))
    for at, node in enumerate(graph.nodes):
        found = [makers[name] for name in node.inputs if name in makers] if node.op == "IntegerPair" else []
        able = [(place, one) for place, one in found if _makes(one, node, graph) and len(users[one.output]) == 1 and adds(one, graph)]
        if not able or node.attributes["multiply"] or node.inputs[0] == node.inputs[1] or graph.constants.keys() & {*node.inputs}:
            continue
        place, conv = max(able, key=lambda one: one[0])
        first = node.inputs.index(conv.output)
        a, b, y = node.attributes["of"]
        pair = ((b, a, y) if first else (a, b, y), node.attributes["low"], node.attributes["high"])
        if byte_sum_of(*pair) is None:
            continue
        absorbed = (*conv.absorbed, node.name, *node.absorbed)
        about: dict[str, Any] = {**conv.attributes, "pair": pair}
        nodes[at] = conv._replace(
            inputs=(conv.inputs[0], node.inputs[1 - first]), outputs=node.outputs, attributes=about, absorbed=absorbed
        )
        del nodes[place]
    return graph._replace(nodes=tuple(nodes[at] for at in sorted(nodes)))


def _makes(node: Node, pair: Node, graph: Graph) -> bool:
    """Whether a node is a convolution of a quantised image to bytes, of the shape of both operands."""
    sums = node.attributes["sums"] if node.op == "IntegerConv" and len(node.inputs) == 1 else None
    if sums is None or sums.to is None or sums.factors is not None or not stored_whole(sums):
        return False
    shapes = {graph.tensors[name].shape for name in (*pair.inputs, pair.output)}
    return len(shapes) == 1 and node.output not in graph.outputs
