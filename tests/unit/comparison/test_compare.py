# SPDX-License-Identifier: Apache-2.0
"""A comparison times nothing that is wrong, keeps everything that it timed, and its statistics are what they say."""

import gc
import math
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from native_library import native

from pysim import planner
from pysim.cachemodel.simulator.simulated import simulated_cost
from pysim.check.reference import reference
from pysim.commands import timing
from pysim.comparison import compare as comparing
from pysim.comparison.bench import Bench, bench_of
from pysim.comparison.compare import How, measure_plan
from pysim.comparison.summary import OURS, summarise
from pysim.errors import MissingError, NativeError, PlanError
from pysim.machine.load import load
from pysim.measure.clock import Array
from pysim.measure.store import Store
from pysim.peers.peer import Operands, Ready
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import Layer, Workload, parse
from pysim.record.cost import Cost
from pysim.record.measurement import Comparison, CoreThen
from pysim.record.plan import Plan
from pysim.record.schedule import Schedule, name_of
from pysim.runtime import cpu as runtime
from pysim.runtime import cpu_launch

CONV = "conv:mb1ic16ih14oc12kh3ph1"
ZEN4 = load("zen4")
MACHINE: Any = msgspec.structs.replace(ZEN4, name="here", levels=(ZEN4.levels[0], msgspec.structs.replace(ZEN4.levels[1], sets=256)))
FAST: dict[str, Any] = {"min_seconds": 0.0, "budget_seconds": 0.2}


def planned(workload: Workload, seconds: float = 1e-5, on: Any = MACHINE, **changes: Any) -> Plan:
    """A plan of the kernel that every machine has; `changes` are of its schedule."""
    deep = workload.k if isinstance(workload, Gemm) else workload.channels // workload.groups
    kernel = f"{workload.dtype}_win_8x4__portable"
    pack: Any = "none" if isinstance(workload, Conv) and workload.pointwise else "tiles"
    s = Schedule(kernel, "input_stationary", pack, windows=8, filters=4, channels=min(deep, 64), k2=2, k3=3)
    algorithm = "gemm" if isinstance(workload, Gemm) else "sconv"
    known = workload if workload.dtype != "f16" else msgspec.structs.replace(workload, dtype="f32")  # of which there is no row
    cost = planner.plan(known, on, name=name_of(algorithm, s).replace("f16", "f32")).cost
    assert isinstance(cost, Cost)
    cost = msgspec.structs.replace(cost, seconds=seconds)
    return Plan(
        workload=workload, on=on, model="full", state="hot", algorithm=algorithm,
        schedule=msgspec.structs.replace(s, **changes), workspace_bytes=64, cost=cost, considered=(), rejected=(),
    )  # fmt: skip


def peer(make: Callable[[Workload, Operands], Callable[[], object]], version: str = "1.0") -> Any:
    """Somebody's library."""
    library = SimpleNamespace(ALGORITHMS=("",), make=lambda workload, operands, algorithm: Ready(make(workload, operands), version))
    return SimpleNamespace(computes=(Conv, Gemm), analytic=False, library=library)


def computing(change: Callable[[Array], object]) -> Any:
    def make(workload: Workload, operands: Operands) -> Callable[[], object]:
        def call() -> object:
            operands.out[...] = reference(workload, operands.x, operands.w)
            return change(operands.out)

        return call

    return peer(make, "right 1.0")


def not_here(*_: Any) -> Any:
    raise MissingError("it is not installed")


right, wrong, absent = computing(lambda out: None), computing(lambda out: np.add(out, 1, out=out)), peer(not_here)


def one(text: str = CONV, peers: Any = None, store: Store | None = None, on: Any = MACHINE, **options: Any) -> Comparison:
    workload = parse(text)
    plan = planned(workload, on=on)
    return measure_plan(Layer(workload, "a label", 3), plan, on, peers or {}, How(**(FAST | options)), store)


# ---------------------------------------------------------------------------------------------------------- one layer


@native
@pytest.mark.parametrize("text", [CONV, f"{CONV}:f64", "conv:g2mb3ic4ih9oc6kh3sh2ph1", "gemm:20x30x40", "gemm:20x30x40:tt"])
def test_a_plan_is_checked_timed_and_set_beside_its_prediction(text: str) -> None:
    c = one(text, peers={"right": right})
    assert c.correct and not c.reason
    assert (c.problem, c.label, c.count, c.machine, c.state) == (parse(text).text, "a label", 3, "here", "hot")
    assert c.measured_seconds is not None and c.measured_seconds > 0 and c.plan["cost"]["seconds"] == 1e-5
    plan = planned(parse(text))
    assert c.core and c.core.machine_clock_hz == ZEN4.clock_hz and c.core.clock_hz > 1e8 and 0 < c.core.multiply_share <= 1
    assert c.predicted_seconds == planner.plan(plan.workload, MACHINE.at_clock(c.core.clock_hz), name=plan.name).seconds
    assert c.samples >= 5 and c.max_error is not None and c.max_error < 1e-6
    low, middle, high = c.quartiles[OURS]
    assert low <= middle == c.measured_seconds <= high
    assert c.peers == {"right": c.quartiles["right"][1]} and c.versions == {"right": "right 1.0"}
    ratio = c.ratios["right"]
    assert ratio.value == pytest.approx(c.peers["right"] / c.measured_seconds)
    assert ratio.low <= ratio.value <= ratio.high


@native
@native
@pytest.mark.parametrize("text", [CONV, "gemm:20x30x40"])
def test_a_layer_of_a_cpu_gives_its_memory_back_without_a_collection(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    benches: list[weakref.ref[Bench]] = []

    def kept(*args: Any) -> Bench:
        made = bench_of(*args)
        benches.append(weakref.ref(made))
        return made

    monkeypatch.setattr(comparing, "bench_of", kept)
    monkeypatch.setattr(comparing, "release", lambda: pytest.fail("a collection takes a tenth of a layer's time"))
    layer = Layer(parse(text))
    gc.disable()
    try:
        (done,) = comparing.compare([(layer, planned(layer.workload))], MACHINE, {"right": right}, How(**FAST))
    finally:
        gc.enable()
    assert done.correct and len(benches) == 1 and benches[0]() is None


def test_a_comparison_is_json_with_the_promised_keys() -> None:
    document = msgspec.json.decode(msgspec.json.encode(one(peers={"right": right, "absent": absent})))
    promised = {
        "problem",
        "label",
        "plan",
        "correct",
        "max_error",
        "predicted_seconds",
        "measured_seconds",
        "samples",
        "peers",
    }
    assert promised <= document.keys()
    assert isinstance(document["samples"], int) and isinstance(document["peers"]["right"], float)


def corrupting(change: Callable[[Array], None]) -> type:
    """The native convolution with a mistake in its result."""

    class Corrupt(cpu_launch.Prepared):
        def run(self, x: Any, out: Any = None) -> Array:
            result = super().run(x, out)
            change(result)
            return result

        def step(self, x: Array, out: Array, workspace: Array, residual: Any = None) -> Any:
            right = super().step(x, out, workspace, residual)

            def call() -> None:
                right()
                change(out)

            return SimpleNamespace(bound=lambda: call)

    return Corrupt


def one_ulp(out: Array) -> None:
    out[0, 5, 7, 7] = np.nextafter(out[0, 5, 7, 7], np.float32(np.inf))


def unwritten_element(out: Array) -> None:
    out[0, 11, 13, 13] = np.nan


@native
@pytest.mark.parametrize("change", [one_ulp, unwritten_element])
def test_a_wrong_result_is_never_timed(change: Callable[[Array], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def timed(*_: Any, **__: Any) -> None:
        raise AssertionError("a wrong result was timed")

    monkeypatch.setattr(cpu_launch, "Prepared", corrupting(change))
    monkeypatch.setattr(comparing, "interleave", timed)
    with Store(tmp_path / "s.sqlite") as store:
        c = one(peers={"right": right}, store=store)
        assert len(store) == 0
    assert not c.correct and "exact fill: 1 of" in c.reason
    assert c.measured_seconds is None and c.samples == 0 and c.peers == {}


@native
def test_a_peer_that_is_wrong_or_absent_is_named_with_its_reason_and_not_timed() -> None:
    c = one(peers={"wrong": wrong, "absent": absent, "right": right})
    assert c.correct and list(c.peers) == ["right"]
    assert c.missing["absent"] == "it is not installed" and c.missing["wrong"].startswith("its result is wrong: exact fill")


@native
def test_a_peer_that_fails_when_timed_drops_out_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def fails(_: Array) -> None:
        nonlocal calls
        calls += 1
        if calls > 8:
            raise RuntimeError("misaligned address\nand a trace")

    c = one(peers={"fails": computing(fails), "right": right})
    assert c.correct and set(c.peers) == {"right"} == set(c.versions)
    assert c.missing == {"fails": "failed when timed: RuntimeError: misaligned address"}


@native
def test_cold_rotates_every_candidate_over_copies_of_its_operands() -> None:
    inputs: set[int] = set()

    def noting(workload: Workload, operands: Operands) -> Callable[[], object]:
        def call() -> object:
            inputs.add(operands.x.ctypes.data)
            operands.out[...] = reference(workload, operands.x, operands.w)
            return None

        return call

    c = one(peers={"noting": peer(noting)}, state="cold")
    bytes_per_call = 4 * (16 * 14 * 14 + 12 * 16 * 9 + 12 * 14 * 14)
    assert c.correct and c.state == "cold"
    assert len(inputs) >= 2 * (1 << 17) / bytes_per_call


@native
def test_a_profile_splits_a_call_into_packing_and_kernels() -> None:
    for text in (CONV, "gemm:20x30x40"):
        profile = one(text, profile=True).profile
        assert profile is not None and {"pack_seconds", "kernel_seconds"} <= profile.keys()
        assert profile["kernel_seconds"] > 0 and profile["kernel_calls"] > 0
    assert one().profile is None


@native
def test_every_sample_is_stored_under_the_key_of_its_candidate(tmp_path: Path) -> None:
    with Store(tmp_path / "s.sqlite") as store:
        c = one(peers={"right": right, "wrong": wrong}, store=store)
        ours, peer = store.find(problem=CONV, machine="here", state="hot")
    assert ours.kernel == "f32_win_8x4__portable" and peer.kernel == "right" and peer.schedule == ""
    assert msgspec.json.decode(ours.schedule, type=Schedule) == planned(parse(CONV)).schedule
    assert ours.run == peer.run and len(ours.samples) == len(peer.samples) == c.samples
    assert float(np.median(ours.samples)) == c.measured_seconds
    assert peer.environment["version"] == "right 1.0" and ours.environment["threads"] == "1"


# --------------------------------------------------------------------------------------------------------- many layers


@native
def test_layers_stream_and_each_is_stored_before_the_next_is_planned(tmp_path: Path) -> None:
    layers = [Layer(parse(CONV)), Layer(parse("conv:mb1ic8ih7oc12kh1"))]
    with Store(tmp_path / "s.sqlite") as store:
        stored: list[int] = []

        def plans() -> Any:
            for layer in layers:
                stored.append(len(store))
                yield layer, planned(layer.workload)

        run = comparing.compare(plans(), MACHINE, {"first": right}, How(**FAST), store)
        first = next(run)
        assert first.problem == CONV and len(store) == 2 and stored == [0]
        rest = list(run)
        assert [c.problem for c in rest] == ["conv:mb1ic8ih7oc12kh1"] and stored == [0, 2] and len(store) == 4
        assert list(first.peers) == ["first"]
        both = {"first": right, "other": right}
        every = comparing.compare([(layers[0], planned(layers[0].workload))], MACHINE, both, How(**FAST))
        assert set(next(every).peers) == {"first", "other"}


@native
def test_a_peer_takes_part_in_the_problems_that_it_computes() -> None:
    products = SimpleNamespace(computes=(Gemm,), analytic=False, library=right.library)
    assert one(peers={"products": products}).missing == {} == one(peers={"products": products}).peers
    assert set(one("gemm:20x30x40", peers={"products": products}).peers) == {"products"}


@native
def test_a_layer_that_cannot_run_is_reported_and_the_others_go_on() -> None:
    def plan_of(workload: Workload) -> Any:
        if workload.dtype == "f64":
            return PlanError("no kernel does that")
        return planned(workload, **({"k2": 0} if isinstance(workload, Gemm) else {}))

    texts = [f"{CONV}:f64", "gemm:5x6x7", "conv:mb1ic8ih7oc12kh1:f16", CONV]
    layers = [Layer(parse(text)) for text in texts]
    done = list(comparing.compare(((layer, plan_of(layer.workload)) for layer in layers), MACHINE, {"right": right}, How(**FAST)))
    assert [c.problem for c in done] == texts and [c.correct for c in done] == [False, False, False, True]
    assert done[0].reason == "no kernel does that" and done[1].reason and "f16" in done[2].reason


def test_an_absent_native_library_ends_the_run_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent_library() -> None:
        raise MissingError("install the package")

    monkeypatch.setattr(runtime, "library", absent_library)
    with pytest.raises(MissingError, match="install the package"):
        list(comparing.compare([(Layer(parse(CONV)), planned(parse(CONV)))], MACHINE, {}, How(**FAST)))


@native
def test_a_library_that_refuses_the_plan_raises_in_measure_plan() -> None:
    workload = parse(CONV)
    with pytest.raises(NativeError):
        measure_plan(Layer(workload), planned(workload, channels=-1), MACHINE, {}, How(**FAST))


# ----------------------------------------------------------------------------------------------------- in an emulator


class Emulator:
    """An executor that says it emulates, over this computer's own library."""

    kind: Literal["emulated"] = "emulated"
    about = "a pretended CPU"
    library = staticmethod(runtime.library)
    runner = staticmethod(runtime.LOCAL.runner)


@pytest.fixture
def emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (comparing, cpu_launch):
        monkeypatch.setattr(module, "executor_for", lambda on: Emulator())


@native
@pytest.mark.parametrize("text", [CONV, "gemm:48x64x32"])
def test_an_emulated_plan_is_checked_beside_simulated_caches_and_nothing_is_timed(text: str, tmp_path: Path, emulator: None) -> None:
    on, workload = load("xeon-4208"), parse(text)
    plan = planned(workload, seconds=1e-4, on=on)
    with Store(tmp_path / "store.db") as store:
        done = measure_plan(Layer(workload, "", 2), plan, on, {"right": right}, How(**FAST), store)
        assert len(store) == 0
    assert done.correct and done.measured_seconds is None and done.samples == 0 and done.predicted_seconds == 1e-4
    assert done.static_kind == "static+simulated"
    assert done.static_seconds == simulated_cost(workload, on, plan.schedule).seconds > 0
    assert not done.peers and not done.quartiles and "emulated" in done.missing["right"]
    summary = summarise([done])
    assert not {"prediction", "total_seconds", "peers", "few_samples"} & summary.keys()
    found = summary["static_prediction"]
    assert found["kind"] == "static+simulated" and found["layers"] == 1
    assert found["median_error"] == pytest.approx(abs(math.log(1e-4 / done.static_seconds)))
    assert (found["predicted_seconds"], found["static_seconds"]) == pytest.approx((2e-4, 2 * done.static_seconds))


@native
def test_a_wrong_result_of_an_emulator_has_no_static_time(monkeypatch: pytest.MonkeyPatch, emulator: None) -> None:
    monkeypatch.setattr(cpu_launch, "Prepared", corrupting(one_ulp))
    workload = parse(CONV)
    on = load("xeon-4208")
    done = measure_plan(Layer(workload, "", 1), planned(workload, on=on), on, {}, How(**FAST), None)
    assert not done.correct and done.reason and done.static_seconds is None and done.static_kind is None
    assert "static_prediction" not in summarise([done])


# ------------------------------------------------------------------------------------------------------------- summary


def timed(problem: str, predicted: float, measured: float, **more: Any) -> Comparison:
    fields: dict[str, Any] = {"label": "", "plan": {}, "samples": 30} | more
    return Comparison(problem=problem, correct=True, predicted_seconds=predicted, measured_seconds=measured, **fields)


def test_the_ratio_is_a_geometric_mean_over_distinct_problems() -> None:
    three = [timed(name, 1, 1, peers={"p": ratio}) for name, ratio in (("a", 1.1), ("b", 1.2), ("c", 0.9))]
    found = summarise(three)["peers"]["p"]
    assert found["geometric_mean"] == pytest.approx(1.0591, abs=5e-5)
    assert found["layers"] == 3 and found["faster_share"] == pytest.approx(2 / 3) and found["slower"] == ["c"]
    again = summarise([*three, timed("a", 1, 2, peers={"p": 2.2})])["peers"]["p"]
    assert again == found


def test_the_error_is_symmetric_and_large_ones_are_named() -> None:
    layers = [timed("a", 1.1, 1), timed("b", 1, 1.1), timed("c", 3, 1, plan={"cost": {"bound_by": "L3"}})]
    found = summarise(layers)["prediction"]
    assert found["median_error"] == pytest.approx(math.log(1.1))
    assert found["p90_error"] == pytest.approx(np.quantile([math.log(1.1), math.log(1.1), math.log(3)], 0.9))
    assert [(item["problem"], item["bound_by"]) for item in found["large_errors"]] == [("c", "L3")]
    assert found["large_errors"][0]["error"] == pytest.approx(math.log(3))


def test_rank_correlation_is_over_the_plans_of_a_problem_and_absent_without_them() -> None:
    assert "kendall_tau" not in summarise([timed(name, 1, 1) for name in "abcd"])["prediction"]
    same = [timed("a", predicted, measured) for predicted, measured in ((1, 2), (2, 3), (3, 4), (4, 6))]
    mixed = [timed("b", predicted, measured) for predicted, measured in ((1, 3), (2, 2), (3, 1))]
    assert summarise(same)["prediction"]["kendall_tau"] == pytest.approx(1)
    assert summarise(same + mixed)["prediction"]["kendall_tau"] == pytest.approx(0)


def test_totals_weigh_each_layer_by_its_count_and_compare_equals_with_equals() -> None:
    layers = [timed("a", 1, 2, count=3, peers={"p": 4.0, "q": 1.0}), timed("b", 1, 5, samples=7, peers={"p": 1.0})]
    found = summarise(layers)
    assert found["total_seconds"] == {"pysim": 11.0, "p": 13.0}
    assert found["few_samples"] == ["b"]
    assert found["peers"]["q"]["layers"] == 1


def test_a_measurement_that_was_disturbed_in_more_than_a_third_of_its_rounds_or_of_its_time_does_not_count() -> None:
    def left_out(share: float) -> CoreThen:
        return CoreThen(clock_hz=1e9, machine_clock_hz=1e9, multiply_share=1.0, left_out=share)

    fine = [timed(name, 1, 1, peers={"p": 5.0}, core=left_out(0.3), taken=0.3) for name in "abc"]
    lost = timed("d", 1, 4, peers={"p": 80.0}, core=left_out(0.4))
    found = summarise([*fine, lost])
    assert found["disturbed"] == ["d"]
    assert found["peers"]["p"] == summarise(fine)["peers"]["p"] and found["peers"]["p"]["geometric_mean"] == pytest.approx(5)
    assert found["total_seconds"]["pysim"] == 3 and found["prediction"]["layers"] == 3
    assert "disturbed" not in summarise(fine)
    for more in (timed("e", 1, 1, taken=0.5), timed("e", 1, 1, core=left_out(0.79))):
        none = summarise([*fine[:1], lost, more])
        assert none["disturbed"] == ["d", "e"]
        assert not none.keys() & {"peers", "prediction", "total_seconds"}


def test_the_time_for_all_layers_is_divided_among_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYSIM_STORE", str(tmp_path / "store.sqlite"))
    budgets: list[float] = []

    def compare(planned: Any, on: Any, peers: Any, how: Any, *_: Any) -> Iterator[Comparison]:
        budgets.append(how.budget_seconds)
        yield from ()

    monkeypatch.setattr("pysim.comparison.compare.compare", compare)
    layer = Layer(parse("gemm:8x8x8"), "", 1)
    for layers, seconds in ((1, 0.2), (3, 0.2), (100, 0.2), (100, 3.0)):
        wanted: Any = [(layer, planner.plan(layer.workload, "zen4"))] * layers
        assert [*timing.measured(wanted, ZEN4, {}, min_seconds=seconds)] == []
    assert budgets == [timing.BUDGET, timing.BUDGET / 3, 1.0, 15.0]


def test_what_failed_is_counted_and_named_and_nothing_is_made_up() -> None:
    failed = Comparison(problem="a", label="l", plan={}, correct=False, reason="wrong", predicted_seconds=1.0)
    found = summarise([failed])
    assert found == {"layers": 1, "correct": 0, "failed": [{"problem": "a", "label": "l", "reason": "wrong"}]}
    assert summarise([]) == {"layers": 0, "correct": 0, "failed": []}
    assert summarise([failed, timed("b", 1, 1)])["prediction"]["layers"] == 1
    assert msgspec.json.encode(summarise([failed, timed("b", 1, 1, peers={"p": 1.0})]))
