# SPDX-License-Identifier: Apache-2.0
"""Where a CPU is calibrated: the native probes, and plans of a fixed set of layers, prepared and checked, timed when asked."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from pysim import planner
from pysim.calibration.detected import shares, team_sizes, usable
from pysim.calibration.linux import read_caches
from pysim.comparison.bench import Bench, bench_of
from pysim.comparison.field import checked
from pysim.errors import MachineError
from pysim.machine.cpu import Machine
from pysim.measure.clock import Call, CpuClock, interleave
from pysim.measure.load import Watch
from pysim.measure.speed import PLAIN
from pysim.problem.text import parse
from pysim.record.plan import Plan
from pysim.runtime import cpu

# Small, so that they come round often; together they pack long and short runs, dense and strided, read in place, call often and write
# much. None of these, nor of the large ones, is in a built-in set.
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
# Of 3 to 45 MB, input, filters or output: what a last level of so many MB keeps from one call to the next
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
LAYERS = (*SMALL, *LARGE)
PLANS, TRANSFORMED, WITHIN = 6, 2, 1.6  # plans of a layer, and of those by transforms; the time that they may take over the best of them
CONSIDERED = 3000  # plans that are looked at
SCALAR_BYTES = 16  # of a vector that portable code may have, too
SAMPLES, PROBE_SECONDS = 5, 0.01
NOTHING, REGIONS = "gemm:16x512x2", 200  # calls of it


class Measured(NamedTuple):
    """A plan by name, of a problem."""

    problem: str
    name: str
    kernel: str


class Lab(Protocol):
    """What is asked of the CPU. A probe answers with one number; `plans` are those whose layers `times` times, `teams` the numbers of
    threads that `fork_join` takes, `ways` those that the system reports of the last level, as large as the machine has them."""

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
        """Seconds of a multiply-add instruction."""
        ...

    def read(self, nbytes: int) -> float:
        """Seconds of a byte."""
        ...

    def write(self, nbytes: int) -> float:
        """Seconds of a byte."""
        ...

    def latency(self, nbytes: int) -> float:
        """Seconds of a dependent load."""
        ...

    def fork_join(self, threads: int) -> float:
        """Seconds of a parallel region beyond its work."""
        ...

    def shares(self, threads: int) -> tuple[float, float]:
        """Of the rate of multiply-adds alone, what the slowest of so many CPUs at once has, and all on average."""
        ...

    def times(self, problem: str) -> list[float]:
        """Seconds of a call of each plan of a layer, in their order."""
        ...

    def others(self) -> float:
        """CPUs that other processes used since this was asked before."""
        ...


class HostLab:
    """This computer. Made before the calling thread is pinned, so that those of a team may run elsewhere."""

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
        cpu.probe_fma(self._target, "f32")  # behind wide vectors, as that of plans is
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
            min_samples=REGIONS, min_seconds=0.0, warmup_seconds=0.0,
        ).samples  # fmt: skip
        return float(np.median(found["all"]) - np.median(found["one"]))

    def shares(self, threads: int) -> tuple[float, float]:
        multiply = partial(cpu.probe_fma, PLAIN, "f32")
        return shares(multiply, multiply(), threads, self._allowed)

    def times(self, problem: str) -> list[float]:
        bench, calls = self._calls[problem]
        contenders = {plan.name: call for plan, call in calls}
        found = interleave(contenders, bench.clock(), min_samples=SAMPLES, min_seconds=0.0, warmup_seconds=0.0)
        return [float(np.quantile(found.samples[name], 0.25)) if name in found.samples else np.nan for name in contenders]

    def others(self) -> float:
        load, self._watch = self._watch.load(), Watch()
        return load.others


def reported_bytes() -> int:
    """Of the last level, which an earlier calibration may have found to be smaller; 0 where the system does not say."""
    try:
        return read_caches()[-1].size_bytes
    except MachineError:
        return 0


def _region(on: Machine, threads: int) -> Call:
    """A product of next to nothing on so many threads."""
    plan = planner.plan(NOTHING, on)
    bench = bench_of(plan, on, threads, cpu.LOCAL, 0)
    call = bench.make(plan, bench.operands(exact=False)).call
    call()  # makes the threads
    return call


class _Ready(NamedTuple):
    bench: Bench
    calls: list[tuple[Plan, Call]]


def _prepared(problem: str, on: Machine) -> _Ready:
    """The plans of a layer that are timed, each right on both fills. MachineError where one is not."""
    plans = chosen(problem, on)
    bench, calls = bench_of(plans[0], on, 1, cpu.LOCAL, 0), []
    for plan in plans:
        verdict, ready = checked(bench, partial(bench.make, plan))
        if not verdict.passed:
            raise MachineError(f"{plan.problem} by {plan.name} is not right here, so nothing is calibrated: {verdict.reason}")
        calls.append((plan, ready.call))
    return _Ready(bench, calls)


def chosen(problem: str, on: Machine) -> list[Plan]:
    """The best plan of each kernel, stationary operand and way of packing, as far as it is near the best of all: plans that lose by much
    say little of the constants where they matter. Those of multiply-adds alone, then those whose results transforms round. By vectors,
    where the machine has any."""

    def kind(plan: Plan) -> tuple[str, ...]:
        return (plan.algorithm, plan.kernel, *(str(getattr(plan.schedule, name, "")) for name in ("stationary", "pack")))

    direct = planner.plans(parse(problem), on, CONSIDERED, accuracy="ieee")
    exact = {plan.name for plan in direct}
    transformed = [plan for plan in planner.plans(parse(problem), on, CONSIDERED) if plan.name not in exact]
    widest = max(unit.vector_bytes for unit in on.core.units)
    vector = {unit.target for unit in on.core.units if unit.vector_bytes > SCALAR_BYTES or unit.vector_bytes == widest}
    found, most_seconds = list[Plan](), WITHIN * (direct[0].seconds or 0.0)
    for plans, most in ((direct, PLANS), (transformed, TRANSFORMED)):
        first: dict[tuple[str, ...], Plan] = {}
        for plan in [plan for plan in plans if plan.kernel.rpartition("__")[2] in vector] or plans:
            if (plan.seconds or 0.0) <= most_seconds:
                first.setdefault(kind(plan), plan)
        found += list(first.values())[:most]
    return found
