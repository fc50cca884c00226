# SPDX-License-Identifier: Apache-2.0
"""The speed of a core while something is timed on it, read between samples.

    clock    dependent additions per second
    rate     multiply-adds of an instruction set per clock cycle
    plain    multiply-adds in plain C per clock cycle, in a loop that uses most of the core's issue slots

A machine file has these numbers from its making, but the clock of a virtual machine's core changes within an hour. If a thread of another
virtual machine runs on the same core, kernels take up to 1.5 times their cycles, which neither the clock nor Linux's counters show. Wide
vectors, two per cycle, may keep their rate beside such a thread; plain C does not.

Worked number: the file has 3.9 GHz and a plain rate of 5.4, readings are 4.2 GHz and 3.9: times are 3.9 / 4.2 of the file's, and this
thread had 0.72 of the core.
"""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pysim.runtime import cpu

PLAIN = "portable"  # the instruction set of plain C
SHARE = 0.04  # largest share of the time for readings, which take about 4 ms


class Speed(NamedTuple):
    """Readings of a core."""

    clock_hz: float
    fma_per_cycle: float
    plain_per_cycle: float

    def as_environment(self) -> dict[str, str]:
        """As entries of a measurement's environment."""
        return {name: repr(value) for name, value in self._asdict().items()}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Speed | None":
        """From a measurement's environment; None where it has none."""
        return cls(*(float(environment[name]) for name in cls._fields)) if environment.keys() >= {*cls._fields} else None


def read(target: str) -> Speed:
    """Reads the calling thread's core. The clock is read after wide vectors, as kernels have it."""
    rate, clock, plain = cpu.probe_fma(target, "f32"), cpu.probe_clock(), cpu.probe_fma(PLAIN, "f32")
    return Speed(clock, rate / clock, plain / max(clock, cpu.probe_clock()))


class Speedometer:
    """Reads the calling thread's core between samples. With several threads only before and after all samples, since other threads of the
    team may still be running in between."""

    def __init__(self, target: str, threads: int = 1) -> None:
        self._target, self._share = target, SHARE if threads == 1 else 0.0
        self._readings = list[Speed]()
        self._read()

    def _read(self) -> Speed:
        start = time.perf_counter()
        self._readings.append(read(self._target))
        end = time.perf_counter()
        self._next = end + (end - start) / self._share if self._share else np.inf
        return self._readings[-1]

    def look(self) -> Speed | None:
        """Call it between samples: it reads again where the last reading is old."""
        return self._read() if time.perf_counter() >= self._next else None

    def speed(self) -> Speed:
        """Takes a last reading after all samples; the median of all."""
        self._read()
        return middle(self._readings)


def middle(readings: Sequence[Speed]) -> Speed:
    """The median of each quantity."""
    return Speed(*np.median(readings, axis=0).tolist())
