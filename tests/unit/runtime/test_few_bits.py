# SPDX-License-Identifier: Apache-2.0
"""Products with weights of four bits are what NumPy computes of the numbers that they stand for; operands end where pages begin
that nobody may touch."""

import numpy as np
import onnx
import pytest
from graphs import helper
from guarded import guarded
from native_library import native
from onnx import numpy_helper

import pysim
from pysim.errors import NativeError
from pysim.network import rewrites
from pysim.runtime.integer_steps import FewBits, few_bits_step, packed

pytestmark = native
RNG = np.random.default_rng(12)


def drawn(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture
def _wanted(monkeypatch):
    """Such products everywhere, whichever is faster."""
    monkeypatch.setattr(rewrites, "few_bits_seconds", lambda *_: 0.0)


def weights(k, columns, block, zeros):
    """(packed, the numbers): zeros are 8, whole or any."""
    blocks = -(-k // block)
    q, scale = RNG.integers(0, 16, (k, columns)).astype(np.uint8), RNG.standard_normal((blocks, columns)).astype(np.float32)
    zero = {"none": np.full_like(scale, 8), "whole": RNG.integers(0, 16, scale.shape), "any": 15 * RNG.random(scale.shape)}[zeros].astype(
        np.float32
    )
    spread = (np.repeat(of, block, 0)[:k].astype(np.float64) for of in (scale, zero))
    return packed(q, scale, zero, block), (lambda scales, zero_points: scales * (q - zero_points))(*spread)


@pytest.mark.parametrize("zeros", ["none", "whole", "any"])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 11, 12, 13])
def test_a_product_is_numpys(rows, zeros):
    for k, columns, block in [(8, 1, 8), (64, 24, 32), (80, 33, 32), (96, 5, 16), (128, 48, 128), (40, 17, 64), (32, 64, 8)]:
        of, numbers = weights(k, columns, block, zeros)
        x, bias = RNG.standard_normal((rows, k)).astype(np.float32), RNG.standard_normal(columns).astype(np.float32)
        right, size = x @ numbers, np.abs(x) @ np.abs(numbers) + 8 * np.abs(x).sum(1, keepdims=True)
        for added in (None, bias):
            y = guarded(np.full((rows, columns), np.nan, np.float32))
            few_bits_step(y, guarded(x), of._replace(panels=guarded(of.panels)), None if added is None else guarded(added))()
            assert (np.abs(y - right - (0 if added is None else added)) <= 1e-5 * size).all(), (k, columns, block)


@pytest.mark.parametrize("zeros", ["none", "whole", "any"])
def test_inputs_rounded_by_blocks_are_off_by_half_a_step(zeros):
    for rows in (1, 2, 5, 6, 7, 13):
        for k, columns, block in [(8, 1, 8), (64, 24, 32), (80, 33, 32), (96, 5, 16), (40, 17, 64)]:
            of, by = weights(k, columns, block, zeros)
            x, y = drawn(rows, k), guarded(np.full((rows, columns), np.nan, np.float32))
            x[-1, :block] = 0
            few_bits_step(y, guarded(x), of._replace(panels=guarded(of.panels)), None, rounds=True)()
            blocks = np.abs(np.pad(x, ((0, 0), (0, -k % block)))).reshape(rows, -1, block).max(2)
            half = np.repeat(blocks / 127 / 2, block, 1)[:, :k] * 1.001
            assert (np.abs(y - x @ by) <= half @ np.abs(by) + 1e-5 * np.abs(x) @ np.abs(by) + 1e-5).all(), (rows, k, columns)


@pytest.mark.parametrize("strange", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_has_no_numbers_and_the_others_have(strange):
    of, _ = weights(64, 20, 32, "none")
    x, y = drawn(3, 64), np.empty((3, 20), np.float32)
    x[1, 40] = strange
    few_bits_step(y, x, of, None, rounds=True)()
    assert not np.isfinite(y[1]).any()
    assert np.isfinite(y[[0, 2]]).all()


@pytest.mark.parametrize("rounds", [False, True])
def test_threads_change_no_bit(rounds):
    of, _ = weights(256, 200, 32, "whole")
    x = RNG.standard_normal((7, 256)).astype(np.float32)
    results = []
    for threads in (1, 2, 3):
        y = np.empty((7, 200), np.float32)
        step = few_bits_step(y, x, of, None, rounds)
        step.on_threads(threads)
        step()
        results.append(y)
    assert all((one == results[0]).all() for one in results)


def test_sizes_that_are_no_words_are_refused():
    of, x, y = weights(64, 16, 32, "none")[0], np.zeros((1, 60), np.float32), np.zeros((1, 16), np.float32)
    with pytest.raises(NativeError, match="k is 60 and a block 32; expected multiples of 8"):
        few_bits_step(y, x, of, None)()
    with pytest.raises(NativeError, match="which is written, overlaps x"):
        few_bits_step(x[:, :16], x[:, :32], FewBits(of.panels, 16, 32, False), None)()


def model(tmp_path, opset, node, x, constants):
    kept = [numpy_helper.from_array(array, name) if isinstance(array, np.ndarray) else array for name, array in constants.items()]
    y = [*x.shape[:-1], None]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in (("x", x.shape), ("y", y))]
    graph = helper.make_graph([*node], "bits", ends[:1], ends[1:], kept)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    path = tmp_path / "bits.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


@pytest.mark.usefixtures("_wanted")
@pytest.mark.parametrize("zeros", [False, True])
def test_products_of_blocks_of_onnx_decode_their_weights(tmp_path, zeros):
    k, n, block = 512, 1040, 64
    x = RNG.standard_normal((1, 3, k)).astype(np.float32)
    name = "UINT4" if zeros else "INT4"
    q = RNG.integers(0, 16, (k, n)) - (0 if zeros else 8)
    constants = {"q": helper.make_tensor("q", getattr(onnx.TensorProto, name), (k, n), q.reshape(-1).tolist())}
    constants["scale"] = RNG.standard_normal((k // block, n)).astype(np.float32)
    at = RNG.integers(0, 16, (k // block, n)) if zeros else np.zeros((k // block, n))
    if zeros:
        constants["zero"] = helper.make_tensor("zero", onnx.TensorProto.UINT4, at.shape, at.reshape(-1).tolist())
    node = [
        helper.make_node("DequantizeLinear", [*constants], ["w"], axis=0, block_size=block),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    path = model(tmp_path, 21, node, x, constants)
    network = pysim.load(path)
    assert [layer.node.op for layer in network.plan.layers] == ["FewBits"]
    right = x.astype(np.float64) @ (np.repeat(constants["scale"], block, 0) * (q - np.repeat(at, block, 0)))
    np.testing.assert_allclose(network(x), right, rtol=1e-4, atol=1e-3)
    network.save(tmp_path / "bits.pysim")
    assert (pysim.load(tmp_path / "bits.pysim")(x) == network(x)).all()
    plain = pysim.load(path, accuracy="reproducible")
    assert [layer.node.op for layer in plain.plan.layers] == ["Linear"]


@pytest.mark.usefixtures("_wanted")
@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize(("k", "zeros"), [(512, True), (488, True), (512, False)])
def test_a_matmul_of_bits_decodes_its_weights(tmp_path, k, zeros, level):
    n, block, blocks = 1040, 32, -(-k // 32)
    x = RNG.standard_normal((2, k)).astype(np.float32)
    constants = {
        "w": RNG.integers(0, 256, (n, blocks, block // 2)).astype(np.uint8),
        "s": RNG.standard_normal(n * blocks).astype(np.float32),
    }
    if zeros:
        constants["z"] = RNG.integers(0, 256, n * -(-blocks // 2)).astype(np.uint8)
    constants["b"] = RNG.standard_normal(n).astype(np.float32)
    nibbles = np.stack([constants["w"] & 15, constants["w"] >> 4], -1).reshape(n, -1)[:, :k].astype(np.float64)
    at = np.stack([constants["z"].reshape(n, -1) & 15, constants["z"].reshape(n, -1) >> 4], -1).reshape(n, -1)[:, :blocks] if zeros else 8
    spread = [np.repeat(np.broadcast_to(of, (n, blocks)), block, 1)[:, :k] for of in (at, constants["s"].reshape(n, blocks))]
    right = x @ ((nibbles - spread[0]) * spread[1]).T + constants["b"]
    names = ["x", "w", "s", "z" if zeros else "", "", "b"]
    node = [helper.make_node("MatMulNBits", names, ["y"], domain="com.microsoft", K=k, N=n, bits=4, block_size=block, accuracy_level=level)]
    path = model(tmp_path, 17, node, x, constants)
    network = pysim.load(path)
    nodes = {layer.node.op: layer.node for layer in network.plan.layers}
    assert nodes["FewBits"].attributes["rounds"] == (level == 4)
    assert not any(layer.node.attributes.get("rounds") for layer in pysim.load(path, accuracy="strict").plan.layers)
    np.testing.assert_allclose(network(x), right, rtol=1e-4, atol=1e-3 if level == 0 else 1e-2 * np.abs(right).max())
