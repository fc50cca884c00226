# SPDX-License-Identifier: Apache-2.0
"""Replaces each If whose condition is known before the model runs by the nodes of the branch that it takes.

Values computed in a branch are renamed, since both branches may use the same names. Values that it reads from outside keep their names.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pysim.network.graph import Array
from pysim.onnx.protos import STANDARD, graphs_of

if TYPE_CHECKING:
    import onnx


def captured(node: "onnx.NodeProto") -> tuple[str, ...]:
    """The names of values that a node's subgraphs read from outside, once each."""
    names = dict[str, None]()
    for graph in graphs_of(node):
        made = {"", *(value.name for value in graph.input), *(one.name for one in graph.initializer)}
        for inner in graph.node:
            names.update(dict.fromkeys(one for one in (*inner.input, *captured(inner)) if one not in made))
            made.update(inner.output)
        names.update(dict.fromkeys(value.name for value in graph.output if value.name not in made))
    return tuple(names)


def with_branches(model: "onnx.ModelProto", known: Mapping[str, Array]) -> "onnx.ModelProto | None":
    """The model with each If of known condition replaced by its branch; None if there is no such If."""
    import onnx

    if not any(_decided(node, known) for node in model.graph.node):
        return None
    made: onnx.ModelProto = onnx.ModelProto.FromString(model.SerializeToString())
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in made.graph.node]
    del made.graph.node[:]
    for at, node in enumerate(nodes):
        made.graph.node.extend(_branch(node, at, known, made.graph) if _decided(node, known) else [node])
    return made


def _decided(node: "onnx.NodeProto", known: Mapping[str, Array]) -> bool:
    return node.op_type == "If" and node.domain in STANDARD and node.input[0] in known and known[node.input[0]].size == 1


def _branch(node: "onnx.NodeProto", at: int, known: Mapping[str, Array], graph: "onnx.GraphProto") -> list["onnx.NodeProto"]:
    """The nodes of the branch that is taken. Its constants are added to the graph."""
    import onnx

    wanted = "then_branch" if known[node.input[0]].reshape(())[()] else "else_branch"
    branch = next(one.g for one in node.attribute if one.name == wanted)
    label = node.name or node.output[0]
    own = [*(one.name for one in branch.initializer), *(name for inner in branch.node for name in inner.output if name)]
    names = {name: f"{label}:{at}:{name}" for name in own}
    for tensor in branch.initializer:
        graph.initializer.add().CopyFrom(tensor)
        graph.initializer[-1].name = names[tensor.name]
    for inner in branch.node:
        _rename(inner, names)
    results = zip(branch.output, node.output, strict=True)
    ends = [onnx.helper.make_node("Identity", [names.get(one.name, one.name)], [name], f"{label}:{name}") for one, name in results if name]
    return [*branch.node, *ends]


def _rename(node: "onnx.NodeProto", names: Mapping[str, str]) -> None:
    """Renames the inputs and outputs of a node and of the nodes in its subgraphs."""
    for field in (node.input, node.output):
        renamed = [names.get(name, name) for name in field]
        del field[:]
        field.extend(renamed)
    for graph in graphs_of(node):
        hidden = {one.name for one in (*graph.input, *graph.initializer)} | {name for inner in graph.node for name in inner.output}
        outside = {name: new for name, new in names.items() if name not in hidden}
        for inner in graph.node:
            _rename(inner, outside)
        for value in graph.output:
            value.name = outside.get(value.name, value.name)
