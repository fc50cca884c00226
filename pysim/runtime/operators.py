# SPDX-License-Identifier: Apache-2.0
"""Operators between convolutions, run by the native library: maps of planes, pools, layout conversions and copies
(`native/operators/operators.c`).

Each is a `Step`, which is called to run, on one thread unless `Step.on_threads` divides it. Operands are dense float32 or float64 arrays,
which `takes` checks.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from pysim.arguments import Activation
from pysim.runtime.cpu import Array, epilogue_struct, library
from pysim.runtime.steps import Step, step_of

BITS = np.dtype("V2")  # of bf16, a type that NumPy lacks: values of a network in channel blocks
_FLOATS = {np.dtype(np.float32): "PYSIM_F32", np.dtype(np.float64): "PYSIM_F64"}
NATIVE_DTYPES = _FLOATS | {BITS: "PYSIM_BF16"}
_COPIED = _FLOATS | dict.fromkeys(map(np.dtype, (np.int8, np.uint8, np.bool_)), "PYSIM_S8")


def takes(*arrays: Array) -> bool:
    """Whether all arrays are dense, and all float32, all float64 or all bits of bf16 in channel blocks."""
    return arrays[0].dtype in NATIVE_DTYPES and all(x.dtype == arrays[0].dtype and x.flags.c_contiguous and x.size for x in arrays)


@lru_cache(maxsize=1024)
def _map(planes: int, size: int, period: int, dtype: "np.dtype[Any]", block: int) -> Any:
    ffi, lib = library()
    return ffi.new("pysim_map *", [planes, size, period, getattr(lib, NATIVE_DTYPES[dtype]), block])


def map_step(
    out: Array,
    x: Array,
    planes: int,
    scale: Array | None = None,
    shift: Array | None = None,
    residual: Array | None = None,
    activation: Activation = None,
    block: int = 1,
) -> Step:
    """out = act(scale x + shift + residual). x is a sequence of planes, or of blocks of planes. scale and shift have one value per channel,
    and repeat for every image. out may be x, but must not overlap the residual."""
    pointer = library()[0].from_buffer
    period = next((len(numbers) for numbers in (scale, shift) if numbers is not None), 1)
    how = _map(planes, x.size // planes, period, x.dtype, block if scale is not None or shift is not None else 1)
    second, third = (None if one is None else pointer(one) for one in (scale, shift))
    epilogue = epilogue_struct(1.0, 0.0, None, activation, residual)
    return Step("MAP", of=how, epilogue=epilogue, first=pointer(x), second=second, third=third, result=pointer(out))


class Window(NamedTuple):
    """The window of a pool along rows and columns; pads are top, left, bottom, right."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...] = (1, 1)
    dilations: tuple[int, ...] = (1, 1)
    pads: tuple[int, ...] = (0, 0, 0, 0)

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> "Window":
        """By an operator's attributes."""
        return cls(*(tuple(attributes[name]) for name in ("kernel_shape", "strides", "dilations", "pads")))

    @property
    def of_image(self) -> "Window":
        """Of a sequence that of an image of one row."""
        kernel, strides, dilations, pads = self
        return self if len(kernel) > 1 else Window((1, *kernel), (1, *strides), (1, *dilations), (0, pads[0], 0, pads[1]))


@lru_cache(maxsize=1024)
def _pool(sizes: tuple[int, ...], largest: bool, count_padding: bool, dtype: "np.dtype[Any]", block: int) -> Any:
    ffi, lib = library()
    return ffi.new("pysim_pool *", [*sizes, largest, count_padding, getattr(lib, NATIVE_DTYPES[dtype]), block])


def pool_step(out: Array, x: Array, window: Window, largest: bool, count_padding: bool = False, block: int = 1) -> Step:
    """The maximum or mean of windows over the last two axes; channels may be in blocks."""
    pointer = library()[0].from_buffer
    along = (number for pair in window for number in pair)
    sizes = (x.size // (x.shape[-2] * x.shape[-1]), *x.shape[-2:], *out.shape[-2:], *along)
    return Step("POOL", of=_pool(sizes, largest, count_padding, x.dtype, block), first=pointer(x), result=pointer(out))


@lru_cache(maxsize=1024)
def _reorder(planes: int, size: int, block: int, to_planes: bool, dtype: "np.dtype[Any]") -> Any:
    ffi, lib = library()
    return ffi.new("pysim_reorder *", [planes, size, block, to_planes, getattr(lib, (NATIVE_DTYPES | _COPIED)[dtype])])


def reorder_step(out: Array, x: Array, block: int, to_planes: bool) -> Step:
    """Converts [N][C][H][W] to channels in blocks, or back. Both arrays have the shape (N, C, H, W), whichever layout their memory has;
    bf16 in blocks is float32 in planes."""
    pointer, planes, kind = library()[0].from_buffer, x.shape[0] * x.shape[1], (x if to_planes else out).dtype
    return Step("REORDER", of=_reorder(planes, x.size // planes, block, to_planes, kind), first=pointer(x), result=pointer(out))


_MOST_AXES = 6  # the limit of pysim_copy
_AS_FLOATS: dict[int, np.dtype[Any]] = {4: np.dtype(np.float32), 8: np.dtype(np.float64)}


def as_floats(out: Array, x: Array) -> tuple[Array, Array]:
    """Two arrays of integers of one type as floats of the same bits, for operators that only move elements; others as they are."""
    moved = _AS_FLOATS.get(x.dtype.itemsize) if x.dtype.kind in "iu" and out.dtype == x.dtype else None
    return (out, x) if moved is None else (out.view(moved), x.view(moved))


def copy_step(out: Array, x: Array) -> Step | None:
    """out[...] = x for two arrays that do not overlap. None if shapes or types differ, or the copy kernel does not support the type, the
    number of axes or the strides."""
    out, x = as_floats(out, x)
    item = out.dtype.itemsize
    together = out.dtype in _COPIED and x.dtype == out.dtype and x.shape == out.shape and out.size > 0
    axes = _merged([(n, *(by // item for by in strides)) for n, *strides in zip(out.shape, x.strides, out.strides, strict=True) if n > 1])
    if not together or len(axes) > _MOST_AXES or any(read < 0 or written < 1 for _, read, written in axes):
        return None
    ffi, lib = library()
    sizes, read, written = ([*column] for column in zip(*axes, strict=True))
    how = ffi.new("pysim_copy *", [sizes, read, written, len(axes), getattr(lib, _COPIED[out.dtype])])
    return step_of("COPY", how, out, x)


def _merged(axes: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """(size, stride in x, stride in y) of each axis after merging, in the order of y's memory. The axis that is contiguous in x is last or
    next to last."""
    merged: list[tuple[int, int, int]] = []
    for size, read, written in sorted(axes, key=lambda axis: -axis[2]):
        if merged and merged[-1][1] == size * read and merged[-1][2] == size * written:
            merged[-1] = merged[-1][0] * size, read, written
        else:
            merged.append((size, read, written))
    rows = [axis for axis in merged[:-1] if axis[1] == 1]
    return [axis for axis in merged[:-1] if axis not in rows] + rows + merged[-1:] or [(1, 1, 1)]
