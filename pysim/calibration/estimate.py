# SPDX-License-Identifier: Apache-2.0
"""Estimates one cost from repeated measurements on a shared machine.

A disturbance makes a measurement longer, so only the fastest third of the rounds counts: its median is the value, its range the error.
A disturbance of every round does not show in that range; the load counted during the rounds shows it.

    value = median of the least max(MIN_ROUNDS, n / 3)        error = half of their range        sure: error <= SURE value

Worked number: 9 rounds of 100, 101, 103, 104, 110, 130, 150, 190, 400 cycles give 101 +- 1.5: sure, although half were disturbed.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from pysim.machine.quantity import Kind, Number

Floats = NDArray[np.float64]

MIN_ROUNDS = 3  # that have to agree
SURE, LOST = 0.05, 0.25  # relative errors: a number is sure up to the first and rejected above the second
# Largest relative change of the clock during a measurement: a step of 100 MHz is 2.4 % of 4.1 GHz (Granite Rapids), 4 % of 2.5
CLOCK_TOLERANCE = 0.04


class Estimate(msgspec.Struct, frozen=True):
    """A number, its error as a half-width, and the reason for doubt (empty where the number is sure)."""

    value: float
    error: float
    doubt: str = ""

    @property
    def sure(self) -> bool:
        return not self.doubt

    def number(self, kind: Kind, source: str) -> Number:
        """Rounded: the value to four digits, its error to two."""
        return Number(value=float(f"{self.value:.4g}"), kind=kind, source=source, error=float(f"{self.error:.2g}"))

    @property
    def rate(self) -> "Estimate":
        """The reciprocal: of cycles per item, items per cycle."""
        return msgspec.structs.replace(self, value=1 / self.value, error=self.error / self.value**2)


def settle(costs: Sequence[float]) -> Estimate | None:
    """The estimate of one cost from its rounds (NaN: not measured). None where there are too few rounds or they disagree."""
    values = np.asarray(costs, dtype=np.float64)
    some = np.sort(values[np.isfinite(values) & (values > 0)])
    if some.size < MIN_ROUNDS:
        return None
    least = some[: max(MIN_ROUNDS, -(-some.size // 3))]
    value, error = float(np.median(least)), float(least[-1] - least[0]) / 2
    if error > LOST * value:
        return None
    return Estimate(value, error, f"rounds differ by {2 * error / value:.0%}" if error > SURE * value else "")
