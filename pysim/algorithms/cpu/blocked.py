# SPDX-License-Identifier: Apache-2.0
"""Direct convolution of NCHW operands through channel blocks: the input of each image is converted to NCHWc, convolved by the kernels of
`direct_nchwc`, and the output is converted back (native/algorithms/blocked.c).

    cost = cost of `direct_nchwc` + cost of both layout conversions

Each element is copied once, where SConv packs it once per tap. That pays for kernels that no transform accelerates: 7x1, dilated, strided,
or if transforms are not allowed. Channels and filters of a group must be multiples of the vector's lanes.

A layout conversion costs

    pack      transposing squares of L channels x L elements, L lanes: per vector a load, a store and log2 L shuffles, one per cycle
    transfer  the input and output, last used in the previous run; the blocks of one image, which all images reuse

Worked number: 128 channels of 56x56 in FP32 on 16 lanes: 25,088 vectors, 25,088 (1/2 + 1 + 4) = 137,984 cycles at two loads and one store
per cycle.
"""

from functools import lru_cache
from math import log2, prod

import msgspec
import numpy as np

from pysim.algorithms.cpu import direct_nchwc
from pysim.algorithms.cpu.direct_nchwc import described, least_cycles_of, passed, terms
from pysim.algorithms.interface import Nests, direct_sum, requires_nchw
from pysim.cachemodel.cpu import nest_text
from pysim.cachemodel.cpu.cost import Pass, pass_of
from pysim.cachemodel.cpu.direct_schedules import ListedAlgorithm, Rows, type_refusal, unpacked_plan
from pysim.cachemodel.cpu.nest import PANEL_ALIGN, ceil_div, live_taps
from pysim.cachemodel.cpu.reuse.loops import Extent, Loop, LoopNest, Operand
from pysim.cachemodel.cpu.threads import Part
from pysim.machine.cpu import Machine, Unit
from pysim.problem.conv import Conv
from pysim.record.cost import Reason
from pysim.record.description import Description, Section
from pysim.record.plan import Layout, Plan, Request
from pysim.record.schedule import Schedule
from pysim.record.state import State
from pysim.registry.cpu import Kernel, nchwc_kernels

NAME = "blocked"
COMPUTES = Conv
tolerance, prepare, contract = direct_sum, direct_nchwc.prepare, direct_nchwc.contract
REGIONS = 3  # parallel regions per image: conversion, convolution, conversion


def transposed_cycles(elements: float, size: int, unit: Unit) -> float:
    """Cycles to transpose elements of `size` bytes in L1."""
    lanes = unit.lanes(size)
    each = 1 / unit.loads_per_cycle.value + 1 / unit.stores_per_cycle.value
    return elements / lanes * (each + max(1.0, log2(lanes)))


def moved_elements(w: Conv) -> tuple[int, int]:
    """Elements of the input and of the output of one image."""
    return w.channels * w.height * w.width, w.filters * w.windows


def reordering_cycles(w: Conv, machine: Machine) -> float:
    """Cycles of both conversions of all images, with all data in L1."""
    return w.batch * sum(transposed_cycles(count, w.element_bytes, _unit(machine)) for count in moved_elements(w))


def _unit(machine: Machine) -> Unit:
    """The unit that transposes: the widest."""
    return max(machine.core.units, key=lambda one: one.vector_bytes)


@lru_cache(maxsize=64)
def reordering(w: Conv, machine: Machine, state: State) -> tuple[Pass, Pass]:
    """The conversion into blocks, and the one back."""

    def moving(nest: LoopNest, elements: int) -> Pass:
        cycles = w.batch * transposed_cycles(elements, w.element_bytes, _unit(machine))
        return pass_of(nest, machine, {"pack": np.array([cycles])}, state)

    into, back = map(moving, conversions(w), moved_elements(w))
    return into, back


def conversions(w: Conv) -> tuple[LoopNest, LoopNest]:
    """The loops of the conversion into blocks, and of the one back. What is touched in between has no name."""
    size, (read, written) = w.element_bytes, moved_elements(w)
    filters = w.filter_elements

    def moving(names: tuple[str, str], elements: int, room: float) -> LoopNest:
        of_images = {"images": Extent(elements * size, elements * size * w.batch)}
        of_one = {"run": Extent(elements * size, elements * size)}  # blocks of one image, reused by all images
        extents = (of_images, of_one) if names[0] == "input" else (of_one, of_images)
        source, target = (Operand(name, of, "images") for name, of in zip(names, extents, strict=True))
        others = Operand("", {"run": Extent(room * size, room * size)}, "images")
        loops = (Loop("images", "images", 1, w.batch),)
        return LoopNest(loops, (source, msgspec.structs.replace(target, written=True), others), {"images": w.batch, "run": 1}, 1)

    return moving(("input", "blocks"), read, filters + 2.0 * written), moving(("sums", "output"), written, filters + 2.0 * read)


# The interface of an algorithm


def _layout(kernel: Kernel) -> Layout:
    """The layout of the converted image."""
    return f"nchw{kernel.lane_filters}c"  # type: ignore[return-value]


def refuses(problem: Conv, machine: Machine, layout: Layout) -> Reason | None:
    if problem.dtype == "bf16":  # whose planes of results are float32, and whose blocks are not
        return Reason("type", "it computes f32 and f64; the problem is bf16")
    return requires_nchw(layout) or type_refusal(problem.dtype, nchwc_kernels())


_LISTED = ListedAlgorithm(
    NAME,
    nchwc_kernels,
    direct_nchwc.schedules,
    direct_nchwc.nearest,
    terms,
    passed,
    lambda problem, kernel, layout: direct_nchwc.refuses_sizes(problem, layout),
    besides=reordering,
    layout_of=lambda kernel, layout: _layout(kernel),
)
candidates, cost = _LISTED.candidates, _LISTED.cost


def least_cycles(request: Request, best: float) -> float:
    """Multiplications at the highest rate and conversions in L1. If that is at most `best`: the bound of the best kernel; and if that is,
    too: conversions with their transfers."""
    w, on = request.conv, request.cpu
    if request.threads > 1 or not (able := _LISTED.able(request)):
        return 0.0
    rows, columns = live_taps(w)
    fastest = max(unit.rate(w.dtype) * unit.vector_bytes / w.element_bytes for unit in on.core.units)
    sums, moved = w.batch * w.filters * w.group_channels * rows * columns / fastest, reordering_cycles(w, on)
    if sums + moved <= best:
        sums = min(least_cycles_of(w, kernel, on, _layout(kernel)) for kernel in able)
    if sums + moved <= best:
        moved = _LISTED.shared_cycles(request)
    return sums + moved


def workspace_bytes(problem: Conv, schedule: Schedule, layout: Layout) -> int:
    """The blocks of the input and output of one image, each in whole lines."""
    sizes = problem.channels * problem.height * problem.width, problem.filters * problem.windows
    lines = sum(ceil_div(size * problem.element_bytes, PANEL_ALIGN) for size in sizes)
    return (lines + 1) * PANEL_ALIGN + direct_nchwc.workspace_bytes(problem, schedule, layout)


def largest_part(problem: Conv, schedule: Schedule, threads: int) -> Part:
    """The largest part of one image's convolution; threads convert whole blocks of channels (native/algorithms/blocked.c)."""
    part = direct_nchwc.largest_part(msgspec.structs.replace(problem, batch=1), schedule, threads)
    images = msgspec.structs.replace(part.problem, batch=part.problem.batch * problem.batch)  # type: ignore[union-attr]
    return part._replace(problem=images, regions=REGIONS * problem.batch)


def describe(plan: Plan) -> Description:
    w, schedule, kernel = unpacked_plan(plan)
    moved = f"per image: {w.channels} input channels to blocks of {kernel.lane_filters}, {w.filters} output channels back to planes"
    inner = f"{kernel.name} on up to {kernel.windows} pixels x {kernel.filters} filters x {schedule.channels} channels"
    nest, names = described(w, Rows.alone(kernel, schedule), _layout(kernel)), nests(plan).names
    section, peak = Section("layout conversion", (moved,)), nest_text.peak_of_taps(plan, prod(live_taps(w)))
    return nest_text.describe(
        plan, "direct convolution in channel blocks, converted from NCHW and back", nest, inner, names, (section,), peak
    )


def nests(plan: Plan) -> Nests:
    """Both conversions and the convolution between them, which reads and writes the blocks of one image."""
    w, schedule, kernel = unpacked_plan(plan)
    into, back = conversions(w)
    own = described(w, Rows.alone(kernel, schedule), _layout(kernel)).renamed({"input": "blocks", "output": "sums"}, without="images")
    return Nests((into, own, back), {"panels": f"panels of {kernel.filters} filters"})
