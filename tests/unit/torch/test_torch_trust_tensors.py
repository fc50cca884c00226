# SPDX-License-Identifier: Apache-2.0
"""Tensors of every kind are computed as PyTorch computes them, and refused where PyTorch refuses them."""

import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch_models import Residual, block, settled  # noqa: E402
from torch_twins import WAYS, Twins, difference  # noqa: E402

pytestmark = pytest.mark.usefixtures("every_layer_is_ours", "fresh_compiler")


def deep():
    """3x3 layers of enough channels for a transform."""
    convs = (nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1))
    return nn.Sequential(*convs).eval()


# Numbers that are not finite, or nearly so


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("make", [deep, lambda: settled(nn.Sequential(nn.Conv2d(64, 8, 1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3)))])
def test_a_number_that_is_not_finite_reaches_the_results_that_it_reaches_in_pytorch(value, make, way):
    twins, x = Twins(make(), way), torch.randn(1, 64, 28, 28)
    with torch.no_grad():
        twins.check(x)
        x[0, 5, 14, 11] = value
        twins.check(x)
        x[0, 5, 14, 11] = 0.0
        twins.do(lambda one: one[0].weight.view(-1)[7].fill_(value))
        twins.check(x)


@pytest.mark.parametrize("size", [1e6, 1e15, 1e30])
def test_one_large_number_leaves_its_neighbours_as_they_are(size, way):
    """Elements that do not read it: 3 from it after two layers of 3x3."""
    model, x = deep(), torch.randn(1, 64, 28, 28)
    x[0, 5, 14, 14] = size
    with torch.no_grad():
        right, found = model(x), WAYS[way](model)(x)
    far = torch.ones(28, 28, dtype=torch.bool)
    far[12:17, 12:17] = False
    assert not (fault := difference(found[..., far], right[..., far])), fault


# Shapes that PyTorch refuses


@pytest.mark.parametrize(
    ("layers", "shape"),
    [
        ((nn.Conv2d(3, 32, 3), nn.BatchNorm2d(1)), (2, 3, 9, 9)),
        ((nn.Conv2d(3, 32, 3), nn.BatchNorm2d(31), nn.ReLU()), (2, 3, 9, 9)),
        ((nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32)), (3, 9, 9)),
        ((nn.BatchNorm2d(1), nn.Conv2d(3, 8, 1)), (2, 3, 9, 9)),
        ((nn.Linear(3, 8), nn.LayerNorm(1)), (4, 3)),
        ((nn.Linear(3, 8), nn.Linear(1, 8)), (4, 3)),
        ((nn.Conv2d(1, 8, 3),), (2, 3, 9, 9)),
        ((nn.Conv2d(3, 8, 3),), (2, 3, 2, 9)),
        ((nn.Conv2d(3, 8, 3),), (2, 3, 9)),
        ((nn.Conv2d(3, 8, 3), nn.MaxPool2d(9)), (2, 3, 9, 9)),
        ((nn.GroupNorm(2, 8),), (2, 3, 9, 9)),
    ],
    ids=str,
)
def test_what_pytorch_refuses_is_refused(layers, shape, way):
    model = nn.Sequential(*layers).eval()
    ours, x = WAYS[way](model), torch.randn(shape)
    with torch.no_grad():
        with pytest.raises((RuntimeError, ValueError)) as right:
            model(x)
        for _ in range(2):
            with pytest.raises((RuntimeError, ValueError)) as error:
                ours(x)
            assert way == "compile" or isinstance(error.value, right.type)


def test_a_refused_call_leaves_the_next_one_right(way):
    twins, x = Twins(settled(block()), way), torch.randn(2, 3, 9, 9)
    with torch.no_grad():
        for given in (x, x[:, :2], x, x.double(), x[0, 0], x):
            twins.check(given, times=1)


def test_a_norm_whose_parameters_broadcast_is_refused_after_the_first_call(way):
    """By a change of the weights, where the input's shape stays."""
    twins, x = Twins(settled(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())), way), torch.randn(2, 3, 9, 9)
    with torch.no_grad():
        twins.check(x)
        twins.do(lambda one: setattr(one[1], "weight", nn.Parameter(torch.rand(1))))
        twins.check(x)
        twins.do(lambda one: setattr(one[1], "weight", nn.Parameter(torch.rand(8))))
        twins.check(x)


# Tensors of other kinds


class Logged(torch.Tensor):
    """A subclass without behaviour of its own."""


class Doubled(torch.Tensor):
    """A subclass whose convolutions are twice as large."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        result = super().__torch_function__(function, types, args, kwargs or {})
        return result * 2 if getattr(function, "__name__", "") in ("conv2d", "linear") else result


def nested(sizes):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.randn(size, 3) for size in sizes])


def quantized(shape):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.randn(shape), 0.1, 10, torch.quint8)


CONV = lambda: settled(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()))  # noqa: E731
PRODUCT = lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4)).eval()  # noqa: E731
INPUTS = {
    "mkldnn": (lambda: torch.randn(2, 3, 9, 9).to_mkldnn(), CONV),
    "mkldnn product": (lambda: torch.randn(4, 3).to_mkldnn(), PRODUCT),
    "sparse": (lambda: torch.randn(4, 3).relu().to_sparse(), lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU()).eval()),
    "sparse rows": (lambda: torch.randn(4, 3).relu().to_sparse_csr(), lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU()).eval()),
    "sparse image": (lambda: torch.randn(2, 3, 9, 9).relu().to_sparse(), CONV),
    "nested": (lambda: nested([2, 5]), PRODUCT),
    "quantized pool": (lambda: quantized((2, 3, 9, 9)), lambda: nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)).eval()),
    "quantized image": (lambda: quantized((2, 3, 9, 9)), CONV),
    "subclass": (lambda: torch.randn(2, 3, 9, 9).as_subclass(Logged), CONV),
    "subclass of its own": (lambda: torch.randn(2, 3, 9, 9).as_subclass(Doubled), CONV),
    "parameter": (lambda: nn.Parameter(torch.randn(2, 3, 9, 9), requires_grad=False), CONV),
    "complex": (lambda: torch.randn(2, 3, 9, 9, dtype=torch.complex64), lambda: nn.Conv2d(3, 8, 3, dtype=torch.complex64).eval()),
    "complex product": (lambda: torch.randn(4, 3, dtype=torch.complex64), lambda: nn.Linear(3, 8, dtype=torch.complex64).eval()),
    "conjugated": (lambda: torch.randn(4, 3, dtype=torch.complex64).conj(), lambda: nn.Linear(3, 8, dtype=torch.complex64).eval()),
    "complex for real weights": (lambda: torch.randn(2, 3, 9, 9, dtype=torch.complex64), CONV),
    "negated": (lambda: torch.randn(2, 3, 9, 9, dtype=torch.complex64).conj().imag, CONV),
    "meta": (lambda: torch.randn(2, 3, 9, 9, device="meta"), lambda: CONV().to("meta")),
    "meta for real weights": (lambda: torch.randn(2, 3, 9, 9, device="meta"), CONV),
    "integers": (lambda: torch.ones(2, 3, 9, 9, dtype=torch.int64), CONV),
    "integers of integers": (lambda: torch.ones(4, 3, dtype=torch.int64), lambda: integers()),
    "expanded": (lambda: torch.randn(2, 1, 9, 1).expand(2, 3, 9, 9), CONV),
    "strided": (lambda: torch.randn(9, 4, 3, 18)[:, ::2, :, ::2].permute(1, 2, 0, 3), CONV),
    "overlapping": (lambda: torch.randn(400).as_strided((2, 3, 9, 9), (50, 20, 9, 1)), CONV),
    "empty": (lambda: torch.randn(0, 3, 9, 9), CONV),
    "empty product": (lambda: torch.randn(0, 3), PRODUCT),
    "one dimension": (lambda: torch.randn(3), PRODUCT),
    "an image alone": (lambda: torch.randn(3, 9, 9), lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval()),
    "a list": (lambda: [1.0, 2.0, 3.0], PRODUCT),
    "nothing": (lambda: None, CONV),
}


def integers():
    layer = nn.Linear(3, 8).requires_grad_(False)
    layer.weight, layer.bias = (nn.Parameter(torch.randint(-9, 9, one.shape), requires_grad=False) for one in (layer.weight, layer.bias))
    return layer.eval()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", INPUTS)
def test_an_input_of_any_kind_is_pytorchs(name, way):
    if way == "compile" and name == "subclass of its own":
        pytest.skip("torch.compile itself gives a tensor for it")
    make, model = INPUTS[name]
    given, plain = make(), {CONV: torch.randn(2, 3, 9, 9), PRODUCT: torch.randn(4, 3)}.get(model)
    twins = Twins(model(), way)
    with torch.no_grad():
        twins.check(given)
        if plain is not None:
            twins.check(plain)
            twins.check(given)


@pytest.mark.parametrize("resolves", [False, True])
def test_a_tensor_that_lies_conjugated_or_negated_after_one_that_does_not_is_what_it_means(resolves, way):
    class Bits(nn.Module):
        def forward(self, x):
            return (x.resolve_neg() * 1).relu(), x.resolve_neg().view(torch.int32)

    z = torch.randn(2, 3, 9, 9, dtype=torch.complex64)
    plain, lazy = (z.imag.contiguous(), z.conj().imag) if resolves else (z, z.conj())
    model = Bits() if resolves else nn.Conv2d(3, 8, 3, dtype=torch.complex64).eval()
    ours = WAYS[way](model)
    with torch.no_grad():
        for given in (plain, lazy, plain):
            assert not (fault := difference(ours(given), model(given))), fault


def weight_as(make):
    """A model whose first layer's weight is another kind of tensor."""

    def change(model):
        model[0].weight = nn.Parameter(make(model[0].weight.detach()), requires_grad=False)

    return change


def mkldnn(model):
    """As torch.utils.mkldnn.to_mkldnn leaves the weights of a layer."""
    weight, bias = (one.detach().to_mkldnn() for one in (model[0].weight, model[0].bias))
    del model[0].weight, model[0].bias
    model[0].weight, model[0].bias = weight, bias


WEIGHTS = {
    "subclass": (weight_as(lambda one: one.as_subclass(Logged)), CONV),
    "subclass of its own": (weight_as(lambda one: one.as_subclass(Doubled)), CONV),
    "sparse": (weight_as(lambda one: one.to_sparse()), PRODUCT),
    "sparse rows": (weight_as(lambda one: one.relu().to_sparse_csr()), PRODUCT),
    "complex": (weight_as(lambda one: one.to(torch.complex64)), CONV),
    "integers": (weight_as(lambda one: one.to(torch.int32)), CONV),
    "negated": (weight_as(lambda one: torch._neg_view(one)), CONV),
    "expanded": (weight_as(lambda one: one[:, :, :1, :1].expand(one.shape)), CONV),
    "strided": (weight_as(lambda one: one.flip(0).t().contiguous().t()), PRODUCT),
    "channels last": (weight_as(lambda one: one.to(memory_format=torch.channels_last)), CONV),
    "mkldnn": (mkldnn, CONV),
    "double": (weight_as(lambda one: one.double()), CONV),
    "no number": (weight_as(lambda one: one[:, :0]), PRODUCT),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("before", [True, False], ids=["before", "after the first call"])
@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_of_any_kind_are_pytorchs(name, before, way):
    change, make = WEIGHTS[name]
    if way == "compile" and name == "subclass of its own":
        pytest.skip("torch.compile itself takes such a parameter for a tensor")
    model = make()
    x = torch.randn(2, 3, 9, 9) if make is CONV else torch.randn(4, 3)
    twins = Twins(model, way, *([change] if before else []))
    with torch.no_grad():
        twins.check(x)
        if not before:
            twins.do(change)
        twins.check(x)
        if name == "mkldnn":
            twins.check(x.to_mkldnn())


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_model_moved_to_mkldnn_is_pytorchs(way):
    from torch.utils.mkldnn import to_mkldnn

    model = to_mkldnn(settled(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())))
    ours, x = WAYS[way](model), torch.randn(2, 3, 9, 9).to_mkldnn()
    with torch.no_grad():
        for _ in range(2):
            assert not (fault := difference(ours(x), model(x))), fault


def test_fake_tensors_give_fake_tensors(way):
    model, x = settled(Residual()), torch.randn(2, 3, 9, 9)
    ours = WAYS[way](model)
    with torch.no_grad():
        right = ours(x)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            if way == "optimize":  # torch.compile itself refuses what is fake already
                found, wanted = ours(mode.from_tensor(x)), model(mode.from_tensor(x))
                assert type(found) is type(wanted) and found.shape == wanted.shape
        assert not (fault := difference(ours(x), right)), fault
        assert not (fault := difference(right, model(x))), fault


def test_a_model_made_on_meta_computes_after_it_is_filled(way):
    right = settled(block())
    with torch.device("meta"):
        model = block().eval()
    ours, x = WAYS[way](model), torch.randn(2, 3, 9, 9)
    model.load_state_dict(right.state_dict(), assign=True)
    with torch.no_grad():
        assert not (fault := difference(ours(x), right(x))), fault


@pytest.mark.parametrize("first", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("then", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_results_are_of_the_mode_of_their_call(first, then, way):
    twins, x = Twins(settled(Residual()), way), torch.randn(2, 3, 9, 9)
    for mode in (first, then, first):
        with mode():
            twins.check(x)
    with first():
        made = torch.randn(2, 3, 9, 9) * 2
    with then():
        twins.check(made)
        twins.do(lambda one: one.requires_grad_(False))
        twins.check(made)


def test_under_autocast_types_are_pytorchs(way):
    twins, x = Twins(settled(Residual()), way), torch.randn(2, 3, 9, 9)
    with torch.no_grad():
        for on in (False, True, False, True):
            with torch.autocast("cpu", torch.bfloat16, enabled=on):
                twins.check(x)
        with torch.autocast("cpu", torch.float16):
            twins.check(x)


def test_the_default_type_and_grad_mode_are_left_alone(way):
    model, x = settled(block()), torch.randn(2, 3, 9, 9)
    before = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_rng_state(), torch.get_num_threads()
    ours = WAYS[way](model)
    with torch.no_grad():
        ours(x)
    after = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_rng_state(), torch.get_num_threads()
    assert not (fault := difference(after, before)), fault


def test_results_of_earlier_calls_and_inputs_stay_as_they_are(way):
    twins, kept = Twins(settled(Residual(late=True)), way), []
    with torch.no_grad():
        for at in range(4):
            torch.manual_seed(at)
            x = torch.randn(2, 3, 9, 9)
            results = twins.ours(x)
            kept.append((x, results, x.clone(), tuple(one.clone() for one in results)))
        for x, results, *copies in kept:
            assert not (fault := difference([x, results], copies)), fault
