# SPDX-License-Identifier: Apache-2.0
"""Transposed convolutions in a network: one convolution whose filters are all phases of the stride, or one for each phase, whichever the
plans and the copies between say is faster (`pysim.problem.transposed`).

Lowering makes the former: View, Transpose and View interleave the results of the Conv, and a Slice cuts off what only padding gave. Apart
nothing is cut off, and the results lie one after another: Conv of each phase, Concat, View, Transpose, View. What then works channel by
channel or element by element goes before the Concat, so that the convolutions absorb it.

Worked number: 3x3 taps of stride 2 are four kernels of 2x2 together, 16 products of which 7 are by zeros, and apart kernels of 1x1, 1x2,
2x1 and 2x2.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pysim.network.fusion import activation_of
from pysim.network.graph import Array, Graph, Node, Tensor, live
from pysim.problem.conv import Conv
from pysim.problem.transposed import Apart

_APART = ("Concat", "View", "Transpose", "View")
_CHANNELWISE = ("Affine", "BatchNormalization")


def convolving(problem: Conv) -> dict[str, Any]:
    """The attributes of a convolution. Those of volumes get their `problem` when they are planned (`pysim.network.conv3d`)."""
    if not problem.is_volume:
        return {"problem": problem}
    axes = (problem.slices, problem.rows, problem.columns)
    pads = [*(axis.before for axis in axes), *(axis.after for axis in axes)]
    return {"strides": [1, 1, 1], "dilations": [axis.dilation for axis in axes], "group": problem.groups, "pads": pads}


def with_phases(graph: Graph, seconds: Callable[[Conv], float] | None, copying: Callable[[Tensor], float]) -> Graph:
    """The graph with phases apart where that is faster. `seconds`: of a plan, None keeps phases together; `copying`: of a copy. No node
    keeps its attribute `apart`."""
    if not any("apart" in node.attributes for node in graph.nodes):
        return graph
    users, nodes, replaced = graph.users(), list[Node](), set[str]()
    tensors, constants = dict(graph.tensors), dict(graph.constants)
    for node in graph.nodes:
        if "apart" in node.attributes:
            phases, output = node.attributes["apart"]
            known = node.op == "Conv" and all(name in graph.constants for name in node.inputs[1:])  # not one of integers
            chain = _interleaving(graph, users, node, output) if known else []
            cut = copying(graph.tensors[output]) if chain and chain[-1].op == "Slice" else 0.0
            if seconds and chain and sum(seconds(one.folded) for one in phases.problems) < seconds(phases.whole.folded) + cut:
                nodes += _each_phase(node, output, phases, tensors, constants)
                replaced.update(one.output for one in chain)
            else:
                kept = {name: value for name, value in node.attributes.items() if name != "apart"}
                nodes.append(node._replace(attributes=kept))
        elif node.output not in replaced:
            nodes.append(node)
    return live(_channelwise_first(graph._replace(nodes=tuple(nodes), tensors=tensors, constants=constants)))


def _interleaving(graph: Graph, users: Mapping[str, list[int]], node: Node, output: str) -> list[Node]:
    """The nodes between a convolution of all phases and its interleaved output; none if anything else reads a value between."""
    chain = [node]
    while chain[-1].output != output:
        after = users.get(chain[-1].output, [])
        if len(after) != 1 or chain[-1].output in graph.outputs:
            return []
        chain.append(graph.nodes[after[0]])
    return chain[1:]


def _each_phase(node: Node, output: str, phases: Apart, tensors: dict[str, Tensor], constants: dict[str, Array]) -> Iterator[Node]:
    """The convolutions, and what interleaves their results. Adds the new tensors and constants."""
    x, w, *bias = node.inputs
    like, names = tensors[x], [f"{output}:phase{at}" for at in range(len(phases.problems))]

    def constant(name: str, array: Array) -> str:
        constants[name], tensors[name] = array, Tensor(array.shape, array.dtype)
        return name

    def made(op: str, name: str, inputs: tuple[str, ...], shape: Sequence[int], about: Mapping[str, Any]) -> Node:
        tensors[name] = like._replace(shape=tuple(shape))
        return Node(op, name, inputs, (name,), about)

    biases = [constant(f"{output}:each", np.ascontiguousarray(constants[name].reshape(-1, len(names))[:, 0])) for name in bias]
    for name, problem, weights in zip(names, phases.problems, phases.weights(constants[w]), strict=True):
        yield made("Conv", name, (x, constant(f"{name}:weights", weights), *biases), problem.output_shape, convolving(problem))
    (n, m, *sizes), count = phases.problems[0].output_shape, len(phases.strides)
    split = *phases.strides, n, m, *sizes[-count:]
    order = count, count + 1, *(place for axis in range(count) for place in (count + 2 + axis, axis))
    joined, parts, turned = (f"{output}:{what}" for what in ("joined", "split", "interleaved"))
    yield made("Concat", joined, tuple(names), (len(names) * n, m, *sizes), {"axis": 0})
    yield made("View", parts, (joined,), split, {})
    yield made("Transpose", turned, (parts,), [split[axis] for axis in order], {"perm": order})
    yield Node("View", f"{output}:view", (turned,), (output,))


def _channelwise_first(graph: Graph) -> Graph:
    """Channelwise and elementwise nodes behind interleaved phases moved before the Concat, for each phase."""
    users, nodes, tensors = graph.users(), list[Node](), dict(graph.tensors)
    joined = dict[str, int]()  # interleaved value -> the place of its Concat
    for node in graph.nodes:
        at = joined.get(node.inputs[0]) if node.inputs else None
        alone = at is not None and len(users[node.inputs[0]]) == 1 and node.inputs[0] not in graph.outputs
        constant = all(name in graph.constants for name in node.inputs[1:])
        if at is None or not alone or not constant or not (node.op in _CHANNELWISE or activation_of(node) is not None):
            nodes.append(node)
            if node.name == f"{node.output}:view" and tuple(one.op for one in nodes[-4:]) == _APART:
                joined[node.output] = len(nodes) - 4
            continue
        parts = nodes[at].inputs
        made = [f"{node.output}:{which}" for which in range(len(parts))]
        tensors.update((name, tensors[part]) for name, part in zip(made, parts, strict=True))
        each = [node._replace(name=to, inputs=(part, *node.inputs[1:]), outputs=(to,)) for to, part in zip(made, parts, strict=True)]
        concat, *between, view = nodes[at : at + 4]
        nodes[at : at + 4] = [*each, concat._replace(inputs=tuple(made)), *between, view._replace(outputs=node.outputs)]
        joined = {name: place + len(each) * (place > at) for name, place in joined.items()} | {node.output: at + len(each)}
    return graph._replace(nodes=tuple(nodes), tensors=tensors)
