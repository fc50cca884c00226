# SPDX-License-Identifier: Apache-2.0
"""Quantised operators, which ONNX Runtime's tool writes in its QOperator form, as the standard ones between DequantizeLinear and
QuantizeLinear that they mean; `pysim.network.integers` makes integer layers of these.

    QLinearConv, QLinearMatMul, QGemm     a Conv, MatMul, Gemm; their INT32 bias has the scale x_scale w_scale
    QLinearAdd, -Mul, -Concat, -AveragePool, -GlobalAveragePool, -LeakyRelu, -ReduceMean, -Sigmoid, -Softmax
    MatMulIntegerToFloat                  a MatMulInteger, a Cast, and products with both scales
    DynamicQuantizeMatMul                 the same of a DynamicQuantizeLinear
    MatMulNBits                           a MatMul of the matrix that its 4 or 8 bits, scales and zero points by blocks stand for
    QuantizeLinear, DequantizeLinear      those of the domain com.microsoft

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pysim.onnx.shape_inference import ValueType

_FLOAT, _UINT8, _INT32 = 1, 2, 6  # of onnx.TensorProto
ACCURACY_LEVEL, TO_BYTES = "accuracy_level", "4"  # of a MatMulNBits, kept with its DequantizeLinear: inputs may be rounded to signed bytes
STANDARD = ("QLinearConv", "QLinearMatMul")  # of ONNX itself: replaced if all but their first input are constants


def becomes_layer(node: Any, types: dict[str, ValueType], held: set[str]) -> bool:
    """Whether a QLinearConv or QLinearMatMul is a layer with constant weights, of one scale of inputs and results in float32."""
    inputs = [*node.input, *[""] * 9]
    if any(name and name not in held for at, name in enumerate(inputs) if at > 0):
        return False
    scales = [types.get(inputs[at], ValueType(None, "")) for at in (1, 4, 6)]
    single = all(one.sizes in ((), (1,)) for one in (scales[0], scales[2]))
    rank = len(types.get(inputs[3], ValueType(None, "")).sizes or ())  # of weights; an image has theirs
    return single and {one.element for one in scales} == {"FLOAT"} and rank == (4 if node.op_type == "QLinearConv" else 2)


def _plain(p: Any, x: str, scale: str, zero: str, **attributes: Any) -> str:
    made: str = p.add("DequantizeLinear", [x, scale, *([zero] if zero else [])], **attributes)
    return made


def _quantized(p: Any, x: str, scale: str, zero: str) -> None:
    """Ends with bytes; without a zero they are of the first input's type."""
    import onnx

    if not zero:
        kind = onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(p.types[p.inputs[0]].element))
        zero = p.add("Constant", [], value=onnx.numpy_helper.from_array(np.zeros((), kind)))
    p.add("QuantizeLinear", [x, scale, zero], last=True)


def conv(p: Any) -> None:
    x, x_scale, x_zero, w, w_scale, w_zero, scale, zero, bias = p.inputs[:9]
    operands = [_plain(p, x, x_scale, x_zero), _plain(p, w, w_scale, w_zero, axis=0)]
    if bias:
        operands.append(_plain(p, bias, p.add("Mul", [x_scale, w_scale]), "", axis=0))
    _quantized(p, p.add("Conv", operands, **p.given), scale, zero)


def matmul(p: Any) -> None:
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = p.inputs[:8]
    _quantized(p, p.add("MatMul", [_plain(p, a, a_scale, a_zero), _plain(p, b, b_scale, b_zero, axis=1)]), scale, zero)


def gemm(p: Any) -> None:
    a, a_scale, a_zero, b, b_scale, b_zero, bias, scale, zero = p.inputs[:9]
    operands = [_plain(p, a, a_scale, a_zero), _plain(p, b, b_scale, b_zero, axis=0 if p.given.get("transB") else 1)]
    if bias:
        by = p.add("Mul", [a_scale, b_scale])
        by = p.add("Mul", [by, _number(p, p.given["alpha"])]) if p.given.get("alpha", 1.0) != 1 else by
        operands.append(_plain(p, bias, by, "", axis=0))
    elif p.opset < 11:
        operands.append(_number(p, 0.0))
    y = p.add("Gemm", operands, last=not scale, **p.given)
    if scale:
        _quantized(p, y, scale, zero)


def _number(p: Any, value: float) -> str:
    import onnx

    made: str = p.add("Constant", [], value=onnx.numpy_helper.from_array(np.array(value, np.float32)))
    return made


def pair(p: Any) -> None:
    sides = [_plain(p, *p.inputs[at : at + 3]) for at in (0, 3)]
    _quantized(p, p.add(p.node.op_type.removeprefix("QLinear"), sides), *p.inputs[6:8])


def concat(p: Any) -> None:
    scale, zero, *parts = p.node.input
    p.inputs = parts + [""] * 3
    _quantized(p, p.add("Concat", [_plain(p, *parts[at : at + 3]) for at in range(0, len(parts), 3)], **p.given), scale, zero)


def unary(p: Any) -> None:
    """A function of one quantised value."""
    if p.given.pop("channels_last", 0):
        raise p.refuse("its channels are the last axis (channels_last)")
    op, given = p.node.op_type.removeprefix("QLinear"), p.given
    if op == "Softmax":
        version, rank = given.pop("opset", p.opset), len(p.types[p.inputs[0]].sizes or ())
        if (version < 13) != (p.opset < 13) and given.get("axis", -1) not in (-1, rank - 1):
            raise p.refuse(f"it is the Softmax of opset {version} in a model of opset {p.opset}")
    _quantized(p, p.add(op, [_plain(p, *p.inputs[:3])], **given), *p.inputs[3:5])


def to_float(p: Any) -> None:
    a, b, a_scale, b_scale, a_zero, b_zero, bias = p.inputs[:7]
    _scaled(p, [a, b, a_zero, b_zero], a_scale, b_scale, bias)


def dynamic_matmul(p: Any) -> None:
    a, b, b_scale, b_zero, bias = p.inputs[:5]
    made = [f"{p.node.output[0]}:{what}" for what in ("bytes", "scale", "zero")]
    p.add_several("DynamicQuantizeLinear", [a], made)
    _scaled(p, [made[0], b, made[2], b_zero], made[1], b_scale, bias)


def _scaled(p: Any, operands: Sequence[str], a_scale: str, b_scale: str, bias: str) -> None:
    """The product of integers as numbers, and a bias."""
    import onnx

    while not operands[-1]:
        operands = operands[:-1]
    sums = p.add("Cast", [p.add("MatMulInteger", list(operands))], to=onnx.TensorProto.FLOAT)
    y = p.add("Mul", [sums, p.add("Mul", [a_scale, b_scale])], last=not bias)
    if bias:
        p.add("Add", [y, bias], last=True)


def quantize(p: Any) -> None:
    p.add(p.node.op_type, [one for one in p.inputs if one], last=True, **p.given)


def _element(p: Any) -> int:
    import onnx

    return int(onnx.TensorProto.DataType.Value(p.element))


def _constant(p: Any, array: Any) -> str:
    import onnx

    made: str = p.add("Constant", [], value=onnx.numpy_helper.from_array(np.asarray(array)))
    return made


def _unpacked(p: Any, x: str, bits: int, *shape: int) -> str:
    """The numbers in the bytes of an array, the low bits first: [rows][numbers], of which the first ones are taken, in another shape."""
    rows, each = shape[0], int(np.prod(shape[1:]))
    per = 8 // bits
    x = p.add("Cast", [x], to=_INT32)
    if per > 1:
        parts = []
        for at in range(per):
            part = p.add("Div", [x, _constant(p, np.int32(1 << at * bits))]) if at else x
            part = p.add("Mod", [part, _constant(p, np.int32(1 << bits))])
            parts.append(p.add("Reshape", [part, _constant(p, np.array([rows, -1, 1]))]))
        x = p.add("Concat", parts, axis=2)
    x = p.add("Reshape", [x, _constant(p, np.array([rows, -1]))])
    x = p.add("Slice", [x, *(_constant(p, np.array([one])) for one in (0, each, 1))])
    made: str = p.add("Reshape", [x, _constant(p, np.array(shape))])
    return made


def matmul_of_bits(p: Any) -> None:
    """y = a w^T + bias, where w[n][block] = (q - zero) scale; of q a block has whole bytes, of zeros a row has."""
    a, packed, scales, zeros, order, bias = p.inputs[:6]
    k, n, bits, block = (int(p.given.get(name, default)) for name, default in (("K", 0), ("N", 0), ("bits", 4), ("block_size", 0)))
    if bits not in (4, 8) or min(k, n, block) < 1 or block % 2:
        raise p.refuse(
            f"K is {k}, N {n}, bits {bits} and block_size {block}; expected positive numbers, 4 or 8 bits, and an even block size"
        )
    if order:
        raise p.refuse("its columns are in another order (g_idx)")
    p.number(0.0)  # refuses other types
    blocks, element = -(-k // block), _element(p)
    if (sizes := p.types[packed].sizes) != (n, blocks, block * bits // 8):
        raise p.refuse(f"its matrix is of shape {sizes}; expected {(n, blocks, block * bits // 8)}")
    if element == _FLOAT and (not zeros or p.types[zeros].element == "UINT8"):
        w = _by_blocks(p, [packed, scales, zeros], (k, n, bits, block))
    else:
        w = _decoded(p, [packed, scales, zeros], (k, n, bits, block), element)
    y = p.add("MatMul", [a, w], last=not bias)
    if bias:
        p.add("Add", [y, bias], last=True)


def _by_blocks(p: Any, given: Sequence[str], sizes: Sequence[int]) -> str:
    """The matrix (k, n) of a MatMulNBits as a DequantizeLinear of blocks of its whole numbers."""
    (packed, scales, zeros), (k, n, bits, block) = given, sizes
    blocks = -(-k // block)

    def turned(x: str, *shape: int) -> str:
        made: str = p.add("Transpose", [p.add("Reshape", [x, _constant(p, np.array(shape))])], perm=[1, 0])
        return made

    q = p.add("Reshape", [_unpacked(p, packed, bits, n, blocks, block), _constant(p, np.array([n, blocks * block]))])
    q = turned(p.add("Slice", [q, *(_constant(p, np.array([one])) for one in (0, k, 1))]), n, k)
    zero = turned(_unpacked(p, zeros, bits, n, blocks, 1), n, blocks) if zeros else ""
    zero = p.add("Cast", [zero], to=_UINT8) if zero else _constant(p, np.full((blocks, n), 1 << bits - 1, np.uint8))
    about = {"axis": 0, "block_size": block}
    made: str = p.add("DequantizeLinear", [p.add("Cast", [q], to=_UINT8), turned(scales, n, blocks), zero], **about)
    p.nodes[-1].metadata_props.add(key=ACCURACY_LEVEL, value=str(p.given.get("accuracy_level", 0)))
    return made


def _decoded(p: Any, given: Sequence[str], sizes: Sequence[int], element: int) -> str:
    """The same by products, of other types, and of zeros that are numbers."""
    (packed, scales, zeros), (k, n, bits, block) = given, sizes
    blocks, zero = -(-k // block), p.number(float(1 << bits - 1))
    w = p.add("Cast", [_unpacked(p, packed, bits, n, blocks, block)], to=element)
    if zeros and p.types[zeros].element != "UINT8":
        zero = p.add("Cast", [p.add("Reshape", [zeros, _constant(p, np.array([n, blocks, 1]))])], to=element)
    elif zeros:
        zero = p.add("Cast", [_unpacked(p, zeros, bits, n, blocks, 1)], to=element)
    w = p.add("Mul", [p.add("Sub", [w, zero]), p.add("Reshape", [scales, _constant(p, np.array([n, blocks, 1]))])])
    w = p.add("Reshape", [w, _constant(p, np.array([n, blocks * block]))])
    w = p.add("Slice", [w, *(_constant(p, np.array([one])) for one in (0, k, 1))])
    made: str = p.add("Transpose", [w], perm=[1, 0])
    return made
