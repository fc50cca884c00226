# SPDX-License-Identifier: Apache-2.0
"""The interface's answers of algorithms that are the loop nest `pysim.cachemodel.cpu.nest`; they differ in the operands that they pack.

Worked number: gemm:512x512x512 is a nest of 512 windows, 512 filters and 512 channels, whether A is packed or read in place.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from pysim.algorithms.interface import Nests, Prepared
from pysim.algorithms.reproducible import set_of
from pysim.cachemodel.cpu import nest_schedules, nest_text
from pysim.cachemodel.cpu.nest import Nest, nest_of, packed_filter_bytes, room_bytes, workspace_bytes
from pysim.cachemodel.cpu.reuse.loops import Array
from pysim.cachemodel.cpu.tilings import Forms
from pysim.machine.cpu import Machine
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.record.contract import Contract
from pysim.record.cost import NoneLegal, Reason
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request, on_cpu
from pysim.record.schedule import Schedule
from pysim.registry.cpu import kernels

BROADCASTS = "win"  # form of the kernels that broadcast elements of A, at any distance


class OnNest(NamedTuple):
    """An algorithm of the nest. `nest` makes the loops of a problem; `form` restricts the kernels; `algorithm` is its name, None for the
    first algorithm of a kind of problem in native/algorithms.inc. `rooms`: INT32 vectors of one number per filter or column of s8."""

    nest: Callable[[Any], Nest]
    summary: str
    form: Forms = None
    algorithm: str | None = None
    rooms: int = 0

    def least_cycles(self, request: Request, best: float) -> float:
        return nest_schedules.least_cycles(self.nest(request.problem), request, best, self.form) if request.threads == 1 else 0.0

    def candidates(self, request: Request, limit: Array | float = 0.0) -> nest_schedules.Found | NoneLegal:
        channels = set_of(request.problem) if request.reproducible else None
        return nest_schedules.candidates(self.nest(request.problem), request, limit, self.form, self.algorithm, channels)

    def workspace_bytes(self, problem: Any, schedule: Schedule, layout: Layout) -> int:
        return workspace_bytes(self.nest(problem), schedule) + self.rooms * room_bytes(problem.dtype, _count(problem))

    def nests(self, plan: Plan) -> Nests:
        schedule, on = on_cpu(plan)
        loops, names = nest_text.sliced(self.nest(plan.workload), on, schedule)
        return Nests((loops,), names, sliced=True)

    def describe(self, plan: Plan) -> Description:
        return nest_text.describe_nest(self.nest(plan.workload), plan, self.summary)


def contract(problem: Any, schedule: Schedule) -> Contract:
    """Each set of channels is a chain, in the order of the panels: kernel rows, channels, kernel columns."""
    return Contract("chain", schedule.channels)


def _count(problem: Any) -> int:
    """Filters, or columns."""
    return int(problem.filters if isinstance(problem, Conv) else problem.n)


def packed_filters(problem: Conv, schedule: Schedule, layout: Layout) -> Prepared:
    """`prepare` of algorithms with packed filters."""
    return Prepared("packed filters", packed_filter_bytes(nest_of(problem), schedule))


def broadcasts(problem: Gemm, machine: Machine, layout: Layout) -> Reason | None:
    """Why the machine has no kernel that broadcasts A; None if it has."""
    return _machine_broadcasts(problem.dtype, machine)


@lru_cache(maxsize=64)
def _machine_broadcasts(dtype: str, machine: Machine) -> Reason | None:
    of_form = (row for row in kernels() if row.form == BROADCASTS and row.dtype == dtype)
    if any(machine.unit(row.target) for row in of_form):
        return None
    return Reason("machine", f"{machine.name} has no {dtype} kernel that broadcasts elements of A (form {BROADCASTS})")
