# SPDX-License-Identifier: Apache-2.0
"""Convolutions straight from the definition, a thread an output; lanes lie along columns, for which a filter is broadcast, or under NHWC
along filters, whose weights are k apart.

Worked number: conv:mb1ic64ih56oc64kh3ph1 has 64 x 3136 outputs, 6,272 warps of 576 multiply-adds a lane.
"""

from pysim.algorithms.convolution import ByRow, Rows
from pysim.cachemodel.gpu import tiled
from pysim.cachemodel.gpu.launches import Variant, constants_of
from pysim.cachemodel.gpu.mainloop import LINE_BYTES
from pysim.cachemodel.gpu.threads import Threads
from pysim.machine.gpu import Gpu
from pysim.registry.cuda import WARP, Attributes

BLOCK = tiled.PLAIN_BLOCK


class ByThreads(ByRow):
    """A convolution by a row without tiles."""

    def of_threads(
        self, gpu: Gpu, known: dict[str, Attributes], each: tuple[float, float, float, float], asked: float, *leans: str
    ) -> Variant:
        """Threads of `each` (warps; a warp's instructions, wavefronts and waits) that ask L2 for `asked` bytes of windows and write all
        outputs; memory has windows, filters and outputs, once each."""
        w, (name, family) = self.w, constants_of(gpu, self.row.families)
        outputs = w.output_elements * self.size
        threads = Threads(*each, asked + outputs, self.windows.bytes + w.filter_elements * self.size + outputs)
        return self.launched(gpu, known, name, *leans)._replace(threads=threads, family=family)


class Direct(ByThreads):
    """A convolution by a thread an output."""

    def variant(self, gpu: Gpu, known: dict[str, Attributes], prologue: bool = False) -> Variant:
        w, row, windows, of = self.w, self.row, self.windows, gpu.model.direct
        k = windows.k
        apart = min(WARP, k * self.size * WARP / LINE_BYTES) if windows.together else min(WARP, w.stride_w)
        # a block's windows come to it once for each row of filters that it has not in its lanes
        turns = w.group_filters / (min(BLOCK.threads, w.filters) if windows.together else 1)
        asked = windows.asked(BLOCK.threads, gpu.l1_bytes.value * BLOCK.threads / (gpu.warps_per_sm.value * WARP)) * turns
        waits = k / of.loads_at_once.value * gpu.l2_latency_cycles.value
        # a multiply-add takes its instructions' turns, or its pipe where that is slower (FP64 on most GPUs)
        pipe = WARP * gpu.schedulers_per_sm.value / gpu.fma_per_cycle[row.pipe].value if row.pipe in gpu.fma_per_cycle else 0.0
        instructions = k * max(of.product_instructions.value, pipe) + w.taps * of.tap_instructions.value
        each = (w.output_elements / WARP, instructions, k * (1 + apart), waits)
        return self.of_threads(gpu, known, each, asked, "model.direct.", "l1_", "l2_latency_cycles")


ALGORITHM = Rows("direct", Direct, "a thread an output, straight from the definition")
