# SPDX-License-Identifier: Apache-2.0
"""Runs of searches in the measurement store. A run is used if its problem, machine file, computer, version and kernel build are the same;
the others are counted by what differs.

A run is stored in one transaction, a measurement per plan under one run id, so a killed search leaves only complete runs.
"""

import functools
import hashlib
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np

from pysim import planner
from pysim.calibration.linux import read_caches
from pysim.errors import MachineError
from pysim.machine.gpu import Gpu
from pysim.measure.speed import Speed
from pysim.measure.store import Store, environment, now
from pysim.problem.text import Workload
from pysim.record.measurement import Measurement
from pysim.record.plan import Layout, Plan, Request
from pysim.record.state import RunState
from pysim.runtime import cpu, cuda
from pysim.tuning.choose import Array, Purpose, Run, best, known, seconds_of

MAX_PLANS = 1_000_000
STATE: RunState = "hot"


class Question(NamedTuple):
    """The problem of a search, and `here`: environment entries that stored measurements must equal."""

    problem: str
    here: dict[str, str]


class Evidence(NamedTuple):
    """The runs that can be used, how many measurements cannot by what differs ("kernels 1f2e.."), and the last time of each plan."""

    runs: list[Run]
    set_aside: dict[str, int]
    times: dict[str, str]


def question_of(workload: Workload, on: Any, threads: int, layout: Layout) -> Question:
    """The question that describes a search on this computer. MissingError without the library or the device."""
    here = {
        "machine": on.name,
        "computer": computer(on),
        "pysim": environment().get("commit") or environment().get("pysim", "unknown"),
        "kernels": _digest((cuda if isinstance(on, Gpu) else cpu).library_path()),
        "threads": str(threads),
        "layout": layout,
    }
    return Question(workload.text, here)


def computer(on: Any) -> str:
    """The fingerprint of this computer: the hardware as reported, independent of a calibration."""
    if isinstance(on, Gpu):
        device = cuda.devices()[0]
        return f"{device.name}, {device.sms} SMs at {device.clock_khz} kHz, driver {device.driver}"
    try:
        levels: Sequence[Any] = read_caches()
    except MachineError:  # not reported by this system
        levels = on.levels
    caches = (f"L{number} {one.sets}x{one.ways}x{one.line_bytes}" for number, one in enumerate(levels, 1))
    return ", ".join([environment().get("cpu", "unknown CPU"), *caches])


@functools.cache
def _digest(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()[:12]


def keep(store: Store, question: Question, plans: Mapping[str, Plan], run: Run) -> None:
    """A run, whole."""
    about = {"search": run.purpose, "spent": repr(run.spent), "incumbent": run.incumbent} | (
        run.speed.as_environment() if run.speed else {}
    )
    common = {"problem": question.problem, "machine": question.here["machine"], "time": now(), "run": str(uuid.uuid4())}

    def measurement(name: str, samples: Array) -> Measurement:
        schedule, details = plans[name].schedule, environment() | question.here | about | {"plan": name}
        columns: dict[str, Any] = {"schedule": msgspec.json.encode(schedule).decode(), "environment": details, **common}
        return Measurement(kernel=schedule.kernel, state=STATE, samples=tuple(samples.tolist()), **columns)

    store.add_run(measurement(name, samples) for name, samples in run.samples.items())


def recall(store: Store, question: Question) -> Evidence:
    """The stored evidence for a question. Used runs all have the incumbent of the latest run."""
    found = [one for one in store.find(problem=question.problem, state=STATE) if "search" in one.environment]
    set_aside: Counter[str] = Counter()
    rows: dict[str, dict[str, Measurement]] = {}
    for one in found:
        differs = [f"{key} {one.environment.get(key)}" for key, value in question.here.items() if one.environment.get(key) != value]
        if differs:
            set_aside[", ".join(differs)] += 1
        else:
            rows.setdefault(one.run, {})[one.environment.get("plan", "")] = one
    evidence = Evidence([], {}, {})
    incumbent = next((_about(run, "incumbent") for run in reversed(rows.values())), "")
    for run in rows.values():
        if _about(run, "incumbent") != incumbent or incumbent not in run:
            set_aside["another incumbent"] += len(run)
            continue
        if (read := _run(run, incumbent)) is None:
            set_aside["incomplete run"] += len(run)
            continue
        evidence.runs.append(read)
        evidence.times.update({name: one.time for name, one in run.items()})
    return evidence._replace(set_aside=dict(set_aside))


def _run(stored: Mapping[str, Measurement], incumbent: str) -> Run | None:
    """A run from its measurements; None for one that `keep` would not write."""
    samples = {name: np.array(one.samples) for name, one in stored.items()}
    if len({one.size for one in samples.values()}) > 1:
        return None
    try:
        spent, speed = float(_about(stored, "spent")), Speed.from_environment(next(iter(stored.values())).environment)
    except ValueError:
        return None
    return Run(cast("Purpose", _about(stored, "search")), incumbent, samples, spent, speed)


def _about(run: Mapping[str, Measurement], field: str) -> str:
    return next(iter(run.values())).environment.get(field, "")


def said(set_aside: Mapping[str, int]) -> str:
    """The measurements that are not used, in words."""
    return "; ".join(f"{count} stored measurements are not used: {reason}" for reason, count in set_aside.items())


class Pinned(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence for a plan found by measurement: its undisturbed seconds, its time over that of the search's incumbent, the number of
    plans measured, and when and where this one was measured last."""

    measured_seconds: float
    over_incumbent: float
    incumbent: str
    samples: int
    plans_measured: int
    time: str
    pysim: str
    kernels: str
    computer: str


def pinned(store: Store, request: Request) -> tuple[Plan, Pinned | None, str]:
    """The best plan found here that is legal under the request, with its evidence; else the model's plan, with the reason."""
    question = question_of(request.problem, request.machine, request.threads, request.layout)
    evidence = recall(store, question)
    trials = known(evidence.runs)
    plans = legal(request) if trials else {}  # enumerating all plans takes a second
    name = best(plans, trials)
    if name is None:
        never = "none of the measured plans is legal with these options" if trials else "never searched"
        reason = f"the model's plan, not a measured one ({said(evidence.set_aside) or never}); run pysim search"
        return planner.planned(request), None, reason
    about = {key: question.here[key] for key in ("pysim", "kernels", "computer")}
    found = Pinned(
        measured_seconds=seconds_of(trials, evidence.runs)[name], over_incumbent=trials[name].time, incumbent=evidence.runs[0].incumbent,
        samples=trials[name].ratios.size, plans_measured=len(trials), time=evidence.times[name], **about,
    )  # fmt: skip
    return plans[name], found, ""


def legal(request: Request) -> dict[str, Plan]:
    """All plans by name in the model's order. Its choice comes first even if others have the same cost."""
    chosen = planner.planned(request)
    return {chosen.name: chosen} | {plan.name: plan for plan in planner.ranked(request, MAX_PLANS)}
