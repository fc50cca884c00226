# SPDX-License-Identifier: Apache-2.0
"""The traffic half of the cost model: streams of bytes with their reuse distances. `occupancy` says what of them each cache misses.

A distance is the bytes touched between two uses of the same data, by operand. It follows from the loops: with window tiles I,
filter tiles F and output tiles O, input stationary, a filter tile comes again after (2 - 1/K2) I + K2 (F + O): what follows it at
one window tile and what precedes it at the next. A window tile comes again after K3 I + K3 K2 O and the filters that follow it in
one set and precede it in the next: two sets, but for the first and the last window tile. Equations 4 and 5 of `csa` count one I and
one set, which holds where both lie in one panel. Weight stationary exchanges I and F. Packing adds the raw input that it reads. A
panel is written where the previous one lay, in the order in which that one was read. After the last use in a run comes the first of
the next image or run, and its distance follows from the same loops.

A distance is not the same for all tiles. The first tile of a set that is packed while the set is first used waits for the packing of
all others, the last one for none: such distances are taken at PARTS of their range. Rows and lines that two tiles share are near, but
as far apart as two sets are where one set ends between them. Bytes of tiles that start in the middle of lines count the lines' rest,
and so does the panel of a last tile that is not full.

`doubts` says where a machine or a schedule is not what the closed forms assume.

Worked number: 28x28 outputs, tiles of 8 windows, K3 = 25: 98 tiles are sets of 25, 25, 25 and 23. Of the 97 borders between
neighbouring tiles 3 lie between sets, and of the 27 steps from one row of outputs to the next 3 do.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise, starmap
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.cpu.incore import Array, Rates, Table
from pysim.cachemodel.cpu.nest import PANEL_ALIGN, Nest, live_pairs
from pysim.machine.cpu import Machine
from pysim.record.schedule import Schedule

OPERANDS = ("input", "packed", "filters", "output")  # the rows of a distance
PARTS = (0.25, 0.75)  # of what grows from the first tile of a set to the last
NEVER = 1e30  # bytes: the distance of what was never used before
Number = Array | float
Distance = tuple[Number, Number, Number, Number, Number]  # a row of `Tiles.distances`


class Stream(NamedTuple):
    """Bytes of an operand that one repeat touches again after other (and its own) data; a share `written` of them goes back out."""

    operand: str
    written: float
    bytes: Array
    between: int  # the distance: an index into `Flows.between`


class Flows(NamedTuple):
    """The streams of a table of each stationary kind: schedules side by side, all of the first kind first.

    Stream i of a kind moves bytes[i] of operand[kind, i] at distance at[kind, i], shares[kind, :, i] of them into what is only read
    and what is written of each operand. A kind with fewer streams than the other has some of no bytes. `between` is as
    `Tiles.distances` returns it, `once` the `footprint`; `never` (a column) is 1 for streams whose bytes were never used before.
    """

    columns: list[slice]  # of each kind
    kind: NDArray[np.int64]  # of each column
    operand: NDArray[np.int64]
    at: NDArray[np.int64]
    shares: Array
    never: Array
    bytes: Array
    between: Array
    once: Array


class Tiles(NamedTuple):
    """The columns of a table in bytes and counts: what the reuse distances are made of. Bytes are those of one channel set."""

    nest: Nest
    packed: Array  # 1: window tiles are packed, 0: read in place
    window: Array  # one window as the micro-kernel reads it (in a packed panel, or in place)
    all_windows: Array  # windows of all tiles, with the rest of the lines in the panel of a partial last tile
    window_edge: Array  # rest of the lines of neighbouring windows; 0 packed
    raw: Array  # input that packing one window tile reads; 0 in place
    raw_next: Array  # what one more tile of the same rows adds to that, once whole rows are read
    raw_shared: Array  # what the first of these rows needs beyond that
    raw_all: Array  # all input that packing reads; 0 in place
    rows: Array  # input rows that one row of outputs needs
    filters: Array  # the live part of one filter tile, as one micro-kernel call reads it
    tile_bytes: Array  # all of it, as some window tile or other does
    out_edge: Array  # rest of the lines of neighbouring outputs of one filter
    tile_windows: Array  # windows and filters of a tile
    tile_filters: Array
    n_windows: Array  # window tiles
    n_filters: Array
    row_tiles: Array  # window tiles of one row of outputs
    k2: Array  # streamed and kept tiles of a set, at most all
    k3: Array
    channels: Array
    sets: Array  # channel sets

    def width(self, count: Array | float) -> Array:
        """Windows of `count` neighbouring tiles."""
        return np.minimum(count * self.tile_windows, self.nest.windows)

    def inputs(self, count: Array | float) -> Array:
        """`count` neighbouring window tiles; planes that are read whole share their lines."""
        return np.minimum(count * self.tile_windows * self.window + self.window_edge, self.all_windows * self.window)

    def outputs(self, windows: Array | float, filters: Array | float) -> Array:
        """Output tiles of neighbouring window tiles and of filter tiles; planes that are written whole share their lines."""
        rows, size = np.minimum(filters * self.tile_filters, self.nest.filters), self.nest.out_bytes
        return rows * np.minimum(self.width(windows) * size + self.out_edge, self.nest.windows * size)

    def raws(self, count: Array | float) -> Array:
        """Input that packing `count` neighbouring window tiles reads: whole rows as soon as that is less."""
        return np.minimum(np.minimum(count * self.raw, self.raw_shared + count * self.raw_next), self.raw_all)

    def distances(self, found: Array, *rows: Distance) -> None:
        """Fills the first of `found`, distances: bytes of window tiles (packed or in place), of input that packing reads, of filters, of
        outputs, and of how many filter tiles these outputs are.

        Afterwards the rows of `found` are OPERANDS, the planes of the input and of the output that the bytes lie in, and `turns`: 2 where
        outputs are on average half of these planes and half of as many others, here 1. Then distances x schedules.
        """
        inputs, packed, filters, outputs, channels, planes, turns = found[:, : len(rows)]
        for at, (windows, raw, filter_bytes, output, tiles) in enumerate(rows):
            packed[at], inputs[at], filters[at], outputs[at], planes[at] = windows, raw, filter_bytes, output, tiles
        if self.nest.in_place:
            inputs += (1 - self.packed) * packed
            packed *= self.packed
        np.minimum(np.multiply(planes, self.tile_filters, out=planes), self.nest.filters, out=planes)
        channels[:], turns[:] = self.channels, 1.0


# the first distances of both kinds: between the last use in a run and the first of the next; and the last ones, for first touches
_INPUT, _FILTERS, _OUTPUT, _NEVER = range(4)
_OWN, _ENDS = 10 + len(PARTS), 4


class Reuse(NamedTuple):
    """The streams of one repeat but for first touches, and the workspace bytes of window and of filter panels."""

    streams: list[Stream]
    panels: Array
    filter_panels: Array


def flows(rates: Rates, tables: Sequence[Table], hot: bool) -> Flows:
    """The streams of tables of one stationary kind each, with first touches in caches that are `hot` or not."""
    ends = list(accumulate(table.kernel.size for table in tables))
    spans = list(starmap(slice, pairwise((0, *ends))))
    between, once = np.empty((len(OPERANDS) + 3, _OWN + _ENDS, ends[-1])), np.empty((len(OPERANDS), ends[-1]))
    sets, found = np.empty(ends[-1]), []
    for table, span in zip(tables, spans, strict=True):
        t = tiles_of(rates, table)
        reuse_of = input_stationary if table.stationary == "input_stationary" else weight_stationary
        found.append(reuse_of(rates, table, t, between[:, :_OWN, span]))
        once[:, span], sets[span] = footprint(rates, table, found[-1]), t.sets
    first = list(first_touches(rates.nest, sets, between, once, hot))
    count = len(first) + max(len(reuse.streams) for reuse in found)
    operand, at = np.zeros((2, len(tables), count), dtype=np.int64)
    shares, size = np.zeros((len(tables), 2 * len(OPERANDS), count)), np.zeros((count, ends[-1]))
    for kind, (reuse, span) in enumerate(zip(found, spans, strict=True)):
        for row, stream in enumerate((*first, *reuse.streams)):
            size[row, span] = stream.bytes[span] if row < len(first) else stream.bytes
            operand[kind, row] = of = OPERANDS.index(stream.operand)
            at[kind, row] = stream.between
            shares[kind, 2 * of, row], shares[kind, 2 * of + 1, row] = 1 - stream.written, stream.written
    never = (at[0] == _OWN + _NEVER).astype(np.float64)[:, None]
    kinds = np.repeat(np.arange(len(tables)), [table.kernel.size for table in tables])
    return Flows(spans, kinds, operand, at, shares, never, size, between, once)


def tiles_of(rates: Rates, table: Table) -> Tiles:
    """Every schedule of a table as bytes and counts."""
    nest, at, channels, packed = rates.nest, table.kernel, table.channels, table.packed
    row_bytes = nest.touched_bytes(rates.machine.levels[0].line_bytes) / nest.touched_h
    extent = (nest.kernel_h - 1) * nest.dilation_h + 1
    # packing reads a row of one channel for every row of outputs and live kernel row
    raw = (live_pairs(nest) * row_bytes + rates.pack_edge[at]) / rates.window_tiles[at]
    in_place = (1 - packed) * channels
    streamed, kept = rates.filter_tiles[at], rates.window_tiles[at]
    if table.stationary != "input_stationary":
        streamed, kept = kept, streamed
    line, size, tile = rates.machine.levels[0].line_bytes, nest.element_bytes, rates.windows[at]
    panel = np.ceil(rates.packed_window[at] * channels * tile / PANEL_ALIGN) * PANEL_ALIGN
    last = nest.windows - (rates.window_tiles[at] - 1) * tile
    last_packed = np.minimum(tile, last + (line - np.gcd((tile * size).astype(np.int64), line)) / size)
    step = min(nest.stride_h, nest.kernel_h) * row_bytes
    return Tiles(
        nest=nest,
        packed=packed,
        window=np.where(packed > 0, panel / tile, nest.element_bytes * channels),
        all_windows=nest.windows + packed * (last_packed - last),
        window_edge=in_place * rates.place_edge[at],
        raw=packed * channels * raw,
        raw_next=packed * channels * (tile / nest.out_w * step),
        raw_shared=packed * channels * max(0.0, min(extent, nest.touched_h) * row_bytes - step),
        raw_all=packed * channels * (nest.touched_h * row_bytes),
        rows=channels * (min(extent, nest.touched_h) * row_bytes),
        filters=rates.filter_tile[at] * channels,
        tile_bytes=rates.stored_tile[at] * channels,
        out_edge=rates.out_edge[at],
        tile_windows=rates.windows[at],
        tile_filters=rates.filters[at],
        n_windows=rates.window_tiles[at],
        n_filters=rates.filter_tiles[at],
        row_tiles=np.maximum(1.0, nest.out_w / rates.windows[at]),
        k2=np.minimum(table.k2, streamed),
        k3=np.minimum(table.k3, kept),
        channels=channels,
        sets=np.ceil(nest.channels / channels),
    )


def _ends(t: Tiles, sets: Array) -> Array:
    """Share of the window tiles' lines that the first or the last tile of a set reads; in place, some are the neighbour's too.

    Packed windows have no edge, and none of a byte where all that they see is padding.
    """
    return np.minimum(1.0, sets / t.n_windows * (2 + t.window_edge / np.maximum(1.0, t.window) / t.tile_windows))


def _both(count: Array) -> Array:
    """How often a pass over an operand that `count` sets split lies between two uses: a part each of two neighbouring passes."""
    return np.maximum(1.0, 2 - 2 / count)


def input_stationary(rates: Rates, table: Table, t: Tiles, between: Array) -> Reuse:
    """Reuse with filter tiles streaming past each window tile; fills the distances `between`.

    Window tiles are packed at the first set of K2 filter tiles: into one panel if that is the only set, else into K3 panels.
    """
    nest, packed, loads = rates.nest, t.packed, rates.nest.filters_packed
    k2_sets, k3_sets = np.ceil(t.n_filters / t.k2), np.ceil(t.n_windows / t.k3)
    one_set = k2_sets == 1
    twice = np.where(one_set & (packed > 0), 1.0, 2 - 1 / t.k2)
    mean = t.n_windows / k3_sets  # the last set may be smaller
    alone = np.where(one_set, 1.0, t.k3)
    near = np.where(one_set, 1.0, t.row_tiles)
    window, kept, panel, passing, in_mean, in_row, in_all = t.inputs(_stacked(t, 1, t.k3, alone, twice, mean, near, t.n_windows))
    end = np.where(t.k3 > 1, t.k2 + 0.5, 1.0) if loads else t.k2  # panels that the run packs lie where those of the set before lay
    middle = 2 * t.k2 if loads else t.k2
    ends = _ends(t, k3_sets)
    packing, mixed = t.raws(t.k3), (ends * end + (1 - ends) * middle) * t.tile_bytes
    moved = np.minimum(np.where(packed > 0, kept, _both(k2_sets) * in_mean + 2 / k2_sets * window), in_all)
    panels, in_place = packed * panel, 1 - packed
    everything, passed, filters = np.where(packed > 0, panel, in_all), t.k2 * t.tile_bytes, t.n_filters * t.tile_bytes
    several = t.sets > 1
    again = in_place * several * (1 - 1 / k2_sets) * kept
    fewer = np.where(several, 2 - 1 / np.where(one_set, t.n_windows, k3_sets), 1.0)
    in_call, in_pass, in_set, mean_out, all_out, row_out, later_out = t.outputs(
        _stacked(t, 1, 1, t.k3, mean, t.n_windows, t.row_tiles, t.k3),
        _stacked(t, 1, t.k2, t.k2, t.n_filters, t.n_filters, t.k2, t.n_filters - t.k2),
    )
    rest, every_k3, passes, call, stream, kept_end, kept_middle, row, inside, written, *kept_packing = range(_OWN)
    t.distances(
        between,
        (everything, t.raw_all, filters, all_out - in_place * later_out, t.n_filters),
        (moved, t.raws(mean), filters, mean_out, t.n_filters),
        (everything, t.raw_all + again, filters * fewer, all_out, t.n_filters),
        (window, 0, t.filters, in_call, 1),
        (passing, t.raw / k2_sets, passed, in_pass, t.k2),  # until a filter tile is used again
        (kept, 0, end * t.tile_bytes, in_set, t.k2),
        (kept, 0, middle * t.tile_bytes, in_set, t.k2),
        (in_row, t.rows, passed, row_out, t.k2),
        (window, t.rows, 0, 0, 1),
        (window, t.raw / 2, t.filters / 2, in_call, 1),
        *((kept, part * packing, mixed, in_set, t.k2) for part in PARTS),
    )
    between[-1, [kept_end, kept_middle, *kept_packing]] = 2
    np.copyto(between[:, rest], between[:, kept_middle], where=(k3_sets == 1) & (packed == 0))
    np.copyto(between[:, every_k3], between[:, stream], where=one_set)
    later, apart = np.maximum(0.0, k2_sets - 2), np.where(one_set, 1.0, k3_sets)  # one set of filters: sets of windows are one loop
    read_first = 1.0 if loads else 0.0  # filters that the run packs are in cache when they are read
    windows, filters = _operand_bytes(t)
    panel_bytes = packed * windows
    streams = [
        Stream("packed", 0.0, panel_bytes * (t.n_filters - k2_sets + 1), call),
        Stream("packed", 0.0, panel_bytes * later * ends, kept_end),
        Stream("packed", 0.0, panel_bytes * later * (1 - ends), kept_middle),
        Stream("packed", 1.0, panel_bytes * one_set, written),
        *(Stream("packed", 0.5, panel_bytes * ~one_set * (2 / len(PARTS)), one) for one in kept_packing),  # written, then read
        Stream("filters", 0.0, filters * (t.n_windows - read_first * k3_sets), stream),
        Stream("filters", 0.0, read_first * filters * (k3_sets - 1), every_k3),
        *_row_reuse(t, 1, inside, (t.n_windows, row), (apart, every_k3)),
        *_edges(t, "input", packed * rates.pack_edge[table.kernel] * nest.channels, stream, apart, every_k3),
        *_in_place(
            t,
            ((windows + _shared(t)) * (t.n_filters - k2_sets), call),  # a tile alone reads its lines whole each time
            (windows * (k2_sets - 1) * ends, kept_end),
            (windows * (k2_sets - 1) * (1 - ends), kept_middle),
        ),
        *_edges(t, "input", in_place * _shared(t) * k2_sets, stream, apart, kept_middle),
        Stream("output", 1.0, _output_bytes(t) * (t.sets - 1), passes),
        *_edges(t, "output", _shared_outputs(t), stream, apart, every_k3),
        *_filter_packing(rates, table, k3_sets, stream, every_k3),
    ]
    return Reuse(streams, panels, t.k2 * rates.stored_tile[table.kernel] * table.channels)


def weight_stationary(rates: Rates, table: Table, t: Tiles, between: Array) -> Reuse:
    """Reuse with window tiles streaming past each filter tile; fills the distances `between`.

    K2 window tiles are packed at once, again for every set of K3 filter tiles.
    """
    nest, packed, in_place = rates.nest, t.packed, 1 - t.packed
    k2_sets, k3_sets = np.ceil(t.n_windows / t.k2), np.ceil(t.n_filters / t.k3)
    window, window_set, in_row, in_all = t.inputs(_stacked(t, 1, t.k2, t.row_tiles, t.n_windows))
    panels, raw, kept_filters, filters = packed * window_set, t.raws(t.k2), t.k3 * t.tile_bytes, t.n_filters * t.tile_bytes
    ends = _ends(t, k2_sets)  # of the window tiles
    both = np.where(packed > 0, 1.0, np.where(t.k3 > 2, 2.0, np.where(t.k3 > 1, 1 + 0.5 / t.k2, 1 / t.k2)))
    everything = np.where(packed > 0, window_set, in_all)
    one_set = (k2_sets == 1) & (packed == 0)
    several = k3_sets > 1
    more = np.where(several, np.where(packed > 0, 2 - 1 / k2_sets, _both(k2_sets) + 2 / k2_sets / t.k3), 1.0)
    in_call, in_set, kept_out, wide_out, all_out, less_out, rest_out = t.outputs(
        _stacked(t, 1, t.k2, t.k2, t.n_windows, t.n_windows, t.k2, t.n_windows - t.k2),
        _stacked(t, 1, 1, t.k3, t.k3, t.n_filters, t.k3 - 1, t.k3),
    )
    every_k3, rest, passes, call, stream_end, stream, kept, row, edge, *packing, _ = range(_OWN)
    t.distances(
        between,
        (everything, t.raw_all, kept_filters * more, wide_out - in_place * less_out, t.k3),
        (everything, t.raw_all, filters, all_out - rest_out, t.n_filters),
        (everything, t.raw_all, filters + (t.sets > 1) * (1 - 1 / k2_sets) * kept_filters, all_out, t.n_filters),
        (window, 0, t.filters, in_call, 1),
        (window_set, 0, np.where(t.k2 > 1, 1.5, 1.0) * t.tile_bytes, in_set, 1),  # until a window tile is used again
        (window_set, 0, 2 * t.tile_bytes, in_set, 1),
        (both * window_set, raw, kept_filters, kept_out, t.k3),
        (in_row, t.rows, 0, 0, 1),
        (window, t.raw, 0, 0, 1),
        *((window_set, part * raw, t.tile_bytes, (1 - part) * in_set, 1) for part in PARTS),
        (0, 0, 0, 0, 1),
    )
    between[-1, [stream_end, stream]] = 2
    between[0, passes] *= np.where(t.sets > 1, 2 - 1 / np.where(one_set, t.n_filters, k3_sets), 1.0)
    np.copyto(between[:, every_k3], between[:, stream], where=one_set)
    np.copyto(between[:, rest], between[:, kept], where=~several)
    windows, filters = _operand_bytes(t)
    panel_bytes = packed * windows
    read_first = 1.0 if nest.filters_packed else 0.0
    streams = [
        *(Stream("packed", 0.5, panel_bytes * k3_sets * (2 / len(PARTS)), one) for one in packing),  # written, then read
        Stream("packed", 0.0, panel_bytes * (t.n_filters - k3_sets) * ends, stream_end),
        Stream("packed", 0.0, panel_bytes * (t.n_filters - k3_sets) * (1 - ends), stream),
        Stream("filters", 0.0, filters * (t.n_windows - k2_sets), call),
        Stream("filters", 0.0, filters * (k2_sets - read_first), kept),
        Stream("input", 0.0, packed * _raw_bytes(rates) * (k3_sets - 1), every_k3),
        *_row_reuse(t, k3_sets, row, (k2_sets, kept)),
        *_edges(t, "input", packed * rates.pack_edge[table.kernel] * nest.channels * k3_sets, edge, k2_sets, kept),
        *_in_place(
            t,
            (windows * (t.n_filters - k3_sets) * ends, stream_end),
            (windows * (t.n_filters - k3_sets) * (1 - ends), stream),
            (windows * (k3_sets - 1), every_k3),
        ),
        *_edges(t, "input", in_place * _shared(t) * t.n_filters, call, k2_sets, stream),
        Stream("output", 1.0, _output_bytes(t) * (t.sets - 1), passes),
        *_edges(t, "output", _shared_outputs(t), call, k2_sets, kept),
        *_filter_packing(rates, table, np.ones_like(t.k2), kept, kept),
    ]
    return Reuse(streams, panels, t.k3 * rates.stored_tile[table.kernel] * table.channels)


def _stacked(t: Tiles, *rows: Number) -> Array:
    """Columns and constants as the rows of one array."""
    found = np.empty((len(rows), t.k2.size))
    for at, row in enumerate(rows):
        found[at] = row
    return found


def _operand_bytes(t: Tiles) -> tuple[Array, Array]:
    """Bytes of all window tiles and of all filter tiles as one use of each reads them, all channels of one repeat."""
    sets = t.nest.channels / t.channels
    return sets * t.window * t.all_windows, sets * t.filters * t.n_filters


def _raw_bytes(rates: Rates) -> float:
    """Input bytes of one repeat in lines that are read at least once."""
    return float(rates.nest.channels * rates.nest.touched_bytes(rates.machine.levels[0].line_bytes))


def _row_reuse(t: Tiles, passes: Number, inside: int, *across: tuple[Array, int]) -> Iterator[Stream]:
    """Input rows that packing reads again for the next row of outputs: `inside` one burst of packing, or across (bursts, distance).

    Where a burst ends, one row of outputs finds the rows of the one before as far away as the next burst is.
    """
    nest = t.nest
    again = nest.channels * max(0, live_pairs(nest) - nest.touched_h) * nest.touched_w * nest.element_bytes
    if again:
        size = t.packed * passes * again
        for bursts, distance in across:
            share = np.clip((bursts - 1) / max(1, nest.out_h - 1), 0.0, 1.0)
            far = t.packed * passes * again * share
            yield Stream("input", 0.0, size - far, inside)
            size, inside = far, distance
        yield Stream("input", 0.0, size, inside)


def _in_place(t: Tiles, *again: tuple[Array, int]) -> Iterator[Stream]:
    """Reads of window tiles in place: (bytes, distance)."""
    if t.nest.in_place:
        for size, distance in again:
            yield Stream("input", 0.0, (1 - t.packed) * size, distance)


def _edges(t: Tiles, operand: str, size: Array, near: int, sets: Array, far: int) -> Iterator[Stream]:
    """Bytes of lines that neighbouring window tiles share: `far` from each other where one set of them ends and the next begins."""
    if size.any():
        across = np.maximum(0.0, sets - 1) / np.maximum(1.0, t.n_windows - 1)
        yield Stream(operand, float(operand == "output"), size * (1 - across), near)
        yield Stream(operand, float(operand == "output"), size * across, far)


def _shared(t: Tiles) -> Array:
    """Bytes of lines that windows of neighbouring tiles share in place, of all channels."""
    return (t.n_windows - 1) * t.window_edge / t.channels * t.nest.channels


def _shared_outputs(t: Tiles) -> Array:
    """Bytes of lines that outputs of neighbouring tiles share, of all channel sets."""
    return (t.n_windows - 1) * t.nest.filters * t.out_edge * t.sets


def _output_bytes(t: Tiles) -> int:
    """Bytes of all outputs."""
    return t.nest.filters * t.nest.windows * t.nest.out_bytes


def _filter_packing(rates: Rates, table: Table, passes: Array, distance: int, again: int) -> Iterator[Stream]:
    """Filters that the run itself packs (a matrix product's A): raw reads after the first pass, and panel writes."""
    nest, at = rates.nest, table.kernel
    if not nest.filters_packed:
        raw = nest.filters * nest.channels * nest.element_bytes
        yield Stream("filters", 0.0, raw * (passes - 1), again)
        yield Stream("packed", 1.0, rates.stored_tile[at] * nest.channels * rates.filter_tiles[at] * passes, distance)


def footprint(rates: Rates, table: Table, reuse: Reuse) -> Array:
    """Bytes of each operand (OPERANDS x schedules) that one repeat touches at least once; outputs and filters in full."""
    nest, at = rates.nest, table.kernel
    stored = rates.stored_tile[at] * nest.channels * rates.filter_tiles[at]
    parts = np.empty((len(OPERANDS), stored.size))
    parts[0], parts[1] = _raw_bytes(rates), reuse.panels + (0.0 if nest.filters_packed else reuse.filter_panels)
    parts[2] = stored if nest.filters_packed else nest.filters * nest.channels * nest.element_bytes
    parts[3] = nest.filters * nest.windows * nest.out_bytes
    return parts


def first_touches(nest: Nest, sets: Array, between: Array, once: Array, hot: bool) -> Iterator[Stream]:
    """First reads and last writes of one repeat; `once` is its `footprint`. The previous use lies in the run or the image before.

    Where nothing else runs in between (one of the channel `sets`; one repeat, or for filters one group), that is as near as the first
    distances of `between` say. Its last ones are filled in here.
    """
    found = between[:, -_ENDS:]
    found[: len(OPERANDS), _INPUT] = run = once * np.array([nest.repeats, 1, nest.groups, nest.repeats])[:, None]
    found[: len(OPERANDS), _FILTERS] = once * np.array([nest.groups, 1, nest.groups, nest.groups])[:, None]
    found[len(OPERANDS) :, :_OUTPUT] = np.array([nest.channels, nest.filters, 1.0])[:, None, None]
    found[:, _OUTPUT] = between[:, _OUTPUT]
    found[: len(OPERANDS), _OUTPUT] += run - once
    found[:, _NEVER] = NEVER
    for operand, rivals in ((_INPUT, nest.repeats), (_FILTERS, nest.groups)):
        if rivals == 1:
            np.copyto(found[:, operand], between[:, operand], where=sets == 1)
    inputs, filters, outputs = (_OWN + (operand if hot else _NEVER) for operand in (_INPUT, _FILTERS, _OUTPUT))
    yield Stream("input", 0.0, once[0], inputs)
    yield Stream("filters", 0.0, once[2] / nest.batch, filters)
    if nest.batch > 1:
        yield Stream("filters", 0.0, once[2] * (nest.batch - 1) / nest.batch, _OWN + _FILTERS)
    yield Stream("output", 1.0, once[3], outputs)


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
        start = gcd(nest.plane_bytes, level.sets * level.line_bytes)
        used = max(level.line_bytes, min(nest.plane_bytes, schedule.windows * nest.element_bytes))
        if schedule.pack == "none" and nest.channels > 1 and start > used:
            planes = f"planes of {nest.plane_bytes:,} bytes are read in place {schedule.windows} windows at a time"
            found.append(
                f"{planes}: they start in 1 of {start // level.line_bytes} sets of {level.name} and conflict, which is only estimated"
            )
    return found
