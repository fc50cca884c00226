# SPDX-License-Identifier: Apache-2.0
"""The traffic half of the cost model: streams of bytes with their reuse distances, and what of them each cache misses.

A distance is the bytes touched between two uses of the same data. Most follow from the loops at once: with window tiles I, filter
tiles F and output tiles O, input stationary, a filter tile comes again after I + K2 (F + O) (equation 4 of `csa`), a window tile after
K3 I + K2 F + K2 K3 O (equation 5); weight stationary exchanges I and F. Packing adds the raw input that it reads. A panel is
written where the previous one lay: the lines of that one are read and the new ones written in the same order, so of what else is
touched in these two passes half lies in between. Bytes of tiles that start in the middle of lines count the lines' rest.
`cost` says how misses follow and what they cost.

Worked number: L1 of 8 ways of 4,096 bytes. Up to 28,672 bytes apart everything hits; 32,768 apart half of the lines miss; from
36,864 on all do.
"""

from collections.abc import Iterator, Sequence
from math import gcd
from typing import NamedTuple

import numpy as np

from pysim.cachemodel.incore import Array, Rates, Table
from pysim.cachemodel.nest import Nest
from pysim.machine import Level


class Stream(NamedTuple):
    """Bytes of an operand that one repeat touches again after `distance` bytes of other (and its own) data.

    `spread` of that distance lies in chunks of `chunk` bytes, one in each plane of `plane` bytes, and so may leave cache sets unused.
    """

    operand: str
    write: bool
    bytes: Array
    distance: Array
    plane: int = 0
    spread: Array | float = 0.0
    chunk: Array | float = 1.0


class Tiles(NamedTuple):
    """The columns of a table in bytes and counts: what the reuse distances are made of. Bytes are those of one channel set."""

    nest: Nest
    packed: Array  # 1: window tiles are packed, 0: read in place
    window: Array  # one window as the micro-kernel reads it (in a packed panel, or in place)
    window_edge: Array  # rest of the lines of neighbouring windows; 0 packed
    raw: Array  # input that packing one window tile reads; 0 in place
    raw_next: Array  # what one more tile of the same rows adds to that, once whole rows are read
    raw_all: Array  # all input that packing reads; 0 in place
    rows: Array  # input rows that one row of outputs needs
    filters: Array  # the live part of one filter tile
    out_edge: Array  # rest of the lines of neighbouring outputs of one filter
    tile_windows: Array  # windows and filters of a tile
    tile_filters: Array
    n_windows: Array  # window tiles
    n_filters: Array
    row_tiles: Array  # window tiles of one row of outputs
    k2: Array
    k3: Array
    channels: Array
    sets: Array  # channel sets

    def width(self, count: Array | float) -> Array:
        """Windows of `count` neighbouring tiles."""
        return np.minimum(count * self.tile_windows, self.nest.windows)

    def inputs(self, count: Array | float) -> Array:
        """`count` neighbouring window tiles."""
        return self.width(count) * self.window + self.window_edge

    def outputs(self, windows: Array | float, filters: Array | float) -> Array:
        """Output tiles of neighbouring window tiles and of filter tiles."""
        rows = np.minimum(filters * self.tile_filters, self.nest.filters)
        return rows * (self.width(windows) * self.nest.element_bytes + self.out_edge)

    def raws(self, count: Array | float) -> Array:
        """Input that packing `count` neighbouring window tiles reads: whole rows as soon as that is less."""
        return np.minimum(np.minimum(count * self.raw, self.packed * self.rows + count * self.raw_next), self.raw_all)

    def call(self) -> Array:
        """One micro-kernel call."""
        return self.inputs(1) + self.filters + self.outputs(1, 1)


def tiles_of(rates: Rates, table: Table) -> Tiles:
    """Every schedule of a table as bytes and counts."""
    nest, at, channels, packed = rates.nest, table.kernel, table.channels, table.packed
    row_bytes = nest.touched_w * nest.element_bytes
    extent = (nest.kernel_h - 1) * nest.dilation_h + 1
    raw = (_row_reads(nest) * row_bytes + rates.pack_edge[at]) / rates.window_tiles[at]
    in_place = (1 - packed) * channels
    return Tiles(
        nest=nest,
        packed=packed,
        window=np.where(packed > 0, rates.packed_window[at], nest.element_bytes) * channels,
        window_edge=in_place * rates.place_edge[at],
        raw=packed * channels * raw,
        raw_next=packed * channels * (rates.windows[at] / nest.out_w * min(nest.stride_h, nest.kernel_h) * row_bytes),
        raw_all=packed * channels * (nest.touched_h * row_bytes),
        rows=channels * (min(extent, nest.touched_h) * row_bytes),
        filters=rates.filter_tile[at] * channels,
        out_edge=rates.out_edge[at],
        tile_windows=rates.windows[at],
        tile_filters=rates.filters[at],
        n_windows=rates.window_tiles[at],
        n_filters=rates.filter_tiles[at],
        row_tiles=np.maximum(1.0, nest.out_w / rates.windows[at]),
        k2=table.k2,
        k3=table.k3,
        channels=channels,
        sets=np.ceil(nest.channels / channels),
    )


def _row_reads(nest: Nest) -> int:
    """Input rows that packing reads for one channel: one for every row of outputs and live kernel row."""
    live = (nest.live_outputs(row) for row in range(nest.kernel_h))
    return sum(max(0, last - first + 1) for first, last in live)


def input_stationary(rates: Rates, table: Table, t: Tiles) -> tuple[list[Stream], Array, Array]:
    """Reuse with filter tiles streaming past each window tile; workspace bytes of window and of filter panels.

    Window tiles are packed at the first set of K2 filter tiles: into one panel if that is the only set, else into K3 panels.
    """
    nest, packed = rates.nest, t.packed
    k2_sets, k3_sets = np.ceil(t.n_filters / t.k2), np.ceil(t.n_windows / t.k3)
    one_set, call = k2_sets == 1, t.call()
    panels = packed * t.inputs(np.where(one_set, 1, t.k3))
    stream = t.inputs(1) + t.raw + t.k2 * t.filters + t.outputs(1, t.k2)  # equation 4: until a filter tile is used again
    kept = t.inputs(t.k3) + t.k2 * t.filters + t.outputs(t.k3, t.k2)  # equation 5: until a window tile is used again,
    kept += t.raws(t.k3) / np.maximum(1, k2_sets - 1)  # packing comes between its first and its second use
    every_k3 = t.inputs(t.k3) + t.raws(t.k3) + t.n_filters * t.filters + t.outputs(t.k3, t.n_filters)
    kept, every_k3 = np.where(one_set, stream, kept), np.where(one_set, stream, every_k3)
    sweep = panels + t.raw_all + (1 - packed) * t.inputs(t.n_windows) + t.n_filters * t.filters + t.outputs(t.n_windows, t.n_filters)
    row = t.rows + t.inputs(np.where(one_set, 1, t.row_tiles)) + t.k2 * t.filters + t.outputs(t.row_tiles, t.k2)
    read_first = 1.0 if nest.filters_packed else 0.0  # filters that the run packs are in cache when they are read
    windows, filters = _operand_bytes(t)
    streams = [
        Stream("packed", False, packed * windows * (t.n_filters - k2_sets + 1), call),
        Stream("packed", False, packed * windows * (k2_sets - 1), kept),
        Stream("packed", True, packed * windows, np.where(one_set, call + (t.raw - t.filters) / 2, kept)),
        Stream("filters", False, filters * (t.n_windows - read_first * k3_sets), stream),
        Stream("filters", False, read_first * filters * (k3_sets - 1), every_k3),
        *_row_reuse(t, 1, t.tile_windows, t.rows + t.inputs(1), row),
        Stream("input", False, packed * rates.pack_edge[table.kernel] * nest.channels, stream),
        *_in_place(t, (t.n_filters - k2_sets, call, 1), (k2_sets - 1, kept, t.k3), (k2_sets, stream)),
        *_output(t, sweep, stream, t.outputs(1, t.k2)),
        *_filter_packing(rates, table, k3_sets, stream, every_k3),
    ]
    return streams, panels, t.k2 * rates.stored_tile[table.kernel] * table.channels


def weight_stationary(rates: Rates, table: Table, t: Tiles) -> tuple[list[Stream], Array, Array]:
    """Reuse with window tiles streaming past each filter tile; workspace bytes of window and of filter panels.

    K2 window tiles are packed at once, again for every set of K3 filter tiles.
    """
    nest, packed, call = rates.nest, t.packed, t.call()
    k2_sets, k3_sets = np.ceil(t.n_windows / t.k2), np.ceil(t.n_filters / t.k3)
    panels, raw = packed * t.inputs(t.k2), t.raws(t.k2)
    stream = t.filters + t.inputs(t.k2) + t.outputs(t.k2, 1)  # equation 4 with the operands exchanged
    kept = t.k3 * t.filters + t.inputs(t.k2) + raw + t.outputs(t.k2, t.k3)  # equation 5
    rewritten = stream + (raw - t.outputs(t.k2, 1) - t.filters / t.k2) / 2
    inputs = panels + t.raw_all + (1 - packed) * t.inputs(t.n_windows)
    every_k3 = inputs + t.k3 * t.filters + t.outputs(t.n_windows, t.k3)
    sweep = inputs + t.n_filters * t.filters + t.outputs(t.n_windows, t.n_filters)
    windows, filters = _operand_bytes(t)
    read_first = 1.0 if nest.filters_packed else 0.0
    ones = np.ones_like(t.k2)
    streams = [
        Stream("packed", False, packed * windows * t.n_filters, stream),
        Stream("packed", True, packed * windows * k3_sets, rewritten),
        Stream("filters", False, filters * (t.n_windows - k2_sets), call),
        Stream("filters", False, filters * (k2_sets - read_first), kept),
        Stream("input", False, packed * _raw_bytes(nest) * (k3_sets - 1), every_k3),
        *_row_reuse(t, k3_sets, t.k2 * t.tile_windows, t.rows + t.inputs(t.row_tiles), kept),
        Stream("input", False, packed * rates.pack_edge[table.kernel] * nest.channels * k3_sets, t.raw + t.inputs(1)),
        *_in_place(t, (t.n_filters - k3_sets, stream, t.k2), (k3_sets - 1, every_k3, t.n_windows), (t.n_filters, call)),
        *_output(t, sweep, call, t.outputs(1, 1)),
        *_filter_packing(rates, table, ones, kept, kept),
    ]
    return streams, panels, t.k3 * rates.stored_tile[table.kernel] * table.channels


def _operand_bytes(t: Tiles) -> tuple[Array, Array]:
    """Bytes of all window tiles and of all filter tiles as one use of each reads them, all channels of one repeat."""
    sets = t.nest.channels / t.channels
    return sets * t.window * t.nest.windows, sets * t.filters * t.n_filters


def _raw_bytes(nest: Nest) -> float:
    """Input bytes of one repeat that are read at least once."""
    return float(nest.channels * nest.touched_h * nest.touched_w * nest.element_bytes)


def _row_reuse(t: Tiles, passes: Array | int, burst: Array, inside: Array, across: Array) -> Iterator[Stream]:
    """Input rows that packing reads again for the next row of outputs; `burst` windows are packed at once."""
    nest = t.nest
    again = nest.channels * max(0, _row_reads(nest) - nest.touched_h) * nest.touched_w * nest.element_bytes
    if again:
        crossing = np.minimum(1.0, nest.out_w / burst)
        chunk = t.rows / t.channels
        for share, distance in ((1 - crossing, inside), (crossing, across)):
            yield Stream("input", False, t.packed * passes * again * share, distance, nest.plane_bytes, t.rows, chunk)


def _in_place(
    t: Tiles, often: tuple[Array, Array, Array | int], seldom: tuple[Array, Array, Array], edge: tuple[Array, Array]
) -> Iterator[Stream]:
    """Reads of window tiles in place, (uses, distance, tiles in between), and of lines that neighbours share, (uses, distance)."""
    nest = t.nest
    if not nest.in_place:
        return
    unpacked, channels = 1 - t.packed, t.channels
    windows, _ = _operand_bytes(t)
    shared = (t.n_windows - 1) * t.window_edge / channels * nest.channels
    for size, (uses, distance), tiles in ((windows, often[:2], often[2]), (windows, seldom[:2], seldom[2]), (shared, edge, 1)):
        spread = unpacked * t.inputs(tiles)
        yield Stream("input", False, unpacked * size * uses, distance, nest.plane_bytes, spread, t.inputs(tiles) / channels)


def _output(t: Tiles, sweep: Array, neighbour: Array, between: Array) -> Iterator[Stream]:
    """Output tiles are updated once per channel set; neighbours share lines, with `between` bytes of other outputs between them."""
    nest = t.nest
    plane = nest.windows * nest.element_bytes
    yield Stream("output", True, nest.filters * plane * (t.sets - 1), sweep)
    edges = (t.n_windows - 1) * nest.filters * t.out_edge * t.sets
    yield Stream("output", True, edges, neighbour, plane, between, t.width(1) * nest.element_bytes + t.out_edge)


def _filter_packing(rates: Rates, table: Table, passes: Array, distance: Array, again: Array) -> Iterator[Stream]:
    """Filters that the run itself packs (a matrix product's A): raw reads after the first pass, and panel writes."""
    nest, at = rates.nest, table.kernel
    if not nest.filters_packed:
        raw = nest.filters * nest.channels * nest.element_bytes
        yield Stream("filters", False, raw * (passes - 1), again)
        yield Stream("packed", True, rates.stored_tile[at] * nest.channels * rates.filter_tiles[at] * passes, distance)


def first_touches(rates: Rates, table: Table, workspace: Array, hot: bool) -> Iterator[Stream]:
    """First reads and last writes of one repeat: their previous use lies one whole run away, a batch's filters one image."""
    nest, at = rates.nest, table.kernel
    stored = rates.stored_tile[at] * nest.channels * rates.filter_tiles[at]
    filters = stored if nest.filters_packed else np.full_like(stored, nest.filters * nest.channels * nest.element_bytes)
    inputs, outputs = np.full_like(stored, _raw_bytes(nest)), np.full_like(stored, nest.filters * nest.windows * nest.element_bytes)
    image = workspace + nest.groups * (inputs + filters + outputs)
    run = workspace + nest.groups * filters + nest.repeats * (inputs + outputs) if hot else np.full_like(stored, np.inf)
    yield Stream("input", False, inputs, run)
    yield Stream("filters", False, filters / nest.batch, run)
    if nest.batch > 1:
        yield Stream("filters", False, filters * (nest.batch - 1) / nest.batch, image)
    yield Stream("output", True, outputs, run)


def crossing(rates: Rates, streams: Sequence[Stream]) -> dict[str, Array]:
    """Bytes of each stream (rows) in each schedule (columns) that come from each supplier, one way, whole run.

    Supplier L2 stands for what misses L1, and so on to "memory"; nothing crosses further out than it did further in.
    """
    columns = streams[-1].distance.size
    size, distance = np.empty((len(streams), columns)), np.empty((len(streams), columns))
    for row, stream in enumerate(streams):
        size[row], distance[row] = stream.bytes, stream.distance
    size *= rates.nest.repeats
    levels = rates.machine.levels
    crossed: dict[str, Array] = {}
    for level, supplier in zip(levels, [*(level.name for level in levels[1:]), "memory"], strict=True):
        reach = distance.copy()
        for row, stream in enumerate(streams):
            start = gcd(stream.plane, level.sets * level.line_bytes)  # chunks start on multiples of this in a way
            if stream.plane and start > level.line_bytes:
                reach[row] += stream.spread * (np.maximum(1.0, start / stream.chunk) - 1.0)
        here = missing(level, reach)
        here *= size
        crossed[supplier] = np.minimum(here, next(reversed(crossed.values()), here), out=here)
    return crossed


def missing(level: Level, distance: Array) -> Array:
    """Share of lines that miss a level when touched again after `distance` bytes: from A - 1 ways none, from A + 1 all."""
    share = distance * (0.5 / (level.sets * level.line_bytes))
    share -= 0.5 * (level.ways - 1)
    return np.minimum(np.maximum(share, 0.0, out=share), 1.0, out=share)
