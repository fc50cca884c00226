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
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple, cast

import numpy as np

from pysim.cachemodel.equations import OfRows, as_rows, columns_of
from pysim.cachemodel.gpu.columns import DATA_PARALLEL, SPLIT_K, STREAM_K, Clusters, Columns, Counts, Table
from pysim.cachemodel.gpu.copy_kernels import copy_rate
from pysim.cachemodel.gpu.mainloop import Work
from pysim.cachemodel.gpu.traffic import (
    Floats,
    Integers,
    Number,
    Rasterisation,
    Sharing,
    l2_miss_share,
    sharing,
    stream_k_sharing,
    within_gpcs,
)  # fmt: skip
from pysim.machine.gpu import Gpu

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
WAVE_TERMS = ("main loop", "power", "L2", "memory")  # terms that overlap within a wave
TERMS = (*WAVE_TERMS, "prologue/epilogue", "split-K fix-up", "layout conversion", "launch")
LOOP_BOUNDS = (*Work._fields, "latency")  # what can bound a main loop


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


def _exponent(c: Columns) -> float | None:
    """The exponent by which compute and traffic add, if all have the same: then no power is taken of each element."""
    exponents = np.asarray(c.overlap)
    same = exponents.size and (exponents == exponents.flat[0]).all()
    return float(exponents.flat[0]) if same else None


def predict(gpu: Gpu, columns: Columns, table: Table, hot: bool = True) -> Prediction:
    """Cost of each launch of a table."""
    c, table, given = _given(gpu, columns, table)
    streams = np.zeros((len(Sharing._fields), len(table.kind)))
    if (rows := np.flatnonzero(table.kind == STREAM_K)).size:
        of, launches, clusters = _launches(given[:, rows])
        streams[:, rows] = stream_k_sharing(gpu, _order(of, launches, _counts(of, launches, clusters)))
    waves, others, cycles, of_loop, counts, traffic = _predicted(np.concatenate([given, streams]), gpu, _exponent(c), hot)
    loop, wavefronts, shared = of_loop
    return Prediction(cycles, waves, others, loop.astype(int), wavefronts, shared, Counts._make(counts), Traffic._make(traffic))


def least_cycles(gpu: Gpu, columns: Columns, table: Table) -> Floats:
    """A lower bound on the cycles of each launch of a table, in any rasterisation: its cycles without traffic.

    Traffic only adds: it delays main loops, and what a producer warp hides is a longer main loop than the traffic beside it."""
    c, _, given = _given(gpu, columns, table)
    return _without_traffic(given, gpu, _exponent(c))[0] * ROUNDED_DOWN


def _given(gpu: Gpu, columns: Columns, table: Table) -> tuple[Columns, Table, Floats]:
    """The kernel of each launch, the launches by what blocks take, and all that equations read of them, as rows (`_launches`)."""
    rows = np.array(columns).take(table.variant, axis=1)
    table = _by_blocks(c := Columns._make(rows), table)
    others = as_rows(len(table.kind), table.kind, table.splits, table.along_n, table.group, *_in_clusters(gpu, c, table))
    return c, table, np.concatenate([rows, others])


def _launches(rows: Floats) -> tuple[Columns, Table, Clusters]:
    """What `_given` made rows of."""
    numbers: Iterator[Any] = iter(rows)
    c = Columns._make(islice(numbers, len(Columns._fields)))
    table = Table(cast("Any", None), *islice(numbers, len(Table._fields) - 1))
    in_cluster, blocks, units = islice(numbers, len(Clusters._fields))
    return c, table._replace(along_n=table.along_n > 0), Clusters(in_cluster > 0, blocks, units)


@OfRows
def _predicted(rows: Floats, gpu: Gpu, exponent: float | None, hot: bool) -> Sequence[Floats]:
    """Cycles by (full waves, last wave) and WAVE_TERMS; of the other TERMS; and in all; `bound`, `wavefronts` and `shared` of a prediction,
    its counts, its traffic. `rows`: of `_given`, and what stream-K launches share."""
    streams = Sharing._make(rows[-len(Sharing._fields) :])
    c, table, clusters = _launches(rows[: -len(Sharing._fields)])
    counts = _counts(c, table, clusters)
    traffic = _traffic(gpu, c, table, counts, streams, hot)
    waves, others, cycles = _cycles(gpu, c, table, counts, traffic, exponent)
    work = counts.first_blocks * c.iteration * counts.iterations * counts.waves
    bound = np.where(work < LATENCY_BOUND_SHARE * waves[:, 0].sum(axis=0), LOOP_BOUNDS.index("latency"), c.bound)
    wavefronts = c.shared * counts.iterations * counts.items
    of_loop = np.stack([bound, wavefronts, wavefronts / gpu.sms.value])
    return waves, others, cycles, of_loop, *(as_rows(columns_of(cycles), *of) for of in (counts, traffic))


@OfRows
def _without_traffic(rows: Floats, gpu: Gpu, exponent: float | None) -> Sequence[Floats]:
    """The cycles of `_cycles` where nothing moves."""
    c, table, clusters = _launches(rows)
    return _cycles(gpu, c, table, _counts(c, table, clusters), NO_TRAFFIC, exponent)[2:]


def _cycles(gpu: Gpu, c: Columns, table: Table, counts: Counts, traffic: Traffic, exponent: float | None) -> tuple[Floats, Floats, Floats]:
    """Cycles by (full waves, last wave) and WAVE_TERMS; of the other TERMS; and in all. `exponent`: of all kernels, if it is one."""
    power = c.overlap if exponent is None else exponent
    latency = gpu.l2_latency_cycles.value + traffic.miss * (gpu.memory_latency_cycles.value - gpu.l2_latency_cycles.value)
    waves = _waves(gpu, c, counts, traffic, latency)
    in_waves = wave_cycles(waves, power)
    ends = _prologues_and_epilogues(gpu, c, counts, traffic, waves, latency, lambda busy: wave_cycles(busy, power) - in_waves)
    size, slowdown = cast("Floats", c.conversion_bytes), np.maximum(1, MIN_COPY_ELEMENT_BYTES / c.conversion_element)
    converted = size * gpu.clock_hz / (copy_rate(gpu, size, slowdown) * gpu.model.copy_share.value)
    others = np.stack([ends, _fixup(gpu, c, table, counts, latency), converted, _launch(gpu, c, table, counts)])
    return waves, others, in_waves + others.sum(axis=0)


def _by_blocks(c: Columns, table: Table) -> Table:
    """The table by what blocks take: all of k where they add its parts themselves."""
    whole = np.greater(c.part_unit, 0)
    return table._replace(kind=np.where(whole, DATA_PARALLEL, table.kind), splits=np.where(whole, 1, table.splits))


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


def _ordered(table: Table, of_a: Number, of_b: Number) -> tuple[Floats, Floats]:
    """Of the fast and of the slow operand: the rasterisation runs along panels of the fast one."""
    return np.where(table.along_n, of_b, of_a), np.where(table.along_n, of_a, of_b)


def _order(c: Columns, table: Table, of: Counts) -> Rasterisation:
    stream, (fast, slow) = table.kind == STREAM_K, _ordered(table, c.bytes_a, c.bytes_b)
    n_fast, n_slow = _ordered(table, of.tiles_m, of.tiles_n)
    # The parts of a tile share nothing
    at_once = np.minimum(of.tiles, np.maximum(1, of.slots / np.where(stream, 1, table.splits)))
    share = np.where(stream, of.tiles * of.all_iterations / table.splits, 0)
    group = np.minimum(table.group, n_slow)
    return Rasterisation(fast, slow, n_fast, n_slow, group, at_once, of.all_iterations, share, cast("Floats", c.bytes_c))


def _traffic(gpu: Gpu, c: Columns, table: Table, of: Counts, streams: Sharing, hot: bool) -> Traffic:
    stream, order = table.kind == STREAM_K, _order(c, table, of)
    partial = np.where((table.kind == SPLIT_K) & ~of.in_cluster, of.items, np.where(stream, 2 * table.splits, 0))
    partial = partial * c.tile_m * c.tile_n * c.accumulator_bytes
    fast, slow, reads = order.fast, order.slow, sharing(gpu, order, streams)
    requested_fast, requested_slow = _ordered(table, c.requested_bytes_a * of.tiles_n, c.requested_bytes_b * of.tiles_m)
    requested = requested_fast + requested_slow
    repeat = gpu.model.repeat_share.value
    sides = [*zip((requested_fast, requested_slow), _ordered(table, c.lines_a, c.lines_b), reads[:2], strict=True)]
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
    written = c.bytes_c * (1 + PARTIAL_SECTOR_COST * (c.sectors - 1))  # as bytes of whole sectors
    all_miss = l2_miss_share(gpu, c.bytes_a + c.bytes_b + c.bytes_c + partial)
    first = all_miss if hot else 1.0
    read_fast, read_slow = fast * (first + reads.fast_again), slow * (first + reads.slow_again)
    memory_bytes = read_fast + read_slow + c.bytes_c * all_miss + 2 * partial * l2_miss_share(gpu, partial)
    l2_served = served + outside + written + 2 * partial + memory_bytes
    memory_served = memory_bytes + (written - c.bytes_c) * all_miss
    miss = np.minimum(np.maximum(np.maximum(read_fast / requested_fast, read_slow / requested_slow), 0), 1)  # of the slower operand
    return Traffic(row_ends, l2_bytes, port_bytes, gpc_bytes, cast("Floats", written), memory_bytes, l2_served, memory_served, miss)


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
