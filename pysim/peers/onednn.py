# SPDX-License-Identifier: Apache-2.0
"""oneDNN, version 3 of its C API: the direct algorithm with weights reordered beforehand to its preferred layout; sgemm for products."""

import ctypes.util
import functools
import os
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pysim.check.fills import Array
from pysim.errors import MissingError
from pysim.peers.peer import Operands, Ready, forced, on_host, only, pointer
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.runtime import cpu as runtime

ALGORITHMS = ("",)
_DECLARED = """
typedef struct dnnl_engine *dnnl_engine_t;
typedef struct dnnl_stream *dnnl_stream_t;
typedef struct dnnl_memory *dnnl_memory_t;
typedef struct dnnl_memory_desc *dnnl_memory_desc_t;
typedef struct dnnl_primitive_desc *dnnl_primitive_desc_t;
typedef struct dnnl_primitive *dnnl_primitive_t;
typedef struct { int arg; dnnl_memory_t memory; } dnnl_exec_arg_t;
typedef struct { int major, minor, patch; const char *hash; unsigned cpu_runtime, gpu_runtime; } dnnl_version_t;
const dnnl_version_t *dnnl_version(void);
int dnnl_engine_create(dnnl_engine_t *engine, int kind, size_t index);
int dnnl_stream_create(dnnl_stream_t *stream, dnnl_engine_t engine, unsigned flags);
int dnnl_stream_wait(dnnl_stream_t stream);
int dnnl_memory_desc_create_with_strides(dnnl_memory_desc_t *desc, int ndims, const int64_t *dims, int dtype,
                                         const int64_t *strides);
int dnnl_memory_desc_create_with_tag(dnnl_memory_desc_t *desc, int ndims, const int64_t *dims, int dtype, int tag);
size_t dnnl_memory_desc_get_size(dnnl_memory_desc_t desc);
int dnnl_memory_desc_destroy(dnnl_memory_desc_t desc);
int dnnl_memory_create(dnnl_memory_t *memory, dnnl_memory_desc_t desc, dnnl_engine_t engine, void *handle);
int dnnl_memory_destroy(dnnl_memory_t memory);
int dnnl_convolution_forward_primitive_desc_create(
    dnnl_primitive_desc_t *desc, dnnl_engine_t engine, int prop, int algorithm, dnnl_memory_desc_t src,
    dnnl_memory_desc_t weights, dnnl_memory_desc_t bias, dnnl_memory_desc_t dst, const int64_t *strides,
    const int64_t *dilates, const int64_t *padding_l, const int64_t *padding_r, void *attr);
int dnnl_reorder_primitive_desc_create(dnnl_primitive_desc_t *desc, dnnl_memory_desc_t src, dnnl_engine_t src_engine,
                                       dnnl_memory_desc_t dst, dnnl_engine_t dst_engine, void *attr);
int dnnl_primitive_desc_query(dnnl_primitive_desc_t desc, int what, int index, void *result);
dnnl_memory_desc_t dnnl_primitive_desc_query_md(dnnl_primitive_desc_t desc, int what, int index);
int dnnl_primitive_desc_destroy(dnnl_primitive_desc_t desc);
int dnnl_primitive_create(dnnl_primitive_t *primitive, dnnl_primitive_desc_t desc);
int dnnl_primitive_execute(dnnl_primitive_t primitive, dnnl_stream_t stream, int nargs, const dnnl_exec_arg_t *args);
int dnnl_primitive_destroy(dnnl_primitive_t primitive);
int dnnl_sgemm(char transa, char transb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
               const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
void omp_set_num_threads(int threads);
"""
# Values of the enumerations of the C API, version 3.
_CPU, _F32, _ANY, _FORWARD_INFERENCE, _DIRECT, _IN_ORDER = 1, 3, 1, 96, 1, 1
_QUERY_IMPLEMENTATION, _QUERY_WEIGHTS = 8, 131
_SRC, _DST, _WEIGHTS = 1, 17, 33
_STATUS = ("success", "out of memory", "invalid arguments", "unimplemented")


class _OneDnn(NamedTuple):
    ffi: Any
    lib: Any
    engine: Any
    stream: Any
    version: str

    def made(self, kind: str, *arguments: Any, by: str | None = None) -> Any:
        """A new handle of type dnnl_<kind>_t from dnnl_<by or kind>_create, destroyed with its last reference."""
        handle = self.ffi.new(f"dnnl_{kind}_t *")
        self.ok(getattr(self.lib, f"dnnl_{by or kind + '_create'}")(handle, *arguments), by or kind)
        return self.ffi.gc(handle[0], getattr(self.lib, f"dnnl_{kind}_destroy"))

    def ok(self, status: int, what: str) -> None:
        if status:
            reason = _STATUS[status] if status < len(_STATUS) else f"status {status}"
            raise MissingError(f"{self.version} refuses this problem: {what}: {reason}")


def _files() -> Iterator[str]:
    """Candidate paths of libdnnl: only $PYSIM_ONEDNN if set, else the system's, then those of PyPI wheels."""
    if given := os.environ.get("PYSIM_ONEDNN"):
        path = Path(given).expanduser()
        yield from [str(file) for file in sorted(path.glob("libdnnl.so*"))] if path.is_dir() else [str(path)]
        return
    if system := ctypes.util.find_library("dnnl"):
        yield system
    paths = sysconfig.get_paths()
    yield from map(str, sorted(Path(paths["data"], "lib").glob("libdnnl.so*")))
    for packages in dict.fromkeys((paths["platlib"], paths["purelib"])):
        yield from map(str, sorted(Path(packages).glob("*/lib/libdnnl.so*")))


@functools.cache
def _library(given: str | None) -> _OneDnn:
    """The first libdnnl of version 3 with a CPU engine; `given` is $PYSIM_ONEDNN, as the key of the cache."""
    import cffi

    ffi = cffi.FFI()
    ffi.cdef(_DECLARED)
    tried: dict[str, str] = {}  # why not -> the first file
    for file in _files():
        try:
            lib = ffi.dlopen(file)
            v = lib.dnnl_version()
        except (OSError, AttributeError) as error:
            tried.setdefault(_told(file, error), file)
            continue
        version = f"oneDNN {v.major}.{v.minor}.{v.patch}{forced('ONEDNN_MAX_CPU_ISA', 'DNNL_MAX_CPU_ISA')}"
        if v.major != 3:
            tried.setdefault(f"it is {version}", file)
            continue
        _one_thread(lib)
        engine, stream = ffi.new("dnnl_engine_t *"), ffi.new("dnnl_stream_t *")
        if lib.dnnl_engine_create(engine, _CPU, 0) or lib.dnnl_stream_create(stream, engine[0], _IN_ORDER):
            tried.setdefault(f"{version} finds no CPU to run on", file)
            continue
        return _OneDnn(ffi, lib, engine[0], stream[0], version)
    seen = f" ({'; '.join(f'{file}: {why}' for why, file in tried.items())})" if tried else ""
    raise MissingError(f"no oneDNN 3 was found{seen}: install libdnnl, or set PYSIM_ONEDNN to its libdnnl.so")


def _told(file: str, error: Exception) -> str:
    """Why a library cannot be loaded, in the system's words, without the file and without what cffi tried then."""
    return str(error).partition(".  Additionally")[0].removeprefix(f"cannot load library '{file}': ")


def _one_thread(lib: Any) -> None:
    """Limits the OpenMP runtime that `lib` is linked with, if any, to one thread for calls from this thread."""
    try:
        lib.omp_set_num_threads(1)  # found in the library or its dependencies
    except AttributeError:
        return


def make(workload: Workload, operands: Operands, algorithm: str = "") -> Ready:
    only(("f32",), workload, "oneDNN")
    x, w, out = on_host(workload, operands)
    dnn = _library(os.environ.get("PYSIM_ONEDNN"))
    _one_thread(dnn.lib)
    if isinstance(workload, Gemm):
        transposed = (b"T" if one else b"N" for one in (workload.trans_a, workload.trans_b))
        a, b, c = (dnn.ffi.cast("float *", array.ctypes.data) for array in (x, w, out))
        places = (1.0, a, x.shape[1], b, w.shape[1], 0.0, c, workload.n)
        return Ready(
            functools.partial(dnn.lib.dnnl_sgemm, *transposed, workload.m, workload.n, workload.k, *places), f"{dnn.version}, sgemm"
        )
    g = workload.groups
    layout = (g, w.shape[0] // g, *w.shape[1:]) if g > 1 else w.shape
    plain = {_SRC: x, _DST: out}
    descriptions = {name: _description(dnn, array.shape) for name, array in plain.items()}
    primitive, description = _convolution(dnn, workload, descriptions, layout)
    weights, buffer = _reordered(dnn, w, layout, description)
    memories = {name: _memory(dnn, descriptions[name], array) for name, array in plain.items()} | {_WEIGHTS: weights}
    arguments = dnn.ffi.new("dnnl_exec_arg_t[]", list(memories.items()))
    execute = functools.partial(dnn.lib.dnnl_primitive_execute, primitive, dnn.stream, len(memories), arguments)
    wait = functools.partial(dnn.lib.dnnl_stream_wait, dnn.stream)
    dnn.ok(execute() or wait(), "execute")
    name = dnn.ffi.new("const char **")
    dnn.lib.dnnl_primitive_desc_query(description, _QUERY_IMPLEMENTATION, 0, name)
    alive = (buffer, memories, descriptions, description)

    def call() -> object:
        execute()
        return wait() or alive

    return Ready(call, f"{dnn.version}, {dnn.ffi.string(name[0]).decode()}")


def _convolution(dnn: _OneDnn, c: Conv, descriptions: Mapping[int, Any], weights: tuple[int, ...]) -> tuple[Any, Any]:
    """(primitive, description) with weights in any layout; oneDNN's dilation of a dense kernel is 0."""
    liked = dnn.made("memory_desc", len(weights), _sizes(dnn, weights), _F32, _ANY, by="memory_desc_create_with_tag")
    operands = (descriptions[_SRC], liked, dnn.ffi.NULL, descriptions[_DST])
    pairs = (
        (c.stride_h, c.stride_w),
        (c.dilation_h - 1, c.dilation_w - 1),
        (c.pad_top, c.pad_left),
        (c.pad_bottom, c.pad_right),
    )
    numbers = [_sizes(dnn, pair) for pair in pairs]
    wanted = (dnn.engine, _FORWARD_INFERENCE, _DIRECT, *operands, *numbers, dnn.ffi.NULL)
    description = dnn.made("primitive_desc", *wanted, by="convolution_forward_primitive_desc_create")
    return dnn.made("primitive", description), description


def _reordered(dnn: _OneDnn, w: Array, layout: tuple[int, ...], description: Any) -> tuple[Any, Array]:
    """The weights in the primitive's layout: a memory object and its buffer."""
    liked = dnn.lib.dnnl_primitive_desc_query_md(description, _QUERY_WEIGHTS, 0)
    plain = _description(dnn, layout)
    buffer = runtime.aligned((-(-dnn.lib.dnnl_memory_desc_get_size(liked) // w.itemsize),), w.dtype)
    source, target = _memory(dnn, plain, w), _memory(dnn, liked, buffer)
    ends = (plain, dnn.engine, liked, dnn.engine, dnn.ffi.NULL)
    reorder = dnn.made("primitive", dnn.made("primitive_desc", *ends, by="reorder_primitive_desc_create"))
    arguments = dnn.ffi.new("dnnl_exec_arg_t[]", [(_SRC, source), (_DST, target)])
    done = dnn.lib.dnnl_primitive_execute(reorder, dnn.stream, 2, arguments) or dnn.lib.dnnl_stream_wait(dnn.stream)
    dnn.ok(done, "reorder of the weights")
    return target, buffer


def _description(dnn: _OneDnn, shape: tuple[int, ...]) -> Any:
    """A plain C-ordered f32 tensor."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    sizes = (len(shape), _sizes(dnn, shape), _F32, _sizes(dnn, strides))
    return dnn.made("memory_desc", *sizes, by="memory_desc_create_with_strides")


def _memory(dnn: _OneDnn, description: Any, array: Array) -> Any:
    return dnn.made("memory", description, dnn.engine, pointer(dnn.ffi, array))


def _sizes(dnn: _OneDnn, values: Any) -> Any:
    return dnn.ffi.new("int64_t[12]", list(values))
