# SPDX-License-Identifier: Apache-2.0
"""Convolutions of one channel a group, a thread STRIP rows of outputs; rows of the input that they share are read once where the kernel
keeps them.

Worked number: conv:g32mb32ic32ih112oc32kh3ph1 has 32 x 32 images of 112 x 112; of 4 columns x 4 rows a thread, 25,088 warps.
"""

from pysim.algorithms.convolution import Asked, Rows
from pysim.algorithms.gpu.direct import BLOCK, moving, of_threads
from pysim.cachemodel.gpu.launches import Variant
from pysim.cachemodel.gpu.launches import cost as cost
from pysim.cachemodel.gpu.mainloop import LINE_BYTES
from pysim.cachemodel.gpu.windows import Windows, distinct
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SIZES
from pysim.record.cost import Reason
from pysim.record.plan import Layout
from pysim.registry.rows import WARP, ConvKernel

NAME = "depthwise"
COMPUTES = Conv
STRIP = 4  # rows of outputs of a thread (native/cuda/conv/depthwise/depthwise.cu)
# A load and its address and edge; a thread's place, weights and stores: what Nsight Compute counted beside multiply-adds
LOAD_INSTRUCTIONS, PLACE_INSTRUCTIONS = 11.5, 134.0


def row_refuses(row: ConvKernel, w: Conv, layout: Layout) -> Reason | None:
    return Reason("shape", "it takes one channel a group") if w.channels != w.groups else None


def columns_of(sms: float, w: Conv, layout: Layout) -> tuple[int, int]:
    """(columns of outputs of a thread, of which so many are loaded and stored at once), as native/cuda/conv/depthwise/depthwise.cu
    chooses them for aligned operands; (0, 1): a kernel that keeps no rows."""
    square = w.kernel_h == w.kernel_w and w.stride_h == w.stride_w and w.dilation_h == w.dilation_w == 1
    if not (square and w.kernel_h in (3, 5) and w.stride_h <= 2):
        return 0, 1

    def fits(columns: int) -> bool:
        return w.batch * w.filters * -(-w.out_h // STRIP) * -(-w.out_w // columns) // BLOCK.threads >= sms

    if layout == "nhwc":
        return (4, 1) if fits(4) else (1, 1)
    return next((n, n) for n in (4, 2, 1) if n == 1 or (w.pad_left == w.kernel_w // 2 and w.width % n == w.out_w % n == 0 and fits(n)))


def variant(asked: Asked, row: ConvKernel, chunks: int = 1) -> Variant:
    """A row as the model knows it."""
    gpu, w, layout, _ = asked
    taps, size, windows = w.kernel_h * w.kernel_w, SIZES[w.dtype], Windows(w, layout)
    columns, piece = columns_of(gpu.sms.value, w, layout)
    wide = max(1, columns)
    line = (wide - 1) * w.stride_w + w.kernel_w
    single = line - (line - w.kernel_w // 2) // piece * (piece - 1)  # loads of a row
    loads = ((STRIP - 1) * w.stride_h + w.kernel_h) * single if columns else STRIP * taps
    across = -(-w.out_w // wide)
    warps = w.batch * w.filters * -(-w.out_h // STRIP) * across / WARP
    # lanes of a warp lie in so many rows, each of which is so many bytes
    rows, line_bytes = (1, WARP * size) if windows.together else (max(1.0, WARP / across), min(WARP, across) * wide * w.stride_w * size)
    weights = taps * size * WARP / LINE_BYTES if windows.together else rows
    wavefronts = loads * min(WARP, rows * (line_bytes / LINE_BYTES + 1)) + taps * weights
    halo = distinct(STRIP, w.kernel_h, w.stride_h, w.dilation_h) / (STRIP * min(w.stride_h, w.kernel_h))
    bytes_ = windows.bytes * w.filters / w.channels * max(1.0, halo)
    instructions = PLACE_INSTRUCTIONS + loads * LOAD_INSTRUCTIONS + STRIP * wide * taps
    waits = gpu.l1_latency_cycles.value * (2 if columns else taps)
    return of_threads(asked, row, moving(windows, warps, instructions, wavefronts, waits, bytes_), "l1_latency_cycles")


_ROWS = Rows(NAME, variant, "one channel a group, a thread a strip of outputs", row_refuses)
refuses, candidates, prepare, workspace_bytes = _ROWS.refuses, _ROWS.candidates, _ROWS.prepare, _ROWS.workspace_bytes
tolerance, describe = _ROWS.tolerance, _ROWS.describe
