# SPDX-License-Identifier: Apache-2.0
"""Operand values for checks, for all machines and types; bfloat16 and FP8 (e4m3) are those of ml_dtypes.

    exact fill    whole numbers of magnitude 1..a, both signs, k a^2 <= 2^24 (2^53 in double, 2^31 - 1 of s8): accumulators represent
                  every sum of k products and every partial sum exactly, so every order of summation gives the same bits
    random fill   uniform in [-1, 1), rounded to the type (tf32: float32 with 10 bits of mantissa); all values of int8

An exact fill has no zero, so that a skipped operand changes the sum. Worked number: k = 576 in single precision: a = 31.
"""

import math
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from pysim.errors import OperandError, choose
from pysim.runtime.cpu import aligned

Array = NDArray[Any]

HELD: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32), "tf32": np.dtype(np.float32), "tf32x3": np.dtype(np.float32),
    "f64": np.dtype(np.float64), "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16), "f8": np.dtype(ml_dtypes.float8_e4m3fn), "s8": np.dtype(np.int8), "s32": np.dtype(np.int32),
}  # fmt: skip
LARGEST = 31  # enough distinct operands; larger numbers would only limit k
# Small where results are narrow, so that few are rounded; accumulators of FP8 keep 13 bits
_LARGEST = {"f16": 3, "bf16": 3, "f8": 1}
_EXACT = {"f64": 2**53, "s8": 2**31 - 1}  # largest exact integer of accumulators; 2^24 for other types
UNWRITTEN = -(2**31)  # initial s32 results: never a sum of an exact fill, nor of up to 131071 products of a random one


def held(dtype: str) -> np.dtype[Any]:
    """The NumPy type of an element type; OperandError for one without fills."""
    if dtype not in HELD:
        raise OperandError(f"no operand is of {dtype!r}; {choose(dtype, HELD)}")
    return HELD[dtype]


def numbers(held: Array) -> Array:
    """The values as float32, or float64 for doubles and integers: types that also hold the sums of an exact fill."""
    wide = held.dtype.kind in "iu" or held.dtype == np.float64
    return held.astype(np.float64 if wide else np.float32, copy=False)


def exact_fill(shape: tuple[int, ...], k: int, dtype: str = "f32", seed: int = 0, growth: int = 1) -> Array:
    """Whole numbers whose sums of `k` products are exact in any order. `growth`: factor by which intermediate values may exceed the sums,
    as far as possible. OperandError where there are none (k > 2^24)."""
    most = _EXACT.get(dtype, 2**24)
    if not 0 < k <= most:
        raise OperandError(f"sums of {k} products cannot be exact in {dtype}: k must lie in 1..{most}")
    largest = max(1, min(_LARGEST.get(dtype, LARGEST), math.isqrt(most // (k * growth))))
    draw, out = np.random.default_rng(seed), aligned(shape, held(dtype))
    out[...] = draw.integers(1, largest + 1, shape, np.int8) * (1 - 2 * draw.integers(0, 2, shape, np.int8))
    return out


def random_fill(shape: tuple[int, ...], dtype: str = "f32", seed: int = 0) -> Array:
    """Uniform in [-1, 1); s8: in -128..127."""
    draw, out = np.random.default_rng(seed), aligned(shape, held(dtype))
    if dtype == "s8":
        out[...] = draw.integers(-128, 128, shape, np.int8)
    else:
        out[...] = draw.random(shape, np.float64 if dtype == "f64" else np.float32) * 2 - 1
    if dtype == "tf32":
        out.view(np.uint32)[...] &= np.uint32(0xFFFFE000)
    return out


def unwritten(shape: tuple[int, ...], result: np.dtype[Any]) -> Array:
    """An output of NaN (s32: UNWRITTEN), so that an unwritten element fails every check."""
    out = aligned(shape, result)
    out.fill(UNWRITTEN if out.dtype.kind == "i" else np.nan)
    return out
