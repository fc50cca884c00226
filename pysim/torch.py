# SPDX-License-Identifier: Apache-2.0
"""PyTorch models with pysim's convolutions and products, on CPUs and on NVIDIA GPUs.

    model = torch.compile(model, backend="pysim")
    model = pysim.torch.optimize(model); print(pysim.torch.report(model))

Results are PyTorch's to within the rounding of the type; BatchNorm and activations are fused into convolutions and products. Training,
gradients and `torch.export` use PyTorch's own operators, bit for bit, and so do layers for which those are expected to be faster.
Everything runs on the current stream with memory from PyTorch's allocator, and can be captured in a CUDA graph after a warm-up call.
"""

import copy
import inspect
import sys
from collections.abc import Iterable
from operator import attrgetter
from typing import Any, Literal, cast

from pysim.arguments import word
from pysim.errors import MissingError, OperandError, quoted

try:
    import torch
    from torch import fx
    from torch.utils import _pytree
except ImportError:
    raise MissingError("pysim.torch needs PyTorch: pip install torch") from None

from pysim.frontends.torch import Tracer, count_trainings, rewrite
from pysim.models.torch_graph import GraphedCalls
from pysim.models.torch_layers import Decision, FusedLayer
from pysim.models.torch_precision import MODEL_ACCURACIES, ModelAccuracy
from pysim.models.torch_state import TrainedNorms

__all__ = ["Decision", "backend", "optimize", "report"]


def backend(module: fx.GraphModule, example_inputs: Any, options: dict[str, Any] | None = None) -> Any:
    """The backend of `torch.compile`. A graph through which gradients flow stays PyTorch's. `options={"accuracy": ...}` as in
    `optimize`."""
    rest = dict(options or {})
    accuracy = _checked(rest.pop("accuracy", "strict"))
    if rest:
        raise OperandError(f"the backend pysim has no option {', '.join(map(repr, rest))}; it has accuracy")
    count_trainings(module)
    if torch.is_grad_enabled() and any(getattr(one, "requires_grad", False) for one in example_inputs):
        return module.forward
    forward = rewrite(module, accuracy)[0].forward
    return lambda *inputs: _in_pytorchs_layout(inputs, forward(*inputs))


def optimize(model: torch.nn.Module, accuracy: ModelAccuracy = "strict", cuda_graph: bool | Literal["caller"] = False) -> torch.nn.Module:
    """A module of the same class that shares the model's parameters, buffers and submodules, and computes the same faster in inference.

    `accuracy`: "strict" (no layer has a larger stated error than a direct sum in its type), "standard" (any plan) or "ieee" (only
    multiply-adds of the type), as in `pysim.plan`; or "tf32": "strict" with TF32 allowed. On a GPU the types are those that PyTorch would
    use: TF32 where the program allows it (torch.backends), and autocast's type under autocast.

    `cuda_graph`: True captures and replays calls on a GPU as CUDA graphs (`pysim.models.torch_graph`), for small batches, where most of the
    time is PyTorch's host time; each kind of input then has its own memory for the values between layers. "caller": the caller captures the
    calls, so layers are chosen without counting host time.

    `state_dict`, training and gradients are the model's own. Changed weights take effect, except writes through `.data`, which PyTorch does
    not count: call `optimize` again after these. Arguments whose default is None, a bool or a text are traced as that default: calls that
    give another value run by PyTorch, and so do all calls after a module was replaced or got a hook. OperandError for a model that torch.fx
    cannot trace: torch.compile(model, backend="pysim") can."""
    if not isinstance(model, torch.nn.Module):
        raise OperandError(f"model is a {type(model).__name__}; expected a torch.nn.Module")
    if not isinstance(cuda_graph, bool | str) or cuda_graph not in (True, False, "caller"):
        raise OperandError(f'cuda_graph is {quoted(cuda_graph)}; expected True, False or "caller", where the caller captures calls')
    accuracy = _checked(accuracy)
    if lazy := [name for name, one in model.named_parameters() if isinstance(one, torch.nn.parameter.UninitializedParameter)]:
        raise OperandError(f"the parameter {lazy[0]} has no shape before the model's first call; call it once, then optimize it")
    model = model.__dict__["_pysim_given"][0] if isinstance(model, _Optimized) else model
    kind, left_out = type(model), _left_out(model)
    if "parametrizations" in model._modules:  # of torch.nn.utils.parametrize
        raise OperandError(f'{kind.__name__} computes its parameters, so it cannot be copied; use torch.compile(model, backend="pysim")')
    optimized = copy.copy(model)
    optimized.__class__ = type(kind.__name__, (_Optimized, kind), {"__module__": kind.__module__})
    module, layers = rewrite(_traced(model, left_out), accuracy, bool(cuda_graph))
    called = GraphedCalls(module, model) if cuda_graph is True else module
    calls = _Calls(tuple(optimized.modules()), left_out)
    optimized.__dict__.update(_pysim=(called, layers), _pysim_calls=calls, _pysim_given=(model, accuracy, cuda_graph))
    return optimized


def _checked(accuracy: Any) -> ModelAccuracy:
    return cast("ModelAccuracy", word(accuracy, "accuracy", MODEL_ACCURACIES))


def report(model: torch.nn.Module) -> list[Decision]:
    """For each layer of an optimized model and each kind of input so far: whether pysim or PyTorch computes it, and why."""
    if not isinstance(model, _Optimized):
        raise OperandError(f"the report is of what pysim.torch.optimize returned, not of a {type(model).__name__}")
    layers: list[FusedLayer] = model.__dict__["_pysim"][1]
    if not model.__dict__["_pysim_calls"].unchanged():
        reason = "its modules are others, or have other hooks, than when it was optimized: optimize it again"
        return [Decision(type(model).__name__, "", "torch", reason)]
    return [decision for layer in layers for decision in layer.decisions]


_TRAINING = attrgetter("training")


class _Calls:
    """Whether a call of a model may run what was traced."""

    def __init__(self, modules: tuple[torch.nn.Module, ...], left_out: "_LeftOut") -> None:
        self._modules, self._left_out = modules, left_out
        self._homes = [one._modules for one in modules if one._modules]
        self._children = [dict(home) for home in self._homes]
        self.trained_norms = TrainedNorms(modules)
        self._hooks = [hooks for one in modules[1:] for hooks in (one._forward_pre_hooks, one._forward_hooks) if not hooks]

    def unchanged(self) -> bool:
        """Whether no module was replaced or got a hook."""
        return self._homes == self._children and not any(self._hooks)

    def traced(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The named arguments that the trace has under their names."""
        return {name: value for name, value in kwargs.items() if name not in self._left_out}

    def may_run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether this call is in inference, not traced, and gives only the traced arguments."""
        if any(map(_TRAINING, self._modules)) or torch.compiler.is_compiling() or torch.jit.is_tracing() or not self.unchanged():
            return False
        given = ((args[at] if at < len(args) else kwargs.get(name, default), default) for name, (at, default) in self._left_out.items())
        return all(one is default or (isinstance(one, str) and one == default) for one, default in given)


class _Optimized(torch.nn.Module):  # type: ignore[misc]  # PyTorch need not be here
    """Mixed in before a model's own class, whose forward is used in training, tracing and export."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        calls: _Calls = self.__dict__["_pysim_calls"]
        if not calls.may_run(args, kwargs):
            return super().forward(*args, **kwargs)
        given = (*args, *kwargs.values())
        if torch.is_grad_enabled() and any(one.requires_grad for one in (*given, *self.parameters()) if isinstance(one, torch.Tensor)):
            return super().forward(*args, **kwargs)
        calls.trained_norms.look()
        return _in_pytorchs_layout(given, self.__dict__["_pysim"][0](*args, **calls.traced(kwargs)))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles the original model, and optimizes the copy."""
        return optimize, self.__dict__["_pysim_given"], {name: one for name, one in self.__dict__.items() if not name.startswith("_pysim")}


def _is_channels_last(x: Any) -> bool:
    """Whether a tensor is channels last and on a GPU."""
    some = isinstance(x, torch.Tensor) and x.is_cuda and x.dim() == 4 and not x.is_contiguous()
    return bool(some and x.is_contiguous(memory_format=torch.channels_last))


def _in_pytorchs_layout(given: Iterable[Any], results: Any) -> Any:
    """Results in the layout of PyTorch's: channels last only if an input is."""
    if isinstance(results, torch.Tensor):
        return results.contiguous() if _is_channels_last(results) and not any(map(_is_channels_last, given)) else results
    if type(results) is tuple:
        return tuple(_in_pytorchs_layout(given, one) for one in results)
    return _pytree.tree_map_only(torch.Tensor, lambda one: _in_pytorchs_layout(given, one), results)


_LeftOut = dict[str, tuple[int, Any]]  # argument -> its position and its default


def _left_out(model: torch.nn.Module) -> _LeftOut:
    """The arguments that are traced as their default: None, a bool or a text, since control flow may depend on them, and no symbol can be
    one."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {
        one.name: (sys.maxsize if one.kind is one.KEYWORD_ONLY else at, one.default)
        for at, one in enumerate(parameters)
        if one.default is None or isinstance(one.default, bool | str)
    }


def _traced(model: torch.nn.Module, left_out: _LeftOut) -> fx.GraphModule:
    """The model traced in inference; modules in training are set back to it."""
    training = [module for module in model.modules() if module.training]
    try:
        model.eval()
        return fx.GraphModule(model, Tracer().trace(model, {name: default for name, (_, default) in left_out.items()}))
    except Exception as error:  # whatever the model's own code raises on symbols
        what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise OperandError(f'{type(model).__name__} cannot be traced ({what}); use torch.compile(model, backend="pysim")') from None
    finally:
        for module in training:
            module.training = True
