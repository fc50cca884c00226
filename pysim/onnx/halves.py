# SPDX-License-Identifier: Apache-2.0
"""Models of bfloat16 and float16 as models of float32 that remember which values were bfloat16 (`Graph.narrow`) and float16 (`Graph.half`).

Every number of these is one of float32, so nothing is lost. A network may then keep values of bfloat16, and multiply them, in either type;
results of operators are rounded at most as often as the model says, and exactly where it converts numbers of other types to these. Where a
model multiplies other numbers than bfloat16, all of it runs in float32, so that none of its products is of fewer bits than it asks for.
A model that quantises float16 is left as it is, since ONNX's text divides by a scale of float16 in float16; so is one with a result of
unknown type.
"""

from collections.abc import Iterator, Mapping, Set
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pysim.network.graph import Array
from pysim.onnx.protos import element_of, graphs_in
from pysim.onnx.shape_inference import ValueType

if TYPE_CHECKING:
    import onnx

_NARROW, _HALF, _WIDE, _ROUNDED = "BFLOAT16", "FLOAT16", "FLOAT", ":rounded"
_UNKNOWN, _FLOATS = "UNDEFINED", ("BFLOAT16", "FLOAT16", "FLOAT", "DOUBLE")
_CASTS = ("Cast", "CastLike")
_TYPES = ("dtype", "output_dtype", "stash_type", "to")  # attributes that are types
_PRODUCTS = ("Attention", "Conv", "ConvTranspose", "DeformConv", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN")


class Short(NamedTuple):
    """Values that were bfloat16, of a model that multiplies other types its inputs and outputs alone, and those that were float16."""

    narrow: frozenset[str] = frozenset()
    half: frozenset[str] = frozenset()


def widened(model: "onnx.ModelProto", constants: dict[str, Array], declared: dict[str, ValueType]) -> Short:
    """Turns a model whose shapes are inferred, its constants and the types that it declared into such of float32, in place."""
    import onnx

    kinds = {value.name: element_of(value.type.tensor_type.elem_type) for value in _values(model)}
    kinds |= {tensor.name: element_of(tensor.data_type) for graph in graphs_in(model.graph) for tensor in graph.initializer}
    kinds |= {name: of.element for name, of in declared.items() if kinds.get(name, _UNKNOWN) == _UNKNOWN}
    quantises = any(node.op_type == "QuantizeLinear" and kinds.get(node.input[0]) == _HALF for node in _nodes(model))
    short = {_NARROW} if quantises else {_NARROW, _HALF}
    if any(kinds.get(value.name, _UNKNOWN) == _UNKNOWN for value in model.graph.output):
        return Short()
    if not short.intersection(kinds.values()) and not any(short.intersection(told) for told in map(_told, _nodes(model))):
        return Short()
    mixed = any(node.op_type in _PRODUCTS and kinds.get(node.input[0]) != _NARROW for node in _nodes(model))
    for value in _values(model):
        if element_of(value.type.tensor_type.elem_type) in short:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for graph in graphs_in(model.graph):
        for tensor in graph.initializer:
            _widen(tensor, short)
        for node in [one for one in graph.node if one.op_type in _CASTS and kinds.get(one.input[0]) != kinds.get(one.output[0])]:
            if _leaves(node, kinds, model.graph) and _HALF in short:
                node.op_type = "Identity"  # it is rounded where it leaves
                del node.attribute[:], node.input[1:]
            elif kinds.get(node.output[0]) in short:
                _round(node, kinds[node.output[0]], graph)
            elif kinds.get(node.input[0]) == _HALF in short and kinds.get(node.output[0]) not in _FLOATS:
                _round_before(node, graph)
        for node in [one for one in graph.node if one.op_type == "Clip" and kinds.get(one.input[0]) == _HALF in short]:
            _bound(node, graph)
    for node in _nodes(model):
        if not (node.op_type == "Cast" and node.output[0].endswith(_ROUNDED)):
            _widen_attributes(node, kinds, short)
    constants |= {name: array.astype(np.float32) for name, array in constants.items() if array.dtype.name.upper() in short}
    declared |= {name: of._replace(element=_WIDE) for name, of in declared.items() if of.element in short}
    ends = frozenset(value.name for value in (*model.graph.input, *model.graph.output))
    narrow, half = (frozenset(name for name, kind in kinds.items() if kind == which in short) for which in (_NARROW, _HALF))
    return Short(narrow & ends if mixed else narrow, half)


def _leaves(cast: "onnx.NodeProto", kinds: Mapping[str, str], graph: "onnx.GraphProto") -> bool:
    """Whether it converts float32 to float16 that is an output of the model and nothing else."""
    name = cast.output[0]
    is_output = (kinds.get(cast.input[0]), kinds.get(name)) == (_WIDE, _HALF) and any(name == one.name for one in graph.output)
    return is_output and not any(name in node.input for node in graph.node) and len([*graphs_in(graph)]) == 1


def _widen_attributes(node: "onnx.NodeProto", kinds: Mapping[str, str], short: Set[str]) -> None:
    """Types that a node names, or has, as float32; what then converts float32 to itself changes nothing."""
    import onnx

    for one in node.attribute:
        if one.name in _TYPES and element_of(one.i) in short:
            one.i = onnx.TensorProto.FLOAT
        for tensor in (*([one.t] if one.HasField("t") else ()), *one.tensors):
            _widen(tensor, short)
    of_floats = kinds.get(node.input[0]) in {*short, _WIDE} if node.op_type == "Cast" else False
    if of_floats and any(one.name == "to" and one.i == onnx.TensorProto.FLOAT for one in node.attribute):
        node.op_type = "Identity"
        del node.attribute[:]


def _round(cast: "onnx.NodeProto", kind: str, graph: "onnx.GraphProto") -> None:
    """A conversion to a type of 16 bits as one there and one to float32."""
    import onnx

    back = onnx.helper.make_node("Cast", [cast.output[0] + _ROUNDED], [cast.output[0]], to=onnx.TensorProto.FLOAT)
    there = onnx.helper.make_node("Cast", cast.input[:1], back.input, cast.name, to=onnx.TensorProto.DataType.Value(kind))
    at = list(graph.node).index(cast)
    graph.node.insert(at + 1, back)
    graph.node[at].CopyFrom(there)


def _round_before(cast: "onnx.NodeProto", graph: "onnx.GraphProto") -> None:
    """A conversion of float16 to integers as one of rounded numbers."""
    import onnx

    name = f"{cast.output[0]}:half{_ROUNDED}"
    half = onnx.helper.make_node("Cast", cast.input[:1], [name], to=onnx.TensorProto.FLOAT16)
    graph.node.insert(list(graph.node).index(cast), half)
    cast.input[0] = name


def _bound(clip: "onnx.NodeProto", graph: "onnx.GraphProto") -> None:
    """A Clip whose bounds are inputs with those that are left out, the largest numbers of float16."""
    import onnx

    if any(one.name in ("max", "min") for one in clip.attribute):
        return
    clip.input.extend([""] * (3 - len(clip.input)))
    for place, number in ((1, np.finfo(np.float16).min), (2, np.finfo(np.float16).max)):
        if not clip.input[place]:
            clip.input[place] = f"{clip.output[0]}:bound {place}"
            value = onnx.numpy_helper.from_array(np.asarray(number, np.float32))
            graph.node.insert(list(graph.node).index(clip), onnx.helper.make_node("Constant", [], [clip.input[place]], value=value))


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


def _widen(tensor: "onnx.TensorProto", short: Set[str]) -> None:
    """A weight that was left out has its type alone."""
    import onnx

    if element_of(tensor.data_type) not in short:
        return
    if tensor.ByteSize() and (tensor.raw_data or tensor.int32_data):
        tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    tensor.data_type = onnx.TensorProto.FLOAT
