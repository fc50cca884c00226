# SPDX-License-Identifier: Apache-2.0
"""Convolutions that PyTorch's library computes with their norm, residual and ReLU; here on a CPU, by PyTorch's own operators."""

import copy
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402
from torch_models import settled  # noqa: E402

import pysim.torch  # noqa: E402
from pysim.torch.capture import compiled_layers  # noqa: E402

pytestmark = pytest.mark.usefixtures("slow_compiler", "on_gpu", "fresh_compiler")
FOLDED = torch.ops.pysim.convolution_relu.default


@pytest.fixture
def folded(monkeypatch):
    """The arguments of each such convolution in the graphs that the compiler was given; it is expected to win wherever it can be."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    found = []

    def keep(graph, _):
        found.extend(node.args for node in graph.graph.nodes if node.target is FOLDED)
        return make_boxed_func(graph.forward)

    def compile_fx(graph, inputs, config_patches):
        return aot_autograd(fw_compiler=keep)(graph, inputs)

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    monkeypatch.setattr(compiled_layers, "compiler_seconds", lambda *_: 1.0)
    monkeypatch.setattr(compiled_layers, "own_seconds", lambda *_: 2.0)
    monkeypatch.setattr(compiled_layers, "folded_seconds", lambda *_: 0.5)
    return found


class Residual(nn.Module):
    """A bias and ReLU; a norm, a residual and ReLU; a norm alone; a norm and SiLU; groups."""

    def __init__(self):
        super().__init__()
        self.stem, self.one = nn.Conv2d(8, 8, 3, 2, 1), nn.Conv2d(8, 8, (1, 3), padding=(0, 1), bias=False)
        self.short, self.last, self.groups = nn.Conv2d(8, 8, 1, bias=False), nn.Conv2d(8, 8, 1, bias=False), nn.Conv2d(8, 8, 3, groups=8)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8) for _ in range(3)])
        self.silu = nn.SiLU()

    def forward(self, x):
        x = torch.relu(self.stem(x))
        residual = x * 2
        y = torch.relu(self.norms[0](self.one(x)) + residual)
        y = y + self.norms[1](self.short(y))
        return torch.relu(self.groups(self.silu(self.norms[2](self.last(y)))))


def close(found, wanted):
    assert (found.float() - wanted.float()).abs().max() < 0.02 * wanted.abs().max()
    assert found.stride() == wanted.stride() and found.dtype is wanted.dtype


@torch.no_grad()
def test_norm_residual_and_relu_are_in_the_librarys_kernel_and_weights_may_change(folded):
    exact, x = settled(Residual()), torch.randn(2, 8, 17, 17)
    model = copy.deepcopy(exact).half()
    optimized = pysim.torch.optimize(model, "standard", cuda_graph="caller", compiler=True)
    close(optimized(x.half()), model(x.half()))
    assert [(one[3] is not None, *one[4:]) for one in folded] == [(False, [2, 2], [1, 1], [1, 1]), (True, [1, 1], [0, 1], [1, 1])]
    for change in (
        lambda: model.stem.bias.add_(1),
        lambda: model.one.weight.mul_(2),
        lambda: model.norms[0].running_mean.add_(0.5),
        lambda: setattr(model, "stem", nn.Conv2d(8, 8, 3, 2, 1).half()),
    ):
        change()
        close(optimized(x.half()), model(x.half()))


@torch.no_grad()
@pytest.mark.parametrize("when", ["before", "after"])
def test_weights_that_the_type_does_not_hold_multiplied_are_not(folded, when):
    model, x = settled(Residual()).half(), torch.randn(2, 8, 17, 17).half()
    optimized = pysim.torch.optimize(model, "standard", cuda_graph="caller", compiler=True)
    if when == "after":
        close(optimized(x), model(x))
    model.norms[0].weight.mul_(2.0**-14)
    close(optimized(x), model(x))
    assert not pysim.torch.report(optimized).notes
    assert [one[3] is not None for one in folded] == ([False, True] if when == "after" else [False])


@torch.no_grad()
@pytest.mark.parametrize("kind", ["f32", "large"])
def test_other_types_and_weights_larger_than_their_result_are_not(folded, kind):
    model, x = settled(Residual()), torch.randn(2, 8, 17, 17) if kind == "f32" else torch.randn(1, 8, 2, 2)
    if kind == "large":
        model, x = nn.Sequential(nn.Conv2d(8, 8, 1), nn.ReLU()).half(), torch.randn(1, 8, 2, 2).half()
    optimized = pysim.torch.optimize(model, "standard", cuda_graph="caller", compiler=True)
    close(optimized(x), model(x))
    assert not folded


@torch.no_grad()
@pytest.mark.parametrize(("accuracy", "convolutions"), [("strict", [3]), ("standard", [0, 1, 2, 3, 4, 5, 6]), ("ieee", [])])
def test_accuracy_strict_folds_as_many_as_errors_allow_those_that_gain_most(folded, monkeypatch, accuracy, convolutions):
    """Of seven at most 7 (1.2^2 - 1) / 1.8: one."""
    channels = [8, 8, 32, 16, 64, 8, 8, 8]
    gains = {8: 0.1, 16: 0.2, 32: 0.4, 64: 0.5}
    monkeypatch.setattr(compiled_layers, "folded_seconds", lambda problem, *_: 1 - gains[problem.filters])
    layers = [layer for a, b in pairwise(channels) for layer in (nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())]
    model, x = settled(nn.Sequential(*layers)).half(), torch.randn(2, 8, 17, 17).half()
    optimized = pysim.torch.optimize(model, accuracy, cuda_graph="caller", compiler=True)
    close(optimized(x), model(x))
    shapes = [channels[at + 1] for at in convolutions]
    assert sorted(one[1].meta["val"].shape[0] for one in folded) == sorted(shapes)
