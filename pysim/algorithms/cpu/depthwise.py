# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolutions and those of groups of few channels, from operands as they lie, planes or blocks of channels: no input is packed.

The kernels are the rows of `native/conv/depthwise.inc`, each with one schedule; `pysim.cachemodel.cpu.depthwise` costs them. Those of form
`blocks` have their filters prepared, [block][tap][group].

Worked number: conv:g960ic960ih7oc960kh3ph1 has rows of 7 outputs. Of 16 lanes `rows` uses 7, `planes` all, for 8 blocks of 16x16 elements
transposed per 16 groups.
"""

import math

from pysim.algorithms.contract import Prepared, sums
from pysim.cachemodel.cpu import words
from pysim.cachemodel.cpu.depthwise import BLOCKS, PLANES, ROWS, described, live_rows, passed, planes_elements, shares_rows, terms
from pysim.cachemodel.cpu.listed import OfList, of_kernel, planned, row_of, untyped
from pysim.cachemodel.cpu.nest import PANEL_ALIGN, ceil_div, live_taps
from pysim.cachemodel.cpu.threads import Part, rows_of
from pysim.machine.cpu import Machine
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SIZES
from pysim.record.cost import Reason
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request, blocks_of
from pysim.record.schedule import Schedule
from pysim.registry.cpu import Kernel, direct_kernels

NAME = "depthwise"
COMPUTES = Conv
tolerance = sums
MOST_CHANNELS = 16  # of a group: more are worth packing, which these kernels cannot


def refuses(problem: Conv, machine: Machine, layout: Layout) -> Reason | None:
    block, out = blocks_of(layout)
    if layout not in ("nchw", f"nchw{block}c"):
        return Reason("shape", f"its input and output are both NCHW or both blocks of channels, and {layout.upper()} was asked for")
    if block > 1 and not _is_depthwise(problem):
        return Reason("shape", "of blocks of channels it takes groups of one channel and one filter")
    if problem.groups % out:
        return Reason("size", f"{problem.groups} groups are no whole blocks of {out}; {layout} takes a multiple of {out}")
    if reason := untyped(problem.dtype, direct_kernels()):
        return reason
    if problem.groups == 1:
        return Reason("shape", "it takes two groups or more: a dense convolution is worth packing")
    if (channels := problem.channels // problem.groups) > MOST_CHANNELS:
        return Reason("shape", f"it takes groups of up to {MOST_CHANNELS} channels; these have {channels}")
    return None


def _is_depthwise(problem: Conv) -> bool:
    return problem.groups == problem.channels == problem.filters


def _unfit(problem: Conv, kernel: Kernel, layout: Layout) -> Reason | None:
    if (kernel.lane_filters if kernel.form == BLOCKS else 1) != blocks_of(layout)[0]:
        lies = f"blocks of {kernel.lane_filters} channels" if kernel.form == BLOCKS else "planes"
        return Reason("shape", f"it reads and writes {lies}, and {layout} was asked for")
    if kernel.lane_filters > 1 and not _is_depthwise(problem):
        return Reason("shape", "it takes groups of one channel and one filter")
    if kernel.lane_filters == 1 < kernel.filters and problem.filters == problem.groups:
        return Reason("shape", "its tiles are of several filters of a group, and these have one")
    return None


def _nearest(problem: Conv, kernel: Kernel, schedule: Schedule, layout: Layout) -> Schedule:
    return of_kernel(kernel, problem.channels // problem.groups)


def _by_form() -> list[Kernel]:
    return sorted(direct_kernels(), key=lambda kernel: kernel.form)


def _schedules(problem: Conv, kernel: Kernel, request: Request) -> list[Schedule]:
    return [of_kernel(kernel, problem.channels // problem.groups)]


_LISTED = OfList(NAME, _by_form, _schedules, _nearest, terms, passed, _unfit)
least_cycles, candidates, cost = _LISTED.least_cycles, _LISTED.candidates, _LISTED.cost


def prepare(problem: Conv, schedule: Schedule, layout: Layout) -> Prepared | None:
    if row_of(schedule).form != BLOCKS:
        return None  # weights are read as they are
    return Prepared("packed filters", problem.filters * problem.kernel_h * problem.kernel_w * SIZES[problem.dtype])


def workspace_bytes(problem: Conv, schedule: Schedule, layout: Layout) -> int:
    """Of `planes` the transposed planes of one block of groups, in whole lines."""
    kernel = row_of(schedule)
    size = planes_elements(problem, kernel.lane_filters) * SIZES[problem.dtype] if kernel.form == PLANES else 0
    return ceil_div(size, PANEL_ALIGN) * PANEL_ALIGN + PANEL_ALIGN


def largest_part(problem: Conv, schedule: Schedule, threads: int) -> Part:
    """Some groups of an image, and where these are few, rows of them (native/conv/depthwise.c)."""
    kernel = row_of(schedule)
    units = ceil_div(problem.groups, kernel.lane_filters)
    group_parts = min(threads, units)
    row_parts = min(threads, problem.out_h) if kernel.form != PLANES and problem.batch * group_parts < threads else 1
    times = ceil_div(problem.batch * group_parts * row_parts, threads)
    groups = min(problem.groups, ceil_div(units, group_parts) * kernel.lane_filters)
    least = max(2, groups)  # of a problem that is depthwise
    part = rows_of(problem, times, ceil_div(problem.out_h, row_parts), problem.filters // problem.groups, least)
    return Part(part, schedule, groups / least, items=times)


def describe(plan: Plan) -> Description:
    w, schedule, kernel = planned(plan)
    if kernel.form != ROWS:
        inner = f"{kernel.name}, up to {kernel.windows} columns at once, a group a lane: the kernel's rows that meet the image"
    else:
        shared = "each row of the input is loaded once for all rows of the tile" if shares_rows(w, kernel) else "kernel rows one by one"
        high = kernel.windows // kernel.lane_windows
        inner = f"{kernel.name} on up to {high} rows x {kernel.lane_windows} columns, {w.kernel_h}x{w.kernel_w} taps; {shared}"
    summary = "groups of few channels, operands read as they lie"
    met = math.prod(live_taps(w)) if kernel.form == BLOCKS else live_rows(w) * w.out_w * w.kernel_w
    return words.describe(plan, summary, described(w, [(kernel, schedule)]), inner, peak=words.peak_of_taps(plan, met))
