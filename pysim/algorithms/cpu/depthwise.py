# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolutions and those of groups of few channels, from operands as they lie: nothing is packed or prepared.

The kernels are the rows of `native/conv/depthwise.inc`, each with one schedule; `pysim.cachemodel.cpu.depthwise` costs them.

Worked number: conv:g960ic960ih7oc960kh3ph1 has rows of 7 outputs. Of 16 lanes `rows` uses 7, `planes` all, for 8 blocks of 16x16 elements
transposed per 16 groups.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from pysim.algorithms.contract import SUMS, Array, Bound
from pysim.cachemodel.cpu.depthwise import depthwise_cost, planes_elements, shares_rows
from pysim.cachemodel.cpu.nest import PANEL_ALIGN, ceil_div
from pysim.cachemodel.cpu.threads import Part, rows_of
from pysim.cachemodel.cpu.tilings import row_refuses
from pysim.errors import PlanError
from pysim.machine.cpu import Machine
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SIZES
from pysim.record.cost import Cost, Reason, Rejected
from pysim.record.description import Description, Section, bytes_text
from pysim.record.plan import Layout, Plan, Request
from pysim.record.schedule import Schedule
from pysim.registry.cpu import Kernel, direct_kernels

if TYPE_CHECKING:
    from numpy.typing import NDArray

NAME = "depthwise"
COMPUTES = Conv
MOST_CHANNELS = 16  # of a group: more are worth packing, which these kernels cannot


def refuses(problem: Conv, machine: Machine, layout: Layout) -> Reason | None:
    if layout != "nchw":
        return Reason("shape", f"its input and output are NCHW, and {layout.upper()} was asked for")
    known = sorted({kernel.dtype for kernel in direct_kernels()})
    if problem.dtype not in known:
        return Reason("type", f"it computes {' and '.join(known)}; the problem is {problem.dtype}")
    if problem.groups == 1:
        return Reason("shape", "it takes two groups or more: a dense convolution is worth packing")
    if (channels := problem.channels // problem.groups) > MOST_CHANNELS:
        return Reason("shape", f"it takes groups of up to {MOST_CHANNELS} channels; these have {channels}")
    return None


def _row_refuses(kernel: Kernel, problem: Conv, request: Request) -> Reason | None:
    machine = request.machine
    assert isinstance(machine, Machine)
    if reason := row_refuses(kernel, machine, request.shape):
        return reason
    if kernel.lane_filters > 1 and not problem.groups == problem.channels == problem.filters:
        return Reason("shape", "it takes groups of one channel and one filter")
    if kernel.lane_filters == 1 < kernel.filters and problem.filters == problem.groups:
        return Reason("shape", "its tiles are of several filters of a group, and these have one")
    return None


class Candidates(NamedTuple):
    """The kernels that can run, each with its one schedule."""

    request: Request
    kernels: tuple[Kernel, ...]
    limit: float
    rejected: tuple[Rejected, ...]


def candidates(request: Request, limit: float | None) -> Candidates:
    problem = request.problem
    assert isinstance(problem, Conv)
    if request.model == "csa":
        return Candidates(request, (), np.inf, (Rejected(NAME, "the slicing analysis is of sconv's nest", "type"),))
    if request.schedule is not None:
        return Candidates(request, (_named(request.schedule, problem, request),), np.inf, ())
    refused = [(kernel, _row_refuses(kernel, problem, request)) for kernel in direct_kernels() if kernel.dtype == problem.dtype]
    rejected = tuple(Rejected(kernel.name, reason.sentence, reason.code) for kernel, reason in refused if reason)
    return Candidates(request, tuple(kernel for kernel, reason in refused if not reason), np.inf, rejected)


def _named(schedule: object, problem: Conv, request: Request) -> Kernel:
    """The kernel of a named plan; PlanError where it cannot run or the schedule is not its own."""
    name = getattr(schedule, "kernel", "")
    kernel = next((row for row in direct_kernels() if row.name == name), None)
    if kernel is None or kernel.dtype != problem.dtype:
        raise PlanError(f"{NAME} has no kernel {name} for {problem.dtype}; `pysim kernels` lists them")
    if reason := _row_refuses(kernel, problem, request):
        raise PlanError(f"{kernel.name}: {reason.sentence}")
    own = _schedule(kernel, problem)
    if not isinstance(schedule, Schedule) or msgspec.structs.replace(schedule, algorithm=NAME) != own:
        raise PlanError(f"{kernel.name} has one schedule for {problem.text}: {own}")
    return kernel


def _schedule(kernel: Kernel, problem: Conv) -> Schedule:
    channels = problem.channels // problem.groups
    return Schedule(kernel.name, "input_stationary", "none", kernel.windows, kernel.filters, channels, 1, 1, NAME)


class Costs:
    """One cost a kernel (`pysim.algorithms.contract.Costs`)."""

    kinds = (NAME,)

    def __init__(self, of: Candidates) -> None:
        self._of = of
        problem, on = of.request.problem, of.request.machine
        assert isinstance(problem, Conv) and isinstance(on, Machine)
        self._costs = tuple(depthwise_cost(problem, kernel, on, of.request.hot) for kernel in of.kernels)
        self.kernels = tuple(kernel.name for kernel in of.kernels)
        self.cycles: Array = np.array([cost.cycles for cost in self._costs], dtype=np.float64)
        self.bounds: Array = self.cycles
        self.kernel: NDArray[np.int64] = np.arange(len(self.kernels))
        self.alike = self.kernel
        self.kind: NDArray[np.int64] = np.zeros(len(self.kernels), dtype=np.int64)

    def schedule(self, row: int) -> Schedule:
        problem = self._of.request.problem
        assert isinstance(problem, Conv)
        return _schedule(self._of.kernels[row], problem)

    def cost(self, row: int) -> Cost:
        return self._costs[row]

    def assumed(self, row: int) -> tuple[str, ...]:
        """What the model reads: rates of the kernel's unit and of the levels, call_cycles and overlap."""
        on, target = self._of.request.machine, self._of.kernels[row].target
        assert isinstance(on, Machine)
        read = ("core.call_cycles", "core.overlap", "core.frequency_hz", f"core.units.{target}", "levels", "memory")
        return tuple(path for path in on.assumed() if path.startswith(read) and not path.endswith("latency_cycles"))


def cost(machine: Machine, found: Sequence[Candidates]) -> list[Costs]:
    return [Costs(one) for one in found]


def prepare(problem: Conv, schedule: Schedule, layout: Layout) -> None:
    return None  # weights are read as they are


def workspace_bytes(problem: Conv, schedule: Schedule, layout: Layout) -> int:
    """Of `planes` the transposed planes of one block of groups, in whole lines."""
    kernel = next(row for row in direct_kernels() if row.name == schedule.kernel)
    size = planes_elements(problem, kernel.lane_filters) * SIZES[problem.dtype] if kernel.lane_filters > 1 else 0
    return ceil_div(size, PANEL_ALIGN) * PANEL_ALIGN + PANEL_ALIGN


def tolerance(problem: Conv, schedule: Schedule) -> Bound:
    return SUMS


def largest_part(problem: Conv, schedule: Schedule, threads: int) -> Part:
    """Some groups of an image, and where these are few, rows of them (native/conv/depthwise.c)."""
    kernel = next(row for row in direct_kernels() if row.name == schedule.kernel)
    units = ceil_div(problem.groups, kernel.lane_filters)
    group_parts = min(threads, units)
    row_parts = min(threads, problem.out_h) if kernel.lane_filters == 1 and problem.batch * group_parts < threads else 1
    times = ceil_div(problem.batch * group_parts * row_parts, threads)
    groups = min(problem.groups, ceil_div(units, group_parts) * kernel.lane_filters)
    least = max(2, groups)  # of a problem that is depthwise
    part = rows_of(problem, times, ceil_div(problem.out_h, row_parts), problem.filters // problem.groups, least)
    return Part(part, schedule, groups / least)


def describe(plan: Plan) -> Description:
    w, on = plan.workload, plan.on
    kernel = next(row for row in direct_kernels() if row.name == plan.schedule.kernel)
    assert isinstance(w, Conv) and isinstance(on, Machine)
    unit = on.unit(kernel.target)
    high, each = kernel.windows // kernel.lane_windows, f"for each of {w.batch} images x {w.groups} groups"
    if kernel.lane_filters > 1:
        kept = bytes_text(planes_elements(w, kernel.lane_filters) * SIZES[w.dtype])
        loops: tuple[str, ...] = (
            f"for each of {w.batch} images x {ceil_div(w.groups, kernel.lane_filters)} blocks of {kernel.lane_filters} groups, one a lane",
            f"  transpose their planes and weights ({kept} with their outputs)",
            f"  for each row of outputs, up to {kernel.windows} columns at once: the kernel's rows that meet the image",
            "  transpose the outputs back",
        )
    else:
        shared = "each row of the input is loaded once for all rows of the tile" if shares_rows(w, kernel) else "kernel rows one by one"
        loops = (
            each,
            f"  for up to {high} rows of outputs, up to {kernel.filters} filters of the group",
            f"    for each {kernel.lane_windows} columns: {w.channels // w.groups} channels, {w.kernel_h}x{w.kernel_w} taps; {shared}",
        )
    peak = 2 * unit.rate(w.dtype) * kernel.lane_windows * kernel.lane_filters * on.clock_hz if unit else 0.0
    return Description("groups of few channels, operands read as they lie", (Section("loops", loops),), peak)
