# SPDX-License-Identifier: Apache-2.0
"""Convolutions as products of tiles whose windows are gathered from the input as it lies.

Rows with offsets look a tap's place up in a table in shared memory, the others divide; of both, a 1x1 convolution's windows that lie as a
matrix are copied by 16 bytes. Rows with a table keep filters with a pitch of whole vectors, where they do not lie so.

Worked number: a step of 16 of 128 x 64 by offsets gathers 64 x 16 / 32 = 32 elements a lane, with 8 instructions each.
"""

from pysim.algorithms.convolution import BEGIN_CHANNEL, BEGIN_ELEMENT, ByRow, Rows
from pysim.cachemodel.gpu.launches import ALIGN, Variant, round_up
from pysim.cachemodel.gpu.mainloop import VECTOR_BYTES
from pysim.cachemodel.gpu.passes import Pass
from pysim.cachemodel.gpu.tiled import Gather, gathered, in_vectors
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.record.cost import Reason
from pysim.record.plan import Layout
from pysim.registry.cuda import Attributes, cuda_limits

# Instructions of an element (of a vector) that a thread gathers, its store aside: what the main loop of native/cuda/conv/gather.cuh has
# more than that of the same tiles on a matrix, over its elements (tools/cuda_loop.py)
GATHER = {"full": 40.0, "offsets": 8.0}
OF_MATRIX = 2.0  # a load and its address


def list_refuses(w: Conv, layout: Layout) -> Reason | None:
    """Why a table of taps does not have all of a problem's."""
    high, wide = w.height + w.pad_top + w.pad_bottom, w.width + w.pad_left + w.pad_right
    most = cuda_limits()
    if w.kernel_h + w.kernel_w > most["LISTED_TAPS"]:
        return Reason("shape", f"it takes kernels of up to {most['LISTED_TAPS']} rows and columns together")
    if high * wide * (w.channels if layout == "nhwc" else 1) > most["LISTED_IMAGE"]:
        return Reason("size", "it takes padded images of up to 2^29 elements")
    return None


class Implicit(ByRow):
    """A convolution by tiles whose windows are gathered."""

    @property
    def listed(self) -> bool:
        """Whether the row has a table of taps."""
        return self.row.variant == "offsets"

    @property
    def matrix(self) -> bool:
        """Whether windows lie as a matrix that is copied by 16 bytes."""
        return self.w.pointwise and (self.layout == "nhwc" or self.w.windows % (VECTOR_BYTES // self.size) == 0)

    @property
    def kept(self) -> dict[str, int]:
        """Filters with whole vectors a row, where they do not lie so."""
        line = self.k * self.size
        return {"filters": round_up(self.w.filters * round_up(line, VECTOR_BYTES), ALIGN)} if self.listed and line % VECTOR_BYTES else {}

    def refusal(self) -> Reason | None:
        return list_refuses(self.w, self.layout) if self.listed and not self.matrix else None

    def unbegun(self) -> Reason | None:
        taken = self.layout == "nchw" and self.w.pointwise
        return None if taken else Reason("shape", "it takes a prologue of a pointwise convolution under NCHW")

    def variant(self, gpu: Gpu, known: dict[str, Attributes], prologue: bool = False) -> Variant:
        w, size, vector, together = self.w, self.size, VECTOR_BYTES // self.size, self.windows.together
        by_vectors = in_vectors(w, self.layout) or (not together and self.matrix)
        single = not self.listed and self.k * size % VECTOR_BYTES != 0
        each, lines = OF_MATRIX if by_vectors and w.pointwise else GATHER[self.row.variant], 1 if together else w.stride_w
        if prologue:  # a vector's elements are of one channel
            each += (vector if by_vectors else 1) * BEGIN_ELEMENT + BEGIN_CHANNEL
        step = gathered(gpu, self.row, self.tiles, Gather(each, by_vectors, together or not by_vectors, lines, single))
        instructions = w.filter_elements * gpu.model.passes.element_instructions.value
        passes = tuple(Pass(name, w.filter_elements * size, written, instructions) for name, written in self.kept.items())
        return self.tiled(gpu, known, step, passes)


ALGORITHM = Rows("implicit", Implicit, "tiles of filters x windows, the windows gathered from the input as it lies")
