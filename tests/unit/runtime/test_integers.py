# SPDX-License-Identifier: Apache-2.0
"""Quantised convolutions and products against sums in 64-bit integers: every s8 row of this CPU, any zero points, scales and results."""

from typing import Any

import numpy as np
import pytest
from integer_layers import convolved, elements, finished, with_result_scales

from pysim.errors import NativeError, OperandError
from pysim.problem.text import Workload, parse
from pysim.record.integers import LIMITS, Integers
from pysim.record.schedule import Schedule
from pysim.registry.cpu import Kernel, direct_kernels, kernels
from pysim.runtime.cpu import aligned, available_kernels
from pysim.runtime.cpu_launch import Launch, Prepared
from pysim.runtime.integer_steps import Quantity, byte_means_step, byte_sum_of, table_step

with pytest.MonkeyPatch.context() as patch:
    patch.setenv("PYSIM_EMULATED", "1")  # builds for tests have AMX's rows on CPUs without it
    PLANES = [row for row in (*kernels(), *direct_kernels()) if row.dtype == "s8" and row.form not in ("last", "pixels", "unpacked")]
    ROWS = [row for row in PLANES if row.name in available_kernels()]
RESULTS = ("s32", "u8", "s8", "f32")
NAMES = {"s8": np.int8, "u8": np.uint8}


@pytest.fixture(autouse=True)
def rows_of_amx_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSIM_EMULATED", "1")


def random_problem(random: Any, row: Kernel) -> Workload:
    size = random.integers
    if row.form == "taps":
        groups, kernel, dilations = int(size(2, 9)), (size(1, 6), size(1, 12)), (size(1, 3), size(1, 4 if size(3) else 40))
        sides = [int(size(1, 40)) + dilation * (taps - 1) for taps, dilation in zip(kernel, dilations, strict=True)]
        shape = f"g{groups}mb{size(1, 3)}ic{groups}ih{sides[0]}iw{sides[1]}oc{groups}kh{kernel[0]}kw{kernel[1]}"
        shape += f"dh{dilations[0] - 1}dw{dilations[1] - 1}"
        return parse(f"conv:{shape}sh{size(1, 4)}sw{size(1, 5)}ph{size(0, 4)}pw{size(0, 4)}:s8")
    if size(2) and not row.lists:
        return parse(f"gemm:{size(1, 70)}x{size(1, 150)}x{size(1, 80)}:s8:{'nt'[size(2)]}{'nt'[size(2)]}")
    groups = size(1, 4)
    channels, filters = groups * size(1, 20), groups * size(1, 40)
    shape = f"mb{size(1, 3)}g{groups}ic{channels}ih{size(5, 17)}iw{size(5, 40)}oc{filters}kh{size(1, 5)}kw{size(1, 5)}"
    return parse(f"conv:{shape}sh{size(1, 4)}sw{size(1, 4)}ph{size(0, 3)}pw{size(0, 3)}:s8")


def random_schedule(random: Any, row: Kernel, product: bool, channels: int) -> Schedule:
    if row.form == "taps":
        return Schedule(row.name, "input_stationary", "none", row.windows, row.filters, 1, 1, 1, "depthwise")
    prepared = product and bool(random.integers(2)) and row.form in ("win", "groups")
    stationary = ("input_stationary", "weight_stationary")[random.integers(2)]
    sizes = (int(random.integers(1, most)) for most in (channels + 1, 5, 5))
    return Schedule(row.name, stationary, "tiles", row.windows, row.filters, *sizes, "panels" if prepared else None)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_quantised_results_are_those_of_exact_sums(row: Kernel) -> None:
    random = np.random.default_rng(row.index)
    for trial in range(60 if row.form == "taps" else 24):
        problem: Any = random_problem(random, row)
        product = not hasattr(problem, "filters")
        count, channels = (problem.n, problem.k) if product else (problem.filters, problem.channels // problem.groups)
        result: Any = RESULTS[trial % 4]
        scales = None if result == "s32" else (random.random(count if trial % 3 else 1) * 2e-3 + 1e-4).astype(np.float32)
        kind, into = ("s8", "u8")[trial % 2], LIMITS.get(result, (0, 0))
        zero = int(random.integers(LIMITS[kind][0], LIMITS[kind][1] + 1)) if trial % 5 else 0
        integers = Integers(kind == "u8", zero, scales, result, int(random.integers(into[0], into[1] + 1)))
        activation: Any = (None, "relu", ("clamp", -20, 90))[trial % (2 if scales is None else 3)]
        if result == "f32" and activation is None and row.form != "taps":
            integers = integers._replace(shifts=random.normal(0, 9, count).astype(np.float32))
        bias = random.integers(-(10**6), 10**6, count).astype(np.int32) if random.integers(2) else None
        launch = Launch(problem, random_schedule(random, row, product, channels), 1 + trial % 2, integers=integers)
        x = elements(random, launch.shapes[0], kind)
        w = elements(random, launch._second_shape, "s8")
        y = launch.run(x, w, bias=bias, activation=activation)
        wide, weights = x.astype(np.int64) - zero, w.astype(np.int64)
        if product:
            sums = (wide.T if problem.trans_a else wide) @ (weights.T if problem.trans_b else weights)
        else:
            sums = convolved(wide, weights, problem)
        expected = finished(sums, bias, integers, activation)
        assert y.dtype == expected.dtype
        np.testing.assert_array_equal(y, expected, f"{problem.text} {launch.schedule} {integers} {activation}")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_activated_numbers_become_the_bytes_of_one_operator_after_another(row: Kernel) -> None:
    random = np.random.default_rng(200 + row.index)
    for trial in range(24):
        problem: Any = random_problem(random, row)
        product = not hasattr(problem, "filters")
        count, channels = (problem.n, problem.k) if product else (problem.filters, problem.channels // problem.groups)
        kind, result = ("s8", "u8")[trial % 2], ("u8", "s8")[trial // 2 % 2]
        zeros = [int(random.integers(LIMITS[one][0], LIMITS[one][1] + 1)) for one in (kind, result)]
        scales = (random.random(count if trial % 3 else 1) * 2e-3 + 1e-4).astype(np.float32)
        plain = Integers(kind == "u8", zeros[0], scales, result, zeros[1])  # type: ignore[arg-type]  # one of two words
        integers, activation = with_result_scales(random, plain, count, trial)
        launch = Launch(problem, random_schedule(random, row, product, channels), 1 + trial % 2, integers=integers)
        x, w = elements(random, launch.shapes[0], kind), elements(random, launch._second_shape, "s8")
        wide, weights = x.astype(np.int64) - zeros[0], w.astype(np.int64)
        if product:
            sums = (wide.T if problem.trans_a else wide) @ (weights.T if problem.trans_b else weights)
        else:
            sums = convolved(wide, weights, problem)
        bias = random.integers(-(10**5), 10**5, count).astype(np.int32) if trial % 5 else None
        y = launch.run(x, w, bias=bias, activation=activation)
        np.testing.assert_array_equal(y, finished(sums, bias, integers, activation), f"{problem.text} {launch.schedule} {integers}")


def test_result_scales_and_shifts_of_other_results_are_refused() -> None:
    scale = np.ones(1, np.float32)
    for integers, why in (
        (Integers(scales=scale, result="f32", result_scales=scale), "results s8 or u8"),
        (Integers(scales=scale, result="u8", shifts=scale), "are f32 or have result_scales"),
        (Integers(scales=scale, result="u8", result_scales=0 * scale), "not positive"),
        (Integers(scales=scale, result="u8", result_scales=np.ones(3, np.float32)), "3 result_scales"),
        (Integers(scales=scale, result="u8", result_scales=scale, shifts=np.ones(3, np.float32)), "3 shifts"),
        (Integers(result_scales=scale), "without scales"),
    ):
        with pytest.raises(OperandError, match=why):
            integers.checked(8)


def quantity(random: Any, kind: str) -> Quantity:
    low, high = LIMITS[kind]
    return Quantity(float(np.float32(2.0 ** random.uniform(-7, 1))), int(random.integers(low, high + 1)), np.dtype(NAMES[kind]))


def added(first: Any, second: Any, of: tuple[Quantity, Quantity, Quantity], low: int, high: int) -> Any:
    """The sum of two values by one operator after another."""
    numbers = of[0].numbers(first) + of[1].numbers(second)
    return np.clip(of[2].quantized(numbers), low, high).astype(of[2].dtype)


@pytest.mark.parametrize("row", [row for row in ROWS if row.form != "taps"], ids=lambda row: row.name)
def test_stores_add_residuals_of_bytes_as_operators_one_by_one_do(row: Kernel) -> None:
    random, done = np.random.default_rng(100 + row.index), 0
    for trial in range(24):
        problem: Any = random_problem(random, row)
        if not hasattr(problem, "filters"):
            continue
        kinds: list[Any] = [("s8", "u8")[random.integers(2)] for _ in range(3)]
        of = quantity(random, kinds[0]), quantity(random, kinds[1]), quantity(random, kinds[2])
        low, high = np.sort(random.integers(LIMITS[kinds[2]][0], LIMITS[kinds[2]][1] + 1, 2)) if trial % 2 else LIMITS[kinds[2]]
        if (how := byte_sum_of(of, int(low), int(high))) is None:
            continue
        scales = (random.random(problem.filters if trial % 3 else 1) * 2e-3 + 1e-4).astype(np.float32)
        integers = Integers(bool(trial % 2), trial % 5, scales, kinds[0], of[0].zero, how)
        activation: Any = (None, "relu", ("clamp", -20, 90))[trial % 3]
        schedule = random_schedule(random, row, False, problem.channels // problem.groups)
        launch = Launch(problem, schedule, 1 + trial % 2, integers=integers)
        x, w = elements(random, launch.shapes[0], integers.first), elements(random, launch._second_shape, "s8")
        residual = elements(random, launch.shapes[1], kinds[1])
        bias = random.integers(-(10**5), 10**5, problem.filters).astype(np.int32)
        sums = convolved(x.astype(np.int64) - integers.first_zero, w.astype(np.int64), problem)
        own = finished(sums, bias, integers._replace(sum=None), activation)
        y = launch.run(x, w, bias=bias, activation=activation, added=residual)
        expected = added(own, residual, of, int(low), int(high))
        assert y.dtype == expected.dtype
        np.testing.assert_array_equal(y, expected, f"{problem.text} {launch.schedule} {integers} {activation}")
        if residual.dtype == y.dtype:
            place, room = residual.copy(), aligned(launch.workspace_bytes, np.uint8)
            step = launch.step(x, launch.prepare(w), place, room, launch.epilogue(bias, activation, place))
            if row.adds:
                step()
                np.testing.assert_array_equal(place, expected)
            else:
                with pytest.raises(NativeError, match="overwrites first"):
                    step()
        done += 1
    assert done > 5


@pytest.mark.parametrize("kind", ["u8", "s8"])
def test_means_of_channels(kind: str) -> None:
    random = np.random.default_rng(5)
    for trial in range(30):
        batch, channels, size = random.integers(1, 4), random.integers(2, 200) if trial else 2100, random.integers(1, 700)
        x, of, last = elements(random, (batch, channels, 1, size), kind), quantity(random, kind), bool(random.integers(2))
        held, means = np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if last else x, np.zeros((batch, channels, 1, 1), np.float32)
        byte_means_step(means, held, of, channels if last else 1)()
        sums = (x.astype(np.int64) - of.zero).sum((2, 3), keepdims=True)
        np.testing.assert_array_equal(means, sums.astype(np.float32) * np.float32(of.scale) / np.float32(size))


def test_tables_of_any_length() -> None:
    random = np.random.default_rng(1)
    for count in (*range(1, 140, 3), 1000, 4097):
        x, table = elements(random, (count,), "u8"), elements(random, (256,), "u8")
        y = np.zeros(count + 1, np.uint8)
        table_step(y[:count], x, table)()
        np.testing.assert_array_equal(y, [*table[x], 0])


def test_factors_of_a_sum_are_those_of_all_bytes_or_none() -> None:
    random, found, every = np.random.default_rng(0), 0, np.arange(256, dtype=np.uint8)
    problem = parse("conv:ic2ih256iw256oc1kh1:s8")
    row = next(row for row in ROWS if row.target == "portable" and row.form == "win")
    schedule = Schedule(row.name, "input_stationary", "tiles", row.windows, row.filters, 2, 1, 1)
    for trial in range(20):
        of = (quantity(random, "u8"), quantity(random, "u8"), quantity(random, "u8"))
        if trial % 4 == 0:
            of = (of[0], of[0]._replace(zero=of[1].zero), of[0]._replace(scale=2 * of[0].scale))  # halves are many
        if (how := byte_sum_of(of, 0, 255)) is None:
            continue
        found += 1
        integers = Integers(True, 0, np.ones(1, np.float32), "u8", of[0].zero, how)
        x = np.broadcast_to(every[:, None].astype(np.int16) - of[0].zero, (256, 256))
        halves = (x // 2).astype(np.int8), (x - x // 2).astype(np.int8)  # x is a sum of two signed bytes
        launch = Launch(problem, schedule, integers=integers._replace(unsigned=False))
        residual = np.ascontiguousarray(np.broadcast_to(every, (1, 1, 256, 256)))
        y = launch.run(np.stack(halves)[None], np.ones((1, 2, 1, 1), np.int8), added=residual)
        expected = added(np.broadcast_to(every[:, None], (256, 256)), residual[0, 0], of, 0, 255)
        np.testing.assert_array_equal(y[0, 0], expected)
    assert found > 10


@pytest.mark.parametrize("row", [row for row in ROWS if row.lists], ids=lambda row: row.name)
@pytest.mark.parametrize(
    "weights", [(127, 127, 127), (-128, -128, -128), (64, 64, 65), (-64, -64, -65), (127, -128, 1), (43, 0, 42), (-43, 1, -43)]
)
def test_weights_beyond_what_16_bits_hold_are_listed_or_split(row: Kernel, weights: tuple[int, int, int]) -> None:
    """Bytes of 255, any number of channels, weights whose sums over four leave 128 always, just, or hardly."""
    random = np.random.default_rng(0)
    for channels in (1, 3, 4, 5, 8, 9, 31, 64):
        problem = parse(f"conv:ic{channels}ih6oc29kh{1 + channels % 2}:s8")
        schedule = Schedule(row.name, "input_stationary", "tiles", row.windows, row.filters, channels, 2, 2)
        launch = Launch(problem, schedule, integers=Integers(True, 7))
        x = np.full(launch.shapes[0], 255, np.uint8)
        w = random.choice(np.array(weights, np.int8), launch._second_shape)
        np.testing.assert_array_equal(launch.run(x, w), convolved(x.astype(np.int64) - 7, w.astype(np.int64), problem))


@pytest.mark.parametrize("row", [row for row in ROWS if row.form == "taps"], ids=lambda row: row.name)
@pytest.mark.parametrize(("first", "last"), [(127, 1), (127, 2), (127, 3), (-128, 1), (-128, 0), (-128, -1)])
def test_weights_around_what_pairs_of_bytes_can_hold_are_exact(row: Kernel, first: int, last: int) -> None:
    """Bytes of 255, and rows of 3 taps whose weights sum to 255, 256, 257, -255, -256 and -257, in any order."""
    problem = parse("conv:g6mb1ic6ih5iw43oc6kh3kw3pw1:s8")
    integers = Integers(True, 7, np.full(1, 1e-4, np.float32), "u8", 128)
    schedule = Schedule(row.name, "input_stationary", "none", row.windows, row.filters, 1, 1, 1, "depthwise")
    launch = Launch(problem, schedule, integers=integers)
    x = np.full(launch.shapes[0], 255, np.uint8)
    orders = [np.roll([first, first, last], by)[::step] for by in range(3) for step in (1, -1)]
    w = np.array(orders, np.int8).reshape(6, 1, 1, 3).repeat(3, 2)
    expected = finished(convolved(x.astype(np.int64) - 7, w.astype(np.int64), problem), None, integers, None)
    np.testing.assert_array_equal(launch.run(x, w), expected)


def test_what_no_quantised_layer_can_have_is_refused() -> None:
    row = next(row for row in ROWS if row.target == "portable" and row.form == "win")
    schedule = Schedule(row.name, "input_stationary", "tiles", row.windows, row.filters, 4, 1, 1)
    product = parse("gemm:3x5x4:s8")
    scale = np.ones(1, np.float32)
    for wrong, text in (
        (Integers(first_zero=200), "-128..127"),
        (Integers(result="u8"), "without scales"),
        (Integers(scales=np.ones(4, np.float32), result="u8"), "expected 1 or 5"),
        (Integers(scales=-scale, result="u8"), "positive"),
        (Integers(scales=scale, result="u8", result_zero=-1), "0..255"),
    ):
        with pytest.raises(OperandError, match=text):
            Launch(product, schedule, integers=wrong)
    with pytest.raises(OperandError, match="s8 problem"):
        Launch(parse("gemm:3x5x4"), schedule, integers=Integers())
    launch = Prepared(product, np.ones((4, 5), np.int8), schedule, integers=Integers(True, 3))
    with pytest.raises(OperandError, match="uint8"):
        launch(np.ones((3, 4), np.int8))
    unpacked = Schedule(row.name, "input_stationary", "tiles", row.windows, row.filters, 4, 1, 1, "unpacked")
    with pytest.raises(NativeError, match="sconv, gemm, panels or depthwise"):
        Launch(product, unpacked, integers=Integers(first_zero=1)).run(np.ones((3, 4), np.int8), np.ones((4, 5), np.int8))
