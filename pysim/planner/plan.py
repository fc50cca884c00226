# SPDX-License-Identifier: Apache-2.0
"""Planning: all algorithms list their legal schedules, all schedules are costed together, and the plan with the least predicted time wins.

    algorithms -> refusals (with reasons) -> candidates -> costs, as arrays -> order -> plans

`table` lists and costs the candidates; here they are ranked, and the first become plans with the alternatives and why these lost.
Algorithms are known only through `pysim.algorithms.contract`.
"""

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TypedDict, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from pysim.algorithms import accuracy as accuracies
from pysim.algorithms import algorithm_named, algorithms_for
from pysim.algorithms.contract import Algorithm
from pysim.arguments import MOST_THREADS, flag, number, whole, wholes, word
from pysim.errors import PlanError, choose, quoted
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.machine.load import load_any
from pysim.planner.table import BOUND_ABOVE, Table
from pysim.planner.threads import plan_for_team
from pysim.problem.conv import Conv
from pysim.problem.text import Workload, parse
from pysim.record.accuracy import ACCURACIES, Accuracy
from pysim.record.cost import Cost, CsaCost, Rejected
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
from pysim.registry.cpu import Kernel, cpu_kernel
from pysim.registry.cuda import ConvKernel, GemmKernel, conv_kernel, gemm_kernel


class Options(TypedDict, total=False):
    """Options of `plan` and `plans`."""

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
    **options: Unpack[Options],
) -> Plan:
    """The plan of least predicted cost for a problem (text or value) on a machine (name, path of a .toml file, or value).

    micro_kernel     restricts the full model to kernels of this tile ("4x16", windows x filters; on a GPU "128x128", the tile of a block)
                     or of this name; under CSA it replaces the machine's tile
    input_footprint  "packed" or "raw", for CSA only
    state            of the caches at the start, for the full model only
    layout           of a convolution's input and output
    algorithm        restricts the plan to this algorithm
    name             the name of another plan: its schedule is costed, nothing else is considered
    memory_limit     the most bytes of workspace
    threads          threads of a CPU that share the run; the plan is the best for that many (`pysim.planner.threads`)
    prepared         whether B of a product is prepared once, as the weights of a convolution always are; the cost leaves that out
    accuracy         "standard": any plan; "strict": plans whose stated error is at most that of a direct sum of the type; "ieee": plans
                     that multiply and add in the type itself (`pysim.algorithms.accuracy`)
    error_limit      the largest error over the result's root mean square that a plan may state
    prologue         whether a GPU scales, shifts and bounds a convolution's input as it reads it (`pysim_cuda_prologue`)

    Raises ProblemError, MachineError, and PlanError if no kernel can run the problem.
    """
    request = _request(problem, machine, model, **options)
    word(input_footprint, "input_footprint", FOOTPRINTS, PlanError)
    if input_footprint == "raw" and model != "csa":
        raise PlanError('input_footprint "raw" exists in the csa model only; leave it out, or take the model "csa"')
    request = request._replace(input_footprint=input_footprint, prepared=flag(prepared, "prepared"))
    if name is not None:
        algorithm, schedule = from_name(name)
        request = request._replace(schedule=schedule)

    memory_limit = _bytes(memory_limit)
    request = request._replace(threads=_team_of(request, threads))

    def best(request: Request, algorithm: str | None) -> Plan:
        return _best(request, _algorithms(request, algorithm), memory_limit)

    return best(request, algorithm) if request.threads == 1 else plan_for_team(request, algorithm, best)


@lru_cache(maxsize=256)
def _best(request: Request, algorithms: tuple[Algorithm, ...], memory_limit: int | None) -> Plan:
    return _ranked(request, algorithms, memory_limit, 1, exhaustive=memory_limit is not None)[
        0
    ]  # a pruned schedule may need less workspace


forget = _best.cache_clear  # empties the cache of plans


def _bytes(memory_limit: int | None) -> int | None:
    return None if memory_limit is None else whole(memory_limit, "memory_limit", 0)


def plans(
    problem: str | Workload,
    machine: str | Machine | Gpu,
    top: int = 10,
    algorithm: str | None = None,
    memory_limit: int | None = None,
    **options: Unpack[Options],
) -> list[Plan]:
    """The `top` plans of least predicted cost under the full model, best first. Options as in `plan`."""
    top = whole(top, "top", 1)
    request = _request(problem, machine, **options)
    return _ranked(request, _algorithms(request, algorithm), _bytes(memory_limit), top, exhaustive=True)


def candidates(
    problem: str | Workload,
    machine: str | Machine | Gpu,
    within: float = 1.35,
    layout: Layout = "nchw",
    algorithm: str | None = None,
) -> list[tuple[AnySchedule, float]]:
    """All schedules with a predicted time of at most `within` times the best, with their seconds, best first; of one `algorithm` if named.

    The full model with hot caches, nothing pruned. The first schedule is `plan`'s choice or costs the same. Raises PlanError for `within`
    below 1, and the errors of `plan`.
    """
    if not within >= 1:
        raise PlanError(f"within is {within}; it should be at least 1")
    request = _request(problem, machine, layout=layout)
    algorithms = _algorithms(request, algorithm)
    table = Table.of(request, algorithms, exhaustive=True)
    order = table.order()
    if not order.size:
        raise PlanError(_no_plan(table, table.rejected, algorithms))
    near = order[table.cycles[order] <= within * table.cycles[order[0]]]
    return [(table.schedule(at), float(table.cycles[at]) / request.machine.clock_hz) for at in near.tolist()]


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
    """The checked request."""
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
        raise PlanError(f"layout {layout} is for CPUs, and {on.name} is a GPU; {choose(layout, LAYOUTS)}")
    if layout == "nhwc" and isinstance(on, Machine):
        raise PlanError(f"layout nhwc is for GPUs, and {on.name} is a CPU; expected one of: nchw, {', '.join(BLOCKED)}")
    if model == "csa" and isinstance(on, Gpu):
        raise PlanError(f'the csa model is for CPUs, and {on.name} is a GPU; take the model "full"')
    if flag(prologue, "prologue") and not (isinstance(workload, Conv) and isinstance(on, Gpu)):
        raise PlanError(f"a prologue exists for convolutions on GPUs only, not for {workload.text} on {on.name}")
    state = state if model == "full" else "cold"
    request = Request(workload, on, layout, state, model, _micro_kernel(micro_kernel, model))
    return request._replace(accuracy=accuracy, error_limit=error_limit, prologue=prologue)


def _team_of(request: Request, threads: int) -> int:
    """The checked number of threads."""
    threads = whole(threads, "threads", 1, MOST_THREADS)
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
    if row := _row(asked):
        return _tile(row) if model == "csa" else asked
    right = "4x16, or a name from `pysim kernels`"
    raise PlanError(f"micro-kernel {quoted(asked)} is neither a tile (windows x filters) nor a kernel; expected e.g. {right}")


def _row(name: str) -> Kernel | GemmKernel | ConvKernel | None:
    return cpu_kernel(name) or gemm_kernel(name) or conv_kernel(name)


def _tile(row: Kernel | GemmKernel | ConvKernel) -> tuple[int, int]:
    """windows x filters, or rows x columns of a block."""
    return (row.windows, row.filters) if isinstance(row, Kernel) else (row.tiles.rows, row.tiles.columns)


def _algorithms(request: Request, algorithm: str | None) -> tuple[Algorithm, ...]:
    if algorithm is not None:
        return (algorithm_named(algorithm, request.problem, request.machine),)
    return algorithms_for(request.problem, request.machine)


def _ranked(request: Request, algorithms: Sequence[Algorithm], memory_limit: int | None, top: int, exhaustive: bool) -> list[Plan]:
    """The `top` best plans, best first."""
    table = Table.of(request, algorithms, exhaustive)
    order, above = _within_memory(table, table.order(), memory_limit)
    inaccurate = _inaccurate(table)
    if not order.size:
        raise PlanError(_no_plan(table, (*above, *inaccurate, *table.rejected), algorithms))
    first, best = order[_firsts(table.kind[order])].tolist(), order[:top].tolist()
    costs = {at: _cost(table, at) for at in (*first, *best[1:])}  # the best of all is the first of the kinds
    considered = tuple(Considered(table.at(at)[0].NAME, table.schedule(at), costs[at]) for at in first)
    rejected = (*_slower(table, order), *above, *inaccurate, *table.rejected)
    return [_plan(table, at, costs[at], considered, rejected, memory_limit) for at in best]


def _firsts(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of the first occurrence of each number, ascending."""
    first = np.full(numbers.max(initial=-1) + 1, numbers.size)
    first[numbers[::-1]] = np.arange(numbers.size)[::-1]
    return np.sort(first)[: np.count_nonzero(first < numbers.size)]


def _cost(table: Table, at: int) -> Cost | CsaCost:
    _, costs, row = table.at(at)
    return costs.cost(row)


def _plan(
    table: Table,
    at: int,
    cost: Cost | CsaCost,
    considered: tuple[Considered, ...],
    rejected: tuple[Rejected, ...],
    memory_limit: int | None,
) -> Plan:
    request, (algorithm, costs, row) = table.request, table.at(at)
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
        error=accuracies.stated_error(bound, request.problem, request.machine),
        error_scale=bound.scale,
        accuracy=request.accuracy,
        error_limit=request.error_limit,
    )


def _within_memory(table: Table, order: NDArray[np.int64], limit: int | None) -> tuple[NDArray[np.int64], tuple[Rejected, ...]]:
    """The places whose workspace is within the limit; and the kernels without such a schedule, least workspace first."""
    if limit is None:
        return order, ()
    sizes = np.array([table.workspace_bytes(at) for at in order.tolist()])
    kept, kernel = order[sizes <= limit], table.kernel[order]
    least = {one: int(sizes[kernel == one].min()) for one in kernel[_firsts(kernel)].tolist()}
    reason = "its workspace of {:,} bytes is above the limit of {:,}"
    above = sorted((item for item in least.items() if item[1] > limit), key=lambda item: item[1])
    return kept, tuple(Rejected(_label(table, one), reason.format(size, limit), "memory") for one, size in above)


def _inaccurate(table: Table) -> tuple[Rejected, ...]:
    """The kernels that are not accurate enough, the most accurate first."""
    first = itertools.accumulate((len(costs.kernels) for _, costs in table.costs), initial=0)
    refused = [
        (error, Rejected(_label(table, start + kernel), why.sentence, why.code))
        for (_, costs), start in zip(table.costs, first, strict=False)
        for kernel, (error, why) in costs.refused.items()
    ]
    return tuple(one for _, one in sorted(refused, key=lambda item: item[0]))


def _slower(table: Table, order: NDArray[np.int64]) -> Iterator[Rejected]:
    """The kernels that are slower than the chosen one, best first: by their best schedule, or by their bound if none was costed."""
    ran = order[_firsts(table.kernel[order])]
    kernels, cycles = table.kernel[ran].tolist(), table.cycles[ran].tolist()
    for kernel, kind, of in [*zip(kernels, table.kind[ran].tolist(), cycles, strict=True)][1:]:
        reason = f"its best predicted schedule ({table.kinds[kind][1]}) takes {of / cycles[0]:.3f}x the chosen time"
        yield Rejected(_label(table, kernel), reason, "slower")
    bounds = itertools.chain.from_iterable(costs.bounds.tolist() for _, costs in table.costs)
    others = {kernel: bound for kernel, bound in enumerate(bounds) if kernel not in kernels and not math.isnan(bound)}
    for kernel in sorted(others, key=others.__getitem__):
        yield Rejected(_label(table, kernel), BOUND_ABOVE.format(max(1.0, others[kernel] / cycles[0])), "slower")


def _label(table: Table, kernel: int) -> str:
    """A kernel's name, with its algorithm if the name is ambiguous."""
    algorithm, name = table.kernels[kernel]
    return f"{algorithm} by {name}" if name in table.ambiguous else name


def _no_plan(table: Table, rejected: Sequence[Rejected], algorithms: Sequence[Algorithm]) -> str:
    """Why there is no plan: no kernel has the requested name or tile, or the most telling rejection."""
    request, asked = table.request, table.request.micro_kernel
    if asked and not table.cycles.size:
        others = Table.of(request._replace(micro_kernel=None), algorithms, exhaustive=True)
        rows = [row for _, name in others.kernels if (row := _row(name))]
        known = {row.name if isinstance(asked, str) else named(_tile(row)) for row in rows}
        rejected = [one for one in rejected if one.what == asked]
        if known and not rejected:
            what = f"no kernel {named(asked)} computes {request.problem.text} on {request.machine.name}"
            return f"{what}; {choose(named(asked), sorted(known))}"
    order = {code: place for place, code in enumerate(_TELLING_CODES)}
    first = min(rejected, key=lambda one: order.get(one.code, len(order)), default=None)
    why = f"{first.what}: {first.reason}" if first else "the registry has no kernel for it"
    return f"nothing computes {request.problem.text} on {request.machine.name}: {why}"


_TELLING_CODES = ("memory", "accuracy", "size", "shape", "machine")  # the most telling first
