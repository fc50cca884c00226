# SPDX-License-Identifier: Apache-2.0
"""A small share of what `torch_walk.py` tries, and that it finds what is planted. PYSIM_LONG=1 tries 4,000 sequences each way."""

import copy
import logging
import os

import pytest
from limits import SHARE

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

import torch_walk  # noqa: E402
from torch import nn  # noqa: E402

import pysim.torch  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("every_layer_is_ours", "fresh_compiler"),
    pytest.mark.filterwarnings("ignore"),  # what eager warns of is not the question here
    pytest.mark.timeout(0),
]
SEQUENCES = round(4000 * SHARE) if os.environ.get("PYSIM_LONG") else 10


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.CRITICAL)  # what Dynamo says of graph breaks
    yield
    logging.disable(logging.NOTSET)


def faults(make, seeds, **how):
    """The first fault of these sequences, with its seed; None if there is none."""
    walked = ((seed, *torch_walk.walk(seed, make, **how)) for seed in seeds)
    return next((each for each in walked if each[1]), None)


def test_optimized_models_equal_eager_whatever_is_done_to_them():
    assert faults(pysim.torch.optimize, range(SEQUENCES)) is None


def test_compiled_models_equal_eager_whatever_is_done_to_them():
    assert faults(torch_walk.compiled, range(SEQUENCES), whole=False) is None


@pytest.mark.usefixtures("on_gpu")
def test_models_in_graphs_that_are_compiled_equal_eager_whatever_is_done_to_them(monkeypatch):
    """pysim's layers as operators of such a graph, as on a GPU; the others one by one as AOTAutograd has them."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    from pysim.torch.capture import compiled, compiled_layers

    graphs = []

    def keep(graph, _):
        graphs.append(str(graph.graph))
        return make_boxed_func(graph.forward)

    traced = aot_autograd(fw_compiler=keep)
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", lambda graph, inputs, config_patches: traced(graph, inputs))
    monkeypatch.setattr(compiled, "missing_compiler", lambda: "")
    monkeypatch.setattr(compiled_layers, "compiler_seconds", lambda *_: float("inf"))
    assert faults(lambda model: pysim.torch.optimize(model, compiler=True), range(SEQUENCES)) is None
    assert any("pysim.layer" in one for one in graphs)


# The fuzzer itself


def test_rounding_that_eager_amplifies_is_no_difference():
    """Eager's own error of a group norm of numbers that are nearly the same, what is 0 but for rounding (a result, a running mean), and
    eager's roundings to bfloat16 between layers under autocast."""
    assert faults(pysim.torch.optimize, [40300008, 70100138], habitual=False) is None
    assert faults(pysim.torch.optimize, [45301394, 45700354]) is None
    assert faults(torch_walk.compiled, [41200218], whole=False, habitual=False) is None


def test_a_model_equals_itself():
    assert faults(lambda model: model, range(10_000, 10_000 + SEQUENCES)) is None


def test_a_module_in_the_models_place_that_does_nothing_else_equals_it():
    assert faults(nothing, range(20_000, 20_000 + SEQUENCES), replaces=False) is None


def test_a_model_compiled_by_pytorch_equals_itself():
    assert faults(lambda model: torch.compile(model, backend="eager"), range(10_000, 10_004), whole=False) is None


def planted(model, forward):
    """A module in the model's place with another forward, which calls `model.forward`: the hooks of the module are those of the model."""
    other = copy.copy(model)
    other.__class__ = type(type(model).__name__, (type(model),), {"forward": lambda self, *args, **named: forward(*args, **named)})
    return other


def stale(model):
    """Parameters are read again only where PyTorch's version counters tell."""
    kept = {}

    def forward(*args, **named):
        parameters = dict(model.named_parameters())
        if torch.is_grad_enabled() or any(one.is_inference() for one in parameters.values()):
            return model.forward(*args, **named)
        versions = {name: (id(one), one._version) for name, one in parameters.items()}
        for name, one in parameters.items():
            if name not in kept or kept[name][0] != versions[name]:
                kept[name] = versions[name], nn.Parameter(one.detach().clone(), requires_grad=one.requires_grad)
        with torch.nn.utils.stateless._reparametrize_module(model, {name: kept[name][1] for name in parameters}):
            return model.forward(*args, **named)

    return planted(model, forward)


def constant(model):
    """Values of Python's are those of the moment when it was made; weights are read in each call."""
    kept = copy.deepcopy(model)

    def forward(*args, **named):
        for one, other in zip(kept.modules(), model.modules(), strict=False):
            one._parameters, one._buffers = other._parameters, other._buffers
            one.training = other.training
        return kept.forward(*args, **named)

    return planted(model, forward)


def reused(model):
    """A result's memory is written to by the next call."""
    kept = []

    def forward(*args, **named):
        result = model.forward(*args, **named)
        if isinstance(result, torch.Tensor) and not result.requires_grad and not torch.is_inference_mode_enabled():
            if kept and kept[-1].shape == result.shape and kept[-1].dtype == result.dtype and not kept[-1].is_inference():
                kept[-1].copy_(result)
                return kept[-1]
            kept.append(result)
        return result

    return planted(model, forward)


def leaves_attributes(model):
    next(iter(model.parameters()), nn.Parameter()).seen = True
    return model


def draws_once(model):
    """Random numbers are drawn when it is made."""
    state = torch.get_rng_state()

    def forward(*args, **named):
        torch.set_rng_state(state)
        return model.forward(*args, **named)

    return planted(model, forward)


def raises_another(model):
    def forward(*args, **named):
        try:
            return model.forward(*args, **named)
        except RuntimeError as error:
            raise TypeError(str(error)) from None

    return planted(model, forward)


def wrong_at_infinities(model):
    def forward(*args, **named):
        def spread(one):
            return one + 0 * one.max() if one.is_floating_point() and one.numel() and not one.isfinite().all() else one

        return torch.utils._pytree.tree_map_only(torch.Tensor, spread, model.forward(*args, **named))

    return planted(model, forward)


def nothing(model):
    return planted(model, lambda *args, **named: model.forward(*args, **named))


FAULTS = (stale, constant, reused, leaves_attributes, draws_once, raises_another, wrong_at_infinities)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_soon(fault):
    assert faults(fault, range(20_000, 20_100), replaces=False) is not None
