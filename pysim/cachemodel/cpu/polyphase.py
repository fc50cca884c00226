# SPDX-License-Identifier: Apache-2.0
"""What a convolution costs whose input is parted by the phases of its stride and read from there (`native/conv/polyphase.c`).

    cycles as in `cost`, of these terms, for every image and group; P rows of outputs in blocks of k2, F filters a panel

kernel  Each row of outputs of a panel is V = ceil(Q / lanes) vectors in tiles of up to n, evenly. A tile of v vectors lasts, for each of
        its C R S taps, max(v F / fma rate, (v + F) / load rate, fma latency).
store   Rows begin anywhere in a line: a vector crosses into the next in (vector - element) / line of all places, which is one more access.
pack    Vectors of parted rows, those of a block's halo again in the next: a store and pack_cycles, and with a stride a load and a permute
        for each phase. Rows are read whole, so their lines wait for nothing but the rates of `cost`.
call    call_cycles for each row of a panel, less WAITING / fma rate: a core that multiplies more slowly than it takes instructions in has
        so many multiply-adds left to do when it comes to the next row, which depends on nothing of them, and begins it meanwhile. And
        call_cycles for each PARTED columns of a channel of a block, whose masks are made anew.

What crosses between levels follows from the description of the loops (`described`, `loops`).

Worked number: 3 -> 64 channels, 224x224, 7x7 stride 2 on 16 lanes: rows of 112 outputs are 7 vectors, tiles of 3, 2 and 2. With 8 filters
and two multiply-adds a cycle a tap takes 12 + 8 + 8 = 28 cycles for 56 multiply-adds; the loads, (3 + 8 + 2 + 8 + 2 + 8) / 2, hide behind
them.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pysim.cachemodel.cpu.listed import Rows
from pysim.cachemodel.cpu.loops import Extent, Loop, LoopNest, Operand
from pysim.cachemodel.cpu.nest import PANEL_ALIGN, ceil_div
from pysim.machine.cpu import Machine, Unit
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SIZES
from pysim.record.plan import Layout
from pysim.record.schedule import Schedule
from pysim.registry.cpu import Kernel

PARTED = 64  # columns of a phase that are parted at once (native/conv/polyphase.c)
WAITING = 160  # multiply-adds in schedulers and before them: 128 entries and 64 in Zen 4, 97 in Golden Cove (Agner Fog; 151 plans, Zen 4)


class Parted(NamedTuple):
    """The parted rows of a block of a convolution: of each channel rows x phases x pitch elements."""

    rows: int
    phases: int
    pitch: int
    size_bytes: int

    @classmethod
    def of(cls, w: Conv, rows: int) -> "Parted":
        reach, lane = w.dilation_w * (w.kernel_w - 1), PANEL_ALIGN // SIZES[w.dtype]
        high = (rows - 1) * w.stride_h + w.dilation_h * (w.kernel_h - 1) + 1
        phases = min(w.stride_w, reach + 1)
        pitch = ceil_div(ceil_div(w.out_w, lane) * lane + reach // w.stride_w, lane) * lane
        return cls(high, phases, pitch, w.channels // w.groups * high * phases * pitch * SIZES[w.dtype])


def tiles_of(vectors: int, most: int) -> tuple[tuple[int, int], ...]:
    """Tiles of a row, of equal size, give or take one: how many, and the vectors of each."""
    tiles = ceil_div(vectors, most)
    small, more = divmod(vectors, tiles)
    return (more, small + 1), (tiles - more, small)


@lru_cache(maxsize=64)
def _row_cycles(w: Conv, kernel: Kernel, unit: Unit) -> float:
    """Of one row of outputs of a panel of filters."""
    taps = w.channels // w.groups * w.kernel_h * w.kernel_w
    if kernel.lane_windows == 1:  # plain C: what a loop needs besides is in the rate
        return taps * w.out_w * kernel.filters / unit.rate(w.dtype)
    tiles = tiles_of(ceil_div(w.out_w, kernel.lane_windows), kernel.windows // kernel.lane_windows)
    return sum(count * taps * unit.step_cycles(w.dtype, vectors, kernel.filters) for count, vectors in tiles)


def terms(w: Conv, kernel: Kernel, schedule: Schedule, machine: Machine, layout: Layout) -> tuple[float, float, float, float]:
    """kernel, call, store, pack."""
    unit, core, inner = machine.unit_of(kernel.target), machine.core, machine.levels[0]
    repeats, size, parted = w.batch * w.groups, SIZES[w.dtype], Parted.of(w, schedule.k2)
    filters, blocks = w.filters // w.groups, ceil_div(w.out_h, schedule.k2)
    lanes = max(1, unit.vector_bytes // size)
    calls = repeats * w.out_h * ceil_div(filters, kernel.filters)
    runs = repeats * blocks * (w.channels // w.groups) * ceil_div(parted.pitch, PARTED)
    crossing, each = (unit.vector_bytes - size) / inner.line_bytes, 1 / unit.stores_per_cycle.value
    gather = 1 / unit.loads_per_cycle.value + min(w.stride_w, lanes) if w.stride_w > 1 else 0.0
    packed = repeats * blocks * parted.size_bytes / size / lanes
    row = _row_cycles(w, kernel, unit)
    covered = min(WAITING / unit.rate(w.dtype), row, core.call_cycles.value)
    return (
        calls * row,
        (calls + runs) * core.call_cycles.value - calls * covered,
        repeats * filters * w.out_h * ceil_div(w.out_w, lanes) * (each + crossing * min(1.0, each)),
        packed * (each + core.pack_cycles.value + gather),
    )


def described(w: Conv, rows: Rows) -> LoopNest:
    """The loops of native/conv/polyphase.c for kernels with their blocks of rows."""
    size, filters, channels = SIZES[w.dtype], w.filters // w.groups, w.channels // w.groups
    columns = [(kernel.filters, of.k2, *Parted.of(w, of.k2)) for kernel, of in rows]
    panel, block, parted_rows, _, _, parted = np.array(columns, dtype=np.float64).T
    blocks, each = np.ceil(w.out_h / block), parted / parted_rows
    high = w.dilation_h * (w.kernel_h - 1) + 1  # rows that one of outputs reads
    row, weights = channels * w.width * size, channels * w.kernel_h * w.kernel_w * size
    shared = float(max(0, high - w.stride_h))
    loops = (
        Loop("images and groups", "images", 1, w.batch * w.groups),
        Loop("blocks of rows", "blocks", 1, blocks),
        Loop("panels", "filters", panel, np.ceil(filters / panel)),
        Loop("rows", "rows", 1, block),
    )
    images, outputs = Extent(1.0, w.batch * w.groups), w.out_w * size
    written = {"images": images, "blocks": Extent(1.0, blocks), "filters": Extent(1.0, filters), "rows": Extent(outputs, outputs * block)}
    kept = {"rows": Extent(w.stride_h * each, parted, shared * each, high * each)}
    read = Extent(block * w.stride_h * row, w.height * row, shared * row)
    operands = (
        Operand("input", {"images": images, "blocks": read}, "blocks of rows"),
        Operand("packed", kept, "blocks of rows", written=True),
        Operand("packed", kept, "rows"),
        Operand("filters", {"filters": Extent(weights, weights * filters)}, "rows"),
        Operand("output", written, "rows", written=True),
    )
    return LoopNest(loops, operands, {"images": w.batch * w.groups, "blocks": blocks, "rows": block, "filters": filters}, len(rows))
