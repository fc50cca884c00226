#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Solvers on products of f64 by residues beside the same on torch's (cuBLAS), and both products in CUDA graphs, on this computer's GPU.

    python lab/benchmarks/cuda/residues_solvers.py [--n 8192] [lu] [cg] [graphs] > lab/data/<gpu>/f64i8-solvers.jsonl

lu: factors with partial pivots, panels by torch.linalg, updates by products; max |P A - L U| / max |A|, and |A x - b| / (|A| |x|) of a
solve. cg: conjugate gradients with n / 32 right-hand sides; |b - A x| / |b| after 1, 11 and 40 steps. Matrices are formulas (MATRICES).
graphs: three products in a graph, TFLOP/s. One line each: {"device", "what", "problem", "cublas", "residues"}. Needs torch.
"""

import argparse
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from pysim.problem.gemm import Gemm
from pysim.record.schedule import GpuSchedule
from pysim.registry.cuda import gemm_kernels
from pysim.runtime import cuda

ROW = next(row.name for row in gemm_kernels() if row.residues)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # a CPU: in emulation
MATRICES = ("normal", "lehmer", "hilbert", "fiedler", "graded", "sine")
DEFINITE = ("lehmer", "hilbert")
SHAPES = ((8192, 8192, 8192), (4096, 4096, 4096), (2048, 2048, 8192), (1024, 8192, 8192), (8192, 8192, 1024))
STEPS, SHOWN = 40, (1, 11, 40)
Multiply = Callable[[Any, Any, Any, float, float], None]  # c = alpha a b + beta c
_workspaces: dict[int, Any] = {}


def by_residues(c: Any, a: Any, b: Any, alpha: float, beta: float) -> None:
    w = Gemm(m=a.shape[0], n=b.shape[1], k=a.shape[1], dtype="f64")

    def make(size: int) -> tuple[Any, int]:
        room = _workspaces.setdefault(size, torch.empty(size if size not in _workspaces else 0, dtype=torch.uint8, device=DEVICE))
        return room, room.data_ptr()

    launch = cuda.Launch(w, GpuSchedule(ROW, "data_parallel", 1, False, 2), pitches=(a.stride(0), b.stride(0), c.stride(0)))
    stream = torch.cuda.current_stream().cuda_stream if DEVICE == "cuda" else 0
    pointers = a.data_ptr(), b.data_ptr(), c.data_ptr()
    launch.on(pointers, epilogue=cuda.epilogue_struct(alpha, beta, 0, None), make=make, stream=stream).run()


def by_torch(c: Any, a: Any, b: Any, alpha: float, beta: float) -> None:
    c.addmm_(a, b, alpha=alpha, beta=beta)


WAYS: dict[str, Multiply] = {"cublas": by_torch, "residues": by_residues}


def matrix(name: str, n: int) -> Any:
    i = torch.arange(1, n + 1, dtype=torch.float64, device=DEVICE)
    if name == "lehmer":
        return torch.minimum(i[:, None], i) / torch.maximum(i[:, None], i)
    if name == "hilbert":
        return 1 / (i[:, None] + i - 1) + torch.diag(torch.full_like(i, 1e-3))
    if name == "fiedler":
        return (i[:, None] - i).abs()
    if name == "sine":
        return (2 / (n + 1)) ** 0.5 * torch.sin(i[:, None] * i * torch.pi / (n + 1))
    drawn = torch.randn(n, n, dtype=torch.float64, device=DEVICE, generator=torch.Generator(device=DEVICE).manual_seed(2))
    return drawn * 10.0 ** (-8 * i / n)[:, None] if name == "graded" else drawn


def factored(a: Any, multiply: Multiply, panel: int) -> tuple[Any, Any]:
    """L and U in one matrix, and the order of A's rows."""
    a, order = a.clone(), torch.arange(len(a), device=DEVICE)
    for begin in range(0, len(a), panel):
        end = min(begin + panel, len(a))
        permutation, lower, upper = torch.linalg.lu(a[begin:, begin:end])
        rows = permutation.T.argmax(1)  # row i of P' A is row rows[i] of A
        a[begin:], order[begin:] = a[begin:][rows].clone(), order[begin:][rows].clone()
        a[begin:, begin:end] = lower.tril(-1)
        a[begin:end, begin:end] += upper.triu()
        if end < len(a):
            right = a[begin:end, end:]
            right[:] = torch.linalg.solve_triangular(lower[: end - begin], right.clone(), upper=False, unitriangular=True)
            multiply(a[end:, end:], a[end:, begin:end].contiguous(), right, -1.0, 1.0)
    return a, order


def lu(name: str, n: int, multiply: Multiply) -> list[float]:
    a = matrix(name, n)
    b, (factors, order) = a @ torch.ones(n, 1, dtype=torch.float64, device=DEVICE), factored(a, multiply, max(1, n // 16))
    lower, upper = factors.tril(-1) + torch.eye(n, dtype=torch.float64, device=DEVICE), factors.triu()
    backward = (a[order] - lower @ upper).abs().max() / a.abs().max()
    middle = torch.linalg.solve_triangular(lower, b[order], upper=False, unitriangular=True)
    x = torch.linalg.solve_triangular(upper, middle, upper=True)
    return [float(backward), float(torch.linalg.norm(a @ x - b) / (torch.linalg.norm(a) * torch.linalg.norm(x)))]


def cg(name: str, n: int, multiply: Multiply) -> list[float]:
    a, generator = matrix(name, n), torch.Generator(device=DEVICE).manual_seed(4)
    b = torch.randn(n, max(1, n // 32), dtype=torch.float64, device=DEVICE, generator=generator)
    x, r, shown = torch.zeros_like(b), b.clone(), []
    p, square = r.clone(), (r * r).sum(0)
    for step in range(1, STEPS + 1):
        q = torch.empty_like(b)
        multiply(q, a, p, 1.0, 0.0)
        alpha = square / (p * q).sum(0)
        x, r = x + alpha * p, r - alpha * q
        p, square = r + (r * r).sum(0) / square * p, (r * r).sum(0)
        if step in SHOWN:
            shown.append(float(torch.linalg.norm(b - a @ x) / torch.linalg.norm(b)))
    return shown


def in_graph(shape: tuple[int, int, int], multiply: Multiply) -> float:
    """TFLOP/s: median of five replays of a graph of three products."""
    m, n, k = shape
    a, b = (torch.randn(*shape, dtype=torch.float64, device=DEVICE) for shape in ((m, k), (k, n)))
    c, graph, times = torch.zeros(m, n, dtype=torch.float64, device=DEVICE), torch.cuda.CUDAGraph(), []
    multiply(c, a, b, 1.0, 0.0)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(3):
            multiply(c, a, b, 1.0, 0.0)
    for _ in range(6):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return 6e-9 * m * n * k / float(np.median(times[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["graphs", "lu", "cg"])
    parser.add_argument("--n", type=int, default=8192)
    options = parser.parse_args()
    device = cuda.devices()[0].name

    def tell(what: str, problem: str, run: Callable[[Multiply], Any]) -> None:
        found = {name: run(way) for name, way in WAYS.items()}
        print(json.dumps({"device": device, "what": what, "problem": problem} | found), flush=True)

    for what in options.what:
        if what == "graphs":
            for shape in SHAPES:
                tell(what, f"gemm:{'x'.join(map(str, shape))}:f64", lambda way, shape=shape: round(in_graph(shape, way), 1))
        for name in {"lu": MATRICES, "cg": DEFINITE}.get(what, ()):
            one = lu if what == "lu" else cg
            tell(what, f"{name}({options.n})", lambda way, name=name, one=one: [float(f"{x:.3g}") for x in one(name, options.n, way)])


if __name__ == "__main__":
    main()
