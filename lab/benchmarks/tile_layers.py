# SPDX-License-Identifier: Apache-2.0
"""Layers in FP32 with weights prepared: plans of accuracy strict, which may split operands on a matrix unit, beside those without the unit.

    python lab/benchmarks/tile_layers.py [LAYER ...] [-m MACHINE] [--seconds 0.3] [-o FILE]

A LAYER is a problem such as conv:mb1ic64ih56oc64kh3ph1, or a set: resnet50, vgg16, bert. The faster of the plans in planes and in channel
blocks of 16 is timed. Calls use COPIES of the weights in turns, as layers of a network do, so these come from L3 or from memory. Candidates
are interleaved. Columns: least times in us with the unit and without it, their ratio, and predicted over measured of both. Where both
have one plan that is said, and the ratio is 1. Pin it to a core: `taskset -c 1`. JSON lines go to FILE.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from pysim.errors import PlanError
from pysim.machine.cpu import Machine
from pysim.machine.load import load_any
from pysim.planner import planned
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload, resolve
from pysim.record.plan import Layout, Plan, Request
from pysim.runtime import cpu
from pysim.runtime.cpu_launch import Prepared

BERT = ["gemm:128x768x768", "gemm:128x3072x768", "gemm:128x768x3072"]
WAYS = ("tiles", "without")
LAYOUTS: tuple[Layout, ...] = ("nchw", "nchw16c")
COPIES, LEAST_ROUNDS = 3, 5


def problems(names: list[str]) -> list[Workload]:
    """The distinct layers of one group among these."""
    found = dict.fromkeys(layer.workload for name in names for layer in resolve(BERT if name == "bert" else [name]))
    return [replace(one, trans_b=True) if isinstance(one, Gemm) else one for one in found if isinstance(one, Gemm) or one.groups == 1]


def machines(name: str) -> dict[str, Machine]:
    """The machine, and the same one without its matrix units."""
    whole = load_any(name)
    assert isinstance(whole, Machine)
    vectors = tuple(unit for unit in whole.core.units if unit.tile_store_cycles is None)
    return dict(zip(WAYS, (whole, replace(whole, core=replace(whole.core, units=vectors))), strict=True))


def plan_of(problem: Workload, machine: Machine) -> Plan:
    """The fastest plan, as predicted."""
    found = list[Plan]()
    for layout in LAYOUTS[: 1 + isinstance(problem, Conv)]:
        about: Any = {"prepared": True, "accuracy": "strict"}
        try:
            found.append(planned(Request(problem, machine, layout, "chained", **about)))
        except PlanError:
            continue
    return min(found, key=lambda one: one.seconds or math.inf)


def calls_of(plan: Plan, random: np.random.Generator) -> list[Any]:
    """A call of the plan for each copy of its weights."""
    problem, found = plan.workload, list[Any]()
    for _ in range(COPIES):
        shape = problem.filter_shape if isinstance(problem, Conv) else (problem.n, problem.k)
        run = Prepared.of(plan, random.uniform(-1, 1, shape).astype(np.float32), None, None, 1)
        x, out = (cpu.aligned(shape, np.float32) for shape in run.shapes[:2])
        x[...] = random.uniform(-1, 1, x.shape)
        found.append(run.step(x, out, cpu.aligned(max(1, run.workspace_bytes), np.uint8)))
    return found


def measured(problem: Workload, on: dict[str, Machine], seconds: float) -> dict[str, Any]:
    plans = {way: plan_of(problem, machine) for way, machine in on.items()}
    same = len({(one.name, one.layout) for one in plans.values()}) == 1
    random = np.random.default_rng(0)
    calls = {way: calls_of(plan, random) for way, plan in plans.items() if not (same and way == "without")}
    times: dict[str, list[float]] = {way: [] for way in calls}
    end, turn = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or turn < LEAST_ROUNDS * COPIES:
        for way, copies in calls.items():
            start = time.perf_counter()
            copies[turn % COPIES]()
            times[way].append(time.perf_counter() - start)
        turn += 1
    us = {way: round(min(times.get(way, times["tiles"])) * 1e6, 2) for way in WAYS}
    return {
        "problem": problem.text,
        "plans": {way: f"{plan.layout} {plan.name}" for way, plan in plans.items()},
        "same": same,
        "us": us,
        "predicted": {way: round((plan.seconds or 0.0) * 1e6, 2) for way, plan in plans.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", nargs="*", default=["resnet50", "vgg16", "bert"])
    parser.add_argument("-m", "--machine", default="emerald-rapids")
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    on, lines = machines(given.machine), list[dict[str, Any]]()
    for problem in problems(given.layers):
        lines.append(measured(problem, on, given.seconds))
        us, predicted = lines[-1]["us"], lines[-1]["predicted"]
        ratio, errors = us["without"] / us["tiles"], [predicted[way] / us[way] for way in WAYS]
        said = "the same plan" if lines[-1]["same"] else lines[-1]["plans"]["tiles"]
        print(
            f"{problem.text:44} {us['tiles']:9.1f} {us['without']:9.1f} us {ratio:5.2f}  predicted {errors[0]:.2f} {errors[1]:.2f}  {said}",
            flush=True,
        )
        if given.output:
            given.output.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    ratios = [line["us"]["without"] / line["us"]["tiles"] for line in lines]
    print(f"{len(lines)} layers: {math.exp(np.log(ratios).mean()):.3f} in the geometric mean, least {min(ratios):.3f}")


if __name__ == "__main__":
    main()
