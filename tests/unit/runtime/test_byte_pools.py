# SPDX-License-Identifier: Apache-2.0
"""Pools of quantised elements against their windows one by one: any strides, dilations, paddings, and windows beyond the padding."""

import numpy as np
import pytest

from pysim.runtime.integer_steps import BYTES, Quantity, byte_pool_step
from pysim.runtime.operators import Window


def pooled(x, shape, window, largest, of, count_padding):
    """Of [planes][height][width]."""
    (kernel, strides, dilations, pads), (first, to) = window, of
    y = np.zeros((len(x), *shape), to.dtype)
    for row, column in np.ndindex(*shape):
        ends = [
            [at * stride - pad + tap * dilation for tap in range(size)]
            for at, stride, pad, size, dilation in zip((row, column), strides, pads, kernel, dilations, strict=False)
        ]
        inside = [[at for at in along if 0 <= at < size] for along, size in zip(ends, x.shape[1:], strict=True)]
        padded = [
            sum(-before <= at < size + after for at in along)
            for along, size, before, after in zip(ends, x.shape[1:], pads, pads[2:], strict=False)
        ]
        part = x[:, inside[0]][:, :, inside[1]].reshape(len(x), -1)
        if largest:
            y[:, row, column] = part.max(1, initial=first.least)
            continue
        count = max(1, padded[0] * padded[1] if count_padding else part.shape[1])
        sums = (part.astype(np.int32) - first.zero).sum(1).astype(np.float32)
        y[:, row, column] = to.quantized(sums * np.float32(first.scale) / np.float32(count))
    return y


@pytest.mark.parametrize("wide", [False, True])
def test_pools_are_the_largest_and_the_mean_of_their_windows(wide):
    random = np.random.default_rng(5)
    for trial in range(8 if wide else 80):
        size = random.integers
        shape, kernel = (
            (int(size(1, 4)) if wide else int(size(1, 20)), 4500 if wide else int(size(1, 70))),
            (int(size(1, 4)), int(size(1, 6))),
        )
        strides, dilations = ((int(size(1, 4)), 300 if wide else int(size(1, 4))), (int(size(1, 3)), int(size(1, 3))))
        pads = tuple(int(size(0, 3)) for _ in range(4))
        if trial % 5 == 4:  # the whole plane
            kernel, strides, dilations, pads = shape, (1, 1), (1, 1), (0,) * 4
        tall = [(shape[i] + pads[i] + pads[i + 2] + strides[i] - 1) // strides[i] for i in (0, 1)]
        out = [int(size(1, most + 1)) for most in tall] if kernel != shape else [1, 1]
        dtype = BYTES[trial % 2]
        x = size(*((0, 256) if dtype == np.uint8 else (-128, 128)), (3, *shape)).astype(dtype)
        of = Quantity(0.03, int(size(-3, 4)) + (dtype == np.uint8) * 120, dtype), Quantity(0.02, 7, dtype)
        window, largest, counted = Window(kernel, strides, dilations, pads), bool(trial // 2 % 2), bool(size(2))
        y = np.empty((3, *out), dtype)
        byte_pool_step(y, x, window, largest, of, counted)()
        np.testing.assert_array_equal(y, pooled(x, out, window, largest, of, counted), f"{shape} {window} {largest} {counted}")
