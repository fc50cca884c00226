# SPDX-License-Identifier: Apache-2.0
"""Convolutions of bytes with channels last (layout nhwc) as products: pixels of the output are rows of A, filters are columns of a B that
is packed in advance, k is [kernel row][kernel column][channel] (native/algorithms/integers/channels_last.c).

Pixels of a 1x1 layer lie in rows of k, as a product's A does, and forms pixels, unpacked and tiles read them in place. Windows of other
layers are gathered: each kernel row of a window is one run of bytes.

Worked number: 64 -> 64 channels, 3x3, 56x56, are a product of 3,136 x 64 x 576 whose A, 1.8 MB, is copied from an image of 0.2 MB in 9,408
runs of 192 bytes.
"""

from functools import lru_cache
from typing import Any

import msgspec

from pysim.algorithms.interface import Nests, Prepared, direct_sum
from pysim.algorithms.nest import OnNest
from pysim.cachemodel.cpu import nest as loops
from pysim.cachemodel.cpu import nest_schedules
from pysim.cachemodel.cpu.nest import ceil_div
from pysim.cachemodel.cpu.nest_schedules import cost as cost
from pysim.cachemodel.cpu.reuse.loops import Array
from pysim.cachemodel.cpu.threads import Part, nest_part, parts_of_each, rows_of
from pysim.machine.cpu import Machine
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.record.contract import Contract
from pysim.record.cost import NoneLegal, Reason
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request
from pysim.record.schedule import Schedule
from pysim.registry.cpu import kernels

NAME = "channels_last"
COMPUTES = Conv
QUANTISED = True
tolerance = direct_sum


def product_of(problem: Conv) -> Gemm:
    """The product of one image."""
    return Gemm(m=problem.windows, n=problem.filters, k=problem.channels * problem.taps, trans_b=True, dtype=problem.dtype)


@lru_cache(maxsize=64)
def nest_of(problem: Conv) -> loops.Nest:
    gathered = 0 if problem.pointwise else problem.kernel_h * (problem.kernel_w if problem.dilation_w > 1 else 1)
    own: dict[str, Any] = {"in_place": True, "windows_packed": True, "windows_transposed": False, "batch": problem.batch}
    own |= {"filters_gathered": gathered, "copied_pieces": problem.dilation_w == 1}
    return msgspec.structs.replace(loops.nest_of(product_of(problem)), **own)


_FORMS = tuple(dict.fromkeys(row.form for row in kernels() if row.dtype == "s8" and (row.in_rows or not row.lists)))
_NEST = OnNest(nest_of, "product of pixels with channels last, filters packed in advance", _FORMS, NAME, rooms=1)


def refuses(problem: Conv, machine: Machine, layout: Layout) -> Reason | None:
    if layout != "nhwc":
        return Reason("shape", f"it takes NHWC input and output, not {layout.upper()}")
    if problem.dtype != "s8":
        return Reason("type", f"it computes s8, not {problem.dtype}")
    return Reason("shape", "it takes images of one group") if problem.groups > 1 or problem.is_volume else None


def _of_product(request: Request) -> Request:
    return msgspec.structs.replace(request, problem=product_of(request.conv), prepared=True)


def least_cycles(request: Request, best: float) -> float:
    nest = nest_of(request.conv)
    return nest_schedules.least_cycles(nest, _of_product(request), best, _FORMS) if request.threads == 1 else 0.0


def candidates(request: Request, limit: Array | float = 0.0) -> nest_schedules.Found | NoneLegal:
    nest = nest_of(request.conv)
    return nest_schedules.candidates(nest, _of_product(request), limit, _FORMS, NAME, nest.group_channels)


def prepare(problem: Conv, schedule: Schedule, layout: Layout) -> Prepared:
    size = loops.window_panel_bytes(nest_of(problem), schedule)
    return Prepared("packed filters", loops.with_sums(problem.dtype, size, problem.filters))


def largest_part(problem: Conv, schedule: Schedule, threads: int) -> Part:
    """Whole rows of outputs that hold the pixels of the largest part of an image's product."""
    each = parts_of_each(problem.batch, threads)
    part = nest_part(product_of(problem), schedule, each, prepared=True)
    assert isinstance(part.problem, Gemm)
    pixels, images = part.problem.m, ceil_div(problem.batch * each, threads)
    rows = ceil_div(pixels, problem.out_w)
    share = pixels / (rows * problem.out_w)
    return part._replace(problem=rows_of(problem, images, rows, part.problem.n), share=part.share * share, items=part.items * images)


def workspace_bytes(problem: Conv, schedule: Schedule, layout: Layout) -> int:
    return _NEST.workspace_bytes(problem, schedule, layout)


def describe(plan: Plan) -> Description:
    return _NEST.describe(plan)


def nests(plan: Plan) -> Nests:
    return _NEST.nests(plan)


def contract(problem: Conv, schedule: Schedule) -> Contract:
    """Sums of integers are those of any order."""
    return Contract("chain", schedule.channels)
