# SPDX-License-Identifier: Apache-2.0
"""The full cost model: cycles of a schedule on a machine, for whole tables of schedules at once.

    compute  = kernel + call + store + pack                       in-core work, cycles
    transfer = sum over suppliers X of  read_X / read_rate_X + written_X / write_rate_X
    cycles   = max(compute, transfer) + (1 - overlap) min(compute, transfer)          seconds = cycles / frequency

kernel  Each step of k does, for its tile, max(multiply-adds / fma_per_cycle, (window vectors + filter vectors) /
        loads_per_cycle, fma_latency) cycles: every accumulator is updated once a step. Edge tiles fill whole lanes. Steps are
        channels x taps, less the kernel rows that lie in vertical padding for all windows of a tile (`Nest.live_rows`).
call    call_cycles for each micro-kernel call: channel sets x window tiles x filter tiles.
store   Output vectors / stores_per_cycle, once per channel set, and their loads again in every set after the first. A `fil`
        kernel also stores its tile once to the stack and transposes it: lanes log2(lanes) shuffles a block, one a cycle. Tiles
        in turn write a short run of each of many output rows (those of K2 filter tiles input stationary, of one weight
        stationary). Prefetchers follow prefetch_streams of them; a run of another one waits store_run_cycles beyond L2.
pack    Packed vectors x (1 / stores_per_cycle + pack_cycles), and pack_call_cycles for each run and kernel row. A run is the part
        of a tile in one row of outputs; short ones fill vectors badly (`segments`). Stride s > 1: s loads and s permutes a vector.
        Transposed operand: log2(lanes) shuffles a vector. Each input line that is not in L1 makes packing wait for
        pack_line_cycles: its short runs leave nothing to compute meanwhile. Input stationary packs each window tile once per
        channel set, weight stationary once per set of K3 filter tiles; a matrix product packs its filters too, the other way round.
L2, L3, memory
        Each operand is a few streams: bytes that are touched again after a known reuse distance, the bytes touched in between
        (equations 4 and 5 of `csa` are two of them, where one panel takes the other's place). A cache of A ways misses those lines
        whose set gets more than A lines in between, their own among them: the chance of that is derived in `occupancy` from how
        many ways each operand fills and how it lies. The BLIS model (Low et al., TOMS 43(2), 2016) is its limit for whole ways.
        Only what misses the level inside counts. What misses one level crosses from the next; the level where it hits is charged,
        at the rate that the core sees from it. A written line comes in and goes back out. First touches lie a whole run apart:
        what fits a level starts there ("hot"); cold, they all miss; of a layer in a network its filters do ("chained").
late    A window tile reads all filters, and the first one that does takes them from L3 or memory, at less than the micro-kernel multiplies
        where a tile has few windows: the other tiles' multiply-adds hide nothing of that, late = bytes max(0, 1 / read_rate_X - kernel /
        bytes that all tiles read), and only transfer - late overlaps.
wait    Rows of B that a product reads in place lie a row of B apart, where no prefetcher follows (planes of the 1x1 convolutions that
        were timed did not wait). A kernel asks for its rows ROWS_AHEAD ahead, so a line
        from X takes max(line / read_rate_X, latency_X / (ROWS_AHEAD lines of a row of the tile)). So do rows of k of an A in place; where
        its own rows lie so that a tile's share more sets of L1 than there are ways, each step takes a line of each from L2. These rows
        have their lines at the same steps, so a tile of F waits max(0, latency_X / F - line / read_rate_X) for each, in `kernel`.
        Each run of an output's row that lies beyond L2 and begins apart waits run_start_share latency_X (products; those of a
        convolution follow one another).

What runs one after another (`Pass`: columns and their product, Winograd's transforms and products) hides behind nothing of the others.

Assumptions: replacement is LRU and buffers are contiguous in physical memory (4 KiB pages scatter larger ones, and conflict more);
prefetching is in the measured rates, TLB misses are nowhere; where operands begin is independent of each other; one core.

Worked number: 64 -> 64 channels, 56x56, 3x3, f32_win_32x14__avx512 on a core with one 512-bit multiply-add a cycle. A full tile
takes 2 * 14 = 28 cycles a step. 292 of 294 kernel rows are live, and 64 filters are 4 full tiles and one of 8 (16 cycles), so
kernel = 292 * 3 * 64 * (4 * 28 + 16) = 7,176,192 cycles, against 231,211,008 / 32 = 7,225,344 for nominal flops at 32 a cycle.
Tiles of 64 windows in place are 4 lines, 32 on their way at once: of a latency of 550 cycles each waits 17, where 8.7 bytes a cycle alone
take 7. Measured on a Zen 5: gemm:1x4096x4096 with B in place takes 3.1 times the time of its bytes.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.cpu.incore import Array, Rates, Table, compute_cycles, fetch_cycles, select
from pysim.cachemodel.cpu.incore import rates as rates_of
from pysim.cachemodel.cpu.loops import LoopNest
from pysim.cachemodel.cpu.nest import Nest
from pysim.cachemodel.cpu.occupancy import crossing
from pysim.cachemodel.cpu.reuse import OPERANDS, Flows, flows
from pysim.errors import PlanError
from pysim.machine.cpu import Level, Machine, Memory
from pysim.record.cost import Cost
from pysim.record.schedule import STATIONARY, Schedule
from pysim.record.state import State
from pysim.registry.cpu import Kernel, kernels

# of what a nest's call takes, with its loops and edges, that of other loops (least squares: Winograd's 0.46 over 115 plans on a Zen 4, 0.27
# over 306 on an Emerald Rapids; of rows of depthwise tiles 0.36 to 0.86)
SHORT_CALL = 0.5
MANY = 64  # schedules: of fewer all are predicted at once
NEAR = 1.01  # times what a kind surely takes: where its best is looked for first
ROWS_AHEAD = 8  # of native/x86/lanes.h: rows that a kernel asks for ahead


class Pass:
    """What computes and transfers at once, of every schedule: `terms` in cycles; `moved`, bytes [supplier][2 an operand][schedule],
    only read and written; `wait`, cycles beyond what they take at the suppliers' rates; transfers hide behind the share
    of computing that `covers` them, `late` cycles of them behind none. `beside`: cycles in which both go on."""

    def __init__(
        self,
        machine: Machine,
        terms: Mapping[str, Array],
        operands: Sequence[str],
        moved: Array,
        covers: Array | float = 1.0,
        wait: Array | float = 0.0,
        late: Array | float = 0.0,
    ) -> None:
        self.machine, self.terms, self.operands, self.moved = machine, terms, operands, moved
        self.compute: Array = sum(terms.values(), np.zeros(1))
        self.transfer = transfer_cycles(machine, moved) + wait
        moving = self.transfer.sum(axis=0)
        self.beside: Array = machine.core.overlap.value * np.minimum(self.compute * covers, moving - late)
        self.cycles: Array = self.compute + moving - self.beside


class Prediction(NamedTuple):
    """The cost of every row of a table; `least` is what none of a kernel's rows goes below that were left out of it."""

    table: Table
    one: Pass
    least: Array | None = None

    @property
    def cycles(self) -> Array:
        return self.one.cycles


def predict(table: Table, state: State = "hot", limit: Array | None = None, done: Array | None = None) -> Prediction:
    """The cost of every schedule of `table`: the equations at the head of this file. `state` is that of the caches at the start.

    Schedules whose compute cycles alone, with what packing waits at least, exceed `limit`, or do not exceed what is `done` (of input and
    weight stationary ones), are left out of the prediction and of its table; of many within a limit so are those that cannot be the best of
    their kind.
    """
    terms = compute_cycles(table)
    if limit is not None:
        least = sum(terms.values(), table.packed * fetch_cycles(table.rates))
        keep = least <= np.where(table.keeps_windows, *limit)
        if done is not None:
            keep &= least > np.where(table.keeps_windows, *done)
        keep[least.argmin()] |= not keep.any()  # no table is empty
        if not keep.all():
            table, terms = select(table, keep), {name: term[keep] for name, term in terms.items()}
    found = flows(table, state)
    if limit is None or np.isinf(limit).any() or table.kernel.size < MANY:
        return total(table, terms, crossing(table, found))
    return _contenders(table, terms, found)


def _contenders(table: Table, terms: Mapping[str, Array], found: Flows) -> Prediction:
    """Those schedules that may be the best of their kind: the others take longer by what they surely miss alone. How sets are filled, which
    takes most of the time, is asked of these."""
    kind = np.where(table.keeps_windows, 0, 1)
    sure = total(table, {**terms}, crossing(table, found, surely=True)).cycles
    most = NEAR * _least(sure, kind)
    while True:
        (rows,) = np.nonzero(sure <= most[kind])
        some = select(table, rows)
        one = total(some, {name: term[rows] for name, term in terms.items()}, crossing(some, found.of(rows)))
        best = _least(one.cycles, kind[rows])
        if (best <= most).all():
            return one._replace(least=_least(sure, table.kernel, len(table.rates.kernels)))
        most = best


def _least(cycles: Array, group: NDArray[np.int64], groups: int = 2) -> Array:
    """Of each group, infinity where it has none."""
    found = np.full(groups, np.inf)
    np.minimum.at(found, group, cycles)
    return found


def total(table: Table, terms: dict[str, Array], moved: Array) -> Prediction:
    """The compute terms of every schedule with what crosses from each supplier (as `crossing` has it), whoever counted that, as cycles."""
    machine = table.rates.machine
    core, inner = machine.core, machine.levels[0]
    terms["store"] = terms["store"] + _scattered_runs(table, moved) * core.store_run_cycles.value
    terms["pack"] = terms["pack"] + table.packed * (moved[0, 0] + moved[0, 1]) / inner.line_bytes * core.pack_line_cycles.value
    terms["kernel"] = terms["kernel"] + _stalls(table, moved)
    late = _late(table, terms["kernel"], moved)
    return Prediction(table, Pass(machine, terms, OPERANDS, moved, wait=_waits(table, moved), late=late))


def predict_schedule(nest: Nest, machine: Machine, schedule: Schedule, state: State = "hot") -> Cost:
    """The cost of one given schedule. Raises PlanError for a kernel that the registry or the machine lacks."""
    return cost_of(predict(one_schedule(nest, machine, schedule), state), 0)


def one_schedule(nest: Nest, machine: Machine, schedule: Schedule, dtype: str | None = None) -> Table:
    """One given schedule as a table of one row. Raises PlanError for a kernel that the registry or the machine lacks, of another type than
    `dtype`, and for sizes that the kernel or the nest does not have."""
    kernel = next((row for row in kernels() if row.name == schedule.kernel), None)
    if kernel is None:
        raise PlanError(f"{schedule.kernel} is no row of the registry")
    if dtype not in (None, kernel.dtype):
        raise PlanError(f"{kernel.name} computes {kernel.dtype}; the problem is {dtype}")
    if (schedule.windows, schedule.filters) != (kernel.windows, kernel.filters) or not 1 <= schedule.channels <= nest.group_channels:
        right = f"{kernel.windows} windows x {kernel.filters} filters and 1 to {nest.group_channels} channels"
        raise PlanError(f"{kernel.name} has tiles of {right}, not {schedule.windows} x {schedule.filters} and {schedule.channels}")
    if schedule.outputs is not None:
        raise PlanError(f"{kernel.name} transforms no tiles, so its schedules have no outputs; the named one has {schedule.outputs}")
    if min(schedule.k2, schedule.k3) < 1 or (schedule.pack == "none" and not nest.in_place):
        raise PlanError("k2 and k3 are at least 1, and pack none is for windows that lie in place: an unpadded 1x1 convolution of stride 1")
    return of_row(nest, machine, schedule, kernel)


def of_row(nest: Nest, machine: Machine, schedule: Schedule, kernel: Kernel) -> Table:
    """A schedule that is known to be legal for a kernel."""

    def column(value: float) -> Array:
        return np.array([value], dtype=np.float64)

    sizes = (column(schedule.channels), column(schedule.k2), column(schedule.k3))
    keeps = np.array([schedule.stationary == STATIONARY[0]])
    return Table(rates_of(nest, machine, [kernel]), keeps, np.zeros(1, dtype=np.int64), column(schedule.pack == "tiles"), *sizes)


def _unfollowed(table: Table) -> Array:
    """Share of the rows of outputs written in turn that no prefetcher follows, because there are too many."""
    rates = table.rates
    tile = rates.filters
    rows = np.where(table.keeps_windows, np.minimum(tile * table.k2, rates.nest.group_filters), tile)
    return np.maximum(0.0, 1.0 - rates.machine.core.prefetch_streams.value / rows)


def _scattered_runs(table: Table, moved: Array) -> Array:
    """Rows of output tiles from beyond L2 that no prefetcher brings."""
    beyond = moved[:2][-1]
    runs: Array = (beyond[-2] + beyond[-1]) / (table.rates.windows * table.rates.nest.result_bytes)
    return runs * _unfollowed(table)


def _waits(table: Table, moved: Array) -> Array | float:
    """Cycles of each supplier beyond its rate, for lines of rows that a product reads in place, and where runs of its output begin."""
    rates = table.rates
    nest, line = rates.nest, rates.machine.line_bytes
    if nest.filters_packed and not nest.filters_in_place:
        return 0.0
    served = _served(moved) / line
    found: Array = (1 - table.packed) * served[:, 0] * _wait_of_lines(rates, rates.windows, _rows_ahead(table))
    if nest.filters_in_place and nest.filters_in_rows_of_k:
        found += served[:, 2 * OPERANDS.index("filters")] * _wait_of_lines(rates, rates.filters)
    elif nest.filters_in_place:
        found[0] += _refetched_lines(rates) * line / rates.machine.outer.read_bytes_per_cycle.value
    return found + _run_waits(table, moved)


def _run_waits(table: Table, moved: Array) -> Array | float:
    """Cycles until prefetchers follow a run of a product's output beyond L2: of a row, the window tiles of a set, or one tile where too
    many rows are written in turn. 3000x3000x16 by tiles of 48 x 9 in sets of 3, 8, 16, 63: 3.6, 3.2, 3.1, 2.95 ms (Zen 5)."""
    rates = table.rates
    share, nest = rates.machine.core.run_start_share, rates.nest
    if share is None:
        return 0.0
    tiles, unfollowed = rates.window_tiles, _unfollowed(table)
    sets = np.ceil(tiles / np.where(table.keeps_windows, table.k3, table.k2))
    runs = (unfollowed * tiles + (1 - unfollowed) * sets) / (tiles * rates.windows * nest.result_bytes)
    found: Array = share.value * latencies(rates.machine)[:, None] * _served(moved)[:, -2:].sum(axis=1) * runs
    found[0] = 0.0
    return found


def _late(table: Table, kernel: Array, moved: Array) -> Array | float:
    """Cycles in which the micro-kernel has multiplied what came of a convolution's filters from beyond L2, and waits for more: each window
    tile reads all of them, the first one from there, and multiplies no longer with each byte than the others do."""
    rates = table.rates
    nest = rates.nest
    if not nest.filters_packed or len(moved) < 2:
        return 0.0
    read = rates.stored_tile * rates.filter_tiles * rates.window_tiles * nest.group_channels * nest.repeats
    each = 1 / _rates(rates.machine)[1:, :1] - kernel / read
    return (_served(moved)[1:, 2 * OPERANDS.index("filters")] * np.maximum(0.0, each)).sum(axis=0)


def _rows_ahead(table: Table) -> Array | float:
    """Rows of windows in place that are on their way at once. What the nest asks for beforehand, the next tile or set of tiles, has to find
    room in L2 beside the one that is multiplied, lest a line comes when it is used: 128x3072x768 in sets of 786 KB 3.8 ms, of 295 KB 3.2,
    128x768x3072 3.1 and 2.8 (Zen 5, 1 MiB)."""
    rates = table.rates
    nest = rates.nest
    asked = np.where(table.keeps_windows, 1.0, np.minimum(table.k2, rates.window_tiles))
    asked *= rates.windows * table.channels * nest.element_bytes
    return np.where(2 * asked > rates.machine.outer.size_bytes, 1.0, ROWS_AHEAD)


def _wait_of_lines(rates: Rates, run: Array, rows: Array | float = ROWS_AHEAD) -> Array:
    """Cycles that a line of a row waits for each supplier beyond its rate; `run`: elements of a row that a tile reads."""
    return _beyond_rate(rates.machine, rows * np.maximum(1.0, run * rates.nest.element_bytes / rates.machine.line_bytes))


def _beyond_rate(machine: Machine, ahead: Array) -> Array:
    """Cycles that a line waits for each supplier beyond its rate, where so many are on their way at once."""
    line, places = machine.line_bytes, suppliers(machine).values()
    return np.array([np.maximum(0.0, at.latency_cycles.value / ahead - line / at.read_bytes_per_cycle.value) for at in places])


def _stalls(table: Table, moved: Array) -> Array | float:
    """Cycles in which a kernel has nothing to multiply: rows of an A in place end their lines together, and nobody asked for the next."""
    rates = table.rates
    if not rates.nest.filters_in_place or rates.nest.filters_in_rows_of_k:
        return 0.0
    lines = _served(moved)[:, 2 * OPERANDS.index("filters")] / rates.machine.line_bytes
    return (lines * _beyond_rate(rates.machine, rates.filters)).sum(axis=0)


def _refetched_lines(rates: Rates) -> Array:
    """Lines of filters in place that each step takes from L2 again, because the rows of a tile share more sets of L1 than it has ways."""
    nest, inner = rates.nest, rates.machine.levels[0]
    way, apart = inner.way_bytes, gcd(inner.way_bytes, nest.group_channels * nest.element_bytes)
    places = way // apart if apart >= inner.line_bytes else way
    crowded = np.ceil(rates.filters / places) > inner.ways - 1  # a way is left to what streams by
    steps = nest.repeats * nest.group_channels * rates.window_tiles * rates.filter_tiles
    return crowded * steps * rates.filters


def fills(machine: Machine, moved: Array) -> Array:
    """Cycles of each supplier for written lines to come in first, where no loop has asked for them: the `wait` of a pass."""
    return _served(moved[:, 1::2].sum(axis=1)) / _rates(machine)[:, :1]


def _served(moved: Array) -> Array:
    """Of what crosses from each supplier, what it has itself."""
    own = moved.copy()
    own[:-1] -= moved[1:]
    return own


def pass_of(nest: LoopNest, machine: Machine, terms: Mapping[str, Array], state: State, covers: Array | float = 1.0) -> Pass:
    """Of a nest whose written lines no loop has asked for."""
    moved = crossed(nest, nest.misses(machine.levels, state))
    return Pass(machine, terms, nest.names, moved, covers, fills(machine, moved))


def crossed(nest: LoopNest, misses: Array) -> Array:
    """Bytes of each operand that are only read and that are written, as a pass has them, of what misses each level."""
    written = np.array([(not one.written, one.written) for one in nest.operands])
    return (misses[:, :, None] * written[:, :, None]).reshape(len(misses), -1, misses.shape[-1])


@lru_cache(maxsize=64)
def suppliers(machine: Machine) -> dict[str, Level | Memory]:
    """What each level of a machine gets its lines from."""
    return {**{level.name: level for level in machine.levels[1:]}, "memory": machine.memory}


def latencies(machine: Machine) -> Array:
    """Cycles until a line of each supplier comes."""
    return np.array([place.latency_cycles.value for place in suppliers(machine).values()])


@lru_cache(maxsize=64)
def _rates(machine: Machine) -> Array:
    """Bytes a cycle of each supplier, read and written."""
    return np.array([(at.read_bytes_per_cycle.value, at.write_bytes_per_cycle.value) for at in suppliers(machine).values()])


def transfer_cycles(machine: Machine, moved: Array) -> Array:
    """Cycles of each supplier: the bytes that it serves itself over its rates as the core sees them."""
    served = _served(moved.reshape(len(moved), -1, 2, moved.shape[-1]).sum(axis=1))
    return (served / _rates(machine)[:, :, None]).sum(axis=1)


@lru_cache(maxsize=256)
def assumed(machine: Machine, target: str, latencies: bool = False, unread: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Paths of the assumed numbers that a cost on a unit leans on: neither other units' nor what is `unread`, and no latencies but a
    multiply-add's unless it waits for what lies further out."""
    others = tuple(f"core.units.{unit.target}" for unit in machine.core.units if unit.target != target)
    found = (path for path in machine.assumed() if not path.startswith(("csa", *others, *unread)))
    return tuple(path for path in found if latencies or not path.endswith(".latency_cycles"))


def cost_of(prediction: Prediction, row: int) -> Cost:
    """One row of a prediction as a value, with the bytes that each operand moves through each level."""
    return cost_from([prediction.one], row)


def cost_from(passes: Sequence[Pass], row: int = 0) -> Cost:
    """The cost of one schedule of passes one after another; a pass of one schedule is that of all."""
    machine = passes[0].machine
    terms, hidden, levels = dict[str, float](), dict[str, float](), dict[str, dict[str, float]]()
    transfers = dict.fromkeys(suppliers(machine), 0.0)
    for one in passes:
        at = row if one.cycles.size > 1 else 0
        moving = dict(zip(transfers, one.transfer[:, at].tolist(), strict=True))
        computing = {name: float(of[at]) for name, of in one.terms.items()}
        lesser = moving if one.compute[at] >= sum(moving.values()) else computing
        share = float(one.beside[at]) / max(sum(lesser.values()), 1e-300)
        _add(terms, computing)
        _add(transfers, moving)
        _add(hidden, {name: share * cycles for name, cycles in lesser.items()})
        for above, (name, cycles), moved in zip(machine.levels, moving.items(), one.moved[:, :, at].tolist(), strict=True):
            back = sum(moved[1::2])
            size, found = sum(moved) + back, levels.setdefault(name, {})
            _add(found, {"lines": size / above.line_bytes, "bytes": size, "cycles": cycles, "writeback_lines": back / above.line_bytes})
            for operand, read, written in zip(one.operands, moved[::2], moved[1::2], strict=True):
                key = operand + "_bytes"
                found[key] = found.get(key, 0.0) + read + 2 * written
    terms |= transfers
    cycles = sum(terms.values()) - sum(hidden.values())
    bound_by = max(terms, key=lambda name: terms[name] - hidden.get(name, 0.0))
    return Cost(cycles, cycles / machine.clock_hz, bound_by, levels, terms, hidden)


def _add(to: dict[str, float], some: Mapping[str, float]) -> None:
    for name, value in some.items():
        to[name] = to.get(name, 0.0) + value


def schedule_of(prediction: Prediction, row: int) -> Schedule:
    """One row of a prediction's table as the schedule that the macro-kernel obeys."""
    table = prediction.table
    kernel = table.rates.kernels[table.kernel[row]]
    return Schedule(
        kernel=kernel.name,
        stationary=STATIONARY[0 if table.keeps_windows[row] else 1],
        pack="tiles" if table.packed[row] else "none",
        windows=kernel.windows,
        filters=kernel.filters,
        channels=int(table.channels[row]),
        k2=int(table.k2[row]),
        k3=int(table.k3[row]),
    )
