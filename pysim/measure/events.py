# SPDX-License-Identifier: Apache-2.0
"""A device's own clock: a pair of events of the CUDA driver around calls on one stream, whoever makes them.

While the host makes a timed call the device must have work, or the time that the host needs for it, some microseconds, counts as the
device's: of a convolution of 8 us that PyTorch calls in 15 nearly half. Calls before it do not help where the host is slower than the
device, so a kernel of one thread, WAIT, holds the stream until the timed call and both events are in it; where the host took longer than
that, the sample is taken again and held for longer, up to MOST_HELD. Untimed calls of the same contender, LEAD seconds of them, go before:
they keep the clock and the caches as work does. Worked number: a call of 10 us is led by six, one of 2 ms by none but that of state "hot".
"""

import ctypes
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from pysim.errors import MissingError, NativeError
from pysim.record.state import RunState

LEAD, LONG, MOST_LEADS = 6e-5, 2e-3, 8  # seconds, seconds, calls
HELD, MOST_HELD = 1e-4, 2e-3  # seconds

# A thread that waits for so many nanoseconds; PTX, which the driver translates for any device
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
    """Device seconds of a sample, and when the host had made it, of `time.perf_counter`."""

    seconds: float
    made: float


class Events:
    """A `pysim.measure.clock.Clock` of libcuda; the library must have made a context before."""

    asynchronous = True

    def __init__(self, stream: int = 0) -> None:
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise MissingError(f"there is no NVIDIA driver here: {error}") from None
        self._stream, self._held = ctypes.c_void_p(stream), HELD
        self._pair, self._module, self._wait = (ctypes.c_void_p(), ctypes.c_void_p()), ctypes.c_void_p(), ctypes.c_void_p()
        for event in self._pair:
            self._check(self._cuda.cuEventCreate(ctypes.byref(event), 0))
        self._check(self._cuda.cuModuleLoadData(ctypes.byref(self._module), WAIT))
        self._check(self._cuda.cuModuleGetFunction(ctypes.byref(self._wait), self._module, b"wait"))

    def _check(self, status: int) -> None:
        if status:
            raise NativeError(f"the CUDA driver refused an event: error {status}")

    def _hold(self) -> None:
        """Holds the stream for a while."""
        nanoseconds = ctypes.c_uint64(int(self._held * 1e9))
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(nanoseconds))
        self._check(self._cuda.cuLaunchKernel(self._wait, 1, 1, 1, 1, 1, 1, 0, self._stream, parameters, None))

    def seconds(self, call: Callable[[], object], times: int = 1) -> float:
        """Device seconds between two events around so many calls."""
        while True:
            self._hold()
            started = time.perf_counter()
            found = self._between(call, times)
            if found.made - started < self._held or self._held >= MOST_HELD:
                return found.seconds
            self._held = min(MOST_HELD, 2 * (found.made - started))

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
        """What keeps the device busy; of long calls what the cache state asks for."""
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
    """How many untimed calls keep the device busy before a timed one that takes so long: LEAD seconds of them, none where it takes LONG."""
    return 0 if seconds >= LONG else min(MOST_LEADS, math.ceil(LEAD / max(seconds, 1e-9)))
