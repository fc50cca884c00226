# SPDX-License-Identifier: Apache-2.0
"""Results that fill a good part of the last cache are stored past the caches: whole vectors of them, ragged tiles, biases and bounds, other
alignments, and by several threads. The reference is the same layer image by image, whose results are small."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_library import native

import pysim
from pysim.runtime.cpu import aligned

pytestmark = native

PART = 4  # STREAMED_PART of native/algorithms/nest/results.h
MOST = 64 << 20  # bytes of results; larger caches are not tested
SIZE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
LAST = int(SIZE.read_text().strip().rstrip("K")) << 10 if SIZE.exists() else 0
SIDES = 64, 60  # planes of whole tiles, planes of whole lines that end in a part of a tile


def operands(side: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    draw, channels, filters = np.random.default_rng(side), 8, 33
    each = filters * side * side * np.dtype(dtype).itemsize
    images = LAST // PART // each + 1
    if not LAST or images * each > MOST:
        pytest.skip(f"the last cache has {LAST} bytes")
    x = draw.integers(-4, 5, (images, channels, side, side)).astype(dtype)
    return x, draw.integers(-4, 5, (filters, channels, 1, 1)).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("side", SIDES)
def test_large_results_are_those_of_small_ones(side: int, dtype: str) -> None:
    x, weights = operands(side, dtype)
    bias = np.arange(len(weights)).astype(dtype)
    extras: tuple[dict[str, Any], ...] = ({}, {"bias": bias, "activation": "relu"})
    for more in extras:
        whole = pysim.conv2d(x, weights, **more)
        for image, one in zip(x, whole, strict=True):
            assert np.array_equal(one, pysim.conv2d(image[None], weights, **more)[0])


@pytest.mark.parametrize("offset", [0, 4, 32])
def test_large_results_may_lie_anywhere_and_come_of_threads(offset: int) -> None:
    x, weights = operands(SIDES[0], "float32")
    want = pysim.conv2d(x, weights)
    room = aligned(want.nbytes + 64, np.uint8)
    out = room[offset : offset + want.nbytes].view(np.float32).reshape(want.shape)
    room[:] = 255
    pysim.conv2d(x, weights, out=out, threads=2)
    assert np.array_equal(out, want)
    assert (room[:offset] == 255).all() and (room[offset + want.nbytes :] == 255).all()
