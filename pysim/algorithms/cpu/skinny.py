# SPDX-License-Identifier: Apache-2.0
"""Products of few rows or few columns: the large operand is read once, where it lies, in any layout; nothing of it is packed.

The kernels are the rows of `native/conv/skinny.inc`, `axpy` where rows of the large matrix lie along the results and `dot` where they lie
along k; `pysim.cachemodel.cpu.skinny` costs them.

Worked number: gemm:1x4096x4096 reads 64 MiB of B for 33.6 MFLOP. Packing would write and read them once more.
"""

from collections.abc import Iterator

import msgspec

from pysim.algorithms.contract import sums, unprepared
from pysim.cachemodel.cpu import words
from pysim.cachemodel.cpu.listed import OfList, of_kernel, planned, untyped, whole_steps
from pysim.cachemodel.cpu.nest import PANEL_ALIGN, ceil_div
from pysim.cachemodel.cpu.skinny import FEW_STEP, Shape, described, lanes_of, passed, terms
from pysim.cachemodel.cpu.threads import Part
from pysim.machine.cpu import Machine
from pysim.problem.gemm import Gemm
from pysim.record.cost import Reason
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request
from pysim.record.schedule import Schedule
from pysim.registry.cpu import Kernel, skinny_kernels

NAME = "skinny"
COMPUTES = Gemm
tolerance, prepare = sums, unprepared
MOST_FEW = 32  # rows or columns: with more of them packing has been worth its while on every matrix that was tried
RUNS = (1024, 2048, 4096, 8192, 16384)  # bytes of a row: a strip of 3 KiB lies in two pages as often as not, and takes 1.1 times one of 4
AXPY_BLOCKS = (4, 8, 16, 32)  # rows of the matrix
DOT_BLOCKS = (256, 512, 1024, 2048, 4096, 8192)  # columns, and all of them


def refuses(problem: Gemm, machine: Machine, layout: Layout) -> Reason | None:
    if reason := untyped(problem.dtype, skinny_kernels()):
        return reason
    if min(problem.m, problem.n) > MOST_FEW:
        return Reason("shape", f"it takes up to {MOST_FEW} rows or columns; this has {problem.m} and {problem.n}")
    return None


def _unfit(problem: Gemm, kernel: Kernel, layout: Layout) -> Reason | None:
    if kernel.form == Shape.of(problem).form:
        return None
    return Reason("shape", "rows of the large matrix do not lie as it reads them")


def _nearest(problem: Gemm, kernel: Kernel, schedule: Schedule, layout: Layout) -> Schedule:
    k = min(problem.k, whole_steps(schedule.channels, FEW_STEP if kernel.form == "dot" else 1))
    return of_kernel(kernel, k, max(1, schedule.k2))


def _schedules(problem: Gemm, kernel: Kernel, request: Request) -> Iterator[Schedule]:
    """Blocks of k (channels) and strips of results (k2, in windows of the kernel) that may be best: strips of RUNS, or of all whose sums
    take up to a quarter of L2."""
    shape, size = Shape.of(problem), problem.element_bytes
    most = ceil_div(shape.results, kernel.windows)
    largest = min(most, max(1, request.cpu.outer.size_bytes // 4 // (shape.few * kernel.windows * size)))
    strips = {largest, *(max(1, run // (kernel.windows * size)) for run in RUNS if run < largest * kernel.windows * size)}
    blocks = (*DOT_BLOCKS, shape.k) if shape.dot else AXPY_BLOCKS
    for k in sorted({min(block, shape.k) for block in blocks}):
        for strip in [max(strips)] if shape.dot else sorted(strips):
            yield of_kernel(kernel, k, strip)


_LISTED = OfList(NAME, skinny_kernels, _schedules, _nearest, terms, passed, _unfit, latencies=True)
least_cycles, candidates, cost = _LISTED.least_cycles, _LISTED.candidates, _LISTED.cost


def workspace_bytes(problem: Gemm, schedule: Schedule, layout: Layout) -> int:
    """The copy of the few and the sums of a strip, each in whole lines (native/conv/skinny.c)."""
    shape, size = Shape.of(problem), problem.element_bytes
    step = FEW_STEP if shape.dot else 1
    copy = ceil_div(shape.k, step) * step * shape.few * size
    strip = min(ceil_div(shape.results, schedule.windows), schedule.k2) * schedule.windows * size
    pitch = ceil_div(strip, PANEL_ALIGN) * PANEL_ALIGN + PANEL_ALIGN
    return ceil_div(copy, PANEL_ALIGN) * PANEL_ALIGN + PANEL_ALIGN + pitch * shape.few


def largest_part(problem: Gemm, schedule: Schedule, threads: int) -> Part:
    """Some of the results, whole tiles of them (native/conv/skinny.c)."""
    shape = Shape.of(problem)
    tiles = ceil_div(shape.results, schedule.windows)
    most = ceil_div(tiles, min(threads, tiles))
    results = min(shape.results, max(shape.few + 1, most * schedule.windows))  # no more than the few would be the few
    part = msgspec.structs.replace(problem, **{"n" if shape.few_rows else "m": results})
    return Part(part, msgspec.structs.replace(schedule, k2=min(schedule.k2, ceil_div(results, schedule.windows))))


def describe(plan: Plan) -> Description:
    w, schedule, kernel = planned(plan)
    shape = Shape.of(w)
    few, large = ("rows of A", "B") if shape.few_rows else ("columns of B", "A")
    lanes = "lanes hold k, added up at the end of each block" if shape.dot else "lanes hold results"
    inner = f"{kernel.name} on {kernel.windows} results x up to {kernel.filters} {few}: {lanes}"
    summary = f"matrix product of few rows or columns, {large} read once as it lies"
    return words.describe(plan, summary, described(shape, [(kernel, schedule)]), inner, peak=words.peak_of(plan, lanes_of(kernel)))
