# SPDX-License-Identifier: Apache-2.0
"""Winograd's F(4x4, 3x3) of bytes in 16-bit integers, exactly, with a quarter of the multiplications
(native/algorithms/integers/winograd.c, which proves it). Its products are those of rows of form `pairs`, with tiles along the lanes.

Four neighbouring tiles of a row are a quad, four quads a panel. For each block of k2 panels the input's rows are padded and transformed;
then each panel of filters meets each panel of tiles in 36 products, whose results are transformed while they are in L1.

The in-core cycles, for every image and group, with C channels, F filters in panels of f, and V vectors of 8 tiles:

kernel  36 ceil(C / 2) steps of a tile of v vectors x f filters, by the row's rate
call    a short call for each product
store   OUTPUT_INSTRUCTIONS for each vector of tiles and filter
pack    PATCH_INSTRUCTIONS for each vector of tiles and pair of channels; a padded row takes a call of a packing routine

Worked number: 64 -> 64 channels of 56x56 have 14 rows of 4 quads, 14 panels: 28 vectors. Their products are 36 * 32 * 28 / 2 * 11 tiles of
2 vectors x 6 filters of at most 8 cycles each on a Zen 3, 1.4 million cycles, where direct pairs take 4.8.
"""

import msgspec
import numpy as np

from pysim.algorithms.interface import Nests, Prepared, direct_sum, requires_nchw
from pysim.cachemodel.cpu import nest_text
from pysim.cachemodel.cpu.cost import Pass, traffic_of
from pysim.cachemodel.cpu.direct_schedules import ListedAlgorithm, Rows, Sizes, Terms, type_refusal, unpacked_plan
from pysim.cachemodel.cpu.incore import SHORT_CALL
from pysim.cachemodel.cpu.nest import PANEL_ALIGN, ceil_div
from pysim.cachemodel.cpu.reuse.loops import Array, Extent, Loop, LoopNest, Operand
from pysim.cachemodel.cpu.threads import Part, parts_of_each, rows_of
from pysim.machine.cpu import Machine
from pysim.problem.conv import Conv
from pysim.record.contract import Contract
from pysim.record.cost import Reason
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request
from pysim.record.schedule import Schedule
from pysim.registry.cpu import Kernel, kernels

NAME = "integer_winograd"
COMPUTES = Conv
QUANTISED = True
tolerance = direct_sum
SIDE, PLANES, QUAD, QUADS, LANES = 4, 36, 4, 4, 16  # outputs of a tile along an axis; tiles of a quad, quads of a panel (winograd.h)
COUNT_BYTES = 64  # behind the transformed filters
# Instructions of native/x86/groups/winograd.h for a vector of 8 tiles: loads, columns, two transforms and stores of two channels; loads,
# transforms, the division and rescaling of a filter
PATCH_INSTRUCTIONS, OUTPUT_INSTRUCTIONS = 400, 420


def _rows() -> tuple[Kernel, ...]:
    return tuple(kernel for kernel in kernels() if kernel.form == "pairs")


def _quads_wide(w: Conv) -> int:
    return ceil_div(w.out_w, SIDE * QUAD)


def _quads(w: Conv) -> int:
    return ceil_div(w.out_h, SIDE) * _quads_wide(w)


def _panels(w: Conv) -> int:
    return ceil_div(_quads(w), QUADS)


def _pairs(w: Conv) -> int:
    return ceil_div(w.group_channels, 2)


def _patch_bytes(w: Conv) -> int:
    """Of a panel of tiles."""
    return PLANES * (_pairs(w) | 1) * LANES * 4


def _block_rows(w: Conv, panels: Array | int) -> Array:
    """Padded rows that a block of panels reads at most."""
    wide = _quads_wide(w)
    return np.asarray(np.minimum(ceil_div(w.out_h, SIDE), (np.asarray(panels) * QUADS + wide - 2) // wide + 1) * SIDE + 2)


def _pitch(w: Conv) -> int:
    return (_quads_wide(w) + 1) * SIDE * QUAD


def refuses(problem: Conv, machine: Machine, layout: Layout) -> Reason | None:
    if reason := requires_nchw(layout) or type_refusal(problem.dtype, _rows()):
        return reason
    w = problem
    if (w.kernel_h, w.kernel_w, w.stride_h, w.stride_w, w.dilation_h, w.dilation_w, w.is_volume) != (3, 3, 1, 1, 1, 1, False):
        return Reason("shape", "it takes images and 3x3 with stride 1 and dilation 1")
    return None


def contract(problem: Conv, schedule: Schedule) -> Contract | None:
    """Sums of whole numbers are the same in any order, but this has no contract of its own."""


def prepare(problem: Conv, schedule: Schedule, layout: Layout) -> Prepared:
    panels = ceil_div(problem.group_filters, schedule.filters)
    return Prepared("transformed filters", problem.groups * panels * PLANES * _pairs(problem) * schedule.filters * 4 + COUNT_BYTES)


def workspace_bytes(problem: Conv, schedule: Schedule, layout: Layout) -> int:
    """The patches of a block, products and sums of a panel of filters, and the padded rows."""
    padded = problem.group_channels * int(_block_rows(problem, schedule.k2)) * _pitch(problem)
    padded = ceil_div(padded, PANEL_ALIGN) * PANEL_ALIGN + PANEL_ALIGN
    return schedule.k2 * _patch_bytes(problem) + schedule.filters * (PLANES + SIDE * SIDE) * LANES * 4 + padded + PANEL_ALIGN


def terms(w: Conv, group: Rows, machine: Machine, layout: Layout) -> tuple[Array | float, ...]:
    """kernel, call, store, pack."""
    each = [_terms(w, some.kernels[0], some.k2, machine) for _, some in group.grouped(lambda kernel: kernel.name)]
    return tuple(np.concatenate(of) for of in zip(*each, strict=True))


def _terms(w: Conv, kernel: Kernel, block: Array, machine: Machine) -> tuple[Array, ...]:
    """Of one kernel with blocks of some sizes."""
    unit, core, repeats = machine.unit_of(kernel.target), machine.core, w.batch * w.groups
    quads = kernel.lane_windows // QUAD  # of a vector
    vectors, panels = ceil_div(_quads(w), quads), _panels(w)
    full, last = divmod(w.group_filters, kernel.filters)
    whole, rest = divmod(vectors, QUADS // quads)
    step = sum(
        tiles * count * unit.step_cycles(w.dtype, along, filters)
        for tiles, along in ((whole, QUADS // quads), (1, rest))
        for count, filters in ((full, kernel.filters), (1, last))
        if along and filters
    )
    wait = core.transform_wait
    rows = np.ceil(panels / block) * w.group_channels * _block_rows(w, block)
    calls = panels * ceil_div(w.group_filters, kernel.filters) * PLANES
    found = (
        repeats * PLANES * _pairs(w) * step,
        repeats * calls * SHORT_CALL * core.call_cycles.value,
        repeats * vectors * w.group_filters * OUTPUT_INSTRUCTIONS * wait / 2,
        repeats * (vectors * _pairs(w) * PATCH_INSTRUCTIONS * wait / 2 + rows * core.pack_call_cycles.value),
    )
    return tuple(np.broadcast_to(np.asarray(one, np.float64), block.shape) for one in found)


def described(w: Conv, rows: Rows) -> LoopNest:
    """The loop nest of native/algorithms/integers/winograd.c."""
    filters, block, (panel,) = w.group_filters, rows.k2, rows.columns(lambda kernel: [kernel.filters])
    blocks, image = np.ceil(_panels(w) / block), w.group_channels * w.height * w.width
    weights, patches = PLANES * _pairs(w) * 4, _patch_bytes(w)
    stored = SIDE * SIDE * LANES * 1.0
    loops = (
        Loop("images and groups", "images", 1, w.batch * w.groups),
        Loop("blocks of panels", "blocks", 1, blocks),
        Loop("panels of filters", "filters", panel, np.ceil(filters / panel)),
        Loop("panels of tiles", "tiles", 1, block),
    )
    images = Extent(1.0, w.batch * w.groups)
    written = {"images": images, "blocks": Extent(1.0, blocks), "filters": Extent(1.0, filters), "tiles": Extent(stored, stored * block)}
    kept = {"tiles": Extent(patches, patches * block)}
    operands = (
        Operand("input", {"images": images, "blocks": Extent(image / blocks, image)}, "blocks of panels"),
        Operand("patches", kept, "blocks of panels", written=True),
        Operand("patches", kept, "panels of tiles"),
        Operand("filters", {"filters": Extent(weights, weights * filters)}, "panels of tiles"),
        Operand("output", written, "panels of tiles", written=True),
    )
    return LoopNest(loops, operands, {"images": w.batch * w.groups, "blocks": blocks, "tiles": block, "filters": filters}, block.size)


def passed(w: Conv, rows: Rows, of: Terms, machine: Machine, request: Request) -> Pass:
    nest = described(w, rows)
    return Pass(machine, of, nest.names, traffic_of(nest, nest.misses(machine.levels, request.state, sum(of.values()))))


def _nearest(problem: Conv, kernel: Kernel, schedule: Schedule, layout: Layout) -> Sizes:
    return problem.group_channels, max(1, min(schedule.k2, _panels(problem)))


def _schedules(problem: Conv, kernel: Kernel, request: Request) -> list[Sizes]:
    """Panels of a block: powers of two, and all."""
    panels = _panels(problem)
    return [(problem.group_channels, block) for block in sorted({min(2**power, panels) for power in range(panels.bit_length() + 1)})]


_LISTED = ListedAlgorithm(NAME, _rows, _schedules, _nearest, terms, passed, pack="tiles")
least_cycles, candidates, cost = _LISTED.least_cycles, _LISTED.candidates, _LISTED.cost


def largest_part(problem: Conv, schedule: Schedule, threads: int) -> Part:
    """Threads divide blocks of panels, smaller ones if that is more even, and where there are too few, the filters of each."""
    images, panels = problem.batch * problem.groups, _panels(problem)
    fewest = ceil_div(panels, schedule.k2)
    blocks = min(panels, fewest * parts_of_each(images * fewest, threads))
    parts = min(ceil_div(problem.group_filters, schedule.filters), ceil_div(threads, images * blocks)) if images * blocks < threads else 1
    each = ceil_div(panels, blocks)
    rows = min(problem.out_h, ceil_div(each * QUADS, _quads_wide(problem)) * SIDE)
    filters = min(problem.group_filters, ceil_div(ceil_div(problem.group_filters, schedule.filters), parts) * schedule.filters)
    part = rows_of(problem, ceil_div(images * blocks * parts, threads), rows, filters)
    return Part(part, msgspec.structs.replace(schedule, k2=min(each, _panels(part))))


def describe(plan: Plan) -> Description:
    w, schedule, kernel = unpacked_plan(plan)
    inner = f"{kernel.name} on {LANES} tiles x {kernel.filters} filters, {w.group_channels} channels, for each of {PLANES} planes"
    summary = f"F(4x4, 3x3) in 16-bit integers; blocks of {schedule.k2} panels of {LANES} tiles"
    peak = nest_text.peak_of(plan) * (SIDE * 3) ** 2 / PLANES
    return nest_text.describe(plan, summary, nests(plan).loops[0], inner, peak=peak)


def nests(plan: Plan) -> Nests:
    w, schedule, kernel = unpacked_plan(plan)
    return Nests((described(w, Rows.alone(kernel, schedule)),), {"tiles": "panels of tiles"})
