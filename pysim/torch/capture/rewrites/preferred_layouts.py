# SPDX-License-Identifier: Apache-2.0
"""The layout that PyTorch's compiler gives to what pysim's convolutions read.

Inductor lays out channels last what a convolution reads, directly or behind other operators. It finds convolutions by aten's name; of
another operator it knows the strides that it wants of its operands, and a value that lies two kernels before it stays NCHW. Upsampling
SegFormer's four images, which are joined before a 1x1 convolution of pysim, took 1.02 ms of a call in TF32 on an H200 so, and 0.42 before a
convolution of aten.

What a layer reads is made channels last for it. Where PyTorch's operators would have had another layout, the compiler would keep both: a
residual block's sum behind a group norm was written twice, once for the next convolution and once for the next sum, 51 us in place of 37
(ResNet-50 with group norms, TF32, batch 16, 256 channels of 56x56). So what reads it later reads the layer's copy.

A value that is in no memory yet is computed into a copy for an operator that wants strides, and once more for what else reads it: the sum
of a block of SE-ResNet-33 took 51 us where a convolution of aten, before which it is written once, took 37 (float16, batch 16). Inductor
keeps the operators before which it writes values in a set, to which the layers are added.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any
from unittest.mock import patch

import torch
from torch import fx

from pysim.torch import operators
from pysim.torch.capture.effects import Effects, written_by

_CHANGING = RLock()
_LAYERS = (operators.layer, operators.convolution_relu)
_WRITTEN_BEFORE = (*_LAYERS, operators.group_norm)
_WRITTEN = 3  # from which argument on a layer has what it adds, in whose memory `pysim::layer` writes
_PASSES_NOTHING_ON = (torch.ops.aten.bmm.default,)  # as Inductor has it


@contextmanager
def layers_as_convolutions() -> Iterator[None]:
    """In the graphs that are compiled meanwhile. Those without pysim's layers, of other threads, are laid out as ever."""
    from torch._inductor.graph import GraphLowering
    from torch._inductor.lowering import needs_realized_inputs

    found_by_pytorch = GraphLowering.find_nodes_prefer_channels_last

    def found(lowering: Any) -> Any:
        return with_layers(found_by_pytorch(lowering), lowering.module.graph)

    needs_realized_inputs.update(_WRITTEN_BEFORE)
    with _CHANGING, patch.object(GraphLowering, "find_nodes_prefer_channels_last", found):
        yield


def share_copies(graph: fx.Graph, effects: Effects) -> None:
    """What reads a value behind a layer that reads it channels last reads the same. `effects`: of the graph before layers were inserted,
    which must not look at strides; results and what is written afterwards stay as they are."""
    order = {node: at for at, node in enumerate(graph.nodes)}
    writes = {root: order[one] for one in graph.nodes for to in written_by(one) for root in effects.aliases.get(to, ())}  # the last ones
    for node in graph.find_nodes(op="call_method", target="contiguous"):
        value = node.args[0]
        layers = [user for user in node.users if user.target in _LAYERS]
        if node.kwargs.get("memory_format") is not torch.channels_last or not layers or any(node in one.args[_WRITTEN:] for one in layers):
            continue
        if not effects.fills(value) or any(writes.get(root, 0) > order[node] for root in effects.aliases[value]):
            continue
        for user in [*value.users]:
            if order[user] > order[node] and user.op != "output":
                user.replace_input_with(value, node)
        node.meta = dict(value.meta)


def with_layers(found: Any, graph: Any) -> Any:
    """The nodes that are to be channels last: those of `found`, pysim's convolutions, what these read, and what reads either before the
    last convolution."""
    nodes = [*graph.nodes]
    layers = {node for node in nodes if node.target in _LAYERS and _is_last(node.args[0])}
    if not layers:
        return found
    for node in reversed(nodes):
        if node in layers or (node.target not in _PASSES_NOTHING_ON and any(user in found for user in node.users)):
            found.add(node)
    convolutions = [at for at, node in enumerate(nodes) if node in layers or node.target is torch.ops.aten.convolution.default]
    for node in nodes[: max(convolutions)]:
        for user in node.users if node in found else ():
            if user.target not in _PASSES_NOTHING_ON:
                found.add(user)
    return found


def _is_last(node: Any) -> bool:
    image = node.meta.get("val")
    return image is not None and image.dim() == 4 and image.is_contiguous(memory_format=torch.channels_last)
