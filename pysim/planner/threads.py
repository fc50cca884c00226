# SPDX-License-Identifier: Apache-2.0
"""The plan for several threads of a CPU. The schedule determines how threads divide the work, so schedules compete by their largest part.

    schedules    the best of the problem, and the best of each even division of it among T threads (rows of outputs x filters)
    prediction   the largest part of each schedule (`largest_part` of its algorithm), on the machine as one of T cores sees it
    choice       the least seconds: the largest part, plus forks and joins (`pysim.cachemodel.cpu.threads`)

Planning for several threads makes one plan per even division: 21 to 66 ms for 2 threads, 68 to 145 for 16 (five problems on
`sapphire-rapids`, on a Zen 5).

Worked number: 16 threads divide 14x14 outputs of 512 filters into 14 parts of one row, or 7 x 2, 3 x 5, 2 x 8, or 16 parts of 32 filters.
"""

from collections.abc import Callable
from contextlib import suppress

import msgspec

from pysim.algorithms import algorithm_named
from pysim.cachemodel.cpu.threads import cost_of_threads, even_parts, machine_of_one_core, touched_bytes
from pysim.errors import PlanError
from pysim.record.cost import Cost
from pysim.record.plan import Considered, Plan, Request
from pysim.record.schedule import AnySchedule

Best = Callable[[Request], Plan]  # the best plan of a request by one thread


def plan_for_team(request: Request, best: Best) -> Plan:
    """The plan of least predicted time on `request.threads` threads; if the request has a schedule, that schedule's plan. Threads share the
    limit of the workspace, of which each has its own."""
    limit, problem, threads = request.memory_limit, request.problem, request.threads
    request = msgspec.structs.replace(request, memory_limit=None if limit is None else limit // threads)
    alone = best(request)
    found = [alone]
    if request.schedule is None:
        seen = machine_of_one_core(request.cpu, threads, 1.0)
        for part in even_parts(problem, threads):
            with suppress(PlanError):  # no kernel accepts the part, e.g. filters that fill no whole blocks
                # the limit applies to the whole problem's error; a part's differs
                found.append(best(msgspec.structs.replace(request, problem=part, machine=seen, error_limit=None)))
    named = dict.fromkeys(one for plan in found for one in _named(plan))
    teams = list[Considered]()
    for name, schedule in named:
        if (name, schedule) not in _named(alone):
            try:  # a part's best schedule may not run the whole problem
                best(msgspec.structs.replace(request, algorithm=name, schedule=schedule))
            except PlanError:
                continue
        teams.append(Considered(name, schedule, _cost(request, name, schedule, best)))
    teams.sort(key=lambda one: one.cost.seconds if isinstance(one.cost, Cost) else 0.0)
    kinds = {(one.algorithm, one.schedule.kind): one for one in reversed(teams)}
    chosen = best(msgspec.structs.replace(request, algorithm=teams[0].algorithm, schedule=teams[0].schedule))
    considered = tuple(sorted(kinds.values(), key=teams.index))
    team = {"cost": teams[0].cost, "considered": considered, "rejected": alone.rejected, "threads": threads, "memory_limit": limit}
    return msgspec.structs.replace(chosen, **team)


def _named(plan: Plan) -> tuple[tuple[str, AnySchedule], ...]:
    """The algorithms and schedules of a plan and of its considered alternatives."""
    return (plan.algorithm, plan.schedule), *((one.algorithm, one.schedule) for one in plan.considered)


def _cost(request: Request, algorithm: str, schedule: AnySchedule, best: Best) -> Cost:
    """The cost, on all threads, of a schedule known to be legal and accurate enough."""
    problem, threads = request.problem, request.threads
    part = algorithm_named(algorithm, problem, request.machine).largest_part(problem, schedule, threads)
    largest, bytes_share = problem.flops / (part.share * part.problem.flops), touched_bytes(part.problem) / touched_bytes(problem)
    seen = machine_of_one_core(request.cpu, threads, bytes_share, part.items, min(request.cpu.cores, threads, largest))
    own = msgspec.structs.replace(request, problem=part.problem, machine=seen, algorithm=algorithm, schedule=part.schedule)
    cost = best(msgspec.structs.replace(own, accuracy="standard", error_limit=None)).cost
    assert isinstance(cost, Cost)
    return cost_of_threads(cost, part, request.cpu, threads, largest)
