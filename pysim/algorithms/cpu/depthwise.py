# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolutions and those of groups of few channels, from operands as they lie, planes or blocks of channels: no input is packed.

The kernels are the rows of `native/conv/depthwise.inc`, each with one schedule. Those of form
`blocks` have their filters prepared, [block][tap][group].

Worked number: conv:g960ic960ih7oc960kh3ph1 has rows of 7 outputs. Of 16 lanes `rows` uses 7, `planes` all, for 8 blocks of 16x16 elements
transposed per 16 groups.

From the machine's numbers alone they cost

    compute = tiles + store + call            cycles, for every image and group; transfer and what is hidden as in `cost`

rows    A tile is some rows of outputs x one vector of columns x some filters. Where kernel rows share loads (3x3, 5x5, 7x7 of strides 1 and
        2), ROWS rows of outputs load (ROWS - 1) stride + R rows of the input for each tap of a row, else R ROWS. Stride 2 loads two vectors
        for two taps and parts them by a shuffle each, larger ones gather lane by lane; AVX-512 makes the taps of 3x3 from neighbouring
        lanes. AVX2 parts by PARTING operations, a shuffle within halves of vectors and a permute of quarters across them. Each tap of a
        tile loads R weights a filter. Kernel rows that lie in padding are left out. Where rows share no loads, every tap of a kernel
        row is a step of its own, with masks of its own, that begins anew as a tile does.
        Plain C goes over a row of up to `windows` outputs for each tap, TAP_CYCLES to begin: it loads sums and inputs and stores sums, 16
        bytes at a time, or an element every half cycle where strides part them; its multiply-adds are elements.
planes  Lanes hold groups. Blocks of L x L elements of input, weights and outputs are transposed, before and after: L^2 / P loads of P
        elements, 16 bytes, at the rate of the machine's narrowest vectors, all but one of each vector's merged into it (MERGE), L log2(P)
        shuffles and L stores. A tile of up to 8 outputs of a row loads its columns once for all taps (3, 5, 7 of strides 1 and 2), or a
        vector for each multiply-add.
        Tiles last max((multiply-adds + shuffles) / fma rate, loads / load rate, chains): on wide vectors they share ports; an accumulator
        waits fma_latency for each of its own multiply-adds, which fewer rows than latency x rate do not cover. Before its first
        multiply-add ends a tile, or what begins anew in it, waits for a load from L1 and for that multiply-add.
blocks  The tiles of planes without transpositions. Taps that lie in padding are left out; a row of tiles takes ROW_CYCLES to begin.
store   Rows begin anywhere in a line, but those of blocks: a vector crosses into the next in (vector - element) / line of all places, which
        is one more access.
call    call_cycles for each call of a block of L groups, SHORT_CALL of them of a row of tiles.

What crosses between levels follows from the description of the loops (`described`, `loops`). Whole rows of outputs are written one after
another, so prefetchers bring their lines as they did for the probe of the write rate: they cost that rate and wait for nothing else. `rows`
overlaps no transfer with computing: its tiles load a few vectors of each input row when they need them.

Worked number: 144 groups of 56x56, 3x3, stride 1, 16 lanes, 8 rows: 7 x 4 tiles a group, each 72 multiply-adds and 20 shuffles beside 29
loads. At 2 multiply-adds a cycle that is 46 cycles, of which chains of 9 need 36, and 9 to begin; 8 vectors are stored.
"""

from collections.abc import Sequence
from math import log2, prod
from typing import NamedTuple

import numpy as np

from pysim.algorithms.contract import Prepared, direct_sum
from pysim.cachemodel.cpu import words
from pysim.cachemodel.cpu.cost import SHORT_CALL, Pass, traffic_of
from pysim.cachemodel.cpu.listed import ListedAlgorithm, Rows, Terms, kernel_schedule, row_of, type_refusal, unpacked_plan
from pysim.cachemodel.cpu.loops import Array, Extent, Loop, LoopNest, Operand
from pysim.cachemodel.cpu.nest import PANEL_ALIGN, ceil_div, live_taps
from pysim.cachemodel.cpu.threads import Part, rows_of
from pysim.machine.cpu import Machine, Unit
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SIZES
from pysim.record.cost import Reason
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request, blocks_of
from pysim.record.schedule import Schedule
from pysim.registry.cpu import Kernel, direct_kernels

NAME = "depthwise"
COMPUTES = Conv
tolerance = direct_sum
MOST_CHANNELS = 16  # of a group: more are worth packing, which these kernels cannot

ROWS, PLANES, BLOCKS = "rows", "planes", "blocks"  # forms of kernels
COVERS = {ROWS: 0.0, PLANES: 1.0, BLOCKS: 1.0}  # share of computing that transfers hide behind
ROW_CYCLES = 25  # to begin a row of tiles of blocks (Zen 5: 14 depthwise layers of MobileNet-v2 and EfficientNet-B0, hot)
TAP_CYCLES = 16  # to begin a row of outputs for one tap in plain C (Zen 5, gcc 12: 3x3 on 7x7 to 112x112, both strides and types)
SHARING = (3, 5, 7)  # edges of kernels whose rows share loads (native/x86/depthwise.h)
PARTING = 3  # of two vectors by every second element, in AVX2: shuffle, and a permute of two (Agner Fog's tables, Zen 2 to 5)
PART_BYTES = 16  # of a row that is to be transposed, loaded at once
# Multiply-adds that a merge into a vector costs. It is a blend, which any vector port executes; on a Zen 4 half of the ports multiply.
# With it the AVX-512 `planes` plans of five recorded machines are predicted 4 to 8 % closer.
MERGE = 0.5


class Work(NamedTuple):
    """Of one group (planes: of one block of groups), in instructions of whole vectors."""

    products: float
    shuffles: float
    loads: float
    stores: float
    tiles: float = 0.0
    chain: float = 0.0  # multiply-adds of one accumulator, one after another
    parts: float = 0.0  # loads of 16 bytes, for transposition
    merges: float = 0.0  # of these parts into vectors
    transposing: float = 0.0  # shuffles
    calls: float = 1.0
    aligned: bool = False  # stores cross into no other line
    rows: float = 0.0  # of tiles, of blocks
    taps: float = 0.0  # rows of outputs for a tap, of plain C
    begins: float = 0.0  # of loads and multiply-adds within a tile

    def cycles(self, unit: Unit, machine: Machine, dtype: str) -> tuple[float, float]:
        """(tiles, store)."""
        store = 1 / unit.stores_per_cycle.value if self.aligned else unit.store_cycles(SIZES[dtype], machine.line_bytes)
        latency, rate = unit.fma_latency_cycles.value, unit.rate(dtype)
        busy = (self.products + self.shuffles) / rate
        chains = self.tiles * self.chain * latency
        tiles = max(busy, self.loads / unit.loads_per_cycle.value, chains)
        tiles += (self.tiles + self.begins) * (machine.levels[0].latency_cycles.value + latency)
        narrow = max(one.loads_per_cycle.value for one in machine.core.units)
        tiles += self.rows * ROW_CYCLES + self.taps * TAP_CYCLES
        return tiles + self.parts / narrow + (self.transposing + MERGE * self.merges) / rate, self.stores * store


def shares_rows(w: Conv, kernel: Kernel) -> bool:
    """Whether rows of outputs share loads of rows of the input."""
    square = w.kernel_h == w.kernel_w in SHARING and w.stride_h == w.stride_w and w.dilation_w == 1
    listed = w.stride_w == 1 or (w.stride_w == 2 and w.dilation_h == 1)
    return square and listed and kernel.lane_windows > 1 and (kernel.filters == 1 or w.kernel_h == SHARING[0])


def _loads_of_row(w: Conv, kernel: Kernel, shared: bool) -> tuple[float, float]:
    """(loads, shuffles) that give one row's vectors of all taps."""
    taps, shifts = w.kernel_w, shared and w.kernel_w == SHARING[0] and kernel.filters == 1 and kernel.target == "avx512"
    if w.stride_w == 1:
        return (2.0, 2.0) if shifts else (taps, 0.0)
    if w.stride_w > 2 or w.dilation_w > 1:
        return taps * kernel.lane_windows, taps
    return (3.0, 3.0) if shifts else (2 * ceil_div(taps, 2), taps * (PARTING if kernel.target == "avx2" else 1.0))


def rows_work(w: Conv, kernel: Kernel) -> Work:
    """Tiles of `rows`."""
    channels, filters, high = w.group_channels, w.group_filters, kernel.windows // kernel.lane_windows
    if kernel.lane_windows == 1:
        taps = float(filters * channels * live_taps(w)[0] * w.kernel_w)
        steps = taps * (ceil_div(w.out_w, PART_BYTES // w.element_bytes) if w.stride_w == 1 else w.out_w / 2)
        return Work(taps * w.out_w, 0.0, 2 * steps, steps, taps=taps * ceil_div(w.out_w, kernel.windows))
    shared, vectors = shares_rows(w, kernel), ceil_div(w.out_w, kernel.lane_windows)
    phases = w.dilation_h if shared else 1
    tiles = sum(ceil_div(rows, high) for rows in (len(range(phase, w.out_h, phases)) for phase in range(min(phases, w.out_h))))
    alive = live_taps(w)[0] / (w.out_h * w.kernel_h)
    several, single = divmod(filters, kernel.filters)
    blocks = several + single  # of filters, whose tiles load the same rows
    read = w.out_h * w.stride_h + tiles * max(0, w.kernel_h - w.stride_h) if shared else w.out_h * w.kernel_h
    loads, shuffles = _loads_of_row(w, kernel, shared)
    weights = tiles * blocks * w.taps * min(filters, kernel.filters)
    each = vectors * channels
    calls = float(tiles * blocks)
    return Work(
        each * filters * w.out_h * w.taps * alive,
        each * blocks * read * shuffles * alive,
        each * (blocks * read * loads * alive + weights),
        float(vectors * filters * w.out_h),
        calls * vectors,
        float(channels * w.taps),
        calls=calls,
        begins=0.0 if shared else calls * each * w.taps * alive,
    )


def planes_columns(w: Conv) -> int:
    """Columns that are kept of each row of the input, padding among them."""
    return (w.out_w - 1) * w.stride_w + w.dilation_w * (w.kernel_w - 1) + 1


def planes_elements(w: Conv, lanes: int) -> int:
    """Elements of a block of groups: transposed planes, outputs, weights, and what begins them at a whole vector."""
    return lanes * (w.height * planes_columns(w) + w.windows + w.taps + 1)


def planes_work(w: Conv, kernel: Kernel) -> Work:
    """A block of as many groups as there are lanes."""
    lanes, size = kernel.lane_filters, w.element_bytes
    part = PART_BYTES // size
    blocks = sum(ceil_div(count, lanes) for count in (w.height * w.width, w.windows, w.taps))
    products, tiles = live_taps(w)[0] * w.kernel_w * w.out_w, ceil_div(w.out_w, kernel.windows)
    once = w.kernel_w in SHARING and w.stride_w <= 2 and w.dilation_w == 1
    columns = (w.out_w - tiles) * w.stride_w + tiles * w.kernel_w if once else w.kernel_w * w.out_w
    loads = live_taps(w)[0] * (columns + w.kernel_w * tiles)
    parts = blocks * lanes * lanes / part
    return Work(
        float(products),
        0.0,
        float(loads),
        float(blocks * lanes + w.windows),
        float(w.out_h * tiles),
        live_taps(w)[0] / w.out_h * w.kernel_w,
        parts,
        parts - blocks * lanes,
        blocks * lanes * log2(part),
    )


def blocks_work(w: Conv, kernel: Kernel) -> Work:
    """A block of channels."""
    rows, taps = live_taps(w)
    tiles = ceil_div(w.out_w, kernel.windows)
    once = w.kernel_w in SHARING and w.stride_w <= 2 and w.dilation_w == 1
    columns = (w.out_w - tiles) * w.stride_w + tiles * w.kernel_w if once else taps
    return Work(
        float(rows * taps),
        0.0,
        float(rows * (columns + w.kernel_w * tiles)),
        float(w.windows),
        float(w.out_h * tiles),
        rows * taps / w.windows,
        aligned=True,
        rows=float(w.out_h),
    )


def described(w: Conv, rows: Rows) -> LoopNest:
    """The loops of native/conv/depthwise.c, of kernels of one form."""
    kernels = [kernel for kernel, _ in rows]
    return {ROWS: _rows_nest, PLANES: _planes_nest, BLOCKS: _blocks_nest}[kernels[0].form](w, kernels)


def _lanes(kernels: Sequence[Kernel]) -> Array:
    """Groups that they take at once."""
    return np.array([float(kernel.lane_filters) for kernel in kernels])


def _sizes(w: Conv) -> tuple[float, float, float]:
    """Bytes of a group's input, of the weights of a filter, of its outputs."""
    size, channels = w.element_bytes, w.group_channels
    rows = min(w.height, (w.out_h - 1) * w.stride_h + w.dilation_h * (w.kernel_h - 1) + 1)
    return channels * rows * w.width * size, channels * w.taps * size, w.windows * size


def _nest_of_lanes(w: Conv, lanes: Array, operands: Sequence[Operand]) -> LoopNest:
    """Rows of outputs of as many groups as there are lanes."""
    loops = (
        Loop("images", "images", 1, w.batch),
        Loop("blocks of groups", "groups", lanes, np.ceil(w.groups / lanes)),
        Loop("rows", "rows", 1, w.out_h),
    )
    return LoopNest(loops, operands, {"images": w.batch, "groups": w.groups, "rows": w.out_h}, lanes.size)


def _planes_nest(w: Conv, kernels: Sequence[Kernel]) -> LoopNest:
    """Planes of as many groups as there are lanes are transposed, and their outputs back."""
    lanes, (image, weights, out) = _lanes(kernels), _sizes(w)
    images, kept = Extent(1.0, w.batch), lanes * (w.height * planes_columns(w) * w.element_bytes + weights)
    planes, sums = ({"rows": Extent(of / w.out_h, of)} for of in (kept, lanes * out))
    operands = (
        Operand("input", {"images": images, "groups": Extent(image, image * w.groups)}, "blocks of groups"),
        Operand("filters", {"groups": Extent(weights, weights * w.groups)}, "blocks of groups"),
        Operand("packed", planes, "blocks of groups", written=True),
        Operand("packed", planes, "rows"),
        Operand("sums", sums, "rows", written=True),
        Operand("sums", sums, "blocks of groups", after_loops=True),
        Operand("output", {"images": images, "groups": Extent(out, out * w.groups)}, "blocks of groups", after_loops=True, written=True),
    )
    return _nest_of_lanes(w, lanes, operands)


def _blocks_nest(w: Conv, kernels: Sequence[Kernel]) -> LoopNest:
    """Channels lie in blocks of as many groups as there are lanes."""
    lanes, (image, weights, out) = _lanes(kernels), _sizes(w)
    images, groups = Extent(1.0, w.batch), Extent(1.0, w.groups)
    shared = float(max(0, w.kernel_h - w.stride_h) * w.width * w.element_bytes)
    operands = (
        Operand("input", {"images": images, "groups": groups, "rows": Extent(image / w.out_h, image, shared)}, "rows"),
        Operand("filters", {"groups": Extent(weights, weights * w.groups)}, "rows"),
        Operand("output", {"images": images, "groups": groups, "rows": Extent(out / w.out_h, out)}, "rows", written=True),
    )
    return _nest_of_lanes(w, lanes, operands)


def _rows_nest(w: Conv, kernels: Sequence[Kernel]) -> LoopNest:
    """Tiles of some rows of outputs, of some filters of a group."""
    filters, (image, weights, out) = w.group_filters, _sizes(w)
    high, wide = np.array([(max(1, kernel.windows // kernel.lane_windows), kernel.filters) for kernel in kernels], dtype=np.float64).T
    tiles = np.ceil(w.out_h / high)
    loops = (
        Loop("images", "images", 1, w.batch),
        Loop("groups", "groups", 1, w.groups),
        Loop("tiles of rows", "rows", 1, tiles),
        Loop("filters", "filters", wide, np.ceil(filters / wide)),
    )
    images, groups = Extent(1.0, w.batch), Extent(1.0, w.groups)
    shared = max(0, w.kernel_h - w.stride_h) * w.width * w.group_channels * w.element_bytes
    outputs = {"images": images, "groups": groups, "rows": Extent(out / tiles, out), "filters": Extent(1.0, filters)}
    operands = (
        Operand("input", {"images": images, "groups": groups, "rows": Extent(image / tiles, image, float(shared))}, "filters"),
        Operand("filters", {"groups": groups, "filters": Extent(weights, weights * filters)}, "filters"),
        Operand("output", outputs, "filters", written=True),
    )
    return LoopNest(loops, operands, {"images": w.batch, "groups": w.groups, "rows": tiles, "filters": filters}, len(kernels))


def passed(w: Conv, rows: Rows, of: Terms, machine: Machine, request: Request) -> Pass:
    """By schedules of kernels of one form with their terms, on one core."""
    nest = described(w, rows)
    return Pass(machine, of, nest.names, traffic_of(nest, nest.misses(machine.levels, request.state)), COVERS[rows[0][0].form])


def terms(w: Conv, kernel: Kernel, schedule: Schedule, machine: Machine, layout: Layout) -> tuple[float, float, float]:
    """kernel, call, store."""
    work = {ROWS: rows_work, PLANES: planes_work, BLOCKS: blocks_work}[kernel.form](w, kernel)
    calls = w.batch * ceil_div(w.groups, kernel.lane_filters)
    busy, store = work.cycles(machine.unit_of(kernel.target), machine, w.dtype)
    each = machine.core.call_cycles.value * (SHORT_CALL if kernel.form == ROWS else 1.0)
    return calls * busy, calls * work.calls * each, calls * store


# The answers of the contract


def refuses(problem: Conv, machine: Machine, layout: Layout) -> Reason | None:
    block, out = blocks_of(layout)
    if layout not in ("nchw", f"nchw{block}c"):
        return Reason("shape", f"its input and output are both NCHW or both blocks of channels, and {layout.upper()} was asked for")
    if block > 1 and not _is_depthwise(problem):
        return Reason("shape", "of blocks of channels it takes groups of one channel and one filter")
    if problem.groups % out:
        return Reason("size", f"{problem.groups} groups are no whole blocks of {out}; {layout} takes a multiple of {out}")
    if reason := type_refusal(problem.dtype, direct_kernels()):
        return reason
    if problem.groups == 1:
        return Reason("shape", "it takes two groups or more: a dense convolution is worth packing")
    if (channels := problem.group_channels) > MOST_CHANNELS:
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
    return kernel_schedule(kernel, problem.group_channels)


def _by_form() -> list[Kernel]:
    return sorted(direct_kernels(), key=lambda kernel: kernel.form)


def _schedules(problem: Conv, kernel: Kernel, request: Request) -> list[Schedule]:
    return [kernel_schedule(kernel, problem.group_channels)]


_LISTED = ListedAlgorithm(NAME, _by_form, _schedules, _nearest, terms, passed, _unfit)
least_cycles, candidates, cost = _LISTED.least_cycles, _LISTED.candidates, _LISTED.cost


def prepare(problem: Conv, schedule: Schedule, layout: Layout) -> Prepared | None:
    if row_of(schedule).form != BLOCKS:
        return None  # weights are read as they are
    return Prepared("packed filters", problem.filters * problem.taps * problem.element_bytes)


def workspace_bytes(problem: Conv, schedule: Schedule, layout: Layout) -> int:
    """Of `planes` the transposed planes of one block of groups, in whole lines."""
    kernel = row_of(schedule)
    size = planes_elements(problem, kernel.lane_filters) * problem.element_bytes if kernel.form == PLANES else 0
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
    part = rows_of(problem, times, ceil_div(problem.out_h, row_parts), problem.group_filters, least)
    return Part(part, schedule, groups / least, items=times)


def describe(plan: Plan) -> Description:
    w, schedule, kernel = unpacked_plan(plan)
    if kernel.form != ROWS:
        inner = f"{kernel.name}, up to {kernel.windows} columns at once, a group a lane: the kernel's rows that meet the image"
    else:
        shared = "each row of the input is loaded once for all rows of the tile" if shares_rows(w, kernel) else "kernel rows one by one"
        high = kernel.windows // kernel.lane_windows
        inner = f"{kernel.name} on up to {high} rows x {kernel.lane_windows} columns, {w.kernel_h}x{w.kernel_w} taps; {shared}"
    summary = "groups of few channels, operands read as they lie"
    met = prod(live_taps(w)) if kernel.form == BLOCKS else live_taps(w)[0] * w.out_w * w.kernel_w
    return words.describe(plan, summary, described(w, [(kernel, schedule)]), inner, peak=words.peak_of_taps(plan, met))
