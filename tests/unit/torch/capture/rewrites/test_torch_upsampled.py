# SPDX-License-Identifier: Apache-2.0
"""Convolutions of upsampled images as transposed ones of the images themselves; here with the kernels as the CPU runs them."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import fx, nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch_models import assert_close, settled  # noqa: E402

import pysim.torch  # noqa: E402
from pysim.torch.capture import compiled_layers  # noqa: E402
from pysim.torch.capture.rewrites.upsampled_images import factors_of  # noqa: E402
from pysim.torch.layers.conv_forms import Geometry  # noqa: E402

FORMS = [  # factors, taps, padding, groups
    ((2, 2), (3, 3), (1, 1), 1),
    ((2, 2), (3, 3), (0, 2), 2),
    ((4, 2), (5, 3), (2, 0), 1),
    ((2, 1), (5, 3), (4, 1), 4),
    ((2,), (7,), (3,), 2),
    ((2, 2, 2), (3, 3, 3), (1, 0, 1), 1),
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_transposed_convolution_with_summed_taps_is_that_of_the_upsampled_image(form):
    factors, kernel, padding, groups = form
    of = Geometry((1,) * len(kernel), padding, (1,) * len(kernel), groups)
    made = Geometry.of_upsampled(of, factors, kernel)
    x = torch.randn(2, 8, *(5, 4, 6)[: len(kernel)], dtype=torch.float64)
    w = torch.randn(12, 8 // groups, *kernel, dtype=torch.float64)
    large = functional.interpolate(x, scale_factor=tuple(map(float, factors)))
    rank = len(kernel)
    found = getattr(functional, f"conv_transpose{rank}d")(x, made.summed_taps(w), None, made.stride, made.padding, 0, groups)
    assert_close(found, getattr(functional, f"conv{rank}d")(large, w, None, 1, padding, 1, groups))
    assert made.phases(x.shape, w.shape).output_shape == tuple(found.shape)


@pytest.mark.parametrize(
    ("of", "factors", "kernel"),
    [
        (Geometry((1, 1), (1, 1)), (3, 3), (3, 3)),  # phases of unlike taps
        (Geometry((2, 2), (1, 1)), (2, 2), (3, 3)),
        (Geometry((1, 1), (1, 1), (2, 2)), (2, 2), (3, 3)),
        (Geometry((1, 1), (3, 3)), (2, 2), (3, 3)),  # results beyond the image's taps
        (Geometry((1, 1), (0, 0)), (2, 2), (1, 1)),  # nothing to sum
        (Geometry((1, 1), (1, 1)), (1, 1), (3, 3)),
        (Geometry((1, 1), (1, 1), added=(0, 0)), (2, 2), (3, 3)),
        (Geometry((1,), (1,)), (2, 2), (3, 3)),
    ],
)
def test_other_convolutions_have_no_such_form(of, factors, kernel):
    assert Geometry.of_upsampled(of, factors, kernel) is None


def test_sixteen_bit_weights_are_summed_in_float32_and_others_rounded_once():
    made = Geometry.of_upsampled(Geometry((1, 1), (1, 1)), (2, 2), (3, 3))
    w = torch.tensor([1.0, 2.0**-11, 2.0**-11]).repeat(3, 1).reshape(1, 1, 3, 3)
    assert made.summed_taps(w.half()).dtype is torch.float32
    assert torch.equal(made.summed_taps(w.half()), made.summed_taps(w.double()).float())
    assert torch.equal(made.summed_taps(w), made.summed_taps(w.double()).float())


def upsampling(shape, **how):
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["example_value"] = torch.empty(shape, device="meta")
    node = graph.call_function(functional.interpolate, (x,), how)
    node.meta["example_value"] = functional.interpolate(x.meta["example_value"], **how)
    return node


@pytest.mark.parametrize(
    ("how", "factors"),
    [
        ({"scale_factor": 2}, (2, 2)),
        ({"scale_factor": (2.0, 3.0), "mode": "nearest-exact"}, (2, 3)),
        ({"size": (12, 14)}, (2, 2)),
        ({"scale_factor": 2.1}, ()),  # 12 x 14 pixels, but not by repeating each twice
        ({"size": (13, 14)}, ()),
        ({"scale_factor": 2, "mode": "bilinear"}, ()),
        ({"scale_factor": 0.5}, ()),
    ],
)
def test_only_repeated_pixels_are_known(how, factors):
    assert factors_of(upsampling((1, 2, 6, 7), **how)) == factors
    if factors:
        x = torch.randn(1, 2, 6, 7)
        repeated = x.repeat_interleave(factors[0], 2).repeat_interleave(factors[1], 3)
        assert torch.equal(functional.interpolate(x, **how), repeated)


def test_factors_whose_float32_inverse_rounds_to_other_pixels_are_refused():
    assert factors_of(upsampling((1, 1, 1, 60), scale_factor=(1, 41))) == ()
    assert factors_of(upsampling((1, 1, 1, 60), scale_factor=(1, 4))) == (1, 4)


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that the compiler was given; layers of upsampled images are always expected to be faster as those of the image."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    found = []

    def keep(graph, _):
        found.append(graph)
        return make_boxed_func(graph.forward)

    monkeypatch.setattr(
        "torch._inductor.compile_fx.compile_fx", lambda graph, inputs, config_patches: aot_autograd(fw_compiler=keep)(graph, inputs)
    )
    monkeypatch.setattr(compiled_layers, "upsampling_seconds", lambda *_: (1.0, 0.0))
    return found


def has_upsampling(found):
    return any("_unsafe_index" in str(node.target) for graph in found for node in graph.graph.nodes)


def of_image(optimized):
    return sum(one.reason.endswith("before it is upsampled") for one in pysim.torch.report(optimized))


class Decoder(nn.Module):
    def __init__(self, inplace=False, normed=True, skips=False, last=3):
        super().__init__()
        self.first, self.relu = nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(inplace)
        self.up, self.conv = nn.Upsample(scale_factor=2), nn.Conv2d(8, 16, 3, padding=1, bias=not normed)
        self.norm, self.last = nn.BatchNorm2d(16) if normed else nn.Identity(), nn.Conv2d(16, last, 3, padding=1)
        self.skips, self.skip = skips, nn.Conv2d(8, 16, 1)

    def forward(self, x):
        large = self.up(self.relu(self.first(x)))
        y = self.relu(self.norm(self.conv(large)))
        return self.last(y + self.skip(large) if self.skips else y)


compiled_here = pytest.mark.usefixtures("slow_compiler", "on_gpu", "fresh_compiler")


@torch.no_grad()
@compiled_here
@pytest.mark.parametrize(
    ("dtype", "how"),
    [(torch.float16, {}), (torch.bfloat16, {}), (torch.float32, {"inplace": True, "normed": False}), (torch.float32, {"skips": True})],
    ids=str,
)
def test_a_compiled_graph_reads_the_small_image_and_weights_may_change(graphs, dtype, how):
    model = settled(Decoder(**how)).to(dtype)
    optimized, x = pysim.torch.optimize(model, compiler=True, accuracy="standard"), torch.randn(2, 4, 7, 6).to(dtype)
    changes = (lambda: None, lambda: model.conv.weight.mul_(2), lambda: model.conv.weight.data.copy_(model.conv.weight.flip(0)))
    for change in changes:
        change()
        found, wanted = optimized(x), model.double()(x.double())
        model.to(dtype)
        assert found.dtype is dtype and found.stride() == wanted.stride()
        error = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}[dtype]
        assert (found - wanted).abs().max() <= error * wanted.abs().max()
    assert of_image(optimized) == 1 and has_upsampling(graphs) == bool(how.get("skips"))


@torch.no_grad()
@compiled_here
@pytest.mark.parametrize("writes", ["small", "large", "none"])
def test_an_image_that_is_written_before_the_layer_is_upsampled_first(graphs, writes):
    class Written(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.conv = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x):
            small = self.first(x)
            large = functional.interpolate(small, scale_factor=2.0)
            if writes == "small":
                small.mul_(3.0)
            elif writes == "large":
                large[:, :, 0].fill_(2.0)
            y = self.conv(large)
            return y + small.mean()

    model, x = settled(Written()), torch.randn(2, 4, 6, 6)
    optimized = pysim.torch.optimize(model, compiler=True)
    assert_close(optimized(x), model(x))
    assert of_image(optimized) == (writes == "none")


@torch.no_grad()
@compiled_here
def test_few_sums_of_weights_are_rounded_where_errors_stay_those_of_pytorch(graphs):
    """One layer in five may round its weights once more; under accuracy standard each."""
    for accuracy, count in (("strict", 0), ("standard", 1)):
        model = settled(Decoder()).half()
        optimized = pysim.torch.optimize(model, compiler=True, accuracy=accuracy)
        optimized(torch.randn(2, 4, 6, 6).half())
        assert of_image(optimized) == count


@torch.no_grad()
@compiled_here
def test_sums_that_float16_does_not_hold_leave_the_layer_to_pytorch(graphs):
    model, x = settled(Decoder(normed=False)).half(), torch.randn(1, 4, 6, 6).half()
    optimized = pysim.torch.optimize(model, compiler=True, accuracy="standard")
    assert torch.allclose(optimized(x), model(x), 1e-2, 1e-2)
    model.conv.weight[0] = 4e4
    model.first.weight.mul_(1e-4), model.first.bias.mul_(1e-4)
    found, wanted = optimized(x), model(x)
    assert torch.equal(found.isfinite(), wanted.isfinite()) and torch.allclose(found, wanted, 1e-2, 1e-2, equal_nan=True)


@compiled_here
def test_gradients_are_those_of_pytorch():
    model, x = Decoder(), torch.randn(2, 4, 6, 6)
    optimized = pysim.torch.optimize(model, compiler=True)
    optimized(x).square().sum().backward()
    found = [one.grad.clone() for one in model.parameters() if one.grad is not None]
    model.zero_grad()
    model(x).square().sum().backward()
    for a, b in zip(found, (one.grad for one in model.parameters() if one.grad is not None), strict=True):
        assert_close(a, b)
