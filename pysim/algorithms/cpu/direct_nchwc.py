# SPDX-License-Identifier: Apache-2.0
"""Direct convolution with channels in blocks (NCHWc): elements of the input are broadcast as they lie, whatever the stride; none is packed.

The kernels are the rows of `native/conv/direct_nchwc.inc`, whose lanes hold a block of filters. The input has blocks of as many channels,
or planes (an image of three), and the output has blocks.

Worked number: 128 channels of 7x7 are 8 blocks of 49 pixels of 16; a vector holds a pixel, where one along a row of 7 lacks 9 lanes.

What they cost, from the machine's numbers alone (`native/conv/direct_nchwc.c`):

    cycles as in `cost`, of these terms; tiles of P pixels x F vectors of filters, `panels` of those, `sets` of channels

kernel  Each element of the input is broadcast for F multiply-adds, each vector of filters read for P and asked for ahead: a channel and tap
        of a tile lasts max(P F / fma rate, F / load rate + (P + F) / broadcast rate, fma latency); an element may take less time
        than a vector (Zen 4: 0.50 cycles into 64 bytes, which whole take 1.00). Rows of outputs are divided into tiles
        of equal size, give or take one pixel. Kernel rows and taps that lie in padding are left out, the others take as many pixels as
        meet the image, and filters that no output has a use for are not read. A last panel that lacks vectors computes them nevertheless.
        A run of elements of the input that follow one another (a block of channels; of planes a row of taps) takes RUN_CYCLES besides.
store   P F vectors are stored once a set, and loaded again in every set after the first.
call    call_cycles of each call, and TILE_CYCLES besides: one for a tile and set; tiles at the sides of a padded image have one more for
        each tap that reaches out, and one of what is left to begin with (one, too, where a tile has both sides).

Results of a tile are written at once, and filters come in the order in which they are used: transfers hide behind all of computing but
steps that last as long as their loads, with which lines that come into L1 take turns. On 213 random layers (Zen 4, benchmarks/regret.py)
transfers take 1.0 of their time beside tiles of 12 x 8 on AVX2, whose loads are 7 cycles where 12 multiply-adds are 6, and 0 to 0.27 of it
beside each of the others, whose loads are fewer (least squares).

What crosses between levels follows from the description of the loops (`described`, `loops`). Pixels of blocks are whole lines: a strided
1x1 kernel touches those it reads alone.

Worked number: 64 channels of 56x56 to 64 filters, 3x3, padding 1, by tiles of 14 x 2 x 16: 4 tiles a row, 2 panels. 166 of 168 kernel rows
and taps of a row meet the image. 2 x 4 x 64 x 166^2 / 56 steps of 14 cycles are 3.5 million, where 231 MFLOP are 3.6 at 64 a cycle.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np

from pysim.algorithms.contract import Prepared, direct_sum
from pysim.cachemodel.cpu import words
from pysim.cachemodel.cpu.cost import Pass, pass_of
from pysim.cachemodel.cpu.listed import ListedAlgorithm, Rows, kernel_schedule, round_up, row_of, type_refusal, unpacked_plan
from pysim.cachemodel.cpu.loops import Array, Extent, Loop, LoopNest, Operand
from pysim.cachemodel.cpu.nest import PANEL_ALIGN, ceil_div, live_taps, nest_of, panel_bytes, used_taps
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
tolerance = direct_sum
SETS = (1, 4, 8, 16, 32)  # blocks of channels, and all of them

TILE_CYCLES = 40  # to make sums anew and to end them (213 random layers on a Zen 4: 20 to 60; 238 schedules of 22 layers on a Zen 5: 85)
RUN_CYCLES = 8  # to begin elements of the input that follow one another (Zen 5: 256 -> 128 channels 1x1 from planes, a run an element)


class Shape(NamedTuple):
    """A convolution as a kernel sees it: rows of outputs x pixels, of a pointwise one a single row; channels and filters of a group."""

    w: Conv
    rows: int
    pixels: int
    channels: int
    inner: int  # channels in a block of the input, 1: planes
    vectors: int  # of filters
    panels: int
    per_row: int  # tiles

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, w: Conv, kernel: Kernel, layout: Layout) -> "Shape":
        rows, pixels = (1, w.windows) if w.pointwise else (w.out_h, w.out_w)
        vectors = ceil_div(w.group_filters, kernel.lane_filters)
        panels = ceil_div(vectors, kernel.filters // kernel.lane_filters)
        return cls(w, rows, pixels, w.group_channels, blocks_of(layout)[0], vectors, panels, ceil_div(pixels, kernel.windows))

    @property
    def tiles(self) -> int:
        return self.rows * self.per_row

    @property
    def steps(self) -> float:
        """Taps that meet the image, of all rows and pixels, over the latter."""
        rows, columns = live_taps(self.w)
        return rows * columns / self.w.windows


def terms(w: Conv, kernel: Kernel, schedule: Schedule, machine: Machine, layout: Layout) -> tuple[float, float, float]:
    """kernel, call, store."""
    cycles, _, call, store, load = (w.batch * w.groups * each for each in _of_set(Shape.of(w, kernel, layout), kernel, machine))
    sets = ceil_div(w.group_channels, schedule.channels)
    return cycles, call * sets, store * sets + load * (sets - 1)


def least_of(w: Conv, kernel: Kernel, machine: Machine, layout: Layout) -> float:
    """What no schedule of a kernel goes below: all channels in one set."""
    cycles, _, call, store, _ = _of_set(Shape.of(w, kernel, layout), kernel, machine)
    return w.batch * w.groups * (cycles + call + store)


@lru_cache(maxsize=64)
def _of_set(shape: Shape, kernel: Kernel, machine: Machine) -> tuple[float, float, float, float, float]:
    """Cycles of an image's group: kernel, and of these such as nothing that moves hides behind; a set's call and store; and what later sets
    load again."""
    unit, w, f = machine.unit_of(kernel.target), shape.w, kernel.filters // kernel.lane_filters
    runs = shape.inner if shape.inner > 1 or w.dilation_w > 1 else w.kernel_w  # of the input, whose steps are one loop
    if kernel.target == "portable":  # plain C: what a loop needs besides is in the rate
        each = shape.pixels * f * kernel.lane_filters / unit.rate(w.dtype) + shape.per_row * RUN_CYCLES / runs
        of_rows, loading = shape.rows * shape.steps * each, 0.0
    else:
        of_rows = loading = 0.0
        broadcasts = machine.broadcasts_per_cycle(unit)
        for pixels, count in _pixels(shape):
            computing = max(pixels * f / unit.rate(w.dtype), unit.fma_latency_cycles.value)
            loads = f / unit.loads_per_cycle.value + (pixels + f) / broadcasts
            of_rows += count * (max(computing, loads) + RUN_CYCLES / runs)
            loading += count * loads * (loads > computing)
    each = shape.panels * shape.channels
    behind = (w.out_w - 1) * w.stride_w + w.dilation_w * (w.kernel_w - 1) + 1 - w.pad_left - w.width  # columns of the last pixel
    reaching = [min(w.kernel_w, ceil_div(pad, w.dilation_w)) for pad in (w.pad_left, behind) if pad > 0]
    sides = sum(reaching) + min(len(reaching), shape.per_row)
    calls = shape.panels * (shape.tiles + shape.rows * sides)
    stored = w.windows * shape.vectors
    return (
        each * of_rows,
        each * loading,
        calls * (machine.core.call_cycles.value + TILE_CYCLES),
        stored / unit.stores_per_cycle.value,
        stored / unit.loads_per_cycle.value,
    )


@lru_cache(maxsize=64)
def _pixels(shape: Shape) -> tuple[tuple[int, int], ...]:
    """(pixels of a tile that meet the image through a tap, how many such tiles, taps and kernel rows an image has)."""
    w, (small, more) = shape.w, divmod(shape.pixels, shape.per_row)
    if w.pointwise:
        return (small, shape.per_row - more), (small + 1, more)
    found, (alive, _) = Counter[int](), live_taps(w)
    for tile in range(shape.per_row):
        begin = tile * small + min(tile, more)
        end = begin + small + (tile < more)
        for at in w.columns.taps:
            first, last = max(begin, -(at // w.stride_w)), min(end, (w.width - 1 - at) // w.stride_w + 1)
            if first < last:
                found[last - first] += alive
    return tuple(found.items())


def described(w: Conv, rows: Rows, layout: Layout) -> LoopNest:
    """The loops of native/conv/direct_nchwc.c."""
    size, shapes = w.element_bytes, {kernel: Shape.of(w, kernel, layout) for kernel in dict(rows)}
    shape = next(iter(shapes.values()))  # alike but for panels and tiles
    columns = [(of.channels, of.k2, shapes[kernel].tiles, shapes[kernel].panels, kernel.filters) for kernel, of in rows]
    channels, block, tiles, panels, width = np.array(columns, dtype=np.float64).T
    block = np.minimum(block, tiles)
    loops = (
        Loop("images", "images", 1, w.batch),
        Loop("groups", "groups", 1, w.groups),
        Loop("blocks of tiles", "tiles", block, np.ceil(tiles / block)),
        Loop("panels", "panels", 1, panels),
        Loop("sets", "channels", channels, np.ceil(shape.channels / channels)),
        Loop("tiles", "tiles", 1, block),
    )
    taps = used_taps(w)
    images, groups, deep = Extent(1.0, w.batch), Extent(1.0, w.groups), Extent(1.0, shape.channels)
    plane, halo = _touched(shape, size)
    outputs, of_panel = w.windows * size, width * taps * size
    operands = (
        Operand("input", {"images": images, "groups": groups, "channels": deep, "tiles": Extent(plane / tiles, plane, halo)}, "tiles"),
        Operand("filters", {"groups": groups, "channels": deep, "panels": Extent(of_panel, panels * of_panel)}, "tiles"),
        Operand(
            "output",
            {
                "images": images,
                "groups": groups,
                "panels": Extent(width, w.group_filters),
                "tiles": Extent(outputs / tiles, outputs),
            },
            "tiles",
            written=True,
        ),
    )
    total = {"images": w.batch, "groups": w.groups, "tiles": tiles, "panels": panels, "channels": shape.channels}
    return LoopNest(loops, operands, total, len(rows))


def _touched(shape: Shape, size: int) -> tuple[float, float]:
    """Bytes of a channel that are read, and those that neighbouring tiles, which lie in neighbouring rows or one row, share."""
    nest = nest_of(shape.w)
    columns = min(nest.width, nest.out_w * nest.kernel_w) if shape.inner > 1 else nest.width
    return float(nest.touched_h * columns * size), float(max(0, nest.kernel_h - nest.stride_h) * columns * size)


def passed(w: Conv, rows: Rows, of: Mapping[str, Array], machine: Machine, request: Request) -> Pass:
    """By schedules with their terms, on one core."""
    sets = [_of_set(Shape.of(w, kernel, request.layout), kernel, machine) for kernel, _ in rows]
    covers = np.array([1 - loading / cycles if cycles else 0.0 for cycles, loading, *_ in sets])  # none where all taps meet padding
    return pass_of(described(w, rows, request.layout), machine, of, request.state, covers)


# The answers of the contract


def refuses(problem: Conv, machine: Machine, layout: Layout) -> Reason | None:
    if blocks_of(layout)[1] == 1:
        return Reason("shape", f"its output has blocks of channels, and {layout} was asked for")
    return type_refusal(problem.dtype, nchwc_kernels()) or refuses_sizes(problem, layout)


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
    channels = min(problem.group_channels, round_up(schedule.channels, blocks_of(layout)[0]))
    return kernel_schedule(kernel, channels, max(1, schedule.k2))


def schedules(problem: Conv, kernel: Kernel, request: Request) -> Iterator[Schedule]:
    """Sets of channels, and blocks of tiles (k2) that stay while panels pass by: all, or those whose input fills a part of L1 or L2."""
    shape, on = Shape.of(problem, kernel, request.layout), request.cpu
    sets = sorted({min(shape.channels, blocks * shape.inner) for blocks in SETS} | {shape.channels})
    each = max(1, problem.height * problem.width * shape.channels * problem.element_bytes // shape.tiles)
    inner, outer = on.levels[0].size_bytes, on.outer.size_bytes
    for tiles in sorted({max(1, min(shape.tiles, kept // each)) for kept in (inner // 2, outer // 4, outer // 2)} | {shape.tiles}):
        yield from (kernel_schedule(kernel, channels, tiles) for channels in sets)


_LISTED = ListedAlgorithm(NAME, nchwc_kernels, schedules, nearest, terms, passed, _unfit)
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
    w, schedule, kernel = unpacked_plan(plan)
    shape = Shape.of(w, kernel, plan.layout)
    lies = f"blocks of {shape.inner} channels" if shape.inner > 1 else "planes"
    inner = f"{kernel.name} on {ceil_div(shape.pixels, shape.per_row)} pixels x {kernel.filters} filters x {schedule.channels} channels"
    nest = described(w, [(kernel, schedule)], plan.layout)
    names = {"panels": f"panels of {kernel.filters} filters"}
    peak = words.peak_of_taps(plan, shape.steps * w.windows)
    return words.describe(plan, f"direct convolution of {lies}, broadcast as they lie", nest, inner, names, peak=peak)
