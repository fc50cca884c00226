#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares products of f64 by residues with the f64 kernels and cuBLAS on this computer's GPU: times, and errors against 64-bit mantissas.

    python lab/benchmarks/cuda/f64i8.py [-m cuda] [--seconds 60] [--errors] [problems] > lab/data/<gpu>/f64i8.jsonl

Problems: those of SHAPES, above 50 GFLOP, or given ones. Operands are normally distributed. Both plans are the best of their algorithm,
timed by events, interleaved with cuBLAS. One line per problem: {"machine", "device", "problem", "algorithms": {name: {"kernel", "schedule",
"predicted", "seconds"}}, "cublas", "version"}.

--errors: one line per kind of operands and k: {"kind", "k", "errors": {name: [largest, root mean square]}}, of errors over |A||B| in units
of 2^-53, on rows and columns that are sampled. Kinds: uniform in [-1, 1) and in [0, 1), normal, cancelling halves, log-uniform from 1e-10
to 1e10, graded (products of one size from numbers of very different size). Needs torch.
"""

import argparse
import json
import sys
import time
from typing import Any

import numpy as np

SHAPES = (
    "8192x8192x8192", "4096x4096x4096", "3072x3072x3072:nt", "6144x6144x6144", "16384x16384x4096", "8192x8192x1024", "8192x1024x8192:tn",
    "1024x8192x8192", "4096x4096x16384", "16384x512x4096", "512x16384x4096:tt", "32768x256x4096", "100000x64x8192", "2048x2048x8192",
    "2048x2048x65536:tn", "1024x1024x65536", "4096x4096x2048", "12288x4096x4096", "10000x10000x1000", "5000x5000x5000", "7000x3000x4000:nt",
    "3000x7000x4001", "9999x2222x3333:tn", "20000x2000x2000", "2000x20000x2000", "16384x8192x512", "4096x11008x4096:nt", "6000x6000x768",
    "2500x2500x20000", "8192x4096x2048",
)  # fmt: skip
KINDS = ("uniform", "positive", "normal", "cancelling", "log", "graded")
NAMES = ("gemm", "f64i8")


def short(number: float) -> float:
    return float(f"{number:.4g}")


def operands(kind: str, m: int, n: int, k: int) -> tuple[Any, Any]:
    import torch

    generator = torch.Generator(device="cuda").manual_seed(3)

    def drawn(*shape: int) -> Any:
        return torch.rand(*shape, generator=generator, dtype=torch.float64, device="cuda")

    if kind == "normal":
        a, b = (torch.randn(*shape, generator=generator, dtype=torch.float64, device="cuda") for shape in ((m, k), (k, n)))
    else:
        a, b = (drawn(*shape) if kind == "positive" else drawn(*shape) * 2 - 1 for shape in ((m, k), (k, n)))
    if kind == "cancelling":
        a[:, k // 2 :], b[k // 2 :] = -a[:, : k - k // 2] * (1 + 1e-12), b[: k - k // 2]
    if kind == "log":
        a, b = a.sign() * 10 ** (drawn(m, k) * 20 - 10), b.sign() * 10 ** (drawn(k, n) * 20 - 10)
    if kind == "graded":
        grades = 2.0 ** torch.linspace(-60, 60, k, dtype=torch.float64, device="cuda")
        a, b = a * grades, b / grades[:, None]
    return a, b


def calls(text: str, on: Any, a: Any, b: Any, c: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The best plan of each algorithm, and calls that run them."""
    import msgspec

    from pysim import planner
    from pysim.errors import PlanError
    from pysim.runtime import cuda

    plans, made = {}, {}
    for name in NAMES:
        try:
            plan = planner.plan(text, on, algorithm=name)
        except PlanError as error:
            print(f"{text}: {error}", file=sys.stderr)
            continue
        plans[name] = {"kernel": plan.kernel, "schedule": msgspec.to_builtins(plan.schedule), "predicted": short(plan.cost.seconds)}
        made[name] = cuda.Launch(plan.workload, plan.schedule).on((a.data_ptr(), b.data_ptr(), c.data_ptr())).run
    return plans, made


def measured(text: str, on: Any) -> dict[str, Any]:
    import torch

    from pysim.measure.clock import interleave
    from pysim.measure.events import Events
    from pysim.peers import cublas
    from pysim.problem.text import parse

    w: Any = parse(text)
    a, b = operands("normal", w.m, w.n, w.k)
    a, b = a.t().contiguous() if w.trans_a else a, b.t().contiguous() if w.trans_b else b
    c = torch.empty(w.m, w.n, dtype=torch.float64, device="cuda")
    plans, made = calls(text, on, a, b, c)
    made["cublas"], version = cublas.product(w, "f64", (a.data_ptr(), b.data_ptr(), c.data_ptr()))
    timed = interleave(made, Events(), min_samples=5, min_seconds=0.004, budget_seconds=2, warmup_seconds=0.01).samples
    seconds = {name: short(float(np.median(samples))) for name, samples in timed.items()}
    for name, plan in plans.items():
        plan["seconds"] = seconds[name]
    return {"problem": text, "algorithms": plans, "cublas": seconds["cublas"], "version": version}


def errors(kind: str, k: int, on: Any) -> dict[str, Any]:
    """Of 1024 x 1024 results every 64th row and every 32nd column, against sums with mantissas of 64 bits, whose own error is k 2^-64."""
    import torch

    m = n = 1024
    a, b = operands(kind, m, n, k)
    c = torch.empty(m, n, dtype=torch.float64, device="cuda")
    _, made = calls(f"gemm:{m}x{n}x{k}:f64", on, a, b, c)
    made["cublas"] = lambda: torch.mm(a, b, out=c)
    left, right = a[::64].cpu().numpy().astype(np.longdouble), b[:, ::32].cpu().numpy().astype(np.longdouble)
    products = [row[:, None] * right for row in left]
    exact, magnitude = (np.stack([of(one).sum(0) for one in products]) for of in (np.asarray, abs))
    found = {}
    for name, call in made.items():
        c.fill_(float("nan"))
        torch.cuda.synchronize()
        call()
        torch.cuda.synchronize()
        off = (abs(c[::64, ::32].cpu().numpy() - exact) / magnitude * 2.0**53).astype(float)
        found[name] = [short(float(off.max())), short(float(np.sqrt((off**2).mean())))]
    return {"kind": kind, "k": k, "errors": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*")
    parser.add_argument("-m", "--machine", default="cuda")
    parser.add_argument("--seconds", type=float, default=600, help="no further problem is begun after that")
    parser.add_argument("--errors", action="store_true")
    options = parser.parse_args()
    from pysim.calibration import host
    from pysim.runtime import cuda

    on, device, end, ratios = host.any_machine(options.machine), cuda.devices()[0].name, time.monotonic() + options.seconds, []
    about = {"machine": on.name, "device": device}
    if options.errors:
        for k in (256, 1024, 4096, 16384, 65536):
            for kind in KINDS:
                if time.monotonic() < end:
                    line = errors(kind, k, on)
                    print(json.dumps(about | line), flush=True)
                    print(kind, k, line["errors"], file=sys.stderr)
        return
    for text in options.problems or [f"gemm:{shape}:f64" for shape in SHAPES]:
        if time.monotonic() > end:
            break
        line = measured(text, on)
        print(json.dumps(about | line), flush=True)
        sizes = [int(size) for size in text.split(":")[1].split("x")]
        tera = 2e-12 * sizes[0] * sizes[1] * sizes[2]
        rates = {name: round(tera / plan["seconds"], 1) for name, plan in line["algorithms"].items()}
        predicted = {name: round(tera / plan["predicted"], 1) for name, plan in line["algorithms"].items()}
        print(f"{text:<32} TFLOP/s {rates} cublas {tera / line['cublas']:.1f} predicted {predicted}", file=sys.stderr)
        if "f64i8" in rates:
            planned = max(NAMES, key=lambda name: predicted[name])
            ratios.append(rates[planned] / rates["gemm"])
    if ratios:
        print(f"planned over f64: geometric mean {np.exp(np.log(ratios).mean()):.3f}, least {min(ratios):.2f}", file=sys.stderr)


if __name__ == "__main__":
    main()
