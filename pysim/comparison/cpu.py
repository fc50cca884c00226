# SPDX-License-Identifier: Apache-2.0
"""Predicted beside measured beside the peers: each layer is checked, then timed with its rivals in one run, then
stored. A plan whose kernels run in an emulator is checked there and not timed: beside its prediction stands what static in-core cycles and
simulated caches make of it.

For layer i let r_i = median time of a peer / median time of the plan, and e_i = |log(predicted / measured)|.
`summarise` gives the geometric mean exp(mean log r_i) over distinct problems, the median and 90th percentile of e_i,
and, for a problem measured with at least three plans, Kendall's rank correlation of predicted and measured times over
its plans. An error of 0.40 is a factor of 1.49.

Worked number: ratios 1.1, 1.2 and 0.9 have the geometric mean 1.0591 and the plan is faster on 2/3 of the layers.
"""

import functools
import math
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from pysim.cachemodel.simulator.simulated import simulated_cost
from pysim.check.reference import Make, Trial, bytes_of, judge, shapes, trial
from pysim.errors import MissingError, PlanError, PysimError
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.measure.clock import Array, State, copies_for, interleave, pinned, quartiles, ratio_interval, rotating, unwritten
from pysim.measure.store import Store, environment, now
from pysim.peers.cpu import Maker, Missing
from pysim.problem.gemm import Gemm
from pysim.problem.text import Layer, Workload
from pysim.record.cost import Cost
from pysim.record.measurement import Comparison, Measurement, Ratio
from pysim.record.schedule import GpuConvSchedule, Schedule
from pysim.runtime import cpu as runtime

if TYPE_CHECKING:
    from pysim.record.plan import Plan

OURS = "pysim"
LARGE_ERROR = 0.40  # |log(predicted / measured)| that a summary lists by name
FEWEST_SAMPLES = 30
PROFILED_CALLS = 5
NO_PEERS = "its time on this computer says nothing about a machine that is emulated"

Planned = tuple[Layer, "Plan | PlanError"]


def compare(
    planned: Iterable[Planned],
    machine: Machine,
    *,
    makers: Mapping[str, Maker] | None = None,
    threads: int = 1,
    state: State = "hot",
    store: Store | None = None,
    profile: bool = False,
    budget_seconds: float = 30.0,
    min_seconds: float = 0.2,
    seed: int = 0,
    executor: runtime.Executor = runtime.LOCAL,
) -> Iterator[Comparison]:
    """Check and time the plan of each layer beside the peers that `makers` make; a layer may come with why it has no plan.

    Yields each layer as soon as it is done, after all its samples are in `store`. A layer that cannot be planned or run
    gives a Comparison that is not correct, with the reason, and the others go on; MissingError (no native library) ends
    the iteration. `budget_seconds` bounds the time spent timing one layer, whatever the sample count. With an `executor` that
    emulates nothing is timed, no peer runs and nothing is stored.
    """
    measure = functools.partial(
        measure_plan,
        machine=machine,
        makers=makers,
        threads=threads,
        state=state,
        store=store,
        profile=profile,
        budget_seconds=budget_seconds,
        min_seconds=min_seconds,
        seed=seed,
        executor=executor,
    )
    for layer, plan in planned:
        try:
            if isinstance(plan, PlanError):
                raise plan
            done = measure(layer, plan)
        except MissingError:
            raise
        except (PysimError, MemoryError) as error:
            reason = str(error) or "out of memory"
            done = _comparison(layer, machine, state, plan={}, correct=False, threads=threads, reason=reason, executor=executor.kind)
        yield done


def measure_plan(
    layer: Layer,
    plan: "Plan",
    machine: Machine,
    *,
    makers: Mapping[str, Maker] | None = None,
    threads: int = 1,
    state: State = "hot",
    store: Store | None = None,
    profile: bool = False,
    budget_seconds: float = 30.0,
    min_seconds: float = 0.2,
    seed: int = 0,
    executor: runtime.Executor = runtime.LOCAL,
) -> Comparison:
    """Check one plan, then time it, and with `makers` the peers that give the right result too, in one run.

    Peers run on one thread whatever `threads` says. Raises PysimError where the plan cannot be run at all; a wrong
    result is no exception but a Comparison with `correct` False, no time and the reason. In an emulator the plan is only checked.
    """
    done = functools.partial(_comparison, layer, machine, state, plan=plan.to_dict(), threads=threads, executor=executor.kind)
    done = functools.partial(done, predicted_seconds=plan.cost.seconds if isinstance(plan.cost, Cost) and threads == 1 else None)
    t = trial(layer.workload, seed)
    if not isinstance(plan.schedule, Schedule):
        raise PlanError(f"the plan of {plan.problem} is for {plan.machine}, a GPU; here plans of CPUs are measured")
    schedule = plan.schedule
    make = _ours(layer.workload, schedule, threads, executor)
    ours = judge(t, make)
    if not ours.verdict.passed:
        reason = f"{ours.verdict.status}: {ours.verdict.reason}"
        return done(correct=False, max_error=_finite(ours.max_error), reason=reason)
    if executor.kind == "emulated":
        static = simulated_cost(layer.workload, machine, plan.schedule, state == "hot").seconds if threads == 1 else None
        kind = None if static is None else "static+simulated"
        missing = dict.fromkeys(makers or {}, NO_PEERS)
        return done(correct=True, max_error=_finite(ours.max_error), static_seconds=static, static_kind=kind, missing=missing)
    rivals = _rivals(t, makers or {})
    ready = {OURS: (make, ours.call)} | rivals.ready
    contenders: dict[str, Callable[[], object]] = {name: call for name, (_, call) in ready.items()}
    if state == "cold":
        copies = copies_for(bytes_of(layer.workload), machine.levels[-1].size_bytes)
        contenders = {name: _rotating(make, t, copies) for name, (make, _) in ready.items()}
    samples = interleave(contenders, min_seconds=min_seconds, budget_seconds=budget_seconds, state=state, threads=threads)
    if store is not None:
        keep(store, layer.workload, plan, machine, state, threads, samples, rivals.versions)
    times = {name: quartiles(values) for name, values in samples.items()}
    return done(
        correct=True,
        max_error=_finite(ours.max_error),
        measured_seconds=times[OURS][1],
        samples=len(samples[OURS]),
        peers={name: middle for name, (_, middle, _) in times.items() if name != OURS},
        ratios={name: ratio(values, samples[OURS]) for name, values in samples.items() if name != OURS},
        quartiles=times,
        missing=rivals.missing,
        versions=rivals.versions,
        profile=_profile(layer.workload, schedule, threads, t) if profile else None,
    )


def _comparison(layer: Layer, machine: Machine, state: State, **fields: Any) -> Comparison:
    return Comparison(
        problem=layer.workload.text,
        label=layer.label,
        count=layer.count,
        machine=machine.name,
        state=state,
        **fields,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def ratio(peer: Array, ours: Array) -> Ratio:
    low, high = ratio_interval(peer, ours)
    return Ratio(float(np.median(peer) / np.median(ours)), low, high)


def _ours(workload: Workload, schedule: Schedule, threads: int, executor: runtime.Executor) -> Make:
    """Prepares the plan as a user would: weights packed once, workspace and output allocated before the first call."""

    def make(x: Array, w: Array) -> Callable[[], Array]:
        out = unwritten(shapes(workload).out, workload.dtype)
        if isinstance(workload, Gemm):
            return functools.partial(runtime.PreparedGemm(workload, schedule, threads=threads, executor=executor), x, w, out)
        return functools.partial(runtime.Prepared(workload, w, schedule, threads=threads, executor=executor), x, out)

    return make


class _Rivals(NamedTuple):
    """The peers that gave the right result, ready to be timed, and why the others are not."""

    ready: dict[str, tuple[Make, Callable[[], Array]]]
    versions: dict[str, str]
    missing: dict[str, str]


def _rivals(t: Trial, makers: Mapping[str, Maker]) -> _Rivals:
    rivals = _Rivals({}, {}, {})
    for name, maker in makers.items():
        make = _theirs(name, maker, t.workload, rivals.versions)
        try:
            judged = judge(t, make)
        except MissingError as error:
            rivals.missing[name] = str(error)
            continue
        if judged.verdict.passed:
            rivals.ready[name] = (make, judged.call)
        else:
            rivals.missing[name] = f"its result is wrong: {judged.verdict.reason}"
    return rivals


def _theirs(name: str, maker: Maker, workload: Workload, versions: dict[str, str]) -> Make:
    """Prepares a peer, and notes its version; MissingError where it cannot run."""

    def make(x: Array, w: Array) -> Callable[[], Array]:
        found = maker(workload, x, w)
        if isinstance(found, Missing):
            raise MissingError(found.reason)
        versions[name] = found.version
        return found.call

    return make


def _rotating(make: Make, t: Trial, copies: int) -> Callable[[], object]:
    """The contender on `copies` sets of operands, result and packed weights, used in turn."""

    def copy(array: Array) -> Array:
        other = runtime.aligned(array.shape, array.dtype)
        other[...] = array
        return other

    return rotating([make(copy(t.x), copy(t.w)) for _ in range(copies)])


def _profile(workload: Workload, schedule: Schedule, threads: int, t: Trial) -> dict[str, float]:
    """How one call divides into packing and micro-kernels: medians over a few calls, clocks inside included."""
    out = unwritten(shapes(workload).out, workload.dtype)
    with pinned(threads):
        if isinstance(workload, Gemm):
            product = runtime.PreparedGemm(workload, schedule, threads=threads)
            calls = [product.profile(t.x, t.w, out) for _ in range(PROFILED_CALLS + 1)]
        else:
            convolution = runtime.Prepared(workload, t.w, schedule, threads=threads)
            calls = [convolution.profile(t.x, out) for _ in range(PROFILED_CALLS + 1)]
    return {name: float(np.median([call[name] for call in calls[1:]])) for name in calls[0]}


def keep(
    store: Store,
    workload: Workload,
    plan: "Plan",
    machine: Machine | Gpu,
    state: State,
    threads: int,
    samples: Mapping[str, Array],
    versions: Mapping[str, str],
) -> None:
    """One measurement per contender, under one run."""
    run, time, schedule = str(uuid.uuid4()), now(), msgspec.json.encode(plan.schedule).decode()
    lying = {"layout": plan.layout} if isinstance(plan.schedule, GpuConvSchedule) else {}
    for name, values in samples.items():
        own = {"kernel": plan.kernel, "schedule": schedule} if name == OURS else {"kernel": name, "schedule": ""}
        here = environment() | {"threads": str(threads if name == OURS else 1)} | lying
        store.add(
            Measurement(
                problem=workload.text,
                machine=machine.name,
                state=state,
                samples=tuple(values.tolist()),
                environment=here | ({"version": versions[name]} if name in versions else {}),
                time=time,
                run=run,
                **own,
            )
        )


# ------------------------------------------------------------------------------------------------------------- summary


def summarise(comparisons: Iterable[Comparison]) -> dict[str, Any]:
    """The statistics of a set of comparisons, ready for JSON; a part that nothing was measured for is absent.

    `layers`, `correct`, `failed` [{problem, label, reason}]. Of plans that were timed: `peers` {name: {layers, geometric_mean,
    faster_share, slower, algorithms?}} over distinct problems, `algorithms` counting which of the peer's were its fastest;
    `prediction` {layers, median_error, p90_error, kendall_tau?, large_errors}; `total_seconds` {name: sum of count x median} for the
    contenders that ran every correct layer; `few_samples` (problems short of 30). Of plans that ran in an emulator:
    `static_prediction` {kind, layers, median_error, p90_error, large_errors, predicted_seconds, static_seconds}, the last two sums of
    count x time.
    """
    every = list(comparisons)
    right = [c for c in every if c.correct]
    failed = [{"problem": c.problem, "label": c.label, "reason": c.reason} for c in every if not c.correct]
    summary: dict[str, Any] = {"layers": len(every), "correct": len(right), "failed": failed}
    if static := [c for c in right if c.static_seconds and c.predicted_seconds]:
        summary["static_prediction"] = _static_prediction(static)
    timed = [c for c in right if c.measured_seconds]
    if not timed:
        return summary
    names = sorted({name for c in timed for name in c.peers})
    summary["peers"] = {name: _against(name, [c for c in timed if name in c.peers]) for name in names}
    predicted = [c for c in timed if c.predicted_seconds]
    if predicted:
        summary["prediction"] = _prediction(predicted)
    totals = {name: [c.count * c.peers[name] for c in timed if name in c.peers] for name in names}
    totals = {OURS: [c.count * _seconds(c) for c in timed]} | totals
    summary["total_seconds"] = {name: math.fsum(values) for name, values in totals.items() if len(values) == len(timed)}
    summary["few_samples"] = [c.problem for c in timed if c.samples < FEWEST_SAMPLES]
    return summary


def _seconds(c: Comparison) -> float:
    return c.measured_seconds or math.nan


def _against(name: str, timed: Sequence[Comparison]) -> dict[str, Any]:
    """How the plans fare against one peer; a problem that occurs several times counts once, with its mean log ratio."""
    logs: dict[str, list[float]] = {}
    for c in timed:
        logs.setdefault(c.problem, []).append(math.log(c.peers[name] / _seconds(c)))
    means = {problem: math.fsum(values) / len(values) for problem, values in logs.items()}
    fastest = Counter(c.algorithms[name] for c in timed if name in c.algorithms)
    return {
        "layers": len(means),
        "geometric_mean": math.exp(math.fsum(means.values()) / len(means)),
        "faster_share": sum(value > 0 for value in means.values()) / len(means),
        "slower": [problem for problem, value in means.items() if value <= 0],
        **({"algorithms": dict(fastest.most_common())} if fastest else {}),
    }


def _prediction(timed: Sequence[Comparison]) -> dict[str, Any]:
    """Errors |log(predicted / measured)|, the layers where they are large, and the rank correlation over plans of a problem."""
    found = _errors(timed, "measured_seconds")
    taus = [tau for tau in map(_tau, _by_problem(timed)) if tau is not None]
    return found | ({"kendall_tau": float(np.mean(taus))} if taus else {})


def _static_prediction(static: Sequence[Comparison]) -> dict[str, Any]:
    """Errors |log(predicted / static)|: what the closed forms of traffic are off, since the in-core cycles are the same in both."""
    sums = {name: math.fsum(c.count * getattr(c, name) for c in static) for name in ("predicted_seconds", "static_seconds")}
    return {"kind": static[0].static_kind} | _errors(static, "static_seconds") | sums


def _errors(some: Sequence[Comparison], against: str) -> dict[str, Any]:
    """Median and 90th percentile of |log(predicted / against)|, and the layers where it is large."""
    errors = [abs(math.log((c.predicted_seconds or math.nan) / getattr(c, against))) for c in some]
    large = [
        {
            "problem": c.problem,
            "label": c.label,
            "predicted_seconds": c.predicted_seconds,
            against: getattr(c, against),
            "error": error,
            "bound_by": c.plan.get("cost", {}).get("bound_by", ""),
        }
        for c, error in zip(some, errors, strict=True)
        if error > LARGE_ERROR
    ]
    median, p90 = np.quantile(errors, [0.5, 0.9])
    return {"layers": len(some), "median_error": float(median), "p90_error": float(p90), "large_errors": large}


def _by_problem(timed: Sequence[Comparison]) -> list[list[Comparison]]:
    groups: dict[str, list[Comparison]] = {}
    for c in timed:
        groups.setdefault(c.problem, []).append(c)
    return list(groups.values())


def _tau(plans: Sequence[Comparison]) -> float | None:
    """Kendall's tau over the plans of one problem; None for fewer than three, which say nothing about an order."""
    if len(plans) < 3:
        return None
    from scipy.stats import kendalltau

    tau = float(kendalltau([c.predicted_seconds for c in plans], [c.measured_seconds for c in plans]).statistic)
    return tau if math.isfinite(tau) else None
