# SPDX-License-Identifier: Apache-2.0
"""Channels in whole blocks: values of 24 channels with 8 more, which are finite and which nothing reads.

Kernels of channel blocks compute whole blocks. A convolution makes more channels by filters of zeros, and reads them with weights of zeros;
operators on each channel keep them. A value can be so if its maker and all its readers are such.

Worked number: a value of 24 channels of 56x56 in two blocks of 16 has a third more bytes; as bf16 it still has two thirds of those that it
has as float32.
"""

from collections.abc import Callable, Mapping

import numpy as np
from msgspec.structs import replace

from pysim.network.fusion import RESIDUAL_INPUT
from pysim.network.graph import Array, Graph, Node, Tensor

# Of each channel by itself, finite where their inputs are zero
_BY_CHANNEL = ("Add", "Affine", "AveragePool", "Clip", "GlobalAveragePool", "LeakyRelu", "MaxPool", "Mul", "Relu", "Sigmoid")


def with_whole_blocks(graph: Graph, block: int) -> Graph:
    """The graph with all values in whole blocks that can be; the graph itself if there are none with a part of one."""
    padded = _padded(graph, block)
    if not padded:
        return graph
    tensors, constants = dict(graph.tensors), dict(graph.constants)
    for name in padded:
        batch, channels, *image = tensors[name].shape
        tensors[name] = tensors[name]._replace(shape=(batch, _whole(channels, block), *image))

    def longer(name: str, axis: int, size: int) -> str:
        """A constant with zeros up to a size."""
        array: Array = constants[name]
        if array.shape[axis] == size:
            return name
        more = [(0, size - array.shape[axis] if at == axis else 0) for at in range(array.ndim)]
        made = f"{name}:{axis}:{size}"
        constants[made] = np.pad(array, more)
        tensors[made] = tensors[name]._replace(shape=constants[made].shape)
        return made

    nodes = [_of_whole(node, padded, tensors, longer) for node in graph.nodes]
    return graph._replace(nodes=tuple(nodes), tensors=tensors, constants=constants)


def _whole(channels: int, block: int) -> int:
    return -(-channels // block) * block


def _padded(graph: Graph, block: int) -> set[str]:
    found = {
        name
        for node in graph.nodes
        for name in node.outputs
        if name in graph.narrow and len(graph.tensors[name].shape) == 4 and graph.tensors[name].shape[1] % block
    } - set(graph.outputs)
    while True:
        lost = {name for node in graph.nodes for name in _apart(node, found, graph)}
        if not lost & found:
            return found
        found -= lost


def _apart(node: Node, padded: set[str], graph: Graph) -> set[str]:
    """The values among a node's that cannot have more channels, if only `padded` have."""
    values = {name for name in (*node.inputs, *node.outputs) if name and name not in graph.constants}
    if "reference" in node.attributes or not _is_taken(node, graph):
        return values
    if node.op == "Conv":
        problem = node.attributes["problem"]
        if problem.groups == 1:
            alike = {node.output, *filter(None, node.inputs[RESIDUAL_INPUT:])}
            return set() if alike <= padded else alike
    return set() if values <= padded else values


def _is_taken(node: Node, graph: Graph) -> bool:
    """Whether a node's operator keeps or ignores additional channels."""
    if node.op == "Conv":
        problem = node.attributes["problem"]
        is_depthwise = problem.groups == problem.channels == problem.filters
        constant = all(name in graph.constants for name in filter(None, node.inputs[1:RESIDUAL_INPUT]))
        as_it_is = constant and graph.constants[node.inputs[1]].shape == problem.filter_shape
        return as_it_is and not problem.is_volume and (problem.groups == 1 or is_depthwise)
    return node.op in _BY_CHANNEL and not (node.op in ("Add", "Mul") and any(name in graph.constants for name in node.inputs))


def _of_whole(node: Node, padded: set[str], tensors: Mapping[str, Tensor], longer: Callable[[str, int, int], str]) -> Node:
    if padded.isdisjoint((*node.inputs, *node.outputs)):
        return node
    if node.op == "Affine":
        x, *numbers = node.inputs
        return node._replace(inputs=(x, *(longer(name, 0, tensors[x].shape[1]) for name in numbers)))
    if node.op != "Conv":
        return node
    problem, (x, w, *rest) = node.attributes["problem"], node.inputs
    channels, filters = (tensors[name].shape[1] for name in (x, node.output))
    groups = 1 if problem.groups == 1 else channels
    w = longer(longer(w, 0, filters), 1, channels // groups)
    rest = [longer(name, 0, filters) if name and at == 0 else name for at, name in enumerate(rest)]
    wider = replace(problem, channels=channels, filters=filters, groups=groups)
    return node._replace(inputs=(x, w, *rest)).having(problem=wider)
