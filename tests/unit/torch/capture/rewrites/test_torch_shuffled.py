# SPDX-License-Identifier: Apache-2.0
"""Convolutions whose results are shuffled to pixels, with the filters of a pixel as neighbours; here with the kernels as the CPU runs
them."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch_models import assert_close, settled  # noqa: E402

import pysim.torch  # noqa: E402
from pysim.problem.windows import conv_of  # noqa: E402
from pysim.torch.layers.conv_forms import Geometry, joined  # noqa: E402
from pysim.torch.layers.tap_layer import TapLayer  # noqa: E402


@pytest.mark.parametrize("by", [2, 3])
def test_filters_in_the_order_of_pixels_and_joined_are_the_shuffled_convolution(by):
    x, w = torch.randn(2, 4, 5, 7, dtype=torch.float64), torch.randn(6 * by**2, 4, 3, 3, dtype=torch.float64)
    scale, shift = torch.randn(2, 6 * by**2, dtype=torch.float64)
    geometry = Geometry(padding=(1, 1), shuffled=by)
    problem = conv_of(x.shape, w.shape, (1, 1), (1, 1, 1, 1), (1, 1), 1, "f64")
    of_pixels, *numbers = geometry.of_kernel(problem, w, scale, shift)
    y = functional.conv2d(x, of_pixels, None, padding=1) * numbers[0].reshape(-1, 1, 1) + numbers[1].reshape(-1, 1, 1)
    wanted = functional.conv2d(x, w, None, padding=1) * scale.reshape(-1, 1, 1) + shift.reshape(-1, 1, 1)
    assert_close(joined(y, *geometry.joints(problem, x.shape, w.shape)), functional.pixel_shuffle(wanted, by))


@pytest.fixture
def joins(monkeypatch):
    """How often the graphs that the compiler was given join pixels of neighbouring filters."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    found = []

    def compile_fx(graph, inputs, config_patches):
        found.append(sum(node.target is joined for node in graph.graph.nodes))
        return aot_autograd(fw_compiler=lambda graph, _: make_boxed_func(graph.forward))(graph, inputs)

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    monkeypatch.setattr(TapLayer, "seconds", lambda *_: float("inf"))
    return found


class Upscaler(nn.Module):
    """`between`: what lies between the convolution and its shuffle, whose result is written in place, or read twice."""

    def __init__(self, width, between=None, groups=1, twice=False):
        super().__init__()
        self.conv, self.between, self.twice = nn.Conv2d(8, 4 * width, 3, padding=1, groups=groups), between or nn.Identity(), twice
        self.shuffle, self.last = nn.PixelShuffle(2), nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x):
        y = self.between(self.conv(x))
        large = self.shuffle(y)
        large.add_(1)
        return self.last(large), large, y.mean() if self.twice else None


CASES = [
    (torch.float32, {"width": 8}, 1),
    (torch.float16, {"width": 16, "between": nn.Sequential(nn.BatchNorm2d(64), nn.ReLU())}, 1),
    (torch.float32, {"width": 4}, 0),  # 16 bytes a pixel
    (torch.float32, {"width": 8, "groups": 2}, 0),
    (torch.float32, {"width": 8, "twice": True}, 0),
]


@torch.no_grad()
@pytest.mark.usefixtures("slow_compiler", "on_gpu", "fresh_compiler")
@pytest.mark.parametrize(("dtype", "how", "count"), CASES, ids=str)
def test_a_compiled_graph_moves_runs_of_a_pixel_and_weights_may_change(joins, dtype, how, count):
    model = settled(Upscaler(**how)).to(dtype)
    optimized, x = pysim.torch.optimize(model, compiler=True), torch.randn(2, 8, 5, 6).to(dtype)
    for change in (lambda: None, lambda: model.conv.weight.mul_(2), lambda: model.conv.bias.add_(1)):
        change()
        for found, wanted in zip(optimized(x), model(x), strict=True):
            if wanted is not None:
                assert found.dtype is dtype and found.stride() == wanted.stride()
                assert (found - wanted).abs().max() <= (1e-5 if dtype is torch.float32 else 1e-2) * wanted.abs().max()
    assert sum(joins) == count
