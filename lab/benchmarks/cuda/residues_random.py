#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random products by residues against exact sums: none may be off by more than docs/accuracy.md proves.

    python lab/benchmarks/cuda/residues_random.py [--dtype f32] [--count 10000] [--seconds 60] > lab/data/<gpu>/residues-random.jsonl

Each seed draws a kind of operands (KINDS), sizes (log-uniform; one in ten with k up to 65,536), a layout, a rasterisation, and the row and
decomposition of the kernel that computes operands outside the bound. All results are compared with torch's in f64, within both bounds, and
some with sums of 64 bits of mantissa; infinities and NaN must lie where torch has them. Every fifth product is repeated in another layout
and schedule: its bits must be the same. One line per kind and kernel: {"device", "dtype", "kind", "outside", "products", "worst" (of the
error over the bound)}; then {"device", "dtype", "products", "outside", "repeated", "wrong": [...]}. Needs torch.
"""

import argparse
import json
import sys
import time
from typing import Any, NamedTuple

import numpy as np
import torch

from pysim.algorithms.gpu import residues
from pysim.problem.gemm import Gemm
from pysim.record.schedule import Decomposition, GpuSchedule
from pysim.registry.cuda import gemm_kernels
from pysim.runtime import cuda

UNITS = {"f64": 2.0**-53, "f32": 2.0**-24}
TYPES = {"f64": torch.float64, "f32": torch.float32}
KINDS = (
    "uniform", "positive", "normal", "cancelling", "log", "graded", "sparse", "scaled", "integers", "outlier", "cauchy", "spread",
    "denormals", "infinities", "nans", "huge", "zero rows", "constant", "tiny",
)  # fmt: skip
ROWS = {row.dtype: row.name for row in gemm_kernels() if row.residues}
OTHERS = {dtype: [row.name for row in gemm_kernels() if residues.waits(row, dtype)] for dtype in ROWS}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # a CPU: in emulation
LOG2_SIZES = ((0.0, 9.0), (0.0, 9.0), (4.5, 13.0)) if DEVICE == "cuda" else ((0.0, 4.5), (0.0, 6.5), (4.5, 9.0))  # of m, n and k
LONG_K, SHORT_SIDE = 20_000, 64


class Decades(NamedTuple):
    """Powers of ten of some kinds of operands."""

    scaled: int
    outlier: int
    denormal: int
    huge: int


DECADES = {"f64": Decades(200, 40, 310, 300), "f32": Decades(30, 20, 40, 30)}


class Case(NamedTuple):
    dtype: str
    seed: int
    kind: str
    m: int
    n: int
    k: int


def case_of(dtype: str, seed: int, rng: np.random.Generator) -> Case:
    kind = KINDS[rng.integers(len(KINDS))]
    m, n, k = (int(2 ** rng.uniform(*log2)) for log2 in LOG2_SIZES)
    if rng.random() < 0.1 and DEVICE == "cuda":
        k = int(2 ** rng.uniform(0, 16))
    if rng.random() < 0.2:
        m, n, k = (max(1, round(size / 64) * 64) for size in (m, n, k))
    if k > LONG_K:
        m, n = min(m, SHORT_SIDE), min(n, SHORT_SIDE)
    return Case(dtype, seed, kind, m, n, max(k, 2))


def operands(case: Case) -> tuple[Any, Any]:
    a, b = drawn_operands(case)
    return a.to(TYPES[case.dtype]), b.to(TYPES[case.dtype])


def drawn_operands(case: Case) -> tuple[Any, Any]:
    """In f64."""
    generator = torch.Generator(device=DEVICE).manual_seed(case.seed)
    m, n, k = case[3:]
    decades = DECADES[case.dtype]

    def drawn(*shape: int) -> Any:
        return torch.rand(*shape, generator=generator, dtype=torch.float64, device=DEVICE)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator, dtype=torch.float64, device=DEVICE)

    def below(limit: int) -> int:
        return int(torch.randint(limit, (1,), generator=generator, device=DEVICE))

    a, b = drawn(m, k) * 2 - 1, drawn(k, n) * 2 - 1
    match case.kind:
        case "positive":
            return a.abs(), b.abs()
        case "normal":
            return normal(m, k), normal(k, n)
        case "cauchy":
            return normal(m, k) / normal(m, k), normal(k, n)
        case "cancelling":
            half = k // 2
            a[:, k - half :], b[k - half :] = -a[:, :half] * (1 + 10.0 ** -(2 + below(13))), b[:half].clone()
        case "log":
            return a * 10 ** (drawn(m, k) * 20 - 10), b * 10 ** (drawn(k, n) * 20 - 10)
        case "graded":
            grades = 2.0 ** torch.linspace(-60, 60, k, dtype=torch.float64, device=DEVICE)
            return a * grades, b / grades[:, None]
        case "sparse":
            return a * (drawn(m, k) < 10 ** -(drawn(1) * 2)), b * (drawn(k, n) < 10 ** -(drawn(1) * 2))
        case "scaled":
            most = decades.scaled
            return a * 10.0 ** (drawn(m, 1) * most - most / 2), b * 10.0 ** (drawn(1, n) * most - most / 2)
        case "integers":
            return torch.round(a * 2 ** below(24)), torch.round(b * 2 ** below(24))
        case "outlier":
            a[below(m), below(k)] *= 10.0 ** below(decades.outlier)
            b[below(k), below(n)] *= 10.0 ** below(decades.outlier)
        case "spread":
            sigma = 10.0 ** (drawn(1) * 2 - 1)
            return a * 2.0 ** (sigma * normal(m, k)), b * 2.0 ** (sigma * normal(k, n))
        case "denormals":
            least = 10.0**-decades.denormal
            return torch.where(drawn(m, k) < 0.5, a * least, a), torch.where(drawn(k, n) < 0.3, b * least, b)
        case "infinities":
            a[below(m), below(k)], b[below(k), below(n)] = float("inf"), -float("inf")
        case "nans":
            a[below(m), below(k)] = float("nan")
        case "huge":
            return a * 10.0 ** below(decades.huge), b * 10.0 ** -below(decades.huge)
        case "zero rows":
            a[below(m)], b[:, below(n)] = 0, 0
        case "constant":
            a[:], b[:] = a[0, 0].clone(), b[0, 0].clone()
        case "tiny":
            return a * 10.0 ** -(drawn(1) * decades.huge), b * 10.0 ** -(drawn(1) * decades.huge)
    return a, b


def schedule_of(case: Case, rng: np.random.Generator) -> GpuSchedule:
    choices: list[tuple[Decomposition, int]] = [("data_parallel", 1)]
    if case.k > 64:
        choices += [("split_k", int(rng.integers(2, 3 + min(18, case.k // 32 - 2)))), ("stream_k", 2)]
    decomposition, splits = choices[rng.integers(len(choices))]
    along_n, group, other = bool(rng.integers(2)), int(2 ** rng.integers(6)), OTHERS[case.dtype][rng.integers(len(OTHERS[case.dtype]))]
    return GpuSchedule(ROWS[case.dtype], decomposition, splits, along_n, group, other)


def product(a: Any, b: Any, layout: int, schedule: GpuSchedule) -> tuple[Any, bool]:
    """A B, and whether it was outside the bound: flag 2 at the beginning of the workspace (native/cuda/gemm/residues/scheme.h)."""
    (m, k), n, dtype = a.shape, b.shape[1], next(name for name, one in TYPES.items() if one == a.dtype)
    w = Gemm(m=m, n=n, k=k, trans_a=bool(layout & 1), trans_b=bool(layout & 2), dtype=dtype)
    left, right = (x.t().contiguous() if trans else x.contiguous() for x, trans in ((a, w.trans_a), (b, w.trans_b)))
    c = torch.full((m, n), float("nan"), dtype=a.dtype, device=DEVICE)
    rooms: list[Any] = []

    def make(size: int) -> tuple[Any, int]:
        rooms.append(torch.zeros(size, dtype=torch.uint8, device=DEVICE))
        return rooms[0], rooms[0].data_ptr()

    cuda.Launch(w, schedule).on((left.data_ptr(), right.data_ptr(), c.data_ptr()), make=make).run()
    cuda.synchronize()
    first = -rooms[0].data_ptr() % 256
    return c, bool(rooms[0][first : first + 12].view(torch.int32)[2])


def faults(case: Case, a: Any, b: Any, c: Any, rng: np.random.Generator) -> tuple[list[str], float]:
    """What is wrong with a product, and its largest error over the bound among some rows and columns."""
    double = case.dtype == "f64"
    unit, least = UNITS[case.dtype], case.k * (2.0**-1073 if double else 2.0**-125)  # results may be denormal; split operands lose them
    wide, native = a.double().abs() @ b.double().abs(), a.double() @ b.double()
    largest = torch.finfo(c.dtype).max
    finite, found = wide < largest / 2, list[str]()
    beyond = ~torch.isfinite(wide)
    if not torch.equal(torch.isnan(c)[beyond], torch.isnan(native)[beyond]):
        found.append("NaN")
    if not torch.equal(c[beyond & ~torch.isnan(native)].double(), native[beyond & ~torch.isnan(native)]):
        found.append("infinities")
    if not bool(
        ((c.double() - native).abs() <= (2 if case.dtype == "f64" else 1.001) * (case.k + 2) * unit * wide + 2 * least)[finite].all()
    ):
        found.append("results beside torch's")
    rows, columns = (torch.from_numpy(np.unique(rng.integers(size, size=8))).to(DEVICE) for size in (case.m, case.n))
    left, right = a[rows].cpu().numpy().astype(np.longdouble), b[:, columns].cpu().numpy().astype(np.longdouble)
    with np.errstate(all="ignore"):
        products = left[:, :, None] * right[None]
        exact, total = products.sum(1), abs(products).sum(1)
        usable = np.isfinite(total) & (total < largest / 2)
        off = (abs(c[rows][:, columns].cpu().numpy() - exact)[usable] - least) / np.where(total[usable] > 0, total[usable], 1)
    worst = float(off.max() / unit) / (case.k + 2) if off.size else 0.0
    if not worst <= 1:
        found.append(f"{worst:.3g} of the bound")
    return found, max(worst, 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=sorted(ROWS), default="f64")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    about, end = {"device": cuda.devices()[0].name, "dtype": options.dtype}, time.monotonic() + options.seconds
    worst, counts, wrong, outside, repeated = dict[Any, float](), dict[Any, int](), list[Any](), 0, 0
    for seed in range(options.first, options.first + options.count):
        if time.monotonic() > end:
            break
        rng = np.random.default_rng(seed)
        case = case_of(options.dtype, seed, rng)
        a, b = operands(case)
        layout = int(rng.integers(4))
        c, is_outside = product(a, b, layout, schedule_of(case, rng))
        found, error = faults(case, a, b, c, rng)
        if seed % 5 == 0 and not is_outside:
            again, _ = product(a, b, 3 - layout, schedule_of(case, rng))
            found += [] if torch.equal(c.view(torch.uint8), again.view(torch.uint8)) else ["other bits in another schedule"]
            repeated += 1
        wrong += [[*case, is_outside, *found]] if found else []
        key = (case.kind, is_outside)
        worst[key], counts[key], outside = max(worst.get(key, 0), error), counts.get(key, 0) + 1, outside + is_outside
    for kind, by in sorted(worst):
        of_kind = {"kind": kind, "outside": by, "products": counts[kind, by], "worst": float(f"{worst[kind, by]:.3g}")}
        print(json.dumps(about | of_kind))
    print(json.dumps(about | {"products": sum(counts.values()), "outside": outside, "repeated": repeated, "wrong": wrong}), flush=True)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
