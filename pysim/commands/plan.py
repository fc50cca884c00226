# SPDX-License-Identifier: Apache-2.0
"""`pysim plan`: the best plan of each problem on a machine, its predicted cost, and why it won."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from pysim.arguments import MOST_THREADS
from pysim.commands.common import (
    Cell,
    Choice,
    Column,
    Whole,
    accuracy_options,
    document,
    error,
    every,
    json_option,
    layers_of,
    layout_option,
    machines_options,
    memory_limit_option,
    plan_options,
    plural,
    problems,
    put,
    put_lines,
    put_table,
    refuse_layout,
    say,
    seconds,
    size,
)
from pysim.commands.timing import refuse_on_gpu
from pysim.record.plan import BLOCKED
from pysim.record.schedule import STATIONARY

if TYPE_CHECKING:
    from pysim.machine.change import Value
    from pysim.machine.cpu import Machine
    from pysim.machine.gpu import Gpu
    from pysim.problem.text import Layer
    from pysim.record.plan import Plan
    from pysim.tuning.evidence import Pinned

    Ranked = list[tuple[Layer, list[Plan]]]
    Columns = list[Column[tuple[int, Plan]]]  # a row: (rank or number of occurrences, plan)

SHORT = {"input_stationary": "IS", "weight_stationary": "WS"}
SHORT |= {"data_parallel": "DP", "split_k": "SK", "stream_k": "ST"}
LEGEND = "IS input stationary, WS weight stationary; tile: channels/K2/K3"
LEGEND_GPU = "DP data parallel, SK split-K, ST stream-K; tile: K splits (stream-K: blocks)/rasterisation along m or n/tiles per group"


@click.command()
@problems
@machines_options
@click.option("--top", type=Whole(min=1), metavar="N", help="Show the N best plans of each problem, best first.")
@click.option(
    "--explain",
    is_flag=True,
    help="Show the loop nest, which tile fits which cache, the costs of both schedules, and why other kernels lost.",
)
@click.option("--model", type=Choice(["full", "csa"]), default="full", show_default=True, help="csa: the integers of the SConv paper.")
@click.option(
    "--micro-kernel",
    metavar="4x16",
    help="Only kernels of this shape, windows x filters (GPU: a block's tile, 128x256), or this name; with csa, the shape to analyse.",
)
@click.option("--pinned", is_flag=True, help="Use the best plan that pysim search found on this computer, and show its measurements.")
@click.option("--threads", type=Whole(1, MOST_THREADS), default=1, show_default=True, help="CPU threads to plan for.")
@plan_options(
    layout_option(*BLOCKED, text="Layout of a convolution's input and output: nhwc on GPUs, channel blocks (nchw16c) on CPUs."),
    memory_limit_option,
    accuracy_options,
)
@every
@json_option
def plan(
    problems: tuple[str, ...],
    machine_names: tuple[str, ...],
    changes: dict[str, Any],
    top: int | None,
    explain: bool,
    model: str,
    micro_kernel: str | None,
    pinned: bool,
    threads: int,
    options: dict[str, Any],
    every: bool,
    as_json: bool,
) -> None:
    """Choose algorithm, tiling and schedule for each PROBLEM on a machine, and predict its time.

    For a machine that has a file (pysim machines), no hardware and no compiler is needed.

    \b
    Examples
      pysim plan resnet50 -m zen4
      pysim plan conv:mb1ic64ih56oc64kh3ph1 -m power10-e1050 --model csa --explain
      pysim plan gemm:10240x4096x4096:f16 -m h200 --explain
      pysim plan resnet50 -m h200 --layout nhwc --memory-limit 64MiB
      pysim plan resnet50 -m h200 --accuracy strict
      pysim plan resnet50 -m zen4 -m zen5
      pysim plan resnet50 -m zen4 --set levels.L2.size_bytes=2MiB
    """
    _check_usage(top, explain, model, pinned, threads, as_json, len(machine_names) > 1 or bool(changes))
    layers = layers_of(problems, every)
    refuse_layout(layers, options["layout"])
    options["micro_kernel"] = micro_kernel
    evidence: list[Pinned | None] = []
    if pinned:
        from pysim.calibration import host

        by_machine, evidence = _pinned(layers, host.runnable_any(machine_names[0]), options)
        tables = [by_machine]
    else:
        machines = _machines(machine_names, changes, alone=explain or bool(top) or model == "csa")
        tables = [_plans(layers, on, top, model, options | ({"threads": threads} if _checked(on, threads) > 1 else {})) for on in machines]
    if as_json:
        named = [_document(layer, item) for one in tables for layer, ranked in one for item in ranked]
        document(plans=[one | {"pinned": about} for one, about in zip(named, evidence, strict=True)] if pinned else named)
    elif explain:
        from pysim.explain.text import explain as explained

        put_lines("\n\n\n".join(explained(item) for one in tables for _, ranked in one for item in ranked))
    elif len(tables) > 1 and not top and model != "csa":
        _put_side_by_side(tables)
    else:
        for at, planned in enumerate(tables):
            if at:
                put("")
            (_put_ranked if top else _put_csa if model == "csa" else _put_plans)(planned)
    if not as_json:
        _put_evidence(tables[0], evidence)


def _document(layer: "Layer", item: "Plan") -> dict[str, Any]:
    from pysim.explain.energy import energy_of

    return {**item.to_dict(), "label": layer.label, "count": layer.count, "energy_joules": energy_of(item)}


def _machines(names: Sequence[str], changes: "dict[str, Value]", alone: bool) -> "list[Machine | Gpu]":
    """The machines to plan for: each by itself and with the changes; `alone`: with the changes only."""
    from pysim.calibration import host
    from pysim.machine.change import changed

    machines = [host.any_machine(name) for name in names]
    return [one for on in machines for one in ([] if changes and alone else [on]) + ([changed(on, changes)] if changes else [])]


def _check_usage(top: int | None, explain: bool, model: str, pinned: bool, threads: int, as_json: bool, several: bool) -> None:
    if pinned and several:
        raise click.UsageError("--pinned shows plans measured on this computer; it takes one machine as it is")
    if top and model == "csa":
        raise click.UsageError("--top ranks plans by predicted time; --model csa makes one plan and shows the costs of both schedules")
    if explain and as_json:
        raise click.UsageError("--explain writes text, and --json contains the same data; give one of the two")
    if threads > 1 and (top or pinned or model == "csa"):
        raise click.UsageError("--threads plans with the full model; it cannot be combined with --top, --pinned or --model csa")
    if pinned and (top or model == "csa"):
        raise click.UsageError("--pinned shows one measured plan; --top and --model csa rank plans by the model")


def _checked(on: "Machine | Gpu", threads: int) -> int:
    """The number of threads. UsageError on a GPU; a note on stderr if the machine has fewer cores."""
    from pysim.machine.gpu import Gpu

    if threads == 1:
        return threads
    refuse_on_gpu(on, threads=True)
    if not isinstance(on, Gpu) and threads > on.cores:
        say(f"--threads is {threads}, but {on.name} has {plural(on.cores, 'core')}: in the prediction, threads wait for a core")
    return threads


def _plans(layers: "list[Layer]", on: "Machine | Gpu", top: int | None, model: Any, options: dict[str, Any]) -> "Ranked":
    from pysim import planner

    if top:
        return [(layer, planner.plans(layer.workload, on, top, **options)) for layer in layers]
    return [(layer, [planner.plan(layer.workload, on, model, **options)]) for layer in layers]


def _pinned(layers: "list[Layer]", on: "Machine | Gpu", options: dict[str, Any]) -> "tuple[Ranked, list[Pinned | None]]":
    """The best measured plan of each layer with its measurements; where there is none, the model's plan, with the reason on stderr."""
    from pysim.measure.store import Store
    from pysim.planner import request_of
    from pysim.tuning.evidence import pinned

    with Store() as store:
        planned = [pinned(store, request_of(layer.workload, on, **options)) for layer in layers]
    by_reason: dict[str, list[str]] = {}
    for layer, (_, _, why) in zip(layers, planned, strict=True):
        by_reason.setdefault(why, []).append(layer.workload.text)
    for why, (first, *others) in by_reason.items():
        if why:
            say(f"{first}{f' and {len(others)} more' * bool(others)}: {why}")
    return [(layer, [item]) for layer, (item, _, _) in zip(layers, planned, strict=True)], [about for _, about, _ in planned]


def _put_evidence(planned: "Ranked", evidence: "list[Pinned | None]") -> None:
    """When and where each pinned plan was measured, and its time."""
    for (layer, _), about in zip(planned, evidence, strict=False):
        if about:
            times = f"{seconds(about.measured_seconds)}, {about.over_incumbent:.3f} of the time of the model's choice"
            of = f"the best of {plural(about.plans_measured, 'plan')}, {plural(about.samples, 'sample')}, last {about.time}"
            put(f"measured {times}, {of}: {layer.workload.text}")
    for here in dict.fromkeys(f"pysim {about.pysim}, kernels {about.kernels}, {about.computer}" for about in evidence if about):
        put(f"on {here}")


def _seconds(item: "Plan") -> float:
    """Predicted seconds; NaN for the csa model."""
    return float(getattr(item.cost, "seconds", math.nan))


def _rate(item: "Plan") -> str:
    return f"{item.workload.flops / _seconds(item) / 1e9:.1f}"


def _tile(item: "Plan") -> str:
    s = item.tile
    if "group" in s:
        return f"{s['splits']}/{'mn'[s['along_n']]}/{s['group']}"
    return f"{s['channels']}/{s['k2']}/{s['k3']}"


# Columns of the full model
COLUMNS: "Columns" = [
    Column("time", lambda row: (seconds(_seconds(row[1])), "bold")),
    Column("max error", lambda row: error(row[1].error)),
    Column("GFLOP/s", lambda row: _rate(row[1])),
    Column("bound", lambda row: getattr(row[1].cost, "bound_by", ""), left=True),
    Column("kernel", lambda row: row[1].kernel, left=True),
    Column("", lambda row: SHORT[row[1].schedule.kind]),
    Column("tile", lambda row: _tile(row[1]), left=True),
]
WORKSPACE: "Column[tuple[int, Plan]]" = Column("workspace", lambda row: size(row[1].workspace_bytes))


def _put_plans(planned: "Ranked") -> None:
    """One row per layer, then the predicted time of all layers."""
    columns: Columns = [
        *COLUMNS,
        *[WORKSPACE] * _on_gpu(planned),
        Column("x", lambda row: str(row[0])),
        Column("problem", lambda row: row[1].problem, left=True),
    ]
    put_table(columns, [(layer.count, item) for layer, (item,) in planned])
    _put_notes(planned)
    if len(planned) > 1:
        total = sum(layer.count * _seconds(item) for layer, (item,) in planned)
        layers = sum(layer.count for layer, _ in planned)
        put(f"predicted for {plural(layers, 'layer')}: {seconds(total)}{_energy((layer.count, item) for layer, (item,) in planned)}")


def _energy(plans: "Iterable[tuple[int, Plan]]") -> str:
    """The energy of all layers, ", 1.2 J"; empty where one is not known."""
    from pysim.explain.energy import joules_of, joules_text

    found = [(count, joules_of(item)) for count, item in plans]
    return "" if None in (one for _, one in found) else f", {joules_text(sum(count * (one or 0.0) for count, one in found))}"


def _put_side_by_side(tables: "list[Ranked]") -> None:
    """One row per layer: for each machine the predicted time, its ratio to the first machine's, and the chosen algorithm."""
    rows = [(each[0][0].count, [plan for _, (plan,) in each]) for each in zip(*tables, strict=True)]

    def columns_of(at: int) -> "list[Column[tuple[int, list[Plan]]]]":
        time: Column[tuple[int, list[Plan]]] = Column(f"[{at + 1}]", lambda row: (seconds(_seconds(row[1][at])), "bold"))
        ratio: Column[tuple[int, list[Plan]]] = Column("x of [1]", lambda row: f"{_seconds(row[1][at]) / _seconds(row[1][0]):.2f}")
        return [time, *[ratio] * (at > 0), Column("", lambda row: row[1][at].algorithm, left=True)]

    for at, planned in enumerate(tables):
        put(f"[{at + 1}] {planned[0][1][0].machine}")
    put("")
    columns = [column for at in range(len(tables)) for column in columns_of(at)]
    put_table([*columns, Column("x", lambda row: str(row[0])), Column("problem", lambda row: row[1][0].problem, left=True)], rows)
    totals = [sum(count * _seconds(plans[at]) for count, plans in rows) for at in range(len(tables))]
    put("")
    for at, total in enumerate(totals):
        ratio = f", {total / totals[0]:.3f}x of [1]" if at else ""
        energy = _energy((count, plans[at]) for count, plans in rows)
        put(f"[{at + 1}] predicted for {plural(sum(count for count, _ in rows), 'layer')}: {seconds(total)}{ratio}{energy}")


def _put_ranked(planned: "Ranked") -> None:
    """The best plans of each problem, with each plan's time over the best time."""
    for layer, ranked in planned:
        if layer is not planned[0][0]:
            put("")
        put((layer.workload.text, "bold"))
        columns: Columns = [
            Column("#", lambda row: str(row[0])),
            _over(_seconds(ranked[0])),
            *COLUMNS,
            WORKSPACE if _on_gpu(planned) else Column("pack", lambda row: getattr(row[1].schedule, "pack", ""), left=True),
        ]
        put_table(columns, enumerate(ranked, start=1))
    _put_notes(planned)


def _over(best: float) -> "Column[tuple[int, Plan]]":
    return Column("over best", lambda row: f"{_seconds(row[1]) / best:.3f}")


def _on_gpu(planned: "Ranked") -> bool:
    return "group" in planned[0][1][0].tile


def _put_csa(planned: "Ranked") -> None:
    """The paper's integers: the cost of both schedules in latency cycles."""
    columns: Columns = [
        *map(_csa_cost, STATIONARY),
        Column("", lambda row: SHORT[row[1].schedule.kind]),
        Column("micro", lambda row: f"{row[1].tile['windows']}x{row[1].tile['filters']}", left=True),
        Column("tile", lambda row: _tile(row[1]), left=True),
        Column("x", lambda row: str(row[0])),
        Column("problem", lambda row: row[1].problem, left=True),
    ]
    put_table(columns, [(layer.count, item) for layer, (item,) in planned])
    _put_notes(planned)


def _csa_cost(kind: str) -> "Column[tuple[int, Plan]]":
    """The cost of the schedule of this kind, bold if it is chosen."""

    def cell(row: "tuple[int, Plan]") -> Cell:
        costs = {one.schedule.kind: getattr(one.cost, "cost", 0) for one in row[1].considered}
        return f"{costs[kind]:,}", "bold" if kind == row[1].schedule.kind else ""

    return Column(f"{SHORT[kind]} cost", cell)


def _put_notes(planned: "Ranked") -> None:
    """The legend, whether plans can be run at all, and the assumed numbers."""
    from pysim.machine.gpu import Gpu

    put("")
    put(LEGEND_GPU if _on_gpu(planned) else LEGEND)
    if planned[0][1][0].seconds is not None:
        put("max error: largest error over the result's root mean square, stated by the algorithm")
    on = planned[0][1][0].on
    if isinstance(on, Gpu) and on.planning_only:
        put(f"planning only: {on.planning_only}")
    assumed = dict.fromkeys(path for _, ranked in planned for item in ranked for path in item.assumed)
    if assumed:
        put(f"assumed numbers of {planned[0][1][0].machine}: {', '.join(assumed)}")
