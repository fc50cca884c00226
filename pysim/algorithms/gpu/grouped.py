# SPDX-License-Identifier: Apache-2.0
"""Convolutions of few channels a group on tensor cores. A block loads the pixels that a rectangle of windows touches (of volumes, in all
slices of the kernel) into shared memory once, for several groups; a warp multiplies 32 windows by 8 or 16 filters of one group. Rows of
variant `single` are for one group with few channels, as in a network's first layer: a warp has 32 filters and stores their accumulators
from registers.

Worked number: conv:g32mb8ic128ih56oc128kh3ph1:f16 has blocks of 8 groups and 8 x 8 windows, which touch 10 x 10 pixels of 64
bytes: 1,568 rectangles, whose warps take a group in 5 k-iterations of 16.
"""

import math
from functools import lru_cache
from typing import NamedTuple

from pysim.algorithms.convolution import Rows, order_of
from pysim.algorithms.gpu.direct import ByThreads
from pysim.cachemodel.gpu.launches import Variant, round_up
from pysim.cachemodel.gpu.mainloop import LINE_BYTES
from pysim.cachemodel.gpu.windows import SECTOR_BYTES
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.record.cost import Reason
from pysim.record.plan import Layout
from pysim.registry.cuda import WARP, Attributes, cuda_limits

# Bytes of a unit of channels, units of a k-iteration, windows of a warp, padding of a row of results (native/cuda/conv/grouped/tiles.h)
UNIT, ITERATION_UNITS, WARP_WINDOWS, RESULT_PADDING = 8, 4, 32, 4
SINGLE_FILTERS = 32  # of a warp of variant `single`
THREADS = 256  # of a block
SINGLE_BLOCKS = 3  # of an SM
REGISTERS = {False: 64, True: 80}  # of a thread (__launch_bounds__ of kernel.cuh), single or not
# Instructions, counted in the source: to copy a unit or vector, for each gathered element of a unit or piece of a row, each further pixel
# of a piece, a k-iteration beside its loads and products, a group of a warp, a store, and the start of a warp
COPY, ELEMENT, PIXEL, ITERATION, GROUP, STORE, START = 20.0, 8.0, 5.0, 4.0, 40.0, 45.0, 150.0
ITERATION_CYCLES = 40.0  # between two k-iterations of a warp
OUTPUT_SINGLE = 5.3  # instructions of an output stored from registers, beside STORE under NCHW
GATHER_LINES = 4.0  # wavefronts of a warp's load of elements or pieces, whose lanes are in different rows or channels


class Tiling(NamedTuple):
    """How blocks cut a convolution, as native/cuda/conv/grouped/tiles.h does.

    `fold`: taps of a unit; `units`: of 8 bytes for `fold` taps; `iterations`: k-iterations of all taps; `groups` of a block, `filters` of
    each, `slots`: filters in shared memory; windows, `high` x `wide`, and the pixels that they touch, `rows` x `columns`; `shared` bytes;
    `tiles`: rectangles; `parts` of groups and filters; `workers`: blocks of a part.
    """

    fold: int
    units: int
    iterations: int
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


def bank_pitch(size: int, four: bool) -> int:
    """Bytes from a pixel or filter to the next that put units of neighbours in different banks."""
    return (size + 31) // 64 * 64 + 32 if four else (size + 15) // 32 * 32 + 16


def even(most: int, of: int) -> list[int]:
    """Sizes up to `most` that divide `of` into equal parts, the last one perhaps smaller; largest first."""
    return [size for size in range(min(most, of), 0, -1) if -(-of // -(-of // size)) == size]


@lru_cache(maxsize=4096)
def tiling_of(w: Conv, sms: int, single: bool = False, layout: Layout = "nhwc") -> Tiling | None:
    """The tiling of a convolution on `sms` SMs, with a `single` group a block or several; None where none fits in shared memory."""
    channels, all_filters = w.group_channels, w.group_filters
    unit_elements, limits, kind = UNIT // w.element_bytes, cuda_limits(), "GROUPED_SINGLE_" if single else "GROUPED_"
    most, held = limits["GROUPED_SHARED"], limits["GROUPED_HELD"]
    most_windows, most_filters = limits[f"{kind}WINDOWS"], limits[f"{kind}FILTERS"]
    across = -(-w.kernel_w // min(max(1, unit_elements // channels), w.kernel_w)) if single else w.kernel_w
    fold = -(-w.kernel_w // across)
    taps, units = w.kernel_d * w.kernel_h * across, -(-channels * fold // unit_elements)
    if taps * units > most // UNIT:
        return None
    iterations = -(-taps * units // ITERATION_UNITS)
    filter_pitch = bank_pitch(iterations * ITERATION_UNITS * UNIT, True)
    if single:
        room = most // 2 // filter_pitch // SINGLE_FILTERS * SINGLE_FILTERS
        slots = round_up(-(-all_filters // -(-all_filters // max(SINGLE_FILTERS, min(most_filters, room)))), SINGLE_FILTERS)
        groups, filters = 1, min(all_filters, slots)
    else:
        filters = min(all_filters, most_filters)
        groups = min(w.groups, max(1, most_filters // max(units * unit_elements, all_filters)))
        slots = groups * filters
    parts = -(-w.groups // groups) if groups > 1 else w.groups * -(-all_filters // filters)
    pitch = UNIT if single and units == 1 else bank_pitch(groups * units * UNIT, units >= ITERATION_UNITS and w.stride_w % 2 == 1)
    kept = round_up(iterations * ITERATION_UNITS * 4, 16) + round_up(slots * filter_pitch, 16)
    fours = 4 if single and layout == "nchw" and w.out_w % 4 == 0 else 1
    run = SECTOR_BYTES // w.element_bytes if single and layout == "nchw" else 1  # windows of a row that fill a sector
    tilings: list[tuple[int, Tiling]] = []
    for wide in even(most_windows, w.out_w):
        if wide % fours:
            continue
        columns = (wide - 1) * w.stride_w + (across - 1) * fold * w.dilation_w + 1
        for high in even(most_windows // wide, w.out_h):
            rows = w.kernel_d * ((high - 1) * w.stride_h + (w.kernel_h - 1) * w.dilation_h + 1)
            windows = round_up(high * wide, WARP_WINDOWS)
            shared = (
                kept
                + (2 if single else 1) * round_up(rows * columns * pitch, 16)
                + (0 if single else windows * (most_filters + RESULT_PADDING) * 4)
            )
            if shared <= most:
                tiles = w.batch * w.out_d * -(-w.out_h // high) * -(-w.out_w // wide)
                workers = min(tiles, max(1, sms * min(SINGLE_BLOCKS, held // shared) // parts)) if single else tiles
                tiling = Tiling(
                    fold, units, iterations, groups, filters, slots, high, wide, rows, columns, shared, tiles, parts, workers
                )  # fmt: skip
                touched = rows * ((wide - 1) * w.stride_w + (w.kernel_w - 1) * w.dilation_w + 1)
                tilings.append((max(tiles * parts, sms) * (touched + max(windows, high * round_up(wide, run))), tiling))
    return min(tilings, key=lambda one: one[0])[1] if tilings else None


def piece_of(w: Conv, layout: Layout) -> int:
    """Columns of a channel that one load reads, of an aligned input."""
    return 1 if layout == "nhwc" else next(n for n in (4, 2, 1) if w.width % n == 0)


class Grouped(ByThreads):
    """A convolution of few channels a group by tiles of pixels in shared memory."""

    @property
    def single(self) -> bool:
        """Whether a block has one group, whose accumulators are stored from registers."""
        return self.row.variant == "single"

    def tiling(self, sms: int) -> Tiling | None:
        return tiling_of(self.w, sms, self.single, self.layout)

    @property
    def order(self) -> str:
        """Of units of 8 bytes, with several columns each in rows for one group of few channels."""
        channels, units = self.w.group_channels, UNIT // self.size
        fold = min(max(1, units // channels), self.w.kernel_w) if self.row.variant == "single" else 1
        return order_of(self.w, "slices", "rows", "columns", "channels") + f" in units of {units}" + f", {fold} columns each" * (fold > 1)

    def refusal(self) -> Reason | None:
        most = cuda_limits()["GROUPED_TILE_CHANNELS"]
        if self.w.group_filters == 1 or self.w.group_channels > most:
            return Reason("shape", f"it takes up to {most} channels and several filters a group")
        if self.single and self.w.group_channels > (few := cuda_limits()["GROUPED_SINGLE_CHANNELS"]):
            return Reason("shape", f"it takes up to {few} channels a group")
        if self.tiling(1) is None:
            return Reason("size", "a tile of its pixels and filters exceeds 96 KiB of shared memory")
        return None

    def multiplied(self, t: Tiling) -> tuple[float, float, float]:
        """Warp tiles of a rectangle; instructions and wavefronts of a k-iteration of one."""
        most = SINGLE_FILTERS // 8 if self.single else 2
        across = most if self.w.group_filters > 16 else min(most, -(-self.w.group_filters // 8))  # filters of a warp / of an instruction
        warp_tiles = t.groups * -(-t.filters // (8 * across)) * -(-t.high * t.wide // WARP_WINDOWS)
        loads, rounds = 4 + across, 2 if self.size == 4 else 0
        masks = 8 if self.w.kernel_w % t.fold else 0
        return float(warp_tiles), 2 * loads + 2 * across + rounds * loads + masks + ITERATION, 2.0 * loads + 1

    def stored(self, t: Tiling) -> tuple[float, float]:
        """Instructions and wavefronts of a rectangle's epilogue."""
        w, size, channels_last = self.w, self.size, self.windows.channels_last
        outputs, count = t.high * t.wide, t.groups * t.filters
        if self.single:
            aligned = w.filters * size % 16 == 0 if channels_last else w.out_w % 4 == 0
            store = (0 if aligned else ELEMENT) if channels_last else STORE / (4 if aligned else 1)
            return outputs * count * (OUTPUT_SINGLE + store), 0.0
        vectors = 16 // size if channels_last else 4 if t.wide % 4 == w.out_w % 4 == 0 else 1
        scalar = channels_last and (t.groups * w.group_filters % vectors or w.filters % vectors)
        instructions = outputs * count / vectors * (STORE + (vectors * ELEMENT if scalar else 0))
        return instructions, outputs * count * 4 / LINE_BYTES * (3 if channels_last else 2)

    def variant(self, gpu: Gpu, known: dict[str, Attributes], prologue: bool = False) -> Variant:
        w, size, windows, t = self.w, self.size, self.windows, self.tiling(int(gpu.sms.value))
        assert t is not None
        channels, unit_elements = w.group_channels, UNIT // size
        pixels, warps = t.rows * t.columns, THREADS / WARP
        vectors = windows.channels_last and channels % unit_elements == 0
        gathered = COPY + unit_elements * ELEMENT
        units, pairs = t.slots * t.iterations * ITERATION_UNITS, windows.k * size % 16 == 0  # of filters; whether one load reads two
        filters = units * (COPY / (2 if pairs else 1) if vectors else gathered)
        piece, pixel_units = 1 if t.fold > 1 else piece_of(w, self.layout), t.groups * t.units
        pieces = t.rows * ((t.columns + 2 * piece - 2) // piece) * pixel_units
        vector = 2 if w.channels * size % 16 == 0 and pixel_units % 2 == 0 else 1  # units
        staged = pixels * pixel_units * COPY / vector if vectors else pieces * (gathered + (piece - 1) * PIXEL)
        (warp_tiles, iteration, iteration_wavefronts), (epilogue, epilogue_wavefronts) = self.multiplied(t), self.stored(t)
        rounds = t.tiles / t.workers  # rectangles of a block
        multiply = warp_tiles * (t.iterations * iteration + GROUP)
        instructions = filters / WARP + rounds * ((staged + epilogue) / WARP + multiply + warps * START)
        wavefronts = units * UNIT / LINE_BYTES * (1 if vectors else unit_elements)
        wavefronts += rounds * (warp_tiles * t.iterations * iteration_wavefronts + epilogue_wavefronts)
        wavefronts += rounds * (pixels * pixel_units * UNIT / LINE_BYTES + (0 if vectors else pieces * unit_elements * GATHER_LINES / WARP))
        latency = gpu.l2_latency_cycles.value + gpu.memory_latency_cycles.value
        loads = 0 if vectors else -(-pieces // (THREADS * (2 if piece == 4 else 4)))
        waits = latency * 2 + math.ceil(rounds) * (latency * (1 + loads) + math.ceil(warp_tiles / warps) * t.iterations * ITERATION_CYCLES)
        if not vectors:  # a thread waits for each unit of filters that it gathers, from L2: other blocks read them, too
            waits += -(-units // THREADS) * gpu.l2_latency_cycles.value
        blocks = t.workers * t.parts
        requested = float(t.tiles * t.parts * pixels * t.groups * channels * size + blocks * units * UNIT)
        of_warps = (blocks * warps, instructions / warps, wavefronts / warps, waits)
        variant = self.of_threads(gpu, known, of_warps, requested, "l2_latency_cycles", "memory_latency_cycles")
        return variant.estimated(Attributes(THREADS, REGISTERS[self.single], t.shared))


ALGORITHM = Rows("grouped", Grouped, "few channels a group on tensor cores, a tile of pixels in shared memory")
