# SPDX-License-Identifier: Apache-2.0
"""Convolutions of few channels a group. A thread computes STRIP rows of outputs of one filter, or (grouped) of four, and reads the input
rows that they share once. With dilation a thread's output rows are spaced so that they share input rows. Where outputs share little, each
has a thread. Rows of variant `sequence` are for kernels of one row where channels lie last: a thread has 16 bytes of channels and four or
eight columns, or, of f16 with 4 to 8 taps, 8 bytes and 32 columns, whose pixels it reads once each. Those of variant
`toeplitz` multiply such windows by matrices of shifted weights, on tensor cores. Those of variant `volume` pass through slices.

Worked number: conv:g32mb32ic32ih112oc32kh3ph1 has 32 x 32 images of 112 x 112; of 4 columns x 4 rows a thread, 25,088 warps.
"""

import math
from typing import NamedTuple

import msgspec

from pysim.algorithms.convolution import Rows, order_of
from pysim.algorithms.gpu.direct import BLOCK, ByThreads
from pysim.cachemodel.gpu.launches import Variant
from pysim.cachemodel.gpu.mainloop import LINE_BYTES, VECTOR_BYTES
from pysim.cachemodel.gpu.occupancy import occupancy
from pysim.cachemodel.gpu.windows import SECTOR_BYTES, distinct
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.record.cost import Reason
from pysim.record.plan import Layout
from pysim.registry.cuda import WARP, Attributes, ConvKernel, cuda_limits

LIMITS = cuda_limits()
STRIP, FILTERS = LIMITS["DEPTHWISE_ROWS"], LIMITS["DEPTHWISE_FILTERS"]  # rows of outputs of a thread, filters of a grouped one
IN_REGISTERS = {1: (3, 5, 7), FILTERS: (3,)}  # kernel sizes whose weights a thread of that many filters keeps in registers
ONE_OUTPUT = (2, 3, 4, 5, 7)  # kernel sizes for a thread of one output
# Instructions of a load with its address and edge test, of a thread's index, weights and stores with a strip or with one output: what
# Nsight Compute counted beside multiply-adds, fitted since; L1 wavefronts of a partly read line (lab/data/h200/depthwise.txt)
LOAD_INSTRUCTIONS, STRIP_INSTRUCTIONS, ONE_OUTPUT_INSTRUCTIONS, PART_LINE = 10.0, 134.0, 90.0, 0.4
# Cycles between two instructions of a warp, fitted on the files of h200.toml's fit_depthwise (4 where one needs the other: arXiv
# 1804.06826, table 4.1)
ISSUE_LATENCY = 3.2
OTHER_REGISTERS, MAX_REGISTERS, SM_REGISTERS = 40, 255, 65536  # the first: beside accumulators, weights and a row (-Xptxas -v)
# Where a thread has two neighbouring channels (paired_kernel): instructions of a load of two (fitted on ConvNeXt-T in float16)
PAIR_INSTRUCTIONS = 14.0
# Where rows stream through registers: instructions of a row to find its taps; lines that a load of weights touches, k apart in lanes along
# filters (fitted: lab/data/h200/depthwise.txt)
ROW_INSTRUCTIONS, WEIGHT_LINES = 200.0, 8.0
SKIPPED_ROW_INSTRUCTIONS = 40.0  # of a row that an image of one row does not have (by hand, on ten layers of an H200)
PART_SECTOR_COST = 3.0  # L2 sectors that a partly written one costs (fitted on ResNeXt-50's first layer, NHWC)

# Of the variant `sequence` (native/cuda/conv/depthwise/sequence.cuh): instructions of a pixel beside its conversion and products, of a
# loaded weight, of a stored output, of the rest; counted in the source
SEQUENCE_TAPS = LIMITS["SEQUENCE_TAPS"]
SEQUENCE_PIXEL, SEQUENCE_WEIGHT, SEQUENCE_STORE, SEQUENCE_START = 14.0, 12.0, 30.0, 120.0
# Of some taps of f16 (stream.cuh): instructions of a pixel beside its conversion and products, of a stored column, of the rest
STREAM_DTYPE = "f16"
STREAM_PIXEL, STREAM_STORE, STREAM_START, STREAM_REGISTERS = 8.0, 8.0, 120.0, 112
# Of more taps than these two-byte types take so many times as long as counted (3 to 63 taps of 1,536 channels on an H200)
SEQUENCE_FEW, SEQUENCE_NARROW = 4, 1.5
SEQUENCE_REGISTERS = {2: 128, 4: 80}  # by bytes of an element (-Xptxas -v)
# Of four-byte elements with more taps (staged.cuh): instructions of a warp for the weights, to load and to store four columns of all
# channels, for a channel, for a step; counted in the source
STAGED_WEIGHTS, STAGED_LOAD, STAGED_STORE, STAGED_CHANNEL, STAGED_TAPS, STAGED_REGISTERS = 120.0, 26.0, 34.0, 60.0, 32.0, 72
# Of the variant `toeplitz` (native/cuda/conv/depthwise/toeplitz.cuh): instructions of a warp to load and to store a chunk of 64 channels,
# for a channel, for a pair of chunks of its weights, and of the rest; counted in the source
TOEPLITZ_LOAD, TOEPLITZ_STORE, TOEPLITZ_CHANNEL, TOEPLITZ_PAIR, TOEPLITZ_START = 180.0, 64.0, 180.0, 46.0, 120.0
TOEPLITZ_REGISTERS = 80
# Of the variant `volume` (native/cuda/conv/depthwise/volume.cuh): edges of kernels and strides known at compile time, columns of such
# threads, bytes of a tap's weights of a block, and of all that it holds; registers (-Xptxas -v)
VOLUME_EDGES, VOLUME_COLUMNS = ((3, 1), (3, 2), (5, 1)), 4
VOLUME_TAP_BYTES, VOLUME_SHARED = 4 * (2 * LIMITS["PAIRED_LANES"] + 2), 48 << 10
VOLUME_REGISTERS = {True: 128, False: 80}  # by whether a thread has two channels


def filters_of(row: ConvKernel) -> int:
    """Filters of a thread."""
    return FILTERS if row.variant == "grouped" else 1


class Thread(NamedTuple):
    """The outputs of a thread: `filters`, `columns`, of which it loads and stores `piece` at once, and `rows` that are `spacing` apart;
    `in_registers`: it keeps weights and rows in registers, else they stream through; `channels`: two of two-byte types under NHWC, with
    weights in shared memory."""

    filters: int
    columns: int
    piece: int
    in_registers: bool
    rows: int = STRIP
    spacing: int = 1
    channels: int = 1

    def high(self, w: Conv) -> int:
        """Threads along an image's rows of outputs."""
        return -(-w.out_h // (self.rows * self.spacing)) * self.spacing


def thread_of(sms: float, filters: int, w: Conv, layout: Layout) -> Thread:
    """What native/cuda/conv/depthwise/depthwise.cu chooses for aligned operands."""
    square = w.kernel_h == w.kernel_w and w.stride_h == w.stride_w and w.dilation_h == w.dilation_w == 1
    strips = w.batch * w.groups * -(-w.group_filters // filters) * -(-w.out_h // STRIP)

    def fits(columns: int) -> bool:
        return strips * -(-w.out_w // columns) // BLOCK.threads >= sms

    if not (square and w.kernel_h in IN_REGISTERS[filters] and w.stride_h <= 2):
        if filters == 1 and (thread := spaced(w)):
            return thread
        return Thread(filters, 4 if w.dilation_w == 1 and w.stride_w <= 2 and fits(4) else 1, 1, False)
    if layout == "nhwc" and filters == 1 and w.element_bytes == 2 and w.groups == w.filters and w.groups % 2 == 0:
        return Thread(filters, 4 if fits(4) else 1, 1, True, channels=2)
    if layout == "nhwc":
        return Thread(filters, 4 if fits(4) else 1, 1, True)
    centred = w.pad_left == w.kernel_w // 2
    wide = next(n for n in (4, 2, 1) if n == 1 or (centred and w.width % n == w.out_w % n == 0 and fits(n)))
    return Thread(filters, wide, wide, True)


def spaced(w: Conv) -> Thread | None:
    """The thread of a dilated kernel with weights in registers, or of one whose outputs share few input rows."""
    common = math.gcd(w.stride_h, w.dilation_h)
    spacing, steps = w.dilation_h // common, w.stride_h // common
    if w.kernel_h != w.kernel_w:
        return None
    if 2 * steps > w.kernel_h or spacing >= w.out_h:
        return Thread(1, 1, 1, True, 1) if w.kernel_h in ONE_OUTPUT else None
    dilated = steps == 1 and max(w.dilation_h, w.dilation_w) > 1
    return Thread(1, 1, 1, True, STRIP, spacing) if dilated and w.kernel_h in IN_REGISTERS[1] else None


class Depthwise(ByThreads):
    """A convolution of few channels a group by strips of outputs."""

    @property
    def order(self) -> str:
        """Of any thread's outputs."""
        whole = ", from chunks of 8 columns" if self.row.variant == "toeplitz" else ""
        return order_of(self.w, "channels", "rows", "columns") + whole

    def refusal(self) -> Reason | None:
        channels, most = self.w.group_channels, cuda_limits()["GROUPED_CHANNELS"]
        if self.row.variant in ("sequence", "toeplitz"):
            return self.sequence_refusal()
        if self.row.variant == "volume" and not self.w.is_volume:
            return Reason("shape", "it takes volumes")
        if filters_of(self.row) == 1:
            return Reason("shape", "it takes one channel a group") if channels > 1 else None
        if channels > most or self.w.group_filters == 1:
            return Reason("shape", f"it takes up to {most} channels and several filters a group")
        return None

    def sequence_refusal(self) -> Reason | None:
        w = self.w
        if w.group_channels > 1 or w.group_filters > 1:
            return Reason("shape", "it takes one channel and one filter a group")
        if self.layout != "nhwc" or w.channels * self.size % VECTOR_BYTES:
            return Reason("shape", "it takes channels last, in whole 16 bytes")
        if (w.kernel_h, w.stride_w, w.dilation_w) != (1, 1, 1) or w.kernel_w > SEQUENCE_TAPS:
            return Reason("shape", f"it takes kernels of one row of up to {SEQUENCE_TAPS} taps with stride 1")
        return None

    def in_blocks(
        self,
        gpu: Gpu,
        known: dict[str, Attributes],
        warps: tuple[float, float, float, float],
        requested: float,
        registers: int,
        shared: int,
    ) -> Variant:
        """`of_threads`; where the compiler was not asked, a block has these registers and bytes of shared memory."""
        variant = self.of_threads(gpu, known, warps, requested, "l2_latency_cycles", "memory_latency_cycles")
        block = msgspec.structs.replace(BLOCK, registers=registers, shared_bytes=shared)
        return variant.estimated(block)

    def of_stream(self, gpu: Gpu, known: dict[str, Attributes]) -> Variant:
        w, taps, across, each = self.w, self.w.kernel_w, LIMITS["STREAM_COLUMNS"], LIMITS["STREAM_CHANNELS"]
        lanes = -(-w.channels // (each * LIMITS["STREAM_LANES"])) * LIMITS["STREAM_LANES"]
        threads, pixels = w.batch * w.out_h * -(-w.out_w // across) * lanes, across + taps - 1
        instructions = STREAM_START + pixels * (STREAM_PIXEL + each * (1 + taps)) + across * STREAM_STORE + taps * each * 2
        wavefronts = (pixels + across) * WARP * each * self.size / LINE_BYTES
        latency = gpu.l2_latency_cycles.value + gpu.memory_latency_cycles.value  # of pixels that are on their way together
        ahead = 2 * taps if 2 * taps <= LIMITS["STREAM_AHEAD"] else taps
        waits = latency * -(-pixels // ahead) + ISSUE_LATENCY * instructions
        requested = w.input_elements * self.size * pixels / across
        return self.in_blocks(gpu, known, (threads / WARP, instructions, wavefronts, waits), requested, STREAM_REGISTERS, 0)

    def of_sequence(self, gpu: Gpu, known: dict[str, Attributes]) -> Variant:
        w, size, taps = self.w, self.size, self.w.kernel_w
        if LIMITS["STREAM_TAPS"] <= taps <= LIMITS["SEQUENCE_SHORT"] and self.row.dtype == STREAM_DTYPE:
            return self.of_stream(gpu, known)
        if taps > LIMITS["SEQUENCE_SHORT"] and size == 4:
            return self.of_staged(gpu, known)
        across, along = LIMITS["SEQUENCE_COLUMNS"] * size, LIMITS["SEQUENCE_LANES"]
        each = VECTOR_BYTES // size  # channels of a thread
        lanes = -(-w.channels // (each * along)) * along
        threads = w.batch * w.out_h * -(-w.out_w // across) * lanes
        pixels = across + taps - 1
        short = taps <= LIMITS["SEQUENCE_SHORT"]
        staged = 0.0 if short else taps * along * each / BLOCK.threads  # weights that a thread copies to shared memory
        instructions = SEQUENCE_START + staged * SEQUENCE_WEIGHT + pixels * (SEQUENCE_PIXEL + each * (size == 2) + each / 4)
        instructions += across * (taps * each + SEQUENCE_STORE)
        instructions *= SEQUENCE_NARROW if size == 2 and taps > SEQUENCE_FEW else 1.0
        wide = WARP * VECTOR_BYTES / LINE_BYTES  # wavefronts of a warp's access
        wavefronts = (pixels + across) * wide + taps * each / 4 + 2 * staged
        latency = gpu.l2_latency_cycles.value + gpu.memory_latency_cycles.value
        waits = latency * (1 if short else 1 + -(-pixels // across)) + ISSUE_LATENCY * instructions
        columns = across * BLOCK.threads // along  # of a block
        requested = w.input_elements * size * (columns + taps - 1) / columns
        work = threads / WARP, instructions, wavefronts, waits
        shared = 0 if short else SEQUENCE_TAPS * along * each * 4
        return self.in_blocks(gpu, known, work, requested, SEQUENCE_REGISTERS[size], shared)

    def of_staged(self, gpu: Gpu, known: dict[str, Attributes]) -> Variant:
        w, taps, warps = self.w, self.w.kernel_w, BLOCK.threads // WARP
        across, channels, wide = LIMITS["STAGED_COLUMNS"], LIMITS["STAGED_CHANNELS"], LIMITS["STAGED_WIDE"]
        blocks = w.batch * w.out_h * -(-w.out_w // across) * -(-w.channels // channels)
        stored, loaded = across / 4 / warps, (across + SEQUENCE_TAPS) / 4 / warps  # of a warp, in columns of four
        steps, passes = math.ceil(taps / LIMITS["STAGED_STEP"]), channels * across / wide / BLOCK.threads
        instructions = STAGED_WEIGHTS + loaded * STAGED_LOAD + stored * STAGED_STORE
        instructions += passes * (STAGED_CHANNEL + steps * STAGED_TAPS + taps * wide)
        each = WARP * VECTOR_BYTES / LINE_BYTES  # wavefronts of 16 bytes a thread
        wavefronts = (loaded + stored) * 2 * each + passes * each * (2 * wide / 4 + 3 * steps)
        waits = 3 * (gpu.l2_latency_cycles.value + gpu.memory_latency_cycles.value) + ISSUE_LATENCY * instructions
        requested = w.input_elements * self.size * (across + taps - 1) / across
        work = blocks * warps, instructions, wavefronts, waits
        shared = (across + 2 * SEQUENCE_TAPS) * channels * self.size
        return self.in_blocks(gpu, known, work, requested, STAGED_REGISTERS, shared)

    def of_toeplitz(self, gpu: Gpu, known: dict[str, Attributes]) -> Variant:
        w, warps = self.w, BLOCK.threads // WARP
        across, side, chunk = LIMITS["TOEPLITZ_COLUMNS"], LIMITS["TOEPLITZ_CHANNELS"], LIMITS["TOEPLITZ_CHUNK"]
        blocks = w.batch * w.out_h * -(-w.out_w // across) * -(-w.channels // side)
        pairs = ((w.kernel_w + 2 * chunk - 2) // chunk + 1) // 2  # of chunks that hold weights
        stored, channels = across / chunk / warps, side / warps  # of a warp
        loaded = stored + 2 * pairs / warps
        instructions = TOEPLITZ_START + loaded * TOEPLITZ_LOAD + stored * TOEPLITZ_STORE
        instructions += channels * (TOEPLITZ_CHANNEL + pairs * TOEPLITZ_PAIR)
        # loads and stores of 16 bytes and, in shared memory, of words and matrices
        wavefronts = (loaded + stored) * (2 * WARP * VECTOR_BYTES / LINE_BYTES + 8) + channels * (16 + 8 * pairs)
        waits = 3 * (gpu.l2_latency_cycles.value + gpu.memory_latency_cycles.value) + ISSUE_LATENCY * instructions
        requested = w.input_elements * self.size * (across + w.kernel_w - 1) / across
        work = blocks * warps, instructions, wavefronts, waits
        chunks = -(-(across // chunk + 2 * pairs) // 8) * 8
        shared = chunks * chunk * side * self.size
        return self.in_blocks(gpu, known, work, requested, TOEPLITZ_REGISTERS, shared)

    def of_volume(self, gpu: Gpu, known: dict[str, Attributes]) -> Variant:
        w, size, lines = self.w, self.size, self.w.out_d * -(-self.w.out_h // STRIP)
        plain = w.kernel_h == w.kernel_w and w.stride_h == w.stride_w and w.dilation_h == w.dilation_w == 1
        enough = w.batch * w.filters * lines * -(-w.out_w // VOLUME_COLUMNS) // BLOCK.threads >= gpu.sms.value
        fixed = plain and enough and (w.kernel_h, w.stride_h) in VOLUME_EDGES
        in_pairs = fixed and self.layout == "nhwc" and w.groups == w.filters and w.groups % 2 == 0
        in_pairs = in_pairs and w.taps * VOLUME_TAP_BYTES <= VOLUME_SHARED
        columns, channels = VOLUME_COLUMNS if fixed else 1, 2 if in_pairs else 1
        slices = slices_met(w)
        rows = distinct(STRIP, w.kernel_h, w.stride_h, w.dilation_h) if fixed else STRIP * w.kernel_h
        row_loads = (columns - 1) * w.stride_w + w.kernel_w
        loads, products = slices * rows * row_loads, slices * STRIP * columns * w.kernel_h * w.kernel_w * channels
        weights = slices * w.kernel_h * w.kernel_w * (STRIP if in_pairs else 1)
        along = -(-w.groups // 2 // lanes_of(w)) * lanes_of(w) if in_pairs else w.filters
        warps = w.batch * along * lines * -(-w.out_w // columns) / WARP
        if self.layout == "nhwc":
            wide, weight_lines = WARP * size * channels / LINE_BYTES, 1.0 if in_pairs else WEIGHT_LINES
        else:
            wide, weight_lines = min(WARP, columns * w.stride_w * WARP * size / LINE_BYTES + 1), 1.0
        wavefronts = (loads + STRIP * columns) * max(1.0, wide) + weights * weight_lines
        instructions = STRIP_INSTRUCTIONS + loads * (PAIR_INSTRUCTIONS if in_pairs else LOAD_INSTRUCTIONS) + products + weights
        waits = gpu.l1_latency_cycles.value * 2 * slices + ISSUE_LATENCY * instructions
        halo = distinct(STRIP, w.kernel_h, w.stride_h, w.dilation_h) / (STRIP * min(w.stride_h, w.kernel_h))
        requested = w.input_elements * size * w.group_filters * max(1.0, halo) * max(1.0, slices / min(w.stride_d, w.kernel_d))
        work = warps, instructions, wavefronts, waits
        return self.in_blocks(gpu, known, work, requested, VOLUME_REGISTERS[in_pairs], w.taps * VOLUME_TAP_BYTES if in_pairs else 0)

    def variant(self, gpu: Gpu, known: dict[str, Attributes], prologue: bool = False) -> Variant:
        own = {"sequence": self.of_sequence, "toeplitz": self.of_toeplitz, "volume": self.of_volume}.get(self.row.variant)
        if own:
            return own(gpu, known)
        w, taps, size, windows, channels = self.w, self.w.taps, self.size, self.windows, self.w.group_channels
        thread = thread_of(gpu.sms.value, filters_of(self.row), w, self.layout)
        line = (thread.columns - 1) * w.stride_w + w.kernel_w
        row_loads = line - (line - w.kernel_w // 2) // thread.piece * (thread.piece - 1)
        # of an image of fewer rows the others are skipped; by threads of several filters they were not timed
        rows_out = min(thread.rows, w.out_h) if thread.filters == 1 else thread.rows
        rows_read = min(
            w.height if thread.filters == 1 else math.inf, distinct(rows_out, w.kernel_h, w.stride_h * thread.spacing, w.dilation_h)
        )
        loads = rows_read * row_loads * channels
        weights: float = thread.filters * thread.channels * taps * channels * (1 if thread.in_registers else rows_out)
        across = -(-w.out_w // thread.columns)
        warps = w.batch * along_filters(thread, w) * thread.high(w) * across / WARP
        # a warp's lanes are in `rows` of line_bytes; under NHWC lanes of adjacent groups are a group's channels apart
        group_spacing = channels / -(-w.group_filters // thread.filters) if thread.filters > 1 else thread.channels
        rows, line_bytes = (
            (1, WARP * size * max(1.0, group_spacing))
            if windows.channels_last
            else (max(1.0, WARP / across), min(WARP, across) * thread.columns * w.stride_w * size)
        )
        warp_filters = max(1.0, WARP / (across * thread.high(w))) if thread.in_registers and channels == 1 else rows
        weight_lines = min(WEIGHT_LINES, taps * channels * size * WARP / LINE_BYTES) if windows.channels_last else warp_filters
        part_line = 1.0 if windows.channels_last or not thread.in_registers or channels > 1 else PART_LINE
        wavefronts = loads * min(WARP, rows * (line_bytes / LINE_BYTES + part_line))
        if thread.channels > 1:  # a block copies its weights to shared memory, of which a row of outputs reads them again
            weights, weight_lines = 4 * lanes_of(w) * taps / BLOCK.threads + rows_out * taps, 1.0
        wavefronts += weights * weight_lines
        halo = rows_read / (rows_out * min(w.stride_h, w.kernel_h))
        requested = windows.bytes * w.filters / w.channels / thread.filters * channels * max(1.0, halo)
        products: float = rows_out * thread.columns * taps * thread.filters * thread.channels * channels
        if thread.channels > 1:  # rows of padding are skipped
            products *= multiplied(thread, w)
        index = STRIP_INSTRUCTIONS if thread.rows > 1 else ONE_OUTPUT_INSTRUCTIONS
        instructions = index + loads * (LOAD_INSTRUCTIONS if thread.channels == 1 else PAIR_INSTRUCTIONS) + products
        if thread.channels > 1 or not (thread.in_registers and channels == 1):
            instructions += weights
        if thread.filters > 1 and windows.channels_last:  # a lane's filters are adjacent, and it stores them one by one
            wavefronts += rows_out * thread.columns * thread.filters * WARP * thread.filters * size / LINE_BYTES
        if not thread.in_registers:
            high = (STRIP - 1) * w.stride_h + (w.kernel_h - 1) * w.dilation_h + 1
            there = min(w.height, high) if thread.filters == 1 else high
            instructions += (there * ROW_INSTRUCTIONS + (high - there) * SKIPPED_ROW_INSTRUCTIONS) * channels
        rounds = 2 if thread.in_registers else rows_read * w.kernel_w / 4  # of loads, one after another
        waits = gpu.l1_latency_cycles.value * channels * rounds + ISSUE_LATENCY * instructions
        block = msgspec.structs.replace(BLOCK, registers=registers(thread, taps, line))
        if thread.filters > 1 and windows.channels_last:
            # a thread reads its pixels' sectors again for each channel: L1 serves that as far as it holds those of all threads
            resident = occupancy(gpu, block) * block.threads / WARP * rows_read * line * line_bytes
            missed = min(1.0, max(0.0, 2 * resident / gpu.l1_bytes.value - 1))
            requested *= 1 + missed * (min(channels, SECTOR_BYTES / size) - 1)
            # each of its filters fills a part of a sector
            requested += w.output_elements * size * (thread.filters * PART_SECTOR_COST - 1)
        variant = self.of_threads(gpu, known, (warps, instructions, wavefronts, waits), requested, "l1_")
        return variant.estimated(block)


def slices_met(w: Conv) -> float:
    """Slices of the kernel that lie in the volume, in the mean of the slices of outputs."""
    firsts = [tap * w.dilation_d - w.pad_front for tap in range(w.kernel_d)]
    met = sum(0 <= first + at * w.stride_d < w.depth for first in firsts for at in range(w.out_d))
    return met / w.out_d


def lanes_of(w: Conv) -> int:
    """Of a block along pairs of channels: half of the most where else a fifth of all would be idle."""
    most, pairs = LIMITS["PAIRED_LANES"], w.groups // 2
    every = -(-pairs // most) * most
    return most // 2 if 5 * (every - pairs) > every and (pairs - 1) % most < most // 2 else most


def along_filters(thread: Thread, w: Conv) -> int:
    """Threads along filters, those without work included."""
    if thread.channels > 1:
        return -(-w.groups // 2 // lanes_of(w)) * lanes_of(w)
    return w.groups * -(-w.group_filters // thread.filters)


def multiplied(thread: Thread, w: Conv) -> float:
    """The share of taps and rows of outputs of all threads that lies in the image."""
    rows, stride = thread.high(w) * thread.rows, w.stride_h
    ends = [(-(-(w.pad_top - tap) // stride), -(-(w.height + w.pad_top - tap) // stride)) for tap in range(w.kernel_h)]
    return sum(max(0, min(rows, end) - max(0, first)) for first, end in ends) / (rows * w.kernel_h)


def registers(thread: Thread, taps: int, line: int) -> int:
    """Registers of a thread: accumulators, the current row, weights kept in registers, and the rest; with weights in shared memory those
    that its launch bounds allow."""
    if thread.channels > 1:
        return min(MAX_REGISTERS, SM_REGISTERS // (BLOCK.threads * (LIMITS["PAIRED_BLOCKS"] - (thread.columns == 1))) // 8 * 8)
    outputs, weights = thread.rows * thread.columns, taps * thread.in_registers
    return min(MAX_REGISTERS, thread.filters * (outputs + weights) + line + OTHER_REGISTERS)


ALGORITHM = Rows("depthwise", Depthwise, "few channels a group, a thread a strip of outputs")
