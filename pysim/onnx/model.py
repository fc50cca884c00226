# SPDX-License-Identifier: Apache-2.0
"""Model files of ONNX as protobuf messages: read, with dense constants, the weights that lie in other files, and the batch set."""

import importlib
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pysim.errors import MissingError, printable
from pysim.file_io import read_bytes
from pysim.onnx.protos import STANDARD, ModelError, graphs_in, nodes_of, of_model, text_of
from pysim.onnx.random_weights import seeded

if TYPE_CHECKING:
    import onnx

_MOST_BYTES = (1 << 31) - 1  # the limit of a protobuf message
_MOST_SPARSE_BYTES = 1 << 31
_WEIGHTED = ("BatchNormalization", "Conv", "ConvTranspose", "Gemm")  # only their first input has a batch


class Skipped(NamedTuple):
    """A node without a layer, and the reason; with op "Input", a model input whose symbolic batch was set."""

    node: str
    op: str
    reason: str


class OnnxFile(NamedTuple):
    """The file of a model. MissingError without the onnx package."""

    path: Path

    @property
    def name(self) -> str:
        return printable(str(self.path))

    def weighted(self, batch: int | None = None, seed: int | None = None) -> "onnx.ModelProto":
        """The model with its batch set and weights filled in, as it is run here and by ONNX Runtime. With a `seed`, missing weights are
        random. ProblemError says what is wrong with the file."""
        with of_model(self.name):
            model = self.parsed()
            _load_external(model, self.path.resolve().parent)
            if seed is not None:
                seeded(model, seed)
            set_batch(model.graph, batch)
        return model

    def parsed(self) -> "onnx.ModelProto":
        """The model with dense constants, without the weights that lie in other files. ModelError if it is none."""
        try:
            import onnx
        except ImportError:
            raise MissingError(f"reading {self.name} needs the onnx package: pip install onnx") from None
        undecodable = importlib.import_module("google.protobuf.message").DecodeError  # onnx depends on it; it has no types
        content = read_bytes(self.path, _MOST_BYTES)
        try:
            model = onnx.load_model_from_string(content)
        except (undecodable, ValueError) as error:
            raise ModelError(f" is not an ONNX model: {error}; it should be a serialized onnx.ModelProto") from None
        if not model.graph.node:
            raise ModelError(" is not an ONNX model: it holds no graph with nodes")
        newest = onnx.defs.onnx_opset_version()
        for version in (one.version for one in model.opset_import if one.domain in STANDARD):
            if not 1 <= version <= newest:
                right = "a newer onnx package may know it" if version > newest else "export it again"
                raise ModelError(f" is of opset {version}, but this onnx package knows opsets 1 to {newest}; {right}")
        for graph in graphs_in(model.graph):
            _make_dense(graph)
        return model


def _make_dense(graph: "onnx.GraphProto") -> None:
    """Converts sparse constants in place, so that readers here and in ONNX Runtime see one kind. ModelError for one with indices out of
    range."""
    import onnx

    for sparse in graph.sparse_initializer:
        name = printable(sparse.values.name)
        try:
            values, places = (onnx.numpy_helper.to_array(one) for one in (sparse.values, sparse.indices))
            if prod(sparse.dims) * values.itemsize > _MOST_SPARSE_BYTES:
                raise ValueError(f"it would take more than {_MOST_SPARSE_BYTES:,} bytes")
            array = np.zeros(tuple(sparse.dims), values.dtype)
            flat = places if places.ndim == 1 else np.ravel_multi_index(tuple(places.T), array.shape)
            if flat.size and flat.min() < 0:
                raise ValueError("an index is below 0")
            array.reshape(-1)[flat] = values
        except Exception as error:  # incomplete data
            raise ModelError(f': the sparse constant "{name}" cannot be read: {error}') from None
        graph.initializer.append(onnx.numpy_helper.from_array(array, sparse.values.name))
    del graph.sparse_initializer[:]


def _load_external(model: "onnx.ModelProto", folder: Path) -> None:
    """Reads the weights that a model keeps in files below `folder`, its own (ONNX's external data). ModelError names the tensor and the
    file."""
    import onnx
    import onnx.checker
    from onnx.external_data_helper import load_external_data_for_tensor

    tensors = [tensor for graph in graphs_in(model.graph) for tensor in graph.initializer]
    bodies = (model.graph.node, *(function.node for function in model.functions))
    tensors += [one.t for nodes in bodies for node, _ in nodes_of(nodes) for one in node.attribute if one.HasField("t")]
    for tensor in tensors:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
        file = folder / location
        about = f': the values of "{text_of(tensor.name)}" should be in the file {text_of(printable(str(file)))}'
        if not file.is_relative_to(folder) or ".." in file.parts:
            raise ModelError(f"{about}, which is outside the model's folder; ONNX allows files inside it only")
        try:
            if not file.exists():
                raise ModelError(f"{about}, which does not exist; put it there")
            load_external_data_for_tensor(tensor, str(folder))
        except (OSError, ValueError, RuntimeError, onnx.checker.ValidationError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise ModelError(f"{about}, but it cannot be read: {why}") from None


def set_batch(graph: "onnx.GraphProto", batch: int | None = None) -> list[Skipped]:
    """Sets the batch, the first dimension of the inputs. A symbolic batch becomes `batch`, or 1, wherever its name occurs; notes say so.
    A fixed batch changes only if `batch` is given. ModelError if the model contains its batch as a constant."""
    constants = {tensor.name for tensor in graph.initializer}
    constants |= {one for node in graph.node if node.op_type in _WEIGHTED for one in node.input[1:]}
    inputs = [value for value in graph.input if value.name not in constants and len(value.type.tensor_type.shape.dim) > 1]
    dims = [value.type.tensor_type.shape.dim[0] for value in inputs]
    if all(dim.HasField("dim_value") for dim in dims):
        if batch is not None:
            _set_fixed_batch(graph, [(value.name, dim) for value, dim in zip(inputs, dims, strict=True)], batch)
        return []
    size, notes, symbols = batch or 1, [], set[str]()
    for value, dim in zip(inputs, dims, strict=True):
        if dim.HasField("dim_value") or dim.dim_param in symbols:
            continue
        symbol = dim.dim_param
        dim.dim_value = size
        symbols.update({symbol} - {""})
        told = f'not skipped: its symbolic batch "{text_of(symbol) or "?"}" is read as {size}'
        notes.append(Skipped(text_of(value.name), "Input", told))
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in symbols:
                dim.dim_value = size
    return notes


def _set_fixed_batch(graph: "onnx.GraphProto", inputs: Sequence[tuple[str, Any]], batch: int) -> None:
    """Changes the batch of inputs and outputs that share the first input's. Rejects a Reshape to a constant shape with the old batch."""
    import onnx

    if not inputs:
        raise ModelError(f" cannot be of batch {batch}: none of its inputs has a batch")
    before = inputs[0][1].dim_value
    if before == batch:
        return
    told = {tensor.name: tensor for tensor in graph.initializer} | {
        node.output[0]: one.t for node in graph.node if node.op_type == "Constant" for one in node.attribute if one.name == "value"
    }
    follows = {value for value, dim in inputs if dim.dim_value == before}
    for node in graph.node:
        if not follows & set(node.input):
            continue
        follows.update(node.output)
        shape = next((list(one.ints) for one in node.attribute if one.name == "shape"), [])
        if node.op_type == "Reshape" and len(node.input) > 1 and node.input[1] in told:
            shape = onnx.numpy_helper.to_array(told[node.input[1]]).tolist()
        if node.op_type == "Reshape" and node.input[0] in follows and shape[:1] == [before]:
            where = f'Reshape "{text_of(node.name or node.output[0])}" has the constant shape {shape}'
            raise ModelError(f" cannot be of batch {batch}: {where}; expected a model that was exported with a dynamic batch")
    ends = [value.type.tensor_type.shape.dim for value in graph.output]
    for dim in [one for _, one in inputs] + [one[0] for one in ends if one]:
        if dim.dim_value == before:
            dim.dim_value = batch
    del graph.value_info[:]
