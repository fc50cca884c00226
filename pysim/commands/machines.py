# SPDX-License-Identifier: Apache-2.0
"""`pysim machines`: the machines that can be planned for, every number of one with its source, this computer as detected, and what its
GPU measures."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pysim.commands.common import Cell, Group, document, hertz, json_option, put, put_lines, put_table, size, wrapped

if TYPE_CHECKING:
    from pysim.calibration.cuda_probe import Calibration, Rate, SharedRow
    from pysim.machine.cpu import Machine
    from pysim.machine.gpu import Gpu

KIND_STYLE = {"assumed": "yellow", "measured": "green", "static": "cyan"}


@click.group(cls=Group, invoke_without_command=True)
@json_option
@click.pass_context
def machines(ctx: click.Context, as_json: bool) -> None:
    """The machines that can be planned for, and where each of their numbers comes from.

    \b
    Examples
      pysim machines
      pysim machines show power10-e1050
      pysim machines detect --fresh
      pysim machines calibrate -m h200
    """
    if ctx.invoked_subcommand is None:
        _list(as_json)
    elif as_json:
        raise click.UsageError(f"write --json after {ctx.invoked_subcommand}: pysim machines {ctx.invoked_subcommand} --json")


@machines.command("list", short_help="Every shipped machine in a line.")
@json_option
def list_machines(as_json: bool) -> None:
    """Every shipped machine in a line.

    \b
    Example
      pysim machines list
    """
    _list(as_json)


@machines.command(short_help="Every number of one machine with its source.")
@click.argument("name")
@click.option("--toml", is_flag=True, help="As a machine file: a start for one of your own.")
@json_option
def show(name: str, toml: bool, as_json: bool) -> None:
    """Every number of one machine (a name, host, or the path of a .toml file) with its kind and source.

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


@machines.command(short_help="This computer, measured.")
@click.option("--fresh", is_flag=True, help="Measure again, whatever was kept from before.")
@json_option
def detect(fresh: bool, as_json: bool) -> None:
    """This computer as machine "host": geometry from Linux, clock and rates measured in about a second, then kept.

    \b
    Example
      pysim machines detect --fresh
    """
    from pysim.calibration import host

    _show(host.detect(cached=not fresh), as_json)


@machines.command(short_help="This computer's GPU, measured.")
@click.option("-m", "--machine", "name", default="cuda", show_default=True, help="A GPU, or path of its .toml file; cuda: the one here.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write a .toml file with what was measured.")
@json_option
def calibrate(name: str, output: Path | None, as_json: bool) -> None:
    """Shared memory by instruction and pattern of lanes, multiply-adds, L2 and memory of the GPU here, which must be machine NAME.

    A file that --output writes differs from NAME's in what was assumed there, or measured before.

    \b
    Examples
      pysim machines calibrate -m h200
      pysim machines calibrate -m h200 --json > shared-memory-h200.json
      pysim machines calibrate -o mine.toml     # then plan with -m mine.toml
    """
    from pysim.calibration import cuda_probe, host
    from pysim.errors import MachineError
    from pysim.machine.gpu import Gpu
    from pysim.machine.load import load_any
    from pysim.machine.write import to_toml
    from pysim.runtime import cuda

    if output is not None and (output.suffix != ".toml" or not output.parent.is_dir()):
        raise MachineError(f"{output}: a machine file ends in .toml and goes to a folder that is there")
    machine = None if name == "host" else host.gpu_here() if name == host.CUDA else load_any(name)
    if not isinstance(machine, Gpu):
        raise MachineError(f"{name} is a CPU, and calibrate measures GPUs; `pysim machines detect --fresh` measures this computer's CPU")
    host.runnable_any(machine)
    found = cuda_probe.calibrate(machine, cuda.devices()[0], cuda_probe.DeviceProbes())
    if output is not None:
        try:
            output.write_text(to_toml(cuda_probe.merged(machine, found, output.stem)), encoding="utf-8")
        except (OSError, ValueError) as error:
            raise MachineError(f"{output} cannot be written: {error}") from None
    if as_json:
        document(calibrations=[found])
    else:
        _report(found)


def _report(found: "Calibration") -> None:
    """What each instruction takes in each pattern, then the rates beside the machine file's."""
    from pysim.calibration.cuda_probe import MOST

    device = found.device
    put((found.machine, "bold"), f": {device.name}, driver {device.driver}, CUDA {device.runtime}; medians of {found.samples} launches")
    put("")
    titles = ["instruction", "pattern", "lanes", "wavefronts", "1 warp", f"{MOST} warps", "bytes/cycle", "over predicted", "latency"]
    put_table(titles, [_shared_cells(row) for row in found.shared], left=["instruction", "pattern"])
    put("")
    differ, of = sum(row.differs for row in found.shared), len(found.shared)
    put("warps and latency: cycles per instruction; predicted: one wavefront a cycle")
    put(f"{differ} of {of} differ from the prediction by more than {found.tolerance:.0%} (!)")
    if found.unsaturated:
        put((f"in {found.unsaturated} of {of} half as many warps did less: shared memory may not have been busy", "yellow"))
    put(f"a wavefront takes {found.load_cycles:.3f} cycles in loads, {found.store_cycles:.3f} in stores (medians)")
    put("")
    titles = ["number", "in the file", "kind", "measured", "by --output"]
    put_table(titles, list(map(_rate_cells, found.rates)), left=["number", "kind", "by --output"])


def _shared_cells(row: "SharedRow") -> list[Cell]:
    from pysim.calibration.cuda_probe import MOST

    cycles = [f"{row.cycles[warps].median:.2f}" for warps in (1, MOST)]
    mark: Cell = (f"{row.ratio:.2f} !", "yellow") if row.differs else f"{row.ratio:.2f}  "
    latency = "-" if row.latency_cycles is None else f"{row.latency_cycles.median:.1f}"
    counts = [str(row.active_lanes), str(row.wavefronts)]
    return [row.instruction, row.pattern, *counts, *cycles, f"{row.bytes_per_cycle:.1f}", mark, latency]


def _rate_cells(rate: "Rate") -> list[Cell]:
    kind = (rate.file_kind, KIND_STYLE.get(rate.file_kind, ""))
    return [rate.path, _number(rate.file_value), kind, _number(rate.measured.median), f"kept: {rate.kept}" if rate.kept else "replaced"]


def _list(as_json: bool) -> None:
    from pysim.machine.cpu import Machine
    from pysim.machine.load import load_any, names

    found = [load_any(name) for name in names()]
    if as_json:
        document(machines=found)
        return
    cpus = [machine for machine in found if isinstance(machine, Machine)]
    gpus = [machine for machine in found if not isinstance(machine, Machine)]
    titles = ["cpu", "cores", "clock", "caches", "units", "assumed"]
    put_table(titles, list(map(_cpu_cells, cpus)), left=["cpu", "caches", "units"])
    put("")
    titles = ["gpu", "capability", "SMs", "clock", "L2", "shared/SM", "memory", "assumed"]
    put_table(titles, list(map(_gpu_cells, gpus)), left=["gpu"])
    put("")
    put("host is this computer: pysim machines detect. assumed: how many of its numbers nobody measured or published")


def _cpu_cells(machine: "Machine") -> list[Cell]:
    caches = ", ".join(f"{level.name} {size(level.size_bytes)}" for level in machine.levels)
    units = " ".join(unit.target for unit in machine.core.units)
    return [(machine.name, "bold"), str(machine.cores), hertz(machine.core.frequency_hz.value), caches, units, _assumed(machine)]


def _gpu_cells(gpu: "Gpu") -> list[Cell]:
    sizes = [size(gpu.l2_bytes.value), size(gpu.shared_bytes_per_sm.value), f"{gpu.memory_bytes_per_second.value / 1e12:.2f} TB/s"]
    return [(gpu.name, "bold"), gpu.capability, str(gpu.sms.value), hertz(gpu.frequency_hz.value), *sizes, _assumed(gpu)]


def _assumed(machine: "Machine | Gpu") -> Cell:
    from pysim.machine.quantity import facts

    return f"{len(machine.assumed())}/{sum(1 for _ in facts(machine))}"


def _show(machine: "Machine | Gpu", as_json: bool) -> None:
    """Numbers with kind and source, then what the sources are."""
    if as_json:
        document(machines=[machine])
        return
    from pysim.machine.cpu import Machine
    from pysim.machine.quantity import facts

    put((machine.name, "bold"), f": {machine.description}")
    if isinstance(machine, Machine):
        put(f"{machine.cores} cores (source {machine.source}), {machine.core.name}")
    put("")
    rows: list[list[Cell]] = [
        [path, _value(path, fact), (fact.kind, KIND_STYLE.get(fact.kind, "")), fact.source] for path, fact in facts(machine)
    ]
    put_table(["number", "value", "kind", "source"], rows, left=["number", "kind", "source"])
    put("")
    for key, source in machine.sources.items():
        put((key, "bold"), f": {source.title}")
        for name in ("section", "url", "command", "file", "versions", "note"):
            if text := getattr(source, name):
                put_lines(wrapped(f"{name}: {text}", "    "))


def _value(path: str, fact: Any) -> str:
    """A number as it stands in the file; geometry with the size that it makes."""
    from pysim.machine.cpu import Csa, Level, Unit
    from pysim.machine.quantity import Number

    if isinstance(fact, Level):
        return f"{fact.sets} sets x {fact.ways} ways x {fact.line_bytes} B = {size(fact.size_bytes)}"
    if isinstance(fact, Unit):
        return f"vectors of {fact.vector_bytes} B"
    if isinstance(fact, Csa):
        return f"{fact.windows}x{fact.filters}, {fact.alpha:g} of each cache"
    error = f" +- {_number(fact.error)}" if isinstance(fact, Number) and fact.error is not None else ""
    return _number(fact.value) + error


def _number(value: Any) -> str:
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
