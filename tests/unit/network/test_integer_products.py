# SPDX-License-Identifier: Apache-2.0
"""Products of two values of bytes are exact sums, rounded once, and softmax of bytes is that of what they stand for; operands end where
pages begin that nobody may touch. Networks have them where their operators are quantised."""

import numpy as np
import onnx
import onnxruntime
import pytest
from graphs import helper
from guarded import guarded
from native_library import native
from onnx import numpy_helper

import pysim
from pysim.errors import NativeError
from pysim.network import rewrites
from pysim.runtime.integer_steps import Quantity, byte_products_step, byte_softmax_step

pytestmark = native
RNG = np.random.default_rng(7)
BOTH = (np.uint8, np.int8)


def drawn(shape, kind):
    return RNG.integers(np.iinfo(kind).min, np.iinfo(kind).max + 1, shape).astype(kind)


def quantity(kind, scale=1.0):
    return Quantity(scale, int(drawn((), kind)), np.dtype(kind))


@pytest.mark.parametrize("kinds", [(a, b, y) for a in BOTH for b in BOTH for y in BOTH])
def test_products_are_exact(kinds):
    for count, rows, k, columns in [(1, 1, 1, 1), (2, 3, 5, 7), (3, 55, 16, 65), (1, 54, 4, 64), (2, 109, 33, 130), (1, 7, 8, 300)]:
        a, b = drawn((count, rows, k), kinds[0]), drawn((count, k, columns), kinds[1])
        of, scale = tuple(quantity(kind) for kind in kinds), float(np.float32(1 / (3600 * np.sqrt(k))))
        sums = (a.astype(np.int64) - of[0].zero) @ (b.astype(np.int64) - of[1].zero)
        right = np.clip(np.rint(sums.astype(np.float32) * np.float32(scale)) + of[2].zero, of[2].least, of[2].most)
        for threads in (1, 2):
            y = guarded(np.zeros((count, rows, columns), kinds[2]))
            step = byte_products_step(y, guarded(a), guarded(b), of, scale)
            step.on_threads(threads)
            step()
            assert (y == right).all(), (rows, k, columns)


@pytest.mark.parametrize("kinds", [(x, y) for x in BOTH for y in BOTH])
def test_a_softmax_is_that_of_numbers(kinds):
    for rows, size in [(1, 1), (3, 16), (5, 49), (2, 65), (7, 197), (2, 4096)]:
        x, of, to = drawn((rows, size), kinds[0]), quantity(kinds[0], 0.05), Quantity(1 / 255, np.iinfo(kinds[1]).min, np.dtype(kinds[1]))
        y = guarded(np.zeros((rows, size), kinds[1]))
        byte_softmax_step(y, guarded(x), (of, to))()
        numbers = np.exp(of.numbers(x).astype(np.float64) - of.numbers(x).max(-1, keepdims=True))
        shares = numbers / numbers.sum(-1, keepdims=True) / np.float32(to.scale)
        assert (np.abs(y.astype(np.float64) - to.zero - np.clip(shares, 0, 255)) <= 0.5 + 1e-4).all(), size


def test_what_is_no_product_is_refused():
    of = tuple(quantity(np.uint8) for _ in range(3))
    a, b, y = np.zeros((1, 2, 3), np.uint8), np.zeros((1, 3, 4), np.uint8), np.zeros((1, 2, 4), np.uint8)
    with pytest.raises(NativeError, match="the scale of sums of bytes is -1"):
        byte_products_step(y, a, b, of, -1.0)()
    with pytest.raises(NativeError, match="at most 4096"):
        byte_softmax_step(np.zeros((1, 5000), np.uint8), np.zeros((1, 5000), np.uint8), of[:2])()
    with pytest.raises(NativeError, match="at most 32768"):
        byte_products_step(y, np.zeros((1, 2, 40000), np.uint8), np.zeros((1, 40000, 4), np.uint8), of, 1.0)


def attention(tmp_path, quantised):
    """Attention whose every value is quantised: by QDQ, or by QLinearMatMul and QLinearSoftmax."""
    heads, rows, size = 3, 50, 20
    constants, nodes = {}, []

    def of(name, scale, zero):
        constants.update({f"{name}:scale": np.float32(scale), f"{name}:zero": np.uint8(zero)})
        return [f"{name}:scale", f"{name}:zero"]

    def product(name, a, b, scale, zero, first, second):
        if quantised == "qoperator":
            nodes.append(helper.make_node("QLinearMatMul", [a, *first, b, *second, *of(name, scale, zero)], [name]))
            return
        for side, values in ((a, first), (b, second)):
            nodes.append(helper.make_node("DequantizeLinear", [side, *values], [f"{side}:{name}"]))
        nodes.append(helper.make_node("MatMul", [f"{a}:{name}", f"{b}:{name}"], [f"{name}:number"]))
        nodes.append(helper.make_node("QuantizeLinear", [f"{name}:number", *of(name, scale, zero)], [name]))

    ends, scales = [], {"q": of("q", 0.02137, 120), "k": of("k", 0.02971, 131), "v": of("v", 0.01937, 100)}
    for name, shape in (("q", (heads, rows, size)), ("k", (heads, size, rows)), ("v", (heads, rows, size))):
        ends.append(helper.make_tensor_value_info(name, onnx.TensorProto.UINT8, shape))
    product("scores", "q", "k", 0.05119, 128, scales["q"], scales["k"])
    nodes.append(helper.make_node("DequantizeLinear", ["scores", "scores:scale", "scores:zero"], ["scores:x"]))
    nodes.append(helper.make_node("Softmax", ["scores:x"], ["shares:float"], axis=-1))
    nodes.append(helper.make_node("QuantizeLinear", ["shares:float", *of("shares", 1 / 255, 0)], ["shares"]))
    product("y", "shares", "v", 0.01033, 90, ["shares:scale", "shares:zero"], scales["v"])
    kept = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    y = helper.make_tensor_value_info("y", onnx.TensorProto.UINT8, (heads, rows, size))
    path = tmp_path / "attention.onnx"
    graph = helper.make_graph(nodes, "attention", ends, [y], kept)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path, [drawn((heads, *shape), np.uint8) for shape in ((rows, size), (size, rows), (rows, size))]


@pytest.mark.parametrize("quantised", ["qdq", "qoperator"])
def test_attention_of_bytes_is_what_onnxs_operators_compute(tmp_path, monkeypatch, quantised):
    path, inputs = attention(tmp_path, quantised)
    monkeypatch.setattr(rewrites.Target, "reads_rows", True)
    network = pysim.load(path)
    ops = [layer.node.op for layer in network.plan.layers]
    assert ops.count("IntegerProducts") == 2
    assert ops.count("IntegerSoftmax") == 1
    assert "MatMul" not in ops
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # its softmax of bytes is another one
    runs = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    right, found = runs.run(None, dict(zip("qkv", inputs, strict=True)))[0], network(*inputs)
    assert (found != right).mean() < 1e-3
    monkeypatch.setattr(rewrites.Target, "reads_rows", False)
    plain = pysim.load(path)
    assert "IntegerProducts" not in [layer.node.op for layer in plain.plan.layers]
    assert (plain(*inputs) != found).mean() < 1e-3
    network.save(tmp_path / "attention.pysim")
    assert (pysim.load(tmp_path / "attention.pysim")(*inputs) == found).all()
