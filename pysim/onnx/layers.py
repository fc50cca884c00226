# SPDX-License-Identifier: Apache-2.0
"""ONNX models as layers: the problem of every Conv, Gemm and MatMul, from shapes alone; weight values are not read.

Shapes come from ONNX's own shape inference, after local functions are inlined and the batch is set (a symbolic batch to 1). Nodes
are read as https://onnx.ai/onnx/operators/ defines them: NCHW input, weights [M][C/g][R][S], pads top, left, bottom and
right; auto_pad SAME gives ceil(H / stride) outputs, the odd row of padding last (SAME_UPPER) or first (SAME_LOWER).
A MatMul whose right operand is one matrix is one product; the leading dimensions of the left operand are its rows.

Worked number: input [1, 3, 224, 224], weights [64, 3, 7, 7], strides 2, pads 3 is conv:mb1ic3ih224oc64kh7sh2ph3.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pysim.errors import ProblemError
from pysim.onnx.attributes import integers_of, pads_of
from pysim.onnx.model import OnnxFile, Skipped, set_batch
from pysim.onnx.names import check_names
from pysim.onnx.protos import STANDARD, attributes_of, label_of, nodes_of, of_model, text_of
from pysim.onnx.shape_inference import ValueType, infer, tensors_of
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import Layer, Workload
from pysim.problem.windows import conv_of as convolution

if TYPE_CHECKING:
    import onnx

_DTYPES = {"FLOAT": "f32", "DOUBLE": "f64", "FLOAT16": "f16", "BFLOAT16": "bf16", "INT8": "s8"}
_MOST_DIMENSIONS = 64
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


def read(path: str | Path, batch: int | None = None) -> tuple[list[Layer], list[Skipped]]:
    """The layers of a model in graph order, labelled by node name (or else output name), and the skipped nodes with the reasons. `batch` as
    in `set_batch`.

    Raises MissingError without the onnx package, and ProblemError for a file that is not an ONNX model.
    """
    file = OnnxFile(Path(path))
    with of_model(file.name):
        model = file.parsed()
        skipped = set_batch(model.graph, batch)
        model = infer(model)
        check_names(model.graph)
    tensors = tensors_of(model)
    layers: list[Layer] = []
    for node, inside in nodes_of(model.graph.node):
        kind = text_of(node.op_type)
        if kind not in _READERS and kind not in _NOT_READ:
            continue
        label = label_of(node)
        try:
            if inside:
                raise ProblemError(f"it stands inside {inside}, and how often that runs is not in the model")
            layers.append(Layer(read_node(node, tensors), label))
        except ProblemError as error:
            skipped.append(Skipped(label, kind, str(error)))
    return layers, skipped


def read_node(node: "onnx.NodeProto", tensors: Mapping[str, ValueType]) -> Workload:
    """The node's problem, or a ProblemError whose text is the reason to skip it."""

    if node.domain not in STANDARD:
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
        attributes = attributes_of(node)
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
