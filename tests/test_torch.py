# SPDX-License-Identifier: Apache-2.0
"""PyTorch models with pysim's layers compute what PyTorch computes, and train, export and save as they did."""

import copy
import os
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import pysim.torch  # noqa: E402
from pysim.errors import OperandError  # noqa: E402
from pysim.models import torch_graph, torch_layers  # noqa: E402
from pysim.models.torch_chain import LayerChain  # noqa: E402
from pysim.runtime import cuda_call  # noqa: E402


@pytest.fixture(autouse=True)
def _every_layer_is_ours(monkeypatch):
    """Whatever PyTorch is expected to need."""
    torch.manual_seed(0)
    monkeypatch.setattr(torch_layers, "pytorch_seconds", lambda *_: float("inf"))


def settled(model):
    """In inference, with statistics that are not those of a new BatchNorm."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
    return model.eval()


def block(channels=8, groups=1):
    return nn.Sequential(nn.Conv2d(3, channels, 3, 2, 1, groups=groups, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True))


class Residual(nn.Module):
    """Two ways that are added, of which either may be made later; `late` reads the sum's operand afterwards."""

    def __init__(self, late=False, swapped=False):
        super().__init__()
        self.stem, self.late, self.swapped = block(), late, swapped
        self.a, self.b = (nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1), nn.BatchNorm2d(8)) for _ in range(2))
        self.short = nn.Conv2d(8, 8, 1)

    def forward(self, x):
        x = self.stem(x)
        out = self.b(functional.relu(self.a(x)))
        identity = self.short(x)
        out = identity + out if self.swapped else out + identity
        y = functional.relu(out)
        out2 = self.b(self.a(y))
        out2 += y
        return (functional.relu(out2), identity) if self.late else functional.relu(out2)


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


def in_threads(work, count):
    """work(0) to work(count - 1) at once."""
    threads = [threading.Thread(target=work, args=(at,)) for at in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def assert_close(found, wanted):
    for y, right in zip(*((one if isinstance(one, tuple) else (one,)) for one in (found, wanted)), strict=True):
        assert y.shape == right.shape and y.dtype == right.dtype
        assert (y - right).abs().max() <= 1e-5 * right.abs().max()


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
    models = pytest.importorskip("torchvision.models", reason="torchvision is not installed: pip install torchvision")
    more = {"init_weights": False, "aux_logits": True} if name == "googlenet" else {}
    model = getattr(models, name)(weights=None, **more)
    with torch.no_grad():
        model.train()(torch.randn(4, 3, 64, 64))
        model.eval()
        optimized, x = pysim.torch.optimize(model), torch.randn(2, 3, 64, 64)
        assert list(optimized.state_dict()) == list(model.state_dict())
        assert_close(optimized(x), model(x))


def test_norm_and_activation_and_residual_are_fused():
    optimized = pysim.torch.optimize(settled(Residual()))
    graph, layers = optimized.__dict__["_pysim"]
    assert len(layers) == 6 and [layer.activation for layer in layers].count("relu") == 4
    assert not [one for one in graph.graph.nodes if one.op == "call_function"]


@pytest.mark.parametrize("drop", [nn.Dropout(0.5), nn.Identity(), nn.Dropout2d(0.5, inplace=True)])
def test_what_drops_only_in_training_parts_no_layers(drop):
    model = nn.Sequential(nn.Conv2d(3, 8, 1), drop, nn.ReLU(), nn.Conv2d(8, 4, 1), drop)
    optimized, x = pysim.torch.optimize(model.eval()), torch.randn(2, 3, 16, 16)
    graph, layers = optimized.__dict__["_pysim"]
    assert [layer.activation for layer in layers] == ["relu", None]
    assert len([one for one in graph.graph.nodes if one.op.startswith("call")]) == 1
    with torch.no_grad():
        assert_close(optimized(x), model(x))
        model.train()
        torch.manual_seed(1)
        dropped = optimized(x)
        torch.manual_seed(1)
        assert (dropped == model(x)).all()


def test_a_drop_of_whole_branches_stands_before_no_sum():
    ops = pytest.importorskip("torchvision.ops", reason="torchvision is not installed: pip install torchvision")

    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.drop = nn.Conv2d(3, 3, 1), ops.StochasticDepth(0.2, "row")
            self.branch = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1))

        def forward(self, x):
            x = self.stem(x)
            return self.drop(self.branch(x)) + x

    optimized = pysim.torch.optimize(Branch().eval())
    graph, _ = optimized.__dict__["_pysim"]
    assert not [one for one in graph.graph.nodes if one.op == "call_function"]


def test_a_residual_that_is_read_later_is_not_written_over():
    graph, _ = pysim.torch.optimize(settled(Residual(late=True))).__dict__["_pysim"]
    assert [one for one in graph.graph.nodes if one.op == "call_function"]


def test_modules_that_stay_are_found_by_one_name():
    model = nn.Sequential(nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 1), nn.MaxPool2d(2)), nn.AdaptiveAvgPool2d(1))).eval()
    optimized, x = pysim.torch.optimize(model), torch.randn(1, 3, 8, 8)
    called = [one.target for one in optimized.__dict__["_pysim"][0].graph.nodes if one.op == "call_module"]
    assert len(called) == 3 and not any("." in target for target in called)
    with torch.no_grad():
        assert_close(optimized(x), model(x))


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


def test_weights_of_inference_mode_are_read_anew():
    with torch.inference_mode():
        model, x = settled(block()), torch.randn(1, 3, 9, 9)
        optimized = pysim.torch.optimize(model)
        optimized(x)
        model[0].weight.mul_(2)
        assert_close(optimized(x), model(x))


def gradients(model, x):
    model.zero_grad()
    model(x).square().sum().backward()
    return [one.grad.clone() for one in model.parameters()]


@pytest.mark.parametrize("training", [True, False])
def test_gradients_are_pytorchs_bits(training):
    model, x = settled(Residual()).train(training), torch.randn(2, 3, 16, 16)
    other = copy.deepcopy(model)
    optimized = pysim.torch.optimize(model).train(training)
    wanted, found = gradients(other, x), gradients(optimized, x)
    assert all((a == b).all() for a, b in zip(wanted, found, strict=True))
    assert all((a == b).all() for a, b in zip(other.state_dict().values(), model.state_dict().values(), strict=True))


def test_a_model_that_trains_afterwards_is_as_it_trained():
    model = settled(block())
    optimized = pysim.torch.optimize(model)
    optimized.train()
    assert model[1].training and not optimized.eval()[1].training


def test_compiled_models_train_by_pytorch():
    model, x = settled(Residual()), torch.randn(2, 3, 16, 16)
    wanted, found = gradients(model, x), gradients(torch.compile(model, backend=pysim.torch.backend), x)
    assert all((a == b).all() for a, b in zip(wanted, found, strict=True))


def test_an_optimized_model_is_exported_as_pytorchs():
    optimized, x = pysim.torch.optimize(settled(block())), torch.randn(1, 3, 9, 9)
    with torch.no_grad():
        assert_close(torch.export.export(optimized, (x,)).module()(x), optimized(x))


def test_autocast_on_a_cpu_is_pytorchs():
    model, x = settled(block()), torch.randn(1, 3, 9, 9)
    optimized = pysim.torch.optimize(model)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert (optimized(x) == model(x)).all() and optimized(x).dtype == model(x).dtype


def test_modules_with_hooks_keep_them():
    model, seen = settled(block()), []
    model[0].register_forward_hook(lambda *_: seen.append(1))
    with torch.no_grad():
        pysim.torch.optimize(model)(torch.randn(1, 3, 9, 9))
    assert seen


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


def test_where_pytorch_is_expected_to_be_faster_it_stays_and_the_report_says_so(monkeypatch):
    monkeypatch.setattr(torch_layers, "pytorch_seconds", lambda *_: 0.0)
    model, x = settled(block()), torch.randn(1, 3, 9, 9)
    optimized = pysim.torch.optimize(model)
    with torch.no_grad():
        assert (optimized(x) == model(x)).all()
    (one,) = pysim.torch.report(optimized)
    assert one.runs == "torch" and "faster" in one.reason and one.predicted_seconds > one.torch_seconds == 0
    assert one.layer == "0" and one.problem == "conv:mb1ic3ih9oc8kh3sh2ph1"


@pytest.mark.parametrize("error", [OperandError("cannot allocate"), torch.OutOfMemoryError("out of memory")])
def test_without_memory_pytorch_goes_on_and_the_report_says_so(error, monkeypatch):
    def prepared(*_):
        raise error

    monkeypatch.setattr(torch_layers, "Prepared", prepared)
    model, x = settled(block()), torch.randn(1, 3, 9, 9)
    optimized = pysim.torch.optimize(model)
    with torch.no_grad():
        assert (optimized(x) == model(x)).all() and (optimized(x) == model(x)).all()
    (one,) = pysim.torch.report(optimized)
    assert one.runs == "torch" and one.reason == str(error)


@pytest.mark.parametrize("x", [torch.randn(3, 9, 9), torch.randn(2, 3, 9, 9, dtype=torch.bfloat16)])
def test_what_no_kernel_takes_is_pytorchs(x):
    model = settled(nn.Sequential(nn.Conv2d(3, 4, 3))).to(x.dtype)
    optimized = pysim.torch.optimize(model)
    with torch.no_grad():
        assert (optimized(x) == model(x)).all()
    assert [one.runs for one in pysim.torch.report(optimized)] == ["torch"]


def test_a_model_that_cannot_be_traced_is_refused_with_a_way_out():
    class Branches(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(OperandError, match=r"torch\.compile"):
        pysim.torch.optimize(Branches())
    with pytest.raises(OperandError, match="right is a torch"):
        pysim.torch.optimize(3)
    with pytest.raises(OperandError, match="optimize returned"):
        pysim.torch.report(nn.ReLU())


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
    points = tomllib.loads((Path(pysim.__file__).parent.parent / "pyproject.toml").read_text())["project"]["entry-points"]
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


class Recorder:
    """Records calls as a GPU would, on the CPU: a replay writes where the recorded call wrote."""

    def __init__(self, monkeypatch):
        self.recorded, self.replayed, self.fails = 0, 0, False
        monkeypatch.setattr(torch_graph, "captured", self.captured)
        monkeypatch.setattr(torch_graph, "_on_gpu", lambda x: True)
        monkeypatch.setattr(torch_graph, "_busy", lambda: False)
        monkeypatch.setattr(torch_graph, "_stream", lambda x: 0)

    def captured(self, call):
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.recorded += 1
        results = call()

        def replay():
            self.replayed += 1
            results.copy_(call())

        return replay, results


@pytest.fixture
def recorder(monkeypatch):
    return Recorder(monkeypatch)


def test_calls_with_a_graph_are_recorded_once_and_give_results_of_their_own(recorder):
    model = settled(Residual())
    optimized = pysim.torch.optimize(model, cuda_graph=True)
    images = [torch.randn(2, 3, 12, 12) for _ in range(5)]
    with torch.no_grad():
        results = [optimized(x) for x in images]
        for x, y in zip(images, results, strict=True):  # none was written over by a later one
            assert_close(y, model(x))
        assert (recorder.recorded, recorder.replayed) == (1, 4)
        assert_close(optimized(torch.ones(1, 3, 9, 9)), model(torch.ones(1, 3, 9, 9)))
    assert recorder.recorded == 1


def test_what_calls_that_are_recorded_later_worked_in_is_let_go_of(recorder):
    kept = cuda_call._workspaces.of_stream
    kept.put(("cuda", 0), (1 << 20, object(), 0))
    optimized = pysim.torch.optimize(settled(block()), cuda_graph=True)
    with torch.no_grad():
        optimized(torch.ones(1, 3, 9, 9))
        assert len(kept) == 1
        optimized(torch.ones(1, 3, 9, 9))
    assert recorder.recorded == 1 and len(kept) == 0


def test_changed_weights_are_recorded_anew(recorder):
    model, x = settled(block()), torch.randn(1, 3, 9, 9)
    optimized = pysim.torch.optimize(model, cuda_graph=True)
    with torch.no_grad():
        for change in (lambda: None, lambda: model[0].weight.mul_(2), lambda: setattr(model[0], "weight", nn.Parameter(-model[0].weight))):
            change()
            for _ in range(3):
                assert_close(optimized(x), model(x))
        assert recorder.recorded == 3
        model[1].running_mean.add_(1)
        assert_close(optimized(x), model(x))
    assert recorder.recorded == 4


def test_what_cannot_be_recorded_runs_as_it_is(recorder):
    model, x = settled(block()), torch.randn(1, 3, 9, 9)
    optimized, recorder.fails = pysim.torch.optimize(model, cuda_graph=True), True
    with torch.no_grad():
        for _ in range(4):
            assert_close(optimized(x), model(x))
    assert not recorder.recorded


def test_gradients_and_copies_of_a_model_with_graphs_are_its_own(recorder):
    model, x = settled(block()), torch.randn(1, 3, 9, 9)
    optimized = pysim.torch.optimize(model, cuda_graph=True)
    assert torch.equal(optimized(x), model(x)) and optimized(x).requires_grad
    with torch.no_grad():
        for _ in range(3):
            optimized(x)
        twin = copy.deepcopy(optimized)
        twin[0].weight.mul_(2)
        for _ in range(3):
            assert_close(optimized(x), model(x))
            assert not np.allclose(twin(x), model(x))


def test_threads_may_call_a_model_with_graphs(recorder):
    model = settled(block())
    optimized, images = pysim.torch.optimize(model, cuda_graph=True), [torch.randn(1, 3, 9, 9) for _ in range(4)]
    found = {}

    def run(at):
        with torch.no_grad():
            found[at] = [optimized(images[at]) for _ in range(5)]

    in_threads(run, 4)
    with torch.no_grad():
        for at, results in found.items():
            for y in results:
                assert_close(y, model(images[at]))


def test_layers_that_all_stay_pytorchs_look_nothing_up(monkeypatch):
    monkeypatch.setattr(torch_layers, "pytorch_seconds", lambda *_: 0.0)
    model, x = settled(nn.Sequential(block(), nn.Conv2d(8, 4, 1))), torch.randn(1, 3, 9, 9)
    optimized, looked_up = pysim.torch.optimize(model), []
    look_up = LayerChain._look_up
    monkeypatch.setattr(LayerChain, "_look_up", lambda chain, values: looked_up.append(1) or look_up(chain, values))
    with torch.no_grad():
        optimized(x)
        before = len(looked_up)
        for change in (lambda: None, lambda: model[0][0].weight.mul_(2), lambda: setattr(model[1], "bias", None)):
            change()
            assert torch.equal(optimized(x), model(x))
    assert before and len(looked_up) == before
