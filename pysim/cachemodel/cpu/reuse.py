# SPDX-License-Identifier: Apache-2.0
"""The sliced nest of tiles as a description (`loops`), in either order, and what of its data is used again, how far apart.

    for each set of channels
      for each set of K3 kept tiles
        for each set of K2 streamed tiles
          for each kept tile
            for each streamed tile                 the micro-kernel

Input stationary keeps windows and streams filters, weight stationary the reverse. Kept windows are packed one by one while the first set
of filters passes; streamed ones, and filters that the run packs, a set at a time ahead of the loops inside. Where all filters pass by a
tile of windows before the next one is packed, one panel serves all of them in turn.

An operand that only some schedules have is empty in the others.

Worked number: 28x28 outputs, tiles of 8 windows, K3 = 25: 98 kept tiles in 4 sets. Each of 5 filter tiles passes 98 times: 94 of them at
the distance of a kept tile, 3 at that of a set, and 1 a run after the last.

`doubts` says where a machine or a schedule is not what the closed forms assume.
"""

from collections.abc import Iterator, Mapping
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.cpu.incore import Array, Rates, Table, select
from pysim.cachemodel.cpu.loops import Extent, Loop, LoopNest, Number, Operand
from pysim.cachemodel.cpu.nest import PANEL_ALIGN, Nest, live_taps
from pysim.machine.cpu import Machine
from pysim.record.schedule import Schedule
from pysim.record.state import State

OPERANDS = ("input", "packed", "filters", "output")  # as levels of a cost name them
INPUT, PACKED, FILTERS, OUTPUT = range(4)
WINDOWS, FILTER_TILES = "window tiles", "filter tiles"  # dimensions
BUFFERS = {"input": INPUT, "input in place": INPUT, "filters": FILTERS, "output": OUTPUT}  # others are packed


class Flows(NamedTuple):
    """The streams of a table: bytes[i] (x schedules) are touched again at a distance of between[:, i] bytes of OPERANDS, in the next
    iteration of loop loops[k, i] - 1. Schedules of one kind lie together: those of kind k are `columns[k]`, and there stream i is of
    operand[k, i], its bytes shares[k, :, i] of what is only read and what is written of each of OPERANDS, touched last before[k, i] runs
    ago, 0: in this one.

    `planes` (planes of inputs and of outputs, and `turns`: 2 where outputs are on average half of these planes and half of as many others)
    x all and one iteration of each loop x schedules; `once`: bytes of OPERANDS that the run touches at least once.
    """

    columns: list[slice]
    kind: NDArray[np.int64]  # of each column
    operand: NDArray[np.int64]
    loops: NDArray[np.int64]
    shares: Array
    before: Array
    bytes: Array
    between: Array
    planes: Array
    once: Array

    def of(self, rows: NDArray[np.int64]) -> "Flows":
        """Those of some schedules, in their order."""
        columns = [slice(*rows.searchsorted((span.start, span.stop))) for span in self.columns]
        size, between, planes, once = (one.take(rows, axis=-1) for one in (self.bytes, self.between, self.planes, self.once))
        return self._replace(columns=columns, kind=self.kind[rows], bytes=size, between=between, planes=planes, once=once)


def described(table: Table, keeps: bool) -> LoopNest:
    """The loops of schedules that keep windows, or filters."""
    rates, nest = table.rates, table.rates.nest
    tiles = {WINDOWS: rates.window_tiles, FILTER_TILES: rates.filter_tiles}
    kept, streamed = (WINDOWS, FILTER_TILES) if keeps else (FILTER_TILES, WINDOWS)
    k2, k3 = np.minimum(table.k2, tiles[streamed]), np.minimum(table.k3, tiles[kept])
    streamed_sets = np.ceil(tiles[streamed] / k2)
    in_turn = table.packed * (streamed_sets == 1) * keeps  # one panel serves all kept tiles
    k3 = np.where(in_turn > 0, 1.0 if nest.filters_packed else tiles[kept], k3)  # such sets of one tile, or all of them behind the filters
    repeats = {name: count for name, count in (("images", nest.batch), ("groups", nest.groups)) if count > 1}
    loops = (
        *(Loop(name, name, 1, count) for name, count in repeats.items()),
        Loop("sets of channels", "channels", table.channels, np.ceil(nest.group_channels / table.channels)),
        Loop(f"sets of {kept}", kept, k3, np.ceil(tiles[kept] / k3)),
        Loop(f"sets of {streamed}", streamed, k2, streamed_sets),
        Loop(kept, kept, 1, k3),
        Loop(streamed, streamed, 1, k2),
    )
    outer, sets = {name: Extent(1.0, count) for name, count in repeats.items()}, {kept: k3, streamed: k2}
    out = Extent(rates.windows * nest.result_bytes, float(nest.windows * nest.result_bytes), rates.out_edge)
    output = {**outer, WINDOWS: out, FILTER_TILES: Extent(rates.filters, nest.group_filters)}
    operands = (
        *_windows(table, outer, sets[WINDOWS], in_turn * (not nest.filters_packed), streamed),
        *_filters(table, {name: one for name, one in outer.items() if name == "groups"}, sets[FILTER_TILES], streamed),
        Operand("output", output, streamed, written=True),
    )
    total: dict[str, Number] = {**repeats, **tiles, "channels": nest.group_channels}
    return LoopNest(loops, operands, total, table.k2.size)


def _windows(table: Table, outer: Mapping[str, Extent], set_of: Array, in_turn: Array, inner: str) -> Iterator[Operand]:
    """Windows as they are packed, and as the micro-kernel reads them; of those that are packed on demand, some take one panel `in_turn`."""
    rates, nest, packed, sets = table.rates, table.rates.nest, table.packed, f"sets of {WINDOWS}"
    if packed.any():
        # a tile as the micro-kernel reads it; of the last panel, which is not full, the rest of the lines
        panel = np.ceil(rates.packed_window * table.channels * rates.windows / PANEL_ALIGN) * PANEL_ALIGN * packed
        panels = panel * np.minimum(set_of, rates.held_windows / rates.windows)
        raw = {**outer, "channels": Extent(packed, nest.group_channels * packed), WINDOWS: _raw_input(rates)}
        if inner == WINDOWS:
            yield Operand("input", raw, sets)
            yield Operand("packed input", {WINDOWS: Extent(panel, panels)}, sets, written=True)
            yield Operand("packed input", {WINDOWS: Extent(panel, panels)}, inner)
        else:
            one, several = (panel, panels) if not in_turn.any() else (panel * (1 - in_turn), panels * (1 - in_turn))
            yield Operand("input", raw, WINDOWS, first=f"sets of {FILTER_TILES}")
            yield Operand("packed input", {WINDOWS: Extent(one, several)}, inner, memory=sets)
            if in_turn.any():
                yield Operand("packed tile", {WINDOWS: Extent(panel * in_turn, panel * in_turn)}, inner, memory=WINDOWS)
    if nest.windows_packed:
        each = Extent(rates.packed_window * rates.windows, rates.packed_window * nest.windows)
        yield Operand("packed", {"channels": Extent(1.0, nest.group_channels), WINDOWS: each}, inner)
    elif not packed.all():
        each = Extent(rates.windows * nest.element_bytes, nest.windows * nest.element_bytes, rates.place_edge)
        yield Operand("input in place", {**outer, "channels": Extent(1 - packed, nest.group_channels * (1 - packed)), WINDOWS: each}, inner)


def _raw_input(rates: Rates) -> Extent:
    """Input that packing tiles of windows reads: rows of kernels, whole rows as soon as tiles share them."""
    nest, others = rates.nest, np.maximum(1.0, rates.window_tiles - 1)
    touched, live = nest.touched_bytes(rates.machine.line_bytes), live_taps(nest)[0]
    row = touched / nest.touched_h
    step = min(nest.stride_h, nest.kernel_h) * row
    first = max(0.0, min((nest.kernel_h - 1) * nest.dilation_h + 1, nest.touched_h) * row - step)
    again = max(0, live - nest.touched_h) * nest.touched_w * nest.element_bytes  # but for rows that a tile reads twice itself
    shared = again / np.maximum(others, nest.out_h - 1) + rates.pack_edge / others
    return Extent(rates.windows / nest.out_w * step, touched, first, (live * row + rates.pack_edge) / rates.window_tiles, shared)


def _filters(table: Table, outer: Mapping[str, Extent], set_of: Array, inner: str) -> Iterator[Operand]:
    """Filters as they lie, in tiles or not, and those that the run packs."""
    rates, nest, sets = table.rates, table.rates.nest, f"sets of {FILTER_TILES}"
    extents = {**outer, "channels": Extent(1.0, nest.group_channels)}
    edge = rates.filter_edge if nest.filters_in_rows_of_k else 0.0
    if nest.filters_packed:
        live = rates.filter_tile / rates.stored_tile  # windows find some of their rows in padding
        each = Extent(rates.stored_tile, rates.stored_tile * rates.filter_tiles, edge)
        yield Operand("filters", {**extents, FILTER_TILES: each}, inner, part=live)
        return
    size, tile = rates.filters * nest.element_bytes, rates.stored_tile * table.channels
    yield Operand("filters", {**extents, FILTER_TILES: Extent(size, size * rates.filter_tiles, edge, at_once=True)}, sets)
    yield Operand("packed filters", {FILTER_TILES: Extent(tile, set_of * tile)}, sets, written=True)
    yield Operand("packed filters", {FILTER_TILES: Extent(tile, set_of * tile)}, inner)


def flows(table: Table, state: State) -> Flows:
    """The streams of a table, with first touches in caches of a `state`."""
    nest, n, split = table.rates.nest, table.kernel.size, int(np.count_nonzero(table.keeps_windows))
    columns = [span for span in (slice(0, split), slice(split, n)) if span.start < span.stop]
    nests = [described(select(table, span), span.start < split) for span in columns]
    found = [of.streams(state) for of in nests]
    kinds, most, depth = len(nests), max(one.rows.size for one in found), len(nests[0].loops) + 1
    size, between, planes, once = (np.zeros((*rows, n)) for rows in ((most,), (len(OPERANDS), most), (3, depth), (len(OPERANDS),)))
    operand, loops = np.zeros((2, kinds, most), np.int64)
    shares, before = np.zeros((kinds, 2 * len(OPERANDS), most)), np.zeros((kinds, most))
    for at, (of, one, span) in enumerate(zip(nests, found, columns, strict=True)):
        count, buffers = one.rows.size, np.array([BUFFERS.get(name, PACKED) for name in of.names])
        size[:count, span], before[at, :count], loops[at, :count] = one.bytes, one.before, one.loops + 1
        operand[at, :count] = buffers[one.rows]
        shares[at, 2 * operand[at, :count] + one.written, np.arange(count)] = 1.0
        for buffer, apart, all_of in zip(buffers, of.distances, of.all, strict=True):
            between[buffer, :count, span] += apart
            once[buffer, span] += all_of
        planes[0, :, span], planes[1, :, span] = of.tiles("channels"), of.tiles(FILTER_TILES) * table.rates.filters[span]
        planes[2, :, span] = np.array([[1.0]] + [[1.0 + (loop.dimension == FILTER_TILES)] for loop in of.loops[:-1]] + [[1.0]])
    np.minimum(planes[1], nest.group_filters, out=planes[1])
    kind = np.repeat(np.arange(kinds), [span.stop - span.start for span in columns])
    if before.max() > 1:
        between *= np.clip(before[kind].T, 1.0, 1e6)
    if nest.fresh_input:  # nothing else was touched since
        between[1:, ((operand == INPUT) & (before > 0))[kind].T] = 0.0
    return Flows(columns, kind, operand, loops, shares, before, size, between, planes, once)


def doubts(nest: Nest, schedule: Schedule, machine: Machine) -> list[str]:
    """What about a schedule on a machine the closed forms assume otherwise; empty where their assumptions hold."""
    found = []
    inner = machine.levels[0]
    for level in machine.levels:
        if level.policy != "lru":
            found.append(f"{level.name} replaces by {level.policy}; the closed forms hold for lru")
        if level.sets & (level.sets - 1):
            found.append(f"{level.name} has {level.sets} sets, no power of two: hardware hashes addresses, consecutive lines are assumed")
        if level.line_bytes != inner.line_bytes:
            found.append(
                f"lines of {level.name} are {level.line_bytes} bytes, those of {inner.name} {inner.line_bytes}: one size is assumed"
            )
        start = gcd(nest.plane_bytes, level.way_bytes)
        used = max(level.line_bytes, min(nest.plane_bytes, schedule.windows * nest.element_bytes))
        if schedule.pack == "none" and nest.group_channels > 1 and start > used:
            planes = f"planes of {nest.plane_bytes:,} bytes are read in place {schedule.windows} windows at a time"
            found.append(
                f"{planes}: they start in 1 of {start // level.line_bytes} sets of {level.name} and conflict, which is only estimated"
            )
    return found
