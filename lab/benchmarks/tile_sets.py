#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times plans on a matrix unit's tiles with different sets of k, one core: what lab/fits/fit_tiles.py reads.

    python lab/benchmarks/tile_sets.py [PROBLEM...] [-m MACHINE] [--seconds S] > lab/data/MACHINE/tile-sets.jsonl

The plan that the model has for each problem, with sets of 128, 256, 512 and 1,024 of k, interleaved. A CPU may multiply tiles at one of two
rates for seconds, so the least of many samples counts. One line each: {"set", "problem", "plan", "measured_seconds"}, after a header.
"""

import argparse
import json
import math
import re
import time
from typing import Any

import numpy as np

from pysim import planner
from pysim.problem.gemm import Gemm
from pysim.problem.text import parse
from pysim.record.plan import on_cpu
from pysim.runtime import cpu, cpu_launch

PROBLEMS = [f"gemm:{n}x{n}x{n}{dtype}" for dtype in ("", ":bf16", ":s8") for n in (512, 1024)]
SETS = (128, 256, 512, 1024)
LEAST_ROUNDS = 5
ARRAYS = {"f32": (np.float32, np.float32), "bf16": (np.uint16, np.float32), "s8": (np.int8, np.int32)}


def timed(w: Gemm, machine: str, seconds: float) -> dict[str, float]:
    """The least seconds of each plan, by its name."""
    first = planner.plan(w, machine, accuracy="strict", micro_kernel=f"{w.dtype}_tiles_32x32__amx").name
    names = {re.sub(r"channels=\d+", f"channels={size}", first) for size in SETS if size <= w.k}
    element, result = ARRAYS[w.dtype]
    arrays = [cpu.aligned(shape, of) for shape, of in (((w.m, w.k), element), ((w.k, w.n), element), ((w.m, w.n), result))]
    for array in arrays[:2]:
        numbers = np.random.default_rng(0).uniform(0.5, 1, array.shape).astype(np.float32)
        array[...] = {"f32": numbers, "bf16": numbers.view(np.uint32) >> 16, "s8": numbers * 100}[w.dtype]
    calls: dict[str, Any] = {}
    for name in sorted(names):
        launch: Any = cpu_launch.Launch(w, on_cpu(planner.plan(w, machine, name=name))[0])
        calls[name] = launch.step(*arrays, cpu.aligned(launch.workspace_bytes, np.uint8)).bound()
    least, end, rounds = dict.fromkeys(calls, math.inf), time.perf_counter() + seconds, 0
    while rounds < LEAST_ROUNDS or time.perf_counter() < end:
        rounds += 1
        for name, call in calls.items():
            call()
            start = time.perf_counter()
            call()
            least[name] = min(least[name], time.perf_counter() - start)
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", default=PROBLEMS)
    parser.add_argument("-m", "--machine", default="emerald-rapids")
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    print(json.dumps({"kind": "header", "machine_file": options.machine}), flush=True)
    for text in options.problems:
        w = parse(text)
        assert isinstance(w, Gemm)
        for name, seconds in timed(w, options.machine, options.seconds).items():
            print(json.dumps({"set": w.dtype, "problem": text, "plan": name, "measured_seconds": float(f"{seconds:.4g}")}), flush=True)


if __name__ == "__main__":
    main()
