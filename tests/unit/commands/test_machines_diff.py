# SPDX-License-Identifier: Apache-2.0
"""Two machines side by side: every number in which they differ, no other, and what that changes in plans."""

import itertools
import re
from pathlib import Path

import msgspec
import pytest
from command_line import document, ok, refused

from pysim import planner
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.machine.load import load, load_any, names
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
    assert "zen4's plan would take" in text and f"{there / other.seconds:.3f} times" in text and re.search(r"(?m)^call +[\d,]+", text)


@pytest.mark.parametrize("kind", [Machine, Gpu])
def test_any_two_machines_of_a_kind_are_shown_with_their_plans_though_one_lacks_the_others_kernels(kind: type) -> None:
    machines = [one for name in names() if isinstance(one := load_any(name), kind)]
    refusals = 0
    for a, b in itertools.permutations([one.name for one in machines], 2):
        (found,) = document("machines", "diff", a, b, "conv:mb1ic64ih56oc64kh3ph1")["plans"]
        assert found["a"] and found["b"] and not found["a_refused"] and not found["b_refused"]
        assert (found["a_on_b_seconds"] is None) == bool(found["a_on_b_refused"])
        refusals += found["a_on_b_seconds"] is None
    assert refusals


def test_why_the_other_machines_choice_does_not_run_is_said_in_text() -> None:
    assert "zen4's plan cannot run on graviton4: " in ok("machines", "diff", "zen4", "graviton4", "gemm:512x512x512")
    text = ok("machines", "diff", "v100", "h200", "gemm:512x512x512:bf16")
    assert re.search(r"(?m)^v100 +- +none: nothing computes", text) and re.search(r"(?m)^h200 +\d", text)
    assert "neither zen4 nor zen5 computes gemm:8x8x8:f16" in refused(2, "machines", "diff", "zen4", "zen5", "gemm:8x8x8:f16")


def test_a_cpu_and_a_gpu_share_no_numbers() -> None:
    cpus, gpus = ([name for name in names() if isinstance(load_any(name), kind)] for kind in (Machine, Gpu))
    for cpu, gpu in itertools.product(cpus, gpus):
        assert "share no numbers" in refused(2, "machines", "diff", cpu, gpu)
        assert "share no numbers" in refused(2, "machines", "diff", gpu, cpu)
    assert "there is no machine file" in refused(2, "machines", "diff", "zen4", "none.toml")
    assert document("machines", "diff", "v100", "h200")["differences"]
