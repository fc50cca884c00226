# SPDX-License-Identifier: Apache-2.0
"""The GPU cost model of kernels without tiles: each thread computes its outputs from its own loads.

    cycles = launch + overlapped(loop, max(L2, memory))          (`overlapped` of `waves`)
    loop   = max(instructions / schedulers, L1 wavefronts, rounds x waits) / efficiency,  of the warps of one active SM

Where an SM gets more warps than it holds, their waits follow one another in rounds.

Worked number: 25,088 warps on 132 SMs are 190 an SM; with 64 resident the waits of three rounds follow one another.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pysim.cachemodel.equations import OfRows
from pysim.cachemodel.gpu.occupancy import occupancy
from pysim.cachemodel.gpu.traffic import Floats, l2_miss_share
from pysim.cachemodel.gpu.waves import LOOP_BOUNDS, NO_TRAFFIC, TERMS, WAVE_TERMS, Prediction, wave_cycles
from pysim.machine.gpu import Gpu, GpuFamily
from pysim.registry.cuda import WARP, Attributes


class Threads(NamedTuple):
    """The work of such a kernel: warps; instructions, L1 wavefronts and latency cycles of one warp; bytes requested of L2; distinct bytes
    touched."""

    warps: float
    instructions: float
    wavefronts: float
    waits: float
    requested_bytes: float
    touched_bytes: float


def predict(gpu: Gpu, kernels: Sequence[tuple[Threads, Attributes, GpuFamily]], hot: bool) -> Prediction:
    """Cost of one launch of each kernel."""
    rows = [
        (*work, family.efficiency.value, family.launch_seconds.value, block.threads / WARP, occupancy(gpu, block))
        for work, block, family in kernels
    ]
    waves, cycles, launch, bound, wavefronts, shared, memory_bytes = _equations(np.array(rows, float).T, gpu, hot)
    others = np.zeros((len(TERMS) - len(WAVE_TERMS), len(kernels)))
    others[-1] = launch
    traffic = NO_TRAFFIC._replace(l2_bytes=np.array([work.requested_bytes for work, *_ in kernels]), memory_bytes=memory_bytes)
    return Prediction(cycles, waves, others, bound.astype(int), wavefronts, shared, None, traffic)


@OfRows
def _equations(rows: Floats, gpu: Gpu, hot: bool) -> Sequence[Floats]:
    """Of kernels whose `Threads` are the first rows, before efficiency, seconds of a launch, and warps of a block and blocks of an SM:
    cycles by wave and WAVE_TERMS, in all, and of the launch; index of LOOP_BOUNDS; wavefronts and their cycles; bytes from memory."""
    warps, instructions, wavefronts, waits, requested, touched, efficiency, launch, block_warps, blocks = rows
    active = np.minimum(gpu.sms.value, np.ceil(warps / block_warps))
    sm_warps = warps / active
    shared, issue = sm_warps * wavefronts, sm_warps * instructions / gpu.schedulers_per_sm.value
    most = np.maximum(np.maximum(shared, issue), np.ceil(sm_warps / (blocks * block_warps)) * waits)
    memory_bytes = touched * (l2_miss_share(gpu, touched) if hot else 1.0)
    l2 = requested / np.minimum(gpu.l2_bytes_per_second.value / gpu.clock_hz, active * gpu.port_bytes_per_cycle.value)
    memory = memory_bytes / np.minimum(gpu.memory_bytes_per_second.value / gpu.clock_hz, active * gpu.memory_port_bytes_per_cycle.value)
    waves, launching = np.stack([most / efficiency, 0 * warps, l2, memory])[None], launch * gpu.clock_hz
    bound = LOOP_BOUNDS.index("shared") + np.where(shared >= most, 0.0, np.where(issue >= most, 1.0, 2.0))
    return waves, wave_cycles(waves) + launching, launching, bound, warps * wavefronts, shared, memory_bytes
