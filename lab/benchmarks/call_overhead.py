# SPDX-License-Identifier: Apache-2.0
"""What a call of `pysim.conv2d` and `pysim.gemm` costs beyond the kernel, from the second call of a shape on.

    overhead = time of the call - time of its native calls alone, on the same plan, structs and arrays

    python lab/benchmarks/call_overhead.py

Each time is the least of several means over many calls, since on a shared computer only the least is undisturbed. On a GPU, with PyTorch
installed, it is the host's time to enqueue the work; the problems are small enough for the device to keep up.
"""

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import pysim
from pysim.errors import MissingError
from pysim.runtime import cpu as runtime
from pysim.runtime import cpu_launch, cuda

CALLS, ROUNDS = 100, 100
CONV, IMAGE, FILTERS = "conv:ic4ih6oc8kh3ph1", (1, 4, 6, 6), (8, 4, 3, 3)
GEMM, EDGE = "gemm:8x8x8", 8


def microseconds(calls: dict[str, Callable[[], Any]], after: Callable[[], Any] = lambda: None) -> dict[str, float]:
    """The least mean time of each call, all in turns; `after` waits, untimed, for what calls began: few enough that none waits for a place
    in the device's queue."""
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call()
            after()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            least[name] = min(least[name], (time.perf_counter() - start) / CALLS)
            after()
    return {name: seconds * 1e6 for name, seconds in least.items()}


def native_calls(launch: Any, operands: list[Any]) -> Callable[[], Any]:
    """The native calls of a launch on the CPU and nothing else; a convolution's filters are packed first, as in each call."""
    ffi, lib = runtime.library()
    pointers = [ffi.from_buffer(one) for one in operands]
    problem, schedule = launch._problem, launch._schedule
    job = runtime.open_job(problem, schedule)
    work = ffi.from_buffer(runtime.aligned(launch.workspace_bytes, np.uint8))
    epilogue, rest = ffi.new("pysim_epilogue *", [1.0, 0.0, ffi.NULL, 0]), (work, launch.workspace_bytes, ffi.NULL)
    if launch._product:
        return lambda: lib.pysim_run_job(job, epilogue, 1, *pointers, *rest)
    x, w, y = pointers
    size = launch.prepared_bytes
    packed = ffi.from_buffer(runtime.aligned(size, np.uint8))

    def call() -> None:
        lib.pysim_prepare(problem, schedule, w, packed, size)
        lib.pysim_run_job(job, epilogue, 1, x, packed, y, *rest)

    return call


def on_cpu() -> dict[str, dict[str, float]]:
    x, w, y = (np.ones(shape, np.float32) for shape in (IMAGE, FILTERS, (1, 8, 6, 6)))
    a, c = np.ones((EDGE, EDGE), np.float32), np.empty((EDGE, EDGE), np.float32)
    conv, product = pysim.plan(CONV), pysim.plan(GEMM)
    prepared = pysim.prepare(CONV, w, plan=conv)
    calls = {
        "conv2d": lambda: pysim.conv2d(x, w, padding=1),
        "conv2d out=": lambda: pysim.conv2d(x, w, padding=1, out=y),
        "gemm": lambda: pysim.gemm(a, a),
        "gemm out=": lambda: pysim.gemm(a, a, out=c),
        "prepared out=": lambda: prepared(x, y),
    }
    ffi, lib = runtime.library()
    launch, work = prepared._launch, runtime.aligned(prepared.workspace_bytes, np.uint8)
    buffers = [ffi.from_buffer(x), prepared._prepared, ffi.from_buffer(y), ffi.from_buffer(work)]
    job = runtime.open_job(launch._problem, launch._schedule)
    native = {
        "conv2d": native_calls(cpu_launch.Launch(conv.workload, conv.schedule), [x, w, y]),
        "gemm": native_calls(cpu_launch.Launch(product.workload, product.schedule), [a, a, c]),
        "prepared": lambda: lib.pysim_run_job(job, prepared._epilogue, 1, *buffers, work.nbytes, ffi.NULL),
    }
    return figures(calls, native)


def figures(
    calls: dict[str, Callable[[], Any]], native: dict[str, Callable[[], Any]], after: Callable[[], Any] = lambda: None
) -> dict[str, dict[str, float]]:
    """Of calls, whose first word is the name of the native call that each makes."""
    found = microseconds(calls | {f"native {name}": call for name, call in native.items()}, after)
    alone = {name: found[f"native {name.split()[0]}"] for name in calls}
    return {
        name: {"call_us": round(found[name], 2), "native_us": round(alone[name], 2), "overhead_us": round(found[name] - alone[name], 2)}
        for name in calls
    }


def on_gpu() -> dict[str, dict[str, float]]:
    """Of PyTorch's tensors; PyTorch's own calls on the same ones stand beside them."""
    import torch

    device = {"device": "cuda", "dtype": torch.float16}
    x, w, a = torch.ones(IMAGE, **device), torch.ones(FILTERS, **device), torch.ones((EDGE, EDGE), **device)
    y, c = pysim.conv2d(x, w, padding=1), pysim.gemm(a, a)
    conv, product = (pysim.plan(f"{problem}:f16", "cuda") for problem in (CONV, GEMM))
    stream, wait = torch.cuda.current_stream().cuda_stream, torch.cuda.synchronize
    launches: dict[str, Any] = {
        "conv2d": cuda.Launch(conv.workload, conv.schedule).on((x.data_ptr(), w.data_ptr(), y.data_ptr()), stream=stream),
        "gemm": cuda.Launch(product.workload, product.schedule).on((a.data_ptr(), a.data_ptr(), c.data_ptr()), stream=stream),
    }
    calls = {
        "conv2d": lambda: pysim.conv2d(x, w, padding=1),
        "conv2d out=": lambda: pysim.conv2d(x, w, padding=1, out=y),
        "gemm": lambda: pysim.gemm(a, a),
        "gemm out=": lambda: pysim.gemm(a, a, out=c),
    }
    own = {"torch conv2d": lambda: torch.nn.functional.conv2d(x, w, padding=1), "torch matmul": lambda: a @ a}
    theirs = {name: {"call_us": round(found, 2)} for name, found in microseconds(own, wait).items()}
    return figures(calls, {name: launch.run for name, launch in launches.items()}, wait) | theirs


def main() -> None:
    result: dict[str, Any] = {"cpu": on_cpu()}
    try:
        cuda.devices()
        result["gpu"] = {"device": cuda.devices()[0].name, **on_gpu()}
    except (MissingError, ImportError) as error:
        result["gpu"] = f"not measured: {error}"
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
