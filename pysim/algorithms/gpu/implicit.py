# SPDX-License-Identifier: Apache-2.0
"""Implicit GEMM: products of tiles whose windows threads gather from the input.

Rows of variant `offsets` read a tap's offset from a table in shared memory; the others divide. Both copy the windows of a 1x1 convolution
by 16 bytes where they form a matrix. Rows with a table pad filters to whole vectors where they are not aligned so.

Worked number: a k-iteration of 16 of 128 x 64 by offsets gathers 64 x 16 / 32 = 32 elements a lane, with 8 instructions each.
"""

import math

from pysim.algorithms.convolution import PROLOGUE_CHANNEL, PROLOGUE_ELEMENT, ByRow, Rows, order_in_memory
from pysim.cachemodel.gpu.copy_kernels import Pass
from pysim.cachemodel.gpu.launches import ALIGN, Variant, round_up
from pysim.cachemodel.gpu.mainloop import VECTOR_BYTES
from pysim.cachemodel.gpu.product_columns import Gather, gathered, in_vectors
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.record.cost import Reason
from pysim.record.plan import Layout
from pysim.registry.cuda import Attributes, cuda_limits

# Instructions of a gathered element or vector without its store: those of native/cuda/conv/gather.cuh's main loop beyond those of the same
# tiles on a matrix, per element (lab/ablations/cuda_loop.py)
GATHER = {"full": 40.0, "offsets": 8.0}
MATRIX_INSTRUCTIONS = 2.0  # a load and its address


def list_refuses(w: Conv, layout: Layout) -> Reason | None:
    """Why a problem's taps do not fit in the table."""
    pixels = math.prod(axis.size + axis.before + axis.after for axis in (w.slices, w.rows, w.columns))
    most = cuda_limits()
    if w.is_volume and w.kernel_d + w.kernel_h + w.kernel_w > most["LISTED_TAPS"]:
        return Reason("shape", f"it takes kernels of up to {most['LISTED_TAPS']} slices, rows and columns together")
    if w.kernel_h + w.kernel_w > most["LISTED_TAPS"]:
        return Reason("shape", f"it takes kernels of up to {most['LISTED_TAPS']} rows and columns together")
    if w.taps > most["TENSOR_TAPS"]:
        return Reason("shape", f"it takes kernels of up to {most['TENSOR_TAPS']} taps")
    if pixels * (w.channels if layout == "nhwc" else 1) > most["LISTED_IMAGE"]:
        return Reason("size", "it takes padded images of up to 2^29 elements")
    return None


class Implicit(ByRow):
    """A convolution by tiles of gathered windows."""

    @property
    def listed(self) -> bool:
        """Whether the row has a table of taps."""
        return self.row.variant == "offsets"

    @property
    def matrix(self) -> bool:
        """Whether windows form a matrix that is copied by 16 bytes."""
        return self.w.pointwise and (self.layout == "nhwc" or self.w.windows % (VECTOR_BYTES // self.size) == 0)

    @property
    def buffers(self) -> dict[str, int]:
        """Filters padded to whole vectors a row, where they are not."""
        line = self.k * self.size
        return {"filters": round_up(self.w.filters * round_up(line, VECTOR_BYTES), ALIGN)} if self.listed and line % VECTOR_BYTES else {}

    @property
    def order(self) -> str:
        return order_in_memory(self.w, self.layout)

    def refusal(self) -> Reason | None:
        return list_refuses(self.w, self.layout) if self.listed and not self.matrix else None

    def prologue_refusal(self) -> Reason | None:
        taken = self.layout == "nchw" and self.w.pointwise
        return None if taken else Reason("shape", "it takes a prologue only of a pointwise convolution under NCHW")

    def variant(self, gpu: Gpu, known: dict[str, Attributes], prologue: bool = False) -> Variant:
        w, size, vector, channels_last = self.w, self.size, VECTOR_BYTES // self.size, self.windows.channels_last
        by_vectors = in_vectors(w, self.layout) or (not channels_last and self.matrix)
        scalar_filters = not self.listed and self.k * size % VECTOR_BYTES != 0
        instructions = MATRIX_INSTRUCTIONS if by_vectors and w.pointwise else GATHER[self.row.variant]
        if prologue:  # a vector's elements are of one channel
            instructions += (vector if by_vectors else 1) * PROLOGUE_ELEMENT + PROLOGUE_CHANNEL
        gather = Gather(instructions, by_vectors, channels_last or not by_vectors, 1 if channels_last else w.stride_w, scalar_filters)
        of_pass = w.filter_elements * gpu.model.passes.element_instructions.value
        passes = tuple(Pass(name, w.filter_elements * size, written, of_pass) for name, written in self.buffers.items())
        return self.tiled(gpu, known, gathered(gpu, self.row, self.tiles, gather), passes)


ALGORITHM = Rows("implicit", Implicit, "implicit GEMM: tiles of filters x windows, the windows gathered from the input")
