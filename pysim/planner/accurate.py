# SPDX-License-Identifier: Apache-2.0
"""Candidates of one algorithm that were asked for one after another, and those among them that are as accurate as a request asks."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pysim.algorithms.accuracy import refuses, stated
from pysim.algorithms.contract import Algorithm, Costs
from pysim.record.cost import Cost, CsaCost
from pysim.record.plan import Request
from pysim.record.schedule import AnySchedule


def accurate(request: Request, algorithm: Algorithm, costs: Costs) -> Costs:
    """The costs of an algorithm without what is not accurate enough; all of them where the request takes any."""
    return costs if request.any_error else Accurate(request, algorithm, costs)


class Picked:
    """Rows of the costs of one algorithm, in this order (`pysim.algorithms.contract.Costs`)."""

    def __init__(self, rounds: Sequence[Costs], taken: NDArray[np.bool_] | None = None) -> None:
        self.kernels, self.kinds, self.bounds = rounds[0].kernels, rounds[0].kinds, rounds[0].bounds
        rows = [(one, row) for one in rounds for row in range(one.cycles.size)]
        kept = np.flatnonzero(np.ones(len(rows), dtype=bool) if taken is None else taken)
        self._rows = [rows[at] for at in kept.tolist()]
        self.cycles, self.kernel, self.kind, self.alike = (
            np.concatenate([getattr(one, name) for one in rounds])[kept] for name in ("cycles", "kernel", "kind", "alike")
        )

    def schedule(self, row: int) -> AnySchedule:
        costs, own = self._rows[row]
        return costs.schedule(own)

    def cost(self, row: int) -> Cost | CsaCost:
        costs, own = self._rows[row]
        return costs.cost(own)

    def assumed(self, row: int) -> tuple[str, ...]:
        costs, own = self._rows[row]
        return costs.assumed(own)


class Accurate(Picked):
    """Those that are accurate enough. `refused` says of kernels of which none is left why, and
    their least error, by number; `lost` are the kinds of which it had candidates and has none."""

    def __init__(self, request: Request, algorithm: Algorithm, of: Costs) -> None:
        _, firsts, alike = np.unique(of.alike, return_index=True, return_inverse=True)
        bounds = [algorithm.tolerance(request.problem, of.schedule(row)) for row in firsts.tolist()]
        whys = [refuses(bound, request.problem, request.machine, request.accuracy, request.error_limit) for bound in bounds]
        super().__init__([of], np.array([why is None for why in whys], dtype=bool)[alike])
        self.lost = np.setdiff1d(of.kind, self.kind)
        errors = np.array([stated(bound, request.problem, request.machine) for bound in bounds])[alike]
        order = np.argsort(errors, kind="stable")
        kernels, least = np.unique(of.kernel[order], return_index=True)
        rows = zip(kernels.tolist(), order[least].tolist(), strict=True)
        first = ((kernel, float(errors[row]), whys[alike[row]]) for kernel, row in rows if kernel not in self.kernel)
        self.refused = {kernel: (error, why) for kernel, error, why in first if why}
        self.bounds = of.bounds.copy()
        self.bounds[[*self.refused]] = np.nan  # not slower: not taken
