# SPDX-License-Identifier: Apache-2.0
"""The GPU cost model: cycles of kernels that compute tiles of a product, for whole tables of launches at once.

A launch computes tiles_m x tiles_n tiles of C (block tiles; with clusters, the tile of a cluster of blocks) in steps of block_k along
k; `items` blocks or clusters share them (tiles; tiles x parts of split-K; stream-K's own number). An SM holds `occupancy` blocks at
once (`occupancy`), so they run in waves. All cycles are of frequency_hz; p is the kernel's pipe.

    seconds  = launch + passes + (waves + tiles + partials + relayout) / frequency
    waves    = sum over (full waves, last wave) of  (busy^KNEE + transfer^KNEE)^(1/KNEE)
    busy     = max(loop, power)      transfer = max(L2, memory)

step    what one step of one block needs of its SM: max(multiply-adds / fma_per_cycle[p], shared-memory wavefronts, instructions /
        schedulers) / efficiency, which is the kernel's where it was measured, else its family's (`mainloop`).
alone   what a block waits for a step when nothing else runs: max(step, latency / max(1, stages - 1)) + step_cycles, the last twice
        with one stage (two barriers). Fewer than four warps leave sub-cores idle.
loop    full waves x steps x ((occupancy step)^KNEE + alone^KNEE)^(1/KNEE) + the last wave likewise with the blocks that it has left an SM:
        tile and wave quantisation are in the counts; blocks hide each other's waiting the better the more there are, not all at once.
        Where a producer loads ahead, and an SM has one block, a step takes alone.
power   multiply-adds of whole tiles / (sms fma_per_cycle[p]) x frequency / sustained[p]: the clock that the whole chip can keep up.
L2      Each block (cluster, where blocks share what they load) reads its rows of A and columns of B, and writes its tile. What several
        ask for at once costs repeat_share after the first (NVIDIA Nsight Compute's documentation: the L2 request coalescer, LRC, joins
        requests before L2). TMA's boxes are whole: rows and columns outside A and B are filled, and take as long as others
        (on an H200, 128 x 64 tiles of wgmma take 41 us for 8 x 4096 x 4096 of FP16, and 25 us for 128 x 4096 x 4096). A box's row is a
        line long, and lies in two where it begins inside one: the second costs SPLIT_LINE times the row. C leaves in runs of 64 bytes;
        where rows of C begin inside a sector, each has sectors that it fills in part, and whose rest costs PART_SECTOR times its bytes.
        What comes from memory passes through L2 as well: bytes / l2 rate, and what SMs ask for, both lines of a row that
        lies in two, / (active SMs x port).
memory  What L2 does not keep: bytes / min(memory rate, active SMs x memory port). First touches lie a whole run apart when operands are
        used again and again ("hot"); cold, they all miss. Who shares what, and what comes again, in waves or stream-K: `traffic`.
tiles   A tile's start and end: block_cycles (OF_SUMS of it for TYPICAL_SUMS a thread, the rest whatever the tile), the latency of the first
        load, and its way out through the SM's port, where rows of C are no whole vectors output by output (single_cycles); `hidden` of it
        overlaps with other work in all waves but one; of two sets of warpgroups in turn IN_TURN of what is longer than the loop does not.
        Of kernels whose producers go on loading (`overlaps`) it is busy time like the loop's, beside which traffic goes on, but for that
        of the first step, before which there is nothing to multiply, and of the last wave's results.
partials  split-K and stream-K: accumulators written once, the tile's flag counted up (meet_cycles), and read once by the block that sums
          them, part after part, SUMS_AT_ONCE a thread and then a latency; where parts meet in a cluster, MEET_LATENCIES for its two
          barriers, and each block gets its share of a tile's sums from all others, MET of a thread at once, VECTOR_LATENCIES for each
          such, at CLUSTER_SUMS_PER_CYCLE. Of large clusters fewer run at once than SMs are enough for (`clusters_at_once`).
relayout  An operand that the kernel cannot take as it lies is copied before: read and written once at copy_share of L2's or memory's rate,
          elements of one byte in L2 as slowly as of LEAST_COPIED: blocks copy squares of as many elements whatever their size.
passes    pass_seconds for the launch that copies operands, else clear_seconds for the one that clears split-K's and stream-K's flags. A
        launch of clusters, or of parts that meet in them, takes CLUSTER_LATENCIES longer, but beside a copy, which it starts beside.

Assumptions: blocks of a wave start together; the clock does not move; TLB misses and L2's two halves are nowhere but in fitted rates.

Worked number: SGEMM of 10240 x 4096 x 4096 with tiles of 128 x 128 on V100: 80 x 32 = 2560 blocks of 256 threads, all useful; two
blocks an SM: 16 waves of 160. A step of 8 takes 128 * 128 * 8 / 64 = 2048 cycles of an SM's FP32 pipe.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.gpu.mainloop import Work
from pysim.cachemodel.gpu.passes import copy_rate
from pysim.cachemodel.gpu.traffic import Walk, miss, reads
from pysim.machine.gpu import Gpu
from pysim.record.schedule import DECOMPOSITIONS

Array = NDArray[Any]

KNEE = 2.0  # how sharply what waits turns into what is busy: blocks of an SM, arithmetic and traffic of a launch
TYPICAL_SUMS, OF_SUMS = 64, 0.25  # of a thread: a tile of so many starts and ends in block_cycles, of which that share is of its sums
IN_TURN = 0.85  # of a tile's start and end beyond its loop, where two sets of warpgroups take tiles in turn: they share the way out
SUMS_AT_ONCE = 16  # partial sums that a thread reads before it waits for them
SPLIT_LINE, PART_SECTOR = 2.0, 4.0  # of L2, as least squares over H100's and H200's products have them (docs/gpu.md)
CLUSTER_LATENCIES = 12  # of L2: what a launch takes longer whose blocks are clusters, and wait for one another at both ends
LEAST_COPIED = 2  # bytes: an element of fewer takes as long to copy
MEET_LATENCIES, VECTOR_LATENCIES = 3, 3  # of L2: what the parts of a tile take to meet in a cluster, and each of a thread's shares of it
MET = 4  # sums of a thread that go to one block of a cluster
CLUSTER_SUMS_PER_CYCLE = 3.5  # that a block gets from others: of 4 bytes 3.3 TB/s in all (arXiv 2402.13499, Hopper, clusters of two)
NEARLY = 0.9  # of a loop's cycles: blocks that fill less of it with work wait
DATA_PARALLEL, SPLIT_K, STREAM_K = range(len(DECOMPOSITIONS))
OF_WAVES = ("loop", "power", "L2", "memory")  # terms of which a wave takes part at once
TERMS = (*OF_WAVES, "tiles", "partials", "relayout", "launch")
STEP = (*Work._fields, "latency")  # what bounds a loop


class Columns(NamedTuple):
    """What the model knows of a tiled kernel and of what it computes: numbers, or arrays over kernels.

    A product of m x n x k of elements of `size` bytes; a, b, c: bytes of its operands and result in memory; `asks_*`: bytes of A that each
    column of tiles asks of L2, and of B each row of tiles; `result`, `sum`: bytes of one output of a tile as it leaves, and as it is
    summed. `tile_*` are those of a cluster, of `blocks`; an SM holds `resident` blocks. `divides`: k may be shared, by at most
    `stream_most` blocks of stream-K. `whole`: TMA's boxes, and of an operand with one tile's rows or columns multiples of `box_m` or
    `box_n`; `lines_a`, `lines_b`: of L2, that a row of a box of A or B lies in; `sectors`: that C's runs touch over what they fill;
    `outputs`, `turns`: of a thread, of which it sums so many at once. `relayouts` copies of operands, one launch, move
    `relaid` bytes. `parts`: bytes of B as it is read for each of its own. `narrow`: whether rows of C are no whole vectors; `near`: so
    many parts of split-K meet in a cluster; `overlaps`: whether traffic goes on while a tile starts and ends; `pingpong`: whether
    another tile's products do. `bound` is what bounds a step, of STEP. The rest is as the head of this file and the machine's family of
    constants have it.
    """

    m: Any
    n: Any
    k: Any
    size: Any
    a: Any
    b: Any
    c: Any
    asks_a: Any
    asks_b: Any
    result: Any
    sum: Any
    tile_m: Any
    tile_n: Any
    block_k: Any
    stages: Any
    blocks: Any
    resident: Any
    divides: Any
    stream_most: Any
    whole: Any
    outputs: Any
    turns: Any
    step: Any
    alone: Any
    shared: Any
    bound: Any
    fma: Any
    sustained: Any
    relayouts: Any
    relaid: Any
    parts: Any
    narrow: Any
    near: Any
    overlaps: Any
    pingpong: Any
    box_m: Any
    box_n: Any
    lines_a: Any
    lines_b: Any
    sectors: Any
    launch_seconds: Any
    block_cycles: Any
    step_cycles: Any
    meet_cycles: Any
    hidden: Any

    def take(self, rows: Array) -> "Columns":
        return Columns(*np.array(self)[:, rows])


class Table(NamedTuple):
    """Launches, as arrays: place in Columns, decomposition (index of DECOMPOSITIONS), splits, walk. Walks of one launch stand together."""

    variant: Array
    kind: Array
    splits: Array
    along_n: Array
    group: Array

    def select(self, where: Array) -> "Table":
        return Table(*(column[where] for column in self))


class Prediction(NamedTuple):
    """The cost of launches, each array with them last: cycles; `waves`, by (full, last) and OF_WAVES, and `others`, by the rest of TERMS;
    `bound` of the loop, of STEP; `traffic`: wavefronts, their cycles, bytes of L2 and of memory; `facts` by name led to them."""

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


def together(busy: Any, transfer: Any) -> Any:
    """Cycles of arithmetic and traffic, or of blocks, at once: they wait for each other the more the closer they are."""
    return (busy**KNEE + transfer**KNEE) ** (1 / KNEE)


def joined(waves: Array) -> Array:
    """Cycles of waves, by (full, last) and OF_WAVES."""
    loop, power, l2, memory = (waves[:, i] for i in range(len(OF_WAVES)))
    return together(np.maximum(loop, power), np.maximum(l2, memory)).sum(axis=0)


def predict(gpu: Gpu, columns: Columns, table: Table, hot: bool = True) -> Prediction:
    """Cost of each launch of a table."""
    model, frequency, c = gpu.model, gpu.clock_hz, columns.take(table.variant)
    facts = _counts(gpu, c, table)
    _traffic(gpu, c, table, facts, hot)
    latency = gpu.l2_latency_cycles.value + facts["miss"] * (gpu.memory_latency_cycles.value - gpu.l2_latency_cycles.value)
    waves = _waves(gpu, c, facts, latency)
    out = c.tile_m * c.tile_n / c.blocks * (c.result / gpu.port_bytes_per_cycle.value + c.narrow * model.single_cycles.value)
    number = facts["full_waves"] + (facts["last"] > 0)
    blocks = np.where(facts["full_waves"] > 0, c.resident, facts["last"])
    edge = c.block_cycles * (1 + OF_SUMS * (c.outputs / TYPICAL_SUMS - 1)) + latency + blocks * out
    # two sets of warpgroups in turn: one's tile starts and ends beside the other's loop
    later = np.where(c.pingpong, IN_TURN * np.maximum(0, edge - waves[:, 0].sum(axis=0) / number), edge * (1 - c.hidden))
    tiles = facts["turns"] * (edge + (number - 1) * later)
    busy = waves.copy()
    busy[:, 0] += tiles * np.stack([facts["full_waves"], facts["last"] > 0]) / number
    ends = np.maximum(waves[:, 2], waves[:, 3]).sum(axis=0) / (facts["steps"] * number) + _last_results(gpu, c, facts)
    tiles = np.where(c.overlaps, joined(busy) - joined(waves) + ends, tiles)
    rate = copy_rate(gpu, c.relaid, np.maximum(1, LEAST_COPIED / c.size)) * model.copy_share.value
    copied = c.relaid * frequency / rate
    near = _near(c, table)
    far = (table.kind != DATA_PARALLEL) & ~near
    clustered = np.where(((c.blocks > 1) | near) & (c.relayouts == 0), CLUSTER_LATENCIES * gpu.l2_latency_cycles.value, 0.0)
    cleared = far * model.clear_seconds.value
    passes = np.where(c.relayouts > 0, model.pass_seconds.value, cleared)
    others = np.stack([tiles, _partials(gpu, c, table, facts, latency), copied, (c.launch_seconds + passes) * frequency + clustered])
    waits = blocks * c.step * facts["steps"] * number < NEARLY * waves[:, 0].sum(axis=0)
    wavefronts = c.shared * facts["steps"] * facts["items"]
    traffic = np.stack([wavefronts, wavefronts / gpu.sms.value, facts["l2_bytes"], facts["memory_bytes"]])
    return Prediction(joined(waves) + others.sum(axis=0), waves, others, np.where(waits, STEP.index("latency"), c.bound), traffic, facts)


def _counts(gpu: Gpu, c: Columns, table: Table) -> dict[str, Array]:
    """Tiles, items, steps and waves."""
    units = np.floor(gpu.sms.value / c.blocks)  # SMs, or groups of them that hold a cluster
    parts = np.where(_near(c, table), table.splits, 1).astype(int)  # of a launch's cluster
    together = (parts * c.blocks).astype(int)
    at_once = np.array([gpu.clusters(blocks) for blocks in range(1, 1 + max(1, together.max(initial=1)))])
    units = np.where((parts > 1) & (at_once[together - 1] > 0), parts * at_once[together - 1], units)  # 0: too few SMs for that cluster
    tiles_m, tiles_n, all_steps = np.ceil(c.m / c.tile_m), np.ceil(c.n / c.tile_n), np.ceil(c.k / c.block_k)
    tiles, stream = tiles_m * tiles_n, table.kind == STREAM_K
    items = np.where(stream, table.splits, tiles * table.splits)
    steps = np.where(stream, np.ceil(tiles * all_steps / table.splits), np.ceil(all_steps / table.splits))
    slots = units * c.resident
    full_waves = np.floor(items / slots)
    left = items - full_waves * slots
    turns = np.where(stream, 1 + np.ceil(steps / all_steps), 1.0)  # tiles that a block of stream-K touches
    return {
        "tiles_m": tiles_m, "tiles_n": tiles_n, "tiles": tiles, "all_steps": all_steps, "items": items, "steps": steps, "slots": slots,
        "full_waves": full_waves, "left": left, "last": np.ceil(left / units), "units": units, "turns": turns,
    }  # fmt: skip


def _traffic(gpu: Gpu, c: Columns, table: Table, facts: dict[str, Array], hot: bool) -> None:
    """Bytes through L2 and from memory."""
    partial = np.where((table.kind == SPLIT_K) & ~_near(c, table), facts["items"], np.where(table.kind == STREAM_K, 2 * table.splits, 0))
    partial = partial * c.tile_m * c.tile_n * c.sum
    along_n, stream = table.along_n.astype(bool), table.kind == STREAM_K
    fast, slow = np.where(along_n, c.b, c.a), np.where(along_n, c.a, c.b)
    n_fast = np.where(along_n, facts["tiles_n"], facts["tiles_m"])
    n_slow = np.where(along_n, facts["tiles_m"], facts["tiles_n"])
    at_once = np.minimum(facts["tiles"], facts["slots"])
    share = np.where(stream, facts["tiles"] * facts["all_steps"] / table.splits, 0)
    found = reads(gpu, Walk(fast, slow, n_fast, n_slow, np.minimum(table.group, n_slow), at_once, facts["all_steps"], share))
    asked_fast = np.where(along_n, c.asks_b, c.asks_a) * n_slow  # of L2
    asked_slow = np.where(along_n, c.asks_a, c.asks_b) * n_fast
    repeat = gpu.model.repeat_share.value
    lines = (np.where(along_n, c.lines_b, c.lines_a), np.where(along_n, c.lines_a, c.lines_b))
    sides = zip((asked_fast, asked_slow), lines, found[:2], strict=True)
    shared = sum(asked * (1 + SPLIT_LINE * (of - 1)) * (repeat + (1 - repeat) * alone) for asked, of, alone in sides)
    split = sum(asked * (of - 1) for asked, of in zip((asked_fast, asked_slow), lines, strict=True))
    # TMA fills what lies outside an operand, and takes as long as for what lies inside
    m = np.where(facts["tiles_m"] > 1, facts["tiles_m"] * c.tile_m, np.ceil(c.m / c.box_m) * c.box_m)
    n = np.where(facts["tiles_n"] > 1, facts["tiles_n"] * c.tile_n, np.ceil(c.n / c.box_n) * c.box_n)
    k = facts["all_steps"] * c.block_k
    boxes = (m * facts["tiles_n"] + c.parts * n * facts["tiles_m"]) * k * c.size
    outside = np.where(c.whole > 0, np.maximum(0, boxes - asked_fast - asked_slow), 0)
    facts["l2_bytes"] = asked_fast + asked_slow + outside + c.c + 2 * partial
    facts["ported_bytes"] = facts["l2_bytes"] + split  # both lines of a row that lies in two come through the port
    facts["written"] = c.c * (1 + PART_SECTOR * (c.sectors - 1))  # as what is read whole
    whole = miss(gpu, c.a + c.b + c.c + partial)
    first = whole if hot else np.ones(())
    read_fast, read_slow = fast * (first + found.fast_again), slow * (first + found.slow_again)
    facts["memory_bytes"] = read_fast + read_slow + c.c * whole + 2 * partial * miss(gpu, partial)
    facts["served_bytes"] = shared + outside + facts["written"] + 2 * partial + facts["memory_bytes"]
    facts["memory_served"] = facts["memory_bytes"] + (facts["written"] - c.c) * whole
    facts["miss"] = np.clip(np.maximum(read_fast / asked_fast, read_slow / asked_slow), 0, 1)  # a step waits for the slower operand


def _waves(gpu: Gpu, c: Columns, facts: dict[str, Array], latency: Array) -> Array:
    """Cycles of main loops, power, L2 and memory: in the full waves, and in the last one, which has fewer blocks."""
    frequency, barriers = gpu.clock_hz, 1 + (c.stages == 1)
    alone = np.maximum(c.alone, latency / np.maximum(1, c.stages - 1)) + barriers * c.step_cycles
    products = facts["tiles"] * c.tile_m * c.tile_n * facts["all_steps"] * c.block_k
    power = products / (gpu.sms.value * c.fma) * frequency / c.sustained
    share = facts["full_waves"] * facts["slots"] / facts["items"]
    parts = []
    for waves, blocks, units, part in (
        (facts["full_waves"], c.resident, facts["units"], share),
        (facts["last"] > 0, facts["last"], np.minimum(facts["left"], facts["units"]), 1 - share),
    ):
        active = np.maximum(units * c.blocks, 1)
        l2 = np.maximum(
            facts["served_bytes"] / (gpu.l2_bytes_per_second.value / frequency),
            facts["ported_bytes"] / (active * gpu.port_bytes_per_cycle.value),
        )
        memory = np.minimum(gpu.memory_bytes_per_second.value / frequency, active * gpu.memory_port_bytes_per_cycle.value)
        loop = waves * facts["steps"] * np.where((c.overlaps > 0) & (c.resident <= 1), alone, together(blocks * c.step, alone))
        parts.append([loop, power * part, l2 * part, facts["memory_served"] * part / memory])
    return np.array(parts)


def _last_results(gpu: Gpu, c: Columns, facts: dict[str, Array]) -> Array:
    """Cycles in which L2 takes the results of the last wave."""
    share = np.minimum(1, np.where(facts["left"] > 0, facts["left"], facts["slots"]) / facts["items"])
    return facts["written"] * share / (gpu.l2_bytes_per_second.value / gpu.clock_hz)


def _near(c: Columns, table: Table) -> Array:
    """Whether the parts of a launch's tiles meet in clusters."""
    return (table.kind == SPLIT_K) & (table.splits <= c.near)


def _partials(gpu: Gpu, c: Columns, table: Table, facts: dict[str, Array], latency: Array) -> Array:
    """Cycles to write a block's accumulators, and for the last block of a tile to read and sum all parts of it."""
    leave = c.tile_m * c.tile_n / c.blocks * c.sum / gpu.port_bytes_per_cycle.value
    stream = table.kind == STREAM_K
    left = np.where(stream, 2, np.ceil(facts["items"] / facts["units"]))  # parts that an SM's blocks leave, one after another
    meets = np.where(stream, 2, np.ceil(facts["items"] / facts["slots"]))
    parts = np.where(stream, 1 + np.ceil(table.splits / facts["tiles"]), table.splits)
    sums = np.where(stream, 1, np.ceil(facts["tiles"] / facts["units"])) * parts * (leave + c.turns * latency)
    vectors = np.maximum(1, c.outputs / MET)  # that the blocks of a cluster share, each of which gets its own of all others' parts
    own = np.ceil(vectors / table.splits)
    got = own / vectors * (table.splits - 1) * c.tile_m * c.tile_n / c.blocks
    near = meets * ((MEET_LATENCIES + own * VECTOR_LATENCIES) * gpu.l2_latency_cycles.value + got / CLUSTER_SUMS_PER_CYCLE)
    found = np.where(_near(c, table), near, left * leave + meets * c.meet_cycles + sums)
    return np.where(table.kind == DATA_PARALLEL, 0.0, found)
