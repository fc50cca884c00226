#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times plans on a matrix unit's tiles in both orders, with different sets of k and of panels, one core: what lab/fits/fit_tiles.py reads.

    python lab/benchmarks/tile_sets.py [PROBLEM...] [-m MACHINE] [--seconds S] > lab/data/MACHINE/tile-sets.jsonl

The plans of each problem with B packed in the run and in advance, interleaved. A CPU may multiply tiles at one of two rates for seconds, so
the least of many samples counts. A header, then a line for each problem: {"problem", "us": {"ALGORITHM ORDER CHANNELS K2": microseconds}},
orders by their first letters.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from pysim.problem.gemm import Gemm
from pysim.problem.text import parse
from pysim.record.schedule import STATIONARY, Schedule
from pysim.runtime import cpu, cpu_launch

PROBLEMS = [f"gemm:{n}x{n}x{n}{dtype}" for dtype in ("", ":bf16", ":s8") for n in (512, 1024)]
SETS, PANELS = (256, 512, 1024), (8, 16)
LEAST_ROUNDS = 5
ARRAYS = {"f32": (np.float32, np.float32), "bf16": (np.uint16, np.float32), "s8": (np.int8, np.int32)}


def plans(w: Gemm) -> Iterator[tuple[str, Schedule]]:
    """Schedules by their short names."""
    prepared = "split_panels" if w.dtype == "f32" else "panels"
    tiles = -(-w.n // 32)
    for algorithm, order, channels, k2 in product(("gemm", prepared), STATIONARY, SETS, PANELS):
        if channels <= w.k and (algorithm == prepared or (channels > SETS[0] and k2 == PANELS[0])):
            schedule = Schedule(f"{w.dtype}_tiles_32x32__amx", order, "tiles", 32, 32, channels, k2, tiles, algorithm=algorithm)
            yield f"{algorithm} {order[0]} {channels} {k2}", schedule


def timed(w: Gemm, seconds: float) -> dict[str, float]:
    """The least seconds of each plan, by its name."""
    element, result = ARRAYS[w.dtype]
    arrays = [cpu.aligned(shape, of) for shape, of in (((w.m, w.k), element), ((w.k, w.n), element), ((w.m, w.n), result))]
    for array in arrays[:2]:
        numbers = np.random.default_rng(0).uniform(0.5, 1, array.shape).astype(np.float32)
        array[...] = {"f32": numbers, "bf16": numbers.view(np.uint32) >> 16, "s8": numbers * 100}[w.dtype]
    calls: dict[str, Any] = {}
    for name, schedule in plans(w):
        launch: Any = cpu_launch.Launch(w, schedule)
        given = arrays
        if launch.prepared_bytes:
            launch, given = cpu_launch.Prepared(w, arrays[1], schedule), [arrays[0], arrays[2]]
        calls[name] = launch.step(*given, cpu.aligned(launch.workspace_bytes, np.uint8)).bound()
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
    print(json.dumps({"kind": "header", "machine": options.machine}), flush=True)
    for text in options.problems:
        w = parse(text)
        assert isinstance(w, Gemm)
        found = timed(w, options.seconds)
        print(json.dumps({"problem": text, "us": {name: float(f"{seconds * 1e6:.4g}") for name, seconds in found.items()}}), flush=True)


if __name__ == "__main__":
    main()
