# SPDX-License-Identifier: Apache-2.0
"""Compares PyTorch, its compiler and pysim.torch.optimize on whole networks on a GPU, interleaved in one run.

    python lab/benchmarks/cuda/models.py -o models-{precision}.jsonl [--precision f32 tf32 f16 half bf16] [--modes default reduce-overhead]
        [--seconds 540] [MODEL:BATCH[:SIZE] ...]

Networks: torchvision's, and those of small_networks.py. Precisions: FP32 with TF32 off, FP32 with TF32 allowed, autocast to float16,
converted to float16 or bfloat16. Calls are timed one after an untimed one, between two events; medians of 30.

    PyTorch   eager and a CUDA graph, each also channels last, with cudnn.benchmark on; torch.compile in each of `--modes`, also channels
              last; a CUDA graph of mode default. max-autotune (add it to --modes) takes minutes: it runs in the layout in which the mode
              before it was faster
    pysim     eager; CUDA graphs of each accuracy in FP32 ("pysim" is strict, the default), of a model in which no layer stays PyTorch's and
              nothing is compiled ("pysim all"), of the default without the compiler ("pysim alone"), and with channels-last inputs

Under autocast PyTorch's weights are cast once, before a graph is recorded. Weights are random; BatchNorm's statistics come from one
training pass over random images. `ways` has for each candidate: the largest difference from the same model in float64 over its largest
output, the root mean square of the differences over that of the outputs, the seconds to a first result (compiling and capturing included),
the memory that a later call takes at its peak, and what is reserved for it between calls. One JSON line per network; those that the file
has are left out, so a run can be continued. A network whose measurement failed has a line of the kind "failed".
"""

import argparse
import copy
import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torchvision
from small_networks import NETWORKS

import pysim.torch
from pysim.torch.layers import fused_layer
from pysim.torch.precision import ModelAccuracy

MODELS = (
    "resnet50:32 vgg16:32 googlenet:32 resnet50:1 vgg16:1 googlenet:1 mobilenet_v2:32 densenet121:32 resnext50_32x4d:32 convnext_tiny:32 "
    "efficientnet_b0:32 inception_v3:32:299 fcn_resnet50:4:520 resnet50:8 mobilenet_v2:1"
)
SMALL = " ".join(f"{name}:{batch}" for name in NETWORKS if name != "convnext_v2" for batch in (1, 8, 32))
ACCURACIES: dict[str, ModelAccuracy] = {
    "pysim": "strict",
    "pysim alone": "strict",
    "pysim all": "strict",
    "pysim standard": "standard",
    "pysim ieee": "ieee",
}
PRECISIONS = {"f32": torch.float32, "tf32": torch.float32, "f16": torch.float32, "half": torch.float16, "bf16": torch.bfloat16}
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
FIRST_GUESS = 45.0  # seconds that a network may take, before one was measured
AFTERWARDS = 15.0  # seconds of a network after PyTorch's compilations
Call = Callable[[], Any]


class Logits(torch.nn.Module):
    """A segmentation network with only its first result."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x)["out"]


class OutOfTimeError(Exception):
    """The next candidate would not be ready before the time is over."""


class Budget:
    """Seconds of a run; what a network takes, and the longest that a compilation took so far."""

    def __init__(self, seconds: float) -> None:
        self._end = time.time() + seconds
        self._networks = list[float]()
        self.compilation = 20.0

    @property
    def network(self) -> float:
        return 1.2 * statistics.mean(self._networks) if self._networks else FIRST_GUESS

    def took(self, seconds: float) -> None:
        self._networks.append(seconds)

    def need(self, seconds: float) -> None:
        if time.time() + seconds > self._end:
            raise OutOfTimeError


def sizes(text: str) -> tuple[str, int, int]:
    """MODEL:BATCH[:SIZE] as name, batch and size."""
    name, batch, *size = text.split(":")
    return name, int(batch), int(size[0]) if size else NETWORKS[name].size if name in NETWORKS else 224


def made(name: str) -> torch.nn.Module:
    if name in NETWORKS:
        return NETWORKS[name].make()
    how: dict[str, Any] = {"weights": None}
    if name in ("googlenet", "inception_v3"):
        how |= {"init_weights": False, "aux_logits": False}
    if name.startswith("fcn"):
        how["weights_backbone"] = None
    make = getattr(torchvision.models, name, None) or getattr(torchvision.models.segmentation, name)
    return Logits(make(**how)) if name.startswith("fcn") else make(**how)


def network(name: str, batch: int, size: int) -> tuple[torch.nn.Module, torch.Tensor]:
    """The network in inference, and an input."""
    torch.manual_seed(0)
    channels = NETWORKS[name].channels if name in NETWORKS else 3
    model = made(name).cuda().train()
    with torch.no_grad():
        model(torch.randn(max(batch, 8), channels, size, size, device="cuda"))
    return model.eval(), torch.randn(batch, channels, size, size, device="cuda")


def captured(call: Call) -> Call:
    """A CUDA graph of a call; it returns the tensor of its result. cuBLAS's workspaces are freed before and after: all captures use one
    stream, whose workspace would lie in the memory of the first graph, and torch.compile frees it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    torch._C._cuda_clearCublasWorkspaces()

    def replay(_kept: Call = call) -> Any:  # the call's model: the graph reads its weights
        graph.replay()
        return result

    return replay


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


def reserved() -> int:
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def under(precision: str) -> AbstractContextManager[Any]:
    """PyTorch's settings for a precision."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    return torch.autocast("cuda", torch.float16) if precision == "f16" else nullcontext()


class Candidates:
    """The calls to be timed, and what is known of each: `ways`, and why those of `failed` are absent."""

    def __init__(self, exact: torch.Tensor) -> None:
        self.exact = exact
        self.calls: dict[str, Call] = {}
        self.ways: dict[str, dict[str, float]] = {}
        self.failed: dict[str, str] = {}

    def add(self, label: str, make: Callable[[], Call]) -> None:
        before, start = reserved(), time.perf_counter()
        try:
            call = make()
            call()
            torch.cuda.synchronize()
        except Exception as error:
            if "CUDA error" in str(error):  # of a fault: no later call can work
                raise
            self.failed[label] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            return
        about = {"first_seconds": time.perf_counter() - start}
        for _ in range(3):  # torch.compile records its graphs at the second call
            call()
        off = call().double() - self.exact
        about["error"] = float(off.abs().max() / self.exact.abs().max())
        about["mean_error"] = float(off.square().mean().sqrt() / self.exact.square().mean().sqrt())
        del off
        about |= {"peak_bytes": peak(call), "held_bytes": reserved() - before}
        self.calls[label], self.ways[label] = call, about


def compiled(model: torch.nn.Module, x: torch.Tensor, mode: str) -> Call:
    return partial(torch.compile(model, mode=mode, dynamic=False), x)


def add_pytorchs(found: Candidates, model: torch.nn.Module, x: torch.Tensor, modes: list[str], budget: Budget) -> None:
    """PyTorch's candidates. What is compiled comes first: it frees the workspaces that graphs captured before may read."""
    last, image = copy.deepcopy(model).to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    layouts = {"": (model, x), " channels_last": (last, image)}
    for at, mode in enumerate(modes):
        tried = layouts
        if mode.startswith("max-autotune") and at:
            before = {layout: f"compile {modes[at - 1]}{layout}" for layout in layouts}
            times = timed({layout: found.calls[label] for layout, label in before.items() if label in found.calls}, 5)
            tried = {layout: layouts[layout] for layout in sorted(times or {"": 0.0}, key=times.__getitem__)[:1]}
        for layout, (one, given) in tried.items():
            budget.need(budget.compilation + AFTERWARDS)
            start = time.time()
            found.add(f"compile {mode}{layout}", lambda one=one, given=given, mode=mode: compiled(one, given, mode))
            budget.compilation = max(budget.compilation, time.time() - start)
    for layout, (one, given) in layouts.items():
        found.add(layout.strip() or "eager", lambda one=one, given=given: partial(one, given))
        found.add(f"{layout.strip()} graph".strip(), lambda one=one, given=given: captured(partial(one, given)))
        if call := found.calls.get(f"compile default{layout}"):
            found.add(f"compile default{layout} graph", partial(captured, call))


def add_pysims(found: Candidates, model: torch.nn.Module, x: torch.Tensor, accuracies: dict[str, ModelAccuracy]) -> dict[str, Any]:
    """pysim's candidates, and what the record says of them."""
    peaks, prepared, equal, decisions = {"pytorch": found.ways["eager"]["peak_bytes"]}, {}, True, []
    image, expected = x.to(memory_format=torch.channels_last), fused_layer.pytorch_seconds
    for label, accuracy in accuracies.items():
        fused_layer.pytorch_seconds = expected if label != "pysim all" else lambda *_: math.inf
        try:
            asked = False if label in ("pysim all", "pysim alone") else None
            ours = pysim.torch.optimize(model, accuracy, cuda_graph="caller", compiler=asked)
            before = torch.cuda.memory_allocated()
            y = ours(x).clone()
            prepared[label] = torch.cuda.memory_allocated() - before - y.numel() * y.element_size()
            peaks[label] = peak(partial(ours, x))
            found.add(f"{label} graph", lambda ours=ours: captured(partial(ours, x)))
            equal = equal and bool((found.calls[f"{label} graph"]() == y).all())
            if label == "pysim":
                decisions = [one._asdict() for one in pysim.torch.report(ours)]
                found.add("pysim eager", partial(partial, pysim.torch.optimize(model, accuracy), x))
                found.add("pysim channels_last graph", lambda ours=ours: captured(partial(ours, image)))
        finally:
            fused_layer.pytorch_seconds = expected
    return {"peak_bytes": peaks, "prepared_bytes": prepared, "graph_equals_call": equal, "decisions": decisions}


@torch.no_grad()
def measure(name: str, batch: int, size: int, precision: str, given: argparse.Namespace, budget: Budget) -> dict[str, Any]:
    with under("f32"):
        model, x = network(name, batch, size)
        exact = model.double()(x.double())
    model, x = model.to(PRECISIONS[precision]), x.to(PRECISIONS[precision])
    accuracies = ACCURACIES if precision == "f32" else {name: ACCURACIES[name] for name in ("pysim", "pysim alone", "pysim all")}
    if given.brief:
        accuracies = {name: ACCURACIES[name] for name in ("pysim", "pysim alone")}
    with under(precision):
        found = Candidates(exact)
        add_pytorchs(found, model, x, given.modes, budget)
        ours = add_pysims(found, model, x, accuracies)
        medians = timed(found.calls, given.rounds)
    names = {"pytorch": "eager"} | {label: f"{label} graph" for label in accuracies}
    best = min(value for label, value in medians.items() if not label.startswith("pysim"))
    row = {"model": name, "batch": batch, "size": size, "precision": precision, "milliseconds": medians}
    row |= {"ratio": best / medians["pysim graph"], "ways": found.ways, "modes": given.modes, "failed": found.failed}
    for key, of_way in (("errors", "error"), ("mean_errors", "mean_error")):
        row[key] = {who: found.ways[way][of_way] for who, way in names.items() if way in found.ways}
    return row | {"weights_bytes": sum(one.numel() * one.element_size() for one in (*model.parameters(), *model.buffers()))} | ours


def told(row: dict[str, Any]) -> str:
    """A line for the terminal."""
    times = "  ".join(f"{label} {value:.3f}" for label, value in row["milliseconds"].items())
    errors = "  ".join(f"{label} {value:.1e} {row['mean_errors'][label]:.1e}" for label, value in row["errors"].items())
    ours = sum(one["runs"] == "pysim" for one in row["decisions"])
    slowest = max(row["ways"], key=lambda way: row["ways"][way]["first_seconds"])
    first = f"first result after {row['ways'][slowest]['first_seconds']:.0f} s ({slowest})"
    summary = f"{ours}/{len(row['decisions'])} layers; errors {errors}; {first}; graph equal {row['graph_equals_call']}"
    return f"{row['model']:<16} {row['batch']:>3} {row['precision']:<5} {row['ratio']:.2f}x  {times}  {summary}" + (
        f"; failed {row['failed']}" if row["failed"] else ""
    )


def measured_before(path: Path, precision: str, given: argparse.Namespace) -> set[tuple[str, int, int]]:
    """The networks that the file has; a new file gets a header."""
    if path.exists() and path.stat().st_size:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        return {(row["model"], row["batch"], row["size"]) for row in rows if "model" in row}
    versions = {"torch": torch.__version__, "torchvision": torchvision.__version__, "cudnn": torch.backends.cudnn.version()}
    header = {"kind": "header", "device": torch.cuda.get_device_name(), "versions": versions, "precision": precision}
    command = ["python", "lab/benchmarks/cuda/models.py", *sys.argv[1:]]
    path.write_text(json.dumps(header | {"modes": given.modes, "command": " ".join(command)}) + "\n")
    return set()


def append(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as out:
        out.write(json.dumps(row) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[*SMALL.split(), *MODELS.split()], metavar="MODEL:BATCH[:SIZE]")
    parser.add_argument("-o", "--output", required=True, help="a path with {precision} in it, if there are several")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=["f32"])
    parser.add_argument("--modes", nargs="*", choices=MODES, default=["default", "reduce-overhead"], help="of torch.compile")
    parser.add_argument("--brief", action="store_true", help="of pysim only the default accuracy")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=540.0, help="before which the run ends")
    given = parser.parse_args()
    paths = {precision: Path(given.output.format(precision=precision)) for precision in given.precision}
    if len({*paths.values()}) < len(paths):
        parser.error(f"{given.output} is one file for {len(paths)} precisions: it needs {{precision}} in its name")
    todo = [(precision, *sizes(text)) for text in given.models for precision in given.precision]
    torch.backends.cudnn.benchmark = True
    before = {precision: measured_before(path, precision, given) for precision, path in paths.items()}
    budget = Budget(given.seconds)
    for precision, name, batch, size in todo:
        if (name, batch, size) in before[precision]:
            continue
        start = time.time()
        try:
            budget.need(budget.network)
            row = measure(name, batch, size, precision, given, budget)
        except OutOfTimeError:
            print(f"{name}:{batch}:{size} {precision} and what follows: no time left", flush=True)
            break
        except Exception as error:
            text = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            append(paths[precision], {"kind": "failed", "model": name, "batch": batch, "size": size, "precision": precision, "error": text})
            print(f"{name:<16} {batch:>3} {precision:<5} failed: {text}", flush=True)
            if "CUDA error" in str(error):
                raise SystemExit(1) from error  # no later call can work in this process; started again, it goes on with the next network
            continue
        append(paths[precision], row)
        print(told(row), flush=True)
        budget.took(time.time() - start)
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
