# SPDX-License-Identifier: Apache-2.0
"""Others' matrix products on a GPU: cuBLAS, timed, and nvidia-matmul-heuristics, which estimates times without a GPU.

cuBLAS is called through ctypes (`cublasGemmEx`, cuBLAS Library documentation) from whichever package brought it: the wheels that PyTorch
and CuPy install, or the system. Its matrices are column-major, so C = A B is computed as C^T = B^T A^T on the same memory. Any call is
timed by a pair of driver events on its stream, so that ours and theirs are timed alike.
"""

import ctypes
import ctypes.util
import importlib
import importlib.util
import math
from collections.abc import Callable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from pysim.errors import MissingError, NativeError
from pysim.problem.gemm import Gemm
from pysim.record.schedule import GpuSchedule
from pysim.registry.rows import GemmKernel

# cudaDataType and cublasComputeType_t (library_types.h, cublas_api.h)
_TYPES = {"f32": 0, "tf32": 0, "f64": 1, "f16": 2, "s8": 3, "s32": 10, "bf16": 14}
_COMPUTE = {"f32": 68, "tf32": 77, "f64": 70, "f16": 68, "bf16": 68, "s8": 72}
_SCALARS: dict[str, Any] = {"f64": ctypes.c_double, "s8": ctypes.c_int32}
_DEFAULT_ALGORITHM = -1
# Letters of nvidia-matmul-heuristics for inputs, computation and result, and the instruction of a kernel as it wants it
_PRECISIONS = {"f16": "HSH", "bf16": "TST", "f32": "SSS", "f64": "DDD", "tf32": "FSS", "s8": "BII"}


# Timing

LEAD, LONG, MOST_LEADS = 6e-5, 2e-3, 8  # seconds, seconds, calls


def leads(seconds: float) -> int:
    """How many untimed calls go before a timed one that takes so long, so that the device is busy while the host makes it: LEAD seconds
    of them, and none where a call takes LONG."""
    return 0 if seconds >= LONG else min(MOST_LEADS, math.ceil(LEAD / seconds))


class Events:
    """A pair of events of the CUDA driver (libcuda), for calls on one stream; the library must have made a context before."""

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

    def seconds(self, call: Callable[[], object]) -> float:
        """Device seconds between two events around a call."""
        begin, end = self._pair
        self._check(self._cuda.cuEventRecord(begin, self._stream))
        call()
        self._check(self._cuda.cuEventRecord(end, self._stream))
        self._check(self._cuda.cuEventSynchronize(end))
        milliseconds = ctypes.c_float()
        self._check(self._cuda.cuEventElapsedTime(ctypes.byref(milliseconds), begin, end))
        return milliseconds.value * 1e-3

    def __del__(self) -> None:
        for event in getattr(self, "_pair", ()):
            if event.value:
                self._cuda.cuEventDestroy_v2(event)


# Where libraries lie


def library_files(name: str) -> list[str]:
    """Where lib<name> of CUDA may lie: the wheels' folders, then what the system's linker knows."""
    found = importlib.util.find_spec("nvidia")
    folders = [Path(place) for place in list(found.submodule_search_locations or [])] if found else []
    files = [file for folder in folders for part in ("cu13", name) for file in sorted((folder / part / "lib").glob(f"lib{name}.so.*"))]
    system = ctypes.util.find_library(name)
    return [str(file) for file in files] + ([system] if system else [])


# cuBLAS


@cache
def _cublas() -> tuple[Any, Any, str]:
    """The library, a handle, its version."""
    errors = []
    for file in library_files("cublas"):
        try:
            for lt in sorted(Path(file).parent.glob("libcublasLt.so.*")):
                ctypes.CDLL(str(lt), mode=ctypes.RTLD_GLOBAL)
            library = ctypes.CDLL(file)
        except OSError as error:
            errors.append(str(error))
            continue
        handle, version = ctypes.c_void_p(), ctypes.c_int()
        if status := library.cublasCreate_v2(ctypes.byref(handle)):
            raise MissingError(f"cuBLAS at {file} does not start: status {status}")
        library.cublasGetVersion_v2(handle, ctypes.byref(version))
        return library, handle, f"cuBLAS {version.value // 10000}.{version.value // 100 % 100}.{version.value % 100}"
    raise MissingError(f"cuBLAS is not installed: pip install nvidia-cublas{f' ({errors[0]})' if errors else ''}")


def cublas(w: Gemm, result: str, pointers: tuple[int, int, int], stream: int = 0) -> tuple[Callable[[], None], str]:
    """(a call that puts a product of dense row-major operands on a stream, version). MissingError where cuBLAS has no such product."""
    if w.dtype not in _COMPUTE:
        raise MissingError(f"cublasGemmEx has no product of {w.dtype}")
    library, handle, version = _cublas()
    scalar = _SCALARS.get(w.dtype, ctypes.c_float)
    one, zero = scalar(1), scalar(0)
    a, b, c = (ctypes.c_void_p(pointer) for pointer in pointers)
    element, lda, ldb = _TYPES[w.dtype], w.m if w.trans_a else w.k, w.k if w.trans_b else w.n
    arguments = (
        handle, int(w.trans_b), int(w.trans_a), w.n, w.m, w.k, ctypes.byref(one), b, element, ldb, a, element, lda, ctypes.byref(zero), c,
        _TYPES[result], w.n, _COMPUTE[w.dtype], _DEFAULT_ALGORITHM,
    )  # fmt: skip
    keep = (one, zero)

    def call() -> None:
        assert keep
        library.cublasSetStream_v2(handle, ctypes.c_void_p(stream))
        if status := library.cublasGemmEx(*arguments):
            raise MissingError(f"{version} refuses {w.text}: status {status}")

    return call, version


# nvidia-matmul-heuristics


@cache
def _heuristics(gpu: str) -> tuple[Any, Any]:
    """(its module, an interface for a GPU by machine name)."""
    try:
        module = importlib.import_module("nvMatmulHeuristics.nvMatmulHeuristics")
    except (ImportError, OSError) as error:
        raise MissingError(f"nvidia-matmul-heuristics is not installed: pip install nvidia-matmul-heuristics ({error})") from None
    known = {"h200": "H200_SXM", "rtx-3090": "RTX_3090"}
    if gpu not in known:
        raise MissingError(f"nvidia-matmul-heuristics is asked about {', '.join(known)} here, not about {gpu}")
    flags = module.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING
    target = module.NvMatmulHeuristicsTarget.CUTLASS3
    return module, module.NvMatmulHeuristicsInterfaceEx(backend=target, flags=flags, gpu=module.NvMatmulHeuristicsNvidiaGpu[known[gpu]])


def heuristics_version() -> str:
    return f"nvidia-matmul-heuristics {metadata.version('nvidia-matmul-heuristics')}"


def _problem(w: Gemm, gpu: str) -> tuple[Any, Any, str]:
    if w.dtype not in _PRECISIONS:
        raise MissingError(f"nvidia-matmul-heuristics is not asked about {w.dtype}")
    module, interface = _heuristics(gpu)
    layout = module.NvMatmulHeuristicsMatmulLayout[f"{w.layout.upper()}_ROW_MAJOR"]
    return interface, interface.makeNvMatmulHeuristicsProblem(w.m, w.n, w.k, layout), _PRECISIONS[w.dtype]


def estimate(w: Gemm, gpu: str) -> float:
    """Seconds that nvidia-matmul-heuristics expects of its own best kernel. MissingError where it has no answer."""
    interface, problem, precision = _problem(w, gpu)
    found = [float(item["runtime"]) for item in interface.get(problem, 8, precision=precision)]
    times = [seconds for seconds in found if seconds > 0]
    if not times:
        raise MissingError(f"nvidia-matmul-heuristics has no estimate for {w.text}")
    return min(times)


def estimate_kernel(w: Gemm, gpu: str, kernel: GemmKernel, schedule: GpuSchedule) -> float | None:
    """Seconds that it expects of a kernel of our shape (tiles, stages, cluster, split), None where it cannot say."""
    interface, problem, precision = _problem(w, gpu)
    shape = interface.nvmmhKernelConfiguration()
    depth = {"f16": 16, "bf16": 16, "tf32": 8, "s8": 32, "f64": 4}.get(w.dtype, 8)
    instruction = (64 if kernel.tiles.by_warpgroups else 16, 8, depth) if kernel.tiles.tensor else (1, 1, 1)
    shape.cta[:] = (kernel.block_m, kernel.block_n, kernel.block_k)
    shape.warp[:] = (kernel.warp_m, kernel.warp_n, kernel.block_k)
    shape.instr[:] = instruction
    shape.splitK = schedule.splits if schedule.decomposition == "split_k" else 1
    shape.loadStages, shape.gridSwizzle, shape.ctaOrder = kernel.stages, schedule.group, int(schedule.along_n)
    shape.cluster[:] = (kernel.cluster_m, kernel.cluster_n)
    seconds = float(
        interface.nvMatmulHeuristicsEstimateRuntime(
            interface.handle, precision.encode(), ctypes.c_int(interface.target), ctypes.byref(problem), ctypes.byref(shape),
            interface.hardware_descriptor,
        )
    )  # fmt: skip
    return seconds if seconds > 0 else None
