#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times the planned convolutions of whole networks and PyTorch's in both layouts, as conv.py does, with all checks on the device.

    lab/benchmarks/cuda/layers.py -o layers-h200 [--dtype f16,tf32,bf16] [--set mobilenet_v2,...] [--batch 1,8,32] [--layout nhwc]
                              [--accuracy standard,strict] [--rows planned|few|all] [--graphs] [--seconds S]

Operands are drawn on the device. Every element of every result is compared there with PyTorch's convolution of the same operands, in FP64
for f32 and in FP32 without TF32 for narrower types. The recorded error is the largest difference over |x| * |w| at that element. A result
that differs by more than BOUNDS, or still has a NaN from before the run, is wrong and not timed. (conv.py compares with NumPy's float64,
which takes seconds per layer.)
`--rows all`, for fit_conv.py: the best predicted launches, whole tiles and in parts, of each row of ALGORITHMS, if predicted within
WITHIN of the best of all; `few`: the best launches of the FEW best kernels. `--graphs`: times are of calls in CUDA graphs, else between
events. Repeated layers are measured once. conv_data.py defines the file's format.
"""

import argparse
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import conv
import conv_data
import graphs
import msgspec
import numpy as np
from conv_data import OURS, TORCH, Candidate, Line

from pysim import planner
from pysim.calibration import host
from pysim.check.bounds import bound_of
from pysim.comparison.bench import release
from pysim.machine.gpu import Gpu
from pysim.peers import torch as peer
from pysim.peers.peer import Operands as Given
from pysim.peers.peer import Ready, Scratch
from pysim.problem.conv import Conv
from pysim.problem.text import Layer
from pysim.record.plan import LAYOUTS, Layout, Plan
from pysim.record.schedule import GpuSchedule
from pysim.runtime import cuda
from pysim.runtime.cuda import DeviceArray

# Relative to the sum of magnitudes: four times the rounding of the result and of its operands (TF32)
BOUNDS = {"f16": 4 * 2.0**-11, "bf16": 4 * 2.0**-8, "tf32": 4 * 2.0**-10, "f32": 2.0**-14}
ALGORITHMS = ("wgmma", "im2col", "depthwise", "pointwise")
WITHIN = 1.5
FEW = 5
GRAPH_SECONDS, GRAPH_CALLS = 3e-4, (3, 30)  # of a graph; its calls, least and most


class Operands:
    """Random operands of a problem in both layouts, its output, and the expected result, on the device."""

    def __init__(self, w: Conv) -> None:
        self.torch: Any = peer.torch_here()
        self.workload, self.result, self.stream = w, conv.result_of(w.dtype), self.torch.cuda.Stream()
        shapes = (w.batch, w.channels, w.height, w.width), (w.filters, w.channels // w.groups, w.kernel_h, w.kernel_w)
        self.out = (w.batch, w.filters, w.out_h, w.out_w)
        self.y, self._scratch = DeviceArray((w.batch * w.filters * w.windows,), self.result), Scratch()
        self._memory: dict[str, list[DeviceArray]] = {layout: [DeviceArray(s, self.result) for s in shapes] for layout in LAYOUTS}
        for first, second, shape in zip(*(self._memory[layout] for layout in LAYOUTS), shapes, strict=True):
            plain = self.seen(first, shape, LAYOUTS[0]).copy_(self.torch.empty(shape, device="cuda").uniform_(-1, 1))
            self.seen(second, shape, LAYOUTS[1]).copy_(plain)
        how = {"stride": (w.stride_h, w.stride_w), "dilation": (w.dilation_h, w.dilation_w), "groups": w.groups}
        wider = self.torch.float64 if w.dtype == "f32" else self.torch.float32
        x, weights = (self.seen(a, s, LAYOUTS[0]).to(wider) for a, s in zip(self._memory[LAYOUTS[0]], shapes, strict=True))
        x = self.torch.nn.functional.pad(x, (w.pad_left, w.pad_right, w.pad_top, w.pad_bottom))
        self.torch.backends.cudnn.allow_tf32 = self.torch.backends.cudnn.benchmark = False
        self.want = self.torch.nn.functional.conv2d(x, weights, None, **how)
        self.scale = self.torch.nn.functional.conv2d(x.abs(), weights.abs(), None, **how)

    def seen(self, array: DeviceArray, shape: tuple[int, ...], layout: str) -> Any:
        """PyTorch's view, [N][C][H][W], of memory in a layout."""
        n, c, h, w = shape
        lies = shape if layout == "nchw" else (n, h, w, c)
        view = self.torch.as_tensor(peer.Memory(array.pointer, lies, self.result), device="cuda")
        view = view.view(self.torch.bfloat16) if self.result == "bf16" else view
        return view if layout == "nchw" else view.permute(0, 3, 1, 2)

    def given(self, layout: str) -> Given:
        x, filters = self._memory[layout]
        return Given(x, filters, self.y, layout, self._scratch)

    def check(self, ready: Ready, layout: str) -> tuple[str, float]:
        """Checks what a call wrote to y. Returns (what is wrong or "", the largest error over the sum of magnitudes)."""
        found = self.seen(self.y, self.out, layout)
        found.fill_(float("nan"))
        self.torch.cuda.synchronize()
        (ready.write or ready.call)()
        cuda.synchronize()
        self.torch.cuda.synchronize()
        smallest = 2.0**-25 if self.workload.dtype == "f16" else 0.0  # the error of a result among f16's numbers below the normal ones
        error = (((found.to(self.want.dtype) - self.want).abs() - smallest) / self.scale.clamp_min(1e-30)).max().item()
        wrong = "" if error <= BOUNDS[self.workload.dtype] else f"an error of {error:.3g} of the sum of magnitudes, or NaN"
        return wrong, error


def add_plans(field: conv.Field, operands: Operands, layout: Layout, options: argparse.Namespace, gpu: Gpu) -> str:
    """Adds the plans of a layout, one for each accuracy, or the best of each row. Returns the first one's name."""
    plan_of: dict[str, list[str]] = {}
    best: dict[tuple[str, ...], Plan] = {}
    for accuracy in options.accuracy.split(","):
        plans = planner.plans(operands.workload, gpu, top=1 if options.rows == "planned" else conv.EVERY, layout=layout, accuracy=accuracy)
        few = options.rows == "few"
        for plan in best_of_kernels(plans)[:FEW] if few else plans:
            within = (few or plan.algorithm in ALGORITHMS) and plan.cost.seconds <= WITHIN * plans[0].cost.seconds
            if plan is plans[0] or within:
                best.setdefault(launch_of(plan), plan)
        plan_of.setdefault(" ".join(launch_of(plans[0])), []).append(accuracy)
    for words, plan in best.items():
        kernel = " ".join(words)
        row = next(row for row in conv.conv_kernels() if row.name == plan.kernel)
        levels = tuple(plan_of.get(kernel, ()))
        known = Candidate(who=OURS, algorithm=row.algorithm, form=row.variant, layout=layout, plan_of=levels)

        def made(plan: Plan = plan) -> tuple[Callable[[], object], dict[str, Any]]:
            launch = cuda.Launch(operands.workload, plan.schedule, result=operands.result, layout=layout).on(
                operands.given(layout).pointers, stream=operands.stream.cuda_stream if options.graphs else 0
            )
            field.kept.append(launch)
            wrong, error = operands.check(Ready(launch.run, "", plan.workspace_bytes, bound_of(plan)), layout)
            facts = {"wrong": wrong, "error": conv.finite(error), "predicted_seconds": plan.cost.seconds}
            return launch.run, facts | {"workspace_bytes": plan.workspace_bytes, "schedule": msgspec.to_builtins(plan.schedule)}

        field.enter(conv.named(OURS, kernel, layout), known, made)
    return conv.named(OURS, " ".join(next(iter(best))), layout)


def best_of_kernels(plans: list[Plan]) -> list[Plan]:
    found: dict[tuple[str, str | None], Plan] = {}
    for plan in plans:  # the best first
        assert isinstance(plan.schedule, GpuSchedule)
        found.setdefault((plan.schedule.kernel, plan.schedule.gemm), plan)
    return list(found.values())


def launch_of(plan: Plan) -> tuple[str, ...]:
    """A plan's kernels, and its split of k if there is one."""
    s = plan.schedule
    assert isinstance(s, GpuSchedule)
    return tuple(word for word in (s.kernel, s.gemm, "" if s.decomposition == "data_parallel" else s.decomposition) if word)


def measure(name: str, layer: Layer, dtype: str, options: argparse.Namespace, gpu: Gpu) -> Line:
    w, field = layer.workload, conv.Field()
    assert isinstance(w, Conv)
    operands = Operands(msgspec.structs.replace(w, dtype=dtype))
    chosen = [add_plans(field, operands, layout, options, gpu) for layout in reversed(LAYOUTS) if layout in options.layout.split(",")]
    for layout in LAYOUTS:

        def made(layout: str = layout) -> tuple[Callable[[], object], dict[str, Any]]:
            ready = peer.make(operands.workload, operands.given(layout))
            wrong, error = operands.check(ready, layout)
            return ready.call, {"wrong": wrong, "error": conv.finite(error), "workspace_bytes": ready.workspace_bytes}

        field.enter(conv.named(TORCH, "", layout), Candidate(who=TORCH, layout=layout), made)
    if options.graphs:
        time_in_graphs(field, operands, options.samples)
    else:
        field.time(options.samples)
    problem = conv_data.text_of(w, dtype)
    return Line(set=name, label=layer.label, problem=problem, dtype=dtype, planned=chosen[0], candidates=field.known)


def time_in_graphs(field: conv.Field, operands: Operands, samples: int) -> None:
    """Times all calls, interleaved, and writes the results to `known`."""
    expected = min((one.predicted_seconds for one in field.known.values() if one.predicted_seconds), default=GRAPH_SECONDS)
    calls = {name: lambda at, call=call: call() for name, call in field.calls.items()}
    count = int(np.clip(GRAPH_SECONDS / expected, *GRAPH_CALLS))
    for name, found in graphs.microseconds(calls, count, samples, operands.stream).items():
        field.known[name] = msgspec.structs.replace(field.known[name], seconds=1e-6 * found, samples=samples)


def at_batch(layer: Layer, batch: int) -> Layer:
    return layer._replace(workload=msgspec.structs.replace(layer.workload, batch=batch))


def distinct(sets: list[str], batches: list[int]) -> list[tuple[str, Layer]]:
    """The distinct layers of the sets, interleaved, so that a stopped run has some of each; with `batches` if given."""
    every = [[(name, layer) for layer in conv_data.problems(name)] for name in sets]
    if batches:
        every = [[(name, at_batch(layer, batch)) for name, layer in one] for batch in batches for one in every]
    found = [one for turn in itertools.zip_longest(*every) for one in turn if one]
    return list({layer.workload: (name, layer) for name, layer in reversed(found)}.values())[::-1]


def memory_of(w: Conv) -> int:
    """Upper bound of the bytes that a problem needs: operands in both layouts, results, expected results, and passes."""
    return 8 * (5 * w.batch * w.channels * w.height * w.width + 6 * w.batch * w.filters * w.windows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", default="mobilenet_v2,convnext_t,resnet50", help="sets of conv.py, by comma")
    parser.add_argument("--dtype", default="f16,tf32,bf16", help="types, by comma; a file of each")
    parser.add_argument("--batch", default="", help="sizes, by comma, in place of the sets' own")
    parser.add_argument("--layout", default=",".join(LAYOUTS), choices=(",".join(LAYOUTS), *LAYOUTS), help="whose plans are measured")
    parser.add_argument("--accuracy", default="standard", help="whose plans are measured, by comma")
    parser.add_argument("--rows", default="planned", choices=("planned", "few", "all"))
    parser.add_argument("--graphs", action="store_true", help="time calls in CUDA graphs")
    parser.add_argument("--samples", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no other layer is started")
    parser.add_argument("-o", "--out", required=True, help="beginning of the files' names")
    options = parser.parse_args()
    paths = {dtype: Path(f"{options.out}-{dtype}.jsonl") for dtype in options.dtype.split(",")}
    for path in paths.values():
        conv.begin(argparse.Namespace(out=path, resume=False))
    gpu, started = host.gpu_here(), time.monotonic()
    for name, layer in distinct(options.set.split(","), [int(size) for size in options.batch.split(",") if size]):
        if time.monotonic() - started > options.seconds:
            print(f"the time is over before {layer.label}")
            return
        if memory_of(layer.workload) > peer.torch_here().cuda.mem_get_info()[0]:
            print(f"{layer.label} of {name} does not fit")
            continue
        for dtype, path in paths.items():
            line = measure(name, layer, dtype, options, gpu)
            conv_data.write(path, line)
            print(conv.progress(line), flush=True)
            release()
            cuda.synchronize()


if __name__ == "__main__":
    main()
