# SPDX-License-Identifier: Apache-2.0
"""Timing is fair and leaves no trace, and an interval holds the ratio."""

import gc
import itertools
import math
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pysim.check.fills import Array
from pysim.errors import NativeError, OperandError
from pysim.measure import clock, cpu_load, events, speed
from pysim.measure.clock import MAX_COPIES, MAX_ROUNDS, MIN_ROUNDS, CpuClock, copies_for, interleave, pinned, rotating
from pysim.measure.statistics import quartiles, ratio
from pysim.record.measurement import Ratio
from pysim.runtime import cpu as runtime


def timed(candidates: dict[str, Callable[[], object]], **options: Any) -> dict[str, Array]:
    """Seconds by the processor's timer."""
    return interleave(candidates, CpuClock(), **options).samples


class Timer:
    """The processor's timer, which advances by what each call is said to take: no other process counts."""

    now = 0.0

    def spend(self, seconds: float) -> None:
        self.now += seconds

    def lasting(self, seconds: float) -> Callable[[], None]:
        return partial(self.spend, seconds)


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> Timer:
    found = Timer()
    time_ = SimpleNamespace(perf_counter=lambda: found.now, perf_counter_ns=lambda: round(found.now * 1e9))
    monkeypatch.setattr(clock, "time", time_)
    return found


def spin(seconds: float) -> Callable[[], None]:
    """A call that keeps the processor busy for a time that is known."""

    def call() -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass

    return call


# ------------------------------------------------------------------------------------------------------------- timing


def test_samples_are_seconds_of_one_call(timer: Timer) -> None:
    """Short calls are timed in batches."""
    seconds = {"a": 1e-3, "b": 2e-3, "short": 5e-6}
    times = timed({name: timer.lasting(each) for name, each in seconds.items()}, min_samples=10, min_seconds=0, warmup_seconds=0)
    for name, each in seconds.items():
        assert times[name] == pytest.approx([each] * 10, rel=1e-3)


class Caches(CpuClock):
    """whose candidates' first calls behind another's take `slow` times as long as the rest, call by call."""

    slow: Sequence[float] = ()
    last, again = "", 0

    def seconds(self, call: Callable[[], object], times: int) -> float:
        return 1e-4 * float(call())  # type: ignore[arg-type]

    @classmethod
    def candidate(cls, name: str, ran: list[str]) -> float:
        cls.last, cls.again = name, cls.again + 1 if name == cls.last else 0
        ran.append(name)
        return cls.slow[cls.again] if cls.again < len(cls.slow) else 1.0


@pytest.mark.parametrize(("slow", "leads"), [((), 1), ((1.5,), 1), ((1.5, 1.3, 1.02), 2), ((1.8, 1.5, 1.4, 1.3, 1.2), 5)])
def test_candidates_take_turns_that_begin_with_untimed_calls_until_their_data_is_where_it_stays(slow: Sequence[float], leads: int) -> None:
    clock, ran = type("Clock", (Caches,), {"slow": slow}), list[str]()
    candidates = {name: partial(clock.candidate, name, ran) for name in "ab"}
    found = interleave(candidates, clock(), min_samples=6, min_seconds=0, warmup_seconds=0).samples
    a, b = ("a" * (leads + 1), "b" * (leads + 1))
    assert "".join(ran[-12 * (leads + 1) :]) == 3 * (a + b + b + a)
    assert max(found["a"].max(), found["b"].max()) <= 1.03e-4


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


def test_a_call_too_short_for_the_clock_is_timed_in_batches(timer: Timer) -> None:
    count = 0

    def call() -> None:
        nonlocal count
        count += 1
        timer.spend(4e-7)

    times = timed({"a": call}, min_samples=30, min_seconds=0, warmup_seconds=0)
    assert count > 30 * clock.BATCH_SECONDS / 4e-7
    assert times["a"] == pytest.approx([4e-7] * 30, rel=1e-3)


def test_every_candidate_is_timed_for_at_least_the_requested_time() -> None:
    times = timed({"short": spin(100e-6), "long": spin(1e-3)}, min_samples=5, min_seconds=0.01, warmup_seconds=0)
    assert times["short"].sum() >= 0.01
    assert times["short"].shape == times["long"].shape


class Drawn(CpuClock):
    """A clock by which a call takes the seconds that it gives."""

    def seconds(self, call: Callable[[], Any], times: int) -> float:
        return float(call()) * times


def drawn(seed: int, *spread: float) -> dict[str, Array]:
    """Samples around 1, 2 .. ms of candidates that scatter so much."""
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


def test_short_calls_do_not_make_endless_rounds(timer: Timer) -> None:
    times = timed({"short": timer.lasting(25e-6)}, min_samples=5, min_seconds=60, warmup_seconds=0)
    assert len(times["short"]) == MAX_ROUNDS


def test_a_spent_budget_ends_the_run_and_shows_in_the_sample_count(timer: Timer) -> None:
    times = timed({"a": timer.lasting(5e-3)}, min_samples=10_000, budget_seconds=0.05, warmup_seconds=0)
    assert timer.now < 0.1  # three untimed calls, and one before each sample
    assert MIN_ROUNDS <= len(times["a"]) <= 7
    times = timed({"a": timer.lasting(1e-3)}, min_samples=30, budget_seconds=0, warmup_seconds=0)
    assert len(times["a"]) == MIN_ROUNDS


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system pins no process to a processor")
def test_timing_runs_on_one_processor_and_gives_the_others_back() -> None:
    before = os.sched_getaffinity(0)
    seen: list[set[int]] = []
    timed({"a": lambda: seen.append(os.sched_getaffinity(0))}, min_samples=3, min_seconds=0, warmup_seconds=0)
    assert all(len(cpus) == 1 and cpus <= before for cpus in seen) and len({*map(frozenset, seen)}) == 1
    assert os.sched_getaffinity(0) == before
    with pinned(threads=2) as cpu:
        assert cpu is None and os.sched_getaffinity(0) == before


def test_a_candidate_that_raises_leaves_affinity_and_collector_as_they_were() -> None:
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
    with pytest.raises(OperandError, match="at least one candidate"):
        timed({})


def test_rotation_covers_twice_the_last_level_and_visits_every_copy_in_turn() -> None:
    assert copies_for(1 << 20, 32 << 20) == 64
    assert copies_for(3 << 20, 32 << 20) == 22
    assert copies_for(1 << 30, 32 << 20) == 2
    assert copies_for(1024, 32 << 20) == MAX_COPIES
    with pytest.raises(OperandError, match=r"65,601 copies of 1,023 bytes .* at most 65,536 are made; expected a problem of 1,024 bytes"):
        copies_for(1023, 32 << 20)
    seen: list[int] = []
    call = rotating([lambda i=i: seen.append(i) for i in range(3)])
    assert seen == [0, 1, 2]
    for _ in range(7):
        call()
    assert seen[3:] == [0, 1, 2, 0, 1, 2, 0]


def test_the_first_candidate_must_run_and_another_that_fails_is_left_out_with_its_error() -> None:
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
def test_a_device_is_kept_busy_by_a_candidates_own_calls_before_each_of_its_samples(takes: float, hot: int, cold: int) -> None:
    for state, leads in (("hot", hot), ("cold", cold)):
        ran: list[str] = []
        clock = Device(takes, ran)
        candidates = {name: partial(ran.append, name) for name in "ab"}
        found = interleave(candidates, clock, state=state, min_samples=6, min_seconds=0, warmup_seconds=0)
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


def counters(**changed: float) -> cpu_load._Counters:
    still = {"wall": 10.0, "thread": 5.0, "process": 6.0, "busy": 40.0, "steal": 1.0, "cpus": 2, "switches": 7}
    return cpu_load._Counters(**(still | changed))


def loaded(monkeypatch: pytest.MonkeyPatch, threads: int = 1, **after: float) -> cpu_load.Load:
    """Of the second after `counters`."""
    readings = iter((counters(), counters(**({"wall": 11.0} | after))))
    monkeypatch.setattr(cpu_load, "_read", lambda: next(readings))
    return cpu_load.Watch(threads).load()


def test_what_a_timed_thread_did_not_run_and_what_the_hypervisor_took_was_others(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = loaded(monkeypatch, thread=6.0, process=7.0, busy=41.0)
    assert (alone.taken, alone.others, alone.switches, alone.heavy) == (0, 0, 0, False)
    busy = loaded(monkeypatch, thread=5.9, process=6.9, busy=41.6, steal=1.04, switches=12)
    assert (busy.taken, busy.others) == (pytest.approx(0.12), pytest.approx(0.7)) and busy.switches == 5 and busy.heavy
    assert loaded(monkeypatch, threads=2, thread=5.4, process=7.8, busy=41.8).taken == 0  # one thread waits for the other
    assert loaded(monkeypatch, threads=2, thread=5.4, process=7.8, busy=41.8, steal=1.2).taken == pytest.approx(0.1)


def test_an_interval_is_as_much_wider_as_others_had_of_the_time() -> None:
    assert cpu_load.widened(Ratio(1.1, 1.05, 1.2), 0.0) == Ratio(1.1, 1.05, 1.2)
    wide = cpu_load.widened(Ratio(1.1, 1.05, 1.2), 0.2)
    assert (wide.value, wide.low, wide.high) == (1.1, pytest.approx(0.84), pytest.approx(1.5))


def test_the_core_is_read_before_the_samples_and_after_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = itertools.cycle((4e9, 3e9, 5e9, 4e9))
    monkeypatch.setattr(speed, "read", lambda target, threads: speed.Speed(next(clocks), 2.0, 5.0))
    monkeypatch.setattr(speed, "SHARE", np.inf)
    one = {"a": spin(1e-4)}
    options: dict[str, Any] = {"min_samples": 7, "min_seconds": 0, "warmup_seconds": 0}
    result = interleave(one, CpuClock(), speedometer=partial(speed.Speedometer, "avx512"), **options)
    assert result.speed == speed.Speed(4e9, 2.0, 5.0) and next(clocks) == 4e9  # of eight readings
    assert result.left_out == 0 and result.samples["a"].size == 7
    assert interleave(one, CpuClock(), **options).speed is None


@pytest.mark.parametrize("threads", [1, 2])
def test_rounds_on_a_shared_core_are_left_out_and_taken_again(monkeypatch: pytest.MonkeyPatch, timer: Timer, threads: int) -> None:
    shared = iter([False, *[True] * 9, *[False] * 1000])  # at the first reading, and after each round
    now = False

    def read(target: str, of: int) -> speed.Speed:
        nonlocal now
        assert of == threads
        now = next(shared)
        return speed.Speed(4e9, 1.0 if now else 2.0, 5.0)

    monkeypatch.setattr(speed, "read", read)
    monkeypatch.setattr(speed, "SHARE", np.inf)
    monkeypatch.setattr(clock, "PATIENCE", 1000)
    options: dict[str, Any] = {"min_samples": 10, "min_seconds": 0, "warmup_seconds": 0}
    meter = partial(speed.Speedometer, "avx512", threads)
    result = interleave({"a": lambda: timer.spend(1e-3 if now else 1e-4)}, CpuClock(threads), speedometer=meter, **options)
    assert result.samples["a"].size == 5 and result.left_out == pytest.approx(10 / 15)  # half of the 10 that were wanted
    assert result.samples["a"] == pytest.approx([1e-4] * 5) and result.speed == speed.Speed(4e9, 2.0, 5.0)


def test_all_rounds_are_kept_where_the_core_is_shared_for_long(monkeypatch: pytest.MonkeyPatch, timer: Timer) -> None:
    readings = itertools.chain([2.0], itertools.repeat(1.0))
    monkeypatch.setattr(speed, "read", lambda target, threads: speed.Speed(4e9, next(readings), 5.0))
    monkeypatch.setattr(speed, "SHARE", np.inf)
    options: dict[str, Any] = {"min_samples": 30, "min_seconds": 0, "warmup_seconds": 0}
    result = interleave({"a": timer.lasting(1e-3)}, CpuClock(), speedometer=partial(speed.Speedometer, "avx512"), **options)
    assert result.left_out == 0 and result.samples["a"].size > 30


def test_rates_are_per_cycle_of_the_clock_read_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = iter((3e9, 1e9))  # the second one was disturbed
    monkeypatch.setattr(speed.cpu, "probe_clock", lambda: next(clocks))
    monkeypatch.setattr(speed.cpu, "probe_fma", lambda target, dtype: {"avx512": 6e9, speed.PLAIN: 12e9}[target])
    assert speed.read("avx512") == speed.Speed(3e9, 2.0, 4.0)


def test_of_a_team_the_slowest_core_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {"avx512": iter((6e9, 3e9)), speed.PLAIN: iter((9e9, 12e9))}
    monkeypatch.setattr(speed.cpu, "probe_clock", lambda: 3e9)
    monkeypatch.setattr(speed.cpu, "probe_fma", lambda target, dtype: next(rates[target]))
    monkeypatch.setattr(speed, "line_seconds", lambda: 5e-8)
    assert speed.read("avx512", 2) == speed.Speed(3e9, 1.0, 3.0, 5e-8)


def test_the_middle_of_lines_is_of_those_that_were_read() -> None:
    readings = [speed.Speed(4e9, 2.0, 5.0, line) for line in (4e-8, math.nan, 2e-7)]
    assert speed.middle(readings) == speed.Speed(4e9, 2.0, 5.0, 1.2e-7)
    assert math.isnan(speed.middle(readings[1:2]).line_seconds)


def test_a_speed_is_read_back_from_an_environment_with_and_without_lines() -> None:
    known = speed.Speed(4e9, 2.0, 5.0, 5e-8)
    older = {name: text for name, text in known.as_environment().items() if name != "line_seconds"}
    assert speed.Speed.from_environment(known.as_environment()) == known
    found = speed.Speed.from_environment(older)
    assert found and found[:3] == known[:3] and math.isnan(found.line_seconds)
    assert speed.Speed.from_environment({}) is None


@pytest.mark.skipif(len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()) < 2, reason="this computer has one CPU")
def test_many_lines_in_order_take_less_each_than_one_alone() -> None:
    """Where other processes have the CPUs for as long as this looks, nothing but the answer that says so can be tested."""
    found: dict[int, list[float]] = {64: [], 4096: []}
    refused = ""
    end = time.monotonic() + 5
    while min(map(len, found.values())) < 3 and time.monotonic() < end:
        for nbytes, readings in found.items():
            try:
                readings.append(runtime.probe_line_transfer(nbytes, 64, 1e-3))
            except NativeError as error:
                refused = str(error)
    assert not refused or "no second thread had a CPU of its own" in refused
    assert all(1e-9 < one <= 1e-5 for readings in found.values() for one in readings)
    if not all(found.values()):
        pytest.skip("other processes had this computer's CPUs for 5 s: no line went from one to another")
    assert min(found[4096]) < min(found[64])  # 13 and 210 ns (two cores of Zen 3)


@pytest.mark.skipif(not cpu_load.STAT.exists(), reason="this system has no /proc/stat")
def test_a_sleeping_call_looks_like_one_that_others_kept_waiting() -> None:
    found = interleave({"a": partial(time.sleep, 2e-3)}, CpuClock(), min_samples=10, min_seconds=0, warmup_seconds=0).load
    assert found is not None and found.taken > 0.5 and found.heavy


def test_where_proc_is_not_nothing_is_counted_of_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for text in (None, "", "cpu  1 2 three"):
        monkeypatch.setattr(cpu_load, "STAT", tmp_path / "stat")
        if text is not None:
            (tmp_path / "stat").write_text(text)
        watch = cpu_load.Watch()
        spin(1e-3)()
        assert watch.load().others == 0


# ------------------------------------------------------------------------------------------------------------- probes


def test_a_buffer_that_begins_on_any_line_is_read_as_fast_as_others() -> None:
    ffi, library = runtime.library()
    raw, rate, size = np.zeros(24 << 10 | 1 << 12, np.uint8), ffi.new("double *"), 24 << 10
    start = -raw.__array_interface__["data"][0] % 512

    def read(offset: int) -> float:
        assert library.pysim_probe_read(ffi.from_buffer(raw[start + offset :]), size, 1e-3, rate) == 0
        return float(rate[0])

    found, share = [], 0.0
    while len(found) < 8 or (share < 0.75 and len(found) < 1000):  # more where other processes have the core
        found.append([read(offset) for offset in (0, 64, 448)])
        whole, *others = np.max(found, axis=0)
        share = min(others) / whole
    assert share > 0.75  # 0.55 where what lies before and after blocks of 512 bytes is read byte by byte


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
