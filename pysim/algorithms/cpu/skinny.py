# SPDX-License-Identifier: Apache-2.0
"""Matrix products with few rows or few columns: the large matrix is read once, in place, in any layout; nothing of it is packed
(native/algorithms/skinny.c).

The kernels are the rows of `native/skinny.inc`: `axpy` if rows of the large matrix run along the results, `dot` if they run along k.
Below, F is the number of rows or columns of the small operand ("the few"), R that of the results along the large matrix, K the depth.

Worked number: gemm:1x4096x4096 reads 64 MiB of B for 33.6 MFLOP. Packing would write and read these bytes once more.

The schedule has blocks of k, strips of results, and k3, the cache level into which the matrix is prefetched. The cycles of `cost`, from the
machine's numbers alone:

kernel  A pass multiplies f of the few with tiles of n vectors of the matrix. V = ceil(R / lanes) K (axpy) or R ceil(K / lanes) (dot)
        vectors are loaded and prefetched, and one of the few per n. A pass takes the largest of f V / fma rate, V / n fma latencies, and
        the loads: whole vectors at the unit's load rate, prefetches and broadcasts at the core's highest. A load that crosses a line
        counts twice. A single pass on vectors of 64 bytes has more loads (`_loads`).
store   axpy: accumulators are loaded and stored once per block. dot: lanes are added once per block, those of a tile together, by a tree of
        additions of two shuffled vectors each (plain C: PLAIN_SUM_CYCLES a sum). Then each result is stored once.
pack    The few are copied into the kernel's order: a store per element (per 16 bytes if both orders run along k), and pack_cycles per
        run of 16 (dot) or 1 (axpy) elements.
call    call_cycles per strip and block, TILE_CALL of them per tile; and L3's latency over the vectors of a tile per line that L2 loses
        between prefetch and use.

Transfers. The matrix crosses a second time from beyond each level that cannot hold the data between a prefetch and its use; twice that if
rows of a block fall in half the sets of L1. Each run of the matrix (a row of a strip, or of a block of k) waits run_start_share of the
latency of the level that supplies it, at least L2's. axpy overlaps that with computing; rows of a tile of dot start at once. Accumulators
of axpy that L1 has lost are also written back. With prefetches into L1, a line from memory waits prefetch_line_cycles for one of L1's few
miss buffers, and dot loads right before its multiply-adds, so only OVERLAPPED of its compute overlaps. With prefetches into L2, all compute
overlaps; but tiles of less than MIN_FEW_NEAR rows or columns do not prefetch from L2 into L1, and there the rows of a block beyond
prefetch_streams wait L2's latency, shared by the loads of a tile, and nothing hides that wait. All rows of a block wait if they are more
than the sets of L1 that they share have ways (`_near_waits`).
Measured on a Zen 5, cycles for 16 accumulators of 16 lanes, whose multiply-adds take 8: 10 to 12 with 4 lines from L2 (4.4 alone), 13 to
14 with 8.

Worked number: 1x4096x4096 FP32 with B not transposed: F = 1, R = K = 4096, 16 lanes: V = 1,048,576, n = 8. Two loads per cycle take 1.1
million cycles, 64 MiB from a memory with 14.5 bytes per cycle 4.6 million.
"""

from collections.abc import Mapping
from math import gcd, log2
from typing import NamedTuple

import msgspec
import numpy as np

from pysim.algorithms.interface import Nests, direct_sum, nothing_prepared
from pysim.cachemodel.cpu import nest_text
from pysim.cachemodel.cpu.cost import Pass, latencies, traffic_of, transfer_cycles, write_allocate_cycles
from pysim.cachemodel.cpu.direct_schedules import ListedAlgorithm, Rows, Sizes, round_up, type_refusal, unpacked_plan
from pysim.cachemodel.cpu.incore import line_accesses
from pysim.cachemodel.cpu.nest import PANEL_ALIGN, ceil_div
from pysim.cachemodel.cpu.reuse.loops import Array, Extent, Loop, LoopNest, Operand, miss_share
from pysim.cachemodel.cpu.threads import Part
from pysim.machine.cpu import Machine, Unit
from pysim.problem.dtypes import SIZES
from pysim.problem.gemm import Gemm
from pysim.record.cost import Reason
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request
from pysim.record.schedule import Schedule
from pysim.record.state import NEVER, State, runs_ago
from pysim.registry.cpu import Kernel, skinny_kernels

NAME = "skinny"
COMPUTES = Gemm
tolerance, prepare = direct_sum, nothing_prepared
MAX_FEW = 32  # rows or columns: with more, packing was faster on every matrix tried
STRIP_BYTES = (1024, 2048, 4096, 8192, 16384)  # a strip of 3 KiB often spans two pages, and takes 1.1 times one of 4
AXPY_BLOCKS = (4, 8, 16, 32, 48)  # rows of the matrix
DOT_BLOCKS = (256, 512, 1024, 2048, 4096, 8192)  # columns; also all of them

MAX_TILE_VECTORS = 8  # of the matrix (native/templates/skinny.c)
PLAIN_SUM_CYCLES = 9.0  # to add up a sum of `dot` in plain C (Zen 3: 3137x8x8 takes 95 us, 23 predicted without it)
MAX_DOT_FEW = 4  # rows or columns of the few in a tile of `dot`
L1, L2 = 1, 2  # prefetch levels, k3 of a schedule
LINES_AHEAD, MIN_FEW_NEAR = 64, 3  # prefetches into L2 (native/templates/skinny.c)
OVERLAPPED = 0.4  # share of the compute of dot that transfers overlap with where prefetches go into L1
COPY_BYTES = 16  # a vector of plain C
# Start and end of a tile's loop over k, relative to a call of the nest. Tiles of dot took 30 to 45 cycles beyond their instructions, those
# of axpy 29 (Zen 4, eight products of 13 to 32 rows or columns); a tenth of a call is enough to choose their plans, and more chooses worse
# ones on Zen 5
TILE_CALL = 0.1
FEW_RUN = 16  # consecutive elements of k in the copy that `dot` reads (PYSIM_VECTOR_STEP)
CROWDED = 0.55  # of the wait for such a line in tiles of 6 rows of A; 1 to 8 rows: 0.4 to 0.8 (Zen 3, 600 plans)
_MATRIX, _ACCUMULATORS = 2, 4  # places among the operands of `described`
_MATRIX_NAMES = ("filters", "input")  # of the large operand: A, or B of few rows of A
WIDE_BYTES = 64  # a vector of AVX-512, which has 32 registers


class Shape(NamedTuple):
    """A product as the kernels see it; `dot`: rows of the large matrix run along k."""

    few: int
    results: int
    k: int
    few_rows: bool
    dot: bool

    @classmethod
    def of(cls, g: Gemm) -> "Shape":
        few_rows = g.m <= g.n
        return cls(min(g.m, g.n), max(g.m, g.n), g.k, few_rows, g.trans_b if few_rows else not g.trans_a)

    @property
    def form(self) -> str:
        """The form of the kernels that can read the matrix."""
        return "dot" if self.dot else "axpy"


def lanes_of(kernel: Kernel) -> int:
    """Lanes of a multiply-add of the kernel: those of the target's axpy kernel in the registry."""
    same = (row for row in skinny_kernels() if (row.target, row.dtype) == (kernel.target, kernel.dtype))
    return max(row.lane_windows for row in same)


def passes(few: int, kernel: Kernel) -> list[tuple[int, int]]:
    """(number of the few, vectors of the matrix in a tile) of each pass, the largest first. A tile has up to 20 accumulators, or 8 with 16
    registers. axpy divides the few evenly; dot takes as many as fit and then the rest, with the same vectors in all passes."""
    sums, most = (20, 8) if lanes_of(kernel) * SIZES[kernel.dtype] == WIDE_BYTES else (8, 4)
    most = MAX_DOT_FEW if kernel.form == "dot" else ceil_div(few, ceil_div(few, most))
    sizes = [min(most, few - at) for at in range(0, few, most)]
    widths = (MAX_TILE_VECTORS, MAX_TILE_VECTORS // 2, MAX_TILE_VECTORS // 4)
    wide = {size: next(width for width in widths if size * width <= sums) for size in sizes}
    return [(size, wide[sizes[0] if kernel.form == "dot" else size]) for size in sizes]


def _block(shape: Shape, kernel: Kernel) -> int:
    """Results of a block that all of the few visit before the next block; for dot the tile of a pass."""
    return passes(shape.few, kernel)[0][1] if shape.dot else kernel.windows


def _kernel_cycles(shape: Shape, kernel: Kernel, machine: Machine, near: Array) -> Array | float:
    """`near`: which schedules prefetch from L2 into L1, too."""
    lanes, dtype, unit, line = lanes_of(kernel), kernel.dtype, machine.unit_of(kernel.target), machine.line_bytes
    if lanes == 1:  # plain C: the rate includes the loop overhead
        return shape.few * shape.results * shape.k / unit.rate(dtype)
    vectors = shape.results * ceil_div(shape.k, lanes) if shape.dot else ceil_div(shape.results, lanes) * shape.k
    loads, latency = unit.loads_per_cycle.value, unit.fma_latency_cycles.value
    narrow_loads = max(one.loads_per_cycle.value for one in machine.core.units)
    made, size = passes(shape.few, kernel), SIZES[dtype]
    again = len(made) == 1 and lanes * size == WIDE_BYTES
    accesses = line_accesses((shape.k if shape.dot else shape.results) * size, unit.vector_bytes, line)
    cycles: Array | float = 0.0
    for few, wide in made:
        whole, narrow = _loads(few, wide, again and wide < MAX_TILE_VECTORS, shape.dot, accesses)
        taken = whole / loads + (narrow + near * (few >= MIN_FEW_NEAR)) / narrow_loads
        cycles = cycles + np.maximum(max(few / unit.rate(dtype), latency / wide), taken)
    return vectors * cycles


def _loads(few: int, wide: int, again: bool, dot: bool, accesses: float) -> tuple[float, float]:
    """Accesses to L1 per vector of the matrix in a tile of `wide` vectors, of whole vectors and of less: the vector, its prefetch, and
    1 / wide for each of the few (dot: a vector; axpy: a broadcast); `again`: one for each, since multiply-adds read them from memory.
    `accesses`: those of a load of the matrix."""
    each = few / wide
    if dot:
        return (few * accesses if again else accesses) + each, 1.0
    if again and few <= wide:
        return few * accesses, 1.0 + each
    return accesses, 1.0 + (few if again else each)


def _tiles(shape: Shape, kernel: Kernel) -> int:
    """Tiles of a block of k, in all passes; none in plain C, whose rate includes them."""
    lanes = lanes_of(kernel)
    return 0 if lanes == 1 else sum(ceil_div(shape.results, wide * (1 if shape.dot else lanes)) for _, wide in passes(shape.few, kernel))


def _copy_cycles(g: Gemm, shape: Shape, machine: Machine) -> float:
    """Copying the few into the kernel's order, in plain C: element by element, or by COPY_BYTES where runs of k stay together."""
    along_k = not g.trans_a if shape.few_rows else g.trans_b
    stores = max(unit.stores_per_cycle.value for unit in machine.core.units)
    each = COPY_BYTES / g.element_bytes if shape.dot and along_k else 1
    return shape.few * shape.k * (1 / (each * stores) + machine.core.pack_cycles.value / (FEW_RUN if shape.dot else 1))


def _store_cycles(shape: Shape, kernel: Kernel, unit: Unit, blocks: Array) -> Array:
    lanes, sums, stores = lanes_of(kernel), shape.few * shape.results, unit.stores_per_cycle.value
    if shape.dot and lanes == 1:
        return sums * (PLAIN_SUM_CYCLES * blocks + 1 / stores)
    if shape.dot:
        tile = min(lanes, passes(shape.few, kernel)[0][0] * passes(shape.few, kernel)[0][1])
        tree = (tile - 1 + log2(lanes / tile)) / tile  # additions per result, two shuffles each
        return sums * (3 * tree * blocks + 1 / stores)
    vectors = shape.few * ceil_div(shape.results, lanes)
    return vectors * ((blocks - 1) / unit.loads_per_cycle.value + blocks / stores) + sums / stores


def described(shape: Shape, rows: Rows) -> LoopNest:
    """The loop nest of native/templates/skinny.c."""
    size, few, results, depth = SIZES[rows.kernels[0].dtype], shape.few, shape.results, shape.k
    tile, once = rows.columns(lambda kernel: (_block(shape, kernel), passes(few, kernel)[0][0]))
    k, strip = rows.channels, np.minimum(_strip(rows), results)
    loops = (
        Loop("run", "run", 1, 1),
        Loop("strips", "results", strip, np.ceil(results / strip)),
        Loop("blocks", "k", k, np.ceil(depth / k)),
        Loop("tiles", "results", np.minimum(tile, strip), np.ceil(strip / tile)),
        Loop("passes", "few", once, np.ceil(few / once)),
    )
    deep, of_few, each = Extent(size, depth * size), Extent(1.0, few), Extent(1.0, results)
    matrix, vectors = _MATRIX_NAMES[shape.few_rows], _MATRIX_NAMES[not shape.few_rows]
    operands = (
        Operand(vectors, {"k": deep, "few": of_few}, "run"),
        Operand("packed", {"k": deep, "few": of_few}, "run", written=True),
        Operand(matrix, {"k": deep, "results": each}, "passes"),
        Operand("packed", {"k": deep, "few": of_few}, "passes"),
        Operand("sums", {"results": Extent(size, strip * size), "few": of_few}, "passes"),  # written back without another load
        Operand("sums", {"results": Extent(size, strip * size), "few": of_few}, "strips", after_loops=True),
        Operand("output", {"results": Extent(size, results * size), "few": of_few}, "strips", after_loops=True, written=True),
    )
    return LoopNest(loops, operands, {"run": 1, "results": results, "k": depth, "few": few}, k.size)


def _shares(machine: Machine, shape: Shape, size: int, state: State) -> Array:
    """The share of the matrix that each level supplies."""
    found = miss_share(machine.levels, np.array([float(shape.results * shape.k * size)]))[:, 0]
    found = np.where([runs_ago(state, _MATRIX_NAMES[shape.few_rows]) == NEVER or level.starts_cold for level in machine.levels], 1.0, found)
    return found - np.append(found[1:], 0.0)


def passed(g: Gemm, rows: Rows, of: Mapping[str, Array], machine: Machine, request: Request) -> Pass:
    """Costs of schedules from their in-core terms, on one core."""
    shape, size, state = Shape.of(g), g.element_bytes, request.caches
    waiting = latencies(machine)
    lost, into_l1 = miss_share(machine.levels, _prefetch_distance(shape, rows, machine)), rows.k3 == L1
    # dot: hardware prefetchers bring runs of rows from L2. axpy: the core reaches the next lines sooner, the fewer multiply-adds per line
    beside = 1 - 1 / shape.few
    lost[0] = into_l1 * (lost[min(1, len(lost) - 1)] if shape.dot else lost[0] * beside)
    nest = described(shape, rows)
    matrix, line = nest.footprint(-1, _MATRIX), machine.line_bytes
    misses = nest.misses(machine.levels, state, sum(of.values()))
    misses[:, _MATRIX] += matrix * lost
    beyond = min(1, len(lost) - 1)
    call = of["call"] + lost[beyond] * matrix / line * waiting[beyond] / MAX_TILE_VECTORS  # lines that L2 has lost are not prefetched again
    moved = traffic_of(nest, np.minimum.accumulate(misses))
    share = machine.core.run_start_share
    waits = np.maximum(share.value * waiting if share else 0.0, waiting[0]) * _shares(machine, shape, size, state)
    waits = np.outer(waits, _run_starts(shape, rows))
    if not shape.dot:  # tiles change rows one after another; accumulators that L1 has lost are written back
        waits *= 1.0 - machine.core.overlap.value * np.minimum(
            1.0, of["kernel"] / np.maximum(1.0, transfer_cycles(machine, moved).sum(axis=0))
        )
        waits += beside * transfer_cycles(machine, np.stack((np.zeros(waits.shape), moved[:, 2 * _ACCUMULATORS]), 1))
    exposed: Array | float = 0.0
    if not shape.dot:
        late, exposed = _near_waits(shape, rows, machine, _shares(machine, shape, size, state)[-1]) * matrix / line
        waits[0] += late + exposed
    if held := machine.core.prefetch_line_cycles:
        waits += into_l1 * held.value * matrix / line * _shares(machine, shape, size, state)[-1]
    covers = np.where(into_l1 & shape.dot, OVERLAPPED, 1.0)
    return Pass(machine, {**of, "call": call}, nest.names, moved, covers, waits + write_allocate_cycles(machine, moved[:, -2:]), exposed)


def _near_waits(shape: Shape, rows: Rows, machine: Machine, from_memory: float) -> Array:
    """Cycles that axpy waits for a line of the matrix because L1 has not, and no longer, what was prefetched into L2: two rows. L1's
    prefetchers follow some rows of a block, and of few results nothing else prefetches there. Rows whose pitch has a large divisor in
    common with an L1 way lie in few of its sets: if a block has more rows than those sets have ways, each line is lost before its use,
    what brought it was in vain, and each but the first vector of a tile waits for it again, on cores that wait for such lines at all
    (CROWDED crowded_line_cycles). Computing hides none of that. A core that waits for memory meanwhile loses nothing by it."""
    core, inner, made, near = machine.core, machine.levels[0], passes(shape.few, rows.kernels[0]), rows.k3 == L2
    apart = gcd(shape.results * SIZES[rows.kernels[0].dtype], inner.way_bytes)
    (lost,) = miss_share([inner], rows.channels * float(apart)) * (1 - from_memory)
    followed = np.minimum(1.0, core.prefetch_streams.value / rows.channels) if shape.few < MIN_FEW_NEAR else 1.0
    crowded = CROWDED * core.crowded_line_cycles.value if core.crowded_line_cycles else 0.0
    late = near * (1 - followed) * latencies(machine)[0] / MAX_TILE_VECTORS
    return np.stack((late, lost * (near * followed + 1 - 1 / made[0][0]) * len(made) * crowded))


def _run_starts(shape: Shape, rows: Rows) -> Array:
    """Runs of the matrix that do not continue the previous run. Rows of a tile of dot start at once: the tile waits as long as for the
    most rows that a tile has."""
    number, strips = _counts(shape, rows)
    if not shape.dot:
        return shape.k * strips * (strips > 1)
    tiles = np.ceil(shape.results / rows.columns(lambda kernel: [_block(shape, kernel)])[0])
    return tiles * MAX_TILE_VECTORS * number * (number > 1)


def _prefetch_distance(shape: Shape, rows: Rows, machine: Machine) -> Array:
    """Bytes that enter a cache between the prefetch of a line of the matrix and its use; more if rows share sets."""
    size, way = SIZES[rows.kernels[0].dtype], machine.levels[0].way_bytes
    (block,) = rows.columns(lambda kernel: [_block(shape, kernel)])
    own = LINES_AHEAD * machine.line_bytes * (block if shape.dot else rows.channels)
    if shape.dot:
        return np.where(rows.k3 == L1, 2.0 * size * rows.channels * block, own)
    strip = np.minimum(_strip(rows), shape.results) * size
    crowd = np.maximum(1.0, gcd(shape.results * size, way) / strip)
    return np.where(rows.k3 == L1, 2.0 * rows.channels * strip * crowd, own) + shape.few * strip


def _strip(rows: Rows) -> Array:
    """Results of a strip."""
    return rows.k2 * rows.columns(lambda kernel: [kernel.windows])[0]


def _counts(shape: Shape, rows: Rows) -> tuple[Array, Array]:
    """(blocks of k, strips of results)."""
    return np.ceil(shape.k / rows.channels), np.ceil(shape.results / _strip(rows))


def terms(g: Gemm, rows: Rows, machine: Machine, layout: Layout) -> tuple[Array | float, ...]:
    """kernel, call, store, pack."""
    (kernel,) = rows.kernels
    shape, unit = Shape.of(g), machine.unit_of(kernel.target)
    compute = _kernel_cycles(shape, kernel, machine, rows.k3 == L2)
    number, strips = _counts(shape, rows)
    call = (number * strips + TILE_CALL * number * _tiles(shape, kernel)) * machine.core.call_cycles.value
    pack = _copy_cycles(g, shape, machine)
    return compute, call, _store_cycles(shape, kernel, unit, number), pack


# The interface of an algorithm


def refuses(problem: Gemm, machine: Machine, layout: Layout) -> Reason | None:
    if reason := type_refusal(problem.dtype, skinny_kernels()):
        return reason
    if min(problem.m, problem.n) > MAX_FEW:
        return Reason("shape", f"it takes products with at most {MAX_FEW} rows or columns; this has {problem.m} and {problem.n}")
    return None


def _unfit(problem: Gemm, kernel: Kernel, layout: Layout) -> Reason | None:
    if kernel.form == Shape.of(problem).form:
        return None
    return Reason("shape", "it reads the large matrix along the other dimension")


def _nearest(problem: Gemm, kernel: Kernel, schedule: Schedule, layout: Layout) -> Sizes:
    block = min(problem.k, round_up(schedule.channels, FEW_RUN if kernel.form == "dot" else 1))
    return block, max(1, schedule.k2), min(max(L1, schedule.k3), L2)


def _schedules(problem: Gemm, kernel: Kernel, request: Request) -> list[Sizes]:
    """Blocks of k (channels) and strips of results (k2, in windows of the kernel): strips of STRIP_BYTES, and the largest one whose
    accumulators fit in a quarter of L2. Prefetches go into L1, or into L2 (k3) where those into L1 wait."""
    shape, size = Shape.of(problem), problem.element_bytes
    most = ceil_div(shape.results, kernel.windows)
    largest = min(most, max(1, request.cpu.outer.size_bytes // 4 // (shape.few * kernel.windows * size)))
    strips = {largest, *(max(1, run // (kernel.windows * size)) for run in STRIP_BYTES if run < largest * kernel.windows * size)}
    blocks = (*DOT_BLOCKS, shape.k) if shape.dot else AXPY_BLOCKS
    tried = [max(strips)] if shape.dot else sorted(strips)
    levels = (L1, L2) if request.cpu.core.prefetch_line_cycles else (L1,)
    return [(k, strip, level) for k in sorted({min(block, shape.k) for block in blocks}) for strip in tried for level in levels]


_LISTED = ListedAlgorithm(NAME, skinny_kernels, _schedules, _nearest, terms, passed, _unfit, latencies=True)
least_cycles, candidates, cost = _LISTED.least_cycles, _LISTED.candidates, _LISTED.cost


def workspace_bytes(problem: Gemm, schedule: Schedule, layout: Layout) -> int:
    """The copy of the few and the accumulators of a strip, each in whole lines (native/algorithms/skinny.c)."""
    shape, size = Shape.of(problem), problem.element_bytes
    step = FEW_RUN if shape.dot else 1
    copy = ceil_div(shape.k, step) * step * shape.few * size
    strip = min(ceil_div(shape.results, schedule.windows), schedule.k2) * schedule.windows * size
    pitch = ceil_div(strip, PANEL_ALIGN) * PANEL_ALIGN + PANEL_ALIGN
    return ceil_div(copy, PANEL_ALIGN) * PANEL_ALIGN + PANEL_ALIGN + pitch * shape.few


def largest_part(problem: Gemm, schedule: Schedule, threads: int) -> Part:
    """Threads divide the results into whole tiles (native/algorithms/skinny.c)."""
    shape = Shape.of(problem)
    tiles = ceil_div(shape.results, schedule.windows)
    most = ceil_div(tiles, min(threads, tiles))
    results = min(shape.results, max(shape.few + 1, most * schedule.windows))  # with fewer results they would be "the few"
    part = msgspec.structs.replace(problem, **{"n" if shape.few_rows else "m": results})
    return Part(part, msgspec.structs.replace(schedule, k2=min(schedule.k2, ceil_div(results, schedule.windows))))


def describe(plan: Plan) -> Description:
    w, _, kernel = unpacked_plan(plan)
    shape = Shape.of(w)
    few, large = ("rows of A", "B") if shape.few_rows else ("columns of B", "A")
    lanes = "lanes along k, added at the end of each block" if shape.dot else "lanes along results"
    inner = f"{kernel.name} on {kernel.windows} results x up to {kernel.filters} {few}: {lanes}"
    summary = f"matrix product with few {few}, {large} read once in place"
    return nest_text.describe(plan, summary, nests(plan).loops[0], inner, peak=nest_text.peak_of(plan, lanes_of(kernel)))


def nests(plan: Plan) -> Nests:
    w, schedule, kernel = unpacked_plan(plan)
    return Nests((described(Shape.of(w), Rows.alone(kernel, schedule)),))
