# SPDX-License-Identifier: Apache-2.0
"""PyTorch models with pysim's convolutions and products, on CPUs and on NVIDIA GPUs.

    model = torch.compile(model, backend="pysim")
    model = pysim.torch.optimize(model); print(pysim.torch.report(model))

Results are PyTorch's to within the rounding of the type; BatchNorm and activations are computed where the sums still are. Training,
gradients and `torch.export` see PyTorch's own operators, bit for bit, and so do layers for which they are expected to be faster.
Works on the current stream with memory of PyTorch's allocator, and can be captured in a CUDA graph after a call that warms it up.
"""

import copy
import inspect
import sys
from collections.abc import Iterable
from operator import attrgetter
from typing import Any, Literal, cast

from pysim.arguments import word
from pysim.errors import MissingError, OperandError

try:
    import torch
    from torch import fx
    from torch.utils import _pytree
except ImportError:
    raise MissingError("pysim.torch needs PyTorch: pip install torch") from None

from pysim.frontends.torch import Tracer, rewrite
from pysim.models.torch_graph import GraphedCalls
from pysim.models.torch_layers import Decision, FusedLayer
from pysim.models.torch_precision import MODEL_ACCURACIES, ModelAccuracy

__all__ = ["Decision", "backend", "optimize", "report"]


def backend(module: fx.GraphModule, example_inputs: Any, options: dict[str, Any] | None = None) -> Any:
    """The backend of `torch.compile`: a graph that gradients flow through stays PyTorch's. `options={"accuracy": ...}` as in `optimize`."""
    told = dict(options or {})
    accuracy = _known(told.pop("accuracy", "strict"))
    if told:
        raise OperandError(f"the backend pysim has no option {', '.join(map(repr, told))}; it has accuracy")
    if torch.is_grad_enabled() and any(getattr(one, "requires_grad", False) for one in example_inputs):
        return module.forward
    made = rewrite(module, accuracy)[0].forward
    return lambda *given: _lying_as(given, made(*given))


def optimize(model: torch.nn.Module, accuracy: ModelAccuracy = "strict", cuda_graph: bool | Literal["caller"] = False) -> torch.nn.Module:
    """A module of the same class that shares the model's parameters, buffers and submodules, and computes the same faster in inference.

    `accuracy` is "strict" (no layer whose stated error is above a direct sum's of its type), "standard" (any plan) or "ieee" (multiply-adds
    of the type alone), as in `pysim.plan`, or "tf32": "strict", and TF32 allowed. On a GPU types are those that PyTorch would take: TF32 is
    multiplied where the program allows it (torch.backends), and under autocast its type. With `cuda_graph` calls on a GPU are recorded and
    run as CUDA graphs (`pysim.models.torch_graph`): for small batches, where PyTorch's host time is most of what a network takes. Each kind
    of input then has its own memory for what lies between layers. "caller": they run as they are, and layers are chosen for a caller who
    records them: no time of the host counts for them.
    `state_dict`, training and gradients are the model's own. Changed weights take effect, but for writes through `.data`, which PyTorch
    does not count: call `optimize` again after these. PyTorch's own are calls that give an argument whose default is None, and all calls
    once modules were replaced or got hooks. OperandError for a model that cannot be traced
    by torch.fx: torch.compile(model, backend="pysim") takes those, too.
    """
    if not isinstance(model, torch.nn.Module):
        raise OperandError(f"model is a {type(model).__name__}; right is a torch.nn.Module")
    if cuda_graph not in (True, False, "caller"):
        raise OperandError(f'cuda_graph is {cuda_graph!r}; right are True, False and "caller", who records calls')
    accuracy = _known(accuracy)
    if lazy := [name for name, one in model.named_parameters() if isinstance(one, torch.nn.parameter.UninitializedParameter)]:
        raise OperandError(
            f"the parameter {lazy[0]} has no shape before the model's first call; right is to call it once, then optimize it"
        )
    model = model.__dict__["_pysim_given"][0] if isinstance(model, _Optimized) else model
    kind, left_out = type(model), _left_out(model)
    optimized = copy.copy(model)
    optimized.__class__ = type(kind.__name__, (_Optimized, kind), {"__module__": kind.__module__})
    module, layers = rewrite(_traced(model, left_out), accuracy, bool(cuda_graph))
    called = GraphedCalls(module, model) if cuda_graph is True else module
    calls = _Calls(tuple(optimized.modules()), left_out)
    optimized.__dict__.update(_pysim=(called, layers), _pysim_calls=calls, _pysim_given=(model, accuracy, cuda_graph))
    return optimized


def _known(accuracy: Any) -> ModelAccuracy:
    return cast("ModelAccuracy", word(accuracy, "accuracy", MODEL_ACCURACIES))


def report(model: torch.nn.Module) -> list[Decision]:
    """Of each layer and each kind of input that an optimized model was called with: who computes it and why."""
    if not isinstance(model, _Optimized):
        raise OperandError(f"the report is of what pysim.torch.optimize returned, not of a {type(model).__name__}")
    layers: list[FusedLayer] = model.__dict__["_pysim"][1]
    if not model.__dict__["_pysim_calls"].hold():
        reason = "its modules are others, or have other hooks, than when it was optimized: optimize it again"
        return [Decision(type(model).__name__, "", "torch", reason)]
    return [decision for layer in layers for decision in layer.decisions]


_TRAINING = attrgetter("training")


class _Calls:
    """Which calls of a model compute what was traced."""

    def __init__(self, modules: tuple[torch.nn.Module, ...], left_out: dict[str, int]) -> None:
        self._modules, self._left_out = modules, left_out
        self._homes = [one._modules for one in modules if one._modules]
        self._children = [dict(home) for home in self._homes]
        self._hooks = [hooks for one in modules[1:] for hooks in (one._forward_pre_hooks, one._forward_hooks) if not hooks]

    def hold(self) -> bool:
        """Whether the modules are those that they were, without a hook that they did not have."""
        return self._homes == self._children and not any(self._hooks)

    def take(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call is one of what was traced, in inference and by itself."""
        if any(map(_TRAINING, self._modules)) or torch.compiler.is_compiling() or torch.jit.is_tracing() or not self.hold():
            return False
        return all((args[at] if at < len(args) else kwargs.get(name)) is None for name, at in self._left_out.items())


class _Optimized(torch.nn.Module):  # type: ignore[misc]  # PyTorch need not be here
    """Stands before a model's own class, whose forward trains, is traced and is exported."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not self.__dict__["_pysim_calls"].take(args, kwargs):
            return super().forward(*args, **kwargs)
        given = (*args, *kwargs.values())
        if torch.is_grad_enabled() and any(one.requires_grad for one in (*given, *self.parameters()) if isinstance(one, torch.Tensor)):
            return super().forward(*args, **kwargs)
        return _lying_as(given, self.__dict__["_pysim"][0](*args, **kwargs))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copied and pickled as the model that it was made of, and optimized anew."""
        return optimize, self.__dict__["_pysim_given"], {name: one for name, one in self.__dict__.items() if not name.startswith("_pysim")}


def _last(x: Any) -> bool:
    """Whether a tensor lies on a GPU, channels last."""
    some = isinstance(x, torch.Tensor) and x.is_cuda and x.dim() == 4 and not x.is_contiguous()
    return bool(some and x.is_contiguous(memory_format=torch.channels_last))


def _lying_as(given: Iterable[Any], results: Any) -> Any:
    """Results as PyTorch's lie: channels last where an operand does, whatever layers have between them."""
    if isinstance(results, torch.Tensor):
        return results.contiguous() if _last(results) and not any(map(_last, given)) else results
    if type(results) is tuple:
        return tuple(_lying_as(given, one) for one in results)
    return _pytree.tree_map_only(torch.Tensor, lambda one: _lying_as(given, one), results)


def _left_out(model: torch.nn.Module) -> dict[str, int]:
    """Arguments that are None where they are not given, by name, with their places: no symbol is None, so none may stand for them."""
    try:
        told = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {one.name: sys.maxsize if one.kind is one.KEYWORD_ONLY else at for at, one in enumerate(told) if one.default is None}


def _traced(model: torch.nn.Module, left_out: Iterable[str]) -> fx.GraphModule:
    """The model as it infers; its modules are set to train again where they were."""
    training = [module for module in model.modules() if module.training]
    try:
        model.eval()
        return fx.GraphModule(model, Tracer().trace(model, dict.fromkeys(left_out)))
    except Exception as error:  # whatever the model's own code raises on symbols
        what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise OperandError(f'{type(model).__name__} cannot be traced ({what}); use torch.compile(model, backend="pysim")') from None
    finally:
        for module in training:
            module.training = True
