# SPDX-License-Identifier: Apache-2.0
"""A convolution as a value.

With input I[N][C][H][W], filters F[M][C/g][R][S] and output O[N][M][P][Q] (Q likewise from W, S, left and right):

    P = floor((H + top + bottom - extent) / stride) + 1    extent = dilation (R - 1) + 1    FLOP = 2 N M P Q (C/g) R S

Problems that differ only in padding that no window reads are equal: the bottom padding is set to the top's if that gives the same output,
otherwise to the least that does (likewise right and left).

Worked number: conv:mb1ic64ih56oc64kh3ph1 has 56 x 56 = 3,136 windows and 2 * 64 * 3,136 * 64 * 9 = 231,211,008 FLOP.
"""

from functools import cached_property
from typing import NamedTuple

from msgspec.structs import force_setattr

from pysim.errors import ProblemError
from pysim.problem.dtypes import CONV_DTYPES
from pysim.problem.fields import Typed, check_fields, check_int64


class Axis(NamedTuple):
    """The height or the width of a convolution, in elements."""

    size: int
    kernel: int
    stride: int
    dilation: int
    before: int = 0
    after: int = 0

    @property
    def extent(self) -> int:
        return self.dilation * (self.kernel - 1) + 1

    @property
    def out(self) -> int:
        return (self.size + self.before + self.after - self.extent) // self.stride + 1

    @property
    def taps(self) -> range:
        """Positions of the taps of the first window."""
        return range(-self.before, self.kernel * self.dilation - self.before, self.dilation)

    @property
    def inner_taps(self) -> range:
        """The `taps` that are inside the image in some window; windows and image bound their number, however large the kernel."""
        first = -(((self.out - 1) * self.stride - self.before) // self.dilation)
        return self.taps[max(0, first) : max(0, (self.size - 1 + self.before) // self.dilation + 1)]

    def met(self, taps: range) -> int:
        """The number of windows in which a tap is inside the image, summed over `taps`."""
        last, stride = self.out - 1, self.stride
        return sum(max(0, min(last, (self.size - 1 - at) // stride) - max(0, -(at // stride)) + 1) for at in taps)

    def ending(self, out: int) -> int:
        """The padding at the end that gives `out` outputs: equal to the beginning's if possible, otherwise the least."""
        if self._replace(after=self.before).out == out:
            return self.before
        return max(0, (out - 1) * self.stride + self.extent - self.size - self.before)


class Conv(Typed, frozen=True, cache_hash=True, kw_only=True, dict=True):
    """A 2-D convolution, NCHW, all in elements; dilation 1 is a dense kernel. Equal problems are equal values.

    Raises ProblemError for a size below 1, a padding below 0, an output below 1, groups that do not divide, an unknown
    dtype, and FLOP or bytes (of an operand or the im2col matrix) beyond int64.
    """

    batch: int = 1
    channels: int
    height: int
    width: int
    filters: int
    kernel_h: int
    kernel_w: int
    stride_h: int = 1
    stride_w: int = 1
    dilation_h: int = 1
    dilation_w: int = 1
    pad_top: int = 0
    pad_left: int = 0
    pad_bottom: int = 0
    pad_right: int = 0
    groups: int = 1

    def __post_init__(self) -> None:
        check_fields(self, CONV_DTYPES)
        if self.channels % self.groups or self.filters % self.groups:
            sizes = f"{self.channels} channels (ic) and {self.filters} filters (oc)"
            raise ProblemError(f"groups (g) is {self.groups}; it should divide {sizes}")
        for side, axis in (("rows", self.rows), ("columns", self.columns)):
            if axis.out < 1:
                padded = axis.size + axis.before + axis.after
                raise ProblemError(f"the output has no {side}: the dilated kernel has {axis.extent}, the padded input only {padded}")
        force_setattr(self, "pad_bottom", self.rows.ending(self.out_h))
        force_setattr(self, "pad_right", self.columns.ending(self.out_w))
        padded = (self.height + self.pad_top + self.pad_bottom) * (self.width + self.pad_left + self.pad_right)
        check_int64(
            self,
            padded_input=self.batch * self.channels * padded,
            filters=self.filter_elements,
            output=self.output_elements,
            im2col_matrix=self.batch * self.groups * self.products * self.windows,
        )

    @property
    def rows(self) -> Axis:
        return Axis(self.height, self.kernel_h, self.stride_h, self.dilation_h, self.pad_top, self.pad_bottom)

    @property
    def columns(self) -> Axis:
        return Axis(self.width, self.kernel_w, self.stride_w, self.dilation_w, self.pad_left, self.pad_right)

    @cached_property
    def out_h(self) -> int:
        """P, rows of the output."""
        return self.rows.out

    @cached_property
    def out_w(self) -> int:
        """Q, columns of the output."""
        return self.columns.out

    @property
    def windows(self) -> int:
        """P Q, outputs of one filter in one image."""
        return self.out_h * self.out_w

    @property
    def flops(self) -> int:
        """2 N M P Q (C/g) R S: a multiplication and an addition each, padding included."""
        return 2 * self.output_elements * self.products

    @property
    def group_channels(self) -> int:
        return self.channels // self.groups

    @property
    def group_filters(self) -> int:
        return self.filters // self.groups

    @property
    def taps(self) -> int:
        """R S, the taps of a filter in one channel."""
        return self.kernel_h * self.kernel_w

    @property
    def products(self) -> int:
        """(C/g) R S, the products summed in an output: k of the matrix product."""
        return self.group_channels * self.taps

    @property
    def input_elements(self) -> int:
        return self.batch * self.channels * self.height * self.width

    @property
    def filter_elements(self) -> int:
        return self.filters * self.products

    @property
    def output_elements(self) -> int:
        return self.batch * self.filters * self.windows

    @property
    def operand_elements(self) -> int:
        """Elements of input and filters."""
        return self.input_elements + self.filter_elements

    @property
    def pointwise(self) -> bool:
        """1x1, stride 1, no padding: the input is already the matrix that im2col would build."""
        return (self.kernel_h, self.kernel_w, self.stride_h, self.stride_w) == (1, 1, 1, 1) and not self.padded

    @property
    def padded(self) -> bool:
        return any((self.pad_top, self.pad_left, self.pad_bottom, self.pad_right))

    @property
    def text(self) -> str:
        """The shortest text that both `parse` and benchdnn read as this problem (benchdnn takes the dtype apart)."""
        square = self.rows[:-1] == self.columns[:-1]
        out_h = self.pad_bottom != self.pad_top
        out_w = self.pad_right != (self.pad_bottom if square else self.pad_left)
        wide = out_w or not square

        def pair(letter: str, rows: int, columns: int, default: int = -1) -> str:
            written = (rows, columns) != (default, default)
            return f"{letter}h{rows}" * written + f"{letter}w{columns}" * (written and wide)

        words = [f"g{self.groups}" * (self.groups != 1), f"mb{self.batch}ic{self.channels}"]
        words += [pair("i", self.height, self.width), f"oc{self.filters}"]
        words += [f"oh{self.out_h}" * out_h, f"ow{self.out_w}" * out_w, pair("k", self.kernel_h, self.kernel_w)]
        words += [pair("s", self.stride_h, self.stride_w, default=1)]
        words += [pair("p", self.pad_top, self.pad_left, default=-1 if out_h or out_w else 0)]
        words += [
            pair("d", self.dilation_h - 1, self.dilation_w - 1, default=0),
            f":{self.dtype}" * (self.dtype != "f32"),
        ]
        return "conv:" + "".join(words)
