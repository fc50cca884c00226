# SPDX-License-Identifier: Apache-2.0
"""A call on a GPU that was kept in a file needs no capture and no planning, and follows the model's weights; a model that is or becomes
another one is never computed by it. Here on a CPU, with the kernels as the CPU runs them."""

import hashlib
import json

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch_models import assert_close, settled  # noqa: E402

import pysim.torch  # noqa: E402
from pysim.errors import OperandError, ProblemError  # noqa: E402
from pysim.torch import program_text  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_gpu", "fresh_compiler")


class Net(nn.Module):
    """Convolutions with and without norms, a residual, a gate, a norm that no convolution precedes, a layer norm, a product."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.own_norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(16)
        self.rows, self.last, self.gain = nn.LayerNorm(16), nn.Linear(16, 5), 2.0

    def forward(self, x, more=None, halved=False):
        y = functional.silu(self.norm(self.first(x if more is None else x + more["beside"])))
        z = functional.max_pool2d(functional.relu(y + self.second(y) * y.mean((2, 3), keepdim=True).sigmoid()), 2)
        z = functional.relu(self.own_norm(torch.cat([z, z * z], 1))).mean((2, 3))
        scores = self.last(self.rows(z)) * self.gain
        return {"scores": scores / 2 if halved else scores, "planes": (y.flatten(2), None), "given": x, "count": 3}


def made():
    torch.manual_seed(0)
    return settled(Net())


X, MORE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)), {"beside": torch.ones(2, 3, 8, 8)}


@pytest.fixture
def kept(tmp_path):
    path = tmp_path / "call.pysim"
    pysim.torch.save(pysim.torch.optimize(made(), compiler=False), path, X, more=MORE)
    return path


@pytest.fixture
def loaded(kept, monkeypatch):
    """The model of the file, one beside it, and the calls that the file did not compute, which here run by PyTorch."""
    calls = []

    def by_pytorch(of):
        return lambda *args, **kwargs: calls.append(args) or of.model(*args, **kwargs)

    monkeypatch.setattr(pysim.torch._Calls, "_compile", by_pytorch)
    monkeypatch.setattr(program_text.planner, "planned", lambda *_: pytest.fail("it planned"))
    model = made()
    return pysim.torch.load(kept, model), model, calls


def same(found, expected):
    assert_close(found["scores"], expected["scores"])
    assert_close(found["planes"][0], expected["planes"][0])
    assert found["planes"][0].stride() == expected["planes"][0].stride() and found["planes"][1] is None and found["count"] == 3


@torch.no_grad()
def test_a_kept_call_is_neither_captured_nor_planned(loaded):
    model, plain, calls = loaded
    for x in (X, X + 1):
        found = model(x, more=MORE)
        same(found, plain(x, more=MORE))
        assert found["given"] is x
    assert not calls
    assert {one.layer: one.runs for one in pysim.torch.report(model)} == {"first": "pysim", "second": "pysim", "last": "pysim"}


@torch.no_grad()
@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.first.weight.mul_(2),
        lambda model: model.last.bias.data.add_(1),
        lambda model: model.norm.running_mean.normal_(),
        lambda model: model.load_state_dict({name: 0.5 * one for name, one in model.named_parameters()}, strict=False),
    ],
)
def test_weights_may_change(loaded, change):
    model, plain, calls = loaded
    model(X, more=MORE)
    change(plain)
    for _ in range(2):
        same(model(X, more=MORE), plain(X, more=MORE))
    assert not calls


@torch.no_grad()
def test_weights_may_be_others_than_those_of_the_file(kept):
    other = made()
    for one in other.parameters():
        one.mul_(1.5)
    loaded = pysim.torch.load(kept, other)
    same(loaded(X, more=MORE), other(X, more=MORE))


OTHER_CALLS = {
    "of another size": lambda model: model(X[:1], more={"beside": MORE["beside"][:1]}),
    "of another type": lambda model: model(X, more={"beside": MORE["beside"].half()}),
    "of another layout": lambda model: model(X.to(memory_format=torch.channels_last), more=MORE),
    "with another number": lambda model: model(X, more=MORE, halved=True),
    "with fewer arguments": lambda model: model(X),
}


@torch.no_grad()
@pytest.mark.parametrize("which", OTHER_CALLS)
def test_a_call_of_another_kind_is_captured_and_the_kept_one_stays(loaded, which):
    model, _, calls = loaded
    OTHER_CALLS[which](model)
    assert len(calls) == 1
    model(X, more=MORE)
    assert len(calls) == 1


@torch.no_grad()
def test_a_call_under_other_settings_is_captured(loaded):
    model, plain, calls = loaded
    torch.set_default_dtype(torch.float64)
    try:
        same(model(X, more=MORE), plain(X, more=MORE))
    finally:
        torch.set_default_dtype(torch.float32)
    assert len(calls) == 1


@torch.no_grad()
@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model, "gain", 3.0),
        lambda model: setattr(model.norm, "eps", 0.5),
        lambda model: setattr(model, "last", nn.Linear(16, 5)),
        lambda model: model.first.register_forward_hook(lambda module, given, y: y + 1),
    ],
)
def test_after_a_change_of_the_model_calls_are_captured(loaded, change):
    model, plain, calls = loaded
    model(X, more=MORE)
    change(plain)
    for _ in range(2):
        same(model(X, more=MORE), plain(X, more=MORE))
    assert len(calls) == 2


def test_a_file_of_another_model_is_refused_by_name(kept):
    model = made()
    model.gain = 7.0
    with pytest.raises(OperandError, match="gain"):
        pysim.torch.load(kept, model)


def rewritten(path, change):
    """The file after a change of its document, with the digest of that."""
    document = json.loads(path.read_bytes()[65:])
    change(document)
    text = json.dumps(document, separators=(",", ":")).encode()
    path.write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)


def rename(document, op, name):
    next(one for one in document["program"]["nodes"] if one[0] == op)[2] = name


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda document: document.update(torch="1.0"), "was saved for the torch 1.0"),
        (lambda document: document.update(pysim="0"), "was saved for the pysim 0"),
        (lambda document: document.update(gpu="another"), "was saved for the gpu another"),
        (lambda document: rename(document, "call_function", "torch load"), "torch load, which is no operator"),
        (
            lambda document: rename(document, "call_function", "torch from_file"),
            "torch from_file, which is no operator",
        ),
        (lambda document: rename(document, "call_function", "operator methodcaller"), "which is no operator"),
        (lambda document: rename(document, "call_function", "nn __class__"), "which is no operator"),
        (lambda document: rename(document, "call_method", "__reduce__"), "which tensors lack"),
        (lambda document: document["program"]["layers"][0]["choices"][0][2].__setitem__(2, "no plan"), "no plan"),
        (lambda document: document["program"].pop("nodes"), "is no call of a model"),
    ],
)
def test_a_file_for_something_else_is_refused_and_nothing_in_it_is_called(kept, change, why):
    rewritten(kept, change)
    with pytest.raises(ProblemError, match=why):
        pysim.torch.load(kept, made())


def test_a_damaged_file_is_refused(kept):
    content = kept.read_bytes()
    kept.write_bytes(content[:-9] + b"1" + content[-8:])
    with pytest.raises(ProblemError, match="damaged"):
        pysim.torch.load(kept, made())


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.calls = nn.Conv2d(3, 8, 3), 0

    def forward(self, x):
        self.calls += 1
        return self.conv(x)


class Breaking(Counting):
    def forward(self, x):
        print("between")
        return self.conv(x)


@pytest.mark.parametrize(("kind", "why"), [(Counting, "changes the model's attributes"), (Breaking, "cannot be kept in a file: .*builtin")])
def test_a_call_that_a_file_cannot_hold_is_refused(tmp_path, kind, why):
    with pytest.raises(OperandError, match=why):
        pysim.torch.save(pysim.torch.optimize(kind().eval(), compiler=False), tmp_path / "call.pysim", X)
    assert not (tmp_path / "call.pysim").exists()


@torch.no_grad()
def test_a_graph_that_is_compiled_is_refused(tmp_path, monkeypatch):
    from pysim.torch.capture import compiled

    monkeypatch.setattr(compiled, "missing_compiler", lambda: "")
    monkeypatch.setattr(compiled.Laid, "compile", lambda self: compiled.Compiled(self.captured.forward, [], [], [], True))
    with pytest.raises(OperandError, match="compiler=False"):
        pysim.torch.save(pysim.torch.optimize(made(), compiler=True), tmp_path / "call.pysim", X)
