# SPDX-License-Identifier: Apache-2.0
"""The full cost model: predicted cycles of schedules on a machine, for whole tables of schedules at once.

    compute  = kernel + call + store + pack                       in-core work, cycles
    transfer = sum over suppliers X of  read_X / read_rate_X + written_X / write_rate_X
    cycles   = max(compute, transfer) + (1 - overlap) min(compute, transfer)          seconds = cycles / frequency

kernel  A k-iteration of a tile takes max(multiply-adds / fma_per_cycle, (window vectors + filter vectors) / loads_per_cycle,
        fma_latency) cycles, since it updates every accumulator once. A register that holds an outer product also takes a shuffle
        for each operand, SPREAD_CYCLES beyond the multiply-adds. Edge tiles fill whole lanes. There are channels x taps
        k-iterations, less the kernel rows that lie in vertical padding for all windows of a tile (`Nest.live_rows`).
call    call_cycles for each micro-kernel call: channel sets x window tiles x filter tiles.
store   Output vectors / stores_per_cycle, once per channel set; after the first set they are also loaded. A `fil` kernel also
        stores its tile to the stack and transposes it: lanes log2(lanes) shuffles a block, one a cycle. A tile of a matrix unit
        also takes tile_store_cycles. Consecutive tiles write short runs of many output rows: those of K2 filter tiles (input
        stationary) or of one (weight stationary). Prefetchers follow prefetch_streams rows; a run of another row waits
        store_run_cycles if it is beyond L2.
pack    Packed vectors x (1 / stores_per_cycle + pack_cycles), and pack_call_cycles for each run and kernel row. A run is the part
        of a tile in one row of outputs; short runs fill vectors badly (`segments`). Each run and kernel row also takes RUN_SETUP_CYCLES,
        and MASK_CYCLES a vector where each tap is packed by itself (`apart`), shared by the channels of a set. A stride adds loads and
        permutes (`stride_cycles`), a vector that is not full PARTIAL_CYCLES.
        Transposed operand: log2(lanes) shuffles a vector. Each input line that misses L1 stalls packing for pack_line_cycles,
        since its short runs leave nothing to compute meanwhile. Input stationary packs each window tile once per channel set,
        weight stationary once per set of K3 filter tiles. A matrix product also packs its filters, with the roles exchanged; form tiles
        reads rows of whole tiles and blocks of k in place, unless it splits them.
L2, L3, memory
        Each operand has a few streams: bytes that are reused after a known reuse distance (equations 4 and 5 of `csa` are two of
        them). `occupancy` derives the probability that a set of an A-way cache gets more than A lines in between. Its limit for
        whole ways is the BLIS model (Low et al., TOMS 43(2), 2016). A line that misses one level comes from the level where it
        hits, at the rate that the core sees from there. A written line is transferred twice: in (write-allocate) and out. First
        touches are one run apart: data that fits a level starts there ("hot"), or all of it misses ("cold"), or only filters do
        ("chained": a layer in a network).
exposed Every window tile reads all filters. The first one reads them from L3 or memory. If a tile has few windows, its multiply-adds
        take less time than that transfer, and other tiles' multiply-adds cannot hide it:
        exposed = bytes max(0, 1 / read_rate_X - kernel / bytes that all tiles read). Only transfer - exposed overlaps with compute.
stalls  Rows of B that a product reads in place are a row of B apart, where no prefetcher follows. (Planes of 1x1 convolutions did not
        stall when timed.) The kernel prefetches ROWS_AHEAD rows ahead, so a line from X takes
        max(line / read_rate_X, latency_X / (ROWS_AHEAD lines of a row of the tile)). Rows of k of an A in place likewise. Rows that
        share sets are not prefetched in time (`_rows_ahead`): ROWS_UNFETCHED are in flight. If the rows
        of a tile of a row-major A in place share more sets of L1 than there are ways, each k-iteration reloads a line of each
        from L2. Those rows reach new lines in the same k-iteration, so a tile of F filters stalls
        max(0, latency_X / F - line / read_rate_X) for each line, in `kernel`. So do rows of windows in place that share few sets of L1
        (crowded_line_cycles). A matrix unit waits for pages of another filter tile's results and rows of A. Each run of an output
        row of a product that lies beyond L2
        and starts apart from the last stalls run_start_share latency_X. Runs of a convolution are consecutive.

Passes that run one after another (im2col then GEMM; Winograd's transforms and products) do not overlap.

Assumptions: LRU replacement; pages lie anywhere in physical memory, or buffers are contiguous there (`Level.page_bytes`); prefetching is
part of the measured rates; no TLB misses; operands start at independent addresses; one core.

Worked number: 64 -> 64 channels, 56x56, 3x3, f32_win_32x14__avx512 on a core with one 512-bit multiply-add a cycle. A full tile
takes 2 * 14 = 28 cycles a k-iteration. 292 of 294 kernel rows are live; 64 filters are 4 full tiles and one of 8 (16 cycles). So
kernel = 292 * 3 * 64 * (4 * 28 + 16) = 7,176,192 cycles, against 231,211,008 / 32 = 7,225,344 for nominal flops at 32 a cycle.
Tiles of 64 windows in place are 4 lines, and 32 lines are in flight: of a latency of 550 cycles each pays 17, while 8.7 bytes a cycle
alone take 7. Measured on a Zen 5: gemm:1x4096x4096 with B in place takes 3.1 times the time of its bytes.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import gcd
from typing import NamedTuple

import numpy as np

from pysim.cachemodel.cpu.incore import Array, Rates
from pysim.cachemodel.cpu.incore import rates as rates_of
from pysim.cachemodel.cpu.nest import Nest
from pysim.cachemodel.cpu.nest_loops import OPERANDS, streams_of
from pysim.cachemodel.cpu.reuse.loops import LoopNest
from pysim.cachemodel.cpu.reuse.occupancy import traffic
from pysim.cachemodel.cpu.tables import Table, computed
from pysim.cachemodel.equations import asked
from pysim.errors import PlanError
from pysim.machine.cpu import Level, Machine, Memory, ShortCalls
from pysim.record.cost import Cost
from pysim.record.schedule import STATIONARY, Schedule
from pysim.record.state import State
from pysim.registry.cpu import Kernel, kernels

ROWS_AHEAD = 8  # of native/x86/lanes.h: rows that a kernel prefetches ahead
# Rows in flight that no prefetch brings in time. A core's window holds more, but then a line from L3 takes longer than its latency alone
# (1,512 plans of 108 products, Zen 4: 1, 2 and 3 rows predict 90 % of them within 42, 34 and 34 %, with a regret of 1.033, 1.032, 1.032)
ROWS_UNFETCHED = 2
PAGE_BYTES = 4096  # of translations
NEAR_BYTES = 7 << 18  # of native/algorithms/nest/ahead.h: panels that are left in L2


class Pass:
    """A part of a run in which compute and transfer overlap, for every schedule.

    `terms`: compute cycles by name. `moved`: bytes [supplier][2 an operand: read only, written][schedule]. Transfers overlap with the share
    `overlappable` of compute. `stalls`: cycles of each supplier beyond its rate. `exposed`: transfer cycles that nothing hides.
    `overlapped`: cycles in which both go on.
    """

    def __init__(
        self,
        machine: Machine,
        terms: Mapping[str, Array],
        operands: Sequence[str],
        moved: Array,
        overlappable: Array | float = 1.0,
        stalls: Array | float = 0.0,
        exposed: Array | float = 0.0,
    ) -> None:
        self.machine, self.terms, self.operands, self.moved = machine, terms, operands, moved
        self.compute: Array = sum(terms.values(), np.zeros(1))
        self.transfer = transfer_cycles(machine, moved) + stalls
        transfer = self.transfer.sum(axis=0)
        self.overlapped: Array = machine.core.overlap.value * np.minimum(self.compute * overlappable, transfer - exposed)
        self.cycles: Array = self.compute + transfer - self.overlapped


class Prediction(NamedTuple):
    """The cost of every row of a table. `bounds`: a lower bound on the cycles of the schedules that were left out, per kernel."""

    table: Table
    costs: Pass
    bounds: Array | None = None

    @property
    def cycles(self) -> Array:
        return self.costs.cycles


def predict(table: Table, state: State = "hot") -> Prediction:
    """The cost of every schedule of `table`, by the equations at the head of this file. `state` is that of the caches at the start."""
    machine = table.rates.machine
    none = np.zeros((len(machine.levels), 2 * len(OPERANDS), table.kernel.size))
    if not table.kernel.size:
        return Prediction(table, Pass(machine, {"kernel": np.empty(0)}, OPERANDS, none))
    inner, streams = machine.levels[0], streams_of(table, state)
    holds = state == "hot" and not inner.starts_cold and inner.page_share == 1  # then runs that fit L1 miss nothing
    if holds and streams.working_set.sum(axis=0).max() < inner.size_bytes - len(OPERANDS):
        return assemble(table, computed(table), none)
    compute = computed(table)
    return assemble(table, compute, traffic(table, streams, sum(compute.values())))


def assemble(table: Table, compute: Mapping[str, Array], moved: Array, tiled: bool = True) -> Prediction:
    """The cycles of every schedule from its compute terms and its traffic (as `occupancy.traffic` or a simulation counts it). Not `tiled`:
    the least cycles of schedules with these sets of channels (`tilings.sets`)."""
    machine = table.rates.machine
    core, inner, terms = machine.core, machine.levels[0], {**compute}
    terms["store"] = terms["store"] + _scattered_runs(table, moved) * core.store_run_cycles.value
    terms["pack"] = terms["pack"] + table.packed * (moved[0, 0] + moved[0, 1]) / inner.line_bytes * core.pack_line_cycles.value
    own = served(moved)
    terms["kernel"] = terms["kernel"] + _kernel_stalls(table, own) + _unhidden_by_tiles(table, tiled)
    stalls, exposed = _stalls(table, own, tiled), _exposed(table, terms["kernel"], own)
    return Prediction(table, Pass(machine, terms, OPERANDS, moved, stalls=stalls, exposed=exposed))


def predict_schedule(nest: Nest, machine: Machine, schedule: Schedule, state: State = "hot") -> Cost:
    """The cost of one given schedule. Raises PlanError for a kernel that the registry or the machine lacks."""
    return cost_of(predict(one_schedule(nest, machine, schedule), state), 0)


def one_schedule(nest: Nest, machine: Machine, schedule: Schedule, dtype: str | None = None) -> Table:
    """One given schedule as a table of one row. Raises PlanError for a kernel that the registry or the machine lacks, of another type than
    `dtype`, and for sizes that the kernel or the nest does not have."""
    kernel = next((row for row in kernels() if row.name == schedule.kernel), None)
    if kernel is None:
        raise PlanError(f"{schedule.kernel} is not in the registry")
    if dtype not in (None, kernel.dtype):
        raise PlanError(f"{kernel.name} computes {kernel.dtype}; the problem is {dtype}")
    if (schedule.windows, schedule.filters) != (kernel.windows, kernel.filters) or not 1 <= schedule.channels <= nest.group_channels:
        right = f"{kernel.windows} windows x {kernel.filters} filters and 1 to {nest.group_channels} channels"
        raise PlanError(f"{kernel.name} has tiles of {right}, not {schedule.windows} x {schedule.filters} and {schedule.channels}")
    if schedule.outputs is not None:
        raise PlanError(f"{kernel.name} transforms no tiles, so its schedules have no outputs; the named one has {schedule.outputs}")
    packs = not nest.in_place or (nest.windows_packed and not nest.filters_packed)
    if min(schedule.k2, schedule.k3) < 1 or (schedule.pack == "none" and packs):
        raise PlanError("k2 and k3 are at least 1, and pack none is for windows that lie in place: an unpadded 1x1 convolution of stride 1")
    return table_of(nest, machine, schedule, kernel)


def table_of(nest: Nest, machine: Machine, schedule: Schedule, kernel: Kernel) -> Table:
    """A legal schedule of a kernel as a table of one row."""

    def column(value: float) -> Array:
        return np.array([value], dtype=np.float64)

    sizes = (column(schedule.channels), column(schedule.k2), column(schedule.k3))
    keeps_windows = np.array([schedule.stationary == STATIONARY[0]])
    packed = column(schedule.pack == "tiles" and not nest.windows_packed)
    return Table(rates_of(nest, machine, [kernel]), keeps_windows, np.zeros(1, dtype=np.int64), packed, *sizes)


def _unfollowed(table: Table) -> Array:
    """Share of the output rows written by consecutive tiles that no prefetcher follows, because there are too many."""
    rates = table.rates
    tile = rates.filters
    rows = np.where(table.keeps_windows, np.minimum(tile * table.k2, rates.nest.group_filters), tile)
    if rates.nest.to_bytes:  # short rows of bytes lie in one page, which a prefetcher follows
        rows = np.maximum(1.0, np.minimum(rows, rows * rates.nest.windows / PAGE_BYTES))
    return np.maximum(0.0, 1.0 - rates.machine.core.prefetch_streams.value / rows)


def _scattered_runs(table: Table, moved: Array) -> Array:
    """Rows of output tiles from beyond L2 that no prefetcher brings."""
    beyond = moved[:2][-1]
    runs: Array = (beyond[-2] + beyond[-1]) / (table.rates.windows * table.rates.nest.stored_bytes)
    return runs * _unfollowed(table)


def _stalls(table: Table, own: Array, tiled: bool) -> Array | float:
    """Cycles of each supplier beyond its rate, from what it serves: lines of rows that a product reads in place, starts of runs of its
    output (of `tiled` schedules)."""
    rates = table.rates
    nest, line = rates.nest, rates.machine.line_bytes
    if nest.filters_packed and not nest.filters_in_place:
        return 0.0
    lines = own / line
    stalls: Array = (1 - table.packed) * lines[:, 0] * _line_stall(rates, rates.windows, _rows_ahead(table))
    if nest.filters_in_place and nest.filters_in_rows_of_k:
        collide = _in_one_place(nest, rates.machine.levels[0], "filters")
        ahead = ROWS_UNFETCHED if collide else ROWS_AHEAD  # `ahead_of` of native/x86/lanes.h
        stalls += lines[:, 2 * OPERANDS.index("filters")] * _line_stall(rates, rates.filters, ahead)
    elif nest.filters_in_place:
        stalls[0] += _refetched_lines(rates) * line / rates.machine.outer.read_bytes_per_cycle.value
    return stalls + _run_stalls(table, own) if tiled else stalls


def _run_stalls(table: Table, own: Array) -> Array | float:
    """Cycles until prefetchers follow a run of a product's output beyond L2. A run is the part of an output row in a set of window
    tiles, or in one tile if too many rows are written at once. 3000x3000x16 by tiles of 48 x 9 in sets of 3, 8, 16, 63: 3.6, 3.2, 3.1,
    2.95 ms (Zen 5)."""
    rates = table.rates
    share, nest = rates.machine.core.run_start_share, rates.nest
    if share is None:
        return 0.0
    tiles, unfollowed = rates.window_tiles, _unfollowed(table)
    sets = np.ceil(tiles / np.where(table.keeps_windows, table.k3, table.k2))
    runs = (unfollowed * tiles + (1 - unfollowed) * sets) / (tiles * rates.windows * nest.stored_bytes)
    stalls: Array = share.value * latencies(rates.machine)[:, None] * own[:, -2:].sum(axis=1) * runs
    stalls[0] = 0.0
    return stalls


def _exposed(table: Table, kernel: Array, own: Array) -> Array | float:
    """Transfer cycles from beyond L2 that multiply-adds do not hide. A product's windows in place: before a tile the nest prefetches more
    lines of the next one than a core has misses in flight. A convolution's filters: the first window tile that reads a filter has no more
    multiply-adds for each byte than the others."""
    rates = table.rates
    nest = rates.nest
    if len(own) < 2:
        return 0.0
    beyond, rate = own[1:], _rates(rates.machine)[1:, :1]
    exposed: Array | float = 0.0
    if not nest.filters_packed or nest.filters_in_place:
        exposed = (1 - table.packed) * (beyond[:, 2 * OPERANDS.index("input")] / rate).sum(axis=0)
    if nest.filters_packed:
        read = rates.stored_tile * rates.filter_tiles * rates.window_tiles * nest.group_channels * nest.repeats
        exposed += (beyond[:, 2 * OPERANDS.index("filters")] * np.maximum(0.0, 1 / rate - kernel / read)).sum(axis=0)
    return exposed


def _rows_ahead(table: Table) -> Array | float:
    """Rows of windows in place that are in flight at once. Kernels prefetch rows of any pitch but multiples of an L1 way
    (`ahead_of` of native/x86/lanes.h). For those only the nest prefetches the next tile, or set of tiles, into L2. If L2 does not
    hold that and the current one, lines come only when they are used: 128x3072x768 in sets of 786 KB 3.8 ms, of 295 KB 3.2; 128x768x3072
    3.1 and 2.8 (Zen 5, 1 MiB). Rows at a pitch P use a share (bytes of a tile's row) / gcd(P, way) of the sets: tiles of 48 columns, rows
    12 KiB apart, use 48 KiB of 1 MiB."""
    rates, outer = table.rates, table.rates.machine.outer
    nest = rates.nest
    if not _in_one_place(nest, rates.machine.levels[0], "input"):
        return ROWS_AHEAD
    row = rates.windows * nest.element_bytes
    places = np.minimum(1.0, row / _common_pitch(nest, outer))
    tiles = np.where(table.keeps_windows, 1.0, np.minimum(table.k2, rates.window_tiles))
    return np.where(2 * tiles * row * table.channels > places * outer.size_bytes, ROWS_UNFETCHED, ROWS_AHEAD)


@asked
def _in_one_place(nest: Nest, level: Level, operand: str) -> bool:
    """Whether rows of the input in place, or of filters in rows of k, begin in the same set of a level."""
    pitch = nest.plane_bytes if operand == "input" else (nest.filter_rows or (0, 0))[0]
    return pitch % level.way_bytes == 0


@asked
def _common_pitch(nest: Nest, level: Level) -> int:
    """Bytes of a level's way between the places where rows of windows in place begin."""
    return gcd(nest.plane_bytes, level.way_bytes)


def _line_stall(rates: Rates, run: Array, rows: Array | float = ROWS_AHEAD) -> Array:
    """Cycles that a line of a row stalls for each supplier beyond its rate, with `rows` in flight; a tile reads `run` elements of a row."""
    return _excess_latency(rates.machine, rows * np.maximum(1.0, run * rates.nest.element_bytes / rates.machine.line_bytes))


def _excess_latency(machine: Machine, in_flight: Array) -> Array:
    """Cycles of a line from each supplier beyond its rate, with some lines in flight at once."""
    excess: Array = np.maximum(0.0, latencies(machine)[:, None] / in_flight - machine.line_bytes / _rates(machine)[:, :1])
    return excess


def _kernel_stalls(table: Table, own: Array) -> Array | float:
    """Cycles in which a kernel has nothing to multiply: all rows of an A in place reach new lines at once, which nobody prefetched; rows of
    windows in place evict each other."""
    rates, line = table.rates, table.rates.machine.line_bytes
    stalls: Array | float = 0.0
    if (crowded := _crowded_cycles(rates.nest, rates.machine)) is not None:
        stalls = (1 - table.packed) * own[:, 2 * OPERANDS.index("input")].sum(axis=0) / line * crowded
    if rates.nest.filters_in_place and not rates.nest.filters_in_rows_of_k:
        lines = own[:, 2 * OPERANDS.index("filters")] / line
        stalls += (lines * _excess_latency(rates.machine, rates.filters)).sum(axis=0)
    return stalls


def _unhidden_by_tiles(table: Table, tiled: bool) -> Array | float:
    """Cycles that a matrix unit's calls on unsplit operands are too short to hide. Not `tiled`: the least of any sets of tiles."""
    rates = table.rates
    costs = next((one.short_calls for one in rates.machine.core.units if one.short_calls), None)
    if costs is None:
        return 0.0
    sets = np.ceil(rates.nest.group_channels / table.channels)
    cycles: Array = rates.unsplit * rates.nest.repeats * sets * (_page_stalls(table, costs, tiled) + _fetch_cycles(table, costs, tiled))
    return cycles


def _page_stalls(table: Table, costs: ShortCalls, tiled: bool) -> Array:
    """Waits for translations in a set of channels: results and rows of A in place of another filter tile lie in other pages."""
    rates, nest = table.rates, table.rates.nest
    pitches = [nest.windows * nest.stored_bytes]
    if not nest.filters_packed and nest.filters_transposed:
        pitches.append(nest.group_channels * nest.element_bytes)
    pages = sum(np.minimum(rates.filters, np.ceil(rates.filters * pitch / PAGE_BYTES)) for pitch in pitches)
    passes = np.where(table.keeps_windows & (table.k2 > 1), rates.window_tiles, np.ceil(rates.window_tiles / table.k2))
    passes = np.where(table.keeps_windows & (table.k2 <= 1), np.ceil(rates.window_tiles / table.k3), passes)
    near = nest.group_filters * sum(pitches) <= costs.near_pages.value * PAGE_BYTES
    cycles = np.where(near, costs.page_cycles.value, costs.page_walk_cycles.value)
    stalls: Array = rates.filter_tiles * (passes if tiled else 1.0) * pages * cycles
    return stalls


def _fetch_cycles(table: Table, costs: ShortCalls, tiled: bool) -> Array:
    """To fetch the lines of the next panels in a set of channels (native/algorithms/nest/ahead.h): of the inner tiles in each iteration of
    the loop over sets of k2 others, unless these leave them in L2, and of these once for each set of k3."""
    rates, nest = table.rates, table.rates.nest
    line = nest.taps * table.channels * nest.element_bytes / rates.machine.line_bytes
    windows, filters = rates.windows * line * rates.window_tiles, rates.filters * line * rates.filter_tiles
    of_sets, kept = np.where(table.keeps_windows, rates.filter_tiles, rates.window_tiles), np.where(table.keeps_windows, windows, filters)
    others, blocks = np.where(table.keeps_windows, filters, windows), np.where(table.keeps_windows, rates.window_tiles, rates.filter_tiles)
    panels = np.where(
        table.keeps_windows, rates.windows * table.k3 + rates.filters * table.k2, rates.filters * table.k3 + rates.windows * table.k2
    )
    near = panels * line * rates.machine.line_bytes <= NEAR_BYTES
    times = np.where(near, 1.0, np.ceil(of_sets / table.k2)) if tiled else 1.0
    cycles: Array = costs.fetch_line_cycles.value * (kept * times + others * np.ceil(blocks / table.k3))
    return cycles


@asked
def _crowded_cycles(nest: Nest, machine: Machine) -> float | None:
    """Wait for a line of windows in place; None without one. Rows whose pitch has a large divisor in common with an L1 way lie in few
    places of it. Rows that are prefetched and as many that are being read evict each other if those places have no more lines."""
    inner, cycles = machine.levels[0], machine.core.crowded_line_cycles
    places = inner.way_bytes // gcd(inner.way_bytes, nest.plane_bytes)
    return cycles.value / places if cycles and places * inner.ways <= 2 * ROWS_AHEAD else None


def _refetched_lines(rates: Rates) -> Array:
    """Lines of filters in place that are reloaded from L2 because the rows of a tile share sets of L1. If a set has more rows than ways,
    every k-iteration reloads all rows. If it has as many, each line of windows in that set evicts the rows one after another."""
    nest, inner, way = rates.nest, rates.machine.levels[0], rates.machine.levels[0].way_bytes
    rows = np.ceil(rates.filters / _places_of_filters(nest, inner))
    evicted = np.where(rows > inner.ways, 1.0, (rows == inner.ways) * np.minimum(1.0, rates.windows * nest.element_bytes / way))
    iterations = nest.repeats * nest.group_channels * rates.window_tiles * rates.filter_tiles
    return evicted * iterations * rates.filters


@asked
def _places_of_filters(nest: Nest, level: Level) -> int:
    """Places of a level's way in which rows of filters in place begin."""
    apart = gcd(level.way_bytes, nest.group_channels * nest.element_bytes)
    return level.way_bytes // apart if apart >= level.line_bytes else level.way_bytes


def write_allocate_cycles(machine: Machine, moved: Array) -> Array:
    """Cycles of each supplier in which written lines come in first, if no prefetch has asked for them: the `stalls` of a pass."""
    return served(moved[:, 1::2].sum(axis=1)) / _rates(machine)[:, :1]


def served(moved: Array) -> Array:
    """The part of each supplier's traffic that it holds itself."""
    own = moved.copy()
    own[:-1] -= moved[1:]
    return own


def pass_of(nest: LoopNest, machine: Machine, terms: Mapping[str, Array], state: State, overlappable: Array | float = 1.0) -> Pass:
    """The pass of a nest that does not prefetch the lines it writes."""
    moved = traffic_of(nest, nest.misses(machine.levels, state, sum(terms.values())))
    return Pass(machine, terms, nest.names, moved, overlappable, write_allocate_cycles(machine, moved))


def traffic_of(nest: LoopNest, misses: Array) -> Array:
    """The traffic of a pass from the misses of each level: two rows for each operand, read only and written."""
    written = np.array([(not operand.written, operand.written) for operand in nest.operands])
    return (misses[:, :, None] * written[:, :, None]).reshape(len(misses), -1, misses.shape[-1])


@lru_cache(maxsize=64)
def suppliers(machine: Machine) -> dict[str, Level | Memory]:
    """The level or memory from which each cache level gets its lines."""
    return {**{level.name: level for level in machine.levels[1:]}, "memory": machine.memory}


@lru_cache(maxsize=64)
def latencies(machine: Machine) -> Array:
    """Latency of each supplier, cycles."""
    return np.array([place.latency_cycles.value for place in suppliers(machine).values()])


@lru_cache(maxsize=64)
def _rates(machine: Machine) -> Array:
    """Bytes a cycle of each supplier, read and written."""
    return np.array([(at.read_bytes_per_cycle.value, at.write_bytes_per_cycle.value) for at in suppliers(machine).values()])


def transfer_cycles(machine: Machine, moved: Array) -> Array:
    """Cycles of each supplier: the bytes that it serves itself over its rates as the core sees them."""
    own = served(moved.reshape(len(moved), moved.shape[1] // 2, 2, moved.shape[2]).sum(axis=1))
    return (own / _rates(machine)[:, :, None]).sum(axis=1)


@lru_cache(maxsize=256)
def assumed(machine: Machine, target: str, latencies: bool = False, unread: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Paths of the assumed numbers that a cost on a unit uses. Left out: other units, energy, what is `unread`, and latencies of caches and
    memory unless the cost has `latencies`."""
    others = tuple(f"core.units.{unit.target}" for unit in machine.core.units if unit.target != target)
    paths = (path for path in machine.assumed() if not path.startswith(("csa", "energy", *others, *unread)))
    return tuple(path for path in paths if latencies or not path.endswith(".latency_cycles"))


def cost_of(prediction: Prediction, row: int) -> Cost:
    """One row of a prediction as a value, with the bytes that each operand moves through each level."""
    return cost_from([prediction.costs], row)


def cost_from(passes: Sequence[Pass], row: int = 0) -> Cost:
    """The cost of one schedule of passes that run one after another; a pass with a single schedule is shared by all."""
    machine = passes[0].machine
    terms, hidden, levels = dict[str, float](), dict[str, float](), dict[str, dict[str, float]]()
    transfers = dict.fromkeys(suppliers(machine), 0.0)
    for part in passes:
        at = row if part.cycles.size > 1 else 0
        transfer = dict(zip(transfers, part.transfer[:, at].tolist(), strict=True))
        compute = {name: float(cycles[at]) for name, cycles in part.terms.items()}
        lesser = transfer if part.compute[at] >= sum(transfer.values()) else compute
        share = float(part.overlapped[at]) / max(sum(lesser.values()), 1e-300)
        _add(terms, compute)
        _add(transfers, transfer)
        _add(hidden, {name: share * cycles for name, cycles in lesser.items()})
        for above, (name, cycles), moved in zip(machine.levels, transfer.items(), part.moved[:, :, at].tolist(), strict=True):
            back = sum(moved[1::2])
            size, level = sum(moved) + back, levels.setdefault(name, {})
            _add(level, {"lines": size / above.line_bytes, "bytes": size, "cycles": cycles, "writeback_lines": back / above.line_bytes})
            for operand, read, written in zip(part.operands, moved[::2], moved[1::2], strict=True):
                key = operand + "_bytes"
                level[key] = level.get(key, 0.0) + read + 2 * written
    terms |= transfers
    cycles = sum(terms.values()) - sum(hidden.values())
    bound_by = max(terms, key=lambda name: terms[name] - hidden.get(name, 0.0))
    return Cost(cycles, cycles / machine.clock_hz, bound_by, levels, terms, hidden)


def _add(to: dict[str, float], more: Mapping[str, float]) -> None:
    for name, value in more.items():
        to[name] = to.get(name, 0.0) + value


def schedule_of(prediction: Prediction, row: int) -> Schedule:
    """One row of a prediction's table as the schedule that the macro-kernel obeys."""
    table = prediction.table
    nest, kernel = table.rates.nest, table.rates.kernels[table.kernel[row]]
    return Schedule(
        kernel=kernel.name,
        stationary=STATIONARY[0 if table.keeps_windows[row] else 1],
        pack="tiles" if table.packed[row] or (nest.windows_packed and not nest.filters_packed) else "none",
        windows=kernel.windows,
        filters=kernel.filters,
        channels=int(table.channels[row]),
        k2=int(table.k2[row]),
        k3=int(table.k3[row]),
    )
