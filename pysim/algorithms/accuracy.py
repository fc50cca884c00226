# SPDX-License-Identifier: Apache-2.0
"""How accurate results are, on any machine in the same words: the largest error over the result's root mean square, against float64, of
operands that are uniform in [-1, 1); in [0, 1), where sums grow evenly, it is less. Operands are drawn: fewer than one draw in a hundred
has a larger error than is stated.

A direct sum, of n results of k products each, one product after another:

    error = ((0.25 (ln(n) + 5) u sqrt(k)  +  k u / 4  +  0.6 spread u_A) few  +  spread u_C) / sqrt(met)       spread = sqrt(2 ln(n))

u is the unit roundoff of the accumulators. Partial sums of zero mean grow as the root of their length, and each addition is off by up to u
of one: a random walk of sqrt(k / 6) u, whose tail is exponential, since some results' partial sums are large all the way. Of 150,000 sums
of 64 to 4,608 products a share of exp(-x / 0.25 - 0.5) was off by more than x u sqrt(k), whatever k: hence ln(n), and 5 more for the
hundredth draw. Results whose windows lie in the padding in part are smaller, and so is the root mean square: `met` is the share of a whole
window's products that windows have on average, and k counts what a window can meet at once: an image smaller than the kernel leaves fewer.
Few results may all be small by chance, and the error's part in them large: few = 1 + 8 / n^3, n without those of padding alone, is the
hundredth draw's (measured: 7.4, 1.7 and 1.2 for one, two and three results, 1 from four on). k u / 4 is what tensor cores add, which
truncate their sums (measured). u_A is the operands' roundoff where they are rounded to be multiplied (tf32), u_C that of a result narrower
than the sums. Kernels that add in several partial sums do better.

    standard   any plan
    strict     none whose stated error is larger than a direct sum's of that type
    ieee       multiply-adds of the type alone: operands neither transformed nor split

Worked number: 802,816 results of 576 products in f32 (conv:mb4ic64ih56oc64kh3ph1), of which windows have 98 % on average:
0.25 x 18.6 x 2^-24 x 24 / sqrt(0.98) = 6.7e-6.
"""

import math
from typing import NamedTuple

from pysim.algorithms.contract import Bound
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Axis
from pysim.problem.dtypes import BY_NAME, SUM_UNITS
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.record.accuracy import Accuracy
from pysim.record.cost import Reason

# Of zero-mean walks of roundings, of sums that tensor cores truncate, of operands that are rounded: measured
# (benchmarks/data/accuracy-*.jsonl; tests/test_accuracy.py holds every line to what is stated)
WALK, SURE, TRUNCATED, ROUNDED = 0.25, 5.0, 1 / 4, 0.6
FEW = 8.0  # of a single result: how much more its error is of it in the hundredth draw, beside that of many
MOST_TAPS = 64  # of a row or column of a kernel that are gone through; of more, some


class Size(NamedTuple):
    """How many results a problem has, and of how many products each at most."""

    results: int
    products: int


def size_of(problem: Workload) -> Size:
    if isinstance(problem, Gemm):
        return Size(problem.m * problem.n, problem.k)
    taps = _at_once(problem.rows) * _at_once(problem.columns)
    return Size(problem.output_elements, problem.group_channels * taps)


def walk(size: Size, unit: float) -> float:
    """The error of sums that are added product by product, each rounded to `unit`."""
    return WALK * (math.log(max(2, size.results)) + SURE) * unit * math.sqrt(size.products)


def met(problem: Workload) -> float:
    """Share of the products of a whole window that windows have on average: taps in the padding are none."""
    if isinstance(problem, Gemm) or not problem.padded:
        return 1.0
    return _met(problem.rows) * _met(problem.columns)


def _met(axis: Axis) -> float:
    """Along one edge: taps that meet the image, over all windows, of as many as meet it at once."""
    taps = axis.taps[:: -(-axis.kernel // MOST_TAPS)]
    return max(1, axis.met(taps)) / (axis.out * min(len(taps), (axis.size - 1) // taps.step + 1))


def _at_once(axis: Axis) -> int:
    """How many taps a window can have in the image at once along one edge."""
    return min(axis.kernel, (axis.size - 1) // axis.dilation + 1)


def _of_results(error: float, problem: Workload, machine: Machine | Gpu) -> float:
    """An error of whole windows' sums as a share of the results, in the padding and stored; few of them may be small by chance."""
    share = met(problem)
    few = 1 + FEW / max(1.0, size_of(problem).results * share) ** 3
    return (error * few + stored(problem, machine)) / math.sqrt(share)


def direct(problem: Workload, machine: Machine | Gpu) -> float:
    """The error of a direct sum of a problem's type."""
    return _of_results(sums(problem, machine), problem, machine)


def sums(problem: Workload, machine: Machine | Gpu) -> float:
    """Of its sums alone, before they are stored."""
    size, unit, operand = size_of(problem), SUM_UNITS[problem.dtype], BY_NAME[problem.dtype]
    error = walk(size, unit)
    if isinstance(machine, Gpu) and operand.unit > unit:  # on tensor cores
        error += TRUNCATED * size.products * unit
    rounded = 0.0 if operand.array else operand.unit  # no array holds the type: operands are rounded to be multiplied
    return error + ROUNDED * rounded * _spread(size)


def stored(problem: Workload, machine: Machine | Gpu) -> float:
    """What rounding to the result's type adds, where that is narrower than the sums'."""
    one = BY_NAME[problem.dtype]
    result = BY_NAME[one.gpu_results[0] if isinstance(machine, Gpu) else one.cpu_result].unit
    return result * _spread(size_of(problem)) if result > BY_NAME[one.sums].unit else 0.0


def _spread(size: Size) -> float:
    """How far the largest of so many normally distributed numbers is from 0, in standard deviations."""
    return math.sqrt(2 * math.log(max(2, size.results)))


def stated(bound: Bound, problem: Workload, machine: Machine | Gpu) -> float:
    """An algorithm's error by its bound, the result's type included; where it states none, a direct sum's, or what it may be off."""
    error = max(sums(problem, machine) * bound.growth, bound.rms) if bound.error is None else bound.error
    return _of_results(error, problem, machine)


def refuses(bound: Bound, problem: Workload, machine: Machine | Gpu, accuracy: Accuracy, limit: float | None) -> Reason | None:
    """Why a kernel that answers with `bound` is not accurate enough."""
    if accuracy == "ieee" and bound.operands != "plain":
        return Reason("accuracy", f"its operands are {bound.operands}; accuracy ieee is multiply-adds of {problem.dtype} alone")
    error, most = stated(bound, problem, machine), direct(problem, machine)
    if accuracy == "strict" and error > most:
        return Reason("accuracy", f"its error of {error:.1e} is above a direct sum's {most:.1e}, which is what strict allows")
    if limit is not None and error > limit:
        return Reason("accuracy", f"its error of {error:.1e} is above the limit of {limit:.1e}")
    return None
