# SPDX-License-Identifier: Apache-2.0
"""Operators of the domain com.microsoft, which ONNX Runtime's optimiser writes
(https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md), as nodes of standard operators:

    Gelu(x)                                   x Phi(x)
    BiasGelu(a, b)                            Gelu(a + b)
    QuickGelu(x)                              x sigmoid(alpha x)
    FusedMatMul(a, b)                         alpha a' b', either of which may be transposed in its last two axes
    FusedConv(x, w, bias, z)                  activation(conv(x, w) + bias + z)
    SkipLayerNormalization(x, s, g, b, c)     layer norm over the last axis of x + s + c; the sum is its fourth output

A node in a form that is not here stays as it is and is refused by its name where it is read.
"""

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx

DOMAIN = "com.microsoft"
_ACTIVATIONS = {  # -> the names of `activation_params`
    "Relu": (), "Sigmoid": (), "Tanh": (), "LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Clip": ("min", "max"),
}  # fmt: skip


class _Parts:
    """Makes the nodes that a node becomes, with names of its own for the values between them."""

    def __init__(self, node: "onnx.NodeProto", opset: int) -> None:
        import onnx

        self.opset = opset
        self.node, self.made = node, list[onnx.NodeProto]()
        self.attributes: dict[str, Any] = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
        self.inputs = [*node.input, "", "", "", "", ""]

    def add(self, op: str, inputs: list[str], output: str = "", **attributes: Any) -> str:
        import onnx

        name = output or f"{self.node.output[0]}:{len(self.made)}"
        self.made.append(onnx.helper.make_node(op, inputs, [name], name=f"{self.node.name or self.node.output[0]}:{op}", **attributes))
        return name

    def number(self, value: float) -> str:
        """A constant in float32, the type of all of the model's numbers."""
        import onnx

        return self.add("Constant", [], value=onnx.helper.make_tensor("", onnx.TensorProto.FLOAT, (), [value]))


def with_standard(model: "onnx.ModelProto") -> None:
    """Replaces these nodes in a model's graph; only if all of its numbers that are not integers are float32."""
    import onnx

    nodes, others = list(model.graph.node), (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE)
    types = [one.data_type for one in model.graph.initializer]
    types += [one.type.tensor_type.elem_type for one in (*model.graph.input, *model.graph.value_info)]
    if not any(node.domain == DOMAIN for node in nodes) or any(one in others for one in types):
        return
    opset = max((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), default=1)
    del model.graph.node[:]
    model.graph.node.extend(part for node in nodes for part in _parts(node, opset))


def _parts(node: "onnx.NodeProto", opset: int) -> "Iterator[onnx.NodeProto]":
    expand = _EXPANSIONS.get(node.op_type) if node.domain == DOMAIN else None
    parts = _Parts(node, opset)
    if expand is not None and node.output and expand(parts):
        yield from parts.made
    else:
        yield node


def _gelu(parts: _Parts) -> bool:
    _add_gelu(parts, parts.inputs[0])
    return not parts.attributes


def _bias_gelu(parts: _Parts) -> bool:
    _add_gelu(parts, parts.add("Add", parts.inputs[:2]))
    return not parts.attributes


def _add_gelu(parts: _Parts, x: str) -> None:
    """Before opset 20 as exporters write it, x (1 + erf(x / sqrt(2))) / 2."""
    if parts.opset >= 20:
        parts.add("Gelu", [x], parts.node.output[0])
        return
    erf = parts.add("Erf", [parts.add("Div", [x, parts.number(math.sqrt(2))])])
    doubled = parts.add("Mul", [x, parts.add("Add", [erf, parts.number(1.0)])])
    parts.add("Mul", [doubled, parts.number(0.5)], parts.node.output[0])


def _quick_gelu(parts: _Parts) -> bool:
    x = parts.inputs[0]
    scaled = parts.add("Mul", [x, parts.number(parts.attributes.get("alpha", 1.702))])
    parts.add("Mul", [x, parts.add("Sigmoid", [scaled])], parts.node.output[0])
    return parts.attributes.keys() <= {"alpha"}


def _fused_matmul(parts: _Parts) -> bool:
    given = parts.attributes
    (a, b), alpha, y = parts.inputs[:2], given.get("alpha", 1.0), parts.node.output[0]
    product = "" if alpha != 1 else y
    if given.get("transA", 0) or given.get("transB", 0):
        first, second = "...ji" if given.get("transA", 0) else "...ij", "...kj" if given.get("transB", 0) else "...jk"
        product = parts.add("Einsum", [a, b], product, equation=f"{first},{second}->...ik")
    else:
        product = parts.add("MatMul", [a, b], product)
    if alpha != 1:
        parts.add("Mul", [product, parts.number(alpha)], y)
    transposes = given.get("transA", 0) or given.get("transB", 0)
    return not given.get("transBatchA", 0) and not given.get("transBatchB", 0) and (parts.opset >= 12 or not transposes)


def _fused_conv(parts: _Parts) -> bool:
    how = dict(parts.attributes)
    activation, numbers = how.pop("activation", b"").decode(), [*how.pop("activation_params", [])]
    x, w, bias, addend = parts.inputs[:4]
    last = "" if addend or activation else parts.node.output[0]
    y = parts.add("Conv", [x, w, bias] if bias else [x, w], last, **how)
    if addend:
        y = parts.add("Add", [y, addend], "" if activation else parts.node.output[0])
    if not activation:
        return True
    names = _ACTIVATIONS.get(activation)
    if names is None or len(names) != len(numbers):
        return False
    if activation == "Clip":
        parts.add("Clip", [y, *(parts.number(number) for number in numbers)], parts.node.output[0])
    else:
        parts.add(activation, [y], parts.node.output[0], **dict(zip(names, numbers, strict=True)))
    return True


def _skip_layer_norm(parts: _Parts) -> bool:
    outputs = [*parts.node.output, "", "", ""]
    x, skip, gamma, beta, bias = parts.inputs[:5]
    total = parts.add("Add", [x, skip], "" if bias else outputs[3])
    if bias:
        total = parts.add("Add", [total, bias], outputs[3])
    scale = [total, gamma, beta] if beta else [total, gamma]
    parts.add("LayerNormalization", scale, outputs[0], axis=-1, epsilon=parts.attributes.get("epsilon", 1e-12))
    return not any(outputs[1:3]) and parts.attributes.keys() <= {"epsilon"}


_EXPANSIONS: dict[str, Callable[[_Parts], bool]] = {
    "Gelu": _gelu, "BiasGelu": _bias_gelu, "QuickGelu": _quick_gelu, "FusedMatMul": _fused_matmul, "FusedConv": _fused_conv,
    "SkipLayerNormalization": _skip_layer_norm,
}  # fmt: skip
