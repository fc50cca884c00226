# SPDX-License-Identifier: Apache-2.0
"""The candidates of all algorithms with their costs, in one table, and their ranking into plans.

Algorithms with a common cost function are costed together. The others are costed in the order of their lower bounds; an algorithm whose
bound is above the best plan so far is never costed.

An algorithm may leave out schedules that take longer than a limit (`Candidates.limit`). If the best of a kind takes longer than that limit,
a schedule that was left out might be better. Then the algorithm lists its candidates again, with the cycles of the best as the limit.

Worked number: two kernels with lower bounds of 100 and 300 cycles. The first round costs schedules that may take up to 110 cycles. If the
best of them takes 120, the second round costs those up to 120. Schedules of the kernel with the bound of 300 are never costed.
"""

import itertools
import math
import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from pysim.algorithms import accuracy as accuracies
from pysim.algorithms import algorithms_for, reproducible
from pysim.algorithms.interface import Algorithm, Array, Candidates, least_cycles
from pysim.cachemodel.costs import Costs
from pysim.errors import PlanError, choose
from pysim.planner.accuracy_filter import accurate
from pysim.problem.conv import Conv
from pysim.record.cost import Cost, CsaCost, NoneLegal, Reason, Rejected
from pysim.record.plan import Considered, Plan, Request, named
from pysim.record.schedule import AnySchedule
from pysim.registry.cpu import Kernel, cpu_kernel, loop_nest
from pysim.registry.cuda import ConvKernel, GemmKernel, conv_kernel, gemm_kernel

_TELLING_CODES = ("build", "memory", "accuracy", "size", "shape", "machine")  # of rejections, the most telling first
LIMIT_GROWTH = 1.5  # factor on the limit of a kind that had no schedule within it
NEAR = 2.5  # algorithms whose bounds are at most that many times the least are costed with it
TIE = 1e-12  # share of a time by which equal times may differ
BOUND_ABOVE = "its lower bound is already {:.2f}x the chosen time"  # why an algorithm or a kernel was not costed


class Table(NamedTuple):
    """The candidates of all algorithms, one after another, with their costs.

    `first`: the place of each algorithm's first candidate. `cycles`, `kernel` and `kind` have an element per candidate; `kernel` and `kind`
    index `kernels` and `kinds`, pairs of algorithm and name. `ambiguous`: names of kernels that several algorithms use.
    `rejected` may name some twice.
    """

    request: Request
    costs: tuple[tuple[Algorithm, Costs], ...]
    first: Array
    cycles: Array
    kernel: NDArray[np.int64]
    kind: NDArray[np.int64]
    kernels: tuple[tuple[str, str], ...]
    kinds: tuple[tuple[str, str], ...]
    ambiguous: frozenset[str]
    rejected: tuple[Rejected, ...]

    @classmethod
    def of(cls, request: Request, exhaustive: bool) -> "Table":
        rejected: list[Rejected] = []
        able: list[Algorithm] = []
        csa_algorithm = loop_nest(request.problem)
        for algorithm in algorithms_for(request.problem, request.machine, request.algorithm):
            if reason := _lacks(algorithm, request) or algorithm.refuses(request.problem, request.machine, request.layout):
                rejected.append(Rejected(algorithm.NAME, reason.sentence, reason.code))
            elif request.model == "csa" and csa_algorithm != algorithm.NAME:
                rejected.append(Rejected(algorithm.NAME, f"the csa model costs {csa_algorithm} only", "type"))
            else:
                able.append(algorithm)
        costs, others = _predicted(request, able, exhaustive)
        kernels = tuple((algorithm.NAME, name) for algorithm, of in costs for name in of.kernels)
        return cls(
            request,
            tuple(costs),
            np.cumsum([0, *(of.cycles.size for _, of in costs)]),
            np.concatenate([of.cycles for _, of in costs] or [np.empty(0)]),
            _renumbered([(of.kernel, len(of.kernels)) for _, of in costs]),
            _renumbered([(of.kind, len(of.kinds)) for _, of in costs]),
            kernels,
            tuple((algorithm.NAME, name) for algorithm, of in costs for name in of.kinds),
            frozenset(name for name, count in Counter(name for _, name in kernels).items() if count > 1),
            (*rejected, *others),
        )

    def order(self) -> NDArray[np.int64]:
        """Places by predicted time; equal times keep their order."""
        return np.argsort(self.cycles, kind="stable")

    def best_first(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """The same with the first place of the least time in front. Times are equal but for rounding: larger tables are added in another
        order."""
        if not order.size:
            return order
        least = self.cycles[order[0]]
        best = order[~(self.cycles[order] > least + TIE * abs(least))].min()
        return np.concatenate([[best], order[order != best]])

    def at(self, place: int) -> tuple[Algorithm, Costs, int]:
        """The algorithm of a candidate, the algorithm's costs, and the candidate's row in them."""
        which = int(self.first.searchsorted(place, side="right")) - 1
        return *self.costs[which], int(place - self.first[which])

    def schedule(self, place: int) -> AnySchedule:
        _, costs, row = self.at(place)
        return costs.schedule(row)

    def workspace_bytes(self, place: int) -> int:
        algorithm, costs, row = self.at(place)
        return algorithm.workspace_bytes(self.request.problem, costs.schedule(row), self.request.layout)

    def within_memory(self) -> tuple[NDArray[np.int64], tuple[Rejected, ...]]:
        """The places by predicted time whose workspace is within the limit; and the kernels without such a schedule, least workspace
        first."""
        order, limit = self.order(), self.request.memory_limit
        if limit is None:
            return order, ()
        sizes = np.array([self.workspace_bytes(at) for at in order.tolist()])
        kept, kernel = order[sizes <= limit], self.kernel[order]
        least = {one: int(sizes[kernel == one].min()) for one in kernel[_firsts(kernel)].tolist()}
        reason = "its workspace of {:,} bytes is above the limit of {:,}"
        above = sorted((item for item in least.items() if item[1] > limit), key=lambda item: item[1])
        return kept, tuple(Rejected(self._label(one), reason.format(size, limit), "memory") for one, size in above)

    def inaccurate(self) -> tuple[Rejected, ...]:
        """The kernels that are not accurate enough, the most accurate first."""
        first = itertools.accumulate((len(costs.kernels) for _, costs in self.costs), initial=0)
        refused = [
            (error, Rejected(self._label(start + kernel), why.sentence, why.code))
            for (_, costs), start in zip(self.costs, first, strict=False)
            for kernel, (error, why) in costs.refused.items()
        ]
        return tuple(one for _, one in sorted(refused, key=lambda item: item[0]))

    def ranked(self, top: int) -> list[Plan]:
        """The plans of least predicted cost, best first, each with the best of every kind and the kernels that lost."""
        order, above = self.within_memory()
        rejected = (*above, *self.inaccurate(), *dict.fromkeys(self.rejected))
        if not order.size:
            raise PlanError(self.why_none(rejected))
        order = self.best_first(order)
        first, best = order[_firsts(self.kind[order])].tolist(), order[:top].tolist()
        costs = {at: self._cost(at) for at in (*first, *best[1:])}  # the best of all is the first of the kinds
        considered = tuple(Considered(self.at(at)[0].NAME, self.schedule(at), costs[at]) for at in first)
        rejected = (*self._slower(order), *rejected)
        return [self._plan(at, costs[at], considered, rejected) for at in best]

    def best_plan(self, considered: Sequence[Considered], rejected: Sequence[Rejected]) -> Plan:
        """The plan of the best place, with these alternatives."""
        best = int(self.best_first(self.order())[0])
        return self._plan(best, self._cost(best), considered, rejected)

    def _cost(self, at: int) -> Cost | CsaCost:
        _, costs, row = self.at(at)
        return costs.cost(row)

    def _plan(self, at: int, cost: Cost | CsaCost, considered: Sequence[Considered], rejected: Sequence[Rejected]) -> Plan:
        request, (algorithm, costs, row) = self.request, self.at(at)
        schedule = costs.schedule(row)
        bound = algorithm.tolerance(request.problem, schedule)
        return Plan(
            workload=request.problem,
            on=request.machine,
            model=request.model,
            state=request.state,
            algorithm=algorithm.NAME,
            schedule=schedule,
            workspace_bytes=algorithm.workspace_bytes(request.problem, schedule, request.layout),
            cost=cost,
            considered=considered,
            rejected=rejected,
            assumed=costs.assumed(row),
            layout=request.layout,
            memory_limit=request.memory_limit,
            needs_finite=bound.finite,
            error=accuracies.stated_error(bound, request.problem, request.machine, request.layout),
            error_scale=bound.scale,
            contract=reproducible.contract(algorithm, request.problem, schedule, request.layout),
            accuracy=request.accuracy,
            error_limit=request.error_limit,
        )

    def _slower(self, order: NDArray[np.int64]) -> Iterator[Rejected]:
        """The kernels that are slower than the chosen one, best first: by their best schedule, or by their bound if none was costed."""
        ran = order[_firsts(self.kernel[order])]
        kernels, cycles = self.kernel[ran].tolist(), self.cycles[ran].tolist()
        for kernel, kind, of in [*zip(kernels, self.kind[ran].tolist(), cycles, strict=True)][1:]:
            reason = f"its best predicted schedule ({self.kinds[kind][1]}) takes {of / cycles[0]:.3f}x the chosen time"
            yield Rejected(self._label(kernel), reason, "slower")
        bounds = itertools.chain.from_iterable(costs.bounds.tolist() for _, costs in self.costs)
        others = {kernel: bound for kernel, bound in enumerate(bounds) if kernel not in kernels and not math.isnan(bound)}
        for kernel in sorted(others, key=others.__getitem__):
            yield Rejected(self._label(kernel), BOUND_ABOVE.format(max(1.0, others[kernel] / cycles[0])), "slower")

    def _label(self, kernel: int) -> str:
        """A kernel's name, with its algorithm if the name is ambiguous."""
        algorithm, name = self.kernels[kernel]
        return f"{algorithm} by {name}" if name in self.ambiguous else name

    def why_none(self, rejected: Sequence[Rejected]) -> str:
        """Why there is no plan: no kernel has the requested name or tile, or the most telling rejection."""
        request, asked = self.request, self.request.micro_kernel
        if asked and not self.cycles.size:
            others = Table.of(msgspec.structs.replace(request, micro_kernel=None), exhaustive=True)
            rows = [row for _, name in others.kernels if (row := row_named(name))]
            known = {row.name if isinstance(asked, str) else named(tile_of(row)) for row in rows}
            rejected = [one for one in rejected if one.what == asked]
            if known and not rejected:
                what = f"no kernel {named(asked)} computes {request.problem.text} on {request.machine.name}"
                return f"{what}; {choose(named(asked), sorted(known))}"
        order = {code: place for place, code in enumerate(_TELLING_CODES)}
        first = min(rejected, key=lambda one: order.get(one.code, len(order)), default=None)
        why = f"{first.what}: {first.reason}" if first else "the registry has no kernel for it"
        return f"nothing computes {request.problem.text} on {request.machine.name}: {why}"


def _lacks(algorithm: Algorithm, request: Request) -> Reason | None:
    """What an algorithm lacks that it would have to say it has: volumes (`VOLUMES`), scales and zero points (`QUANTISED`)."""
    if isinstance(request.problem, Conv) and request.problem.is_volume and not getattr(algorithm, "VOLUMES", False):
        return Reason("shape", "it computes images, and these are volumes (id, kd)")
    if request.quantised and not getattr(algorithm, "QUANTISED", False):
        return Reason("type", "it applies no scales and zero points")
    return None


def _renumbered(parts: Sequence[tuple[NDArray[np.int64], int]]) -> NDArray[np.int64]:
    """Indices into several tuples of these sizes, as indices into their concatenation."""
    first = itertools.accumulate((size for _, size in parts), initial=0)
    return np.concatenate([own + start for (own, _), start in zip(parts, first, strict=False)] or [np.empty(0, dtype=np.int64)])


def _predicted(request: Request, algorithms: Sequence[Algorithm], exhaustive: bool) -> tuple[list[tuple[Algorithm, Costs]], list[Rejected]]:
    """The costs of the algorithms that may be the best, in the given order, with the best schedule of each kind (with `request.most`: of
    all); and the rejections."""
    costed, rejected, best = list[tuple[Algorithm, Costs]](), list[Rejected](), np.inf

    def asked() -> Request:
        nonlocal request
        if request.most is not None and request.most != best:
            request = msgspec.structs.replace(request, most=best)
        return request

    def predict(group: Sequence[Algorithm]) -> None:
        nonlocal best
        listed = list[tuple[Algorithm, Candidates]]()
        for algorithm in group:
            candidates = algorithm.candidates(asked(), np.inf if exhaustive else 0.0)
            rejected.extend(candidates.rejected)
            if not isinstance(candidates, NoneLegal):
                listed.append((algorithm, candidates))
        costs = listed[0][0].cost(request.machine, [candidates for _, candidates in listed]) if listed else ()
        for (algorithm, candidates), of in zip(listed, costs, strict=True):
            kept, growth = accurate(request, algorithm, of), LIMIT_GROWTH
            while (limit := _limit_for_best(kept, candidates.limit, growth, asked().most)) is not None:
                candidates, growth = algorithm.candidates(asked(), limit), np.inf
                kept = accurate(request, algorithm, *algorithm.cost(request.machine, [candidates]))
            costed.append((algorithm, kept))
            best = min(best, kept.cycles.min(initial=np.inf))

    bounded = len(algorithms) > 1 and not exhaustive
    bounds = [(least_cycles(algorithm, request) if bounded else 0.0, algorithm) for algorithm in algorithms]
    for _, group in itertools.groupby((algorithm for bound, algorithm in bounds if not bound), key=lambda algorithm: algorithm.cost):
        predict([*group])
    waiting = [(bound, False, algorithm) for bound, algorithm in bounds if bound]
    too_slow: dict[str, float] = {}

    def near(bound: float, first: Algorithm) -> list[Algorithm]:
        """Where only the best is needed: what is to be costed with `first`, by the same function, to find the best at once."""
        most = min(best, NEAR * bound) if request.most is not None else 0.0
        alike = [
            one
            for one in waiting
            if one[2].cost == first.cost and one[0] <= most and (one[1] or least_cycles(one[2], request, best) <= most)
        ]
        waiting[:] = [one for one in waiting if one not in alike]
        return [algorithm for *_, algorithm in alike]

    while waiting:  # the least bound first; it is tightened before the algorithm is costed
        waiting.sort(key=operator.itemgetter(0))
        bound, tight, algorithm = waiting.pop(0)
        if not tight and bound <= best:
            bound = least_cycles(algorithm, request, best)
        if bound > best:
            too_slow[algorithm.NAME] = bound
        elif tight:
            predict([algorithm, *near(bound, algorithm)])
        else:
            waiting.append((bound, True, algorithm))
    rejected += [Rejected(name, BOUND_ABOVE.format(bound / best), "slower") for name, bound in too_slow.items()]
    order = {algorithm.NAME: place for place, algorithm in enumerate(algorithms)}
    return sorted(costed, key=lambda pair: order[pair[0].NAME]), rejected


def _limit_for_best(costs: Costs, limit: Array | float, growth: float, most: float | None) -> Array | None:
    """Per kind, the limit up to which all schedules must be costed to be sure of the best: the cycles of the best so far; None if they are.
    A kind without schedules gets `growth` times its limit; a kind whose schedules are all too inaccurate keeps its limit. With `most`, the
    best of all kinds counts for each, and at most so many cycles."""
    if isinstance(limit, float) and math.isinf(limit):
        return None
    if most is None:
        best = np.full(len(costs.kinds), np.inf)
        np.minimum.at(best, costs.kind, costs.cycles)
        best[[*costs.lost]] = 0.0
    else:
        best = np.array([min(most, costs.cycles.min(initial=np.inf))])
    limits: Array = np.where(np.isinf(best), growth * limit, best * (1 + 1e-9))
    found = np.where(best > limit, limits, limit)
    return found if (found > limit).any() else None


def _firsts(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of the first occurrence of each number, ascending."""
    first = np.full(numbers.max(initial=-1) + 1, numbers.size)
    first[numbers[::-1]] = np.arange(numbers.size)[::-1]
    return np.sort(first)[: np.count_nonzero(first < numbers.size)]


def row_named(name: str) -> Kernel | GemmKernel | ConvKernel | None:
    return cpu_kernel(name) or gemm_kernel(name) or conv_kernel(name)


def tile_of(row: Kernel | GemmKernel | ConvKernel) -> tuple[int, int]:
    """windows x filters, or rows x columns of a block."""
    return (row.windows, row.filters) if isinstance(row, Kernel) else (row.tiles.rows, row.tiles.columns)
