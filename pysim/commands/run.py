# SPDX-License-Identifier: Apache-2.0
"""`pysim run`: the plan of each problem, executed: its result checked, then its time measured, except under an emulator."""

from typing import TYPE_CHECKING

import click

from pysim.commands import models, timing
from pysim.commands.common import (
    Cell,
    Column,
    accuracy_options,
    error,
    every,
    json_option,
    layers_of,
    machine_option,
    plural,
    problems,
    put,
    say,
    seconds,
)
from pysim.errors import MachineError

if TYPE_CHECKING:
    from pysim.record.measurement import Comparison


@click.command()
@problems
@machine_option
@timing.algorithm_option
@timing.name_option
@timing.threads_option
@click.option("--profile", is_flag=True, help="Split the time of a call into packing and micro-kernels.")
@accuracy_options
@every
@json_option
@click.pass_context
def run(
    ctx: click.Context,
    problems: tuple[str, ...],
    machine_name: str,
    algorithm: str | None,
    name: str | None,
    threads: int,
    profile: bool,
    accuracy: str,
    error_limit: float | None,
    every: bool,
    as_json: bool,
) -> None:
    """Plan each PROBLEM, check the plan's result against a reference, then time it on this computer (-m cuda: on its GPU).

    A machine whose instructions this CPU lacks runs in an emulator, if there is one: its results are checked, and nothing is timed.
    Exit code 1 if a result is wrong. All samples go to the measurement store (pysim doctor names the file).

    \b
    Examples
      pysim run conv:mb1ic64ih56oc64kh3ph1 --profile
      pysim run resnet50 -m power10-e1050
    """
    from pysim.calibration import host

    layers, on = layers_of(problems, every), host.runnable_any(machine_name)
    timing.refuse_on_gpu(on, threads=threads > 1, profile=profile)
    from pysim.comparison.summary import LARGE_ERROR, OURS

    executor = host.executor(on)
    if executor.kind == "emulated":
        say(f"emulated: {executor.about} says whether results are right, and nothing about time")
        if profile:
            raise MachineError(f"--profile splits the time of a call, and {on.name} is emulated here, where no time means anything")
    flops = {layer.workload.text: layer.workload.flops for layer in layers}
    end = [Column("x", 2), Column("problem", 7, left=True)]
    columns = [
        Column("measured", 8),
        Column("predicted", 9),
        Column("error", 6),
        timing.MAX_ERROR,
        Column("GFLOP/s", 7),
        Column("spread", 6),
    ]
    columns += [Column("packing", 7)] * profile + end

    def row(one: "Comparison") -> list[Cell]:
        share = [_packing(one)] if profile else []
        return [
            *timing.times(one, LARGE_ERROR),
            error(one.errors.get(OURS)),
            _rate(one, flops),
            _spread(one),
            *share,
            str(one.count),
            one.problem,
        ]

    def emulated_row(one: "Comparison") -> list[Cell]:
        return [timing.result(one, "right"), error(one.errors.get(OURS)), str(one.count), one.problem]

    asked = {"algorithm": algorithm, "name": name, "accuracy": accuracy, "error_limit": error_limit}
    planned = timing.plan_layers(layers, on, **asked, threads=threads)
    found = timing.measured(planned, on, {}, executor, threads=threads, profile=profile)
    networks = models.measured(problems, on, threads, peers=False)
    if executor.kind == "emulated":
        done = timing.report(planned, found, [Column("result", 6), timing.MAX_ERROR, *end], emulated_row, as_json)
    else:
        done = timing.report(planned, found, columns, row, as_json, **({"models": networks} if networks else {}))
    if not as_json:
        _put_summary(done, executor.kind == "emulated", threads, profile)
        models.put_models(networks)
    ctx.exit(models.exit_code(timing.exit_code(done), networks))


def _put_summary(done: "list[Comparison]", emulated: bool, threads: int, profile: bool) -> None:
    """What the columns are and what the rows amount to."""
    from pysim.comparison.summary import summarise

    summary = summarise(done)
    put("")
    if emulated:
        right = f"{summary['correct']} of {plural(len(done), 'layer')} right"
        put(f"{right}: bit for bit on whole numbers, within the error bound on random ones")
    else:
        put(timing.SAYS_ERROR)
        put("medians; spread: interquartile range over median" + "; packing: its share of packing + micro-kernels" * profile)
        timing.put_state(done)
        timing.put_prediction(summary)
        if len(done) > 1 and (total := summary.get("total_seconds")):
            put(f"measured for {plural(sum(one.count for one in done if one.correct), 'layer')}: {seconds(total['pysim'])}")
    timing.put_failures(summary)


def _rate(one: "Comparison", flops: dict[str, int]) -> str:
    return f"{flops[one.problem] / one.measured_seconds / 1e9:.1f}" if one.measured_seconds else "-"


def _spread(one: "Comparison") -> str:
    if "pysim" not in one.quartiles:
        return "-"
    low, middle, high = one.quartiles["pysim"]
    return f"{(high - low) / middle:.1%}"


def _packing(one: "Comparison") -> str:
    """Input packing, padding included, as a share of packing and micro-kernels."""
    if not one.profile:
        return "-"
    pack, kernel = one.profile["pack_seconds"], one.profile["kernel_seconds"]
    return f"{pack / (pack + kernel):.1%}" if pack + kernel else "-"
