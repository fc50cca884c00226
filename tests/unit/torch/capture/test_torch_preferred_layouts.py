# SPDX-License-Identifier: Apache-2.0
"""PyTorch's compiler lays out channels last what pysim's convolutions read, also behind other operators, as it does for its own."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import fx  # noqa: E402

from pysim.torch import operators  # noqa: E402
from pysim.torch.capture.preferred_layouts import layers_as_convolutions, with_layers  # noqa: E402

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
