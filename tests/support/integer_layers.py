# SPDX-License-Identifier: Apache-2.0
"""Quantised convolutions by their definition, in 64-bit integers."""

from typing import Any

import numpy as np

from pysim.record.integers import LIMITS, Integers


def convolved(x: Any, w: Any, of: Any) -> Any:
    """Sums of a convolution whose padding is zero, as int64."""
    x = np.pad(x, ((0, 0), (0, 0), (of.pad_top, of.pad_bottom), (of.pad_left, of.pad_right)))
    reach = of.dilation_h * (of.kernel_h - 1) + 1, of.dilation_w * (of.kernel_w - 1) + 1
    windows = np.lib.stride_tricks.sliding_window_view(x, reach, (2, 3))[
        :, :, :: of.stride_h, :: of.stride_w, :: of.dilation_h, :: of.dilation_w
    ]
    per = of.channels // of.groups, of.filters // of.groups
    parts = [
        np.einsum("nchwrs,fcrs->nfhw", windows[:, g * per[0] : (g + 1) * per[0]], w[g * per[1] : (g + 1) * per[1]])
        for g in range(of.groups)
    ]
    return np.concatenate(parts, 1)


def finished(sums: Any, bias: Any, integers: Integers, activation: Any) -> Any:
    """The definition in `pysim.record.integers`, of sums whose axis 1 is filters or columns."""
    along = (1, -1) + (1,) * (sums.ndim - 2)
    sums = (sums + (0 if bias is None else bias.reshape(along))).astype(np.int32)
    if integers.result_scales is not None:
        return rounded(sums, integers, activation, along)
    sums = np.maximum(sums, 0) if activation == "relu" else sums
    if integers.scales is None:
        return sums
    y = sums.astype(np.float32) * (integers.scales.reshape(along) if integers.scales.size > 1 else integers.scales)
    low, high = activation[1:] if isinstance(activation, tuple) else (-np.inf, np.inf)
    if integers.result == "f32" and integers.shifts is not None:
        return y + integers.shifts.reshape(along)
    if integers.result == "f32":
        return np.clip(y, np.float32(low), np.float32(high))
    least, most = LIMITS[integers.result]
    whole = np.clip(np.rint(y).astype(np.float64) + integers.result_zero, max(low, least), min(high, most))
    return whole.astype(np.uint8 if integers.result == "u8" else np.int8)


def rounded(sums: Any, integers: Integers, activation: Any, along: Any) -> Any:
    """Numbers with their shifts, activated, multiplied and rounded one by one in float32."""
    numbers = sums.astype(np.float32) * np.asarray(integers.scales).reshape(along if integers.scales.size > 1 else 1)
    if integers.shifts is not None:
        numbers = numbers + integers.shifts.reshape(along)
    steps = activated(numbers, activation) * integers.result_scales.reshape(along if integers.result_scales.size > 1 else 1)
    least, most = LIMITS[integers.result]
    whole = np.clip(np.rint(steps).astype(np.float64) + integers.result_zero, least, most)
    return whole.astype(np.uint8 if integers.result == "u8" else np.int8)


def activated(numbers: Any, activation: Any) -> Any:
    """Activations that round at most once."""
    if activation == "relu":
        return np.maximum(numbers, 0)
    if activation and activation[0] == "clamp":
        return np.clip(numbers, np.float32(activation[1]), np.float32(activation[2]))
    return numbers * np.where(np.signbit(numbers), *np.float32(activation[1:])) if activation else numbers


def with_result_scales(random: Any, integers: Integers, count: int, trial: int) -> tuple[Integers, Any]:
    """Results of bytes by an activation of numbers, and that activation."""
    factors = (random.random(count if trial % 2 else 1) * 9 + 1).astype(np.float32)
    shifts = random.normal(0, 20, count).astype(np.float32) if trial % 3 else None
    activation = (None, "relu", ("clamp", -2.5, 3.25), ("leaky_relu", 0.125, 1.5))[trial // 2 % 4]
    return integers._replace(result_scales=factors, shifts=shifts), activation


def elements(random: Any, shape: tuple[int, ...], kind: str) -> Any:
    """Any bytes, or the extremes alone."""
    low, high = LIMITS[kind]
    x = random.choice([low, high], shape) if random.integers(3) == 0 else random.integers(low, high + 1, shape)
    return x.astype(np.uint8 if kind == "u8" else np.int8)
