# SPDX-License-Identifier: Apache-2.0
"""Channels in whole blocks: values of 24 channels with 8 more, which are equal to the first 8.

Kernels of channel blocks compute whole blocks. A convolution makes the additional channels by the filters of those that they are equal
to, and reads both with half of the weight each: halves add up to what the whole gives, also of numbers that are not finite, which zeros
would not. Operators on each channel keep them. Others read a value without them.

Worked number: a value of 24 channels of 56x56 in two blocks of 16 has a third more bytes; as bf16 it still has two thirds of those that it
has as float32.
"""

from collections.abc import Callable, Collection, Mapping

import numpy as np
from msgspec.structs import replace

from pysim.network.fusion import RESIDUAL_INPUT
from pysim.network.graph import Array, Graph, Node, Tensor
from pysim.problem.conv import Conv

# Of each channel by itself
_BY_CHANNEL = ("Add", "Affine", "AveragePool", "Clip", "GlobalAveragePool", "LeakyRelu", "MaxPool", "Mul", "Relu", "Sigmoid")


def with_whole_blocks(graph: Graph, block: int) -> Graph:
    """The graph with all bf16 values in whole blocks that can be; the graph itself if there are none with a part of one."""
    padded = _padded(graph, block)
    return widened(graph, padded, block) if padded else graph


def widened(graph: Graph, values: Collection[str], block: int) -> Graph:
    """The graph with these values in whole blocks."""
    tensors, constants = dict(graph.tensors), dict(graph.constants)
    for name in values:
        batch, channels, *image = tensors[name].shape
        tensors[name] = tensors[name]._replace(shape=(batch, _whole(channels, block), *image))

    def longer(name: str, axis: int, size: int) -> str:
        """A constant for more channels: of axis 0 what makes them, of axis 1 what reads them."""
        array: Array = constants[name]
        if (more := size - array.shape[axis]) == 0:
            return name
        made = f"{name}:{axis}:{size}"
        constants[made] = _of_more(array, axis, more)
        tensors[made] = Tensor(constants[made].shape, array.dtype)
        return made

    nodes = [_of_whole(node, values, tensors, longer) for node in graph.nodes]
    return graph._replace(nodes=tuple(nodes), tensors=tensors, constants=constants)


def can_widen(graph: Graph, block: int) -> frozenset[str]:
    """The values with a part of a block that whole blocks can hold, by what makes them."""
    makers = (node for node in graph.nodes if _is_taken(node, graph))
    return frozenset(
        node.output
        for node in makers
        if len(shape := graph.tensors[node.output].shape) == 4 and _is_close(shape[1], block) and graph.tensors[node.output].native
    )


def whole_problem(problem: Conv, read: int, written: int) -> Conv | None:
    """The problem with whole blocks of channels and of filters; None if its groups do not divide them alike."""
    channels, filters = _whole(problem.channels, read), _whole(problem.filters, written)
    if problem.groups == 1:
        return replace(problem, channels=channels, filters=filters)
    groups, rest = divmod(channels, problem.group_channels)
    if rest or groups * problem.group_filters != filters:
        return None
    return replace(problem, channels=channels, filters=filters, groups=groups)


def _whole(channels: int, block: int) -> int:
    return -(-channels // block) * block


def _is_close(channels: int, block: int) -> bool:
    """Whether a part of a block is left, and at least as many channels as it lacks."""
    return 0 < _whole(channels, block) - channels <= channels


def _of_more(array: Array, axis: int, more: int) -> Array:
    first = array[:more] if axis == 0 else array[:, :more]
    if axis == 0:
        return np.concatenate([array, first])
    half = first / 2
    rest = np.subtract(first, half, out=first.copy(), where=np.isfinite(first))
    return np.concatenate([half, array[:, more:], rest], axis=1)


def _padded(graph: Graph, block: int) -> set[str]:
    found = {
        name
        for node in graph.nodes
        for name in node.outputs
        if name in graph.narrow and len(graph.tensors[name].shape) == 4 and _is_close(graph.tensors[name].shape[1], block)
    } - set(graph.outputs)
    while True:
        lost = {name for node in graph.nodes for name in _apart(node, found, graph)}
        if not lost & found:
            return found
        found -= lost


def _apart(node: Node, padded: set[str], graph: Graph) -> set[str]:
    """The values among a node's that cannot have more channels, if only `padded` have."""
    values = {name for name in (*node.inputs, *node.outputs) if name and name not in graph.constants}
    if not _is_taken(node, graph):
        return values
    if node.op == "Conv":
        problem = node.attributes["problem"]
        if problem.groups == 1:
            alike = {node.output, *filter(None, node.inputs[RESIDUAL_INPUT:])}
            return set() if alike <= padded else alike
        if problem.group_channels > 1:
            return values
    return set() if values <= padded else values


def _is_taken(node: Node, graph: Graph) -> bool:
    """Whether a node's operator keeps or ignores additional channels."""
    if "reference" in node.attributes:
        return False
    if node.op == "Conv":
        problem = node.attributes["problem"]
        constant = all(name in graph.constants for name in filter(None, node.inputs[1:RESIDUAL_INPUT]))
        return constant and not problem.is_volume and graph.constants[node.inputs[1]].shape == problem.filter_shape
    return node.op in _BY_CHANNEL and not (node.op in ("Add", "Mul") and any(name in graph.constants for name in node.inputs))


def _of_whole(node: Node, padded: Collection[str], tensors: Mapping[str, Tensor], longer: Callable[[str, int, int], str]) -> Node:
    if not any(name in padded for name in (*node.inputs, *node.outputs)):
        return node
    if node.op == "Affine":
        x, *numbers = node.inputs
        return node._replace(inputs=(x, *(longer(name, 0, tensors[x].shape[1]) for name in numbers)))
    if node.op != "Conv":
        return node
    problem, (x, w, *rest) = node.attributes["problem"], node.inputs
    channels, filters = (tensors[name].shape[1] for name in (x, node.output))
    groups = channels // problem.group_channels if problem.groups > 1 else 1
    w = longer(longer(w, 0, filters), 1, channels // groups)
    rest = [longer(name, 0, filters) if name and at == 0 else name for at, name in enumerate(rest)]
    wider = replace(problem, channels=channels, filters=filters, groups=groups)
    return node._replace(inputs=(x, w, *rest)).having(problem=wider)
