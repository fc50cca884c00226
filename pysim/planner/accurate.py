# SPDX-License-Identifier: Apache-2.0
"""Those among the candidates of an algorithm that are as accurate as a request asks."""

import numpy as np

from pysim.algorithms.accuracy import refuses, stated
from pysim.algorithms.contract import Algorithm
from pysim.cachemodel.costs import Costs
from pysim.record.plan import Request


def accurate(request: Request, algorithm: Algorithm, of: Costs) -> Costs:
    """The costs of an algorithm without what is not accurate enough; all of them where the request takes any."""
    if request.any_error:
        return of
    _, firsts, alike = np.unique(of.alike, return_index=True, return_inverse=True)
    bounds = [algorithm.tolerance(request.problem, of.schedule(row)) for row in firsts.tolist()]
    whys = [refuses(bound, request.problem, request.machine, request.accuracy, request.error_limit) for bound in bounds]
    kept = of.selected(np.array([why is None for why in whys], dtype=bool)[alike])
    errors = np.array([stated(bound, request.problem, request.machine) for bound in bounds])[alike]
    order = np.argsort(errors, kind="stable")
    kernels, least = np.unique(of.kernel[order], return_index=True)
    rows = zip(kernels.tolist(), order[least].tolist(), strict=True)
    first = ((kernel, float(errors[row]), whys[alike[row]]) for kernel, row in rows if kernel not in kept.kernel)
    refused = {kernel: (error, why) for kernel, error, why in first if why}
    bounds_of = of.bounds.copy()
    bounds_of[[*refused]] = np.nan  # not slower: not taken
    return kept._replace(refused=refused, lost=tuple(np.setdiff1d(of.kind, kept.kind).tolist()), bounds=bounds_of)
