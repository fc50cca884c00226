# SPDX-License-Identifier: Apache-2.0
"""Pointwise convolutions (1x1, stride 1) of channels-last tensors as streams. A block keeps its filters in shared memory; each warp copies
tiles of 32 windows to shared memory while it multiplies earlier ones by mma.sync and stores results from registers. Memory, L2 or the
instructions of stores are the bound.

Worked number: conv:mb32ic24ih56oc144kh1:f16 has 3,136 tiles of 1,536 bytes, one block of k and five groups of 32 filters: 80 mma.sync a
tile. A block of 8 warps with 4 buffers each keeps 10 KiB of filters, and an SM has two.
"""

import math
from typing import NamedTuple

from pysim.algorithms.convolution import Rows
from pysim.algorithms.gpu.direct import ByThreads
from pysim.cachemodel.gpu.launches import Variant
from pysim.cachemodel.gpu.mainloop import LINE_BYTES
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.record.cost import Reason
from pysim.registry.cuda import WARP, Attributes, cuda_limits

# Windows of a warp, bytes of a vector, of a block of channels or a group of results; warps and stages of a block, blocks of an SM
# (native/cuda/conv/pointwise/tiles.h)
WINDOWS, VECTOR, BLOCK_BYTES = 32, 16, 64
MAX_WARPS, MAX_STAGES, BLOCKS = 8, 4, 2
REGISTERS = 128  # of a thread (-Xptxas -v)
# Instructions, counted in the machine code: a copied vector, a stored vector with its conversion, a k-iteration beside its loads, products
# and rounding, a group, a tile, the start of a warp
COPY, STORE, ITERATION, GROUP, TILE, START = 15.0, 12.0, 28.0, 50.0, 60.0, 300.0
MMA_CYCLES = 8.0  # of a tensor core for an mma.sync of 2,048 multiply-adds of 16-bit types, or 1,024 of tf32
GROUP_CYCLES = 300.0  # between two groups of a warp: loads from shared memory, products and stores that depend on one another


class Tiling(NamedTuple):
    """How blocks cut a convolution, as native/cuda/conv/pointwise/tiles.h does.

    `blocks_k` of channels; `groups` of filters of a block, `parts` of all filters; `warps` and `stages`; `shared` bytes; `tiles` of
    windows; `workers`: blocks of a part.
    """

    blocks_k: int
    groups: int
    parts: int
    warps: int
    stages: int
    shared: int
    tiles: int
    workers: int


def tiling_of(w: Conv, sms: int) -> Tiling | None:
    """The tiling of a convolution on `sms` SMs; None where none fits in shared memory."""
    limits, of_block = cuda_limits(), BLOCK_BYTES // w.element_bytes  # channels of a block, filters of a group
    held, all_groups, blocks_k = limits["GROUPED_HELD"], -(-w.filters // of_block), -(-w.channels // of_block)
    tiles, group_bytes, stage = -(-w.batch * w.windows // WINDOWS), blocks_k * BLOCK_BYTES * of_block, WINDOWS * blocks_k * BLOCK_BYTES
    fitting, idle = max(1, limits["POINTWISE_FILTERS"] // group_bytes), sms * BLOCKS * MAX_WARPS // tiles
    groups = -(-all_groups // min(all_groups, max(-(-all_groups // fitting), idle)))
    parts, best = -(-all_groups // groups), None
    for warps in (MAX_WARPS, MAX_WARPS // 2):
        for stages in range(MAX_STAGES, 1, -1):
            shared = min(groups * group_bytes, held) + warps * stages * stage
            blocks = min(BLOCKS, held // shared)
            if blocks * warps > (best[0] if best else 0):
                workers = min(-(-tiles // warps), max(1, sms * blocks // parts))
                best = blocks * warps, Tiling(blocks_k, groups, parts, warps, stages, shared, tiles, workers)
    return best[1] if best else None


class Pointwise(ByThreads):
    """A pointwise convolution as a stream of windows."""

    def refusal(self) -> Reason | None:
        w = self.w
        if not w.pointwise or w.groups > 1 or not self.windows.channels_last:
            return Reason("shape", "it takes 1x1 kernels of stride 1 without padding and groups, channels last")
        if w.channels * self.size % VECTOR or w.filters * self.size % VECTOR:
            return Reason("shape", "it takes channels and filters of whole 16 bytes")
        if w.channels * self.size > cuda_limits()["POINTWISE_BYTES"]:
            return Reason("size", "it takes up to 512 bytes of channels")
        if tiling_of(w, 1) is None:
            return Reason("size", "its filters and the windows of four warps exceed 224 KiB of shared memory")
        return None

    def variant(self, gpu: Gpu, known: dict[str, Attributes], prologue: bool = False) -> Variant:
        w, size, t = self.w, self.size, tiling_of(self.w, int(gpu.sms.value))
        assert t is not None
        vectors = WINDOWS * w.channels * size / VECTOR  # of a tile
        across = BLOCK_BYTES // size // 8  # instructions along a group's filters
        loads, products = 4 + across, across * 4  # of a k-iteration
        rounding = 4.0 * loads if size == 4 else 0.0
        iteration = loads + products + rounding + ITERATION
        group = t.blocks_k * iteration + 4 * STORE + GROUP
        instructions = TILE + vectors / WARP * COPY + t.groups * group
        wavefronts = vectors * VECTOR / LINE_BYTES + t.groups * t.blocks_k * 4.0 * loads
        rounds = math.ceil(t.tiles / (t.workers * t.warps))  # tiles of a warp
        filters = t.groups * t.blocks_k * BLOCK_BYTES * (BLOCK_BYTES // size)  # bytes
        latency = gpu.l2_latency_cycles.value + gpu.memory_latency_cycles.value
        waits = 2 * latency + rounds * (t.groups * (GROUP_CYCLES + t.blocks_k * products * MMA_CYCLES) + latency / (t.stages - 1))
        tiles = t.tiles / (t.workers * t.warps)
        of_warps = (
            t.workers * t.parts * t.warps,
            START + tiles * instructions + filters / VECTOR / WARP / t.warps * COPY,
            tiles * wavefronts,
            waits,
        )
        requested = float(t.parts * w.input_elements * size + t.workers * t.parts * filters)
        variant = self.of_threads(gpu, known, of_warps, requested, "l2_latency_cycles", "memory_latency_cycles")
        return variant._replace(attributes=Attributes(t.warps * WARP, REGISTERS, t.shared))


ALGORITHM = Rows("pointwise", Pointwise, "1x1 of channels-last tensors as streams, filters in shared memory")
