# SPDX-License-Identifier: Apache-2.0
"""The recipes of docs/design.md, followed: what they name is all that is needed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pysim import algorithms, planner
from pysim.algorithms import cpu
from pysim.explain.text import explain

MODULE = '''
"""A convolution by tiles that are never packed, as an example: SConv's nest of another name that promises a tenth of the time."""
from pysim.algorithms.contract import Costs
from pysim.algorithms.cpu.sconv import COMPUTES, candidates, describe, prepare, refuses, tolerance, workspace_bytes
from pysim.cachemodel.cpu import nested

NAME = "example"


def cost(machine, found):
    costs = nested.cost(machine, found)
    for one in costs:
        one.cycles = one.cycles / 10
    return costs
'''


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One module more in the folder of the CPU's algorithms."""
    (tmp_path / "example.py").write_text(MODULE)
    monkeypatch.setattr(cpu, "__path__", [*cpu.__path__, str(tmp_path)])
    algorithms._folder.cache_clear()
    yield
    algorithms._folder.cache_clear()


@pytest.mark.usefixtures("example")
def test_a_module_in_the_folder_is_an_algorithm_that_is_planned_explained_and_named() -> None:
    plan = planner.plan("conv:mb1ic64ih56oc64kh3ph1", "zen4")
    assert plan.algorithm == "example"
    assert {item.algorithm for item in plan.considered} >= {"example", "sconv"}
    assert "example:" in explain(plan)
    assert planner.plan("conv:mb1ic64ih56oc64kh3ph1", "zen4", name=plan.name).algorithm == "example"
    assert planner.plan("conv:mb1ic64ih56oc64kh3ph1", "zen4", algorithm="sconv").algorithm == "sconv"


def test_without_it_nobody_knows_of_it() -> None:
    assert planner.plan("conv:mb1ic64ih56oc64kh3ph1", "zen4").algorithm != "example"
