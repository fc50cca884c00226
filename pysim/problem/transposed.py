# SPDX-License-Identifier: Apache-2.0
"""Transposed convolutions as convolutions whose filters are the phases of the stride (sub-pixel convolution): no zero is inserted.

    y[s q + r - pad] = sum over j of x[q - j] w[r + s j],  0 <= r < s, j < ceil(k / s)

along each axis: for one r a convolution of x. All phases are filters of one convolution, and its outputs are interleaved. With a stride of
1 a dilation stays; else the filters are stretched by zeros first. Positions that only padding gave are cut off.

Worked number: deconv:ic64ih16oc32oh32kh4sh2ph1 has two phases of 2 taps along each axis: 4 x 32 filters of 2x2 on 17 x 17 windows, padded
by one. Inserted zeros would give 32 filters of 4x4 on 32 x 32 windows, 3.5 times the products.
"""

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import msgspec
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


class Moves(NamedTuple):
    """What a library of arrays moves elements with; NumPy's unless said otherwise."""

    zeros: Callable[..., Any] = np.zeros  # of a shape and a type
    empty: Callable[..., Any] = np.empty
    flip: Callable[..., Any] = np.flip
    permute: Callable[..., Any] = np.transpose


NUMPY = Moves()


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

    def weights(self, w: Any, by: Moves = NUMPY) -> Any:
        """The filters of the convolution, of `problem.filter_shape`."""
        groups, count = self.problem.groups, len(self.axes)
        kernel = tuple(axis.stretched * (size - 1) + 1 for axis, size in zip(self.axes, w.shape[2:], strict=True))
        whole = by.zeros((*w.shape[:2], *(axis.taps * axis.stride for axis in self.axes)), dtype=w.dtype)
        stretched = tuple(slice(0, size, axis.stretched) for axis, size in zip(self.axes, kernel, strict=True))
        whole[(slice(None), slice(None), *stretched)] = w
        split = [number for axis in self.axes for number in (axis.taps, axis.stride)]
        parts = by.flip(whole.reshape(groups, -1, w.shape[1], *split), tuple(range(3, 3 + 2 * count, 2)))
        order = (0, 2, *range(4, 4 + 2 * count, 2), 1, *range(3, 3 + 2 * count, 2))
        return by.permute(parts, order).reshape(self.problem.filter_shape)

    def bias(self, bias: Any, by: Moves = NUMPY) -> Any:
        """One value for each filter of the convolution."""
        whole = by.zeros((self.filters, self.phases), dtype=bias.dtype)
        whole[:] = bias.reshape(-1, 1)
        return whole.reshape(-1)

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


class Alone(NamedTuple):
    """Along one axis a convolution for the outputs of one phase: `first` of the phases of all taps, its own taps, and their padding."""

    first: int
    taps: int
    before: int
    after: int

    @classmethod
    def along(cls, size: int, kernel: int, stride: int, dilation: int, pad: int, out: int) -> "tuple[Alone, ...]":
        """The phases in the order of the outputs; none if they have unlike numbers of outputs, or one has no tap or leaves out inputs."""
        kept, extent = (dilation, kernel) if stride == 1 else (1, dilation * (kernel - 1) + 1)
        each, more = divmod(out, stride)
        found = []
        for at in range(stride):
            shift, first = divmod(at + pad, stride)
            taps = -(-(extent - first) // stride)
            found.append(cls(first, taps, kept * (taps - 1) - shift, each + shift - size))
        return () if more or any(one.taps < 1 or min(one.before, one.after) < 0 for one in found) else tuple(found)


class Apart(NamedTuple):
    """A transposed convolution as a convolution of its own for each phase, with the phase's own taps and padding: none of its taps is a
    zero, and it makes no output that is cut off.

    `whole`: the convolution of all phases. `problems` are in the order of the outputs, the last axis the fastest; `phases`: the number of
    each along each axis among the filters of `whole`; `strides`: how many there are."""

    whole: Conv
    problems: tuple[Conv, ...]
    phases: tuple[tuple[int, ...], ...]
    strides: tuple[int, ...]

    def weights(self, w: Array) -> list[Array]:
        """The filters of each convolution, from those of the convolution of all phases: its last taps, since taps are in reverse order."""
        count = len(self.strides)
        filters = w.reshape(self.whole.groups, -1, *self.strides, *w.shape[1:])
        found = []
        for phase, problem in zip(self.phases, self.problems, strict=True):
            sizes = zip(w.shape[-count:], problem.filter_shape[-count:], strict=True)
            place: tuple[Any, ...] = (slice(None), slice(None), *phase, ..., *(slice(size - own, None) for size, own in sizes))
            found.append(np.ascontiguousarray(filters[place]).reshape(problem.filter_shape))
        return found


def apart(of: Transposed, kernel: Sequence[int], dilations: Sequence[int], pads: Sequence[int]) -> Apart | None:
    """The phases of a transposed convolution as convolutions of their own, where they have equally many outputs; `pads` are those at the
    beginning.

    Worked number: 3x3 taps of stride 2, padded by one, 8x8 inputs and 16x16 outputs: kernels of 1x1, 1x2, 2x1 and 2x2 on 8x8 windows, 9
    products a window; together they are four of 2x2 on 9x9 windows, of which 7 products are by zeros."""
    given = zip(of.axes, kernel, dilations, pads, strict=True)
    along = [Alone.along(axis.size, size, axis.stride, by, pad, axis.out) for axis, size, by, pad in given]
    names = (("d", "front", "back"), ("h", "top", "bottom"), ("w", "left", "right"))[-len(along) :]
    problems, phases = [], []
    for axes in product(*along):
        phases.append(tuple(axis.first for axis in axes))
        fields: dict[str, Any] = {"filters": of.filters}
        for (letter, before, after), axis in zip(names, axes, strict=True):
            fields |= {f"kernel_{letter}": axis.taps, f"pad_{before}": axis.before, f"pad_{after}": axis.after}
        problems.append(msgspec.structs.replace(of.problem, **fields))
    alike = len(problems) > 1 and all(one.is_volume == of.problem.is_volume for one in problems)
    return Apart(of.problem, tuple(problems), tuple(phases), tuple(axis.stride for axis in of.axes)) if alike else None
