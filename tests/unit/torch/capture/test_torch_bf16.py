# SPDX-License-Identifier: Apache-2.0
"""PyTorch models of bfloat16 on a CPU: at least as exact as PyTorch's operators. Models of float32 stay what they are."""

import copy

import torch

import pysim


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
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(ours(x), plain(x))


def test_a_saved_call_is_the_same(tmp_path):
    narrow, x = model().bfloat16(), torch.randn(1, 3, 224, 224).bfloat16()
    ours = pysim.torch.optimize(narrow)
    with torch.no_grad():
        y = ours(x)
        pysim.torch.save(narrow, tmp_path / "call.pysim", x)
        assert torch.equal(pysim.torch.load(tmp_path / "call.pysim", narrow)(x), y)
