# SPDX-License-Identifier: Apache-2.0
"""The speed of a core while something is timed on it, read between samples.

    clock    dependent additions per second
    rate     multiply-adds of an instruction set per clock cycle
    plain    multiply-adds in plain C per clock cycle, in a loop that uses most of the core's issue slots
    line     seconds of a cache line from one CPU of a team to another

A machine file has these numbers from its making, but the clock of a virtual machine's core changes within an hour. If a thread of another
virtual machine runs on the same core, kernels take up to 1.5 times their cycles, which neither the clock nor Linux's counters show. Wide
vectors, two per cycle, may keep their rate beside such a thread; plain C does not. The CPUs of a team are read all at once. Samples between
readings of shared cores are left out (`Speedometer.alone`). The host may also move a virtual CPU to a core with another L3, for minutes: a
line then takes several times as long from one CPU to the other, and nothing else shows it.

Worked number: the file has 3.9 GHz and a plain rate of 5.4, readings are 4.2 GHz and 3.9: times are 3.9 / 4.2 of the file's, and this
thread had 0.72 of the core.
"""

import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim.errors import NativeError
from pysim.measure.parallel_probe import all_at_once
from pysim.registry.cpu import probed_dtype
from pysim.runtime import cpu

PLAIN = "portable"  # the instruction set of plain C
SHARE = 0.04  # largest share of the time for readings, which take about 4 ms
SHARED_CORE = 1.1  # time of multiply-adds over their undisturbed time from which on a core counts as shared
LINE_BYTES, LINE_SECONDS = 64, 1e-3  # of a cache line; for reading its transfer
ASLEEP_SECONDS = 1e-3  # after a call the threads of a team sleep: pysim's within 0.2 ms


class Speed(NamedTuple):
    """Readings of a core. `line_seconds`: NaN for one thread, and where the team has one CPU."""

    clock_hz: float
    fma_per_cycle: float
    plain_per_cycle: float
    line_seconds: float = math.nan

    def as_environment(self) -> dict[str, str]:
        """As entries of a measurement's environment."""
        return {name: repr(value) for name, value in self._asdict().items()}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Speed | None":
        """From a measurement's environment; None where it has none."""
        found = {name: float(environment[name]) for name in cls._fields if name in environment}
        return cls(**found) if found.keys() >= {*cls._fields} - {*cls._field_defaults} else None


def read(target: str, threads: int = 1) -> Speed:
    """The speed of the calling thread's core; for several threads, of the slowest core while all are busy. The clock is read after wide
    vectors, as in kernels."""

    def rate(of: str) -> float:
        probe = partial(cpu.probe_fma, of, probed_dtype(of))
        return probe() if threads == 1 else min(all_at_once(probe, threads))

    if threads > 1:
        time.sleep(ASLEEP_SECONDS)
    wide, clock, plain = rate(target), cpu.probe_clock(), rate(PLAIN)
    clock = max(clock, cpu.probe_clock())  # other processes may have had the core during one of them
    return Speed(clock, wide / clock, plain / clock, line_seconds() if threads > 1 else math.nan)


def line_seconds() -> float:
    """Seconds of a cache line from the caller's CPU to that of a team's second thread; NaN if the team has one CPU."""
    try:
        return cpu.probe_line_transfer(LINE_BYTES, LINE_BYTES, LINE_SECONDS)
    except NativeError:
        return math.nan


class Speedometer:
    """Reads the speed of the cores between samples."""

    def __init__(self, target: str, threads: int = 1) -> None:
        self._target, self._threads = target, threads
        self._readings, self._rounds = list[Speed](), list[int]()
        self._read(0)

    def _read(self, rounds: int) -> None:
        start = time.perf_counter()
        self._readings.append(read(self._target, self._threads))
        self._rounds.append(rounds)
        end = time.perf_counter()
        self._next = end + (end - start) / SHARE

    def look(self, rounds: int, now: bool = False) -> Speed | None:
        """Call it after each round of samples, with the number of rounds so far. It reads if `now`, or if the last reading is old."""
        if now or time.perf_counter() >= self._next:
            self._read(rounds)
            return self._readings[-1]
        return None

    def alone(self) -> NDArray[np.bool_]:
        """For each round up to the last reading, whether no other thread shared the cores: the readings before and after it are whole."""
        whole = self._whole()
        return np.repeat(whole[:-1] & whole[1:], np.diff(self._rounds))

    def _whole(self) -> NDArray[np.bool_]:
        """Whether multiply-adds reached the best reading's rates within SHARED_CORE, for each reading."""
        rates = np.array([(one.fma_per_cycle, one.plain_per_cycle) for one in self._readings])
        return np.asarray((rates >= rates.max(axis=0) / SHARED_CORE).all(axis=1))

    def speed(self) -> Speed:
        """The median of the whole readings, of all if none is."""
        return middle([one for one, whole in zip(self._readings, self._whole(), strict=True) if whole] or self._readings)


def middle(readings: Sequence[Speed]) -> Speed:
    """The median of each quantity; of lines, of those that were read."""
    lines = [one.line_seconds for one in readings if not math.isnan(one.line_seconds)]
    of_core = Speed(*np.median(np.array(readings)[:, :-1], axis=0).tolist())
    return of_core._replace(line_seconds=float(np.median(lines)) if lines else math.nan)
