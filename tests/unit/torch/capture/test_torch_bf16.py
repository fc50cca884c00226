# SPDX-License-Identifier: Apache-2.0
"""PyTorch models of bfloat16 on a CPU: at least as exact as PyTorch's operators. Models of float32 stay what they are."""

import copy

import torch

import pysim
from pysim.calibration import host
from pysim.network.halves.narrow import computes_narrow


def model():
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 32, 3, 2, 1, bias=False), torch.nn.BatchNorm2d(32), torch.nn.ReLU()]
    for _ in range(4):
        layers += [torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.SiLU(), torch.nn.Conv2d(32, 32, 1)]
    return torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 10)).eval()


def test_a_model_of_bfloat16_is_at_least_as_exact_as_pytorchs_operators():
    narrow, x = model().bfloat16(), torch.randn(2, 3, 96, 96).bfloat16()
    exact, ours = copy.deepcopy(narrow).double(), pysim.torch.optimize(narrow)
    with torch.no_grad():
        y, theirs, wanted = ours(x), narrow(x), exact(x.double())
    assert y.dtype is torch.bfloat16 and y.shape == theirs.shape
    assert (y - wanted).square().mean() <= 1.2**2 * (theirs - wanted).square().mean()


def test_a_model_of_float32_is_never_computed_in_bfloat16():
    plain, x = model(), torch.randn(2, 3, 96, 96)
    ours = pysim.torch.optimize(plain)
    with torch.no_grad():
        y, wanted = ours(x), copy.deepcopy(plain).double()(x.double())
        assert (y - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    assert ":bf16" not in str(pysim.torch.report(ours))


class Mixed(torch.nn.Module):
    """What autocast leaves in float32, what it casts, sums of both, and a conversion of its own."""

    def __init__(self):
        super().__init__()
        self.convs, self.norm, self.linear = model(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 32)

    def forward(self, x):
        y = self.convs[:9](x)
        rows = y.flatten(2).transpose(1, 2).float()
        rows = rows + self.linear(self.norm(rows))
        return rows.bfloat16().float() * 3 + torch.softmax(rows, -1)


def test_under_autocast_models_of_float32_run_as_it_says():
    plain, x = Mixed().eval(), torch.randn(2, 3, 96, 96)
    exact, ours = copy.deepcopy(plain).double(), pysim.torch.optimize(plain)
    exact.forward = lambda x: doubles(exact, x)
    with torch.no_grad():
        wanted = exact(x.double())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y, theirs = ours(x), plain(x)
        assert ":bf16" in str(pysim.torch.report(ours)) or not computes_narrow(host.runnable("host"))
        assert y.dtype is theirs.dtype is torch.float32
        assert (y - wanted).square().mean() <= 1.2**2 * (theirs - wanted).square().mean()
        assert (ours(x) - plain(x)).abs().max() <= 2.0**-7 * wanted.abs().max()  # without it again: float32 but for the one conversion


def doubles(model, x):
    """Mixed without its conversions."""
    rows = model.convs[:9](x).flatten(2).transpose(1, 2)
    rows = rows + model.linear(model.norm(rows))
    return rows * 3 + torch.softmax(rows, -1)


def test_a_conversion_of_a_models_own_rounds():
    class Rounded(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(16, 16, 3, padding=1)

        def forward(self, x):
            return self.conv(torch.relu(self.conv(x)).bfloat16().float())

    plain, x = Rounded().eval(), torch.randn(1, 16, 96, 96)
    ours = pysim.torch.optimize(plain)
    with torch.no_grad():
        first = torch.relu(plain.conv(x))
        wanted, unrounded = plain.conv(first.bfloat16().float()), plain.conv(first)
        assert (ours(x) - wanted).square().mean() < 0.2 * (unrounded - wanted).square().mean()


def test_a_saved_call_is_the_same(tmp_path):
    narrow, x = model().bfloat16(), torch.randn(1, 3, 224, 224).bfloat16()
    ours = pysim.torch.optimize(narrow)
    with torch.no_grad():
        y = ours(x)
        pysim.torch.save(narrow, tmp_path / "call.pysim", x)
        assert torch.equal(pysim.torch.load(tmp_path / "call.pysim", narrow)(x), y)
