# SPDX-License-Identifier: Apache-2.0
"""Control flow whose way is known before a model runs: the branch of an If stands in its place.

What a branch makes gets names of its own, since both branches may use the same ones; what it reads from outside keeps its names.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pysim.models.graph import Array

if TYPE_CHECKING:
    import onnx


def captured(node: "onnx.NodeProto") -> tuple[str, ...]:
    """What a node's graphs read from outside them, once each."""
    names = dict[str, None]()
    for graph in graphs_of(node):
        made = {"", *(value.name for value in graph.input), *(one.name for one in graph.initializer)}
        for inner in graph.node:
            names.update(dict.fromkeys(one for one in (*inner.input, *captured(inner)) if one not in made))
            made.update(inner.output)
        names.update(dict.fromkeys(value.name for value in graph.output if value.name not in made))
    return tuple(names)


def graphs_of(node: "onnx.NodeProto") -> Iterable["onnx.GraphProto"]:
    """Those inside a node."""
    for attribute in node.attribute:
        yield from (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs


def with_branches(model: "onnx.ModelProto", known: Mapping[str, Array]) -> "onnx.ModelProto | None":
    """The model with the branches of the Ifs whose conditions are known in their places; None where there is none."""
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
    return node.op_type == "If" and node.domain in ("", "ai.onnx") and node.input[0] in known and known[node.input[0]].size == 1


def _branch(node: "onnx.NodeProto", at: int, known: Mapping[str, Array], graph: "onnx.GraphProto") -> list["onnx.NodeProto"]:
    """The nodes of the branch that is taken; its constants become the graph's."""
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
    """Other names for what a node, and the graphs inside it, read and make."""
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
