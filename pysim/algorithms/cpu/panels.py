# SPDX-License-Identifier: Apache-2.0
"""Matrix products with a prepacked B, whatever its layout: panels in the order in which kernels read them. A is read in place (pack none),
unless its elements have less than 4 bytes: kernels read these in groups of neighbouring k, so they are packed (pack tiles). So are rows
whose lines share the sets of the machine's L1: more of them than it has ways evict each other between two elements of a line. Rows of
3,072 elements took 7.1 ms in 128x768x3072 so, rows of 3,136 took 6.0 (Zen 4).

    panels = [set of channels][tile of windows][channel][windows of a tile], whole tiles

Used for a prepared B (`pysim.prepare`); a call with a plain B packs it first.

Worked number: gemm:197x768x768 in tiles of 48 columns has 16 panels, 768 * 768 * 4 = 2,359,296 bytes.
"""

from functools import lru_cache, partial

import msgspec

from pysim.algorithms.cpu.unpacked import nest_of as unpacked
from pysim.algorithms.interface import Nests, Prepared, direct_sum
from pysim.algorithms.nest import BROADCASTS, OnNest, broadcasts
from pysim.algorithms.nest import contract as contract
from pysim.cachemodel.cpu import nest as loops
from pysim.cachemodel.cpu import nest_schedules
from pysim.cachemodel.cpu.nest_schedules import cost as cost
from pysim.cachemodel.cpu.reuse.loops import Array
from pysim.cachemodel.cpu.threads import nest_part
from pysim.problem.gemm import Gemm
from pysim.record.cost import NoneLegal, Rejected
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request, on_cpu
from pysim.record.schedule import Schedule

NAME = "panels"
QUANTISED = True
COMPUTES = Gemm
PACKED_BELOW = 4  # bytes of an element of A
MIN_COLUMNS = 128  # that repay packing rows of A
tolerance, largest_part = direct_sum, partial(nest_part, prepared=True)


@lru_cache(maxsize=64)
def nest_of(problem: Gemm, packs: bool = False) -> loops.Nest:
    return msgspec.structs.replace(
        loops.nest_of(problem) if packs else unpacked(problem), in_place=True, windows_packed=True, windows_transposed=False
    )


_IN_PLACE = OnNest(nest_of, "matrix product, B packed in advance", (BROADCASTS,), NAME, rooms=1)
_PACKED = _IN_PLACE._replace(nest=partial(nest_of, packs=True))
_NARROW = _PACKED._replace(form=(BROADCASTS, "groups", "pairs", "tiles"))
_NARROW_ROWS = _PACKED._replace(form=(*(_NARROW.form or ()), "pixels", "unpacked"))
refuses = broadcasts


def _of(problem: Gemm, packs: bool) -> OnNest:
    if problem.element_bytes < PACKED_BELOW:
        return _NARROW if problem.trans_a else _NARROW_ROWS
    return _PACKED if packs else _IN_PLACE


def _nest(request: Request) -> OnNest:
    """As the schedule asked for has it, or as is best on the machine."""
    problem, schedule = request.problem, request.schedule
    assert isinstance(problem, Gemm)
    if isinstance(schedule, Schedule):
        return _of(problem, schedule.pack == "tiles")
    inner = request.cpu.levels[0]
    shared = not problem.trans_a and problem.k * problem.element_bytes % inner.way_bytes == 0
    return _of(problem, shared and problem.m > inner.ways and problem.n >= MIN_COLUMNS)


def _planned(plan: Plan) -> OnNest:
    schedule, _ = on_cpu(plan)
    assert isinstance(plan.workload, Gemm)
    return _of(plan.workload, schedule.pack == "tiles")


def least_cycles(request: Request, best: float) -> float:
    return _nest(request).least_cycles(request, best) if request.prepared else 0.0


def candidates(request: Request, limit: Array | float = 0.0) -> nest_schedules.Found | NoneLegal:
    if request.prepared or request.schedule is not None:
        return _nest(request).candidates(request, limit)
    return NoneLegal((Rejected(NAME, "B is not prepacked; use pysim.prepare, or plan with prepared=True", "shape"),))


def prepare(problem: Gemm, schedule: Schedule, layout: Layout) -> Prepared:
    size = loops.window_panel_bytes(nest_of(problem, packs=True), schedule)
    return Prepared("panels of B", loops.with_sums(problem.dtype, size, problem.n))


def workspace_bytes(problem: Gemm, schedule: Schedule, layout: Layout) -> int:
    return _of(problem, schedule.pack == "tiles").workspace_bytes(problem, schedule, layout)


def describe(plan: Plan) -> Description:
    return _planned(plan).describe(plan)


def nests(plan: Plan) -> Nests:
    return _planned(plan).nests(plan)
