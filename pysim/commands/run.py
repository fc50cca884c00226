# SPDX-License-Identifier: Apache-2.0
"""`pysim run`: the plan of each problem, executed: its result checked, then its time measured."""

from typing import TYPE_CHECKING

import click

from pysim.commands import timing
from pysim.commands.common import Cell, Column, every, json_option, layers_of, machine_option, plural, problems, put, seconds

if TYPE_CHECKING:
    from pysim.record import Comparison


@click.command()
@problems
@machine_option
@click.option("--algorithm", metavar="A", help="Only a plan of this algorithm (sconv for a convolution, gemm for a product).")
@timing.threads_option
@click.option("--profile", is_flag=True, help="Split the time of a call into packing and micro-kernels.")
@every
@json_option
@click.pass_context
def run(
    ctx: click.Context,
    problems: tuple[str, ...],
    machine_name: str,
    algorithm: str | None,
    threads: int,
    profile: bool,
    every: bool,
    as_json: bool,
) -> None:
    """Plan each PROBLEM, check the plan's result against a reference, then time it on this computer (-m cuda: on its GPU).

    Exit code 1 if a result is wrong. All samples go to the measurement store (pysim doctor names the file).

    \b
    Example
      pysim run conv:mb1ic64ih56oc64kh3ph1 --profile
    """
    from pysim import host

    layers, on = layers_of(problems, every), host.runnable_any(machine_name)
    timing.refuse_on_gpu(on, threads=threads > 1, profile=profile)
    from pysim.comparison import LARGE_ERROR, summarise

    flops = {layer.workload.text: layer.workload.flops for layer in layers}
    columns = [Column("measured", 8), Column("predicted", 9), Column("error", 6), Column("GFLOP/s", 7), Column("spread", 6)]
    columns += [Column("packing", 7)] * profile + [Column("x", 2), Column("problem", 7, left=True)]

    def row(one: "Comparison") -> list[Cell]:
        share = [_packing(one)] if profile else []
        return [*timing.times(one, LARGE_ERROR), _rate(one, flops), _spread(one), *share, str(one.count), one.problem]

    planned = timing.plan_layers(layers, on, algorithm)
    found = timing.measured(planned, on, threads=threads, profile=profile)
    done = timing.report(planned, found, columns, row, as_json)
    if not as_json:
        put("")
        put("medians; spread: interquartile range over median" + "; packing: its share of packing + micro-kernels" * profile)
        summary = summarise(done)
        if threads == 1:
            timing.put_prediction(summary)
        if len(done) > 1 and (total := summary.get("total_seconds")):
            put(f"measured for {plural(sum(one.count for one in done if one.correct), 'layer')}: {seconds(total['pysim'])}")
        timing.put_failures(summary)
    ctx.exit(timing.exit_code(done))


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
