# SPDX-License-Identifier: Apache-2.0
"""Infinities, NaN and outliers in layers and networks reach what a direct sum lets them reach: pysim.conv2d, prepare, load and torch."""

import warnings

import numpy as np
import pytest
from native_library import native

import pysim

torch = pytest.importorskip("torch")
pytestmark = native

VALUES = [np.inf, -np.inf, np.nan, 1e38, 3e38, 1e6]
PLACES = [(0, 0), (0, 13), (27, 27), (13, 14), (4, 7)]


def layer():
    random = np.random.default_rng(21)
    x = random.standard_normal((2, 64, 28, 28), dtype=np.float32)
    w = random.uniform(-0.2, 0.2, (64, 64, 3, 3)).astype(np.float32)
    return x, w, random.standard_normal(64, dtype=np.float32)


def with_value(x, value):
    y = x.copy()
    for i, (row, column) in enumerate(PLACES):
        y[i % len(y), 7 * i, row, column] = value
    return y


def by_torch(x, w, bias, activation=None):
    wide = [torch.from_numpy(one).double() for one in (x, w, bias)]
    y = torch.nn.functional.conv2d(*wide, padding=1)
    return (torch.relu(y) if activation == "relu" else y).numpy()


def assert_direct(got, want, accuracy, loose=1e-5):
    """Infinite and NaN where `want` is; elsewhere within `loose` of the largest result whose inputs may reach it."""
    with np.errstate(over="ignore"):
        values = want.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(values))
    np.testing.assert_array_equal(got[np.isinf(values)], values[np.isinf(values)])
    some = np.isfinite(values)
    assert np.isfinite(got[some]).all()
    over = (0, 1, 2, 3) if accuracy == "standard" else (1,)  # under strict the largest result of any filter at that pixel
    near = np.broadcast_to(np.where(some, np.abs(want), 0).max(axis=over, keepdims=True), want.shape)
    assert (np.abs(got[some] - want[some]) <= loose * np.maximum(near[some], 8.0)).all()


@pytest.mark.parametrize("accuracy", ["standard", "strict", "ieee"])
@pytest.mark.parametrize("value", VALUES)
def test_calls_give_what_a_direct_sum_gives(value, accuracy):
    x, w, bias = layer()
    x = with_value(x, value)
    for activation in (None, "relu"):
        want = by_torch(x, w, bias, activation)
        once = pysim.conv2d(x, w, padding=1, bias=bias, activation=activation, accuracy=accuracy)
        kept = pysim.prepare("conv:mb2ic64ih28oc64kh3ph1", w, bias=bias, activation=activation, accuracy=accuracy, threads=2)
        assert_direct(once, want, accuracy)
        assert_direct(kept(x), want, accuracy)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first = torch.nn.Conv2d(64, 64, 3, padding=1)
        self.second = torch.nn.Conv2d(64, 64, 3, padding=1)

    def forward(self, x):
        return torch.relu(self.second(torch.relu(self.first(x))) + x)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e30])
@pytest.mark.parametrize("accuracy", ["standard", "strict"])
def test_networks_of_pytorch_give_what_eager_gives(value, accuracy, every_layer_is_ours):
    model, x = Block().eval(), torch.from_numpy(with_value(layer()[0], value))
    ours = pysim.torch.optimize(model, accuracy)
    with torch.no_grad():
        got, want = ours(x).numpy(), Block().double().eval()(x.double()).numpy()
    assert {one.runs for one in pysim.torch.report(ours)} == {"pysim"}
    assert_direct(got, want, accuracy)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e30])
@pytest.mark.parametrize("accuracy", ["standard", "strict", "ieee"])
def test_loaded_networks_give_what_eager_gives(value, accuracy, tmp_path):
    onnx = pytest.importorskip("onnx")
    block, x = Block().eval(), with_value(layer()[0], value)
    of, tensor = onnx.helper, onnx.numpy_helper.from_array
    nodes = [
        of.make_node("Conv", ["x", "w1", "b1"], ["a"], pads=[1, 1, 1, 1]),
        of.make_node("Relu", ["a"], ["b"]),
        of.make_node("Conv", ["b", "w2", "b2"], ["c"], pads=[1, 1, 1, 1]),
        of.make_node("Add", ["c", "x"], ["d"]),
        of.make_node("Relu", ["d"], ["y"]),
    ]
    weights = {"w1": block.first.weight, "b1": block.first.bias, "w2": block.second.weight, "b2": block.second.bias}
    sides = ([of.make_tensor_value_info(name, onnx.TensorProto.FLOAT, x.shape)] for name in "xy")
    graph = of.make_graph(nodes, "block", *sides, [tensor(one.detach().numpy(), name) for name, one in weights.items()])
    onnx.save(of.make_model(graph, opset_imports=[of.make_opsetid("", 17)], ir_version=8), tmp_path / "block.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of NumPy, too
        got = pysim.load(tmp_path / "block.onnx", accuracy=accuracy, threads=2)(x)
    with torch.no_grad():
        want = Block().double().eval()(torch.from_numpy(x).double()).numpy()
    assert_direct(got, want, accuracy)
