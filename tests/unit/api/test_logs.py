# SPDX-License-Identifier: Apache-2.0
"""The logger `pysim` and its switch PYSIM_LOG."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT

import pysim
from pysim import planner

PROBLEM = "conv:mb1ic16ih14oc16kh3ph1"
PLAN = f"import pysim; pysim.plan({PROBLEM!r}, machine='zen4')"


def python(text: str, log: str, folder: Path) -> subprocess.CompletedProcess[str]:
    given = {name: value for name, value in os.environ.items() if name != "PYSIM_LOG"} | {"PYTHONPATH": str(ROOT)}
    given |= {"PYSIM_LOG": log} if log else {}
    return subprocess.run([sys.executable, "-c", text], env=given, cwd=folder, capture_output=True, text=True, check=True, timeout=250)


def test_a_plan_is_logged_with_its_name_and_what_lost_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    planner.forget()
    with caplog.at_level(logging.DEBUG, "pysim"):
        plan = pysim.plan(PROBLEM, machine="zen4")
    told = [(one.levelname, one.getMessage()) for one in caplog.records if one.name == "pysim"]
    assert any(level == "INFO" and f"planned {PROBLEM} on zen4" in text and plan.name in text for level, text in told)
    assert [text for level, text in told if level == "DEBUG"] == [
        f"rejected for {PROBLEM}: {one.what}: {one.reason}" for one in plan.rejected
    ]
    assert plan.rejected


def test_the_log_goes_where_its_variable_says_and_nowhere_without_it(tmp_path: Path) -> None:
    """A warning that nobody listens to is not printed either, as Python would by itself."""
    silent = python(f"{PLAN}; from pysim.logs import LOG; LOG.warning('of nobody')", "", tmp_path)
    assert (silent.stdout, silent.stderr) == ("", "")
    for at, expected in enumerate((1, 2)):
        into_file = python(PLAN, "Info:plans.log", tmp_path)
        assert (into_file.stdout, into_file.stderr) == ("", ""), at
        assert (tmp_path / "plans.log").read_text().count(f"pysim INFO: planned {PROBLEM}") == expected
    wrong = {"loud": "debug, info, warning, error", "info:/nowhere/at/all": "cannot be written"}
    for setting, right in wrong.items():
        told = python(PLAN, setting, tmp_path).stderr
        assert right in told and repr(setting.partition(":")[2] or setting) in told, "the program goes on, and says what is wrong"
