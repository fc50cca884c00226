#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares products by residues with the plan without them and with cuBLAS on this computer's GPU: times in CUDA graphs, and errors.

    python lab/benchmarks/cuda/residues.py [-m cuda] [--dtype f32] [--seconds 60] [--errors | --passes] [problems]
        > lab/data/<gpu>/residues.jsonl

Problems: those of SHAPES, above 50 GFLOP, or given ones. Operands are normally distributed. Both plans are the best of their algorithm,
timed by events as replays of a graph of one product, interleaved with cuBLAS (f32: without and with TF32). One line per problem: {"device",
"problem", "seconds": {name: median}, "predicted": {name: seconds}, "outside", "version"}, of the plans "gemm" and "residues".

--errors: one line per kind of operands and k: {"kind", "k", "outside", "errors": {name: [largest, root mean square]}}, of errors over
|A||B| in units of the type's unit roundoff, on rows and columns that are sampled; f32 against f64, f64 against 64 bits of mantissa. `log`
is log-uniform from 1e-10 to 1e10, `graded` has products of one size from numbers of very different size, `log1` and `graded2` are less
extreme, `relu` has zeros for half of A. "outside": whether the operands were outside the bound. Needs torch.

--passes: one line per problem: {"device", "problem", "passes": [[kernel, microseconds], ...]}, the kernels of the plan by residues in their
order, by PyTorch's profiler, without a graph.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import torch

from pysim import planner
from pysim.calibration import host
from pysim.measure.clock import interleave
from pysim.measure.events import Events
from pysim.peers import cublas
from pysim.problem.gemm import Gemm
from pysim.problem.text import parse
from pysim.runtime import cuda

SHAPES = (
    "8192x8192x8192", "4096x4096x4096", "3072x3072x3072:nt", "6144x6144x6144", "16384x16384x4096", "8192x8192x1024", "8192x1024x8192:tn",
    "1024x8192x8192", "4096x4096x16384", "16384x512x4096", "512x16384x4096:tt", "32768x256x4096", "100000x64x8192", "2048x2048x8192",
    "2048x2048x65536:tn", "1024x1024x65536", "4096x4096x2048", "12288x4096x4096", "10000x10000x1000", "5000x5000x5000", "7000x3000x4000:nt",
    "3000x7000x4001", "9999x2222x3333:tn", "20000x2000x2000", "2000x20000x2000", "16384x8192x512", "4096x11008x4096:nt", "6000x6000x768",
    "2500x2500x20000", "8192x4096x2048",
)  # fmt: skip
KINDS = ("uniform", "positive", "normal", "cancelling", "log", "log1", "graded", "graded2", "relu")
NAMES = ("gemm", "residues")
TYPES = {"f64": torch.float64, "f32": torch.float32}
UNITS = {"f64": 2.0**-53, "f32": 2.0**-24}
Call = Callable[[], object]


def short(number: float) -> float:
    return float(f"{number:.4g}")


def operands(kind: str, m: int, n: int, k: int, dtype: str) -> tuple[Any, Any]:
    generator, type_ = torch.Generator(device="cuda").manual_seed(3), TYPES[dtype]

    def drawn(*shape: int) -> Any:
        return torch.rand(*shape, generator=generator, dtype=type_, device="cuda")

    if kind in ("normal", "relu"):
        a, b = (torch.randn(*shape, generator=generator, dtype=type_, device="cuda") for shape in ((m, k), (k, n)))
        return a.relu() if kind == "relu" else a, b
    a, b = (drawn(*shape) if kind == "positive" else drawn(*shape) * 2 - 1 for shape in ((m, k), (k, n)))
    if kind == "cancelling":
        a[:, k // 2 :], b[k // 2 :] = -a[:, : k - k // 2] * (1 + (1e-12 if dtype == "f64" else 1e-5)), b[: k - k // 2].clone()
    if kind in ("log", "log1"):
        decades = 10 if kind == "log" else 1
        a, b = a.sign() * 10 ** ((drawn(m, k) * 2 - 1) * decades), b.sign() * 10 ** ((drawn(k, n) * 2 - 1) * decades)
    if kind in ("graded", "graded2"):
        octaves = 60 if kind == "graded" else 2
        grades = 2.0 ** torch.linspace(-octaves, octaves, k, dtype=type_, device="cuda")
        a, b = a * grades, b / grades[:, None]
    return a, b


class Product:
    """A product's operands, and calls that compute it: the best plan of each algorithm, and cuBLAS."""

    def __init__(self, text: str, kind: str, on: Any) -> None:
        w = parse(text)
        assert isinstance(w, Gemm)
        self.a, self.b = operands(kind, w.m, w.n, w.k, w.dtype)
        stored = (self.a.t().contiguous() if w.trans_a else self.a, self.b.t().contiguous() if w.trans_b else self.b)
        self.c = torch.empty(w.m, w.n, dtype=TYPES[w.dtype], device="cuda")
        self.kept, self.verdict, self.predicted, self.calls = list[Any](stored), None, dict[str, float](), dict[str, Call]()
        self.stream = torch.cuda.Stream()
        pointers = stored[0].data_ptr(), stored[1].data_ptr(), self.c.data_ptr()
        for name in NAMES:
            plan: Any = planner.plan(text, on, algorithm=name)
            self.predicted[name] = short(plan.cost.seconds)
            launch = cuda.Launch(plan.workload, plan.schedule)
            self.calls[name] = launch.on(pointers, make=self.room, stream=self.stream.cuda_stream).run
        room = self.kept[-1]  # flag 2 at its beginning says whether operands were outside (native/cuda/gemm/residues/scheme.h)
        first = -room.data_ptr() % 256
        self.verdict = room[first : first + 12].view(torch.int32)
        for name, dtype in {"cublas": w.dtype, "cublas_tf32": "tf32"}.items():
            if name == "cublas" or w.dtype == "f32":
                own = msgspec.structs.replace(w, dtype=dtype)
                self.calls[name], self.version = cublas.product(own, w.dtype, pointers, self.stream.cuda_stream)

    def room(self, size: int) -> tuple[Any, int]:
        self.kept.append(torch.zeros(max(size, 1), dtype=torch.uint8, device="cuda"))
        return self.kept[-1], self.kept[-1].data_ptr()

    def graphs(self) -> dict[str, Call]:
        """The calls as replays of graphs."""
        made = dict[str, Call]()
        for name, call in self.calls.items():
            call()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.stream):
                call()
            made[name] = graph.replay
        return made

    @property
    def outside(self) -> bool:
        assert self.verdict is not None
        return bool(self.verdict[2])


def measured(text: str, on: Any) -> dict[str, Any]:
    one = Product(text, "normal", on)
    timed = interleave(one.graphs(), Events(), min_samples=7, min_seconds=0.002, budget_seconds=0.8, warmup_seconds=0.01).samples
    seconds = {name: short(float(np.median(samples))) for name, samples in timed.items()}
    return {"problem": text, "seconds": seconds, "predicted": one.predicted, "outside": one.outside, "version": one.version}


def passes(text: str, on: Any, calls: int = 5) -> dict[str, Any]:
    """Medians over calls of each kernel's time."""
    call = Product(text, "normal", on).calls["residues"]
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    events = sorted((e for e in profiler.events() if e.device_type.name == "CUDA"), key=lambda e: e.time_range.start)
    each = [events[first :: len(events) // calls] for first in range(len(events) // calls)]
    names = [re.search(r"(\w+)(<.*>)?\(|(\w+)$", of[0].name) for of in each]
    times = [short(float(np.median([e.time_range.elapsed_us() for e in of]))) for of in each]
    return {"problem": text, "passes": [[name and (name[1] or name[3]), us] for name, us in zip(names, times, strict=True)]}


def exact_of(a: Any, b: Any, dtype: str) -> tuple[Any, Any]:
    """Of every 64th row and every 32nd column: A B and |A||B|, whose own error is k 2^-53 (f32) or k 2^-64."""
    left, right = a[::64], b[:, ::32]
    if dtype == "f32":
        left, right = left.double(), right.double()
        return (left @ right).cpu().numpy(), (left.abs() @ right.abs()).cpu().numpy()
    left, right = left.cpu().numpy().astype(np.longdouble), right.cpu().numpy().astype(np.longdouble)
    products = [row[:, None] * right for row in left]
    return np.stack([p.sum(0) for p in products]), np.stack([abs(p).sum(0) for p in products])


def errors(kind: str, k: int, on: Any, dtype: str) -> dict[str, Any]:
    """Of 1024 x 1024 results."""
    one = Product(f"gemm:1024x1024x{k}:{dtype}", kind, on)
    exact, magnitude = exact_of(one.a, one.b, dtype)
    found = {}
    for name, call in one.calls.items():
        one.c.fill_(float("nan"))
        torch.cuda.synchronize()
        call()
        torch.cuda.synchronize()
        off = (abs(one.c[::64, ::32].cpu().numpy() - exact) / magnitude / UNITS[dtype]).astype(float)
        found[name] = [short(float(off.max())), short(float(np.sqrt((off**2).mean())))]
    return {"kind": kind, "k": k, "outside": one.outside, "errors": found}


def report(text: str, line: dict[str, Any]) -> tuple[float, float]:
    """Prints rates; the planned over the plan without residues, and over cuBLAS."""
    sizes = [int(size) for size in text.split(":")[1].split("x")]
    tera, seconds = 2e-12 * sizes[0] * sizes[1] * sizes[2], line["seconds"]
    planned = min(NAMES, key=lambda name: line["predicted"][name])
    rates, expected = ({name: round(tera / of[name], 1) for name in of} for of in (seconds, line["predicted"]))
    print(f"{text:<30} {planned:<8} TFLOP/s {rates} predicted {expected}", file=sys.stderr, flush=True)
    return seconds["gemm"] / seconds[planned], seconds["cublas"] / seconds[planned]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*")
    parser.add_argument("-m", "--machine", default="cuda")
    parser.add_argument("--dtype", choices=sorted(TYPES), default="f64")
    parser.add_argument("--seconds", type=float, default=600, help="no further problem is begun after that")
    parser.add_argument("--errors", action="store_true")
    parser.add_argument("--passes", action="store_true")
    options = parser.parse_args()
    on, about, end = host.any_machine(options.machine), {"device": cuda.devices()[0].name}, time.monotonic() + options.seconds
    dtype, ratios = options.dtype, []
    if options.errors:
        for kind, k in ((kind, k) for k in (256, 1024, 4096, 16384, 65536) for kind in KINDS):
            if time.monotonic() < end:
                line = {"dtype": dtype} | errors(kind, k, on, dtype)
                print(json.dumps(about | line), flush=True)
                print(kind, k, line["outside"], line["errors"], file=sys.stderr, flush=True)
        return
    for text in options.problems or [f"gemm:{shape}:{dtype}" for shape in SHAPES]:
        if time.monotonic() > end:
            break
        if options.passes:
            print(json.dumps(about | passes(text, on)), flush=True)
            continue
        line = measured(text, on)
        print(json.dumps(about | line), flush=True)
        ratios.append(report(text, line))
    if not ratios:
        return
    for over, of in zip(("the plan without residues", "cuBLAS"), np.array(ratios).reshape(-1, 2).T, strict=True):
        print(f"planned over {over}: geometric mean {np.exp(np.log(of).mean()):.3f}, least {of.min():.3f}", file=sys.stderr)


if __name__ == "__main__":
    main()
