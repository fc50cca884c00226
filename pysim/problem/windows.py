# SPDX-License-Identifier: Apache-2.0
"""Stride, padding, dilation and groups of a call, and the convolution that they define with the shapes of its arrays."""

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from pysim.arguments import whole, wholes
from pysim.errors import OperandError
from pysim.problem.conv import Conv

Pair = int | Sequence[int]


class Windows(msgspec.Struct, frozen=True):
    """Stride, padding, dilation and groups; called with the shapes of x and w and a dtype, it returns the convolution."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]  # top, left, bottom, right
    dilation: tuple[int, ...]
    groups: int

    @classmethod
    def of(cls, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> "Windows":
        """From a caller's arguments, normalised to tuples of ints."""
        pads = wholes(padding, "padding", 0, (2, 4), "(height, width) or (top, left, bottom, right)")
        return cls(
            wholes(stride, "stride", 1, (2,), "(height, width)"),
            pads if len(pads) == 4 else pads * 2,
            wholes(dilation, "dilation", 1, (2,), "(height, width)"),
            whole(groups, "groups", 1),
        )

    def __call__(self, x: tuple[int, ...], w: tuple[int, ...], dtype: str) -> Conv:
        if len(x) != 4 or len(w) != 4:
            raise OperandError(f"x must be [N][C][H][W] and w [M][C/groups][R][S]; their shapes are {x} and {w}")
        if w[1] * self.groups != x[1]:
            raise OperandError(f"w takes {w[1]} channels x {self.groups} groups, but x has {x[1]} channels")
        (stride_h, stride_w), (dilation_h, dilation_w) = self.stride, self.dilation
        top, left, bottom, right = self.padding
        return Conv(
            batch=x[0], channels=x[1], height=x[2], width=x[3], filters=w[0], kernel_h=w[2], kernel_w=w[3], stride_h=stride_h,
            stride_w=stride_w, dilation_h=dilation_h, dilation_w=dilation_w, pad_top=top, pad_left=left, pad_bottom=bottom,
            pad_right=right, groups=self.groups, dtype=dtype,
        )  # fmt: skip


def windows_of(stride: Pair, padding: Pair, dilation: Pair, groups: int) -> Windows:
    """The same object for the same numbers."""
    plain = type(stride) is type(padding) is type(dilation) is type(groups) is int
    return (_kept if plain else Windows.of)(stride, padding, dilation, groups)


_kept = lru_cache(maxsize=256)(Windows.of)
