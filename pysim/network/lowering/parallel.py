# SPDX-License-Identifier: Apache-2.0
"""Parallel layers whose results are added: convolutions of one input over the same windows, and the input times a number per channel,
become one convolution with the sum of their weights (MobileOne, RepVGG and others as they are trained).

    conv(x, v) + conv(x, w) + a x + r = conv(x, v + w + a at the window's own pixel) + r

The smaller kernel's taps must be taps of the larger, so no result reads what it did not read before. Weights are added in float64 and
rounded once; where a sum leaves the type's range the layers stay apart. Not under accuracy `reproducible`, whose results are those of
single layers.

Worked number: four 3x3 layers, a 1x1 layer and a norm of the same 64 channels are one 3x3 layer, 9/37 of the multiply-adds.
"""

from typing import NamedTuple

import numpy as np

from pysim.network.fusion import RESIDUAL_INPUT
from pysim.network.graph import Array, Graph, Node, Tensor, live
from pysim.problem.conv import Conv

_WINDOWS = ("out_h", "out_w", "stride_h", "stride_w", "dilation_h", "dilation_w", "groups", "filters", "input_shape", "dtype")


class _Sum(NamedTuple):
    problem: Conv
    weights: Array  # float64
    bias: Array | None


def add_parallel(graph: Graph) -> Graph:
    """The graph with one convolution for parallel ones."""
    return _Parallel(graph).result()


class _Parallel:
    """One pass over the nodes in order; `_makers` has the node that computes a value now."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._users = graph, graph.users()
        self._makers: dict[str, Node] = {}
        self._constants, self._tensors = dict(graph.constants), dict(graph.tensors)

    def result(self) -> Graph:
        nodes = []
        for node in self._graph.nodes:
            while (joined := self._joined(node)) is not None:
                node = joined
            nodes.append(node)
            self._makers[node.output] = node
        return live(self._graph._replace(nodes=tuple(nodes), constants=self._constants, tensors=self._tensors))

    def _joined(self, node: Node) -> Node | None:
        """A convolution that computes what this node adds; None if these are no parallel layers."""
        if node.op == "Add" and len(node.inputs) == 2:
            first, second = (self._alone(name) for name in node.inputs)
        elif self._is_plain(node) and len(node.inputs) > RESIDUAL_INPUT:
            first, second = node._replace(inputs=node.inputs[:RESIDUAL_INPUT]), self._alone(node.inputs[RESIDUAL_INPUT])
        else:
            return None
        if first is None or second is None or first.inputs[0] != second.inputs[0] or first.output == second.output:
            return None
        residuals = [one.inputs[RESIDUAL_INPUT] for one in (first, second) if len(one.inputs) > RESIDUAL_INPUT]
        total = None if len(residuals) > 1 else self._sum(first, second)
        if total is None:
            return None
        inputs = [first.inputs[0], self._constant(f"{node.output}:weights", total.weights, first)]
        inputs += [self._constant(f"{node.output}:bias", total.bias, first)] if total.bias is not None else []
        inputs += [*[""] * (RESIDUAL_INPUT - len(inputs)), *residuals] if residuals else []
        layer, other = (first, second) if first.op == "Conv" else (second, first)
        absorbed = (*layer.absorbed, other.name, *other.absorbed, *[node.name] * (node.op == "Add"))
        joined = layer._replace(inputs=tuple(inputs), outputs=node.outputs, absorbed=absorbed)
        activation = {name: node.attributes[name] for name in ("activation",) if name in node.attributes}
        return joined._replace(attributes={"problem": total.problem, **activation})

    def _alone(self, name: str) -> Node | None:
        """The layer that computes a value which one node reads, if its weights can be added to another's."""
        node = self._makers.get(name)
        single = node is not None and len(self._users[name]) == 1 and not node.attributes.get("activation")
        return node if node is not None and single and (self._is_plain(node) or self._is_scaled(node)) else None

    def _is_plain(self, node: Node) -> bool:
        """Whether a node is a convolution with constant weights, and at most a residual and an activation."""
        constant = all(not name or name in self._constants for name in node.inputs[1:3]) and not any(node.inputs[3:RESIDUAL_INPUT])
        return node.op == "Conv" and constant and node.attributes.keys() <= {"problem", "activation"} and "problem" in node.attributes

    def _is_scaled(self, node: Node) -> bool:
        return node.op == "Affine" and all(name in self._constants for name in node.inputs[1:])

    def _sum(self, first: Node, second: Node) -> _Sum | None:
        """Of the weights of two layers; None if they have other windows, or leave the range of their type."""
        convs = sorted((one for one in (first, second) if one.op == "Conv"), key=lambda one: -one.attributes["problem"].taps)
        if not convs:
            return None
        into: Conv = convs[0].attributes["problem"]
        weights, bias = self._constants[convs[0].inputs[1]].astype(np.float64), self._bias(convs[0])
        if len(convs) == 2:
            added, shift = self._at_taps(into, convs[1]), self._bias(convs[1])
        else:
            scaled = first if second is convs[0] else second
            added, shift = self._at_pixel(into, scaled), self._constants[scaled.inputs[2]].astype(np.float64)
        if added is None:
            return None
        weights = weights + added
        bias = shift if bias is None else bias if shift is None else bias + shift
        largest = np.finfo(self._constants[convs[0].inputs[1]].dtype).max
        inside = all(bool((np.abs(one) <= largest).all()) for one in (weights, bias) if one is not None)
        return _Sum(into, weights, bias) if inside else None

    def _bias(self, node: Node) -> Array | None:
        name = node.inputs[2] if len(node.inputs) > 2 else ""
        return self._constants[name].astype(np.float64) if name else None

    def _at_taps(self, into: Conv, node: Node) -> Array | None:
        """Weights of a convolution at the taps of another that read the same elements."""
        of: Conv = node.attributes["problem"]
        same = all(getattr(of, name) == getattr(into, name) for name in _WINDOWS if not (name.startswith("dilation") and of.taps == 1))
        down, across = into.pad_top - of.pad_top, into.pad_left - of.pad_left
        if not same or down < 0 or across < 0 or down % into.dilation_h or across % into.dilation_w:
            return None
        row, column = down // into.dilation_h, across // into.dilation_w
        if row + of.kernel_h > into.kernel_h or column + of.kernel_w > into.kernel_w:
            return None
        found = np.zeros(into.filter_shape)
        found[:, :, row : row + of.kernel_h, column : column + of.kernel_w] = self._constants[node.inputs[1]]
        return found

    def _at_pixel(self, into: Conv, node: Node) -> Array | None:
        """Factors of the channels at the tap that reads a result's own pixel."""
        scale = self._constants[node.inputs[1]]
        unmoved = into.output_shape == into.input_shape == self._tensors[node.inputs[0]].shape and into.stride_h == into.stride_w == 1
        if (
            not unmoved
            or into.is_volume
            or scale.shape != (into.filters,)
            or into.pad_top % into.dilation_h
            or into.pad_left % into.dilation_w
        ):
            return None
        row, column = into.pad_top // into.dilation_h, into.pad_left // into.dilation_w
        if row >= into.kernel_h or column >= into.kernel_w:
            return None
        found, filters = np.zeros(into.filter_shape), np.arange(into.filters)
        found[filters, filters % into.group_channels, row, column] = scale
        return found

    def _constant(self, name: str, array: Array, like: Node) -> str:
        """The name of a new constant, of the type of a layer's weights."""
        self._constants[name] = array.astype(self._constants[like.inputs[1]].dtype)
        self._tensors[name] = Tensor(array.shape, self._constants[name].dtype)
        return name
