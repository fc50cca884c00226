# SPDX-License-Identifier: Apache-2.0
"""cuBLAS through ctypes (`cublasGemmEx`, cuBLAS Library documentation), from the wheels that PyTorch and CuPy install, or from the system.

Its matrices are column-major, so C = A B is computed as C^T = B^T A^T on the same memory. Its workspace is its own, and it does not report
the size.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from pysim.errors import MissingError
from pysim.peers.peer import Operands, Ready, cuda_files, forced
from pysim.problem.gemm import Gemm
from pysim.runtime.cuda import result_of

ALGORITHMS = ("",)

# cudaDataType and cublasComputeType_t (library_types.h, cublas_api.h)
_TYPES = {"f32": 0, "tf32": 0, "tf32x3": 0, "f64": 1, "f16": 2, "s8": 3, "s32": 10, "bf16": 14}
_COMPUTE = {"f32": 68, "tf32": 77, "tf32x3": 68, "f64": 70, "f16": 68, "bf16": 68, "s8": 72}
_SCALARS: dict[str, Any] = {"f64": ctypes.c_double, "s8": ctypes.c_int32}
_DEFAULT_ALGORITHM = -1


@cache
def _library() -> tuple[Any, Any, str]:
    """(library, handle, version)."""
    errors = []
    for file in cuda_files("cublas"):
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
        number = f"{version.value // 10000}.{version.value // 100 % 100}.{version.value % 100}"
        return library, handle, f"cuBLAS {number}{forced('NVIDIA_TF32_OVERRIDE')}"
    raise MissingError(f"cuBLAS is not installed: pip install nvidia-cublas{f' ({errors[0]})' if errors else ''}")


def make(workload: Gemm, operands: Operands, algorithm: str = "") -> Ready:
    return Ready(*product(workload, result_of(workload.dtype), operands.pointers))


def product(
    w: Gemm, result: str, pointers: tuple[int, int, int], stream: int = 0, workspace: tuple[int, int] | None = None
) -> tuple[Callable[[], None], str]:
    """(a call that enqueues a product of dense row-major operands on a stream, version). `workspace`: address and bytes, else cuBLAS's own.
    MissingError if cuBLAS has no such product."""
    if w.dtype not in _COMPUTE:
        raise MissingError(f"cublasGemmEx has no product of {w.dtype}")
    library, handle, version = _library()
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
        library.cublasSetStream_v2(handle, ctypes.c_void_p(stream))  # which takes cuBLAS's own workspace
        if workspace:
            library.cublasSetWorkspace_v2(handle, ctypes.c_void_p(workspace[0]), ctypes.c_size_t(workspace[1]))
        if status := library.cublasGemmEx(*arguments):
            raise MissingError(f"{version} refuses {w.text}: status {status}")

    return call, version
