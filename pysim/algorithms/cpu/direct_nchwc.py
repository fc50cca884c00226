# SPDX-License-Identifier: Apache-2.0
"""Direct convolution with channels in blocks (NCHWc): elements of the input are broadcast as they lie, whatever the stride; none is packed.

The kernels are the rows of `native/conv/direct_nchwc.inc`, whose lanes hold a block of filters; `pysim.cachemodel.cpu.direct_nchwc` costs
them. The input has blocks of as many channels, or planes (an image of three), and the output has blocks.

Worked number: 128 channels of 7x7 are 8 blocks of 49 pixels of 16; a vector holds a pixel, where one along a row of 7 lacks 9 lanes.
"""

from collections.abc import Iterator

import msgspec

from pysim.algorithms.contract import Prepared, sums
from pysim.cachemodel.cpu import words
from pysim.cachemodel.cpu.direct_nchwc import Shape, described, passed, terms
from pysim.cachemodel.cpu.listed import OfList, of_kernel, planned, row_of, untyped, whole_steps
from pysim.cachemodel.cpu.nest import PANEL_ALIGN, ceil_div, nest_of, panel_bytes
from pysim.cachemodel.cpu.threads import Part, parts_of_each, rows_of
from pysim.machine.cpu import Machine
from pysim.problem.conv import Conv
from pysim.record.cost import Reason
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request, blocks_of
from pysim.record.schedule import Schedule
from pysim.registry.cpu import Kernel, nchwc_kernels

NAME = "direct_nchwc"
COMPUTES = Conv
tolerance = sums
SETS = (1, 4, 8, 16, 32)  # blocks of channels, and all of them


def refuses(problem: Conv, machine: Machine, layout: Layout) -> Reason | None:
    if blocks_of(layout)[1] == 1:
        return Reason("shape", f"its output has blocks of channels, and {layout} was asked for")
    return untyped(problem.dtype, nchwc_kernels()) or refuses_sizes(problem, layout)


def refuses_sizes(problem: Conv, layout: Layout) -> Reason | None:
    """Why channels or filters of a group do not lie so."""
    block, out = blocks_of(layout)
    for what, count, size in (("channels", problem.channels, block), ("filters", problem.filters, out)):
        if count // problem.groups % size:
            each = f"{count // problem.groups} {what}{' of a group' if problem.groups > 1 else ''}"
            return Reason("size", f"{each} are no whole blocks of {size}; {layout} takes a multiple of {size}")
    return None


def _unfit(problem: Conv, kernel: Kernel, layout: Layout) -> Reason | None:
    if kernel.lane_filters == blocks_of(layout)[1]:
        return None
    return Reason("size", f"its blocks have {kernel.lane_filters} channels, and {layout} was asked for")


def nearest(problem: Conv, kernel: Kernel, schedule: Schedule, layout: Layout) -> Schedule:
    """Whole blocks of channels, or all."""
    channels = min(problem.group_channels, whole_steps(schedule.channels, blocks_of(layout)[0]))
    return of_kernel(kernel, channels, max(1, schedule.k2))


def schedules(problem: Conv, kernel: Kernel, request: Request) -> Iterator[Schedule]:
    """Sets of channels, and blocks of tiles (k2) that stay while panels pass by: all, or those whose input fills a part of L1 or L2."""
    shape, on = Shape.of(problem, kernel, request.layout), request.cpu
    sets = sorted({min(shape.channels, blocks * shape.inner) for blocks in SETS} | {shape.channels})
    each = max(1, problem.height * problem.width * shape.channels * problem.element_bytes // shape.tiles)
    inner, outer = on.levels[0].size_bytes, on.outer.size_bytes
    for tiles in sorted({max(1, min(shape.tiles, kept // each)) for kept in (inner // 2, outer // 4, outer // 2)} | {shape.tiles}):
        yield from (of_kernel(kernel, channels, tiles) for channels in sets)


_LISTED = OfList(NAME, nchwc_kernels, schedules, nearest, terms, passed, _unfit)
least_cycles, candidates, cost = _LISTED.least_cycles, _LISTED.candidates, _LISTED.cost


def prepare(problem: Conv, schedule: Schedule, layout: Layout) -> Prepared:
    return Prepared("packed filters", panel_bytes(nest_of(problem), schedule))


def workspace_bytes(problem: Conv, schedule: Schedule, layout: Layout) -> int:
    return PANEL_ALIGN  # nothing lies in it


def largest_part(problem: Conv, schedule: Schedule, threads: int) -> Part:
    """Some blocks of tiles, by parts of the panels where blocks are few (native/conv/direct_nchwc.c)."""
    shape = Shape.of(problem, row_of(schedule), "nchw")
    block = min(schedule.k2, shape.tiles)
    blocks = problem.batch * problem.groups * ceil_div(shape.tiles, block)
    panel_parts = min(shape.panels, parts_of_each(blocks, threads))
    times, panels = ceil_div(blocks * panel_parts, threads), ceil_div(shape.panels, panel_parts)
    rows = min(problem.out_h, ceil_div(problem.out_h * block, shape.tiles))
    filters = min(problem.group_filters, panels * schedule.filters)
    part = rows_of(problem, times, rows, filters)
    own = Shape.of(part, row_of(schedule), "nchw").tiles
    return Part(part, msgspec.structs.replace(schedule, k2=min(block, own)), block / own)


def describe(plan: Plan) -> Description:
    w, schedule, kernel = planned(plan)
    shape = Shape.of(w, kernel, plan.layout)
    lies = f"blocks of {shape.inner} channels" if shape.inner > 1 else "planes"
    inner = f"{kernel.name} on {ceil_div(shape.pixels, shape.per_row)} pixels x {kernel.filters} filters x {schedule.channels} channels"
    nest = described(w, [(kernel, schedule)], plan.layout)
    names = {"panels": f"panels of {kernel.filters} filters"}
    peak = words.peak_of_taps(plan, shape.steps * w.windows)
    return words.describe(plan, f"direct convolution of {lies}, broadcast as they lie", nest, inner, names, peak=peak)
