# SPDX-License-Identifier: Apache-2.0
"""What a plan says: its document keeps its names, its reasons are there to read, and refusals tell what would be right."""

import json
import re
from typing import Any

import msgspec
import numpy as np
import pytest
from problems import LAYER, PROBLEMS, full_cost, nest_algorithm

from pysim import plan, plans
from pysim.cachemodel.cpu import nest_text
from pysim.cachemodel.cpu.nest import ceil_div, nest_of
from pysim.check.reference import reference, shapes
from pysim.errors import MachineError, OperandError, PlanError, ProblemError
from pysim.machine import load as machine
from pysim.problem.text import parse
from pysim.record.schedule import STATIONARY

PLAN_KEYS = {
    "problem", "machine", "algorithm", "kernel", "schedule", "tile", "workspace_bytes", "cost", "assumed", "rejected", "considered",
}  # fmt: skip
TILE_KEYS = {"windows", "filters", "channels", "k2", "k3"}


def without_assumptions(on: machine.Machine) -> machine.Machine:
    """The same numbers, each of which somebody measured."""
    return msgspec.convert(_measured(msgspec.to_builtins(on)), machine.Machine)


def _measured(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: "measured" if (key, item) == ("kind", "assumed") else _measured(item) for key, item in value.items()}
    return [_measured(item) for item in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("text", [LAYER, "gemm:512x2048x1024:nt"])
def test_a_plan_document_has_the_promised_names(text: str) -> None:
    chosen = plan(text, "zen4", algorithm=nest_algorithm(text))
    document = json.loads(json.dumps(chosen.to_dict()))
    assert document.keys() >= PLAN_KEYS
    assert document["tile"].keys() == TILE_KEYS
    assert document["schedule"] in STATIONARY
    assert document["algorithm"] == chosen.algorithm
    assert document["cost"].keys() >= {"cycles", "seconds", "bound_by", "levels"}
    assert document["cost"]["levels"].keys() == {"L2", "L3", "memory"}
    assert all(level.keys() >= {"lines", "bytes", "cycles"} for level in document["cost"]["levels"].values())
    assert all(item.keys() == {"what", "reason", "code"} for item in document["rejected"])
    assert {item["schedule"] for item in document["considered"]} == set(STATIONARY)
    assert document["considered"][0]["schedule"] == document["schedule"]
    assert any(item["cost"] == document["cost"] and item["tile"] == document["tile"] for item in document["considered"])


@pytest.mark.parametrize("text", [LAYER, "gemm:2218x2636x436", "gemm:1132x2890x3333", "conv:g1mb2ic464ih34oc16kh1sh1dh1ph0"])
def test_a_plan_costs_to_the_bit_what_it_costs_among_more_schedules(text: str) -> None:
    document = plan(text, "zen4").to_dict()  # what is considered is predicted with the best of every kind
    assert document["cost"] in [item["cost"] for item in document["considered"]]


def test_the_csa_document_has_the_papers_integers() -> None:
    document = plan("conv:mb1ic64ih56oc64kh3ph1", "power10-e1050", model="csa").to_dict()
    assert document["schedule"] == "input_stationary"
    assert document["tile"] == {"windows": 16, "filters": 8, "channels": 32, "k2": 8, "k3": 98}
    integers = {"cold": 57_600, "extra": 0, "l3": 0, "l2": 224_640, "cost": 19_526_400}
    assert document["cost"] == {**integers, "exact": {"channels": 33, "k2": 8, "k3": 160, "cost": 20_136_600}}
    inputs, weights = document["considered"]
    assert (inputs["schedule"], inputs["cost"]) == ("input_stationary", document["cost"])
    assert weights["schedule"] == "weight_stationary"
    assert weights["tile"] == {"windows": 16, "filters": 8, "channels": 32, "k2": 49, "k3": 8}
    integers = {"cold": 57_600, "extra": 0, "l3": 3_456, "l2": 395_136, "cost": 21_335_040}
    assert {name: weights["cost"][name] for name in integers} == integers


def test_assumed_numbers_are_those_the_cost_read() -> None:
    on = machine.load("power10-e1050")
    full, csa = plan(LAYER, on).assumed, plan(LAYER, on, model="csa").assumed
    assert set(full) | set(csa) <= set(on.assumed())
    assert csa
    assert all(path.startswith("csa") for path in csa)
    target = plan(LAYER, on).kernel.rpartition("__")[2]
    others = tuple(f"core.units.{unit.target}" for unit in on.core.units if unit.target != target)
    assert not any(path.startswith(("csa", *others)) or path.endswith(".latency_cycles") for path in full)
    constants = {f"core.{name}" for name in on.core.__struct_fields__ if name != "units"}
    assert constants & set(on.assumed()) <= set(full)
    assert "core.pack_line_cycles" in full


def changed(on: machine.Machine, path: str) -> machine.Machine:
    """The machine with another value of one number; as it is where the path is of several (a unit, a level)."""
    numbers = msgspec.to_builtins(on)
    at: Any = numbers
    for part in path.split("."):
        at = at[part] if isinstance(at, dict) else next(one for one in at if part in (one.get("name"), one.get("target")))
    if "value" in at:
        at["value"] *= 1.125
    return msgspec.convert(numbers, machine.Machine)


@pytest.mark.parametrize(
    ("text", "algorithm", "layout"),
    [
        (LAYER, "sconv", "nchw"),
        ("conv:ic64ih56oc64kh7sh2ph3", "winograd", "nchw"),
        (LAYER, "im2col", "nchw"),
        ("conv:g96ic96ih28oc96kh3ph1", "depthwise", "nchw"),
        ("conv:ic3ih56oc64kh7sh2ph3", "polyphase", "nchw"),
        ("conv:ic64ih28oc64kh3ph1", "direct_nchwc", "nchw16c"),
        ("gemm:4x2048x2048", "skinny", "nchw"),
        ("gemm:40x3072x768", "gemm", "nchw"),
        ("gemm:40x3072x768", "unpacked", "nchw"),
    ],
)
def test_an_assumed_number_that_changes_the_cost_is_listed(text: str, algorithm: str, layout: Any) -> None:
    on = machine.load("granite-rapids")
    chosen = plan(text, on, algorithm=algorithm, layout=layout)
    cycles = full_cost(chosen).seconds
    for path in on.assumed():
        other = plan(text, changed(on, path), name=chosen.name, layout=layout)
        assert path in chosen.assumed or full_cost(other).seconds == pytest.approx(cycles, rel=1e-12), path


def test_an_explanation_lists_assumed_numbers_where_there_are_some_and_only_there() -> None:
    assuming, measured = plan(LAYER, "xeon-4208"), plan(LAYER, without_assumptions(machine.load("xeon-4208")))
    explained = assuming.explain().split("\n\nassumed numbers\n")[1].splitlines()
    assert tuple(line.strip() for line in explained) == assuming.assumed
    assert assuming.assumed
    assert measured.schedule == assuming.schedule
    assert measured.assumed == ()
    assert "assumed" not in measured.explain()


# ---- reasons


@pytest.mark.parametrize("text", PROBLEMS)
def test_an_explanation_tells_loops_tiles_caches_costs_and_losers(text: str) -> None:
    chosen = plan(text, "xeon-4208", algorithm=nest_algorithm(text))
    explained = chosen.explain()
    for part in (
        "loops",
        "reuse",
        "cycles",
        "considered",
        "rejected",
        "assumed numbers",
        "heaviest flow",
        chosen.kernel,
    ):
        assert part in explained
    assert re.search(r" reused in the next .* [0-9.]+ (KiB|MiB|B)  \d+% of L\d \(", explained)
    for considered in chosen.considered:
        assert considered.schedule.stationary in explained
    loops = explained.split("loops\n")[1].split("\n\n")[0].splitlines()
    assert [len(line) - len(line.lstrip()) for line in loops] == [2 * depth for depth in range(1, len(loops) + 1)]
    nest = nest_of(parse(text))
    outer = [f"for each of {count} {name}" for count, name in ((nest.batch, "images"), (nest.groups, "groups")) if count > 1]
    assert [line.strip() for line in loops[: len(outer)]] == outer
    assert len(loops) == len(outer) + 5 + 1  # and the micro-kernel
    assert max(map(len, explained.splitlines())) <= 160


def loops_of(text: str) -> list[str]:
    """The words of the loop nest that the explanation of a problem on zen4 shows, outermost first."""
    return [
        line.strip()
        for line in plan(text, "zen4", algorithm=nest_algorithm(text)).explain().split("loops\n")[1].split("\n\n")[0].splitlines()
    ]


@pytest.mark.parametrize("text", PROBLEMS)
def test_the_explained_loops_run_as_often_as_the_schedule_says(text: str) -> None:
    nest, s = nest_of(parse(text)), plan(text, "zen4", algorithm=nest_algorithm(text)).schedule
    tiles = ceil_div(nest.windows, s.windows), ceil_div(nest.group_filters, s.filters)
    kept, streamed = tiles if s.stationary == "input_stationary" else tiles[::-1]
    in_turn = s.stationary == "input_stationary" and s.pack == "tiles" and s.k2 >= streamed and nest.filters_packed
    sizes, outer = (s.channels, 1 if in_turn else s.k3, s.k2), (nest.batch > 1) + (nest.groups > 1)
    for line, total, size in zip(loops_of(text)[outer:], (nest.group_channels, kept, streamed), sizes, strict=False):
        sets = ceil_div(total, min(size, total))
        assert line.startswith(f"for each of {sets:,} sets of {size:,} " if size > 1 else f"for each of {sets:,} sets"), line


def test_the_csa_explanation_says_by_which_terms_the_loser_lost() -> None:
    explained = plan(LAYER, "power10-e1050", model="csa").explain()
    assert "weight_stationary is 9.3% slower: more cycles in l2 (+170,496), l3 (+3,456)" in explained
    assert "input_stationary: channels 33, k2 8, k3 160, cost 20,136,600" in explained.split("exact maxima\n")[1]
    assert "lines from memory to L1" in explained.split("heaviest flow\n")[1]


def test_the_graph_carries_every_byte_of_the_cost() -> None:
    for text in (LAYER, "conv:ic64ih56oc256kh1", "gemm:512x2048x1024"):
        chosen = plan(text, "zen4")
        edges = [*nest_text.edges(chosen, None)]
        assert {one for source, target, *_ in edges for one in (source, target)} <= {"memory", "L3", "L2", "L1"}
        for supplier, level in full_cost(chosen).levels.items():
            out = [flow for source, _, _, *flow in edges if source == supplier]
            assert sum(size for size, _ in out) == pytest.approx(level["bytes"])
            assert sum(cycles for _, cycles in out) == pytest.approx(level["cycles"])
        heaviest = chosen.explain().split("heaviest flow\n")[1].splitlines()[0].split(", ")[-1]
        assert float(heaviest.removesuffix(" cycles").replace(",", "")) >= round(max(cycles for *_, cycles in edges))


# ---- errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"problem": "conv:ic8ih8oc8kh3:f16"}, "no f16 micro-kernel for CPUs; there are .*: bf16, f32, f64, s8"),
        ({"micro_kernel": "5x5"}, f"no kernel 5x5 computes {LAYER} on zen4; there are: .*32x14"),
        ({"micro_kernel": "big"}, 'micro-kernel "big" is neither a tile .windows x filters. nor a kernel; expected e.g. 4x16'),
        ({"micro_kernel": "0x4"}, "is neither a tile .windows x filters. nor a kernel"),
        ({"state": "warm"}, 'no cache state is named "warm"; there are: hot, cold'),
        ({"model": "quick"}, 'no model is named "quick"; there are: full, csa'),
        ({"layout": "chwn"}, 'no layout is named "chwn"; .*there are: nchw, nhwc'),
        ({"layout": "nhwc"}, "layout nhwc is for GPUs and of s8, and zen4 is a CPU; expected one of: nchw, nchw4c, "),
        ({"memory_limit": 0}, "its workspace of .* bytes is above the limit of 0"),
        ({"algorithm": "sconf"}, 'has no algorithm "sconf" on zen4; did you mean "sconv"'),
    ],
)
def test_what_cannot_be_planned_is_refused_with_what_would_be_right(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan(**{"problem": LAYER, "machine": "zen4", **arguments})


def test_a_machine_without_a_unit_for_any_kernel_is_named_with_what_is_missing() -> None:
    on = machine.load("zen4")
    unit = msgspec.structs.replace(on.core.units[0], target="abacus")
    bare = msgspec.structs.replace(on, name="bare", core=msgspec.structs.replace(on.core, units=(unit,)))
    with pytest.raises(PlanError, match=r"bare has the units abacus, but f64 micro-kernels exist for avx2, avx512.*portable.* only"):
        plan(LAYER + ":f64", bare)
    with pytest.raises(PlanError, match=r"no \[csa\] table"):
        plan(LAYER, msgspec.structs.replace(on, csa=None), model="csa")


def test_wrong_names_and_counts_are_refused() -> None:
    with pytest.raises(MachineError, match="zen4"):
        plan(LAYER, "zen9")
    with pytest.raises(ProblemError):
        plan("conv:ic64", "zen4")
    with pytest.raises(OperandError, match="top is 0"):
        plans(LAYER, "zen4", top=0)


def test_a_plan_without_a_micro_kernel_refuses_to_run() -> None:
    shape = plan(LAYER, "zen4", model="csa", micro_kernel="5x5")
    assert shape.kernel == "f32_5x5"
    with pytest.raises(PlanError, match="the registry has no kernel 'f32_5x5'"):
        shape.run(*operands(LAYER))


def operands(text: str) -> tuple[Any, Any]:
    made, draw = shapes(parse(text)), np.random.default_rng(1)
    return draw.integers(-3, 4, made.x).astype(np.float32), draw.integers(-3, 4, made.w).astype(np.float32)


@pytest.mark.parametrize("text", ["conv:mb2ic8ih9oc24kh3sh2ph1", "gemm:40x50x60:tn"])
def test_a_plan_runs_its_own_schedule_and_gives_the_reference(text: str) -> None:
    x, w = operands(text)
    for chosen in plans(text, "host", top=3):
        assert np.array_equal(chosen.run(x, w, threads=2), reference(parse(text), x, w))


@pytest.mark.parametrize("text", ["conv:mb1ic64ih56oc64kh3ph1", "conv:ic256ih14oc1024kh1", "gemm:512x2048x1024"])
@pytest.mark.parametrize("model", ["full", "csa"])
def test_a_plans_name_is_one_word_that_makes_the_plan_again(text: str, model: Any) -> None:
    chosen = plan(text, "zen4", model=model)
    again = plan(text, "zen4", model=model, name=chosen.name)
    assert " " not in chosen.name
    for field in ("algorithm", "schedule", "workspace_bytes"):
        assert getattr(again, field) == getattr(chosen, field)
    assert again.cost == chosen.cost or again.seconds == pytest.approx(chosen.seconds, rel=1e-12)


NAMED = "sconv,kernel=f32_win_32x14__avx512,stationary"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nonsense", "is not the name of a plan"),
        ("sconv,kernel", "is not the name of a plan"),
        ("sconv,kernel=f32_win_32x14__avx512,colour=red", "a schedule has no field colour"),
        ("sconv,kernel=f32_win_32x14__avx512", "missing required field `stationary`"),
        ("sconv,kernel=x,stationary=input_stationary,pack=tiles,windows=1,filters=1,channels=1,k2=1,k3=1", "x is not in the registry"),
        (f"{NAMED}=input_stationary,pack=tiles,windows=32,filters=14,channels=0,k2=1,k3=1", "1 to 64"),
        (
            f"{NAMED}=input_stationary,pack=none,windows=32,filters=14,channels=8,k2=1,k3=1",
            "pack none",
        ),
        ("sconv,kernel=f64_win_16x14__avx512,stationary=input_stationary,pack=tiles,windows=16,filters=14,channels=8,k2=1,k3=1", "f64"),
    ],
)
def test_a_name_that_is_no_plan_of_the_problem_is_refused(name: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan(LAYER, "zen4", name=name)


def test_a_plan_is_short_in_a_debugger() -> None:
    assert len(repr(plan(LAYER, "zen4"))) < 300


@pytest.mark.parametrize("text", PROBLEMS)
def test_counted_cycles_add_up_to_the_predicted_time(text: str) -> None:
    for name in ("zen4", "power10-e1050"):
        if text.endswith(":f64") and name != "zen4":
            continue
        cost = full_cost(plan(text, name))
        assert sum(cost.counted.values()) == pytest.approx(cost.cycles, rel=1e-12)
        assert all(0 <= cost.hidden.get(term, 0) <= value for term, value in cost.terms.items())


# ---- cost of planning
