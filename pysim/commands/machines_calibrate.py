# SPDX-License-Identifier: Apache-2.0
"""`pysim machines calibrate`: the CPU or the GPU at hand, measured into a machine file."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pysim.commands.common import (
    KIND_STYLE,
    Cell,
    Number,
    document,
    json_option,
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
    from pysim.calibration import cpu_calibrate, cuda_probe, gpu_calibrate
    from pysim.calibration.estimate import Estimate
    from pysim.machine.cpu import Machine
    from pysim.machine.gpu import Gpu


SHOWN = 0.02  # of the measurements were disturbed: said


@click.command(short_help="This computer's CPU or GPU, measured into a machine file.")
@click.option("-m", "--machine", "name", default="host", show_default=True, help="host: the CPU here; cuda: the GPU here; or their .toml.")
@click.option("--budget", type=Number(1, 3600), default=120.0, show_default=True, help="Seconds of measuring a CPU, or a GPU's products.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write a .toml file with what was measured.")
@click.option("--force", is_flag=True, help="Replace what was written there before.")
@json_option
def calibrate(name: str, budget: float, output: Path | None, force: bool, as_json: bool) -> None:
    """What the CPU here does, in rounds of short measurements: clock, multiply-adds, bandwidth and latency of each level; then, by least
    squares over measured plans of layers that are in no set, the constants of the cost model. What others disturbed is left out, and what
    stays in doubt is said. The result is what -m host plans with from then on, or with --output a machine file.

    Of a GPU (-m cuda, or its .toml): shared memory by instruction and pattern of lanes, multiply-adds, L2 and memory; then random products
    of every type, and by least squares the constants of the cost model. A file that --output writes differs from NAME's in what was assumed
    there, measured before, or fitted on products.

    \b
    Examples
      pysim machines calibrate
      pysim machines calibrate --budget 300 -o mine.toml     # then plan with -m mine.toml
      pysim machines calibrate -m h200 --json > shared-memory-h200.json
    """
    from pysim.calibration import host
    from pysim.errors import MachineError
    from pysim.machine.gpu import Gpu
    from pysim.machine.write import check_place

    if output is not None:
        check_place(output, force)
    machine = host.any_machine(name)
    if isinstance(machine, Gpu):
        _of_gpu(machine, budget, output, force, as_json)
    else:
        if host.executor(machine).kind == "emulated":
            raise MachineError(f"{machine.name} is emulated here, where no time means anything; calibrate -m host")
        _of_cpu(host.runnable(name), budget, output, force, as_json)


def _of_cpu(machine: "Machine", budget: float, output: Path | None, force: bool, as_json: bool) -> None:
    from pysim.calibration import host
    from pysim.calibration.cpu_calibrate import SOURCE, calibrate, calibrated
    from pysim.calibration.cpu_lab import HostLab
    from pysim.errors import MachineError
    from pysim.machine.write import save
    from pysim.measure.clock import pinned

    if output is None and machine.name != "host":
        raise MachineError(f"{machine.name} is a file, which is never changed; give another for what is measured: -o mine.toml")
    if output is None and not force and host.kept_source(SOURCE):
        raise MachineError("this computer is calibrated already; --force does it again, `pysim machines show host` has the numbers")
    say(f"{machine.description}: preparing and checking plans, then {budget:g} s of measuring")
    lab = HostLab(machine)
    with progress() as tell, pinned():
        found = calibrate(machine, lab, budget, tell)
        tell("")
    made = calibrated(machine, found, output.stem if output else "host")
    if output is not None:
        save(made, output, force)
    else:
        host.keep(made)
    if as_json:
        document(calibrations=[found])
        return
    _report_cpu(machine, found)
    put(f"plans with -m {output or 'host'} have these numbers from now on")


def _report_cpu(machine: "Machine", found: "cpu_calibrate.Calibration") -> None:
    """Each number beside what it was, what predictions gain, and what is not sure."""
    from pysim.machine.quantity import Count, facts

    before = dict(facts(machine))
    last = machine.levels[-1]
    before[f"levels.{last.name}.ways"] = Count(value=last.ways, kind=last.kind, source=last.source)
    put((found.machine, "bold"), f": {found.description}; {found.rounds} rounds in {found.seconds:.0f} s")
    put("")

    def row(path: str, one: "Estimate") -> list[Cell]:
        old = before.get(path)
        was: list[Cell] = [quantity(old.value), (old.kind, KIND_STYLE.get(old.kind, ""))] if old else ["-", ""]
        return [path, *was, quantity(one.value), quantity(one.error), ("", "") if one.sure else (f"not sure: {one.doubt}", "yellow")]

    rows = [row(path, one) for path, one in (found.numbers | found.fitted).items()]
    put_table(["number", "was", "kind", "is", "+-", ""], rows, left=["number", "kind", ""])
    for path, why in found.rejected.items():
        put((f"{path} stays as it was: {why}", "yellow"))
    put("")
    fit = found.fit
    titles = ["micro-kernel", "plans", "measured over predicted"]
    put_table(titles, [[one.kernel, str(one.plans), f"{one.over_predicted:.2f}"] for one in fit.shapes], left=["micro-kernel"])
    put("")
    pairs = (("before", fit.before), ("now", fit.after), ("now, of layers left out of the fit", fit.left_out))
    told = "; ".join(f"{what} median {one.median_error:.1%}, 90th percentile {one.p90_error:.1%}" for what, one in pairs)
    put_lines(wrapped(f"prediction error of {plural(fit.plans, 'plan')}: {told}", ""))
    if fit.rejected:
        put(f"{plural(fit.rejected, 'plan')} left out: rounds do not agree")
    put(f"other processes used {found.others:.2f} CPUs meanwhile (median of the rounds)")
    if found.shared > SHOWN:
        put((f"another machine was on this core during {found.shared:.0%} of the measurements, which are left out", "yellow"))
    doubts = len(found.doubts) + len(found.rejected)
    if doubts:
        put((f"not sure of {plural(doubts, 'number')}: calibrate again when less else runs, or with a larger --budget", "yellow"))


def _of_gpu(machine: "Gpu", budget: float, output: Path | None, force: bool, as_json: bool) -> None:
    import msgspec

    from pysim.calibration import cuda_probe, gpu_calibrate, gpu_lab, host
    from pysim.machine.write import save
    from pysim.runtime import cuda

    host.runnable_any(machine)
    device = cuda.devices()[0]
    found = cuda_probe.calibrate(machine, device, cuda_probe.DeviceProbes())
    probed = cuda_probe.merged(machine, found, output.stem if output else None)
    say(f"{machine.description}: {budget:g} s of products")
    with progress() as tell:
        products = gpu_calibrate.calibrate(probed, gpu_lab.DeviceLab(machine), budget, tell)
        tell("")
    if output is not None:
        save(gpu_calibrate.with_constants(probed, products, device.name, machine.name), output, force)
    if as_json:
        document(calibrations=[msgspec.to_builtins(found) | {"products": products}])
    else:
        _report_gpu(found)
        _report_products(machine, products)


def _report_products(machine: "Gpu", found: "gpu_calibrate.GpuFit") -> None:
    """Each constant beside what it was, and what predictions gain."""
    from pysim.machine.quantity import facts

    before = dict(facts(machine))
    put("")
    rows = []
    for path, one in found.constants.items():
        old = before[path]
        was: list[Cell] = [quantity(old.value), (old.kind, KIND_STYLE.get(old.kind, ""))]
        rows.append([path, *was, quantity(one.value), quantity(one.error), ("", "") if one.sure else (f"not sure: {one.doubt}", "yellow")])
    put_table(["constant", "was", "kind", "is", "+-", ""], rows, left=["constant", "kind", ""])
    put("")
    told = f"{plural(found.problems, 'product')}, {found.launches:,} launches in {found.seconds:.0f} s"
    put(f"{told}; error of predictions, and regret of the model's first choice:")
    titles = ["", "median", "90th percentile", "regret", "worst"]
    pairs = (("before", found.before), ("now", found.after), ("now, of products left out of the fit", found.left_out))
    put_table(
        titles,
        [[what, f"{q.median_error:.1%}", f"{q.p90_error:.1%}", f"{q.regret:.3f}", f"{q.worst_regret:.3f}"] for what, q in pairs],
        left=[""],
    )


def _report_gpu(found: "cuda_probe.Calibration") -> None:
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


def _shared_cells(row: "cuda_probe.SharedRow") -> list[Cell]:
    from pysim.calibration.cuda_probe import MOST

    cycles = [f"{row.cycles[warps].median:.2f}" for warps in (1, MOST)]
    mark: Cell = (f"{row.ratio:.2f} !", "yellow") if row.differs else f"{row.ratio:.2f}  "
    latency = "-" if row.latency_cycles is None else f"{row.latency_cycles.median:.1f}"
    counts = [str(row.active_lanes), str(row.wavefronts)]
    return [row.instruction, row.pattern, *counts, *cycles, f"{row.bytes_per_cycle:.1f}", mark, latency]


def _rate_cells(rate: "cuda_probe.Rate") -> list[Cell]:
    kind = (rate.file_kind, KIND_STYLE.get(rate.file_kind, ""))
    return [rate.path, quantity(rate.file_value), kind, quantity(rate.measured.median), f"kept: {rate.kept}" if rate.kept else "replaced"]
