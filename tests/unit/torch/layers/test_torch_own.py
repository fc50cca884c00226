# SPDX-License-Identifier: Apache-2.0
"""Where PyTorch's own operators compute, bit for bit: gradients, training, export, hooks, what no kernel takes or is faster with."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402
from torch_models import Residual, assert_close, block, settled  # noqa: E402

import pysim.torch  # noqa: E402
from pysim.errors import OperandError  # noqa: E402
from pysim.network.execution import Network  # noqa: E402
from pysim.torch.layers import network_layer  # noqa: E402

pytestmark = pytest.mark.usefixtures("every_layer_is_ours")


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


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_under_autocast_on_a_cpu_results_have_its_type_and_are_as_exact(kind):
    model, x = settled(block()), torch.randn(1, 3, 9, 9)
    optimized = pysim.torch.optimize(model)
    with torch.no_grad():
        wanted = copy.deepcopy(model).double()(x.double())
        with torch.autocast("cpu", kind):
            found, theirs = optimized(x), model(x)
    assert found.dtype == theirs.dtype
    assert (found - wanted).square().mean() <= 1.2**2 * (theirs - wanted).square().mean()


def test_modules_with_hooks_keep_them():
    model, seen = settled(block()), []
    model[0].register_forward_hook(lambda *_: seen.append(1))
    with torch.no_grad():
        pysim.torch.optimize(model)(torch.randn(1, 3, 9, 9))
    assert seen


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.__setitem__(0, nn.Conv2d(3, 8, 5)),
        lambda model: model.append(nn.Conv2d(8, 2, 1)),
        lambda model: model[0].register_forward_hook(lambda _, given, y: 2 * y),
        lambda model: model[1].register_forward_pre_hook(lambda _, given: 2 * given[0]),
    ],
    ids=["replaced", "added", "hook", "hook before"],
)
def test_a_model_whose_modules_changed_since_is_still_pysims(change):
    model, x = settled(block()), torch.randn(1, 3, 9, 9)
    optimized = pysim.torch.optimize(model)
    with torch.no_grad():
        optimized(x)
        change(optimized)
        assert_close(optimized(x), model(x))
    assert {one.runs for one in pysim.torch.report(optimized)} == {"pysim"}


def test_arguments_that_may_be_left_out_are_followed():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)

        def forward(self, x, mask=None, *, scale=None):
            y = self.conv(x if mask is None else x * mask)
            return y if scale is None else y * scale

    model, x = Masked().eval(), torch.randn(1, 3, 9, 9)
    optimized = pysim.torch.optimize(model)
    with torch.no_grad():
        assert_close(optimized(x), model(x))
        assert_close(optimized(x, None), model(x))
        assert_close(optimized(x, mask=None, scale=None), model(x))
        for told in ({"mask": x}, {"scale": 3}, {"mask": x, "scale": x[..., :7, :7].sum()}):
            assert_close(optimized(x, **told), model(x, **told))
        assert_close(optimized(x, x), model(x, x))
    assert {one.runs for one in pysim.torch.report(optimized)} == {"pysim"}


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning", "ignore:.torch.jit:FutureWarning")
def test_what_stands_for_tensors_goes_through_pytorchs_operators():
    """torch.func's transforms, tangents of forward-mode differentiation, and tracing."""
    model, x = settled(Residual()).requires_grad_(False), torch.randn(2, 3, 16, 16)
    optimized = pysim.torch.optimize(model)
    wanted, found = (torch.vmap(one)(x[:, None]) for one in (model, optimized))
    assert torch.equal(found, wanted)
    wanted, found = (torch.func.jvp(one, (x,), (x,)) for one in (model, optimized))
    assert torch.equal(found[1], wanted[1])
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        assert torch.equal(torch.autograd.forward_ad.unpack_dual(optimized(dual)).tangent, wanted[1])
    assert_close(torch.jit.trace(optimized, x)(2 * x), model(2 * x))


def test_where_pytorch_is_expected_to_be_faster_it_stays_and_the_report_says_so(monkeypatch):
    monkeypatch.setattr(network_layer, "pytorch_seconds", lambda *_: 0.0)
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

    monkeypatch.setattr(Network, "_prepared", prepared)
    model, x = settled(block()), torch.randn(1, 3, 9, 9)
    optimized = pysim.torch.optimize(model)
    with torch.no_grad():
        assert (optimized(x) == model(x)).all() and (optimized(x) == model(x)).all()
    (one,) = pysim.torch.report(optimized)
    assert one.runs == "torch" and str(error) in one.reason


def test_a_network_that_finds_no_memory_later_is_pytorchs_in_that_call(monkeypatch):
    def prepared(*_):
        raise OperandError("cannot allocate")

    model, x = settled(block()), torch.randn(1, 3, 9, 9)
    optimized = pysim.torch.optimize(model)
    with torch.no_grad():
        assert_close(optimized(x), model(x))
        model[0].weight.mul_(2)
        with monkeypatch.context() as without:
            without.setattr(Network, "_prepared", prepared)
            assert torch.equal(optimized(x), model(x))
        assert_close(optimized(x), model(x))


def test_what_no_kernel_takes_is_pytorchs():
    x = torch.randn(2, 3, 9, 9, dtype=torch.float16)
    model = settled(nn.Sequential(nn.Conv2d(3, 4, 3))).to(x.dtype)
    optimized = pysim.torch.optimize(model)
    with torch.no_grad():
        assert (optimized(x) == model(x)).all()
    assert [one.runs for one in pysim.torch.report(optimized)] == ["torch"]


def test_what_is_no_module_is_refused():
    with pytest.raises(OperandError, match="model is a int; expected a torch"):
        pysim.torch.optimize(3)
    for other in (nn.ReLU(), torch.relu, None):
        with pytest.raises(OperandError, match=r"of what pysim\.torch\.optimize or torch\.compile.* returned, not of a"):
            pysim.torch.report(other)


def test_a_graph_that_stays_pytorchs_follows_its_parameters(monkeypatch):
    monkeypatch.setattr(network_layer, "pytorch_seconds", lambda *_: 0.0)
    model, x = settled(nn.Sequential(block(), nn.Conv2d(8, 4, 1))), torch.randn(1, 3, 9, 9)
    optimized = pysim.torch.optimize(model)
    with torch.no_grad():
        optimized(x)
        for change in (lambda: None, lambda: model[0][0].weight.mul_(2), lambda: setattr(model[1], "bias", nn.Parameter(torch.randn(4)))):
            change()
            assert torch.equal(optimized(x), model(x))
