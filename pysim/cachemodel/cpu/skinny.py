# SPDX-License-Identifier: Apache-2.0
"""What a product of few rows or columns costs whose kernels read the large matrix where it lies (`native/conv/skinny.c`).

    cycles as in `cost`, of these terms; F few, R results, matrix and few both K deep, in blocks of k and strips of results

kernel  For each pass over f of the few, tiles of n vectors of the matrix: V = ceil(R / lanes) K vectors (axpy) or R ceil(K / lanes) (dot)
        are loaded and asked for ahead, and a vector of the few for each n. A pass lasts max(f V / fma rate, (2 + f / n) V / load rate,
        V / n fma latencies).
store   axpy: sums are loaded and stored once a block. dot: lanes are added once a block, those of a tile together: a tree of additions,
        each of two shuffled vectors. Then each result is stored once.
pack    The few are copied in the order of the kernel, an element a store, in runs of 16 (dot) or 1 (axpy), each with pack_cycles beyond.
call    call_cycles for each strip and block, and for each run of the matrix a latency: that of the level which supplies it for a row of a
        strip, all rows of a block (axpy) or of a tile (dot) where they are whole and so lie one behind the other; L2's for a row of a block
        (dot), as its lines were asked for a tile before.

What crosses between levels follows from the description of the loops (`described`, `loops`); beside that the matrix comes once more from
beyond a level that cannot hold what is multiplied and what was asked for ahead. Loads of dot stand right before their multiply-adds, so
little hides them: COVERS of the computing. Measured on a Zen 5, cycles for 16 sums of 16 lanes, whose multiply-adds take 8: 10 to 12 with 4
lines from L2 (4.4 alone), 13 to 14 with 8; 64 MiB from memory in a loop of loads and four multiply-adds a line: 2.9 ms, 1.7 and 1.9 alone.

Worked number: 1x4096x4096 FP32 with B not transposed: F = 1, R = K = 4096, 16 lanes: V = 1,048,576, n = 8, so 2 loads a cycle take
1.1 million cycles, and 64 MiB from a memory of 8.7 bytes a cycle 7.7 million.
"""

from collections.abc import Sequence
from math import log2
from typing import NamedTuple

import numpy as np

from pysim.cachemodel.cpu.cost import Pass, crossed, fills, suppliers
from pysim.cachemodel.cpu.loops import Extent, Loop, LoopNest, Operand, missing
from pysim.cachemodel.cpu.nest import ceil_div
from pysim.machine.cpu import Machine, Unit
from pysim.problem.dtypes import SIZES
from pysim.problem.gemm import Gemm
from pysim.registry.cpu import Kernel, skinny_kernels

WIDEST = 8  # vectors of the matrix in a tile (native/conv/skinny_kernels.h)
COVERS = 0.4  # of computing (dot)
FEW_STEP = 16  # elements of k that lie together in the copy that `dot` reads (PYSIM_FEW_STEP)
_MATRIX = 2  # of the operands of `described`
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


class Blocks(NamedTuple):
    """Block of k, and strip of results as so many windows of the kernel."""

    k: int
    strip: int


def lanes_of(kernel: Kernel) -> int:
    """Elements that a multiply-add of the kernel takes, as the registry says of its target's other form."""
    same = (row for row in skinny_kernels() if (row.target, row.dtype) == (kernel.target, kernel.dtype))
    return max(row.lane_windows for row in same)


def passes(few: int, kernel: Kernel) -> list[tuple[int, int]]:
    """(how many of the few, vectors of the matrix in a tile) of each pass: tiles of 16 sums, of 8 where registers are 16."""
    sums = 16 if lanes_of(kernel) * SIZES[kernel.dtype] == WIDE_BYTES else 8
    found, left, size = [], few, kernel.filters
    while left:
        if size <= left:
            found.append((size, min(WIDEST, sums // size)))
            left -= size
        else:
            size //= 2
    return found


def _kernel_cycles(shape: Shape, kernel: Kernel, unit: Unit) -> float:
    lanes, dtype = lanes_of(kernel), kernel.dtype
    if lanes == 1:  # plain C: what a loop needs besides is in the rate
        return shape.few * shape.results * shape.k / unit.rate(dtype)
    vectors = shape.results * ceil_div(shape.k, lanes) if shape.dot else ceil_div(shape.results, lanes) * shape.k
    loads, latency = unit.loads_per_cycle.value, unit.fma_latency_cycles.value
    each = (max(few / unit.rate(dtype), (2 + few / wide) / loads, latency / wide) for few, wide in passes(shape.few, kernel))
    return vectors * sum(each)


def _store_cycles(shape: Shape, kernel: Kernel, unit: Unit, blocks: int) -> float:
    lanes, sums, stores = lanes_of(kernel), shape.few * shape.results, unit.stores_per_cycle.value
    if shape.dot:
        tile = min(lanes, passes(shape.few, kernel)[0][0] * passes(shape.few, kernel)[0][1])
        tree = (tile - 1 + log2(lanes / tile)) / tile  # additions a sum, two shuffles each
        return sums * (3 * tree * blocks + 1 / stores)
    vectors = shape.few * ceil_div(shape.results, lanes)
    return vectors * ((blocks - 1) / unit.loads_per_cycle.value + blocks / stores) + sums / stores


def described(shape: Shape, rows: Sequence[tuple[Kernel, Blocks]]) -> LoopNest:
    """The loops of native/conv/skinny_kernels.h."""
    size, few, results, depth = SIZES[rows[0][0].dtype], shape.few, shape.results, shape.k
    k, strip, tile, once = np.array(
        [(of.k, of.strip * kernel.windows, kernel.windows, passes(few, kernel)[0][0]) for kernel, of in rows], dtype=np.float64
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
        Operand("sums", {"results": Extent(size, strip * size), "few": of_few}, "strips", after=True),
        Operand("output", {"results": Extent(size, results * size), "few": of_few}, "strips", after=True, written=True),
    )
    return LoopNest(loops, operands, {"run": 1, "results": results, "k": depth, "few": few}, len(rows))


def _latency(machine: Machine, shape: Shape, size: int, hot: bool) -> float:
    """Cycles until the first line of the matrix is there, from where it lies."""
    found = missing(machine.levels, np.array([float(shape.results * shape.k * size)]))[:, 0]
    found = np.where([not hot or level.forgets for level in machine.levels], 1.0, found)
    own = found - np.append(found[1:], 0.0)
    places = [place.latency_cycles.value for place in suppliers(machine).values()]
    return float(np.dot(places, own))


def skinny_pass(g: Gemm, rows: Sequence[tuple[Kernel, Blocks]], machine: Machine, hot: bool = True) -> Pass:
    """A product by kernels under schedules, on one core."""
    shape = Shape.of(g)
    latency = _latency(machine, shape, SIZES[g.dtype], hot)
    terms = np.array([_terms(shape, kernel, blocks, machine, latency) for kernel, blocks in rows]).T
    nest = described(shape, rows)
    misses, size = nest.misses(machine.levels, hot), SIZES[g.dtype]
    widths = [passes(shape.few, kernel)[0][1] if shape.dot else min(of.strip * kernel.windows, shape.results) for kernel, of in rows]
    pieces = np.array([2.0 * size * of.k * width for width, (_, of) in zip(widths, rows, strict=True)])
    misses[1:, _MATRIX] += nest.footprint(-1, _MATRIX) * missing(machine.levels, pieces)[1:]
    moved = crossed(nest, np.minimum.accumulate(misses))
    names, covers = ("kernel", "call", "store", "pack"), COVERS if shape.dot else 1.0
    return Pass(machine, dict(zip(names, terms, strict=True)), nest.names, moved, covers, fills(machine, moved[:, -2:]))


def _terms(shape: Shape, kernel: Kernel, blocks: Blocks, machine: Machine, latency: float) -> tuple[float, float, float, float]:
    """kernel, call, store, pack."""
    unit = machine.unit(kernel.target)
    assert unit is not None
    number, strips = ceil_div(shape.k, blocks.k), ceil_div(shape.results, blocks.strip * kernel.windows)
    if shape.dot:
        tiles = ceil_div(shape.results, passes(shape.few, kernel)[0][1])
        near = machine.levels[min(1, len(machine.levels) - 1)].latency_cycles.value
        waits = shape.results * number * near if number > 1 else tiles * latency
    else:
        waits = (shape.k * strips if strips > 1 else number) * latency
    call = number * strips * machine.core.call_cycles.value + waits
    pack = shape.few * shape.k * (1 / unit.stores_per_cycle.value + machine.core.pack_cycles.value / (FEW_STEP if shape.dot else 1))
    return _kernel_cycles(shape, kernel, unit), call, _store_cycles(shape, kernel, unit, number), pack
