# SPDX-License-Identifier: Apache-2.0
"""Products of one value as one, which PyTorch's compiler computes: a transformer's queries, keys and values.

    y_i = x W_i^T + b_i  for i = 1, 2, ...   ->   y = x [W_1; W_2; ...]^T + [b_1; b_2; ...],  y_i are columns of y

One product fills a GPU better than several in turn, and is one launch. Its weights are copied, so those that save most for their bytes are
joined, until the copies take COPIED of the parameters' bytes.

Worked number: three products of 2048x512x512 in float16 are expected to take 16 us on an H200, the joint one 8.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import torch
from torch import fx
from torch.nn import functional

from pysim.machine.gpu import Gpu
from pysim.network.graph import Node
from pysim.problem.gemm import Gemm
from pysim.problem.text import parse
from pysim.torch.capture.effects import Effects
from pysim.torch.capture.rewriting import returned
from pysim.torch.layers.compiler_seconds import MARGIN, library_seconds
from pysim.torch.layers.fused_layer import FusedLayer

COPIED = 0.1  # of the parameters' bytes, so that a call takes no more than 15 % more memory than PyTorch's with other copies


class Joint(NamedTuple):
    """At least two products, in the order of the graph; the seconds of a call that joining them saves; the bytes that it copies."""

    nodes: list[Node]
    saved: float
    copied: int


def joint_products(
    graph: fx.Graph,
    bare: Sequence[tuple[Node, FusedLayer]],
    static: dict[fx.Node, int],
    inputs: Sequence[Any],
    effects: Effects,
    on: Gpu,
) -> list[Joint]:
    """`bare`: the layers into which nothing is fused. `static`: the inputs of the graph that it does not write, and their positions."""
    places = {node.name: node for node in graph.nodes}
    seen = frozenset[fx.Node]().union(*(effects.aliases[one] for one in returned(graph)), effects.written)
    alike = defaultdict[Any, list[tuple[Node, Gemm, float]]](list)
    if effects.needs_strides:
        return []
    for node, layer in bare:
        product, place = _product_of(layer), places[node.name]
        operands = [places[name] if name else None for name in (*node.inputs[1:3], "")][:2]
        if product is None or place.target is not functional.linear or not effects.owns(place) or place in seen:
            continue
        written = effects.aliases[places[node.inputs[0]]] & effects.written
        if not written and operands[0] in static and (operands[1] is None or operands[1] in static):
            kind = [None if one is None else inputs[static[one]].dtype for one in operands]
            alike[node.inputs[0], effects.regions[place], *kind].append((node, product, _seconds_apart(layer, product, on)))
    sizes = {node.name: inputs[at].nbytes for node, at in static.items() if isinstance(inputs[at], torch.nn.Parameter)}
    found = [_found(of, sizes, on) for of in alike.values()]
    budget, chosen = COPIED * sum(sizes.values()), list[Joint]()
    for one in sorted(found, key=lambda one: -one.saved / max(1, one.copied)):
        if len(one.nodes) > 1 and one.saved > 0 and one.copied <= budget:
            budget -= one.copied
            chosen.append(one)
    return chosen


def _product_of(layer: FusedLayer) -> Gemm | None:
    text = next((one.problem for one in layer.decisions if one.problem), "")
    product = parse(text) if text and layer.kind == "Linear" else None
    return product if isinstance(product, Gemm) else None


def _seconds_apart(layer: FusedLayer, product: Gemm, on: Gpu) -> float:
    ours = [one.predicted_seconds for one in layer.decisions if one.runs == "pysim" and one.predicted_seconds]
    return min([library_seconds(product, on), *ours])


def _found(of: Sequence[tuple[Node, Gemm, float]], sizes: dict[str, int], on: Gpu) -> Joint:
    nodes, products = [node for node, *_ in of], [product for _, product, _ in of]
    joint = msgspec.structs.replace(products[0], n=sum(one.n for one in products))
    saved = sum(seconds for *_, seconds in of) - (1 + MARGIN) * library_seconds(joint, on)
    return Joint(nodes, saved, sum(sizes.get(name, 0) for node in nodes for name in node.inputs[1:3]))


def insert_joint(module: fx.GraphModule, nodes: Sequence[Node], has_bias: bool, places: dict[str, fx.Node]) -> list[fx.Node]:
    """Puts one product in the place of the first of these. Returns the new inputs that it reads: weights and bias."""
    graph, order = module.graph, {node: at for at, node in enumerate(module.graph.nodes)}
    linears = [places[node.name] for node in nodes]
    first = min(linears, key=order.__getitem__)
    with graph.inserting_before(first):
        given = [graph.create_node("placeholder", f"pysim_{first.name}_{at}") for at in range(1 + has_bias)]
        y, start = graph.call_function(functional.linear, (places[nodes[0].inputs[0]], *given)), 0
        for node, linear in zip(nodes, linears, strict=True):
            example: Any = linear.meta["example_value"]
            part = graph.call_function(torch.narrow, (y, -1, start, example.shape[-1]))
            part.meta, start = dict(linear.meta), start + example.shape[-1]
            linear.replace_all_uses_with(part)
            places[node.name] = part
    for linear in linears:
        graph.erase_node(linear)
    return given
