# SPDX-License-Identifier: Apache-2.0
"""Convolutions as products on the tensor cores of any GPU from capability 8.0 on: threads gather windows, 16 bytes of channels at once.

Channels that do not lie together in whole 16 bytes are copied so, padded, as are filters, and of a pointwise convolution's pixels those
alone that are taken; under NCHW the windows of most pointwise convolutions of stride 1 are taken from their planes as they lie. L2 is
asked for every tap. Convolutions of f32 are six products of bf16 thirds, made in registers (native/cuda/mainloop/tensor/split.cuh). Where
a GPU has wgmma, that replaces them.

Worked number: conv:mb1ic3ih224oc64kh7sh2ph3:f16 has channels padded to 8, so k = 49 x 8 = 392.
"""

from pysim.algorithms.convolution import Asked
from pysim.algorithms.gpu.wgmma import NOT_COPIED, PartsRows, begun, padded_bytes
from pysim.cachemodel.gpu import mainloop, tiled, words
from pysim.cachemodel.gpu.launches import ALIGN, Variant, round_up
from pysim.cachemodel.gpu.launches import cost as cost
from pysim.cachemodel.gpu.mainloop import VECTOR_BYTES
from pysim.cachemodel.gpu.passes import Pass
from pysim.cachemodel.gpu.tiled import Special, lying
from pysim.cachemodel.gpu.windows import SECTOR_BYTES, Windows
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SIZES
from pysim.record.cost import Reason
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan
from pysim.registry.cuda import WARP, ConvKernel, cuda_limits

NAME = "mma"
COMPUTES = Conv
GATHER = 8.0  # instructions of 16 bytes of a window, more than of a matrix: place and tap added and compared with both edges


def padded(w: Conv) -> int:
    """Channels of a group, in whole 16 bytes."""
    return padded_bytes(w) // SIZES[w.dtype]


def planes(w: Conv, layout: Layout) -> bool:
    """Whether it takes windows from planes as they lie (native/cuda/conv/mma/operands.cu)."""
    return layout == "nchw" and w.pointwise and w.height * w.width * SIZES[w.dtype] % VECTOR_BYTES == 0


def length(w: Conv) -> int:
    """Products of a sum, padding and all."""
    return padded(w) * w.kernel_h * w.kernel_w


def sparse(w: Conv) -> bool:
    """Whether windows do not take every pixel, and a copy has those alone that they take."""
    return w.kernel_h * w.kernel_w == 1 and w.stride_h * w.stride_w > 1 and not w.padded


def copied(w: Conv, layout: Layout) -> dict[str, int]:
    """Elements of its copies: of an input that it cannot take as it lies, and of such filters."""
    ragged = padded(w) != w.channels // w.groups
    found = {}
    if not planes(w, layout) and (layout == "nchw" or ragged):
        found["input"] = w.batch * (w.windows if sparse(w) else w.height * w.width) * w.groups * padded(w)
    if ragged or (layout == "nchw" and w.kernel_h * w.kernel_w > 1):
        found["filters"] = w.filters * length(w)
    return found


def row_refuses(row: ConvKernel, w: Conv, layout: Layout) -> Reason | None:
    """Why it does not copy a problem's operands."""
    if any(elements > cuda_limits()["CONV_TENSOR"] for elements in copied(w, layout).values()):
        return Reason("size", "it copies operands of up to 2^30 elements, channels in whole 16 bytes")
    return None


def unbegun(row: ConvKernel, w: Conv, layout: Layout) -> Reason | None:
    """Why it takes no prologue."""
    return None if "input" in copied(w, layout) else NOT_COPIED


def kept(row: ConvKernel, w: Conv, layout: Layout, chunks: int) -> dict[str, int]:
    """Bytes of its copies."""
    return {name: round_up(elements * SIZES[w.dtype], ALIGN) for name, elements in copied(w, layout).items()}


def variant(asked: Asked, row: ConvKernel, chunks: int = 1) -> Variant:
    """A row as the model knows it."""
    gpu, w, layout, known, prologue = asked
    windows, around, size = Windows(w, layout), passes(gpu, w, layout), SIZES[w.dtype]
    if prologue:
        around = (begun(around[0], w), *around[1:])
    step = mainloop.work(gpu, lying(row, layout), False, True)
    if not planes(w, layout):
        vectors = row.block_windows * row.block_k * size / VECTOR_BYTES / WARP
        step = step._replace(issue=step.issue + GATHER * vectors / gpu.schedulers_per_sm.value)
    every_tap = float(windows.number * length(w) * w.groups * size)
    found = tiled.variant_of(gpu, windows, row, step, known, around, Special(k=length(w), asked=every_tap))
    return found._replace(leans=(*found.leans, "model.passes.copied_") if around else found.leans)


def passes(gpu: Gpu, w: Conv, layout: Layout) -> tuple[Pass, ...]:
    """Its copies, by one kernel; 16 bytes share their place."""
    size, each = SIZES[w.dtype], gpu.model.passes.copied_instructions.value
    moved = {"input": w.batch * w.channels * (w.windows if sparse(w) else w.height * w.width), "filters": w.filters * Windows(w, layout).k}
    sector = {"input": min(w.stride_w * size, SECTOR_BYTES) if sparse(w) else size, "filters": size}  # bytes read for an element
    return tuple(
        Pass(f"{name}, channels last", moved[name] * sector[name], elements * size, moved[name] * each, 0 if place else 1)
        for place, (name, elements) in enumerate(copied(w, layout).items())
    )


def describe(plan: Plan) -> Description:
    w = plan.workload
    assert isinstance(w, Conv)
    return words.describe(plan, _ROWS.candidates, _ROWS.about, words.tiles(plan, length(w)))


_ABOUT = "implicit GEMM on tensor cores: threads gather windows, 16 bytes of channels at once"
_ROWS = PartsRows(NAME, variant, _ABOUT, row_refuses, kept, unbegun=unbegun)
refuses, candidates, tolerance = _ROWS.refuses, _ROWS.candidates, _ROWS.tolerance
prepare, workspace_bytes = _ROWS.prepare, _ROWS.workspace_bytes
