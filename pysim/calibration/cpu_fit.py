# SPDX-License-Identifier: Apache-2.0
"""Fits the constants of the cost model to measured plans: non-negative, robust, with the machine file's constants as the prior.

    minimise over x >= 0:  sum over plans      w_p ((predicted_p(x) - measured_p) / measured_p)^2
                         + sum over constants  (PRIOR s (x_c - prior_c) / size_c)^2          s = 1.48 median |error|

x are the costs in CONSTANTS and the share of transfers that does not overlap with computing, 1 - overlap. Predictions are nearly linear in
x: each Gauss-Newton step solves the problem linearised at the last x (`scipy.optimize.nnls`; Lawson and Hanson, Solving Least Squares
Problems, chapter 23).

- Robust: a plan whose error exceeds OUTLIER gets a weight that falls with the square of its error (w_p). Such a plan shows that the model
  lacks a term, not what the constants are.
- Prior: s estimates the model's own error on these plans. The better the model fits, the more the plans count against the prior. PRIOR was
  chosen by fits to recorded plans that predict other layers of the same machine (Granite Rapids, two Emerald Rapids, Zen 5, Zen 4): with 4
  the median error of the other layers is at or below that of the prior's constants on every machine, without it 1 to 3 % above on three.
  A separate overlap for L2, L3 and memory predicted no machine's other layers better.

The error of a constant is half the range of the middle 90 % over RESAMPLES fits to perturbed times: each plan by its own error, all plans
together by the clock's. If other processes used the shared levels all the time, the constants of these levels are in doubt. The error of
the others is then at least their change in a fit that keeps the machine file's constants of shared levels: of ten calibrations of a Zen 4
beside a busy process, four had a call_cycles 7 to 9 % below that of the quiet computer, by resampled fits +- 5 %
(zen4/calibration-load.jsonl).

Worked number: 4 % of model error gives the prior of call_cycles (108, size 100) the weight of a plan that is off by 0.16 at 208.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from pysim.calibration.cpu_lab import LARGE, Measured
from pysim.calibration.cpu_share import cycles_of, ways_left, with_ways
from pysim.calibration.estimate import MIN_ROUNDS, SURE, Estimate, Floats, settle
from pysim.errors import MachineError
from pysim.machine.cpu import Machine
from pysim.machine.quantity import Number

CONSTANTS = ("call_cycles", "pack_call_cycles", "pack_cycles", "pack_line_cycles", "store_run_cycles", "transform_cycles", "overlap")
# Of these, what depends on cache levels and memory that other processes use, too
ON_SHARED_LEVELS = ("pack_line_cycles", "store_run_cycles", "transform_cycles", "overlap")
SIZES = np.array([100.0, 20.0, 1.5, 8.0, 10.0, 0.3, 0.2])  # typical magnitude of each constant (of overlap: of a change)
STEPS, DIFFERENCE, REWEIGHTED = 3, 0.05, 3  # Gauss-Newton steps; finite difference, in sizes; reweighted solutions of each step
OUTLIER, RESAMPLES = 0.1, 100
CLOCK_ERROR = 0.005  # relative error of the clock, which all cycles share
MIN_LARGE_PLANS = 12  # of large layers: with fewer, overlap and the ways of the last level stay as they were
PRIOR = 4.0  # weight of the prior, in model errors
MIN_MODEL_ERROR = 2.5e-4  # keeps the problem determined where predictions are exact
MOSTLY_PRIOR = 0.5  # share of a constant's information from the plans below which it is in doubt


class Quality(msgspec.Struct, frozen=True):
    """Median and 90th percentile of |log(predicted / measured)| over plans."""

    median_error: float
    p90_error: float


class Shape(msgspec.Struct, frozen=True):
    """Median of measured over predicted time of the plans of one micro-kernel."""

    kernel: str
    plans: int
    over_predicted: float


class Fit(msgspec.Struct, frozen=True):
    """`constants` by the names in CONSTANTS. Prediction quality with the machine file's constants (`before`), with these (`after`), and of
    each layer by a fit to the other layers (`left_out`). `rejected`: plans left out because rounds disagreed. `ways`: ways of the last
    level that other virtual machines leave, None where the plans do not determine it."""

    constants: dict[str, Estimate]
    ways: Estimate | None
    before: Quality
    after: Quality
    left_out: Quality
    shapes: tuple[Shape, ...]
    plans: int
    rejected: int


def with_constants(on: Machine, values: Sequence[float], kind: Any = "fitted", source: str = "") -> Machine:
    """The machine with other constants, in the order of CONSTANTS. Without a `source` each keeps its own."""

    def number(name: str, value: float) -> Number:
        return Number(value=float(value), kind=kind, source=source or prior_of(on, name).source)

    numbers = {name: number(name, value) for name, value in zip(CONSTANTS, values, strict=True)}
    return msgspec.structs.replace(on, core=msgspec.structs.replace(on.core, **numbers))


def prior_of(on: Machine, name: str) -> Number:
    """A constant of the machine file; transform_cycles is optional there."""
    known: Number | None = getattr(on.core, name)
    return known or Number(value=on.core.transform_wait, kind="assumed", source=on.core.overlap.source)


def predictor(on: Machine, plans: Sequence[Measured]) -> Callable[[Floats], Floats]:
    """Predicted cycles of the plans as a function of x."""

    def cycles(x: Floats) -> Floats:
        return cycles_of(with_constants(on, _constants(x)), plans)

    return cycles


def _constants(x: Floats) -> list[float]:
    """Values of CONSTANTS: x ends with 1 - overlap."""
    return [*x[:-1].tolist(), 1.0 - min(1.0, float(x[-1]))]


def _x_of(values: Iterable[float]) -> Floats:
    """The inverse of `_constants`."""
    x = np.array(list(values))
    x[-1] = 1.0 - x[-1]
    return x


class _Linear(NamedTuple):
    """Predictions linearised in x, rest + slopes x; what was measured; the prior of x."""

    rest: Floats
    slopes: Floats
    measured: Floats
    prior: Floats

    def predicted(self, x: Floats) -> Floats:
        cycles: Floats = self.rest + self.slopes @ x
        return cycles

    def solved(self, x: Floats, rows: NDArray[np.bool_] | slice = slice(None)) -> Floats:
        """The x >= 0 that fits the plans in `rows`, reweighted from `x` on."""
        from scipy.optimize import nnls

        measured = self.measured[rows]
        for _ in range(REWEIGHTED):
            weight, confidence = self._weights(x, rows)
            system = np.vstack([self.slopes[rows] * weight[:, None], np.diag(confidence)])
            x = nnls(system, np.concatenate([(measured - self.rest[rows]) * weight, confidence * self.prior]))[0]
            x[-1] = min(x[-1], 1.0)
        return x

    def _weights(self, x: Floats, rows: NDArray[np.bool_] | slice = slice(None)) -> tuple[Floats, Floats]:
        """Square roots of the weights of the plans, per cycle, and of the prior of each constant."""
        measured = self.measured[rows]
        off = np.abs(self.predicted(x)[rows] / measured - 1)
        model_error = max(MIN_MODEL_ERROR, 1.48 * float(np.median(off)))
        return np.minimum(1.0, OUTLIER / np.maximum(off, 1e-12)) / measured, PRIOR * model_error / SIZES

    def holding(self, names: Sequence[str]) -> "_Linear":
        """The same with some constants at their priors."""
        held = np.array([name in names for name in CONSTANTS])
        return self._replace(rest=self.rest + self.slopes[:, held] @ self.prior[held], slopes=self.slopes * ~held)

    def learned(self, x: Floats) -> Floats:
        """The share of the information about each constant that comes from the plans and not from the prior."""
        weight, confidence = self._weights(x)
        weighted = self.slopes * weight[:, None]
        inverse = np.linalg.inv(weighted.T @ weighted + np.diag(confidence**2))
        share: Floats = 1 - np.diag(inverse) * confidence**2
        return share


def fitted(on: Machine, plans: Sequence[Measured], rounds: Floats, quiet: Sequence[bool], most_ways: int) -> Fit:
    """The constants, and the ways of the last level (at most `most_ways`), that predict the measured plans best.

    `rounds`: cycles, rounds x plans. Only `quiet` rounds count where there are enough of them; else constants on shared levels are in
    doubt and the ways stay. Without plans of large layers overlap and the ways stay. MachineError where rounds agree on too few plans.
    """
    busy = sum(quiet) < MIN_ROUNDS
    rounds = rounds if busy else rounds[np.asarray(quiet)]
    settled = [settle(column) for column in rounds.T]
    kept = [at for at, one in enumerate(settled) if one]
    if len(kept) < 2 * len(CONSTANTS):
        raise MachineError(
            f"rounds agree on {len(kept)} of {len(plans)} plans, too few to fit constants to: others use this CPU too much now"
        )
    mine = [plans[at] for at in kept]
    measured = np.array([one.value for one in settled if one])
    errors = np.array([one.error for one in settled if one]) / measured
    large = sum(one.problem in LARGE for one in mine) >= MIN_LARGE_PLANS
    free = np.array([1.0] * (len(CONSTANTS) - 1) + [float(large)])
    prior = _x_of(prior_of(on, name).value for name in CONSTANTS)
    x, first = prior, predictor(on, mine)(prior)
    for _ in range(STEPS):
        ways = ways_left(with_constants(on, _constants(x)), most_ways, mine, measured) if large and not busy else None
        predicted = predictor(with_ways(on, round(ways.value)) if ways else on, mine)
        linear = _linearised(predicted, x, measured, prior, free)
        x = linear.solved(x)
    problems = np.array([one.problem for one in mine])
    last = predicted(x)
    return Fit(
        constants=_estimates(linear, x, errors, busy),
        ways=ways,
        before=_quality(first, measured),
        after=_quality(last, measured),
        left_out=_quality(_left_out(linear, x, problems), measured),
        shapes=_shapes([one.kernel for one in mine], measured / last),
        plans=len(mine),
        rejected=len(plans) - len(mine),
    )


def _linearised(predicted: Callable[[Floats], Floats], x: Floats, measured: Floats, prior: Floats, free: Floats) -> _Linear:
    """Finite differences about x; a constant that is not `free` (1 or 0) keeps its prior."""
    base = predicted(x)
    steps = DIFFERENCE * SIZES
    steps[-1] = -steps[-1] if x[-1] + steps[-1] > 1 else steps[-1]
    slopes = np.stack([(predicted(x + step * unit) - base) / step for step, unit in zip(steps, np.eye(x.size), strict=True)], axis=1)
    slopes *= free
    return _Linear(base - slopes @ x, slopes, measured, prior)


def _estimates(linear: _Linear, x: Floats, errors: Floats, busy: bool) -> dict[str, Estimate]:
    """Constants with their errors, from fits to perturbed times; `errors` are the relative ones of the plans."""
    random = np.random.default_rng(0)
    draws = []
    for _ in range(RESAMPLES):
        again = linear.measured * (1 + random.normal(0, errors)) * random.normal(1, CLOCK_ERROR)
        draws.append(_constants(linear._replace(measured=again).solved(x)))
    spread = np.subtract(*np.quantile(draws, [0.95, 0.05], axis=0)) / 2
    if busy:
        held = _constants(linear.holding(ON_SHARED_LEVELS).solved(linear.prior))
        spread = np.maximum(spread, np.abs(np.subtract(_constants(x), held)))
    found = zip(CONSTANTS, _constants(x), spread.tolist(), linear.learned(x).tolist(), strict=True)
    return {name: Estimate(value, error, _doubt(name, value, error, share, busy)) for name, value, error, share in found}


def _doubt(name: str, value: float, error: float, learned: float, busy: bool) -> str:
    """Why a constant is not sure; empty where it is."""
    if busy and name in ON_SHARED_LEVELS:
        return "other processes used the shared cache levels all the time"
    if value == 0 or learned < MOSTLY_PRIOR:
        return "the plans depend too little on it; close to what the machine file had" if value else "the plans do not depend on it"
    other = "other numbers of the shared cache levels" if busy else "other rounds"
    return f"{other} would give {max(0.0, value - error):.3g} to {value + error:.3g}" if error > SURE * value else ""


def _left_out(linear: _Linear, x: Floats, problems: NDArray[np.str_]) -> Floats:
    """Predicted cycles of each layer by a fit to the other layers."""
    predicted = np.empty_like(linear.measured)
    for problem in dict.fromkeys(problems):
        mine = problems == problem
        predicted[mine] = linear.predicted(linear.solved(x, ~mine))[mine]
    return predicted


def _quality(predicted: Floats, measured: Floats) -> Quality:
    median, p90 = np.quantile(np.abs(np.log(predicted / measured)), [0.5, 0.9])
    return Quality(float(median), float(p90))


def _shapes(kernels: list[str], ratios: Floats) -> tuple[Shape, ...]:
    by_kernel = {kernel: ratios[[one == kernel for one in kernels]] for kernel in sorted(set(kernels))}
    return tuple(Shape(kernel, some.size, float(np.median(some))) for kernel, some in by_kernel.items())
