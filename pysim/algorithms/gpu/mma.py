# SPDX-License-Identifier: Apache-2.0
"""Implicit GEMM on the tensor cores of any GPU from capability 8.0 on: threads gather windows, 16 bytes of channels at once.

Inputs and filters whose channels are not contiguous in whole 16 bytes are copied first, padded; of a strided pointwise convolution only the
pixels that it reads are copied. Under NCHW most pointwise convolutions of stride 1 read windows from the planes directly. L2 is asked for
every tap. f32 convolutions are six products of bf16 thirds, split in registers (native/cuda/mainloop/mma/split.cuh). Where a GPU has
wgmma, that replaces these kernels.

Worked number: conv:mb1ic3ih224oc64kh7sh2ph3:f16 has channels padded to 8, so k = 49 x 8 = 392.
"""

from pysim.algorithms.convolution import Rows, order_of
from pysim.algorithms.gpu.wgmma import ChannelsLast
from pysim.cachemodel.gpu import mainloop
from pysim.cachemodel.gpu.launches import ALIGN, Variant, round_up
from pysim.cachemodel.gpu.mainloop import VECTOR_BYTES
from pysim.caches import lazy
from pysim.machine.gpu import Gpu
from pysim.record.cost import Reason
from pysim.registry.cuda import WARP, Attributes, cuda_limits

GATHER_INSTRUCTIONS = 8.0  # per 16 bytes of a window beyond those of a matrix: add pixel and tap, compare with both edges


class Mma(ChannelsLast):
    """A convolution whose windows threads gather."""

    @property
    def in_planes(self) -> bool:
        """Whether it reads windows from the planes of NCHW (native/cuda/conv/mma/operands.cu)."""
        return self.layout == "nchw" and self.w.pointwise and self.w.height * self.w.width * self.size % VECTOR_BYTES == 0

    @property
    def k(self) -> int:
        """Padded channels of all taps."""
        return self.padded_bytes // self.size * self.w.taps

    @property
    def order(self) -> str:
        padded = f" padded to {self.padded_bytes // self.size}" if self.ragged and self.w.taps > 1 else ""
        return order_of(self.w, "slices", "rows", "columns", "channels") + padded

    @lazy
    def copies(self) -> dict[str, int]:
        w, copies = self.w, {}
        if not self.in_planes and (self.layout == "nchw" or self.ragged):
            copies["input"] = w.batch * (w.windows if self.sparse else w.depth * w.height * w.width) * w.groups * self.padded_bytes
        if self.ragged or (self.layout == "nchw" and w.taps > 1):
            copies["filters"] = w.filters * w.taps * self.padded_bytes
        return copies

    @property
    def buffers(self) -> dict[str, int]:
        return {name: round_up(size, ALIGN) for name, size in self.copies.items()}

    def refusal(self) -> Reason | None:
        if any(size // self.size > cuda_limits()["CONV_TENSOR"] for size in self.copies.values()):
            return Reason("size", "it copies operands of up to 2^30 elements, channels in whole 16 bytes")
        return None

    def requested_bytes(self, l1_bytes: float) -> float:
        return float(self.windows.number * self.k * self.w.groups * self.size)

    def variant(self, gpu: Gpu, known: dict[str, Attributes], prologue: bool = False) -> Variant:
        passes = self.passes(gpu, prologue)
        work = mainloop.work(gpu, self.tiles, False, True)
        if not self.in_planes:
            vectors = self.row.block_windows * self.row.block_k * self.size / VECTOR_BYTES / WARP
            work = work._replace(issue=work.issue + GATHER_INSTRUCTIONS * vectors / gpu.schedulers_per_sm.value)
        return self.tiled(gpu, known, work, passes, *(("model.passes.copied_",) if passes else ()))


ALGORITHM = Rows("mma", Mma, "implicit GEMM on tensor cores: threads gather windows, 16 bytes of channels at once")
