# SPDX-License-Identifier: Apache-2.0
"""Measurements of other days beside today's: which runs the store has, and whether a plan's time changed between two of them.

Two runs see two states of a computer: another clock, other processes, other virtual machines. Others only make calls longer, so a run's
time is that of its QUICK share of rounds. Where the baseline's plan on the baseline's library can be timed in turns with today's
(`peers.earlier`), both see one state:

    change = quick plan / quick plan of the baseline,   mean of its logarithm over the runs after

with an interval of as many standard deviations as leave FALSE for all layers together; a slowdown of all layers shows in `together` before
it does in each. Elsewhere the time is compared with two things that a changed plan leaves alone: each peer of one version, timed in turns
with it, and the core's clock.

    change = time_after / time_before,   time = mean over a series' runs of log(quick plan / quick peer), least of log(quick plan * clock)

The change closest to 1 counts; what a peer or the clock does not show is the computer's. Runs of one series are averaged, each with the
weight that its deviation allows, at most the middle one's, so that those that others disturbed most say little. Their buffers lie elsewhere
in memory, so that equal runs differ by BETWEEN_RUNS; so do series, by BETWEEN_SERIES. The interval has three standard deviations to either
side: BETWEEN_SERIES, and of each side those within runs and BETWEEN_RUNS over the root of its runs, or what these differ by if that is
more. Where others used more of the CPUs than before, they also took more of the shared cache, and what of it a plan needs is
unknown: the interval reaches LOAD times the difference further down (up, where they used less). A plan is slower if the change is above
LEAST_CHANGE and its whole interval above 1, and undecided if the interval reaches from 1 or less to above CLEAR_CHANGE.

Worked numbers: of two runs beside the baseline's library, each known to 0.9 %, and three layers, the interval is 2.4 % to either side, of
the three layers together 1.2 %. Without that library: three runs before and ten after of a plan whose quick rounds are known to 0.3 %:
3 sqrt(1.0^2 + 0.5^2 / 3 + 0.5^2 / 10) is 3.2 %; a plan that takes 5 % more time has the interval 1.017 to 1.084 and is slower, one that
takes 2 % more is not told from an equal one.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim.measure.store import Store
from pysim.peers import earlier
from pysim.record.measurement import Measurement

Array = NDArray[np.float64]
Verdict = Literal["slower", "faster", "same", "undecided"]
BETWEEN_RUNS = 0.004  # relative; of equal runs of one plan in one series, on a Zen 3 with two CPUs
BETWEEN_SERIES = 0.01  # likewise of two series: other pages of memory, other neighbours in the shared cache
QUICK = 0.05  # the quantile of a run's rounds
LOAD = 0.15  # relative; a product that keeps B in L3 beside 12 processes and beside 4, on a Zen 3 with two CPUs
LEAST_CHANGE, CLEAR_CHANGE = 0.03, 0.05
DEVIATIONS = 3
FALSE = 0.001  # the share of comparisons with a baseline's library in which an interval may wrongly exclude no change
FEWEST = 4  # rounds of which a quantile says something
CLOCK = "clock"  # stands for a peer where there is none


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
    def taken(self) -> float:
        """The share of the CPUs that others used."""
        return float(self.ours.environment.get("taken", 0))

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
        """Whether another run should confirm or refute that the plan is slower."""
        perhaps, unsure = self.value > 1 + LEAST_CHANGE / 2, self.low < 1 + LEAST_CHANGE / 2
        return unsure and (perhaps or self.high > 1 + CLEAR_CHANGE) if self.against == earlier.NAME else perhaps

    @property
    def verdict(self) -> Verdict:
        if self.value > 1 + LEAST_CHANGE and self.low > 1:
            return "slower"
        if self.value < 1 / (1 + LEAST_CHANGE) and self.high < 1:
            return "faster"
        return "undecided" if self.low <= 1 and self.high > 1 + CLEAR_CHANGE else "same"


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


def change_of(before: Series, after: Series, layers: int = 1) -> Change | None:
    """The change between two series of one setting, one of so many; None if nothing tells the computer's change from the plan's."""
    if beside := _beside_the_baseline(before, after, layers):
        return beside
    names = _common(*before, *after)
    if min(len(before), len(after)) > 1 or not any(_level(before, name) and _level(after, name) for name in names):
        names = [*names, CLOCK]
    busier = float(np.median([one.taken for one in after]) - np.median([one.taken for one in before]))
    found = []
    for name in names:
        then, now = _level(before, name), _level(after, name)
        if then and now:
            change, reach = now[0] - then[0], DEVIATIONS * math.hypot(then[1], now[1], BETWEEN_SERIES)
            low, high = change - reach - LOAD * max(0.0, busier), change + reach + LOAD * max(0.0, -busier)
            found.append(Change(math.exp(change), math.exp(low), math.exp(high), name))
    return min(found, key=lambda one: abs(math.log(one.value)), default=None)


def _beside_the_baseline(before: Series, after: Series, layers: int) -> Change | None:
    """None unless every run after was timed in turns with the plan and the library of the runs before."""
    ours = before[-1].ours
    library, plan = (ours.environment.get(name, "") for name in ("library", "plan"))
    version = earlier.version_of(library, ours.kernel, plan)
    beside = [one.peers.get(earlier.NAME) for one in after]
    if not library or any(one is None or one.environment.get("version") != version for one in beside):
        return None
    level = _level(after, earlier.NAME)
    return _change(*level, layers) if level else None


def _change(change: float, deviation: float, layers: int) -> Change:
    """Beside a baseline's library, of its logarithm and standard deviation."""
    reach = NormalDist().inv_cdf(1 - FALSE / layers) * deviation
    return Change(math.exp(change), math.exp(change - reach), math.exp(change + reach), earlier.NAME)


def _common(first: Run, *others: Run) -> list[str]:
    """Peers of all runs, of one version."""

    def version(run: Run, name: str) -> str | None:
        return run.peers[name].environment.get("version", "") if name in run.peers else None

    return [name for name in first.peers if all(version(run, name) == version(first, name) for run in others)]


def _level(series: Series, name: str) -> tuple[float, float] | None:
    """The logarithm of the plan's quick time over a peer's, or in cycles, and its standard deviation; None where a run lacks one."""
    found = [_quick(run, name) for run in series]
    known = [one for one in found if one]
    if not known or len(known) < len(found):
        return None
    values, deviations = np.array(known).T
    weights = 1 / (np.maximum(deviations, np.median(deviations)) ** 2 + BETWEEN_RUNS**2)
    mean, expected = float(np.average(values, weights=weights)), 1 / float(weights.sum())
    seen = float(np.average((values - mean) ** 2, weights=weights)) / max(1, values.size - 1)
    return (float(values.min()) if name == CLOCK else mean), math.sqrt(max(expected, seen))


def _quick(run: Run, name: str) -> tuple[float, float] | None:
    ours = _quantile(run.ours.samples)
    if name == CLOCK:
        hertz = float(run.ours.environment.get("clock_hz", 0) or 0)
        return (ours[0] + math.log(hertz), ours[1]) if ours and hertz else None
    peer = _quantile(run.peers[name].samples)
    return (ours[0] - peer[0], math.hypot(ours[1], peer[1])) if ours and peer else None


def _quantile(samples: Sequence[float]) -> tuple[float, float] | None:
    """The logarithm of the QUICK quantile, and its standard deviation from the order statistics one deviation of the rank away."""
    n, values = len(samples), np.sort(np.log(np.array(samples)))
    if n < FEWEST or not np.isfinite(values).all():
        return None
    rank, reach = QUICK * (n - 1), math.sqrt(n * QUICK * (1 - QUICK))
    low, high = max(0, math.floor(rank - reach)), min(n - 1, math.ceil(rank + reach))
    return float(np.quantile(values, QUICK)), float(values[high] - values[low]) / 2


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
        found.append(Compared(series[-1], old[-1] if old else None, change_of(old, series, len(before)) if old else None))
    return found


def together(rows: Sequence[Compared], before: Sequence[Series]) -> Change | None:
    """The geometric mean of the changes beside the baseline's library, of several layers; None for fewer."""
    changes = [one.change for one in rows if one.change and one.change.against == earlier.NAME]
    if len(changes) < 2:
        return None
    reach = math.hypot(*(math.log(one.high / one.value) for one in changes)) / len(changes)
    middle = sum(math.log(one.value) for one in changes) / len(changes)
    return _change(middle, reach / NormalDist().inv_cdf(1 - FALSE / len(before)), 1)


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
