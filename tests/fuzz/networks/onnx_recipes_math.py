# SPDX-License-Identifier: Apache-2.0
"""Generated nodes of operators that compute element by element, reduce, cast and quantise; `onnx_peer` compares them."""

from typing import Any

import numpy as np
from onnx_case import FLOATS, WHOLE, Case, Make, Refused, type_of

UNARY = ("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp", "Floor", "Gelu",
         "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Log", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Selu",
         "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "ThresholdedRelu")  # fmt: skip
BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "PRelu", "Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")
LOGIC = ("And", "Or", "Xor")
BITS = ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
VARIADIC = ("Max", "Min", "Mean", "Sum")
REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceProd",
              "ReduceSumSquare", "ReduceLogSum")  # fmt: skip
_ALPHA = {"Celu", "Elu", "HardSigmoid", "LeakyRelu", "Selu", "ThresholdedRelu"}
_POSITIVE = {"Sqrt": (0, 4), "Log": (1e-3, 9), "Acosh": (1, 9), "Atanh": (-0.99, 0.99), "Acos": (-1, 1), "Asin": (-1, 1)}


def unary(m: Make) -> Case:
    how: dict[str, Any] = {}
    if m.op in _ALPHA:
        how |= m.some(alpha=m.real(0.1, 2))
    if m.op == "HardSigmoid":
        how |= m.some(beta=m.real())
    if m.op == "Selu":
        how |= m.some(gamma=m.real(0.5, 2))
    if m.op == "Gelu":
        how |= m.some(approximate=m.one("none", "tanh"))
    if m.op == "Shrink":
        how |= m.some(lambd=m.real(0, 1), bias=m.real(0, 1))
    if m.op == "IsInf":
        how |= m.some(detect_negative=m.whole(0, 1), detect_positive=m.whole(0, 1))
    whole = m.op in ("Abs", "Neg", "Sign", "Identity", "Relu", "Shrink") and m.chance(0.3)
    dtype = m.one(*WHOLE) if whole else m.one(*FLOATS)
    low, high = _POSITIVE.get(m.op, (None, None)) if m.chance(0.7) else (None, None)
    return m.case([m.x(m.shape(), dtype, special=0.3, low=low, high=high)], attributes=how)


def pair(m: Make) -> Case:
    shape = m.shape()
    dtype = m.one(*FLOATS) if m.chance(0.7) or m.op == "PRelu" else m.one(*WHOLE)
    special, low = (0.3, None) if m.op != "Pow" else (0.0, 0.1)
    if m.op == "Pow" and m.chance():
        base = m.numbers(shape, dtype, low=-3, high=3)
        return m.case([m.value(base), m.value(m.numbers(m.spread(shape), m.one(*FLOATS, "int64", "int32"), low=0, high=3).round())])
    x, y = m.numbers(shape, dtype, special, low, 4), m.numbers(m.spread(shape), dtype, special, low, 4)
    if m.op == "Div" and np.dtype(dtype).kind in "iu":
        y = np.where(y == 0, 1, y).astype(y.dtype)
        x = np.where(y < 0, np.maximum(x, -100), x).astype(y.dtype) if np.dtype(dtype).kind == "i" else x
    sides = [x, y] if m.op == "PRelu" or m.chance() else [y, x]
    if m.op == "Div" and np.dtype(dtype).kind in "iu" and sides[1] is x:
        sides = [x, y]
    return m.case([m.value(side) for side in sides])


def logic(m: Make) -> Case:
    shape = m.shape()
    return m.case([m.x(shape, "bool"), m.x(m.spread(shape), "bool")])


def bits(m: Make) -> Case:
    shape, dtype = m.shape(), m.one(*WHOLE)
    return m.case([m.x(shape, dtype, special=0.3), m.x(m.spread(shape), dtype, special=0.3)])


def shift(m: Make) -> Case:
    shape, dtype = m.shape(), m.one("uint8", "uint16", "uint32", "uint64")
    return m.case([m.x(shape, dtype), m.x(m.spread(shape), dtype, low=0, high=7)], attributes={"direction": m.one("LEFT", "RIGHT")})


def negated(m: Make) -> Case:
    return m.case([m.x(m.shape(), "bool" if m.op == "Not" else m.one(*WHOLE))])


def variadic(m: Make) -> Case:
    shape, dtype = m.shape(), m.one(*FLOATS) if m.chance(0.8) or m.op in ("Mean", "Sum") else m.one(*WHOLE)
    return m.case([m.x(shape if m.chance() else m.spread(shape), dtype, special=0.2) for _ in range(m.whole(1, 4))])


def where(m: Make) -> Case:
    shape, dtype = m.shape(), m.one(*FLOATS, "int64", "uint8", "int32")
    return m.case([m.x(m.spread(shape), "bool"), m.x(shape, dtype, special=0.2), m.x(m.spread(shape), dtype)])


def mod(m: Make) -> Case:
    shape, dtype = m.shape(), m.one(*FLOATS, *WHOLE)
    fmod = 1 if np.dtype(dtype).kind == "f" else m.whole(0, 1)
    divisor = m.numbers(m.spread(shape), dtype)
    return m.case([m.x(shape, dtype), m.value(np.where(divisor == 0, 3, divisor).astype(dtype))],
                  attributes={"fmod": fmod} if fmod or m.chance() else {})  # fmt: skip


def clip(m: Make) -> Case:
    dtype = m.one(*FLOATS) if m.chance(0.7) or m.opset < 12 else m.one(*WHOLE)
    bounds = m.numbers(2, dtype, low=-1, high=1 if np.dtype(dtype).kind == "f" else 9)
    bounds = np.sort(bounds) if m.chance(0.8) else bounds
    x = m.x(m.shape(), dtype, special=0.3)
    if m.opset < 11:
        if dtype not in FLOATS:
            raise Refused
        return m.case([x], attributes=m.some(min=float(bounds[0]), max=float(bounds[1])))
    return m.case([x, *(m.value(bound, 0.6) if m.chance(0.8) else "" for bound in bounds)])


def reduction(m: Make) -> Case:
    shape = m.shape(0, 4)
    dtype = m.one("float32", "float64", "float16") if m.chance(0.75) else m.one("int32", "int64", "int8", "uint8")
    x = m.x(shape, dtype, low=0.1, high=3) if m.op == "ReduceLogSum" else m.x(shape, dtype)
    if m.op == "ReduceProd" and np.dtype(dtype).kind in "iu":  # a product that overflows is undefined
        x = m.value(m.numbers(shape, dtype, low=1, high=1))
    axes = m.axes(len(shape)) if shape and m.chance(0.8) else []
    how: dict[str, Any] = m.some(keepdims=m.whole(0, 1))
    if m.opset < (13 if m.op == "ReduceSum" else 18):
        return m.case([x], attributes=how | ({"axes": axes} if axes else {}))
    how |= m.some(noop_with_empty_axes=m.whole(0, 1))
    return m.case([x, m.ints(axes) if axes or m.chance(0.4) else ""], attributes=how)


def arg(m: Make) -> Case:
    shape = m.shape(1, 4)
    dtype = m.one("float32", "float64", "int32", "int8", "uint8", "float16")
    x = m.value(m.numbers(shape, dtype, low=0, high=3).round()) if m.chance() else m.x(shape, dtype)
    return m.case([x], attributes=m.some(axis=m.axis(len(shape)), keepdims=m.whole(0, 1), select_last_index=m.whole(0, 1)))


def cumulative(m: Make) -> Case:
    shape = m.shape(1, 4)
    axis = m.value(np.asarray(m.axis(len(shape)), m.one("int32", "int64")), 0.6)
    x = m.x(shape, m.one("float32", "float64", "int32", "int64"))
    return m.case([x, axis], attributes=m.some(exclusive=m.whole(0, 1), reverse=m.whole(0, 1)))


def top(m: Make) -> Case:
    shape = m.shape(1, 4)
    axis = m.axis(len(shape))
    k = m.whole(1, shape[axis])
    x = m.value(m.numbers(shape, m.one("float32", "float64", "int32", "int64"), low=0, high=9 if m.chance() else 900).round())
    how = m.some(largest=m.whole(0, 1)) | {"axis": axis}
    if m.opset < 10:
        return m.case([x], 2, how | {"k": k})
    return m.case([x, m.ints([k])], 2, how | {"sorted": 1} if m.chance() else how)


_CASTS = ("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64", "BOOL",
          "FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT8E4M3FNUZ", "FLOAT8E5M2FNUZ", "INT4", "UINT4")  # fmt: skip
_KINDS = (*FLOATS, *WHOLE, "bool", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "int4", "uint4")


def cast(m: Make) -> Case:
    kind = m.one(*_KINDS) if m.chance(0.6) else m.one("float32", "float64", "float16")
    shape = m.shape()
    if kind in ("int4", "uint4") or "8_e" in kind:
        import ml_dtypes

        wide = m.rng.integers(-8 if kind == "int4" else 0, 8 if kind == "int4" else 16, shape) if "int4" in kind else m.numbers(shape)
        x = m.value(np.asarray(wide).astype(getattr(ml_dtypes, kind)))
    else:
        x = m.x(shape, kind, special=0.5)
    if m.op == "CastLike":
        return m.case([x, m.x((1,), m.one(*FLOATS, *WHOLE, "bool"))])
    return m.case([x], attributes={"to": type_of(m.one(*_CASTS))} | m.some(saturate=m.whole(0, 1)))


def quantize(m: Make) -> Case:
    shape = m.shape(1, 4)
    axis = m.axis(len(shape))
    per_axis = m.chance(0.4) and m.opset >= 13
    sizes: tuple[int, ...] = (shape[axis],) if per_axis else ()
    kind = m.one("float32", "float16") if m.opset >= 19 else "float32"
    to = m.one("uint8", "int8", *(("int16", "uint16", "int4", "uint4", "float8_e4m3fn", "float8_e5m2") if m.opset >= 21 else ()))
    scale = m.numbers(sizes, kind, low=0.01, high=m.one(0.1, 3))
    if m.chance(0.2):
        scale = (scale * 1e-8).astype(kind) if kind == "float32" else scale
    how = {"axis": axis} if per_axis or m.chance(0.2) else {}
    if m.opset >= 21 and m.chance(0.2) and shape[axis] > 1:
        block = m.whole(1, shape[axis])
        sizes = tuple(-(-size // block) if at == axis % len(shape) else size for at, size in enumerate(shape))
        scale, how = m.numbers(sizes, kind, low=0.01, high=1), {"axis": axis, "block_size": block}
    inputs = [m.x(shape, kind, special=0.6), m.value(scale, 0.6)]
    if m.chance(0.7) or to != "uint8":
        import ml_dtypes

        zero = m.rng.integers(0 if to.startswith("u") else -5, 6, sizes)
        zero = np.asarray(zero if "float" not in to else np.zeros(sizes))
        inputs.append(m.value(zero.astype(getattr(ml_dtypes, to, None) or to), 0.6))
    return m.case(inputs, attributes=how | m.some(saturate=m.whole(0, 1)))


def dequantize(m: Make) -> Case:
    shape = m.shape(1, 4)
    axis = m.axis(len(shape))
    per_axis = m.chance(0.4) and m.opset >= 13
    sizes: tuple[int, ...] = (shape[axis],) if per_axis else ()
    kind = m.one("uint8", "int8", "int32", *(("int16", "uint16") if m.opset >= 21 else ()))
    how = {"axis": axis} if per_axis or m.chance(0.2) else {}
    if m.opset >= 21 and m.chance(0.3) and shape[axis] > 1:
        block = m.whole(1, shape[axis])
        sizes = tuple(-(-size // block) if at == axis % len(shape) else size for at, size in enumerate(shape))
        how = {"axis": axis, "block_size": block}
    scale = m.numbers(sizes, m.one("float32", "float16") if m.opset >= 19 else "float32", low=0.01, high=2)
    inputs = [m.x(shape, kind, special=0.5), m.value(scale, 0.6)]
    if m.chance(0.6):
        inputs.append(m.value(np.zeros(sizes, kind) if kind == "int32" else m.numbers(sizes, kind, low=0, high=9), 0.6))
    return m.case(inputs, attributes=how)


def dynamic(m: Make) -> Case:
    return m.case([m.value(m.numbers(m.shape()) * m.one(1, 100, 0, 1e-3) + m.one(0, 5, -5))], 3)


RECIPES = {
    **dict.fromkeys(UNARY, unary), **dict.fromkeys(BINARY, pair), **dict.fromkeys(LOGIC, logic), **dict.fromkeys(BITS, bits),
    **dict.fromkeys(VARIADIC, variadic), **dict.fromkeys(REDUCTIONS, reduction), "BitShift": shift, "Not": negated, "BitwiseNot": negated,
    "Where": where, "Mod": mod, "Clip": clip, "ArgMax": arg, "ArgMin": arg, "CumSum": cumulative, "TopK": top, "Cast": cast,
    "CastLike": cast, "QuantizeLinear": quantize, "DequantizeLinear": dequantize, "DynamicQuantizeLinear": dynamic,
}  # fmt: skip
