# SPDX-License-Identifier: Apache-2.0
"""Convolutions of few channels: each input row is split once into the phases of the stride, and all taps read it from there
(native/algorithms/polyphase.c).

Packing copies an input row once per tap that reads it. Layers on images (1 to 4 channels, kernels up to 11x11) have few multiply-adds per
channel to amortise that. Here a row is copied once. The kernels are the rows of `native/polyphase.inc`; filters are packed as sconv's.

Worked number: 7x7 with stride 2 on 3 channels packs each input element 49 / 4 = 12 times. Split into phases it is copied 1.6 times, with
blocks of 4 rows of outputs that read 13 input rows, 8 of them new.

The in-core cycles, for every image and group, with k2 rows of outputs per block and F filters per panel:

kernel  A row of outputs of a panel is V = ceil(Q / lanes) vectors, divided evenly into tiles of up to n. For each of its C R S taps a tile
        of v vectors takes max(v F / fma rate, (v + F) / load rate, fma latency).
store   Rows begin anywhere in a line: a share (vector - element) / line of the vectors crosses into the next line, one access more.
pack    Vectors of split rows, including the halo that blocks share: a store and pack_cycles each, and with a stride a load and a permute
        per phase. Each call of packing starts with the masks of its vectors (AVX2: MASK each), with stride 1 only at the ends of rows.
        Rows are read whole, so no line waits beyond the rates of `cost`.
call    call_cycles per row of a panel, minus QUEUED_FMAS / fma rate: when the core reaches the next row, that many multiply-adds are still
        queued, and the next row starts beside them. Also call_cycles per SPLIT_COLUMNS columns of a channel of a block.

Worked number: 3 -> 64 channels, 224x224, 7x7 stride 2 on 16 lanes: rows of 112 outputs are 7 vectors, in tiles of 3, 2 and 2. With 8
filters and two multiply-adds per cycle a tap takes 12 + 8 + 8 = 28 cycles for 56 multiply-adds, more than its (3 + 8 + 2 + 8 + 2 + 8) / 2
cycles of loads.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from pysim.algorithms.interface import Nests, direct_sum, requires_nchw
from pysim.algorithms.nest import contract as contract
from pysim.algorithms.nest import packed_filters
from pysim.cachemodel.cpu import nest_text
from pysim.cachemodel.cpu.cost import Pass, suppliers, traffic_of, transfer_cycles
from pysim.cachemodel.cpu.direct_schedules import ListedAlgorithm, Rows, Sizes, Terms, type_refusal, unpacked_plan
from pysim.cachemodel.cpu.nest import PANEL_ALIGN, ceil_div
from pysim.cachemodel.cpu.reuse.loops import Array, Extent, Loop, LoopNest, Operand
from pysim.cachemodel.cpu.threads import Part, parts_of_each, rows_of
from pysim.machine.cpu import Machine, Unit
from pysim.problem.conv import Conv
from pysim.record.cost import Reason
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request
from pysim.record.schedule import Schedule
from pysim.registry.cpu import Kernel, phases_kernels

NAME = "polyphase"
COMPUTES = Conv
tolerance, prepare = direct_sum, packed_filters
MAX_CHANNELS = 32  # of a group: with more, rows of all channels do not fit in L1, and packing is as fast or faster (Zen 5)
OFFSET_BYTES = 8  # of a tap in the split rows

SPLIT_COLUMNS = 64  # columns of a phase that are copied per call (native/algorithms/polyphase.c)
# Of a mask that a call of packing makes with AVX2: (stride + 1) a vector. 32 -> 48 channels, 112x112, 1x1 stride 2, with 1, 4 and 14 rows
# a block: 713, 429 and 334 us, predicted 197, 180 and 174 without it, 396, 230 and 188 with it (Zen 3, beside other work)
MASK = 15.0
# 32 -> 32 channels, 112x112, 3x3 stride 2, rows of 4 lines, with 8 and 56 rows a block, 0.3 and 1.8 MB: 0.95 and 1.09 ms, predicted 0.86
# and 0.81 without them, 0.90 and 0.97 with them (Zen 3)
RUN_LINES = 4
QUEUED_FMAS = 160  # in the schedulers and the queue before them: 128 + 64 entries in Zen 4, 97 in Golden Cove (Agner Fog; 151 plans, Zen 4)


class SplitRows(NamedTuple):
    """The split rows of a block: per channel rows x phases x pitch elements."""

    rows: Any
    phases: int
    pitch: int
    size_bytes: Any

    @classmethod
    def of(cls, w: Conv, rows: Any) -> "SplitRows":
        """For blocks of some rows of outputs: a number, or an array."""
        reach, lane = w.dilation_w * (w.kernel_w - 1), PANEL_ALIGN // w.element_bytes
        high = (rows - 1) * w.stride_h + w.dilation_h * (w.kernel_h - 1) + 1
        phases = min(w.stride_w, reach + 1)
        pitch = ceil_div(ceil_div(w.out_w, lane) * lane + reach // w.stride_w, lane) * lane
        return cls(high, phases, pitch, w.group_channels * high * phases * pitch * w.element_bytes)


def tiles_of(vectors: int, most: int) -> tuple[tuple[int, int], ...]:
    """The tiles of a row, of equal size give or take a vector: pairs of count and vectors."""
    tiles = ceil_div(vectors, most)
    small, more = divmod(vectors, tiles)
    return (more, small + 1), (tiles - more, small)


@lru_cache(maxsize=64)
def _row_cycles(w: Conv, kernel: Kernel, unit: Unit) -> float:
    """Kernel cycles of one row of outputs of a panel of filters."""
    taps = w.products
    if kernel.lane_windows == 1:  # plain C: the rate includes the loop overhead
        return taps * w.out_w * kernel.filters / unit.rate(w.dtype)
    tiles = tiles_of(ceil_div(w.out_w, kernel.lane_windows), kernel.windows // kernel.lane_windows)
    return sum(count * taps * unit.step_cycles(w.dtype, vectors, kernel.filters) for count, vectors in tiles)


def _calls(w: Conv, kernel: Kernel) -> int:
    """Rows of outputs of all panels of filters."""
    return w.batch * w.groups * w.out_h * ceil_div(w.group_filters, kernel.filters)


def _fewest(w: Conv, kernel: Kernel, machine: Machine) -> float:
    """Kernel cycles of all schedules of a kernel."""
    return _calls(w, kernel) * _row_cycles(w, kernel, machine.unit_of(kernel.target))


def terms(w: Conv, group: Rows, machine: Machine, layout: Layout) -> tuple[Array | float, ...]:
    """kernel, call, store, pack."""
    (kernel,) = group.kernels
    unit, core = machine.unit_of(kernel.target), machine.core
    repeats, size, split = w.batch * w.groups, w.element_bytes, SplitRows.of(w, group.k2)
    filters, blocks = w.group_filters, np.ceil(w.out_h / group.k2)
    lanes = unit.lanes(size)
    calls = _calls(w, kernel)
    runs = repeats * blocks * w.group_channels * ceil_div(split.pitch, SPLIT_COLUMNS)
    gather = 1 / unit.loads_per_cycle.value + min(w.stride_w, lanes) if w.stride_w > 1 else 0.0
    packed = repeats * blocks * split.size_bytes / size / lanes
    masked = runs if w.stride_w > 1 else np.minimum(runs, 2 * repeats * blocks * w.group_channels)  # calls: at both ends of rows
    masks = masked * min(SPLIT_COLUMNS, split.pitch) / lanes * (w.stride_w + 1) * (kernel.target == "avx2")
    row = _row_cycles(w, kernel, unit)
    covered = min(QUEUED_FMAS / unit.rate(w.dtype), row, core.call_cycles.value)
    return (
        calls * row,
        (calls + runs) * core.call_cycles.value - calls * covered,
        repeats * filters * w.out_h * ceil_div(w.out_w, lanes) * unit.store_cycles(size, machine.line_bytes),
        packed * (1 / unit.stores_per_cycle.value + core.pack_cycles.value + gather) + masks * MASK,
    )


def described(w: Conv, rows: Rows) -> LoopNest:
    """The loop nest of native/algorithms/polyphase.c."""
    size, filters, channels = w.element_bytes, w.group_filters, w.group_channels
    block, (panel,), (split_rows, _, _, split) = rows.k2, rows.columns(lambda kernel: [kernel.filters]), SplitRows.of(w, rows.k2)
    blocks, each = np.ceil(w.out_h / block), split / split_rows
    high = w.dilation_h * (w.kernel_h - 1) + 1  # input rows of one row of outputs
    row, weights = channels * w.width * size, channels * w.taps * size
    shared = float(max(0, high - w.stride_h))
    loops = (
        Loop("images and groups", "images", 1, w.batch * w.groups),
        Loop("blocks of rows", "blocks", 1, blocks),
        Loop("panels", "filters", panel, np.ceil(filters / panel)),
        Loop("rows", "rows", 1, block),
    )
    images, outputs = Extent(1.0, w.batch * w.groups), w.out_w * size
    written = {"images": images, "blocks": Extent(1.0, blocks), "filters": Extent(1.0, filters), "rows": Extent(outputs, outputs * block)}
    kept = {"rows": Extent(w.stride_h * each, split, shared * each, high * each)}
    read = Extent(block * w.stride_h * row, w.height * row, shared * row)
    operands = (
        Operand("input", {"images": images, "blocks": read}, "blocks of rows"),
        Operand("packed", kept, "blocks of rows", written=True),
        Operand("packed", kept, "rows"),
        Operand("filters", {"filters": Extent(weights, weights * filters)}, "rows"),
        Operand("output", written, "rows", written=True),
    )
    return LoopNest(loops, operands, {"images": w.batch * w.groups, "blocks": blocks, "rows": block, "filters": filters}, block.size)


def passed(w: Conv, rows: Rows, of: Terms, machine: Machine, request: Request) -> Pass:
    """Costs of schedules from their in-core terms, on one core. Prefetchers follow whole rows of outputs: no write-allocate stalls. Where
    split rows come from beyond the private caches, nothing hides the first RUN_LINES lines of each."""
    nest = described(w, rows)
    moved = traffic_of(nest, nest.misses(machine.levels, request.state, sum(of.values())))
    split = nest.names.index("packed", 2)  # as the kernels read them
    beyond = [getattr(place, "shared", True) for place in suppliers(machine).values()]
    first = min(1.0, RUN_LINES * machine.line_bytes / (SplitRows.of(w, 1).pitch * w.element_bytes))
    exposed = first * transfer_cycles(machine, moved[:, 2 * split : 2 * split + 2])[beyond].sum(axis=0)
    return Pass(machine, of, nest.names, moved, exposed=exposed)


# The interface of an algorithm


def refuses(problem: Conv, machine: Machine, layout: Layout) -> Reason | None:
    if reason := requires_nchw(layout) or type_refusal(problem.dtype, phases_kernels()):
        return reason
    if (channels := problem.group_channels) > MAX_CHANNELS:
        return Reason("shape", f"it takes groups of up to {MAX_CHANNELS} channels; these have {channels}")
    return None


def _nearest(problem: Conv, kernel: Kernel, schedule: Schedule, layout: Layout) -> Sizes:
    return problem.group_channels, max(1, min(schedule.k2, problem.out_h))


def _schedules(problem: Conv, kernel: Kernel, request: Request) -> list[Sizes]:
    """Rows of outputs per block: powers of two, and all; one, if there are input rows between those of two rows of outputs, which larger
    blocks would copy for no tap."""
    if problem.stride_h > problem.rows.extent:
        return [(problem.group_channels, 1)]
    blocks = {min(2**power, problem.out_h) for power in range(problem.out_h.bit_length() + 1)}
    return [(problem.group_channels, rows) for rows in sorted(blocks)]


_LISTED = ListedAlgorithm(NAME, phases_kernels, _schedules, _nearest, terms, passed, pack="tiles", fewest=_fewest)
least_cycles, candidates, cost = _LISTED.least_cycles, _LISTED.candidates, _LISTED.cost


def workspace_bytes(problem: Conv, schedule: Schedule, layout: Layout) -> int:
    """The split rows of a block, and the offset of each tap."""
    taps = problem.products
    return SplitRows.of(problem, min(schedule.k2, problem.out_h)).size_bytes + taps * OFFSET_BYTES + PANEL_ALIGN


def largest_part(problem: Conv, schedule: Schedule, threads: int) -> Part:
    """Threads divide blocks of rows, smaller ones if that is more even (native/algorithms/polyphase.c)."""
    images, fewest = problem.batch * problem.groups, ceil_div(problem.out_h, schedule.k2)
    blocks = min(problem.out_h, fewest * parts_of_each(images * fewest, threads))
    rows = ceil_div(problem.out_h, blocks)
    part = rows_of(problem, ceil_div(images * blocks, threads), rows, problem.group_filters)
    return Part(part, msgspec.structs.replace(schedule, k2=rows))


def describe(plan: Plan) -> Description:
    w, schedule, kernel = unpacked_plan(plan)
    of = SplitRows.of(w, schedule.k2)
    taps = f"{w.group_channels}x{w.kernel_h}x{w.kernel_w} taps"
    inner = f"{kernel.name} on a row of outputs x {kernel.filters} filters, {taps} read from the split rows"
    summary = f"input rows split into {of.phases} phases; blocks of {of.rows} input rows for {schedule.k2} rows of outputs"
    return nest_text.describe(plan, summary, nests(plan).loops[0], inner)


def nests(plan: Plan) -> Nests:
    w, schedule, kernel = unpacked_plan(plan)
    return Nests((described(w, Rows.alone(kernel, schedule)),))
