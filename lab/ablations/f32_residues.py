#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times a prototype of f32 by 7 residues (f32_residues.cu) beside the planned split and cuBLAS: TFLOP/s and errors over 2^-24 |A||B|.

    nvcc -O3 -std=c++17 -Xcompiler=-fPIC,-fvisibility=hidden -I native/cuda -I native -DPYSIM_GPU_ARCHS='"90a"' -DPYSIM_HOPPER \\
        -DPYSIM_F64I8_MODULI=7 -gencode=arch=compute_90a,code=sm_90a -shared -cudart=static -o f32.so lab/ablations/f32_residues.cu
    python lab/ablations/f32_residues.py ./f32.so

Times are medians of events, interleaved; errors are [largest, root mean square] on every 64th row and column. Needs torch and Hopper.
"""

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from pysim import planner
from pysim.runtime import cuda

SHAPES = ((8192, 8192, 8192), (4096, 4096, 4096), (10240, 4096, 4096), (2048, 2048, 2048), (8192, 8192, 1024), (16384, 512, 4096))
MODULI, ROUNDS = 7, 4


def up(size: int, to: int) -> int:
    return (size + to - 1) // to * to


def prototype(library: Any, a: Any, b: Any, c: Any) -> dict[str, Callable[[], int]]:
    """The launches, in order, by name: C = A B, all rows dense."""
    (m, k), n = a.shape, b.shape[1]
    pitch, rows, columns = up(k, 128), up(m, 256), up(n, 64)
    stream, number, long = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream), ctypes.c_int, ctypes.c_long

    def room(size: int, dtype: Any) -> Any:
        return torch.zeros(size, dtype=dtype, device="cuda")

    to_a, to_b, to_c = (
        room(MODULI * rows * pitch, torch.int8),
        room(MODULI * n * pitch, torch.int8),
        room(MODULI * rows * columns, torch.uint8),
    )
    exponents_a, exponents_b, squares = room(m, torch.int32), room(n, torch.int32), room((k // 1024 + 3) * max(m, n), torch.float64)
    verdict = room(64, torch.int32)

    def at(x: Any) -> ctypes.c_void_p:
        return ctypes.c_void_p(x.data_ptr())

    def converted(x: Any, to: Any, size: int, height: int, exponents: Any, major: int) -> int:
        pitches = long(x.stride(0)), number(size), number(k), at(to), long(pitch), long(height * pitch)
        return int(library.conv32(at(x), *pitches, at(exponents), at(squares), number(major), stream))

    sizes = number(m), number(n)
    return {
        "a": lambda: converted(a, to_a, m, rows, exponents_a, 0),
        "b": lambda: converted(b, to_b, n, n, exponents_b, 1),
        "product": lambda: int(library.prod32(at(to_a), at(to_b), at(to_c), *sizes, number(k), long(pitch), at(verdict), stream)),
        "results": lambda: int(library.results(at(to_c), at(c), *sizes, at(exponents_a), at(exponents_b), stream)),
    }


def run(library: Any, m: int, n: int, k: int) -> None:
    generator = torch.Generator(device="cuda").manual_seed(1)
    a, b = (torch.randn(*shape, device="cuda", generator=generator) for shape in ((m, k), (k, n)))
    results = {name: torch.zeros(m, n, device="cuda") for name in ("residues", "split", "cublas")}
    parts, kept = prototype(library, a, b, results["residues"]), list[Any]()

    def make(size: int) -> tuple[Any, int]:
        kept.append(torch.zeros(size, dtype=torch.uint8, device="cuda"))
        return kept[-1], kept[-1].data_ptr()

    def residues() -> None:
        for name, part in parts.items():
            if code := part():
                raise SystemExit(f"{name}: the launch failed with {code}")

    plan: Any = planner.plan(f"gemm:{m}x{n}x{k}", "h200")
    split = cuda.Launch(plan.workload, plan.schedule).on((a.data_ptr(), b.data_ptr(), results["split"].data_ptr()), make=make).run
    calls: dict[str, Callable[[], Any]] = {
        **parts, "residues": residues, "split": split, "cublas": lambda: torch.mm(a, b, out=results["cublas"])
    }  # fmt: skip
    times: dict[str, list[float]] = {name: [] for name in calls}
    residues()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            call()
            begin.record()
            call()
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end))
    ms = {name: float(np.median(of)) for name, of in times.items()}
    left, right, errors = a[::64].double(), b[:, ::64].double(), {}
    exact, magnitude = left @ right, left.abs() @ right.abs()
    for name, c in results.items():
        off = (c[::64, ::64].double() - exact).abs() / magnitude * 2.0**24
        errors[name] = [round(float(off.max()), 3), round(float((off**2).mean().sqrt()), 4)]
    speeds = {name: round(2e-9 * m * n * k / ms[name], 1) for name in results}
    print(f"{m}x{n}x{k} TFLOP/s {speeds} ms { ({name: round(of, 3) for name, of in ms.items()}) } errors {errors}", flush=True)


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = False
    for shape in SHAPES:
        run(ctypes.CDLL(sys.argv[1]), *shape)
