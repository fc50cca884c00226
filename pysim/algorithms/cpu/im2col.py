# SPDX-License-Identifier: Apache-2.0
"""im2col and a matrix product: columns[C R S][P Q] of each image are written to the workspace, then convolved 1x1 by SConv's nest.

    cost = cost of the columns + cost of the 1x1 convolution (`pysim.cachemodel.cpu.nest_schedules`)

In a cost, `input` is what building the columns reads, and `columns` is what the product reads. Zeros of the padding are multiplied, so
weights must be finite if the problem is padded.

    copy      C R S P Q elements per image, in vectors of a load and a store each; short rows of outputs fill the last vector badly. The
              copy uses SConv's packing: pack_cycles more per vector, pack_line_cycles per line from beyond L1, and pack_call_cycles per
              row of outputs and kernel row. Such a call packs a single channel, so nothing amortises its preparation: SEGMENT_CYCLES
              more per call, and MASK_CYCLES per vector where each tap has its own masks (dilations, strides above PHASES, long rows).
    transfer  input: the first read of a line is a whole run after its last use; the other reads, R S per plane, are one plane and one row
              of columns apart. columns: written once, a whole run after their last use.

Compute and transfers overlap as in `cost`. A whole run touches image, columns, filters and outputs. Source: im2col is the baseline of SConv
(arXiv 2303.04739, sections 2.2 and 7); `lab/ablations/im2col_baseline.py` costs and traces it.

Worked number: 64 channels, 56x56, 3x3, FP32: 64 * 9 * 3,136 = 1,806,336 elements, 7.2 MB. 16 lanes fill rows of 56 with 4 vectors, so
64 * 9 * 56 * 4 = 129,024 vectors take 129,024 (1/2 + 1) = 193,536 cycles at two loads and one store per cycle, and 64 * 3 * 56 = 10,752
calls 107,520 to prepare. The product takes 7.2 million.
"""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import msgspec
import numpy as np

from pysim.algorithms.interface import DIRECT_SUM, Array, Bound, Nests, Prepared, requires_nchw
from pysim.cachemodel.costs import Costs
from pysim.cachemodel.cpu import nest_schedules, nest_text, tilings
from pysim.cachemodel.cpu.cost import Pass, cost_from, traffic_of
from pysim.cachemodel.cpu.incore import MASK_CYCLES, apart, stride_cycles
from pysim.cachemodel.cpu.nest import PANEL_ALIGN, Nest, ceil_div, nest_of, packed_filter_bytes
from pysim.cachemodel.cpu.nest import workspace_bytes as panel_bytes
from pysim.cachemodel.cpu.nest_loops import OPERANDS
from pysim.cachemodel.cpu.nest_schedules import NestCandidates
from pysim.cachemodel.cpu.reuse.loops import Extent, Loop, LoopNest, Operand
from pysim.cachemodel.cpu.threads import Part, nest_part, rows_of
from pysim.machine.cpu import Machine, Unit
from pysim.problem.conv import Conv
from pysim.record.cost import NoneLegal, Reason, Rejected
from pysim.record.description import Description, Section
from pysim.record.plan import Layout, Plan, Request, on_cpu
from pysim.record.schedule import Schedule
from pysim.record.state import State
from pysim.registry.cpu import Kernel

NAME = "im2col"
ROWS_OF_K = ("win", "fil", "outer")  # forms of kernels that read columns: groups of k they are not
COMPUTES = Conv
CHAIN = 8  # of native/x86/pack.h: most vectors of a row whose taps are separated together
# Chosen, with the MASK_CYCLES of incore.py, on 267 plans of random layers (Zen 4, zen4/regret.jsonl): median error 6.2 -> 5.4 %, 90th
# percentile 40 -> 29 %. Of plans of other layers and machines: Zen 4 13.0 -> 6.8 and 25 -> 22 %, Zen 5 12.7 -> 8.8 and 35 -> 33 %, Granite
# Rapids 9.5 -> 8.3 and 29 %, Emerald Rapids 15.9 -> 11.8 and 36 -> 35 %.
SEGMENT_CYCLES = 10.0


@lru_cache(maxsize=64)
def columns_pass(w: Conv, machine: Machine, state: State, packer: Unit) -> Pass:
    """The cost of writing the columns of all images and groups once, on one core, by SConv's packing on the unit `packer`."""
    described = columns_nest(w, machine)
    moved = traffic_of(described, described.misses(machine.levels, state))[:, :4]
    waits = float(moved[0, 0, 0]) / machine.line_bytes * machine.core.pack_line_cycles.value
    return Pass(machine, {"copy": np.array([copy_cycles(w, machine, packer) + waits])}, ("input", "columns"), moved)


def copy_cycles(w: Conv, machine: Machine, packer: Unit, prepares: bool = True) -> float:
    """Cycles of the copy if all lines are in L1, with or without what its calls take to prepare."""
    nest, core = nest_of(w), machine.core
    calls = w.channels * w.kernel_h * w.batch * nest.out_h
    lanes = packer.lanes(nest.element_bytes)
    vectors = ceil_div(nest.out_w, lanes)
    each = 1 / packer.loads_per_cycle.value + 1 / packer.stores_per_cycle.value + core.pack_cycles.value
    each += stride_cycles(w, packer, nest.out_w, vectors)
    masks = MASK_CYCLES if apart(w, packer) or vectors > CHAIN else 0.0
    preparing = SEGMENT_CYCLES + nest.kernel_w * vectors * masks if prepares else 0.0
    return calls * (nest.kernel_w * vectors * each + core.pack_call_cycles.value + preparing)


def columns_nest(w: Conv, machine: Machine) -> LoopNest:
    """The loop nest of the copy: per image, plane and kernel element one row of columns. With strides it reads only some of the plane's
    rows. The product's operands follow."""
    nest = nest_of(w)
    plane, row = nest.touched_bytes(machine.line_bytes), nest.windows * nest.element_bytes
    taps, outputs = w.taps, w.filters * nest.windows * nest.result_bytes
    filters = w.filter_elements * nest.element_bytes
    images, planes = Extent(1.0, w.batch), Extent(1.0, w.channels)
    operands = (
        Operand("input", {"images": images, "planes": Extent(plane, plane * w.channels)}, "kernel elements"),
        Operand("columns", {"planes": planes, "kernel elements": Extent(row, row * taps)}, "kernel elements", written=True),
        Operand("filters", {"run": Extent(filters, filters)}, "images"),
        Operand("output", {"images": Extent(outputs, outputs * w.batch)}, "images"),
    )
    reads = max(1.0, taps * min(1.0, nest.out_h / nest.touched_h))
    total = {"images": w.batch, "planes": w.channels, "kernel elements": taps, "run": 1}
    trips = {"images": w.batch, "planes": w.channels, "kernel elements": reads}
    return LoopNest([Loop(name, name, 1, count) for name, count in trips.items()], operands, total, 1)


# The interface of an algorithm


def refuses(problem: Conv, machine: Machine, layout: Layout) -> Reason | None:
    if reason := requires_nchw(layout):
        return reason
    return Reason("shape", "its columns would be a copy of the input; sconv reads the input in place") if problem.pointwise else None


def _nest(problem: Conv) -> Nest:
    """The product's nest, windows packed: rows of columns are so far apart that reading windows in place takes a page each, which the model
    does not know (measured on a Zen 4: twice the time, where it predicts less)."""
    return msgspec.structs.replace(nest_of(_product(problem)), in_place=False, fresh_input=True)


@lru_cache(maxsize=64)
def _product(problem: Conv) -> Conv:
    """The 1x1 convolution of the columns."""
    return Conv(
        batch=problem.batch,
        groups=problem.groups,
        channels=problem.channels * problem.taps,
        height=problem.out_h,
        width=problem.out_w,
        filters=problem.filters,
        kernel_h=1,
        kernel_w=1,
        dtype=problem.dtype,
    )


class Candidates(NamedTuple):
    """Schedules of the product, and the cost of the columns."""

    columns: Pass
    product: NestCandidates
    limit: float
    rejected: tuple[Rejected, ...]


def _packer(kernels: Sequence[Kernel], on: Machine) -> Unit:
    """The widest unit that any of the kernels runs on."""
    targets = {kernel.target for kernel in kernels}
    return max((unit for unit in on.core.units if unit.target in targets), key=lambda unit: unit.vector_bytes)


def least_cycles(request: Request, best: float) -> float:
    problem, on = request.conv, request.cpu
    kernels = tilings.rows(on, problem.dtype, request.micro_kernel, ROWS_OF_K, request.accuracy).kernels
    if not kernels:
        return 0.0
    packer = _packer(kernels, on)
    copy = copy_cycles(problem, on, packer)
    number = problem.batch * problem.windows * problem.filters * problem.products
    least = copy + nest_schedules.multiplying_cycles(number, request, ROWS_OF_K)
    if least > best:
        return least
    product = nest_schedules.least_cycles(_nest(problem), request, best - copy, ROWS_OF_K)
    if copy + product > best:
        return copy + product
    return float(columns_pass(problem, on, request.state, packer).cycles[0]) + product


def candidates(request: Request, limit: Array | float = 0.0) -> Candidates | NoneLegal:
    problem, on = request.conv, request.cpu
    kernels, rejected = tilings.rows(on, problem.dtype, request.micro_kernel, ROWS_OF_K, request.accuracy)
    if not kernels:
        return NoneLegal(rejected)
    columns = columns_pass(problem, on, request.state, _packer(kernels, on))
    cycles = float(columns.cycles[0])
    own = request if request.most is None else msgspec.structs.replace(request, most=request.most - cycles)
    product = nest_schedules.candidates(_nest(problem), own, limit - cycles, ROWS_OF_K, NAME)
    assert isinstance(product, NestCandidates)
    return Candidates(columns, product, product.limit + cycles, product.rejected)


def cost(machine: Machine, found: Sequence[Candidates]) -> list[Costs]:
    return [_costs(one) for one in found]


def _costs(of: Candidates) -> Costs:
    """The costs of the product plus that of the columns; one kind, whichever operand is stationary."""
    ((product, found),) = nest_schedules.costs_of([of.product])
    product.operands, columns = ("columns", *OPERANDS[1:]), of.columns  # what it reads
    return found._replace(
        kinds=(NAME,),
        kind=np.zeros_like(found.kind),
        bounds=found.bounds + columns.cycles,
        cycles=found.cycles + columns.cycles,
        cost=partial(cost_from, [columns, product]),
    )


def prepare(problem: Conv, schedule: Schedule, layout: Layout) -> Prepared:
    return Prepared("packed filters", packed_filter_bytes(_nest(problem), schedule))


def workspace_bytes(problem: Conv, schedule: Schedule, layout: Layout) -> int:
    """The columns of one image, in whole lines, and the workspace of the product."""
    product = _product(problem)
    size = product.channels * product.height * product.width * problem.element_bytes
    lines = ceil_div(size, PANEL_ALIGN) + 1
    return lines * PANEL_ALIGN + panel_bytes(_nest(problem), schedule)


def tolerance(problem: Conv, schedule: Schedule) -> Bound:
    return DIRECT_SUM._replace(finite="filters" if problem.padded else "nothing")


def largest_part(problem: Conv, schedule: Schedule, threads: int) -> Part:
    """The product's part. The columns of each image are a parallel region of their own, divided by channels."""
    product = nest_part(_product(msgspec.structs.replace(problem, batch=1)), schedule, threads)
    assert isinstance(product.problem, Conv)
    rows, filters = product.problem.out_h, product.problem.group_filters
    part = rows_of(problem, problem.batch, rows, filters, groups=product.problem.batch)
    return product._replace(problem=part, regions=2 * problem.batch)


def describe(plan: Plan) -> Description:
    w, (_, on) = plan.conv, on_cpu(plan)
    columns = Section("columns", tuple(nest_text.printed(columns_nest(w, on))))
    return nest_text.describe_nest(_nest(w), plan, "im2col of each image into the workspace, then a 1x1 convolution", (columns,))


def nests(plan: Plan) -> Nests:
    """The copy into columns and the product, which reads the columns of one image."""
    schedule, on = on_cpu(plan)
    columns = columns_nest(plan.conv, on)
    copied = LoopNest(columns.loops, columns.operands[:2], columns.total, 1)  # the others stand for the product
    product, names = nest_text.sliced(_nest(plan.conv), on, schedule)
    return Nests((copied, product.renamed({"input": "columns"}, without="images")), names)
