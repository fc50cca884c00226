# SPDX-License-Identifier: Apache-2.0
"""Matrix products on a GPU: the rows of `native/cuda/gemm`, whose threads multiply (simt), or tensor cores by warps (wmma, mma) or by
warpgroups (wgmma).

An operand that a kernel cannot take as it lies is copied before: another dimension is contiguous than it needs, or its rows do not begin at
multiples of what it copies at once (`waves`, relayout). Threads that multiply load such rows element by element. Kernels of wgmma stay on
their SM for the whole product, so it holds one block of them.

Six products of bf16 thirds make one of f32 in the time of three of tf32 (tf32x3; native/cuda/core/split.cuh): warps make the thirds of
both operands in registers, warpgroups those of A, and B's are made ahead. A product of f32 has these kernels as well as its own; one of
tf32x3 has f32's where sums are of so few products that theirs are more accurate.

Worked number: gemm:1024x512x256:nn:s8 by wgmma copies B, 131,072 bytes, and 256 to align.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import msgspec

from pysim.algorithms.accuracy import Size, size_of, walk
from pysim.algorithms.contract import SUMS, Bound, unprepared
from pysim.cachemodel.gpu import mainloop, tiled, words
from pysim.cachemodel.gpu.launches import ALIGN, Candidates, Variant, constants_of, legal, partial_bytes, round_up
from pysim.cachemodel.gpu.launches import cost as cost
from pysim.cachemodel.gpu.mainloop import LINE_BYTES, VECTOR_BYTES, Work
from pysim.cachemodel.gpu.traffic import lines_of_row, sectors_of
from pysim.cachemodel.gpu.waves import Columns
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.problem.dtypes import AS_HALVES, GPU_RESULT_BYTES, SUM_BYTES, SUM_UNITS
from pysim.problem.gemm import Gemm
from pysim.record.cost import Reason, Rejected
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request
from pysim.record.schedule import GpuSchedule
from pysim.registry.cuda import WARP, Attributes, GemmKernel, Tiles, cuda_limits, gemm_attributes, gemm_kernel, gemm_kernels

NAME = "gemm"
COMPUTES = Gemm
prepare = unprepared  # operands are copied in the run, where they are
# Of a product of parts, in roundings of its sum, 2^-23: of thirds 2^-24 that is left out and as much of each number, of
# halves, which are cut, 2^-19 (native/cuda/core/split.cuh)
THIRDS_ERROR, CUT_ERROR = 1.5, 16.0
# Of the mean of the error of sums of halves over the result, at 64 products a part and more than one part
# (native/cuda/mainloop/tensor/split.cuh; of ResNet-50's 41 such layers the logits come out 1.7e-6 too small on an H200); parts of 16 and 32
# products lean to neither side by more than a fifth of that
LEAN_PART, LEAN = 64, -6.9e-8
# Roundings that a part of a sum on tensor cores comes to, at 64 products a part: of halves (benchmarks/data/tf32x3-h200.txt), of thirds,
# in which a mean of what is cut is added (tf32x3-error-h200.jsonl)
PART, PART_OF_THIRDS = 49, 8
FEWEST = 128  # products of a sum that thirds make as accurately as FP32 whatever the operands' scales (tf32x3-error-*.jsonl)
Lie = tuple[tuple[int, int], tuple[bool, bool]] | None  # pitches of A and B in elements, and whether they begin at multiples of 16 bytes
DENSE: Lie = None  # rows without gaps, from such a multiple
THIRD_BYTES = 2  # of each of an element's
HOPPER = 90  # the capability whose kernels were measured one by one
ATOM = 8  # rows of shared memory that are swizzled together (native/cuda/mainloop/hopper)


# Legality


def refuses(problem: Gemm, machine: Gpu, layout: Layout = "nchw") -> Reason | None:
    side, depth = cuda_limits()["GEMM_SIDE"], cuda_limits()["GEMM_K"]
    if max(problem.m, problem.n) > side or problem.k > depth:
        return Reason("size", f"the CUDA kernels take m and n up to {side:,} and k up to {depth:,}")
    known = sorted({kernel.dtype for kernel in gemm_kernels()})
    if problem.dtype not in known:
        return Reason("type", f"there is no {problem.dtype} CUDA kernel; the registry (native/cuda/gemm) has {', '.join(known) or 'none'}")
    return None


def kernel_refuses(gpu: Gpu, kernel: GemmKernel) -> Reason | None:
    """Why a kernel is not planned with on a machine beside what no kernel can do without."""
    if kernel.below and gpu.capability_number >= kernel.below:
        if kernel.accumulates_f16:
            return Reason("replaced", "it sums in f16, and this machine's tensor cores sum in f32")
        return Reason("replaced", f"from capability {kernel.below / 10} on others are faster on every problem that was measured")
    return None


def attributes_of(kernel: GemmKernel, known: dict[str, Attributes]) -> Attributes:
    """What the compiler made of a kernel; where nobody asked, of it for Hopper (CUDA cores are alike), or what follows from its columns."""
    alike = {} if kernel.tiles.tensor else gemm_attributes(HOPPER)
    return known.get(kernel.name) or alike.get(kernel.name) or mainloop.estimated(kernel.tiles)


def usable(
    request: Request, problem: Gemm, name: str, rows: Sequence[GemmKernel], lie: Lie = DENSE
) -> tuple[list[GemmKernel], list[Rejected]]:
    """The kernels that can compute a product on a machine, and the others with reasons."""
    gpu = request.gpu
    known = gemm_attributes(gpu.capability_number)
    own = partial(attributes_of, known=known)

    def refused(kernel: GemmKernel) -> Reason | None:
        return kernel_refuses(gpu, kernel) or less_accurate(request.problem, kernel) or too_large(problem, kernel, lie)

    return legal(request._replace(problem=problem), name, rows, own, refused)


def less_accurate(problem: Gemm | Conv, kernel: GemmKernel) -> Reason | None:
    """Why a kernel of parts does not compute what is asked for in its type."""
    if not (isinstance(problem, Gemm) and kernel.promotion and kernel.dtype == problem.dtype and problem.k < FEWEST):
        return None
    why = f"sums of fewer than {FEWEST} products are FP32's own, which are more accurate where operands differ in scale"
    return Reason("accuracy", why)


def too_large(problem: Gemm, kernel: GemmKernel, lie: Lie) -> Reason | None:
    """Why a kernel cannot compute a product of this size that others can."""
    most, tiles = cuda_limits(), tiles_of(problem, kernel)
    if tiles > most["TILES"]:
        return Reason("size", f"it would need {tiles:,} tiles; the CUDA kernels take up to {most['TILES']:,}")
    if max(problem.m, problem.n, problem.k) <= most["RELAYOUT_ROWS"]:
        return None
    rows = max((one.rows for one in copies(problem, kernel, lie)), default=0)
    if rows > most["RELAYOUT_ROWS"]:
        return Reason("size", f"it would copy an operand of {rows:,} rows; copies take up to {most['RELAYOUT_ROWS']:,}")
    return None


# Candidates


def pitches(problem: Gemm) -> tuple[int, int]:
    """Elements from one row to the next of A and B as they lie, densely."""
    return problem.m if problem.trans_a else problem.k, problem.k if problem.trans_b else problem.n


def computed(problem: Gemm, kernel: GemmKernel) -> Gemm:
    """The product as a kernel computes it: C' = B' A' where of the operands A alone lies as it wants its second one."""
    if kernel.k_major != 2 or problem.trans_a or problem.trans_b:
        return problem
    return msgspec.structs.replace(problem, m=problem.n, n=problem.m, trans_a=True, trans_b=True)


class Copied(NamedTuple):
    """An operand as it is copied: rows and columns in elements, and bytes of a row as it is written."""

    rows: int
    columns: int
    pitch: int


def copied(rows: int, columns: int, size: int, alignment: int = VECTOR_BYTES) -> Copied:
    """Rows of a copy are whole lines of L2, where that adds less than a quarter (native/cuda/abi/gemm.cu)."""
    return Copied(rows, columns, round_up(columns * size, LINE_BYTES if columns * size >= 4 * LINE_BYTES else alignment))


def copies(problem: Gemm, kernel: GemmKernel, lie: Lie = DENSE) -> Iterator[Copied]:
    """Each operand that a kernel cannot take as it lies, as it is copied; of B's thirds all."""
    own = computed(problem, kernel)
    if own is not problem:
        lie, problem = (lie[0][::-1], lie[1][::-1]) if lie else None, own
    size, alignment = problem.element_bytes, kernel.alignment
    sides = (
        (not problem.trans_a, kernel.k_major == 1, problem.m, False),
        (problem.trans_b, kernel.k_major > 0, problem.n, kernel.tiles.parts > 1),
    )
    for (k_last, k_major, outer, in_parts), apart, lies in zip(sides, *(lie or (pitches(problem), (True, True))), strict=True):
        if in_parts:
            yield Copied(outer, problem.k, 3 * copied(outer, problem.k, THIRD_BYTES).pitch)
        elif (k_major and not k_last) or apart * size % alignment or (alignment > size and not lies):
            yield copied(*((outer, problem.k) if k_last or k_major else (problem.k, outer)), size, max(VECTOR_BYTES, alignment))


def lines_of(problem: Gemm, kernel: GemmKernel) -> tuple[float, float]:
    """Lines of L2 that a row of a box of TMA lies in, of A and B as they are read."""
    own, size = computed(problem, kernel), problem.element_bytes
    sides = ((not own.trans_a, kernel.k_major == 1, own.m), (own.trans_b, kernel.k_major > 0, own.n))
    found = []
    for (k_last, k_major, outer), apart in zip(sides, pitches(own), strict=True):
        pitch = apart * size
        if (k_major and not k_last) or pitch % kernel.alignment:
            pitch = copied(*((outer, own.k) if k_last or k_major else (own.k, outer)), size, kernel.alignment).pitch
        found.append(lines_of_row(pitch))
    return found[0], found[1]


def copied_bytes(problem: Gemm, kernel: GemmKernel) -> float:
    """Bytes that the copies read and write."""
    size = problem.element_bytes
    return float(sum(one.rows * (one.columns * size + one.pitch) for one in copies(problem, kernel)))


def candidates(request: Request, limit: float | None = None) -> Candidates:
    problem, gpu = request.problem, request.gpu
    assert isinstance(problem, Gemm)
    named = request.schedule.kernel if request.schedule else None
    beside = beside_own(problem)
    others = [row for row in gemm_kernels() if row.dtype == beside and named in (None, row.name)]
    rows = [row for row in gemm_kernels() if row not in others]
    kernels, rejected = usable(request, problem, NAME, rows) if rows else ([], [])
    if others:
        more, without = usable(request, msgspec.structs.replace(problem, dtype=others[0].dtype), NAME, others)
        kernels, rejected = kernels + more, rejected + without
    return Candidates(request, tuple(variants(gpu, problem, kernels, gemm_attributes(gpu.capability_number))), (), tuple(rejected))


def beside_own(problem: Gemm) -> str | None:
    """The type whose kernels multiply a product beside those of its own."""
    if problem.k < FEWEST:
        split = {halves: whole for whole, halves in AS_HALVES.items()}
        if problem.dtype in split:
            return split[problem.dtype]
    return AS_HALVES.get(problem.dtype)


def variants(gpu: Gpu, problem: Gemm, kernels: Sequence[GemmKernel], known: dict[str, Attributes]) -> list[Variant]:
    """Kernels as the model knows them, on a machine that has their pipes."""
    found = []
    for kernel in kernels:
        measured, tiles, attributes = kernel.name in known, kernel.tiles, attributes_of(kernel, known)
        turned = computed(problem, kernel)
        by_registers = kernel.k_major > 1 and turned.trans_a
        columns, step, family = product(gpu, turned, tiles, kernel.families, attributes, attributes.efficiency, by_registers)
        if tiles.producer:
            lines = lines_of(problem, kernel)
            columns = columns._replace(lines_a=lines[0], lines_b=lines[1])
        if (
            tiles.by_warpgroups and not tiles.promotion
        ):  # rows along k come in boxes of no more than there are, but where clusters share them
            shrinks = (
                tiles.cluster_columns == 1 and (kernel.k_major == 1 or not turned.trans_a),
                tiles.cluster_rows == 1 and (kernel.k_major > 0 or turned.trans_b),
            )
            columns = columns._replace(box_m=ATOM if shrinks[0] else columns.box_m, box_n=ATOM if shrinks[1] else columns.box_n)
        found.append(
            Variant(
                kernel.name, partial(GpuSchedule, kernel.name), attributes, measured, tiled.leans_on(gpu, tiles.pipe, family),
                columns._replace(
                    relayouts=len([*copies(problem, kernel)]), relaid=copied_bytes(problem, kernel), near=kernel.reduces_in_cluster,
                    narrow=columns.narrow or turned is not problem,  # whose rows leave in pieces
                ), step,
                lent=() if measured else (f"kernel_attributes.{kernel.name}",),
            )
        )  # fmt: skip
    return found


def product(
    gpu: Gpu,
    problem: Gemm,
    tiles: Tiles,
    families: tuple[str, ...],
    attributes: Attributes,
    efficiency: float | None,
    by_registers: bool = False,
) -> tuple[Columns, Work, str]:
    """Columns of a product by tiles, no operand copied; a step's work, and the family whose constants hold. Every row of tiles asks for all
    of B once. `by_registers`: a warpgroup's A comes so."""
    size = problem.element_bytes
    ragged = tuple(pitch * size % VECTOR_BYTES != 0 for pitch in pitches(problem))
    step = mainloop.work(gpu, tiles, problem.trans_a, problem.trans_b, ragged, by_registers)
    fixed, family = _fixed(gpu, tiles, families, attributes, step, efficiency)
    result = GPU_RESULT_BYTES[problem.dtype]
    a, b = problem.m * problem.k * size, problem.k * problem.n * size * tiles.parts
    sizes = (problem.m, problem.n, problem.k, size, a, b, problem.m * problem.n * result, a, b, result, SUM_BYTES[problem.dtype])
    pitch = problem.n * result
    narrow = pitch % VECTOR_BYTES > 0  # whose rows leave one by one, a warp's lanes side by side
    own = {"narrow": narrow, "sectors": sectors_of(pitch, WARP * result) if narrow else sectors_of(pitch)}
    return Columns(*sizes, *fixed[len(sizes) :])._replace(**own), step, family


@lru_cache(maxsize=4096)
def _fixed(
    gpu: Gpu, tiles: Tiles, families: tuple[str, ...], attributes: Attributes, step: Work, efficiency: float | None
) -> tuple[Columns, str]:
    """What of the columns does not depend on a product's sizes, and the family whose constants hold."""
    name, family = constants_of(gpu, families)
    return tiled.columns_of(gpu, tiles, attributes, step, family, efficiency), name


# What the contract asks beside


def workspace_bytes(problem: Gemm, schedule: GpuSchedule, layout: Layout = "nchw") -> int:
    kernel = gemm_kernel(schedule.kernel)
    assert kernel is not None
    return launch_bytes(problem, kernel, schedule)


def launch_bytes(problem: Gemm, kernel: GemmKernel, schedule: GpuSchedule, lie: Lie = DENSE) -> int:
    """What a launch needs beside its operands, as native/cuda/abi/gemm.cu counts it: copied operands, flags,
    partial sums."""
    tiles = kernel.tiles
    total = sum(round_up(one.rows * one.pitch, ALIGN) for one in copies(problem, kernel, lie))
    sums = tiles.rows * tiles.columns * SUM_BYTES[problem.dtype]
    if not (schedule.decomposition == "split_k" and schedule.splits <= kernel.reduces_in_cluster):
        total += partial_bytes(schedule.decomposition, schedule.splits, tiles_of(problem, kernel), tiles.blocks, sums)
    return total + ALIGN * bool(total)


def steps_of(problem: Gemm, kernel: GemmKernel) -> int:
    """Steps along k of all tiles together."""
    return tiles_of(problem, kernel) * -(-problem.k // kernel.block_k)


def tiles_of(problem: Gemm, kernel: GemmKernel) -> int:
    """Tiles of C; of a cluster, where the kernel has clusters."""
    tiles, problem = kernel.tiles, computed(problem, kernel)
    return -(-problem.m // (tiles.rows * tiles.cluster_rows)) * -(-problem.n // (tiles.columns * tiles.cluster_columns))


def tolerance(problem: Gemm, schedule: GpuSchedule) -> Bound:
    kernel = gemm_kernel(schedule.kernel)
    if kernel and kernel.promotion:
        return sums_of_parts(problem, kernel.tiles)
    return SUMS if kernel is None or kernel.dtype == problem.dtype else SUMS._replace(error=walk(size_of(problem), SUM_UNITS[kernel.dtype]))


def sums_of_parts(problem: Gemm | Conv, tiles: Tiles) -> Bound:
    """Products that are off by some roundings of the sum each. Sums in FP32 registers have an addition every `promotion` products: the
    error is that of so many roundings, and of PART more for what tensor cores add meanwhile."""
    results, k = size_of(problem)
    part = PART_OF_THIRDS if tiles.thirds else PART
    error = walk(Size(results, part + k // tiles.promotion), SUM_UNITS["f32"])
    each, what = (THIRDS_ERROR, "1.5 2^-23 of each product of thirds") if tiles.thirds else (CUT_ERROR, "2^-19 of each product of halves")
    lean = LEAN if tiles.promotion >= LEAN_PART and not tiles.thirds else 0.0
    return Bound(1 + each / k, 0.0, f"{what} (native/cuda/core/split.cuh), and of k sums", error=error, multiplied="split", lean=lean)


def describe(plan: Plan) -> Description:
    problem = plan.workload
    kernel = gemm_kernel(plan.kernel)
    assert isinstance(problem, Gemm) and kernel is not None
    summary = f"product of {problem.m} x {problem.n} x {problem.k}, layout {problem.layout}"
    return words.describe(plan, candidates, summary, words.products(problem, kernel.tiles))
