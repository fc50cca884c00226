# SPDX-License-Identifier: Apache-2.0
"""Convolutions of few channels a group on tensor cores: a block brings the pixels that a rectangle of windows touches to shared memory
once, of several groups; a warp multiplies 32 windows by 8 or 16 filters of a group, with nothing of another group among them. Of one
group with few channels, as in a network's first layer, a warp has 32 filters, whose sums leave from registers.

Worked number: conv:g32mb8ic128ih56oc128kh3ph1:f16 has blocks of 8 groups and 8 x 8 windows, which touch 10 x 10 pixels of 64
bytes: 1,568 rectangles, whose warps take a group in 5 steps of 16.
"""

import math
from functools import lru_cache
from typing import NamedTuple

from pysim.algorithms.convolution import Rows
from pysim.algorithms.gpu.direct import ByThreads
from pysim.cachemodel.gpu.launches import Variant, round_up
from pysim.cachemodel.gpu.mainloop import LINE_BYTES
from pysim.cachemodel.gpu.windows import SECTOR_BYTES
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.record.cost import Reason
from pysim.record.plan import Layout
from pysim.registry.cuda import WARP, Attributes, cuda_limits

UNIT, STEP_UNITS, CHUNK, SUM_PAD = 8, 4, 32, 4  # of instructions and of a row of sums (native/cuda/conv/grouped/tiles.h)
ACROSS = 32  # filters of a warp, `single`
THREADS = 256  # of a block
SINGLE_BLOCKS = 3  # of an SM
REGISTERS = {False: 64, True: 80}  # of a thread (__launch_bounds__ of kernel.cuh), single or not
# Instructions, counted in the source: of a unit or vector that comes, of each element of a unit that is gathered, or a piece of a row, of
# each further pixel of a piece, of a step beside its loads and products, of a group's turn, of what is stored at once, and of a warp beside
# these; cycles from a step of a warp to its next
COPY, ELEMENT, PIXEL, STEP, TURN, STORE, START, STEP_CYCLES = 20.0, 8.0, 5.0, 4.0, 40.0, 45.0, 150.0, 40.0
OUTPUT_SINGLE = 5.3  # of an output that leaves from registers, beside what is stored at once under NCHW
GATHER_LINES = 4.0  # wavefronts of a warp's load of elements or pieces, whose lanes lie in some rows or channels


class Tiling(NamedTuple):
    """How blocks cut a convolution, as native/cuda/conv/grouped/tiles.h does: taps of a unit; units of 8 bytes of a tap, or of so many, and
    steps of all taps; groups of a block, filters of each, and filters that lie in shared memory; windows, `high` x `wide`, and the pixels
    that they touch, `rows` x `columns`; bytes of shared memory; rectangles, parts of groups and filters, and blocks of a part."""

    fold: int
    units: int
    steps: int
    groups: int
    filters: int
    slots: int
    high: int
    wide: int
    rows: int
    columns: int
    shared: int
    tiles: int
    parts: int
    workers: int


def spread(size: int, four: bool) -> int:
    """Bytes from a pixel or filter to the next, so that units of neighbours lie on different banks."""
    return (size + 31) // 64 * 64 + 32 if four else (size + 15) // 32 * 32 + 16


def even(most: int, of: int) -> list[int]:
    """Sizes of parts of `of` that are equal but for the last, the largest first."""
    return [size for size in range(min(most, of), 0, -1) if -(-of // -(-of // size)) == size]


@lru_cache(maxsize=4096)
def tiling_of(w: Conv, sms: int, single: bool = False, layout: Layout = "nhwc") -> Tiling | None:
    """The tiling of a convolution on so many multiprocessors, of one group a block or of several, if shared memory holds any."""
    channels, all_filters = w.group_channels, w.group_filters
    of_unit, limits, kind = UNIT // w.element_bytes, cuda_limits(), "GROUPED_SINGLE_" if single else "GROUPED_"
    most, held = limits["GROUPED_SHARED"], limits["GROUPED_HELD"]
    most_windows, most_filters = limits[f"{kind}WINDOWS"], limits[f"{kind}FILTERS"]
    across = -(-w.kernel_w // min(max(1, of_unit // channels), w.kernel_w)) if single else w.kernel_w
    fold = -(-w.kernel_w // across)
    taps, units = w.kernel_h * across, -(-channels * fold // of_unit)
    if taps * units > most // UNIT:
        return None
    steps = -(-taps * units // STEP_UNITS)
    filter_pitch = spread(steps * STEP_UNITS * UNIT, True)
    if single:
        room = most // 2 // filter_pitch // ACROSS * ACROSS
        slots = round_up(-(-all_filters // -(-all_filters // max(ACROSS, min(most_filters, room)))), ACROSS)
        groups, filters = 1, min(all_filters, slots)
    else:
        filters = min(all_filters, most_filters)
        groups = min(w.groups, max(1, most_filters // max(units * of_unit, all_filters)))
        slots = groups * filters
    parts = -(-w.groups // groups) if groups > 1 else w.groups * -(-all_filters // filters)
    pitch = UNIT if single and units == 1 else spread(groups * units * UNIT, units >= STEP_UNITS and w.stride_w % 2 == 1)
    kept = round_up(steps * STEP_UNITS * 4, 16) + round_up(slots * filter_pitch, 16)
    fours = 4 if single and layout == "nchw" and w.out_w % 4 == 0 else 1
    run = SECTOR_BYTES // w.element_bytes if single and layout == "nchw" else 1  # windows of a row that fill a sector
    found: list[tuple[int, Tiling]] = []
    for wide in even(most_windows, w.out_w):
        if wide % fours:
            continue
        columns = (wide - 1) * w.stride_w + (across - 1) * fold * w.dilation_w + 1
        for high in even(most_windows // wide, w.out_h):
            rows = (high - 1) * w.stride_h + (w.kernel_h - 1) * w.dilation_h + 1
            windows = round_up(high * wide, CHUNK)
            shared = (
                kept
                + (2 if single else 1) * round_up(rows * columns * pitch, 16)
                + (0 if single else windows * (most_filters + SUM_PAD) * 4)
            )
            if shared <= most:
                tiles = w.batch * -(-w.out_h // high) * -(-w.out_w // wide)
                workers = min(tiles, max(1, sms * min(SINGLE_BLOCKS, held // shared) // parts)) if single else tiles
                tiling = Tiling(
                    fold, units, steps, groups, filters, slots, high, wide, rows, columns, shared, tiles, parts, workers
                )  # fmt: skip
                touched = rows * ((wide - 1) * w.stride_w + (w.kernel_w - 1) * w.dilation_w + 1)
                found.append((max(tiles * parts, sms) * (touched + max(windows, high * round_up(wide, run))), tiling))
    return min(found, key=lambda one: one[0])[1] if found else None


def piece_of(w: Conv, layout: Layout) -> int:
    """Columns that come at once of a channel, of an aligned input."""
    return 1 if layout == "nhwc" else next(n for n in (4, 2, 1) if w.width % n == 0)


class Grouped(ByThreads):
    """A convolution of few channels a group by tiles of pixels in shared memory."""

    @property
    def single(self) -> bool:
        """Whether a block has one group, whose sums leave from registers."""
        return self.row.variant == "single"

    def tiling(self, sms: int) -> Tiling | None:
        return tiling_of(self.w, sms, self.single, self.layout)

    def refusal(self) -> Reason | None:
        most = cuda_limits()["GROUPED_TILE_CHANNELS"]
        if self.w.group_filters == 1 or self.w.group_channels > most:
            return Reason("shape", f"it takes up to {most} channels and several filters a group")
        if self.single and self.w.group_channels > (few := cuda_limits()["GROUPED_SINGLE_CHANNELS"]):
            return Reason("shape", f"it takes up to {few} channels a group")
        if self.tiling(1) is None:
            return Reason("size", "it takes what of a group's pixels and filters lies in 96 KiB of shared memory")
        return None

    def multiplied(self, t: Tiling) -> tuple[float, float, float]:
        """Of a rectangle: turns of warps, and of a step of one its instructions and wavefronts."""
        across = ACROSS // 8 if self.single else 2 if self.w.group_filters > 8 else 1  # instructions' tiles of filters
        turns = t.groups * -(-t.filters // (8 * across)) * -(-t.high * t.wide // CHUNK)
        loads, rounds = 4 + across, 2 if self.size == 4 else 0
        masks = 8 if self.w.kernel_w % t.fold else 0
        return float(turns), 2 * loads + 2 * across + rounds * loads + masks + STEP, 2.0 * loads + 1

    def stored(self, t: Tiling) -> tuple[float, float]:
        """Of a rectangle: instructions and wavefronts of its outputs' way to memory."""
        w, size, together = self.w, self.size, self.windows.together
        outputs, count = t.high * t.wide, t.groups * t.filters
        if self.single:
            lying = w.filters * size % 16 == 0 if together else w.out_w % 4 == 0
            apart = (0 if lying else ELEMENT) if together else STORE / (4 if lying else 1)
            return outputs * count * (OUTPUT_SINGLE + apart), 0.0
        vectors = 16 // size if together else 4 if t.wide % 4 == w.out_w % 4 == 0 else 1
        apart = together and (t.groups * w.group_filters % vectors or w.filters % vectors)  # stored one by one
        instructions = outputs * count / vectors * (STORE + (vectors * ELEMENT if apart else 0))
        return instructions, outputs * count * 4 / LINE_BYTES * (3 if together else 2)

    def variant(self, gpu: Gpu, known: dict[str, Attributes], prologue: bool = False) -> Variant:
        w, size, windows, t = self.w, self.size, self.windows, self.tiling(int(gpu.sms.value))
        assert t is not None
        channels, of_unit = w.group_channels, UNIT // size
        pixels, warps = t.rows * t.columns, THREADS / WARP
        whole = windows.together and channels % of_unit == 0
        gathered = COPY + of_unit * ELEMENT
        units, pairs = t.slots * t.steps * STEP_UNITS, windows.k * size % 16 == 0  # of filters; whether two come at once
        filters = units * (COPY / (2 if pairs else 1) if whole else gathered)
        piece, places = 1 if t.fold > 1 else piece_of(w, self.layout), t.groups * t.units
        pieces = t.rows * ((t.columns + 2 * piece - 2) // piece) * places
        vector = 2 if w.channels * size % 16 == 0 and places % 2 == 0 else 1  # units
        staged = pixels * places * COPY / vector if whole else pieces * (gathered + (piece - 1) * PIXEL)
        (turns, step, step_wavefronts), (leaving, leaving_wavefronts) = self.multiplied(t), self.stored(t)
        rounds = t.tiles / t.workers  # rectangles of a block, one after another
        instructions = filters / WARP + rounds * ((staged + leaving) / WARP + turns * (t.steps * step + TURN) + warps * START)
        wavefronts = units * UNIT / LINE_BYTES * (1 if whole else of_unit)
        wavefronts += rounds * (turns * t.steps * step_wavefronts + leaving_wavefronts)
        wavefronts += rounds * (pixels * places * UNIT / LINE_BYTES + (0 if whole else pieces * of_unit * GATHER_LINES / WARP))
        reach = gpu.l2_latency_cycles.value + gpu.memory_latency_cycles.value
        at_once = 0 if whole else -(-pieces // (THREADS * (2 if piece == 4 else 4)))
        waits = reach * 2 + math.ceil(rounds) * (reach * (1 + at_once) + math.ceil(turns / warps) * t.steps * STEP_CYCLES)
        if not whole:  # a thread waits for each unit of filters that it gathers; other blocks have asked for them, too
            waits += -(-units // THREADS) * gpu.l2_latency_cycles.value
        blocks = t.workers * t.parts
        asked_bytes = float(t.tiles * t.parts * pixels * t.groups * channels * size + blocks * units * UNIT)
        each = (blocks * warps, instructions / warps, wavefronts / warps, waits)
        found = self.of_threads(gpu, known, each, asked_bytes, "l2_latency_cycles", "memory_latency_cycles")
        return found if found.known else found._replace(attributes=Attributes(THREADS, REGISTERS[self.single], t.shared))


ALGORITHM = Rows("grouped", Grouped, "few channels a group on tensor cores, a tile of pixels in shared memory")
