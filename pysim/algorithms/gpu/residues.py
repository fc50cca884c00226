# SPDX-License-Identifier: Apache-2.0
"""Products of f64 and f32 by s8 products of residues (native/cuda/gemm/residues/scheme.h; the bound: docs/accuracy.md).

Residues of A, residues of B, the s8 products of all residues as one persistent kernel, the results from their residues, and the product as
the planner has it without residues, which does nothing unless operands are outside the bound. The s8 products are those of a matrix as high
as all residues of A, one below the other; they store a byte an element.

Worked number: gemm:8192x8192x8192:f64 takes 15 s8 products of 1.1e12 operations: 10.8 ms at the 1,533 TOP/s that an H200 sustains, which is
102 TFLOP/s. The passes move 6.8 GB. In f32 7 products take 5.0 ms.
"""

import math
from functools import cache
from typing import NamedTuple

import msgspec

from pysim.algorithms.accuracy import size_of
from pysim.algorithms.gpu import gemm
from pysim.algorithms.interface import Bound, Prepared
from pysim.cachemodel.gpu import launch_text, product_columns
from pysim.cachemodel.gpu.copy_kernels import Pass
from pysim.cachemodel.gpu.launches import ALIGN, Candidates, Variant, prunes, round_up
from pysim.cachemodel.gpu.launches import cost as cost
from pysim.cachemodel.gpu.mainloop import LINE_BYTES
from pysim.cachemodel.gpu.traffic import l2_miss_share
from pysim.machine.gpu import Gpu
from pysim.problem.dtypes import AS_HALVES
from pysim.problem.gemm import Gemm
from pysim.record.cost import Reason, Rejected
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request
from pysim.record.schedule import Decomposition, GpuSchedule
from pysim.registry.cuda import WARP, GemmKernel, cuda_limits, gemm_attributes, gemm_kernel, gemm_kernels

NAME = "residues"
COMPUTES = Gemm
WORDS = {"f64": 3, "f32": 2}  # of 40 bits, in which results are reconstructed
PERMUTED = 64  # columns of the product's residues that are stored together
EXPONENT_BYTES, SQUARES_BYTES = 4, 8
OF_B = "residues of B"
STORED_AS_K = 200  # k in whose products' time a tile's sums become residues: 1.0 to 1.15 us on an H200, beside a variant that drops them


class Scheme(NamedTuple):
    """`norm`: of a scaled row or column, at most (scheme.h); `unit`: the type's unit roundoff."""

    norm: float
    unit: float


SCHEMES = {"f64": Scheme(2.0**58.3887, 2.0**-53), "f32": Scheme(2.0**27.3526, 2.0**-24)}


def refuses(problem: Gemm, machine: Gpu, layout: Layout = "nchw") -> Reason | None:
    if problem.dtype not in SCHEMES:
        return Reason("type", f"it multiplies {' and '.join(SCHEMES)}, not {problem.dtype}")
    if problem.dtype not in machine.model.residues:
        return Reason("machine", f"nobody measured products of residues of {problem.dtype} on {machine.name} (model.residues of its file)")
    return gemm.refuses(problem, machine, layout)


def stacked(problem: Gemm, kernel: GemmKernel) -> Gemm:
    """The s8 products of all residues as one: A's rows of each residue fill whole tiles."""
    rows = kernel.residues * round_up(problem.m, kernel.block_m * kernel.cluster_m)
    return Gemm(m=rows, n=problem.n, k=problem.k, trans_b=True, dtype="s8")


def candidates(request: Request, limit: float | None = None) -> Candidates:
    problem = request.problem
    assert isinstance(problem, Gemm)
    kernels, rejected = gemm.usable(request, problem, NAME, tuple(row for row in gemm_kernels() if row.residues))
    refused = [(kernel, too_short(problem) or kernel_refuses(problem, kernel)) for kernel in kernels]
    rejected += [Rejected(kernel.name, reason.sentence, reason.code) for kernel, reason in refused if reason]
    able = tuple(variant(request, kernel) for kernel, reason in refused if not reason)
    return Candidates(request, able, (NAME,), tuple(rejected), prunes(request, limit))


def kernel_refuses(problem: Gemm, kernel: GemmKernel, placement: gemm.Placement = gemm.DENSE) -> Reason | None:
    """Why a kernel cannot compute a product of this size, or the first that waits cannot in its place."""
    if problem.k > (most := cuda_limits()["RESIDUES_K"]):
        return Reason("size", f"sums of residues are exact for k up to {most:,}")
    return gemm.too_large(stacked(problem, kernel), kernel, gemm.DENSE) or gemm.too_large(problem, first_waiting(problem), placement)


def too_short(problem: Gemm) -> Reason | None:
    """Why this k is left to other kernels."""
    if problem.dtype in AS_HALVES and problem.k < gemm.MIN_PARTS_K:
        return Reason("accuracy", f"below k = {gemm.MIN_PARTS_K} no kernel is accurate enough for operands outside the bound")
    return None


def outside(request: Request) -> GpuSchedule:
    """The launch that computes operands outside the bound: the best without residues, or as a schedule names it."""
    if isinstance(request.schedule, GpuSchedule):
        return request.schedule
    problem = request.problem
    assert isinstance(problem, Gemm)
    best_of_all = msgspec.structs.replace(request, micro_kernel=None, most=math.inf)
    (costs,) = cost(request.gpu, [gemm.candidates(best_of_all, 0.0, _waiting(problem.dtype))])
    best = costs.schedule(int(costs.cycles.argmin()))
    assert isinstance(best, GpuSchedule)
    return msgspec.structs.replace(best, gemm=best.kernel)


def waits(kernel: GemmKernel | None, dtype: str) -> bool:
    """Whether a kernel multiplies this type and looks at the verdict on the operands (native/cuda/abi/gemm.cu)."""
    if kernel is None or kernel.residues:
        return False
    if dtype in AS_HALVES:
        return kernel.dtype == AS_HALVES[dtype] and kernel.producer
    return kernel.dtype == dtype and kernel.reduces_in_cluster > 0


@cache
def _waiting(dtype: str) -> tuple[GemmKernel, ...]:
    return tuple(row for row in gemm_kernels() if waits(row, dtype))


def first_waiting(problem: Gemm) -> GemmKernel:
    """The kernel that computes operands outside the bound if the schedule names none."""
    return _waiting(problem.dtype)[0]


def variant(request: Request, kernel: GemmKernel) -> Variant:
    """A kernel as the model sees it."""
    gpu, problem = request.gpu, request.problem
    assert isinstance(problem, Gemm)
    known = gemm_attributes(gpu.capability_number)
    attributes, own = gemm.attributes_of(kernel, known), stacked(problem, kernel)
    columns, work, family = gemm.product(gpu, own, kernel.tiles, kernel.families, attributes, attributes.efficiency)
    # B is as large as its residues of one modulus, of which concurrent tiles are: counted with all of them, no wide band of tiles fits L2
    columns = columns._replace(
        max_parts=1,
        k=own.k + STORED_AS_K,
        memory_power=memory_power(gpu),
        bytes_c=own.m * own.n,
        result_bytes=1,
        unaligned_c=False,
        sectors=1.0,
    )
    rate = gpu.model.residues[problem.dtype].efficiency.value
    columns = columns._replace(iteration=columns.iteration / rate, lone=columns.lone / rate, sustained=columns.sustained * rate)
    numbers = product_columns.numbers_of(gpu, kernel.pipe, family, f"model.residues.{problem.dtype}.")
    assumed = () if kernel.name in known else (f"kernel_attributes.{kernel.name}",)
    passes = passes_of(gpu, problem, kernel)
    if request.prepared:
        passes = tuple(one for one in passes if one.name != OF_B)

    other = cache(lambda: outside(request))  # only for a plan that is made

    def schedule(decomposition: Decomposition, splits: int, along_n: bool, group: int) -> GpuSchedule:
        return GpuSchedule(kernel.name, other().decomposition, other().splits, along_n, group, other().gemm)

    return Variant(
        kernel.name, schedule, attributes, kernel.name in known, numbers, columns, work, passes=passes, assumed=assumed
    )  # fmt: skip


def memory_power(gpu: Gpu) -> float:
    """Seconds that a byte from memory takes of a launch that the board's power limits. 4096x4096x4096 takes 1,309, 1,320 and 1,355 us on an
    H200 in bands of 8, 4 and 2 columns of tiles, which differ in nothing else."""
    energy = gpu.energy
    if not energy or not energy.limit_watts or "memory" not in energy.byte_joules:
        return 0.0
    return energy.byte_joules["memory"].value / (energy.limit_watts.value - energy.static_watts.value)


def passes_of(gpu: Gpu, problem: Gemm, kernel: GemmKernel) -> tuple[Pass, ...]:
    """Residues of both operands, the results, and what clears the flags and ends at once: the product without residues and, of f32, its
    layout conversion."""
    own, result = gpu.model.residues[problem.dtype], problem.m * problem.n
    results, words = result * kernel.residues, WORDS[problem.dtype]
    size, seconds = problem.element_bytes, own.launch_seconds.value
    idle = 2 + (problem.dtype in AS_HALVES)
    return (
        conversion(gpu, problem, kernel, "residues of A", problem.m, k_major=not problem.trans_a),
        conversion(gpu, problem, kernel, OF_B, problem.n, k_major=problem.trans_b),
        Pass("results", results, result * size, results * words * own.result_instructions.value, 1, launch_seconds=seconds),
        Pass("flags and the other product", 0, 0, 0, idle, launch_seconds=seconds),
    )


def conversion(gpu: Gpu, problem: Gemm, kernel: GemmKernel, name: str, rows: int, k_major: bool) -> Pass:
    """An operand's elements are read for the norm and again for residues: from memory, unless a row fits shared memory (f64) or the rows
    that are converted at once fit L2. A block of k-major rows has one row, so the last wave of blocks leaves SMs idle; of rows that it does
    not hold, a run of each thread at a time. Where k lies across rows, blocks convert chunks of k of a few rows."""
    own, size, k, limits = gpu.model.residues[problem.dtype], problem.element_bytes, problem.k, cuda_limits()
    residues = rows * round_up(k, LINE_BYTES) * kernel.residues
    instructions, seconds = residues * own.operand_instructions.value, own.launch_seconds.value
    if not k_major:
        return Pass(name, 2 * rows * k * size, residues, instructions, 2, own.across_share.value, seconds)
    threads, wave = limits["RESIDUES_THREADS"], own.blocks_at_once.value * gpu.sms.value
    share = rows / (math.ceil(rows / wave) * wave)
    if problem.dtype == "f64" and round_up(k, LINE_BYTES) * size <= limits["RESIDUES_HELD"]:
        return Pass(name, rows * k * size, residues, instructions, 1, share, seconds)
    at_once = min(rows, gpu.sms.value * gpu.warps_per_sm.value * WARP // threads)
    read = (1 + float(l2_miss_share(gpu, at_once * k * size))) * rows * k * size
    return Pass(name, read, residues, instructions, 1, share * k / round_up(k, threads * limits["RESIDUES_RUN"]), seconds)


def workspace_bytes(problem: Gemm, schedule: GpuSchedule, layout: Layout = "nchw") -> int:
    return launch_bytes(problem, schedule)


def prepare(problem: Gemm, schedule: GpuSchedule, layout: Layout = "nchw") -> Prepared:
    kernel = gemm_kernel(schedule.kernel)
    assert kernel is not None
    return Prepared(OF_B, ALIGN + bytes_of_b(problem, kernel))


def bytes_of_b(problem: Gemm, kernel: GemmKernel) -> int:
    """Whether B is within the bound, its residues, exponents and what their conversion needs."""
    residues = kernel.residues * problem.n * round_up(problem.k, LINE_BYTES)
    parts = (ALIGN, residues, problem.n * EXPONENT_BYTES, problem.n * _squares_bytes(problem))
    return sum(round_up(part, ALIGN) for part in parts)


def _squares_bytes(problem: Gemm) -> int:
    """Of a row: sums of squares of each chunk of k, and counts."""
    return (-(-problem.k // cuda_limits()["RESIDUES_CHUNK"]) + 1) * SQUARES_BYTES


def launch_bytes(problem: Gemm, schedule: GpuSchedule, placement: gemm.Placement = gemm.DENSE) -> int:
    """As native/cuda counts it: residues of A, B and C, exponents, the verdict on the operands, and what the other product needs."""
    kernel, first = gemm_kernel(schedule.kernel), first_waiting(problem)
    assert kernel is not None
    other = gemm.launch_bytes(problem, gemm_kernel(schedule.gemm or "") or first, schedule, placement)
    rows, pitch = stacked(problem, kernel).m, round_up(problem.k, LINE_BYTES)
    results = rows * round_up(problem.n, PERMUTED)
    parts = (rows * pitch, results, problem.m * EXPONENT_BYTES, problem.m * _squares_bytes(problem), ALIGN)
    return sum(round_up(part, ALIGN) for part in parts) + bytes_of_b(problem, kernel) + max(ALIGN, other)


def tolerance(problem: Gemm, schedule: GpuSchedule) -> Bound:
    """Operands are rounded to multiples of up to 2 norms of their row over the scheme's, and results once."""
    results, k = size_of(problem)
    norm, unit = SCHEMES[problem.dtype]
    each = math.sqrt(2 / 3) * math.sqrt(k) / norm + unit  # standard deviation over the result's, for operands uniform in [-1, 1)
    source = "k u |A||B| of the rounded operands, u the unit roundoff, and one rounding (docs/accuracy.md)"
    return Bound(1 + 2 / k, 0.0, source, operands="split", error=math.sqrt(2 * math.log(max(2, results))) * each)


def describe(plan: Plan) -> Description:
    problem, kernel = plan.workload, gemm_kernel(plan.kernel)
    assert isinstance(problem, Gemm) and kernel is not None
    summary = f"product of {problem.m} x {problem.n} x {problem.k} by {kernel.residues} s8 products of residues, layout {problem.layout}"
    return launch_text.describe(plan, candidates, summary, launch_text.tiling(stacked(problem, kernel), kernel.tiles))
