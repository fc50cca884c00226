# SPDX-License-Identifier: Apache-2.0
"""This computer's CPU as Linux reports it: vendor, model, caches and cores, from /proc and sysfs, or else from `getconf -a`."""

import os
import platform
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pysim.errors import MachineError

SYSFS = Path("/sys/devices/system/cpu")
CPUINFO = Path("/proc/cpuinfo")
BY_HAND = "Write a machine file and pass its path (`pysim machines show zen4 --toml` prints one to start from)"


class Cpu(NamedTuple):
    """Vendor and model. On Arm, vendor and model are the implementer and part of MIDR, and the family is 0. On other architectures than x86
    and Arm both numbers are 0."""

    vendor: str
    name: str
    family: int
    model: int


class Geometry(NamedTuple):
    """One data or unified cache level as the system reports it; `cpus`: Linux's list of the CPUs that share it."""

    level: int
    sets: int
    ways: int
    line_bytes: int
    cpus: str

    @property
    def size_bytes(self) -> int:
        return self.sets * self.ways * self.line_bytes


def getconf() -> str:
    """The output of `getconf -a`; MachineError where it does not run."""
    try:
        return subprocess.run(["getconf", "-a"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise MachineError(f"`getconf -a` does not run: {error}") from None


def read_cpu(cpuinfo: Path = CPUINFO) -> Cpu:
    """The first processor of /proc/cpuinfo; unknown fields are empty or 0."""
    fields: dict[str, str] = {}
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    name = fields.get("model name") or fields.get("cpu") or platform.machine() or "unknown CPU"
    if implementer := fields.get("CPU implementer"):
        return Cpu(implementer, name, 0, _hexadecimal(fields.get("CPU part", "")))
    family, model = _whole(fields.get("cpu family", "")), _whole(fields.get("model", ""))
    return Cpu(fields.get("vendor_id", ""), name, family, model)


def _hexadecimal(text: str) -> int:
    """The value of text like 0xd4f; 0 for anything else."""
    return int(text, 16) if re.fullmatch(r"0x[0-9a-fA-F]{1,8}", text) else 0


def _whole(text: str) -> int:
    """A whole number of at most 15 digits; 0 for anything else."""
    return int(text) if text.isdecimal() and len(text) <= 15 else 0


def read_caches(sysfs: Path = SYSFS, run_getconf: Callable[[], str] = getconf) -> list[Geometry]:
    """Data and unified cache levels, L1 first, from sysfs or else from getconf. A level smaller than the one before is dropped: a virtual
    machine's share of the last level may be."""
    root = sysfs / "cpu0" / "cache"
    found = [geometry for index in sorted(root.glob("index[0-9]*")) if (geometry := _sysfs_level(index))]
    if not found:
        found = _getconf_levels(run_getconf(), root)
    found.sort(key=lambda geometry: geometry.level)
    if [geometry.level for geometry in found] != list(range(1, len(found) + 1)):
        levels = ", ".join(f"L{geometry.level}" for geometry in found)
        raise MachineError(f"{root}: data caches {levels} are reported; L1, L2, ... should be, once each. {BY_HAND}")
    sizes = [0, *(geometry.size_bytes for geometry in found)]
    return [geometry for geometry, inner in zip(found, sizes, strict=False) if geometry.size_bytes >= inner]


def _sysfs_level(index: Path) -> Geometry | None:
    """One index directory; None for an instruction cache. Missing sets or ways are computed from the size."""

    def text(name: str) -> str:
        try:
            return (index / name).read_text().strip()
        except (OSError, ValueError):
            return ""

    if text("type") == "Instruction":
        return None
    files = ("level", "number_of_sets", "ways_of_associativity", "coherency_line_size")
    level, sets, ways, line = (_whole(text(name)) for name in files)
    size = _bytes(text("size"))
    if size and line and ways and not sets:
        sets = size // (line * ways)
    if size and line and sets and not ways:  # 0 ways: fully associative, or unknown
        ways = size // (line * sets)
    if not (level and sets and ways and line):
        geometry = f"level {level}, {sets} sets, {ways} ways, lines of {line} bytes"
        raise MachineError(f"{index}: {geometry}; all should be positive. {BY_HAND}")
    return Geometry(level, sets, ways, line, text("shared_cpu_list"))


def _bytes(text: str) -> int:
    """The value of a size like 48K; 0 for anything else."""
    factor = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
    return _whole(text.rstrip("KM")) * factor


def _getconf_levels(output: str, root: Path) -> list[Geometry]:
    values = dict(line.split(None, 1) for line in output.splitlines() if len(line.split(None, 1)) == 2)
    found = []
    for level, name in enumerate(("LEVEL1_DCACHE", "LEVEL2_CACHE", "LEVEL3_CACHE", "LEVEL4_CACHE"), start=1):
        size, ways, line = (_whole(values.get(f"{name}_{what}", "").strip()) for what in ("SIZE", "ASSOC", "LINESIZE"))
        if size and not (ways and line and size % (ways * line) == 0):
            raise MachineError(
                f"there is no {root}, and getconf gives L{level} {size} bytes, {ways} ways, lines of {line} bytes, "
                f"which is not a valid geometry. {BY_HAND}"
            )
        if size:
            found.append(Geometry(level, size // (ways * line), ways, line, ""))
    if not found:
        raise MachineError(f"there is no {root}, and getconf reports no caches. {BY_HAND}")
    return found


def core_count(sysfs: Path) -> int:
    """Physical cores: hardware threads of a core count once."""
    cores = set()
    for cpu in sysfs.glob("cpu[0-9]*"):
        for name in ("core_cpus_list", "thread_siblings_list"):
            try:
                cores.add((cpu / "topology" / name).read_text().strip())
                break
            except (OSError, ValueError):
                continue
    return len(cores) or os.cpu_count() or 1


def cpu_count(text: str) -> int:
    """The number of CPUs in a list like "0-3,8"; 0 for anything else."""
    count = 0
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if first.isdecimal():
            count += _whole(last) - _whole(first) + 1 if dash else 1
    return count
