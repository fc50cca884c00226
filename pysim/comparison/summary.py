# SPDX-License-Identifier: Apache-2.0
"""Statistics of a set of comparisons.

For layer i let r_i = median time of a peer / median time of the plan, and e_i = |log(predicted / measured)|. The geometric mean is
exp(mean log r_i) over distinct problems. For problems with at least three measured plans, Kendall's rank correlation compares predicted and
measured times over the plans. An error of 0.40 is a factor of 1.49.

Worked number: ratios 1.1, 1.2 and 0.9 have the geometric mean 1.0591 and the plan is faster on 2/3 of the layers.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pysim.measure.statistics import kendall_tau
from pysim.record.measurement import Comparison

OURS = "pysim"
LARGE_ERROR = 0.40  # |log(predicted / measured)| that is listed by name
FEWEST_SAMPLES = 30
MOST_DISTURBED = 1 / 3  # largest share of the rounds that were left out, and of the time that others took, of a measurement that counts


def summarise(comparisons: Iterable[Comparison]) -> dict[str, Any]:
    """The statistics of a set of comparisons, ready for JSON; parts without measurements are absent.

    `layers`, `correct`, `failed` [{problem, label, reason}]; `disturbed`: the problems whose measurement does not count, because more than
    MOST_DISTURBED of its rounds were left out, or of its time was taken by others. If they are more than that share of all, only they are
    listed: what is left says little, since a disturbance that is seen half of the time is not seen the other half.
    Of plans that were timed: `peers` {name: {layers, geometric_mean, faster_share, slower, error_ratio?, algorithms?}} over distinct
    problems, `error_ratio` the geometric mean of its largest error over pysim's, `algorithms` counting which were its fastest;
    `prediction` {layers, median_error, p90_error, kendall_tau?, large_errors}; `total_seconds` {name: sum of count x median} for the
    candidates that ran every correct layer; `few_samples` (problems short of 30). Of plans that ran in an emulator:
    `static_prediction` {kind, layers, median_error, p90_error, large_errors, predicted_seconds, static_seconds}, the last two sums of
    count x time.
    """
    every = list(comparisons)
    right = [c for c in every if c.correct]
    failed = [{"problem": c.problem, "label": c.label, "reason": c.reason} for c in every if not c.correct]
    summary: dict[str, Any] = {"layers": len(every), "correct": len(right), "failed": failed}
    if static := [c for c in right if c.static_seconds and c.predicted_seconds]:
        summary["static_prediction"] = _static_prediction(static)
    measured = [c for c in right if c.measured_seconds]
    timed = [c for c in measured if not disturbed(c)]
    if lost := [c.problem for c in measured if disturbed(c)]:
        summary["disturbed"] = lost
    if not timed or len(lost) > MOST_DISTURBED * len(measured):
        return summary
    names = sorted({name for c in timed for name in c.peers})
    summary["peers"] = {name: _against(name, [c for c in timed if name in c.peers]) for name in names}
    predicted = [c for c in timed if c.predicted_seconds]
    if predicted:
        summary["prediction"] = _prediction(predicted)
    totals = {name: [c.count * c.peers[name] for c in timed if name in c.peers] for name in names}
    totals = {OURS: [c.count * _seconds(c) for c in timed]} | totals
    summary["total_seconds"] = {name: math.fsum(values) for name, values in totals.items() if len(values) == len(timed)}
    summary["few_samples"] = [c.problem for c in timed if c.samples < FEWEST_SAMPLES]
    return summary


def disturbed(c: Comparison) -> bool:
    """Whether a measurement says little: too many of its rounds were left out, or others took too much of its time."""
    return max(c.core.left_out if c.core else 0.0, c.taken or 0.0) > MOST_DISTURBED


def _seconds(c: Comparison) -> float:
    return c.measured_seconds or math.nan


def _against(name: str, timed: Sequence[Comparison]) -> dict[str, Any]:
    """The plans against one peer; a repeated problem counts once, with its mean log ratio."""
    logs: dict[str, list[float]] = {}
    for c in timed:
        logs.setdefault(c.problem, []).append(math.log(c.peers[name] / _seconds(c)))
    means = {problem: math.fsum(values) / len(values) for problem, values in logs.items()}
    errors = [c.errors[name] / c.errors[OURS] for c in timed if c.errors.get(OURS) and c.errors.get(name)]
    fastest = Counter(c.algorithms[name] for c in timed if name in c.algorithms)
    return {
        "layers": len(means),
        "geometric_mean": math.exp(math.fsum(means.values()) / len(means)),
        "faster_share": sum(value > 0 for value in means.values()) / len(means),
        **({"error_ratio": math.exp(math.fsum(map(math.log, errors)) / len(errors))} if errors else {}),
        "slower": [problem for problem, value in means.items() if value <= 0],
        **({"algorithms": dict(fastest.most_common())} if fastest else {}),
    }


def _prediction(timed: Sequence[Comparison]) -> dict[str, Any]:
    """Errors |log(predicted / measured)|, the layers where they are large, and the rank correlation over plans of a problem."""
    errors_summary = _errors(timed, "measured_seconds")
    taus = [tau for tau in map(_tau, _by_problem(timed)) if tau is not None]
    return errors_summary | ({"kendall_tau": float(np.mean(taus))} if taus else {})


def _static_prediction(static: Sequence[Comparison]) -> dict[str, Any]:
    """Errors |log(predicted / static)|. In-core cycles are the same in both, so these are the errors of the traffic formulas."""
    sums = {name: math.fsum(c.count * getattr(c, name) for c in static) for name in ("predicted_seconds", "static_seconds")}
    return {"kind": static[0].static_kind} | _errors(static, "static_seconds") | sums


def _errors(some: Sequence[Comparison], against: str) -> dict[str, Any]:
    """Median and 90th percentile of |log(predicted / against)|, and the layers where it is large."""
    errors = [abs(math.log((c.predicted_seconds or math.nan) / getattr(c, against))) for c in some]
    large = [
        {
            "problem": c.problem,
            "label": c.label,
            "predicted_seconds": c.predicted_seconds,
            against: getattr(c, against),
            "error": error,
            "bound_by": c.plan.get("cost", {}).get("bound_by", ""),
        }
        for c, error in zip(some, errors, strict=True)
        if error > LARGE_ERROR
    ]
    median, p90 = np.quantile(errors, [0.5, 0.9])
    return {"layers": len(some), "median_error": float(median), "p90_error": float(p90), "large_errors": large}


def _by_problem(timed: Sequence[Comparison]) -> list[list[Comparison]]:
    groups: dict[str, list[Comparison]] = {}
    for c in timed:
        groups.setdefault(c.problem, []).append(c)
    return list(groups.values())


def _tau(plans: Sequence[Comparison]) -> float | None:
    return kendall_tau([c.predicted_seconds or math.nan for c in plans], [c.measured_seconds or math.nan for c in plans])
