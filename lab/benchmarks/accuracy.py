#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The accuracy of every kernel and peer: the largest error against float64 over the result's root mean square, beside the stated one.

    python lab/benchmarks/accuracy.py [-m host|cuda|NAME] [PROBLEM...] > lab/data/accuracy-<machine>.jsonl

Operands are uniform in [-1, 1) and in [0, 1), in the problem's type; the reference is `pysim.check.reference` in float64 on the same
operands (for f64 in x86's 80 bits), for every result element. Each kernel runs its best plan. The output has a line per kernel (or peer
algorithm) and fill: {"machine", "problem", "low", "algorithm", "kernel", "error", "stated"}; for a peer `algorithm` is its name and nothing
is stated. tests/unit/algorithms/test_accuracy.py compares the stated errors with every line of the data.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pysim import planner
from pysim.calibration import host
from pysim.check.fills import held, numbers
from pysim.check.reference import reference, shapes
from pysim.comparison.bench import Bench, bench_of, release
from pysim.errors import PysimError
from pysim.peers import chosen
from pysim.problem.text import Workload, parse

if TYPE_CHECKING:
    from pysim.record.plan import Plan

PROBLEMS = (
    *(f"conv:mb4ic{channels}ih56oc64kh3ph1" for channels in (3, 16, 64)), "conv:mb8ic256ih14oc256kh3ph1", "conv:mb2ic512ih14oc512kh3ph1",
    "conv:mb2ic64ih14oc32kh3ph1:f64", "conv:g96mb4ic96ih56oc96kh7ph3", "conv:g64mb2ic256ih28oc256kh3ph1",
    *(f"conv:mb4ic256ih28oc256kh3ph1:{dtype}" for dtype in ("bf16", "f16", "tf32")),
    "gemm:1000x1000x256", "gemm:1000x1000x4096", "gemm:200x200x4096:f64",
    *(f"gemm:1000x1000x{k}:{dtype}" for dtype in ("bf16", "f16", "tf32", "f8") for k in (256, 4096, 16384)),
)  # fmt: skip
LOWS = (-1.0, 0.0)


def uniform(shape: tuple[int, ...], dtype: str, low: float, seed: int) -> Any:
    """The operand in memory: float32 for tf32, so that the error includes rounding to TF32."""
    wide = np.float64 if dtype == "f64" else np.float32
    return (np.random.default_rng(seed).random(shape, wide) * (1 - low) + low).astype(held(dtype))


def error_of(got: Any, want: Any) -> float:
    return float(np.abs(got.astype(want.dtype) - want).max() / np.sqrt(np.mean(want**2)))


def candidates(workload: Workload, on: Any, bench: Bench) -> Iterator[tuple[str, str, float | None, Any]]:
    """(algorithm, kernel, what it states, how it is made of operands), of the best plan of each kernel and of each peer's algorithms."""
    first: dict[tuple[str, str], Plan] = {}
    for plan in planner.plans(workload, on, top=100_000):
        first.setdefault((plan.algorithm, plan.kernel), plan)
    for (algorithm, kernel), plan in first.items():
        yield algorithm, kernel, plan.error, partial(bench.make, plan)
    for name, peer in chosen("all", on).items():
        if isinstance(workload, peer.computes) and not peer.analytic:
            for algorithm in peer.library.ALGORITHMS:
                yield name, algorithm, None, partial(peer.library.make, workload, algorithm=algorithm)


def lines(text: str, on: Any) -> Iterator[dict[str, Any]]:
    workload = parse(text)
    bench = bench_of(planner.plan(workload, on), on, 1, 0)
    operands, s = bench.operands(exact=False), shapes(workload)
    for low in LOWS:
        x, w = uniform(s.x, workload.dtype, low, 1), uniform(s.w, workload.dtype, low, 2)
        exact = np.longdouble if workload.dtype == "f64" else np.float64
        want = reference(workload, numbers(x).astype(exact), numbers(w).astype(exact))
        for array, values in ((operands.x, x), (operands.w, w)):
            if isinstance(array, np.ndarray):
                array[...] = values
            else:
                array.fill(values)
        for algorithm, kernel, stated, make in candidates(workload, on, bench):
            try:
                error = error_of(numbers(bench.result(make(operands), operands)), want)
            except Exception as why:  # others' code, and what they refuse
                if isinstance(why, PysimError) and stated is None:
                    continue
                raise
            rounded = {"error": float(f"{error:.3g}"), "stated": stated and float(f"{stated:.3g}")}
            yield {"machine": on.name, "problem": text, "low": low, "algorithm": algorithm, "kernel": kernel} | rounded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", default=PROBLEMS)
    parser.add_argument("-m", "--machine", default="host")
    arguments = parser.parse_args()
    on = host.runnable_any(arguments.machine)
    for text in arguments.problems:
        try:
            for line in lines(text, on):
                print(json.dumps(line), flush=True)
        except PysimError as why:  # a type that the machine has not
            print(f"{text}: {why}", file=sys.stderr)
        release()


if __name__ == "__main__":
    main()
