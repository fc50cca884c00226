# SPDX-License-Identifier: Apache-2.0
"""Reads the weights that an ONNX model keeps in other files (ONNX's external data)."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pysim.errors import ProblemError, printable
from pysim.onnx.branches import graphs_of
from pysim.onnx.names import text_of

if TYPE_CHECKING:
    import onnx


def load_external(model: "onnx.ModelProto", folder: Path, name: str) -> None:
    """Reads them from files below `folder`, the model's, into the model. ProblemError names the tensor and the file."""
    import onnx
    import onnx.checker
    from onnx.external_data_helper import load_external_data_for_tensor

    tensors = [*_initializers(model.graph), *_constants(model.graph.node)]
    tensors += [tensor for function in model.functions for tensor in _constants(function.node)]
    for tensor in tensors:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
        file = folder / location
        about = f'{name}: the values of "{text_of(tensor.name)}" should be in the file {text_of(printable(str(file)))}'
        if not file.is_relative_to(folder) or ".." in file.parts:
            raise ProblemError(f"{about}, which is outside the model's folder; ONNX allows files inside it only")
        try:
            if not file.exists():
                raise ProblemError(f"{about}, which does not exist; put it there")
            load_external_data_for_tensor(tensor, str(folder))
        except (OSError, ValueError, RuntimeError, onnx.checker.ValidationError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise ProblemError(f"{about}, but it cannot be read: {why}") from None


def _initializers(graph: "onnx.GraphProto") -> Iterator["onnx.TensorProto"]:
    yield from graph.initializer
    for node in graph.node:
        for inner in graphs_of(node):
            yield from _initializers(inner)


def _constants(nodes: "Iterable[onnx.NodeProto]") -> Iterator["onnx.TensorProto"]:
    """Tensors in the attributes of nodes, of their subgraphs, too."""
    for node in nodes:
        yield from (attribute.t for attribute in node.attribute if attribute.HasField("t"))
        for inner in graphs_of(node):
            yield from _constants(inner.node)
