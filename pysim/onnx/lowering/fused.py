# SPDX-License-Identifier: Apache-2.0
"""Operators of the domain com.microsoft, which ONNX Runtime writes into the files that it optimised, as the standard ones that they mean.

    Gelu, BiasGelu          x / 2 (1 + erf(x / sqrt(2))), of x + bias
    FastGelu                x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), of x + bias if there is one
    QuickGelu               x sigmoid(alpha x)
    FusedConv, FusedGemm    the operator and an activation; a FusedConv may add another value before it
    FusedMatMul             a MatMul of transposed operands, times alpha
    SkipLayerNormalization  a LayerNormalization of input + skip + bias
    quantised operators     `pysim.onnx.lowering.fused_integers`

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pysim.errors import ProblemError
from pysim.onnx.lowering import fused_integers
from pysim.onnx.protos import STANDARD, attributes_of, label_of, text_of
from pysim.onnx.shape_inference import ValueType, infer, tensors_of

if TYPE_CHECKING:
    import onnx

DOMAIN = "com.microsoft"
_EPSILON = 1e-12  # the default of a SkipLayerNormalization
_ACTIVATIONS = {  # -> the names of their numbers
    b"Clip": ("min", "max"), b"Elu": ("alpha",), b"HardSigmoid": ("alpha", "beta"), b"LeakyRelu": ("alpha",), b"Relu": (), b"Sigmoid": (),
    b"Tanh": (),
}  # fmt: skip


class _Parts:
    """The standard nodes that one fused node becomes. Inner values and nodes are named after it."""

    def __init__(self, node: "onnx.NodeProto", types: dict[str, ValueType], opset: int) -> None:
        self.node, self.types, self.opset = node, types, opset
        self.given = attributes_of(node)
        self.inputs = [*node.input, *[""] * 5]
        self.element = types.get(self.inputs[0], ValueType(None, "UNDEFINED")).element
        self.nodes: list[onnx.NodeProto] = []

    def found(self) -> list["onnx.NodeProto"]:
        form = _FORMS[self.node.op_type]
        if unknown := sorted(self.given.keys() - form.attributes):
            raise self.refuse(f"its attributes {', '.join(map(text_of, unknown))} are not known")
        if not all(self.inputs[: form.least]) or not any(self.node.output[:1]):
            raise self.refuse(f"it has too few inputs or outputs; expected {form.least} and one")
        form.meant(self)
        return self.nodes

    def refuse(self, why: str) -> ProblemError:
        return ProblemError(f'{self.node.op_type} "{label_of(self.node)}" cannot be run: {why}')

    def add(self, op: str, inputs: list[str], last: bool = False, **attributes: Any) -> str:
        import onnx

        label, made = self.node.name or self.node.output[0], self.node.output[0]
        out = made if last else f"{made}:{len(self.nodes)}"
        name = label if last else f"{label}:{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(op, inputs, [out], name=name, **attributes))
        return out

    def add_several(self, op: str, inputs: list[str], outputs: list[str]) -> None:
        import onnx

        name = f"{self.node.name or self.node.output[0]}:{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(op, inputs, outputs, name=name))

    def number(self, value: float) -> str:
        """A constant of the type of the first input."""
        import onnx

        if self.element not in ("FLOAT", "DOUBLE", "FLOAT16"):
            raise self.refuse(f"its input is of the type {self.element}; expected FLOAT, DOUBLE or FLOAT16")
        kind = onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(self.element))
        return self.add("Constant", [], value=onnx.numpy_helper.from_array(np.array(value, kind)))

    def activated(self, x: str, kind: bytes, params: list[float]) -> None:
        """Ends with an activation; its numbers are `params`, or else its defaults."""
        names = _ACTIVATIONS.get(kind)
        if names is None:
            known = ", ".join(sorted(of.decode() for of in _ACTIVATIONS))
            raise self.refuse(f"its activation {text_of(kind)} is not known; known are {known}")
        if len(params) not in (0, len(names)):
            raise self.refuse(f"its activation {text_of(kind)} has {len(params)} numbers; expected {len(names)}")
        if kind == b"Clip":
            low, high = params if len(params) == 2 else (-math.inf, math.inf)
            if self.opset < 11:
                self.add("Clip", [x], last=True, min=low, max=high)
            else:
                self.add("Clip", [x, self.number(low), self.number(high)], last=True)
        else:
            self.add(kind.decode(), [x], last=True, **dict(zip(names, params, strict=False)))


def _gelu(p: _Parts) -> None:
    x = p.inputs[0]
    if p.node.op_type != "Gelu" and p.inputs[1]:
        x = p.add("Add", [x, p.inputs[1]])
    tanh = p.node.op_type == "FastGelu"
    if p.opset >= 20:
        p.add("Gelu", [x], last=True, approximate="tanh" if tanh else "none")
        return
    if tanh:
        cube = p.add("Mul", [p.add("Mul", [p.add("Mul", [x, x]), x]), p.number(0.044715)])
        inner = p.add("Tanh", [p.add("Mul", [p.add("Add", [x, cube]), p.number(math.sqrt(2 / math.pi))])])
    else:
        inner = p.add("Erf", [p.add("Div", [x, p.number(math.sqrt(2))])])
    p.add("Mul", [p.add("Mul", [x, p.add("Add", [inner, p.number(1)])]), p.number(0.5)], last=True)


def _quick_gelu(p: _Parts) -> None:
    gate = p.add("Sigmoid", [p.add("Mul", [p.inputs[0], p.number(p.given.get("alpha", 1.702))])])
    p.add("Mul", [p.inputs[0], gate], last=True)


def _conv(p: _Parts) -> None:
    kept = {name: value for name, value in p.given.items() if name not in ("activation", "activation_params")}
    kind, added = p.given.get("activation", b""), p.inputs[3]
    y = p.add("Conv", [one for one in p.inputs[:3] if one], last=not kind and not added, **kept)
    if added:
        y = p.add("Add", [y, added], last=not kind)
    if kind:
        p.activated(y, kind, list(p.given.get("activation_params", ())))


def _gemm(p: _Parts) -> None:
    kept = {name: value for name, value in p.given.items() if not name.startswith("activation")}
    kind = p.given.get("activation", b"")
    inputs = [one for one in p.inputs[:3] if one]
    if len(inputs) < 3 and p.opset < 11:
        inputs.append(p.number(0))
    y = p.add("Gemm", inputs, last=not kind, **kept)
    if kind:
        p.activated(y, kind, [p.given[f"activation_{name}"] for name in ("alpha", "beta", "gamma") if f"activation_{name}" in p.given])


def _matmul(p: _Parts) -> None:
    if p.given.get("transBatchA") or p.given.get("transBatchB"):
        raise p.refuse("its operands are transposed into batches (transBatchA, transBatchB)")
    sides = []
    for name, what in zip(p.inputs, ("transA", "transB"), strict=False):
        sizes = p.types.get(name, ValueType(None, "")).sizes
        if p.given.get(what) and sizes is None:
            raise p.refuse(f'the number of axes of "{text_of(name)}", which it transposes, is not known')
        rank = len(sizes or ())
        flips = p.given.get(what) and rank > 1  # a vector has nothing to transpose
        sides.append(p.add("Transpose", [name], perm=[*range(rank - 2), rank - 1, rank - 2]) if flips else name)
    alpha = p.given.get("alpha", 1.0)
    y = p.add("MatMul", sides, last=alpha == 1)
    if alpha != 1:
        p.add("Mul", [y, p.number(alpha)], last=True)


def _skip_norm(p: _Parts) -> None:
    x, skip, scale, shift, bias = p.inputs[:5]
    if any(p.node.output[1:3]):
        raise p.refuse("its outputs mean and inv_std_var are not computed")
    total = p.add("Add", [x, skip])
    total = p.add("Add", [total, bias]) if bias else total
    if len(p.node.output) > 3 and p.node.output[3]:
        p.nodes[-1].output[0] = total = p.node.output[3]
    about = {"axis": -1, "epsilon": p.given.get("epsilon", _EPSILON)}
    p.add("LayerNormalization", [total, scale, *([shift] if shift else [])], last=True, **about)


class _Form(NamedTuple):
    meant: Callable[[_Parts], None]
    attributes: frozenset[str]
    least: int = 1  # inputs


def _form(meant: Callable[[_Parts], None], attributes: str = "", least: int = 1) -> _Form:
    return _Form(meant, frozenset(attributes.split()), least)


_FORMS = {
    "BiasGelu": _form(_gelu, least=2), "FastGelu": _form(_gelu), "Gelu": _form(_gelu), "QuickGelu": _form(_quick_gelu, "alpha"),
    "FusedConv": _form(_conv, "activation activation_params auto_pad dilations group kernel_shape pads strides", 2),
    "FusedGemm": _form(_gemm, "activation activation_alpha activation_beta activation_gamma alpha beta transA transB", 2),
    "FusedMatMul": _form(_matmul, "alpha transA transB transBatchA transBatchB", 2),
    "SkipLayerNormalization": _form(_skip_norm, "epsilon", 3),
    "QLinearConv": _form(fused_integers.conv, "auto_pad dilations group kernel_shape pads strides", 8),
    "QLinearMatMul": _form(fused_integers.matmul, "", 8), "QGemm": _form(fused_integers.gemm, "alpha transA transB", 3),
    "QLinearAdd": _form(fused_integers.pair, "", 2), "QLinearMul": _form(fused_integers.pair, "", 2),
    "QLinearConcat": _form(fused_integers.concat, "axis", 3),
    "QLinearAveragePool": _form(
        fused_integers.unary, "auto_pad ceil_mode channels_last count_include_pad dilations kernel_shape pads strides", 2
    ),
    "QLinearGlobalAveragePool": _form(fused_integers.unary, "channels_last", 2),
    "QLinearLeakyRelu": _form(fused_integers.unary, "alpha", 2), "QLinearReduceMean": _form(fused_integers.unary, "axes keepdims", 2),
    "QLinearSigmoid": _form(fused_integers.unary, "", 2), "QLinearSoftmax": _form(fused_integers.unary, "axis opset", 2),
    "MatMulIntegerToFloat": _form(fused_integers.to_float, "", 4),
    "MatMulNBits": _form(fused_integers.matmul_of_bits, "K N bits block_size accuracy_level weight_prepacked", 3),
    "DynamicQuantizeMatMul": _form(fused_integers.dynamic_matmul, "", 3),
    "QuantizeLinear": _form(fused_integers.quantize, "axis block_size", 2),
    "DequantizeLinear": _form(fused_integers.quantize, "axis block_size", 2),
}  # fmt: skip


def without_fused(model: "onnx.ModelProto", opset: int) -> "onnx.ModelProto":
    """The inferred model with fused nodes replaced. ProblemError for one that has no standard meaning here. What a node's parts are may
    depend on its inputs' types, so nodes are replaced from the front, as far as those are known, and inference continues."""
    held = {one.name for one in model.graph.initializer}
    held |= {name for node in model.graph.node if node.op_type == "Constant" for name in node.output}
    tried = set[str]()  # results of operators of ONNX that stay what they are

    def is_fused(node: "onnx.NodeProto") -> bool:
        own = node.op_type in fused_integers.STANDARD and node.domain in STANDARD and not tried.issuperset(node.output)
        return own or (node.domain == DOMAIN and node.op_type in _FORMS and node.op_type not in fused_integers.STANDARD)

    while any(map(is_fused, model.graph.node)):
        types, nodes, progress = tensors_of(model), [], False
        for node in model.graph.node:
            known = types.get(node.input[0], ValueType(None, "UNDEFINED")).element != "UNDEFINED" if node.input else True
            if not is_fused(node) or (not known and progress):
                nodes.append(node)
                continue
            if node.domain != DOMAIN and not fused_integers.becomes_layer(node, types, held):
                tried.update(node.output)
                nodes.append(node)
                continue
            nodes += _Parts(node, types, opset).found()
            progress = True
        kept = [type(node).FromString(node.SerializeToString()) for node in nodes]
        del model.graph.node[:]
        model.graph.node.extend(kept)
        model = infer(model)
    return model
