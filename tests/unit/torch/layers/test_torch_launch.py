# SPDX-License-Identifier: Apache-2.0
"""Layers of PyTorch models as they run on a GPU, by the CUDA kernels as the CPU runs them: epilogues, norms, residuals."""

import emulated_cuda
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from emulated_torch import Host, aligned, as_on_gpu  # noqa: E402
from torch_models import rewritten, settled  # noqa: E402

from pysim import planner  # noqa: E402
from pysim.check.bounds import bound_of  # noqa: E402
from pysim.machine.load import load_any  # noqa: E402
from pysim.problem.conv import Conv  # noqa: E402
from pysim.problem.gemm import Gemm  # noqa: E402
from pysim.runtime.arrays import ALIGNMENT_BYTES  # noqa: E402
from pysim.runtime.cuda_steps import LaunchSteps  # noqa: E402
from pysim.torch.capture import rewriting as frontend  # noqa: E402
from pysim.torch.layers import fused_layer, gpu_launch, layer_chain, pytorch_seconds  # noqa: E402
from pysim.torch.layers.conv_forms import Geometry  # noqa: E402
from pysim.torch.layers.fused_layer import FusedLayer  # noqa: E402
from pysim.torch.layers.layer_chain import LayerChain  # noqa: E402

CONV = Conv(batch=2, channels=8, height=10, width=10, filters=16, kernel_h=3, kernel_w=3, pad_top=1, pad_left=1, pad_bottom=1, pad_right=1)
DRAINED = "f32_winograd_f4_32x32x8_32x32_8x8_s2_drained"
CASES = [
    ("Conv", "relu", 1e-5, "nchw"),
    ("Conv", ("clamp", 0.0, 6.0), None, "nchw"),
    ("Conv", "gelu", 1e-5, "nhwc"),
    ("Linear", "relu", None, "nchw"),
    ("Conv", "silu", 1e-5, "nchw"),
    ("Conv", "silu", 1e-5, "nhwc"),
    ("Conv", "hard_swish", 1e-5, "nchw"),
    ("Conv", "sigmoid", None, "nhwc"),
    ("Linear", "gelu", None, "nchw"),
    ("Linear", "gelu_tanh", None, "nchw"),
    ("Conv", ("leaky_relu", 0.1, 1.0), 1e-5, "nhwc"),
    ("Linear", ("leaky_relu", 0.2, 1.0), None, "nchw"),
]


@pytest.fixture(autouse=True)
def _emulated(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(gpu_launch.arrays, "library_of", lambda kind: Host())
    with emulated_cuda.opened():
        yield


class Case:
    """A layer as it would be called on an H200, and its tensors."""

    def __init__(self, kind, activation, epsilon, layout):
        form = torch.channels_last if layout == "nhwc" else torch.contiguous_format
        if kind == "Conv":
            self.x, w, geometry = torch.randn(2, 8, 10, 10).to(memory_format=form), torch.randn(16, 8, 3, 3), Geometry(padding=(1, 1))
        else:
            self.x, w, geometry = torch.randn(4, 3, 32), torch.randn(16, 32), Geometry()
        numbers = [torch.rand(16) + 0.5, torch.randn(16), torch.randn(16), torch.rand(16) + 0.5] if epsilon else [None] * 4
        self.parameters, self.form = (w, torch.randn(16), *numbers), form
        self.layer = FusedLayer("layer", kind, geometry, activation, epsilon)
        problem = CONV if kind == "Conv" else Gemm(m=12, n=16, k=32, trans_b=True)
        self.choice = fused_layer.Choice(None, planner.plan(problem, load_any("h200"), layout=layout))

    def run(self, residual=None):
        return self.layer._on_gpu(self.choice, "key", self.x, self.parameters, residual)[0]

    def assert_right(self, residual=None):
        wanted = self.layer.by_pytorch(self.x, *self.parameters, None if residual is None else residual.clone())
        found = self.run(residual)
        assert found.shape == wanted.shape and (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()
        return found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_layer_equals_pytorchs_operators(case):
    one = Case(*case)
    one.assert_right()
    one.parameters[0].mul_(2)
    one.assert_right()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_residual_is_added_where_it_lies_or_behind(case):
    one = Case(*case)
    like = one.run()
    memory = torch.empty(like.numel() + 64)
    start = -memory.data_ptr() // 4 % 64
    residual = memory[start : start + like.numel()].as_strided(like.shape, like.stride()).normal_()
    found = one.assert_right(residual)
    assert found.data_ptr() == residual.data_ptr()
    elsewhere = torch.randn(1).expand(like.shape)
    assert one.assert_right(elsewhere).data_ptr() != elsewhere.data_ptr()


def test_operands_that_begin_anywhere_are_taken():
    one = Case(*CASES[0])
    one.x = torch.empty(one.x.numel() + 1)[1:].reshape(one.x.shape).normal_()
    assert one.x.data_ptr() % ALIGNMENT_BYTES and gpu_launch.GpuLaunch
    one.assert_right()


class Counted(LayerChain):
    """How often layers were looked up."""

    looked_up = 0

    def _run_layers(self, *given):
        self.looked_up += 1
        super()._run_layers(*given)


@pytest.fixture
def on_gpu(monkeypatch):
    """Every tensor as on a GPU of the first generation with tensor cores, whose kernels all run here."""
    as_on_gpu(monkeypatch, "v100")
    monkeypatch.setattr(frontend, "LayerChain", Counted)


class Block(torch.nn.Module):
    """A residual block whose shortcut is a layer, too; `twice` gives a value inside it, as well."""

    def __init__(self, channels=8, twice=False, rank=2):
        super().__init__()
        conv, norm = ((torch.nn.Conv2d, torch.nn.BatchNorm2d), (torch.nn.Conv3d, torch.nn.BatchNorm3d))[rank - 2]
        self.short, self.twice = torch.nn.Sequential(conv(channels, 16, 1), norm(16)), twice
        self.body = torch.nn.Sequential(conv(channels, 8, 1), norm(8), torch.nn.ReLU(), conv(8, 8, 3, 1, 1), torch.nn.ReLU())
        self.last = torch.nn.Sequential(conv(8, 16, 1), norm(16))

    def forward(self, x):
        short, inner = self.short(x), self.body(x)
        y = torch.relu(self.last(inner) + short)
        return (y, inner) if self.twice else y


class Chained:
    """A model of one chain, called until its launches are kept."""

    def __init__(self, model, x):
        self.model, self.x = settled(model), aligned(x)
        self.traced, made = rewritten(self.model, self.x)
        (self.chain,) = (module for module in made.module.modules() if isinstance(module, Counted))
        self.layers = made.layers
        with torch.no_grad():
            for _ in range(2):
                self.traced(self.x)
        self.chain.looked_up = 0

    def assert_right(self):
        with torch.no_grad():
            results = [y if isinstance(y, tuple) else (y,) for y in (self.traced(self.x), self.model(self.x))]
        for y, right in zip(*results, strict=True):
            assert y.shape == right.shape and (y - right).abs().max() <= 1e-5 * right.abs().max()


def dense(before=torch.nn.ReLU):
    """A layer of DenseNet, whose norm and activation come first."""
    conv, norm, relu = torch.nn.Conv2d, torch.nn.BatchNorm2d, torch.nn.ReLU
    return torch.nn.Sequential(norm(8), before(), conv(8, 12, 1), norm(12), relu(), conv(12, 4, 3, padding=1))


class Sums(torch.nn.Module):
    """Three layers added up, each over the ones before."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Conv2d(8, 4, 1) for _ in range(3))
        self.last = torch.nn.Conv2d(4, 4, 1)

    def forward(self, x):
        y = self.a(x)
        y = self.b(x) + y
        return self.last(self.c(x) + y)


class Squeezed(torch.nn.Module):
    """Squeeze and excitation in front of a projection; `factor_first`: factor * x instead of x * factor."""

    def __init__(self, factor_first=False, factors=8):
        super().__init__()
        self.pool, self.fc, self.factor_first = torch.nn.AdaptiveAvgPool2d(1), torch.nn.Conv2d(8, factors, 1), factor_first
        self.project = torch.nn.Conv2d(8, 6, 1)

    def forward(self, x):
        factor = torch.sigmoid(self.fc(self.pool(x)))
        return self.project(factor * x if self.factor_first else x * factor)


IMAGE = torch.empty(2, 8, 6, 6).to(memory_format=torch.channels_last)
MODELS = {
    "a layer": (lambda: torch.nn.Sequential(torch.nn.Conv2d(8, 6, 3)), IMAGE),
    "a block": (Block, IMAGE),
    "blocks": (lambda: torch.nn.Sequential(Block(), Block(16), Block(16)), IMAGE),
    "volumes": (lambda: Block(rank=3), torch.empty(2, 8, 3, 6, 6).to(memory_format=torch.channels_last_3d)),
    "a value inside is read, too": (lambda: Block(twice=True), IMAGE),
    "a sum over a sum": (Sums, IMAGE),
    "a norm comes first": (dense, IMAGE),
    "products": (lambda: torch.nn.Sequential(torch.nn.Linear(24, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8)), torch.empty(3, 5, 24)),
}


@pytest.mark.parametrize("name", MODELS)
def test_layers_that_follow_each_other_are_one_call_that_looks_nothing_up(name, on_gpu, monkeypatch):
    make, x = MODELS[name]
    one = Chained(make(), x)
    assert {decision.runs for layer in one.layers for decision in layer.decisions} == {"pysim"}
    called = []
    run = LaunchSteps.run
    monkeypatch.setattr(LaunchSteps, "run", lambda *given: (called.append(given[0]), run(*given)))
    one.x.normal_()
    one.assert_right()
    one.assert_right()
    assert one.chain.looked_up == 0 and len(called) == 2


@pytest.mark.parametrize("images", [1, 2])
def test_what_pytorch_makes_of_a_result_has_channels_last_too(images, on_gpu):
    """Of one image, too, whose strides PyTorch looks at although no element depends on them all."""
    conv, pool = torch.nn.Conv2d, torch.nn.MaxPool2d
    model = settled(torch.nn.Sequential(conv(8, 8, 1), pool(2), conv(8, 4, 1), pool(2)))
    x = aligned(torch.empty(images, 8, 12, 12).to(memory_format=torch.channels_last))
    traced, _ = rewritten(model, x)
    with torch.no_grad():
        for _ in range(4):
            found, right = traced(x), model(x)
            assert found.stride() == right.stride() and torch.allclose(found, right, rtol=1e-4, atol=1e-5)


def test_a_layer_that_stays_pytorchs_parts_a_chain(on_gpu, monkeypatch):
    monkeypatch.setattr(fused_layer, "pytorch_seconds", lambda problem, *_: 0.0 if problem.kernel_h == 3 else float("inf"))
    one = Chained(Block(), IMAGE)
    assert {decision.runs for layer in one.layers for decision in layer.decisions} == {"pysim", "torch"}
    one.x.normal_()
    one.assert_right()
    assert one.chain.looked_up == 0


@pytest.mark.parametrize(
    "what", ["shape", "weights written to", "weights elsewhere", "other weights", "statistics written to", "a view", "gradients"]
)
def test_a_call_that_differs_from_those_before_is_looked_up(what, on_gpu):
    one = Chained(Block(), IMAGE)
    conv, norm = one.model.last
    with torch.no_grad():
        if what == "shape":
            one.x = aligned(torch.empty(3, 8, 6, 6).to(memory_format=torch.channels_last))
        elif what == "weights written to":
            conv.weight.mul_(2)
        elif what == "weights elsewhere":
            conv.weight.data = 2 * conv.weight.data
        elif what == "other weights":
            conv.weight = torch.nn.Parameter(2 * conv.weight)
        elif what == "statistics written to":
            norm.running_mean.add_(1)
        elif what == "a view":
            one.x = one.x.transpose(2, 3)
    if what == "gradients":
        one.traced(one.x).sum().backward()
        assert conv.weight.grad is not None
    else:
        one.assert_right()
    assert one.chain.looked_up == 1
    for _ in range(3):
        one.assert_right()
    assert one.chain.looked_up <= 3


@pytest.mark.parametrize("before", [torch.nn.ReLU, torch.nn.Identity, torch.nn.SiLU])
def test_a_norm_in_front_of_a_convolution_is_made_as_its_input_is_read(before, on_gpu, monkeypatch):
    monkeypatch.setattr(fused_layer, "passes_seconds", lambda *_: float("inf"))  # by itself it is never faster
    one = Chained(dense(before), torch.empty(2, 8, 7, 7))
    first, *_ = (decision.reason for layer in one.layers for decision in layer.decisions)
    assert first.endswith("norm in the kernel") == (before is not torch.nn.SiLU)
    one.x.normal_()
    one.assert_right()
    norm = one.model[0]
    with torch.no_grad():
        norm.running_mean.add_(1)
        one.assert_right()
        norm.weight = torch.nn.Parameter(torch.rand(8))
        one.assert_right()
    assert one.traced(one.x).requires_grad


@pytest.mark.parametrize("factor_first", [False, True])
@pytest.mark.parametrize("factors", [8, 1])
def test_a_factor_of_each_image_and_channel_is_multiplied_as_the_input_is_read(factors, factor_first, on_gpu, monkeypatch):
    monkeypatch.setattr(fused_layer, "passes_seconds", lambda *_: float("inf"))  # by itself it is never faster
    model = Squeezed(factor_first, factors).eval()
    traced, made = rewritten(model, aligned(torch.empty(2, 8, 6, 6)))
    with torch.no_grad():
        for _ in range(4):
            x = aligned(torch.empty(2, 8, 6, 6))
            found, right = traced(x), model(x)
            assert (found - right).abs().max() <= 1e-5 * right.abs().max()
    reasons = [decision.reason for layer in made.layers for decision in layer.decisions]
    assert reasons[-1].endswith("product in the kernel") == (factors == 8)
    with torch.no_grad():
        model.project.weight.mul_(2)
        assert torch.allclose(traced(x), 2 * right - model.project.bias.reshape(1, -1, 1, 1), atol=1e-5)


def test_what_comes_first_stays_where_something_stands_between(on_gpu):
    """A norm's input may be written over by then."""

    class Written(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.conv = torch.nn.BatchNorm2d(8), torch.nn.Conv2d(8, 4, 1)

        def forward(self, x):
            y = self.norm(x)
            x.zero_()
            return self.conv(y)

    model, x = settled(Written()), torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last)
    traced, _ = rewritten(model, x.clone())
    with torch.no_grad():
        assert torch.allclose(traced(x.clone()), model(x.clone()), atol=1e-5)


def test_shapes_that_take_turns_look_nothing_up(on_gpu):
    one = Chained(Block(), IMAGE)
    images = [one.x, aligned(torch.empty(1, 8, 6, 6).to(memory_format=torch.channels_last))]
    for turn in range(6):
        one.x = images[turn % 2]
        one.assert_right()
    assert one.chain.looked_up == 1


def test_values_inside_a_chain_share_memory(on_gpu, monkeypatch):
    """Three blocks: values as large as nine of their results, of which at most three are needed at once, and workspaces."""
    one = Chained(torch.nn.Sequential(Block(), Block(16), Block(16)), IMAGE)
    asked, give = [], layer_chain.workspace
    monkeypatch.setattr(layer_chain, "workspace", lambda size, *rest: (asked.append(size), give(size, *rest))[1])
    one.assert_right()
    (arena,), out = asked, 4 * 2 * 16 * 36
    assert 0 < arena <= 8 * out


def test_without_memory_for_its_arena_a_chain_runs_layer_by_layer(on_gpu, monkeypatch):
    one = Chained(Block(), IMAGE)

    def full(*given):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(layer_chain, "workspace", full)
    one.assert_right()
    assert one.chain.looked_up == 1


def test_parameters_are_inputs_of_a_graph():
    """Those from which a layer may keep something are told; other tensors of the model are inputs like the image."""
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())).eval()
    conv, x = model[0][0], torch.randn(1, 3, 9, 9)
    traced, made = rewritten(model, x)
    assert not any(node.op == "get_attr" for node in made.module.graph.nodes)
    assert {traced.places[at] for at in made.parameters} == {
        "0.0.weight", "0.0.bias", "0.1.weight", "0.1.bias", "0.1.running_mean", "0.1.running_var"
    }  # fmt: skip
    assert made.repeatable
    with torch.no_grad():
        assert torch.allclose(traced(x), model(x), atol=1e-6)
        conv.weight.mul_(2)
        assert torch.allclose(traced(x), model(x), atol=1e-6)
        conv.weight = torch.nn.Parameter(torch.randn(4, 3, 3, 3))
        assert torch.allclose(traced(x), model(x), atol=1e-6)


@pytest.mark.parametrize(("size", "pixels"), [(1, 1), (24, 1), (1, 3)])
def test_weights_that_are_larger_than_what_they_make_are_read_where_they_lie(size, pixels, on_gpu):
    """A norm is a scale and a shift of sums then; else of a copy, which is small beside the result, or which kernels need in any case."""
    one = Chained(
        torch.nn.Sequential(torch.nn.Conv2d(8, 8, pixels, padding=pixels // 2), torch.nn.BatchNorm2d(8)),
        torch.empty(1, 8, size, size).to(memory_format=torch.channels_last),
    )
    one.assert_right()
    ((launches,),) = one.chain._plans.values()
    (step,) = launches._steps.steps
    in_place = size == pixels == 1
    assert (step.second.offset == one.model[0].weight.data_ptr()) == in_place
    assert bool(step.epilogue.scale) == in_place


def test_a_norms_scale_makes_up_for_sums_that_come_out_too_small(monkeypatch):
    """Sums on tensor cores are cut: 6.9e-8 of them is missing in the mean at 64 products a part, which 41 layers of a network add up."""
    problem = Conv(batch=32, channels=256, height=14, width=14, filters=1024, kernel_h=1, kernel_w=1)
    plan = planner.plan(problem, load_any("h200"), algorithm="wgmma")
    assert plan.kernel.startswith("tf32x3")
    mean_error = bound_of(plan).mean_error
    assert -8e-8 < mean_error < -6e-8
    layer = FusedLayer("layer", "Conv", Geometry(), None, 1e-5)
    torch.manual_seed(1)
    w, numbers = torch.randn(4096, 1, 1, 1), [torch.rand(4096) + 0.5, torch.randn(4096), torch.randn(4096), torch.rand(4096) + 0.5]
    plain, larger = (layer._scale_and_shift((w, None, *numbers), of)[0].float().double() for of in (0.0, mean_error))
    assert abs((larger / plain).mean() - 1 + mean_error) < 5e-9
    assert bound_of(planner.plan(problem, load_any("h200"), accuracy="ieee")).mean_error == 0


@pytest.mark.parametrize("mean_error", [-6.9e-8, 3.3e-8])
def test_weights_without_a_norm_grow_by_the_mean_error(mean_error):
    """To nearest, all would by a unit in their last place, or none."""
    w = torch.randn(32, 128, 3, 3)
    larger = fused_layer._compensate(w, mean_error).float().double()
    assert abs(((larger - w) * w).sum() / w.double().square().sum() + mean_error) < 3e-9
    assert ((larger - w).abs() <= 2.0**-22 * w.abs()).all()
    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf")])
    assert torch.equal(fused_layer._compensate(special, mean_error).float(), special)


def test_sums_of_transformed_patches_come_out_neither_larger_nor_smaller(monkeypatch):
    """The transforms' constants are rounded: in the mean results are 3.3e-8 of them too large, which weights make up for."""
    as_on_gpu(monkeypatch, "h200")
    found = []
    for seed in range(3):
        torch.manual_seed(seed)
        x, w = torch.randn(1, 128, 12, 12).relu().to(memory_format=torch.channels_last), torch.randn(32, 128, 3, 3)
        exact = torch.nn.functional.conv2d(x.double(), w.double(), padding=1)
        problem = Conv(
            channels=128, height=12, width=12, filters=32, kernel_h=3, kernel_w=3, pad_top=1, pad_left=1, pad_bottom=1, pad_right=1
        )
        plan = planner.plan(problem, load_any("h200"), layout="nhwc", algorithm="winograd", micro_kernel=DRAINED)
        for mean_error in (0.0, bound_of(plan).mean_error):
            monkeypatch.setattr(fused_layer, "bound_of", lambda plan, mean=mean_error: bound_of(plan)._replace(mean_error=mean))
            layer = FusedLayer("layer", "Conv", Geometry(padding=(1, 1)), None, None)
            y = layer._on_gpu(fused_layer.Choice(None, plan), "key", x, (w, None, None, None, None, None), None)[0]
            found.append(float(((y - exact) * exact).sum() / exact.square().sum()))
    plain, mended = sum(found[::2]) / 3, sum(found[1::2]) / 3
    assert 2.5e-8 < plain < 5e-8 and abs(mended) < 1.5e-8


def test_what_is_trained_behind_a_factor_that_is_not_is_pytorchs(on_gpu):
    model = Squeezed(True).eval()
    for one in model.fc.parameters():
        one.requires_grad_(False)
    x = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last)
    traced, _ = rewritten(model, x)
    found, right = traced(x), model(x)
    assert torch.equal(found, right) and found.requires_grad


def test_small_layers_are_expected_to_keep_pytorchs_host_busy_unless_they_are_recorded():
    """Of three operators 5 us each; a kernel takes as long as the shortest that was measured, and 16 ns for each product of a sum."""
    small, gpu = Conv(channels=8, height=1, width=1, filters=32, kernel_h=1, kernel_w=1), load_any("h200")
    assert pytorch_seconds.pytorch_seconds(small, gpu, ("norm", "relu")) == 3 * pytorch_seconds.HOST_SECONDS
    alone = pytorch_seconds.GPU_FLOOR + 8 * pytorch_seconds.GPU_PRODUCT + gpu.model.pass_seconds.value
    assert pytorch_seconds.pytorch_seconds(small, gpu, (), True) == pytest.approx(alone)
    large = Conv(batch=32, channels=256, height=56, width=56, filters=256, kernel_h=3, kernel_w=3)
    assert (
        pytorch_seconds.pytorch_seconds(large, gpu, ("norm", "relu"))
        == pytorch_seconds.pytorch_seconds(large, gpu, ("norm", "relu"), True)
        > 15e-3
    )
