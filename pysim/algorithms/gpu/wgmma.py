# SPDX-License-Identifier: Apache-2.0
"""Implicit GEMM on Hopper's tensor cores: TMA gathers windows of contiguous channels, 16 bytes at once.

The input is copied first where its channels are not contiguous in whole 16 bytes, or a group's channels are not whole k-iterations. Each
tap (in a copy with padded rows, each row of taps) is padded to whole k-iterations of 128 or 64 bytes of channels. With a stride, a copy
may fold the pixels of a stride x stride square into channels; the copy of a pointwise convolution has only the pixels that it reads. L2
is asked for every tap, or by rows of variant `taps` once for the taps of a kernel's row. Under NCHW most pointwise convolutions read
windows from the planes directly, 128 bytes at once; tf32 windows then pass through registers.

f32 convolutions are three products of tf32 halves (native/cuda/core/split.cuh): filters are split by a pass before, windows in registers.

Worked number: conv:mb1ic72ih8oc8kh3ph1:f16 under NHWC has 9 taps of 72 x 2 = 144 bytes, so 9 x 2 k-iterations of 64: k = 9 x 128.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import msgspec

from pysim.algorithms.convolution import PROLOGUE_CHANNEL, PROLOGUE_ELEMENT, ByRow, Rows, order_of
from pysim.algorithms.gpu import gemm
from pysim.algorithms.interface import Bound
from pysim.cachemodel.gpu import mainloop
from pysim.cachemodel.gpu.copy_kernels import Pass
from pysim.cachemodel.gpu.launches import ALIGN, Variant, round_up
from pysim.cachemodel.gpu.mainloop import LINE_BYTES, VECTOR_BYTES
from pysim.cachemodel.gpu.traffic import lines_of_row, sectors_of
from pysim.cachemodel.gpu.windows import SECTOR_BYTES, Windows, windows_of
from pysim.caches import lazy
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.record.cost import Reason
from pysim.registry.cuda import Attributes, cuda_limits

INT_MAX = (1 << 31) - 1
# Stores of single elements that one takes where results are no whole vectors (by hand, on 20 layers: lab/notebook/gpu-convolutions.md)
STRIPS = 5.0


class ChannelsLast(ByRow, ABC):
    """A convolution on tensor cores that reads 16 bytes of contiguous channels at once, every tap from L2, and copies inputs and filters
    that are stored otherwise. Some rows compute f32 as products of parts of its numbers."""

    in_parts = True

    @property
    @abstractmethod
    def copies(self) -> dict[str, int]:
        """Bytes of the copies of input and filters, if it cannot read them as stored."""

    @lazy
    def padded_bytes(self) -> int:
        """Bytes of a group's channels of one pixel in its copies, in whole 16."""
        return round_up(self.w.group_channels * self.size, VECTOR_BYTES)

    @property
    def ragged(self) -> bool:
        """Whether a group's channels are not whole 16 bytes."""
        return self.padded_bytes != self.w.group_channels * self.size

    @property
    def sparse(self) -> bool:
        """Whether windows skip pixels, which a copy then leaves out."""
        return self.w.taps == 1 and self.w.stride_h * self.w.stride_w > 1 and not self.w.padded and not self.w.is_volume

    def prologue_refusal(self) -> Reason | None:
        return None if "input" in self.copies else Reason("shape", "it takes a prologue only of an input that it copies")

    def passes(self, gpu: Gpu, prologue: bool) -> tuple[Pass, ...]:
        """Its copies, made by one kernel, which may apply a prologue to the input."""
        w, passes = self.w, list[Pass]()
        pixels, read = w.input_elements, self.size
        if self.sparse:  # whole sectors are read
            pixels, read = w.batch * w.channels * w.windows, min(w.stride_w * self.size, SECTOR_BYTES)
        begin = w.input_elements * (PROLOGUE_ELEMENT + PROLOGUE_CHANNEL) if prologue else 0
        moved = {"input": (pixels, read, begin), "filters": (w.filter_elements, self.size, 0)}
        for name, written in self.copies.items():
            elements, read, more = moved[name]
            instructions = self.copying_instructions(gpu, elements, written) + more
            passes.append(Pass(f"copied {name}", elements * read, written, instructions, 0 if passes else 1))
        return tuple(passes)

    def copying_instructions(self, gpu: Gpu, elements: float, written: float) -> float:
        """Instructions of a copy of `elements` into `written` bytes, of all lanes."""
        return elements * gpu.model.passes.copied_instructions.value

    def tolerance(self) -> Bound:
        bound = super().tolerance()
        return gemm.sums_of_parts(self.w, self.tiles)._replace(finite=bound.finite) if self.row.promotion else bound


class Boxes(msgspec.Struct, frozen=True):
    """How TMA reads a window, or a filter: `rows` rows of contiguous channels, each of `row_bytes` bytes."""

    rows: int
    row_bytes: int

    def iterations(self, size: int) -> int:
        """Each row has whole k-iterations, of `size` bytes."""
        return self.rows * -(-self.row_bytes // size)


class Folded(NamedTuple):
    """A copy that folds stride_h x stride_w pixels into the channels of one: padded bytes of such a pixel, kernel, rows (of all slices) and
    columns."""

    padded: int
    kernel_rows: int
    kernel_w: int
    rows: int
    wide: int

    @classmethod
    def of(cls, w: Conv) -> "Folded":
        high, wide = -(-w.kernel_h // w.stride_h), -(-w.kernel_w // w.stride_w)
        padded = round_up(w.stride_h * w.stride_w * w.channels * w.element_bytes, VECTOR_BYTES)
        return cls(padded, w.kernel_d * high, wide, w.depth * (w.out_h + high - 1), w.out_w + wide - 1)

    @property
    def boxes(self) -> Boxes:
        return Boxes(self.kernel_rows, self.kernel_w * self.padded)


class Wgmma(ChannelsLast):
    """A convolution whose windows TMA gathers."""

    def refusal(self) -> Reason | None:
        if why := self.taps_refusal():
            return Reason("shape", why)
        w, row, most = self.w, self.row, cuda_limits()
        kind, slices = ("TMA_VOLUME", "slices, rows") if w.is_volume else ("TMA", "rows")
        stride, span, corner = most["TMA_STRIDE"], most[f"{kind}_SPAN"] - 1, most[f"{kind}_CORNER"]
        columns = w.columns if not row.row_taps else msgspec.structs.replace(w.columns, kernel=1)
        axes = [w.slices] * w.is_volume + [w.rows, columns]
        if row.folds and not self.folded:
            why = "it takes a stride above 1 and few channels, which it copies"
        elif max(axis.stride for axis in axes) > stride:
            why = f"it takes strides of up to {stride}"
        elif max(axis.extent for axis in axes) - 1 > span:
            why = f"it takes kernels that span up to {span + 1} {slices} and columns"
        elif max(axis.before for axis in axes) > corner:
            why = f"it takes padding of up to {corner}"
        elif any(not -corner <= axis.after - axis.extent + 1 < corner for axis in axes):
            why = f"its last window must begin at most {corner} {slices} and columns before the input's end, or {corner - 1} after"
        elif row.promotion and w.filters * w.taps > most["LAYOUT_CONVERSION_ROWS"]:
            why = f"it splits up to {most['LAYOUT_CONVERSION_ROWS']} taps of all filters into halves"
        return Reason("shape", why) if why else None

    def taps_refusal(self) -> str:
        """Why its taps cannot share pixels, where they would."""
        w, taps = self.w, self.row.row_taps
        if not taps:
            return ""
        if self.layout != "nhwc" or self.copied:
            return "it takes channels last, of each group whole k-iterations or all 16 bytes"
        if w.kernel_w != taps or w.stride_w > 1 or w.dilation_w > 1:
            return f"it takes rows of {taps} taps without stride and dilation"
        if w.groups * self.window_count > (most := cuda_limits()["CONV_TENSOR"]):
            return f"its windows, {('one', 'two')[taps - 2]} more in a row, would be more than {most:,}"
        return ""

    # Windows

    @property
    def read(self) -> Windows:
        """Windows of the NHWC input, or of the copy."""
        return windows_of(self.w, "nhwc", self.row.outputs)

    @property
    def plane_windows(self) -> int:
        """Windows of an image that is read from planes, in whole TMA boxes."""
        return round_up(self.w.height * self.w.width, LINE_BYTES // self.size)

    @lazy
    def in_planes(self) -> bool:
        """Whether it reads windows from the planes of NCHW (native/cuda/conv/wgmma/operands.cu)."""
        w, plane = self.w, self.w.height * self.w.width
        if self.layout == "nhwc" or not w.pointwise or w.groups > 1 or self.row.promotion:
            return False
        whole = plane * self.size % VECTOR_BYTES == 0 and w.channels * self.size % VECTOR_BYTES == 0
        return whole and 2 * self.plane_windows <= 3 * plane

    @property
    def window_count(self) -> int:
        w = self.w
        if self.row.row_taps:  # one for each pixel of a padded row
            return w.batch * w.out_d * w.out_h * (w.out_w + self.row.row_taps - 1)
        return w.batch * (self.plane_windows if self.in_planes else w.windows)

    def requested_bytes(self, l1_bytes: float) -> float:
        w, taps, block = self.w, self.row.row_taps, self.row.block_windows
        if taps:
            return float(self.window_count * (block + taps - 1) / block * w.products / taps * w.groups * self.size)
        return float(self.windows.number * w.products * w.groups * self.size)

    # K-iterations

    @property
    def iteration_bytes(self) -> int:
        """Bytes of a window's channels in a k-iteration."""
        return self.row.block_k * self.size

    @lazy
    def copied(self) -> bool:
        """Whether it copies the input."""
        if self.in_planes:
            return False
        whole = self.w.groups == 1 or self.padded_bytes % self.iteration_bytes == 0
        return self.layout == "nchw" or self.ragged or not whole

    @lazy
    def rows_of_taps(self) -> bool:
        """Whether its copy pads rows, so that a row of taps is contiguous like channels: where that takes fewer k-iterations."""
        w, padded, size = self.w, self.padded_bytes, self.iteration_bytes
        vectors = w.batch * w.groups * w.depth * w.height * (w.width + w.pad_left + w.pad_right) * padded // VECTOR_BYTES
        fewer = -(-w.kernel_w * padded // size) < w.kernel_w * -(-padded // size)
        return self.copied and w.dilation_w == 1 and fewer and vectors < 1 << 31

    @property
    def boxes_unfolded(self) -> Boxes:
        """A row for each row of taps, or for each tap."""
        w, padded = self.w, self.padded_bytes
        if self.row.row_taps:
            return Boxes(w.kernel_rows, padded)
        return Boxes(w.kernel_rows, w.kernel_w * padded) if self.rows_of_taps else Boxes(w.taps, padded)

    @property
    def boxes(self) -> Boxes:
        return self.folded.boxes if self.folded else self.boxes_unfolded

    @lazy
    def folded(self) -> Folded | None:
        """The folding copy, where that takes fewer k-iterations. Only rows that fold may add taps."""
        w = self.w
        if not self.row.folds and (w.kernel_h % w.stride_h or w.kernel_w % w.stride_w):
            return None
        if not self.copied or w.groups > 1 or w.stride_h * w.stride_w == 1 or max(w.dilation_h, w.dilation_w) > 1:
            return None
        of = Folded.of(w)
        sizes, vectors = ((w.batch * of.rows, of.wide), (w.filters * of.kernel_rows, of.kernel_w)), of.padded // VECTOR_BYTES
        fits = all(rows <= INT_MAX // (wide * vectors) for rows, wide in sizes)
        size = self.iteration_bytes
        return of if of.boxes.iterations(size) < self.boxes_unfolded.iterations(size) and fits else None

    @property
    def k(self) -> int:
        """In whole k-iterations."""
        return self.iterations * self.row.tiles.depth

    @property
    def iterations(self) -> int:
        return self.boxes.iterations(self.iteration_bytes)

    @property
    def order(self) -> str:
        """Each tap is padded to whole k-iterations, or each row of taps is."""
        if self.row.row_taps:
            return order_of(self.w, "slices", "rows", "channels", "columns") + f" of {self.row.block_k} channels"
        order, w = order_of(self.w, "slices", "rows", "columns", "channels"), self.w
        if self.folded:
            return f"{order}, folded by the stride"
        rows = self.rows_of_taps and w.kernel_w > 1
        return f"{order}, each row whole" if rows else f"{order}, each tap whole" if w.taps > 1 else order

    @property
    def filters_stay(self) -> bool:
        """Whether filters stay in shared memory from tile to tile (native/cuda/mainloop/wgmma/kernel.cuh): one tile has them all, and its
        k-iterations use the same stages each time."""
        one_tile = self.w.groups == 1 and self.w.filters <= self.row.block_filters * self.row.cluster_filters
        return one_tile and self.row.stages % self.iterations == 0

    # Operands

    @property
    def filters_bytes(self) -> int:
        """Bytes of the filters as the kernels read them."""
        of = self.folded
        return self.w.filters * (of.kernel_rows * of.kernel_w * of.padded if of else self.w.taps * self.padded_bytes)

    @lazy
    def copies(self) -> dict[str, int]:
        """As native/cuda/conv/wgmma/operands.cu makes them."""
        w, copies, of = self.w, {}, self.folded
        if self.copied:
            wide = w.width + (w.pad_left + w.pad_right) * self.rows_of_taps
            pixels = of.rows * of.wide if of else w.windows if self.sparse else w.depth * w.height * wide
            copies["input"] = round_up(w.batch * pixels * w.groups * (of.padded if of else self.padded_bytes), ALIGN)
        if of or self.ragged or not (self.layout == "nhwc" or w.taps == 1):
            copies["filters"] = round_up(self.filters_bytes, ALIGN)
        return copies

    @property
    def halves_bytes(self) -> int:
        """Bytes of both halves of the filters."""
        return round_up(2 * self.filters_bytes, ALIGN)

    @property
    def buffers(self) -> dict[str, int]:
        """Its copies; the halves count with the filters."""
        if not self.row.promotion:
            return self.copies
        return self.copies | {"filters": self.copies.get("filters", 0) + self.halves_bytes}

    def copying_instructions(self, gpu: Gpu, elements: float, written: float) -> float:
        if not self.folded:
            return super().copying_instructions(gpu, elements, written)
        of = gpu.model.passes
        return (
            written / VECTOR_BYTES * (of.folded_vector_instructions.value + of.folded_element_instructions.value * VECTOR_BYTES / self.size)
        )

    # Candidates

    def variant(self, gpu: Gpu, known: dict[str, Attributes], prologue: bool = False) -> Variant:
        passes = self.passes(gpu, prologue)
        if self.row.promotion:
            instructions = self.filters_bytes / self.size * gpu.model.passes.copied_instructions.value
            passes = (*passes, Pass("halves", self.filters_bytes, self.halves_bytes, instructions))
        work = mainloop.work(gpu, self.tiles, False, True, a_in_registers=self.in_planes and self.size > 2)
        of_passes = ("model.passes.copied_", *["model.passes.folded_"] * bool(self.folded)) if passes else ()
        variant = self.tiled(gpu, known, work, passes, "model.row_ends_per_cycle", *of_passes)
        columns = variant.columns
        assert columns is not None
        columns = columns._replace(
            max_cluster_splits=self.row.reduces_in_cluster, unaligned_c=STRIPS * self.by_strips, **self.boxes_and_sectors()
        )
        if self.filters_stay:
            share = min(1.0, gpu.sms.value // self.tiles.blocks / -(-columns.m // columns.tile_m))
            columns = columns._replace(
                requested_bytes_b=columns.requested_bytes_b * share, b_parts=columns.b_parts * share, row_ends_b=columns.row_ends_b * share
            )
        return msgspec.structs.replace(variant, columns=columns)

    @property
    def by_strips(self) -> bool:
        """Whether pixels, or planes, of results are no whole vectors, so that elements are stored (native/cuda/mainloop/wgmma)."""
        w = self.w
        lines = (w.filters, w.group_filters) if self.layout == "nhwc" else (w.windows,)
        return any(line * self.size % VECTOR_BYTES for line in lines)

    @property
    def pitch_bytes(self) -> int:
        """Bytes between the box rows of adjacent pixels; of planes, between channels."""
        if self.in_planes:
            return self.w.height * self.w.width * self.size
        return self.folded.padded if self.folded else self.w.groups * self.padded_bytes

    def boxes_and_sectors(self) -> dict[str, float]:
        """By the pitches of rows: L2 lines that box rows of windows and filters touch, box rows that end inside a sector, sectors that runs
        of the output touch."""
        w, boxes = self.w, self.boxes
        ends = boxes.rows if boxes.row_bytes % SECTOR_BYTES and not self.in_planes else 0
        return {
            "lines_a": lines_of_row(self.pitch_bytes, self.iteration_bytes),
            "lines_b": lines_of_row(self.filters_bytes // w.filters, self.iteration_bytes),
            "row_ends_a": float(ends * self.window_count * w.groups),
            "row_ends_b": float(ends * w.group_filters * max(1, self.row.row_taps)),
            "sectors": sectors_of((w.filters if self.layout == "nhwc" else w.windows) * self.size),
        }


ALGORITHM = Rows("wgmma", Wgmma, "implicit GEMM on tensor cores: TMA gathers windows of contiguous channels")
