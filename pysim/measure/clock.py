# SPDX-License-Identifier: Apache-2.0
"""Times candidates interleaved, on a CPU or a GPU: one loop, with the processor's clock or a pair of a device's events.

Each round takes one sample of every candidate, so that a disturbance affects all of them; the order shifts by one each round. A sample is
the time of one call, or of a batch where a call is too short for the clock. Cache states:

hot     Untimed calls of the same candidate precede each sample, so that the caches hold its data and not another's: as many as it takes
        until a further call is no faster (`_Sampling.settle`).
cold    No such calls. The candidate rotates over copies of its buffers that fill twice the last-level cache (`rotating`, `copies_for`), so
        that none is cached.

In either state more untimed calls keep a device busy while the host issues a short timed call (`events`). The load by other processes is
counted (`load`), and the core's speed is read between rounds (`speed`).
"""

import gc
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pysim.arguments import word
from pysim.errors import OperandError
from pysim.machine.allowed import allowed
from pysim.measure.cpu_load import Load, Watch
from pysim.measure.speed import Speed, Speedometer
from pysim.measure.statistics import uncertainty
from pysim.record.state import TIMED, RunState

Array = NDArray[Any]
Call = Callable[[], object]

SHORT_CALL_SECONDS = 20e-6  # below this a sample is a batch
BATCH_SECONDS = 100e-6  # how long a batch should last: 1000 ticks of a 100 ns clock
MIN_ROUNDS, MAX_ROUNDS = 5, 1000  # even when the budget is spent; even when calls are short
WARMUP_SECONDS, MIN_WARMUPS = 0.02, 3
MAX_COPIES = 1 << 16  # of a candidate's buffers; a copy takes at least 12 KB of Python objects
PATIENCE = 3  # a run on shared cores lasts at most this many times as long as on cores of its own
MAX_UNTIMED, SETTLED = 6, 1.03  # untimed calls before a sample; a call is settled within this ratio of the fastest
LONG_CALL_SECONDS = 0.1  # of such calls one is warm-up enough, and further ones are no faster: they fill the caches on their own


class Clock(Protocol):
    """Measures seconds. `asynchronous`: a call returns before its work is done, so the host's time for it can be measured separately."""

    @property
    def asynchronous(self) -> bool: ...

    def seconds(self, call: Call, times: int) -> float:
        """Of this many calls together."""

    def batch(self, seconds: float) -> int:
        """Calls per sample, where a call takes `seconds`."""

    def leads(self, seconds: float, state: RunState) -> int:
        """The least number of untimed calls before a sample."""

    def undisturbed(self) -> AbstractContextManager["Watch | None"]:
        """The context in which samples are taken. It gives a counter of the load by others, None where there can be none."""


class CpuClock(NamedTuple):
    """The processor's timer. A single thread is pinned to its current CPU. `own_time`: the time that this process had a CPU for, of all its
    threads, instead of the time that passed; what others ran in between does not count."""

    threads: int = 1
    own_time: bool = False

    @property
    def asynchronous(self) -> bool:
        return False

    def seconds(self, call: Call, times: int) -> float:
        turns, now = itertools.repeat(None, times), time.process_time_ns if self.own_time else time.perf_counter_ns
        start = now()
        for _ in turns:
            call()
        return (now() - start) * 1e-9

    def batch(self, seconds: float) -> int:
        return 1 if seconds >= SHORT_CALL_SECONDS else math.ceil(BATCH_SECONDS / max(seconds, 1e-9))

    def leads(self, seconds: float, state: RunState) -> int:
        return int(state == "hot")

    @contextmanager
    def undisturbed(self) -> Iterator[Watch]:
        with pinned(self.threads):
            yield Watch(self.threads)


class Timed(NamedTuple):
    """Seconds per call: one array per candidate, all of one length. Candidates that raised have an entry in `failed` instead. `load`: by
    other processes, on a CPU; `launches`: median host seconds to issue a call, on a device; `speed`: of the core, if requested;
    `left_out`: the share of rounds without samples here, because another thread shared the core."""

    samples: dict[str, NDArray[np.float64]]
    failed: dict[str, Exception]
    load: Load | None = None
    launches: Mapping[str, float] = MappingProxyType({})
    speed: Speed | None = None
    left_out: float = 0.0


class Enough(NamedTuple):
    """The end of a run: each candidate has `min_samples` samples, and these last `min_seconds` together, or number MAX_ROUNDS, or determine
    their median to the relative error `certain`; or `budget_seconds` are spent after MIN_ROUNDS rounds."""

    min_samples: int
    min_seconds: float
    budget_seconds: float
    certain: float

    def are(self, spent: Sequence[Sequence[float]], elapsed: float) -> bool:
        """Whether the samples (one list per candidate, all of one length) suffice after `elapsed` seconds.

        Medians are tested after `min_samples` rounds and at each doubling: repeated testing would bias the intervals.
        """
        rounds = len(spent[0])
        if rounds >= MIN_ROUNDS and elapsed >= self.budget_seconds:
            return True
        if rounds < self.min_samples:
            return False
        if rounds >= MAX_ROUNDS or min(map(math.fsum, spent)) >= self.min_seconds:
            return True
        times, rest = divmod(rounds, max(1, self.min_samples))
        return not rest and times.bit_count() == 1 and all(uncertainty(np.array(one)) < self.certain for one in spent)


def interleave(
    candidates: Mapping[str, Call],
    clock: Clock,
    *,
    state: RunState = "hot",
    min_samples: int = 30,
    min_seconds: float = 0.2,
    budget_seconds: float = 30.0,
    warmup_seconds: float | None = None,
    certain: float = 0.0,
    speedometer: Callable[[], Speedometer] | None = None,
) -> Timed:
    """Times all candidates in one run, round-robin.

    The run ends when samples are `Enough`; arrays shorter than `min_samples` mean that the budget ran out. Sample i of one array and sample
    i of another are neighbours in time. Errors of the first candidate, the reference, are raised. A `speedometer` is created and read on
    the CPU that samples are taken on: rounds in which another thread shared the core are left out, and more are taken, for at most PATIENCE
    times as long; if fewer than MIN_ROUNDS remain, all are kept. OperandError for an unknown state or no candidate.
    """
    word(state, "cache state", TIMED)
    if not candidates:
        raise OperandError("there is nothing to time: give at least one candidate")
    taking: dict[str, _Sampling] = {}
    failed: dict[str, Exception] = {}

    def attempt(name: str, step: Call) -> None:
        try:
            step()
        except Exception as error:
            if name == first:
                raise
            failed[name] = error
            taking.pop(name, None)

    def enter(name: str) -> None:
        fastest = _warmed(candidates[name], clock, WARMUP_SECONDS if warmup_seconds is None else warmup_seconds)
        taking[name] = _Sampling(candidates[name], clock, clock.leads(fastest, state), clock.batch(fastest), [], [])

    first = next(iter(candidates))
    with clock.undisturbed() as watch, _no_collection():
        for name in candidates:
            attempt(name, partial(enter, name))
        if state == "hot" and len(taking) > 1 and not clock.asynchronous:
            for name in list(taking):
                attempt(name, taking[name].settle)
        speeds = speedometer() if speedometer else None
        enough = Enough(min_samples, min_seconds, budget_seconds, certain)
        rounds, kept = _take_rounds(taking, attempt, enough, speeds)
        load, speed = watch.load() if watch else None, speeds.speed() if speeds else None
    launches = {name: float(np.median(one.launched)) for name, one in taking.items() if one.launched}
    samples = {name: np.array(one.spent)[kept] / one.batch for name, one in taking.items()}
    return Timed(samples, failed, load, launches, speed, 1 - kept.size / rounds)


def _take_rounds(
    taking: "dict[str, _Sampling]", attempt: Callable[[str, Call], None], enough: Enough, speeds: Speedometer | None
) -> tuple[int, NDArray[np.int64]]:
    """Takes rounds of samples until there are enough; their number and those to keep. Half of the rounds that would be enough on cores of
    their own must have had them, or PATIENCE ends."""
    needed, deadline, start = 0, math.inf, time.perf_counter()
    for rounds in itertools.count(1):
        names = list(taking)
        shift = (rounds - 1) % len(names)
        for name in names[shift:] + names[:shift]:
            attempt(name, taking[name].sample)
        elapsed = time.perf_counter() - start
        if not needed and enough.are([one.spent for one in taking.values()], elapsed):
            needed, deadline = rounds, min(PATIENCE * elapsed, max(elapsed, enough.budget_seconds))
        if speeds:
            speeds.look(rounds, now=rounds == needed)
        if needed and (not speeds or elapsed >= deadline or 2 * np.count_nonzero(speeds.alone()) >= needed):
            break
    kept = np.flatnonzero(speeds.alone()) if speeds else np.arange(rounds)
    return rounds, kept if kept.size >= MIN_ROUNDS else np.arange(rounds)


@dataclass
class _Sampling:
    """A candidate: its untimed calls before a sample (`leads`), calls per sample (`batch`), the seconds of its samples, and the host's
    seconds per untimed call."""

    call: Call
    clock: Clock
    leads: int
    batch: int
    spent: list[float]
    launched: list[float]

    def settle(self) -> None:
        """Sets the number of untimed calls after which a further call is no faster. One is not enough where an L3 keeps a line evicted from
        L2 only at its second use: with 9.4 MB of filters calls take 596, 514, 411, 399, 397 us in order (Granite Rapids)."""
        if self.batch > 1:  # so short that its data fits inner levels
            return
        spent = [self.clock.seconds(self.call, 1)]
        if spent[0] >= LONG_CALL_SECONDS:
            return
        spent += [self.clock.seconds(self.call, 1) for _ in range(MAX_UNTIMED)]
        self.leads = max(self.leads, next(made for made, one in enumerate(spent) if one <= SETTLED * min(spent)))

    def sample(self) -> None:
        start = time.perf_counter()
        for _ in range(self.leads):
            self.call()
        if self.leads and self.clock.asynchronous:
            self.launched.append((time.perf_counter() - start) / self.leads)
        self.spent.append(self.clock.seconds(self.call, self.batch))


def _warmed(call: Call, clock: Clock, seconds: float) -> float:
    """Warms up for `seconds`, at least MIN_WARMUPS calls unless the first is long (on a CPU); seconds of the fastest call."""
    end = time.perf_counter() + seconds
    if (fastest := clock.seconds(call, 1)) >= LONG_CALL_SECONDS and not clock.asynchronous:
        return fastest
    fastest = min(fastest, *(clock.seconds(call, 1) for _ in range(MIN_WARMUPS - 1)))
    while time.perf_counter() < end:
        fastest = min(fastest, clock.seconds(call, 1))
    return fastest


@contextmanager
def pinned(threads: int = 1) -> Iterator[int | None]:
    """Pins the calling thread to its current CPU if `threads` is 1, and restores its affinity after."""
    if threads != 1 or not hasattr(os, "sched_setaffinity"):
        yield None
        return
    allowed()  # of the program, before this mask
    before = os.sched_getaffinity(0)
    cpu = _current_cpu(before)
    os.sched_setaffinity(0, {cpu})
    try:
        yield cpu
    finally:
        os.sched_setaffinity(0, before)


def _current_cpu(cpus: set[int]) -> int:
    """The CPU that the scheduler chose for this thread, usually the least busy one; the last allowed one where unknown."""
    try:
        stat = Path("/proc/thread-self/stat").read_text()
        cpu = int(stat.rpartition(")")[2].split()[36])  # field 39 of proc(5); the name before it may hold spaces
    except (OSError, ValueError, IndexError):
        cpu = -1
    return cpu if cpu in cpus else max(cpus)


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection inside a sample."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# The cold state


def copies_for(bytes_per_call: int, last_level_bytes: int) -> int:
    """Copies of a call's buffers that fill twice the last-level cache, at least two. OperandError for more than MAX_COPIES."""
    count = max(2, -(-2 * last_level_bytes // max(1, bytes_per_call)))
    if count > MAX_COPIES:
        raise OperandError(
            f"cold caches: {count:,} copies of {bytes_per_call:,} bytes would fill twice the last level, and at most {MAX_COPIES:,} "
            f"are made; expected a problem of {-(-2 * last_level_bytes // MAX_COPIES):,} bytes or more, or hot caches"
        )
    return count


def rotating(calls: Sequence[Call]) -> Call:
    """One callable that cycles through `calls`, each with its own buffers: the "cold" form of a candidate.

    Each is called once here, so that first touches and lazy set-up are outside every sample.
    """
    for call in calls:
        call()
    turn = itertools.cycle(calls)
    return lambda: next(turn)()
