# SPDX-License-Identifier: Apache-2.0
"""Calibrates the machine file of this CPU within a budget of seconds, while other processes may use the machine.

Everything is measured in rounds: the clock, multiply-adds of each unit and type, bandwidth and latency of each cache level and of memory,
the cost of a parallel region, and plans of a fixed set of layers. Rounds are short, so a disturbance affects all quantities of a round
alike, and the budget allows many. `estimate` combines the rounds, `cpu_fit` fits the cost model's constants to the plans.

A measurement is discarded
- if the clock changed from before to after it, because then its cycles are unknown;
- if multiply-adds in plain C right after it took SHARED_CORE times their minimum. Then another virtual machine runs on the same core, which
  neither the clock nor the load counted here shows (on a Xeon server all took 1.45 times as long, for seconds).

Shared levels are measured in every SHARED_LEVELS_EVERY-th round, and keep their numbers if other processes ran in nearly all rounds.
Never measured: cache geometry, vector widths, loads and stores per cycle, multiply-add latency, prefetched streams.
"""

import datetime
import math
import platform
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from pysim import planner
from pysim.calibration.cpu_fit import Fit, fitted
from pysim.calibration.cpu_lab import Lab
from pysim.calibration.cpu_share import with_ways
from pysim.calibration.detected import footprints, memory_footprint
from pysim.calibration.estimate import CLOCK_TOLERANCE, MIN_ROUNDS, Estimate, Floats, settle
from pysim.errors import MachineError
from pysim.explain.roof import above
from pysim.machine.cpu import Machine, OfType, Together, Unit
from pysim.machine.load import loads
from pysim.machine.quantity import Number, Source, with_sources
from pysim.machine.write import to_toml
from pysim.measure.speed import PLAIN, SHARED_CORE
from pysim.measure.store import environment
from pysim.registry.cpu import kernels, probed_dtype

SOURCE, FIT = "calibration", "calibration_fit"
CLOCK, TEAM = "core.frequency_hz", "regions of threads: "
FORKS = ("core.fork_join_cycles", "core.fork_join_thread_cycles")
# Extra readings of a clock that is lower after a measurement: a core that ran no wide vectors for 10 ms is slower while it powers them up
# (Granite Rapids: 3.6 of 4.1 GHz after a chain of loads)
CLOCK_RETRIES = 3
UNDISTURBED = 0.1  # quantile of all readings of the multiply-adds
BUSY = 0.15  # CPUs used by other processes from which on a round counts as disturbed
BUSY_TEXT = "other processes used it in nearly all rounds"
SHARED_LEVELS_EVERY = 4  # rounds: buffers for shared levels are large
F64_TOLERANCE = 0.05  # relative difference of the float64 rate from the default from which on it is written separately


class Calibration(msgspec.Struct, frozen=True):
    """The result. `numbers`: estimates by their paths in the machine file; `rejected`: paths without an estimate, with the reason.
    `others`: CPUs that other processes used (median over rounds). `shared`: the fraction of measurements discarded because another
    virtual machine was on the core. `together`: for n CPUs at once, the rate of the slowest and the mean rate, both over the rate of one
    alone (medians). `last`: the cache level that `fit.ways` belongs to."""

    machine: str
    description: str
    rounds: int
    seconds: float
    others: float
    shared: float
    numbers: dict[str, Estimate]
    rejected: dict[str, str]
    together: dict[int, tuple[float, float]]
    last: str
    fit: Fit

    @property
    def doubts(self) -> dict[str, str]:
        """Numbers that are not sure, with the reason."""
        return {path: one.doubt for path, one in (self.numbers | self.fitted).items() if not one.sure}

    @property
    def fitted(self) -> dict[str, Estimate]:
        """Fitted numbers by their paths in the machine file."""
        constants = {f"core.{name}": one for name, one in self.fit.constants.items()}
        return constants | ({f"levels.{self.last}.ways": self.fit.ways} if self.fit.ways else {})


class _Probe(NamedTuple):
    """One quantity: its path in the machine file, the measurement of its cost in seconds, and whether other cores share the resource."""

    path: str
    cost: Callable[[], float]
    shared: bool = False


def calibrate(
    on: Machine,
    lab: Lab,
    budget: float = 120.0,
    tell: Callable[[str], None] = lambda text: None,
    timer: Callable[[], float] = time.perf_counter,
) -> Calibration:
    """Measures rounds for `budget` seconds, at least MIN_ROUNDS. MachineError where rounds do not agree."""
    probes, start, rounds = _probes(on, lab), timer(), _Rounds(lab, PLAIN if on.unit(PLAIN) else on.core.units[0].target)
    problems = list(dict.fromkeys(one.problem for one in lab.plans))
    clocks: list[float] = []
    others: list[float] = []
    shares = {threads: list[tuple[float, float]]() for threads in lab.teams}
    lab.others()
    while len(others) < MIN_ROUNDS or (timer() - start) * (1 + 1 / len(others)) < budget:
        clocks.append(1 / lab.clock())
        for one in probes:
            if not one.shared or len(others) % SHARED_LEVELS_EVERY == 0:
                rounds.take(one.path, one.cost)
        for problem in problems:
            rounds.take(problem, partial(lab.times, problem))
        for threads, found in shares.items():
            found.append(lab.shares(threads))
        others.append(lab.others())
        tell(f"{timer() - start:.0f} of {budget:g} s, {len(others)} rounds")
    quiet = [busy <= BUSY for busy in others]
    settled = {CLOCK: settle(clocks)}
    rejected = {}
    for one in probes:
        alone = np.array(quiet[::SHARED_LEVELS_EVERY] if one.shared else [True] * len(quiet))
        if sum(alone) < MIN_ROUNDS:
            rejected[one.path] = "too few rounds" if all(quiet) else BUSY_TEXT
            continue
        settled[one.path] = settle(rounds.cycles(one.path)[alone, 0])
    if settled[CLOCK] is None:
        raise MachineError("the clock differs from round to round, so there are no cycles to count: others use this CPU too much now")
    teams = {int(path.removeprefix(TEAM)): one for path, one in settled.items() if one and path.startswith(TEAM)}
    costed = {path: one for path, one in settled.items() if one and not path.startswith(TEAM)}
    numbers = {path: one if path.endswith("latency_cycles") else one.rate for path, one in costed.items()} | _forks(on, teams)
    machine, table = _with_rates(on, numbers), np.concatenate([rounds.cycles(problem) for problem in problems], axis=1)
    _check_roof(machine, lab, table)
    fit, last = fitted(machine, lab.plans, table, quiet, lab.ways), on.levels[-1]
    if fit.ways is None and last.shared:
        rejected[f"levels.{last.name}.ways"] = "the plans do not say" if sum(quiet) >= MIN_ROUNDS else BUSY_TEXT
    return Calibration(
        machine=on.name,
        description=on.description,
        rounds=len(others),
        seconds=timer() - start,
        others=float(np.median(others)),
        shared=rounds.shared,
        numbers=numbers,
        rejected=rejected | {path: "rounds do not agree" for path, one in settled.items() if one is None},
        together={threads: (float(slow), float(mean)) for threads, found in shares.items() for slow, mean in [np.median(found, axis=0)]},
        last=last.name,
        fit=fit,
    )


class _Rounds:
    """Measurements by key, round by round: costs in cycles, and the cycles of a multiply-add right after them."""

    def __init__(self, lab: Lab, target: str) -> None:
        self._lab, self._target = lab, target
        self._costs: dict[str, list[list[float]]] = defaultdict(list)
        self._multiply_adds: dict[str, list[float]] = defaultdict(list)

    def take(self, key: str, cost: Callable[[], float | list[float]]) -> None:
        """One measurement between two readings of the clock; NaN if the clock changed."""
        before, seconds, after = self._lab.clock(), cost(), self._lab.clock()
        for _ in range(CLOCK_RETRIES):
            after = after if after >= (1 - CLOCK_TOLERANCE) * before else self._lab.clock()
        clock = max(before, after)  # a disturbed reading is too low
        steady = abs(after - before) <= CLOCK_TOLERANCE * before
        self._costs[key].append([one * clock if steady else math.nan for one in np.atleast_1d(seconds).tolist()])
        self._multiply_adds[key].append(self._lab.fma(self._target, "f32") * clock)

    def _disturbed(self, multiply_adds: Sequence[float]) -> NDArray[np.bool_]:
        alone = np.quantile([one for some in self._multiply_adds.values() for one in some], UNDISTURBED)
        # below the range: the clock was read too low
        return np.array([not alone / SHARED_CORE <= one <= SHARED_CORE * alone for one in multiply_adds])

    @property
    def shared(self) -> float:
        """The fraction of all measurements during which another virtual machine was on the core."""
        return float(np.mean(np.concatenate([self._disturbed(some) for some in self._multiply_adds.values()])))

    def cycles(self, key: str) -> Floats:
        """Rounds x costs; NaN where another virtual machine was on the core."""
        found = np.array(self._costs[key])
        found[self._disturbed(self._multiply_adds[key])] = np.nan
        return found


def _probes(on: Machine, lab: Lab) -> list[_Probe]:
    """Everything measured besides the clock and plans, in the order of the machine file."""
    found = []
    for unit in on.core.units:
        path = f"core.units.{unit.target}"
        found.append(_Probe(f"{path}.fma_per_cycle", partial(lab.fma, unit.target, probed_dtype(unit.target))))
        if any((row.target, row.dtype) == (unit.target, "f64") for row in kernels()):
            found.append(_Probe(f"{path}.types.f64.fma_per_cycle", partial(lab.fma, unit.target, "f64")))
    for path, nbytes, shared in _places(on):
        found.append(_Probe(f"{path}.latency_cycles", partial(lab.latency, nbytes), shared))
        found.append(_Probe(f"{path}.read_bytes_per_cycle", partial(lab.read, nbytes), shared))
        found.append(_Probe(f"{path}.write_bytes_per_cycle", partial(lab.write, nbytes), shared))
    found += [_Probe(f"{TEAM}{threads}", partial(lab.fork_join, threads), True) for threads in lab.teams]
    return found


def _forks(on: Machine, teams: Mapping[int, Estimate]) -> dict[str, Estimate]:
    """The cost of a parallel region as constant + cost per thread, both >= 0, from regions of some team sizes. One size does not separate
    them: they keep their previous ratio then, or all of it is the constant."""
    from scipy.optimize import nnls

    if not teams:
        return {}
    cost = np.array([one.value for one in teams.values()])
    if len(teams) > 1:
        values = nnls(np.array([[1.0, size] for size in teams]) / cost[:, None], np.ones(cost.size))[0]
    else:
        before = np.array([one.value if one else 0.0 for one in (on.core.fork_join_cycles, on.core.fork_join_thread_cycles)])
        before = before if before.any() else np.array([1.0, 0.0])
        values = before * cost[0] / (before @ [1.0, next(iter(teams))])
    share = max(one.error / one.value for one in teams.values())
    doubt = next((one.doubt for one in teams.values() if one.doubt), "")
    return {path: Estimate(float(value), float(value * share), doubt) for path, value in zip(FORKS, values, strict=True)}


def _places(on: Machine) -> list[tuple[str, int, bool]]:
    """Each cache level and memory: its path, a buffer size that resides there, and whether other cores share it."""
    sizes = [level.size_bytes for level in on.levels]
    levels = [(f"levels.{level.name}", nbytes, level.shared) for level, nbytes in zip(on.levels, footprints(sizes), strict=True)]
    return [*levels, ("memory", memory_footprint(sizes[-1]), True)]


def _check_roof(machine: Machine, lab: Lab, rounds: Floats) -> None:
    """MachineError where a plan took less time than its multiply-adds need at the measured rates."""
    for one, column in zip(lab.plans, rounds.T, strict=True):
        if took := settle(column):
            plan = planner.plan(one.problem, machine, name=one.name)
            if wrong := above(plan, took.value / machine.clock_hz, "measured"):
                raise MachineError(f"{wrong}: nothing is written; calibrate again")


# The machine file


def calibrated(on: Machine, found: Calibration, name: str | None = None) -> Machine:
    """The machine, renamed to `name`, with the calibrated numbers. It is validated as a machine file; MachineError where it is invalid."""
    machine = _with_rates(_with_share(on, found.fit.ways), found.numbers)
    constants = {name: one.number("fitted", FIT) for name, one in found.fit.constants.items()}
    together = tuple(
        Together(cpus=cpus, slowest_share=_share(slowest), mean_share=_share(mean)) for cpus, (slowest, mean) in found.together.items()
    )
    core = msgspec.structs.replace(machine.core, **constants, together=together)
    machine = msgspec.structs.replace(machine, name=name or on.name, core=core)
    about = environment()
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    versions = f"{about.get('cpu', on.core.name)}, {platform.system()} {platform.release()}, pysim {about.get('pysim', 'unknown')}"
    load = f"{found.rounds} rounds in {found.seconds:.0f} s, others used {found.others:.2f} CPUs, {found.shared:.0%} on a shared core"
    doubts = "; ".join(f"{path}: {doubt}" for path, doubt in found.doubts.items())
    probes = Source(
        title=f"pysim's probes of this CPU, {date}",
        command="pysim machines calibrate",
        versions=versions,
        note=load + (f"; not sure: {doubts}" if doubts else ""),
    )
    after, left = found.fit.after, found.fit.left_out
    fit = Source(
        title=f"Non-negative least squares over {found.fit.plans} measured plans, {date}",
        command="pysim machines calibrate",
        versions=versions,
        note=f"{load}; median error {after.median_error:.1%}, 90th percentile {after.p90_error:.1%}; of layers left out of the fit "
        f"{left.median_error:.1%} and {left.p90_error:.1%}",
    )
    read = loads(to_toml(with_sources(machine, on.sources | {SOURCE: probes, FIT: fit})), "the calibrated machine")
    assert isinstance(read, Machine)
    return read


def _with_share(on: Machine, ways: Estimate | None) -> Machine:
    """The machine with the ways of the last level that neighbours leave, where these are known and differ."""
    if ways is None or ways.value == on.levels[-1].ways:
        return on
    left = with_ways(on, round(ways.value))
    last = msgspec.structs.replace(left.levels[-1], kind="fitted", source=FIT)
    csa = on.csa and msgspec.structs.replace(on.csa, l3_bytes=last.size_bytes)
    return msgspec.structs.replace(left, levels=(*left.levels[:-1], last), csa=csa)


def _with_rates(on: Machine, numbers: Mapping[str, Estimate]) -> Machine:
    """The machine with measured numbers, given by their paths."""

    def take(path: str, before: Number) -> Number:
        return numbers[path].number("measured", SOURCE) if path in numbers else before

    def place(one: Any, path: str) -> Any:
        names = ("latency_cycles", "read_bytes_per_cycle", "write_bytes_per_cycle")
        fields = {name: take(f"{path}.{name}", getattr(one, name)) for name in names}
        for name in names[1:]:  # all cores get no less than one alone
            if (total := getattr(one, f"total_{name}")) and total.value < fields[name].value:
                fields[f"total_{name}"] = fields[name]
        return msgspec.structs.replace(one, **fields)

    def unit(one: Unit) -> Unit:
        path = f"core.units.{one.target}"
        rate = take(f"{path}.fma_per_cycle", one.fma_per_cycle)
        types = {of.name: of for of in one.types}
        double = numbers.get(f"{path}.types.f64.fma_per_cycle")
        if double and ("f64" in types or abs(double.value / rate.value - 1) > F64_TOLERANCE):
            types["f64"] = OfType(name="f64", fma_per_cycle=double.number("measured", SOURCE))
        return msgspec.structs.replace(one, fma_per_cycle=rate, types=tuple(types.values()))

    forks = {path.removeprefix("core."): numbers[path].number("measured", SOURCE) for path in FORKS if path in numbers}
    clock = take(CLOCK, on.core.frequency_hz)
    core = msgspec.structs.replace(on.core, frequency_hz=clock, units=tuple(map(unit, on.core.units)), **forks)
    levels, memory = tuple(place(level, f"levels.{level.name}") for level in on.levels), place(on.memory, "memory")
    csa = on.csa
    if csa is not None:
        outer = zip(("l2", "l3", "memory"), (*levels[1:], memory), strict=False)
        csa = msgspec.structs.replace(csa, **{f"{name}_latency_cycles": one.latency_cycles for name, one in outer})
    return msgspec.structs.replace(on, core=core, levels=levels, memory=memory, csa=csa)


def _share(value: float) -> Number:
    return Number(value=float(f"{value:.3g}"), kind="measured", source=SOURCE)
