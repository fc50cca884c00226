# SPDX-License-Identifier: Apache-2.0
"""The in-core half of the cost model: cycles of arithmetic, calls, stores and packing (terms kernel, call, store, pack of `cost`).

`rates` computes what a nest costs with each micro-kernel, whatever the tiling: equations of columns, one for each kernel. `tables` applies
it to each tiling.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import ceil, gcd, log2
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.cpu.nest import Nest, Whole, line_rest, live_taps, segments
from pysim.cachemodel.equations import OfRows, as_rows, asked, columns_of
from pysim.errors import PlanError
from pysim.machine.cpu import Machine, Unit
from pysim.problem.conv import Conv
from pysim.problem.dtypes import RESULT_BYTES
from pysim.registry.cpu import Kernel

Array = NDArray[np.float64]
# A call of a tile that does not ask which kernel rows meet padding, of Winograd's products, or of a row of depthwise tiles, relative to
# call_cycles, those of one that asks (Zen 3: 45 to 55 of 116 cycles, products and 1x1 layers of 16 to 128 channels; least squares:
# Winograd 0.46 over 115 plans on a Zen 4, 0.27 over 306 on an Emerald Rapids; rows of depthwise tiles 0.36 to 0.86)
SHORT_CALL = 0.5
# Of a shuffle that spreads an operand over a register, beyond the multiply-adds beside it. f32_outer_16x4 and 4x16 take 7.3 and 6.8 cycles
# for a k-iteration of four multiply-adds and five shuffles (Zen 4, operands in L1)
SPREAD_CYCLES = 0.55
# Packing a run of windows starts with divisions and masks; with a dilation each vector of each tap has a mask. Packing a set's other
# channels hides them, so a set of C channels pays 1 / C. Recorded plans of layers with one channel a group (lab/data): 80 without
# dilation are predicted at 0.83 of their time without this and 1.05 with it, 17 with dilation at 0.36 and 1.01 (medians)
RUN_SETUP_CYCLES = 22
MASK_CYCLES = 15
# Of a vector that a run of windows does not fill: AVX2 stores it in parts, behind branches, AVX-512 under a mask. 405 plans of random
# volumes, whose rows are a few elements (Zen 4): error 10.0 -> 8.8, 9.1 -> 8.7 % in the median, 46 -> 33, 49 -> 33 % at the 90th percentile
PARTIAL_CYCLES = {"avx2": 7.0, "avx512": 2.0}
# Of native/x86/pack.h: strides up to PHASES have their taps separated together; shuffles that shift a pair of vectors by one tap
PHASES, SHIFTS = 4, 2
# Of bytes with strides of 3 and 4, whose rows are gathered element by element: of a row of 16 (Zen 4: 3x3, 4x4, 7x7 and 11x11 of 3
# channels of 224x224, 4x4 of 64 of 56x56; they were predicted at 0.41 to 0.52 of their time as phases, now at 0.95 to 1.05)
BYTES_APART_CYCLES = 31.0
# Of form groups: a row of 16 elements that is loaded under a mask and interleaved, and a group of 4 bytes that is copied
GROUP_ROW_CYCLES, GROUP_WORD_CYCLES = 2.5, 1.5
# Of a group in rows that are gathered as they lie, and, in any form, of each of their pieces. In networks on a Zen 4 7x7 of 3 channels of
# 224x224 to 64 with stride 2, to 16, and 3x3 to 48 with stride 2 were predicted at 0.82, 0.60 and 0.67 of their time without the second,
# now 1.02, 1.00 and 0.94
ROW_WORD_CYCLES, PIECE_CYCLES = 0.4, 7.0
# Of pieces of up to 32 bytes, and of up to a vector, words included (`copy_windows`, native/templates/integers/channels_last.h): 3x3 and
# 7x7 of 3 channels with stride 2 and 4x4 with stride 4, of 224x224, 2.9, 2.2 and 2.9; 16x16 of 3 channels, 3x3 of 16, 11x11 of 3: 3.1, 4.8
# and 4.2 (Zen 4)
SHORT_BYTES, SHORT_CYCLES, VECTOR_CYCLES = 32, 2.6, 4.0
# Of form tiles: splitting 16 numbers in three, beyond packing them as rows of FP32. Packing both operands of 512x512x512 took 0.53 ns a
# number on an Emerald Rapids, 22 cycles a vector at 2.66 GHz, of which lines and rows are about half
SPLIT_CYCLES = 12.0
# A vector of sums that is rescaled and stored in rows of 16 bytes, a filter's in each plane, beyond its stores (Zen 3, 1x1 layers of 16 to
# 64 channels of 112x112 to 28x28: 2.4 to 11)
PLANES_OF_BYTES, BYTE_ROW_CYCLES = ("bounded", "pairs"), 4.0
# The same of forms groups and unpacked where sums become bytes: of a row of a tile's results, and of each of its vectors (Zen 4, 1x1
# layers of 16 to 64 channels of 112x112 to 28x28 in place: 7.3 cycles for a row of one vector, 14.4 of four). Rows of one vector, all of a
# pixel's results, are stored four at once: 32 -> 16 channels of 112x112 4.4 cycles
ROWS_OF_BYTES, ROW_CYCLES, RESCALED_CYCLES, ROW_OF_FOUR_CYCLES = ("groups", "unpacked"), 4.9, 2.4, 2.0
IN_PLACE_SLOWDOWN = 3.5  # of plain C with A in place, over A in panels (128x128x128, 512x512x512, gcc 12, Zen 5)


class Rates(msgspec.Struct, frozen=True):
    """In-core costs of a nest with each of some kernels, whatever the tiling. Every array has one entry per kernel, or, in a table, per
    schedule; it is a row of `columns`.

    Cycles are of the whole run: `kernel` in full; `store`, `reload`, `pack` and `pack_filters` for one pass over their operand. Packing
    takes `pack_calls` calls of its routine in each channel set, and `pack_setup` cycles that the set's channels share. `windows` and
    `filters` are those of a tile; `window_tiles` and `filter_tiles` count the tiles of one repeat; `panel_windows` are the windows of all
    panels, with a partial last panel rounded up to whole lines. Bytes for one channel: `packed_window` of a window in a panel,
    `stored_tile` of a filter panel, `filter_tile` of its live part. Bytes of lines that a run of windows shares with its neighbour, for one
    channel: `pack_edge` of all packed runs, `place_edge` of a tile's run in place. `out_edge`: the same in a row of the output,
    `filter_edge` in a row of k of a transposed A. Bytes of input that packing reads: `raw_tile` of a tile beside its neighbour, `raw_first`
    of one alone, `raw_shared` of both. `tile_call`: cycles of a tile's call. `group`: channels that lie together in panels. `unsplit`: 1
    for kernels of a matrix unit on operands as they are.
    """

    nest: Nest
    machine: Machine
    kernels: tuple[Kernel, ...]
    columns: Array
    kernel: Array
    store: Array
    reload: Array
    pack: Array
    pack_filters: Array
    pack_calls: Array
    pack_setup: Array
    windows: Array
    filters: Array
    window_tiles: Array
    filter_tiles: Array
    panel_windows: Array
    packed_window: Array
    filter_tile: Array
    stored_tile: Array
    pack_edge: Array
    place_edge: Array
    out_edge: Array
    filter_edge: Array
    raw_tile: Array
    raw_first: Array
    raw_shared: Array
    tile_call: Array
    group: Array
    unsplit: Array

    def of(self, which: Any) -> "Rates":
        """The entries of some kernels, or schedules."""
        columns = self.columns[:, which]
        return Rates(self.nest, self.machine, self.kernels, columns, *columns)


def rates(nest: Nest, machine: Machine, kernels: Sequence[Kernel]) -> Rates:
    """In-core costs of a nest with each kernel. Raises PlanError for a kernel whose unit the machine lacks."""
    return _rates(nest, machine, tuple(kernels))


@lru_cache(maxsize=64)
def _rates(nest: Nest, machine: Machine, kernels: tuple[Kernel, ...]) -> Rates:
    rows = np.concatenate([of_kernels(machine, kernels, nest.element_bytes, nest.result_bytes), _counted(nest, machine, kernels)])
    (columns,) = _rates_of(rows, machine, problem=nest)
    columns.flags.writeable = False
    return Rates(nest, machine, kernels, columns, *columns)


class OfKernels(NamedTuple):
    """Numbers of kernels and of their units, whatever the nest, a column each. `lanes`: of a packed vector; `depth`: `k_depth`; the last
    ones are 1 or 0."""

    windows: Array
    filters: Array
    lane_windows: Array
    lane_filters: Array
    group: Array
    panel_bytes: Array
    work: Array
    depth: Array
    lanes: Array
    vector_bytes: Array
    transpose: Array
    shuffles: Array
    rate: Array
    vector_rate: Array
    loads: Array
    stores: Array
    latency: Array
    tile_store: Array
    partial: Array
    calls: Array
    along_filters: Array
    spreads: Array
    plain: Array
    split: Array
    grouped: Array
    reads_rows: Array
    in_rows: Array
    fills_rows: Array
    planes_of_bytes: Array
    rows_of_bytes: Array
    unsplit: Array


@lru_cache(maxsize=64)
def of_kernels(machine: Machine, kernels: tuple[Kernel, ...], size: int, result: int) -> Array:
    """`OfKernels` as rows, of operands and results of so many bytes. Raises PlanError for a kernel whose unit the machine lacks."""
    return np.array([_of_kernel(machine, kernel, size, result) for kernel in kernels], dtype=np.float64).T


def _of_kernel(machine: Machine, kernel: Kernel, size: int, result: int) -> OfKernels:
    unit, tiles = machine.unit(kernel.target), kernel.form == "tiles"
    if unit is None:
        raise PlanError(f"{machine.name} has no unit {kernel.target}, which {kernel.name} needs")
    lanes = _lanes(unit, kernel, size)
    outer_product = min(kernel.lane_windows, kernel.lane_filters) > 1
    in_vector = kernel.lane_windows * kernel.lane_filters * RESULT_BYTES[kernel.dtype] <= unit.vector_bytes
    of: tuple[Any, ...] = (
        kernel.windows,
        kernel.filters,
        kernel.lane_windows,
        kernel.lane_filters,
        kernel.group,
        kernel.panel_bytes,
        kernel.work,
        k_depth(kernel, result // size),
        lanes,
        unit.vector_bytes,
        log2(lanes),
        log2(kernel.lane_filters),
        unit.rate(kernel.dtype),
        unit.vector_rate(kernel.dtype, size),
        unit.loads_per_cycle.value,
        unit.stores_per_cycle.value,
        unit.fma_latency_cycles.value,
        unit.tile_store_cycles.value if tiles and unit.tile_store_cycles else 0.0,
        PARTIAL_CYCLES.get(kernel.target, 0.0),
        1.0 if tiles or machine.core.call_cycles.kind == "static" else SHORT_CALL,
        kernel.along_filters,
        outer_product and in_vector,
        _plain(kernel),
        kernel.split,
        kernel.group > 1 and not kernel.split,
        kernel.reads_rows,
        kernel.in_rows > 0,
        kernel.in_rows or 1,
        kernel.form in PLANES_OF_BYTES,
        kernel.form in ROWS_OF_BYTES,
        tiles and not kernel.split,
    )
    return OfKernels(*of)


def _lanes(unit: Unit, kernel: Kernel, size: int) -> int:
    """Elements of a packed vector."""
    return unit.lanes(RESULT_BYTES[kernel.dtype] if kernel.group > 1 else size)


class _Counted(NamedTuple):
    """What is counted for a nest and a kernel, a column each: live kernel rows of the full tiles and of the partial last one; runs of
    windows, the vectors that they fill and those of them that are not full; cycles that a stride adds to a packed vector, and whether each
    tap is packed by itself; bytes of input lines that two runs share; those beyond the runs in a panel, and of `Rates`."""

    live: Array
    live_edge: Array
    runs: Array
    vectors: Array
    partial: Array
    gather: Array
    apart: Array
    run_edge: Array
    panel_edge: Array
    place_edge: Array
    out_edge: Array
    filter_edge: Array


def _counted(nest: Nest, machine: Machine, kernels: tuple[Kernel, ...]) -> Array:
    """`_Counted` as rows."""
    size, line, windows, row, found = nest.element_bytes, machine.line_bytes, nest.windows, nest.out_w, dict[Any, tuple[float, ...]]()
    columns = []
    for key in _of_runs(machine, kernels, size):
        if key not in found:
            tile, lanes, target = key
            runs, vectors, partial = segments(windows, row, tile, lanes)
            unit = machine.unit_of(target)
            gather = stride_cycles(nest, unit, windows / runs, vectors / runs) if nest.stride_w > 1 else 0.0
            found[key] = *nest.live_rows(tile), runs, vectors, partial, gather, apart(nest, unit)
        columns.append(found[key])
    tiles, filters, panel_bytes = _sizes(kernels)
    edges = (
        nest.run_edge(tiles, line),
        line_rest(np.minimum(tiles, windows) * panel_bytes, line),
        line_rest(tiles * size, line, nest.plane_bytes),
        line_rest(tiles * nest.stored_bytes, line, windows * nest.stored_bytes),
        line_rest(filters * size, line, nest.group_filters * size),
    )
    return np.concatenate([np.array(columns, dtype=np.float64).T, np.array(edges)])


@lru_cache(maxsize=64)
def _of_runs(machine: Machine, kernels: tuple[Kernel, ...], size: int) -> tuple[tuple[int, int, str], ...]:
    """What the runs of each kernel depend on, of elements of `size` bytes: windows of a tile, lanes of a packed vector, the target."""
    return tuple((kernel.windows, _lanes(machine.unit_of(kernel.target), kernel, size), kernel.target) for kernel in kernels)


@lru_cache(maxsize=64)
def _sizes(kernels: tuple[Kernel, ...]) -> Whole:
    """Windows and filters of a tile, and bytes of an element in panels."""
    return np.array([(kernel.windows, kernel.filters, kernel.panel_bytes) for kernel in kernels]).T


@OfRows
def _rates_of(rows: Array, machine: Machine, nest: Nest) -> tuple[Array]:
    """The columns of `Rates`, from `kernel` on."""
    of, counted = OfKernels(*rows[: len(OfKernels._fields)]), _Counted(*rows[len(OfKernels._fields) :])
    size, line = nest.element_bytes, machine.line_bytes
    window_tiles, filter_tiles = np.ceil(nest.windows / of.windows), np.ceil(nest.group_filters / of.filters)
    live_mean = (counted.live + counted.live_edge) / window_tiles
    steps, store, out_vectors = _over_tiles(nest, of, counted)
    each = nest.repeats * (nest.group_channels * nest.kernel_w) / of.depth
    if nest.filters_in_place:
        each = each * np.where(of.plain > 0, IN_PLACE_SLOWDOWN, 1.0)
    if not nest.windows_packed:
        store = store + of.planes_of_bytes * BYTE_ROW_CYCLES * out_vectors
    pack, pack_filters = _packing(nest, machine, of, counted, live_mean, filter_tiles)
    tile, panel_edge = np.minimum(of.windows, nest.windows), counted.panel_edge / of.panel_bytes
    last = nest.windows - (window_tiles - 1) * tile
    edge = (counted.runs - nest.out_rows) * live_mean * counted.run_edge
    others, read = np.maximum(1.0, window_tiles - 1), read_rows(nest, line)
    held = np.minimum(of.filters, nest.group_filters)
    stored = of.panel_bytes * np.where(of.reads_rows > 0, held, of.filters)
    if nest.filters_in_place:
        stored = size * nest.filters / filter_tiles
    stored = nest.taps * stored
    setup = counted.runs * RUN_SETUP_CYCLES + nest.kernel_w * counted.vectors * MASK_CYCLES * counted.apart
    columns = as_rows(
        columns_of(rows),
        steps * each,
        store * nest.repeats,
        nest.repeats * out_vectors / of.loads,
        pack,
        pack_filters,
        nest.repeats * counted.runs * live_mean,
        nest.repeats * live_mean * setup,
        tile,
        held,
        window_tiles,
        filter_tiles,
        nest.windows + np.minimum(tile - last, panel_edge),
        live_mean * nest.kernel_w * of.panel_bytes,
        stored * live_mean / nest.kernel_rows,
        stored,
        edge,
        0.0 if nest.windows_packed else counted.place_edge,
        counted.out_edge,
        counted.filter_edge,
        tile / nest.out_w * read.step,
        (read.live * read.row + edge) / window_tiles,
        read.again / np.maximum(others, nest.out_rows - 1) + edge / others,
        machine.core.call_cycles.value * (1.0 if nest.pads_rows else of.calls),
        of.group,
        of.unsplit,
    )
    return (columns,)


class ReadRows(NamedTuple):
    """Bytes of a channel that packing reads: all `touched`, those of a `row`, of the rows from one row of outputs to the next (`step`), and
    of the rows that both read (`beside`); those read `again`, by other tiles, not by the same tile twice. `live`: kernel rows that meet the
    image."""

    touched: int
    row: float
    step: float
    beside: float
    again: int
    live: int


@asked
@lru_cache(maxsize=64)
def read_rows(nest: Nest, line: int) -> ReadRows:
    """What packing reads of a channel."""
    touched, rows, live = nest.touched_bytes(line), nest.touched_rows, live_taps(nest)[0]
    row, again = touched / rows, max(0, live - rows) * nest.touched_w * nest.element_bytes
    step = nest.row_step * row
    return ReadRows(touched, row, step, max(0.0, nest.reached_rows * row - step), again, live)


def _packing(nest: Nest, machine: Machine, of: OfKernels, counted: _Counted, live_mean: Array, filter_tiles: Array) -> tuple[Array, Array]:
    """Cycles of packing windows and filters once. `live_mean`: live kernel rows of a tile."""
    taps, vectors = nest.group_channels * nest.kernel_w, counted.vectors
    per_vector = 1 / of.stores + machine.core.pack_cycles.value
    each = per_vector + of.group * (GROUP_ROW_CYCLES + counted.gather)
    of_groups = nest.repeats * taps / of.group * live_mean * vectors * each
    filters = _packed_filters(nest, of, filter_tiles)
    words, pieces = nest.group_channels / of.group * filters, nest.filters_gathered * filters
    each = words * np.where(of.reads_rows > 0, ROW_WORD_CYCLES, GROUP_WORD_CYCLES) + pieces * PIECE_CYCLES
    if nest.copied_pieces:
        channels = nest.group_channels + 0 * of.group
        copied = (of.reads_rows > 0) & (channels <= of.vector_bytes * nest.filters_gathered)
        each = np.where(copied, pieces * np.where(channels <= SHORT_BYTES * nest.filters_gathered, SHORT_CYCLES, VECTOR_CYCLES), each)
    filters_of_groups = nest.repeats * each

    gather = counted.gather + of.partial * (counted.partial / vectors)
    per_vector = per_vector + SPLIT_CYCLES * of.split
    each = per_vector + gather + of.transpose * nest.windows_transposed
    pack = nest.repeats * taps * live_mean * vectors * each
    filter_vectors: Array | float = 0.0
    if not nest.filters_packed:
        filter_vectors = nest.group_channels * filter_tiles * np.ceil(of.filters / of.lanes)
    pack_filters = nest.repeats * filter_vectors * (per_vector + of.transpose * nest.filters_transposed)
    return np.where(of.grouped > 0, of_groups, pack), np.where(of.grouped > 0, filters_of_groups, pack_filters)


def _packed_filters(nest: Nest, of: OfKernels, filter_tiles: Array) -> Array | float:
    """Filters in the panels that a run makes. Some kernels read rows of whole groups of k in place, form tiles where they fill tiles."""
    if nest.filters_packed:
        return 0.0
    rest = nest.group_filters - np.floor(nest.group_filters / of.filters) * of.filters
    partial = of.filters * (rest > 0)
    packed = nest.group_filters - rest + partial
    if not nest.filters_transposed:
        return packed
    whole_groups = np.floor(nest.group_channels / of.group) * of.group == nest.group_channels
    in_rows = (of.in_rows > 0) & whole_groups & (nest.filters_gathered == 0)
    fills = np.floor(rest / of.fills_rows) * of.fills_rows == rest
    return np.where(in_rows, np.where(fills, 0.0, partial), packed)


def _over_tiles(nest: Nest, of: OfKernels, counted: _Counted) -> tuple[Array, Array, Array]:
    """Cycles of one k-iteration of all tiles and of storing them, and vectors of their outputs."""
    full_tiles, full_filters = np.floor(nest.windows / of.windows), np.floor(nest.group_filters / of.filters)
    last_windows, last_filters = nest.windows - full_tiles * of.windows, nest.group_filters - full_filters * of.filters
    steps = store = vectors = 0.0 * of.windows
    row = np.where(of.lane_windows == nest.windows, ROW_OF_FOUR_CYCLES, ROW_CYCLES) if nest.to_bytes else None
    partial = 1.0 * (last_windows > 0)
    for tiles, live, windows in ((full_tiles, counted.live, of.windows), (partial, partial * counted.live_edge, last_windows)):
        for count, filters in ((full_filters, of.filters), (1.0 * (last_filters > 0), last_filters)):
            step, stored, out = _tile(of, windows, filters, row)
            steps = steps + live * count * step
            store = store + tiles * count * stored
            vectors = vectors + tiles * count * out
    return steps, store, vectors


def apart(nest: Conv, unit: Unit) -> bool:
    """Whether packing loads each tap by itself: with a dilation, a large stride, or taps of a phase further apart than a vector."""
    stride = nest.stride_w
    return nest.dilation_w > 1 or stride > PHASES or (nest.kernel_w - 1) // stride > unit.lanes(nest.element_bytes)


def stride_cycles(nest: Conv, unit: Unit, windows: float, vectors: float) -> float:
    """Cycles that a stride adds to each packed vector, if a run has `windows` windows in `vectors` vectors (native/x86/pack.h).

    Strides up to PHASES: all taps share the loads of a run and the permutes that separate the phases that have taps. Taps of the same
    phase are shifts of each other, and the last of them may reach into one vector more. Without a stride, one chain of shifts makes all
    taps. Larger strides and dilations load and permute each tap by itself.

    Worked number: 7 taps, stride 4, runs of 64 windows: (4 + 1) 4 loads and (4 + 1) 16 permutes for 28 vectors and 3 shifts of each of
    4, less 5 loads and 6 shifts of each of 4 without a stride. With two loads a cycle that adds 0.27 + 2 cycles to a vector.
    """
    stride, taps, loads_per_cycle = min(nest.stride_w, unit.lanes(nest.element_bytes)), nest.kernel_w, unit.loads_per_cycle.value
    if stride == 1:
        return 0.0
    if nest.element_bytes == 1 and 2 < stride <= PHASES:
        return BYTES_APART_CYCLES
    if apart(nest, unit):
        return (stride - 1) / loads_per_cycle + stride
    reached = max(vectors, ceil((windows + (taps - 1) // stride) / unit.lanes(nest.element_bytes)))
    sources = reached / (vectors * taps)  # of each phase, for a packed vector
    shifts = SHIFTS * (max(0, taps - stride) - (taps - 1)) / taps
    return (stride - 1) * sources / loads_per_cycle + max(0.0, stride * min(taps, stride) * sources + shifts)


def _plain(kernel: Kernel) -> bool:
    """Whether the kernel is plain C."""
    return kernel.lane_windows * kernel.lane_filters == 1


def line_accesses(pitch: int, vector: int, line: int) -> float:
    """Mean accesses to L1 of a load of `vector` bytes from a row that begins at a multiple of `pitch` bytes: one more where it crosses a
    line."""
    return 1 + max(0, vector - gcd(pitch, line)) / line


def k_depth(kernel: Kernel, width: int) -> int:
    """k-iterations that one multiply-add covers: as many operands as fill the width of a result (rank-2 and rank-4 updates)."""
    return 1 if _plain(kernel) or kernel.split else kernel.group if kernel.form == "pairs" else width


def products_per_cycle(kernel: Kernel, unit: Unit, width: int) -> float:
    """Multiplications of a kernel in a cycle at most, by the multiply-adds of its unit. `width`: of a result, in operands."""
    return kernel.lane_windows * kernel.lane_filters * k_depth(kernel, width) * unit.rate(kernel.dtype) / kernel.work


def step_cycles(of: OfKernels, windows: Array, filters: Array) -> Array:
    """Cycles of one k-iteration of a tile: the slowest of its multiply-adds, its operand loads and the latency of an accumulator. Where a
    vector register holds an outer product, a shuffle spreads each operand over a register. A matrix unit's accumulators are larger than a
    vector register; it needs no shuffles."""
    along, across = np.ceil(windows / of.lane_windows), np.ceil(filters / of.lane_filters)
    least = np.maximum(np.maximum(along * across / of.rate, (along + across) / of.loads), of.latency)
    cycles: Array = np.maximum(least, along * across * of.work / of.rate + of.spreads * SPREAD_CYCLES * (along + across))
    return cycles


def _tile(of: OfKernels, windows: Array, filters: Array, row: Array | None) -> tuple[Array, Array, Array]:
    """Cycles of one k-iteration of a tile and of storing it, and vectors of its outputs. `row`: cycles of each row of results that become
    bytes.

    Portable tiles compute all their filters; in tiles with few windows their accumulators are in memory, and each filter waits for the one
    before.
    Outputs are vectors of rows of windows if windows lie along the lanes. If filters do, they pass through the stack and a transposition of
    lanes x lanes blocks.
    """
    vectors = filters * np.ceil(windows / np.where(of.along_filters > 0, of.lane_filters, of.lane_windows))
    blocks = np.ceil(filters / of.lane_filters)
    stores = vectors + of.along_filters * windows * blocks
    shuffles = of.along_filters * (np.ceil(windows / of.lane_filters) * blocks * of.lane_filters) * of.shuffles
    few = np.where(windows < of.windows, of.filters, 1.0)
    waits, filters = of.plain * of.latency * few, np.where(of.plain > 0, of.filters, filters)
    stored = stores / of.stores + shuffles
    if row is not None:
        stored = np.where(of.rows_of_bytes > 0, filters * row + vectors * RESCALED_CYCLES, stored)
    return np.maximum(step_cycles(of, windows, filters), waits), stored + of.tile_store, vectors
