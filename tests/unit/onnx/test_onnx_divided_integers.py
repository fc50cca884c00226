# SPDX-License-Identifier: Apache-2.0
"""Products of bytes whose columns are queries, keys and values: each part is quantised in its own store."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import pysim  # noqa: E402

ROWS, HEADS, EACH = 21, 3, 16


def model(folder, quantised, order=(0, 2, 1, 3)):
    """Bytes times 3 HEADS EACH columns, as queries, keys and values; `quantised` of them are multiplied by 1/8 and quantised. Its path."""
    random, columns = np.random.default_rng(2), 3 * HEADS * EACH
    held = {"xs": np.float32(0.02), "xz": np.int8(5), "ws": random.uniform(5e-3, 1e-2, columns).astype(np.float32)}
    held |= {"w": random.integers(-127, 128, (40, columns)).astype(np.int8), "parts": np.array([1, ROWS, 3, HEADS, EACH])}
    held |= {"by": np.float32(0.125), "one": np.array([2]), "qs": np.float32(0.02), "qz": np.int8(-3)}
    made = helper.make_node
    nodes = [
        made("DequantizeLinear", ["x", "xs", "xz"], ["x1"]),
        made("DequantizeLinear", ["w", "ws"], ["w1"], axis=1),
        made("MatMul", ["x1", "w1"], ["a"]),
        made("Reshape", ["a", "parts"], ["b"]),
        made("Split", ["b"], ["b0", "b1", "b2"], axis=2, num_outputs=3),
    ]
    for at in range(3):
        nodes.append(made("Squeeze", [f"b{at}", "one"], [f"c{at}"]))
        nodes.append(made("Transpose", [f"c{at}"], [f"d{at}" if at < quantised else f"y{at}"], perm=order))
        if at < quantised:
            nodes.append(made("Mul", [f"d{at}", "by"], [f"e{at}"]))
            nodes.append(made("QuantizeLinear", [f"e{at}", "qs", "qz"], [f"y{at}"]))
    given = [helper.make_tensor_value_info("x", TensorProto.INT8, (1, ROWS, 40))]
    left = [helper.make_tensor_value_info(f"y{at}", TensorProto.INT8 if at < quantised else TensorProto.FLOAT, None) for at in range(3)]
    graph = helper.make_graph(nodes, "parts", given, left, [numpy_helper.from_array(np.asarray(of), name) for name, of in held.items()])
    path = folder / "parts.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    return path, held


def right(x, held, quantised, order):
    """The same in whole numbers, and in float32 what the text rounds to it."""
    sums = (x.astype(np.int64) - int(held["xz"])) @ held["w"].astype(np.int64)
    numbers = sums.astype(np.float32) * (held["xs"] * held["ws"])
    parts = numbers.reshape(1, ROWS, 3, HEADS, EACH).transpose(2, 0, 1, 3, 4)
    parts = [part.transpose(order) for part in parts]
    return [
        np.clip(np.rint(part * held["by"] / held["qs"]) + int(held["qz"]), -128, 127) if at < quantised else part
        for at, part in enumerate(parts)
    ]


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (0, 2, 3, 1)])
@pytest.mark.parametrize("accuracy", ["standard", "strict"])
def test_parts_of_a_product_that_are_quantised_are_products_of_their_own(tmp_path, order, accuracy):
    path, held = model(tmp_path, 2, order)
    loaded = pysim.load(path, accuracy=accuracy)
    ops = [layer.node.op for layer in loaded.plan.layers]
    assert ops.count("IntegerLinear") == 3
    assert accuracy == "strict" or "Quantize" not in ops
    x = np.random.default_rng(4).integers(-128, 128, (1, ROWS, 40)).astype(np.int8)
    for result, expected in zip(loaded(x), right(x, held, 2, order), strict=True):
        apart = np.abs(result.astype(np.float64) - expected)
        if result.dtype == np.int8:  # quotients near halves, whose factors are multiplied in another order
            assert apart.max() <= 1
            assert np.mean(apart > 0) < 0.002
        else:
            assert apart.max() < 1e-5
    loaded.save(tmp_path / "saved.pysim")
    for result, again in zip(loaded(x), pysim.load(tmp_path / "saved.pysim")(x), strict=True):
        np.testing.assert_array_equal(result, again, strict=True)


def test_a_product_no_part_of_which_is_quantised_stays_whole(tmp_path):
    path, _ = model(tmp_path, 0)
    assert [layer.node.op for layer in pysim.load(path).plan.layers].count("IntegerLinear") == 1
