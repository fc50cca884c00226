# SPDX-License-Identifier: Apache-2.0
"""`pysim cache`: predicted beside simulated misses, sweeps and their pictures, trace files, and what is beyond the model."""

import builtins
from pathlib import Path

import msgspec
import pytest
from command_line import SMALL, cache, document, invoke, native, ok, own_files, refused  # noqa: F401

from pysim import planner
from pysim.cachemodel.cpu.nest import nest_of
from pysim.cachemodel.cpu.nest_loops import doubts
from pysim.cachemodel.simulator import trace
from pysim.cachemodel.simulator.hierarchy import Hierarchy
from pysim.machine import load as machine
from pysim.problem.text import parse
from pysim.record.plan import on_cpu

pytestmark = [native, pytest.mark.usefixtures("own_files")]

LAYER = "conv:mb1ic32ih14oc96kh3ph1"
XEON = machine.load("xeon-4208")


def test_simulated_misses_are_those_of_the_plan_on_the_machines_caches() -> None:
    (found,) = document("cache", LAYER, "-m", "xeon-4208", "--algorithm", "sconv")["caches"]
    plan = planner.plan(LAYER, "xeon-4208", algorithm="sconv")
    counted = trace.simulate(plan.workload, plan.schedule, Hierarchy.from_machine("xeon-4208"), warm=True)
    assert {name: level["simulated_misses"] for name, level in found["levels"].items()} == {name: counted[name].misses for name in counted}
    assert found["tile"] == plan.tile
    assert found["accesses"] == counted.accesses


def test_predicted_lines_are_those_that_the_plan_charges_to_the_next_level_if_buffers_are_contiguous() -> None:
    (found,) = document("cache", LAYER, "-m", "xeon-4208", "--algorithm", "sconv")["caches"]
    name = planner.plan(LAYER, XEON, algorithm="sconv").name
    levels = planner.plan(LAYER, XEON.contiguous(), name=name).cost.levels
    for name, supplier in (("L1", "L2"), ("L2", "L3"), ("L3", "memory")):
        predicted = levels[supplier]["lines"] - levels[supplier]["writeback_lines"]
        assert found["levels"][name]["analytic_lines"] == pytest.approx(predicted)


def test_a_plan_that_is_named_is_simulated_whatever_its_algorithm() -> None:
    named = planner.plans(LAYER, "zen4", top=50, algorithm="sconv")[-1]
    (found,) = document("cache", LAYER, "-m", "zen4", "--plan", named.name)["caches"]
    assert (found["kernel"], found["tile"]) == (named.kernel, named.tile)
    other = planner.plan(LAYER, "zen4", algorithm="im2col")
    (found,) = document("cache", LAYER, "-m", "zen4", "--plan", other.name)["caches"]
    assert (found["name"], found["algorithm"], found["trace"]) == (other.name, "im2col", "description")
    assert {"input", "columns", "filters", "output"} <= {*found["levels"]["L1"]["operands"]}


@pytest.mark.parametrize("problem", [LAYER, "gemm:40x60x50", "conv:ic32ih14oc32kh1"])
def test_operands_and_phases_each_add_up_to_all_misses(problem: str) -> None:
    for kind in ("input", "weight"):
        (found,) = document("cache", problem, "-m", "zen4", "--stationary", kind, "--cold")["caches"]
        assert found["schedule"] == f"{kind}_stationary"
        for level in found["levels"].values():
            assert sum(level["operands"].values()) == sum(level["phases"].values()) == level["simulated_misses"]


def test_a_cold_run_brings_every_line_from_memory_and_a_hot_one_that_fits_none() -> None:
    (cold,) = document("cache", LAYER, "-m", "zen4", "--cold")["caches"]
    (hot,) = document("cache", LAYER, "-m", "zen4")["caches"]
    least = (32 + 96) * 14 * 14 * 4 // 64 + 32 * 96 * 9 * 4 // 64
    assert cold["levels"]["L3"]["simulated_misses"] >= least
    assert cold["levels"]["L3"]["analytic_lines"] >= least
    assert hot["levels"]["L3"]["simulated_misses"] == 0 == hot["levels"]["L3"]["analytic_lines"]
    assert hot["levels"]["L3"]["difference_percent"] == 0


def test_the_table_has_a_row_a_level_with_both_counts() -> None:
    text = ok("cache", LAYER, "-m", "xeon-4208")
    (found,) = document("cache", LAYER, "-m", "xeon-4208")["caches"]
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.startswith("L")}
    assert list(rows) == ["L1", "L2", "L3"]
    for name, row in rows.items():
        assert row[2] == f"{found['levels'][name]['simulated_misses']:,}"
    assert text.isascii()


def test_several_layers_are_all_reported() -> None:
    assert [one["problem"] for one in document("cache", LAYER, SMALL, "-m", "zen4")["caches"]] == [LAYER, SMALL]


# What the closed forms do not hold for


def test_planes_that_conflict_in_place_are_named_and_others_are_not() -> None:
    assert "not modelled: planes of 16,384 bytes" in ok("cache", "conv:ic64ih64oc32kh1", "-m", "xeon-4208", "--stationary", "weight")
    assert "not modelled" not in ok("cache", LAYER, "-m", "xeon-4208", "--algorithm", "sconv")


def test_policies_line_sizes_and_sets_that_the_closed_forms_do_not_know_are_named() -> None:
    plan = planner.plan(LAYER, XEON, algorithm="sconv")
    nest = nest_of(parse(LAYER))
    assert doubts(nest, plan.schedule, XEON) == []
    changed = {"policy": "plru", "sets": 1000, "line_bytes": 128}
    for field, value in changed.items():
        level = msgspec.structs.replace(XEON.levels[1], **{field: value})
        on = msgspec.structs.replace(XEON, levels=(XEON.levels[0], level, XEON.levels[2]))
        (doubt,) = doubts(nest, plan.schedule, on)
        assert "L2" in doubt
        assert str(value) in doubt


# Plans of every algorithm

PLANNED = {
    "winograd": "conv:ic32ih14oc96kh3ph1",
    "depthwise": "conv:g32ic32ih14oc32kh3ph1",
    "blocked": "conv:ic32ih14oc96kh3ph1",
    "polyphase": "conv:ic3ih28oc16kh7sh2ph3",
    "im2col": "conv:ic32ih14oc96kh3ph1",
    "sconv": "conv:ic32ih14oc96kh3ph1",
    "gemm": "gemm:96x120x80",
    "unpacked": "gemm:96x120x80",
    "skinny": "gemm:4x384x192",
}


@pytest.mark.parametrize("algorithm", PLANNED)
def test_the_plan_of_every_algorithm_is_simulated_and_said_to_be(algorithm: str) -> None:
    plan = planner.plan(PLANNED[algorithm], "zen4", algorithm=algorithm)
    (found,) = document("cache", PLANNED[algorithm], "-m", "zen4", "--algorithm", algorithm)["caches"]
    assert (found["name"], found["algorithm"], found["kernel"], found["tile"]) == (plan.name, algorithm, plan.kernel, plan.tile)
    for level in found["levels"].values():
        assert sum(level["operands"].values()) == level["simulated_misses"]
    assert f"zen4, hot: {algorithm} by {plan.kernel}" in ok("cache", PLANNED[algorithm], "-m", "zen4", "--algorithm", algorithm)


def test_without_options_the_planned_algorithm_is_simulated() -> None:
    plan = planner.plan("conv:ic64ih56oc64kh3ph1", "zen4")
    assert plan.algorithm != "sconv"
    (found,) = document("cache", "conv:ic64ih56oc64kh3ph1", "-m", "zen4")["caches"]
    assert found["name"] == plan.name
    levels = planner.plan(plan.workload, plan.on.contiguous(), name=plan.name).cost.levels
    assert found["levels"]["L1"]["analytic_lines"] == pytest.approx(levels["L2"]["lines"] - levels["L2"]["writeback_lines"])
    assert abs(found["levels"]["L1"]["difference_percent"]) < 10


def test_a_simulation_that_takes_long_says_so_first_and_one_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for algorithm in ("winograd", "sconv"):
        asked = ("cache", LAYER, "-m", "zen4", "--algorithm", algorithm)
        assert invoke(*asked).stderr == ""
        monkeypatch.setattr(trace, "INTERACTIVE_ACCESSES", 1000.0)
        assert "accesses are simulated, which takes up to" in invoke(*asked).stderr
        monkeypatch.setattr(trace, "MAX_ACCESSES", 1000)
        assert "exact caches are simulated for up to" in refused(2, *asked)
        monkeypatch.undo()


# Sweeps


@pytest.mark.parametrize("over", ["channels", "k2", "k3"])
def test_a_sweep_varies_one_parameter_up_to_all_there_is_and_keeps_the_others(over: str) -> None:
    found = document("cache", LAYER, "-m", "zen4", "--stationary", "input", "--sweep", over)["caches"]
    planned = next(
        item for item in planner.plan(LAYER, "zen4", algorithm="sconv").considered if item.schedule.kind == "input_stationary"
    ).schedule.tile
    values = [one["tile"][over] for one in found]
    assert values == sorted(set(values))
    assert len(values) > 1
    assert planned[over] in values
    for one in found:
        assert {**one["tile"], over: 0} == {**planned, over: 0}


def test_a_sweeps_table_marks_the_planned_value() -> None:
    for asked in ((), ("--algorithm", "sconv")):
        lines = ok("cache", LAYER, "-m", "zen4", "--sweep", "channels", *asked).splitlines()
        plan = planner.plan(LAYER, "zen4", algorithm=next(iter(asked[1:]), None))
        assert [line.split()[0] for line in lines if "*" in line.split()[0]][:1] == [f"{plan.tile['channels']}*"]
        assert f"zen4: {plan.algorithm} by {plan.kernel}" in lines[1]


@pytest.mark.parametrize(("name", "start"), [("misses.svg", b"<?xml"), ("misses.png", b"\x89PNG")])
def test_a_sweep_is_drawn_into_the_file(tmp_path: Path, name: str, start: bytes) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / name
    assert "channels" in ok("cache", SMALL, "-m", "zen4", "--stationary", "input", "--sweep", "channels", "--picture", str(file))
    assert file.read_bytes().startswith(start)


def test_without_matplotlib_a_picture_is_refused_before_anything_is_simulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = builtins.__import__

    def no_matplotlib(name: str, *rest: object, **named: object) -> object:
        if name.split(".")[0] == "matplotlib":
            raise ImportError(name)
        return found(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", no_matplotlib)
    monkeypatch.setattr(Hierarchy, "drive", None)
    assert "pip install matplotlib" in refused(3, "cache", SMALL, "-m", "zen4", "--sweep", "k2", "--picture", str(tmp_path / "a.svg"))


# Trace files


def test_a_trace_file_is_counted_on_the_machines_caches(tmp_path: Path) -> None:
    file = tmp_path / "few.txt"
    file.write_text("r 0 64\nr 0 64\nw 4096 4\n")
    (found,) = document("cache", "-m", "xeon-4208", "--trace", str(file))["caches"]
    assert found["accesses"] == 3
    assert (found["counters"]["L1"]["misses"], found["counters"]["L1"]["hits"]) == (2, 1)
    assert found["counters"]["L3"]["misses"] == 2
    assert "3 accesses" in ok("cache", "-m", "xeon-4208", "--trace", str(file))


# Refusals


def test_a_trace_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert "none.din" in refused(2, "cache", "-m", "zen4", "--trace", str(tmp_path / "none.din"))
    empty = tmp_path / "empty.din"
    empty.write_bytes(b"")
    assert "empty.din holds no access" in invoke("cache", "-m", "zen4", "--trace", str(empty)).stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give a PROBLEM"),
        ((LAYER, "--picture", "a.svg"), "--sweep"),
        ((LAYER, "--sweep", "k2", "--picture", "a.jpg"), ".svg or .png"),
        ((LAYER, "--sweep", "k2", "--picture", "no folder/a.svg"), "there is no folder no folder"),
        ((LAYER, "--trace", "a.din"), "--trace takes its accesses from the file"),
        ((LAYER, "--plan", "sconv", "--stationary", "input"), "give --plan or --stationary"),
        ((LAYER, "--plan", "sconv", "--algorithm", "sconv"), "give --plan or --algorithm"),
        ((LAYER, SMALL, "--sweep", "k2"), "one layer"),
    ],
)
def test_options_that_do_not_go_together_are_refused(words: tuple[str, ...], message: str) -> None:
    result = invoke("cache", *words, "-m", "zen4")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr


def test_a_product_of_very_many_accesses_is_looked_at_in_part_under_the_whole_ones_schedule() -> None:
    whole = on_cpu(planner.plan("gemm:10240x4096x4096", "zen4", algorithm="gemm"))[0]
    (found,) = document("cache", "gemm:10240x4096x4096", "-m", "zen4")["caches"]
    assert (found["problem"], found["simulated"]) == ("gemm:10240x4096x4096", "gemm:640x1024x4096")
    assert found["kernel"] == whole.kernel and found["tile"] == whole.tile
    assert found["accesses"] <= 1.1 * trace.INTERACTIVE_ACCESSES
    assert abs(found["levels"]["L1"]["difference_percent"]) < 2


def test_a_batch_is_cut_by_images_and_whole_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "INTERACTIVE_ACCESSES", 70_000)
    problem, asked = "conv:mb8ic16ih14oc16kh3ph1", ("-m", "zen4", "--algorithm", "sconv")
    assert document("cache", problem, *asked)["caches"][0]["simulated"] == "conv:mb2ic16ih14oc16kh3ph1"
    assert document("cache", problem, *asked, "--whole")["caches"][0]["simulated"] == problem
    assert "of a part: conv:mb2ic16ih14oc16kh3ph1" in ok("cache", problem, *asked)
