#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the accuracy of three products of tf32 halves with cuBLAS's FP32 for operands of every scale: errors against float64.

    python lab/benchmarks/cuda/split_error.py [-m cuda] > lab/data/tf32x3-error-<gpu>.jsonl

Operands: uniform in [-1, 1) and in [0, 1); log-uniform from 1e-20 to 1e20 in magnitude, either sign; and [-1, 1) with infinities in one of
ten rows of A and columns of B. Each kernel that multiplies halves runs its best plan. One line per kernel (or cuBLAS), shape and fill:
{"machine", "device", "problem", "fill", "kernel", "error", "relative", "special"}. `error`: the largest error over the root mean square of
the finite results; `relative`: the largest error over |A||B|; `special`: the number of results that are infinite or NaN when FP32's are
not, or the reverse (not counted if |A||B| is near FP32's largest number).
"""

import argparse
import json
import sys
from typing import Any

SHAPES = ("1024x1024x8", "1024x1024x64", "1024x1024x128", "1024x1024x512", "1024x1024x4096", "512x512x65536")
FILLS = ("[-1,1)", "[0,1)", "log", "infinities")
LARGEST = 3.4e38


def filled(fill: str, rows: int, columns: int, seed: int) -> Any:
    import torch

    generator = torch.Generator(device="cuda").manual_seed(seed)

    def draw() -> Any:
        return torch.rand(rows, columns, device="cuda", dtype=torch.float64, generator=generator)

    if fill == "[0,1)":
        return draw().float()
    if fill == "log":
        return (10 ** (draw() * 40 - 20) * torch.where(draw() < 0.5, -1.0, 1.0)).float()
    found = (draw() * 2 - 1).float()
    if fill == "infinities":
        found[torch.where(draw() < 0.1 / columns)] = float("inf")
        found[torch.where(draw() < 0.1 / columns)] = float("-inf")
    return found


def errors(got: Any, want: Any, scale: Any) -> dict[str, Any]:
    import torch

    rounded = want.float()
    near_overflow = (scale > LARGEST / 2) & ~torch.isinf(scale)
    fine = torch.isfinite(rounded) & torch.isfinite(got) & ~near_overflow
    wrong = ~near_overflow & ~fine & ~((got == rounded) | (torch.isnan(got) & torch.isnan(rounded)))
    found: dict[str, Any] = {"error": 0.0, "relative": 0.0, "special": int(wrong.sum())}
    if fine.any():
        off, rms = (got.double() - want).abs()[fine], want[fine].square().mean().sqrt()
        relative = (off / scale[fine].clamp(min=1e-30)).max()
        found |= {"error": float(f"{off.max() / rms:.3g}"), "relative": float(f"{relative:.3g}")}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--machine", default="cuda")
    options = parser.parse_args()
    import torch

    from pysim import planner
    from pysim.calibration import host
    from pysim.peers import cublas
    from pysim.problem.text import parse
    from pysim.runtime import cuda

    on, device = host.any_machine(options.machine), cuda.devices()[0].name
    for shape in SHAPES:
        text = f"gemm:{shape}:tf32x3"
        w, first = parse(text), {}
        for plan in planner.plans(text, on, top=10_000):
            first.setdefault(plan.kernel, plan)
        for fill in FILLS:
            a, b = filled(fill, w.m, w.k, 1), filled(fill, w.n, w.k, 2).t().contiguous()
            c = torch.empty(w.m, w.n, device="cuda")
            pointers = (a.data_ptr(), b.data_ptr(), c.data_ptr())
            want, scale = a.double() @ b.double(), a.double().abs() @ b.double().abs()
            calls = {"cublas": cublas.product(w, "f32", pointers)[0]}
            calls |= {kernel: cuda.Launch(w, plan.schedule).on(pointers).run for kernel, plan in first.items()}
            table = []
            for kernel, call in calls.items():
                c.fill_(-1.25)
                torch.cuda.synchronize()
                call()
                torch.cuda.synchronize()
                found = errors(c, want, scale)
                line = {"machine": on.name, "device": device, "problem": text, "fill": fill, "kernel": kernel}
                print(json.dumps(line | found), flush=True)
                special = f" SPECIAL {found['special']}" if found["special"] else ""
                table.append(f"{kernel.replace('tf32x3_', '')} {found['error']:.1e} [{found['relative']:.1e}]{special}")
            print(f"{shape} {fill}: {'; '.join(table)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
