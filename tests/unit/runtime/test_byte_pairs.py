# SPDX-License-Identifier: Apache-2.0
"""Sums and products of quantised elements against the operators one by one: every pair of bytes, and scales that give many halves."""

import numpy as np

from pysim.runtime.integer_steps import BYTES, Quantity, byte_pair_step

HALVES = [(0.5, 0.5, 1.0), (0.25, 1.0, 2.0), (0.03, 0.01, 0.02), (1e-3, 1e-3, 2e-3), (7.0, 1e-4, 3.0)]


def test_every_pair_of_bytes_gives_what_the_operators_one_by_one_give():
    random = np.random.default_rng(8)
    every = np.arange(256, dtype=np.uint8)
    a, b = (np.ascontiguousarray(one).reshape(-1) for one in np.meshgrid(every, every))
    out = np.empty_like(a)
    for trial in range(60):
        scales = HALVES[trial] if trial < len(HALVES) else np.exp(random.uniform(-4, 4, 3) * (10 if trial % 8 == 0 else 1))
        kinds = [BYTES[i] for i in random.integers(0, 2, 3)]
        lows = [int(np.iinfo(kind).min) for kind in kinds]
        of = tuple(
            Quantity(float(np.float32(s)), low + int(random.integers(256)), kind) for s, low, kind in zip(scales, lows, kinds, strict=True)
        )
        low, high = sorted(int(end) for end in random.integers(lows[2], lows[2] + 256, 2))
        x, y = a.view(kinds[0]), b.view(kinds[1])
        multiply = trial % 5 == 4
        byte_pair_step(out.view(kinds[2]), x, y, of, multiply, low, high)()
        left, right = of[0].numbers(x), of[1].numbers(y)
        expected = of[2].quantized(left * right if multiply else left + right).clip(low, high)
        np.testing.assert_array_equal(out.view(kinds[2]), expected)


def test_a_plane_by_one_number_gives_what_the_operators_one_by_one_give():
    random = np.random.default_rng(9)
    for trial in range(24):
        kinds = [BYTES[i] for i in random.integers(0, 2, 3)]
        of = tuple(Quantity(float(np.float32(0.1 + random.random())), int(np.iinfo(kind).min) + 99, kind) for kind in kinds)
        planes, pixels, (low, high) = 5, (3, 511, 512, 1100)[trial % 4], (int(np.iinfo(kinds[2]).min) + 3, int(np.iinfo(kinds[2]).max) - 2)
        x, y = (
            random.integers(0, 256, size, np.uint8).view(kind)
            for size, kind in (((1, planes, pixels), kinds[0]), ((1, planes, 1), kinds[1]))
        )
        out = np.empty(x.shape, kinds[2])
        byte_pair_step(out, x, y, of, trial % 2 == 0, low, high)()
        left, right = of[0].numbers(x), of[1].numbers(y)
        expected = of[2].quantized(left * right if trial % 2 == 0 else left + right).clip(low, high)
        np.testing.assert_array_equal(out, expected)
