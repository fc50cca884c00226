# SPDX-License-Identifier: Apache-2.0
"""Calls of a module on a GPU as CUDA graphs: captured once, then replayed without host code between the operators.

    first call of a kind        runs as it is
    second call                 runs as it is, which fills all caches, and is captured
    later calls                 copy their inputs to those of the captured call, replay the graph, and copy the results

Calls are of one kind if their inputs have the same layouts and they use the same stream and settings. A graph reads parameters, buffers and
what was computed from them at fixed addresses, so a call is captured again after one of them was replaced or written to. Calls that cannot
be captured, for example because they wait for their own results, run as they are. A model with Python code that a graph cannot hold is
several graphs, each of which is captured by itself (`pysim.torch`).

Each graph has a stream of its own for its captures. PyTorch keeps cuBLAS's workspace for each stream until somebody frees all of them
(torch.compile's "reduce-overhead" does) or, since PyTorch 2.12, until a graph that was captured on the stream is freed. Graphs captured on
one stream share the workspace, in the memory of the first; a graph that outlives it would read memory that is no longer mapped
(https://github.com/pytorch/pytorch/issues/193402). On a stream that no other graph uses, the workspace lies in the memory of the graph
that reads it, whoever frees it; a later capture of the same call uses the same stream and the same memory.
"""

import ctypes
import threading
from collections.abc import Callable, Collection
from operator import is_
from typing import Any, NamedTuple

import torch

from pysim.caches import LruCache
from pysim.runtime.cuda_call import forget_workspaces
from pysim.torch.parameters import TensorVersions, versions_of
from pysim.torch.precision import settings

_CACHE_SIZE = 8  # kinds of calls whose graphs are kept: each graph has its own memory
_WARM_UPS = 3  # calls before the capture: chains of layers keep their launches after the second

Call = Callable[[], Any]


class CapturedGraph(NamedTuple):
    """A CUDA graph and the stream of its captures."""

    graph: Any
    stream: Any

    def replay(self) -> None:
        self.graph.replay()


class _CapturedCall(NamedTuple):
    """A graph, its input and result tensors, and the parameters and buffers at the capture; None in place of an input that is one."""

    graph: CapturedGraph
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
            entry, earlier = self._calls.get(key), None
            if isinstance(entry, _CapturedCall) and not entry.reads(parameters):
                earlier = entry.graph
                entry = self._calls.put(key, "warm")  # its inputs and results are freed, so that the capture can use their memory
            if entry == "warm":
                entry = self._calls.put(key, self._capture(arguments, parameters, earlier))
            if isinstance(entry, _CapturedCall):
                return _replayed(entry, inputs)
            self._calls.put(key, entry or "warm")
        return self._call(*arguments)

    def _capture(self, arguments: tuple[Any, ...], parameters: list[Any], earlier: CapturedGraph | None) -> _CapturedCall | str:
        versions = versions_of(parameters)
        if versions is None:  # writes to an inference tensor are not counted
            return "refused"
        given = [
            one.clone(memory_format=torch.preserve_format) if isinstance(one, torch.Tensor) and at not in self._parameters else one
            for at, one in enumerate(arguments)
        ]
        try:
            graph, results = captured(lambda: self._call(*given), earlier, _device(arguments))
        except RuntimeError:  # of CUDA: something in the call cannot be captured, or there is no memory for it
            return "refused"
        finally:
            forget_workspaces()  # those of earlier calls and of the capture: only the graph may write to its own
        return _CapturedCall(
            graph, [None if at in self._parameters else one for at, one in enumerate(given)], results, parameters, versions
        )


def captured(call: Call, earlier: CapturedGraph | None = None, device: Any = None) -> tuple[CapturedGraph, Any]:
    """A CUDA graph of this call on that device (None: the current one), and the results that it writes. `earlier`: a graph that is not
    replayed any more, whose stream and memory this one takes over.

    Autocast's cache of cast weights is disabled: its entries are freed when autocast ends, while the graph still reads them. Only what this
    thread does can spoil a capture: other threads may allocate meanwhile."""
    caches = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        return _warm_up_and_capture(call, earlier, device)
    finally:
        torch.set_autocast_cache_enabled(caches)


def _warm_up_and_capture(call: Call, earlier: CapturedGraph | None, device: Any) -> tuple[CapturedGraph, Any]:
    with torch.cuda.device(device):
        for _ in range(_WARM_UPS):
            call()
        graph, stream = torch.cuda.CUDAGraph(), earlier.stream if earlier else _new_stream()
        pool = earlier.graph.pool() if earlier else None
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            results = call()
    return CapturedGraph(graph, stream), results


def _new_stream() -> Any:
    """A stream that no one else has and that does not wait for the default stream. `torch.cuda.Stream` hands out the same 32 again and
    again. It is never destroyed: another stream could get its address, and with it, its workspace of cuBLAS."""
    torch.cuda.current_stream().synchronize()  # makes PyTorch's context this thread's
    made, non_blocking = ctypes.c_void_p(), 1
    status = ctypes.CDLL("libcuda.so.1").cuStreamCreate(ctypes.byref(made), non_blocking)
    if status or made.value is None:
        raise RuntimeError(f"The CUDA driver made no stream for a capture (CUresult {status})")
    return torch.cuda.ExternalStream(made.value)


def _kind(inputs: list[Any], parameters: list[Any]) -> Any:
    """The key of a call's kind; None for a call that is not captured."""
    tensors = [one for one in (*inputs, *parameters) if isinstance(one, torch.Tensor)]
    plain = all(type(one) in (torch.Tensor, torch.nn.Parameter) and _on_gpu(one) for one in tensors)
    if not tensors or not plain or len({one.device for one in tensors}) > 1 or _busy():
        return None
    layouts = tuple((one.shape, one.stride(), one.dtype, one.device) if isinstance(one, torch.Tensor) else one for one in inputs)
    return layouts, _stream(tensors[0]), settings(), torch.is_inference_mode_enabled(), id(parameters[0]) if parameters else None


def _device(arguments: tuple[Any, ...]) -> Any:
    return next(one.device for one in arguments if isinstance(one, torch.Tensor))


def _busy() -> bool:
    """Whether the caller captures or traces this call."""
    return bool(torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing())


def _on_gpu(x: Any) -> bool:
    return bool(x.is_cuda)


def _stream(x: Any) -> int:
    return int(torch.cuda.current_stream(x.device).cuda_stream)


def _replayed(call: _CapturedCall, inputs: list[Any]) -> Any:
    for to, one in zip(call.inputs, inputs, strict=True):
        if isinstance(one, torch.Tensor):
            to.copy_(one)
    call.graph.replay()
    copies: dict[int, Any] = {}
    return tuple(_copy(one, copies) if isinstance(one, torch.Tensor) else one for one in call.results)


def _copy(result: Any, copies: dict[int, Any]) -> Any:
    """A result of the caller's own. Results that share memory share that of the copy; views keep their strides."""
    storage = result.untyped_storage()
    address = storage.data_ptr()
    if address not in copies:
        if result.numel() * result.element_size() == storage.nbytes():  # dense
            copied = result.clone()
            copies[address] = copied.untyped_storage()
            return copied
        copies[address] = storage.clone()
    return torch.empty(0, dtype=result.dtype, device=result.device).set_(
        copies[address], result.storage_offset(), result.shape, result.stride()
    )
