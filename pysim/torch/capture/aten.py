# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own operators (aten) as nodes of `pysim.network.graph`, one function for each in `OPERATORS`.

A function gets the operator's arguments by name, and adds nodes whose results it names. It raises `UnknownError`, with the reason, for
what no native operator computes: that stays PyTorch's.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import fx

from pysim.network.fusion import norm_constants
from pysim.network.graph import Array, Graph, Node, Tensor
from pysim.network.lowering import array_operators
from pysim.network.lowering.conv_transpose import transposed_by_phases
from pysim.network.operator_seconds import DTYPES
from pysim.problem.windows import conv_of
from pysim.torch.capture.forms import Form
from pysim.torch.capture.lowering import Arguments, Lowering, Made, Operator, UnknownError, array_of, conversion, converted, name_of, same


def _pair_of(numbers: Any, count: int) -> list[int]:
    numbers = [numbers] if isinstance(numbers, int) else [*numbers]
    return numbers * count if len(numbers) == 1 else numbers


def _form(node: fx.Node) -> Any:
    form = node.meta["form"]
    return form if isinstance(form, Form) else form[0]


def _convolution(low: Lowering, node: fx.Node, given: Arguments) -> str:
    x, w = low[given["input"]], low.constant(given["weight"])
    bias = () if given["bias"] is None else (low.new(low.constant(given["bias"])),)
    weights, shape, out, axes = low[given["weight"]], low.shape(x), _form(node).shape, w.ndim - 2
    strides, pads, dilations = (_pair_of(given[name], axes) for name in ("stride", "padding", "dilation"))
    if given["transposed"]:
        window = {"strides": strides, "pads": [*pads, *pads], "dilations": dilations, "group": given["groups"]}
        about = Node("ConvTranspose", low.label, (x, weights, *bias), (f"{low.label}:y",), window)
        graph = Graph((), (), (), low.tensors | {about.output: Tensor(out, low.dtype(x))}, low.constants)
        return low.parts(transposed_by_phases(about, graph, low.constants), about.output)
    if axes == 3:
        about_volumes = {"strides": strides, "dilations": dilations, "pads": [*pads, *pads], "group": given["groups"]}
        return low.add("Conv", (x, weights, *bias), out, **about_volumes)
    if axes == 1:
        x, weights = low.view(x, (*shape[:2], 1, shape[2])), low.new(w.reshape(*w.shape[:2], 1, w.shape[2]))
        strides, pads, dilations = [1, *strides], [0, *pads], [1, *dilations]
    dtype = DTYPES[w.dtype.name]
    problem = conv_of(low.shape(x), low.shape(weights), strides, [*pads, *pads], dilations, given["groups"], dtype)
    return low.view(low.add("Conv", (x, weights, *bias), problem.output_shape, problem=problem), out)


def _linear(low: Lowering, x: str, matrix: Any, bias: Any, shape: Sequence[int]) -> str:
    """x times a constant matrix of (channels, filters), on the rows that x was made of."""
    base, weights = low.base(x), array_of(matrix.t())
    rows = base if low.shape(base)[-1:] == low.shape(x)[-1:] else x
    operands = (rows, low.new(weights), *([] if bias is None else [low.new(bias)]))
    if (integers := low.integers_of(matrix)) is not None:
        low.quantized[operands[1]] = integers.transposed()
    return low.view(low.add("Linear", operands, (*low.shape(rows)[:-1], len(weights))), shape)


def _addmm(low: Lowering, node: fx.Node, given: Arguments) -> str:
    bias, shape = given["self"], _form(node).shape
    if given["beta"] != 1 or given["alpha"] != 1:
        raise UnknownError("it is scaled")
    if given["mat2"] not in low.values:
        return low.pair("Add", _product(low, low[given["mat1"]], low[given["mat2"]], shape), low[bias], shape)
    x, matrix = low[given["mat1"]], low.values[given["mat2"]]
    if bias in low.values and low.values[bias].shape == shape[1:]:
        return _linear(low, x, matrix, low.constant(bias), shape)
    return low.pair("Add", _linear(low, x, matrix, None, shape), low[bias], shape)


def _mm(low: Lowering, node: fx.Node, given: Arguments) -> str:
    shape, matrix = _form(node).shape, low.values.get(given["mat2"])
    if matrix is not None and matrix.dim() == 3 and matrix.stride(0) == 0:
        matrix = matrix[0]  # the same for each
    if matrix is not None and matrix.dim() == 2 and given["self"] not in low.values:
        return _linear(low, low[given["self"]], matrix, None, shape)
    return _product(low, low[given["self"]], low[given["mat2"]], shape)


def _product(low: Lowering, a: str, b: str, shape: Sequence[int]) -> str:
    """Of computed matrices, in the axes in which both were made, if these are the same."""
    one, two = low.shape(low.base(a)), low.shape(low.base(b))
    kept = [low.shape(name)[-2:] for name in (a, b)]
    if one[:-2] == two[:-2] and [one[-2:], two[-2:]] == kept:
        return low.view(low.add("MatMul", (low.base(a), low.base(b)), (*one[:-1], two[-1])), shape)
    return low.add("MatMul", (a, b), shape)


def _baddbmm(low: Lowering, node: fx.Node, given: Arguments) -> str:
    if given["beta"] != 1 or given["alpha"] != 1:
        raise UnknownError("it is scaled")
    shape = _form(node).shape
    return low.pair("Add", _product(low, low[given["batch1"]], low[given["batch2"]], shape), low[given["self"]], shape)


def _attention(low: Lowering, node: fx.Node, given: Arguments) -> Made:
    """softmax(q k^T scale + mask) v."""
    if given["dropout_p"] or _reads(node, 1):
        raise UnknownError("its dropout or its logarithms are needed")
    q, k, v = operands = [low[given[name]] for name in ("query", "key", "value")]
    mask, whole, dtype = given.get("attn_mask") and low[given["attn_mask"]], low.shape(q), low.dtype(q)
    if low.shape(k)[:-2] != whole[:-2]:
        q, k, v = (low.in_groups(one, low.shape(k)[-3]) for one in operands)
        mask = mask and low.in_groups(mask, low.shape(v)[-4])
    (*batch, rows, depth), columns = low.shape(q), low.shape(k)[-2]
    scale = np.asarray(given.get("scale") or 1 / math.sqrt(depth), dtype)
    order = [*range(len(batch)), len(batch) + 1, len(batch)]
    scores = low.add("MatMul", (q, low.transpose(k, order)), (*batch, rows, columns))
    scores = low.add("Mul", (scores, low.new(scale)), (*batch, rows, columns))
    hidden = low.new(np.triu(np.full((rows, columns), -np.inf, dtype), 1)) if given["is_causal"] else ""
    for added in filter(None, (mask, hidden)):
        scores = low.add("Add", (scores, added), (*batch, rows, columns))
    shares = low.add("Softmax", (scores,), (*batch, rows, columns), axes=(len(batch) + 1,))
    y = low.add("MatMul", (shares, v), (*batch, rows, low.shape(v)[-1]))
    return low.view(low.without_hidden_rows(y, mask) if mask else y, (*whole[:-1], low.shape(v)[-1])), ""


def _reads(node: fx.Node, part: int) -> bool:
    """Whether something reads a part of an operator's results."""
    return any(name_of(user) != "getitem" or user.args[1] == part for user in node.users)


def _batch_norm(low: Lowering, node: fx.Node, given: Arguments) -> Made:
    x, shape = low[given["input"]], _form(node).shape
    if given.get("training") and not given.get("running_mean") and shape[0] == 1 and not _reads(node, 1) and not _reads(node, 2):
        return _standardized(low, x, given, (1, shape[1], math.prod(shape[2:])))
    if given.get("training") or len(shape) < 2:
        raise UnknownError("its statistics are those of the batch")
    mean, var = (low.constant(given[name], "its statistics are") for name in ("running_mean", "running_var"))
    gamma, beta = _scale_and_shift(low, given, mean.shape, mean.dtype)
    scale, shift = norm_constants(gamma, beta, mean, var, given["eps"])
    dtype = low.dtype(x)
    return low.add("Affine", (x, low.new(scale.astype(dtype)), low.new(shift.astype(dtype))), shape), "", ""


def _scale_and_shift(low: Lowering, given: Arguments, shape: Sequence[int], dtype: Any) -> tuple[Array, Array]:
    """The weight and bias of a norm."""
    found = [np.full(shape, fill, dtype) if given[name] is None else low.constant(given[name])
             for name, fill in (("weight", 1), ("bias", 0))]  # fmt: skip
    return found[0], found[1]


def _layer_norm(low: Lowering, node: fx.Node, given: Arguments) -> Made:
    x, over = low[given["input"]], given["normalized_shape"]
    if _reads(node, 1) or _reads(node, 2):
        raise UnknownError("its mean or variance is needed")
    numbers = _scale_and_shift(low, given, over, low.dtype(x))
    inputs, axis = (x, *map(low.new, numbers)), len(low.shape(x)) - len(over)
    return low.add("LayerNormalization", inputs, low.shape(x), axis=axis, epsilon=given["eps"]), "", ""


def _group_norm(low: Lowering, node: fx.Node, given: Arguments) -> Made:
    x, shape, groups = low[given["input"]], _form(node).shape, given["group"]
    if _reads(node, 1) or _reads(node, 2):
        raise UnknownError("its mean or variance is needed")
    return _standardized(low, x, given, (shape[0], groups, math.prod(shape[1:]) // groups))


def _standardized(low: Lowering, x: str, given: Arguments, groups: tuple[int, int, int]) -> Made:
    """A layer norm of each group, and an Affine."""
    shape, rows, dtype = low.shape(x), low.view(x, groups), low.dtype(x)
    plain = low.new(np.ones(groups[2:], dtype)), low.new(np.zeros(groups[2:], dtype))
    norm = low.view(low.add("LayerNormalization", (rows, *plain), groups, axis=2, epsilon=given["eps"]), shape)
    if given["weight"] is None and given["bias"] is None:
        return norm, "", ""
    return low.add("Affine", (norm, *map(low.new, _scale_and_shift(low, given, shape[1:2], dtype))), shape), "", ""


def _arithmetic(op: str) -> Operator:
    def lower(low: Lowering, node: fx.Node, given: Arguments) -> str:
        if given.get("alpha", 1) != 1 or given.get("rounding_mode") is not None:
            raise UnknownError("one operand is scaled, or the result is rounded")
        form = _form(node)
        a, b = (
            low[one] if isinstance(one, fx.Node) else low.new(np.asarray(one, form.tensor.dtype)) for one in (given["self"], given["other"])
        )
        return low.pair(op, a, b, form.shape)

    return lower


def _rsub(low: Lowering, node: fx.Node, given: Arguments) -> Made:
    return _arithmetic("Sub")(low, node, Arguments(given | {"self": given["other"], "other": given["self"]}))


def _unary(op: str, **attributes: Any) -> Operator:
    return lambda low, node, given: low.unary(op, low[given["self"]], **attributes)


def _gelu(low: Lowering, node: fx.Node, given: Arguments) -> str:
    return low.unary("Gelu", low[given["self"]], approximate=given["approximate"].encode())


def _silu(low: Lowering, node: fx.Node, given: Arguments) -> str:
    x = low[given["self"]]
    return low.pair("Mul", x, low.unary("Sigmoid", x), low.shape(x))


def _clip(low: Lowering, node: fx.Node, given: Arguments) -> str:
    low_end, high_end = (given.get("min_val", given.get("min")), given.get("max_val", given.get("max")))
    if isinstance(low_end, fx.Node) or isinstance(high_end, fx.Node):
        raise UnknownError("its bounds are tensors")
    least, most = -math.inf if low_end is None else float(low_end), math.inf if high_end is None else float(high_end)
    return low.unary("Clip", low[given["self"]], min=min(least, most), max=most)


def _hard_sigmoid(low: Lowering, node: fx.Node, given: Arguments) -> str:
    x, shape = low.base(low[given["self"]]), _form(node).shape
    if len(low.shape(x)) == 4:
        ones = np.ones(low.shape(x)[1], low.dtype(x))
        line = low.add("Affine", (x, low.new(ones / 6), low.new(ones / 2)), low.shape(x))
    else:
        sixth, half = (np.asarray(number, low.dtype(x)) for number in (1 / 6, 1 / 2))
        line = low.with_constant("Add", low.with_constant("Mul", x, sixth), half)
    return low.view(low.unary("Clip", line, min=0.0, max=1.0), shape)


def _leaky_relu(low: Lowering, node: fx.Node, given: Arguments) -> str:
    return low.unary("LeakyRelu", low[given["self"]], alpha=float(given["negative_slope"]))


def _addcmul(low: Lowering, node: fx.Node, given: Arguments) -> str:
    """self + value a b, which PyTorch rounds as (value a) b."""
    shape = _form(node).shape
    a, b, of = (given[name] for name in ("tensor1", "tensor2", "self"))
    if given["value"] != 1:
        raise UnknownError("it is scaled")
    parts = np.broadcast_shapes(low.shape(low[a]), low.shape(low[b]))
    return low.pair("Add", low.pair("Mul", low[a], low[b], parts), low[of], shape)


def _power(low: Lowering, node: fx.Node, given: Arguments) -> str:
    """The powers that PyTorch computes by products and roots, not by its function of any exponent."""
    x, by = low[given["self"]], given["exponent"]
    if by == 0.5:
        return low.unary("Sqrt", x)
    if by not in (2, 3):
        raise UnknownError("powers other than 0.5, 2 and 3 have no native operator")
    square = low.pair("Mul", x, x, low.shape(x))
    return square if by == 2 else low.pair("Mul", square, x, low.shape(x))


def _inverse(low: Lowering, node: fx.Node, given: Arguments) -> str:
    x = low[given["self"]]
    root = low.unary("Sqrt", x) if name_of(node) == "rsqrt" else x
    return low.pair("Div", low.new(np.asarray(1, low.dtype(x))), root, low.shape(x))


def _neg(low: Lowering, node: fx.Node, given: Arguments) -> str:
    x = low[given["self"]]
    return low.with_constant("Mul", x, np.asarray(-1, low.dtype(x)))


def _softmax(low: Lowering, node: fx.Node, given: Arguments) -> str:
    x, name = low[given["self"]], name_of(node)
    op, axis = "LogSoftmax" if name == "_log_softmax" else "Softmax", given["dim"] % len(low.shape(x))
    y = low.add(op, (x,), low.shape(x), axes=(axis,))
    return low.without_hidden_scores(y, x, axis) if name == "_safe_softmax" else y


def _means(low: Lowering, node: fx.Node, given: Arguments) -> str:
    x, out = low[given["self"]], _form(node).shape
    shape = low.shape(x)
    axes = sorted(axis % len(shape) for axis in _pair_of(given.get("dim") or range(len(shape)), 1))
    if len(shape) == 4 and axes == [2, 3]:
        return low.view(low.add("GlobalAveragePool", (x,), (*shape[:2], 1, 1)), out)
    return low.add("ReduceMean", (x,), out, axes=tuple(axes))


def _sums(low: Lowering, node: fx.Node, given: Arguments) -> str:
    mean = _means(low, node, given)
    count = math.prod(low.shape(low[given["self"]])) // math.prod(_form(node).shape)
    return low.with_constant("Mul", mean, np.asarray(count, low.dtype(mean)))


def _length(low: Lowering, node: fx.Node, given: Arguments) -> str:
    x, rank = low[given["self"]], len(low.shape(low[given["self"]]))
    axes = sorted(axis % rank for axis in given["dim"] or range(rank))
    if given["ord"] != 2:
        raise UnknownError("only Euclidean lengths have a native operator")
    if axes == list(range(axes[0], rank)):
        return low.add("ReduceL2", (x,), _form(node).shape, axis=axes[0])
    square = low.pair("Mul", x, x, low.shape(x))
    mean = low.add("ReduceMean", (square,), _form(node).shape, axes=tuple(axes))
    count = math.prod(low.shape(x)) // math.prod(_form(node).shape)
    return low.unary("Sqrt", low.with_constant("Mul", mean, np.asarray(count, low.dtype(x))))


def _pool(op: str) -> Operator:
    def lower(low: Lowering, node: fx.Node, given: Arguments) -> Made:
        x, out = low[given["self"]], _form(node).shape
        if len(out) != 4 or given.get("divisor_override") or (op == "MaxPool" and _reads(node, 1)):
            raise UnknownError("its form has no native operator")
        kernel, pads, dilations = (_pair_of(given.get(name, 1), 2) for name in ("kernel_size", "padding", "dilation"))
        strides = _pair_of(given["stride"] or kernel, 2)
        window = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": [*pads, *pads]}
        made = low.add(op, (x,), out, count_include_pad=int(given.get("count_include_pad", 0)), **window)
        return (made, "") if op == "MaxPool" else made

    return lower


def _adaptive_pool(low: Lowering, node: fx.Node, given: Arguments) -> str:
    x, out = low[given["self"]], _form(node).shape
    sizes = low.shape(x)[-2:]
    if len(out) != 4 or any(size % made for size, made in zip(sizes, out[2:], strict=True)):
        raise UnknownError("its windows are of different sizes")
    kernel = [size // made for size, made in zip(sizes, out[2:], strict=True)]
    if kernel == [1, 1]:
        return x
    return low.add("AveragePool", (x,), out, kernel_shape=kernel, strides=kernel, dilations=[1, 1], pads=[0] * 4, count_include_pad=0)


def _cat(low: Lowering, node: fx.Node, given: Arguments) -> str:
    out = _form(node).shape
    names = tuple(low[one] for one in given["tensors"])
    if any(len(low.shape(name)) != len(out) for name in names):
        raise UnknownError("a part has another rank")
    return low.add("Concat", names, out, axis=given["dim"] % len(out))


def _stack(low: Lowering, node: fx.Node, given: Arguments) -> str:
    out = _form(node).shape
    axis = given["dim"] % len(out)
    parts = [low.view(low[one], (*out[:axis], 1, *out[axis + 1 :])) for one in given["tensors"]]
    return low.add("Concat", parts, out, axis=axis)


def _slice(low: Lowering, node: fx.Node, given: Arguments) -> str:
    x = low[given["self"]]
    axis = given["dim"] % len(low.shape(x))
    return low.slices(x, axis, *slice(given["start"], given["end"], given["step"]).indices(low.shape(x)[axis]))


def _select(low: Lowering, node: fx.Node, given: Arguments) -> str:
    x = low[given["self"]]
    axis = given["dim"] % len(low.shape(x))
    at = given["index"] % low.shape(x)[axis]
    return low.view(low.slices(x, axis, at, at + 1), _form(node).shape)


def _pieces(low: Lowering, node: fx.Node, given: Arguments) -> Made:
    """Slices, one after the other, in the shapes of the results."""
    x, start, found = low[given["self"]], 0, []
    axis = given["dim"] % len(low.shape(x))
    for form in node.meta["form"]:
        size = form.shape[axis] if len(form.shape) == len(low.shape(x)) else 1
        found.append(low.view(low.slices(x, axis, start, start + size), form.shape))
        start += size
    return tuple(found)


def _view(low: Lowering, node: fx.Node, given: Arguments) -> str:
    x, shape = low[given["self"]], _form(node).shape
    if math.prod(shape) != math.prod(low.shape(x)):
        raise UnknownError("it makes other elements")
    return low.view(x, shape)


def _restrided(low: Lowering, node: fx.Node, given: Arguments) -> str:
    """Other strides of axes of one element."""
    x, of, form = same(low, node, given), given["self"].meta["form"], _form(node)
    if any(a != b for a, b, size in zip(of.stride, form.stride, form.shape, strict=True) if size != 1) or given["storage_offset"]:
        raise UnknownError("it sees memory in another order")
    return x


def _copied(low: Lowering, node: fx.Node, given: Arguments) -> str:
    return _expand(low, node, Arguments(given | {"self": given["src"]}))


def _expand(low: Lowering, node: fx.Node, given: Arguments) -> str:
    x, shape = low[given["self"]], _form(node).shape
    return x if low.shape(x) == shape else low.add("Expand", (x,), shape)


def _embedding(low: Lowering, node: fx.Node, given: Arguments) -> str:
    """Rows of a table. An index that is none of it is refused (an input's by `numbers_of` if negative), and PyTorch's raises its error."""
    at, known = low[given["indices"]], low.values.get(given["indices"])
    if low.dtype(at) != np.int64 or (known is not None and bool((known < 0).any())):
        raise UnknownError("an index is negative" if low.dtype(at) == np.int64 else "its indices are no integers of 64 bits")
    return low.add("Take", (low[given["weight"]], at), _form(node).shape, axis=0)


def _permute(low: Lowering, node: fx.Node, given: Arguments) -> str:
    x = low[given["self"]]
    order = [*range(len(low.shape(x)))]
    if "dims" in given:
        order = [axis % len(order) for axis in given["dims"]]
    elif "dim0" in given:
        a, b = (given[name] % len(order) for name in ("dim0", "dim1"))
        order[a], order[b] = order[b], order[a]
    else:
        order.reverse()
    return low.transpose(x, order)


def _roll(low: Lowering, node: fx.Node, given: Arguments) -> str:
    x = low[given["self"]]
    shape = low.shape(x)
    for shift, axis in zip(given["shifts"], given["dims"], strict=True):
        size = shape[axis]
        if at := -shift % size:
            x = low.add("Concat", (low.slices(x, axis, at, size), low.slices(x, axis, 0, at)), shape, axis=axis % len(shape))
    return x


def _pixel_shuffle(low: Lowering, node: fx.Node, given: Arguments) -> str:
    x, by, out = low[given["self"]], given["upscale_factor"], _form(node).shape
    n, c, h, w = low.shape(x)
    apart = low.view(x, (n, c // by**2, by, by, h, w))
    return low.view(low.transpose(apart, (0, 1, 4, 2, 5, 3)), out)


def _pads_of(given: Arguments, rank: int) -> list[tuple[int, int]]:
    numbers = given["pad"] if "pad" in given else given["padding"]
    pads = [(before, behind) for before, behind in zip(numbers[::2], numbers[1::2], strict=True)]
    return [(0, 0)] * (rank - len(pads)) + pads[::-1]


def _pad(low: Lowering, node: fx.Node, given: Arguments) -> str:
    x, out = low[given["self"]], _form(node).shape
    return low.add("Pad", (x,), out, pads=tuple(_pads_of(given, len(out))), value=np.asarray(given["value"], low.dtype(x)))


def _pad_by(mode: bytes) -> Operator:
    def lower(low: Lowering, node: fx.Node, given: Arguments) -> str:
        x, out = low[given["self"]], _form(node).shape
        pads = _pads_of(given, len(out))
        numbers = [before for before, _ in pads] + [behind for _, behind in pads]
        return _expanded(low, Node("Pad", low.label, (x,), (f"{low.label}:y",), {"mode": mode, "pads": numbers}), out)

    return lower


def _expanded(low: Lowering, node: Node, out: Sequence[int]) -> str:
    """What a node of ONNX's becomes."""
    tensors = low.tensors | {node.output: Tensor(tuple(out), low.dtype(node.inputs[0]))}
    return low.parts(array_operators.EXPANSIONS[node.op](node, Graph((), (), (), tensors, low.constants), low.constants), node.output)


def _resize(mode: bytes) -> Operator:
    def lower(low: Lowering, node: fx.Node, given: Arguments) -> str:
        x, out = low[given.get("self", given.get("input"))], _form(node).shape
        shape = low.shape(x)
        if len(out) != 4:
            raise UnknownError("only images are resized natively")
        told = given.get("scale_factors") or [given.get("scales_h"), given.get("scales_w")]
        scales = [made / size if scale is None else scale for size, made, scale in zip(shape[2:], out[2:], told, strict=True)]
        place = b"align_corners" if given.get("align_corners") else b"asymmetric" if mode == b"nearest" else b"half_pixel"
        about = {"mode": mode, "coordinate_transformation_mode": place, "nearest_mode": b"floor", "cubic_coeff_a": -0.75}
        name = low.new(np.array([1, 1, *scales], np.float64))
        return _expanded(low, Node("Resize", low.label, (x, "", name), (f"{low.label}:y",), about), out)

    return lower


OPERATORS: dict[str, Operator] = {
    "dequantize_per_tensor": conversion("Dequantize"), "quantize_per_tensor": conversion("Quantize"),
    "_adaptive_avg_pool2d": _adaptive_pool, "_native_batch_norm_legit": _batch_norm, "_native_batch_norm_legit_no_training": _batch_norm,
    "_scaled_dot_product_flash_attention_for_cpu": _attention, "_softmax": _softmax, "_to_copy": converted, "_unsafe_view": _view,
    "_log_softmax": _softmax, "_safe_softmax": _softmax,
    "abs": _unary("Abs"), "add": _arithmetic("Add"), "addcmul": _addcmul, "addmm": _addmm, "alias": same, "as_strided": _restrided,
    "avg_pool2d": _pool("AveragePool"), "baddbmm": _baddbmm, "bmm": _mm, "cat": _cat, "clamp": _clip, "clamp_max": _clip,
    "clamp_min": _clip, "clone": same, "constant_pad_nd": _pad, "convolution": _convolution, "copy": _copied, "detach": same,
    "div": _arithmetic("Div"), "embedding": _embedding, "erf": _unary("Erf"), "exp": _unary("Exp"), "expand": _expand, "gelu": _gelu,
    "hardsigmoid": _hard_sigmoid,
    "hardswish": _unary("HardSwish"), "hardtanh": _clip, "leaky_relu": _leaky_relu, "linalg_vector_norm": _length, "log": _unary("Log"),
    "max_pool2d_with_indices": _pool("MaxPool"), "maximum": _arithmetic("Max"), "mean": _means, "minimum": _arithmetic("Min"),
    "mish": _unary("Mish"), "mm": _mm, "mul": _arithmetic("Mul"), "native_batch_norm": _batch_norm, "native_group_norm": _group_norm,
    "native_layer_norm": _layer_norm, "neg": _neg, "permute": _permute, "pixel_shuffle": _pixel_shuffle, "pow": _power,
    "reciprocal": _inverse, "reflection_pad2d": _pad_by(b"reflect"), "relu": _unary("Relu"), "replication_pad2d": _pad_by(b"edge"),
    "reshape": _view,
    "roll": _roll, "rsqrt": _inverse, "rsub": _rsub, "select": _select, "sigmoid": _unary("Sigmoid"), "silu": _silu, "slice": _slice,
    "split": _pieces, "split_with_sizes": _pieces, "sqrt": _unary("Sqrt"), "squeeze": _view, "stack": _stack,
    "sub": _arithmetic("Sub"), "sum": _sums, "t": _permute, "tanh": _unary("Tanh"), "transpose": _permute, "unbind": _pieces,
    "unsqueeze": _view, "upsample_bicubic2d": _resize(b"cubic"), "upsample_bilinear2d": _resize(b"linear"),
    "upsample_nearest2d": _resize(b"nearest"), "view": _view,
}  # fmt: skip
# operators whose result lies in the memory of their input
VIEWS = {"alias", "as_strided", "detach", "expand", "permute", "reshape", "select", "slice", "split", "split_with_sizes", "squeeze", "t",
         "transpose", "unbind", "unsqueeze", "view"}  # fmt: skip


def is_view(node: fx.Node) -> bool:
    """Whether a value is in the memory of another, or a part of such values."""
    of = node.args[0] if name_of(node) == "getitem" else node
    return isinstance(of, fx.Node) and name_of(of) in VIEWS


def lowered(graph: fx.Graph, parameters: Mapping[fx.Node, Any]) -> Lowering:
    """`parameters`: the tensors of the inputs that are constants."""
    return Lowering(graph, parameters, OPERATORS)
