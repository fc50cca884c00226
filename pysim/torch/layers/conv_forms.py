# SPDX-License-Identifier: Apache-2.0
"""Convolutions of sequences and transposed ones as convolutions of images and volumes, whose kernels they run by.

    sequence      (N, C, L) is an image of one row
    transposed    the phases of its stride are filters of one convolution (`pysim.problem.transposed`), and its outputs are interleaved
    upsampled     one of a nearest neighbour's image s times as large is a transposed one of the image itself, of stride s: taps that read
                  the same pixel are summed

Where the compiler interleaves, the filters of one phase are neighbours, so that channels-last outputs are moved in runs of a group's
filters; the library's kernel (`conv/phases.cu`) reads the phases of one filter as neighbours.

Worked number: 256 -> 128 channels, 4x4 with a stride of 2: 512 filters of 2x2, of which the first 128 are those of phase (0, 0). 3x3
behind an upsampling by 2 is the same: 16 taps for 4 results, where the convolution itself takes 36.
"""

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch

from pysim.problem.conv import Conv
from pysim.problem.transposed import Moves, Transposed, transposed


class Geometry(NamedTuple):
    """The arguments of a convolution after its tensors; the defaults are those of a product, a 1x1 convolution. `added`: outputs at the
    end of a transposed convolution, PyTorch's `output_padding`; None: it is none. `upsampled`: it stands for a convolution of an image that
    is upsampled by `stride` to its nearest pixels first, whose filters these are. `shuffled`: by how much its results are shuffled to
    pixels, each of which has its filters as neighbours."""

    stride: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0)
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1
    added: tuple[int, ...] | None = None
    upsampled: bool = False
    shuffled: int = 1

    @property
    def is_plain(self) -> bool:
        """Whether the convolution is one of images or volumes as it stands."""
        return self.added is None and len(self.stride) > 1

    def phases(self, x: Sequence[int], w: Sequence[int], dtype: str = "f32") -> Transposed | None:
        """Those of a transposed convolution of arguments of these shapes; None: it is none. ProblemError for one that has no outputs."""
        if self.added is None:
            return None
        w = self._transposed_shape(w) if self.upsampled else w
        along = zip(x[2:], w[2:], self.stride, self.padding, self.dilation, self.added, strict=True)
        out = [(size - 1) * stride - 2 * pad + by * (kernel - 1) + more + 1 for size, kernel, stride, pad, by, more in along]
        filters = w[1] * self.groups
        return transposed(x[0], x[1], x[2:], filters, w[2:], self.stride, self.dilation, self.padding, out, self.groups, dtype)

    def _of_pixels(self, of_filters: Any) -> Any:
        """Numbers of the filters, those of a shuffled pixel as neighbours."""
        return of_filters.reshape(-1, self.shuffled**2, *of_filters.shape[1:]).transpose(0, 1).reshape(of_filters.shape)

    def joints(self, problem: Conv, x: Sequence[int], w: Sequence[int]) -> tuple[Any, ...] | None:
        """What `joined` takes beside the outputs of the kernel, `problem`; None: these are the result."""
        if (of := self.phases(x, w)) is not None:
            return joints_of(of)
        if self.shuffled == 1:
            return None
        by, (batch, filters, *sizes) = self.shuffled, problem.output_shape
        large = tuple(size * by for size in sizes)
        return (batch, by, by, filters // by**2, *sizes), (0, 3, 4, 1, 5, 2), (batch, filters // by**2, *large), (0, 0), large

    @classmethod
    def of_upsampled(cls, of: "Geometry", factors: Sequence[int], kernel: Sequence[int]) -> "Geometry | None":
        """The geometry for the image itself of a convolution of the image upsampled by these factors; None if a phase would multiply by
        zeros, which would make NaN of infinite pixels that its convolution does not read, or if none of its taps are summed."""
        ones = (1,) * len(factors)
        along = [*zip(kernel, of.padding, factors, strict=True)] if len(kernel) == len(factors) == len(of.stride) else []
        fits = along and of.added is None and of.stride == of.dilation == ones
        if not fits or not all(pad < taps and (taps - 1) % by == 0 for taps, pad, by in along):
            return None
        if not any(taps > by > 1 for taps, _, by in along):
            return None
        return cls(tuple(factors), tuple(taps - 1 - pad for taps, pad, _ in along), ones, of.groups, (0,) * len(factors), True)

    def _transposed_shape(self, w: Sequence[int]) -> tuple[int, ...]:
        taps = (size + by - 1 for size, by in zip(w[2:], self.stride, strict=True))
        return (w[1] * self.groups, w[0] // self.groups, *taps)

    def summed_taps(self, w: Any) -> Any:
        """The filters of the transposed convolution: (channels, filters / groups, *taps). 16-bit ones are summed in float32 and left so,
        others in float64 and rounded once."""
        kernel = w.shape[2:]
        wide = w.flip(tuple(range(2, w.dim()))).to(torch.float32 if w.element_size() == 2 else torch.float64)
        total = wide.new_zeros((*w.shape[:2], *self._transposed_shape(w.shape)[2:]))
        for first in product(*map(range, self.stride)):
            total[(..., *(slice(at, at + size) for at, size in zip(first, kernel, strict=True)))] += wide
        split = total.reshape(self.groups, -1, w.shape[1], *total.shape[2:]).transpose(1, 2)
        made = split.reshape(self._transposed_shape(w.shape))
        return made if w.element_size() == 2 else made.to(w.dtype)

    def of_kernel(self, problem: Conv, w: Any, scale: Any, shift: Any, by_filter: bool = False) -> tuple[Any, Any, Any]:
        """The filters that a kernel reads, and a scale and a shift for each; None where there is none. `by_filter`: the phases of a filter
        are neighbours."""
        if self.shuffled > 1:
            return self._of_pixels(w), *(None if one is None else self._of_pixels(one) for one in (scale, shift))
        if self.is_plain:
            return w, scale, shift
        x = (*problem.input_shape[:2], *problem.input_shape[-len(self.stride) :])
        of = self.phases(x, w.shape)
        if of is None:
            return w.unsqueeze(2), scale, shift
        w = self.summed_taps(w) if self.upsampled else w
        made = of.weights(w, Moves(partial(torch.zeros, device=w.device), torch.empty, torch.flip, torch.permute))
        if by_filter:
            return made, *(None if one is None else one.repeat_interleave(of.phases) for one in (scale, shift))
        split = made.reshape(self.groups, -1, of.phases, *made.shape[1:])

        def each(numbers: Any) -> Any:
            return None if numbers is None else numbers.reshape(self.groups, 1, -1).repeat(1, of.phases, 1).reshape(-1)

        return split.transpose(1, 2).reshape(made.shape), each(scale), each(shift)


def joints_of(of: Transposed) -> tuple[tuple[int, ...], ...]:
    """What `joined` takes beside the outputs of the convolution of all phases."""
    count, groups = len(of.axes), of.problem.groups
    split = (of.problem.batch, groups, *(axis.stride for axis in of.axes), of.filters // groups, *(axis.windows for axis in of.axes))
    order = (0, 1, 2 + count, *(place for axis in range(count) for place in (3 + count + axis, 2 + axis)))
    return split, order, of.interleaved_shape, tuple(axis.start for axis in of.axes), tuple(axis.out for axis in of.axes)


def joined(
    y: Any, split: tuple[int, ...], order: tuple[int, ...], shape: tuple[int, ...], starts: tuple[int, ...], sizes: tuple[int, ...]
) -> Any:
    """The result of a transposed convolution: `y` split into phases, each of which becomes the fastest part of its axis, and cut."""
    whole = y.reshape(split).permute(order).reshape(shape)
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True), 2):
        if size < whole.shape[axis]:
            whole = whole.narrow(axis, start, size)
    return whole
