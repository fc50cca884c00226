# SPDX-License-Identifier: Apache-2.0
"""PyTorch models with pysim's layers compute what PyTorch computes, whatever changes between calls."""

import copy
import io
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from checkout import ROOT

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch_models import Residual, assert_close, block, imported, in_threads, settled  # noqa: E402
from torch_twins import WAYS  # noqa: E402

import pysim.torch  # noqa: E402
from pysim.errors import OperandError  # noqa: E402

pytestmark = pytest.mark.usefixtures("every_layer_is_ours")


class InPlace(nn.Module):
    """Something is written over between a convolution and its activation."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x):
        x = self.a(x)
        y = self.b(x)
        x.mul_(3)
        return functional.relu(y) + x


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.matrix = nn.Parameter(torch.randn(6, 3, 3, 3)), nn.Parameter(torch.randn(5, 6))

    def forward(self, x):
        x = functional.conv2d(x, self.weight, stride=2, padding=(1, 0))
        x = functional.gelu(x).mean((2, 3))
        return functional.linear(x, self.matrix)


class Shared(nn.Module):
    """One convolution twice, one result read by two."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

    def forward(self, x):
        x = self.norm(self.conv(x))
        return functional.relu(x) + self.conv(x)


MODELS = {
    "block": block,
    "relu6": lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU6(), nn.Conv2d(8, 4, 1), nn.Hardtanh()),
    "grouped": lambda: nn.Sequential(nn.Conv2d(3, 6, 3, groups=3, dilation=2), nn.BatchNorm2d(6), nn.GELU()),
    "norm before": lambda: nn.Sequential(
        nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.Conv2d(3, 4, 1), nn.MaxPool2d(2), nn.BatchNorm2d(4), nn.SiLU()
    ),
    "linear": lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 2)),
    "swishes": lambda: nn.Sequential(
        block(), nn.Conv2d(8, 8, 1), nn.SiLU(inplace=True), nn.Conv2d(8, 4, 1), nn.Hardswish(), nn.Conv2d(4, 4, 1), nn.Sigmoid()
    ),
    "tokens": lambda: nn.Sequential(nn.Linear(16, 5), nn.GELU(), nn.Linear(5, 4), nn.GELU(approximate="tanh")),
    "residual": Residual,
    "residual swapped": lambda: Residual(swapped=True),
    "residual read later": lambda: Residual(late=True),
    "in place": InPlace,
    "functional": Functional,
    "shared": Shared,
    "reflected": lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), nn.Conv2d(4, 4, 3, padding="same")),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_optimized_model_equals_pytorch(name, dtype):
    model, x = settled(MODELS[name]()).to(dtype), torch.randn(2, 3, 16, 16, dtype=dtype)
    optimized, before = pysim.torch.optimize(model), x.clone()
    with torch.no_grad():
        wanted = model(x.clone())
        assert_close(optimized(x), wanted)
        assert_close(optimized(x), wanted)
        assert_close(torch.compile(model, backend=pysim.torch.backend)(x.clone()), wanted)
    assert (x == before).all()
    if name != "reflected":
        assert {one.runs for one in pysim.torch.report(optimized)} == {"pysim"}


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "squeezenet1_1", "googlenet"])
def test_a_model_of_torchvision_equals_pytorch(name):
    models = imported("torchvision.models")
    more = {"init_weights": False, "aux_logits": True} if name == "googlenet" else {}
    model = getattr(models, name)(weights=None, **more)
    with torch.no_grad():
        model.train()(torch.randn(4, 3, 64, 64))
        model.eval()
        optimized, x = pysim.torch.optimize(model), torch.randn(2, 3, 64, 64)
        assert list(optimized.state_dict()) == list(model.state_dict())
        assert_close(optimized(x), model(x))


# one with branches, with shuffled channels, with layer norms, and of a segmentation; the others: lab/benchmarks/torch_cpu.py
@pytest.mark.parametrize("name", ["convnext_tiny", "lraspp_mobilenet_v3_large", "regnet_x_400mf", "shufflenet_v2_x0_5"])
def test_models_of_torchvision_equal_pytorch_compiled_and_optimized(name, way):
    """Of seeded weights, where the last layer's are not all zero."""
    backbone = {"weights_backbone": None} if name.startswith("lraspp") else {}
    model = imported("torchvision").models.get_model(name, weights=None, **backbone).eval()
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(std=0.02)
        wanted, found = model(x), WAYS[way](model)(x)
        pairs = zip(found.values(), wanted.values(), strict=True) if isinstance(wanted, dict) else [(found, wanted)]
        for y, right in pairs:
            assert (y - right).abs().max() <= 1e-4 * right.abs().max()
    torch._dynamo.reset()


def test_changed_weights_take_effect():
    model = settled(block())
    optimized, x = pysim.torch.optimize(model), torch.randn(1, 3, 9, 9)
    with torch.no_grad():
        optimized(x)
        for change in (lambda: model[0].weight.mul_(2), lambda: model[1].running_mean.add_(1), lambda: model[1].weight.neg_()):
            change()
            assert_close(optimized(x), model(x))
        model.load_state_dict(settled(block()).state_dict())
        assert_close(optimized(x), model(x))
        model[0].weight = nn.Parameter(torch.randn(8, 3, 3, 3))
        assert_close(optimized(x), model(x))


def test_statistics_of_a_norm_in_training_take_effect():
    """PyTorch's version counters leave out what BatchNorm writes in training: frozen weights, statistics of one pass over other images."""

    def through(call):
        model.train()
        call(3 + torch.randn(4, 3, 9, 9))
        return model.eval()

    model, x = settled(block()).requires_grad_(False), torch.randn(1, 3, 9, 9)
    optimized, compiled = pysim.torch.optimize(model), torch.compile(model, backend=pysim.torch.backend)
    with torch.no_grad():
        for trained, calls in ((model, [optimized]), (optimized, [optimized]), (compiled, [optimized, compiled])):
            for call in calls:
                call(x)
            wanted = through(trained)(x)
            for call in calls:
                assert_close(call(x), wanted)
    torch._dynamo.reset()


def test_statistics_may_change_between_forward_and_backward():
    """Counting a training call leaves what autograd saved valid."""
    model, x = settled(block()), torch.randn(2, 3, 9, 9)
    optimized = pysim.torch.optimize(model)
    model.train()
    loss = model(x).sum() + model(x + 1).sum()
    model.eval()
    with torch.no_grad():
        assert_close(optimized(x), model(x))
    loss.backward()
    assert model[0].weight.grad is not None


def test_weights_of_inference_mode_are_read_again():
    with torch.inference_mode():
        model, x = settled(block()), torch.randn(1, 3, 9, 9)
        optimized = pysim.torch.optimize(model)
        optimized(x)
        model[0].weight.mul_(2)
        assert_close(optimized(x), model(x))


def test_threads_may_call_one_model():
    model = settled(block())
    optimized, inputs, found = pysim.torch.optimize(model), [torch.randn(1, 3, 9 + at % 3, 9) for at in range(8)], {}

    def work(at):
        with torch.no_grad():
            for _ in range(20):
                found[at] = optimized(inputs[at])

    in_threads(work, 8)
    with torch.no_grad():
        for at, x in enumerate(inputs):
            assert_close(found[at], model(x))


NAMED = """
import torch
model, x = torch.nn.Conv2d(3, 4, 3).eval(), torch.randn(1, 3, 9, 9)
with torch.no_grad():
    assert torch.allclose(torch.compile(model, backend="pysim")(x), model(x), atol=1e-5)
import sys
assert "pysim.torch" in sys.modules
"""


def test_an_installed_package_is_a_backend_by_name(tmp_path):
    """As the package's metadata names it."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    installed = tmp_path / "pysim_planner-0.0.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: pysim-planner\nVersion: 0.0.0\n")
    lines = [f"[{group}]\n" + "\n".join(f"{name} = {place}" for name, place in named.items()) for group, named in points.items()]
    (installed / "entry_points.txt").write_text("\n".join(lines))
    paths = os.pathsep.join([str(tmp_path), str(Path(pysim.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", NAMED], env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_channels_last_gives_the_same_numbers():
    model, x = settled(Residual()), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        assert_close(pysim.torch.optimize(model)(x.to(memory_format=torch.channels_last)), model(x))


@pytest.mark.parametrize("called", [False, True])
def test_a_copy_is_a_model_of_its_own(called):
    model, x = settled(block()), torch.randn(1, 3, 9, 9)
    optimized = pysim.torch.optimize(model)
    with torch.no_grad():
        if called:
            optimized(x)
        twin = copy.deepcopy(optimized)
        twin[0].weight.mul_(2)
        assert_close(optimized(x), model(x))
        assert not np.allclose(twin(x), model(x))


def test_an_optimized_model_is_saved_and_optimized_again():
    model, x = settled(block()), torch.randn(1, 3, 9, 9)
    optimized = pysim.torch.optimize(model, accuracy="standard")
    kept = io.BytesIO()
    torch.save(optimized.eval(), kept)
    kept.seek(0)
    loaded = torch.load(kept, weights_only=False)
    with torch.no_grad():
        assert_close(loaded(x), model(x))
        assert_close(pysim.torch.optimize(loaded, accuracy="ieee")(x), model(x))
    assert [one.runs for one in pysim.torch.report(loaded)] == ["pysim"] and not loaded.training


def test_an_accuracy_is_what_all_layers_are_planned_for_and_an_unknown_one_is_refused():
    model = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()).eval()
    x = torch.rand(1, 64, 28, 28)
    with torch.inference_mode():
        want = model(x)
        for accuracy in ("strict", "standard", "ieee"):
            found = pysim.torch.optimize(model, accuracy)
            torch.testing.assert_close(found(x), want)
            assert all(accuracy == "standard" or "outputs=4" not in one.reason for one in pysim.torch.report(found))
    with pytest.raises(OperandError, match='no accuracy is named "strikt"; did you mean "strict"'):
        pysim.torch.optimize(model, "strikt")
    with pytest.raises(OperandError, match="has no option 'speed'"):
        pysim.torch.backend(None, [], {"speed": 1})


def test_a_model_whose_parameters_have_no_shapes_yet_is_refused_until_its_first_call():
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2)).eval()
    with pytest.raises(OperandError, match=r"the parameter 0\.weight has no shape before the model's first call"):
        pysim.torch.optimize(model)
    x = torch.randn(1, 3, 6, 6)
    with torch.no_grad():
        right = model(x)
        assert_close(pysim.torch.optimize(model)(x), right)


def test_tensors_of_bfloat16_are_computed_as_such():
    x, filters = torch.rand(1, 4, 9, 9).bfloat16(), torch.rand(6, 4, 3, 3).bfloat16()
    for image in (x, x.to(memory_format=torch.channels_last)):
        y = pysim.conv2d(image, filters)
        assert y.dtype == torch.float32
        assert_close(y, functional.conv2d(x.float(), filters.float()))
    assert_close(pysim.gemm(x[0, 0], x[0, 1].T, trans_b=True), x[0, 0].float() @ x[0, 1].float())


def test_a_prepared_convolution_gives_tensors_for_tensors():
    x, filters = torch.rand(1, 4, 9, 9), torch.rand(6, 4, 3, 3)
    conv, out = pysim.prepare("conv:mb1ic4ih9oc6kh3ph0", filters), torch.empty(1, 6, 7, 7)
    right = functional.conv2d(x, filters)
    assert isinstance(conv(x), torch.Tensor) and conv(x, out=out) is out
    assert_close(conv(x), right)
    assert_close(out, right)
    assert isinstance(conv(x.numpy()), np.ndarray)


def test_tensors_that_lie_negated_are_what_they_mean():
    """As the imaginary parts of conjugates do, of which NumPy and DLPack see the other sign."""
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval(), torch.rand(2, 3, 8, 8)
    negated, filters = torch.complex(x, x).conj().imag, model[0].weight.detach()
    assert negated.is_neg()
    with torch.no_grad():
        assert_close(pysim.torch.optimize(model)(negated), model(negated))
    assert_close(pysim.conv2d(negated, filters), functional.conv2d(negated, filters))
    with pytest.raises(OperandError, match="which NumPy can only copy"):
        pysim.gemm(torch.ones(2, 2), torch.ones(2, 2), out=torch._neg_view(torch.ones(2, 2)))
