# SPDX-License-Identifier: Apache-2.0
"""Settings that a model makes itself, functions that are replaced under it, and arguments that are parameters: results are eager's."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch_twins import WAYS, Twins, difference  # noqa: E402

import pysim.torch  # noqa: E402

pytestmark = pytest.mark.usefixtures("every_layer_is_ours", "fresh_compiler")


class UnderSettings(nn.Module):
    """A layer under settings of the model's own, and one outside of them."""

    def __init__(self, settings):
        super().__init__()
        self.a, self.b, self.settings = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1), settings

    def forward(self, x):
        with self.settings():
            y = self.a(x)
        return y, self.b(y.float())


def casts():
    return torch.autocast("cpu", torch.bfloat16)


@pytest.mark.parametrize("settings", [casts, torch.enable_grad, torch.no_grad])
def test_layers_under_settings_of_the_models_own_are_pytorchs(settings, way):
    model, x = UnderSettings(settings).eval(), torch.randn(2, 3, 8, 8)
    ours = WAYS[way](model)
    with torch.no_grad():
        for _ in range(2):
            found, wanted = ours(x), model(x)
            assert not (fault := difference(found, wanted)), fault


@pytest.mark.parametrize("make", [nn.Parameter, lambda x: x])
def test_an_argument_is_read_in_each_call_also_if_it_is_a_parameter_or_a_models_buffer(make, way):
    """However it is written to."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()
    model.register_buffer("image", torch.randn(1, 3, 32, 32))
    twins, x = Twins(model, way), make(model.image)
    with torch.no_grad():
        for at in range(3):
            assert not (fault := difference(twins.ours(x), twins.twin(x))), fault
            x.data[0, 1, 7 + at, 5] += 10


# Functions


class Halves:
    def of(self, y):
        return y / 2


class Helped(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.halves = nn.Conv2d(3, 8, 3), Halves()

    def shifted(self, y):
        return y + 1

    def forward(self, x):
        return functional.relu(self.halves.of(self.shifted(self.conv(x))))


def other(self, y):
    return y - 3


def another_code(patch):
    patch.setattr(Helped.shifted, "__code__", other.__code__)


def another_method_of_a_helper(patch):
    patch.setattr(Halves, "of", other)


def another_method_of_a_layer(patch):
    own = nn.Conv2d._conv_forward
    patch.setattr(nn.Conv2d, "_conv_forward", lambda self, x, weight, bias: own(self, x, 2 * weight, bias))


def another_function(patch):
    own = functional.relu
    patch.setattr(functional, "relu", lambda y: 2 * own(y))


@pytest.mark.parametrize("change", [another_code, another_method_of_a_helper, another_method_of_a_layer, another_function])
def test_a_function_that_is_replaced_takes_effect(change):
    model, x = Helped().eval(), torch.randn(2, 3, 8, 8)
    optimized = pysim.torch.optimize(model)
    with torch.no_grad():
        before = optimized(x)
        with pytest.MonkeyPatch.context() as patch:
            change(patch)
            assert not (fault := difference(optimized(x), model(x))), fault
            assert difference(model(x), before)
        assert not (fault := difference(optimized(x), before)), fault


def test_the_memory_of_weights_can_be_resized_after_a_call(way):
    """As by those who gather weights for a call and free them after it."""
    model, x = nn.Conv2d(3, 8, 3).eval(), torch.randn(2, 3, 8, 8)
    ours = WAYS[way](model)
    with torch.no_grad():
        for _ in range(2):
            ours(x)
            memory, kept = model.weight.untyped_storage(), model.weight.clone() * 2
            size = memory.nbytes()
            memory.resize_(0)
            memory.resize_(size)
            model.weight.copy_(kept)
            assert not (fault := difference(ours(x), model(x))), fault


class AsksWhetherItIsCompiled(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return -self.conv(x) if torch.compiler.is_compiling() else self.conv(x)


def test_a_model_that_asks_whether_it_is_compiled_is_told_what_eager_tells_it():
    twins = Twins(AsksWhetherItIsCompiled().eval(), "optimize")
    with torch.no_grad():
        twins.check(torch.randn(1, 3, 8, 8))
    assert "asks whether it is compiled" in str(pysim.torch.report(twins.ours))


class Asserts(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        assert x.min() > -100, "too low"
        return self.conv(x)


def test_an_assertion_about_values_raises_what_eager_raises():
    ours, x = pysim.torch.optimize(Asserts().eval()), torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        for _ in range(2):
            assert not difference(ours(x), ours.forward(x))
            with pytest.raises(AssertionError, match="too low"):
                ours(x - 200)


def test_a_function_that_goes_from_a_models_class_goes_from_its_calls():
    class Doubled(nn.Sequential):
        @property
        def factor(self):
            return 2

        def forward(self, x):
            return super().forward(x) * (self.factor if "factor" in vars(type(self)) else 3)

    twins, x = Twins(Doubled(nn.Conv2d(3, 4, 3)).eval(), "optimize"), torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        twins.check(x)
        del Doubled.factor
        twins.check(x)
