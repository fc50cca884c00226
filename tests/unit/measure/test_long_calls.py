# SPDX-License-Identifier: Apache-2.0
"""Timing of calls that take so long that a warm-up of their own would take longer than their samples."""

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import NamedTuple

from pysim.measure import clock
from pysim.measure.clock import Call, interleave


def test_a_long_call_is_made_twice_before_its_samples() -> None:
    """One call to warm up and one to see that it is still long; a short one is settled by more."""

    class Told(NamedTuple):
        takes: float
        asynchronous: bool = False

        def seconds(self, call: Call, times: int) -> float:
            for _ in range(times):
                call()
            return self.takes * times

        def batch(self, seconds: float) -> int:
            return 1

        def leads(self, seconds: float, state: str) -> int:
            return 1

        def undisturbed(self) -> AbstractContextManager[None]:
            return nullcontext()

    for takes, before in ((2 * clock.LONG_CALL_SECONDS, 2), (clock.LONG_CALL_SECONDS / 2, clock.MIN_WARMUPS + clock.MAX_UNTIMED + 1)):
        calls: list[str] = []
        candidates = {name: partial(calls.append, name) for name in "ab"}
        interleave(candidates, Told(takes), min_samples=5, min_seconds=0, warmup_seconds=0)
        assert calls.count("a") == before + 2 * 5
