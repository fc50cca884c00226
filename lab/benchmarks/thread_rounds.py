# SPDX-License-Identifier: Apache-2.0
"""Times plans with several numbers of threads so that what disturbs a machine for a while disturbs them all alike.

    python lab/benchmarks/thread_rounds.py PLANS.jsonl OUT.jsonl [--seconds S] [--fitted N]

PLANS.jsonl has lines with "problem", "plan" (its name) and "threads", as written by threads.py. All plans are prepared first.
Each round then visits every plan once, in random order, with one untimed and three timed calls. Between rounds, teams of the plans' sizes
run multiply-adds and a product of negligible work. OUT.jsonl is a file for model_errors.py with medians over all rounds. Every N-th
problem (default 2) is in the set "fitted", used by lab/fits/fit_threads.py; the others are "reported". For plans of one thread the core's
speed is read after their samples: "alone_seconds" is the median of the samples with the full multiply-add rate, "alone" their number. The
header has the clock of all readings, the slowest and the mean rate of each team (medians, over that of one thread), the overhead of the
product over one thread, and the name of OUT.toml, the detected computer, which is written beside it.
"""

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pysim import planner
from pysim.calibration import host
from pysim.machine.write import to_toml
from pysim.measure.clock import pinned
from pysim.measure.parallel_probe import all_at_once
from pysim.measure.speed import PLAIN, Speed, read
from pysim.problem.conv import Conv
from pysim.problem.text import parse
from pysim.runtime import cpu, cpu_launch

NOTHING = "gemm:16x512x2"
SAMPLES, CALLS = 3, 20  # of a plan, of a product of nothing
SHARED = 0.9  # of the multiply-adds of a core alone


def prepared(rows: list[dict[str, Any]], on: Any) -> list[tuple[dict[str, Any], Any, np.ndarray, np.ndarray]]:
    """Each plan with its operands, those of a problem once."""
    arrays: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
    found = []
    for row in rows:
        problem = parse(row["problem"])
        assert isinstance(problem, Conv)
        if row["problem"] not in arrays:
            random, taps = np.random.default_rng(0), (problem.kernel_h, problem.kernel_w)
            x = random.random((problem.batch, problem.channels, problem.height, problem.width), dtype=np.float32)
            w = random.random((problem.filters, problem.channels // problem.groups, *taps), dtype=np.float32)
            arrays[row["problem"]] = x, w, np.empty((problem.batch, problem.filters, problem.out_h, problem.out_w), dtype=np.float32)
        x, w, y = arrays[row["problem"]]
        schedule = planner.plan(problem, on, name=row["plan"]).schedule
        found.append((row, cpu_launch.Prepared(problem, w, schedule, threads=row["threads"]), x, y))
    return found


def alone_of(samples: list[float], core: list[Speed], most: float) -> dict[str, float]:
    """The median of the samples during which nothing else was on the core, and their number; empty if there are none."""
    shares = np.repeat([one.plain_per_cycle for one in core], SAMPLES)
    alone = [seconds for seconds, share in zip(samples, shares, strict=False) if share > SHARED * most]
    return {"alone_seconds": float(np.median(alone)), "alone": len(alone)} if alone else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plans", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=80.0)
    parser.add_argument("--fitted", type=int, default=2)
    given = parser.parse_args()
    on = host.detect()
    file = given.out.with_suffix(".toml")
    file.write_text(to_toml(msgspec.structs.replace(on, name=file.stem)), encoding="utf-8")
    rows = [row for line in given.plans.read_text().splitlines() if "plan" in (row := json.loads(line))]
    plans, target = prepared(rows, on), max(on.core.units, key=lambda unit: unit.vector_bytes).target
    counts = sorted({row["threads"] for row in rows})
    product, (a, b, c) = parse(NOTHING), (np.ones(shape, np.float32) for shape in ((16, 2), (2, 512), (16, 512)))
    nothing = {count: cpu_launch.Launch(product, planner.plan(product, on).schedule, threads=count) for count in counts}
    samples: list[list[float]] = [[] for _ in plans]
    rates: dict[int, list[list[float]]] = {count: [] for count in counts}
    empty: dict[int, list[float]] = {count: [] for count in counts}
    speeds: list[list[Speed]] = [[] for _ in plans]
    order, end = np.random.default_rng(1), time.perf_counter() + given.seconds
    while time.perf_counter() < end:
        for at in order.permutation(len(plans)).tolist():
            row, call, x, y = plans[at]
            with pinned(row["threads"]):
                call(x, y)
                for _ in range(SAMPLES):
                    start = time.perf_counter()
                    call(x, y)
                    samples[at].append(time.perf_counter() - start)
                if row["threads"] == 1:
                    speeds[at].append(read(target))
        for count in counts:
            rates[count].append(all_at_once(partial(cpu.probe_fma, PLAIN, "f32"), count))
            with pinned(count):
                for _ in range(CALLS):
                    start = time.perf_counter()
                    nothing[count].run(a, b, c)
                    empty[count].append(time.perf_counter() - start)
    alone, base = np.median(rates[counts[0]]), np.median(empty[counts[0]])
    readings = [one for some in speeds for one in some]
    most = float(np.quantile([one.plain_per_cycle for one in readings], 0.9)) if readings else 0.0
    header = {
        "kind": "header",
        "machine_file": file.name,
        "device": on.description,
        "columns": "median and least of samples, seconds",
        "clock_hz": float(np.median([one.clock_hz for one in readings])) if readings else None,
        "plain_per_cycle": most,
        "slowest_share": {count: round(float(np.median(np.min(of, axis=1)) / alone), 3) for count, of in rates.items()},
        "mean_share": {count: round(float(np.median(np.mean(of, axis=1)) / alone), 3) for count, of in rates.items()},
        "fork_join_seconds": {count: round(float(np.median(of) - base), 8) for count, of in empty.items()},
    }
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    with given.out.open("w", encoding="utf-8") as out:
        print(json.dumps(header), file=out)
        for (row, *_), of, core in zip(plans, samples, speeds, strict=True):
            part = "reported" if problems.index(row["problem"]) % given.fitted else "fitted"
            times = {"measured_seconds": float(np.median(of)), "least_seconds": min(of), "samples": len(of)} | alone_of(of, core, most)
            print(json.dumps({"set": part, **{key: row[key] for key in ("problem", "plan", "threads")}, **times}), file=out)


if __name__ == "__main__":
    main()
