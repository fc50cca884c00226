# SPDX-License-Identifier: Apache-2.0
"""Generated integer layers equal ONNX's text, computed with whole numbers: QLinearConv, QLinearMatMul and operators between
DequantizeLinear and QuantizeLinear. Every result is a byte, so equal means equal."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from limits import inputs

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install onnx")

from onnx import helper, numpy_helper  # noqa: E402

import pysim  # noqa: E402
from pysim.network import rewrites  # noqa: E402
from pysim.registry.cpu import Kernel  # noqa: E402

BYTES = (np.uint8, np.int8)


class Case:
    """A model of one operator on bytes, and its result in whole numbers."""

    def __init__(self, rng, folder, *shapes):
        self.rng, self.folder, self.held, self.nodes = rng, folder, {}, []
        self.kind = BYTES[rng.integers(2)]
        self.x = [self.bytes(shape) for shape in shapes]
        self.of = [self.quantity() for _ in shapes]
        self.to = self.quantity()

    def bytes(self, shape):
        return self.rng.integers(-128, 128, shape).astype(np.int8).view(self.kind)

    def quantity(self):
        info = np.iinfo(self.kind)
        return np.float32(2.0 ** self.rng.uniform(-7, 1)), int(self.rng.integers(info.min, info.max + 1))

    def keep(self, array, name):
        self.held[name] = np.asarray(array)
        return name

    def parameters(self, name, of):
        return [self.keep(of[0], f"{name}_scale"), self.keep(self.kind(of[1]), f"{name}_zero")]

    def add(self, op, operands, out, **attributes):
        self.nodes.append(helper.make_node(op, operands, [out], name=out, **attributes))
        return out

    def plain(self):
        """The operands as numbers."""
        names = [f"x{at}" for at in range(len(self.x))]
        return [
            self.add("DequantizeLinear", [name, *self.parameters(name, of)], f"{name}_plain")
            for name, of in zip(names, self.of, strict=True)
        ]

    def quantized(self, name):
        self.add("QuantizeLinear", [name, *self.parameters("y", self.to)], "y")

    def result(self, rows="s8", refused=()):
        element = helper.np_dtype_to_tensor_dtype(np.dtype(self.kind))
        given = [helper.make_tensor_value_info(f"x{at}", element, x.shape) for at, x in enumerate(self.x)]
        graph = helper.make_graph(
            self.nodes,
            "one",
            given,
            [helper.make_tensor_value_info("y", element, None)],
            [numpy_helper.from_array(array, name) for name, array in self.held.items()],
        )
        path = self.folder / "one.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        # products of two values run in plain C where no kernel reads rows
        with mock.patch.object(rewrites, "integer_rows", return_value=rows), mock.patch.object(rewrites.Target, "reads_rows", True):
            model = pysim.load(path)
        left = {layer.node.op for layer in model.plan.layers}
        assert not left & {"Conv", "Linear", "Quantize", "Dequantize", "Add", "Mul", *refused}, left
        return model(*self.x)

    def whole(self, at=0):
        return self.x[at].astype(np.int64) - self.of[at][1]

    def rounded(self, numbers, low=-np.inf, high=np.inf):
        """saturate(round(y)) + zero of quotients y in float32."""
        info = np.iinfo(self.kind)
        bounds = [np.rint(np.float32(end) / self.to[0]) for end in (low, high)]
        steps = np.clip(np.rint(numbers.astype(np.float32)), *bounds)
        return np.clip(steps.astype(np.float64) + self.to[1], info.min, info.max).astype(self.kind)

    def divided(self, numbers):
        return numbers.astype(np.float32) / self.to[0]


def convolved(x, w, stride, dilation, pads, groups):
    """The INT64 convolution of x, whose zero is 0."""
    x = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    (n, _, height, width), (filters, channels, rows, columns) = x.shape, w.shape
    p, q = (height - dilation * (rows - 1) - 1) // stride + 1, (width - dilation * (columns - 1) - 1) // stride + 1
    y = np.zeros((n, groups, filters // groups, p, q), np.int64)
    x, w = x.reshape(n, groups, channels, height, width), w.reshape(groups, -1, channels, rows, columns)
    for r in range(rows):
        for s in range(columns):
            at = x[..., r * dilation :: stride, s * dilation :: stride][..., :p, :q]
            y += np.einsum("ngcpq,gfc->ngfpq", at, w[..., r, s])
    return y.reshape(n, filters, p, q)


def weights_of(case, shape, axis):
    """Weights, their scales (one, or one a filter) and a bias of whole numbers, or none."""
    filters = shape[axis]
    w = case.rng.integers(-128, 128, shape).astype(np.int8)
    scale = np.float32(2.0 ** case.rng.uniform(-9, -5, filters if case.rng.integers(2) else ()))
    bias = case.rng.integers(-20_000, 20_000, filters).astype(np.int32) if case.rng.integers(2) else None
    case.to = (np.float32(case.of[0][0] * scale.mean() * case.rng.uniform(5, 200)), case.to[1])
    return w, scale, bias


def by_definition(case, sums, scale, bias, axis, low, high):
    shape = [-1 if at == axis % sums.ndim else 1 for at in range(sums.ndim)]
    sums = sums + (0 if bias is None else bias.reshape(shape))
    by = np.float32(case.of[0][0]) * np.float32(scale) / np.float32(case.to[0])
    return case.rounded(sums.astype(np.float32) * np.broadcast_to(by, sums.shape[axis % sums.ndim]).reshape(shape), low, high)


def layer(case, op, operands, scale, bias, axis, **attributes):
    """The layer in one of its two forms, perhaps with an activation; returns its bounds."""
    w = operands[1]
    if case.rng.integers(2) and op != "Gemm":
        of = [case.keep(scale, "w_scale"), case.keep(np.int8(0) if scale.ndim == 0 else np.zeros(scale.shape, np.int8), "w_zero")]
        more = [case.keep(bias, "bias")] if bias is not None and op == "Conv" else []
        given = ["x0", *case.parameters("x0", case.of[0]), w, *of, *case.parameters("y", case.to), *more]
        case.add(f"QLinear{op}", given, "y", **attributes)
        return -np.inf, np.inf, bias if more else None
    names = [
        *case.plain(),
        case.add("DequantizeLinear", [w, case.keep(scale, "w_scale")], "w_plain", **({"axis": axis % 4} if scale.ndim else {})),
    ]
    if bias is not None and op != "MatMul":
        own = np.float32(case.of[0][0]) * np.float32(scale)
        about = {"axis": 0} if own.ndim else {}
        names.append(case.add("DequantizeLinear", [case.keep(bias, "bias"), case.keep(own, "bias_scale")], "bias_plain", **about))
    y = case.add(op, names, "made", **attributes)
    low, high = ((-np.inf, np.inf), (0, np.inf), (-1.0, 2.0))[case.rng.integers(3)]
    if (low, high) == (0, np.inf):
        y = case.add("Relu", [y], "bounded")
    elif high == 2.0:
        y = case.add("Clip", [y, case.keep(np.float32(low), "low"), case.keep(np.float32(high), "high")], "bounded")
    case.quantized(y)
    return low, high, bias if len(names) == 3 else None


def conv(rng, folder):
    groups = int(rng.choice([1, 1, 2, 8]))
    channels, filters = groups * int(rng.integers(1, 5)), groups * int(rng.integers(1, 9))
    rows, columns, stride, dilation = (int(rng.integers(1, most)) for most in (4, 4, 3, 3))
    pads = [int(one) for one in rng.integers(0, 3, 4)]
    size = [int(rng.integers(dilation * (k - 1) + 1, 12)) for k in (rows, columns)]
    case = Case(rng, folder, (int(rng.integers(1, 3)), channels, *size))
    w, scale, bias = weights_of(case, (filters, channels // groups, rows, columns), 0)
    about = {"strides": [stride] * 2, "dilations": [dilation] * 2, "pads": pads, "group": groups}
    low, high, bias = layer(case, "Conv", ["x0", case.keep(w, "w")], scale, bias, 0, **about)
    sums = convolved(case.whole(), w.astype(np.int64), stride, dilation, pads, groups)
    return case, by_definition(case, sums, scale, bias, 1, low, high)


def residual(rng, folder):
    """A convolution to bytes, and a sum of these and others, whose scales are often alike, so that halves are met."""
    channels, filters, kernel, stride = (int(rng.integers(1, most)) for most in (5, 41, 4, 3))
    pads, groups = [int(one) for one in rng.integers(0, 2, 4)], int(rng.integers(1, 3))
    sizes = [int(rng.integers(kernel, 20)) for _ in range(2)]
    case = Case(rng, folder, (int(rng.integers(1, 3)), channels * groups, *sizes))
    w, scale, _ = weights_of(case, (filters * groups, channels, kernel, kernel), 0)
    sums = convolved(case.whole(), w.astype(np.int64), stride, 1, pads, groups)
    case.x.append(case.bytes(sums.shape))
    alike = bool(rng.integers(2))
    case.of.append((case.to[0] * np.float32(rng.choice([0.5, 1, 3]) if alike else rng.uniform(0.2, 5)), case.quantity()[1]))
    x, other = case.plain()
    weights = case.add(
        "DequantizeLinear", [case.keep(w, "w"), case.keep(scale, "w_scale")], "w_plain", **({"axis": 0} if scale.ndim else {})
    )
    made = case.add("Conv", [x, weights], "made", strides=[stride] * 2, pads=pads, group=groups)
    own, kept = case.to, case.parameters("q", case.to)
    q = case.add("DequantizeLinear", [case.add("QuantizeLinear", [made, *kept], "q"), *kept], "q_plain")
    q_bytes = by_definition(case, sums, scale, None, 1, -np.inf, np.inf)
    y, low = case.add("Add", [q, other] if rng.integers(2) else [other, q], "sum"), -np.inf
    if rng.integers(2):
        y, low = case.add("Relu", [y], "bounded"), 0
    case.to = (own[0] * np.float32(rng.choice([1, 2]) if alike else rng.uniform(0.5, 3)), case.quantity()[1])
    case.quantized(y)
    a, b = (q_bytes.astype(np.int64) - own[1]).astype(np.float32) * own[0], case.whole(1).astype(np.float32) * case.of[1][0]
    return case, case.rounded(case.divided(np.maximum(a + b, np.float32(low))))


def product(rng, folder):
    m, n, k = (int(one) for one in rng.integers(1, 40, 3))
    op = ("MatMul", "Gemm")[rng.integers(2)]
    case = Case(rng, folder, (m, k))
    turned = op == "Gemm" and bool(rng.integers(2))
    w, scale, bias = weights_of(case, (n, k) if turned else (k, n), 0 if turned else 1)
    low, high, bias = layer(case, op, ["x0", case.keep(w, "w")], scale, bias, 0 if turned else 1, **({"transB": 1} if turned else {}))
    sums = case.whole() @ (w.T if turned else w).astype(np.int64)
    return case, by_definition(case, sums, scale, bias, 1, low, high)


def product_of_two(rng, folder):
    count, m, n, k = (int(one) for one in rng.integers(1, (4, 70, 150, 40)))
    case = Case(rng, folder, (count, m, k), (count, k, n))
    case.quantized(case.add("MatMul", case.plain(), "made"))
    sums = case.whole(0) @ case.whole(1)
    return case, case.rounded(sums.astype(np.float32) * (case.of[0][0] * case.of[1][0] / case.to[0]))


def pair(rng, folder):
    shape = [int(one) for one in rng.integers(1, 6, 4)]
    other = [size if rng.integers(2) else 1 for size in shape]
    case, op = Case(rng, folder, shape, other), ("Add", "Mul")[rng.integers(2)]
    case.quantized(case.add(op, case.plain(), "made"))
    a, b = (case.whole(at).astype(np.float32) * case.of[at][0] for at in range(2))
    return case, case.rounded(case.divided(a + b if op == "Add" else a * b))


def pool(rng, folder):
    shape = [int(one) for one in rng.integers(3, 9, 4)]
    case, largest = Case(rng, folder, shape), bool(rng.integers(2))
    kernel, stride, pad = [int(one) for one in rng.integers(2, 4, 2)], int(rng.integers(1, 3)), int(rng.integers(0, 2))
    about = {"kernel_shape": kernel, "strides": [stride] * 2, "pads": [pad] * 4}
    padded = bool(rng.integers(2)) and not largest
    more = {"count_include_pad": 1} if padded else {}
    case.quantized(case.add("MaxPool" if largest else "AveragePool", case.plain(), "made", **about, **more))
    x = np.pad(case.whole(), ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=-(10**6) if largest else 0)
    inside = np.pad(np.ones(shape[2:], np.int64), pad, constant_values=int(padded))
    windows = [np.lib.stride_tricks.sliding_window_view(one, kernel, (-2, -1))[..., ::stride, ::stride, :, :] for one in (x, inside)]
    if largest:
        return case, case.rounded(case.divided(windows[0].max((-2, -1)).astype(np.float32) * case.of[0][0]))
    means = windows[0].sum((-2, -1)).astype(np.float32) * case.of[0][0] / windows[1].sum((-2, -1)).astype(np.float32)
    return case, case.rounded(case.divided(means))


def concat(rng, folder):
    axis, shape = int(rng.integers(4)), [int(one) for one in rng.integers(1, 6, 4)]
    shapes = [[int(rng.integers(1, 5)) if at == axis else size for at, size in enumerate(shape)] for _ in range(3)]
    case = Case(rng, folder, *shapes)
    case.quantized(case.add("Concat", case.plain(), "made", axis=axis))
    parts = [case.rounded(case.divided(case.whole(at).astype(np.float32) * case.of[at][0])) for at in range(3)]
    return case, np.concatenate(parts, axis)


def moved(rng, folder):
    case = Case(rng, folder, [int(one) for one in rng.integers(1, 9, 4)])
    perm = [int(one) for one in rng.permutation(4)]
    case.quantized(case.add("Relu", [case.add("Transpose", case.plain(), "made", perm=perm)], "bounded"))
    return case, case.rounded(case.divided(np.maximum(case.whole().transpose(perm).astype(np.float32) * case.of[0][0], 0)))


MADE = [conv, conv, conv, residual, residual, product, product, product_of_two, pair, pool, concat, moved]


@inputs(20_000)
@given(st.sampled_from(MADE), st.sampled_from(["s8", "f32"]), st.booleans(), st.integers(0, 2**32 - 1))
def test_integer_layers_equal_onnxs_text(tmp_path_factory, make, rows, in_store, seed):
    """`in_store`: all rows add residuals in their stores but those of pairs, which Winograd runs, too, and that adds none, and depthwise
    ones; else those that do so fastest."""
    case, right = make(np.random.default_rng(seed), tmp_path_factory.getbasetemp())
    with mock.patch.object(Kernel, "adds", property(lambda row: row.form not in ("pairs", "taps", "last")) if in_store else Kernel.adds):
        result = case.result(rows)
    np.testing.assert_array_equal(result, right, strict=True)
