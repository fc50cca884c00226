# SPDX-License-Identifier: Apache-2.0
"""Operators that have NumPy forms of their own give what ONNX Runtime or the onnx package gives; powers and GELUs become what runs fast."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops.op_topk import topk_sorted_implementation

import pysim
from pysim.errors import ProblemError
from pysim.network.numpy_ops.selecting import top_k, widened, with_places
from pysim.runtime.steps import Chain, Step


def model_of(tmp_path, nodes, inputs, outputs, held=()):
    value = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for name, x in inputs.items()]
    made = [onnx.ValueInfoProto(name=name) for name in outputs]
    constants = [onnx.numpy_helper.from_array(np.asarray(x), name) for name, x in dict(held).items()]
    proto = helper.make_model(
        helper.make_graph(nodes, "g", value, made, constants), opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    onnx.save(proto, tmp_path / "one.onnx")
    return pysim.load(tmp_path / "one.onnx"), ReferenceEvaluator(proto)


@pytest.mark.parametrize("seed", range(40))
def test_the_largest_are_the_first_of_equal_ones_in_order(seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(-4, 4, (3, int(rng.integers(1, 40)), 2)).astype(rng.choice([np.float32, np.int64, np.float16]))
    if seed % 4 == 0 and x.dtype.kind == "f":
        x[rng.random(x.shape) < 0.1] = np.nan
    axis, largest = int(rng.integers(3)), bool(rng.integers(2))
    k = int(rng.integers(0, x.shape[axis] + 1))
    for found, wanted in zip(top_k(x, k, axis, largest), topk_sorted_implementation(x, k, axis, largest), strict=True):
        assert found.shape == wanted.shape and np.array_equal(found, wanted, equal_nan=found.dtype.kind == "f")


def test_half_numbers_are_widened_exactly():
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    assert (widened(x).view(np.uint32) == x.astype(np.float32).view(np.uint32)).all() or np.array_equal(
        widened(x), x.astype(np.float32), equal_nan=True
    )


@pytest.mark.parametrize("by_columns", [False, True])
def test_the_place_of_a_maximum_is_the_first_of_equal_ones(by_columns):
    x = np.array([[[[1, 3, 3], [3, 0, -np.inf], [-np.inf, -np.inf, np.nan]]]], np.float32)
    y, at = with_places(x, [2, 2], [1, 1], [1, 1], [0, 0, 0, 0], [2, 2], by_columns)
    assert np.array_equal(y, [[[[3, 3], [3, np.nan]]]], equal_nan=True)
    assert at.tolist() == ([[[[3, 3], [1, 8]]]] if by_columns else [[[[1, 1], [3, 8]]]])


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("flags", [{}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_running_sums_are_the_packages(tmp_path, axis, flags, dtype):
    x = np.random.default_rng(0).integers(-9, 9, (5, 7, 40)).astype(dtype)
    ours, theirs = model_of(tmp_path, [helper.make_node("CumSum", ["x", "a"], ["y"], **flags)], {"x": x}, ["y"], {"a": np.int64(axis)})
    assert (ours(x) == theirs.run(None, {"x": x})[0]).all()


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max"])
def test_scattered_elements_are_the_packages(tmp_path, reduction):
    rng = np.random.default_rng(1)
    x, updates = (rng.integers(1, 9, shape).astype(np.float32) for shape in ((6, 9), (4, 5)))
    indices = np.argsort(rng.random((4, 9)), axis=1)[:, :5].astype(np.int64)
    node = helper.make_node("ScatterElements", ["x", "i", "u"], ["y"], axis=1, reduction=reduction)
    given = {"x": x, "i": indices - 9 * (indices % 2), "u": updates}
    ours, theirs = model_of(tmp_path, [node], given, ["y"])
    assert (ours(*given.values()) == theirs.run(None, given)[0]).all()


@pytest.mark.parametrize("reduction", ["none", "add"])
def test_scattered_rows_are_the_packages(tmp_path, reduction):
    rng = np.random.default_rng(2)
    given = {
        "x": rng.integers(1, 9, (6, 9, 3)).astype(np.float32), "i": np.array([[4], [-1], [0]]),
        "u": rng.integers(1, 9, (3, 9, 3)).astype(np.float32),
    }  # fmt: skip
    before = given["x"].copy()
    ours, theirs = model_of(tmp_path, [helper.make_node("ScatterND", ["x", "i", "u"], ["y"], reduction=reduction)], given, ["y"])
    for _ in range(2):
        assert (ours(*given.values()) == theirs.run(None, given)[0]).all()
        assert (given["x"] == before).all()
    given["i"] = np.array([[4], [6], [0]])
    with pytest.raises(ProblemError, match=r"ScatterND .*cannot be run: its definition fails: index 6 is out of bounds"):
        ours(*given.values())


@pytest.mark.parametrize("axis", [-1, 0, 1, 2])
@pytest.mark.parametrize("kind", [np.int64, np.float32])
def test_one_hot_is_onnxruntimes_also_of_indices_beyond_the_depth(tmp_path, axis, kind):
    given = {"i": np.array([[0, 4, -1, -5, 5, -6]] * 2, np.int64), "v": np.array([2, 7], kind)}
    node = helper.make_node("OneHot", ["i", "d", "v"], ["y"], axis=axis)
    ours, _ = model_of(tmp_path, [node], given, ["y"], {"d": np.array(5)})
    theirs = pytest.importorskip("onnxruntime").InferenceSession(tmp_path / "one.onnx", providers=["CPUExecutionProvider"])
    found, right = ours(*given.values()), theirs.run(None, given)[0]
    assert found.dtype == right.dtype and found.shape == right.shape and (found == right).all()


@pytest.mark.parametrize("exponent", [2, 3, 4])
def test_small_whole_powers_are_products(tmp_path, exponent):
    x = np.array([-3, -0.5, 0, 2, np.inf, -np.inf, np.nan], np.float32)
    ours, _ = model_of(tmp_path, [helper.make_node("Pow", ["x", "e"], ["y"])], {"x": x}, ["y"], {"e": np.float32(exponent)})
    assert {layer.node.op for layer in ours.plan.layers} == {"Mul"}
    assert np.array_equal(ours(x), x**exponent, equal_nan=True)


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("cube", ["Pow", "Mul"])
def test_gelu_by_tanh_is_one_operator(tmp_path, shuffled, cube):
    make, x = helper.make_node, np.random.default_rng(2).standard_normal((4, 33)).astype(np.float32) * 3
    nodes = [make("Pow", ["x", "three"], ["c"])] if cube == "Pow" else [make("Mul", ["x", "x"], ["s"]), make("Mul", ["s", "x"], ["c"])]
    nodes += [
        make("Mul", ["small", "c"] if shuffled else ["c", "small"], ["d"]), make("Add", ["d", "x"] if shuffled else ["x", "d"], ["e"]),
        make("Mul", ["e", "root"], ["f"]), make("Tanh", ["f"], ["g"]), make("Add", ["g", "one"], ["h"]),
    ]  # fmt: skip
    if shuffled:
        nodes += [make("Mul", ["x", "h"], ["i"]), make("Mul", ["half", "i"], ["y"])]
    else:
        nodes += [make("Mul", ["x", "half"], ["i"]), make("Mul", ["i", "h"], ["y"])]
    numbers = {"three": 3, "small": 0.044715, "root": np.sqrt(2 / np.pi), "one": 1, "half": 0.5}
    ours, theirs = model_of(tmp_path, nodes, {"x": x}, ["y"], {name: np.float32(of) for name, of in numbers.items()})
    assert [(layer.node.op, layer.node.attributes.get("approximate")) for layer in ours.plan.layers] == [("Gelu", b"tanh")]
    assert np.allclose(ours(x), theirs.run(None, {"x": x})[0], rtol=1e-5, atol=1e-6)
    numbers["small"] = 0.05
    ours, theirs = model_of(tmp_path, nodes, {"x": x}, ["y"], {name: np.float32(of) for name, of in numbers.items()})
    assert "Gelu" not in [layer.node.op for layer in ours.plan.layers]  # another function
    assert np.allclose(ours(x), theirs.run(None, {"x": x})[0], rtol=1e-5, atol=1e-6)


def test_products_of_halves_are_rounded_once(tmp_path):
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((5, 700), (700, 9)))
    ours, _ = model_of(tmp_path, [helper.make_node("MatMul", ["a", "b"], ["y"])], {"a": a, "b": b}, ["y"])
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    assert (np.abs(ours(a, b) - wanted) <= np.spacing(np.abs(wanted).astype(np.float16)).astype(np.float64) * 0.501 + 1e-4).all()
    assert helper.np_dtype_to_tensor_dtype(ours(a, b).dtype) == TensorProto.FLOAT16


_NUMBERS = np.array([[np.nan, -np.inf, -0.0], [0.25, 3, np.inf]], np.float32)
_PLACES = np.arange(6).reshape(2, 3) - (1 << 62)


@pytest.mark.parametrize(
    ("op", "x", "held"),
    [
        ("Tile", _NUMBERS, [np.array([2, 3])]),
        ("Tile", _PLACES, [np.array([1, 2])]),
        ("Expand", _PLACES[:, :1], [np.array([2, 5])]),
        ("Gather", _PLACES, [np.array([1, -2, 0])]),
        ("Gather", _PLACES.astype(np.int32), [np.array([[1], [0]])]),
        ("Reciprocal", _NUMBERS, []),
        ("Min", _NUMBERS, [np.float32(0.5)]),
        ("Max", _NUMBERS, [np.array([0.5], np.float32)]),
        ("HardSigmoid", _NUMBERS, []),
    ],
)
def test_what_moves_or_bounds_numbers_is_native(op, x, held, tmp_path):
    names = ["x", *(f"c{at}" for at in range(len(held)))]
    model, reference = model_of(tmp_path, [helper.make_node(op, names, ["y"])], {"x": x}, ["y"], dict(zip(names[1:], held, strict=True)))
    (right,) = reference.run(None, {"x": x})
    y = model(x)
    assert y.dtype == right.dtype and np.allclose(y, right, rtol=2e-7, atol=0, equal_nan=True) and np.array_equal(y[y == 0], right[y == 0])
    assert not any("reference" in layer.node.attributes for layer in model.plan.layers)
    assert all(isinstance(call, Chain | Step) for call in model._idle[-1].calls)


@pytest.mark.parametrize(
    ("op", "shape", "held"),
    [("Tile", (4, 2, 2, 3), [1, 2, 2, 2]), ("Tile", (2, 3, 2, 3, 2), [2, 3, 2, 3, 2]), ("Expand", (1, 2, 1, 2, 1, 2, 1, 2, 1), [2] * 9)],
)
def test_what_has_too_many_axes_for_a_copy_is_computed(op, shape, held, tmp_path):
    """Such a Tile raised a KeyError."""
    x = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    model, reference = model_of(tmp_path, [helper.make_node(op, ["x", "c"], ["y"])], {"x": x}, ["y"], {"c": np.array(held)})
    assert np.array_equal(model(x), reference.run(None, {"x": x})[0])
