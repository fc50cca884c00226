# SPDX-License-Identifier: Apache-2.0
"""Schedules that are so few that they are listed: those of kernels that read operands as they lie (depthwise, skinny).

Worked number: three kernels of one schedule each are three candidates of three kernels; of a named plan there is one.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from pysim.cachemodel.cpu.cost import Pass, assumed, cost_from
from pysim.cachemodel.cpu.tilings import row_refuses
from pysim.errors import PlanError
from pysim.machine.cpu import Machine
from pysim.record.cost import Cost, Reason, Rejected
from pysim.record.plan import Request
from pysim.record.schedule import AnySchedule, Schedule
from pysim.registry.cpu import Kernel, cpu_kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pysim.cachemodel.cpu.incore import Array


_CONSTANTS = ("pack_call", "pack_line", "store_run", "prefetch", "scattered", "fork", "written", "together")
UNREAD = tuple(f"core.{name}" for name in _CONSTANTS)  # of the constants between inner loops


def untyped(dtype: str, kernels: Iterable[Kernel]) -> Reason | None:
    """Why none of the kernels computes a type."""
    known = sorted({kernel.dtype for kernel in kernels})
    return None if dtype in known else Reason("type", f"it computes {' and '.join(known)}; the problem is {dtype}")


def row_of(schedule: AnySchedule) -> Kernel:
    """The kernel of a schedule that is legal."""
    kernel = cpu_kernel(schedule.kernel)
    assert kernel
    return kernel


class Listed(NamedTuple):
    """Schedules with their kernels, those of a kernel one after another (`pysim.algorithms.contract.Candidates`)."""

    request: Request
    rows: tuple[tuple[Kernel, Schedule], ...]
    rejected: tuple[Rejected, ...]
    limit: float = np.inf


def candidates(
    name: str,
    request: Request,
    kernels: Iterable[Kernel],
    schedules: Callable[[Kernel], Iterable[Schedule]],
    wrong: Callable[[Kernel, Schedule], str],
    unfit: Callable[[Kernel], Reason | None] = lambda kernel: None,
) -> Listed:
    """The `schedules` of the kernels of algorithm `name` that can run and are not `unfit` for the problem; a named plan's where it is
    right: where nothing is `wrong` with it. Raises PlanError where it is not."""
    machine = request.machine
    assert isinstance(machine, Machine)

    def refuses(kernel: Kernel) -> Reason | None:
        return row_refuses(kernel, machine, request.micro_kernel) or unfit(kernel)

    dtype, known = request.problem.dtype, {kernel.name: kernel for kernel in kernels if kernel.dtype == request.problem.dtype}
    if request.schedule is None:
        refused = {kernel: refuses(kernel) for kernel in known.values()}
        rejected = tuple(Rejected(kernel.name, reason.sentence, reason.code) for kernel, reason in refused.items() if reason)
        rows = tuple((kernel, one) for kernel, reason in refused.items() if not reason for one in schedules(kernel))
        return Listed(request, rows, rejected)
    asked = getattr(request.schedule, "kernel", "")
    if not (kernel := known.get(asked)):
        raise PlanError(f"{name} has no kernel {asked} for {dtype}; `pysim kernels` lists them")
    if reason := refuses(kernel):
        raise PlanError(f"{kernel.name}: {reason.sentence}")
    assert isinstance(request.schedule, Schedule)
    schedule = msgspec.structs.replace(request.schedule, algorithm=name)
    if why := wrong(kernel, schedule):
        raise PlanError(f"{kernel.name} has {why}")
    return Listed(request, ((kernel, schedule),), ())


class ListedCosts:
    """What they cost, by passes of some each (`pysim.algorithms.contract.Costs`); `latencies`: it leans on those of the levels, too."""

    def __init__(self, name: str, of: Listed, passes: Sequence[Pass], latencies: bool) -> None:
        on = of.request.machine
        assert isinstance(on, Machine)
        self._rows, self._on, self._latencies = of.rows, on, latencies
        self._at = [(one, column) for one in passes for column in range(one.moved.shape[-1])]
        self.kinds = (name,)
        self.cycles: Array = np.concatenate([one.cycles for one in passes] or [np.empty(0)])
        self.kernels = tuple(dict.fromkeys(kernel.name for kernel, _ in of.rows))
        self.kernel: NDArray[np.int64] = np.array([self.kernels.index(kernel.name) for kernel, _ in of.rows], dtype=np.int64)
        self.alike, self.kind = self.kernel, np.zeros(len(of.rows), dtype=np.int64)
        self.bounds: Array = np.array([self.cycles[self.kernel == at].min() for at in range(len(self.kernels))])

    def schedule(self, row: int) -> Schedule:
        return self._rows[row][1]

    def cost(self, row: int) -> Cost:
        one, column = self._at[row]
        return cost_from([one], column)

    def assumed(self, row: int) -> tuple[str, ...]:
        return assumed(self._on, self._rows[row][0].target, self._latencies, UNREAD)
