# SPDX-License-Identifier: Apache-2.0
"""Functions of numbers between a quantised layer and its quantised result, as NNCF writes networks: they become part of the layer."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install onnx")

from native_library import native  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

import pysim  # noqa: E402
from pysim.network import rewrites  # noqa: E402

pytestmark = native


@pytest.fixture(autouse=True)
def on_rows_of_bytes(monkeypatch):
    monkeypatch.setattr(rewrites, "integer_rows", lambda *_: "s8")


class Quantised:
    """A model whose operators are added one after another; names are those of their results."""

    def __init__(self, seed):
        self.rng, self.nodes, self.held = np.random.default_rng(seed), [], {}

    def keep(self, array):
        name = f"held{len(self.held)}"
        self.held[name] = array
        return name

    def add(self, op, *inputs, **attributes):
        self.nodes.append(helper.make_node(op, list(inputs), [f"v{len(self.nodes)}"], name=f"n{len(self.nodes)}", **attributes))
        return self.nodes[-1].output[0]

    def quantised(self, x, scale, zero=0, kind=np.uint8):
        scale = np.asarray(scale, np.float32)
        of = self.keep(scale), self.keep(np.full(scale.shape, zero, kind))
        axis = {"axis": 1} if scale.ndim else {}
        return self.add("DequantizeLinear", self.add("QuantizeLinear", x, *of, **axis), *of, **axis)

    def weights(self, *shape, axis=0):
        of = [self.keep(one) for one in (self.rng.uniform(0.004, 0.01, shape[axis]).astype(np.float32), np.zeros(shape[axis], np.int8))]
        return self.add("DequantizeLinear", self.keep(self.rng.integers(-127, 128, shape).astype(np.int8)), *of, axis=axis)

    def numbers(self, *shape, near=0.0):
        return self.keep((near + self.rng.standard_normal(shape) * 0.3).astype(np.float32))

    def conv(self, x, filters, channels, kernel=1, groups=1):
        weights = self.weights(filters, channels // groups, kernel, kernel)
        return self.add("Conv", x, weights, self.numbers(filters), pads=[kernel // 2] * 4, group=groups)

    def silu(self, x):
        return self.add("Mul", x, self.add("Sigmoid", x))

    def hard_swish(self, x):
        return self.add("Mul", x, self.add("HardSigmoid", x, alpha=1 / 6, beta=0.5))

    def run(self, path, x, y, accuracy="standard"):
        """ONNX's results, pysim's, and its operators but for copies."""
        self.nodes[-1].output[0] = "y"
        sides = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)] for name, shape in (("x", x.shape), ("y", y))]
        held = [numpy_helper.from_array(array, name) for name, array in self.held.items()]
        graph = helper.make_graph(self.nodes, "one", *sides, held)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9), path)
        model = pysim.load(path, accuracy=accuracy)
        return ReferenceEvaluator(str(path)).run(None, {"x": x})[0], model(x), [layer.node.op for layer in model.plan.layers]


def images(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def close(found, right, step):
    """Few results are a step away, where a number lies near a half."""
    assert np.abs(found - right).max() <= 1.01 * step
    assert (np.abs(found - right) > step / 2).mean() < 0.02


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("function", ["silu", "hard_swish", "relu", None])
def test_an_activation_and_a_float_bias_become_part_of_a_convolution(tmp_path, function, by_channel):
    w = Quantised(1)
    y = w.conv(w.quantised("x", 0.02, 120), 24, 3, 3)
    y = y if function is None else w.add("Relu", y) if function == "relu" else getattr(w, function)(y)
    w.quantised(y, w.rng.uniform(0.02, 0.05, 24) if by_channel else 0.04, 30)
    right, found, ops = w.run(tmp_path / "m.onnx", images(0, 2, 3, 11, 13), [2, 24, 11, 13])
    assert [op for op in ops if op not in ("Reorder", "View", "Mul")] == ["Quantize", "IntegerConv", "Dequantize"]
    close(found, right, 0.05)


def test_other_accuracies_compute_such_functions_as_operators(tmp_path):
    w = Quantised(2)
    w.quantised(w.silu(w.conv(w.quantised("x", 0.02, 120), 8, 3, 3)), 0.04, 30)
    right, found, ops = w.run(tmp_path / "m.onnx", images(0, 1, 3, 9, 9), [1, 8, 9, 9], accuracy="strict")
    assert "Sigmoid" in ops or "Silu" in ops or "Mul" in ops
    close(found, right, 0.04)


def test_depthwise_layers_and_means_of_their_bytes(tmp_path):
    w = Quantised(3)
    y = w.quantised(w.silu(w.conv(w.quantised("x", 0.02, 120), 72, 3)), w.rng.uniform(0.01, 0.03, 72), 40)
    y = w.quantised(w.silu(w.conv(y, 72, 72, 5, 72)), 0.03, 20)
    gate = w.add("Sigmoid", w.conv(w.add("GlobalAveragePool", y), 72, 72))
    w.quantised(w.conv(w.quantised(w.add("Mul", y, w.quantised(gate, 0.004)), 0.03, 20), 40, 72), 0.2, 100)
    right, found, ops = w.run(tmp_path / "m.onnx", images(1, 1, 3, 14, 14), [1, 40, 14, 14])
    assert "IntegerMeans" in ops and ops.count("IntegerConv") == 4 - 1 and "GlobalAveragePool" not in ops
    close(found, right, 0.4)


@pytest.mark.parametrize("bounds", ["Relu", None])
def test_a_norm_of_numbers_and_their_quantisation_are_one_pass(tmp_path, bounds):
    w = Quantised(4)
    parts = w.quantised(w.conv(w.quantised("x", 0.02, 120), 24, 3), 0.05, 100), w.add("AveragePool", w.conv("x", 8, 3), kernel_shape=[1, 1])
    norm = w.numbers(32, near=1.0), w.numbers(32), w.numbers(32), w.keep(np.full(32, 0.8, np.float32))
    y = w.add("BatchNormalization", w.add("Concat", *parts, axis=1), *norm)
    w.quantised(w.conv(w.quantised(w.add(bounds, y) if bounds else y, 0.03, 20), 16, 32), 0.2, 128)
    right, found, ops = w.run(tmp_path / "m.onnx", images(2, 2, 3, 12, 12), [2, 16, 12, 12])
    assert "QuantizeAffine" in ops and not {"Affine", "Relu"} & {*ops}
    close(found, right, 0.2)


def test_a_products_activation_and_factors_of_its_columns(tmp_path):
    w = Quantised(5)
    y = w.add("Gemm", w.quantised("x", 0.02, 3, np.int8), w.weights(48, 70, axis=1), w.numbers(70))
    y = w.add("Reshape", y, w.keep(np.array([1, 20, 70])))
    y = w.add("Reshape", w.silu(y), w.keep(np.array([20, 70])))
    factors = w.keep(w.rng.uniform(0.5, 2, (1, 70)).astype(np.float32))
    y = w.quantised(w.add("Mul", y, factors), 0.03, -90, np.int8)
    w.add("Gemm", y, w.weights(70, 30, axis=1), w.numbers(30))
    right, found, ops = w.run(tmp_path / "m.onnx", images(3, 20, 48), [20, 30])
    assert [op for op in ops if op != "View"] == ["Quantize", "IntegerLinear", "IntegerLinear"]
    np.testing.assert_allclose(found, right, atol=0.02, rtol=0)
