# SPDX-License-Identifier: Apache-2.0
"""Infers the shapes of an ONNX model's values, with the window counts of pools as libraries compute them (`pysim.onnx.attributes`), and
compares declared shapes.

Before opset 22 shape inference counts differently. It is therefore given pools with other attributes that lead to the right sizes, and
likewise transposed convolutions with auto_pad (`pysim.network.numpy_ops.convolutions`), a Resize or Upsample by scales, a PRelu whose slope
has more axes than its input, and operators that keep a shape but are unknown to inference in an early opset.
"""

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pysim.errors import ProblemError
from pysim.network.numpy_ops.convolutions import SAME
from pysim.network.numpy_ops.resize import sizes_by
from pysim.onnx.attributes import pool_of, transposed_of
from pysim.onnx.protos import STANDARD, ModelError, attributes_of, element_of, nodes_of, text_of

if TYPE_CHECKING:
    import onnx

Sizes = tuple[int | str, ...] | None
KEEP_BYTES = 1 << 15  # shape inference may need the values of constants up to this size; larger ones are weights
_MOST_NODES = 50_000  # in a model after inlining its functions
_MOST_CALLS = 100  # nested function calls
_LONGEST_STEP = 1 << 30
_UNDEFINED = "UNDEFINED"
_POOLS = ("AveragePool", "LpPool", "MaxPool")
_SHAPE_KEEPING = ("Erf", "GroupNormalization", "LayerNormalization", "MeanVarianceNormalization", "ThresholdedRelu")


class ValueType(NamedTuple):
    """The inferred sizes and element type of a value. A symbolic size is its name; `sizes` is None if the rank is unknown."""

    sizes: Sizes
    element: str


Types = Mapping[str, ValueType]


def infer(model: "onnx.ModelProto") -> "onnx.ModelProto":
    """The model with inferred shapes and without its weights."""
    import onnx
    import onnx.inliner

    for tensor in model.graph.initializer:
        if tensor.ByteSize() > KEEP_BYTES:
            tensor.CopyFrom(onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=list(tensor.dims)))
    _bound_steps(model.graph)
    if model.functions:
        _check_functions(model)
        _give_defaults(model)
    refusals = (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, RuntimeError, ValueError, TypeError)
    try:
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except refusals as error:
        raise ModelError(f": shape inference refused the model: {' '.join(str(error).split())}") from None


def check_strictly(model: "onnx.ModelProto") -> None:
    """ModelError with the nodes for which shape inference fails; `infer` leaves their outputs without shapes."""
    import onnx

    try:
        onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise ModelError(f": shape inference refused the model: {' '.join(str(error).split())}") from None


def _bound_steps(graph: "onnx.GraphProto") -> None:
    """Clips constant steps of slices that exceed any shape. Inference accumulates steps in 32 bits; on overflow it loops forever or reads
    beyond an array (onnx 1.23)."""
    import onnx

    steps = {node.input[4] for node in graph.node if node.op_type == "Slice" and len(node.input) > 4}
    made = [
        one.t
        for node in graph.node
        if node.op_type == "Constant" and steps & set(node.output)
        for one in node.attribute
        if one.HasField("t")
    ]
    for tensor in (*made, *(one for one in graph.initializer if one.name in steps)):
        try:
            numbers = onnx.numpy_helper.to_array(tensor)
        except Exception:  # incomplete data: the constant's reader raises a message
            continue
        if numbers.dtype == np.int64 and (np.abs(numbers.astype(np.float64)) > _LONGEST_STEP).any():
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.clip(numbers, -_LONGEST_STEP, _LONGEST_STEP), tensor.name))


def undeclared(graph: "onnx.GraphProto") -> dict[str, ValueType]:
    """Removes the types that a graph declares for its nodes' outputs, and returns them."""
    declared, inputs = {}, {value.name for value in graph.input}
    for value in (*graph.value_info, *(one for one in graph.output if one.name not in inputs)):
        if value.type.HasField("tensor_type"):
            declared[value.name] = _type_of(value)
            value.type.ClearField("tensor_type")
    del graph.value_info[:]
    return declared


def with_constants(model: "onnx.ModelProto", found: Mapping[str, Any]) -> "onnx.ModelProto":
    """The model with nodes replaced by the arrays that they compute; of large arrays only the shapes."""
    import onnx

    made: onnx.ModelProto = onnx.ModelProto.FromString(model.SerializeToString())
    nodes = [type(node).FromString(node.SerializeToString()) for node in made.graph.node if not set(node.output) & found.keys()]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    made.ir_version = max(made.ir_version, 4)  # since 4, inference reads initializers that are not inputs
    for name, array in found.items():
        about = {"name": name, "data_type": onnx.helper.np_dtype_to_tensor_dtype(array.dtype), "dims": array.shape}
        large = array.nbytes > KEEP_BYTES
        made.graph.initializer.append(onnx.TensorProto(**about) if large else onnx.numpy_helper.from_array(array, name))
    return made


def _check_functions(model: "onnx.ModelProto") -> None:
    """Rejects functions that are recursive, nested too deeply, or whose inlining makes too many nodes."""
    bodies = {(function.domain, function.name, function.overload): nodes_of(function.node) for function in model.functions}
    calls = {key: [(node.domain, node.op_type, node.overload) for node, _ in body] for key, body in bodies.items()}
    sizes: dict[object, int] = {}  # nodes of a function after inlining; below, the depth of its calls
    depths: dict[object, int] = {}
    try:
        for key in TopologicalSorter(calls).static_order():
            called = calls.get(key, [])
            sizes[key] = min(sum(sizes[call] for call in called), _MOST_NODES + 1) if key in calls else 1
            depths[key] = 1 + max((depths[call] for call in called), default=0)
    except CycleError as error:
        chain = " calls ".join(text_of(key[1]) for key in error.args[1][:8])
        raise ModelError(f" is not an ONNX model: a function calls itself ({chain}), which ONNX does not allow") from None
    nodes = sum(sizes.get((node.domain, node.op_type, node.overload), 1) for node, _ in nodes_of(model.graph.node))
    if nodes > _MOST_NODES:
        raise ModelError(f" has more than {_MOST_NODES:,} nodes once its functions are inlined, too many to be read")
    if max(depths.values(), default=0) > _MOST_CALLS:
        raise ModelError(f" has functions that call each other more than {_MOST_CALLS} deep; at most that is read")


def _give_defaults(model: "onnx.ModelProto") -> None:
    """Calls of functions get the attributes that they leave out, which inlining would drop (onnx 1.23)."""
    defaults = {(one.domain, one.name, one.overload): one.attribute_proto for one in model.functions}
    for nodes in (model.graph.node, *(function.node for function in model.functions)):
        for node, _ in nodes_of(nodes):
            given = {one.name for one in node.attribute}
            node.attribute.extend(one for one in defaults.get((node.domain, node.op_type, node.overload), ()) if one.name not in given)


def tensors_of(model: "onnx.ModelProto") -> dict[str, ValueType]:
    """The inferred type of each value of the top graph, by name."""
    tensors = {value.name: _type_of(value) for value in (*model.graph.output, *model.graph.value_info, *model.graph.input)}
    return tensors | {one.name: ValueType(tuple(one.dims), element_of(one.data_type)) for one in model.graph.initializer}


def _type_of(value: "onnx.ValueInfoProto") -> ValueType:
    kind = value.type.tensor_type
    sizes = tuple(dim.dim_value if dim.HasField("dim_value") else text_of(dim.dim_param) or "?" for dim in kind.shape.dim)
    return ValueType(sizes if kind.HasField("shape") else None, element_of(kind.elem_type))


def is_known(value: ValueType) -> bool:
    return value.sizes is not None and all(isinstance(size, int) for size in value.sizes)


def inferred(model: "onnx.ModelProto", declared: Types) -> tuple["onnx.ModelProto", Types]:
    """(a model for further inference only, the inferred type of each value). Of the shapes that the model declares, only `declared` are
    used."""
    import onnx

    made = onnx.ModelProto.FromString(model.SerializeToString())
    inputs = {value.name for value in made.graph.input}
    for value in [one for one in made.graph.output if one.name in inputs]:  # inference would treat its type as unknown
        made.graph.output.remove(value)
    while True:
        undeclared(made.graph)
        for value, told in declared.items():
            made.graph.value_info.append(onnx.helper.make_tensor_value_info(value, _number(told.element), told.sizes))
        made = infer(made)
        types = tensors_of(made)
        held = _constants_of(made.graph)
        if not [node for node in made.graph.node if _counted_anew(node, types) or _scaled_anew(node, made.graph, types, held)]:
            return made, types


def _number(element: str) -> int:
    import onnx

    return int(onnx.TensorProto.DataType.Value(element))


def _counted_anew(node: "onnx.NodeProto", types: Types) -> bool:
    """If the inferred output sizes of a pool are wrong, gives it attributes that lead to the right ones. Returns whether it did."""
    import onnx

    if node.domain not in STANDARD or len(node.input) < 1 or not node.output:
        return False
    if node.op_type == "ConvTranspose":
        return _enlarged_anew(node, types)
    if node.op_type == "PRelu":
        return _broadcast_both(node, types)
    if node.op_type == "STFT" and not any(one.name == "onesided" for one in node.attribute):
        node.attribute.append(onnx.helper.make_attribute("onesided", 1))  # its default, which inference takes for 0
        return True
    if node.op_type in _SHAPE_KEEPING:
        return _kept(node, types)
    if node.op_type not in _POOLS:
        return False
    x, y = (types.get(name, ValueType(None, "")).sizes for name in (node.input[0], node.output[0]))
    sizes = [size for size in (x or ())[2:] if isinstance(size, int)]
    if not y or not sizes or len(sizes) + 2 != len(x or ()):
        return False
    try:
        found = pool_of(attributes_of(node), sizes)
    except ProblemError as error:
        raise ProblemError(f'{node.op_type} "{text_of(node.name or node.output[0])}": {error}') from None
    if list(y[2:]) == found.outputs:
        return False
    both = list(zip(sizes, found.outputs, strict=True))
    plain = {
        "kernel_shape": [max(1, size - out + 1) for size, out in both],
        "pads": [0] * len(both) + [max(0, out - size) for size, out in both],
    }
    del node.attribute[:]
    node.attribute.extend(onnx.helper.make_attribute(key, value) for key, value in plain.items())
    return True


def _constants_of(graph: "onnx.GraphProto") -> dict[str, Any]:
    """The initializers and Constants by name, as tensors or lists of numbers."""
    made = {one.name: one for one in graph.initializer}
    for node in graph.node:
        for one in node.attribute if node.op_type == "Constant" else ():
            made[node.output[0]] = one.t if one.name == "value" else list(one.floats)
    return made


def _scaled_anew(node: "onnx.NodeProto", graph: "onnx.GraphProto", types: Types, told: Mapping[str, Any]) -> bool:
    """Gives a Resize or Upsample scales that lead to the sizes that they mean: inference computes their product in double. Returns whether
    the inferred shape was wrong."""
    import onnx

    if node.op_type not in ("Resize", "Upsample") or node.domain not in STANDARD or not node.input:
        return False
    place = 1 if node.op_type == "Upsample" or len(node.input) == 2 else 2
    name = node.input[place] if len(node.input) > place else ""
    (x, y), given = (types.get(one, ValueType(None, "")) for one in (node.input[0], node.output[0])), attributes_of(node)
    if name in told:
        held = told[name]
        scales = held if isinstance(held, list) else onnx.numpy_helper.to_array(held).tolist()
    else:
        scales = list(given.get("scales", ()))
    sizes = [int(size) for size in x.sizes or ()] if is_known(x) else []
    axes = [axis % len(sizes) for axis in given.get("axes", range(len(sizes)))] if sizes else []
    if not scales or len(scales) != len(axes) or not is_known(y):
        return False
    out = dict(zip(axes, sizes_by(scales, [sizes[axis] for axis in axes]), strict=True))
    if all((y.sizes or ())[axis] == size for axis, size in out.items()):
        return False
    plain = np.array([(out[axis] + 0.5) / sizes[axis] for axis in axes], np.float32)
    if name not in told:
        next(one for one in node.attribute if one.name == "scales").floats[:] = plain.tolist()
        return True
    mended = f"{node.output[0]}:scales"
    graph.initializer.append(onnx.numpy_helper.from_array(plain, mended))
    node.input[place] = mended
    return True


def _enlarged_anew(node: "onnx.NodeProto", types: Types) -> bool:
    """Sets the output_shape of a transposed convolution with auto_pad SAME. Returns whether the inferred shape was wrong."""
    import onnx

    given = attributes_of(node)
    x, w, y = (types.get(name, ValueType(None, "")) for name in (*node.input[:2], node.output[0]))
    if given.get("auto_pad") not in SAME or "output_shape" in given or not (is_known(x) and is_known(w)):
        return False
    sizes, kernel = ([size for size in of.sizes[2:] if isinstance(size, int)] for of in (x, w) if of.sizes)
    made = transposed_of(given, sizes, kernel).outputs
    if list((y.sizes or ())[2:]) == made:
        return False
    kept = [one for one in node.attribute if one.name not in ("auto_pad", "output_padding")]
    del node.attribute[:]
    node.attribute.extend([*kept, onnx.helper.make_attribute("output_shape", made)])
    return True


def _broadcast_both(node: "onnx.NodeProto", types: Types) -> bool:
    """Gives a PRelu the shape to which its input and slope are broadcast, as in ONNX Runtime: that of a sum. Returns whether the inferred
    shape, its input's, was wrong."""
    x, slope = (types.get(name, ValueType(None, "")) for name in node.input[:2])
    if not (is_known(x) and is_known(slope)):
        return False
    sizes: list[Any] = [x.sizes, slope.sizes]
    try:
        wrong = np.broadcast_shapes(*sizes) != x.sizes
    except ValueError:
        return False
    if not wrong:
        return False
    node.op_type = "Add"
    return True


def _kept(node: "onnx.NodeProto", types: Types) -> bool:
    """Makes an Identity of an operator that keeps the shape of its input, if inference of its opset does not know it. Returns whether it
    did."""
    x, y = (types.get(name, ValueType(None, "")) for name in (node.input[0], node.output[0]))
    if not is_known(x) or is_known(y) or any(node.output[1:]):
        return False
    node.op_type = "Identity"
    del node.input[1:], node.output[1:], node.attribute[:]
    return True


def check_declared(declared: Types, inferred: Types, makers: Mapping[str, str]) -> None:
    """ModelError for a value whose declared shape or element type contradicts the inferred one; what is unknown contradicts nothing.
    `makers` are the nodes that make the values, in words."""
    for value, told in declared.items():
        found = inferred.get(value, ValueType(None, _UNDEFINED))
        if not _same_shape(told.sizes, found.sizes):
            wrong, right, what = _listed(told.sizes), _listed(found.sizes), "shapes"
        elif told.element != found.element and _UNDEFINED not in (told.element, found.element):
            wrong, right, what = told.element, found.element, "types"
        else:
            continue
        by = f"; it is made by {makers[value]}" if value in makers else ""
        fault = f'declares the value "{text_of(value)}" as {wrong}, but it is {right}'
        raise ModelError(f" {fault}; export it again, or delete the declared {what}{by}")


def _same_shape(a: Sizes, b: Sizes) -> bool:
    if a is None or b is None:
        return True
    return len(a) == len(b) and all(x == y for x, y in zip(a, b, strict=True) if isinstance(x, int) and isinstance(y, int))


def _listed(sizes: Sizes) -> str:
    return f"[{', '.join(map(str, sizes or ()))}]"
