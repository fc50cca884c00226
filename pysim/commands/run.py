# SPDX-License-Identifier: Apache-2.0
"""`pysim run`: the plan of each problem, executed: its result checked, then its time measured, except under an emulator."""

from typing import TYPE_CHECKING, Any

import click

from pysim.commands import models, timing
from pysim.commands.common import (
    Column,
    accuracy_options,
    asked_of_plans,
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
@asked_of_plans(timing.algorithm_option, timing.name_option, timing.threads_option, accuracy_options)
@click.option("--profile", is_flag=True, help="Split the time of a call into packing and micro-kernels.")
@every
@json_option
@click.pass_context
def run(
    ctx: click.Context,
    problems: tuple[str, ...],
    machine_name: str,
    asked: dict[str, Any],
    profile: bool,
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
    timing.refuse_on_gpu(on, threads=asked["threads"] > 1, profile=profile)
    executor = host.executor(on)
    if executor.kind == "emulated":
        say(f"emulated: {executor.about} says whether results are right, and nothing about time")
        if profile:
            raise MachineError(f"--profile splits the time of a call, and {on.name} is emulated here, where no time means anything")
    flops = {layer.workload.text: layer.workload.flops for layer in layers}
    planned = timing.plan_layers(layers, on, **asked)
    found = timing.measured(planned, on, {}, executor, threads=asked["threads"], profile=profile)
    networks = models.measured(problems, on, asked["threads"], peers=False)
    columns = _emulated_columns() if executor.kind == "emulated" else _columns(flops, profile)
    done = timing.report(planned, found, columns, as_json, **({"models": networks} if networks else {}))
    if not as_json:
        _put_summary(done, executor.kind == "emulated", profile)
        models.put_models(networks)
    ctx.exit(models.exit_code(timing.exit_code(done), networks))


def _columns(flops: dict[str, int], profile: bool) -> "list[Column[Comparison]]":
    return [
        *timing.times(),
        *timing.max_error(),
        Column("GFLOP/s", lambda one: f"{flops[one.problem] / one.measured_seconds / 1e9:.1f}" if one.measured_seconds else "-"),
        Column("spread", _spread, width=6),
        *[Column("packing", _packing)] * profile,
        *timing.identity(),
    ]


def _emulated_columns() -> "list[Column[Comparison]]":
    return [*timing.verdict(), *timing.max_error(), *timing.identity()]


def _put_summary(done: "list[Comparison]", emulated: bool, profile: bool) -> None:
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
