# SPDX-License-Identifier: Apache-2.0
"""im2col and a product: columns[C R S][P Q] of each image are written to the workspace, then convolved 1x1 by SConv's nest.

    cost = cost of the columns (`pysim.cachemodel.cpu.im2col`) + cost of the 1x1 convolution (`pysim.cachemodel.cpu.nested`)

What the nest reads of the image for the columns is `input`, what it reads of them is `columns`. Zeros of the padding are multiplied, so
weights must be finite where the problem is padded.

Worked number: 64 channels of 56x56, 3x3, FP32: columns of 64 * 9 * 56 * 56 * 4 = 7,225,344 bytes.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np

from pysim.algorithms.contract import SUMS, Array, Bound, Prepared, of_planes
from pysim.cachemodel.cpu import nest as nests
from pysim.cachemodel.cpu import nested, tilings, words
from pysim.cachemodel.cpu.cost import Pass, cost_from
from pysim.cachemodel.cpu.im2col import columns_nest, columns_pass, copy_cycles
from pysim.cachemodel.cpu.nested import NestCandidates, NestCosts
from pysim.cachemodel.cpu.reuse import OPERANDS
from pysim.cachemodel.cpu.threads import Part, nest_part, rows_of
from pysim.machine.cpu import Machine, Unit
from pysim.problem.conv import Conv
from pysim.record.cost import Cost, NoneLegal, Reason, Rejected
from pysim.record.description import Description, Section
from pysim.record.plan import Layout, Plan, Request, on_cpu
from pysim.record.schedule import Schedule
from pysim.registry.cpu import Kernel

NAME = "im2col"
COMPUTES = Conv
SELDOM_BEST = True


def refuses(problem: Conv, machine: Machine, layout: Layout) -> Reason | None:
    if reason := of_planes(layout):
        return reason
    return Reason("shape", "its columns are the input: sconv reads it in place") if problem.pointwise else None


def _nest(problem: Conv) -> nests.Nest:
    """The product's, its windows packed: rows of columns lie so far apart that each window read in place would cost a page of its own,
    which the model does not know (measured on a Zen 4: twice the time, where it predicts less)."""
    return msgspec.structs.replace(nests.nest_of(_product(problem)), in_place=False, fresh_input=True)


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
    """Schedules of the product behind its columns."""

    columns: Pass
    product: NestCandidates
    limit: float
    rejected: tuple[Rejected, ...]


class Costs(NestCosts):
    """The product's costs and that of the columns; one kind, whatever is stationary."""

    kinds = (NAME,)

    def __init__(self, of: Candidates) -> None:
        super().__init__(of.product)
        self._columns, self.prediction.one.operands = of.columns, ("columns", *OPERANDS[1:])  # what it reads
        self.bounds, self.cycles = (one + of.columns.cycles for one in (self.bounds, self.cycles))
        self.kind = np.zeros_like(self.kind)

    def cost(self, row: int) -> Cost:
        """The one after the other."""
        return cost_from([self._columns, self.prediction.one], row)


def _packer(kernels: Sequence[Kernel], on: Machine) -> Unit:
    """The widest unit that a kernel runs on."""
    targets = {kernel.target for kernel in kernels}
    return max((unit for unit in on.core.units if unit.target in targets), key=lambda unit: unit.vector_bytes)


def least_cycles(request: Request, best: float) -> float:
    problem, on = request.problem, request.cpu
    assert isinstance(problem, Conv)
    kernels = tilings.rows(on, problem.dtype, request.micro_kernel).kernels
    if not kernels:
        return 0.0
    packer = _packer(kernels, on)
    copy = copy_cycles(problem, on, packer)
    product = nested.least_cycles(_nest(problem), request, best - copy)
    if copy + product > best:
        return copy + product
    return float(columns_pass(problem, on, request.state, packer).cycles[0]) + product


def candidates(request: Request, limit: Array | float = 0.0, done: Array | None = None) -> Candidates | NoneLegal:
    problem, on = request.problem, request.cpu
    assert isinstance(problem, Conv)
    kernels, rejected = tilings.rows(on, problem.dtype, request.micro_kernel)
    if not kernels:
        return NoneLegal(rejected)
    columns = columns_pass(problem, on, request.state, _packer(kernels, on))
    cycles = float(columns.cycles[0])
    product = nested.candidates(_nest(problem), request, limit - cycles, None if done is None else done - cycles, algorithm=NAME)
    assert isinstance(product, NestCandidates)
    return Candidates(columns, product, float(product.limit[0]) + cycles, product.rejected)  # both stationary operands are one kind


def cost(machine: Machine, found: "list[Candidates]") -> list[Costs]:
    return [Costs(one) for one in found]


def prepare(problem: Conv, schedule: Schedule, layout: Layout) -> Prepared:
    return Prepared("packed filters", nests.packed_filter_bytes(_nest(problem), schedule))


def workspace_bytes(problem: Conv, schedule: Schedule, layout: Layout) -> int:
    """One image's columns, their first and last lines whole, and the product's own."""
    product = _product(problem)
    size = product.channels * product.height * product.width * problem.element_bytes
    lines = nests.ceil_div(size, nests.PANEL_ALIGN) + 1
    return lines * nests.PANEL_ALIGN + nests.workspace_bytes(_nest(problem), schedule)


def tolerance(problem: Conv, schedule: Schedule) -> Bound:
    return SUMS._replace(finite="filters" if problem.padded else "nothing")


def largest_part(problem: Conv, schedule: Schedule, threads: int) -> Part:
    """The product's; the columns of each image are written in a region of their own, channels divided."""
    product = nest_part(_product(msgspec.structs.replace(problem, batch=1)), schedule, threads)
    assert isinstance(product.problem, Conv)
    rows, filters = product.problem.out_h, product.problem.group_filters
    part = rows_of(problem, problem.batch, rows, filters, groups=product.problem.batch)
    return product._replace(problem=part, regions=2 * problem.batch)


def describe(plan: Plan) -> Description:
    w, (_, on) = plan.workload, on_cpu(plan)
    assert isinstance(w, Conv)
    columns = Section("columns", tuple(words.printed(columns_nest(w, nests.nest_of(w), on))))
    return words.describe_nest(_nest(w), plan, "columns of each image in the workspace, then their 1x1 convolution", (columns,))
