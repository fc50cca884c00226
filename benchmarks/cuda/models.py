# SPDX-License-Identifier: Apache-2.0
"""Compares PyTorch and pysim.torch.optimize on whole networks of torchvision on a GPU, in one run.

    python benchmarks/cuda/models.py -o FILE [--precision f32|tf32|f16|half] [--seconds 160] [--compile] [MODEL:BATCH[:SIZE] ...]

Precisions: FP32 with TF32 off, FP32 with TF32 allowed, autocast to float16, converted to float16. Candidates run interleaved, one timed
call after an untimed one, between two events; medians of 30. PyTorch: eager and a CUDA graph, each also channels last, with cudnn.benchmark
on. pysim: eager; and CUDA graphs of each accuracy in FP32 ("pysim" is strict, the default), of a model in which no layer stays PyTorch's
("pysim all"), and with channels-last inputs. Under autocast PyTorch's weights are cast once, before a graph is recorded.
Weights are random; BatchNorm's statistics come from one training pass over random images. Errors: the largest difference from the same
model in float64 over its largest output, and the root mean square of the differences over that of the outputs. Memory: what a call needs
after a first one, and what the first one keeps (prepared weights, workspace). One JSON line per model.
"""

import argparse
import copy
import json
import math
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torchvision

import pysim.torch
from pysim.models import torch_layers
from pysim.models.torch_precision import ModelAccuracy

MODELS = (
    "resnet50:32 vgg16:32 googlenet:32 resnet50:1 vgg16:1 googlenet:1 mobilenet_v2:32 densenet121:32 resnext50_32x4d:32 convnext_tiny:32 "
    "efficientnet_b0:32 inception_v3:32:299 fcn_resnet50:4:520 resnet50:8 mobilenet_v2:1"
)
KINDS: dict[str, ModelAccuracy] = {"pysim": "strict", "pysim all": "strict", "pysim standard": "standard", "pysim ieee": "ieee"}
PRECISIONS = ("f32", "tf32", "f16", "half")
Call = Callable[[], object]


class Logits(torch.nn.Module):
    """A segmentation network with only its first result."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x)["out"]


def network(name: str, batch: int, size: int) -> torch.nn.Module:
    torch.manual_seed(0)
    how: dict[str, Any] = {"weights": None}
    if name in ("googlenet", "inception_v3"):
        how |= {"init_weights": False, "aux_logits": False}
    if name.startswith("fcn"):
        how["weights_backbone"] = None
    make = getattr(torchvision.models, name, None) or getattr(torchvision.models.segmentation, name)
    model = make(**how).cuda().train()
    with torch.no_grad():
        model(torch.randn(max(batch, 8), 3, size, size, device="cuda"))
    return (Logits(model) if name.startswith("fcn") else model).eval()


def captured(call: Call) -> tuple[Call, Any]:
    """A CUDA graph of a call, and the tensor of its result."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph.replay, result


def timed(calls: dict[str, Call], rounds: int) -> dict[str, float]:
    """Median milliseconds of each, interleaved."""
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(3):
            call()
    names = list(calls)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            calls[name]()
            first.record()
            calls[name]()
            last.record()
            last.synchronize()
            spent[name].append(first.elapsed_time(last))
    return {name: statistics.median(values) for name, values in spent.items()}


def peak(call: Call) -> int:
    """Bytes that a call allocates at its peak, beyond those allocated before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def under(precision: str) -> AbstractContextManager[Any]:
    """PyTorch's settings for a precision."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    return torch.autocast("cuda", torch.float16) if precision == "f16" else nullcontext()


@torch.no_grad()
def measure(name: str, batch: int, size: int, precision: str, compile_too: bool) -> dict[str, Any]:
    with under("f32"):
        model, x = network(name, batch, size), torch.randn(batch, 3, size, size, device="cuda")
        exact = model.double()(x.double())
    model.float()
    if precision == "half":
        model, x = model.half(), x.half()
    with under(precision):
        return {"model": name, "batch": batch, "size": size} | compared(model, x, exact, precision, compile_too)


def compared(model: torch.nn.Module, x: torch.Tensor, exact: torch.Tensor, precision: str, compile_too: bool) -> dict[str, Any]:
    def error(y: Any) -> float:
        return float((y.double() - exact).abs().max() / exact.abs().max())

    last, image = copy.deepcopy(model).to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)

    def mean_error(y: Any) -> float:
        return float((y.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt())

    first, decisions, equal, kept = model(x), [], True, []
    errors, mean_errors = {"pytorch": error(first)}, {"pytorch": mean_error(first)}
    calls: dict[str, Call] = {"eager": lambda: model(x), "graph": captured(lambda: model(x))[0]}
    calls |= {"channels_last": lambda: last(image), "channels_last graph": captured(lambda: last(image))[0]}
    memory, prepared = {"pytorch": peak(lambda: model(x))}, {}
    if compile_too:
        compiled = torch.compile(model, mode="reduce-overhead")
        calls["compiled graph"] = lambda: compiled(x)
    expected = torch_layers.pytorch_seconds
    for label, accuracy in KINDS.items():
        if precision != "f32" and accuracy != "strict":
            continue
        torch_layers.pytorch_seconds = expected if label != "pysim all" else lambda *_: math.inf
        try:
            ours = pysim.torch.optimize(model, accuracy, cuda_graph="caller")
            kept.append(ours)  # keeps alive the prepared weights that a graph reads
            before = torch.cuda.memory_allocated()
            y = ours(x).clone()
            prepared[label] = torch.cuda.memory_allocated() - before - y.numel() * y.element_size()
            memory[label] = peak(lambda ours=ours: ours(x))
            errors[label], mean_errors[label] = error(y), mean_error(y)
            calls[f"{label} graph"], result = captured(lambda ours=ours: ours(x))
            calls[f"{label} graph"]()
            equal = equal and bool((result == y).all())
            if label == "pysim":
                eager = pysim.torch.optimize(model, accuracy)
                calls["pysim eager"] = lambda eager=eager: eager(x)
                decisions = [one._asdict() for one in pysim.torch.report(ours)]
                calls["pysim channels_last graph"], _ = captured(lambda ours=ours: ours(image))
        finally:
            torch_layers.pytorch_seconds = expected
    medians = timed(calls, 30)
    best = min(value for label, value in medians.items() if not label.startswith("pysim"))
    row = {
        "precision": precision,
        "milliseconds": medians,
        "ratio": best / medians["pysim graph"],
        "errors": errors,
        "mean_errors": mean_errors,
    }
    weights = sum(one.numel() * one.element_size() for one in (*model.parameters(), *model.buffers()))
    row |= {"weights_bytes": weights, "peak_bytes": memory, "prepared_bytes": prepared}
    return row | {"graph_equals_call": equal, "decisions": decisions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS.split())
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--precision", choices=PRECISIONS, default="f32")
    parser.add_argument("--compile", action="store_true", help='also torch.compile(mode="reduce-overhead")')
    parser.add_argument("--seconds", type=float, default=600.0, help="after which no other model is started")
    given = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    versions = {"torch": torch.__version__, "torchvision": torchvision.__version__, "cudnn": torch.backends.cudnn.version()}
    begin = time.time()
    header = {"kind": "header", "device": torch.cuda.get_device_name(), "versions": versions, "precision": given.precision}
    print(header, flush=True)
    with given.output.open("w") as out:
        out.write(json.dumps(header) + "\n")
        for text in given.models:
            if time.time() - begin > given.seconds:
                break
            name, batch, size = (*text.split(":"), "224")[:3]
            row = measure(name, int(batch), int(size), given.precision, given.compile)
            out.write(json.dumps(row) + "\n")
            out.flush()
            times = "  ".join(f"{label} {value:.3f}" for label, value in row["milliseconds"].items())
            errors = "  ".join(f"{label} {value:.1e} {row['mean_errors'][label]:.1e}" for label, value in row["errors"].items())
            ours = sum(one["runs"] == "pysim" for one in row["decisions"])
            memory = row["peak_bytes"]["pysim"] / row["peak_bytes"]["pytorch"]
            summary = f"{ours}/{len(row['decisions'])} layers; errors {errors}; memory {memory:.2f}x"
            print(f"{name:<16} {batch:>3}  {row['ratio']:.2f}x  {times}  {summary}; graph equal {row['graph_equals_call']}", flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
