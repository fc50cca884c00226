# SPDX-License-Identifier: Apache-2.0
"""A plan as text: a verdict, the algorithm's own description, the cycles by term, the alternatives and the rejected kernels."""

import textwrap
from collections.abc import Iterator
from typing import Any

from pysim.algorithms import algorithm_named
from pysim.explain.advice import advice, verdict, would_help
from pysim.explain.energy import energy_line
from pysim.explain.roof import above
from pysim.machine.gpu import Gpu
from pysim.planner.plan import planned
from pysim.record.cost import Cost, CsaCost
from pysim.record.description import Description, bytes_text, seconds_text
from pysim.record.plan import Considered, Plan, Request

WIDTH = 120
SHOWN = 6  # rejections that are printed
_CSA_TERMS = ("cold", "extra", "l3", "l2", "cost")
_OPERANDS = {
    "plain": "operands are multiplied as they are",
    "transformed": "operands are transformed",
    "split": "operands are split into parts",
}
_SCALES = {
    "window": "window",
    "tile": "tile, of which its window is a part",
}
_FINITE = {
    "filters": "the filters: they are multiplied by zeros of the padding",
    "operands": "both operands: they are combined before they are multiplied",
}


def explain(plan: Plan) -> str:
    """The explanation as text, lines of at most about WIDTH characters."""
    described = algorithm_named(plan.algorithm, plan.workload, plan.on).describe(plan)
    sections: list[tuple[str, list[str]]] = [
        ("", [*_verdict(plan, described)]),
        *((section.title, list(section.lines)) for section in described.sections),
        ("cycles", [*_cycles(plan.cost)] if isinstance(plan.cost, Cost) else []),
        ("considered", [*_considered(plan)]),
        ("rejected", [*_rejected(plan)]),
        ("planning only", [plan.on.planning_only] if isinstance(plan.on, Gpu) and plan.on.planning_only else []),
        ("must be finite", [_FINITE[plan.needs_finite]] if plan.needs_finite in _FINITE else []),
        ("assumed numbers", list(plan.assumed)),
    ]
    return "\n\n".join("\n".join(([title] if title else []) + _indented(lines, title)) for title, lines in sections if lines)


def _indented(lines: list[str], title: str) -> list[str]:
    """Lines indented under their title; long lines continue with more indentation."""
    return [part for line in lines for part in _wrapped(f"  {line}")] if title else lines


def _wrapped(line: str) -> list[str]:
    if len(line) <= WIDTH + 2:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_long_words=False)


def _verdict(plan: Plan, described: Description) -> Iterator[str]:
    """The first lines: predicted time, share of the peak and the bound; then algorithm, kernel, error and name."""
    workspace = f"workspace {bytes_text(plan.workspace_bytes)}"
    if isinstance(plan.cost, Cost):
        rate = plan.workload.flops / plan.cost.seconds
        yield (
            f"{plan.problem} on {plan.machine}: {seconds_text(plan.cost.seconds)} predicted, {rate / 1e9:,.1f} GFLOP/s; "
            f"bound by {plan.cost.bound_by}"
        )
        yield from _wrapped(verdict([(1, plan)]))
        yield from _wrapped(would_help(advice([(1, plan)])))
        if energy := energy_line(plan):
            yield from _wrapped(energy)
    else:
        yield f"{plan.problem} on {plan.machine}: csa cost {plan.cost.cost:,} cycles (the sum of the latencies of all lines)"
    if wrong := above(plan, plan.seconds, "predicted"):
        yield wrong
    yield f"{plan.algorithm}: {described.summary}"
    layout = f", {plan.layout.upper()}" if plan.layout != "nchw" else ""
    limit = f" of {bytes_text(plan.memory_limit)} allowed" if plan.memory_limit is not None else ""
    yield f"kernel {plan.kernel}{layout}; {workspace}{limit}"
    bound = algorithm_named(plan.algorithm, plan.workload, plan.on).tolerance(plan.workload, plan.schedule)
    yield f"largest error {plan.error:.1e} of the results' rms for inputs of one size; {_OPERANDS[bound.operands]}"
    if plan.contract:
        yield from _wrapped(f"contract {plan.contract}: plans with the same one give the same bits{_price(plan)}")
    if plan.error_scale in _SCALES:
        yield f"a result's error is relative to the largest input of its {_SCALES[plan.error_scale]}"
    yield f"error bound {bound.source}"
    yield f"plan {plan.name}"


def _price(plan: Plan) -> str:
    """What accuracy reproducible costs: the time over that of accuracy strict."""
    if plan.accuracy != "reproducible" or not plan.seconds:
        return ""
    terms: Any = {"layout": plan.layout, "state": plan.state, "threads": plan.threads, "memory_limit": plan.memory_limit}
    strict = planned(Request(plan.workload, plan.on, accuracy="strict", **terms))
    return f"; {plan.seconds / strict.seconds:.3f}x the time of accuracy strict" if strict.seconds else ""


def _cycles(cost: Cost) -> Iterator[str]:
    """Each term: its cycles alone, those that overlap with other terms, and those that count; the latter add up to the predicted time."""
    yield f"{'':<18}{'raw':>16}{'hidden':>16}{'counted':>16}"
    for name, counted in cost.counted.items():
        if cost.terms[name]:
            yield f"{name:<18}{cost.terms[name]:>16,.0f}{cost.hidden.get(name, 0.0):>16,.0f}{counted:>16,.0f}{counted / cost.cycles:>8.1%}"
    raw, hidden = sum(cost.terms.values()), sum(cost.hidden.values())
    yield f"{'all':<18}{raw:>16,.0f}{hidden:>16,.0f}{cost.cycles:>16,.0f}"


def _considered(plan: Plan) -> Iterator[str]:
    """The best schedule of each kind, and why the others are slower."""
    chosen = next((item for item in plan.considered if item.schedule == plan.schedule), plan.considered[0])
    for item in plan.considered:
        over = _total(item) / _total(chosen) if _total(chosen) else 1.0
        sizes = ", ".join(f"{name} {value}" for name, value in _tiling(item).items())
        yield f"{over:>7.3f}x  {item.algorithm}, {item.schedule.kind}, {item.schedule.kernel}: {sizes}; {_bound(item)}"
    for item in plan.considered:
        if item is not chosen:
            yield _difference(chosen, item)


def _tiling(item: Considered) -> dict[str, int]:
    """The sizes in which schedules of one kernel differ."""
    return {name: value for name, value in item.schedule.tile.items() if name in ("channels", "k2", "k3", "splits", "group")}


def _terms(item: Considered) -> dict[str, float]:
    """The terms to compare: counted cycles, or the lines of csa."""
    return item.cost.counted if isinstance(item.cost, Cost) else {name: getattr(item.cost, name) for name in _CSA_TERMS[:-1]}


def _total(item: Considered) -> float:
    return item.cost.cost if isinstance(item.cost, CsaCost) else item.cost.cycles


def _bound(item: Considered) -> str:
    if isinstance(item.cost, Cost):
        return f"bound by {item.cost.bound_by}"
    return ", ".join(f"{name} {getattr(item.cost, name):,}" for name in _CSA_TERMS)


def _difference(chosen: Considered, other: Considered) -> str:
    """Why the other is slower: the terms in which it costs more, and those in which it costs less."""
    what = f"{other.algorithm}, {other.schedule.kind}"
    if _total(other) == _total(chosen):
        return f"{what} costs the same as the chosen plan"
    ours, theirs = _terms(chosen), _terms(other)
    gaps = {name: theirs.get(name, 0.0) - ours.get(name, 0.0) for name in {**ours, **theirs}}
    parts = [
        f"{word} {', '.join(f'{name} ({gaps[name]:+,.0f})' for name in sorted(names, key=lambda name: -abs(gaps[name])))}"
        for word, names in (
            ("more cycles in", [name for name in gaps if gaps[name] >= 0.5]),
            ("fewer in", [name for name in gaps if gaps[name] <= -0.5]),
        )
        if names
    ]
    return f"{what} is {_total(other) / _total(chosen) - 1:.1%} slower: {'; '.join(parts) or 'rounding'}"


def _rejected(plan: Plan) -> Iterator[str]:
    for item in plan.rejected[:SHOWN]:
        yield f"{item.what}: {item.reason}"
    if len(plan.rejected) > SHOWN:
        yield f"and {len(plan.rejected) - SHOWN} more; --json lists all"
