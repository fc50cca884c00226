# SPDX-License-Identifier: Apache-2.0
"""Objects that a call reads and torch.compile does not guard or takes for constant: results of optimized models are eager's."""

import collections
import collections.abc
import copy
import functools
import os
import random
import sys
import types
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402
from torch_twins import WAYS, Twins, difference  # noqa: E402

import pysim.torch  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("every_layer_is_ours", "fresh_compiler"),
    pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage"),
]


class Model(nn.Module):
    """`forward` is `of`, beside a convolution and an object that `made` gives."""

    def __init__(self, of, made=lambda: None):
        super().__init__()
        self.conv, self.of, self.held = nn.Conv2d(3, 8, 3), of, made()

    def forward(self, *given):
        return self.of(self, *given)


def results(model, calls):
    """Of calls with seeds, and the numbers that are drawn after each."""
    found = []
    with torch.no_grad():
        for at in range(calls):
            torch.manual_seed(at)
            random.seed(at)
            np.random.seed(at)
            found.append((model(torch.randn(2, 3, 9, 9)), torch.rand(1), random.random(), np.random.rand()))
    return found


def shuffled(model, x):
    numbers = [1, 2, 3, 4]
    random.shuffle(numbers)
    return model.conv(x) * numbers[0]


def turned(model, x):
    model.held.append(model.held[0] + 1)
    model.held.rotate(1)
    return model.conv(x) * model.held[0]


def cached():
    return functools.lru_cache(None)(torch.randn)


def counting():
    number = 0.0
    while True:
        yield (number := number + 1)


STATES = {
    "choice": (lambda model, x: model.conv(x) * random.choice([1, 2, 3, 4]), lambda: None),
    "gauss": (lambda model, x: model.conv(x) * random.gauss(0, 1), lambda: None),
    "shuffle": (shuffled, lambda: None),
    "a generator of its own": (lambda model, x: model.conv(x) + model.held.random(), lambda: random.Random(3)),
    "a generator function": (lambda model, x: model.conv(x) + next(model.held), counting),
    "NumPy's numbers": (lambda model, x: model.conv(x) + torch.from_numpy(np.random.rand(1)).float(), lambda: None),
    "a deque": (turned, lambda: collections.deque([1.0, 2.0, 3.0], maxlen=3)),
    "a cache": (lambda model, x: model.conv(x) + model.held(1), cached),
}


@pytest.mark.parametrize("name", STATES)
def test_state_that_each_call_changes_is_no_constant(name):
    of, made = STATES[name]
    model, twin = Model(of, made).eval(), Model(of, made).eval()
    twin.load_state_dict(model.state_dict())
    assert not (fault := difference(results(pysim.torch.optimize(model), 4), results(twin, 4))), fault


class Table(collections.abc.Mapping):
    def __init__(self):
        self.numbers = {"other": 1.0}

    def __getitem__(self, key):
        return self.numbers[key]

    def __iter__(self):
        return iter(self.numbers)

    def __len__(self):
        return len(self.numbers)


def held_or_one(model, x):
    try:
        return model.conv(x) * model.held["factor"]
    except KeyError:
        return model.conv(x)


def own_or_one(model, x):
    try:
        return model.conv(x) * model.factor
    except AttributeError:
        return model.conv(x)


FACTOR = "FACTOR_OF_A_TEST"  # a variable of the system
ABSENT = {
    "a key": (held_or_one, dict, lambda model: model.held.update(factor=3.0)),
    "an attribute": (own_or_one, lambda: None, lambda model: setattr(model, "factor", 3.0)),
    "a mapping's key": (
        lambda model, x: model.conv(x) * model.held.get("factor", 1), Table,
        lambda model: model.held.numbers.update(factor=3.0),
    ),
    "a variable of the system": (
        lambda model, x: model.conv(x) * float(os.environ.get(FACTOR, "1")), lambda: None,
        lambda model: os.environ.update({FACTOR: "3"}),
    ),
    "an order of keys": (
        lambda model, x: model.conv(x) * next(iter(model.held.values())), lambda: collections.OrderedDict(a=1.0, b=3.0),
        lambda model: model.held.move_to_end("a"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ABSENT)
def test_what_was_absent_or_stood_elsewhere_takes_effect_when_it_comes(name, monkeypatch):
    of, made, comes = ABSENT[name]
    monkeypatch.delenv(FACTOR, raising=False)
    model, x = Model(of, made).eval(), torch.randn(2, 3, 9, 9)
    optimized = pysim.torch.optimize(model)
    with torch.no_grad():
        before = optimized(x)
        comes(model)
        assert not (fault := difference(optimized(x), 3 * before)), fault
    os.environ.pop(FACTOR, None)


def test_arrays_of_numpy_are_given_to_the_model_as_they_are():
    model = nn.Conv2d(3, 8, 3).eval()
    with torch.no_grad(), pytest.raises(TypeError):
        pysim.torch.optimize(model)(np.zeros((1, 3, 9, 9), np.float32))


class Helper:
    def doubled(self, y):
        return y * 2


HELPER, LAYER = Helper(), nn.Conv2d(8, 8, 1)
OBJECTS = {
    "a layer in a list": (lambda model, x: model.held[0](model.conv(x)), lambda: [nn.Conv2d(8, 8, 1)], lambda model: model.held[0]),
    "a layer in a dictionary": (lambda model, x: model.held["a"](model.conv(x)), lambda: {"a": nn.ReLU()}, lambda model: model.held["a"]),
    "a global layer": (lambda model, x: LAYER(model.conv(x)), lambda: None, lambda model: LAYER),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_a_hook_of_a_module_that_is_no_child_takes_effect(name):
    of, made, layer = OBJECTS[name]
    model, x = Model(of, made).eval(), torch.randn(2, 3, 9, 9)
    optimized = pysim.torch.optimize(model)
    with torch.no_grad():
        before = optimized(x)
        handle = layer(model).register_forward_hook(lambda module, given, y: y * 3)
        assert not (fault := difference(optimized(x), 3 * before)), fault
        handle.remove()
        assert not (fault := difference(optimized(x), before)), fault


@pytest.mark.parametrize(
    ("of", "made"),
    [
        (lambda model, x: model.held[0].doubled(model.conv(x)), lambda: [Helper()]),
        (lambda model, x: HELPER.doubled(model.conv(x)), lambda: None),
    ],
    ids=["in a list", "global"],
)
def test_a_method_of_an_object_that_is_no_attribute_takes_effect(of, made, monkeypatch):
    model, x = Model(of, made).eval(), torch.randn(2, 3, 9, 9)
    optimized = pysim.torch.optimize(model)
    with torch.no_grad():
        optimized(x)
        monkeypatch.setattr(Helper, "doubled", lambda self, y: y - 5)
        assert not (fault := difference(optimized(x), model(x))), fault


@pytest.mark.parametrize("name", ["sigmoid", "__mul__"])
def test_a_method_of_tensors_that_is_replaced_takes_effect(name):
    model, x = Model(lambda model, x: model.conv(x).sigmoid() * 2).eval(), torch.randn(2, 3, 9, 9)
    optimized = pysim.torch.optimize(model)
    with torch.no_grad():
        before = optimized(x)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.Tensor, name, lambda y, *_: torch.add(y, 1))
            assert not (fault := difference(optimized(x), model(x))), fault
        assert not (fault := difference(optimized(x), before)), fault


def test_a_detached_parameter_needs_no_gradient(way):
    model = Model(lambda model, x: (model.conv(x), model.conv.weight.detach(), model.conv.weight.view(-1))).eval()
    ours, x = WAYS[way](model), torch.randn(2, 3, 9, 9)
    with torch.no_grad():
        assert not (fault := difference(ours(x), model(x))), fault


def test_zero_has_a_sign():
    model, x = Model(lambda model, x, by: model.conv(x) / by).eval(), torch.randn(2, 3, 9, 9)
    optimized = pysim.torch.optimize(model)
    with torch.no_grad():
        for by in (0.0, -0.0, 0.0):
            assert not (fault := difference(optimized(x, by), model(x, by))), fault


def test_an_encoder_fills_what_a_mask_leaves_out_as_eager_does():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x, mask = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    for given in ({}, {"src_key_padding_mask": mask}):
        optimized = pysim.torch.optimize(copy.deepcopy(model))
        with torch.no_grad():
            assert not (fault := difference(optimized(x, **given), model(x, **given))), fault
        assert any(one.reason.startswith("nn.TransformerEncoder is called") for one in pysim.torch.report(optimized)) == bool(given)


@torch.no_grad()
def test_what_a_package_caches_is_no_state_of_the_users(monkeypatch):
    helpers = types.ModuleType("numpy.helpers")  # a package with a version, which a function of the user's calls
    code = "import functools\n@functools.lru_cache\ndef factor(x): return 2 * x\ndef used(model, x): return model.conv(x) * factor(1.5)"
    exec(code, vars(helpers))
    monkeypatch.setitem(sys.modules, "numpy.helpers", helpers)
    model, x = Model(helpers.used).eval(), torch.randn(1, 3, 8, 8)
    ours = pysim.torch.optimize(model)
    assert torch.allclose(ours(x), model(x), atol=1e-5)
    assert [one.runs for one in pysim.torch.report(ours)] == ["pysim"]


class Empty:
    """A class without functions of its own."""


@torch.no_grad()
def test_objects_without_methods_are_read():
    model, x = Model(lambda model, x: model.conv(x) * (1 if model.held.factor is None else 2), Empty).eval(), torch.randn(1, 3, 8, 8)
    model.held.factor = None
    ours = pysim.torch.optimize(model)
    assert torch.allclose(ours(x), model(x), atol=1e-5)
    model.held.factor = 3
    assert torch.allclose(ours(x), model(x), atol=1e-5)
    assert {one.runs for one in pysim.torch.report(ours)} == {"pysim"}


@torch.no_grad()
def test_an_object_that_only_the_users_code_holds_goes_when_he_lets_it_go():
    held = [Empty()]
    model = Model(lambda model, x: model.conv(x) * (2 if model.held() is None else 3), lambda: weakref.ref(held[0])).eval()
    ours, x = pysim.torch.optimize(model), torch.randn(1, 3, 8, 8)
    before = ours(x)
    held.clear()
    assert torch.allclose(ours(x) * 1.5, before, atol=1e-5)


@torch.no_grad()
def test_a_key_that_comes_into_an_earlier_mapping_of_a_chain_takes_effect():
    model = Model(lambda model, x: model.conv(x) * model.held["a"], lambda: collections.ChainMap({}, {"a": 1.0})).eval()
    ours, x = pysim.torch.optimize(model), torch.randn(1, 3, 8, 8)
    before = ours(x)
    model.held["a"] = 2.0
    assert torch.allclose(ours(x), before * 2, atol=1e-5)


def test_optimizing_makes_no_subclass_in_the_eyes_of_the_users_classes():
    """Whose `__init_subclass__` counts, registers or refuses such."""
    made = []

    class Registered(Model):
        def __init_subclass__(cls, *, key):
            made.append(cls)

    model, x = Registered(lambda self, x: self.conv(x)).eval(), torch.randn(2, 3, 9, 9)
    with torch.no_grad():
        optimized = pysim.torch.optimize(model)
        assert not (fault := difference(optimized(x), model(x))), fault
    assert isinstance(optimized, Registered) and not made


@pytest.mark.parametrize("at", [0, 1])
def test_a_submodule_that_another_like_it_replaced_has_its_own_hooks(at):
    """Guards take it for the one before, whose hooks were looked at."""

    def another(one):
        part = copy.deepcopy(one[at])
        part.register_forward_hook(lambda _, given, y: 2 * y)
        one[at] = part

    twins, x = Twins(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Sequential(nn.Conv2d(8, 4, 1))).eval(), "optimize"), torch.randn(2, 3, 9, 9)
    with torch.no_grad():
        twins.check(x)
        twins.do(another)
        twins.check(x)
