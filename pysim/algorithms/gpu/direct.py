# SPDX-License-Identifier: Apache-2.0
"""Convolutions straight from the definition, a thread an output; lanes lie along columns, for which a filter is broadcast, or under NHWC
along filters, whose weights are k apart.

Worked number: conv:mb1ic64ih56oc64kh3ph1 has 64 x 3136 outputs, 6,272 warps of 576 multiply-adds a lane.
"""

from pysim.algorithms.convolution import Asked, Rows
from pysim.cachemodel.gpu import tiled
from pysim.cachemodel.gpu.launches import Variant, constants_of
from pysim.cachemodel.gpu.launches import cost as cost
from pysim.cachemodel.gpu.mainloop import LINE_BYTES
from pysim.cachemodel.gpu.threads import Threads
from pysim.cachemodel.gpu.windows import Windows
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SIZES
from pysim.registry.cuda import WARP, Attributes, ConvKernel

NAME = "direct"
COMPUTES = Conv
BLOCK = tiled.PLAIN_BLOCK


def variant(asked: Asked, row: ConvKernel, chunks: int = 1) -> Variant:
    """A row as the model knows it."""
    (gpu, w, layout, *_), of = asked, asked.gpu.model.direct
    windows, size = Windows(w, layout), SIZES[w.dtype]
    k = windows.k
    apart = min(WARP, k * size * WARP / LINE_BYTES) if windows.together else min(WARP, w.stride_w)
    # a block's windows come to it once for each row of filters that it has not in its lanes
    turns = w.filters // w.groups / (min(BLOCK.threads, w.filters) if windows.together else 1)
    bytes_ = windows.asked(BLOCK.threads, gpu.l1_bytes.value * BLOCK.threads / (gpu.warps_per_sm.value * WARP)) * turns
    waits = k / of.loads_at_once.value * gpu.l2_latency_cycles.value
    # a multiply-add takes its instructions' turns, or its pipe where that is slower (FP64 on most GPUs)
    pipe = WARP * gpu.schedulers_per_sm.value / gpu.fma_per_cycle[row.pipe].value if row.pipe in gpu.fma_per_cycle else 0.0
    instructions = k * max(of.product_instructions.value, pipe) + w.kernel_h * w.kernel_w * of.tap_instructions.value
    threads = moving(windows, w.batch * w.filters * w.windows / WARP, instructions, k * (1 + apart), waits, bytes_)
    return of_threads(asked, row, threads, "model.direct.", "l1_", "l2_latency_cycles")


def moving(windows: Windows, warps: float, instructions: float, wavefronts: float, waits: float, asked: float) -> Threads:
    """Threads that ask L2 for `asked` bytes of windows and write all outputs; memory has windows, filters and outputs, once each."""
    w, size = windows.conv, SIZES[windows.conv.dtype]
    outputs = w.batch * w.filters * w.windows * size
    return Threads(warps, instructions, wavefronts, waits, asked + outputs, windows.bytes + w.filters * windows.k * size + outputs)


def of_threads(asked: Asked, row: ConvKernel, of: Threads, *leans: str, block: Attributes = BLOCK) -> Variant:
    """A row without tiles."""
    known, (name, family) = asked.known, constants_of(asked.gpu, tiled.families_of(row))
    return tiled.of_row(asked.gpu, row, known, known.get(row.name, block), name, *leans)._replace(threads=of, family=family)


_ROWS = Rows(NAME, variant, "a thread an output, straight from the definition")
refuses, candidates, prepare, workspace_bytes = _ROWS.refuses, _ROWS.candidates, _ROWS.prepare, _ROWS.workspace_bytes
tolerance, describe = _ROWS.tolerance, _ROWS.describe
