# SPDX-License-Identifier: Apache-2.0
"""The plan that is chosen: the cheapest legal schedule of all, within what was asked for, in little time."""

import json
import pickle
import re
import subprocess
import sys
import time
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
from problems import LAYER, PROBLEMS, full_cost, nest_algorithm
from yardstick import quiet_seconds

from pysim import plan, plans
from pysim.algorithms.cpu import im2col, sconv, unpacked, winograd
from pysim.algorithms.nest import BROADCASTS
from pysim.cachemodel.cpu import tilings as space
from pysim.cachemodel.cpu.bounds import least_traffic
from pysim.cachemodel.cpu.cost import assemble, predict, schedule_of
from pysim.cachemodel.cpu.incore import rates
from pysim.cachemodel.cpu.nest import Nest, ceil_div, nest_of
from pysim.cachemodel.cpu.nest_schedules import pruned
from pysim.cachemodel.cpu.tables import compute_cycles
from pysim.errors import PlanError
from pysim.machine import load as machine
from pysim.machine.cpu import Machine
from pysim.planner import candidates, forget
from pysim.problem import text as workload
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload, parse
from pysim.record.cost import CsaCost
from pysim.record.plan import Request
from pysim.record.schedule import STATIONARY, name_of
from pysim.record.state import State
from pysim.registry.cpu import kernels


def cpus() -> list[str]:
    return [name for name in machine.names() if isinstance(machine.load_any(name), machine.Machine)]


@pytest.mark.parametrize("text", PROBLEMS)
@pytest.mark.parametrize("name", ["zen4", "xeon-4208", "power10-e1050"])
def test_the_chosen_plan_is_the_cheapest_of_all_candidates(text: str, name: str) -> None:
    problem, on = parse(text), machine.load(name)
    rows = space.rows(on, problem.dtype).kernels
    costs = rates(nest_of(problem), on, rows)
    found = predict(space.table(costs))
    chosen = plan(problem, on, algorithm=nest_algorithm(text))
    assert full_cost(chosen).cycles == pytest.approx(found.cycles.min(), rel=1e-12)
    best = {item.schedule.kind: item.cost for item in chosen.considered}
    assert best.keys() == set(STATIONARY)
    for kind, kept in zip(STATIONARY, (True, False), strict=True):
        assert best[kind].cycles == pytest.approx(found.cycles[found.table.keeps_windows == kept].min(), rel=1e-12)


def test_selected_costs_are_those_of_the_candidates_that_are_kept() -> None:
    request = Request(parse(LAYER), machine.load("zen4"))
    (one,) = sconv.cost(request.machine, [sconv.candidates(request)])
    size = one.cycles.size
    last = one.selected(np.arange(size) == size - 1)
    assert last.cycles.tolist() == [one.cycles[-1]] and last.kernel.tolist() == [one.kernel[-1]] and last.kernels == one.kernels
    assert last.schedule(0) == one.schedule(size - 1) and last.cost(0) == one.cost(size - 1)


@pytest.mark.parametrize("algorithm", [sconv, winograd, im2col], ids=lambda one: one.NAME)
def test_candidates_within_a_limit_have_the_best_of_the_kind_whose_limit_it_is(algorithm: Any) -> None:
    request = Request(parse(LAYER), machine.load("zen4"))

    def best(limit: Any) -> dict[int, float]:
        (of,) = algorithm.cost(request.machine, [algorithm.candidates(request, limit)])
        return {kind: of.cycles[of.kind == kind].min() for kind in {*of.kind.tolist()}}

    every, kinds = best(np.inf), len(algorithm.cost(request.machine, [algorithm.candidates(request)])[0].kinds)
    for kind, cycles in every.items():
        assert best(np.where(np.arange(kinds) == kind, 1.001 * cycles, 0.0))[kind] == cycles


@pytest.mark.parametrize("name", ["zen4", "xeon-4208", "power10-e1050"])
@pytest.mark.parametrize("text", [LAYER, "conv:ic256ih14oc1024kh1", "gemm:512x2048x1024", "gemm:1000x768x3000:tt", "gemm:20x30x40"])
def test_what_is_never_predicted_cannot_be_the_best_of_its_kind_or_go_below_its_kernels_bound(text: str, name: str) -> None:
    on = machine.load(name)
    sets = space.sets(rates(nest_of(parse(text)), on, space.rows(on, "f32").kernels))
    everything, some = predict(space.tiled(sets)[0]), pruned([sets], "hot")[0]
    known = {schedule_of(everything, row): row for row in range(everything.cycles.size)}
    rows = [known[schedule_of(some, row)] for row in range(some.cycles.size)]
    assert 0 < len(rows) <= everything.cycles.size and np.allclose(some.cycles, everything.cycles[rows], rtol=1e-14, atol=0)
    for keeps_windows in (True, False):
        best = everything.cycles[everything.table.keeps_windows == keeps_windows].min()
        assert some.cycles[some.table.keeps_windows == keeps_windows].min() == pytest.approx(best, rel=1e-14)
    assert some.bounds is not None and (everything.cycles >= some.bounds[everything.table.kernel] * (1 - 1e-12)).all()


BOUNDED = [
    *(LAYER, "conv:mb2ic2ih182oc109kh3ph1", "conv:mb4g2ic82ih31oc74kh7sh2ph3", "conv:ic256ih14oc1024kh1", "conv:ic48ih16oc26kh5dh1:f64"),
    "conv:ic64id12ih12oc32kd3kh3sd3sh3pd1ph1",
    *("gemm:512x2048x1024", "gemm:1000x768x3000:tt", "gemm:300x70x41:nt", "gemm:5x1030x640:f64"),
]


@pytest.mark.parametrize("name", ["zen4", "sapphire-rapids", "power10-e1050", "graviton4"])
@pytest.mark.parametrize("nest", [nest_of, unpacked.nest_of])
@pytest.mark.parametrize("text", BOUNDED)
def test_no_schedule_moves_less_than_the_sizes_of_its_tiles_say(text: str, nest: Any, name: str) -> None:
    problem = parse(text)
    if nest is nest_of or isinstance(problem, Gemm):
        check_bounds(nest(problem), problem, name, BROADCASTS if nest is unpacked.nest_of else None)


@pytest.mark.parametrize("text", ["gemm:2092x2056x1024:bf16", "gemm:1604x1871x78:s8", "conv:ic256ih28oc256kh3ph1:s8"])
def test_sets_of_a_matrix_unit_take_no_less_than_their_bounds(text: str) -> None:
    check_bounds(nest_of(parse(text)), parse(text), "emerald-rapids", None)


def check_bounds(nest: Nest, problem: Workload, name: str, form: str | None) -> None:
    """The bounds of sets are at most those of their schedules, and these at most the predictions."""
    on = machine.load(name)
    sets = space.sets(rates(nest, on, space.rows(on, problem.dtype, None, form).kernels))
    table, of_set = space.tiled(sets)
    bound, of_sets = least_traffic(table), least_traffic(sets, tiled=False)
    assert (of_sets[..., of_set] <= bound * (1 + 1e-9)).all()
    rough = assemble(sets, compute_cycles(sets), of_sets, tiled=False).cycles[of_set]
    for state in ("hot", "cold", "chained"):
        whole = predict(table, state)
        assert (bound <= whole.costs.moved * (1 + 1e-9)).all()
        least = assemble(table, compute_cycles(table), bound).cycles
        assert (rough <= least * (1 + 1e-9)).all() and (least <= whole.cycles * (1 + 1e-9)).all()
        assert state != "hot" or problem.flops < 1e8 or least.min() > 0.8 * whole.cycles.min()  # it says something


@pytest.mark.parametrize("text", PROBLEMS)
def test_candidates_are_legal_and_none_stands_twice(text: str) -> None:
    nest, on = nest_of(parse(text)), machine.load("zen4")
    rows = space.rows(on, parse(text).dtype).kernels
    costs = rates(nest, on, rows)
    prediction = predict(space.table(costs))
    schedules = [schedule_of(prediction, index) for index in range(prediction.cycles.size)]
    assert len(set(schedules)) == len(schedules)
    for kind in STATIONARY:
        some = [s for s in schedules if s.stationary == kind]
        assert {s.kernel for s in some} == {kernel.name for kernel in rows}
        assert {s.pack for s in some} == ({"none", "tiles"} if nest.in_place else {"tiles"})
    for s in schedules:
        tiles = ceil_div(nest.group_filters, s.filters), ceil_div(nest.windows, s.windows)
        streamed, kept = tiles if s.stationary == "input_stationary" else tiles[::-1]
        assert 1 <= s.channels <= nest.group_channels
        assert 1 <= s.k2 <= streamed
        assert 1 <= s.k3 <= kept


@pytest.mark.parametrize("name", cpus())
def test_every_problem_plans_on_every_shipped_cpu(name: str) -> None:
    for text in PROBLEMS:
        chosen = plan(text, name)
        assert chosen.problem == parse(text).text
        assert full_cost(chosen).seconds > 0
        json.dumps(chosen.to_dict(), allow_nan=False)


@pytest.mark.parametrize("overlap", [0.0, 1.0])
@pytest.mark.parametrize("text", ["gemm:300x200x100:tn", "conv:mb2ic64ih14oc96kh3sh2ph1"])
def test_there_is_a_plan_whatever_computing_hides(text: str, overlap: float) -> None:
    on = machine.load("zen4")
    on = msgspec.structs.replace(on, core=msgspec.structs.replace(on.core, overlap=msgspec.structs.replace(on.core.overlap, value=overlap)))
    assert plan(text, on).seconds == plans(text, on, top=1)[0].seconds


@pytest.mark.parametrize("side", ["ih1iw1000000000kh1kw3pw1", "ih1iw1000000000kh1kw1000000000", "ih1000000000iw1kh1000000000kw1"])
def test_the_longest_problem_is_planned_as_fast_as_others(side: str) -> None:
    begin = time.process_time()
    assert plan(f"conv:mb1ic1oc1{side}", "zen4").seconds
    assert time.process_time() - begin < 5


@pytest.mark.parametrize("size", [f"k2={10**20}", "k3=0", "channels=-1", "outputs=3"])
def test_the_name_of_a_plan_with_a_size_that_none_has_is_refused(size: str) -> None:
    field = size.partition("=")[0]
    name = re.sub(f",{field}=[0-9]+", "", plan(LAYER, "zen4", algorithm="sconv").name)
    with pytest.raises(PlanError, match=field):
        plan(LAYER, "zen4", name=f"{name},{size}")


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
    found = predict(space.table(costs))
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
def test_an_algorithm_that_is_never_predicted_takes_longer_and_is_rejected_by_its_bound(text: str, name: str) -> None:
    chosen, all_of_them = plan(text, name), plans(text, name, top=1)[0]
    every = {one.algorithm: full_cost(one).cycles for one in reversed(all_of_them.considered)}
    reasons = {one.what: one.reason for one in chosen.rejected}
    for left in every.keys() - {one.algorithm for one in chosen.considered}:
        bound = float(re.findall(r"its lower bound is already ([0-9.]+)x the chosen time", reasons[left])[0])
        assert 0.99 < bound <= every[left] / full_cost(chosen).cycles + 0.01


def test_every_kernel_of_the_registry_is_chosen_or_rejected_with_a_reason() -> None:
    for chosen in (plan(LAYER, "power10-e1050", algorithm="sconv"), plans(LAYER, "zen4", top=1)[0], plan(LAYER, "zen4", algorithm="sconv")):
        named = [item.what.rpartition(" by ")[2] for item in chosen.rejected]  # "sconv by f32_..." where several algorithms have a kernel
        assert all(item.reason for item in chosen.rejected)
        of_type = {kernel.name for kernel in kernels() if kernel.dtype == "f32"}
        assert of_type == {chosen.kernel, *named} & of_type
        assert f"{chosen.algorithm} by {chosen.kernel}" not in [item.what for item in chosen.rejected]
        others = len(kernels()) - len(of_type)
        assert f"{others} kernels of another type" in named


def test_a_plan_that_is_requested_again_is_the_one_that_was_made() -> None:
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


def test_a_requested_micro_kernel_is_the_one_that_is_planned() -> None:
    csa = plan(LAYER, "power10-e1050", model="csa", micro_kernel="4x16")
    assert (csa.tile["windows"], csa.tile["filters"], csa.schedule.stationary) == (4, 16, "weight_stationary")
    assert plan(LAYER, "zen4", micro_kernel="4x16").kernel == "f32_outer_4x16__avx512"
    assert {item.kernel for item in plans(LAYER, "zen4", top=5, micro_kernel="64x6")} == {"f32_win_64x6__avx512"}


@pytest.mark.parametrize(
    ("problem", "options"),
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
def test_every_kernel_that_a_plan_names_can_be_requested_by_its_name_and_by_its_tile(problem: str, options: dict[str, Any]) -> None:
    options = {"machine": "zen4", **options}
    names = {one.kernel for one in plans(problem, top=1000, **options)}
    assert len(names) > 1
    for name in names:
        named = plan(problem, micro_kernel=name, **options)
        assert named.kernel == name
        tile = [named.tile[field] for field in ("windows", "filters") if field in named.tile]
        assert not tile or plan(problem, micro_kernel="x".join(map(str, tile)), **options).cost.cycles <= named.cost.cycles


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
    packed, raw = (plan(LAYER, "power10-e1050", model="csa", input_footprint=kind) for kind in ("packed", "raw"))
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


def test_a_product_of_a_network_finds_a_in_the_caches_and_the_prepared_b_in_memory() -> None:
    chosen = plan("gemm:197x192x768:nt", "zen3", state="chained", prepared=True)
    memory = full_cost(chosen).levels["memory"]
    assert chosen.algorithm == "panels"  # without packing, which gemm would repeat in each run
    assert memory["filters_bytes"] == 0
    assert memory["packed_bytes"] == 192 * 768 * 4
    assert full_cost(plan("gemm:197x192x768:nt", "zen3", state="chained")).levels["memory"]["bytes"] == 0


def test_a_product_of_few_rows_in_a_network_finds_its_matrix_in_memory() -> None:
    chosen = plan("gemm:2x1024x1024", "zen3", state="chained", prepared=True, algorithm="skinny")
    memory = full_cost(chosen).levels["memory"]
    assert memory["input_bytes"] >= 1024 * 1024 * 4
    assert memory.get("filters_bytes", 0) == 0


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
    subprocess.run([sys.executable, "-c", check], check=True, timeout=250)


def test_alternatives_are_predicted_when_they_are_read_and_are_those_of_all_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    forget()
    chosen, everything = plan(LAYER, "zen5"), plans(LAYER, "zen5", top=1)[0]
    with monkeypatch.context() as patched:
        patched.setattr("pysim.planner.table.Table.of", None)  # whoever predicts now fails
        assert chosen.schedule == everything.schedule and chosen.cost == everything.cost
        with pytest.raises(TypeError):
            len(chosen.considered)
    assert chosen.considered[0].schedule == chosen.schedule and chosen.considered[0].cost == chosen.cost
    assert {one.schedule for one in chosen.considered} <= {one.schedule for one in everything.considered}
    assert chosen.to_dict()["rejected"] and chosen.rejected == tuple(chosen.rejected) == pickle.loads(pickle.dumps(chosen.rejected))


@pytest.mark.parametrize("name", ["zen4", "power10-e1050"])
@pytest.mark.parametrize("text", ["gemm:300x705x353", "gemm:33x1030x640:nt", "conv:ic48ih16oc26kh3ph1", "conv:ic256ih28oc256kh1"])
def test_the_best_of_several_nests_is_among_the_schedules_that_are_predicted(text: str, name: str) -> None:
    problem, on = parse(text), machine.load(name)
    nests = [nest_of(problem), *([unpacked.nest_of(problem)] if isinstance(problem, Gemm) else [])]
    sets = [space.sets(rates(nest, on, space.rows(on, problem.dtype, None, "win").kernels)) for nest in nests]
    tables = [space.tiled(one)[0] for one in sets]
    least = min(predict(one).cycles.min() for one in tables)
    for most in (np.inf, least * (1 + 1e-9)):
        found = pruned(sets, "hot", most)
        assert min(one.cycles.min(initial=np.inf) for one in found) == pytest.approx(least, rel=1e-12)
        assert sum(one.cycles.size for one in found) < sum(one.kernel.size for one in tables)
    assert not any(one.cycles.size for one in pruned(sets, "hot", 0.5 * least))
