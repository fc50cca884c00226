# SPDX-License-Identifier: Apache-2.0
"""Calls of a module on a GPU as CUDA graphs: captured once, then replayed without host code between the operators.

    first call of a kind        runs as it is
    second call                 runs as it is on another stream, which fills all caches, and is captured
    later calls                 copy their inputs to those of the captured call, replay the graph, and copy the results

Calls are of one kind if their inputs have the same layouts and they use the same stream and settings. A graph reads parameters, buffers and
what was computed from them at fixed addresses, so a call is captured again after one of them was replaced or written to. Calls that cannot
be captured, for example because they wait for their own results, run as they are. A model with Python code that a graph cannot hold is
several graphs, each of which is captured by itself (`pysim.torch`).
"""

import threading
from collections.abc import Callable, Collection
from operator import is_
from typing import Any, NamedTuple

import torch

from pysim.models.torch_precision import settings
from pysim.models.torch_state import TensorVersions, versions_of
from pysim.once import LruCache
from pysim.runtime.cuda_call import forget_workspaces

_CACHE_SIZE = 8  # kinds of calls whose graphs are kept: each graph has its own memory
_WARM_UPS = 3  # calls before the capture: chains of layers keep their launches after the second

_forget_cublas = getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)

Call = Callable[[], Any]


class _CapturedCall(NamedTuple):
    """A graph, its input and result tensors, and the parameters and buffers at the capture; None in place of an input that is one."""

    replay: Call
    inputs: list[Any]
    results: Any
    parameters: list[Any]
    versions: TensorVersions

    def reads(self, parameters: list[Any]) -> bool:
        """Whether these are the parameters that the graph reads, unchanged since the capture."""
        return all(map(is_, parameters, self.parameters)) and self.versions.unchanged()


class GraphedCalls:
    """`call(*arguments)` by graphs. `parameters`: the positions of the arguments that are parameters or buffers, which are read where they
    are; all other tensors are copied."""

    def __init__(self, call: Callable[..., Any], parameters: Collection[int]) -> None:
        self._call, self._parameters = call, frozenset(parameters)
        self._calls: LruCache[_CapturedCall | str] = LruCache(_CACHE_SIZE)  # "warm": called once; "refused": cannot be captured
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any) -> Any:
        inputs = [None if at in self._parameters else one for at, one in enumerate(arguments)]
        parameters = [one for at, one in enumerate(arguments) if at in self._parameters]
        key = _kind(inputs, parameters)
        if key is None:
            return self._call(*arguments)
        with self._lock:  # no other call's copies come between these copies and the graph
            entry = self._calls.get(key)
            if isinstance(entry, _CapturedCall) and not entry.reads(parameters):
                entry = "warm"
            if entry == "warm":
                entry = self._calls.put(key, self._capture(arguments, parameters))
            if isinstance(entry, _CapturedCall):
                return _replayed(entry, inputs)
            self._calls.put(key, entry or "warm")
        return self._call(*arguments)

    def _capture(self, arguments: tuple[Any, ...], parameters: list[Any]) -> _CapturedCall | str:
        versions = versions_of(parameters)
        if versions is None:  # writes to an inference tensor are not counted
            return "refused"
        given = [
            one.clone(memory_format=torch.preserve_format) if isinstance(one, torch.Tensor) and at not in self._parameters else one
            for at, one in enumerate(arguments)
        ]
        try:
            replay, results = captured(lambda: self._call(*given))
        except RuntimeError:  # of CUDA: something in the call cannot be captured, or there is no memory for it
            return "refused"
        finally:
            forget_workspaces()  # those of the warm-up stream and of earlier calls: a graph has its own
        return _CapturedCall(
            replay, [None if at in self._parameters else one for at, one in enumerate(given)], results, parameters, versions
        )


def captured(call: Call) -> tuple[Call, Any]:
    """The replay of a CUDA graph of this call, and the results that it writes.

    cuBLAS keeps a workspace for each stream. Those are freed before the capture, so that the graph's is in the graph's memory, and after
    it, or each captured call would leave 32 MiB for two streams. Autocast's cache of cast weights is disabled: its entries are freed when
    autocast ends, while the graph still reads them."""
    caches = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        return _warm_up_and_capture(call)
    finally:
        torch.set_autocast_cache_enabled(caches)


def _warm_up_and_capture(call: Call) -> tuple[Call, Any]:
    side, current = torch.cuda.Stream(), torch.cuda.current_stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        for _ in range(_WARM_UPS):
            call()
    current.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    _forget_cublas()
    with torch.cuda.graph(graph):
        results = call()
    _forget_cublas()
    return graph.replay, results


def _kind(inputs: list[Any], parameters: list[Any]) -> Any:
    """The key of a call's kind; None for a call that is not captured."""
    tensors = [one for one in (*inputs, *parameters) if isinstance(one, torch.Tensor)]
    plain = all(type(one) in (torch.Tensor, torch.nn.Parameter) and _on_gpu(one) for one in tensors)
    if not tensors or not plain or len({one.device for one in tensors}) > 1 or _busy():
        return None
    layouts = tuple((one.shape, one.stride(), one.dtype, one.device) if isinstance(one, torch.Tensor) else one for one in inputs)
    return layouts, _stream(tensors[0]), settings(), torch.is_inference_mode_enabled(), id(parameters[0]) if parameters else None


def _busy() -> bool:
    """Whether the caller captures or traces this call."""
    return bool(torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing())


def _on_gpu(x: Any) -> bool:
    return bool(x.is_cuda)


def _stream(x: Any) -> int:
    return int(torch.cuda.current_stream(x.device).cuda_stream)


def _replayed(captured: _CapturedCall, inputs: list[Any]) -> Any:
    for to, one in zip(captured.inputs, inputs, strict=True):
        if isinstance(one, torch.Tensor):
            to.copy_(one)
    captured.replay()
    return tuple(one.clone() if isinstance(one, torch.Tensor) else one for one in captured.results)
