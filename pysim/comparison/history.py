# SPDX-License-Identifier: Apache-2.0
"""Measurements of other days beside today's: which runs the store has, and whether a plan's time changed between two of them.

Two runs see two states of a computer: another clock, other processes, other virtual machines. What both have in common is a peer of one
version, timed in turns with the plan. So a change is that of the plan's time over the peer's:

    change = r_after / r_before,   r = exp(median_i log(plan_i / peer_i)) over the rounds i of a run

of the peer whose ratio is known best. Without a common peer it is that of the cycles at the clock of each run. The interval has three
standard deviations to either side: those of both medians, and BETWEEN_RUNS, what equal runs differ by (pages and buffers lie elsewhere).
A plan is slower if the change is above LEAST_CHANGE and its whole interval above 1.

Worked number: two medians known to 0.4 % each and 1 % between runs are 1.15 % together; a plan that takes 5 % more time has the interval
1.014 to 1.087 and is slower, one that takes 2 % more is not told apart from an equal one.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim.measure.store import Store
from pysim.record.measurement import Measurement

Array = NDArray[np.float64]
Verdict = Literal["slower", "faster", "same"]
BETWEEN_RUNS = 0.01  # relative; of equal runs of one plan, beside a peer, on a Zen 4 with two CPUs
LEAST_CHANGE = 0.03
DEVIATIONS = 3
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


class Change(NamedTuple):
    """The plan's time after over before, its interval, and what both were compared with."""

    value: float
    low: float
    high: float
    against: str

    @property
    def verdict(self) -> Verdict:
        if self.value > 1 + LEAST_CHANGE and self.low > 1:
            return "slower"
        return "faster" if self.value < 1 / (1 + LEAST_CHANGE) and self.high < 1 else "same"


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


def baseline(store: Store, name: str) -> list[Run]:
    """The runs saved under a name, the last of each setting."""
    runs = runs_of(one for run in store.marked(name) for one in store.find(run=run))
    return [*{run.setting: run for run in runs}.values()]


def change_of(before: Run, after: Run) -> Change | None:
    """The change between two runs of one setting; None if nothing tells the computer's change from the plan's."""
    logs = {name: (_log_ratio(before.ours, old), _log_ratio(after.ours, new)) for name, old, new in _common(before, after)}
    if not any(map(all, logs.values())):
        logs = {_CLOCK: (_log_cycles(before.ours), _log_cycles(after.ours))}
    found = []
    for name, (then, now) in logs.items():
        if then and now:
            deviation = math.sqrt(then[1] ** 2 + now[1] ** 2 + BETWEEN_RUNS**2)
            value, low, high = (math.exp(now[0] - then[0] + sign * DEVIATIONS * deviation) for sign in (0, -1, 1))
            found.append((deviation, Change(value, low, high, name)))
    return min(found)[1] if found else None


def _common(before: Run, after: Run) -> Iterator[tuple[str, Measurement, Measurement]]:
    """Peers of both runs, of one version."""
    for name, old in before.peers.items():
        if name in after.peers and old.environment.get("version") == after.peers[name].environment.get("version"):
            yield name, old, after.peers[name]


def _log_ratio(ours: Measurement, peer: Measurement) -> tuple[float, float] | None:
    """The median of log(plan / peer) over the rounds, and its standard deviation."""
    if len(ours.samples) != len(peer.samples):
        return None
    return _median(np.log(np.array(ours.samples)) - np.log(np.array(peer.samples)))


def _log_cycles(ours: Measurement) -> tuple[float, float] | None:
    hertz = float(ours.environment.get("clock_hz", 0) or 0)
    return _median(np.log(np.array(ours.samples) * hertz)) if hertz else None


def _median(values: Array) -> tuple[float, float] | None:
    """A median, and its standard deviation from the order statistics half a sqrt(n) to either side, which are one deviation away."""
    if values.size < 4 or not np.isfinite(values).all():
        return None
    ordered, reach = np.sort(values), math.sqrt(values.size) / 2
    low, high = max(0, math.floor(values.size / 2 - reach)), min(values.size - 1, math.ceil(values.size / 2 + reach))
    return float(np.median(values)), float(ordered[high] - ordered[low]) / 2


class Compared(NamedTuple):
    """A run beside the baseline's of its setting; `change` is None where they cannot be compared, `before` where there is none."""

    after: Run
    before: Run | None
    change: Change | None


def compared(before: Sequence[Run], after: Sequence[Run]) -> list[Compared]:
    by_setting = {one.setting: one for one in before}
    found = []
    for run in after:
        old = by_setting.get(run.setting)
        found.append(Compared(run, old, change_of(old, run) if old else None))
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
