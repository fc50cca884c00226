# SPDX-License-Identifier: Apache-2.0
"""Nodes whose numbers were once other ones than ONNX's, or that were refused though common: equal to ONNX Runtime or to the text."""

import numpy as np
import pytest
from graphs import helper, numpy_helper
from onnx_models import model_of

from pysim.errors import ProblemError

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(5)


def made(op, given, held=None, opset=17, outputs=1, domain="", shape=None, **how):
    """A model of one node: `given` are the graph's inputs, `held` its constants, in their order; None leaves one out."""
    both = [(name, of) for part in (given, held or {}) for name, of in part.items()]
    inputs = [name if of is not None else "" for name, of in both]
    node = helper.make_node(op, inputs, [f"y{at}" for at in range(outputs)], name="it", domain=domain, **how)
    infos = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(of.dtype), of.shape) for name, of in given.items()]
    ends = [helper.make_value_info(name, onnx.TypeProto()) for name in node.output]
    if shape is not None:
        ends = [helper.make_tensor_value_info(node.output[0], onnx.TensorProto.FLOAT, shape)]
    constants = [numpy_helper.from_array(of, name) for name, of in (held or {}).items() if of is not None]
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(helper.make_graph([node], "one", infos, ends, constants), opset_imports=opsets, ir_version=8), given


def results(proto, given):
    found = model_of(onnx.ModelProto.FromString(proto.SerializeToString()))(**given)
    return found if isinstance(found, tuple) else (found,)


def by_onnxruntime(proto, given):
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, given)


def assert_like_onnxruntime(proto, given, alike=2e-5):
    for y, right in zip(results(proto, given), by_onnxruntime(proto, given), strict=True):
        assert y.shape == right.shape and y.dtype == right.dtype
        rounding = {np.float16: 1e-3, np.float64: 1e-11}.get(y.dtype.type, alike)
        within = rounding * max(np.abs(right).max(initial=0), 0.1) if y.dtype.kind == "f" else 0
        assert np.abs(y.astype(np.float64) - right).max(initial=0) <= within


def numbers(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("opset", [10, 13, 19, 21])
@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.uint16, np.int16])
@pytest.mark.parametrize("constant", [True, False])
def test_quotients_of_any_size_saturate(opset, kind, constant):
    if opset < 21 and np.dtype(kind).itemsize > 1:
        pytest.skip("is of opset 21")
    x = np.array([1e30, -1e30, np.inf, -np.inf, 3e9, -3e9, 2.0**31, -(2.0**31), 1.5, 2.5, -0.5, 4.0], np.float32)
    numbers = {"s": np.array(0.5, np.float32), "z": np.array(3, kind)}
    proto, given = made("QuantizeLinear", {"x": x} | ({} if constant else numbers), numbers if constant else {}, opset)
    (y,) = results(proto, given)
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    assert y.tolist()[:8] == [high, low] * 4
    assert_like_onnxruntime(proto, given)


@pytest.mark.parametrize("kind", [np.int8, np.uint16])
def test_quotients_by_a_scale_for_each_place_of_an_axis_saturate(kind):
    x = np.array([[1e10, -1e10, np.inf, -np.inf], [3e9, -3e9, 2.5, 3e38]], np.float32)
    held = {"s": np.array([0.5, 0.25, 2, 1], np.float32), "z": np.array([3, 0, 1, 7], kind)}
    assert_like_onnxruntime(*made("QuantizeLinear", {"x": x}, held, 21))


@pytest.mark.parametrize("to", ["UINT8", "INT8", "INT32", "INT64", "FLOAT16", "BOOL"])
def test_casts_are_those_of_onnxruntime(to):
    x = np.array([300, -129.7, 65504, 70000, 1e30, np.inf, -np.inf, 0.3, -0.0, 2.5, np.nan], np.float32)
    x = x if to in ("FLOAT16", "BOOL") else x[:1] if to in ("UINT8", "INT8") else x[:3]
    proto, given = made("Cast", {"x": x}, to=onnx.TensorProto.DataType.Value(to))
    with np.errstate(over="ignore"):
        assert np.array_equal(results(proto, given)[0], by_onnxruntime(proto, given)[0], equal_nan=to == "FLOAT16")


SCALES = (0.35, 0.45, 0.7, 0.9, 1.3, 1.4, 1.8, 1.9, 2.3)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_sizes_by_scales_are_products_in_float32(scale, constant, mode):
    for size in (3, 10, 20, 30, 47, 64):
        numbers_of = {"roi": None, "scales": np.array([1, 1, scale, 1], np.float32)}
        x, out = numbers(1, 1, size, 4), int(np.float32(size) * np.float32(scale))
        held = numbers_of if constant else {}
        given = {"x": x} if constant else {"x": x, "scales": numbers_of["scales"]}
        proto, given = made("Resize", given, held, 13, mode=mode, shape=(1, 1, out, 4))
        if not constant:
            proto.graph.node[0].input.insert(1, "")
        assert results(proto, given)[0].shape == (1, 1, out, 4)
        assert_like_onnxruntime(proto, given)


@pytest.mark.parametrize("scale", [scale for scale in SCALES if scale > 1])
@pytest.mark.parametrize("opset", [7, 9])
def test_sizes_of_an_upsample_are_products_in_float32(scale, opset):
    scales = np.array([1, 1, scale, 1], np.float32)
    for size in (1, 10, 20, 30, 47, 64):
        held, how = ({}, {"scales": scales.tolist()}) if opset < 9 else ({"s": scales}, {})
        assert_like_onnxruntime(*made("Upsample", {"x": numbers(1, 1, size, 2)}, held, opset, mode="nearest", **how))


@pytest.mark.parametrize("rule", ["half_pixel", "asymmetric"])
@pytest.mark.parametrize("scale", [0.35, 0.9, 1.3, 2.3])
def test_coordinates_are_those_of_the_scale_that_is_given(rule, scale):
    for size in range(3, 24):
        held = {"roi": None, "scales": np.array([1, 1, scale, 1], np.float32)}
        proto, given = made("Resize", {"x": numbers(1, 1, size, 2)}, held, 13, mode="linear", coordinate_transformation_mode=rule)
        assert_like_onnxruntime(proto, given)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("scale", [0.6, 1.3, 2.0, 0.7])
def test_aligned_corners_are_the_same_for_constant_and_given_scales(mode, scale):
    x, scales = numbers(1, 1, 4, 10), np.array([1, 1, 1, scale], np.float32)
    out = (1, 1, 4, int(np.float32(10) * scales[3]))
    how = {"mode": mode, "coordinate_transformation_mode": "align_corners"}
    constant = results(*made("Resize", {"x": x}, {"roi": None, "scales": scales}, 13, **how))[0]
    proto, given = made("Resize", {"x": x, "scales": scales}, {}, 13, shape=out, **how)
    proto.graph.node[0].input.insert(1, "")
    assert np.abs(results(proto, given)[0] - constant).max() < 1e-6


def test_aligned_corners_by_a_fraction_are_those_of_onnxs_own_tests():
    x = np.arange(1, 17, dtype=np.float32).reshape(1, 1, 4, 4)
    held = {"roi": None, "scales": np.array([1, 1, 0.8, 0.8], np.float32)}
    (y,) = results(*made("Resize", {"x": x}, held, 13, mode="cubic", coordinate_transformation_mode="align_corners"))
    assert abs(y[0, 0, 0, 1] - 2.39519) < 1e-4


@pytest.mark.parametrize("constant", [True, False])
def test_nearest_pixels_of_opset_10_are_those_of_its_own_test(constant):
    x, scales = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 2, 4), {"scales": np.array([1, 1, 0.6, 0.6], np.float32)}
    proto, given = made("Resize", {"x": x} | ({} if constant else scales), scales if constant else {}, 10, shape=(1, 1, 1, 2))
    assert results(proto, given)[0].tolist() == [[[[1, 3]]]]
    assert_like_onnxruntime(proto, given)


@pytest.mark.parametrize("declared", [True, False])
def test_scales_that_a_model_computes_run_if_the_shape_is_declared_and_else_are_refused(declared):
    """From its input's values; scales that follow from shapes alone are constants."""
    nodes = [
        helper.make_node("Add", ["scales", "one"], ["sums"]),
        helper.make_node("Resize", ["x", "", "sums"], ["y"], name="it", mode="linear"),
    ]
    infos = [helper.make_tensor_value_info("x", 1, (1, 1, 10, 4)), helper.make_tensor_value_info("scales", 1, (4,))]
    end = helper.make_tensor_value_info("y", 1, (1, 1, 17, 4)) if declared else helper.make_value_info("y", onnx.TypeProto())
    graph = helper.make_graph(nodes, "one", infos, [end], [numpy_helper.from_array(np.ones(4, np.float32), "one")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    given = {"x": numbers(1, 1, 10, 4), "scales": np.array([0, 0, 0.7, 0], np.float32)}
    if declared:
        assert_like_onnxruntime(proto, given)
        with pytest.raises(ProblemError, match=r'Resize "it" cannot be run: its result has the shape .*18.*17'):
            results(proto, given | {"scales": np.array([0, 0, 0.8, 0], np.float32)})
    else:
        with pytest.raises(ProblemError, match=r'"y" has the dynamic shape .* behind Resize "it"; give the model fixed sizes'):
            results(proto, given)


@pytest.mark.parametrize("opset", [11, 18])
@pytest.mark.parametrize("size", [10, 20, 30])
def test_scales_that_follow_from_shapes_are_products_in_float32_too(opset, size):
    nodes = [helper.make_node("Shape", ["x"], ["shape"]), helper.make_node("Slice", ["shape", "two", "four"], ["sizes"]),
             helper.make_node("Cast", ["sizes"], ["real"], to=1), helper.make_node("Mul", ["real", "by"], ["wanted"]),
             helper.make_node("Div", ["wanted", "real"], ["ratio"]), helper.make_node("Concat", ["ones", "ratio"], ["scales"], axis=0),
             helper.make_node("Resize", ["x", "roi", "scales"], ["y"], name="it")]  # fmt: skip
    held = {"two": np.array([2]), "four": np.array([4]), "by": np.array([0.7, 1.9], np.float32), "ones": np.ones(2, np.float32),
            "roi": np.zeros(0, np.float32)}  # fmt: skip
    infos = [helper.make_tensor_value_info("x", 1, (1, 1, size, size))]
    constants = [numpy_helper.from_array(of, name) for name, of in held.items()]
    graph = helper.make_graph(nodes, "one", infos, [helper.make_value_info("y", onnx.TypeProto())], constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    assert_like_onnxruntime(proto, {"x": numbers(1, 1, size, size)})


@pytest.mark.parametrize("given_c", [True, False])
@pytest.mark.parametrize("given_b", [True, False])
@pytest.mark.parametrize("shape", [(5,), (1, 5), (3, 5), (3, 1)])
def test_a_gemm_with_beta_0_does_not_read_c(given_c, given_b, shape):
    arrays = {"a": numbers(3, 4), "b": numbers(4, 5), "c": np.full(shape, np.nan, np.float32)}
    given = {name for name, flag in (("a", True), ("b", given_b), ("c", given_c)) if flag}
    proto, fed = made("Gemm", arrays, beta=0.0)
    for name in set(arrays) - given:
        proto.graph.initializer.append(numpy_helper.from_array(arrays[name], name))
        proto.graph.input.remove(next(one for one in proto.graph.input if one.name == name))
    (y,) = results(proto, {name: fed[name] for name in given})
    assert np.abs(y - arrays["a"] @ arrays["b"]).max() < 1e-5


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
def test_neighbours_of_an_even_number_of_channels(size):
    x = numbers(2, 7, 3, 4)
    (y,) = results(*made("LRN", {"x": x}, size=size, alpha=0.1, beta=0.7, bias=1.5))
    for c in range(7):
        near = x[:, max(0, c - (size - 1) // 2) : min(6, c + size // 2) + 1]
        right = x[:, c] / (1.5 + 0.1 / size * np.square(near).sum(axis=1)) ** 0.7
        assert np.abs(y[:, c] - right).max() < 1e-5


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("aligned", [0, 1])
def test_samples_of_volumes(mode, padding, aligned):
    points = RNG.uniform(-1.4, 1.4, (2, 2, 3, 4, 3)).astype(np.float32)
    how = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
    assert_like_onnxruntime(*made("GridSample", {"x": numbers(2, 3, 4, 5, 3), "g": points}, opset=20, **how))


REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSumExp",
              "ReduceSumSquare")  # fmt: skip


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("keeps", [0, 1])
def test_reductions_along_axes_that_are_an_input(op, keeps):
    x, axes = numbers(3, 4, 5), np.array([0, -1], np.int64)
    proto, given = made(op, {"x": x, "axes": axes}, opset=18, keepdims=keeps, shape=(1, 4, 1) if keeps else (4,))
    assert_like_onnxruntime(proto, given)


def test_values_of_unknown_shapes_between_known_ones_run():
    """As the functions that define ReduceL2 and others are inlined: only the last value's shape is declared."""
    nodes = [helper.make_node("Mul", ["x", "x"], ["square"]), helper.make_node("ReduceSum", ["square", "axes"], ["sum"], keepdims=0),
             helper.make_node("Sqrt", ["sum"], ["y"], name="root"), helper.make_node("Relu", ["y"], ["z"])]  # fmt: skip
    infos = [helper.make_tensor_value_info("x", 1, (3, 4)), helper.make_tensor_value_info("axes", 7, (1,))]
    graph = helper.make_graph(nodes, "one", infos, [helper.make_tensor_value_info("z", 1, (3,))])
    graph.value_info.append(helper.make_tensor_value_info("y", 1, (3,)))
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    x = numbers(3, 4)
    (y,) = results(proto, {"x": x, "axes": np.array([1])})
    assert np.abs(y - np.sqrt(np.square(x).sum(axis=1))).max() < 1e-5
    with pytest.raises(ProblemError, match=r'"root".* cannot be run'):
        results(proto, {"x": x, "axes": np.array([0])})


BOXES, WHICH = np.array([[1, 1, 6, 7], [2, 0, 3, 2]], np.float32), np.array([0, 1])


@pytest.mark.parametrize(("op", "given", "held", "opset", "how"), [
    ("Col2Im", {"x": numbers(1, 8, 9)}, {"i": np.array([5, 6]), "b": np.array([2, 2])}, 18, {"dilations": [2, 3]}),
    ("MaxRoiPool", {"x": numbers(2, 3, 8, 9)}, {"r": np.insert(BOXES, 0, [0, 1], axis=1)}, 11, {"pooled_shape": [2, 3]}),
    ("RoiAlign", {"x": numbers(2, 3, 8, 9)}, {"r": BOXES, "n": WHICH}, 10, {"output_height": 2, "output_width": 2}),
    ("RoiAlign", {"x": numbers(2, 3, 8, 9)}, {"r": BOXES, "n": WHICH}, 16, {"output_height": 2, "sampling_ratio": 2}),
    ("Unique", {}, {"x": np.array([[1, 3, 1], [0, 2, 0]], np.float32)}, 11, {"sorted": 0, "axis": 1, "outputs": 4}),
    ("NonMaxSuppression", {}, {"b": np.array([[[0, 0, 2, 2], [0, 0, 2, 1.9], [3, 3, 4, 4]]], np.float32),
     "s": np.array([[[0.9, 0.8, 0.7]]], np.float32), "m": np.array(3), "i": np.array(0.5, np.float32)}, 11, {}),
    ("MaxPool", {}, {"x": numbers(1, 4, 7, 6)}, 12, {"kernel_shape": [3, 2], "outputs": 2}),
    ("Scatter", {"x": numbers(3, 4)}, {"i": np.array([[1, 0, 2, 1]]), "u": numbers(1, 4)}, 9, {"axis": 0}),
    ("Resize", {"x": numbers(1, 1, 5, 6)}, {"roi": np.array([0, 0, 0.1, -0.2, 1, 1, 0.8, 1.3], np.float32),
     "scales": None, "sizes": np.array([1, 1, 7, 12])}, 13,
     {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 2.5}),
    ("Clip", {"x": np.array([np.inf, -np.inf, 1], np.float32)}, {"low": np.array(-2, np.float32)}, 12, {}),
    ("Clip", {}, {"x": np.array([np.inf, -np.inf, 1], np.float32), "low": np.array(-2, np.float32)}, 12, {}),
    ("Clip", {"x": np.array([np.inf, -np.inf, 1], np.float16), "low": np.array(-2, np.float16)}, {}, 13, {}),
    ("Celu", {"x": np.array([-1e-4, -1e-6, 1e-5, -30, 30], np.float32)}, {}, 12, {"alpha": 1.5}),
    ("Elu", {"x": np.array([-1e-4, -1e-6, 1e-5, -30, 30], np.float32)}, {}, 16, {"alpha": 1.5}),
    ("Selu", {"x": np.array([-1e-4, -1e-6, 1e-5, -30, 30], np.float64)}, {}, 18, {}),
    ("HardSigmoid", {"x": numbers(1, 3, 2, 2).astype(np.float64)}, {}, 18, {}),
    ("HardSwish", {"x": np.array([1e38, 3e38, -3e38, 1.5, -2], np.float32)}, {}, 14, {}),
    ("MaxPool", {"x": np.array([[[0, 0, 3, 0]]], np.uint8)}, {}, 12, {"kernel_shape": [2], "pads": [1, 1], "outputs": 2}),
    ("QuantizeLinear", {"x": np.array([300, 2.113, -9], np.float16)},
     {"s": np.array(0.03235, np.float16), "z": np.array(2, np.int16)}, 23, {}),
    ("Resize", {"x": numbers(1, 2, 9, 10)}, {"roi": None, "scales": np.array([1, 1, 0.6, 0.45], np.float32)}, 18,
     {"mode": "linear", "antialias": 1}),
    ("Resize", {"x": numbers(1, 2, 9, 10)}, {"roi": None, "scales": np.array([1, 1, 0.6, 1.9], np.float32)}, 18,
     {"mode": "cubic", "antialias": 1}),
    ("Resize", {}, {"x": numbers(1, 2, 7, 7), "roi": None, "scales": np.array([1, 1, 1.1, 1.1], np.float32)}, 18, {"mode": "linear"}),
    ("Shape", {}, {"x": numbers(4, 3, 5)}, 21, {"end": -4}), ("Shape", {}, {"x": numbers(4, 3, 5)}, 21, {"start": -6, "end": -2}),
    ("Mean", {}, {name: np.full(2, 40000, np.float16) for name in "ab"}, 14, {}),
    ("Softsign", {"x": np.array(0.5, np.float32)}, {}, 17, {}),
], ids=lambda of: of if isinstance(of, str) else "")  # fmt: skip
def test_what_the_packages_definition_leaves_out(op, given, held, opset, how):
    assert_like_onnxruntime(*made(op, given, held, opset, **how))


@pytest.mark.parametrize(("op", "how"), [("MaxPool", {}), ("AveragePool", {}), ("LpPool", {"p": 1})])
@pytest.mark.parametrize("rule", ["SAME_UPPER", "SAME_LOWER"])
def test_windows_smaller_than_their_stride_need_no_padding(op, how, rule):
    """ONNX Runtime's max pools of float32 refuse them; others of its pools begin behind the first pixel."""
    x = np.arange(1, 7, dtype=np.float32).reshape(1, 1, 6)
    (y,) = results(*made(op, {"x": x}, {}, 18, kernel_shape=[1], strides=[3], auto_pad=rule, **how))
    assert y.tolist() == [[[1, 4]]]


def test_a_part_is_resized_to_sizes_alone():
    """ONNX's text has floor(size * (end - start) * scale), its shape inference and ONNX Runtime floor(size * scale)."""
    held = {"roi": np.array([0, 0, 0, 0, 1, 1, 0.5, 0.5], np.float32), "scales": np.array([1, 1, 2, 2], np.float32)}
    with pytest.raises(ProblemError, match=r'Resize "it" cannot be run: it resizes a part of its input .* by scales'):
        results(*made("Resize", {"x": numbers(1, 1, 4, 4)}, held, 13, coordinate_transformation_mode="tf_crop_and_resize"))


def test_a_refusal_names_the_operator_and_the_node():
    text = helper.make_tensor_value_info("x", onnx.TensorProto.STRING, (2,))
    node, end = helper.make_node("StringNormalizer", ["x"], ["y"], name="it"), helper.make_value_info("y", onnx.TypeProto())
    graph = helper.make_graph([node], "one", [text], [end])
    with pytest.raises(ProblemError, match='the value "x" is text before StringNormalizer "it"'):
        model_of(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
