# SPDX-License-Identifier: Apache-2.0
"""Schedules of one loop nest on a CPU, named, bounded and costed: what every algorithm that is a nest of micro-kernel calls shares.

`tilings` lists the schedules that are worth predicting, `cost` predicts them, `csa` is SConv's own cost model of the same nest.

Worked number: kernels whose arithmetic alone takes 7.2 and 9.1 M cycles. Where computing hides 0.8 of what moves, schedules that compute
for at most (1 + TRANSFERS (1 - 0.8)) 7.2 = 7.9 M cycles are predicted first; the second kernel enters only if none of them takes less than
9.1 M.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np

from pysim.cachemodel.cpu import csa, tilings
from pysim.cachemodel.cpu.cost import assumed, cost_of, one_schedule, predict, schedule_of
from pysim.cachemodel.cpu.incore import Array, Table, products_per_cycle, rates
from pysim.cachemodel.cpu.nest import Nest, live_taps
from pysim.errors import PlanError
from pysim.machine.cpu import Csa, Machine
from pysim.record.cost import Cost, CsaCost, NoneLegal, Rejected
from pysim.record.plan import Request
from pysim.record.schedule import STATIONARY, Schedule
from pysim.record.state import State
from pysim.registry.cpu import Kernel, kernels

TRANSFERS = 0.5  # of the least bound: what moving data takes beside it, or less, in most best schedules


class NestCandidates(NamedTuple):
    """Schedules of a nest as a table, of kernels with lower bounds in cycles; of those that compute for at most `limit` cycles, by kind
    (STATIONARY), and for more than `done`."""

    table: Table
    state: State
    bounds: Array
    limit: Array
    done: Array | None
    rejected: tuple[Rejected, ...]
    algorithm: str | None = None


class NestCosts:
    """The predicted costs of a nest's schedules (`pysim.algorithms.contract.Costs`)."""

    kinds: tuple[str, ...] = STATIONARY

    def __init__(self, of: NestCandidates) -> None:
        self.prediction = predict(of.table, of.state, of.limit, of.done)
        self._algorithm, self.bounds, self.cycles = of.algorithm, of.bounds, self.prediction.cycles
        if self.prediction.least is not None:
            self.bounds = np.maximum(of.bounds, np.minimum(self.prediction.least, of.limit.min()))
        self.kernels = tuple(kernel.name for kernel in of.table.rates.kernels)
        self.kernel = self.alike = self.prediction.table.kernel
        self.kind = 1 - self.prediction.table.keeps_windows.astype(np.int64)

    def schedule(self, row: int) -> Schedule:
        found = schedule_of(self.prediction, row)
        return msgspec.structs.replace(found, algorithm=self._algorithm) if self._algorithm else found

    def cost(self, row: int) -> Cost:
        return cost_of(self.prediction, row)

    def assumed(self, row: int) -> tuple[str, ...]:
        nest, machine, *_ = self.prediction.table.rates
        in_place = nest.filters_in_place or not nest.filters_packed  # whose rows no prefetcher follows
        return assumed(machine, self.kernels[self.kernel[row]].rpartition("__")[2], latencies=in_place)


class CsaCosts:
    """Both schedules of the slicing analysis, as `csa.ranked` orders them, with SConv's integers in cycles of latency: candidates and their
    costs at once (`pysim.algorithms.contract`)."""

    kinds: tuple[str, ...] = STATIONARY
    limit = np.inf

    def __init__(self, machine: Machine, kernel: str, tile: Csa, choices: Sequence[csa.Choice], rejected: tuple[Rejected, ...]) -> None:
        self._machine, self._tile, self._choices, self.rejected = machine, tile, choices, rejected
        self.kernels, self.bounds = (kernel,), np.zeros(1)
        self.cycles: Array = np.array([choice.cost.cost for choice in choices], dtype=np.float64)
        self.kernel = self.alike = np.zeros(len(choices), dtype=np.int64)
        self.kind = np.array([STATIONARY.index(choice.stationary) for choice in choices])

    def schedule(self, row: int) -> Schedule:
        choice, tile = self._choices[row], self._tile
        return Schedule(self.kernels[0], choice.stationary, "tiles", tile.windows, tile.filters, choice.channels, choice.k2, choice.k3)

    def cost(self, row: int) -> CsaCost:
        return self._choices[row].cost

    def assumed(self, row: int) -> tuple[str, ...]:
        return tuple(path for path in self._machine.assumed() if path.startswith("csa"))


Found = NestCandidates | CsaCosts


def least_cycles(nest: Nest, request: Request, best: float) -> float:
    """What schedules of a nest take at least, whatever the kernel: multiplications at the highest rate, and if these take less than `best`,
    what computing takes besides."""
    on = request.cpu
    kernels = tilings.rows(on, request.problem.dtype, request.micro_kernel).kernels
    least: float = nest.repeats * live_taps(nest)[0] * nest.out_w * nest.kernel_w * nest.group_channels * nest.group_filters
    least /= _fastest(kernels, on, nest.result_bytes // nest.element_bytes)
    if not kernels or least > best:
        return least
    return float(tilings.least_cycles(rates(nest, on, kernels)).min())


@lru_cache(maxsize=64)
def _fastest(kernels: tuple[Kernel, ...], on: Machine, width: int) -> float:
    """Multiplications of any kernel in a cycle at most."""
    return max((products_per_cycle(kernel, on.unit_of(kernel.target), width) for kernel in kernels), default=np.inf)


def candidates(
    nest: Nest,
    request: Request,
    limit: Array | float = 0.0,
    done: Array | None = None,
    form: str | None = None,
    algorithm: str | None = None,
) -> Found | NoneLegal:
    """The schedules of a nest that a request asks for, within limits as the contract has them. Of kernels of a `form` alone, where one is
    given, and of an `algorithm` that is not its problem's first."""
    on, dtype = request.cpu, request.problem.dtype
    if request.model == "csa":
        return _csa_candidates(nest, on, dtype, request)
    if request.schedule is not None:
        if not isinstance(request.schedule, Schedule):
            raise PlanError(f"the named plan is for a GPU; {on.name} is a CPU")
        return NestCandidates(
            one_schedule(nest, on, request.schedule, dtype), request.state, np.zeros(1), np.full(2, np.inf), None, (), algorithm
        )
    rows = tilings.rows(on, dtype, request.micro_kernel, form)
    if not rows.kernels:
        return NoneLegal(rows.rejected)
    of = rates(nest, on, rows.kernels)
    bounds = tilings.least_cycles(of)
    guess = 1 + TRANSFERS * max(0.0, 1 - on.core.overlap.value)
    first = guess * bounds.min()  # of less, the best would hardly be among them
    most = np.full(2, np.maximum(first, limit))
    new = most
    if done is not None:
        done = np.full(2, np.maximum(first, done))
        new, most = np.where(most > done, most, 0.0), np.maximum(most, done)
    place = tilings.in_place_reason(nest)
    rejected = (*((place,) if place else ()), *rows.rejected)
    table = tilings.table(of, np.flatnonzero(bounds <= new.max()).tolist(), new)
    return NestCandidates(table, request.state, bounds, most, done, rejected, algorithm)


def cost(machine: Machine, found: Sequence[Found]) -> list[NestCosts | CsaCosts]:
    """The costs of candidates, each by the model that it was made for."""
    return [NestCosts(one) if isinstance(one, NestCandidates) else one for one in found]


def _csa_candidates(nest: Nest, on: Machine, dtype: str, request: Request) -> CsaCosts:
    if on.csa is None:
        raise PlanError(f"{on.name} has no [csa] table, which the csa model needs; use the full model or add one")
    assert not isinstance(request.micro_kernel, str)  # the planner makes a shape of a name
    windows, filters = request.micro_kernel or (on.csa.windows, on.csa.filters)
    tile = msgspec.structs.replace(on.csa, windows=windows, filters=filters)
    kernel, rejected = _csa_kernel(dtype, on, tile)
    halved, maximal = (csa.schedules(nest, tile, search, request.input_footprint) for search in ("halving", "exact"))
    choices = csa.ranked(one._replace(cost=_with_exact(one.cost, most)) for one, most in zip(halved, maximal, strict=True))
    return CsaCosts(on, kernel, tile, choices, rejected)


def _with_exact(cost: CsaCost, most: csa.Choice) -> CsaCost:
    """A cost beside that of the largest tiles that fit."""
    exact = {"channels": most.channels, "k2": most.k2, "k3": most.k3, "cost": most.cost.cost}
    return msgspec.structs.replace(cost, exact=exact)


def _csa_kernel(dtype: str, on: Machine, p: Csa) -> tuple[str, tuple[Rejected, ...]]:
    """A registry row of CSA's shape, or just the shape where the machine has none."""
    for row in kernels():
        if (row.dtype, row.windows, row.filters) == (dtype, p.windows, p.filters) and on.unit(row.target):
            return row.name, ()
    name = f"{dtype}_{p.windows}x{p.filters}"
    return name, (Rejected(name, f"no row of the registry has this shape for {on.name}: the plan can be costed but not run", "machine"),)
