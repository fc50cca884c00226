# SPDX-License-Identifier: Apache-2.0
"""Every environment variable that the tree reads is on one page, and nothing else is; `pysim doctor` knows when OpenMP's threads spin."""

import re
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
from checkout import ROOT
from native_library import native

from pysim.commands import doctor
from pysim.machine.allowed import RANKS, SLURM

PAGE = (ROOT / "docs" / "environment.md").read_text()
READ = re.compile(r"""(?:environ(?:\.get\(|\.setdefault\(|\[)|getenv\()\s*["']([A-Z][A-Z0-9_]+)["']""")
SHELL = re.compile(r"\$\{?(PYSIM_[A-Z_]+)|\b(PYSIM_[A-Z_]+)=")
FORCED = re.compile(r"forced\(([^)]*)\)")
OF_SYSTEM = {"PATH", "PYTHONPATH", "HOME"}


def texts(*suffixes: str) -> list[str]:
    folders = ("pysim", "native", "tools", "tests", "lab")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*") if file.is_file() and file.suffix in suffixes]
    return [file.read_text() for file in files if file != Path(__file__)]


def test_every_variable_that_is_read_is_on_the_page_and_no_other() -> None:
    read = {name for text in texts(".py", ".c", ".h", ".cu", ".cuh", ".build") for name in READ.findall(text)}
    shell = {one or other for text in texts("") for one, other in SHELL.findall(text)}
    forced = {name for text in texts(".py") for of in FORCED.findall(text) for name in re.findall(r"'([A-Z_0-9]+)'", of)}
    spinning, ranks = {*doctor.SPINNING}, {*chain(*RANKS, SLURM)}
    assert {"PYSIM_STORE", "PYSIM_ONEDNN", "PYSIM_LIBRARY", "PYSIM_CUDA_LIBRARY"} <= read and "PYSIM_VENV" in shell and forced
    wanted = (read | shell | forced | spinning | ranks) - OF_SYSTEM
    on_page = {name for name in re.findall(r"`([A-Z][A-Z0-9_]+)`", PAGE) if "_" in name or name in wanted}
    assert on_page == wanted


def test_the_readme_leads_to_the_page() -> None:
    assert "(docs/environment.md)" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    ("settings", "package", "status"),
    [
        ({}, "torch", "note"),
        ({"OMP_WAIT_POLICY": "active"}, "torch", "note"),
        ({"OMP_WAIT_POLICY": "Passive"}, "torch", "ok"),
        ({"KMP_BLOCKTIME": "0"}, "torch", "ok"),
        ({"KMP_BLOCKTIME": "200"}, "mkl", "note"),
        ({"GOMP_SPINCOUNT": "0"}, "scikit-learn", "ok"),
        ({}, "", None),
    ],
)
def test_doctor_says_where_threads_of_openmp_spin(
    settings: dict[str, str], package: str, status: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in doctor.SPINNING:
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(doctor, "installed", lambda name: "1.0" if name == package else None)
    found = [*doctor._openmp()]
    assert [one.status for one in found] == [status] * (status is not None)
    if status == "note":
        assert package in found[0].detail and found[0].fix == "export OMP_WAIT_POLICY=passive"


def test_doctor_says_that_the_off_switch_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, said in (("", []), ("0", []), ("1", ["unset PYSIM_DISABLE"])):
        monkeypatch.setenv("PYSIM_DISABLE", value)
        assert [one.fix for one in doctor._pysim() if one.name == "off switch"] == said


@native
def test_the_librarys_own_threads_sleep_soon_after_a_run() -> None:
    """CPU time of the process while its main thread sleeps."""
    text = (
        "import time, numpy, pysim\n"
        "x = numpy.ones((1, 64, 28, 28), numpy.float32); w = numpy.ones((64, 64, 3, 3), numpy.float32)\n"
        "for _ in range(3): pysim.conv2d(x, w, threads=4)\n"
        "time.sleep(0.05); start = time.process_time(); time.sleep(0.5); print(time.process_time() - start)\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=250, check=True)
    assert float(done.stdout) < 0.1
