# SPDX-License-Identifier: Apache-2.0
"""What a search measures next, and what it has found: functions of what was measured so far, so that a search that was killed goes on.

Plans are measured in runs, interleaved with the incumbent. The time of a plan is the median, over all its samples, of sample over the
incumbent's neighbouring sample; what slows the whole machine down cancels. In seconds it is that times what the incumbent takes
undisturbed: the median of the least third of its runs (on a virtual machine whose core another one shares for seconds, all is 1.45 times
as long meanwhile). Two arms explore, each taking turns by the time it has spent: the model's order, and a random order of all legal plans
as the baseline. Successive halving decides who is measured again: the better half of those that took part in r runs goes on to run r + 1,
before anything new is tried (asynchronously, as in Li et al., A System for Massively Parallel Hyperparameter Tuning, 2020, with runs as
the resource). The last part of the budget belongs to the finalists, the plans that the regrets are about.

    regret of names = least time among them / least time of all, both of plans that took part in at least CONFIRMED runs

Worked number: of 64 explored plans 32 take part in a second run and 1 in a seventh: 127 places in all, half of them exploration.
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

BATCH = 4  # plans of a run, beside the incumbent
EXPLORE = 0.75  # the share of the budget that is not the finalists'
FINALISTS = 3  # the best of all, besides the best of each group that a regret is about
CONFIRMED = 2  # runs without which a plan's time is not relied on: the luckiest of many short runs is not the fastest plan
ENOUGH = 30  # runs of every finalist, after which more say nothing


class Run(NamedTuple):
    """What was measured at once: seconds per call of each plan, by name, sample i of one beside sample i of another; the incumbent is one
    of them. `spent` are the seconds that all of it took, preparing and checking included; `speed` is a CPU's core behind some."""

    purpose: Purpose
    incumbent: str
    samples: Mapping[str, Array]
    spent: float
    speed: Speed | None = None


class Trial(NamedTuple):
    """What is known of a plan: its samples over the incumbent's, their median, and in how many runs it took part."""

    ratios: Array
    time: float
    runs: int


Trials = Mapping[str, Trial]


def after(trials: Trials, run: Run) -> dict[str, Trial]:
    """What is known after one more run."""
    beside = run.samples[run.incumbent]
    found = dict(trials)
    for name, samples in run.samples.items():
        before = trials.get(name, Trial(np.empty(0), np.nan, 0))
        ratios = np.concatenate([before.ratios, samples / beside])
        found[name] = Trial(ratios, float(np.median(ratios)), before.runs + 1)
    return found


def known(runs: Iterable[Run]) -> dict[str, Trial]:
    """What is known after all of them."""
    found: dict[str, Trial] = {}
    for run in runs:
        found = after(found, run)
    return found


def seconds_of(trials: Trials, runs: Iterable[Run]) -> dict[str, float]:
    """Undisturbed seconds of each plan."""
    medians = np.sort([np.median(run.samples[run.incumbent]) for run in runs])
    alone = float(np.median(medians[: -(-medians.size // 3)])) if medians.size else np.nan
    return {name: trial.time * alone for name, trial in trials.items()}


class Step(NamedTuple):
    """What to measure next beside the incumbent, and what for."""

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
    """The next run of a search; None where the budget is spent or more runs would say nothing. `orders` are those of the two arms."""
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
    return Step("final", names) if any(trials[name].runs < ENOUGH for name in names) else None


def promoted(trials: Trials, incumbent: str) -> list[str]:
    """Plans that took part in r runs and are in the better half of all that did, of the largest r where there are any. The incumbent is in
    every run anyway."""
    ranked = [name for name in by_time(trials, trials) if name != incumbent]
    for runs in range(max((trials[name].runs for name in ranked), default=0), 0, -1):
        reached = [name for name in ranked if trials[name].runs >= runs]
        if waiting := [name for name in reached[: len(reached) // 2] if trials[name].runs == runs]:
            return waiting[:BATCH]
    return []


def finalists(orders: Mapping[Purpose, Sequence[str]], trials: Trials, failed: Collection[str]) -> list[str]:
    """The plans that are reported: the best of all, the model's first, the best of its first 8 and 16, and of what each arm has found."""
    ranking = orders["model"]
    groups = [ranking[:1], ranking[:8], ranking[:16], *(taken(orders[arm], trials, failed) for arm in ARMS)]
    names = [*by_time(trials, trials)[:FINALISTS], *(name for group in groups for name in by_time(group, trials)[:1])]
    return list(dict.fromkeys(names))


def by_time(names: Iterable[str], trials: Trials) -> list[str]:
    """Those of the names that were measured, the fastest first."""
    return sorted((name for name in names if name in trials), key=lambda name: trials[name].time)


def taken(order: Sequence[str], trials: Trials, failed: Collection[str]) -> list[str]:
    """How far an arm has come in its order; what the other arm had measured before costs it nothing."""
    return list(itertools.takewhile(lambda name: name in trials or name in failed, order))


def best(names: Iterable[str], trials: Trials) -> str | None:
    """The fastest of the names; None where none took part in enough runs."""
    return next((name for name in by_time(names, trials) if trials[name].runs >= CONFIRMED), None)


def regret(names: Iterable[str], trials: Trials) -> float | None:
    """The least time of the names over the least of all; None where either is not known well enough."""
    ours, least = best(names, trials), best(trials, trials)
    return trials[ours].time / trials[least].time if ours and least else None


def regret_of_first(count: int, ranking: Sequence[str], trials: Trials, failed: Collection[str]) -> float | None:
    """The regret of the model's first so many plans; None where they were not all tried."""
    first = ranking[:count]
    return regret(first, trials) if len(taken(first, trials, failed)) == len(first) else None
