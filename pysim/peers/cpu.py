# SPDX-License-Identifier: Apache-2.0
"""Other people's convolutions and matrix products, as calls that can be timed beside ours.

A peer is a function (workload, x, w, bias=None) -> Peer (a call without arguments, and a version) or Missing (a
reason). Each runs on one thread, NCHW in and out, writes a buffer of its own that starts as NaN, and has everything
prepared that it may prepare: pointers, column buffer, a session with the weights as constants, reordered weights. What
a library does with plain operands on every call (OpenBLAS packs both) is part of its time.

  im2col_openblas  Caffe's way: im2col of each image by the native library, then a GEMM of `scipy-openblas64` per group.
                   A 1x1 convolution with stride 1 and no padding, and a GEMM problem, need no im2col and no native
                   library.
  onnxruntime      a model of one Conv or Gemm node, all graph optimisations, IO binding.
  onednn           version 3 of the C API: direct algorithm, weights in the layout that it likes, reordered beforehand.
"""

import ctypes.util
import functools
import importlib.util
import os
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from pysim.check.reference import shapes
from pysim.errors import MissingError, OperandError
from pysim.measure.clock import Array, dtype_of, random_fill, result_of, unwritten
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.runtime import cpu as runtime
from pysim.runtime.cpu import aligned


class Peer(NamedTuple):
    """`call()` computes into one buffer, the same each time, and returns it."""

    call: Callable[[], Array]
    version: str


class Missing(NamedTuple):
    """Why a peer cannot run this problem here, and what would change that."""

    reason: str


Maker = Callable[..., Peer | Missing]
Steps = list[Callable[[], object]]


def _or_missing(make: Callable[..., Peer]) -> Maker:
    """A peer that raises MissingError answers Missing instead, so that one absent library stops nothing."""

    @functools.wraps(make)
    def maker(workload: Workload, x: Array, w: Array, bias: Array | None = None) -> Peer | Missing:
        _check_operands(workload, x, w, bias)
        try:
            return make(workload, x, w, bias)
        except MissingError as error:
            return Missing(str(error))

    return maker


def _check_operands(workload: Workload, x: Array, w: Array, bias: Array | None) -> None:
    """Raw pointers are about to be passed on: shapes, dtype and layout must be what the libraries are told."""
    s, dtype = shapes(workload), dtype_of(workload.dtype)
    values = s.out[1]
    given = [("x", x, s.x, dtype), ("w", w, s.w, dtype)]
    given += [("bias", bias, (values,), result_of(workload.dtype))] if bias is not None else []
    for name, array, shape, kind in given:
        if array.shape != shape or array.dtype != kind or not array.flags.c_contiguous:
            right = f"{workload.text} wants a C-contiguous {kind} array of shape {shape}"
            raise OperandError(f"{name} is {array.dtype} of shape {array.shape}; {right}")


def _run(steps: Steps, out: Array, _alive: object) -> Array:
    """One call of a peer; `_alive` are the buffers and handles that the steps point into."""
    for step in steps:
        step()
    return out


def _pointer(ffi: Any, array: Array) -> Any:
    return ffi.cast("void *", array.ctypes.data)


# ---------------------------------------------------------------------------------------------------- im2col + OpenBLAS

_ROW_MAJOR, _PLAIN, _TRANSPOSED = 101, 111, 112
_GEMM = """(int order, int trans_a, int trans_b, int64_t m, int64_t n, int64_t k, {real} alpha,
            const void *a, int64_t lda, const void *b, int64_t ldb, {real} beta, void *c, int64_t ldc);"""
_OPENBLAS = f"""
void scipy_cblas_sgemm64_{_GEMM.format(real="float")}
void scipy_cblas_dgemm64_{_GEMM.format(real="double")}
void scipy_openblas_set_num_threads64_(int threads);
const char *scipy_openblas_get_corename64_(void);
"""


def _openblas_file() -> tuple[Path, str]:
    """The OpenBLAS of the wheel scipy-openblas64, or else the one inside NumPy's own wheel, and its name."""
    places = [("scipy_openblas64", "lib", "scipy-openblas64"), ("numpy", "../numpy.libs", "numpy")]
    for package, folder, name in places:
        found = importlib.util.find_spec(package)
        for parent in list(found.submodule_search_locations or []) if found else []:
            for file in sorted(Path(parent, folder).resolve().glob("libscipy_openblas64*.so")):
                return file, f"OpenBLAS of {name} {metadata.version(name)}"
    raise MissingError("OpenBLAS is not installed: pip install scipy-openblas64")


@functools.cache
def _openblas() -> tuple[Any, Any, str]:
    """cffi, the library, its version."""
    file, name = _openblas_file()
    import cffi

    ffi = cffi.FFI()
    ffi.cdef(_OPENBLAS)
    lib = ffi.dlopen(str(file))
    kernels = ffi.string(lib.scipy_openblas_get_corename64_()).decode()
    return ffi, lib, f"{name}, {kernels} kernels"


def _im2col_openblas(workload: Workload, x: Array, w: Array, bias: Array | None) -> Peer:
    if workload.dtype not in ("f32", "f64"):
        raise MissingError(f"OpenBLAS multiplies f32 and f64 here, not {workload.dtype}")
    ffi, lib, version = _openblas()
    lib.scipy_openblas_set_num_threads64_(1)
    gemm = lib.scipy_cblas_sgemm64_ if workload.dtype == "f32" else lib.scipy_cblas_dgemm64_
    out = unwritten(shapes(workload).out, workload.dtype)
    if isinstance(workload, Gemm):
        return Peer(_openblas_gemm(ffi, gemm, workload, x, w, bias, out), version)
    c = workload
    columns = None if c.pointwise else aligned((c.channels * c.kernel_h * c.kernel_w, c.windows), x.dtype)
    ones = aligned((c.windows,), x.dtype)
    ones.fill(1)
    steps: Steps = []
    for image in range(c.batch):
        if columns is not None:
            steps.append(_im2col(c, x[image], columns))
        steps += _openblas_image(ffi, gemm, c, x[image] if columns is None else columns, w, out[image])
        if bias is not None:  # a product of inner length 1, added to the result
            column, row, c_ = _pointer(ffi, bias), _pointer(ffi, ones), _pointer(ffi, out[image])
            sizes = (c.filters, c.windows, 1, 1.0, column, 1, row, c.windows, 1.0, c_, c.windows)
            steps.append(functools.partial(gemm, _ROW_MAJOR, _PLAIN, _PLAIN, *sizes))
    return Peer(functools.partial(_run, steps, out, (x, w, bias, columns, ones)), version)


def _im2col(c: Conv, image: Array, columns: Array) -> Callable[[], object]:
    """im2col of all channels of one image, as Caffe does it: groups are ranges of rows of the result."""
    ffi, lib = runtime.library()
    struct = runtime.conv_struct(msgspec.structs.replace(c, batch=1, groups=1))
    step = functools.partial(lib.pysim_im2col, struct, _pointer(ffi, image), _pointer(ffi, columns))
    runtime.check(step())
    return step


def _openblas_image(ffi: Any, gemm: Any, c: Conv, columns: Array, w: Array, out: Array) -> Steps:
    """out[M/g][PQ] = w[M/g][K] columns[K][PQ] for each group, K = C/g R S."""
    rows, k = c.filters // c.groups, w[0].size
    a, b, product = (
        w.reshape(c.groups, rows, k),
        columns.reshape(c.groups, k, c.windows),
        out.reshape(c.groups, rows, -1),
    )
    steps: Steps = []
    for g in range(c.groups):
        sizes = (rows, c.windows, k, 1.0, _pointer(ffi, a[g]), k, _pointer(ffi, b[g]), c.windows, 0.0)
        steps.append(functools.partial(gemm, _ROW_MAJOR, _PLAIN, _PLAIN, *sizes, _pointer(ffi, product[g]), c.windows))
    return steps


def _openblas_gemm(ffi: Any, gemm: Any, g: Gemm, a: Array, b: Array, bias: Array | None, out: Array) -> Callable[[], Array]:
    """C = op(A) op(B), and for a bias a product of inner length 1 added to it."""
    c = _pointer(ffi, out)
    transposed = (_TRANSPOSED if g.trans_a else _PLAIN, _TRANSPOSED if g.trans_b else _PLAIN)
    operands = (_pointer(ffi, a), a.shape[1], _pointer(ffi, b), b.shape[1], 0.0, c, g.n)
    steps: Steps = [functools.partial(gemm, _ROW_MAJOR, *transposed, g.m, g.n, g.k, 1.0, *operands)]
    ones = aligned((g.m,), a.dtype)
    ones.fill(1)
    if bias is not None:
        operands = (_pointer(ffi, ones), 1, _pointer(ffi, bias), g.n, 1.0, c, g.n)
        steps.append(functools.partial(gemm, _ROW_MAJOR, _PLAIN, _PLAIN, g.m, g.n, 1, 1.0, *operands))
    return functools.partial(_run, steps, out, (a, b, bias, ones))


# --------------------------------------------------------------------------------------------------------- ONNX Runtime

_OPSET, _IR_VERSION = 17, 8  # old enough for every ONNX Runtime since 1.12


def _onnxruntime(workload: Workload, x: Array, w: Array, bias: Array | None) -> Peer:
    try:
        import onnx
        import onnxruntime as ort
    except ImportError as error:
        raise MissingError(f"{error.name} is not installed: pip install onnx onnxruntime") from None
    if isinstance(workload, Conv) and workload.dtype != "f32":
        raise MissingError("ONNX Runtime's CPU convolution computes in f32 only")
    if workload.dtype not in ("f32", "f64"):
        raise MissingError(f"ONNX Runtime's Gemm computes in f32 and f64 here, not {workload.dtype}")
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 4
    out = unwritten(shapes(workload).out, workload.dtype)
    try:
        model = _one_node(onnx, workload, x, w, bias, out).SerializeToString()
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # each version has its own exceptions
        raise MissingError(f"ONNX Runtime {ort.__version__} refuses this problem: {str(error).splitlines()[0]}") from None
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, x.dtype.type, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, out.dtype.type, out.shape, out.ctypes.data)
    step = functools.partial(session.run_with_iobinding, binding)
    return Peer(functools.partial(_run, [step], out, (x, session)), f"onnxruntime {ort.__version__}")


def _one_node(onnx: Any, workload: Workload, x: Array, w: Array, bias: Array | None, out: Array) -> Any:
    """A model with input x, output y, and weights and bias as constants."""
    constants = {"w": w} if bias is None else {"w": w, "b": bias}
    if isinstance(workload, Gemm):
        attributes: dict[str, Any] = {"transA": int(workload.trans_a), "transB": int(workload.trans_b)}
    else:
        c = workload
        attributes = {
            "kernel_shape": (c.kernel_h, c.kernel_w),
            "strides": (c.stride_h, c.stride_w),
            "dilations": (c.dilation_h, c.dilation_w),
            "pads": (c.pad_top, c.pad_left, c.pad_bottom, c.pad_right),
            "group": c.groups,
        }
    node = onnx.helper.make_node("Gemm" if isinstance(workload, Gemm) else "Conv", ["x", *constants], ["y"], **attributes)
    kind = onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
    ends = [onnx.helper.make_tensor_value_info(name, kind, array.shape) for name, array in (("x", x), ("y", out))]
    initial = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = onnx.helper.make_graph([node], "one", ends[:1], ends[1:], initial)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)


# --------------------------------------------------------------------------------------------------------------- oneDNN

_ONEDNN = """
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
_SRC, _DST, _WEIGHTS, _BIAS = 1, 17, 33, 41
_STATUS = ("success", "out of memory", "invalid arguments", "unimplemented")


class _OneDnn(NamedTuple):
    ffi: Any
    lib: Any
    engine: Any
    stream: Any
    version: str

    def made(self, kind: str, *arguments: Any, by: str | None = None) -> Any:
        """A new handle of type dnnl_<kind>_t from dnnl_<by or kind>_create, destroyed when no longer referred to."""
        handle = self.ffi.new(f"dnnl_{kind}_t *")
        self.ok(getattr(self.lib, f"dnnl_{by or kind + '_create'}")(handle, *arguments), by or kind)
        return self.ffi.gc(handle[0], getattr(self.lib, f"dnnl_{kind}_destroy"))

    def ok(self, status: int, what: str) -> None:
        if status:
            reason = _STATUS[status] if status < len(_STATUS) else f"status {status}"
            raise MissingError(f"{self.version} refuses this problem: {what}: {reason}")


def _onednn_files() -> Iterator[str]:
    """Where libdnnl may be: $PYSIM_ONEDNN alone if set, else the system's, else those that PyPI wheels install."""
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
def _onednn_library(given: str | None) -> _OneDnn:
    """The first libdnnl of version 3 that opens and has a CPU engine; `given` is $PYSIM_ONEDNN, for the cache."""
    import cffi

    ffi = cffi.FFI()
    ffi.cdef(_ONEDNN)
    tried = []
    for file in _onednn_files():
        try:
            lib = ffi.dlopen(file)
            v = lib.dnnl_version()
        except (OSError, AttributeError) as error:
            tried.append(f"{file}: {error}")
            continue
        version = f"oneDNN {v.major}.{v.minor}.{v.patch}"
        if v.major != 3:
            tried.append(f"{file} is {version}")
            continue
        _one_thread(lib)
        engine, stream = ffi.new("dnnl_engine_t *"), ffi.new("dnnl_stream_t *")
        if lib.dnnl_engine_create(engine, _CPU, 0) or lib.dnnl_stream_create(stream, engine[0], _IN_ORDER):
            tried.append(f"{file} ({version}) finds no CPU to run on")
            continue
        return _OneDnn(ffi, lib, engine[0], stream[0], version)
    seen = f" ({'; '.join(tried)})" if tried else ""
    raise MissingError(f"no oneDNN 3 was found{seen}: install libdnnl, or set PYSIM_ONEDNN to its libdnnl.so")


def _one_thread(lib: Any) -> None:
    """Limit the OpenMP runtime that `lib` is linked with to one thread for calls from this thread; none: nothing to
    do.
    """
    try:
        lib.omp_set_num_threads(1)  # looked up in the library and in what it depends on
    except AttributeError:
        return


def _onednn(workload: Workload, x: Array, w: Array, bias: Array | None) -> Peer:
    if workload.dtype != "f32":
        raise MissingError("the oneDNN peer computes in f32 only")
    dnn = _onednn_library(os.environ.get("PYSIM_ONEDNN"))
    _one_thread(dnn.lib)
    out = unwritten(shapes(workload).out, workload.dtype)
    if isinstance(workload, Gemm):
        return _onednn_gemm(dnn, workload, x, w, bias, out)
    g = workload.groups
    layout = (g, w.shape[0] // g, *w.shape[1:]) if g > 1 else w.shape
    plain = {_SRC: x, _DST: out} | ({_BIAS: bias} if bias is not None else {})
    descriptions = {name: _description(dnn, array.shape) for name, array in plain.items()}
    primitive, description = _convolution(dnn, workload, descriptions, layout)
    weights, buffer = _reordered(dnn, w, layout, description)
    memories = {name: _memory(dnn, descriptions[name], array) for name, array in plain.items()} | {_WEIGHTS: weights}
    arguments = dnn.ffi.new("dnnl_exec_arg_t[]", list(memories.items()))
    execute = functools.partial(dnn.lib.dnnl_primitive_execute, primitive, dnn.stream, len(memories), arguments)
    wait = functools.partial(dnn.lib.dnnl_stream_wait, dnn.stream)
    dnn.ok(execute() or wait(), "execute")
    out.fill(float("nan"))
    name = dnn.ffi.new("const char **")
    dnn.lib.dnnl_primitive_desc_query(description, _QUERY_IMPLEMENTATION, 0, name)
    alive = (x, w, bias, buffer, memories, descriptions, description)
    version = f"{dnn.version}, {dnn.ffi.string(name[0]).decode()}"
    return Peer(functools.partial(_run, [execute, wait], out, alive), version)


def _convolution(dnn: _OneDnn, c: Conv, descriptions: Mapping[int, Any], weights: tuple[int, ...]) -> tuple[Any, Any]:
    """The primitive and its description, for weights in any layout; oneDNN's dilation of a dense kernel is 0."""
    liked = dnn.made("memory_desc", len(weights), _sizes(dnn, weights), _F32, _ANY, by="memory_desc_create_with_tag")
    operands = (descriptions[_SRC], liked, descriptions.get(_BIAS, dnn.ffi.NULL), descriptions[_DST])
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
    """The weights as the primitive likes them: a memory object and the buffer that it points to."""
    liked = dnn.lib.dnnl_primitive_desc_query_md(description, _QUERY_WEIGHTS, 0)
    plain = _description(dnn, layout)
    buffer = aligned((-(-dnn.lib.dnnl_memory_desc_get_size(liked) // w.itemsize),), w.dtype)
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
    return dnn.made("memory", description, dnn.engine, _pointer(dnn.ffi, array))


def _sizes(dnn: _OneDnn, values: Any) -> Any:
    return dnn.ffi.new("int64_t[12]", list(values))


def _onednn_gemm(dnn: _OneDnn, g: Gemm, a: Array, b: Array, bias: Array | None, out: Array) -> Peer:
    if bias is not None:
        raise MissingError("oneDNN's sgemm takes no bias")
    transposed = (b"T" if g.trans_a else b"N", b"T" if g.trans_b else b"N")
    pointers = [dnn.ffi.cast("float *", array.ctypes.data) for array in (a, b, out)]
    operands = (pointers[0], a.shape[1], pointers[1], b.shape[1], 0.0, pointers[2], g.n)
    step = functools.partial(dnn.lib.dnnl_sgemm, *transposed, g.m, g.n, g.k, 1.0, *operands)
    return Peer(functools.partial(_run, [step], out, (a, b)), f"{dnn.version}, sgemm")


im2col_openblas = _or_missing(_im2col_openblas)
onnxruntime = _or_missing(_onnxruntime)
onednn = _or_missing(_onednn)
DEFAULT = "im2col_openblas"
PEERS: Mapping[str, Maker] = MappingProxyType({"im2col_openblas": im2col_openblas, "onednn": onednn, "onnxruntime": onnxruntime})


def survey() -> dict[str, Peer | Missing]:
    """Which peers are here, by name: each prepared for the same small convolution."""
    workload = Conv(channels=1, height=4, width=4, filters=1, kernel_h=3, kernel_w=3)
    s = shapes(workload)
    x, w = random_fill(s.x), random_fill(s.w)
    return {name: make(workload, x, w) for name, make in PEERS.items()}
