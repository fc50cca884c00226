# SPDX-License-Identifier: Apache-2.0
"""Kernels that only move data before or after the main kernel: im2col columns, the im2win tensor, transforms, layout conversions.

    cycles = launches x pass_seconds + max(bytes / (rate_share x share x copy rate), instructions / 32 / schedulers / SMs)

The machine file's `model.passes` has rate_share and the instructions per element: index divisions, load, store.

Worked number: the im2col columns of conv:mb32ic64ih56oc64kh3ph1 are 231 MB written for 26 MB read; at 0.85 of 4.3 TB/s 70 us.
"""

import msgspec

from pysim.cachemodel.gpu.traffic import N, Number, l2_miss_share
from pysim.machine.gpu import Gpu
from pysim.registry.cuda import WARP


class Pass(msgspec.Struct, frozen=True, cache_hash=True):
    """A kernel that moves data: bytes read and written, instructions of all lanes, launches; the share of a pass' rate that it reaches, and
    seconds of a launch, if others than the model's."""

    name: str
    read: float
    written: float
    instructions: float
    launches: int = 1
    share: float = 1.0
    launch_seconds: float | None = None

    def times(self, count: int) -> "Pass":
        """So many of it, one after another."""
        read, written, instructions = self.read * count, self.written * count, self.instructions * count
        return msgspec.structs.replace(self, read=read, written=written, instructions=instructions, launches=self.launches * count)


def copy_rate(gpu: Gpu, size: N, l2_slowdown: Number = 1.0) -> Number:
    """Bytes per second, read plus written, of a copy that moves `size` bytes: L2's rate / l2_slowdown where they fit, else memory's."""
    away = l2_miss_share(gpu, size)
    return 1 / (away / gpu.memory_bytes_per_second.value + (1 - away) * 2 * l2_slowdown / gpu.l2_bytes_per_second.value)


def pass_cycles(gpu: Gpu, one: Pass) -> float:
    """Cycles of a pass at the machine's clock, launches included. Whether the data fit L2 depends on what one launch moves."""
    model, moved = gpu.model.passes, one.read + one.written
    transfer = moved / float(copy_rate(gpu, moved / max(1, one.launches))) / (model.rate_share.value * one.share) * gpu.clock_hz
    issue = one.instructions / WARP / gpu.schedulers_per_sm.value / gpu.sms.value
    launch = gpu.model.pass_seconds.value if one.launch_seconds is None else one.launch_seconds
    return one.launches * launch * gpu.clock_hz + max(transfer, issue)
