# SPDX-License-Identifier: Apache-2.0
"""What limits plans, and what would help: each change is planned and costed like the plan itself; there is no rule.

    74 % of the peak of 133 GFLOP/s; 12 % packing, 8 % waiting for L3
    would help: two threads 46 %, NCHW16C in and out 31 %, another 1.0 MiB of L2 4 %

A percentage is the share of the predicted time that the change saves, after planning again: a larger cache may lead to another algorithm.
It does not count what a caller does before: packing B once, or operands that must be brought into another layout.

Two predictions of one kernel err alike. If another kernel runs after the change, both errors count, UNSURE each, or UNSURE_WAITING if the
multiply-adds are not what binds a plan. The change is named only if it saves three times as much as they may sum up to: of one plan from
sqrt(2) x 5 % x 3 (1 - share) on, 17.5 %; if one of the two waits, from 23.6 % on, if both do, from 27.6 %.

Changes are those of a caller (threads, layout, prepared operands, accuracy, limits) and those of a machine (a cache twice as large, memory
twice as fast), which say what the time depends on. Several plans, as of a network, are one sum: terms and savings are weighted by time.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pysim import planner
from pysim.algorithms import algorithm_named
from pysim.errors import PysimError
from pysim.machine.change import Value, changed
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.record.cost import Cost
from pysim.record.description import bytes_text
from pysim.record.plan import BLOCKED, Plan

SHOWN = 5
LEAST_SHARE = 0.02  # of the time, for a term or a change that is named
UNSURE, UNSURE_WAITING = 0.05, 0.09  # relative errors of a predicted time, medians: of 1,957 plans that multiply-adds bind, of 174 others
CERTAIN = 3  # times the error, from which on a gain is named
_WORDS = {
    "pack": "packing", "patches": "transforming the input", "phases": "splitting the input by stride", "outputs": "transforming the output",
    "columns": "unfolding the input", "call": "calls of the kernel", "store": "storing tiles",
}  # fmt: skip
_MULTIPLYING = ("kernel", "main loop", "power")  # terms of which the share of the peak is a part
_COUNTS = {2: "two", 4: "four", 8: "eight"}
Weighted = tuple[float, Plan]  # how often it runs


class Change(NamedTuple):
    """A change of what is asked for or of the machine: arguments of `planner.plan`, and numbers of the machine's file."""

    what: str
    options: Mapping[str, Any] = {}
    machine: Mapping[str, Value] = {}


class Help(NamedTuple):
    """A change, and the share of the predicted time that it saves."""

    change: Change
    share: float


class _Saved(NamedTuple):
    """Seconds that a change saves, and the variance of the prediction."""

    change: Change
    gain: float = 0.0
    variance: float = 0.0


def _alike(plan: Plan, after: Plan) -> bool:
    """Whether the errors of both predictions are about the same: one kernel on operands of one layout."""
    return (plan.algorithm, plan.kernel, plan.layout) == (after.algorithm, after.kernel, after.layout)


def _unsure(plan: Plan) -> float:
    """The relative error of a predicted time."""
    assert isinstance(plan.cost, Cost)
    return UNSURE if plan.cost.bound_by in _MULTIPLYING else UNSURE_WAITING


def changes_of(plan: Plan) -> Iterator[Change]:
    """The changes to try on a plan."""
    on = plan.on
    if isinstance(plan.workload, Conv):
        yield from (
            Change(f"{one.upper()} in and out", {"layout": one})
            for one in (("nhwc",) if isinstance(on, Gpu) else BLOCKED)
            if one != plan.layout
        )
    elif not isinstance(on, Gpu):
        yield Change("a prepared B", {"prepared": True})
    if plan.accuracy != "standard":
        yield Change("standard accuracy", {"accuracy": "standard"})
    if plan.error_limit is not None:
        yield Change("no limit of the error", {"error_limit": None})
    if plan.memory_limit is not None:
        yield Change("no limit of the workspace", {"memory_limit": None})
    if isinstance(on, Gpu):
        yield Change("memory twice as fast", machine={"memory_bytes_per_second": 2 * on.memory_bytes_per_second.value})
        yield Change("an L2 twice as fast", machine={"l2_bytes_per_second": 2 * on.l2_bytes_per_second.value})
        return
    if 2 * plan.threads <= on.cores:
        yield Change(f"{_COUNTS.get(2 * plan.threads, 2 * plan.threads)} threads", {"threads": 2 * plan.threads})
    for level in on.levels:
        larger = {f"levels.{level.name}.ways": 2 * level.ways}
        yield Change(f"another {bytes_text(level.size_bytes)} of {level.name}", machine=larger)
    yield Change("memory twice as fast", machine={"memory.read_bytes_per_cycle": 2 * on.memory.read_bytes_per_cycle.value})


def planned_with(plan: Plan, change: Change) -> Plan:
    """The best plan after a change. PysimError if the change is none that this problem or machine can have."""
    options: dict[str, Any] = {
        "state": plan.state, "layout": plan.layout, "accuracy": plan.accuracy, "error_limit": plan.error_limit,
        "memory_limit": plan.memory_limit, "threads": plan.threads,
    }  # fmt: skip
    return planner.plan(plan.workload, changed(plan.on, change.machine), **{**options, **change.options})


def advice(plans: Sequence[Weighted]) -> list[Help]:
    """Changes that surely save at least LEAST_SHARE of the time of all plans together, the most helpful first; the best layout alone."""
    total = sum(count * _seconds(plan) for count, plan in plans)
    saved: dict[str, _Saved] = {}
    for count, plan in plans:
        for change in changes_of(plan):
            try:
                after = planned_with(plan, change)
            except PysimError:
                continue
            errors = 0.0 if _alike(plan, after) else math.hypot(_unsure(plan), _unsure(after))
            known = saved.get(change.what, _Saved(change))
            gain = known.gain + count * (_seconds(plan) - _seconds(after))
            saved[change.what] = _Saved(change, gain, known.variance + (errors * count * _seconds(after)) ** 2)
    named = [one for one in saved.values() if total and one.gain >= max(LEAST_SHARE * total, CERTAIN * math.sqrt(one.variance))]
    found = [Help(one.change, one.gain / total) for one in named]
    return sorted(_best_layout(found), key=lambda one: -one.share)


def _best_layout(found: Sequence[Help]) -> list[Help]:
    layouts = [one for one in found if "layout" in one.change.options]
    best = max(layouts, key=lambda one: one.share, default=None)
    return [one for one in found if one is best or one not in layouts]


def verdict(plans: Sequence[Weighted]) -> str:
    """The share of the peak, and the terms that take the rest of the time."""
    total = sum(count * _seconds(plan) for count, plan in plans)
    parts = {"the kernel below its peak": 0.0}
    at_peak, peaks = 0.0, set[float]()
    for count, plan in plans:
        assert isinstance(plan.cost, Cost)
        for name, cycles in plan.cost.counted.items():
            part = "the kernel below its peak" if name in _MULTIPLYING else name
            parts[part] = parts.get(part, 0.0) + count * plan.cost.seconds * cycles / plan.cost.cycles
        at_peak += count * plan.cost.seconds * peak_share(plan)
        peaks.add(_peak(plan))
    parts["the kernel below its peak"] -= at_peak
    waits = {"memory", "L2", *(level.name for _, plan in plans if not isinstance(plan.on, Gpu) for level in plan.on.levels)}
    told = sorted(((seconds / total, name) for name, seconds in parts.items() if seconds >= LEAST_SHARE * total), reverse=True)
    terms = [f"{share:.0%} {f'waiting for {name}' if name in waits else _WORDS.get(name, name)}" for share, name in told]
    of = f" of {max(peaks) / 1e9:,.0f} GFLOP/s" if len(peaks) == 1 else "s of their units"
    return "; ".join([f"{at_peak / total:.0%} of the peak{of}"] * bool(at_peak) + [", ".join(terms)] * bool(terms))


def _peak(plan: Plan) -> float:
    """FLOP/s of the definition that all threads reach if they do nothing but multiply; 0 if unknown."""
    return plan.threads * algorithm_named(plan.algorithm, plan.workload, plan.on).describe(plan).peak_flops


def peak_share(plan: Plan) -> float:
    """The plan's share of the peak of its unit; 0 if that is unknown."""
    peak = _peak(plan)
    return plan.workload.flops / peak / _seconds(plan) if peak else 0.0


def would_help(found: Sequence[Help]) -> str:
    """The most helpful changes as one line."""
    told = [f"{one.change.what} {one.share:.0%}" for one in found[:SHOWN]]
    return f"would help: {', '.join(told)}" if told else f"no change that was tried saves {LEAST_SHARE:.0%}"


def _seconds(plan: Plan) -> float:
    assert isinstance(plan.cost, Cost)
    return plan.cost.seconds
