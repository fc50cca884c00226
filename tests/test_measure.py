# SPDX-License-Identifier: Apache-2.0
"""Timing is fair and leaves no trace; fills are exact where they say so; checks let nothing wrong pass."""

import gc
import math
import os
import time
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pysim.algorithms.contract import SUMS, Bound
from pysim.check.bounds import Sums, allowed, gamma, sums_of, transformed
from pysim.check.fills import HELD, LARGEST, Array, exact_fill, numbers, random_fill, unwritten
from pysim.check.reference import as_result
from pysim.check.verdict import compare
from pysim.errors import OperandError
from pysim.measure import events, load
from pysim.measure.clock import FEWEST_ROUNDS, MOST_ROUNDS, CpuClock, copies_for, interleave, pinned, rotating
from pysim.measure.statistics import quartiles, ratio
from pysim.record.measurement import Ratio

F32 = np.dtype(np.float32)


def timed(contenders: dict[str, Callable[[], object]], **options: Any) -> dict[str, Array]:
    """Seconds by the processor's timer."""
    return interleave(contenders, CpuClock(), **options).samples


def spin(seconds: float) -> Callable[[], None]:
    """A call that keeps the processor busy for a time that is known."""

    def call() -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass

    return call


# ------------------------------------------------------------------------------------------------------------- timing


def test_samples_are_seconds_of_one_call() -> None:
    times = timed({"a": spin(1e-3), "b": spin(2e-3)}, min_samples=10, min_seconds=0, warmup_seconds=0)
    assert times["a"].shape == times["b"].shape == (10,)
    assert times["a"].min() >= 1e-3
    assert times["b"].min() >= 2e-3
    assert times["b"].min() / times["a"].min() == pytest.approx(2, rel=0.5)  # the least, which a busy machine disturbs least


def test_contenders_take_turns_and_each_turn_begins_with_its_own_untimed_call() -> None:
    calls: list[str] = []

    def contender(name: str) -> Callable[[], None]:
        work = spin(50e-6)

        def call() -> None:
            calls.append(name)
            work()

        return call

    timed({"a": contender("a"), "b": contender("b")}, min_samples=6, min_seconds=0, warmup_seconds=0)
    rounds = "".join(calls[-24:])
    assert rounds == "aabb" + "bbaa" + "aabb" + "bbaa" + "aabb" + "bbaa"


def test_a_cold_turn_has_no_untimed_call() -> None:
    calls: list[str] = []
    work = spin(50e-6)

    def call() -> None:
        calls.append("a")
        work()

    timed({"a": call}, min_samples=6, min_seconds=0, warmup_seconds=0, state="cold")
    cold = len(calls)
    calls.clear()
    timed({"a": call}, min_samples=6, min_seconds=0, warmup_seconds=0, state="hot")
    assert len(calls) - cold == 6


def test_a_call_too_short_for_the_clock_is_timed_in_batches() -> None:
    count = 0

    def call() -> None:
        nonlocal count
        count += 1

    times = timed({"a": call}, min_samples=30, min_seconds=0, warmup_seconds=0)
    assert count > 30 * 50
    assert 0 < np.median(times["a"]) < 5e-6


def test_every_contender_is_timed_for_the_least_time_asked_for() -> None:
    times = timed({"short": spin(100e-6), "long": spin(1e-3)}, min_samples=5, min_seconds=0.01, warmup_seconds=0)
    assert times["short"].sum() >= 0.01
    assert times["short"].shape == times["long"].shape


class Drawn(CpuClock):
    """A clock by which a call takes the seconds that it gives."""

    def seconds(self, call: Callable[[], Any], times: int) -> float:
        return float(call()) * times


def drawn(seed: int, *spread: float) -> dict[str, Array]:
    """Samples around 1, 2 .. ms of contenders that scatter so much."""
    draw = np.random.default_rng(seed)
    calls = {f"{at}": partial(draw.lognormal, math.log(at * 1e-3), one) for at, one in enumerate(spread, 1)}
    return interleave(calls, Drawn(), state="cold", warmup_seconds=0, min_seconds=0.2, certain=0.005).samples


def test_a_run_ends_as_soon_as_every_median_is_certain_enough() -> None:
    assert len(drawn(7, 0.002, 0.002)["1"]) == 30
    assert len(drawn(7, 0.002, 0.016)["1"]) in (60, 120)
    assert 180 < len(drawn(7, 0.002, 0.5)["1"]) < 220  # as long as was asked for


def test_what_ends_a_run_early_leaves_intervals_their_coverage() -> None:
    early = hits = 0
    for seed in range(200):
        found = drawn(seed, 0.013, 0.013)
        early += len(found["1"]) < 150
        low, high = bounds(found["2"], found["1"], resamples=200)
        hits += low <= 2 <= high
    assert early > 150 and hits / 200 >= 0.88


def test_short_calls_do_not_make_endless_rounds() -> None:
    times = timed({"short": spin(25e-6)}, min_samples=5, min_seconds=60, warmup_seconds=0)
    assert len(times["short"]) == MOST_ROUNDS


def test_a_spent_budget_ends_the_run_and_shows_in_the_sample_count() -> None:
    start = time.perf_counter()
    times = timed({"a": spin(5e-3)}, min_samples=10_000, budget_seconds=0.05, warmup_seconds=0)
    assert time.perf_counter() - start < 2
    assert FEWEST_ROUNDS <= len(times["a"]) <= 20
    times = timed({"a": spin(1e-3)}, min_samples=30, budget_seconds=0, warmup_seconds=0)
    assert len(times["a"]) == FEWEST_ROUNDS


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system pins no process to a processor")
def test_timing_runs_on_one_processor_and_gives_the_others_back() -> None:
    before = os.sched_getaffinity(0)
    seen: list[set[int]] = []
    timed({"a": lambda: seen.append(os.sched_getaffinity(0))}, min_samples=3, min_seconds=0, warmup_seconds=0)
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
        timed({"a": call})
    assert gc.isenabled()
    if before is not None:
        assert os.sched_getaffinity(0) == before


def test_an_unknown_state_and_an_empty_field_are_refused() -> None:
    with pytest.raises(OperandError, match='no cache state is named "warm"; there are: hot, cold'):
        timed({"a": lambda: None}, state="warm")
    with pytest.raises(OperandError, match="at least one contender"):
        timed({})


def test_rotation_covers_twice_the_last_level_and_visits_every_copy_in_turn() -> None:
    assert copies_for(1 << 20, 32 << 20) == 64
    assert copies_for(3 << 20, 32 << 20) == 22
    assert copies_for(1 << 30, 32 << 20) == 2
    seen: list[int] = []
    call = rotating([lambda i=i: seen.append(i) for i in range(3)])
    assert seen == [0, 1, 2]
    for _ in range(7):
        call()
    assert seen[3:] == [0, 1, 2, 0, 1, 2, 0]


def test_the_first_contender_must_run_and_another_that_fails_is_left_out_with_its_error() -> None:
    calls = 0

    def fails() -> None:
        nonlocal calls
        calls += 1
        if calls > 10:
            raise RuntimeError("misaligned address")

    work = spin(50e-6)
    found = interleave({"a": work, "b": fails, "c": work}, CpuClock(), min_seconds=0, warmup_seconds=0)
    assert set(found.samples) == {"a", "c"} and [str(error) for error in found.failed.values()] == ["misaligned address"]
    assert len(found.samples["a"]) == len(found.samples["c"]) == 30
    calls = 0
    with pytest.raises(RuntimeError):
        interleave({"b": fails, "a": work}, CpuClock(), min_seconds=0, warmup_seconds=0)


class Device:
    """A device's events that know how long each call takes, and note what ran since the last sample."""

    batch, leads, undisturbed, asynchronous = (
        *(events.Events.batch, events.Events.leads, events.Events.undisturbed),
        events.Events.asynchronous,
    )

    def __init__(self, takes: float, ran: list[str]) -> None:
        self.takes, self.ran, self.before = takes, ran, list[list[str]]()

    def seconds(self, call: Callable[[], object], times: int) -> float:
        self.before.append(self.ran.copy())
        self.ran.clear()
        for _ in range(times):
            call()
        self.ran.clear()
        return self.takes * times


@pytest.mark.parametrize(("takes", "hot", "cold"), [(1e-6, 8, 8), (1e-5, 6, 6), (2e-5, 3, 3), (1e-3, 1, 1), (2e-3, 1, 0), (1.0, 1, 0)])
def test_a_device_is_kept_busy_by_a_contenders_own_calls_before_each_of_its_samples(takes: float, hot: int, cold: int) -> None:
    for state, leads in (("hot", hot), ("cold", cold)):
        ran: list[str] = []
        clock = Device(takes, ran)
        contenders = {name: partial(ran.append, name) for name in "ab"}
        found = interleave(contenders, clock, state=state, min_samples=6, min_seconds=0, warmup_seconds=0)
        assert [len(values) for values in found.samples.values()] == [6, 6] and set(found.samples["a"]) == {takes}
        warm, timed = clock.before[:6], clock.before[6:]
        assert warm == [[]] * 6
        assert timed == [[name] * leads for name in "abbaabbaabba"]


def test_the_hosts_time_for_a_launch_stands_apart_from_the_devices() -> None:
    ran: list[str] = []

    def launch() -> None:
        spin(1e-3)()
        ran.append("a")

    found = interleave({"a": launch}, Device(1e-5, ran), min_samples=6, min_seconds=0, warmup_seconds=0)
    assert found.samples["a"].max() == 1e-5 and found.launches["a"] >= 1e-3
    assert interleave({"a": spin(1e-4)}, CpuClock(), min_samples=5, min_seconds=0, warmup_seconds=0).launches == {}


# --------------------------------------------------------------------------------------------------------------- load


def counters(**changed: float) -> load._Counters:
    still = {"wall": 10.0, "thread": 5.0, "process": 6.0, "busy": 40.0, "steal": 1.0, "cpus": 2, "switches": 7}
    return load._Counters(**(still | changed))


def loaded(monkeypatch: pytest.MonkeyPatch, threads: int = 1, **after: float) -> load.Load:
    """Of the second after `counters`."""
    readings = iter((counters(), counters(**({"wall": 11.0} | after))))
    monkeypatch.setattr(load, "_read", lambda: next(readings))
    return load.Watch(threads).load()


def test_what_a_timed_thread_did_not_run_and_what_the_hypervisor_took_was_others(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = loaded(monkeypatch, thread=6.0, process=7.0, busy=41.0)
    assert (alone.taken, alone.others, alone.switches, alone.heavy) == (0, 0, 0, False)
    beside = loaded(monkeypatch, thread=5.9, process=6.9, busy=41.6, steal=1.04, switches=12)
    assert (beside.taken, beside.others) == (pytest.approx(0.12), pytest.approx(0.7)) and beside.switches == 5 and beside.heavy
    assert loaded(monkeypatch, threads=2, thread=5.4, process=7.8, busy=41.8).taken == 0  # one thread waits for the other
    assert loaded(monkeypatch, threads=2, thread=5.4, process=7.8, busy=41.8, steal=1.2).taken == pytest.approx(0.1)


def test_an_interval_is_as_much_wider_as_others_had_of_the_time() -> None:
    assert load.widened(Ratio(1.1, 1.05, 1.2), 0.0) == Ratio(1.1, 1.05, 1.2)
    wide = load.widened(Ratio(1.1, 1.05, 1.2), 0.2)
    assert (wide.value, wide.low, wide.high) == (1.1, pytest.approx(0.84), pytest.approx(1.5))


@pytest.mark.skipif(not load.STAT.exists(), reason="this system has no /proc/stat")
def test_a_sleeping_call_looks_like_one_that_others_kept_waiting() -> None:
    found = interleave({"a": partial(time.sleep, 2e-3)}, CpuClock(), min_samples=10, min_seconds=0, warmup_seconds=0).load
    assert found is not None and found.taken > 0.5 and found.heavy


def test_where_proc_is_not_nothing_is_counted_of_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for text in (None, "", "cpu  1 2 three"):
        monkeypatch.setattr(load, "STAT", tmp_path / "stat")
        if text is not None:
            (tmp_path / "stat").write_text(text)
        watch = load.Watch()
        spin(1e-3)()
        assert watch.load().others == 0


# --------------------------------------------------------------------------------------------------------- statistics


def bounds(numerator: Array, denominator: Array, **options: Any) -> tuple[float, float]:
    found = ratio(numerator, denominator, **options)
    assert found.value == np.median(numerator) / np.median(denominator)
    return found.low, found.high


def test_quartiles_of_a_known_sample() -> None:
    assert quartiles(np.array([5.0, 1.0, 2.0, 4.0, 3.0])) == (2.0, 3.0, 4.0)


def test_the_interval_holds_the_ratio_and_shrinks_with_more_rounds() -> None:
    draw = np.random.default_rng(1)

    def interval(rounds: int) -> tuple[float, float]:
        return bounds(draw.lognormal(0.5, 0.1, rounds), draw.lognormal(0, 0.1, rounds))

    few, many = interval(30), interval(3000)
    assert few[0] < math.exp(0.5) < few[1] and many[0] < math.exp(0.5) < many[1]
    assert many[1] - many[0] < (few[1] - few[0]) / 3


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    draw = np.random.default_rng(2)
    hits = 0
    for _ in range(200):
        low, high = bounds(draw.lognormal(0.2, 0.2, 40), draw.lognormal(0, 0.2, 40), resamples=200)
        hits += low <= math.exp(0.2) <= high
    assert 0.88 <= hits / 200 <= 1


def test_a_disturbance_that_hits_both_of_a_round_does_not_widen_the_interval() -> None:
    draw = np.random.default_rng(3)
    disturbance = draw.lognormal(0, 1, 100)
    assert bounds(3 * disturbance, disturbance) == pytest.approx((3, 3))
    low, high = bounds(3 * disturbance, draw.permutation(disturbance))
    assert high - low > 0.5


def test_the_interval_is_the_same_each_time() -> None:
    a, b = np.random.default_rng(4).random((2, 50))
    assert bounds(a, b) == bounds(a, b)
    assert bounds(a, b) != bounds(a, b, seed=1)


def test_samples_that_do_not_pair_up_are_refused() -> None:
    with pytest.raises(OperandError, match=r"shapes \(3,\) and \(2,\) do not pair up"):
        ratio(np.ones(3), np.ones(2))


# --------------------------------------------------------------------------------------------------------------- fills


@given(st.integers(1, 2**24), st.sampled_from(sorted(HELD.keys() - {"s32"})))
@settings(max_examples=100, deadline=None)
def test_the_largest_sum_of_an_exact_fill_is_an_integer_that_the_accumulators_hold(k: int, dtype: str) -> None:
    values = numbers(exact_fill((4000,), k, dtype))
    largest = int(np.abs(values).max())
    assert 1 <= largest <= LARGEST and np.array_equal(values, np.round(values))
    assert k * largest**2 <= {"f64": 2**53, "s8": 2**31 - 1}.get(dtype, 2**24)
    assert largest <= {"f16": 3, "bf16": 3, "f8": 1}.get(dtype, LARGEST)  # what narrow results hold


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


def test_sums_that_grow_on_their_way_get_smaller_numbers_as_far_as_there_are_any() -> None:
    assert int(np.abs(exact_fill((4000,), 4608, growth=36)).max()) == 10
    assert int(np.abs(exact_fill((4000,), 2**24, growth=36)).max()) == 1


@pytest.mark.parametrize("dtype", sorted(HELD.keys() - {"s32"}))
def test_a_random_fill_has_the_bits_of_its_type_and_stays_in_its_range(dtype: str) -> None:
    fill = random_fill((10_000,), dtype, 5)
    assert fill.dtype == HELD[dtype] and fill.ctypes.data % 64 == 0
    values = fill.astype(np.float64)
    if dtype == "s8":
        assert (values.min(), values.max()) == (-128, 127) and len(np.unique(values)) == 256
        return
    assert -1 <= values.min() < -0.9 and 0.9 < values.max() <= 1
    wide = random_fill((10_000,), "f64" if dtype == "f64" else "f32", 5)
    kept = {"bf16": 2.0**-8, "f16": 2.0**-11, "tf32": 2.0**-10, "f8": 2.0**-4}.get(dtype, 0.0)
    least = {"f8": 2.0**-10, "f16": 2.0**-25}.get(dtype, 0.0)  # half of the smallest number
    assert np.all(np.abs(values - wide) <= np.maximum(np.abs(wide) * kept, least))
    assert dtype != "tf32" or not (fill.view(np.uint32) & 0x1FFF).any()
    assert dtype != "bf16" or len(np.unique(fill.view(np.uint16) & 0x7F)) == 128


def test_sums_of_s8_wrap_to_s32_and_others_are_rounded_once() -> None:
    sums = as_result(np.array([2.0**31, -(2.0**31) - 1, 2.0**33 + 5, -7.0]), HELD["s32"])
    assert sums.dtype == np.int32 and sums.tolist() == [-(2**31), 2**31 - 1, 5, -7]
    assert as_result(np.array([257.0, 258.0], F32), HELD["bf16"]).astype(F32).tolist() == [256.0, 258.0]


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


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_an_output_starts_as_nan(dtype: str) -> None:
    assert np.isnan(unwritten((2, 3), HELD[dtype])).all()


def test_a_sum_too_long_to_be_exact_and_a_dtype_that_nothing_computes_are_refused() -> None:
    with pytest.raises(OperandError, match="sums of 16777217 products cannot be exact in f32"):
        exact_fill((1,), 2**24 + 1)
    with pytest.raises(OperandError, match="no operand is of 'int4'; there are: f32, tf32, tf32x3, f64, f16, bf16, f8, s8, s32"):
        random_fill((1,), "int4")


# -------------------------------------------------------------------------------------------------------------- bounds


def test_gamma_is_highams_and_never_shrinks_where_sums_are_too_long_for_it() -> None:
    assert gamma(576, 2**-24) == pytest.approx(576 * 2**-24 / (1 - 576 * 2**-24))
    assert gamma(1, 2**-53) == pytest.approx(2**-53)
    assert gamma(2**23, 2**-24) == 1 < gamma(2**24, 2**-24) < gamma(2**25, 2**-24) < math.inf


def test_accumulators_round_as_the_type_and_the_place_have_it() -> None:
    units = {dtype: [sums_of(dtype, 9, F32, on_gpu).unit for on_gpu in (False, True)] for dtype in ("f32", "bf16", "f64", "f8")}
    assert units == {"f32": [2**-24, 2**-23], "bf16": [2**-24, 2**-23], "f64": [2**-53] * 2, "f8": [2**-14] * 2}


def test_what_is_allowed_is_the_sums_rounding_and_the_results_own() -> None:
    one, scale = np.array([2.0]), np.array([64.0])
    f16 = Sums(64, 2**-23, HELD["f16"])  # the worked number
    assert allowed(SUMS, f16, one, scale)[0] == pytest.approx(7.6e-6 * 64 + 4.9e-4 * 2, rel=0.01)
    assert allowed(SUMS, f16, one, scale, stored=2)[0] == pytest.approx(7.6e-6 * 64 + 2 * 4.9e-4 * 2, rel=0.01)
    assert not allowed(SUMS, Sums(64, 2**-24, HELD["s32"]), one, scale).any()
    least = 2.0**-24  # of f16
    assert allowed(SUMS, f16, 0 * one, 0 * scale)[0] == least / 2, "what rounding to a number without its leading one takes"
    grown = allowed(Bound(4.0, 0.0, ""), Sums(64, 2**-24, F32), 0 * one, scale)[0]
    assert grown == pytest.approx(4 * allowed(SUMS, Sums(64, 2**-24, F32), 0 * one, scale)[0], rel=1e-4)


def test_transforms_are_held_to_the_root_mean_square_where_that_is_more() -> None:
    want = np.array([3.0, -4.0, 0.0, 0.0])
    found = allowed(transformed("f32"), Sums(9, 2**-24, F32), want, np.array([9.0, 9.0, 9.0, 1e6]))
    assert found[:3] == pytest.approx(1e-3 * 2.5) and found[3] > 0.5


# -------------------------------------------------------------------------------------------------------------- checks


def test_equal_arrays_pass_and_one_ulp_does_not() -> None:
    want = random_fill((4, 5), seed=1)
    assert compare(want.copy(), want).passed
    got = want.copy()
    got[2, 3] = np.nextafter(got[2, 3], np.float32(9))
    verdict = compare(got, want)
    assert verdict.status == "failed" and "1 of 20 elements are wrong; the first at (2, 3)" in verdict.reason
    assert 0 < verdict.error < 1e-6


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_element_that_is_no_number_fails_every_check(bad: float) -> None:
    want = np.ones((4, 5), np.float32)
    got = want.copy()
    got[0, 0] = bad
    assert not compare(got, want).passed
    assert not compare(got, want, np.full(want.shape, 1e30)).passed
    assert not compare(got, want, math.inf).passed
    assert not compare(want, want, np.full(want.shape, np.nan)).passed


def test_an_unwritten_result_fails_and_says_so() -> None:
    assert "20 are NaN or were never written" in compare(unwritten((4, 5), F32), np.ones((4, 5), "f4")).reason


def test_the_bound_itself_is_allowed_and_nothing_beyond_it() -> None:
    want, off = np.full(8, 2.0), np.full(8, 0.25)
    assert compare(want + 0.25, want, off).passed
    verdict = compare(want + np.array([0, 0, 0, 0.26, 0, 0, -0.5, 0]), want, off)
    assert verdict.status == "failed" and "2 of 8" in verdict.reason and "(3,)" in verdict.reason
    assert verdict.error == pytest.approx(0.5)


def test_too_many_zeros_are_mistrusted_even_where_they_are_right() -> None:
    want = np.ones(10, np.float32)
    want[:4] = 0
    for verdict in (compare(want, want), compare(want, want, 1.0)):
        assert verdict.status == "mistrusted" and not verdict.passed and "40%" in verdict.reason
    want[0] = 1
    assert compare(want, want).passed


def test_another_shape_and_an_empty_result_do_not_pass() -> None:
    assert "(3, 2), right is (2, 3)" in compare(np.ones((3, 2)), np.ones((2, 3))).reason
    assert "(6,), right is (2, 3)" in compare(np.ones(6), np.ones((2, 3)), 1.0).reason
    assert compare(np.ones(0), np.ones(0)).status == "mistrusted"


def test_the_two_zeros_are_equal() -> None:
    want = np.array([0.0, 1.0, 2.0, 3.0])
    assert compare(np.array([-0.0, 1.0, 2.0, 3.0]), want).passed
