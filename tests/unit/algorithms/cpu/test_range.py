# SPDX-License-Identifier: Apache-2.0
"""Infinities, NaN and outliers reach the results that a direct sum lets them reach, and no others, in every row of Winograd on a CPU."""

from typing import Any, cast

import msgspec
import numpy as np
import pytest
from native_library import native
from problems import conv
from test_winograd_algorithm import SHAPES, operands, schedules

import pysim
from pysim import planner
from pysim.algorithms.accuracy import direct_sum_error, refuses, stated_error
from pysim.algorithms.cpu import winograd
from pysim.cachemodel.cpu.winograd_incore import shape_of
from pysim.check.bounds import of_rms
from pysim.check.reference import reference
from pysim.errors import PlanError
from pysim.machine.load import load
from pysim.problem.conv import Conv
from pysim.record.schedule import Schedule
from pysim.registry.cpu import kernels
from pysim.runtime import cpu as runtime
from pysim.runtime import cpu_launch

pytestmark = native

VALUES = {"infinity": np.inf, "minus infinity": -np.inf, "NaN": np.nan, "1e38": 1e38, "3e38": 3e38, "1e6": 1e6, "denormal": 1e-40}


def tall(value: float, dtype: np.dtype[Any]) -> float:
    """The value, or as large a part of the largest number of float64."""
    return value * 5e269 if dtype == np.float64 and 1e37 < abs(value) < np.inf else value


def places(w: Conv) -> list[tuple[int, int]]:
    """Pixels at corners, at edges and in the middle of tiles and of the image."""
    high, wide = w.height - 1, w.width - 1
    inside = (high // 2, wide // 2), (min(3, high), min(4, wide))
    return sorted({(0, 0), (high, wide), (0, wide // 2), (high // 2, 0), (min(5, high), wide), *inside})


def exact(w: Conv, x: Any, filters: Any, bias: Any) -> Any:
    """The direct sum in double precision, without overflow; NaN only where infinities cancel or meet zeros."""
    with np.errstate(invalid="ignore", over="ignore"):
        added = bias.astype(np.longdouble).reshape(-1, *[1] * (x.ndim - 2))
        return np.asarray(reference(w, x.astype(np.longdouble), filters.astype(np.longdouble)) + added)


def conv_of_slices(w: Conv) -> Conv:
    """The convolution of images that a volume's is for each slice."""
    return msgspec.structs.replace(w, depth=1, kernel_d=1, pad_front=0, pad_back=0)


def rounded(sums: Any, dtype: np.dtype[Any]) -> Any:
    with np.errstate(over="ignore"):
        return sums.astype(dtype)


def largest_near(w: Conv, x: Any, outputs: int) -> Any:
    """Per output pixel and group: the largest finite input of any channel of its tile."""
    if w.is_volume:
        image, padded = conv_of_slices(w), np.pad(x, ((0, 0), (0, 0), (w.pad_front, w.pad_back), (0, 0), (0, 0)))
        reach = w.dilation_d * (w.kernel_d - 1) + 1
        slices = [padded[:, :, at : at + reach : w.dilation_d] for at in range(0, w.out_d * w.stride_d, w.stride_d)]
        return np.stack(
            [largest_near(image, np.abs(one).max(axis=2, where=np.isfinite(one), initial=0), outputs) for one in slices], axis=2
        )
    n, size = x.shape[0], np.where(np.isfinite(x), np.abs(x.astype(np.longdouble)), 0.0)
    size = size.reshape(n, w.groups, -1, w.height, w.width).max(axis=2)
    of = np.zeros((n, w.groups, w.out_h, w.out_w), np.longdouble)
    high, wide = (1 if axis.kernel == 1 else outputs for axis in (w.rows, w.columns))
    down, across = ((m - 1 - (-axis.kernel // axis.stride)) * axis.stride for m, axis in ((high, w.rows), (wide, w.columns)))
    for y in range(0, w.out_h, high):
        for q in range(0, w.out_w, wide):
            y0, x0 = y * w.stride_h - w.pad_top, q * w.stride_w - w.pad_left
            tile = size[:, :, max(0, y0) : max(0, y0 + down), max(0, x0) : max(0, x0 + across)]
            of[:, :, y : y + high, q : q + wide] = tile.max(axis=(2, 3), initial=0.0)[:, :, None, None]
    return np.repeat(of, w.filters // w.groups, axis=1)


def check(w: Conv, schedule: Schedule, got: Any, want: Any, x: Any, plain_error: float) -> None:
    """Infinities and NaN where `want` has them; other results within the error of inputs of size 1 times the largest input of the tile."""
    values = rounded(want, got.dtype)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(values), err_msg=str(schedule))
    infinite = np.isinf(values)
    np.testing.assert_array_equal(got[infinite], values[infinite], err_msg=str(schedule))
    some = np.isfinite(values)
    assert np.isfinite(got[some]).all(), schedule
    assert schedule.outputs
    allowed = plain_error * np.maximum(1.0, largest_near(w, x, schedule.outputs))
    assert (np.abs(got[some].astype(np.longdouble) - want[some]) <= allowed[some]).all(), schedule


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("shape", SHAPES)
def test_one_value_reaches_the_results_that_a_direct_sum_lets_it_reach(shape: str, name: str) -> None:
    w = conv(shape)
    x, filters, bias = operands(w)
    usual = exact(w, x, filters, bias)
    for number, (y, column) in enumerate(places(w)):
        x[number % w.batch, number % w.channels, *([number % w.depth] if w.is_volume else []), y, column] = tall(VALUES[name], x.dtype)
    want = exact(w, x, filters, bias)
    for number, schedule in enumerate(schedules(w)):
        got = cpu_launch.Launch(w, schedule, threads=1 + 2 * (number % 2)).run(x, filters, None, bias)
        check(w, schedule, got, want, x, of_rms(winograd.tolerance(w, schedule), usual))


ACTIVATIONS: dict[Any, Any] = {
    "relu": lambda y: np.where(y < 0, 0, y),
    ("clamp", -1.0, 2.0): lambda y: np.where(y < -1, -1, np.where(y > 2, 2, y)),
    ("leaky_relu", 0.25, 1.0): lambda y: np.where(y < 0, y * 0.25, y),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", ["conv:mb2g2ic6ih31iw7oc10kh3ph1", "conv:ic17ih24oc33kh5", "conv:mb2ic3ih40iw61oc20kh7sh2ph3"])
def test_no_activation_hides_what_a_transform_spoiled(shape: str, activation: Any) -> None:
    """relu(NaN), clamp(infinity): the tile is known before its results are bounded. With a residual and prepared filters, too."""
    w = conv(shape)
    x, filters, bias = operands(w)
    plain = of_rms(winograd.tolerance(w, schedules(w)[0]), exact(w, x, filters, bias))
    x[0, 0, 4, 5], x[-1, -1, -1, 0], x[0, -1, 9, 2] = np.inf, np.nan, -3e38
    residual = np.random.default_rng(4).random((w.batch, w.filters, w.out_h, w.out_w)).astype(np.float32)
    for schedule in schedules(w):
        layer = cpu_launch.Prepared(w, filters, schedule, bias, activation, threads=2)
        for added in (None, residual):
            want = exact(w, x, filters, bias) + (0 if added is None else added)
            with np.errstate(invalid="ignore"):
                want = ACTIVATIONS[activation](want)
            check(w, schedule, layer(x, residual=added), want, x, plain * 8)


@pytest.mark.parametrize("shape", ["conv:mb2ic32ih9iw14oc48kh3ph1", "conv:g2ic32ih12oc64kh5ph2", "conv:ic3ih33oc32kh7sh2ph3"])
def test_blocks_of_channels_hold_what_planes_hold(shape: str) -> None:
    w, here = conv(shape), runtime.available_kernels()
    x, filters, bias = operands(w)
    usual = exact(w, x, filters, bias)
    x[0, 2, 5, 6], x[-1, -1, 0, 0], x[0, 0, 8, 3] = -np.inf, np.nan, 3e38
    want = exact(w, x, filters, bias)
    for row in (one for one in kernels() if one.form == "win" and one.lane_windows > 1 and one.dtype == w.dtype and one.name in here):
        c = row.lane_windows
        blocks = x if w.channels % c else np.ascontiguousarray(x.reshape(w.batch, -1, c, w.height, w.width).transpose(0, 1, 3, 4, 2))
        for layout, given in [(f"nchw-nchw{c}c", x)] + [(f"nchw{c}c", blocks)] * (w.stride_h == 1):
            for m in winograd.outputs_of(w):
                channels = shape_of(w, row, m).channels
                s = Schedule(row.name, "input_stationary", "tiles", row.windows, row.filters, channels, 1, 1, "winograd", m)
                launch: Any = cpu_launch.Launch(w, s, 2, layout=cast("Any", layout))
                got = launch.run(given, filters, None, bias).transpose(0, 1, 4, 2, 3).reshape(want.shape)
                check(w, s, got, want, x, of_rms(winograd.tolerance(w, s), usual))


@pytest.mark.parametrize("weight", [np.inf, np.nan])
def test_an_infinite_weight_reaches_its_filter_alone_and_no_padding(weight: float) -> None:
    w = conv("conv:mb2ic5ih13oc21kh3ph1")
    x, filters, bias = operands(w)
    usual = exact(w, x, filters, bias)
    filters[3, 1, 0, 0] = weight
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    want = usual.copy()
    inside = np.pad(np.ones((13, 13)), 1)[:13, :13] > 0
    with np.errstate(invalid="ignore"):
        want[:, 3][:, inside] = (want[:, 3] + np.float64(weight) * padded[:, 1, :13, :13])[:, inside]
    without = filters.copy()
    without[3, 1, 0, 0] = 0
    want[:, 3][:, ~inside] = exact(w, x, without, bias)[:, 3][:, ~inside]
    for schedule in schedules(w):
        check(
            w, schedule, cpu_launch.Launch(w, schedule).run(x, filters, None, bias), want, x, of_rms(winograd.tolerance(w, schedule), usual)
        )


def test_bits_beside_an_infinity_do_not_depend_on_threads_nor_on_blocks() -> None:
    w = conv("conv:mb2ic17ih14oc33kh3ph1")
    x, filters, bias = operands(w)
    x[1, 3, 6, 6] = np.inf
    for schedule in schedules(w):
        first = cpu_launch.Launch(w, schedule).run(x, filters, None, bias).tobytes()
        other = msgspec.structs.replace(schedule, k2=1, k3=100)
        assert cpu_launch.Launch(w, other, 5).run(x, filters, None, bias).tobytes() == first, schedule


def test_strict_refuses_phases_that_lack_taps() -> None:
    """Their random error is a direct sum's, but one outlier changes results whose windows do not contain it."""
    problem = "conv:ic512ih29oc512kh5sh2ph2"
    assert planner.plan(problem, "zen4", accuracy="strict").error_scale == "products"
    with pytest.raises(PlanError, match="outside a result's window"):
        planner.plan(problem, "zen4", accuracy="strict", algorithm="winograd")


@pytest.mark.parametrize(("problem", "m"), [("conv:mb32ic2048ih56oc512kh3ph1", 4), ("conv:mb4ic512ih14oc512kh4ph1", 3)])
def test_strict_refuses_forms_of_a_direct_sums_error_that_leave_a_window(problem: str, m: int) -> None:
    w = conv(problem)
    bound = winograd.tolerance(w, Schedule("f32_win_32x14__avx512", "input_stationary", "tiles", 32, 14, 8, 1, 1, "winograd", m))
    assert stated_error(bound, w, load("zen4")) <= direct_sum_error(w, load("zen4"))
    assert "outside a result's window" in str(refuses(bound, w, load("zen4"), "strict", None))
    assert refuses(bound, w, load("zen4"), "standard", None) is None


@pytest.mark.parametrize("outlier", [1e6, 1e38])
def test_an_outlier_under_strict_changes_no_result_outside_its_windows(outlier: float) -> None:
    random = np.random.default_rng(8)
    x, filters = (random.standard_normal(shape, dtype=np.float32) / 2 for shape in ((1, 64, 27, 27), (64, 64, 3, 3)))
    y, other = x.copy(), x
    y[0, 5, 12, 13] = outlier
    for accuracy in ("strict", "ieee"):
        before, after = (pysim.conv2d(one, filters, padding=1, accuracy=cast("Any", accuracy)) for one in (other, y))
        assert np.isfinite(after).all()
        after[:, :, 11:14, 12:15] = before[:, :, 11:14, 12:15]
        assert np.abs(after - before).max() <= 1e-4  # a tile that overflowed is summed again, in another order


def test_a_plan_says_what_its_error_is_relative_to() -> None:
    text = "conv:ic64ih56oc64kh3ph1"
    standard, strict, plain = (
        pysim.plan(text, "zen4", **cast("Any", options)) for options in ({}, {"accuracy": "strict"}, {"algorithm": "sconv"})
    )
    assert [one.to_dict()["error_scale"] for one in (standard, strict, plain)] == ["tile", "window", "products"]
    assert "relative to the largest input of its tile" in standard.explain()
    assert "relative to the largest input of its window" in strict.explain()
    assert standard.needs_finite == strict.needs_finite == "nothing"
    assert planner.plan("conv:mb8ic256ih14oc256kh3ph1", "h200", algorithm="winograd").to_dict()["needs_finite"] == "nothing"
