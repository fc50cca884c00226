# SPDX-License-Identifier: Apache-2.0
"""The GPU cost model of tiled kernels: predicted cycles of whole tables of launches at once.

C is cut into tiles_m x tiles_n tiles: those of a thread block, or of a cluster of blocks. A tile takes ceil(k / block_k) k-iterations. The
tiles, or their split-K parts, are distributed over `items` blocks (stream-K: as many blocks as are launched). An SM holds `occupancy`
blocks at once, so blocks run in waves. All cycles are of frequency_hz; p is the kernel's pipe.

    seconds  = launch + (waves + prologue/epilogue + split-K fix-up + layout conversion) / frequency
    waves    = sum over (full waves, last wave) of  max((main loop^e + transfer^e)^(1/e), (power^f + transfer^f)^(1/f))
    transfer = max(L2, memory)      e = 2, f = 3; f64 on tensor cores: both 4

iteration   SM cycles of one k-iteration of one block: max(multiply-adds / fma_per_cycle[p], shared-memory wavefronts, instructions /
            schedulers) / efficiency (`mainloop`), at least what multiply-adds take. The efficiency is the kernel's where it was measured,
            else its family's.
lone        Cycles of a k-iteration of a block that has the SM for itself: max(iteration, latency / max(1, stages - 1)) + step_cycles.
            One stage needs two barriers, so step_cycles counts twice. Fewer than four warps leave sub-cores idle.
main loop   Full waves x k-iterations x ((occupancy x iteration)^2 + lone^2)^(1/2), and the last wave with the blocks left for an SM. The
            counts contain tile and wave quantisation. More blocks hide more latency, but never all of it. With a producer warp and one
            block per SM a k-iteration takes `lone`.
power       Multiply-adds of whole tiles / (sms fma_per_cycle[p]) x frequency / sustained[p], the clock that the chip sustains under load;
            of products of residues also bytes from memory x their energy / the board's power (`residues.variant`).
L2          Each block (or cluster, whose blocks share loads) reads its rows of A and columns of B and writes its tile. Simultaneous
            requests for the same bytes cost repeat_share each after the first (the L2 request coalescer, LRC, in NVIDIA Nsight Compute's
            documentation). TMA transfers whole boxes: a part outside the operand takes as long as a part inside (H200, f16, 128 x 64
            tiles: 41 us for 8 x 4096 x 4096, 25 us for 128 x 4096 x 4096), so boxes of A have only the rows of even tiles. A box row
            that crosses a line boundary costs SPLIT_LINE_COST times its second line. TMA fills box rows behind an operand's end; where
            that is inside a sector, all SMs together fill row_ends_per_cycle of them. C is priced in runs of 64 bytes; a partly filled
            sector costs PARTIAL_SECTOR_COST times its unused bytes. Bytes from memory pass through L2, too. L2 limits a launch by its
            rate, by the port of each active SM, and by what its
            GPCs (groups of SMs) take: each GPC requests the same bytes once, if its blocks need them simultaneously.
memory      Bytes that miss L2: bytes / min(memory rate, active SMs x memory port). `traffic` says which blocks share panels of A and B and
            when a panel is read again. A "hot" run may find its operands in L2; in a "cold" run every first touch misses.
prologue/epilogue
            Start and end of each tile: block_cycles (ACCUMULATOR_SHARE of it grows with a thread's accumulators), the latency of the first
            load, and the store of C through the SM's port (single_cycles an output where rows of C are no whole vectors, of products on
            warpgroups times a thread's accumulators over TYPICAL_ACCUMULATORS, if that is more than 1: `gemm.variants`). The share
            `hidden` overlaps with other blocks' work in all waves but one: each of a family's resident blocks, two at most, hides that
            share of what is left. Ping-pong warpgroups expose PINGPONG_EXPOSED of what exceeds the other
            group's main loop. With a producer warp, loads continue meanwhile: then this time counts as compute, and only the traffic of
            the first k-iteration and of the last wave's results is added.
split-K fix-up
            Split-K and stream-K through memory: write a part's accumulators, count up the tile's flag (meet_cycles); the tile's last block
            reads all parts, FIXUP_LOADS_IN_FLIGHT accumulators a thread per latency. In a cluster: two barriers, then each block sums its
            share of the tile from its peers' shared memory, CLUSTER_VECTOR accumulators a thread at a time.
layout conversion
            An operand that the kernel cannot read as stored is copied first, at copy_share of L2's or memory's rate. Elements smaller than
            MIN_COPY_ELEMENT_BYTES take as long as those of that size: the copy moves squares of a fixed number of elements.
launch      launch_seconds; pass_seconds for a copy of operands, else clear_seconds to clear the flags of split-K and stream-K. Clusters
            take CLUSTER_LAUNCH_LATENCIES longer, except after a copy, which hides their start. Those of split-K parts start again in
            every round: a cluster waits until as many blocks as it has are done.

Assumptions: blocks of a wave start together; the clock is constant; TLB misses and the two L2 partitions exist only in fitted rates.

Worked number: SGEMM of 10240 x 4096 x 4096 with tiles of 128 x 128 on V100: 80 x 32 = 2560 blocks of 256 threads, all useful; two
blocks an SM: 16 waves of 160. A k-iteration of 8 takes 128 * 128 * 8 / 64 = 2048 cycles of an SM's FP32 pipe.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import Any, NamedTuple, cast

import numpy as np

from pysim.cachemodel.equations import Program, Programs, as_rows
from pysim.cachemodel.gpu.copy_kernels import copy_rate
from pysim.cachemodel.gpu.mainloop import Work
from pysim.cachemodel.gpu.traffic import Flags, Floats, Integers, Number, Rasterisation, l2_miss_share, sharing, within_gpcs
from pysim.machine.gpu import Gpu
from pysim.record.schedule import DECOMPOSITIONS

ROUNDED_DOWN = 1 - 1e-9  # bounds and predictions add in another order
# Of compute and traffic, and of blocks of an SM: the larger, the better they overlap. An instruction of f64 keeps the pipe busy for 32
# cycles, so loads hide behind it: 4 is the best of 2, 3, 4 and 6 for products not fitted (lab/notebook/gpu-model.md)
OVERLAP_EXPONENT, F64_OVERLAP_EXPONENT = 2.0, 4.0
# Of power and traffic: waiting takes no power, so they add less than a main loop and traffic. 3 is the best of 2, 3, 4, 6 and none for
# 950 products in graphs (lab/notebook/gpu-model.md)
POWER_EXPONENT = 3.0
TYPICAL_ACCUMULATORS, ACCUMULATOR_SHARE = 64, 0.25  # per thread: block_cycles is of that many; the share that grows with their number
PINGPONG_EXPOSED = 0.85  # share of a tile's prologue and epilogue beyond the other warpgroups' main loop: both use one store path
FIXUP_LOADS_IN_FLIGHT = 16  # partial sums that a thread loads before it waits
SPLIT_LINE_COST, PARTIAL_SECTOR_COST = 2.0, 4.0  # least squares over products on H100 and H200 (docs/gpu.md)
MIN_COPY_ELEMENT_BYTES = 2  # smaller elements take as long to copy
MOST_COPIED_BYTES = 8  # that a thread of a copy moves at once (native/cuda/gemm/layout_conversion.cu)
# L2 latencies: start and end of a launch of clusters, whose blocks wait for each other; a cluster's two barriers; each vector of its fix-up
CLUSTER_LAUNCH_LATENCIES, CLUSTER_FIXUP_LATENCIES, CLUSTER_VECTOR_LATENCIES = 8, 3, 3
CLUSTER_VECTOR = 4  # accumulators of a thread that go to one block of a cluster at once
CLUSTER_ACCUMULATORS_PER_CYCLE = 3.5  # that a block receives, 4 bytes each: 3.3 TB/s in all (arXiv 2402.13499, Hopper, clusters of two)
LATENCY_BOUND_SHARE = 0.9  # a main loop is latency-bound where its work fills less of its cycles
DATA_PARALLEL, SPLIT_K, STREAM_K = range(len(DECOMPOSITIONS))
WAVE_TERMS = ("main loop", "power", "L2", "memory")  # terms that overlap within a wave
TERMS = (*WAVE_TERMS, "prologue/epilogue", "split-K fix-up", "layout conversion", "launch")
LOOP_BOUNDS = (*Work._fields, "latency")  # what can bound a main loop


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


class Traffic(NamedTuple):
    """Bytes of each launch through L2 and from memory."""

    row_ends: Floats  # rows of boxes that end inside a sector
    l2_bytes: Floats
    port_bytes: Floats  # with the other halves of split lines
    gpc_bytes: Floats  # that all GPCs request; 0 where unknown
    written: Floats  # of C, as bytes of whole sectors
    memory_bytes: Floats
    l2_served: Floats  # in the time of as many bytes
    memory_served: Floats
    miss: Floats  # share of the slower operand's requests that miss L2


NO_TRAFFIC = Traffic._make(np.zeros((len(Traffic._fields), 1)))


class Prediction(NamedTuple):
    """The cost of launches; the last axis of each array is the launch.

    `waves`: cycles by (full waves, last wave) and WAVE_TERMS; `others`: cycles of the other TERMS; `bound` of the main loop: index of
    LOOP_BOUNDS; `wavefronts` of shared memory, and their cycles (`shared`). Kernels without tiles have no `counts`.
    """

    cycles: Floats
    waves: Floats
    others: Floats
    bound: Integers
    wavefronts: Floats
    shared: Floats
    counts: Counts | None
    traffic: Traffic

    @property
    def terms(self) -> dict[str, Floats]:
        """Cycles by TERMS."""
        return dict(zip(TERMS, (*self.waves.sum(axis=0), *self.others), strict=True))

    def select(self, rows: Integers) -> "Prediction":
        counts = Counts._make(of[rows] for of in self.counts) if self.counts else None
        traffic = Traffic._make(of[rows] if of.size > 1 else of for of in self.traffic)
        bound, wavefronts, shared = self.bound[rows], self.wavefronts[rows], self.shared[rows]
        return Prediction(self.cycles[rows], self.waves[..., rows], self.others[:, rows], bound, wavefronts, shared, counts, traffic)


_WAVES, _OTHERS = np.empty((2, len(WAVE_TERMS), 0)), np.empty((len(TERMS) - len(WAVE_TERMS), 0))
NOTHING = Prediction(_OTHERS[0], _WAVES, _OTHERS, np.empty(0, int), _OTHERS[0], _OTHERS[0], None, NO_TRAFFIC)  # of no launches


def overlapped(one: Number, other: Floats, exponent: Number = OVERLAP_EXPONENT) -> Floats:
    """Cycles of two activities at once: a smooth maximum, since they delay each other the more the closer they are."""
    found: Floats = (one**exponent + other**exponent) ** (1 / exponent)
    return found


def with_traffic(main_loop: Floats, power: Floats, transfer: Floats, exponent: Number = OVERLAP_EXPONENT) -> tuple[Floats, Floats]:
    """Cycles of a main loop beside its traffic, and those in which the chip's power suffices for both."""
    return overlapped(main_loop, transfer, exponent), overlapped(power, transfer, np.maximum(exponent, POWER_EXPONENT))


def wave_cycles(waves: Floats, exponent: Number = OVERLAP_EXPONENT) -> Floats:
    """Cycles of all waves, from those by (full, last) and WAVE_TERMS."""
    main_loop, power, l2, memory = waves.swapaxes(0, 1)
    found: Floats = np.maximum(*with_traffic(main_loop, power, np.maximum(l2, memory), exponent))
    return found.sum(axis=0)


def _exponent(c: Columns) -> Number:
    """The exponent by which compute and traffic add, as one number where all have the same: then no power is taken of each element."""
    exponents = np.asarray(c.overlap)
    same = exponents.size and (exponents == exponents.flat[0]).all()
    return float(exponents.flat[0]) if same else exponents


def predict(gpu: Gpu, columns: Columns, table: Table, hot: bool = True) -> Prediction:
    """Cost of each launch of a table."""
    table = _by_blocks(c := columns.take(table.variant), table)
    counts = _counts(c, table, clusters := _in_clusters(gpu, c, table))
    traffic = _traffic(gpu, c, table, counts, hot)
    waves, others, cycles = _cycles(gpu, c, table, clusters, traffic)
    work = counts.first_blocks * c.iteration * counts.iterations * counts.waves
    bound = np.where(work < LATENCY_BOUND_SHARE * waves[:, 0].sum(axis=0), LOOP_BOUNDS.index("latency"), c.bound).astype(int)
    wavefronts = c.shared * counts.iterations * counts.items
    return Prediction(cycles, waves, others, bound, wavefronts, wavefronts / gpu.sms.value, counts, traffic)


def least_cycles(gpu: Gpu, columns: Columns, table: Table) -> Floats:
    """A lower bound on the cycles of each launch of a table, in any rasterisation: its cycles without traffic.

    Traffic only adds: it delays main loops, and what a producer warp hides is a longer main loop than the traffic beside it."""
    table = _by_blocks(c := columns.take(table.variant), table)
    return _cycles(gpu, c, table, _in_clusters(gpu, c, table), NO_TRAFFIC)[2] * ROUNDED_DOWN


def _cycles(gpu: Gpu, c: Columns, table: Table, clusters: Clusters, traffic: Traffic) -> Sequence[Floats]:
    """Cycles by (full waves, last wave) and WAVE_TERMS; of the other TERMS; and in all."""
    exponent, given = _exponent(c), (*c, table.kind, table.splits, *clusters, *traffic)
    programs = _programs(gpu, exponent if isinstance(exponent, float) else None)
    if program := programs.of(lambda: Program.of(partial(_traced, gpu, exponent), len(given))):
        return program(as_rows(len(table.kind), *given))
    return _cycles_by(gpu, c, table, _counts(c, table, clusters), traffic, exponent)


@lru_cache(maxsize=64)
def _programs(gpu: Gpu, exponent: float | None) -> Programs:
    """Programs of `_cycles` with an exponent that all kernels have, or None."""
    return Programs()


def _traced(gpu: Gpu, exponent: Number, rows: Floats) -> tuple[Sequence[Floats], None]:
    numbers: Iterator[Any] = iter(rows)
    c, table = Columns._make(islice(numbers, len(Columns._fields))), Table(*cast("Any", (None, next(numbers), next(numbers), None, None)))
    counts = _counts(c, table, Clusters._make(islice(numbers, len(Clusters._fields))))
    return _cycles_by(gpu, c, table, counts, Traffic._make(numbers), exponent if isinstance(exponent, float) else c.overlap), None


def _by_blocks(c: Columns, table: Table) -> Table:
    """The table by what blocks take: all of k where they add its parts themselves."""
    whole = np.greater(c.part_unit, 0)
    return table._replace(kind=np.where(whole, DATA_PARALLEL, table.kind), splits=np.where(whole, 1, table.splits))


def _cycles_by(gpu: Gpu, c: Columns, table: Table, counts: Counts, traffic: Traffic, exponent: Number) -> tuple[Floats, Floats, Floats]:
    """The equations of `_cycles`. `exponent`: as `_exponent`."""
    latency = gpu.l2_latency_cycles.value + traffic.miss * (gpu.memory_latency_cycles.value - gpu.l2_latency_cycles.value)
    waves = _waves(gpu, c, counts, traffic, latency)
    in_waves = wave_cycles(waves, exponent)
    ends = _prologues_and_epilogues(gpu, c, counts, traffic, waves, latency, lambda busy: wave_cycles(busy, exponent) - in_waves)
    size, slowdown = cast("Floats", c.conversion_bytes), np.maximum(1, MIN_COPY_ELEMENT_BYTES / c.conversion_element)
    converted = size * gpu.clock_hz / (copy_rate(gpu, size, slowdown) * gpu.model.copy_share.value)
    others = np.stack([ends, _fixup(gpu, c, table, counts, latency), converted, _launch(gpu, c, table, counts)])
    return waves, others, in_waves + others.sum(axis=0)


def _in_clusters(gpu: Gpu, c: Columns, table: Table) -> Clusters:
    in_cluster = (table.kind == SPLIT_K) & (table.splits <= c.max_cluster_splits)
    parts = np.where(in_cluster, table.splits, 1).astype(int)
    cluster = (parts * c.cluster_blocks).astype(int)
    clusters = _clusters(gpu, int(cluster.max(initial=1)))[cluster - 1]
    # 0 clusters: the GPU has too few SMs for one
    return Clusters(in_cluster, cluster, np.where(clusters > 0, parts * clusters, np.floor(gpu.sms.value / c.cluster_blocks)))


def _counts(c: Columns, table: Table, clusters: Clusters) -> Counts:
    in_cluster, cluster, units = clusters
    tiles_m, tiles_n, all_iterations = np.ceil(c.m / c.tile_m), np.ceil(c.n / c.tile_n), np.ceil(c.k / c.block_k)
    tiles, stream = tiles_m * tiles_n, table.kind == STREAM_K
    items = np.where(stream, table.splits, tiles * table.splits)
    iterations = np.where(stream, np.ceil(tiles * all_iterations / table.splits), np.ceil(all_iterations / table.splits))
    slots = units * c.blocks_per_sm
    full_waves = np.floor(items / slots)
    tail = items - full_waves * slots
    tail_blocks = np.ceil(tail / units)
    return Counts(
        in_cluster, tiles_m, tiles_n, tiles, all_iterations, items, iterations, slots, units, full_waves, tail, tail_blocks,
        waves=full_waves + (tail_blocks > 0),
        first_blocks=np.where(full_waves > 0, c.blocks_per_sm, tail_blocks),
        cluster=cluster,
        block_tiles=np.where(stream, 1 + np.ceil(iterations / all_iterations), 1.0),
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _clusters(gpu: Gpu, most: int) -> Integers:
    """Clusters of 1, 2, ... up to `most` blocks that run at once."""
    return np.array([gpu.clusters(blocks) for blocks in range(1, 1 + most)])


def _traffic(gpu: Gpu, c: Columns, table: Table, of: Counts, hot: bool) -> Traffic:
    stream, along_n = table.kind == STREAM_K, table.along_n.astype(bool)
    partial = np.where((table.kind == SPLIT_K) & ~of.in_cluster, of.items, np.where(stream, 2 * table.splits, 0))
    partial = partial * c.tile_m * c.tile_n * c.accumulator_bytes

    def ordered(of_a: Number, of_b: Number) -> tuple[Floats, Floats]:  # fast, slow: the rasterisation runs along panels of the fast operand
        return np.where(along_n, of_b, of_a), np.where(along_n, of_a, of_b)

    fast, slow = ordered(c.bytes_a, c.bytes_b)
    n_fast, n_slow = ordered(of.tiles_m, of.tiles_n)
    # The parts of a tile share nothing
    at_once = np.minimum(of.tiles, np.maximum(1, of.slots / np.where(stream, 1, table.splits)))
    share = np.where(stream, of.tiles * of.all_iterations / table.splits, 0)
    group = np.minimum(table.group, n_slow)
    order = Rasterisation(fast, slow, n_fast, n_slow, group, at_once, of.all_iterations, share, np.asarray(c.bytes_c))
    reads = sharing(gpu, order)
    requested_fast, requested_slow = ordered(c.requested_bytes_a * of.tiles_n, c.requested_bytes_b * of.tiles_m)
    requested = requested_fast + requested_slow
    repeat = gpu.model.repeat_share.value
    sides = [*zip((requested_fast, requested_slow), ordered(c.lines_a, c.lines_b), reads[:2], strict=True)]
    served = sum(size * (1 + SPLIT_LINE_COST * (lines - 1)) * (repeat + (1 - repeat) * alone) for size, lines, alone in sides)
    split_lines = sum(size * (lines - 1) for size, lines, _ in sides)
    # TMA fills the parts of boxes outside an operand, which takes as long as the parts inside
    m = np.ceil(c.m / of.tiles_m / c.box_m) * c.box_m * of.tiles_m
    n = np.where(of.tiles_n > 1, of.tiles_n * np.ceil(c.tile_n / c.box_n), np.ceil(c.n / c.box_n)) * c.box_n
    boxes = (c.a_parts * m * of.tiles_n + c.b_parts * n * of.tiles_m) * (of.all_iterations * c.block_k) * c.element_bytes
    outside = np.where(c.producer > 0, np.maximum(0, boxes - requested), 0)
    row_ends = c.row_ends_a * of.tiles_n + c.row_ends_b * of.tiles_m
    l2_bytes = requested + outside + c.bytes_c + 2 * partial
    port_bytes = l2_bytes + split_lines
    gpc_bytes = outside + _gpc_bytes(gpu, c, table, of, order, (requested_fast, requested_slow))
    written = np.asarray(c.bytes_c) * (1 + PARTIAL_SECTOR_COST * (c.sectors - 1))  # as bytes of whole sectors
    all_miss = l2_miss_share(gpu, c.bytes_a + c.bytes_b + c.bytes_c + partial)
    first = all_miss if hot else np.ones(())
    read_fast, read_slow = fast * (first + reads.fast_again), slow * (first + reads.slow_again)
    memory_bytes = read_fast + read_slow + c.bytes_c * all_miss + 2 * partial * l2_miss_share(gpu, partial)
    l2_served = served + outside + written + 2 * partial + memory_bytes
    memory_served = memory_bytes + (written - c.bytes_c) * all_miss
    miss = np.clip(np.maximum(read_fast / requested_fast, read_slow / requested_slow), 0, 1)  # of the slower operand
    return Traffic(row_ends, l2_bytes, port_bytes, gpc_bytes, written, memory_bytes, l2_served, memory_served, miss)


def _gpc_bytes(gpu: Gpu, c: Columns, table: Table, of: Counts, order: Rasterisation, requested: tuple[Floats, Floats]) -> Floats:
    """Bytes that all GPCs take from L2; `requested`: of the fast and of the slow operand. 0 where unknown: for stream-K, whose blocks are
    each at a k-iteration of their own, and for GPUs whose GPCs were not measured."""
    if not gpu.gpcs:
        return np.zeros(1)
    # blocks with one tile each are not numbered in bands (native/cuda/core/decomposition.cuh)
    placed = of.in_cluster | (of.items <= np.where(c.producer > 0, of.slots, of.units))
    order = order._replace(group=np.where(placed, 1, order.group))
    shares = within_gpcs(order, gpu.gpcs.value, (c.cluster_blocks > 1) | of.in_cluster)
    total = sum(size * share for size, share in zip(requested, shares, strict=True))
    return np.where(table.kind == STREAM_K, 0.0, total)


def _waves(gpu: Gpu, c: Columns, of: Counts, traffic: Traffic, latency: Floats) -> Floats:
    """Cycles by (full waves, last wave) and WAVE_TERMS."""
    frequency, barriers = gpu.clock_hz, 1 + (c.stages == 1)
    lone = np.maximum(c.lone, latency / np.maximum(1, c.stages - 1)) + barriers * c.step_cycles
    products = of.tiles * c.tile_m * c.tile_n * of.all_iterations * c.block_k
    power = (products / (gpu.sms.value * c.fma) / c.sustained + c.memory_power * traffic.memory_bytes) * frequency
    share = of.full_waves * of.slots / of.items
    parts = []
    for waves, blocks, units, part in (
        (of.full_waves, c.blocks_per_sm, of.units, share),
        (of.tail_blocks > 0, of.tail_blocks, np.minimum(of.tail, of.units), 1 - share),
    ):
        active = np.maximum(units * c.cluster_blocks, 1)  # SMs
        l2 = np.maximum(
            traffic.l2_served / (gpu.l2_bytes_per_second.value / frequency),
            traffic.port_bytes / (active * gpu.port_bytes_per_cycle.value),
        )
        l2 = np.maximum(l2, traffic.row_ends / gpu.model.row_ends_per_cycle.value)
        if gpu.gpc_bytes_per_second:
            l2 = np.maximum(l2, traffic.gpc_bytes * frequency / gpu.gpc_bytes_per_second.value)
        memory = np.minimum(gpu.memory_bytes_per_second.value / frequency, active * gpu.memory_port_bytes_per_cycle.value)
        iteration = np.where((c.producer > 0) & (c.blocks_per_sm <= 1), lone, overlapped(blocks * c.iteration, lone))
        parts.append([waves * of.iterations * iteration, power * part, l2 * part, traffic.memory_served * part / memory])
    return np.stack([np.stack(part) for part in parts])


def _prologues_and_epilogues(
    gpu: Gpu, c: Columns, of: Counts, traffic: Traffic, waves: Floats, latency: Floats, longer: Callable[[Floats], Floats]
) -> Floats:
    """Cycles of the starts and ends of tiles that nothing hides. `longer`: what all waves take more with these cycles."""
    number, transfer = of.waves, np.maximum(waves[:, 2], waves[:, 3]).sum(axis=0)
    store = c.result_bytes / gpu.port_bytes_per_cycle.value + c.unaligned_c * gpu.model.single_cycles.value  # of an output
    store = c.tile_m * c.tile_n / c.cluster_blocks * store
    growth = 1 + ACCUMULATOR_SHARE * (c.accumulators / TYPICAL_ACCUMULATORS - 1)
    tile = c.block_cycles * growth + latency + of.first_blocks * store
    pingpong = PINGPONG_EXPOSED * np.maximum(0, tile - waves[:, 0].sum(axis=0) / number)
    later = np.where(c.pingpong, pingpong, tile * (1 - c.hidden))
    exposed = of.block_tiles * (tile + (number - 1) * later)
    # a producer warp continues to load meanwhile
    busy = waves.copy()
    busy[:, 0] += exposed * np.stack([of.full_waves, of.tail_blocks > 0]) / number
    last_wave = np.minimum(1, np.where(of.tail > 0, of.tail, of.slots) / of.items)
    last_results = traffic.written * last_wave / (gpu.l2_bytes_per_second.value / gpu.clock_hz)
    first_loads = transfer / (of.iterations * number)
    return np.where(c.producer, longer(busy) + (first_loads + last_results), exposed)


def _fixup(gpu: Gpu, c: Columns, table: Table, of: Counts, latency: Floats) -> Floats:
    """Cycles in which blocks exchange partial sums, through memory or within a cluster."""
    outputs, stream = c.tile_m * c.tile_n / c.cluster_blocks, table.kind == STREAM_K
    write = outputs * c.accumulator_bytes / gpu.port_bytes_per_cycle.value
    written = np.where(stream, 2, np.ceil(of.items / of.units))  # parts that an SM's blocks write, one after another
    rounds = np.where(stream, 2, np.ceil(of.items / of.slots))
    parts = np.where(stream, 1 + np.ceil(table.splits / of.tiles), table.splits)
    tiles = np.where(stream, 1, np.ceil(of.tiles / of.units))  # that an SM's blocks sum
    through_memory = written * write + rounds * c.meet_cycles + tiles * parts * (write + c.fixup_rounds * latency)
    vectors = np.maximum(1, c.accumulators / CLUSTER_VECTOR)
    own = np.ceil(vectors / table.splits)  # that a block of the cluster sums
    received = own / vectors * (table.splits - 1) * outputs
    waits = (CLUSTER_FIXUP_LATENCIES + own * CLUSTER_VECTOR_LATENCIES) * gpu.l2_latency_cycles.value
    through_cluster = rounds * (waits + received / CLUSTER_ACCUMULATORS_PER_CYCLE)
    return np.where(table.kind == DATA_PARALLEL, 0.0, np.where(of.in_cluster, through_cluster, through_memory))


def _launch(gpu: Gpu, c: Columns, table: Table, of: Counts) -> Floats:
    """Cycles of a launch beside its blocks' work."""
    flags = (table.kind != DATA_PARALLEL) & ~of.in_cluster
    passes = np.where(c.conversions > 0, gpu.model.pass_seconds.value, flags * gpu.model.clear_seconds.value)
    clusters = ((c.cluster_blocks > 1) | of.in_cluster) & (c.conversions == 0)
    rounds = np.where(of.in_cluster, np.ceil(of.items / of.slots), 1.0)
    waits = np.where(clusters, rounds * CLUSTER_LAUNCH_LATENCIES * gpu.l2_latency_cycles.value, 0.0)
    return (c.launch_seconds + passes) * gpu.clock_hz + waits
