# SPDX-License-Identifier: Apache-2.0
"""Compares predicted and measured times of plans and peers, on a CPU or a GPU. Each plan is checked, timed with its peers, and stored.

An emulated plan is checked but not timed: its prediction is compared with static in-core cycles and simulated caches.
"""

import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec

from pysim import planner
from pysim.cachemodel.simulator.simulated import simulated_cost
from pysim.comparison.bench import Bench, bench_of, release
from pysim.comparison.peer_timings import Entry, Field, checked, field_of, reason_of
from pysim.comparison.summary import OURS
from pysim.errors import MissingError, PlanError, PysimError
from pysim.explain.roof import above
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.measure.clock import Call, CpuClock, Timed, copies_for, interleave, rotating
from pysim.measure.cpu_load import widened
from pysim.measure.speed import PLAIN, Speed, Speedometer
from pysim.measure.statistics import quartiles, ratio
from pysim.measure.store import Store, environment, now
from pysim.peers import Peer
from pysim.peers.peer import Operands, Ready
from pysim.problem.conv import Conv
from pysim.problem.text import Layer
from pysim.record.measurement import Comparison, CoreThen, Measurement
from pysim.record.plan import Plan
from pysim.record.schedule import Schedule
from pysim.record.state import RunState
from pysim.registry.cpu import loop_nest
from pysim.runtime.emulated import executor_for

CERTAIN = 0.005  # relative error of the medians at which sampling ends early, on a CPU
NO_PEERS = "its time on this computer says nothing about a machine that is emulated"

Planned = tuple[Layer, Plan | PlanError]


class How(NamedTuple):
    """How plans are measured: our threads on a CPU, cache state, whether a call is profiled by parts, least seconds of samples per
    candidate (unless the medians reach CERTAIN earlier), most seconds per plan, seed of the operands; `min_samples`: least samples per
    candidate; `series`, `library`: kept with the samples (`history`, `peers.earlier`); `own_time`: of this process, on one CPU thread
    (`CpuClock`)."""

    threads: int = 1
    state: RunState = "hot"
    profile: bool = False
    min_seconds: float = 0.2
    budget_seconds: float = 30.0
    seed: int = 0
    min_samples: int = 30
    series: str = ""
    library: str = ""
    own_time: bool = False


def plan_layers(layers: Iterable[Layer], on: Machine | Gpu, **terms: Any) -> list[Planned]:
    """Each layer with its plan, or with the reason why it has none; `terms` as in `planner.plan`. If no layer has a plan, raises the first
    reason."""
    planned: list[Planned] = []
    for layer in layers:
        try:
            planned.append((layer, planner.plan(layer.workload, on, **terms)))
        except PlanError as error:
            planned.append((layer, error))
    errors = [plan for _, plan in planned if isinstance(plan, PlanError)]
    if errors and len(errors) == len(planned):
        raise errors[0]
    return planned


def compare(
    planned: Iterable[Planned],
    machine: Machine | Gpu,
    peers: Mapping[str, Peer],
    how: How = How(),  # noqa: B008  # a value
    store: Store | None = None,
) -> Iterator[Comparison]:
    """Checks and times the plan of each layer and its peers. A layer may come with an error instead of a plan.

    Yields each layer as soon as it is done, after all its samples are in `store`. A layer that cannot be planned or run gives a Comparison
    that is not correct, with the reason, and the others go on; MissingError (no native library, driver or device) ends the iteration. On
    an emulated machine nothing is timed, no peer runs and nothing is stored.
    """
    for layer, plan in planned:
        try:
            if isinstance(plan, PlanError):
                raise plan
            done = measure_plan(layer, plan, machine, peers, how, store)
        except MissingError:
            raise
        except (PysimError, MemoryError) as error:
            reason = str(error) or "out of memory"
            done = _comparison(layer, machine, how, plan={}, correct=False, reason=reason)
        if isinstance(machine, Gpu) or not done.correct:  # on a CPU arrays are freed with their last reference, unless an error holds one
            release()
        yield done


def measure_plan(
    layer: Layer,
    plan: Plan,
    machine: Machine | Gpu,
    peers: Mapping[str, Peer],
    how: How = How(),  # noqa: B008
    store: Store | None = None,
) -> Comparison:
    """Checks one plan, then times it in one run with the peers that give the correct result.

    CPU peers run on one thread whatever `how.threads` says. Raises PysimError where the plan cannot be run at all; a wrong result is no
    exception but a Comparison with `correct` False, no time and the reason.
    """
    bench = bench_of(plan, machine, how.threads, how.seed)
    ours = Entry(OURS, "", partial(bench.make, plan))
    verdict, ready = checked(bench, ours.make)
    fields: dict[str, Any] = {
        "plan": plan.to_dict(),
        "predicted_seconds": plan.seconds if how.threads == plan.threads else None,
        "max_error": verdict.error if math.isfinite(verdict.error) else None,
    }
    if not verdict.passed:
        fields |= {"correct": False, "reason": f"{verdict.status}: {verdict.reason}"}
    elif executor_for(machine).kind == "emulated":
        fields |= {"correct": True, "missing": dict.fromkeys(peers, NO_PEERS), "errors": {OURS: verdict.over_rms}}
        fields |= _static(plan, machine, how)
    else:
        field = field_of(bench, peers, machine.name)
        timed = _timed(bench, {OURS: (ours, ready)} | field.ready, field, how, _speedometer(plan, machine, how.threads))
        if store is not None:
            fields["run"] = _keep(store, plan, how, timed, {label: found.version for label, (_, found) in field.ready.items()})
        field.errors[OURS] = verdict.over_rms
        fields |= {"correct": True, "profile": bench.profile(plan) if how.profile else None}
        fields |= _measured(field, timed, plan.workspace_bytes)
        if how.threads == plan.threads:
            then = fields["core"] = None if isinstance(machine, Gpu) else core_then(machine, timed.speed, target_of(plan), timed.left_out)
            plan = at_clock(plan, then.clock_hz) if then else plan
            fields["predicted_seconds"] = plan.seconds
            fields["above_roof"] = above(plan, fields["measured_seconds"], "measured") or above(plan, plan.seconds, "predicted")
    return _comparison(layer, machine, how, **fields)


def _comparison(layer: Layer, machine: Machine | Gpu, how: How, **fields: Any) -> Comparison:
    where: dict[str, Any] = {"machine": machine.name, "state": how.state, "threads": how.threads}
    where["executor"] = executor_for(machine).kind
    return Comparison(problem=layer.workload.text, label=layer.label, count=layer.count, **where, **fields)


def _speedometer(plan: Plan, machine: Machine | Gpu, threads: int) -> Callable[[], Speedometer] | None:
    """Reads the core with the instruction set of the plan's kernel, on a CPU; None elsewhere."""
    return None if isinstance(machine, Gpu) else partial(Speedometer, target_of(plan), threads)


def target_of(plan: Plan) -> str:
    """The instruction set of a CPU's plan."""
    return plan.kernel.rpartition("__")[2]


def core_then(machine: Machine, speed: Speed | None, target: str, left_out: float = 0.0) -> CoreThen | None:
    """The core's state from readings with an instruction set; None without readings."""
    unit, plain = machine.unit(target), machine.unit(PLAIN)
    if speed is None or unit is None:
        return None
    shares = [speed.fma_per_cycle / unit.fma_per_cycle.value]
    if plain and plain.fma_per_cycle.kind == "measured":  # of this compiler's code
        shares.append(speed.plain_per_cycle / plain.fma_per_cycle.value)
    line = None if math.isnan(speed.line_seconds) else speed.line_seconds
    return CoreThen(speed.clock_hz, machine.clock_hz, min(1.0, *shares), left_out, line)


def at_clock(plan: Plan, hertz: float) -> Plan:
    """A CPU's plan, predicted at another clock."""
    assert isinstance(plan.on, Machine)
    return planner.plan(plan.workload, plan.on.at_clock(hertz), name=plan.name, threads=plan.threads, state=plan.state, layout=plan.layout)


def _static(plan: Plan, machine: Machine | Gpu, how: How) -> dict[str, Any]:
    """The simulated cost of an emulated plan, on one thread, if the accesses of its loop nest can be traced."""
    nest = loop_nest(plan.workload)
    if how.threads != 1 or plan.algorithm != nest or not isinstance(plan.schedule, Schedule) or isinstance(machine, Gpu):
        return {}
    cost = simulated_cost(plan.workload, machine, plan.schedule, how.state == "hot")
    return {"static_seconds": cost.seconds, "static_kind": "static+simulated"}


def _timed(
    bench: Bench,
    candidates: Mapping[str, tuple[Entry, Ready]],
    field: Field,
    how: How,
    speedometer: Callable[[], Speedometer] | None,
) -> Timed:
    """Seconds per call of each candidate; peers that fail are removed from the field, with the reason."""
    calls: dict[str, Call] = {label: ready.call for label, (_, ready) in candidates.items()}
    kept: list[Operands] = []  # keeps arrays alive: calls hold only their addresses
    if how.state == "cold":
        count = copies_for(bench.trial.nbytes, bench.last_level_bytes)
        for label, (entry, _) in candidates.items():
            copies = [bench.copy() for _ in range(count)]
            calls[label] = rotating([entry.make(one).call for one in copies])
            kept += copies
    clock = bench.clock()
    if how.own_time and isinstance(clock, CpuClock):
        clock = clock._replace(own_time=True)
    certain = 0.0 if clock.asynchronous else CERTAIN  # a device slows down while it is busy
    limits: dict[str, Any] = {
        "min_samples": how.min_samples,
        "min_seconds": how.min_seconds,
        "budget_seconds": how.budget_seconds,
        "certain": certain,
    }
    timed = interleave(calls, clock, state=how.state, speedometer=speedometer, **limits)
    for label, error in timed.failed.items():
        del field.ready[label]
        field.missing[label] = f"failed when timed: {reason_of(error)}"
    return timed


def _measured(field: Field, timed: Timed, workspace_bytes: int) -> dict[str, Any]:
    """Statistics of the samples and workspace bytes; a peer is represented by its fastest algorithm."""
    samples, load = timed.samples, timed.load
    times = {label: quartiles(values) for label, values in samples.items()}
    fastest: dict[str, str] = {}
    for label in sorted(field.ready, key=lambda label: times[label][1]):
        fastest.setdefault(field.ready[label][0].peer, label)
    best = {peer: field.ready[label] for peer, label in fastest.items()}
    taken = load.taken if load else 0.0
    labels = {OURS: OURS} | fastest
    return {
        "launches": {name: timed.launches[label] for name, label in labels.items() if label in timed.launches},
        "taken": load.taken if load else None,
        "measured_seconds": times[OURS][1],
        "samples": len(samples[OURS]),
        "peers": {peer: times[label][1] for peer, label in fastest.items()},
        "ratios": {peer: widened(ratio(samples[label], samples[OURS]), taken) for peer, label in fastest.items()},
        "quartiles": {OURS: times[OURS]} | {peer: times[label] for peer, label in fastest.items()},
        "errors": {OURS: field.errors[OURS]} | {peer: field.errors[label] for peer, label in fastest.items()},
        "estimates": {name: seconds for name, (seconds, _) in field.estimates.items()},
        "missing": field.missing,
        "versions": {name: version for name, (_, version) in field.estimates.items()}
        | {name: one.version for name, (_, one) in best.items()},
        "algorithms": {name: entry.algorithm for name, (entry, _) in best.items() if entry.algorithm},
        "workspaces": {OURS: workspace_bytes}
        | {name: one.workspace_bytes for name, (_, one) in best.items() if one.workspace_bytes is not None},
    }


def _keep(store: Store, plan: Plan, how: How, timed: Timed, versions: Mapping[str, str]) -> str:
    """Stores one measurement per candidate under one run id, with the core's speed and the load in the environment; returns the id."""
    run, time, schedule = str(uuid.uuid4()), now(), msgspec.json.encode(plan.schedule).decode()
    layout = {"layout": plan.layout} if isinstance(plan.workload, Conv) and isinstance(plan.on, Gpu) else {}
    speed = (timed.speed.as_environment() if timed.speed else {}) | ({"series": how.series} if how.series else {})
    speed |= {"taken": f"{timed.load.share:.3f}"} if timed.load else {}
    again = {"library": how.library, "plan": plan.name} if how.library else {}
    for name, values in timed.samples.items():
        own = {"kernel": plan.kernel, "schedule": schedule} if name == OURS else {"kernel": name, "schedule": ""}
        here = environment() | {"threads": str(how.threads if name == OURS else 1)} | layout | speed
        details = here | ({"version": versions[name]} if name in versions else again)
        what = {"problem": plan.problem, "machine": plan.machine, "time": time, "run": run} | own
        store.add(Measurement(samples=tuple(values.tolist()), environment=details, state=how.state, **what))
    return run
