# SPDX-License-Identifier: Apache-2.0
"""Matrix products on SConv's loop nest: columns of C are its windows, rows its filters, k its channels."""

from pysim.algorithms.interface import direct_sum, nothing_prepared
from pysim.algorithms.nest import OnNest
from pysim.algorithms.nest import contract as contract
from pysim.cachemodel.cpu.nest import nest_of
from pysim.cachemodel.cpu.nest_schedules import cost as cost
from pysim.cachemodel.cpu.threads import nest_part
from pysim.machine.cpu import Machine
from pysim.problem.gemm import Gemm
from pysim.record.cost import Reason
from pysim.record.plan import Layout
from pysim.registry.cpu import kernels

NAME = "gemm"
QUANTISED = True
COMPUTES = Gemm
tolerance, prepare, largest_part = direct_sum, nothing_prepared, nest_part

_PACKS_A = tuple(dict.fromkeys(row.form for row in kernels() if not row.lists and not row.reads_rows))  # forms
_NEST = OnNest(nest_of, "matrix product, columns of C as windows and rows as filters", _PACKS_A, rooms=2)
least_cycles, candidates, workspace_bytes = _NEST.least_cycles, _NEST.candidates, _NEST.workspace_bytes
describe, nests = _NEST.describe, _NEST.nests


def refuses(problem: Gemm, machine: Machine, layout: Layout) -> Reason | None:
    return None
