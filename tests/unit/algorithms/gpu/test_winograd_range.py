# SPDX-License-Identifier: Apache-2.0
"""Infinities, NaN and numbers whose transforms overflow reach the results that a direct sum lets them reach, and no others, in every row of
Winograd on a GPU."""

import numpy as np
import pytest

from pysim.check.reference import shapes
from pysim.problem.conv import Conv
from pysim.problem.text import parse
from pysim.record.schedule import GpuSchedule
from pysim.registry.cuda import CONV_LAYOUTS, ConvKernel, conv_kernels
from pysim.runtime import cuda

ROWS = [row for row in conv_kernels() if row.algorithm == "winograd"]
VALUES = (np.inf, -np.inf, np.nan, 3e38, -3e38)
ROOM = 2e-6  # of the sum of the magnitudes of a result's products, at most 9 each


def outcome(row: ConvKernel, w: Conv, layout: str, parts: int, x: np.ndarray, filters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the row computes, and the definition."""
    got, want = (np.full(np.prod(shapes(w).out), np.inf, np.float32) for _ in range(2))
    schedule = GpuSchedule(row.name, "split_k" if parts > 1 else "data_parallel", parts, False, 1)
    launch = cuda.Launch(w, schedule, layout=layout)
    launch.on((x.ctypes.data, filters.ctypes.data, got.ctypes.data)).run()
    launch.on((x.ctypes.data, filters.ctypes.data, want.ctypes.data)).reference()
    return got, want


@pytest.mark.parametrize("layout", CONV_LAYOUTS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_one_value_reaches_the_results_that_a_direct_sum_lets_it_reach(emulated, row, layout):
    w, draw = parse("conv:g2mb2ic36ih11iw13oc10kh3ph1"), np.random.default_rng(5)
    assert isinstance(w, Conv)
    x, filters = (draw.integers(-3, 4, np.prod(size)).astype(np.float32) for size in shapes(w)[:2])
    for parts in (1,) if row.staged else (1, 2):
        for value in VALUES:
            spoiled = x.copy()
            spoiled[[7, 2 * 36 * 11 * 13 - 1]] = value
            got, want = outcome(row, w, layout, parts, spoiled, filters)
            np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
            np.testing.assert_array_equal(got[np.isinf(want)], want[np.isinf(want)])
            usual = np.abs(want) < 1e4  # the others are of the value's size
            assert usual.any() and not usual.all() and np.abs(got[usual] - want[usual]).max() <= ROOM * 18 * 9 * 9, (value, parts)
        broken = filters.copy()
        broken[[0, 170]] = np.inf, np.nan  # of two filters
        got, want = outcome(row, w, layout, parts, x, broken)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
        assert row.needs_finite == "nothing" and np.isnan(want).any() and np.isinf(want).any() and np.isfinite(want).any()
