# SPDX-License-Identifier: Apache-2.0
"""Values whose shapes are known only when a model runs: the nodes between values of known shapes run as one node.

A region is all nodes that make or read such a value, and what lies between them. It runs node by node by their definitions, on arrays of
any shape. What other nodes read of it, or the model gives, has a known shape, or `pysim.onnx.reading` refuses the model.

Worked number: ReduceSum(Mul(x, x), axes), whose axes are an input, then a Sqrt of a declared shape: the sum has no known shape; ReduceSum
and Sqrt are a region, the Mul is a planned node.
"""

from collections.abc import Callable, Sequence
from typing import Any

from pysim.network.graph import Array, Graph, Node


def with_regions(graph: Graph, is_known: Callable[[str], bool]) -> Graph:
    """The graph with the region as one node behind all that it reads; unchanged if that cannot be done."""
    unknown = {name for node in graph.nodes for name in node.outputs if name and not is_known(name)}
    inside = {at for at, node in enumerate(graph.nodes) if unknown & {*node.inputs, *node.outputs}}
    before, behind = _reached(graph, inside, forward=False), _reached(graph, inside, forward=True)
    inside |= before & behind
    region = [graph.nodes[at] for at in sorted(inside)]
    if any("reference" not in node.attributes for node in region):
        return graph
    others = {name for at, node in enumerate(graph.nodes) if at not in inside for name in node.inputs} | {*graph.outputs}
    made = {name for node in region for name in node.outputs if name}
    outputs = tuple(name for node in region for name in node.outputs if name in others)
    if not outputs or not all(map(is_known, outputs)):
        return graph
    inputs = tuple(dict.fromkeys(name for node in region for name in node.inputs if name and name not in made))
    last = region[-1]
    one = Node(f"onnx.{last.op}", last.name, inputs, outputs, {"reference": _run(region, inputs, outputs)})
    first = [node for at, node in enumerate(graph.nodes) if at not in inside and at not in behind]
    rest = [node for at, node in enumerate(graph.nodes) if at not in inside and at in behind]
    return graph._replace(nodes=(*first, one, *rest))


def _reached(graph: Graph, start: set[int], forward: bool) -> set[int]:
    """The nodes that read, or that make, what nodes of `start` compute from, also by way of other nodes."""
    found, names = set[int](), set[str]()
    order = range(len(graph.nodes)) if forward else range(len(graph.nodes))[::-1]
    for at in order:
        node = graph.nodes[at]
        met, follow = (node.inputs, node.outputs) if forward else (node.outputs, node.inputs)
        if names & {*filter(None, met)}:
            found.add(at)
        if at in found or at in start:
            names |= {*filter(None, follow)}
    return found


def _run(region: Sequence[Node], inputs: Sequence[str], outputs: Sequence[str]) -> Callable[[Sequence[Array]], Sequence[Array]]:
    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        values: dict[str, Any] = dict(zip(inputs, arrays, strict=True))
        for node in region:
            made = node.attributes["reference"]([values[name] for name in node.inputs if name])
            values |= {name: array for name, array in zip(node.outputs, made, strict=True) if name}
        return [values[name] for name in outputs]

    return run
