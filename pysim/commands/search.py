# SPDX-License-Identifier: Apache-2.0
"""`pysim search`: measures plans of each problem within a time budget, beside their predicted times."""

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

LEGEND = """regret: time of the model's choice (of the best of its first 8, first 16) over the best time found, measured interleaved
tau: Kendall's rank correlation of predicted and measured times, over all measured plans
model, random: best time found in the model's order and in random order, given equal time, over the best of both
plans, of: plans measured, legal plans; times are those of an undisturbed machine"""


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


COLUMNS: "list[Column[Search]]" = [
    Column("model's", lambda result: seconds(result.first_seconds), width=8),
    Column("best", lambda result: (seconds(result.best_seconds), "bold"), width=8),
    Column("regret", lambda result: _ratio(result.regret)),
    Column("of 8", lambda result: _ratio(result.regret_8), width=6),
    Column("of 16", lambda result: _ratio(result.regret_16), width=6),
    Column("tau", lambda result: "-" if result.kendall_tau is None else f"{result.kendall_tau:.2f}", width=5),
    Column("model", lambda result: _ratio(result.model_regret), width=6),
    Column("random", lambda result: _ratio(result.random_regret)),
    Column("plans", lambda result: f"{result.plans_measured:,}", width=6),
    Column("of", lambda result: f"{result.plans_legal:,}", width=6),
    Column("x", lambda result: str(result.count), width=2),
    Column("problem", lambda result: result.problem, left=True),
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
@click.option("--budget", type=Number(0.1, 1e6), default=60.0, show_default=True, help="Seconds of measuring per problem.")
@click.option("--top", type=Whole(min=1), metavar="N", help="Show the N best plans found, too.")
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
    """Measure plans of each PROBLEM on this computer (-m cuda: on its GPU), and compare the model's choice with the best.

    Half of the exploration follows the model's order, half a random order of all legal plans; the better half of the plans is measured
    again, repeatedly. Each plan is checked, then timed interleaved with the model's choice. Problems with the longest total time come
    first. All samples go to the measurement store (pysim doctor names the file). A search that is repeated reuses them: a killed one
    continues, and a larger budget measures only the difference. pysim plan --pinned then uses the best plan found.
    Exit code 1 if a result is wrong.

    \b
    Examples
      pysim search conv:mb1ic64ih56oc64kh3ph1 --budget 30 --top 5
      pysim search resnet50 --budget 10 --json
    """
    from pysim.calibration import host
    from pysim.measure.store import TolerantStore
    from pysim.tuning.search import Settings

    if reason := timing.too_many_threads(threads):
        raise click.UsageError(reason)
    layers = layers_of(problems, every)
    timing.refuse_emulated(machine_name, "search on -m host or -m cuda")
    on = host.runnable_any(machine_name)
    timing.check_threads_and_layout(layers, on, threads, layout)
    say(f"{on.description}; up to {budget:g} s of measuring for each of {plural(len(layers), 'problem')}")
    results: list[Search] = []
    with TolerantStore(say) as store, progress() as show:
        for layer in _heaviest_first(layers, on, layout):
            results.append(_search(layer, on, Settings(budget, threads, layout), store, show))
            show("")
            if not as_json:
                _put(results[-1], top, first=len(results) == 1)
    if as_json:
        document(searches=[_document(result, top) for result in results])
    else:
        put("")
        for line in LEGEND.splitlines():
            put(line)
        timing.put_cores([result.core for result in results if result.core], "problem")
    ctx.exit(_exit_code(results))


def _heaviest_first(layers: "list[Layer]", on: "Machine | Gpu", layout: Any) -> "list[Layer]":
    """Sorted by the predicted time of all occurrences; layers without a plan come last."""
    from pysim import planner

    def weight(layer: "Layer") -> float:
        try:
            return layer.count * (planner.plan(layer.workload, on, layout=layout).seconds or 0.0)
        except PysimError:
            return 0.0

    return sorted(layers, key=weight, reverse=True)


def _search(layer: "Layer", on: "Machine | Gpu", settings: Any, store: Any, show: Any) -> "Search":
    """The search of one layer. If it cannot be searched, the result has the reason, and the other layers continue."""
    from pysim.comparison.bench import release
    from pysim.tuning.search import Search, search

    try:
        return search(layer, on, settings, store, show)
    except MissingError:
        raise
    except (PysimError, MemoryError) as error:
        return Search(problem=layer.workload.text, label=layer.label, count=layer.count, reason=str(error) or "out of memory")
    finally:
        release()


def _put(result: "Search", top: int | None, first: bool) -> None:
    """Writes a row, what went wrong below it, and the best plans if requested."""
    if first or top:
        put_header(COLUMNS)
    put_row(COLUMNS, result)
    if result.reason:
        put((f"    not searched: {result.reason}", "red"))
    for name in result.wrong:
        put((f"    WRONG: {name}: {result.failed[name]}", "bold red"))
    if failures := len(result.failed) - len(result.wrong):
        name, reason = next((name, reason) for name, reason in result.failed.items() if name not in result.wrong)
        say(f"{result.problem}: {plural(failures, 'plan')} cannot run; the first, {name}: {reason}")
    if result.stored_seconds:
        say(f"{result.problem}: {result.stored_seconds:.1f} of {result.spent_seconds:.1f} s of measurements were already in the store")
    if result.set_aside:
        from pysim.tuning.evidence import said

        say(f"{result.problem}: {said(result.set_aside)}")
    if top:
        put_table(BEST, result.found[:top])
        put("")


def _document(result: "Search", top: int | None) -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(result)
    return plain | {"found": plain["found"][: top or 0]}


def _exit_code(results: "list[Search]") -> int:
    """0: all correct; 1: a result is wrong or a problem could not be searched; 2: no problem could be searched."""
    if any(result.wrong for result in results):
        return 1
    return 2 if all(result.reason for result in results) else int(any(result.reason for result in results))
