# SPDX-License-Identifier: Apache-2.0
"""How the bytes of an s8 problem stand for real numbers: what a quantised layer has beside its problem.

    sum = sum of (first - first_zero) second, + bias (INT32); an activation relu is max(sum, 0); padding of the input is first_zero
    y   = sum                                                       result s32, without scales
    y   = sum scales[i] + shifts[i]                                 result f32
    y   = saturate(round(sum scales[i]) + result_zero)              results u8, s8; ties to even (ONNX, QLinearConv and QuantizeLinear)
    y   = saturate(round(activation(sum scales[i] + shifts[i]) result_scales[i]) + result_zero)     with result_scales, any activation

Without result_scales an activation ("clamp", low, high) bounds y, in y's own units. sum is INT32, sum scales[i] is FP32. A residual of
bytes may be added to y where y is stored (`pysim.runtime.integer_steps.byte_sum_of`).

Worked number: sum 1,000, scale 0.0125, zero 128, u8: 12.5 rounds to 12, y = 140.
"""

from typing import Any, Literal, NamedTuple

import numpy as np

from pysim.errors import OperandError

Result = Literal["s32", "f32", "s8", "u8"]
LIMITS = {"s8": (-128, 127), "u8": (0, 255)}


class ByteSum(NamedTuple):
    """A `pysim_byte_sum`, what becomes of rescaled bytes and those of a residual, and the types of the residual and of the sums."""

    of: Any
    residual: Literal["s8", "u8"]
    result: Literal["s8", "u8"]


class Integers(NamedTuple):
    """`unsigned`: the first operand is u8, else s8. `first_zero` is its zero point. `scales`: None, or FP32 multipliers: one, or one for
    each filter of a convolution or column of a product. `result`: with scales f32, s8 or u8; `result_zero` is its zero point. `sum`: of a
    convolution, what is stored in place of results s8 or u8. `result_scales`: None, or as many as scales may be.
    `shifts`: None, or one FP32 number for each filter or column; with result_scales, or of results f32, without an activation."""

    unsigned: bool = False
    first_zero: int = 0
    scales: Any = None
    result: Result = "s32"
    result_zero: int = 0
    sum: ByteSum | None = None
    result_scales: Any = None
    shifts: Any = None

    @property
    def first(self) -> str:
        """The first operand's type."""
        return "u8" if self.unsigned else "s8"

    @property
    def stored(self) -> str:
        """The type of what is stored."""
        return self.sum.result if self.sum else self.result

    def checked(self, count: int) -> "Integers":
        """The same with scales as a contiguous FP32 array; OperandError for what no layer of `count` filters or columns can have."""
        low, high = LIMITS[self.first]
        if not low <= self.first_zero <= high:
            raise OperandError(f"first_zero is {self.first_zero}; the zero point of {self.first} is {low}..{high}")
        if self.scales is None:
            if self.result != "s32" or self.result_zero or self.result_scales is not None:
                raise OperandError(f"result is {self.result} with zero point {self.result_zero}; without scales it is s32, of zero point 0")
            return self
        if self.result not in ("f32", *LIMITS):
            raise OperandError(f"result is {self.result}; with scales it is f32, s8 or u8")
        low, high = LIMITS.get(self.result, (0, 0))
        if not low <= self.result_zero <= high:
            raise OperandError(f"result_zero is {self.result_zero}; the zero point of {self.result} is {low}..{high}")
        by = None if self.result_scales is None else _scales(self.result_scales, count, "result_scales")
        if by is not None and (self.result not in LIMITS or self.sum is not None):
            raise OperandError("result_scales are of results s8 or u8 to which nothing is added")
        if by is None and self.shifts is not None and self.result != "f32":
            raise OperandError("shifts are of results that are f32 or have result_scales")
        shifts = None if self.shifts is None else np.ascontiguousarray(self.shifts, dtype=np.float32).reshape(-1)
        if shifts is not None and shifts.size != count:
            raise OperandError(f"there are {shifts.size} shifts; expected {count}")
        return self._replace(scales=_scales(self.scales, count, "scales"), result_scales=by, shifts=shifts)


def _scales(given: Any, count: int, name: str) -> Any:
    scales = np.ascontiguousarray(given, dtype=np.float32).reshape(-1)
    if scales.size not in (1, count):
        raise OperandError(f"there are {scales.size} {name}; expected 1 or {count}")
    if not (np.isfinite(scales) & (scales > 0)).all():
        raise OperandError(f"{name} has a number that is not positive and finite")
    return scales
