# SPDX-License-Identifier: Apache-2.0
"""Convolutions as products of tiles whose windows are gathered from the input as it lies.

Rows with offsets look a tap's place up in a table in shared memory, the others divide; of both, a 1x1 convolution's windows that lie as a
matrix are copied by 16 bytes. Rows with a table keep filters with a pitch of whole vectors, where they do not lie so.

Worked number: a step of 16 of 128 x 64 by offsets gathers 64 x 16 / 32 = 32 elements a lane, with 8 instructions each.
"""

from pysim.algorithms.convolution import BEGIN_CHANNEL, BEGIN_ELEMENT, Asked, Rows
from pysim.cachemodel.gpu import tiled
from pysim.cachemodel.gpu.launches import ALIGN, Variant, round_up
from pysim.cachemodel.gpu.launches import cost as cost
from pysim.cachemodel.gpu.mainloop import VECTOR_BYTES
from pysim.cachemodel.gpu.passes import Pass
from pysim.cachemodel.gpu.tiled import Gather, gathered, in_vectors, lying
from pysim.cachemodel.gpu.windows import Windows
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SIZES
from pysim.record.cost import Reason
from pysim.record.plan import Layout
from pysim.registry.cuda import ConvKernel, cuda_limits

NAME = "implicit"
COMPUTES = Conv
# Instructions of an element (of a vector) that a thread gathers, its store aside: what the main loop of native/cuda/conv/gather.cuh has
# more than that of the same tiles on a matrix, over its elements (tools/cuda_loop.py)
GATHER = {"full": 40.0, "offsets": 8.0}
OF_MATRIX = 2.0  # a load and its address


def listed(row: ConvKernel) -> bool:
    """Whether a row has a table of taps."""
    return row.variant == "offsets"


def row_refuses(row: ConvKernel, w: Conv, layout: Layout) -> Reason | None:
    """Why a row does not compute a problem that others do, in the library's words."""
    return list_refuses(w, layout) if listed(row) and not matrix(w, layout) else None


def unbegun(row: ConvKernel, w: Conv, layout: Layout) -> Reason | None:
    """Why it takes no prologue."""
    return None if layout == "nchw" and w.pointwise else Reason("shape", "it takes a prologue of a pointwise convolution under NCHW")


def list_refuses(w: Conv, layout: Layout) -> Reason | None:
    """Why a table of taps does not have all of a problem's."""
    high, wide = w.height + w.pad_top + w.pad_bottom, w.width + w.pad_left + w.pad_right
    most = cuda_limits()
    if w.kernel_h + w.kernel_w > most["LISTED_TAPS"]:
        return Reason("shape", f"it takes kernels of up to {most['LISTED_TAPS']} rows and columns together")
    if high * wide * (w.channels if layout == "nhwc" else 1) > most["LISTED_IMAGE"]:
        return Reason("size", "it takes padded images of up to 2^29 elements")
    return None


def matrix(w: Conv, layout: Layout) -> bool:
    """Whether windows lie as a matrix that is copied by 16 bytes."""
    return w.pointwise and (layout == "nhwc" or w.windows % (VECTOR_BYTES // SIZES[w.dtype]) == 0)


def variant(asked: Asked, row: ConvKernel, chunks: int = 1) -> Variant:
    """A row as the model knows it."""
    gpu, w, layout, known, prologue = asked
    windows, each = Windows(w, layout), gpu.model.passes.element_instructions.value
    by_vectors = in_vectors(w, layout) or (not windows.together and matrix(w, layout))
    single = not listed(row) and windows.k * SIZES[w.dtype] % VECTOR_BYTES != 0
    instructions, lines = OF_MATRIX if by_vectors and w.pointwise else GATHER[row.variant], 1 if windows.together else w.stride_w
    if prologue:  # a vector's elements are of one channel
        instructions += (VECTOR_BYTES // SIZES[w.dtype] if by_vectors else 1) * BEGIN_ELEMENT + BEGIN_CHANNEL
    of = Gather(instructions, by_vectors, windows.together or not by_vectors, lines, single)
    filters, copy = w.filters * windows.k, kept(row, w, layout, chunks)
    passes = tuple(Pass(name, filters * SIZES[w.dtype], size, filters * each) for name, size in copy.items())
    return tiled.variant_of(gpu, windows, row, gathered(gpu, row, lying(row, layout), of), known, passes)


def kept(row: ConvKernel, w: Conv, layout: Layout, chunks: int) -> dict[str, int]:
    """Bytes of filters with whole vectors a row, where they do not lie so."""
    line = Windows(w, layout).k * SIZES[w.dtype]
    return {"filters": round_up(w.filters * round_up(line, VECTOR_BYTES), ALIGN)} if listed(row) and line % VECTOR_BYTES else {}


_ROWS = Rows(
    NAME, variant, "tiles of filters x windows, the windows gathered from the input as it lies", row_refuses, kept, unbegun=unbegun
)
refuses, candidates, prepare, workspace_bytes = _ROWS.refuses, _ROWS.candidates, _ROWS.prepare, _ROWS.workspace_bytes
tolerance, describe = _ROWS.tolerance, _ROWS.describe
