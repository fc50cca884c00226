# SPDX-License-Identifier: Apache-2.0
"""Shared by `run` and `compare`: plans, checks and times one layer after the other, and writes each row when it is done."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from pysim.arguments import MOST_THREADS
from pysim.commands.common import (
    Cell,
    Column,
    Whole,
    document,
    error,
    plural,
    progress,
    put,
    put_header,
    put_row,
    refuse_layout,
    say,
    seconds,
)
from pysim.errors import MachineError, PlanError
from pysim.machine.allowed import allowed

if TYPE_CHECKING:
    from pysim.commands.history import Kept
    from pysim.machine.cpu import Machine
    from pysim.machine.gpu import Gpu
    from pysim.peers import Peer
    from pysim.problem.text import Layer
    from pysim.record.measurement import Comparison, CoreThen
    from pysim.record.plan import Plan

    Planned = tuple[Layer, Plan | PlanError]
    Columns = list[Column[Comparison]]

ERROR_LEGEND = "max error: largest error against float64 over the result's root mean square, operands in [-1, 1)"
CLOCK_TOLERANCE = 0.03  # relative difference between measured and machine-file clock that is reported
MIN_MULTIPLY_SHARE = 0.9  # of the peak multiply-adds per cycle; below it another thread shared the core (alone, readings agree within 0.03)
# Seconds that timing a layer may take before its sample count is cut: its part of those for all layers, but so many times --seconds
BUDGET, BUDGET_OF_SECONDS = 15.0, 5


def refuse_on_gpu(on: "Machine | Gpu", **options: bool) -> None:
    """UsageError for options that do not apply to a GPU."""
    from pysim.machine.gpu import Gpu

    for name in [name for name, is_given in options.items() if is_given and isinstance(on, Gpu)]:
        raise click.UsageError(f"--{name} is for CPUs; {on.name} is a GPU")


def refuse_emulated(machine_name: str, instead: str) -> None:
    """MachineError if the machine is emulated here. For work that needs times; called before the emulator is built, which takes long."""
    from pysim.calibration import host

    on = host.any_machine(machine_name)
    if host.executor_for(on).kind == "emulated":
        raise MachineError(f"{on.name} is emulated here, where times mean nothing; {instead}")


def check_threads_and_layout(layers: "list[Layer]", on: "Machine | Gpu", threads: int, layout: str) -> None:
    """UsageError for threads on a GPU, and for a layout on a CPU or without a convolution."""
    from pysim.machine.gpu import Gpu

    refuse_on_gpu(on, threads=threads > 1)
    refuse_layout(layers, layout)
    if layout != "nchw" and not isinstance(on, Gpu):
        raise click.UsageError(f"--layout is for GPUs; {on.name} is a CPU")


def too_many_threads(threads: int) -> str:
    """What is wrong with more threads than this process may run at once; empty if there are enough."""
    may = allowed()
    if threads <= may.most:
        return ""
    return f"--threads is {threads}, but this process has {plural(may.most, 'CPU')} ({may.reason}): threads would wait for each other"


def threads_option(command: Callable[..., Any]) -> Callable[..., Any]:
    text = "Threads of pysim's kernels; plans are made for them. Other libraries run on one thread."
    return click.option("--threads", type=Whole(1, MOST_THREADS), default=1, show_default=True, help=text)(command)


def algorithm_option(command: Callable[..., Any]) -> Callable[..., Any]:
    text = "Only plans of this algorithm, e.g. sconv for a convolution, gemm for a matrix product."
    return click.option("--algorithm", metavar="A", help=text)(command)


def name_option(command: Callable[..., Any]) -> Callable[..., Any]:
    text = "Exactly this plan; its name is in plan.name and in the JSON documents."
    return click.option("--plan", "name", metavar="NAME", help=text)(command)


def check_plan(options: Mapping[str, Any]) -> None:
    """UsageError for options that contradict each other, before this computer is detected or a model is read."""
    if options.get("name") and options.get("algorithm"):
        raise click.UsageError("--plan NAME contains the algorithm; give --plan or --algorithm")
    if options.get("name"):
        from pysim.record.schedule import from_name

        from_name(options["name"])


def measured(
    planned: "Iterable[Planned]", on: "Machine | Gpu", peers: "Mapping[str, Peer]", kept: "Kept | None" = None, **how: Any
) -> "Iterator[Comparison]":
    """Yields each layer once it is checked, timed and stored; `how` has the fields of `pysim.comparison.compare.How`. `kept` says how often
    a layer is measured, and saves its runs."""
    from pysim.comparison.compare import How, compare
    from pysim.measure.store import TolerantStore
    from pysim.runtime.emulated import executor_for

    setting, listed = How(**how), list(planned)
    if executor_for(on).kind == "local" and (note := too_many_threads(setting.threads)):
        say(note)
    store = TolerantStore(say)  # opened here, so that its sentence comes before any output

    def comparisons() -> "Iterator[Comparison]":
        with store:
            budget = max(BUDGET / max(1, len(listed)), BUDGET_OF_SECONDS * setting.min_seconds)
            repeated = setting._replace(budget_seconds=budget)
            if kept is None:
                yield from compare(listed, on, peers, repeated, store)
                return
            for pair in listed:
                measure = lambda beside, pair=pair: next(compare([pair], on, beside, repeated, store))  # noqa: E731
                yield kept.of_layer(measure, peers, store)

    return comparisons()


def report(
    planned: "list[Planned]", comparisons: "Iterable[Comparison]", columns: "Columns", as_json: bool, **more: Any
) -> "list[Comparison]":
    """Shows every result, row by row as it comes or as one document with the fields `more`, and returns all."""
    done: list[Comparison] = []
    results = iter(comparisons)
    if not as_json:
        put_header(columns)
    with progress() as show:
        for number, (layer, _) in enumerate(planned, start=1):
            show(f"{number} of {len(planned)}: {layer.workload.text}")
            done.append(next(results))
            show("")
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
    """0: all correct; 1: a result is wrong or a layer could not run; 2: no layer could run."""
    if not any(result.plan for result in done):
        return 2
    return 0 if all(result.correct for result in done) else 1


def times() -> "Columns":
    """Columns: measured, predicted, error."""
    return [
        Column("measured", lambda result: _result(result, seconds(result.measured_seconds)), width=8),
        *_predicted(lambda result: result.measured_seconds),
    ]


def static_times() -> "Columns":
    """Columns of an emulated machine: result, static+simulated time, predicted time, error."""
    return [
        *verdict(),
        Column("static+sim", lambda result: seconds(result.static_seconds)),
        *_predicted(lambda result: result.static_seconds),
    ]


def verdict() -> "Columns":
    """Column: whether the result is right."""
    return [Column("result", lambda result: _result(result, "right"))]


def max_error() -> "Columns":
    from pysim.comparison.summary import OURS

    return [Column("max error", lambda result: error(result.errors.get(OURS)))]


def identity() -> "Columns":
    """Columns: number of occurrences, problem."""
    return [Column("x", lambda result: str(result.count), width=2), Column("problem", lambda result: result.problem, left=True)]


def _result(result: "Comparison", right: str) -> Cell:
    """The first cell of a row: `right`, WRONG, or a dash if the plan did not run."""
    return (right, "bold") if result.correct else ("WRONG" if result.plan else "-", "bold red")


def _predicted(against: "Callable[[Comparison], float | None]") -> "Columns":
    """Columns: the predicted time and log(predicted / `against`); above 0 the plan was faster than predicted."""
    from pysim.comparison.summary import LARGE_ERROR

    def off(result: "Comparison") -> Cell:
        time = against(result)
        if not result.predicted_seconds or not time:
            return "-"
        error = math.log(result.predicted_seconds / time)
        return f"{error:+.0%}", "yellow" if abs(error) > LARGE_ERROR else ""

    return [
        Column("predicted", lambda result: seconds(result.predicted_seconds)),
        Column("error", off, width=6),
    ]


def put_prediction(summary: Mapping[str, Any]) -> None:
    """Writes the median and 90th percentile of |log(predicted / measured)|, and the layers with large errors."""
    if errors := summary.get("prediction"):
        _put_errors(errors, "measured", "measured_seconds")


def put_static_prediction(summary: Mapping[str, Any]) -> None:
    """The same against static+simulated times."""
    if errors := summary.get("static_prediction"):
        _put_errors(errors, errors["kind"], "static_seconds")
        put("static+simulated: in-core cycles of the machine file and exactly simulated caches; nothing is measured")


def _put_errors(errors: Mapping[str, Any], against: str, key: str) -> None:
    put(f"prediction error |log(predicted/{against})|: median {errors['median_error']:.1%}, 90th percentile {errors['p90_error']:.1%}")
    for result in errors["large_errors"]:
        pair = f"{seconds(result['predicted_seconds'])} predicted, {seconds(result[key])} {against}"
        put((f"    above 40 %: {pair}, bound by {result['bound_by']}: {result['problem']}", "yellow"))


def put_state(done: "list[Comparison]") -> None:
    """Writes how times were taken: state of the caches, load of the processor."""
    from pysim.measure.cpu_load import LOADED

    states = {
        "hot": "hot caches: untimed calls of the same library precede each sample",
        "cold": "cold caches: operands rotate over buffers of twice the last-level cache",
    }
    timed = [result for result in done if result.measured_seconds]
    for state in dict.fromkeys(result.state for result in timed):
        put(states[state])
    if launches := [value for result in timed for name, value in result.launches.items() if name == "pysim"]:
        put(f"times are on the device; each call also takes {seconds(sorted(launches)[len(launches) // 2])} on the host (median)")
    put_cores([result.core for result in timed if result.core], "layer")
    if loaded := [result.taken for result in timed if result.taken and result.taken > LOADED]:
        share = f"other processes had the CPU for up to {max(loaded):.0%} of the time; intervals are widened by that share"
        put((f"under load on {len(loaded)} of {plural(len(timed), 'layer')}: {share}", "yellow"))


def put_cores(cores: "list[CoreThen]", of: str) -> None:
    """Writes where the core differed from the machine file: its clock, its multiply-adds per cycle. And the time of a line between CPUs."""
    if off := [result for result in cores if abs(result.clock_hz / result.machine_clock_hz - 1) > CLOCK_TOLERANCE]:
        clocks = [result.clock_hz / 1e9 for result in off]
        shown = f"{min(clocks):.2f} to {max(clocks):.2f}" if len(clocks) > 1 else f"{clocks[0]:.2f}"
        message = f"clock {shown} GHz when timed, {off[0].machine_clock_hz / 1e9:.2f} GHz in the machine file"
        put((f"{message}, on {len(off)} of {plural(len(cores), of)}: predictions use the clock when timed", "yellow"))
    if left_out := [result.left_out for result in cores if result.left_out]:
        message = f"on {len(left_out)} of {plural(len(cores), of)} up to {max(left_out):.0%} of the rounds were left out"
        put((f"{message}: another thread, perhaps of another virtual machine, shared a core then", "yellow"))
    if less := [result.multiply_share for result in cores if result.multiply_share < MIN_MULTIPLY_SHARE]:
        message = (
            f"on {len(less)} of {plural(len(cores), of)} the core reached only {min(less):.2f} of its peak multiply-adds per cycle or more"
        )
        put((f"{message}: another thread, perhaps of another virtual machine, shared it, and times are longer", "yellow"))

    if lines := [result.line_seconds * 1e9 for result in cores if result.line_seconds]:
        shown = f"{min(lines):.0f} to {max(lines):.0f}" if len(lines) > 1 else f"{lines[0]:.0f}"
        put(f"a cache line took {shown} ns from one CPU of the team to another")


def put_failures(summary: Mapping[str, Any]) -> None:
    """Writes which measurements do not count, how many results are wrong and which timings have few samples."""
    if lost := summary.get("disturbed"):
        from pysim.comparison.summary import MOST_DISTURBED

        why = f"others had the cores in more than {MOST_DISTURBED:.0%} of the rounds or of the time"
        again = "measure again when this computer is quieter (pysim doctor shows its load)"
        if summary.keys() & {"peers", "total_seconds"}:
            put((f"not in the summary: {', '.join(lost)}: {why}", "yellow"))
        else:
            put((f"no summary: {why}, on {plural(len(lost), 'layer')} of {summary['correct']}; {again}", "yellow"))
    if summary["failed"]:
        put((f"{len(summary['failed'])} of {plural(summary['layers'], 'layer')} failed", "bold red"))
    if few := summary.get("few_samples"):
        say(f"fewer than 30 samples because the time budget ran out: {', '.join(few)}")
