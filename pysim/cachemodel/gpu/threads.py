# SPDX-License-Identifier: Apache-2.0
"""The GPU cost model of kernels without tiles: threads that each compute outputs of their own from loads of their own.

    cycles = launch + (loop^KNEE + max(L2, memory)^KNEE)^(1/KNEE)          (KNEE as in `waves`)
    loop   = max(instructions / schedulers, L1 wavefronts, waits) / efficiency

of the warps that one of the active SMs has; of its waits as many pass one after another as its warps are more than an SM holds.

Worked number: 25,088 warps on 132 SMs are 190 an SM; of 64 at once, so three waits follow one another.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pysim.cachemodel.gpu.occupancy import occupancy
from pysim.cachemodel.gpu.traffic import miss
from pysim.cachemodel.gpu.waves import STEP, Prediction, joined
from pysim.machine.gpu import Gpu, GpuFamily
from pysim.registry.cuda import WARP, Attributes


class Threads(NamedTuple):
    """What such a kernel does: warps, and of each its instructions, L1 wavefronts and cycles of waiting; bytes asked of L2, and touched of
    memory."""

    warps: float
    instructions: float
    wavefronts: float
    waits: float
    asked: float
    touched: float


def predict(gpu: Gpu, kernels: Sequence[tuple[Threads, Attributes, GpuFamily]], hot: bool) -> Prediction:
    """Cost of the one launch of each of some kernels."""
    warps, instructions, wavefronts, waits, asked, touched = np.array([of for of, *_ in kernels]).T
    efficiency, launch = np.array([(family.efficiency.value, family.launch_seconds.value) for *_, family in kernels]).T
    of_block = np.array([block.threads for _, block, _ in kernels]) / WARP
    held = np.array([occupancy(gpu, block) for _, block, _ in kernels]) * of_block
    active = np.minimum(gpu.sms.value, np.ceil(warps / of_block))
    here = warps / active  # warps of an SM
    loop = here * wavefronts, here * instructions / gpu.schedulers_per_sm.value, np.ceil(here / held) * waits
    memory_bytes = touched * (miss(gpu, touched) if hot else 1.0)
    l2 = asked / np.minimum(gpu.l2_bytes_per_second.value / gpu.clock_hz, active * gpu.port_bytes_per_cycle.value)
    memory = memory_bytes / np.minimum(gpu.memory_bytes_per_second.value / gpu.clock_hz, active * gpu.memory_port_bytes_per_cycle.value)
    waves, others = np.zeros((2, 4, len(kernels))), np.zeros((4, len(kernels)))
    waves[0] = np.max(loop, axis=0) / efficiency, np.zeros_like(warps), l2, memory
    others[-1] = launch * gpu.clock_hz
    bound = STEP.index("shared") + np.argmax(loop, axis=0)
    traffic = np.stack([warps * wavefronts, loop[0], asked, memory_bytes])
    return Prediction(joined(waves) + others.sum(axis=0), waves, others, bound, traffic, {})
