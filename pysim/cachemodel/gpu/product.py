# SPDX-License-Identifier: Apache-2.0
"""The GPU cost model: cycles of a matrix product on a CUDA kernel, for whole tables of launches at once.

A launch computes tiles_m x tiles_n tiles of C (block tiles; with clusters, the tile of a cluster of blocks) in steps of block_k along
k; `items` blocks or clusters share them (tiles; tiles x parts of split-K; stream-K's own number). An SM holds `occupancy` blocks at
once (CUDA's rule: `occupancy`), so they run in waves. All cycles are of frequency_hz; p is the kernel's pipe.

    seconds  = launch + passes + (waves + tiles + partials + relayout) / frequency
    waves    = sum over (full waves, last wave) of  (busy^KNEE + transfer^KNEE)^(1/KNEE)
    busy     = max(loop, power)      transfer = max(L2, memory)

step    what one step of one block needs of its SM: max(multiply-adds / fma_per_cycle[p], shared-memory wavefronts, instructions /
        schedulers) / efficiency, which is the kernel's where it was measured, else its family's. `work` has the counts. SIMT rows load
        an operand whose rows are no whole vectors element by element: instructions and wavefronts of each.
alone   what a block waits for a step when nothing else runs: max(step, latency / max(1, stages - 1)) + step_cycles, the last twice
        with one stage (two barriers). Fewer than four warps leave sub-cores idle.
loop    full waves x steps x ((occupancy step)^KNEE + alone^KNEE)^(1/KNEE) + the last wave likewise with the blocks that it has left an SM:
        tile and wave quantisation are in the counts; blocks hide each other's waiting the better the more there are, not all at once.
power   multiply-adds of whole tiles / (sms fma_per_cycle[p]) x frequency / sustained[p]: the clock that the whole chip can keep up.
L2      Each block (cluster, where blocks share what they load) reads its rows of A and columns of B, and writes its tile. What several
        ask for at once costs repeat_share after the first (NVIDIA Nsight Compute's documentation: the L2 request coalescer, LRC, joins
        requests before L2). The copy engine's boxes are whole: rows and columns outside A and B are filled, and take as long as others
        (on an H200, 128 x 64 tiles of wgmma take 41 us for 8 x 4096 x 4096 of FP16, and 25 us for 128 x 4096 x 4096). What comes from
        memory passes through L2 as well: bytes / l2 rate, and what SMs ask for / (active SMs x port).
memory  What L2 does not keep: bytes / min(memory rate, active SMs x memory port). First touches lie a whole run apart when operands are
        used again and again ("hot"); cold, they all miss. Who shares what, and what comes again, in waves or stream-K: `gpu_traffic`.
tiles   A tile's start and end: block_cycles (half of it whatever the tile, half for TYPICAL_SUMS a thread), the latency of the first
        load, and its way out through the SM's port; `hidden` of it overlaps with other work in all waves but one.
partials  split-K and stream-K: accumulators written once, the tile's flag counted up (meet_cycles), and read once by the block that sums
          them, part after part, SUMS_AT_ONCE a thread and then a latency.
relayout  An operand that the kernel cannot take as it lies is copied before: read and written once at copy_share of L2's or memory's rate.
passes    pass_seconds for each re-layout, clear_seconds for the memset of split-K's and stream-K's flags.

Assumptions: blocks of a wave start together; the clock does not move; TLB misses and L2's two halves are nowhere but in fitted rates.

Worked number: SGEMM of 10240 x 4096 x 4096 with tiles of 128 x 128 on V100: 80 x 32 = 2560 blocks of 256 threads, all useful; two
blocks an SM: 16 waves of 160. A step of 8 takes 128 * 128 * 8 / 64 = 2048 cycles of an SM's FP32 pipe.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.gpu.traffic import Walk, miss, reads
from pysim.cachemodel.shared_memory.banks import SharedMemory
from pysim.cachemodel.shared_memory.gemm_shared import wavefronts
from pysim.machine.gpu import Gpu
from pysim.problem.dtypes import SIZES
from pysim.problem.gemm import Gemm
from pysim.record.cost import Cost
from pysim.record.schedule import DECOMPOSITIONS, GpuSchedule
from pysim.registry.rows import WARP, WARPGROUP, Attributes, GemmKernel

Array = NDArray[Any]

LINE_BYTES = 128
VECTOR_BYTES = 16
INSTRUCTION_BYTES = 32  # along k, of a tensor-core instruction
SUB_CORES = 4
ASYNCHRONOUS_STAGES = 3  # SIMT kernels with so many stages fill them by cp.async, with fewer through registers
REGISTER_UNIT = 256  # registers of a warp are given out in units of this many
RESERVED_SHARED_BYTES = 1024  # of each block, by the driver, from capability 8.0
KNEE = 2.0  # how sharply what waits turns into what is busy: blocks of an SM, arithmetic and traffic of a launch
TYPICAL_SUMS = 64  # of a thread: a tile of so many starts and ends in block_cycles
EDGE_INSTRUCTIONS = 4  # of an element that is loaded on its own: compare, address, load, or else zero
SUMS_AT_ONCE = 16  # partial sums that a thread reads before it waits for them
PRODUCER_THREADS = WARPGROUP  # the warpgroup that loads, of a block that has one
SUM_BYTES = {"f64": 8}  # of an accumulator; 4 for all others
RESULT_BYTES = {"s8": 4, "f8": 2}  # of an element of C; that of A and B for all others
PACKED = {"f16": 2, "s8": 4}  # multiply-adds of a lane in one SIMT instruction: half2, dp4a
DATA_PARALLEL, SPLIT_K, STREAM_K = range(len(DECOMPOSITIONS))
TERMS = ("loop", "power", "L2", "memory", "tiles", "partials", "relayout", "launch")


class Work(NamedTuple):
    """What one step of one block of a kernel costs its SM, before any efficiency: cycles of each resource."""

    arithmetic: float
    shared: float
    issue: float

    @property
    def cycles(self) -> float:
        return max(self)

    @property
    def bound_by(self) -> str:
        return max(self._fields, key=lambda name: float(getattr(self, name)))


def pipe_of(gpu: Gpu, kernel: GemmKernel) -> str | None:
    """The pipe of a machine that a kernel multiplies on, None where the machine lacks it; tensor cores accumulate in FP32."""
    return next((pipe for pipe in (f"{kernel.pipe}_f32", kernel.pipe) if pipe in gpu.fma_per_cycle), None)


def has_producer(kernel: GemmKernel) -> bool:
    """Whether a warpgroup of the block does nothing but load, with the copy engine: wgmma's kernels, and f64's of the mma family."""
    return kernel.family == "wgmma" or (kernel.family == "mma" and kernel.dtype == "f64")


def threads_of(kernel: GemmKernel) -> int:
    """Threads of a block, from the columns: those that multiply, and producers."""
    return kernel.math_threads + (PRODUCER_THREADS if has_producer(kernel) else 0)


def stage_bytes(kernel: GemmKernel) -> int:
    """Bytes of A and B that one stage keeps in shared memory, padding aside."""
    return (kernel.block_m + kernel.block_n) * kernel.block_k * SIZES[kernel.dtype]


def attributes_of(kernel: GemmKernel, known: dict[str, Attributes]) -> tuple[Attributes, bool]:
    """What the compiler made of a kernel, or what follows from its columns, and whether it is the former."""
    if kernel.name in known:
        return known[kernel.name], True
    threads = threads_of(kernel)
    words = SUM_BYTES.get(kernel.dtype, 4) // 4
    sums = kernel.block_m * kernel.block_n * words // kernel.math_threads
    fragments = 2 * (kernel.thread_m + kernel.thread_n) * words if kernel.family == "simt" else 24
    registers = min(255, (sums + fragments + 40 + 7) // 8 * 8)
    if kernel.family == "wgmma":  # all registers of the SM, divided unevenly once the block runs
        registers = min(168, 65536 // threads // 8 * 8)
    elif has_producer(kernel):  # of its half of the SM, where it has four multiplying warps
        registers = 168 if kernel.math_threads == 256 else min(128, registers)
    return Attributes(threads, registers, shared_bytes(kernel)), False


def shared_bytes(kernel: GemmKernel) -> int:
    """Bytes of shared memory of a block, as the families lay it out: stages, and where it is larger the tile of C on its way out."""
    result, size = SUM_BYTES.get(kernel.dtype, 4), SIZES[kernel.dtype]
    if has_producer(kernel):  # two barriers a stage, a flag, room to align to 1 KiB
        return kernel.stages * (stage_bytes(kernel) + 16) + 16 + 1024
    if kernel.family == "simt":
        packed = 2 if kernel.dtype == "f16" else 1  # half2 sums
        return max(kernel.stages * stage_bytes(kernel), kernel.block_m * kernel.block_n * result // packed)
    row = kernel.block_k * size
    pitch = row if row % 32 else row + 16  # rows of k are padded to an odd multiple of 16 bytes
    rows = kernel.block_m + kernel.block_n
    return max(kernel.stages * rows * pitch, kernel.block_m * (kernel.block_n + 8) * result)


def occupancy_limits(gpu: Gpu, attributes: Attributes) -> dict[str, int]:
    """Blocks that an SM could hold at once by each of its resources; 0 by shared memory where a block may not have that much."""
    warps = -(-attributes.threads // WARP)
    reserved = RESERVED_SHARED_BYTES if gpu.capability_number >= 80 else 0
    fits = attributes.shared_bytes <= gpu.shared_bytes_per_block.value
    registers = -(-attributes.registers * WARP // REGISTER_UNIT) * REGISTER_UNIT * warps
    return {
        "blocks": gpu.blocks_per_sm.value,
        "warps": gpu.warps_per_sm.value // warps,
        "registers": gpu.registers_per_sm.value // max(1, registers),
        "shared memory": gpu.shared_bytes_per_sm.value // max(1, attributes.shared_bytes + reserved) if fits else 0,
    }


def occupancy(gpu: Gpu, attributes: Attributes) -> int:
    """Blocks that an SM holds at once (CUDA C++ Programming Guide, "Multiprocessor level"): the least of `occupancy_limits`."""
    return min(occupancy_limits(gpu, attributes).values())


def resident(gpu: Gpu, kernel: GemmKernel, attributes: Attributes) -> int:
    """Blocks of a launch that an SM holds at once: its occupancy; one of the wgmma family, whose blocks stay for the whole product."""
    return min(1, occupancy(gpu, attributes)) if kernel.family == "wgmma" else occupancy(gpu, attributes)


@lru_cache(maxsize=4096)
def work(gpu: Gpu, kernel: GemmKernel, trans_a: bool = False, trans_b: bool = False, ragged: tuple[bool, ...] = (False, False)) -> Work:
    """Cycles of the SM's multiply-add pipe, shared memory and schedulers that one step of a block takes.

    Of the SIMT rows instructions and wavefronts are counted address by address (`gemm_shared`), of the others they follow from what the
    instructions read, without conflicts. `ragged` (A, B): rows are no whole vectors, and the SIMT rows load element by element.
    """
    pipe = pipe_of(gpu, kernel)
    assert pipe is not None, f"{gpu.name} has no pipe for {kernel.name}"
    products = kernel.block_m * kernel.block_n * kernel.block_k
    arithmetic = products / gpu.fma_per_cycle[pipe].value
    stored = stage_bytes(kernel) / LINE_BYTES
    copies = stage_bytes(kernel) / VECTOR_BYTES / WARP * (0 if has_producer(kernel) else 2)  # loads, and their addresses
    if kernel.family == "simt":
        counted = wavefronts(kernel, trans_a, trans_b, SharedMemory(rule=gpu.shared_rule))
        multiplies = products / PACKED.get(kernel.dtype, 1) / WARP
        single = (ragged[0] * kernel.block_m + ragged[1] * kernel.block_n) * kernel.block_k / WARP
        issue = multiplies + sum(one.instructions for one in counted.values()) + copies + EDGE_INSTRUCTIONS * single
        # lanes stay a vector apart, so each load of single elements touches as many lines as one of vectors
        shared = sum(one.total for one in counted.values()) + single * VECTOR_BYTES * WARP / LINE_BYTES
        return Work(arithmetic, float(shared), issue / gpu.schedulers_per_sm.value)
    tiles = (kernel.warp_m // kernel.thread_m) * (kernel.warp_n // kernel.thread_n)
    groups = kernel.math_threads // (WARPGROUP if kernel.family == "wgmma" else WARP)
    # wgmma: an instruction reads its rows of A and columns of B from shared memory; else fragments stay for the whole warp tile
    read = tiles * (kernel.thread_m + kernel.thread_n) if kernel.family == "wgmma" else kernel.warp_m + kernel.warp_n
    shared = groups * read * kernel.block_k * SIZES[kernel.dtype] / LINE_BYTES + stored
    loads = groups * (kernel.warp_m + kernel.warp_n) * kernel.block_k * SIZES[kernel.dtype] / (VECTOR_BYTES * WARP)
    depth = INSTRUCTION_BYTES / SIZES[kernel.dtype]  # of one instruction along k; each of a warpgroup's four warps issues it
    instructions = products / (kernel.thread_m * kernel.thread_n * depth) * (4 if kernel.family == "wgmma" else 1)
    issue = instructions + (0 if kernel.family == "wgmma" else 2 * loads) + copies
    return Work(arithmetic, shared, issue / gpu.schedulers_per_sm.value)


def family_name(gpu: Gpu, kernel: GemmKernel) -> str:
    """The key of a machine's constants for a kernel: its family with its type, or its family."""
    own = f"{kernel.family}_{kernel.dtype}"
    return own if own in gpu.model.families else kernel.family


class Needs(NamedTuple):
    """How operands must lie for a kernel: alignment of base and pitch in bytes, and whether k must be A's, B's fast dimension."""

    alignment: int
    k_major: bool


def needs(kernel: GemmKernel) -> Needs:
    """Tensor-core kernels copy 16 bytes at once, and of most types want rows along k: wgmma of all but 16-bit ones (PTX ISA, wgmma),
    mma of those that ldmatrix cannot transpose."""
    if kernel.family == "simt":
        return Needs(1, False)
    return Needs(16, kernel.dtype in ("tf32", "s8", "f8"))


class Rows(NamedTuple):
    """What the model knows of each kernel, as arrays over kernels; `tile_*` are those of a cluster, `blocks` the blocks in it."""

    kernels: tuple[GemmKernel, ...]
    attributes: tuple[Attributes, ...]
    known: tuple[bool, ...]
    works: tuple[Work, ...]
    tile_m: Array
    tile_n: Array
    block_k: Array
    stages: Array
    blocks: Array
    occupancy: Array
    step: Array
    alone: Array
    fma: Array
    sustained: Array
    alignment: Array
    k_major: Array
    whole: Array
    sums: Array
    sum_turns: Array
    launch_seconds: Array
    block_cycles: Array
    step_cycles: Array
    meet_cycles: Array
    hidden: Array


def pitches(problem: Gemm) -> tuple[int, int]:
    """Elements from one row to the next of A and B as they lie, densely."""
    return problem.m if problem.trans_a else problem.k, problem.k if problem.trans_b else problem.n


def rows_of(gpu: Gpu, problem: Gemm, kernels: Sequence[GemmKernel], known: dict[str, Attributes]) -> Rows:
    """The arrays of these kernels, for a problem's layout, on a machine that has their pipes."""
    found = [attributes_of(kernel, known) for kernel in kernels]
    ragged = tuple(pitch * SIZES[problem.dtype] % VECTOR_BYTES != 0 for pitch in pitches(problem))
    works = [work(gpu, kernel, problem.trans_a, problem.trans_b, ragged) for kernel in kernels]
    pipes = [pipe_of(gpu, kernel) or "" for kernel in kernels]
    families = [gpu.model.families[family_name(gpu, kernel)] for kernel in kernels]
    shares = [one.efficiency or family.efficiency.value for (one, _), family in zip(found, families, strict=True)]
    step = np.array([w.cycles / share for w, share in zip(works, shares, strict=True)])
    idle = np.array([max(1.0, SUB_CORES * WARP / kernel.math_threads) for kernel in kernels])

    def column(name: str) -> Array:
        return np.array([getattr(kernel, name) for kernel in kernels], float)

    def constant(name: str) -> Array:
        return np.array([getattr(family, name).value for family in families])

    return Rows(
        kernels=tuple(kernels),
        attributes=tuple(one for one, _ in found),
        known=tuple(is_known for _, is_known in found),
        works=tuple(works),
        tile_m=column("block_m") * column("cluster_m"),
        tile_n=column("block_n") * column("cluster_n"),
        block_k=column("block_k"),
        stages=column("stages"),
        blocks=column("cluster_m") * column("cluster_n"),
        occupancy=np.array([resident(gpu, kernel, one) for kernel, (one, _) in zip(kernels, found, strict=True)], float),
        step=step,
        alone=step * idle,
        fma=np.array([gpu.fma_per_cycle[pipe].value for pipe in pipes]),
        sustained=np.array([gpu.sustained_hz[pipe].value if pipe in gpu.sustained_hz else gpu.frequency_hz.value for pipe in pipes]),
        alignment=np.array([needs(kernel).alignment for kernel in kernels], float),
        k_major=np.array([needs(kernel).k_major for kernel in kernels]),
        whole=np.array([has_producer(kernel) for kernel in kernels]),
        sums=np.array([kernel.block_m * kernel.block_n / kernel.math_threads for kernel in kernels]),
        sum_turns=np.array([np.ceil(kernel.block_m * kernel.block_n / kernel.math_threads / SUMS_AT_ONCE) for kernel in kernels]),
        launch_seconds=constant("launch_seconds"),
        block_cycles=constant("block_cycles"),
        step_cycles=constant("step_cycles"),
        meet_cycles=constant("meet_cycles"),
        hidden=constant("hidden"),
    )


class Table(NamedTuple):
    """Launches, as arrays: row of `Rows`, decomposition (index of DECOMPOSITIONS), splits, walk."""

    row: Array
    kind: Array
    splits: Array
    along_n: Array
    group: Array

    def select(self, where: Array) -> "Table":
        return Table(*(column[where] for column in self))


class Shape(NamedTuple):
    """What launches compute, as the model counts it: numbers, or arrays over the rows of a table.

    A product of m x n x k; bytes of A, B and C in memory; `asks_*`: bytes of A that each column of tiles asks of L2, and of B each row of
    tiles; `result`, `sums`: bytes of one output of a tile as it leaves, and as it is summed.
    """

    m: Any
    n: Any
    k: Any
    a: Any
    b: Any
    c: Any
    asks_a: Any
    asks_b: Any
    result: Any
    sums: Any


def shape_of(problem: Gemm) -> Shape:
    """A product's own: every row of tiles asks for all of B once."""
    size, result = SIZES[problem.dtype], RESULT_BYTES.get(problem.dtype, SIZES[problem.dtype])
    a, b, c = (np.float64(x) for x in (problem.m * problem.k * size, problem.k * problem.n * size, problem.m * problem.n * result))
    return Shape(problem.m, problem.n, problem.k, a, b, c, a, b, result, SUM_BYTES.get(problem.dtype, 4))


class Prediction(NamedTuple):
    """The cost of every row of a table: `terms` in cycles by the names of TERMS, traffic in bytes, and what led to them."""

    gpu: Gpu
    problem: Gemm
    rows: Rows
    table: Table
    terms: dict[str, Array]
    cycles: Array
    seconds: Array
    facts: dict[str, Array]


def predict(gpu: Gpu, problem: Gemm, rows: Rows, table: Table, hot: bool = True, shape: Shape | None = None) -> Prediction:
    """Cost of each launch of a table; `shape` is what else than the plain product they compute (a convolution's tiles)."""
    model, frequency = gpu.model, gpu.frequency_hz.value
    shape = shape or shape_of(problem)
    facts = _counts(gpu, shape, rows, table)
    _traffic(gpu, shape, rows, table, facts, SIZES[problem.dtype], hot)
    _relayouts(problem, rows, table, facts, shape.a, shape.b)
    r = table.row
    latency = gpu.l2_latency_cycles.value + facts["miss"] * (gpu.memory_latency_cycles.value - gpu.l2_latency_cycles.value)
    full, last = _wave_cycles(gpu, rows, r, facts, latency)
    terms = {name: full[name] + last[name] for name in full}
    port, tile = gpu.port_bytes_per_cycle.value, rows.tile_m[r] * rows.tile_n[r] / rows.blocks[r]
    out = tile * shape.result / port
    waves = facts["full_waves"] + (facts["last"] > 0)
    start_and_end = rows.block_cycles[r] * (1 + rows.sums[r] / TYPICAL_SUMS) / 2
    edge = start_and_end + latency + np.where(facts["full_waves"] > 0, facts["resident"], facts["last"]) * out
    terms["tiles"] = edge * facts["turns"] * (1 + (waves - 1) * (1 - rows.hidden[r]))
    terms["partials"] = _partials(gpu, shape, rows, table, facts, latency)
    terms["relayout"] = facts["relayout_bytes"] * frequency / _copy_rate(gpu, facts["relayout_bytes"]) / model.copy_share.value
    passes = facts["relayouts"] * model.pass_seconds.value + (table.kind != DATA_PARALLEL) * model.clear_seconds.value
    terms["launch"] = (rows.launch_seconds[r] + passes) * frequency
    cycles = (
        sum(together(np.maximum(of["loop"], of["power"]), np.maximum(of["L2"], of["memory"])) for of in (full, last))
        + terms["tiles"]
        + terms["partials"]
        + terms["relayout"]
        + terms["launch"]
    )
    return Prediction(gpu, problem, rows, table, terms, cycles, cycles / frequency, facts)


def _wave_cycles(gpu: Gpu, rows: Rows, r: Array, facts: dict[str, Array], latency: Array) -> tuple[dict[str, Array], dict[str, Array]]:
    """Cycles of the main loops, of power, L2 and memory: in the full waves, and in the last one, which has fewer blocks."""
    frequency, barriers = gpu.frequency_hz.value, 1 + (rows.stages[r] == 1)
    alone = np.maximum(rows.alone[r], latency / np.maximum(1, rows.stages[r] - 1)) + barriers * rows.step_cycles[r]
    products = facts["tiles"] * rows.tile_m[r] * rows.tile_n[r] * facts["all_steps"] * rows.block_k[r]
    power = products / (gpu.sms.value * rows.fma[r]) * frequency / rows.sustained[r]
    share = facts["full_waves"] * facts["slots"] / facts["items"]
    left = facts["items"] - facts["full_waves"] * facts["slots"]
    parts = []
    for waves, blocks, active, part in (
        (facts["full_waves"], facts["resident"], facts["units"] * rows.blocks[r], share),
        (facts["last"] > 0, facts["last"], np.minimum(left, facts["units"]) * rows.blocks[r], 1 - share),
    ):
        some = np.maximum(active, 1)
        port = some * gpu.port_bytes_per_cycle.value
        l2 = np.maximum(facts["served_bytes"] / (gpu.l2_bytes_per_second.value / frequency), facts["l2_bytes"] / port)
        memory = np.minimum(gpu.memory_bytes_per_second.value / frequency, some * gpu.memory_port_bytes_per_cycle.value)
        parts.append(
            {
                "loop": waves * facts["steps"] * ((blocks * rows.step[r]) ** KNEE + alone**KNEE) ** (1 / KNEE),
                "power": power * part,
                "L2": l2 * part,
                "memory": facts["memory_bytes"] * part / memory,
            }
        )
    return parts[0], parts[1]


def together(busy: Array, transfer: Array) -> Array:
    """Cycles of arithmetic and traffic at once: they wait for each other the more the closer they are."""
    cycles: Array = (busy**KNEE + transfer**KNEE) ** (1 / KNEE)
    return cycles


def _counts(gpu: Gpu, shape: Shape, rows: Rows, table: Table) -> dict[str, Array]:
    """Tiles, items, steps and waves."""
    r = table.row
    units = np.floor(gpu.sms.value / rows.blocks[r])  # SMs, or groups of them that hold a cluster
    tiles_m, tiles_n = np.ceil(shape.m / rows.tile_m[r]), np.ceil(shape.n / rows.tile_n[r])
    all_steps, tiles = np.ceil(shape.k / rows.block_k[r]), tiles_m * tiles_n
    stream = table.kind == STREAM_K
    items = np.where(stream, table.splits, tiles * table.splits)
    steps = np.where(stream, np.ceil(tiles * all_steps / table.splits), np.ceil(all_steps / table.splits))
    slots = units * rows.occupancy[r]
    full_waves = np.floor(items / slots)
    left = items - full_waves * slots
    return {
        "tiles_m": tiles_m,
        "tiles_n": tiles_n,
        "tiles": tiles,
        "all_steps": all_steps,
        "items": items,
        "steps": steps,
        "slots": slots,
        "full_waves": full_waves,
        "last": np.ceil(left / units),
        "units": units,
        "resident": rows.occupancy[r],
        "turns": np.where(stream, 1 + np.ceil(steps / all_steps), 1.0),  # tiles that a block of stream-K touches
    }


def _traffic(gpu: Gpu, shape: Shape, rows: Rows, table: Table, facts: dict[str, Array], size: int, hot: bool) -> None:
    """Bytes through L2 and from memory; `size` of an element of A and B."""
    r, (a, b, c) = table.row, shape[3:6]
    partial = np.where(table.kind == SPLIT_K, facts["items"], np.where(table.kind == STREAM_K, 2 * table.splits, 0))
    partial = partial * rows.tile_m[r] * rows.tile_n[r] * shape.sums
    facts["partial_bytes"] = partial
    along_n, stream = table.along_n.astype(bool), table.kind == STREAM_K
    fast, slow = np.where(along_n, b, a), np.where(along_n, a, b)
    n_fast = np.where(along_n, facts["tiles_n"], facts["tiles_m"])
    n_slow = np.where(along_n, facts["tiles_m"], facts["tiles_n"])
    at_once = np.minimum(facts["tiles"], facts["slots"])
    share = np.where(stream, facts["tiles"] * facts["all_steps"] / table.splits, 0)
    walk = Walk(fast, slow, n_fast, n_slow, np.minimum(table.group, n_slow), at_once, facts["all_steps"], share)
    found = reads(gpu, walk)
    asked_fast = np.where(along_n, shape.asks_b, shape.asks_a) * n_slow  # of L2
    asked_slow = np.where(along_n, shape.asks_a, shape.asks_b) * n_fast
    repeat = gpu.model.repeat_share.value
    joined = sum(asked * (repeat + (1 - repeat) * alone) for asked, alone in ((asked_fast, found[0]), (asked_slow, found[1])))
    # the copy engine fills what lies outside an operand, and takes as long as for what lies inside
    m, n, k = facts["tiles_m"] * rows.tile_m[r], facts["tiles_n"] * rows.tile_n[r], facts["all_steps"] * rows.block_k[r]
    boxes = (m * facts["tiles_n"] + n * facts["tiles_m"]) * k * size
    outside = np.where(rows.whole[r], np.maximum(0, boxes - asked_fast - asked_slow), 0)
    others = outside + c + 2 * partial
    facts["l2_bytes"] = asked_fast + asked_slow + others
    whole = miss(gpu, a + b + c + partial)
    first = whole if hot else np.ones(())
    read_fast, read_slow = fast * (first + found.fast_again), slow * (first + found.slow_again)
    facts["memory_bytes"] = read_fast + read_slow + c * whole + 2 * partial * miss(gpu, partial)
    facts["served_bytes"] = joined + others + facts["memory_bytes"]
    facts["miss"] = np.clip(np.maximum(read_fast / asked_fast, read_slow / asked_slow), 0, 1)  # a step waits for the slower operand


def _relayouts(problem: Gemm, rows: Rows, table: Table, facts: dict[str, Array], a: Any, b: Any) -> None:
    """Operands that a kernel cannot take as they lie: another dimension is contiguous than it needs, or rows are not aligned."""
    r, size = table.row, SIZES[problem.dtype]
    copies, copied = np.zeros(len(r)), np.zeros(len(r))
    for bytes_, k_last, pitch in zip((a, b), (not problem.trans_a, problem.trans_b), pitches(problem), strict=True):
        moved = (rows.k_major[r] & (not k_last)) | (pitch * size % rows.alignment[r] != 0)
        copies += moved
        copied += moved * 2 * bytes_
    facts["relayouts"], facts["relayout_bytes"] = copies, copied


def _copy_rate(gpu: Gpu, size: Array) -> Array:
    """Bytes a second of a copy: of L2 where the data lie there, else of memory."""
    away = miss(gpu, size)
    return 1 / (away / gpu.memory_bytes_per_second.value + (1 - away) * 2 / gpu.l2_bytes_per_second.value)


def _partials(gpu: Gpu, shape: Shape, rows: Rows, table: Table, facts: dict[str, Array], latency: Array) -> Array:
    """Cycles to write a block's accumulators, and for the last block of a tile to read and sum all parts of it."""
    r, port = table.row, gpu.port_bytes_per_cycle.value
    tile = rows.tile_m[r] * rows.tile_n[r] / rows.blocks[r] * shape.sums
    stream = table.kind == STREAM_K
    left = np.where(stream, 2, np.ceil(facts["items"] / facts["units"]))  # parts that an SM's blocks leave, one after another
    meets = np.where(stream, 2, np.ceil(facts["items"] / facts["slots"]))
    parts = np.where(stream, 1 + np.ceil(table.splits / facts["tiles"]), table.splits)
    sums = np.where(stream, 1, np.ceil(facts["tiles"] / facts["units"])) * parts * (tile / port + rows.sum_turns[r] * latency)
    return np.where(table.kind == DATA_PARALLEL, 0.0, left * tile / port + meets * rows.meet_cycles[r] + sums)


def bound_by(prediction: Prediction, row: int) -> str:
    """The term that decides a launch; the loop goes by what bounds a step: arithmetic, shared, issue or latency."""
    largest = max(TERMS, key=lambda name: float(prediction.terms[name][row]))
    if largest != "loop":
        return largest
    r = prediction.table.row[row]
    facts, rows = prediction.facts, prediction.rows
    blocks = facts["resident"][row] if facts["full_waves"][row] else facts["last"][row]
    throughput = blocks * rows.step[r] * facts["steps"][row] * (facts["full_waves"][row] + (facts["last"][row] > 0))
    return "latency" if throughput < 0.9 * prediction.terms["loop"][row] else rows.works[r].bound_by


def cost_of(prediction: Prediction, row: int) -> Cost:
    """One row of a prediction as a value; `levels` says what crosses from L2 and memory, and the wavefronts of shared memory."""
    facts, r = prediction.facts, prediction.table.row[row]
    rows = prediction.rows
    step = rows.works[r]
    total = step.shared * facts["steps"][row] * facts["items"][row]
    levels = {
        "shared": {
            "wavefronts": float(total),
            "bytes": float(total * LINE_BYTES),
            "cycles": float(total / prediction.gpu.sms.value),
        }
    }
    for name, key in (("L2", "l2_bytes"), ("memory", "memory_bytes")):
        size = float(facts[key][row])
        levels[name] = {"bytes": size, "lines": size / LINE_BYTES, "cycles": float(prediction.terms[name][row])}
    terms = {name: float(prediction.terms[name][row]) for name in TERMS}
    cycles = float(prediction.cycles[row])
    return Cost(cycles, float(prediction.seconds[row]), bound_by(prediction, row), levels, terms)


def schedule_of(prediction: Prediction, row: int) -> GpuSchedule:
    """One row of a prediction's table as the launch that the library obeys."""
    table = prediction.table
    kernel = prediction.rows.kernels[table.row[row]]
    kind = DECOMPOSITIONS[int(table.kind[row])]
    return GpuSchedule(kernel.name, kind, int(table.splits[row]), bool(table.along_n[row]), int(table.group[row]))
