# SPDX-License-Identifier: Apache-2.0
"""One task of a sweep: what is predicted, simulated or measured of a problem."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from pysim import planner
from pysim.calibration import host
from pysim.comparison import misses
from pysim.errors import PlanError, PysimError
from pysim.explain.advice import peak_share
from pysim.machine.change import changed
from pysim.machine.gpu import Gpu
from pysim.problem.text import Layer
from pysim.record.cost import Cost
from pysim.record.plan import Plan
from pysim.sweep.spec import Task

Row = dict[str, Any]


def run(task: Task) -> Row:
    """The results by name; {"error": why} if the task cannot be done. Other exceptions are faults and are raised."""
    try:
        return {"predict": _predicted, "simulate": _simulated, "measure": _measured}[task.how](task)
    except (PysimError, MemoryError) as error:
        return {"error": str(error) or "out of memory"}


def run_all(some: Sequence[Task]) -> tuple[float, list[Row]]:
    """The seconds that tasks took, and their results."""
    start = time.perf_counter()
    results = [run(one) for one in some]
    return time.perf_counter() - start, results


def _plan(task: Task) -> Plan:
    options: Any = {"algorithm": task.algorithm, "threads": task.threads, "layout": task.layout, "accuracy": task.accuracy}
    return planner.plan(task.problem, changed(host.any_machine(task.machine), task.changes), **options)


def _predicted(task: Task) -> Row:
    plan = _plan(task)
    assert isinstance(plan.cost, Cost)
    terms = {name: cycles / plan.cost.cycles for name, cycles in plan.cost.counted.items() if cycles}
    return {
        "seconds": plan.cost.seconds, "algorithm": plan.algorithm, "kernel": plan.kernel, "plan": plan.name,
        "flops_per_second": plan.workload.flops / plan.cost.seconds, "peak_share": peak_share(plan), "bound_by": plan.cost.bound_by,
        "max_error": plan.error, "workspace_bytes": plan.workspace_bytes, "terms": terms,
    }  # fmt: skip


def _simulated(task: Task) -> Row:
    plan = _plan(task)
    if isinstance(plan.on, Gpu):
        raise PlanError(f"{task.machine} is a GPU; caches of CPUs are simulated")
    case = misses.simulated(misses.prepared(Layer(plan.workload), plan, whole=False))
    return _predicted(task) | {"simulated": case.of.part.workload.text, "levels": misses.levels_of(case)}


def _measured(task: Task) -> Row:
    """Checked and timed on this computer."""
    from pysim import api

    if task.changes or task.algorithm:
        raise PlanError("a measurement is of this computer and its plan: leave out set and algorithms")
    (one,) = api.compare(task.problem, machine=task.machine, threads=task.threads, layout=task.layout, accuracy=task.accuracy)
    if not one.correct:
        raise PlanError(f"the result is wrong: {one.reason}")
    return {"seconds": one.predicted_seconds, "measured_seconds": one.measured_seconds, "comparison": msgspec.to_builtins(one)}
