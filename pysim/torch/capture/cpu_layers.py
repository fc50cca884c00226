# SPDX-License-Identifier: Apache-2.0
"""Which layers of a captured graph on a CPU are faster here than by PyTorch's operators, counting conversions of layouts.

Layers here read and write planes (NCHW). Where PyTorch's values lie channels last, as ConvNeXt's do around its norms over channels, a layer
copies its input, and its result is copied back for readers that are PyTorch's: norms of values with other strides take several times as
long. Between two layers here nothing is copied. So layers are chosen together:

    all layers that win without copies are taken; then those that lose with the copies they need are given back, until none is

Giving back a layer can only make copies necessary for others, so this ends.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from pysim.network.fusion import RESIDUAL_INPUT
from pysim.network.graph import Node
from pysim.torch.layers.fused_layer import FusedLayer


class Taken(NamedTuple):
    """A layer that runs here, and whether its result is copied to PyTorch's strides."""

    node: Node
    layer: FusedLayer
    restores: bool


def faster_layers(layers: Sequence[tuple[Node, FusedLayer]], places: dict[str, fx.Node]) -> list[Taken]:
    """Those of the graph's layers that are expected to be faster here, and those whose shapes are known only in each call, which choose
    there."""
    taken = {node.name: (node, layer) for node, layer in layers if not _keeps_pytorch(node, layer, places)}
    while True:
        made = {node.output for node, _ in taken.values()}
        owned = {name for node, _ in taken.values() for name in (node.name, *node.absorbed)}
        planes = {name for name in made if all(user.name in owned for user in places[name].users)}
        lost = []
        for node, layer in taken.values():
            layer.set_copied_bytes(_copied_bytes(node, places, planes))
            if _keeps_pytorch(node, layer, places):
                lost.append(node.name)
        if not lost:
            return [Taken(node, layer, node.output not in planes and not _is_planes(places[node.output])) for node, layer in taken.values()]
        for name in lost:
            del taken[name]


def _keeps_pytorch(node: Node, layer: FusedLayer, places: dict[str, fx.Node]) -> bool:
    examples = [places[name].meta.get("example_value") for name in node.inputs[:2]]
    return all(map(_is_static, examples)) and layer.keeps_pytorch(*examples)


def _copied_bytes(node: Node, places: dict[str, fx.Node], planes: set[str]) -> int:
    """Bytes of the operands that a convolution here copies to or from planes; products read and write rows, as PyTorch's do."""
    if node.op != "Conv":
        return 0
    operands = [node.inputs[0], node.output, *node.inputs[RESIDUAL_INPUT : RESIDUAL_INPUT + 1]]
    copied = [places[name] for name in operands if name and name not in planes and not _is_planes(places[name])]
    return sum(one.meta["example_value"].numel() * one.meta["example_value"].element_size() for one in copied)


def _is_planes(value: fx.Node) -> bool:
    example = value.meta.get("example_value")
    return not _is_static(example) or bool(example.is_contiguous())


def _is_static(example: Any) -> bool:
    """Whether a value has the same shape and strides in each call of the graph."""
    return isinstance(example, torch.Tensor) and all(type(size) is int for size in (*example.shape, *example.stride()))
