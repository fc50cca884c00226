# SPDX-License-Identifier: Apache-2.0
"""im2col and OpenBLAS as in Caffe: im2col of each image by the native library, then a product by `scipy-openblas64` per group.

A 1x1 convolution with stride 1 and no padding, and a product, need no im2col and no native library.
"""

import functools
import importlib.util
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from pysim.check.fills import Array
from pysim.errors import MissingError
from pysim.peers.peer import Operands, Ready, forced, on_host, only, pointer
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.runtime import cpu as runtime

ALGORITHMS = ("",)
Step = Callable[[], object]

_ROW_MAJOR, _PLAIN, _TRANSPOSED = 101, 111, 112
_GEMM = """(int order, int trans_a, int trans_b, int64_t m, int64_t n, int64_t k, {real} alpha,
            const void *a, int64_t lda, const void *b, int64_t ldb, {real} beta, void *c, int64_t ldc);"""
_DECLARED = f"""
void scipy_cblas_sgemm64_{_GEMM.format(real="float")}
void scipy_cblas_dgemm64_{_GEMM.format(real="double")}
void scipy_openblas_set_num_threads64_(int threads);
const char *scipy_openblas_get_corename64_(void);
"""


def _file() -> tuple[Path, str]:
    """(path, name) of the OpenBLAS in the wheel scipy-openblas64, or else in NumPy's wheel."""
    places = [("scipy_openblas64", "lib", "scipy-openblas64"), ("numpy", "../numpy.libs", "numpy")]
    for package, folder, name in places:
        spec = importlib.util.find_spec(package)
        for parent in list(spec.submodule_search_locations or []) if spec else []:
            for file in sorted(Path(parent, folder).resolve().glob("libscipy_openblas64*.so")):
                return file, f"OpenBLAS of {name} {metadata.version(name)}"
    raise MissingError("OpenBLAS is not installed: pip install scipy-openblas64")


@functools.cache
def _library() -> tuple[Any, Any, str]:
    """(cffi, library, version)."""
    file, name = _file()
    import cffi

    ffi = cffi.FFI()
    ffi.cdef(_DECLARED)
    lib = ffi.dlopen(str(file))
    kernels = ffi.string(lib.scipy_openblas_get_corename64_()).decode()
    return ffi, lib, f"{name}, {kernels} kernels{forced('OPENBLAS_CORETYPE')}"


def make(workload: Workload, operands: Operands, algorithm: str = "") -> Ready:
    only(("f32", "f64"), workload, "OpenBLAS")
    x, w, out = on_host(workload, operands)
    ffi, lib, version = _library()
    lib.scipy_openblas_set_num_threads64_(1)
    gemm = lib.scipy_cblas_sgemm64_ if workload.dtype == "f32" else lib.scipy_cblas_dgemm64_
    if isinstance(workload, Gemm):
        transposed = (_TRANSPOSED if one else _PLAIN for one in (workload.trans_a, workload.trans_b))
        places = (pointer(ffi, x), x.shape[1], pointer(ffi, w), w.shape[1], 0.0, pointer(ffi, out), workload.n)
        sizes = (workload.m, workload.n, workload.k, 1.0)
        return Ready(functools.partial(gemm, _ROW_MAJOR, *transposed, *sizes, *places), version)
    c = workload
    columns = None if c.pointwise else runtime.aligned((c.channels * c.kernel_h * c.kernel_w, c.windows), x.dtype)
    steps: list[Step] = []
    for image in range(c.batch):
        if columns is not None:
            steps.append(im2col(c, x[image], columns))
        steps += _products(ffi, gemm, c, x[image] if columns is None else columns, w, out[image])
    return Ready(functools.partial(_run, steps, columns), version)


def _run(steps: list[Step], _alive: object) -> None:
    for step in steps:
        step()


def im2col(c: Conv, image: Array, columns: Array) -> Step:
    """im2col of all channels of one image, as in Caffe: groups are ranges of rows of the result."""
    ffi, lib = runtime.library()
    struct = runtime.conv_struct(msgspec.structs.replace(c, batch=1, groups=1))
    step = functools.partial(lib.pysim_im2col, struct, pointer(ffi, image), pointer(ffi, columns))
    runtime.check(step())
    return step


def _products(ffi: Any, gemm: Any, c: Conv, columns: Array, w: Array, out: Array) -> list[Step]:
    """out[M/g][PQ] = w[M/g][K] columns[K][PQ] for each group, K = C/g R S."""
    rows, k = c.filters // c.groups, w[0].size
    groups = (array.reshape(c.groups, *shape) for array, shape in ((w, (rows, k)), (columns, (k, c.windows)), (out, (rows, c.windows))))
    steps: list[Step] = []
    for a, b, product in zip(*groups, strict=True):
        sizes = (rows, c.windows, k, 1.0, pointer(ffi, a), k, pointer(ffi, b), c.windows, 0.0)
        steps.append(functools.partial(gemm, _ROW_MAJOR, _PLAIN, _PLAIN, *sizes, pointer(ffi, product), c.windows))
    return steps
