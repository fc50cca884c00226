# SPDX-License-Identifier: Apache-2.0
"""PyTorch models with pysim's convolutions and products, on CPUs and on NVIDIA GPUs.

    model = torch.compile(model, backend="pysim")
    model = pysim.torch.optimize(model); print(pysim.torch.report(model))

Results are PyTorch's to within the rounding of the type; BatchNorm and activations are computed where the sums still are. Training,
gradients, autocast and `torch.export` see PyTorch's own operators, bit for bit, and so do layers for which they are expected to be faster.
Works on the current stream with memory of PyTorch's allocator, and can be captured in a CUDA graph after a call that warms it up.
"""

import copy
from operator import attrgetter
from typing import Any, cast

from pysim.arguments import word
from pysim.errors import MissingError, OperandError
from pysim.record.accuracy import ACCURACIES, Accuracy

try:
    import torch
    from torch import fx
except ImportError:
    raise MissingError("pysim.torch needs PyTorch: pip install torch") from None

from pysim.frontends.torch import rewritten
from pysim.models.torch_graph import GraphedCalls
from pysim.models.torch_layers import Decision, FusedLayer

__all__ = ["Decision", "backend", "optimize", "report"]


def backend(module: fx.GraphModule, example_inputs: Any, options: dict[str, Any] | None = None) -> Any:
    """The backend of `torch.compile`: a graph that gradients flow through stays PyTorch's. `options={"accuracy": ...}` as in `optimize`."""
    told = dict(options or {})
    accuracy = _known(told.pop("accuracy", "strict"))
    if told:
        raise OperandError(f"the backend pysim has no option {', '.join(map(repr, told))}; it has accuracy")
    if torch.is_grad_enabled() and any(getattr(one, "requires_grad", False) for one in example_inputs):
        return module.forward
    return rewritten(module, accuracy)[0].forward


def optimize(model: torch.nn.Module, accuracy: Accuracy = "strict", cuda_graph: bool = False) -> torch.nn.Module:
    """A module of the same class that shares the model's parameters, buffers and submodules, and computes the same faster in inference.

    `accuracy` is "strict" (no layer whose stated error is above a direct sum's of its type), "standard" (any plan) or "ieee" (multiply-adds
    of the type alone), as in `pysim.plan`. With `cuda_graph` calls on a GPU are recorded and run as CUDA graphs
    (`pysim.models.torch_graph`): for small batches, where PyTorch's host time is most of what a network takes. Each kind of input then has
    its own memory for what lies between layers.
    `state_dict`, training and gradients are the model's own. Changed weights take effect, but for writes through `.data`, which PyTorch
    does not count: call `optimize` again after these. OperandError for a model that cannot be traced
    by torch.fx: torch.compile(model, backend="pysim") takes those, too.
    """
    if not isinstance(model, torch.nn.Module):
        raise OperandError(f"model is a {type(model).__name__}; right is a torch.nn.Module")
    accuracy = _known(accuracy)
    kind = type(model)
    optimized = copy.copy(model)
    optimized.__class__ = type(kind.__name__, (_Optimized, kind), {"__module__": kind.__module__})
    object.__setattr__(optimized, "_pysim_modules", tuple(optimized.modules()))
    module, layers = rewritten(_traced(model), accuracy, cuda_graph)
    object.__setattr__(optimized, "_pysim", (GraphedCalls(module, model) if cuda_graph else module, layers))
    return optimized


def _known(accuracy: Any) -> Accuracy:
    return cast("Accuracy", word(accuracy, "accuracy", ACCURACIES))


def report(model: torch.nn.Module) -> list[Decision]:
    """Of each layer and each kind of input that an optimized model was called with: who computes it and why."""
    if not isinstance(model, _Optimized):
        raise OperandError(f"the report is of what pysim.torch.optimize returned, not of a {type(model).__name__}")
    layers: list[FusedLayer] = model.__dict__["_pysim"][1]
    return [decision for layer in layers for decision in layer.decisions]


_TRAINING = attrgetter("training")


class _Optimized(torch.nn.Module):  # type: ignore[misc]  # PyTorch need not be here
    """Stands before a model's own class, whose forward trains, is traced and is exported."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if any(map(_TRAINING, self.__dict__["_pysim_modules"])) or torch.compiler.is_compiling():
            return super().forward(*args, **kwargs)
        given = (*args, *kwargs.values())
        if torch.is_grad_enabled() and any(one.requires_grad for one in (*given, *self.parameters()) if isinstance(one, torch.Tensor)):
            return super().forward(*args, **kwargs)
        return self.__dict__["_pysim"][0](*args, **kwargs)


def _traced(model: torch.nn.Module) -> fx.GraphModule:
    """The model as it infers; its modules are set to train again where they were."""
    training = [module for module in model.modules() if module.training]
    try:
        model.eval()
        return fx.GraphModule(model, fx.Tracer().trace(model))
    except Exception as error:  # whatever the model's own code raises on symbols
        what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise OperandError(f'{type(model).__name__} cannot be traced ({what}); use torch.compile(model, backend="pysim")') from None
    finally:
        for module in training:
            module.training = True
