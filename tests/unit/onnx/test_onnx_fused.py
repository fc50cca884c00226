# SPDX-License-Identifier: Apache-2.0
"""Operators of com.microsoft, which ONNX Runtime's optimiser writes, give ONNX Runtime's numbers."""

import itertools

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install onnxruntime")

from onnx import helper, numpy_helper  # noqa: E402

import pysim  # noqa: E402
from pysim.errors import ProblemError  # noqa: E402

RNG = np.random.default_rng(0)


def numbers(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def written(tmp_path, node, inputs, constants, opset, outputs=("y",)):
    kept = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(
        [node],
        "contrib",
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, array.shape) for name, array in inputs.items()],
        [helper.make_value_info(name, onnx.TypeProto()) for name in outputs],
        kept,
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    path = tmp_path / "contrib.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def equal(path, inputs, limit=1e-5):
    right = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, inputs)
    found = pysim.load(path)(*inputs.values())
    for y, wanted in zip(found if isinstance(found, list | tuple) else [found], right, strict=True):
        np.testing.assert_allclose(y, wanted, rtol=limit, atol=limit, strict=True)


def node(op, inputs, outputs=("y",), **attributes):
    return helper.make_node(op, [*inputs], [*outputs], domain="com.microsoft", **attributes)


@pytest.mark.parametrize("opset", [11, 14, 20])
@pytest.mark.parametrize(
    ("op", "constants", "how"),
    [
        ("Gelu", (), {}),
        ("BiasGelu", ("b",), {}),
        ("FastGelu", (), {}),
        ("FastGelu", ("b",), {}),
        ("QuickGelu", (), {}),
        ("QuickGelu", (), {"alpha": 1.3}),
    ],
)
def test_gates(tmp_path, opset, op, constants, how):
    inputs, kept = {"x": numbers(3, 5)}, {name: numbers(5) for name in constants}
    equal(written(tmp_path, node(op, ["x", *kept], **how), inputs, kept, opset), inputs)


@pytest.mark.parametrize(("first", "second", "alpha"), [*itertools.product((0, 1), (0, 1), (1.0, 0.25))])
def test_products_of_transposed_operands(tmp_path, first, second, alpha):
    inputs = {"x": numbers(2, 5, 4) if first else numbers(2, 4, 5), "z": numbers(2, 3, 5) if second else numbers(2, 5, 3)}
    equal(written(tmp_path, node("FusedMatMul", "xz", transA=first, transB=second, alpha=alpha), inputs, {}, 14), inputs)


@pytest.mark.parametrize(
    ("bits", "k", "zeros", "bias"), [(4, 80, "packed", True), (4, 96, "", False), (8, 80, "packed", False), (4, 80, "float", True)]
)
def test_products_of_a_few_bits(tmp_path, bits, k, zeros, bias):
    n, block, blocks = 24, 32, -(-k // 32)

    def packed(*shape):
        return RNG.integers(0, 256, shape).astype(np.uint8)

    kept = {"w": packed(n, blocks, block * bits // 8), "scales": numbers(n * blocks)}
    names = ["x", *kept, "", "", ""]
    if zeros:
        names[3], kept["zeros"] = "zeros", packed(n * -(-blocks * bits // 8)) if zeros == "packed" else numbers(n * blocks) + 8
    if bias:
        names[5], kept["bias"] = "bias", numbers(n)
    while not names[-1]:
        names.pop()
    inputs = {"x": numbers(2, 5, k)}
    equal(written(tmp_path, node("MatMulNBits", names, K=k, N=n, bits=bits, block_size=block), inputs, kept, 17), inputs, 1e-4)
    with pytest.raises(ProblemError, match="its matrix is of shape"):
        pysim.load(written(tmp_path, node("MatMulNBits", names, K=k, N=n + 1, bits=bits, block_size=block), inputs, kept, 17))


@pytest.mark.parametrize(
    ("activation", "parameters"),
    [("Relu", []), ("Sigmoid", []), ("Tanh", []), ("LeakyRelu", [0.1]), ("HardSigmoid", [0.3, 0.4]), ("Clip", [-0.5, 0.5]), (None, [])],
)
@pytest.mark.parametrize("addend", [False, True])
def test_convolutions_with_what_follows_them(tmp_path, activation, parameters, addend):
    inputs = {"x": numbers(1, 4, 6, 6)} | ({"z": numbers(1, 6, 6, 6)} if addend else {})
    how = ({"activation": activation} if activation else {}) | ({"activation_params": parameters} if parameters else {})
    fused = node("FusedConv", ["x", "w", "b", *(["z"] if addend else [])], pads=[1, 1, 1, 1], **how)
    equal(written(tmp_path, fused, inputs, {"w": numbers(6, 4, 3, 3), "b": numbers(6)}, 13), inputs)


@pytest.mark.parametrize(("flips", "addend"), [((0, 0), True), ((1, 0), True), ((0, 1), False), ((1, 1), True)])
@pytest.mark.parametrize(("activation", "numbers_of"), [("Relu", {}), ("LeakyRelu", {"activation_alpha": 0.2}), ("Tanh", {})])
def test_products_with_what_follows_them(tmp_path, flips, addend, activation, numbers_of):
    inputs = {"x": numbers(5, 4) if flips[0] else numbers(4, 5)}
    kept = {"w": numbers(3, 5) if flips[1] else numbers(5, 3)} | ({"c": numbers(3)} if addend else {})
    how = {"transA": flips[0], "transB": flips[1], "alpha": 0.5, "beta": 2.0} | numbers_of
    fused = node("FusedGemm", ["x", *kept], activation=activation, **how)
    equal(written(tmp_path, fused, inputs, kept, 13), inputs)


@pytest.mark.parametrize("held", ["g", "gb", "gbc"])
@pytest.mark.parametrize("total", [False, True])
@pytest.mark.parametrize("opset", [14, 17])
def test_layer_norms_of_sums(tmp_path, held, total, opset):
    inputs, kept = {"x": numbers(2, 4, 8), "s": numbers(2, 4, 8)}, {name: numbers(8) for name in held}
    outputs = ["y", "", "", "t"] if total else ["y"]
    norm = node("SkipLayerNormalization", [*inputs, *kept], outputs, epsilon=1e-5)
    equal(written(tmp_path, norm, inputs, kept, opset, [name for name in outputs if name]), inputs)


@pytest.mark.parametrize(
    "refused",
    [
        node("FusedMatMul", "xx", transBatchA=1),
        node("FusedConv", "xw", activation="Softplus"),
        node("FusedConv", "xw", activation="Clip", activation_params=[1.0]),
        node("QuickGelu", "x", beta=1.0),
        node("SkipLayerNormalization", ["x", "x", "g"], ["y", "mean"]),
    ],
    ids=lambda one: one.op_type,
)
def test_other_forms_are_refused_by_their_names(tmp_path, refused):
    inputs, kept = {"x": numbers(1, 4, 4, 4)}, {"w": numbers(4, 4, 1, 1), "g": numbers(4)}
    with pytest.raises(ProblemError, match=f'{refused.op_type} "y" cannot be run: its '):
        pysim.load(written(tmp_path, refused, inputs, kept, 14))


def test_a_file_that_onnxruntime_optimised_gives_the_numbers_of_the_original(tmp_path):
    kept = {"w": numbers(6, 4, 3, 3), "b": numbers(6)}
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w", "b"], ["c"]), helper.make_node("LeakyRelu", ["c"], ["y"], alpha=0.1)],
        "convolution",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (1, 4, 6, 6))],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (1, 6, 4, 4))],
        [numpy_helper.from_array(array, name) for name, array in kept.items()],
    )
    path, optimised = tmp_path / "given.onnx", tmp_path / "optimised.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(optimised)
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    assert "FusedConv" in {one.op_type for one in onnx.load(optimised).graph.node}
    x = numbers(1, 4, 6, 6)
    np.testing.assert_allclose(pysim.load(optimised)(x), pysim.load(path)(x), rtol=1e-5, atol=1e-5)
