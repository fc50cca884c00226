# SPDX-License-Identifier: Apache-2.0
"""Kernels, launches and what launches consist of, as columns: what the equations of `waves` read.

Worked number: 128 x 128 tiles of 1000 x 1000 outputs are 8 x 8; split-K by 2 has 128 items. One block an SM of 108 runs them in a full
wave and a last one of 20.
"""

from typing import NamedTuple

import numpy as np

from pysim.cachemodel.gpu.traffic import Flags, Floats, Integers, Number
from pysim.record.schedule import DECOMPOSITIONS

DATA_PARALLEL, SPLIT_K, STREAM_K = range(len(DECOMPOSITIONS))


class Columns(NamedTuple):
    """A tiled kernel on one product of m x n x k, as the model sees it: numbers of one kernel, or arrays over kernels.

    The first OF_PROBLEM follow from the problem and how the kernel reads it, of these OF_SIZES from the problem's sizes; the others from
    the kernel. The fields without a line here are
    the machine file's constants of the kernel's family.
    """

    m: Number
    n: Number
    k: Number
    element_bytes: Number
    bytes_a: Number  # of the operands and the result in memory
    bytes_b: Number
    bytes_c: Number
    requested_bytes_a: Number  # of L2, by each column of tiles
    requested_bytes_b: Number  # of L2, by each row of tiles
    result_bytes: Number  # of one output of a tile, stored
    accumulator_bytes: Number  # of one output of a tile, in registers
    conversions: Number  # operands that are copied first, in one launch
    conversion_bytes: Number  # read and written by these copies
    conversion_element: Number  # bytes that a thread of these copies moves at once
    unaligned_c: Number  # whether rows of C are no whole vectors
    lines_a: Number  # L2 lines that a box row of A touches
    lines_b: Number
    row_ends_a: Number  # rows of A's boxes that end inside a sector, which each column of tiles loads
    row_ends_b: Number  # the same of B, for each row of tiles
    sectors: Number  # bytes of the sectors that a run of C touches / its own bytes
    tile_m: Number  # of a block; of a cluster, where blocks form one
    tile_n: Number
    block_k: Number
    stages: Number
    cluster_blocks: Number
    blocks_per_sm: Number
    max_parts: Number  # of k
    max_stream_blocks: Number
    producer: Number  # whether a producer warp loads by TMA: whole boxes, also while tiles start and end
    accumulators: Number  # of a thread
    fixup_rounds: Number  # loads of partial sums of a thread, FIXUP_LOADS_IN_FLIGHT at once
    iteration: Number  # cycles, as in the head of this file
    lone: Number
    shared: Number  # wavefronts of a k-iteration
    bound: Number  # of a k-iteration: index of LOOP_BOUNDS
    fma: Number  # multiply-adds per cycle of an SM
    overlap: Number  # exponent by which compute and traffic add
    sustained: Number  # Hz
    a_parts: Number  # times that the bytes of A are loaded: less than once, where a load serves several taps
    b_parts: Number  # times that the bytes of B are read, where B comes as parts of its numbers
    max_cluster_splits: Number  # split-K up to this many parts is reduced in a cluster
    part_unit: Number  # 0, or the k of whose multiples a block adds all split-K parts itself, at no cost
    pingpong: Number  # whether two sets of warpgroups alternate between main loop and epilogue
    box_m: Number  # each tile's TMA boxes have equally many rows of A, a multiple of this
    box_n: Number  # a tile's have a multiple of this many rows of B, a single one's of those that there are
    launch_seconds: Number
    block_cycles: Number
    step_cycles: Number
    meet_cycles: Number
    hidden: Number
    memory_power: Number = 0.0  # seconds of all of the chip's power that a byte from memory takes, where it is known

    def take(self, rows: Integers) -> "Columns":
        return Columns(*np.array(self).take(rows, axis=1))


OF_SIZES, OF_PROBLEM = Columns._fields.index("conversions"), Columns._fields.index("tile_m")


class Table(NamedTuple):
    """Launches, as arrays: index into Columns, decomposition (index of DECOMPOSITIONS), splits, rasterisation. Launches that differ in
    their rasterisation only are adjacent."""

    variant: Integers
    kind: Integers
    splits: Integers
    along_n: Flags
    group: Integers

    def select(self, where: Integers | Flags) -> "Table":
        return Table._make(column[where] for column in self)


class Clusters(NamedTuple):
    """Whether a cluster reduces the parts of a split-K tile, its blocks, and SMs, or groups of SMs that hold a tile's cluster."""

    in_cluster: Flags
    blocks: Integers
    units: Floats


class Counts(NamedTuple):
    """What each launch of a table consists of."""

    in_cluster: Flags  # whether a cluster reduces the parts of a split-K tile
    tiles_m: Floats
    tiles_n: Floats
    tiles: Floats
    all_iterations: Floats  # k-iterations of a tile
    items: Floats  # blocks, or clusters
    iterations: Floats  # of an item
    slots: Floats  # items that run at once
    units: Floats  # SMs, or groups of SMs that hold a tile's cluster
    full_waves: Floats
    tail: Floats  # items of the last wave
    tail_blocks: Floats  # of an SM in the last wave
    waves: Floats
    first_blocks: Floats  # of an SM in the first wave
    cluster: Integers  # blocks of a tile's cluster
    block_tiles: Floats  # tiles that one block touches
