# SPDX-License-Identifier: Apache-2.0
"""The machines of this computer: "host", its CPU as Linux and the native probes report it (`detected`), and "cuda", its first GPU.

Detections are cached per user (`kept`). A detection under load is marked as such and repeated by the next process that finds the computer
quiet.
"""

import threading
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import msgspec

from pysim.calibration.detected import Probes, as_built, measure, targets_of_kernels
from pysim.calibration.detection_cache import Kept, can_keep, kept_of, recall, remember
from pysim.calibration.linux import CPUINFO, SYSFS, Cpu, Geometry, core_count, getconf, read_caches, read_cpu
from pysim.errors import MachineError, MissingError
from pysim.logs import LOG
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.machine.load import load, load_any, loads, names
from pysim.machine.quantity import Count, Number, Source, assumed
from pysim.machine.write import to_toml
from pysim.measure.cpu_load import share_of_others
from pysim.runtime import cuda
from pysim.runtime.emulated import executor_for as executor_for
from pysim.runtime.emulated import targets_of
from pysim.runtime.foreign import user_cache

CUDA = "cuda"  # the name of this computer's GPU
QUIET = 0.05  # largest share of the processors used by others for a detection to be repeated: half of the share that puts it in doubt
QUIET_CHECK_SECONDS = 60.0  # between checks whether the computer is quiet; a check takes 0.05 s

_NOT_KEPT = "cannot be written, so this computer stays as detected; give a file: -o mine.toml"

_detecting = threading.Lock()
_next_quiet_check = 0.0
_unkept: dict[tuple[object, ...], Machine] = {}  # detected by this process, where nothing can be written


def detect(
    cached: bool = True,
    *,
    probes: Probes | None = None,
    sysfs: Path = SYSFS,
    cpuinfo: Path = CPUINFO,
    cache_dir: Path | None = None,
    run_getconf: Callable[[], str] = getconf,
) -> Machine:
    """The machine "host". A result is kept as TOML in `cache_dir` (the user's cache) and reused while `cached`.

    Raises MachineError where Linux does not report the cache geometry or a probe measures nonsense, MissingError without the native
    library. An invalid cache file is replaced. If none can be written, detection is brief, and its result is kept for this process. Which
    kernels the library lacks is not kept, since another one may be there the next time.
    """
    available = probes.available_kernels() if probes else _available()
    cpu, caches, kept = _reported(sysfs, cpuinfo, run_getconf, cache_dir or user_cache(), available)
    with _detecting:  # threads that measure at the same time would disturb one another
        if cached and kept and (known := recall(kept.quiet) or _while_busy(kept.loaded)):
            return as_built(known, available)
        if probes is None:
            from pysim.runtime import cpu as runtime

            probes = runtime
        brief = cached and not (kept and can_keep(kept))
        if brief and (known := _unkept.get((cpu, *caches))):
            return as_built(known, available)
        found = measure(cpu, caches, core_count(sysfs), probes, brief)
        text = to_toml(found.machine)
        machine = loads(text, "host")
        assert isinstance(machine, Machine)
        LOG.info("detected this computer: %s%s", machine.description, " (briefly: nothing can be kept)" if brief else "")
        if brief:
            _unkept[(cpu, *caches)] = machine
        elif kept:
            remember(kept.loaded if found.loaded else kept.quiet, text)
        return as_built(machine, available)


@lru_cache(maxsize=1)
def _available() -> frozenset[str]:
    """The names of the kernels that run here."""
    from pysim.runtime import cpu as runtime

    return runtime.available_kernels()


@lru_cache(maxsize=8)
def _reported(
    sysfs: Path, cpuinfo: Path, run_getconf: Callable[[], str], cache_dir: Path | None, available: frozenset[str]
) -> tuple[Cpu, list[Geometry], Kept | None]:
    """CPU and caches as the system reports them, and their cache files. None of it changes while a process runs."""
    cpu, caches = read_cpu(cpuinfo), read_caches(sysfs, run_getconf)
    return cpu, caches, kept_of(cpu, caches, targets_of_kernels(available), cache_dir)


def _kept() -> Kept | None:
    """The cache files of this computer."""
    return _reported(SYSFS, CPUINFO, getconf, user_cache(), _available())[2]


def _while_busy(loaded: Path) -> Machine | None:
    """What was measured beside other processes, as long as there are such."""
    global _next_quiet_check
    known = recall(loaded)
    if known is None or time.monotonic() < _next_quiet_check:
        return known
    _next_quiet_check = time.monotonic() + QUIET_CHECK_SECONDS
    return known if share_of_others() > QUIET else None


def machine(name: str | Machine) -> Machine:
    """A CPU by its shipped name, by the path of a .toml file, or "host": this computer, detected once and remembered."""
    return name if isinstance(name, Machine) else load(name, detect)


def runnable(name: str | Machine) -> Machine:
    """A machine whose kernels can run on this computer: host, whatever a user's .toml file says this computer is, or one whose
    instructions an emulator has.

    Raises MissingError for the other shipped machines and for an emulator that is not installed, and MachineError for what is none.
    """
    label = name.name if isinstance(name, Machine) else name
    shipped = label != "host" and label in names()
    on = load_any(label) if shipped else machine(name)
    if isinstance(on, Gpu):
        raise MissingError(f"{label} is a GPU, and a CPU is needed here; run on -m host (pysim.gemm and pysim run gemm:... take a GPU)")
    if (emulator := executor_for(on)).kind == "emulated":
        emulator.library()
    if not shipped or targets_of(on):
        return on
    raise MissingError(
        f"{label} is not known to be this computer, so nothing runs on it; run on -m host, or, to predict with its numbers, "
        f'on a copy: `pysim machines show {label} --toml > mine.toml`, with name = "mine" in it'
    )


# This computer's GPU


def any_machine(name: str | Machine | Gpu) -> Machine | Gpu:
    """A CPU or GPU by its shipped name or by the path of a .toml file; "host" and "cuda" are this computer's, detected."""
    if not isinstance(name, str):
        return load_any(name)
    return detect() if name == "host" else gpu_here() if name == CUDA else load_any(name)


def runnable_any(name: str | Machine | Gpu) -> Machine | Gpu:
    """As `runnable`, GPUs included: "cuda", or a GPU's machine where this computer's GPU is that one.

    Raises MissingError where library, driver or device are not here, or the GPU here is another one.
    """
    if isinstance(name, Machine) or (isinstance(name, str) and name == "host"):
        return runnable(name)
    on = any_machine(name)
    if isinstance(on, Machine):
        return runnable(name)  # type: ignore[arg-type]  # a str here
    try:
        here = cuda.devices()[0]
    except MissingError as error:
        raise MissingError(f"{on.name} is a GPU, and {error}") from None
    if _is(here, on):
        return on
    raise MissingError(
        f"the GPU here is {here.name}, capability {here.capability / 10}, {here.sms} SMs, {here.l2_bytes >> 20} MiB of L2; {on.name} has "
        f"{on.capability}, {on.sms.value} SMs and {on.l2_bytes.value >> 20} MiB: run on -m cuda, whatever GPU is here"
    )


def _is(device: cuda.Device, gpu: Gpu) -> bool:
    """Whether the machine is this device's model. An H100 has as many SMs as an H200, but less L2."""
    return (device.capability, device.sms, device.l2_bytes) == (gpu.capability_number, gpu.sms.value, gpu.l2_bytes.value)


def gpu_here() -> Gpu:
    """The machine "cuda": the shipped machine of the first CUDA device, or else one made from the device's attributes.

    Other numbers then come from the shipped GPU of the nearest compute capability, with kind assumed. MissingError without library, driver
    or device.
    """
    return _machine_of(cuda.devices()[0])


@lru_cache(maxsize=8)
def _machine_of(device: cuda.Device) -> Gpu:
    for name in names():  # the file that has the device's name, before all are read
        if name.replace("-", " ") in device.name.lower() and isinstance(named := load_any(name), Gpu) and _is(device, named):
            return named
    shipped = [machine for name in names() if isinstance(machine := load_any(name), Gpu)]

    def distance(gpu: Gpu) -> tuple[int, ...]:
        apart = (gpu.capability_number, device.capability), (gpu.sms.value, device.sms), (gpu.l2_bytes.value, device.l2_bytes)
        return tuple(abs(one - other) for one, other in apart)

    nearest = min(shipped, key=distance)
    return nearest if _is(device, nearest) else _gpu_of(device, nearest)


def _gpu_of(device: cuda.Device, nearest: Gpu) -> Gpu:
    """A machine with the device's attributes. Other numbers are those of `nearest`, scaled by SMs and clock where they depend on these."""
    attributes = Source(
        title="CUDA device attributes of this computer",
        command="cudaGetDeviceProperties, cudaDeviceGetAttribute",
        versions=f"{device.name}, driver {device.driver}",
    )
    carried_over = Source(title=f"Taken over from {nearest.name}", note="the shipped GPU that is nearest, but another model")
    clock = device.clock_khz * 1e3 or nearest.frequency_hz.value  # a driver may report no clock
    scaled = clock / nearest.frequency_hz.value

    def measured(value: int) -> Count:
        return Count(value=value, kind="measured", source="device")

    def by(number: Number, factor: float) -> Number:
        return msgspec.structs.replace(number, value=number.value * factor)

    carried: Gpu = assumed(nearest, "carried_over")
    return msgspec.structs.replace(
        carried,
        name=CUDA,
        description=device.name,
        capability=f"{device.capability // 10}.{device.capability % 10}",
        sms=measured(device.sms),
        frequency_hz=Number(value=clock, kind="measured", source="device") if device.clock_khz else carried.frequency_hz,
        warps_per_sm=measured(device.threads_per_sm // 32),
        blocks_per_sm=measured(device.blocks_per_sm),
        registers_per_sm=measured(device.registers_per_sm),
        shared_bytes_per_sm=measured(device.shared_bytes_per_sm),
        shared_bytes_per_block=measured(device.shared_bytes_per_block),
        l2_bytes=measured(device.l2_bytes),
        l2_bytes_per_second=by(carried.l2_bytes_per_second, device.sms / nearest.sms.value * scaled),
        sustained_hz={name: by(number, scaled) for name, number in carried.sustained_hz.items()},
        sources={"device": attributes, "carried_over": carried_over},
    )


# What is kept


def check_kept() -> None:
    """Raises the error of `keep` if it would fail. For work that takes long before it."""
    kept = _kept()
    if kept is None or not can_keep(kept):
        raise MachineError(f"{kept.quiet if kept else 'the user cache'} {_NOT_KEPT}")


def keep(machine: Machine) -> Path:
    """Caches a machine called "host", which `detect` returns from now on; gives the file's path. MachineError if it cannot be written."""
    kept = _kept()
    if kept:
        remember(kept.quiet, to_toml(machine))
    if kept is None or recall(kept.quiet) != machine:
        where = kept.quiet if kept else "the user cache"
        raise MachineError(f"{where} {_NOT_KEPT}")
    return kept.quiet


def kept_source(key: str) -> bool:
    """Whether the cached machine of this computer has a source of this name."""
    kept = _kept()
    known = recall(kept.quiet) if kept else None
    return known is not None and key in known.sources
