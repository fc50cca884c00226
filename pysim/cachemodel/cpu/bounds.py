# SPDX-License-Identifier: Apache-2.0
"""A lower bound on the traffic of SConv's nest (`nest_loops`), from the sizes of its tiles alone: for thousands of schedules, of which
`cost` predicts only those that it cannot exclude.

The micro-kernel reads a kept tile k and a streamed tile s for a tile o of outputs. With sets of K3 kept and K2 streamed tiles, K and S
tiles in all, the equations of `distances` have at least these bytes between two uses:

    k, for the next streamed tile             k + s + o                            S - ceil(S / K2) times
    s, for the next kept tile                 k + K2 (s + o)                       K - ceil(K / K3) times
    k, for the next set of streamed tiles     K3 k + K2 s + (K2 (K3 - 1) + 1) o    ceil(S / K2) - 1 times     s, not K2 s, if K3 = 1
    s, for the next set of kept tiles         K3 k + S s + (K3 (S - K2) + K2) o    ceil(K / K3) - 1 times     k, not K3 k, if K2 = S
    o, for the next set of channels           K k + S s + K S o                    each time

Streamed tiles that the run packs are packed anew for each set of kept tiles, and at least their panels K2 s lie in between. First uses
follow the previous run's last ones: all of the operand lies between them, and of the other operand what the sets of channels have that are
not the same. Lines that tiles share are left out, and so are reads of a panel that was just packed. What certainly crossed a level counts
in the level outside it, and only as much of a distance. So the bound is at most the prediction (`tests/unit/planner/test_planner.py`
compares them).

Worked number: with 1,000 channels of f32, a tile of 32 windows has k = 128,000 bytes, and one of 14 filters s = 56,000. An L1 of 32 KiB
holds neither until the next use: all filters are read from beyond it for each of the K tiles of windows.
"""

import itertools
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pysim.cachemodel.cpu.incore import Array
from pysim.cachemodel.cpu.nest import PANEL_ALIGN
from pysim.cachemodel.cpu.nest_loops import FILTERS, INPUT, OPERANDS, OUTPUT, PACKED, raw_input
from pysim.cachemodel.cpu.reuse.occupancy import CERTAIN_LINES
from pysim.cachemodel.cpu.tables import Table
from pysim.cachemodel.equations import as_rows, empty
from pysim.machine.cpu import Level

_NORMAL = ((-1.0, 0.158), (0.0, 0.341), (1.0, 0.341), (2.0, 0.136))  # z, and what Phi(z) is more than at the z before, rounded down


class _Uses(NamedTuple):
    """Uses of OPERANDS in turn (rows) for each schedule: `size` bytes are used again after at least `between` bytes of kept tiles, of
    streamed tiles and of outputs.

    `distinct`: the most distinct bytes that kept tiles, streamed tiles and outputs may have. `raw`: bytes of the kept and of the streamed
    operand in memory, which lie between its first uses (the last two rows) in two runs, too; `others`: the share of the other operand that
    does. `in_place`: 1 where later uses read these bytes, not panels.
    """

    size: Array
    between: Array
    distinct: Array
    raw: Array
    others: Array
    in_place: Array


@lru_cache(maxsize=64)
def _steps(level: Level) -> tuple[tuple[float, float], ...]:
    """Distances in bytes beyond which lines miss a level for certain, and how much more of them (`occupancy.miss_share`)."""
    if level.page_share == 1:
        return (((level.ways + CERTAIN_LINES) * level.way_bytes, 1.0),)
    scattered, median = 1 - level.page_share, level.ways - 1 / 3
    ways = [((z * scattered**0.5 + (z * z * scattered + 4 * median) ** 0.5) / 2) ** 2 for z, _ in _NORMAL]  # at which Phi has z
    return tuple((way * level.way_bytes, share) for way, (_, share) in zip(ways, _NORMAL, strict=True))


def least_traffic(table: Table, tiled: bool = True) -> Array:
    """Bytes that each supplier delivers at least, as `occupancy.traffic`. Not `tiled`: whatever the sets of kept and streamed tiles are
    (`tilings.sets`)."""
    uses, levels = _uses(table, tiled), table.rates.machine.levels
    before, distance = uses.size, uses.between.sum(axis=0)
    missed, crossed = (empty((len(levels), len(of)), table.columns) for of in (before, uses.distinct))
    distance[-2:] += uses.raw + uses.others * uses.raw[::-1]
    for level, of_level, of_operands in zip(levels, missed, crossed, strict=True):
        certain = sum(share * (distance >= least) for least, share in _steps(level))
        before = np.minimum(before, certain * uses.size, out=of_level)
        of_operands[...] = before[:5:2]  # of kept tiles, of streamed tiles, of outputs
        of_operands[:2] += before[1:4:2]
        if level is not levels[-1]:
            distance = (np.minimum(1.0, of_operands / uses.distinct)[:, None] * uses.between).sum(axis=0)
            raw = np.minimum(uses.raw, before[-2:] + uses.in_place * of_operands[:2])
            distance[-2:] += raw + uses.others * raw[::-1]
    return _of_operands(table, crossed, missed)


def _of_operands(table: Table, crossed: Array, missed: Array) -> Array:
    """What misses each level, by operands: `crossed` of kept tiles, streamed tiles and outputs, of the uses that are `missed`."""
    nest, keeps = table.rates.nest, table.keeps_windows
    moved = empty((len(missed), 2 * len(OPERANDS)), table.columns)
    moved[...] = 0.0
    (kept, streamed, outputs), (first_k, first_s) = crossed.swapaxes(0, 1), missed.swapaxes(0, 1)[-2:]
    windows, in_panels = np.where(keeps, kept, streamed), 1.0 if nest.windows_packed else table.packed
    moved[:, 2 * PACKED] = windows * in_panels
    moved[:, 2 * INPUT] = windows * (1 - in_panels)
    moved[:, 2 * PACKED + 1] = missed[:, 5] + missed[:, 6]
    moved[:, 2 * (PACKED if nest.windows_packed else INPUT)] += np.where(keeps, first_k, first_s)
    moved[:, 2 * (FILTERS if nest.filters_packed else PACKED)] += np.where(keeps, streamed, kept)
    moved[:, 2 * FILTERS] += np.where(keeps, first_s, first_k)
    moved[:, 2 * OUTPUT + 1] = outputs
    return moved


def _tiles(table: Table) -> tuple[Array, Array]:
    """Numbers of kept and of streamed tiles (rows) for each schedule: of the tiles; bytes of all and of one for a set of channels; outputs
    of one and of all along their side; whether the run packs them; bytes of a pass over the operand, without kernel rows in padding, and in
    memory; the share of it that an image has."""
    rates, nest, keeps, channels = table.rates, table.rates.nest, table.keeps_windows, table.channels
    size, panel = nest.element_bytes, rates.packed_window
    window = np.where(table.packed > 0, panel, panel if nest.windows_packed else size)  # bytes for one channel
    reads, all_filters = nest.repeats * nest.group_channels, rates.stored_tile * rates.filter_tiles
    in_memory: Array | float = 0.0
    if not nest.fresh_input:  # what was just written may be near
        in_memory = reads * np.where(table.packed > 0, raw_input(rates).of_tiles(rates.window_tiles), nest.windows * window)
    windows = as_rows(
        table.columns,
        rates.window_tiles,
        channels * nest.windows * window,
        channels * np.minimum(rates.windows, nest.windows) * window,
        rates.windows,
        nest.windows,
        table.packed,
        reads * nest.windows * window,
        in_memory,
        1 / nest.batch,
    )
    filters = as_rows(
        table.columns,
        rates.filter_tiles,
        channels * all_filters,
        channels * rates.stored_tile,
        rates.filters,
        nest.group_filters,
        not nest.filters_packed,
        reads * rates.filter_tile * rates.filter_tiles,
        nest.groups * nest.group_channels * (all_filters if nest.filters_packed else nest.group_filters * size),
        1.0,
    )
    return np.where(keeps, windows, filters), np.where(keeps, filters, windows)


def _uses(table: Table, tiled: bool) -> _Uses:
    """The uses above: two of k, two of s, that of o; k and s after the run has packed them; and the first uses of their operands. Not
    `tiled`: each at the least distance that any sets of tiles have, and as many as all sets have."""
    nest, channels, count = table.rates.nest, table.channels, table.columns
    one, zero, sets, repeats = 1.0, 0.0, np.ceil(nest.group_channels / channels), nest.repeats
    (
        (n_k, all_k, k, tile_k, most_k, packed_k, pass_k, first_k, image_k),
        (n_s, all_s, s, tile_s, most_s, packed_s, pass_s, first_s, image_s),
    ) = _tiles(table)
    k_packed, s_packed = packed_k > 0, packed_s > 0

    k2, k3 = (np.minimum(table.k2, n_s), np.minimum(table.k3, n_k)) if tiled else (one, one)
    sets_s, sets_k, packings = (np.ceil(n_s / k2), np.ceil(n_k / k3), n_k / k3) if tiled else (one, one, one)
    k2_s, k3_k = np.minimum(k2 * s, all_s), np.minimum(k3 * k, all_k)
    near_s, near_k = np.where(k3 > 1, k2_s, s), np.where(sets_s > 1, k3_k, k)
    refilled_k, refilled_s = np.where(k_packed, near_k, all_k), np.where(s_packed, k2_s, all_s)  # panels are filled again for each set
    most_in_k, most_in_s = (refilled_k, refilled_s) if tiled else (all_k, all_s)
    all_k, all_s = refilled_k, refilled_s

    high_k3, high = np.minimum(k3 * tile_k, most_k), np.minimum(n_k * tile_k, most_k)  # outputs of kept tiles
    wide_1, wide_k2, wide = (nest.stored_bytes * np.minimum(tiles * tile_s, most_s) for tiles in (1, k2, n_s))  # bytes of streamed tiles
    o, k2_o, k2_k3_o, k3_o, all_o = tile_k * wide_1, tile_k * wide_k2, high_k3 * wide_k2, high_k3 * wide, high * wide

    tiles = k + s + PANEL_ALIGN * (n_k + n_s)  # partial tiles and lines
    operands, out = repeats * sets * (most_in_k + most_in_s) + tiles, repeats * all_o
    near_o, far_o = o + k2_k3_o - k2_o, k2_o + k3_o - k2_k3_o
    if tiled:
        again_s, unpacked_s = (pass_s * (n_k - sets_k), k, k2_s, k2_o), 1 - packed_s
        next_s = (pass_s * np.where(s_packed, packings, sets_k - 1), near_k * unpacked_s, all_s, far_o * unpacked_s)
        before_k = near_o + all_o - k3_o
    else:
        again_s, next_s = (pass_s * (n_k - 1), np.where(s_packed, zero, k), s, np.where(s_packed, zero, o)), (zero, zero, zero, zero)
        before_k = o
    uses = (
        (pass_k * (n_s - sets_s), k, s, o),
        (pass_k * (sets_s - 1), k3_k, near_s, near_o),
        again_s,
        next_s,
        (out * sets, all_k, all_s, all_o),
        (packed_k * pass_k, near_k, zero, zero),
        (packed_s * pass_s * packings, zero, k2_s, zero),
        (first_k, zero, np.where(k_packed, all_s, near_s), np.where(k_packed, all_o, before_k)),
        (first_s, near_k, np.where(s_packed, all_s, zero), np.where(s_packed, k3_o, far_o)),
    )
    sizes, *distances = zip(*uses, strict=True)
    others = as_rows(count, image_s, image_k) * (1 - np.minimum(1.0, channels / nest.group_channels))
    raw, in_place = as_rows(count, first_k, first_s), 1 - as_rows(count, packed_k, packed_s)
    between = as_rows(count, *itertools.chain(*distances)).reshape(3, -1, count)
    return _Uses(as_rows(count, *sizes), between, as_rows(count, operands, operands, out), raw, others, in_place)
