# SPDX-License-Identifier: Apache-2.0
"""How contenders are timed, on a CPU and on a GPU: one loop, whose clock is the processor's or a pair of a device's events.

All contenders take turns, one sample each per round, so that what disturbs the machine disturbs all of them; the order shifts by one each
round. A sample is the time of one call, or of a batch where a call is too short for the clock. State "hot": untimed calls of the same
contender precede each sample, so the caches hold its own data, not the other's: as many as it takes until another takes no less
(`_Taking.settle`). State "cold": no such call, and the contender itself rotates over copies of its buffers that fill twice the last-level
cache (`rotating`, `copies_for`), so that it finds none of them in a cache. A device is kept busy while the host makes a short timed call:
more untimed calls precede it, in either state (`events`).
Who else had the processor meanwhile is counted (`load`), and how fast the core was is read between rounds (`speed`).
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
from pysim.measure.load import Load, Watch
from pysim.measure.speed import Speed, Speedometer
from pysim.measure.statistics import uncertainty
from pysim.record.state import TIMED, RunState

Array = NDArray[Any]
Call = Callable[[], object]

SHORT_CALL_SECONDS = 20e-6  # below this a sample is a batch
BATCH_SECONDS = 100e-6  # how long a batch should last: 1000 ticks of a 100 ns clock
FEWEST_ROUNDS, MOST_ROUNDS = 5, 1000  # even when the budget is spent; even when calls are short
WARMUP_SECONDS, FEWEST_WARMUPS = 0.02, 3
MOST_COPIES = 1 << 16  # of a contender's buffers; one is about 12 KB of arrays and what calls them, however small the problem
MOST_LEADS, SETTLED = 6, 1.03  # untimed calls before a sample; what a call may take over the least of them


class Clock(Protocol):
    """What tells seconds. `asynchronous`: a call returns before its work is done, so that the host's time for it can be told apart."""

    @property
    def asynchronous(self) -> bool: ...

    def seconds(self, call: Call, times: int) -> float:
        """That so many calls take together."""

    def batch(self, seconds: float) -> int:
        """How many calls a sample has, one of which takes so long."""

    def leads(self, seconds: float, state: RunState) -> int:
        """How many untimed calls precede a sample at least."""

    def undisturbed(self) -> AbstractContextManager["Watch | None"]:
        """In which samples are taken, and what counts who else had the processor meanwhile; None where nobody could."""


class CpuClock(NamedTuple):
    """The processor's timer; the calling thread stays on the CPU that it runs on where it is the only one."""

    threads: int = 1

    @property
    def asynchronous(self) -> bool:
        return False

    def seconds(self, call: Call, times: int) -> float:
        turns = itertools.repeat(None, times)
        start = time.perf_counter_ns()
        for _ in turns:
            call()
        return (time.perf_counter_ns() - start) * 1e-9

    def batch(self, seconds: float) -> int:
        return 1 if seconds >= SHORT_CALL_SECONDS else math.ceil(BATCH_SECONDS / max(seconds, 1e-9))

    def leads(self, seconds: float, state: RunState) -> int:
        return int(state == "hot")

    @contextmanager
    def undisturbed(self) -> Iterator[Watch]:
        with pinned(self.threads):
            yield Watch(self.threads)


class Timed(NamedTuple):
    """Seconds per call, one array per contender and all of one length; those that failed on the way have none, but their error. `load`:
    who else had the processor, where it was the clock's; `launches`: the host's seconds for making a call, median, of a busy device;
    `speed`: of the core, where it was asked for."""

    samples: dict[str, NDArray[np.float64]]
    failed: dict[str, Exception]
    load: Load | None = None
    launches: Mapping[str, float] = MappingProxyType({})
    speed: Speed | None = None


class Enough(NamedTuple):
    """When a run ends: each contender has `min_samples` samples that last `min_seconds` together (or MOST_ROUNDS of them), or whose median
    is known to the share `certain` of it; or `budget_seconds` are spent and FEWEST_ROUNDS rounds are done."""

    min_samples: int
    min_seconds: float
    budget_seconds: float
    certain: float

    def are(self, spent: Sequence[Sequence[float]], elapsed: float) -> bool:
        """Whether these seconds, one list per contender and all of one length, are enough after so many seconds of the run.

        Medians are looked at after `min_samples` rounds, and whenever those have doubled: few looks keep intervals honest.
        """
        rounds = len(spent[0])
        if rounds >= FEWEST_ROUNDS and elapsed >= self.budget_seconds:
            return True
        if rounds < self.min_samples:
            return False
        if rounds >= MOST_ROUNDS or min(map(math.fsum, spent)) >= self.min_seconds:
            return True
        times, rest = divmod(rounds, max(1, self.min_samples))
        return not rest and times.bit_count() == 1 and all(uncertainty(np.array(one)) < self.certain for one in spent)


def interleave(
    contenders: Mapping[str, Call],
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
    """Time all contenders in one run, round-robin.

    Ends when samples are `Enough`; an array shorter than `min_samples` says that the budget ran out. Sample i of one array and sample i of
    another are neighbours in time. The first contender is the one that the others are timed beside: what it raises is raised. A
    `speedometer` is made, and read, on the processor that samples are taken on. OperandError for an unknown state or no contender.
    """
    word(state, "cache state", TIMED)
    if not contenders:
        raise OperandError("there is nothing to time: give at least one contender")
    taking: dict[str, _Taking] = {}
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
        fastest = _warmed(contenders[name], clock, WARMUP_SECONDS if warmup_seconds is None else warmup_seconds)
        taking[name] = _Taking(contenders[name], clock, clock.leads(fastest, state), clock.batch(fastest), [], [])

    first = next(iter(contenders))
    with clock.undisturbed() as watch, _no_collection():
        for name in contenders:
            attempt(name, partial(enter, name))
        if state == "hot" and len(taking) > 1 and not clock.asynchronous:
            for name in list(taking):
                attempt(name, taking[name].settle)
        speeds = speedometer() if speedometer else None
        enough, start = Enough(min_samples, min_seconds, budget_seconds, certain), time.perf_counter()
        for turn in itertools.count():
            names = list(taking)
            shift = turn % len(names)
            for name in names[shift:] + names[:shift]:
                attempt(name, taking[name].sample)
            if speeds:
                speeds.look()
            if enough.are([one.spent for one in taking.values()], time.perf_counter() - start):
                break
        load, speed = watch.load() if watch else None, speeds.speed() if speeds else None
    launches = {name: float(np.median(one.launched)) for name, one in taking.items() if one.launched}
    return Timed({name: np.array(one.spent) / one.batch for name, one in taking.items()}, failed, load, launches, speed)


@dataclass
class _Taking:
    """A contender, how many of its calls precede a sample and how many make one, the seconds of its samples, and the host's for each call
    before them."""

    call: Call
    clock: Clock
    leads: int
    batch: int
    spent: list[float]
    launched: list[float]

    def settle(self) -> None:
        """Behind other contenders as many untimed calls as it takes until a call is as fast as later ones. An L3 may keep what L2 gives up
        only when that has come again: 9.4 MB of filters take 596, 514, 411, 399, 397 us from call to call (Granite Rapids)."""
        if self.batch > 1:  # so short that its data lies further in
            return
        spent = [self.clock.seconds(self.call, 1) for _ in range(MOST_LEADS + 1)]
        self.leads = max(self.leads, next(made for made, one in enumerate(spent) if one <= SETTLED * min(spent)))

    def sample(self) -> None:
        start = time.perf_counter()
        for _ in range(self.leads):
            self.call()
        if self.leads and self.clock.asynchronous:
            self.launched.append((time.perf_counter() - start) / self.leads)
        self.spent.append(self.clock.seconds(self.call, self.batch))


def _warmed(call: Call, clock: Clock, seconds: float) -> float:
    """Calls until so many seconds have passed, at least FEWEST_WARMUPS times; seconds of the fastest."""
    end = time.perf_counter() + seconds
    fastest = min(clock.seconds(call, 1) for _ in range(FEWEST_WARMUPS))
    while time.perf_counter() < end:
        fastest = min(fastest, clock.seconds(call, 1))
    return fastest


@contextmanager
def pinned(threads: int = 1) -> Iterator[int | None]:
    """Keep the calling thread on the CPU that it runs on where `threads` is 1; its affinity is restored after."""
    if threads != 1 or not hasattr(os, "sched_setaffinity"):
        yield None
        return
    before = os.sched_getaffinity(0)
    cpu = _current_cpu(before)
    os.sched_setaffinity(0, {cpu})
    try:
        yield cpu
    finally:
        os.sched_setaffinity(0, before)


def _current_cpu(allowed: set[int]) -> int:
    """Where the scheduler has put this thread: as a rule the least busy CPU. The last one where it does not say."""
    try:
        stat = Path("/proc/thread-self/stat").read_text()
        cpu = int(stat.rpartition(")")[2].split()[36])  # field 39 of proc(5); the name before it may hold spaces
    except (OSError, ValueError, IndexError):
        cpu = -1
    return cpu if cpu in allowed else max(allowed)


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
    """How many copies of a call's buffers fill twice the last-level cache; at least two. OperandError where they are too many to hold."""
    count = max(2, -(-2 * last_level_bytes // max(1, bytes_per_call)))
    if count > MOST_COPIES:
        raise OperandError(
            f"cold caches: {count:,} copies of {bytes_per_call:,} bytes would fill twice the last level, and at most {MOST_COPIES:,} "
            f"are made; right is a problem of {-(-2 * last_level_bytes // MOST_COPIES):,} bytes or more, or hot caches"
        )
    return count


def rotating(calls: Sequence[Call]) -> Call:
    """One callable that makes `calls` in turn, each with its own buffers: the "cold" form of a contender.

    Each is called once here, so that first touches and lazy set-up lie outside every sample.
    """
    for call in calls:
        call()
    turn = itertools.cycle(calls)
    return lambda: next(turn)()
