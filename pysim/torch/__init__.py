# SPDX-License-Identifier: Apache-2.0
"""PyTorch models with pysim's convolutions and products, on CPUs and on NVIDIA GPUs.

    model = torch.compile(model, backend="pysim")
    model = pysim.torch.optimize(model); print(pysim.torch.report(model))

Graphs are captured by torch.compile: parameters and buffers are their inputs, what a model does to its own state or draws at random is
part of them, and guards tell when Python state has changed. Code that cannot be captured runs as it is, between graphs. Results are
PyTorch's to within the rounding of the type; BatchNorm and activations are fused into convolutions and products. Training, gradients and
`torch.export` use PyTorch's own operators, bit for bit, and so do tensors that are not plain and layers for which those are expected to
be faster. Everything runs on the current stream with memory from PyTorch's allocator, and can be captured in a CUDA graph after a warm-up
call.
"""

import gc
from collections.abc import Callable, Sequence
from math import copysign
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, cast
from weakref import WeakSet

import numpy as np

from pysim.arguments import flag, seconds, word
from pysim.arguments import whole as whole_number  # `whole` is a module of this package
from pysim.errors import MissingError, OperandError, quoted

try:
    import torch
    from torch import fx
except ImportError:
    raise MissingError("pysim.torch needs PyTorch: pip install torch") from None

from torch._guards import GuardSource
from torch.nn.modules import module as torch_module

from pysim.caches import once
from pysim.file_io import path_of, path_to_save
from pysim.logs import LOG, is_disabled
from pysim.torch.capture.compiled import RUNS, by_compiler
from pysim.torch.capture.effects import effects_of
from pysim.torch.capture.frames import NotCapturedError, captured_calls
from pysim.torch.capture.on_cpu import rewrite_on_cpu
from pysim.torch.capture.rewriting import Rewritten, count_trainings, rewrite
from pysim.torch.decisions import ONE_BY_ONE, FirstCall, Report
from pysim.torch.graphs import CudaGraph, Graph, Program, free_references, graphed
from pysim.torch.layers.fused_layer import Decision
from pysim.torch.measured import measured_graph
from pysim.torch.parameters import count_writes, forget_all, is_plain, is_traced
from pysim.torch.precision import MODEL_ACCURACIES, ModelAccuracy
from pysim.torch.saved_calls import SavedCall, refused
from pysim.torch.saved_networks import SavedNetwork, save_network
from pysim.torch.saved_programs import SavedProgram, is_program, save_program
from pysim.torch.unguarded import FUNCTIONS, Unguarded
from pysim.torch.whole import ONE_GRAPH, check_layers, check_operators

__all__ = ["Decision", "Report", "backend", "load", "optimize", "refresh", "report", "save"]


class Options(NamedTuple):
    """What `optimize` and the backend take beside the model."""

    accuracy: ModelAccuracy = "strict"
    cuda_graph: CudaGraph = False
    compiler: bool | None = None
    measure: float = 0.0
    runs: int = RUNS

    @classmethod
    def checked(
        cls,
        accuracy: Any = "strict",
        cuda_graph: Any = False,
        compiler: Any = None,
        measure: Any = 0.0,
        runs: Any = RUNS,
        **rest: Any,
    ) -> "Options":
        """OperandError for what is none of them."""
        if rest:
            raise OperandError(f"the backend pysim has no option {', '.join(map(repr, rest))}; it has {', '.join(cls._fields)}")
        if not isinstance(cuda_graph, bool | str) or cuda_graph not in (True, False, "caller"):
            raise OperandError(f'cuda_graph is {quoted(cuda_graph)}; expected True, False or "caller", where the caller captures calls')
        chosen = cast("ModelAccuracy", word(accuracy, "accuracy", MODEL_ACCURACIES))
        if chosen == "reproducible":
            if compiler:
                raise OperandError(
                    'accuracy "reproducible" leaves nothing to the compiler, which chooses sums by sizes; leave out compiler'
                )
            compiler = False
        asked = None if compiler is None else flag(compiler, "compiler")
        return cls(chosen, cast("CudaGraph", cuda_graph), asked, seconds(measure, "measure"), whole_number(runs, "runs", 1))


def backend(module: fx.GraphModule, example_inputs: Sequence[Any], options: dict[str, Any] | None = None) -> Any:
    """The backend of `torch.compile`. A graph through which gradients flow stays PyTorch's. Its options are `optimize`'s: accuracy,
    cuda_graph, compiler, measure and runs."""
    chosen = Options.checked(**(options or {}))
    if chosen.accuracy == "reproducible":
        raise OperandError(f"{ONE_GRAPH}torch.compile leaves what lies between its graphs to PyTorch; use optimize")
    graph = _pytorchs(module, _say_disabled()) if is_disabled() else _compiled(module, example_inputs, chosen)
    _GRAPHS.add(graph)
    return graph


def optimize(
    model: torch.nn.Module,
    accuracy: ModelAccuracy = "strict",
    cuda_graph: CudaGraph = False,
    compiler: bool | None = None,
    measure: float = 0.0,
    runs: int = RUNS,
) -> torch.nn.Module:
    """A module of the same class that shares everything with the model, its attributes, parameters, buffers and submodules, and computes
    the same faster in inference. The model's own class and `forward` are not touched.

    `accuracy`: "strict" (no layer has a larger stated error than a direct sum in its type), "standard" (any plan) or "ieee" (only
    multiply-adds of the type), as in `pysim.plan`; "tf32": "strict" with TF32 allowed; or "reproducible": an image's bits are the same
    in any batch, on CPUs also for any threads and on any CPU, or an OperandError says what prevents it (docs/reproducible.md). On a GPU
    the types are those that PyTorch would use: TF32 where the program allows it (torch.backends), and autocast's type under autocast.

    `cuda_graph`: True captures and replays calls on a GPU as CUDA graphs (`pysim.torch.cuda_graph`), for small batches, where most of the
    time is PyTorch's host time; each kind of input then has its own memory for the values between layers. "caller": the caller captures the
    calls, so layers are chosen without counting host time.

    `compiler`: whether on a GPU PyTorch's compiler, Inductor, fuses everything between the layers. A layer is then pysim's only where it is
    expected to be faster than the compiler's, and the first call takes about as long as with `torch.compile`. None, the default: the graph
    is compiled if what `runs` calls are expected to save is more than what compiling is expected to take; `report` says both. Otherwise, or
    without Triton, PyTorch's operators run one by one between the layers. Where sizes differ between calls, FP32 runs so, too, and in
    TF32 and 16-bit types the compiler computes everything.

    `runs`: how many calls are expected of each kind of input, 200,000 if nothing is said.

    `measure`: with `compiler=None`, the first call on a GPU times the graph with and without the compiler and with several choices of
    layers, for this many seconds beside the compilations. The choice is kept in the user's cache (`pysim.torch.measured`).

    Whatever is changed afterwards takes effect in the next call: weights, modules, hooks, flags and other attributes. The exception are
    writes through `.data`, NumPy or DLPack, above all to a part of a large tensor: see `refresh`. What torch.compile cannot capture, or a
    call that it does not support, runs by PyTorch; `report` says why. OperandError for what is no module, and for parameters that have no
    shape yet.

    While PYSIM_DISABLE is set, the model itself is returned (docs/environment.md)."""
    if not isinstance(model, torch.nn.Module):
        raise OperandError(f"model is a {type(model).__name__}; expected a torch.nn.Module")
    chosen = Options.checked(accuracy, cuda_graph, compiler, measure, runs)
    if lazy := [name for name, one in model.named_parameters() if isinstance(one, torch.nn.parameter.UninitializedParameter)]:
        raise OperandError(f"the parameter {lazy[0]} has no shape before the model's first call; call it once, then optimize it")
    model = model._pysim.model if isinstance(model, _Optimized) else model
    if is_disabled():
        _say_disabled()
        return model
    kind = type(model)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__, "__slots__": ("_pysim",)}
    optimized: Any = object.__new__(type(kind.__name__, (_Optimized, kind), names))
    object.__setattr__(optimized, "__dict__", model.__dict__)
    object.__setattr__(optimized, "_pysim", _Calls(model, chosen))
    return cast("torch.nn.Module", optimized)


def report(model: Any) -> Report:
    """For each layer of a model that was optimized, or compiled with this backend, and for each kind of input so far: whether pysim or
    PyTorch computes it, and why. Printed, it is a table with a total, what the first result of each kind of input took (of a model that
    was optimized or loaded), and the memory that is kept beside the model."""
    if isinstance(model, _Optimized):
        calls: _Calls = model._pysim
        by_pytorch = Decision(type(calls.model).__name__, "", "torch", calls.refusal) if calls.refusal else None
        return Report([*([calls.saved] if calls.saved else []), *calls.graphs], by_pytorch, calls.first_calls)
    compiled = getattr(model, "_orig_mod", None)
    disabled = Decision(type(compiled or model).__name__, "", "torch", _DISABLED) if is_disabled() else None
    if disabled and compiled is None and isinstance(model, torch.nn.Module):
        return Report([], disabled)
    if compiled is None or not isinstance(compiled, torch.nn.Module):
        raise OperandError(
            f'the report is of what pysim.torch.optimize or torch.compile(model, backend="pysim") returned, not of a {type(model).__name__}'
        )
    own = {id(one) for one in (*compiled.parameters(), *compiled.buffers())}
    graphs = [graph for graph in _GRAPHS if not own.isdisjoint(graph.parameter_ids)]
    return Report(graphs, None if graphs else disabled)


def save(model: torch.nn.Module, path: str | Path, /, *args: Any, **kwargs: Any) -> None:
    """Writes what calls with arguments of this kind need, so that another process neither captures nor plans: `pysim.torch.load`. For
    models on a CPU whose call is one network, and on a GPU whose call is one graph that PyTorch's compiler has not compiled
    (`compiler=False` leaves it out); OperandError says why another cannot be kept. It calls the model.

    The file tells the model's classes, attributes and code. On a CPU it holds digests of the weights beside the network with its prepared
    weights, and is for the machine, the number of threads, the versions and the build of the native library that wrote it. On a GPU it
    holds the graph's operators and the layers' plans, and is for the GPU, the settings and the versions. Nothing in it is executed."""
    place = path_to_save(path)
    chosen = model._pysim.options if isinstance(model, _Optimized) else Options()
    own = optimize(model._pysim.model if isinstance(model, _Optimized) else model, *chosen)  # captured for these sizes alone
    if not isinstance(own, _Optimized):
        raise OperandError(f"a call of the model cannot be kept in a file: {_DISABLED}")
    calls: _Calls = own._pysim
    calls.in_one_graph = True  # what runs between graphs is not seen
    with torch.no_grad():
        own(*args, **kwargs)
    if calls.refusal or model.training:
        raise refused(calls.refusal or "the model is training")
    if not calls.graphs:
        raise refused("it was not captured")
    (graph,) = calls.graphs
    if graph.untold:
        raise refused(graph.untold)
    if graph.program is not None:
        save_program(calls.model, own, graph, chosen._asdict(), place, (args, kwargs))
    else:
        save_network(calls.model, own, graph, place, (args, kwargs))


def load(path: str | Path, model: torch.nn.Module) -> torch.nn.Module:
    """`optimize(model)` whose calls of the kind that `save` wrote need neither capture nor plans. OperandError if the model is not the one
    that was saved, by its classes, their code, its attributes or, on a CPU, its weights; ProblemError for a file that is damaged, or of
    another machine, version or number of threads. On a GPU weights may be others, and may change.

    A change of the model afterwards is seen as by `optimize`: then calls are captured as ever. That includes global variables of the user's
    modules that the code names, but not those of packages that have a version."""
    if isinstance(model, _Optimized):
        model = model._pysim.model
    place = path_of(path)
    if is_disabled():
        return optimize(model)
    saved: SavedCall = SavedProgram(place) if is_program(place) else SavedNetwork(place)
    optimized = optimize(model, **saved.options)
    cast("Any", optimized)._pysim.saved = saved.of(model)
    return optimized


def refresh() -> None:
    """Everything that was computed from parameters is computed again in the next calls: after writes to a part of a large tensor through
    `.data`, NumPy or DLPack views or the like, which on a CPU may be found only some calls later, and on a GPU not at all."""
    forget_all()


# Graphs

_GRAPHS: WeakSet[Graph] = WeakSet()  # those of torch.compile


def _pytorchs(module: fx.GraphModule, reason: str) -> Graph:
    """The graph as PyTorch runs it."""
    LOG.info("a graph runs by PyTorch: %s", reason)
    return Graph(module, module.forward, [], (), reason)


def _compiled(module: fx.GraphModule, inputs: Sequence[Any], options: Options) -> Graph:
    count_trainings(module)
    tensors = [one for one in inputs if isinstance(one, torch.Tensor)]
    if torch.is_grad_enabled() and any(one.requires_grad for one in tensors):
        return _pytorchs(module, "gradients flow through it")
    if strange := [one for one in tensors if not is_plain(one)]:
        of = strange[0]
        graph = _pytorchs(module, f"a tensor is a {type(of).__name__}, {of.layout}, on {of.device.type}: PyTorch's alone")
        graph.strange = True
        return graph
    effects = effects_of(module.graph)
    if effects.turns_gradients_on:
        return _pytorchs(module, "it turns gradients on")
    if effects.draws_in_order:
        return _pytorchs(module, "it draws random numbers in the order of a value's memory")
    static = _parameters_of(module, inputs)
    if not _any_on_gpu(tensors):
        on_cpu = rewrite_on_cpu(module, inputs, static, options.accuracy)
        return Graph(module, on_cpu.call, [on_cpu.found], on_cpu.parameters)
    if options.accuracy == "reproducible":
        check_operators(module)
    how, compiled, why = (options.accuracy, bool(options.cuda_graph)), None, ""
    if options.measure and options.compiler is None:
        compiled = measured_graph(module, inputs, *how, options.measure)
    elif options.compiler is not False:
        compiled, why = by_compiler(module, inputs, *how, options.compiler, options.runs)
    made = compiled or rewrite(module, *how)
    if options.accuracy == "reproducible":
        check_layers(module)
    call = graphed(made, static, options.cuda_graph)
    graph = Graph(module, call, made.layers, made.parameters)
    if isinstance(made, Rewritten):
        graph.program = Program(made, static)
    else:
        graph.untold = "PyTorch's compiler has compiled it; with compiler=False it can be kept"
    graph.between = f"{'compiled by Inductor' if compiled else ONE_BY_ONE}: {why}" if why else ""
    graph.means = [inputs[at] for at in made.means if inputs[at].is_cuda]
    return graph


def _parameters_of(module: fx.GraphModule, inputs: Sequence[Any]) -> list[int]:
    """The positions of the parameters and buffers among a graph's inputs. An argument of a call is none, also if it is a Parameter: it may
    be written to between calls, in any way."""
    sources = [getattr(node.meta.get("grapharg"), "source", None) for node in module.graph.find_nodes(op="placeholder")]
    arguments = [getattr(one, "guard_source", None) is GuardSource.LOCAL for one in sources]
    kinds = [isinstance(one, torch.nn.Parameter) or hasattr(one, "_dynamo_static_input_type") for one in inputs]
    return [at for at, one in enumerate(kinds) if one and not arguments[at]]


_DISABLED = "PYSIM_DISABLE is set"


@once
def _say_disabled() -> str:
    LOG.warning("%s: pysim.torch.optimize and the backend leave models to PyTorch", _DISABLED)
    return _DISABLED


def _any_on_gpu(tensors: Sequence[Any]) -> bool:
    return any(one.is_cuda for one in tensors)


# Optimized models


class _Calls:
    """The calls of a model through torch.compile."""

    def __init__(self, model: torch.nn.Module, options: Options) -> None:
        self.model, self.options = model, options
        self.graphs: list[Graph] = []
        self.first_calls: list[FirstCall] = []
        self._choosing = 0.0  # seconds, in the call under way
        self.refusal = ""  # why all calls run by PyTorch
        self.saved: SavedCall | None = None  # what calls of one kind need no capture for
        self.in_one_graph = False  # calls that are more than one captured graph run by PyTorch
        self._unguarded = Unguarded()
        self._failed: list[str] = []  # why frames of a call that has begun went on by PyTorch
        self._compiled: Callable[..., Any] | None = None  # made by the first call that needs it: PyTorch's compiler takes seconds to import

    def _compile(self) -> Callable[..., Any]:
        self._failed, self._unguarded = [], Unguarded()
        return captured_calls(self.model, self._capture, self, self._failed.append, self._guarded, self.whole or self.in_one_graph)

    @property
    def whole(self) -> bool:
        """Whether PyTorch may run no part of a call by itself."""
        return self.options.accuracy == "reproducible"

    def _capture(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Graph:
        self._unguarded.note_graph(module.graph, self.model.modules())
        start = perf_counter()
        graph = _compiled(module, inputs, self.options)
        self._choosing += perf_counter() - start
        if graph.strange or (graph.reason and self.whole):
            raise OperandError(graph.reason)  # even its results may be of another type than a graph's
        self.graphs.append(graph)
        graph.touched = [one for of in self.model.modules() for one in (*of._parameters.values(), *of._buffers.values())]
        return graph

    def _guarded(self, guards: Any) -> None:
        self._unguarded.note_guards(guards, [*self.model.modules()])  # they and their hooks may be others than before

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        start = perf_counter()
        if self.saved is not None and (found := self.saved(args, kwargs)) is not None:
            self.first_calls = self.first_calls or [FirstCall(perf_counter() - start, 0.0)]
            return found[0]
        if self._compiled is None or self._unguarded.changed():
            self._compiled, self.graphs, self.first_calls = self._compile(), [], []
        known, self._choosing = len(self.graphs), 0.0
        try:
            y = self._compiled(*args, **kwargs)
        except NotCapturedError as error:
            if error.by is not self:
                raise
            self._failed.append(str(error))
            if self.whole:
                self._compiled, self._failed = None, []
                raise OperandError(f"{ONE_GRAPH}{error}") from None
        except BaseException:  # of the model's own, perhaps after captures that failed
            self._failed.clear()
            free_references((*self.model.parameters(), *self.model.buffers()))
            raise
        else:
            if len(self.graphs) > known:
                self.first_calls.append(FirstCall(perf_counter() - start, self._choosing))
            return self._refused(y) if self._failed else y
        gc.collect()
        try:
            y = self.model(*args, **kwargs)
        except BaseException:  # what PyTorch raises: the call is wrong, and others need not be
            self._failed.clear()
            raise
        return self._refused(y)

    def _refused(self, y: Any) -> Any:
        """`y`, after which calls run by PyTorch."""
        for reason in self._failed[:1]:
            LOG.info("%s runs by PyTorch: %s", type(self.model).__name__, reason)
            self.refusal = reason
        free_references((*self.model.parameters(), *self.model.buffers()))
        return y

    def may_run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether this call is in inference, not traced, on plain tensors, and by PyTorch's own functions: others in their place are not
        seen by its compiler."""
        if self.refusal or self.model.training or is_traced() or torch._C._len_torch_dispatch_stack() or _has_global_hooks():
            return False
        if not FUNCTIONS.are_pytorchs():
            return False
        given = _leaves((*args, *kwargs.values()))
        if not all(is_plain(one) for one in given if isinstance(one, torch.Tensor)) or any(isinstance(one, fx.Proxy) for one in given):
            return False
        if any(isinstance(one, np.ndarray) for one in given):  # which a capture takes for tensors
            return False
        if any(type(one) is float and one == 0.0 and copysign(1.0, one) < 0.0 for one in given):  # which guards take for 0.0
            return False
        if not torch.is_grad_enabled():
            return True
        return not any(one.requires_grad for one in (*given, *self.model.parameters()) if isinstance(one, torch.Tensor))


def _has_global_hooks() -> bool:
    return bool(torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks)


def _leaves(values: Sequence[Any]) -> list[Any]:
    """The values in tuples, lists and dictionaries."""
    found: list[Any] = []
    for one in values:
        if isinstance(one, tuple | list):
            found += _leaves(one)
        elif isinstance(one, dict):
            found += _leaves([*one.values()])
        else:
            found.append(one)
    return found


class _Optimized(torch.nn.Module):  # type: ignore[misc]  # PyTorch need not be here
    """Mixed in before a model's own class, whose `forward` is unchanged: it is what training, gradients, tracing and export use."""

    __slots__ = ()
    _pysim: _Calls

    def __init_subclass__(cls) -> None:
        """Runs no `__init_subclass__` of the model's own: no subclass of the user's is made."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not self._pysim.may_run(args, kwargs):
            if self._pysim.whole:
                raise OperandError(f"{ONE_GRAPH}this call is training, has gradients or tensors of other kinds, or is traced")
            return self._by_pytorch(*args, **kwargs)
        return self._pysim(args, kwargs)

    def _by_pytorch(self, *args: Any, **kwargs: Any) -> Any:
        y = super().__call__(*args, **kwargs)
        if self.training and not torch.compiler.is_compiling():
            count_writes(*self.buffers())  # BatchNorm in training does not count its own
        return y

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles the model, and optimizes the copy."""
        return optimize, (self._pysim.model, *self._pysim.options)
