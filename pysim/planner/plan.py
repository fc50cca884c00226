# SPDX-License-Identifier: Apache-2.0
"""Planning: every algorithm that the machine has names its legal schedules, all are costed, the least predicted time wins.

    algorithms -> refusals (with reasons) -> candidates -> costs, as arrays -> order -> plans

No algorithm is known here by name; what one can answer is `pysim.algorithms.contract`. Algorithms that share a cost function are costed
together, in one table. Those whose lower bound is the least come first, and one whose bound is above the best so far is never predicted.
An algorithm may leave out schedules that take longer than a limit (`Candidates.limit`). If the best of a kind takes longer than that
limit, a schedule that was left out might be better: the algorithm is asked again, with the best's cycles as the limit.

Worked number: two kernels with lower bounds of 100 and 300 cycles. The first round costs schedules that may take up to 110 cycles. If the
best of them takes 120, the second round costs those up to 120. Schedules of the kernel with the bound of 300 are never costed.
"""

import itertools
import math
import operator
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, TypedDict, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from pysim.algorithms import accuracy as accuracies
from pysim.algorithms import algorithm_named, algorithms_for
from pysim.algorithms.contract import Algorithm, Array, Candidates, least_cycles
from pysim.arguments import MOST_THREADS, flag, number, whole, wholes, word
from pysim.cachemodel.costs import Costs
from pysim.errors import PlanError, choose, quoted
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.machine.load import load_any
from pysim.planner.accurate import accurate
from pysim.planner.team import plan_for_team
from pysim.problem.conv import Conv
from pysim.problem.text import Workload, parse
from pysim.record.accuracy import ACCURACIES, Accuracy
from pysim.record.cost import Cost, CsaCost, NoneLegal, Rejected
from pysim.record.plan import (
    BLOCKED,
    FOOTPRINTS,
    LAYOUTS,
    MODELS,
    Considered,
    Footprint,
    Layout,
    MicroKernel,
    ModelName,
    Plan,
    Request,
    named,
)
from pysim.record.schedule import AnySchedule, from_name
from pysim.record.state import STATES, State
from pysim.registry.cpu import Kernel, cpu_kernel, loop_nest
from pysim.registry.cuda import ConvKernel, GemmKernel, conv_kernel, gemm_kernel

FURTHER = 1.5  # times the first limit: the second one of a kind of which no schedule is within the first


class Asked(TypedDict, total=False):
    """What may be asked of any plan."""

    micro_kernel: MicroKernel
    state: State
    layout: Layout
    accuracy: Accuracy
    error_limit: float | None
    prologue: bool


def plan(
    problem: str | Workload,
    machine: str | Machine | Gpu,
    model: ModelName = "full",
    input_footprint: Footprint = "packed",
    algorithm: str | None = None,
    name: str | None = None,
    memory_limit: int | None = None,
    threads: int = 1,
    prepared: bool = False,
    **asked: Unpack[Asked],
) -> Plan:
    """The plan of least predicted cost for a problem (text or value) on a machine (name, path of a .toml file, or value).

    `micro_kernel` ("4x16", windows x filters; on a GPU "128x128", a block's tile; or a kernel's name) restricts the full model to such
    kernels and replaces the shape under CSA; `input_footprint` ("packed" or "raw") is CSA's alone, `state` (of the caches at the start)
    the full model's. A plan has operands in a `layout`, takes no more workspace than `memory_limit` bytes, and is of `algorithm` where
    one is named. `name` is another plan's name: that very schedule, costed here. `accuracy` is "standard" (any plan), "strict" (none
    whose stated error is above a direct sum's of the type) or "ieee" (multiply-adds of the type alone), `error_limit` the largest error
    over the result's root mean square that a plan may state (`pysim.algorithms.accuracy`). The cost is that of a run on `threads` threads
    of a CPU, and the plan the best for so many (`pysim.planner.team`); where B of a product is `prepared`, as weights of a convolution
    always are, that of a run on what preparation makes. With a
    `prologue` a convolution's input is scaled, shifted and bounded on a GPU as it is read (`pysim_cuda_prologue`). Raises ProblemError,
    MachineError, and PlanError where no kernel can run the problem.
    """
    request = _request(problem, machine, model, **asked)
    word(input_footprint, "input_footprint", FOOTPRINTS, PlanError)
    if input_footprint == "raw" and model != "csa":
        raise PlanError('input_footprint is "raw", which the csa model alone knows; leave it out, or take the model "csa"')
    request = request._replace(input_footprint=input_footprint, prepared=flag(prepared, "prepared"))
    if name is not None:
        algorithm, schedule = from_name(name)
        request = request._replace(schedule=schedule)

    memory_limit = _bytes(memory_limit)
    request = request._replace(threads=_team_of(request, threads))

    def best(request: Request, algorithm: str | None) -> Plan:
        return _best(request, _asked(request, algorithm), memory_limit)

    return best(request, algorithm) if request.threads == 1 else plan_for_team(request, algorithm, best)


@lru_cache(maxsize=256)
def _best(request: Request, algorithms: tuple[Algorithm, ...], memory_limit: int | None) -> Plan:
    return _ranked(request, algorithms, memory_limit, 1, exhaustive=memory_limit is not None)[0]  # what is pruned may be small


forget = _best.cache_clear  # the plans that were made: what is asked for again is not planned again


def _bytes(memory_limit: int | None) -> int | None:
    return None if memory_limit is None else whole(memory_limit, "memory_limit", 0)


def plans(
    problem: str | Workload,
    machine: str | Machine | Gpu,
    top: int = 10,
    algorithm: str | None = None,
    memory_limit: int | None = None,
    **asked: Unpack[Asked],
) -> list[Plan]:
    """The `top` plans of least predicted cost under the full model, best first; each has the rejected kernels with the reasons. Options
    as in `plan`."""
    top = whole(top, "top", 1)
    request = _request(problem, machine, **asked)
    return _ranked(request, _asked(request, algorithm), _bytes(memory_limit), top, exhaustive=True)


def candidates(
    problem: str | Workload,
    machine: str | Machine | Gpu,
    within: float = 1.35,
    layout: Layout = "nchw",
    algorithm: str | None = None,
) -> list[tuple[AnySchedule, float]]:
    """Every schedule (of `algorithm`, where one is named) that is predicted to take at most `within` times as long as the best, with its
    seconds, best first.

    They come from the whole table of the full model, nothing of it pruned; caches are hot. Equal costs keep the table's order, so
    the first is `plan`'s choice or costs the same. Raises PlanError for `within` below 1, and what `plan` raises.
    """
    if not within >= 1:
        raise PlanError(f"within is {within}; it should be at least 1, the best schedule's own factor")
    request = _request(problem, machine, layout=layout)
    algorithms = _asked(request, algorithm)
    found = _Found.of(request, algorithms, exhaustive=True)
    order = found.order()
    if not order.size:
        raise PlanError(_nothing(found, found.refused, algorithms))
    near = order[found.cycles[order] <= within * found.cycles[order[0]]]
    return [(found.schedule(at), float(found.cycles[at]) / request.machine.clock_hz) for at in near.tolist()]


def _request(
    problem: str | Workload,
    machine: str | Machine | Gpu,
    model: ModelName = "full",
    micro_kernel: MicroKernel = None,
    state: State = "hot",
    layout: Layout = "nchw",
    accuracy: Accuracy = "standard",
    error_limit: float | None = None,
    prologue: bool = False,
) -> Request:
    """What is asked, checked value by value."""
    workload, on = parse(problem), load_any(machine)
    words = (
        ("model", model, MODELS),
        ("cache state", state, STATES),
        ("layout", layout, LAYOUTS + BLOCKED),
        ("accuracy", accuracy, ACCURACIES),
    )
    for what, value, known in words:
        word(value, what, known, PlanError)
    error_limit = None if error_limit is None else number(error_limit, "error_limit")
    if error_limit is not None and error_limit < 0:
        raise PlanError(f"error_limit is {error_limit}; it should be at least 0, the largest error over the result's root mean square")
    if layout in BLOCKED and isinstance(on, Gpu):
        raise PlanError(f"{layout} is a layout of CPUs, and {on.name} is a GPU; {choose(layout, LAYOUTS)}")
    if layout == "nhwc" and isinstance(on, Machine):
        raise PlanError(f"nhwc is a layout of GPUs, and {on.name} is a CPU; there are: nchw, {', '.join(BLOCKED)}")
    if model == "csa" and isinstance(on, Gpu):
        raise PlanError(f'the csa model is of CPU caches; {on.name} is a GPU, which has the model "full"')
    if flag(prologue, "prologue") and not (isinstance(workload, Conv) and isinstance(on, Gpu)):
        raise PlanError(f"a prologue is of a convolution on a GPU; {workload.text} on {on.name} has none")
    state = state if model == "full" else "cold"
    request = Request(workload, on, layout, state, model, _micro_kernel(micro_kernel, model))
    return request._replace(accuracy=accuracy, error_limit=error_limit, prologue=prologue)


def _team_of(request: Request, threads: int) -> int:
    """How many threads of a CPU the plan is for."""
    threads = whole(threads, "threads", 1, MOST_THREADS)
    if threads > 1 and isinstance(request.machine, Gpu):
        raise PlanError(f"threads is {threads}, but {request.machine.name} is a GPU, where a plan has no threads; leave it out")
    if threads > 1 and request.model == "csa":
        raise PlanError(f'threads is {threads}, but the csa model is of one core; leave it out, or take the model "full"')
    return threads


def _micro_kernel(asked: MicroKernel, model: ModelName) -> MicroKernel:
    """A kernel's name, or windows x filters, also from text such as 4x16; the slicing analysis knows shapes alone."""
    if not isinstance(asked, str):
        return None if asked is None else cast("tuple[int, int]", wholes(asked, "micro_kernel", 1, (2,), "(windows, filters)"))
    if re.fullmatch(r"0*[1-9][0-9]{0,8}x0*[1-9][0-9]{0,8}", asked):
        windows, _, filters = asked.partition("x")
        return int(windows), int(filters)
    if row := _row(asked):
        return _tile(row) if model == "csa" else asked
    raise PlanError(f"micro-kernel {quoted(asked)} is not windows x filters and no kernel; right is e.g. 4x16, or a name that plans print")


def _row(name: str) -> Kernel | GemmKernel | ConvKernel | None:
    return cpu_kernel(name) or gemm_kernel(name) or conv_kernel(name)


def _tile(row: Kernel | GemmKernel | ConvKernel) -> tuple[int, int]:
    """windows x filters, or rows x columns of a block."""
    return (row.windows, row.filters) if isinstance(row, Kernel) else (row.tiles.rows, row.tiles.columns)


def _asked(request: Request, algorithm: str | None) -> tuple[Algorithm, ...]:
    if algorithm is not None:
        return (algorithm_named(algorithm, request.problem, request.machine),)
    return algorithms_for(request.problem, request.machine)


class _Found(NamedTuple):
    """The candidates of all algorithms with their costs, one after another: `cycles` of each, and what it is a candidate of.

    `kernel` and `kind` number the kernels and the kinds of all algorithms, `kernels` and `kinds` name them: (algorithm, name). Kernels of
    `shared` names are those of several algorithms.
    """

    request: Request
    costs: tuple[tuple[Algorithm, Costs], ...]
    first: Array
    cycles: Array
    kernel: NDArray[np.int64]
    kind: NDArray[np.int64]
    kernels: tuple[tuple[str, str], ...]
    kinds: tuple[tuple[str, str], ...]
    shared: frozenset[str]
    refused: tuple[Rejected, ...]

    @classmethod
    def of(cls, request: Request, algorithms: Sequence[Algorithm], exhaustive: bool) -> "_Found":
        refused: list[Rejected] = []
        taking: list[Algorithm] = []
        sliced = loop_nest(request.problem)
        for one in algorithms:
            if reason := one.refuses(request.problem, request.machine, request.layout):
                refused.append(Rejected(one.NAME, reason.sentence, reason.code))
            elif request.model == "csa" and sliced != one.NAME:
                refused.append(Rejected(one.NAME, f"the slicing analysis is of {sliced}'s nest", "type"))
            else:
                taking.append(one)
        costs, others = _predicted(request, taking, exhaustive)
        refused += others
        return cls(
            request,
            tuple(costs),
            np.cumsum([0, *(of.cycles.size for _, of in costs)]),
            np.concatenate([of.cycles for _, of in costs] or [np.empty(0)]),
            _numbered([(of.kernel, len(of.kernels)) for _, of in costs]),
            _numbered([(of.kind, len(of.kinds)) for _, of in costs]),
            tuple((one.NAME, name) for one, of in costs for name in of.kernels),
            tuple((one.NAME, name) for one, of in costs for name in of.kinds),
            frozenset(name for name, count in Counter(name for _, of in costs for name in of.kernels).items() if count > 1),
            tuple(dict.fromkeys(refused)),
        )

    def order(self) -> NDArray[np.int64]:
        """Places by predicted time, the earlier first where it is the same."""
        return np.argsort(self.cycles, kind="stable")

    def at(self, place: int) -> tuple[Algorithm, Costs, int]:
        """The algorithm of a place, its costs, and the row among them."""
        which = int(self.first.searchsorted(place, side="right")) - 1
        return *self.costs[which], int(place - self.first[which])

    def schedule(self, place: int) -> AnySchedule:
        _, costs, row = self.at(place)
        return costs.schedule(row)

    def workspace_bytes(self, place: int) -> int:
        algorithm, costs, row = self.at(place)
        return algorithm.workspace_bytes(self.request.problem, costs.schedule(row), self.request.layout)


def _numbered(parts: Sequence[tuple[NDArray[np.int64], int]]) -> NDArray[np.int64]:
    """Indices into several tuples, as indices into all of them one after another."""
    first = itertools.accumulate((size for _, size in parts), initial=0)
    return np.concatenate([own + start for (own, _), start in zip(parts, first, strict=False)] or [np.empty(0, dtype=np.int64)])


def _predicted(request: Request, algorithms: Sequence[Algorithm], exhaustive: bool) -> tuple[list[tuple[Algorithm, Costs]], list[Rejected]]:
    """The costs of those that may be the best, in their order, each widened until the best of its kinds is certain; what cannot run or
    win, and why."""
    found, rejected, best = list[tuple[Algorithm, Costs]](), list[Rejected](), np.inf

    def predict(some: Sequence[Algorithm]) -> None:
        nonlocal best
        asked = list[tuple[Algorithm, Candidates]]()
        for one in some:
            candidates = one.candidates(request, np.inf if exhaustive else 0.0)
            rejected.extend(candidates.rejected)
            if not isinstance(candidates, NoneLegal):
                asked.append((one, candidates))
        costs = asked[0][0].cost(request.machine, [candidates for _, candidates in asked]) if asked else ()
        for (one, candidates), of in zip(asked, costs, strict=True):
            kept, further = accurate(request, one, of), FURTHER
            while ((limit := _limit_for_best(kept, candidates.limit, further)) > candidates.limit).any():
                candidates, further = one.candidates(request, limit), np.inf
                kept = accurate(request, one, *one.cost(request.machine, [candidates]))
            found.append((one, kept))
            best = min(best, kept.cycles.min(initial=np.inf))

    bounded = len(algorithms) > 1 and not exhaustive
    glances = [(least_cycles(one, request) if bounded else 0.0, one) for one in algorithms]
    for _, group in itertools.groupby((one for bound, one in glances if not bound), key=lambda one: one.cost):
        predict([*group])
    waiting = [(getattr(one, "SELDOM_BEST", False), bound, False, one) for bound, one in glances if bound]
    beyond: dict[str, float] = {}
    while waiting:  # the least bound first, which is made tighter before it is believed
        waiting.sort(key=operator.itemgetter(0, 1))
        seldom, bound, tight, one = waiting.pop(0)
        if not tight:
            bound = least_cycles(one, request, best)
        if bound > best:
            beyond[one.NAME] = bound
        elif tight:
            predict([one])
        else:
            waiting.append((seldom, bound, True, one))
    said = "its lower bound is already {:.2f}x the chosen time"
    rejected += [Rejected(name, said.format(least / best), "slower") for name, least in beyond.items()]
    return sorted(found, key=lambda item: algorithms.index(item[0])), rejected


def _limit_for_best(costs: Costs, limit: Array | float, further: float) -> Array:
    """The limit in cycles up to which each kind's schedules must be known for the best of them to be certain: the cycles of the best so
    far; `further` times the limit so far where no schedule is known yet; no more than now where none is accurate enough."""
    best = np.full(len(costs.kinds), np.inf)
    np.minimum.at(best, costs.kind, costs.cycles)
    best[[*costs.lost]] = 0.0
    limits: Array = np.where(np.isinf(best), further * limit, best * (1 + 1e-9))
    return np.where(best > limit, limits, limit)


def _ranked(request: Request, algorithms: Sequence[Algorithm], memory_limit: int | None, top: int, exhaustive: bool) -> list[Plan]:
    """The `top` best plans, best first."""
    found = _Found.of(request, algorithms, exhaustive)
    order, above = _within(found, found.order(), memory_limit)
    inaccurate = _inaccurate(found)
    if not order.size:
        raise PlanError(_nothing(found, (*above, *inaccurate, *found.refused), algorithms))
    first, best = order[_firsts(found.kind[order])].tolist(), order[:top].tolist()
    costs = {at: _cost(found, at) for at in (*first, *best[1:])}  # the best of all is the first of the kinds
    considered = tuple(Considered(found.at(at)[0].NAME, found.schedule(at), costs[at]) for at in first)
    rejected = (*_slower(found, order), *above, *inaccurate, *found.refused)
    return [_plan(found, at, costs[at], considered, rejected, memory_limit) for at in best]


def _firsts(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each number stands first, in that order."""
    first = np.full(numbers.max(initial=-1) + 1, numbers.size)
    first[numbers[::-1]] = np.arange(numbers.size)[::-1]
    return np.sort(first)[: np.count_nonzero(first < numbers.size)]


def _cost(found: _Found, at: int) -> Cost | CsaCost:
    _, costs, row = found.at(at)
    return costs.cost(row)


def _plan(
    found: _Found,
    at: int,
    cost: Cost | CsaCost,
    considered: tuple[Considered, ...],
    rejected: tuple[Rejected, ...],
    memory_limit: int | None,
) -> Plan:
    request, (algorithm, costs, row) = found.request, found.at(at)
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
        memory_limit=memory_limit,
        needs_finite=bound.finite,
        error=accuracies.stated(bound, request.problem, request.machine),
        accuracy=request.accuracy,
        error_limit=request.error_limit,
    )


def _within(found: _Found, order: NDArray[np.int64], limit: int | None) -> tuple[NDArray[np.int64], tuple[Rejected, ...]]:
    """The places whose workspace is within the limit, and the kernels of which none is, the smallest first."""
    if limit is None:
        return order, ()
    sizes = np.array([found.workspace_bytes(at) for at in order.tolist()])
    kept, kernel = order[sizes <= limit], found.kernel[order]
    least = {one: int(sizes[kernel == one].min()) for one in kernel[_firsts(kernel)].tolist()}
    said = "its workspace of {:,} bytes is above the limit of {:,}"
    above = sorted((item for item in least.items() if item[1] > limit), key=lambda item: item[1])
    return kept, tuple(Rejected(_what(found, one), said.format(size, limit), "memory") for one, size in above)


def _inaccurate(found: _Found) -> tuple[Rejected, ...]:
    """The kernels that are not as accurate as was asked for, the most accurate first."""
    first = itertools.accumulate((len(costs.kernels) for _, costs in found.costs), initial=0)
    refused = [
        (error, Rejected(_what(found, start + kernel), why.sentence, why.code))
        for (_, costs), start in zip(found.costs, first, strict=False)
        for kernel, (error, why) in costs.refused.items()
    ]
    return tuple(one for _, one in sorted(refused, key=lambda item: item[0]))


def _slower(found: _Found, order: NDArray[np.int64]) -> Iterator[Rejected]:
    """The kernels that could run and lost, best first: by their best schedule, or by their bound where none was worth predicting."""
    ran = order[_firsts(found.kernel[order])]
    kernels, cycles = found.kernel[ran].tolist(), found.cycles[ran].tolist()
    for kernel, kind, of in [*zip(kernels, found.kind[ran].tolist(), cycles, strict=True)][1:]:
        why = f"its best predicted schedule ({found.kinds[kind][1]}) takes {of / cycles[0]:.3f}x the chosen time"
        yield Rejected(_what(found, kernel), why, "slower")
    bounds = itertools.chain.from_iterable(costs.bounds.tolist() for _, costs in found.costs)
    others = {kernel: bound for kernel, bound in enumerate(bounds) if kernel not in kernels and not math.isnan(bound)}
    for kernel in sorted(others, key=others.__getitem__):
        why = f"its lower bound is already {max(1.0, others[kernel] / cycles[0]):.2f}x the chosen time"
        yield Rejected(_what(found, kernel), why, "slower")


def _what(found: _Found, kernel: int) -> str:
    """A kernel's name, with its algorithm where several have it."""
    algorithm, name = found.kernels[kernel]
    return f"{algorithm} by {name}" if name in found.shared else name


def _nothing(found: _Found, rejected: Sequence[Rejected], algorithms: Sequence[Algorithm]) -> str:
    """Why there is no plan: no kernel is what was asked for, or the first reason of the kind that says most."""
    request, asked = found.request, found.request.micro_kernel
    if asked and not found.cycles.size:
        others = _Found.of(request._replace(micro_kernel=None), algorithms, exhaustive=True)
        rows = [row for _, name in others.kernels if (row := _row(name))]
        known = {row.name if isinstance(asked, str) else named(_tile(row)) for row in rows}
        rejected = [one for one in rejected if one.what == asked]
        if known and not rejected:
            what = f"no kernel {named(asked)} computes {request.problem.text} on {request.machine.name}"
            return f"{what}; {choose(named(asked), sorted(known))}"
    first = min(rejected, key=lambda one: _TELLING.index(one.code) if one.code in _TELLING else len(_TELLING), default=None)
    why = f"{first.what}: {first.reason}" if first else "the registry has no kernel for it"
    return f"nothing computes {request.problem.text} on {request.machine.name}: {why}"


_TELLING = ("memory", "accuracy", "size", "shape", "machine")  # codes of reasons, the most telling first
