# SPDX-License-Identifier: Apache-2.0
"""Convolutions of few channels: the input is parted once by the phases of the stride, and every tap read where it lies then.

Packing copies an input row for each tap that reads it, which layers over images (1 to 4 channels, kernels up to 11x11) repay with few
multiply-adds a channel. Parted rows are copied once; the kernels are the rows of `native/conv/polyphase.inc`, their filters are packed
as sconv's; `pysim.cachemodel.cpu.polyphase` costs them.

Worked number: 7x7 with stride 2 on 3 channels packs each element of an image 49 / 4 = 12 times; parted, 1.6 times in blocks of 4 rows of
outputs, which read 13 rows for 8 new ones.
"""

from collections.abc import Iterator

import msgspec

from pysim.algorithms.contract import of_planes, sums
from pysim.algorithms.nest import packed_filters
from pysim.cachemodel.cpu import words
from pysim.cachemodel.cpu.listed import OfList, as_described, of_kernel, planned, untyped
from pysim.cachemodel.cpu.nest import PANEL_ALIGN, ceil_div
from pysim.cachemodel.cpu.polyphase import Parted, described, terms
from pysim.cachemodel.cpu.threads import Part, parts_of_each, rows_of
from pysim.machine.cpu import Machine
from pysim.problem.conv import Conv
from pysim.record.cost import Reason
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request
from pysim.record.schedule import Schedule
from pysim.registry.cpu import Kernel, phases_kernels

NAME = "polyphase"
COMPUTES = Conv
tolerance, prepare = sums, packed_filters
MOST_CHANNELS = 32  # of a group: with more, rows of all channels leave L1, and packing sets of them was level or faster (Zen 5)
OFFSET_BYTES = 8  # of a tap's place


def refuses(problem: Conv, machine: Machine, layout: Layout) -> Reason | None:
    if reason := of_planes(layout) or untyped(problem.dtype, phases_kernels()):
        return reason
    if (channels := problem.group_channels) > MOST_CHANNELS:
        return Reason("shape", f"it takes groups of up to {MOST_CHANNELS} channels; these have {channels}")
    return None


def _nearest(problem: Conv, kernel: Kernel, schedule: Schedule, layout: Layout) -> Schedule:
    return _schedule(kernel, problem, max(1, min(schedule.k2, problem.out_h)))


def _schedules(problem: Conv, kernel: Kernel, request: Request) -> Iterator[Schedule]:
    """Rows of outputs of a block: powers of two, and all."""
    blocks = {min(2**power, problem.out_h) for power in range(problem.out_h.bit_length() + 1)}
    return (_schedule(kernel, problem, rows) for rows in sorted(blocks))


def _schedule(kernel: Kernel, problem: Conv, rows: int) -> Schedule:
    return of_kernel(kernel, problem.group_channels, rows, pack="tiles")


_LISTED = OfList(NAME, phases_kernels, _schedules, _nearest, terms, as_described(described))
least_cycles, candidates, cost = _LISTED.least_cycles, _LISTED.candidates, _LISTED.cost


def workspace_bytes(problem: Conv, schedule: Schedule, layout: Layout) -> int:
    """The parted rows of a block, and where each tap of a panel lies."""
    taps = problem.products
    return Parted.of(problem, min(schedule.k2, problem.out_h)).size_bytes + taps * OFFSET_BYTES + PANEL_ALIGN


def largest_part(problem: Conv, schedule: Schedule, threads: int) -> Part:
    """Blocks of rows, more of them where that divides them evenly (native/conv/polyphase.c)."""
    images, fewest = problem.batch * problem.groups, ceil_div(problem.out_h, schedule.k2)
    blocks = min(problem.out_h, fewest * parts_of_each(images * fewest, threads))
    rows = ceil_div(problem.out_h, blocks)
    part = rows_of(problem, ceil_div(images * blocks, threads), rows, problem.group_filters)
    return Part(part, msgspec.structs.replace(schedule, k2=rows))


def describe(plan: Plan) -> Description:
    w, schedule, kernel = planned(plan)
    of = Parted.of(w, schedule.k2)
    taps = f"{w.group_channels}x{w.kernel_h}x{w.kernel_w} taps"
    inner = f"{kernel.name} on a row of outputs x {kernel.filters} filters, {taps} where they lie"
    summary = f"rows of the input parted into {of.phases} phases, {of.rows} rows for {schedule.k2} of outputs"
    return words.describe(plan, summary, described(w, [(kernel, schedule)]), inner)
