# SPDX-License-Identifier: Apache-2.0
"""A captured graph as torch.compile, or a file that keeps it, calls it: its parameters are looked at, then its layers run."""

import gc
from collections.abc import Callable, Collection, Sequence
from operator import itemgetter
from typing import Any, Literal, NamedTuple, Protocol
from weakref import getweakrefcount

import torch
from torch import fx

from pysim.caches import LruCache
from pysim.torch.capture.rewriting import Rewritten
from pysim.torch.cuda_graph import GraphedCalls
from pysim.torch.fingerprints import WatchedTensors
from pysim.torch.parameters import EPOCH, TrainedNorms, is_traced

CudaGraph = bool | Literal["caller"]
_CACHE_SIZE = 32  # models of one structure that share a graph


class Program(NamedTuple):
    """A graph on a GPU whose layers are modules and whose other operators are PyTorch's. `parameters`: the positions of the inputs that are
    parameters or buffers of the model."""

    rewritten: Rewritten
    parameters: Collection[int]


class _Made(Protocol):
    """`repeatable`: as `Rewritten` has it."""

    @property
    def call(self) -> Callable[..., Any]: ...
    @property
    def parameters(self) -> list[int]: ...
    @property
    def repeatable(self) -> bool: ...


def graphed(made: _Made, static: Collection[int], cuda_graph: CudaGraph) -> Callable[..., Any]:
    """The calls of a graph, as CUDA graphs if that is asked for. `static`: the positions of the inputs that are parameters or buffers."""
    return GraphedCalls(made.call, {*made.parameters, *static}) if cuda_graph is True and made.repeatable else made.call


class Graph:
    """`module`: what was captured; None if it comes from a file. `reason`: why it is PyTorch's as a whole."""

    def __init__(
        self, module: fx.GraphModule | None, call: Callable[..., Any], layers: Sequence[Any], parameters: Sequence[int], reason: str = ""
    ) -> None:
        self._call, self.layers, self.reason = call, layers, reason
        self._pick = itemgetter(*parameters, *parameters[:1]) if parameters else None  # the first one twice: a tuple even of one parameter
        self.strange = False  # an input is no plain tensor
        self.between = ""  # how PyTorch's operators between the layers run on a GPU, if there is something to say
        self.touched: list[Any] = []  # the tensors that the capture marked
        self.means: list[Any] = []  # running means on a GPU; their modules tell that they were trained
        self.trained_norms: TrainedNorms | None = None
        self._watched: LruCache[WatchedTensors] = LruCache(_CACHE_SIZE)
        self.program: Program | None = None  # what a file may keep of it on a GPU
        self.untold = ""  # why no file keeps it
        self._captured = module

    @property
    def parameter_ids(self) -> set[int]:
        return {id(one) for watched in self._watched.values() for one in watched.tensors}

    def __call__(self, *inputs: Any) -> Any:
        if self._captured is not None:
            _forget_capture(self._captured, (*inputs, *self.touched))
            self._captured, self.touched = None, []
        if self.means:
            self.trained_norms, self.means = TrainedNorms.holding(self.means), []
        if self.trained_norms is not None:
            self.trained_norms.look()
        if self._pick is None:
            return self._call(*inputs)
        parameters = self._pick(inputs)
        first = id(parameters[0])
        watched = self._watched.get(first)
        epoch = watched.look(parameters) if watched is not None else None
        if epoch is None:
            for other in self._watched.values():  # the first parameter may be another one than before, and the rest the same
                other.count_changes()
            epoch = self._watched.put(first, WatchedTensors(parameters, watched)).look(parameters)
        EPOCH.now = None if is_traced() else epoch or None
        try:
            return self._call(*inputs)
        finally:
            EPOCH.now = None


def _forget_capture(module: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Frees what the capture left: its fake tensors, their weak references to the model's tensors, and marks on these. A capture that began
    again after a break of the graph left some to the garbage collector."""
    for node in module.graph.nodes:
        mode = getattr(node.meta.pop("example_value", None), "fake_mode", None)
        converter = getattr(getattr(mode, "fake_tensor_converter", None), "meta_converter", None)
        for memo in (getattr(converter, "tensor_memo", None), getattr(getattr(converter, "describer", None), "lookup_tensor", None)):
            if memo:
                memo.clear()
    tensors = [one for one in inputs if isinstance(one, torch.Tensor)]
    for one in tensors:
        one.__dict__.pop("_dynamo_static_input_type", None)
    free_references(tensors)


def free_references(tensors: Sequence[torch.Tensor]) -> None:
    """Frees the weak references that captures left to the garbage collector: PyTorch swaps only tensors that have none."""
    if any(map(getweakrefcount, tensors)):
        gc.collect()
