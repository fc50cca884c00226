# SPDX-License-Identifier: Apache-2.0
"""The in-core half of the cost model: cycles of arithmetic, calls, stores and packing (terms kernel, call, store, pack of `cost`).

`rates` works out what a nest costs with each micro-kernel whatever the tiling, `compute_cycles` what each tiling makes of that.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import log2
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.cpu.nest import Nest, ceil_div, line_rest, segments
from pysim.errors import PlanError
from pysim.machine.cpu import Machine, Unit
from pysim.registry.cpu import Kernel

Array = NDArray[np.float64]


UNPACKED = 3.5  # times as long as from panels plain C takes to multiply an A where it lies (128x128x128, 512x512x512, gcc 12, Zen 5)


class Rates(NamedTuple):
    """What a nest costs with each of some kernels whatever the tiling; every array has one entry per kernel, or, in a
    table, per schedule.

    Cycles are of the whole run: `kernel` in full, `store`, `reload`, `pack` and `pack_filters` for one pass over their operand, which
    takes `pack_calls` calls of the packing routine for each channel set. `windows` and `filters` are those of a tile, `window_tiles`
    and `filter_tiles` counts of one repeat; `held_windows`: those of all panels, with the rest of the lines of a last one that is not full.
    `packed_window` is bytes of a window in a panel, `filter_tile` of a filter panel's live
    part, `stored_tile` of all of it, each of one channel. `*_edge` are bytes of lines that a run of windows only shares with its
    neighbour: all runs of a channel where they are packed, a tile's run of one channel in place, of one filter in the output, of one
    row of k of a transposed A.
    """

    nest: Nest
    machine: Machine
    kernels: tuple[Kernel, ...]
    kernel: Array
    store: Array
    reload: Array
    pack: Array
    pack_filters: Array
    pack_calls: Array
    windows: Array
    filters: Array
    window_tiles: Array
    filter_tiles: Array
    held_windows: Array
    packed_window: Array
    filter_tile: Array
    stored_tile: Array
    pack_edge: Array
    place_edge: Array
    out_edge: Array
    filter_edge: Array

    def of(self, which: Any) -> "Rates":
        """Entries of some kernels, or schedules."""
        nest, machine, kernels, *columns = self
        return Rates(nest, machine, kernels, *np.array(columns)[:, which])


class Table(NamedTuple):
    """Schedules as columns, each with the `rates` of its kernel: `keeps_windows` (input stationary) or filters; `kernel` indexes the
    kernels of the rates; `packed` is 1, or 0 where windows are read in place."""

    rates: Rates
    keeps_windows: NDArray[np.bool_]
    kernel: NDArray[np.int64]
    packed: Array
    channels: Array
    k2: Array
    k3: Array


def select(table: Table, rows: Any) -> Table:
    """Some rows of a table."""
    rates, keeps, kernel, packed, channels, k2, k3 = table
    return Table(rates.of(rows), keeps[rows], kernel[rows], packed[rows], channels[rows], k2[rows], k3[rows])


def rates(nest: Nest, machine: Machine, kernels: Sequence[Kernel]) -> Rates:
    """The costs of `nest` that depend on the kernel alone. Raises PlanError for a kernel whose unit the machine lacks."""
    return _rates(nest, machine, tuple(kernels))


@lru_cache(maxsize=64)
def _rates(nest: Nest, machine: Machine, kernels: tuple[Kernel, ...]) -> Rates:
    columns = np.array([_rates_of(nest, machine, kernel) for kernel in kernels], dtype=np.float64)
    columns.flags.writeable = False
    return Rates(nest, machine, kernels, *columns.T)


def _rates_of(nest: Nest, machine: Machine, kernel: Kernel) -> tuple[float, ...]:
    """One row of `Rates`, its arrays from `kernel` to `filter_edge`."""
    unit = machine.unit(kernel.target)
    if unit is None:
        raise PlanError(f"{machine.name} has no unit {kernel.target}, which {kernel.name} needs")
    size, line = nest.element_bytes, machine.line_bytes
    window_tiles, filter_tiles = ceil_div(nest.windows, kernel.windows), ceil_div(nest.group_filters, kernel.filters)
    live, live_edge = nest.live_rows(kernel.windows)
    live_mean = (live + live_edge) / window_tiles
    lanes = unit.lanes(size)
    runs, vectors = segments(nest.windows, nest.out_w, kernel.windows, lanes)
    taps = nest.group_channels * nest.kernel_w
    full_tiles, last_windows = divmod(nest.windows, kernel.windows)
    steps, store, out_vectors = _over_tiles(nest, kernel, unit, ((full_tiles, live, kernel.windows), (1, live_edge, last_windows)))
    steps *= (
        nest.repeats * taps / k_depth(kernel, nest.result_bytes // size) * (UNPACKED if _plain(kernel) and nest.filters_in_place else 1.0)
    )
    store *= nest.repeats
    reload = nest.repeats * out_vectors / unit.loads_per_cycle.value
    per_vector = 1 / unit.stores_per_cycle.value + machine.core.pack_cycles.value
    gather = min(nest.stride_w, lanes) * (1 / unit.loads_per_cycle.value + 1) if nest.stride_w > 1 else 0.0
    turn = log2(lanes)
    pack = nest.repeats * taps * live_mean * vectors * (per_vector + gather + turn * nest.windows_transposed)
    filter_vectors = 0 if nest.filters_packed else nest.group_channels * filter_tiles * ceil_div(kernel.filters, lanes)
    pack_filters = nest.repeats * filter_vectors * (per_vector + turn * nest.filters_transposed)
    tile = min(kernel.windows, nest.windows)
    last = nest.windows - (window_tiles - 1) * tile
    stored = nest.taps * size * (nest.filters / filter_tiles if nest.filters_in_place else kernel.filters)
    return (
        steps,
        store,
        reload,
        pack,
        pack_filters,
        nest.repeats * runs * live_mean,
        tile,
        min(kernel.filters, nest.group_filters),
        window_tiles,
        filter_tiles,
        nest.windows + min(tile - last, line_rest(line, tile * size) / size),
        live_mean * nest.kernel_w * size,
        stored * live_mean / nest.kernel_h,
        stored,
        (runs - nest.out_h) * live_mean * nest.run_edge(kernel.windows, line),
        0 if nest.windows_packed else line_rest(line, nest.plane_bytes, kernel.windows * size),
        line_rest(line, nest.windows * nest.result_bytes, kernel.windows * nest.result_bytes),
        line_rest(line, nest.group_filters * size, kernel.filters * size),
    )


def _over_tiles(nest: Nest, kernel: Kernel, unit: Unit, rows: Iterable[tuple[int, int, int]]) -> tuple[float, float, float]:
    """Cycles of one step of all tiles and of storing them, and vectors of their outputs; `rows` are (tiles, live kernel rows, windows)."""
    full_filters, last_filters = divmod(nest.group_filters, kernel.filters)
    steps = store = vectors = 0.0
    for tiles, live, windows in rows:
        for count, filters in ((full_filters, kernel.filters), (1, last_filters)):
            if windows and count and filters:
                step, stored, out = _tile(kernel, unit, windows, filters)
                steps += live * count * step
                store += tiles * count * stored
                vectors += tiles * count * out
    return steps, store, vectors


def _plain(kernel: Kernel) -> bool:
    """Whether it is plain C."""
    return kernel.lane_windows * kernel.lane_filters == 1


def k_depth(kernel: Kernel, width: int) -> int:
    """k steps that one multiply-add takes: a lane is as wide as a result, and as many operands as that is wide fill it (rank-2 and rank-4
    updates)."""
    return 1 if _plain(kernel) else width


def products_per_cycle(kernel: Kernel, unit: Unit, width: int) -> float:
    """Multiplications of a kernel in a cycle at most: what its unit's multiply-adds cover; `width`: of a result, in operands."""
    return kernel.lane_windows * kernel.lane_filters * k_depth(kernel, width) * unit.rate(kernel.dtype)


@lru_cache(maxsize=4096)
def _tile(kernel: Kernel, unit: Unit, windows: int, filters: int) -> tuple[float, float, int]:
    """Cycles of one step of a tile and of storing it, and vectors of its outputs.

    A step is one multiply-add: the slowest of its instructions, operand loads and the latency of an accumulator. Portable tiles compute all
    their filters; where windows are not full, sums are in memory and one filter waits for the one before. Outputs are vectors of rows of
    windows, as long as what the kernel puts along its lanes; filters along them pass through the stack and a transposition of lanes x
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
    step = unit.step_cycles(kernel.dtype, ceil_div(windows, kernel.lane_windows), ceil_div(filters, kernel.lane_filters))
    return max(step, waits), stores / unit.stores_per_cycle.value + shuffles, vectors


def fetch_cycles(rates: Rates) -> float:
    """What packing waits at least, whatever the tiling, for input lines from beyond L1: all of them, where they would fill it twice."""
    nest, inner = rates.nest, rates.machine.levels[0]
    size = nest.group_channels * nest.touched_bytes(inner.line_bytes)
    return nest.repeats * size / inner.line_bytes * rates.machine.core.pack_line_cycles.value if size > 2 * inner.size_bytes else 0.0


def compute_cycles(table: Table) -> dict[str, Array]:
    """The compute terms of every schedule: what the operands' places in the caches do not change."""
    of, nest, core = table.rates, table.rates.nest, table.rates.machine.core
    call, pack_call = core.call_cycles.value, core.pack_call_cycles.value
    sets = np.ceil(nest.group_channels / table.channels)
    of_windows, of_filters = np.ceil(of.window_tiles / table.k3), np.ceil(of.filter_tiles / table.k3)  # sets of kept tiles
    passes, filter_passes = np.where(table.keeps_windows, 1.0, of_filters), np.where(table.keeps_windows, of_windows, 1.0)
    pack = table.packed * passes * (of.pack + pack_call * sets * of.pack_calls)
    if not nest.filters_packed:
        pack += filter_passes * (of.pack_filters + call * nest.repeats * sets * of.filter_tiles)
    return {
        "kernel": of.kernel,
        "call": call * nest.repeats * sets * of.window_tiles * of.filter_tiles,
        "store": of.store * sets + of.reload * (sets - 1),
        "pack": pack,
    }
