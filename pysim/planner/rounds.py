# SPDX-License-Identifier: Apache-2.0
"""Costs of candidates that were asked for one after another."""

from collections.abc import Sequence

import numpy as np

from pysim.algorithms.contract import Costs
from pysim.record.cost import Cost, CsaCost
from pysim.record.schedule import AnySchedule


class Rounds:
    """The costs of several rounds of one algorithm, the first ones first (`pysim.algorithms.contract.Costs`)."""

    def __init__(self, rounds: Sequence[Costs]) -> None:
        self.kernels, self.kinds, self.bounds = rounds[0].kernels, rounds[0].kinds, rounds[0].bounds
        self.cycles, self.kernel, self.kind, self.alike = (
            np.concatenate([getattr(one, name) for one in rounds]) for name in ("cycles", "kernel", "kind", "alike")
        )
        self._rows = [(one, row) for one in rounds for row in range(one.cycles.size)]

    def schedule(self, row: int) -> AnySchedule:
        costs, own = self._rows[row]
        return costs.schedule(own)

    def cost(self, row: int) -> Cost | CsaCost:
        costs, own = self._rows[row]
        return costs.cost(own)

    def assumed(self, row: int) -> tuple[str, ...]:
        costs, own = self._rows[row]
        return costs.assumed(own)
