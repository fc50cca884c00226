# SPDX-License-Identifier: Apache-2.0
"""Convolutions of several groups in channel blocks (NCHWc) whose groups need not be whole blocks (native/algorithms/grouped/grouped.c).

The kernels are the rows of form `grouped` of `native/depthwise.inc`. Lanes hold a block of filters, of one group or of two. A tile is two
rows of outputs x P columns. For each channel of a group and each kernel row it loads the three taps' vectors of filters once, and each
element of the input once for the up to three outputs of a row that read it; in a block of two groups an element of each, which are
merged. So the loop of a tile runs over channels, and its start is paid once a channel, where `direct_nchwc` pays one a tap: of a group of
8 channels after 8 turns.

The in-core cycles, from the machine's numbers but for two constants, for every image and block of filters:

    kernel  For each tile, channel and kernel row that n of the two rows of outputs have in the image, with V vectors of multiply-adds in
            each: max(n V / fma rate, loads / load rate, 3 fma latency): the three taps of an accumulator are a chain. A merge counts as a
            multiply-add. And CHANNEL_CYCLES for each channel of a tile: its addresses, which end one loop and start the next.
    call    TILE_CYCLES a tile: accumulators are cleared and stored, and branches are mispredicted as edges of the image change.
    store   a vector per pixel and block of filters

Worked number: 26 groups of 8 channels, 14x14, 3x3 on AVX2 are 26 blocks of 7 x 3 tiles of 5, 5 and 4 columns: for both rows 14, 15 and 12
cycles a channel and kernel row, 19 of 21 times, 12 for one row alone, 851 a channel of a block. 26 x (8 x 851 + 21 (26 + 8 x 3)) =
204,000 cycles, 68 us of a Zen 3 at 3 GHz, as measured; at the peak rate 55 us.
"""

from functools import lru_cache
from math import prod

import numpy as np

from pysim.algorithms.interface import Nests, Prepared, direct_sum
from pysim.cachemodel.cpu import nest_text
from pysim.cachemodel.cpu.cost import Pass, traffic_of
from pysim.cachemodel.cpu.direct_schedules import ListedAlgorithm, Rows, Terms, row_of, type_refusal, unpacked_plan
from pysim.cachemodel.cpu.nest import PANEL_ALIGN, ceil_div, live_taps
from pysim.cachemodel.cpu.reuse.loops import Extent, Loop, LoopNest, Operand
from pysim.cachemodel.cpu.threads import Part, rows_of
from pysim.machine.cpu import Machine
from pysim.problem.conv import Axis, Conv
from pysim.record.cost import Reason
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request, blocks_of
from pysim.record.schedule import Schedule
from pysim.registry.cpu import Kernel, grouped_kernels, grouped_tile

NAME = "grouped"
COMPUTES = Conv
tolerance = direct_sum

# Zen 3, 3x3: 26 groups of 8 and 14 of 24 channels of 14x14, 42 of 16 of 7x7 took 50, 99 and 74 cycles a tile more than their multiply-adds
CHANNEL_CYCLES, TILE_CYCLES = 3.0, 26.0


def of_two_groups(w: Conv, lanes: int) -> float:
    """The share of the blocks of filters that have filters of two groups."""
    blocks = w.filters // lanes
    return sum(block * lanes // w.group_filters != (block * lanes + lanes - 1) // w.group_filters for block in range(blocks)) / blocks


def _inside(axis: Axis) -> list[frozenset[int]]:
    """Of each output the taps that lie in the image."""
    return [frozenset(tap for tap, at in enumerate(axis.taps) if 0 <= at + out * axis.stride < axis.size) for out in range(axis.out)]


@lru_cache(maxsize=64)
def kernel_rows(w: Conv, rows: int) -> tuple[tuple[int, int], ...]:
    """For tiles of `rows` rows of outputs: (how many of these have a kernel row in the image, number of such kernel rows of all tiles)."""
    inside, found = _inside(w.rows), dict[int, int]()
    for first in range(0, w.out_h, rows):
        for tap in range(w.kernel_h):
            if count := sum(tap in one for one in inside[first : first + rows]):
                found[count] = found.get(count, 0) + 1
    return tuple(found.items())


@lru_cache(maxsize=64)
def column_tiles(w: Conv, most: int) -> tuple[tuple[int, int], ...]:
    """Of each tile of a row of outputs: (multiply-adds, columns of the input) that lie in the image, for one channel and kernel row."""
    inside, tiles = _inside(w.columns), ceil_div(w.out_w, most)
    small, more = divmod(w.out_w, tiles)
    found, at = list[tuple[int, int]](), 0
    for tile in range(tiles):
        wide = small + (tile < more)
        of_tile = list(enumerate(inside[at : at + wide], at))
        columns = {out * w.stride_w + tap for out, taps in of_tile for tap in taps}
        found.append((sum(len(taps) for _, taps in of_tile), len(columns)))
        at += wide
    return tuple(found)


def terms(w: Conv, rows: Rows, machine: Machine, layout: Layout) -> tuple[float, float, float]:
    """kernel, call, store."""
    (kernel,) = rows.kernels
    unit, (high, taps) = machine.unit_of(kernel.target), grouped_tile()
    blocks = w.batch * w.filters // kernel.lane_filters
    two = of_two_groups(w, kernel.lane_filters)
    tiles, broadcasts = column_tiles(w, kernel.windows // high), machine.broadcasts_per_cycle(unit)
    each = 0.0
    for of_rows, count in kernel_rows(w, high):
        for multiply_adds, columns in tiles:
            merged, loads = of_rows * columns * two, taps / unit.loads_per_cycle.value
            elements = of_rows * columns * (1 + two) / broadcasts
            issue = (of_rows * multiply_adds + merged) / unit.rate(w.dtype)
            each += count * max(issue, loads + elements, taps * unit.fma_latency_cycles.value)
    if kernel.target == "portable":  # plain C: the rate includes the loop overhead
        each = prod(live_taps(w)) * kernel.lane_filters / unit.rate(w.dtype)
    number = ceil_div(w.out_h, high) * len(tiles)
    return (
        blocks * w.group_channels * (each + number * CHANNEL_CYCLES),
        blocks * number * TILE_CYCLES,
        blocks * w.windows / unit.stores_per_cycle.value,
    )


@lru_cache(maxsize=64)
def touched_channels(w: Conv, lanes: int) -> float:
    """Channels of the lines that a block of filters reads, in the mean: whole blocks, of one group or of two."""
    first = np.arange(0, w.filters, lanes) // w.group_filters * w.group_channels // lanes
    last = (np.arange(lanes - 1, w.filters, lanes) // w.group_filters + 1) * w.group_channels
    return float(np.mean(-(-last // lanes) - first) * lanes)


def described(w: Conv, rows: Rows) -> LoopNest:
    """The loop nest of native/algorithms/grouped/grouped.c."""
    size, (high, _) = w.element_bytes, grouped_tile()
    lanes = np.array([float(kernel.lane_filters) for kernel in rows.kernels])
    pairs, blocks = ceil_div(w.out_h, high), w.filters / lanes
    loops = (
        Loop("images", "images", 1, w.batch),
        Loop("blocks of filters", "blocks", 1, blocks),
        Loop("pairs of rows", "rows", 1, pairs),
    )
    images, of_filters = Extent(1.0, w.batch), Extent(lanes, w.filters)
    new = w.channels / blocks  # channels that a block reads and the one before does not, in the mean
    read = np.array([touched_channels(w, kernel.lane_filters) for kernel in rows.kernels])
    kept = min(w.height, (w.out_h - 1) * w.stride_h + w.dilation_h * (w.kernel_h - 1) + 1)
    image = float(kept * w.width * size)
    shared = float(max(0, w.dilation_h * (w.kernel_h - 1) + 1 - w.stride_h) * w.width * size)
    out, weights = float(w.windows * size), float(w.group_channels * w.taps * size)
    deep = Extent(new, float(w.channels), np.maximum(0.0, read - new))
    operands = (
        Operand("input", {"images": images, "blocks": deep, "rows": Extent(image / pairs, image, shared)}, "pairs of rows"),
        Operand("filters", {"blocks": Extent(lanes * weights, w.filters * weights)}, "pairs of rows"),
        Operand("output", {"images": images, "blocks": of_filters, "rows": Extent(out / pairs, out)}, "pairs of rows", written=True),
    )
    return LoopNest(loops, operands, {"images": w.batch, "blocks": blocks, "rows": pairs}, lanes.size)


def passed(w: Conv, rows: Rows, of: Terms, machine: Machine, request: Request) -> Pass:
    nest = described(w, rows)
    return Pass(machine, of, nest.names, traffic_of(nest, nest.misses(machine.levels, request.state, sum(of.values()))))


# The interface of an algorithm


def refuses(problem: Conv, machine: Machine, layout: Layout) -> Reason | None:
    block, out = blocks_of(layout)
    if block != out or block == 1:
        return Reason("shape", f"it takes input and output both in channel blocks, not {layout.upper()}")
    if reason := type_refusal(problem.dtype, grouped_kernels()):
        return reason
    if problem.groups == 1:
        return Reason("shape", "it takes two groups or more")
    for what, count in (("channels", problem.channels), ("filters", problem.filters)):
        if count % block:
            return Reason("size", f"{count} {what} are not a multiple of {block}, the block of {layout}")
    if problem.group_filters < block and 2 * problem.group_filters != block:
        each = f"{problem.group_filters} filter{'s' if problem.group_filters > 1 else ''}"
        return Reason("size", f"a block of {block} filters may have filters of two groups, and these have {each} each")
    _, taps = grouped_tile()
    if problem.kernel_w != taps or problem.dilation_w > 1 or problem.stride_w > 2:
        return Reason("shape", f"it takes kernel rows of {taps} neighbouring taps and strides of 1 and 2")
    if problem.pad_left > 1 or (problem.out_w - 1) * problem.stride_w + taps - problem.pad_left > problem.width + 1:
        return Reason("shape", "it takes at most one column of padding at either end of a row")
    return Reason("shape", "it computes images, and these are volumes (id, kd)") if problem.is_volume else None


def _unfit(problem: Conv, kernel: Kernel, layout: Layout) -> Reason | None:
    if kernel.lane_filters == blocks_of(layout)[1]:
        return None
    return Reason("size", f"its blocks have {kernel.lane_filters} channels, those of {layout} do not")


_LISTED = ListedAlgorithm(
    NAME, grouped_kernels, lambda w, *_: [(w.group_channels, 1)], lambda w, *_: (w.group_channels, 1), terms, passed, _unfit
)
least_cycles, candidates, cost = _LISTED.least_cycles, _LISTED.candidates, _LISTED.cost


def prepare(problem: Conv, schedule: Schedule, layout: Layout) -> Prepared:
    return Prepared("packed filters", problem.filters * problem.group_channels * problem.taps * problem.element_bytes)


def workspace_bytes(problem: Conv, schedule: Schedule, layout: Layout) -> int:
    return PANEL_ALIGN  # unused


def largest_part(problem: Conv, schedule: Schedule, threads: int) -> Part:
    """Threads divide the blocks of filters of an image; if these are too few, also their rows (native/algorithms/grouped/grouped.c)."""
    blocks = problem.filters // row_of(schedule).lane_filters
    block_parts = min(threads, blocks)
    row_parts = min(threads, problem.out_h) if problem.batch * block_parts < threads else 1
    times = ceil_div(problem.batch * block_parts * row_parts, threads)
    share = ceil_div(blocks, block_parts) / blocks
    part = rows_of(problem, times, ceil_div(problem.out_h, row_parts), problem.group_filters, problem.groups)
    return Part(part, schedule, share, items=times)


def describe(plan: Plan) -> Description:
    w, _, kernel = unpacked_plan(plan)
    high, taps = grouped_tile()
    inner = f"{kernel.name} on up to {high} rows x {kernel.windows // high} columns, {taps} taps of a kernel row; padding is skipped"
    peak = nest_text.peak_of_taps(plan, prod(live_taps(w)))
    return nest_text.describe(plan, "groups in channel blocks, input read in place", nests(plan).loops[0], inner, peak=peak)


def nests(plan: Plan) -> Nests:
    w, schedule, kernel = unpacked_plan(plan)
    return Nests((described(w, Rows.alone(kernel, schedule)),))
