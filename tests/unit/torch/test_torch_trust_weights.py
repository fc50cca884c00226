# SPDX-License-Identifier: Apache-2.0
"""Weights that a user changes after the first call take effect in the next one, in whatever way he writes them."""

import copy
import itertools
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.utils import parametrizations, prune  # noqa: E402
from torch_models import FREES_CAPTURES, block, settled  # noqa: E402
from torch_twins import WAYS, Twins, difference  # noqa: E402

pytestmark = pytest.mark.usefixtures("every_layer_is_ours", "fresh_compiler")


def network():
    """A fused norm, a product that reads its weights as they lie, and a small image."""
    return settled(nn.Sequential(block(), nn.Conv2d(8, 8, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 7)))


def image():
    return torch.randn(2, 3, 9, 9)


# Optimizers, in each form that runs on a CPU

FORMS = ({"foreach": False}, {"foreach": True}, {"fused": True}, {"capturable": True}, {"differentiable": True}, {})
MORE = {"SGD": ({"momentum": 0.9}, {"nesterov": True, "momentum": 0.9}), "Adam": ({"amsgrad": True},), "RMSprop": ({"momentum": 0.5},)}


def stepped(kind, options, parameters):
    """One step of a new optimizer along gradients of its own."""
    for one in parameters:
        gradient = torch.randn_like(one)
        one.grad = gradient.to_sparse() if kind is torch.optim.SparseAdam else gradient
    optimizer = kind(parameters, lr=0.3, **options)
    optimizer.step(*([lambda: torch.tensor(1.0)] if kind is torch.optim.LBFGS else []))
    for one in parameters:
        one.grad = None


def of_optimizer(kind, model):
    return [one for one in model.parameters() if kind is not torch.optim.Muon or one.dim() == 2]


def runs(kind, options):
    try:
        stepped(kind, options, [nn.Parameter(torch.ones(2, 2))])
    except (RuntimeError, TypeError, ValueError, AssertionError, NotImplementedError):
        return False
    return True


def optimizers():
    names = [name for name in dir(torch.optim) if isinstance(getattr(torch.optim, name), type) and name != "Optimizer"]
    for name in names:
        kind = getattr(torch.optim, name)
        for form, more in itertools.product(FORMS, ({}, *MORE.get(name, ()))):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                works = runs(kind, form | more)
            if works:
                yield kind, form | more


@pytest.mark.parametrize("captured", WAYS)
def test_a_step_of_each_optimizer_takes_effect(captured):
    """Fused ones write without raising the version counters."""
    twins, x = Twins(network(), captured), image()
    first = copy.deepcopy(twins.model.state_dict())
    for kind, options in optimizers():
        print(kind.__name__, options)  # which it was, if it fails
        twins.do(lambda model: model.load_state_dict(first))
        with torch.no_grad():
            twins.check(x)
        for _ in range(2):
            twins.do(lambda model, kind=kind, options=options: stepped(kind, options, of_optimizer(kind, model)))
            with torch.no_grad():
                twins.check(x)


def test_an_optimizer_that_trains_between_calls_takes_effect(way):
    """As a loop that validates after each epoch."""
    model = network()
    twins, x = Twins(model, way), image()
    steps = {one: torch.optim.AdamW(one.parameters(), lr=0.1, fused=True) for one in (model, twins.twin)}

    def epoch(one):
        one.train()
        one(x + 1).square().mean().backward()
        steps[one].step()
        steps[one].zero_grad()
        one.eval()

    for _ in range(3):
        with torch.no_grad():
            twins.check(x)
        twins.do(epoch)
    with torch.no_grad():
        twins.check(x)


def test_a_fused_operator_that_no_optimizer_calls_takes_effect(way):
    def change(model):
        weights = [one.detach() for one in model.parameters()]
        gradients = [torch.randn_like(one) for one in weights]
        no_momentum = {"weight_decay": 0.0, "momentum": 0.0, "lr": 0.5, "dampening": 0.0, "nesterov": False, "maximize": False}
        torch._fused_sgd_(weights, gradients, [], **no_momentum, is_first_step=True)

    changed(way, change)


def test_averaged_weights_take_effect(way):
    def change(model):
        averaged = torch.optim.swa_utils.AveragedModel(model)
        averaged.update_parameters(network())
        averaged.update_parameters(network())
        model.load_state_dict(averaged.module.state_dict())

    changed(way, change)


# Writes that PyTorch counts, and writes that it does not


def changed(way, *changes, model=None):
    model = network() if model is None else model
    twins, x = Twins(model, way), image()
    with torch.no_grad():
        twins.check(x)
        for change in (*changes, *changes):
            twins.do(change)
            twins.check(x)


def through_numpy(model):
    model[0][0].weight.detach().numpy()[:] *= -2


def first_replaced_and_last_through_numpy(model):
    model[0][0].weight = nn.Parameter(-model[0][0].weight.detach())
    model[5].weight.detach().numpy()[:] *= 3


def one_number_through_numpy(model):
    model[1].weight.detach().numpy()[3, 5] += 7


def swapped_through_numpy(model):
    weight = model[5].weight.detach().numpy()
    weight[:] = weight[::-1].copy()


def through_dlpack(model):
    torch.from_dlpack(torch.utils.dlpack.to_dlpack(model[5].weight.detach())).mul_(3)


def through_storage(model):
    other = torch.randn_like(model[1].weight)
    model[1].weight.untyped_storage().copy_(other.untyped_storage())


def through_data(model):
    model[0][0].weight.data.mul_(2)
    model[0][1].running_var.data.add_(1)


def data_replaced(model):
    model[0][0].weight.data = torch.randn(8, 3, 3, 3)
    model[5].bias.data = torch.randn(7)


def through_foreach(model):
    torch._foreach_add_([one.detach() for one in model.parameters()], 1.5)
    torch._foreach_mul_([*model.buffers()][:2], 2)


def through_a_view(model):
    model[5].weight.detach().view(-1)[:100].neg_()


def through_unbound_rows(model):
    for row in model[1].weight.detach().unbind():
        row.clamp_(-0.1, 0.1)


def through_a_memoryview(model):
    memoryview(model[5].bias.detach().numpy())[2] = 50.0


def through_init(model):
    nn.init.kaiming_normal_(model[0][0].weight)


def tensors_swapped(model):
    torch.utils.swap_tensors(model[1].weight, nn.Parameter(torch.randn(8, 8, 1, 1)))


def replaced(model):
    model[1].weight = nn.Parameter(torch.randn(8, 8, 1, 1))
    model[0][1].register_buffer("running_mean", torch.randn(8))


def removed(model):
    model[1].bias = None if model[1].bias is not None else nn.Parameter(torch.randn(8))


def loaded(model):
    model.load_state_dict({name: torch.rand_like(one.float()).to(one.dtype) for name, one in model.state_dict().items()})


def loaded_by_assignment(model):
    model.load_state_dict({name: torch.rand_like(one.float()).to(one.dtype) for name, one in model.state_dict().items()}, assign=True)


def through_vectors(model):
    nn.utils.vector_to_parameters(torch.randn(sum(one.numel() for one in model.parameters())), model.parameters())


def resized(model):
    weight = model[5].weight.detach()
    weight.set_(torch.randn(7, 32))


WRITES = (
    through_numpy, first_replaced_and_last_through_numpy, one_number_through_numpy, swapped_through_numpy, through_dlpack,
    through_storage, through_data, data_replaced, through_foreach, through_a_view, through_unbound_rows, through_a_memoryview,
    through_init, tensors_swapped, replaced, removed, loaded, loaded_by_assignment, through_vectors, resized,
)  # fmt: skip


@pytest.mark.parametrize("write", WRITES)
def test_written_weights_take_effect(write, way):
    changed(way, write)


@pytest.mark.skipif(not FREES_CAPTURES, reason="this PyTorch frees nothing of captures that fail")
@pytest.mark.parametrize("called", [True, False], ids=["called before", "never called"])
@pytest.mark.parametrize("wrong", [lambda x: x[0], lambda x: x[:, :2]], ids=["no batch", "two channels"])
def test_weights_can_be_swapped_after_a_call_that_raised(wrong, called):
    """PyTorch swaps only tensors without weak references, and a capture that fails leaves some."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8))).eval()
    twins, x = Twins(model, "optimize"), torch.randn(2, 3, 9, 9)
    with torch.no_grad():
        twins.check(x, times=int(called))
        twins.check(wrong(x), times=1)
        twins.do(lambda one: [torch.utils.swap_tensors(w, nn.Parameter(torch.randn_like(w))) for w in one.parameters()])
        twins.check(x)


def test_weights_that_are_views_of_one_buffer_take_effect(way):
    """As libraries keep them that reduce gradients or step over all weights at once."""
    model = network()
    flats = {}

    def flatten(one):
        flat, at = torch.cat([parameter.detach().flatten() for parameter in one.parameters()]), 0
        for parameter in one.parameters():
            parameter.data = flat[at : at + parameter.numel()].view_as(parameter)
            at += parameter.numel()
        flats[one] = flat

    flatten(model)
    twins, x = Twins(model, way), image()
    flatten(twins.twin)
    with torch.no_grad():
        twins.check(x)
        for change in (lambda one: flats[one].mul_(1.5), lambda one: flats[one].numpy().__imul__(-1), lambda one: flats[one][:50].zero_()):
            twins.do(change)
            twins.check(x)


def test_weights_that_share_memory_with_an_array_take_effect(way):
    arrays = {}

    def bound(one):
        arrays[one] = one[1].weight.detach().numpy().copy()
        one[1].weight = nn.Parameter(torch.from_numpy(arrays[one]))

    twins, x = Twins(network(), way), image()
    with torch.no_grad():
        twins.do(bound)
        for factor in (1, -3, 0.5):
            twins.do(lambda one, factor=factor: arrays[one].__imul__(factor))
            twins.check(x)


# Weights that are computed

COMPUTED = {
    "weight norm": (parametrizations.weight_norm, lambda layer: layer.parametrizations.weight.original0),
    "spectral norm": (parametrizations.spectral_norm, lambda layer: layer.parametrizations.weight.original),
    "orthogonal": (parametrizations.orthogonal, lambda layer: layer.parametrizations.weight.original),
    "pruned": (lambda layer: prune.l1_unstructured(layer, "weight", 0.5), lambda layer: layer.weight_orig),
    "old spectral norm": (nn.utils.spectral_norm, lambda layer: layer.weight_orig),
}


@pytest.mark.filterwarnings("ignore:.*spectral_norm.*:FutureWarning")
@pytest.mark.parametrize("name", COMPUTED)
def test_computed_weights_follow_what_they_are_computed_from(name, way):
    make, original = COMPUTED[name]
    model = settled(nn.Sequential(make(nn.Conv2d(3, 8, 3)), nn.ReLU(), nn.Flatten(), make(nn.Linear(392, 5))))
    with torch.no_grad():
        model(image())  # a pruned weight is a result until it is computed without gradients, and results cannot be copied
    changed(way, lambda one: original(one[0]).mul_(-2), lambda one: original(one[3]).detach().numpy().__iadd__(0.25), model=model)


@pytest.mark.parametrize("make", [parametrizations.spectral_norm, parametrizations.weight_norm])
def test_a_layer_that_computes_its_weights_may_be_the_model(make, way):
    layer = make(nn.Conv2d(3, 8, 3)).eval()
    changed(way, lambda one: [parameter.mul_(-2) for parameter in one.parameters()], model=layer)


def test_a_layer_that_is_parametrized_or_pruned_after_a_call_is_so_in_the_next(way):
    class Twice(nn.Module):
        def forward(self, weight):
            return 2 * weight

    model, x = network(), image()
    twins = Twins(model, way)
    with torch.no_grad():
        twins.check(x)
        for change in (
            lambda one: nn.utils.parametrize.register_parametrization(one[1], "weight", Twice()),
            lambda one: nn.utils.parametrize.remove_parametrizations(one[1], "weight"),
            lambda one: prune.random_unstructured(one[5], "weight", 0.5),
            lambda one: prune.remove(one[5], "weight"),
        ):
            twins.do(change)
            twins.check(x)


class OwnNorm(nn.Module):
    """A norm without a counter of its training calls."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("var", torch.ones(8))

    def forward(self, x):
        return functional.batch_norm(x, self.mean, self.var, training=self.training, momentum=0.5)


@pytest.mark.parametrize(
    "norm", [OwnNorm, lambda: nn.BatchNorm2d(8), lambda: nn.SyncBatchNorm(8), lambda: nn.InstanceNorm2d(8, track_running_stats=True)]
)
@pytest.mark.parametrize("through", ["model", "ours"])
def test_statistics_of_training_after_the_first_call_take_effect(norm, through, way):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), norm(), nn.ReLU()).requires_grad_(False).eval()
    twins, x = Twins(model, way), image()
    with torch.no_grad():
        twins.check(x)
        for _ in range(2):
            for one in (getattr(twins, through), twins.twin):
                one.train()
                one(3 + 2 * x)
                one.eval()
            twins.check(x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_a_model_moved_to_another_type_computes_in_it(dtype, way):
    twins, x = Twins(network(), way), image()
    with torch.no_grad():
        twins.check(x)
        twins.do(lambda one: one.to(dtype))
        twins.check(x.to(dtype))
        twins.do(lambda one: one[5].weight.mul_(2))
        twins.check(x.to(dtype))
        twins.check(x)  # as eager: raises, or computes
        twins.do(lambda one: one.float())
        twins.check(x)


def test_weights_of_inference_mode_take_effect(way):
    with torch.inference_mode():
        twins, x = Twins(network(), way), image()
        twins.check(x)
        for change in (through_numpy, through_data, lambda one: one[1].weight.mul_(2)):
            twins.do(change)
            twins.check(x)
    with torch.no_grad():
        twins.check(x)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PyTorch uses its own deprecated functions
def test_a_tangent_of_a_weight_reaches_the_results(way):
    """Of forward-mode differentiation, through what is computed from weights alone, also after calls without it."""

    class Doubled(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("weight", torch.randn(4, 3, 3, 3))

        def forward(self, x):
            return nn.functional.conv2d(x, self.weight * 2)

    model, x = Doubled().eval(), torch.randn(1, 3, 9, 9)
    weight, ours = model.weight, WAYS[way](model)
    with torch.no_grad():
        for _ in range(2):
            assert not (fault := difference(ours(x), model(x))), fault
            with forward_ad.dual_level():
                model.weight = forward_ad.make_dual(weight, torch.ones_like(weight))
                found, right = (forward_ad.unpack_dual(one(x)) for one in (ours, model))
                assert not (fault := difference([*found], [*right])), fault
            model.weight = weight
