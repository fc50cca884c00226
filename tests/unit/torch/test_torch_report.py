# SPDX-License-Identifier: Apache-2.0
"""The report of a PyTorch model says of each layer who computes it and why."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402
from torch_models import block, settled  # noqa: E402

import pysim.torch  # noqa: E402
from pysim.torch.decisions import FirstCall, Report  # noqa: E402
from pysim.torch.layers.fused_layer import Decision  # noqa: E402


class Layer:
    def __init__(self, *decisions, held_bytes=0):
        self.decisions, self.held_bytes = [*decisions], held_bytes


class Graph:
    def __init__(self, *layers, reason="", between=""):
        self.layers, self.reason, self.between = [*layers], reason, between


def test_a_report_is_a_list_of_decisions_and_a_table_with_a_total():
    ours = Decision("layer1.0.conv1", "conv:mb1ic64ih56oc64kh3ph1", "pysim", "sconv", 0.00037, 0.00102)
    other = Decision("fc", "gemm:1x10x64:nt", "torch", "PyTorch is expected to be faster", 2e-6, 1e-6)
    report = Report([Graph(Layer(ours), Layer()), Graph(reason="gradients flow through it"), Graph(Layer(other), between="compiled")])
    assert list(report) == [ours, Decision("a graph", "", "torch", "gradients flow through it"), other]
    assert str(report).splitlines() == [
        "layer           problem                     runs by  predicted  PyTorch's  plan, or why not",
        "layer1.0.conv1  conv:mb1ic64ih56oc64kh3ph1  pysim    0.370 ms   1.020 ms   sconv",
        "a graph                                     torch                          gradients flow through it",
        "fc              gemm:1x10x64:nt             torch    0.002 ms   0.001 ms   PyTorch is expected to be faster",
        "1 of 3 layers and kinds of input run by pysim: 0.370 ms predicted, 1.020 ms expected of PyTorch",
        "compiled",
    ]


def test_a_report_tells_what_first_results_take_and_what_is_kept():
    graphs = [Graph(Layer(Decision("fc", "gemm:1x10x64:nt", "pysim", "skinny"), held_bytes=2_000_000)), Graph(Layer(held_bytes=500_000))]
    report = Report(graphs, first_calls=[FirstCall(2.345, 0.5), FirstCall(0.25, 0.0)])
    assert report.held_bytes == 2_500_000
    assert str(report).splitlines()[-3:] == [
        "first result after 2.35 s, choices, plans and compiling 0.50",
        "first result after 0.25 s, choices, plans and compiling 0.00",
        "2.5 MB kept beside the model",
    ]


@torch.no_grad()
def test_first_calls_are_those_of_new_inputs_and_of_a_changed_model(every_layer_is_ours, fresh_compiler):
    model, x = settled(block()), torch.randn(1, 3, 9, 9)
    optimized = pysim.torch.optimize(model)
    for given, calls in ((x, 1), (x, 1), (torch.randn(2, 3, 9, 9), 2), (x, 2)):
        optimized(given)
        assert len(pysim.torch.report(optimized).first_calls) == calls
    report = pysim.torch.report(optimized)
    assert all(0 <= one.choosing <= one.seconds for one in report.first_calls) and report.first_calls[0].choosing > 0
    weights = sum(one.numel() for one in model.parameters() if one.dim() == 4)
    assert report.held_bytes >= 4 * weights
    model.register_forward_hook(lambda *_: None)
    optimized(x)
    assert len(pysim.torch.report(optimized).first_calls) == 1


def test_the_report_of_no_layers_says_so():
    assert str(Report([])) == "no call yet, or no convolution or product in it"
    assert str(pysim.torch.report(pysim.torch.optimize(settled(block())))) == str(Report([]))


def test_a_report_is_of_one_model_however_it_came_to_pysim(every_layer_is_ours, fresh_compiler):
    """Layers have the names that the model gives them."""
    models, x = [settled(nn.Sequential(block(), nn.Conv2d(8, 4, 1))) for _ in range(2)], torch.randn(1, 3, 9, 9)
    found = [pysim.torch.optimize(models[0]), torch.compile(models[1], backend=pysim.torch.backend)]
    with torch.no_grad():
        for one in found:
            one(x)
    for one in found:
        assert [(decision.layer, decision.runs) for decision in pysim.torch.report(one)] == [("0.0", "pysim"), ("1", "pysim")]


def test_a_report_says_why_a_model_is_pytorchs(every_layer_is_ours):
    class Wrapped(torch.Tensor):
        pass

    model, x = settled(block()), torch.randn(1, 3, 9, 9)
    model[0].weight = nn.Parameter(model[0].weight.detach().as_subclass(Wrapped), requires_grad=False)
    optimized = pysim.torch.optimize(model)
    with torch.no_grad():
        optimized(x)
    (one,) = pysim.torch.report(optimized)
    assert one.runs == "torch" and "Wrapped" in one.reason


def test_a_graph_through_which_gradients_flow_is_told(fresh_compiler):
    model, x = settled(block()), torch.randn(1, 3, 9, 9)
    compiled = torch.compile(model, backend=pysim.torch.backend)
    compiled(x)
    assert not pysim.torch.report(compiled)  # its graphs are found by their parameters, of which such a one keeps none
