# SPDX-License-Identifier: Apache-2.0
"""`pysim search`: plans of each problem measured under a budget, beside what the model said of them."""

from typing import TYPE_CHECKING, Any

import click

from pysim.commands import timing
from pysim.commands.common import (
    Column,
    Number,
    Whole,
    document,
    every,
    json_option,
    layers_of,
    layout_option,
    machine_option,
    plural,
    problems,
    progress,
    put,
    put_header,
    put_row,
    put_table,
    say,
    seconds,
)
from pysim.errors import MissingError, PysimError

if TYPE_CHECKING:
    from pysim.machine.cpu import Machine
    from pysim.machine.gpu import Gpu
    from pysim.problem.text import Layer
    from pysim.tuning.search import Search, Tried

LEGEND = """undisturbed seconds; regret: time of the model's first choice (of its best 8, its best 16) over the best found, in turns with it
tau: Kendall's, of predicted and measured times of all plans measured
model, random: the best that each found in the same time, over the best of both"""


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


COLUMNS: "list[Column[Search]]" = [
    Column("model's", lambda one: seconds(one.first_seconds), width=8),
    Column("best", lambda one: (seconds(one.best_seconds), "bold"), width=8),
    Column("regret", lambda one: _ratio(one.regret)),
    Column("of 8", lambda one: _ratio(one.regret_8), width=6),
    Column("of 16", lambda one: _ratio(one.regret_16), width=6),
    Column("tau", lambda one: "-" if one.kendall_tau is None else f"{one.kendall_tau:.2f}", width=5),
    Column("model", lambda one: _ratio(one.model_regret), width=6),
    Column("random", lambda one: _ratio(one.random_regret)),
    Column("plans", lambda one: f"{one.plans_measured:,}", width=6),
    Column("of", lambda one: f"{one.plans_legal:,}", width=6),
    Column("x", lambda one: str(one.count), width=2),
    Column("problem", lambda one: one.problem, left=True),
]
BEST: "list[Column[Tried]]" = [
    Column("over best", lambda plan: _ratio(plan.over_best)),
    Column("measured", lambda plan: seconds(plan.measured_seconds)),
    Column("predicted", lambda plan: seconds(plan.predicted_seconds)),
    Column("samples", lambda plan: str(plan.samples)),
    Column("plan", lambda plan: plan.name, left=True),
]


@click.command()
@problems
@machine_option
@click.option("--budget", type=Number(0.1, 1e6), default=60.0, show_default=True, help="Seconds of measuring for each problem.")
@click.option("--top", type=Whole(min=1), metavar="N", help="Also the N best plans that were found.")
@timing.threads_option
@layout_option()
@every
@json_option
@click.pass_context
def search(
    ctx: click.Context,
    problems: tuple[str, ...],
    machine_name: str,
    budget: float,
    top: int | None,
    threads: int,
    layout: Any,
    every: bool,
    as_json: bool,
) -> None:
    """Measure plans of each PROBLEM on this computer (-m cuda: on its GPU), and say how far the model's choice is from the best.

    Half of the exploring follows the model's order, half a random order of all legal plans; the better half is measured again, and again.
    Each plan is checked first, and timed in turns with the model's choice. Problems that weigh most come first. All samples go to the
    measurement store (pysim doctor names the file), and count when the search is asked again: one that was killed goes on, and a larger
    budget adds the difference. pysim plan --pinned then plans with the best found. Exit code 1 if a result is wrong.

    \b
    Examples
      pysim search conv:mb1ic64ih56oc64kh3ph1 --budget 30 --top 5
      pysim search resnet50 --budget 10 --json
    """
    from pysim.calibration import host
    from pysim.measure.store import Store
    from pysim.tuning.search import Settings

    layers, on = layers_of(problems, every), host.runnable_any(machine_name)
    timing.refuse_on_gpu(on, threads=threads > 1)
    say(f"{on.description}; up to {budget:g} s of measuring for each of {plural(len(layers), 'problem')}")
    done: list[Search] = []
    with Store() as store, progress() as tell:
        for layer in _heaviest_first(layers, on, layout):
            done.append(_search(layer, on, Settings(budget, threads, layout), store, tell))
            tell("")
            if not as_json:
                _put(done[-1], top, first=len(done) == 1)
    if as_json:
        document(searches=[_document(one, top) for one in done])
    else:
        put("")
        for line in LEGEND.splitlines():
            put(line)
        timing.put_cores([one.core for one in done if one.core], "problem")
    ctx.exit(_exit_code(done))


def _heaviest_first(layers: "list[Layer]", on: "Machine | Gpu", layout: Any) -> "list[Layer]":
    """By predicted time of all occurrences; what cannot be planned last."""
    from pysim import planner

    def weight(layer: "Layer") -> float:
        try:
            return layer.count * (planner.plan(layer.workload, on, layout=layout).seconds or 0.0)
        except PysimError:
            return 0.0

    return sorted(layers, key=weight, reverse=True)


def _search(layer: "Layer", on: "Machine | Gpu", settings: Any, store: Any, tell: Any) -> "Search":
    """A layer that cannot be searched gives the reason, and the others go on."""
    from pysim.calibration import host
    from pysim.comparison.bench import release
    from pysim.tuning.search import Search, search

    try:
        return search(layer, on, settings, store, host.executor(on), tell)
    except MissingError:
        raise
    except (PysimError, MemoryError) as error:
        return Search(problem=layer.workload.text, label=layer.label, count=layer.count, reason=str(error) or "out of memory")
    finally:
        release()


def _put(one: "Search", top: int | None, first: bool) -> None:
    """A row, what went wrong below it, and the best plans where they are asked for."""
    if first or top:
        put_header(COLUMNS)
    put_row(COLUMNS, one)
    if one.reason:
        put((f"    not searched: {one.reason}", "red"))
    for name in one.wrong:
        put((f"    WRONG: {name}: {one.failed[name]}", "bold red"))
    if others := len(one.failed) - len(one.wrong):
        name, reason = next((name, reason) for name, reason in one.failed.items() if name not in one.wrong)
        say(f"{one.problem}: {plural(others, 'plan')} cannot be run, the first, {name}: {reason}")
    if one.stored_seconds:
        say(f"{one.problem}: {one.stored_seconds:.1f} of {one.spent_seconds:.1f} s of measuring were in the store already")
    if one.set_aside:
        from pysim.tuning.evidence import said

        say(f"{one.problem}: {said(one.set_aside)}")
    if top:
        put_table(BEST, one.found[:top])
        put("")


def _document(one: "Search", top: int | None) -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(one)
    return plain | {"found": plain["found"][: top or 0]}


def _exit_code(done: "list[Search]") -> int:
    """0 all right; 1 a result is wrong or a problem could not be searched; 2 none could be."""
    if any(one.wrong for one in done):
        return 1
    return 2 if all(one.reason for one in done) else int(any(one.reason for one in done))
