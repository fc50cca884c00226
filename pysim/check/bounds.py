# SPDX-License-Identifier: Apache-2.0
"""Tolerances of results: the one place for those of our own kernels and of other libraries.

    |got - want| <= (gamma_k(u) g + gamma_k(2^-53)) |A||B| + u_C |want| + s_C / 2        gamma_k(u) = k u / (1 - k u)

(Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1.) u is the unit roundoff of the accumulators: 2^-53 in
double, 2^-14 of FP8, whose sums keep 13 bits, and 2^-24 of all others, whose products are exact in float32; twice that on a GPU, whose
tensor cores may truncate. u_C is the result type's unit roundoff, s_C its smallest positive number, 2^-53 the reference's unit roundoff.
g is the growth by an algorithm's transforms (`Bound.growth`). Without such a bound the error is limited to `Bound.rms` times the root mean
square of the results, also on whole numbers. Integer results are exact.

Worked number: f16 on a GPU, k = 64: 7.6e-6 of |A||B| and 4.9e-4 of the element.
"""

import math
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from pysim.algorithms import algorithm_named
from pysim.algorithms.interface import Bound
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SUM_UNITS
from pysim.problem.text import Workload
from pysim.record.plan import Plan

Array = NDArray[Any]

# Growth of the sums in F(2x2), the largest transform exact on whole numbers, since its factors are halves and quarters: 2.25 by the
# filter's # transform, 4 by the patch's, 9 planes in quarters, over 9 products
EXACT_GROWTH = 36
_TRANSFORMED = {"f32": 1e-3, "tf32": 0.1, "tf32x3": 1e-3, "f16": 0.1, "bf16": 0.5}  # times the root mean square


class Sums(NamedTuple):
    """The sums of a problem: `k` products each, the accumulators' unit roundoff, the type of the result."""

    k: int
    unit: float
    result: np.dtype[Any]


def sums_of(dtype: str, k: int, result: np.dtype[Any], on_gpu: bool) -> Sums:
    """The sums of an element type on a CPU or a GPU."""
    unit = SUM_UNITS[dtype]
    return Sums(k, 2 * unit if on_gpu and unit == SUM_UNITS["f32"] else unit, result)


def gamma(k: float, unit: float) -> float:
    """k u / (1 - k u), or 2 k u where k u > 1/2 and the bound means little."""
    return k * unit / (1 - min(0.5, k * unit))


def allowed(bound: Bound, sums: Sums, want: Array, scale: Array, stored: int = 1) -> Array:
    """The tolerance of each element around `want`, where `scale` is |A||B|. `stored`: how many of result and reference are rounded to the
    result's type."""
    if sums.result.kind == "i":
        return np.zeros_like(scale, np.float64)
    summed = gamma(sums.k * bound.growth, sums.unit) + gamma(sums.k, 2.0**-53)
    of = ml_dtypes.finfo(sums.result)  # type: ignore[no-untyped-call]  # whose class has no annotations
    rounded, least = stored * float(of.eps) / 2, stored * float(of.smallest_subnormal) / 2
    return np.maximum(summed * scale + rounded * np.abs(want) + least, of_rms(bound, want))


def of_rms(bound: Bound, want: Array) -> float:
    """The tolerance that is the same for all elements: 0 where an algorithm does not transform its operands."""
    return bound.rms * math.sqrt(float(np.mean(want.astype(np.float64) ** 2))) if bound.rms else 0.0


def exact_growth(workload: Workload) -> int:
    """The largest growth of intermediate values over the sums in algorithms that are exact on whole numbers."""
    return EXACT_GROWTH if isinstance(workload, Conv) and workload.dtype == "f32" else 1


def bound_of(plan: Plan) -> Bound:
    """The error bound stated by a plan's algorithm."""
    return algorithm_named(plan.algorithm, plan.workload, plan.on).tolerance(plan.workload, plan.schedule)


def transformed(dtype: str) -> Bound:
    """The bound for other libraries' algorithms that may transform their operands (FFT, Winograd, PyTorch's choice)."""
    return Bound(1.0, _TRANSFORMED[dtype], "no bound is published")
