# SPDX-License-Identifier: Apache-2.0
"""Transposed convolutions as convolutions whose filters are the phases of the stride (sub-pixel convolution): no zero is inserted.

    y[s q + r - pad] = sum over j of x[q - j] w[r + s j],  0 <= r < s, j < ceil(k / s)

along each axis: for one r a convolution of x. All phases are filters of one convolution, and its outputs are interleaved. With a stride of
1 a dilation stays; else the filters are stretched by zeros first. Positions that only padding gave are cut off.

Worked number: deconv:ic64ih16oc32oh32kh4sh2ph1 has two phases of 2 taps along each axis: 4 x 32 filters of 2x2 on 17 x 17 windows, padded
by one. Inserted zeros would give 32 filters of 4x4 on 32 x 32 windows, 3.5 times the products.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim.errors import ProblemError
from pysim.problem.conv import Conv

Array = NDArray[Any]


class Phase(NamedTuple):
    """One axis: how the convolution of the phases lies, and which of the interleaved outputs are the result."""

    size: int
    taps: int
    stride: int
    dilation: int  # of the convolution
    stretched: int  # dilation that the filters are stretched by
    before: int
    after: int
    start: int
    out: int

    @property
    def windows(self) -> int:
        return self.size + self.before + self.after - self.dilation * (self.taps - 1)

    @classmethod
    def of(cls, size: int, kernel: int, stride: int, dilation: int, pad: int, out: int) -> "Phase":
        """`pad` outputs are cut off at the beginning, and `out` remain. ProblemError if some would lie beyond all inputs' taps."""
        kept, stretched = (dilation, 1) if stride == 1 else (1, dilation)
        extent = dilation * (kernel - 1) + 1
        if out < 1 or out + pad > (size - 1) * stride + extent + max(stride, dilation):
            most = (size - 1) * stride + extent - pad
            of = f"{size} elements by a kernel of {extent} with stride {stride}"
            most = (size - 1) * stride + extent - pad
            raise ProblemError(f"a transposed convolution of {of} cannot have {out} outputs; without padding at the end it has {most}")
        taps = kernel if stride == 1 else -(-extent // stride)
        reach, first, last = kept * (taps - 1), pad // stride, (out - 1 + pad) // stride
        before = max(0, reach - first)
        start = pad - stride * (reach - before)
        return cls(size, taps, stride, kept, stretched, before, max(0, last - size + 1), start, out)


class Transposed(NamedTuple):
    """A transposed convolution: the convolution of its phases, and its axes. x: (N, C, *sizes), w: (C, M / groups, *kernel)."""

    problem: Conv
    axes: tuple[Phase, ...]

    @property
    def phases(self) -> int:
        return math.prod(axis.stride for axis in self.axes)

    @property
    def filters(self) -> int:
        return self.problem.filters // self.phases

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (self.problem.batch, self.filters, *(axis.out for axis in self.axes))

    def weights(self, w: Array) -> Array:
        """The filters of the convolution, of `problem.filter_shape`."""
        groups, count = self.problem.groups, len(self.axes)
        kernel = tuple(axis.stretched * (size - 1) + 1 for axis, size in zip(self.axes, w.shape[2:], strict=True))
        whole = np.zeros((*w.shape[:2], *(axis.taps * axis.stride for axis in self.axes)), w.dtype)
        stretched = tuple(slice(0, size, axis.stretched) for axis, size in zip(self.axes, kernel, strict=True))
        whole[(slice(None), slice(None), *stretched)] = w
        split = [number for axis in self.axes for number in (axis.taps, axis.stride)]
        parts = np.flip(whole.reshape(groups, -1, w.shape[1], *split), tuple(range(3, 3 + 2 * count, 2)))
        order = (0, 2, *range(4, 4 + 2 * count, 2), 1, *range(3, 3 + 2 * count, 2))
        return np.ascontiguousarray(parts.transpose(order)).reshape(self.problem.filter_shape)

    def bias(self, bias: Array) -> Array:
        """One value for each filter of the convolution."""
        return np.repeat(bias, self.phases)

    @property
    def split_shape(self) -> tuple[int, ...]:
        """The convolution's outputs with an axis for each stride: (N, M, *strides, *windows)."""
        return (*self.output_shape[:2], *(axis.stride for axis in self.axes), *(axis.windows for axis in self.axes))

    @property
    def order(self) -> tuple[int, ...]:
        """The transposition of `split_shape` that interleaves the phases."""
        count = len(self.axes)
        return (0, 1, *(place for axis in range(count) for place in (2 + count + axis, 2 + axis)))

    @property
    def interleaved_shape(self) -> tuple[int, ...]:
        return (*self.output_shape[:2], *(axis.windows * axis.stride for axis in self.axes))

    @property
    def cut(self) -> tuple[slice, ...]:
        """The result among the interleaved outputs."""
        return (slice(0, self.output_shape[0], 1), slice(0, self.filters, 1),
                *(slice(axis.start, axis.start + axis.out, 1) for axis in self.axes))  # fmt: skip

    def interleaved(self, y: Array) -> Array:
        """The result, from the outputs of the convolution."""
        return y.reshape(self.split_shape).transpose(self.order).reshape(self.interleaved_shape)[self.cut]


def transposed(
    batch: int,
    channels: int,
    sizes: Sequence[int],
    filters: int,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    out: Sequence[int],
    groups: int = 1,
    dtype: str = "f32",
) -> Transposed:
    """The phases of a transposed convolution along one to three axes; `pads` are those at the beginning."""
    axes = tuple(Phase.of(*axis) for axis in zip(sizes, kernel, strides, dilations, pads, out, strict=True))
    fields: dict[str, Any] = {}
    names = (("depth", "d", "front", "back"), ("height", "h", "top", "bottom"), ("width", "w", "left", "right"))
    if len(axes) == 1:
        fields |= {"height": 1, "kernel_h": 1}
    for (size, letter, before, after), axis in zip(names[-len(axes) :], axes, strict=True):
        fields |= {size: axis.size, f"kernel_{letter}": axis.taps, f"dilation_{letter}": axis.dilation}
        fields |= {f"pad_{before}": axis.before, f"pad_{after}": axis.after}
    count = filters * math.prod(axis.stride for axis in axes)
    return Transposed(Conv(batch=batch, channels=channels, filters=count, groups=groups, dtype=dtype, **fields), axes)
