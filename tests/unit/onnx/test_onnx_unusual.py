# SPDX-License-Identifier: Apache-2.0
"""ONNX graphs that exporters seldom make and ONNX allows: equal to ONNX Runtime."""

import re

import numpy as np
import pytest
from graphs import helper, numpy_helper
from onnx_models import by_onnxruntime, given, model_of, several

from pysim.errors import ProblemError

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")


def equal(nodes, shape, constants=(), opset=17, outputs=("y",)):
    """A model of nodes from "x" has the outputs that ONNX Runtime gives."""
    kept = [numpy_helper.from_array(np.asarray(array), name) for name, array in dict(constants).items()]
    ends = [helper.make_value_info(name, onnx.TypeProto()) for name in outputs]
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)]
    graph = helper.make_graph(nodes, "unusual", inputs, ends, kept)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    content, x = proto.SerializeToString(), given(proto)
    for y, right in zip(several(model_of(proto)(x)), by_onnxruntime(content, x), strict=True):
        assert y.dtype == right.dtype
        np.testing.assert_allclose(y, right, rtol=2e-5, atol=2e-6, strict=True)


@pytest.mark.parametrize(
    ("op", "how", "shape"),
    [
        ("GlobalLpPool", {"p": 3}, (2, 3, 4, 5)), ("GlobalMaxPool", {}, (2, 3, 7)), ("GlobalMaxPool", {}, (2, 3, 4, 5, 2)),
        ("LpNormalization", {"p": 1, "axis": 1}, (2, 3, 4)), ("LpNormalization", {"p": 2}, (2, 3)),
        ("MeanVarianceNormalization", {"axes": [0, 2]}, (4, 3, 5)),
    ],
)  # fmt: skip
def test_operators_that_the_onnx_package_lacks_or_defines_otherwise_equal_onnxruntime(op, how, shape):
    equal([helper.make_node(op, ["x"], ["y"], **how)], shape)


@pytest.mark.parametrize(("op", "why"), [("Frobnicate", "ONNX has no such operator"), ("Rellu", 'no such operator; did you mean "Relu"?')])
def test_an_operator_that_onnx_lacks_is_told_in_a_sentence(op, why):
    with pytest.raises(ProblemError, match=re.escape(why)):
        equal([helper.make_node(op, ["x"], ["y"])], (2, 3), opset=17)


def test_indices_may_leave_some_of_the_other_axes():
    at = np.array([[[1, -1]], [[0, 2]]])
    equal([helper.make_node("GatherElements", ["x", "at"], ["y"], axis=1)], (3, 3, 4), {"at": at})


def test_a_mean_is_broadcast_from_its_first_operand():
    equal([helper.make_node("Mean", ["w", "x"], ["y"])], (2, 3, 4), {"w": np.ones(1, np.float32)})


@pytest.mark.parametrize("rule", ["SAME_UPPER", "SAME_LOWER"])
def test_transposed_convolutions_with_auto_pad_have_no_more_outputs_by_output_padding(rule):
    how = {"auto_pad": rule, "strides": [2, 3], "output_padding": [0, 1]}
    equal([helper.make_node("ConvTranspose", ["x", "w"], ["y"], **how)], (1, 2, 5, 4), {"w": np.ones((2, 3, 2, 1), np.float32)})
    equal([helper.make_node("ConvTranspose", ["x", "w"], ["y"], **how)], (1, 2, 5, 4), {"w": np.ones((2, 3, 2, 3), np.float32)})
    constants = {"c": np.ones((1, 2, 5, 4), np.float32), "w": np.ones((2, 3, 1, 1), np.float32)}
    nodes = [helper.make_node("ConvTranspose", ["c", "w"], ["z"], **how), helper.make_node("Mul", ["z", "x"], ["y"])]
    equal(nodes, (1, 1, 1, 1), constants)


def test_a_transposed_convolution_in_float16_is_accumulated_in_float32():
    """With groups and auto_pad, which the onnx package's definition lacks."""
    x, w = (np.random.default_rng(0).standard_normal(shape).astype(np.float16) for shape in ((1, 64, 5, 4), (64, 3, 3, 2)))
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], auto_pad="SAME_LOWER", strides=[2, 2], group=2)
    models = []
    for kind in (np.float16, np.float32):
        ends = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), None) for name in "xy"]
        ends[0] = helper.make_tensor_value_info("x", ends[1].type.tensor_type.elem_type, x.shape)
        graph = helper.make_graph([node], "unusual", ends[:1], ends[1:], [numpy_helper.from_array(w.astype(kind), "w")])
        models.append(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    (right,) = by_onnxruntime(models[1].SerializeToString(), x.astype(np.float32))
    np.testing.assert_array_max_ulp(model_of(models[0])(x), right.astype(np.float16), 1)


@pytest.mark.parametrize(
    ("shape", "slope"), [((2, 3, 4), (1, 2, 3, 4)), ((1, 3, 1), (3, 5)), ((2, 3, 4), (3, 1)), ((2, 3, 4), (1,))], ids=str
)
def test_the_input_of_a_prelu_may_be_broadcast_to_its_slope(shape, slope):
    """Which ONNX Runtime does, and ONNX's shape inference does not."""
    equal([helper.make_node("PRelu", ["x", "s"], ["y"])], shape, {"s": np.random.default_rng(1).standard_normal(slope).astype(np.float32)})


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("aligned", [0, 1])
def test_samples_at_points_in_and_outside_an_image(mode, padding, aligned):
    grid = np.random.default_rng(3).uniform(-2.6, 2.6, (2, 4, 7, 2)).astype(np.float32)
    how = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
    equal([helper.make_node("GridSample", ["x", "g"], ["y"], **how)], (2, 3, 5, 4), {"g": grid})


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("aligned", [0, 1])
def test_samples_at_points_in_and_outside_a_volume(mode, padding, aligned):
    grid = np.random.default_rng(3).uniform(-2.6, 2.6, (2, 4, 3, 7, 3)).astype(np.float32)
    how = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
    equal([helper.make_node("GridSample", ["x", "g"], ["y"], **how)], (2, 3, 5, 4, 6), {"g": grid}, 20)


@pytest.mark.parametrize(
    ("op", "numbers", "opset", "how"),
    [("LayerNormalization", (4, 5), 14, {"axis": 2}), ("GroupNormalization", (2,), 18, {"num_groups": 2, "epsilon": 0.1}),
     ("MeanVarianceNormalization", (), 13, {}), ("ThresholdedRelu", (), 9, {"alpha": 0.3})],
)  # fmt: skip
def test_shapes_are_known_where_inference_of_the_opset_does_not_know_the_operator(op, numbers, opset, how):
    constants = {
        name: np.random.default_rng(at).uniform(0.5, 1, numbers).astype(np.float32) for at, name in enumerate("sb" if numbers else "")
    }
    equal([helper.make_node(op, ["x", *constants], ["z"], **how), helper.make_node("Relu", ["z"], ["y"])], (2, 6, 4, 5), constants, opset)


def test_a_slice_that_begins_in_front_of_an_axis_and_goes_backward_begins_at_its_first_element():
    numbers = {"starts": [-5], "ends": [-(2**63)], "axes": [1], "steps": [-2]}
    equal([helper.make_node("Slice", ["x", *numbers], ["y"])], (3, 4), numbers)


@pytest.mark.parametrize("step", [-(2**63) + 1, -(2**63), 2**63 - 1])
def test_a_slice_of_a_shape_may_have_any_step(step):
    numbers = {"starts": [-1 if step < 0 else 0], "ends": [-(2**63) if step < 0 else 2**63 - 1], "axes": [0], "steps": [step]}
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Slice", ["sizes", *numbers], ["one"]),
        helper.make_node("Expand", ["c", "one"], ["y"]),
    ]
    equal(nodes, (3, 4), numbers | {"c": np.ones(1, np.float32)})


@pytest.mark.parametrize("size", [1, 3])
def test_neighbouring_channels_of_constants_are_those_of_other_values(size):
    nodes = [helper.make_node("LRN", ["c"], ["n"], size=size, alpha=0.5), helper.make_node("Add", ["n", "x"], ["y"])]
    equal(nodes, (1, 4, 2, 3), {"c": np.arange(24, dtype=np.float32).reshape(1, 4, 2, 3)})


@pytest.mark.parametrize("number", [0.0, -3.0, 2.5])
def test_numbers_are_quantized_by_the_scale_of_onnxruntime(number):
    nodes = [helper.make_node("Mul", ["x", "c"], ["z"]), helper.make_node("DynamicQuantizeLinear", ["z"], ["y", "scale", "zero"])]
    equal(nodes, (1, 7), {"c": np.float32(number)}, outputs=("y", "scale", "zero"))


@pytest.mark.parametrize(
    ("sizes", "rule"), [((7, 16), "asymmetric"), ((14, 32), "asymmetric"), ((26, 69), "half_pixel"), ((14, 19), "half_pixel")]
)
@pytest.mark.parametrize("nearest", ["round_prefer_ceil", "round_prefer_floor"])
def test_pixels_halfway_are_rounded_as_by_onnxruntime(sizes, rule, nearest):
    how = {"mode": "nearest", "nearest_mode": nearest, "coordinate_transformation_mode": rule}
    equal([helper.make_node("Resize", ["x", "", "", "to"], ["y"], **how)], (1, 1, 1, sizes[0]), {"to": np.array([1, 1, 1, sizes[1]])})


def test_a_number_for_each_row_is_no_bias_of_as_many_columns():
    nodes = [helper.make_node("MatMul", ["x", "w"], ["z"]), helper.make_node("Add", ["c", "z"], ["y"])]
    rows = np.arange(8, dtype=np.float32)
    equal(nodes, (2, 4, 1), {"w": rows.reshape(1, 8), "c": rows.reshape(2, 4, 1)})


def test_an_output_may_be_an_input():
    equal([helper.make_node("Relu", ["x"], ["y"])], (2, 3), outputs=["y", "x"])


def test_the_mask_of_a_dropout_may_be_all_that_is_read():
    drop = helper.make_node("Dropout", ["x"], ["kept", "y"])
    equal([drop], (2, 3), outputs=["y"])


def test_the_places_that_a_pool_took_may_be_all_that_is_read():
    equal([helper.make_node("MaxPool", ["x"], ["most", "y"], kernel_shape=[2, 2])], (1, 2, 4, 4), outputs=["y"])


@pytest.mark.parametrize("outputs", [["", "", "y"], ["", "y", ""]])
def test_the_scale_or_the_zero_of_bytes_may_be_all_that_is_read(outputs):
    names = [name or f"unread{at}" for at, name in enumerate(outputs)]
    equal([helper.make_node("DynamicQuantizeLinear", ["x"], names)], (2, 3))


@pytest.mark.parametrize("op", ["Relu", "Add", "Mul", "Clip", "LogSoftmax", "Softmax", "GlobalAveragePool", "BatchNormalization", "Concat"])
def test_values_may_have_no_elements(op):
    numbers = {"starts": [1], "ends": [1], "axes": [2]}
    constants = {"c": np.full(3, 0.5, np.float32), "s": np.float32(0.5), **numbers}
    more = {"Add": ["s"], "Mul": ["s"], "BatchNormalization": ["c"] * 4, "Concat": ["x"]}.get(op, [])
    nodes = [
        helper.make_node("Slice", ["x", *numbers], ["none"]),
        helper.make_node(op, ["none", *more], ["z"], **({"axis": 2} if op == "Concat" else {})),
        helper.make_node("Shape" if op == "GlobalAveragePool" else "Identity", ["z"], ["y"]),
    ]
    equal(nodes, (1, 3, 4, 5), constants)


@pytest.mark.parametrize(
    "how",
    [
        {"kernel_shape": [2, 1]}, {"kernel_shape": [2, 2], "dilations": [2, 1], "ceil_mode": 1, "strides": [2, 2]},
        {"kernel_shape": [3, 2], "pads": [1, 0, 0, 1], "strides": [2, 1], "storage_order": 1},
    ],
    ids=str,
)  # fmt: skip
def test_the_places_of_the_largest_are_those_of_onnxruntime(how):
    equal([helper.make_node("MaxPool", ["x"], ["y", "at"], **how)], (2, 3, 7, 6), outputs=["y", "at"])


def test_windows_of_norms_are_counted_as_those_of_other_pools():
    equal(
        [helper.make_node("LpPool", ["x"], ["y"], kernel_shape=[3, 3], dilations=[2, 1], ceil_mode=1, strides=[3, 2])],
        (1, 4, 8, 6),
        opset=19,
    )


def test_axes_of_constants_may_be_unsorted():
    numbers = {"c": np.arange(6, dtype=np.float32).reshape(2, 3), "axes": [3, 0, -3]}
    nodes = [helper.make_node("Unsqueeze", ["c", "axes"], ["u"]), helper.make_node("Add", ["u", "x"], ["y"])]
    equal(nodes, (1, 2, 1, 1, 3), numbers)


@pytest.mark.parametrize("op", ["Hardmax", "LogSoftmax", "Softmax"])
@pytest.mark.parametrize("opset", [11, 13])
def test_shares_of_constants_are_those_of_other_values(op, opset):
    nodes = [helper.make_node(op, ["c"], ["s"], axis=1), helper.make_node("Add", ["s", "x"], ["y"])]
    equal(nodes, (2, 3, 4), {"c": np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 9}, opset)


def test_a_slice_of_a_constant_goes_backward_from_in_front_of_an_axis():
    numbers = {"starts": [-5], "ends": [-(2**63)], "axes": [1], "steps": [-1]}
    nodes = [helper.make_node("Slice", ["c", *numbers], ["s"]), helper.make_node("Add", ["s", "x"], ["y"])]
    equal(nodes, (3, 1), numbers | {"c": np.arange(12, dtype=np.float32).reshape(3, 4)})


def test_a_cubic_resize_to_one_pixel_that_leaves_out_what_is_outside():
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="cubic", exclude_outside=1,
                            coordinate_transformation_mode="pytorch_half_pixel")  # fmt: skip
    equal([node], (1, 1, 4, 4), {"sizes": np.array([1, 1, 4, 1])})
