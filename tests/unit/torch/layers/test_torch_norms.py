# SPDX-License-Identifier: Apache-2.0
"""Norms between products of PyTorch models on a GPU, one pass over memory each, by the CUDA kernels as the CPU runs them."""

import emulated_cuda
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from emulated_torch import aligned, as_on_gpu, autocast  # noqa: E402
from torch import nn  # noqa: E402
from torch_models import graphs_of, operators, settled  # noqa: E402

import pysim.torch  # noqa: E402
from pysim.runtime.cuda_norm import Norm, NormLaunch  # noqa: E402
from pysim.runtime.cuda_steps import LaunchSteps, NormStep  # noqa: E402
from pysim.torch.layers import gpu_launch, norm_layers  # noqa: E402
from pysim.torch.layers.layer_chain import LayerChain  # noqa: E402
from pysim.torch.layers.norm_layers import NormLayer, RowNormLayer  # noqa: E402

LAST = torch.channels_last


@pytest.fixture
def launched(monkeypatch):
    """The norms that ran as one pass, by themselves or with the layers around them."""
    torch.manual_seed(0)
    found = []
    with emulated_cuda.opened():
        as_on_gpu(monkeypatch, "a100")
        run = NormLaunch.run
        monkeypatch.setattr(NormLaunch, "run", lambda self, *given: (found.append(self), run(self, *given))[1])
        run_all = LaunchSteps.run

        def together(self, *given):
            found.extend(one.launch for one in self.steps if isinstance(one, NormStep))
            return run_all(self, *given)

        monkeypatch.setattr(LaunchSteps, "run", together)
        yield found
        monkeypatch.undo()


class Dense(nn.Module):
    """DenseNet-like layers of parts with these channels; `twice` reads one part twice, `piece` one as it lies in another."""

    def __init__(self, channels=(8, 4), twice=False, piece=False):
        super().__init__()
        first, grown = channels
        self.twice, self.piece = twice, piece
        self.stem, self.a = nn.Conv2d(3, first, 1), nn.Conv2d(first, grown, 3, padding=1)
        all_channels = first + grown + first * twice + first // 2 * piece
        self.norm, self.b = nn.BatchNorm2d(all_channels), nn.Conv2d(all_channels, 8, 1)

    def forward(self, x):
        x = self.stem(x)
        parts = [x, self.a(x)] + [x] * self.twice + [x[:, : x.shape[1] // 2]] * self.piece
        return self.b(torch.relu(self.norm(torch.cat(parts, 1))))


def assert_same(model, x, close=1e-5):
    with torch.no_grad():
        wanted = model(x)
        optimized = pysim.torch.optimize(model)
        for _ in range(3):
            found = optimized(x)
            assert found.dtype == wanted.dtype and found.shape == wanted.shape
            assert (found - wanted).abs().max() <= close * wanted.abs().max()
    return optimized


@pytest.mark.parametrize("channels", [(8, 4), (16, 8), (5, 3), (7, 16)])
@pytest.mark.parametrize("last", [False, True])
def test_a_norm_of_a_concatenation_reads_its_parts_where_they_lie(channels, last, launched):
    x = torch.randn(2, 3, 6, 5)
    assert_same(settled(Dense(channels)), x.to(memory_format=LAST) if last else x)
    assert len(launched) == 3 and {tuple(one.norm.channels[0:2]) for one in launched} == {channels}


class Block(nn.Module):
    """As ConvNeXt has them; `late` reads the residual afterwards."""

    def __init__(self, channels=16, scale=True, late=False):
        super().__init__()
        self.stem, self.late = nn.Conv2d(3, channels, 1), late
        self.depthwise, self.norm = nn.Conv2d(channels, channels, 7, padding=3, groups=channels), nn.LayerNorm(channels, eps=1e-6)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.randn(channels, 1, 1)) if scale else None

    def forward(self, x):
        x = self.stem(x)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.down(nn.functional.gelu(self.up(y))).permute(0, 3, 1, 2)
        y = y if self.scale is None else self.scale * y
        return (y + x) * x if self.late else y + x


class Squeezed(nn.Module):
    """Squeeze and excitation in front of a projection; `factor_first`: factor * x instead of x * factor."""

    def __init__(self, factor_first=False):
        super().__init__()
        self.factor_first, self.fc, self.project = factor_first, nn.Conv2d(8, 8, 1), nn.Conv2d(8, 6, 1)

    def forward(self, x):
        factor = torch.sigmoid(self.fc(x.mean((2, 3), keepdim=True)))
        return self.project(factor * x if self.factor_first else x * factor)


class Transition(nn.Module):
    """A norm of two parts in front of a convolution that begins with a norm of its own, which no kernel does as it reads."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.norm = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 4, 1), nn.BatchNorm2d(12)
        self.inner, self.conv = nn.Sequential(nn.Conv2d(12, 8, 1), nn.ReLU()), nn.Sequential(nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3))

    def forward(self, x):
        return self.conv(self.inner(self.norm(torch.cat([self.left(x), self.right(x)], 1))))


@pytest.mark.parametrize(
    ("make", "channels", "steps", "norms"),
    [(Block, 3, 5, 1), (Squeezed, 8, 3, 1), (lambda: Squeezed(True), 8, 3, 1), (Transition, 8, 6, 2)],
)
def test_norms_and_the_layers_around_them_are_one_native_call(make, channels, steps, norms, launched, monkeypatch):
    model, x = settled(make()), aligned(torch.empty(2, channels, 8, 6).to(memory_format=LAST))
    optimized = assert_same(model, x)
    called, run = [], LaunchSteps.run
    monkeypatch.setattr(LaunchSteps, "run", lambda self, *given: (called.append(self.steps), run(self, *given))[1])
    for _ in range(2):
        x.normal_()
        with torch.no_grad():
            assert torch.allclose(optimized(x), model(x), rtol=1e-4, atol=1e-5)
    assert [len(one) for one in called] == [steps, steps]
    assert sum(isinstance(one, NormStep) for one in called[0]) == norms
    with torch.no_grad():
        for one in model.parameters():
            one.mul_(1.5)
        assert torch.allclose(optimized(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_part_may_be_read_twice(launched):
    assert_same(settled(Dense(twice=True)), torch.randn(2, 3, 6, 5))
    assert len(launched) == 3 and tuple(launched[0].norm.channels[0:3]) == (8, 4, 8)


def test_a_part_that_lies_in_another_is_joined_by_pytorch(launched):
    assert_same(settled(Dense(piece=True)), torch.randn(2, 3, 6, 5))
    assert not launched


def test_parts_begin_anywhere(launched):
    layer = NormLayer(1e-5, "relu")
    parameters = (torch.rand(12), torch.randn(12), torch.randn(12), torch.rand(12) + 0.5)
    for offset in (0, 1, 2, 3):
        whole = [torch.randn(2 * c * 12 + 4)[offset : offset + 2 * c * 12] for c in (8, 4)]
        parts = [one.as_strided((2, c, 3, 4), (12 * c, 1, 4 * c, c)) for one, c in zip(whole, (8, 4), strict=True)]
        wanted = torch.relu(torch.batch_norm(torch.cat(parts, 1), *parameters, False, 0.0, 1e-5, False))
        assert torch.allclose(layer(parts[0], *parameters, parts[1]), wanted, rtol=1e-5, atol=1e-6)
    assert len(launched) == 4


def test_changed_statistics_take_effect(launched):
    model, x = settled(Dense()), torch.randn(1, 3, 4, 4)
    optimized = assert_same(model, x)
    with torch.no_grad():
        model.norm.running_mean.add_(1)
        assert torch.allclose(optimized(x), model(x), rtol=1e-4, atol=1e-4)


def test_parts_of_other_sizes_are_pytorchs_error(launched):
    layer, parameters = NormLayer(1e-5, None), (None, None, torch.zeros(4), torch.ones(4))
    with pytest.raises(RuntimeError):
        layer(torch.randn(1, 2, 3, 3).to(memory_format=LAST), *parameters, torch.randn(1, 2, 4, 3).to(memory_format=LAST))
    assert not launched


@pytest.mark.parametrize("how", [{}, {"scale": False}, {"late": True}, {"channels": 6}], ids=str)
def test_between_layers_over_channels_no_permute_is_left(how, launched):
    optimized = assert_same(settled(Block(**how)), torch.randn(2, 3, 8, 7))
    (graph,) = graphs_of(optimized)
    assert not [one for one in graph.graph.nodes if "permute" in str(one.target)] and len(launched) == 3
    links = [link for one in graph.modules() if isinstance(one, LayerChain) for link in one.links]
    assert [link.layer.feeds_products for link in links if isinstance(link.layer, RowNormLayer)] == [True]
    left = [one for one in operators(graph) if "add" in str(one.target) or "mul" in str(one.target)]
    assert bool(left) == bool(how.get("late"))  # the factor and the sum are the second product's own


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_under_autocast_a_norm_gives_what_products_read_and_sums_stay_float32(dtype, launched):
    model, x = settled(Block()), torch.randn(2, 3, 8, 7)
    with torch.no_grad():
        wanted = model(x)
        with autocast(dtype):
            optimized = pysim.torch.optimize(model)
            found = [optimized(x) for _ in range(3)]
    assert {(one.norm.dtype, one.norm.out_dtype) for one in launched} == {(2, 2) if dtype is torch.float16 else (3, 3)}
    for y in found:
        assert y.dtype == torch.float32 and (y - wanted).abs().max() <= (2**-8 if dtype is torch.float16 else 2**-5) * wanted.abs().max()


def test_a_factor_that_is_not_one_for_each_channel_is_pytorchs(launched):
    model = settled(Block())
    model.scale = nn.Parameter(torch.randn(1, 1, 1))
    assert_same(model, torch.randn(1, 3, 8, 7))


def test_a_changed_factor_takes_effect(launched):
    model, x = settled(Block()), torch.randn(1, 3, 8, 7)
    optimized = assert_same(model, x)
    with torch.no_grad():
        model.scale.mul_(3)
        assert torch.allclose(optimized(x), model(x), rtol=1e-4, atol=1e-4)


def test_a_layer_norm_over_the_last_axis_is_one_pass(launched):
    assert_same(
        nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 16), nn.GELU(), nn.Linear(16, 24), nn.LayerNorm(24)).eval(), torch.randn(2, 5, 24)
    )
    assert len(launched) == 6


def test_gradients_are_pytorchs(launched):
    model, x = settled(Block()), torch.randn(1, 3, 8, 7)
    optimized = pysim.torch.optimize(model)
    optimized(x).sum().backward()
    assert model.scale.grad is not None and not launched


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_factor_of_each_image_and_channel_is_one_pass(dtype, launched):
    x, factor = torch.randn(3, 8, 5, 4, dtype=dtype).to(memory_format=LAST), torch.rand(3, 8, 1, 1, dtype=dtype)
    product = norm_layers.FactorLayer()
    assert torch.equal(product.apply_factor(x, factor)[0], x * factor) and len(launched) == 1
    planes = x.contiguous()
    assert torch.equal(product.apply_factor(planes, factor)[0], planes * factor) and len(launched) == 1


def test_what_the_library_does_not_take_is_reported():
    with emulated_cuda.opened():
        good = Norm("f16", "f32", 3, (8, 4))
        assert good.supported and not good._replace(rows=0).supported and not good._replace(parts=(4,) * 65).supported
        assert not good._replace(result="bf16").supported and not good._replace(dtype="f64").supported
        assert not good._replace(parts=(8200,), by_rows=True).supported
        with pytest.raises(gpu_launch.PysimError, match=r"NULL"):
            NormLaunch(good).run([0, 0], 0, 0)
        assert norm_layers.TO_NHWC == (0, 2, 3, 1)
