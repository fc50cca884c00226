# SPDX-License-Identifier: Apache-2.0
"""Plans: the choice is the cheapest legal schedule, its document keeps its names, and its reasons are there to read."""

import json
import re
import subprocess
import sys
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
from yardstick import quiet_seconds

from pysim import plan, plans
from pysim.api import Plan
from pysim.cachemodel.cpu import graph
from pysim.cachemodel.cpu import tilings as space
from pysim.cachemodel.cpu.cost import predict, schedule_of
from pysim.cachemodel.cpu.incore import rates
from pysim.cachemodel.cpu.nest import ceil_div, nest_of
from pysim.check.reference import reference, shapes
from pysim.errors import MachineError, OperandError, PlanError, ProblemError
from pysim.machine import load as machine
from pysim.machine.cpu import Machine
from pysim.planner import candidates, forget
from pysim.problem import text as workload
from pysim.problem.text import Workload, parse
from pysim.record.cost import Cost, CsaCost
from pysim.record.schedule import STATIONARY, name_of
from pysim.record.state import State
from pysim.registry.cpu import kernels

LAYER = "conv:mb1ic64ih56oc64kh3ph1"
PROBLEMS = [
    LAYER,
    "conv:ic3ih224oc64kh7sh2ph3",
    "conv:ic256ih14oc1024kh1",
    "conv:ic512ih7oc512kh3ph1",
    "conv:g32mb2ic32ih28oc32kh3ph1",
    "conv:g2ic96ih27oc256kh5ph2",
    "conv:ic64ih28iw20oc40kh3kw5sh1sw2ph2pw4dh1dw1",
    "conv:ic24ih17oc17kh1:f64",
    "gemm:512x2048x1024",
    "gemm:100x30x7:tt",
    "gemm:1x1x1:f64",
]
PLAN_KEYS = {
    "problem", "machine", "algorithm", "kernel", "schedule", "tile", "workspace_bytes", "cost", "assumed", "rejected", "considered",
}  # fmt: skip
TILE_KEYS = {"windows", "filters", "channels", "k2", "k3"}


def cpus() -> list[str]:
    return [name for name in machine.names() if isinstance(machine.load_any(name), machine.Machine)]


def without_assumptions(on: machine.Machine) -> machine.Machine:
    """The same numbers, each of which somebody measured."""
    return msgspec.convert(_measured(msgspec.to_builtins(on)), machine.Machine)


def _measured(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: "measured" if (key, item) == ("kind", "assumed") else _measured(item) for key, item in value.items()}
    return [_measured(item) for item in value] if isinstance(value, list | tuple) else value


def full_cost(chosen: Plan) -> Cost:
    assert isinstance(chosen.cost, Cost)
    return chosen.cost


def nest_algorithm(text: str) -> str:
    """The algorithm that is the loop nest itself."""
    return "gemm" if text.startswith("gemm") else "sconv"


@pytest.mark.parametrize("text", PROBLEMS)
@pytest.mark.parametrize("name", ["zen4", "xeon-4208", "power10-e1050"])
def test_the_chosen_plan_is_the_cheapest_of_all_candidates(text: str, name: str) -> None:
    problem, on = parse(text), machine.load(name)
    rows = space.rows(on, problem.dtype).kernels
    costs = rates(nest_of(problem), on, rows)
    found = predict(costs, space.table(costs, range(len(rows))))
    chosen = plan(problem, on, algorithm=nest_algorithm(text))
    assert full_cost(chosen).cycles == pytest.approx(found.cycles.min(), rel=1e-12)
    best = {item.schedule.kind: item.cost for item in chosen.considered}
    assert best.keys() == set(STATIONARY)
    for kind, kept in zip(STATIONARY, (True, False), strict=True):
        assert best[kind].cycles == pytest.approx(found.cycles[found.table.keeps_windows == kept].min(), rel=1e-12)


@pytest.mark.parametrize("text", PROBLEMS)
def test_candidates_are_legal_and_none_stands_twice(text: str) -> None:
    nest, on = nest_of(parse(text)), machine.load("zen4")
    rows = space.rows(on, parse(text).dtype).kernels
    costs = rates(nest, on, rows)
    prediction = predict(costs, space.table(costs, range(len(rows))))
    schedules = [schedule_of(prediction, index) for index in range(prediction.cycles.size)]
    assert len(set(schedules)) == len(schedules)
    for kind in STATIONARY:
        some = [s for s in schedules if s.stationary == kind]
        assert {s.kernel for s in some} == {kernel.name for kernel in rows}
        assert {s.pack for s in some} == ({"none", "tiles"} if nest.in_place else {"tiles"})
    for s in schedules:
        tiles = ceil_div(nest.filters, s.filters), ceil_div(nest.windows, s.windows)
        streamed, kept = tiles if s.stationary == "input_stationary" else tiles[::-1]
        assert 1 <= s.channels <= nest.channels
        assert 1 <= s.k2 <= streamed
        assert 1 <= s.k3 <= kept


@pytest.mark.parametrize("name", cpus())
def test_every_problem_plans_on_every_shipped_cpu(name: str) -> None:
    for text in PROBLEMS:
        chosen = plan(text, name)
        assert chosen.problem == parse(text).text
        assert full_cost(chosen).seconds > 0
        json.dumps(chosen.to_dict(), allow_nan=False)


def test_plans_are_ranked_and_the_first_is_the_plan() -> None:
    ranked = plans(LAYER, "zen4", top=25)
    cycles = [full_cost(item).cycles for item in ranked]
    assert len(ranked) == 25
    assert cycles == sorted(cycles)
    assert cycles[0] == pytest.approx(full_cost(plan(LAYER, "zen4")).cycles, rel=1e-12)
    assert len({item.schedule for item in ranked}) == 25


@pytest.mark.parametrize("memory_limit", [None, 200_000])
@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("conv:ic192ih6oc384kh3ph1", "zen5"),
        ("conv:ic128ih13oc256kh3ph1", "granite-rapids"),
        ("conv:ic512ih7oc512kh3ph1", "sapphire-rapids"),
        ("conv:ic96ih24oc256kh5", "emerald-rapids"),
        ("gemm:100x200x300", "power10-e1050"),
    ],
)
def test_what_is_never_predicted_would_not_have_been_the_best_of_its_kind(text: str, name: str, memory_limit: int | None) -> None:
    chosen, all_of_them = plan(text, name, memory_limit=memory_limit), plans(text, name, top=1, memory_limit=memory_limit)[0]
    assert (chosen.algorithm, chosen.schedule) == (all_of_them.algorithm, all_of_them.schedule)
    every = {(one.algorithm, one.schedule.kind): full_cost(one).cycles for one in all_of_them.considered}
    some = {(one.algorithm, one.schedule.kind): full_cost(one).cycles for one in chosen.considered}
    assert some == pytest.approx({kind: every[kind] for kind in some}, rel=1e-12)
    assert not memory_limit or some.keys() == every.keys()


@pytest.mark.parametrize("text", PROBLEMS)
@pytest.mark.parametrize("within", [1.0, 1.1, 2.5])
def test_candidates_are_all_the_schedules_within_the_factor_of_the_best_at_their_own_cost(text: str, within: float) -> None:
    problem, on = parse(text), machine.load("zen4")
    rows = space.rows(on, problem.dtype).kernels
    costs = rates(nest_of(problem), on, rows)
    found = predict(costs, space.table(costs, range(len(rows))))
    everything = {schedule_of(found, row): float(cycles) for row, cycles in enumerate(found.cycles)}
    best = min(everything.values())
    listed = candidates(text, "zen4", within, algorithm=nest_algorithm(text))
    assert {schedule for schedule, _ in listed} == {schedule for schedule, cycles in everything.items() if cycles <= within * best}
    assert len({schedule for schedule, _ in listed}) == len(listed)
    assert [seconds for _, seconds in listed] == sorted(seconds for _, seconds in listed)
    assert listed[0][1] == pytest.approx(full_cost(plan(problem, on, algorithm=nest_algorithm(text))).seconds, rel=1e-12)
    for schedule, seconds in (listed[0], listed[-1]):
        named = plan(problem, on, name=name_of(nest_algorithm(text), schedule))
        assert seconds == pytest.approx(full_cost(named).seconds, rel=1e-12)


def test_candidates_beyond_the_planned_kernel_exist_and_a_factor_below_one_is_refused() -> None:
    assert len({schedule.kernel for schedule, _ in candidates(LAYER, "zen4")}) > 1
    assert {schedule.stationary for schedule, _ in candidates(LAYER, "zen4", algorithm="sconv")} == set(STATIONARY)
    for within in (0.99, float("nan")):
        with pytest.raises(PlanError, match=f"within is {within}; it should be at least 1"):
            candidates(LAYER, "zen4", within)


@pytest.mark.parametrize("name", ["zen4", "xeon-4208", "power10-e1050"])
@pytest.mark.parametrize("text", [*PROBLEMS, "conv:g96ic96ih28oc96kh3ph1"])
def test_an_algorithm_that_is_never_predicted_takes_longer_and_is_turned_down_by_its_bound(text: str, name: str) -> None:
    chosen, all_of_them = plan(text, name), plans(text, name, top=1)[0]
    every = {one.algorithm: full_cost(one).cycles for one in reversed(all_of_them.considered)}
    reasons = {one.what: one.reason for one in chosen.rejected}
    for left in every.keys() - {one.algorithm for one in chosen.considered}:
        bound = float(re.findall(r"its lower bound is already ([0-9.]+)x the chosen time", reasons[left])[0])
        assert 0.99 < bound <= every[left] / full_cost(chosen).cycles + 0.01


def test_every_kernel_of_the_registry_is_chosen_or_turned_down_with_a_reason() -> None:
    for chosen in (plan(LAYER, "power10-e1050", algorithm="sconv"), plans(LAYER, "zen4", top=1)[0], plan(LAYER, "zen4", algorithm="sconv")):
        named = [item.what.rpartition(" by ")[2] for item in chosen.rejected]  # "sconv by f32_..." where several algorithms have a kernel
        assert all(item.reason for item in chosen.rejected)
        of_type = {kernel.name for kernel in kernels() if kernel.dtype == "f32"}
        assert of_type == {chosen.kernel, *named} & of_type
        assert f"{chosen.algorithm} by {chosen.kernel}" not in [item.what for item in chosen.rejected]
        others = len(kernels()) - len(of_type)
        assert f"{others} kernels of another type" in named


def test_a_plan_that_is_asked_for_again_is_the_one_that_was_made() -> None:
    assert plan(LAYER, "zen4").considered is plan(parse(LAYER), machine.load("zen4")).considered
    assert plan(LAYER, "zen4", memory_limit=200_000).memory_limit == 200_000
    assert plan(LAYER, "zen4").memory_limit is None


def test_the_name_of_a_machine_or_of_a_layer_changes_no_choice() -> None:
    on = machine.load("zen4")
    renamed = msgspec.structs.replace(on, name="another", description="the same numbers")
    for text in PROBLEMS:
        assert plan(text, on).schedule == plan(text, renamed).schedule
        assert plan(text, on).cost == plan(text, renamed).cost


# ---- documents


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


def test_a_micro_kernel_asked_for_is_the_one_that_is_planned() -> None:
    asked = plan(LAYER, "power10-e1050", model="csa", micro_kernel="4x16")
    assert (asked.tile["windows"], asked.tile["filters"], asked.schedule.stationary) == (4, 16, "weight_stationary")
    assert plan(LAYER, "zen4", micro_kernel="4x16").kernel == "f32_outer_4x16__avx512"
    assert {item.kernel for item in plans(LAYER, "zen4", top=5, micro_kernel="64x6")} == {"f32_win_64x6__avx512"}


@pytest.mark.parametrize(
    ("problem", "asked"),
    [
        ("conv:ic3ih224oc64kh7sh2ph3", {}),
        ("conv:g32ic32ih56oc32kh3ph1", {}),
        ("conv:g8ic32ih14oc64kh3ph1", {}),
        (LAYER, {"layout": "nchw16c"}),
        ("conv:ic3ih32oc64kh3ph1", {"layout": "nchw-nchw16c"}),
        ("gemm:1x4096x4096", {}),
        ("gemm:512x512x512:tn", {}),
        ("gemm:512x512x512", {"machine": "h200"}),
        ("conv:ic64ih56oc64kh3ph1", {"machine": "h200"}),
        ("conv:g32ic32ih56oc32kh3ph1:f16", {"machine": "h200", "layout": "nhwc"}),
    ],
)
def test_every_kernel_that_a_plan_names_can_be_asked_for_by_its_name_and_by_its_tile(problem: str, asked: dict[str, Any]) -> None:
    asked = {"machine": "zen4", **asked}
    names = {one.kernel for one in plans(problem, top=1000, **asked)}
    assert len(names) > 1
    for name in names:
        named = plan(problem, micro_kernel=name, **asked)
        assert named.kernel == name
        tile = [named.tile[field] for field in ("windows", "filters") if field in named.tile]
        assert not tile or plan(problem, micro_kernel="x".join(map(str, tile)), **asked).cost.cycles <= named.cost.cycles


@pytest.mark.parametrize("problem", ["conv:ic256ih14oc256kh3ph1", "conv:ic64ih28oc128kh5ph2", "gemm:512x512x512:tn"])
def test_a_plan_within_a_limit_of_workspace_is_the_best_of_all_that_are(problem: str) -> None:
    """Small workspaces are those of schedules that take long, which a plan without a limit need not look at."""
    every = plans(problem, "zen5", top=100_000)
    for limit in sorted({one.workspace_bytes for one in every})[:4]:
        best = next(one for one in every if one.workspace_bytes <= limit)
        assert plan(problem, "zen5", memory_limit=limit).cost.cycles == pytest.approx(best.cost.cycles)


def test_where_no_plan_is_within_a_limit_the_nearest_is_named() -> None:
    least = min(one.workspace_bytes for one in plans(LAYER, "zen4", top=100_000))
    with pytest.raises(PlanError, match=f"its workspace of {least:,} bytes is above the limit of {least - 1:,}"):
        plan(LAYER, "zen4", memory_limit=least - 1)
    for on in ("zen4", "h200"):
        error = min(one.error for one in plans(LAYER, on, top=100_000))
        with pytest.raises(PlanError, match=f"its error of {error:.1e} is above the limit of 1.0e-09"):
            plan(LAYER, on, error_limit=1e-9)


def test_a_kernel_of_another_problem_is_refused_with_those_of_this_one() -> None:
    with pytest.raises(PlanError, match=r"no kernel f32_rows_64x1__avx2 computes .*; .*there are: f32_fil_14x32__avx512, .*f32_win_8x4"):
        plan("conv:ic64ih56oc64kh3ph1", "zen4", micro_kernel="f32_rows_64x1__avx2")
    with pytest.raises(PlanError, match="f32_win_32x14__avx512: power10-e1050 has no avx512 unit"):
        plan(LAYER, "power10-e1050", micro_kernel="f32_win_32x14__avx512")


def test_a_matrix_product_is_a_pointwise_convolution_to_csa() -> None:
    product, layer = (plan(text, "power10-e1050", model="csa") for text in ("gemm:256x784x128", "conv:ic128ih28oc256kh1"))
    assert (product.tile, product.cost) == (layer.tile, layer.cost)


def test_the_raw_footprint_of_csa_charges_memory_less() -> None:
    packed, raw = (plan(LAYER, "power10-e1050", "csa", input_footprint=kind) for kind in ("packed", "raw"))
    assert isinstance(packed.cost, CsaCost)
    assert isinstance(raw.cost, CsaCost)
    assert raw.cost.cold < packed.cost.cold


def test_a_cold_plan_costs_more_and_says_so() -> None:
    hot, cold = plan(LAYER, "zen4"), plan(LAYER, "zen4", state="cold")
    assert full_cost(cold).cycles > full_cost(hot).cycles
    assert (hot.to_dict()["state"], cold.to_dict()["state"]) == ("hot", "cold")
    assert full_cost(plans(LAYER, "zen4", top=1, state="cold")[0]).cycles == pytest.approx(full_cost(cold).cycles)


STATES_IN_ORDER: tuple[State, ...] = ("hot", "chained", "cold")
CHAINED = [
    (LAYER, "nchw", None),
    ("conv:g384ic384ih14oc384kh3ph1", "nchw16c", None),
    ("conv:g96ic96ih112oc96kh3sh2ph1", "nchw", None),
    ("conv:ic256ih14oc1024kh1", "nchw", "sconv"),
    ("conv:ic256ih14oc1024kh1", "nchw16c", None),
    ("conv:ic128ih28oc128kh3ph1", "nchw", "winograd"),
    ("conv:ic3ih112oc64kh7sh2ph3", "nchw", None),
    ("gemm:1x1024x1024", "nchw", None),
]


@pytest.mark.parametrize(("problem", "layout", "algorithm"), CHAINED)
def test_a_layer_of_a_network_takes_no_less_than_hot_and_no_more_than_cold(problem: str, layout: Any, algorithm: str | None) -> None:
    hot, chained, cold = (plan(problem, "zen4", state=state, layout=layout, algorithm=algorithm).seconds or 0 for state in STATES_IN_ORDER)
    assert 0 < hot <= chained * 1.0001
    assert chained <= cold * 1.0001


def test_a_layer_of_a_network_finds_its_input_in_the_caches_and_its_filters_in_memory() -> None:
    depthwise, deep = "conv:g384ic384ih14oc384kh3ph1", "conv:ic512ih7oc512kh1"
    chained, cold = (
        full_cost(plan(depthwise, "zen4", state=state, layout="nchw16c")).levels["memory"]["bytes"] for state in ("chained", "cold")
    )
    assert chained < 0.1 * cold
    assert full_cost(plan(deep, "zen4", state="chained")).levels["memory"]["filters_bytes"] == 512 * 512 * 4


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
def test_an_assumed_number_that_changes_the_cost_is_among_those_it_leaned_on(text: str, algorithm: str, layout: Any) -> None:
    on = machine.load("granite-rapids")
    chosen = plan(text, on, algorithm=algorithm, layout=layout)
    cycles = full_cost(chosen).seconds
    for path in on.assumed():
        other = plan(text, changed(on, path), name=chosen.name, layout=layout)
        assert path in chosen.assumed or full_cost(other).seconds == pytest.approx(cycles, rel=1e-12), path


def test_an_explanation_lists_assumed_numbers_where_there_are_some_and_only_there() -> None:
    leans, measured = plan(LAYER, "xeon-4208"), plan(LAYER, without_assumptions(machine.load("xeon-4208")))
    told = leans.explain().split("\n\nassumed numbers\n")[1].splitlines()
    assert tuple(line.strip() for line in told) == leans.assumed
    assert leans.assumed
    assert measured.schedule == leans.schedule
    assert measured.assumed == ()
    assert "assumed" not in measured.explain()


# ---- reasons


@pytest.mark.parametrize("text", PROBLEMS)
def test_an_explanation_tells_loops_tiles_caches_costs_and_losers(text: str) -> None:
    chosen = plan(text, "xeon-4208", algorithm=nest_algorithm(text))
    told = chosen.explain()
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
        assert part in told
    assert re.search(r" again (in|at) the next .* [0-9.]+ (KiB|MiB|B)  \d+% of L\d \(", told)
    for considered in chosen.considered:
        assert considered.schedule.stationary in told
    loops = told.split("loops\n")[1].split("\n\n")[0].splitlines()
    assert [len(line) - len(line.lstrip()) for line in loops] == [2 * depth for depth in range(1, len(loops) + 1)]
    assert len(loops) == 5 + 1  # and the micro-kernel
    assert ("for each of 2 images x 4 groups" in told) == (nest_of(parse(text)).repeats == 8)
    assert max(map(len, told.splitlines())) <= 160


def loops_of(text: str) -> list[str]:
    """The words of the loop nest that the explanation of a problem on zen4 shows, outermost first."""
    return [
        line.strip()
        for line in plan(text, "zen4", algorithm=nest_algorithm(text)).explain().split("loops\n")[1].split("\n\n")[0].splitlines()
    ]


@pytest.mark.parametrize("text", PROBLEMS)
def test_the_explained_loops_run_as_often_as_the_schedule_says(text: str) -> None:
    nest, s = nest_of(parse(text)), plan(text, "zen4", algorithm=nest_algorithm(text)).schedule
    tiles = ceil_div(nest.windows, s.windows), ceil_div(nest.filters, s.filters)
    kept, streamed = tiles if s.stationary == "input_stationary" else tiles[::-1]
    for line, total, size in zip(loops_of(text), (nest.channels, kept, streamed), (s.channels, s.k3, s.k2), strict=False):
        sets = ceil_div(total, min(size, total))
        assert line.startswith(f"for each of {sets} sets of {size} " if size > 1 else f"for each of {sets} sets"), line


def test_the_csa_explanation_says_by_which_terms_the_loser_lost() -> None:
    told = plan(LAYER, "power10-e1050", model="csa").explain()
    assert "weight_stationary lost by 9.3%: more l2 (+170,496), l3 (+3,456)" in told
    assert "input_stationary: channels 33, k2 8, k3 160, cost 20,136,600" in told.split("exact maxima\n")[1]
    assert "lines from memory to L1" in told.split("heaviest flow\n")[1]


def test_the_graph_carries_every_byte_of_the_cost() -> None:
    for text in (LAYER, "conv:ic64ih56oc256kh1", "gemm:512x2048x1024"):
        chosen = plan(text, "zen4")
        flow = graph.traffic(chosen)
        assert set(flow.nodes) == {"memory", "L3", "L2", "L1", "registers"}
        for supplier, level in full_cost(chosen).levels.items():
            out = [data for _, _, data in flow.out_edges(supplier, data=True)]
            assert sum(data["bytes"] for data in out) == pytest.approx(level["bytes"])
            assert sum(data["cycles"] for data in out) == pytest.approx(level["cycles"])
        heaviest = graph.critical_edge(graph.edges(chosen, None))
        assert heaviest is not None
        assert heaviest[4] == max(data["cycles"] for _, _, data in flow.edges(data=True))


# ---- errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"problem": "conv:ic8ih8oc8kh3:f16"}, "no f16 micro-kernel; the registry .* has bf16, f32, f64, s8"),
        ({"micro_kernel": "5x5"}, f"no kernel 5x5 computes {LAYER} on zen4; there are: .*32x14"),
        ({"micro_kernel": "big"}, '"big" is not windows x filters and no kernel; right is e.g. 4x16'),
        ({"micro_kernel": "0x4"}, "is not windows x filters"),
        ({"state": "warm"}, 'no cache state is named "warm"; there are: hot, cold'),
        ({"model": "quick"}, 'no model is named "quick"; there are: full, csa'),
        ({"layout": "chwn"}, 'no layout is named "chwn"; .*there are: nchw, nhwc'),
        ({"layout": "nhwc"}, "nhwc is a layout of GPUs, and zen4 is a CPU; there are: nchw, nchw4c, "),
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
    shape = plan(LAYER, "power10-e1050", model="csa", micro_kernel="5x5")
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
    for field in ("algorithm", "schedule", "cost", "workspace_bytes"):
        assert getattr(again, field) == getattr(chosen, field)


NAMED = "sconv,kernel=f32_win_32x14__avx512,stationary"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nonsense", "is no plan's name"),
        ("sconv,kernel", "is no plan's name"),
        ("sconv,kernel=f32_win_32x14__avx512,colour=red", "a schedule has no field colour"),
        ("sconv,kernel=x,stationary=input_stationary,pack=tiles,windows=1,filters=1,channels=1,k2=1,k3=1", "x is no row of the registry"),
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


def resnet50() -> list[Workload]:
    return [layer.workload for layer in workload.distinct(workload.resolve(["resnet50"]))]


def planned_anew(problem: Workload, on: Machine) -> None:
    forget()
    plan(problem, on)


def test_planning_resnet50_takes_less_than_100_milliseconds_of_a_quiet_machine() -> None:
    problems, on = resnet50(), machine.load("zen4")
    assert len(problems) == 23
    assert quiet_seconds([partial(planned_anew, problem, on) for problem in problems]) < 0.1


def test_a_plan_that_was_made_takes_less_than_50_microseconds_of_a_quiet_machine() -> None:
    plan(LAYER, "zen4")
    assert quiet_seconds([lambda: [plan(LAYER, "zen4") for _ in range(200)]]) / 200 < 50e-6


def test_importing_the_models_and_the_planner_loads_only_what_they_use() -> None:
    check = (
        "import sys; import pysim.cachemodel; assert 'numpy' not in sys.modules; import pysim.planner; "
        "heavy = {'scipy', 'networkx', 'matplotlib', 'onnx', 'cffi'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)
