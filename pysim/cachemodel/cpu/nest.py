# SPDX-License-Identifier: Apache-2.0
"""Every workload as one loop nest: windows x filters outputs, each a sum over channels and kernel taps.

    O[f][w] = sum over c < channels, r < kernel_h, s < kernel_w of F[f][c][r][s] * I[c][row(w) * stride_h + r * dilation_h - pad_top][...]

once for each image and group. Volumes have a depth more: kernel rows are those of all slices of the kernel, rows of outputs those of all
slices of the output. A matrix product C[m][n] = A[m][k] B[k][n] is the 1x1 case: filters = m (A), windows = n (columns
of B), channels = k. Windows are numbered row by row, so a tile of windows may span rows of outputs.

Worked number: 56x56 outputs of a 3x3 kernel with one row of padding, tiles of 32 windows: 98 tiles. Kernel row 0 meets only padding for the
56 windows of output row 0, so for all windows of tile 0 only; likewise kernel row 2 for tile 97. 98 * 3 - 2 = 292 rows are live.
"""

import math
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from pysim.errors import PlanError
from pysim.problem.conv import DEPTH_FIELDS, Axis, Conv
from pysim.problem.dtypes import RESULT_BYTES
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.record.schedule import Schedule
from pysim.registry.cpu import cpu_kernel

Whole = NDArray[np.int64]
MAX_PROGRESSIONS = 1024  # of kernel rows (`live_rows_of`)
PACKED_MARK_BYTES = 8  # after the panels: marks weights that are not finite (PYSIM_PACKED_MARK_BYTES)
PANEL_ALIGN = 64  # bytes; panels start on such boundaries (native/algorithms/nest.c)


class Nest(Conv, frozen=True, cache_hash=True, kw_only=True):
    """One workload as a loop nest, a convolution; sizes are elements.

    `in_place`: consecutive windows are consecutive elements of a plane, so a micro-kernel can read them without packing.
    `filters_packed`: filters are in tiles before the run (a convolution's weights), or are read in place (`filters_in_place`, of a
    product); otherwise the run packs them. `windows_packed`: windows are in panels before the run, and count as in place;
    then pack of a schedule says whether the run packs filters.
    `windows_transposed`, `filters_transposed`: packing that operand transposes it. `fresh_input`: the input was written just before the
    run. `to_bytes`: complete sums are stored as bytes. `filters_gathered`: rows of k of filters are windows of an image, which the
    run gathers in so many pieces each; else 0. `copied_pieces`: short pieces are copies of one size.
    """

    in_place: bool
    filters_packed: bool = True
    filters_in_place: bool = False
    windows_packed: bool = False
    windows_transposed: bool = False
    filters_transposed: bool = False
    filters_gathered: int = 0
    copied_pieces: bool = False
    fresh_input: bool = False
    to_bytes: bool = False

    def __post_init__(self) -> None:
        """Does nothing: the workload has checked itself."""

    @property
    def repeats(self) -> int:
        """Runs of the nest: one for each image and group."""
        return self.batch * self.groups

    @property
    def stored_bytes(self) -> int:
        """Bytes of a stored result."""
        return 1 if self.to_bytes else self.result_bytes

    @property
    def touched_d(self) -> int:
        """Slices of a stored volume that windows read."""
        return min(self.depth, self.out_d * self.kernel_d, (self.out_d - 1) * self.stride_d + (self.kernel_d - 1) * self.dilation_d + 1)

    @property
    def span_h(self) -> int:
        """Rows of the padded input between the first and the last that any window reads."""
        return (self.out_h - 1) * self.stride_h + (self.kernel_h - 1) * self.dilation_h + 1

    @property
    def span_w(self) -> int:
        """Columns of the padded input between the first and the last that any window reads."""
        return (self.out_w - 1) * self.stride_w + (self.kernel_w - 1) * self.dilation_w + 1

    @property
    def pads_rows(self) -> bool:
        """Whether a kernel row may meet padding in all windows of a tile."""
        return any((self.pad_top, self.pad_bottom, self.pad_front, self.pad_back))

    @property
    def touched_h(self) -> int:
        """Rows of a stored input plane that windows read."""
        return min(self.height, self.out_h * self.kernel_h, self.span_h)

    @property
    def touched_w(self) -> int:
        """Columns of a stored input row that are brought in; a strided read brings the lines between."""
        return min(self.width, self.span_w)

    @property
    def plane_bytes(self) -> int:
        """Bytes between one channel and the next."""
        return self.depth * self.height * self.width * self.element_bytes

    @property
    def touched_rows(self) -> int:
        """Rows of a channel that windows read."""
        return self.touched_d * self.touched_h

    @property
    def row_step(self) -> float:
        """Rows that windows of a row of outputs read and those of the row before did not, on average over a channel."""
        if self.out_d == 1:
            return min(self.stride_h, self.kernel_h) * self.touched_d
        return min(self.stride_d, self.kernel_d) * self.touched_h / self.out_h

    @property
    def reached_rows(self) -> int:
        """Rows between the first and the last that a window reads, those of slices between its own included."""
        if self.out_d == 1:
            return self.touched_d * min((self.kernel_h - 1) * self.dilation_h + 1, self.touched_h)
        return min((self.kernel_d - 1) * self.dilation_d + 1, self.touched_d) * self.touched_h

    @property
    def input_pitch(self) -> int:
        """Bytes between the planes of a tile of windows: between channels, or between windows if they are transposed."""
        return self.group_channels * self.element_bytes if self.windows_transposed else self.plane_bytes

    @property
    def filters_in_rows_of_k(self) -> bool:
        """Whether the run packs filters from rows of k, or reads them there: a transposed A."""
        return (not self.filters_packed or self.filters_in_place) and not self.filters_transposed

    @property
    def filter_rows(self) -> tuple[int, int] | None:
        """Bytes between rows of the filters in memory, and the number of rows, if the run reads them; None if it reads panels alone."""
        if self.filters_in_rows_of_k:
            return self.group_filters * self.element_bytes, self.group_channels
        return (self.group_channels * self.element_bytes, self.group_filters) if self.filters_in_place else None

    def touched_bytes(self, line: int) -> int:
        """Bytes of the lines of an input plane that windows read. Rows with unread rows between them start and end within lines."""
        size, gaps = self.element_bytes, self.touched_h < min(self.height, self.span_h)
        step = self.width * size * (self.stride_h if gaps else 1)  # bytes from one row that is read to the next
        start = math.gcd(line, self.plane_bytes, step)  # rows start on multiples of this
        return self.touched_rows * min(step, ceil_div(self.touched_w * size, start) * start + line - start)

    def run_edge(self, tile: Whole, line: int) -> Whole:
        """Bytes of input lines that packing reads for one run of windows and again for the next run of the same output row, by tiles."""
        size, extent = self.element_bytes, (self.kernel_w - 1) * self.dilation_w + 1
        rows = self.width * size if self.out_rows > 1 else 0
        columns = tile * 0 + size if self.kernel_w > 1 or self.pad_left else tile * self.stride_w * size
        return line_rest(columns, line, self.plane_bytes, rows) + max(0, extent - self.stride_w) * size

    def live_rows(self, tile: int) -> tuple[int, int]:
        """Live kernel rows summed over tiles of `tile` windows: (over the full tiles, of the partial last tile).

        A kernel row is skipped in a tile if all windows of the tile meet it in vertical padding; of volumes the same, but rows between live
        ones are not skipped. There a tile counts as one of its slice alone.
        """
        if self.is_volume:
            return self._live_rows_of_slices(tile)
        last_tile, partial, last_row, wide = (self.windows - 1) // tile, self.windows % tile != 0, self.out_h - 1, self.out_w
        if live_taps(self)[0] == self.out_h * self.kernel_h:  # none lies in padding
            return (last_tile + 1 - partial) * self.kernel_h, partial * self.kernel_h
        tiles = edge = 0
        for first, last in live_rows_of(self):
            low = first.quotients(wide, 0, tile, last_row)
            high = last.quotients(wide, wide - 1, tile, last_row)
            tiles += high - low + first.terms
            edge += partial * last.at_least(last_tile * tile // wide)
        return tiles - edge, edge

    def _live_rows_of_slices(self, tile: int) -> tuple[int, int]:
        tiles, partial = ceil_div(self.windows, tile), self.windows % tile != 0
        image = Nest(**{name: getattr(self, name) for name in self.__struct_fields__ if name not in DEPTH_FIELDS})
        most, of_image = image.windows, min(tile, image.windows)
        in_slice = sum(image.live_rows(of_image)) / ceil_div(most, of_image)
        slices = _live(self.out_d, self.kernel_d, self.stride_d, self.dilation_d, self.pad_front, self.depth) / self.out_d
        mean = max(0.0, slices - 1) * self.kernel_h + min(1.0, slices) * in_slice
        all_rows = round(tiles * mean)
        edge = partial * min(self.kernel_rows, round(mean))
        return max(0, all_rows - edge), edge


class Progression(msgspec.Struct, frozen=True):
    """Rows `start`, `start` - `step`, ..., `terms` of them."""

    start: int
    step: int
    terms: int

    def at_least(self, row: int) -> int:
        """The number of rows that are at least `row`."""
        return min(self.terms, max(0, (self.start - row) // self.step + 1))

    def quotients(self, scale: int, offset: int, divisor: int, most: int) -> int:
        """Sum of floor((scale row + offset) / divisor) over the rows, clipped to 0..`most`."""
        above, inside = self.at_least(most + 1), self.at_least(0)
        ends = above * ((scale * most + offset) // divisor) + (self.terms - inside) * (offset // divisor)
        least = self.start - (inside - 1) * self.step  # of those inside
        return ends + floor_sum(inside - above, scale * self.step, scale * least + offset, divisor)


def floor_sum(count: int, step: int, start: int, divisor: int) -> int:
    """Sum over i < `count` of floor((start + i step) / divisor), for `start` and `step` of at least 0.

    After whole divisors are split off, the rest counts lattice points under a line. Counted along the other axis there are fewer of
    them, as in Euclid's algorithm (Graham, Knuth and Patashnik, Concrete Mathematics, 3.5).
    """
    total, sign = 0, 1
    while count > 0:
        total += sign * (count * (count - 1) // 2 * (step // divisor) + count * (start // divisor))
        step, start = step % divisor, start % divisor
        most = (start + (count - 1) * step) // divisor
        total += sign * most * count
        # for each j of 1..most, ceil((j divisor - start) / step) points lie below j
        count, step, start, divisor, sign = most, divisor, divisor - start + step - 1, step, -sign
    return total


@lru_cache(maxsize=64)
def live_taps(w: Conv) -> tuple[int, int]:
    """Kernel rows that meet the image, summed over rows of outputs, and taps of a row that do, summed over columns."""
    rows = _live(w.out_h, w.kernel_h, w.stride_h, w.dilation_h, w.pad_top, w.height)
    if w.is_volume:
        rows *= _live(w.out_d, w.kernel_d, w.stride_d, w.dilation_d, w.pad_front, w.depth)
    return rows, _live(w.out_w, w.kernel_w, w.stride_w, w.dilation_w, w.pad_left, w.width)


def used_taps(w: Conv) -> int:
    """Taps of a kernel that meet the image for some output; weights of other taps are never read."""
    return _used(w.slices) * _used(w.rows) * _used(w.columns)


def _used(axis: Axis) -> int:
    """The taps of an axis that meet the image: all inner ones, unless windows leave gaps between them."""
    if axis.stride <= axis.size:
        return len(axis.inner_taps)
    return sum(axis.met(range(at, at + 1)) > 0 for at in axis.inner_taps)


def _live(out: int, kernel: int, stride: int, dilation: int, before: int, size: int) -> int:
    def ending(at: int) -> int:
        """Pairs of an output and a tap that lie at `at` or before."""
        return Progression(at + before + stride, dilation, kernel).quotients(1, 0, stride, out * stride)

    return ending(size - 1) - ending(-1)


@lru_cache(maxsize=64)
def live_rows_of(nest: Nest) -> tuple[tuple[Progression, Progression], ...]:
    """The first and the last row of outputs for which kernel rows meet the image, not clipped to the output.

    Kernel rows whose offsets (row x dilation) differ by multiples of the stride form arithmetic progressions, one pair for all of them.
    Rows that never meet the image are in none. Raises PlanError for too many progressions.
    """
    stride = nest.stride_h if nest.out_h > 1 else 1  # no stride moves a single row of outputs
    apart = stride // math.gcd(stride, nest.dilation_h)
    step, number = apart * nest.dilation_h // stride, min(apart, nest.kernel_h)
    if number > MAX_PROGRESSIONS:
        sizes = f"kernel rows (kh) are {nest.kernel_h:,} and their stride (sh) is {nest.stride_h:,}"
        raise PlanError(f"{sizes}: they meet the image in {number:,} ways; plans are made for up to {MAX_PROGRESSIONS:,}")
    found = []
    for row in range(number):
        offset = row * nest.dilation_h - nest.pad_top
        first, last = -(offset // stride), (nest.height - 1 - offset) // stride
        before = max(0, ceil_div(first - nest.out_h + 1, step))  # kernel rows that lie above the image even for the last outputs
        count = min(ceil_div(nest.kernel_h - row, apart), last // step + 1) - before
        if first <= last and count > 0:
            found.append((Progression(first - before * step, step, count), Progression(last - before * step, step, count)))
    return tuple(found)


def workspace_bytes(nest: Nest, schedule: Schedule) -> int:
    """Bytes of packed panels of one thread, each rounded up to 64, as `pysim_workspace_bytes` answers."""
    depth = nest.kernel_rows * _whole_groups(nest, schedule, schedule.channels * nest.kernel_w)
    window_tiles, filter_tiles = ceil_div(nest.windows, schedule.windows), ceil_div(nest.group_filters, schedule.filters)
    if schedule.stationary == "input_stationary":
        filter_panels, window_panels = min(schedule.k2, filter_tiles), min(schedule.k3, window_tiles)
        if filter_panels == filter_tiles:
            window_panels = 1  # all filters pass by one tile before the next is packed
    else:
        filter_panels, window_panels = min(schedule.k3, filter_tiles), min(schedule.k2, window_tiles)
    windows = (
        window_panels * _aligned(depth * schedule.windows * _panel_element(nest, schedule))
        if schedule.pack == "tiles" and not nest.windows_packed
        else 0
    )
    filters = 0 if nest.filters_packed else filter_panels * _aligned(depth * schedule.filters * _filter_element(nest, schedule))
    return windows + filters + PANEL_ALIGN


def panel_bytes(nest: Nest, schedule: Schedule) -> int:
    """Bytes of filters in panels, whole tiles."""
    tiles = ceil_div(nest.group_filters, schedule.filters)
    return nest.groups * tiles * schedule.filters * nest.kernel_rows * channels_depth(nest, schedule) * _filter_element(nest, schedule)


def window_panel_bytes(nest: Nest, schedule: Schedule) -> int:
    """The same of windows."""
    tiles = ceil_div(nest.windows, schedule.windows)
    return tiles * schedule.windows * channels_depth(nest, schedule) * _panel_element(nest, schedule)


def channels_depth(nest: Nest, schedule: Schedule) -> int:
    """k-iterations of one kernel row in panels: of each set of channels whole groups."""
    sets, rest = divmod(nest.group_channels, schedule.channels)
    of_set, of_rest = (_whole_groups(nest, schedule, channels * nest.kernel_w) for channels in (schedule.channels, rest))
    return sets * of_set + of_rest


def _whole_groups(nest: Nest, schedule: Schedule, k: int) -> int:
    kernel = cpu_kernel(schedule.kernel)
    group = kernel.group if kernel else 1
    return ceil_div(k, group) * group


def _panel_element(nest: Nest, schedule: Schedule) -> int:
    """Bytes of an element in panels of windows."""
    kernel = cpu_kernel(schedule.kernel)
    return kernel.window_bytes if kernel else nest.element_bytes


def _filter_element(nest: Nest, schedule: Schedule) -> int:
    """The same of filters."""
    kernel = cpu_kernel(schedule.kernel)
    return kernel.filter_bytes if kernel else nest.element_bytes


def packed_filter_bytes(nest: Nest, schedule: Schedule) -> int:
    """The same with the sums of s8 filters and the mark, as `pysim_prepared_bytes` answers for the nest."""
    return with_sums(nest.dtype, panel_bytes(nest, schedule), nest.filters) + PACKED_MARK_BYTES


def with_sums(dtype: str, size: int, count: int) -> int:
    """Bytes of panels and, of s8, of an INT32 sum of each of `count` filters or columns, which zero points need."""
    return _aligned(size) + count * RESULT_BYTES[dtype] if dtype == "s8" else size


def room_bytes(dtype: str, count: int) -> int:
    """Workspace for a bias less what zero points add, of s8."""
    return _aligned(count * RESULT_BYTES[dtype]) + PANEL_ALIGN if dtype == "s8" else 0


def _aligned(size: int) -> int:
    return ceil_div(size, PANEL_ALIGN) * PANEL_ALIGN


@lru_cache(maxsize=64)
def nest_of(workload: Workload) -> Nest:
    """The loop nest of a convolution or of a matrix product."""
    if isinstance(workload, Gemm):
        return _nest_of_gemm(workload)
    fields = {name: getattr(workload, name) for name in workload.__struct_fields__}
    if workload.pointwise:
        fields |= {"depth": 1, "height": 1, "width": workload.windows}
    return Nest(**fields, in_place=workload.pointwise)


def _nest_of_gemm(gemm: Gemm) -> Nest:
    return Nest(
        channels=gemm.k,
        filters=gemm.m,
        height=1,
        width=gemm.n,
        kernel_h=1,
        kernel_w=1,
        dtype=gemm.dtype,
        in_place=not gemm.trans_b,
        filters_packed=False,
        windows_transposed=gemm.trans_b,
        filters_transposed=not gemm.trans_a,
    )


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@lru_cache(maxsize=4096)
def segments(windows: int, row: int, tile: int, lanes: int) -> tuple[int, int, int]:
    """Runs of windows that lie in one tile and one row of `row` outputs: their number, the vectors of `lanes` that they fill, and those of
    them that are not full."""
    rows, rest = divmod(windows, row)
    period = tile // math.gcd(tile, row)  # rows after which the tiles' borders lie in the same places again
    runs, vectors, partial = _runs_of_row(rows * row, rest, tile, lanes) if rest else (0, 0, 0)
    for number in range(min(period, rows)):
        some, more, of_these = _runs_of_row(number * row, row, tile, lanes)
        repeated = (rows - number - 1) // period + 1
        runs, vectors, partial = runs + some * repeated, vectors + more * repeated, partial + of_these * repeated
    return runs, vectors, partial


def _runs_of_row(first: int, windows: int, tile: int, lanes: int) -> tuple[int, int, int]:
    """`segments` of consecutive windows from number `first` on, all in one row."""
    head = min(windows, -first % tile)
    full, tail = divmod(windows - head, tile)
    vectors = -(-head // lanes) + full * -(-tile // lanes) - (-tail // lanes)
    partial = (head % lanes > 0) + full * (tile % lanes > 0) + (tail % lanes > 0)
    return (head > 0) + full + (tail > 0), vectors, partial


def line_rest(columns: Whole, line: int, *strides: int) -> Whole:
    """Bytes of lines that runs touch beyond their own, on average, if runs start at sums of multiples of `strides` and, each, of
    `columns`."""
    return line - np.gcd(columns, math.gcd(line, *strides))
