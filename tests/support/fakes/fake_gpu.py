# SPDX-License-Identifier: Apache-2.0
"""A GPU for tests where there is none: its memory is the host's, any run takes a millisecond; tests bring the arithmetic."""

import ctypes
import math
from typing import Any

import numpy as np
import pytest

from pysim import api
from pysim.caches import LruCache
from pysim.errors import NativeError
from pysim.machine.load import load_any
from pysim.measure.events import Events
from pysim.problem.gemm import Gemm
from pysim.record.cost import Cost
from pysim.record.plan import Plan
from pysim.record.schedule import GpuSchedule
from pysim.registry.cuda import conv_kernels, gemm_kernels
from pysim.registry.native_files import declarations
from pysim.runtime import arrays, cuda


def cuda_ffi() -> Any:
    import cffi

    ffi = cffi.FFI()
    ffi.cdef(declarations("pysim.h", "pysim_cuda.h"))
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


def multiply(pointers: tuple[int, int, int]) -> None:
    """The product of two 16 x 16 matrices into the third."""
    a, b, c = (np.frombuffer((ctypes.c_char * (16 * 16 * 4)).from_address(at), np.float32).reshape(16, 16) for at in pointers)
    c[...] = a.astype(np.float64) @ b


class Clock:
    """A device's clock that says a millisecond."""

    batch, leads, undisturbed, asynchronous = Events.batch, Events.leads, Events.undisturbed, Events.asynchronous

    def seconds(self, call, times) -> float:
        for _ in range(times):
            call()
        return 1e-3 * times


def gpu_plan(workload: Any, on: Any, *, layout: Any = "nchw", memory_limit: int | None = None, **_: Any) -> Plan:
    """A plan of some kernel of the problem's type, which `planner.plan` would not choose; what it needs beside operands is made up."""
    cost = Cost(cycles=1, seconds=2e-4, bound_by="compute", levels={}, terms={})
    if isinstance(workload, Gemm):
        schedule: Any = GpuSchedule(
            next(row.name for row in gemm_kernels() if row.dtype == workload.dtype and not row.below), "data_parallel", 1, False, 8
        )
        algorithm = "gemm"
    else:
        rows = [row for row in conv_kernels() if row.dtype == workload.dtype and not row.makes_product and row.outputs == 1]
        row = next(row for row in rows if row.algorithm != "depthwise" and row.variant != "tiled")  # those take few channels alone
        schedule, algorithm = GpuSchedule(row.name, "data_parallel", 1, False, 1), row.algorithm
    return Plan(
        workload=workload, on=on, model="full", state="hot", algorithm=algorithm,
        schedule=schedule, workspace_bytes=0 if memory_limit == 0 else 256, cost=cost, considered=(), rejected=(), layout=layout,
        memory_limit=memory_limit,
    )  # fmt: skip


@pytest.fixture
def host_device(monkeypatch):
    """A device whose memory is the host's and which launches nothing."""
    ffi = cuda_ffi()

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
    monkeypatch.setattr(api, "_ready", LruCache(8))
    return lib
