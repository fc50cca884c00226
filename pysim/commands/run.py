# SPDX-License-Identifier: Apache-2.0
"""`pysim run`: runs the plan of each problem: checks its result, then measures its time (except under an emulator)."""

from typing import TYPE_CHECKING, Any

import click

from pysim.commands import timing
from pysim.commands.common import (
    Column,
    accuracy_options,
    every,
    json_option,
    layers_of,
    machine_option,
    plan_options,
    plural,
    problems,
    put,
    say,
    seconds,
)
from pysim.commands.networks import measured, put_fingerprint, put_networks

if TYPE_CHECKING:
    from pysim.record.measurement import Comparison


@click.command()
@problems
@machine_option
@plan_options(timing.algorithm_option, timing.name_option, timing.threads_option, accuracy_options)
@click.option("--profile", is_flag=True, help="Show the share of packing in the time of a call.")
@click.option("--fingerprint", is_flag=True, help="Of a model, instead: a digest of each layer's result and its numeric contract.")
@click.option("--against", metavar="FILE", help="A document of --fingerprint --json: the first layer at which the model parts from it.")
@every
@json_option
@click.pass_context
def run(
    ctx: click.Context,
    problems: tuple[str, ...],
    machine_name: str,
    options: dict[str, Any],
    profile: bool,
    fingerprint: bool,
    against: str | None,
    every: bool,
    as_json: bool,
) -> None:
    """Plan each PROBLEM, check the plan's result against a reference, then time it on this computer (-m cuda: on its GPU).

    If this CPU lacks the machine's instructions, the plan runs in an emulator, if one is installed: results are checked, not timed.
    Exit code 1 if a result is wrong or a model cannot run as a whole. All samples go to the measurement store (pysim doctor names the
    file).

    \b
    Examples
      pysim run conv:mb1ic64ih56oc64kh3ph1 --profile
      pysim run resnet50 -m power10-e1050
      pysim run model.onnx --fingerprint --accuracy reproducible --json > mine.json
      pysim run model.onnx --against mine.json
    """
    from pysim.calibration import host
    from pysim.comparison.compare import plan_layers

    if fingerprint or against:
        ctx.exit(put_fingerprint(problems, machine_name, options, against, as_json))
    timing.check_plan(options)
    layers = layers_of(problems, every)
    if profile:
        timing.refuse_emulated(machine_name, "--profile needs them")
    on = host.runnable_any(machine_name)
    timing.refuse_on_gpu(on, threads=options["threads"] > 1, profile=profile)
    executor = host.executor_for(on)
    if executor.kind == "emulated":
        say(f"emulated by {executor.about}: results are checked, not timed")
    flops = {layer.workload.text: layer.workload.flops for layer in layers}
    planned = plan_layers(layers, on, **options)
    measured_layers = timing.measured(planned, on, {}, threads=options["threads"], profile=profile)
    networks = measured(problems, on, options["threads"], peers=False)
    columns = _emulated_columns() if executor.kind == "emulated" else _columns(flops, profile)
    results = timing.report(planned, measured_layers, columns, as_json, **networks.document)
    if not as_json:
        _put_summary(results, executor.kind == "emulated", profile)
        put_networks(networks.comparisons)
    ctx.exit(networks.exit_code(timing.exit_code(results)))


def _columns(flops: dict[str, int], profile: bool) -> "list[Column[Comparison]]":
    return [
        *timing.times(),
        *timing.max_error(),
        Column(
            "GFLOP/s", lambda result: f"{flops[result.problem] / result.measured_seconds / 1e9:.1f}" if result.measured_seconds else "-"
        ),
        Column("spread", _spread, width=6),
        *[Column("packing", _packing)] * profile,
        *timing.identity(),
    ]


def _emulated_columns() -> "list[Column[Comparison]]":
    return [*timing.verdict(), *timing.max_error(), *timing.identity()]


def _put_summary(results: "list[Comparison]", emulated: bool, profile: bool) -> None:
    """The legend and the summary."""
    from pysim.comparison.summary import summarise

    summary = summarise(results)
    put("")
    if emulated:
        right = f"{summary['correct']} of {plural(len(results), 'layer')} right"
        put(f"{right}: bit for bit on integers, within the error bound on random numbers")
    else:
        put(timing.ERROR_LEGEND)
        put(
            "times are medians; spread: interquartile range over median"
            + "; packing: share of packing in packing + micro-kernels" * profile
        )
        timing.put_state(results)
        timing.put_prediction(summary)
        if len(results) > 1 and (total := summary.get("total_seconds")):
            put(f"measured for {plural(sum(result.count for result in results if result.correct), 'layer')}: {seconds(total['pysim'])}")
    timing.put_failures(summary)


def _spread(result: "Comparison") -> str:
    if "pysim" not in result.quartiles:
        return "-"
    low, middle, high = result.quartiles["pysim"]
    return f"{(high - low) / middle:.1%}"


def _packing(result: "Comparison") -> str:
    """Input packing, padding included, as a share of packing and micro-kernels."""
    if not result.profile:
        return "-"
    pack, kernel = result.profile["pack_seconds"], result.profile["kernel_seconds"]
    return f"{pack / (pack + kernel):.1%}" if pack + kernel else "-"
