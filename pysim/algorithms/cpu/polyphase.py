# SPDX-License-Identifier: Apache-2.0
"""Convolutions of few channels: the input is parted once by the phases of the stride, and every tap read where it lies then.

Packing copies an input row for each tap that reads it, which layers over images (1 to 4 channels, kernels up to 11x11) repay with few
multiply-adds a channel. Parted rows are copied once; the kernels are the rows of `native/conv/polyphase.inc`, their filters are packed
as sconv's.

Worked number: 7x7 with stride 2 on 3 channels packs each element of an image 49 / 4 = 12 times; parted, 1.6 times in blocks of 4 rows of
outputs, which read 13 rows for 8 new ones.

What they cost (`native/conv/polyphase.c`):

    cycles as in `cost`, of these terms, for every image and group; P rows of outputs in blocks of k2, F filters a panel

kernel  Each row of outputs of a panel is V = ceil(Q / lanes) vectors in tiles of up to n, evenly. A tile of v vectors lasts, for each of
        its C R S taps, max(v F / fma rate, (v + F) / load rate, fma latency).
store   Rows begin anywhere in a line: a vector crosses into the next in (vector - element) / line of all places, which is one more access.
pack    Vectors of parted rows, those of a block's halo again in the next: a store and pack_cycles, and with a stride a load and a permute
        for each phase. Rows are read whole, so their lines wait for nothing but the rates of `cost`.
call    call_cycles for each row of a panel, less WAITING / fma rate: a core that multiplies more slowly than it takes instructions in has
        so many multiply-adds left to do when it comes to the next row, which depends on nothing of them, and begins it meanwhile. And
        call_cycles for each PARTED columns of a channel of a block, whose masks are made anew.

What crosses between levels follows from the description of the loops (`described`, `loops`).

Worked number: 3 -> 64 channels, 224x224, 7x7 stride 2 on 16 lanes: rows of 112 outputs are 7 vectors, tiles of 3, 2 and 2. With 8 filters
and two multiply-adds a cycle a tap takes 12 + 8 + 8 = 28 cycles for 56 multiply-adds; the loads, (3 + 8 + 2 + 8 + 2 + 8) / 2, hide behind
them.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np

from pysim.algorithms.contract import direct_sum, requires_nchw
from pysim.algorithms.nest import packed_filters
from pysim.cachemodel.cpu import words
from pysim.cachemodel.cpu.cost import Pass, traffic_of
from pysim.cachemodel.cpu.listed import ListedAlgorithm, Rows, Terms, kernel_schedule, type_refusal, unpacked_plan
from pysim.cachemodel.cpu.loops import Extent, Loop, LoopNest, Operand
from pysim.cachemodel.cpu.nest import PANEL_ALIGN, ceil_div
from pysim.cachemodel.cpu.threads import Part, parts_of_each, rows_of
from pysim.machine.cpu import Machine, Unit
from pysim.problem.conv import Conv
from pysim.record.cost import Reason
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request
from pysim.record.schedule import Schedule
from pysim.registry.cpu import Kernel, phases_kernels

NAME = "polyphase"
COMPUTES = Conv
tolerance, prepare = direct_sum, packed_filters
MOST_CHANNELS = 32  # of a group: with more, rows of all channels leave L1, and packing sets of them was level or faster (Zen 5)
OFFSET_BYTES = 8  # of a tap's place

PARTED = 64  # columns of a phase that are parted at once (native/conv/polyphase.c)
WAITING = 160  # multiply-adds in schedulers and before them: 128 entries and 64 in Zen 4, 97 in Golden Cove (Agner Fog; 151 plans, Zen 4)


class Parted(NamedTuple):
    """The parted rows of a block of a convolution: of each channel rows x phases x pitch elements."""

    rows: int
    phases: int
    pitch: int
    size_bytes: int

    @classmethod
    def of(cls, w: Conv, rows: int) -> "Parted":
        reach, lane = w.dilation_w * (w.kernel_w - 1), PANEL_ALIGN // w.element_bytes
        high = (rows - 1) * w.stride_h + w.dilation_h * (w.kernel_h - 1) + 1
        phases = min(w.stride_w, reach + 1)
        pitch = ceil_div(ceil_div(w.out_w, lane) * lane + reach // w.stride_w, lane) * lane
        return cls(high, phases, pitch, w.group_channels * high * phases * pitch * w.element_bytes)


def tiles_of(vectors: int, most: int) -> tuple[tuple[int, int], ...]:
    """Tiles of a row, of equal size, give or take one: how many, and the vectors of each."""
    tiles = ceil_div(vectors, most)
    small, more = divmod(vectors, tiles)
    return (more, small + 1), (tiles - more, small)


@lru_cache(maxsize=64)
def _row_cycles(w: Conv, kernel: Kernel, unit: Unit) -> float:
    """Of one row of outputs of a panel of filters."""
    taps = w.products
    if kernel.lane_windows == 1:  # plain C: what a loop needs besides is in the rate
        return taps * w.out_w * kernel.filters / unit.rate(w.dtype)
    tiles = tiles_of(ceil_div(w.out_w, kernel.lane_windows), kernel.windows // kernel.lane_windows)
    return sum(count * taps * unit.step_cycles(w.dtype, vectors, kernel.filters) for count, vectors in tiles)


def terms(w: Conv, kernel: Kernel, schedule: Schedule, machine: Machine, layout: Layout) -> tuple[float, float, float, float]:
    """kernel, call, store, pack."""
    unit, core = machine.unit_of(kernel.target), machine.core
    repeats, size, parted = w.batch * w.groups, w.element_bytes, Parted.of(w, schedule.k2)
    filters, blocks = w.group_filters, ceil_div(w.out_h, schedule.k2)
    lanes = unit.lanes(size)
    calls = repeats * w.out_h * ceil_div(filters, kernel.filters)
    runs = repeats * blocks * w.group_channels * ceil_div(parted.pitch, PARTED)
    gather = 1 / unit.loads_per_cycle.value + min(w.stride_w, lanes) if w.stride_w > 1 else 0.0
    packed = repeats * blocks * parted.size_bytes / size / lanes
    row = _row_cycles(w, kernel, unit)
    covered = min(WAITING / unit.rate(w.dtype), row, core.call_cycles.value)
    return (
        calls * row,
        (calls + runs) * core.call_cycles.value - calls * covered,
        repeats * filters * w.out_h * ceil_div(w.out_w, lanes) * unit.store_cycles(size, machine.line_bytes),
        packed * (1 / unit.stores_per_cycle.value + core.pack_cycles.value + gather),
    )


def described(w: Conv, rows: Rows) -> LoopNest:
    """The loops of native/conv/polyphase.c for kernels with their blocks of rows."""
    size, filters, channels = w.element_bytes, w.group_filters, w.group_channels
    columns = [(kernel.filters, of.k2, *Parted.of(w, of.k2)) for kernel, of in rows]
    panel, block, parted_rows, _, _, parted = np.array(columns, dtype=np.float64).T
    blocks, each = np.ceil(w.out_h / block), parted / parted_rows
    high = w.dilation_h * (w.kernel_h - 1) + 1  # rows that one of outputs reads
    row, weights = channels * w.width * size, channels * w.taps * size
    shared = float(max(0, high - w.stride_h))
    loops = (
        Loop("images and groups", "images", 1, w.batch * w.groups),
        Loop("blocks of rows", "blocks", 1, blocks),
        Loop("panels", "filters", panel, np.ceil(filters / panel)),
        Loop("rows", "rows", 1, block),
    )
    images, outputs = Extent(1.0, w.batch * w.groups), w.out_w * size
    written = {"images": images, "blocks": Extent(1.0, blocks), "filters": Extent(1.0, filters), "rows": Extent(outputs, outputs * block)}
    kept = {"rows": Extent(w.stride_h * each, parted, shared * each, high * each)}
    read = Extent(block * w.stride_h * row, w.height * row, shared * row)
    operands = (
        Operand("input", {"images": images, "blocks": read}, "blocks of rows"),
        Operand("packed", kept, "blocks of rows", written=True),
        Operand("packed", kept, "rows"),
        Operand("filters", {"filters": Extent(weights, weights * filters)}, "rows"),
        Operand("output", written, "rows", written=True),
    )
    return LoopNest(loops, operands, {"images": w.batch * w.groups, "blocks": blocks, "rows": block, "filters": filters}, len(rows))


def passed(w: Conv, rows: Rows, of: Terms, machine: Machine, request: Request) -> Pass:
    """By schedules with their terms, on one core. Prefetchers follow whole rows of outputs, so none of their lines waits to come in."""
    nest = described(w, rows)
    return Pass(machine, of, nest.names, traffic_of(nest, nest.misses(machine.levels, request.state)))


# The answers of the contract


def refuses(problem: Conv, machine: Machine, layout: Layout) -> Reason | None:
    if reason := requires_nchw(layout) or type_refusal(problem.dtype, phases_kernels()):
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
    return kernel_schedule(kernel, problem.group_channels, rows, pack="tiles")


_LISTED = ListedAlgorithm(NAME, phases_kernels, _schedules, _nearest, terms, passed)
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
    w, schedule, kernel = unpacked_plan(plan)
    of = Parted.of(w, schedule.k2)
    taps = f"{w.group_channels}x{w.kernel_h}x{w.kernel_w} taps"
    inner = f"{kernel.name} on a row of outputs x {kernel.filters} filters, {taps} where they lie"
    summary = f"rows of the input parted into {of.phases} phases, {of.rows} rows for {schedule.k2} of outputs"
    return words.describe(plan, summary, described(w, [(kernel, schedule)]), inner)
