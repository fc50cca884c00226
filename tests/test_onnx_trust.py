# SPDX-License-Identifier: Apache-2.0
"""Results of ONNX operators at the ends of their ranges: equal to ONNX Runtime."""

import numpy as np
import pytest
from graphs import helper, numpy_helper
from onnx_models import by_onnxruntime, model_of

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def equal(op, x, constants, opset=17, ir=8, **how):
    """An operator on "x" and constants, named in the order of its inputs ("" for none), has ONNX Runtime's result."""
    kept = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items() if array is not None]
    names = ["x", *(name if array is not None else "" for name, array in constants.items())]
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)]
    ends = [helper.make_value_info("y", onnx.TypeProto())]
    graph = helper.make_graph([helper.make_node(op, names, ["y"], **how)], "trust", inputs, ends, kept)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)
    (right,) = by_onnxruntime(proto.SerializeToString(), x)
    np.testing.assert_allclose(model_of(proto)(x), right, rtol=2e-5, atol=2e-6, strict=True)


@pytest.mark.parametrize("zero", [np.int8(3), np.uint8(3), np.int16(-3), np.uint16(7)])
def test_a_quotient_beyond_int32_saturates(zero):
    x = np.array([1e10, -1e10, np.inf, -np.inf, 3e9, -3e9, 2.5, 3e38], np.float32)
    equal("QuantizeLinear", x, {"s": np.float32(0.5), "z": zero}, 21, 10)
    equal("QuantizeLinear", x.reshape(2, 4), {"s": np.full(4, 0.5, np.float32), "z": np.full(4, zero)}, 21, 10)


@pytest.mark.parametrize("shape", [(3,), (1, 3), (2, 3), (2, 1)])
def test_a_gemm_with_beta_0_does_not_read_its_addend(shape):
    constants = {"w": np.ones((4, 3), np.float32), "c": np.full(shape, np.nan, np.float32)}
    equal("Gemm", np.ones((2, 4), np.float32), constants, beta=0.0)


@pytest.mark.parametrize("scale", [0.35, 0.45, 0.7, 0.9, 1.3, 1.4, 1.8, 1.9, 2.3])
def test_sizes_by_scales_are_products_in_float32(scale):
    scales = np.array([1, 1, scale, 1], np.float32)
    for size in range(1, 65):
        x = np.random.default_rng(size).standard_normal((1, 1, size, 2)).astype(np.float32)
        if int(np.float32(size) * scales[2]):
            for rule in ("half_pixel", "asymmetric"):
                equal("Resize", x, {"roi": None, "s": scales}, mode="linear", coordinate_transformation_mode=rule)
            equal("Resize", x, {"roi": None, "s": scales}, mode="nearest")
        if scale > 1:
            equal("Upsample", x, {"s": scales}, 9, mode="nearest")
            equal("Upsample", x, {}, 7, mode="nearest", scales=scales.tolist())
