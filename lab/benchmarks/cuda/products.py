#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares predicted and measured times of planned products, and cuBLAS, on this computer's GPU: random or given problems of every type.

    python lab/benchmarks/cuda/products.py [-m cuda] [--count 60] [--seed 1] [--dtypes f32,tf32] > products.jsonl
    python lab/benchmarks/cuda/products.py --top 4 gemm:4096x4096x4096:tn:tf32 ...            the best plans of the four best kernels
    python products.py --beside before/libpysim_cuda.so ...               also runs the plans with other builds, interleaved

Random sizes are log-uniform, m and n from 32 to 8192, k from 32 to 16384, every second problem in multiples of eight, up to MOST
multiply-adds, in any layout; with --networks half of the problems are drawn by `network_products`. f32 is planned with accuracy "ieee",
since "standard" (--f32) may choose tf32x3, which is measured as its own type. Each plan is first checked in full against float64, then
timed, interleaved, by events with the device kept busy, or with --graphs in CUDA graphs of many calls, where predictions are less
what a graph saves (`gemm.graph_saving`). One line per problem:
{"machine", "device", "problem", "graphs", "plans": [{"kernel", "schedule", "predicted", "samples", "seconds", "right"}], "cublas"};
then a table.
With other builds a plan has "beside", their seconds, None if a build lacks the kernel. Plans identify kernels by number, so a build with
different rows is refused.
Needs torch, which allocates the operands, and the CUDA library.
"""

import argparse
import json
import math
import multiprocessing
import sys
from collections import defaultdict
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

MOST = 2e11
SAMPLES = 15
GRAPH_SECONDS, GRAPH_CALLS = 3e-4, (3, 30)  # of a graph; its calls, least and most
CUBLAS_BYTES = 32 << 20  # workspace, which cuBLAS's documentation recommends for Hopper


Planned = tuple[str, list[dict[str, Any]]]


def planned(text: str, machine: str, top: int, f32: str, also: tuple[str, ...] = (), graphs: bool = False) -> Planned:
    """The best plans of the `top` best kernels, and of kernels whose names contain one of `also`, with the seconds predicted between events
    or in graphs."""
    import msgspec

    from pysim import planner
    from pysim.algorithms.gpu.gemm import graph_saving
    from pysim.calibration import gpu_lab
    from pysim.machine.load import load_any
    from pysim.problem.text import parse

    accuracy = f32 if text.endswith(":f32") else "standard"
    if top == 1 and not also:
        plans = [planner.plan(text, machine, accuracy=accuracy)]
    else:
        ranked = gpu_lab.best_of_kernels(text, machine, 10_000, accuracy)
        plans = [one for rank, one in enumerate(ranked) if rank < top or any(part in one.kernel for part in also)]
    found = []
    for one in plans:
        saved = graph_saving(load_any(machine), parse(text), one.schedule) if graphs else 0.0
        found.append({"kernel": one.kernel, "schedule": msgspec.to_builtins(one.schedule), "predicted": one.cost.seconds - saved})
    return text, found


def random_products(dtype: str, count: int, seed: int, networks: bool) -> list[str]:
    """Log-uniform products of a type, the second half of networks if these are asked for."""
    import network_products

    from pysim.calibration.gpu_lab import drawn

    of_networks = count // 2 if networks else 0
    return [*drawn(dtype, count - of_networks, seed, MOST), *network_products.drawn(dtype, of_networks, seed, MOST)]


class Operands:
    """Random A, B and C of a product on the device, A B in float64, and the allowed error."""

    def __init__(self, w: Any) -> None:
        import torch

        from pysim.problem.dtypes import SUM_UNITS

        kinds = {"f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16, "s8": torch.int8, "f8": torch.float8_e4m3fn}
        results = {"f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16, "s8": torch.int32, "f8": torch.float16}
        generator = torch.Generator(device="cuda").manual_seed(hash((w.m, w.n, w.k)) % 2**31)

        def made(rows: int, columns: int) -> Any:
            if w.dtype == "s8":
                return torch.randint(-9, 10, (rows, columns), device="cuda", dtype=torch.int8, generator=generator)
            uniform = torch.rand(rows, columns, device="cuda", dtype=torch.float32, generator=generator) * 2 - 1
            return uniform.to(kinds.get(w.dtype, torch.float32))

        self.a = made(w.k, w.m) if w.trans_a else made(w.m, w.k)
        self.b = made(w.n, w.k) if w.trans_b else made(w.k, w.n)
        self.c = torch.empty(w.m, w.n, device="cuda", dtype=results.get(w.dtype, torch.float32))
        self.pointers = (self.a.data_ptr(), self.b.data_ptr(), self.c.data_ptr())
        left, right = self.a.double().t() if w.trans_a else self.a.double(), self.b.double().t() if w.trans_b else self.b.double()
        self.want = left @ right
        split = {"tf32": 2.0**-10, "tf32x3": 2.0**-19, "f8": w.k * 2.0**-21}.get(w.dtype, 0.0)
        unit = 2.0**-53 if w.dtype == "f64" else SUM_UNITS.get(w.dtype, 0.0)
        stored = {"f16": 2.0**-11, "f8": 2.0**-11, "bf16": 2.0**-8}.get(w.dtype, 0.0)
        smallest = 2.0**-25 if self.c.dtype == torch.float16 else 0.0  # the error of a result among f16's numbers below the normal ones
        self.most = (left.abs() @ right.abs()) * (2 * (w.k + 8) * unit + split) + stored * self.want.abs() + smallest

    def right(self, call: Any) -> bool:
        import torch

        self.c.fill_(-(2**31) + 1 if self.c.dtype == torch.int32 else math.nan)
        torch.cuda.synchronize()
        call()
        torch.cuda.synchronize()
        return bool(((self.c.double() - self.want).abs() <= self.most).all())


def rows_of(library: Any, ffi: Any) -> list[str]:
    """The names of a library's GEMM rows, by number."""
    info, names = ffi.new("pysim_cuda_gemm_info *"), []
    for number in range(library.pysim_cuda_gemm_count()):
        if library.pysim_cuda_gemm_at(number, info):
            raise SystemExit(f"row {number} of the library cannot be read: {ffi.string(library.pysim_cuda_last_error()).decode()}")
        names.append(ffi.string(info.name).decode())
    return names


def other_build(path: str) -> Any:
    """Another build's library; its rows must have the same numbers."""
    from pysim.runtime import cuda

    ffi, own = cuda.library()
    other = ffi.dlopen(path)
    ours, theirs = rows_of(own, ffi), rows_of(other, ffi)
    if ours != theirs:
        alike = [one == two for one, two in zip(ours, theirs, strict=False)]
        first = next((row for row, same in enumerate(alike) if not same), len(alike))
        raise SystemExit(
            f"{path} has other rows than this build, {len(theirs)} beside {len(ours)}, the first of them row {first}: build it from a "
            "tree with the same native/cuda/gemm/*/rows.inc"
        )
    return other


def short(seconds: float) -> float:
    return float(f"{seconds:.4g}")


Timed = dict[str, tuple[float, int]]  # median seconds of a call, of how many samples


def in_graphs(calls: dict[str, Any], stream: Any, seconds: float) -> Timed:
    """In CUDA graphs of calls that are expected to take `seconds`."""
    from graphs import microseconds

    graphs = {name: lambda _, call=call: call() for name, call in calls.items()}
    count = int(np.clip(GRAPH_SECONDS / seconds, *GRAPH_CALLS))
    return {name: (1e-6 * one, SAMPLES) for name, one in microseconds(graphs, count, SAMPLES, stream).items()}


def by_events(calls: dict[str, Any]) -> Timed:
    """Each call between two events."""
    from pysim.measure.clock import interleave
    from pysim.measure.events import Events

    samples = interleave(calls, Events(), min_samples=SAMPLES, min_seconds=0.004, budget_seconds=2, warmup_seconds=0.002).samples
    return {name: (float(np.median(some)), len(some)) for name, some in samples.items()}


def measured(line: dict[str, Any], others: list[Any], graphs: bool) -> dict[str, Any]:
    """The line of a problem with the seconds of this library and of `others`."""
    import msgspec
    import torch

    from pysim.errors import MissingError, NativeError
    from pysim.peers import cublas
    from pysim.problem.text import parse
    from pysim.record.schedule import GpuSchedule
    from pysim.runtime import cuda

    w = parse(line["problem"])
    operands, stream = Operands(w), torch.cuda.Stream() if graphs else torch.cuda.default_stream()
    calls = {}
    for number, plan in enumerate(line["plans"]):
        launch = cuda.Launch(w, msgspec.convert(plan["schedule"], GpuSchedule))
        calls[str(number)] = launch.on(operands.pointers, stream=stream.cuda_stream).run
        plan["right"] = operands.right(calls[str(number)])
        for other, library in enumerate(others):
            bound = launch.on(operands.pointers, stream=stream.cuda_stream)
            bound._lib = library
            with suppress(NativeError):
                bound.run()
                plan["right"] &= operands.right(bound.run)
                calls[f"{number} {other}"] = bound.run
    space = torch.empty(CUBLAS_BYTES, dtype=torch.uint8, device="cuda")  # of its own, cuBLAS would allocate in each graph
    try:
        at = (space.data_ptr(), CUBLAS_BYTES)
        calls["cublas"], _ = cublas.product(w, cuda.result_of(w.dtype), operands.pointers, stream.cuda_stream, at)
        calls["cublas"]()
    except MissingError:
        calls.pop("cublas", None)
    timed = in_graphs(calls, stream, line["plans"][0]["predicted"]) if graphs else by_events(calls)
    for number, plan in enumerate(line["plans"]):
        seconds, samples = timed[str(number)]
        plan |= {"samples": samples, "seconds": short(seconds), "predicted": short(plan["predicted"])}
        if others:
            found = [timed.get(f"{number} {other}") for other in range(len(others))]
            plan["beside"] = [None if one is None else short(one[0]) for one in found]
    theirs = timed.get("cublas")
    return line | {"cublas": None if theirs is None else short(theirs[0])}


def table(lines: list[dict[str, Any]]) -> None:
    """By type: the error of the predictions, and the ratio of cuBLAS's time to this library's."""
    groups = defaultdict(list)
    for line in lines:
        groups[line["problem"].rsplit(":", 1)[1]].append(line)
    for dtype, some in groups.items():
        logs = np.array([math.log(line["plans"][0]["predicted"] / line["plans"][0]["seconds"]) for line in some])
        ratios = [line["cublas"] / line["plans"][0]["seconds"] for line in some if line["cublas"]]
        beside = f"cuBLAS/this mean {np.exp(np.mean(np.log(ratios))):.2f} worst {min(ratios):.2f}" if ratios else "no cuBLAS"
        wrong = sum(not plan["right"] for line in some for plan in line["plans"])
        errors = f"median {np.median(abs(logs)):.1%} p90 {np.quantile(abs(logs), 0.9):.1%} worst {abs(logs).max():.1%}"
        print(f"{dtype:<7}{len(some):>4} error {errors}, bias {np.median(logs):+.1%}; {beside}; wrong {wrong}", file=sys.stderr)


def compared(lines: list[dict[str, Any]]) -> None:
    """Per problem, in us: cuBLAS, then for this and each other build its first plan and its fastest kernel. Last the geometric means of the
    ratio of cuBLAS's time to theirs."""
    means = defaultdict(list)
    for line in lines:
        columns = list(zip(*([plan["seconds"], *plan["beside"]] for plan in line["plans"]), strict=True))
        words = []
        for build, seconds in enumerate(columns):
            own = [(one, plan["kernel"]) for one, plan in zip(seconds, line["plans"], strict=True) if one]
            plan, best = own[0][0], min(own)
            words.append(f"{1e6 * plan:9.1f} {1e6 * best[0]:9.1f} {best[1].split('_', 2)[2]:<32}")
            if line["cublas"]:
                means[build].append((line["cublas"] / plan, line["cublas"] / best[0]))
        print(f"{line['problem']:<28}{1e6 * (line['cublas'] or math.nan):9.1f} {' '.join(words)}", file=sys.stderr)
    for build, ratios in means.items():
        planned, best = np.exp(np.mean(np.log(ratios), axis=0))
        print(f"build {build}: cuBLAS/plan {planned:.3f}, worst {min(ratios)[0]:.2f}; cuBLAS/best {best:.3f}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*")
    parser.add_argument("-m", "--machine", default="cuda")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtypes", help="of all types those, as f32,tf32")
    parser.add_argument("--top", type=int, default=1, help="kernels, the best plan of each")
    parser.add_argument("--also", action="append", default=[], help="part of the names of kernels that are measured whatever their rank")
    parser.add_argument("--beside", action="append", default=[], help="another build's libpysim_cuda.so")
    parser.add_argument("--networks", action="store_true", help="half of the problems are of networks and solvers")
    parser.add_argument("--graphs", action="store_true", help="time calls in CUDA graphs")
    parser.add_argument("--f32", default="ieee", help="accuracy that f32 is planned with")
    options = parser.parse_args()
    from pysim.calibration import host
    from pysim.calibration.gpu_lab import DTYPES
    from pysim.runtime import cuda

    dtypes = options.dtypes.split(",") if options.dtypes else DTYPES
    texts = options.problems or [text for dtype in dtypes for text in random_products(dtype, options.count, options.seed, options.networks)]
    on, device, lines = host.any_machine(options.machine), cuda.devices()[0].name, []
    machine = on.name if options.machine == "cuda" else options.machine
    with multiprocessing.get_context("spawn").Pool() as pool:
        plan = partial(planned, machine=machine, top=options.top, f32=options.f32, also=tuple(options.also), graphs=options.graphs)
        plans = dict(pool.map(plan, texts))
    others = [other_build(path) for path in options.beside]
    for text in texts:
        line = {"machine": on.name, "device": device, "problem": text, "plans": plans[text]}
        lines.append(measured(line | ({"graphs": True} if options.graphs else {}), others, options.graphs))
        print(json.dumps(lines[-1]), flush=True)
    table(lines)
    if others:
        compared(lines)


if __name__ == "__main__":
    main()
