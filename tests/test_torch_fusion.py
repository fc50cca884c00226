# SPDX-License-Identifier: Apache-2.0
"""What lies behind a convolution of a PyTorch model becomes one layer with it, and what must not does not."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402
from torch_models import Residual, assert_close, imported, settled  # noqa: E402

import pysim.torch  # noqa: E402

pytestmark = pytest.mark.usefixtures("every_layer_is_ours")


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
    ops = imported("torchvision.ops")

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
    model = nn.Sequential(nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 1), nn.AvgPool2d(2)), nn.AdaptiveAvgPool2d(1))).eval()
    optimized, x = pysim.torch.optimize(model), torch.randn(1, 3, 8, 8)
    called = [one.target for one in optimized.__dict__["_pysim"][0].graph.nodes if one.op == "call_module"]
    assert len(called) == 3 and not any("." in target for target in called)
    with torch.no_grad():
        assert_close(optimized(x), model(x))


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
