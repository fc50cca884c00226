# SPDX-License-Identifier: Apache-2.0
"""Stride, padding, dilation and groups of a call, and the convolution that they define with the shapes of its arrays."""

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from pysim.arguments import whole, wholes
from pysim.errors import OperandError
from pysim.problem.conv import Conv

Pair = int | Sequence[int]


AXES = {2: ("height", "width"), 3: ("depth", "height", "width")}
SIDES = {2: "top, left, bottom, right", 3: "front, top, left, back, bottom, right"}
SHAPES = {2: "x must be [N][C][H][W] and w [M][C/groups][R][S]", 3: "x must be [N][C][D][H][W] and w [M][C/groups][T][R][S]"}


class Windows(msgspec.Struct, frozen=True):
    """Stride, padding, dilation and groups; called with the shapes of x and w and a dtype, it returns the convolution."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]  # SIDES
    dilation: tuple[int, ...]
    groups: int

    @classmethod
    def of(cls, stride: Pair, padding: Pair, dilation: Pair, groups: int, rank: int = 2) -> "Windows":
        """From a caller's arguments, normalised to tuples of ints; `rank`: 2 of images, 3 of volumes."""
        each = f"({', '.join(AXES[rank])})"
        pads = wholes(padding, "padding", 0, (rank, 2 * rank), f"{each} or ({SIDES[rank]})")
        return cls(
            wholes(stride, "stride", 1, (rank,), each),
            pads if len(pads) == 2 * rank else pads * 2,
            wholes(dilation, "dilation", 1, (rank,), each),
            whole(groups, "groups", 1),
        )

    @classmethod
    def like(cls, w: Conv) -> "Windows":
        """Those of a convolution."""
        axes = [w.slices] * w.is_volume + [w.rows, w.columns]
        pads = (*(axis.before for axis in axes), *(axis.after for axis in axes))
        return cls(tuple(axis.stride for axis in axes), pads, tuple(axis.dilation for axis in axes), w.groups)

    def __call__(self, x: tuple[int, ...], w: tuple[int, ...], dtype: str) -> Conv:
        rank = len(self.stride)
        if len(x) != rank + 2 or len(w) != rank + 2:
            raise OperandError(f"{SHAPES[rank]}; their shapes are {x} and {w}")
        if w[1] * self.groups != x[1]:
            raise OperandError(f"w takes {w[1]} channels x {self.groups} groups, but x has {x[1]} channels")
        return conv_of(x, w, self.stride, self.padding, self.dilation, self.groups, dtype)


def conv_of(
    x: Sequence[int], w: Sequence[int], strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int], groups: int, dtype: str
) -> Conv:
    """The convolution of x and w of these shapes, along one, two or three axes; `pads`: all at the beginning, then all at the end. A depth
    of 1 under a kernel of 1 is an image."""
    missing, count = 3 - len(strides), len(strides)
    sizes, kernel = ((1,) * missing + tuple(shape[2:]) for shape in (x, w))
    stride, dilation = ((1,) * missing + tuple(each) for each in (strides, dilations))
    before, after = ((0,) * missing + tuple(each) for each in (pads[:count], pads[count:]))
    return Conv(
        batch=x[0], channels=x[1], filters=w[0], groups=groups, dtype=dtype, depth=sizes[0], height=sizes[1], width=sizes[2],
        kernel_d=kernel[0], kernel_h=kernel[1], kernel_w=kernel[2], stride_d=stride[0], stride_h=stride[1], stride_w=stride[2],
        dilation_d=dilation[0], dilation_h=dilation[1], dilation_w=dilation[2], pad_front=before[0], pad_top=before[1],
        pad_left=before[2], pad_back=after[0], pad_bottom=after[1], pad_right=after[2],
    )  # fmt: skip


def windows_of(stride: Pair, padding: Pair, dilation: Pair, groups: int, rank: int = 2) -> Windows:
    """The same object for the same numbers."""
    plain = type(stride) is type(padding) is type(dilation) is type(groups) is int
    return (_kept if plain else Windows.of)(stride, padding, dilation, groups, rank)


_kept = lru_cache(maxsize=256)(Windows.of)
