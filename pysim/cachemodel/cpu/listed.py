# SPDX-License-Identifier: Apache-2.0
"""Algorithms with few schedules, which are listed one by one: kernels that read operands in place (depthwise, skinny).

Worked number: three kernels with one schedule each are three candidates; a named plan is one.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from pysim.cachemodel.costs import Costs, numbered
from pysim.cachemodel.cpu.cost import Pass, assumed, cost_from
from pysim.cachemodel.cpu.loops import Array
from pysim.cachemodel.cpu.nest import ceil_div
from pysim.cachemodel.cpu.tilings import row_refuses
from pysim.errors import PlanError
from pysim.machine.cpu import Machine
from pysim.record.cost import Reason, Rejected
from pysim.record.plan import Layout, Plan, Request, on_cpu
from pysim.record.schedule import AnySchedule, Schedule, name_of
from pysim.record.state import State
from pysim.registry.cpu import Kernel, cpu_kernel

_CONSTANTS = ("pack_call", "pack_line", "store_run", "prefetch", "scattered", "fork", "written", "together")
UNUSED_CONSTANTS = tuple(f"core.{name}" for name in _CONSTANTS)  # costs between inner loops that these algorithms do not have


@lru_cache(maxsize=64)
def type_refusal(dtype: str, kernels: tuple[Kernel, ...]) -> Reason | None:
    """Why none of the kernels computes a type."""
    known = sorted({kernel.dtype for kernel in kernels})
    return None if dtype in known else Reason("type", f"it computes {' and '.join(known)}; the problem is {dtype}")


def row_of(schedule: AnySchedule) -> Kernel:
    """The kernel of a legal schedule."""
    kernel = cpu_kernel(schedule.kernel)
    assert kernel
    return kernel


def unpacked_plan(plan: Plan) -> tuple[Any, Schedule, Kernel]:
    """The problem, the schedule and the kernel of a plan for a CPU."""
    schedule, _ = on_cpu(plan)
    return plan.workload, schedule, row_of(schedule)


def kernel_schedule(kernel: Kernel, channels: int, k2: int = 1, pack: Literal["tiles", "none"] = "none") -> Schedule:
    """A schedule with a kernel's own tile."""
    return Schedule(kernel.name, "input_stationary", pack, kernel.windows, kernel.filters, channels, k2, 1)


def round_up(size: int, step: int) -> int:
    """`size` rounded up to a multiple of `step`, at least one."""
    return ceil_div(max(1, size), step) * step


Rows = Sequence[tuple[Kernel, Schedule]]
Terms = Mapping[str, Array]
TERMS = "kernel", "call", "store", "pack"  # compute cycles; an algorithm that does not pack has the first three


class Listed(NamedTuple):
    """Schedules with their kernels, grouped by kernel, and their TERMS (`pysim.algorithms.contract.Candidates`)."""

    request: Request
    rows: Rows
    terms: Array
    rejected: tuple[Rejected, ...]
    limit: float = np.inf


class ListedAlgorithm(NamedTuple):
    """An algorithm that lists the `schedules` of a problem by a kernel.

    `nearest`: the legal schedule nearest to a named one; the same one if it is legal. `terms`: TERMS of a schedule. `passed`: the pass
    of schedules of kernels of one form, from their terms. `unfit`: why a kernel cannot run a problem. `latencies`: whether costs use
    latencies of levels. `besides`: passes before or after that every schedule has. `layout_of`: the layout that a kernel reads and
    writes; the functions get that one.
    """

    name: str
    kernels: Callable[[], Sequence[Kernel]]
    schedules: Callable[[Any, Kernel, Request], Iterable[Schedule]]
    nearest: Callable[[Any, Kernel, Schedule, Layout], Schedule]
    terms: Callable[[Any, Kernel, Schedule, Machine, Layout], tuple[float, ...]]
    passed: Callable[[Any, Rows, Terms, Machine, Request], Pass]
    unfit: Callable[[Any, Kernel, Layout], Reason | None] = lambda problem, kernel, layout: None
    latencies: bool = False
    besides: Callable[[Any, Machine, State], tuple[Pass, ...]] = lambda problem, machine, state: ()
    layout_of: Callable[[Kernel, Layout], Layout] = lambda kernel, layout: layout

    def least_cycles(self, request: Request, best: float) -> float:
        """A lower bound: the compute terms."""
        terms = _listed(self, request).terms if request.threads == 1 else np.empty(0)
        return float(terms.sum(axis=0).min()) if terms.size else 0.0

    def shared_cycles(self, request: Request) -> float:
        """Cycles of the passes that every schedule has."""
        return sum(float(one.cycles[0]) for one in self.besides(request.problem, request.cpu, request.state))

    def candidates(self, request: Request, limit: Array | float = 0.0) -> Listed:
        return _listed(self, request)

    def refuses(self, kernel: Kernel, request: Request) -> Reason | None:
        """Why a kernel of the problem's type cannot run."""
        reason = row_refuses(kernel, request.cpu, request.micro_kernel)
        return reason or self.unfit(request.problem, kernel, self.layout_of(kernel, request.layout))

    def request_of(self, kernel: Kernel, request: Request) -> Request:
        """A request with the layout that a kernel reads and writes."""
        return request._replace(layout=self.layout_of(kernel, request.layout))

    def rows(self, request: Request) -> tuple[Rows, tuple[Rejected, ...]]:
        """The schedules of the kernels that can run, or a named plan's only. Raises PlanError if that is not legal."""
        problem, dtype = request.problem, request.problem.dtype
        known = {kernel.name: kernel for kernel in self.kernels() if kernel.dtype == dtype}
        refused = {kernel: reason for kernel in known.values() if (reason := self.refuses(kernel, request))}
        if request.schedule is None:
            able = (kernel for kernel in known.values() if kernel not in refused)
            rows = (
                (kernel, self._own(one)) for kernel in able for one in self.schedules(problem, kernel, self.request_of(kernel, request))
            )
            return (*rows,), tuple(Rejected(kernel.name, why.sentence, why.code) for kernel, why in refused.items())
        name = getattr(request.schedule, "kernel", "")
        if not (kernel := known.get(name)):
            raise PlanError(f"{self.name} has no kernel {name} for {dtype}; `pysim kernels` lists them")
        if kernel in refused:
            raise PlanError(f"{kernel.name}: {refused[kernel].sentence}")
        assert isinstance(request.schedule, Schedule)
        schedule = self._own(request.schedule)
        if schedule != (right := self._own(self.nearest(problem, kernel, schedule, self.layout_of(kernel, request.layout)))):
            raise PlanError(f"{kernel.name} has no such schedule for {problem.text}; the nearest is {name_of(self.name, right)}")
        return ((kernel, schedule),), ()

    def _own(self, schedule: Schedule) -> Schedule:
        """A schedule of this algorithm."""
        return msgspec.structs.replace(schedule, algorithm=self.name)

    def cost(self, machine: Machine, found: Sequence[Listed]) -> list[Costs]:
        """The costs of each list."""
        return [self._costs(machine, one) for one in found]

    def _costs(self, machine: Machine, of: Listed) -> Costs:
        """By one pass for the kernels of each form."""
        rows, passes = of.rows, list[tuple[Pass, int]]()
        for _, some in itertools.groupby(range(len(rows)), key=lambda at: rows[at][0].form):
            at = [*some]
            terms = dict(zip(TERMS, of.terms[:, at], strict=False))
            request = self.request_of(rows[at[0]][0], of.request)
            one = self.passed(request.problem, rows[at[0] : at[-1] + 1], terms, machine, request)
            passes += [(one, column) for column in range(len(at))]
        besides, shared = self.besides(of.request.problem, machine, of.request.state), self.shared_cycles(of.request)
        cycles = np.array([one.cycles[column] + shared for one, column in passes])
        kernels, kernel = numbered(kernel.name for kernel, _ in rows)
        return Costs(
            cycles,
            kernels,
            kernel,
            (self.name,),
            np.zeros(len(rows), dtype=np.int64),
            np.array([cycles[kernel == at].min() for at in range(len(kernels))]),
            kernel,
            lambda row: rows[row][1],
            lambda row: cost_from([*besides, passes[row][0]], passes[row][1]),
            lambda row: assumed(machine, rows[row][0].target, self.latencies, UNUSED_CONSTANTS),
        )


@lru_cache(maxsize=8)
def _listed(algorithm: ListedAlgorithm, request: Request) -> Listed:
    rows, rejected = algorithm.rows(request)
    terms = [algorithm.terms(request.problem, *row, request.cpu, algorithm.layout_of(row[0], request.layout)) for row in rows]
    return Listed(request, rows, np.array(terms).T, rejected)
