# SPDX-License-Identifier: Apache-2.0
"""Products of few rows or few columns: the large operand is read once, where it lies, in any layout; nothing of it is packed.

The kernels are the rows of `native/conv/skinny.inc`, `axpy` where rows of the large matrix lie along the results and `dot` where they lie
along k.

Worked number: gemm:1x4096x4096 reads 64 MiB of B for 33.6 MFLOP. Packing would write and read them once more.

What they cost (`native/conv/skinny.c`):

    cycles as in `cost`, of these terms; F few, R results, matrix and few both K deep, in blocks of k and strips of results

kernel  For each pass over f of the few, tiles of n vectors of the matrix: V = ceil(R / lanes) K vectors (axpy) or R ceil(K / lanes) (dot)
        are loaded and asked for ahead, and a vector of the few for each n. A pass lasts max(f V / fma rate, (2 + f / n) V / load rate,
        V / n fma latencies). Where it is the only one on vectors of 64 bytes it loads more (`_loads`).
store   axpy: sums are loaded and stored once a block. dot: lanes are added once a block, those of a tile together: a tree of additions,
        each of two shuffled vectors. Then each result is stored once.
pack    The few are copied in the order of the kernel, an element a store, in runs of 16 (dot) or 1 (axpy), each with pack_cycles beyond.
call    call_cycles for each strip and block, and for each line that L2 loses between its prefetch and its use L3's latency over the
        vectors of a tile.

What crosses between levels follows from the description of the loops (`described`, `loops`); beside that the matrix comes once more from
beyond a level that cannot hold what is multiplied and what was asked for ahead, twice as much where rows of a block lie in half the sets of
L1. Runs of the matrix that do not follow one another (rows of a strip, rows of a block of k) wait run_start_share of the latency of the
level that supplies it, at least L2's; computing hides that of axpy, rows of a tile of dot begin at once. Sums of axpy that L1 has lost
also go back. Loads of dot stand right before their multiply-adds, so little hides them: COVERS of the computing.
Measured on a Zen 5, cycles for 16 sums of 16 lanes, whose multiply-adds take 8: 10 to 12 with 4 lines from L2 (4.4 alone), 13 to 14 with 8.

Worked number: 1x4096x4096 FP32 with B not transposed: F = 1, R = K = 4096, 16 lanes: V = 1,048,576, n = 8, so 2 loads a cycle take
1.1 million cycles, and 64 MiB from a memory of 14.5 bytes a cycle 4.6 million.
"""

from collections.abc import Iterator, Mapping
from math import gcd, log2
from typing import NamedTuple

import msgspec
import numpy as np

from pysim.algorithms.contract import direct_sum, nothing_prepared
from pysim.cachemodel.cpu import words
from pysim.cachemodel.cpu.cost import Pass, latencies, traffic_of, transfer_cycles, write_allocate_cycles
from pysim.cachemodel.cpu.listed import ListedAlgorithm, Rows, kernel_schedule, round_up, type_refusal, unpacked_plan
from pysim.cachemodel.cpu.loops import Array, Extent, Loop, LoopNest, Operand, miss_share
from pysim.cachemodel.cpu.nest import PANEL_ALIGN, ceil_div
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
MOST_FEW = 32  # rows or columns: with more of them packing has been worth its while on every matrix that was tried
RUNS = (1024, 2048, 4096, 8192, 16384)  # bytes of a row: a strip of 3 KiB lies in two pages as often as not, and takes 1.1 times one of 4
AXPY_BLOCKS = (4, 8, 16, 32)  # rows of the matrix
DOT_BLOCKS = (256, 512, 1024, 2048, 4096, 8192)  # columns, and all of them

WIDEST = 8  # vectors of the matrix in a tile (native/conv/skinny_kernels.h)
MOST_DOT = 4  # of the few that a tile of `dot` takes
COVERS = 0.4  # of computing (dot)
FEW_STEP = 16  # elements of k that lie together in the copy that `dot` reads (PYSIM_FEW_STEP)
_MATRIX, _SUMS = 2, 4  # of the operands of `described`
WIDE_BYTES = 64  # of a vector of AVX-512, which has 32 of them


class Shape(NamedTuple):
    """A product as the kernels see it; `dot`: rows of the matrix lie along k."""

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
        """Of the kernels that can read the matrix."""
        return "dot" if self.dot else "axpy"


def lanes_of(kernel: Kernel) -> int:
    """Elements that a multiply-add of the kernel takes, as the registry says of its target's other form."""
    same = (row for row in skinny_kernels() if (row.target, row.dtype) == (kernel.target, kernel.dtype))
    return max(row.lane_windows for row in same)


def passes(few: int, kernel: Kernel) -> list[tuple[int, int]]:
    """(how many of the few, vectors of the matrix in a tile) of each pass, the largest first; tiles of up to 20 sums, of 8 where registers
    are 16. axpy: as equal numbers as can be; dot: of as many as a tile takes, and the rest, all of as many rows."""
    sums, most = (20, 8) if lanes_of(kernel) * SIZES[kernel.dtype] == WIDE_BYTES else (8, 4)
    most = MOST_DOT if kernel.form == "dot" else ceil_div(few, ceil_div(few, most))
    sizes = [min(most, few - at) for at in range(0, few, most)]
    wide = {size: next(wide for wide in (WIDEST, WIDEST // 2, WIDEST // 4) if size * wide <= sums) for size in sizes}
    return [(size, wide[sizes[0] if kernel.form == "dot" else size]) for size in sizes]


def _block(shape: Shape, kernel: Kernel) -> int:
    """Results that all of the few pass over before the next: of dot as many as a pass takes at once."""
    return passes(shape.few, kernel)[0][1] if shape.dot else kernel.windows


def _kernel_cycles(shape: Shape, kernel: Kernel, unit: Unit) -> float:
    lanes, dtype = lanes_of(kernel), kernel.dtype
    if lanes == 1:  # plain C: what a loop needs besides is in the rate
        return shape.few * shape.results * shape.k / unit.rate(dtype)
    vectors = shape.results * ceil_div(shape.k, lanes) if shape.dot else ceil_div(shape.results, lanes) * shape.k
    loads, latency = unit.loads_per_cycle.value, unit.fma_latency_cycles.value
    made = passes(shape.few, kernel)
    again = len(made) == 1 and lanes * SIZES[dtype] == WIDE_BYTES
    taken = (_loads(few, wide, again and wide < WIDEST, shape.dot) for few, wide in made)
    each = (max(few / unit.rate(dtype), of / loads, latency / wide) for (few, wide), of in zip(made, taken, strict=True))
    return vectors * sum(each)


def _loads(few: int, wide: int, again: bool, dot: bool) -> float:
    """Loads of a vector of the matrix in a tile of so many vectors: it, its prefetch, and of each of the few a share of one, or, where
    multiply-adds take an operand from memory `again`, one."""
    if not again:
        return 2 + few / wide
    return 2 + few if few > wide and not dot else 1 + few + few / wide


def _store_cycles(shape: Shape, kernel: Kernel, unit: Unit, blocks: int) -> float:
    lanes, sums, stores = lanes_of(kernel), shape.few * shape.results, unit.stores_per_cycle.value
    if shape.dot:
        tile = min(lanes, passes(shape.few, kernel)[0][0] * passes(shape.few, kernel)[0][1])
        tree = (tile - 1 + log2(lanes / tile)) / tile  # additions a sum, two shuffles each
        return sums * (3 * tree * blocks + 1 / stores)
    vectors = shape.few * ceil_div(shape.results, lanes)
    return vectors * ((blocks - 1) / unit.loads_per_cycle.value + blocks / stores) + sums / stores


def described(shape: Shape, rows: Rows) -> LoopNest:
    """The loops of native/conv/skinny_kernels.h."""
    size, few, results, depth = SIZES[rows[0][0].dtype], shape.few, shape.results, shape.k
    k, strip, tile, once = np.array(
        [(of.channels, of.k2 * kernel.windows, _block(shape, kernel), passes(few, kernel)[0][0]) for kernel, of in rows], dtype=np.float64
    ).T
    strip = np.minimum(strip, results)
    loops = (
        Loop("run", "run", 1, 1),
        Loop("strips", "results", strip, np.ceil(results / strip)),
        Loop("blocks", "k", k, np.ceil(depth / k)),
        Loop("tiles", "results", np.minimum(tile, strip), np.ceil(strip / tile)),
        Loop("passes", "few", once, np.ceil(few / once)),
    )
    deep, of_few, each = Extent(size, depth * size), Extent(1.0, few), Extent(1.0, results)
    matrix, vectors = ("filters", "input") if not shape.few_rows else ("input", "filters")
    operands = (
        Operand(vectors, {"k": deep, "few": of_few}, "run"),
        Operand("packed", {"k": deep, "few": of_few}, "run", written=True),
        Operand(matrix, {"k": deep, "results": each}, "passes"),
        Operand("packed", {"k": deep, "few": of_few}, "passes"),
        Operand("sums", {"results": Extent(size, strip * size), "few": of_few}, "passes"),  # their way back costs no load
        Operand("sums", {"results": Extent(size, strip * size), "few": of_few}, "strips", after_loops=True),
        Operand("output", {"results": Extent(size, results * size), "few": of_few}, "strips", after_loops=True, written=True),
    )
    return LoopNest(loops, operands, {"run": 1, "results": results, "k": depth, "few": few}, len(rows))


def _shares(machine: Machine, shape: Shape, size: int, state: State) -> Array:
    """How much of the matrix lies in each supplier."""
    found = miss_share(machine.levels, np.array([float(shape.results * shape.k * size)]))[:, 0]
    found = np.where([runs_ago(state, "filters") == NEVER or level.forgets for level in machine.levels], 1.0, found)
    return found - np.append(found[1:], 0.0)


def passed(g: Gemm, rows: Rows, of: Mapping[str, Array], machine: Machine, request: Request) -> Pass:
    """A product by kernels under schedules with their terms, on one core."""
    shape, size, state = Shape.of(g), g.element_bytes, request.state
    waiting = latencies(machine)
    lost = miss_share(machine.levels, np.array([_between(shape, *row, machine) for row in rows]))
    # the hardware brings runs of rows from L2 (dot); a core's window reaches the next lines there the sooner the less it multiplies each
    beside = 1 - 1 / shape.few
    lost[0] = lost[min(1, len(lost) - 1)] if shape.dot else lost[0] * beside
    nest = described(shape, rows)
    matrix, line = nest.footprint(-1, _MATRIX), machine.line_bytes
    misses = nest.misses(machine.levels, state)
    misses[:, _MATRIX] += matrix * lost
    beyond = min(1, len(lost) - 1)
    call = of["call"] + lost[beyond] * matrix / line * waiting[beyond] / WIDEST  # of lines that L2 has lost nobody asks again in time
    moved = traffic_of(nest, np.minimum.accumulate(misses))
    starts = np.array([_starts(shape, *row) for row in rows])
    share = machine.core.run_start_share
    waits = np.outer(np.maximum(share.value * waiting if share else 0.0, waiting[0]) * _shares(machine, shape, size, state), starts)
    if not shape.dot:  # whose tiles leave one row after another; and sums that L1 has lost go back there
        waits *= 1.0 - machine.core.overlap.value * np.minimum(
            1.0, of["kernel"] / np.maximum(1.0, transfer_cycles(machine, moved).sum(axis=0))
        )
        waits += beside * transfer_cycles(machine, np.stack((np.zeros(waits.shape), moved[:, 2 * _SUMS]), 1))
    covers = COVERS if shape.dot else 1.0
    return Pass(machine, {**of, "call": call}, nest.names, moved, covers, waits + write_allocate_cycles(machine, moved[:, -2:]))


def _starts(shape: Shape, kernel: Kernel, schedule: Schedule) -> int:
    """Runs of the matrix that begin apart from where the last one ended."""
    number, strips = _counts(shape, kernel, schedule)
    return shape.results * number * (number > 1) if shape.dot else shape.k * strips * (strips > 1)


def _between(shape: Shape, kernel: Kernel, schedule: Schedule, machine: Machine) -> float:
    """Bytes that pass through a cache between the prefetch of a line of the matrix and its use, as if more where rows share sets."""
    size, way = SIZES[kernel.dtype], machine.levels[0].way_bytes
    if shape.dot:
        return 2.0 * size * schedule.channels * _block(shape, kernel)
    strip = min(schedule.k2 * kernel.windows, shape.results) * size
    crowd = max(1.0, gcd(shape.results * size, way) / strip)
    return 2.0 * schedule.channels * strip * crowd + shape.few * strip


def _counts(shape: Shape, kernel: Kernel, schedule: Schedule) -> tuple[int, int]:
    """Blocks of k and strips of results."""
    return ceil_div(shape.k, schedule.channels), ceil_div(shape.results, schedule.k2 * kernel.windows)


def terms(g: Gemm, kernel: Kernel, schedule: Schedule, machine: Machine, layout: Layout) -> tuple[float, float, float, float]:
    """kernel, call, store, pack."""
    shape, unit = Shape.of(g), machine.unit_of(kernel.target)
    number, strips = _counts(shape, kernel, schedule)
    call = number * strips * machine.core.call_cycles.value
    pack = shape.few * shape.k * (1 / unit.stores_per_cycle.value + machine.core.pack_cycles.value / (FEW_STEP if shape.dot else 1))
    return _kernel_cycles(shape, kernel, unit), call, _store_cycles(shape, kernel, unit, number), pack


# The answers of the contract


def refuses(problem: Gemm, machine: Machine, layout: Layout) -> Reason | None:
    if reason := type_refusal(problem.dtype, skinny_kernels()):
        return reason
    if min(problem.m, problem.n) > MOST_FEW:
        return Reason("shape", f"it takes up to {MOST_FEW} rows or columns; this has {problem.m} and {problem.n}")
    return None


def _unfit(problem: Gemm, kernel: Kernel, layout: Layout) -> Reason | None:
    if kernel.form == Shape.of(problem).form:
        return None
    return Reason("shape", "rows of the large matrix do not lie as it reads them")


def _nearest(problem: Gemm, kernel: Kernel, schedule: Schedule, layout: Layout) -> Schedule:
    k = min(problem.k, round_up(schedule.channels, FEW_STEP if kernel.form == "dot" else 1))
    return kernel_schedule(kernel, k, max(1, schedule.k2))


def _schedules(problem: Gemm, kernel: Kernel, request: Request) -> Iterator[Schedule]:
    """Blocks of k (channels) and strips of results (k2, in windows of the kernel) that may be best: strips of RUNS, or of all whose sums
    take up to a quarter of L2."""
    shape, size = Shape.of(problem), problem.element_bytes
    most = ceil_div(shape.results, kernel.windows)
    largest = min(most, max(1, request.cpu.outer.size_bytes // 4 // (shape.few * kernel.windows * size)))
    strips = {largest, *(max(1, run // (kernel.windows * size)) for run in RUNS if run < largest * kernel.windows * size)}
    blocks = (*DOT_BLOCKS, shape.k) if shape.dot else AXPY_BLOCKS
    for k in sorted({min(block, shape.k) for block in blocks}):
        for strip in [max(strips)] if shape.dot else sorted(strips):
            yield kernel_schedule(kernel, k, strip)


_LISTED = ListedAlgorithm(NAME, skinny_kernels, _schedules, _nearest, terms, passed, _unfit, latencies=True)
least_cycles, candidates, cost = _LISTED.least_cycles, _LISTED.candidates, _LISTED.cost


def workspace_bytes(problem: Gemm, schedule: Schedule, layout: Layout) -> int:
    """The copy of the few and the sums of a strip, each in whole lines (native/conv/skinny.c)."""
    shape, size = Shape.of(problem), problem.element_bytes
    step = FEW_STEP if shape.dot else 1
    copy = ceil_div(shape.k, step) * step * shape.few * size
    strip = min(ceil_div(shape.results, schedule.windows), schedule.k2) * schedule.windows * size
    pitch = ceil_div(strip, PANEL_ALIGN) * PANEL_ALIGN + PANEL_ALIGN
    return ceil_div(copy, PANEL_ALIGN) * PANEL_ALIGN + PANEL_ALIGN + pitch * shape.few


def largest_part(problem: Gemm, schedule: Schedule, threads: int) -> Part:
    """Some of the results, whole tiles of them (native/conv/skinny.c)."""
    shape = Shape.of(problem)
    tiles = ceil_div(shape.results, schedule.windows)
    most = ceil_div(tiles, min(threads, tiles))
    results = min(shape.results, max(shape.few + 1, most * schedule.windows))  # no more than the few would be the few
    part = msgspec.structs.replace(problem, **{"n" if shape.few_rows else "m": results})
    return Part(part, msgspec.structs.replace(schedule, k2=min(schedule.k2, ceil_div(results, schedule.windows))))


def describe(plan: Plan) -> Description:
    w, schedule, kernel = unpacked_plan(plan)
    shape = Shape.of(w)
    few, large = ("rows of A", "B") if shape.few_rows else ("columns of B", "A")
    lanes = "lanes hold k, added up at the end of each block" if shape.dot else "lanes hold results"
    inner = f"{kernel.name} on {kernel.windows} results x up to {kernel.filters} {few}: {lanes}"
    summary = f"matrix product of few rows or columns, {large} read once as it lies"
    return words.describe(plan, summary, described(shape, [(kernel, schedule)]), inner, peak=words.peak_of(plan, lanes_of(kernel)))
