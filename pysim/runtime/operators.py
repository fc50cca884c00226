# SPDX-License-Identifier: Apache-2.0
"""Operators between convolutions by the native library of this computer, on one thread: maps of planes and pools (`native/operators.c`).

They take dense arrays of float32 or float64; `takes` says whether some are.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from pysim.arguments import Activation
from pysim.runtime.cpu import Array, check, epilogue_struct, library

_DTYPES = {np.dtype(np.float32): "PYSIM_F32", np.dtype(np.float64): "PYSIM_F64"}


def takes(*arrays: Array) -> bool:
    """Whether arrays are dense, and all float32 or all float64."""
    return arrays[0].dtype in _DTYPES and all(x.dtype == arrays[0].dtype and x.flags.c_contiguous and x.size for x in arrays)


@lru_cache(maxsize=1024)
def _map(planes: int, size: int, period: int, dtype: "np.dtype[Any]") -> Any:
    ffi, lib = library()
    return ffi.new("pysim_map *", [planes, size, period, getattr(lib, _DTYPES[dtype])])


def run_map(
    out: Array,
    x: Array,
    planes: int,
    scale: Array | None = None,
    shift: Array | None = None,
    residual: Array | None = None,
    activation: Activation = None,
) -> None:
    """out = act(scale x + shift + residual), where x is seen as so many planes, and scale and shift have a number for each,
    again and again. out may be x, and lies apart from the residual."""
    ffi, lib = library()
    period = next((len(numbers) for numbers in (scale, shift) if numbers is not None), 1)
    how = _map(planes, x.size // planes, period, x.dtype)
    pointers = (ffi.NULL if one is None else ffi.from_buffer(one) for one in (scale, shift))
    epilogue = epilogue_struct(1.0, 0.0, None, activation, residual)
    check(lib.pysim_run_map(how, epilogue, ffi.from_buffer(x), *pointers, ffi.from_buffer(out)))


class Window(NamedTuple):
    """What a pool takes together along rows and columns; pads are top, left, bottom, right."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...] = (1, 1)
    dilations: tuple[int, ...] = (1, 1)
    pads: tuple[int, ...] = (0, 0, 0, 0)


@lru_cache(maxsize=1024)
def _pool(sizes: tuple[int, ...], largest: bool, count_padding: bool, dtype: "np.dtype[Any]") -> Any:
    ffi, lib = library()
    return ffi.new("pysim_pool *", [*sizes, largest, count_padding, getattr(lib, _DTYPES[dtype])])


def run_pool(
    out: Array,
    x: Array,
    window: Window,
    largest: bool,
    count_padding: bool = False,
) -> None:
    """The largest element or mean of windows of the last two axes."""
    ffi, lib = library()
    along = (number for pair in window for number in pair)
    sizes = (x.size // (x.shape[-2] * x.shape[-1]), *x.shape[-2:], *out.shape[-2:], *along)
    check(lib.pysim_run_pool(_pool(sizes, largest, count_padding, x.dtype), ffi.from_buffer(x), ffi.from_buffer(out)))
