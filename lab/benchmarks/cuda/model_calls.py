# SPDX-License-Identifier: Apache-2.0
"""Measures the overhead of calls of whole FP32 networks of torchvision on a GPU, TF32 off: host time and memory.

    python lab/benchmarks/cuda/model_calls.py -o FILE [--seconds 70] [MODEL:BATCH ...]

Candidates: PyTorch eager and in a CUDA graph, `pysim.torch.optimize`, and the same with `cuda_graph=True`. Host time: until a call on an
idle device returns; `python_us` is this package's share of it in chains of layers, without native calls and PyTorch's operators.
Milliseconds: between two events around a call. Medians of 20, interleaved. Memory: the peak allocated in a call, including weights and
input, and what calls leave allocated. One JSON line per model; `native`: its native layers without and with a graph.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torchvision

import pysim.torch
from pysim.runtime.cuda_call import forget_workspaces
from pysim.runtime.cuda_steps import LaunchSteps
from pysim.torch.cuda_graph import captured
from pysim.torch.layers.layer_chain import LayerChain

MODELS = (
    "efficientnet_b0:1 densenet121:1 resnet50:1 mobilenet_v2:1 mobilenet_v3_large:1 convnext_tiny:1 "
    "efficientnet_b0:32 resnet50:32 densenet121:32 vgg16:1 googlenet:1"
)
Call = Callable[[], Any]


def network(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    how: dict[str, Any] = {"init_weights": False, "aux_logits": False} if name == "googlenet" else {}
    model = getattr(torchvision.models, name)(weights=None, **how).cuda().train()
    with torch.no_grad():
        model(torch.randn(8, 3, 224, 224, device="cuda"))
    return model.eval()


def python_seconds(call: Call) -> float:
    """Seconds of a call spent in chains, minus those in native calls."""
    inside = {LayerChain: 0.0, LaunchSteps: 0.0}
    forward, run = LayerChain.forward, LaunchSteps.run

    def clocked(kind: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        def clock(*given: Any) -> Any:
            start = time.perf_counter()
            result = function(*given)
            inside[kind] += time.perf_counter() - start
            return result

        return clock

    found = []
    with patch.object(LayerChain, "__call__", clocked(LayerChain, forward)), patch.object(LaunchSteps, "run", clocked(LaunchSteps, run)):
        for _ in range(20):
            inside.update(dict.fromkeys(inside, 0.0))
            torch.cuda.synchronize()
            call()
            found.append(inside[LayerChain] - inside[LaunchSteps])
    return statistics.median(found)


def timed(calls: dict[str, Call], rounds: int = 23) -> dict[str, dict[str, float]]:
    """Median microseconds until a call returns, and milliseconds between events around it."""
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            first.record()
            start = time.perf_counter()
            call()
            host = time.perf_counter() - start
            last.record()
            last.synchronize()
            spent[name].append((host * 1e6, first.elapsed_time(last)))
    return {
        name: dict(zip(("host_us", "ms"), map(statistics.median, zip(*all_[3:], strict=True)), strict=True)) for name, all_ in spent.items()
    }


def memory(call: Call) -> dict[str, int]:
    """Bytes allocated at the peak of a call and after it, with four calls before."""
    for _ in range(4):
        call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return {"peak": torch.cuda.max_memory_allocated(), "after": torch.cuda.memory_allocated()}


def cleared() -> int:
    """Bytes still allocated after caches and workspaces are released."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    forget_workspaces()
    torch.cuda.empty_cache()
    return int(torch.cuda.memory_allocated())


@torch.no_grad()
def measure(name: str, batch: int) -> dict[str, Any]:
    model, x = network(name), torch.randn(batch, 3, 224, 224, device="cuda")
    exact = model.double()(x.double())
    model.float()
    extra, held = cleared(), {}
    weights = sum(one.numel() * one.element_size() for one in (*model.parameters(), *model.buffers()))
    extra -= weights + x.numel() * x.element_size()  # without the model and its input
    for who, make in {
        "pytorch": lambda: lambda: model(x),
        "pytorch graph": lambda: captured(lambda: model(x))[0].replay,
        "pysim": lambda: partial(pysim.torch.optimize(model), x),
        "pysim cuda_graph": lambda: partial(pysim.torch.optimize(model, cuda_graph=True), x),
    }.items():
        held[who] = {when: size - extra for when, size in memory(make()).items()}
        cleared()
    ours, graphed = pysim.torch.optimize(model), pysim.torch.optimize(model, cuda_graph=True)
    for _ in range(3):
        ours(x), graphed(x)
    python, (graphed_pytorch, result) = python_seconds(lambda: ours(x)), captured(lambda: model(x))

    def recorded() -> Any:
        graphed_pytorch.replay()
        return result

    calls = {"pytorch": lambda: model(x), "pytorch graph": recorded, "pysim": lambda: ours(x), "pysim cuda_graph": lambda: graphed(x)}
    spent = timed(calls)
    errors = {who: float((call().double() - exact).abs().max() / exact.abs().max()) for who, call in calls.items()}
    reports = [pysim.torch.report(one) for one in (ours, graphed)]
    native = [sum(one.runs == "pysim" for one in report) for report in reports]
    stays = {one.problem: [one.predicted_seconds, one.torch_seconds] for report in reports for one in report if one.runs != "pysim"}
    about = {"model": name, "batch": batch, "layers": len(reports[0]), "native": native, "python_us": python * 1e6, "stays": stays}
    return about | {"calls": spent, "errors": errors, "weights_bytes": weights, "memory_bytes": held}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS.split())
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=600.0, help="after which no other model is started")
    given = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    begin = time.time()
    versions = {"torch": torch.__version__, "torchvision": torchvision.__version__}
    with given.output.open("w") as out:
        out.write(json.dumps({"kind": "header", "device": torch.cuda.get_device_name(), "versions": versions}) + "\n")
        for text in given.models:
            if time.time() - begin > given.seconds:
                break
            name, batch = text.split(":")
            row = measure(name, int(batch))
            out.write(json.dumps(row) + "\n")
            out.flush()
            held = row["memory_bytes"]
            result_text = "  ".join(
                f"{who} {one['host_us']:.0f} us {one['ms']:.3f} ms" + (f" {held[who]['peak'] / 2**20:.0f} MiB" if who in held else "")
                for who, one in row["calls"].items()
            )
            errors = " ".join(f"{error:.1e}" for error in row["errors"].values())
            layers = f"{row['native']} of {row['layers']} layers, {row['python_us']:.0f} us of Python"
            print(f"{text:<18} {layers}  {result_text}  errors {errors}", flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
