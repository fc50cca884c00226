# SPDX-License-Identifier: Apache-2.0
"""`pysim cache`: per level, the misses that the cost model predicts for a plan and the misses that an exact simulation counts."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pysim.commands.cache.sweep import SWEPT, check_picture, simulated
from pysim.commands.cache.sweep import sweep as sweep_of
from pysim.commands.common import (
    Choice,
    Column,
    OutputFile,
    document,
    json_option,
    layers_of,
    machine_option,
    plural,
    put,
    put_lines,
    put_table,
    say,
    wrapped,
)
from pysim.commands.timing import algorithm_option, name_option
from pysim.comparison.misses import KINDS, Case, doubts_of, fields_of, footprints, levels_of, phases_of, planned, prepared, shape_of

if TYPE_CHECKING:
    from pysim.machine.cpu import Machine


@click.command()
@click.argument("problems", metavar="[PROBLEM]...", nargs=-1)
@machine_option
@click.option("--stationary", type=Choice(list(KINDS)), help="Simulate SConv's best schedule of this kind instead of the plan.")
@algorithm_option
@name_option
@click.option("--cold", is_flag=True, help="Caches start empty; by default they hold what the previous run left.")
@click.option("--sweep", type=Choice(SWEPT), help="Vary this parameter of the schedule, the others as planned.")
@click.option("--picture", type=OutputFile(".svg", ".png"), help="Also draw the sweep into this .svg or .png file.")
@click.option(
    "--trace",
    "trace_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Simulate the accesses in this file (din, text or lackey format).",
)
@click.option("--whole", is_flag=True, help="Simulate the whole of a large problem, not only a part.")
@json_option
def cache(
    problems: tuple[str, ...],
    machine_name: str,
    stationary: str | None,
    algorithm: str | None,
    name: str | None,
    cold: bool,
    sweep: str | None,
    picture: Path | None,
    trace_file: Path | None,
    whole: bool,
    as_json: bool,
) -> None:
    """Cache misses of a plan per level, predicted by the cost model and counted by an exact simulation of its accesses.

    No kernel runs, so any machine that has a file will do (pysim machines). Filters are prepared before the run. For large batches and
    products only a part is predicted and simulated, under the schedule of the whole problem. Accesses are those of the library's loops
    (SConv and matrix products) or, of other algorithms, those that the description of their loops has (docs/cost-model.md).

    \b
    Examples
      pysim cache conv:mb1ic64ih56oc64kh3ph1 -m xeon-4208
      pysim cache resnet50 -m zen4 --algorithm sconv --json
      pysim cache conv:mb1ic64ih56oc64kh3ph1 -m zen4 --stationary input --sweep k2 --picture misses.svg
      pysim cache -m zen4 --trace accesses.din.gz
    """
    _check_usage(problems, sweep, picture, trace_file, stationary or algorithm or name or cold or whole)
    if name and (stationary or algorithm):
        given = "--stationary" if stationary else "--algorithm"
        raise click.UsageError(f"--plan NAME contains the algorithm and the stationary operand; give --plan or {given}")
    from pysim.calibration import host

    on = host.machine(machine_name)
    if trace_file:
        _trace(trace_file, on, as_json)
        return
    layers = layers_of(problems)
    if sweep and len(layers) > 1:
        raise click.UsageError(f"--sweep takes one layer, but {plural(len(layers), 'layer')} are named")
    plans = [(layer, planned(layer, on, stationary, algorithm, name, cold)) for layer in layers]
    if sweep:
        sweep_of(*plans[0], sweep, picture, whole, as_json)
        return
    cases = simulated([prepared(*one, whole) for one in plans])
    if as_json:
        document(caches=[fields_of(case) for case in cases])
        return
    for number, case in enumerate(cases):
        if number:
            put("")
        _report(case)


def _check_usage(problems: tuple[str, ...], sweep: str | None, picture: Path | None, trace_file: Path | None, of_plan: Any) -> None:
    if trace_file and (problems or sweep or of_plan):
        raise click.UsageError(
            "--trace takes its accesses from the file; it cannot be combined with PROBLEM, --plan, --algorithm, --stationary, --cold, "
            "--whole or --sweep"
        )
    if not trace_file and not problems:
        raise click.UsageError("give a PROBLEM, or a trace file with --trace")
    if picture and not sweep:
        raise click.UsageError(f"--picture draws a sweep; add --sweep {'|'.join(SWEPT)}")
    if picture:
        check_picture(picture)


# One case


def _report(case: Case) -> None:
    s, of = case.schedule, case.of
    put((of.layer.workload.text, "bold"))
    packed = f", {'packed' if s.pack == 'tiles' else 'in place'}" if of.nests.sliced else ""
    put(f"{of.plan.machine}, {of.plan.state}: {shape_of(of.plan)}, channels {s.channels}, K2 {s.k2}, K3 {s.k3}{packed}")
    part = "" if of.part.workload == of.layer.workload else f" of a part: {of.part.workload.text} (--whole simulates all)"
    if of.nests.sliced:
        put(f"{case.counted.accesses:,} accesses{part}")
    else:
        inner = case.counted[case.counted.levels[0]]
        put(f"{inner.loads + inner.stores:,} uses of lines{part}, from the description of the loops")
    levels = levels_of(case)

    def counted(by: str, what: str) -> Column[str]:
        return Column(what, lambda name: f"{levels[name][by][what]:,}")

    columns: list[Column[str]] = [
        Column("misses", str, left=True),
        Column("predicted", lambda name: f"{levels[name]['analytic_lines']:,.0f}"),
        Column("simulated", lambda name: (f"{levels[name]['simulated_misses']:,}", "bold")),
        Column("differ", lambda name: _percent(levels[name]["difference_percent"])),
        *(counted("operands", part) for part in case.operands),
        *(counted("phases", phase) for phase in phases_of(case)),
    ]
    put_table(columns, levels)
    put("")
    put_lines("\n".join(footprints(case)))
    for doubt in doubts_of(case):
        put_lines(wrapped(f"not modelled: {doubt}", ""))


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1f} %"


# A trace file


def _trace(file: Path, on: "Machine", as_json: bool) -> None:
    from pysim.cachemodel.simulator import tracefile
    from pysim.cachemodel.simulator.hierarchy import Hierarchy

    counted = Hierarchy.from_machine(on).run(tracefile.read(file))
    if as_json:
        document(caches=[{"trace": str(file), "machine": on.name, "accesses": counted.accesses, "counters": counted.to_dict()}])
        return
    if not counted.accesses:
        say(f"{file} holds no access")
    put(f"{file} on {on.name}: {plural(counted.accesses, 'access').replace('accesss', 'accesses')}")
    numbers = counted.to_dict()
    fields = ("loads", "stores", "hits", "misses", "evictions", "writebacks")

    def column(field: str) -> Column[str]:
        return Column(field, lambda name: f"{numbers[name][field]:,}")

    put_table([Column("cache", str, left=True), *map(column, fields)], numbers)
