# SPDX-License-Identifier: Apache-2.0
"""Convolutions of few channels a group on tensor cores: a block brings the pixels that a rectangle of windows touches to shared memory
once, of several groups; a warp multiplies 32 windows by 8 or 16 filters of a group, with nothing of another group among them.

Worked number: conv:g32mb8ic128ih56oc128kh3ph1:f16 has blocks of 8 groups and 8 x 8 windows, which touch 10 x 10 pixels of 64
bytes: 1,568 blocks, whose warps take a group in 3 steps of 16.
"""

from functools import lru_cache
from typing import NamedTuple

from pysim.algorithms.convolution import Rows
from pysim.algorithms.gpu.direct import ByThreads
from pysim.cachemodel.gpu.launches import Variant, round_up
from pysim.cachemodel.gpu.mainloop import LINE_BYTES
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.record.cost import Reason
from pysim.record.plan import Layout
from pysim.registry.cuda import WARP, Attributes, cuda_limits

UNIT, STEP_UNITS, CHUNK, SUM_PAD = 8, 4, 32, 4  # of instructions and of a row of sums (native/cuda/conv/grouped/tiles.h)
THREADS, REGISTERS = 256, 64  # of a block, of a thread (__launch_bounds__ of native/cuda/conv/grouped/kernel.cuh)
# Instructions, counted in the source: of a unit or vector that comes, of each element of a unit that is gathered, or a piece of a row, of
# each further pixel of a piece, of a step beside its loads and products, of a group's turn, of what is stored at once, and of a warp beside
# these; cycles from a step of a warp to its next
COPY, ELEMENT, PIXEL, STEP, TURN, STORE, START, STEP_CYCLES = 20.0, 8.0, 5.0, 4.0, 40.0, 45.0, 150.0, 40.0
GATHER_LINES = 4.0  # wavefronts of a warp's load of elements or pieces, whose lanes lie in some rows or channels


class Tiling(NamedTuple):
    """How blocks cut a convolution, as native/cuda/conv/grouped/tiles.h does: units of 8 bytes of a tap and steps of all taps; groups
    of a block, and filters of each; windows, `high` x `wide`, and the pixels that they touch, `rows` x `columns`; bytes of shared memory;
    blocks."""

    units: int
    steps: int
    groups: int
    filters: int
    high: int
    wide: int
    rows: int
    columns: int
    shared: int
    blocks: int


def spread(size: int, four: bool) -> int:
    """Bytes from a pixel or filter to the next, so that units of neighbours lie on different banks."""
    return (size + 31) // 64 * 64 + 32 if four else (size + 15) // 32 * 32 + 16


def even(most: int, of: int) -> list[int]:
    """Sizes of parts of `of` that are equal but for the last, the largest first."""
    return [size for size in range(min(most, of), 0, -1) if -(-of // -(-of // size)) == size]


@lru_cache(maxsize=4096)
def tiling_of(w: Conv, sms: int) -> Tiling | None:
    """The tiling of a convolution on so many multiprocessors, if shared memory holds any."""
    channels, filters = w.group_channels, w.group_filters
    of_unit, limits = UNIT // w.element_bytes, cuda_limits()
    most, most_windows, most_filters = (limits[f"GROUPED_{what}"] for what in ("SHARED", "WINDOWS", "FILTERS"))
    taps, units = w.taps, -(-channels // of_unit)
    if taps * units > most // UNIT:
        return None
    steps, across = -(-taps * units // STEP_UNITS), min(filters, most_filters)
    groups = min(w.groups, max(1, most_filters // max(units * of_unit, filters)))
    parts = -(-w.groups // groups) if groups > 1 else w.groups * -(-filters // across)
    pitch = spread(groups * units * UNIT, units >= STEP_UNITS and w.stride_w % 2 == 1)
    kept = round_up(steps * STEP_UNITS * 4, 16) + round_up(groups * across * spread(steps * STEP_UNITS * UNIT, True), 16)
    found: list[tuple[int, Tiling]] = []
    for wide in even(most_windows, w.out_w):
        columns = (wide - 1) * w.stride_w + (w.kernel_w - 1) * w.dilation_w + 1
        for high in even(most_windows // wide, w.out_h):
            rows = (high - 1) * w.stride_h + (w.kernel_h - 1) * w.dilation_h + 1
            windows = round_up(high * wide, CHUNK)
            shared = kept + rows * columns * pitch + windows * (most_filters + SUM_PAD) * 4
            if shared <= most:
                blocks = w.batch * -(-w.out_h // high) * -(-w.out_w // wide) * parts
                tiling = Tiling(units, steps, groups, across, high, wide, rows, columns, shared, blocks)
                found.append((max(blocks, sms) * (rows * columns + windows), tiling))
    return min(found, key=lambda one: one[0])[1] if found else None


def piece_of(w: Conv, layout: Layout) -> int:
    """Columns that come at once of a channel, of an aligned input."""
    return 1 if layout == "nhwc" else next(n for n in (4, 2, 1) if w.width % n == 0)


class Grouped(ByThreads):
    """A convolution of few channels a group by tiles of pixels in shared memory."""

    def refusal(self) -> Reason | None:
        most = cuda_limits()["GROUPED_TILE_CHANNELS"]
        if self.w.group_filters == 1 or self.w.group_channels > most:
            return Reason("shape", f"it takes up to {most} channels and several filters a group")
        if tiling_of(self.w, 1) is None:
            return Reason("size", "it takes what of a group's pixels and filters lies in 96 KiB of shared memory")
        return None

    def variant(self, gpu: Gpu, known: dict[str, Attributes], prologue: bool = False) -> Variant:
        w, size, windows, t = self.w, self.size, self.windows, tiling_of(self.w, int(gpu.sms.value))
        assert t is not None
        channels, count, of_unit = w.group_channels, t.groups * t.filters, UNIT // size
        pixels, outputs, warps = t.rows * t.columns, t.high * t.wide, THREADS / WARP
        whole = windows.together and channels % of_unit == 0
        gathered = COPY + of_unit * ELEMENT
        units, pairs = count * t.steps * STEP_UNITS, windows.k * size % 16 == 0  # of filters; whether two come at once
        filters = units * (COPY / (2 if pairs else 1) if whole else gathered)
        piece, places = piece_of(w, self.layout), t.groups * t.units
        pieces = t.rows * ((t.columns + 2 * piece - 2) // piece) * places
        vector = 2 if w.channels * size % 16 == 0 and places % 2 == 0 else 1  # units
        staged = pixels * places * COPY / vector if whole else pieces * (gathered + (piece - 1) * PIXEL)
        across = 2 if w.group_filters > 8 else 1  # instructions' tiles of filters
        turns = t.groups * -(-t.filters // (8 * across)) * -(-outputs // CHUNK)
        loads, rounds = 4 + across, 2 if size == 4 else 0
        step = 2 * loads + 2 * across + rounds * loads + STEP
        vectors = 16 // size if windows.together else 4 if t.wide % 4 == w.out_w % 4 == 0 else 1
        apart = windows.together and (t.groups * (w.group_filters) % vectors or w.filters % vectors)  # stored one by one
        stores = outputs * count / vectors * (STORE + (vectors * ELEMENT if apart else 0))
        instructions = (filters + staged + stores) / WARP + turns * (t.steps * step + TURN) + warps * START
        wavefronts = float(turns * t.steps * (2 * loads + 1))
        wavefronts += units * UNIT / LINE_BYTES * (1 if whole else of_unit)
        wavefronts += pixels * places * UNIT / LINE_BYTES + (0 if whole else pieces * of_unit * GATHER_LINES / WARP)
        wavefronts += outputs * count * 4 / LINE_BYTES * (3 if windows.together else 2)
        reach = gpu.l2_latency_cycles.value + gpu.memory_latency_cycles.value
        at_once = 1 if whole else -(-pieces // (THREADS * (2 if piece == 4 else 4)))
        shares = int(warps) // -(-outputs // CHUNK)
        waits = reach * (2 + at_once) + -(-t.groups * -(-t.filters // (8 * across)) // shares) * t.steps * STEP_CYCLES
        asked_bytes = t.blocks * (pixels * t.groups * channels + units * of_unit) * float(size)
        each = (t.blocks * warps, instructions / warps, wavefronts / warps, waits)
        found = self.of_threads(gpu, known, each, asked_bytes, "l2_latency_cycles", "memory_latency_cycles")
        return found if found.known else found._replace(attributes=Attributes(THREADS, REGISTERS, t.shared))


ALGORITHM = Rows("grouped", Grouped, "few channels a group on tensor cores, a tile of pixels in shared memory")
