# SPDX-License-Identifier: Apache-2.0
"""Convolutions of few channels a group, a thread STRIP rows of outputs of one filter, or (grouped) of four; rows of the input that they
share are read once. Where taps are dilated, a thread's outputs are so many rows apart that they share those; where outputs share few, each
has a thread.

Worked number: conv:g32mb32ic32ih112oc32kh3ph1 has 32 x 32 images of 112 x 112; of 4 columns x 4 rows a thread, 25,088 warps.
"""

import math
from typing import NamedTuple

import msgspec

from pysim.algorithms.convolution import Rows
from pysim.algorithms.gpu.direct import BLOCK, ByThreads
from pysim.cachemodel.gpu.launches import Variant
from pysim.cachemodel.gpu.mainloop import LINE_BYTES
from pysim.cachemodel.gpu.occupancy import occupancy
from pysim.cachemodel.gpu.windows import SECTOR_BYTES, distinct
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.record.cost import Reason
from pysim.record.plan import Layout
from pysim.registry.cuda import WARP, Attributes, ConvKernel, cuda_limits

STRIP, FILTERS = 4, 4  # rows of outputs of a thread, filters of a grouped one (native/cuda/conv/depthwise/kernel.cuh)
KEPT = {1: (3, 5, 7), FILTERS: (3,)}  # edges of kernels that a thread of so many filters keeps in registers
ALONE = (2, 3, 4, 5, 7)  # those of which one output's taps are
# A load and its address and edge; a thread's place, weights and stores, of a strip and of one output: what Nsight Compute counted beside
# multiply-adds, fitted since; wavefronts of L1 that a line costs whose part a load takes (benchmarks/data/depthwise-h200.txt)
LOAD_INSTRUCTIONS, PLACE_INSTRUCTIONS, ALONE_INSTRUCTIONS, LINE_BEGUN = 10.0, 134.0, 90.0, 0.4
# Cycles from an instruction of a warp to its next, fitted on the files of h200.toml's fit_depthwise (4 where one needs the other: arXiv
# 1804.06826, table 4.1); registers beside sums, weights and a row (of -Xptxas -v)
ISSUE_LATENCY, OTHER_REGISTERS, MOST_REGISTERS, REGISTERS = 3.2, 40, 255, 65536
PAIRED_BLOCKS = {(9, 6): 3, (9, 9): 3, (49, 13): 1}  # by taps and elements of a row: __launch_bounds__ of paired_kernel, else 2
HALF_INSTRUCTIONS = 5.0  # of each of two elements that come as a word (fitted: benchmarks/data/layers-h200-f16.jsonl)
# Where rows pass through registers: of a row, which taps meet it; and lines that a load of weights takes at once, k apart in lanes along
# filters (fitted: benchmarks/data/depthwise-h200.txt)
ROW_INSTRUCTIONS, WEIGHT_LINES = 200.0, 8.0
PART_WRITTEN = 3.0  # sectors of L2's traffic that one takes of which a part is written (fitted on ResNeXt-50's first layer, NHWC)


def filters_of(row: ConvKernel) -> int:
    """Filters of a thread."""
    return FILTERS if row.variant == "grouped" else 1


class Thread(NamedTuple):
    """Filters, rows and columns of outputs of a thread, rows `apart` from one another, of which `piece` columns are loaded and stored at
    once; whether rows and weights are kept in registers, or pass through them; of two-byte types under NHWC two `channels`."""

    filters: int
    columns: int
    piece: int
    kept: bool
    rows: int = STRIP
    apart: int = 1
    channels: int = 1

    def high(self, w: Conv) -> int:
        """Threads along an image's rows of outputs."""
        return -(-w.out_h // (self.rows * self.apart)) * self.apart


def thread_of(sms: float, filters: int, w: Conv, layout: Layout) -> Thread:
    """As native/cuda/conv/depthwise/rows.cuh chooses for aligned operands."""
    square = w.kernel_h == w.kernel_w and w.stride_h == w.stride_w and w.dilation_h == w.dilation_w == 1
    places = w.batch * w.groups * -(-w.group_filters // filters) * -(-w.out_h // STRIP)

    def fits(columns: int) -> bool:
        return places * -(-w.out_w // columns) // BLOCK.threads >= sms

    if not (square and w.kernel_h in KEPT[filters] and w.stride_h <= 2):
        if filters == 1 and (apart := dilated(w)):
            return apart
        return Thread(filters, 4 if w.dilation_w == 1 and w.stride_w <= 2 and fits(4) else 1, 1, False)
    if layout == "nhwc" and filters == 1 and w.element_bytes == 2 and w.groups == w.filters and w.groups % 2 == 0 and fits(8):
        return Thread(filters, 4, 1, True, channels=2)
    if layout == "nhwc":
        return Thread(filters, 4 if fits(4) else 1, 1, True)
    lies = w.pad_left == w.kernel_w // 2
    wide = next(n for n in (4, 2, 1) if n == 1 or (lies and w.width % n == w.out_w % n == 0 and fits(n)))
    return Thread(filters, wide, wide, True)


def dilated(w: Conv) -> Thread | None:
    """A thread of kernels whose taps are kept, though not beside one another, or of which outputs share few."""
    common = math.gcd(w.stride_h, w.dilation_h)
    apart, steps = w.dilation_h // common, w.stride_h // common
    if w.kernel_h != w.kernel_w:
        return None
    if 2 * steps > w.kernel_h or apart >= w.out_h:
        return Thread(1, 1, 1, True, 1) if w.kernel_h in ALONE else None
    far = steps == 1 and max(w.dilation_h, w.dilation_w) > 1
    return Thread(1, 1, 1, True, STRIP, apart) if far and w.kernel_h in KEPT[1] else None


class Depthwise(ByThreads):
    """A convolution of few channels a group by strips of outputs."""

    def refusal(self) -> Reason | None:
        channels, most = self.w.group_channels, cuda_limits()["GROUPED_CHANNELS"]
        if filters_of(self.row) == 1:
            return Reason("shape", "it takes one channel a group") if channels > 1 else None
        if channels > most or self.w.group_filters == 1:
            return Reason("shape", f"it takes up to {most} channels and several filters a group")
        return None

    def variant(self, gpu: Gpu, known: dict[str, Attributes], prologue: bool = False) -> Variant:
        w, taps, size, windows, channels = self.w, self.w.taps, self.size, self.windows, self.w.group_channels
        of = thread_of(gpu.sms.value, filters_of(self.row), w, self.layout)
        line = (of.columns - 1) * w.stride_w + w.kernel_w
        single = line - (line - w.kernel_w // 2) // of.piece * (of.piece - 1)  # loads of a row
        rows_read = distinct(of.rows, w.kernel_h, w.stride_h * of.apart, w.dilation_h)
        loads, weights = rows_read * single * channels, of.filters * of.channels * taps * channels * (1 if of.kept else of.rows)
        across = -(-w.out_w // of.columns)
        warps = w.batch * w.groups * -(-w.group_filters // of.filters) * of.high(w) * across / WARP / of.channels
        # lanes of a warp lie in so many rows, each of so many bytes; under NHWC those of neighbouring groups lie their channels apart
        of_groups = channels / -(-w.group_filters // of.filters) if of.filters > 1 else of.channels
        rows, line_bytes = (
            (1, WARP * size * max(1.0, of_groups))
            if windows.together
            else (max(1.0, WARP / across), min(WARP, across) * of.columns * w.stride_w * size)
        )
        alike = max(1.0, WARP / (across * of.high(w))) if of.kept and channels == 1 else rows  # filters of a warp's lanes
        apart = min(WEIGHT_LINES, taps * channels * size * WARP / LINE_BYTES) if windows.together else alike
        begun = 1.0 if windows.together or not of.kept or channels > 1 else LINE_BEGUN
        wavefronts = loads * min(WARP, rows * (line_bytes / LINE_BYTES + begun)) + weights * apart
        halo = rows_read / (of.rows * min(w.stride_h, w.kernel_h))
        asked = windows.bytes * w.filters / w.channels / of.filters * channels * max(1.0, halo)
        products = of.rows * of.columns * taps * of.filters * of.channels * channels
        place = PLACE_INSTRUCTIONS if of.rows > 1 else ALONE_INSTRUCTIONS
        instructions = place + loads * LOAD_INSTRUCTIONS + products + (0 if of.kept and channels == 1 else weights)
        if of.channels > 1:
            instructions += (loads * of.channels + weights) * HALF_INSTRUCTIONS
        if of.filters > 1 and windows.together:  # a lane's filters lie side by side, and each is stored by itself
            wavefronts += of.rows * of.columns * of.filters * WARP * of.filters * size / LINE_BYTES
        if not of.kept:
            instructions += ((STRIP - 1) * w.stride_h + (w.kernel_h - 1) * w.dilation_h + 1) * channels * ROW_INSTRUCTIONS
        waits = gpu.l1_latency_cycles.value * channels * (2 if of.kept else rows_read * w.kernel_w / 4) + ISSUE_LATENCY * instructions
        block = msgspec.structs.replace(BLOCK, registers=registers(of, taps, line))
        if of.filters > 1 and windows.together:
            # a thread goes through its pixels channel by channel, of the same sectors, which L1 keeps as far as it holds all threads'
            held = occupancy(gpu, block) * block.threads / WARP * rows_read * line * line_bytes
            missed = min(1.0, max(0.0, 2 * held / gpu.l1_bytes.value - 1))
            asked *= 1 + missed * (min(channels, SECTOR_BYTES / size) - 1)
            # each of its filters is stored by itself, a part of each sector
            asked += w.output_elements * size * (of.filters * PART_WRITTEN - 1)
        found = self.of_threads(gpu, known, (warps, instructions, wavefronts, waits), asked, "l1_")
        return found if found.known else found._replace(attributes=block)


def registers(of: Thread, taps: int, line: int) -> int:
    """Registers of a thread: sums, the row that passes and weights that are kept, of which two channels share a word, and the rest."""
    blocks = PAIRED_BLOCKS.get((taps, line), 2) if of.channels > 1 else 1  # that the kernel is bound to have on an SM
    most = min(MOST_REGISTERS, REGISTERS // (BLOCK.threads * blocks) // 8 * 8)
    return min(most, of.filters * (of.rows * of.columns * of.channels + taps * of.kept) + line + OTHER_REGISTERS)


ALGORITHM = Rows("depthwise", Depthwise, "few channels a group, a thread a strip of outputs")
