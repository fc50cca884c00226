# SPDX-License-Identifier: Apache-2.0
"""What lies behind a convolution of a PyTorch model becomes one layer with it, and what must not does not."""

import operator

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch_models import Residual, assert_close, imported, operators, rewritten, settled  # noqa: E402

import pysim.torch  # noqa: E402

pytestmark = pytest.mark.usefixtures("every_layer_is_ours")


def test_norm_and_activation_and_residual_are_fused():
    _, made = rewritten(settled(Residual()), torch.randn(2, 3, 16, 16))
    assert len(made.layers) == 6 and [layer.activation for layer in made.layers].count("relu") == 4
    assert not operators(made.module)


@pytest.mark.parametrize("drop", [nn.Dropout(0.5), nn.Identity(), nn.Dropout2d(0.5, inplace=True)])
def test_what_drops_only_in_training_parts_no_layers(drop):
    model = nn.Sequential(nn.Conv2d(3, 8, 1), drop, nn.ReLU(), nn.Conv2d(8, 4, 1), drop)
    optimized, x = pysim.torch.optimize(model.eval()), torch.randn(2, 3, 16, 16)
    _, made = rewritten(model, x)
    assert [layer.activation for layer in made.layers] == ["relu", None]
    assert not operators(made.module)
    with torch.no_grad():
        assert_close(optimized(x), model(x))
        model.train()
        torch.manual_seed(1)
        dropped = optimized(x)
        torch.manual_seed(1)
        assert (dropped == model(x)).all()


def test_a_drop_of_whole_branches_stands_before_no_sum():
    ops = imported("torchvision.ops")

    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.drop = nn.Conv2d(3, 3, 1), ops.StochasticDepth(0.2, "row")
            self.branch = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1))

        def forward(self, x):
            x = self.stem(x)
            return self.drop(self.branch(x)) + x

    _, made = rewritten(Branch().eval(), torch.randn(2, 3, 9, 9))
    assert not operators(made.module)


def test_a_residual_that_is_read_later_is_not_written_over():
    _, made = rewritten(settled(Residual(late=True)), torch.randn(2, 3, 16, 16))
    assert [one.target for one in operators(made.module) if one.target is not operator.getitem]


class Rescaled(nn.Module):
    """Branches multiplied by numbers: with a bias, with a norm, before a norm, of a product; read twice; by infinity."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(3, 3, 3, padding=1, bias=at < 2) for at in range(5)])
        self.norms, self.linear = nn.ModuleList([nn.BatchNorm2d(3), nn.BatchNorm2d(3)]), nn.Linear(16, 16, bias=False)

    def forward(self, x):
        first, second, third, fourth, fifth = self.convs
        x = x + 0.1 * second(functional.leaky_relu(first(x), 0.2))
        x = functional.leaky_relu(self.norms[0](third(x)) * -2) + x
        x = torch.mul(self.linear(x), 0.5) + self.norms[1](fourth(x) * 3)
        y = fifth(x)
        return x, y * 2 + y, self.linear(y + 9) * float("inf")


def test_numbers_and_slopes_are_in_the_layers_that_they_follow(on_gpu):
    model, x = settled(Rescaled()), torch.randn(2, 3, 16, 16)
    _, made = rewritten(model, x)
    told = [(layer.times, layer.activation) for layer in made.layers]
    slopes = ("leaky_relu", 0.2, 1.0), ("leaky_relu", 0.01, 1.0)
    assert told == [(1.0, slopes[0]), (0.1, None), (-2.0, slopes[1]), (0.5, None), (3.0, None), (1.0, None), (1.0, None)]
    optimized = pysim.torch.optimize(model)
    with torch.no_grad():
        for change in (lambda: None, lambda: model.convs[1].bias.add_(1), lambda: model.norms[0].bias.mul_(2)):
            change()
            *found, infinite = optimized(x)
            *wanted, _ = model(x)
            assert_close(tuple(found), tuple(wanted))
            assert infinite.isinf().all()


class NormOfSum(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8)
        self.branch = nn.Sequential(nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, padding=1))

    def forward(self, x):
        x = self.stem(x)
        return torch.relu(self.norm(self.branch(x) + x))


def test_a_norm_of_a_sum_is_not_that_of_a_summand(on_gpu):
    model, x = settled(NormOfSum()), torch.randn(2, 3, 9, 9)
    with torch.no_grad():
        assert_close(pysim.torch.optimize(model)(x), model(x))


class Written(nn.Module):
    """Writes over the result of a convolution, which has another name, too."""

    def __init__(self, write):
        super().__init__()
        self.a, self.b, self.write = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1), write

    def forward(self, x):
        y = self.a(x)
        return self.write(y, self.b(y))


def summed(y, z):
    other = y
    y += z
    return other * y


def scaled(y, z):
    other = y
    y *= z
    return other + z


@pytest.mark.parametrize("write", [summed, scaled, lambda y, z: y * y.sigmoid_(), lambda y, z: z.sigmoid_() * z + y])
def test_what_is_written_over_is_so_by_all_of_its_names(write):
    model, x = Written(write).eval(), torch.randn(2, 3, 9, 9)
    with torch.no_grad():
        assert_close(pysim.torch.optimize(model)(x), model(x))
        assert_close(torch.compile(model, backend=pysim.torch.backend)(x), model(x))
