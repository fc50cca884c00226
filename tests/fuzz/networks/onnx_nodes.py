# SPDX-License-Identifier: Apache-2.0
"""What a random ONNX graph grows by (`onnx_walk.Walk`): each function adds a node, or a few that belong together, with attributes of any
kind that its opset has."""

from contextlib import suppress
from typing import Any

import numpy as np
from onnx import TensorProto, helper
from onnx_shapes import chosen, concat, cut, moved, pad, reshape, resize, sizes, split, spread, transpose
from onnx_walk import Walk

RULES = ("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET")
ELEMENTWISE = ("Abs", "Ceil", "Celu", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Mish",
               "Neg", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Tanh", "ThresholdedRelu",
               "Reciprocal", "Log", "Cos", "Atan", "Swish")  # fmt: skip
SHARP = ("Ceil", "Floor", "Round", "Sign", "ThresholdedRelu")
REDUCTIONS = ("ReduceMean", "ReduceMean", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceLogSumExp",
              "ReduceProd", "ReduceSumSquare", "ReduceLogSum")  # fmt: skip


def window(w: Walk, rank: int, dilated: bool = True) -> dict[str, Any]:
    """Attributes of a convolution or a pool over so many axes; pads or an auto_pad."""
    found: dict[str, Any] = w.some(strides=w.rng.integers(1, 4, rank).tolist())
    if dilated:
        found |= w.some(dilations=w.rng.integers(1, 3, rank).tolist())
    if w.chance(0.3):  # ONNX Runtime leaves out the first of more than two elements between windows
        strides = [min(2, stride) for stride in found.pop("strides", [1] * rank)]
        return found | {"auto_pad": w.one(*RULES), "strides": strides}
    return found | w.some(pads=w.rng.integers(0, 3, 2 * rank).tolist())


def conv(w: Walk) -> None:
    x = w.value(3, 5) if w.chance(0.3) else w.image()
    _, c, *sizes = w.shape(x)
    groups = w.one(*(g for g in (1, 1, 1, 2, 3, c) if c % g == 0))
    filters = groups * (w.whole(1, 20) if groups < c else w.whole(1, 2))
    kernel = w.rng.integers(1, w.one(1, 3, 3, 7) + 1, len(sizes)).tolist()
    inputs = [x, w.weights((filters, c // groups, *kernel))] + [w.weights((filters,))] * w.chance()
    w.add("Conv", inputs, **window(w, len(sizes)), **w.some(kernel_shape=kernel), **({"group": groups} if groups > 1 or w.chance() else {}))


def transposed(w: Walk) -> None:
    x = w.value(3, 5) if w.chance(0.3) else w.image()
    _, c, *sizes = w.shape(x)
    groups = w.one(*(g for g in (1, 1, 2, c) if c % g == 0))
    kernel = w.rng.integers(1, 4, len(sizes)).tolist()
    outputs = w.whole(1, 4)
    how = window(w, len(sizes)) | ({"output_padding": w.rng.integers(0, 2, len(sizes)).tolist()} if w.chance(0.3) else {})
    if w.chance(0.15):
        how["output_shape"] = [size * 2 + w.whole(0, 2) for size in sizes]
    inputs = [x, w.weights((c, outputs, *kernel))] + [w.weights((outputs * groups,))] * w.chance()
    w.add("ConvTranspose", inputs, group=groups, **how)


def pool(w: Walk) -> None:
    x = w.value(3, 5) if w.chance(0.15) else w.image()
    rank = len(w.shape(x)) - 2
    op = w.one("MaxPool", "AveragePool", "MaxPool", "AveragePool", "LpPool")
    how = {"kernel_shape": w.rng.integers(1, w.one(3, 4, 8), rank).tolist()}
    how |= window(w, rank, dilated=w.opset >= {"MaxPool": 10, "AveragePool": 19, "LpPool": 18}[op])
    if w.opset >= {"MaxPool": 10, "AveragePool": 10, "LpPool": 18}[op]:
        how |= w.some(ceil_mode=w.whole(0, 1))
    if op == "AveragePool":
        how |= w.some(count_include_pad=w.whole(0, 1))
    if op == "LpPool":
        how |= w.some(p=w.whole(1, 3))
    if how.get("auto_pad", "NOTSET").startswith("SAME"):  # ONNX Runtime leaves dilations out of the padding
        how.pop("dilations", None)
        if op == "LpPool":  # and begins in front of the image where strides leave some out
            how.pop("strides", None)
    several = op == "MaxPool" and w.opset >= 8 and w.chance(0.1)
    w.add(op, [x], 2 if several else 1, **how, **({"storage_order": w.whole(0, 1)} if several and w.chance() else {}))


def global_pool(w: Walk) -> None:
    w.add(w.one("GlobalAveragePool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), [w.value(3, 5)])


def norm(w: Walk) -> None:
    x = w.value(2, 5)
    c = w.shape(x)[1]
    kind = w.one("BatchNormalization", "BatchNormalization", "BatchNormalization", "InstanceNormalization", "LRN", "LpNormalization",
                 "MeanVarianceNormalization", "LayerNormalization", "GroupNormalization")  # fmt: skip
    epsilon = w.some(epsilon=float(w.one(1e-5, 1e-3, 0.1)))
    if kind == "BatchNormalization":
        numbers = [w.weights((c,)), w.weights((c,)), w.weights((c,)), w.constant(w.rng.uniform(0.1, 2, c))]
        w.add(kind, [x, *numbers], **epsilon, **w.some(momentum=0.5), **({"spatial": 1} if w.opset < 9 and w.chance() else {}))
    elif kind == "InstanceNormalization" and w.values[x].size > 16 * c * w.shape(x)[0]:  # of a few pixels ONNX Runtime loses digits
        w.add(kind, [x, w.weights((c,)), w.weights((c,))], **epsilon)
    elif kind == "LRN":
        w.add(kind, [x], size=w.one(1, 2, 3, 5, 9), **w.some(alpha=0.1, beta=float(w.one(0.5, 0.7, 1, 2)), bias=2.0))
    elif kind == "LpNormalization":  # rows of small numbers
        w.add(kind, [x], sharp=True, **w.some(axis=w.axis(len(w.shape(x))), p=w.whole(1, 2)))
    elif kind == "MeanVarianceNormalization":
        w.add(kind, [x], **w.some(axes=w.axes(len(w.shape(x)))))
    elif kind == "LayerNormalization":
        axis = w.axis(len(w.shape(x)))
        attributes, of = ({}, w.shape(x)[-1:]) if w.chance(0.3) else ({"axis": axis}, w.shape(x)[axis:])
        scale = [w.weights(of)] + [w.weights(of)] * w.chance()
        w.add(kind, [x, *scale], w.one(1, 1, 1, 3), **attributes, **epsilon)
    elif w.opset >= 18 and (w.opset < 21 or w.dtype == np.float32):  # later ONNX Runtime sums doubles as floats (stash_type)
        groups = w.one(*(g for g in (1, 2, 3, c) if c % g == 0))
        of = c if w.opset >= 21 else groups
        w.add(kind, [x, w.weights((of,)), w.weights((of,))], num_groups=groups, **epsilon)


def block(w: Walk) -> None:
    """What networks of sequences, images and volumes repeat: a convolution that keeps the sizes, a norm, an activation, the input added."""
    x = w.value(3, 5)
    c, axes = w.shape(x)[1], len(w.shape(x)) - 2
    kernel, dilation, groups = w.one(1, 3), w.whole(1, 2), w.one(1, 1, c)
    how = {"pads": [kernel // 2 * dilation] * (2 * axes), "dilations": [dilation] * axes, "group": groups}
    y = w.add("Conv", [x, w.weights((c, c // groups, *[kernel] * axes))] + [w.weights((c,))] * w.chance(), **how)
    if y and w.chance():
        y = group_norm(w, y) if w.chance() else w.add("BatchNormalization", [y, *(w.constant(w.rng.uniform(0.1, 2, c)) for _ in range(4))])
    if y and w.chance(0.7):
        y = w.add("LeakyRelu", [y], alpha=float(w.one(0.01, 0.2))) if w.chance() else w.add("Relu", [y])
    y = y and w.add("Add", [x, y] if w.chance() else [y, x])
    if y and w.chance(0.3):
        w.add("Relu", [y])


def group_norm(w: Walk, x: str) -> str | None:
    """As exporters before opset 18 write it: planes of a group as one row."""
    n, c, *sizes = w.shape(x)
    groups = w.one(*(g for g in (1, 2, 3) if c % g == 0))
    rows = w.add("Reshape", [x, w.indices([0, groups, -1])])
    numbers = [w.constant(np.full(groups, number)) for number in (1, 0)]
    rows = rows and w.add("InstanceNormalization", [rows, *numbers], epsilon=0.01)
    y = rows and w.add("Reshape", [rows, w.indices([n, c, *sizes])])
    for op in ("Mul", "Add"):
        y = y and w.add(op, [y, w.constant(w.numbers((c, *[1] * len(sizes))))])
    return y


def elementwise(w: Walk) -> None:
    op = w.one(*ELEMENTWISE, "Relu", "Relu", "Relu", "Sigmoid")
    defaults = {"Elu": "alpha", "LeakyRelu": "alpha", "ThresholdedRelu": "alpha", "Celu": "alpha", "HardSigmoid": "beta", "Selu": "gamma"}
    how = {defaults[op]: float(w.one(0.1, 0.5, 1, 2))} if op in defaults and w.chance() else {}
    if op == "Gelu":
        how = w.some(approximate=w.one("none", "tanh"))
    x = w.value()
    if op in ("Cos", "Sin") and np.abs(w.values[x]).max(initial=0) > 10:
        return  # which enlarges the rounding of large numbers
    w.add(op, [x], sharp=op in SHARP, **how)


def clip(w: Walk) -> None:
    x = w.value()
    low, high = sorted(w.rng.standard_normal(2).tolist())
    if w.chance(0.1):
        low, high = high, low
    if w.opset < 11:
        w.add("Clip", [x], **w.some(min=low, max=high))
        return
    bounds = [w.constant(number) if w.chance(0.85) else "" for number in (low, high)]
    if w.chance(0.1):
        bounds[1] = w.given(())
    w.add("Clip", [x, *bounds])


def other_operand(w: Walk, x: str) -> str:
    """Something that is broadcast to x, or to which x is."""
    shape = w.shape(x)
    kind = w.whole(0, 6)
    same = [name for name, array in w.values.items() if array.shape == shape and array.dtype == w.values[x].dtype]
    if kind < 3:
        return str(w.one(*same))
    if kind == 3 and len(shape) > 1:
        return w.weights((*([1] * w.whole(0, 1)), shape[1], *[1] * (len(shape) - 2)), w.values[x].dtype)
    if kind == 4:
        return w.weights(w.one((), (1,), (1,) * len(shape)), w.values[x].dtype)
    kept = [size if w.chance(0.6) else 1 for size in shape][w.whole(0, len(shape)) :]
    return w.weights((*[1] * w.whole(0, 1) * w.chance(0.2), *kept), w.values[x].dtype)


def binary(w: Walk) -> None:
    x = w.value() if w.chance(0.9) else w.value(dtype=np.int64)
    y = other_operand(w, x)
    op = w.one("Add", "Add", "Add", "Mul", "Mul", "Sub", "Div", "Sum", "Max", "Min", "Mean", "Pow", "PRelu")
    inputs = [x, y] if w.chance() or op == "PRelu" else [y, x]
    if op in ("Sum", "Max", "Min", "Mean"):
        inputs = [*inputs, x][: w.whole(1, 3)]
    w.add(op, inputs)


def comparison(w: Walk) -> None:
    x = w.value()
    op = w.one("Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual", "Where")
    flag = w.add("Less" if op == "Where" else op, [x, other_operand(w, x)], sharp=True)
    if flag and w.chance(0.7):
        flag = w.add("Not", [flag]) if w.chance(0.3) else flag
        if w.chance():
            w.add("Where", [flag or "", x, other_operand(w, x)])
        else:
            w.add("Cast", [flag or ""], to=helper.np_dtype_to_tensor_dtype(w.dtype))


def gate(w: Walk) -> None:
    """x sigmoid(x), or x by a number for each plane or pixel."""
    x = w.image()
    c = w.shape(x)[1]
    y = w.add("GlobalAveragePool", [x]) if w.chance(0.4) else x
    if y and y != x and w.chance():
        y = w.add("Conv", [y, w.weights((c, c, 1, 1))])
    y = y and w.add(w.one("Sigmoid", "Sigmoid", "HardSigmoid", "Tanh"), [y])
    if y:
        w.add("Mul", [x, y] if w.chance() else [y, x])


def residual(w: Walk) -> None:
    x = w.image()
    c = w.shape(x)[1]
    y: str | None = x
    for _ in range(w.whole(1, 2)):
        kernel, groups = w.one(1, 3), w.one(1, c)
        y = y and w.add("Conv", [y, w.weights((c, c // groups, kernel, kernel))], pads=[kernel // 2] * 4, group=groups)
        if y and w.chance(0.3):
            y = w.add("Relu", [y])
    y = y and w.add("Add", [x, y] if w.chance() else [y, x])
    if y and w.chance(0.6):
        w.add("Relu", [y])


def product(w: Walk) -> None:
    if w.chance(0.4):
        x = w.value(2, 2)
        m, k = w.shape(x)
        flip = w.chance(0.2), w.chance()
        n, k = w.whole(1, 20), m if flip[0] else k
        rows = k if not flip[0] else w.shape(x)[1]
        inputs = [x, w.weights((n, k) if flip[1] else (k, n))]
        if w.opset < 11 or w.chance():
            inputs.append(w.weights(w.one((n,), (1, n), (1,), (rows if flip[0] else m, 1), ())))
        w.add("Gemm", inputs, transA=int(flip[0]), transB=int(flip[1]), **w.some(alpha=0.5, beta=2.0))
        return
    x = w.value(1, 4)
    k = w.shape(x)[-1]
    if w.chance(0.15):  # what stands on the left is constant
        rows = w.shape(x)[-2] if len(w.shape(x)) > 1 else k
        w.add("MatMul", [w.weights((w.whole(1, 9), rows)), x])
        return
    w.add("MatMul", [x, w.weights(w.one((k, w.whole(1, 20)), (k,), (*w.shape(x)[:-2], k, 3), (1, k, 5), (k, 1)))])


def attention(w: Walk) -> None:
    """softmax(q k^T / sqrt(d)) v of one value, as exporters write it."""
    x = w.value(3, 3)
    d = w.shape(x)[2]
    q, k, v = (w.add("MatMul", [x, w.weights((d, 8))]) for _ in range(3))
    transposed = k and w.add("Transpose", [k], perm=[0, 2, 1])
    scores = q and transposed and w.add("MatMul", [q, transposed])
    scores = scores and w.add(w.one("Mul", "Div"), [scores, w.constant(np.array(2.5))])
    shares = scores and w.add("Softmax", [scores], axis=2 if w.opset < 13 else w.one(2, -1))
    if shares and v:
        w.add("MatMul", [shares, v])


def reduction(w: Walk) -> None:
    x = w.value()
    op = w.one(*REDUCTIONS)
    rank = len(w.shape(x))
    axes = w.axes(rank) if rank else []
    axes = axes if w.opset >= 11 else [axis % rank for axis in axes]
    how: dict[str, Any] = w.some(keepdims=w.whole(0, 1))
    if w.chance(0.2):
        axes = []
    if w.opset < (13 if op == "ReduceSum" else 18):
        w.add(op, [x], **how, **({"axes": axes} if axes else {}))
        return
    how |= w.some(noop_with_empty_axes=w.whole(0, 1))
    w.add(op, [x, w.indices(axes) if axes or w.chance(0.3) else ""], **how)


def softmax(w: Walk) -> None:
    x = w.value(1, 5)
    op = w.one("Softmax", "Softmax", "LogSoftmax", "Hardmax")
    axis = w.axis(len(w.shape(x)))
    w.add(op, [x], sharp=op == "Hardmax", **w.some(axis=axis if w.opset >= 11 else axis % len(w.shape(x))))


def branch(w: Walk) -> None:
    """An If by a constant, by what follows from shapes, or by an input; both branches read the same value."""
    x = w.value(1, 4)
    condition = w.one(w.constant(np.array(w.chance()), bool), w.given((), bool) if w.chance(0.2) else w.constant(np.array(True), bool))
    graphs = []
    for at, op in enumerate((w.one("Relu", "Neg"), w.one("Abs", "Tanh"))):
        nodes = [helper.make_node(op, [x], ["inner"]), helper.make_node(w.one("Neg", "Sigmoid"), ["inner"], [f"made{at}"])]
        graphs.append(helper.make_graph(nodes, f"b{at}", [], [helper.make_value_info(f"made{at}", w_type(w, x))]))
    w.add("If", [condition], then_branch=graphs[0], else_branch=graphs[1])


def w_type(w: Walk, name: str) -> Any:
    array = w.values[name]
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def quantized(w: Walk) -> None:
    """To whole numbers and back, and what is computed in them."""
    x = w.image() if w.dtype == np.float32 else w.given((1, 4, 6, 6), np.float32)
    kind = w.one(np.uint8, np.int8)
    c = w.shape(x)[1]
    scale, zero = w.constant(np.array(0.05), np.float32), w.constant(np.array(3), kind)
    if w.chance(0.2):
        parts = [w.add("DynamicQuantizeLinear", [x], 3, sharp=True)]
        at = len(w.values)
        q = parts[0]
        if q:
            w.add("DequantizeLinear", [q, f"v{at - 2}", f"v{at - 1}"])
        return
    q = w.add("QuantizeLinear", [x, scale, zero], sharp=True)
    if q and w.chance(0.6):
        filters = w.weights((w.whole(1, 5), c, w.one(1, 3), 3), np.int8)
        if w.chance():
            inputs = [q, scale, zero, filters, w.constant(np.array(0.02), np.float32), w.constant(np.array(0), np.int8), scale, zero]
            q = w.add("QLinearConv", inputs, sharp=True, **window(w, 2))
        else:
            w.add("ConvInteger", [q, filters, zero, w.constant(np.array(0), np.int8)], **window(w, 2))
    if q:
        inputs = [q, scale] + [zero] * w.chance(0.8)
        w.add("DequantizeLinear", inputs)


def recurrent(w: Walk) -> None:
    x = w.value(3, 3)
    _, batch, size = w.shape(x)
    if not w.values[x].size:
        return  # ONNX Runtime aborts the process
    op, gates = w.one(("LSTM", 4), ("GRU", 3), ("RNN", 1))
    hidden, direction = w.whole(1, 5), w.one("forward", "forward", "reverse", "bidirectional")
    count = 1 + (direction == "bidirectional")
    numbers = [w.constant(w.numbers((count, gates * hidden, of)) / 2) for of in (size, hidden)]
    numbers.append(w.constant(w.numbers((count, 2 * gates * hidden)) / 2) if w.chance() else "")
    if w.chance(0.4):
        numbers += ["", *(w.weights((count, batch, hidden)) for _ in range(2 if op == "LSTM" else 1))]
    how = {"direction": direction, "hidden_size": hidden} | (w.some(linear_before_reset=w.whole(0, 1)) if op == "GRU" else {})
    y = w.add(op, [x, *numbers], w.whole(1, 3 if op == "LSTM" else 2), **how)
    if y and w.chance():  # as exporters do
        y = w.add("Transpose", [y], perm=[0, 2, 1, 3])
        if y:
            w.add("Reshape", [y, w.indices([0, 0, -1])])


def rare(w: Walk) -> None:
    x = w.value(2, 4)
    kind = w.whole(0, 5)
    if kind == 0:
        w.add("Einsum", [x, x], equation=w.one("...ij,...ij->...i", "...ij,...kj->...ik"))
    elif kind == 1:
        w.add("OneHot", [w.constant(w.rng.integers(0, 4, 3), np.int64), w.constant(4, np.int64), w.constant([0.0, 1.0])])
    elif kind == 2:
        w.add("NonZero", [w.constant(w.rng.integers(0, 2, (3, 4)))])
    elif kind == 3:
        w.add("Range", [w.constant(number, np.int64) for number in (0, w.whole(1, 9), w.whole(1, 2))])
    elif kind == 4:
        w.add("Cast", [x], sharp=True, to=w.one(TensorProto.FLOAT16, TensorProto.INT32, TensorProto.DOUBLE, TensorProto.FLOAT))
    else:
        flag = [w.chance() for _ in range(w.shape(x)[0])]
        w.add("Compress", [x, w.constant(flag, bool)], axis=0)


STEPS = [conv, conv, conv, conv, transposed, block, block, pool, pool, global_pool, norm, norm, elementwise, elementwise, elementwise,
         clip, binary, binary, comparison, gate, residual, residual, product, product, attention, reshape, reshape, transpose, cut, split,
         concat, concat, pad, reduction, softmax, chosen, spread, resize, moved, sizes, branch, quantized, recurrent, recurrent,
         rare]  # fmt: skip


def walked(seed: int) -> Walk:
    """A graph of about a dozen nodes."""
    w = Walk(seed)
    w.given(w.sizes(4) if w.chance(0.8) else w.sizes(w.whole(1, 5)))
    for _ in range(w.whole(1, 16)):
        with suppress(IndexError, ValueError, ZeroDivisionError):  # no such choice, of an empty value
            w.one(*STEPS)(w)
    while not any(node.op_type != "Constant" for node in w.nodes):
        elementwise(w)
    return w
