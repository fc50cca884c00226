# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F811  # fixtures come by name
"""What a detection makes of other processes, of absurd readings and of CPUs that are hardware threads."""

import threading
from functools import partial
from pathlib import Path

import pytest
from fake_host import ZEN4_CACHES, FakeProbes, Others, cpuinfo, others, run, sysfs  # noqa: F401

from pysim.calibration import detected, host
from pysim.calibration.detected import footprints
from pysim.calibration.linux import Cpu
from pysim.calibration.nearest_machine import Relative
from pysim.machine.load import load
from pysim.measure import parallel_probe


def test_a_detection_beside_other_processes_says_so_and_is_usable(sysfs: Path, cpuinfo: Path, tmp_path: Path, others: Others) -> None:
    others.share = 0.43
    machine = run(FakeProbes(), sysfs, cpuinfo, tmp_path, cached=True)
    assert "beside other processes, which had 43%" in machine.description and "43%" in machine.sources["host_probes"].title
    assert machine.core.frequency_hz.value == 4e9
    others.share = 0.03
    calm = run(FakeProbes(), sysfs, cpuinfo, tmp_path, cached=False)
    assert "beside" not in calm.description + calm.sources["host_probes"].title


def test_it_is_kept_while_others_are_busy_and_repeated_when_they_are_not(
    sysfs: Path, cpuinfo: Path, tmp_path: Path, others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    others.share = 0.8
    disturbed = run(FakeProbes(rates={"clock": 3e9}), sysfs, cpuinfo, tmp_path, cached=True)
    again = FakeProbes()
    assert run(again, sysfs, cpuinfo, tmp_path, cached=True) == disturbed and again.streams == []
    others.share = 0.0
    assert run(again, sysfs, cpuinfo, tmp_path, cached=True) == disturbed  # looked a moment ago
    monkeypatch.setattr(host, "_next_quiet_check", 0.0)
    calm = run(again, sysfs, cpuinfo, tmp_path, cached=True)
    assert calm.core.frequency_hz.value == 4e9 and again.streams
    others.share = 0.8
    assert run(FakeProbes(), sysfs, cpuinfo, tmp_path, cached=True) == calm  # which nothing repeats


def test_a_detection_beside_other_processes_never_replaces_a_quiet_one(sysfs: Path, cpuinfo: Path, tmp_path: Path, others: Others) -> None:
    calm = run(FakeProbes(), sysfs, cpuinfo, tmp_path, cached=True)
    others.share = 0.8
    fresh = run(FakeProbes(rates={"clock": 3e9}), sysfs, cpuinfo, tmp_path, cached=False)
    assert fresh.core.frequency_hz.value == 3e9
    assert run(FakeProbes(), sysfs, cpuinfo, tmp_path, cached=True) == calm


def test_one_absurd_reading_is_measured_again(sysfs: Path, cpuinfo: Path, tmp_path: Path) -> None:
    class Hiccup(FakeProbes):
        def probe_read(self, nbytes: int, seconds: float) -> float:
            first = nbytes > 32 << 20 and nbytes not in self.streams
            return super().probe_read(nbytes, seconds) / (100 if first else 1)

    memory = run(Hiccup(), sysfs, cpuinfo, tmp_path).memory
    assert (memory.read_bytes_per_cycle.value, memory.read_bytes_per_cycle.kind) == (32.0, "measured")


def test_trials_are_repeated_until_the_two_best_agree(sysfs: Path, cpuinfo: Path, tmp_path: Path) -> None:
    class Interrupted(FakeProbes):
        """The first three readings of memory are plausible, but disturbed."""

        shares = iter((0.7, 0.5, 0.3))

        def probe_write(self, nbytes: int, seconds: float) -> float:
            return super().probe_write(nbytes, seconds) * (next(self.shares, 1.0) if nbytes > 32 << 20 else 1.0)

    machine = run(Interrupted(), sysfs, cpuinfo, tmp_path)
    assert machine.memory.write_bytes_per_cycle.value == 16.0 and machine.sources["host_probes"].note is None


def test_a_rate_whose_best_trials_never_agree_is_reported_as_not_sure(sysfs: Path, cpuinfo: Path, tmp_path: Path) -> None:
    class Drifting(FakeProbes):
        rate = 32e9

        def probe_read(self, nbytes: int, seconds: float) -> float:
            if nbytes <= 32 << 20:
                return super().probe_read(nbytes, seconds)
            self.rate *= 1.1
            return self.rate

    note = run(Drifting(), sysfs, cpuinfo, tmp_path).sources["host_probes"].note
    assert note is not None and note.startswith("not sure") and "memory read" in note and "write" not in note


def test_a_rate_that_stays_far_from_the_same_cpu_is_taken_over_and_assumed(sysfs: Path, cpuinfo: Path, tmp_path: Path) -> None:
    class Crawling(FakeProbes):
        def probe_read(self, nbytes: int, seconds: float) -> float:
            return 4.4e9 if nbytes > 32 << 20 else super().probe_read(nbytes, seconds)

    machine, zen4 = run(Crawling(), sysfs, cpuinfo, tmp_path), load("zen4")
    taken = machine.memory.read_bytes_per_cycle
    assert (taken.value, taken.kind) == (zen4.memory.read_bytes_per_cycle.value, "assumed")
    source = machine.sources[taken.source]
    assert source.title == "Taken over from zen4" and source.note is not None and "memory read 1.1, there 8.7" in source.note
    assert "memory.read_bytes_per_cycle" in machine.assumed()
    assert machine.levels[0].read_bytes_per_cycle.kind == "measured"


def test_a_clock_that_no_such_cpu_has_spoils_no_rate(sysfs: Path, cpuinfo: Path, tmp_path: Path) -> None:
    machine, zen4 = run(FakeProbes(rates={"clock": 4e8}), sysfs, cpuinfo, tmp_path), load("zen4")
    assert machine.core.frequency_hz.value == zen4.core.frequency_hz.value
    assert machine.levels[0].read_bytes_per_cycle.value == pytest.approx(128e9 / zen4.core.frequency_hz.value)


def test_all_cores_together_get_no_less_than_one_and_no_more_than_each_alone(sysfs: Path, cpuinfo: Path, tmp_path: Path) -> None:
    for factor, expected in ((0.01, 32.0), (3.0, 4 * 32.0)):

        class Uneven(FakeProbes):
            def probe_read(self, nbytes: int, seconds: float, factor: float = factor) -> float:
                rate = super().probe_read(nbytes, seconds)
                return rate if threading.current_thread() is threading.main_thread() else rate * factor

        total = run(Uneven(), sysfs, cpuinfo, tmp_path).memory.total_read_bytes_per_cycle
        assert total is not None and total.value == expected


def test_cpus_that_multiply_as_half_as_many_cores_are_hardware_threads_that_a_virtual_machine_hides() -> None:
    class Paired(FakeProbes):
        def probe_fma(self, target: str, dtype: str) -> float:
            alone = threading.current_thread() is threading.main_thread()
            return super().probe_fma(target, dtype) * (1.0 if alone else self.rates["together"])

    for together, cores in ((1.0, 16), (0.7, 16), (0.55, 8)):
        probes = Paired(rates={"together": together})
        assert detected.measure(Cpu("AuthenticAMD", "AMD EPYC 9654", 25, 0x11), ZEN4_CACHES, 16, probes).machine.cores == cores


def test_a_level_is_measured_where_it_is_near_however_large_it_is() -> None:
    sizes = [48 << 10, 2 << 20, 480 << 20]
    assert footprints(sizes) == [24 << 10, 192 << 10, 8 << 20]
    assert footprints([32 << 10, 256 << 10, 1 << 20])[2] == 512 << 10


def test_what_many_cores_share_is_not_measured_in_what_each_has_of_its_own() -> None:
    probes = FakeProbes()
    detected.measure(Cpu("AuthenticAMD", "AMD EPYC 9654", 25, 0x11), ZEN4_CACHES, 16, probes)
    assert min(probes.together) > 1 << 20  # of a core: 1 MiB of L2, a sixteenth of 32 MiB of L3


def test_the_slowest_of_cpus_that_are_busy_at_once_is_distinguished_from_all_on_average() -> None:
    class OneIsShared(FakeProbes):
        turn = 0

        def probe_fma(self, target: str, dtype: str) -> float:
            if threading.current_thread() is threading.main_thread():
                return super().probe_fma(target, dtype)
            self.turn += 1
            return super().probe_fma(target, dtype) * (0.5 if self.turn % 4 == 0 else 1.0)

    core = detected.measure(Cpu("AuthenticAMD", "AMD EPYC 9654", 25, 0x11), ZEN4_CACHES, 4, OneIsShared()).machine.core
    assert [one.cpus for one in core.together] == [2, 4]
    assert (core.together[1].slowest_share.value, core.together[1].mean_share.value) == (0.5, 0.875)


@pytest.mark.skipif(len(parallel_probe.usable()) < 2, reason="needs two CPUs that the system tells apart")
def test_threads_that_multiply_at_once_do_so_on_cpus_of_their_own() -> None:
    """Left to itself the system keeps both on one CPU for longer than a probe takes."""
    before = set(parallel_probe.usable())
    for _ in range(20):
        assert len(set(parallel_probe.all_at_once(lambda: min(parallel_probe.usable()), 2))) == 2
    assert set(parallel_probe.usable()) == before
    assert parallel_probe.all_at_once(lambda: 1.0, len(before) + 1) == [1.0] * (len(before) + 1)


@pytest.mark.skipif(len(parallel_probe.usable()) < 2, reason="needs two CPUs that the system tells apart")
def test_another_machine_on_a_core_is_no_share_that_the_team_takes() -> None:
    """Its CPU is as slow while the others are idle."""

    class Beside(FakeProbes):
        def probe_fma(self, target: str, dtype: str) -> float:
            return super().probe_fma(target, dtype) * (0.65 if min(parallel_probe.usable()) == slow else 1.0)

    slow, probes = max(parallel_probe.usable()), Beside()
    assert detected.shares(partial(probes.probe_fma, min(probes.targets), "f32"), 2) == (1.0, 1.0)


@pytest.mark.skipif(len(parallel_probe.usable()) < 2, reason="needs two CPUs that the system tells apart")
def test_cpus_are_read_alone_where_their_team_runs() -> None:
    before = set(parallel_probe.usable())
    assert parallel_probe.one_by_one(lambda: min(parallel_probe.usable()), 2) == sorted(
        parallel_probe.all_at_once(lambda: min(parallel_probe.usable()), 2)
    )
    assert set(parallel_probe.usable()) == before


def test_what_passes_between_trials_is_not_taken_for_what_others_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that sleeps does not run, which is what `Watch` counts as others'."""
    monkeypatch.setattr(detected, "PAUSE", 1e-3)
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("a detection sleeps"))
    detected.measure(Cpu("AuthenticAMD", "AMD EPYC 9654", 25, 0x11), ZEN4_CACHES, 4, FakeProbes())


def test_strangers_that_take_cores_now_and_then_leave_a_machine_its_cores() -> None:
    class Disturbed(FakeProbes):
        calls = 0

        def probe_fma(self, target: str, dtype: str) -> float:
            if threading.current_thread() is threading.main_thread():
                return super().probe_fma(target, dtype)
            self.calls += 1
            return super().probe_fma(target, dtype) * (
                1.0 if self.calls > (2 + 4 + 8) * detected.SHARE_TRIALS - 8 else 0.5
            )  # all but the last of all CPUs

    machine = detected.measure(Cpu("AuthenticAMD", "AMD EPYC 9654", 25, 0x11), ZEN4_CACHES, 8, Disturbed()).machine
    assert machine.cores == 8 and machine.core.together[-1].mean_share.value < detected.MIN_CORE_SHARE


def test_a_unit_of_tiles_has_the_rate_of_its_median_time_and_costs_its_stores() -> None:
    """Two of three times it multiplies at a third of its best rate, and one of ten readings is interrupted; vectors keep their best."""

    class Throttled(FakeProbes):
        turn = 0

        def probe_fma(self, target: str, dtype: str) -> float:
            if target != "amx":
                return super().probe_fma(target, dtype)
            self.turn += 1
            return 1.2e9 / (100 if self.turn % 10 == 5 else 1 if self.turn % 3 == 0 else 3)

    cpu, probes = Cpu("GenuineIntel", "Intel(R) Xeon(R) Processor", 6, 207), Throttled(("amx", "avx512", "portable"))
    machine = detected.measure(cpu, ZEN4_CACHES, 4, probes).machine
    tiles, vectors, shipped = machine.unit_of("amx"), machine.unit_of("avx512"), load("emerald-rapids").unit_of("amx")
    share = tiles.fma_per_cycle.value / 0.3
    assert pytest.approx(share) == 1 / 3 and vectors.fma_per_cycle.value == 2.0
    assert [one.fma_per_cycle.value / of.fma_per_cycle.value for one, of in zip(tiles.types, shipped.types, strict=True)] == pytest.approx(
        [share] * len(shipped.types)
    )
    assert tiles.tile_store_cycles is not None and tiles.tile_store_cycles == shipped.tile_store_cycles
    assert tiles.short_calls is not None and tiles.short_calls == shipped.short_calls


def test_what_a_unit_of_tiles_keeps_on_several_cpus_is_measured_and_in_a_brief_detection_taken_from_what_is_shipped() -> None:
    class Limited(FakeProbes):
        def probe_fma(self, target: str, dtype: str) -> float:
            alone = threading.current_thread() is threading.main_thread() or target != "amx"
            return (0.3 if target == "amx" else super().probe_fma(target, dtype) / 1e9) * 1e9 * (1.0 if alone else 0.25)

    cpu, probes = Cpu("GenuineIntel", "Intel(R) Xeon(R) Processor", 6, 207), Limited(("amx", "avx512", "portable"))
    machine = detected.measure(cpu, ZEN4_CACHES, 4, probes).machine
    assert [(one.cpus, one.mean_share.value) for one in machine.unit_of("amx").together] == [(2, 0.25), (4, 0.25)]
    assert [one.mean_share.value for one in machine.core.together] == [1.0, 1.0] and not machine.unit_of("avx512").together
    brief = detected.measure(cpu, ZEN4_CACHES, 4, probes, brief=True).machine
    assert brief.unit_of("amx").together == load("emerald-rapids").unit_of("amx").together


class Neighboured(FakeProbes):
    """Of the last level a core keeps `kept` bytes at random; memory has 16 GB/s."""

    def __init__(self, kept: float) -> None:
        super().__init__()
        self.kept = kept

    def probe_read(self, nbytes: int, seconds: float) -> float:
        super().probe_read(nbytes, seconds)
        hits = 0.0 if nbytes > 32 << 20 else min(1.0, self.kept / nbytes)
        return 1 / (hits / 128e9 + (1 - hits) / 16e9)


@pytest.mark.parametrize(("mib", "ways"), [(32, 16), (26, 16), (16, 8), (13, 7), (6, 3)])
def test_neighbours_have_the_ways_of_the_last_level_that_a_core_does_not_keep(
    mib: float, ways: int, sysfs: Path, cpuinfo: Path, tmp_path: Path
) -> None:
    machine = run(Neighboured(mib * 2**20), sysfs, cpuinfo, tmp_path)
    last = machine.levels[-1]
    assert (last.ways, last.sets, last.source) == (ways, 32768, "host_system" if ways == 16 else "host_share")
    assert machine.csa is not None and machine.csa.l3_bytes == last.size_bytes


def test_what_neighbours_bring_into_the_last_level_is_that_of_the_same_cpu(
    monkeypatch: pytest.MonkeyPatch, sysfs: Path, cpuinfo: Path, tmp_path: Path
) -> None:
    zen3 = load("zen3")
    monkeypatch.setattr(detected, "relative", lambda *_: Relative(zen3, same=True))
    beside, alone = (run(Neighboured(mib * 2**20), sysfs, cpuinfo, tmp_path / str(mib)).levels[-1] for mib in (13, 32))
    assert beside.others_bytes_per_cycle == zen3.levels[-1].others_bytes_per_cycle
    assert beside.others_bytes_per_cycle is not None and alone.others_bytes_per_cycle is None
