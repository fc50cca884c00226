# SPDX-License-Identifier: Apache-2.0
"""State that a model's own code reads or writes is no constant: buffers, counters, random numbers, Python's values."""

import random
import types

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch_models import FrozenNorm, block, settled  # noqa: E402
from torch_twins import WAYS, Twins, difference  # noqa: E402

import pysim.torch  # noqa: E402

pytestmark = pytest.mark.usefixtures("every_layer_is_ours", "fresh_compiler")


def image():
    return torch.randn(2, 3, 9, 9)


class Model(nn.Module):
    """A convolution, to which models below add their own state."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.start()

    def start(self):
        pass


def follows(way, model, *changes, times=2):
    """Calls, and calls after each change, are eager's."""
    twins, x = Twins(model.eval(), way), image()
    with torch.no_grad():
        twins.check(x, times=times)
        for change in changes:
            twins.do(change)
            twins.check(x, times=times)
    return twins


# Buffers


def frozen():
    return nn.Sequential(nn.Conv2d(3, 8, 3), FrozenNorm(8), nn.ReLU(), nn.Conv2d(8, 8, 3, bias=False), FrozenNorm(8))


def written(model):
    model[1].running_mean.add_(1)
    model[4].weight.mul_(-2)


def replaced(model):
    model[1].running_var = torch.rand(8) + 0.5


def other_states(model):
    return {name: torch.rand_like(one) + 0.5 for name, one in model.state_dict().items()}


@pytest.mark.parametrize(
    "change",
    [
        written,
        replaced,
        lambda model: model[1].weight.numpy().__imul__(3),
        lambda model: model.load_state_dict(other_states(model)),
        lambda model: model.load_state_dict(other_states(model), assign=True),
        lambda model: setattr(model[1], "eps", 0.5),
    ],
    ids=["written", "replaced", "numpy", "loaded", "assigned", "eps"],
)
def test_a_frozen_norm_reads_its_buffers_in_each_call(change, way):
    follows(way, frozen(), change, change)


class Counter(Model):
    def start(self):
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return self.conv(x) * self.calls


class Past(Model):
    def start(self):
        self.register_buffer("past", torch.zeros(8))

    def forward(self, x):
        y = self.conv(x)
        self.past = self.past * 0.5 + y.mean((0, 2, 3))
        return y - self.past[:, None, None]


class PastInPlace(Past):
    def forward(self, x):
        y = self.conv(x)
        self.past.mul_(0.5).add_(y.mean((0, 2, 3)))
        return y - self.past[:, None, None]


class WrittenParameter(Model):
    """A forward that writes the weights that it then uses."""

    def forward(self, x):
        self.conv.weight.data.mul_(0.5)
        return self.conv(x)


class Lazily(Model):
    """Makes its buffer in the first call."""

    def forward(self, x):
        if not hasattr(self, "scale"):
            self.register_buffer("scale", x.abs().mean())
        return self.conv(x) * self.scale


@pytest.mark.parametrize("kind", [Counter, Past, PastInPlace, WrittenParameter, Lazily])
def test_what_a_call_writes_is_written_once_in_each_call_and_never_before(kind, way):
    twins = follows(way, kind(), lambda model: model.load_state_dict(model.state_dict()), times=3)
    before = {name: one.clone() for name, one in twins.model.state_dict().items()}
    WAYS[way](twins.model)
    assert not difference(dict(twins.model.state_dict()), before)
    assert not any(isinstance(one, torch.fx.Proxy) for module in twins.model.modules() for one in vars(module).values())


@pytest.mark.parametrize("kind", [Counter, Past, PastInPlace, WrittenParameter, Lazily])
def test_optimizing_writes_nothing(kind, way):
    model = kind().eval()
    before = {name: one.clone() for name, one in model.state_dict().items()}, list(vars(model))
    WAYS[way](model)
    after = {name: one.clone() for name, one in model.state_dict().items()}, [one for one in vars(model) if one != "_is_torch_compile"]
    assert not difference(after, before)


# Random numbers


class Noise(Model):
    def forward(self, x):
        return self.conv(x + torch.rand(3, 1, 1)) + torch.randn_like(x[:, :1])


class OwnGenerator(Model):
    def start(self):
        self.generator = [torch.Generator().manual_seed(3)]

    def forward(self, x):
        return self.conv(x) + torch.rand(8, 1, 1, generator=self.generator[0])


class Coin(Model):
    def forward(self, x):
        return self.conv(x) if random.random() < 0.5 else -self.conv(x)


class ManySided(Model):
    def forward(self, x):
        return self.conv(x) * random.uniform(1, 2) + random.randint(1, 6)


class Dropping(Model):
    """Dropout that stays on in inference."""

    def forward(self, x):
        return functional.dropout(self.conv(x), 0.5, training=True)


@pytest.mark.parametrize("kind", [Noise, Coin, ManySided, Dropping])
def test_random_numbers_are_drawn_in_each_call(kind, way):
    twins, x = Twins(kind().eval(), way), image()
    results = []
    with torch.no_grad():
        for seed in range(6):
            drawn = []
            for one in (twins.ours, twins.twin):
                torch.manual_seed(seed)
                random.seed(seed)
                drawn.append((one(x), torch.rand(1), random.random()))
            assert not (fault := difference(*drawn)), fault
            results.append(drawn[0][0])
    assert not all(torch.equal(one, results[0]) for one in results)


# Values of Python


class Scaled(Model):
    def start(self):
        self.factor, self.on, self.mode, self.sizes = 2.0, True, "relu", [1, 2]

    def forward(self, x):
        y = self.conv(x) * self.factor + sum(self.sizes)
        y = y if self.on else -y
        return getattr(functional, self.mode)(y)


class Held(Model):
    """Tensors that are neither parameters nor buffers."""

    def start(self):
        self.shift, self.several, self.by_name = torch.ones(8, 1, 1), [torch.ones(1), torch.zeros(1)], {"a": torch.ones(1)}

    def forward(self, x):
        y = self.conv(x) + self.shift
        return y * self.several[0] + self.several[1] * self.by_name["a"]


class Remembers(Model):
    def start(self):
        self.last, self.seen = None, []

    def forward(self, x):
        y = self.conv(x)
        self.last = y
        self.seen.append(y.mean())
        return y if len(self.seen) < 3 else y + self.seen[-3]


class Depends(Model):
    """Control flow on data."""

    def forward(self, x):
        y = self.conv(x)
        return y * 2 if y.mean() > 0 else y - 1


GLOBAL = {"gain": 1.0}


class ReadsGlobals(Model):
    def forward(self, x):
        return self.conv(x) * GLOBAL["gain"]


def set_to(name, value):
    return lambda model: setattr(model, name, value)


def other_forward(model):
    model.forward = types.MethodType(lambda self, x: -self.conv(x), model)


def other_forward_of_a_child(model):
    model.conv.forward = types.MethodType(lambda self, x: 2 * functional.conv2d(x, self.weight, self.bias, padding=1), model.conv)


CHANGES = {
    "a float": (Scaled, set_to("factor", 3.5), set_to("factor", -1.0)),
    "a flag": (Scaled, set_to("on", False), set_to("on", True)),
    "a text": (Scaled, set_to("mode", "silu")),
    "a list of numbers": (Scaled, lambda model: model.sizes.append(7), lambda model: model.sizes.__setitem__(0, -3)),
    "a tensor": (Held, set_to("shift", torch.full((8, 1, 1), 4.0)), lambda model: model.shift.mul_(2)),
    "a tensor of another shape": (Held, set_to("shift", torch.tensor(4.0))),
    "a list's tensor": (Held, lambda model: model.several.__setitem__(0, torch.tensor([5.0]))),
    "a list": (Held, set_to("several", [torch.tensor([3.0]), torch.tensor([1.0])])),
    "a dictionary's tensor": (Held, lambda model: model.by_name.update(a=torch.tensor([9.0])), lambda model: model.several[1].add_(1)),
    "forward": (Scaled, other_forward),
    "a child's forward": (Scaled, other_forward_of_a_child),
    "a child's stride": (Scaled, lambda model: setattr(model.conv, "stride", (2, 2))),
    "a child's padding": (Scaled, lambda model: setattr(model.conv, "padding", (0, 0))),
    "a child": (Scaled, set_to("conv", nn.Conv2d(3, 8, 1))),
    "a child of another kind": (Scaled, set_to("conv", nn.Sequential(nn.Conv2d(3, 8, 5), nn.ReLU()))),
    "a child's class": (Scaled, lambda model: setattr(model.conv, "__class__", Mirrored)),
    "a child's mode": (lambda: Normed(), lambda model: model.norm.train(), lambda model: model.norm.eval()),
    "eps of a norm": (lambda: Normed(), lambda model: setattr(model.norm, "eps", 0.5)),
}


CHANGES_OF_THE_MODULE = (
    "a float",
    "a flag",
    "a list of numbers",
    "a tensor",
    "a list",
    "forward",
    "a child",
    "a child's stride",
    "a child's mode",
)


class Mirrored(nn.Conv2d):
    def forward(self, x):
        return super().forward(x.flip(-1))


class Normed(Model):
    def start(self):
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x):
        return functional.relu(self.norm(self.conv(x)))


@pytest.mark.parametrize("name", CHANGES)
def test_values_of_python_that_change_take_effect(name, way):
    kind, *changes = CHANGES[name]
    follows(way, settled(kind()), *changes)


@pytest.mark.parametrize("name", CHANGES_OF_THE_MODULE)
def test_values_that_change_on_the_optimized_module_take_effect(name):
    """It is used in the model's place, so it is what users write to."""
    kind, *changes = CHANGES[name]
    twins, x = Twins(settled(kind()), "optimize"), image()
    with torch.no_grad():
        twins.check(x)
        for change in changes:
            for one in (twins.ours, twins.twin):
                torch.manual_seed(1)
                change(one)
            twins.check(x)


def test_a_childs_class_that_changes_takes_effect_without_a_guard():
    """PyTorch 2.11 has none: here no captured graph is left in doubt."""
    twins, x = Twins(settled(Scaled()), "optimize"), image()
    with torch.no_grad():
        twins.check(x)
        before = twins.ours._pysim.graphs
        twins.do(lambda model: setattr(model.conv, "__class__", Mirrored))
        twins.check(x)
    assert not {*map(id, before)} & {*map(id, twins.ours._pysim.graphs)}


# torch.compile does not see hooks that come after its first call (torch._dynamo.config.skip_nnmodule_hook_guards): `optimize` has to


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model[0].register_forward_hook(lambda _, given, y: 2 * y),
        lambda model: model[0].register_forward_pre_hook(lambda _, given: (given[0] - 1,)),
        lambda model: model.register_forward_hook(lambda _, given, y: 2 * y),
        lambda model: model.register_forward_pre_hook(lambda _, given: (given[0] - 1,)),
        lambda model: model[1].register_forward_hook(lambda _, given, named, y: 2 * y, with_kwargs=True),
        lambda model: model[2].register_forward_hook(lambda _, given, y: 3 - y, always_call=True),
    ],
    ids=["layer", "layer before", "model", "model before", "with keywords", "always"],
)
def test_a_hook_that_comes_and_goes_takes_effect(change):
    model, handles = settled(block()), []
    twins, x = Twins(model, "optimize"), image()
    with torch.no_grad():
        twins.check(x)
        for _ in range(2):
            twins.do(lambda one: handles.append(change(one)))
            twins.check(x)
            while handles:
                handles.pop().remove()
            twins.check(x)


def test_a_hook_behind_a_break_of_the_graph_takes_effect():
    """Code that no graph holds: the layer behind it is in a graph of its own."""
    twins, x = Twins(settled(nn.Sequential(Depends(), nn.Conv2d(8, 8, 1))), "optimize"), image()
    with torch.no_grad():
        twins.check(x)
        for at in (0, 1):
            twins.do(lambda one, at=at: (one[0].conv if at else one[1]).register_forward_hook(lambda _, given, y: 2 * y))
            twins.check(x)


def test_a_hook_takes_effect_where_the_module_had_one_of_each_kind():
    model, handles = nn.Conv2d(3, 4, 3).eval(), []
    model.register_forward_pre_hook(lambda _, given: (given[0] - 1,))
    model.register_forward_hook(lambda _, given, y: 2 * y)
    twins, x = Twins(model, "optimize"), image()
    with torch.no_grad():
        twins.check(x)
        twins.do(lambda one: handles.append(one.register_forward_hook(lambda _, given, y: 3 - y)))
        twins.check(x)


class NoiseLikeALayer(Model):
    def forward(self, x):
        y = self.conv(x)
        return y + torch.randn_like(y)


def test_numbers_fill_a_value_in_the_order_of_pytorchs_memory(way):
    twins, x = Twins(NoiseLikeALayer(), way), image().contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        for _ in range(2):
            twins.check(x)


def test_a_hook_for_all_modules_takes_effect():
    twins, x = Twins(settled(block()), "optimize"), image()
    with torch.no_grad():
        twins.check(x)
        handle = torch.nn.modules.module.register_module_forward_hook(
            lambda module, given, y: y + 1 if isinstance(module, nn.Conv2d) else None
        )
        try:
            twins.check(x)
        finally:
            handle.remove()
        twins.check(x)


def test_a_hook_that_was_there_runs_once_in_each_call(way):
    model, seen = settled(block()), []
    model[0].register_forward_hook(lambda *_: seen.append(1))
    ours, x = WAYS[way](model), image()
    assert not seen
    with torch.no_grad():
        for calls in (1, 2, 3):
            ours(x)
            assert len(seen) == calls


def test_a_global_that_changes_takes_effect(way, monkeypatch):
    twins, x = Twins(ReadsGlobals().eval(), way), image()
    with torch.no_grad():
        for gain in (1.0, 3.0, -2.0):
            monkeypatch.setitem(GLOBAL, "gain", gain)
            twins.check(x)


def test_what_a_call_keeps_is_kept_as_eager_keeps_it(way):
    twins = follows(way, Remembers(), times=3)
    assert type(twins.model.last) is torch.Tensor
    kept, right = ((one.last, one.seen) for one in (twins.model, twins.twin))
    assert not (fault := difference(kept, right)), fault
    if way == "optimize":  # the module that optimize returns is the model's: what its calls keep is found there, too
        assert not (fault := difference((twins.ours.last, twins.ours.seen), right)), fault


def test_control_flow_on_data_is_followed(way):
    twins, x = Twins(Depends().eval(), way), image()
    with torch.no_grad():
        twins.do(lambda one: one.conv.bias.zero_())
        for image_ in (x, -x, x, 2 * x, -x):
            twins.check(image_, times=1)


class Printed(Model):
    """Side effects that a trace would do once."""

    calls = 0

    def forward(self, x):
        type(self).calls += 1
        return self.conv(x)


def test_an_attribute_of_the_class_counts_each_call(way):
    class Own(Printed):
        pass

    model, x = Own().eval(), image()
    ours = WAYS[way](model)
    assert Own.calls == 0
    with torch.no_grad():
        for calls in (1, 2, 3):
            ours(x)
            assert Own.calls == calls or type(ours).calls == calls


def test_a_model_with_its_own_generator_draws_from_it_in_each_call(way):
    model, right = OwnGenerator().eval(), OwnGenerator().eval()
    right.load_state_dict(model.state_dict())
    ours, x = WAYS[way](model), image()
    with torch.no_grad():
        for _ in range(3):
            assert not (fault := difference(ours(x), right(x))), fault


@pytest.mark.parametrize("name", ["forward", "helped"])
def test_a_function_of_a_module_s_class_that_is_replaced_takes_effect(name):
    class Helped(nn.Linear):
        def helped(self, y):
            return y * 2

        def forward(self, x):
            return self.helped(super().forward(x))

    model, x = nn.Sequential(Helped(8, 8)).eval(), torch.ones(2, 8)
    optimized = pysim.torch.optimize(model)
    with torch.no_grad():
        for other in (getattr(Helped, name), lambda self, y: y - 1, lambda self, y: y + 1):
            setattr(Helped, name, other)
            torch.testing.assert_close(optimized(x), model(x))
