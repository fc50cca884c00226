# SPDX-License-Identifier: Apache-2.0
"""Whole ONNX networks compute what ONNX Runtime computes, whatever was fused, joined or overwritten; what cannot run is named."""

import json
import os
import subprocess
import sys
import threading
import tracemalloc
import weakref
from pathlib import Path

import numpy as np
import pytest
from graphs import Builder, numpy_helper, random_model
from onnx_models import assert_close, by_onnxruntime, given, model_of, several

import pysim
from pysim import planner
from pysim.calibration import host
from pysim.errors import OperandError, PlanError, ProblemError
from pysim.machine.load import load
from pysim.network import plan
from pysim.network.execution import Network
from pysim.onnx import compare, reading
from pysim.onnx.im2col_peer import Im2colNetwork
from pysim.record.measurement import CoreThen
from pysim.runtime import cpu

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
FLOAT = np.dtype(np.float32)


# Results


# 200 graphs; PYSIM_GRAPHS=5000 for a long run
@pytest.mark.parametrize("first", range(0, int(os.environ.get("PYSIM_GRAPHS", "200")), 20))
def test_random_networks_equal_onnxruntime(first):
    for seed in range(first, first + 20):
        proto = random_model(seed, batch=1 + seed % 3)
        content, x = proto.SerializeToString(), given(proto, seed)
        before = x.copy()
        model = model_of(proto)
        wanted = by_onnxruntime(content, x)
        assert_close(model(x), wanted)
        assert_close(model(x), wanted)  # what a first call left behind does not matter
        assert (x == before).all()


def test_planes_of_one_element_may_be_scaled_where_the_scales_lie():
    """The product of two values of one shape takes the place of the one that nobody reads later, whichever of them is called the scale."""
    b = Builder(0)
    n, c = b.shapes["x"][:2]
    mean = b.add("GlobalAveragePool", ["x"], (n, c, 1, 1))
    scaled = b.add("Mul", [mean, b.add("Tanh", [mean], (n, c, 1, 1))], (n, c, 1, 1))
    proto = b.model([b.add("Sub", [scaled, mean], (n, c, 1, 1))])
    content, x = proto.SerializeToString(), given(proto)
    assert_close(model_of(proto)(x), by_onnxruntime(content, x))


def test_sizes_that_a_model_computes_of_its_shapes_are_known_before_it_runs():
    """Half of the channels, as exporters write `x.chunk(2, 1)`: Shape, Gather, Add, Div, Mul, and Slices whose shapes inference leaves
    open; and again of what these give, which are concatenated."""
    b = Builder(3)
    b.shapes["x"] = 1, 8, 6, 6

    def half(x: str, shape: tuple[int, ...]) -> tuple[str, ...]:
        one, two, axis, begin = (b.add("Constant", [], (1,), value_ints=[value]) for value in (1, 2, 1, 0))
        size = b.add("Gather", [b.add("Shape", [x], (4,)), axis], (1,), axis=0)
        middle = b.add("Mul", [b.add("Div", [b.add("Add", [size, one], (1,)), two], (1,)), one], (1,))
        return b.add("Slice", [x, begin, middle, axis], shape), b.add("Slice", [x, middle, size, axis], shape)

    low, high = half("x", (1, 4, 6, 6))
    low, _ = half(b.add("Concat", [high, b.add("Relu", [low], (1, 4, 6, 6))], (1, 8, 6, 6), axis=1), (1, 4, 6, 6))
    proto = b.model([b.conv(low)])
    inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph.value_info
    assert any(dim.dim_param for value in inferred for dim in value.type.tensor_type.shape.dim)  # else there is nothing to show
    content, x = proto.SerializeToString(), given(proto)
    assert_close(model_of(proto)(x), by_onnxruntime(content, x))


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet", "inception_v2", "resnet50"])
def test_a_light_model_with_random_weights_is_as_near_to_float64_as_onnxruntime(name):
    found = compare.compare(LIGHT / f"light_{name}.onnx", host.runnable("host"), min_seconds=0.0)
    assert found.correct and found.max_error <= max(8 * found.errors["onnxruntime"], 1e-6)  # F(4x4) in every 3x3 layer, where it is fastest
    assert found.peers["onnxruntime"] > 0 and found.measured_seconds > 0
    assert any(layer.fused for layer in found.layers)


def test_float64_is_computed_in_float64():
    proto = random_model(7)
    graph = reading.graph_of(proto, "a model")
    x = given(random_model(7))
    y = several(Network(compare.widened(graph), host.runnable("host"))(x.astype(np.float64)))[0]
    z = several(Network(graph, host.runnable("host"))(x))[0]
    assert y.dtype == np.float64 and 0 < np.abs(y - z).max() < 1e-4 * np.abs(y).max()


def test_values_that_are_no_floating_point_numbers_lie_as_they_are():
    """A mask has no layout of blocks, whatever its channels."""
    b = Builder(3)
    b.shapes["x"] = 1, 16, 6, 6
    mask = b.add("Greater", ["x", b.constant(np.array(0.0))], (1, 16, 6, 6))
    proto = b.model([b.conv(b.add("Where", [mask, b.add("Relu", ["x"], (1, 16, 6, 6)), "x"], (1, 16, 6, 6)))])
    content, x = proto.SerializeToString(), given(proto)
    assert_close(model_of(proto)(x), by_onnxruntime(content, x))


@pytest.mark.parametrize("shape", [(2, 4, 1, 1), (2, 1, 1, 1), (4, 1, 1), (1, 4, 1, 1), (2, 4, 5, 5), (5,)])
@pytest.mark.parametrize("op", ["Mul", "Add"])
def test_constants_of_any_shape_are_multiplied_and_added(op, shape):
    b = Builder(3)
    b.shapes["x"] = 2, 4, 5, 5
    numbers = b.constant(np.random.default_rng(1).standard_normal(shape))
    y = b.add(op, [numbers, b.add("Tanh", ["x"], (2, 4, 5, 5))], (2, 4, 5, 5))
    proto = b.model([b.add("Relu", [y], (2, 4, 5, 5))])
    content, x = proto.SerializeToString(), given(proto)
    assert_close(model_of(proto)(x), by_onnxruntime(content, x))


def test_an_input_that_stands_twice_is_read_twice():
    """By its own name, by one that only an Identity gave it, and where it is a constant."""
    b = Builder(3)
    shape = b.shapes["x"]
    same = b.add("Identity", ["x"], shape)
    folded = b.add("Max", [b.constant(np.array(2.0))] * 2, ())
    x = b.add("Max", ["x", same, b.add("Min", ["x", "x"], shape)], shape)
    proto = b.model([b.add("Max", [x, folded], shape)])
    content, x = proto.SerializeToString(), given(proto)
    assert_close(model_of(proto)(x), by_onnxruntime(content, x))


def assert_as_onnxruntime(b, y, opset):
    proto = b.model([y], opset)
    content, x = proto.SerializeToString(), given(proto)
    assert_close(model_of(proto)(x), by_onnxruntime(content, x))


@pytest.mark.parametrize("op", ["Add", "Mul", "Sub"])
@pytest.mark.parametrize("groups", [1, 16])
def test_an_image_of_constants_lies_as_it_is_whatever_the_layout_of_the_layer_before(op, groups):
    """As embeddings of positions do."""
    b = Builder(3)
    b.shapes["x"] = 1, 16, 12, 9
    before = b.add("Relu", [b.add("Conv", ["x", b.constant(b.rng.standard_normal((16, 16, 1, 1)))], (1, 16, 12, 9))], (1, 16, 12, 9))
    weights = b.constant(b.rng.standard_normal((16, 16 // groups, 3, 3)))
    y = b.add("Conv", [before, weights], (1, 16, 12, 9), pads=[1] * 4, group=groups)
    assert_as_onnxruntime(b, b.add(op, [b.constant(b.rng.standard_normal((1, 16, 12, 9))), y], (1, 16, 12, 9)), 17)


@pytest.mark.parametrize("noop", [0, 1])
def test_a_mean_over_no_axes_is_over_all_or_none(noop):
    b = Builder(3)
    b.constants.append(numpy_helper.from_array(np.empty(0, np.int64), "axes"))
    shape = b.shapes["x"] if noop else (1, 1, 1, 1)
    assert_as_onnxruntime(b, b.add("ReduceMean", ["x", "axes"], shape, noop_with_empty_axes=noop), 18)


def test_a_clip_whose_bounds_cross_gives_the_upper_one():
    b = Builder(3)
    convolved = b.conv("x")
    bounds = [b.constant(np.array(value)) for value in (0.5, -0.5)]
    assert_as_onnxruntime(b, b.add("Clip", [convolved, *bounds], b.shapes[convolved]), 17)


@pytest.mark.parametrize("opset", [13, 17, 19, 21])
def test_weights_and_images_that_were_quantized_are_numbers_again(opset):
    """As static quantization writes them: images by one scale, filters by one each."""
    b = Builder(3)
    b.shapes["x"] = shape = 1, 4, 6, 6
    whole = {"zero": np.int8(3), "zeros": np.zeros(5, np.int8), "w": b.rng.integers(-99, 99, (5, 4, 3, 3), np.int8)}
    b.constants += [numpy_helper.from_array(np.asarray(array), name) for name, array in whole.items()]
    scale, scales = b.constant(np.array(0.05)), b.constant(b.rng.uniform(0.01, 0.02, 5))
    image = b.add("DequantizeLinear", [b.add("QuantizeLinear", ["x", scale, "zero"], shape), scale, "zero"], shape)
    weights = b.add("DequantizeLinear", ["w", scales, "zeros"], (5, 4, 3, 3), axis=0)
    assert_as_onnxruntime(b, b.add("Conv", [image, weights], (1, 5, 4, 4)), opset)


def test_what_a_node_cannot_compute_is_named_with_it():
    """Sizes that do not fit its input."""
    b = Builder(3)
    n, c, h, w = b.shapes["x"]
    b.constants.append(numpy_helper.from_array(np.array([n, c, h, w + 1]), "sizes"))
    with pytest.raises(ProblemError, match=r"Reshape_v0.: its input has 210 elements"):
        model_of(b.model([b.add("Reshape", ["x", "sizes"], (n, c, h, w + 1))]))


def test_results_are_the_callers():
    model, x = model_of(random_model(3)), given(random_model(3))
    first = several(model(x))[0]
    kept = first.copy()
    model(2 * x + 1)
    assert (first == kept).all()


def test_large_results_take_the_memory_of_those_that_are_gone_and_of_no_others():
    results = cpu.Results((3, 5, 1 << 14), np.float32)
    first, other = results.take(), results.take()
    view, place = first.reshape(-1)[7:], first.ctypes.data
    del first
    third = results.take()
    assert third.ctypes.data != place  # a view still refers to it
    del view
    again = results.take()
    assert again.ctypes.data == place and again.flags.writeable and not any(np.shares_memory(again, one) for one in (other, third))
    assert again.shape == (3, 5, 1 << 14) and again.ctypes.data % 64 == 0


def test_inputs_may_lie_elsewhere_in_each_call_and_results_are_the_callers_alone():
    """Native steps read and write the caller's arrays in place: as views, in a concatenation, as results that are read."""
    b = Builder(3)
    shape = b.shapes["x"]
    first = b.add("Add", ["x", "x"], shape)
    double = b.add("Concat", [b.add("Relu", ["x"], shape), first], (shape[0], 2 * shape[1], *shape[2:]), axis=1)
    seen = b.add("Relu", [b.add("Flatten", ["x"], (shape[0], int(np.prod(shape[1:]))))], (shape[0], int(np.prod(shape[1:]))))
    proto = b.model([b.add("Sub", [first, "x"], shape), double, first, seen])
    content, model, kept = proto.SerializeToString(), model_of(proto), []
    for at in range(4):
        x = np.empty(int(np.prod(shape)) + 3, np.float32)[at % 3 :][: int(np.prod(shape))].reshape(shape)
        x[...] = given(proto, at)
        kept.append((model(x), by_onnxruntime(content, x)))
        assert_close(tuple(model.results([x])), kept[-1][1])
    for found, wanted in kept:
        assert_close(found, wanted)
    found = [array for result, _ in kept for array in result]
    assert not any(np.shares_memory(a, b) for at, a in enumerate(found) for b in found[:at])


def test_several_threads_may_call_one_model():
    proto = random_model(11)
    model, inputs = model_of(proto), [given(random_model(11), seed) for seed in range(8)]
    wanted, found = [model(x) for x in inputs], {}

    def work(at):
        for _ in range(10):
            found[at] = model(inputs[at])

    threads = [threading.Thread(target=work, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((a == b).all() for at, y in enumerate(wanted) for a, b in zip(several(y), several(found[at]), strict=True))


@pytest.mark.parametrize("seed", range(12))
def test_the_same_graph_by_im2col_and_openblas_equals_onnxruntime(seed):
    pytest.importorskip("scipy_openblas64")
    proto = random_model(seed, 1 + seed % 2)
    x, wanted = given(proto), by_onnxruntime(proto.SerializeToString(), given(proto))
    assert_close(Im2colNetwork(reading.graph_of(proto, "a network"), host.runnable("host"))(x), wanted)


def test_threads_do_not_change_bits_of_the_same_plans(monkeypatch):
    one = model_of(random_model(5))
    monkeypatch.setattr("pysim.network.execution.layers_of", lambda *options: plan.layers_of(*options[:4]))  # for one thread
    two = model_of(random_model(5), 2)
    x = given(random_model(5))
    assert all((a == b).all() for a, b in zip(several(one(x)), several(two(x)), strict=True))


def test_native_layers_allocate_nothing():
    b = Builder(0)
    b.shapes["x"] = (1, 16, 64, 64)
    x = "x"
    for _ in range(3):
        c = b.constant(b.rng.standard_normal((16, 16, 3, 3)))
        x = b.add("Relu", [b.add("Conv", [x, c], (1, 16, 64, 64), pads=[1, 1, 1, 1])], (1, 16, 64, 64))
    x = b.add("GlobalAveragePool", [x], (1, 16, 1, 1))
    proto = b.model([x])
    model, image = model_of(proto), given(proto)
    model(image)
    tracemalloc.start()
    model(image)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * 64 * 64 * 4 / 2  # half of one layer's values


# What cannot be done


def saved(path, proto):
    path.write_bytes(proto.SerializeToString())
    return path


def test_load_plans_and_profiles(tmp_path):
    model = pysim.load(saved(tmp_path / "m.onnx", random_model(2)), threads=1)
    x = given(random_model(2))
    assert [one.layer for one in model.profile(x, calls=1)] == list(model.plan.layers)
    assert model.plan.predicted_seconds == sum(one.predicted_seconds for one in model.plan.layers)
    assert all(one.predicted_seconds > one.plan.seconds * 0.999 for one in model.plan.layers if one.plan)
    assert all(one.node.name in model.plan.explain() for one in model.plan.layers)


def test_an_operator_that_nothing_runs_is_named_before_anything_runs():
    b = Builder(0)
    b.nodes.append(onnx.helper.make_node("Frobnicate", ["x"], ["y"], name="the_node", domain="elsewhere"))
    b.shapes["y"] = b.shapes["x"]
    proto = b.model(["y"])
    proto.opset_import.append(onnx.helper.make_opsetid("elsewhere", 1))
    with pytest.raises(ProblemError, match=r'Frobnicate "the_node" cannot be run'):
        reading.graph_of(proto, "a model")


def test_a_size_that_is_not_known_is_named():
    b = Builder(0)
    y = b.add("Relu", ["x"], b.shapes["x"])
    proto = b.model([y])
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "rows"
    with pytest.raises(ProblemError, match="rows"):
        reading.graph_of(proto, "a model")


@pytest.mark.parametrize("seed", range(4))
def test_a_network_keeps_neither_what_it_was_given_nor_what_it_returned(seed):
    proto = random_model(seed)
    model, x = model_of(proto), given(proto)
    kept = [weakref.ref(one) for one in (x, *several(model(x)))]
    del x
    assert all(one() is None for one in kept)


@pytest.mark.parametrize(
    ("arrays", "named", "message"),
    [
        ((), {}, "not given"),
        ((1, 2), {}, "takes one array"),
        ((), {"z": 1}, 'has no input "z"'),
        ((1,), {"x": 1}, 'the input "x" is given twice'),
        ((np.zeros((1, 2)),), {}, "the model takes float32"),
    ],
)
def test_what_a_model_is_called_with_is_checked(arrays, named, message):
    with pytest.raises(OperandError, match=message):
        model_of(random_model(2))(*arrays, **named)


def test_a_gpus_plans_do_not_load(tmp_path):
    with pytest.raises((PlanError, pysim.PysimError)):
        pysim.load(saved(tmp_path / "m.onnx", random_model(2)), machine="h200")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch": 0}, "batch is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": "a"}, 'seed is "a"'),
        ({"accuracy": "exact"}, '^no accuracy is named "exact"'),
    ],
)
def test_how_a_model_is_loaded_is_checked(tmp_path, wrong, message):
    with pytest.raises(pysim.PysimError, match=message):
        pysim.load(saved(tmp_path / "m.onnx", random_model(2)), **wrong)


def test_a_batch_is_what_the_user_says(tmp_path):
    proto = random_model(2)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    model = pysim.load(saved(tmp_path / "m.onnx", proto), batch=3)
    assert next(iter(model.inputs.values())).shape[0] == 3


def test_compare_has_the_whole_model_in_its_document(tmp_path):
    command = [sys.executable, "-m", "pysim", "compare", str(LIGHT / "light_squeezenet.onnx"), "--peers", "--seconds", "0.001", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (one,) = json.loads(done.stdout)["models"]
    assert one["correct"] and one["measured_seconds"] > 0 and one["peers"]["onnxruntime"] > 0
    assert {"model", "max_error", "predicted_seconds", "layers", "layouts"} <= one.keys()
    assert sum(layer["problem"] is not None for layer in one["layers"]) == 26
    assert one["core"]["clock_hz"] > 1e8 and sum(layer["predicted_seconds"] for layer in one["layers"]) == pytest.approx(
        one["predicted_seconds"]
    )


def test_a_layers_prediction_is_at_the_clock_when_timed():
    on = load("zen4")
    layer = plan.Layer(None, planner.plan("conv:mb1ic64ih14oc64kh3ph1", on), 2e-6)
    assert compare._seconds(layer, None) == layer.predicted_seconds
    then = CoreThen(1.25 * on.clock_hz, on.clock_hz, 1.0)
    assert compare._seconds(layer, then) == pytest.approx(layer.predicted_seconds / 1.25)  # nothing of it comes from memory


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda proto: proto.graph.initializer[0].dims.append(3), 'the constant "c0" cannot be read'),
        (lambda proto: proto.graph.node[1].attribute.append(onnx.helper.make_attribute("axis", 9)), r"node name: second"),
        (lambda proto: proto.graph.output.pop(), "a model has no outputs; expected at least one"),
        (
            lambda proto: proto.graph.node[1].attribute.append(onnx.helper.make_attribute("pads", [0, 0, -9, 0, 0, 0, 0, 0])),
            r'the value "v1", made by Pad "second", has the negative shape \[1, 2, -4, 6\]',
        ),
        (
            lambda proto: proto.graph.node[1].input.__setitem__(0, "lost"),
            'Relu "second" reads "lost", but no node, initializer or input of the model defines it',
        ),
        (
            lambda proto: proto.graph.output[0].type.tensor_type.shape.dim[3].__setattr__("dim_value", 9),
            r'declares the value "v1" as \[1, 2, 5, 9\]',
        ),
        (
            lambda proto: proto.graph.output[0].type.tensor_type.__setattr__("elem_type", onnx.TensorProto.DOUBLE),
            'declares the value "v1" as DOUBLE, but it is FLOAT; export it again, or delete the declared types',
        ),
    ],
)
def test_a_damaged_model_is_refused_with_what_is_wrong(damage, message):
    build = Builder(0)
    build.shapes["x"] = (1, 4, 5, 6)
    y = build.add("Conv", ["x", build.constant(np.ones((2, 4, 1, 1)))], (1, 2, 5, 6))
    proto = build.model([build.add("Relu", [y], (1, 2, 5, 6))])
    proto.graph.node[1].name = "second"
    if "node name" in message or "negative" in message:
        proto.graph.node[1].op_type = "Concat" if "node name" in message else "Pad"
        proto.opset_import[0].version = 17 if "node name" in message else 10  # pads were an attribute
        proto.graph.output[0].type.tensor_type.ClearField("shape")
    if "declares" in message:
        proto.graph.node[0].output[0] = proto.graph.node.pop().output[0]
    damage(proto)
    with pytest.raises(ProblemError, match=message):
        model_of(proto)


def test_infinities_and_nan_of_the_exact_result_are_no_errors_and_others_are():
    exact = np.array([1.0, np.inf, np.nan, -1e39])
    right = np.array([1.0, np.inf, np.nan, -np.inf], np.float32)
    assert compare._error([right], [exact]) == 0
    for at, wrong in ((0, np.nan), (0, np.inf), (1, -np.inf), (2, 0), (3, 0)):
        assert compare._error([np.where(np.arange(4) == at, np.float32(wrong), right)], [exact]) == np.inf
    assert compare._error([np.array([2e-45], np.float32)], [np.array([1.4e-45])]) < 1e-6


@pytest.mark.parametrize(
    ("op", "shapes", "attributes", "message"),
    [
        ("Conv", [(1, 4, 5, 6), (2, 4, 1, 1), 3], {}, r"its bias is \[3\]; expected \[2\], one number per filter"),
        ("Conv", [(1, 4, 5), (2, 4, 1), 3], {}, r"its bias is \[3\]; expected \[2\]"),
        ("Conv", [(1, 4, 5, 6), (2, 3, 1, 1)], {}, r"its input has 4 channels, but its weights, \[2, 3, 1, 1\], take 3"),
        ("Conv", [(1, 4, 5, 6), (3, 2, 1, 1)], {"group": 2}, "group is 2; it should divide 4 channels and 3 filters"),
        ("Conv", [(1, 4, 5, 6), (2, 4, 1, 1)], {"group": 0}, "group is 0"),
        ("Conv", [(1, 4, 5, 6), (2, 4, 1, 1)], {"group": 1.5}, "is not valid: Mismatched attribute type"),
        ("Conv", [(1, 4, 5, 6), (2, 4, 1, 1)], {"kernel_shape": [3, 3]}, r"kernel_shape is \[3, 3\], but the weights are \[2, 4, 1, 1\]"),
        ("ConvTranspose", [(1, 4, 5, 6), (2, 4, 1, 1)], {}, r"its input has 4 channels, but its weights, \[2, 4, 1, 1\], take 2"),
        ("Gemm", [(5, 4), (4, 2), 3], {}, r"its C is \[3\], which cannot be broadcast to the result, \[5, 2\]"),
        ("Gemm", [(5, 4), (4, 2), (4, 2)], {}, r"its C is \[4, 2\], which cannot"),
        ("Clip", [(5, 4), 2], {}, r"its min has the shape \[2\]; expected one number"),
        ("BatchNormalization", [(1, 4, 5, 6), 4], {}, "is not valid: .* has input size 2"),
    ],
)
def test_inputs_and_attributes_that_do_not_fit_are_refused_with_their_node(op, shapes, attributes, message):
    build = Builder(0)
    build.shapes["x"] = shapes[0]
    inputs = ["x", *(build.constant(np.ones(shape, np.float32)) for shape in shapes[1:])]
    proto = build.model([build.add(op, inputs, shapes[0], **attributes)])
    proto.graph.node[0].name = "first"
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ProblemError, match=f'{op} "first":? {message}'):
        model_of(proto)


def test_external_weights_of_another_size_or_outside_the_folder_are_refused(tmp_path):
    (tmp_path / "weights").write_bytes(bytes(10))
    for seed in (None, 0):
        for location, message in (("weights", 'the constant "c0" cannot be read'), ("../weights", "outside the model's folder")):
            proto = random_model(3)
            tensor = next(one for one in proto.graph.initializer if one.name == "c0")
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value=location)
            (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
            with pytest.raises(ProblemError, match=message):
                pysim.load(tmp_path / "m.onnx", seed=seed)


def test_weights_in_a_file_that_is_not_there_are_reported(tmp_path):
    onnx.save_model(random_model(3), tmp_path / "m.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    pysim.load(tmp_path / "m.onnx")
    (tmp_path / "weights").unlink()
    with pytest.raises(ProblemError, match=r"weights, which does not exist; put it there"):
        pysim.load(tmp_path / "m.onnx")


@pytest.mark.parametrize("calls", [0, "3"])
def test_a_profile_is_of_some_calls(calls):
    proto = random_model(3)
    with pytest.raises(OperandError, match="calls is"):
        model_of(proto).profile(given(proto), calls=calls)
