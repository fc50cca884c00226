# SPDX-License-Identifier: Apache-2.0
"""Removes candidates that are less accurate than a request demands."""

import numpy as np

from pysim.algorithms import reproducible
from pysim.algorithms.accuracy import refuses, stated_error
from pysim.algorithms.interface import Algorithm
from pysim.cachemodel.costs import Costs
from pysim.record.plan import Request


def accurate(request: Request, algorithm: Algorithm, costs: Costs) -> Costs:
    """The costs of the candidates that are accurate enough, with the reasons of the kernels that have none."""
    if request.any_error:
        return costs
    _, representatives, alike = np.unique(costs.alike, return_index=True, return_inverse=True)
    schedules = [costs.schedule(row) for row in representatives.tolist()]
    bounds = [algorithm.tolerance(request.problem, schedule) for schedule in schedules]
    reasons = [refuses(bound, request.problem, request.machine, request.accuracy, request.error_limit, request.layout) for bound in bounds]
    if request.reproducible:
        breaks = (reproducible.refuses(request, algorithm, schedule) for schedule in schedules)
        reasons = [reason or other for reason, other in zip(breaks, reasons, strict=True)]
    kept = costs.selected(np.array([reason is None for reason in reasons], dtype=bool)[alike])

    errors = np.array([stated_error(bound, request.problem, request.machine, request.layout) for bound in bounds])[alike]
    order = np.argsort(errors, kind="stable")
    kernels, first = np.unique(costs.kernel[order], return_index=True)
    most_accurate = zip(kernels.tolist(), order[first].tolist(), strict=True)
    refused = {
        kernel: (float(errors[row]), reason)
        for kernel, row in most_accurate
        if kernel not in kept.kernel and (reason := reasons[alike[row]])
    }
    kernel_bounds = costs.bounds.copy()
    kernel_bounds[[*refused]] = np.nan  # inaccurate, so not listed as slower
    return kept._replace(refused=refused, lost=tuple(np.setdiff1d(costs.kind, kept.kind).tolist()), bounds=kernel_bounds)
