# SPDX-License-Identifier: Apache-2.0
"""ONNX's operators on arrays of any shape: equal to ONNX Runtime, natively in one call where the values are floating-point numbers."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from graphs import helper, numpy_helper
from graphs_attention import random_attention
from onnx_models import assert_close, by_onnxruntime, model_of, several
from onnx_models import given as random_input

from pysim.calibration import host
from pysim.errors import OperandError, ProblemError
from pysim.network.execution import Network
from pysim.onnx import reading
from pysim.runtime.steps import Chain

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")


def exported(nodes, shape, constants=(), opset=17):
    """A model of nodes from "x" to "y", of which "a" is x again: a value of the arena, which a chain computes on."""
    kept = [numpy_helper.from_array(np.asarray(array), name) for name, array in dict(constants).items()]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, of) for name, of in (("x", shape), ("y", None))]
    first = helper.make_node("Neg", ["x"], ["a"])
    graph = helper.make_graph([first, *nodes], "one", ends[:1], ends[1:], kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def node(op, *inputs, to="y", **attributes):
    return helper.make_node(op, list(inputs), [to], name="it" if to == "y" else to, **attributes)


def floats(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def assert_native(proto, x, strange=False, alike=2e-5):
    """The model's results are ONNX Runtime's, not a number where that says so, by nothing but its first node and one native call."""
    content, model = proto.SerializeToString(), model_of(proto)
    for given in (x, with_strange(x)) if strange else (x,):
        wanted = by_onnxruntime(content, given)
        found = several(model(given))
        for y, right in zip(found, wanted, strict=True):
            assert y.shape == right.shape and y.dtype == right.dtype
            finite = np.isfinite(right)
            assert (np.isfinite(y) == finite).all()
            assert np.abs(y[finite] - right[finite]).max(initial=0) <= alike * np.abs(right[finite]).max(initial=1e-6)
    assert sum(isinstance(call, Chain) for call in model._idle[-1].calls) == 1 and len(model._idle[-1].calls) == 2
    return model


def with_strange(x):
    x = x.copy()
    places = np.random.default_rng(9).integers(0, x.size, 3)
    x.reshape(-1)[places] = np.nan, np.inf, -np.inf
    return x


# 200 graphs; PYSIM_GRAPHS=5000 for a long run
@pytest.mark.parametrize("first", range(0, int(os.environ.get("PYSIM_GRAPHS", "200")), 20))
def test_random_networks_with_attention_equal_onnxruntime(first):
    for seed in range(first, first + 20):
        proto = random_attention(seed, batch=1 + seed % 3)
        content, x = proto.SerializeToString(), random_input(proto, seed)
        before, model, wanted = x.copy(), model_of(proto), by_onnxruntime(content, x)
        for _ in range(2):  # what a first call left behind does not matter
            assert_close(model(x), wanted, 1e-4)
        assert (x == before).all()


def test_several_threads_may_call_a_network_with_attention_at_once():
    proto = random_attention(1)
    content, inputs = proto.SerializeToString(), [random_input(proto, seed) for seed in range(8)]
    model = model_of(proto)
    assert [layer.node.op for layer in model.plan.layers].count("Attention")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda at: model(inputs[at % 8]), range(80)))
    for at, y in enumerate(found):
        assert (y == found[at % 8]).all()
    for x, y in zip(inputs, found, strict=False):
        assert_close(y, by_onnxruntime(content, x), 1e-4)


def test_without_memory_a_call_says_so_and_the_next_one_runs(monkeypatch):
    proto = random_attention(1)
    x, model = random_input(proto, 0), model_of(proto)

    def refuses(*shape, **how):
        raise MemoryError

    with monkeypatch.context() as context:
        context.setattr("pysim.runtime.cpu.np.empty", refuses)
        with pytest.raises(OperandError, match="cannot allocate"):
            model(x)
    assert_close(model(x), by_onnxruntime(proto.SerializeToString(), x), 1e-4)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize(
    ("shape", "other"),
    [((2, 3, 4, 5), (4, 1)), ((2, 3, 1, 5), (1, 3, 4, 1)), ((7,), (3, 1)), ((1,), (1,)), ((3, 1, 6), (2, 3, 5, 1)), ((2, 5), (1, 1))],
    ids=str,
)
def test_pairs_are_broadcast(op, shape, other):
    for inputs in (("a", "c"), ("c", "a")):
        assert_native(exported([node(op, *inputs)], shape, {"c": floats(1, *other)}), floats(2, *shape), strange=True)


@pytest.mark.parametrize(("shape", "axis"), [((2, 3, 17), -1), ((4, 5), 1), ((2, 3, 1), 2), ((1, 2, 3, 49), 3)], ids=str)
@pytest.mark.parametrize("opset", [11, 13])
def test_softmax_of_the_last_axis(shape, axis, opset):
    proto = exported([node("Softmax", "a", axis=axis)], shape, opset=opset)
    assert_native(proto, 5 * floats(1, *shape))
    x = with_strange(floats(1, *shape))
    content = proto.SerializeToString()
    y, right = model_of(proto)(x), by_onnxruntime(content, x)[0]
    rows = np.isfinite(right).all(-1)
    assert np.abs(y[rows] - right[rows]).max(initial=0) <= 2e-6 and (np.isfinite(y).all(-1) == rows).all()


@pytest.mark.parametrize(("shape", "axis"), [((2, 3, 17), 1), ((4, 5), 0), ((2, 21, 5, 7), 1), ((1, 2, 1, 49), 1)], ids=str)
def test_softmax_of_any_axis(shape, axis):
    assert_native(exported([node("Softmax", "a", axis=axis)], shape), 5 * floats(1, *shape))


@pytest.mark.parametrize("how", [{"size": 5}, {"size": 1, "alpha": 2.0}, {"size": 3, "alpha": 0.5, "beta": 0.6, "bias": 2.0}], ids=str)
def test_neighbouring_channels(how):
    assert_native(exported([node("LRN", "a", **how)], (2, 7, 5, 6)), 3 * floats(1, 2, 7, 5, 6))


def test_squares_are_products():
    model = assert_native(exported([node("Pow", "a", "two")], (2, 3, 5), {"two": np.float32(2)}), floats(1, 2, 3, 5))
    assert "Mul" in {layer.node.op for layer in model.plan.layers}


@pytest.mark.parametrize(("shape", "axis"), [((2, 3, 17), -1), ((2, 3, 4, 5), 2), ((4, 33), 1), ((3, 1), -1)], ids=str)
@pytest.mark.parametrize("shift", [True, False])
def test_layer_norms_of_the_last_axes(shape, axis, shift):
    constants = {"s": floats(1, *shape[axis:]), "b": floats(2, *shape[axis:])}
    proto = exported([node("LayerNormalization", "a", "s", *["b"] * shift, axis=axis, epsilon=1e-3)], shape, constants)
    assert_native(proto, floats(3, *shape) + 2, strange=shape[-1] > 1, alike=1e-4)


@pytest.mark.parametrize("square", ["Pow", "Mul"])
@pytest.mark.parametrize("opset", [13, 18])
def test_a_layer_norm_in_parts_is_one(square, opset):
    """As exporters write it before opset 17; from 18 on axes are an operand. And where somebody else reads a part it is none."""
    constants = {"s": floats(1, 24), "b": floats(2, 24), "two": np.float32(2), "e": np.float32(1e-5), "axes": np.array([-1])}
    mean = {"axes": [-1]} if opset < 18 else {}
    axes = [] if opset < 18 else ["axes"]
    nodes = [
        node("ReduceMean", "a", *axes, to="m", **mean), node("Sub", "a", "m", to="d"),
        node("Pow", "d", "two", to="q") if square == "Pow" else node("Mul", "d", "d", to="q"),
        node("ReduceMean", "q", *axes, to="v", **mean), node("Add", "v", "e", to="w"), node("Sqrt", "w", to="r"),
        node("Div", "d", "r", to="n"), node("Mul", "s", "n", to="t"), node("Add", "t", "b"),
    ]  # fmt: skip
    model = assert_native(exported(nodes, (3, 5, 24), constants, opset), floats(3, 3, 5, 24))
    assert [layer.node.op for layer in model.plan.layers] == ["Neg", "LayerNormalization"]
    for part in "dvn":
        more = [*nodes[:-1], node("Add", "t", "b", to="z"), node("Add", "z", part)]
        proto = exported(more, (3, 5, 24), constants, opset)
        x = floats(3, 3, 5, 24)
        assert np.abs(model_of(proto)(x) - by_onnxruntime(proto.SerializeToString(), x)[0]).max() < 1e-4


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(
    "rule", ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric", "tf_half_pixel_for_nn"]
)
@pytest.mark.parametrize(
    ("sizes", "to"), [((5, 6), (10, 18)), ((9, 8), (4, 3)), ((4, 8), (1, 1)), ((1, 1), (3, 5)), ((6, 5), (6, 8))], ids=str
)
def test_resizes_of_any_rule(mode, rule, sizes, to):
    if rule == "tf_half_pixel_for_nn" and mode == "linear":
        pytest.skip("is a rule of nearest pixels")
    how = {"mode": mode, "coordinate_transformation_mode": rule}
    opset = 19 if rule == "half_pixel_symmetric" else 13
    x = floats(1, 2, 3, *sizes)
    for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil") if mode == "nearest" else ("round_prefer_floor",):
        rounded = how | {"nearest_mode": rounding}
        proto = exported([node("Resize", "a", "", "", "to", **rounded)], x.shape, {"to": np.array([2, 3, *to])}, opset)
        assert_native(proto, x, strange=mode == "nearest")
        if rule == "align_corners":  # ONNX's tests have the length before it is rounded, ONNX Runtime has the rounded one
            continue
        scales = np.array([1, 1, *(b / a + 1e-3 for a, b in zip(sizes, to, strict=True))], np.float32)
        proto = exported([node("Resize", "a", "", "scales", **rounded)], x.shape, {"scales": scales}, opset)
        assert_native(proto, x, strange=mode == "nearest")


@pytest.mark.parametrize("opset", [9, 10])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resizes_of_early_opsets_have_scales(opset, mode):
    op, x = "Upsample" if opset == 9 else "Resize", floats(1, 1, 2, 4, 5)
    assert_native(exported([node(op, "a", "s", mode=mode)], x.shape, {"s": np.array([1, 1, 2, 3], np.float32)}, opset), x)


@pytest.mark.parametrize("rule", ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize("to", [(9, 9), (5, 3), (11, 1), (2, 12)], ids=str)
def test_cubic_resizes_are_four_rows_each_times_its_share(rule, to):
    x = floats(1, 2, 3, 5, 5)
    how = {"mode": "cubic", "cubic_coeff_a": -0.5, "coordinate_transformation_mode": rule}
    assert_native(exported([node("Resize", "a", "", "", "to", **how)], x.shape, {"to": np.array([2, 3, *to])}), x)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
@pytest.mark.parametrize("pads", [(0, 1, 2, 0, 0, 3), (0, 0, 0, 0, 0, 0), (0, 2, 0, 0, 0, 4), (0, -1, 2, 0, 2, -1)], ids=str)
def test_pads_of_any_mode(mode, pads):
    if min(pads) < 0 and mode != "constant":
        pytest.skip("ONNX Runtime cuts before it mirrors; what is meant is not said")
    x = floats(1, 2, 5, 6)
    proto = exported([node("Pad", "a", "pads", mode=mode)], x.shape, {"pads": np.array(pads)})
    if any(pads):
        assert_native(proto, x, strange=True)
    else:
        assert (model_of(proto)(x) == -x).all()


def test_a_mirror_smaller_than_its_pad_is_named_before_anything_runs():
    proto = exported([node("Pad", "a", "pads", mode="reflect")], (2, 3), {"pads": np.array([0, 3, 0, 0])})
    with pytest.raises(ProblemError, match='Pad "it" cannot be run: it mirrors 3 of an axis of 3'):
        model_of(proto)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("indices", [np.array(1), np.array(-1), np.array([0, -2, 1, 1]), np.array([[0, 1], [1, -1]])], ids=str)
def test_gathers_of_constant_indices(axis, indices):
    x = floats(1, 3, 4, 5)
    nodes = [node("Gather", "a", "i", to="g", axis=axis), node("Tanh", "g")]
    assert_native(exported(nodes, x.shape, {"i": indices}), x, strange=True)


def test_an_index_that_is_none_is_named():
    """Before anything runs where it is constant; else in the call, and nothing else is harmed."""
    with pytest.raises(ProblemError, match='Gather "it": the index 3 is none of an axis of 3'):
        model_of(exported([node("Gather", "a", "i")], (3, 4), {"i": np.array([0, 3])}))
    table = numpy_helper.from_array(floats(1, 6, 4), "t")
    ends = [helper.make_tensor_value_info("x", onnx.TensorProto.INT64, (2, 3)), helper.make_tensor_value_info("y", 1, (2, 3, 4))]
    graph = helper.make_graph([node("Gather", "t", "x")], "rows", ends[:1], ends[1:], [table])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    content, x = proto.SerializeToString(), np.array([[0, -6, 5], [2, -1, 1]])
    model = model_of(proto)
    assert (model(x) == by_onnxruntime(content, x)[0]).all()
    with pytest.raises(Exception, match="index 0 is 6; there are 6 rows"):
        model(np.full((2, 3), 6))
    assert (model(x) == by_onnxruntime(content, x)[0]).all()


@pytest.mark.parametrize(("shape", "to"), [((3, 1), (2, 3, 4)), ((1,), (5, 6)), ((2, 1, 3, 1), (1, 4, 1, 5)), ((4,), (4,))], ids=str)
def test_expanded_arrays(shape, to):
    x = floats(1, *shape)
    assert_native(exported([node("Expand", "a", "to", to="e"), node("Tanh", "e")], shape, {"to": np.array(to)}), x, strange=True)


def test_a_computed_constant_is_stored_in_rows():
    """As biases of relative positions are transposed: otherwise the addition would read them element by element."""
    nodes = [node("Transpose", "c", to="t", perm=(2, 0, 1)), node("Abs", "t", to="u"), node("Add", "a", "u")]
    model = assert_native(exported(nodes, (2, 3, 4, 5), {"c": floats(1, 4, 5, 3)}), floats(2, 2, 3, 4, 5))
    assert all(array.flags.c_contiguous for array in model._graph.constants.values())


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axes", [[-1], [1, 2], [0]])
def test_lengths(keep, axes):
    x = floats(1, 3, 4, 5)
    for opset in (13, 18):
        how = {"axes": axes} if opset == 13 else {}
        proto = exported([node("ReduceL2", "a", *["axes"] * (opset == 18), keepdims=keep, **how)], x.shape, {"axes": np.array(axes)}, opset)
        if axes == [0]:
            assert np.abs(model_of(proto)(x) - by_onnxruntime(proto.SerializeToString(), x)[0]).max() < 1e-5
        else:
            assert_native(proto, x, strange=True)


@pytest.mark.parametrize(("shape", "axis"), [((2, 3, 17), -1), ((1, 2, 1000), 2), ((2, 21, 5, 7), 1)], ids=str)
def test_logarithms_of_softmax(shape, axis):
    assert_native(exported([node("LogSoftmax", "a", axis=axis)], shape), 30 * floats(5, *shape))


@pytest.mark.parametrize("mask", [(5, 33), (3, 1, 1), (33,), (2, 3, 5, 33)], ids=str)
def test_a_choice_between_an_array_and_a_number(mask):
    constants = {"m": np.random.default_rng(1).random(mask) < 0.5, "low": np.float32(-1e9)}
    assert_native(exported([node("Where", "m", "a", "low")], (2, 3, 5, 33), constants), floats(6, 2, 3, 5, 33), strange=True)
    assert_native(exported([node("Where", "m", "low", "a")], (2, 3, 5, 33), constants), floats(6, 2, 3, 5, 33), strange=True)


@pytest.mark.parametrize("diagonal", [-2, 0, 3, 50])
@pytest.mark.parametrize("upper", [0, 1])
def test_triangles(diagonal, upper):
    assert_native(exported([node("Trilu", "a", "k", upper=upper)], (2, 7, 9), {"k": np.int64(diagonal)}), floats(7, 2, 7, 9), strange=True)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_elements_by_an_index_each(axis):
    shape = tuple(4 if at == axis % 3 else size for at, size in enumerate((2, 5, 33)))
    indices = np.random.default_rng(2).integers(-(2, 5, 33)[axis], (2, 5, 33)[axis], shape)
    assert_native(exported([node("GatherElements", "a", "i", axis=axis)], (2, 5, 33), {"i": indices}), floats(8, 2, 5, 33))


@pytest.mark.parametrize(("op", "about"), [("Exp", {}), ("Softplus", {}), ("Elu", {"alpha": 0.5})], ids=str)
def test_exponentials_keep_the_digits_of_small_results(op, about):
    x = np.concatenate([np.linspace(-103, 88, 2001), np.geomspace(1e-30, 1, 100), -np.geomspace(1e-30, 1, 100)]).astype(np.float32)
    exact = {"Exp": np.exp, "Softplus": lambda x: np.logaddexp(0, x), "Elu": lambda x: np.where(x < 0, 0.5 * np.expm1(x), x)}[op]
    y, right = model_of(exported([node(op, "a", **about)], x.shape))(-x), exact(x.astype(np.float64))
    assert (np.abs(y - right) <= 4e-7 * np.abs(right) + 3e-45).all()


@pytest.mark.parametrize("op", ["Erf", "Tanh", "HardSwish"])
def test_functions_of_one_number(op):
    x = np.concatenate([floats(1, 50), 4 * floats(2, 50), [0, -0.0, 1e-20, 90, -90, 0.625, -0.625, 1, -1]])[None].astype(np.float32)
    assert_native(exported([node(op, "a")], x.shape), x, strange=True, alike=5e-7)


@pytest.mark.parametrize("slope", [(1,), (6, 1, 1), (1, 6, 1, 1)], ids=str)
def test_a_prelu_with_constant_slopes_of_channels_is_native(slope):
    proto = exported([node("PRelu", "a", "s")], (2, 6, 4, 5), {"s": floats(5, *slope)})
    assert_native(proto, floats(6, 2, 6, 4, 5), strange=True)


@pytest.mark.parametrize("opset", [17, 18])
def test_mish_is_one_operator_also_in_parts(opset):
    x = np.concatenate([floats(1, 50), 4 * floats(2, 50), [0, 1e-20, 19.9, 20.1, 90, -20, -90, 1, -1]])[None].astype(np.float32)
    parts = [node("Softplus", "a", to="s"), node("Tanh", "s", to="t"), node("Mul", "a", "t")]
    proto = exported([node("Mish", "a")] if opset == 18 else parts, x.shape, opset=opset)
    assert_native(proto, x, alike=5e-7)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("b g h i d, b g h j d -> b g h i j", [(2, 2, 3, 4, 5), (2, 2, 3, 6, 5)]), ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("bij,bjd->bdi", [(2, 3, 4), (2, 4, 5)]), ("ij,jk->ik", [(3, 4), (4, 5)]), ("bhij,bhjd->bihd", [(1, 2, 3, 4), (1, 2, 4, 5)]),
        ("abc,acde->abde", [(2, 3, 4), (2, 4, 5, 6)]), ("bij,bjk->kb", [(2, 3, 4), (2, 4, 5)]), ("bi,bi->bi", [(2, 3), (2, 3)]),
    ],
)  # fmt: skip
def test_an_einsum_is_a_product_where_it_is_one(equation, shapes):
    x = floats(1, *shapes[0])
    proto = exported([node("Einsum", "a", "w", equation=equation)], shapes[0], {"w": floats(2, *shapes[1])})
    if equation in ("bij,bjk->kb", "bi,bi->bi"):
        assert np.abs(model_of(proto)(x) - by_onnxruntime(proto.SerializeToString(), x)[0]).max() < 1e-5
    else:
        assert_native(proto, x)


@pytest.mark.parametrize(
    ("op", "terms"), [("DepthToSpace", {"mode": "DCR"}), ("DepthToSpace", {"mode": "CRD"}), ("DepthToSpace", {}), ("SpaceToDepth", {})]
)
def test_blocks_between_channels_and_pixels_are_permutations(op, terms):
    x = floats(1, 2, 8, 4, 6)
    proto = exported([node(op, "a", blocksize=2, **terms)], x.shape)
    assert_native(proto, x)
    own = Network(reading.graph_of(proto, "a model"), host.runnable("host"), 1, "reproducible")
    assert own(x).tobytes() == by_onnxruntime(proto.SerializeToString(), x)[0].tobytes()


@pytest.mark.parametrize("perm", [None, (0, 1, 3, 2), (0, 2, 1, 3), (1, 0, 2, 3), (3, 2, 1, 0)], ids=str)
@pytest.mark.parametrize("scaled", ["Mul", "Div", None])
def test_products_of_two_values_with_their_transpositions_and_factors(perm, scaled):
    """Transpositions and factors before and after the product; results that are read twice are right, too."""
    x = floats(1, 2, 3, 4, 4)
    nodes = [node("Tanh", "a", to="t")]
    nodes += [node("Transpose", "t", to="u", perm=perm)] if perm else [node("Identity", "t", to="u")]
    other = {(1, 0, 2, 3): (1, 0, 3, 2), (0, 2, 1, 3): (0, 2, 3, 1), (3, 2, 1, 0): (3, 2, 0, 1)}.get(perm, (0, 1, 3, 2))
    nodes += [node("Transpose", "a", to="v", perm=other), node("MatMul", "u", "v", to="p")]
    nodes += [node(scaled, "p", "f", to="s")] if scaled else [node("Identity", "p", to="s")]
    nodes += [node("Transpose", "s", to="y", perm=(0, 2, 1, 3))]
    constants = {"f": np.float32(0.25)} if scaled else {}
    model = assert_native(exported(nodes, x.shape, constants), x)
    assert [layer.node.op for layer in model.plan.layers].count("Transpose") == (2 if perm == (3, 2, 1, 0) else 0)
    twice = [*nodes[:-1], node("Transpose", "s", to="z", perm=(0, 2, 1, 3)), node("Concat", "z", "z", "z", axis=1)]
    assert_native(exported(twice, x.shape, constants), x)


@pytest.mark.parametrize("shapes", [((5,), (5,)), ((5,), (5, 3)), ((4, 5), (5,)), ((2, 4, 5), (5,))], ids=str)
def test_products_of_vectors_are_numpys(shapes):
    x = floats(1, *shapes[0])
    nodes = [
        node("Tanh", "w", to="v"), node("Mul", "v", "one", to="u"), node("ReduceMax", "a", to="m", keepdims=0),
        node("Mul", "u", "m", to="z"), node("MatMul", "a", "z"),
    ]  # fmt: skip
    proto = exported(nodes, shapes[0], {"w": floats(2, *shapes[1]), "one": np.float32(1)})
    assert np.abs(model_of(proto)(x) - by_onnxruntime(proto.SerializeToString(), x)[0]).max() < 1e-4


@pytest.mark.parametrize("bias", [(7,), (1,), (), (1, 1, 7), (3, 1), (2, 1, 1)], ids=str)
def test_what_is_added_to_a_product_is_its_bias_where_it_is_one_a_column(bias):
    x = floats(1, 2, 3, 5)
    nodes = [node("MatMul", "a", "w", to="p"), node("Add", "b", "p", to="s"), node("Erf", "s")]
    model = assert_native(exported(nodes, x.shape, {"w": floats(2, 5, 7), "b": floats(3, *bias)}), x)
    assert len(model.plan.layers) == (4 if bias in ((3, 1), (2, 1, 1)) else 2)


def test_what_is_empty_is_computed():
    x = np.zeros((2, 0, 4), np.float32)
    for nodes, constants in (
        ([node("Softmax", "a")], {}), ([node("Add", "a", "c")], {"c": floats(1, 4)}), ([node("Erf", "a")], {}),
        ([node("LayerNormalization", "a", "c", "c")], {"c": floats(1, 4)}), ([node("Gather", "a", "i")], {"i": np.array([0])}),
        ([node("MatMul", "a", "t"),], {"t": floats(1, 4, 3)}),
    ):  # fmt: skip
        proto = exported(nodes, x.shape, constants)
        y = model_of(proto)(x)
        assert y.shape == by_onnxruntime(proto.SerializeToString(), x)[0].shape and y.size == 0
