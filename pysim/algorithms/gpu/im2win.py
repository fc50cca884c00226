# SPDX-License-Identifier: Apache-2.0
"""Convolutions as products of tiles whose windows are slices of a tensor of rows: N C P R W, for each row of outputs the kernel_h rows that
it reads, column by column (arXiv 2306.14316, equation 2, its stride added). Fused rows gather the same slices from the input instead.

Worked number: conv:mb1ic64ih56oc64kh3ph1 keeps 64 x 56 rows of 58 x 3 elements in whole vectors, 176: 2,523,136 bytes.
"""

from pysim.algorithms.convolution import Asked, Rows
from pysim.algorithms.gpu import direct
from pysim.algorithms.gpu.implicit import list_refuses
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

NAME = "im2win"
COMPUTES = Conv
# Instructions of an element that a thread gathers, as in `implicit`; of a vector of the tensor assumed
GATHER_TENSOR, GATHER_FUSED = 4.0, 8.0
LARGEST_INT = (1 << 31) - 1


def row_refuses(row: ConvKernel, w: Conv, layout: Layout) -> Reason | None:
    """Why a row does not compute a problem that others do, in the library's words."""
    if not row.keeps_tensor:
        return list_refuses(w, layout)
    if row.tiles.rows and w.kernel_h * w.kernel_w > (taps := cuda_limits()["TENSOR_TAPS"]):
        return Reason("shape", f"it takes kernels of up to {taps} taps")
    if tensor_elements(w, layout) > LARGEST_INT:
        return Reason("size", "it takes windows whose tensor has up to 2^31 - 1 elements")
    return None


def tensor_elements(w: Conv, layout: Layout) -> int:
    """Elements of the tensor: for each row of outputs kernel_h rows, column by column, in whole vectors."""
    columns = (w.out_w - 1) * w.stride_w + (w.kernel_w - 1) * w.dilation_w + 1
    channels = w.channels // w.groups
    line = round_up(columns * w.kernel_h * (channels if layout == "nhwc" else 1), VECTOR_BYTES // SIZES[w.dtype])
    lines = w.batch * w.out_h * w.groups * (1 if layout == "nhwc" else channels)
    return line * lines if line < LARGEST_INT and lines < LARGEST_INT // line else LARGEST_INT + 1


def variant(asked: Asked, row: ConvKernel, chunks: int = 1) -> Variant:
    """A row as the model knows it; its first algorithm, without tiles, is `direct` on the tensor."""
    gpu, w, layout, known, _ = asked
    windows, tiles = Windows(w, layout, tensor=row.keeps_tensor), lying(row, layout)
    around = passes(asked, row)
    if not tiles.rows:
        return direct.variant(asked, row)._replace(passes=around)
    vector, by_vectors = VECTOR_BYTES // SIZES[w.dtype], in_vectors(w, layout)
    if row.keeps_tensor and not windows.together:
        by_vectors = w.dilation_w == 1 and w.stride_w * w.kernel_h % vector == w.kernel_w * w.kernel_h % vector == 0
    by_vectors, beside = by_vectors and tiles.vectors, windows.together or row.keeps_tensor
    each, lines = GATHER_TENSOR if row.keeps_tensor else GATHER_FUSED, 1 if beside else w.stride_w
    step = gathered(gpu, row, tiles, Gather(each, by_vectors, beside or not by_vectors, lines, not tiles.vectors))
    return tiled.variant_of(gpu, windows, row, step, known, around)


def kept(row: ConvKernel, w: Conv, layout: Layout, chunks: int) -> dict[str, int]:
    """Bytes of filters in the tensor's order, in whole vectors, and of the tensor."""
    if not row.keeps_tensor:
        return {}
    line, size = Windows(w, layout).k * SIZES[w.dtype], SIZES[w.dtype]
    return {"filters": round_up(w.filters * round_up(line, VECTOR_BYTES), ALIGN), "tensor": tensor_elements(w, layout) * size}


def passes(asked: Asked, row: ConvKernel) -> tuple[Pass, ...]:
    """Filters and tensor; a thread writes a vector of the tensor."""
    w, size, each = asked.w, SIZES[asked.w.dtype], asked.gpu.model.passes.element_instructions.value
    windows, keeps = Windows(w, asked.layout), kept(row, w, asked.layout, 1)
    filters = w.filters * windows.k
    read = {"filters": (filters * size, filters), "tensor": (windows.bytes, keeps.get("tensor", 0) / size / 2)}
    return tuple(Pass(name, read[name][0], written, read[name][1] * each) for name, written in keeps.items())


_ABOUT = "tiles of filters x windows, each window a slice of a tensor of rows (arXiv 2306.14316)"
_ROWS = Rows(NAME, variant, _ABOUT, row_refuses, kept)
refuses, candidates, prepare, workspace_bytes = _ROWS.refuses, _ROWS.candidates, _ROWS.prepare, _ROWS.workspace_bytes
tolerance, describe = _ROWS.tolerance, _ROWS.describe
