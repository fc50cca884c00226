# SPDX-License-Identifier: Apache-2.0
"""The candidates of all algorithms with their costs, in one table.

Algorithms with a common cost function are costed together. The others are costed in the order of their lower bounds; an algorithm whose
bound is above the best plan so far is never costed.

An algorithm may leave out schedules that take longer than a limit (`Candidates.limit`). If the best of a kind takes longer than that limit,
a schedule that was left out might be better. Then the algorithm lists its candidates again, with the cycles of the best as the limit.

Worked number: two kernels with lower bounds of 100 and 300 cycles. The first round costs schedules that may take up to 110 cycles. If the
best of them takes 120, the second round costs those up to 120. Schedules of the kernel with the bound of 300 are never costed.
"""

import itertools
import operator
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim.algorithms.contract import Algorithm, Array, Candidates, least_cycles
from pysim.cachemodel.costs import Costs
from pysim.planner.accuracy_filter import accurate
from pysim.record.cost import NoneLegal, Rejected
from pysim.record.plan import Request
from pysim.record.schedule import AnySchedule
from pysim.registry.cpu import loop_nest

LIMIT_GROWTH = 1.5  # factor on the limit of a kind that had no schedule within it
BOUND_ABOVE = "its lower bound is already {:.2f}x the chosen time"  # why an algorithm or a kernel was not costed


class Table(NamedTuple):
    """The candidates of all algorithms, one after another, with their costs.

    `first`: the place of each algorithm's first candidate. `cycles`, `kernel` and `kind` have an element per candidate; `kernel` and `kind`
    index `kernels` and `kinds`, pairs of algorithm and name. `ambiguous`: names of kernels that several algorithms use.
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
    def of(cls, request: Request, algorithms: Sequence[Algorithm], exhaustive: bool) -> "Table":
        rejected: list[Rejected] = []
        able: list[Algorithm] = []
        csa_algorithm = loop_nest(request.problem)
        for algorithm in algorithms:
            if reason := algorithm.refuses(request.problem, request.machine, request.layout):
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
            tuple(dict.fromkeys([*rejected, *others])),
        )

    def order(self) -> NDArray[np.int64]:
        """Places by predicted time; equal times keep their order."""
        return np.argsort(self.cycles, kind="stable")

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


def _renumbered(parts: Sequence[tuple[NDArray[np.int64], int]]) -> NDArray[np.int64]:
    """Indices into several tuples of these sizes, as indices into their concatenation."""
    first = itertools.accumulate((size for _, size in parts), initial=0)
    return np.concatenate([own + start for (own, _), start in zip(parts, first, strict=False)] or [np.empty(0, dtype=np.int64)])


def _predicted(request: Request, algorithms: Sequence[Algorithm], exhaustive: bool) -> tuple[list[tuple[Algorithm, Costs]], list[Rejected]]:
    """The costs of the algorithms that may be the best, in the given order, with the best schedule of each kind; and the rejections."""
    costed, rejected, best = list[tuple[Algorithm, Costs]](), list[Rejected](), np.inf

    def predict(group: Sequence[Algorithm]) -> None:
        nonlocal best
        listed = list[tuple[Algorithm, Candidates]]()
        for algorithm in group:
            candidates = algorithm.candidates(request, np.inf if exhaustive else 0.0)
            rejected.extend(candidates.rejected)
            if not isinstance(candidates, NoneLegal):
                listed.append((algorithm, candidates))
        costs = listed[0][0].cost(request.machine, [candidates for _, candidates in listed]) if listed else ()
        for (algorithm, candidates), of in zip(listed, costs, strict=True):
            kept, growth = accurate(request, algorithm, of), LIMIT_GROWTH
            while ((limit := _limit_for_best(kept, candidates.limit, growth)) > candidates.limit).any():
                candidates, growth = algorithm.candidates(request, limit), np.inf
                kept = accurate(request, algorithm, *algorithm.cost(request.machine, [candidates]))
            costed.append((algorithm, kept))
            best = min(best, kept.cycles.min(initial=np.inf))

    bounded = len(algorithms) > 1 and not exhaustive
    bounds = [(least_cycles(algorithm, request) if bounded else 0.0, algorithm) for algorithm in algorithms]
    for _, group in itertools.groupby((algorithm for bound, algorithm in bounds if not bound), key=lambda algorithm: algorithm.cost):
        predict([*group])
    waiting = [(bound, False, algorithm) for bound, algorithm in bounds if bound]
    too_slow: dict[str, float] = {}
    while waiting:  # the least bound first; it is tightened before the algorithm is costed
        waiting.sort(key=operator.itemgetter(0))
        bound, tight, algorithm = waiting.pop(0)
        if not tight:
            bound = least_cycles(algorithm, request, best)
        if bound > best:
            too_slow[algorithm.NAME] = bound
        elif tight:
            predict([algorithm])
        else:
            waiting.append((bound, True, algorithm))
    rejected += [Rejected(name, BOUND_ABOVE.format(bound / best), "slower") for name, bound in too_slow.items()]
    return sorted(costed, key=lambda pair: algorithms.index(pair[0])), rejected


def _limit_for_best(costs: Costs, limit: Array | float, growth: float) -> Array:
    """Per kind, the limit up to which all schedules must be costed to be sure of the best: the cycles of the best so far. A kind without
    schedules gets `growth` times its limit; a kind whose schedules are all too inaccurate keeps its limit."""
    best = np.full(len(costs.kinds), np.inf)
    np.minimum.at(best, costs.kind, costs.cycles)
    best[[*costs.lost]] = 0.0
    limits: Array = np.where(np.isinf(best), growth * limit, best * (1 + 1e-9))
    return np.where(best > limit, limits, limit)
