# SPDX-License-Identifier: Apache-2.0
"""The clock of a GPU: a pair of CUDA driver events around calls on one stream.

The device must have work while the host issues a timed call. Otherwise the host's microseconds count as the device's: nearly half of the
time of an 8 us convolution that PyTorch issues in 15 us. Earlier calls do not help where the host is slower than the device, so a kernel of
one thread, WAIT, blocks the stream until the timed call and both events are enqueued. If the host took longer than that, the sample is
repeated with a longer wait, up to MAX_WAIT. Untimed calls of the same candidate for UNTIMED seconds precede it, to keep the clock and the
caches as under load. Worked number: six untimed calls precede a call of 10 us, and one of 2 ms none besides that of state "hot".
"""

import ctypes
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from pysim.errors import MissingError, NativeError
from pysim.record.state import RunState

UNTIMED, LONG_CALL, MAX_UNTIMED = 6e-5, 2e-3, 8  # seconds, seconds, calls
FIRST_WAIT, MAX_WAIT = 1e-4, 2e-3  # seconds

# A kernel that waits for a number of nanoseconds, as PTX, which the driver compiles for any device
WAIT = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry wait(.param .u64 nanoseconds)
{
    .reg .u64 %begin, %time, %most;
    .reg .pred %early;
    ld.param.u64 %most, [nanoseconds];
    mov.u64 %begin, %globaltimer;
again:
    mov.u64 %time, %globaltimer;
    sub.u64 %time, %time, %begin;
    setp.lt.u64 %early, %time, %most;
    @%early bra again;
    ret;
}
"""


class _Sample(NamedTuple):
    """Device seconds of a sample, and the host's `time.perf_counter` when all was enqueued."""

    seconds: float
    made: float


class Events:
    """A `pysim.measure.clock.Clock` by libcuda, in the context that exists already."""

    asynchronous = True

    def __init__(self, stream: int = 0) -> None:
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise MissingError(f"there is no NVIDIA driver here: {error}") from None
        self._stream, self._held = ctypes.c_void_p(stream), FIRST_WAIT
        self._pair, self._module, self._wait = (ctypes.c_void_p(), ctypes.c_void_p()), ctypes.c_void_p(), ctypes.c_void_p()
        for event in self._pair:
            self._check(self._cuda.cuEventCreate(ctypes.byref(event), 0))
        self._check(self._cuda.cuModuleLoadData(ctypes.byref(self._module), WAIT))
        self._check(self._cuda.cuModuleGetFunction(ctypes.byref(self._wait), self._module, b"wait"))

    def _check(self, status: int) -> None:
        if status:
            raise NativeError(f"the CUDA driver refused an event: error {status}")

    def _hold(self) -> None:
        """Blocks the stream for a while."""
        nanoseconds = ctypes.c_uint64(int(self._held * 1e9))
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(nanoseconds))
        self._check(self._cuda.cuLaunchKernel(self._wait, 1, 1, 1, 1, 1, 1, 0, self._stream, parameters, None))

    def seconds(self, call: Callable[[], object], times: int = 1) -> float:
        """Device seconds between two events around `times` calls."""
        while True:
            self._hold()
            started = time.perf_counter()
            timed = self._between(call, times)
            if timed.made - started < self._held or self._held >= MAX_WAIT:
                return timed.seconds
            self._held = min(MAX_WAIT, 2 * (timed.made - started))

    def _between(self, call: Callable[[], object], times: int) -> "_Sample":
        begin, end = self._pair
        self._check(self._cuda.cuEventRecord(begin, self._stream))
        for _ in range(times):
            call()
        self._check(self._cuda.cuEventRecord(end, self._stream))
        made = time.perf_counter()
        self._check(self._cuda.cuEventSynchronize(end))
        milliseconds = ctypes.c_float()
        self._check(self._cuda.cuEventElapsedTime(ctypes.byref(milliseconds), begin, end))
        return _Sample(milliseconds.value * 1e-3, made)

    def batch(self, seconds: float) -> int:
        return 1

    def leads(self, seconds: float, state: RunState) -> int:
        """The calls that keep the device busy; for state "hot" at least one."""
        return max(leads(seconds), int(state == "hot"))

    def undisturbed(self) -> AbstractContextManager[None]:
        return nullcontext()

    def __del__(self) -> None:
        for event in getattr(self, "_pair", ()):
            if event.value:
                self._cuda.cuEventDestroy_v2(event)
        if getattr(self, "_module", None):
            self._cuda.cuModuleUnload(self._module)


def leads(seconds: float) -> int:
    """Untimed calls before a timed one of `seconds`: UNTIMED seconds of them, none for calls of LONG_CALL or more."""
    return 0 if seconds >= LONG_CALL else min(MAX_UNTIMED, math.ceil(UNTIMED / max(seconds, 1e-9)))
