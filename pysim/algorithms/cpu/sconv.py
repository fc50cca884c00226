# SPDX-License-Identifier: Apache-2.0
"""SConv: direct convolution by slicing, windows packed tile by tile on demand (arXiv 2303.04739).

The nest is `pysim.cachemodel.cpu.nest`; its micro-kernels are the rows of `native/kernels.inc`.
"""

from pysim.algorithms.contract import Prepared, of_planes, sums
from pysim.cachemodel.cpu import nest as nests
from pysim.cachemodel.cpu import nested, words
from pysim.cachemodel.cpu.nested import cost
from pysim.cachemodel.cpu.threads import nest_part as largest_part
from pysim.machine.cpu import Machine
from pysim.problem.conv import Conv
from pysim.record.cost import NoneLegal, Reason
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request
from pysim.record.schedule import Schedule

NAME = "sconv"
COMPUTES = Conv
tolerance = sums


def refuses(problem: Conv, machine: Machine, layout: Layout) -> Reason | None:
    return of_planes(layout)


def candidates(request: Request, limit: float | None) -> nested.Found | NoneLegal:
    return nested.candidates(nests.nest_of(request.problem), request, limit)


def prepare(problem: Conv, schedule: Schedule, layout: Layout) -> Prepared:
    return Prepared("packed filters", nests.packed_filter_bytes(nests.nest_of(problem), schedule))


def workspace_bytes(problem: Conv, schedule: Schedule, layout: Layout) -> int:
    return nests.workspace_bytes(nests.nest_of(problem), schedule)


def describe(plan: Plan) -> Description:
    return words.describe_nest(nests.nest_of(plan.workload), plan, "direct convolution by slicing, tiles of windows packed on demand")


__all__ = ["COMPUTES", "NAME", "candidates", "cost", "describe", "largest_part", "prepare", "refuses", "tolerance", "workspace_bytes"]
