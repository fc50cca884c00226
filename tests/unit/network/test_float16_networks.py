# SPDX-License-Identifier: Apache-2.0
"""Networks of float16 are computed in float32 by the library's kernels, and their ends, conversions and bounds are of float16."""

import numpy as np
import onnx
import pytest
from graphs import random_model
from onnx import TensorProto, helper, numpy_helper
from onnx_models import by_onnxruntime, given, model_of

from pysim.calibration import host

STEP = 2.0**-11  # half the largest distance of two neighbours, over the smaller


def with_halves(proto, kind=np.float16):
    """The model of float32 in float16; of float32 its weights alone are numbers of float16."""
    made, element = onnx.ModelProto.FromString(proto.SerializeToString()), helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    tensors = [*made.graph.initializer, *(one.t for node in made.graph.node for one in node.attribute if one.HasField("t"))]
    for tensor in tensors:
        if tensor.data_type == TensorProto.FLOAT:
            values = numpy_helper.to_array(tensor).astype(np.float16).astype(kind)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    for value in (*made.graph.input, *made.graph.output, *made.graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = element
    return made


def one_node(op, inputs, outputs=("y",), constants=(), result=None, opset=21, **how):
    """A model of one operator. `inputs`: arrays by name, `constants` among them."""
    ends = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in inputs.items() if name and name not in constants]  # fmt: skip
    held = [numpy_helper.from_array(x, name) for name, x in inputs.items() if name and name in constants]
    node = helper.make_node(op, [*inputs], [*outputs], name="it", **how)
    results = [helper.make_tensor_value_info(name, result or TensorProto.FLOAT16, None) for name in outputs]
    return helper.make_model(helper.make_graph([node], "one", ends, results, held), opset_imports=[helper.make_opsetid("", opset)])


@pytest.mark.parametrize("seed", range(12))
def test_random_networks_are_those_of_float32_rounded_once(seed):
    proto = random_model(seed, 1 + seed % 3)
    x = given(proto, seed).astype(np.float16)
    model, wanted = model_of(with_halves(proto)), by_onnxruntime(with_halves(proto, np.float32).SerializeToString(), x.astype(np.float32))
    assert not any("reference" in layer.node.attributes for layer in model.plan.layers)  # which NumPy would run
    found = model(x)
    for y, z in zip(found if isinstance(found, tuple) else [found], wanted, strict=True):
        assert y.dtype == np.float16
        assert np.abs(y.astype(np.float64) - z).max() <= 1.01 * STEP * max(np.abs(z).max(), 1e-3)


@pytest.mark.parametrize("to", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_a_conversion_at_an_end_is_done_once(to):
    x = np.array([1.0004883, -65519, 65520, 6e-8, np.inf, np.nan], np.float32)
    with np.errstate(over="ignore"):
        given = x.astype(np.float16) if to == TensorProto.FLOAT else x
        wanted = given.astype(helper.tensor_dtype_to_np_dtype(to))
    model = model_of(one_node("Cast", {"x": given}, to=to, result=to))
    assert [layer.node.op for layer in model.plan.layers] == ["View"]
    found = model(given)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)
    found[:] = 0
    np.testing.assert_array_equal(model(given), wanted)  # memory of its own


def test_inputs_and_outputs_are_halves_also_of_a_saved_network(tmp_path):
    proto = random_model(0, 1)
    model, x = model_of(with_halves(proto)), given(proto, 0).astype(np.float16)
    assert {one.dtype for one in (*model.inputs.values(), *model.outputs.values())} == {np.dtype(np.float16)}
    with pytest.raises(Exception, match="is float32 of shape"):
        model(x.astype(np.float32))
    model.save(tmp_path / "network.pysim")
    again = type(model).of_file(tmp_path / "network.pysim", host.runnable("host"), model.threads)
    np.testing.assert_array_equal(again(x), model(x))
    np.testing.assert_array_equal(model(x[..., ::-1]), model(x[..., ::-1].copy()))  # an input that is not contiguous


def test_results_beyond_the_largest_half_are_infinite_and_bounds_are_halves():
    x = np.array([40000, -40000, np.inf, 2], np.float16)
    assert model_of(one_node("Add", {"a": x, "b": x}))(x, x).tolist() == [np.inf, -np.inf, np.inf, 4]
    low = np.array(-2, np.float16)
    assert model_of(one_node("Clip", {"x": x, "low": low}, constants=["low"]))(x).tolist() == [40000, -2, 65504, 2]
    assert model_of(one_node("Clip", {"x": x, "": low, "high": -low}, constants=["high"]))(x).tolist()[:2] == [2, -40000]


def test_conversions_to_halves_round_and_others_keep_the_half():
    x = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    there = helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16)
    back = helper.make_node("Cast", ["h"], ["y"], to=TensorProto.FLOAT)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1000]) for name in "xy"]
    proto = helper.make_model(helper.make_graph([there, back], "casts", ends[:1], ends[1:]), opset_imports=[helper.make_opsetid("", 19)])
    assert (x.astype(np.float16) != x).any()
    np.testing.assert_array_equal(model_of(proto)(x), x.astype(np.float16).astype(np.float32))


def test_integers_are_those_of_rounded_halves():
    x = np.array([2047, 2049, -2051, 0.3], np.float16)
    steps = [helper.make_node("Add", ["x", "one"], ["z"]), helper.make_node("Cast", ["z"], ["y"], to=TensorProto.INT32)]
    held = [numpy_helper.from_array(np.array(2, np.float16), "one")]
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [4]), helper.make_tensor_value_info("y", TensorProto.INT32, [4])]
    proto = helper.make_model(helper.make_graph(steps, "sums", ends[:1], ends[1:], held), opset_imports=[helper.make_opsetid("", 19)])
    np.testing.assert_array_equal(model_of(proto)(x), (x + np.float16(2)).astype(np.int32))


def test_a_group_norm_of_large_halves_is_exact_to_a_rounding():
    x = (np.random.default_rng(2).standard_normal((2, 4, 3, 5)) * 100 + 3000).astype(np.float16)
    numbers = {"x": x, "s": np.ones(4, np.float16), "b": np.zeros(4, np.float16)}
    y = model_of(one_node("GroupNormalization", numbers, constants="sb", num_groups=2))(x)
    rows = x.astype(np.float64).reshape(2, 2, -1)
    wanted = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 1e-5)
    assert np.abs(y.reshape(rows.shape) - wanted).max() <= STEP * np.abs(wanted).max() + 1e-4


def test_a_gelu_with_rounded_constants_is_one_operator():
    names, steps = {"root": np.sqrt(2), "one": 1, "half": 0.5}, []
    for op, inputs, output in (("Div", ["x", "root"], "a"), ("Erf", ["a"], "b"), ("Add", ["b", "one"], "c"), ("Mul", ["x", "c"], "d"),
                               ("Mul", ["d", "half"], "y")):  # fmt: skip
        steps.append(helper.make_node(op, inputs, [output]))
    held = [numpy_helper.from_array(np.array(x, np.float16), name) for name, x in names.items()]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [64, 64]) for name in "xy"]
    proto = helper.make_model(helper.make_graph(steps, "gelu", ends[:1], ends[1:], held), opset_imports=[helper.make_opsetid("", 17)])
    assert "Gelu" in [layer.node.op for layer in model_of(proto).plan.layers]
