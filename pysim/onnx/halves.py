# SPDX-License-Identifier: Apache-2.0
"""Models of bfloat16 as models of float32 that remember which values were bfloat16 (`Graph.narrow`).

Every bfloat16 number is one of float32, so nothing is lost. A network may then keep such values, and multiply them, in either type: results
of operators are rounded at most as often as the model says, and exactly where it converts numbers of other types to bfloat16. Where a model
multiplies float32, too, all of it runs in float32, so that none of its products is of fewer bits than it asks for.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from pysim.network.graph import Array
from pysim.onnx.protos import element_of, graphs_in
from pysim.onnx.shape_inference import ValueType

if TYPE_CHECKING:
    import onnx

_NARROW, _WIDE, _ROUNDED = "BFLOAT16", "FLOAT", ":rounded to bfloat16"
_CASTS = ("Cast", "CastLike")
_TYPES = ("dtype", "output_dtype", "stash_type", "to")  # attributes that are types
_PRODUCTS = ("Attention", "Conv", "ConvTranspose", "DeformConv", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN")


def widened(model: "onnx.ModelProto", constants: dict[str, Array], declared: dict[str, ValueType]) -> frozenset[str]:
    """Turns a model whose shapes are inferred, its constants and the types that it declared into such of float32, in place. Returns the
    values that were bfloat16; of a model that multiplies float32 only its inputs and outputs."""
    import onnx

    kinds = {value.name: element_of(value.type.tensor_type.elem_type) for value in _values(model)}
    kinds |= {tensor.name: element_of(tensor.data_type) for graph in graphs_in(model.graph) for tensor in graph.initializer}
    if _NARROW not in kinds.values() and not any(_NARROW in told for told in map(_told, _nodes(model))):
        return frozenset()
    narrow = frozenset(name for name, kind in kinds.items() if kind == _NARROW)
    mixed = any(node.op_type in _PRODUCTS and kinds.get(node.input[0]) != _NARROW for node in _nodes(model))
    was, now = onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT
    for value in _values(model):
        if value.type.tensor_type.elem_type == was:
            value.type.tensor_type.elem_type = now
    for graph in graphs_in(model.graph):
        for tensor in graph.initializer:
            _widen(tensor)
        for node in [one for one in graph.node if one.op_type in _CASTS and kinds.get(one.output[0]) == _NARROW != kinds.get(one.input[0])]:
            _round(node, graph)
    for node in _nodes(model):
        if node.op_type == "Cast" and node.output[0].endswith(_ROUNDED):
            continue
        for one in node.attribute:
            if one.name in _TYPES and one.i == was:
                one.i = now
            for tensor in (*([one.t] if one.HasField("t") else ()), *one.tensors):
                _widen(tensor)
        if (
            node.op_type == "Cast"
            and kinds.get(node.input[0]) in (_NARROW, _WIDE)
            and any(one.name == "to" and one.i == now for one in node.attribute)
        ):
            node.op_type = "Identity"
            del node.attribute[:]
    constants |= {name: array.astype(np.float32) for name, array in constants.items() if array.dtype.name == "bfloat16"}
    declared |= {name: of._replace(element=_WIDE) for name, of in declared.items() if of.element == _NARROW}
    ends = {value.name for value in (*model.graph.input, *model.graph.output)}
    return narrow & ends if mixed else narrow


def _round(cast: "onnx.NodeProto", graph: "onnx.GraphProto") -> None:
    """A conversion to bfloat16 as one there and one to float32."""
    import onnx

    back = onnx.helper.make_node("Cast", [cast.output[0] + _ROUNDED], [cast.output[0]], to=onnx.TensorProto.FLOAT)
    there = onnx.helper.make_node("Cast", cast.input[:1], back.input, cast.name, to=onnx.TensorProto.BFLOAT16)
    at = list(graph.node).index(cast)
    graph.node.insert(at + 1, back)
    graph.node[at].CopyFrom(there)


def _values(model: "onnx.ModelProto") -> "Iterator[onnx.ValueInfoProto]":
    for graph in graphs_in(model.graph):
        yield from (*graph.input, *graph.output, *graph.value_info)


def _nodes(model: "onnx.ModelProto") -> "Iterator[onnx.NodeProto]":
    for graph in graphs_in(model.graph):
        yield from graph.node


def _told(node: "onnx.NodeProto") -> Mapping[str, str]:
    """The types that attributes of a node name, or have."""
    found = {element_of(one.i): one.name for one in node.attribute if one.name in _TYPES}
    return found | {element_of(one.t.data_type): one.name for one in node.attribute if one.HasField("t")}


def _widen(tensor: "onnx.TensorProto") -> None:
    """A weight that was left out has its type alone."""
    import onnx

    if tensor.data_type != onnx.TensorProto.BFLOAT16:
        return
    if tensor.ByteSize() and (tensor.raw_data or tensor.int32_data):
        tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    tensor.data_type = onnx.TensorProto.FLOAT
