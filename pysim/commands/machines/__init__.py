# SPDX-License-Identifier: Apache-2.0
"""`pysim machines`: the machines to plan for, every number of one with its source, this computer as detected."""

from typing import TYPE_CHECKING, Any

import click

from pysim.commands.common import (
    Cell,
    Column,
    Group,
    document,
    hertz,
    json_option,
    kind_cell,
    put,
    put_lines,
    put_table,
    quantity,
    size,
    wrapped,
)  # fmt: skip
from pysim.commands.machines.calibrate import calibrate
from pysim.commands.machines.diff import diff

if TYPE_CHECKING:
    from pysim.machine.cpu import Machine
    from pysim.machine.gpu import Gpu


@click.group(cls=Group, invoke_without_command=True)
@json_option
@click.pass_context
def machines(ctx: click.Context, as_json: bool) -> None:
    """List the machines to plan for, and where each of their numbers comes from.

    \b
    Examples
      pysim machines
      pysim machines show power10-e1050
      pysim machines detect --fresh
      pysim machines calibrate -o mine.toml
      pysim machines diff zen4 zen5 conv:mb1ic64ih56oc64kh3ph1
    """
    if ctx.invoked_subcommand is None:
        _list(as_json)
    elif as_json:
        raise click.UsageError(f"write --json after {ctx.invoked_subcommand}: pysim machines {ctx.invoked_subcommand} --json")


machines.add_command(calibrate)
machines.add_command(diff)


@machines.command("list", short_help="List the shipped machines.")
@json_option
def list_machines(as_json: bool) -> None:
    """List the shipped machines, one per line.

    \b
    Example
      pysim machines list
    """
    _list(as_json)


@machines.command(short_help="Show every number of a machine with its source.")
@click.argument("name")
@click.option("--toml", is_flag=True, help="Write a machine file, as a start for your own.")
@json_option
def show(name: str, toml: bool, as_json: bool) -> None:
    """Show every number of a machine (a name, host, or the path of a .toml file) with its kind and source.

    \b
    Examples
      pysim machines show zen4
      pysim machines show zen4 --toml > mine.toml     # then set its name to "mine"
    """
    if toml and as_json:
        raise click.UsageError("--toml and --json are two forms of the same machine; give one of the two")
    from pysim.calibration import host
    from pysim.machine.load import load_any
    from pysim.machine.write import to_toml

    machine = host.machine(name) if name == "host" else load_any(name)
    if toml:
        click.echo(to_toml(machine), nl=False)
    else:
        _show(machine, as_json)


@machines.command(short_help="Detect this computer.")
@click.option("--fresh", is_flag=True, help="Measure again instead of reading the last detection.")
@json_option
def detect(fresh: bool, as_json: bool) -> None:
    """Detect this computer, machine "host": geometry from Linux, clock and rates measured in about a second. The result is kept.

    \b
    Example
      pysim machines detect --fresh
    """
    from pysim.calibration import host

    _show(host.detect(cached=not fresh), as_json)


def _list(as_json: bool) -> None:
    from pysim.machine.cpu import Machine
    from pysim.machine.gpu import Gpu
    from pysim.machine.load import load_any, names

    shipped = [load_any(name) for name in names()]
    if as_json:
        document(machines=shipped)
        return
    cpus: list[Column[Machine]] = [
        Column("cpu", lambda cpu: (cpu.name, "bold"), left=True),
        Column("cores", lambda cpu: str(cpu.cores)),
        Column("clock", lambda cpu: hertz(cpu.core.frequency_hz.value)),
        Column("caches", lambda cpu: ", ".join(f"{level.name} {size(level.size_bytes)}" for level in cpu.levels), left=True),
        Column("units", _units, left=True),
        Column("assumed", _assumed),
    ]
    gpus: list[Column[Gpu]] = [
        Column("gpu", lambda gpu: (gpu.name, "bold"), left=True),
        Column("capability", lambda gpu: gpu.capability),
        Column("SMs", lambda gpu: str(gpu.sms.value)),
        Column("clock", lambda gpu: hertz(gpu.frequency_hz.value)),
        Column("L2", lambda gpu: size(gpu.l2_bytes.value)),
        Column("shared/SM", lambda gpu: size(gpu.shared_bytes_per_sm.value)),
        Column("memory", lambda gpu: f"{gpu.memory_bytes_per_second.value / 1e12:.2f} TB/s"),
        Column("assumed", _assumed),
    ]
    put_table(cpus, [machine for machine in shipped if isinstance(machine, Machine)])
    put("")
    put_table(gpus, [machine for machine in shipped if isinstance(machine, Gpu)])
    put("")
    put("host is this computer: pysim machines detect. assumed: numbers that were neither measured nor published, of all")


def _units(cpu: "Machine") -> str:
    """The targets of a core's units; avx512's extensions by their own names."""
    from pysim.measure.speed import PLAIN

    targets = [unit.target for unit in cpu.core.units if unit.target != PLAIN]
    return " ".join(target.removeprefix("avx512") or target for target in targets) or PLAIN


def _assumed(machine: "Machine | Gpu") -> Cell:
    from pysim.machine.quantity import facts

    return f"{len(machine.assumed())}/{sum(1 for _ in facts(machine))}"


def _show(machine: "Machine | Gpu", as_json: bool) -> None:
    """Writes the numbers with kind and source, then the sources."""
    if as_json:
        document(machines=[machine])
        return
    from pysim.machine.cpu import Machine
    from pysim.machine.quantity import facts

    put((machine.name, "bold"), f": {machine.description}")
    if isinstance(machine, Machine):
        put(f"{machine.cores} cores (source {machine.source}), {machine.core.name}")
    put("")
    columns: list[Column[tuple[str, Any]]] = [
        Column("number", lambda one: one[0], left=True),
        Column("value", lambda one: _value(one[1])),
        Column("kind", lambda one: kind_cell(one[1].kind), left=True),
        Column("source", lambda one: one[1].source, left=True),
    ]
    put_table(columns, facts(machine))
    put("")
    for key, source in machine.sources.items():
        put((key, "bold"), f": {source.title}")
        for name in ("section", "url", "command", "file", "versions", "note"):
            if text := getattr(source, name):
                put_lines(wrapped(f"{name}: {text}", "    "))


def _value(fact: Any) -> str:
    """A number of the file as text; cache geometry with its size."""
    from pysim.machine.cpu import Csa, Level, Unit
    from pysim.machine.quantity import Number
    from pysim.registry.cpu import results_of_multiply_add

    if isinstance(fact, Level):
        return f"{fact.sets} sets x {fact.ways} ways x {fact.line_bytes} B = {size(fact.size_bytes)}"
    if isinstance(fact, Unit):
        results = results_of_multiply_add(fact.target)
        return f"vectors of {fact.vector_bytes} B, {results} FP32 {'result' if results == 1 else 'results'} a multiply-add"
    if isinstance(fact, Csa):
        return f"{fact.windows}x{fact.filters}, {fact.alpha:g} of each cache"
    error = f" +- {quantity(fact.error)}" if isinstance(fact, Number) and fact.error is not None else ""
    return quantity(fact.value) + error
