# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolutions and other groups of few channels, on operands in place: the input is not packed (native/algorithms/depthwise.c).

The kernels are the rows of `native/depthwise.inc`, each with one schedule. Their forms:

rows    Lanes hold columns of a row of outputs. A tile is some rows of outputs x one vector of columns x some filters. For 3x3, 5x5 and 7x7
        kernels with strides 1 and 2, ROWS rows of outputs share the loads of (ROWS - 1) stride + R input rows; otherwise each tap of a
        kernel row is a loop of its own, with its own masks. Stride 2 loads two vectors for two taps and deinterleaves them by a shuffle
        each (AVX2: `deinterleave_instructions`), larger strides gather lane by lane. AVX-512 makes the taps of 3x3 by shifting lanes.
        Kernel rows in the padding are left out. The slices of a volume's kernel are channels, too. One call computes a row of tiles; at
        the top and bottom of images one of each of as many groups as fit `direct_bytes`. AVX-512's kernel of half vectors wastes fewer
        lanes on short rows. Plain C goes over a row of outputs once per tap.
planes  Lanes hold groups. Input, weights and outputs of L groups are transposed before and after, P columns (16 bytes) at a time: L loads
        of P elements, L - P merges into vectors, P log2(P) shuffles. The transposed planes are stored aligned, outputs in vectors of L
        columns and the last columns of each group in parts of P. A tile of up to 8 outputs of a row loads its columns once for all taps
        (widths 3, 5, 7 and strides 1, 2), or a vector for each multiply-add.
taps    Bytes (s8), groups of one channel: lanes hold outputs in row-major order, 4 taps of a kernel row each. A group's rows are padded
        in the workspace, from which two shuffles make the lanes' taps; sums are rescaled in registers. On AVX2 lanes are two taps.
last    Bytes with channels last: lanes hold groups. 4 kernel rows of a column are interleaved, then multiplied and added at once.
blocks  As planes, on NCHWc operands: no transposition. Taps in the padding are left out. Filters are prepared: [block][tap][group].

The in-core cost, from the machine's numbers alone, for every image and group (transfers and overlap as in `cost`):

    kernel = max((multiply-adds + shuffles) / fma rate, loads / load rate, dependency chains) + starts
             + transposition: max(loads / load rate, shuffles + merges, stores), a shuffle per cycle,
               + BLOCK_CYCLES + TRANSPOSED_TAP_CYCLES taps
    store    vectors of outputs, but those of the transposition. Outputs that are not blocks begin anywhere in a line: a share
             (vector - element) / line of the vectors crosses into the next line, one access more.
    free     rows: max((multiply-adds + shuffles) / fma rate, loads / load rate) - dependency chains. In these cycles accumulators are
             ready before they can issue, so stores, then transfers, of neighbouring tiles go on, too. None are where chains bound a tile.
    call     call_cycles per call of a block of L groups in planes; SHORT_CALL of that per call of rows of tiles, or of a block of blocks

Each accumulator waits fma_latency for each of its multiply-adds, a chain that few rows do not hide. A tile starts with a load from L1 and a
multiply-add that nothing overlaps, and so does each channel of a group: its weights are loaded first. Not so in `blocks`, whose tiles of a
row follow one another without masks.

Whole rows of outputs are written one after another, so prefetchers bring their lines as in the probe of the write rate: they cost that rate
and nothing else. `planes` and `blocks` overlap transfers with all of their computing, `rows` with its free cycles only: its tiles load
a few vectors of each input row when they need them.

Worked numbers: conv:g960ic960ih7oc960kh3ph1 has rows of 7 outputs. `rows` uses 7 of 16 or of 8 lanes, `planes` all of them; for 16
groups it transposes 13 parts of 4 columns of the input, 3 of the weights and 13 of the outputs. One call of `rows` computes 41 groups.
"""

from math import log2, prod
from typing import NamedTuple

import msgspec
import numpy as np

from pysim.algorithms.interface import Nests, Prepared, direct_sum
from pysim.cachemodel.cpu import nest_text
from pysim.cachemodel.cpu.cost import Pass, traffic_of
from pysim.cachemodel.cpu.depthwise_loops import (
    BLOCKS,
    LAST,
    PLANES,
    ROWS,
    TAPS,
    described,
    kept_columns,
    kept_rows,
    last_bytes,
    last_shared,
)
from pysim.cachemodel.cpu.direct_schedules import ListedAlgorithm, Rows, Terms, row_of, type_refusal, unpacked_plan
from pysim.cachemodel.cpu.incore import SHORT_CALL
from pysim.cachemodel.cpu.nest import PANEL_ALIGN, ceil_div, live_taps
from pysim.cachemodel.cpu.threads import Part, rows_of
from pysim.machine.cpu import Machine, Unit
from pysim.problem.conv import DEPTH_FIELDS, Conv
from pysim.problem.dtypes import SIZES
from pysim.record.contract import Contract
from pysim.record.cost import Reason
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request, blocks_of, on_cpu
from pysim.record.schedule import Schedule
from pysim.registry.cpu import Kernel, direct_bytes, direct_kernels

NAME = "depthwise"
QUANTISED = VOLUMES = True
COMPUTES = Conv
tolerance = direct_sum


def contract(problem: Conv, schedule: Schedule) -> Contract | None:
    """A filter's taps, row by row. Form `rows` adds them column by column where kernel rows share loads, unless AVX-512 shifts lanes
    (3x3 of one filter a group)."""
    row = row_of(schedule)
    shared = problem.kernel_h == problem.kernel_w in SHARED_WIDTHS and problem.dilation_w == 1
    shifted = problem.kernel_h == 3 and row.target == "avx512" and problem.group_filters == 1
    return Contract("chain", 1) if problem.group_channels == 1 and (row.form != ROWS or not shared or shifted) else None


MAX_CHANNELS = 16  # of a group: with more, packing is faster

TAP_CYCLES = 16  # to start a row of outputs for one tap in plain C (Zen 5, gcc 12: 3x3 on 7x7 to 112x112, both strides and types)
PART_ROWS = 4  # of a thread, form blocks (native/algorithms/depthwise.c)
BLOCK_CYCLES, TRANSPOSED_TAP_CYCLES = 200.0, 6.0  # ends of loops, and weights (Zen 3: 97 layers of 4x4 to 28x28, 3x3 to 7x7)
SHARED_WIDTHS = (3, 5, 7)  # of kernels whose rows of outputs share loads (native/x86/depthwise.h)
PART_BYTES = 16  # loaded at once for transposition
WIDENED = 0.75  # form blocks of bf16: cycles to widen a loaded column (Zen 4: MobileNet-v2's layers, 0.65 to 0.83)
GATHERS, RESCALES = 2.0, 3.0  # form taps: shuffles beside a multiply-add, operations that rescale a vector (Zen 4: MobileNet-v2)
# On AVX2 (14 layers, Zen 3): operations that rescale a vector; cycles to pad 16 elements, to start a group, to load a weight beyond those
# that registers keep
WORDS_RESCALES, WORDS_PADDED, WORDS_STARTED, WORDS_LOADED, WORDS_KEPT = 11.0, 2.0, 200.0, 1.2, 6


# Form taps with products of 4: cycles to pad a byte, to start a group (Emerald Rapids: MobileNet-v2's layers)
TAPS_PADDED, TAPS_STARTED = 0.28, 140.0
# Form last (vectors of 64 and of 32 bytes, Zen 4: 11 layers of MobileNet-v2 and EfficientNet-B0): cycles to interleave a column's four
# rows, to begin and end a tile of outputs, outputs of one; cycles of a channel. Without products of 4 a multiply-add widens both operands.
LAST_COLUMN, LAST_TILE, LAST_TOGETHER = {64: 13.0, 32: 9.5}, {64: 44.0, 32: 12.0}, {64: 4, 32: 2}
LAST_CHANNEL, LAST_WIDENS = 2.0, 3.0
# Longer of loops whose lengths are no constants (Zen 4: 13 layers of 3x3 with stride 3 or dilation to 11x11, 1.32 to 1.59 times as long)
LAST_ANY = 1.34
# Channels are rounded up to so many; most taps, kernel rows rounded up to 4; outputs of a row whose columns are interleaved together
LAST_CHANNELS, LAST_TAPS, LAST_OUTPUTS = 64, 512, 16


class Work(NamedTuple):
    """Vector instructions of one group; in the forms planes and blocks of one block of groups."""

    multiply_adds: float
    shuffles: float
    loads: float
    stores: float
    tiles: float = 0.0
    chain: float = 0.0  # multiply-adds of one accumulator in a tile
    parts: float = 0.0  # loads and stores of PART_BYTES, for transposition
    merges: float = 0.0  # of parts into vectors
    transposing: float = 0.0  # shuffles of the transposition
    calls: float = 1.0
    aligned_stores: float = 0.0  # that cross no line
    rows: float = 0.0  # of tiles (blocks)
    taps: float = 0.0  # rows of outputs, once per tap (plain C)
    restarts: float = 0.0  # loops within a tile, after its first, that start with an exposed load and multiply-add
    deinterleaved: float = 0.0  # vectors (AVX2)
    started: float = 0.0  # cycles that a block takes beside all else (planes)

    def cycles(self, unit: Unit, machine: Machine, dtype: str) -> tuple[float, float]:
        """Cycles of (kernel, store)."""
        store = self.stores * unit.store_cycles(SIZES[dtype], machine.line_bytes) + self.aligned_stores / unit.stores_per_cycle.value
        issue, chains = self._issue(unit, machine, dtype)
        starts = self.restarts if self.rows else self.tiles + self.restarts
        tiles = max(issue, chains) + starts * (machine.levels[0].latency_cycles.value + unit.fma_latency_cycles.value)
        narrow = max(one.loads_per_cycle.value for one in machine.core.units)
        tiles += self.rows * machine.core.tile_row_start + self.taps * TAP_CYCLES
        if self.transposing:
            return tiles + self.started + max(self.parts / narrow, self.transposing + self.merges, store), 0.0
        return tiles, store

    def free_cycles(self, unit: Unit, machine: Machine, dtype: str) -> float:
        """Cycles in which stores and transfers of the neighbouring tiles go on: those by which issuing exceeds the dependency chains."""
        issue, chains = self._issue(unit, machine, dtype)
        return max(0.0, issue - chains)

    def _issue(self, unit: Unit, machine: Machine, dtype: str) -> tuple[float, float]:
        """Cycles in which all tiles issue their instructions, and of their dependency chains."""
        shuffles = self.shuffles + self.deinterleaved * machine.core.deinterleaving
        issue = max((self.multiply_adds + shuffles) / unit.rate(dtype), self.loads / unit.loads_per_cycle.value)
        return issue, self.tiles * self.chain * unit.fma_latency_cycles.value


def shares_input_rows(w: Conv, kernel: Kernel) -> bool:
    """Whether the rows of outputs of a tile share loads of input rows."""
    square = w.kernel_h == w.kernel_w in SHARED_WIDTHS and w.stride_h == w.stride_w and w.dilation_w == 1
    listed = w.stride_w == 1 or (w.stride_w == 2 and w.dilation_h == 1)
    return square and listed and kernel.lane_windows > 1 and (kernel.filters == 1 or w.kernel_h == SHARED_WIDTHS[0])


def _unit(machine: Machine, kernel: Kernel) -> Unit:
    """The unit that a kernel's vectors run on. Half vectors of AVX-512 run at the rates of AVX2."""
    own, width = machine.unit_of(kernel.target), kernel.lane_windows * kernel.lane_filters * SIZES[kernel.dtype]
    if kernel.form in (TAPS, LAST):
        return own
    return next((one for one in machine.core.units if kernel.lane_windows > 1 and one.vector_bytes == width), own)


def _calls(w: Conv, high: int) -> float:
    """Calls of a group's tiles of up to `high` rows of outputs, for one block of filters and one slice; groups of volumes are apart."""
    blocks = ceil_div(w.out_h, high)
    if w.is_volume:
        return blocks
    group = (w.group_channels * w.height * w.width + w.group_filters * w.windows) * w.element_bytes
    edges = min(blocks, (w.pad_top > 0) + (kept_rows(w) > w.pad_top + w.height))
    return blocks - edges + edges / max(1, direct_bytes()[0] // group)


def _stores_of_row(w: Conv, kernel: Kernel) -> int:
    """Stores of a row of outputs. AVX2 stores a partial vector in parts of 4, 2 and 1 elements."""
    whole, rest = divmod(w.out_w, kernel.lane_windows)
    return whole + (rest.bit_count() if kernel.target == "avx2" else rest > 0)


def _loads_of_row(w: Conv, kernel: Kernel, shared: bool) -> tuple[float, float, float]:
    """(loads, shuffles, deinterleaved vectors) for the vectors of all taps of one input row."""
    taps, shifts = w.kernel_w, shared and w.kernel_w == SHARED_WIDTHS[0] and kernel.filters == 1 and kernel.target == "avx512"
    if w.stride_w == 1:
        return (2.0, 2.0, 0.0) if shifts else (taps, 0.0, 0.0)
    if w.stride_w > 2 or w.dilation_w > 1:
        return taps * kernel.lane_windows, taps, 0.0
    pairs = taps if shared and kernel.filters > 1 else ceil_div(taps, 2)
    if shifts:
        return 3.0, 3.0, 0.0
    return (2 * pairs, 0.0, taps) if kernel.target == "avx2" else (2 * pairs, taps, 0.0)


def rows_work(w: Conv, kernel: Kernel) -> Work:
    """The form rows: one group. A slice of outputs is an image whose channels are those of all slices of the input that it reads."""
    depth = {**dict.fromkeys(DEPTH_FIELDS[:4], 1), **dict.fromkeys(DEPTH_FIELDS[4:], 0)}
    image = msgspec.structs.replace(w, **depth) if w.is_volume else w
    live = live_taps(w)[0] / max(1, live_taps(image)[0]) / w.out_d  # slices
    of = _slice_work(image, kernel, w.group_channels * live, _calls(w, kernel.windows // kernel.lane_windows))
    return Work(*(w.out_d * term for term in of))._replace(chain=of.chain) if w.is_volume else of


def _slice_work(w: Conv, kernel: Kernel, channels: float, calls: float) -> Work:
    """The form rows: one slice of one group; `calls`: of its tiles, without row dilation."""
    filters, high = w.group_filters, kernel.windows // kernel.lane_windows
    if kernel.lane_windows == 1:
        taps = filters * channels * live_taps(w)[0] * w.kernel_w
        steps = taps * (ceil_div(w.out_w, PART_BYTES // w.element_bytes) if w.stride_w == 1 else w.out_w / 2)
        return Work(taps * w.out_w, 0.0, 2 * steps, steps, taps=taps * ceil_div(w.out_w, kernel.windows))
    shared, vectors = shares_input_rows(w, kernel), ceil_div(w.out_w, kernel.lane_windows)
    phases = w.dilation_h if shared else 1
    tiles = sum(ceil_div(rows, high) for rows in (len(range(phase, w.out_h, phases)) for phase in range(min(phases, w.out_h))))
    alive = live_taps(w)[0] / (w.out_h * w.kernel_h)
    several, single = divmod(filters, kernel.filters)
    blocks = several + single  # of filters, whose tiles load the same rows
    read = w.out_h * w.stride_h + tiles * max(0, w.kernel_h - w.stride_h) if shared else w.out_h * w.kernel_h
    loads, shuffles, deinterleaved = _loads_of_row(w, kernel, shared)
    weights = tiles * blocks * w.taps * min(filters, kernel.filters)
    each = vectors * channels
    return Work(
        each * filters * w.out_h * w.taps * alive,
        each * blocks * read * shuffles * alive,
        each * (blocks * read * loads * alive + weights),
        float(_stores_of_row(w, kernel) * filters * w.out_h),
        float(tiles * blocks * vectors),
        channels * w.taps,
        calls=calls * phases * blocks if shared else float(tiles * blocks),
        restarts=max(0.0, tiles * blocks * vectors * (channels - 1)) if shared else tiles * blocks * each * w.taps * alive,
        deinterleaved=each * blocks * read * deinterleaved * alive,
    )


def planes_elements(w: Conv, lanes: int) -> int:
    """Workspace elements of a block of groups: transposed input, outputs and weights, and a vector to align them."""
    return lanes * (w.height * kept_columns(w) + w.windows + w.taps + 1)


def planes_work(w: Conv, kernel: Kernel) -> Work:
    """The form planes: a block of as many groups as lanes."""
    lanes, part = kernel.lane_filters, PART_BYTES // w.element_bytes
    read, (whole, rest) = (w.height * w.width, w.taps), divmod(w.windows, lanes)
    transposed = sum(ceil_div(count, part) for count in read) + whole * lanes // part  # parts of `part` columns x all lanes
    narrow = ceil_div(rest, part)  # parts of the last columns of the outputs, stored lane by lane
    multiply_adds, tiles = live_taps(w)[0] * w.kernel_w * w.out_w, ceil_div(w.out_w, kernel.windows)
    once = w.kernel_w in SHARED_WIDTHS and w.stride_w <= 2 and w.dilation_w == 1
    columns = (w.out_w - tiles) * w.stride_w + tiles * w.kernel_w if once else w.kernel_w * w.out_w
    loads = live_taps(w)[0] * (columns + w.kernel_w * tiles)
    return Work(
        float(multiply_adds),
        0.0,
        float(loads),
        float(whole * lanes),
        float(w.out_h * tiles),
        live_taps(w)[0] / w.out_h * w.kernel_w,
        float(transposed * lanes + narrow * (part + lanes)),
        float(transposed * (lanes - part)),
        (transposed + narrow) * part * log2(part),
        aligned_stores=float(sum(read) + w.windows),
        started=BLOCK_CYCLES + TRANSPOSED_TAP_CYCLES * w.taps,
    )


def blocks_work(w: Conv, kernel: Kernel) -> Work:
    """The form blocks: a block of channels."""
    rows, taps = live_taps(w)
    tiles = ceil_div(w.out_w, kernel.windows)
    once = w.kernel_w in SHARED_WIDTHS and w.stride_w <= 2 and w.dilation_w == 1
    columns = (w.out_w - tiles) * w.stride_w + tiles * w.kernel_w if once else taps
    widened = WIDENED * rows * columns if kernel.dtype == "bf16" and kernel.lane_filters > 1 else 0.0
    return Work(
        float(rows * taps),
        widened,
        float(rows * (columns + w.kernel_w * tiles)),
        0.0,
        float(w.out_h * tiles),
        rows * taps / w.windows,
        aligned_stores=float(w.windows),
        rows=float(w.out_h),
    )


def taps_work(w: Conv, kernel: Kernel) -> Work:
    """The form taps: one group. Vectors go over the ends of rows where few rows are not many loads apart."""
    lanes = kernel.lane_windows
    if lanes == 1 or kernel.target == "avx2":
        return rows_work(w, kernel) if lanes == 1 else _words_work(w, lanes)
    vectors = ceil_div(w.windows, lanes) if w.stride_h == 1 or w.out_w <= 2 * lanes else w.out_h * ceil_div(w.out_w, lanes)
    dots = float(vectors * w.kernel_h * ceil_div(w.kernel_w, 4))
    padding = kept_rows(w) * kept_columns(w) * TAPS_PADDED + TAPS_STARTED
    return Work(dots, dots * GATHERS + vectors * RESCALES, 2 * dots, float(vectors), transposing=padding, calls=0.0)  # one for all groups


def last_work(w: Conv, kernel: Kernel) -> Work:
    """The form last: all groups, of one image. A row's outputs are taken some at a time; what they read is interleaved for all rows of
    outputs that share it."""
    if kernel.lane_filters == 1:
        return Work(float(w.windows * w.groups * w.taps), 0.0, 2.0 * w.windows * w.groups * w.taps, float(w.windows * w.groups))
    width = kernel.lane_filters
    quads, blocks = ceil_div(w.kernel_h, 4), ceil_div(w.groups, width)
    whole, rest = divmod(w.out_w, LAST_OUTPUTS)
    columns = whole * _last_columns(w, LAST_OUTPUTS) + (_last_columns(w, rest) if rest else 0)
    tiles = sum(count // LAST_TOGETHER[width] + (count % LAST_TOGETHER[width]).bit_count() for count in (*[LAST_OUTPUTS] * whole, rest))
    longer = 1.0 if _last_constant(w, quads) else LAST_ANY
    started = ceil_div(w.out_h, last_shared(w)) * columns * quads * LAST_COLUMN[width] + w.out_h * tiles * LAST_TILE[width]
    dots = float(4 * quads * w.kernel_w * w.windows * blocks) * longer
    widened = dots * LAST_WIDENS if kernel.target == "avx2" else 0.0
    started = blocks * started * longer + w.groups * LAST_CHANNEL
    return Work(dots, widened, dots, 0.0, transposing=started, aligned_stores=float(w.windows * blocks))


def _last_constant(w: Conv, quads: int) -> bool:
    """Whether a kernel's loops have constant lengths (`last_run_rows`, native/x86/groups/depthwise_last.h)."""
    size = (w.kernel_w, quads) == (3, 1) or ((w.kernel_w, quads) == (5, 2) and w.groups >= LAST_CHANNELS)
    return size and w.stride_w <= 2 and w.dilation_w == 1


def _last_columns(w: Conv, most: int) -> int:
    """Columns that up to `most` outputs of a row read."""
    return (min(most, w.out_w) - 1) * w.stride_w + (w.kernel_w - 1) * w.dilation_w + 1


def _words_work(w: Conv, lanes: int) -> Work:
    """On AVX2: vectors of pairs of taps of even and odd outputs of a row, or of neighbours with a stride; two short rows share them."""
    rows = ceil_div(w.out_h, 2) if w.stride_h == w.stride_w == 1 and w.out_w <= lanes else w.out_h
    vectors = rows * (2 * ceil_div(w.out_w, 2 * lanes) if w.stride_w == 1 else ceil_div(w.out_w, lanes))
    weights = w.kernel_h * ceil_div(w.kernel_w, 2)
    dots, loaded = float(vectors * weights), WORDS_LOADED if weights > WORDS_KEPT else 0.0
    padding = kept_rows(w) * ceil_div(w.width, 2 * lanes) * WORDS_PADDED + WORDS_STARTED
    return Work(dots, vectors * WORDS_RESCALES + dots * loaded, 2 * dots, vectors / 2, transposing=padding, calls=0.0)


def passed(w: Conv, rows: Rows, of: Terms, machine: Machine, request: Request) -> Pass:
    """Costs of schedules of kernels of one form, from their in-core terms, on one core."""
    nest, overlappable = described(w, rows), np.ones(1)
    if rows.kernels[0].form == ROWS:
        overlappable = np.array([_free_of_rows(w, kernel, machine)[1] for kernel in rows.kernels]) / sum(of.values())
    return Pass(machine, of, nest.names, traffic_of(nest, nest.misses(machine.levels, request.state, sum(of.values()))), overlappable)


def _free_of_rows(w: Conv, kernel: Kernel, machine: Machine) -> tuple[float, float]:
    """Form rows, all groups: the free cycles that hide stores, and the rest, which hides transfers."""
    unit, work = _unit(machine, kernel), rows_work(w, kernel)
    free, (_, store) = work.free_cycles(unit, machine, w.dtype), work.cycles(unit, machine, w.dtype)
    return w.batch * w.groups * min(free, store), w.batch * w.groups * max(0.0, free - store)


def terms(w: Conv, rows: Rows, machine: Machine, layout: Layout) -> tuple[float, float, float]:
    """kernel, call, store."""
    (kernel,) = rows.kernels
    work = {ROWS: rows_work, PLANES: planes_work, BLOCKS: blocks_work, TAPS: taps_work, LAST: last_work}[kernel.form](w, kernel)
    calls = w.batch * (1 if kernel.form == LAST else ceil_div(w.groups, kernel.lane_filters))
    busy, store = work.cycles(_unit(machine, kernel), machine, w.dtype)
    each = machine.core.call_cycles.value * (SHORT_CALL if kernel.form in (ROWS, BLOCKS) else 1.0)
    hidden = _free_of_rows(w, kernel, machine)[0] if kernel.form == ROWS else 0.0
    return calls * busy, calls * work.calls * each, calls * store - hidden


# The interface of an algorithm


def refuses(problem: Conv, machine: Machine, layout: Layout) -> Reason | None:
    block, out = blocks_of(layout)
    if layout == "nhwc" and problem.dtype == "s8" and _is_depthwise(problem):
        return Reason("shape", "images have one group at most") if problem.groups == 1 else None
    if layout not in ("nchw", f"nchw{block}c"):
        return Reason("shape", f"it takes input and output both in NCHW or both in channel blocks, not {layout.upper()}")
    if block > 1 and not _is_depthwise(problem):
        return Reason("shape", "in channel blocks it takes only groups of one channel and one filter")
    if problem.groups % out:
        return Reason("size", f"{problem.groups} groups are not a multiple of {out}, the block of {layout}")
    if reason := type_refusal(problem.dtype, direct_kernels()):
        return reason
    if problem.dtype == "bf16" and block == 1:
        return Reason("type", "of bf16 it takes channel blocks")
    if problem.groups == 1:
        return Reason("shape", "it takes two groups or more; for dense convolutions packing is faster")
    if (channels := problem.group_channels) > MAX_CHANNELS:
        return Reason("shape", f"it takes groups of up to {MAX_CHANNELS} channels; these have {channels}")
    return None


def _is_depthwise(problem: Conv) -> bool:
    return problem.groups == problem.channels == problem.filters


def _unfit(problem: Conv, kernel: Kernel, layout: Layout) -> Reason | None:
    if problem.is_volume and kernel.form != ROWS:
        return Reason("shape", "it computes images, and these are volumes (id, kd)")
    if (kernel.form == LAST) != (layout == "nhwc"):
        return Reason("shape", f"it reads and writes {'NHWC' if kernel.form == LAST else 'NCHW or blocks'}, not {layout}")
    if kernel.form == LAST and ceil_div(problem.kernel_h, 4) * 4 * problem.kernel_w > LAST_TAPS:
        return Reason("size", f"it takes kernels of up to {LAST_TAPS} taps, rows rounded up to 4")
    if (kernel.lane_filters if kernel.form == BLOCKS else 1) != blocks_of(layout)[0]:
        own = f"blocks of {kernel.lane_filters} channels" if kernel.form == BLOCKS else "NCHW"
        return Reason("shape", f"it reads and writes {own}, not {layout}")
    if (kernel.lane_filters > 1 or kernel.form == TAPS) and not _is_depthwise(problem):
        return Reason("shape", "it takes only groups of one channel and one filter")
    if kernel.lane_filters == 1 < kernel.filters and problem.filters == problem.groups:
        return Reason("shape", "its tiles have several filters of a group, and these groups have one")
    return None


def _by_form() -> list[Kernel]:
    return sorted(direct_kernels(), key=lambda kernel: kernel.form)


_LISTED = ListedAlgorithm(NAME, _by_form, lambda w, *_: [(w.group_channels, 1)], lambda w, *_: (w.group_channels, 1), terms, passed, _unfit)
least_cycles, candidates, cost = _LISTED.least_cycles, _LISTED.candidates, _LISTED.cost


def prepare(problem: Conv, schedule: Schedule, layout: Layout) -> Prepared | None:
    row = row_of(schedule)
    if row.form == LAST and row.lane_filters > 1:
        return Prepared("packed filters", ceil_div(problem.groups, row.lane_filters) * row.lane_filters * last_bytes(problem))
    if row.form != BLOCKS:
        return None  # weights are read in place
    return Prepared("packed filters", problem.filters * problem.taps * problem.result_bytes)  # of bf16 they are float32


def workspace_bytes(problem: Conv, schedule: Schedule, layout: Layout) -> int:
    """The transposed operands of one block of groups (form planes) or the padded rows of two (taps), in whole lines."""
    kernel = row_of(schedule)
    size = planes_elements(problem, kernel.lane_filters) * problem.element_bytes if kernel.form == PLANES else 0
    size = 2 * (2 * kept_rows(problem) * kept_columns(problem) + direct_bytes()[1]) if kernel.form == TAPS else size
    if kernel.form == LAST:
        size = _last_columns(problem, LAST_OUTPUTS) * ceil_div(problem.kernel_h, 4) * 4 * LAST_CHANNELS
        size += (ceil_div(problem.groups, LAST_CHANNELS) * 8 + 4) * LAST_CHANNELS
    return ceil_div(size, PANEL_ALIGN) * PANEL_ALIGN + PANEL_ALIGN


def largest_part(problem: Conv, schedule: Schedule, threads: int) -> Part:
    """Threads divide the groups of an image; if these are too few, also their rows; in channel blocks the rows if each gets PART_ROWS
    (native/algorithms/depthwise.c)."""
    kernel = row_of(schedule)
    units = 1 if kernel.form == LAST else ceil_div(problem.groups, kernel.lane_filters)
    group_parts = 1 if kernel.form == BLOCKS and problem.out_rows >= PART_ROWS * threads else min(threads, units)
    row_parts = min(threads, problem.out_rows) if kernel.form != PLANES and problem.batch * group_parts < threads else 1
    times = ceil_div(problem.batch * group_parts * row_parts, threads)
    groups = problem.groups if kernel.form == LAST else min(problem.groups, ceil_div(units, group_parts) * kernel.lane_filters)
    least = max(2, groups)  # the algorithm takes no fewer
    part = rows_of(problem, times, ceil_div(problem.out_rows, row_parts), problem.group_filters, least)
    return Part(part, schedule, groups / least, items=times)


def describe(plan: Plan) -> Description:
    w, _, kernel = unpacked_plan(plan)
    if kernel.form != ROWS:
        inner = f"{kernel.name} on up to {kernel.windows} columns, one group per lane; kernel rows in the padding are skipped"
    else:
        shared = "input rows are loaded once per tile" if shares_input_rows(w, kernel) else "kernel rows are processed one by one"
        high = kernel.windows // kernel.lane_windows
        inner = f"{kernel.name} on up to {high} rows x {kernel.lane_windows} columns, {w.kernel_h}x{w.kernel_w} taps; {shared}"
    met = prod(live_taps(w)) if kernel.form == BLOCKS else live_taps(w)[0] * w.out_w * w.kernel_w
    peak = nest_text.peak_of_taps(plan, met, _unit(on_cpu(plan)[1], kernel))
    return nest_text.describe(plan, "groups of few channels, input and weights read in place", nests(plan).loops[0], inner, peak=peak)


def nests(plan: Plan) -> Nests:
    w, schedule, kernel = unpacked_plan(plan)
    return Nests((described(w, Rows.alone(kernel, schedule)),))
