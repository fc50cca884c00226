# SPDX-License-Identifier: Apache-2.0
"""A search: checks and times plans of one problem in the runs that `pysim.tuning.choose` selects, and stores each run before the next.

The budget covers the runs, stored ones included: preparing, checking and timing. Planning, operands and references come on top.
"""

from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import msgspec
import numpy as np

from pysim import planner
from pysim.caches import LruCache
from pysim.comparison.bench import Bench, bench_of
from pysim.comparison.compare import core_then, target_of
from pysim.comparison.peer_timings import checked
from pysim.errors import MachineError, MissingError, PysimError
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.measure.clock import Array, Call, interleave
from pysim.measure.speed import Speedometer, middle
from pysim.measure.statistics import kendall_tau
from pysim.measure.store import Store
from pysim.problem.text import Layer
from pysim.record.measurement import CoreThen
from pysim.record.plan import Layout, Plan
from pysim.runtime.emulated import executor_for
from pysim.tuning import choose, evidence
from pysim.tuning.choose import ARMS, PURPOSES, Purpose, Run, Step, Trials, after, known, taken

MIN_SAMPLES, MIN_SECONDS = 5, 0.001  # of each plan of a run
MAX_RUN_SECONDS = 30.0
PREPARED_PLANS = 10  # kept ready; a run has fewer


class Settings(NamedTuple):
    """Seconds of runs per problem, threads on a CPU, layout on a GPU, seed of the operands and of the random order."""

    budget: float
    threads: int = 1
    layout: Layout = "nchw"
    seed: int = 0


class Tried(msgspec.Struct, frozen=True):
    """A measured plan: its undisturbed seconds (`choose.seconds_of`), its time over that of the best, its runs and its samples."""

    name: str
    measured_seconds: float
    predicted_seconds: float | None
    over_best: float | None
    runs: int
    samples: int


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """The result. `regret`: time of the model's first choice over the best found; `regret_8`, `regret_16`: of the best of its first 8, 16;
    `model_regret`, `random_regret`: of the best that each arm found in the same time; null where too little was measured. `kendall_tau`:
    of predicted and measured times over all measured plans. `first`: the model's choice; `found`: all measured plans, fastest first;
    `failed`: plans that could not be timed, with the reason; `wrong`: those of them with a wrong result. `stored_seconds`: the part of
    `spent_seconds` that was in the store before; `set_aside`: stored measurements that are not used, by what differs. Where `core` has the
    CPU's clock during the runs, the `predicted_seconds` of `found` are at that clock."""

    problem: str
    label: str = ""
    count: int = 1
    machine: str = ""
    threads: int = 1
    plans_legal: int = 0
    plans_measured: int = 0
    model_measured: int = 0
    random_measured: int = 0
    samples: int = 0
    spent_seconds: float = 0.0
    stored_seconds: float = 0.0
    regret: float | None = None
    regret_8: float | None = None
    regret_16: float | None = None
    kendall_tau: float | None = None
    model_regret: float | None = None
    random_regret: float | None = None
    best: dict[str, Any] | None = None
    best_seconds: float | None = None
    first: str = ""
    first_seconds: float | None = None
    found: tuple[Tried, ...] = ()
    failed: dict[str, str] = {}
    wrong: tuple[str, ...] = ()
    set_aside: dict[str, int] = {}
    core: CoreThen | None = None
    reason: str = ""


def search(
    layer: Layer,
    on: Machine | Gpu,
    settings: Settings,
    store: Store,
    tell: Callable[[str], None] = lambda text: None,
) -> Search:
    """Searches the plans of a layer; `tell` gets a line of progress after each run.

    Raises PlanError where there is no plan, MachineError for an emulated machine, MissingError without library or device. If the incumbent
    is wrong or cannot run, nothing is measured and `reason` says why.
    """
    if executor_for(on).kind == "emulated":
        raise MachineError(f"{on.name} is emulated here, where times mean nothing; search on -m host or -m cuda")
    workload = layer.workload
    question = evidence.question_of(workload, on, settings.threads, settings.layout)
    request = planner.request_of(workload, on, layout=settings.layout)
    plans = evidence.legal(request)
    stored = evidence.recall(store, question)
    runs = [_of(plans, run) for run in stored.runs if run.incumbent in plans]
    orders: dict[Purpose, list[str]] = {"model": list(plans), "random": _shuffled(plans, settings.seed)}
    incumbent = runs[0].incumbent if runs else orders["model"][0]
    rig = _Rig(bench_of(plans[incumbent], on, settings.threads, settings.seed), LruCache(PREPARED_PLANS), {}, [])
    trials = known(runs)
    spent = {purpose: sum(run.spent for run in runs if run.purpose == purpose) for purpose in PURPOSES}
    target = target_of(plans[incumbent])
    meter = Speedometer(target, settings.threads) if isinstance(on, Machine) else None
    before, start = sum(spent.values()), perf_counter()
    while now := choose.step(orders, incumbent, trials, rig.failed, spent, settings.budget):
        samples = _measured(rig, now, incumbent, plans)
        if incumbent not in samples:
            break
        speed = meter.look(len(runs)) if meter else None
        begin, start = start, perf_counter()  # storing a run counts towards the next one
        runs.append(Run(now.purpose, incumbent, samples, start - begin, speed))
        evidence.keep(store, question, plans, runs[-1])
        trials = {name: trial for name, trial in after(trials, runs[-1]).items() if name not in rig.failed}
        spent[now.purpose] += runs[-1].spent
        tell(f"{sum(spent.values()):.0f} of {settings.budget:g} s, {len(trials)} of {len(plans)} plans: {workload.text}")
    speeds = [run.speed for run in runs if run.speed]
    core = core_then(on, middle(speeds), target) if isinstance(on, Machine) and speeds else None
    then = plans
    if isinstance(on, Machine) and core:
        then = evidence.legal(msgspec.structs.replace(request, machine=on.at_clock(core.clock_hz)))
    return Search(
        label=layer.label, count=layer.count, machine=on.name, threads=settings.threads, problem=workload.text, set_aside=stored.set_aside,
        reason=f"{incumbent}, the plan that others are compared with: {rig.failed[incumbent]}" if incumbent in rig.failed else "",
        failed=rig.failed, wrong=tuple(rig.wrong), spent_seconds=sum(spent.values()), stored_seconds=before,
        core=core, **_summary(plans, then, orders, runs, trials, rig.failed),
    )  # fmt: skip


def _of(plans: Mapping[str, Plan], run: Run) -> Run:
    """A stored run without plans that no longer exist."""
    return run._replace(samples={name: samples for name, samples in run.samples.items() if name in plans})


def _shuffled(plans: Mapping[str, Plan], seed: int) -> list[str]:
    """The names in a random order, independent of the model's."""
    names = sorted(plans)
    return [names[at] for at in np.random.default_rng(seed).permutation(len(names))]


class _Rig(NamedTuple):
    """The bench, the prepared plans, the reason why plans failed, and the names of those with a wrong result."""

    bench: Bench
    ready: LruCache[Call]
    failed: dict[str, str]
    wrong: list[str]

    def call(self, plan: Plan) -> Call | None:
        """A plan ready to be timed, checked when it is prepared; None where it failed."""
        if (found := self.ready.get(plan.name)) or plan.name in self.failed:
            return found
        try:
            verdict, ready = checked(self.bench, partial(self.bench.make, plan))
        except MissingError:
            raise
        except (PysimError, MemoryError) as error:
            self.failed[plan.name] = str(error) or "out of memory"
            return None
        if verdict.passed:
            return self.ready.put(plan.name, ready.call)
        self.failed[plan.name] = f"{verdict.status}: {verdict.reason}"
        self.wrong.append(plan.name)
        return None


def _measured(rig: _Rig, now: Step, incumbent: str, plans: Mapping[str, Plan]) -> Mapping[str, Array]:
    """The samples of a run by plan. Plans that failed have none; empty where the incumbent failed."""
    calls = {name: call for name in dict.fromkeys([incumbent, *now.names]) if (call := rig.call(plans[name]))}
    if incumbent not in calls:
        return {}
    timed = interleave(
        calls, rig.bench.clock(), min_samples=MIN_SAMPLES, min_seconds=MIN_SECONDS, budget_seconds=MAX_RUN_SECONDS, warmup_seconds=0.0
    )
    rig.failed.update({name: str(error) for name, error in timed.failed.items()})
    return timed.samples


def _summary(
    plans: Mapping[str, Plan],
    then: Mapping[str, Plan],
    orders: Mapping[Purpose, list[str]],
    runs: list[Run],
    trials: Trials,
    failed: Mapping[str, str],
) -> dict[str, Any]:
    """The result fields of a Search; `then`: the plans predicted at the clock during the runs."""
    ranking, least = orders["model"], choose.best(trials, trials)
    in_arm = {arm: taken(orders[arm], trials, failed) for arm in ARMS}
    seconds = choose.seconds_of(trials, runs)
    tried = [_tried(then[name], seconds[name], trials, least) for name in choose.by_time(trials, trials)]
    return {
        "plans_legal": len(plans),
        "plans_measured": len(trials),
        "model_measured": len(in_arm["model"]),
        "random_measured": len(in_arm["random"]),
        "samples": sum(one.samples for one in tried),
        **{f"regret{end}": choose.regret_of_first(count, ranking, trials, failed) for end, count in (("", 1), ("_8", 8), ("_16", 16))},
        "kendall_tau": kendall_tau([plans[one.name].seconds or 0.0 for one in tried], [trials[one.name].time for one in tried]),
        **{f"{arm}_regret": choose.regret(in_arm[arm], trials) for arm in ARMS},
        "best": plans[least].to_dict() if least else None,
        "best_seconds": seconds[least] if least else None,
        "first": ranking[0],
        "first_seconds": seconds.get(ranking[0]),
        "found": tuple(tried),
    }


def _tried(plan: Plan, seconds: float, trials: Trials, least: str | None) -> Tried:
    trial = trials[plan.name]
    over = trial.time / trials[least].time if least else None
    return Tried(plan.name, seconds, plan.seconds, over, trial.runs, trial.ratios.size)
