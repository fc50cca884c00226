# SPDX-License-Identifier: Apache-2.0
"""Statistics of samples: quartiles, and the ratio of two candidates with its interval."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pysim.errors import OperandError
from pysim.record.measurement import Ratio

Array = NDArray[Any]
CONFIDENCE, RESAMPLES = 0.95, 1000


def quartiles(samples: Array) -> tuple[float, float, float]:
    """First quartile, median, third quartile."""
    low, middle, high = np.quantile(samples, [0.25, 0.5, 0.75])
    return float(low), float(middle), float(high)


def uncertainty(samples: Array) -> float:
    """Half the width of the median's confidence interval over the median. The interval lies between the order statistics n/2 -+ 0.98
    sqrt(n), for CONFIDENCE (Conover, Practical Nonparametric Statistics, section 3.2)."""
    n, ordered = samples.size, np.sort(samples)
    reach = 0.98 * math.sqrt(n)
    low, high = max(0, math.floor(n / 2 - reach)), min(n - 1, math.ceil(n / 2 + reach))
    return float((ordered[high] - ordered[low]) / 2 / ordered[n // 2])


def ratio(numerator: Array, denominator: Array, resamples: int = RESAMPLES, seed: int = 0) -> Ratio:
    """median(numerator) / median(denominator), both from one `interleave`, and its bootstrap interval (seeded, so reproducible).

    Rounds are resampled as pairs, so a disturbance of both candidates stays paired (percentile bootstrap, Efron and Tibshirani, An
    Introduction to the Bootstrap, section 13.3). OperandError where the arrays do not pair up.
    """
    if numerator.shape != denominator.shape or numerator.ndim != 1 or numerator.size < 2:
        raise OperandError(f"samples of shapes {numerator.shape} and {denominator.shape} do not pair up by round")
    drawn = np.random.default_rng(seed).integers(0, numerator.size, (resamples, numerator.size))
    low, high = np.quantile(_of_medians(numerator[drawn], denominator[drawn]), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Ratio(float(_of_medians(numerator, denominator)), float(low), float(high))


def _of_medians(numerator: Array, denominator: Array) -> Array:
    medians: Array = np.median(numerator, axis=-1) / np.median(denominator, axis=-1)
    return medians


def kendall_tau(predicted: Sequence[float], measured: Sequence[float]) -> float | None:
    """Kendall's rank correlation of two columns; None for fewer than three rows, and where all values of a column are equal."""
    if len(predicted) < 3:
        return None
    from scipy.stats import kendalltau

    tau = float(kendalltau(predicted, measured).statistic)
    return tau if math.isfinite(tau) else None
