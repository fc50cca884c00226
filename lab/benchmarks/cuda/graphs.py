# SPDX-License-Identifier: Apache-2.0
"""Times calls of PyTorch or pysim on a GPU as CUDA graphs, so that the host's time does not count."""

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch

Call = Callable[[int], object]  # takes its number in the graph, so that calls can have different operands


def microseconds(calls: Mapping[str, Call], count: int, replays: int, stream: Any = None) -> dict[str, float]:
    """Median microseconds per call of each, from graphs of `count` calls. The graphs run interleaved, each once before it is timed.
    `stream`: on which the calls enqueue their work, if that is not PyTorch's current stream."""
    graphs = {name: _captured(call, count, stream or torch.cuda.Stream()) for name, call in calls.items()}
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(replays):
        for name, graph in graphs.items():
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            graph.replay()
            first.record()
            graph.replay()
            last.record()
            last.synchronize()
            spent[name].append(1e3 / count * first.elapsed_time(last))
    return {name: statistics.median(times) for name, times in spent.items()}


def _captured(call: Call, count: int, side: Any) -> Any:
    with torch.cuda.stream(side):  # work that only a first call does is not captured
        call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for at in range(count):
            call(at)
    return graph
