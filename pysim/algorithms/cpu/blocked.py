# SPDX-License-Identifier: Apache-2.0
"""Direct convolution of planes by way of blocks of channels: each image is brought into blocks, convolved there by the kernels of
direct_nchwc, and its results are brought back.

    cost = that of `direct_nchwc` + reordering the input and the results

Each element is moved once, where SConv packs it once a tap: for kernels that no transform helps (7x1, dilated, strided, or where none is
allowed). A group's channels and filters are whole blocks of a vector's lanes.

Worked number: 192 channels of 17x17 to 192, 7x1: 55,488 elements go in and as many come out; packing would copy 7 times 55,488, a tap at
a time.

What it costs to bring planes there and back (`native/conv/blocked.c`):

    pack      squares of L planes x L elements, L lanes, are transposed: of each vector a load, a store and log2 L shuffles, one a cycle
    transfer  input and results, and the blocks of one image, which all images take in turn, a whole run after they were used last

Worked number: 128 channels of 56x56 in FP32 on 16 lanes: 25,088 vectors, 25,088 (1/2 + 1 + 4) = 137,984 cycles at two loads and one store a
cycle.
"""

from functools import lru_cache
from math import log2, prod

import msgspec
import numpy as np

from pysim.algorithms.contract import direct_sum, requires_nchw
from pysim.algorithms.cpu import direct_nchwc
from pysim.algorithms.cpu.direct_nchwc import described, least_of, passed, terms
from pysim.cachemodel.cpu import words
from pysim.cachemodel.cpu.cost import Pass, pass_of
from pysim.cachemodel.cpu.listed import ListedAlgorithm, type_refusal, unpacked_plan
from pysim.cachemodel.cpu.loops import Extent, Loop, LoopNest, Operand
from pysim.cachemodel.cpu.nest import PANEL_ALIGN, ceil_div, live_taps
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
tolerance, prepare = direct_sum, direct_nchwc.prepare
REGIONS = 3  # forks and joins of an image: there, sums, back


def transposed_cycles(elements: float, size: int, unit: Unit) -> float:
    """Of transposing so many elements of `size` bytes, all of them in L1."""
    lanes = unit.lanes(size)
    each = 1 / unit.loads_per_cycle.value + 1 / unit.stores_per_cycle.value
    return elements / lanes * (each + max(1.0, log2(lanes)))


def moved_elements(w: Conv) -> tuple[int, int]:
    """Of an image and of its results."""
    return w.channels * w.height * w.width, w.filters * w.windows


def reordering_cycles(w: Conv, machine: Machine) -> float:
    """Of both, all of them in L1."""
    return w.batch * sum(transposed_cycles(count, w.element_bytes, _unit(machine)) for count in moved_elements(w))


def _unit(machine: Machine) -> Unit:
    """What transposes."""
    return max(machine.core.units, key=lambda one: one.vector_bytes)


@lru_cache(maxsize=64)
def reordering(w: Conv, machine: Machine, state: State) -> tuple[Pass, Pass]:
    """Into blocks, and back."""
    size, (read, written) = w.element_bytes, moved_elements(w)
    filters = w.filter_elements

    def moving(names: tuple[str, str], elements: int, room: float) -> Pass:
        of_images = {"images": Extent(elements * size, elements * size * w.batch)}
        of_one = {"run": Extent(elements * size, elements * size)}  # blocks of one image, which all take in turn
        extents = (of_images, of_one) if names[0] == "input" else (of_one, of_images)
        source, target = (Operand(name, of, "images") for name, of in zip(names, extents, strict=True))
        others = Operand("", {"run": Extent(room * size, room * size)}, "images")
        loops = (Loop("images", "images", 1, w.batch),)
        nest = LoopNest(loops, (source, target._replace(written=True), others), {"images": w.batch, "run": 1}, 1)
        return pass_of(nest, machine, {"pack": np.array([w.batch * transposed_cycles(elements, size, _unit(machine))])}, state)

    return moving(("input", "blocks"), read, filters + 2.0 * written), moving(("sums", "output"), written, filters + 2.0 * read)


# The answers of the contract


def _layout(kernel: Kernel) -> Layout:
    """Of an image on the way."""
    return f"nchw{kernel.lane_filters}c"  # type: ignore[return-value]


def refuses(problem: Conv, machine: Machine, layout: Layout) -> Reason | None:
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
    """Multiplications at the highest rate and moves in L1; if these take less than `best`, the best kernel's sums, and if those do, moves
    from where the data are."""
    w, on = request.conv, request.cpu
    if request.threads > 1:
        return 0.0
    rows, columns = live_taps(w)
    fastest = max(unit.rate(w.dtype) * unit.vector_bytes / w.element_bytes for unit in on.core.units)
    sums, moved = w.batch * w.filters * w.group_channels * rows * columns / fastest, reordering_cycles(w, on)
    if sums + moved <= best:
        able = (kernel for kernel in nchwc_kernels() if kernel.dtype == w.dtype and not _LISTED.refuses(kernel, request))
        sums = min((least_of(w, kernel, on, _layout(kernel)) for kernel in able), default=0.0)
    if sums + moved <= best:
        moved = _LISTED.shared_cycles(request)
    return sums + moved


def workspace_bytes(problem: Conv, schedule: Schedule, layout: Layout) -> int:
    """The blocks of an image and of its results, in whole lines."""
    sizes = problem.channels * problem.height * problem.width, problem.filters * problem.windows
    lines = sum(ceil_div(size * problem.element_bytes, PANEL_ALIGN) for size in sizes)
    return (lines + 1) * PANEL_ALIGN + direct_nchwc.workspace_bytes(problem, schedule, layout)


def largest_part(problem: Conv, schedule: Schedule, threads: int) -> Part:
    """That of the sums of one image; whole blocks of its channels are brought there and back (native/conv/blocked.c)."""
    part = direct_nchwc.largest_part(msgspec.structs.replace(problem, batch=1), schedule, threads)
    images = msgspec.structs.replace(part.problem, batch=part.problem.batch * problem.batch)  # type: ignore[union-attr]
    return part._replace(problem=images, regions=REGIONS * problem.batch)


def describe(plan: Plan) -> Description:
    w, schedule, kernel = unpacked_plan(plan)
    moved = f"each image's {w.channels} channels into blocks of {kernel.lane_filters}, its {w.filters} planes of results back"
    inner = f"{kernel.name} on up to {kernel.windows} pixels x {kernel.filters} filters x {schedule.channels} channels"
    nest, names = described(w, [(kernel, schedule)], _layout(kernel)), {"panels": f"panels of {kernel.filters} filters"}
    section, peak = Section("reordering", (moved,)), words.peak_of_taps(plan, prod(live_taps(w)))
    return words.describe(plan, "direct convolution by way of blocks of channels", nest, inner, names, (section,), peak)
