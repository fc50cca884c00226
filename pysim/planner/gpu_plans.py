# SPDX-License-Identifier: Apache-2.0
"""Plans for a GPU: the launches of `gpu` (products) and `gpu_conv` (convolutions) as values, with what else was considered."""

from typing import NamedTuple

from pysim.cachemodel.gpu.product import Prediction
from pysim.errors import PlanError, choose
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.planner import gpu, gpu_conv
from pysim.planner.planned import STATES, Considered, Layout, Plan, State
from pysim.problem.conv import Conv
from pysim.problem.text import Workload
from pysim.registry.rows import CONV_FAMILIES, CONV_LAYOUTS, conv_kernels, gemm_kernels


class Asked(NamedTuple):
    """What a plan is asked for of a convolution on a GPU."""

    layout: Layout
    memory_limit: int | None
    algorithm: str | None


def check_asked(asked: Asked, workload: Workload, on: Machine | Gpu) -> None:
    """PlanError for a value that is none, or that means nothing for this problem and machine."""
    if asked.layout not in CONV_LAYOUTS:
        raise PlanError(f'layout is "{asked.layout}"; {choose(asked.layout, CONV_LAYOUTS)}')
    if asked.memory_limit is not None and asked.memory_limit < 0:
        raise PlanError(f"memory_limit is {asked.memory_limit} bytes; it should be at least 0")
    if isinstance(on, Gpu):
        known = CONV_FAMILIES if isinstance(workload, Conv) else ("gemm",)
    else:
        known = ("sconv",) if isinstance(workload, Conv) else ("gemm",)
        if asked.layout != "nchw" or asked.memory_limit is not None:
            what = "a layout" if asked.layout != "nchw" else "a limit of workspace"
            raise PlanError(
                f"{what} is a GPU's alone; {on.name} is a CPU, whose convolutions are NCHW in the workspace that their plan has"
            )
    if asked.algorithm not in (None, *known):
        raise PlanError(f'{workload.text} has no algorithm "{asked.algorithm}" on {on.name}; {choose(str(asked.algorithm), known)}')


def _gpu_conv_plans(w: Conv, on: Gpu, shape: tuple[int, int] | None, state: State, top: int, asked: Asked) -> list[Plan]:
    """The `top` plans of least predicted cost of a convolution on a GPU, best first."""
    rows = [row for row in conv_kernels() if shape in (None, (row.block_filters, row.block_windows))]
    if not rows and shape:
        raise PlanError(f"no CUDA convolution has blocks of {shape[0]}x{shape[1]}, filters x windows; `pysim kernels --cuda` lists them")
    rows = [row for row in rows if asked.algorithm in (None, row.family)]
    found = gpu_conv.space(on, w, asked.layout == "nhwc", rows, state == "hot", asked.memory_limit)
    considered = tuple(Considered(one.schedule, one.cost) for one in gpu_conv.best_of_each(found))
    rejected = gpu_conv.losers(found)
    return [
        Plan(
            workload=w,
            on=on,
            model="full",
            state=state,
            algorithm=one.kernel.family,
            schedule=one.schedule,
            workspace_bytes=one.workspace_bytes,
            cost=one.cost,
            considered=considered,
            rejected=rejected,
            layout=asked.layout,
            memory_limit=asked.memory_limit,
        )
        for one in found.launches[:top]
    ]


def gpu_plans(workload: Workload, on: Gpu, shape: tuple[int, int] | None, state: State, top: int, asked: Asked) -> list[Plan]:
    """The `top` plans of least predicted cost on a GPU, best first."""
    if state not in STATES:
        raise PlanError(f'no cache state is named "{state}"; there is {" and ".join(STATES)}')
    if isinstance(workload, Conv):
        return _gpu_conv_plans(workload, on, shape, state, top, asked)
    rows = [row for row in gemm_kernels() if shape in (None, (row.block_m, row.block_n))]
    if not rows and shape:
        raise PlanError(f"no CUDA kernel has blocks of {shape[0]}x{shape[1]}; `pysim kernels --cuda` lists them")
    space = gpu.space(on, workload, rows)
    prediction = gpu.predict(on, workload, space.rows, space.table, state == "hot")
    order = _within(prediction, gpu.best_walks(prediction), asked.memory_limit)
    first: dict[int, int] = {}
    for row in order:
        first.setdefault(int(prediction.table.kind[row]), row)
    considered = tuple(Considered(gpu.schedule_of(prediction, row), gpu.cost_of(prediction, row)) for row in first.values())
    rejected = gpu.losers(space, prediction, order[0])

    def plan_of(row: int) -> Plan:
        schedule = gpu.schedule_of(prediction, row)
        return Plan(
            workload=workload,
            on=on,
            model="full",
            state=state,
            algorithm="gemm",
            schedule=schedule,
            workspace_bytes=gpu.workspace_bytes(workload, space.rows.kernels[prediction.table.row[row]], schedule),
            cost=gpu.cost_of(prediction, row),
            considered=considered,
            rejected=rejected,
            memory_limit=asked.memory_limit,
        )

    return [plan_of(row) for row in order[:top]]


def _within(prediction: Prediction, order: list[int], limit: int | None) -> list[int]:
    """The launches of a product whose workspace is within the limit. PlanError where there is none."""
    if limit is None:
        return order
    kernels, rows = prediction.rows.kernels, prediction.table.row
    sizes = [gpu.workspace_bytes(prediction.problem, kernels[rows[row]], gpu.schedule_of(prediction, row)) for row in order]
    kept = [row for row, size in zip(order, sizes, strict=True) if size <= limit]
    if not kept:
        raise PlanError(f"{prediction.problem.text}: every kernel needs workspace of {min(sizes):,} bytes or more; the limit is {limit:,}")
    return kept
