# SPDX-License-Identifier: Apache-2.0
"""Direct convolution: a thread computes an output. Lanes are adjacent columns, for which a filter is broadcast, or under NHWC adjacent
filters, whose weights are k apart.

Worked number: conv:mb1ic64ih56oc64kh3ph1 has 64 x 3136 outputs, 6,272 warps of 576 multiply-adds a lane.
"""

from pysim.algorithms.convolution import ByRow, Rows, order_of
from pysim.cachemodel.gpu import product_columns
from pysim.cachemodel.gpu.launches import Variant, constants_of
from pysim.cachemodel.gpu.mainloop import LINE_BYTES
from pysim.cachemodel.gpu.threads import Threads
from pysim.machine.gpu import Gpu
from pysim.registry.cuda import WARP, Attributes

BLOCK = product_columns.PLAIN_BLOCK


class ByThreads(ByRow):
    """A convolution by a row without tiles."""

    def of_threads(
        self, gpu: Gpu, known: dict[str, Attributes], warps: tuple[float, float, float, float], requested: float, *numbers: str
    ) -> Variant:
        """Threads: `warps` (their number; instructions, wavefronts and latency cycles of one) request so many bytes of windows from L2 and
        write all outputs. Windows, filters and outputs are touched in memory once."""
        w, (name, family) = self.w, constants_of(gpu, self.row.families)
        outputs = w.output_elements * self.size
        threads = Threads(*warps, requested + outputs, self.windows.bytes + w.filter_elements * self.size + outputs)
        return self.launched(gpu, known, name, *numbers)._replace(threads=threads, family=family)


class Direct(ByThreads):
    """A thread computes an output."""

    @property
    def order(self) -> str | None:
        return order_of(self.w, "slices", "rows", "columns", "channels")

    def variant(self, gpu: Gpu, known: dict[str, Attributes], prologue: bool = False) -> Variant:
        w, row, windows, model = self.w, self.row, self.windows, gpu.model.direct
        k = windows.k
        lines = min(WARP, k * self.size * WARP / LINE_BYTES) if windows.channels_last else min(WARP, w.stride_w)  # of a warp's load
        # a block reads its windows once for each set of filters beyond those of its lanes
        times = w.group_filters / (min(BLOCK.threads, w.filters) if windows.channels_last else 1)
        l1_bytes = gpu.l1_bytes.value * BLOCK.threads / (gpu.warps_per_sm.value * WARP)
        requested = windows.requested_bytes(BLOCK.threads, l1_bytes) * times
        waits = k / model.loads_at_once.value * gpu.l2_latency_cycles.value
        # a multiply-add takes its instructions' issue slots, or its pipe where that is slower (FP64 on most GPUs)
        pipe = WARP * gpu.schedulers_per_sm.value / gpu.fma_per_cycle[row.pipe].value if row.pipe in gpu.fma_per_cycle else 0.0
        instructions = k * max(model.product_instructions.value, pipe) + w.taps * model.tap_instructions.value
        warps = (w.output_elements / WARP, instructions, k * (1 + lines), waits)
        return self.of_threads(gpu, known, warps, requested, "model.direct.", "l1_", "l2_latency_cycles")


ALGORITHM = Rows("direct", Direct, "direct: a thread computes an output")
