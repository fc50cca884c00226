# SPDX-License-Identifier: Apache-2.0
"""The input that windows of a convolution touch: bytes of a run of windows, of all of them, and what their tiles request of L2.

Windows are numbered image by image, of volumes slice by slice, row by row. A run of n windows covers n / Q rows of outputs (whole slices
and images, if it is long enough), so it touches distinct(rows) x distinct(columns) of each channel and slice:

    distinct(n) = (n - 1) min(stride, R) + R        (dilated: the size of {p stride + r dilation}), at most the input's own

Where a stride leaves gaps in rows, whole sectors of 32 bytes are read. L1 serves repeated reads of taps as far as it holds the data between
them: one channel's part of the run under NCHW, all channels' under NHWC.

Assumed: runs begin at the start of a row. Padding is not read; the counts leave it out at the input's edge only.

Worked number: 128 windows of 3x3 in rows of 56 cover 2.29 of them and touch (1.29 + 3) x 58 = 249 of 1152 gathered elements.
"""

import math
from functools import lru_cache

import msgspec

from pysim.caches import lazy
from pysim.problem.conv import Conv
from pysim.record.plan import Layout

SECTOR_BYTES = 32


@lru_cache(maxsize=65536)
def distinct(count: float, kernel: int, stride: int, dilation: int) -> float:
    """Input positions along one axis that `count` consecutive outputs touch, linear between whole counts."""
    low = math.floor(count)
    if low != count:
        fewer, more = (distinct(n, kernel, stride, dilation) for n in (low, low + 1))
        return fewer + (more - fewer) * (count - low)
    shared = math.gcd(stride, dilation)
    # tap r of output p reads the input of tap r + stride / shared of output p - dilation / shared: such repeats are not distinct
    repeats = max(0, low - dilation // shared) * max(0, kernel - stride // shared)
    return low * kernel - repeats


class _Axis(msgspec.Struct, frozen=True):
    """The rows or the columns of an image, and the outputs along them."""

    size: int
    outputs: int
    kernel: int
    stride: int
    dilation: int

    @property
    def touched(self) -> float:
        """Rows or columns that outputs touch."""
        return min(distinct(self.outputs, self.kernel, self.stride, self.dilation), self.size)

    def bytes(self, each: int, pitch: int) -> float:
        """Bytes of the sectors that hold the touched rows or columns of `each` bytes; the next line begins `pitch` bytes later."""
        extent = (self.kernel - 1) * self.dilation + 1
        span = (self.outputs - 1) * self.stride + extent
        if self.stride <= extent:  # one run
            return min(self.size * each, _run(span * each, pitch))
        one = _run(extent * each, math.gcd(pitch, self.stride * each))
        runs = (self.outputs - 1) * min(self.stride * each, one) + one
        return min(self.size * each, runs, self.touched * _run(each, math.gcd(pitch, each)))


def _run(size: int, pitch: int) -> int:
    """Mean bytes of the sectors that a run of `size` bytes touches, where runs begin at multiples of `pitch`."""
    start = math.gcd(SECTOR_BYTES, pitch)
    return -(-size // start) * start + SECTOR_BYTES - start


class Windows(msgspec.Struct, frozen=True, cache_hash=True, dict=True):
    """A convolution's windows as a kernel numbers them: squares of outputs x outputs (1, or Winograd's), high x wide in an image."""

    conv: Conv
    layout: Layout
    outputs: int = 1
    tensor: bool = False  # read from im2win's tensor, which keeps the rows of windows separately

    @lazy
    def channels_last(self) -> bool:
        """Whether a pixel's channels are contiguous."""
        return self.layout == "nhwc"

    @lazy
    def high(self) -> int:
        """Rows of windows, of a volume those of all slices."""
        return self.conv.out_d * -(-self.conv.out_h // self.outputs)

    @lazy
    def wide(self) -> int:
        return -(-self.conv.out_w // self.outputs)

    @lazy
    def number(self) -> int:
        """Windows in all images, of one group."""
        return self.conv.batch * self.high * self.wide

    @lazy
    def k(self) -> int:
        return self.conv.group_channels if self.outputs > 1 else self.conv.products

    def _rows(self, count: float) -> float:
        """Rows of the input that rows of windows touch."""
        w, m = self.conv, self.outputs
        if self.tensor:
            return count * w.kernel_h
        high = self.high // w.out_d
        rows = min(distinct(min(count, high), w.kernel_h + m - 1, w.stride_h * m, w.dilation_h), w.height)
        return rows * min(distinct(max(1.0, count / high), w.kernel_d, w.stride_d, w.dilation_d), w.depth)

    def _columns(self, count: float, sectors: bool) -> float:
        """Bytes of one channel (NHWC: of a group's channels) that adjacent windows touch in one row, in whole `sectors` or not."""
        w, m, size = self.conv, self.outputs, self.conv.element_bytes
        columns = min(distinct(count, w.kernel_w + m - 1, w.stride_w * m, w.dilation_w), w.width)
        if self.channels_last:
            position = w.group_channels * size
            return columns * (-(-position // SECTOR_BYTES) * SECTOR_BYTES if sectors and w.groups > 1 else position)
        span = min(w.width, (count - 1) * w.stride_w * m + (w.kernel_w - 1) * w.dilation_w + m)
        return min(max(columns, span) * size, columns * SECTOR_BYTES)

    @lru_cache(maxsize=4096)  # noqa: B019  a value: many kernels ask the same
    def touched(self, count: float) -> float:
        """Bytes that `count` consecutive windows of one group touch of one channel (NHWC: of all the group's channels)."""
        image = self.high * self.wide
        inside = min(count, image)
        wide = min(inside, self.wide)
        return max(1.0, count / image) * self._rows(inside / wide) * self._columns(wide, True)

    @property
    def planes(self) -> int:
        """Planes of a group that `touched` bytes are read of: its channels under NCHW."""
        return 1 if self.channels_last else self.conv.group_channels

    @lazy
    def bytes(self) -> float:
        """Distinct bytes that the windows of all groups touch, in whole sectors: a lower bound on memory traffic."""
        w, m = self.conv, self.outputs
        if self.tensor:
            return w.batch * self._rows(self.high) * self._columns(self.wide, False) * self.planes * w.groups
        position = w.element_bytes * (w.channels if self.channels_last else 1)
        row = w.width * position
        columns = _Axis(w.width, self.wide, w.kernel_w + m - 1, w.stride_w * m, w.dilation_w).bytes(position, row)
        rows = _Axis(w.height, self.high // w.out_d, w.kernel_h + m - 1, w.stride_h * m, w.dilation_h)
        plane = rows.bytes(row, row * w.height) if columns == row else rows.touched * columns
        slices = _Axis(w.depth, w.out_d, w.kernel_d, w.stride_d, w.dilation_d).touched
        return w.batch * slices * plane * (1 if self.channels_last else w.channels)

    def requested_bytes(self, block: int, l1_bytes: float) -> float:
        """Bytes that tiles of `block` windows of all groups request of L2, where a block has `l1_bytes` of L1."""
        count = min(block, self.number)
        once = self.touched(count)
        taps = self.conv.taps if self.outputs == 1 else (self.outputs + 2) ** 2
        gathered = count * taps * self.conv.group_channels // self.planes * self.conv.element_bytes
        missed = min(1.0, max(0.0, 2 * once / l1_bytes - 1))
        tile = once + missed * max(0.0, gathered - once)
        return tile * self.planes * self.conv.groups * self.number / count


@lru_cache(maxsize=64)
def windows_of(conv: Conv, layout: Layout, outputs: int) -> Windows:
    """The windows of a convolution, the same object for all kernels that number them alike."""
    return Windows(conv, layout, outputs)
