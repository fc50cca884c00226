# SPDX-License-Identifier: Apache-2.0
"""The error that a plan states: the largest error of a result over the root mean square (rms) of all results, against float64, for operands
uniform in [-1, 1). For operands in [0, 1), whose partial sums grow evenly, it is smaller. Operands are random; fewer than one draw in a
hundred has a larger error.

The error of n results that are direct sums of k products each:

    error = ((0.25 (ln(n) + 5) u sqrt(k)  +  k u / 4  +  0.6 spread u_A) few  +  spread u_C) / sqrt(share)       spread = sqrt(2 ln(n))

u           unit roundoff of the accumulators. Partial sums of zero mean grow as the root of their length, and each addition is off by up to
            u times its partial sum: a random walk of sqrt(k / 6) u. Its tail is exponential, since the partial sums of some results are
            large throughout: in 150,000 sums of 64 to 4,608 products the error exceeded x u sqrt(k) with probability
            exp(-x / 0.25 - 0.5), whatever k. Hence ln(n), and 5 more for the hundredth draw.
k u / 4     on tensor cores only: they truncate (measured)
u_A         unit roundoff of operands that are rounded before they are multiplied (tf32)
u_C         unit roundoff of results that are narrower than the accumulators
share       average share of a window's products that are not padding: results of windows in the padding are smaller, and so is the rms. k
            counts only taps that can be in the image at once.
few         1 + 8 / n^3, where n leaves out results of padding alone. A few results may all be small by chance, and the error large beside
            them (measured in the hundredth draw: 7.4, 1.7 and 1.2 for one, two and three results, 1 from four on).

Kernels that add in several partial sums are more accurate than this.

    standard   accepts any plan
    strict     accepts plans whose stated error is at most that of a direct sum of the type. On a CPU it also refuses plans in which an
               element of the input changes the rounding of results whose windows do not contain it (scale "tile")
    ieee       accepts plans that multiply and add in the type itself: operands are neither transformed nor split

Where operands differ much in size, the error of a result is relative to (`Bound.scale`)

    products   the sum of its own products' magnitudes: direct sums, also of operands split into parts
    window     the largest input of its window, times the sum of the weights' magnitudes: F(2x2), F(2x2, 5x5)
    tile       the largest input of its tile of outputs, of which its window is a part: F(3x3), F(4x4)

With F(4x4) an input of 1e6 among inputs of 1 adds an error of 0.2 to 0.5 to results of about 10 whose windows do not contain it.

Worked number: 802,816 results of 576 products in f32 (conv:mb4ic64ih56oc64kh3ph1), 98 % of which are not padding on average:
0.25 x 18.6 x 2^-24 x 24 / sqrt(0.98) = 6.7e-6.
"""

import math
from functools import lru_cache
from typing import NamedTuple

from pysim.algorithms.interface import Bound
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Axis
from pysim.problem.dtypes import BY_NAME, SUM_UNITS
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.record.accuracy import Accuracy
from pysim.record.cost import Reason
from pysim.record.plan import Layout, blocks_of

# Coefficients of the equation, measured (lab/data/*/accuracy.jsonl; test_accuracy.py holds every line to the stated error)
RANDOM_WALK, HUNDREDTH_DRAW, TRUNCATION, OPERAND_ROUNDING = 0.25, 5.0, 1 / 4, 0.6
FEW_RESULTS = 8.0
MAX_TAPS = 64  # of a row or column of a kernel that are counted one by one; of more, every second, third, ...


class Size(NamedTuple):
    """The number of results, and the most products that one of them is the sum of."""

    results: int
    products: int


@lru_cache(maxsize=256)
def size_of(problem: Workload) -> Size:
    if isinstance(problem, Gemm):
        return Size(problem.m * problem.n, problem.k)
    taps = _taps_in_image(problem.rows) * _taps_in_image(problem.columns)
    return Size(problem.output_elements, problem.group_channels * taps)


def random_walk(size: Size, unit: float) -> float:
    """The error of sums of which each addition is rounded to `unit`."""
    return RANDOM_WALK * (math.log(max(2, size.results)) + HUNDREDTH_DRAW) * unit * math.sqrt(size.products)


@lru_cache(maxsize=256)
def unpadded_share(problem: Workload) -> float:
    """The average share of a window's products that are not padding."""
    if isinstance(problem, Gemm) or not problem.padded:
        return 1.0
    return _unpadded_taps(problem.rows) * _unpadded_taps(problem.columns)


def _unpadded_taps(axis: Axis) -> float:
    """Along one axis: taps in the image, over all windows, relative to the taps that can be in the image at once."""
    taps = axis.taps[:: -(-axis.kernel // MAX_TAPS)]
    return max(1, axis.met(taps)) / (axis.out * min(len(taps), (axis.size - 1) // taps.step + 1))


def _taps_in_image(axis: Axis) -> int:
    """The most taps of a window that can be in the image at once along one axis."""
    return min(axis.kernel, (axis.size - 1) // axis.dilation + 1)


def _of_results(error: float, problem: Workload, machine: Machine | Gpu, layout: Layout) -> float:
    """The error of stored results, padding included, from that of a whole window's sum."""
    share = unpadded_share(problem)
    few = 1 + FEW_RESULTS / max(1.0, size_of(problem).results * share) ** 3
    return (error * few + _result_rounding(problem, machine, layout)) / math.sqrt(share)


def direct_sum_error(problem: Workload, machine: Machine | Gpu, layout: Layout = "nchw") -> float:
    """The error of a direct sum in the problem's type."""
    return _of_results(_accumulation_error(problem, machine), problem, machine, layout)


def _accumulation_error(problem: Workload, machine: Machine | Gpu) -> float:
    """The error of a direct sum before it is stored."""
    size, unit, operand = size_of(problem), SUM_UNITS[problem.dtype], BY_NAME[problem.dtype]
    error = random_walk(size, unit)
    if isinstance(machine, Gpu) and operand.unit > unit:  # on tensor cores
        error += TRUNCATION * size.products * unit
    rounded = 0.0 if operand.array else operand.unit  # no array has the type: operands are rounded before they are multiplied
    return error + OPERAND_ROUNDING * rounded * _spread(size)


def _result_rounding(problem: Workload, machine: Machine | Gpu, layout: Layout) -> float:
    """The error of rounding results to a type narrower than the accumulators', as those of bf16 in channel blocks of a CPU are, too."""
    dtype = BY_NAME[problem.dtype]
    on_cpu = problem.dtype if problem.dtype == "bf16" and blocks_of(layout)[1] > 1 else dtype.cpu_result
    unit = BY_NAME[dtype.gpu_results[0] if isinstance(machine, Gpu) else on_cpu].unit
    return unit * _spread(size_of(problem)) if unit > BY_NAME[dtype.sums].unit else 0.0


def _spread(size: Size) -> float:
    """The expected maximum of that many normally distributed numbers, in standard deviations."""
    return math.sqrt(2 * math.log(max(2, size.results)))


def stated_error(bound: Bound, problem: Workload, machine: Machine | Gpu, layout: Layout = "nchw") -> float:
    """The error that an algorithm states by its bound, with the rounding of results."""
    error = max(_accumulation_error(problem, machine) * bound.growth, bound.rms) if bound.error is None else bound.error
    return _of_results(error, problem, machine, layout)


def refuses(
    bound: Bound, problem: Workload, machine: Machine | Gpu, accuracy: Accuracy, limit: float | None, layout: Layout = "nchw"
) -> Reason | None:
    """Why a kernel with this bound is not accurate enough; None if it is."""
    if accuracy == "ieee" and bound.operands != "plain":
        return Reason("accuracy", f"its operands are {bound.operands}; accuracy ieee takes multiply-adds in {problem.dtype} only")
    error, direct = stated_error(bound, problem, machine, layout), direct_sum_error(problem, machine, layout)
    if accuracy == "strict" and error > direct:
        return Reason("accuracy", f"its error of {error:.1e} is above a direct sum's, {direct:.1e}, the limit of accuracy strict")
    if accuracy == "strict" and bound.scale == "tile" and isinstance(machine, Machine):
        return Reason("accuracy", "its error grows with inputs outside a result's window; accuracy strict takes errors of its window alone")
    if limit is not None and error > limit:
        return Reason("accuracy", f"its error of {error:.1e} is above the limit of {limit:.1e}")
    return None
