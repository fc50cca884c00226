#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Quality of the planner's choice on layers that no constant was fitted to: every algorithm's best plan, predicted and measured.

    python lab/benchmarks/regret.py --seed S --layers N [-m host|FILE.toml] [--threads T] > regret.jsonl
    python lab/benchmarks/regret.py PROBLEM... [--schedules N [--beside FILE.toml]] > regret.jsonl
    python lab/benchmarks/regret.py PROBLEM... --onto FILE [--budget S]         in pieces of S seconds, until all layers are in FILE
    python lab/benchmarks/regret.py --again FILE [-m FILE.toml]

Layers are the given PROBLEMs, or random ones of KINDS in sizes that networks have. For each layer the best plan of every algorithm is
checked against the reference, then all are timed interleaved. The least sample of each counts, on one thread in processor time of the
thread: on a shared computer only that is undisturbed. Rounds in which another virtual machine's thread ran on the core are left out
(`pysim.measure.speed`). With --schedules there are up to N plans per layer: the FIRST of this machine's order, the best of each algorithm,
the FIRST of another machine's (--beside), then random ones predicted within WITHIN times the best. FILE.toml describes this computer.

The output has a header, then a line per plan: {"set" (the kind), "problem", "plan", "predicted_seconds", "measured_seconds", "samples",
"threads", "clock_hz" and "plain_share" (`core_of`)}; stderr gets a summary. *regret*: measured time of the plan predicted fastest over
that of the fastest; *of 8*: the same of the fastest of the FIRST; *error*: |log(predicted / measured)|. With --again nothing is measured:
the current model predicts the plans of a file, for the machine that its header names or another one.
"""

import argparse
import json
import math
import os
import random
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))
import records
from rooms import DATA

from pysim import planner
from pysim.algorithms import algorithms_for
from pysim.calibration import host
from pysim.comparison.bench import bench_of, release
from pysim.comparison.peer_timings import checked
from pysim.errors import PysimError
from pysim.machine.cpu import Machine
from pysim.machine.load import load_any
from pysim.measure.clock import Call, CpuClock, interleave
from pysim.measure.cpu_load import share_of_others
from pysim.measure.speed import PLAIN, SHARED_CORE, Speed, Speedometer, read
from pysim.measure.store import environment
from pysim.problem.conv import Conv
from pysim.problem.text import Workload, resolve, sets
from pysim.record.plan import Plan

SMALL, LARGE = 2e6, 2.5e8  # FLOP of a layer: tens of microseconds to some milliseconds on one core
TURNS, SECONDS = 30, 6.0  # of a layer: least samples of each plan, most seconds in all
TRIES = 3  # at timing a layer, until no other virtual machine's thread ran on the core all the time
FIRST, WITHIN = 8, 2.0
CHANNELS = (8, 16, 24, 32, 40, 48, 64, 72, 80, 96, 112, 128, 144, 160, 192, 224, 256, 320, 384, 480, 512, 576, 768, 960, 1024)
EDGES = (7, 8, 13, 14, 15, 17, 19, 24, 27, 28, 32, 35, 40, 56, 64, 80, 112)
KINDS = ("1x1", "3x3", "5x5", "7x7", "1xN", "strided", "depthwise", "grouped", "dilated", "first")
WORST = 10
ALL = 1_000_000  # more plans than a layer has


class OwnTime(CpuClock):
    """Processor time of the thread, without the time that others run in between."""

    def seconds(self, call: Call, times: int) -> float:
        start = time.thread_time_ns()
        for _ in range(times):
            call()
        return (time.thread_time_ns() - start) * 1e-9


def drawn(kind: str, of: random.Random) -> Conv:
    """A random layer of a kind."""
    kernel = (int(kind[0]),) * 2 if kind[0].isdigit() else (of.choice((3, 3, 5, 7)),) * 2
    groups, channels, filters, edge, stride, dilation = 1, of.choice(CHANNELS), of.choice(CHANNELS), of.choice(EDGES), 1, 1
    if kind == "1xN":
        kernel = of.choice(((1, 3), (3, 1), (1, 5), (5, 1), (1, 7), (7, 1)))
    elif kind == "strided":
        kernel, stride = (of.choice((1, 3, 3, 5, 7)),) * 2, of.choice((2, 2, 2, 3))
    elif kind == "depthwise":
        groups = filters = channels
        stride, dilation = of.choice(((1, 1), (1, 1), (2, 1), (1, 2)))
    elif kind == "grouped":
        groups = of.choice((4, 8, 16, 32, 64))
        channels, filters = (groups * of.choice((1, 2, 3, 4, 8, 16)) for _ in range(2))
        stride = of.choice((1, 1, 2))
    elif kind == "dilated":
        dilation = of.choice((2, 2, 3, 4))
    elif kind == "first":
        channels, filters, edge = of.choice((1, 3, 3, 4)), of.choice((16, 24, 32, 48, 64, 96)), of.choice((96, 128, 160, 192, 224, 256))
        stride = of.choice((1, 2, 2, 4))
    pad = tuple(dilation * (size - 1) // 2 for size in kernel)
    return Conv(
        batch=of.choice((1, 1, 1, 2, 4)), groups=groups, channels=channels, height=edge, width=edge, filters=filters,
        kernel_h=kernel[0], kernel_w=kernel[1], stride_h=stride, stride_w=stride, dilation_h=dilation, dilation_w=dilation,
        pad_top=pad[0], pad_bottom=pad[0], pad_left=pad[1], pad_right=pad[1],
    )  # fmt: skip


def layers(seed: int, count: int) -> Iterator[tuple[str, Conv]]:
    """Kinds in rotation. No layer of the built-in sets, to which constants are fitted, and none twice."""
    of, met = random.Random(seed), {layer.workload for layer in resolve(sets())}
    for at in range(count):
        kind = KINDS[at % len(KINDS)]
        while (layer := drawn(kind, of)) in met or not SMALL <= layer.flops <= LARGE:
            pass
        met.add(layer)
        yield kind, layer


def chosen(layer: Workload, on: Any, others: list[Any], given: argparse.Namespace) -> list[Plan]:
    """The plans to time: the best of each algorithm, or with --schedules as above."""
    plans = []
    for algorithm in algorithms_for(layer, on):
        try:
            plans.append(planner.plan(layer, on, algorithm=algorithm.NAME, threads=given.threads))
        except PysimError:
            continue  # what it does not compute
    if not given.schedules:
        return plans
    order = planner.plans(layer, on, ALL)
    names = [plan.name for machine in others for plan in planner.plans(layer, machine, FIRST)]
    nearly_best = [plan.name for plan in order[FIRST:] if (plan.seconds or 0.0) <= WITHIN * (order[0].seconds or 0.0)]
    random.Random(given.seed).shuffle(nearly_best)
    found = {plan.name: plan for plan in order}
    some = dict.fromkeys([*(plan.name for plan in (*order[:FIRST], *plans)), *names, *nearly_best])
    return [found[name] for name in list(some)[: given.schedules] if name in found]


def measured(layer: Workload, on: Any, plans: list[Plan], given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A line for each correct plan."""
    threads = given.threads
    bench, calls = bench_of(plans[0], on, threads, 0), {}
    for plan in plans:
        verdict, ready = checked(bench, partial(bench.make, plan))
        if verdict.passed:
            calls[plan.name] = ready.call
        else:
            print(f"{layer.text}: {plan.name}: {verdict.reason}", file=sys.stderr)
    if not calls:  # all results are zero, which proves nothing
        return
    own = threads == 1 and isinstance(on, Machine)
    for _ in range(TRIES):
        timed = interleave(
            calls, OwnTime() if threads == 1 else bench.clock(), min_samples=given.turns, min_seconds=0.0, budget_seconds=given.seconds,
            speedometer=partial(Speedometer, widest(on)) if own else None,
        )  # fmt: skip
        core = core_of(on, timed.speed)
        if core.get("plain_share", 1.0) * SHARED_CORE >= 1:
            break
    for plan in plans:
        if (samples := timed.samples.get(plan.name)) is not None:
            times = {"predicted_seconds": plan.seconds, "measured_seconds": float(f"{samples.min():.6g}")}
            yield {"problem": layer.text, "plan": plan.name} | times | {"samples": len(samples), "threads": threads} | core


def widest(on: Machine) -> str:
    """The instruction set with the longest vectors."""
    return max(on.core.units, key=lambda unit: unit.vector_bytes).target


def core_of(on: Any, speed: Speed | None) -> dict[str, float]:
    """A CPU's clock after the samples. `plain_share`: its rate of plain C between them over the machine file's; lower where another virtual
    machine's thread ran on the core all the time."""
    if not isinstance(on, Machine):
        return {}
    found = {"clock_hz": max(read(widest(on)).clock_hz for _ in range(3))}
    plain = on.unit(PLAIN)
    if speed and plain:
        found["plain_share"] = speed.plain_per_cycle / plain.fma_per_cycle.value
    return {name: float(f"{value:.4g}") for name, value in found.items()}


def again(path: Path, machine: str | None = None) -> Iterator[dict[str, Any]]:
    """The lines of a file as the current model predicts them, on a CPU at its clock then."""
    first, *rows = records.lines(path)
    if machine is None:
        named = first["machine_file"]
        machine = str(path.parent / named) if named.endswith(".toml") else named
    on: Any = load_any(machine)
    for row in rows:
        then = on.at_clock(row["clock_hz"]) if "clock_hz" in row else on
        yield row | {"predicted_seconds": planner.plan(row["problem"], then, name=row["plan"], threads=row["threads"]).seconds}


def by_problem(rows: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["problem"], []).append(row)
    return found


def choice(rows: list[dict[str, Any]]) -> tuple[float, dict[str, Any], dict[str, Any]]:
    """(regret, the plan predicted fastest, the fastest) of a problem's plans."""
    chosen, best = (min(rows, key=lambda row: float(row[of])) for of in ("predicted_seconds", "measured_seconds"))
    return chosen["measured_seconds"] / best["measured_seconds"], chosen, best


def of_first(rows: list[dict[str, Any]]) -> float:
    """The regret of the fastest of the FIRST plans by prediction."""
    first = sorted(rows, key=lambda row: float(row["predicted_seconds"]))[:FIRST]
    fastest, best = (min(float(row["measured_seconds"]) for row in some) for some in (first, rows))
    return fastest / best


def logs(rows: Iterable[dict[str, Any]]) -> Any:
    return np.array([math.log(row["predicted_seconds"] / row["measured_seconds"]) for row in rows])


def summary(rows: list[dict[str, Any]]) -> Iterator[str]:
    choices = sorted(map(choice, by_problem(rows).values()), key=lambda one: -one[0])
    regrets = np.array([regret for regret, *_ in choices])
    off, firsts = abs(logs(rows)), [of_first(some) for some in by_problem(rows).values()]
    yield f"{len(choices)} layers, {len(rows)} plans: error median {np.median(off):.1%}, p90 {np.quantile(off, 0.9):.1%}"
    yield f"regret mean {regrets.mean():.4f}, worst {regrets.max():.3f}; of {FIRST} mean {np.mean(firsts):.4f}, worst {max(firsts):.3f}"
    for field in ("set", "algorithm"):
        groups: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            groups.setdefault(row["set"] if field == "set" else row["plan"].partition(",")[0], []).append(row)
        for name, some in sorted(groups.items()):
            off = logs(some)
            errors = f"error median {np.median(abs(off)):.1%}, p90 {np.quantile(abs(off), 0.9):.1%}"
            spread = f"{math.exp(off.min()):.2f} to {math.exp(off.max()):.2f}"
            yield f"  {name:12} {len(some):4} plans: {errors}; predicted/measured {spread}, median {math.exp(np.median(off)):.2f}"
    for regret, chosen, best in choices[:WORST]:
        yield f"  {regret:.3f}  {chosen['problem']}"
        for what, one in (("chosen", chosen), ("best", best)):
            off = one["predicted_seconds"] / one["measured_seconds"]
            yield f"         {what:6} {one['measured_seconds'] * 1e6:9.1f} us, predicted {off:.2f} of it: {one['plan']}"


def header(machine: str) -> dict[str, Any]:
    here = environment()
    return {
        "kind": "header",
        "machine_file": os.path.relpath(machine, DATA) if Path(machine).exists() else machine,
        "device": f"{here['cpu']}, {here['cpus']} CPUs of a virtual machine",
        "shared": share_of_others() > host.QUIET,
        "versions": {name: here[name] for name in ("system", "python", "numpy", "commit") if name in here},
        "command": " ".join(["python", "lab/benchmarks/regret.py", *sys.argv[1:]]),
        "columns": "seconds, the least of `samples`",
    }


def record(given: argparse.Namespace) -> list[dict[str, Any]]:
    """All lines, those already in the file included. A layer's lines are written together, so an unfinished layer is measured again."""
    start, machine = time.monotonic(), given.machine or "host"
    on, others = host.runnable(machine), [host.runnable(name) for name in given.beside]
    rows = records.lines(given.onto)[1:] if given.onto and given.onto.exists() else []
    done = {row["problem"] for row in rows}
    named = [(layer.label or "named", layer.workload) for layer in resolve(given.problems)] if given.problems else []
    with given.onto.open("a") if given.onto else nullcontext(sys.stdout) as file:
        if not rows:
            print(json.dumps(header(machine)), file=file, flush=True)
        for kind, layer in named or layers(given.seed, given.layers):
            if layer.text in done or time.monotonic() - start > given.budget:
                continue
            found = [{"set": kind} | row for row in measured(layer, on, chosen(layer, on, others, given), given)]
            print(*map(json.dumps, found), sep="\n", file=file, flush=True)
            rows += found
            release()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", metavar="PROBLEM")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layers", type=int, default=300)
    parser.add_argument("-m", "--machine")
    parser.add_argument("--schedules", type=int, default=0)
    parser.add_argument("--beside", action="append", default=[])
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--onto", type=Path)
    parser.add_argument("--budget", type=float, default=math.inf)
    parser.add_argument("--again", type=Path)
    given = parser.parse_args()
    print(*summary(list(again(given.again, given.machine)) if given.again else record(given)), sep="\n", file=sys.stderr)


if __name__ == "__main__":
    main()
