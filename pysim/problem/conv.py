# SPDX-License-Identifier: Apache-2.0
"""A convolution as a value.

With input I[N][C][H][W], filters F[M][C/g][R][S] and output O[N][M][P][Q] (Q likewise from W, S, left and right):

    P = floor((H + top + bottom - extent) / stride) + 1    extent = dilation (R - 1) + 1    FLOP = 2 N M P Q (C/g) R S

Volumes have a depth D before H, kernels T taps along it, and outputs a depth O, from D, T, front and back: I[N][C][D][H][W]. An image
is a volume of depth 1, a sequence an image of height 1.

Problems that differ only in padding that no window reads are equal: the bottom padding is set to the top's if that gives the same output,
otherwise to the least that does (likewise right and left, back and front).

Worked numbers: conv:mb1ic64ih56oc64kh3ph1 has 56 x 56 = 3,136 windows and 2 * 64 * 3,136 * 64 * 9 = 231,211,008 FLOP.
conv:mb1ic64id8oc64kd3pd1 has 8 x 8 x 8 = 512 windows and 2 * 64 * 512 * 64 * 27 = 113,246,208 FLOP.
"""

from collections.abc import Iterable

import msgspec
from msgspec.structs import force_setattr

from pysim.caches import lazy
from pysim.errors import ProblemError
from pysim.problem.dtypes import CONV_DTYPES
from pysim.problem.fields import Typed, check_fields, check_int64

DEPTH_FIELDS = ("depth", "kernel_d", "stride_d", "dilation_d", "pad_front", "pad_back")


class Axis(msgspec.Struct, frozen=True):
    """The depth, height or width of a convolution, in elements."""

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
        if msgspec.structs.replace(self, after=self.before).out == out:
            return self.before
        return max(0, (out - 1) * self.stride + self.extent - self.size - self.before)


class Conv(Typed, frozen=True, cache_hash=True, kw_only=True, dict=True):
    """A convolution, NCHW or NCDHW, all in elements; dilation 1 is a dense kernel. Equal problems are equal values.

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
    depth: int = 1
    kernel_d: int = 1
    stride_d: int = 1
    dilation_d: int = 1
    pad_front: int = 0
    pad_back: int = 0

    def __post_init__(self) -> None:
        check_fields(self, CONV_DTYPES)
        if self.channels % self.groups or self.filters % self.groups:
            sizes = f"{self.channels} channels (ic) and {self.filters} filters (oc)"
            raise ProblemError(f"groups (g) is {self.groups}; it should divide {sizes}")
        for side, axis in (("slices", self.slices), ("rows", self.rows), ("columns", self.columns)):
            if axis.out < 1:
                padded = axis.size + axis.before + axis.after
                raise ProblemError(f"the output has no {side}: the dilated kernel has {axis.extent}, the padded input only {padded}")
        force_setattr(self, "pad_back", self.slices.ending(self.out_d))
        force_setattr(self, "pad_bottom", self.rows.ending(self.out_h))
        force_setattr(self, "pad_right", self.columns.ending(self.out_w))
        padded = (self.height + self.pad_top + self.pad_bottom) * (self.width + self.pad_left + self.pad_right)
        padded *= self.depth + self.pad_front + self.pad_back
        if not self.is_volume:  # nothing moves along the depth of an image; is_volume is kept, so read after pad_back is set
            force_setattr(self, "stride_d", 1)
            force_setattr(self, "dilation_d", 1)
        check_int64(
            self,
            padded_input=self.batch * self.channels * padded,
            filters=self.filter_elements,
            output=self.output_elements,
            im2col_matrix=self.batch * self.groups * self.products * self.windows,
        )

    @property
    def sizes(self) -> dict[str, int]:
        """The fields of the native structs (native/pysim.h): those of the depth are 0 for images."""
        names = (name for name in self.__struct_fields__ if name != "dtype")
        return {name: getattr(self, name) if self.is_volume or name not in DEPTH_FIELDS else 0 for name in names}

    @lazy
    def is_volume(self) -> bool:
        """Whether there is a depth, in the input or in the kernel; else the operands have four axes."""
        return (self.depth, self.kernel_d, self.pad_front, self.pad_back) != (1, 1, 0, 0)

    @property
    def folded(self) -> "Conv":
        """The same convolution, on the same elements, as one of images where no window joins rows or columns: its rows are slices,
        its columns all elements of a slice."""
        plain = (self.kernel_h, self.kernel_w, self.stride_h, self.stride_w) == (1, 1, 1, 1)
        if not self.is_volume or not plain or any((self.pad_top, self.pad_left, self.pad_bottom, self.pad_right)):
            return self
        return Conv(
            batch=self.batch, channels=self.channels, filters=self.filters, groups=self.groups, dtype=self.dtype, height=self.depth,
            width=self.height * self.width, kernel_h=self.kernel_d, kernel_w=1, stride_h=self.stride_d, dilation_h=self.dilation_d,
            pad_top=self.pad_front, pad_bottom=self.pad_back,
        )  # fmt: skip

    @property
    def slices(self) -> Axis:
        return Axis(self.depth, self.kernel_d, self.stride_d, self.dilation_d, self.pad_front, self.pad_back)

    @property
    def rows(self) -> Axis:
        return Axis(self.height, self.kernel_h, self.stride_h, self.dilation_h, self.pad_top, self.pad_bottom)

    @property
    def columns(self) -> Axis:
        return Axis(self.width, self.kernel_w, self.stride_w, self.dilation_w, self.pad_left, self.pad_right)

    @lazy
    def out_d(self) -> int:
        """Slices of the output."""
        return self.slices.out

    @lazy
    def out_h(self) -> int:
        """P, rows of the output."""
        return self.rows.out

    @lazy
    def out_w(self) -> int:
        """Q, columns of the output."""
        return self.columns.out

    @lazy
    def windows(self) -> int:
        """P Q, of volumes O P Q: outputs of one filter in one image."""
        return self.out_d * self.out_h * self.out_w

    @property
    def out_rows(self) -> int:
        """P, of volumes O P: rows of outputs of one filter in one image."""
        return self.out_d * self.out_h

    @property
    def kernel_rows(self) -> int:
        """R, of volumes T R: rows of a kernel."""
        return self.kernel_d * self.kernel_h

    @property
    def input_shape(self) -> tuple[int, ...]:
        """[N][C][H][W], of volumes [N][C][D][H][W]."""
        return (self.batch, self.channels, *(self.depth,) * self.is_volume, self.height, self.width)

    @property
    def filter_shape(self) -> tuple[int, ...]:
        """[M][C/g][R][S], of volumes [M][C/g][T][R][S]."""
        return (self.filters, self.group_channels, *(self.kernel_d,) * self.is_volume, self.kernel_h, self.kernel_w)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """[N][M][P][Q], of volumes [N][M][O][P][Q]."""
        return (self.batch, self.filters, *(self.out_d,) * self.is_volume, self.out_h, self.out_w)

    @property
    def flops(self) -> int:
        """2 N M P Q (C/g) R S (of volumes O and T times that): a multiplication and an addition each, padding included."""
        return 2 * self.output_elements * self.products

    @lazy
    def group_channels(self) -> int:
        return self.channels // self.groups

    @lazy
    def group_filters(self) -> int:
        return self.filters // self.groups

    @lazy
    def taps(self) -> int:
        """R S, of volumes T R S: the taps of a filter in one channel."""
        return self.kernel_d * self.kernel_h * self.kernel_w

    @lazy
    def products(self) -> int:
        """C/g times the taps, the products summed in an output: k of the matrix product."""
        return self.group_channels * self.taps

    @property
    def input_elements(self) -> int:
        return self.batch * self.channels * self.depth * self.height * self.width

    @lazy
    def filter_elements(self) -> int:
        return self.filters * self.products

    @lazy
    def output_elements(self) -> int:
        return self.batch * self.filters * self.windows

    @property
    def operand_elements(self) -> int:
        """Elements of input and filters."""
        return self.input_elements + self.filter_elements

    @lazy
    def pointwise(self) -> bool:
        """1x1, stride 1, no padding: the input is already the matrix that im2col would build."""
        strides = (self.stride_d, self.stride_h, self.stride_w)
        return self.taps == 1 and strides == (1, 1, 1) and not self.padded

    @property
    def padded(self) -> bool:
        return any((self.pad_top, self.pad_left, self.pad_bottom, self.pad_right, self.pad_front, self.pad_back))

    @property
    def text(self) -> str:
        """The shortest text that both `parse` and benchdnn read as this problem (benchdnn takes the dtype apart)."""
        axes = [self.rows, self.columns]
        if self.is_volume:
            axes.insert(0, self.slices)
        letters = "dhw"[-len(axes) :]
        if alike := len({msgspec.structs.replace(axis, after=0) for axis in axes}) == 1:
            usual = [axis.before if axis is axes[0] else axes[0].after for axis in axes]
        else:
            usual = [axis.before for axis in axes]
        outs = [axis.after != pad for axis, pad in zip(axes, usual, strict=True)]
        written = letters if not alike or any(outs[1:]) else letters[:1]

        def of(letter: str, values: Iterable[int], default: int = -1) -> str:
            values = list(values)
            return "".join(f"{letter}{along}{number}" for along, number in zip(written, values, strict=False) if {*values} != {default})

        words = [f"g{self.groups}" * (self.groups != 1), f"mb{self.batch}ic{self.channels}"]
        words += [of("i", (axis.size for axis in axes)), f"oc{self.filters}"]
        words += [f"o{along}{axis.out}" * out for along, axis, out in zip(letters, axes, outs, strict=True)]
        words += [of("k", (axis.kernel for axis in axes)), of("s", (axis.stride for axis in axes), default=1)]
        words += [of("p", (axis.before for axis in axes), default=-1 if any(outs) else 0)]
        words += [of("d", (axis.dilation - 1 for axis in axes), default=0), f":{self.dtype}" * (self.dtype != "f32")]
        return "conv:" + "".join(words)
