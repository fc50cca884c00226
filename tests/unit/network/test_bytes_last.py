# SPDX-License-Identifier: Apache-2.0
"""Quantised networks whose values lie with channels last give the bytes of those in planes, also where values meet: concatenations, sums,
and products by a number for each channel."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install onnx")

from onnx import helper, numpy_helper  # noqa: E402

import pysim  # noqa: E402
from pysim.network import plan  # noqa: E402

CHANNELS = 20


class Network:
    """Operators between DequantizeLinear and QuantizeLinear."""

    def __init__(self) -> None:
        self.random, self.held, self.nodes = np.random.default_rng(7), list[onnx.TensorProto](), list[onnx.NodeProto]()

    def keep(self, name: str, value: object) -> str:
        self.held.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def quantised(self, name: str, x: str, scale: float) -> str:
        of = [self.keep(f"{name}_scale", np.float32(scale)), self.keep(f"{name}_zero", np.uint8(self.random.integers(256)))]
        self.nodes.append(helper.make_node("QuantizeLinear", [x, *of], [f"{name}_bytes"]))
        self.nodes.append(helper.make_node("DequantizeLinear", [f"{name}_bytes", *of], [name]))
        return name

    def made(self, op: str, name: str, *inputs: str, **about: object) -> str:
        self.nodes.append(helper.make_node(op, inputs, [f"{name}_made"], **about))
        return self.quantised(name, f"{name}_made", float(self.random.uniform(0.02, 0.1)))

    def conv(self, name: str, x: str, channels: int, filters: int, kernel: int) -> str:
        weights = self.random.integers(-127, 128, (filters, channels, kernel, kernel)).astype(np.int8)
        of = [self.keep(f"{name}_w", weights), self.keep(f"{name}_ws", np.float32(0.02)), self.keep(f"{name}_wz", np.int8(0))]
        self.nodes.append(helper.make_node("DequantizeLinear", of, [f"{name}_weights"]))
        return self.made("Conv", name, x, f"{name}_weights", kernel_shape=[kernel] * 2, pads=[kernel // 2] * 4)


def network(path: str) -> None:
    of = Network()
    x = of.quantised("first", "x", 0.05)
    a, b = of.conv("a", x, CHANNELS, 24, 1), of.conv("b", x, CHANNELS, 9, 3)
    joined = of.made("Concat", "joined", a, b, axis=1)
    mean = of.made("GlobalAveragePool", "mean", joined)
    scaled = of.made("Mul", "scaled", joined, mean)
    both = of.made("Add", "both", scaled, joined)
    last = of.conv("last", both, 33, 16, 1)
    about = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in
             (("x", [2, CHANNELS, 9, 11]), (last, [2, 16, 9, 11]))]  # fmt: skip
    graph = helper.make_graph(of.nodes, "bytes", about[:1], about[1:], of.held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_networks_with_channels_last_have_the_bytes_of_planes(tmp_path, monkeypatch):
    path = str(tmp_path / "network.onnx")
    network(path)
    x = np.random.default_rng(0).standard_normal((2, CHANNELS, 9, 11)).astype(np.float32) * 4
    monkeypatch.setattr(plan, "integer_rows", lambda *_: "s8")
    results = {}
    for layout in ("nhwc", "nchw"):
        monkeypatch.setattr(plan, "_integer_seconds", lambda *of, layout=layout: 0.0 if of[3] == layout else 1.0)
        loaded = pysim.load(path)
        last = {one.node.op for one in loaded.plan.layers if one.node.attributes.get("blocks", (1, 1))[1] > 1}
        assert last.issuperset({"Concat", "IntegerConv", "IntegerPair", "IntegerPool"}) if layout == "nhwc" else "IntegerConv" not in last
        results[layout] = loaded(x)
    np.testing.assert_array_equal(results["nhwc"], results["nchw"])
    assert len(np.unique(results["nhwc"])) > 20
