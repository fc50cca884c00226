# SPDX-License-Identifier: Apache-2.0
"""Two machines side by side: every number in which they differ, no other, and what that changes in plans."""

import re
from pathlib import Path

import msgspec
from command_line import document, ok, refused

from pysim import planner
from pysim.machine.cpu import Machine
from pysim.machine.load import load
from pysim.machine.quantity import quantities
from pysim.machine.write import to_toml

LAYER = "conv:mb1ic3ih56oc64kh3sh2ph1"


def slower_calls(tmp_path: Path) -> Machine:
    zen4 = load("zen4")
    core = msgspec.structs.replace(zen4.core, call_cycles=msgspec.structs.replace(zen4.core.call_cycles, value=5000.0, kind="assumed"))
    machine = msgspec.structs.replace(zen4, name="slow", core=core)
    (tmp_path / "slow.toml").write_text(to_toml(machine))
    return machine


def test_exactly_the_numbers_that_differ_are_shown(tmp_path: Path) -> None:
    slower_calls(tmp_path)
    path = str(tmp_path / "slow.toml")
    assert document("machines", "diff", "zen4", path) == {
        "schema": 1,
        "differences": [{"number": "core.call_cycles", "a": 108, "b": 5000.0, "a_kind": "fitted", "b_kind": "assumed"}],
        "plans": [],
    }
    assert re.search(r"core\.call_cycles +108 +5000 +46\.296 +fitted +assumed", ok("machines", "diff", "zen4", path))
    assert "0 numbers differ" in ok("machines", "diff", "zen4", "zen4")
    found = {one["number"]: one for one in document("machines", "diff", "zen4", "graviton4")["differences"]}
    names = [{name for name, _, _ in quantities(load(one))} for one in ("zen4", "graviton4")]
    assert {name for name, one in found.items() if one["b"] is None} == names[0] - names[1]
    assert found["levels.L1.ways"] == {"number": "levels.L1.ways", "a": 8, "b": 4, "a_kind": "measured", "b_kind": "manual"}
    assert "levels.L2.ways" not in found  # 8 on both


def test_a_plan_changes_with_the_numbers_and_the_other_machines_choice_is_costed(tmp_path: Path) -> None:
    slow = slower_calls(tmp_path)
    path = str(tmp_path / "slow.toml")
    (found,) = document("machines", "diff", "zen4", path, LAYER)["plans"]
    mine, other = planner.plan(LAYER, "zen4"), planner.plan(LAYER, slow)
    assert (found["a"]["name"], found["b"]["name"]) == (mine.name, other.name) and mine.name != other.name
    there = planner.plan(LAYER, slow, name=mine.name).seconds
    assert found["a_on_b_seconds"] == there and there is not None and other.seconds is not None and there > other.seconds
    text = ok("machines", "diff", "zen4", path, LAYER)
    assert "zen4's choice would take" in text and f"{there / other.seconds:.3f} times" in text and re.search(r"(?m)^call +[\d,]+", text)


def test_a_cpu_and_a_gpu_share_no_numbers() -> None:
    assert "share no numbers" in refused(2, "machines", "diff", "zen4", "h200")
    assert "there is no machine file" in refused(2, "machines", "diff", "zen4", "none.toml")
    assert document("machines", "diff", "v100", "h200")["differences"]
