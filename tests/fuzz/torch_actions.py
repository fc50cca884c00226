# SPDX-License-Identifier: Apache-2.0
"""What a user does with a model, as functions of a `Side` and random numbers: both sides of a walk do the same."""

import copy
import io
import pickle
import random
import types
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch_modules
from torch import nn
from torch.nn.utils import parametrize, prune
from torch_weights import (
    averaged,
    closure_of,
    dtype_of,
    flatten,
    load,
    numbers,
    optimizer,
    replace_tensor,
    shared,
    step,
    viewed,
    write,
)  # fmt: skip


@dataclass
class Side:
    """`model`: what the user holds and changes. `call`: what he calls, `make(model)`; if that `replaces` the model, he holds nothing else.
    `whole`: it is a module like the user's, while torch.compile's own does not look for hooks that come after its first call, and cannot
    load a state or be exported. `habit`: the seed of what most calls have in common, so that they reuse what an earlier call captured."""

    model: nn.Module
    make: Callable[[nn.Module], Any]
    whole: bool = True
    replaces: bool = False
    habit: int | None = None
    handles: list[Any] = field(default_factory=list)
    optimizers: dict[int, Any] = field(default_factory=dict)
    kept: list[tuple[Any, Any]] = field(default_factory=list)
    views: list[Any] = field(default_factory=list)
    call: Any = None

    def renew(self, model=None):
        self.call = self.make(self.model if model is None else model)
        self.model = self.call if self.replaces else self.model if model is None else model


# Calls


def an_image(rng, model, usual=False):
    """Mostly of one shape, of any memory format; with few exceptions, none if `usual`, of the type and channels that the model takes."""
    others = ((1, 8, 8), (3, 9, 12), (2, 12, 8), (0, 8, 8), (1, 12, 12))
    batch, height, width = (2, *model.size) if usual or rng.random() < 0.8 else rng.choice(others)
    dtype, channels = dtype_of(model), model.channels
    x = torch.randn(batch, channels, height, width, dtype=torch.float64).to(dtype)
    pick = rng.random()
    if pick < 0.15:
        x = x.to(memory_format=torch.channels_last)
    elif pick < 0.25:
        x = torch.cat([x, x], 3)[..., ::2]
    elif pick < 0.3:
        x = x[:, :, :1].expand(x.shape)
    elif usual:
        pass
    elif pick < 0.33 and x.numel():
        x.view(-1)[rng.randrange(x.numel())] = rng.choice((float("inf"), -float("inf"), float("nan")))
    elif pick < 0.35:
        x = x.to(rng.choice((torch.float64, torch.float32, torch.float16)))
    elif pick < 0.37:
        x = x[:, :-1]
    elif pick < 0.39:
        x = x[0] if len(x) else x
    return x


def arguments(rng, model, usual=False):
    x = an_image(rng, model, usual)
    if not hasattr(model, "form"):
        return (x,), {}
    named = {}
    if rng.random() < 0.3:
        named["scale"] = rng.choice((2.0, 0, -1, torch.tensor(1.5)))
    if rng.random() < 0.2:
        named["extra"] = rng.choice((None, torch.ones(1, dtype=x.dtype), 2))
    if rng.random() < 0.2:
        named["mode"] = rng.choice(("plain", "negated", "other"))
    given = {"image": x} if rng.random() < 0.1 else (x, None) if rng.random() < 0.1 else x
    return ((), {"x": given, **named}) if rng.random() < 0.1 else ((given,), named)


MODES = (torch.no_grad,) * 6 + (torch.inference_mode, torch.inference_mode, torch.enable_grad)
HABITUAL = 0.8  # of the calls: of other numbers alone


def call(side, rng):
    """In inference. Returns results, and the arguments after the call."""
    usual = side.habit is not None and rng.random() < HABITUAL
    form = random.Random(side.habit) if usual else rng
    args, named = arguments(form, side.model, usual)
    seed(rng)
    mode, cast = form.choice(MODES), form.choice((torch.bfloat16, torch.float16)) if form.random() < 0.04 else None
    with mode(), torch.autocast("cpu", cast) if cast else nullcontext():
        result = side.call(*args, **named)
    copies = torch.utils._pytree.tree_map_only(torch.Tensor, lambda one: one.detach().clone(), result)
    side.kept.append((result, copies))
    return result, args, named, torch.rand(1), random.random()


def seed(rng):
    number = rng.randrange(1 << 30)
    torch.manual_seed(number)
    random.seed(number)


def gradients(side, rng):
    """Of the parameters and of the input, in inference or in training."""
    args, _ = arguments(rng, side.model)
    x = next(iter(args[0].values())) if isinstance(args[0], dict) else args[0][0] if isinstance(args[0], tuple) else args[0]
    side.model.train(training := rng.random() < 0.6)
    x = x.detach().clone().requires_grad_(rng.random() < 0.5)
    seed(rng)
    try:
        with torch.enable_grad():
            leaves = torch.utils._pytree.tree_leaves(side.call(x if x.is_leaf and not x.requires_grad else x * 1))
            results = [one for one in leaves if isinstance(one, torch.Tensor) and one.requires_grad]
            if results:
                sum(one.float().square().mean() for one in results).backward()
        found = [x.grad, *[None if one.grad is None else one.grad.clone() for one in side.model.parameters()]]
        if training and rng.random() < 0.7:
            optimizer(side, rng).step(*closure_of(side))
    finally:
        side.model.eval()
        for one in side.model.parameters():
            one.grad = None
    return found


# Modules


def modules(model, kinds):
    return [(parent, name, one) for parent in model.modules() for name, one in parent._modules.items() if isinstance(one, kinds)]


def attribute(side, rng):
    """A value of Python's, which forward reads."""
    found = [one for one in side.model.modules() if type(one) in _ATTRIBUTES]
    if found:
        one = rng.choice(found)
        _ATTRIBUTES[type(one)](one, rng)
    elif hasattr(side.model, "form"):
        side.model.form = rng.choice(("tensor", "dict", "tuple", "none"))


def _of_flagged(one, rng):
    changes = {"factor": rng.choice((1.0, -2.0, 3)), "on": not one.on, "mode": rng.choice(("relu", "silu", "gelu"))}
    name = rng.choice((*changes, "sizes"))
    if name == "sizes":
        one.sizes.append(rng.randint(1, 3))
    else:
        setattr(one, name, changes[name])


def _of_held(one, rng):
    if (pick := rng.randrange(3)) == 0:
        one.shift = numbers(rng, one.shift)
    elif pick == 1:
        one.shift.mul_(2)
    else:
        one.several[0] = torch.tensor([2.5])


_ATTRIBUTES = {torch_modules.Flagged: _of_flagged, torch_modules.Held: _of_held}
_ATTRIBUTES[torch_modules.FrozenNorm] = lambda one, rng: setattr(one, "eps", rng.choice((0.1, 0.5)))


def options_of_layer(side, rng):
    """Of a layer: its padding, its epsilon, whether it works in place."""
    for name, values in (
        ("eps", (1e-2, 0.3)),
        ("inplace", (True, False)),
        ("padding_mode", ("zeros", "circular")),
        ("negative_slope", (0.3,)),
    ):
        found = [one for one in side.model.modules() if name in vars(one) and not isinstance(one, nn.Dropout2d)]
        if found and rng.random() < 0.5:
            setattr(rng.choice(found), name, rng.choice(values))


def negated(self, *given):
    return -type(self).forward(self, *given)


def own_forward(side, rng):
    """Another forward of one module, or its own again."""
    found = [one for one in side.model.modules() if type(one) in (nn.Conv2d, nn.Linear, nn.ReLU, nn.BatchNorm2d, torch_modules.Fused)]
    for one in rng.sample(found, min(1, len(found))):
        if "forward" in vars(one):
            del one.forward
        else:
            one.forward = types.MethodType(negated, one)


def submodule(side, rng):
    """One becomes another: a layer, an activation, a norm."""
    found = modules(side.model, nn.Conv2d | nn.Linear | nn.ReLU | nn.SiLU | nn.BatchNorm2d)
    for parent, name, one in rng.sample(found, min(1, len(found))):
        if isinstance(one, nn.Conv2d | nn.Linear):
            new = copy.deepcopy(one)
            for parameter in new.parameters():
                parameter.data = numbers(rng, parameter)
            new = nn.Sequential(new, nn.Hardtanh()) if rng.random() < 0.3 and isinstance(parent, nn.Sequential) else new
        else:
            new = rng.choice((nn.Identity(), nn.Tanh(), nn.Hardswish()))
        setattr(parent, name, new.eval())


def doubled(_, given, result):
    return result * 2


def shifted(_, given):
    return (given[0] + 1, *given[1:])


def watched(_, given, result):
    return None


def negating(_, given, named, result):
    return -result


def shifting(_, given, named):
    return (given[0] - 1, *given[1:]), named


def hook(side, rng):
    """One comes or goes."""
    one = rng.choice([*side.model.modules()] if rng.random() < 0.7 else [side.model])
    if side.handles and rng.random() < 0.5:
        side.handles.pop(rng.randrange(len(side.handles))).remove()
    elif (kind := rng.choice((doubled, shifted, watched, negating, shifting))) in (shifted, shifting):
        side.handles.append(one.register_forward_pre_hook(kind, with_kwargs=kind is shifting, prepend=rng.random() < 0.3))
    elif kind is negating:
        side.handles.append(one.register_forward_hook(kind, with_kwargs=True, always_call=rng.random() < 0.2))
    else:
        side.handles.append(one.register_forward_hook(kind))
    if not side.whole:
        torch._dynamo.reset()


class Scaled(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, weight):
        return weight * self.factor


_COMPUTED: tuple[tuple[Callable[..., Any], dict[str, Any]], ...] = (
    (prune.l1_unstructured, {"amount": 0.4}),
    (prune.random_unstructured, {"amount": 0.3}),
    (prune.ln_structured, {"amount": 0.3, "n": 2, "dim": 0}),
    (nn.utils.weight_norm, {}),
)


def parametrized(side, rng):
    """A weight becomes a computed one, or a parameter again."""
    found = [one for one in side.model.modules() if isinstance(one, nn.Conv2d | nn.Linear)]
    for one in rng.sample(found, min(1, len(found))):
        if parametrize.is_parametrized(one, "weight"):
            parametrize.remove_parametrizations(one, "weight")
        elif prune.is_pruned(one) and "weight_mask" in one._buffers:
            prune.remove(one, "weight")
        elif "weight_g" in one._parameters:
            nn.utils.remove_weight_norm(one)
        elif rng.random() < 0.5:
            parametrize.register_parametrization(one, "weight", Scaled(1.5))
        else:
            with torch.no_grad():  # so that the weight is no result that gradients flow through
                kind, options = rng.choice(_COMPUTED)
                kind(one, "weight", **options)


def train(side, rng):
    """Modes of the model or of a part, with a call in training."""
    rng.choice((side.model, rng.choice([*side.model.modules()]))).train()
    args, _ = arguments(rng, side.model)
    seed(rng)
    try:
        with torch.no_grad():
            return (side.call if rng.random() < 0.7 else side.model)(*args)
    finally:
        if rng.random() < 0.8:
            side.model.eval()


def evaluate(side, rng):
    side.model.eval()


def frozen(side, rng):
    side.model.requires_grad_(rng.random() < 0.5)


def another_type(side, rng):
    rng.choice((*(side.model.float,) * 3, side.model.double, side.model.bfloat16, side.model.half))()


def layout(side, rng):
    side.model.to(memory_format=rng.choice((torch.channels_last, torch.contiguous_format)))


# The whole model


def copied(side, rng):
    side.renew(copy.deepcopy(side.model))
    side.handles.clear()


def pickled(side, rng):
    kept = io.BytesIO()
    torch.save(side.model, kept)
    kept.seek(0)
    side.renew(torch.load(kept, weights_only=False) if rng.random() < 0.5 else pickle.loads(pickle.dumps(side.model)))
    side.handles.clear()


def restored(side, rng):
    """Its state, kept by torch.save, after writes."""
    kept = io.BytesIO()
    torch.save(side.model.state_dict(), kept)
    write(side, rng)
    kept.seek(0)
    side.model.load_state_dict(torch.load(kept), strict=rng.random() < 0.5, assign=rng.random() < 0.3)


def again(side, rng):
    side.renew()


def exported(side, rng):
    """What a program of `torch.export` computes."""
    x = torch.randn(2, side.model.channels, 8, 8, dtype=torch.float64).to(dtype_of(side.model))
    with torch.no_grad():
        seed(rng)
        program = torch.export.export(side.call if side.whole else side.model, (x,), strict=rng.random() < 0.5)
        seed(rng)
        return program.module()(x.clone())


def functional_call(side, rng):
    """With other weights, which the next call does not see; made of its own, so that weights that rounding moved move these, too."""
    state = {name: one.detach() * rng.choice((-1, 0.75, 1.5)) for name, one in side.model.named_parameters()}
    model = side.call if side.whole and isinstance(side.call, nn.Module) else side.model
    return torch.no_grad()(torch.func.functional_call)(model, state, arguments(rng, side.model)[0])


ACTIONS = {
    call: 40, gradients: 3, step: 6, write: 14, replace_tensor: 3, load: 3, restored: 2, shared: 1, averaged: 1, viewed: 3, flatten: 2,
    attribute: 5, options_of_layer: 2, own_forward: 2, submodule: 3, hook: 4, parametrized: 3, train: 3, evaluate: 2, frozen: 2,
    another_type: 1, layout: 1, copied: 2, pickled: 1, again: 2, exported: 0.3, functional_call: 0.5,
}  # fmt: skip
