#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Products by residues whose B is prepared (`pysim.prepare`), beside those that convert it, the plan without residues and cuBLAS.

    python lab/benchmarks/cuda/residues_kept.py [problems] > lab/data/<gpu>/residues-kept.jsonl

Calls of the Python API as graphs of one product, interleaved; operands are normally distributed. One line per problem: {"device",
"problem", "same": whether both have the same bits, "outside": whether a product of an A with an infinity is right elsewhere, "seconds":
{name: median}, "planned", "planned_prepared": algorithms}. Needs torch.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import pysim
from pysim import planner
from pysim.calibration import host
from pysim.measure.clock import interleave
from pysim.measure.events import Events
from pysim.problem.gemm import Gemm
from pysim.problem.text import parse
from pysim.runtime import cuda

PROBLEMS = [f"gemm:{shape}:f64" for shape in (
    "8192x8192x8192", "4096x4096x4096", "1024x8192x8192", "8192x1024x8192", "2048x8192x2048", "512x8192x8192", "256x16384x8192",
    "1024x8192x8192:nt",
)]  # fmt: skip
NAMES = ("kept", "residues", "gemm", "cublas")


def replays(calls: dict[str, Callable[[], Any]]) -> dict[str, Callable[[], object]]:
    """The calls as replays of graphs."""
    stream, made = torch.cuda.Stream(), dict[str, Callable[[], object]]()
    for name, call in calls.items():
        with torch.cuda.stream(stream):
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            call()
        made[name] = graph.replay
    return made


def measured(text: str, on: Any) -> dict[str, Any]:
    w = parse(text)
    assert isinstance(w, Gemm)
    a = torch.randn(w.m, w.k, dtype=torch.float64, device="cuda")
    b = torch.randn(*((w.n, w.k) if w.trans_b else (w.k, w.n)), dtype=torch.float64, device="cuda")
    plans: Any = {name: planner.plan(w, on, algorithm=name) for name in ("residues", "gemm")}
    product: Any = pysim.prepare(w, b, plan=plans["residues"])
    out = {
        name: torch.full((w.m, w.n), float("nan"), dtype=torch.float64, device="cuda") for name in ("kept", "residues", "gemm", "cublas")
    }

    def planned(name: str) -> Callable[[], Any]:
        return lambda: pysim.gemm(a, b, trans_b=w.trans_b, plan=plans[name], out=out[name])

    calls = {"kept": lambda: product(a, out=out["kept"]), "residues": planned("residues"), "gemm": planned("gemm")}
    calls["cublas"] = lambda: torch.mm(a, b.t() if w.trans_b else b, out=out["cublas"])
    timed = interleave(replays(calls), Events(), min_samples=7, min_seconds=0.002, budget_seconds=0.8, warmup_seconds=0.01).samples
    same = torch.equal(out["kept"], out["residues"])
    a[0, 0] = float("inf")
    found = product(a)
    elsewhere = bool((found[1:] - out["gemm"][1:]).abs().max() < 1e-9) and not bool(torch.isfinite(found[0]).any())
    return {
        "problem": text,
        "same": same,
        "outside": elsewhere,
        "seconds": {name: float(f"{np.median(samples):.4g}") for name, samples in timed.items()},
        "planned": planner.plan(w, on).algorithm,
        "planned_prepared": planner.plan(w, on, prepared=True).algorithm,
    }


def main() -> None:
    on, about = host.any_machine("cuda"), {"device": cuda.devices()[0].name}
    for text in sys.argv[1:] or PROBLEMS:
        print(json.dumps(about | measured(text, on)), flush=True)


if __name__ == "__main__":
    main()
