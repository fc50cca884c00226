# SPDX-License-Identifier: Apache-2.0
"""Planning: all algorithms list their legal schedules, all schedules are costed together, and the plan with the least predicted time wins.

    request -> refusals (with reasons) -> candidates -> costs, as arrays -> order -> plans

`table` lists, costs and ranks the candidates. Algorithms are known only through `pysim.algorithms.interface`.
"""

import logging
import re
from functools import cache, lru_cache
from typing import Any, cast

import msgspec
import numpy as np

from pysim.arguments import MOST_THREADS, flag, number, whole, wholes, word
from pysim.errors import PlanError, choose, quoted
from pysim.logs import LOG
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.machine.load import load_any
from pysim.planner.contracts import asked
from pysim.planner.table import Table, row_named, tile_of
from pysim.planner.threads import plan_for_team
from pysim.problem.conv import Conv
from pysim.problem.text import Workload, parse
from pysim.record.accuracy import ACCURACIES
from pysim.record.later import Later
from pysim.record.plan import BLOCKED, FOOTPRINTS, LAYOUTS, MODELS, MicroKernel, ModelName, Plan, Request
from pysim.record.schedule import AnySchedule, from_name
from pysim.record.state import STATES


def plan(problem: str | Workload, machine: str | Machine | Gpu, model: ModelName = "full", name: str | None = None, **terms: Any) -> Plan:
    """The plan of least predicted cost for a problem (text or value) on a machine (name, path of a .toml file, or value).

    `terms`: the other fields of a `pysim.record.plan.Request`, which describes them. `name`: of another plan, whose schedule is costed;
    nothing else is considered. Raises ProblemError, MachineError, and PlanError if no kernel can run the problem.
    """
    return planned(request_of(parse(problem), load_any(machine), name, model=model, **terms))


@lru_cache(maxsize=4096)
def planned(request: Request) -> Plan:
    """The plan of least predicted cost for a checked request."""
    found = _best(request) if request.threads == 1 else plan_for_team(request, _best)
    if LOG.isEnabledFor(logging.INFO):
        seconds = "" if found.seconds is None else f", {found.seconds:.4g} s predicted"
        LOG.info("planned %s on %s, threads=%d: %s%s", found.problem, found.machine, found.threads, found.name, seconds)
    if LOG.isEnabledFor(logging.DEBUG):  # the rejected kernels are collected only when they are read
        for one in found.rejected:
            LOG.debug("rejected for %s: %s: %s", found.problem, one.what, one.reason)
    return found


@lru_cache(maxsize=256)
def _best(request: Request) -> Plan:
    """The best plan. Its alternatives are predicted when they are first read, if the plan can be found without them."""
    limited = request.memory_limit is not None  # a pruned schedule may need less workspace

    @cache
    def full() -> Plan:
        return Table.of(asked(request), exhaustive=limited).ranked(1)[0]

    if request.model == "full" and request.any_error and request.schedule is None and request.threads == 1 and not limited:
        table = Table.of(msgspec.structs.replace(request, most=np.inf), exhaustive=False)
        if table.cycles.size:
            return table.best_plan(Later(lambda: full().considered), Later(lambda: full().rejected))
    return full()


def forget() -> None:
    """Empties the caches of plans."""
    planned.cache_clear()
    _best.cache_clear()


def plans(problem: str | Workload, machine: str | Machine | Gpu, top: int = 10, **terms: Any) -> list[Plan]:
    """The `top` plans of least predicted cost under the full model, best first. `terms` as in `plan`."""
    return ranked(request_of(parse(problem), load_any(machine), **terms), whole(top, "top", 1))


def ranked(request: Request, top: int) -> list[Plan]:
    """The `top` plans of least predicted cost for a checked request, best first."""
    return Table.of(asked(request), exhaustive=True).ranked(top)


def candidates(
    problem: str | Workload, machine: str | Machine | Gpu, within: float = 1.35, **terms: Any
) -> list[tuple[AnySchedule, float]]:
    """All schedules with a predicted time of at most `within` times the best, with their seconds, best first.

    The full model, nothing pruned. The first schedule is `plan`'s choice or costs the same. Raises PlanError for `within` below 1, and the
    errors of `plan`.
    """
    if not within >= 1:
        raise PlanError(f"within is {within}; it should be at least 1")
    request = request_of(parse(problem), load_any(machine), **terms)
    table = Table.of(asked(request), exhaustive=True)
    order = table.order()
    if not order.size:
        raise PlanError(table.why_none(table.rejected))
    near = order[table.cycles[order] <= within * table.cycles[order[0]]]
    return [(table.schedule(at), float(table.cycles[at]) / request.machine.clock_hz) for at in near.tolist()]


def request_of(problem: Workload, machine: Machine | Gpu, name: str | None = None, **terms: Any) -> Request:
    """The request with these fields, checked. `name`: of another plan, whose algorithm and schedule alone are costed."""
    if name is not None:
        terms["algorithm"], terms["schedule"] = from_name(name)
    request = Request(problem, machine, **terms)
    for what, value, known in (
        ("model", request.model, MODELS),
        ("cache state", request.state, STATES),
        ("layout", request.layout, LAYOUTS + BLOCKED),
        ("accuracy", request.accuracy, ACCURACIES),
        ("input_footprint", request.input_footprint, FOOTPRINTS),
    ):
        word(value, what, known, PlanError)
    csa, layout, limit = request.model == "csa", request.layout, request.error_limit
    if limit is not None and (limit := number(limit, "error_limit")) < 0:
        raise PlanError(f"error_limit is {limit}; it should be at least 0, the largest error over the result's root mean square")
    if layout in BLOCKED and isinstance(machine, Gpu):
        raise PlanError(f"layout {layout} is for CPUs, and {machine.name} is a GPU; {choose(layout, LAYOUTS)}")
    if layout == "nhwc" and isinstance(machine, Machine) and problem.dtype != "s8":
        raise PlanError(f"layout nhwc is for GPUs and of s8, and {machine.name} is a CPU; expected one of: nchw, {', '.join(BLOCKED)}")
    if csa and isinstance(machine, Gpu):
        raise PlanError(f'the csa model is for CPUs, and {machine.name} is a GPU; take the model "full"')
    if flag(request.prologue, "prologue") and not (isinstance(problem, Conv) and isinstance(machine, Gpu)):
        raise PlanError(f"a prologue exists for convolutions on GPUs only, not for {problem.text} on {machine.name}")
    if request.input_footprint == "raw" and not csa:
        raise PlanError('input_footprint "raw" exists in the csa model only; leave it out, or take the model "csa"')
    return msgspec.structs.replace(
        request,
        state="cold" if csa else request.state,
        micro_kernel=_micro_kernel(request.micro_kernel, request.model),
        error_limit=limit,
        threads=_team(request),
        algorithm=None if request.algorithm is None else str(request.algorithm),
        prepared=flag(request.prepared, "prepared"),
        memory_limit=None if request.memory_limit is None else whole(request.memory_limit, "memory_limit", 0),
    )


def _team(request: Request) -> int:
    """The checked number of threads."""
    threads = whole(request.threads, "threads", 1, MOST_THREADS)
    if threads > 1 and isinstance(request.machine, Gpu):
        raise PlanError(f"threads is {threads}, but {request.machine.name} is a GPU; leave it out")
    if threads > 1 and request.model == "csa":
        raise PlanError(f'threads is {threads}, but the csa model is for one core; leave it out, or take the model "full"')
    return threads


def _micro_kernel(asked: MicroKernel, model: ModelName) -> MicroKernel:
    """A kernel's name or (windows, filters), from either or from text such as 4x16; always the tile for the csa model."""
    if not isinstance(asked, str):
        return None if asked is None else cast("tuple[int, int]", wholes(asked, "micro_kernel", 1, (2,), "(windows, filters)"))
    if re.fullmatch(r"0*[1-9][0-9]{0,8}x0*[1-9][0-9]{0,8}", asked):
        windows, _, filters = asked.partition("x")
        return int(windows), int(filters)
    if row := row_named(asked):
        return tile_of(row) if model == "csa" else asked
    right = "4x16, or a name from `pysim kernels`"
    raise PlanError(f"micro-kernel {quoted(asked)} is neither a tile (windows x filters) nor a kernel; expected e.g. {right}")
