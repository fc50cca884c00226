# SPDX-License-Identifier: Apache-2.0
"""Candidates that are as accurate as a request asks. What an algorithm states is the same for all schedules of a kernel: one is asked."""

import numpy as np

from pysim.algorithms.accuracy import refuses
from pysim.algorithms.contract import Algorithm, Costs
from pysim.record.cost import Cost, CsaCost, Reason
from pysim.record.plan import Request
from pysim.record.schedule import AnySchedule


def accurate(request: Request, algorithm: Algorithm, costs: Costs) -> Costs:
    """The costs of an algorithm without what is not accurate enough; all of them where the request takes any."""
    return costs if request.accuracy == "standard" and request.error_limit is None else Accurate(request, algorithm, costs)


class Accurate:
    """Some of the candidates of an algorithm (`pysim.algorithms.contract.Costs`). `refused` says of its other kernels why, by number;
    `lost` are the kinds of which it had candidates and has none."""

    def __init__(self, request: Request, algorithm: Algorithm, of: Costs) -> None:
        self.refused: dict[int, Reason] = {}
        for kernel, row in zip(*(found.tolist() for found in np.unique(of.kernel, return_index=True)), strict=True):
            bound = algorithm.tolerance(request.problem, of.schedule(row))
            if why := refuses(bound, request.problem, request.machine, request.accuracy, request.error_limit):
                self.refused[kernel] = why
        refused = np.array([*self.refused], dtype=np.int64)
        self._kept = np.flatnonzero(~np.isin(of.kernel, refused))
        self._of, self.kernels, self.kinds = of, of.kernels, of.kinds
        self.cycles, self.kernel, self.kind = of.cycles[self._kept], of.kernel[self._kept], of.kind[self._kept]
        self.lost = np.setdiff1d(of.kind, self.kind)
        self.bounds = of.bounds.copy()
        self.bounds[refused] = np.nan  # not slower: not taken

    def schedule(self, row: int) -> AnySchedule:
        return self._of.schedule(int(self._kept[row]))

    def cost(self, row: int) -> Cost | CsaCost:
        return self._of.cost(int(self._kept[row]))

    def assumed(self, row: int) -> tuple[str, ...]:
        return self._of.assumed(int(self._kept[row]))
