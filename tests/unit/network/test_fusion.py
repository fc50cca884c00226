# SPDX-License-Identifier: Apache-2.0
"""What of a network is computed as one, what lies in one place, and what is one call: networks that have much of it, and random ones."""

from pathlib import Path

import numpy as np
import pytest
from graphs import Builder, random_model
from onnx_models import assert_close, by_onnxruntime, given, model_of

import pysim
from pysim.calibration import host
from pysim.machine.load import load
from pysim.network import operator_seconds, operators
from pysim.network.arena import plan_buffers, view_offset
from pysim.network.execution import Network
from pysim.network.fusion import RESIDUAL_INPUT, fuse, norm_constants
from pysim.network.graph import Graph, Node, Tensor
from pysim.network.rewrites import supports
from pysim.onnx import reading
from pysim.runtime.steps import Chain, Step

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
FLOAT = np.dtype(np.float32)


def fused_ops(proto):
    return [(one.op, one.attributes.get("activation"), len(one.inputs) > RESIDUAL_INPUT) for one in fuse(
        reading.graph_of(proto, "a model"), supports).nodes]  # fmt: skip


def square(b, x, channels=4):
    return b.add("Conv", [x, b.constant(b.rng.standard_normal((channels, channels, 3, 3)))], b.shapes[x], pads=[1, 1, 1, 1])


@pytest.mark.parametrize("swapped", [False, True])
def test_a_residual_and_what_activates_the_sum_follow_the_later_convolution(swapped):
    b = Builder(0)
    b.shapes["x"] = (1, 4, 9, 9)
    first = square(b, "x")
    last = square(b, b.add("Relu", [first], b.shapes["x"]))
    total = b.add("Add", [first, last][:: -1 if swapped else 1], b.shapes["x"])
    proto = b.model([b.add("Clip", [total, b.constant(np.array(0.0)), b.constant(np.array(6.0))], b.shapes["x"])])
    assert fused_ops(proto) == [("Conv", None, False), ("Relu", None, False), ("Conv", ("clamp", 0.0, 6.0), True)]
    assert_close(model_of(proto)(given(proto)), by_onnxruntime(proto.SerializeToString(), given(proto)))


def test_the_image_itself_may_be_the_residual_and_is_not_written_over():
    b = Builder(0)
    b.shapes["x"] = (1, 4, 9, 9)
    proto = b.model([b.add("Add", ["x", square(b, "x")], b.shapes["x"])])
    assert fused_ops(proto) == [("Conv", None, True)]
    x = given(proto)
    before = x.copy()
    assert_close(model_of(proto)(x), by_onnxruntime(proto.SerializeToString(), x))
    assert (x == before).all()


def test_x_times_its_sigmoid_is_one_activation_where_nobody_else_reads_x():
    b = Builder(0)
    b.shapes["x"] = (1, 4, 9, 9)
    y = square(b, "x")
    z = b.add("Mul", [y, b.add("Sigmoid", [y], b.shapes["x"])], b.shapes["x"])
    assert fused_ops(b.model([z])) == [("Conv", "silu", False)]
    assert [op for op, *_ in fused_ops(b.model([z, y]))] == ["Conv", "Sigmoid", "Mul"]


def test_dense_blocks_copy_nothing():
    b = Builder(0)
    b.shapes["x"] = (1, 4, 9, 9)
    parts = [square(b, "x")]
    for count in (2, 3, 4):
        channels = 4 * (count - 1)
        joined = b.add("Concat", list(parts), (1, channels, 9, 9), axis=1)
        weights = b.constant(b.rng.standard_normal((4, channels, 3, 3)))
        parts.append(b.add("Conv", [joined, weights], (1, 4, 9, 9), pads=[1, 1, 1, 1]))
    proto = b.model([b.add("Relu", [b.add("Concat", list(parts), (1, 16, 9, 9), axis=1)], (1, 16, 9, 9))])
    plan = model_of(proto).plan
    concats = [one.node for one in plan.layers if one.node.op == "Concat"]
    assert len(concats) == 4 and all((one.output, part) in plan.buffers.joined for one in concats for part in one.inputs)
    assert_close(model_of(proto)(given(proto)), by_onnxruntime(proto.SerializeToString(), given(proto)))


def chain(*nodes, constants=None, shape=(1, 4, 6, 6), outputs=None):
    made = [name for node in nodes for name in node.outputs]
    constants = constants or {}
    tensors = {name: Tensor(shape, FLOAT) for name in ("x", *made)} | {name: Tensor(a.shape, a.dtype) for name, a in constants.items()}
    return Graph(tuple(nodes), ("x",), tuple(outputs or made[-1:]), tensors, constants)


def node(op, inputs, output, **attributes):
    return Node(op, output, tuple(inputs.split()), (output,), attributes)


def test_batch_norm_is_a_scale_and_a_shift():
    scale, shift = norm_constants(*(np.array([value], np.float32) for value in (2, 7, 5, 3)), epsilon=1.0)
    assert scale == [1] and shift == [2]


def test_an_affine_is_folded_into_weights_and_an_activation_follows():
    w, s, t = np.ones((4, 4, 1, 1), np.float32), np.arange(4, dtype=np.float32), np.full(4, 3, np.float32)
    graph = chain(node("Conv", "x w", "a"), node("Affine", "a s t", "b"), node("Relu", "b", "c"), constants={"w": w, "s": s, "t": t})
    (conv,) = fuse(graph, supports).nodes
    assert conv.absorbed == ("b", "c") and conv.attributes["activation"] == "relu" and conv.output == "c"
    weights, bias = (fuse(graph, supports).constants[name] for name in conv.inputs[1:])
    assert (weights[:, 0, 0, 0] == s).all() and (bias == t).all()


@pytest.mark.parametrize(("reader", "folded"), [("", False), ("Relu", False), ("Add", True), ("Affine", True)])
def test_a_factor_that_is_negative_is_folded_into_weights_where_an_addition_hides_the_signs_of_zeros(reader, folded):
    """A shift of -0.0 is none: 0 times the factor is then -0.0, and no sum of zeros is."""
    s, one, two = (np.full(4, number, np.float32) for number in (-1, 1, 2))
    constants = {"w": np.ones((4, 4, 1, 1), np.float32), "s": s, "none": np.full(4, -0.0, np.float32), "one": one, "two": two}
    readers = {"": (), "Relu": (node("Relu", "b", "c"),), "Add": (node("Add", "b x", "c"),), "Affine": (node("Affine", "b one two", "c"),)}
    graph = chain(node("Conv", "x w", "a"), node("Affine", "a s none", "b"), *readers[reader], constants=constants)
    assert [one.op for one in fuse(graph, supports).nodes] == (["Conv"] if folded else ["Conv", "Affine"])


@pytest.mark.parametrize(("weight", "scale"), [(1e30, 1e10), (1e-30, 1e-20), (1.0, np.inf), (2.0, np.nan)])
def test_a_scale_that_leads_out_of_the_types_range_stays_apart(weight, scale):
    """Of inputs that bring the sums back into it, results are ordinary numbers."""
    constants = {"w": np.full((4, 4, 1, 1), weight, np.float32), "s": np.full(4, scale, np.float32), "t": np.zeros(4, np.float32)}
    graph = chain(node("Conv", "x w", "a"), node("Affine", "a s t", "b"), constants=constants)
    assert [one.op for one in fuse(graph, supports).nodes] == ["Conv", "Affine"]


@pytest.mark.parametrize("factors", [(1e-25, 1e-25, 1e25), (1e25, 1e25, 1e-25, 1e-25), (1e-38, 1e-4, 1e4), (1e-15, 1e-15, 1e-15, 1e30)])
@pytest.mark.parametrize("op", ["Conv", "Linear", "MatMul", "Identity"])
def test_factors_that_leave_the_range_of_numbers_one_after_the_other_are_not_multiplied_together(op, factors):
    b, along = Builder(0), np.ones((4, 1, 1) if op in ("Conv", "Identity") else ())
    b.shapes["x"] = (1, 4, 8, 8)
    if op == "Conv":
        first = square(b, "x")
    else:
        others = {"Linear": [b.constant(b.rng.standard_normal((8, 8)))], "MatMul": [b.add("Relu", ["x"], b.shapes["x"])]}.get(op, [])
        first = b.add("Identity" if op == "Identity" else "MatMul", ["x", *others], b.shapes["x"])
    y = first
    for factor in factors:
        y = b.add("Mul", [y, b.constant(factor * along)], b.shapes["x"])
    x = given(b.model([first]))
    right = model_of(b.model([first]))(x)
    with np.errstate(over="ignore", under="ignore"):
        for factor in factors:
            right = right * np.float32(factor)
    np.testing.assert_allclose(model_of(b.model([y]))(x), right, rtol=1e-5, atol=2e-45)


def matrix_chain(shown):
    """A Linear of 2 x 3 rows, a View of its result, an Affine of that, another View and HardSwish."""
    rng = np.random.default_rng(0)
    constants = {"w": rng.standard_normal((5, 4)).astype(np.float32), "s": np.arange(1, shown[1] + 1, dtype=np.float32)}
    ends = node("View", "c", "d"), node("HardSwish", "d", "e")
    nodes = (node("Linear", "x w", "a"), node("View", "a", "b"), node("Affine", "b s s", "c"), *ends)
    shapes = {"x": (2, 3, 4), "a": (2, 3, 5), "b": shown, "c": shown, "d": (2, 3, 5), "e": (2, 3, 5)}
    tensors = {name: Tensor(shape, FLOAT) for name, shape in shapes.items()}
    tensors |= {name: Tensor(array.shape, FLOAT) for name, array in constants.items()}
    return Graph(nodes, ("x",), ("e",), tensors, constants)


def test_a_product_takes_in_what_stands_behind_views_of_its_result():
    product, *views = fuse(matrix_chain((6, 5)), supports).nodes
    assert (product.op, product.absorbed, product.attributes["activation"]) == ("Linear", ("c", "e"), "hard_swish")
    assert [one.op for one in views] == ["View", "View"] and views[-1].output == "e"


def test_an_affine_of_other_columns_than_the_products_stays():
    assert [one.op for one in fuse(matrix_chain((3, 10)), supports).nodes] == ["Linear", "View", "Affine", "View", "HardSwish"]


@pytest.mark.parametrize("shown", [(6, 5), (3, 10)])
def test_views_between_a_product_and_what_it_takes_in_change_no_result(shown):
    graph = matrix_chain(shown)
    x = np.random.default_rng(1).standard_normal((2, 3, 4)).astype(np.float32)
    scaled = (x @ graph.constants["w"].T).reshape(shown) * graph.constants["s"] + graph.constants["s"]
    right = scaled.reshape(2, 3, 5) * np.clip(scaled.reshape(2, 3, 5) / 6 + 0.5, 0, 1)
    right = right.astype(np.float32)
    assert_close(Network(graph, host.runnable("host"))(x), [right])


@pytest.mark.parametrize("outputs", [["a", "c"], ["b", "c"]])
def test_what_is_an_output_itself_takes_nothing_in(outputs):
    w, s = np.ones((4, 4, 1, 1), np.float32), np.ones(4, np.float32)
    graph = chain(
        node("Conv", "x w", "a"), node("Affine", "a s s", "b"), node("Relu", "b", "c"), constants={"w": w, "s": s}, outputs=outputs
    )
    assert set(outputs) <= {name for one in fuse(graph, supports).nodes for name in one.outputs}


def test_what_two_read_is_not_fused_into_one():
    graph = chain(
        node("Conv", "x w", "a"), node("Relu", "a", "b"), node("Add", "a b", "c"), constants={"w": np.ones((4, 4, 1, 1), np.float32)}
    )
    assert [one.op for one in fuse(graph, supports).nodes] == ["Conv", "Relu", "Add"]


def test_weights_that_two_share_stay_as_they_are_for_the_other():
    w, s = np.ones((4, 4, 1, 1), np.float32), np.full(4, 2, np.float32)
    graph = chain(node("Conv", "x w", "a"), node("Affine", "a s s", "b"), node("Conv", "b w", "c"), constants={"w": w, "s": s})
    first, second = fuse(graph, supports).nodes
    constants = fuse(graph, supports).constants
    assert (constants[first.inputs[1]] == 2).all() and (constants[second.inputs[1]] == 1).all()


def test_a_chain_in_place_needs_one_buffer_and_another_two():
    graph = chain(node("Relu", "x", "a"), node("Relu", "a", "b"), node("Identity", "b", "c"), node("Identity", "c", "d"))
    size = graph.tensors["a"].nbytes
    assert size * 2 <= plan_buffers(graph, lambda one: one.inputs if one.op == "Relu" else ()).nbytes < size * 3
    assert plan_buffers(graph, lambda _: ()).nbytes < size * 3


def test_parts_of_a_concatenation_lie_in_its_result():
    graph = chain(node("Relu", "x", "a"), node("Tanh", "x", "b"), node("Concat", "a b", "c", axis=1))
    graph.tensors["c"] = Tensor((1, 8, 6, 6), FLOAT)
    found = plan_buffers(graph, lambda _: ())
    assert found.joined == {("c", "a"), ("c", "b")}
    assert found.offsets["b"] - found.offsets["a"] == graph.tensors["a"].nbytes and found.nbytes == graph.tensors["c"].nbytes


@pytest.mark.parametrize("seed", range(60))
def test_values_that_live_at_once_lie_apart(seed):
    """Whatever is written does not touch what somebody reads later, but where it is the same memory on purpose."""
    graph = fuse(reading.graph_of(random_model(seed), "a model"), supports)
    found = plan_buffers(graph, operators.overwritten)
    users, makers = graph.users(), graph.makers()

    def lies_in(part, name):
        return any(result == name or lies_in(result, name) for result, one in found.joined if one == part)

    def span(name):
        return found.offsets[name], found.offsets[name] + graph.tensors[name].nbytes

    for at, one in enumerate(graph.nodes):
        for name in one.outputs:
            if name not in found.offsets or view_offset(graph, one) is not None:  # it lies in its input, and nothing is written
                continue
            for other in found.offsets:
                written, last = makers[other], max(users.get(other, [makers[other]]))
                begin, end = max(span(name)[0], span(other)[0]), min(span(name)[1], span(other)[1])
                overlaps = other != name and written < at < last and begin < end
                assert not overlaps or (one.op == "Concat" and lies_in(other, name)), (name, other)


def test_native_operators_in_a_row_are_one_call():
    model = pysim.load(LIGHT / "light_squeezenet.onnx", threads=1)
    (tensor,) = model.inputs.values()
    model(np.zeros(tensor.shape, np.float32))
    run = model._idle[0]
    bound = sum(isinstance(step, Step) for step in run.steps)
    assert bound > 25 and [type(call) for call in run.calls].count(Chain) == 1
    assert len(run.calls) <= 1 + len(run.steps) - bound  # what is left: the layer that reads the caller's array, and what NumPy runs


def test_an_activation_that_stores_do_not_have_is_in_a_layers_predicted_time():
    silu, relu = (Node(op, op, ("x",), ("y",), {"activation": op}) for op in ("silu", "relu"))
    graph = Graph((silu,), ("x",), ("y",), {name: Tensor((1, 8, 30, 40), FLOAT) for name in "xy"})
    zen5 = load("zen5")
    assert operator_seconds.activating_seconds(silu, graph, zen5) * zen5.core.frequency_hz.value == pytest.approx(8 * 75 * 8)
    assert operator_seconds.activating_seconds(relu, graph, zen5) == 0


def test_threads_divide_operators_and_wait_for_lines_that_others_wrote():
    names = {"x": (1, 64, 56, 56), "s": (1, 64, 1, 1), "y": (1, 64, 56, 56)}
    tensors = {name: Tensor(shape, FLOAT) for name, shape in names.items()}
    xeon, node = load("emerald-rapids"), Node("Add", "add", ("x", "x"), ("y",))
    graph = Graph((node,), ("x",), ("y",), tensors)
    on, buffers = xeon.core, operator_seconds.Buffers({}, 0, frozenset())
    one, two, alone = (operator_seconds.other_seconds(which, graph, xeon, buffers, threads) * on.frequency_hz.value
                       for which, threads in ((node, 1), (node, 2), (node._replace(op="CumSum"), 2)))  # fmt: skip
    level = xeon.levels[-1]
    lines = 64 * 56 * 56 * 4 / 64 / 2 * on.written_line_cycles.value / (level.latency_cycles.value * level.read_bytes_per_cycle.value / 64)
    start = operator_seconds.START_LINES * xeon.memory.latency_cycles.value
    assert alone == pytest.approx(one + lines)  # on one thread, which reads what the other has written, too
    assert two == pytest.approx(start + (one - start) / 2 + lines / 2 + on.fork_join_cycles.value + 2 * on.fork_join_thread_cycles.value)


def test_threads_wait_for_no_lines_that_they_wrote_themselves_nor_for_parts_that_nobody_copies():
    tensors = {name: Tensor((1, 64, 56, 56), FLOAT) for name in "xyz"} | {"j": Tensor((1, 128, 56, 56), FLOAT)}
    nodes = [
        Node("Clip", "clip", ("x",), ("y",)),
        Node("Mul", "mul", ("y", "y"), ("z",)),
        Node("Concat", "join", ("y", "z"), ("j",), {"axis": 1}),
    ]
    graph, xeon = Graph(tuple(nodes), ("x",), ("j",), tensors), load("emerald-rapids")

    def waiting(node, joined=()):
        return operator_seconds.crossing_seconds(node, graph, xeon, 2, 2, operator_seconds.Buffers({}, 0, frozenset(joined)))

    clip, mul, join = nodes
    assert waiting(clip) > 0 and waiting(mul) == 0 and waiting(mul._replace(op="Transpose")) == waiting(clip)
    assert waiting(join) == pytest.approx(2 * waiting(clip)) and waiting(join, [("j", "y")]) == waiting(clip)
    all_joined = operator_seconds.Buffers({}, 0, frozenset([("j", "y"), ("j", "z")]))
    assert [operator_seconds.other_seconds(join, graph, xeon, all_joined, threads) for threads in (1, 2)] == [0, 0]


def test_rows_tables_and_transpositions_take_longer_than_what_they_move():
    """The worked number of rows, of a copy none; of transposed runs that fill half of a vector twice the shuffles."""
    zen5 = load("zen5")

    def cycles(op, x, y, **attributes):
        node = Node(op, op, ("x", "at") if op == "Take" else ("x",), ("y",), attributes)
        graph = Graph((node,), ("x",), ("y",), {"x": Tensor(x, FLOAT), "y": Tensor(y, FLOAT), "at": Tensor(y[-1:], np.dtype(np.int64))})
        return operator_seconds._passing_cycles(node, graph, zen5)

    assert cycles("Softmax", (9408, 49), (9408, 49), axes=(1,)) == 9408 * (4 * 9 + 2 * 8 * zen5.unit("avx512").fma_latency_cycles.value)
    assert cycles("Transpose", (96, 3136), (3136, 96), perm=(1, 0)) == 96 * 196 * 4
    assert cycles("Transpose", (96, 7, 448), (7, 96, 448), perm=(1, 0, 2)) == 0
    assert cycles("Transpose", (64, 448, 7), (448, 7, 64), perm=(1, 2, 0)) == 2 * cycles(
        "Transpose", (64, 224, 14), (224, 14, 64), perm=(1, 2, 0)
    )
    assert cycles("Take", (64, 9, 7), (64, 9, 14), axis=2) == 2 * 64 * 9 * 14 / zen5.unit("avx512").loads_per_cycle.value
    assert cycles("Take", (64, 9, 7), (64, 18, 7), axis=1) == 0
