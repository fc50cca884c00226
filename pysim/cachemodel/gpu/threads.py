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

from pysim.cachemodel.gpu.occupancy import occupancy
from pysim.cachemodel.gpu.traffic import l2_miss_share
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
    warps, instructions, wavefronts, waits, requested, touched = np.array([work for work, *_ in kernels]).T
    efficiency, launch = np.array([(family.efficiency.value, family.launch_seconds.value) for *_, family in kernels]).T
    block_warps = np.array([block.threads for _, block, _ in kernels]) / WARP
    resident = np.array([occupancy(gpu, block) for _, block, _ in kernels]) * block_warps
    active = np.minimum(gpu.sms.value, np.ceil(warps / block_warps))
    sm_warps = warps / active
    loop = sm_warps * wavefronts, sm_warps * instructions / gpu.schedulers_per_sm.value, np.ceil(sm_warps / resident) * waits
    memory_bytes = touched * (l2_miss_share(gpu, touched) if hot else 1.0)
    l2 = requested / np.minimum(gpu.l2_bytes_per_second.value / gpu.clock_hz, active * gpu.port_bytes_per_cycle.value)
    memory = memory_bytes / np.minimum(gpu.memory_bytes_per_second.value / gpu.clock_hz, active * gpu.memory_port_bytes_per_cycle.value)
    waves = np.array([[np.max(loop, axis=0) / efficiency, 0 * warps, l2, memory]])
    others = np.zeros((len(TERMS) - len(WAVE_TERMS), len(kernels)))
    others[-1] = launch * gpu.clock_hz
    bound = LOOP_BOUNDS.index("shared") + np.argmax(loop, axis=0)
    traffic = NO_TRAFFIC._replace(l2_bytes=requested, memory_bytes=memory_bytes)
    cycles = wave_cycles(waves) + others.sum(axis=0)
    return Prediction(cycles, waves, others, bound, warps * wavefronts, loop[0], None, traffic)
