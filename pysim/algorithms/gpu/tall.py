# SPDX-License-Identifier: Apache-2.0
"""Products of many rows, few columns and short k on a GPU, by the stream of pointwise convolutions (`pointwise`): rows of A are pixels and
rows of B filters, and k is the channels. B stays in shared memory, so A is read and C written once.

Worked number: gemm:100352x24x96:nt:f16 moves 24 MB; its 3,136 tiles of 32 rows are two for each of the 12 warps of 132 blocks.
"""

from functools import partial

import msgspec

from pysim.algorithms.convolution import conv_rows
from pysim.algorithms.gpu import gemm, pointwise
from pysim.algorithms.interface import DIRECT_SUM, Bound, nothing_prepared
from pysim.cachemodel.gpu import launch_text
from pysim.cachemodel.gpu.launches import Candidates, Variant, prunes
from pysim.cachemodel.gpu.launches import cost as cost
from pysim.cachemodel.gpu.occupancy import occupancy
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.record.contract import GpuContract
from pysim.record.cost import Reason, Rejected
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request
from pysim.record.schedule import GpuSchedule
from pysim.registry.cuda import GemmKernel, cuda_limits, gemm_attributes, gemm_kernel, gemm_kernels

NAME = "tall"
COMPUTES = Gemm
prepare = nothing_prepared


def rows() -> tuple[GemmKernel, ...]:
    return tuple(row for row in gemm_kernels() if row.dense)


def refuses(problem: Gemm, machine: Gpu, layout: Layout = "nchw") -> Reason | None:
    if problem.dtype not in (known := sorted(row.dtype for row in rows())):
        return Reason("type", f"there is no {problem.dtype} CUDA kernel of it; the registry has {', '.join(known) or 'none'}")
    if problem.trans_a or not problem.trans_b:
        return Reason("shape", "it takes operands whose k is contiguous; a pass that copies one would read and write what it saves")
    return gemm.refuses(problem, machine, layout) or kernel_refuses(problem)


def as_conv(problem: Gemm) -> Conv:
    """The product as a pointwise convolution of channels-last pixels."""
    sizes = {"batch": 1, "channels": problem.k, "height": 1, "width": problem.m, "filters": problem.n}
    return Conv(**sizes, kernel_h=1, kernel_w=1, dtype=problem.dtype)


def kernel_refuses(problem: Gemm) -> Reason | None:
    """Why no kernel computes a product of this size, as the native library says it."""
    if problem.m * problem.n > cuda_limits()["CONV_TENSOR"]:
        return Reason("size", "it takes results of up to 2^30 elements, counted with the gaps between rows")
    return pointwise.refuses_sizes(as_conv(problem))


def candidates(request: Request, limit: float | None = None) -> Candidates:
    problem, gpu, able = request.problem, request.gpu, list[Variant]()
    assert isinstance(problem, Gemm)
    kernels, rejected = gemm.usable(request, problem, NAME, rows())
    for kernel in kernels:
        one = variant(gpu, problem, kernel)
        if occupancy(gpu, one.attributes):
            able.append(one)
        else:
            rejected.append(Rejected(kernel.name, f"no block of this problem fits on an SM of {gpu.name}", "machine"))
    return Candidates(request, tuple(able), (NAME,), tuple(rejected), prunes(request, limit))


def variant(gpu: Gpu, problem: Gemm, kernel: GemmKernel) -> Variant:
    """A kernel as the model sees it: the row of pointwise convolutions of its type."""
    row = next(row for row in conv_rows(pointwise.ALGORITHM.NAME) if row.dtype == kernel.dtype)
    found = pointwise.Pointwise(row, as_conv(problem), "nhwc").variant(gpu, gemm_attributes(gpu.capability_number))
    return msgspec.structs.replace(found, kernel=kernel.name, schedule=partial(GpuSchedule, kernel.name))


def workspace_bytes(problem: Gemm, schedule: GpuSchedule, layout: Layout = "nchw") -> int:
    kernel = gemm_kernel(schedule.kernel)
    assert kernel is not None
    return gemm.launch_bytes(problem, kernel, schedule)


def tolerance(problem: Gemm, schedule: GpuSchedule) -> Bound:
    return DIRECT_SUM


def contract(problem: Gemm, schedule: GpuSchedule, layout: Layout) -> GpuContract | None:
    """None: a residual or a bias is added last as C is aligned."""
    return None


def describe(plan: Plan) -> Description:
    problem, gpu = plan.workload, plan.on
    assert isinstance(problem, Gemm) and isinstance(gpu, Gpu)
    t = pointwise.tiling_of(as_conv(problem), int(gpu.sms.value), int(gpu.shared_bytes_per_block.value))
    assert t is not None
    parts = f"{t.parts} {'part' if t.parts == 1 else 'parts'} of B"
    blocks = f"{t.workers * t.parts} blocks of {t.warps} warps with {t.stages} buffers each"
    line = f"{'stream':<18}{t.tiles:,} tiles of {pointwise.WINDOWS} rows, {parts}; {blocks}"
    summary = f"product of {problem.m} x {problem.n} x {problem.k}, rows of A as a stream, layout {problem.layout}"
    return launch_text.describe(plan, candidates, summary, (line,))
