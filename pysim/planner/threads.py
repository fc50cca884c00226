# SPDX-License-Identifier: Apache-2.0
"""The plan for several threads of a CPU. The schedule determines how threads divide the work, so schedules compete by their largest part.

    schedules    the best of the problem, and the best of each even division of it among T threads (rows of outputs x filters)
    prediction   the largest part of each schedule (`largest_part` of its algorithm), on the machine as one of T cores sees it
    choice       the least seconds: the largest part, plus forks and joins (`pysim.cachemodel.cpu.threads`)

Planning for several threads makes one plan per even division: 21 to 66 ms for 2 threads, 68 to 145 for 16 (five problems on
`sapphire-rapids`, on a Zen 5).

Worked number: 16 threads divide 14x14 outputs of 512 filters into 14 parts of one row, or 7 x 2, 3 x 5, 2 x 8, or 16 parts of 32 filters.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec

from pysim.algorithms import algorithm_named
from pysim.cachemodel.cpu.nest import ceil_div
from pysim.cachemodel.cpu.threads import cost_of_threads, machine_of_one_core, rows_of, touched_bytes
from pysim.errors import PlanError
from pysim.machine.cpu import Machine
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.record.cost import Cost
from pysim.record.plan import Considered, Plan, Request
from pysim.record.schedule import AnySchedule

Best = Callable[[Request, str | None], Plan]  # the best plan of a request, by the named algorithm if any


def plan_for_team(request: Request, algorithm: str | None, best: Best) -> Plan:
    """The plan of least predicted time on `request.threads` threads; if the request has a schedule, that schedule's plan."""
    alone, threads = best(request, algorithm), request.threads
    found = [alone]
    if request.schedule is None:
        seen = _seen(request, request.problem, threads)
        for part in _parts(request.problem, threads):
            with suppress(PlanError):  # no kernel accepts the part, e.g. filters that fill no whole blocks
                # the limit applies to the whole problem's error; a part's differs
                found.append(best(request._replace(problem=part, machine=seen, error_limit=None), algorithm))
    named = dict.fromkeys(one for plan in found for one in _named(plan))
    own = {*_named(alone)}
    legal = [one for one in named if one in own or _computes_all(request, *one, best)]
    teams = [Considered(name, schedule, _cost(request, name, schedule, threads, best)) for name, schedule in legal]
    teams.sort(key=lambda one: one.cost.seconds if isinstance(one.cost, Cost) else 0.0)
    kinds = {(one.algorithm, one.schedule.kind): one for one in reversed(teams)}
    chosen = best(request._replace(schedule=teams[0].schedule), teams[0].algorithm)
    considered = tuple(sorted(kinds.values(), key=teams.index))
    return msgspec.structs.replace(chosen, cost=teams[0].cost, considered=considered, rejected=alone.rejected, threads=threads)


def _named(plan: Plan) -> Iterator[tuple[str, AnySchedule]]:
    """The algorithms and schedules of a plan and of its considered alternatives."""
    yield plan.algorithm, plan.schedule
    yield from ((one.algorithm, one.schedule) for one in plan.considered)


def _computes_all(request: Request, algorithm: str, schedule: AnySchedule, best: Best) -> bool:
    """Whether a part's best schedule can run the whole problem."""
    if algorithm_named(algorithm, request.problem, request.machine).refuses(request.problem, request.machine, request.layout):
        return False
    try:
        best(request._replace(schedule=schedule), algorithm)
    except PlanError:
        return False
    return True


def _cost(request: Request, algorithm: str, schedule: AnySchedule, threads: int, best: Best) -> Cost:
    """The cost, on all threads, of a schedule known to be legal and accurate enough."""
    of, request = algorithm_named(algorithm, request.problem, request.machine), request._replace(accuracy="standard", error_limit=None)
    part = of.largest_part(request.problem, schedule, threads)
    seen = _seen(request, part.problem, threads)
    cost = best(request._replace(problem=part.problem, machine=seen, schedule=part.schedule), algorithm).cost
    assert isinstance(cost, Cost)
    return cost_of_threads(cost, part, request.cpu, threads, request.problem.flops / (part.share * part.problem.flops))


def _seen(request: Request, part: Workload, threads: int) -> Machine:
    return machine_of_one_core(request.cpu, threads, touched_bytes(part) / touched_bytes(request.problem))


def _parts(w: Workload, threads: int) -> Iterator[Workload]:
    """The largest parts of all even divisions, without repetition."""
    found: set[Workload] = set()
    for of_filters in range(1, threads + 1):
        of_rows = threads // of_filters
        if of_rows * of_filters < threads - max(1, threads // 8):
            continue
        if isinstance(w, Gemm):
            found.add(msgspec.structs.replace(w, n=ceil_div(w.n, of_rows), m=ceil_div(w.m, of_filters)))
        elif w.batch * w.groups >= threads:
            groups = w.groups if w.batch >= threads else min(w.groups, max(2, ceil_div(w.batch * w.groups, threads)))
            found.add(rows_of(w, ceil_div(w.batch, threads), w.out_h, w.group_filters, groups))
        else:
            rows, filters = ceil_div(w.out_h, max(1, of_rows // w.batch)), ceil_div(w.group_filters, of_filters)
            found.add(rows_of(w, w.batch, rows, filters, w.groups))
    yield from sorted(found, key=lambda one: one.text)
