# SPDX-License-Identifier: Apache-2.0
"""A GPU for tests where there is none: its memory is the host's, any run takes a millisecond; tests bring the arithmetic."""

import ctypes
import math
from typing import Any

import numpy as np
import pytest

from pysim import api
from pysim.errors import NativeError
from pysim.machine.load import load_any
from pysim.once import Recent
from pysim.registry.rows import native_file
from pysim.runtime import arrays, cuda


def ffi_of_header() -> Any:
    import cffi

    ffi = cffi.FFI()
    ffi.cdef(native_file("pysim.h").read_text().partition("/* cdef begin */")[2].partition("/* cdef end */")[0])
    return ffi


class HostArray(cuda.DeviceArray):
    """`DeviceArray` in host memory, of which there is LIMIT."""

    LIMIT = 1 << 30

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self.shape, self.dtype = shape, dtype
        self.nbytes = math.prod(shape) * arrays.SIZES[dtype]
        if self.nbytes > self.LIMIT:
            raise NativeError("device memory: out of memory")
        self.memory = np.full(self.nbytes, 0xFF, np.uint8)
        self.pointer = self.memory.ctypes.data

    def __del__(self) -> None:
        pass


class Clock:
    """Events that say a millisecond."""

    def seconds(self, call) -> float:
        call()
        return 1e-3


@pytest.fixture
def host_device(monkeypatch):
    """A device whose memory is the host's and which launches nothing."""
    ffi = ffi_of_header()

    class Lib:
        PYSIM_TO_DEVICE, PYSIM_TO_HOST, PYSIM_ON_DEVICE = 1, 2, 3

        def __init__(self) -> None:
            self.synchronized: list[int] = []

        def pysim_cuda_copy(self, to, source, nbytes, direction, stream) -> int:
            ctypes.memmove(int(ffi.cast("uintptr_t", to)), int(ffi.cast("uintptr_t", source)), nbytes)
            return 0

        def pysim_cuda_synchronize(self, stream) -> int:
            self.synchronized.append(int(ffi.cast("uintptr_t", stream)))
            return 0

    lib = Lib()
    h200 = load_any("h200")
    here = cuda.Device(
        0, "NVIDIA H200", 90, h200.sms.value, 1 << 37, 62914560, 233472, 232448, 65536, 2048, 32, 1980000, 3201000, 13000, 13000
    )
    monkeypatch.setattr(cuda, "library", lambda: (ffi, lib))
    monkeypatch.setattr(cuda, "devices", lambda: (here,))
    monkeypatch.setattr(cuda, "DeviceArray", HostArray)
    monkeypatch.setattr(cuda, "ready", Recent(8))
    monkeypatch.setattr(api, "_choosers", Recent(8))
    return lib
