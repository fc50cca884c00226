#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures every legal launch of many matrix products on this computer's GPU, for lab/fits/fit_gpu.py.

    lab/benchmarks/cuda/planner.py -o planner.json [--seconds 330] [--dtypes f32,f16] [--only TEXT]

For each shape and type: all kernels x decompositions that the planner may choose from, each with the rasterisation that it would choose.
Each is checked once against the float64 product of random operands (|got - want| <= gamma_k |A||B| + u |want|; C starts as NaN). Then
candidates are timed by events in rounds, in random order: one sample each, then more of cuBLAS and of those within KEEP of the best so far.
A wrong candidate is listed and not timed. Each problem gets time in proportion to its predicted work; candidates for which the budget does
not suffice are listed as left out. Needs torch (the checks run on the GPU) and the CUDA library ($PYSIM_CUDA_LIBRARY).
"""

import argparse
import json
import math
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from pysim.calibration import host
from pysim.errors import MissingError, PysimError, run_script
from pysim.measure.events import Events
from pysim.peers import cublas as cublas_peer
from pysim.planner import candidates
from pysim.problem.gemm import Gemm
from pysim.record.schedule import DECOMPOSITIONS
from pysim.registry.cuda import gemm_kernels
from pysim.runtime import cuda
from pysim.runtime.cuda import Bound, DeviceArray, Launch

SQUARES = [128, 192, 256, 384, 512, 640, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 8192]
SKINNY = [
    (8, 4096, 4096), (16, 4096, 4096), (32, 8192, 2048), (64, 10240, 4096), (128, 4096, 4096), (192, 6144, 1536), (256, 2048, 8192),
    (10240, 64, 4096), (8192, 16, 1024), (4096, 128, 11008), (16384, 256, 512), (2048, 96, 2048), (10240, 4096, 4096), (512, 11008, 4096),
]  # fmt: skip
DEEP = [
    (64, 64, 65536), (128, 128, 32768), (256, 256, 16384), (512, 512, 16384), (1024, 256, 12288), (384, 640, 20480), (1024, 1024, 8192),
    (96, 2048, 16384), (2048, 2048, 8192),
]  # fmt: skip
FLAT = [(5120, 5120, 64), (4096, 4096, 32), (8192, 2048, 128), (2048, 2048, 256), (1536, 3072, 96), (10240, 1024, 192)]
RAGGED = [
    (1000, 1000, 1000), (1023, 1025, 1027), (333, 777, 555), (2049, 2047, 2048), (4097, 129, 515), (129, 4097, 1000), (5001, 503, 517),
    (100, 100, 100), (3000, 3000, 3000), (1600, 500, 2500), (65, 65, 8000), (2500, 250, 12345), (7000, 900, 300), (4111, 2053, 1031),
]  # fmt: skip
SHAPES = [(n, n, n) for n in SQUARES] + SKINNY + DEEP + FLAT + RAGGED

KEEP, MIDDLE = 1.3, 1.8  # ratio to the best so far: up to KEEP timed in all rounds, up to MIDDLE timed a second time
ROUNDS = 8  # rounds for those within KEEP
SHORT = 2e-4  # seconds
CHUNK = 2048  # columns that one check compares at a time


class Operands:
    """Random A and B for any of the shapes, one buffer each, and C with a guard value; torch views them for the checks."""

    def __init__(self, dtype: str, shapes: list[tuple[int, int, int]]) -> None:
        import torch

        self.torch, self.dtype, self.result = torch, dtype, cuda.result_of(dtype)
        kind = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]
        torch.manual_seed(1)
        self.a = (torch.rand(max(m * k for m, _, k in shapes), device="cuda", dtype=torch.float32) * 2 - 1).to(kind)
        self.b = (torch.rand(max(k * n for _, n, k in shapes), device="cuda", dtype=torch.float32) * 2 - 1).to(kind)
        self.c = torch.empty(max(m * n for m, n, _ in shapes), device="cuda", dtype=kind)
        torch.cuda.synchronize()

    def pointers(self) -> tuple[int, int, int]:
        return self.a.data_ptr(), self.b.data_ptr(), self.c.data_ptr()

    def want(self, w: Gemm):
        """(A B in float64, its bound) for the whole product."""
        a, b = self.a[: w.m * w.k].view(w.m, w.k), self.b[: w.k * w.n].view(w.k, w.n)
        unit = w.k * 2.0**-23
        out = 2.0**-11 if self.result == "f16" else 2.0**-24
        want = a.double() @ b.double()
        bound = (a.float().abs() @ b.float().abs()).double() * (unit / (1 - min(0.5, unit))) * 1.01 + out * want.abs()
        return want, bound

    def right(self, w: Gemm, launch: Bound, want) -> bool:
        c = self.c[: w.m * w.n].view(w.m, w.n)
        c.fill_(float("nan"))
        self.torch.cuda.synchronize()
        launch.run()
        cuda.synchronize()
        return all(bool(((c[:, j : j + CHUNK].double() - want[0][:, j : j + CHUNK]).abs() <= want[1][:, j : j + CHUNK]).all())
                   for j in range(0, w.n, CHUNK))  # fmt: skip


class Timed:
    """A launch and its measurements."""

    def __init__(self, launch: Bound, row: list) -> None:
        self.launch, self.row, self.samples = launch, row, []

    def sample(self, count: int) -> None:
        """Takes samples. A short launch gets an untimed call first, since other libraries' calls leave the host's caches cold."""
        self.samples += self.launch.time(count, 1 if self.short else 0).tolist()

    @property
    def short(self) -> bool:
        """Whether the launch is so short that host overhead could show in its time."""
        return not self.samples or min(self.samples) < SHORT

    @property
    def seconds(self) -> float:
        return float(np.median(self.samples))

    @property
    def least(self) -> float:
        """The minimum of all samples, so that one disturbed sample does not eliminate a launch."""
        return min(self.samples)


def measure(w: Gemm, operands: Operands, gpu, workspace: DeviceArray, deadline: float) -> dict:
    """Measures all candidates of one product until `deadline`."""
    found, wrong, left, predicted = [], [], 0, {}
    want = operands.want(w)
    names = {row.name: row.index for row in gemm_kernels()}
    for schedule, seconds in candidates(w, gpu, within=math.inf):
        if time.monotonic() > deadline:
            left += 1
            continue
        row = [names[schedule.kernel], DECOMPOSITIONS.index(schedule.decomposition), schedule.splits, int(schedule.along_n), schedule.group]
        predicted[tuple(row)] = seconds
        try:
            launch = Launch(w, schedule, result=operands.result).on(operands.pointers(), make=lambda size: fitting(workspace, size))
            if not operands.right(w, launch, want):
                wrong.append([*row, "wrong result"])
                continue
        except PysimError as error:
            wrong.append([*row, str(error)])
            continue
        found.append(Timed(launch, row))
        found[-1].sample(1)
    cublas = peer(w, operands)
    best = min((one.least for one in found), default=0.0)
    for one in found:
        if one.least <= MIDDLE * best:
            one.sample(1)
    theirs, turns = [], random.Random(1)
    events = Events()
    for _ in range(ROUNDS):
        best = min((one.least for one in found), default=0.0)
        for one in turns.sample(found, len(found)):
            if one.least <= KEEP * best:
                one.sample(1)
        if cublas:
            theirs.append(events.seconds(cublas))
    return {
        "problem": w.text,
        "cublas": float(np.median(theirs)) if theirs else None,
        "launches": [[*one.row, short(one.seconds), len(one.samples), short(predicted[tuple(one.row)])] for one in found],
        "wrong": wrong,
        "left_out": left,
    }


def short(seconds: float) -> float:
    """Rounds to five digits, the precision of a median of events."""
    return float(f"{seconds:.5g}")


def fitting(workspace: DeviceArray, size: int) -> tuple[DeviceArray, int]:
    if size > workspace.nbytes:
        raise PysimError(f"its workspace of {size} bytes is larger than the benchmark's {workspace.nbytes}")
    return workspace, workspace.pointer


def peer(w: Gemm, operands: Operands):
    """cuBLAS's call, warmed up, or None without cuBLAS."""
    try:
        call, _ = cublas_peer.product(w, operands.result, operands.pointers())
        for _ in range(3):
            call()
    except MissingError as error:
        print(f"no cuBLAS: {error}", file=sys.stderr)
        return None
    return call


def work(w: Gemm) -> float:
    """Weight of a problem in the division of the time: a constant for the number of its launches, plus their length."""
    return 0.3 + w.flops / 2e11


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=330.0, help="for everything")
    parser.add_argument("--dtypes", default="f32,f16")
    parser.add_argument("--only", default="", help="problems whose text contains this")
    options = parser.parse_args()
    started, gpu, device = time.monotonic(), host.gpu_here(), cuda.devices()[0]
    dtypes = options.dtypes.split(",")
    problems = {dtype: [Gemm(m=m, n=n, k=k, dtype=dtype) for m, n, k in SHAPES] for dtype in dtypes}
    problems = {dtype: [w for w in some if options.only in w.text] for dtype, some in problems.items()}
    left = sum(work(w) for some in problems.values() for w in some)
    workspace = DeviceArray((3 << 30,), "u8")
    attributes = {row.name: of(row) for row in gemm_kernels()}
    document: dict[str, Any] = {
        "schema": 1, "device": {name: getattr(device, name) for name in device.__struct_fields__}, "machine": gpu.name,
        "command": " ".join(sys.argv), "date": time.strftime("%Y-%m-%d"), "kernels": [row.name for row in gemm_kernels()],
        "columns": ["kernel", "decomposition", "splits", "along_n", "group", "seconds", "samples", "predicted"],
        "decompositions": DECOMPOSITIONS, "attributes": attributes, "problems": [],
    }  # fmt: skip
    for dtype, some in problems.items():
        operands = Operands(dtype, [(w.m, w.n, w.k) for w in some])
        for w in some:
            remaining = options.seconds - (time.monotonic() - started)
            share, left = work(w) / left * remaining, left - work(w)
            started_at = time.monotonic()
            document["problems"].append(measure(w, operands, gpu, workspace, started_at + 2.5 * share))
            options.out.write_text(json.dumps(document))
            tell(document["problems"][-1], time.monotonic() - started_at)
        del operands
    print(f"{len(document['problems'])} problems in {time.monotonic() - started:.0f} s")


def of(row) -> dict | None:
    """The compiler's facts about a kernel, from the library."""
    try:
        found = cuda.attributes(Gemm(m=128, n=128, k=128, dtype=row.dtype), row.name)
    except PysimError as error:
        print(f"{row.name}: {error}", file=sys.stderr)
        return None
    return {name: getattr(found, name) for name in found.__struct_fields__}


def tell(one: dict, seconds: float) -> None:
    launches = sorted(one["launches"], key=lambda launch: launch[5])
    if not launches:
        print(f"{one['problem']}: nothing ran, {len(one['wrong'])} wrong, {one['left_out']} left out", flush=True)
        return
    best, chosen = launches[0], min(launches, key=lambda launch: launch[7])
    ratio = f"{one['cublas'] / best[5]:.2f}" if one["cublas"] else "-"
    print(
        f"{one['problem']:<28} {len(launches):>4} launches {seconds:5.1f} s  best {best[5] * 1e6:9.1f} us",
        f"chosen {chosen[5] / best[5]:.3f}  predicted/measured {chosen[7] / chosen[5]:.2f}  cuBLAS/best {ratio}",
        f"wrong {len(one['wrong'])} left {one['left_out']}",
        sep="  ",
        flush=True,
    )


if __name__ == "__main__":
    run_script(main)
