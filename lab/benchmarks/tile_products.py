# SPDX-License-Identifier: Apache-2.0
"""FP32 products of plans of accuracy strict, which split operands on a matrix unit, also with B prepared, and ieee, beside
PyTorch's (MKL) and its oneDNN.

    python lab/benchmarks/tile_products.py [MxNxK...] [-m MACHINE] [--threads N] [--seconds S] [-o FILE]

Candidates are timed interleaved, in wall-clock time. Arrays are bound beforehand. A CPU may multiply tiles at one of two rates for
seconds, so the least samples are compared ("least"); "seconds" are the lower quartiles. oneDNN's operands are in its own layout. Errors
are the largest of 64 rows against float64, over these rows' root mean square: of operands in [-1, 1), in [0, 1), and spread evenly over
40 octaves. FILE gets a line for each product.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pysim import planner
from pysim.problem.gemm import Gemm
from pysim.record.accuracy import Accuracy
from pysim.record.plan import Plan, on_cpu
from pysim.runtime import cpu, cpu_launch

Floats = NDArray[np.float32]
SIZES = [f"{n}x{n}x{n}" for n in (512, 1024, 2048, 4096)]
LEVELS: tuple[Accuracy, ...] = ("strict", "ieee")
CHECKED_ROWS, LEAST_ROUNDS, QUARTILE, OCTAVES = 64, 5, 0.25, 40
CALLS, SPIN_SECONDS = 5, 0.22  # on several threads: threads of OpenMP spin for 0.2 seconds after a call, on the CPUs of the next


def operands(w: Gemm, kind: str) -> Iterator[Floats]:
    random = np.random.default_rng(0)
    for shape in ((w.m, w.k), (w.k, w.n)):
        of = cpu.aligned(shape, np.float32)
        of[...] = random.random(shape, dtype=np.float32)
        if kind != "[0, 1)":
            of[...] = 2 * of - 1
        if kind == "octaves":
            of[...] = np.sign(of) * 2.0 ** random.uniform(-OCTAVES / 2, OCTAVES / 2, shape)
        yield of


def ours(w: Gemm, plan: Plan, a: Floats, b: Floats) -> tuple[Callable[[], Any], Floats, Callable[[], dict[str, float]]]:
    schedule, _ = on_cpu(plan)
    c = cpu.aligned((w.m, w.n), np.float32)
    product: Any = cpu_launch.Launch(w, schedule, plan.threads)
    arrays: tuple[Floats, ...] = (a, b, c)
    if product.prepared_bytes:
        product, arrays = cpu_launch.Prepared(w, b, schedule, threads=plan.threads), (a, c)
    step = product.step(*arrays, cpu.aligned(product.workspace_bytes, np.uint8))
    return step.bound(), c, partial(product.profile, *arrays)


def peers(a: Floats, b: Floats) -> dict[str, Callable[[], Any]]:
    first, second = torch.from_numpy(a), torch.from_numpy(b)
    found = {"mkl": partial(torch.mm, first, second, out=torch.empty(a.shape[0], b.shape[1]))}
    packed = first.to_mkldnn(), second.t().contiguous().to_mkldnn()  # type: ignore[no-untyped-call]
    return found | {"onednn": partial(torch.ops.aten.mkldnn_linear, *packed, None)}


def timed(calls: dict[str, Callable[[], Any]], seconds: float, threads: int) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {name: [] for name in calls}
    at_once = 1 if threads == 1 else CALLS
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < LEAST_ROUNDS or time.perf_counter() < end:
        rounds += 1
        for name, call in calls.items():
            if threads > 1:
                time.sleep(SPIN_SECONDS)
            if threads > 1 or rounds == 1:
                call()
            for _ in range(at_once):
                start = time.perf_counter()
                call()
                samples[name].append(time.perf_counter() - start)
    return samples


def error(got: Floats, a: Floats, b: Floats) -> float:
    want = a[:CHECKED_ROWS].astype(np.float64) @ b
    return float(np.abs(got[:CHECKED_ROWS] - want).max() / np.sqrt(np.mean(want**2)))


def dense(result: Any) -> Floats:
    found: Floats = (result.to_dense() if result.is_mkldnn else result).numpy()
    return found


def measure(w: Gemm, machine: str, threads: int, seconds: float) -> dict[str, Any]:
    plans: dict[str, Plan] = {level: planner.plan(w, machine, accuracy=level, threads=threads) for level in LEVELS}
    plans["prepared"] = planner.plan(w, machine, accuracy="strict", threads=threads, prepared=True)
    errors: dict[str, dict[str, float]] = {}
    for kind in ("octaves", "[0, 1)", "[-1, 1)"):
        a, b = operands(w, kind)
        own = {level: ours(w, plan, a, b) for level, plan in plans.items()}
        others = peers(a, b)
        for name, call in {level: of[0] for level, of in own.items()}.items():
            call()
            errors.setdefault(name, {})[kind] = error(own[name][1], a, b)
        for name, call in others.items():
            errors.setdefault(name, {})[kind] = error(dense(call()), a, b)
    found = timed({level: of[0] for level, of in own.items()} | others, seconds, threads)
    profile = own["strict"][2]()
    return {
        "problem": f"{w.m}x{w.n}x{w.k}",
        "threads": threads,
        "seconds": {name: float(np.quantile(of, QUARTILE)) for name, of in found.items()},
        "least": {name: min(of) for name, of in found.items()},
        "errors": errors,
        "packing": profile["pack_seconds"] / (profile["pack_seconds"] + profile["kernel_seconds"]),
        "predicted": plans["strict"].seconds,
        "plan": str(on_cpu(plans["strict"])[0]),
    }


def line(w: Gemm, found: dict[str, Any]) -> str:
    seconds = found["least"]
    rates = " ".join(f"{name} {2e-9 * w.m * w.n * w.k / of:5.0f}" for name, of in seconds.items())
    best = min(seconds["mkl"], seconds["onednn"]) / seconds["strict"]
    errors = "; ".join(" ".join(f"{of[kind]:.1e}" for of in found["errors"].values()) for kind in ("[-1, 1)", "[0, 1)", "octaves"))
    shares = f"packing {found['packing']:.2f} predicted {found['predicted'] / seconds['strict']:.2f}"
    return f"{found['problem']:15} {found['threads']:2} {rates} GF  {best:.2f}x  {shares} errors {errors}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problems", nargs="*", default=SIZES)
    parser.add_argument("-m", "--machine", default="emerald-rapids")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    for text in given.problems:
        m, n, k = map(int, text.split("x"))
        w = Gemm(m=m, n=n, k=k)
        found = measure(w, given.machine, given.threads, given.seconds)
        print(line(w, found), flush=True)
        if given.output:
            with given.output.open("a") as file:
                file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
