# SPDX-License-Identifier: Apache-2.0
"""Bytes with channels last: convolutions against sums in 64-bit integers on every s8 row of this CPU; pools and conversions against
planes."""

from typing import Any

import numpy as np
import pytest
from integer_layers import convolved, elements, finished, with_result_scales

import pysim
from pysim.errors import NativeError, OperandError
from pysim.problem.text import parse
from pysim.record.integers import LIMITS, Integers, Result
from pysim.record.schedule import STATIONARY, Schedule
from pysim.registry.cpu import Kernel, direct_kernels, kernels
from pysim.runtime.cpu import aligned, available_kernels
from pysim.runtime.cpu_launch import Launch
from pysim.runtime.integer_steps import Quantity, byte_pool_step, byte_sum_of
from pysim.runtime.operators import Window, reorder_step

RESULTS: tuple[Result, ...] = ("s32", "u8", "s8", "f32")

with pytest.MonkeyPatch.context() as patch:
    patch.setenv("PYSIM_EMULATED", "1")  # builds for tests have AMX's rows on CPUs without it
    DEPTHWISE = [row for row in direct_kernels() if row.form == "last" and row.name in available_kernels()]
    ROWS = [row for row in kernels() if row.dtype == "s8" and (row.in_rows or not row.lists) and row.name in available_kernels()]


@pytest.fixture(autouse=True)
def rows_of_amx_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSIM_EMULATED", "1")


def last(x: Any) -> Any:
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1))


def random_layer(random: Any) -> Any:
    size, kernel = random.integers, (1, 1, 3, 7)[random.integers(4)]
    shape = f"mb{size(1, 3)}ic{(3, 16, 64, 128, size(1, 150))[size(5)]}ih{size(8, 17)}iw{size(8, 40)}oc{size(1, 100)}"
    if kernel == 1 and size(2):
        return parse(f"conv:{shape}kh1:s8")
    more = f"dh{size(0, 2)}dw{size(0, 2)}" if kernel == 3 else ""
    return parse(f"conv:{shape}kh{kernel}kw{(kernel, 3)[size(2)]}{more}sh{size(1, 4)}sw{size(1, 4)}ph{size(0, 3)}pw{size(0, 3)}:s8")


def random_schedule(random: Any, row: Kernel, problem: Any) -> Schedule:
    if row.form == "last":
        return Schedule(row.name, "input_stationary", "none", row.windows, row.filters, 1, 1, 1, "depthwise")
    (k2, k3), k = random.integers(1, 5, 2).tolist(), problem.channels * problem.taps
    return Schedule(row.name, STATIONARY[random.integers(2)], "tiles", row.windows, row.filters, k, k2, k3, "channels_last")


def random_depthwise(random: Any) -> Any:
    size, groups = random.integers, (16, 32, 64, 96, random.integers(2, 150))[random.integers(5)]
    shape = f"mb{size(1, 3)}g{groups}ic{groups}ih{size(13, 20)}iw{size(13, 30)}oc{groups}kh{size(1, 6)}kw{size(1, 6)}"
    return parse(f"conv:{shape}dh{size(0, 3)}dw{size(0, 3)}sh{size(1, 4)}sw{size(1, 4)}ph{size(0, 4)}pw{size(0, 4)}:s8")


@pytest.mark.parametrize("row", [*ROWS, *DEPTHWISE], ids=lambda row: row.name)
def test_layers_with_channels_last_are_exact(row: Kernel) -> None:
    random, added = np.random.default_rng(200 + row.index), 0
    depthwise = row in DEPTHWISE
    for trial in range(32):
        problem = random_depthwise(random) if depthwise else random_layer(random)
        kind, result = ("s8", "u8")[trial // 4 % 2], RESULTS[trial % 4]
        scales = None if result == "s32" else (random.random(problem.filters if trial % 3 else 1) * 2e-3 + 1e-4).astype(np.float32)
        into, zero = LIMITS.get(result, (0, 0)), int(random.integers(LIMITS[kind][0], LIMITS[kind][1] + 1)) if trial % 5 else 0
        of = [Quantity(float(np.float32(0.1 + random.random())), int(random.integers(100)), np.dtype(np.uint8)) for _ in range(3)]
        own = of[0].zero if result == "u8" else int(random.integers(into[0], into[1] + 1))
        how = byte_sum_of((of[0], of[1], of[2]), 3, 250) if result == "u8" and trial % 8 < 6 and not depthwise else None
        integers = Integers(kind == "u8", zero, scales, result, own, how)
        activation: Any = (None, "relu", ("clamp", -20, 90))[trial % (2 if scales is None else 3)]
        if result in LIMITS and how is None and trial % 8 > 4:
            integers, activation = with_result_scales(random, integers, problem.filters, trial)
            integers = integers.checked(problem.filters)
        bias = random.integers(-(10**6), 10**6, problem.filters).astype(np.int32) if random.integers(2) else None
        launch = Launch(problem, random_schedule(random, row, problem), 1 + trial % 2, layout="nhwc", integers=integers)
        x, w = elements(random, problem.input_shape, kind), elements(random, problem.filter_shape, "s8")
        expected = finished(
            convolved(x.astype(np.int64) - zero, w.astype(np.int64), problem), bias, integers._replace(sum=None), activation
        )
        residual = elements(random, launch.shapes[1], "u8") if how else None
        y = launch.run(last(x), w, bias=bias, activation=activation, added=residual)
        expected = last(expected)
        if residual is not None:
            numbers = of[0].numbers(expected) + of[1].numbers(residual)
            expected, added = np.clip(of[2].quantized(numbers), 3, 250).astype(np.uint8), added + 1
        np.testing.assert_array_equal(y, expected, f"{problem.text} {launch.schedule} {integers} {activation}")
    assert added or depthwise


def test_what_channels_last_does_not_compute_is_refused() -> None:
    row = ROWS[0]
    grouped, plain = parse("conv:g2ic4ih8oc4kh1:s8"), parse("conv:ic4ih8oc4kh3:s8")
    with pytest.raises(NativeError, match="one group"):
        Launch(grouped, random_schedule(np.random.default_rng(0), row, grouped))
    with pytest.raises(NativeError, match="one set"):
        Launch(plain, Schedule(row.name, "input_stationary", "tiles", row.windows, row.filters, 4, 1, 1, "channels_last"), layout="nhwc")


@pytest.mark.parametrize("kind", ["u8", "s8"])
def test_pools_of_channels_last_are_those_of_planes(kind: str) -> None:
    random = np.random.default_rng(3)
    for channels in (2, 3, 31, 64, 130):
        for largest, counted in ((True, False), (False, False), (False, True)):
            x = elements(random, (2, channels, 9, 11), kind)
            window = Window((3, 2), (2, 1), (1, 2), (1, 1, 2, 0))
            of = Quantity(0.5, 3, x.dtype), Quantity(1.5, 4, x.dtype)
            planes, y = (np.zeros((2, channels, 5, 10), x.dtype) for _ in range(2))
            byte_pool_step(planes, x, window, largest, of, counted)()
            byte_pool_step(y, last(x).reshape(x.shape), window, largest, of, counted, channels)()
            np.testing.assert_array_equal(y.reshape(2, 5, 10, channels), last(planes))


@pytest.mark.parametrize("channels", [2, 3, 4, 5, 64, 129])
def test_bytes_are_converted_to_channels_last_and_back(channels: int) -> None:
    x = np.random.default_rng(channels).integers(0, 256, (2, channels, 7, 13)).astype(np.uint8)
    y, back = aligned(x.shape, np.uint8), aligned(x.shape, np.uint8)
    reorder_step(y, x, channels, False)()
    np.testing.assert_array_equal(y.reshape(2, 7, 13, channels), last(x))
    reorder_step(back, y, channels, True)()
    np.testing.assert_array_equal(back, x)


@pytest.mark.parametrize(("channels", "filters", "groups"), [(14, 20, 1), (14, 14, 14), (70, 3, 1)])
def test_conv2d_of_bytes_with_channels_last(channels: int, filters: int, groups: int) -> None:
    random = np.random.default_rng(0)
    x = random.integers(-128, 128, (2, channels, 14, 14)).astype(np.int8)
    w = random.integers(-128, 128, (filters, channels // groups, 3, 3)).astype(np.int8)
    right = pysim.conv2d(x, w, padding=1, groups=groups)
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    problem = f"conv:{f'g{groups}' if groups > 1 else ''}mb2ic{channels}ih14oc{filters}kh3ph1:s8"
    ways: tuple[dict[str, Any], ...] = ({"layout": "nhwc"}, {"plan": pysim.plan(problem, "host", layout="nhwc")})
    for how in ways:
        found = pysim.conv2d(last, w, padding=1, groups=groups, **how)
        np.testing.assert_array_equal(found.transpose(0, 3, 1, 2), right, strict=True)
    with pytest.raises(OperandError, match="in layout nhwc it is"):
        pysim.conv2d(x[0], w, padding=1, layout="nhwc")
