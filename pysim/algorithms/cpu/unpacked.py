# SPDX-License-Identifier: Apache-2.0
"""Matrix products whose A is read where it lies, whatever its layout: the nest of `pysim.algorithms.cpu.gemm` without panels of A.

Kernels of form win broadcast the elements of A one by one, so it is all the same to them how far apart these lie (`native/kernel.h`,
pysim_strided_kernel). What is saved is a copy of A in every run; what A costs where its rows share sets of a cache is in the model.

Worked number: gemm:730x64x33:nt packs A's 24,090 elements for 1.5 million multiply-adds, a vector for each 4 multiply-adds of vectors.
"""

import msgspec

from pysim.algorithms.contract import SUMS, Bound
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
from pysim.registry.cpu import kernels

NAME = "unpacked"
COMPUTES = Gemm
FORM = "win"  # of the kernels that broadcast A


def refuses(problem: Gemm, machine: Machine, layout: Layout) -> Reason | None:
    return no_row(problem, machine)


def no_row(problem: Gemm, machine: Machine) -> Reason | None:
    """Why there is no kernel that broadcasts A, or None."""
    of_form = (row for row in kernels() if row.form == FORM and row.dtype == problem.dtype)
    if any(machine.unit(row.target) for row in of_form):
        return None
    return Reason("machine", f"{machine.name} runs no {problem.dtype} kernel of form {FORM}, which broadcasts elements of A")


def nest_of(problem: Gemm) -> nests.Nest:
    return msgspec.structs.replace(nests.nest_of(problem), filters_packed=True, filters_in_place=True)


def candidates(request: Request, limit: float | None) -> nested.Found | NoneLegal:
    assert isinstance(request.problem, Gemm)
    return nested.candidates(nest_of(request.problem), request, limit, form=FORM, algorithm=NAME)


def prepare(problem: Gemm, schedule: Schedule, layout: Layout) -> None:
    return None  # B is packed in the run, or read where it lies


def workspace_bytes(problem: Gemm, schedule: Schedule, layout: Layout) -> int:
    return nests.workspace_bytes(nest_of(problem), schedule)


def tolerance(problem: Gemm, schedule: Schedule) -> Bound:
    return SUMS


def describe(plan: Plan) -> Description:
    assert isinstance(plan.workload, Gemm)
    return words.describe_nest(nest_of(plan.workload), plan, "matrix product, columns of C as windows and rows as filters, A in place")


__all__ = ["COMPUTES", "NAME", "candidates", "cost", "describe", "largest_part", "prepare", "refuses", "tolerance", "workspace_bytes"]
