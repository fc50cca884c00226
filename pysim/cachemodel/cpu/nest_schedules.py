# SPDX-License-Identifier: Apache-2.0
"""The schedules of one loop nest on a CPU: candidates, lower bounds and costs, for every algorithm that is a nest of micro-kernel calls.

`tilings` lists the schedules worth predicting, `cost` predicts them, `csa` is SConv's own cost model of the same nest.

Worked number: two kernels with lower bounds of 7.2 and 9.1 M cycles. The second kernel is predicted only if no schedule of the first takes
less than 9.1 M cycles.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.costs import Costs
from pysim.cachemodel.cpu import csa, tilings
from pysim.cachemodel.cpu.bounds import least_traffic
from pysim.cachemodel.cpu.cost import Pass, Prediction, assemble, assumed, cost_of, one_schedule, predict, schedule_of
from pysim.cachemodel.cpu.incore import Array, products_per_cycle, rates
from pysim.cachemodel.cpu.nest import Nest, live_taps
from pysim.cachemodel.cpu.tables import OfTable, Table, compute_cycles, computed, select
from pysim.errors import PlanError
from pysim.machine.cpu import Csa, Machine
from pysim.problem.conv import Conv
from pysim.record.cost import CsaCost, NoneLegal, Rejected
from pysim.record.plan import Request
from pysim.record.schedule import STATIONARY, Schedule
from pysim.record.state import State
from pysim.registry.cpu import Kernel, kernels

FEW = 32  # sets or schedules, which are not worth bounds on their traffic
NEAR = 1.05  # times the least compute: sets that may well be the best
SLACK = 1.04  # of the best schedule over the least bound of a set, mostly
FIRST_SCHEDULES = 96  # of least bounds, that are predicted first
ROUNDING = 1 + 1e-9  # bounds and predictions add in another order


class NestCandidates(NamedTuple):
    """Schedules of a nest as a table. `prune`: only the best of each kind of STATIONARY is needed, and the table has sets of channels
    (`tilings.sets`); `most`: as in a request."""

    table: Table
    state: State
    rejected: tuple[Rejected, ...]
    algorithm: str | None = None
    prune: bool = False
    most: float | None = None
    limit: float = np.inf


class CsaCandidates(NamedTuple):
    """Both schedules of the slicing analysis, ordered by `csa.ranked`, with SConv's integers in cycles of latency."""

    machine: Machine
    kernel: str
    tile: Csa
    choices: Sequence[csa.Choice]
    rejected: tuple[Rejected, ...]
    limit: float = np.inf


Found = NestCandidates | CsaCandidates
Bounds = tuple[Array, NDArray[np.int64]]  # of some schedules or sets, and their kinds


def least_cycles(nest: Nest, request: Request, best: float, form: tilings.Forms = None) -> float:
    """A lower bound on all schedules of a nest by kernels of a form: multiplications at the highest rate of any kernel; if that is below
    `best`, all in-core work of the kernels for which it is."""
    on, nest = request.cpu, _stored(nest, request.to_bytes)
    kernels = tilings.rows(on, request.problem.dtype, request.micro_kernel, form, request.accuracy, request.bounded).kernels
    least = _multiplying(nest, on, kernels)
    if not kernels or min(least) > best:
        return min(least, default=0.0)
    return float(tilings.least_cycles(rates(nest, on, _within(kernels, least, best))).min())


def multiplying_cycles(number: int, request: Request, form: tilings.Forms) -> float:
    """Cycles of so many multiplications at the highest rate of any kernel of a form; 0 if there is none."""
    problem, on = request.problem, request.cpu
    kernels = tilings.rows(on, problem.dtype, request.micro_kernel, form, request.accuracy, request.bounded).kernels
    return number / max(_rates(kernels, on, problem.result_bytes // problem.element_bytes)) if kernels else 0.0


@lru_cache(maxsize=64)
def _stored(nest: Nest, to_bytes: bool) -> Nest:
    return msgspec.structs.replace(nest, to_bytes=True) if to_bytes else nest


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
    """The schedules of a nest that a request asks for: all of them, or with a limit those that may be the best of their kind. `form`: only
    kernels of this form, or of these; `algorithm`: the name of an algorithm that is not its problem's first; `channels`: the only size of
    a set."""
    on, dtype, nest = request.cpu, request.problem.dtype, _stored(nest, request.to_bytes)
    if request.to_bytes:  # the store rescales whole sums
        channels = nest.group_channels
    if request.quantised and isinstance(request.problem, Conv) and nest.in_place:  # rows in place are signed, and an image may not be
        nest = msgspec.structs.replace(nest, in_place=False)
    if request.model == "csa":
        return _csa_candidates(nest, on, dtype, request)
    if request.schedule is not None:
        if not isinstance(request.schedule, Schedule):
            raise PlanError(f"the named plan is for a GPU; {on.name} is a CPU")
        return NestCandidates(one_schedule(nest, on, request.schedule, dtype), request.caches, (), algorithm)
    rows = tilings.rows(on, dtype, request.micro_kernel, form, request.accuracy, request.bounded)
    if not rows.kernels:
        return NoneLegal(rows.rejected)
    most = np.inf if request.most is None else request.most
    sets = tilings.sets(rates(nest, on, _within(rows.kernels, _multiplying(nest, on, rows.kernels), most)), channels)
    place, prune = tilings.in_place_reason(nest), bool(np.isfinite(limit).all())
    rejected = (*((place,) if place else ()), *rows.rejected)
    return NestCandidates(sets if prune else tilings.tiled(sets)[0], request.caches, rejected, algorithm, prune, request.most)


def cost(machine: Machine, found: Sequence[Found]) -> list[Costs]:
    """The costs of candidates, each by the model that they were made for."""
    nests = iter(costs_of([one for one in found if isinstance(one, NestCandidates)]))
    return [next(nests)[1] if isinstance(one, NestCandidates) else _csa_costs(one) for one in found]


def pruned(sets: Sequence[Table], state: State, most: float | None = None) -> list[Prediction]:
    """The schedules of each nest, given as `tilings.sets`, that may be the best of their kind; with `most` those that may be the best of
    all nests and take at most so many cycles. The others take longer by lower bounds: of all schedules with a set of channels, then of each
    schedule. What has the least bounds is predicted first; its best excludes most of the rest."""
    searches = [_Search(of, state, None if most is not None else 2 * at) for at, of in enumerate(sets)]
    best = np.full(2 * len(sets) if most is None else 1, np.inf if most is None else most)

    def least(of: Callable[[_Search], Bounds], count: int, among: Sequence[_Search] = searches) -> Array:
        """For each kind what the least `count` of the bounds do not exceed, nor the best."""
        bound, kind = (np.concatenate(column) for column in zip(*map(of, among), strict=True))
        ordered = [np.sort(bound[kind == one])[:count] for one in range(best.size)]
        return np.minimum(best, [one[-1] if one.size else 0.0 for one in ordered])

    def tried(limit: Array) -> list[_Search]:
        for one in searches:
            one.open(limit)
        return sorted(searches, key=lambda one: one.schedule_bounds.min(initial=np.inf))

    near = NEAR * least(_Search.of_sets, 1)
    for one in searches:
        one.tighten(near)
    first = tried(np.minimum(best, SLACK * least(_Search.of_sets, 1)))
    for one in first if most is None else first[:1]:
        one.predict(least(_Search.of_schedules, FIRST_SCHEDULES, [one]), best)
    for one in tried(best):
        one.predict(best, best)
    return [one.found() for one in searches]


class _Search:
    """The search in a nest: lower `bounds` of all sets of channels, of compute alone or `tight`; the `schedules` of the sets that are
    `opened`, with their bounds; the prediction of those that are `known`. `kind`: that of the first loop order, if each is a kind."""

    def __init__(self, sets: Table, state: State, kind: int | None) -> None:
        self.sets, self.state, self.kind, self.tight = sets, state, kind, False
        self.prediction: Prediction | None = None
        self.bounds = np.sum([*computed(sets).values()], axis=0) / ROUNDING
        self.opened = np.zeros(self.bounds.size, bool)
        self.schedules, self.schedule_bounds = select(sets, slice(0)), np.empty(0)
        self.known = np.empty(0, bool)

    def kinds(self, table: Table) -> NDArray[np.int64]:
        return np.zeros(table.kernel.size, np.int64) if self.kind is None else self.kind + 1 - table.keeps_windows

    def of_sets(self) -> Bounds:
        return self.bounds, self.kinds(self.sets)

    def of_schedules(self) -> Bounds:
        return self.schedule_bounds, self.kinds(self.schedules)

    def tighten(self, limit: Array) -> NDArray[np.bool_]:
        """The sets whose bounds are within the limit of their kind. If these are many, bounds count traffic, too."""
        kinds = self.kinds(self.sets)
        within = self.bounds <= limit[kinds]
        if not self.tight and np.count_nonzero(within) > FEW:
            self.tight, self.bounds = True, _bounds(self.sets, tiled=False)
            within = self.bounds <= limit[kinds]
        return within

    def open(self, limit: Array) -> None:
        """Lists the schedules of the sets whose bounds are within the limit of their kind, too."""
        within, before = self.tighten(limit) | self.opened, self.opened
        if (within > before).any():
            self.opened, (self.schedules, which) = within, tilings.tiled(select(self.sets, within))
            new = ~before[within][which]  # the schedules of a set always have the same order
            bounds, known = self.bounds[within][which], np.zeros(which.size, bool)
            if np.count_nonzero(new) > FEW:
                bounds[new] = _bounds(self.schedules if new.all() else select(self.schedules, new), tiled=True)
            bounds[~new], known[~new] = self.schedule_bounds, self.known
            self.schedule_bounds, self.known = bounds, known

    def predict(self, limit: Array, best: Array) -> None:
        """Predicts the open schedules whose bounds are within the limit of their kind, and lowers the best of the kinds. If only the best
        of all is needed, schedules known to take longer are left out."""
        within = self.schedule_bounds <= np.minimum(limit, best)[self.kinds(self.schedules)]
        if (within > self.known).any():
            self.prediction = predict(select(self.schedules, within), self.state)
            self.known = within
            np.minimum.at(best, self.kinds(self.prediction.table), self.prediction.cycles)
            if self.kind is None:
                self.schedule_bounds[within] = self.prediction.cycles / ROUNDING

    def found(self) -> Prediction:
        """The prediction, with lower bounds of all schedules of each kernel."""
        bounds, closed = np.full(len(self.sets.rates.kernels), np.inf), ~self.opened
        np.minimum.at(bounds, self.sets.kernel[closed], self.bounds[closed])
        np.minimum.at(bounds, self.schedules.kernel, self.schedule_bounds)
        return (self.prediction or predict(select(self.sets, slice(0)), self.state))._replace(bounds=bounds)


def _bounds(table: Table, tiled: bool) -> Array:
    """Lower bounds on the cycles of schedules, or of all schedules with some sets of channels."""
    (cycles,), _ = _bounded(table, tiled)
    return cycles / ROUNDING


@OfTable
def _bounded(table: Table, tiled: bool) -> tuple[Sequence[Array], None]:
    return (assemble(table, compute_cycles(table), least_traffic(table, tiled), tiled).cycles,), None


def costs_of(found: Sequence[NestCandidates]) -> Iterator[tuple[Pass, Costs]]:
    """The predicted costs of the schedules of nests, and the passes that have them."""
    if found and all(of.prune for of in found):
        predictions = pruned([of.table for of in found], found[0].state, found[0].most)
    else:
        predictions = [predict(of.table, of.state) for of in found]
    return itertools.starmap(_costs_of, zip(found, predictions, strict=True))


def _costs_of(of: NestCandidates, prediction: Prediction) -> tuple[Pass, Costs]:
    table, costs, least = prediction
    nest, machine, kernels = table.rates.nest, table.rates.machine, table.rates.kernels
    in_place = nest.filters_in_place or not nest.filters_packed  # no prefetcher follows their rows
    return costs, Costs(
        cycles=costs.cycles,
        kernels=tuple(kernel.name for kernel in kernels),
        kernel=table.kernel,
        kinds=STATIONARY,
        kind=1 - table.keeps_windows.astype(np.int64),
        bounds=np.zeros(len(kernels)) if least is None else least,
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
