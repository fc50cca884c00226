# SPDX-License-Identifier: Apache-2.0
"""How fast a core is while something is timed on it: read between samples, in two milliseconds each.

    clock   additions that wait for each other, a second
    rate    multiply-adds of one instruction set, a cycle of that clock

A machine file has both as they were when it was made. The clock of a virtual machine's core is another one an hour later. Where a thread
of another machine runs on the same core, multiply-adds take up to twice their cycles; no clock and nothing that Linux counts shows that.
Worked number: a file of 3.9 GHz and 2 a cycle, readings of 4.2 GHz and 1.45 a cycle: times are shorter by 3.9 / 4.2 than the file says,
and the core had 0.72 of what it can multiply.
"""

import time
from typing import NamedTuple

import numpy as np

from pysim.runtime import cpu

EVERY_SECONDS = 0.05  # between readings: a twenty-fifth of the time of samples


class Speed(NamedTuple):
    """Medians of readings."""

    clock_hz: float
    fma_per_cycle: float


class Speedometer:
    """Reads the core that the calling thread is on. Beside a team that just ran it is not alone, so with several threads there are readings
    before and after all samples only."""

    def __init__(self, target: str, threads: int = 1) -> None:
        self._target, self._every = target, EVERY_SECONDS if threads == 1 else np.inf
        self._clocks, self._rates = list[float](), list[float]()
        self.read()

    def read(self) -> None:
        rate = cpu.probe_fma(self._target, "f32")  # first: the clock behind wide vectors is that of kernels
        self._clocks.append(cpu.probe_clock())
        self._rates.append(rate / self._clocks[-1])
        self._next = time.perf_counter() + self._every

    def look(self) -> None:
        """Between samples: a reading where the last one is old."""
        if time.perf_counter() >= self._next:
            self.read()

    def speed(self) -> Speed:
        """Of all samples, behind which this is the last reading."""
        self.read()
        return Speed(float(np.median(self._clocks)), float(np.median(self._rates)))
