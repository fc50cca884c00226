# SPDX-License-Identifier: Apache-2.0
"""What windows of a convolution touch of its input: bytes of a run of them, of all of them, and what tiles of them ask of L2.

Windows are numbered image by image, row by row. A run of n of them lies in n / Q rows of outputs (whole images, if it is so long), so it
touches distinct(rows) x distinct(columns) of each channel:

    distinct(n) = (n - 1) min(stride, R) + R        (dilated: the size of {p stride + r dilation}), at most the input's own

Where a stride leaves gaps in rows, whole sectors of 32 bytes come. L1 serves the re-reads of taps as far as it holds what lies between
them: one channel's part of the run where channels lie apart (NCHW), all channels' where they lie together (NHWC).

Assumed: runs begin at the start of a row; padding is not read, and not left out of the counts but at the input's edge.

Worked number: 128 windows of 3x3 in rows of 56 lie in 2.29 of them and touch (1.29 + 3) x 58 = 249 of 1152 gathered elements.
"""

import math
from functools import lru_cache
from typing import NamedTuple

from pysim.problem.conv import Conv
from pysim.record.plan import Layout

SECTOR_BYTES = 32


@lru_cache(maxsize=65536)
def distinct(count: float, kernel: int, stride: int, dilation: int) -> float:
    """Input positions of one axis that `count` consecutive outputs touch; between whole counts linear."""
    low = math.floor(count)
    if low != count:
        some, more = (distinct(n, kernel, stride, dilation) for n in (low, low + 1))
        return some + (more - some) * (count - low)
    shared = math.gcd(stride, dilation)
    # tap r of output p is tap r + stride / shared of output p - dilation / shared: all touches but those that have such an earlier one
    again = max(0, low - dilation // shared) * max(0, kernel - stride // shared)
    return low * kernel - again


class _Axis(NamedTuple):
    """The rows or the columns of an image, and the outputs along them."""

    size: int
    outputs: int
    kernel: int
    stride: int
    dilation: int

    @property
    def touched(self) -> float:
        """Of its rows or columns."""
        return min(distinct(self.outputs, self.kernel, self.stride, self.dilation), self.size)

    def bytes(self, each: int, pitch: int) -> float:
        """Bytes of the sectors with rows or columns that are touched, of `each` byte; another such line begins `pitch` bytes later."""
        extent = (self.kernel - 1) * self.dilation + 1
        span = (self.outputs - 1) * self.stride + extent
        if self.stride <= extent:  # one run
            return min(self.size * each, _run(span * each, pitch))
        one = _run(extent * each, math.gcd(pitch, self.stride * each))
        runs = (self.outputs - 1) * min(self.stride * each, one) + one
        return min(self.size * each, runs, self.touched * _run(each, math.gcd(pitch, each)))


def _run(size: int, pitch: int) -> int:
    """Bytes of the sectors that a run of `size` bytes touches, on average, where runs begin at multiples of `pitch`."""
    start = math.gcd(SECTOR_BYTES, pitch)
    return -(-size // start) * start + SECTOR_BYTES - start


class Windows(NamedTuple):
    """A convolution's windows as a kernel counts them: squares of outputs x outputs (1, or Winograd's), high x wide in an image."""

    conv: Conv
    layout: Layout
    outputs: int = 1
    tensor: bool = False  # rows of windows are stored apart: im2win's tensor

    @property
    def together(self) -> bool:
        """Whether a pixel's channels lie together."""
        return self.layout == "nhwc"

    @property
    def high(self) -> int:
        return -(-self.conv.out_h // self.outputs)

    @property
    def wide(self) -> int:
        return -(-self.conv.out_w // self.outputs)

    @property
    def number(self) -> int:
        """Of windows in all images, of one group."""
        return self.conv.batch * self.high * self.wide

    @property
    def k(self) -> int:
        return self.conv.group_channels if self.outputs > 1 else self.conv.products

    def _rows(self, count: float) -> float:
        """Rows of the input that rows of windows touch."""
        w, m = self.conv, self.outputs
        if self.tensor:
            return count * w.kernel_h
        found = distinct(count, w.kernel_h + m - 1, w.stride_h * m, w.dilation_h)
        return min(found, w.height)

    def _columns(self, count: float, sectors: bool) -> float:
        """Bytes of one channel (NHWC: of a group's channels) that neighbouring windows touch in one row; whole sectors, if asked."""
        w, m, size = self.conv, self.outputs, self.conv.element_bytes
        found = min(distinct(count, w.kernel_w + m - 1, w.stride_w * m, w.dilation_w), w.width)
        if self.together:
            position = w.group_channels * size
            return found * (-(-position // SECTOR_BYTES) * SECTOR_BYTES if sectors and w.groups > 1 else position)
        span = min(w.width, (count - 1) * w.stride_w * m + (w.kernel_w - 1) * w.dilation_w + m)
        return min(max(found, span) * size, found * SECTOR_BYTES)

    @lru_cache(maxsize=4096)  # noqa: B019  a value, of which kernels ask the same
    def touched(self, count: float) -> float:
        """Bytes that `count` consecutive windows of one group touch of one channel (NHWC: of all the group's channels)."""
        image = self.high * self.wide
        inside = min(count, image)
        wide = min(inside, self.wide)
        return max(1.0, count / image) * self._rows(inside / wide) * self._columns(wide, True)

    @property
    def channels_apart(self) -> int:
        """How often `touched` counts: channels of a group lie apart under NCHW."""
        return 1 if self.together else self.conv.group_channels

    @property
    @lru_cache(maxsize=1024)  # noqa: B019
    def bytes(self) -> float:
        """All that the windows of all groups touch, once each, in whole sectors: less cannot come from memory."""
        w, m = self.conv, self.outputs
        if self.tensor:
            return w.batch * self._rows(self.high) * self._columns(self.wide, False) * self.channels_apart * w.groups
        position = w.element_bytes * (w.channels if self.together else 1)
        row = w.width * position
        columns = _Axis(w.width, self.wide, w.kernel_w + m - 1, w.stride_w * m, w.dilation_w).bytes(position, row)
        rows = _Axis(w.height, self.high, w.kernel_h + m - 1, w.stride_h * m, w.dilation_h)
        plane = rows.bytes(row, row * w.height) if columns == row else rows.touched * columns
        return w.batch * plane * (1 if self.together else w.channels)

    def asked(self, block: int, l1_bytes: float) -> float:
        """Bytes that tiles of `block` windows ask of L2, all groups; `l1_bytes` is what the block has of L1 for itself."""
        some = min(block, self.number)
        once = self.touched(some)
        taps = self.conv.taps if self.outputs == 1 else (self.outputs + 2) ** 2
        gathered = some * taps * self.conv.group_channels // self.channels_apart * self.conv.element_bytes
        missed = min(1.0, max(0.0, 2 * once / l1_bytes - 1))
        tile = once + missed * max(0.0, gathered - once)
        return tile * self.channels_apart * self.conv.groups * self.number / some
