# SPDX-License-Identifier: Apache-2.0
"""Measurements of a GPU's shared memory, multipliers and memories by `native/cuda/probe/probe.cu`, beside the model's numbers.

Shared memory: every warp of one block repeats one instruction (openCNN's Table 1), for each instruction and pattern of lanes. The model
counts wavefronts (`pysim/cachemodel/shared_memory/banks.py`), and shared memory serves one per cycle
(`pysim/cachemodel/gpu/waves.py`):

    predicted cycles per instruction = wavefronts x 1      ratio = measured with MAX_WARPS warps / predicted

A pattern whose ratio differs from 1 by more than TOLERANCE is marked. One warp alone is measured too, as in the paper, but not marked: it
also waits for its scheduler, which wavefronts do not explain. A load's latency is that of a chain, in which each load takes its address
from the one before.

Rates: multiply-adds per cycle of one SM and per second of the device; bytes read per second from L2 (a quarter of its size, repeatedly) and
from memory (a buffer much larger than L2). `merged` puts measurements into a machine file in place of assumed or measured numbers. It keeps
a vendor's numbers, and fitted ones, since the fit's other constants depend on them.

Worked number: LDS.128 of consecutive lanes is 4 wavefronts: 4 cycles, 32 x 16 / 4 = 128 bytes a cycle.
"""

from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.shared_memory.banks import LANES, WIDTHS, SharedMemory, instruction
from pysim.calibration.estimate import Estimate
from pysim.errors import MachineError, MissingError
from pysim.machine.gpu import Gpu
from pysim.machine.quantity import Number, Source, facts, with_sources
from pysim.runtime import cuda
from pysim.runtime.cuda import Device, DeviceArray

Floats = NDArray[np.float64]

ALL_LANES = (1 << LANES) - 1
ROW_BYTES = 128  # the most that one wavefront moves
WARPS = (1, 8, 16)  # of the block; where 16 are no faster than 8, both saturate shared memory
MAX_WARPS = WARPS[-1]
SAMPLES = 7
TOLERANCE = 0.1
REPEATABILITY = 0.02  # relative difference of two measurements of the same thing
FMA_DTYPES = ("f32", "f64", "f16", "s8")
MEMORY_BYTES, MEMORY_PASSES = 1 << 30, 8
L2_BYTES_READ = 1 << 34  # per launch: long beside the launch
SOURCE = "calibration"


class Pattern(NamedTuple):
    """The active lanes of a warp, as bits, and their byte offsets."""

    name: str
    offsets: tuple[int, ...]
    active: int = ALL_LANES

    @property
    def lanes(self) -> NDArray[np.bool_]:
        return (self.active >> np.arange(LANES) & 1).astype(np.bool_)


class SharedProbe(NamedTuple):
    """One measurement of shared memory, field for field `pysim_cuda_shared_probe`."""

    width_bytes: int
    is_store: bool
    dependent: bool
    warps: int
    active: int
    offsets: tuple[int, ...]


class Probes(Protocol):
    """The device's measurements: one number for each launch."""

    def shared(self, probe: SharedProbe) -> Floats:
        """Cycles of the SM for each instruction of all warps."""
        ...

    def fma(self, dtype: str) -> tuple[Floats, Floats]:
        """Multiply-adds of one SM in a cycle, and of the device in a second."""
        ...

    def read(self, nbytes: int, passes: int) -> Floats:
        """Bytes a second of a buffer that is read `passes` times."""
        ...


class Figure(msgspec.Struct, frozen=True):
    """Median, minimum and maximum over the launches."""

    median: float
    low: float
    high: float


class SharedRow(msgspec.Struct, frozen=True):
    """One instruction in one pattern: cycles per instruction by the number of warps, and of a chain of loads.

    `bytes_per_cycle`: bytes of all active lanes, with MAX_WARPS warps; `differs`: `ratio` is out of tolerance.
    """

    instruction: str
    pattern: str
    active_lanes: int
    wavefronts: int
    predicted_cycles: float
    cycles: dict[int, Figure]
    latency_cycles: Figure | None
    bytes_per_cycle: float
    ratio: float
    differs: bool


class Rate(msgspec.Struct, frozen=True):
    """A number of the machine file and its measurement; `kept`: why the file's number stays, if it does."""

    path: str
    file_value: float
    file_kind: str
    measured: Figure
    kept: str | None


class Calibration(msgspec.Struct, frozen=True):
    """All measurements of a machine's device.

    `load_cycles`, `store_cycles`: cycles of a wavefront, medians over patterns; `unsaturated`: rows in which MAX_WARPS warps were faster
    than half as many, so that they may not saturate shared memory.
    """

    machine: str
    device: Device
    samples: int
    tolerance: float
    load_cycles: float
    store_cycles: float
    unsaturated: int
    shared: tuple[SharedRow, ...]
    rates: tuple[Rate, ...]


def patterns(width: int) -> tuple[Pattern, ...]:
    """The patterns of an access of `width` bytes (4, 8 or 16), all within 4096 bytes.

    In an n-way conflict lane T is at place n T, so that n lanes of a group (of 32, 16 or 8) access different words of one bank.
    """
    lane = np.arange(LANES)

    def at(name: str, places: NDArray[np.int64], active: int = ALL_LANES) -> Pattern:
        return Pattern(name, tuple((places * width).tolist()), active)

    ways = [n for n in (2, 4, 8, 16, 32) if n <= ROW_BYTES // width]
    return (
        at("consecutive", lane),
        at("lanes 0-15", lane, 0x0000FFFF),
        at("even lanes", lane, 0x55555555),
        at("lanes 0-7, 16-23", lane, 0x00FF00FF),  # of the stores of Yan et al.'s Winograd kernel
        at("broadcast", 0 * lane),
        at("T, T^1 alike", lane // 2),
        at("T, T^2 alike", lane % 2 + 2 * (lane // 4)),
        *(at(f"{n}-way conflict", n * lane) for n in ways),
    )


def calibrate(gpu: Gpu, device: Device, probes: Probes) -> Calibration:
    """Measure `device` for the machine file `gpu`. MachineError where a measurement is not positive and finite."""
    memory = SharedMemory(rule=gpu.shared_rule)
    rows = [_row(memory, width, store, pattern, probes) for store in (False, True) for width in WIDTHS for pattern in patterns(width)]

    def for_each_wavefront(kind: str) -> float:
        return float(np.median([row.ratio for row in rows if row.instruction.startswith(kind)]))

    return Calibration(
        machine=gpu.name,
        device=device,
        samples=SAMPLES,
        tolerance=TOLERANCE,
        load_cycles=for_each_wavefront("LDS"),
        store_cycles=for_each_wavefront("STS"),
        unsaturated=sum(row.cycles[MAX_WARPS].median < (1 - REPEATABILITY) * row.cycles[WARPS[-2]].median for row in rows),
        shared=tuple(rows),
        rates=tuple(_rates(gpu, device, probes)),
    )


def _row(memory: SharedMemory, width: int, store: bool, pattern: Pattern, probes: Probes) -> SharedRow:
    name = f"{instruction(width, store)} {pattern.name}"
    wavefronts = memory.wavefronts(pattern.offsets, width, store, pattern.lanes).total

    def cycles(warps: int, dependent: bool = False) -> Figure:
        return _figure(probes.shared(SharedProbe(width, store, dependent, warps, pattern.active, pattern.offsets)), name)

    by_warps = {warps: cycles(warps) for warps in WARPS}
    busy, active = by_warps[MAX_WARPS].median, pattern.active.bit_count()
    return SharedRow(
        instruction=instruction(width, store),
        pattern=pattern.name,
        active_lanes=active,
        wavefronts=wavefronts,
        predicted_cycles=float(wavefronts),
        cycles=by_warps,
        latency_cycles=None if store else cycles(1, dependent=True),
        bytes_per_cycle=active * width / busy,
        ratio=busy / wavefronts,
        differs=abs(busy / wavefronts - 1) > TOLERANCE,
    )


def _rates(gpu: Gpu, device: Device, probes: Probes) -> list[Rate]:
    """The machine file's numbers that probes measure."""
    known = dict(facts(gpu))
    rates = []

    def add(path: str, values: Floats) -> Rate:
        fact = known[path]
        assert isinstance(fact, Number)
        rate = Rate(path, fact.value, fact.kind, _figure(values, path), _kept(fact.kind))
        rates.append(rate)
        return rate

    for dtype in FMA_DTYPES:
        if dtype not in gpu.fma_per_cycle:
            continue
        per_cycle, per_second = probes.fma(dtype)
        rate = add(f"fma_per_cycle.{dtype}", per_cycle)
        if dtype in gpu.sustained_hz:  # divided by the rate per cycle of the merged file
            add(f"sustained_hz.{dtype}", per_second / (device.sms * (rate.file_value if rate.kept else rate.measured.median)))
    l2 = device.l2_bytes // 4 // ROW_BYTES * ROW_BYTES
    add("l2_bytes_per_second", probes.read(l2, max(1, L2_BYTES_READ // l2)))
    beyond = min(max(MEMORY_BYTES, 8 * device.l2_bytes), device.memory_bytes // 4) // ROW_BYTES * ROW_BYTES
    add("memory_bytes_per_second", probes.read(beyond, MEMORY_PASSES))
    return rates


def _kept(kind: str) -> str | None:
    """Why a measurement does not replace a number of this kind; None if it does."""
    if kind in ("assumed", "measured"):
        return None
    return "fitted together with others" if kind == "fitted" else f"the {kind} states it"


def _figure(values: Floats, what: str) -> Figure:
    if not (len(values) and np.isfinite(values).all() and (values > 0).all()):
        given = ", ".join(f"{value:g}" for value in values) or "nothing"
        raise MachineError(f"the probe of {what} measured {given}; it should be finite and greater than 0: calibrate again")
    return Figure(float(np.median(values)), float(values.min()), float(values.max()))


def merged(gpu: Gpu, calibration: Calibration, name: str | None = None) -> Gpu:
    """The machine, called `name`, with measurements in place of numbers assumed or measured before; the error is half the range."""
    device = calibration.device
    numbers = {
        rate.path: Estimate(rate.measured.median, (rate.measured.high - rate.measured.low) / 2).number("measured", SOURCE)
        for rate in calibration.rates
        if rate.kept is None
    }
    fields: dict[str, Any] = {path: number for path, number in numbers.items() if "." not in path}
    for table in ("fma_per_cycle", "sustained_hz"):
        own = {path.partition(".")[2]: number for path, number in numbers.items() if path.startswith(f"{table}.")}
        fields[table] = getattr(gpu, table) | own
    source = Source(
        title=f"pysim's probes on an {device.name}",
        command=f"pysim machines calibrate -m {gpu.name}",
        versions=f"{device.name}, driver for CUDA {device.driver}, CUDA {device.runtime}",
    )
    machine: Gpu = with_sources(msgspec.structs.replace(gpu, name=name or gpu.name, **fields), gpu.sources | {SOURCE: source})
    return machine


class DeviceProbes:
    """The probes of the CUDA library, on the current device. MissingError without library, driver or device."""

    def __init__(self) -> None:
        ffi, lib = cuda.library()
        cuda.devices()
        if not hasattr(lib, "pysim_cuda_probe_shared"):
            raise MissingError("the CUDA library is older than its probes: reinstall the package with `pip install .`")
        self._scratch = DeviceArray((int(lib.PYSIM_CUDA_PROBE_BYTES),), "u8")
        self._at = ffi.cast("void *", self._scratch.pointer)

    def shared(self, probe: SharedProbe) -> Floats:
        ffi, lib = cuda.library()
        cycles, into = _results(ffi)
        cuda.check(lib.pysim_cuda_probe_shared(ffi.new("pysim_cuda_shared_probe *", probe._asdict()), self._at, SAMPLES, into, ffi.NULL))
        return cycles

    def fma(self, dtype: str) -> tuple[Floats, Floats]:
        ffi, lib = cuda.library()
        (per_cycle, first), (per_second, second) = _results(ffi), _results(ffi)
        cuda.check(lib.pysim_cuda_probe_fma(cuda.dtype_code(dtype), self._at, SAMPLES, first, second, ffi.NULL))
        return per_cycle, per_second

    def read(self, nbytes: int, passes: int) -> Floats:
        ffi, lib = cuda.library()
        rate, into = _results(ffi)
        buffer = DeviceArray((nbytes,), "u8")
        cuda.check(lib.pysim_cuda_probe_read(ffi.cast("void *", buffer.pointer), nbytes, passes, self._at, SAMPLES, into, ffi.NULL))
        return rate


def _results(ffi: Any) -> tuple[Floats, Any]:
    """An array for one number of each launch, and its C pointer."""
    values = np.full(SAMPLES, np.nan)
    return values, ffi.cast("double *", values.ctypes.data)
