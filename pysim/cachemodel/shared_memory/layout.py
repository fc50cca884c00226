# SPDX-License-Identifier: Apache-2.0
"""Layouts as pure functions: coordinate -> linear index, in elements.

A layout is a shape and a stride per mode, as in CuTe: index = sum of coordinate * stride. Padding, XOR swizzles
and rotations are functions index -> index, applied one after the other:

    Padding(every, extra)          i + i / every * extra: rows of `every` elements, `extra` unused ones after each
    Swizzle(bits, base, shift)     i ^ ((i >> shift) & mask), mask = `bits` ones from bit `base` up
    Rotation(length, step, every)  segment s of `length` elements is rotated by step * (s / every) elements

Every function takes an integer or an int64 array. Nested shapes are written flat: ((2,4),8) is the modes 2, 4, 8.

Worked number: a column of a 32 x 32 float tile, row_major((32, 32))(r, 0) = 32 r, lies in one bank; with Padding(32, 1)
it is 33 r, in all 32 banks; with Swizzle(5, 0, 5) it is 32 r + r, in all 32 banks without a byte more.
"""

from math import prod
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from pysim.errors import OperandError, quoted

Index = int | NDArray[np.int64]
_LARGEST = 1 << 24  # elements of a layout: far above any shared memory, few enough to enumerate


class Padding(msgspec.Struct, frozen=True, tag_field="kind", tag="padding", forbid_unknown_fields=True):
    """`extra` unused elements after each `every` elements."""

    every: int
    extra: int

    def __post_init__(self) -> None:
        _check(self, every=(1, _LARGEST), extra=(0, _LARGEST))

    def __call__(self, index: Index) -> Index:
        return index + index // self.every * self.extra

    def span(self, elements: int) -> int:
        """Elements to allocate for `elements` of them: every whole row is followed by its padding, the last one too."""
        return elements + elements // self.every * self.extra

    def expression(self, index: str) -> str:
        """The function as C and Python-like text on the variable `index` (/ is the integer quotient)."""
        return f"({index} + {index} / {self.every}{_times(self.extra)})"


class Swizzle(msgspec.Struct, frozen=True, tag_field="kind", tag="swizzle", forbid_unknown_fields=True):
    """XOR of `bits` index bits from bit `base` up with the bits `shift` above them (CuTe's Swizzle<bits, base, shift>).

    A negative shift XORs the upper bits with the lower ones. |shift| >= bits keeps it its own inverse.
    """

    bits: int
    base: int
    shift: int

    def __post_init__(self) -> None:
        _check(self, bits=(0, 16), base=(0, 24), shift=(-24, 24))
        if abs(self.shift) < self.bits:
            raise OperandError(f"{self}: shift is {self.shift}; it should be at least bits = {self.bits}, up or down")

    def __call__(self, index: Index) -> Index:
        low = ((1 << self.bits) - 1) << self.base
        if self.shift >= 0:
            return index ^ ((index >> self.shift) & low)
        return index ^ ((index & low) << -self.shift)

    def span(self, elements: int) -> int:
        """Changed bits stay inside aligned blocks: the touched blocks, whole."""
        block = 1 << (self.base + self.bits + max(0, -self.shift)) if self.bits else 1
        return -(-elements // block) * block

    def expression(self, index: str) -> str:
        """The function as C and Python text on the variable `index`."""
        low = ((1 << self.bits) - 1) << self.base
        if self.shift >= 0:
            return f"({index} ^ (({index} >> {self.shift}) & {low}))"
        return f"({index} ^ (({index} & {low}) << {-self.shift}))"


class Rotation(msgspec.Struct, frozen=True, tag_field="kind", tag="rotation", forbid_unknown_fields=True):
    """Segments of `length` elements; segment s is rotated by step * (s // every) elements.

    With a `period` other than 0, by step * (s // every % period).
    """

    length: int
    step: int
    every: int = 1
    period: int = 0

    def __post_init__(self) -> None:
        _check(self, length=(1, _LARGEST), step=(0, _LARGEST), every=(1, _LARGEST), period=(0, _LARGEST))

    def __call__(self, index: Index) -> Index:
        segment = index // self.length
        steps = segment // self.every
        steps = steps % self.period if self.period else steps
        return segment * self.length + (index + steps * self.step) % self.length

    def span(self, elements: int) -> int:
        """Whole segments."""
        return -(-elements // self.length) * self.length

    def expression(self, index: str) -> str:
        """The function as C and Python-like text on the variable `index` (/ is the integer quotient)."""
        steps = f"{index} / {self.length * self.every}"
        steps = f"{steps} % {self.period}" if self.period else steps
        return f"({index} / {self.length} * {self.length} + ({index} + {steps}{_times(self.step)}) % {self.length})"


Map = Padding | Swizzle | Rotation


class Layout(msgspec.Struct, frozen=True):
    """A shape, a stride per mode in elements, and functions that the index then goes through."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    maps: tuple[Map, ...] = ()

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.stride) or not self.shape:
            raise OperandError(f"layout {self.shape}:{self.stride}: expected one stride per mode, and a mode")
        for values, least, what in ((self.shape, 1, "sizes"), (self.stride, 0, "strides")):
            if not all(isinstance(value, int) and least <= value <= _LARGEST for value in values):
                raise OperandError(f"the layout's {what} {values} should be integers from {least} to {_LARGEST}")
        if self.size > _LARGEST:
            raise OperandError(f"the layout {self.shape} has {self.size} elements; {_LARGEST} is the most")

    @property
    def size(self) -> int:
        """How many coordinates there are."""
        return prod(self.shape)

    def __call__(self, *coordinate: Index) -> Index:
        """The index of a coordinate, an integer or array per mode."""
        if len(coordinate) != len(self.shape):
            raise OperandError(f"{len(coordinate)} coordinates were given; the shape {self.shape} takes {len(self.shape)}")
        index: Index = 0
        for mode, (value, size, stride) in enumerate(zip(coordinate, self.shape, self.stride, strict=True)):
            low, high = int(np.min(value)), int(np.max(value))
            if low < 0 or high >= size:
                bad = low if low < 0 else high
                raise OperandError(f"the coordinate of mode {mode} is {bad}; it should be from 0 to {size - 1}")
            index = index + value * stride
        for function in self.maps:
            index = function(index)
        return index

    def span(self) -> int:
        """Elements to allocate: one past the largest index by shape and stride, then the span of each function."""
        span = sum((size - 1) * stride for size, stride in zip(self.shape, self.stride, strict=True)) + 1
        for function in self.maps:
            span = function.span(span)
        return span


def row_major(shape: tuple[int, ...], *maps: Map) -> Layout:
    """The last mode contiguous, as in C."""
    return Layout(shape, tuple(prod(shape[mode + 1 :]) for mode in range(len(shape))), maps)


def offsets(layout: Layout) -> NDArray[np.int64]:
    """The index of every coordinate, in an array of the layout's shape."""
    grid = np.indices(layout.shape, dtype=np.int64, sparse=True)
    return np.broadcast_to(np.asarray(layout(*grid), np.int64), layout.shape)


def cosize(layout: Layout) -> int:
    """One past the largest index that the layout takes."""
    return int(offsets(layout).max()) + 1


def expression(maps: tuple[Map, ...], index: str) -> str:
    """The functions, one after the other, as C text on the variable `index`."""
    for function in maps:
        index = function.expression(index)
    return index


def describe(layout: Layout) -> str:
    """The layout in CuTe's notation, then its functions: `(32,32):(32,1), swizzle(5,0,5)`."""
    base = f"({','.join(map(str, layout.shape))}):({','.join(map(str, layout.stride))})"
    return ", ".join([base, *map(name, layout.maps)])


def name(function: Map) -> str:
    """One function in words: `padding(32,1)`."""
    values = [getattr(function, field) for field in function.__struct_fields__]
    return f"{function.__struct_config__.tag}({','.join(map(str, values))})"


def _times(factor: int) -> str:
    return "" if factor == 1 else f" * {factor}"


def _check(value: msgspec.Struct, **bounds: tuple[int, int]) -> None:
    for field, (least, most) in bounds.items():
        number: Any = getattr(value, field)
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
            kind = str(value.__struct_config__.tag)
            raise OperandError(f"{kind}: {field} is {quoted(number)}; it should be an integer from {least} to {most}")
