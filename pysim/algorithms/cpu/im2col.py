# SPDX-License-Identifier: Apache-2.0
"""im2col and a product: columns[C R S][P Q] of each image are written to the workspace, then convolved 1x1 by SConv's nest.

    cost = cost of the columns (`pysim.cachemodel.cpu.im2col`) + cost of the 1x1 convolution (`pysim.cachemodel.cpu.nested`)

What the nest reads of the image for the columns is `input`, what it reads of them is `columns`. Zeros of the padding are multiplied, so
weights must be finite where the problem is padded.

Worked number: 64 channels of 56x56, 3x3, FP32: columns of 64 * 9 * 56 * 56 * 4 = 7,225,344 bytes.
"""

from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np

from pysim.algorithms.contract import SUMS, Array, Bound, Prepared, of_planes
from pysim.cachemodel.cpu import nest as nests
from pysim.cachemodel.cpu import nested, tilings, words
from pysim.cachemodel.cpu.cost import Pass, cost_from
from pysim.cachemodel.cpu.im2col import columns_nest, columns_pass, copy_cycles
from pysim.cachemodel.cpu.incore import products_per_cycle, rates
from pysim.cachemodel.cpu.reuse import OPERANDS
from pysim.cachemodel.cpu.threads import Part, nest_part, rows_of
from pysim.machine.cpu import Machine
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SIZES
from pysim.record.cost import Cost, NoneLegal, Reason, Rejected
from pysim.record.description import Description, Section
from pysim.record.plan import Layout, Plan, Request
from pysim.record.schedule import Schedule

NAME = "im2col"
COMPUTES = Conv


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
        channels=problem.channels * problem.kernel_h * problem.kernel_w,
        height=problem.out_h,
        width=problem.out_w,
        filters=problem.filters,
        kernel_h=1,
        kernel_w=1,
        dtype=problem.dtype,
    )


class Candidates(NamedTuple):
    """Schedules of the product behind its columns, none where they are not worth predicting, which is below the `least` that all take."""

    least: float
    limit: float
    columns: Pass | None = None
    product: nested.NestCandidates | None = None
    rejected: tuple[Rejected, ...] = ()


class Costs:
    """The product's costs and that of the columns; one kind, whatever is stationary (`pysim.algorithms.contract.Costs`)."""

    kinds = (NAME,)

    def __init__(self, of: Candidates) -> None:
        self._columns, self._product = of.columns, of.product.costs() if of.product else None
        self.kernels: tuple[str, ...] = (NAME,)
        self.bounds: Array = np.array([of.least])
        self.cycles: Array = np.empty(0)
        self.kernel = np.empty(0, dtype=np.int64)
        if self._columns and self._product:
            self._product.prediction.one.operands = ("columns", *OPERANDS[1:])  # what it reads
            self.kernels, self.kernel = self._product.kernels, self._product.kernel
            self.bounds, self.cycles = (of + self._columns.cycles for of in (self._product.bounds, self._product.cycles))
        self.alike, self.kind = self.kernel, np.zeros_like(self.kernel)

    def _some(self) -> nested.NestCosts:
        assert self._product
        return self._product

    def schedule(self, row: int) -> Schedule:
        return msgspec.structs.replace(self._some().schedule(row), algorithm=NAME)

    def cost(self, row: int) -> Cost:
        """The one after the other."""
        prediction = self._some().prediction
        assert self._columns
        return cost_from([self._columns, prediction.one], row)

    def assumed(self, row: int) -> tuple[str, ...]:
        return self._some().assumed(row)


def candidates(request: Request, limit: float | None) -> Candidates | NoneLegal:
    problem, on = request.problem, request.machine
    assert isinstance(problem, Conv) and isinstance(on, Machine)
    nest, (kernels, rejected) = _nest(problem), tilings.rows(on, problem.dtype, request.micro_kernel)
    if not kernels:
        return NoneLegal(rejected)
    units = [unit for unit in on.core.units if unit.target in {kernel.target for kernel in kernels}]
    packer, wanted = max(units, key=lambda unit: unit.vector_bytes), np.inf if request.schedule else limit or 0.0
    fastest = max(products_per_cycle(nest, kernel, on.unit(kernel.target)) for kernel in kernels)
    least = copy_cycles(problem, on, packer=packer) + problem.flops / 2 / fastest
    if wanted < least:
        return Candidates(least, wanted or least)
    columns, of = columns_pass(problem, on, request.state, packer=packer), rates(nest, on, kernels)
    cycles = float(columns.cycles[0])
    least = cycles + float(tilings.least_cycles(of, np.arange(len(kernels))).min())
    if wanted < least:
        return Candidates(least, wanted)
    product = nested.candidates(nest, request, None if limit is None else limit - cycles, of)
    assert isinstance(product, nested.NestCandidates)
    return Candidates(least, product.limit + cycles, columns, product, product.rejected)


def cost(machine: Machine, found: "list[Candidates]") -> list[Costs]:
    return [Costs(one) for one in found]


def prepare(problem: Conv, schedule: Schedule, layout: Layout) -> Prepared:
    return Prepared("packed filters", nests.packed_filter_bytes(_nest(problem), schedule))


def workspace_bytes(problem: Conv, schedule: Schedule, layout: Layout) -> int:
    """One image's columns, their first and last lines whole, and the product's own."""
    product = _product(problem)
    size = product.channels * product.height * product.width * SIZES[problem.dtype]
    lines = nests.ceil_div(size, nests.PANEL_ALIGN) + 1
    return lines * nests.PANEL_ALIGN + nests.workspace_bytes(_nest(problem), schedule)


def tolerance(problem: Conv, schedule: Schedule) -> Bound:
    return SUMS._replace(finite="filters" if problem.padded else "nothing")


def largest_part(problem: Conv, schedule: Schedule, threads: int) -> Part:
    """The product's; the columns of each image are written in a region of their own, channels divided."""
    product = nest_part(_product(msgspec.structs.replace(problem, batch=1)), schedule, threads)
    assert isinstance(product.problem, Conv)
    rows, filters = product.problem.out_h, product.problem.filters // product.problem.groups
    part = rows_of(problem, problem.batch, rows, filters, product.problem.groups)
    return product._replace(problem=part, regions=2 * problem.batch)


def describe(plan: Plan) -> Description:
    w, on = plan.workload, plan.on
    assert isinstance(w, Conv) and isinstance(on, Machine)
    columns = Section("columns", tuple(words.printed(columns_nest(w, nests.nest_of(w), on))))
    return words.describe_nest(_nest(w), plan, "columns of each image in the workspace, then their 1x1 convolution", (columns,))
