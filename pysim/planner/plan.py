# SPDX-License-Identifier: Apache-2.0
"""The choice: the schedule of least predicted cost, with everything that was considered and turned down.

`model="full"` predicts cycles for every candidate of `space` with `pysim.cachemodel.cost`. A schedule that computes for longer than
the best one takes cannot win, so its traffic is not predicted; that is exact, since no cost is below its compute term. A whole
kernel falls by its arithmetic, calls, stores and packing of a single channel set. `model="csa"` is SConv's
slicing analysis: the paper's tile sizes and cost integers.

For a GPU `gpu_plans` chooses, from the launches of `pysim.planner.gpu` and `pysim.planner.gpu_conv`.

Worked number: on zen4 the portable kernel needs 16 cycles a step for 8 x 4 outputs, 14 times what f32_win_32x14__avx512 needs.
"""

import re
from typing import NamedTuple

import numpy as np

from pysim.cachemodel import csa
from pysim.cachemodel.cost import Prediction, cost_of, predict_all, schedule_of
from pysim.cachemodel.incore import Array, Rates, rates
from pysim.cachemodel.nest import Nest, nest_of, workspace_bytes
from pysim.errors import PlanError
from pysim.machine import Gpu, Machine, load, load_any
from pysim.planner import space
from pysim.planner.gpu_plans import Asked, check_asked, gpu_plans
from pysim.planner.planned import STATES, Considered, Layout, ModelName, Plan, State, on_cpu, tile_of
from pysim.record import Cost, CsaCost, Rejected
from pysim.registry import kernels
from pysim.schedule import STATIONARY, Schedule
from pysim.workload import Conv, Workload, parse

GUESS = 1.1  # of the least bound: most best schedules take less
MODELS = ("full", "csa")


def plan(
    problem: str | Workload,
    machine: str | Machine | Gpu,
    model: ModelName = "full",
    micro_kernel: str | tuple[int, int] | None = None,
    input_footprint: csa.Footprint = "packed",
    state: State = "hot",
    layout: Layout = "nchw",
    memory_limit: int | None = None,
    algorithm: str | None = None,
) -> Plan:
    """The plan of least predicted cost for a problem (text or value) on a machine (name, path of a .toml file, or value).

    `micro_kernel` ("4x16", windows x filters; on a GPU "128x128", a block's tile) restricts the full model to kernels of that shape and
    replaces the shape under CSA; `input_footprint` is CSA's alone, `state` (of the caches at the start) the full model's. On a GPU a
    convolution has a `layout` of input and output, a plan takes no more workspace than `memory_limit` bytes, and `algorithm` (a family
    of native/cuda/convs.inc) restricts it. Raises ProblemError, MachineError, and PlanError where no kernel can run the problem.
    """
    workload, on = _workload(problem), _machine(machine)
    shape = _shape(micro_kernel) if isinstance(micro_kernel, str) else micro_kernel
    asked = Asked(layout, memory_limit, algorithm)
    check_asked(asked, workload, on)
    if isinstance(on, Gpu):
        if model != "full":
            raise PlanError(f'the {model} model is of CPU caches; {on.name} is a GPU, which has the model "full"')
        return gpu_plans(workload, on, shape, state, 1, asked)[0]
    if model == "csa":
        return _csa_plan(workload, on, shape, input_footprint)
    if model != "full":
        raise PlanError(f'no model is named "{model}"; there is {" and ".join(MODELS)}')
    return _best(_case(workload, on, shape, state))


def plans(
    problem: str | Workload,
    machine: str | Machine | Gpu,
    top: int = 10,
    micro_kernel: str | tuple[int, int] | None = None,
    state: State = "hot",
    layout: Layout = "nchw",
    memory_limit: int | None = None,
    algorithm: str | None = None,
) -> list[Plan]:
    """The `top` plans of least predicted cost under the full model, best first; each has the rejected kernels with the reasons. Options
    as in `plan`."""
    if top < 1:
        raise PlanError(f"top is {top}; it should be at least 1")
    workload, on = _workload(problem), _machine(machine)
    shape = _shape(micro_kernel) if isinstance(micro_kernel, str) else micro_kernel
    asked = Asked(layout, memory_limit, algorithm)
    check_asked(asked, workload, on)
    if isinstance(on, Gpu):
        return gpu_plans(workload, on, shape, state, top, asked)
    return _ranked(_case(workload, on, shape, state), top)


def candidates(workload: str | Workload, machine: str | Machine, within: float = 1.35) -> list[tuple[Schedule, float]]:
    """Every schedule that is predicted to take at most `within` times as long as the best, with its seconds, best first.

    They come from the whole table of the full model, nothing of it pruned; caches are hot. Equal costs keep the table's order, so
    the first is `plan`'s choice or costs the same. Raises PlanError for `within` below 1, and what `plan` raises.
    """
    if not within >= 1:
        raise PlanError(f"within is {within}; it should be at least 1, the best schedule's own factor")
    on = load(machine) if isinstance(machine, str) else machine
    found = _unpruned(_case(_workload(workload), on, None, "hot"))
    frequency = on.core.frequency_hz.value
    limit = within * min(float(prediction.cycles.min()) for prediction in found)
    return [(schedule_of(*item), _cycles(item) / frequency) for item in _order(found) if _cycles(item) <= limit]


def _workload(problem: str | Workload) -> Workload:
    return parse(problem) if isinstance(problem, str) else problem


def _machine(machine: str | Machine | Gpu) -> Machine | Gpu:
    if not isinstance(machine, str):
        return machine
    return load(machine) if machine == "host" else load_any(machine)


def _shape(text: str) -> tuple[int, int]:
    """windows x filters from text such as 4x16."""
    windows, _, filters = text.partition("x")
    if not re.fullmatch(r"0*[1-9][0-9]{0,8}x0*[1-9][0-9]{0,8}", text):
        raise PlanError(f'micro-kernel "{text}" is not windows x filters; right is e.g. 4x16')
    return int(windows), int(filters)


class _Case(NamedTuple):
    """One problem on one machine, with the kernels that can run it and what they cost whatever the tiling."""

    workload: Workload
    on: Machine
    state: State
    nest: Nest
    rows: space.Rows
    rates: Rates


Candidate = tuple[Prediction, int]  # a predicted table and a row of it


def _case(workload: Workload, on: Machine, shape: tuple[int, int] | None, state: State) -> _Case:
    if state not in STATES:
        raise PlanError(f'no cache state is named "{state}"; there is {" and ".join(STATES)}')
    nest, rows = nest_of(workload), space.rows(on, workload.dtype, shape)
    return _Case(workload, on, state, nest, rows, rates(nest, on, rows.kernels))


def _best(case: _Case) -> Plan:
    """The cheapest schedule of each kind, and of both.

    What computes for longer than GUESS times the least bound of any kernel is left out at first. Where a kind's best takes longer
    than that, nothing says that it is the best, and all that computes for no longer than it takes is predicted.
    """
    bound = space.least_cycles(case.rates, np.arange(len(case.rows.kernels)))
    limit = GUESS * float(bound.min())
    found = _within(case, bound, limit)
    while (least := max(float(prediction.cycles.min(initial=np.inf)) for prediction in found)) > limit:
        limit = least * (1 + 1e-9)
        found = _within(case, bound, limit)
    best = _best_of_each(found)
    chosen = min(best, key=_cycles)
    considered = tuple(Considered(schedule_of(*item), cost_of(*item)) for item in best)
    winner = considered[[item is chosen for item in best].index(True)]
    return _plan(case, schedule_of(*chosen), winner.cost, considered, _rejected(case, found, chosen, bound))


def _within(case: _Case, bound: Array, limit: float) -> list[Prediction]:
    """Of each stationary kind, the schedules that compute for at most `limit` cycles; `bound` is that of each kernel."""
    tables = space.tables(case.rates, [(kind, np.flatnonzero(bound <= limit).tolist(), limit) for kind in STATIONARY])
    return predict_all(case.rates, tables, case.state == "hot", limit)


def _unpruned(case: _Case) -> list[Prediction]:
    """The whole table of each stationary kind."""
    everything = list(range(len(case.rows.kernels)))
    tables = space.tables(case.rates, [(kind, everything, np.inf) for kind in STATIONARY])
    return predict_all(case.rates, tables, case.state == "hot")


def _order(found: list[Prediction], top: int | None = None) -> list[Candidate]:
    """The rows of a table of each stationary kind, or the `top` of them, by predicted cycles."""
    split = found[0].cycles.size
    order = np.argsort(np.concatenate([prediction.cycles for prediction in found]), kind="stable")[:top].tolist()
    return [(found[row >= split], row - split * (row >= split)) for row in order]


def _ranked(case: _Case, top: int) -> list[Plan]:
    found = _unpruned(case)
    items = _order(found, top)
    considered = tuple(Considered(schedule_of(*item), cost_of(*item)) for item in _best_of_each(found))
    rejected = _rejected(case, found, items[0], space.least_cycles(case.rates, np.arange(len(case.rows.kernels))))
    return [_plan(case, schedule_of(*item), cost_of(*item), considered, rejected) for item in items]


def _best_of_each(found: list[Prediction]) -> list[Candidate]:
    """The cheapest row of each stationary kind."""
    rows = [(prediction, int(prediction.cycles.argmin())) for prediction in found if prediction.cycles.size]
    kinds = [[item for item in rows if item[0].table.stationary == kind] for kind in STATIONARY]
    return [min(kind, key=_cycles) for kind in kinds]


def _cycles(item: Candidate) -> float:
    return float(item[0].cycles[item[1]])


def _plan(
    case: _Case, schedule: Schedule, cost: Cost | CsaCost, considered: tuple[Considered, ...], rejected: tuple[Rejected, ...]
) -> Plan:
    return Plan(
        workload=case.workload,
        on=case.on,
        model="full",
        state=case.state,
        algorithm=_algorithm(case.workload),
        schedule=schedule,
        workspace_bytes=workspace_bytes(case.nest, schedule),
        cost=cost,
        considered=considered,
        rejected=rejected,
    )


def _rejected(case: _Case, found: list[Prediction], chosen: Candidate, bound: Array) -> tuple[Rejected, ...]:
    """Kernels that lost, best first, then what could not run at all."""
    least = np.full(len(case.rows.kernels), np.inf)
    for prediction in found:
        np.minimum.at(least, prediction.table.kernel, prediction.cycles)
    best, winner = float(chosen[0].cycles[chosen[1]]), int(chosen[0].table.kernel[chosen[1]])
    losers = []
    for index in np.lexsort((bound, least)).tolist():
        if np.isfinite(least[index]):
            reason = f"none of its schedules that could win takes less than {least[index] / best:.3f} times the chosen one"
        elif bound[index] <= best:
            reason = "all its schedules compute for longer than the chosen plan takes"
        else:
            reason = f"its arithmetic, calls, stores and packing alone take {bound[index] / best:.2f} times the chosen plan"
        if index != winner:
            losers.append(Rejected(case.rows.kernels[index].name, reason))
    place = space.in_place_reason(case.nest)
    return (*losers, *((place,) if place else ()), *case.rows.rejected)


def _algorithm(workload: Workload) -> str:
    return "sconv" if isinstance(workload, Conv) else "gemm"


def _csa_plan(workload: Workload, on: Machine, shape: tuple[int, int] | None, footprint: csa.Footprint) -> Plan:
    if on.csa is None:
        raise PlanError(f"{on.name} has no [csa] table, which the csa model needs; use the full model or add one")
    nest, parameters = nest_of(workload), csa.parameters_of(on.csa, footprint, shape)
    kernel, rejected = _csa_kernel(workload, on, parameters)
    halved, exact = csa.schedules(nest, parameters), csa.schedules(nest, parameters, "exact")
    considered = tuple(
        Considered(_csa_schedule(kernel, parameters, a), a.cost, (_csa_schedule(kernel, parameters, b), b.cost))
        for a, b in zip(halved, exact, strict=True)
    )
    choice = csa.choose(halved)
    schedule = _csa_schedule(kernel, parameters, choice)
    return Plan(
        workload=workload,
        on=on,
        model="csa",
        state="cold",
        algorithm=_algorithm(workload),
        schedule=schedule,
        workspace_bytes=workspace_bytes(nest, schedule),
        cost=choice.cost,
        considered=considered,
        rejected=rejected,
    )


def _csa_kernel(workload: Workload, on: Machine, p: csa.Parameters) -> tuple[str, tuple[Rejected, ...]]:
    """A registry row of CSA's shape, or just the shape where the machine has none."""
    for row in kernels():
        if (row.dtype, row.windows, row.filters) == (workload.dtype, p.windows, p.filters) and on.unit(row.target):
            return row.name, ()
    name = f"{workload.dtype}_{p.windows}x{p.filters}"
    return name, (Rejected(name, f"no row of the registry has this shape for {on.name}: the plan can be costed but not run"),)


def _csa_schedule(kernel: str, p: csa.Parameters, choice: csa.Choice) -> Schedule:
    return Schedule(kernel, choice.stationary, "tiles", p.windows, p.filters, choice.channels, choice.k2, choice.k3)


__all__ = ["MODELS", "STATES", "Considered", "Plan", "candidates", "on_cpu", "plan", "plans", "tile_of"]
