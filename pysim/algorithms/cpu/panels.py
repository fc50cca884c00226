# SPDX-License-Identifier: Apache-2.0
"""Matrix products of a B that was packed beforehand, whatever its layout, in the panels that the kernels read; A is read where it lies.

    panels = [set of channels][tile of windows][channel][windows of a tile], whole tiles

Plans are of it where B is prepared (`pysim.prepare`); a call that is given B itself prepares it first.

Worked number: gemm:197x768x768 in tiles of 48 columns has 16 panels, 768 * 768 * 4 = 2,359,296 bytes.
"""

import msgspec

from pysim.algorithms.contract import SUMS, Bound, Prepared
from pysim.algorithms.cpu.unpacked import FORM, no_row
from pysim.algorithms.cpu.unpacked import nest_of as unpacked
from pysim.cachemodel.cpu import nest as nests
from pysim.cachemodel.cpu import nested, words
from pysim.cachemodel.cpu.nested import cost
from pysim.cachemodel.cpu.threads import nest_part as largest_part
from pysim.machine.cpu import Machine
from pysim.problem.dtypes import SIZES
from pysim.problem.gemm import Gemm
from pysim.record.cost import NoneLegal, Reason, Rejected
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request
from pysim.record.schedule import Schedule

NAME = "panels"
COMPUTES = Gemm


def refuses(problem: Gemm, machine: Machine, layout: Layout) -> Reason | None:
    return no_row(problem, machine)


def _nest(problem: Gemm) -> nests.Nest:
    return msgspec.structs.replace(unpacked(problem), in_place=True, windows_packed=True, windows_transposed=False)


def candidates(request: Request, limit: float | None) -> nested.Found | NoneLegal:
    assert isinstance(request.problem, Gemm)
    if request.prepared or request.schedule is not None:
        return nested.candidates(_nest(request.problem), request, limit, form=FORM, algorithm=NAME)
    return NoneLegal((Rejected(NAME, "B is not prepared; pysim.prepare does, and plan with prepared=True", "shape"),))


def prepare(problem: Gemm, schedule: Schedule, layout: Layout) -> Prepared:
    tiles = nests.ceil_div(problem.n, schedule.windows)
    return Prepared("panels of B", tiles * schedule.windows * problem.k * SIZES[problem.dtype])


def workspace_bytes(problem: Gemm, schedule: Schedule, layout: Layout) -> int:
    return nests.workspace_bytes(_nest(problem), schedule)


def tolerance(problem: Gemm, schedule: Schedule) -> Bound:
    return SUMS


def describe(plan: Plan) -> Description:
    assert isinstance(plan.workload, Gemm)
    return words.describe_nest(_nest(plan.workload), plan, "matrix product, B in panels that are packed beforehand, A in place")


__all__ = ["COMPUTES", "NAME", "candidates", "cost", "describe", "largest_part", "prepare", "refuses", "tolerance", "workspace_bytes"]
