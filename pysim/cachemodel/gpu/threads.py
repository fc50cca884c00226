# SPDX-License-Identifier: Apache-2.0
"""The GPU cost model of kernels without tiles: threads that each compute outputs of their own from loads of their own.

    cycles = launch + (loop^KNEE + max(L2, memory)^KNEE)^(1/KNEE)          (KNEE as in `waves`)
    loop   = max(instructions / schedulers, L1 wavefronts, waits) / efficiency

of the warps that one of the active SMs has; of its waits as many pass one after another as its warps are more than an SM holds.

Worked number: 25,088 warps on 132 SMs are 190 an SM; of 64 at once, so three waits follow one another.
"""

import math
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


def predict(gpu: Gpu, of: Threads, attributes: Attributes, family: GpuFamily, hot: bool) -> Prediction:
    """Cost of its one launch."""
    active = min(float(gpu.sms.value), math.ceil(of.warps * WARP / attributes.threads))
    here = of.warps / active  # warps of an SM
    held = occupancy(gpu, attributes) * attributes.threads / WARP
    issue, shared = here * of.instructions / gpu.schedulers_per_sm.value, here * of.wavefronts
    waits = math.ceil(here / held) * of.waits
    memory_bytes = of.touched * (float(miss(gpu, np.array(of.touched))) if hot else 1.0)
    l2 = of.asked / min(gpu.l2_bytes_per_second.value / gpu.clock_hz, active * gpu.port_bytes_per_cycle.value)
    memory = memory_bytes / min(gpu.memory_bytes_per_second.value / gpu.clock_hz, active * gpu.memory_port_bytes_per_cycle.value)
    waves = np.zeros((2, 4, 1))
    waves[0, :, 0] = max(issue, shared, waits) / family.efficiency.value, 0, l2, memory
    others = np.array([[0.0], [0.0], [0.0], [family.launch_seconds.value * gpu.clock_hz]])
    bound = max((issue, STEP.index("issue")), (shared, STEP.index("shared")), (waits, STEP.index("latency")))[1]
    traffic = np.array([[of.warps * of.wavefronts], [shared], [of.asked], [memory_bytes]])
    return Prediction(joined(waves) + others.sum(axis=0), waves, others, np.array([bound]), traffic, {})
