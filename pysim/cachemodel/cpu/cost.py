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
        what fits a level starts there ("hot"); cold, they all miss.

Assumptions: replacement is LRU and buffers are contiguous in physical memory (4 KiB pages scatter larger ones, and conflict more);
prefetching is in the measured rates, TLB misses are nowhere; where operands begin is independent of each other; one core.

Worked number: 64 -> 64 channels, 56x56, 3x3, f32_win_32x14__avx512 on a core with one 512-bit multiply-add a cycle. A full tile
takes 2 * 14 = 28 cycles a step. 292 of 294 kernel rows are live, and 64 filters are 4 full tiles and one of 8 (16 cycles), so
kernel = 292 * 3 * 64 * (4 * 28 + 16) = 7,176,192 cycles, against 231,211,008 / 32 = 7,225,344 for nominal flops at 32 a cycle.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pysim.cachemodel.cpu.incore import Array, Rates, Table, compute_cycles, fetch_cycles, select
from pysim.cachemodel.cpu.incore import rates as rates_of
from pysim.cachemodel.cpu.nest import Nest
from pysim.cachemodel.cpu.occupancy import crossing
from pysim.cachemodel.cpu.reuse import OPERANDS, flows
from pysim.errors import PlanError
from pysim.machine.cpu import Machine
from pysim.record.cost import Cost
from pysim.record.schedule import STATIONARY, Schedule
from pysim.registry.cpu import kernels

COMPUTE = ("kernel", "call", "store", "pack")


class Prediction(NamedTuple):
    """The cost of every row of a table: `terms` in cycles, and per supplier the bytes that cross from it, as `crossing` returns them."""

    rates: Rates
    table: Table
    cycles: Array
    terms: dict[str, Array]
    crossed: dict[str, Array]


def predict(rates: Rates, table: Table, hot: bool = True, limit: float = np.inf) -> Prediction:
    """The cost of every schedule of `table`: the equations at the head of this file. `hot` is the state of the caches at the start.

    Schedules whose compute cycles alone, with what packing waits at least, exceed `limit` are left out of the prediction and of its table.
    """
    terms = compute_cycles(rates, table)
    if limit < np.inf:
        keep = sum(terms.values(), table.packed * fetch_cycles(rates)) <= limit
        table, terms = select(table, keep), {name: term[keep] for name, term in terms.items()}
    return total(rates, table, terms, crossing(rates, flows(rates, table, hot)))


def total(rates: Rates, table: Table, terms: dict[str, Array], crossed: dict[str, Array]) -> Prediction:
    """The compute terms of every schedule with what crosses from each supplier, whoever counted that, as cycles."""
    machine = rates.machine
    moved = np.array(list(crossed.values()))
    terms["store"] = terms["store"] + _scattered_runs(rates, table, moved) * machine.core.store_run_cycles.value
    terms["pack"] = terms["pack"] + table.packed * _lines_packed(machine, moved) * machine.core.pack_line_cycles.value
    compute = terms["kernel"] + terms["call"] + terms["store"] + terms["pack"]
    transfer = transfer_cycles(machine, moved)
    terms |= zip(crossed, transfer, strict=True)
    moving = transfer.sum(axis=0)
    return Prediction(rates, table, overlapped(machine, compute, moving), terms, crossed)


def overlapped(machine: Machine, compute: Array, transfer: Array) -> Array:
    """Cycles of both, of which the lesser shows by 1 - overlap alone."""
    cycles: Array = np.maximum(compute, transfer) + (1 - machine.core.overlap.value) * np.minimum(compute, transfer)
    return cycles


def predict_schedule(nest: Nest, machine: Machine, schedule: Schedule, hot: bool = True) -> Cost:
    """The cost of one given schedule. Raises PlanError for a kernel that the registry or the machine lacks."""
    return cost_of(predict(*one_schedule(nest, machine, schedule), hot), 0)


def one_schedule(nest: Nest, machine: Machine, schedule: Schedule, dtype: str | None = None) -> tuple[Rates, Table]:
    """One given schedule as a table of one row. Raises PlanError for a kernel that the registry or the machine lacks, of another type than
    `dtype`, and for sizes that the kernel or the nest does not have."""
    kernel = next((row for row in kernels() if row.name == schedule.kernel), None)
    if kernel is None:
        raise PlanError(f"{schedule.kernel} is no row of the registry")
    if dtype not in (None, kernel.dtype):
        raise PlanError(f"{kernel.name} computes {kernel.dtype}; the problem is {dtype}")
    if (schedule.windows, schedule.filters) != (kernel.windows, kernel.filters) or not 1 <= schedule.channels <= nest.channels:
        right = f"{kernel.windows} windows x {kernel.filters} filters and 1 to {nest.channels} channels"
        raise PlanError(f"{kernel.name} has tiles of {right}, not {schedule.windows} x {schedule.filters} and {schedule.channels}")
    if min(schedule.k2, schedule.k3) < 1 or (schedule.pack == "none" and not nest.in_place):
        raise PlanError("k2 and k3 are at least 1, and pack none is for windows that lie in place: an unpadded 1x1 convolution of stride 1")

    def column(value: float) -> Array:
        return np.array([value], dtype=np.float64)

    sizes = (column(schedule.channels), column(schedule.k2), column(schedule.k3))
    keeps = np.array([schedule.stationary == STATIONARY[0]])
    table = Table(keeps, np.zeros(1, dtype=np.int64), column(schedule.pack == "tiles"), *sizes)
    return rates_of(nest, machine, [kernel]), table


def _scattered_runs(rates: Rates, table: Table, moved: Array) -> Array:
    """Rows of output tiles from beyond L2 that no prefetcher brings, because too many rows of outputs are written in turn."""
    tile, nest = rates.filters[table.kernel], rates.nest
    rows = np.where(table.keeps_windows, np.minimum(tile * table.k2, nest.filters), tile)
    beyond = moved[min(1, len(moved) - 1)]
    runs: Array = (beyond[-2] + beyond[-1]) / (rates.windows[table.kernel] * nest.out_bytes)
    return runs * np.maximum(0.0, 1.0 - rates.machine.core.prefetch_streams.value / rows)


def _lines_packed(machine: Machine, moved: Array) -> Array:
    """Lines of the input that packing finds beyond L1."""
    lines: Array = (moved[0, 0] + moved[0, 1]) / machine.levels[0].line_bytes
    return lines


def transfer_cycles(machine: Machine, moved: Array) -> Array:
    """Cycles of each supplier: the bytes that it serves itself over its rates as the core sees them."""
    outer = [(level.read_bytes_per_cycle.value, level.write_bytes_per_cycle.value) for level in machine.levels[1:]]
    rates = np.array([*outer, (machine.memory.read_bytes_per_cycle.value, machine.memory.write_bytes_per_cycle.value)])
    served = moved.reshape(len(moved), -1, 2, moved.shape[-1]).sum(axis=1)
    served[:-1] -= served[1:]
    cycles: Array = (served / rates[:, :, None]).sum(axis=1)
    return cycles


def cost_of(prediction: Prediction, row: int) -> Cost:
    """One row of a prediction as a value, with the bytes that each operand moves through each level."""
    terms = {name: float(value[row]) for name, value in prediction.terms.items()}
    moved = np.array([crossed[:, row] for crossed in prediction.crossed.values()])
    return cost_from(prediction.rates.machine, terms, list(prediction.crossed), OPERANDS, moved)


def cost_from(machine: Machine, terms: dict[str, float], suppliers: Sequence[str], operands: Sequence[str], moved: Array) -> Cost:
    """Terms in cycles as a cost; `moved` (suppliers x twice the operands) is bytes that are only read and that are written of each."""
    levels = {}
    for above, supplier, crossed in zip(machine.levels, suppliers, moved.tolist(), strict=True):
        sizes = {name: read + 2 * written for name, read, written in zip(operands, crossed[::2], crossed[1::2], strict=True)}
        levels[supplier] = {
            "lines": sum(sizes.values()) / above.line_bytes,
            "bytes": sum(sizes.values()),
            "cycles": terms[supplier],
            "writeback_lines": sum(crossed[1::2]) / above.line_bytes,
            **{f"{name}_bytes": size for name, size in sizes.items()},
        }
    computing = [name for name in terms if name not in levels]
    compute, transfer = (sum(terms[name] for name in names) for names in (computing, levels))
    more, less = (computing, levels) if compute >= transfer else (levels, computing)
    hidden = {name: machine.core.overlap.value * terms[name] for name in less}
    cycles = max(compute, transfer) + (1 - machine.core.overlap.value) * min(compute, transfer)
    return Cost(cycles, cycles / machine.core.frequency_hz.value, max(more, key=terms.__getitem__), levels, terms, hidden)


def schedule_of(prediction: Prediction, row: int) -> Schedule:
    """One row of a prediction's table as the schedule that the macro-kernel obeys."""
    table = prediction.table
    kernel = prediction.rates.kernels[table.kernel[row]]
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
