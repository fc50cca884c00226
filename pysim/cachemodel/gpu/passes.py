# SPDX-License-Identifier: Apache-2.0
"""Kernels that move data before or after the main one: columns, tensors, transformed operands, copies in another layout.

    cycles = launches x pass_seconds + max(bytes / (share of the rate of a copy), instructions / 32 / schedulers / SMs)

Instructions of an element, its place by divisions, its load and its store, are the machine file's `model.passes`.

Worked number: the columns of conv:mb32ic64ih56oc64kh3ph1 are 231 MB written for 26 MB read; at 0.85 of 4.3 TB/s 70 us.
"""

from typing import NamedTuple

import numpy as np

from pysim.cachemodel.gpu.traffic import Array, miss
from pysim.machine.gpu import Gpu
from pysim.registry.cuda import WARP


class Pass(NamedTuple):
    """A kernel that moves data: bytes in and out, instructions of all lanes, launches."""

    name: str
    read: float
    written: float
    instructions: float
    launches: int = 1


def copy_rate(gpu: Gpu, size: Array, longer: Array | float = 1.0) -> Array:
    """Bytes a second of a copy: of L2 where the data lie there, which takes so many times longer, else of memory."""
    away = miss(gpu, size)
    return 1 / (away / gpu.memory_bytes_per_second.value + (1 - away) * 2 * longer / gpu.l2_bytes_per_second.value)


def pass_cycles(gpu: Gpu, one: Pass) -> float:
    """Cycles of a pass at the machine's clock, launches included; what one launch moves decides where it lies."""
    of, moved = gpu.model.passes, one.read + one.written
    bytes_ = moved / float(copy_rate(gpu, np.array(moved / max(1, one.launches)))) / of.rate_share.value * gpu.clock_hz
    issue = one.instructions / WARP / gpu.schedulers_per_sm.value / gpu.sms.value
    return one.launches * gpu.model.pass_seconds.value * gpu.clock_hz + max(bytes_, issue)
