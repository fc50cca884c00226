# SPDX-License-Identifier: Apache-2.0
"""A search keeps the best plan, says how far others are from it, and goes on where it was killed."""

import json
import os
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from command_line import PLAN_KEYS, SMALL, cache, document, invoke, native, ok, own_files  # noqa: F401
from fake_gpu import host_device, multiply  # noqa: F401

from pysim import planner
from pysim.calibration import host
from pysim.check.verdict import Verdict
from pysim.comparison import bench
from pysim.machine.load import load_any
from pysim.measure.events import Events
from pysim.measure.store import Store, environment
from pysim.planner import request_of
from pysim.problem.text import parse
from pysim.runtime import cuda
from pysim.tuning import choose, evidence, search
from pysim.tuning.choose import CONFIRMED, Purpose, Run, Step, Trial

pytestmark = pytest.mark.usefixtures("own_files")
KEYS = {"problem", "plans_measured", "regret", "regret_8", "regret_16", "kendall_tau", "random_regret", "best"}


def play(
    times: dict[str, float], budget: float, noise: float = 0.0, seed: int = 0, broken: frozenset[str] = frozenset()
) -> SimpleNamespace:
    """A search among plans whose times are given, in the model's order; a run takes the sum of its samples."""
    rng = np.random.default_rng(seed)
    names = list(times)
    orders: dict[Purpose, list[str]] = {"model": names, "random": [names[at] for at in rng.permutation(len(names))]}
    trials: dict[str, Trial] = {}
    spent: dict[Purpose, float] = {}
    failed: set[str] = set()
    steps: list[Step] = []
    while step := choose.step(orders, names[0], trials, failed, spent, budget):
        steps.append(step)
        failed |= broken & set(step.names)
        taking = [name for name in dict.fromkeys([names[0], *step.names]) if name not in failed]
        samples = {name: times[name] * (1 + noise * np.abs(rng.standard_normal(5))) for name in taking}
        cost = sum(float(values.sum()) for values in samples.values())
        trials = choose.after(trials, Run(step.purpose, names[0], samples, cost))
        spent[step.purpose] = spent.get(step.purpose, 0.0) + cost
    return SimpleNamespace(orders=orders, trials=trials, spent=spent, steps=steps, failed=failed)


def made_up(count: int, seed: int) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    return {f"p{at}": float(1 + rng.random()) for at in range(count)}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("budget", [120.0, 1000.0, 1e5])
def test_halving_never_drops_the_best_of_noiseless_times(seed: int, budget: float) -> None:
    times = made_up(60, seed)
    done = play(times, budget)
    fastest = min(done.trials, key=lambda name: times[name])
    assert choose.best(done.trials, done.trials) == fastest


def test_a_search_without_a_limit_measures_every_legal_plan_and_ends() -> None:
    times = made_up(60, 1)
    done = play(times, 1e9)
    assert set(done.trials) == set(times)
    assert choose.regret(["p0"], done.trials) == pytest.approx(times["p0"] / min(times.values()))


def test_under_noise_the_plan_found_is_among_the_best() -> None:
    over = []
    for seed in range(20):
        times = made_up(60, seed)
        done = play(times, 3000, noise=0.2, seed=seed)
        name = choose.best(done.trials, done.trials)
        assert name
        over.append(times[name] / min(times[one] for one in done.trials))
    assert np.mean(over) < 1.02 and max(over) < 1.1


def test_the_arms_explore_for_the_same_time_and_only_the_better_half_goes_on() -> None:
    times = made_up(400, 3)
    done = play(times, 2000)
    assert done.spent["model"] == pytest.approx(done.spent["random"], abs=2 * 5 * 5)
    once = [name for name, trial in done.trials.items() if trial.runs == 1]
    again = [name for name, trial in done.trials.items() if trial.runs > 1 and name != "p0"]
    assert len(again) <= len(once) + choose.BATCH + choose.FINALISTS
    assert sum(done.spent.values()) == pytest.approx(2000, abs=2 * 5 * 10)
    assert done.spent["final"] >= 0.2 * 2000


def test_a_regret_is_the_time_of_the_best_of_some_over_the_best_of_all() -> None:
    def trial(seconds: float, runs: int = CONFIRMED) -> Trial:
        return Trial(np.array([seconds]), seconds, runs)

    trials = {f"p{at}": trial(2.0 - at / 16) for at in range(16)} | {"other": trial(0.5), "lucky": trial(0.1, runs=1)}
    ranking = [*trials]
    assert choose.regret_of_first(1, ranking, trials, ()) == pytest.approx(4)
    assert choose.regret_of_first(8, ranking, trials, ()) == pytest.approx((2 - 7 / 16) / 0.5)
    assert choose.regret_of_first(16, ranking, trials, ()) == pytest.approx((2 - 15 / 16) / 0.5)
    assert choose.best(trials, trials) == "other", "one short run is not evidence"
    assert choose.regret(["lucky"], trials) is None
    del trials["p5"]
    assert choose.regret_of_first(8, ranking, trials, ()) is None, "the first 8 were not all tried"
    assert choose.regret_of_first(8, ranking, trials, {"p5"}) is not None, "a plan that cannot be run is no better choice"


def test_times_are_relative_to_the_neighbouring_sample_of_the_incumbent() -> None:
    slow_moment = np.array([1.0, 10.0, 1.0, 1.0])
    trials = choose.known([Run("model", "a", {"a": 2 * slow_moment, "b": 3 * slow_moment}, 1.0)] * 2)
    assert trials["a"].time == 1 and trials["b"].time == 1.5 and trials["b"].runs == 2 and trials["b"].ratios.size == 8


def test_seconds_of_a_plan_are_those_of_the_undisturbed_third_of_runs() -> None:
    def run(seconds: float, **others: float) -> Run:
        return Run("model", "a", {name: np.full(5, over * seconds) for name, over in {"a": 1.0, **others}.items()}, 1.0)

    disturbed = [run(1.45, b=0.5) for _ in range(4)]
    runs = [run(1.0), run(1.01), *disturbed]
    found = choose.seconds_of(choose.known(runs), runs)
    assert found == pytest.approx({"a": 1.005, "b": 0.5025}), "b was measured while another machine shared the core"


def test_plans_that_cannot_be_run_do_not_hold_a_search_up() -> None:
    times = made_up(30, 5)
    broken = frozenset(sorted(times)[3:20])
    done = play(times, 1e6, broken=broken)
    assert set(done.trials) == set(times) - broken and done.failed == broken


# On this computer


@native
def test_a_search_measures_plans_and_keeps_every_sample() -> None:
    (found,) = document("search", SMALL, "--budget", "1", "--top", "3")["searches"]
    assert found.keys() >= KEYS and found["best"].keys() >= PLAN_KEYS
    assert 16 <= found["plans_measured"] <= found["plans_legal"]
    regrets = [found[key] for key in ("regret", "regret_8", "regret_16") if found[key] is not None]  # under load too few were tried twice
    assert regrets == sorted(regrets, reverse=True) and all(regret >= 1 for regret in regrets)
    assert min(found["model_regret"], found["random_regret"]) == 1
    assert -1 <= found["kendall_tau"] <= 1 and not found["failed"]
    core, best = found["core"], found["found"][0]
    own = next(one.seconds for one in planner.plans(SMALL, host.machine("host"), 100_000) if one.name == best["name"])
    then = core["machine_clock_hz"] / core["clock_hz"] if core else 1  # on a busy machine it may not be known
    assert best["predicted_seconds"] == pytest.approx(own * then)  # nothing of it comes from memory
    assert len(found["found"]) == 3 and found["found"][0]["over_best"] <= found["found"][1]["over_best"]
    with Store() as store:
        kept = store.find(problem=found["problem"])
    assert sum(len(one.samples) for one in kept) == found["samples"]
    assert len({one.environment["plan"] for one in kept}) == found["plans_measured"]


@native
def test_what_is_stored_counts_and_a_larger_budget_adds_to_it() -> None:
    first = document("search", SMALL, "--budget", "0.5")["searches"][0]
    same = document("search", SMALL, "--budget", "0.5")["searches"][0]
    assert same["stored_seconds"] == pytest.approx(first["spent_seconds"])
    assert {**same, "stored_seconds": 0} == {**first, "stored_seconds": 0}, "nothing was measured again"
    more = document("search", SMALL, "--budget", "1")["searches"][0]
    assert more["samples"] > first["samples"] and more["plans_measured"] >= first["plans_measured"]


@native
def test_a_search_that_is_killed_goes_on_where_it_was() -> None:
    command = [sys.executable, "-m", "pysim", "search", SMALL, "--budget", "600"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ)
    try:
        deadline = time.monotonic() + 250
        with Store() as store:
            while len(store) < 40 and time.monotonic() < deadline and process.poll() is None:
                time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    with Store() as store:
        before = store.find()
    assert len(before) >= 40
    spent = {one.run: float(one.environment["spent"]) for one in before}
    (found,) = document("search", SMALL, "--budget", str(sum(spent.values()) + 0.3))["searches"]
    with Store() as store:
        after = store.find()
    assert after[: len(before)] == before and len(after) > len(before)
    assert found["stored_seconds"] == pytest.approx(sum(spent.values()))
    assert found["samples"] == sum(len(one.samples) for one in after)
    first_runs = [one.environment["plan"] for one in after if one.environment["search"] in choose.ARMS]
    explored = [name for name in first_runs if name != after[0].environment["incumbent"]]
    assert len(explored) == len(set(explored)), "what was explored is not explored again"


@native
def test_a_pinned_plan_is_the_best_found_with_its_evidence() -> None:
    (found,) = document("search", SMALL, "--budget", "0.5")["searches"]
    (plan,) = document("plan", SMALL, "--pinned")["plans"]
    assert plan["name"] == found["best"]["name"] and plan["cost"] == found["best"]["cost"]
    evidence = plan["pinned"]
    assert evidence["measured_seconds"] == pytest.approx(found["best_seconds"])
    assert evidence["plans_measured"] == found["plans_measured"] and evidence["samples"] >= 5 * CONFIRMED
    assert environment()["cpu"] in evidence["computer"] and evidence["pysim"] and evidence["kernels"]
    assert evidence["computer"] in ok("plan", SMALL, "--pinned") and evidence["computer"] in ok("plan", SMALL, "--pinned", "--explain")


@native
@pytest.mark.parametrize("differs", ["computer", "pysim", "kernels", "machine", "threads"])
def test_what_was_measured_elsewhere_is_never_pinned_silently(differs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    document("search", SMALL, "--budget", "0.5")
    with Store() as store:
        kept = store.find()
    monkeypatch.setenv("PYSIM_STORE", os.environ["PYSIM_STORE"] + ".other")
    with Store() as store:
        store.add_run(msgspec.structs.replace(one, environment=one.environment | {differs: "another"}) for one in kept)
    result = invoke("plan", SMALL, "--pinned", "--json")
    (plan,) = json.loads(result.stdout)["plans"]
    assert plan["pinned"] is None and plan["name"] == document("plan", SMALL)["plans"][0]["name"]
    assert f"{len(kept)} stored measurements are not used: {differs} another" in result.stderr


@native
def test_what_was_measured_before_a_calibration_counts_after_it() -> None:
    on = host.runnable_any("host")
    last = msgspec.structs.replace(on.levels[-1], ways=max(1, on.levels[-1].ways // 2))
    assert evidence.computer(msgspec.structs.replace(on, levels=(*on.levels[:-1], last))) == evidence.computer(on)


@native
def test_a_run_that_no_search_left_so_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    document("search", SMALL, "--budget", "0.5")
    with Store() as store:
        kept = store.find()
    other = os.environ["PYSIM_STORE"] + ".other"
    monkeypatch.setenv("PYSIM_STORE", other)
    without = {"spent": "long"}, {"plan": ""}
    wrong = [msgspec.structs.replace(kept[0], environment=kept[0].environment | missing, run=str(missing)) for missing in without]
    short = [msgspec.structs.replace(one, samples=one.samples[: 2 + number % 2], run="short") for number, one in enumerate(kept)]
    with Store() as store:
        store.add_run(wrong + short)
    result = invoke("plan", SMALL, "--pinned", "--json")
    assert json.loads(result.stdout)["plans"][0]["pinned"] is None and "are not used" in result.stderr
    assert document("search", SMALL, "--budget", "0.3")["searches"][0]["plans_measured"]


@native
def test_a_pinned_plan_is_one_that_is_allowed() -> None:
    (found,) = document("search", SMALL, "--budget", "0.5", "--top", "1000")["searches"]
    legal = evidence.legal(request_of(parse(SMALL), host.runnable_any("host")))
    tiles = {f"{legal[one['name']].tile['windows']}x{legal[one['name']].tile['filters']}" for one in found["found"] if one["runs"] > 1}
    for shape in tiles:
        (plan,) = document("plan", SMALL, "--pinned", "--micro-kernel", shape)["plans"]
        assert f"{plan['tile']['windows']}x{plan['tile']['filters']}" == shape and plan["pinned"]["samples"] > 0
    unmeasured = next(kernel for kernel in legal.values() if f"{kernel.tile['windows']}x{kernel.tile['filters']}" not in tiles).tile
    result = invoke("plan", SMALL, "--pinned", "--micro-kernel", f"{unmeasured['windows']}x{unmeasured['filters']}")
    assert "none of the measured plans is legal with these options" in result.stderr


@native
def test_an_installed_package_and_a_checkout_name_what_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    known = environment() | {"commit": "0123456789ab", "pysim": "7"}
    for given, version in ((known, "0123456789ab"), ({key: known[key] for key in known if key != "commit"}, "7")):
        monkeypatch.setattr(evidence, "environment", lambda given=given: given)
        assert evidence.question_of(parse(SMALL), host.runnable_any("host"), 1, "nchw").here["pysim"] == version


@native
def test_without_a_search_the_model_plans_at_once_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "legal", lambda *of, **options: pytest.fail("all plans were made, which takes a second"))
    for problems, subject in (([SMALL], SMALL), ([SMALL, "gemm:8x9x7", "gemm:9x8x7"], f"{SMALL} and 2 more")):
        result = invoke("plan", *problems, "--pinned")
        assert result.exit_code == 0
        assert result.stderr == f"{subject}: the model's plan, not a measured one (never searched); run pysim search\n"


@native
def test_a_wrong_plan_is_never_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    workload, on = parse(SMALL), host.runnable_any("host")
    wrong = list(evidence.legal(request_of(workload, on)))[1]
    right: Any = search.checked

    def checked(bench: Any, make: Any) -> Any:
        verdict, ready = right(bench, make)
        return (Verdict("failed", 1.0, "one is off") if make.args[0].name == wrong else verdict), ready

    monkeypatch.setattr(search, "checked", checked)
    (found,) = document("search", SMALL, "--budget", "2", code=1)["searches"]
    assert found["wrong"] == [wrong] and "one is off" in found["failed"][wrong]
    assert found["plans_measured"] > 0 and found["best"]["name"] != wrong
    with Store() as store:
        assert wrong not in {one.environment["plan"] for one in store.find()}


@native
def test_where_the_incumbent_is_wrong_nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right: Any = search.checked
    monkeypatch.setattr(search, "checked", lambda bench, make: (Verdict("failed", 1.0, "one is off"), right(bench, make)[1]))
    (found,) = document("search", SMALL, "--budget", "0.5", code=1)["searches"]
    assert found["best"] is None and found["plans_measured"] == 0 and "one is off" in found["reason"]


@native
def test_the_layer_that_weighs_most_is_searched_first() -> None:
    large = "conv:mb1ic32ih28oc32kh3ph1"
    found = document("search", SMALL, large, "--budget", "0.1")["searches"]
    assert [parse(one["problem"]) for one in found] == [parse(large), parse(SMALL)]


class Launch:
    """`cuda.Launch` by NumPy; `seconds` are made up from its schedule."""

    def __init__(self, workload: Any, schedule: Any, **_: Any) -> None:
        self.seconds = 1e-4 * (1 + zlib.crc32(msgspec.json.encode(schedule)) / 2**32)

    def on(self, pointers: Any) -> Any:
        self.run = Timed(lambda: multiply(pointers), self.seconds)
        self.reference = self.run
        return self


class Timed(NamedTuple):
    """A call that is said to take so long."""

    call: Any
    seconds: float

    def __call__(self) -> None:
        self.call()


class Clock(Events):
    """A device's clock that reads what calls are said to take."""

    def __init__(self) -> None:
        pass

    def seconds(self, call: Any, times: int = 1) -> float:
        call()
        return float(call.seconds * times)


def test_a_gpu_is_searched_by_the_same_code(host_device: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "libpysim_cuda.so").write_bytes(b"kernels")
    monkeypatch.setenv("PYSIM_CUDA_LIBRARY", str(tmp_path / "libpysim_cuda.so"))
    monkeypatch.setattr(cuda, "Launch", Launch)
    monkeypatch.setattr(bench, "Events", Clock)
    words = ("gemm:16x16x16", "-m", "h200")
    (found,) = document("search", *words, "--budget", "300")["searches"]
    legal = evidence.legal(request_of(parse(words[0]), load_any("h200")))
    fastest = min(legal.values(), key=lambda plan: Launch(None, plan.schedule).seconds)
    assert found["plans_measured"] == found["plans_legal"] == len(legal) and found["best"]["name"] == fastest.name
    assert found["spent_seconds"] < 100, "where every plan was measured the search ends before its budget"
    (plan,) = document("plan", *words, "--pinned")["plans"]
    assert plan["name"] == fastest.name and "NVIDIA H200, 132 SMs" in plan["pinned"]["computer"]
    (tmp_path / "other.so").write_bytes(b"other kernels")
    monkeypatch.setenv("PYSIM_CUDA_LIBRARY", str(tmp_path / "other.so"))
    assert document("plan", *words, "--pinned")["plans"][0]["pinned"] is None
    assert "--threads is for CPUs" in invoke("search", *words, "--threads", "2").stderr


@native
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("search", SMALL, "-m", "zen4"), "zen4 is not known to be this computer"),
        (("search", "conv:mb1"), "conv:mb1"),
        (("plan", SMALL, "-m", "zen4", "--pinned"), "zen4 is not known to be this computer"),
    ],
)
def test_what_cannot_be_searched_is_said(words: tuple[str, ...], message: str) -> None:
    result = invoke(*words)
    assert result.exit_code in (2, 3) and message in result.stderr and not result.stdout


@pytest.mark.parametrize("budget", ["0", "-1", "nan", "soon"])
def test_a_budget_is_a_number_of_seconds(budget: str) -> None:
    result = invoke("search", SMALL, "--budget", budget)
    assert result.exit_code == 2 and "--budget" in result.stderr


@pytest.mark.parametrize("other", [("--top", "3"), ("--model", "csa")])
def test_a_pinned_plan_is_not_chosen_by_the_model(other: tuple[str, ...]) -> None:
    result = invoke("plan", SMALL, "--pinned", *other)
    assert result.exit_code == 2 and "--pinned shows one measured plan" in result.stderr
