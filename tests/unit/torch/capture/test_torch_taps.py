# SPDX-License-Identifier: Apache-2.0
"""Convolutions of few filters as products with their taps, whose parts the compiler sums; here with the kernels as the CPU runs them."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch_models import assert_close, settled  # noqa: E402

import pysim.torch  # noqa: E402
from pysim import planner  # noqa: E402
from pysim.machine.load import load_any as load  # noqa: E402
from pysim.torch.layers.conv_forms import Geometry  # noqa: E402
from pysim.torch.layers.fused_layer import FusedLayer  # noqa: E402
from pysim.torch.layers.tap_layer import TapLayer, summed  # noqa: E402

FORMS = [
    ((3, 3), (1, 1), (1, 1), (1, 1)),
    ((5, 1), (2, 1), (0, 2), (1, 1)),
    ((2, 3), (3, 2), (4, 0), (2, 3)),
    ((9, 9), (1, 1), (4, 4), (1, 1)),
]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("biased", [False, True])
def test_summed_parts_are_the_convolution(form, biased):
    kernel, stride, padding, dilation = form
    x, w = torch.randn(2, 4, 13, 11, dtype=torch.float64), torch.randn(3, 4, *kernel, dtype=torch.float64)
    bias = torch.randn(3, dtype=torch.float64) if biased else None
    parts = functional.conv2d(x, functional.pad(w.permute(2, 3, 0, 1).reshape(-1, 4, 1, 1), (0,) * 7 + (5,)))
    found = summed(parts, bias, 3, kernel, (stride, padding, dilation), torch.float64)
    assert_close(found, functional.conv2d(x, w, bias, stride, padding, dilation))


def test_infinite_pixels_reach_the_outputs_that_they_reach_in_the_convolution():
    x, w = torch.zeros(1, 4, 9, 9), torch.ones(3, 4, 3, 3)
    x[0, 1, 4, 4] = float("inf")
    parts = functional.conv2d(x, w.permute(2, 3, 0, 1).reshape(-1, 4, 1, 1))
    found = summed(parts, None, 3, (3, 3), ((1, 1), (1, 1), (1, 1)), torch.float32)
    assert torch.equal(found, functional.conv2d(x, w, padding=1))


@pytest.mark.parametrize(
    "how", [{"activation": "relu"}, {"epsilon": 1e-5}, {"times": 0.5}, {"geometry": Geometry(groups=2)}, {"kind": "Linear"}]
)
def test_a_layer_with_more_than_a_bias_is_none(how):
    given = {"name": "layer", "kind": "Conv", "geometry": Geometry(padding=(1, 1)), "activation": None, "epsilon": None}
    assert TapLayer.of(FusedLayer(**given)) is not None and TapLayer.of(FusedLayer(**given | how)) is None


def test_many_filters_cost_more_than_the_convolution_and_few_less():
    """Of 64 channels and 192x192 pixels, batch 16: 3 and 64 filters."""
    h200 = load("h200")
    for filters, wins in ((3, True), (64, False)):
        layer = TapLayer("layer", "Conv", Geometry(padding=(1, 1)), None, None)
        problem = layer.problem_of(torch.empty(16, 64, 192, 192, device="meta"), torch.empty(filters, 64, 3, 3, device="meta"), "tf32")
        direct = planner.plan(f"conv:mb16ic64ih192oc{filters}kh3ph1:tf32", h200, layout="nhwc")
        taps = layer.seconds(planner.plan(problem, h200, layout="nhwc"), 9, 16 * filters * 192**2, h200)
        assert (taps < direct.seconds) == wins


@torch.no_grad()
@pytest.mark.usefixtures("slow_compiler", "on_gpu", "fresh_compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_compiled_graph_has_them_and_weights_may_change(monkeypatch, dtype):
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    def compile_fx(graph, inputs, config_patches):
        return aot_autograd(fw_compiler=lambda graph, _: make_boxed_func(graph.forward))(graph, inputs)

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    monkeypatch.setattr(TapLayer, "seconds", lambda *_: 0.0)
    model = settled(nn.Sequential(nn.Conv2d(4, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 3, 3, 2, padding=1), nn.Tanh())).to(dtype)
    optimized, x = pysim.torch.optimize(model, compiler=True), torch.randn(2, 4, 12, 10, dtype=dtype)
    for change in (lambda: None, lambda: model[2].weight.mul_(2), lambda: model[2].bias.add_(1)):
        change()
        found, wanted = optimized(x), model(x)
        assert found.stride() == wanted.stride() and found.dtype is dtype
        assert (found - wanted).abs().max() <= (1e-5 if dtype is torch.float32 else 4e-3)
    assert sum(one.reason.endswith("of its taps") for one in pysim.torch.report(optimized)) == 1
