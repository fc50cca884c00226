# SPDX-License-Identifier: Apache-2.0
"""Decides which plans a search measures next, and evaluates the result. Both are functions of the runs so far, so a killed search resumes.

A run times a few plans interleaved with the incumbent. The time of a plan is the median, over all its samples, of sample / neighbouring
sample of the incumbent, in which a slowdown of the whole machine cancels. Multiplied by the undisturbed time of the incumbent, the median
of the fastest third of its runs, it gives seconds (on a virtual machine that shares its core for seconds, all takes 1.45 times as long).

Two arms explore, each with half of the time: the model's order, and as the baseline a random order of all legal plans. Successive halving
decides which plans are measured again: the better half of those with r runs gets run r + 1 before a new plan is tried (asynchronously, as
in Li et al., A System for Massively Parallel Hyperparameter Tuning, 2020, with runs as the resource). The last part of the budget times the
finalists, the plans that determine the reported regrets.

    regret of a set = least time in the set / least time of all, both over plans with at least CONFIRMED runs

Worked number: of 64 explored plans 32 get a second run and 1 a seventh, in all 127 plan timings, half of them exploration.
"""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim.measure.speed import Speed

Array = NDArray[Any]
Purpose = Literal["model", "random", "again", "final"]
ARMS: tuple[Purpose, Purpose] = ("model", "random")
PURPOSES: tuple[Purpose, ...] = (*ARMS, "again", "final")

BATCH = 4  # plans of a run, besides the incumbent
EXPLORE = 0.75  # share of the budget before the finalists
FINALISTS = 3  # the best plans overall, besides the best of each set with a reported regret
CONFIRMED = 2  # runs before a plan's time counts: the luckiest of many single runs is not the fastest plan
MAX_FINAL_RUNS = 30  # of every finalist


class Run(NamedTuple):
    """One interleaved measurement: seconds per call of each plan by name, the incumbent among them; samples with the same index are
    neighbours in time. `spent`: seconds of the whole run, preparing and checking included; `speed`: of a CPU's core, after some runs."""

    purpose: Purpose
    incumbent: str
    samples: Mapping[str, Array]
    spent: float
    speed: Speed | None = None


class Trial(NamedTuple):
    """The results of a plan: its samples over the incumbent's, their median, and the number of its runs."""

    ratios: Array
    time: float
    runs: int


Trials = Mapping[str, Trial]


def after(trials: Trials, run: Run) -> dict[str, Trial]:
    """The trials with one more run."""
    incumbent_samples = run.samples[run.incumbent]
    updated = dict(trials)
    for name, samples in run.samples.items():
        before = trials.get(name, Trial(np.empty(0), np.nan, 0))
        ratios = np.concatenate([before.ratios, samples / incumbent_samples])
        updated[name] = Trial(ratios, float(np.median(ratios)), before.runs + 1)
    return updated


def known(runs: Iterable[Run]) -> dict[str, Trial]:
    """The trials of all runs."""
    updated: dict[str, Trial] = {}
    for run in runs:
        updated = after(updated, run)
    return updated


def seconds_of(trials: Trials, runs: Iterable[Run]) -> dict[str, float]:
    """Undisturbed seconds of each plan."""
    medians = np.sort([np.median(run.samples[run.incumbent]) for run in runs])
    alone = float(np.median(medians[: -(-medians.size // 3)])) if medians.size else np.nan
    return {name: trial.time * alone for name, trial in trials.items()}


class Step(NamedTuple):
    """The plans to measure next besides the incumbent, and the purpose."""

    purpose: Purpose
    names: list[str]


def step(
    orders: Mapping[Purpose, Sequence[str]],
    incumbent: str,
    trials: Trials,
    failed: Collection[str],
    spent: Mapping[Purpose, float],
    budget: float,
) -> Step | None:
    """The next run of a search; None where the budget is spent or all finalists are timed. `orders`: the plans of each arm in order."""
    total = sum(spent.values())
    if total >= budget:
        return None
    if total < EXPLORE * budget:
        if names := promoted(trials, incumbent):
            return Step("again", names)
        left = {arm: [name for name in orders[arm] if name not in trials and name not in failed] for arm in ARMS}
        if arms := [arm for arm in ARMS if left[arm]]:
            arm = min(arms, key=lambda arm: spent.get(arm, 0.0))
            return Step(arm, left[arm][:BATCH])
    names = finalists(orders, trials, failed)
    return Step("final", names) if any(trials[name].runs < MAX_FINAL_RUNS for name in names) else None


def promoted(trials: Trials, incumbent: str) -> list[str]:
    """The plans that successive halving measures again: those with exactly r runs in the better half of those with r or more, for the
    largest such r. The incumbent is in every run anyway."""
    ranked = [name for name in by_time(trials, trials) if name != incumbent]
    for runs in range(max((trials[name].runs for name in ranked), default=0), 0, -1):
        reached = [name for name in ranked if trials[name].runs >= runs]
        if waiting := [name for name in reached[: len(reached) // 2] if trials[name].runs == runs]:
            return waiting[:BATCH]
    return []


def finalists(orders: Mapping[Purpose, Sequence[str]], trials: Trials, failed: Collection[str]) -> list[str]:
    """The plans that determine the reported figures: the best overall, the model's first, the best of its first 8, 16 and of each arm."""
    ranking = orders["model"]
    groups = [ranking[:1], ranking[:8], ranking[:16], *(taken(orders[arm], trials, failed) for arm in ARMS)]
    names = [*by_time(trials, trials)[:FINALISTS], *(name for group in groups for name in by_time(group, trials)[:1])]
    return list(dict.fromkeys(names))


def by_time(names: Iterable[str], trials: Trials) -> list[str]:
    """The measured plans among the names, fastest first."""
    return sorted((name for name in names if name in trials), key=lambda name: trials[name].time)


def taken(order: Sequence[str], trials: Trials, failed: Collection[str]) -> list[str]:
    """How far an arm has come in its order; what the other arm had measured before costs it nothing."""
    return list(itertools.takewhile(lambda name: name in trials or name in failed, order))


def best(names: Iterable[str], trials: Trials) -> str | None:
    """The fastest of the names; None where none took part in enough runs."""
    return next((name for name in by_time(names, trials) if trials[name].runs >= CONFIRMED), None)


def regret(names: Iterable[str], trials: Trials) -> float | None:
    """The least time among the names over the least of all; None where either has too few runs."""
    ours, least = best(names, trials), best(trials, trials)
    return trials[ours].time / trials[least].time if ours and least else None


def regret_of_first(count: int, ranking: Sequence[str], trials: Trials, failed: Collection[str]) -> float | None:
    """The regret of the first `count` plans of the model's order; None where not all of them were tried."""
    first = ranking[:count]
    return regret(first, trials) if len(taken(first, trials, failed)) == len(first) else None
