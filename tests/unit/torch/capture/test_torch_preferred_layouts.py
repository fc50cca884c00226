# SPDX-License-Identifier: Apache-2.0
"""PyTorch's compiler lays out channels last what pysim's convolutions read, also behind other operators, as it does for its own."""

import operator

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import fx  # noqa: E402

from pysim.torch import operators  # noqa: E402
from pysim.torch.capture.effects import effects_of  # noqa: E402
from pysim.torch.capture.rewrites.preferred_layouts import layers_as_convolutions, share_copies, with_layers  # noqa: E402

LAST = torch.empty(2, 8, 6, 6).to(memory_format=torch.channels_last)


def graph_of(target, first=LAST):
    """x -> up -> layer -> after -> aten's convolution -> behind it; and an operator that no convolution reads."""
    graph = fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    up = graph.call_function(torch.ops.aten.relu.default, (x,), name="up")
    product = graph.call_function(torch.ops.aten.bmm.default, (x, x), name="product")
    read = graph.call_function(torch.ops.aten.add.Tensor, (up, product), name="read")
    read.meta["val"] = first
    layer = graph.call_function(target, (read, w), name="layer")
    after = graph.call_function(torch.ops.aten.relu.default, (layer,), name="after")
    beside = graph.call_function(torch.ops.aten.neg.default, (up,), name="beside")
    last = graph.call_function(torch.ops.aten.convolution.default, (after, w), name="last")
    behind = graph.call_function(torch.ops.aten.neg.default, (last,), name="behind")
    graph.output((behind, beside))
    return graph


@pytest.mark.parametrize("target", [operators.layer, operators.convolution_relu])
def test_what_a_layer_reads_directly_and_behind_others_is_channels_last(target):
    found = {node.name for node in with_layers(set(), graph_of(target))}
    assert {"up", "read", "layer", "after", "beside"} <= found and not found & {"product", "behind"}


@pytest.mark.parametrize(("target", "first"), [(operators.layer, torch.empty(12, 8)), (torch.ops.aten.relu.default, LAST)])
def test_graphs_without_convolutions_of_pysim_are_laid_out_as_ever(target, first):
    assert not with_layers(set(), graph_of(target, first))


def test_the_compiler_is_changed_only_meanwhile():
    from torch._inductor.graph import GraphLowering

    before = GraphLowering.find_nodes_prefer_channels_last
    with layers_as_convolutions():
        assert GraphLowering.find_nodes_prefer_channels_last is not before
    assert GraphLowering.find_nodes_prefer_channels_last is before


@pytest.mark.parametrize("written", [False, True])
def test_what_reads_a_value_behind_a_layer_reads_the_layers_copy(written):
    graph = fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    value = graph.call_function(torch.relu, (x,))
    before = graph.call_function(torch.neg, (value,))
    anchor = graph.call_function(torch.sigmoid, (value,))
    behind = graph.call_function(torch.add, (value, anchor))
    if written:
        graph.call_method("mul_", (value, 2))
    graph.output((before, behind, value))
    effects = effects_of(graph)
    with graph.inserting_before(anchor):
        copy = graph.call_method("contiguous", (value,), {"memory_format": torch.channels_last})
        graph.call_function(operators.layer, (copy, w, None, None, x, "how"))
        other = graph.call_method("contiguous", (value,), {"memory_format": torch.channels_last})  # which no layer reads
    share_copies(graph, effects)
    graph.lint()
    assert before.args[0] is value and other.args[0] is (value if written else copy)
    assert anchor.args[0] is behind.args[0] is (value if written else copy)
    assert value in next(iter(reversed(graph.nodes))).args[0] and x not in copy.all_input_nodes


def test_values_that_others_made_stay():
    """A view, whose memory another operator made, and a residual, in whose copy the layer writes its result."""
    graph = fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    view, residual = graph.call_method("permute", (x, 0, 3, 1, 2)), graph.call_function(torch.neg, (x,))
    last = graph.call_function(torch.add, (view, residual))
    graph.output(last)
    effects = effects_of(graph)
    with graph.inserting_before(last):
        copies = [graph.call_method("contiguous", (one,), {"memory_format": torch.channels_last}) for one in (view, residual)]
        graph.call_function(operators.layer, (copies[0], w, None, None, copies[1], "how"))
    share_copies(graph, effects)
    assert last.args == (view, residual)


@pytest.mark.parametrize("of", ["memory of its own", "an input", "a view"])
def test_a_value_that_was_written_in_place_before_is_shared(of):
    graph = fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    made = {"memory of its own": graph.call_function(torch.neg, (x,)), "an input": x}.get(of)
    made = graph.call_method("permute", (graph.call_function(torch.neg, (x,)), 0, 1, 3, 2)) if made is None else made
    other = graph.call_function(torch.neg, (x,))
    value = graph.call_function(torch.nn.functional.relu, (graph.call_function(operator.iadd, (made, other)),), {"inplace": True})
    last = graph.call_function(torch.add, (value, value))
    graph.call_method("mul_", (other, 2))  # what was added lies elsewhere
    graph.output(last)
    effects = effects_of(graph)
    with graph.inserting_before(last):
        copy = graph.call_method("contiguous", (value,), {"memory_format": torch.channels_last})
        graph.call_function(operators.layer, (copy, w, None, None, x, "how"))
    share_copies(graph, effects)
    assert last.args[0] is (copy if of == "memory of its own" else value)


def test_what_layers_read_is_written_before_them():
    """By the set of operators for which Inductor does so, by the names that a graph has for them."""
    with layers_as_convolutions():
        from torch._inductor.lowering import needs_realized_inputs

        assert needs_realized_inputs.issuperset({operators.layer, operators.convolution_relu, operators.group_norm})
