# SPDX-License-Identifier: Apache-2.0
"""Norms of groups of channels with what follows are one pass, where that is expected to win; here by the kernels as the CPU runs them."""

import emulated_cuda
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from emulated_torch import as_on_gpu  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch_models import Captured  # noqa: E402

from pysim.machine.load import load_any  # noqa: E402
from pysim.runtime.cuda_norm import GroupNorm  # noqa: E402
from pysim.torch import operators  # noqa: E402
from pysim.torch.capture.effects import effects_of  # noqa: E402
from pysim.torch.capture.rewrites import group_norms as rewrite  # noqa: E402
from pysim.torch.layers import group_norms as layer  # noqa: E402

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SPACING = {torch.float32: 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}


@pytest.fixture
def launched(monkeypatch):
    """The norms that ran by the kernel, which is expected to win everywhere."""
    norms, run = [], GroupNorm.run
    monkeypatch.setattr(GroupNorm, "run", lambda self, *at: norms.append(self) or run(self, *at))
    monkeypatch.setattr(rewrite, "own_seconds", lambda *_: 0.0)
    with emulated_cuda.opened():
        as_on_gpu(monkeypatch, "h200")
        yield norms


def images(*shape, dtype=torch.float32):
    form = layer.LAST[len(shape)]
    return torch.randn(shape).to(dtype).contiguous(memory_format=form)


class Net(nn.Module):
    """`behind`: what is made of the norm's result and of x, which is not its input."""

    def __init__(self, behind, groups=4, channels=16):
        super().__init__()
        self.conv, self.norm, self.behind = nn.Conv2d(channels, channels, 1), nn.GroupNorm(groups, channels), behind
        self.last = nn.Conv2d(channels, channels, 1)
        nn.init.normal_(self.norm.weight), nn.init.normal_(self.norm.bias)

    def forward(self, x):
        return self.last(self.behind(self.norm(self.conv(x)), x))


def rewritten(model, x, on="h200"):
    """The captured call, the norms that were found in it, and what was put in their place."""
    captured = Captured(model, x)
    found = rewrite.group_norms(captured.module.graph, effects_of(captured.module.graph))
    made = rewrite.insert_group_norms(captured.module, found, [], load_any(on))
    captured.module.graph.lint()
    captured.module.recompile()
    return captured, found, made


@torch.no_grad()
@pytest.mark.parametrize(
    ("behind", "activation", "adds"),
    [
        (lambda y, x: y, None, False),
        (lambda y, x: functional.silu(y), "silu", False),
        (lambda y, x: functional.relu(y, inplace=True), "relu", False),
        (lambda y, x: functional.relu_(y.add_(x)), "relu", True),
        (lambda y, x: x + y, None, True),
        (lambda y, x: torch.relu(x + y), "relu", True),
        (lambda y, x: functional.leaky_relu(y, 0.1), ("leaky_relu", 0.1, 1.0), False),
        (lambda y, x: functional.relu6(y), ("clamp", 0.0, 6.0), False),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_norm_with_what_follows_is_one_pass(behind, activation, adds, dtype, launched):
    torch.manual_seed(0)
    model, x = Net(behind).eval().to(dtype), images(2, 16, 9, 7, dtype=dtype)
    captured, _, made = rewritten(model, x)
    assert [node.target for node in made] == [operators.group_norm]
    y, want = captured(x), model.double()(x.double())
    assert (y - want).abs().max() < 8 * SPACING[dtype] * want.abs().max()
    assert [(one.activation, one.groups) for one in launched][:1] == [(activation, 4)]


@torch.no_grad()
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mean", [0.0, 300.0])
def test_errors_are_those_of_a_norm_in_float32(dtype, mean, launched):
    """A mean that is large beside the deviation cancels nothing."""
    torch.manual_seed(0)
    x = (images(2, 24, 40, 20) + mean).to(dtype)
    gamma, beta = torch.randn(24), torch.randn(24)
    y = layer.group_norm(x, None, gamma, beta, 3, 1e-5, None)
    want = functional.group_norm(x.double(), 3, gamma.double(), beta.double(), 1e-5)
    by_pytorch = functional.group_norm(x.float(), 3, gamma, beta, 1e-5).to(dtype)
    assert launched and y.is_contiguous(memory_format=torch.channels_last)
    assert (y - want).square().mean() <= 1.2**2 * (by_pytorch - want).square().mean()


@torch.no_grad()
@pytest.mark.parametrize("shape", [(2, 8, 1, 1), (3, 40, 5, 3), (2, 64, 13, 13), (2, 16, 3, 4, 5)])
@pytest.mark.parametrize("groups", ["one", "two", "channels"])
def test_shapes_and_groups(shape, groups, launched):
    torch.manual_seed(0)
    x, residual = images(*shape), images(*shape)
    of = {"one": 1, "two": 2, "channels": shape[1]}[groups]
    y = layer.group_norm(x, residual, None, None, of, 1e-3, "relu")
    assert launched and y.is_contiguous(memory_format=layer.LAST[x.dim()])
    assert torch.allclose(y, torch.relu(functional.group_norm(x, of, None, None, 1e-3) + residual), atol=2e-5)


@torch.no_grad()
def test_instance_norms_are_norms_of_groups_of_one_channel(launched):
    model, x = nn.Sequential(nn.Conv2d(8, 8, 1), nn.InstanceNorm2d(8, affine=True), nn.Conv2d(8, 8, 1)).eval(), images(2, 8, 6, 6)
    captured, _, made = rewritten(model, x)
    assert len(made) == 1 and torch.allclose(captured(x), model(x), atol=1e-5)
    assert [one.groups for one in launched] == [8]


@torch.no_grad()
@pytest.mark.parametrize(
    "behind",
    [
        lambda y, x: torch.cat([y, y * 2], 1)[:, :16],  # two readers
        lambda y, x: functional.silu(y) + y,
        lambda y, x: x.add_(y),  # into memory that others have
        lambda y, x: torch.add(y, x, alpha=2),
        lambda y, x: y + x[:, :, :1],  # of another shape
    ],
)
def test_what_others_read_or_write_is_not_part_of_the_pass(behind, launched):
    torch.manual_seed(0)
    model, x = Net(behind).eval(), images(2, 16, 8, 8)
    want, (captured, found, _) = model(x.clone()), rewritten(model, x.clone())
    assert [one.behind for one in found] == [()]
    assert torch.allclose(captured(x), want, atol=1e-5)


@torch.no_grad()
def test_a_layer_between_ends_the_pass(launched):
    """Its kernel may take the memory of what the norm reads."""

    class Beside(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.conv = nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 1)

        def forward(self, x):
            y = self.norm(x)
            return torch.relu(self.conv(x) + y)

    _, found, _ = rewritten(Beside(), images(1, 8, 4, 4))
    assert [one.behind for one in found] == [()]


def test_it_is_chosen_where_the_compiler_would_read_twice():
    x, on = images(16, 64, 112, 112, dtype=torch.float16), load_any("h200")
    alone, fused = (layer.compiler_seconds(x, 32, False, fuses_on, on) for fuses_on in (False, True))
    assert layer.own_seconds(x, False, False, on) < alone
    assert alone > fused
    assert layer.own_seconds(x, False, True, on) > layer.own_seconds(x, False, False, on)


@torch.no_grad()
def test_operands_that_lie_elsewhere_are_pytorchs(launched):
    storage = torch.randn(1 + 2 * 8 * 5 * 5)
    x = storage[1:].view(2, 5, 5, 8).permute(0, 3, 1, 2)
    y = layer.group_norm(x, None, None, None, 2, 1e-5, "relu")
    assert not launched and torch.allclose(y, torch.relu(functional.group_norm(x, 2)), atol=1e-5)
