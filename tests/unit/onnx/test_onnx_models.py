# SPDX-License-Identifier: Apache-2.0
"""ONNX models as files have them: pools of any attributes, known branches, declared shapes, batches that are asked for."""

import numpy as np
import pytest
from graphs import Builder, helper, numpy_helper
from onnx_models import assert_close, by_onnxruntime, given, model_of

import pysim
from pysim.calibration import host
from pysim.commands import networks
from pysim.errors import OperandError, PlanError, ProblemError
from pysim.onnx import layers as onnx_layers
from pysim.onnx import load
from pysim.problem import text

ort = pytest.importorskip("onnxruntime")


def assert_as_onnxruntime(proto):
    content, x = proto.SerializeToString(), given(proto)
    assert_close(model_of(proto)(x), by_onnxruntime(content, x))


def without_shapes(proto):
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    return proto


# Pools


@pytest.mark.parametrize("opset", [10, 17, 22])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    ("sizes", "how"),
    [
        ((5, 6), {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 1, 1]}),  # a fourth row would begin in padding
        ((5, 6), {"kernel_shape": [2, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ((4, 8), {"kernel_shape": [1, 2], "strides": [2, 3]}),
        ((2, 7), {"kernel_shape": [4, 3], "strides": [3, 3]}),  # more than there is
        ((8,), {"kernel_shape": [1], "strides": [2]}),
        ((11,), {"kernel_shape": [3], "strides": [2], "pads": [1, 2]}),
        ((4, 4, 6), {"kernel_shape": [1, 2, 2], "strides": [4, 3, 4], "pads": [0, 1, 0, 0, 0, 1]}),
    ],
)
def test_windows_that_would_begin_in_padding_are_left_out(sizes, how, op, opset):
    b = Builder(0)
    b.shapes["x"] = 2, 3, *sizes
    y = b.add(op, ["x"], b.shapes["x"], ceil_mode=1, **how)
    assert_as_onnxruntime(without_shapes(b.model([b.add("Tanh", [y], b.shapes["x"])], opset)))


def test_a_mean_of_windows_in_padding_alone_is_zero():
    how = {"kernel_shape": [2, 4], "dilations": [2, 1], "pads": [1, 0, 0, 2], "strides": [3, 3], "ceil_mode": 1}
    b = Builder(0)
    b.shapes["x"] = 3, 4, 1, 12
    y = b.add("AveragePool", ["x"], b.shapes["x"], **how)
    assert_as_onnxruntime(without_shapes(b.model([b.add("Tanh", [y], b.shapes["x"])], 20)))


def test_what_stands_behind_a_pool_has_the_sizes_that_it_makes():
    b = Builder(0)
    b.shapes["x"] = 1, 4, 5, 5
    pooled = b.add("AveragePool", ["x"], (1, 4, 3, 3), kernel_shape=[2, 2], strides=[2, 2], pads=[1] * 4, ceil_mode=1, count_include_pad=1)
    assert_as_onnxruntime(b.model([b.conv(pooled)], 13))


def test_pools_of_sequences_and_of_volumes_are_counted_in_padding_or_not():
    for sizes in ((9,), (5, 4, 7)):
        for counted in (0, 1):
            b, axes = Builder(0), len(sizes)
            b.shapes["x"] = 2, 3, *sizes
            how = {"kernel_shape": [3] * axes, "strides": [2] * axes, "pads": [1] * 2 * axes, "count_include_pad": counted}
            assert_as_onnxruntime(without_shapes(b.model([b.add("AveragePool", ["x"], b.shapes["x"], **how)])))


def test_bytes_are_pooled_as_bytes():
    b = Builder(0, dtype=np.int8)
    b.shapes["x"] = 1, 2, 5, 5
    proto = b.model([b.add("MaxPool", ["x"], (1, 2, 3, 3), kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])])
    x = np.random.default_rng(0).integers(-99, 99, (1, 2, 5, 5), np.int8)
    content = proto.SerializeToString()
    assert (model_of(proto)(x) == by_onnxruntime(content, x)[0]).all()


def test_a_window_that_fits_nowhere_is_named():
    b = Builder(0)
    b.shapes["x"] = 1, 2, 2, 9
    with pytest.raises(ProblemError, match=r'MaxPool "MaxPool_v0": its window spans \[3, 3\], more than the padded image, \[2, 9\]'):
        model_of(without_shapes(b.model([b.add("MaxPool", ["x"], b.shapes["x"], kernel_shape=[3, 3])])))


# Functions


def test_a_call_of_a_function_has_the_attributes_that_it_leaves_out():
    def function(name, body, domain):
        return helper.make_function("own", name, ["a"], ["c"], [body], [helper.make_opsetid(domain, 1 if domain else 17)], [], [default])

    default = helper.make_attribute("alpha", 0.7)
    inner, outer = helper.make_node("LeakyRelu", ["a"], ["c"]), helper.make_node("Leaky", ["a"], ["c"], domain="own")
    inner.attribute.add(name="alpha", ref_attr_name="alpha", type=default.type)
    b = Builder(0)
    b.shapes |= {"x": (2, 3), "y": (2, 3), "z": (2, 3), "v": (2, 3)}
    b.nodes += [
        helper.make_node("Leaky", ["x"], ["y"], domain="own", alpha=0.3),
        helper.make_node("Leaky", ["x"], ["z"], domain="own"),
        helper.make_node("Deep", ["x"], ["v"], domain="own"),
    ]
    proto = b.model(["y", "z", "v"])
    proto.opset_import.append(helper.make_opsetid("own", 1))
    proto.functions.extend([function("Leaky", inner, ""), function("Deep", outer, "own")])
    assert_as_onnxruntime(proto)


# Branches


def branch(name, nodes, outputs, constants=()):
    ends = [helper.make_tensor_value_info(one, 1, None) for one in outputs]
    return helper.make_graph(nodes, name, [], ends, list(constants))


def with_if(b, condition, then, other, results=("y",)):
    node = helper.make_node("If", [condition], list(results), name="If_0", then_branch=then, else_branch=other)
    b.nodes.append(node)
    b.shapes |= dict.fromkeys(results, b.shapes["x"])
    return without_shapes(b.model(list(results)))


@pytest.mark.parametrize("value", [True, False])
def test_the_branch_of_a_known_condition_is_taken(value):
    """Both branches use the same names, and read what stands outside."""
    b = Builder(0)
    b.constants.append(numpy_helper.from_array(np.array(value), "known_condition"))
    outer = b.add("Tanh", ["x"], b.shapes["x"])
    two = numpy_helper.from_array(np.array(2, np.float32), "number")
    nodes = [helper.make_node("Mul", [outer, "number"], ["inner"]), helper.make_node("Identity", [outer], ["same"])]
    then = branch("then", nodes, ["inner", "same"], [two])
    other = branch("else", [helper.make_node("Relu", ["x"], ["inner"]), helper.make_node("Exp", ["inner"], ["same"])], ["inner", "same"])
    assert_as_onnxruntime(with_if(b, "known_condition", then, other, ("y", "z")))


def test_a_condition_on_shapes_is_known_and_branches_may_have_branches():
    """As exporters write a squeeze: where a size is 1, else as it is."""
    b = Builder(0)
    b.shapes["x"] = 2, 1, 4, 5
    axis = b.constants.append(numpy_helper.from_array(np.array([1]), "axis")) or "axis"
    one = b.constants.append(numpy_helper.from_array(np.array([1]), "one")) or "one"
    size = b.add("Gather", [b.add("Shape", ["x"], (4,)), axis], (1,))
    known_condition = b.add("Equal", [size, one], (1,))
    then, other = (branch(op, [helper.make_node(op, ["seen"], ["n"])], ["n"]) for op in ("Neg", "Abs"))
    deeper = helper.make_node("If", [known_condition], ["deep"], name="deeper", then_branch=then, else_branch=other)
    then = branch("then", [helper.make_node("Squeeze", ["x", axis], ["seen"]), deeper], ["deep"])
    other = branch("else", [helper.make_node("Frobnicate", ["x"], ["seen"], domain="elsewhere")], ["seen"])
    b.shapes["y"] = 2, 4, 5
    proto = with_if(b, known_condition, then, other)
    proto.opset_import.append(helper.make_opsetid("elsewhere", 1))
    x = given(proto)
    assert (model_of(proto)(x) == -x[:, 0]).all()


def test_a_condition_that_is_not_known_is_named():
    b = Builder(0)
    known_condition = b.add("Greater", [b.add("ReduceMax", ["x"], (1, 1, 1, 1), keepdims=0), b.constant(np.array(0.0))], ())
    then, other = (branch(op, [helper.make_node(op, ["x"], ["inner"])], ["inner"]) for op in ("Relu", "Neg"))
    with pytest.raises(ProblemError, match=r'If "If_0" cannot be run: its condition is not known'):
        model_of(with_if(b, known_condition, then, other))


# Declared shapes


@pytest.mark.parametrize("sizes", [(1, 4, 6, 7), (1, 4, 3, 12), (1, 4, 6)])
@pytest.mark.parametrize("inside", [True, False])
def test_a_value_that_is_declared_as_what_it_is_not_is_named(sizes, inside):
    b = Builder(0)
    b.shapes["x"] = 1, 4, 6, 6
    middle = b.add("Sub", [b.add("Relu", ["x"], (1, 4, 6, 6)), "x"], (1, 4, 6, 6))
    proto = b.model([b.add("Tanh", [middle], (1, 4, 6, 6) if inside else sizes)])
    if inside:
        proto.graph.value_info.append(helper.make_tensor_value_info(middle, 1, sizes))
    with pytest.raises(ProblemError, match=r'declares the value "v\d" as .* but it is \[1, 4, 6, 6\]'):
        model_of(proto)


# Batches


def classifier(batch, shape=None):
    """Convolution, mean, Flatten (or a Reshape to a constant shape), product."""
    b = Builder(3, batch=batch)
    b.shapes["x"] = batch, 4, 6, 6
    y = b.add("Conv", ["x", b.constant(b.rng.standard_normal((8, 4, 3, 3)))], (batch, 8, 4, 4))
    y = b.add("GlobalAveragePool", [y], (batch, 8, 1, 1))
    if shape is None:
        y = b.add("Flatten", [y], (batch, 8))
    else:
        b.constants.append(numpy_helper.from_array(np.array(shape), "shape"))
        y = b.add("Reshape", [y, "shape"], (batch, 8))
    return b.model([b.add("MatMul", [y, b.constant(b.rng.standard_normal((8, 5)))], (batch, 5))])


def saved(tmp_path, proto):
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    return str(tmp_path / "m.onnx")


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(("suffix", "how"), [(":mb4", {}), ("", {"batch": 4}), ("", {"batch": "any"})])
def test_a_model_is_of_the_batch_that_is_requested(tmp_path, symbolic, suffix, how):
    proto = classifier(1)
    if symbolic:
        for value in (*proto.graph.input, *proto.graph.output):
            value.type.tensor_type.shape.dim[0].dim_param = "N"
    path = saved(tmp_path, proto) + suffix
    x = np.random.default_rng(0).standard_normal((4, 4, 6, 6)).astype(np.float32)
    assert_close(pysim.load(path, **how)(x), by_onnxruntime(classifier(4).SerializeToString(), x))


def test_a_model_of_any_batch_keeps_what_it_made():
    made = []
    model = load.AnyBatch(lambda batch: made.append(batch) or model_of(classifier(batch)))
    for batch in (3, 1, 3, 2):
        assert model(np.zeros((batch, 4, 6, 6), np.float32)).shape == (batch, 5)
    assert made == [1, 3, 2] and model.at(3) is model.at(3)
    with pytest.raises(OperandError, match="the first input is 3"):
        model(3)


def test_a_batch_that_is_fixed_inside_is_named(tmp_path):
    path = saved(tmp_path, classifier(1, [1, -1]))
    assert pysim.load(path + ":mb1").inputs["x"].shape[0] == 1
    with pytest.raises(ProblemError, match=r'cannot be of batch 4: Reshape "Reshape_v2" has the constant shape \[1, -1\]'):
        pysim.load(path, batch=4)
    assert pysim.load(saved(tmp_path, classifier(1, [-1, 8])) + ":mb4")(np.zeros((4, 4, 6, 6), np.float32)).shape == (4, 5)


@pytest.mark.parametrize(
    ("suffix", "how"), [(":mb0", {}), (":f16", {}), (":mb4", {"batch": 3}), ("", {"batch": 0}), ("", {"batch": "all"})]
)
def test_what_is_no_batch_is_refused(tmp_path, suffix, how):
    with pytest.raises(pysim.PysimError, match="batch"):
        pysim.load(saved(tmp_path, classifier(1)) + suffix, **how)
    with pytest.raises(OperandError, match='expected a whole number, at least 1, or "any"'):
        pysim.load(saved(tmp_path, classifier(1)), batch="all")


@pytest.mark.parametrize("machine", ["h200", "cuda"])
def test_a_gpu_is_refused_as_one_whether_it_is_here_or_not(machine, tmp_path):
    with pytest.raises(PlanError, match=f"models run on CPUs, and {machine} is a GPU; there, use pysim.torch.optimize"):
        pysim.load(saved(tmp_path, classifier(1)), machine=machine)


def test_inputs_in_a_dict_are_told_how_they_are_given(tmp_path):
    with pytest.raises(OperandError, match=r"as keywords: model\(\*\*inputs\)"):
        pysim.load(saved(tmp_path, classifier(1)))({"x": np.zeros((1, 4, 6, 6), np.float32)})


def test_commands_take_a_models_batch(tmp_path):
    path = saved(tmp_path, classifier(1)) + ":mb4"
    layers = text.resolve([path], lambda model: onnx_layers.read(*model)[0])
    assert [layer.workload.text for layer in layers] == ["conv:mb4ic4ih6oc8kh3", "gemm:4x5x8"]
    (one,) = networks.measured([path], host.runnable("host"), 1, peers=True, min_seconds=0.0).comparisons
    assert one.correct and one.model == path and "onnxruntime" in one.peers


# Slices


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("opset", [9, 11, 17])
@pytest.mark.parametrize("channels", [6, 32])
def test_halves_of_channels_lie_in_the_whole_and_are_written_over_by_nobody(channels, opset, batch):
    """As in ShuffleNet: one half goes on, the other through layers and activations that work in place."""
    b = Builder(0)
    half, b.shapes["x"] = channels // 2, (batch, channels, 5, 4)
    parts = (batch, half, 5, 4)
    whole = b.add("Conv", ["x", b.constant(b.rng.standard_normal((channels, channels, 1, 1)))], b.shapes["x"])
    b.constants += [numpy_helper.from_array(np.array([half, half]), "sizes")]
    how = {"axis": 1} if opset >= 13 else {"axis": 1, "split": [half, half]}
    b.nodes.append(helper.make_node("Split", [whole] + ["sizes"] * (opset >= 13), ["low", "high"], name="split", **how))
    scaled = b.add("Relu", [b.add("Mul", ["high", b.constant(np.array(-2.0))], parts)], parts)
    weights = b.constant(b.rng.standard_normal((half, half, 3, 3)))
    convolved = b.add("Conv", [b.add("Relu", ["low"], parts), weights], parts, pads=[1] * 4)
    y = b.add("Concat", ["low", convolved, scaled, "high"], (batch, 4 * half, 5, 4), axis=1)
    proto = b.model([y, whole], opset)
    assert_as_onnxruntime(proto)
    assert not any("reference" in layer.node.attributes for layer in model_of(proto).plan.layers)


@pytest.mark.parametrize(
    ("start", "end", "axis", "step"),
    [(0, 3, 1, 1), (1, 99, 1, 1), (-2, 99, 2, 1), (-1, -99, 3, -1), (1, -1, 3, 2), (3, 0, 1, -2), (0, 1, 0, 1)],
)
@pytest.mark.parametrize("made", [True, False])
def test_slices_are_what_onnx_says(start, end, axis, step, made):
    b = Builder(0)
    b.shapes["x"] = 1, 4, 5, 6
    for name, number in (("start", start), ("end", end), ("axis", axis), ("step", step)):
        b.constants.append(numpy_helper.from_array(np.array([number]), name))
    x = b.add("Tanh", ["x"], b.shapes["x"]) if made else "x"
    y = b.add("Slice", [x, "start", "end", "axis", "step"], ())
    assert_as_onnxruntime(without_shapes(b.model([b.add("Neg", [y], ()), y])))


# What several nodes are, or one is in several


def sparse_of(array, name):
    places = np.flatnonzero(array)
    values = numpy_helper.from_array(array.reshape(-1)[places], name)
    return helper.make_sparse_tensor(values, numpy_helper.from_array(places.astype(np.int64), "places"), list(array.shape))


def with_sparse_weights(outside):
    """An If whose branch adds a constant, which is sparse, or which the graph around it has."""
    numbers = np.array([[0, 2, 0, 5]], np.float32)
    add = helper.make_node("Add", ["x", "w"], ["sum"])
    kind = helper.make_tensor_value_info("sum", 1, [1, 4])
    inner = [[], [sparse_of(numbers, "w")]][:: 1 if not outside else -1]
    then = helper.make_graph([add], "then", [], [kind], sparse_initializer=inner[1])
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["sum"])], "else", [], [kind])
    choose = helper.make_node("If", ["yes"], ["y"], then_branch=then, else_branch=other)
    yes = numpy_helper.from_array(np.array(True), "yes")
    ends = [helper.make_tensor_value_info(name, 1, [1, 4]) for name in "xy"]
    graph = helper.make_graph([choose], "g", ends[:1], ends[1:], [yes], sparse_initializer=inner[0])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), numbers


@pytest.mark.parametrize("outside", [False, True])
def test_sparse_constants_are_dense_ones_in_branches_too(outside, tmp_path):
    proto, numbers = with_sparse_weights(outside)
    path = tmp_path / "sparse.onnx"
    path.write_bytes(proto.SerializeToString())
    x = np.ones((1, 4), np.float32)
    assert (pysim.load(path)(x) == x + numbers).all()


def test_a_sparse_constant_whose_places_are_none_is_named(tmp_path):
    proto, _ = with_sparse_weights(True)
    proto.graph.sparse_initializer[0].dims[:] = [1, 2]
    path = tmp_path / "sparse.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ProblemError, match='the sparse constant "w"'):
        pysim.load(path)


@pytest.mark.parametrize("name", ["gelu", "shuffled", "cut", "padded"])
def test_what_exporters_write_as_several_nodes_is_native(name):
    """A chain that is one call, the layers that read what the caller gives and write what it gets included."""
    b = Builder(3)
    b.shapes["x"] = 1, 6, 9, 8
    first = b.add("Conv", ["x", b.constant(np.ones((6, 6, 1, 1)) / 6)], b.shapes["x"])
    y = getattr(b, name)(first)
    n, c, h, w = b.shapes[y]
    last = b.add("Conv", [y, b.constant(np.ones((4, c, 1, 1)) / c)], (n, 4, h, w))
    mean = b.add("ReduceMean", [b.add("HardSigmoid", [last], b.shapes[last])], (n, 4), axes=[2, 3], keepdims=0)
    proto = b.model([mean])
    content, x = proto.SerializeToString(), given(proto)
    model = model_of(proto)
    assert_close(model(x), by_onnxruntime(content, x))
    if name != "padded":
        assert len(model._idle[-1].calls) == 1
    assert not {"Erf", "onnx.HardSigmoid", "ReduceMean"} & {layer.node.op for layer in model.plan.layers}
