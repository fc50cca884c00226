# SPDX-License-Identifier: Apache-2.0
"""The machine "host": what this computer is, read from Linux and measured with the native probes.

    geometry                            sysfs: level, sets, ways, line, who shares it; without sysfs, `getconf -a`
    clock, multiply-adds, bandwidths    measured: rate of a probe / clock, one core, well under a second in all
    totals of what cores share          measured: all cores at once, each in its part of the buffer
    latencies, loads, stores, overlap   of the shipped machine of the same microarchitecture, with kind and source, or
                                        of the nearest one, and then of kind assumed

A level is measured with a buffer that lies well inside it and well outside the level before: the geometric mean of both
sizes (half the size for L1); memory with four times the last level, between 64 and 512 MiB. Geometry is recorded as
reported, though a virtual machine may share its last level with strangers.

Worked number: L1 of 32 KiB and L2 of 1 MiB are measured with 16 KiB and sqrt(32 KiB x 1 MiB) = 181 KiB; 117 GB/s at
3.66 GHz is 32 bytes a cycle.
"""

import hashlib
import json
import math
import platform
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from pysim.calibration.linux import BY_HAND, CPUINFO, SYSFS, Cpu, Geometry, core_count, cpu_count, getconf, read_caches, read_cpu
from pysim.calibration.relatives import Relative, relative
from pysim.errors import MachineError, MissingError
from pysim.machine.cpu import Core, Csa, Level, Machine, Memory, OfType, Unit
from pysim.machine.gpu import Gpu, GpuModel
from pysim.machine.load import load, load_any, loads, names
from pysim.machine.quantity import Count, Number, Source, facts
from pysim.machine.write import to_toml
from pysim.registry.cpu import kernels
from pysim.runtime import cuda
from pysim.runtime.cpu import Executor
from pysim.runtime.emulated import executor_for, targets_of
from pysim.runtime.foreign import user_cache

CUDA = "cuda"  # the name of this computer's GPU
PROBE_SECONDS = 0.02
CLOCK_READINGS = 5
_PAGE_BYTES = 4096
_CACHE_VERSION = 8  # raised when a probe or this file measures something else than before


_OPTIONAL = ("scattered_line_cycles", "fork_join_cycles", "fork_join_thread_cycles")  # of a core
_detecting = threading.Lock()
Place = TypeVar("Place", Level, Memory)


class Probes(Protocol):
    """What is asked of the native library; `pysim.runtime.cpu` is one."""

    def available_kernels(self) -> frozenset[str]: ...
    def probe_clock(self) -> float: ...
    def probe_fma(self, target: str, dtype: str) -> float: ...
    def probe_read(self, nbytes: int, seconds: float) -> float: ...
    def probe_write(self, nbytes: int, seconds: float) -> float: ...


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

    Raises MachineError where Linux does not tell the cache geometry or a probe measures nonsense, MissingError where
    there is no native library. A cache file that does not hold is measured anew; that it cannot be written is no error.
    """
    cpu = read_cpu(cpuinfo)
    caches = read_caches(sysfs, run_getconf)
    cache = _cache_file(cpu, caches, cache_dir)
    with _detecting:  # threads that measure at once would measure one another
        if cached and (known := _recall(cache)):
            return known
        if probes is None:
            from pysim.runtime import cpu as runtime

            probes = runtime
        text = to_toml(_measure(cpu, caches, core_count(sysfs), probes))
        machine = loads(text, "host")
        assert isinstance(machine, Machine)
        _remember(cache, text)
        return machine


def machine(name: str | Machine) -> Machine:
    """A CPU by its shipped name, by the path of a .toml file, or "host": this computer, detected once and remembered."""
    return name if isinstance(name, Machine) else load(name, detect)


def executor(on: Machine | Gpu) -> Executor:
    """What runs the plans of a machine here: this CPU, or an emulator of one that has what this CPU lacks."""
    return executor_for(on)


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
    if (emulator := executor(on)).kind == "emulated":
        emulator.library()
    if not shipped or targets_of(on):
        return on
    raise MissingError(
        f"{label} is not known to be this computer, so nothing is timed on it; run on -m host, or, to predict with its numbers, "
        f'on a copy: `pysim machines show {label} --toml > mine.toml`, with name = "mine" in it'
    )


# This computer's GPU


def any_machine(name: str | Machine | Gpu) -> Machine | Gpu:
    """A CPU or GPU by its shipped name or by the path of a .toml file; "host" and "cuda" are this computer's, detected."""
    if not isinstance(name, str):
        return name
    return detect() if name == "host" else gpu_here() if name == CUDA else load_any(name)


def runnable_any(name: str | Machine | Gpu) -> Machine | Gpu:
    """As `runnable`, GPUs included: "cuda", or a GPU's machine where this computer's GPU is that one.

    Raises MissingError where library, driver or device are not here, or the GPU here is another one.
    """
    if isinstance(name, Machine) or name == "host":
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
    """Whether a machine is of this device's model: an H100 has the SMs of an H200, and less L2."""
    return (device.capability, device.sms, device.l2_bytes) == (gpu.capability_number, gpu.sms.value, gpu.l2_bytes.value)


def gpu_here() -> Gpu:
    """The machine "cuda": the shipped machine that the first CUDA device is, or one made of what CUDA says of it.

    What CUDA does not say is then taken from the shipped GPU of the nearest capability, with kind assumed. Raises MissingError without
    library, driver or device.
    """
    device = cuda.devices()[0]
    shipped = [machine for name in names() if isinstance(machine := load_any(name), Gpu)]

    def distance(gpu: Gpu) -> tuple[int, ...]:
        apart = (gpu.capability_number, device.capability), (gpu.sms.value, device.sms), (gpu.l2_bytes.value, device.l2_bytes)
        return tuple(abs(one - other) for one, other in apart)

    nearest = min(shipped, key=distance)
    return nearest if _is(device, nearest) else _gpu_of(device, nearest)


def _gpu_of(device: cuda.Device, nearest: Gpu) -> Gpu:
    """A machine of CUDA's attributes; the others are those of the nearest shipped one, by SM or by clock where they scale so."""
    told = Source(
        title="CUDA device attributes of this computer",
        command="cudaGetDeviceProperties, cudaDeviceGetAttribute",
        versions=f"{device.name}, driver {device.driver}",
    )
    kin = Source(title=f"Taken over from {nearest.name}", note="the shipped GPU of the nearest capability, but another one")
    clock, share = device.clock_khz * 1e3, device.sms / nearest.sms.value

    def measured(value: int) -> Count:
        return Count(value=value, kind="measured", source="device")

    def assumed(number: Number, factor: float = 1.0) -> Number:
        return Number(value=number.value * factor, kind="assumed", source="kin")

    def all_assumed(numbers: dict[str, Number]) -> dict[str, Number]:
        return {name: assumed(number) for name, number in numbers.items()}

    def taken(one: Any) -> Any:
        return msgspec.structs.replace(one, **{field: assumed(getattr(one, field)) for field in one.__struct_fields__})

    of = nearest.model
    tables = {
        "families": {name: taken(family) for name, family in of.families.items()},
        "passes": taken(of.passes),
        "direct": taken(of.direct),
    }
    numbers = {name: assumed(getattr(of, name)) for name in GpuModel.__struct_fields__ if name not in tables}
    model = msgspec.structs.replace(of, **tables, **numbers)
    scaled = clock / nearest.frequency_hz.value
    return Gpu(
        schema=1,
        name=CUDA,
        description=device.name,
        capability=f"{device.capability // 10}.{device.capability % 10}",
        sms=measured(device.sms),
        frequency_hz=Number(value=clock, kind="measured", source="device"),
        warps_per_sm=measured(device.threads_per_sm // 32),
        blocks_per_sm=measured(device.blocks_per_sm),
        registers_per_sm=measured(device.registers_per_sm),
        shared_bytes_per_sm=measured(device.shared_bytes_per_sm),
        shared_bytes_per_block=measured(device.shared_bytes_per_block),
        shared_banks=Count(value=nearest.shared_banks.value, kind="assumed", source="kin"),
        shared_rule=nearest.shared_rule,
        l1_bytes=Count(value=nearest.l1_bytes.value, kind="assumed", source="kin"),
        l1_latency_cycles=assumed(nearest.l1_latency_cycles),
        l2_bytes=measured(device.l2_bytes),
        l2_bytes_per_second=assumed(nearest.l2_bytes_per_second, share * scaled),
        memory_bytes_per_second=assumed(nearest.memory_bytes_per_second),
        l2_latency_cycles=assumed(nearest.l2_latency_cycles),
        memory_latency_cycles=assumed(nearest.memory_latency_cycles),
        port_bytes_per_cycle=assumed(nearest.port_bytes_per_cycle),
        memory_port_bytes_per_cycle=assumed(nearest.memory_port_bytes_per_cycle),
        schedulers_per_sm=Count(value=nearest.schedulers_per_sm.value, kind="assumed", source="kin"),
        fma_per_cycle=all_assumed(nearest.fma_per_cycle),
        sustained_hz={name: assumed(number, scaled) for name, number in nearest.sustained_hz.items()},
        model=model,
        sources={"device": told, "kin": kin},
    )


# What the probes and the shipped machines say


def _measure(cpu: Cpu, caches: list[Geometry], cores: int, probes: Probes) -> Machine:
    kin = relative(cpu)
    clock = max(_sane(probes.probe_clock(), "clock", "Hz") for _ in range(CLOCK_READINGS))  # one that was disturbed is too low

    def rate(value: float, what: str) -> Number:
        return Number(value=_sane(value, what, "a second") / clock, kind="measured", source="host_probes")

    def stream(nbytes: int, what: str) -> tuple[Number, Number]:
        read, write = probes.probe_read(nbytes, PROBE_SECONDS), probes.probe_write(nbytes, PROBE_SECONDS)
        return rate(read, f"{what} read"), rate(write, f"{what} write")

    targets = sorted({name.rpartition("__")[2] for name in probes.available_kernels()})
    if not targets:
        raise MachineError("the native library has no kernel that this CPU can run; reinstall it with `pip install .`")
    units = [_unit(target, rate(probes.probe_fma(target, "f32"), f"{target} multiply-add"), kin) for target in targets]

    def total(place: Place, nbytes: int, what: str) -> Place:
        """With what all cores get together, which is no less than one gets alone."""
        if cores == 1:
            return place
        read = rate(_all_at_once(probes.probe_read, nbytes // cores, cores), what)
        write = rate(_all_at_once(probes.probe_write, nbytes // cores, cores), what)
        return msgspec.structs.replace(
            place,
            total_read_bytes_per_cycle=max(read, place.read_bytes_per_cycle, key=_value),
            total_write_bytes_per_cycle=max(write, place.write_bytes_per_cycle, key=_value),
        )

    levels = []
    for geometry, nbytes in zip(caches, footprints([one.size_bytes for one in caches]), strict=True):
        level = _level(geometry, caches[0], stream(nbytes, f"L{geometry.level}"), kin)
        levels.append(total(level, nbytes, f"{level.name} of all cores") if level.shared else level)
    outside = memory_footprint(caches[-1].size_bytes)
    read, write = stream(outside, "memory")
    latency = _inherit(kin.machine.memory.latency_cycles, kin)
    memory = Memory(latency_cycles=latency, read_bytes_per_cycle=read, write_bytes_per_cycle=write)
    memory = total(memory, outside, "memory of all cores")
    core = Core(
        name=cpu.name,
        frequency_hz=Number(value=clock, kind="measured", source="host_probes"),
        call_cycles=_inherit(kin.machine.core.call_cycles, kin),
        pack_call_cycles=_inherit(kin.machine.core.pack_call_cycles, kin),
        pack_cycles=_inherit(kin.machine.core.pack_cycles, kin),
        pack_line_cycles=_inherit(kin.machine.core.pack_line_cycles, kin),
        store_run_cycles=_inherit(kin.machine.core.store_run_cycles, kin),
        prefetch_streams=_inherit(kin.machine.core.prefetch_streams, kin),
        overlap=_inherit(kin.machine.core.overlap, kin),
        **{name: _inherit(number, kin) for name in _OPTIONAL if (number := getattr(kin.machine.core, name))},
        units=tuple(units),
    )
    return _with_sources(
        Machine(
            schema=1,
            name="host",
            description=f"{cpu.name}, as detected on {platform.system()} {platform.release()}",
            cores=cores,
            source="host_system",
            core=core,
            levels=tuple(levels),
            memory=memory,
            csa=_csa(tuple(levels), memory, kin),
            sources={},
        ),
        kin,
    )


def _value(number: Number) -> float:
    return number.value


def _all_at_once(probe: Callable[[int, float], float], nbytes: int, cores: int) -> float:
    """What so many cores get together; each probe begins when all are there."""
    ready = threading.Barrier(cores)

    def one(_: int) -> float:
        ready.wait()
        return probe(max(_PAGE_BYTES, nbytes // _PAGE_BYTES * _PAGE_BYTES), PROBE_SECONDS)

    with ThreadPoolExecutor(cores) as pool:
        return sum(pool.map(one, range(cores)))


def _sane(value: float, what: str, unit: str) -> float:
    if not (math.isfinite(value) and value > 0):
        right = "it should be finite and greater than 0; detect again"
        raise MachineError(f"the {what} probe measured {value} {unit}; {right}")
    return value


def footprints(level_bytes: Sequence[int]) -> list[int]:
    """Sizes of buffers that live in each level: inside it, outside the one before."""
    sizes = [level_bytes[0] // 2, *(math.isqrt(inner * outer) for inner, outer in pairwise(level_bytes))]
    return [max(1, size // _PAGE_BYTES) * _PAGE_BYTES for size in sizes]


def memory_footprint(last_level_bytes: int) -> int:
    """Size of a buffer that lives in memory."""
    return min(max(4 * last_level_bytes, 64 << 20), 512 << 20)


def _inherit(number: Number, kin: Relative) -> Number:
    """A number of the shipped machine, of kind assumed where that is another microarchitecture."""
    return number if kin.same else Number(value=number.value, kind="assumed", source=_taken_from(kin.machine))


def _taken_from(machine: Machine) -> str:
    return f"host_from_{machine.name}"


def _unit(target: str, fma_per_cycle: Number, kin: Relative) -> Unit:
    """The unit of the relative, or of any shipped machine that has it, with the measured multiply-add rate."""
    unit = kin.machine.unit(target)
    if unit is None:
        kin = Relative(next((m for m in _shipped_cpus() if m.unit(target)), kin.machine), False)
        unit = kin.machine.unit(target)
    if unit is None:
        raise MachineError(f"no shipped machine describes the target {target}, so its vectors are unknown. {BY_HAND}")
    return Unit(
        target=target,
        vector_bytes=unit.vector_bytes,
        kind=unit.kind if kin.same else "assumed",
        source=unit.source if kin.same else _taken_from(kin.machine),
        fma_per_cycle=fma_per_cycle,
        fma_latency_cycles=_inherit(unit.fma_latency_cycles, kin),
        loads_per_cycle=_inherit(unit.loads_per_cycle, kin),
        stores_per_cycle=_inherit(unit.stores_per_cycle, kin),
        types=tuple(OfType(name=one.name, fma_per_cycle=_inherit(one.fma_per_cycle, kin)) for one in unit.types),
    )


def _shipped_cpus() -> list[Machine]:
    return [machine for name in names() if isinstance(machine := load_any(name), Machine)]


def _level(geometry: Geometry, first: Geometry, rates: tuple[Number, Number], kin: Relative) -> Level:
    known = kin.machine.levels[min(geometry.level, len(kin.machine.levels)) - 1]
    return Level(
        name=f"L{geometry.level}",
        sets=geometry.sets,
        ways=geometry.ways,
        line_bytes=geometry.line_bytes,
        kind="measured",
        source="host_system",
        shared=cpu_count(geometry.cpus) > cpu_count(first.cpus),  # hardware threads of one core share its L1
        latency_cycles=_inherit(known.latency_cycles, kin),
        read_bytes_per_cycle=rates[0],
        write_bytes_per_cycle=rates[1],
    )


def _csa(levels: tuple[Level, ...], memory: Memory, kin: Relative) -> Csa | None:
    """SConv's view of this machine: the relative's micro-kernel, these sizes; None without three levels."""
    if len(levels) < 3 or kin.machine.csa is None:
        return None
    shape = kin.machine.csa
    return Csa(
        windows=shape.windows,
        filters=shape.filters,
        line_bytes=levels[0].line_bytes,
        l1_bytes=levels[0].size_bytes,
        l2_bytes=levels[1].size_bytes,
        l3_bytes=levels[2].size_bytes,
        alpha=shape.alpha,
        kind="assumed",
        source="host_csa",
        l2_latency_cycles=levels[1].latency_cycles,
        l3_latency_cycles=levels[2].latency_cycles,
        memory_latency_cycles=memory.latency_cycles,
    )


def _with_sources(machine: Machine, kin: Relative) -> Machine:
    """The machine with the sources that its numbers name, and no others."""
    here = f"{platform.system()} {platform.release()}, {platform.machine()}"
    known = kin.machine.sources | {
        "host_system": Source(title="Cache geometry and cores as Linux reports them", file=str(SYSFS), versions=here),
        "host_probes": Source(title="pysim's probes, one core", command="pysim machines detect", versions=here),
        "host_csa": Source(
            title="SConv's model on this machine",
            note=f"micro-kernel and fill share of {kin.machine.name}, sizes and latencies of this machine",
        ),
    }
    for other in _shipped_cpus():
        note = f"{other.name} is the nearest shipped machine that has it, but another microarchitecture"
        known[_taken_from(other)] = Source(title=f"Taken over from {other.name}", note=note)
    used = {machine.source} | {fact.source for _, fact in facts(machine)}
    return msgspec.structs.replace(machine, sources={key: known[key] for key in known if key in used})


# The result, kept


def keep(machine: Machine) -> Path:
    """Makes a machine called "host" what `detect` finds here from now on, and says where it is kept. MachineError where it cannot be."""
    path, text = _cache_file(read_cpu(), read_caches(), None), to_toml(machine)
    _remember(path, text)
    if path is None or _recall(path) != machine:
        raise MachineError(f"{path or 'the user cache'} cannot be written, so this computer stays as detected; give a file: -o mine.toml")
    return path


def kept_source(key: str) -> bool:
    """Whether what is kept of this computer has a source of that name."""
    known = _recall(_cache_file(read_cpu(), read_caches(), None))
    return known is not None and key in known.sources


def _cache_file(cpu: Cpu, caches: list[Geometry], cache_dir: Path | None) -> Path | None:
    """host-<hash>.toml in the user's cache; None where the user has none."""
    cache_dir = cache_dir or user_cache()
    if cache_dir is None:
        return None
    targets = sorted({kernel.target for kernel in kernels()})
    key = json.dumps([_CACHE_VERSION, cpu, caches, platform.release(), targets])
    return cache_dir / f"host-{hashlib.sha256(key.encode()).hexdigest()[:16]}.toml"


def _recall(path: Path | None) -> Machine | None:
    if path is None:
        return None
    try:
        machine = loads(path.read_text(encoding="utf-8"), str(path))
    except (OSError, ValueError, MachineError):
        return None
    return machine if isinstance(machine, Machine) and machine.name == "host" else None


def _remember(path: Path | None, text: str) -> None:
    """Whole or not at all: another process may read it now."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            partial = Path(folder) / path.name
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
    except OSError:
        return
