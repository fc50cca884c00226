# SPDX-License-Identifier: Apache-2.0
"""Matrix products on SConv's loop nest: columns of C are its windows, rows its filters, k its channels."""

from pysim.algorithms.contract import sums, unprepared
from pysim.algorithms.nest import OnNest, cost, largest_part
from pysim.cachemodel.cpu.nest import nest_of
from pysim.machine.cpu import Machine
from pysim.problem.gemm import Gemm
from pysim.record.cost import Reason
from pysim.record.plan import Layout

NAME = "gemm"
COMPUTES = Gemm
tolerance, prepare = sums, unprepared

_NEST = OnNest(nest_of, "matrix product, columns of C as windows and rows as filters")
candidates, workspace_bytes, describe = _NEST.candidates, _NEST.workspace_bytes, _NEST.describe


def refuses(problem: Gemm, machine: Machine, layout: Layout) -> Reason | None:
    return None


__all__ = ["COMPUTES", "NAME", "candidates", "cost", "describe", "largest_part", "prepare", "refuses", "tolerance", "workspace_bytes"]
