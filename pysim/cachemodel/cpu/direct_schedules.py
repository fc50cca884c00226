# SPDX-License-Identifier: Apache-2.0
"""Algorithms with few schedules, which are listed one by one: kernels that read operands in place (depthwise, skinny).

Worked number: three kernels with one schedule each are three candidates; a named plan is one.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from pysim.cachemodel.costs import Costs
from pysim.cachemodel.cpu.cost import Pass, assumed, cost_from
from pysim.cachemodel.cpu.nest import ceil_div
from pysim.cachemodel.cpu.reuse.loops import Array
from pysim.cachemodel.cpu.tilings import build_refuses, row_refuses
from pysim.cachemodel.equations import as_rows
from pysim.errors import PlanError
from pysim.machine.cpu import Machine
from pysim.record.cost import Cost, NoneLegal, Reason, Rejected
from pysim.record.plan import Layout, Plan, Request, on_cpu
from pysim.record.schedule import AnySchedule, Schedule, name_of
from pysim.record.state import State
from pysim.registry.cpu import Kernel, cpu_kernel

_CONSTANTS = ("pack_call", "pack_line", "store_run", "prefetch", "fork", "written", "together")
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


def round_up(size: int, step: int) -> int:
    """`size` rounded up to a multiple of `step`, at least one."""
    return ceil_div(max(1, size), step) * step


Sizes = tuple[int, ...]  # channels of a set, k2, and k3 where it is not 1


class Rows(msgspec.Struct, frozen=True):
    """Schedules grouped by kernel, `counts` of each kernel, with the channels of a set, `k2` and `k3` of each schedule."""

    kernels: tuple[Kernel, ...]
    counts: tuple[int, ...]
    channels: Array
    k2: Array
    k3: Array

    @classmethod
    def of(cls, *groups: tuple[Kernel, Sequence[Sizes]]) -> "Rows":
        kernels, sizes = [kernel for kernel, _ in groups], [(*size, 1)[:3] for _, of in groups for size in of]
        return cls((*kernels,), tuple(len(of) for _, of in groups), *np.array(sizes, dtype=np.float64).reshape(-1, 3).T)

    @classmethod
    def alone(cls, kernel: Kernel, schedule: Schedule) -> "Rows":
        return cls.of((kernel, [(schedule.channels, schedule.k2, schedule.k3)]))

    def columns(self, of: Callable[[Kernel], Iterable[float]]) -> Array:
        """Numbers of a kernel, as the columns of its schedules."""
        return np.repeat(np.array([[*of(kernel)] for kernel in self.kernels], dtype=np.float64).T, self.counts, axis=1)

    def grouped(self, key: Callable[[Kernel], object]) -> Iterator[tuple[slice, "Rows"]]:
        """The schedules of consecutive kernels with equal keys, and their places."""
        start = 0
        for _, group in itertools.groupby(zip(self.kernels, self.counts, strict=True), key=lambda one: key(one[0])):
            kernels, counts = zip(*group, strict=True)
            span = slice(start, start := start + sum(counts))
            yield span, Rows(kernels, counts, self.channels[span], self.k2[span], self.k3[span])


Terms = Mapping[str, Array]
TERMS = "kernel", "call", "store", "pack"  # compute cycles; an algorithm that does not pack has the first three


class Listed(NamedTuple):
    """Schedules with their TERMS (`pysim.algorithms.interface.Candidates`)."""

    request: Request
    rows: Rows
    terms: Array
    rejected: tuple[Rejected, ...]
    limit: float = np.inf


class ListedAlgorithm(NamedTuple):
    """An algorithm that lists the `schedules` of a problem by a kernel, as their sizes.

    `nearest`: the sizes of the legal schedule nearest to a named one; the same ones if it is legal. `terms`: TERMS of schedules of one
    kernel. `passed`: the pass of schedules of kernels of one form, from their terms. `unfit`: why a kernel cannot run a problem.
    `latencies`: whether costs use latencies of levels. `besides`: passes before or after that every schedule has. `layout_of`: the layout
    that a kernel reads and writes; the functions get that one. `pack`: of every schedule. `fewest`: a lower bound on the cycles of a
    kernel's schedules, which needs no list of them.
    """

    name: str
    kernels: Callable[[], Sequence[Kernel]]
    schedules: Callable[[Any, Kernel, Request], Sequence[Sizes]]
    nearest: Callable[[Any, Kernel, Schedule, Layout], Sizes]
    terms: Callable[[Any, Rows, Machine, Layout], tuple[Array | float, ...]]
    passed: Callable[[Any, Rows, Terms, Machine, Request], Pass]
    unfit: Callable[[Any, Kernel, Layout], Reason | None] = lambda problem, kernel, layout: None
    latencies: bool = False
    besides: Callable[[Any, Machine, State], tuple[Pass, ...]] = lambda problem, machine, state: ()
    layout_of: Callable[[Kernel, Layout], Layout] = lambda kernel, layout: layout
    pack: Literal["tiles", "none"] = "none"
    fewest: Callable[[Any, Kernel, Machine], float] | None = None

    def least_cycles(self, request: Request, best: float) -> float:
        """A lower bound: `fewest` if that is above `best`, else the compute terms."""
        if self.fewest and request.threads == 1:
            least = min((self.fewest(request.problem, kernel, request.cpu) for kernel in self.able(request)), default=0.0)
            if least > best:
                return least
        found = self.candidates(request) if request.threads == 1 else None
        return float(found.terms.sum(axis=0).min()) if isinstance(found, Listed) else 0.0

    def shared_cycles(self, request: Request) -> float:
        """Cycles of the passes that every schedule has."""
        return sum(float(one.cycles[0]) for one in self.besides(request.problem, request.cpu, request.state))

    def candidates(self, request: Request, limit: Array | float = 0.0) -> Listed | NoneLegal:
        return _listed(self, request if request.most is None else msgspec.structs.replace(request, most=None))

    def of_type(self, request: Request) -> list[Kernel]:
        """The kernels of the problem's type."""
        return [kernel for kernel in self.kernels() if kernel.dtype == request.problem.dtype]

    def able(self, request: Request) -> list[Kernel]:
        """The kernels that can run."""
        refused = _refused(self, msgspec.structs.replace(request, most=None))
        return [kernel for kernel in self.of_type(request) if kernel not in refused]

    def refuses(self, kernel: Kernel, request: Request) -> Reason | None:
        """Why a kernel of the problem's type cannot run."""
        reason = row_refuses(kernel, request.cpu, request.micro_kernel)
        reason = reason or self.unfit(request.problem, kernel, self.layout_of(kernel, request.layout))
        return reason or build_refuses(kernel, request.cpu)

    def request_of(self, kernel: Kernel, request: Request) -> Request:
        """A request with the layout that a kernel reads and writes."""
        return msgspec.structs.replace(request, layout=self.layout_of(kernel, request.layout))

    def rows(self, request: Request) -> tuple[Rows, tuple[Rejected, ...]]:
        """The schedules of the kernels that can run, or a named plan's only. Raises PlanError if that is not legal."""
        problem, dtype, refused = request.problem, request.problem.dtype, _refused(self, request)
        if request.schedule is None:
            groups = ((kernel, self.schedules(problem, kernel, self.request_of(kernel, request))) for kernel in self.able(request))
            return Rows.of(*groups), tuple(Rejected(kernel.name, why.sentence, why.code) for kernel, why in refused.items())
        name = getattr(request.schedule, "kernel", "")
        if not (kernel := next((one for one in self.of_type(request) if one.name == name), None)):
            raise PlanError(f"{self.name} has no kernel {name} for {dtype}; `pysim kernels` lists them")
        if kernel in refused:
            raise PlanError(f"{kernel.name}: {refused[kernel].sentence}")
        assert isinstance(request.schedule, Schedule)
        schedule = msgspec.structs.replace(request.schedule, algorithm=self.name)
        sizes = self.nearest(problem, kernel, schedule, self.layout_of(kernel, request.layout))
        if schedule != (right := self.schedule(kernel, *sizes)):
            raise PlanError(f"{kernel.name} has no such schedule for {problem.text}; the nearest is {name_of(self.name, right)}")
        return Rows.of((kernel, [sizes])), ()

    def schedule(self, kernel: Kernel, channels: int, k2: int, k3: int = 1) -> Schedule:
        """A schedule with a kernel's own tile."""
        return Schedule(kernel.name, "input_stationary", self.pack, kernel.windows, kernel.filters, channels, k2, k3, self.name)

    def cost(self, machine: Machine, found: Sequence[Listed]) -> list[Costs]:
        """The costs of each list."""
        return [self._costs(machine, one) for one in found]

    def _costs(self, machine: Machine, of: Listed) -> Costs:
        """By one pass for the kernels of each form."""
        rows, passes = of.rows, list[tuple[slice, Pass]]()
        for span, some in rows.grouped(lambda kernel: kernel.form):
            request = self.request_of(some.kernels[0], of.request)
            terms = dict(zip(TERMS, of.terms[:, span], strict=False))
            passes.append((span, self.passed(request.problem, some, terms, machine, request)))
        besides, shared = self.besides(of.request.problem, machine, of.request.state), self.shared_cycles(of.request)
        cycles = np.concatenate([one.cycles for _, one in passes]) + shared
        kernel = np.repeat(np.arange(len(rows.kernels)), rows.counts)

        def cost(row: int) -> Cost:
            span, one = next(item for item in passes if row < item[0].stop)
            return cost_from([*besides, one], row - span.start)

        return Costs(
            cycles=cycles,
            kernels=tuple(kernel.name for kernel in rows.kernels),
            kernel=kernel,
            kinds=(self.name,),
            kind=np.zeros(cycles.size, dtype=np.int64),
            bounds=np.array([cycles[span].min() for span, _ in rows.grouped(lambda kernel: kernel)]),
            alike=(kernel << 32) + rows.channels.astype(np.int64),
            schedule=lambda row: self.schedule(rows.kernels[kernel[row]], int(rows.channels[row]), int(rows.k2[row]), int(rows.k3[row])),
            cost=cost,
            assumed=lambda row: assumed(machine, rows.kernels[kernel[row]].target, self.latencies, UNUSED_CONSTANTS),
        )


@lru_cache(maxsize=8)
def _refused(algorithm: ListedAlgorithm, request: Request) -> dict[Kernel, Reason]:
    """The kernels of the problem's type that cannot run, and why."""
    return {kernel: reason for kernel in algorithm.of_type(request) if (reason := algorithm.refuses(kernel, request))}


@lru_cache(maxsize=8)
def _listed(algorithm: ListedAlgorithm, request: Request) -> Listed | NoneLegal:
    rows, rejected = algorithm.rows(request)
    if not rows.channels.size:
        return NoneLegal(rejected)
    terms = list[Array]()
    for span, one in rows.grouped(lambda kernel: kernel):
        layout = algorithm.layout_of(one.kernels[0], request.layout)
        terms.append(as_rows(span.stop - span.start, *algorithm.terms(request.problem, one, request.cpu, layout)))
    return Listed(request, rows, np.concatenate(terms, axis=1), rejected)
