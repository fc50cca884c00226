# SPDX-License-Identifier: Apache-2.0
"""Convolutions as products on tensor cores: TMA gathers windows from channels that lie together, 16 bytes at once.

An input that does not lie so is copied: where its channels do not lie together in whole 16 bytes, in groups in whole steps. Each tap, or
in a copy with padded rows each row of taps, has whole steps of a row's bytes of channels, 128 or 64; where windows are more than a pixel
apart, a copy may have the pixels from one to the next as channels, and that of a pointwise convolution has no others than are taken. L2
is asked for every tap. Under NCHW the windows of most pointwise convolutions are taken as they lie, 128 bytes of a plane at once; of tf32
they pass through registers.

Convolutions of f32 are three products of tf32 halves (native/cuda/core/split.cuh): those of the filters are made ahead, those of windows in
registers.

Worked number: conv:mb1ic72ih8oc8kh3ph1:f16 under NHWC has 9 taps of 72 x 2 = 144 bytes, so 9 x 2 steps of 64: k = 9 x 128.
"""

from abc import ABC, abstractmethod
from functools import cached_property
from typing import NamedTuple

from pysim.algorithms.contract import Bound
from pysim.algorithms.convolution import BEGIN_CHANNEL, BEGIN_ELEMENT, ByRow, Rows
from pysim.algorithms.gpu import gemm
from pysim.cachemodel.gpu import mainloop
from pysim.cachemodel.gpu.launches import ALIGN, Variant, round_up
from pysim.cachemodel.gpu.mainloop import LINE_BYTES, VECTOR_BYTES
from pysim.cachemodel.gpu.passes import Pass
from pysim.cachemodel.gpu.traffic import lines_of_row, sectors_of
from pysim.cachemodel.gpu.windows import SECTOR_BYTES, Windows
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.record.cost import Reason
from pysim.registry.cuda import Attributes, cuda_limits

INT_MAX = (1 << 31) - 1


class ChannelsLast(ByRow, ABC):
    """A convolution by a row of tensor cores that takes 16 bytes of channels at once, every tap from L2, and copies an input and filters
    whose channels do not lie so; some rows compute f32 as products of parts of its numbers."""

    in_parts = True

    @property
    @abstractmethod
    def copies(self) -> dict[str, int]:
        """Bytes of its copies: of an input that it cannot take as it lies, and of such filters."""

    @cached_property
    def padded_bytes(self) -> int:
        """Of a group's channels of one pixel in its copies: whole 16."""
        return round_up(self.w.group_channels * self.size, VECTOR_BYTES)

    @property
    def ragged(self) -> bool:
        """Whether a group's channels are not whole 16 bytes."""
        return self.padded_bytes != self.w.group_channels * self.size

    @property
    def sparse(self) -> bool:
        """Whether windows do not take every pixel, and a copy has those alone that they take."""
        return self.w.taps == 1 and self.w.stride_h * self.w.stride_w > 1 and not self.w.padded

    def unbegun(self) -> Reason | None:
        return None if "input" in self.copies else Reason("shape", "it takes a prologue of an input that it copies")

    def passes(self, gpu: Gpu, prologue: bool) -> tuple[Pass, ...]:
        """Its copies, by one kernel, with a prologue on the input's way; 16 bytes share their place."""
        w, each, found = self.w, gpu.model.passes.copied_instructions.value, list[Pass]()
        pixels, read = w.input_elements, self.size
        if self.sparse:  # rows, of which sectors come whole
            pixels, read = w.batch * w.channels * w.windows, min(w.stride_w * self.size, SECTOR_BYTES)
        begun = w.input_elements * (BEGIN_ELEMENT + BEGIN_CHANNEL) if prologue else 0
        moved = {"input": (pixels, read, begun), "filters": (w.filter_elements, self.size, 0)}
        for name, written in self.copies.items():
            elements, read, more = moved[name]
            found.append(Pass(f"copied {name}", elements * read, written, elements * each + more, 0 if found else 1))
        return tuple(found)

    def tolerance(self) -> Bound:
        bound = super().tolerance()
        return gemm.sums_of_parts(self.w, self.tiles)._replace(finite=bound.finite) if self.row.promotion else bound


class Folded(NamedTuple):
    """A copy whose squares of stride_h x stride_w pixels are the channels of one: bytes of such a place, its kernel and its rows."""

    padded: int
    kernel_h: int
    kernel_w: int
    rows: int
    wide: int

    @classmethod
    def of(cls, w: Conv) -> "Folded":
        high, wide = -(-w.kernel_h // w.stride_h), -(-w.kernel_w // w.stride_w)
        padded = round_up(w.stride_h * w.stride_w * w.channels * w.element_bytes, VECTOR_BYTES)
        return cls(padded, high, wide, w.out_h + high - 1, w.out_w + wide - 1)


class Wgmma(ChannelsLast):
    """A convolution whose windows TMA gathers."""

    def refusal(self) -> Reason | None:
        w, row, most = self.w, self.row, cuda_limits()
        stride, span, corner = most["TMA_STRIDE"], most["TMA_SPAN"] - 1, most["TMA_CORNER"]
        spans = ((w.kernel_h - 1) * w.dilation_h, (w.kernel_w - 1) * w.dilation_w)
        why = ""
        if row.folds and not self.folded:
            why = "it takes few channels, which it copies, and windows more than a pixel apart"
        elif max(w.stride_h, w.stride_w) > stride:
            why = f"it takes strides of up to {stride}"
        elif max(spans) > span:
            why = f"it takes kernels that span up to {span + 1} rows and columns"
        elif max(w.pad_top, w.pad_left) > corner:
            why = f"it takes padding of up to {corner}"
        elif any(not -corner <= after - span < corner for after, span in zip((w.pad_bottom, w.pad_right), spans, strict=True)):
            why = f"its last window begins up to {corner} rows and columns before the input's end, or {corner - 1} after"
        elif row.promotion and w.filters * w.taps > most["RELAYOUT_ROWS"]:
            why = f"it splits up to {most['RELAYOUT_ROWS']} taps of all filters"
        return Reason("shape", why) if why else None

    # Windows

    @property
    def read(self) -> Windows:
        """As they lie under NHWC, or in the copy."""
        return self.windows._replace(layout="nhwc")

    @property
    def plane_windows(self) -> int:
        """Windows of an image where they lie in planes, in whole boxes of TMA."""
        return round_up(self.w.height * self.w.width, LINE_BYTES // self.size)

    @cached_property
    def in_planes(self) -> bool:
        """Whether it takes windows from planes as they lie (native/cuda/conv/wgmma/operands.cu)."""
        w, plane = self.w, self.w.height * self.w.width
        if self.layout == "nhwc" or not w.pointwise or w.groups > 1 or self.row.promotion:
            return False
        whole = plane * self.size % VECTOR_BYTES == 0 and w.channels * self.size % VECTOR_BYTES == 0
        return whole and 2 * self.plane_windows <= 3 * plane

    @property
    def numbered(self) -> int:
        return self.w.batch * (self.plane_windows if self.in_planes else self.w.windows)

    def asked(self, l1_bytes: float) -> float:
        return float(self.windows.number * self.w.products * self.w.groups * self.size)

    # Steps

    @property
    def step_bytes(self) -> int:
        """Of a window's channels in a step."""
        return self.row.block_k * self.size

    @cached_property
    def copied(self) -> bool:
        """Whether it copies the input."""
        if self.in_planes:
            return False
        whole = self.w.groups == 1 or self.padded_bytes % self.step_bytes == 0
        return self.layout == "nchw" or self.ragged or not whole

    @cached_property
    def rows_of_taps(self) -> bool:
        """Whether its copy has padded rows, whose taps beside one another are channels: where that takes fewer steps."""
        w, padded, step = self.w, self.padded_bytes, self.step_bytes
        vectors = w.batch * w.groups * w.height * (w.width + w.pad_left + w.pad_right) * padded // VECTOR_BYTES
        fewer = -(-w.kernel_w * padded // step) < w.kernel_w * -(-padded // step)
        return self.copied and w.dilation_w == 1 and fewer and vectors < 1 << 31

    @property
    def steps_unfolded(self) -> int:
        """Each tap, or each row of taps, has whole steps of channels."""
        wide, padded, step = self.w.kernel_w, self.padded_bytes, self.step_bytes
        return self.w.kernel_h * (-(-wide * padded // step) if self.rows_of_taps else wide * -(-padded // step))

    def steps_folded(self, of: Folded) -> int:
        return of.kernel_h * -(-of.kernel_w * of.padded // self.step_bytes)

    @cached_property
    def folded(self) -> Folded | None:
        """Its copy where that folds, as it does where that takes fewer steps, and no taps are added but by rows that may."""
        w = self.w
        if not self.row.folds and (w.kernel_h % w.stride_h or w.kernel_w % w.stride_w):
            return None
        if not self.copied or w.groups > 1 or w.stride_h * w.stride_w == 1 or max(w.dilation_h, w.dilation_w) > 1:
            return None
        of = Folded.of(w)
        sizes, vectors = ((w.batch * of.rows, of.wide), (w.filters * of.kernel_h, of.kernel_w)), of.padded // VECTOR_BYTES
        fits = all(rows <= INT_MAX // (wide * vectors) for rows, wide in sizes)
        return of if self.steps_folded(of) < self.steps_unfolded and fits else None

    @property
    def k(self) -> int:
        """In whole steps."""
        return (self.steps_folded(self.folded) if self.folded else self.steps_unfolded) * self.row.block_k

    @property
    def stays(self) -> bool:
        """Whether filters stay in shared memory from tile to tile (native/cuda/mainloop/hopper/kernel.cuh): all are in one tile, whose
        steps return to the same stages."""
        one = self.w.groups == 1 and self.w.filters <= self.row.block_filters * self.row.cluster_filters
        return one and self.row.stages % (self.k // self.row.block_k) == 0

    # Operands

    @property
    def filters_bytes(self) -> int:
        """Of the filters as the kernels read them."""
        of = self.folded
        return self.w.filters * (of.kernel_h * of.kernel_w * of.padded if of else self.w.taps * self.padded_bytes)

    @cached_property
    def copies(self) -> dict[str, int]:
        """As native/cuda/conv/wgmma/operands.cu makes them."""
        w, kept, of = self.w, {}, self.folded
        if self.copied:
            wide = w.width + (w.pad_left + w.pad_right) * self.rows_of_taps
            pixels = of.rows * of.wide if of else w.windows if self.sparse else w.height * wide
            kept["input"] = round_up(w.batch * pixels * w.groups * (of.padded if of else self.padded_bytes), ALIGN)
        if of or self.ragged or not (self.layout == "nhwc" or w.taps == 1):
            kept["filters"] = round_up(self.filters_bytes, ALIGN)
        return kept

    @property
    def halves_bytes(self) -> int:
        """Of both halves of the filters."""
        return round_up(2 * self.filters_bytes, ALIGN)

    @property
    def kept(self) -> dict[str, int]:
        """Its copies, the halves with the filters."""
        if not self.row.promotion:
            return self.copies
        return self.copies | {"filters": self.copies.get("filters", 0) + self.halves_bytes}

    # Candidates

    def variant(self, gpu: Gpu, known: dict[str, Attributes], prologue: bool = False) -> Variant:
        passes = self.passes(gpu, prologue)
        if self.row.promotion:
            instructions = self.filters_bytes / self.size * gpu.model.passes.copied_instructions.value
            passes = (*passes, Pass("halves", self.filters_bytes, self.halves_bytes, instructions))
        step = mainloop.work(gpu, self.tiles, False, True, by_registers=self.in_planes and self.size > 2)
        found = self.tiled(gpu, known, step, passes, *(("model.passes.copied_",) if passes else ()))
        columns = found.columns
        assert columns is not None
        columns = columns._replace(near=self.row.reduces_in_cluster, **self.pitched())
        if self.stays:
            share = min(1.0, gpu.sms.value // self.tiles.blocks / -(-columns.m // columns.tile_m))
            columns = columns._replace(asks_b=columns.asks_b * share, parts=columns.parts * share)
        return found._replace(columns=columns)

    def pitched(self) -> dict[str, float]:
        """Lines of L2 that rows of boxes of windows and filters lie in, and sectors of the output, by how far apart rows begin."""
        w, of = self.w, self.folded
        pixel = w.height * w.width * self.size if self.in_planes else of.padded if of else w.groups * self.padded_bytes
        return {
            "lines_a": lines_of_row(pixel, self.step_bytes),
            "lines_b": lines_of_row(self.filters_bytes // w.filters, self.step_bytes),
            "sectors": sectors_of((w.filters if self.layout == "nhwc" else w.windows) * self.size),
        }


ALGORITHM = Rows("wgmma", Wgmma, "implicit GEMM on tensor cores: TMA gathers windows from channels that lie together")
