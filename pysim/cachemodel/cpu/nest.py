# SPDX-License-Identifier: Apache-2.0
"""The loop nest that every workload becomes: windows x filters outputs, each a sum over channels and kernel taps.

    O[f][w] = sum over c < channels, r < kernel_h, s < kernel_w of F[f][c][r][s] * I[c][row(w) * stride_h + r * dilation_h - pad_top][...]

once for each image and group. A matrix product C[m][n] = A[m][k] B[k][n] is the 1x1 case: filters = m (A), windows = n (columns
of B), channels = k. Windows are numbered row by row, so a tile of windows may cross rows of outputs.

Worked number: 56x56 outputs of a 3x3 kernel with one row of padding, tiles of 32 windows: 98 tiles. Kernel row 0 lies in padding for
the 56 windows of output row 0, that is for all windows of tile 0 only; so does row 2 for tile 97. 98 * 3 - 2 = 292 rows are live.
"""

import math
from functools import lru_cache

import msgspec
import numpy as np

from pysim.problem.text import GEMM_DTYPES, RESULT_BYTES, Gemm, Workload
from pysim.record.schedule import Schedule

PANEL_ALIGN = 64  # bytes; panels start on such boundaries (native/conv/nest.c)


class Nest(msgspec.Struct, frozen=True, kw_only=True):
    """One workload as a loop nest; `channels` and `filters` are those of one group, sizes are elements.

    `in_place`: consecutive windows are consecutive elements of a plane, so a micro-kernel can read them without packing.
    `filters_packed`: filters are laid out in tiles before the run (a convolution's weights), otherwise the run packs them.
    `windows_transposed`, `filters_transposed`: packing that operand turns rows into columns.
    """

    batch: int
    groups: int
    channels: int
    filters: int
    height: int
    width: int
    out_h: int
    out_w: int
    kernel_h: int = 1
    kernel_w: int = 1
    stride_h: int = 1
    stride_w: int = 1
    dilation_h: int = 1
    dilation_w: int = 1
    pad_top: int = 0
    pad_left: int = 0
    element_bytes: int  # of the operands
    out_bytes: int  # of an output
    in_place: bool
    filters_packed: bool
    windows_transposed: bool = False
    filters_transposed: bool = False

    @property
    def windows(self) -> int:
        """Outputs of one filter in one image."""
        return self.out_h * self.out_w

    @property
    def repeats(self) -> int:
        """How often the nest runs: once for each image and group."""
        return self.batch * self.groups

    @property
    def span_h(self) -> int:
        """Rows of the padded input between the first and the last that any window reads."""
        return (self.out_h - 1) * self.stride_h + (self.kernel_h - 1) * self.dilation_h + 1

    @property
    def span_w(self) -> int:
        """Columns of the padded input between the first and the last that any window reads."""
        return (self.out_w - 1) * self.stride_w + (self.kernel_w - 1) * self.dilation_w + 1

    @property
    def touched_h(self) -> int:
        """Rows of a stored input plane that windows read."""
        return min(self.height, self.out_h * self.kernel_h, self.span_h)

    @property
    def touched_w(self) -> int:
        """Columns of a stored input row that reads of the row bring in; a strided read brings the lines between."""
        return min(self.width, self.span_w)

    @property
    def plane_bytes(self) -> int:
        """Bytes between one channel and the next."""
        return self.height * self.width * self.element_bytes

    def touched_bytes(self, line: int) -> int:
        """Bytes of the lines of an input plane that windows read: rows with unread ones between them fill lines badly."""
        size, gaps = self.element_bytes, self.touched_h < min(self.height, self.span_h)
        step = self.width * size * (self.stride_h if gaps else 1)  # bytes from one row that is read to the next
        start = math.gcd(line, self.plane_bytes, step)  # rows start on multiples of this
        return self.touched_h * min(step, ceil_div(self.touched_w * size, start) * start + line - start)

    def run_edge(self, tile: int, line: int) -> int:
        """Bytes of input lines that packing reads for one run of windows and again for the next one of the same row of outputs."""
        size, extent = self.element_bytes, (self.kernel_w - 1) * self.dilation_w + 1
        rows = self.width * size if self.out_h > 1 else 0
        columns = size if self.kernel_w > 1 or self.pad_left else tile * self.stride_w * size
        return line_rest(line, self.plane_bytes, rows, columns) + max(0, extent - self.stride_w) * size

    def live_outputs(self, kernel_row: int) -> tuple[int, int]:
        """First and last output row for which a kernel row meets the image (an empty range when it never does)."""
        offset = kernel_row * self.dilation_h - self.pad_top
        first = max(0, -(offset // self.stride_h))
        last = min(self.out_h - 1, (self.height - 1 - offset) // self.stride_h)
        return first, last

    def live_rows(self, tile: int) -> tuple[int, int]:
        """Kernel rows to run over all tiles of `tile` windows: (sum over the full tiles, those of the partial last tile).

        A kernel row is skipped in a tile when all windows of the tile find it in vertical padding.
        """
        last_tile, partial = (self.windows - 1) // tile, self.windows % tile != 0
        full = edge = 0
        for row in range(self.kernel_h):
            first, last = self.live_outputs(row)
            if first > last:
                continue
            low, high = first * self.out_w // tile, ((last + 1) * self.out_w - 1) // tile
            ends_partial = partial and high == last_tile
            edge += ends_partial
            full += high - low + 1 - ends_partial
        return full, edge


def workspace_bytes(nest: Nest, schedule: Schedule) -> int:
    """Bytes of packed panels that one thread keeps, each rounded up to 64, as `pysim_conv_workspace_bytes` answers."""
    depth = schedule.channels * nest.kernel_h * nest.kernel_w * nest.element_bytes
    window_tiles, filter_tiles = ceil_div(nest.windows, schedule.windows), ceil_div(nest.filters, schedule.filters)
    if schedule.stationary == "input_stationary":
        filter_panels, window_panels = min(schedule.k2, filter_tiles), min(schedule.k3, window_tiles)
        if filter_panels == filter_tiles:
            window_panels = 1  # all filters pass by a tile before the next one is packed
    else:
        filter_panels, window_panels = min(schedule.k3, filter_tiles), min(schedule.k2, window_tiles)
    windows = window_panels * _aligned(depth * schedule.windows) if schedule.pack == "tiles" else 0
    filters = 0 if nest.filters_packed else filter_panels * _aligned(depth * schedule.filters)
    return windows + filters + PANEL_ALIGN


def packed_filter_bytes(nest: Nest, schedule: Schedule) -> int:
    """Bytes of filters that were packed once, in whole tiles, as `pysim_conv_packed_filter_bytes` answers."""
    tiles = ceil_div(nest.filters, schedule.filters)
    return nest.groups * tiles * schedule.filters * nest.channels * nest.kernel_h * nest.kernel_w * nest.element_bytes


def _aligned(size: int) -> int:
    return ceil_div(size, PANEL_ALIGN) * PANEL_ALIGN


def nest_of(workload: Workload) -> Nest:
    """The loop nest of a convolution or of a matrix product."""
    if isinstance(workload, Gemm):
        return _nest_of_gemm(workload)
    flat = workload.pointwise
    height, width = (1, workload.height * workload.width) if flat else (workload.height, workload.width)
    return Nest(
        batch=workload.batch,
        groups=workload.groups,
        channels=workload.channels // workload.groups,
        filters=workload.filters // workload.groups,
        height=height,
        width=width,
        out_h=1 if flat else workload.out_h,
        out_w=width if flat else workload.out_w,
        kernel_h=workload.kernel_h,
        kernel_w=workload.kernel_w,
        stride_h=workload.stride_h,
        stride_w=workload.stride_w,
        dilation_h=workload.dilation_h,
        dilation_w=workload.dilation_w,
        pad_top=workload.pad_top,
        pad_left=workload.pad_left,
        element_bytes=GEMM_DTYPES[workload.dtype],
        out_bytes=RESULT_BYTES[workload.dtype],
        in_place=flat,
        filters_packed=True,
    )


def _nest_of_gemm(gemm: Gemm) -> Nest:
    return Nest(
        batch=1,
        groups=1,
        channels=gemm.k,
        filters=gemm.m,
        height=1,
        width=gemm.n,
        out_h=1,
        out_w=gemm.n,
        element_bytes=GEMM_DTYPES[gemm.dtype],
        out_bytes=RESULT_BYTES[gemm.dtype],
        in_place=not gemm.trans_b,
        filters_packed=False,
        windows_transposed=gemm.trans_b,
        filters_transposed=not gemm.trans_a,
    )


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@lru_cache(maxsize=4096)
def segments(windows: int, row: int, tile: int, lanes: int) -> tuple[int, int]:
    """Runs of windows that lie in one tile and one row of `row` outputs: (how many, vectors of `lanes` that they fill)."""
    run = tile if row >= windows else min(tile, row)
    if row >= windows or max(tile, row) % run == 0:  # every cut is a multiple of `run`
        last = windows % run
        return ceil_div(windows, run), windows // run * ceil_div(run, lanes) + ceil_div(last, lanes)
    cut = np.zeros(windows, dtype=bool)
    cut[::tile] = True
    cut[::row] = True
    lengths = np.diff(np.flatnonzero(cut), append=windows)
    return int(lengths.size), int((-(-lengths // lanes)).sum())


def line_rest(line: int, *strides: int) -> int:
    """Bytes of lines that runs of bytes touch beyond their own, on average, if they start at sums of multiples of `strides`."""
    return line - math.gcd(line, *strides)
