# SPDX-License-Identifier: Apache-2.0
"""The load by other processes while something was timed, as Linux counts it.

    taken   = 1 - processor time of the thread / wall time, plus the hypervisor's share (steal, all CPUs)
    others  = (busy time of all CPUs - processor time of this process) / wall time, in CPUs

A timed thread never sleeps, so others ran whenever it did not. Threads of a team wait for one another, so with several threads `taken` is
the hypervisor's share alone. Worked number: in 1.0 s of samples the thread ran 0.9 s, with 2 % of steal: taken is 0.12.
"""

import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

from pysim.record.measurement import Ratio

STAT = Path("/proc/stat")
LOADED = 0.02  # share of the time taken by others above which a measurement is reported as disturbed
_STEAL = 7  # of the columns of /proc/stat, proc(5): user nice system idle iowait irq softirq steal
_BUSY = (0, 1, 2, 5, 6, 7)


class Load(NamedTuple):
    """`taken`: share of the time that others ran in the thread's place; `others`: CPUs, of `cpus`, that other processes used, steal
    included; `switches`: involuntary context switches of the thread."""

    taken: float
    others: float
    switches: int
    cpus: int = 1

    @property
    def heavy(self) -> bool:
        """Whether the measurement is reported as disturbed."""
        return self.taken > LOADED

    @property
    def share(self) -> float:
        """The larger of the shares of the time and of all CPUs that others used: on other CPUs they still slow memory down."""
        return max(self.taken, self.others / self.cpus)


class _Counters(NamedTuple):
    wall: float
    thread: float
    process: float
    busy: float
    steal: float
    cpus: int
    switches: int


def _read() -> _Counters:
    ticks = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
    try:
        first, *rest = STAT.read_text().splitlines()
        columns = [int(word) / ticks for word in first.split()[1:9]]
    except (OSError, ValueError):
        columns, rest = [], []
    full = len(columns) == _STEAL + 1
    return _Counters(
        wall=time.perf_counter(),
        thread=time.thread_time(),
        process=time.process_time(),
        busy=sum(columns[at] for at in _BUSY) if full else 0.0,
        steal=columns[_STEAL] if full else 0.0,
        cpus=max(1, sum(line.startswith("cpu") for line in rest)),
        switches=_switches(),
    )


def _switches() -> int:
    if sys.platform != "linux":
        return 0
    from resource import RUSAGE_THREAD, getrusage

    return getrusage(RUSAGE_THREAD).ru_nivcsw


class Watch:
    """Counts the load from its creation on."""

    def __init__(self, threads: int = 1) -> None:
        self._threads, self._before = threads, _read()

    def load(self) -> Load:
        """The load since creation."""
        before, now = self._before, _read()
        wall = max(now.wall - before.wall, 1e-9)
        stolen = (now.steal - before.steal) / now.cpus / wall
        waited = 1 - (now.thread - before.thread) / wall if self._threads == 1 else 0.0
        others = (now.busy - before.busy - (now.process - before.process)) / wall
        return Load(min(1.0, max(0.0, waited) + max(0.0, stolen)), max(0.0, others), now.switches - before.switches, now.cpus)


def share_of_others(seconds: float = 0.05) -> float:
    """The share of this computer that others use now, measured by a busy wait of the calling thread."""
    watch, end = Watch(), time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
    return watch.load().share


def widened(ratio: Ratio, taken: float) -> Ratio:
    """A ratio's interval, widened for the share of the time taken by others: either side may have lost all of it."""
    ran = max(1 - taken, 1e-3)
    return Ratio(ratio.value, ratio.low * ran, ratio.high / ran)
