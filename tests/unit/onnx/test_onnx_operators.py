# SPDX-License-Identifier: Apache-2.0
"""Nodes that no kernel of this library computes, by the onnx package's own definitions: equal to ONNX Runtime, or named."""

import numpy as np
import pytest
from graphs import Builder, helper, numpy_helper
from onnx_models import assert_close, by_onnxruntime, given, model_of

import pysim
from pysim.errors import ProblemError
from pysim.network import rewrites

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")


def exported(nodes, shape, constants=(), opset=17):
    """A model of nodes from "x" to "y"."""
    kept = [numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in dict(constants).items()]
    ends = [
        helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape),
        helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None),
    ]
    graph = helper.make_graph(nodes, "one", ends[:1], ends[1:], kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


RANDOM = np.random.default_rng(1)


@pytest.mark.parametrize("rank", [1, 3])
def test_convolutions_and_pools_of_one_and_three_axes_run_with_what_follows_them(rank):
    """Those of one axis are convolutions of images of one row; those of three are none of this library, and nothing is fused into them."""
    constants = {"w": RANDOM.standard_normal((4, 3, *[3] * rank)), "s": np.full((4, *[1] * rank), 0.5)}
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["b"]),
             helper.make_node("Mul", ["b", "s"], ["c"]),
             helper.make_node("MaxPool", ["c"], ["y"], kernel_shape=[2] * rank, strides=[2] * rank)]  # fmt: skip
    proto = exported(nodes, (2, 3, *[9] * rank), constants)
    content, x = proto.SerializeToString(), given(proto)
    assert_close(model_of(proto)(x), by_onnxruntime(content, x))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "how",
    [
        {}, {"strides": [2, 3], "pads": [1, 0, 1, 2], "output_padding": [1, 0]}, {"dilations": [2, 1], "pads": [3, 2, 0, 1]}, {"group": 2},
        {"strides": [4, 4]}, *({"strides": [3, 2], "auto_pad": rule} for rule in ("SAME_UPPER", "SAME_LOWER", "VALID")),
        {"strides": [2, 2], "output_shape": [9, 11]}, {"auto_pad": "SAME_LOWER", "group": 2, "dilations": [2, 1]},
    ],
    ids=str,
)  # fmt: skip
def test_transposed_convolutions_equal_onnxruntime(how, bias):
    """Among them pads that are not told, and outputs that no input reaches."""
    constants = {"w": RANDOM.standard_normal((4, 6 // how.get("group", 1), 3, 2)), "b": RANDOM.standard_normal(6)}
    proto = exported([helper.make_node("ConvTranspose", ["x", "w", "b"][: 2 + bias], ["y"], **how)], (2, 4, 5, 6), constants)
    content, x = proto.SerializeToString(), given(proto)
    model = model_of(proto)
    assert_close(model(x), by_onnxruntime(content, x))
    assert next(layer.node.op for layer in model.plan.layers) == "Conv"


@pytest.mark.parametrize("opset", [9, 17, 18])
@pytest.mark.parametrize("value", [0.0, -2.5])
def test_pads_are_numbers_and_may_cut_away(opset, value):
    pads = [0, 1, -1, 2, 0, 0, 2, -2]
    if opset == 9:
        nodes = [helper.make_node("Pad", ["x"], ["y"], pads=pads, value=value)]
    else:
        axes = ["", "axes"][: opset - 17 + 1][1:]  # which are told from opset 18 on
        pad_inputs = {"pads": [-1, 2, 2, -2] if axes else pads, "axes": [-2, 3]}
        nodes = [helper.make_node("Constant", [], [name], value_ints=numbers) for name, numbers in pad_inputs.items()]
        nodes.append(helper.make_node("Pad", ["x", "pads", "v", *axes], ["y"]))
    proto = exported(nodes, (2, 3, 5, 6), {"v": value}, opset)
    content, x = proto.SerializeToString(), given(proto)
    model = model_of(proto)
    assert_close(model(x), by_onnxruntime(content, x))
    assert [layer.node.op for layer in model.plan.layers] == ["Pad"]


@pytest.mark.parametrize("opset", [9, 13, 15])
@pytest.mark.parametrize("shape", [(5, 7), (2, 7, 9), (2, 7, 3, 3, 2)], ids=str)
@pytest.mark.parametrize("settled", [True, False])
def test_batch_normalization_of_any_rank_has_the_models_statistics(shape, opset, settled):
    """Those of opset 13 and before have a momentum, which counts in training alone."""
    constants = {name: RANDOM.uniform(0.5, 2, 7) for name in "gbmv"}
    nodes = [helper.make_node("BatchNormalization", ["x", "g", "b", "m", "n"], ["y"], momentum=0.5)]
    nodes.insert(0, helper.make_node("Identity" if settled else "Relu", ["v"], ["n"]))
    if not settled:  # a variance that is not a constant
        nodes.insert(0, helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0))
        nodes.insert(1, helper.make_node("Add", ["most", "v"], ["u"]))
        nodes[2] = helper.make_node("Relu", ["u"], ["n"])
    proto = exported(nodes, shape, constants, opset)
    content, x = proto.SerializeToString(), given(proto)
    assert_close(model_of(proto)(x), by_onnxruntime(content, x))


def test_batch_normalization_is_folded_into_the_product_before_it():
    constants = {name: RANDOM.uniform(0.5, 2, 7) for name in "gbmv"} | {"w": RANDOM.standard_normal((5, 7))}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("BatchNormalization", ["a", *"gbmv"], ["y"])]
    proto = exported(nodes, (3, 5), constants)
    content, x = proto.SerializeToString(), given(proto)
    model = model_of(proto)
    assert [layer.node.op for layer in model.plan.layers] == ["Linear"]
    assert_close(model(x), by_onnxruntime(content, x))


def test_sizes_are_known_of_what_is_computed_with_large_constants():
    """Larger than any shape, and of sizes that depend on numbers, as masks of shifted windows are."""
    nodes = [
        helper.make_node("NonZero", ["ones"], ["places"]),
        helper.make_node("Cast", ["places"], ["numbers"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Add", ["x", "numbers"], ["y"]),
    ]
    proto = exported(nodes, (2, 1), {"ones": np.ones((100, 100))})
    content, x = proto.SerializeToString(), given(proto)
    assert_close(model_of(proto)(x), by_onnxruntime(content, x))


@pytest.mark.parametrize("read", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)])
def test_outputs_that_nobody_reads_leave_the_others_theirs(read):
    build = Builder(0)
    build.shapes["x"] = (1, 12, 5, 5)
    parts, whole = ["a", "b", "c"], build.add("Relu", ["x"], (1, 12, 5, 5))
    build.nodes.append(helper.make_node("Split", [whole], parts, axis=1, split=[4, 4, 4], name="split"))
    proto = build.model([build.add("Neg", [parts[at]], (1, 4, 5, 5)) for at in read], opset=11)
    x = given(proto)
    assert_close(model_of(proto)(x), by_onnxruntime(proto.SerializeToString(), x))


@pytest.mark.parametrize("opset", [9, 17])
def test_a_logarithm_of_softmax_is_finite_where_softmax_is_zero(opset):
    proto = exported([helper.make_node("LogSoftmax", ["x"], ["y"], name="log")], (2, 3, 4), opset=opset)
    x = given(proto) * 300
    wanted = by_onnxruntime(proto.SerializeToString(), x)
    assert np.isfinite(wanted[0]).all()
    assert_close(model_of(proto)(x), wanted)


@pytest.mark.parametrize(("opset", "op", "how", "why"), [
    (17, "Conv", {"dilations": [4, 1]}, r"spans \[9, 3\], more than the padded image, \[8, 9\]"),
    (6, "Add", {"broadcast": 1, "axis": 0}, "broadcasts along an axis"),
])  # fmt: skip
def test_what_is_invalid_or_too_old_is_named_before_anything_runs(opset, op, how, why):
    node = helper.make_node(op, ["x", "w"], ["y"], name="it", **how)
    with pytest.raises(ProblemError, match=f'{op} "it".*{why}'):
        model_of(exported([node], (1, 4, 8, 9), {"w": np.ones((2, 4, 3, 3)) if op == "Conv" else np.ones(1)}, opset))


@pytest.mark.parametrize("perm", [[1, 0], [0, 1, 2, 3, 4]])
def test_axes_that_are_not_those_of_the_input_are_named(perm):
    with pytest.raises(ProblemError, match=r'Transpose "it": perm is|shape inference refused the model'):
        model_of(exported([helper.make_node("Transpose", ["x"], ["y"], name="it", perm=perm)], (1, 4, 8, 9), opset=17))


def test_an_attribute_whose_name_is_no_utf8_is_refused():
    proto = exported([helper.make_node("Elu", ["x"], ["y"], name="it", alpha=0.5)], (2, 3), opset=17)
    damaged = onnx.ModelProto.FromString(proto.SerializeToString().replace(b"alpha", b"\xff\xfe\xfd\xfca"))
    with pytest.raises(ProblemError, match='Elu "it" has a name that is no UTF-8'):
        model_of(damaged)


def test_text_is_refused_before_anything_runs():
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.STRING, (2,)) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "words", ends[:1], ends[1:])
    with pytest.raises(ProblemError, match='the value "x" is text'):
        model_of(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def test_a_definition_that_contradicts_shape_inference_is_named():
    """It would be spread over a larger result without a word. The model quantises halves, so that its operators are run as defined."""
    half = helper.np_dtype_to_tensor_dtype(np.dtype(np.float16))
    wide = helper.make_node("Conv", ["hx", "hw"], ["hy"], name="wide", kernel_shape=[1, 1, 5], strides=[1, 1, 3])
    casts = [helper.make_node("Cast", [name], [f"h{name}"], to=half) for name in ("x", "w")]
    quantised = helper.make_node("QuantizeLinear", ["hx", "hs"], ["q"])
    casts.append(helper.make_node("Cast", ["s"], ["hs"], to=half))
    nodes = [*casts, wide, quantised, helper.make_node("Cast", ["hy"], ["y"], to=onnx.TensorProto.FLOAT)]
    proto = exported(nodes, (1, 1, 2, 2, 3), {"w": np.ones((1, 1, 1, 1, 5)), "s": np.ones(())}, opset=19)
    model = model_of(proto)
    with pytest.raises(ProblemError, match='Conv "wide" cannot be run: its result has the shape'):
        model(given(proto))


@pytest.mark.parametrize("op", ["Hardmax", "LogSoftmax", "Softmax"])
@pytest.mark.parametrize("axis", [None, 0, 1, 2])
@pytest.mark.parametrize("opset", [9, 12, 13])
def test_until_opset_12_all_axes_from_one_on_are_taken_together(op, axis, opset):
    proto = exported([helper.make_node(op, ["x"], ["y"], **({} if axis is None else {"axis": axis}))], (2, 3, 4), opset=opset)
    content, x = proto.SerializeToString(), given(proto)
    assert_close(model_of(proto)(x), by_onnxruntime(content, x))


def test_group_normalization_is_defined_by_the_type_of_its_input():
    constants = {"s": RANDOM.standard_normal(6), "b": RANDOM.standard_normal(6)}
    proto = exported([helper.make_node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=2)], (2, 6, 3, 4), constants, 21)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (2, 6, 3, 4)))
    content, x = proto.SerializeToString(), given(proto)
    assert_close(model_of(proto)(x), by_onnxruntime(content, x))


SEQUENCES = [
    ("Conv", {"strides": [2], "pads": [1, 2]}, (6, 4, 3)), ("Conv", {"group": 4, "dilations": [2]}, (4, 1, 3)),
    ("Conv", {"auto_pad": "SAME_UPPER"}, (6, 4, 4)), ("ConvTranspose", {"strides": [3], "pads": [1, 0], "output_padding": [1]}, (4, 6, 5)),
    ("ConvTranspose", {"strides": [2], "auto_pad": "SAME_LOWER"}, (4, 6, 3)), ("ConvTranspose", {"output_shape": [15]}, (4, 6, 4)),
]  # fmt: skip


@pytest.mark.parametrize(("op", "how", "shape"), SEQUENCES, ids=str)
def test_convolutions_of_sequences_are_native_with_what_follows_them(op, how, shape):
    filters = shape[0] if op == "Conv" else shape[1]
    constants = {"w": RANDOM.standard_normal(shape), "b": RANDOM.standard_normal(filters), "c": RANDOM.standard_normal((4, 4, 1))}
    nodes = [helper.make_node(op, ["x", "w", "b"], ["a"], **how), helper.make_node("LeakyRelu", ["a"], ["l"], alpha=0.2)]
    nodes += [helper.make_node("Gelu", ["l"], ["g"], approximate="tanh"), helper.make_node("Add", ["g", "a"], ["y"])]
    proto = exported(nodes, (2, 4, 13), constants, 20)
    content, x = proto.SerializeToString(), given(proto)
    model = model_of(proto)
    assert_close(model(x), by_onnxruntime(content, x))
    assert next(layer.node.op for layer in model.plan.layers if layer.node.op != "View") == "Conv"


@pytest.mark.parametrize(("batch", "parts"), [(1, 1), (1, 3), (2, 1), (2, 3)])
@pytest.mark.parametrize(
    "how", [{"pads": [1] * 6}, {"strides": [2, 1, 1], "pads": [0, 1, 0, 2, 1, 2]}, {"dilations": [2, 1, 1], "group": 4}], ids=str
)
def test_convolutions_of_volumes_are_what_they_are_or_one_of_images_for_each_tap_of_the_depth(monkeypatch, batch, parts, how):
    """Whichever is faster, each. With what follows them fused into the last tap's, a residual into the first tap's."""
    monkeypatch.setattr(rewrites, "seconds_of", lambda of, *_: float((of.depth > 1 or (of.kernel_h, of.kernel_w) == (3, 1)) == (parts > 1)))
    w, v, s, t = (RANDOM.standard_normal(shape) for shape in ((16, 16 // how.get("group", 1), 3, 3, 2), (16, 16, 3, 1, 1), 16, 16))
    nodes = [helper.make_node("Conv", ["x", "w", "s"], ["a"], **how), helper.make_node("Relu", ["a"], ["r"]),
             helper.make_node("Conv", ["r", "v"], ["b"], pads=[1, 0, 0, 1, 0, 0]),
             helper.make_node("BatchNormalization", ["b", "s", "t", "t", "p"], ["c"]), helper.make_node("Add", ["c", "r"], ["d"]),
             helper.make_node("Relu", ["d"], ["y"])]  # fmt: skip
    proto = exported(nodes, (batch, 16, 5, 6, 4), {"w": w, "v": v, "s": s, "t": t, "p": np.abs(s)})
    content, x = proto.SerializeToString(), given(proto)
    model = model_of(proto)
    assert_close(model(x), by_onnxruntime(content, x))
    assert [layer.node.op for layer in model.plan.layers if layer.node.op in ("Affine", "Conv", "Add", "Relu")] == ["Conv"] * 2 * parts


@pytest.mark.parametrize("settled", [True, False])
def test_convolutions_of_volumes_and_of_computed_weights(settled):
    constants = {"w": RANDOM.standard_normal((6, 2, 2, 3, 2)), "v": RANDOM.standard_normal((6, 3, 2, 1, 3)), "b": RANDOM.standard_normal(6)}
    how = {"group": 2, "strides": [1, 2, 1], "pads": [0, 1, 1, 1, 0, 1], "dilations": [2, 1, 1]}
    w = [] if settled else [helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0), helper.make_node("Mul", ["w", "m"], ["wm"])]
    nodes = [*w, helper.make_node("Conv", ["x", "w" if settled else "wm", "b"], ["a"], **how)]
    nodes.append(helper.make_node("ConvTranspose", ["a", "v"], ["y"], strides=[2, 1, 1], pads=[0, 0, 1, 1, 0, 0]))
    proto = exported(nodes, (2, 4, 5, 6, 4), constants)
    content, x = proto.SerializeToString(), given(proto)
    model = model_of(proto)
    assert_close(model(x), by_onnxruntime(content, x))
    assert "ConvTranspose" not in {layer.node.op for layer in model.plan.layers}


@pytest.mark.parametrize(("groups", "bias"), [(1, True), (4, False), (4, True)])
def test_images_are_convolved_with_computed_filters_by_a_plan(groups, bias, tmp_path):
    constants = {"w": RANDOM.standard_normal((8, 4 // groups, 3, 3)), "b": RANDOM.standard_normal(8)}
    nodes = [helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0), helper.make_node("Mul", ["w", "m"], ["wm"])]
    nodes.append(helper.make_node("Conv", ["x", "wm", *(["b"] if bias else [])], ["y"], group=groups, strides=[2, 1], pads=[1, 0, 1, 2]))
    proto = exported(nodes, (2, 4, 9, 7), constants)
    content, x = proto.SerializeToString(), given(proto)
    model = model_of(proto)
    layer = model.plan.layers[-1]
    assert layer.plan is not None and layer.plan.workload.filters == 8 and layer.predicted_seconds > 0
    model.save(tmp_path / "model.pysim")
    for one in (model, pysim.load(tmp_path / "model.pysim")):
        for scale in (1, -3):  # the filters of each call are its own
            assert_close(one(scale * x), by_onnxruntime(content, scale * x))


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("states", [True, False])
@pytest.mark.parametrize("separate", [0, 1])
def test_recurrent_layers(op, gates, direction, states, separate):
    """`separate`: in a GRU the product of the state is computed before the state is reset."""
    count = 1 + (direction == "bidirectional")
    shapes = {"w": (count, gates * 6, 5), "r": (count, gates * 6, 6), "b": (count, 2 * gates * 6), "h": (count, 2, 6), "c": (count, 2, 6)}
    inputs = ["x", "w", "r", "b", "", "h", *["c"] * (op == "LSTM")] if states else ["x", "w", "r"]
    how = {"hidden_size": 6, "direction": direction} | ({"linear_before_reset": separate} if op == "GRU" else {})
    nodes = [helper.make_node(op, inputs, ["a", "last"], **how), helper.make_node("Squeeze", ["last"], ["s"])]
    nodes.append(helper.make_node("Add", ["a", "s"], ["y"]))
    if count == 2:
        nodes[2:] = [helper.make_node("Add", ["a", "last"], ["y"])]
    proto = exported(nodes, (7, 2, 5), {name: RANDOM.standard_normal(shapes[name]) / 2 for name in inputs if name in shapes})
    content, x = proto.SerializeToString(), given(proto)
    assert_close(model_of(proto)(x), by_onnxruntime(content, x))


@pytest.mark.parametrize("shape", [(2, 6, 40), (1, 6, 7, 9)], ids=str)
@pytest.mark.parametrize("scaled", [True, False])
def test_norms_of_planes_are_native(shape, scaled):
    """Also as exporters write group norms: planes of a group as one row, with scale 1 and shift 0."""
    numbers = RANDOM.standard_normal((2, 6)) if scaled else np.stack([np.ones(6), np.zeros(6)])
    proto = exported([helper.make_node("InstanceNormalization", ["x", "s", "t"], ["y"])], shape, {"s": numbers[0], "t": numbers[1]})
    content, x = proto.SerializeToString(), given(proto)
    model = model_of(proto)
    assert_close(model(x), by_onnxruntime(content, x))
    assert [layer.node.op for layer in model.plan.layers] == ["LayerNormalization", "Affine"][: 1 + scaled]


@pytest.mark.parametrize("read", [False, True])
def test_a_norm_over_channels_between_transpositions_runs_in_place(read):
    """`read`: something else reads what the first transposition makes."""
    nodes = [helper.make_node("Transpose", ["x"], ["a"], perm=[0, 2, 3, 1]),
             helper.make_node("LayerNormalization", ["a", "s", "b"], ["c"], axis=-1, epsilon=1e-6),
             helper.make_node("Transpose", ["c"], ["d"], perm=[0, 3, 1, 2]), helper.make_node("Relu", ["d"], ["e"])]  # fmt: skip
    if read:
        nodes += [helper.make_node("Transpose", ["a"], ["f"], perm=[0, 3, 2, 1]), helper.make_node("Add", ["e", "f"], ["y"])]
    else:
        nodes.append(helper.make_node("Identity", ["e"], ["y"]))
    proto = exported(nodes, (2, 24, 9, 9), {name: RANDOM.standard_normal(24) for name in "sb"})
    model = model_of(proto)
    (norm,) = [layer.node for layer in model.plan.layers if layer.node.op == "LayerNormalization"]
    assert norm.attributes["axes"] == (1,) and norm.inputs[0] == "x"
    assert sum(layer.node.op == "Transpose" for layer in model.plan.layers) == 2 * read
    assert_close(model(given(proto)), by_onnxruntime(proto.SerializeToString(), given(proto)))
