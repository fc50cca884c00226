# SPDX-License-Identifier: Apache-2.0
"""The in-core half of the cost model: cycles of arithmetic, calls, stores and packing (terms kernel, call, store, pack of `cost`).

`rates` computes what a nest costs with each micro-kernel, whatever the tiling. `compute_cycles` applies it to each tiling.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import ceil, gcd, log2
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.cpu.nest import Nest, ceil_div, line_rest, live_taps, segments
from pysim.cachemodel.equations import Program, Programs, as_rows, asked, columns_of
from pysim.caches import LruCache
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


class Rates(NamedTuple):
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


class Table(NamedTuple):
    """Schedules as columns, each with the `rates` of its kernel. `keeps_windows`: input stationary, otherwise weight stationary;
    `kernel`: index into the kernels of the rates; `packed`: 1, or 0 if windows are read in place."""

    rates: Rates
    keeps_windows: NDArray[np.bool_]
    kernel: NDArray[np.int64]
    packed: Array
    channels: Array
    k2: Array
    k3: Array

    @property
    def columns(self) -> Any:
        """The number of schedules; of traced ones their recorder."""
        return columns_of(self.channels)


SCHEDULE = ("keeps_windows", "packed", "channels", "k2", "k3")  # columns of a table beside those of its rates


def select(table: Table, rows: Any) -> Table:
    """Some rows of a table."""
    if isinstance(rows, np.ndarray) and rows.dtype == bool:
        rows = np.flatnonzero(rows)  # once, not for every column
    rates, keeps, kernel, packed, channels, k2, k3 = table
    return Table(rates.of(rows), keeps[rows], kernel[rows], packed[rows], channels[rows], k2[rows], k3[rows])


class OfTable:
    """Equations of a table of schedules, and of what else is known for all of it. They are traced once for a machine and those nests for
    which they are alike; `kernel` and `kernels` are not known then."""

    def __init__(self, equations: Callable[..., tuple[Sequence[Array], Any]]) -> None:
        self.equations, self.programs = equations, LruCache[Programs](64)

    def __call__(self, table: Table, *known: Any) -> tuple[Sequence[Array], Any]:
        rates, key = table.rates, (table.rates.machine, *known)
        if (programs := self.programs.get(key)) is None:
            programs = self.programs.put(key, Programs())

        def trace() -> Program:
            inputs = len(rates.columns) + len(SCHEDULE)
            return Program.of(lambda rows, nest: self.equations(_traced(rows, nest, rates.machine), *known), inputs, rates.nest)

        if (program := programs.of(trace, rates.nest)) is None:
            return self.equations(table, *known)
        schedules = as_rows(table.kernel.size, *(getattr(table, name) for name in SCHEDULE))
        return program(np.concatenate([rates.columns, schedules]), rates.nest), program.about


def _traced(rows: Array, nest: Nest, machine: Machine) -> Table:
    columns = rows[: -len(SCHEDULE)]
    known = dict(zip(SCHEDULE, rows[-len(SCHEDULE) :], strict=True))
    return Table(Rates(nest, machine, (), columns, *columns), kernel=cast("Any", None), **cast("Any", known))


def rates(nest: Nest, machine: Machine, kernels: Sequence[Kernel]) -> Rates:
    """In-core costs of a nest with each kernel. Raises PlanError for a kernel whose unit the machine lacks."""
    return _rates(nest, machine, tuple(kernels))


@lru_cache(maxsize=64)
def _rates(nest: Nest, machine: Machine, kernels: tuple[Kernel, ...]) -> Rates:
    columns = np.array([_rates_of(nest, machine, kernel) for kernel in kernels], dtype=np.float64).T.copy()
    columns.flags.writeable = False
    return Rates(nest, machine, kernels, columns, *columns)


@lru_cache(maxsize=1024)
def _rates_of(nest: Nest, machine: Machine, kernel: Kernel) -> tuple[float, ...]:
    """One row of `Rates`: its arrays from `kernel` on."""
    unit = machine.unit(kernel.target)
    if unit is None:
        raise PlanError(f"{machine.name} has no unit {kernel.target}, which {kernel.name} needs")
    size, line = nest.element_bytes, machine.line_bytes
    window_tiles, filter_tiles = ceil_div(nest.windows, kernel.windows), ceil_div(nest.group_filters, kernel.filters)
    live, live_edge = nest.live_rows(kernel.windows)
    live_mean = (live + live_edge) / window_tiles
    taps = nest.group_channels * nest.kernel_w
    full_tiles, last_windows = divmod(nest.windows, kernel.windows)
    steps, store, out_vectors = _over_tiles(nest, kernel, unit, ((full_tiles, live, kernel.windows), (1, live_edge, last_windows)))
    steps *= (
        nest.repeats
        * taps
        / k_depth(kernel, nest.result_bytes // size)
        * (IN_PLACE_SLOWDOWN if _plain(kernel) and nest.filters_in_place else 1.0)
    )
    if kernel.form in PLANES_OF_BYTES and not nest.windows_packed:
        store += BYTE_ROW_CYCLES * out_vectors
    store *= nest.repeats
    reload = nest.repeats * out_vectors / unit.loads_per_cycle.value
    pack, pack_filters, runs, vectors = _packing(nest, machine, kernel, unit, live_mean)
    tile = min(kernel.windows, nest.windows)
    last = nest.windows - (window_tiles - 1) * tile
    edge = (runs - nest.out_rows) * live_mean * nest.run_edge(kernel.windows, line)
    others, read = max(1, window_tiles - 1), read_rows(nest, line)
    in_panel = min(kernel.filters, nest.group_filters) if kernel.reads_rows else kernel.filters
    stored = nest.taps * (size * nest.filters / filter_tiles if nest.filters_in_place else kernel.panel_bytes * in_panel)
    return (
        steps,
        store,
        reload,
        pack,
        pack_filters,
        nest.repeats * runs * live_mean,
        nest.repeats * live_mean * (runs * RUN_SETUP_CYCLES + nest.kernel_w * vectors * MASK_CYCLES * apart(nest, unit)),
        tile,
        min(kernel.filters, nest.group_filters),
        window_tiles,
        filter_tiles,
        nest.windows + min(tile - last, line_rest(line, tile * kernel.panel_bytes) / kernel.panel_bytes),
        live_mean * nest.kernel_w * kernel.panel_bytes,
        stored * live_mean / nest.kernel_rows,
        stored,
        edge,
        0 if nest.windows_packed else line_rest(line, nest.plane_bytes, kernel.windows * size),
        line_rest(line, nest.windows * nest.stored_bytes, kernel.windows * nest.stored_bytes),
        line_rest(line, nest.group_filters * size, kernel.filters * size),
        tile / nest.out_w * read.step,
        (read.live * read.row + edge) / window_tiles,
        read.again / max(others, nest.out_rows - 1) + edge / others,
        machine.core.call_cycles.value * tile_calls(nest, kernel, machine),
        kernel.group,
        kernel.form == "tiles" and not kernel.split,
    )


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


def _packing(nest: Nest, machine: Machine, kernel: Kernel, unit: Unit, live_mean: float) -> tuple[float, float, int, int]:
    """Cycles of packing windows and filters once, and the runs and vectors of windows. `live_mean`: live kernel rows of a tile."""
    lanes = unit.lanes(RESULT_BYTES[kernel.dtype] if kernel.group > 1 else nest.element_bytes)
    runs, vectors = segments(nest.windows, nest.out_w, kernel.windows, lanes)
    taps, filter_tiles = nest.group_channels * nest.kernel_w, ceil_div(nest.group_filters, kernel.filters)
    per_vector = 1 / unit.stores_per_cycle.value + machine.core.pack_cycles.value
    gather = stride_cycles(nest, unit, nest.windows / runs, vectors / runs)
    if kernel.group > 1 and not kernel.split:
        gather = kernel.group * (GROUP_ROW_CYCLES + gather)
        pack = nest.repeats * taps / kernel.group * live_mean * vectors * (per_vector + gather)
        filters = _packed_filters(nest, kernel)
        words, pieces = nest.group_channels / kernel.group * filters, nest.filters_gathered * filters
        each = words * (ROW_WORD_CYCLES if kernel.reads_rows else GROUP_WORD_CYCLES) + pieces * PIECE_CYCLES
        if nest.copied_pieces and kernel.reads_rows and nest.group_channels <= unit.vector_bytes * nest.filters_gathered:
            each = pieces * (SHORT_CYCLES if nest.group_channels <= SHORT_BYTES * nest.filters_gathered else VECTOR_CYCLES)
        return pack, nest.repeats * each, runs, vectors
    gather += partial_cycles(kernel.target, segments(nest.windows, nest.out_w, kernel.windows, lanes, unfilled)[1] / vectors)
    transpose = log2(lanes)  # shuffles of a vector
    per_vector += SPLIT_CYCLES * kernel.split
    pack = nest.repeats * taps * live_mean * vectors * (per_vector + gather + transpose * nest.windows_transposed)
    filter_vectors = 0 if nest.filters_packed else nest.group_channels * filter_tiles * ceil_div(kernel.filters, lanes)
    return pack, nest.repeats * filter_vectors * (per_vector + transpose * nest.filters_transposed), runs, vectors


def unfilled(windows: int, lanes: int) -> int:
    """Vectors of a run that it does not fill."""
    return windows % lanes > 0


def partial_cycles(target: str, share: float) -> float:
    """Cycles that partial vectors, such a share of all, add to each."""
    return PARTIAL_CYCLES.get(target, 0.0) * share


def _packed_filters(nest: Nest, kernel: Kernel) -> int:
    """Filters in the panels that a run makes. Some kernels read rows of whole groups of k in place, form tiles where they fill tiles."""
    if nest.filters_packed:
        return 0
    in_rows = kernel.in_rows and nest.filters_transposed and nest.group_channels % kernel.group == 0 and not nest.filters_gathered
    rest = nest.group_filters % kernel.filters
    whole, partial = nest.group_filters - rest, kernel.filters * (rest > 0)
    return (0 if in_rows else whole) + (0 if in_rows and rest % kernel.in_rows == 0 else partial)


def _over_tiles(nest: Nest, kernel: Kernel, unit: Unit, rows: Iterable[tuple[int, int, int]]) -> tuple[float, float, float]:
    """Cycles of one k-iteration of all tiles and of storing them, and vectors of their outputs. `rows` are (tiles, live kernel rows,
    windows)."""
    full_filters, last_filters = divmod(nest.group_filters, kernel.filters)
    steps = store = vectors = 0.0
    row = 0.0 if not nest.to_bytes or kernel.form not in ROWS_OF_BYTES else ROW_CYCLES
    if row and nest.windows == kernel.lane_windows:
        row = ROW_OF_FOUR_CYCLES
    for tiles, live, windows in rows:
        for count, filters in ((full_filters, kernel.filters), (1, last_filters)):
            if windows and count and filters:
                step, stored, out = _tile(kernel, unit, windows, filters, row)
                steps += live * count * step
                store += tiles * count * stored
                vectors += tiles * count * out
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


def step_cycles(kernel: Kernel, unit: Unit, dtype: str, windows: int, filters: int) -> float:
    """Cycles of one k-iteration of a tile. Where a vector register holds an outer product, a shuffle spreads each operand over a register.
    A matrix unit's accumulators are larger than a vector register; it needs no shuffles."""
    along, across = ceil_div(windows, kernel.lane_windows), ceil_div(filters, kernel.lane_filters)
    outer_product = min(kernel.lane_windows, kernel.lane_filters) > 1
    in_vector = kernel.lane_windows * kernel.lane_filters * RESULT_BYTES[dtype] <= unit.vector_bytes
    spread = SPREAD_CYCLES * (along + across) if outer_product and in_vector else 0.0
    return max(unit.step_cycles(dtype, along, across), along * across * kernel.work / unit.rate(dtype) + spread)


@lru_cache(maxsize=4096)
def _tile(kernel: Kernel, unit: Unit, windows: int, filters: int, row: float = 0.0) -> tuple[float, float, int]:
    """Cycles of one k-iteration of a tile and of storing it, and vectors of its outputs. `row`: of each row of results that become bytes.

    A k-iteration takes the slowest of its multiply-adds, its operand loads and the latency of an accumulator. Portable tiles compute
    all their filters; in tiles with few windows their accumulators are in memory, and each filter waits for the one before. Outputs are
    vectors of rows of windows if windows lie along the lanes. If filters do, they pass through the stack and a transposition of lanes x
    lanes blocks.
    """
    vectors = stores = filters * ceil_div(windows, kernel.lane_filters if kernel.along_filters else kernel.lane_windows)
    shuffles = 0.0
    if kernel.along_filters:
        lanes = kernel.lane_filters
        blocks = ceil_div(filters, lanes)
        stores += windows * blocks
        shuffles = ceil_div(windows, lanes) * blocks * lanes * log2(lanes)
    waits = 0.0
    if _plain(kernel):
        filters, waits = kernel.filters, unit.fma_latency_cycles.value * (kernel.filters if windows < kernel.windows else 1)
    step = step_cycles(kernel, unit, kernel.dtype, windows, filters)
    stored = stores / unit.stores_per_cycle.value + shuffles
    if row:
        stored = filters * row + vectors * RESCALED_CYCLES
    if kernel.form == "tiles" and unit.tile_store_cycles:
        stored += unit.tile_store_cycles.value
    return max(step, waits), stored, vectors


def fetch_cycles(rates: Rates) -> float:
    """Least stalls of packing for input lines from beyond L1, whatever the tiling: those of all lines, if the input would fill L1 twice."""
    nest, inner = rates.nest, rates.machine.levels[0]
    size = nest.group_channels * nest.touched_bytes(inner.line_bytes)
    return nest.repeats * size / inner.line_bytes * rates.machine.core.pack_line_cycles.value if size > 2 * inner.size_bytes else 0.0


def _padded_depth(table: Table) -> Array:
    """k-iterations of panels, which have whole groups in each set of channels, over those of the problem."""
    nest, group = table.rates.nest, table.rates.group
    sets = np.floor(nest.group_channels / table.channels)
    rest = nest.group_channels - sets * table.channels
    of_set, of_rest = (np.ceil(channels * nest.kernel_w / group) * group for channels in (table.channels, rest))
    padded: Array = (sets * of_set + of_rest) / (nest.group_channels * nest.kernel_w)
    return padded


def tile_calls(nest: Nest, kernel: Kernel, machine: Machine) -> float:
    """Cycles of a tile's call over call_cycles. Before a matrix unit's call, what is fetched next is listed. Static call_cycles are of the
    kernel alone."""
    asks = nest.pads_rows or kernel.form == "tiles" or machine.core.call_cycles.kind == "static"
    return 1.0 if asks else SHORT_CALL


def compute_cycles(table: Table) -> dict[str, Array]:
    """The compute terms of every schedule, before any misses."""
    of, nest, core = table.rates, table.rates.nest, table.rates.machine.core
    call, pack_call = core.call_cycles.value, core.pack_call_cycles.value
    sets = np.ceil(nest.group_channels / table.channels)
    of_windows, of_filters = np.ceil(of.window_tiles / table.k3), np.ceil(of.filter_tiles / table.k3)  # sets of kept tiles
    passes, filter_passes = np.where(table.keeps_windows, 1.0, of_filters), np.where(table.keeps_windows, of_windows, 1.0)
    setup = of.pack_setup / np.minimum(table.channels, nest.group_channels)
    pack = table.packed * passes * (of.pack + sets * (pack_call * of.pack_calls + setup))
    if not nest.filters_packed:
        packs = of.pack_filters > 0 if nest.to_bytes else 1.0  # rows in place have no call
        pack += filter_passes * (of.pack_filters + packs * call * nest.repeats * sets * of.filter_tiles)
    return {
        "kernel": of.kernel * _padded_depth(table),
        "call": of.tile_call * nest.repeats * sets * of.window_tiles * of.filter_tiles,
        "store": of.store * sets + of.reload * (sets - 1),
        "pack": pack,
    }


def computed(table: Table) -> dict[str, Array]:
    """`compute_cycles` of a table of numbers, by a program."""
    cycles, names = _computed(table)
    return dict(zip(names, cycles, strict=True))


@OfTable
def _computed(table: Table) -> tuple[Sequence[Array], tuple[str, ...]]:
    terms = compute_cycles(table)
    return tuple(terms.values()), tuple(terms)
