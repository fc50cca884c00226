# SPDX-License-Identifier: Apache-2.0
"""What a user does with a model's weights, as functions of a `torch_actions.Side` and random numbers: steps and writes of every kind."""

import itertools
import warnings

import torch
from torch import nn

import pysim.torch


def dtype_of(model):
    return next((one.dtype for one in (*model.parameters(), *model.buffers()) if one.is_floating_point()), torch.float32)


# Optimizers


FORMS = ({}, {"foreach": False}, {"foreach": True}, {"fused": True}, {"differentiable": True}, {"maximize": True})
MORE = ({}, {"momentum": 0.9}, {"amsgrad": True}, {"weight_decay": 0.01})


def _optimizers():
    """(kind, options) of each optimizer in each form that runs on a CPU."""
    kinds = [getattr(torch.optim, name) for name in dir(torch.optim) if isinstance(getattr(torch.optim, name), type)]
    for kind, form, more in itertools.product(kinds, FORMS, MORE):
        weight = nn.Parameter(torch.ones(2, 2))
        weight.grad = torch.ones(2, 2).to_sparse() if kind is torch.optim.SparseAdam else torch.ones(2, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                kind([weight], lr=0.05, **form, **more).step(*([lambda: torch.tensor(1.0)] if kind is torch.optim.LBFGS else []))
            except (RuntimeError, TypeError, ValueError, AssertionError, NotImplementedError):
                continue
        yield kind, {"lr": 0.05, **form, **more}


OPTIMIZERS = [*_optimizers()]


def optimizer(side, rng):
    """A new one, or one of before, perhaps for parameters that the model no longer has."""
    number = rng.randrange(len(OPTIMIZERS))
    if side.optimizers and rng.random() < 0.5:
        return side.optimizers[rng.choice([*side.optimizers])]
    kind, options = OPTIMIZERS[number]
    parameters = [one for one in side.model.parameters() if kind is not torch.optim.Muon or one.dim() == 2]
    side.optimizers[number] = kind(parameters, **options)
    return side.optimizers[number]


def closure_of(side):
    return [lambda: torch.tensor(1.0)] if any(isinstance(one, torch.optim.LBFGS) for one in side.optimizers.values()) else []


def step(side, rng):
    """Along random gradients."""
    one = optimizer(side, rng)
    parameters = [parameter for group in one.param_groups for parameter in group["params"]]
    for parameter in parameters:
        gradient = torch.randn_like(parameter, requires_grad=False)
        parameter.grad = gradient.to_sparse() if isinstance(one, torch.optim.SparseAdam) else gradient
    try:
        one.step(*closure_of(side))
    finally:
        for parameter in parameters:
            parameter.grad = None


# Writes


def numbers(rng, tensor):
    """New values of about the same size; positive where the old ones are."""
    new = torch.randn(tensor.shape, dtype=torch.float64)
    positive = bool(tensor.numel()) and bool((tensor.detach() > 0).all())
    return (new.abs() + 0.5 if positive else new * 0.5).to(tensor.dtype)


def _in_place(tensor, rng):
    rng.choice((lambda: tensor.mul_(-1.5), lambda: tensor.copy_(numbers(rng, tensor)), lambda: tensor.clamp_(-0.2, 0.2)))()


def _one_number(tensor, rng):
    tensor.view(-1)[rng.randrange(tensor.numel())] += 2


def _data(tensor, rng):
    tensor.data.mul_(1.5)


def _new_data(tensor, rng):
    tensor.data = numbers(rng, tensor)


def _numpy(tensor, rng):
    tensor.detach().numpy()[...] *= 1.5


def _numpy_number(tensor, rng):
    tensor.detach().numpy().reshape(-1)[rng.randrange(tensor.numel())] += 2
    if tensor.nbytes > 1024:  # of larger tensors a fingerprint samples words
        pysim.torch.refresh()


def _numpy_order(tensor, rng):
    array = tensor.detach().numpy()
    array[...] = array[::-1].copy()


def _dlpack(tensor, rng):
    torch.from_dlpack(torch.utils.dlpack.to_dlpack(tensor.detach())).mul_(1.5)


def _storage(tensor, rng):
    tensor.untyped_storage().copy_(numbers(rng, tensor).contiguous().untyped_storage())


def _foreach(tensor, rng):
    torch._foreach_mul_([tensor.detach()], 1.5)


def _fused(tensor, rng):
    options = {"weight_decay": 0.0, "momentum": 0.0, "lr": 0.1, "dampening": 0.0, "nesterov": False, "maximize": False}
    torch._fused_sgd_([tensor.detach()], [numbers(rng, tensor)], [], **options, is_first_step=True)


def _view(tensor, rng):
    tensor.detach().view(-1)[: tensor.numel() // 2 + 1].mul_(1.5)


def _set(tensor, rng):
    tensor.detach().set_(numbers(rng, tensor))


WRITES = (
    _in_place, _one_number, _data, _new_data, _numpy, _numpy_number, _numpy_order, _dlpack, _storage, _foreach, _fused, _view, _set,
)  # fmt: skip


def held(model):
    """(module, name, tensor) of all parameters and buffers of real numbers."""
    kinds = ((module, name, one) for module in model.modules() for name, one in (*module._parameters.items(), *module._buffers.items()))
    return [each for each in kinds if each[2] is not None and each[2].is_floating_point() and each[2].numel()]


def write(side, rng):
    """Some tensors, in any way."""
    for _ in range(rng.choice((1, 1, 3))):
        if tensors := held(side.model):
            torch.manual_seed(rng.randrange(1 << 30))
            _, _, tensor = rng.choice(tensors)
            with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
                rng.choice(WRITES)(tensor, rng)


def replace_tensor(side, rng):
    if tensors := held(side.model):
        module, name, tensor = rng.choice(tensors)
        new = numbers(rng, tensor)
        if name in module._buffers:
            setattr(module, name, new)
        elif rng.random() < 0.5:
            setattr(module, name, nn.Parameter(new, requires_grad=tensor.requires_grad))
        else:
            torch.utils.swap_tensors(tensor, nn.Parameter(new, requires_grad=tensor.requires_grad))


def load(side, rng):
    state = {name: numbers(rng, one) if one.is_floating_point() else one.clone() for name, one in side.model.state_dict().items()}
    side.model.load_state_dict(state, assign=rng.random() < 0.4)


def shared(side, rng):
    """Two layers become one's weight."""
    found = [one for one in side.model.modules() if isinstance(one._parameters.get("weight"), nn.Parameter)]
    alike = [(one, other) for one in found for other in found if one is not other and one.weight.shape == other.weight.shape]
    if alike:
        one, other = rng.choice(alike)
        one.weight = other.weight


def averaged(side, rng):
    """The parameters become an average of themselves and of others, by `torch.optim.swa_utils`."""
    average = torch.optim.swa_utils.AveragedModel(side.model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5))
    average.update_parameters(side.model)
    with torch.no_grad():
        for one in side.model.parameters():
            one.add_(numbers(rng, one))
    average.update_parameters(side.model)
    side.model.load_state_dict(average.module.state_dict())


def viewed(side, rng):
    """Arrays and tensors that show a weight's memory are written to, now or after the next actions."""
    for array in side.views[-2:]:
        array[...] *= -1
    if tensors := [one for _, _, one in held(side.model) if one.dtype in (torch.float32, torch.float64) and not one.is_inference()]:
        one = rng.choice(tensors).detach()
        side.views.append(rng.choice((lambda: one.numpy(), lambda: torch.from_dlpack(one), lambda: one.view(one.shape)))())


def flatten(side, rng):
    """All parameters become views of one tensor, which is written to."""
    parameters = [one for one in dict.fromkeys(side.model.parameters()) if one.dtype == dtype_of(side.model)]
    if parameters:
        flat, at = torch.cat([one.detach().reshape(-1) for one in parameters]), 0
        for one in parameters:
            one.data = flat[at : at + one.numel()].view(one.shape)
            at += one.numel()
        rng.choice((lambda: flat.mul_(1.2), lambda: flat.numpy().__imul__(1.2)))()
