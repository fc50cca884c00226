# SPDX-License-Identifier: Apache-2.0
"""Accuracy reproducible: the contract that a layer's results keep, chosen by the layer alone, and the plans that keep it.

    3x3, stride 1, no dilation, groups of at least 16 channels and 16 filters    winograd 2x2 3x3
    any other f32 or f64                                                         chain
    s8                                                                           whole numbers

Neither the batch nor the machine nor the rows of a product are in the rule. For GPUs the cost model chooses a layer's contract
(`pysim.planner.contracts`). An algorithm says by `contract(problem, schedule)` what a
schedule's results are, or None if they depend on tiles, vectors or blocks (lanes of partial sums, an order by blocks of channels).

Worked number: gemm:MxNx4096 is a chain in 4 sets of 1024, whatever M and N.
"""

from pysim.algorithms.interface import Algorithm
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.problem.text import Workload
from pysim.record.contract import Contract, GpuContract
from pysim.record.cost import Reason
from pysim.record.plan import Layout, Request
from pysim.record.schedule import AnySchedule, GpuSchedule
from pysim.registry.cpu import cpu_kernel

MIN_WINOGRAD = 16  # channels and filters of a group; with fewer, transforms take longer than they save
MAX_DEPTH = 1024  # products of a chain's set, about; its panels stay in L2 of any machine


def contract_of(problem: Workload) -> Contract | None:
    """The contract of a layer's results; None if nothing keeps one for its type."""
    if problem.dtype == "s8":
        return Contract("whole numbers", depth_of(problem))
    if problem.dtype not in ("f32", "f64"):
        return None
    return Contract("winograd 2x2 3x3", depth_of(problem)) if suits_winograd(problem) else Contract("chain", set_of(problem))


def suits_winograd(problem: Workload) -> bool:
    if not isinstance(problem, Conv) or problem.is_volume:
        return False
    sizes = problem.kernel_h, problem.kernel_w, problem.stride_h, problem.stride_w, problem.dilation_h, problem.dilation_w
    return sizes == (3, 3, 1, 1, 1, 1) and min(problem.group_channels, problem.group_filters) >= MIN_WINOGRAD


def depth_of(problem: Workload) -> int:
    """Channels of a sum."""
    return problem.group_channels if isinstance(problem, Conv) else problem.k


def set_of(problem: Workload) -> int:
    """Channels of a set of a chain."""
    channels, taps = depth_of(problem), problem.taps if isinstance(problem, Conv) else 1
    parts = -(-channels * taps // MAX_DEPTH)
    return -(-channels // next(part for part in (1, 2, 3, 4, 6, 8, 12, 16, 32) if part >= min(parts, 32)))


def refuses(request: Request, algorithm: Algorithm, schedule: AnySchedule) -> Reason | None:
    """Why a plan does not keep the contract that a request asks for; None if it does."""
    problem, asked = request.problem, request.contract
    kept = contract(algorithm, problem, schedule, request.layout)
    if asked is None and isinstance(request.machine, Gpu):
        return Reason("accuracy", f"no kernel of {request.machine.name} sums this layer in an order that is the layer's alone")
    if asked is None:
        return Reason("accuracy", f"sums of {problem.dtype} have no contract; accuracy reproducible takes f32, f64 and s8")
    if kept == asked:
        return None
    own = "bits that depend on its tiles or vectors" if kept is None else f"the contract {kept}"
    return Reason("accuracy", f"its results have {own}; accuracy reproducible takes {asked} here")


def contract(algorithm: Algorithm, problem: Workload, schedule: AnySchedule, layout: Layout) -> Contract | GpuContract | None:
    """What the results of a schedule are; None if they depend on more than the layer."""
    of = getattr(algorithm, "contract", None)
    if isinstance(schedule, GpuSchedule):
        on_gpu: GpuContract | None = of(problem, schedule, layout) if of else None
        return on_gpu
    if problem.dtype == "s8":
        return contract_of(problem)
    row = cpu_kernel(schedule.kernel)
    if row is None or not row.fused or problem.dtype not in ("f32", "f64"):
        return None
    kept: Contract | None = of(problem, schedule) if of else None
    return kept
