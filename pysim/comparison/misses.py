# SPDX-License-Identifier: Apache-2.0
"""Misses predicted and simulated: the plan of a layer, or of a part of it, with its accesses and what the cost model predicts of them.

Plans of SConv's nest alone are traced by the library's own loops (`simulator.trace`), all others from the description of their loops
(`simulator.walk`).
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pysim.errors import PlanError
from pysim.record.cost import Cost

if TYPE_CHECKING:
    from pysim.algorithms.interface import Nests
    from pysim.cachemodel.simulator.hierarchy import Result
    from pysim.machine.cpu import Machine
    from pysim.problem.text import Layer, Workload
    from pysim.record.plan import Plan
    from pysim.record.schedule import Schedule
    from pysim.record.state import State

KINDS = {"input": "input_stationary", "weight": "weight_stationary"}
# The simulator's operands of each operand of the cost model, which does not separate packed input from packed filters
PARTS = {"input": ("input",), "filters": ("filter",), "output": ("output",), "packed": ("packed_input", "packed_filter")}
PHASES = ("pack", "compute", "store")


class Prepared(NamedTuple):
    """What is to be simulated: the plan of a layer, and of `part`, the layer or a part of it, the same plan with its loops."""

    layer: "Layer"
    plan: "Plan"
    part: "Plan"
    nests: "Nests"

    @property
    def schedule(self) -> "Schedule":
        from pysim.record.plan import on_cpu

        return on_cpu(self.plan)[0]

    @property
    def accesses(self) -> float:
        """About how many accesses a run makes."""
        return _accesses(self.part, self.nests)


class Case(NamedTuple):
    """Predicted cost and simulated counts of a part; `operands`: the simulator's operands of each operand that is shown."""

    of: Prepared
    counted: "Result"
    operands: "Mapping[str, Sequence[str | int]]"

    @property
    def schedule(self) -> "Schedule":
        return self.of.schedule


# From layers to cases


def planned(layer: "Layer", on: "Machine", stationary: str | None, algorithm: str | None, name: str | None, cold: bool) -> "Plan":
    """The plan to simulate: the best one, of an algorithm if given, the named one, or SConv's best one of a stationary kind."""
    from pysim import planner
    from pysim.record.schedule import name_of
    from pysim.registry.cpu import loop_nest

    state: State = "cold" if cold else "hot"
    if stationary and not algorithm:
        algorithm = loop_nest(layer.workload)  # the algorithm that has both kinds
    plan = planner.plan(layer.workload, on, state=state, algorithm=algorithm, name=name)
    if not stationary:
        return plan
    for item in plan.considered:
        if item.schedule.kind == KINDS[stationary]:
            return planner.plan(layer.workload, on, state=state, name=name_of(item.algorithm, item.schedule))
    raise PlanError(f"{layer.workload.text}: no {KINDS[stationary]} schedule of {algorithm} was considered")


def nests_of(plan: "Plan") -> "Nests":
    from pysim.algorithms import algorithm_named

    return algorithm_named(plan.algorithm, plan.workload, plan.on).nests(plan)


def _accesses(plan: "Plan", nests: "Nests") -> float:
    from pysim.cachemodel.simulator import trace, walk
    from pysim.record.plan import on_cpu

    schedule, on = on_cpu(plan)
    return trace.estimated(plan.workload, schedule) if nests.sliced else walk.lines(nests.loops, on.line_bytes)


def prepared(layer: "Layer", plan: "Plan", whole: bool) -> Prepared:
    """The part of a layer that is simulated, predicted with contiguous buffers. Says so if that takes long, and refuses what takes too
    long."""
    from pysim import planner
    from pysim.cachemodel.simulator import trace
    from pysim.record.plan import on_cpu

    on = on_cpu(plan)[1].contiguous()

    def again(workload: "Workload") -> "Plan":
        return planner.plan(workload, on, state=plan.state, name=plan.name)

    def accesses(workload: "Workload") -> float:
        part = again(workload)
        return _accesses(part, nests_of(part))

    workload = layer.workload if whole else trace.part_of(layer.workload, trace.INTERACTIVE_ACCESSES, accesses)
    part = again(workload)
    found = Prepared(layer, plan, part, nests_of(part))
    trace.check_length(workload, found.accesses)
    return found


def expected_accesses(wanted: Sequence[Prepared]) -> float:
    """About how many accesses are simulated: with hot caches a run before the one that counts, too."""
    return sum(one.accesses * (1 if one.plan.state == "cold" else 2) for one in wanted)


def simulated(of: Prepared) -> Case:
    from pysim.cachemodel.simulator import trace, walk
    from pysim.cachemodel.simulator.hierarchy import Hierarchy
    from pysim.record.plan import on_cpu

    caches, warm = Hierarchy.from_machine(on_cpu(of.plan)[1]), of.plan.state != "cold"
    if of.nests.sliced:
        return Case(of, trace.simulate(of.part.workload, of.schedule, caches, warm=warm), PARTS)
    counted, tags = walk.simulate(of.nests.loops, caches, warm=warm)
    return Case(of, counted, {name: (tag,) for name, tag in tags.items()})


def doubts_of(case: Case) -> list[str]:
    """What the closed forms or the trace leave out."""
    from pysim.cachemodel.cpu.nest import nest_of
    from pysim.cachemodel.cpu.nest_loops import doubts, doubts_of_levels
    from pysim.record.plan import on_cpu

    schedule, on = on_cpu(case.of.plan)
    if case.of.nests.sliced:
        return doubts(nest_of(case.of.part.workload), schedule, on)
    return [*doubts_of_levels(on), "planes and rows that lie a power of two apart: the trace follows the description of the loops"]


# What a case shows


def footprints(case: Case) -> list[str]:
    """The reuse distances of each operand, from the description of the loops."""
    from pysim.cachemodel.cpu import nest_text
    from pysim.record.plan import on_cpu

    on = on_cpu(case.of.plan)[1]
    return [line for nest in case.of.nests.loops for line in nest_text.reused(nest, on, case.of.nests.names)]


def levels_of(case: Case) -> dict[str, dict[str, Any]]:
    """Per cache: predicted and simulated misses and write-backs; simulated misses by operand, and by phase of SConv's nest."""
    from pysim.record.plan import on_cpu

    on, cost = on_cpu(case.of.plan)[1], case.of.part.cost
    assert isinstance(cost, Cost)
    levels_json: dict[str, dict[str, Any]] = {}
    for place, level in enumerate(on.levels):
        supplier = cost.levels[on.levels[place + 1].name if place + 1 < len(on.levels) else "memory"]
        predicted, misses = supplier["lines"] - supplier["writeback_lines"], case.counted[level.name].misses
        levels_json[level.name] = {
            "analytic_lines": predicted,
            "simulated_misses": misses,
            "difference_percent": 100 * (predicted - misses) / misses if misses else 0.0 if predicted < 0.5 else None,
            "analytic_writebacks": supplier["writeback_lines"],
            "simulated_writebacks": case.counted[level.name].writebacks,
            "operands": {name: _misses(case, level.name, name) for name in case.operands},
            "phases": {name: case.counted.by(level.name, phase=name).misses for name in phases_of(case)},
        }
    return levels_json


def phases_of(case: Case) -> tuple[str, ...]:
    return PHASES if case.of.nests.sliced else ()


def _misses(case: Case, level: str, operand: str) -> int:
    return sum(case.counted.by(level, operand=part).misses for part in case.operands[operand])


def fields_of(case: Case) -> dict[str, Any]:
    of = case.of
    return {
        "problem": of.layer.workload.text,
        "simulated": of.part.workload.text,
        "label": of.layer.label,
        "count": of.layer.count,
        "machine": of.plan.machine,
        "state": of.plan.state,
        "name": of.plan.name,
        "algorithm": of.plan.algorithm,
        "trace": "library" if of.nests.sliced else "description",
        "kernel": case.schedule.kernel,
        "schedule": case.schedule.stationary,
        "pack": case.schedule.pack,
        "tile": case.schedule.tile,
        "accesses": case.counted.accesses,
        "levels": levels_of(case),
        "counters": case.counted.to_dict(),
        "doubts": doubts_of(case),
    }


def shape_of(plan: "Plan") -> str:
    """The plan in words: algorithm, kernel, and for SConv's nest the order of its loops."""
    from pysim.record.plan import on_cpu

    s, sliced = on_cpu(plan)[0], nests_of(plan).sliced
    order = f", {s.stationary.replace('_', ' ')}" if sliced else ""
    return f"{plan.algorithm} by {s.kernel}{order}"
