# SPDX-License-Identifier: Apache-2.0
"""Transposed convolutions as convolutions whose filters are the phases of the stride (`pysim.problem.transposed`)."""

import math
from typing import Any

from pysim.network.graph import Graph, Node
from pysim.network.lowering.array_operators import Constants, Parts, constant_of
from pysim.network.phases import convolving
from pysim.problem.transposed import apart, transposed

_MOST_ZEROS = 4  # taps of the convolution over those of the transposed one


def transposed_by_phases(node: Node, graph: Graph, constants: Constants) -> Parts | None:
    """A transposed convolution with constant weights and explicit pads as a convolution and a transposition; None if most of its taps would
    be 0.

    Worked number: 3 taps with stride 2 are two phases of 2 taps, one of which is 0."""
    if not all(name in constants for name in node.inputs[1:] if name):
        return None
    (n, channels, *sizes), out = graph.tensors[node.inputs[0]].shape, graph.tensors[node.output].shape
    weights, about = constants[node.inputs[1]], node.attributes
    kernel, groups, pads = weights.shape[2:], about["group"], about["pads"][: len(sizes)]
    if min(pads) < 0:
        return None
    filters, dtype = weights.shape[1] * groups, "f32" if weights.dtype.itemsize == 4 else "f64"
    how = transposed(n, channels, sizes, filters, kernel, about["strides"], about["dilations"], pads, out[2:], groups, dtype)
    problem = how.problem
    if problem.taps * how.phases > _MOST_ZEROS * math.prod(kernel):
        return None
    inputs = [constant_of(constants, node, "phases", how.weights(weights))]
    if len(node.inputs) > 2 and node.inputs[2]:
        inputs.append(constant_of(constants, node, "bias", how.bias(constants[node.inputs[2]])))
    conv = convolving(problem)
    if phases := apart(how, kernel, about["dilations"], pads):
        conv["apart"] = (phases, node.output)
    steps: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
        ("View", problem.input_shape, {}),
        ("Conv", problem.output_shape, conv),
        ("View", how.split_shape, {}),
        ("Transpose", tuple(how.split_shape[axis] for axis in how.order), {"perm": how.order}),
        ("View", how.interleaved_shape, {}),
        ("Slice", out, {"slices": how.cut}),
    ]
    steps = steps[problem.input_shape == (n, channels, *sizes) : 5 if out == how.interleaved_shape else 6]
    parts: Parts = []
    value = node.inputs[0]
    for at, (op, shape, attributes) in enumerate(steps):
        made = node.output if at == len(steps) - 1 else f"{node.output}:{at}"
        operands = (value, *inputs) if op == "Conv" else (value,)
        parts.append((Node(op, node.name if op == "Conv" else f"{node.name}:{at}", operands, (made,), attributes), shape))
        value = made
    return parts
