# SPDX-License-Identifier: Apache-2.0
"""ONNX's protobuf messages: names as text, nodes and subgraphs, constants as arrays, and errors of a model."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from pysim.errors import ProblemError
from pysim.network.graph import Array

if TYPE_CHECKING:
    import onnx

STANDARD = ("", "ai.onnx")  # domains
_LONGEST = 200  # characters of a name or value in a message


class ModelError(ProblemError):
    """What is wrong with a model, in words that follow its name: " is of opset 1", ": the value ..."."""


@contextmanager
def of_model(name: str) -> Iterator[None]:
    """Errors of this model begin with its name."""
    try:
        yield
    except ModelError as error:
        raise ProblemError(f"{name}{error}") from None


def text_of(name: str | bytes) -> str:
    """A name as text, shortened to fit a line. Protobuf gives a name that is not UTF-8 as bytes."""
    text = name if isinstance(name, str) else name.decode("utf-8", "backslashreplace")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def label_of(node: "onnx.NodeProto") -> str:
    """The name of a node, or else of its output."""
    return text_of(node.name or next(iter(node.output), ""))


def described(node: "onnx.NodeProto") -> str:
    """A node in a message: its operator and its label."""
    return f'{text_of(node.op_type)} "{label_of(node)}"'


def attributes_of(node: "onnx.NodeProto") -> dict[str, Any]:
    import onnx

    return {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}


def graphs_of(node: "onnx.NodeProto") -> "Iterable[onnx.GraphProto]":
    """The subgraphs of a node."""
    for attribute in node.attribute:
        yield from (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs


def graphs_in(graph: "onnx.GraphProto") -> "Iterator[onnx.GraphProto]":
    """A graph and all subgraphs of its nodes."""
    yield graph
    for node in graph.node:
        for inner in graphs_of(node):
            yield from graphs_in(inner)


def nodes_of(nodes: "Sequence[onnx.NodeProto]", inside: str = "") -> "Iterator[tuple[onnx.NodeProto, str]]":
    """Every node, with the control-flow node that contains it, if any."""
    for node in nodes:
        yield node, inside
        for graph in graphs_of(node):
            yield from nodes_of(graph.node, inside or f"{text_of(node.op_type)} {text_of(node.name)}".strip())


@cache
def element_of(number: int) -> str:
    """The name of a type of elements."""
    import onnx

    return str(onnx.TensorProto.DataType.Name(number)) if number in onnx.TensorProto.DataType.values() else "UNDEFINED"


def array_of(tensor: "onnx.TensorProto") -> Array:
    """The values of a constant; ModelError if its data do not make an array of its type and shape."""
    import onnx

    if element_of(tensor.data_type) == "UNDEFINED":
        raise ModelError(f': the constant "{text_of(tensor.name)}" is of the unknown type {tensor.data_type}')
    try:
        found: Array = onnx.numpy_helper.to_array(tensor)
    except Exception as error:  # each fault has its own exception
        raise ModelError(f': the constant "{text_of(tensor.name)}" cannot be read: {error}') from None
    return found
