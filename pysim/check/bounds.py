# SPDX-License-Identifier: Apache-2.0
"""How far a right result may be off: the one place where tolerances stand, our own and other libraries'.

    |got - want| <= (gamma_k(u) g + gamma_k(2^-53)) |A||B| + u_C |want| + s_C / 2        gamma_k(u) = k u / (1 - k u)

(Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1.) u is the unit roundoff of the accumulators: 2^-53 in
double, 2^-14 of FP8, whose sums keep 13 bits, 2^-24 of all others, whose products are exact in float32; twice that on a GPU, whose tensor
cores may truncate. u_C is the result's and s_C its least number above zero, 2^-53 the reference's own. g is what an algorithm's
transforms add (`Bound.growth`); where they have no such bound, the error is held to `Bound.rms` of the results' root mean square, on
whole numbers too. Whole results are exact.

Worked number: f16 on a GPU, k = 64: 7.6e-6 of |A||B| and 4.9e-4 of the element.
"""

import math
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from pysim.algorithms import algorithm_named
from pysim.algorithms.contract import Bound
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SUM_UNITS
from pysim.problem.text import Workload
from pysim.record.plan import Plan

Array = NDArray[Any]

# Whole numbers stay exact in F(2x2), the largest transform that has none but halves and quarters: 2.25 of the filter's transform, 4 of the
# patch's, 9 planes, in quarters, over 9 products
EXACT_GROWTH = 36
_TRANSFORMED = {"f32": 1e-3, "tf32": 0.1, "tf32x3": 1e-3, "f16": 0.1, "bf16": 0.5}  # of the root mean square


class Sums(NamedTuple):
    """How a problem's results are summed: `k` products each, the accumulators' unit roundoff, the type of the result."""

    k: int
    unit: float
    result: np.dtype[Any]


def sums_of(dtype: str, k: int, result: np.dtype[Any], on_gpu: bool) -> Sums:
    """Of a problem's type on a CPU or a GPU."""
    unit = SUM_UNITS[dtype]
    return Sums(k, 2 * unit if on_gpu and unit == SUM_UNITS["f32"] else unit, result)


def gamma(k: float, unit: float) -> float:
    """k u / (1 - k u); where k u is above a half and the bound means little, 2 k u."""
    return k * unit / (1 - min(0.5, k * unit))


def allowed(bound: Bound, sums: Sums, want: Array, scale: Array, stored: int = 1) -> Array:
    """How far each element may be from `want`, `scale` being |A||B| there; `stored`: how many of the two are rounded to the result's
    type."""
    if sums.result.kind == "i":
        return np.zeros_like(scale, np.float64)
    summed = gamma(sums.k * bound.growth, sums.unit) + gamma(sums.k, 2.0**-53)
    of = ml_dtypes.finfo(sums.result)  # type: ignore[no-untyped-call]  # whose class has no annotations
    rounded, least = stored * float(of.eps) / 2, stored * float(of.smallest_subnormal) / 2
    return np.maximum(summed * scale + rounded * np.abs(want) + least, of_rms(bound, want))


def of_rms(bound: Bound, want: Array) -> float:
    """How far elements may be off whatever they are: 0 where an algorithm does not transform its operands."""
    return bound.rms * math.sqrt(float(np.mean(want.astype(np.float64) ** 2))) if bound.rms else 0.0


def exact_growth(workload: Workload) -> int:
    """How much larger than the sums their parts may be in algorithms that still give whole numbers exactly."""
    return EXACT_GROWTH if isinstance(workload, Conv) and workload.dtype == "f32" else 1


def bound_of(plan: Plan) -> Bound:
    """What a plan's algorithm says of its results."""
    return algorithm_named(plan.algorithm, plan.workload, plan.on).tolerance(plan.workload, plan.schedule)


def transformed(dtype: str) -> Bound:
    """Of other libraries' algorithms that transform their operands (FFT, Winograd, whatever PyTorch takes)."""
    return Bound(1.0, _TRANSFORMED[dtype], "no bound is published")
