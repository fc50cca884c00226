# SPDX-License-Identifier: Apache-2.0
"""Candidates that are as accurate as a request asks."""

import numpy as np

from pysim.algorithms.accuracy import refuses, stated
from pysim.algorithms.contract import Algorithm, Costs
from pysim.record.cost import Cost, CsaCost
from pysim.record.plan import Request
from pysim.record.schedule import AnySchedule


def accurate(request: Request, algorithm: Algorithm, costs: Costs) -> Costs:
    """The costs of an algorithm without what is not accurate enough; all of them where the request takes any."""
    return costs if request.any_error else Accurate(request, algorithm, costs)


class Accurate:
    """Some of the candidates of an algorithm (`pysim.algorithms.contract.Costs`). `refused` says of kernels of which none is left why, and
    their least error, by number; `lost` are the kinds of which it had candidates and has none."""

    def __init__(self, request: Request, algorithm: Algorithm, of: Costs) -> None:
        _, firsts, alike = np.unique(of.alike, return_index=True, return_inverse=True)
        bounds = [algorithm.tolerance(request.problem, of.schedule(row)) for row in firsts.tolist()]
        whys = [refuses(bound, request.problem, request.machine, request.accuracy, request.error_limit) for bound in bounds]
        taken = np.array([why is None for why in whys], dtype=bool)[alike]
        self._of, self._kept, self.kernels, self.kinds = of, np.flatnonzero(taken), of.kernels, of.kinds
        self.cycles, self.kernel, self.kind, self.alike = of.cycles[taken], of.kernel[taken], of.kind[taken], of.alike[taken]
        self.lost = np.setdiff1d(of.kind, self.kind)
        errors = np.array([stated(bound, request.problem, request.machine) for bound in bounds])[alike]
        order = np.argsort(errors, kind="stable")
        kernels, least = np.unique(of.kernel[order], return_index=True)
        rows = zip(kernels.tolist(), order[least].tolist(), strict=True)
        first = ((kernel, float(errors[row]), whys[alike[row]]) for kernel, row in rows if kernel not in self.kernel)
        self.refused = {kernel: (error, why) for kernel, error, why in first if why}
        self.bounds = of.bounds.copy()
        self.bounds[[*self.refused]] = np.nan  # not slower: not taken

    def schedule(self, row: int) -> AnySchedule:
        return self._of.schedule(int(self._kept[row]))

    def cost(self, row: int) -> Cost | CsaCost:
        return self._of.cost(int(self._kept[row]))

    def assumed(self, row: int) -> tuple[str, ...]:
        return self._of.assumed(int(self._kept[row]))
