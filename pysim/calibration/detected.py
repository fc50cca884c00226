# SPDX-License-Identifier: Apache-2.0
"""Detects this computer as a machine, from native probes, Linux and the shipped machines.

    geometry                            as Linux reports it
    clock, multiply-adds, bandwidths    measured: rate of a probe / clock, one core, well under a second in all
    total bandwidth of shared levels    measured: all cores at once, each in a buffer that fits its share and exceeds its private caches
    share of the last level             measured, where CPUs share it: what a core keeps of it beside neighbours
    rate of several CPUs at once        measured: multiply-adds of 2, 4, ... all CPUs, each over its own while the others are idle
    line from one CPU to another        measured: the median of readings spread over time
    latencies, loads, stores, overlap   from the shipped machine of the same microarchitecture, with kind and source, or from the most
                                        similar one, then of kind assumed

A cache level is measured with a buffer well inside it and well outside the previous level: the geometric mean of both sizes (half the size
for L1), at most MAX_GROWTH times the previous level, since neighbours of a virtual machine may use most of a large last level. Memory is
measured with four times the last level, between 64 and 512 MiB. Geometry is recorded as reported, but for the ways of a last level of
which others have the larger part: buffers of several sizes are read again and again, and a byte that hits takes the time of the level, a
byte that misses that of memory. The largest size times the share of its bytes that hit is what the core keeps; what others bring into the
level meanwhile is the shipped machine's.

Each rate is the best of trials spread over time, since disturbances make probes slower; that of a unit of tiles is that of their mean time:
on a part at its limit of power it has a third of its best rate for seconds, whatever its core and the next one do, and most of the time
(Emerald Rapids, 16 busy virtual CPUs: 0.31 at best, 0.09 in the median). Trials are repeated until the best two agree
within AGREEMENT; if they never do, the source says that the rate is not sure. A rate that differs from the shipped machine's by more than
MAX_RATIO is measured again, and replaced by that machine's if it stays so. If other processes used a share of LOADED or more meanwhile, the
machine's description and the sources of its numbers say so, and nothing is measured on all cores at once.

All that takes one to two seconds. A *brief* detection, where nothing can be kept, takes a tenth of that: the clock, and for a CPU whose
microarchitecture has a shipped file nothing else, so that all processes plan alike; for any other CPU one trial of each rate.

Worked numbers: L1 of 32 KiB and L2 of 1 MiB are measured with 16 KiB and sqrt(32 KiB x 1 MiB) = 181 KiB; 117 GB/s at
3.66 GHz is 32 bytes a cycle. Of 32 MiB of L3 (70 GB/s; memory 23) 12, 16, 24 and 32 MiB are read at 67, 53, 34 and 30 GB/s: 12, 13, 11 and
10 MiB are kept, 13 of them. Memory at 1.1 bytes a cycle is absurd of a Zen 5, whose file has 8.7: less than a quarter.
"""

import math
import mmap
import os
import platform
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import pairwise
from typing import NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np
from msgspec.structs import asdict

from pysim.calibration.linux import BY_HAND, SYSFS, Cpu, Geometry, cpu_count
from pysim.calibration.nearest_machine import Relative, relative
from pysim.errors import MachineError, NativeError
from pysim.machine.cpu import Core, Csa, Level, Machine, Memory, OfType, ShortCalls, Together, Unit
from pysim.machine.load import load_any, names
from pysim.machine.quantity import Number, Source, facts, with_sources
from pysim.measure.cpu_load import Watch
from pysim.measure.parallel_probe import all_at_once, one_by_one
from pysim.measure.speed import LINE_SECONDS, PLAIN
from pysim.registry.cpu import cpu_kernels, of_tiles, probed_dtype, results_of_multiply_add

PROBE_SECONDS = 0.02
TEAM_SECONDS = 0.08  # of all cores at once, which start up to 20 ms apart, since each makes its buffer first
CLOCK_TRIALS, TRIALS, PAUSE = 8, 3, 0.03  # at least; seconds between them
MAX_TRIALS, AGREEMENT = 8, 0.05  # of one rate; relative difference of its best two trials
CLOCK_READINGS = 3  # after a probe; the highest counts, because one that is read too low makes the rate too high
SHARE_TRIALS = 15  # a server's two CPUs got 0.67 and 0.81 of their rates alone for a moment, 0.97 and 0.98 over a minute
STEADY = 0.85  # least clock after a probe over that before; a lower reading was disturbed, since wide vectors slow cores down by less
LOADED = 0.1  # share of the processors used by others from which on probes are in doubt
# Total rate of all CPUs over that of as many cores, below which CPUs are hardware threads: those get half, cores at a reduced clock >= 0.7
MIN_CORE_SHARE = 0.65
LAST_SHARES = (1, 3 / 4, 5 / 8, 1 / 2, 3 / 8, 1 / 4, 1 / 8)  # of a shared last level: buffers that are read again and again
WHOLE = 0.75  # from which share on a last level is as reported: pages that meet in the same sets cost a tenth or more of a full one
# Largest ratio of a rate to the shipped machine's, of the same microarchitecture or not: shipped CPUs differ up to sixfold, in memory
MAX_RATIO = {True: 4.0, False: 8.0}
_ATTEMPTS = 3
_TAKEN_FROM = "host_from_"  # begins the source of a number of another machine
_PAGE_BYTES = 4096
MAX_GROWTH = 4  # dependent loads take 155 cycles in 8 MiB and 627 in 24, although 480 MiB of L3 are reported (Granite Rapids, virtual)
_OPTIONAL = (  # numbers of a core
    "run_start_share", "prefetch_line_cycles", "crowded_line_cycles", "fork_join_cycles",
    "fork_join_thread_cycles", "written_line_cycles", "transform_cycles", "tile_row_cycles", "deinterleave_instructions",
)  # fmt: skip
Place = TypeVar("Place", Level, Memory)


class Probes(Protocol):
    """The probes of the native library, as `pysim.runtime.cpu` has them."""

    def available_kernels(self) -> frozenset[str]: ...
    def probe_clock(self) -> float: ...
    def probe_fma(self, target: str, dtype: str) -> float: ...
    def probe_read(self, nbytes: int, seconds: float) -> float: ...
    def probe_write(self, nbytes: int, seconds: float) -> float: ...
    def probe_line_transfer(self, nbytes: int, line_bytes: int, seconds: float) -> float: ...


class Detected(NamedTuple):
    """A machine, and the share of the processors that other processes used meanwhile."""

    machine: Machine
    others: float
    brief: bool = False

    @property
    def loaded(self) -> bool:
        return self.others >= LOADED


def targets_of_kernels(available: Iterable[str]) -> frozenset[str]:
    """The instruction sets of these kernels."""
    return frozenset(name.rpartition("__")[2] for name in available)


def _targets(probes: Probes) -> list[str]:
    """The instruction sets of the kernels that run here; MachineError if there are none."""
    if targets := targets_of_kernels(probes.available_kernels()):
        return sorted(targets)
    limit = os.environ.get("PYSIM_MAX_TARGET")
    within = f" under PYSIM_MAX_TARGET={limit}, which you may unset" if limit else ""
    raise MachineError(f"the native library has no kernel that this CPU can run{within}; reinstall it with `pip install .`")


@lru_cache(maxsize=16)
def as_built(machine: Machine, available: frozenset[str]) -> Machine:
    """The machine with what the library has of each unit: one that was built for this CPU may lack kernels of channel blocks of
    narrower vectors. `available`: names of the kernels that run here; if there are none, nothing is known."""
    blocked = {row.target for row in cpu_kernels() if row.in_blocks}
    have = {row.target for row in cpu_kernels() if row.in_blocks and row.name in available}
    lacking = blocked - have if available else set()
    units = tuple(msgspec.structs.replace(unit, planes_alone=unit.target in lacking or None) for unit in machine.core.units)
    return msgspec.structs.replace(machine, core=msgspec.structs.replace(machine.core, units=units))


def measure(cpu: Cpu, caches: list[Geometry], cores: int, probes: Probes, brief: bool = False) -> Detected:
    """The machine "host". `brief`: in a tenth of the time, by what is shipped.

    MachineError where a probe measures nonsense, or no kernel runs here."""
    shipped = relative(cpu)
    targets = _targets(probes)
    alone = Watch()
    widest = max(targets, key=lambda one: (1.0 if brief else probes.probe_fma(one, probed_dtype(one))) * results_of_multiply_add(one))
    rates = _Rates(probes, shipped, widest, brief, of_tiles(targets))
    units = [_unit(target, rates, shipped) for target in targets]
    sizes = [*footprints([one.size_bytes for one in caches]), memory_footprint(caches[-1].size_bytes)]
    levels = [_level(one, caches[0], nbytes, rates, shipped) for one, nbytes in zip(caches, sizes, strict=False)]
    memory = _memory(sizes[-1], rates, shipped)
    levels[-1] = rates.kept(levels[-1], memory, shipped.machine.levels[-1].others_bytes_per_cycle if shipped.same else None)
    others, together = alone.load().share, dict[str, tuple[Together, ...]]()
    plain = PLAIN if PLAIN in targets else targets[0]
    team = Watch(cores)
    alone_here = cores > 1 and others < LOADED and not brief
    if alone_here:
        together, most = rates.together(cores, plain)
        cores = -(-cores // 2) if most < MIN_CORE_SHARE else cores
        together = {target: tuple(one for one in of if one.cpus <= cores) for target, of in together.items()}
    if alone_here and cores > 1:
        own = [levels[0].size_bytes, *(one.size_bytes for one in levels)]  # of the level before
        levels = [rates.totals(x, _share(of, x, cores), cores) if x.shared else x for of, x in zip(own, levels, strict=False)]
        memory = rates.totals(memory, sizes[-1] // cores, cores)
        others = max(others, team.load().share)
    line = rates.line_transfer(levels[0].line_bytes) if alone_here and cores > 1 and others < LOADED else None
    inherited = {name: _inherit(number, shipped) for name in _OPTIONAL if (number := getattr(shipped.machine.core, name))}
    core = Core(
        name=cpu.name,
        frequency_hz=rates.clock,
        call_cycles=_inherit(shipped.machine.core.call_cycles, shipped),
        pack_call_cycles=_inherit(shipped.machine.core.pack_call_cycles, shipped),
        pack_cycles=_inherit(shipped.machine.core.pack_cycles, shipped),
        pack_line_cycles=_inherit(shipped.machine.core.pack_line_cycles, shipped),
        store_run_cycles=_inherit(shipped.machine.core.store_run_cycles, shipped),
        prefetch_streams=_inherit(shipped.machine.core.prefetch_streams, shipped),
        overlap=_inherit(shipped.machine.core.overlap, shipped),
        **(inherited | ({"written_line_cycles": line} if line else {})),
        together=together.get(plain, ()),
        units=tuple(rates.usual(unit, together.get(unit.target)) for unit in units),
    )
    briefly = " briefly, since nothing can be kept" if brief else ""
    beside = f" beside other processes, which had {others:.0%} of it; detected again when it is quiet" if others >= LOADED else ""
    machine = Machine(
        schema=1,
        name="host",
        description=f"{cpu.name}, as detected{briefly} on {platform.system()} {platform.release()}{beside}",
        cores=cores,
        source="host_system",
        core=core,
        levels=tuple(levels),
        memory=memory,
        csa=_csa(tuple(levels), memory, shipped),
        sources={},
    )
    return Detected(_completed(machine, shipped, others, rates), others, brief)


class _Rates:
    """Measured rates per clock cycle. `target`: the unit with the highest multiply-add rate; `absurd`: rates that differed from the similar
    machine's by more than MAX_RATIO in every attempt; `unsure`: rates whose best trials disagree."""

    def __init__(self, probes: Probes, shipped: Relative, target: str, brief: bool = False, tiles: Collection[str] = ()) -> None:
        self.absurd, self.unsure = list[str](), list[str]()
        self._brief, self._known = brief, shipped.same and brief
        self._seconds: dict[str, list[float]] = {one: [] for one in tiles}  # of a multiply-add, whenever time passed
        self._probes, self._target, self._far = probes, target, MAX_RATIO[shipped.same]
        self._hertz = 1.0
        self.clock = self._take(self._clock_of_a_busy_core, "clock", shipped.machine.core.frequency_hz, trials=CLOCK_TRIALS, own_time=True)
        self._hertz = self.clock.value

    def _clock_of_a_busy_core(self) -> float:
        self._probes.probe_fma(self._target, "f32")
        return self._probes.probe_clock()

    def fma(self, target: str, known: Number) -> Number:
        if self._known:
            return known
        return self._take(lambda: self._probes.probe_fma(target, probed_dtype(target)), f"{target} multiply-add", known, TRIALS)

    def usual(self, unit: Unit, together: tuple[Together, ...] | None) -> Unit:
        """A unit of tiles at the median time of its multiply-adds, others as they are: on busy parts it has a fast and a slow state, for
        seconds each, so the best trial is not what a call meets; and one interruption, of milliseconds in a probe of as many, moves a
        mean as far as the slow state does, which the other units' best trials do not count. `together`: of its rate on several CPUs."""
        if unit.target in self._seconds and together is not None:
            unit = msgspec.structs.replace(unit, together=together)
        if self._brief or not (seconds := self._seconds.get(unit.target)) or unit.fma_per_cycle.kind != "measured":
            return unit
        share = min(1.0, 1 / (float(np.median(seconds)) * self._hertz * unit.fma_per_cycle.value))
        types = tuple(msgspec.structs.replace(one, fma_per_cycle=_slowed(one.fma_per_cycle, share)) for one in unit.types)
        return msgspec.structs.replace(unit, fma_per_cycle=_slowed(unit.fma_per_cycle, share), types=types)

    def together(self, cpus: int, plain: str) -> tuple[dict[str, tuple[Together, ...]], float]:
        """The share of their rates alone that 2, 4, ... all CPUs keep at once, in plain C, which any other thread on the core slows down,
        and in each unit of tiles: medians of trials spread over time. And the best share of the vector rate that all CPUs kept (0.5 for
        hardware threads shown as cores)."""
        found = {target: {count: list[tuple[float, float]]() for count in team_sizes(cpus)} for target in (plain, *self._seconds)}
        vectors = 0.0
        for _ in range(SHARE_TRIALS):
            self._pass(PAUSE)
            for target, of in found.items():
                for count, trials in of.items():
                    trials.append(self._shares(target, count))
            vectors = max(vectors, self._shares(self._target, cpus)[1])
        return {target: tuple(_team(count, trials) for count, trials in of.items()) for target, of in found.items()}, vectors

    def _shares(self, target: str, cpus: int) -> tuple[float, float]:
        return shares(partial(self._probes.probe_fma, target, probed_dtype(target)), cpus)

    def stream(self, nbytes: int, what: str, known: Level | Memory) -> tuple[Number, Number]:
        """Read and write rates of a buffer."""
        if self._known:
            return known.read_bytes_per_cycle, known.write_bytes_per_cycle
        how = (TRIALS, isinstance(known, Memory))
        read = self._take(lambda: self._probes.probe_read(nbytes, PROBE_SECONDS), f"{what} read", known.read_bytes_per_cycle, *how)
        write = self._take(lambda: self._probes.probe_write(nbytes, PROBE_SECONDS), f"{what} write", known.write_bytes_per_cycle, *how)
        return read, write

    def kept(self, last: Level, memory: Memory, others: Number | None) -> Level:
        """The last level with the ways that one core keeps of it, if that is less than WHOLE of them, and what others bring."""
        hit, miss = 1 / last.read_bytes_per_cycle.value, 1 / memory.read_bytes_per_cycle.value
        if self._brief or not last.shared or hit >= miss:
            return last
        most = 0.0
        for share in LAST_SHARES:
            size = max(_PAGE_BYTES, int(share * last.size_bytes) // _PAGE_BYTES * _PAGE_BYTES)
            rate = max(_sane(self._probes.probe_read(size, PROBE_SECONDS), "last level") for _ in range(TRIALS)) / self._hertz
            hits = min(1.0, max(0.0, (miss - 1 / rate) / (miss - hit)))
            most = max(most, share * hits)
            if hits >= STEADY:  # smaller buffers keep no more
                break
        if most >= WHOLE:
            return last
        return msgspec.structs.replace(last, ways=max(1, round(most * last.ways)), source="host_share", others_bytes_per_cycle=others)

    def line_transfer(self, line: int) -> Number | None:
        """Cycles of a line from one CPU to another: the median of trials spread over time; None if no second CPU was free."""
        found = list[float]()
        for _ in range(SHARE_TRIALS):
            self._pass(PAUSE)
            with suppress(NativeError):
                found.append(self._probes.probe_line_transfer(line, line, LINE_SECONDS) * self._hertz)
        return _measured(float(np.median(found))) if found else None

    def totals(self, place: Place, nbytes: int, cores: int) -> Place:
        """Adds the total rates of all cores, `nbytes` each: at least the rate of one core, at most that times the cores."""

        def total(probe: Callable[[int, float], float], alone: float) -> Number:
            size = max(_PAGE_BYTES, nbytes // _PAGE_BYTES * _PAGE_BYTES)
            value = _sane(sum(all_at_once(partial(probe, size, TEAM_SECONDS), cores)), "all cores") / self._hertz
            return _measured(min(max(value, alone), cores * alone))

        return msgspec.structs.replace(
            place,
            total_read_bytes_per_cycle=total(self._probes.probe_read, place.read_bytes_per_cycle.value),
            total_write_bytes_per_cycle=total(self._probes.probe_write, place.write_bytes_per_cycle.value),
        )

    def _take(self, probe: Callable[[], float], what: str, known: Number, trials: int, own_time: bool = False) -> Number:
        """The best of at least `trials`, more where the best two disagree. The rate is per cycle of the current clock, or of the highest
        one for probes that keep their own time. An implausible rate is replaced by the known number."""
        rates = [0.0]
        for trial in range(1, (2 if own_time else 1) + 1 if self._brief else MAX_TRIALS + 1):
            if trial > 1:
                self._pass(PAUSE)
            before, rate = self._clock_now(own_time), _sane(probe(), what)
            behind = max(self._clock_now(own_time) for _ in range(CLOCK_READINGS))
            rates.append(rate / (behind if behind > STEADY * before else before))  # a disturbed reading is too low
            *_, second, best = sorted(rates)
            agree, plausible = second >= (1 - AGREEMENT) * best, known.value / self._far <= best <= known.value * self._far
            if agree and trial >= (trials if plausible else max(trials, _ATTEMPTS)):
                break
        if not plausible:
            self.absurd.append(f"{what} {best:.3g}, there {known.value:.3g}")
            return Number(value=known.value, kind="assumed", source="host_absurd")
        if not agree and not self._brief:
            self.unsure.append(f"{what} {second:.3g} to {best:.3g}")
        return _measured(best)

    def _pass(self, seconds: float) -> None:
        """A busy wait: the core stays awake, and sleep would count as time that others used."""
        end = time.perf_counter() + seconds
        for target, spent in self._seconds.items():
            spent.append(1 / _sane(self._probes.probe_fma(target, probed_dtype(target)), target))
        while time.perf_counter() < end:
            self._probes.probe_fma(self._target, "f32")

    def _clock_now(self, own_time: bool) -> float:
        """Hz; the highest clock where the clock probe measured nonsense."""
        return self._hertz if own_time or self.clock.kind == "assumed" else self._probes.probe_clock()


def _team(cpus: int, trials: Sequence[tuple[float, float]]) -> Together:
    slowest, mean = np.median(trials, axis=0).tolist()
    return Together(cpus=cpus, slowest_share=_measured(slowest), mean_share=_measured(mean))


def _measured(value: float) -> Number:
    return Number(value=value, kind="measured", source="host_probes")


def team_sizes(cores: int) -> list[int]:
    """Powers of two below the number of cores, and all cores."""
    return [*(1 << bits for bits in range(1, cores.bit_length()) if 1 << bits < cores), *([cores] if cores > 1 else [])]


def _share(inner: int, level: Level, cores: int) -> int:
    """Bytes for one core that fit well inside its share of a level and exceed its private caches."""
    return math.isqrt(inner * max(2 * inner, level.size_bytes // cores))


def shares(multiply: Callable[[], float], cpus: int, allowed: Collection[int] | None = None) -> tuple[float, float]:
    """The slowest and the mean rate of `cpus` CPUs at once, each over its own rate just before, while the others were idle: another virtual
    machine on a CPU's core slows down both."""
    alone, together = one_by_one(multiply, cpus, allowed), all_at_once(multiply, cpus, allowed)
    kept = [min(1.0, rate / own) for own, rate in zip(alone, together, strict=True)]
    return min(kept), sum(kept) / cpus


def _sane(value: float, what: str) -> float:
    if not (math.isfinite(value) and value > 0):
        raise MachineError(f"the {what} probe measured {value} a second; it should be finite and greater than 0; detect again")
    return value


def footprints(level_bytes: Sequence[int]) -> list[int]:
    """Buffer sizes that reside in each level: inside it, outside the previous one."""
    sizes = [level_bytes[0] // 2, *(min(math.isqrt(inner * outer), MAX_GROWTH * inner) for inner, outer in pairwise(level_bytes))]
    return [max(1, size // _PAGE_BYTES) * _PAGE_BYTES for size in sizes]


def memory_footprint(last_level_bytes: int) -> int:
    """Size of a buffer that resides in memory."""
    return min(max(4 * last_level_bytes, 64 << 20), 512 << 20)


def _inherit(number: Number, shipped: Relative) -> Number:
    """A number of the similar machine; its kind is assumed where the microarchitecture differs."""
    return number if shipped.same else Number(value=number.value, kind="assumed", source=_taken_from(shipped.machine))


def _taken_from(machine: Machine) -> str:
    return _TAKEN_FROM + machine.name


def _unit(target: str, rates: _Rates, shipped: Relative) -> Unit:
    """The unit as the similar machine has it, or else any shipped machine, with the measured multiply-add rate."""
    unit = shipped.machine.unit(target)
    if unit is None:
        shipped = Relative(next((m for m in _shipped_cpus() if m.unit(target)), shipped.machine), False)
        unit = shipped.machine.unit(target)
    if unit is None:
        raise MachineError(f"no shipped machine describes the target {target}, so its vectors are unknown. {BY_HAND}")
    return Unit(
        target=target,
        vector_bytes=unit.vector_bytes,
        kind=unit.kind if shipped.same else "assumed",
        source=unit.source if shipped.same else _taken_from(shipped.machine),
        fma_per_cycle=rates.fma(target, unit.fma_per_cycle),
        fma_latency_cycles=_inherit(unit.fma_latency_cycles, shipped),
        loads_per_cycle=_inherit(unit.loads_per_cycle, shipped),
        stores_per_cycle=_inherit(unit.stores_per_cycle, shipped),
        tile_store_cycles=_inherit(unit.tile_store_cycles, shipped) if unit.tile_store_cycles else None,
        short_calls=unit.short_calls and ShortCalls(**{name: _inherit(one, shipped) for name, one in asdict(unit.short_calls).items()}),
        together=tuple(
            Together(cpus=one.cpus, slowest_share=_inherit(one.slowest_share, shipped), mean_share=_inherit(one.mean_share, shipped))
            for one in unit.together
        ),
        types=tuple(OfType(name=one.name, fma_per_cycle=_inherit(one.fma_per_cycle, shipped)) for one in unit.types),
    )


def _slowed(number: Number, share: float) -> Number:
    return msgspec.structs.replace(number, value=number.value * share)


def _shipped_cpus() -> list[Machine]:
    return [machine for name in names() if isinstance(machine := load_any(name), Machine)]


def _level(geometry: Geometry, first: Geometry, nbytes: int, rates: _Rates, shipped: Relative) -> Level:
    known = shipped.machine.levels[min(geometry.level, len(shipped.machine.levels)) - 1]
    read, write = rates.stream(nbytes, f"L{geometry.level}", known)
    return Level(
        name=f"L{geometry.level}",
        sets=geometry.sets,
        ways=geometry.ways,
        line_bytes=geometry.line_bytes,
        page_bytes=mmap.PAGESIZE if geometry.level == 2 else None,
        kind="measured",
        source="host_system",
        shared=cpu_count(geometry.cpus) > cpu_count(first.cpus),  # hardware threads of one core share its L1
        latency_cycles=_inherit(known.latency_cycles, shipped),
        read_bytes_per_cycle=read,
        write_bytes_per_cycle=write,
    )


def _memory(nbytes: int, rates: _Rates, shipped: Relative) -> Memory:
    known = shipped.machine.memory
    read, write = rates.stream(nbytes, "memory", known)
    return Memory(latency_cycles=_inherit(known.latency_cycles, shipped), read_bytes_per_cycle=read, write_bytes_per_cycle=write)


def _csa(levels: tuple[Level, ...], memory: Memory, shipped: Relative) -> Csa | None:
    """Parameters of the csa model: the similar machine's micro-kernel, this machine's sizes; None without three levels."""
    if len(levels) < 3 or shipped.machine.csa is None:
        return None
    shape = shipped.machine.csa
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


def _completed(machine: Machine, shipped: Relative, others: float, rates: _Rates) -> Machine:
    """The machine with the energies of its microarchitecture, and with exactly the sources that its numbers name."""
    if shipped.same:
        machine = msgspec.structs.replace(machine, energy=shipped.machine.energy)
    here = f"{platform.system()} {platform.release()}, {platform.machine()}"
    beside = f", beside other processes, which had {others:.0%} of it" if others >= LOADED else ""
    known = shipped.machine.sources | {
        "host_system": Source(title="Cache geometry, pages and cores as Linux reports them", file=str(SYSFS), versions=here),
        "host_probes": Source(
            title=f"pysim's probes, one core{beside}",
            command="pysim machines detect",
            versions=here,
            note=f"not sure, as the best trials differ: {'; '.join(rates.unsure)}" if rates.unsure else None,
        ),
        "host_share": Source(
            title=f"What one core keeps of the last level{beside}",
            command="pysim machines detect",
            versions=here,
            note="others, such as other virtual machines, have the rest of what Linux reports",
        ),
        "host_absurd": Source(
            title=f"Taken over from {shipped.machine.name}", note=f"implausible every time{beside}: {'; '.join(rates.absurd)}"
        ),
        "host_csa": Source(
            title="The csa model of this machine",
            note=f"micro-kernel and fill share of {shipped.machine.name}, sizes and latencies of this machine",
        ),
    }
    missing = {fact.source for _, fact in facts(machine)} - known.keys()
    for other in (key.removeprefix(_TAKEN_FROM) for key in sorted(missing)):
        note = f"{other} is the nearest shipped machine that has it, but another microarchitecture"
        known[_TAKEN_FROM + other] = Source(title=f"Taken over from {other}", note=note)
    completed: Machine = with_sources(machine, known)
    return completed
