# SPDX-License-Identifier: Apache-2.0
"""What algorithms of convolutions on a GPU answer alike: which of their rows of `native/cuda/conv` take a problem, and the workspace.

    workspace = what a row keeps for itself + flags and partial sums of split-K and stream-K, each part aligned to ALIGN

Worked number: tiles of 64 filters x 128 windows of conv:mb32ic64ih56oc64kh3ph1 are 784; split-K by 2 keeps 784 flags, 3,328 bytes, and
2 x 784 x 64 x 128 x 4 = 51,380,224 bytes of partial sums.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from pysim.algorithms.contract import Bound, Prepared, sums_by
from pysim.cachemodel.gpu import tiled, words
from pysim.cachemodel.gpu.launches import ALIGN, Candidates, Variant, legal, partial_bytes, round_up
from pysim.cachemodel.gpu.windows import Windows
from pysim.errors import PlanError
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SUM_BYTES
from pysim.record.cost import Reason, Rejected
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request
from pysim.record.schedule import GpuSchedule
from pysim.registry.cuda import Attributes, ConvKernel, conv_kernel, conv_kernels, cuda_limits, gemm_attributes

# Instructions of an element that passes a prologue (a multiply-add, a comparison, a choice), and of a channel's constants
BEGIN_ELEMENT, BEGIN_CHANNEL = 3.0, 4.0


class Asked(NamedTuple):
    """A request for a convolution on a GPU, with what is known of its kernels."""

    gpu: Gpu
    w: Conv
    layout: Layout
    known: dict[str, Attributes]
    prologue: bool = False

    @classmethod
    def of(cls, request: Request) -> "Asked":
        gpu, w = request.machine, request.problem
        assert isinstance(gpu, Gpu) and isinstance(w, Conv)
        return cls(gpu, w, request.layout, gemm_attributes(gpu.capability_number), request.prologue)


class Rows(NamedTuple):
    """An algorithm by its rows, one kernel each: what its module says of one of them, from which the contract's answers follow.

    `variant`: the row as the model knows it, in so many chunks; `refusal`: why it does not compute a problem that others do, `unbegun`:
    why not with a prologue; `kept`: bytes of what it keeps in the workspace, by name, "filters" among them if it makes something of
    those; `windows`: how many it numbers in a group.
    """

    name: str
    variant: Callable[[Asked, ConvKernel, int], Variant]
    about: str
    refusal: Callable[[ConvKernel, Conv, Layout], Reason | None] = lambda row, w, layout: None
    kept: Callable[[ConvKernel, Conv, Layout, int], dict[str, int]] = lambda row, w, layout, chunks: {}
    estimate: Callable[[ConvKernel], Attributes] = tiled.estimate
    chunks: Callable[[ConvKernel, Conv], Iterable[int]] = lambda row, w: (1,)
    kinds: tuple[str, ...] = ()
    windows: Callable[[ConvKernel, Conv, Layout], int] = lambda row, w, layout: Windows(w, layout, row.outputs).number
    unbegun: Callable[[ConvKernel, Conv, Layout], Reason | None] = lambda row, w, layout: None

    def refuses(self, problem: Conv, machine: Gpu, layout: Layout) -> Reason | None:
        return refuses(self.name, problem)

    def candidates(self, request: Request, limit: float | None = None) -> Candidates:
        asked, named = Asked.of(request), request.schedule

        def refusal(row: ConvKernel) -> Reason | None:
            begun = self.unbegun(row, asked.w, asked.layout) if asked.prologue else None
            return begun or self.refusal(row, asked.w, asked.layout)

        rows, rejected = legal_rows(request, self.name, self.estimate, refusal)
        found = [
            self.variant(asked, row, chunks)
            for row in rows
            for chunks in ((named.splits,) if row.staged and isinstance(named, GpuSchedule) else self.chunks(row, asked.w))
        ]
        return Candidates(request, tuple(found), self.kinds or (self.name,), tuple(rejected))

    def prepare(self, problem: Conv, schedule: GpuSchedule, layout: Layout) -> Prepared | None:
        kept = self.kept(row_of(schedule), problem, layout, schedule.splits).get("filters", 0)
        return Prepared("filters as the kernel reads them", kept) if kept else None

    def workspace_bytes(self, problem: Conv, schedule: GpuSchedule, layout: Layout) -> int:
        row = row_of(schedule)
        total = round_up(sum(self.kept(row, problem, layout, schedule.splits).values()), ALIGN)
        if not (schedule.decomposition == "split_k" and schedule.splits <= row.reduces_in_cluster) and (tiles := row.tiles).rows:
            sums = tiles.rows * tiles.columns * row.outputs**2 * SUM_BYTES[problem.dtype]
            windows = self.windows(row, problem, layout)
            total += partial_bytes(schedule.decomposition, schedule.splits, tiles_of(problem, row, windows), tiles.blocks, sums)
        return total + ALIGN * bool(total)

    def tolerance(self, problem: Conv, schedule: GpuSchedule) -> Bound:
        return sums_by(schedule.kernel, problem)

    def describe(self, plan: Plan) -> Description:
        return words.describe(plan, self.candidates, self.about, words.tiles(plan))


def refuses(name: str, w: Conv) -> Reason | None:
    """Why an algorithm of conv/ computes no such problem on any machine: no row has its type, or it is too large for all of them."""
    known = sorted({row.dtype for row in conv_kernels() if row.algorithm == name})
    if w.dtype not in known:
        there = f"the registry (native/cuda/conv) has {', '.join(known) or 'none'}"
        return Reason("type", f"there is no {w.dtype} CUDA kernel of it; {there}")
    return too_large(w)


def legal_rows(
    request: Request,
    name: str,
    estimate: Callable[[ConvKernel], Attributes] = tiled.estimate,
    refusal: Callable[[ConvKernel], Reason | None] = lambda row: None,
) -> tuple[list[ConvKernel], list[Rejected]]:
    """The rows of an algorithm that a request may use, and the others with reasons."""
    rows, known = [row for row in conv_kernels() if row.algorithm == name], Asked.of(request).known

    def refuses(row: ConvKernel) -> Reason | None:
        return Reason("shape", "it takes no prologue") if request.prologue and not row.prologue else refusal(row)

    return legal(request, name, rows, lambda row: known.get(row.name) or estimate(row), tiled.families_of, refuses)


def row_of(schedule: GpuSchedule) -> ConvKernel:
    """The row that a schedule names."""
    row = conv_kernel(schedule.kernel)
    if row is None:
        raise PlanError(f"the registry has no CUDA convolution {schedule.kernel}; `pysim kernels --cuda` lists them")
    return row


def tiles_of(w: Conv, row: ConvKernel, windows: int) -> int:
    """Tiles of filters x so many windows, all groups; of a cluster, where the row has clusters."""
    tiles = row.tiles
    high, wide = -(-(w.filters // w.groups) // (tiles.rows * tiles.cluster_rows)), -(-windows // (tiles.columns * tiles.cluster_columns))
    return high * w.groups * wide


def too_large(w: Conv) -> Reason | None:
    """Why no CUDA kernel takes a problem of this size."""
    most, numbers = cuda_limits(), {name: getattr(w, name) for name in w.__struct_fields__ if name != "dtype"}
    for name, number in numbers.items():
        if number > most["CONV_SIZE"]:
            return Reason("size", f"{name} is {number:,}; the CUDA kernels take up to {most['CONV_SIZE']:,}")
    tensors = {
        "input": w.batch * w.channels * w.height * w.width,
        "filters": w.filters * (w.channels // w.groups) * w.kernel_h * w.kernel_w,
        "output": w.batch * w.filters * w.windows,
        "windows of all groups": w.groups * (w.batch * w.windows + most["SPARE_WINDOWS"]),
    }
    for name, elements in tensors.items():
        if elements > most["CONV_TENSOR"]:
            return Reason("size", f"the {name} would have {elements:,} elements; the CUDA kernels take up to {most['CONV_TENSOR']:,}")
    return None
