# SPDX-License-Identifier: Apache-2.0
"""Networks whose values lie in blocks of channels: the same results whatever lies how, and the least predicted time."""

import itertools

import numpy as np
import pytest
from graphs import Builder, numpy_helper, random_model
from onnx_models import assert_close, by_onnxruntime, given, model_of

from pysim.errors import NativeError, PlanError
from pysim.network import plan, rewrites
from pysim.network.graph import Graph, Node, Tensor
from pysim.network.layouts import choose_layouts
from pysim.network.native_ops import arrays
from pysim.runtime.operators import Window, pool_step, reorder_step

FLOAT = np.dtype(np.float32)
BLOCK = 4


def blocks_by_numpy(x, block):
    n, c, h, w = x.shape
    return np.ascontiguousarray(x.reshape(n, c // block, block, h, w).transpose(0, 1, 3, 4, 2)).reshape(x.shape)


@pytest.mark.parametrize("unit", [16, 12])  # of channels: whole blocks, or parts of them
@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_networks_in_random_layouts_equal_onnxruntime(first, unit, monkeypatch):
    changes = 0
    for seed in range(first, first + 20):
        random, proto = np.random.default_rng(seed), random_model(seed, 1 + seed % 3, unit=unit)

        def mixed(graph, block, seconds, change, widens, random=random):
            def any_seconds(*asked):
                return None if seconds(*asked) is None else float(random.uniform(1, 9))

            return choose_layouts(graph, block, any_seconds, lambda name, into: float(random.uniform(0, 1)), widens)

        monkeypatch.setattr(plan, "choose_layouts", mixed)
        content, x = proto.SerializeToString(), given(proto, seed)
        model, wanted = model_of(proto), by_onnxruntime(content, x)
        changes += len(model.plan.layouts)
        assert_close(model(x), wanted)
        assert_close(model(x), wanted)
    assert changes > (20 if unit == 16 else 4)


def in_blocks_alone(graph, block, seconds, change, widens):
    """Blocks wherever something computes them."""
    return choose_layouts(graph, block, lambda *asked: None if seconds(*asked) is None else float(asked[1] == 1), lambda *_: 1e-6, widens)


@pytest.mark.parametrize("groups", [1, 3, 24])
def test_channels_that_are_no_whole_blocks_lie_in_blocks_and_pass_on_what_is_not_finite(groups, monkeypatch):
    b = Builder(5)
    b.shapes["x"] = 1, 16, 9, 9

    def conv(x, filters, groups=1):
        kernel, shape = 1 + 2 * (groups > 1), (1, filters, 9, 9)
        weights = b.constant(b.rng.standard_normal((filters, b.shapes[x][1] // groups, kernel, kernel)))
        how = {"kernel_shape": [kernel] * 2, "pads": [kernel // 2] * 4, "group": groups}
        return b.add("Conv", [x, weights, b.constant(b.rng.standard_normal(filters))], shape, **how)

    image = conv("x", 24)
    image = conv(b.add("Clip", [image, b.constant(np.array(-1)), b.constant(np.array(6))], (1, 24, 9, 9)), 24, groups)
    proto = b.model([conv(image, 32)])
    x = given(proto)
    x[0, 3, 2, 2], x[0, 5, 6, 6], x[0, 7, 4, 0] = np.inf, np.nan, -np.inf
    models = [model_of(proto)]
    monkeypatch.setattr(plan, "choose_layouts", in_blocks_alone)
    models.append(model_of(proto))
    problems = [str(layer.plan.problem) for layer in models[1].plan.layers if layer.plan]
    assert len(problems) == 3 and all("32" in one for one in problems)
    planes, blocks = (model(x) for model in models)
    assert 0 < np.isnan(planes).sum() < planes.size / 2
    assert np.allclose(blocks, planes, rtol=1e-4, atol=1e-4, equal_nan=True)
    assert_close(models[1](finite := given(proto)), by_onnxruntime(proto.SerializeToString(), finite))


def network(seed):
    """Convolutions, sums and pools of values of 8 channels, some with 6; with seconds of each."""
    random = np.random.default_rng(seed)
    nodes, values = [], ["x"]
    tensors = {"x": Tensor((1, 8, 5, 5), FLOAT)}
    for at in range(5):
        name, source = f"v{at}", str(random.choice(values))
        channels = tensors[source].shape[1]
        same = [one for one in values if tensors[one] == tensors[source]]
        kind = random.choice(["Conv", "Conv", "Add", "MaxPool"])
        if kind == "Conv":
            channels = int(random.choice([8, 8, 8, 6]))
            nodes.append(Node("Conv", name, (source, "w"), (name,)))
        else:
            other = (str(random.choice(same)),) if kind == "Add" else ()
            nodes.append(Node(str(kind), name, (source, *other), (name,)))
        tensors[name] = Tensor((1, channels, 5, 5), FLOAT)
        values.append(name)
    graph = Graph(tuple(nodes), ("x",), (values[-1],), tensors, {"w": np.zeros(1)})
    costs = {(node.name, way): float(random.uniform(1, 3)) for node in nodes for way in ((1, 1), (BLOCK, BLOCK), (1, BLOCK))}
    moves = {(name, into): float(random.uniform(0, 1)) for name in tensors for into in (True, False)}
    return graph, costs, moves


def able(graph, node, read, written):
    sides = ((node.inputs[0], read), (node.output, written))
    return all(block == 1 or graph.tensors[name].shape[1] % block == 0 for name, block in sides)


def total(graph, costs, moves, labels):
    """Seconds of nodes with (reads, writes) blocks, None where one cannot."""
    made, found = {"x": 1}, 0.0
    reads: dict = {}
    for node, (read, written) in zip(graph.nodes, labels, strict=True):
        if not able(graph, node, read, written) or (node.op != "Conv" and read != written) or (read, written) == (BLOCK, 1):
            return None
        found += costs[node.name, (read, written)]
        made[node.output] = written
        for name in set(node.inputs) - {"w"}:
            reads.setdefault(name, set()).add(read)
    for name in graph.outputs:
        reads.setdefault(name, set()).add(1)
    for name, wanted in reads.items():
        for block in wanted - {made[name]}:
            if graph.tensors[name].shape[1] % BLOCK:
                return None
            found += moves[name, block > 1]
    return found


@pytest.mark.parametrize("seed", range(40))
def test_no_choice_of_layouts_takes_less_than_the_one_that_is_made(seed):
    graph, costs, moves = network(seed)

    def seconds(node, read, written):
        return costs[node.name, (read, written)] if able(graph, node, read, written) else None

    laid = choose_layouts(graph, BLOCK, seconds, lambda name, into: moves[name, into])
    ways = list(itertools.product((1, BLOCK), repeat=2))
    found = (total(graph, costs, moves, labels) for labels in itertools.product(ways, repeat=len(graph.nodes)))
    least = min(seconds for seconds in found if seconds is not None)
    kept = [node for node in laid.graph.nodes if node.op != "Reorder"]
    chosen = total(graph, costs, moves, [node.attributes.get("blocks", (1, 1)) for node in kept])
    assert chosen == pytest.approx(least)
    changed = sum(moves[node.inputs[0], not node.attributes["to_planes"]] for node in laid.graph.nodes if node.op == "Reorder")
    layers = sum(costs[node.name, node.attributes.get("blocks", (1, 1))] for node in kept)
    assert changed + layers == pytest.approx(chosen)


def test_a_machine_without_such_kernels_keeps_planes():
    graph, _, _ = network(1)
    assert choose_layouts(graph, 1, lambda *_: 1.0, lambda *_: 0.0).graph is graph


# Operators


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("block", [4, 8, 16])
def test_blocks_and_planes_are_brought_into_each_other(dtype, block):
    for size in (1, 7, 16, 55):
        x = np.random.default_rng(size).standard_normal((2, 32, size, size)).astype(dtype)
        y, z = np.empty_like(x), np.empty_like(x)
        reorder_step(y, x, block, False)()
        assert np.array_equal(y, blocks_by_numpy(x, block))
        reorder_step(z, y, block, True)()
        assert np.array_equal(z, x)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("block", [4, 8, 16])
@pytest.mark.parametrize("largest", [True, False])
def test_pools_of_blocks_are_those_of_planes(dtype, block, largest):
    x = np.random.default_rng(3).standard_normal((2, 16, 11, 9)).astype(dtype)
    x[0, 3, 4, 4], x[1, 0, 0, 0] = np.nan, -np.inf
    for window, out in (
        (Window((3, 3), (2, 2), (1, 1), (1, 1, 1, 1)), (6, 5)),
        (Window((2, 3), (1, 2), (2, 1), (0, 1, 0, 1)), (9, 5)),
        (Window((11, 9)), (1, 1)),
    ):
        for counted in (False, True):
            want, got = (np.empty((2, 16, *out), dtype) for _ in range(2))
            pool_step(want, x, window, largest, counted)()
            pool_step(got, blocks_by_numpy(x, block), window, largest, counted, block)()
            np.testing.assert_allclose(got, blocks_by_numpy(want, block), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axis", [2, 3])
def test_rows_and_columns_of_blocks_are_those_of_planes(axis):
    rng, block, to = np.random.default_rng(axis), 8, {2: (9, 6), 3: (5, 9)}[axis]
    x, rows, shares = rng.random((2, 16, 5, 6)), rng.integers(0, 5, (2, 9)), rng.random((2, 9))
    want, got = np.empty((2, 16, *to)), np.empty((2, 16, *to))
    arrays.take(want, [x, rows, shares], {"axis": axis})()
    arrays.take(got, [blocks_by_numpy(x, block), rows, shares], {"axis": axis, "blocks": (block, block)})()
    assert np.array_equal(got, blocks_by_numpy(want, block))


def test_an_image_between_convolutions_is_enlarged_in_blocks(monkeypatch):
    b = Builder(0)
    b.shapes["x"] = (1, 32, 9, 7)
    kernels = [b.constant(b.rng.standard_normal((32, 32, 3, 3)) / 17) for _ in range(2)]
    first = b.add("Conv", ["x", kernels[0]], (1, 32, 9, 7), pads=[1] * 4)
    b.constants.append(numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales"))
    large = b.add("Resize", [first, "", "scales"], (1, 32, 18, 14), mode="linear")
    proto = b.model([b.add("Conv", [large, kernels[1]], (1, 32, 18, 14), pads=[1] * 4)])

    def blocks(graph, block, seconds, change, *_):
        return choose_layouts(graph, block, lambda node, *sides: float(sides == (1, 1)), lambda *_: 0.1)

    monkeypatch.setattr(plan, "choose_layouts", blocks)
    image, wanted = given(proto), by_onnxruntime(proto.SerializeToString(), given(proto))
    model = model_of(proto)
    taken = [layer.node for layer in model.plan.layers if layer.node.op == "Take"]
    assert len(taken) == 2 and all(one.attributes["blocks"][0] > 1 for one in taken)
    assert_close(model(image), wanted)


@pytest.mark.parametrize("to", ["blocks", "planes"])
def test_rows_of_channels_become_images_in_either_layout(to, monkeypatch):
    b = Builder(0)
    b.shapes["x"] = (2, 15, 32)
    planes = b.add("Transpose", ["x"], (2, 32, 15), perm=[0, 2, 1])
    b.constants.append(numpy_helper.from_array(np.array([2, 32, 5, 3]), "sizes"))
    b.constants.append(numpy_helper.from_array(np.array([2, 32, 15]), "flat"))
    image = b.add("Reshape", [planes, "sizes"], (2, 32, 5, 3))
    kernel = b.constant(b.rng.standard_normal((32, 1, 3, 3)) / 3)
    flat = b.add("Reshape", [b.add("Conv", [image, kernel], (2, 32, 5, 3), pads=[1] * 4, group=32), "flat"], (2, 32, 15))
    proto = b.model([b.add("Tanh", [b.add("Transpose", [flat], (2, 15, 32), perm=[0, 2, 1])], (2, 15, 32))])

    def laid(graph, block, seconds, change, widens):
        return choose_layouts(graph, block, lambda node, *sides: float((max(sides) > 1) != (to == "blocks")), lambda *_: 9.0, widens)

    monkeypatch.setattr(plan, "choose_layouts", laid)
    model, x = model_of(proto), given(proto)
    moved = [layer.node for layer in model.plan.layers if layer.node.op == "Transpose"]
    assert [max(one.attributes.get("blocks", (1, 1))) > 1 for one in moved] == [to == "blocks"] * 2 and not model.plan.layouts
    assert next(layer.node.attributes["activation"] for layer in model.plan.layers if layer.node.op == "Conv") == "tanh"
    assert_close(model(x), by_onnxruntime(proto.SerializeToString(), x))


def test_pairs_of_views_and_transpositions_that_share_one_are_replaced_once():
    b = Builder(0)
    b.shapes["x"] = (2, 32, 5, 3)
    for name, sizes in (("flat", [2, 32, 15]), ("heads", [2, 15, 4, 8])):
        b.constants.append(numpy_helper.from_array(np.array(sizes), name))
    convolved = b.add("Conv", ["x", b.constant(b.rng.standard_normal((32, 1, 3, 3)))], (2, 32, 5, 3), pads=[1] * 4, group=32)
    rows = b.add("Transpose", [b.add("Reshape", [convolved, "flat"], (2, 32, 15))], (2, 15, 32), perm=[0, 2, 1])
    proto = b.model([b.add("Transpose", [b.add("Reshape", [rows, "heads"], (2, 15, 4, 8))], (2, 4, 15, 8), perm=[0, 2, 1, 3])])
    x = given(proto)
    assert_close(model_of(proto)(x), by_onnxruntime(proto.SerializeToString(), x))


@pytest.mark.parametrize("channels", [24, 40, 88])
def test_rows_are_read_from_channels_that_are_no_whole_blocks(channels):
    b = Builder(1)
    b.shapes["x"] = (1, 64, 14, 14)
    b.constants.append(numpy_helper.from_array(np.array([1, channels, 196]), "flat"))
    image, before = "x", 64
    for layer in range(3):
        weight = b.rng.standard_normal((channels, before, 3, 3)) / (3 * before**0.5)
        b.constants.append(numpy_helper.from_array(weight.astype(np.float32), f"weight{layer}"))
        image, before = b.add("Conv", [image, f"weight{layer}"], (1, channels, 14, 14), pads=[1] * 4), channels
    rows = b.add("Transpose", [b.add("Reshape", [image, "flat"], (1, channels, 196))], (1, 196, channels), perm=[0, 2, 1])
    proto = b.model([b.add("Softmax", [rows], (1, 196, channels), axis=2)])
    x, text = given(proto), proto.SerializeToString()
    assert_close(model_of(proto)(x), by_onnxruntime(text, x))


def test_planes_that_are_no_whole_blocks_are_refused():
    x, y = np.zeros((1, 6, 4, 4), np.float32), np.zeros((1, 6, 4, 4), np.float32)
    with pytest.raises(NativeError, match="6 planes are not a multiple of the block, 4"):
        reorder_step(y, x, 4, False)()
    with pytest.raises(NativeError, match=r"a pool's block is 4; expected 0 .planes. or a divisor of its 6 planes"):
        pool_step(y, x, Window((1, 1)), True, block=4)()


def test_a_value_that_no_node_makes_is_refused(monkeypatch):
    b = Builder(0)
    b.shapes["x"] = (1, 8, 4, 4)
    proto = b.model([b.add("Tanh", [b.add("Exp", ["x"], (1, 8, 4, 4))], (1, 8, 4, 4))])
    monkeypatch.setattr(rewrites, "REWRITES", (lambda graph, _: graph._replace(nodes=graph.nodes[1:]),))
    with pytest.raises(PlanError, match="which nothing before it makes"):
        model_of(proto)
