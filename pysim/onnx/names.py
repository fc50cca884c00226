# SPDX-License-Identifier: Apache-2.0
"""Checks of ONNX models: each value is defined once, by a node, an initializer or an input, before a node reads it, and each node has
inputs and attributes that its operator allows."""

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

from pysim.onnx.protos import ModelError, described, graphs_of, text_of

if TYPE_CHECKING:
    import onnx


def check_names(graph: "onnx.GraphProto", outer: Collection[str] = ()) -> None:
    """ModelError for a value that a node reads but nothing before it defines, and for a value defined twice. Subgraphs are checked, too;
    `outer` are the values of the graphs around one."""
    inputs, initializers = ([one.name for one in field] for field in (graph.input, graph.initializer))
    for names, what in ((inputs, "inputs"), (initializers, "initializers")):
        for name, count in Counter(names).items():
            if count > 1:
                raise ModelError(f': {count} {what} are named "{text_of(name)}"; each value needs a name of its own')
    own = {*inputs, *initializers}
    later = {name for node in graph.node for name in node.output}
    for node in graph.node:
        about = f": {described(node)}"
        for name in node.input:
            if name and name not in own and name not in outer:
                early = " before a node computes it; nodes should be in the order of execution, without cycles"
                undefined = ", but no node, initializer or input of the model defines it"
                raise ModelError(f'{about} reads "{text_of(name)}"{early if name in later else undefined}')
        for inner in graphs_of(node):
            check_names(inner, {*own, *outer})
        for name in filter(None, node.output):
            if name in own:
                raise ModelError(f'{about} computes "{text_of(name)}", which is already defined; each value needs a name of its own')
            own.add(name)
    for value in graph.output:
        if value.name not in own and value.name not in outer:
            raise ModelError(f': no node, initializer or input defines its output "{text_of(value.name)}"')


def check_utf8(graph: "onnx.GraphProto") -> None:
    """ModelError for a node with a name that is not UTF-8: protobuf gives such a name as bytes."""
    for node in graph.node:
        names = node.name, node.op_type, node.domain, *node.input, *node.output, *(one.name for one in node.attribute)
        if not all(isinstance(name, str) for name in names):
            raise ModelError(f": {described(node)} has a name that is no UTF-8")


_SINCE_BLOCKS = 21  # opset


def check_nodes(model: "onnx.ModelProto") -> None:
    """ModelError for a node with more or fewer inputs, or with other attributes, than its operator allows.

    Not checked are nodes with subgraphs, which may read values from around them, and operators that the model's opset does not know yet or
    no longer. Blocks of quantised elements, which com.microsoft's operators have in every opset, are checked by the first opset that has
    them."""
    import onnx

    context = onnx.checker.C.CheckerContext()
    context.ir_version = model.ir_version
    context.opset_imports = opsets = {one.domain: one.version for one in model.opset_import}
    for node in model.graph.node:
        about = node.op_type, opsets.get(node.domain, 1), node.domain
        if any(graphs_of(node)) or not onnx.defs.has(*about) or onnx.defs.get_schema(*about).deprecated:
            continue
        in_blocks = not node.domain and any(one.name == "block_size" for one in node.attribute)
        context.opset_imports = {**opsets, "": max(opsets.get("", 1), _SINCE_BLOCKS)} if in_blocks else opsets
        try:
            onnx.checker.check_node(node, context)
        except onnx.checker.ValidationError as error:
            raise ModelError(f": {described(node)} is not valid: {' '.join(str(error).split())}") from None
