# SPDX-License-Identifier: Apache-2.0
"""SConv's tiled loop nest, in both loop orders, as a description (`loops`); and the reuses of a whole table of its schedules.

    for each set of channels
      for each set of K3 kept tiles
        for each set of K2 streamed tiles
          for each kept tile
            for each streamed tile                 the micro-kernel

Input stationary keeps tiles of windows and streams tiles of filters; weight stationary does the reverse. Kept windows are packed one
tile at a time, while the first set of filters is streamed. Streamed windows are packed a set at a time, before the loops inside; so are
filters that the run packs. If all filters pass by one tile of windows before the next tile is packed, a single panel holds each tile in
turn.

An operand that only some schedules of a table have is empty in the others.

Worked number: 28x28 outputs in tiles of 8 windows, K3 = 25: 98 kept tiles in 4 sets. Each of 5 filter tiles is streamed 98 times: 94
reuses are one kept tile apart, 3 are one set apart, and 1 is one run apart.

`doubts` lists where a machine or a schedule violates an assumption of the closed forms.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.cpu.incore import Array, Rates, read_rows
from pysim.cachemodel.cpu.nest import PANEL_ALIGN, Nest
from pysim.cachemodel.cpu.reuse.counts import Structure
from pysim.cachemodel.cpu.reuse.loops import Extent, Loop, LoopNest, Number, Operand
from pysim.cachemodel.cpu.tables import OfTable, Table, select
from pysim.cachemodel.equations import asked, empty
from pysim.machine.cpu import Machine
from pysim.record.schedule import Schedule
from pysim.record.state import State

OPERANDS = ("input", "packed", "filters", "output")  # as the levels of a cost name them
INPUT, PACKED, FILTERS, OUTPUT = range(4)
WINDOWS, FILTER_TILES = "window tiles", "filter tiles"  # dimensions
BUFFERS = {"input": INPUT, "input in place": INPUT, "filters": FILTERS, "output": OUTPUT}  # all others are PACKED


class TableStreams(NamedTuple):
    """The reuses ("streams") of a table of schedules.

    Schedules of one loop order are consecutive; those of order k are `columns[k]`. There stream i is of OPERANDS[operand[k, i]] and
    belongs to loop loops[k, i] - 1. bytes[i] (x schedules) are reused after between[:, i] bytes of each of OPERANDS, last touched
    runs_ago[k, i] runs ago (0: in this run). shares[k, :, i] is 1 in the row of its operand, read only or written, two rows for each of
    OPERANDS.

    `planes`: planes of inputs and of outputs x the run and one iteration of each loop x schedules; `interleaved` (per order and loop): 2
    where half of the outputs in between are of other planes. `working_set`: distinct bytes of OPERANDS that a run touches.
    """

    columns: list[slice]
    order: NDArray[np.int64]  # loop order of each column
    operand: NDArray[np.int64]
    loops: NDArray[np.int64]
    shares: Array
    runs_ago: Array
    interleaved: Array
    bytes: Array
    between: Array
    planes: Array
    working_set: Array


class Packs(NamedTuple):
    """Whether some or all schedules of a table pack windows, and whether some hold all tiles in one panel."""

    some: bool
    all: bool
    one_panel: bool

    @classmethod
    def of_any(cls, nest: Nest, keeps_windows: bool) -> "Packs":
        """What tables of a nest may have, so that one program serves all of them; operands that a table lacks are empty."""
        return cls(not nest.windows_packed, not nest.in_place, keeps_windows and not nest.windows_packed)

    @classmethod
    def of(cls, table: Table, keeps_windows: bool) -> "Packs":
        packed, filter_tiles = table.packed, table.rates.filter_tiles
        return cls(bool(packed.any()), bool(packed.all()), keeps_windows and bool(packed[table.k2 >= filter_tiles].any()))


@asked
def _repeats(nest: Nest) -> tuple[bool, bool]:
    """Whether there are several images, and several groups."""
    return nest.batch > 1, nest.groups > 1


def described(table: Table, keeps_windows: bool, packs: Packs | None = None) -> LoopNest:
    """The loops of schedules of one loop order: those that keep windows (input stationary), or those that keep filters."""
    packs = packs or Packs.of(table, keeps_windows)
    rates, nest = table.rates, table.rates.nest
    tiles = {WINDOWS: rates.window_tiles, FILTER_TILES: rates.filter_tiles}
    kept, streamed = (WINDOWS, FILTER_TILES) if keeps_windows else (FILTER_TILES, WINDOWS)
    k2, k3 = np.minimum(table.k2, tiles[streamed]), np.minimum(table.k3, tiles[kept])
    streamed_sets = np.ceil(tiles[streamed] / k2)
    one_panel = table.packed * (streamed_sets == 1) * keeps_windows  # a single panel holds each kept tile in turn
    k3 = np.where(one_panel > 0, 1.0 if nest.filters_packed else tiles[kept], k3)  # then K3 changes nothing: sets of one tile, or one set
    counts = (("images", nest.batch), ("groups", nest.groups))
    repeats = dict(itertools.compress(counts, _repeats(nest)))
    loops = (
        *(Loop(name, name, 1, count) for name, count in repeats.items()),
        Loop("sets of channels", "channels", table.channels, np.ceil(nest.group_channels / table.channels)),
        Loop(f"sets of {kept}", kept, k3, np.ceil(tiles[kept] / k3)),
        Loop(f"sets of {streamed}", streamed, k2, streamed_sets),
        Loop(kept, kept, 1, k3),
        Loop(streamed, streamed, 1, k2),
    )
    outer, sets = {name: Extent(1.0, count) for name, count in repeats.items()}, {kept: k3, streamed: k2}
    row = Extent(rates.windows * nest.stored_bytes, nest.windows * nest.stored_bytes, rates.out_edge)
    output = {**outer, WINDOWS: row, FILTER_TILES: Extent(rates.filters, nest.group_filters)}
    operands = (
        *_windows(table, outer, sets[WINDOWS], packs, one_panel, streamed),
        *_filters(table, {name: extent for name, extent in outer.items() if name == "groups"}, sets[FILTER_TILES], streamed),
        Operand("output", output, streamed, written=True),
    )
    total: dict[str, Number] = {**repeats, **tiles, "channels": nest.group_channels}
    return LoopNest(loops, operands, total, table.columns)


def _windows(table: Table, outer: Mapping[str, Extent], set_size: Array, packs: Packs, one_panel: Array, inner: str) -> Iterator[Operand]:
    """Windows as packing reads and writes them, and as the micro-kernel reads them. `one_panel`: 1 where all tiles use one panel."""
    rates, nest, packed, sets = table.rates, table.rates.nest, table.packed, f"sets of {WINDOWS}"
    if packs.some:
        # a tile as the micro-kernel reads it; the last panel may be partial, but fills its lines
        panel = np.ceil(rates.packed_window * table.channels * rates.windows / PANEL_ALIGN) * PANEL_ALIGN * packed
        panels = panel * np.minimum(set_size, rates.panel_windows / rates.windows)
        raw = {**outer, "channels": Extent(packed, nest.group_channels * packed), WINDOWS: raw_input(rates)}
        if inner == WINDOWS:
            yield Operand("input", raw, sets)
            yield Operand("packed input", {WINDOWS: Extent(panel, panels)}, sets, written=True)
            yield Operand("packed input", {WINDOWS: Extent(panel, panels)}, inner)
        else:
            own_tile = packs.one_panel and not nest.filters_packed
            one, several = (panel * (1 - one_panel), panels * (1 - one_panel)) if own_tile else (panel, panels)
            yield Operand("input", raw, WINDOWS, only_first=f"sets of {FILTER_TILES}")
            yield Operand("packed input", {WINDOWS: Extent(one, several)}, inner, refilled_by=sets)
            if own_tile:
                yield Operand("packed tile", {WINDOWS: Extent(panel * one_panel, panel * one_panel)}, inner, refilled_by=WINDOWS)
    if nest.windows_packed:
        tile = Extent(rates.packed_window * rates.windows, rates.packed_window * nest.windows)
        yield Operand("prepared input", {"channels": Extent(1.0, nest.group_channels), WINDOWS: tile}, inner)
    elif not packs.all:
        tile = Extent(rates.windows * nest.element_bytes, nest.windows * nest.element_bytes, rates.place_edge)
        yield Operand("input in place", {**outer, "channels": Extent(1 - packed, nest.group_channels * (1 - packed)), WINDOWS: tile}, inner)


def raw_input(rates: Rates) -> Extent:
    """Input that packing reads for tiles of windows: the rows that kernels reach; whole rows as soon as tiles share them."""
    of = read_rows(rates.nest, rates.machine.line_bytes)
    return Extent(rates.raw_tile, of.touched, of.beside, rates.raw_first, rates.raw_shared)


def _filters(table: Table, outer: Mapping[str, Extent], set_size: Array, inner: str) -> Iterator[Operand]:
    """Filters as they are stored, in tiles or not, and as packed by the run."""
    rates, nest, sets = table.rates, table.rates.nest, f"sets of {FILTER_TILES}"
    extents = {**outer, "channels": Extent(1.0, nest.group_channels)}
    edge = rates.filter_edge if nest.filters_in_rows_of_k else 0.0
    if nest.filters_packed:
        live = rates.filter_tile / rates.stored_tile  # the rest meets only padding
        tile = Extent(rates.stored_tile, rates.stored_tile * rates.filter_tiles, edge)
        yield Operand("filters", {**extents, FILTER_TILES: tile}, inner, part=live)
        return
    size, panel = rates.filters * nest.element_bytes, rates.stored_tile * table.channels
    yield Operand("filters", {**extents, FILTER_TILES: Extent(size, size * rates.filter_tiles, edge, together=True)}, sets)
    yield Operand("packed filters", {FILTER_TILES: Extent(panel, set_size * panel)}, sets, written=True)
    yield Operand("packed filters", {FILTER_TILES: Extent(panel, set_size * panel)}, inner)


class _Roles(NamedTuple):
    """What `TableStreams` says of the structure of each loop order: its fields of these names."""

    operand: NDArray[np.int64]
    loops: NDArray[np.int64]
    shares: Array
    runs_ago: Array
    interleaved: Array


@lru_cache(maxsize=256)
def _roles(orders: tuple[Structure, ...], state: State) -> _Roles:
    most, depth = max(of.bytes.loops.size for of in orders), len(orders[0].places.outer)
    operand, loops = np.zeros((2, len(orders), most), np.int64)
    shares, ago = np.zeros((len(orders), 2 * len(OPERANDS), most)), np.zeros((len(orders), most))
    interleaved = np.ones((len(orders), depth + 1))
    for at, of in enumerate(orders):
        uses, count = of.bytes, of.bytes.loops.size
        operand[at, :count], loops[at, :count] = np.array(_buffers(of.names))[uses.operands], uses.loops + 1
        shares[at, 2 * operand[at, :count] + uses.written, np.arange(count)] = 1.0
        ago[at, :count] = of.runs_ago(state)
        moving = of.places.of[FILTER_TILES]
        interleaved[at, 1:depth] += np.diff(moving)[: depth - 1] > 0
    return _Roles(operand, loops, shares, ago, interleaved)


def _buffers(names: Sequence[str]) -> list[int]:
    """Which of OPERANDS each operand of a nest is part of."""
    return [BUFFERS.get(name, PACKED) for name in names]


def nests_of(table: Table) -> dict[bool, LoopNest]:
    """The schedules of each loop order in a table, by whether it keeps windows, in the table's order."""
    return {keeps: described(select(table, span), keeps) for keeps, span in _spans(table).items()}


def _spans(table: Table) -> dict[bool, slice]:
    """The schedules of each loop order that a table has."""
    split, end = int(np.count_nonzero(table.keeps_windows)), table.kernel.size
    return {keeps: span for keeps, span in ((True, slice(0, split)), (False, slice(split, end))) if span.stop > span.start}


def streams_of(table: Table, state: State) -> TableStreams:
    """The reuses of a table of schedules, with first touches in caches of a `state`."""
    n, spans, nest = table.kernel.size, _spans(table), table.rates.nest
    parts = [select(table, span) for span in spans.values()]
    found = [_streams(one, keeps, state, Packs.of_any(nest, keeps)) for keeps, one in zip(spans, parts, strict=True)]
    roles = _roles(tuple(structure for _, structure in found), state)
    most, depth = roles.operand.shape[1], roles.interleaved.shape[1]
    arrays = [np.zeros((*rows, n)) for rows in ((most,), (len(OPERANDS), most), (2, depth), (len(OPERANDS),))]
    for (of_order, _), span in zip(found, spans.values(), strict=True):
        for array, own in zip(arrays, of_order, strict=True):
            array[tuple(map(slice, own.shape[:-1]))][..., span] = own
    order = np.repeat(np.arange(len(spans)), [span.stop - span.start for span in spans.values()])
    return TableStreams([*spans.values()], order, *roles, *arrays)


@OfTable
def _streams(table: Table, keeps_windows: bool, state: State, packs: Packs) -> tuple[Sequence[Array], Structure]:
    """`bytes`, `between`, `planes` and `working_set` of `TableStreams`, of one loop order."""
    of, nest, columns = described(table, keeps_windows, packs), table.rates.nest, table.columns
    reused, uses = of.reused_bytes, of.structure.bytes
    between, working_set = empty((len(OPERANDS), len(reused)), columns), empty((len(OPERANDS),), columns)
    between[...] = working_set[...] = 0.0
    for row, buffer in enumerate(buffers := _buffers(of.names)):
        if of.structure.same[row] == row:  # or it is counted in that row
            between[buffer] += of.distances[row]
            working_set[buffer] += of.working_set[row]
    ago = of.structure.runs_ago(state)
    if ago.max() > 1:
        between *= np.clip(ago, 1.0, 1e6)[:, None]
    if nest.fresh_input:  # nothing was touched since the input was written
        between[1:, (np.array(buffers)[uses.operands] == INPUT) & (ago > 0)] = 0.0
    filters = of.tiles(FILTER_TILES) * table.rates.filters
    return (reused, between, np.stack([of.tiles("channels"), np.minimum(filters, nest.group_filters)]), working_set), of.structure


def doubts(nest: Nest, schedule: Schedule, machine: Machine) -> list[str]:
    """Assumptions of the closed forms that a machine or a schedule violates, as sentences; empty if they all hold."""
    sentences = doubts_of_levels(machine)
    for level in machine.levels:
        start = gcd(nest.plane_bytes, level.way_bytes)
        used = max(level.line_bytes, min(nest.plane_bytes, schedule.windows * nest.element_bytes))
        if schedule.pack == "none" and nest.group_channels > 1 and start > used:
            planes = f"planes of {nest.plane_bytes:,} bytes are read in place {schedule.windows} windows at a time"
            sentences.append(
                f"{planes}: they start in 1 of {start // level.line_bytes} sets of {level.name} and conflict, which is only estimated"
            )
    return sentences


def doubts_of_levels(machine: Machine) -> list[str]:
    """Assumptions of the closed forms that the levels of a machine violate, as sentences."""
    sentences = []
    inner = machine.levels[0]
    for level in machine.levels:
        if level.policy != "lru":
            sentences.append(f"{level.name} replaces by {level.policy}; the closed forms hold for lru")
        if level.sets & (level.sets - 1):
            sentences.append(
                f"{level.name} has {level.sets} sets, no power of two: hardware hashes addresses, consecutive lines are assumed"
            )
        if level.line_bytes != inner.line_bytes:
            sentences.append(
                f"lines of {level.name} are {level.line_bytes} bytes, those of {inner.name} {inner.line_bytes}: one size is assumed"
            )
    return sentences
