# SPDX-License-Identifier: Apache-2.0
"""Convolutions straight from the definition, a thread an output; lanes lie along columns, for which a filter is broadcast, or under NHWC
along filters, whose weights are k apart.

Worked number: conv:mb1ic64ih56oc64kh3ph1 has 64 x 3136 outputs, 6,272 warps of 576 multiply-adds a lane.
"""

from functools import partial

from pysim.algorithms.contract import Bound, sums_by
from pysim.cachemodel.gpu import tiled, words
from pysim.cachemodel.gpu.launches import Candidates, Variant, constants_of, cost
from pysim.cachemodel.gpu.mainloop import LINE_BYTES
from pysim.cachemodel.gpu.threads import Threads
from pysim.cachemodel.gpu.tiled import Asked
from pysim.cachemodel.gpu.windows import Windows
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SIZES
from pysim.record.cost import Reason
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request
from pysim.record.schedule import GpuConvSchedule
from pysim.registry.rows import WARP, Attributes, ConvKernel

NAME = "direct"
COMPUTES = Conv
BLOCK = Attributes(256, 40, 0)  # what a block of such a kernel is taken for


def refuses(problem: Conv, machine: Gpu, layout: Layout) -> Reason | None:
    return tiled.refuses(NAME, problem)


def candidates(request: Request, limit: float | None = None) -> Candidates:
    asked = Asked.of(request)
    rows, rejected = tiled.legal_rows(asked, NAME, lambda row: BLOCK, lambda row: None)
    found = [variant(asked, row, threads(asked.gpu, asked.w, asked.layout), ("model.direct.", "l1_")) for row in rows]
    return Candidates(request, tuple(found), (NAME,), tuple(rejected))


def threads(gpu: Gpu, w: Conv, layout: Layout) -> Threads:
    """What its warps do."""
    windows, size, of = Windows(w, layout), SIZES[w.dtype], gpu.model.direct
    k = windows.k
    apart = min(WARP, k * size * WARP / LINE_BYTES) if windows.together else min(WARP, w.stride_w)
    # a block's windows come to it once for each row of filters that it has not in its lanes
    turns = w.filters // w.groups / (min(BLOCK.threads, w.filters) if windows.together else 1)
    asked = windows.asked(BLOCK.threads, gpu.l1_bytes.value * BLOCK.threads / (gpu.warps_per_sm.value * WARP)) * turns
    waits = k / of.loads_at_once.value * gpu.l1_latency_cycles.value
    return moving(windows, w.batch * w.filters * w.windows / WARP, k * of.product_instructions.value, k * (1 + apart), waits, asked)


def moving(windows: Windows, warps: float, instructions: float, wavefronts: float, waits: float, asked: float) -> Threads:
    """Threads that ask L2 for `asked` bytes of windows and write all outputs; memory has windows, filters and outputs, once each."""
    w, size = windows.conv, SIZES[windows.conv.dtype]
    outputs = w.batch * w.filters * w.windows * size
    return Threads(warps, instructions, wavefronts, waits, asked + outputs, windows.bytes + w.filters * windows.k * size + outputs)


def variant(asked: Asked, row: ConvKernel, of: Threads, leans: tuple[str, ...]) -> Variant:
    """A row without tiles."""
    known, (name, family) = asked.known, constants_of(asked.gpu, tiled.families_of(row))
    return Variant(
        row.name, partial(GpuConvSchedule, row.name, None), known.get(row.name, BLOCK), row.name in known,
        tiled.leans_on(asked.gpu, row.pipe, name, *leans), threads=of, family=family, lent=tiled.lent_of(row, name, known),
    )  # fmt: skip


def prepare(problem: Conv, schedule: GpuConvSchedule, layout: Layout) -> None:
    return None


def workspace_bytes(problem: Conv, schedule: GpuConvSchedule, layout: Layout) -> int:
    return 0


def tolerance(problem: Conv, schedule: GpuConvSchedule) -> Bound:
    return sums_by(schedule.kernel, problem)


def describe(plan: Plan) -> Description:
    return words.describe(plan, words.one_launch(plan, candidates), "a thread an output, straight from the definition")


__all__ = ["COMPUTES", "NAME", "candidates", "cost", "describe", "prepare", "refuses", "tolerance", "workspace_bytes"]
