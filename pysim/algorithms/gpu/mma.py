# SPDX-License-Identifier: Apache-2.0
"""Convolutions as products on the tensor cores of any GPU from capability 8.0 on: threads gather windows, 16 bytes of channels at once.

Channels that do not lie together in whole 16 bytes are copied so, padded, as are filters, and of a pointwise convolution's pixels those
alone that are taken; under NCHW the windows of most pointwise convolutions of stride 1 are taken from their planes as they lie. L2 is
asked for every tap. Convolutions of f32 are six products of bf16 thirds, made in registers (native/cuda/mainloop/tensor/split.cuh). Where
a GPU has wgmma, that replaces them.

Worked number: conv:mb1ic3ih224oc64kh7sh2ph3:f16 has channels padded to 8, so k = 49 x 8 = 392.
"""

from functools import cached_property

from pysim.algorithms.convolution import Rows
from pysim.algorithms.gpu.wgmma import ChannelsLast
from pysim.cachemodel.gpu import mainloop
from pysim.cachemodel.gpu.launches import ALIGN, Variant, round_up
from pysim.cachemodel.gpu.mainloop import VECTOR_BYTES
from pysim.machine.gpu import Gpu
from pysim.record.cost import Reason
from pysim.registry.cuda import WARP, Attributes, cuda_limits

GATHER = 8.0  # instructions of 16 bytes of a window, more than of a matrix: place and tap added and compared with both edges


class Mma(ChannelsLast):
    """A convolution whose windows threads gather."""

    @property
    def in_planes(self) -> bool:
        """Whether it takes windows from planes as they lie (native/cuda/conv/mma/operands.cu)."""
        return self.layout == "nchw" and self.w.pointwise and self.w.height * self.w.width * self.size % VECTOR_BYTES == 0

    @property
    def k(self) -> int:
        """Padding and all."""
        return self.padded_bytes // self.size * self.w.taps

    @cached_property
    def copies(self) -> dict[str, int]:
        w, kept = self.w, {}
        if not self.in_planes and (self.layout == "nchw" or self.ragged):
            kept["input"] = w.batch * (w.windows if self.sparse else w.height * w.width) * w.groups * self.padded_bytes
        if self.ragged or (self.layout == "nchw" and w.taps > 1):
            kept["filters"] = w.filters * w.taps * self.padded_bytes
        return kept

    @property
    def kept(self) -> dict[str, int]:
        return {name: round_up(size, ALIGN) for name, size in self.copies.items()}

    def refusal(self) -> Reason | None:
        if any(size // self.size > cuda_limits()["CONV_TENSOR"] for size in self.copies.values()):
            return Reason("size", "it copies operands of up to 2^30 elements, channels in whole 16 bytes")
        return None

    def asked(self, l1_bytes: float) -> float:
        return float(self.windows.number * self.k * self.w.groups * self.size)

    def variant(self, gpu: Gpu, known: dict[str, Attributes], prologue: bool = False) -> Variant:
        passes = self.passes(gpu, prologue)
        step = mainloop.work(gpu, self.tiles, False, True)
        if not self.in_planes:
            vectors = self.row.block_windows * self.row.block_k * self.size / VECTOR_BYTES / WARP
            step = step._replace(issue=step.issue + GATHER * vectors / gpu.schedulers_per_sm.value)
        return self.tiled(gpu, known, step, passes, *(("model.passes.copied_",) if passes else ()))


ALGORITHM = Rows("mma", Mma, "implicit GEMM on tensor cores: threads gather windows, 16 bytes of channels at once")
