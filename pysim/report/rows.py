# SPDX-License-Identifier: Apache-2.0
"""The rows of a report: one layer on one machine, planned here or read from a document of another command.

A source is a problem, which is planned, or a file: a document (`--json` of plan, run, compare), or the results of a sweep (.jsonl). A plan
that a file names is planned again by its name, so that it can be explained; where its machine is not known here, the row has what the file
says.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from pysim import planner
from pysim.calibration import host
from pysim.errors import PlanError, ProblemError, PysimError
from pysim.explain.advice import Weighted, peak_share
from pysim.explain.energy import joules_of
from pysim.explain.roof import read_bytes
from pysim.explain.text import explain
from pysim.file_io import read_text
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SIZES
from pysim.problem.text import Layer, Workload, distinct, parse, resolve
from pysim.record.cost import Cost
from pysim.record.plan import Plan
from pysim.sweep import results
from pysim.sweep.spec import Task

_MOST_BYTES = 256 << 20
SUFFIXES = (".json", ".jsonl")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One layer on one machine. Seconds are of one call; `count`: occurrences; `peak_share`: predicted, of the unit's peak; `intensity`:
    FLOP per byte of the operands and the result; `terms`: seconds of each part of the predicted time; `traffic`: bytes of each operand by
    the level that supplies them; `taken`: the share of the measurement in which other processes had a CPU; `repeat`: the command that makes
    the row again."""

    problem: str
    machine: str
    count: int = 1
    label: str = ""
    algorithm: str = ""
    kernel: str = ""
    bound_by: str = ""
    layout: str = "nchw"
    threads: int = 1
    plan: str = ""
    predicted_seconds: float | None = None
    measured_seconds: float | None = None
    taken: float = 0.0
    flops: float = 0.0
    intensity: float = 0.0
    peak_share: float = 0.0
    energy_joules: float | None = None  # predicted
    max_error: float | None = None
    workspace_bytes: int = 0
    terms: dict[str, float] = {}
    traffic: dict[str, dict[str, float]] = {}
    peers: dict[str, float] = {}
    explanation: str = ""
    rejected: int = 0
    reason: str = ""  # why there is no plan or no right result
    repeat: str = ""


class Found(msgspec.Struct, kw_only=True):
    """The rows of all sources, their plans as far as they were planned, and whole networks that were measured."""

    rows: list[Row]
    plans: dict[str, list[Weighted]]
    networks: list[dict[str, Any]]


def rows_of(
    sources: Sequence[str],
    machines: Sequence[str],
    read_model: Callable[..., list[Layer]],
    options: Mapping[str, Any],
    tell: Callable[[str], object],
) -> Found:
    """Raises what `resolve` and the planner raise for sources that cannot be read, and ProblemError for files of another kind."""
    found = Found(rows=[], plans={}, networks=[])
    words = [word for word in sources if Path(word).suffix not in SUFFIXES]
    if words:
        layers = distinct(resolve(words, read_model))
        for name in machines:
            _planned(layers, host.any_machine(name), name, options, found, tell)
    for word in sources:
        if word not in words:
            _read(Path(word), found, tell)
    if not found.rows and not found.networks:
        raise ProblemError(f"{', '.join(sources)}: there is nothing to report")
    return found


def _planned(
    layers: Iterable[Layer], on: Machine | Gpu, name: str, options: Mapping[str, Any], found: Found, tell: Callable[[str], object]
) -> None:
    asked = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in options.items() if value not in (None, "nchw", "standard", 1))
    for layer in layers:
        tell(f"{layer.workload.text} on {on.name}")
        repeat = " ".join(filter(None, ("pysim plan", layer.workload.text, "-m", name, asked, "--explain")))
        try:
            plan = planner.plan(layer.workload, on, **options)
        except PlanError as error:
            found.rows.append(
                Row(problem=layer.workload.text, machine=on.name, count=layer.count, label=layer.label, reason=str(error), repeat=repeat)
            )
            continue
        found.plans.setdefault(on.name, []).append((layer.count, plan))
        found.rows.append(row_of(plan, layer.count, layer.label, repeat))


def row_of(plan: Plan, count: int = 1, label: str = "", repeat: str = "", **measured: Any) -> Row:
    """A plan's row, with fields of a measurement."""
    assert isinstance(plan.cost, Cost)
    cycle = plan.cost.seconds / plan.cost.cycles
    return Row(
        problem=plan.problem, machine=plan.machine, count=count, label=label, algorithm=plan.algorithm, kernel=plan.kernel,
        bound_by=plan.cost.bound_by, layout=plan.layout, threads=plan.threads, plan=plan.name, flops=plan.workload.flops,
        intensity=plan.workload.flops / (read_bytes(plan.workload) + _written_bytes(plan.workload)), peak_share=peak_share(plan),
        energy_joules=joules_of(plan),
        workspace_bytes=plan.workspace_bytes, terms={name: cycles * cycle for name, cycles in plan.cost.counted.items() if cycles},
        traffic={level: _by_operand(amounts) for level, amounts in plan.cost.levels.items()}, rejected=len(plan.rejected),
        explanation=explain(plan), repeat=repeat, **{"predicted_seconds": plan.cost.seconds, "max_error": plan.error, **measured},
    )  # fmt: skip


def _by_operand(amounts: Mapping[str, float]) -> dict[str, float]:
    found = {name.removesuffix("_bytes"): size for name, size in amounts.items() if name.endswith("_bytes") and size}
    return found or ({"all": amounts["bytes"]} if amounts.get("bytes") else {})


def _written_bytes(w: Workload) -> int:
    return SIZES[w.dtype] * (w.output_elements if isinstance(w, Conv) else w.m * w.n)


# Files


def _read(path: Path, found: Found, tell: Callable[[str], object]) -> None:
    if path.suffix == ".jsonl":
        found.rows += (_of_sweep(one.task, one.result) for one in results.read(path) if path.exists())
        return
    try:
        document = msgspec.json.decode(read_text(path, _MOST_BYTES))
    except msgspec.DecodeError as error:
        raise ProblemError(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != 1 or not document.keys() & {"plans", "comparisons", "models"}:
        raise ProblemError(f"{path} is no document of pysim plan, run or compare (--json)")
    for one in document.get("plans", ()):
        tell(f"{one['problem']} on {one['machine']}")
        found.rows.append(_of_document(one, one, {}))
    for one in document.get("comparisons", ()):
        tell(f"{one['problem']} on {one['machine']}")
        found.rows.append(_of_document(one, one["plan"], dict(_measured(one))))
    found.networks += document.get("models", ())


def _measured(one: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "measured_seconds", one.get("measured_seconds")
    yield "taken", one.get("taken") or 0.0
    yield "peers", one.get("peers", {})
    if one.get("predicted_seconds"):  # at the clock of the measurement
        yield "predicted_seconds", one["predicted_seconds"]
    if "pysim" in one.get("errors", {}):
        yield "max_error", one["errors"]["pysim"]


def _of_document(one: Mapping[str, Any], plan: Mapping[str, Any], measured: dict[str, Any]) -> Row:
    """The row of a plan or comparison of a document, planned again where its machine is known here."""
    same: dict[str, Any] = {"problem": one["problem"], "count": one.get("count", 1), "label": one.get("label", "")}
    if not plan:
        return Row(machine=one["machine"], reason=one.get("reason", ""), **same)
    repeat = f"pysim plan {one['problem']} -m {one['machine']} --explain"
    try:
        on = host.any_machine(one["machine"])
        options: Any = {name: plan[name] for name in ("state", "layout", "threads")}
        again = planner.plan(one["problem"], on, accuracy=plan["accuracy"], **options)  # with what it was chosen from
        if again.name != plan["name"]:
            again = planner.plan(one["problem"], on, name=plan["name"], **options)
        return row_of(again, same["count"], same["label"], repeat, **measured)
    except PysimError as error:
        cost = {"predicted_seconds": plan["cost"].get("seconds"), "bound_by": plan["cost"].get("bound_by", "")} | measured
        known = {name: plan[name] for name in ("algorithm", "kernel", "layout", "threads", "workspace_bytes")}
        why = f"not explained here: {error}"
        return Row(machine=one["machine"], plan=plan["name"], flops=parse(one["problem"]).flops, explanation=why, **same, **known, **cost)


def _of_sweep(task: Task, result: Mapping[str, Any]) -> Row:
    same: dict[str, Any] = {
        "problem": task.problem,
        "machine": task.case,
        "count": task.count,
        "layout": task.layout,
        "threads": task.threads,
    }
    if "error" in result:
        return Row(reason=result["error"], **same)
    seconds = result["seconds"]
    known = {
        name: result[name]
        for name in ("algorithm", "kernel", "plan", "bound_by", "peak_share", "workspace_bytes", "max_error")
        if name in result
    }
    terms = {name: share * seconds for name, share in result.get("terms", {}).items()}
    measured = result.get("measured_seconds")
    flops = parse(task.problem).flops
    return Row(predicted_seconds=seconds, measured_seconds=measured, terms=terms, flops=flops, **same, **known)
