# SPDX-License-Identifier: Apache-2.0
"""A computer whose geometry lies in files of a test and whose probes say what they are told."""

import threading
from pathlib import Path

import pytest

from pysim.calibration import detected, host
from pysim.calibration.host import detect
from pysim.calibration.linux import Geometry
from pysim.machine.cpu import Machine
from pysim.measure.cpu_load import Load
from pysim.registry.cpu import cpu_kernels

GENOA = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n\nmodel\t: 1\n"
ICE_LAKE = "vendor_id : GenuineIntel\ncpu family : 6\nmodel : 106\nmodel name : Intel(R) Xeon(R) Gold 6338 CPU\n"
ZEN4_CACHES = [Geometry(1, 64, 8, 64, "0-1"), Geometry(2, 2048, 8, 64, "0-1"), Geometry(3, 32768, 16, 64, "0-7")]


class FakeProbes:
    """Round rates at 4 GHz; what was asked is kept, and any rate can be replaced."""

    def __init__(self, targets: tuple[str, ...] = ("avx512", "portable"), rates: dict[str, float] | None = None) -> None:
        self.targets = targets
        self.rates = {"clock": 4e9, "fma": 8e9, "read": 128e9, "write": 64e9, "line": 5e-8} | (rates or {})
        self.streams: list[int] = []  # of one core
        self.together: list[int] = []  # of several at once

    def available_kernels(self) -> frozenset[str]:
        rows = {row.name for row in cpu_kernels() if row.target in self.targets}
        return frozenset(rows | {f"f32_win_8x4__{target}" for target in self.targets})

    def probe_clock(self) -> float:
        return self.rates["clock"]

    def probe_fma(self, target: str, dtype: str) -> float:
        assert target in self.targets and dtype == "f32"
        return self.rates["fma"]

    def probe_read(self, nbytes: int, seconds: float) -> float:
        assert 0 < seconds < 0.1
        alone = threading.current_thread() is threading.main_thread()
        (self.streams if alone else self.together).append(nbytes)
        return self.rates["read"]

    def probe_write(self, nbytes: int, seconds: float) -> float:
        assert 0 < seconds < 0.1
        return self.rates["write"]

    def probe_line_transfer(self, nbytes: int, line_bytes: int, seconds: float) -> float:
        assert nbytes == line_bytes and 0 < seconds < 0.1
        return self.rates["line"]


class Others:
    """What other processes have of the processors: nothing, until a test says so."""

    share = 0.0

    def __call__(self, threads: int = 1) -> "Others":
        return self

    def load(self) -> Load:
        return Load(self.share, 0.0, 0)


@pytest.fixture(autouse=True)
def others(monkeypatch: pytest.MonkeyPatch) -> Others:
    made = Others()
    monkeypatch.setattr(detected, "PAUSE", 0.0)
    monkeypatch.setattr(detected, "Watch", made)
    monkeypatch.setattr(host, "share_of_others", lambda: made.share)
    monkeypatch.setattr(host, "_next_quiet_check", 0.0)
    return made


def no_getconf() -> str:
    raise AssertionError("getconf is for systems without sysfs")


def write_caches(sysfs: Path, caches: list[Geometry], threads: dict[str, str] | None = None) -> None:
    """A sysfs tree with these caches, an instruction cache, and the hardware threads of each CPU."""
    entries = [("Instruction", Geometry(1, 64, 8, 64, "0-1"))]
    entries += [("Data" if geometry.level == 1 else "Unified", geometry) for geometry in caches]
    for number, (kind, geometry) in enumerate(entries):
        index = sysfs / "cpu0" / "cache" / f"index{number}"
        index.mkdir(parents=True)
        (index / "type").write_text(f"{kind}\n")
        (index / "level").write_text(f"{geometry.level}\n")
        (index / "number_of_sets").write_text(f"{geometry.sets}\n")
        (index / "ways_of_associativity").write_text(f"{geometry.ways}\n")
        (index / "coherency_line_size").write_text(f"{geometry.line_bytes}\n")
        (index / "size").write_text(f"{geometry.size_bytes // 1024}K\n")
        (index / "shared_cpu_list").write_text(f"{geometry.cpus}\n")
    for cpu, siblings in (threads or {}).items():
        (sysfs / cpu / "topology").mkdir(parents=True)
        (sysfs / cpu / "topology" / "thread_siblings_list").write_text(f"{siblings}\n")


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Zen 4 with four cores of two threads."""
    root = tmp_path / "sys"
    write_caches(root, ZEN4_CACHES, {f"cpu{n}": f"{n // 2 * 2}-{n // 2 * 2 + 1}" for n in range(8)})
    return root


@pytest.fixture
def cpuinfo(tmp_path: Path) -> Path:
    path = tmp_path / "cpuinfo"
    path.write_text(GENOA)
    return path


def run(probes: FakeProbes, sysfs: Path, cpuinfo: Path, cache: Path, cached: bool = False) -> Machine:
    host._reported.cache_clear()  # as in another process
    return detect(cached, probes=probes, sysfs=sysfs, cpuinfo=cpuinfo, cache_dir=cache, run_getconf=no_getconf)
