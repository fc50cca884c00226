# SPDX-License-Identifier: Apache-2.0
"""A call that was kept in a file needs no capture and computes the same bits; a model that is or becomes another one is never computed by
it."""

import random
import sys
from collections import deque
from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

import numpy as np  # noqa: E402
from torch import nn  # noqa: E402

import pysim.torch  # noqa: E402
from pysim.errors import OperandError, ProblemError  # noqa: E402
from pysim.machine.allowed import Allowed  # noqa: E402
from pysim.torch.layers import network_layer  # noqa: E402
from pysim.torch.layers.network_layer import team  # noqa: E402
from pysim.torch.model_state import ModelState  # noqa: E402

FACTOR = 2.0


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width)
        self.pool, self.head, self.drop = nn.AvgPool2d(2), nn.Linear(16 * width, 5), nn.Dropout(0.5)
        self.gain, self.names = 3.0, ["scores"]

    def forward(self, image, more=None, halved=False):
        planes = self.pool(torch.relu(self.norm(self.conv(image if more is None else image + more["beside"]))))
        scores = self.drop(self.head(planes.flatten(1))) * self.gain * FACTOR
        return {self.names[0]: scores / 2 if halved else scores, "rows": (planes.flatten(2), None)}


def made(seed=0, width=8):
    torch.manual_seed(seed)
    model = Net(width).eval()
    model.norm.running_mean.uniform_(-1, 1)
    return model


IMAGE, BESIDE = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)), torch.ones(2, 3, 8, 8)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The file, and the results of the call that it keeps."""
    model, path = pysim.torch.optimize(made()), tmp_path_factory.mktemp("saved") / "model.pysim"
    pysim.torch.save(model, path, IMAGE, more={"beside": BESIDE})
    with torch.no_grad():
        return path, model(IMAGE, more={"beside": BESIDE})


@pytest.fixture
def loaded(kept, monkeypatch):
    """The model of the file, and the calls that the file did not compute, which here run by PyTorch."""
    calls = []

    def by_pytorch(of):
        def call(*args, **kwargs):
            calls.append(args)
            return of.model(*args, **kwargs)

        return call

    monkeypatch.setattr(pysim.torch._Calls, "_compile", by_pytorch)
    model = made()
    return pysim.torch.load(kept[0], model), model, calls


def call(model, image=IMAGE, **named):
    with torch.no_grad():
        return model(image, **({"more": {"beside": BESIDE}} | named))


def equal(one, other):
    assert one.keys() == other.keys() and one["rows"][1] is other["rows"][1] is None
    for x, y in ((one["scores"], other["scores"]), (one["rows"][0], other["rows"][0])):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)
        assert x.stride() == y.stride()


def test_a_kept_call_computes_the_same_bits_without_capture(kept, loaded):
    model, plain, calls = loaded
    for _ in range(2):
        found = call(model)
        assert torch.equal(found["scores"], kept[1]["scores"]) and torch.equal(found["rows"][0], kept[1]["rows"][0])
        equal(found, call(plain))
    assert not calls
    assert {one.runs for one in pysim.torch.report(model)} == {"pysim"}


OTHER_CALLS = {
    "of another size": lambda model: call(model, IMAGE[:1], more={"beside": BESIDE[:1]}),
    "of another layout": lambda model: call(model, IMAGE.to(memory_format=torch.channels_last)),
    "with another number": lambda model: call(model, halved=True),
    "with fewer arguments": lambda model: call(model, more=None),
}


@pytest.mark.parametrize("which", OTHER_CALLS)
def test_a_call_of_another_kind_is_captured_and_the_kept_one_stays(loaded, which):
    model, plain, calls = loaded
    equal(OTHER_CALLS[which](model), OTHER_CALLS[which](plain))
    assert len(calls) == 1
    call(model)
    assert len(calls) == 1


CHANGES = {
    "a weight in place": lambda model: model.conv.weight.detach().mul_(2),
    "a weight by its data": lambda model: model.head.bias.data.add_(1),
    "a buffer by a view of NumPy's": lambda model: np.add(model.norm.running_mean.numpy(), 1, out=model.norm.running_mean.numpy()),
    "a weight with other strides": lambda model: setattr(model.conv.weight, "data", model.conv.weight.data.transpose(2, 3)),
    "no parameter": lambda model: setattr(model.head, "bias", None),
    "another parameter": lambda model: setattr(model.head, "bias", nn.Parameter(torch.ones(5))),
    "an attribute": lambda model: setattr(model, "gain", 4.0),
    "an attribute of a layer": lambda model: setattr(model.conv, "padding", (1, 1)) or setattr(model.norm, "eps", 0.5),
    "another layer": lambda model: setattr(model, "pool", nn.MaxPool2d(2)),
    "a class": lambda model: setattr(model.pool, "__class__", nn.LPPool2d) or setattr(model.pool, "norm_type", 2.0),
    "a hook": lambda model: model.conv.register_forward_hook(lambda module, given, result: result + 1),
    "the training of a layer": lambda model: model.norm.train(),
}  # fmt: skip


@pytest.mark.parametrize("which", CHANGES)
def test_a_changed_model_is_not_computed_by_the_file(loaded, which):
    model, plain, calls = loaded
    before = call(model)
    assert not calls
    CHANGES[which](plain)
    equal(call(model), call(plain))
    assert len(calls) == 1, "the file computed the changed model"
    assert not torch.equal(call(plain)["scores"], before["scores"]), "the change changes nothing"


def test_a_global_variable_of_the_models_own_code_is_seen(loaded, monkeypatch):
    model, plain, calls = loaded
    monkeypatch.setattr("test_torch_saved_calls.FACTOR", 3.0)
    equal(call(model), call(plain))
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("path", "error", "why"),
    [
        (None, OperandError, "path is None; expected the path of a file"),
        ("/nowhere/it.pysim", ProblemError, r'^"/nowhere/it.pysim" cannot be read: No such file or directory$'),
    ],
)
def test_what_is_no_file_is_refused(path, error, why):
    with pytest.raises(error, match=why):
        pysim.torch.load(path, made())
    with pytest.raises(OperandError, match=r"such as .*it\.pysim"):
        pysim.torch.save(made(), "it.onnx")


def test_another_model_is_refused_with_what_differs(kept, monkeypatch):
    with pytest.raises(OperandError, match=r"the content of conv\.weight"):
        pysim.torch.load(kept[0], made(seed=1))
    with pytest.raises(OperandError, match=r"conv\.\w+ .*is not what it was"):
        pysim.torch.load(kept[0], made(width=4))
    other = made()
    other.gain = 4.0
    with pytest.raises(OperandError, match=r"gain \(4\.0\) is not what it was \(3\.0\)"):
        pysim.torch.load(kept[0], other)
    own = Net.forward
    monkeypatch.setattr(Net, "forward", lambda self, image, more=None: own(self, image, more))
    with pytest.raises(OperandError, match=r"class .*Net .*is not what it was"):
        pysim.torch.load(kept[0], made())


def test_a_file_of_another_number_of_threads_or_of_a_network_alone_is_refused(kept, tmp_path, monkeypatch):
    threads = team()
    monkeypatch.setattr(network_layer, "allowed", lambda: Allowed(threads + 1, threads + 1, (), "a larger computer"))
    before = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        with pytest.raises(ProblemError, match="threads"):
            pysim.torch.load(kept[0], made())
    finally:
        torch.set_num_threads(before)
    pysim.load(kept[0], threads=threads).save(tmp_path / "again.pysim", {"of": "no model"})
    with pytest.raises(OperandError, match="a network alone"):
        pysim.torch.load(tmp_path / "again.pysim", made())


class Drawing(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        return torch.rand_like(x).sum() + self.conv(x).relu()


def test_what_is_not_one_network_cannot_be_kept(tmp_path):
    with pytest.raises(OperandError, match="cannot be kept in a file"):
        pysim.torch.save(Drawing().eval(), tmp_path / "model.pysim", IMAGE)
    with pytest.raises(OperandError, match="the model is training"):
        pysim.torch.save(made().train(), tmp_path / "model.pysim", IMAGE)
    assert not [*tmp_path.iterdir()]


class Difference(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x, y):
        return self.a(x).relu() - self.b(y).relu()


def test_arguments_that_share_memory_cannot_be_kept(tmp_path):
    """A file kept for one tensor as both arguments read the first of later ones twice."""
    model, x, y = Difference().eval(), torch.randn(32, 16), torch.randn(32, 16)
    for given in ((x, x), (x[:16], x[16:]), (model.a.weight, y[:8])):
        with pytest.raises(OperandError, match="its arguments share memory"):
            pysim.torch.save(model, tmp_path / "model.pysim", *given)
    pysim.torch.save(model, tmp_path / "model.pysim", x, y)
    kept = pysim.torch.load(tmp_path / "model.pysim", model)
    with torch.no_grad():
        for given in ((x, y), (y, x), (x, x)):
            torch.testing.assert_close(kept(*given), model(*given), rtol=1e-5, atol=1e-5)


class Slots:
    __slots__ = ("scale",)


@pytest.mark.parametrize("make", [Slots, lambda: random.Random(0), lambda: deque([1.0]), lambda: iter([1.0])])
def test_a_model_with_state_that_cannot_be_compared_is_refused(make):
    model = made()
    model.more = make()
    with pytest.raises(OperandError, match=r"^more is a "):
        ModelState(model)


def test_a_namespace_is_part_of_the_state():
    model = made()
    model.options = SimpleNamespace(scale=2.0)
    state = ModelState(model)
    assert state.told["options.scale"] == "2.0" and state.unchanged()
    model.options.scale = 3.0
    assert not state.unchanged()


SETTINGS = """
SCALE, SIZES, TABLE, COUNT = 2.0, [1, 2], {"gain": 1.0}, 3
class Options:
    gain = 1.5
class Chosen:
    def __init__(self):
        self.gain = 4.0
CHOSEN = Chosen()
def scaled(y):
    return y * SCALE + SIZES[0]
"""


class Set(Net):
    start = 1.0

    def forward(self, image):
        y = settings.scaled(self.conv(image)) * settings.Options.gain * settings.CHOSEN.gain  # noqa: F821
        return y * settings.TABLE["gain"] + self.start  # noqa: F821


CHANGED = {
    "a number": lambda settings: setattr(settings, "SCALE", 3.0),
    "a list": lambda settings: settings.SIZES.append(3),
    "a dictionary": lambda settings: settings.TABLE.update(gain=2.0),
    "a class": lambda settings: setattr(settings.Options, "gain", 2.0),
    "an object": lambda settings: setattr(settings.CHOSEN, "gain", 2.0),
    "a function": lambda settings: setattr(settings, "scaled", lambda y: y),
}


@pytest.fixture
def settings_module(monkeypatch):
    module = ModuleType("settings_of_a_user")
    exec(SETTINGS, vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(globals(), "settings", module)
    return module


@pytest.mark.parametrize("which", CHANGED)
def test_what_another_module_of_the_user_holds_is_part_of_the_state(which, settings_module):
    state = ModelState(model := Set().eval())
    assert state.unchanged()
    settings_module.COUNT += 1  # which the model does not name
    assert state.unchanged()
    CHANGED[which](settings_module)
    assert not state.unchanged() and ModelState(model).told != state.told


def test_a_number_of_a_class_is_part_of_the_state(settings_module, monkeypatch):
    state = ModelState(model := Set().eval())
    monkeypatch.setattr(Set, "start", 2.0)
    assert not state.unchanged() and ModelState(model).told != state.told
