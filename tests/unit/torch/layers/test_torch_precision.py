# SPDX-License-Identifier: Apache-2.0
"""Layers of PyTorch models in the types that PyTorch would take: TF32, autocast's, those of converted models."""

import copy
from contextlib import nullcontext

import emulated_cuda
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from emulated_torch import aligned, as_on_gpu, autocast  # noqa: E402
from torch import nn  # noqa: E402
from torch_models import layers_of, settled  # noqa: E402

import pysim.torch  # noqa: E402
from pysim.machine.load import load_any  # noqa: E402
from pysim.problem.text import parse  # noqa: E402
from pysim.torch import cuda_graph, precision  # noqa: E402
from pysim.torch.layers.conv_forms import Geometry  # noqa: E402
from pysim.torch.layers.fused_layer import FusedLayer  # noqa: E402
from pysim.torch.layers.layer_chain import LayerChain  # noqa: E402
from pysim.torch.precision import Settings, settings, types_of  # noqa: E402

HALVES = [torch.float16, torch.bfloat16]
NAMES = {torch.float16: "f16", torch.bfloat16: "bf16"}
ERRORS = {"tf32": 2.0**-9, "f16": 2.0**-9, "bf16": 2.0**-6}  # a few roundings of the type, over the largest result


@pytest.fixture
def on_gpu(monkeypatch):
    torch.manual_seed(0)
    with emulated_cuda.opened():
        as_on_gpu(monkeypatch, "a100")
        yield
        monkeypatch.undo()


def allow_tf32(monkeypatch):
    monkeypatch.setattr(precision, "tf32", lambda kind: True)


def types(x_type, w_type, accuracy="strict", conv=False, linear=False, cast=None, kind="Conv", on_gpu=True):
    class Lying:
        def __init__(self, dtype):
            self.dtype, self.is_cuda = dtype, on_gpu

    return types_of(Lying(x_type), Lying(w_type), kind, accuracy, Settings(conv, linear, cast))


def test_types_are_those_that_pytorch_would_take():
    f32, f64, (f16, bf16) = torch.float32, torch.float64, HALVES
    assert types(f32, f32) == ("f32",) and types(f64, f64) == ("f64",) and types(f16, f16) == ("f16",) and types(bf16, bf16) == ("bf16",)
    assert types(f32, f32, conv=True) == ("tf32", "f32") and types(f32, f32, linear=True) == ("f32",)
    assert types(f32, f32, linear=True, kind="Linear") == ("tf32", "f32") and types(f64, f64, conv=True) == ("f64",)
    assert types(f32, f32, "ieee", conv=True) == ("f32",) and types(f32, f32, "tf32") == ("tf32", "f32")
    for x, w in ((f32, f32), (f16, f32), (f32, bf16)):
        assert types(x, w, conv=True, cast=f16) == ("f16",) and types(x, w, cast=bf16) == ("bf16",)
    assert types(f64, f64, cast=f16) == ("f64",) and types(f32, f32, cast=torch.float64) == ()
    assert types(f32, f16) == types(torch.int32, torch.int32) == ()
    assert types(f32, f32, conv=True, on_gpu=False) == ("f32",) and types(f16, f16, on_gpu=False) == ()


def test_settings_are_the_programs():
    assert settings().cast is None
    with autocast(torch.bfloat16):
        assert settings().cast is torch.bfloat16
    assert settings().cast is None


class Block(nn.Module):
    """A stem, a residual, a layer with few channels, a product."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.a = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU())
        self.b, self.pool, self.fc = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)), nn.AdaptiveAvgPool2d(2), nn.Linear(32, 5)

    def forward(self, x):
        x = self.stem(x)
        x = torch.relu(self.b(self.a(x)) + x)
        return self.fc(self.pool(x).flatten(1))


def assert_near(found, wanted, name):
    assert found.shape == wanted.shape and (found.float() - wanted.float()).abs().max() <= ERRORS[name] * wanted.abs().max()


def told(optimized):
    return {(one.runs, one.problem.rpartition(":")[2]) for one in pysim.torch.report(optimized)}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", HALVES)
def test_under_autocast_layers_are_of_its_type(dtype, last, on_gpu):
    model, plain = settled(Block()), torch.randn(2, 3, 12, 12)
    x = plain.to(memory_format=torch.channels_last) if last else plain
    optimized = pysim.torch.optimize(model)
    with torch.no_grad():
        wanted = model(plain)
        with autocast(dtype):
            found = [optimized(x) for _ in range(4)]
        assert told(optimized) == {("pysim", NAMES[dtype])}
        for y in found:
            assert y.dtype is dtype
            assert_near(y, wanted, NAMES[dtype])
            assert torch.equal(y, found[0])
        assert torch.allclose(optimized(x), wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))
        model.fc.weight.mul_(2)
        with autocast(dtype):
            assert_near(optimized(x), model(plain), NAMES[dtype])


@pytest.mark.parametrize("dtype", HALVES)
def test_converted_models_have_layers_of_their_type(dtype, on_gpu):
    model, x = settled(Block()), torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        wanted = model(x)
        optimized = pysim.torch.optimize(model.to(dtype))
        found = optimized(x.to(dtype))
    assert found.dtype is dtype and told(optimized) == {("pysim", NAMES[dtype])}
    assert_near(found, wanted, NAMES[dtype])


def test_where_tf32_is_allowed_the_faster_type_is_taken(on_gpu, monkeypatch):
    """Of layers that find their inputs as they lie in either: channels last from the beginning."""
    model, x = settled(Block()), torch.randn(2, 3, 12, 12).to(memory_format=torch.channels_last)
    with torch.no_grad():
        wanted = model(x.contiguous())
        by_program, asked, ieee = (pysim.torch.optimize(model, accuracy) for accuracy in ("strict", "tf32", "ieee"))
        assert_near(asked(x), wanted, "tf32")
        allow_tf32(monkeypatch)
        assert_near(by_program(x), wanted, "tf32")
        assert torch.allclose(ieee(x), wanted, rtol=1e-5, atol=1e-5)
    seconds = {one.problem: one.predicted_seconds for one in pysim.torch.report(by_program)}
    assert {one.problem: one.predicted_seconds for one in pysim.torch.report(asked)} == seconds
    for one in pysim.torch.report(ieee):
        faster = min(at for name, at in seconds.items() if name.removesuffix(":tf32") == one.problem)
        assert not one.problem.endswith("tf32") and faster <= one.predicted_seconds


def test_a_layer_whose_tf32_plan_is_faster_has_that(on_gpu):
    layer, x, w = FusedLayer("layer", "Conv", Geometry(padding=(1, 1)), None, None), torch.empty(8, 64, 28, 28), torch.empty(64, 64, 3, 3)
    both, alone = (layer.fastest_plan(x, w, types, load_any("a100")) for types in (("tf32", "f32"), ("f32",)))
    assert both.workload.dtype == "tf32" and both.layout == "nhwc" and both.seconds < alone.seconds
    assert alone.workload.dtype == "f32" and alone.layout == "nhwc"


def test_layers_that_follow_each_other_are_one_call_under_autocast(on_gpu, monkeypatch):
    """The first layer casts its input; launches are looked up again when autocast ends."""
    looked_up, look_up = [], LayerChain._run_layers
    monkeypatch.setattr(LayerChain, "_run_layers", lambda *given: looked_up.append(1) or look_up(*given))
    model = nn.Sequential(*[nn.Conv2d(8, 8, 3, padding=1) for _ in range(4)]).eval()
    optimized, x = pysim.torch.optimize(model), aligned(torch.empty(2, 8, 6, 6).to(memory_format=torch.channels_last))
    with torch.no_grad():
        for cast in (torch.float16, torch.bfloat16):
            with autocast(cast):
                for _ in range(3):
                    assert_near(optimized(x), model(x), NAMES[cast])
        seen = len(looked_up)
        for cast in HALVES * 2:
            with autocast(cast):
                assert optimized(x).dtype is cast
        assert len(looked_up) == seen <= 4  # twice for each type, whose graph is its own


def test_results_lie_as_pytorchs_though_layers_have_channels_last(on_gpu):
    model = nn.Conv2d(8, 16, 3).eval()
    optimized, x = pysim.torch.optimize(nn.Sequential(model)), torch.randn(2, 8, 6, 6)
    with torch.no_grad(), autocast(torch.float16):
        assert optimized(x).is_contiguous() and not optimized(x).is_contiguous(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
        assert optimized(x).is_contiguous(memory_format=torch.channels_last) and not optimized(x).is_contiguous()


class Named(nn.Module):
    """Results by name, and one that is no convolution's."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 16, 3)

    def forward(self, x):
        y = self.conv(x)
        return {"conv": y, "both": (y, y.mean((2, 3)))}


def test_results_of_any_structure_lie_as_pytorchs(on_gpu):
    optimized, x = pysim.torch.optimize(Named().eval()), torch.randn(2, 8, 6, 6)
    with torch.no_grad(), autocast(torch.float16):
        found = optimized(x)
    y, mean = found["both"]
    assert found["conv"].is_contiguous() and y.is_contiguous() and mean.shape == (2, 16)


@pytest.mark.parametrize("scale", [1e-7, 1e7])
def test_norms_whose_scale_f16_weights_cannot_have_are_multiplied_in_the_sums(scale, on_gpu):
    """Weights of 0.1 times 1e-7 are no numbers of f16, nor are those times 1e7; sums in f32 times either are results of f16."""
    model, x = settled(nn.Sequential(nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8))), torch.randn(2, 8, 6, 6)
    conv, norm = model
    norm.running_var.fill_(1), norm.running_mean.zero_(), norm.bias.data.zero_(), norm.weight.data.fill_(scale)
    x *= 1e-2 if scale > 1 else 60.0
    conv.weight.data *= 1e3 if scale < 1 else 0.1
    optimized = pysim.torch.optimize(model)
    with torch.no_grad(), autocast(torch.float16):
        found, wanted = optimized(x).float(), model(x)
        assert (found - wanted).abs().max() <= max(2.0**-9 * wanted.abs().max(), 2.0**-23)


def test_compiled_models_have_autocasts_type(on_gpu):
    model, x = settled(Block()), torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        wanted = model(x)
        with autocast(torch.float16):
            optimized = pysim.torch.optimize(model)(x)
            made = torch.compile(copy.deepcopy(model), backend=pysim.torch.backend)(x)
    assert made.dtype is torch.float16 and torch.equal(made, optimized)
    assert_near(made, wanted, "f16")


def test_weights_are_rounded_once(on_gpu):
    """Those of a converted model are read where they lie, and sums multiplied by a norm's scale; under autocast a copy is multiplied."""
    model, x = settled(nn.Sequential(nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16))), torch.randn(2, 8, 12, 12)
    made = []
    with torch.no_grad():
        for cast in (True, False):
            optimized = pysim.torch.optimize(model if cast else model.half())
            with autocast(torch.float16) if cast else nullcontext():
                optimized(x if cast else x.half())
            (layer,) = layers_of(optimized)
            (entry,) = layer.derived._entries._entries.values()
            made.append(entry.value)
    (folded, none, _), (kept, scale, _) = made
    assert none is None and folded.dtype is kept.dtype is torch.float16
    assert kept.data_ptr() == model[0].weight.data_ptr() and scale.dtype is torch.float32
    assert torch.allclose(folded.float(), kept.float() * scale.reshape(-1, 1, 1, 1), rtol=2.0**-9)


def test_gradients_under_autocast_are_pytorchs(on_gpu, monkeypatch):
    model, x = settled(Block()), torch.randn(2, 3, 12, 12)
    optimized = pysim.torch.optimize(model)
    with autocast(torch.float16):
        assert torch.equal(optimized(x), model(x)) and optimized(x).requires_grad


def test_a_graph_casts_its_own_weights():
    """What autocast keeps lives until it ends."""
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_graph, "_warm_up_and_capture", lambda *_: seen.append(torch.is_autocast_cache_enabled()))
        assert torch.is_autocast_cache_enabled()
        cuda_graph.captured(None)
        assert torch.is_autocast_cache_enabled() and seen == [False]


@pytest.mark.skipif(precision._precision is None, reason="this PyTorch has the older settings alone")
def test_whether_tf32_is_allowed_is_known_however_the_program_said_so():
    """PyTorch's older settings raise where the newer ones were set."""
    matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    before = matmul.fp32_precision, conv.fp32_precision
    try:
        for setting in ("tf32", "ieee"):
            matmul.fp32_precision = conv.fp32_precision = setting
            assert {precision.tf32("Linear"), precision.tf32("Conv")} == {setting == "tf32"}
    finally:
        matmul.fp32_precision, conv.fp32_precision = before


@pytest.mark.parametrize(
    ("problem", "taken"),
    [
        ("conv:mb16ic3ih224oc10kh3sh2ph1", "f32"),  # DPN-68's first layer, 27 products
        ("conv:mb16ic16ih224oc10kh3sh2ph1", "tf32"),
        ("conv:mb16ic832ih1oc1000kh1", "f32"),  # its last
        ("conv:mb16ic832ih7oc1000kh1", "tf32"),
        ("conv:mb4096ic832ih1oc1000kh1", "tf32"),  # FP32 takes several times as long
    ],
)
def test_layers_whose_errors_stay_are_in_fp32_where_that_is_about_as_fast(problem, taken):
    """On an H200, TF32 allowed."""
    layer = FusedLayer("layer", "Conv", Geometry(), None, None)
    of = parse(problem)
    x, w = (torch.empty(shape, device="meta") for shape in (of.input_shape, of.filter_shape))
    layer.problem_of = lambda x, w, dtype: parse(f"{problem}:{dtype}")
    assert layer.fastest_plan(x, w, ("tf32", "f32"), load_any("h200")).workload.dtype == taken


@pytest.mark.parametrize(("shape", "taken"), [((16, 512), "f32"), ((16, 197, 512), "tf32")])
def test_products_of_images_are_in_fp32_and_those_of_tokens_are_not(shape, taken):
    """ResNet-34's last layer, and a product of as many channels of a transformer, on an H200."""
    layer = FusedLayer("layer", "Linear", Geometry(), None, None)
    x, w = torch.empty(shape, device="meta"), torch.empty(1000, 512, device="meta")
    layer.problem_of = lambda x, w, dtype: parse(f"gemm:{x.numel() // 512}x1000x512:nt:{dtype}")
    assert layer.fastest_plan(x, w, ("tf32", "f32"), load_any("h200")).workload.dtype == taken
