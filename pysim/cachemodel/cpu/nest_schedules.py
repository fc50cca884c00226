# SPDX-License-Identifier: Apache-2.0
"""The schedules of one loop nest on a CPU: candidates, lower bounds and costs, for every algorithm that is a nest of micro-kernel calls.

`tilings` lists the schedules worth predicting, `cost` predicts them, `csa` is SConv's own cost model of the same nest.

Worked number: two kernels with lower bounds of 7.2 and 9.1 M cycles. If compute hides 0.8 of the transfers, schedules with at most (1 +
TRANSFERS (1 - 0.8)) 7.2 = 7.9 M cycles of compute are predicted first. The second kernel is predicted only if none of them takes less
than 9.1 M cycles.
"""

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import msgspec
import numpy as np

from pysim.cachemodel.costs import Costs
from pysim.cachemodel.cpu import csa, tilings
from pysim.cachemodel.cpu.cost import Pass, Prediction, assumed, cost_of, one_schedule, predict, pruned, schedule_of
from pysim.cachemodel.cpu.incore import Array, Table, products_per_cycle, rates
from pysim.cachemodel.cpu.nest import Nest, live_taps
from pysim.errors import PlanError
from pysim.machine.cpu import Csa, Machine
from pysim.record.cost import CsaCost, NoneLegal, Rejected
from pysim.record.plan import Request
from pysim.record.schedule import STATIONARY, Schedule
from pysim.record.state import State
from pysim.registry.cpu import Kernel, kernels

TRANSFERS = 0.8  # transfer cycles of most best schedules over their compute cycles, at most


class NestCandidates(NamedTuple):
    """Schedules of a nest as a table, and lower `bounds` of its kernels in cycles. The table has all schedules whose compute takes less
    than `limit` cycles (per kind of STATIONARY). `prune`: only the best of each kind is needed; `most`:
    as in a request."""

    table: Table
    state: State
    bounds: Array
    limit: Array
    rejected: tuple[Rejected, ...]
    algorithm: str | None = None
    prune: bool = False
    most: float | None = None


class CsaCandidates(NamedTuple):
    """Both schedules of the slicing analysis, ordered by `csa.ranked`, with SConv's integers in cycles of latency."""

    machine: Machine
    kernel: str
    tile: Csa
    choices: Sequence[csa.Choice]
    rejected: tuple[Rejected, ...]
    limit: float = np.inf


Found = NestCandidates | CsaCandidates


def least_cycles(nest: Nest, request: Request, best: float, form: tilings.Forms = None) -> float:
    """A lower bound on all schedules of a nest by kernels of a form: multiplications at the highest rate of any kernel; if that is below
    `best`, all in-core work of the kernels for which it is."""
    on = request.cpu
    kernels = tilings.rows(on, request.problem.dtype, request.micro_kernel, form, request.reproducible).kernels
    least = _multiplying(nest, on, kernels)
    if not kernels or min(least) > best:
        return min(least, default=0.0)
    return float(tilings.least_cycles(rates(nest, on, _within(kernels, least, best))).min())


def _multiplying(nest: Nest, on: Machine, kernels: tuple[Kernel, ...]) -> list[float]:
    """Cycles of all multiplications, at the rate of each kernel."""
    number = nest.repeats * live_taps(nest)[0] * nest.out_w * nest.kernel_w * nest.group_channels * nest.group_filters
    return [number / rate for rate in _rates(kernels, on, nest.result_bytes // nest.element_bytes)]


@lru_cache(maxsize=64)
def _rates(kernels: tuple[Kernel, ...], on: Machine, width: int) -> tuple[float, ...]:
    """Multiplications of each kernel in a cycle at most."""
    return tuple(products_per_cycle(kernel, on.unit_of(kernel.target), width) for kernel in kernels)


def _within(kernels: tuple[Kernel, ...], least: Sequence[float], most: float) -> tuple[Kernel, ...]:
    """The kernels whose bounds are within `most`, or all if none is."""
    return tuple(kernel for kernel, cycles in zip(kernels, least, strict=True) if cycles <= most) or kernels


def candidates(
    nest: Nest,
    request: Request,
    limit: Array | float = 0.0,
    form: tilings.Forms = None,
    algorithm: str | None = None,
    channels: int | None = None,
) -> Found | NoneLegal:
    """The schedules of a nest that a request asks for, within limits as in the contract. `form`: only kernels of this form, or of these;
    `algorithm`: the name of an algorithm that is not its problem's first; `channels`: the only size of a set."""
    on, dtype = request.cpu, request.problem.dtype
    if request.model == "csa":
        return _csa_candidates(nest, on, dtype, request)
    if request.schedule is not None:
        if not isinstance(request.schedule, Schedule):
            raise PlanError(f"the named plan is for a GPU; {on.name} is a CPU")
        return NestCandidates(
            one_schedule(nest, on, request.schedule, dtype), request.state, np.zeros(1), np.full(2, np.inf), (), algorithm
        )
    rows = tilings.rows(on, dtype, request.micro_kernel, form, request.reproducible)
    if not rows.kernels:
        return NoneLegal(rows.rejected)
    most = np.inf if request.most is None else request.most
    of = rates(nest, on, _within(rows.kernels, _multiplying(nest, on, rows.kernels), most))
    bounds = tilings.least_cycles(of)
    guess = 1 + TRANSFERS * max(0.0, 1 - on.core.overlap.value)
    first = guess * bounds.min()  # within less, the best schedule is rarely found
    least = np.full(2, np.maximum(min(first, most), limit))
    place = tilings.in_place_reason(nest)
    rejected = (*((place,) if place else ()), *rows.rejected)
    table, beyond = tilings.table(of, least, channels)
    return NestCandidates(table, request.state, bounds, beyond, rejected, algorithm, bool(np.isfinite(least).all()), request.most)


def cost(machine: Machine, found: Sequence[Found]) -> list[Costs]:
    """The costs of candidates, each by the model that they were made for."""
    nests = iter(costs_of([one for one in found if isinstance(one, NestCandidates)]))
    return [next(nests)[1] if isinstance(one, NestCandidates) else _csa_costs(one) for one in found]


def costs_of(found: Sequence[NestCandidates]) -> Iterator[tuple[Pass, Costs]]:
    """The predicted costs of the schedules of nests, and the passes that have them."""
    if found and all(of.prune for of in found):
        predictions = pruned([of.table for of in found], found[0].state, found[0].most)
    else:
        predictions = [predict(of.table, of.state) for of in found]
    return itertools.starmap(_costs_of, zip(found, predictions, strict=True))


def _costs_of(of: NestCandidates, prediction: Prediction) -> tuple[Pass, Costs]:
    table, costs, least = prediction
    nest, machine, kernels, *_ = table.rates
    in_place = nest.filters_in_place or not nest.filters_packed  # no prefetcher follows their rows
    return costs, Costs(
        cycles=costs.cycles,
        kernels=tuple(kernel.name for kernel in kernels),
        kernel=table.kernel,
        kinds=STATIONARY,
        kind=1 - table.keeps_windows.astype(np.int64),
        bounds=of.bounds if least is None else np.maximum(of.bounds, np.minimum(least, of.limit.min())),
        alike=table.kernel,
        schedule=lambda row: msgspec.structs.replace(schedule_of(prediction, row), algorithm=of.algorithm),
        cost=partial(cost_of, prediction),
        assumed=lambda row: assumed(machine, kernels[table.kernel[row]].target, latencies=in_place),
    )


def _csa_costs(of: CsaCandidates) -> Costs:
    choices, tile, same = of.choices, of.tile, np.zeros(len(of.choices), dtype=np.int64)

    def schedule(row: int) -> Schedule:
        one = choices[row]
        return Schedule(of.kernel, one.stationary, "tiles", tile.windows, tile.filters, one.channels, one.k2, one.k3)

    assumes = tuple(path for path in of.machine.assumed() if path.startswith("csa"))
    cycles = np.array([choice.cost.cost for choice in choices], dtype=np.float64)
    kind = np.array([STATIONARY.index(choice.stationary) for choice in choices])
    return Costs(
        cycles=cycles,
        kernels=(of.kernel,),
        kernel=same,
        kinds=STATIONARY,
        kind=kind,
        bounds=np.zeros(1),
        alike=same,
        schedule=schedule,
        cost=lambda row: choices[row].cost,
        assumed=lambda row: assumes,
    )


def _csa_candidates(nest: Nest, on: Machine, dtype: str, request: Request) -> CsaCandidates:
    if on.csa is None:
        raise PlanError(f"{on.name} has no [csa] table, which the csa model needs; use the full model or add one")
    assert not isinstance(request.micro_kernel, str)  # the planner makes a shape of a name
    windows, filters = request.micro_kernel or (on.csa.windows, on.csa.filters)
    tile = msgspec.structs.replace(on.csa, windows=windows, filters=filters)
    kernel, rejected = _csa_kernel(dtype, on, tile)
    halved, maximal = (csa.schedules(nest, tile, search, request.input_footprint) for search in ("halving", "exact"))
    choices = csa.ranked(one._replace(cost=_with_exact(one.cost, most)) for one, most in zip(halved, maximal, strict=True))
    return CsaCandidates(on, kernel, tile, choices, rejected)


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
