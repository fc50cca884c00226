# SPDX-License-Identifier: Apache-2.0
"""Calibration of a CPU: constants of a machine that is known come back, also where others use it, or it is said that they may not have;
what is written holds, and nothing else is touched."""

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from checkout import DATA
from command_line import cache, document, invoke, native, ok, own_files, refused  # noqa: F401  # fixtures
from hypothesis import given
from hypothesis import strategies as st

from pysim import planner
from pysim.calibration import cpu_lab, host
from pysim.calibration.cpu_calibrate import BUSY, FIT, FORKS, SOURCE, TEAM, Calibration, calibrate, calibrated
from pysim.calibration.cpu_fit import CONSTANTS, ON_SHARED_LEVELS, with_constants
from pysim.calibration.cpu_lab import LARGE, LAYERS, SMALL, Measured, chosen
from pysim.calibration.cpu_share import ways_left, with_ways
from pysim.calibration.detected import team_sizes
from pysim.calibration.estimate import LOST, MIN_ROUNDS, SURE, settle
from pysim.errors import MachineError
from pysim.machine.cpu import Machine
from pysim.machine.load import load, load_any, loads
from pysim.machine.write import to_toml
from pysim.problem.text import resolve

ZEN4 = load("zen4")
TRUTH = (80.0, 30.0, 1.3, 7.5, 14.0, 0.9, 0.7)
LOAD = DATA / "zen4/calibration-load.jsonl"
FORK, FORK_THREAD = 9000.0, 2500.0
SOME = (*(SMALL[at] for at in (2, 3, 4, 9, 10, 12)), *(LARGE[at] for at in (0, 2, 3, 6, 8)))
SETS = ("resnet18", "resnet50", "resnet152", "vgg16", "googlenet", "inception_v2", "squeezenet", "mec", "opencnn", "cutlass")


@pytest.fixture(scope="module")
def plans() -> tuple[Measured, ...]:
    return tuple(Measured(one.problem, one.name, one.kernel) for problem in SOME for one in chosen(problem, ZEN4)[::2])


@pytest.fixture(scope="module")
def small(plans: tuple[Measured, ...]) -> tuple[Measured, ...]:
    """Enough to fit constants to; the share of the last level, half of the work, stays as it was."""
    return tuple(one for one in plans if one.problem in SMALL)


class Synthetic:
    """A CPU with known constants and its own clock. `busy`: another process, which takes time slices, evicts what it shares, and lets the
    clock wander; `drift`: what all times grow by from round to round."""

    def __init__(self, truth: Machine, plans: Sequence[Measured], busy: bool = False, seed: int = 0, noise: float = 0.003) -> None:
        self.truth, self.plans, self.busy, self.noise = truth, plans, busy, noise
        self.random, self.now, self.hertz = np.random.default_rng(seed), 0.0, truth.clock_hz
        exact = [planner.plan(one.problem, truth, name=one.name).seconds or math.nan for one in plans]
        self.exact = dict(zip(plans, exact, strict=True))

    def _takes(self, seconds: float, shared: float = 1.0) -> float:
        """What a clock on the wall says of so many seconds at the nominal frequency."""
        seconds *= self.truth.clock_hz / self.hertz * (1 + abs(self.random.normal(0, self.noise)))
        if self.busy:
            seconds *= shared
            if self.random.random() < 0.3:  # a part of the samples had to wait
                seconds *= 1 + self.random.exponential(0.3)
        self.now += 1e-3
        return seconds

    def clock(self) -> float:
        if self.busy:
            self.hertz = self.truth.clock_hz * (1 + self.random.normal(0, 0.003))
        return 1 / self._takes(1 / self.truth.clock_hz)

    def fma(self, target: str, dtype: str) -> float:
        unit = self.truth.unit(target)
        assert unit is not None
        return self._takes(1 / unit.rate(dtype) / self.truth.clock_hz)

    def _place(self, nbytes: int):
        inside = [level for level in self.truth.levels if nbytes <= level.size_bytes]
        return (inside[0], inside[0].shared) if inside else (self.truth.memory, True)

    def _rate(self, nbytes: int, name: str) -> float:
        place, shared = self._place(nbytes)
        return self._takes(1 / getattr(place, name).value / self.truth.clock_hz, 1.5 if shared else 1.0)

    def read(self, nbytes: int) -> float:
        return self._rate(nbytes, "read_bytes_per_cycle")

    def write(self, nbytes: int) -> float:
        return self._rate(nbytes, "write_bytes_per_cycle")

    def latency(self, nbytes: int) -> float:
        place, shared = self._place(nbytes)
        return self._takes(place.latency_cycles.value / self.truth.clock_hz, 3.0 if shared else 1.0)

    teams: Sequence[int] = (2, 4, 8)
    ways = ZEN4.levels[-1].ways
    turn = 0

    def fork_join(self, threads: int) -> float:
        return self._takes((FORK + FORK_THREAD * threads) / self.truth.clock_hz, 2.0)

    def shares(self, threads: int) -> tuple[float, float]:
        self.turn += 1
        return (0.3 if self.turn % 7 == 0 else 1 / threads), 0.5 + 0.5 / threads  # now and then a stranger's

    def times(self, problem: str) -> list[float]:
        return [self._takes(self.exact[one]) for one in self.plans if one.problem == problem]

    def others(self) -> float:
        return 1.0 if self.busy else 0.01

    def calibrated(self, budget: float = 12.0) -> Calibration:
        self.now = 0.0
        return calibrate(ZEN4, self, budget, timer=lambda: self.now)


def constants(found: Calibration) -> np.ndarray:
    return np.array([found.fit.constants[name].value for name in CONSTANTS])


@pytest.fixture(scope="module")
def truth() -> Machine:
    return with_constants(ZEN4, TRUTH)


@pytest.fixture(scope="module")
def quiet(truth: Machine, plans: tuple[Measured, ...]) -> Calibration:
    return Synthetic(truth, plans).calibrated()


def test_on_a_quiet_machine_all_numbers_come_back(truth: Machine, quiet: Calibration) -> None:
    assert constants(quiet) == pytest.approx(np.array(TRUTH), rel=0.05)
    assert not quiet.rejected and quiet.fit.rejected == 0
    assert quiet.fit.after.median_error < 0.004 < 0.015 < quiet.fit.before.median_error
    assert quiet.fit.left_out.median_error < 0.01
    machine = calibrated(ZEN4, quiet, "mine")
    for level, known in zip((*machine.levels, machine.memory), (*truth.levels, truth.memory), strict=True):
        for name in ("latency_cycles", "read_bytes_per_cycle", "write_bytes_per_cycle"):
            found, right = getattr(level, name), getattr(known, name).value
            assert found.value == pytest.approx(right, rel=0.01) and found.kind == "measured" and found.error is not None
    assert machine.clock_hz == pytest.approx(truth.clock_hz, rel=0.01)
    forks = machine.core.fork_join_cycles, machine.core.fork_join_thread_cycles
    assert [one and one.value for one in forks] == [pytest.approx(FORK, rel=0.03), pytest.approx(FORK_THREAD, rel=0.03)]
    assert all(one and (one.kind, one.source) == ("measured", SOURCE) for one in forks)
    shares = [(one.cpus, one.slowest_share.value, one.mean_share.value) for one in machine.core.together]
    assert shares == [(cpus, pytest.approx(1 / cpus, rel=0.01), pytest.approx(0.5 + 0.5 / cpus, rel=0.01)) for cpus in (2, 4, 8)]


def test_beside_a_busy_process_constants_are_those_of_a_quiet_machine_or_it_says_so(
    truth: Machine, plans: tuple[Measured, ...], quiet: Calibration
) -> None:
    """At the seeds 1 to 3; with PYSIM_LONG to 10."""
    right = dict(zip(CONSTANTS, constants(quiet), strict=True))
    close, seeds = [], 10 if os.environ.get("PYSIM_LONG") else 3
    for seed in range(1, seeds + 1):
        found = Synthetic(truth, plans, busy=True, seed=seed).calibrated()
        off = {name: abs(one.value / right[name] - 1) for name, one in found.fit.constants.items()}
        assert all(found.fit.constants[name].doubt for name, by in off.items() if by > 0.05), (seed, off)
        close += [by <= 0.05 for by in off.values()]
        for path, one in quiet.numbers.items():
            if path in found.numbers:
                assert found.numbers[path].value == pytest.approx(one.value, rel=0.05) or found.numbers[path].doubt, path
            else:  # what others use, too
                assert path in FORKS or (path in found.rejected and (".L3." in path or path.startswith("memory")))
    assert sum(close) >= 0.9 * len(close)


def test_what_others_use_all_the_time_is_doubted_and_levels_of_theirs_stay_as_they_were(
    truth: Machine, plans: tuple[Measured, ...]
) -> None:
    found = Synthetic(truth, plans, busy=True).calibrated()
    kept = {path for path in found.rejected if not path.startswith(TEAM)}
    names = ("latency_cycles", "read_bytes_per_cycle", "write_bytes_per_cycle")
    assert kept == {"levels.L3.ways", *(f"{place}.{name}" for place in ("levels.L3", "memory") for name in names)}
    assert {f"core.{name}" for name in ON_SHARED_LEVELS} <= set(found.doubts)
    machine = calibrated(ZEN4, found)
    assert machine.levels[2] == ZEN4.levels[2] and machine.memory == ZEN4.memory
    assert "not sure: " in (machine.sources[SOURCE].note or "")


def test_a_few_quiet_rounds_are_enough(truth: Machine, plans: tuple[Measured, ...]) -> None:
    class Sometimes(Synthetic):
        def others(self) -> float:
            was, self.busy = self.busy, self.random.random() < 0.6
            return 1.0 if was else 0.01

    found = Sometimes(truth, plans).calibrated()
    assert not found.rejected and not any("others" in doubt for doubt in found.doubts.values())
    assert found.numbers["levels.L3.latency_cycles"].value == pytest.approx(54, rel=0.02)
    assert constants(found) == pytest.approx(np.array(TRUTH), rel=0.05)


def test_what_was_measured_while_another_machine_was_on_the_core_is_left_out(truth: Machine, plans: tuple[Measured, ...]) -> None:
    class Sibling(Synthetic):
        """On the core for spells that are three quarters of the time, and hidden from clock and load."""

        def _takes(self, seconds: float, shared: float = 1.0) -> float:
            slow = int(self.now / 0.2) % 4 > 0
            return super()._takes(seconds, shared) * (1.45 if slow else 1.0)

        def clock(self) -> float:
            self.now += 1e-3
            return self.hertz

    found = Sibling(truth, plans).calibrated()
    assert constants(found) == pytest.approx(np.array(TRUTH), rel=0.05)
    assert found.fit.after.p90_error < 0.02 and 0.5 < found.shared < 0.9
    assert Synthetic(truth, plans).calibrated(4.0).shared < 0.05


def test_a_clock_that_is_low_for_a_moment_behind_a_measurement_and_steps_by_100_mhz_loses_none(
    truth: Machine, plans: tuple[Measured, ...]
) -> None:
    class Stepping(Synthetic):
        """Slower at once behind a chain of loads, then a step lower or higher at random, as a Granite Rapids core is."""

        low = False

        def latency(self, nbytes: int) -> float:
            self.low = True
            return super().latency(nbytes)

        def clock(self) -> float:
            self.hertz = self.truth.clock_hz * (0.88 if self.low else 1 - 0.024 * self.random.integers(2))
            self.low = False
            return super().clock()

    found = Stepping(truth, plans).calibrated()
    assert not found.rejected
    assert found.numbers["levels.L2.latency_cycles"].value == pytest.approx(truth.levels[1].latency_cycles.value, rel=0.03)


def test_what_strangers_leave_of_the_last_level_is_found_and_written(truth: Machine, plans: tuple[Measured, ...]) -> None:
    found = Synthetic(with_ways(truth, 5), plans).calibrated()
    assert found.fit.ways is not None and abs(found.fit.ways.value - 5) <= found.fit.ways.error <= 3
    assert constants(found) == pytest.approx(np.array(TRUTH), rel=0.05)
    machine = calibrated(ZEN4, found)
    last = machine.levels[-1]
    assert (last.ways, last.sets, last.kind, last.source) == (found.fit.ways.value, ZEN4.levels[-1].sets, "fitted", FIT)
    assert machine.csa is not None and machine.csa.l3_bytes == last.size_bytes


def test_layers_that_the_model_misses_by_a_few_percent_do_not_hide_how_much_of_the_last_level_is_left(
    truth: Machine, plans: tuple[Measured, ...]
) -> None:
    exact = np.array([planner.plan(one.problem, with_ways(truth, 9), name=one.name).seconds for one in plans]) * truth.clock_hz
    for seed in range(6):
        random = np.random.default_rng(seed)
        of_layer = {problem: math.exp(random.normal(0, 0.05)) for problem in SOME}
        found = ways_left(truth, 14, plans, exact * [of_layer[one.problem] for one in plans])
        assert found is not None and abs(found.value - 9) <= found.error <= 6, seed


def test_a_last_level_that_is_whole_keeps_its_source(quiet: Calibration) -> None:
    assert quiet.fit.ways is not None and quiet.fit.ways.value == ZEN4.levels[-1].ways
    assert calibrated(ZEN4, quiet).levels[-1].kind == ZEN4.levels[-1].kind


def test_plans_timed_on_a_shared_zen_4_say_that_strangers_use_at_least_half_of_its_last_level() -> None:
    rows = [json.loads(line) for line in (DATA / "zen4/l3-share.jsonl").read_text().splitlines()]
    whole = msgspec.structs.replace(ZEN4.levels[-1], sets=32768, ways=16)  # as Linux reports it
    on = msgspec.structs.replace(ZEN4, levels=(*ZEN4.levels[:-1], whole))
    timed = [Measured(row["problem"], row["plan"], "") for row in rows]
    found = ways_left(on, 16, timed, np.array([row["measured_seconds"] for row in rows]) * on.clock_hz)
    assert found is not None and 4 <= found.value <= 8 and not found.sure


def test_an_earlier_calibrations_share_is_no_bound(truth: Machine, plans: tuple[Measured, ...]) -> None:
    before = with_ways(ZEN4, 4)
    there = Synthetic(truth, plans)
    found = calibrate(before, there, 12.0, timer=lambda: there.now)
    assert found.fit.ways is not None and found.fit.ways.value >= 13


def test_small_layers_alone_leave_overlap_and_the_share_as_they_were(truth: Machine, small: tuple[Measured, ...]) -> None:
    found = Synthetic(with_ways(truth, 5), small).calibrated()
    assert found.fit.ways is None and calibrated(ZEN4, found).levels[-1].ways == ZEN4.levels[-1].ways
    assert found.fit.constants["overlap"].value == pytest.approx(ZEN4.core.overlap.value, abs=1e-6)


def test_a_short_budget_leaves_what_it_has_no_rounds_for(truth: Machine, plans: tuple[Measured, ...]) -> None:
    found = Synthetic(truth, plans).calibrated(0.1)
    assert found.rounds == MIN_ROUNDS and set(found.rejected.values()) == {"too few rounds"} and ".L3." in next(iter(found.rejected))
    assert found.numbers["levels.L2.latency_cycles"].value == pytest.approx(14, rel=0.02)


def test_a_machine_on_which_rounds_do_not_agree_is_refused(truth: Machine, plans: tuple[Measured, ...]) -> None:
    with pytest.raises(MachineError, match="others use this CPU too much now"):
        Synthetic(truth, plans, noise=2.0).calibrated(4.0)


def test_plans_faster_than_the_measured_rates_allow_are_refused(truth: Machine, small: tuple[Measured, ...]) -> None:
    class Slow(Synthetic):
        def fma(self, target: str, dtype: str) -> float:
            return 3 * super().fma(target, dtype)

    with pytest.raises(MachineError, match="nothing is written"):
        Slow(truth, small).calibrated(4.0)


def test_a_calibrated_machine_reads_back_names_its_measurements_and_plans(quiet: Calibration) -> None:
    machine = calibrated(ZEN4, quiet, "mine")
    assert loads(to_toml(machine)) == machine and machine.name == "mine"
    assert {getattr(machine.core, name).kind for name in CONSTANTS} == {"fitted"}
    assert {getattr(machine.core, name).source for name in CONSTANTS} == {FIT}
    assert machine.core.prefetch_streams == ZEN4.core.prefetch_streams
    assert machine.csa is not None and machine.csa.l3_latency_cycles == machine.levels[2].latency_cycles
    wide, portable = machine.unit("avx512"), machine.unit("portable")
    assert wide is not None and wide.types == ()  # float64 at the same rate needs no row
    assert portable is not None and portable.rate("f64") == pytest.approx(portable.rate("f32") / 2, rel=0.01)
    assert planner.plan(LAYERS[0], machine).machine == "mine"


def test_a_type_with_another_rate_gets_its_own(truth: Machine, small: tuple[Measured, ...]) -> None:
    class Slower(Synthetic):  # than the half of floats that its doubles take as they are
        def fma(self, target: str, dtype: str) -> float:
            return super().fma(target, dtype) * (2 if dtype == "f64" and target == "portable" else 1)

    machine = calibrated(ZEN4, Slower(truth, small).calibrated(4.0))
    unit = machine.unit("portable")
    assert unit is not None and unit.rate("f64") == pytest.approx(unit.rate("f32") / 4, rel=0.02)
    others = [one for one in machine.core.units if one.target != "portable"]
    assert others and not any(kind.name == "f64" for one in others for kind in one.types)


def test_one_size_of_team_keeps_the_parts_of_a_region_in_their_ratio(truth: Machine, small: tuple[Measured, ...]) -> None:
    class Two(Synthetic):
        teams = (2,)

    machine = calibrated(ZEN4, Two(truth, small).calibrated(4.0))
    forks, before = ([getattr(one.core, path.removeprefix("core.")) for path in FORKS] for one in (machine, ZEN4))
    assert forks[0].value + 2 * forks[1].value == pytest.approx(FORK + 2 * FORK_THREAD, rel=0.03)
    assert forks[0].value / forks[1].value == pytest.approx(before[0].value / before[1].value, rel=0.01)
    assert [team_sizes(cores) for cores in (1, 2, 3, 4, 6, 16)] == [[], [2], [2, 3], [2, 4], [2, 4, 6], [2, 4, 8, 16]]


# The layers


def test_calibration_sees_no_layer_of_a_built_in_set() -> None:
    known = {layer.workload for layer in resolve(SETS)}
    assert not known & {layer.workload for layer in resolve(LAYERS)}


def test_a_layers_plans_differ_in_what_they_cost(plans: tuple[Measured, ...]) -> None:
    for problem in SOME:
        mine = [planner.plan(one.problem, ZEN4, name=one.name) for one in plans if one.problem == problem]
        direct = [one for one in mine if one.algorithm != "winograd"]
        assert len({one.kernel for one in mine}) >= 2 and direct[0].seconds == min(one.seconds or 0.0 for one in direct)
        assert all((one.seconds or 0.0) <= 1.6 * (direct[0].seconds or 0.0) for one in mine)
        algorithms = {"gemm", "unpacked"} if problem.startswith("gemm") else {"depthwise"} if problem.startswith("conv:g") else {"sconv"}
        assert algorithms & {one.algorithm for one in mine}
        assert not any(one.kernel.endswith("__portable") for one in mine)


# What rounds amount to


def test_the_least_third_of_the_rounds_counts() -> None:
    found = settle([100, 101, 103, 104, 110, 130, 150, 190, 400])
    assert found is not None and (found.value, found.error, found.sure) == (101, 1.5, True)
    assert found.rate.value == 1 / 101 and found.rate.error == pytest.approx(1.5 / 101**2)


def test_rounds_that_differ_are_doubted_and_rounds_that_agree_in_nothing_are_rejected() -> None:
    found = settle([100, 105, 112, 120])
    assert found is not None and not found.sure and "11%" in found.doubt
    assert settle([100, 200, 300]) is None and settle([100, 100]) is None and settle([]) is None
    assert settle([math.nan, 100, 0.0, 100, -5.0, math.inf]) is None
    assert settle([math.nan, 100, 101, 100]) is not None


@given(st.lists(st.floats(1e-9, 1e9), min_size=MIN_ROUNDS, max_size=40))
def test_an_estimate_lies_among_the_rounds_and_its_error_is_no_larger_than_said(costs: list[float]) -> None:
    found = settle(costs)
    if found is not None:
        assert min(costs) <= found.value <= max(costs) and 0 <= found.error <= LOST * found.value
        assert found.sure == (found.error <= SURE * found.value)


# The command


@pytest.fixture
def lab(truth: Machine, plans: tuple[Measured, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of this computer."""
    monkeypatch.setattr(cpu_lab, "HostLab", lambda on: Synthetic(truth, plans))


@pytest.fixture
def zen4_file(tmp_path: Path) -> Path:
    path = tmp_path / "base.toml"
    path.write_text(to_toml(msgspec.structs.replace(ZEN4, name="base")))
    return path


@pytest.mark.usefixtures("lab")
def test_the_command_writes_a_file_that_plans_use_and_keeps_one_that_is_there(zen4_file: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    words = ("machines", "calibrate", "-m", str(zen4_file), "--budget", "2", "-o", str(mine))
    out = ok(*words)
    assert "core.call_cycles" in out and "fitted" in out and "other processes used 0.01 CPUs" in out
    machine = load_any(mine)
    assert isinstance(machine, Machine) and machine.core.call_cycles.value == pytest.approx(TRUTH[0], rel=0.1)
    assert document("plan", LAYERS[0], "-m", str(mine))["plans"][0]["machine"] == "mine"
    before = mine.read_bytes()
    assert "is there already and is kept" in refused(2, *words)
    assert mine.read_bytes() == before
    assert document(*words, "--force")["calibrations"][0]["rounds"] >= MIN_ROUNDS
    assert mine.read_bytes() != before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base.toml", "mine.toml"]


def test_nothing_is_written_where_a_measurement_cannot_hold(
    truth: Machine, plans: tuple[Measured, ...], zen4_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Synthetic):
        def read(self, nbytes: int) -> float:
            return 1e6 * super().read(nbytes)

    monkeypatch.setattr(cpu_lab, "HostLab", lambda on: Broken(truth, plans))
    result = invoke("machines", "calibrate", "-m", str(zen4_file), "--budget", "1", "-o", str(tmp_path / "mine.toml"))
    assert result.exit_code == 2 and "read_bytes_per_cycle" in result.stderr
    assert not (tmp_path / "mine.toml").exists()


def test_what_cannot_be_calibrated_is_said_before_anything_is_measured(zen4_file: Path, tmp_path: Path) -> None:
    assert "is never changed" in refused(2, "machines", "calibrate", "-m", str(zen4_file))
    assert "is not known to be this computer" in refused(3, "machines", "calibrate", "-m", "zen4", "-o", str(tmp_path / "mine.toml"))
    assert f"there is no folder {tmp_path / 'none'}" in refused(2, "machines", "calibrate", "-o", str(tmp_path / "none" / "mine.toml"))
    assert "ends in .toml" in refused(2, "machines", "calibrate", "-o", str(tmp_path / "mine.json"))
    assert refused(2, "machines", "calibrate", "-o", "/proc/mine.toml").endswith("mine.toml cannot be written: No such file or directory")
    assert "emulated" in refused(2, "machines", "calibrate", "-m", "power10-e1050", "-o", str(tmp_path / "mine.toml"))


@native
@pytest.mark.usefixtures("lab", "own_files")
def test_a_calibrated_host_stays_so_until_it_is_detected_again(monkeypatch: pytest.MonkeyPatch) -> None:
    if not any(unit.target == "avx512" for unit in host.detect(cached=False).core.units):
        pytest.skip("the recorded plans are of AVX-512 kernels")
    assert "plans with -m host" in ok("machines", "calibrate", "--budget", "1")
    kept = host.detect()
    assert kept.core.call_cycles.source == FIT and kept.levels[0].latency_cycles.source == SOURCE
    assert "is already calibrated" in refused(2, "machines", "calibrate", "--budget", "1")
    ok("machines", "calibrate", "--budget", "1", "--force")
    assert host.detect(cached=False).core.call_cycles.source != FIT


@native
@pytest.mark.usefixtures("own_files")
def test_this_computer_is_calibrated_in_rounds_of_its_own_probes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cpu_lab, "LAYERS", LAYERS[:4])
    result = invoke("machines", "calibrate", "--budget", "4", "-o", str(tmp_path / "mine.toml"), "--json")
    if result.exit_code == 2:  # a machine so busy that rounds agree on nothing says that
        assert "use this CPU too much now" in result.stderr or "nothing is written" in result.stderr
        return
    assert result.exit_code == 0, result.output
    machine = load_any(tmp_path / "mine.toml")
    assert isinstance(machine, Machine) and machine.core.call_cycles.kind == "fitted"
    assert machine.core.frequency_hz.source == SOURCE and machine.name == "mine"


def test_recorded_calibrations_beside_a_busy_process_call_no_number_sure_that_is_5_percent_off() -> None:
    rows = [json.loads(line) for line in LOAD.read_text().splitlines()[1:]]
    quiet, loaded = ([row for row in rows if (row["busy"] > 0) == beside] for beside in (False, True))
    assert quiet and all(row["others"] < BUSY for row in quiet) and len(loaded) >= 10
    for row in loaded:
        sure = {name: value for name, (value, _, doubt) in row["numbers"].items() if not doubt}
        assert len(sure) >= 10
        for name, value in sure.items():
            assert value == pytest.approx(quiet[0]["numbers"][name][0], rel=SURE), name
