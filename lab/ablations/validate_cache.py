# SPDX-License-Identifier: Apache-2.0
"""Compares the cost model's closed-form misses with exact simulation, layer by layer, and writes both down.

    python lab/ablations/validate_cache.py > lab/data/simulated/cache-validation.json
    python validate_cache.py vgg16 googlenet resnet18 mec --machines $ALL --summary > lab/data/simulated/cache-validation-other.json
    python validate_cache.py resnet50 squeezenet --random 3 --machines $ALL --summary > lab/data/simulated/cache-validation-random.json

with ALL=xeon-4208,zen4,power10-e1050,sapphire-rapids, the last two for other layers, schedules and machines.

For every distinct layer of the sets (resnet50), each machine and each stationary kind: the schedule of that kind with the least
predicted cost, its lines that come into L1, L2 and L3 by `Cost.levels`, and the misses of the simulated caches in the second of two
runs (`pysim.cachemodel.simulator.trace`), both for contiguous buffers. A miss of L2 is a line that comes from L3:
`lines - writeback_lines` of supplier "L3".

`--random N` takes N schedules of each layer and machine instead, drawn with a fixed seed from all that are predicted to take at most
twice as long as the best, whatever their kind.

Two errors are given. `error` is |analytic - simulated| over the simulated misses or the lines that the run touches at all (its misses
from cold), whichever is more: a run that fits misses nothing, and nothing is no measure of an error. `relative` is that over
the simulated misses alone, null where there are none and some were predicted.
"""

import argparse
import json
import sys
import zlib
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

from pysim import planner
from pysim.cachemodel.cpu.cost import predict_schedule
from pysim.cachemodel.cpu.nest import nest_of
from pysim.cachemodel.simulator import trace
from pysim.cachemodel.simulator.hierarchy import Hierarchy
from pysim.cachemodel.simulator.simulated import OF_OPERAND
from pysim.machine import load as machine
from pysim.machine.cpu import Machine
from pysim.measure.store import environment
from pysim.problem.text import Conv, Layer, distinct, resolve
from pysim.record.cost import Cost
from pysim.record.schedule import Schedule

MACHINES = ("xeon-4208", "zen4", "power10-e1050")
WORST = 10
WITHIN = 2.0  # times the best predicted seconds


def drawn(layer: Layer, on: Machine, random: int) -> list[tuple[Schedule, Cost]]:
    """The best schedule of each stationary kind, or `random` of the good ones."""
    nest = "sconv" if isinstance(layer.workload, Conv) else "gemm"
    if not random:
        chosen = [item.schedule for item in planner.plan(layer.workload, on, algorithm=nest).considered]
    else:
        good = [schedule for schedule, _ in planner.candidates(layer.workload, on, WITHIN, algorithm=nest)]
        seed = zlib.crc32(f"{on.name} {layer.workload.text}".encode())
        chosen = [good[at] for at in np.random.default_rng(seed).choice(len(good), min(random, len(good)), replace=False)]
    return [(schedule, predict_schedule(nest_of(layer.workload), on.contiguous(), schedule)) for schedule in chosen]


def cases(layer: Layer, on: Machine, random: int = 0) -> list[dict[str, Any]]:
    """Some schedules of one layer (see `drawn`): each with, per level, both counts and their parts by operand."""
    found = []
    for schedule, cost in drawn(layer, on, random):
        caches = Hierarchy.from_machine(on)
        counted = trace.simulate(layer.workload, schedule, caches, warm=True)
        touched = _touched(layer, on)
        levels = {}
        for place, level in enumerate(on.levels):
            supplier = cost.levels[on.levels[place + 1].name if place + 1 < len(on.levels) else "memory"]
            analytic = supplier["lines"] - supplier["writeback_lines"]
            simulated = counted[level.name].misses
            levels[level.name] = {
                "analytic": round(analytic, 1),
                "simulated": simulated,
                "error": abs(analytic - simulated) / max(simulated, touched),
                "relative": abs(analytic - simulated) / simulated if simulated else 0.0 if analytic < 0.5 else None,
                "simulated_by": {
                    name: sum(counted.by(level.name, operand=part).misses for part in parts) for name, parts in OF_OPERAND.items()
                },
                "analytic_bytes_by": {name: round(supplier[f"{name}_bytes"]) for name in OF_OPERAND},
            }
        found.append(
            {
                "machine": on.name,
                "problem": layer.workload.text,
                "stationary": schedule.stationary,
                "kernel": schedule.kernel,
                "pack": schedule.pack,
                "tile": _tile(schedule),
                "touched_lines": touched,
                "levels": levels,
            }
        )
    return found


def _tile(schedule: Schedule) -> dict[str, int]:
    return {name: getattr(schedule, name) for name in ("windows", "filters", "channels", "k2", "k3")}


def _touched(layer: Layer, on: Machine) -> int:
    """Lines of input, filters and outputs that the run touches."""
    nest, line = nest_of(layer.workload), on.levels[0].line_bytes
    inputs = nest.group_channels * nest.touched_bytes(line)
    filters = nest.group_filters * nest.group_channels * nest.kernel_h * nest.kernel_w * nest.element_bytes
    outputs = nest.group_filters * nest.windows * nest.result_bytes
    return (nest.groups * filters + nest.repeats * (inputs + outputs)) // line


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Median, 90th percentile and worst cases per level, for all machines together and for each."""
    document = {}
    for name in ("all", *dict.fromkeys(case["machine"] for case in found)):
        some = [case for case in found if name in ("all", case["machine"])]
        document[name] = {level: _of_level(some, level) for level in some[0]["levels"]}
    return document


def _of_level(some: list[dict[str, Any]], level: str) -> dict[str, Any]:
    numbers = [case["levels"][level] for case in some]
    errors = [one["error"] for one in numbers]
    relative = [np.inf if one["relative"] is None else one["relative"] for one in numbers]
    order = np.argsort(errors)[::-1][:WORST]
    worst = [
        {
            "machine": some[at]["machine"],
            "problem": some[at]["problem"],
            "stationary": some[at]["stationary"],
            **{key: numbers[at][key] for key in ("analytic", "simulated", "error")},
        }
        for at in order
    ]
    return {
        "cases": len(some),
        "median_error": float(np.median(errors)),
        "p90_error": float(np.quantile(errors, 0.9)),
        "median_relative": _finite(np.quantile(relative, 0.5, method="higher")),
        "p90_relative": _finite(np.quantile(relative, 0.9, method="higher")),
        "worst": worst,
    }


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _job(job: tuple[Layer, str, int]) -> list[dict[str, Any]]:
    layer, name, random = job
    print(f"{name} {layer.workload.text}", file=sys.stderr)
    return cases(layer, machine.load(name), random)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", default=["resnet50"])
    parser.add_argument("--machines", default=",".join(MACHINES))
    parser.add_argument("--random", type=int, default=0, help="so many drawn schedules of each layer instead of the best ones")
    parser.add_argument("--summary", action="store_true", help="leave the cases out")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    layers = sorted(distinct(resolve(given.sets)), key=lambda layer: layer.workload.flops)
    jobs = [(layer, name, given.random) for name in given.machines.split(",") for layer in layers]
    if given.jobs > 1:
        with ProcessPoolExecutor(given.jobs) as pool:
            found = [case for part in pool.map(_job, jobs) for case in part]
    else:
        found = [case for job in jobs for case in _job(job)]
    document = {
        "schema": 1,
        "command": " ".join(["python", *sys.argv]),
        "environment": environment(),
        "state": "hot",
        "summary": summary(found),
        **({} if given.summary else {"cases": found}),
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
