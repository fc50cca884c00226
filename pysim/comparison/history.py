# SPDX-License-Identifier: Apache-2.0
"""Measurements of other days beside today's: which runs the store has, and whether a plan's time changed between two of them.

Two runs see two states of a computer: another clock, other processes, other virtual machines. What both have in common is a peer of one
version, timed in turns with the plan. So a change is that of the plan's time over the peer's:

    change = r_after / r_before,   r = exp(median_i log(plan_i / peer_i)) over the rounds i of a run

of the peer whose ratio is known best. Of the rounds the UNDISTURBED share counts in which plan and peer together took the least time:
others had the core in the rest, and choosing by the product favours neither. Where there is no common peer, and beside peers where both
sides have several runs, cycles at each run's clock are compared as well: a busy memory slows some peers more than a plan. Runs of one
series are averaged: their buffers lie elsewhere in memory, so that equal runs differ by BETWEEN_RUNS. The interval has three standard
deviations to either side: those of the medians and BETWEEN_RUNS, over the root of the runs of each side, or what these differ by if that
is more. A plan is slower if the change is above LEAST_CHANGE, its whole interval above 1, and none of the others below a third of that.

Worked number: medians known to 0.4 % each, three runs before and one after: sqrt(0.4^2 / 3 + 0.4^2 + 0.7^2 / 3 + 0.7^2) = 0.9 %; a plan
that takes 5 % more time has the interval 1.021 to 1.080 and is slower, one that takes 2 % more is not told apart from an equal one.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim.measure.store import Store
from pysim.record.measurement import Measurement

Array = NDArray[np.float64]
Verdict = Literal["slower", "faster", "same"]
BETWEEN_RUNS = 0.007  # relative; of equal runs of one plan, beside a peer, on a Zen 4 with two CPUs
UNDISTURBED = 1 / 3  # of the rounds
LEAST_CHANGE = 0.03
DEVIATIONS = 3
FEWEST = 4  # rounds of which a median says something
_CLOCK = "clock"  # stands for a peer where there is none


class Run(NamedTuple):
    """One run: the plan's measurement and those of its peers, by name."""

    ours: Measurement
    peers: dict[str, Measurement]

    @property
    def seconds(self) -> float:
        return float(np.median(self.ours.samples))

    @property
    def setting(self) -> tuple[str, ...]:
        """What must be equal for two runs to be compared."""
        environment = self.ours.environment
        return (self.ours.problem, self.ours.machine, self.ours.state, environment.get("threads", "1"), environment.get("layout", ""))

    @property
    def series(self) -> str:
        """Equal for runs that one command made of one plan."""
        return self.ours.environment.get("series", self.ours.run)


class Change(NamedTuple):
    """The plan's time after over before, its interval, and what both were compared with."""

    value: float
    low: float
    high: float
    against: str

    @property
    def doubtful(self) -> bool:
        """Whether another run may change or should confirm the verdict: the plan is slower, or may be slower by LEAST_CHANGE."""
        return self.high > 1 + LEAST_CHANGE

    @property
    def verdict(self) -> Verdict:
        if self.value > 1 + LEAST_CHANGE and self.low > 1:
            return "slower"
        return "faster" if self.value < 1 / (1 + LEAST_CHANGE) and self.high < 1 else "same"


Series = tuple[Run, ...]  # of one setting, oldest first


def runs_of(measurements: Iterable[Measurement]) -> list[Run]:
    """The runs of these measurements, oldest first; runs without a plan's own measurement are left out."""
    by_run: dict[str, list[Measurement]] = {}
    for one in measurements:
        by_run.setdefault(one.run, []).append(one)
    found = []
    for group in by_run.values():
        ours = [one for one in group if one.schedule]
        if len(ours) == 1 and ours[0].samples:  # a search has many plans in one run
            found.append(Run(ours[0], {one.kernel: one for one in group if not one.schedule}))
    return found


def series_of(runs: Iterable[Run]) -> list[Series]:
    """The last series of each setting."""
    found: dict[tuple[str, ...], Series] = {}
    for run in runs:
        known = found.get(run.setting, ())
        found[run.setting] = (*known, run) if known and known[-1].series == run.series else (run,)
    return [*found.values()]


def baseline(store: Store, name: str) -> list[Series]:
    """The runs saved under a name, the last series of each setting."""
    return series_of(runs_of(one for run in store.marked(name) for one in store.find(run=run)))


def change_of(before: Series, after: Series) -> Change | None:
    """The change between two series of one setting; None if nothing tells the computer's change from the plan's."""
    logs = {name: (_mean(_log_ratio, before, name), _mean(_log_ratio, after, name)) for name in _common(*before, *after)}
    if min(len(before), len(after)) > 1 or not any(map(all, logs.values())):
        logs[_CLOCK] = _mean(_log_cycles, before), _mean(_log_cycles, after)
    found = []
    for name, (then, now) in logs.items():
        if then and now:
            deviation = math.hypot(then[1], now[1])
            value, low, high = (math.exp(now[0] - then[0] + sign * DEVIATIONS * deviation) for sign in (0, -1, 1))
            found.append(Change(value, low, high, name))
    best = min(found, key=lambda one: one.high / one.low, default=None)
    if best and best.verdict != "same":  # unless a peer or the clock shows next to no change
        best = min((best, *found), key=lambda one: abs(math.log(one.value)) if abs(math.log(one.value)) < LEAST_CHANGE / 3 else 1.0)
    return best


def _common(first: Run, *others: Run) -> list[str]:
    """Peers of all runs, of one version."""

    def version(run: Run, name: str) -> str | None:
        return run.peers[name].environment.get("version", "") if name in run.peers else None

    return [name for name in first.peers if all(version(run, name) == version(first, name) for run in others)]


def _mean(of: Callable[..., tuple[float, float] | None], series: Series, *names: str) -> tuple[float, float] | None:
    """The mean of a quantity over runs, and its standard deviation."""
    found = [of(run, *names) for run in series]
    known = [one for one in found if one]
    if not known or len(known) < len(found):
        return None
    values, deviations = np.array(known).T
    expected = float(np.sum(deviations**2 + BETWEEN_RUNS**2)) / values.size**2
    seen = float(values.var(ddof=1)) / values.size if values.size > 1 else 0.0
    return float(values.mean()), math.sqrt(max(expected, seen))


def _log_ratio(run: Run, name: str) -> tuple[float, float] | None:
    """The median of log(plan / peer) over the undisturbed rounds, and its standard deviation."""
    if len(run.ours.samples) != len(run.peers[name].samples):
        return None
    ours, peer = np.log(np.array(run.ours.samples)), np.log(np.array(run.peers[name].samples))
    return _median((ours - peer)[_undisturbed(ours + peer)])


def _log_cycles(run: Run) -> tuple[float, float] | None:
    hertz = float(run.ours.environment.get("clock_hz", 0) or 0)
    cycles = np.log(np.array(run.ours.samples) * hertz) if hertz else np.array([])
    return _median(cycles[_undisturbed(cycles)])


def _undisturbed(taken: Array) -> NDArray[np.int64]:
    """The rounds that took the least."""
    return np.argsort(taken)[: max(min(taken.size, FEWEST), math.ceil(taken.size * UNDISTURBED))]


def _median(values: Array) -> tuple[float, float] | None:
    """A median, and its standard deviation from the order statistics half a sqrt(n) to either side, which are one deviation away."""
    if values.size < FEWEST or not np.isfinite(values).all():
        return None
    ordered, reach = np.sort(values), math.sqrt(values.size) / 2
    low, high = max(0, math.floor(values.size / 2 - reach)), min(values.size - 1, math.ceil(values.size / 2 + reach))
    return float(np.median(values)), float(ordered[high] - ordered[low]) / 2


class Compared(NamedTuple):
    """A run beside the baseline's of its setting; `change` is None where they cannot be compared, `before` where there is none."""

    after: Run
    before: Run | None
    change: Change | None


def compared(before: Sequence[Series], after: Sequence[Series]) -> list[Compared]:
    by_setting = {one[-1].setting: one for one in before}
    found = []
    for series in after:
        old = by_setting.get(series[-1].setting)
        found.append(Compared(series[-1], old[-1] if old else None, change_of(old, series) if old else None))
    return found


def document_of(one: Compared) -> dict[str, Any]:
    """As fields of a JSON document."""
    change = one.change
    return {
        "problem": one.after.ours.problem,
        "machine": one.after.ours.machine,
        "seconds": one.after.seconds,
        "baseline_seconds": one.before.seconds if one.before else None,
        "change": change.value if change else None,
        "interval": [change.low, change.high] if change else None,
        "against": change.against if change else None,
        "verdict": change.verdict if change else None,
    }
