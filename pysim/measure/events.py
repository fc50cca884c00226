# SPDX-License-Identifier: Apache-2.0
"""A device's own clock: a pair of events of the CUDA driver around calls on one stream, whoever makes them.

While the host makes a timed call the device must have work, or the time that the host needs for it, some microseconds, counts as the
device's: of calls that take tens of microseconds 20 to 30 %. So untimed calls of the same contender go before, LEAD seconds of them.
Worked number: a call of 10 us is led by six, one of 2 ms by none but that of state "hot".
"""

import ctypes
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from pysim.errors import MissingError, NativeError
from pysim.record.plan import State

LEAD, LONG, MOST_LEADS = 6e-5, 2e-3, 8  # seconds, seconds, calls


class Events:
    """A `pysim.measure.clock.Clock` of libcuda; the library must have made a context before."""

    def __init__(self, stream: int = 0) -> None:
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise MissingError(f"there is no NVIDIA driver here: {error}") from None
        self._stream = ctypes.c_void_p(stream)
        self._pair = (ctypes.c_void_p(), ctypes.c_void_p())
        for event in self._pair:
            self._check(self._cuda.cuEventCreate(ctypes.byref(event), 0))

    def _check(self, status: int) -> None:
        if status:
            raise NativeError(f"the CUDA driver refused an event: error {status}")

    def seconds(self, call: Callable[[], object], times: int = 1) -> float:
        """Device seconds between two events around so many calls."""
        begin, end = self._pair
        self._check(self._cuda.cuEventRecord(begin, self._stream))
        for _ in range(times):
            call()
        self._check(self._cuda.cuEventRecord(end, self._stream))
        self._check(self._cuda.cuEventSynchronize(end))
        milliseconds = ctypes.c_float()
        self._check(self._cuda.cuEventElapsedTime(ctypes.byref(milliseconds), begin, end))
        return milliseconds.value * 1e-3

    def batch(self, seconds: float) -> int:
        return 1

    def leads(self, seconds: float, state: State) -> int:
        """What keeps the device busy; of long calls what the cache state asks for."""
        return max(leads(seconds), int(state == "hot"))

    def undisturbed(self) -> AbstractContextManager[None]:
        return nullcontext()

    def __del__(self) -> None:
        for event in getattr(self, "_pair", ()):
            if event.value:
                self._cuda.cuEventDestroy_v2(event)


def leads(seconds: float) -> int:
    """How many untimed calls keep the device busy before a timed one that takes so long: LEAD seconds of them, none where it takes LONG."""
    return 0 if seconds >= LONG else min(MOST_LEADS, math.ceil(LEAD / max(seconds, 1e-9)))
