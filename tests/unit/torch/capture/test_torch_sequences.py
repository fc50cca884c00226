# SPDX-License-Identifier: Apache-2.0
"""Convolutions of sequences and transposed ones in graphs that are compiled around pysim's kernels, here as the CPU runs them."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402
from torch_models import assert_close, settled  # noqa: E402

import pysim.torch  # noqa: E402
from pysim.machine.load import load_any as load  # noqa: E402
from pysim.problem.text import parse  # noqa: E402
from pysim.torch.layers import fused_layer  # noqa: E402
from pysim.torch.layers.compiler_seconds import form_seconds, fused_seconds, library_seconds  # noqa: E402
from pysim.torch.layers.conv_forms import Geometry, joined, joints_of  # noqa: E402

pytestmark = pytest.mark.usefixtures("slow_compiler", "on_gpu", "fresh_compiler")


@pytest.fixture
def by_aot(monkeypatch):
    """AOTAutograd alone stands for the compiler."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    def compile_fx(graph, inputs, config_patches):
        return aot_autograd(fw_compiler=lambda graph, _: make_boxed_func(graph.forward))(graph, inputs)

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)


class Audio(nn.Module):
    """A stem, a residual in place, a stride, a dilation, groups."""

    def __init__(self):
        super().__init__()
        self.stem, self.inner = nn.Conv1d(1, 8, 7, padding=3), nn.Conv1d(8, 8, 3, padding=2, dilation=2)
        self.short, self.norm = nn.Conv1d(8, 8, 1, bias=False), nn.BatchNorm1d(8)
        self.down, self.last = nn.Conv1d(8, 16, 4, 2, padding=1), nn.Conv1d(16, 12, 3, groups=4)

    def forward(self, x):
        x = nn.functional.elu(self.stem(x))
        x = torch.relu(self.norm(self.short(x)) + self.inner(x))
        return self.last(nn.functional.gelu(self.down(x)))


def grown(rank, *about, **more):
    """A transposed convolution, its norm and activation, and what reads it."""
    conv = getattr(nn, f"ConvTranspose{rank}d")(*about, **more)
    norm = getattr(nn, f"BatchNorm{rank}d")(about[1])
    return nn.Sequential(conv, norm, nn.ReLU(), getattr(nn, f"Conv{rank}d")(about[1], 3, 1))


CASES = {
    "sequence": (Audio, (2, 1, 30)),
    "transposed sequence": (lambda: grown(1, 8, 4, 16, 8), (2, 8, 9)),
    "transposed, padded": (lambda: grown(2, 8, 6, 4, 2, 1, bias=False), (3, 8, 5, 4)),
    "longer": (lambda: grown(2, 8, 6, 3, (2, 3), 1, output_padding=(1, 2)), (2, 8, 4, 5)),
    "of groups": (lambda: grown(2, 12, 6, 3, 2, groups=3), (2, 12, 4, 5)),
    "dilated": (lambda: grown(2, 4, 8, 3, 2, 1, dilation=2), (1, 4, 5, 6)),
    "stride 1": (lambda: grown(2, 4, 8, 3, 1, 1, dilation=2), (1, 4, 5, 6)),
    "volume": (lambda: grown(3, 8, 4, 2, 2), (2, 8, 3, 4, 2)),
    "volume, padded": (lambda: grown(3, 4, 8, 3, (1, 2, 3), (1, 0, 2)), (1, 4, 3, 4, 5)),
}


@torch.no_grad()
@pytest.mark.usefixtures("by_aot")
@pytest.mark.parametrize("name", CASES)
def test_results_are_pytorchs(name):
    make, shape = CASES[name]
    model, x = settled(make()), torch.randn(shape)
    optimized = pysim.torch.optimize(model, compiler=True)
    found, wanted = optimized(x), model(x)
    assert_close(found, wanted)
    assert found.stride() == wanted.stride()
    assert {one.runs for one in pysim.torch.report(optimized)} == {"pysim"}
    for one in model.parameters():
        one.mul_(1.25)
    assert_close(optimized(x), model(x))


@torch.no_grad()
@pytest.mark.parametrize("name", ["sequence", "transposed, padded"])
def test_inductor_compiles_what_lies_around_them(name):
    make, shape = CASES[name]
    model, x = settled(make()), torch.randn(shape)
    optimized = pysim.torch.optimize(model, compiler=True)
    assert_close(optimized(x), model(x))
    assert {one.runs for one in pysim.torch.report(optimized)} == {"pysim"}


@torch.no_grad()
@pytest.mark.usefixtures("by_aot")
@pytest.mark.parametrize("name", ["sequence", "transposed, padded"])
def test_layers_of_16_bits_are_of_their_type(name):
    make, shape = CASES[name]
    exact, x = settled(make()), torch.randn(shape)
    optimized = pysim.torch.optimize(copy.deepcopy(exact).half(), compiler=True)
    found = optimized(x.half())
    assert found.dtype is torch.float16 and (found.float() - exact(x)).abs().max() < 0.01
    assert {(one.runs, one.problem.endswith(":f16")) for one in pysim.torch.report(optimized)} == {("pysim", True)}


@torch.no_grad()
def test_without_the_compiler_they_are_pytorchs():
    model, x = settled(Audio()), torch.randn(2, 1, 30)
    optimized = pysim.torch.optimize(model, compiler=False)
    assert_close(optimized(x), model(x))
    assert not any(one.runs == "pysim" for one in pysim.torch.report(optimized))


@torch.no_grad()
@pytest.mark.usefixtures("every_layer_is_ours")
@pytest.mark.parametrize("name", [name for name in CASES if name != "sequence"])
def test_transposed_ones_are_layers_without_the_compiler(name):
    make, shape = CASES[name]
    model, x = settled(make()), torch.randn(shape)
    optimized = pysim.torch.optimize(model, compiler=False)
    found, wanted = optimized(x), model(x)
    assert_close(found, wanted)
    assert found.stride() == wanted.stride()
    transposed = pysim.torch.report(optimized)[0]
    assert (transposed.layer, transposed.runs) == ("0", "pysim")
    for one in model.parameters():
        one.mul_(1.25)
    assert_close(optimized(x), model(x))
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim(), torch.contiguous_format)
    assert_close(optimized(x.to(memory_format=last)), model(x))


@torch.no_grad()
def test_weights_of_layers_left_to_pytorch_lie_as_their_images_do(monkeypatch):
    model, x = settled(grown(2, 8, 6, 4, 2, 1)), torch.randn(2, 8, 5, 4).to(memory_format=torch.channels_last)
    monkeypatch.setattr(fused_layer, "pytorch_seconds", lambda *_: 0.0)
    seen, convolved = [], fused_layer.convolved
    monkeypatch.setattr(fused_layer, "convolved", lambda x, w, *more: seen.append(w) or convolved(x, w, *more))
    optimized = pysim.torch.optimize(model, compiler=False)
    for _ in range(2):
        assert_close(optimized(x), model(x))
    first, *_, again = [one for one in seen if one.shape == model[0].weight.shape]
    assert first.is_contiguous(memory_format=torch.channels_last) and again is first
    assert {one.runs for one in pysim.torch.report(optimized)} == {"torch"}


def test_phases_lie_together_where_channels_are_last():
    """So that interleaving moves runs of a group's filters."""
    geometry = Geometry((2, 2), (1, 1), (1, 1), 1, (0, 0))
    of = geometry.phases((1, 8, 4, 4), (8, 16, 4, 4))
    y = torch.empty(of.problem.output_shape).to(memory_format=torch.channels_last)
    moved = joined(y.copy_(torch.arange(y.numel()).reshape(y.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2)), *joints_of(of))
    assert moved.shape == (1, 16, 8, 8) and (moved.diff(dim=1) == 1).all()


def test_what_lies_around_a_kernel_is_priced():
    on, problem = load("h200"), parse("conv:mb8ic32iw24000oc64ow12000kw4sw2pw1:f16")
    sequence, results = Geometry((2,), (1,), (1,)), 8 * 64 * 12000
    around = sum(fused_seconds(each, 4 * each, on) for each in (results, 8 * 32 * 24000, 32 * 64 * 4))
    assert form_seconds(problem, on, sequence, results) == (0.0, pytest.approx(around))
    assert form_seconds(problem, on, Geometry(), results) == (0.0, 0.0)
    gradient = 0.25 * library_seconds(problem, on)
    assert form_seconds(problem, on, Geometry((2, 1), added=(0, 0)), results) == (fused_seconds(results, 4 * results, on), gradient)
    assert form_seconds(problem, on, Geometry(added=(0, 0)), results) == (0.0, gradient)


@torch.no_grad()
@pytest.mark.usefixtures("by_aot")
def test_a_graph_of_them_is_compiled_where_the_expected_calls_repay_that():
    model, x = settled(nn.Sequential(nn.Conv1d(64, 32, 4, 2, 1), nn.ReLU(), nn.Conv1d(32, 3, 1))), torch.randn(8, 64, 256)
    few, many = (pysim.torch.optimize(model, cuda_graph="caller", runs=runs) for runs in (1, 10**8))
    for optimized, runs in ((few, "torch"), (many, "pysim")):
        assert_close(optimized(x), model(x))
        assert [one.runs for one in pysim.torch.report(optimized) if "ic64" in one.problem] in ([runs], [])
    assert len(pysim.torch.report(few)) < len(pysim.torch.report(many))
