# SPDX-License-Identifier: Apache-2.0
"""How fast a core is while something is timed on it: read between samples.

    clock   additions that wait for each other, a second
    rate    multiply-adds of one instruction set, a cycle of that clock

A machine file has both as they were when it was made. The clock of a virtual machine's core is another one an hour later. Where a thread
of another machine runs on the same core, multiply-adds take up to twice their cycles; no clock and nothing that Linux counts shows that.
Worked number: a file of 3.9 GHz and 2 a cycle, readings of 4.2 GHz and 1.45 a cycle: times are shorter by 3.9 / 4.2 than the file says,
and the core had 0.72 of what it can multiply.
"""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pysim.runtime import cpu

SHARE = 0.04  # of the time that readings may take: four milliseconds in a tenth of a second, and less often where others have the processor


class Speed(NamedTuple):
    """Of a core."""

    clock_hz: float
    fma_per_cycle: float

    def told(self) -> dict[str, str]:
        """As part of the environment of what was measured."""
        return {name: repr(value) for name, value in self._asdict().items()}

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Speed | None":
        """That was told there."""
        return cls(*(float(environment[name]) for name in cls._fields)) if environment.keys() >= {*cls._fields} else None


def read(target: str) -> Speed:
    """Of the core that the calling thread is on. Multiply-adds first: the clock behind wide vectors is that of kernels."""
    rate, clock = cpu.probe_fma(target, "f32"), cpu.probe_clock()
    return Speed(clock, rate / clock)


class Speedometer:
    """Reads the core that the calling thread is on. Beside a team that just ran it is not alone, so with several threads there are readings
    before and after all samples only."""

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
        """Between samples: a reading where the last one is old."""
        return self._read() if time.perf_counter() >= self._next else None

    def speed(self) -> Speed:
        """The middle of all readings, of which this is the last, behind all samples."""
        self._read()
        return middle(self._readings)


def middle(readings: Sequence[Speed]) -> Speed:
    """Medians."""
    return Speed(*np.median(readings, axis=0).tolist())
