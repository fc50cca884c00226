# SPDX-License-Identifier: Apache-2.0
"""Occupancy, and why a machine cannot run a kernel.

    blocks = min(blocks_per_sm, warps_per_sm / warps, registers_per_sm / registers of the block, shared_bytes_per_sm / those of the block)

(CUDA C++ Programming Guide, "Multiprocessor level".) A warp's registers are allocated in units of REGISTER_UNIT; from
capability 8.0 on the driver reserves RESERVED_SHARED_BYTES of shared memory per block.

Worked number: 256 threads of 128 registers: 65,536 / (8 warps x 32 x 128) = 2 blocks.
"""

from functools import lru_cache

from pysim.machine.gpu import Gpu
from pysim.record.cost import Reason
from pysim.registry.cuda import WARP, Attributes, ConvKernel, GemmKernel

REGISTER_UNIT = 256
RESERVED_SHARED_BYTES, RESERVING_CAPABILITY = 1024, 80


def occupancy_limits(gpu: Gpu, attributes: Attributes) -> dict[str, int]:
    """Blocks per SM that each resource allows; 0 for shared memory where it exceeds the limit of one block."""
    warps = -(-attributes.threads // WARP)
    reserved = RESERVED_SHARED_BYTES if gpu.capability_number >= RESERVING_CAPABILITY else 0
    fits = attributes.shared_bytes <= gpu.shared_bytes_per_block.value
    registers = -(-attributes.registers * WARP // REGISTER_UNIT) * REGISTER_UNIT * warps
    return {
        "blocks": gpu.blocks_per_sm.value,
        "warps": gpu.warps_per_sm.value // warps,
        "registers": gpu.registers_per_sm.value // max(1, registers),
        "shared memory": gpu.shared_bytes_per_sm.value // max(1, attributes.shared_bytes + reserved) if fits else 0,
    }


@lru_cache(maxsize=4096)
def occupancy(gpu: Gpu, attributes: Attributes) -> int:
    """Blocks per SM: the smallest of `occupancy_limits`."""
    return min(occupancy_limits(gpu, attributes).values())


@lru_cache(maxsize=1024)
def pipe_of(gpu: Gpu, pipe: str) -> str | None:
    """The machine file's name of a kernel's pipe, where tensor cores accumulate in FP32; None where the machine lacks it."""
    return next((name for name in (f"{pipe}_f32", pipe) if name in gpu.fma_per_cycle), None)


@lru_cache(maxsize=4096)
def unable(gpu: Gpu, row: GemmKernel | ConvKernel, attributes: Attributes) -> Reason | None:
    """Why a machine cannot run a registry row on any problem."""
    have, need, tiles = gpu.capability_number, row.capability, row.tiles
    if have < need or (row.exact_capability and have != need):
        exactly = "" if row.exact_capability else " or later"
        return Reason("machine", f"it needs capability {need // 10}.{need % 10}{exactly}; {gpu.name} has {gpu.capability}")
    if tiles.rows and pipe_of(gpu, row.pipe) is None:
        return Reason("machine", f"{gpu.name} has no {row.pipe} pipe")
    if not any(family in gpu.model.families for family in row.families):
        return Reason("machine", f"{gpu.name} has no constants of its family, [model.families.{row.families[-1]}]")
    size, most = attributes.shared_bytes, gpu.shared_bytes_per_block.value
    if size > most:
        return Reason("machine", f"a block needs {size:,} bytes of shared memory; {gpu.name} gives it {most:,}")
    if not occupancy(gpu, attributes):
        return Reason("machine", f"{attributes.threads} threads of {attributes.registers} registers do not fit on an SM")
    if gpu.sms.value < tiles.blocks:
        return Reason("machine", f"a cluster takes {tiles.blocks} SMs")
    return None
