# SPDX-License-Identifier: Apache-2.0
"""`pysim machines calibrate`: measures this computer's CPU or GPU into a machine file."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pysim.commands import timing
from pysim.commands.common import (
    Column,
    Number,
    document,
    json_option,
    kind_cell,
    plural,
    progress,
    put,
    put_lines,
    put_table,
    quantity,
    say,
    wrapped,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pysim.calibration import cpu_calibrate, cpu_fit, cuda_probe, gpu_calibrate
    from pysim.calibration.estimate import Estimate
    from pysim.machine.cpu import Machine
    from pysim.machine.gpu import Gpu


MIN_REPORTED_SHARE = 0.02  # of disturbed measurements


@click.command(short_help="Measure this computer's CPU or GPU into a machine file.")
@click.option("-m", "--machine", "name", default="host", show_default=True, help="host: this CPU; cuda: this GPU; or its .toml file.")
@click.option("--budget", type=Number(1, 3600), default=120.0, show_default=True, help="Seconds of measuring (GPU: of matrix products).")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the result to a .toml file.")
@click.option("--force", is_flag=True, help="Replace an earlier result.")
@json_option
def calibrate(name: str, budget: float, output: Path | None, force: bool, as_json: bool) -> None:
    """Measure this computer, so that plans use its own numbers.

    CPU: rounds of short measurements give the clock, multiply-adds per cycle, and bandwidth and latency of each memory level. Times of
    plans, for layers that are in no built-in set, then give the constants of the cost model by least squares. Disturbed measurements are
    left out; doubtful results are named. From then on -m host uses the result; with --output it goes to a machine file instead.

    GPU (-m cuda, or its .toml file): measures shared memory per instruction and access pattern, multiply-adds, L2 and memory. Random
    products of every type then give the constants of the cost model by least squares. The file of --output replaces numbers that were
    assumed, measured or fitted; others stay.

    \b
    Examples
      pysim machines calibrate
      pysim machines calibrate --budget 300 -o mine.toml     # then plan with -m mine.toml
      pysim machines calibrate -m h200 --json > shared-memory.json
    """
    from pysim.calibration import host
    from pysim.machine.gpu import Gpu
    from pysim.machine.write import check_place

    if output is not None:
        check_place(output, force)
    machine = host.any_machine(name)
    if isinstance(machine, Gpu):
        _of_gpu(machine, budget, output, force, as_json)
    else:
        timing.refuse_emulated(name, "calibrate -m host")
        _of_cpu(host.runnable(name), budget, output, force, as_json)


def _of_cpu(machine: "Machine", budget: float, output: Path | None, force: bool, as_json: bool) -> None:
    from pysim.calibration import host
    from pysim.calibration.cpu_calibrate import SOURCE, calibrate, calibrated
    from pysim.calibration.cpu_lab import HostLab
    from pysim.errors import MachineError
    from pysim.machine.write import save
    from pysim.measure.clock import pinned

    if output is None and machine.name != "host":
        raise MachineError(f"{machine.name} is a file, which is never changed; write the result to another one: -o mine.toml")
    if output is None and not force and host.kept_source(SOURCE):
        raise MachineError("this computer is already calibrated; --force calibrates it again, `pysim machines show host` shows the numbers")
    if output is None:
        host.check_kept()
    say(f"{machine.description}: preparing and checking plans, then measuring for {budget:g} s")
    lab = HostLab(machine)
    with progress() as show, pinned():
        result = calibrate(machine, lab, budget, show)
        show("")
    made = calibrated(machine, result, output.stem if output else "host")
    if output is not None:
        save(made, output, force)
    else:
        host.keep(made)
    if as_json:
        document(calibrations=[result])
        return
    _report_cpu(machine, result)
    put(f"plans with -m {output or 'host'} use these numbers from now on")


def _report_cpu(machine: "Machine", result: "cpu_calibrate.Calibration") -> None:
    """Writes each number beside its old value, the prediction errors before and after, and doubtful numbers."""
    from pysim.machine.quantity import Count, facts

    before = dict(facts(machine))
    last = machine.levels[-1]
    before[f"levels.{last.name}.ways"] = Count(value=last.ways, kind=last.kind, source=last.source)
    put((result.machine, "bold"), f": {result.description}; {result.rounds} rounds in {result.seconds:.0f} s")
    put("")
    _put_estimates("number", before, result.numbers | result.fitted)
    for path, why in result.rejected.items():
        put((f"{path} is unchanged: {why}", "yellow"))
    put("")
    fit = result.fit
    columns: list[Column[cpu_fit.Shape]] = [
        Column("micro-kernel", lambda one: one.kernel, left=True),
        Column("plans", lambda one: str(one.plans)),
        Column("measured over predicted", lambda one: f"{one.over_predicted:.2f}"),
    ]
    put_table(columns, fit.shapes)
    put("")
    pairs = (("before", fit.before), ("now", fit.after), ("now, on layers held out of the fit", fit.left_out))
    text = "; ".join(f"{what} median {one.median_error:.1%}, 90th percentile {one.p90_error:.1%}" for what, one in pairs)
    put_lines(wrapped(f"prediction error of {plural(fit.plans, 'plan')}: {text}", ""))
    if fit.rejected:
        put(f"{plural(fit.rejected, 'plan')} left out: their rounds disagree")
    put(f"other processes used {result.others:.2f} CPUs during the calibration (median of the rounds)")
    if result.shared > MIN_REPORTED_SHARE:
        put((f"another virtual machine shared this core during {result.shared:.0%} of the measurements, which are left out", "yellow"))
    doubts = len(result.doubts) + len(result.rejected)
    if doubts:
        put((f"{plural(doubts, 'number')} doubtful: calibrate again when the machine is quieter, or with a larger --budget", "yellow"))


def _put_estimates(title: str, before: "Mapping[str, Any]", result: "Mapping[str, Estimate]") -> None:
    """Writes each number by its path: old value, new value, and whether that is certain."""
    columns: list[Column[str]] = [
        Column(title, str, left=True),
        Column("was", lambda path: quantity(before[path].value) if path in before else "-"),
        Column("kind", lambda path: kind_cell(before[path].kind) if path in before else "", left=True),
        Column("is", lambda path: quantity(result[path].value)),
        Column("+-", lambda path: quantity(result[path].error)),
        Column("", lambda path: "" if result[path].sure else (f"doubtful: {result[path].doubt}", "yellow"), left=True),
    ]
    put_table(columns, result)


def _of_gpu(machine: "Gpu", budget: float, output: Path | None, force: bool, as_json: bool) -> None:
    import msgspec

    from pysim.calibration import cuda_probe, gpu_calibrate, gpu_lab, host
    from pysim.machine.write import save
    from pysim.runtime import cuda

    host.runnable_any(machine)
    device = cuda.devices()[0]
    result = cuda_probe.calibrate(machine, device, cuda_probe.DeviceProbes())
    probed = cuda_probe.merged(machine, result, output.stem if output else None)
    say(f"{machine.description}: measuring matrix products for {budget:g} s")
    with progress() as show:
        products = gpu_calibrate.calibrate(probed, gpu_lab.DeviceLab(machine), budget, show)
        show("")
    if output is not None:
        save(gpu_calibrate.with_constants(probed, products, device.name, machine.name), output, force)
    if as_json:
        document(calibrations=[msgspec.to_builtins(result) | {"products": products}])
    else:
        _report_gpu(result)
        _report_products(machine, products)


def _report_products(machine: "Gpu", result: "gpu_calibrate.GpuFit") -> None:
    """Writes each constant beside its old value, and the prediction errors before and after."""
    from pysim.machine.quantity import facts

    put("")
    _put_estimates("constant", dict(facts(machine)), result.constants)
    put("")
    text = f"{plural(result.problems, 'product')}, {result.launches:,} launches in {result.seconds:.0f} s"
    put(f"{text}; prediction error, and regret of the model's choice:")
    quality = {"before": result.before, "now": result.after, "now, on products held out of the fit": result.left_out}
    columns: list[Column[str]] = [
        Column("", str, left=True),
        Column("median", lambda when: f"{quality[when].median_error:.1%}"),
        Column("90th percentile", lambda when: f"{quality[when].p90_error:.1%}"),
        Column("regret", lambda when: f"{quality[when].regret:.3f}"),
        Column("worst", lambda when: f"{quality[when].worst_regret:.3f}"),
    ]
    put_table(columns, quality)


def _report_gpu(result: "cuda_probe.Calibration") -> None:
    """Writes the cycles of each instruction and access pattern, then the rates beside those of the machine file."""
    from pysim.calibration.cuda_probe import MAX_WARPS

    device = result.device
    put((result.machine, "bold"), f": {device.name}, driver {device.driver}, CUDA {device.runtime}; medians of {result.samples} launches")
    put("")
    columns: list[Column[cuda_probe.SharedRow]] = [
        Column("instruction", lambda row: row.instruction, left=True),
        Column("pattern", lambda row: row.pattern, left=True),
        Column("lanes", lambda row: str(row.active_lanes)),
        Column("wavefronts", lambda row: str(row.wavefronts)),
        Column("1 warp", lambda row: f"{row.cycles[1].median:.2f}"),
        Column(f"{MAX_WARPS} warps", lambda row: f"{row.cycles[MAX_WARPS].median:.2f}"),
        Column("bytes/cycle", lambda row: f"{row.bytes_per_cycle:.1f}"),
        Column("over predicted", lambda row: (f"{row.ratio:.2f} !", "yellow") if row.differs else f"{row.ratio:.2f}  "),
        Column("latency", lambda row: "-" if row.latency_cycles is None else f"{row.latency_cycles.median:.1f}"),
    ]
    put_table(columns, result.shared)
    put("")
    differ, of = sum(row.differs for row in result.shared), len(result.shared)
    put("1 warp, more warps, latency: cycles per instruction; predicted: one wavefront per cycle")
    put(f"{differ} of {of} differ from the prediction by more than {result.tolerance:.0%} (!)")
    if result.unsaturated:
        put((f"in {result.unsaturated} of {of}, half as many warps were slower: shared memory may not have been saturated", "yellow"))
    put(f"a wavefront takes {result.load_cycles:.3f} cycles for loads, {result.store_cycles:.3f} for stores (medians)")
    put("")
    rates: list[Column[cuda_probe.Rate]] = [
        Column("number", lambda rate: rate.path, left=True),
        Column("in the file", lambda rate: quantity(rate.file_value)),
        Column("kind", lambda rate: kind_cell(rate.file_kind), left=True),
        Column("measured", lambda rate: quantity(rate.measured.median)),
        Column("by --output", lambda rate: f"kept: {rate.kept}" if rate.kept else "replaced", left=True),
    ]
    put_table(rates, result.rates)
