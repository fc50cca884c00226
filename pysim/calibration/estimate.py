# SPDX-License-Identifier: Apache-2.0
"""What repeated measurements of one cost amount to where others use the machine, too.

Whatever disturbs a measurement makes it longer. So the least third of the rounds counts: its median is the value, its range says whether
rounds agree. A disturbance of all rounds shows in no range; it is known by the load that was counted beside them.

    value = median of the least max(FEWEST, n / 3)        error = half of their range        sure: error <= SURE value

Worked number: 9 rounds of 100, 101, 103, 104, 110, 130, 150, 190, 400 cycles: 101 +- 1.5, sure, though every second round was disturbed.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FEWEST = 3  # rounds that have to agree
SURE, LOST = 0.05, 0.25  # errors over values: up to which a number is sure, from which on it is rejected
STEADY = 0.04  # what the clock may change by around a measurement: a step of 100 MHz is 2.4 % of 4.1 GHz (Granite Rapids), 4 % of 2.5


class Estimate(msgspec.Struct, frozen=True):
    """A number, its error as a half-width, and why it is not sure; empty where it is."""

    value: float
    error: float
    doubt: str = ""

    @property
    def sure(self) -> bool:
        return not self.doubt

    @property
    def rate(self) -> "Estimate":
        """Of a cost how much a cycle."""
        return msgspec.structs.replace(self, value=1 / self.value, error=self.error / self.value**2)


def settle(costs: Sequence[float]) -> Estimate | None:
    """What rounds of one cost amount to; None where there are too few, or they agree in nothing. NaN is no measurement."""
    values = np.asarray(costs, dtype=np.float64)
    some = np.sort(values[np.isfinite(values) & (values > 0)])
    if some.size < FEWEST:
        return None
    least = some[: max(FEWEST, -(-some.size // 3))]
    value, error = float(np.median(least)), float(least[-1] - least[0]) / 2
    if error > LOST * value:
        return None
    return Estimate(value, error, f"rounds differ by {2 * error / value:.0%}" if error > SURE * value else "")
