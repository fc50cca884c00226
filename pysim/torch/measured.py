# SPDX-License-Identifier: Apache-2.0
"""A graph on a GPU that can run in several ways, of which its first call measures the fastest.

    alone      pysim's layers, PyTorch's operators one by one between them
    expected   the compiler around the layers whose plans are expected to win
    doubtful   the same and those that are expected to lose by at most 10 %
    compiler   the compiler alone

Ways run in turn, so that another program or a warmer chip slows all of them down; medians decide. The choice is kept in the user's cache
for the graph, its inputs, the GPU and the versions of PyTorch and pysim, and the next process makes that way alone.
"""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import fx

from pysim.calibration.detection_cache import remember
from pysim.logs import LOG
from pysim.runtime.foreign import user_cache
from pysim.torch.capture.compiled import Compiled, ways_of
from pysim.torch.capture.effects import effects_of
from pysim.torch.capture.rewriting import returned
from pysim.torch.cuda_graph import captured
from pysim.torch.precision import ModelAccuracy, settings

_WARM_UPS, _LEAST_ROUNDS, _MOST_ROUNDS = 3, 3, 50


class MeasuredCalls:
    """`call(*inputs)` by the fastest way. `layers`: those of the way that was chosen, empty before the first call."""

    def __init__(self, ways: dict[str, Compiled], seconds: float, in_cuda_graph: bool, kept: Path | None) -> None:
        self._ways, self._seconds, self._in_cuda_graph, self._kept = ways, seconds, in_cuda_graph, kept
        self.layers: list[Any] = []
        self._call: Callable[..., Any] | None = None
        self._lock = threading.Lock()

    def __call__(self, *inputs: Any) -> Any:
        if self._call is None:
            with self._lock:
                if self._call is None and not self._choose(inputs):
                    return next(iter(self._ways.values())).call(*inputs)  # captured by the caller: nothing can be timed
        assert self._call is not None
        return self._call(*inputs)

    def _choose(self, inputs: Sequence[Any]) -> bool:
        if _on_device() and torch.cuda.is_current_stream_capturing():
            return False
        calls = {name: partial(way.call, *inputs) for name, way in self._ways.items()}
        times = measured(calls, self._seconds, self._in_cuda_graph) if len(calls) > 1 else dict.fromkeys(calls, 0.0)
        best = min(times, key=times.__getitem__)
        if len(calls) > 1:
            LOG.info("of the ways to run a graph %s is the fastest: %s", best, {name: f"{1e3 * one:.3f} ms" for name, one in times.items()})
            if self._kept is not None:
                remember(self._kept, best)
        self.layers[:] = self._ways[best].layers
        self._call, self._ways = self._ways[best].call, {best: self._ways[best]}
        return True


def measured_graph(
    module: fx.GraphModule, inputs: Sequence[Any], accuracy: ModelAccuracy, in_cuda_graph: bool, seconds: float
) -> Compiled | None:
    """The graph in the way that its first call measures; None for one whose calls cannot be repeated without a trace. `module` itself is
    left as it is."""
    effects = effects_of(module.graph)
    if effects.writes_inputs or effects.draws_numbers or effects.returns_inputs(returned(module.graph)):
        return None
    kept = _place_of(module, inputs, accuracy, in_cuda_graph)
    ways = ways_of(module, inputs, accuracy, in_cuda_graph, _recalled(kept))
    calls = MeasuredCalls(ways, seconds, in_cuda_graph, kept)
    parameters = {at for way in ways.values() for at in way.parameters}
    means = {at for way in ways.values() for at in way.means}
    return Compiled(calls, calls.layers, sorted(parameters), sorted(means), True)


def measured(calls: Mapping[str, Callable[[], Any]], seconds: float, in_cuda_graph: bool) -> dict[str, float]:
    """Median seconds of each call, in turn, until this time is over; in a CUDA graph of its own, if it will be in one. Without those that
    fail, unless all do."""
    ready: dict[str, Callable[[], Any]] = {}
    for at, (name, call) in enumerate(calls.items(), 1):
        try:
            for _ in range(_WARM_UPS):
                call()
            ready[name] = captured(call)[0].replay if in_cuda_graph and _on_device() else call
        except Exception as error:
            if at == len(calls) and not ready:
                raise
            LOG.info("the way %s to run a graph fails: %s", name, error)
    spent = {name: list[float]() for name in ready}
    end = time.perf_counter() + seconds
    for turn in range(_MOST_ROUNDS):
        if turn >= _LEAST_ROUNDS and time.perf_counter() > end:
            break
        for name, call in ready.items():
            _synchronize()
            start = time.perf_counter()
            call()
            _synchronize()
            spent[name].append(time.perf_counter() - start)
    return {name: median(times) for name, times in spent.items()}


def _place_of(module: fx.GraphModule, inputs: Sequence[Any], *how: Any) -> Path | None:
    """Where the choice for a graph and inputs of this kind is kept; None where nothing can be."""
    folder = user_cache()
    if folder is None:
        return None
    kinds = [(tuple(one.shape), one.stride(), str(one.dtype)) if isinstance(one, torch.Tensor) else repr(one) for one in inputs]
    device = torch.cuda.get_device_name() if _on_device() else "none"
    key = json.dumps([module.code, kinds, device, torch.__version__, _version(), list(map(repr, (*how, settings())))])
    return folder / "ways" / hashlib.sha256(key.encode()).hexdigest()[:32]


def _version() -> str:
    return str(import_module("pysim").__version__)  # at the root, which imports this module


def _recalled(kept: Path | None) -> str:
    """The way that was chosen before; "" if none was."""
    with suppress(OSError, UnicodeDecodeError):
        return "" if kept is None else kept.read_text(encoding="utf-8")
    return ""


def _on_device() -> bool:
    return bool(torch.cuda.is_available())


def _synchronize() -> None:
    if _on_device():
        torch.cuda.synchronize()
