# SPDX-License-Identifier: Apache-2.0
"""What `run` and `compare` share: layers are planned, checked and timed one after the other, and rows appear as they are done."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from pysim.arguments import MOST_THREADS
from pysim.commands.common import Cell, Column, Whole, document, error, plural, progress, put, put_header, put_row, say, seconds
from pysim.errors import PlanError

if TYPE_CHECKING:
    from pysim.machine.cpu import Machine
    from pysim.machine.gpu import Gpu
    from pysim.peers import Peer
    from pysim.problem.text import Layer
    from pysim.record.measurement import Comparison, CoreThen
    from pysim.record.plan import Plan
    from pysim.runtime.cpu import Executor

    Planned = tuple[Layer, Plan | PlanError]
    Columns = list[Column[Comparison]]

SAYS_ERROR = "max error: against float64, over the result's root mean square, operands in [-1, 1)"
OTHER_CLOCK = 0.03  # by which a clock when timed differs from the machine file's where it is told
SHARED = 0.9  # of the multiply-adds a cycle, below which a core was shared: readings of one alone agree within 0.03
LEAST_BUDGET = 30.0  # seconds of timing a layer may take before its sample count is cut


def refuse_on_gpu(on: "Machine | Gpu", **asked: bool) -> None:
    """A usage error for options that a GPU does not have."""
    from pysim.machine.gpu import Gpu

    for name in [name for name, is_asked in asked.items() if is_asked and isinstance(on, Gpu)]:
        raise click.UsageError(f"--{name} is for CPUs; {on.name} is a GPU")


def threads_option(command: Callable[..., Any]) -> Callable[..., Any]:
    text = "Threads of pysim's kernels, for which plans are chosen and predicted; peers run on one."
    return click.option("--threads", type=Whole(1, MOST_THREADS), default=1, show_default=True, help=text)(command)


def algorithm_option(command: Callable[..., Any]) -> Callable[..., Any]:
    text = "Only a plan of this algorithm (sconv for a convolution, gemm for a product)."
    return click.option("--algorithm", metavar="A", help=text)(command)


def name_option(command: Callable[..., Any]) -> Callable[..., Any]:
    text = "This very plan, by the name that plan.name and the JSON documents have."
    return click.option("--plan", "name", metavar="NAME", help=text)(command)


def plan_layers(layers: "Iterable[Layer]", on: "Machine | Gpu", **asked: Any) -> "list[Planned]":
    """Each layer with its plan, or with the reason why it has none; where none of them has a plan, the first reason is raised. What is
    `asked` of a plan is as in `pysim.planner.plan`."""
    from pysim import planner

    if asked.get("name") and asked.get("algorithm"):
        raise click.UsageError("--plan NAME begins with the plan's algorithm; give it or --algorithm")
    found: list[Planned] = []
    for layer in layers:
        try:
            found.append((layer, planner.plan(layer.workload, on, **asked)))
        except PlanError as error:
            found.append((layer, error))
    errors = [plan for _, plan in found if isinstance(plan, PlanError)]
    if len(errors) == len(found):
        raise errors[0]
    return found


def measured(
    planned: "Iterable[Planned]", on: "Machine | Gpu", peers: "Mapping[str, Peer]", executor: "Executor", **how: Any
) -> "Iterator[Comparison]":
    """Each layer as soon as it is checked, timed and stored; `how` as `pysim.comparison.compare.How` has it."""
    from pysim.comparison.compare import How, compare
    from pysim.measure.store import Store

    setting = How(**how)
    store = Store()  # now: one that cannot be opened is said before anything is written

    def comparisons() -> "Iterator[Comparison]":
        with store:
            budget = max(LEAST_BUDGET, 10 * setting.min_seconds)
            yield from compare(planned, on, peers, setting._replace(budget_seconds=budget), store, executor)

    return comparisons()


def report(planned: "list[Planned]", found: "Iterable[Comparison]", columns: "Columns", as_json: bool, **more: Any) -> "list[Comparison]":
    """Everything that was measured, after it was shown: row by row as it comes, or as one document, to which `more` belongs."""
    done: list[Comparison] = []
    results = iter(found)
    if not as_json:
        put_header(columns)
    with progress() as tell:
        for number, (layer, _) in enumerate(planned, start=1):
            tell(f"{number} of {len(planned)}: {layer.workload.text}")
            done.append(next(results))
            tell("")
            if not as_json:
                put_row(columns, done[-1])
                if done[-1].above_roof:
                    put((f"    {done[-1].above_roof}", "yellow"))
                if not done[-1].correct:
                    put(("    " + ("" if done[-1].plan else "not run: ") + done[-1].reason, "red"))
    if as_json:
        from pysim.comparison.summary import summarise

        document(comparisons=done, summary=summarise(done), **more)
    return done


def exit_code(done: "list[Comparison]") -> int:
    """0 all right; 1 a result is wrong or a layer could not be run; 2 no layer could be run at all."""
    if not any(one.plan for one in done):
        return 2
    return 0 if all(one.correct for one in done) else 1


def times() -> "Columns":
    """Measured, predicted and error."""
    return [
        Column("measured", lambda one: _result(one, seconds(one.measured_seconds)), width=8),
        *_predicted(lambda one: one.measured_seconds),
    ]


def static_times() -> "Columns":
    """Whether the emulated result is right, then static+simulated, predicted and the error against that."""
    return [
        *verdict(),
        Column("static+sim", lambda one: seconds(one.static_seconds)),
        *_predicted(lambda one: one.static_seconds),
    ]


def verdict() -> "Columns":
    """Whether the result is right, of what has no time."""
    return [Column("result", lambda one: _result(one, "right"))]


def max_error() -> "Columns":
    from pysim.comparison.summary import OURS

    return [Column("max error", lambda one: error(one.errors.get(OURS)))]


def identity() -> "Columns":
    """Which layer it is, and how often."""
    return [Column("x", lambda one: str(one.count), width=2), Column("problem", lambda one: one.problem, left=True)]


def _result(one: "Comparison", right: str) -> Cell:
    """What stands first in a row: `right`, or that the result is wrong, or that the plan did not run."""
    return (right, "bold") if one.correct else ("WRONG" if one.plan else "-", "bold red")


def _predicted(against: "Callable[[Comparison], float | None]") -> "Columns":
    """The predicted time, and how far that is from `against`: above 0 the plan was faster than predicted."""
    from pysim.comparison.summary import LARGE_ERROR

    def off(one: "Comparison") -> Cell:
        time = against(one)
        if not one.predicted_seconds or not time:
            return "-"
        error = math.log(one.predicted_seconds / time)
        return f"{error:+.0%}", "yellow" if abs(error) > LARGE_ERROR else ""

    return [
        Column("predicted", lambda one: seconds(one.predicted_seconds)),
        Column("error", off, width=6),
    ]


def put_prediction(summary: Mapping[str, Any]) -> None:
    """Median and 90th percentile of |log(predicted / measured)|, and the layers that it fails on."""
    if found := summary.get("prediction"):
        _put_errors(found, "measured", "measured_seconds")


def put_static_prediction(summary: Mapping[str, Any]) -> None:
    """The same against static+simulated times, with what those are."""
    if found := summary.get("static_prediction"):
        _put_errors(found, found["kind"], "static_seconds")
        put("static+simulated: in-core cycles of the machine file and exactly simulated caches; nothing here was measured")


def _put_errors(found: Mapping[str, Any], against: str, key: str) -> None:
    put(f"prediction error |log(predicted/{against})|: median {found['median_error']:.1%}, 90th percentile {found['p90_error']:.1%}")
    for one in found["large_errors"]:
        pair = f"{seconds(one['predicted_seconds'])} predicted, {seconds(one[key])} {against}"
        put((f"    above 40 %: {pair}, bound by {one['bound_by']}: {one['problem']}", "yellow"))


def put_state(done: "list[Comparison]") -> None:
    """How the times were taken: the caches, and who else had the processor."""
    from pysim.measure.load import LOADED

    states = {
        "hot": "hot caches: untimed calls of the same contender precede each sample",
        "cold": "cold caches: operands rotate over twice the last level",
    }
    timed = [one for one in done if one.measured_seconds]
    for state in dict.fromkeys(one.state for one in timed):
        put(states[state])
    if launches := [value for one in timed for name, value in one.launches.items() if name == "pysim"]:
        put(f"times are the device's; a call takes the host {seconds(sorted(launches)[len(launches) // 2])} beside them (median)")
    put_cores([one.core for one in timed if one.core], "layer")
    if loaded := [one.taken for one in timed if one.taken and one.taken > LOADED]:
        share = f"others had the CPU for up to {max(loaded):.0%} of the time, by which intervals are widened"
        put((f"under load on {len(loaded)} of {plural(len(timed), 'layer')}: {share}", "yellow"))


def put_cores(cores: "list[CoreThen]", of: str) -> None:
    """Where the core was not as the machine file has it: its clock, and what it multiplied."""
    if off := [one for one in cores if abs(one.clock_hz / one.machine_clock_hz - 1) > OTHER_CLOCK]:
        clocks = [one.clock_hz / 1e9 for one in off]
        shown = f"{min(clocks):.2f} to {max(clocks):.2f}" if len(clocks) > 1 else f"{clocks[0]:.2f}"
        told = f"clock {shown} GHz when timed, {off[0].machine_clock_hz / 1e9:.2f} in the machine file"
        put((f"{told}, on {len(off)} of {plural(len(cores), of)}: predictions are at the clock when timed", "yellow"))
    if less := [one.multiply_share for one in cores if one.multiply_share < SHARED]:
        told = f"the core made {min(less):.2f} of the multiply-adds that it can in a cycle or more on {len(less)}"
        put((f"{told} of {plural(len(cores), of)}: another thread, maybe another machine's, was on it; times are longer", "yellow"))


def put_failures(summary: Mapping[str, Any]) -> None:
    """How many results are right, which timings are short of samples."""
    if summary["failed"]:
        put((f"{len(summary['failed'])} of {plural(summary['layers'], 'layer')} failed", "bold red"))
    if few := summary.get("few_samples"):
        say(f"fewer than 30 samples, the time budget ran out: {', '.join(few)}")
