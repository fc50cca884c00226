# SPDX-License-Identifier: Apache-2.0
"""Integer layers on rows whose weights must fit 16 bits: which weights do, and when a network's plan takes such a row."""

import msgspec
import numpy as np
import pytest

from pysim.algorithms import algorithm_named
from pysim.machine.load import load_any
from pysim.network.arena import Buffers
from pysim.network.graph import Graph, Node, Tensor
from pysim.network.integers.forms import beyond_16_bits
from pysim.network.plan import layers_of
from pysim.planner import planned
from pysim.problem.text import parse
from pysim.record.plan import Request
from pysim.runtime.integer_steps import Quantity, Sums


def by_definition(weights):
    """Groups of 4 of a kernel row's channels and columns, two by two; in each half of both weights of one sign sum to 128 at most."""
    rows = weights.transpose(0, 2, 1, 3).reshape(len(weights), weights.shape[2], -1)
    beyond = []
    for filter_rows in rows:
        groups = [np.resize(np.append(row[at : at + 4], [0] * 4), 4) for row in filter_rows for at in range(0, len(row), 4)]
        groups += [np.zeros(4)] * (len(groups) % 2)
        for a, b in zip(groups[::2], groups[1::2], strict=True):
            halves = [np.append(a[h : h + 2], b[h : h + 2]).astype(int) for h in (0, 2)]
            beyond.append(any(max(half[half > 0].sum(), -half[half < 0].sum()) > 128 for half in halves))
    return np.mean(beyond)


@pytest.mark.parametrize("shape", [(3, 8, 1, 1), (5, 7, 3, 3), (2, 1, 1, 1), (4, 13, 2, 5)])
def test_the_share_beyond_16_bits_is_that_of_the_definition(shape):
    random = np.random.default_rng(0)
    for most in (30, 60, 127):
        weights = random.integers(-most, most + 1, shape).astype(np.int8)
        assert beyond_16_bits(weights) == pytest.approx(by_definition(weights))


@pytest.mark.parametrize("value", [127, -128])
def test_the_largest_weights_are_all_beyond(value):
    assert beyond_16_bits(np.full((2, 8, 1, 1), value, np.int8)) == 1


@pytest.mark.parametrize(("most", "form"), [(32, "bounded"), (127, "pairs")])
def test_bounded_rows_are_planned_where_weights_suit_them(most, form):
    """Of uniform weights up to 32 none is listed, up to 127 three quarters."""
    problem = parse("conv:ic256ih14oc256kh1")
    weights = np.random.default_rng(0).integers(-most, most + 1, (256, 256, 1, 1)).astype(np.int8)
    none = np.zeros(256, np.int32)
    sums = Sums(np.full(256, 0.01, np.float32), none.astype(np.float32), none, Quantity(1.0, 0, np.dtype(np.uint8)), 0, 255)
    about = {"problem": problem, "weights": weights, "dtype": "s8", "pads": (0, 0, 0, 0), "sums": sums}
    shapes = {"x": (1, 256, 14, 14), "y": (1, 256, 14, 14)}
    tensors = {name: Tensor(shape, np.dtype(np.uint8)) for name, shape in shapes.items()}
    graph = Graph((Node("IntegerConv", "one", ("x",), ("y",), about),), ("x",), ("y",), tensors)
    (layer,) = layers_of(graph, load_any("zen3"), Buffers({}, 0, frozenset()))
    assert layer.plan is not None
    assert form in layer.plan.kernel


@pytest.mark.parametrize("threads", [2, 3, 16])
@pytest.mark.parametrize("shape", ["ic3ih224oc64kh7sh2ph3", "mb5ic24ih10oc40kh3ph1", "ic64ih7oc200kh1", "ic16ih9oc8kh1sh2"])
def test_channels_last_is_planned_for_several_threads(shape, threads):
    """Its largest part is a convolution of whole rows, which is never larger than the layer."""
    layer = msgspec.structs.replace(parse(f"conv:{shape}"), dtype="s8")
    about = {"quantised": True, "prepared": True, "accuracy": "ieee", "to_bytes": True}
    alone, team = (planned(Request(layer, load_any("zen4"), "nhwc", threads=count, **about)) for count in (1, threads))
    assert team.algorithm == "channels_last"
    assert 0.9 * alone.seconds / threads < team.seconds
    part = algorithm_named(team.algorithm, layer, team.on).largest_part(layer, team.schedule, threads).problem
    assert layer.flops / threads <= 1.0001 * part.flops <= 1.0002 * layer.flops
