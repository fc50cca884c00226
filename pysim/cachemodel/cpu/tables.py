# SPDX-License-Identifier: Apache-2.0
"""Tables of schedules, and the compute terms of each: what `incore` says of kernels, applied to every tiling.

Worked number: 3 sets of channels, 98 tiles of windows and 5 of filters are 1,470 calls of the micro-kernel in each image and group.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.cpu.incore import Array, Rates
from pysim.cachemodel.cpu.nest import Nest
from pysim.cachemodel.equations import Program, Programs, as_rows, columns_of
from pysim.caches import LruCache
from pysim.machine.cpu import Machine


class Table(msgspec.Struct, frozen=True):
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
    columns = (column[rows] for column in (table.keeps_windows, table.kernel, table.packed, table.channels, table.k2, table.k3))
    return Table(table.rates.of(rows), *columns)


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
        schedules = as_rows(table.kernel.size, table.keeps_windows, table.packed, table.channels, table.k2, table.k3)
        return program(np.concatenate([rates.columns, schedules]), rates.nest), program.about


def _traced(rows: Array, nest: Nest, machine: Machine) -> Table:
    columns = rows[: -len(SCHEDULE)]
    known = dict(zip(SCHEDULE, rows[-len(SCHEDULE) :], strict=True))
    return Table(Rates(nest, machine, (), columns, *columns), kernel=cast("Any", None), **cast("Any", known))


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
