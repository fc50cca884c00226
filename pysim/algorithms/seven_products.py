# SPDX-License-Identifier: Apache-2.0
"""Products by seven products of half their sides: Strassen's algorithm in Winograd's form, one level of it, on a CPU (Higham, Accuracy and
Stability of Numerical Algorithms, 2nd ed., section 23.2; `native/algorithms/strassen/strassen.c` has the equations). Rows of a product, or
pixels, are cut into blocks of 2 `outputs`, whose quarters stay in caches. Another algorithm computes the products.

    cost = sums of operands  +  7 (a product in the first block  +  (blocks - 1) a product in another)  +  sums of results

A classic product has eight such products: one of eight is saved. What it costs:

    sums         of each vector of a quarter 4 loads and 7 stores; of results 7 loads, 2 of biases and 4 stores, at the rates of the
                 widest unit. Weights are summed when they are prepared.
    transfer     operands and results once, and seven quarters of each twice; seven quarters of the weights, 7/4 of their bytes, of which
                 blocks but the first find those of the block before (state "in turns"). A core that reads one place at a time gets less
                 than memory's rate (lab/notebook/cpu-kernels.md), so the three quarters beyond the weights' bytes hide behind nothing:
                 16x384x768 took 1.0 to 1.4 times as long as a classic product that reads 4 (Zen 4)

Errors are those of sums of half the length whose terms are larger: the terms of p1 to p7 have standard deviations of 1, 1, 2, 2, 2, 3 and 2
times those of a product. c12, c21 and c22 add four products, of 1 + 4 + 4 + 9 times the variance or as much, so the errors of random walks
of k / 2 steps are sqrt(18) / 2 = 2.1 times those of k steps (tests/unit/algorithms/cpu/test_strassen.py). An input adds to the error of the
row or pixel that it is paired with.

Worked number: gemm:128x2048x512 in one block multiplies 7/8 of 134,217,728 times: 1.05 of 8.39 M cycles less at 16 a cycle. 1,024 x 18 +
4,096 x 17 cycles of sums in L1 at a load and half a store a cycle are 0.09 M.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from pysim.algorithms import accuracy
from pysim.algorithms.interface import Algorithm, Array, Bound, Nests, Prepared, least_cycles
from pysim.cachemodel.costs import Costs
from pysim.cachemodel.cpu.cost import Pass, cost_from, pass_of
from pysim.cachemodel.cpu.nest import PANEL_ALIGN, ceil_div
from pysim.cachemodel.cpu.reuse.loops import Extent, Loop, LoopNest, Operand
from pysim.cachemodel.cpu.threads import Part
from pysim.errors import PlanError
from pysim.machine.cpu import Machine
from pysim.problem.dtypes import SUM_UNITS
from pysim.problem.text import Workload
from pysim.record.cost import Cost, CsaCost, NoneLegal, Reason, Rejected
from pysim.record.description import Description, Section
from pysim.record.plan import Layout, Plan, Request, on_cpu
from pysim.record.schedule import Schedule
from pysim.record.state import TURNS, State
from pysim.registry.cpu import kind_of, loop_nest

PRODUCTS = int(TURNS)
GROWTH = 18**0.5 / 2
SAFETY = 2.0  # of the tolerance over the error that is expected
_SOURCE = "a random walk of sums of half the length: pysim/algorithms/seven_products.py"
OPERAND_LOADS, OPERAND_STORES, RESULT_LOADS, RESULT_STORES = 4, 7, 9, 4  # of vectors, of each vector of a quarter
_OF_PRODUCTS: dict[State, State] = {"hot": "in turns", "chained": "first in turns"}  # of the first block
OPERAND_CALLS, RESULT_CALLS = 1, 3  # as long as that many calls of a kernel, of each chunk of a row
CHUNK = 512  # elements: of native/algorithms/strassen/strassen.c
KEPT = 0.5  # of the private caches, which the quarters of a block may fill


class Sizes(NamedTuple):
    """`rows`: of a product, or pixels of an image; elements of each that are operands and results; `images`; `in_blocks`: of channels."""

    rows: int
    operands: int
    results: int
    images: int
    in_blocks: bool

    def blocks(self, half: int) -> int:
        """Blocks of 2 `half` rows."""
        return ceil_div(self.rows, 2 * half)


class Choice(NamedTuple):
    """The best schedule with blocks of 2 `half` rows: its costs under the request's state and between other blocks, and its row there."""

    half: int
    schedule: Schedule
    first: Costs
    others: Costs | None


class Found(NamedTuple):
    """One candidate for each size of blocks (`pysim.algorithms.interface.Candidates`)."""

    request: Request
    choices: tuple[Choice, ...]
    rejected: tuple[Rejected, ...] = ()
    limit: float = np.inf


def _slab_bytes(elements: int, size: int) -> int:
    """A quarter in the workspace: an odd number of lines."""
    return (ceil_div(elements * size, PANEL_ALIGN) | 1) * PANEL_ALIGN


class SevenProducts(NamedTuple):
    """An algorithm of this kind (`pysim.algorithms.interface.Algorithm`).

    `inner`: what computes the products, for a layout. `unfit`: why a problem has no halves. `half`: the problem of a product with so many
    rows; `part`: so many rows and images of a problem. `sizes`: of a problem.
    """

    NAME: str
    COMPUTES: type
    inner: Callable[[Layout], Any]
    unfit: Callable[[Any, Layout], Reason | None]
    half: Callable[[Any, int], Any]
    part: Callable[[Any, int, int], Any]
    sizes: Callable[[Any], Sizes]

    # The sums

    def in_core(self, problem: Any, machine: Machine, half: int) -> tuple[dict[str, Array], dict[str, Array]]:
        """The cycles of the sums of operands with all data in L1, and of those of results."""
        of, unit = self.sizes(problem), max(machine.core.units, key=lambda one: one.vector_bytes)
        lanes, elements = unit.lanes(problem.element_bytes), of.images * ceil_div(of.rows, 2) / 2  # of a quarter, for each channel

        def terms(each: int, loads: int, stores: int, calls: int) -> dict[str, Array]:
            moved = loads / unit.loads_per_cycle.value + stores / unit.stores_per_cycle.value
            run = half * lanes if of.in_blocks else each // 2
            called = calls * ceil_div(run, CHUNK) / run * machine.core.call_cycles.value
            return {"pack": np.array([elements * each * moved / lanes]), "call": np.array([elements * each * called])}

        before = terms(of.operands, OPERAND_LOADS, OPERAND_STORES, OPERAND_CALLS)
        return before, terms(of.results, RESULT_LOADS, RESULT_STORES, RESULT_CALLS)

    def passes(self, problem: Any, machine: Machine, state: State, half: int) -> tuple[Pass, Pass]:
        """The sums of operands, and those of results."""
        nests, terms = self.conversions(problem, half), self.in_core(problem, machine, half)
        before, after = (pass_of(nest, machine, of, state) for nest, of in zip(nests, terms, strict=True))
        return before, after

    def conversions(self, problem: Any, half: int) -> tuple[LoopNest, LoopNest]:
        """The loops of the sums of operands, and of those of results."""
        of, size = self.sizes(problem), problem.element_bytes
        blocks = of.images * of.blocks(half)

        def summed(whole: str, parts: str, each: int, written: bool) -> LoopNest:
            quarter = half * each // 2 * size
            lines = max(1, quarter // PANEL_ALIGN)
            every, seven = (Extent(count * quarter / lines, float(count * quarter)) for count in (4, PRODUCTS))
            operands = (
                Operand(whole, {"blocks": Extent(1.0, blocks), "lines": every}, "lines", written=not written),
                Operand(parts, {"lines": seven}, "lines", written=written),
            )
            loops = (Loop("blocks", "blocks", 1, blocks), Loop("lines", "lines", 1, lines))
            return LoopNest(loops, operands, {"blocks": blocks, "lines": lines}, 1)

        return summed("input", "operands", of.operands, True), summed("output", "products", of.results, False)

    # The products

    def _halves(self, request: Request) -> Iterator[int]:
        """Rows of half a block: of the schedule that is asked for, or all, and those whose quarters fill KEPT of the private caches."""
        of, schedule = self.sizes(request.problem), request.schedule
        whole = ceil_div(of.rows, 2)
        if isinstance(schedule, Schedule):
            if not schedule.outputs or not 1 <= schedule.outputs <= whole:
                raise PlanError(f"{self.NAME} has blocks of 1 to {whole} rows in outputs, not {schedule.outputs}")
            yield schedule.outputs
            return
        each = PRODUCTS * (of.operands + of.results) / 2 * request.problem.element_bytes
        most = max(1, int(KEPT * request.cpu.outer.size_bytes / each))
        counts = (1, ceil_div(whole, most)) if most * 4 >= PANEL_ALIGN else (1,)
        yield from sorted({ceil_div(whole, count) for count in counts})

    def _product(self, request: Request, half: int, **terms: Any) -> Request:
        """The request for one of the products; `most`: cycles that are left for it."""
        most = request.most
        if most is not None and np.isfinite(most):
            around = sum(float(one.cycles[0]) for one in self.passes(request.problem, request.cpu, request.state, half))
            of = self.sizes(request.problem)
            most = max(0.0, most - around) / (PRODUCTS * of.blocks(half) * of.images)
        return msgspec.structs.replace(request, problem=self.half(request.problem, half), algorithm=None, most=most, **terms)

    def _inner_schedule(self, schedule: Schedule, problem: Workload, layout: Layout) -> Schedule:
        name = self.inner(layout).NAME
        return msgspec.structs.replace(schedule, algorithm=None if name == loop_nest(problem) else name, outputs=None)

    def _choices(self, request: Request) -> Iterator[Choice | NoneLegal]:
        inner, given = self.inner(request.layout), request.schedule

        def costs(half: int, state: State, schedule: Schedule | None) -> Costs | NoneLegal:
            found = inner.candidates(self._product(request, half, state=state, schedule=schedule))
            return found if isinstance(found, NoneLegal) else inner.cost(request.cpu, [found])[0]

        for half in self._halves(request):
            several = self.sizes(request.problem).blocks(half) * self.sizes(request.problem).images > 1
            own = self._inner_schedule(given, request.problem, request.layout) if isinstance(given, Schedule) else None
            at_first = _OF_PRODUCTS.get(request.state, request.state)
            most = costs(half, "in turns" if several else at_first, own)
            if isinstance(most, NoneLegal):
                yield most
                return
            if not most.cycles.size:
                continue  # none is fast enough
            best = most.selected(np.arange(most.cycles.size) == most.cycles.argmin())
            schedule = best.schedule(0)
            assert isinstance(schedule, Schedule)
            first = costs(half, at_first, schedule) if several else best
            assert not isinstance(first, NoneLegal)
            yield Choice(half, schedule, first, best if several else None)

    # The interface of an algorithm

    def refuses(self, problem: Any, machine: Machine, layout: Layout) -> Reason | None:
        if problem.dtype != "f32":
            return Reason("type", f"it multiplies f32; the problem is {problem.dtype}")
        if layout == "nhwc":
            return Reason("shape", "it takes NCHW or channel blocks, not NHWC")
        reason: Reason | None = self.unfit(problem, layout)
        return reason or self.inner(layout).refuses(self.half(problem, ceil_div(self.sizes(problem).rows, 2)), machine, layout)

    def _inaccurate(self, request: Request) -> Reason | None:
        if request.reproducible:
            return Reason("accuracy", "its sums keep no numeric contract")
        return accuracy.refuses(self.tolerance(request.problem, None), request.problem, request.cpu, request.accuracy, request.error_limit)

    def candidates(self, request: Request, limit: Array | float = 0.0) -> Found | NoneLegal:
        if reason := self._inaccurate(request):
            return NoneLegal((Rejected(self.NAME, reason.sentence, reason.code),))
        choices = [*self._choices(request)]
        refused = (one for one in choices if isinstance(one, NoneLegal))
        return next(refused, None) or Found(request, tuple(one for one in choices if isinstance(one, Choice)))

    def least_cycles(self, request: Request, best: float) -> float:
        """Seven products by a lower bound, and the sums with all data in L1."""
        if request.threads > 1 or self._inaccurate(request):
            return 0.0
        of, half = self.sizes(request.problem), ceil_div(self.sizes(request.problem).rows, 2)
        around = sum(float(one[0]) for terms in self.in_core(request.problem, request.cpu, half) for one in terms.values())
        inner: Algorithm = self.inner(request.layout)
        times = PRODUCTS * of.images
        least = least_cycles(inner, self._product(request, half), max(0.0, best - around) / times)
        return times * least + around if least else 0.0

    def cost(self, machine: Machine, found: Sequence[Found]) -> list[Costs]:
        return [self._costs(machine, one) for one in found]

    def _costs(self, machine: Machine, found: Found) -> Costs:
        request, choices, of = found.request, found.choices, self.sizes(found.request.problem)
        around = [cost_from(self.passes(request.problem, machine, request.state, one.half)) for one in choices]
        others = [of.blocks(one.half) * of.images - 1 for one in choices]
        cycles = np.array(
            [
                PRODUCTS * (one.first.cycles[0] + (count * one.others.cycles[0] if one.others else 0.0)) + sums.cycles
                for one, count, sums in zip(choices, others, around, strict=True)
            ]
        )
        waits = [(PRODUCTS - 4) * _of_memory(one.first.cost(0)) for one in choices]
        cycles += waits
        names = tuple(dict.fromkeys(one.schedule.kernel for one in choices))
        kernel = np.array([names.index(one.schedule.kernel) for one in choices])

        def cost(row: int) -> Cost:
            one, count = choices[row], PRODUCTS * others[row]
            runs = [(PRODUCTS, one.first.cost(0)), *([(count, one.others.cost(0))] if one.others else [])]
            waiting = Cost(waits[row], waits[row] / machine.clock_hz, "memory", {}, {}, {"memory": -waits[row]})
            return added([(1, around[row]), *((times, of) for times, of in runs if isinstance(of, Cost)), (1, waiting)])

        return Costs(
            cycles=cycles,
            kernels=names,
            kernel=kernel,
            kinds=(self.NAME,),
            kind=np.zeros(len(choices), dtype=np.int64),
            bounds=np.array([cycles[kernel == at].min() for at in range(len(names))]),
            alike=kernel,
            schedule=lambda row: msgspec.structs.replace(choices[row].schedule, algorithm=self.NAME, outputs=choices[row].half),
            cost=cost,
            assumed=lambda row: choices[row].first.assumed(0),
        )

    def prepare(self, problem: Any, schedule: Schedule, layout: Layout) -> Prepared:
        """Seven quarters, and the weights, which only results that are not finite are computed from."""
        half, of = self.half(problem, schedule.outputs or 1), self.sizes(problem)
        each = self.inner(layout).prepare(half, self._inner_schedule(schedule, problem, layout), layout).size_bytes
        weights = of.operands * of.results * problem.element_bytes
        return Prepared("halves of weights", PRODUCTS * ceil_div(each, PANEL_ALIGN) * PANEL_ALIGN + weights)

    def workspace_bytes(self, problem: Any, schedule: Schedule, layout: Layout) -> int:
        of, size, half = self.sizes(problem), problem.element_bytes, schedule.outputs or 1
        quarters = sum(_slab_bytes(half * each // 2, size) for each in (of.operands, of.results))
        inner = self.inner(layout).workspace_bytes(self.half(problem, half), self._inner_schedule(schedule, problem, layout), layout)
        return int(PRODUCTS * quarters + PANEL_ALIGN + max(inner, PANEL_ALIGN))

    def largest_part(self, problem: Any, schedule: Schedule, threads: int) -> Part:
        """Threads divide the blocks."""
        half, of = schedule.outputs or 1, self.sizes(problem)
        blocks = of.blocks(half)
        most = ceil_div(blocks * of.images, threads)
        part = self.part(problem, min(of.rows, most * 2 * half), max(1, most // blocks))
        whole = self.sizes(part).blocks(half) * self.sizes(part).images
        return Part(part, schedule, share=most / whole, items=most)

    def tolerance(self, problem: Any, schedule: Any) -> Bound:
        walk = accuracy.random_walk(accuracy.size_of(problem), SUM_UNITS[problem.dtype])
        return Bound(1.0, SAFETY * GROWTH * walk, _SOURCE, operands="transformed", error=GROWTH * walk, scale="tile")

    def _product_plan(self, plan: Plan) -> Plan:
        schedule, _ = on_cpu(plan)
        own = self._inner_schedule(schedule, plan.workload, plan.layout)
        half = self.half(plan.workload, schedule.outputs or 1)
        return msgspec.structs.replace(plan, workload=half, schedule=own, algorithm=self.inner(plan.layout).NAME)

    def describe(self, plan: Plan) -> Description:
        one, of = self._product_plan(plan), self.sizes(plan.workload)
        inner: Description = self.inner(plan.layout).describe(one)
        half = plan.schedule.tile["outputs"]
        lines = (
            f"blocks: {of.blocks(half) * of.images} of 2 x {half} {'pixels' if kind_of(plan.workload) == 'CONV' else 'rows'}",
            f"products: 7 of each, {one.workload.text}, {inner.summary}",
        )
        return Description(
            "seven products of half the sides (Strassen)", (Section("halves", lines), *inner.sections), 8 / PRODUCTS * inner.peak_flops
        )

    def nests(self, plan: Plan) -> Nests:
        """The sums of operands of all blocks, the products of one, and the sums of results."""
        before, after = self.conversions(plan.workload, plan.schedule.tile["outputs"])
        inner: Nests = self.inner(plan.layout).nests(self._product_plan(plan))
        (one,) = inner.loops
        own = {"output": "products", "input" if kind_of(plan.workload) == "CONV" else "filters": "operands"}
        several = Extent(1.0, PRODUCTS)
        operands = [
            msgspec.structs.replace(of, name=own.get(of.name, of.name), extents={"products": several, **of.extents}) for of in one.operands
        ]
        loops = (Loop("products", "products", 1, PRODUCTS), *one.loops)
        return Nests((before, LoopNest(loops, operands, {"products": PRODUCTS, **one.total}, one.columns), after), inner.names)


def _of_memory(cost: Cost | CsaCost) -> float:
    """Cycles of memory that hide behind others."""
    return cost.hidden.get("memory", 0.0) if isinstance(cost, Cost) else 0.0


def added(parts: Sequence[tuple[int, Cost]]) -> Cost:
    """The cost of so many runs of each."""

    def total(of: Sequence[tuple[int, dict[str, float]]]) -> dict[str, float]:
        names = dict.fromkeys(name for _, values in of for name in values)
        return {name: sum(times * values.get(name, 0.0) for times, values in of) for name in names}

    terms, hidden = total([(times, one.terms) for times, one in parts]), total([(times, one.hidden) for times, one in parts])
    places = dict.fromkeys(name for _, one in parts for name in one.levels)
    levels = {name: total([(times, one.levels.get(name, {})) for times, one in parts]) for name in places}
    bound_by = max(terms, key=lambda name: terms[name] - hidden.get(name, 0.0))
    return Cost(
        sum(times * one.cycles for times, one in parts), sum(times * one.seconds for times, one in parts), bound_by, levels, terms, hidden
    )
