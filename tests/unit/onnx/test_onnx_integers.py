# SPDX-License-Identifier: Apache-2.0
"""Networks that ONNX Runtime's own tool quantised: statically, in both of its forms, and dynamically."""

import logging
from unittest import mock

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import pysim  # noqa: E402
from pysim.network import rewrites  # noqa: E402
from pysim.runtime import cpu  # noqa: E402

quantization = pytest.importorskip("onnxruntime.quantization")
RNG = np.random.default_rng(0)
# Without VNNI ONNX Runtime adds pairs of u8 x s8 products in 16 bits, which saturate, but for weights of 7 bits.
WEIGHTS = {"weight_type": quantization.QuantType.QInt8, "reduce_range": not any("vnni" in name for name in cpu.available_kernels())}


class Written:
    def __init__(self):
        self.held, self.nodes = {}, []

    def keep(self, name, *shape, scale=0.3):
        self.held[name] = (RNG.standard_normal(shape) * scale).astype(np.float32)
        return name

    def add(self, op, inputs, out, **attributes):
        self.nodes.append(helper.make_node(op, inputs, [out], name=f"{out}_node", **attributes))
        return out

    def layer(self, x, out, filters, channels, kernel=1, **attributes):
        weights = self.keep(f"{out}_w", filters, channels, kernel, kernel), self.keep(f"{out}_b", filters)
        return self.add("Conv", [x, *weights], out, **attributes)

    def model(self, x, y):
        sides = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)] for name, shape in (("x", x), ("y", y))]
        held = [numpy_helper.from_array(np.asarray(array), name) for name, array in self.held.items()]
        graph = helper.make_graph(self.nodes, "one", *sides, held)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def convolutions():
    """A stem, a depthwise layer, a residual, a squeeze and excitation, a concatenation, pools and a classifier."""
    w = Written()
    w.held |= {"zero": np.float32(0), "six": np.float32(6)}
    x = w.add("Relu", [w.layer("x", "stem", 16, 3, 3, pads=[1] * 4, strides=[2, 2])], "stem_relu")
    x = w.add("MaxPool", [x], "largest", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    y = w.add("Clip", [w.layer(x, "depthwise", 16, 1, 3, pads=[1] * 4, group=16), "zero", "six"], "clipped")
    s = w.add("Relu", [w.add("Add", [w.layer(y, "linear", 16, 16), x], "residual")], "residual_relu")
    gate = w.add("Sigmoid", [w.layer(w.add("GlobalAveragePool", [s], "squeezed"), "excited", 16, 16)], "gate")
    s = w.add("HardSwish", [w.add("Mul", [s, gate], "scaled")], "swish")
    s = w.add("AveragePool", [w.add("Concat", [s, x], "both", axis=1)], "mean", kernel_shape=[2, 2], strides=[2, 2])
    s = w.add("Flatten", [w.add("GlobalAveragePool", [s], "means")], "flat")
    w.add("Gemm", [s, w.keep("last_w", 10, 32), w.keep("last_b", 10)], "y", transB=1)
    return w.model([1, 3, 32, 32], [1, 10])


def attention(tokens=17, size=32, heads=2):
    """A block of a transformer, with a ReLU in its MLP."""
    w = Written()
    w.held |= {"split": np.array([1, tokens, heads, size // heads]), "whole": np.array([1, tokens, size]), "quarter": np.float32(0.25)}

    def linear(x, out, n, k):
        return w.add("Add", [w.keep(f"{out}_b", n), w.add("MatMul", [x, w.keep(f"{out}_w", k, n)], f"{out}_product")], out)

    def norm(x, out):
        return w.add("LayerNormalization", [x, w.keep(f"{out}_g", size, scale=1), w.keep(f"{out}_s", size)], out, axis=-1)

    x, parts = norm("x", "norm"), []
    for name in "qkv":
        part = w.add("Reshape", [linear(x, name, size, size), "split"], f"{name}_heads")
        parts.append(w.add("Transpose", [part], f"{name}_turned", perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]))
    shares = w.add("Softmax", [w.add("Mul", [w.add("MatMul", parts[:2], "scores"), "quarter"], "scaled")], "shares", axis=-1)
    y = w.add("Transpose", [w.add("MatMul", [shares, parts[2]], "values")], "turned", perm=[0, 2, 1, 3])
    x = w.add("Add", ["x", linear(w.add("Reshape", [y, "whole"], "merged"), "projected", size, size)], "first")
    y = w.add("Relu", [linear(norm(x, "second_norm"), "wide", 4 * size, size)], "active")
    w.add("Add", [x, linear(y, "narrow", size, 4 * size)], "y")
    return w.model([1, tokens, size], [1, tokens, size])


class Samples(quantization.CalibrationDataReader):
    def __init__(self, shape):
        self.left = [{"x": RNG.standard_normal(shape).astype(np.float32)} for _ in range(3)]

    def get_next(self):
        return self.left.pop() if self.left else None


@pytest.fixture(autouse=True, params=["s8", "f32"])
def integers(monkeypatch, request):
    """The rows that compute integer layers."""
    monkeypatch.setattr(rewrites, "integer_rows", lambda *_: request.param)


def results(path, x):
    """ONNX Runtime's, operator by operator, and pysim's, whose operators are also named."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    right = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    model = pysim.load(path)
    return right, model(x), [layer.node.op for layer in model.plan.layers]


@pytest.mark.parametrize("make", [convolutions, attention])
@pytest.mark.parametrize("kind", ["QUInt8", "QInt8"])
@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_statically_quantised_networks(tmp_path, make, kind, form):
    logging.disable(logging.WARNING)
    model, kind = make(), quantization.QuantType[kind]
    shape = [one.dim_value for one in model.graph.input[0].type.tensor_type.shape.dim]
    onnx.save(model, tmp_path / "float.onnx")
    about = {"quant_format": quantization.QuantFormat[form], "per_channel": form == "QDQ", "activation_type": kind}
    quantization.quantize_static(tmp_path / "float.onnx", tmp_path / "bytes.onnx", Samples(shape), **WEIGHTS, **about)
    right, found, ops = results(tmp_path / "bytes.onnx", RNG.standard_normal(shape).astype(np.float32))
    assert not {"Conv", "Linear", "Add", "Mul"} & {*ops}
    if form == "QOperator":
        np.testing.assert_array_equal(found, right, strict=True)
        return
    # sums of numbers round differently from whole sums, so a few results of a layer are one step apart
    steps = np.unique(right)
    assert np.abs(found - right).max() <= 1.01 * np.diff(steps).min() * 2
    assert make is convolutions or (found == right).mean() > 0.9


def test_operators_of_one_value_are_one_table(tmp_path):
    """x sigmoid(x) + x, each operator quantised."""
    logging.disable(logging.WARNING)
    w, shape = Written(), [1, 3, 9, 11]
    product = w.add("Mul", ["x", w.add("Sigmoid", ["x"], "gate")], "product")
    w.add("Add", [product, "x"], "y")
    onnx.save(w.model(shape, shape), tmp_path / "float.onnx")
    about = {"quant_format": quantization.QuantFormat.QDQ, "activation_type": quantization.QuantType.QUInt8}
    quantization.quantize_static(tmp_path / "float.onnx", tmp_path / "bytes.onnx", Samples(shape), **WEIGHTS, **about)
    right, found, ops = results(tmp_path / "bytes.onnx", 2 * RNG.standard_normal(shape).astype(np.float32))
    assert ops == ["Quantize", "Table", "Dequantize"]
    np.testing.assert_array_equal(found, right, strict=True)


@pytest.mark.parametrize("make", [convolutions, attention])
@pytest.mark.parametrize("per_channel", [False, True])
def test_dynamically_quantised_networks(tmp_path, make, per_channel):
    logging.disable(logging.WARNING)
    model = make()
    shape = [one.dim_value for one in model.graph.input[0].type.tensor_type.shape.dim]
    onnx.save(model, tmp_path / "float.onnx")
    quantization.quantize_dynamic(tmp_path / "float.onnx", tmp_path / "bytes.onnx", per_channel=per_channel, **WEIGHTS)
    right, found, ops = results(tmp_path / "bytes.onnx", RNG.standard_normal(shape).astype(np.float32))
    assert not {"Conv", "Linear", "MatMulInteger", "ConvInteger", "Cast"} & {*ops}
    np.testing.assert_allclose(found, right, rtol=0, atol=2e-6 * np.abs(right).max(), strict=True)


def test_a_saved_integer_network_gives_the_same_bits(tmp_path):
    logging.disable(logging.WARNING)
    onnx.save(convolutions(), tmp_path / "float.onnx")
    shape = [1, 3, 32, 32]
    about = {"quant_format": quantization.QuantFormat.QOperator}
    quantization.quantize_static(tmp_path / "float.onnx", tmp_path / "bytes.onnx", Samples(shape), **WEIGHTS, **about)
    model, x = pysim.load(tmp_path / "bytes.onnx"), RNG.standard_normal(shape).astype(np.float32)
    model.save(tmp_path / "saved.pysim")
    np.testing.assert_array_equal(pysim.load(tmp_path / "saved.pysim")(x), model(x), strict=True)


def by_channel(tmp_path, zeros=0, float_bias=True):
    """A 1x1 and a depthwise 3x3 convolution with bytes between them that have a scale for each channel; (path, input)."""
    random, channels = np.random.default_rng(3), 70
    held = {"xs": np.float32(0.02), "xz": np.uint8(120), "ys": np.float32(0.05), "yz": np.uint8(7)}
    held |= {"scales": random.uniform(0.005, 0.02, channels).astype(np.float32), "zeros": np.full(channels, zeros, np.uint8)}
    held |= {
        "w": random.integers(-127, 128, (channels, 5, 1, 1)).astype(np.int8),
        "ws": random.uniform(5e-3, 1e-2, channels).astype(np.float32),
    }
    held |= {
        "v": random.integers(-127, 128, (channels, 1, 3, 3)).astype(np.int8),
        "vs": random.uniform(5e-3, 1e-2, channels).astype(np.float32),
    }
    held |= {"bias": random.normal(size=channels).astype(np.float32), "six": np.float32(6), "low": np.float32(0)}
    made = helper.make_node
    nodes = [
        made("DequantizeLinear", ["x", "xs", "xz"], ["x1"]),
        made("DequantizeLinear", ["w", "ws"], ["w1"], axis=0),
        made("Conv", ["x1", "w1", *["bias"] * float_bias], ["a"]),
        made("Clip", ["a", "low", "six"], ["b"]),
        made("QuantizeLinear", ["b", "scales", "zeros"], ["c"], axis=1),
        made("DequantizeLinear", ["c", "scales", "zeros"], ["d"], axis=1),
        made("DequantizeLinear", ["v", "vs"], ["v1"], axis=0),
        made("Conv", ["d", "v1"], ["e"], group=channels, pads=[1, 1, 1, 1]),
        made("QuantizeLinear", ["e", "ys", "yz"], ["y"]),
    ]
    given = [helper.make_tensor_value_info("x", TensorProto.UINT8, (1, 5, 9, 11))]
    left = [helper.make_tensor_value_info("y", TensorProto.UINT8, (1, channels, 9, 11))]
    graph = helper.make_graph(nodes, "one", given, left, [numpy_helper.from_array(np.asarray(of), name) for name, of in held.items()])
    path = tmp_path / "one.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path, random.integers(0, 256, (1, 5, 9, 11)).astype(np.uint8)


@pytest.mark.parametrize("zeros", [0, 3])
@pytest.mark.usefixtures("integers")
def test_bytes_with_a_scale_for_each_channel_join_integer_layers(tmp_path, zeros):
    path, x = by_channel(tmp_path, zeros, float_bias=False)
    model = pysim.load(path)
    assert {layer.node.op for layer in model.plan.layers} <= {"IntegerConv", "Reorder", "View"}
    right = onnx.reference.ReferenceEvaluator(onnx.load(path)).run(None, {"x": x})[0]
    apart = np.abs(model(x).astype(int) - right)
    assert apart.max() <= 1
    assert np.mean(apart > 0) < 0.002  # quotients near halves, whose products are added in another order


@pytest.mark.usefixtures("integers")
def test_a_float_bias_is_rounded_under_accuracy_standard_alone(tmp_path):
    path, x = by_channel(tmp_path)
    exact, rounded = (pysim.load(path, accuracy=accuracy) for accuracy in ("strict", "standard"))
    shifts = [
        [layer.node.attributes["sums"].shift.any() for layer in model.plan.layers if layer.node.op == "IntegerConv"]
        for model in (exact, rounded)
    ]
    assert shifts == [[True, False], [False, False]]
    right = onnx.reference.ReferenceEvaluator(onnx.load(path)).run(None, {"x": x})[0]
    assert np.mean(exact(x) != right) < 0.002
    assert np.abs(rounded(x).astype(int) - right).max() <= 1


@pytest.mark.parametrize("axis", [1, 2])
def test_zeros_that_differ_from_place_to_place_are_onnxs(tmp_path, axis):
    random, shape = np.random.default_rng(5), (2, 7, 9)
    held = {"s": random.uniform(0.005, 0.02, shape[axis]).astype(np.float32), "z": random.integers(-90, 90, shape[axis]).astype(np.int8)}
    made = helper.make_node
    nodes = [made("QuantizeLinear", ["x", "s", "z"], ["q"], axis=axis), made("DequantizeLinear", ["q", "s", "z"], ["y"], axis=axis)]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    left = [helper.make_tensor_value_info("q", TensorProto.INT8, shape), helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)]
    graph = helper.make_graph(nodes, "places", given, left, [numpy_helper.from_array(of, name) for name, of in held.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "places.onnx")
    model = pysim.load(tmp_path / "places.onnx")
    assert not [layer.node.op for layer in model.plan.layers if layer.node.op.startswith("onnx.")]
    x = random.normal(0, 1, shape).astype(np.float32)
    x[0, 0, :4] = np.inf, -np.inf, 1e30, -1e30
    along = [-1 if at == axis else 1 for at in range(3)]
    scale, zero = held["s"].reshape(along), held["z"].reshape(along).astype(np.float32)
    steps = np.clip(np.rint(x / scale) + zero, -128, 127).astype(np.int8)
    bytes_of, numbers = model(x)
    np.testing.assert_array_equal(bytes_of, steps, strict=True)
    np.testing.assert_array_equal(numbers, (steps - zero) * scale, strict=True)


@pytest.mark.usefixtures("integers")
def test_a_convolution_to_numbers_turns_to_channels_last_and_back_with_the_same_bits(tmp_path, monkeypatch):
    random, held = np.random.default_rng(6), {"xs": np.float32(0.02), "xz": np.uint8(117)}
    held |= {"w": random.integers(-127, 128, (40, 3, 8, 8)).astype(np.int8), "ws": random.uniform(5e-3, 1e-2, 40).astype(np.float32)}
    held |= {"b": random.normal(size=40).astype(np.float32)}
    made = helper.make_node
    nodes = [
        made("DequantizeLinear", ["x", "xs", "xz"], ["x1"]),
        made("DequantizeLinear", ["w", "ws"], ["w1"], axis=0),
        made("Conv", ["x1", "w1", "b"], ["y"], strides=[8, 8], pads=[0, 4, 4, 0]),
    ]
    given = [helper.make_tensor_value_info("x", TensorProto.UINT8, (2, 3, 52, 60))]
    left = [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 40, 7, 8))]
    graph = helper.make_graph(nodes, "numbers", given, left, [numpy_helper.from_array(np.asarray(of), name) for name, of in held.items()])
    path, x = tmp_path / "numbers.onnx", random.integers(0, 256, (2, 3, 52, 60)).astype(np.uint8)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    results = []
    for around in (-1.0, 1.0):  # seconds of a conversion: so the plan with channels last is taken, or not
        monkeypatch.setattr("pysim.network.plan.reordering_seconds", lambda tensor, on, around=around: around)
        model = pysim.load(path)
        (layer,) = (layer for layer in model.plan.layers if layer.plan)
        assert layer.plan.layout == ("nhwc" if around < 0 and layer.node.attributes["dtype"] == "s8" else "nchw")
        results.append(model(x))
    np.testing.assert_array_equal(*results, strict=True)
    model.save(tmp_path / "saved.pysim")
    np.testing.assert_array_equal(pysim.load(tmp_path / "saved.pysim")(x), results[0], strict=True)


@pytest.mark.parametrize("depth", [64, 250, 600])
def test_products_of_two_quantised_values_are_exact(tmp_path, depth):
    """(2, 3, 5, depth) times (3, depth, 7): QLinearMatMul whose operands are both computed, of bytes at their ends."""
    random = np.random.default_rng(depth)
    held = {"as": np.float32(0.013), "az": np.uint8(3), "bs": np.float32(0.021), "bz": np.uint8(101)}
    held |= {"ys": np.float32(depth * 0.09), "yz": np.uint8(127)}
    nodes = [helper.make_node("QLinearMatMul", ["a", "as", "az", "b", "bs", "bz", "ys", "yz"], ["y"])]
    given = [helper.make_tensor_value_info(name, TensorProto.UINT8, of) for name, of in (("a", (2, 3, 5, depth)), ("b", (3, depth, 7)))]
    left = [helper.make_tensor_value_info("y", TensorProto.UINT8, (2, 3, 5, 7))]
    graph = helper.make_graph(nodes, "two", given, left, [numpy_helper.from_array(np.asarray(of), name) for name, of in held.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "two.onnx")
    model = pysim.load(tmp_path / "two.onnx")
    assert not [layer.node.op for layer in model.plan.layers if layer.node.op.startswith(("onnx.", "QLinear"))]
    a, b = (random.choice([0, 1, 200, 254, 255], of).astype(np.uint8) for of in ((2, 3, 5, depth), (3, depth, 7)))
    sums = (a.astype(np.int64) - 3) @ (b.astype(np.int64) - 101)
    steps = np.rint(sums.astype(np.float32) * (held["as"] * held["bs"] / held["ys"])) + 127
    np.testing.assert_array_equal(model(a, b), np.clip(steps, 0, 255).astype(np.uint8), strict=True)


def test_convolutions_behind_operators_whose_shapes_onnx_does_not_infer_are_layers(tmp_path):
    random, held = np.random.default_rng(7), {"s": np.float32(0.02), "z": np.uint8(100), "ws": np.float32(0.01), "wz": np.int8(0)}
    held["w"] = random.integers(-127, 128, (6, 12, 1, 1)).astype(np.int8)
    nodes = [
        helper.make_node("QLinearGlobalAveragePool", ["x", "s", "z", "s", "z"], ["m"], domain="com.microsoft", channels_last=0),
        helper.make_node("QLinearConv", ["m", "s", "z", "w", "ws", "wz", "s", "z"], ["y"]),
    ]
    given = [helper.make_tensor_value_info("x", TensorProto.UINT8, (1, 12, 5, 5))]
    left = [helper.make_tensor_value_info("y", TensorProto.UINT8, None)]
    graph = helper.make_graph(nodes, "gate", given, left, [numpy_helper.from_array(np.asarray(of), name) for name, of in held.items()])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    path, x = tmp_path / "gate.onnx", random.integers(0, 256, (1, 12, 5, 5)).astype(np.uint8)
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    model = pysim.load(path)
    assert "QLinearConv" not in [layer.node.op for layer in model.plan.layers]
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(model(x), session.run(None, {"x": x})[0], strict=True)


@pytest.mark.parametrize(("number", "step"), [(0.3, 125), (2.7, 255), (np.nan, 0)])
def test_a_number_without_axes_is_quantised(tmp_path, number, step):
    held = {"c": np.float32(number), "s": np.float32(0.012), "z": np.uint8(100)}
    made = [helper.make_node("QuantizeLinear", ["c", "s", "z"], ["q"]), helper.make_node("Identity", ["x"], ["y"])]
    given, left = (
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2,))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2,))],
    )
    left.append(helper.make_tensor_value_info("q", TensorProto.UINT8, ()))
    graph = helper.make_graph(made, "number", given, left, [numpy_helper.from_array(np.asarray(of), name) for name, of in held.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "number.onnx")
    _, q = pysim.load(tmp_path / "number.onnx")(np.zeros(2, np.float32))
    np.testing.assert_array_equal(q, np.uint8(step), strict=True)


def test_small_layers_of_unsigned_bytes_are_planned_for_such(tmp_path):
    """One pixel of few channels, whose fastest plan read signed bytes where they lie, and failed."""
    random, held = np.random.default_rng(8), {"s": np.float32(0.02), "z": np.uint8(100), "ws": np.float32(0.01), "wz": np.int8(0)}
    for channels, filters in ((1, 1), (2, 3), (3, 1), (5, 2), (1, 9)):
        held["w"] = random.integers(-127, 128, (channels, filters)).astype(np.int8)
        nodes = [helper.make_node("QLinearMatMul", ["x", "s", "z", "w", "ws", "wz", "s", "z"], ["y"])]
        given = [helper.make_tensor_value_info("x", TensorProto.UINT8, (1, channels))]
        left = [helper.make_tensor_value_info("y", TensorProto.UINT8, (1, filters))]
        graph = helper.make_graph(nodes, "small", given, left, [numpy_helper.from_array(np.asarray(of), name) for name, of in held.items()])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "small.onnx")
        x = random.integers(0, 256, (1, channels)).astype(np.uint8)
        with mock.patch.object(rewrites, "integer_rows", return_value="s8"):
            found = pysim.load(tmp_path / "small.onnx")(x)
        sums = (x.astype(np.int64) - 100) @ held["w"].astype(np.int64)
        steps = np.rint(sums.astype(np.float32) * (held["s"] * held["ws"] / held["s"])) + 100
        np.testing.assert_array_equal(found, np.clip(steps, 0, 255).astype(np.uint8), strict=True)
