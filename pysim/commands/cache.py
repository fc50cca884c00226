# SPDX-License-Identifier: Apache-2.0
"""`pysim cache`: per level, the misses that the cost model predicts for a plan and the misses that an exact simulation counts."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from pysim.commands.common import (
    Cell,
    Choice,
    Column,
    OutputFile,
    document,
    json_option,
    layers_of,
    machine_option,
    plural,
    progress,
    put,
    put_lines,
    put_table,
    say,
    wrapped,
)
from pysim.errors import MissingError, PlanError
from pysim.files import written

if TYPE_CHECKING:
    from pysim.cachemodel.simulator.hierarchy import Result
    from pysim.machine.cpu import Machine
    from pysim.problem.text import Layer, Workload
    from pysim.record.cost import Cost
    from pysim.record.schedule import Schedule

KINDS = {"input": "input_stationary", "weight": "weight_stationary"}
SWEPT = ("channels", "k2", "k3")
MAX_POINTS = 12  # values of a sweep
# The simulator's operands of each operand of the cost model, which does not separate packed input from packed filters
PARTS = {"input": ("input",), "filters": ("filter",), "output": ("output",), "packed": ("packed_input", "packed_filter")}
PHASES = ("pack", "compute", "store")


class Case(NamedTuple):
    """One schedule of one layer, with predicted cost and simulated counts, both for `part`, which is the layer or a part of it."""

    layer: "Layer"
    part: "Workload"
    schedule: "Schedule"
    cost: "Cost"
    counted: "Result"


Swept = tuple[Case, dict[str, dict[str, Any]]]  # with the result of `_levels`


@click.command()
@click.argument("problems", metavar="[PROBLEM]...", nargs=-1)
@machine_option
@click.option("--stationary", type=Choice(list(KINDS)), help="Simulate the best schedule of this kind instead of the planned one.")
@click.option("--plan", "name", metavar="NAME", help="Simulate exactly this plan; its name is in plan.name and in the JSON documents.")
@click.option("--cold", is_flag=True, help="Caches start empty; by default they hold what the previous run left.")
@click.option("--sweep", type=Choice(SWEPT), help="Vary this parameter of the schedule, the others as planned.")
@click.option("--picture", type=OutputFile(".svg", ".png"), help="Also draw the sweep into this .svg or .png file.")
@click.option(
    "--trace",
    "trace_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Simulate the accesses in this file (din, text or lackey format).",
)
@click.option("--whole", is_flag=True, help="Simulate the whole of a large problem, not only a part.")
@json_option
def cache(
    problems: tuple[str, ...],
    machine_name: str,
    stationary: str | None,
    name: str | None,
    cold: bool,
    sweep: str | None,
    picture: Path | None,
    trace_file: Path | None,
    whole: bool,
    as_json: bool,
) -> None:
    """Cache misses of a plan per level, predicted by the cost model and counted by an exact simulation of every access.

    No kernel runs, so any machine that has a file will do (pysim machines). Filters are packed before the run. For large batches and
    products only a part is predicted and simulated, under the schedule of the whole problem.

    \b
    Examples
      pysim cache conv:mb1ic64ih56oc64kh3ph1 -m xeon-4208
      pysim cache resnet50 -m zen4 --stationary weight --json
      pysim cache conv:mb1ic64ih56oc64kh3ph1 -m zen4 --sweep k2 --picture misses.svg
      pysim cache -m zen4 --trace accesses.din.gz
    """
    _check_usage(problems, sweep, picture, trace_file, stationary or name or cold or whole)
    if stationary and name:
        raise click.UsageError("--plan NAME contains the stationary operand; give --plan or --stationary")
    from pysim.calibration import host

    on = host.machine(machine_name)
    if trace_file:
        _trace(trace_file, on, as_json)
        return
    layers = layers_of(problems)
    if sweep:
        _sweep(layers, on, stationary, name, cold, sweep, picture, whole, as_json)
        return
    cases = _counted([(layer, _schedule(layer, on, stationary, name, cold)) for layer in layers], on, cold, whole)
    if as_json:
        document(caches=[_document(case, on, cold) for case in cases])
        return
    for number, case in enumerate(cases):
        if number:
            put("")
        _report(case, on, cold)


def _check_usage(problems: tuple[str, ...], sweep: str | None, picture: Path | None, trace_file: Path | None, of_plan: Any) -> None:
    if trace_file and (problems or sweep or of_plan):
        raise click.UsageError(
            "--trace takes its accesses from the file; it cannot be combined with PROBLEM, --plan, --stationary, --cold, --whole or --sweep"
        )
    if not trace_file and not problems:
        raise click.UsageError("give a PROBLEM, or a trace file with --trace")
    if picture and not sweep:
        raise click.UsageError(f"--picture draws a sweep; add --sweep {'|'.join(SWEPT)}")


# From layers to cases


def _schedule(layer: "Layer", on: "Machine", stationary: str | None, name: str | None, cold: bool) -> "Schedule":
    """The schedule to simulate: planned, given by name, or the best one of a stationary kind."""
    from pysim import planner
    from pysim.record.plan import on_cpu
    from pysim.record.schedule import Schedule
    from pysim.registry.cpu import loop_nest

    nest = loop_nest(layer.workload)  # the algorithm whose accesses are traced
    plan = planner.plan(layer.workload, on, state="cold" if cold else "hot", algorithm=None if name else nest, name=name)
    if plan.algorithm != nest:
        raise PlanError(f"{layer.workload.text}: only plans of {nest} are simulated, and --plan names one of {plan.algorithm}")
    if not stationary:
        return on_cpu(plan)[0]
    for item in plan.considered:
        if isinstance(item.schedule, Schedule) and item.schedule.stationary == KINDS[stationary]:
            return item.schedule
    raise PlanError(f"{layer.workload.text}: no {KINDS[stationary]} schedule was considered")


def _counted(wanted: "list[tuple[Layer, Schedule]]", on: "Machine", cold: bool, whole: bool) -> list[Case]:
    cases = []
    with progress() as show:
        for number, (layer, schedule) in enumerate(wanted, 1):
            show(f"simulating {number} of {len(wanted)}: {layer.workload.text}")
            cases.append(_case(layer, schedule, on, cold, whole))
        show("")
    return cases


def _case(layer: "Layer", schedule: "Schedule", on: "Machine", cold: bool, whole: bool) -> Case:
    from pysim.cachemodel.cpu.cost import predict_schedule
    from pysim.cachemodel.cpu.nest import nest_of
    from pysim.cachemodel.simulator import trace
    from pysim.cachemodel.simulator.hierarchy import Hierarchy

    part = layer.workload if whole else trace.part_of(layer.workload, schedule, trace.INTERACTIVE_ACCESSES)
    cost = predict_schedule(nest_of(part), on.contiguous(), schedule, "cold" if cold else "hot")
    counted = trace.simulate(part, schedule, Hierarchy.from_machine(on), warm=not cold)
    return Case(layer, part, schedule, cost, counted)


def _doubts(workload: "Workload", schedule: "Schedule", on: "Machine") -> list[str]:
    from pysim.cachemodel.cpu.nest import nest_of
    from pysim.cachemodel.cpu.sliced import doubts

    return doubts(nest_of(workload), schedule, on)


# One case


def _footprints(case: Case, on: "Machine") -> list[str]:
    """The reuse distances of each operand, from the description of the loops."""
    from pysim.cachemodel.cpu import words
    from pysim.cachemodel.cpu.nest import nest_of

    nest, names = words.sliced(nest_of(case.part), on, case.schedule)
    return [*words.reused(nest, on, names)]


def _levels(case: Case, on: "Machine") -> dict[str, dict[str, Any]]:
    """Per cache: predicted and simulated misses and write-backs; simulated misses by operand and by phase."""
    levels_json: dict[str, dict[str, Any]] = {}
    for place, level in enumerate(on.levels):
        supplier = case.cost.levels[on.levels[place + 1].name if place + 1 < len(on.levels) else "memory"]
        predicted, misses = supplier["lines"] - supplier["writeback_lines"], case.counted[level.name].misses
        levels_json[level.name] = {
            "analytic_lines": predicted,
            "simulated_misses": misses,
            "difference_percent": 100 * (predicted - misses) / misses if misses else 0.0 if predicted < 0.5 else None,
            "analytic_writebacks": supplier["writeback_lines"],
            "simulated_writebacks": case.counted[level.name].writebacks,
            "operands": {name: _misses(case, level.name, name) for name in PARTS},
            "phases": {name: case.counted.by(level.name, phase=name).misses for name in PHASES},
        }
    return levels_json


def _misses(case: Case, level: str, operand: str) -> int:
    return sum(case.counted.by(level, operand=part).misses for part in PARTS[operand])


def _document(case: Case, on: "Machine", cold: bool) -> dict[str, Any]:
    return {
        "problem": case.layer.workload.text,
        "simulated": case.part.text,
        "label": case.layer.label,
        "count": case.layer.count,
        "machine": on.name,
        "state": "cold" if cold else "hot",
        "kernel": case.schedule.kernel,
        "schedule": case.schedule.stationary,
        "pack": case.schedule.pack,
        "tile": case.schedule.tile,
        "accesses": case.counted.accesses,
        "levels": _levels(case, on),
        "counters": case.counted.to_dict(),
        "doubts": _doubts(case.part, case.schedule, on),
    }


def _report(case: Case, on: "Machine", cold: bool) -> None:
    s = case.schedule
    put((case.layer.workload.text, "bold"))
    tiles = f"channels {s.channels}, K2 {s.k2}, K3 {s.k3}, {'packed' if s.pack == 'tiles' else 'in place'}"
    put(f"{on.name}, {'cold' if cold else 'hot'}: {s.kernel}, {s.stationary.replace('_', ' ')}, {tiles}")
    part = "" if case.part == case.layer.workload else f" of a part: {case.part.text} (--whole simulates all)"
    put(f"{case.counted.accesses:,} accesses{part}")
    levels = _levels(case, on)

    def counted(by: str, what: str) -> Column[str]:
        return Column(what, lambda name: f"{levels[name][by][what]:,}")

    columns: list[Column[str]] = [
        Column("misses", str, left=True),
        Column("predicted", lambda name: f"{levels[name]['analytic_lines']:,.0f}"),
        Column("simulated", lambda name: (f"{levels[name]['simulated_misses']:,}", "bold")),
        Column("differ", lambda name: _percent(levels[name]["difference_percent"])),
        *(counted("operands", part) for part in PARTS),
        *(counted("phases", phase) for phase in PHASES),
    ]
    put_table(columns, levels)
    put("")
    put_lines("\n".join(_footprints(case, on)))
    for doubt in _doubts(case.part, s, on):
        put_lines(wrapped(f"not modelled: {doubt}", ""))


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1f} %"


# A trace file


def _trace(file: Path, on: "Machine", as_json: bool) -> None:
    from pysim.cachemodel.simulator.hierarchy import Hierarchy
    from pysim.frontends import tracefile

    counted = Hierarchy.from_machine(on).run(tracefile.read(file))
    if as_json:
        document(caches=[{"trace": str(file), "machine": on.name, "accesses": counted.accesses, "counters": counted.to_dict()}])
        return
    if not counted.accesses:
        say(f"{file} holds no access")
    put(f"{file} on {on.name}: {plural(counted.accesses, 'access').replace('accesss', 'accesses')}")
    numbers = counted.to_dict()
    fields = ("loads", "stores", "hits", "misses", "evictions", "writebacks")

    def column(field: str) -> Column[str]:
        return Column(field, lambda name: f"{numbers[name][field]:,}")

    put_table([Column("cache", str, left=True), *map(column, fields)], numbers)


# A sweep


def _sweep(
    layers: "list[Layer]",
    on: "Machine",
    stationary: str | None,
    name: str | None,
    cold: bool,
    over: str,
    picture: Path | None,
    whole: bool,
    as_json: bool,
) -> None:
    if len(layers) > 1:
        raise click.UsageError(f"--sweep takes one layer, but {plural(len(layers), 'layer')} are named")
    layer = layers[0]
    planned = _schedule(layer, on, stationary, name, cold)
    cases = _counted([(layer, schedule) for schedule in _variants(layer.workload, planned, over)], on, cold, whole)
    if as_json:
        document(caches=[_document(case, on, cold) for case in cases])
    else:
        _put_sweep(cases, planned, on, over)
    if picture:
        _draw(picture, cases, planned, on, over)
        say(f"wrote {picture}")


def _variants(workload: "Workload", planned: "Schedule", over: str) -> "list[Schedule]":
    """The planned schedule with other values of one parameter: the sizes of 1, 2, 3 ... equal parts, and the planned size."""
    import msgspec

    from pysim.cachemodel.cpu.nest import ceil_div, nest_of

    nest = nest_of(workload)
    windows, filters = ceil_div(nest.windows, planned.windows), ceil_div(nest.group_filters, planned.filters)
    streamed, kept = (filters, windows) if planned.stationary == "input_stationary" else (windows, filters)
    total = {"channels": nest.group_channels, "k2": streamed, "k3": kept}[over]
    values = sorted({ceil_div(total, part) for part in range(1, total + 1)})
    while len(values) > MAX_POINTS:
        values = [*values[:-1:2], values[-1]]
    wanted = sorted({*values, min(total, getattr(planned, over))})
    return [msgspec.structs.replace(planned, **{over: value}) for value in wanted]


def _put_sweep(cases: list[Case], planned: "Schedule", on: "Machine", over: str) -> None:
    part = "" if cases[0].part == cases[0].layer.workload else f", of {cases[0].part.text}"
    put((cases[0].layer.workload.text, "bold"))
    put(f"{on.name}{part}: {planned.kernel}, {planned.stationary.replace('_', ' ')}; misses for each {over}, predicted and simulated")

    rows = [(case, _levels(case, on)) for case in cases]

    def value(row: Swept) -> Cell:
        value = getattr(row[0].schedule, over)
        return f"{value}{'*' if value == getattr(planned, over) else ' '}", "bold"

    def predicted(level: str) -> Column[Swept]:
        return Column(f"{level} predicted", lambda row: f"{row[1][level]['analytic_lines']:,.0f}")

    def simulated(level: str) -> Column[Swept]:
        return Column(f"{level} simulated", lambda row: f"{row[1][level]['simulated_misses']:,}")

    columns = [column for level in on.levels for column in (predicted(level.name), simulated(level.name))]
    put_table([Column(over, value), *columns], rows)
    put("* as planned")


def _draw(file: Path, cases: list[Case], planned: "Schedule", on: "Machine", over: str) -> None:
    """Draws misses per level over the parameter: circles for simulated, crosses for predicted misses."""
    try:
        import matplotlib
    except ImportError:
        raise MissingError(
            f"{file} cannot be drawn: matplotlib is not installed; pip install '.[plots]' in a checkout, or pip install matplotlib"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    values = [getattr(case.schedule, over) for case in cases]
    levels = [_levels(case, on) for case in cases]
    figure, axes = pyplot.subplots(len(on.levels), 1, sharex=True, figsize=(7, 2 + 1.6 * len(on.levels)), constrained_layout=True)
    for axis, level in zip(axes if len(on.levels) > 1 else [axes], on.levels, strict=True):
        axis.axvline(getattr(planned, over), color="0.75", linewidth=5, label="planned")
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
    figure.suptitle(f"{cases[0].layer.workload.text} on {on.name}\n{planned.kernel}, {planned.stationary.replace('_', ' ')}", fontsize=10)
    try:
        with written(file) as partial:
            figure.savefig(partial, dpi=150)
    finally:
        pyplot.close(figure)
