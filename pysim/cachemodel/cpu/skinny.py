# SPDX-License-Identifier: Apache-2.0
"""What a product of few rows or columns costs whose kernels read the large matrix where it lies (`native/conv/skinny.c`).

    cycles as in `streams`, of these terms; F few, R results, matrix and few both K deep, in blocks of k and strips of results

kernel  For each pass over f of the few, tiles of n vectors of the matrix: V = ceil(R / lanes) K vectors (axpy) or R ceil(K / lanes) (dot)
        are loaded and asked for ahead, and a vector of the few for each n. A pass lasts max(f V / fma rate, (2 + f / n) V / load rate,
        V / n fma latencies).
store   axpy: sums are loaded and stored once a block. dot: lanes are added once a block, in log2(lanes) additions and as many shuffles.
        Then each result is stored once.
pack    The few are copied in the order of the kernel, an element a store.
call    call_cycles for each strip and block, and the latency of the level that supplies the matrix for each run of it: a row of a strip or
        of a block, all rows of a block (axpy) or of a tile (dot) where they are whole and so lie one behind the other.
matrix  comes once from where a whole run fits, and once more from beyond a level that cannot hold a block and the one that was asked for
        ahead.
few     dot: read again for each tile of rows from where a block of them fits.
sums    axpy: read and written once a block, from where a block of the matrix fits beside them.

Worked number: 1x4096x4096 FP32 with B not transposed: F = 1, R = K = 4096, 16 lanes: V = 1,048,576, n = 8, so 2 loads a cycle take
1.1 million cycles, and 64 MiB from a memory of 8.7 bytes a cycle 7.7 million.
"""

from math import log2
from typing import NamedTuple

from pysim.cachemodel.cpu.nest import ceil_div
from pysim.cachemodel.cpu.streams import missing, total
from pysim.machine.cpu import Machine, Unit
from pysim.problem.dtypes import SIZES
from pysim.problem.gemm import Gemm
from pysim.record.cost import Cost
from pysim.registry.cpu import Kernel, skinny_kernels

WIDEST = 8  # vectors of the matrix in a tile (native/conv/skinny_kernels.h)
WIDE_BYTES = 64  # of a vector of AVX-512, which has 32 of them
OPERANDS = ("input_bytes", "filters_bytes", "output_bytes", "packed_bytes")  # B, A, C; the copy of the few, and sums


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
        return sums * (2 * log2(lanes) * blocks / unit.rate(kernel.dtype) + 1 / stores)
    vectors = shape.few * ceil_div(shape.results, lanes)
    return vectors * ((blocks - 1) / unit.loads_per_cycle.value + blocks / stores) + sums / stores


def _moved(shape: Shape, kernel: Kernel, blocks: Blocks, machine: Machine, hot: bool) -> list[dict[str, float]]:
    """Bytes of each operand that miss each level, L1 first."""
    size, strip = SIZES[kernel.dtype], min(blocks.strip * kernel.windows, shape.results)
    matrix, few, out = shape.results * shape.k * size, shape.few * shape.k * size, shape.few * shape.results * size
    width, rows = (blocks.k, passes(shape.few, kernel)[0][1]) if shape.dot else (strip, blocks.k)
    piece, again, between = 2 * rows * width * size, 0.0, 0.0
    if shape.dot:
        again = sum(one * shape.k * size * shape.results / wide for one, wide in passes(shape.few, kernel))
        between = shape.few * blocks.k * size + piece
    else:
        again = out * ceil_div(shape.k, blocks.k)
        between = (shape.few + blocks.k) * strip * size
    found = []
    for at, level in enumerate(machine.levels):
        first = missing(level, matrix + few + out) if hot else 1.0
        twice = missing(level, piece) if at else 0.0
        large, small = matrix * min(2.0, first + twice), few * first
        inner = again * missing(level, between)
        found.append(dict(zip(OPERANDS, (*((large, small) if shape.few_rows else (small, large)), out * first, inner), strict=True)))
    return found


def _latency(machine: Machine, shape: Shape, size: int, hot: bool) -> float:
    """Cycles until the first line of the matrix is there, from where it lies."""
    first = [missing(level, shape.results * shape.k * size) if hot else 1.0 for level in machine.levels]
    suppliers = [*(level.latency_cycles.value for level in machine.levels[1:]), machine.memory.latency_cycles.value]
    return sum(latency * (own - beyond) for latency, own, beyond in zip(suppliers, first, [*first[1:], 0.0], strict=True))


def skinny_cost(g: Gemm, kernel: Kernel, blocks: Blocks, machine: Machine, hot: bool = True) -> Cost:
    """The cost of a product by one of the kernels under one schedule, on one core."""
    unit, core, shape = machine.unit(kernel.target), machine.core, Shape.of(g)
    assert unit is not None
    number, strips = ceil_div(shape.k, blocks.k), ceil_div(shape.results, blocks.strip * kernel.windows)
    if shape.dot:
        runs = shape.results * number if number > 1 else ceil_div(shape.results, passes(shape.few, kernel)[0][1])
    else:
        runs = shape.k * strips if strips > 1 else number
    terms = {
        "kernel": _kernel_cycles(shape, kernel, unit),
        "call": number * strips * core.call_cycles.value + runs * _latency(machine, shape, SIZES[g.dtype], hot),
        "store": _store_cycles(shape, kernel, unit, number),
        "pack": shape.few * shape.k / unit.stores_per_cycle.value,
    }
    return total(machine, terms, _moved(shape, kernel, blocks, machine, hot), written=("output_bytes",))
