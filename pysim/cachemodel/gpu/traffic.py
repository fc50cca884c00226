# SPDX-License-Identifier: Apache-2.0
"""L2 traffic of a launch: which blocks request the same bytes at the same time, and how often a panel comes from memory again.

The rasterisation numbers the tiles of C (`native/cuda/core/decomposition.cuh`) in bands of `group` panels of the slow operand, each along
all panels of the fast operand. A panel is what one row or column of tiles reads: n_slow tiles read each panel of the fast operand, n_fast
tiles each panel of the slow one.

waves     Data parallel and split-K: `at_once` tiles run in lockstep. They form a rectangle of high x wide tiles (the idea of AMD's Origami,
          https://github.com/ROCm/rocm-libraries, shared/origami), whose rows and columns request the same bytes simultaneously. The fast
          operand is read again for each band, at a reuse distance of itself plus a band; the slow one for each wave of a band, at the
          distance of what a wave touches. Tiles of C that are written meanwhile take space in L2, too.
stream_k  Each block takes `share` consecutive k-iterations, so at time t block g is at iteration g share + t of all. Tile x reads
          iteration s of its panels at time (x iterations + s) mod share. The sorted times of the tiles that share a panel have gaps. A gap
          of up to one iteration is a simultaneous request; after a longer gap the panel is read again, at the distance of what all blocks
          touch meanwhile. Blocks share panels only where (tiles along a panel) x iterations is nearly a multiple of share.
gpcs      The SMs of a GPC that request the same bytes simultaneously get them from one request of L2. A wave's tiles are divided among the
          GPCs: runs of consecutive tiles, or every so many clusters. 13 x 4 tiles in two split-K parts as 52 clusters on 8 GPCs: a GPC has
          6.5 tiles, in 6.5 rows and 4 columns, so it takes 21 panels for 13 blocks; consecutive ones would take 15 to 17.
misses    At reuse distance d the share clip(2 d / (l2_share L2) - 1, 0, 1) of accesses misses L2.

Assumptions: blocks of a wave start together; stream-K blocks keep pace; a cluster counts as one block.

Worked number: 24 x 24 tiles on 66 clusters are 8.727 tiles a cluster. The tiles of one row are 24 apart, 24 mod 8.727 = 6.545, and four
times 6.545 is 3 x 8.727: of the 24 tiles of a row, 6 read it at a time. Of 32 x 32 tiles, 15.515 a cluster, 2 do.
"""

import math
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.costs import numbered
from pysim.cachemodel.gpu.mainloop import LINE_BYTES
from pysim.cachemodel.gpu.windows import SECTOR_BYTES
from pysim.machine.gpu import Gpu

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Number = float | Floats
N = TypeVar("N", float, Floats)

SIMULTANEOUS = 1.0  # k-iterations between two requests that L2 joins
STORE_BYTES = 64  # contiguous bytes of a row of C in a warp's store (128 where rows are whole vectors, stored since the costs were fitted)
MAX_TILES = 128  # tiles of a panel that `stream_k` considers: the first ones


class Rasterisation(NamedTuple):
    """Tile orders of launches, as arrays: bytes and panels of the fast and of the slow operand, slow panels in a band, tiles that run at
    once, k-iterations of a tile, those of a stream-K block (0: not stream-K), and bytes of C."""

    fast: Floats
    slow: Floats
    n_fast: Floats
    n_slow: Floats
    group: Floats
    at_once: Floats
    iterations: Floats
    share: Floats
    result: Floats


class Sharing(NamedTuple):
    """By operand: the share of L2 requests that no simultaneous request repeats, and how often the operand comes from memory again."""

    fast_alone: Floats
    slow_alone: Floats
    fast_again: Floats
    slow_again: Floats


def lines_of_row(pitch: int, size: int = LINE_BYTES) -> float:
    """Mean L2 lines that a TMA box row of `size` bytes, at most a line, touches where rows begin at multiples of `pitch` bytes."""
    return 1 + max(0, size - math.gcd(pitch, LINE_BYTES)) / LINE_BYTES


def sectors_of(pitch: int, run: int = STORE_BYTES) -> float:
    """Mean bytes of the sectors that a run of bytes touches, over its own, where rows begin at multiples of `pitch` bytes."""
    return 1 + (SECTOR_BYTES - math.gcd(pitch, SECTOR_BYTES)) / run


def l2_miss_share(gpu: Gpu, distance: N) -> N:
    """Share of accesses at a reuse distance, in bytes, that miss L2."""
    share = 2 * distance / (gpu.model.l2_share.value * gpu.l2_bytes.value) - 1
    return min(max(share, 0.0), 1.0) if isinstance(share, (int, float)) else np.minimum(np.maximum(share, 0), 1)


def sharing(gpu: Gpu, order: Rasterisation, streams: Sharing) -> Sharing:
    """What blocks share in L2; `streams`: those of stream-K launches (`stream_k_sharing`)."""
    return Sharing._make(np.where(order.share > 0, own, of) for own, of in zip(streams, waves(gpu, order), strict=True))


def stream_k_sharing(gpu: Gpu, order: Rasterisation) -> Sharing:
    """What blocks of stream-K launches share; many kernels have the same tiles."""
    distinct, place = numbered(map(tuple, np.array(order).T.tolist()))
    return Sharing._make(of[place] for of in stream_k(gpu, Rasterisation(*np.array(distinct).T)))


def waves(gpu: Gpu, order: Rasterisation) -> Sharing:
    """Blocks that run at once are in lockstep on one rectangle of tiles."""
    fast, slow, n_fast, n_slow, group, at_once = order[:6]
    in_band = at_once <= n_fast * group  # else a wave covers several bands
    high, wide = rectangle(order)
    count = n_fast * n_slow / at_once
    touched = fast * high / n_fast + slow * wide / n_slow + order.result / count
    band = np.where(in_band, fast + (slow + order.result) * group / n_slow, touched)
    return Sharing(
        fast_alone=high / at_once,
        slow_alone=wide / at_once,
        fast_again=np.maximum(0, count * high / n_fast - 1) * l2_miss_share(gpu, band),
        slow_again=np.maximum(0, count * wide / n_slow - 1) * l2_miss_share(gpu, touched),
    )


def within_gpcs(order: Rasterisation, gpcs: int, clusters: Flags) -> tuple[Floats, Floats]:
    """The shares of the requests for the fast and for the slow operand that no simultaneous request of the same GPC repeats.

    The blocks of a launch fill one GPC after another, each with as many consecutive blocks. Clusters go to the GPCs in turn (`clusters`).
    """
    n_fast, n_slow, group, at_once = order[2:6]
    tiles = np.maximum(1, at_once / gpcs)  # of a GPC
    band = n_fast * group
    # of every gpcs-th tile: as many rows as places of a band that it meets, and the same columns in each band
    rows = np.minimum(n_fast, band / _common_divisor(band, gpcs))
    columns = np.minimum(n_slow, group / _common_divisor(group, gpcs) * np.ceil(at_once / band))
    apart = np.minimum(rows, tiles), np.minimum(columns, tiles)
    consecutive = rectangle(order._replace(at_once=tiles))
    fast, slow = (np.where(clusters, one, other) / tiles for one, other in zip(apart, consecutive, strict=True))
    return fast, slow


def _common_divisor(number: Floats, of: int) -> Floats:
    """The greatest common divisor of whole numbers and of one, as an equation."""
    found = number * 0 + 1
    for divisor in (one for one in range(2, of + 1) if of % one == 0):
        found = np.where(np.floor(number / divisor) * divisor == number, divisor, found)
    return found


def rectangle(order: Rasterisation) -> tuple[Floats, Floats]:
    """Panels of the fast and of the slow operand that `at_once` consecutive tiles touch."""
    n_fast, n_slow, group, at_once = order[2:6]
    in_band = at_once <= n_fast * group  # else they cover several bands
    high = np.where(in_band, np.minimum(n_fast, np.ceil(at_once / group)), n_fast)
    wide = np.where(in_band, np.minimum(group, at_once), np.minimum(n_slow, group * np.ceil(at_once / (n_fast * group))))
    return high, wide


def stream_k(gpu: Gpu, order: Rasterisation) -> Sharing:
    """Stream-K blocks are each at a k-iteration of their own: what they share follows from the times at which they read a panel."""
    fast, slow, n_fast, n_slow, group, _, iterations, share, result = (column[:, None] for column in order)
    count = np.arange(min(MAX_TILES, int(max(n_fast.max(), n_slow.max()))))
    gaps_fast = gaps((count // group * n_fast * group + count % group) * iterations, n_slow, share)
    gaps_slow = gaps(count * group * iterations, n_fast, share)
    pairs = ((gaps_fast, n_slow), (gaps_slow, n_fast))
    alone = [1 - np.count_nonzero(gap <= SIMULTANEOUS, axis=1, keepdims=True) / np.minimum(n, MAX_TILES) for gap, n in pairs]
    touched = (fast * n_slow * alone[0] + slow * n_fast * alone[1] + result) / share  # by all blocks in one k-iteration
    again = [missed(gpu, gap, touched, fast + slow + result) * (n - 1) for gap, n in pairs]
    return Sharing(*(column[:, 0] for column in (*alone, *again)))


def missed(gpu: Gpu, gap: Floats, touched: Floats, all_bytes: Floats) -> Floats:
    """Share of a panel's finite gaps after which it comes from memory again."""
    finite = gap < np.inf
    misses = l2_miss_share(gpu, np.minimum(np.where(finite, gap, 0) * touched, all_bytes)) * finite
    return misses.sum(axis=1, keepdims=True) / np.maximum(1, finite.sum(axis=1, keepdims=True))


def gaps(start: Floats, tiles: Floats, share: Floats) -> Floats:
    """K-iterations from each read of a panel to the next in time, infinite after the last. `start`: the first k-iteration, in the order of
    all tiles, of the panel's first tiles, of which `tiles` exist."""
    index = np.arange(start.shape[1])
    times = np.sort(np.where(index < tiles, start % share, np.inf), axis=1)
    result = np.full(start.shape, np.inf)
    np.subtract(times[:, 1:], times[:, :-1], out=result[:, :-1], where=index[1:] < tiles)
    return result
