# SPDX-License-Identifier: Apache-2.0
"""What operands on a GPU are filled with before a check, how memory holds each type, and how far a result may be off.

    exact fill    whole numbers of magnitude 1..a, a so small that every partial sum is exact: any order of summation gives the same bits
    random fill   uniform in [-1, 1) as the type holds it; |got - want| <= gamma_k(u) |A||B| + u_C |want|, gamma_k(u) = k u / (1 - k u)

(Higham, Accuracy and Stability of Numerical Algorithms, section 3.1.) u is the accumulators' unit roundoff; tensor cores may truncate, so
twice that; FP8 sums keep 13 bits. u_C is the result's. Worked number: f16, k = 64: 7.6e-6 of |A||B| and 4.9e-4 of the element.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_STORED = {"f32": np.float32, "tf32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": np.uint16, "s8": np.int8, "f8": np.uint8}
RESULT_DTYPES = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": np.uint16, "s32": np.int32}
UNIT = {"f64": 2.0**-53, "f8": 2.0**-14}  # of sums; 2^-23 for the others: 2^-24, and as much for truncation
RESULT_UNIT = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
_LARGEST = {"f16": 3, "bf16": 3, "f8": 1, "s8": 7}  # of exact fill: sums stay within what results and accumulators hold


class Fill(NamedTuple):
    """An operand as memory holds it, and its values."""

    stored: Array
    values: Array


def encode(values: Array, dtype: str) -> Array:
    """Values that a type holds exactly, as memory holds them: bfloat16 and FP8 (e4m3) as bits."""
    if dtype == "bf16":
        bits: Array = (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return bits
    if dtype == "f8":
        finite = e4m3()[:127]
        index = np.searchsorted(finite, np.abs(values))
        code: Array = (index + 128 * np.signbit(values)).astype(np.uint8)
        return code
    return np.ascontiguousarray(values, _STORED[dtype])


def decode(stored: Array, result: str) -> Array:
    """The float64 values of a result."""
    if result == "bf16":
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return stored.astype(np.float64)


def e4m3() -> Array:
    """Values of the FP8 codes 0..127 (OCP 8-bit floating point, E4M3): 4 bits of exponent with bias 7, 3 of mantissa; 127 is NaN."""
    code = np.arange(128)
    exponent, mantissa = code >> 3, code & 7
    values: Array = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    values[127] = np.nan
    return values


def random_fill(shape: tuple[int, ...], dtype: str, seed: int) -> Fill:
    """Uniform in [-1, 1), as far as the type has such numbers; whole numbers -127..127 of int8."""
    draw = np.random.default_rng(seed)
    if dtype == "s8":
        whole = draw.integers(-127, 128, shape, np.int8)
        return Fill(whole, whole)
    values: Array = draw.random(shape, np.float64 if dtype == "f64" else np.float32) * 2 - 1
    if dtype == "f16":
        values = values.astype(np.float16)
    elif dtype in ("bf16", "tf32"):
        kept = 0xFFFF0000 if dtype == "bf16" else 0xFFFFE000
        values = (values.view(np.uint32) & np.uint32(kept)).view(np.float32)
    elif dtype == "f8":
        grid = e4m3()[:57]  # up to 1
        values = np.sign(values) * grid[np.minimum(np.searchsorted(grid, np.abs(values)), 56)]
    return Fill(encode(values, dtype), values)


def exact_fill(shape: tuple[int, ...], k: int, dtype: str, seed: int) -> Fill:
    """Whole numbers of magnitude 1..a, both signs, such that sums of k products are exact."""
    largest = max(1, min(_LARGEST.get(dtype, 31), math.isqrt(2**24 // k)))
    draw = np.random.default_rng(seed)
    whole = draw.integers(1, largest + 1, shape, np.int8) * (1 - 2 * draw.integers(0, 2, shape, np.int8))
    return Fill(encode(whole.astype(np.float64 if dtype == "f64" else np.float32), dtype), whole)


def rounded(values: Array, result: str) -> Array:
    """float64 values as a result's type holds them."""
    if result == "bf16":
        bits = values.astype(np.float32).view(np.uint32)
        return decode(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16), "bf16")
    return values.astype(RESULT_DTYPES[result]).astype(np.float64)


def bound(dtype: str, result: str, k: int, want: Array, scale: Array, growth: float = 1) -> Array:
    """How far a result of k products each may be from `want`, `scale` being |A||B|; `growth` is of what transforms add. 0 of int32."""
    if result == "s32":
        return np.zeros_like(scale)
    unit = UNIT.get(dtype, 2.0**-23) * k * growth
    allowed: Array = unit / (1 - min(0.5, unit)) * scale + RESULT_UNIT[result] * np.abs(want)
    return allowed
