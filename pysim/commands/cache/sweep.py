# SPDX-License-Identifier: Apache-2.0
"""A sweep of `pysim cache`: a plan with other values of one parameter, as a table and as a picture."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pysim.commands.common import Cell, Column, document, progress, put, put_table, say, seconds
from pysim.comparison import misses
from pysim.comparison.misses import Case, fields_of, levels_of, nests_of, prepared, shape_of
from pysim.errors import MissingError
from pysim.file_io import written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pysim.problem.text import Layer
    from pysim.record.plan import Plan
    from pysim.record.schedule import Schedule

LINES_PER_SECOND = 1e8  # that are simulated, at least
SWEPT = ("channels", "k2", "k3")
MAX_POINTS = 12  # values of a sweep
Swept = tuple[Case, dict[str, dict[str, Any]]]  # with the result of `levels_of`


def check_picture(picture: Path) -> None:
    """MissingError if nothing can be drawn here; before the work."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingError(f"{picture} cannot be drawn: matplotlib is not installed; pip install matplotlib") from None


def simulated(wanted: "Sequence[misses.Prepared]") -> list[Case]:
    """All cases, with progress; says so if that takes long."""
    from pysim.cachemodel.simulator import trace

    accesses = misses.expected_accesses(wanted)
    if accesses > 2 * trace.INTERACTIVE_ACCESSES * max(1, len(wanted)):
        say(f"about {accesses:.1e} accesses are simulated, which takes up to {seconds(accesses / LINES_PER_SECOND)}")
    cases = []
    with progress() as show:
        for number, one in enumerate(wanted, 1):
            show(f"simulating {number} of {len(wanted)}: {one.layer.workload.text}")
            cases.append(misses.simulated(one))
        show("")
    return cases


def sweep(layer: "Layer", plan: "Plan", over: str, picture: Path | None, whole: bool, as_json: bool) -> None:
    cases = simulated([prepared(layer, one, whole) for one in _variants(plan, over)])
    if as_json:
        document(caches=[fields_of(case) for case in cases])
    else:
        _put_sweep(cases, plan, over)
    if picture:
        _draw(picture, cases, plan, over)
        say(f"wrote {picture}")


def _variants(plan: "Plan", over: str) -> "list[Plan]":
    """The planned schedule with other values of one parameter, and itself."""
    import msgspec

    from pysim import planner
    from pysim.record.plan import on_cpu
    from pysim.record.schedule import name_of

    schedule, on = on_cpu(plan)
    values = _nest_values(plan, schedule, over) if nests_of(plan).sliced else _legal_values(plan, schedule, over)
    wanted = [msgspec.structs.replace(schedule, **{over: value}) for value in sorted({*values, getattr(schedule, over)})]
    if len(wanted) < 2:
        known = "vary another parameter, or another algorithm's plan (--algorithm)"
        say(f"{plan.problem}: no other {over} of {plan.algorithm} goes with the rest of its plan; {known}")
    names = (name_of(plan.algorithm, one) for one in wanted)
    return [planner.plan(plan.workload, on, state=plan.state, name=name) for name in names]


def _nest_values(plan: "Plan", schedule: "Schedule", over: str) -> "list[int]":
    """The sizes of 1, 2, 3 ... equal parts, and all there is."""
    from pysim.cachemodel.cpu.nest import ceil_div, nest_of

    nest = nest_of(plan.workload)
    windows, filters = ceil_div(nest.windows, schedule.windows), ceil_div(nest.group_filters, schedule.filters)
    streamed, kept = (filters, windows) if schedule.stationary == "input_stationary" else (windows, filters)
    total = {"channels": nest.group_channels, "k2": streamed, "k3": kept}[over]
    return _thinned([*{ceil_div(total, part) for part in range(1, total + 1)}])


def _legal_values(plan: "Plan", schedule: "Schedule", over: str) -> "list[int]":
    """The values of the algorithm's own schedules that are equal otherwise."""
    import msgspec

    from pysim import planner

    found = planner.candidates(plan.workload, plan.on, math.inf, layout=plan.layout, algorithm=plan.algorithm)
    same = (one for one, _ in found if isinstance(one, type(schedule)))
    own = getattr(schedule, over)
    return _thinned([getattr(one, over) for one in same if msgspec.structs.replace(one, **{over: own}) == schedule])


def _thinned(values: list[int]) -> list[int]:
    values = sorted({*values})
    while len(values) > MAX_POINTS:
        values = [*values[:-1:2], values[-1]]
    return values


def _put_sweep(cases: list[Case], plan: "Plan", over: str) -> None:
    from pysim.record.plan import on_cpu

    schedule, on = on_cpu(plan)
    of = cases[0].of
    part = "" if of.part.workload == of.layer.workload else f", of {of.part.workload.text}"
    put((plan.problem, "bold"))
    put(f"{on.name}{part}: {shape_of(plan)}; misses for each {over}, predicted and simulated")

    rows = [(case, levels_of(case)) for case in cases]

    def value(row: Swept) -> Cell:
        value = getattr(row[0].schedule, over)
        return f"{value}{'*' if value == getattr(schedule, over) else ' '}", "bold"

    def predicted(level: str) -> Column[Swept]:
        return Column(f"{level} predicted", lambda row: f"{row[1][level]['analytic_lines']:,.0f}")

    def simulated(level: str) -> Column[Swept]:
        return Column(f"{level} simulated", lambda row: f"{row[1][level]['simulated_misses']:,}")

    columns = [column for level in on.levels for column in (predicted(level.name), simulated(level.name))]
    put_table([Column(over, value), *columns], rows)
    put("* as planned")


def _draw(file: Path, cases: list[Case], plan: "Plan", over: str) -> None:
    """Draws misses per level over the parameter: circles for simulated, crosses for predicted misses."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from pysim.record.plan import on_cpu

    schedule, on = on_cpu(plan)
    values = [getattr(case.schedule, over) for case in cases]
    levels = [levels_of(case) for case in cases]
    figure, axes = pyplot.subplots(len(on.levels), 1, sharex=True, figsize=(7, 2 + 1.6 * len(on.levels)), constrained_layout=True)
    for axis, level in zip(axes if len(on.levels) > 1 else [axes], on.levels, strict=True):
        axis.axvline(getattr(schedule, over), color="0.75", linewidth=5, label="planned")
        axis.plot(values, [one[level.name]["simulated_misses"] for one in levels], "o-", color="tab:blue", label="simulated")
        axis.plot(values, [one[level.name]["analytic_lines"] for one in levels], "x--", color="tab:orange", label="predicted")
        axis.set_ylabel(f"{level.name} misses")
        most = max(max(one[level.name]["simulated_misses"], one[level.name]["analytic_lines"]) for one in levels)
        axis.set_ylim(0, 1.15 * max(most, 1))
        if most < 1:
            axis.set_yticks([0])
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    last = figure.axes[-1]
    last.set_xscale("log", base=2)
    last.set_xticks(values, [str(value) for value in values])
    last.minorticks_off()
    last.set_xlabel({"channels": "channels per set", "k2": "K2: streamed tiles per set", "k3": "K3: stationary tiles per set"}[over])
    figure.axes[0].legend(loc="best", frameon=False)
    figure.suptitle(f"{plan.problem} on {on.name}\n{shape_of(plan)}", fontsize=10)
    try:
        with written(file) as partial:
            figure.savefig(partial, dpi=150)
    finally:
        pyplot.close(figure)
