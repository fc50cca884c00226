# SPDX-License-Identifier: Apache-2.0
"""Machines with other numbers, plans of several machines side by side, and advice: each change is one that was planned and costed."""

import json

import pytest
from command_line import invoke, ok

from pysim import planner
from pysim.errors import MachineError
from pysim.explain.advice import LEAST_SHARE, advice, changes_of, planned_with, verdict, would_help
from pysim.machine.change import changed
from pysim.machine.gpu import Gpu
from pysim.machine.load import load_any, names

LAYER, PRODUCT = "conv:mb1ic64ih56oc64kh3ph1", "gemm:512x512x512"


def test_a_change_is_an_assumed_number_of_the_same_machine():
    zen4 = load_any("zen4")
    faster = changed(zen4, {"core.frequency_hz": 2 * zen4.clock_hz, "levels.L2.ways": 16})
    assert faster.clock_hz == 2 * zen4.clock_hz and faster.levels[1].size_bytes == 2 * zen4.levels[1].size_bytes
    assert faster.core.frequency_hz.kind == "assumed" and faster.levels[1].kind == "assumed"
    assert faster.name == "zen4 with core.frequency_hz=7322000000.0, levels.L2.ways=16"
    assert changed(zen4, {}) is zen4 and load_any("zen4") == zen4
    assert "core.frequency_hz" in planner.plan(LAYER, faster).assumed


def test_a_level_may_be_given_its_size():
    by_size, by_ways = (changed(load_any("zen4"), {f"levels.L2.{key}": value}) for key, value in (("size_bytes", 2 << 20), ("ways", 16)))
    assert by_size.levels[1].ways == by_ways.levels[1].ways


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("levels.L4.ways", 8, "L1, L2, L3"),
        ("levels.L2.wayz", 8, 'did you mean "ways"'),
        ("levels", 8, "is a table"),
        ("levels.L2.ways", -1, ">= 1"),
        ("levels.L2.size_bytes", 100, "a way has 131,072 bytes"),
        ("levels.L1.ways", 1000, "more than the"),
        ("core.call_cycles", "many", "expected a number"),
    ],
)
def test_what_a_machine_cannot_be_is_refused(path, value, told):
    with pytest.raises(MachineError, match=told.replace("(", r"\(")):
        changed(load_any("zen4"), {path: value})


@pytest.mark.parametrize("name", names())
def test_every_machine_can_be_changed(name):
    machine = load_any(name)
    path = "frequency_hz" if isinstance(machine, Gpu) else "core.frequency_hz"
    assert changed(machine, {path: 2e9}).clock_hz == 2e9


def test_plans_stand_side_by_side():
    text = ok("plan", LAYER, PRODUCT, "-m", "zen4", "-m", "h200")
    assert text.splitlines()[:2] == ["[1] zen4", "[2] h200"] and "x of [1]" in text
    slower = ok("plan", LAYER, "-m", "zen4", "--set", "core.frequency_hz=1.8305e9")
    assert "[2] zen4 with core.frequency_hz=1830500000.0" in slower and "2.00" in slower
    both = json.loads(ok("plan", LAYER, "-m", "zen4", "--set", "levels.L2.size_bytes=2MiB", "--json"))["plans"]
    assert [one["machine"] for one in both] == ["zen4", "zen4 with levels.L2.size_bytes=2097152"]
    assert "zen4 with levels.L2.ways=16" in ok("plan", LAYER, "-m", "zen4", "--set", "levels.L2.ways=16", "--explain").splitlines()[0]


@pytest.mark.parametrize("given", ["levels.L2.ways", "=3", "levels.L2.ways=", "levels.L2.ways=x"])
def test_a_change_that_cannot_be_read_is_refused(given):
    assert "levels.L2.ways" in invoke("plan", LAYER, "-m", "zen4", "--set", given).stderr


@pytest.mark.parametrize(("problem", "machine"), [(LAYER, "zen4"), (PRODUCT, "zen5"), ("gemm:1x4096x4096", "zen4"), (LAYER, "h200")])
def test_advice_names_what_was_planned(problem, machine):
    plan = planner.plan(problem, machine)
    found = advice([(1, plan)])
    assert all(one.share >= LEAST_SHARE for one in found) and found == sorted(found, key=lambda one: -one.share)
    for one in found:
        assert planned_with(plan, one.change).seconds == pytest.approx(plan.seconds * (1 - one.share))
        assert one.change in [*changes_of(plan)]
    text = " ".join(ok("plan", problem, "-m", machine, "--explain").split())
    assert f"{verdict([(1, plan)])} {would_help(found)}" in text


def test_a_gain_that_two_errors_of_the_model_could_make_is_not_named():
    layer = "conv:mb1ic256ih14oc1024kh1"  # NCHW16C saves 4 % by another kernel, a larger L1 about as much by the same
    for problem in (layer, "conv:mb1g960ic960ih7oc960kh5ph2", "gemm:16x4096x4096"):
        plan = planner.plan(problem, "zen4")
        for one in advice([(1, plan)]):
            after = planned_with(plan, one.change)
            assert (after.kernel, after.layout) == (plan.kernel, plan.layout) or one.share > 0.17
    assert "NCHW16C" not in would_help(advice([(1, planner.plan(layer, "zen4"))]))
    blocked = planner.plan(layer, "zen4", layout="nchw16c")
    assert blocked.seconds < 0.98 * planner.plan(layer, "zen4").seconds


def test_threads_share_the_limit_of_the_workspace():
    for limit in (100_000, 1_000_000):
        plan = planner.plan(LAYER, "zen4", threads=2, memory_limit=limit)
        assert 2 * plan.workspace_bytes <= limit == plan.memory_limit


def test_advice_on_several_plans_is_weighted_by_time():
    plans = [(3, planner.plan(LAYER, "zen4")), (1, planner.plan("gemm:1x4096x4096", "zen4"))]
    together = {one.change.what: one.share for one in advice(plans)}
    total = sum(count * plan.seconds for count, plan in plans)
    alone = [{one.change.what: one.share for one in advice([one])} for one in plans]
    threads = sum(count * plan.seconds * each["two threads"] for (count, plan), each in zip(plans, alone, strict=True))
    assert together["two threads"] == pytest.approx(threads / total)


def test_shares_add_up_to_the_whole_time():
    plan = planner.plan(LAYER, "zen4")
    shares = [int(word.rstrip("%")) for word in verdict([(1, plan)]).replace(",", "").split() if word.endswith("%")]
    assert 90 <= sum(shares) <= 101
