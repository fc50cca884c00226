# SPDX-License-Identifier: Apache-2.0
"""Networks of bfloat16: as exact as their type whatever lies and runs how, their ends of that type, and nothing of it in other networks."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from graphs import random_model
from onnx import TensorProto, helper, numpy_helper
from onnx_models import by_onnxruntime, given, model_of

from pysim.calibration import host
from pysim.network import plan
from pysim.network.halves.narrow import computes_narrow
from pysim.network.layouts import choose_layouts
from pysim.runtime.operators import BITS

NARROW = np.dtype(ml_dtypes.bfloat16)
STEP = 2.0**-8  # half the largest distance of two neighbours, over the smaller


def rounded(proto):
    """The model with weights that are bfloat16 numbers."""
    made = onnx.ModelProto.FromString(proto.SerializeToString())
    for tensor in made.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            values = numpy_helper.to_array(tensor).astype(NARROW).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return made


def narrowed(proto):
    """The same in bfloat16."""
    made = onnx.ModelProto.FromString(proto.SerializeToString())
    for tensor in made.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(NARROW), tensor.name))
    for value in (*made.graph.input, *made.graph.output, *made.graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.BFLOAT16
    for node in made.graph.node:
        for one in node.attribute:
            if one.HasField("t") and one.t.data_type == TensorProto.FLOAT:
                one.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(one.t).astype(NARROW), one.t.name))
    return made


def assert_near(found, wanted, steps=16):
    """Within some roundings of the largest result."""
    found, wanted = (one if isinstance(one, tuple | list) else [one] for one in (found, wanted))
    for y, z in zip(found, wanted, strict=True):
        assert y.dtype == NARROW
        assert np.abs(y.astype(np.float64) - z).max() <= steps * STEP * max(np.abs(z).max(), 1e-3)


def is_narrow(model):
    """Whether any value or product of a network is of bf16."""
    layers = model.plan.layers
    return any(t.dtype == BITS for t in model._graph.tensors.values()) or any(
        layer.plan and layer.plan.workload.dtype == "bf16" for layer in layers
    )


@pytest.mark.parametrize("unit", [16, 8])  # of channels: whole blocks, or parts of them
@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_networks_in_random_layouts(first, unit, monkeypatch):
    in_blocks = 0
    for seed in range(first, first + 20):
        random, proto = np.random.default_rng(seed), rounded(random_model(seed, 1 + seed % 3, unit=unit))

        def mixed(graph, block, seconds, change, widens=False, random=random):
            def any_seconds(*asked):
                return None if seconds(*asked) is None else float(random.uniform(1, 9))

            return choose_layouts(graph, block, any_seconds, lambda name, into: float(random.uniform(0, 1)))

        monkeypatch.setattr(plan, "choose_layouts", mixed)
        x = given(proto, seed).astype(NARROW)
        wanted = by_onnxruntime(proto.SerializeToString(), x.astype(np.float32))
        model = model_of(narrowed(proto))
        in_blocks += sum(tensor.dtype == BITS for tensor in model._graph.tensors.values())
        assert_near(model(x), wanted)
    assert in_blocks > 10 or not computes_narrow(host.runnable("host"))


def chain(size=32, kinds=(TensorProto.BFLOAT16, TensorProto.BFLOAT16), channels=32):
    """Conv, Relu, MaxPool, Conv, their sum; each convolution of one type."""
    random, nodes, weights = np.random.default_rng(1), [], []
    for at, kind in enumerate(kinds):
        values = (random.standard_normal((channels, channels, 3, 3)) / 17).astype(np.float32)
        numbers = values.astype(NARROW) if kind == TensorProto.BFLOAT16 else values
        weights.append(numpy_helper.from_array(numbers, f"w{at}"))
        source = "x" if at == 0 else "r0"
        if kind != TensorProto.BFLOAT16:
            nodes.append(helper.make_node("Cast", [source], [f"wide{at}"], to=kind))
            source = f"wide{at}"
        nodes.append(helper.make_node("Conv", [source, f"w{at}"], [f"c{at}"], pads=[1] * 4))
        nodes.append(helper.make_node("Cast", [f"c{at}"], [f"n{at}"], to=TensorProto.BFLOAT16))
        nodes.append(helper.make_node("Relu", [f"n{at}"], [f"r{at}"]))
    nodes.append(helper.make_node("Add", ["r0", "r1"], ["y"]))
    ends = [helper.make_tensor_value_info(name, TensorProto.BFLOAT16, [1, channels, size, size]) for name in "xy"]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])


def test_a_model_that_multiplies_float32_too_runs_in_float32():
    x = np.random.default_rng(2).standard_normal((1, 32, 32, 32)).astype(NARROW)
    narrow, mixed = model_of(chain()), model_of(chain(kinds=(TensorProto.BFLOAT16, TensorProto.FLOAT)))
    assert is_narrow(narrow) or not computes_narrow(host.runnable("host"))
    assert not is_narrow(mixed)
    assert_near(narrow(x), mixed(x).astype(np.float64))


def test_inputs_and_outputs_are_of_the_models_type():
    model = model_of(chain())
    (output,) = model.outputs.values()
    assert model.inputs["x"].dtype == output.dtype == NARROW
    with pytest.raises(Exception, match="float32 of shape"):
        model(np.zeros((1, 32, 32, 32), np.float32))
    assert model(np.zeros((1, 32, 32, 32), NARROW)).dtype == NARROW


def test_a_nan_and_an_infinity_stay_what_they_are():
    model, x = model_of(chain()), np.zeros((1, 32, 32, 32), NARROW)
    x[0, 0, 0, 0], x[0, 1, 31, 31] = np.nan, np.inf
    y = model(x).astype(np.float32)
    assert np.isnan(y[0, :, :2, :2]).all()
    assert not np.isfinite(y[0, :, 30:, 30:]).all()
    assert np.isfinite(y[0, :, 6:26, 6:26]).all()


def test_saved_networks_are_the_same(tmp_path):
    model, x = model_of(chain()), np.random.default_rng(3).standard_normal((1, 32, 32, 32)).astype(NARROW)
    model.save(tmp_path / "network.pysim")
    again = type(model).of_file(tmp_path / "network.pysim", *machine_and_threads(model))
    np.testing.assert_array_equal(again(x), model(x))


def machine_and_threads(model):
    return host.runnable("host"), model.threads


def test_conversions_to_bfloat16_round():
    """Of float32 between two conversions, of integers, and as a type that another value has."""
    casts = [
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.BFLOAT16),
        helper.make_node("Cast", ["h"], ["y"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["n"], ["m"], to=TensorProto.BFLOAT16),
        helper.make_node("Cast", ["m"], ["z"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "x"], ["twice"]),
        helper.make_node("CastLike", ["twice", "m"], ["like"]),
        helper.make_node("Cast", ["like"], ["w"], to=TensorProto.FLOAT),
    ]
    ins = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1000]), helper.make_tensor_value_info("n", TensorProto.INT64, [1000])]
    outs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1000]) for name in ("y", "z", "w")]
    proto = helper.make_model(helper.make_graph(casts, "casts", ins, outs), opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    x, n = np.random.default_rng(5).standard_normal(1000).astype(np.float32), np.arange(1000) + 200
    for found, exact in zip(model_of(proto).results([x, n]), (x, n, 2 * x), strict=True):
        wanted = exact.astype(np.float32).astype(NARROW).astype(np.float32)
        assert (wanted != exact).any()
        assert np.array_equal(found, wanted)


def block_of_a_transformer(tokens=50, size=64):
    """Attention of two heads and a GELU by erf, as exporters write them, of bfloat16: so with rounded constants."""
    random = np.random.default_rng(6)

    def number(name, *shape, scale=1.0):
        return numpy_helper.from_array((random.standard_normal(shape) * scale).astype(NARROW), name)

    def one(name, value):
        return numpy_helper.from_array(np.asarray(value, np.float32).astype(NARROW), name)

    steps, weights = list[onnx.NodeProto](), [one("half", 0.5), one("unit", 1), one("root", np.sqrt(2)), one("alpha", 1 / np.sqrt(32))]
    weights.append(numpy_helper.from_array(np.array([1, tokens, 2, size // 2]), "heads"))
    weights.append(numpy_helper.from_array(np.array([1, tokens, size]), "joined"))
    for name in "qkv":
        weights.append(number(f"w{name}", size, size, scale=0.2))
        steps.append(helper.make_node("MatMul", ["x", f"w{name}"], [f"{name}0"]))
        steps.append(helper.make_node("Reshape", [f"{name}0", "heads"], [f"{name}1"]))
        steps.append(helper.make_node("Transpose", [f"{name}1"], [name], perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]))
    for op, inputs, output, more in (
        ("Mul", ["q", "alpha"], "scaled", {}), ("MatMul", ["scaled", "k"], "scores", {}), ("Softmax", ["scores"], "shares", {"axis": -1}),
        ("MatMul", ["shares", "v"], "heads0", {}), ("Transpose", ["heads0"], "heads1", {"perm": [0, 2, 1, 3]}),
        ("Reshape", ["heads1", "joined"], "z", {}), ("Div", ["z", "root"], "z1", {}), ("Erf", ["z1"], "z2", {}),
        ("Add", ["z2", "unit"], "z3", {}), ("Mul", ["z", "z3"], "z4", {}), ("Mul", ["z4", "half"], "y", {}),
    ):  # fmt: skip
        steps.append(helper.make_node(op, inputs, [output], **more))
    ends = [helper.make_tensor_value_info(name, TensorProto.BFLOAT16, [1, tokens, size]) for name in "xy"]
    return helper.make_model(helper.make_graph(steps, "block", ends[:1], ends[1:], weights), opset_imports=[helper.make_opsetid("", 22)])


def test_attention_and_gelu_of_bfloat16_are_one_operator_each(tmp_path):
    proto, x = block_of_a_transformer(), np.random.default_rng(7).standard_normal((1, 50, 64)).astype(NARROW)
    model, wide = model_of(proto), onnx.ModelProto.FromString(proto.SerializeToString())
    attention = [layer.node for layer in model.plan.layers if layer.node.op == "Attention"]
    assert len(attention) == 1
    assert attention[0].attributes.get("narrow", False) == computes_narrow(host.runnable("host"))
    assert not any(layer.node.op in ("Erf", "Softmax") for layer in model.plan.layers)
    for tensor in wide.graph.initializer:
        if tensor.data_type == TensorProto.BFLOAT16:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    for value in (*wide.graph.input, *wide.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    assert_near(model(x), by_onnxruntime(wide.SerializeToString(), x.astype(np.float32)), steps=4)
    model.save(tmp_path / "network.pysim")
    again = type(model).of_file(tmp_path / "network.pysim", *machine_and_threads(model))
    np.testing.assert_array_equal(again(x), model(x))
