# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N802 (names of the driver)
"""The clock of a device: what its stream is given, and in which order, by a driver that notes it."""

import ctypes
import time
from typing import Any

import pytest

from pysim.errors import NativeError
from pysim.measure import events


class Driver:
    """libcuda, as far as the clock asks for it; `elapsed`: milliseconds between its events, `status` what launches return."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.held: list[float] = []
        self.elapsed, self.status = 0.25, 0

    def cuEventCreate(self, event: Any, flags: int) -> int:
        event._obj.value = 1 + len(self.seen)
        return 0

    def cuModuleLoadData(self, module: Any, image: bytes) -> int:
        assert b".entry wait" in image
        module._obj.value = 7
        return 0

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        function._obj.value = 8
        return 0

    def cuLaunchKernel(self, function: Any, *given: Any) -> int:
        self.held.append(ctypes.cast(given[8][0], ctypes.POINTER(ctypes.c_uint64)).contents.value * 1e-9)
        self.seen.append("hold")
        return self.status

    def cuEventRecord(self, event: Any, stream: Any) -> int:
        self.seen.append("event")
        return 0

    def cuEventSynchronize(self, event: Any) -> int:
        self.seen.append("wait")
        return 0

    def cuEventElapsedTime(self, milliseconds: Any, begin: Any, end: Any) -> int:
        milliseconds._obj.value = self.elapsed
        return 0

    def cuEventDestroy_v2(self, event: Any) -> int:
        return 0

    def cuModuleUnload(self, module: Any) -> int:
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    found = Driver()
    monkeypatch.setattr(events.ctypes, "CDLL", lambda name: found)
    return found


def test_a_stream_is_held_until_the_timed_call_and_both_events_are_in_it(driver):
    clock = events.Events()
    assert clock.seconds(lambda: driver.seen.append("call")) == pytest.approx(0.25e-3)
    assert driver.seen[-5:] == ["hold", "event", "call", "event", "wait"]


def test_a_sample_that_the_host_made_too_slowly_is_taken_again_and_held_for_longer(driver):
    clock = events.Events()
    clock.seconds(lambda: time.sleep(3 * events.FIRST_WAIT))
    assert driver.seen.count("hold") > 1
    assert driver.held[0] == pytest.approx(events.FIRST_WAIT)
    assert driver.held[-1] > 3 * events.FIRST_WAIT


def test_a_call_that_waits_for_the_device_itself_is_timed_all_the_same(driver):
    clock = events.Events()
    assert clock.seconds(lambda: time.sleep(2 * events.MAX_WAIT)) == pytest.approx(0.25e-3)
    assert driver.held[-1] == pytest.approx(events.MAX_WAIT)


def test_a_driver_that_refuses_says_so(driver):
    clock = events.Events()
    driver.status = 700
    with pytest.raises(NativeError, match="700"):
        clock.seconds(lambda: None)
