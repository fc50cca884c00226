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

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pysim.cachemodel.cpu.incore import Array, Table
from pysim.cachemodel.cpu.nest import PANEL_ALIGN
from pysim.cachemodel.cpu.nest_loops import FILTERS, INPUT, OPERANDS, OUTPUT, PACKED, raw_input
from pysim.cachemodel.cpu.reuse.occupancy import CERTAIN_LINES
from pysim.machine.cpu import Level

_NORMAL = ((-1.0, 0.158), (0.0, 0.341), (1.0, 0.341), (2.0, 0.136))  # z, and what Phi(z) is more than at the z before, rounded down


class _Uses(NamedTuple):
    """Uses of OPERANDS in turn (rows) for each schedule: `size` bytes are used again after at least `kept` + `streamed` + `outputs` bytes.

    `distinct`: the most distinct bytes that kept tiles, streamed tiles and outputs may have. `raw`: bytes of the kept and of the streamed
    operand in memory, which lie between its first uses (the last two rows) in two runs, too; `others`: the share of the other operand that
    does. `in_place`: 1 where later uses read these bytes, not panels.
    """

    size: Array
    kept: Array
    streamed: Array
    outputs: Array
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
    rates, keeps, uses = table.rates, table.keeps_windows, _uses(table, tiled)
    nest, levels = rates.nest, rates.machine.levels
    moved, missed = np.zeros((len(levels), 2 * len(OPERANDS), keeps.size)), uses.size
    of_filters, in_panels = FILTERS if nest.filters_packed else PACKED, 1.0 if nest.windows_packed else table.packed
    distance = uses.kept + uses.streamed + uses.outputs
    distance[-2:] += uses.raw + uses.others * uses.raw[::-1]
    for level, of_level in zip(levels, moved, strict=True):
        certain = np.zeros(uses.size.shape)
        for least, share in _steps(level):
            certain += share * (distance >= least)
        certain *= uses.size
        missed = np.minimum(missed, certain, out=certain)
        kept, streamed, outputs = missed[0] + missed[1], missed[2] + missed[3], missed[4]
        of_level[2 * PACKED] = np.where(keeps, kept, streamed) * in_panels
        of_level[2 * INPUT] = np.where(keeps, kept, streamed) * (1 - in_panels)
        of_level[2 * PACKED + 1] = missed[5] + missed[6]
        of_level[2 * (PACKED if nest.windows_packed else INPUT)] += np.where(keeps, missed[7], missed[8])
        of_level[2 * of_filters] += np.where(keeps, streamed, kept)
        of_level[2 * FILTERS] += np.where(keeps, missed[8], missed[7])
        of_level[2 * OUTPUT + 1] = outputs
        if level is not levels[-1]:
            seen = np.minimum(1.0, np.array([kept, streamed, outputs]) / uses.distinct)
            distance = seen[0] * uses.kept + seen[1] * uses.streamed + seen[2] * uses.outputs
            crossed = np.minimum(uses.raw, missed[-2:] + uses.in_place * np.array([kept, streamed]))
            distance[-2:] += crossed + uses.others * crossed[::-1]
    return moved


def _uses(table: Table, tiled: bool) -> _Uses:
    """The uses above: two of k, two of s, that of o; k and s after the run has packed them; and the first uses of their operands. Not
    `tiled`: each at the least distance that any sets of tiles have, and as many as all sets have."""
    rates, nest, keeps = table.rates, table.rates.nest, table.keeps_windows
    size, repeats, sets = nest.element_bytes, nest.repeats, np.ceil(nest.group_channels / table.channels)
    window = np.where((table.packed > 0) | nest.windows_packed, rates.packed_window, size)  # bytes for one channel
    all_filters = rates.stored_tile * rates.filter_tiles

    def roles(windows: Array | float, filters: Array | float) -> tuple[Array, Array]:
        """Numbers of the kept and of the streamed operand."""
        return np.where(keeps, windows, filters), np.where(keeps, filters, windows)

    channels, one, zero = table.channels, np.ones(keeps.size), np.zeros(keeps.size)
    all_k, all_s = roles(channels * nest.windows * window, channels * all_filters)
    k, s = roles(channels * np.minimum(rates.windows, nest.windows) * window, channels * rates.stored_tile)
    n_k, n_s = roles(rates.window_tiles, rates.filter_tiles)
    k2, k3 = (np.minimum(table.k2, n_s), np.minimum(table.k3, n_k)) if tiled else (one, one)
    sets_s, sets_k, packings = (np.ceil(n_s / k2), np.ceil(n_k / k3), n_k / k3) if tiled else (one, one, one)
    k2_s, k3_k = np.minimum(k2 * s, all_s), np.minimum(k3 * k, all_k)
    near_s, near_k = np.where(k3 > 1, k2_s, s), np.where(sets_s > 1, k3_k, k)
    packed_k, packed_s = (packed > 0 for packed in roles(table.packed, float(not nest.filters_packed)))
    refilled_k, refilled_s = np.where(packed_k, near_k, all_k), np.where(packed_s, k2_s, all_s)  # panels are filled again for each set
    most_in_k, most_in_s = (refilled_k, refilled_s) if tiled else (all_k, all_s)
    all_k, all_s = refilled_k, refilled_s

    (tile_k, tile_s), (most_k, most_s) = roles(rates.windows, rates.filters), roles(nest.windows, nest.group_filters)
    high_1, high_k3, high = tile_k, np.minimum(k3 * tile_k, most_k), np.minimum(n_k * tile_k, most_k)  # outputs of kept tiles
    wide_1, wide_k2, wide = (nest.result_bytes * np.minimum(tiles * tile_s, most_s) for tiles in (1, k2, n_s))  # bytes of streamed tiles
    o, k2_o, k2_k3_o, k3_o, all_o = high_1 * wide_1, high_1 * wide_k2, high_k3 * wide_k2, high_k3 * wide, high * wide

    reads = repeats * nest.group_channels  # bytes of a pass over each operand, without kernel rows in padding
    pass_k, pass_s = roles(reads * nest.windows * window, reads * rates.filter_tile * rates.filter_tiles)
    raw_windows = reads * np.where(table.packed > 0, raw_input(rates).of_tiles(rates.window_tiles), nest.windows * window)
    raw_windows *= not nest.fresh_input  # what was just written may be near
    raw_filters = nest.groups * nest.group_channels * (all_filters if nest.filters_packed else nest.group_filters * size)
    first_k, first_s = raw = np.array(roles(raw_windows, raw_filters))
    tiles = k + s + PANEL_ALIGN * (n_k + n_s)  # partial tiles and lines
    operands, out = repeats * sets * (most_in_k + most_in_s) + tiles, repeats * all_o
    near_o, far_o = o + k2_k3_o - k2_o, k2_o + k3_o - k2_k3_o
    if tiled:
        again_s = (pass_s * (n_k - sets_k), k, k2_s, k2_o)
        next_s = (pass_s * np.where(packed_s, n_k / k3, sets_k - 1), near_k * ~packed_s, all_s, far_o * ~packed_s)
        before_k = near_o + all_o - k3_o
    else:
        again_s, next_s = (pass_s * (n_k - 1), np.where(packed_s, zero, k), s, np.where(packed_s, zero, o)), (zero, zero, zero, zero)
        before_k = o
    uses = (
        (pass_k * (n_s - sets_s), k, s, o),
        (pass_k * (sets_s - 1), k3_k, near_s, near_o),
        again_s,
        next_s,
        (out * sets, all_k, all_s, all_o),
        (np.where(packed_k, pass_k, zero), near_k, zero, zero),
        (np.where(packed_s, pass_s * packings, zero), zero, k2_s, zero),
        (first_k, zero, np.where(packed_k, all_s, near_s), np.where(packed_k, all_o, before_k)),
        (first_s, near_k, np.where(packed_s, all_s, zero), np.where(packed_s, k3_o, far_o)),
    )
    sizes, kept, streamed, of_outputs = (np.array(column) for column in zip(*uses, strict=True))
    others = np.array(roles(1 / nest.batch, 1.0))[::-1] * (1 - np.minimum(1.0, channels / nest.group_channels))
    return _Uses(sizes, kept, streamed, of_outputs, np.array([operands, operands, out]), raw, others, ~np.array([packed_k, packed_s]))
