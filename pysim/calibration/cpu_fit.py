# SPDX-License-Identifier: Apache-2.0
"""The constants of the cost model from measured plans, by non-negative least squares.

    minimise over x >= 0:  sum over plans      w_p ((predicted_p(x) - measured_p) / measured_p)^2
                         + sum over constants  (WEAK (x_c - before_c) / size_c)^2

x are the costs of CONSTANTS and the share of transfers that shows, 1 - overlap. Predictions are nearly linear in x: each step solves the
linear problem at the last x (`scipy.optimize.nnls`; Lawson and Hanson, Solving Least Squares Problems, chapter 23). A plan that is further
off than OUTLIER weighs less, in proportion to the square, so that its pull wanes: it says that the model lacks a term, not what constants
are. A constant that the plans say nothing of stays what it was: before_c is an observation, too, as weak as a plan that is off by WEAK
where the constant is off by all its size.

The error of a constant is half the range of the middle 90 % over RESAMPLES fits to other times: each plan's off by its own error, all
together by the clock's.

Worked number: a plan of 1,000 calls that is measured 20,000 cycles above what its other terms come to wants 20 cycles a call.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from pysim import planner
from pysim.calibration.cpu_lab import LARGE, Measured
from pysim.calibration.cpu_share import ways_left, with_ways
from pysim.calibration.estimate import FEWEST, SURE, Estimate, Floats, settle
from pysim.errors import MachineError
from pysim.machine.cpu import Machine
from pysim.machine.quantity import Number

CONSTANTS = ("call_cycles", "pack_call_cycles", "pack_cycles", "pack_line_cycles", "store_run_cycles", "transform_cycles", "overlap")
OUTSIDE = ("pack_line_cycles", "store_run_cycles", "transform_cycles", "overlap")  # of them, what levels that others use, too, decide
SIZES = np.array([100.0, 20.0, 1.5, 8.0, 10.0, 0.3, 0.2])  # what is large for a constant
STEPS, STEP, REWEIGHTED = 3, 0.05, 3  # of Gauss and Newton; a difference, in sizes; solutions of a step, each with the last one's weights
OUTLIER, RESAMPLES = 0.1, 100
CLOCK_ERROR = 0.005  # what all cycles may be off by together, as the clock is read
FEWEST_LARGE = 12  # plans of large layers without which overlap and the ways stay as they were
WEAK = 0.001  # of the observation of what a constant was


class Quality(msgspec.Struct, frozen=True):
    """|log(predicted / measured)| of plans: median and 90th percentile."""

    median_error: float
    p90_error: float


class Shape(msgspec.Struct, frozen=True):
    """What plans of a micro-kernel took over what is predicted of them: the median."""

    kernel: str
    plans: int
    over_predicted: float


class Fit(msgspec.Struct, frozen=True):
    """Constants by name, those of CONSTANTS; how well plans were predicted `before`, with the file's, and are `after`, with these;
    `left_out`: each layer by a fit to the others. `rejected` plans took no part: rounds did not agree on them. `ways`: what strangers leave
    of the last level; None where the plans do not say."""

    constants: dict[str, Estimate]
    ways: Estimate | None
    before: Quality
    after: Quality
    left_out: Quality
    shapes: tuple[Shape, ...]
    plans: int
    rejected: int


def with_constants(on: Machine, values: Sequence[float], kind: Any = "fitted", source: str = "") -> Machine:
    """The machine with other constants, in the order of CONSTANTS; `source` where it is another one than before."""

    def number(name: str, value: float) -> Number:
        return Number(value=float(value), kind=kind, source=source or before(on, name).source)

    numbers = {name: number(name, value) for name, value in zip(CONSTANTS, values, strict=True)}
    return msgspec.structs.replace(on, core=msgspec.structs.replace(on.core, **numbers))


def before(on: Machine, name: str) -> Number:
    """What a constant was; of transforms, a file may not say."""
    known: Number | None = getattr(on.core, name)
    return known or Number(value=on.core.transform_wait, kind="assumed", source=on.core.overlap.source)


def predictor(on: Machine, plans: Sequence[Measured]) -> Callable[[Floats], Floats]:
    """Cycles of the plans as a function of x."""

    def cycles(x: Floats) -> Floats:
        machine = with_constants(on, _values(x))
        seconds = [planner.plan(one.problem, machine, name=one.name).seconds or np.nan for one in plans]
        return np.array(seconds) * machine.clock_hz

    return cycles


def _values(x: Floats) -> list[float]:
    """Constants of x: its last is what shows of transfers, at most all."""
    return [*x[:-1].tolist(), 1.0 - min(1.0, float(x[-1]))]


class _Linear(NamedTuple):
    """Predictions about one x: rest + slopes x, beside what was measured, and x as it was before."""

    rest: Floats
    slopes: Floats
    measured: Floats
    before: Floats

    def predicted(self, x: Floats) -> Floats:
        cycles: Floats = self.rest + self.slopes @ x
        return cycles

    def solved(self, x: Floats, rows: NDArray[np.bool_] | slice = slice(None)) -> Floats:
        """The x >= 0 of least squares over some plans, of which outliers are those from `x`."""
        from scipy.optimize import nnls

        measured = self.measured[rows]
        for _ in range(REWEIGHTED):
            off = np.abs(self.predicted(x)[rows] / measured - 1)
            weight = np.minimum(1.0, OUTLIER / np.maximum(off, 1e-12)) / measured
            observed = WEAK / SIZES
            system = np.vstack([self.slopes[rows] * weight[:, None], np.diag(observed)])
            x = nnls(system, np.concatenate([(measured - self.rest[rows]) * weight, observed * self.before]))[0]
            x[-1] = min(x[-1], 1.0)
        return x


def fitted(on: Machine, plans: Sequence[Measured], rounds: Floats, quiet: Sequence[bool], most_ways: int) -> Fit:
    """The constants that predict what was measured, and the ways of the last level, of at most so many: `rounds` are cycles, rounds x
    plans, of which the `quiet` ones count where there are enough of them; else what others use, too, is not sure, and the ways stay.
    Small layers alone, or few others, say nothing of `overlap` where transfers come from far, nor of the ways, and leave both. Raises
    MachineError where rounds agree on too few plans.
    """
    busy = sum(quiet) < FEWEST
    rounds = rounds if busy else rounds[np.asarray(quiet)]
    settled = [settle(column) for column in rounds.T]
    kept = [at for at, one in enumerate(settled) if one]
    if len(kept) < 2 * len(CONSTANTS):
        raise MachineError(
            f"rounds agree on {len(kept)} of {len(plans)} plans, too few to fit constants to: others use this CPU too much now"
        )
    mine = [plans[at] for at in kept]
    measured = np.array([one.value for one in settled if one])
    doubts = np.array([one.error for one in settled if one]) / measured
    large = sum(one.problem in LARGE for one in mine) >= FEWEST_LARGE
    free = np.array([1.0] * (len(CONSTANTS) - 1) + [float(large)])
    start = _shown(before(on, name).value for name in CONSTANTS)
    x, first = start, predictor(on, mine)(start)
    for _ in range(STEPS):
        ways = ways_left(with_constants(on, _values(x)), most_ways, mine, measured) if large and not busy else None
        predicted = predictor(with_ways(on, round(ways.value)) if ways else on, mine)
        linear = _linear(predicted, x, measured, start, free)
        x = linear.solved(x)
    random = np.random.default_rng(0)
    draws = []
    for _ in range(RESAMPLES):
        again = measured * (1 + random.normal(0, doubts)) * random.normal(1, CLOCK_ERROR)
        draws.append(_values(linear._replace(measured=again).solved(x)))
    errors = (np.subtract(*np.quantile(draws, [0.95, 0.05], axis=0)) / 2).tolist()
    found = zip(CONSTANTS, _values(x), errors, strict=True)
    problems = np.array([one.problem for one in mine])
    left_out = np.empty_like(measured)
    for problem in dict.fromkeys(problems):
        left_out[problems == problem] = linear.predicted(linear.solved(x, problems != problem))[problems == problem]
    last = predicted(x)
    return Fit(
        constants={name: _estimate(value, error, busy and name in OUTSIDE) for name, value, error in found},
        ways=ways,
        before=_quality(first, measured),
        after=_quality(last, measured),
        left_out=_quality(left_out, measured),
        shapes=_shapes([one.kernel for one in mine], measured / last),
        plans=len(mine),
        rejected=len(plans) - len(mine),
    )


def _shown(values: Iterable[float]) -> Floats:
    """x of constants: of the last, overlap, what shows."""
    x = np.array(list(values))
    x[-1] = 1.0 - x[-1]
    return x


def _linear(predicted: Callable[[Floats], Floats], x: Floats, measured: Floats, before: Floats, free: Floats) -> _Linear:
    """About x; a constant that is not `free` (1 or 0) stays what it was before."""
    base = predicted(x)
    steps = STEP * SIZES
    steps[-1] = -steps[-1] if x[-1] + steps[-1] > 1 else steps[-1]
    slopes = np.stack([(predicted(x + step * unit) - base) / step for step, unit in zip(steps, np.eye(x.size), strict=True)], axis=1)
    slopes *= free
    return _Linear(base - slopes @ x, slopes, measured, before)


def _estimate(value: float, error: float, used: bool) -> Estimate:
    if used:
        return Estimate(value, error, "others used what it waits for all the time")
    if value == 0:
        return Estimate(value, error, "the plans show nothing of it")
    return Estimate(
        value, error, f"other rounds would say {max(0.0, value - error):.3g} to {value + error:.3g}" if error > SURE * value else ""
    )


def _quality(predicted: Floats, measured: Floats) -> Quality:
    median, p90 = np.quantile(np.abs(np.log(predicted / measured)), [0.5, 0.9])
    return Quality(float(median), float(p90))


def _shapes(kernels: list[str], ratios: Floats) -> tuple[Shape, ...]:
    by_kernel = {kernel: ratios[[one == kernel for one in kernels]] for kernel in sorted(set(kernels))}
    return tuple(Shape(kernel, some.size, float(np.median(some))) for kernel, some in by_kernel.items())
