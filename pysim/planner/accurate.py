# SPDX-License-Identifier: Apache-2.0
"""Candidates that are as accurate as a request asks."""

import numpy as np

from pysim.algorithms.accuracy import refuses
from pysim.algorithms.contract import Algorithm, Costs
from pysim.record.cost import Cost, CsaCost
from pysim.record.plan import Request
from pysim.record.schedule import AnySchedule


def accurate(request: Request, algorithm: Algorithm, costs: Costs) -> Costs:
    """The costs of an algorithm without what is not accurate enough; all of them where the request takes any."""
    return costs if request.any_error else Accurate(request, algorithm, costs)


class Accurate:
    """Some of the candidates of an algorithm (`pysim.algorithms.contract.Costs`). `refused` says of kernels of which none is left why, by
    number; `lost` are the kinds of which it had candidates and has none."""

    def __init__(self, request: Request, algorithm: Algorithm, of: Costs) -> None:
        _, firsts, alike = np.unique(of.alike, return_index=True, return_inverse=True)
        bounds = [algorithm.tolerance(request.problem, of.schedule(row)) for row in firsts.tolist()]
        whys = [refuses(bound, request.problem, request.machine, request.accuracy, request.error_limit) for bound in bounds]
        taken = np.array([why is None for why in whys], dtype=bool)[alike]
        self._of, self._kept, self.kernels, self.kinds = of, np.flatnonzero(taken), of.kernels, of.kinds
        self.cycles, self.kernel, self.kind, self.alike = of.cycles[taken], of.kernel[taken], of.kind[taken], of.alike[taken]
        self.lost = np.setdiff1d(of.kind, self.kind)
        kernels, rows = np.unique(of.kernel, return_index=True)
        first = zip(kernels.tolist(), (whys[one] for one in alike[rows].tolist()), strict=True)
        self.refused = {kernel: why for kernel, why in first if why and kernel not in self.kernel}
        self.bounds = of.bounds.copy()
        self.bounds[[*self.refused]] = np.nan  # not slower: not taken

    def schedule(self, row: int) -> AnySchedule:
        return self._of.schedule(int(self._kept[row]))

    def cost(self, row: int) -> Cost | CsaCost:
        return self._of.cost(int(self._kept[row]))

    def assumed(self, row: int) -> tuple[str, ...]:
        return self._of.assumed(int(self._kept[row]))
