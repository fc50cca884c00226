# SPDX-License-Identifier: Apache-2.0
"""The GPU cost model of tiled kernels: predicted cycles of whole tables of launches at once.

C is cut into tiles_m x tiles_n tiles: those of a thread block, or of a cluster of blocks. A tile takes ceil(k / block_k) k-iterations. The
tiles, or their split-K parts, are distributed over `items` blocks (stream-K: as many blocks as are launched). An SM holds `occupancy`
blocks at once, so blocks run in waves. All cycles are of frequency_hz; p is the kernel's pipe.

    seconds  = launch + (waves + prologue/epilogue + split-K fix-up + layout conversion) / frequency
    waves    = sum over (full waves, last wave) of  (compute^2 + transfer^2)^(1/2)
    compute  = max(main loop, power)      transfer = max(L2, memory)

iteration   SM cycles of one k-iteration of one block: max(multiply-adds / fma_per_cycle[p], shared-memory wavefronts, instructions /
            schedulers) / efficiency (`mainloop`). The efficiency is the kernel's where it was measured, else its family's.
lone        Cycles of a k-iteration of a block that has the SM for itself: max(iteration, latency / max(1, stages - 1)) + step_cycles.
            One stage needs two barriers, so step_cycles counts twice. Fewer than four warps leave sub-cores idle.
main loop   Full waves x k-iterations x ((occupancy x iteration)^2 + lone^2)^(1/2), and the last wave with the blocks left for an SM. The
            counts contain tile and wave quantisation. More blocks hide more latency, but never all of it. With a producer warp and one
            block per SM a k-iteration takes `lone`.
power       Multiply-adds of whole tiles / (sms fma_per_cycle[p]) x frequency / sustained[p], the clock that the chip sustains under load.
L2          Each block (or cluster, whose blocks share loads) reads its rows of A and columns of B and writes its tile. Simultaneous
            requests for the same bytes cost repeat_share each after the first (the L2 request coalescer, LRC, in NVIDIA Nsight Compute's
            documentation). TMA transfers whole boxes: a part outside the operand takes as long as a part inside (H200, f16, 128 x 64
            tiles: 41 us for 8 x 4096 x 4096, 25 us for 128 x 4096 x 4096). A box row that crosses a line boundary costs SPLIT_LINE_COST
            times its second line. TMA fills box rows behind an operand's end; where that is inside a sector, all SMs together fill
            row_ends_per_cycle of them. C is priced in runs of 64 bytes; a partly filled sector costs PARTIAL_SECTOR_COST times its unused
            bytes. Bytes from memory pass through L2, too. L2 limits a launch by its rate, by the port of each active SM, and by what its
            GPCs (groups of SMs) take: each GPC requests the same bytes once, if its blocks need them simultaneously.
memory      Bytes that miss L2: bytes / min(memory rate, active SMs x memory port). `traffic` says which blocks share panels of A and B and
            when a panel is read again. A "hot" run may find its operands in L2; in a "cold" run every first touch misses.
prologue/epilogue
            Start and end of each tile: block_cycles (ACCUMULATOR_SHARE of it grows with a thread's accumulators), the latency of the first
            load, and the store of C through the SM's port (single_cycles an output where rows of C are no whole vectors). The share
            `hidden` overlaps with other work in all waves but one. Ping-pong warpgroups expose PINGPONG_EXPOSED of what exceeds the other
            group's main loop. With a producer warp, loads continue meanwhile: then this time counts as compute, and only the traffic of
            the first k-iteration and of the last wave's results is added.
split-K fix-up
            Split-K and stream-K through memory: write a part's accumulators, count up the tile's flag (meet_cycles); the tile's last block
            reads all parts, FIXUP_LOADS_IN_FLIGHT accumulators a thread per latency. In a cluster: two barriers, then each block sums its
            share of the tile from its peers' shared memory, CLUSTER_VECTOR accumulators a thread at a time.
layout conversion
            An operand that the kernel cannot read as stored is copied first, at copy_share of L2's or memory's rate. Bytes smaller than
            MIN_COPY_ELEMENT_BYTES take as long as elements of that size: the copy moves squares of a fixed number of elements.
launch      launch_seconds; pass_seconds for a copy of operands, else clear_seconds to clear the flags of split-K and stream-K. Clusters
            take CLUSTER_LAUNCH_LATENCIES longer, except after a copy, which hides their start. Those of split-K parts start again in
            every round: a cluster waits until as many blocks as it has are done.

Assumptions: blocks of a wave start together; the clock is constant; TLB misses and the two L2 partitions exist only in fitted rates.

Worked number: SGEMM of 10240 x 4096 x 4096 with tiles of 128 x 128 on V100: 80 x 32 = 2560 blocks of 256 threads, all useful; two
blocks an SM: 16 waves of 160. A k-iteration of 8 takes 128 * 128 * 8 / 64 = 2048 cycles of an SM's FP32 pipe.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.gpu.mainloop import Work
from pysim.cachemodel.gpu.passes import copy_rate
from pysim.cachemodel.gpu.traffic import Rasterisation, l2_miss_share, sharing, within_gpcs
from pysim.machine.gpu import Gpu
from pysim.record.schedule import DECOMPOSITIONS

Array = NDArray[Any]

OVERLAP_EXPONENT = 2.0  # of compute and traffic, and of blocks of an SM: the larger, the better they overlap
TYPICAL_ACCUMULATORS, ACCUMULATOR_SHARE = 64, 0.25  # per thread: block_cycles is of that many; the share that grows with their number
PINGPONG_EXPOSED = 0.85  # share of a tile's prologue and epilogue beyond the other warpgroups' main loop: both use one store path
FIXUP_LOADS_IN_FLIGHT = 16  # partial sums that a thread loads before it waits
SPLIT_LINE_COST, PARTIAL_SECTOR_COST = 2.0, 4.0  # least squares over products on H100 and H200 (docs/gpu.md)
MIN_COPY_ELEMENT_BYTES = 2  # smaller elements take as long to copy
# L2 latencies: start and end of a launch of clusters, whose blocks wait for each other; a cluster's two barriers; each vector of its fix-up
CLUSTER_LAUNCH_LATENCIES, CLUSTER_FIXUP_LATENCIES, CLUSTER_VECTOR_LATENCIES = 12, 3, 3
CLUSTER_VECTOR = 4  # accumulators of a thread that go to one block of a cluster at once
CLUSTER_ACCUMULATORS_PER_CYCLE = 3.5  # that a block receives, 4 bytes each: 3.3 TB/s in all (arXiv 2402.13499, Hopper, clusters of two)
LATENCY_BOUND_SHARE = 0.9  # a main loop is latency-bound where its work fills less of its cycles
DATA_PARALLEL, SPLIT_K, STREAM_K = range(len(DECOMPOSITIONS))
WAVE_TERMS = ("main loop", "power", "L2", "memory")  # terms that overlap within a wave
TERMS = (*WAVE_TERMS, "prologue/epilogue", "split-K fix-up", "layout conversion", "launch")
LOOP_BOUNDS = (*Work._fields, "latency")  # what can bound a main loop


class Columns(NamedTuple):
    """A tiled kernel on one product of m x n x k, as the model sees it: numbers of one kernel, or arrays over kernels.

    The fields without a line here are the machine file's constants of the kernel's family.
    """

    m: Any
    n: Any
    k: Any
    element_bytes: Any
    bytes_a: Any  # of the operands and the result in memory
    bytes_b: Any
    bytes_c: Any
    requested_bytes_a: Any  # of L2, by each column of tiles
    requested_bytes_b: Any  # of L2, by each row of tiles
    result_bytes: Any  # of one output of a tile, stored
    accumulator_bytes: Any  # of one output of a tile, in registers
    tile_m: Any  # of a block; of a cluster, where blocks form one
    tile_n: Any
    block_k: Any
    stages: Any
    cluster_blocks: Any
    blocks_per_sm: Any
    can_split_k: Any
    max_stream_blocks: Any
    producer: Any  # whether a producer warp loads by TMA: whole boxes, also while tiles start and end
    accumulators: Any  # of a thread
    fixup_rounds: Any  # loads of partial sums of a thread, FIXUP_LOADS_IN_FLIGHT at once
    iteration: Any  # cycles, as in the head of this file
    lone: Any
    shared: Any  # wavefronts of a k-iteration
    bound: Any  # of a k-iteration: index of LOOP_BOUNDS
    fma: Any  # multiply-adds per cycle of an SM
    sustained: Any  # Hz
    conversions: Any  # operands that are copied first, in one launch
    conversion_bytes: Any  # read and written by these copies
    b_parts: Any  # times that the bytes of B are read, where B comes as parts of its numbers
    unaligned_c: Any  # whether rows of C are no whole vectors
    max_cluster_splits: Any  # split-K up to this many parts is reduced in a cluster
    pingpong: Any  # whether two sets of warpgroups alternate between main loop and epilogue
    box_m: Any  # a single tile's TMA boxes have a multiple of this many rows of A
    box_n: Any  # the same of B
    lines_a: Any  # L2 lines that a box row of A touches
    lines_b: Any
    row_ends_a: Any  # rows of A's boxes that end inside a sector, which each column of tiles loads
    row_ends_b: Any  # the same of B, for each row of tiles
    sectors: Any  # bytes of the sectors that a run of C touches / its own bytes
    launch_seconds: Any
    block_cycles: Any
    step_cycles: Any
    meet_cycles: Any
    hidden: Any

    def take(self, rows: Array) -> "Columns":
        return Columns(*np.array(self)[:, rows])


class Table(NamedTuple):
    """Launches, as arrays: index into Columns, decomposition (index of DECOMPOSITIONS), splits, rasterisation. Launches that differ in
    their rasterisation only are adjacent."""

    variant: Array
    kind: Array
    splits: Array
    along_n: Array
    group: Array

    def select(self, where: Array) -> "Table":
        return Table(*(column[where] for column in self))


class Prediction(NamedTuple):
    """The cost of launches; the last axis of each array is the launch.

    `cycles`; `waves`: cycles by (full waves, last wave) and WAVE_TERMS; `others`: cycles of the other TERMS; `bound` of the main loop:
    index of LOOP_BOUNDS; `traffic`: shared-memory wavefronts, their cycles, bytes of L2, bytes of memory; `facts`: intermediate values by
    name.
    """

    cycles: Array
    waves: Array
    others: Array
    bound: Array
    traffic: Array
    facts: dict[str, Array]

    @property
    def terms(self) -> dict[str, Array]:
        """Cycles by TERMS."""
        return dict(zip(TERMS, (*self.waves.sum(axis=0), *self.others), strict=True))

    def select(self, rows: Array) -> "Prediction":
        facts = {name: of[rows] for name, of in self.facts.items()}
        return Prediction(self.cycles[rows], self.waves[..., rows], self.others[:, rows], self.bound[rows], self.traffic[:, rows], facts)


def overlapped(one: Any, other: Any) -> Any:
    """Cycles of two activities at once: a smooth maximum, since they delay each other the more the closer they are."""
    return (one**OVERLAP_EXPONENT + other**OVERLAP_EXPONENT) ** (1 / OVERLAP_EXPONENT)


def wave_cycles(waves: Array) -> Array:
    """Cycles of all waves, from those by (full, last) and WAVE_TERMS."""
    loop, power, l2, memory = (waves[:, i] for i in range(len(WAVE_TERMS)))
    return overlapped(np.maximum(loop, power), np.maximum(l2, memory)).sum(axis=0)


def predict(gpu: Gpu, columns: Columns, table: Table, hot: bool = True) -> Prediction:
    """Cost of each launch of a table."""
    c = columns.take(table.variant)
    in_cluster = (table.kind == SPLIT_K) & (table.splits <= c.max_cluster_splits)
    facts = _counts(gpu, c, table, in_cluster)
    _traffic(gpu, c, table, in_cluster, facts, hot)
    latency = gpu.l2_latency_cycles.value + facts["miss"] * (gpu.memory_latency_cycles.value - gpu.l2_latency_cycles.value)
    waves = _waves(gpu, c, facts, latency)
    ends = _prologues_and_epilogues(gpu, c, facts, waves, latency)
    rate = copy_rate(gpu, c.conversion_bytes, np.maximum(1, MIN_COPY_ELEMENT_BYTES / c.element_bytes)) * gpu.model.copy_share.value
    converted = c.conversion_bytes * gpu.clock_hz / rate
    others = np.stack([ends, _fixup(gpu, c, table, in_cluster, facts, latency), converted, _launch(gpu, c, table, in_cluster, facts)])
    work = facts["first_blocks"] * c.iteration * facts["iterations"] * facts["waves"]
    bound = np.where(work < LATENCY_BOUND_SHARE * waves[:, 0].sum(axis=0), LOOP_BOUNDS.index("latency"), c.bound)
    wavefronts = c.shared * facts["iterations"] * facts["items"]
    traffic = np.stack([wavefronts, wavefronts / gpu.sms.value, facts["l2_bytes"], facts["memory_bytes"]])
    return Prediction(wave_cycles(waves) + others.sum(axis=0), waves, others, bound, traffic, facts)


def _counts(gpu: Gpu, c: Columns, table: Table, in_cluster: Array) -> dict[str, Array]:
    """Tiles, blocks (`items`), k-iterations and waves."""
    parts = np.where(in_cluster, table.splits, 1).astype(int)
    cluster = (parts * c.cluster_blocks).astype(int)
    clusters = np.array([gpu.clusters(blocks) for blocks in range(1, 1 + max(1, cluster.max(initial=1)))])[cluster - 1]
    # SMs, or groups of SMs that hold a tile's cluster; 0 clusters: the GPU has too few SMs for one
    units = np.where(clusters > 0, parts * clusters, np.floor(gpu.sms.value / c.cluster_blocks))
    tiles_m, tiles_n, all_iterations = np.ceil(c.m / c.tile_m), np.ceil(c.n / c.tile_n), np.ceil(c.k / c.block_k)
    tiles, stream = tiles_m * tiles_n, table.kind == STREAM_K
    items = np.where(stream, table.splits, tiles * table.splits)
    iterations = np.where(stream, np.ceil(tiles * all_iterations / table.splits), np.ceil(all_iterations / table.splits))
    slots = units * c.blocks_per_sm
    full_waves = np.floor(items / slots)
    tail = items - full_waves * slots
    tail_blocks = np.ceil(tail / units)
    return {
        "tiles_m": tiles_m, "tiles_n": tiles_n, "tiles": tiles, "all_iterations": all_iterations, "items": items,
        "iterations": iterations, "slots": slots, "units": units, "full_waves": full_waves, "tail": tail, "tail_blocks": tail_blocks,
        "waves": full_waves + (tail_blocks > 0),
        "first_blocks": np.where(full_waves > 0, c.blocks_per_sm, tail_blocks),  # of an SM in the first wave
        "cluster": cluster,  # blocks of a tile's cluster
        "block_tiles": np.where(stream, 1 + np.ceil(iterations / all_iterations), 1.0),  # tiles that one block touches
    }  # fmt: skip


def _traffic(gpu: Gpu, c: Columns, table: Table, in_cluster: Array, facts: dict[str, Array], hot: bool) -> None:
    """Bytes through L2 and from memory, added to the facts."""
    stream, along_n = table.kind == STREAM_K, table.along_n.astype(bool)
    partial = np.where((table.kind == SPLIT_K) & ~in_cluster, facts["items"], np.where(stream, 2 * table.splits, 0))
    partial = partial * c.tile_m * c.tile_n * c.accumulator_bytes

    def ordered(of_a: Any, of_b: Any) -> tuple[Array, Array]:  # fast, slow: the rasterisation runs along panels of the fast operand
        return np.where(along_n, of_b, of_a), np.where(along_n, of_a, of_b)

    fast, slow = ordered(c.bytes_a, c.bytes_b)
    n_fast, n_slow = ordered(facts["tiles_m"], facts["tiles_n"])
    # The parts of a tile share nothing
    at_once = np.minimum(facts["tiles"], np.maximum(1, facts["slots"] / np.where(stream, 1, table.splits)))
    share = np.where(stream, facts["tiles"] * facts["all_iterations"] / table.splits, 0)
    group = np.minimum(table.group, n_slow)
    order = Rasterisation(fast, slow, n_fast, n_slow, group, at_once, facts["all_iterations"], share, c.bytes_c)
    reads = sharing(gpu, order)
    requested_fast, requested_slow = ordered(c.requested_bytes_a * facts["tiles_n"], c.requested_bytes_b * facts["tiles_m"])
    requested = requested_fast + requested_slow
    repeat = gpu.model.repeat_share.value
    sides = [*zip((requested_fast, requested_slow), ordered(c.lines_a, c.lines_b), reads[:2], strict=True)]
    served = sum(size * (1 + SPLIT_LINE_COST * (lines - 1)) * (repeat + (1 - repeat) * alone) for size, lines, alone in sides)
    split_lines = sum(size * (lines - 1) for size, lines, _ in sides)
    # TMA fills the parts of boxes outside an operand, which takes as long as the parts inside
    m = np.where(facts["tiles_m"] > 1, facts["tiles_m"] * c.tile_m, np.ceil(c.m / c.box_m) * c.box_m)
    n = np.where(facts["tiles_n"] > 1, facts["tiles_n"] * c.tile_n, np.ceil(c.n / c.box_n) * c.box_n)
    boxes = (m * facts["tiles_n"] + c.b_parts * n * facts["tiles_m"]) * (facts["all_iterations"] * c.block_k) * c.element_bytes
    outside = np.where(c.producer > 0, np.maximum(0, boxes - requested), 0)
    facts["row_ends"] = c.row_ends_a * facts["tiles_n"] + c.row_ends_b * facts["tiles_m"]
    facts["l2_bytes"] = requested + outside + c.bytes_c + 2 * partial
    facts["port_bytes"] = facts["l2_bytes"] + split_lines
    facts["gpc_bytes"] = outside + _gpc_bytes(gpu, c, table, in_cluster, facts, order, (requested_fast, requested_slow))
    facts["written"] = c.bytes_c * (1 + PARTIAL_SECTOR_COST * (c.sectors - 1))  # as bytes of whole sectors
    all_miss = l2_miss_share(gpu, c.bytes_a + c.bytes_b + c.bytes_c + partial)
    first = all_miss if hot else np.ones(())
    read_fast, read_slow = fast * (first + reads.fast_again), slow * (first + reads.slow_again)
    facts["memory_bytes"] = read_fast + read_slow + c.bytes_c * all_miss + 2 * partial * l2_miss_share(gpu, partial)
    facts["l2_served"] = served + outside + facts["written"] + 2 * partial + facts["memory_bytes"]
    facts["memory_served"] = facts["memory_bytes"] + (facts["written"] - c.bytes_c) * all_miss
    facts["miss"] = np.clip(np.maximum(read_fast / requested_fast, read_slow / requested_slow), 0, 1)  # of the slower operand


def _gpc_bytes(gpu: Gpu, c: Columns, table: Table, in_cluster: Array, facts: dict[str, Array], order: Rasterisation, requested: Any) -> Any:
    """Bytes that all GPCs take from L2; `requested`: of the fast and of the slow operand. 0 where unknown: for stream-K, whose blocks are
    each at a k-iteration of their own, and for GPUs whose GPCs were not measured."""
    if not gpu.gpcs:
        return 0.0
    # blocks with one tile each are not numbered in bands (native/cuda/core/decomposition.cuh)
    placed = in_cluster | (facts["items"] <= np.where(c.producer > 0, facts["slots"], facts["units"]))
    order = order._replace(group=np.where(placed, 1, order.group))
    shares = within_gpcs(order, gpu.gpcs.value, (c.cluster_blocks > 1) | in_cluster)
    total = sum(size * share for size, share in zip(requested, shares, strict=True))
    return np.where(table.kind == STREAM_K, 0.0, total)


def _waves(gpu: Gpu, c: Columns, facts: dict[str, Array], latency: Array) -> Array:
    """Cycles by (full waves, last wave) and WAVE_TERMS."""
    frequency, barriers = gpu.clock_hz, 1 + (c.stages == 1)
    lone = np.maximum(c.lone, latency / np.maximum(1, c.stages - 1)) + barriers * c.step_cycles
    products = facts["tiles"] * c.tile_m * c.tile_n * facts["all_iterations"] * c.block_k
    power = products / (gpu.sms.value * c.fma) * frequency / c.sustained
    share = facts["full_waves"] * facts["slots"] / facts["items"]
    parts = []
    for waves, blocks, units, part in (
        (facts["full_waves"], c.blocks_per_sm, facts["units"], share),
        (facts["tail_blocks"] > 0, facts["tail_blocks"], np.minimum(facts["tail"], facts["units"]), 1 - share),
    ):
        active = np.maximum(units * c.cluster_blocks, 1)  # SMs
        l2 = np.maximum(
            facts["l2_served"] / (gpu.l2_bytes_per_second.value / frequency),
            facts["port_bytes"] / (active * gpu.port_bytes_per_cycle.value),
        )
        l2 = np.maximum(l2, facts["row_ends"] / gpu.model.row_ends_per_cycle.value)
        if gpu.gpc_bytes_per_second:
            l2 = np.maximum(l2, facts["gpc_bytes"] * frequency / gpu.gpc_bytes_per_second.value)
        memory = np.minimum(gpu.memory_bytes_per_second.value / frequency, active * gpu.memory_port_bytes_per_cycle.value)
        iteration = np.where((c.producer > 0) & (c.blocks_per_sm <= 1), lone, overlapped(blocks * c.iteration, lone))
        parts.append([waves * facts["iterations"] * iteration, power * part, l2 * part, facts["memory_served"] * part / memory])
    return np.array(parts)


def _prologues_and_epilogues(gpu: Gpu, c: Columns, facts: dict[str, Array], waves: Array, latency: Array) -> Array:
    """Cycles of the starts and ends of tiles that nothing hides."""
    number, transfer = facts["waves"], np.maximum(waves[:, 2], waves[:, 3]).sum(axis=0)
    store = c.result_bytes / gpu.port_bytes_per_cycle.value + c.unaligned_c * gpu.model.single_cycles.value  # of an output
    store = c.tile_m * c.tile_n / c.cluster_blocks * store
    growth = 1 + ACCUMULATOR_SHARE * (c.accumulators / TYPICAL_ACCUMULATORS - 1)
    tile = c.block_cycles * growth + latency + facts["first_blocks"] * store
    pingpong = PINGPONG_EXPOSED * np.maximum(0, tile - waves[:, 0].sum(axis=0) / number)
    later = np.where(c.pingpong, pingpong, tile * (1 - c.hidden))
    exposed = facts["block_tiles"] * (tile + (number - 1) * later)
    # a producer warp continues to load meanwhile
    busy = waves.copy()
    busy[:, 0] += exposed * np.stack([facts["full_waves"], facts["tail_blocks"] > 0]) / number
    last_wave = np.minimum(1, np.where(facts["tail"] > 0, facts["tail"], facts["slots"]) / facts["items"])
    last_results = facts["written"] * last_wave / (gpu.l2_bytes_per_second.value / gpu.clock_hz)
    first_loads = transfer / (facts["iterations"] * number)
    return np.where(c.producer, wave_cycles(busy) - wave_cycles(waves) + (first_loads + last_results), exposed)


def _fixup(gpu: Gpu, c: Columns, table: Table, in_cluster: Array, facts: dict[str, Array], latency: Array) -> Array:
    """Cycles in which blocks exchange partial sums, through memory or within a cluster."""
    outputs, stream = c.tile_m * c.tile_n / c.cluster_blocks, table.kind == STREAM_K
    write = outputs * c.accumulator_bytes / gpu.port_bytes_per_cycle.value
    written = np.where(stream, 2, np.ceil(facts["items"] / facts["units"]))  # parts that an SM's blocks write, one after another
    rounds = np.where(stream, 2, np.ceil(facts["items"] / facts["slots"]))
    parts = np.where(stream, 1 + np.ceil(table.splits / facts["tiles"]), table.splits)
    tiles = np.where(stream, 1, np.ceil(facts["tiles"] / facts["units"]))  # that an SM's blocks sum
    through_memory = written * write + rounds * c.meet_cycles + tiles * parts * (write + c.fixup_rounds * latency)
    vectors = np.maximum(1, c.accumulators / CLUSTER_VECTOR)
    own = np.ceil(vectors / table.splits)  # that a block of the cluster sums
    received = own / vectors * (table.splits - 1) * outputs
    waits = (CLUSTER_FIXUP_LATENCIES + own * CLUSTER_VECTOR_LATENCIES) * gpu.l2_latency_cycles.value
    through_cluster = rounds * (waits + received / CLUSTER_ACCUMULATORS_PER_CYCLE)
    return np.where(table.kind == DATA_PARALLEL, 0.0, np.where(in_cluster, through_cluster, through_memory))


def _launch(gpu: Gpu, c: Columns, table: Table, in_cluster: Array, facts: dict[str, Array]) -> Array:
    """Cycles of a launch beside its blocks' work."""
    flags = (table.kind != DATA_PARALLEL) & ~in_cluster
    passes = np.where(c.conversions > 0, gpu.model.pass_seconds.value, flags * gpu.model.clear_seconds.value)
    clusters = ((c.cluster_blocks > 1) | in_cluster) & (c.conversions == 0)
    rounds = np.where(in_cluster, np.ceil(facts["items"] / facts["slots"]), 1.0)
    waits = np.where(clusters, rounds * CLUSTER_LAUNCH_LATENCIES * gpu.l2_latency_cycles.value, 0.0)
    return (c.launch_seconds + passes) * gpu.clock_hz + waits
