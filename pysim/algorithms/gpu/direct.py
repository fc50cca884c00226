# SPDX-License-Identifier: Apache-2.0
"""Direct convolution: a thread computes an output. Lanes are adjacent columns, for which a filter is broadcast, or under NHWC adjacent
filters, whose weights are k apart. Rows of variant `tiled` are for few channels that lie last, and for few filters of one pixel in planes:
a thread computes one or four windows of four or eight filters, whose weights are in shared memory, and lanes are adjacent windows.

Worked number: conv:mb1ic64ih56oc64kh3ph1 has 64 x 3136 outputs, 6,272 warps of 576 multiply-adds a lane.
"""

import math
from typing import NamedTuple

import msgspec

from pysim.algorithms.convolution import ByRow, Rows, order_of
from pysim.cachemodel.gpu import product_columns
from pysim.cachemodel.gpu.launches import Variant, constants_of
from pysim.cachemodel.gpu.mainloop import LINE_BYTES, VECTOR_BYTES
from pysim.cachemodel.gpu.threads import Threads
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.record.cost import Reason
from pysim.record.plan import Layout
from pysim.registry.cuda import WARP, Attributes, cuda_limits

BLOCK = product_columns.PLAIN_BLOCK
LIMITS = cuda_limits()
TILED_THREADS = LIMITS["TILED_THREADS"]
# Of the variant `tiled` (native/cuda/conv/direct/tiled.cuh): instructions of a thread and of each of its windows, of a step, of a load with
# its tests, of a stored window, of a weight that is copied to shared memory; counted in the source. A load of a plane, registers with four
# windows (-Xptxas -v), and cycles between two instructions of a warp, as in depthwise.py
TILED_START, TILED_WINDOW, TILED_STEP, TILED_LOAD, TILED_STORE, TILED_WEIGHT = 120.0, 40.0, 14.0, 12.0, 60.0, 8.0
TILED_PLANE_LOAD, TILED_REGISTERS, TILED_ISSUE = 4.0, 100, 3.2
TILED_PART_COST = 9.0  # L2 bytes of a result where a block has a part of its line (by hand, on five layers of an H200)


class ThreadTile(NamedTuple):
    """What a thread computes, and the channels of a load."""

    windows: int
    filters: int
    channels: int

    def blocks(self, w: Conv) -> int:
        return -(-w.batch * w.windows // (TILED_THREADS * self.windows)) * -(-w.filters // self.filters)


def thread_tile(w: Conv, layout: Layout, sms: float) -> ThreadTile:
    """What native/cuda/conv/direct/tiled.cuh chooses for aligned operands. In planes `channels` are on their way at once."""
    whole, filters = VECTOR_BYTES // w.element_bytes, 4 if w.filters <= 4 else 8
    last = layout == "nhwc"
    channels = next(count for count in (whole, whole // 2, 1) if w.channels % count == 0) if last else 8
    four = ThreadTile(4, filters, channels)
    fits = last or w.windows % 4 == 0
    return four if fits and four.blocks(w) >= LIMITS["TILED_BLOCKS"] * sms else ThreadTile(1, filters, channels if last else 16)


class ByThreads(ByRow):
    """A convolution by a row without tiles."""

    def of_threads(
        self, gpu: Gpu, known: dict[str, Attributes], warps: tuple[float, float, float, float], requested: float, *numbers: str
    ) -> Variant:
        """Threads: `warps` (their number; instructions, wavefronts and latency cycles of one) request so many bytes of windows from L2 and
        write all outputs. Windows, filters and outputs are touched in memory once."""
        w, (name, family) = self.w, constants_of(gpu, self.row.families)
        outputs = w.output_elements * self.size
        threads = Threads(*warps, requested + outputs, self.windows.bytes + w.filter_elements * self.size + outputs)
        variant = self.launched(gpu, known, name, *numbers)
        return msgspec.structs.replace(variant, threads=threads, family=family)


class Direct(ByThreads):
    """A thread computes an output, or a tile of them."""

    @property
    def order(self) -> str | None:
        return order_of(self.w, "slices", "rows", "columns", "channels")

    def refusal(self) -> Reason | None:
        if self.row.variant != "tiled":
            return None
        channels, products = LIMITS["TILED_CHANNELS"], LIMITS["TILED_PRODUCTS"]
        if self.w.groups > 1 or not (self.w.channels <= channels if self.layout == "nhwc" else self.w.pointwise):
            few = f"up to {channels} channels that lie last, or windows of one pixel without stride"
            return Reason("shape", f"it takes one group: {few}")
        return None if self.windows.k <= products else Reason("shape", f"it takes up to {products:,} products an output")

    def of_tiles(self, gpu: Gpu, known: dict[str, Attributes]) -> Variant:
        """A thread computes a tile."""
        w, size, k = self.w, self.size, self.windows.k
        tile = thread_tile(w, self.layout, gpu.sms.value)
        last, staged, across = self.windows.channels_last, k * tile.filters / TILED_THREADS, -(-w.filters // tile.filters)
        steps, loads = math.ceil(k / tile.channels), tile.windows if last else tile.channels  # and loads of a step
        instructions = TILED_START + staged * TILED_WEIGHT + tile.windows * (TILED_WINDOW + TILED_STORE)
        instructions += steps * (TILED_STEP + loads * (TILED_LOAD if last else TILED_PLANE_LOAD))
        instructions += k * (tile.filters / 4 + tile.windows * (tile.filters + (size == 2)))
        # of a warp's load and store
        lines = min(WARP, max(1.0, WARP * size * (w.channels * w.stride_w if last else tile.windows) / LINE_BYTES))
        stored = min(WARP, max(1.0, WARP * size * (w.filters if last else tile.windows) / LINE_BYTES))
        stores = tile.windows if last else tile.filters
        wavefronts = loads * steps * lines + stores * stored + k * tile.filters / 4 + 2 * staged
        near, far = gpu.l1_latency_cycles.value, gpu.l2_latency_cycles.value + gpu.memory_latency_cycles.value
        waits = 2 * far + steps * (near if last else far) + TILED_ISSUE * instructions
        l1_bytes = gpu.l1_bytes.value * TILED_THREADS / (gpu.warps_per_sm.value * WARP)
        requested = self.windows.requested_bytes(TILED_THREADS * tile.windows, l1_bytes) * across
        if last and w.filters > tile.filters:  # a block has a part of its windows' lines
            requested += w.output_elements * size * (TILED_PART_COST - 1)
        work = tile.blocks(w) * TILED_THREADS / WARP, instructions, wavefronts, waits
        variant = self.of_threads(gpu, known, work, requested, "l1_", "l2_latency_cycles", "memory_latency_cycles")
        block = msgspec.structs.replace(BLOCK, threads=TILED_THREADS, registers=TILED_REGISTERS, shared_bytes=k * tile.filters * 4)
        return variant.estimated(block)

    def variant(self, gpu: Gpu, known: dict[str, Attributes], prologue: bool = False) -> Variant:
        if self.row.variant == "tiled":
            return self.of_tiles(gpu, known)
        w, row, windows, model = self.w, self.row, self.windows, gpu.model.direct
        k = windows.k
        lines = min(WARP, k * self.size * WARP / LINE_BYTES) if windows.channels_last else min(WARP, w.stride_w)  # of a warp's load
        # a block reads its windows once for each set of filters beyond those of its lanes
        times = w.group_filters / (min(BLOCK.threads, w.filters) if windows.channels_last else 1)
        l1_bytes = gpu.l1_bytes.value * BLOCK.threads / (gpu.warps_per_sm.value * WARP)
        requested = windows.requested_bytes(BLOCK.threads, l1_bytes) * times
        waits = k / model.loads_at_once.value * gpu.l2_latency_cycles.value
        # a multiply-add takes its instructions' issue slots, or its pipe where that is slower (FP64 on most GPUs)
        pipe = WARP * gpu.schedulers_per_sm.value / gpu.fma_per_cycle[row.pipe].value if row.pipe in gpu.fma_per_cycle else 0.0
        instructions = k * max(model.product_instructions.value, pipe) + w.taps * model.tap_instructions.value
        warps = (w.output_elements / WARP, instructions, k * (1 + lines), waits)
        return self.of_threads(gpu, known, warps, requested, "model.direct.", "l1_", "l2_latency_cycles")


ALGORITHM = Rows("direct", Direct, "direct: a thread computes an output, or several windows of several filters")
