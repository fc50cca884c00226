# SPDX-License-Identifier: Apache-2.0
"""Matrix products on a GPU: the rows of `native/cuda/gemm`. Threads multiply (simt), or tensor cores do, fed by warps (wmma, mma) or by
warpgroups (wgmma).

An operand that a kernel cannot read as stored is copied first: the wrong dimension is contiguous, or its rows do not begin at multiples of
the kernel's alignment (`waves`, layout conversion). SIMT kernels load such rows element by element. wgmma kernels are persistent: one block
per SM runs for the whole product.

tf32x3 makes one FP32 product of six products of bf16 thirds, in the time of three tf32 products (native/cuda/core/split.cuh). Warps split
both operands into thirds in registers; warpgroups split A, and B is split by a pass before. An f32 product may use these kernels as well as
the f32 ones. A tf32x3 product uses f32 kernels where k is so small that they are more accurate.

Worked number: gemm:1024x512x256:nn:s8 by wgmma copies B, 131,072 bytes, and 256 to align.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import msgspec

from pysim.algorithms.accuracy import Size, random_walk, size_of
from pysim.algorithms.interface import DIRECT_SUM, Bound, in_parts, nothing_prepared
from pysim.algorithms.product_tiles import blocks_of, columns_of_tile, narrowed, tiles_of_launch
from pysim.algorithms.product_tiles import computed as computed
from pysim.algorithms.product_tiles import iterations_of as iterations_of
from pysim.algorithms.product_tiles import tiles_of as tiles_of
from pysim.cachemodel.gpu import launch_text, mainloop, product_columns
from pysim.cachemodel.gpu.columns import OF_PROBLEM, Columns
from pysim.cachemodel.gpu.launches import ALIGN, Candidates, Variant, constants_of, legal, partial_bytes, prunes, round_up
from pysim.cachemodel.gpu.launches import cost as cost
from pysim.cachemodel.gpu.mainloop import LINE_BYTES, VECTOR_BYTES, Work
from pysim.cachemodel.gpu.occupancy import unable
from pysim.cachemodel.gpu.traffic import Number, lines_of_row, sectors_of
from pysim.cachemodel.gpu.waves import MOST_COPIED_BYTES, TYPICAL_ACCUMULATORS
from pysim.cachemodel.gpu.windows import SECTOR_BYTES
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.problem.dtypes import AS_HALVES, GPU_RESULT_BYTES, SIZES, SUM_BYTES, SUM_UNITS
from pysim.problem.gemm import Gemm
from pysim.record.contract import GpuContract
from pysim.record.cost import Reason, Rejected
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request
from pysim.record.schedule import GpuSchedule
from pysim.registry.cuda import (
    BY_INSTRUCTION,
    WARP,
    WHOLE_NUMBERS,
    Attributes,
    GemmKernel,
    Tiles,
    cuda_limits,
    gemm_attributes,
    gemm_kernel,
    gemm_kernels,
)

NAME = "gemm"
COMPUTES = Gemm
prepare = nothing_prepared  # operands are copied in the run, if at all
# Error of a product of parts, in roundings of its sum, 2^-23: bf16 thirds leave out 2^-24 and as much of each number; tf32 halves, which
# are truncated, leave out 2^-19 (native/cuda/core/split.cuh)
THIRDS_ERROR, HALVES_ERROR = 1.5, 16.0
# Rows of four-byte results that are no whole vectors go by strips (native/cuda/mainloop/wgmma/strips.cuh): times an output of two bytes
STRIPS_COST = 3.0
# More for each byte of a thread's local memory: 192x192 of tf32, whose registers spill 208, takes 20 us a tile longer (H200, 3 products)
SPILLED_STRIPS_COST = 0.04
# Mean relative error of sums of tf32 halves, at 64 products a promotion and more than one (native/cuda/mainloop/mma/split.cuh; the logits
# of ResNet-50's 41 such layers come out 1.7e-6 too small on an H200); with 16 and 32 at most a fifth of that, of either sign
MEAN_ERROR_PROMOTION, MEAN_ERROR = 64, -6.9e-8
# Roundings that the tensor cores' sum of one promotion amounts to, at 64 products: halves (lab/data/h200/tf32x3.txt), and thirds,
# whose mean truncation is added (h200/tf32x3-error.jsonl)
HALVES_ROUNDINGS, THIRDS_ROUNDINGS = 49, 8
MIN_PARTS_K = 128  # from here on thirds are as accurate as FP32 whatever the operands' scales (tf32x3-error-*.jsonl)
Placement = tuple[tuple[int, int], tuple[bool, bool]] | None  # pitches of A and B in elements; whether they are aligned to 16 bytes
DENSE: Placement = None  # rows without gaps, aligned
THIRD_BYTES = 2
STARTING_EARLY = ("mma", "wgmma", "streamed", "tall")  # main loops whose launches may start while the launch before them ends
HELD_BACK_BYTES = 32 << 20  # from which on some launches on warpgroups let no other start (`releases_next`)
STREAMED_TILES = 2  # rows of tiles of a product on CUDA cores that streams B, at most
HOPPER = 90  # the capability whose kernels were measured one by one
SWIZZLE_ROWS = 8  # rows of shared memory that one swizzle pattern covers (native/cuda/mainloop/wgmma)


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
    """Why the planner ignores a kernel on a machine, whatever the product."""
    if reason := unable(gpu, kernel, attributes_of(kernel, gemm_attributes(gpu.capability_number))):
        return reason
    if kernel.promotion > BY_INSTRUCTION and not kernel.producer and gpu.capability_number != HOPPER:
        return Reason("accuracy", "where tensor cores cut its sums was measured on capability 9.0 alone")
    if kernel.below and gpu.capability_number >= kernel.below:
        if kernel.accumulates_f16:
            return Reason("replaced", "it accumulates in f16, and this machine's tensor cores accumulate in f32")
        return Reason("replaced", f"from capability {kernel.below / 10} on other kernels were faster on every measured problem")
    return None


def attributes_of(kernel: GemmKernel, known: dict[str, Attributes]) -> Attributes:
    """What the compiler made of a kernel. Where it was not asked: what it made of a SIMT kernel for Hopper, or an estimate by the tiles."""
    hopper = {} if kernel.tiles.tensor else gemm_attributes(HOPPER)
    return known.get(kernel.name) or hopper.get(kernel.name) or mainloop.estimated(kernel.tiles)


def products() -> tuple[GemmKernel, ...]:
    """All rows but those of the algorithms residues and tall."""
    return _products(gemm_kernels())


@lru_cache(maxsize=4)
def _products(rows: tuple[GemmKernel, ...]) -> tuple[GemmKernel, ...]:
    return tuple(row for row in rows if row.by_tiles)


def usable(
    request: Request, problem: Gemm, name: str, rows: tuple[GemmKernel, ...], placement: Placement = DENSE
) -> tuple[list[GemmKernel], list[Rejected]]:
    """The kernels that can compute a product on a machine, and the rejected ones with reasons."""
    of_any_batch = isinstance(request.problem, Conv) and bool(request.parts)  # a contract that the layer's images may have
    most = cuda_limits()
    fits = problem.m * problem.n <= most["TILES"] and max(problem.m, problem.n, problem.k) <= most["LAYOUT_CONVERSION_ROWS"]

    def refused(kernel: GemmKernel) -> Reason | None:
        refusal = less_accurate(request.problem, kernel) or (None if of_any_batch else too_many_rows(problem, kernel))
        return refusal or (None if fits else too_large(problem, kernel, placement))

    return legal(msgspec.structs.replace(request, problem=problem), name, rows, kernel_refuses, refused)


def usable_as_halves(
    request: Request, problem: Gemm, name: str, rows: tuple[GemmKernel, ...], named: str | None = None, placement: Placement = DENSE
) -> tuple[list[GemmKernel], list[Rejected]]:
    """The same, with the kernels of the other type that may compute it."""
    others, rows = _divided(rows, other_dtype(problem), named)
    kernels, rejected = usable(request, problem, name, rows, placement) if rows else ([], [])
    if others:
        more, refused = usable(request, msgspec.structs.replace(problem, dtype=others[0].dtype), name, others, placement)
        kernels, rejected = kernels + more, rejected + refused
    return kernels, rejected


@lru_cache(maxsize=64)
def _divided(rows: tuple[GemmKernel, ...], dtype: str | None, named: str | None) -> tuple[tuple[GemmKernel, ...], tuple[GemmKernel, ...]]:
    """The kernels of a type, if named those of that name alone, and the others."""
    matching = tuple(row for row in rows if row.dtype == dtype and named in (None, row.name))
    return matching, tuple(row for row in rows if row not in matching)


def less_accurate(problem: Gemm | Conv, kernel: GemmKernel) -> Reason | None:
    """Why a tf32x3 kernel does not compute a tf32x3 product."""
    if not (isinstance(problem, Gemm) and kernel.promotion and kernel.dtype == problem.dtype and problem.k < MIN_PARTS_K):
        return None
    return Reason("accuracy", f"below k = {MIN_PARTS_K} FP32 kernels are more accurate where operands differ in scale")


def too_many_rows(problem: Gemm, kernel: GemmKernel) -> Reason | None:
    """Why rows on CUDA cores that read B once for each tile's rows are left out."""
    if kernel.tiles.k_warps == 1 or problem.m <= (most := STREAMED_TILES * kernel.block_m):
        return None
    return Reason("shape", f"it would read B more than {STREAMED_TILES} times; it is for up to {most} rows")


def too_large(problem: Gemm, kernel: GemmKernel, placement: Placement) -> Reason | None:
    """Why a kernel cannot compute a product of this size."""
    most, tiles = cuda_limits(), tiles_of(problem, kernel)
    if tiles > most["TILES"]:
        return Reason("size", f"it would need {tiles:,} tiles; the CUDA kernels take up to {most['TILES']:,}")
    if max(problem.m, problem.n, problem.k) <= most["LAYOUT_CONVERSION_ROWS"]:
        return None
    rows = max((one.rows for one in copies(problem, kernel, placement)), default=0)
    if rows > most["LAYOUT_CONVERSION_ROWS"]:
        return Reason("size", f"it would copy an operand of {rows:,} rows; copies take up to {most['LAYOUT_CONVERSION_ROWS']:,}")
    return None


# Candidates


def pitches(problem: Gemm) -> tuple[int, int]:
    """Elements from one row to the next of dense A and B."""
    return problem.m if problem.trans_a else problem.k, problem.k if problem.trans_b else problem.n


class Copied(NamedTuple):
    """The copy of an operand: rows and columns in elements, bytes from one row to the next; bytes that a thread may move at once."""

    rows: int
    columns: int
    pitch: int
    element: int


def copied(rows: int, columns: int, size: int, alignment: int = VECTOR_BYTES) -> Copied:
    """A copy whose rows are padded to whole L2 lines where that adds less than a quarter (native/cuda/abi/gemm.cu)."""
    return Copied(rows, columns, round_up(columns * size, LINE_BYTES if columns * size >= 4 * LINE_BYTES else alignment), size)


def operands(problem: Gemm, kernel: GemmKernel, placement: Placement = DENSE) -> Iterator[tuple[Copied | None, int]]:
    """A and B as a kernel reads them: the copy, None where it reads it as stored; the pitch in bytes. B's thirds are a copy."""
    transposed = computed(problem, kernel)
    if transposed is not problem:
        placement, problem = (placement[0][::-1], placement[1][::-1]) if placement else None, transposed
    size, alignment = problem.element_bytes, kernel.alignment
    sides = (
        (not problem.trans_a, kernel.k_major == 1, problem.m, False),
        (problem.trans_b, kernel.k_major > 0, problem.n, kernel.tiles.parts > 1),
    )
    for (k_last, k_major, outer, split), pitch, aligned in zip(sides, *(placement or (pitches(problem), (True, True))), strict=True):
        copy, row = None, problem.k if k_last else outer
        if split:
            copy = Copied(outer, problem.k, 3 * copied(outer, problem.k, THIRD_BYTES).pitch, size)
        elif (k_major and not k_last) or pitch * size % alignment or (alignment > size and not aligned) or (kernel.dense and pitch > row):
            copy = copied(*((outer, problem.k) if k_last or k_major else (problem.k, outer)), size, max(VECTOR_BYTES, alignment))
            if aligned and (k_last or not k_major):  # rows as they lie: by elements of which they are whole numbers
                copy = copy._replace(element=math.gcd(MOST_COPIED_BYTES, pitch * size, copy.columns * size, copy.pitch))
        yield copy, copy.pitch if copy else pitch * size


def row_ends(problem: Gemm, kernel: GemmKernel) -> tuple[float, float]:
    """Rows of A and of B, as a kernel reads them, that end inside a sector. TMA fills the rest of their boxes."""
    own, size = computed(problem, kernel), problem.element_bytes
    sides = (not own.trans_a or kernel.k_major == 1, own.m, 1), (own.trans_b or kernel.k_major > 0, own.n, kernel.tiles.parts)
    a, b = (
        0.0 if parts > 1 or (own.k if along_k else outer) * size % SECTOR_BYTES == 0 else float(outer if along_k else own.k)
        for along_k, outer, parts in sides
    )
    return a, b


def copies(problem: Gemm, kernel: GemmKernel, placement: Placement = DENSE) -> Iterator[Copied]:
    """The copies of the operands that a kernel cannot read as stored."""
    return (copy for copy, _ in operands(problem, kernel, placement) if copy)


def bytes_of(made: Iterable[Copied], size: int) -> float:
    """Bytes that copies of elements of this size read and write."""
    return float(sum(one.rows * (one.columns * size + one.pitch) for one in made))


def candidates(request: Request, limit: float | None = None, rows: tuple[GemmKernel, ...] | None = None) -> Candidates:
    """The launches of some rows, or of all."""
    problem, gpu = request.problem, request.gpu
    assert isinstance(problem, Gemm)
    named = request.schedule.kernel if request.schedule else None
    kernels, rejected = usable_as_halves(request, problem, NAME, products() if rows is None else rows, named)
    able = tuple(variants(gpu, problem, kernels, gemm_attributes(gpu.capability_number)))
    return Candidates(request, able, (), tuple(rejected), prunes(request, limit))


def other_dtype(problem: Gemm) -> str | None:
    """The other type whose kernels may compute a product."""
    if problem.k < MIN_PARTS_K:
        whole = {parts: dtype for dtype, parts in AS_HALVES.items()}
        if problem.dtype in whole:
            return whole[problem.dtype]
    return AS_HALVES.get(problem.dtype)


class Reading(NamedTuple):
    """How kernels of the same `k_major`, alignment and parts read a problem: as the product `own`, whose rows of B are `pitch` bytes apart,
    with the `columns` of the model that follow from its sizes and copies; and those of kernels whose operands come by TMA."""

    own: Gemm
    pitch: int
    columns: tuple[Number, ...]
    by_tma: tuple[Number, ...]

    @classmethod
    def of(cls, problem: Gemm, kernel: GemmKernel) -> "Reading":
        (copy_a, pitch_a), (copy_b, pitch_b) = operands(problem, kernel)
        own, made = computed(problem, kernel), [copy for copy in (copy_a, copy_b) if copy]
        columns = sizes_of(own, kernel.tiles.parts) | {"conversions": len(made), "conversion_bytes": bytes_of(made, problem.element_bytes)}
        columns["conversion_element"] = min((copy.element for copy in made), default=MOST_COPIED_BYTES)
        strips = STRIPS_COST if columns["unaligned_c"] and columns["result_bytes"] == 4 and own is problem else 1
        columns["unaligned_c"] = columns["unaligned_c"] or own is not problem  # a transposed tile is stored in pieces
        ends_a, ends_b = row_ends(problem, kernel)
        lines_a, lines_b = lines_of_row(pitch_a), lines_of_row(pitch_b)
        by_tma: dict[str, Number] = {"lines_a": lines_a, "lines_b": lines_b, "row_ends_a": ends_a, "row_ends_b": ends_b}
        by_tma["unaligned_c"] = columns["unaligned_c"] * strips
        return cls(own, pitch_b, _in_order(_DENSE_ROWS | columns), _in_order(columns | by_tma))


_DENSE_ROWS: dict[str, Number] = {"lines_a": 1.0, "lines_b": 1.0, "row_ends_a": 0.0, "row_ends_b": 0.0}


def _in_order(columns: dict[str, Number]) -> tuple[Number, ...]:
    return tuple(map(columns.__getitem__, Columns._fields[:OF_PROBLEM]))


def variants(gpu: Gpu, problem: Gemm, kernels: Sequence[GemmKernel], known: dict[str, Attributes]) -> list[Variant]:
    """Kernels as the model sees them, on a machine that has their pipes."""
    result, readings = [], dict[tuple[int, int, float], tuple[Reading, Layouts]]()
    for kernel in kernels:
        tiles, attributes, key = kernel.tiles, attributes_of(kernel, known), (kernel.k_major, kernel.alignment, kernel.tiles.parts)
        if not (found := readings.get(key)):
            reading = Reading.of(problem, kernel)
            found = readings[key] = reading, Layouts.of(reading.own)
        (own, pitch, columns, by_tma), layouts = found
        width = columns_of_tile(gpu, own, kernel)
        variant, of_kernel = _of_kernel(gpu, kernel, attributes, kernel.name in known, layouts, width)
        both = Columns._make((*(by_tma if tiles.producer else columns), *of_kernel))
        if kernel.narrows and not (own.trans_b or kernel.k_major):  # tiles may begin inside lines where rows do not
            both = both._replace(lines_b=lines_of_row(math.gcd(pitch, width * own.element_bytes)))
        if tiles.producer and both.unaligned_c:  # a thread stores its accumulators one after another
            spilled = SPILLED_STRIPS_COST * attributes.local_bytes if both.unaligned_c > 1 else 0.0
            both = both._replace(unaligned_c=both.unaligned_c * max(1.0, both.accumulators / TYPICAL_ACCUMULATORS) + spilled)
        result.append(msgspec.structs.replace(variant, columns=both))
    return result


class Layouts(NamedTuple):
    """How A and B lie in memory: transposed, with rows that begin at multiples of `aligned` bytes; `one_row`: A has one."""

    trans_a: bool
    trans_b: bool
    aligned: tuple[int, int]
    one_row: bool

    @classmethod
    def of(cls, problem: Gemm) -> "Layouts":
        a, b = (math.gcd(VECTOR_BYTES, pitch * problem.element_bytes) for pitch in pitches(problem))
        return cls(problem.trans_a, problem.trans_b, (a, b), problem.m == 1)


@lru_cache(maxsize=1 << 14)
def _of_kernel(
    gpu: Gpu, kernel: GemmKernel, attributes: Attributes, compiled: bool, of: Layouts, width: int
) -> tuple[Variant, tuple[Number, ...]]:
    """A kernel without a problem's columns, and its own columns; `width`: columns of a block's tile."""
    tiles = narrowed(kernel.tiles, width)
    in_registers = kernel.k_major > 1 and of.trans_a
    base, work, family = by_tiles(gpu, of, tiles, kernel.families, attributes, attributes.efficiency, in_registers)
    boxes: dict[str, Number] = {}
    if tiles.by_warpgroups and not tiles.promotion:  # boxes along k have the rows that a tile needs, except multicast ones
        if tiles.cluster_columns == 1 and (kernel.k_major == 1 or not of.trans_a):
            boxes["box_m"] = tiles.cluster_rows
        if tiles.cluster_rows == 1 and (kernel.k_major > 0 or of.trans_b):
            boxes["box_n"] = SWIZZLE_ROWS
        elif kernel.narrows:  # whole boxes of lines
            boxes["box_n"] = LINE_BYTES // SIZES[tiles.dtype]
    if kernel.narrows:  # not through memory
        boxes |= {"max_parts": kernel.reduces_in_cluster, "max_stream_blocks": 0}
    if tiles.k_warps > 1:  # a block takes all of k, and reads only the rows that there are
        boxes |= {"max_parts": 1, "box_m": 1, "box_n": 1, "part_unit": kernel.promotion}
    columns = base._replace(max_cluster_splits=kernel.reduces_in_cluster, **boxes)
    numbers = product_columns.numbers_of(gpu, tiles.pipe, family, *["model.row_ends_per_cycle"] * bool(tiles.producer))
    assumed = () if compiled else (f"kernel_attributes.{kernel.name}",)
    schedule = partial(GpuSchedule, kernel.name)
    return Variant(kernel.name, schedule, attributes, compiled, numbers, work=work, assumed=assumed), columns[OF_PROBLEM:]


def product(
    gpu: Gpu, problem: Gemm, tiles: Tiles, families: tuple[str, ...], attributes: Attributes, efficiency: float | None
) -> tuple[Columns, Work, str]:
    """Columns of a product by tiles, without layout conversions; the work of a k-iteration; the family whose constants apply."""
    base, work, family = by_tiles(gpu, Layouts.of(problem)._replace(one_row=False), tiles, families, attributes, efficiency)
    return base._replace(**sizes_of(problem, tiles.parts)), work, family


@lru_cache(maxsize=4096)
def by_tiles(
    gpu: Gpu,
    of: Layouts,
    tiles: Tiles,
    families: tuple[str, ...],
    attributes: Attributes,
    efficiency: float | None,
    a_in_registers: bool = False,
) -> tuple[Columns, Work, str]:
    """The same without the columns of the problem's sizes (`sizes_of`). `a_in_registers`: a warpgroup reads A from registers."""
    ragged = tuple(mainloop.loads_of_element(tiles, aligned) for aligned in of.aligned)
    work = mainloop.work(gpu, tiles, of.trans_a, of.trans_b, ragged, a_in_registers, of.one_row)
    name, family = constants_of(gpu, families)
    most = work.cycles / work.arithmetic  # a k-iteration takes at least what its multiply-adds do
    efficiency = min(efficiency or family.efficiency.value, most)
    return product_columns.columns_of(gpu, tiles, attributes, work, family, efficiency), work, name


def sizes_of(problem: Gemm, parts: float) -> dict[str, Number]:
    """The columns of a product's sizes. Every row of tiles requests all of B once."""
    size, result = problem.element_bytes, GPU_RESULT_BYTES[problem.dtype]
    a, b = problem.m * problem.k * size, problem.k * problem.n * size * parts
    pitch = problem.n * result
    unaligned = pitch % VECTOR_BYTES > 0  # a warp stores such rows element by element, side by side
    return {
        "m": problem.m, "n": problem.n, "k": problem.k, "element_bytes": size,
        "bytes_a": a, "bytes_b": b, "bytes_c": problem.m * problem.n * result, "requested_bytes_a": a, "requested_bytes_b": b,
        "result_bytes": result, "accumulator_bytes": SUM_BYTES[problem.dtype], "unaligned_c": unaligned,
        "sectors": sectors_of(pitch, WARP * result) if unaligned else sectors_of(pitch),
    }  # fmt: skip


# The rest of the interface


def workspace_bytes(problem: Gemm, schedule: GpuSchedule, layout: Layout = "nchw") -> int:
    kernel = gemm_kernel(schedule.kernel)
    assert kernel is not None
    return launch_bytes(problem, kernel, schedule)


def launch_bytes(problem: Gemm, kernel: GemmKernel, schedule: GpuSchedule, placement: Placement = DENSE) -> int:
    """Workspace of a launch as native/cuda/abi/gemm.cu counts it: copied operands, flags, partial sums."""
    tiles, count = kernel.tiles, tiles_of(problem, kernel)
    total = sum(round_up(one.rows * one.pitch, ALIGN) for one in copies(problem, kernel, placement))
    accumulators = tiles.rows * tiles.columns * SUM_BYTES[problem.dtype]
    if not (schedule.decomposition == "split_k" and schedule.splits <= kernel.reduces_in_cluster):
        total += partial_bytes(schedule.decomposition, schedule.splits, count, tiles.blocks, accumulators)
    return total + ALIGN * bool(total)


def graph_saving(gpu: Gpu, problem: Gemm, schedule: GpuSchedule) -> float:
    """Seconds that a launch takes less in a CUDA graph of many than between two events: what the events add; and where it starts while the
    launch before it ends, its start: kernels of STARTING_EARLY, unless the one before, alike, does not let them. Copies of operands start
    on SMs that the one before leaves idle, and beside warpgroups nowhere else, since these have all registers of theirs."""
    saved, kernel = gpu.event_seconds.value if gpu.event_seconds else 0.0, gemm_kernel(schedule.kernel)
    if not (gpu.early_start_seconds and kernel and kernel.mainloop in STARTING_EARLY and releases_next(gpu, problem, kernel, schedule)):
        return saved
    idle = 1.0
    if kernel.tiles.by_warpgroups and any(True for _ in copies(problem, kernel)):
        idle = max(0.0, 1 - blocks_of(gpu, problem, kernel, schedule) / gpu.sms.value)
    return saved + idle * gpu.early_start_seconds.value


def releases_next(gpu: Gpu, problem: Gemm, kernel: GemmKernel, schedule: GpuSchedule) -> bool:
    """Whether a launch lets the next one start before it ends (`releases` of native/cuda/mainloop/wgmma/releases.h)."""
    if not kernel.tiles.by_warpgroups or (problem.m + problem.n) * problem.k * problem.element_bytes < HELD_BACK_BYTES:
        return True
    return not gpu.sms.value / 2 < blocks_of(gpu, problem, kernel, schedule) <= gpu.sms.value * 3 / 4


def tolerance(problem: Gemm, schedule: GpuSchedule) -> Bound:
    kernel = gemm_kernel(schedule.kernel)
    if kernel and kernel.promotion:
        return sums_of_parts(problem, kernel.tiles)
    if kernel is None or kernel.dtype == problem.dtype:
        return DIRECT_SUM
    return DIRECT_SUM._replace(error=random_walk(size_of(problem), SUM_UNITS[kernel.dtype]))


def contract(problem: Gemm, schedule: GpuSchedule, layout: Layout) -> GpuContract | None:
    """Lanes that share k keep none: of many rows no other kernel has their order."""
    kernel = gemm_kernel(schedule.kernel)
    return None if kernel and kernel.tiles.k_warps > 1 and not kernel.tensor_threads else contract_of(problem, kernel, schedule, "k")


def contract_of(problem: Gemm, kernel: GemmKernel | None, schedule: GpuSchedule, order: str) -> GpuContract | None:
    """The contract of a product whose k is in this order. SIMT kernels begin with a k-iteration that is not whole, and lanes that share k
    have another order where rows do not begin at whole vectors."""
    if kernel is None or kernel.sums is None:
        return None
    if kernel.sums == WHOLE_NUMBERS:
        return GpuContract(WHOLE_NUMBERS)
    whole = VECTOR_BYTES // problem.element_bytes if kernel.tiles.k_warps > 1 else kernel.block_k
    if not kernel.tensor_threads and problem.k % whole:
        return None
    found = in_parts(kernel, kernel.sums, order, schedule)
    if found is None or found.parts == 1:
        return found
    iterations = -(-problem.k // found.unit)  # parts of equally many are the same for k-iterations of any length
    return found if iterations % found.parts else msgspec.structs.replace(found, unit=iterations // found.parts * found.unit)


def sums_of_parts(problem: Gemm | Conv, tiles: Tiles) -> Bound:
    """The bound of a product of parts. Each product of two numbers has its own error; FP32 registers add one promotion every `promotion`
    products, a rounding each, and the tensor cores' sums in between amount to HALVES_ROUNDINGS or THIRDS_ROUNDINGS more."""
    results, k = size_of(problem)
    roundings = THIRDS_ROUNDINGS if tiles.thirds else HALVES_ROUNDINGS
    error = random_walk(Size(results, roundings + k // tiles.promotion), SUM_UNITS["f32"])
    each = THIRDS_ERROR if tiles.thirds else HALVES_ERROR
    what = "1.5 2^-23 of each product of thirds" if tiles.thirds else "2^-19 of each product of halves"
    mean = MEAN_ERROR if tiles.promotion >= MEAN_ERROR_PROMOTION and not tiles.thirds else 0.0
    source = f"{what} (native/cuda/core/split.cuh), and k additions"
    return Bound(1 + each / k, 0.0, source, operands="split", error=error, mean_error=mean)


def describe(plan: Plan) -> Description:
    problem = plan.workload
    kernel = gemm_kernel(plan.kernel)
    assert isinstance(problem, Gemm) and kernel is not None
    summary = f"product of {problem.m} x {problem.n} x {problem.k}, layout {problem.layout}"
    tiles = tiles_of_launch(plan.on, problem, kernel, plan.launch) if isinstance(plan.on, Gpu) else kernel.tiles
    return launch_text.describe(plan, candidates, summary, launch_text.tiling(problem, tiles))
