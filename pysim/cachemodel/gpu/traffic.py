# SPDX-License-Identifier: Apache-2.0
"""How often the blocks of a launch on a GPU ask L2 for the same bytes at once, and how often those come from memory again.

C's tiles are numbered by a walk (`native/cuda/core/decomposition.cuh`): bands of `group` panels of the slow operand, along all panels of
the fast one. A panel is what one row or column of tiles reads: of the fast operand n_slow tiles read each, of the slow one n_fast.

waves   Whole tiles, `at_once` of them in step: a rectangle of high x wide tiles (the idea of AMD's Origami,
        https://github.com/ROCm/rocm-libraries, shared/origami), whose rows and columns ask for the same bytes at the same time. The fast
        operand comes again each band, at a distance of itself and a band; the slow one each wave of a band, at that of what a wave touches.
stream  Stream-K: each block takes `share` consecutive k steps, so at time t block g is at step g share + t of all. Tile x reads step
        s of its panels at time (x steps + s) mod share, whatever s. The times of the tiles that share a panel, sorted, have gaps: those
        of a step or less are asked for at once, and the longer ones come again at the distance of what all blocks touch meanwhile.
        Blocks meet only where tiles along a panel x steps is nearly a multiple of share.
miss    Of a distance d the share clip(2 d / (l2_share L2) - 1, 0, 1) does not lie in L2 any more.

Assumptions: blocks of a wave start together, blocks of stream-K keep pace; a cluster is one block.

Worked number: 24 x 24 tiles on 66 clusters are 8.727 tiles a cluster. Tiles of one row lie 24 apart, 24 mod 8.727 = 6.545, and four such
are 3 x 8.727: of the 24 tiles of a row, 6 at a time read it together. Of 32 x 32 tiles, 15.515 a cluster, 2.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.gpu.mainloop import LINE_BYTES
from pysim.cachemodel.gpu.windows import SECTOR_BYTES
from pysim.machine.gpu import Gpu

Array = NDArray[Any]

TOGETHER = 1.0  # k steps: blocks no further apart ask for the same bytes at once
RUN_BYTES = 64  # of a row of C that leave at once
TOUCHES = 128  # of a panel that are looked at: of more, the first


class Walk(NamedTuple):
    """Launches, as arrays: operands in bytes, panels of each, panels of the slow one in a band, tiles at once, k steps of a tile and, of
    stream-K, of a block (0 for others)."""

    fast: Array
    slow: Array
    n_fast: Array
    n_slow: Array
    group: Array
    at_once: Array
    steps: Array
    share: Array

    def select(self, where: Array) -> "Walk":
        return Walk(*(column[where] for column in self))


class Reads(NamedTuple):
    """Of each operand: the share of what L2 is asked for that no other block asks for at that time; how often memory is read again."""

    fast_alone: Array
    slow_alone: Array
    fast_again: Array
    slow_again: Array


def lines_of_row(pitch: int, size: int = LINE_BYTES) -> float:
    """Lines that a box's row of `size` bytes lies in, at most a line, where rows begin at multiples of `pitch` bytes, on average."""
    return 1 + max(0, size - math.gcd(pitch, LINE_BYTES)) / LINE_BYTES


def sectors_of(pitch: int, run: int = RUN_BYTES) -> float:
    """Bytes of the sectors that a run of bytes touches over its own, where rows begin at multiples of `pitch` bytes, on average."""
    return 1 + (SECTOR_BYTES - math.gcd(pitch, SECTOR_BYTES)) / run


def miss(gpu: Gpu, distance: Array) -> Array:
    """Share of accesses at this reuse distance, in bytes, that L2 does not hold any more."""
    return np.clip(2 * distance / (gpu.model.l2_share.value * gpu.l2_bytes.value) - 1, 0, 1)


def reads(gpu: Gpu, walk: Walk) -> Reads:
    """What blocks share in L2, in waves or in a stream."""
    found = waves(gpu, walk)
    where = walk.share > 0
    if where.any():
        # many kernels have the same tiles
        some, back = np.unique(np.stack(walk.select(where)), axis=1, return_inverse=True)
        for column, values in zip(found, stream(gpu, Walk(*some)), strict=True):
            column[where] = values[back.ravel()]
    return found


def waves(gpu: Gpu, walk: Walk) -> Reads:
    """Blocks that run at once are at one rectangle of tiles, in step."""
    fast, slow, n_fast, n_slow, group, at_once = walk[:6]
    inside = at_once <= n_fast * group  # a wave is part of a band; else it is several bands
    high = np.where(inside, np.minimum(n_fast, np.ceil(at_once / group)), n_fast)
    wide = np.where(inside, np.minimum(group, at_once), np.minimum(n_slow, group * np.ceil(at_once / (n_fast * group))))
    count = n_fast * n_slow / at_once
    touched = fast * high / n_fast + slow * wide / n_slow
    band = np.where(inside, fast + slow * group / n_slow, touched)
    return Reads(
        fast_alone=high / at_once,
        slow_alone=wide / at_once,
        fast_again=np.maximum(0, count * high / n_fast - 1) * miss(gpu, band),
        slow_again=np.maximum(0, count * wide / n_slow - 1) * miss(gpu, touched),
    )


def stream(gpu: Gpu, walk: Walk) -> Reads:
    """Blocks of stream-K, each at a k step of its own: what they share follows from the times at which they come by."""
    fast, slow, n_fast, n_slow, group, _, steps, share = (column[:, None] for column in walk)
    count = np.arange(min(TOUCHES, int(max(n_fast.max(), n_slow.max()))))
    of_fast = gaps((count // group * n_fast * group + count % group) * steps, n_slow, share)
    of_slow = gaps(count * group * steps, n_fast, share)
    pairs = ((of_fast, n_slow), (of_slow, n_fast))
    alone = [1 - np.count_nonzero(one <= TOGETHER, axis=1, keepdims=True) / np.minimum(n, TOUCHES) for one, n in pairs]
    touched = (fast * n_slow * alone[0] + slow * n_fast * alone[1]) / share  # in a step, by all blocks
    again = [missed(gpu, one, touched, fast + slow) * (n - 1) for one, n in pairs]
    return Reads(*(column[:, 0] for column in (*alone, *again)))


def missed(gpu: Gpu, gap: Array, touched: Array, everything: Array) -> Array:
    """Share of a panel's gaps after which it comes from memory again; those without end are none."""
    ends = gap < np.inf
    away = miss(gpu, np.minimum(np.where(ends, gap, 0) * touched, everything)) * ends
    return away.sum(axis=1, keepdims=True) / np.maximum(1, ends.sum(axis=1, keepdims=True))


def gaps(when: Array, tiles: Array, share: Array) -> Array:
    """Steps from each touch of a panel to the next by time, without end after the last; `when`: of the first `tiles` in all steps."""
    order = np.arange(when.shape[1])
    ordered = np.sort(np.where(order < tiles, when % share, np.inf), axis=1)
    found = np.full(when.shape, np.inf)
    np.subtract(ordered[:, 1:], ordered[:, :-1], out=found[:, :-1], where=order[1:] < tiles)
    return found
