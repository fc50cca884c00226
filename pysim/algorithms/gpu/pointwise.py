# SPDX-License-Identifier: Apache-2.0
"""Pointwise convolutions (1x1, stride 1) of channels-last tensors as streams. A block keeps its filters in shared memory; each warp copies
tiles of 32 windows to shared memory while it multiplies earlier ones by mma.sync and stores results from registers. Memory, L2 or the
instructions of stores are the bound.

Worked number: conv:mb32ic24ih56oc144kh1:f16 has 3,136 tiles of 1,536 bytes, one block of k and three groups of 64 filters: 96 mma.sync a
tile. An SM has one block, which keeps 12 KiB of filters; each of its 12 warps has 4 buffers and two tiles.
"""

import math
from typing import NamedTuple

import msgspec

from pysim.algorithms.convolution import Rows
from pysim.algorithms.gpu.direct import ByThreads
from pysim.cachemodel.gpu.launches import Variant
from pysim.cachemodel.gpu.mainloop import LINE_BYTES
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.record.cost import Reason
from pysim.registry.cuda import WARP, Attributes, cuda_limits

# Windows of a warp, bytes of a vector, of a block of channels, of the zeros beyond the last; warps and stages of the one block of an SM,
# buffers beside all filters (native/cuda/conv/pointwise/tiles.h)
WINDOWS, VECTOR, BLOCK_BYTES, ZEROS = 32, 16, 64, 128
MIN_WARPS, MAX_WARPS, MAX_STAGES, BESIDE_ALL = 4, 16, 4, 16
REGISTERS = 128  # of a thread (-Xptxas -v)
# Instructions, counted in the machine code: a copied vector, a stored vector with its conversion, a k-iteration beside its loads, products
# and rounding, a group beside the zeroing of accumulators, a tile, a pair of vectors of filters, the start of a warp
COPY, STORE, ITERATION, GROUP, TILE, PAIR, START = 8.0, 8.0, 22.0, 30.0, 65.0, 45.0, 300.0
MMA_CYCLES = 8.0  # of a tensor core for an mma.sync of 2,048 multiply-adds of 16-bit types, or 1,024 of tf32
GROUP_CYCLES = 300.0  # between two groups of a warp: loads from shared memory, products and stores that depend on one another


class Tiling(NamedTuple):
    """How blocks cut a convolution, as native/cuda/conv/pointwise/tiles.h does.

    `run`: neighbouring results of a lane, 8 of which make a group; `blocks_k` of channels; `groups` of filters of a block, `parts` of all
    filters; `warps` and `stages`; `shared` bytes; `tiles` of windows; `workers`: blocks of a part.
    """

    run: int
    blocks_k: int
    groups: int
    parts: int
    warps: int
    stages: int
    shared: int
    tiles: int
    workers: int


def tiling_of(w: Conv, sms: int, block_bytes: int | None = None) -> Tiling | None:
    """The tiling of a convolution on `sms` SMs whose blocks have up to `block_bytes` of shared memory (None: as much as any GPU has). None
    if none fits there."""
    limits, size = cuda_limits(), w.element_bytes
    held = min(limits["GROUPED_HELD"], block_bytes or limits["GROUPED_HELD"])
    run = (VECTOR if w.filters * size > BLOCK_BYTES else VECTOR // 2) // size
    all_groups, blocks_k = -(-w.filters // (8 * run)), -(-w.channels * size // BLOCK_BYTES)
    tiles, group_bytes, stage = -(-w.batch * w.windows // WINDOWS), blocks_k * BLOCK_BYTES * 8 * run, WINDOWS * w.channels * size
    most = min(limits["POINTWISE_ALL_FILTERS"], held - ZEROS - BESIDE_ALL * stage)
    fitting = all_groups if all_groups * group_bytes <= most else max(1, limits["POINTWISE_FILTERS"] // group_bytes)
    idle = sms * MAX_WARPS // tiles  # warps without tiles: they share out the filters
    groups = -(-all_groups // min(all_groups, max(-(-all_groups // fitting), idle)))
    parts, fewest, best = -(-all_groups // groups), 0, None
    workers = max(1, sms // parts)
    for stages in range(MAX_STAGES, 1, -1):
        for warps in range(MIN_WARPS, MAX_WARPS + 1):
            shared = min(groups * group_bytes, held) + ZEROS + warps * stages * stage
            rounds = -(-tiles // (workers * warps))
            if shared <= held and (not fewest or rounds < fewest):
                fewest = rounds
                best = Tiling(run, blocks_k, groups, parts, warps, stages, shared, tiles, min(workers, -(-tiles // warps)))
    return best


def refuses_sizes(w: Conv) -> Reason | None:
    """Why no GPU streams these channels and filters."""
    size = w.element_bytes
    if w.channels * size % VECTOR or w.filters * size % VECTOR:
        return Reason("shape", "it takes channels and filters of whole 16 bytes")
    if w.channels * size > cuda_limits()["POINTWISE_BYTES"]:
        return Reason("size", "it takes up to 512 bytes of channels")
    if tiling_of(w, 1) is None:
        return Reason("size", "its filters and the windows of four warps exceed 224 KiB of shared memory")
    return None


class Pointwise(ByThreads):
    """A pointwise convolution as a stream of windows."""

    @property
    def order(self) -> str:
        return "channels in blocks of a stream"

    def refusal(self) -> Reason | None:
        w = self.w
        if not w.pointwise or w.groups > 1 or not self.windows.channels_last:
            return Reason("shape", "it takes 1x1 kernels of stride 1 without padding and groups, channels last")
        return refuses_sizes(w)

    def variant(self, gpu: Gpu, known: dict[str, Attributes], prologue: bool = False) -> Variant:
        w, size, sms = self.w, self.size, int(gpu.sms.value)
        t = tiling_of(w, sms, int(gpu.shared_bytes_per_block.value)) or tiling_of(w, sms)  # the latter's block fits on no SM of this GPU
        assert t is not None
        vectors = WINDOWS * w.channels * size / VECTOR  # of a tile
        pieces = WINDOWS // 8  # windows of an instruction's eight columns
        loads, products = t.run + pieces, t.run * pieces  # of a k-iteration
        rounding = 4.0 * pieces if size == 4 else 0.0
        iteration = loads + products + rounding + ITERATION
        accumulators = 2 * t.run * pieces  # of a lane
        group = t.blocks_k * iteration + accumulators / 2 + 2 * pieces * STORE + GROUP
        instructions = TILE + vectors / WARP * COPY + t.groups * group
        wavefronts = vectors * VECTOR / LINE_BYTES + t.groups * t.blocks_k * 4.0 * loads
        rounds = math.ceil(t.tiles / (t.workers * t.warps))  # tiles of a warp
        filters = t.groups * t.blocks_k * BLOCK_BYTES * 8 * t.run  # bytes
        latency = gpu.l2_latency_cycles.value + gpu.memory_latency_cycles.value
        waits = 2 * latency + rounds * (t.groups * (GROUP_CYCLES + t.blocks_k * products * MMA_CYCLES) + latency / (t.stages - 1))
        tiles = t.tiles / (t.workers * t.warps)
        of_warps = (
            t.workers * t.parts * t.warps,
            START + tiles * instructions + filters / VECTOR / 2 / WARP / t.warps * PAIR,
            tiles * wavefronts,
            waits,
        )
        requested = float(t.parts * w.input_elements * size + t.workers * t.parts * filters)
        variant = self.of_threads(gpu, known, of_warps, requested, "l2_latency_cycles", "memory_latency_cycles")
        return msgspec.structs.replace(variant, attributes=Attributes(t.warps * WARP, REGISTERS, t.shared))


ALGORITHM = Rows("pointwise", Pointwise, "1x1 of channels-last tensors as streams, filters in shared memory")
