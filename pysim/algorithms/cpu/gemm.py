# SPDX-License-Identifier: Apache-2.0
"""Matrix products on SConv's loop nest: columns of C are its windows, rows its filters, k its channels."""

from pysim.algorithms.contract import sums, unprepared
from pysim.cachemodel.cpu import nest as nests
from pysim.cachemodel.cpu import nested, words
from pysim.cachemodel.cpu.nested import cost
from pysim.cachemodel.cpu.threads import nest_part as largest_part
from pysim.machine.cpu import Machine
from pysim.problem.gemm import Gemm
from pysim.record.cost import NoneLegal, Reason
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request
from pysim.record.schedule import Schedule

NAME = "gemm"
COMPUTES = Gemm
tolerance, prepare = sums, unprepared


def refuses(problem: Gemm, machine: Machine, layout: Layout) -> Reason | None:
    return None


def candidates(request: Request, limit: float | None) -> nested.Found | NoneLegal:
    return nested.candidates(nests.nest_of(request.problem), request, limit)


def workspace_bytes(problem: Gemm, schedule: Schedule, layout: Layout) -> int:
    return nests.workspace_bytes(nests.nest_of(problem), schedule)


def describe(plan: Plan) -> Description:
    return words.describe_nest(nests.nest_of(plan.workload), plan, "matrix product, columns of C as windows and rows as filters")


__all__ = ["COMPUTES", "NAME", "candidates", "cost", "describe", "largest_part", "prepare", "refuses", "tolerance", "workspace_bytes"]
