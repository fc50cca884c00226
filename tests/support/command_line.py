# SPDX-License-Identifier: Apache-2.0
"""What the tests of the command line share: ways to run it, in this process and in another."""

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner, Result
from native_library import native  # noqa: F401  # for the tests of commands

from pysim.cli import main

PROBLEM = "conv:mb1ic64ih56oc64kh3ph1"
SMALL = "conv:mb1ic8ih10oc8kh3ph1"
PLAN_KEYS = {"problem", "machine", "algorithm", "kernel", "schedule", "tile", "workspace_bytes", "cost", "assumed", "rejected"}


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def own_files(cache, tmp_path, monkeypatch):
    """The detected host and the measurements of these tests stay out of the user's folders. There is a summary on a busy computer, too."""
    monkeypatch.setattr("pysim.comparison.summary.MOST_DISTURBED", 1.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("PYSIM_STORE", str(tmp_path / "store.sqlite"))


def invoke(*words: str) -> Result:
    return CliRunner().invoke(main, list(words), prog_name="pysim")


def ok(*words: str) -> str:
    """The stdout of a command that succeeds."""
    result = invoke(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def document(*words: str, code: int = 0) -> dict:
    result = invoke(*words, "--json")
    assert result.exit_code == code, result.output
    found = json.loads(result.stdout)
    assert found["schema"] == 1
    return found


def child(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pysim", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, env={**os.environ, **environment}, check=False)


def refused(code: int, *words: str) -> str:
    """The one line that a refused command leaves on stderr; nothing is on stdout."""
    result = invoke(*words)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert isinstance(result.exception, SystemExit)
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("pysim: ")
    return lines[0]
