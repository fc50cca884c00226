# SPDX-License-Identifier: Apache-2.0
"""Timing is fair and leaves no trace; fills are exact where they say so; checks let nothing wrong pass."""

import gc
import math
import os
import time
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pysim.errors import OperandError
from pysim.measure.clock import (
    FEWEST_ROUNDS,
    LARGEST_FILL,
    MOST_ROUNDS,
    Array,
    check_bound,
    check_exact,
    copies_for,
    exact_fill,
    gamma,
    interleave,
    numbers_of,
    pinned,
    quartiles,
    random_fill,
    ratio_interval,
    result_from,
    result_of,
    rotating,
    unwritten,
)


def spin(seconds: float) -> Callable[[], None]:
    """A call that keeps the processor busy for a time that is known."""

    def call() -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass

    return call


# ------------------------------------------------------------------------------------------------------------- timing


def test_samples_are_seconds_of_one_call() -> None:
    times = interleave({"a": spin(1e-3), "b": spin(2e-3)}, min_samples=10, min_seconds=0, warmup_seconds=0)
    assert times["a"].shape == times["b"].shape == (10,)
    assert times["a"].min() >= 1e-3
    assert times["b"].min() >= 2e-3
    assert np.median(times["b"]) / np.median(times["a"]) == pytest.approx(2, rel=0.5)


def test_contenders_take_turns_and_each_turn_begins_with_its_own_untimed_call() -> None:
    calls: list[str] = []

    def contender(name: str) -> Callable[[], None]:
        work = spin(50e-6)

        def call() -> None:
            calls.append(name)
            work()

        return call

    interleave({"a": contender("a"), "b": contender("b")}, min_samples=6, min_seconds=0, warmup_seconds=0)
    rounds = "".join(calls[-24:])
    assert rounds == "aabb" + "bbaa" + "aabb" + "bbaa" + "aabb" + "bbaa"


def test_a_cold_turn_has_no_untimed_call() -> None:
    calls: list[str] = []
    work = spin(50e-6)

    def call() -> None:
        calls.append("a")
        work()

    interleave({"a": call}, min_samples=6, min_seconds=0, warmup_seconds=0, state="cold")
    cold = len(calls)
    calls.clear()
    interleave({"a": call}, min_samples=6, min_seconds=0, warmup_seconds=0, state="hot")
    assert len(calls) - cold == 6


def test_a_call_too_short_for_the_clock_is_timed_in_batches() -> None:
    count = 0

    def call() -> None:
        nonlocal count
        count += 1

    times = interleave({"a": call}, min_samples=30, min_seconds=0, warmup_seconds=0)
    assert count > 30 * 50
    assert 0 < np.median(times["a"]) < 5e-6


def test_every_contender_is_timed_for_the_least_time_asked_for() -> None:
    times = interleave({"short": spin(100e-6), "long": spin(1e-3)}, min_samples=5, min_seconds=0.01, warmup_seconds=0)
    assert times["short"].sum() >= 0.01
    assert times["short"].shape == times["long"].shape


def test_short_calls_do_not_make_endless_rounds() -> None:
    times = interleave({"short": spin(25e-6)}, min_samples=5, min_seconds=60, warmup_seconds=0)
    assert len(times["short"]) == MOST_ROUNDS


def test_a_spent_budget_ends_the_run_and_shows_in_the_sample_count() -> None:
    start = time.perf_counter()
    times = interleave({"a": spin(5e-3)}, min_samples=10_000, budget_seconds=0.05, warmup_seconds=0)
    assert time.perf_counter() - start < 2
    assert FEWEST_ROUNDS <= len(times["a"]) <= 20
    times = interleave({"a": spin(1e-3)}, min_samples=30, budget_seconds=0, warmup_seconds=0)
    assert len(times["a"]) == FEWEST_ROUNDS


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system pins no process to a processor")
def test_timing_runs_on_one_processor_and_gives_the_others_back() -> None:
    before = os.sched_getaffinity(0)
    seen: list[set[int]] = []
    interleave({"a": lambda: seen.append(os.sched_getaffinity(0))}, min_samples=3, min_seconds=0, warmup_seconds=0)
    assert all(len(cpus) == 1 and cpus <= before for cpus in seen) and len({*map(frozenset, seen)}) == 1
    assert os.sched_getaffinity(0) == before
    with pinned(threads=2) as cpu:
        assert cpu is None and os.sched_getaffinity(0) == before


def test_a_contender_that_raises_leaves_affinity_and_collector_as_they_were() -> None:
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None

    def call() -> None:
        assert not gc.isenabled()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interleave({"a": call})
    assert gc.isenabled()
    if before is not None:
        assert os.sched_getaffinity(0) == before


def test_an_unknown_state_and_an_empty_field_are_refused() -> None:
    with pytest.raises(OperandError, match="'warm' is unknown; it is 'hot' or 'cold'"):
        interleave({"a": lambda: None}, state="warm")  # type: ignore[arg-type]
    with pytest.raises(OperandError, match="at least one contender"):
        interleave({})


def test_rotation_covers_twice_the_last_level_and_visits_every_copy_in_turn() -> None:
    assert copies_for(1 << 20, 32 << 20) == 64
    assert copies_for(3 << 20, 32 << 20) == 22
    assert copies_for(1 << 30, 32 << 20) == 2
    seen: list[int] = []
    call = rotating([lambda i=i: seen.append(i) for i in range(3)])  # type: ignore[misc]
    assert seen == [0, 1, 2]
    for _ in range(7):
        call()
    assert seen[3:] == [0, 1, 2, 0, 1, 2, 0]


# --------------------------------------------------------------------------------------------------------- statistics


def test_quartiles_of_a_known_sample() -> None:
    assert quartiles(np.array([5.0, 1.0, 2.0, 4.0, 3.0])) == (2.0, 3.0, 4.0)


def test_the_interval_holds_the_ratio_and_shrinks_with_more_rounds() -> None:
    draw = np.random.default_rng(1)

    def interval(rounds: int) -> tuple[float, float]:
        return ratio_interval(draw.lognormal(0.5, 0.1, rounds), draw.lognormal(0, 0.1, rounds))

    few, many = interval(30), interval(3000)
    assert few[0] < math.exp(0.5) < few[1] and many[0] < math.exp(0.5) < many[1]
    assert many[1] - many[0] < (few[1] - few[0]) / 3


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    draw = np.random.default_rng(2)
    hits = 0
    for _ in range(200):
        low, high = ratio_interval(draw.lognormal(0.2, 0.2, 40), draw.lognormal(0, 0.2, 40), resamples=200)
        hits += low <= math.exp(0.2) <= high
    assert 0.88 <= hits / 200 <= 1


def test_a_disturbance_that_hits_both_of_a_round_does_not_widen_the_interval() -> None:
    draw = np.random.default_rng(3)
    disturbance = draw.lognormal(0, 1, 100)
    assert ratio_interval(3 * disturbance, disturbance) == pytest.approx((3, 3))
    low, high = ratio_interval(3 * disturbance, draw.permutation(disturbance))
    assert high - low > 0.5


def test_the_interval_is_the_same_each_time() -> None:
    a, b = np.random.default_rng(4).random((2, 50))
    assert ratio_interval(a, b) == ratio_interval(a, b)
    assert ratio_interval(a, b) != ratio_interval(a, b, seed=1)


def test_samples_that_do_not_pair_up_are_refused() -> None:
    with pytest.raises(OperandError, match=r"shapes \(3,\) and \(2,\) do not pair up"):
        ratio_interval(np.ones(3), np.ones(2))


# --------------------------------------------------------------------------------------------------------------- fills


@given(st.integers(1, 2**24), st.sampled_from(["f32", "f64", "bf16", "s8"]))
@settings(max_examples=100, deadline=None)
def test_the_largest_sum_of_an_exact_fill_is_an_integer_that_the_format_holds(k: int, dtype: str) -> None:
    values = numbers_of(exact_fill((4000,), k, dtype), dtype)
    largest = int(np.abs(values).max())
    assert 1 <= largest <= LARGEST_FILL and np.array_equal(values, np.round(values))
    assert k * largest**2 <= {"f32": 2**24, "f64": 2**53, "bf16": 2**24, "s8": 2**31 - 1}[dtype]


@pytest.mark.parametrize("k", [1, 27, 576, 4608])
def test_exact_fill_sums_to_the_same_bits_in_any_order(k: int) -> None:
    a, b = exact_fill((k,), k, seed=1), exact_fill((k,), k, seed=2)
    exact = sum(Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a, b, strict=True))
    draw = np.random.default_rng(0)
    for _ in range(5):
        order = draw.permutation(k)
        total = np.float32(0)
        for x, y in zip(a[order], b[order], strict=True):
            total = np.float32(total + x * y)
        assert Fraction(float(total)) == exact


def test_random_bf16_has_eight_bits_of_its_own_and_random_s8_reaches_both_ends() -> None:
    wide = random_fill((10_000,), "f32", 5)
    narrow = random_fill((10_000,), "bf16", 5)
    assert narrow.dtype == np.uint16 and narrow.ctypes.data % 64 == 0
    assert np.all(np.abs(numbers_of(narrow, "bf16") - wide) <= np.abs(wide) * 2.0**-7)
    assert len(np.unique(narrow & 0x7F)) == 128
    bytes_ = random_fill((10_000,), "s8", 5)
    assert bytes_.dtype == np.int8 and (bytes_.min(), bytes_.max()) == (-128, 127) and len(np.unique(bytes_)) == 256


def test_results_of_bf16_are_f32_and_those_of_s8_wrap_to_s32() -> None:
    assert [result_of(dtype) for dtype in ("f32", "f64", "bf16", "s8")] == [np.float32, np.float64, np.float32, np.int32]
    sums = result_from(np.array([2.0**31, -(2.0**31) - 1, 2.0**33 + 5, -7.0]), "s8")
    assert sums.dtype == np.int32 and sums.tolist() == [-(2**31), 2**31 - 1, 5, -7]


def test_random_fill_would_not_pass_for_exact() -> None:
    a, b = random_fill((4608,), seed=1), random_fill((4608,), seed=2)
    sums = {float(np.cumsum((a * b)[np.random.default_rng(i).permutation(4608)])[-1]) for i in range(5)}
    assert len(sums) > 1


def test_fills_are_seeded_aligned_and_free_of_zeros_where_promised() -> None:
    fills: tuple[Callable[[int], Array], ...] = (
        lambda seed: exact_fill((3, 5, 7), 9, seed=seed),
        lambda seed: random_fill((3, 5, 7), seed=seed),
    )
    for fill in fills:
        assert np.array_equal(fill(1), fill(1)) and not np.array_equal(fill(1), fill(2))
        assert fill(1).ctypes.data % 64 == 0 and fill(1).flags.c_contiguous and fill(1).dtype == np.float32
    values = exact_fill((10_000,), 9)
    assert np.all(values == np.round(values)) and np.all(values != 0) and values.min() < 0 < values.max()
    uniform = random_fill((10_000,), "f64")
    assert uniform.dtype == np.float64 and -1 <= uniform.min() < -0.99 and 0.99 < uniform.max() < 1
    assert np.isnan(unwritten((2, 3), "f32")).all()


def test_a_sum_too_long_to_be_exact_and_a_dtype_that_nothing_computes_are_refused() -> None:
    with pytest.raises(OperandError, match="sums of 16777217 products cannot be exact in f32"):
        exact_fill((1,), 2**24 + 1)
    with pytest.raises(OperandError, match="'f16' cannot be measured here; these can: f32, f64, bf16, s8"):
        random_fill((1,), "f16")


def test_gamma_is_highams() -> None:
    assert gamma(576, "f32") == pytest.approx(576 * 2**-24 / (1 - 576 * 2**-24))
    assert gamma(1, "f64") == pytest.approx(2**-53)
    assert gamma(576, "bf16") == gamma(576, "f32") and gamma(576, "s8") == 0  # the rounding is that of the result
    with pytest.raises(OperandError, match="no error bound"):
        gamma(2**24, "f32")


# -------------------------------------------------------------------------------------------------------------- checks


def test_equal_arrays_pass_and_one_ulp_does_not() -> None:
    want = random_fill((4, 5), seed=1)
    assert check_exact(want.copy(), want).passed
    got = want.copy()
    got[2, 3] = np.nextafter(got[2, 3], np.float32(9))
    verdict = check_exact(got, want)
    assert verdict.status == "failed" and "1 of 20 elements are wrong; the first at (2, 3)" in verdict.reason
    assert 0 < verdict.error < 1e-6


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_element_that_is_no_number_fails_every_check(bad: float) -> None:
    want = np.ones((4, 5), np.float32)
    got = want.copy()
    got[0, 0] = bad
    assert not check_exact(got, want).passed
    assert not check_bound(got, want, np.full(want.shape, 1e30)).passed
    assert not check_bound(got, want, math.inf).passed
    assert not check_bound(want, want, np.full(want.shape, np.nan)).passed


def test_an_unwritten_result_fails_and_says_so() -> None:
    assert "20 are NaN or were never written" in check_exact(unwritten((4, 5), "f32"), np.ones((4, 5), "f4")).reason


def test_the_bound_itself_is_allowed_and_nothing_beyond_it() -> None:
    want, bound = np.full(8, 2.0), np.full(8, 0.25)
    assert check_bound(want + 0.25, want, bound).passed
    verdict = check_bound(want + np.array([0, 0, 0, 0.26, 0, 0, -0.5, 0]), want, bound)
    assert verdict.status == "failed" and "2 of 8" in verdict.reason and "(3,)" in verdict.reason
    assert verdict.error == pytest.approx(0.5)


def test_too_many_zeros_are_mistrusted_even_where_they_are_right() -> None:
    want = np.ones(10, np.float32)
    want[:4] = 0
    for verdict in (check_exact(want, want), check_bound(want, want, 1.0)):
        assert verdict.status == "mistrusted" and not verdict.passed and "40%" in verdict.reason
    want[0] = 1
    assert check_exact(want, want).passed


def test_another_shape_and_an_empty_result_do_not_pass() -> None:
    assert "(3, 2), right is (2, 3)" in check_exact(np.ones((3, 2)), np.ones((2, 3))).reason
    assert "(6,), right is (2, 3)" in check_bound(np.ones(6), np.ones((2, 3)), 1.0).reason
    assert check_exact(np.ones(0), np.ones(0)).status == "mistrusted"


def test_the_two_zeros_are_equal() -> None:
    want = np.array([0.0, 1.0, 2.0, 3.0])
    assert check_exact(np.array([-0.0, 1.0, 2.0, 3.0]), want).passed
