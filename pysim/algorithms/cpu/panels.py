# SPDX-License-Identifier: Apache-2.0
"""Matrix products with a prepacked B, whatever its layout: panels in the order in which kernels read them. A is read in place,
unless its elements have less than 4 bytes: kernels read these in groups of neighbouring k, so they are packed. So are rows whose lines
share the sets of L1 (`packs_rows` of native/algorithms/gemm.c).

    panels = [set of channels][tile of windows][channel][windows of a tile], whole tiles

Used for a prepared B (`pysim.prepare`); a call with a plain B packs it first.

Worked number: gemm:197x768x768 in tiles of 48 columns has 16 panels, 768 * 768 * 4 = 2,359,296 bytes.
"""

import msgspec

from pysim.algorithms.contract import Prepared, direct_sum
from pysim.algorithms.cpu.unpacked import nest_of as unpacked
from pysim.algorithms.nest import BROADCASTS, OnNest, broadcasts
from pysim.algorithms.nest import contract as contract
from pysim.cachemodel.cpu import nest as loops
from pysim.cachemodel.cpu import nest_schedules
from pysim.cachemodel.cpu.loops import Array
from pysim.cachemodel.cpu.nest_schedules import cost as cost
from pysim.cachemodel.cpu.threads import nest_part
from pysim.problem.gemm import Gemm
from pysim.record.cost import NoneLegal, Rejected
from pysim.record.plan import Layout, Request
from pysim.record.schedule import Schedule

NAME = "panels"
QUANTISED = True
COMPUTES = Gemm
PACKED_BELOW = 4  # bytes of an element of A
WAY_BYTES, WAYS, MIN_COLUMNS = 4096, 8, 128  # of gemm.c
tolerance, largest_part = direct_sum, nest_part


def nest_of(problem: Gemm) -> loops.Nest:
    shared = not problem.trans_a and problem.k * problem.element_bytes % WAY_BYTES == 0
    packs = problem.element_bytes < PACKED_BELOW or (shared and problem.m > WAYS and problem.n >= MIN_COLUMNS)
    of = loops.nest_of(problem) if packs else unpacked(problem)
    return msgspec.structs.replace(of, in_place=True, windows_packed=True, windows_transposed=False)


_NEST = OnNest(nest_of, "matrix product, B packed in advance", (BROADCASTS,), NAME, rooms=1)
_PACKS = _NEST._replace(form=(BROADCASTS, "groups", "tiles"))
refuses, workspace_bytes, describe, nests = broadcasts, _NEST.workspace_bytes, _NEST.describe, _NEST.nests


def _nest(request: Request) -> OnNest:
    return _PACKS if request.problem.element_bytes < PACKED_BELOW else _NEST


def least_cycles(request: Request, best: float) -> float:
    return _nest(request).least_cycles(request, best) if request.prepared else 0.0


def candidates(request: Request, limit: Array | float = 0.0) -> nest_schedules.Found | NoneLegal:
    if request.prepared or request.schedule is not None:
        return _nest(request).candidates(request, limit)
    return NoneLegal((Rejected(NAME, "B is not prepacked; use pysim.prepare, or plan with prepared=True", "shape"),))


def prepare(problem: Gemm, schedule: Schedule, layout: Layout) -> Prepared:
    size = loops.window_panel_bytes(nest_of(problem), schedule)
    return Prepared("panels of B", loops.with_sums(problem.dtype, size, problem.n))
