# SPDX-License-Identifier: Apache-2.0
"""A module's calls on a GPU as CUDA graphs: what a call launches is recorded once, and nothing of Python runs between its operators.

    first call of a kind        as it is
    second                      as it is again, on another stream, which makes what is made once, and then recorded
    later                       inputs are copied to where the recorded call read its own, the graph runs, and results are copied

Calls are of one kind whose inputs lie alike, on one stream, under the same settings. A recorded call reads parameters and buffers where
they lay and what was made of them: where one of them is another tensor since, or was written to, it is recorded anew. What cannot be
recorded (a call that waits for its own results, say) runs as it is.
"""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree

from pysim.models.torch_precision import settings
from pysim.models.torch_state import Owned, TensorState, home_of, state_of
from pysim.once import Recent
from pysim.runtime.cuda_call import forget_workspaces

_KEPT = 8  # kinds of calls that graphs are kept for: each has memory of its own
_WARM_UPS = 3  # calls before one is recorded: chains of layers keep their launches after the second

_forget_cublas = getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)

Call = Callable[[], Any]
_State = tuple[Owned, TensorState]


class _Recorded(NamedTuple):
    """A graph, where it reads and writes, and the tensors of the module as it found them."""

    replay: Call
    inputs: list[Any]
    results: Any
    state: _State


class GraphedCalls:
    """`module(*args, **kwargs)` by graphs; `owner` has the parameters and buffers."""

    def __init__(self, module: Any, owner: torch.nn.Module) -> None:
        self._module, self._owner = module, owner
        self._recorded: Recent[_Recorded | str] = Recent(_KEPT)  # or "warm", "refused"
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, form = _pytree.tree_flatten((args, kwargs))
        key = _kind(leaves, form)
        if key is None:
            return self._module(*args, **kwargs)
        with self._lock:  # copies and the graph go to the stream together
            found = self._recorded.get(key)
            if isinstance(found, _Recorded) and not _unchanged(found.state):
                found = "warm"
            if found == "warm":
                found = self._recorded.put(key, self._record(leaves, form))
            if isinstance(found, _Recorded):
                return _replayed(found, leaves)
            self._recorded.put(key, found or "warm")
        return self._module(*args, **kwargs)

    def _record(self, leaves: list[Any], form: Any) -> _Recorded | str:
        state = _state(self._owner)
        if state is None:
            return "refused"
        inputs = [one.clone(memory_format=torch.preserve_format) if isinstance(one, torch.Tensor) else one for one in leaves]
        given, named = _pytree.tree_unflatten(inputs, form)
        try:
            replay, results = captured(lambda: self._module(*given, **named))
        except RuntimeError:  # of CUDA: something in the call cannot be recorded, or there is no memory for it
            return "refused"
        finally:
            forget_workspaces()  # of the stream that it was warmed up on, and of calls before: a graph has memory of its own
        return _Recorded(replay, inputs, results, state)


def captured(call: Call) -> tuple[Call, Any]:
    """A CUDA graph of a call, and where it writes its results. What cuBLAS works in belongs to streams: it is let go of before, so that the
    graph's is in the graph's own memory, and behind, or each recorded call would leave 32 MiB of two streams. Weights that autocast keeps
    live until it ends: the graph casts its own."""
    caches = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        return _captured(call)
    finally:
        torch.set_autocast_cache_enabled(caches)


def _captured(call: Call) -> tuple[Call, Any]:
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


def _kind(leaves: list[Any], form: Any) -> Any:
    """What calls that are recorded once have in common; None for calls that are not recorded."""
    tensors = [one for one in leaves if isinstance(one, torch.Tensor)]
    plain = all(type(one) is torch.Tensor and _on_gpu(one) for one in tensors)
    if not tensors or not plain or len({one.device for one in tensors}) > 1 or _busy():
        return None
    lies = tuple((one.shape, one.stride(), one.dtype, one.device) if isinstance(one, torch.Tensor) else one for one in leaves)
    return str(form), lies, _stream(tensors[0]), settings(), torch.is_inference_mode_enabled()


def _busy() -> bool:
    """Whether a call is recorded or traced by somebody else."""
    return bool(torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing())


def _on_gpu(x: Any) -> bool:
    return bool(x.is_cuda)


def _stream(x: Any) -> int:
    return int(torch.cuda.current_stream(x.device).cuda_stream)


def _state(owner: torch.nn.Module) -> _State | None:
    """All parameters and buffers: where modules keep them, where they lie and how often they were written to; None: that is not counted."""
    owned = []
    for module in owner.modules():
        for name in (*module._parameters, *module._buffers):
            home: Any = home_of(module, name)
            if home[name] is not None:
                owned.append((home, name, home[name]))
    state = state_of(one for _, _, one in owned)
    return (Owned(owned), state) if state else None


def _unchanged(state: _State) -> bool:
    owned, tensors = state
    return owned.hold() and tensors.holds()


def _replayed(recorded: _Recorded, leaves: list[Any]) -> Any:
    for to, one in zip(recorded.inputs, leaves, strict=True):
        if isinstance(one, torch.Tensor):
            to.copy_(one)
    recorded.replay()
    return _pytree.tree_map(lambda one: one.clone() if isinstance(one, torch.Tensor) else one, recorded.results)
