# SPDX-License-Identifier: Apache-2.0
"""ONNX models as layers: the problem of every Conv, Gemm and MatMul, from shapes alone; weight values are not read.

Shapes come from ONNX's own shape inference, after local functions are inlined and the batch is set (a symbolic batch to 1). Nodes
are read as https://onnx.ai/onnx/operators/ defines them: NCHW input, weights [M][C/g][R][S], pads top, left, bottom and
right; auto_pad SAME gives ceil(H / stride) outputs, the odd row of padding last (SAME_UPPER) or first (SAME_LOWER).
A MatMul whose right operand is one matrix is one product; the leading dimensions of the left operand are its rows.

Worked number: input [1, 3, 224, 224], weights [64, 3, 7, 7], strides 2, pads 3 is conv:mb1ic3ih224oc64kh7sh2ph3.
"""

import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pysim.errors import MissingError, ProblemError, printable
from pysim.file_io import read_bytes
from pysim.network.graph import Array
from pysim.onnx.names import check_names, text_of
from pysim.onnx.sparse import make_dense
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import Layer, Workload
from pysim.problem.windows import conv_of as convolution

if TYPE_CHECKING:
    import onnx

_DTYPES = {"FLOAT": "f32", "DOUBLE": "f64", "FLOAT16": "f16", "BFLOAT16": "bf16", "INT8": "s8"}
_STANDARD = ("", "ai.onnx")
KEEP_BYTES = 1 << 15  # shape inference may need the values of constants up to this size; larger ones are weights
_MOST_BYTES = (1 << 31) - 1  # the limit of a protobuf message
_MOST_NODES = 50_000  # in a model after inlining its functions
_MOST_CALLS = 100  # nested function calls
_MOST_DIMENSIONS = 64
_LONGEST_STEP = 1 << 30
_WEIGHTED = ("BatchNormalization", "Conv", "ConvTranspose", "Gemm")  # only their first input has a batch
_NOT_READ = {
    "ConvTranspose": "a transposed convolution is not read",
    "DeformConv": "a deformable convolution is not read",
    "ConvInteger": "an integer convolution with zero points is not read",
    "QLinearConv": "a quantized convolution is not read",
    "MatMulInteger": "an integer product with zero points is not read",
    "QLinearMatMul": "a quantized product is not read",
    "Einsum": "an Einsum may be any contraction; it is not read",
    "Attention": "the products inside an Attention are not read",
    "RNN": "the products inside a recurrent layer are not read",
    "GRU": "the products inside a recurrent layer are not read",
    "LSTM": "the products inside a recurrent layer are not read",
}


class Skipped(NamedTuple):
    """A node without a layer, and the reason; with op "Input", a model input whose symbolic batch was set."""

    node: str
    op: str
    reason: str


class ValueType(NamedTuple):
    """The inferred sizes and element type of a value. A symbolic size is its name; `sizes` is None if the rank is unknown."""

    sizes: tuple[int | str, ...] | None
    element: str


def read(path: str | Path, batch: int | None = None) -> tuple[list[Layer], list[Skipped]]:
    """The layers of a model in graph order, labelled by node name (or else output name), and the skipped nodes with the reasons. `batch` as
    in `set_batch`.

    Raises MissingError without the onnx package, and ProblemError for a file that is not an ONNX model.
    """
    name = printable(str(path))
    model = load(Path(path), name)
    skipped = set_batch(model.graph, name, batch)
    model = infer(model, name)
    check_names(model.graph, name)
    tensors = tensors_of(model)
    layers: list[Layer] = []
    for node, inside in nodes_of(model.graph.node):
        kind = text_of(node.op_type)
        if kind not in _READERS and kind not in _NOT_READ:
            continue
        label = text_of(node.name or next(iter(node.output), ""))
        try:
            if inside:
                raise ProblemError(f"it stands inside {inside}, and how often that runs is not in the model")
            layers.append(Layer(read_node(node, tensors), label))
        except ProblemError as error:
            skipped.append(Skipped(label, kind, str(error)))
    return layers, skipped


def load(path: Path, name: str) -> "onnx.ModelProto":
    try:
        import onnx
    except ImportError:
        raise MissingError(f"reading {name} needs the onnx package: pip install '.[onnx]' in a checkout, or pip install onnx") from None
    undecodable = importlib.import_module("google.protobuf.message").DecodeError  # onnx depends on it; it has no types
    content = read_bytes(path, _MOST_BYTES)
    try:
        model = onnx.load_model_from_string(content)
    except (undecodable, ValueError) as error:
        raise ProblemError(f"{name} is not an ONNX model: {error}; it should be a serialized onnx.ModelProto") from None
    if not model.graph.node:
        raise ProblemError(f"{name} is not an ONNX model: it holds no graph with nodes")
    newest = onnx.defs.onnx_opset_version()
    for version in (one.version for one in model.opset_import if one.domain in _STANDARD):
        if not 1 <= version <= newest:
            right = "a newer onnx package may know it" if version > newest else "export it again"
            raise ProblemError(f"{name} is of opset {version}, but this onnx package knows opsets 1 to {newest}; {right}")
    make_dense(model.graph, name)
    return model


def infer(model: "onnx.ModelProto", name: str) -> "onnx.ModelProto":
    """The model with inferred shapes and without its weights."""
    import onnx
    import onnx.inliner

    for tensor in model.graph.initializer:
        if tensor.ByteSize() > KEEP_BYTES:
            tensor.CopyFrom(onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=list(tensor.dims)))
    _bound_steps(model.graph)
    if model.functions:
        _check_functions(model, name)
        _give_defaults(model)
    refusals = (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, RuntimeError, ValueError, TypeError)
    try:
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except refusals as error:
        raise ProblemError(f"{name}: shape inference refused the model: {' '.join(str(error).split())}") from None


def check_strictly(model: "onnx.ModelProto", name: str) -> None:
    """ProblemError with the nodes for which shape inference fails; `infer` leaves their outputs without shapes."""
    import onnx

    try:
        onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise ProblemError(f"{name}: shape inference refused the model: {' '.join(str(error).split())}") from None


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


def _check_functions(model: "onnx.ModelProto", name: str) -> None:
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
        raise ProblemError(f"{name} is not an ONNX model: a function calls itself ({chain}), which ONNX does not allow") from None
    nodes = sum(sizes.get((node.domain, node.op_type, node.overload), 1) for node, _ in nodes_of(model.graph.node))
    if nodes > _MOST_NODES:
        raise ProblemError(f"{name} has more than {_MOST_NODES:,} nodes once its functions are inlined, too many to be read")
    if max(depths.values(), default=0) > _MOST_CALLS:
        raise ProblemError(f"{name} has functions that call each other more than {_MOST_CALLS} deep; at most that is read")


def _give_defaults(model: "onnx.ModelProto") -> None:
    """Calls of functions get the attributes that they leave out, which inlining would drop (onnx 1.23)."""
    defaults = {(one.domain, one.name, one.overload): one.attribute_proto for one in model.functions}
    for nodes in (model.graph.node, *(function.node for function in model.functions)):
        for node, _ in nodes_of(nodes):
            given = {one.name for one in node.attribute}
            node.attribute.extend(one for one in defaults.get((node.domain, node.op_type, node.overload), ()) if one.name not in given)


def set_batch(graph: "onnx.GraphProto", name: str, batch: int | None = None) -> list[Skipped]:
    """Sets the batch, the first dimension of the inputs. A symbolic batch becomes `batch`, or 1, wherever its name occurs; notes say so.
    A fixed batch changes only if `batch` is given. ProblemError if the model contains its batch as a constant."""
    constants = {tensor.name for tensor in graph.initializer}
    constants |= {one for node in graph.node if node.op_type in _WEIGHTED for one in node.input[1:]}
    inputs = [value for value in graph.input if value.name not in constants and len(value.type.tensor_type.shape.dim) > 1]
    dims = [value.type.tensor_type.shape.dim[0] for value in inputs]
    if all(dim.HasField("dim_value") for dim in dims):
        if batch is not None:
            _set_fixed_batch(graph, name, [(value.name, dim) for value, dim in zip(inputs, dims, strict=True)], batch)
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


def _set_fixed_batch(graph: "onnx.GraphProto", name: str, inputs: Sequence[tuple[str, Any]], batch: int) -> None:
    """Changes the batch of inputs and outputs that share the first input's. Rejects a Reshape to a constant shape with the old batch."""
    import onnx

    if not inputs:
        raise ProblemError(f"{name} cannot be of batch {batch}: none of its inputs has a batch")
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
            raise ProblemError(f"{name} cannot be of batch {batch}: {where}; expected a model that was exported with a dynamic batch")
    ends = [value.type.tensor_type.shape.dim for value in graph.output]
    for dim in [one for _, one in inputs] + [one[0] for one in ends if one]:
        if dim.dim_value == before:
            dim.dim_value = batch
    del graph.value_info[:]


def tensors_of(model: "onnx.ModelProto") -> dict[str, ValueType]:
    """The inferred type of each value of the top graph, by name."""
    tensors = {value.name: _type_of(value) for value in (*model.graph.output, *model.graph.value_info, *model.graph.input)}
    return tensors | {one.name: ValueType(tuple(one.dims), _element(one.data_type)) for one in model.graph.initializer}


def _type_of(value: "onnx.ValueInfoProto") -> ValueType:
    kind = value.type.tensor_type
    sizes = tuple(dim.dim_value if dim.HasField("dim_value") else text_of(dim.dim_param) or "?" for dim in kind.shape.dim)
    return ValueType(sizes if kind.HasField("shape") else None, _element(kind.elem_type))


@cache
def _element(number: int) -> str:
    import onnx

    return str(onnx.TensorProto.DataType.Name(number)) if number in onnx.TensorProto.DataType.values() else "UNDEFINED"


def array_of(tensor: "onnx.TensorProto", name: str) -> Array:
    """The values of a constant; ProblemError if its data do not make an array of its type and shape."""
    import onnx

    if _element(tensor.data_type) == "UNDEFINED":
        raise ProblemError(f'{name}: the constant "{text_of(tensor.name)}" is of the unknown type {tensor.data_type}')
    try:
        found: Array = onnx.numpy_helper.to_array(tensor)
    except Exception as error:  # each fault has its own exception
        raise ProblemError(f'{name}: the constant "{text_of(tensor.name)}" cannot be read: {error}') from None
    return found


def nodes_of(nodes: "Sequence[onnx.NodeProto]", inside: str = "") -> "Iterator[tuple[onnx.NodeProto, str]]":
    """Every node, with the control-flow node that contains it, if any."""
    for node in nodes:
        yield node, inside
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from nodes_of(graph.node, inside or f"{text_of(node.op_type)} {text_of(node.name)}".strip())


def read_node(node: "onnx.NodeProto", tensors: Mapping[str, ValueType]) -> Workload:
    """The node's problem, or a ProblemError whose text is the reason to skip it."""
    import onnx

    if node.domain not in _STANDARD:
        raise ProblemError(f'it is of the domain "{text_of(node.domain)}", which is not read')
    if node.op_type in _NOT_READ:
        raise ProblemError(_NOT_READ[node.op_type])
    operands = [tensors.get(name, ValueType(None, "UNDEFINED")) for name in node.input[:2]]
    for name, tensor, side in zip(node.input, operands, ("first", "second"), strict=False):
        if tensor.sizes is None:
            raise ProblemError(f'the shape of its {side} input "{text_of(name)}" is not known')
        if len(tensor.sizes) > _MOST_DIMENSIONS:
            raise ProblemError(
                f'its {side} input "{text_of(name)}" has {len(tensor.sizes)} dimensions; at most {_MOST_DIMENSIONS} are read'
            )
        if symbols := [size for size in tensor.sizes if isinstance(size, str)]:
            dynamic = f"the size {symbols[0]} is dynamic; export the model with a fixed size"
            raise ProblemError(f'its {side} input "{text_of(name)}" is {_shape(tensor)}: {dynamic}')
    if len(operands) < 2:
        raise ProblemError(f"it has {len(operands)} inputs, where two are needed")
    element = operands[0].element
    if operands[1].element != element:
        raise ProblemError(f"its inputs are of the types {element} and {operands[1].element}; expected one type")
    if element not in _DTYPES:
        raise ProblemError(f"its elements are {element}; read are {', '.join(_DTYPES)}")
    try:
        attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    except ValueError as error:
        raise ProblemError(f"an attribute cannot be read: {error}") from None
    problem = _READERS[node.op_type](operands[0], operands[1], attributes, _DTYPES[element])
    if len(node.input) > 2 and (addend := tensors.get(node.input[2])):
        check_addend(problem, addend)
    return problem


def check_addend(problem: Workload, addend: ValueType) -> None:
    """ProblemError for a Conv's bias that is not one number per filter, or a Gemm's C that cannot be broadcast to m x n."""
    sizes = _sizes(addend)
    if addend.sizes is None or len(sizes) != len(addend.sizes):
        return
    if isinstance(problem, Conv):
        if sizes != [problem.filters]:
            raise ProblemError(f"its bias is {_shape(addend)}; expected [{problem.filters}], one number per filter")
    elif len(sizes) > 2 or any(size not in (1, right) for size, right in zip(sizes[::-1], (problem.n, problem.m), strict=False)):
        raise ProblemError(f"its C is {_shape(addend)}, which cannot be broadcast to the result, [{problem.m}, {problem.n}]")


def _shape(tensor: ValueType) -> str:
    return f"[{', '.join(str(size) for size in tensor.sizes or ())}]"


def _sizes(tensor: ValueType) -> list[int]:
    return [size for size in tensor.sizes or () if isinstance(size, int)]


def conv_of(x: ValueType, w: ValueType, attributes: Mapping[str, Any], dtype: str) -> Conv:
    image, weights = _sizes(x), _sizes(w)
    if not 3 <= len(image) <= 5:
        kind = f", a {len(image) - 2}-D convolution" if len(image) > 2 else ""
        raise ProblemError(f"its input is {_shape(x)}{kind}; convolutions along one, two or three axes are read")
    if len(weights) != len(image):
        raise ProblemError(f"its weights are {_shape(w)}; those of its input, {_shape(x)}, have as many dimensions")
    groups = integers_of(attributes, "group", [1])[0]
    if weights[1] * groups != image[1]:
        raise ProblemError(f"its input is {_shape(x)}, but weights {_shape(w)} take {weights[1] * groups} channels")
    if (kernel := integers_of(attributes, "kernel_shape", weights[2:])) != weights[2:]:
        raise ProblemError(f"kernel_shape is {kernel}, but the weights are {_shape(w)}")
    ones = [1] * len(kernel)
    strides, dilations = (integers_of(attributes, name, ones) for name in ("strides", "dilations"))
    extents = [dilation * (size - 1) + 1 for dilation, size in zip(dilations, kernel, strict=True)]
    return convolution(image, weights, strides, pads_of(attributes, image[2:], extents, strides), dilations, groups, dtype)


def integers_of(attributes: Mapping[str, Any], name: str, default: list[int]) -> list[int]:
    """An attribute with as many integers as the default."""
    value = attributes.get(name, default)
    numbers = value if isinstance(value, list) else [value]
    if len(numbers) != len(default) or not all(isinstance(number, int) for number in numbers):
        raise ProblemError(f"{name} is {text_of(repr(value))}; it should be {len(default)} whole numbers")
    return numbers


def pads_of(attributes: Mapping[str, Any], sizes: list[int], extents: list[int], strides: list[int]) -> list[int]:
    """Top, left, bottom, right; for any number of axes, the pads before each axis, then those after each."""
    rule, none = attributes.get("auto_pad", b"NOTSET"), [0] * (2 * len(sizes))
    if rule == b"NOTSET":
        return integers_of(attributes, "pads", none)
    if rule == b"VALID":
        return none
    if rule not in (b"SAME_UPPER", b"SAME_LOWER"):
        raise ProblemError(f"auto_pad is {text_of(repr(rule))}; it should be NOTSET, VALID, SAME_UPPER or SAME_LOWER")
    if min(strides) < 1:
        raise ProblemError(f"strides are {strides}; they should be at least 1")
    halves = []
    for size, extent, stride in zip(sizes, extents, strides, strict=True):
        total = max(0, (-(-size // stride) - 1) * stride + extent - size)
        halves.append((total // 2, total - total // 2))
    small, large = ([pair[side] for pair in halves] for side in (0, 1))
    return small + large if rule == b"SAME_UPPER" else large + small


def _gemm(a: ValueType, b: ValueType, attributes: Mapping[str, Any], dtype: str) -> Gemm:
    left, right = _sizes(a), _sizes(b)
    if len(left) != 2 or len(right) != 2:
        raise ProblemError(f"its inputs are {_shape(a)} and {_shape(b)}; a Gemm has two matrices")
    trans_a, trans_b = (bool(integers_of(attributes, name, [0])[0]) for name in ("transA", "transB"))
    m, k = reversed(left) if trans_a else left
    rows, n = reversed(right) if trans_b else right
    if rows != k:
        raise ProblemError(f"its inputs are {_shape(a)} and {_shape(b)}, which do not multiply (k is {k} and {rows})")
    return Gemm(m=m, n=n, k=k, trans_a=trans_a, trans_b=trans_b, dtype=dtype)


def _matmul(a: ValueType, b: ValueType, attributes: Mapping[str, Any], dtype: str) -> Gemm:
    left, right = _sizes(a), _sizes(b)
    if not left or not right:
        raise ProblemError(f"its inputs are {_shape(a)} and {_shape(b)}; a product needs vectors or more")
    rows, n = (right[0], 1) if len(right) == 1 else (right[-2], right[-1])
    if left[-1] != rows:
        raise ProblemError(f"its inputs are {_shape(a)} and {_shape(b)}, which do not multiply")
    if (batch := math.prod(right[:-2])) != 1:
        raise ProblemError(f"batched: {_shape(a)} times {_shape(b)} has {batch} right sides; only one product is read")
    return Gemm(m=math.prod(left[:-1]), n=n, k=rows, dtype=dtype)


_READERS: dict[str, Callable[[ValueType, ValueType, Mapping[str, Any], str], Workload]]
_READERS = {"Conv": conv_of, "Gemm": _gemm, "MatMul": _matmul}
