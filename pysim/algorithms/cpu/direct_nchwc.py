# SPDX-License-Identifier: Apache-2.0
"""Direct convolution in channel blocks (NCHWc): elements of the input are broadcast from where they are, for any stride; nothing is packed
(native/algorithms/direct_nchwc.c).

The kernels are the rows of `native/direct_nchwc.inc`. Their lanes hold a block of filters. The input has blocks of as many channels,
or is NCHW (an image of three channels); the output has blocks. NCHW of bf16 is float32: rows are copied as blocks of two channels, with
their padding.

Worked number: 128 channels of 7x7 are 8 blocks of 49 pixels x 16 channels. A vector holds all filters of one pixel; a vector along a row of
7 would leave 9 of 16 lanes empty.

A tile has P pixels x F vectors of filters. A panel is the filters of a tile, a set a range of input channels. The cycles, from the
machine's numbers alone:

kernel  Per channel and tap of a tile: max(P F / fma rate, F / load rate + (P + F) / broadcast rate, fma latency). Each input element
        is broadcast for F multiply-adds; each filter vector is loaded for P and prefetched. A broadcast may be faster than a vector load
        (Zen 4: 0.50 cycles instead of 1.00 for 64 bytes). Of bf16 all of that serves two channels. Rows of outputs are divided into tiles
        of equal size, give or take a pixel.
        A last panel of fewer vectors is computed by the row of that many. Kernel rows and taps in the padding are left out; taps that
        some pixels of a tile need cost those pixels only. Each run of consecutive input elements costs RUN_CYCLES more, BLOCK_CYCLES
        where a 1x1 kernel has constant places (strides up to FARTHEST, from blocks, vectors of up to DENSE_BYTES). Tiles that leave no
        register free cost SPILL_CYCLES more.
store   P F vectors are stored once per set, and loaded again in every set after the first.
pack    Of bf16 in NCHW, PAIR_CYCLES per column of two channels that a block of tiles copies, COPIED_ROW_CYCLES per row of it.
call    ACCUMULATOR_CYCLES per accumulator of a tile and set, and call_cycles per call: of up to RUN_TILES neighbouring tiles, or of one
        at a side of a padded image that reaches further into the padding than a pixel (of an NCHW input: at all). Those take one call
        more per tap that at least two pixels (of an NCHW input: one) have in the padding, and one to clear the accumulators.

Each tile prefetches the output lines of the tile TILES_AHEAD later, so the first ones of a block wait for theirs, a latency each (1x1, 64
to 256 channels of 56x56 in blocks of 10 and of 85 tiles: 1,233 and 1,166 us; three more layers, Zen 3).

Transfers overlap with all compute but loops whose loads take longer than their multiply-adds, since lines that come into L1 compete with
those loads. On 213 random layers (Zen 4, lab/benchmarks/regret.py) transfers cost all of their time beside tiles of 12 x 8 on AVX2, with 7
cycles of loads for 6 of multiply-adds, and 0 to 0.27 of it beside all others (least squares).

Pixels of blocks are whole lines: a strided 1x1 kernel reads only the lines of its own pixels.

Worked number: 64 channels of 56x56 to 64 filters, 3x3, padding 1, by tiles of 14 x 2 x 16: 4 tiles per row, 2 panels. Along each axis 166
of 168 taps are in the image. 2 x 4 x 64 x 166^2 / 56 iterations of 14 cycles are 3.5 million; 231 MFLOP at 64 per cycle take 3.6.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache

import msgspec
import numpy as np

from pysim.algorithms.interface import Nests, Prepared, direct_sum
from pysim.cachemodel.cpu import nest_text
from pysim.cachemodel.cpu.cost import Pass, latencies, served, traffic_of, write_allocate_cycles
from pysim.cachemodel.cpu.direct_schedules import ListedAlgorithm, Rows, Sizes, round_up, row_of, type_refusal, unpacked_plan
from pysim.cachemodel.cpu.nest import PANEL_ALIGN, ceil_div, live_taps, nest_of, panel_bytes, used_taps
from pysim.cachemodel.cpu.reuse.loops import Array, Extent, Loop, LoopNest, Operand
from pysim.cachemodel.cpu.threads import Part, parts_of_each, rows_of
from pysim.machine.cpu import Machine
from pysim.problem.conv import Conv
from pysim.record.contract import Contract
from pysim.record.cost import Reason
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request, blocks_of
from pysim.record.schedule import Schedule
from pysim.registry.cpu import Kernel, nchwc_kernels

NAME = "direct_nchwc"
COMPUTES = Conv
tolerance = direct_sum


def contract(problem: Conv, schedule: Schedule) -> Contract | None:
    """Sums run along blocks of channels, then taps, then the channels of a block; only one tap and one set have the order of others."""
    alike = problem.taps == 1 and not problem.padded and schedule.channels == problem.group_channels
    return Contract("chain", schedule.channels) if alike else None


SET_BLOCKS = (1, 4, 8, 16, 32)  # channel blocks per set; also all of them

# To start and end a tile, for each accumulator: 28 of AVX-512 take 40 cycles (213 random layers on a Zen 4: 20 to 60; 238 schedules of 22
# layers on a Zen 5: 85), 12 of AVX2 15 to 20 (1x1 layers of 16 to 440 channels on a Zen 3)
ACCUMULATOR_CYCLES = 1.4
RUN_TILES = 8  # of native/algorithms/direct_nchwc.c
RUN_CYCLES = 8  # to start a run of consecutive input elements (Zen 5: 256 -> 128 channels 1x1 from NCHW, runs of one element)
DENSE_BYTES, FARTHEST = 32, 2  # vectors and strides of 1x1 kernels for which native/templates/direct_nchwc.c has constant places
BLOCK_CYCLES = 2.5  # tiles of 6 x 16 take 6.4 cycles a channel, six of them multiply-adds, where other loops take 7.2 (Zen 3, AVX2)
# Of a tile whose accumulators, filters and one element fill the 16 registers of AVX2, 4 x 24: GCC keeps some in memory (Zen 3: 0.3 to 0.8
# cycles a channel and tap on nine 1x1 layers)
SPILL_REGISTERS, SPILL_CYCLES = 16, 0.6
LINE, LINE_CYCLES = 64, 12  # of native/algorithms/direct_nchwc.c: cycles of a line from another core's cache or a shared one
# Of copied rows, blocks of PAIR channels (native/algorithms/direct_nchwc.c): 2 and 4 channels of 224x224 and 2 of 512x49 take 11, 24 and
# 12 us (Zen 4)
PAIR, PAIR_CYCLES, COPIED_ROW_CYCLES = 2, 0.6, 40
TILES_AHEAD = 2  # of native/templates/direct_nchwc.c: tiles whose output lines are prefetched; the first ones of a block are not


def _seen(w: Conv, layout: Layout) -> Conv:
    """The convolution that kernels compute: of copied rows with whole pairs of channels, and without padding beside them."""
    if w.dtype != "bf16" or blocks_of(layout)[0] > 1:
        return w
    columns, channels = w.pad_left + w.width + w.pad_right, w.groups * round_up(w.group_channels, PAIR)
    return msgspec.structs.replace(w, channels=channels, width=columns, pad_left=0, pad_right=0)


class Shape(msgspec.Struct, frozen=True):
    """A convolution as a kernel sees it, per group: `rows` of outputs x `pixels`; a pointwise convolution has a single row."""

    w: Conv
    rows: int
    pixels: int
    channels: int
    inner: int  # channels in a block of what kernels read; 1: NCHW
    run: int  # neighbouring elements of the input at a tap, or of all taps of a row
    vectors: int  # of filters
    panels: int
    per_row: int  # tiles

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, w: Conv, kernel: Kernel, layout: Layout) -> "Shape":
        rows, pixels = (1, w.windows) if w.pointwise else (w.out_h, w.out_w)
        read = blocks_of(layout)[0]
        inner = PAIR if read == 1 and w.dtype == "bf16" else read
        run = inner * (w.kernel_w if read == 1 and w.dilation_w == 1 else 1)
        vectors = ceil_div(w.group_filters, kernel.lane_filters)
        panels = ceil_div(vectors, kernel.filters // kernel.lane_filters)
        return cls(w, rows, pixels, w.group_channels, inner, run, vectors, panels, ceil_div(pixels, kernel.windows))

    @property
    def tiles(self) -> int:
        return self.rows * self.per_row

    @property
    def steps(self) -> float:
        """Average taps of a window that are in the image."""
        rows, columns = live_taps(self.w)
        return rows * columns / self.w.windows


def terms(w: Conv, rows: Rows, machine: Machine, layout: Layout) -> tuple[float, Array, Array, Array]:
    """kernel, call, store, pack."""
    (kernel,) = rows.kernels
    given, w = w, _seen(w, layout)
    cycles, _, call, store, load = (w.batch * w.groups * each for each in _of_set(Shape.of(w, kernel, layout), kernel, machine))
    sets = np.ceil(w.group_channels / rows.channels)
    return cycles, call * sets, store * sets + load * (sets - 1), _copying(given, w, Shape.of(w, kernel, layout), rows)


def _copying(given: Conv, w: Conv, shape: Shape, rows: Rows) -> Array:
    """Cycles in which blocks of tiles copy the rows that they read."""
    if w is given:
        return np.zeros(len(rows.k2))
    block = np.minimum(rows.k2, shape.tiles)
    reach = (w.kernel_h - 1) * w.dilation_h + 1 - w.stride_h  # rows that a block reads beyond those of its outputs
    of_block = np.minimum(w.height, block / shape.per_row * w.stride_h + reach)
    each = w.width * PAIR_CYCLES + COPIED_ROW_CYCLES
    copied: Array = w.batch * w.groups * np.ceil(shape.tiles / block) * of_block * (w.group_channels // PAIR) * each
    return copied


def least_cycles_of(w: Conv, kernel: Kernel, machine: Machine, layout: Layout) -> float:
    """A lower bound on the schedules of a kernel: all channels in one set, no transfers."""
    w = _seen(w, layout)
    cycles, _, call, store, _ = _of_set(Shape.of(w, kernel, layout), kernel, machine)
    return w.batch * w.groups * (cycles + call + store)


@lru_cache(maxsize=64)
def _of_set(shape: Shape, kernel: Kernel, machine: Machine) -> tuple[float, float, float, float, float]:
    """Cycles per image and group: (kernel, its part that overlaps with no transfer, call of a set, store of a set, reload of a later
    set)."""
    unit, w = machine.unit_of(kernel.target), shape.w
    cycles = loading = 0.0
    for row, count in rows_of_panels(w, kernel):
        of_rows, of_loads = _of_panel(msgspec.structs.replace(shape, per_row=ceil_div(shape.pixels, row.windows)), row, machine)
        cycles, loading = cycles + count * shape.channels * of_rows, loading + count * shape.channels * of_loads
    behind = (w.out_w - 1) * w.stride_w + w.dilation_w * (w.kernel_w - 1) + 1 - w.pad_left - w.width  # padded columns at the end
    skipped = 0 if shape.inner == 1 and shape.run > 1 else w.stride_w  # columns of padding that the kernel skips
    reaching = [min(w.kernel_w, ceil_div(pad - skipped, w.dilation_w)) for pad in (w.pad_left, behind) if pad > skipped]
    sides = sum(reaching) + min(len(reaching), shape.per_row)
    apart = min(len(reaching), shape.per_row)  # tiles of a row with calls of their own
    called = shape.rows * (ceil_div(shape.per_row - apart, RUN_TILES) + apart + sides)
    stored, accumulators = w.windows * shape.vectors, ceil_div(shape.pixels, shape.per_row) * shape.vectors  # of a tile of all panels
    return (
        cycles,
        loading,
        shape.panels * called * machine.core.call_cycles.value + (shape.tiles + shape.rows * sides) * accumulators * ACCUMULATOR_CYCLES,
        stored / unit.stores_per_cycle.value,
        stored / unit.loads_per_cycle.value,
    )


def rows_of_panels(w: Conv, kernel: Kernel) -> list[tuple[Kernel, int]]:
    """The rows of the registry that compute the panels of a group, and how many: a last panel of fewer vectors has the row of that many."""
    whole, rest = divmod(w.group_filters, kernel.filters)
    alike = (one for one in nchwc_kernels() if (one.target, one.dtype, one.filters) == (kernel.target, kernel.dtype, rest))
    return [(kernel, whole), *((one, 1) for one in alike)]


def _of_panel(shape: Shape, kernel: Kernel, machine: Machine) -> tuple[float, float]:
    """Cycles of a panel per channel: (all, the part that overlaps with no transfer)."""
    unit, w, f = machine.unit_of(kernel.target), shape.w, kernel.filters // kernel.lane_filters
    is_dense = w.taps == 1 and w.stride_w <= FARTHEST and shape.inner > 1 and unit.vector_bytes <= DENSE_BYTES
    start, depth = (BLOCK_CYCLES if is_dense else RUN_CYCLES) / shape.run, kernel.group
    if kernel.target == "portable":  # plain C: the rate includes the loop overhead
        each = shape.pixels * f * kernel.lane_filters / unit.rate(w.dtype) + shape.per_row * RUN_CYCLES / shape.run
        return shape.rows * shape.steps * each, 0.0
    of_rows = loading = 0.0
    broadcasts = machine.broadcasts_per_cycle(unit)
    for pixels, count in _pixels(shape):
        computing = max(pixels * f / unit.rate(w.dtype), unit.fma_latency_cycles.value) / depth
        loads = (f / unit.loads_per_cycle.value + (pixels + f) / broadcasts) / depth
        spills = SPILL_CYCLES * (unit.vector_bytes <= DENSE_BYTES and pixels * f + f + 1 >= SPILL_REGISTERS)
        of_rows += count * (max(computing, loads) + start + spills)
        loading += count * loads * (loads > computing)
    return of_rows, loading


@lru_cache(maxsize=64)
def _pixels(shape: Shape) -> tuple[tuple[int, int], ...]:
    """(pixels of a tile for which a tap is in the image, number of such tiles, taps and kernel rows)."""
    w, (small, more) = shape.w, divmod(shape.pixels, shape.per_row)
    if w.pointwise:
        return (small, shape.per_row - more), (small + 1, more)
    found, (alive, _) = Counter[int](), live_taps(w)
    limits = [(max(0, -(at // w.stride_w)), (w.width - 1 - at) // w.stride_w + 1) for at in w.columns.taps]
    lowest, highest, tiles = max(first for first, _ in limits), min(last for _, last in limits), range(shape.per_row)

    def begin(tile: int) -> int:
        return tile * small + min(tile, more)

    # tiles between these have every tap in the image for all their pixels; there are few others, however wide the image is
    inside = bisect_left(tiles, lowest, key=begin)
    outside = max(inside, bisect_right(tiles, highest, key=lambda tile: begin(tile + 1)))
    larger = max(0, min(outside, more) - inside)
    for size, count in ((small + 1, larger), (small, outside - inside - larger)):
        if count and size:
            found[size] += alive * count * len(limits)
    for tile in (*tiles[:inside], *tiles[outside:]):
        for low, high in limits:
            first, last = max(begin(tile), low), min(begin(tile + 1), high)
            if first < last:
                found[last - first] += alive
    return tuple(found.items())


def described(w: Conv, rows: Rows, layout: Layout) -> LoopNest:
    """The loop nest of native/algorithms/direct_nchwc.c."""
    size, shapes = w.element_bytes, {kernel: Shape.of(w, kernel, layout) for kernel in rows.kernels}
    shape = next(iter(shapes.values()))  # all kernels have the same, except for panels and tiles
    tiles, panels, width = rows.columns(lambda kernel: (shapes[kernel].tiles, shapes[kernel].panels, kernel.filters))
    channels, block = rows.channels, np.minimum(rows.k2, tiles)
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
    read = _read(shape, size, tiles)
    outputs, of_panel = w.windows * size, width * taps * size
    operands = (
        Operand("input", {"images": images, "groups": groups, "channels": deep, "tiles": read}, "tiles"),
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
    return LoopNest(loops, operands, total, block.size)


def _read(shape: Shape, size: int, tiles: Array) -> Extent:
    """Bytes of a channel that tiles read: one the columns of its pixels in each row of the kernel, several that share rows whole ones."""
    nest = nest_of(shape.w)
    live = live_taps(nest)[0]
    row = float((min(nest.width, nest.out_w * nest.kernel_w) if shape.inner > 1 else nest.width) * size)
    plane, halo = nest.touched_h * row, max(0, nest.kernel_h - nest.stride_h) * row
    beside = max(0, (nest.kernel_w - 1) * nest.dilation_w + 1 - nest.stride_w) * size  # columns that tiles of one row share
    edges, others = (tiles - shape.rows) * live / shape.rows * beside, np.maximum(tiles - 1, 1)
    again = max(0, live - nest.touched_h) * row / np.maximum(others, shape.rows - 1) + edges / others
    return Extent(plane / tiles, plane, halo, (live * row + edges) / tiles, again)


def passed(w: Conv, rows: Rows, of: Mapping[str, Array], machine: Machine, request: Request) -> Pass:
    """Costs of schedules from their in-core terms, on one core."""
    w = _seen(w, request.layout)

    def covered(kernel: Kernel) -> Iterator[float]:
        cycles, loading, *_ = _of_set(Shape.of(w, kernel, request.layout), kernel, machine)
        yield 1 - loading / cycles if cycles else 0.0  # 0 cycles if all taps are in the padding

    (covers,) = rows.columns(covered)
    nest = described(w, rows, request.layout)
    moved = traffic_of(nest, nest.misses(machine.levels, request.state, sum(of.values())))
    stalls = write_allocate_cycles(machine, moved) + _waits(w, rows, machine, request.layout, served(moved[:, 1::2].sum(axis=1)))
    return Pass(machine, of, nest.names, moved, covers, stalls)


def _waits(w: Conv, rows: Rows, machine: Machine, layout: Layout, written: Array) -> Array:
    """Cycles of each supplier in which the first tiles of each block of tiles, panel and set wait for lines that they write. `written`:
    bytes of all such lines."""
    shapes = {kernel: Shape.of(w, kernel, layout) for kernel in rows.kernels}
    (tiles,) = rows.columns(lambda kernel: (shapes[kernel].tiles,))
    first = np.minimum(TILES_AHEAD * np.ceil(tiles / rows.k2) / tiles, 1.0)
    waits: Array = written * first / machine.line_bytes * latencies(machine)[:, None]
    return waits


# The interface of an algorithm


def refuses(problem: Conv, machine: Machine, layout: Layout) -> Reason | None:
    if blocks_of(layout)[1] == 1:
        return Reason("shape", f"its output is in channel blocks, not {layout}")
    return type_refusal(problem.dtype, nchwc_kernels()) or refuses_sizes(problem, layout)


def refuses_sizes(problem: Conv, layout: Layout) -> Reason | None:
    """Why channels or filters of a group are not whole blocks."""
    block, out = blocks_of(layout)
    for what, count, size in (("channels", problem.channels, block), ("filters", problem.filters, out)):
        if count // problem.groups % size:
            each = f"{count // problem.groups} {what}{' of a group' if problem.groups > 1 else ''}"
            return Reason("size", f"{each} are not a multiple of {size}, the block of {layout}")
    return None


def _unfit(problem: Conv, kernel: Kernel, layout: Layout) -> Reason | None:
    read, written = blocks_of(layout)
    if kernel.lane_filters != written:
        return Reason("size", f"its blocks have {kernel.lane_filters} channels, those of {layout} do not")
    if problem.dtype != "bf16":
        return None
    if read == 1:
        return Reason("shape", "of bf16 kernels of one tap and stride 1 take blocks") if problem.pointwise else None
    columns = problem.columns
    behind = (columns.out - 1) * columns.stride + columns.extent - columns.before - columns.size
    if max(columns.before, behind) > columns.stride:  # these sums are stored between calls, and would be rounded
        return Reason("shape", "of bf16 in blocks it takes no more columns of padding than the stride")
    return None


def nearest(problem: Conv, kernel: Kernel, schedule: Schedule, layout: Layout) -> Sizes:
    """The nearest legal sizes: whole blocks of channels, or all. Sums of bf16 have one set, since they are rounded once."""
    channels = round_up(schedule.channels, blocks_of(layout)[0])
    return problem.group_channels if problem.dtype == "bf16" else min(problem.group_channels, channels), max(1, schedule.k2)


def schedules(problem: Conv, kernel: Kernel, request: Request) -> list[Sizes]:
    """Sets of channels, and blocks of tiles (k2) that are reused by all panels: those whose input fills a part of L1 or L2, and all."""
    shape, on = Shape.of(problem, kernel, request.layout), request.cpu
    several = SET_BLOCKS if problem.dtype != "bf16" else ()
    sets = sorted({min(shape.channels, blocks * shape.inner) for blocks in several} | {shape.channels})
    each = max(1, problem.height * problem.width * shape.channels * problem.element_bytes // shape.tiles)
    inner, outer = on.levels[0].size_bytes, on.outer.size_bytes
    blocks = sorted({max(1, min(shape.tiles, kept // each)) for kept in (inner // 2, outer // 4, outer // 2)} | {shape.tiles})
    return [(channels, tiles) for tiles in blocks for channels in sets]


_LISTED = ListedAlgorithm(NAME, nchwc_kernels, schedules, nearest, terms, passed, _unfit, latencies=True)
least_cycles, candidates, cost = _LISTED.least_cycles, _LISTED.candidates, _LISTED.cost


def prepare(problem: Conv, schedule: Schedule, layout: Layout) -> Prepared:
    seen = _seen(problem, layout)
    if seen is problem:
        return Prepared("packed filters", panel_bytes(nest_of(problem), schedule))
    whole = msgspec.structs.replace(schedule, channels=seen.group_channels)
    return Prepared("packed filters", panel_bytes(nest_of(seen), whole) + PANEL_ALIGN)  # and whether weights are not finite


def workspace_bytes(problem: Conv, schedule: Schedule, layout: Layout) -> int:
    seen = _seen(problem, layout)
    if seen is problem:
        return PANEL_ALIGN  # unused
    shape = Shape.of(seen, row_of(schedule), layout)
    out = min(shape.rows, (min(schedule.k2, shape.tiles) + shape.per_row - 2) // shape.per_row + 1)
    rows = min(seen.height, (out - 1) * seen.stride_h + (seen.kernel_h - 1) * seen.dilation_h + 1)
    pair = PAIR * problem.element_bytes
    copied = round_up(seen.group_channels // PAIR * rows * seen.width * pair, PANEL_ALIGN)
    return copied + PAIR * round_up(problem.width * problem.element_bytes, PANEL_ALIGN) + PANEL_ALIGN


def division(shape: Shape, kernel: Kernel, schedule: Schedule, parts: int) -> tuple[int, int]:
    """Blocks of tiles of an image, and parts of its panels: `divide` of native/algorithms/direct_nchwc.c."""
    w, fewest = shape.w, ceil_div(shape.tiles, min(schedule.k2, shape.tiles))
    tile = ceil_div(shape.pixels, shape.per_row) * (kernel.filters // kernel.lane_filters) * w.group_channels * w.taps // 2
    image = w.group_channels * w.height * w.width * w.element_bytes // LINE
    filters = shape.panels * kernel.filters * w.group_channels * w.taps * w.element_bytes // LINE

    def work(of_panels: int) -> int:
        of_tiles = min(parts // of_panels, shape.tiles)
        multiplied = ceil_div(shape.tiles, of_tiles) * ceil_div(shape.panels, of_panels) * tile
        return multiplied + (image // of_tiles + filters // of_panels) * LINE_CYCLES

    of_panels = min(range(1, min(parts, shape.panels) + 1), key=work)
    of_tiles = min(parts // of_panels, shape.tiles)
    return min(shape.tiles, ceil_div(fewest, of_tiles) * of_tiles), of_panels


def largest_part(problem: Conv, schedule: Schedule, threads: int) -> Part:
    """Threads divide the images and, if these are few, the blocks of tiles and the panels of each."""
    kernel = row_of(schedule)
    shape, images = Shape.of(problem, kernel, "nchw"), problem.batch * problem.groups
    blocks, panel_parts = division(shape, kernel, schedule, parts_of_each(images, threads))
    times, panels, block = (
        ceil_div(images * blocks * panel_parts, threads),
        ceil_div(shape.panels, panel_parts),
        ceil_div(shape.tiles, blocks),
    )
    rows = min(problem.out_h, ceil_div(problem.out_h * block, shape.tiles))
    filters = min(problem.group_filters, panels * schedule.filters)
    part = rows_of(problem, times, rows, filters)
    own = Shape.of(part, kernel, "nchw").tiles
    return Part(part, msgspec.structs.replace(schedule, k2=min(block, own)), block / own)


def describe(plan: Plan) -> Description:
    w, schedule, kernel = unpacked_plan(plan)
    w = _seen(w, plan.layout)
    shape = Shape.of(w, kernel, plan.layout)
    layout = f"blocks of {shape.inner} channels" if shape.inner > 1 else "NCHW input"
    inner = f"{kernel.name} on {ceil_div(shape.pixels, shape.per_row)} pixels x {kernel.filters} filters x {schedule.channels} channels"
    (nest,), names, _ = nests(plan)
    peak = nest_text.peak_of_taps(plan, shape.steps * w.windows)
    return nest_text.describe(plan, f"direct convolution of {layout}, elements broadcast in place", nest, inner, names, peak=peak)


def nests(plan: Plan) -> Nests:
    w, schedule, kernel = unpacked_plan(plan)
    w = _seen(w, plan.layout)
    return Nests((described(w, Rows.alone(kernel, schedule), plan.layout),), {"panels": f"panels of {kernel.filters} filters"})
