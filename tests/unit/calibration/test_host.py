# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F811  # fixtures come by name
"""The machine "host": what Linux says and the probes measure is one machine; nonsense is refused, results are kept."""

import itertools
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fake_host import ICE_LAKE, ZEN4_CACHES, FakeProbes, cpuinfo, no_getconf, others, run, sysfs, write_caches  # noqa: F401
from hypothesis import given
from hypothesis import strategies as st

import pysim
from pysim.calibration import detected, host
from pysim.calibration.host import detect
from pysim.calibration.linux import Cpu, Geometry, getconf, read_caches, read_cpu
from pysim.calibration.nearest_machine import relative
from pysim.errors import MachineError, MissingError, PlanError
from pysim.machine.load import load, loads
from pysim.machine.write import to_toml
from pysim.registry.cpu import cpu_kernels

if TYPE_CHECKING:
    from pysim.machine.cpu import Level, Memory

# Geometry


def test_geometry_cores_and_sharing_are_those_of_sysfs(sysfs: Path, cpuinfo: Path, tmp_path: Path) -> None:
    machine = run(FakeProbes(), sysfs, cpuinfo, tmp_path)
    assert [(x.name, x.sets, x.ways, x.line_bytes, x.shared) for x in machine.levels] == [
        ("L1", 64, 8, 64, False),
        ("L2", 2048, 8, 64, False),
        ("L3", 32768, 16, 64, True),
    ]
    assert machine.cores == 4
    assert {(x.kind, x.source) for x in machine.levels} == {("measured", "host_system")}


def test_sets_or_ways_that_are_missing_follow_from_the_size(sysfs: Path) -> None:
    (sysfs / "cpu0/cache/index2/number_of_sets").unlink()
    (sysfs / "cpu0/cache/index3/ways_of_associativity").write_text("0\n")
    assert read_caches(sysfs, no_getconf) == ZEN4_CACHES


def test_geometry_that_sysfs_leaves_open_is_an_error_that_names_the_place(sysfs: Path) -> None:
    (sysfs / "cpu0/cache/index2/coherency_line_size").write_text("garbage")
    with pytest.raises(MachineError, match=r"index2: level 2, 2048 sets, 8 ways, lines of 0 bytes.*machine file"):
        read_caches(sysfs, no_getconf)


def test_a_level_that_is_reported_twice_or_not_at_all_is_an_error(sysfs: Path) -> None:
    (sysfs / "cpu0/cache/index2/level").write_text("3\n")
    with pytest.raises(MachineError, match="L1, L3, L3 are reported"):
        read_caches(sysfs, no_getconf)


GETCONF = """LEVEL1_DCACHE_SIZE                 49152
LEVEL1_DCACHE_ASSOC                12
LEVEL1_DCACHE_LINESIZE             64
LEVEL2_CACHE_SIZE                  2097152
LEVEL2_CACHE_ASSOC                 16
LEVEL2_CACHE_LINESIZE              64
LEVEL3_CACHE_SIZE
PAGESIZE                           4096
"""


def test_a_last_level_that_is_smaller_than_the_one_before_is_none(tmp_path: Path) -> None:
    share = ZEN4_CACHES[-1]._replace(sets=ZEN4_CACHES[1].sets // 2, ways=ZEN4_CACHES[1].ways)
    write_caches(tmp_path, [*ZEN4_CACHES[:-1], share], {f"cpu{n}": str(n) for n in range(2)})
    assert [found.level for found in read_caches(tmp_path, no_getconf)] == [1, 2]


def test_without_sysfs_getconf_tells_the_geometry(tmp_path: Path) -> None:
    found = read_caches(tmp_path, lambda: GETCONF)
    assert found == [Geometry(1, 64, 12, 64, ""), Geometry(2, 2048, 16, 64, "")]


def test_a_machine_without_a_third_level_is_detected_and_has_no_slicing_analysis(cpuinfo: Path, tmp_path: Path) -> None:
    machine = detect(False, probes=FakeProbes(), sysfs=tmp_path, cpuinfo=cpuinfo, cache_dir=tmp_path, run_getconf=lambda: GETCONF)
    assert [level.name for level in machine.levels] == ["L1", "L2"]
    assert machine.csa is None and machine.cores >= 1


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("", "getconf reports no caches"),
        ("LEVEL1_DCACHE_SIZE 0\n", "getconf reports no caches"),
        (
            GETCONF + "LEVEL3_CACHE_SIZE 335544320\nLEVEL3_CACHE_ASSOC 0\nLEVEL3_CACHE_LINESIZE 64\n",
            "L3 335544320 bytes, 0 ways",
        ),
        (GETCONF.replace("49152", "49153"), "L1 49153 bytes"),
    ],
)
def test_where_neither_tells_the_geometry_the_error_says_what_to_do(tmp_path: Path, output: str, says: str) -> None:
    with pytest.raises(MachineError, match=f"{says}.*Write a machine file"):
        read_caches(tmp_path, lambda: output)


def test_a_getconf_that_does_not_run_is_a_machine_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(MachineError, match="does not run"):
        getconf()


@given(st.binary(max_size=60), st.sampled_from(["level", "number_of_sets", "ways_of_associativity", "size", "type"]))
def test_random_bytes_in_sysfs_give_a_geometry_or_a_machine_error(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, name: str
) -> None:
    root = tmp_path_factory.mktemp("sys")
    write_caches(root, ZEN4_CACHES)
    (root / "cpu0/cache/index2" / name).write_bytes(noise)
    try:
        found = read_caches(root, no_getconf)
    except MachineError:
        return
    assert all(geometry.size_bytes > 0 for geometry in found)


# Who made it


def test_the_cpu_is_the_first_processor_of_cpuinfo(cpuinfo: Path) -> None:
    assert read_cpu(cpuinfo) == Cpu("AuthenticAMD", "AMD EPYC", 25, 17)


def test_an_arm_core_is_known_by_implementer_and_part(tmp_path: Path) -> None:
    text = "processor\t: 0\nBogoMIPS\t: 2000.00\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: 0xd4f\n"
    (tmp_path / "arm").write_text(text)
    cpu = read_cpu(tmp_path / "arm")
    assert (cpu.vendor, cpu.family, cpu.model) == ("0x41", 0, 0xD4F) and relative(cpu).machine.name == "graviton4"
    (tmp_path / "odd").write_text("CPU implementer: 0x41\nCPU part: d4f\n")
    assert read_cpu(tmp_path / "odd").model == 0 and not relative(read_cpu(tmp_path / "odd")).same


def test_a_missing_or_odd_cpuinfo_still_names_the_machine(tmp_path: Path) -> None:
    assert read_cpu(tmp_path / "absent").name
    (tmp_path / "odd").write_bytes(b"\xff: \xfe\nmodel : many\ncpu family : 9999999999999999\n:::")
    cpu = read_cpu(tmp_path / "odd")
    assert (cpu.vendor, cpu.family, cpu.model) == ("", 0, 0) and cpu.name


@pytest.mark.parametrize(
    ("cpu", "name", "same"),
    [
        (Cpu("AuthenticAMD", "AMD EPYC 9654", 25, 0x11), "zen4", True),
        (Cpu("AuthenticAMD", "AMD Ryzen 9 7950X", 25, 0x61), "zen4", True),
        (Cpu("AuthenticAMD", "AMD EPYC 7763", 25, 0x01), "zen3", True),
        (Cpu("AuthenticAMD", "AMD Ryzen 7 5800X", 25, 0x21), "zen3", True),
        (Cpu("AuthenticAMD", "AMD EPYC 7742", 23, 0x31), "zen3", False),
        (Cpu("AuthenticAMD", "AMD EPYC 9755", 26, 0x02), "zen5", True),
        (Cpu("AuthenticAMD", "AMD Ryzen 9 9950X", 26, 0x44), "zen5", True),
        (Cpu("AuthenticAMD", "AMD Ryzen AI 9 HX 370", 26, 0x24), "zen5", False),
        (Cpu("GenuineIntel", "INTEL(R) XEON(R) PLATINUM 8581C", 6, 0xCF), "emerald-rapids", True),
        (Cpu("GenuineIntel", "Intel(R) Xeon(R) 6985P-C", 6, 0xAD), "granite-rapids", True),
        (Cpu("0x41", "aarch64", 0, 0xD4F), "graviton4", True),
        (Cpu("0x41", "aarch64", 0, 0xD0C), "graviton4", False),
        (Cpu("0x61", "aarch64", 0, 0x25), "apple-m1-pro", True),
        (Cpu("0x61", "aarch64", 0, 0x33), "apple-m1-pro", False),
        (Cpu("GenuineIntel", "Intel Xeon Platinum 8470", 6, 143), "sapphire-rapids", True),
        (Cpu("GenuineIntel", "Intel Xeon Silver 4208", 6, 85), "xeon-4208", True),
        (Cpu("GenuineIntel", "Intel Xeon Gold 6338", 6, 106), "sapphire-rapids", False),
        (Cpu("", "POWER10 (architected), altivec supported", 0, 0), "power10-e1050", True),
        (Cpu("", "POWER9, altivec supported", 0, 0), "power10-e1050", False),
        (Cpu("", "aarch64", 0, 0), "zen4", False),
    ],
)
def test_unmeasured_numbers_come_from_the_same_or_the_nearest_microarchitecture(cpu: Cpu, name: str, same: bool) -> None:
    found = relative(cpu)
    assert (found.machine.name, found.same) == (name, same)


def test_on_a_known_microarchitecture_latencies_keep_their_kind_and_source(sysfs: Path, cpuinfo: Path, tmp_path: Path) -> None:
    machine, zen4 = run(FakeProbes(), sysfs, cpuinfo, tmp_path), load("zen4")
    assert [x.latency_cycles for x in machine.levels] == [x.latency_cycles for x in zen4.levels]
    assert machine.memory.latency_cycles == zen4.memory.latency_cycles
    assert machine.core.call_cycles == zen4.core.call_cycles
    assert machine.core.overlap == zen4.core.overlap
    assert machine.sources["bandwidths"] == zen4.sources["bandwidths"]


def test_on_an_unknown_microarchitecture_they_are_assumed_and_say_from_where(sysfs: Path, cpuinfo: Path, tmp_path: Path) -> None:
    cpuinfo.write_text(ICE_LAKE)
    machine, shipped = run(FakeProbes(), sysfs, cpuinfo, tmp_path), load("sapphire-rapids")
    for level, known in zip(machine.levels, shipped.levels, strict=True):
        assert level.latency_cycles.value == known.latency_cycles.value
        assert (level.latency_cycles.kind, level.latency_cycles.source) == ("assumed", "host_from_sapphire-rapids")
    assert "levels.L1.latency_cycles" in machine.assumed() and "core.units.avx512.loads_per_cycle" in machine.assumed()
    assert machine.sources["host_from_sapphire-rapids"].note


# What is measured


def test_rates_are_divided_by_the_measured_clock(sysfs: Path, cpuinfo: Path, tmp_path: Path) -> None:
    machine = run(FakeProbes(), sysfs, cpuinfo, tmp_path)
    assert machine.core.frequency_hz.value == 4e9
    assert [(unit.target, unit.fma_per_cycle.value) for unit in machine.core.units] == [
        ("avx512", 2.0),
        ("portable", 2.0),
    ]
    places: list[Level | Memory] = [*machine.levels, machine.memory]
    for where in places:
        assert (where.read_bytes_per_cycle.value, where.write_bytes_per_cycle.value) == (32.0, 16.0)
        assert where.read_bytes_per_cycle.kind == "measured"


def test_a_clock_reading_that_was_disturbed_makes_no_rate_higher(sysfs: Path, cpuinfo: Path, tmp_path: Path) -> None:
    class Disturbed(FakeProbes):
        readings = itertools.cycle((1e9, 4e9))

        def probe_clock(self) -> float:
            return next(self.readings)

    machine = run(Disturbed(), sysfs, cpuinfo, tmp_path)
    assert machine.core.frequency_hz.value == 4e9 and machine.core.units[0].fma_per_cycle.value == 2.0


def test_a_core_that_is_shared_for_a_while_has_the_rates_of_one_alone(sysfs: Path, cpuinfo: Path, tmp_path: Path) -> None:
    class Shared(FakeProbes):
        """Two readings of three are beside another thread."""

        turns = itertools.cycle((0.6, 0.7, 1.0))

        def probe_fma(self, target: str, dtype: str) -> float:
            return super().probe_fma(target, dtype) * next(self.turns)

    assert [unit.fma_per_cycle.value for unit in run(Shared(), sysfs, cpuinfo, tmp_path).core.units] == [2.0, 2.0]


def test_a_clock_that_wanders_changes_what_is_found_a_cycle_of_nothing_but_memory(sysfs: Path, cpuinfo: Path, tmp_path: Path) -> None:
    """The highest clock is kept; 3 GHz later, multiply-adds and caches are slower by as much, and memory is not."""

    class Wandering(FakeProbes):
        readings = 0

        def probe_clock(self) -> float:
            self.readings += 1
            return 4e9 if self.readings <= detected.CLOCK_TRIALS else 3e9

        def probe_fma(self, target: str, dtype: str) -> float:
            return 8e9 * (0.75 if self.readings > detected.CLOCK_TRIALS else 1.0)

        def probe_read(self, nbytes: int, seconds: float) -> float:
            return super().probe_read(nbytes, seconds) * (1.0 if nbytes > 32 << 20 else 0.75)

    machine = run(Wandering(), sysfs, cpuinfo, tmp_path)
    assert (machine.clock_hz, machine.core.units[0].fma_per_cycle.value) == (4e9, 2.0)
    assert [place.read_bytes_per_cycle.value for place in (*machine.levels, machine.memory)] == [32.0] * 4


def test_each_level_is_measured_inside_it_and_outside_the_one_before(sysfs: Path, cpuinfo: Path, tmp_path: Path) -> None:
    probes = FakeProbes()
    run(probes, sysfs, cpuinfo, tmp_path)
    l1, l2, l3, memory = dict.fromkeys(probes.streams)
    assert l1 <= 32 << 10 < l2 < 1 << 20 < l3 < 32 << 20 < memory
    assert 2 * l1 <= 32 << 10 and 4 * l2 <= 1 << 20 and 4 * l3 <= 32 << 20 and memory >= 2 * (32 << 20)


def test_what_cores_share_is_measured_by_all_of_them_at_once(sysfs: Path, cpuinfo: Path, tmp_path: Path) -> None:
    probes = FakeProbes()
    machine = run(probes, sysfs, cpuinfo, tmp_path)
    l1, l2, l3 = machine.levels
    assert l1.total_read_bytes_per_cycle is None and l2.total_read_bytes_per_cycle is None
    for place in (l3, machine.memory):
        assert place.total_read_bytes_per_cycle and place.total_read_bytes_per_cycle.value == machine.cores * 32.0
        assert place.total_write_bytes_per_cycle and place.total_write_bytes_per_cycle.value == machine.cores * 16.0
    assert machine.cores > 1 and len(probes.together) == 2 * machine.cores
    in_l3, in_memory = sorted(set(probes.together))
    assert in_memory == probes.streams[-1] // machine.cores // 4096 * 4096
    assert l2.size_bytes < in_l3 <= l3.size_bytes // machine.cores


def test_units_are_those_that_this_cpu_can_run(sysfs: Path, cpuinfo: Path, tmp_path: Path) -> None:
    machine = run(FakeProbes(targets=("portable",)), sysfs, cpuinfo, tmp_path)
    assert [unit.target for unit in machine.core.units] == ["portable"]
    with pytest.raises(MachineError, match="no kernel that this CPU can run"):
        run(FakeProbes(targets=()), sysfs, cpuinfo, tmp_path)


def test_a_unit_that_the_relative_lacks_comes_from_another_machine(sysfs: Path, cpuinfo: Path, tmp_path: Path) -> None:
    machine = run(FakeProbes(targets=("mma",)), sysfs, cpuinfo, tmp_path)
    unit, known = machine.unit("mma"), load("power10-e1050").unit("mma")
    assert unit is not None and known is not None
    assert (unit.vector_bytes, unit.loads_per_cycle.value) == (known.vector_bytes, known.loads_per_cycle.value)
    assert unit.loads_per_cycle.source == "host_from_power10-e1050"
    with pytest.raises(MachineError, match="no shipped machine describes the target abacus"):
        run(FakeProbes(targets=("abacus",)), sysfs, cpuinfo, tmp_path)


@pytest.mark.parametrize("probe", ["clock", "fma", "read", "write"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_a_probe_that_measures_nonsense_is_a_machine_error(sysfs: Path, cpuinfo: Path, tmp_path: Path, probe: str, value: float) -> None:
    with pytest.raises(MachineError, match=r"probe measured .* finite and greater than 0"):
        run(FakeProbes(rates={probe: value}), sysfs, cpuinfo, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_the_slicing_analysis_of_the_host_has_its_own_sizes(sysfs: Path, cpuinfo: Path, tmp_path: Path) -> None:
    csa = run(FakeProbes(), sysfs, cpuinfo, tmp_path).csa
    assert csa is not None and (csa.l1_bytes, csa.l2_bytes, csa.l3_bytes) == (32 << 10, 1 << 20, 32 << 20)


def test_the_host_names_every_source_it_uses_and_no_other(sysfs: Path, cpuinfo: Path, tmp_path: Path) -> None:
    machine = run(FakeProbes(), sysfs, cpuinfo, tmp_path)
    assert machine.name == "host" and loads(to_toml(machine)) == machine
    text = to_toml(machine)
    assert all(f'source = "{key}"' in text for key in machine.sources)


def test_the_native_probes_describe_this_machine(tmp_path: Path) -> None:
    try:
        machine = detect(False, cache_dir=tmp_path)
    except MissingError as error:
        pytest.skip(str(error))
    assert 2e8 < machine.core.frequency_hz.value < 1e10
    assert all(0.1 < unit.fma_per_cycle.value < 64 for unit in machine.core.units)
    assert all(0.1 < level.read_bytes_per_cycle.value < 512 for level in machine.levels)
    assert detect(True, cache_dir=tmp_path) == machine


# What is kept


def test_a_second_detection_measures_nothing(sysfs: Path, cpuinfo: Path, tmp_path: Path) -> None:
    first = run(FakeProbes(), sysfs, cpuinfo, tmp_path / "cache", cached=True)
    again = FakeProbes(rates={"clock": 1e9})
    assert run(again, sysfs, cpuinfo, tmp_path / "cache", cached=True) == first
    assert again.streams == []


def test_detection_on_request_measures_and_keeps_the_new_result(sysfs: Path, cpuinfo: Path, tmp_path: Path) -> None:
    run(FakeProbes(), sysfs, cpuinfo, tmp_path, cached=True)
    new = run(FakeProbes(rates={"clock": 2e9}), sysfs, cpuinfo, tmp_path, cached=False)
    assert new.core.frequency_hz.value == 2e9
    assert run(FakeProbes(), sysfs, cpuinfo, tmp_path, cached=True) == new


def test_a_cached_machine_is_parsed_once(tmp_path: Path, sysfs: Path, cpuinfo: Path) -> None:
    first, second, third = (run(FakeProbes(), sysfs, cpuinfo, tmp_path / "cache", cached=True) for _ in range(3))
    assert first == second and second is third


def test_another_cpu_or_geometry_is_detected_again(sysfs: Path, cpuinfo: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    run(FakeProbes(), sysfs, cpuinfo, cache, cached=True)
    (sysfs / "cpu0/cache/index3/number_of_sets").write_text("16384\n")
    assert run(FakeProbes(), sysfs, cpuinfo, cache, cached=True).levels[2].sets == 16384
    cpuinfo.write_text(ICE_LAKE)
    assert "6338" in run(FakeProbes(), sysfs, cpuinfo, cache, cached=True).core.name
    assert len(list(cache.iterdir())) == 3


def test_a_process_that_may_not_use_all_units_does_not_decide_which_ones_the_next_has(sysfs: Path, cpuinfo: Path, tmp_path: Path) -> None:
    limited = FakeProbes(targets=("portable",))  # as the library says under PYSIM_MAX_TARGET or where tiles are not granted
    assert [unit.target for unit in run(limited, sysfs, cpuinfo, tmp_path, cached=True).core.units] == ["portable"]
    whole = run(FakeProbes(), sysfs, cpuinfo, tmp_path, cached=True)
    assert len(whole.core.units) > 1
    assert [unit.target for unit in run(limited, sysfs, cpuinfo, tmp_path, cached=True).core.units] == ["portable"]


@pytest.mark.parametrize("damage", ["", "schema = 1", "\x00", "= [", "name", "other machine"])
def test_a_cache_file_that_does_not_hold_is_measured_again(sysfs: Path, cpuinfo: Path, tmp_path: Path, damage: str) -> None:
    cache = tmp_path / "cache"
    first = run(FakeProbes(), sysfs, cpuinfo, cache, cached=True)
    (file,) = cache.iterdir()
    if damage == "other machine":
        damage = to_toml(load("zen4"))
    file.write_text(damage)
    probes = FakeProbes()
    assert run(probes, sysfs, cpuinfo, cache, cached=True) == first
    assert probes.streams and loads(file.read_text()) == first


def test_a_cache_that_is_not_text_or_is_a_directory_is_measured_again(sysfs: Path, cpuinfo: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = run(FakeProbes(), sysfs, cpuinfo, cache, cached=True)
    (file,) = cache.iterdir()
    file.write_bytes(b"\xff\xfe")
    assert run(FakeProbes(), sysfs, cpuinfo, cache, cached=True) == first
    file.unlink()
    file.mkdir()
    assert run(FakeProbes(), sysfs, cpuinfo, cache, cached=True).levels[0].sets == first.levels[0].sets


def test_a_cache_directory_that_cannot_be_written_is_no_error(sysfs: Path, cpuinfo: Path, tmp_path: Path) -> None:
    (tmp_path / "occupied").write_text("a file, so no directory can be made here")
    machine = run(FakeProbes(), sysfs, cpuinfo, tmp_path / "occupied" / "cache", cached=True)
    assert machine.name == "host"


def test_where_nothing_can_be_kept_detection_is_brief_and_once_a_process(
    sysfs: Path, cpuinfo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a CPU with a shipped file only the clock is measured, so every process plans alike; of another one each rate once."""
    monkeypatch.setattr(host, "_unkept", {})
    (tmp_path / "occupied").write_text("")
    nowhere, probes = tmp_path / "occupied" / "cache", FakeProbes()
    machine = run(probes, sysfs, cpuinfo, nowhere, cached=True)
    assert "briefly" in machine.description and probes.streams == []
    assert machine.levels[0].read_bytes_per_cycle == load("zen4").levels[0].read_bytes_per_cycle
    assert machine.core.frequency_hz.value == 4e9
    assert run(FakeProbes(rates={"clock": 1e9}), sysfs, cpuinfo, nowhere, cached=True) is machine
    assert "briefly" not in run(FakeProbes(), sysfs, cpuinfo, nowhere, cached=False).description

    cpuinfo.write_text("vendor_id : Strange\ncpu family : 1\nmodel : 1\nmodel name : Another CPU\n")
    unknown = FakeProbes()
    host._reported.cache_clear()
    other = run(unknown, sysfs, cpuinfo, nowhere, cached=True)
    assert other.levels[0].read_bytes_per_cycle.kind == "measured"
    assert len(unknown.streams) == 5  # three levels, and memory twice


def test_the_cache_lies_where_xdg_says_or_under_home(sysfs: Path, cpuinfo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for configured, where in [
        (str(tmp_path / "xdg"), tmp_path / "xdg" / "pysim"),
        ("relative/is/ignored", tmp_path / "home" / ".cache" / "pysim"),
        ("", tmp_path / "home" / ".cache" / "pysim"),
    ]:
        monkeypatch.setenv("XDG_CACHE_HOME", configured)
        detect(False, probes=FakeProbes(), sysfs=sysfs, cpuinfo=cpuinfo, run_getconf=no_getconf)
        (file,) = where.iterdir()
        assert file.name.startswith("host-") and file.suffix == ".toml"
        os.unlink(file)


def test_channel_blocks_that_the_library_leaves_out_are_not_planned_and_the_reason_names_the_build() -> None:
    on, names = load("zen4"), frozenset(row.name for row in cpu_kernels())
    assert detected.as_built(on, names) == on == detected.as_built(on, frozenset())
    built = detected.as_built(on, names - {row.name for row in cpu_kernels() if row.target == "avx2" and row.in_blocks})
    assert [unit.target for unit in built.core.units if unit.planes_alone] == ["avx2"]
    assert loads(to_toml(built), "x") == built
    for text in ("conv:mb1ic16ih13oc16kh3ph1", "conv:mb1ic16ih13oc16kh4kw3", "conv:g16mb1ic16ih13oc16kh3ph1"):
        assert "avx2" in pysim.plan(text, on, layout="nchw8c").name
        with pytest.raises(PlanError, match=r"avx2: the library of zen4 leaves it out; with -Dtargets=all"):
            pysim.plan(text, built, layout="nchw8c")
        assert pysim.plan(text, built).name == pysim.plan(text, on).name


def test_tiles_that_avx512_has_are_left_out_with_the_channel_blocks_of_avx2() -> None:
    on, left_out = load("zen4"), {row.name for row in cpu_kernels() if row.left_out and row.target in ("avx2", "portable")}
    assert {name for name in left_out if name.startswith("f32_rows")} == {"f32_rows_64x1__avx2"}
    built = detected.as_built(on, frozenset(row.name for row in cpu_kernels()) - left_out)
    text = "conv:g16mb1ic16ih13oc16kh3ph1"
    assert "avx2" in pysim.plan(text, on, micro_kernel="f32_rows_64x1__avx2").name
    with pytest.raises(PlanError, match="f32_rows_64x1__avx2: the library of zen4 leaves it out"):
        pysim.plan(text, built, micro_kernel="f32_rows_64x1__avx2")
