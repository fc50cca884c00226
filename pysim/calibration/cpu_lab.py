# SPDX-License-Identifier: Apache-2.0
"""What calibration measures on this CPU: the native probes, and prepared, checked plans of a fixed set of layers."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from pysim import planner
from pysim.calibration.detected import shares, team_sizes
from pysim.calibration.linux import read_caches
from pysim.comparison.bench import Bench, bench_of
from pysim.comparison.peer_timings import checked
from pysim.errors import MachineError
from pysim.machine.cpu import Machine
from pysim.measure.clock import Call, CpuClock, interleave
from pysim.measure.cpu_load import Watch
from pysim.measure.parallel_probe import usable
from pysim.measure.speed import PLAIN
from pysim.problem.text import parse
from pysim.record.plan import Plan
from pysim.runtime import cpu

# Small layers, so that every round has time for all. Together they pack long and short runs, dense and strided, read in place, call
# micro-kernels often and write much. No layer here is in a built-in set.
SMALL = (
    "conv:mb1ic24ih20oc40kh3ph1",
    "conv:mb1ic72ih13oc88kh3ph1",
    "conv:mb1ic144ih9oc104kh3ph1",
    "conv:mb1ic20ih40oc36kh5ph2",
    "conv:mb1ic5ih70oc28kh7sh2ph3",
    "conv:mb1ic40ih30oc52kh3sh2ph1",
    "conv:mb1ic208ih10oc176kh1",
    "conv:mb1ic112ih24oc72kh1",
    "conv:mb1ic56ih22oc120kh1sh2",
    "conv:mb1ic36ih44oc200kh1",
    "conv:mb1ic12ih60oc150kh3ph1",
    "conv:mb1ic200ih8oc184kh3ph1",
    "gemm:180x220x140",
    "gemm:90x330x210",
)
# Layers in the sizes of networks, with operands from beyond L2
MIDDLE = (
    "conv:mb1ic60ih52oc72kh3ph1",
    "conv:mb1ic136ih26oc120kh3ph1",
    "conv:mb1ic250ih13oc240kh3ph1",
    "conv:mb1ic500ih8oc520kh3ph1",
    "conv:mb1ic60ih52oc240kh1",
    "conv:mb1ic240ih50oc136kh1",
    "conv:mb1ic480ih26oc120kh1",
    "conv:mb1ic980ih13oc250kh1",
)
# Layers with 3 to 45 MB of input, filters or output: they show how much a last level keeps from one call to the next
LARGE = (
    "conv:g72mb1ic72ih72oc72kh3ph1",
    "conv:g104mb1ic104ih80oc104kh5ph2",
    "conv:g144mb1ic144ih90oc144kh3ph1",
    "conv:g176mb2ic176ih90oc176kh3ph1",
    "conv:g176mb4ic176ih90oc176kh3ph1",
    "conv:mb1ic20ih72oc440kh1",
    "conv:mb2ic24ih70oc312kh1",
    "conv:mb1ic36ih88oc616kh1",
    "conv:mb1ic440ih7oc456kh3ph1",
    "gemm:44x2200x1900",
)
LAYERS = (*SMALL, *MIDDLE, *LARGE)
DIRECT_PLANS, TRANSFORMED_PLANS = 6, 2  # at most, of a layer: without and with transforms
MAX_SLOWDOWN = 1.6  # predicted time of a plan over that of the layer's best
CONSIDERED = 3000  # plans of a layer to choose from
SCALAR_BYTES = 16  # vector width that portable code may reach
SAMPLES, PROBE_SECONDS = 5, 0.01
EMPTY_REGION, REGION_CALLS = "gemm:16x512x2", 200  # a product of negligible work, to time a parallel region


class Measured(NamedTuple):
    """A plan, by its problem and its name."""

    problem: str
    name: str
    kernel: str


class Lab(Protocol):
    """The measurements of a CPU. `plans`: what `times` measures; `teams`: the thread counts for `fork_join`; `ways`: ways of the last level
    as the system reports them."""

    @property
    def plans(self) -> Sequence[Measured]: ...
    @property
    def ways(self) -> int: ...
    @property
    def teams(self) -> Sequence[int]: ...

    def clock(self) -> float:
        """Hz."""
        ...

    def fma(self, target: str, dtype: str) -> float:
        """Seconds per multiply-add instruction."""
        ...

    def read(self, nbytes: int) -> float:
        """Seconds per byte of a buffer of this size."""
        ...

    def write(self, nbytes: int) -> float:
        """Seconds per byte of a buffer of this size."""
        ...

    def latency(self, nbytes: int) -> float:
        """Seconds per dependent load in a buffer of this size."""
        ...

    def fork_join(self, threads: int) -> float:
        """Overhead of a parallel region in seconds."""
        ...

    def shares(self, threads: int) -> tuple[float, float]:
        """With this many CPUs multiplying at once: the slowest and the mean share of a CPU's own rate alone."""
        ...

    def times(self, problem: str) -> list[float]:
        """Seconds per call of each plan of a layer, in the order of `plans`."""
        ...

    def others(self) -> float:
        """CPUs that other processes used since the last call."""
        ...


class HostLab:
    """This computer. Create it before the calling thread is pinned, so that the other threads of a team may run elsewhere."""

    def __init__(self, on: Machine) -> None:
        self._line, last = on.levels[0].line_bytes, on.levels[-1]
        self.ways = max(last.ways, reported_bytes() // last.way_bytes)
        self._calls = {problem: _prepared(problem, on) for problem in LAYERS}
        self.plans = [Measured(problem, plan.name, plan.kernel) for problem, ready in self._calls.items() for plan, _ in ready.calls]
        self._allowed = usable()
        self.teams = team_sizes(min(len(self._allowed) or on.cores, on.cores))
        self._target = max(on.core.units, key=lambda unit: unit.vector_bytes).target
        self._regions = {threads: _region(on, threads) for threads in (1, *self.teams)}
        self._watch = Watch()

    def clock(self) -> float:
        cpu.probe_fma(self._target, "f32")  # the clock with wide vectors active, as in plans
        return cpu.probe_clock()

    def fma(self, target: str, dtype: str) -> float:
        return 1 / cpu.probe_fma(target, dtype)

    def read(self, nbytes: int) -> float:
        return 1 / cpu.probe_read(nbytes, PROBE_SECONDS)

    def write(self, nbytes: int) -> float:
        return 1 / cpu.probe_write(nbytes, PROBE_SECONDS)

    def latency(self, nbytes: int) -> float:
        return cpu.probe_latency(nbytes, self._line, PROBE_SECONDS)

    def fork_join(self, threads: int) -> float:
        found = interleave(
            {"one": self._regions[1], "all": self._regions[threads]}, CpuClock(threads),
            min_samples=REGION_CALLS, min_seconds=0.0, warmup_seconds=0.0,
        ).samples  # fmt: skip
        return float(np.median(found["all"]) - np.median(found["one"]))

    def shares(self, threads: int) -> tuple[float, float]:
        return shares(partial(cpu.probe_fma, PLAIN, "f32"), threads, self._allowed)

    def times(self, problem: str) -> list[float]:
        bench, calls = self._calls[problem]
        candidates = {plan.name: call for plan, call in calls}
        found = interleave(candidates, bench.clock(), min_samples=SAMPLES, min_seconds=0.0, warmup_seconds=0.0)
        return [float(np.quantile(found.samples[name], 0.25)) if name in found.samples else np.nan for name in candidates]

    def others(self) -> float:
        load, self._watch = self._watch.load(), Watch()
        return load.others


def reported_bytes() -> int:
    """Size of the last level as the system reports it, since an earlier calibration may have reduced it; 0 where unknown."""
    try:
        return read_caches()[-1].size_bytes
    except MachineError:
        return 0


def _region(on: Machine, threads: int) -> Call:
    """A product of negligible work on this many threads."""
    plan = planner.plan(EMPTY_REGION, on)
    bench = bench_of(plan, on, threads, 0)
    call = bench.make(plan, bench.operands(exact=False)).call
    call()  # creates the threads
    return call


class _Ready(NamedTuple):
    bench: Bench
    calls: list[tuple[Plan, Call]]


def _prepared(problem: str, on: Machine) -> _Ready:
    """The plans of a layer to be timed, checked with exact and random operands. MachineError where one is wrong."""
    plans = chosen(problem, on)
    bench, calls = bench_of(plans[0], on, 1, 0), []
    for plan in plans:
        verdict, ready = checked(bench, partial(bench.make, plan))
        if not verdict.passed:
            raise MachineError(f"{plan.problem} by {plan.name} gives a wrong result here, so nothing is calibrated: {verdict.reason}")
        calls.append((plan, ready.call))
    return _Ready(bench, calls)


def chosen(problem: str, on: Machine) -> list[Plan]:
    """The best plan of each combination of kernel, stationary operand and packing, if it is within MAX_SLOWDOWN of the layer's best: the
    constants have to be right for plans that may be chosen. Direct plans first, then those by transforms. Only vector kernels, where the
    machine has any."""

    def kind(plan: Plan) -> tuple[str, ...]:
        return (plan.algorithm, plan.kernel, *(str(getattr(plan.schedule, name, "")) for name in ("stationary", "pack")))

    direct = planner.plans(parse(problem), on, CONSIDERED, accuracy="ieee")
    exact = {plan.name for plan in direct}
    transformed = [plan for plan in planner.plans(parse(problem), on, CONSIDERED) if plan.name not in exact]
    widest = max(unit.vector_bytes for unit in on.core.units)
    vector = {unit.target for unit in on.core.units if unit.vector_bytes > SCALAR_BYTES or unit.vector_bytes == widest}
    found, most_seconds = list[Plan](), MAX_SLOWDOWN * (direct[0].seconds or 0.0)
    for plans, most in ((direct, DIRECT_PLANS), (transformed, TRANSFORMED_PLANS)):
        first: dict[tuple[str, ...], Plan] = {}
        for plan in [plan for plan in plans if plan.kernel.rpartition("__")[2] in vector] or plans:
            if (plan.seconds or 0.0) <= most_seconds:
                first.setdefault(kind(plan), plan)
        found += list(first.values())[:most]
    return found
