# SPDX-License-Identifier: Apache-2.0
"""The only importer of the CUDA library: devices, kernels' attributes, matrix products on device arrays, and their timing.

The library (libpysim_cuda.so, the CUDA section of `native/pysim.h`) is opened when first needed. MissingError says which of library,
driver and device is not here, and what would change that. Work goes to the caller's stream and is not waited for, but where the arrays
are NumPy's: they are copied to the device and the result back.
"""

import importlib.resources
import math
import os
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from pysim.errors import MissingError, NativeError, OperandError, PlanError, choose
from pysim.once import Recent, once
from pysim.problem.dtypes import GEMM_DTYPES
from pysim.problem.gemm import Gemm
from pysim.record.schedule import DECOMPOSITIONS, GpuSchedule
from pysim.registry.rows import Attributes, epilogues, gemm_kernel, gemm_kernels, native_file
from pysim.runtime import arrays
from pysim.runtime.arrays import SIZES, Matrix

Array = NDArray[Any]
Activation = str | tuple[str, float, float] | None

# What a product of each type may result in; the first is what it does where nobody says
RESULTS = {
    "f32": ("f32",), "tf32": ("f32",), "tf32x3": ("f32",), "f64": ("f64",), "f16": ("f16", "f32"), "bf16": ("bf16", "f32"), "s8": ("s32",),
    "f8": ("f16", "bf16", "f32"),
}  # fmt: skip
# How the elements of an array are multiplied where nobody says, and how else they may be
MULTIPLIED = {
    "f32": ("f32", "tf32", "tf32x3"), "f64": ("f64",), "f16": ("f16",), "bf16": ("bf16",), "s8": ("s8",), "f8": ("f8",), "u8": ("f8",),
}  # fmt: skip


class Device(msgspec.Struct, frozen=True):
    """What CUDA says of a device."""

    index: int
    name: str
    capability: int  # 10 major + minor
    sms: int
    memory_bytes: int
    l2_bytes: int
    shared_bytes_per_sm: int
    shared_bytes_per_block: int
    registers_per_sm: int
    threads_per_sm: int
    blocks_per_sm: int
    clock_khz: int
    memory_clock_khz: int
    driver: int
    runtime: int


def library_path() -> Path:
    """Where the CUDA library lies: $PYSIM_CUDA_LIBRARY, or inside the installed package."""
    override = os.environ.get("PYSIM_CUDA_LIBRARY")
    path = Path(override) if override else Path(str(importlib.resources.files("pysim") / "native" / "libpysim_cuda.so"))
    if not path.exists():
        raise MissingError(
            f"no CUDA kernel is in this build (there is no {path}): install nvcc, or its wheels (pip install nvidia-cuda-nvcc "
            "nvidia-cuda-runtime nvidia-cuda-crt nvidia-nvvm), and then this package again with `pip install .`"
        )
    return path


@once
def library() -> tuple[Any, Any]:
    """(ffi, lib): the declarations of `pysim.h` and the opened CUDA library; needs no driver and no device."""
    import cffi

    path = library_path()
    ffi = cffi.FFI()
    ffi.cdef(native_file("pysim.h").read_text().partition("/* cdef begin */")[2].partition("/* cdef end */")[0])
    try:
        lib = ffi.dlopen(str(path))
        count = lib.pysim_cuda_gemm_count()
    except (OSError, AttributeError) as error:
        raise MissingError(f"the CUDA library cannot be opened: {error}; reinstall the package with `pip install .`") from None
    if count != len(gemm_kernels()):
        raise MissingError(f"{path} has {count} kernels, this package {len(gemm_kernels())}: reinstall it")
    return ffi, lib


def check(status: int) -> None:
    """Raises the library's own sentence for any status but PYSIM_OK."""
    if status:
        ffi, lib = library()
        raise NativeError(ffi.string(lib.pysim_cuda_last_error()).decode())


@once
def devices() -> tuple[Device, ...]:
    """Every device, at least one. MissingError without library, driver or device."""
    ffi, lib = library()
    count = ffi.new("int32_t *")
    if lib.pysim_cuda_device_count(count):
        words = ffi.string(lib.pysim_cuda_last_error()).decode()
        raise MissingError(f"no CUDA device can be used here: {words}; a GPU with a driver for CUDA 13 is needed (nvidia-smi tells)")
    if not count[0]:
        raise MissingError("there is a CUDA driver but no device: run where nvidia-smi -L lists one, and unset CUDA_VISIBLE_DEVICES")
    found, info = [], ffi.new("pysim_cuda_device *")
    for index in range(count[0]):
        check(lib.pysim_cuda_device_at(index, info))
        same = {name: int(getattr(info, name)) for name in Device.__struct_fields__ if name not in ("index", "name", "capability")}
        found.append(Device(index=index, name=ffi.string(info.name).decode(), capability=10 * info.major + info.minor, **same))
    return tuple(found)


# Structs


def dtype_code(dtype: str) -> int:
    return int(getattr(library()[1], f"PYSIM_{dtype.upper()}"))


def result_of(dtype: str) -> str:
    """The type of C where nobody says."""
    return RESULTS[dtype][0]


def gemm_struct(w: Gemm, result: str, pitches: tuple[int, int, int] | None = None) -> Any:
    """The `pysim_cuda_gemm` of a product; dense rows where no pitches (of A, B, C in elements) are given."""
    ffi, _ = library()
    lda, ldb, ldc = pitches or (w.m if w.trans_a else w.k, w.k if w.trans_b else w.n, w.n)
    types = {"dtype": dtype_code(w.dtype), "c_dtype": dtype_code(result)}
    sizes = {"m": w.m, "n": w.n, "k": w.k, "lda": lda, "ldb": ldb, "ldc": ldc, "trans_a": w.trans_a, "trans_b": w.trans_b}
    return ffi.new("pysim_cuda_gemm *", sizes | types)


def schedule_struct(s: GpuSchedule) -> Any:
    """The `pysim_cuda_schedule` of a schedule."""
    ffi, _ = library()
    row = gemm_kernel(s.kernel)
    if row is None:
        raise PlanError(f"the registry has no CUDA kernel {s.kernel!r}; `pysim kernels --cuda` lists them")
    fields = {"splits": s.splits, "along_n": s.along_n, "group": s.group}
    return ffi.new("pysim_cuda_schedule *", {"kernel": row.index, "decomposition": DECOMPOSITIONS.index(s.decomposition)} | fields)


def epilogue_struct(alpha: float, beta: float, bias: int, activation: Activation) -> Any:
    """The `pysim_cuda_epilogue`: `bias` is a device pointer or 0, `activation` a name of epilogues.inc or ("clamp", low, high)."""
    ffi, _ = library()
    name, low, high = activation if isinstance(activation, tuple) and len(activation) == 3 else (activation, -math.inf, math.inf)
    name = "identity" if name is None else name
    try:
        low, high = float(low), float(high)
    except (TypeError, ValueError):
        raise OperandError(f"activation is {activation!r}; clamp's bounds are two numbers: ('clamp', low, high)") from None
    if not isinstance(name, str) or name not in epilogues():
        raise OperandError(f"activation {name!r} is not known; {choose(name, epilogues())}, clamp as ('clamp', low, high)")
    if name == "clamp" and not (isinstance(activation, tuple) and low <= high):
        raise OperandError("clamp needs its bounds: activation=('clamp', low, high), low at most high")
    largest = float(np.finfo(np.float32).max)
    bounds = [min(max(bound, -largest), largest) for bound in (low, high)]
    fields = {"alpha": alpha, "beta": beta, "bias": ffi.cast("void *", bias), "activation": epilogues()[name]}
    return ffi.new("pysim_cuda_epilogue *", fields | {"low": bounds[0], "high": bounds[1]})


def attributes(w: Gemm, kernel: str) -> Attributes:
    """What the compiler made of the kernel that would run a product."""
    ffi, lib = library()
    row, info = gemm_kernel(kernel), ffi.new("pysim_cuda_attributes *")
    if row is None:
        raise PlanError(f"the registry has no CUDA kernel {kernel!r}; `pysim kernels --cuda` lists them")
    check(lib.pysim_cuda_gemm_attributes(gemm_struct(w, result_of(w.dtype)), row.index, info))
    return Attributes(info.threads, info.registers, info.shared_bytes, info.local_bytes)


# Memory


class DeviceArray:
    """Memory of the current device, dense rows, freed with the object; other libraries see it through `__cuda_array_interface__`."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        ffi, lib = library()
        devices()
        self.shape, self.dtype = shape, dtype
        self.nbytes = math.prod(shape) * SIZES[dtype]
        self.pointer = 0
        out = ffi.new("void **")
        check(lib.pysim_cuda_allocate(self.nbytes, out))
        self.pointer = int(ffi.cast("uintptr_t", out[0]))

    def __del__(self) -> None:
        if getattr(self, "pointer", 0):
            ffi, lib = library()
            lib.pysim_cuda_release(ffi.cast("void *", self.pointer))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        codes = {"f32": "<f4", "f64": "<f8", "f16": "<f2", "s8": "|i1", "s32": "<i4", "bf16": "<V2", "f8": "|V1", "u8": "|u1"}
        return {"shape": self.shape, "typestr": codes[self.dtype], "data": (self.pointer, False), "version": 3, "stream": None}

    def fill(self, host: Array) -> "DeviceArray":
        """Copies the bytes of a contiguous host array of the same size here."""
        if host.nbytes != self.nbytes:
            raise OperandError(f"{host.nbytes} bytes do not fill {self.nbytes} bytes of device memory")
        copy(self.pointer, host.ctypes.data, host.nbytes, "PYSIM_TO_DEVICE")
        return self

    def read(self, into: Array) -> Array:
        """Copies the bytes here into a contiguous host array of the same size, and waits for them."""
        if into.nbytes != self.nbytes:
            raise OperandError(f"{self.nbytes} bytes of device memory do not fill {into.nbytes} bytes")
        copy(into.ctypes.data, self.pointer, self.nbytes, "PYSIM_TO_HOST")
        return into

    def matrix(self) -> Matrix:
        return Matrix(self.pointer, self.shape, (self.shape[-1], 1)[-len(self.shape) :], self.dtype, 0, None, self)


def copy(to: int, source: int, nbytes: int, direction: str, stream: int = 0) -> None:
    """Copies bytes and waits for them; `direction` is one of pysim_cuda_direction."""
    ffi, lib = library()
    to_from = (ffi.cast("void *", to), ffi.cast("void *", source))
    check(lib.pysim_cuda_copy(*to_from, nbytes, getattr(lib, direction), ffi.cast("void *", stream)))


def synchronize(stream: int = 0) -> None:
    """Waits for the work of a stream."""
    ffi, lib = library()
    check(lib.pysim_cuda_synchronize(ffi.cast("void *", stream)))


# Launches


class Product:
    """A product under a schedule, without its operands, of which only the alignment of A and B is looked at: any that begin at multiples of
    the same powers of two, up to ALIGNED, can be run."""

    def __init__(
        self,
        workload: Gemm,
        schedule: GpuSchedule,
        pointers: tuple[int, int, int],
        *,
        result: str | None = None,
        pitches: tuple[int, int, int] | None = None,
    ) -> None:
        ffi, lib = library()
        self._cast, self._pointer, self._run = ffi.cast, ffi.typeof("void *"), lib.pysim_cuda_gemm_run
        self.problem, self.schedule = gemm_struct(workload, result or result_of(workload.dtype), pitches), schedule_struct(schedule)
        size, (a, b, _) = ffi.new("int64_t *"), (ffi.cast("void *", pointer) for pointer in pointers)
        check(lib.pysim_cuda_gemm_workspace_bytes(self.problem, self.schedule, a, b, size))
        self.workspace_bytes = int(size[0])

    def run(self, pointers: tuple[int, int, int], workspace: int, epilogue: Any, stream: int) -> None:
        """Puts the product on a stream."""
        cast, kind = self._cast, self._pointer
        a, b, c = pointers
        status = self._run(
            self.problem, self.schedule, epilogue, cast(kind, a), cast(kind, b), cast(kind, c), cast(kind, workspace),
            self.workspace_bytes, cast(kind, stream),
        )  # fmt: skip
        check(status)


class Launch:
    """One product, ready to run again and again: operands by pointer, its schedule, epilogue, workspace and stream.

    `make` gives uint8 device memory of so many bytes as (owner, pointer).
    """

    def __init__(
        self,
        workload: Gemm,
        schedule: GpuSchedule,
        pointers: tuple[int, int, int],
        *,
        result: str | None = None,
        pitches: tuple[int, int, int] | None = None,
        epilogue: Any = None,
        stream: int = 0,
        make: Callable[[int], tuple[Any, int]] | None = None,
    ) -> None:
        ffi, _ = library()
        self._product = Product(workload, schedule, pointers, result=result, pitches=pitches)
        self._epilogue = epilogue or epilogue_struct(1.0, 0.0, 0, None)
        self._operands = tuple(ffi.cast("void *", pointer) for pointer in pointers)
        self._stream = ffi.cast("void *", stream)
        self.workspace_bytes = self._product.workspace_bytes
        owner, pointer = (make or own_bytes)(self.workspace_bytes) if self.workspace_bytes else (None, 0)
        self._owner, self._workspace = owner, ffi.cast("void *", pointer)

    def _told(self) -> tuple[Any, ...]:
        one = self._product
        return (one.problem, one.schedule, self._epilogue, *self._operands, self._workspace, self.workspace_bytes, self._stream)

    def run(self) -> None:
        """Puts the product on the stream."""
        check(library()[1].pysim_cuda_gemm_run(*self._told()))

    def reference(self) -> None:
        """Puts the plain loops, summed in float64, on the stream instead."""
        check(library()[1].pysim_cuda_gemm_reference(self._product.problem, self._epilogue, *self._operands, self._stream))

    def time(self, samples: int, warmups: int = 1) -> NDArray[np.float64]:
        """Device seconds of each of `samples` runs, between two events."""
        ffi, lib = library()
        seconds = np.empty(samples)
        check(lib.pysim_cuda_gemm_time(*self._told(), warmups, samples, ffi.cast("double *", seconds.ctypes.data)))
        return seconds


def own_bytes(size: int) -> tuple[Any, int]:
    """Device memory of this library, and where it lies."""
    memory = DeviceArray((size,), "u8")
    return memory, memory.pointer


# Products of arrays

Chooser = Callable[[Gemm], GpuSchedule]
ALIGNED = 256  # bytes: what PyTorch's and CUDA's allocations begin at, and more than any kernel asks for


class Fixed(msgspec.Struct, frozen=True):
    """A chooser of one schedule."""

    schedule: GpuSchedule

    def __call__(self, _: Gemm, /) -> GpuSchedule:
        return self.schedule


class Options(NamedTuple):
    """What `gemm` is asked beside its arrays."""

    choose_schedule: Chooser
    alpha: float
    beta: float
    trans_a: bool
    trans_b: bool
    activation: Activation
    dtype: str | None


def gemm(
    a: Any,
    b: Any,
    choose_schedule: Chooser,
    c: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    trans_a: bool = False,
    trans_b: bool = False,
    bias: Any = None,
    activation: Activation = None,
    out: Any = None,
    dtype: str | None = None,
) -> Any:
    """f(alpha op(a) op(b) + beta c + bias) on the GPU; the result is `out` or a new array of the kind that a is.

    All arrays are CUDA arrays, or all are host arrays, which are copied. Row- and column-major matrices, so transposed views too, are
    taken as they lie. `dtype` says how elements are multiplied where there is a choice ("tf32", "tf32x3" of float32, "f8" of uint8).
    `choose_schedule` is asked for the schedule of the product as the kernels see it, once for operands that lie alike: equal choosers
    choose alike. Raises OperandError for arrays that do not fit.
    """
    several = len(devices()) > 1
    given = {"a": a, "b": b, "c": c, "bias": bias, "out": out}
    options = Options(choose_schedule, alpha, beta, trans_a, trans_b, activation, dtype)
    if arrays.is_cuda(a):
        with arrays.on_device_of(a) if several else nullcontext():
            return _on_device(given, options)
    check_place(given)
    return _from_host(given, options)


def check_place(given: dict[str, Any]) -> None:
    """OperandError where some arrays lie on a GPU and some in host memory."""
    places = {name: arrays.is_cuda(x) for name, x in given.items() if x is not None}
    here = [name for name, on in places.items() if on]
    there = [name for name, on in places.items() if not on]
    if here and there:
        raise OperandError(f"{', '.join(here)} lie on a GPU but {', '.join(there)} in host memory; they must lie in one place")


def _from_host(given: dict[str, Any], options: Options) -> Any:
    """Copies what is given to the device, computes there, and copies the result back."""
    host = {name: x if isinstance(x, np.ndarray) else np.asarray(x) for name, x in given.items() if x is not None}
    out = host.pop("out", None)
    if options.beta == 0:
        host.pop("c", None)
    seen = {name: _sent(x, name) for name, x in host.items()}
    owner, found = _product(seen, None, options)
    kinds = {arrays.DTYPES[x.dtype.name]: x.dtype for x in host.values()}
    names = {ours: theirs for theirs, ours in arrays.DTYPES.items()}
    dtype = kinds.get(found.dtype) or np.dtype(names[found.dtype])
    result = owner.read(np.empty(found.shape, dtype))
    if out is None:
        return result
    if out.shape != result.shape or out.dtype != result.dtype or not out.flags.writeable:
        raise OperandError(f"out must be a writable {result.dtype} array of shape {result.shape}")
    out[...] = result
    return given["out"]


def _sent(x: Array, name: str) -> Matrix:
    """A host array on the device, lying there as it did here where it is contiguous either way."""
    seen = arrays.view(x, name)
    transposed = x.ndim == 2 and x.flags.f_contiguous and not x.flags.c_contiguous
    dense = x.T if transposed else np.ascontiguousarray(x)
    memory = DeviceArray(dense.shape, seen.dtype).fill(dense)
    matrix = memory.matrix()
    return matrix._replace(shape=x.shape, strides=matrix.strides[::-1]) if transposed else matrix


def _on_device(given: dict[str, Any], options: Options) -> Any:
    a, out = given["a"], given["out"]
    if options.beta == 0:
        given["c"] = None
    seen, stream = views(given, a)
    target = seen.pop("out", None)
    owner, _ = _product(seen, (target, out) if target else None, options, a, stream)
    return owner


def views(given: dict[str, Any], first: Any) -> tuple[dict[str, Matrix], int]:
    """Device arrays as they lie, and the stream of the first one, which waits for what other streams do to them."""
    stream = arrays.current_stream(first)
    seen = {name: arrays.view(x, name, stream) for name, x in given.items() if x is not None}
    device = next(iter(seen.values())).device
    for matrix in seen.values():
        if matrix.device != device:
            check_place(given)
            raise OperandError(f"the arrays lie on devices {', '.join(f'{name}: {x.device}' for name, x in seen.items())}; one is needed")
    for matrix in seen.values():
        if matrix.stream is not None and matrix.stream != stream:
            synchronize(matrix.stream)
    return seen, stream


class _Ready(NamedTuple):
    """What products of operands that lie alike have in common."""

    product: Product
    result: str
    shape: tuple[int, int]
    flip: bool  # C^T = op(B)^T op(A)^T
    epilogue: Any  # without bias


ready: Recent[Any] = Recent(256)  # what lies how, and what is asked -> what is ready for it; of convolutions, too


def signature(seen: dict[str, Matrix]) -> Hashable:
    """How arrays lie: what a launch depends on but for where exactly."""
    return tuple((name, x.shape, x.strides, x.dtype, x.pointer % ALIGNED) for name, x in seen.items())


def _product(
    seen: dict[str, Matrix],
    target: tuple[Matrix, Any] | None,
    options: Options,
    like: Any = None,
    stream: int = 0,
) -> tuple[Any, Matrix]:
    """Launches the product of matrices on the device into `target` or new memory; (the array, how it lies)."""
    key = (signature(seen), target and signature({"out": target[0]}), options)
    one: _Ready = ready.get(key) or ready.put(key, _make_ready(seen, target[0] if target else None, options))
    if target is None:
        owner = arrays.empty_like_kind(like, one.shape, one.result) if like is not None else None
        owner = DeviceArray(one.shape, one.result) if owner is None else owner
        at = owner.pointer if isinstance(owner, DeviceArray) else arrays.pointer(owner, "the result", stream)
        c = Matrix(at, one.shape, (one.shape[1], 1), one.result, seen["a"].device, None, owner)
    else:
        c, owner = target
        check_apart(c, {name: x for name, x in seen.items() if name != "c"})
    workspace = workspace_like(like, one.product.workspace_bytes, stream)
    epilogue = with_bias(one.epilogue, seen.get("bias"))
    if "c" in seen:
        _put(seen["c"], c, stream)
    a, b = seen["a"].pointer, seen["b"].pointer
    one.product.run((b, a, c.pointer) if one.flip else (a, b, c.pointer), workspace[1], epilogue, stream)
    return owner, c


def _make_ready(seen: dict[str, Matrix], target: Matrix | None, options: Options) -> _Ready:
    """Checks how operands lie, and chooses the schedule of their product."""
    a, b = _contiguous(seen["a"], "a"), _contiguous(seen["b"], "b")
    how = multiplied(a, b, options.dtype)
    if options.beta != 0 and "c" not in seen:
        raise OperandError(f"beta is {options.beta}, so c must be given")
    if how == "s8" and not (float(options.alpha).is_integer() and float(options.beta).is_integer()):
        raise OperandError(f"alpha is {options.alpha} and beta is {options.beta}; for s8, whose result is exact, both are whole numbers")
    (k, m), (n, depth) = a.shape[:: 1 if options.trans_a else -1], b.shape[:: 1 if options.trans_b else -1]
    if k != depth:
        raise OperandError(f"op(a) has {k} columns but op(b) has {depth} rows; they must agree")
    result = target.dtype if target else seen["c"].dtype if "c" in seen else result_of(how)
    if result not in RESULTS[how]:
        raise OperandError(f"a product of {how} cannot result in {result}; it may in {' or '.join(RESULTS[how])}")
    layout = target.layout if target else arrays.Layout(False, n)
    if target and (target.shape != (m, n) or layout is None):
        have = f"{target.shape}, strides {target.strides}"
        raise OperandError(f"out must be a matrix of shape {(m, n)} with contiguous rows or columns; it has {have}")
    assert layout is not None
    if "c" in seen and (seen["c"].shape != (m, n) or seen["c"].dtype != result):
        raise OperandError(f"c is {seen['c'].dtype} of shape {seen['c'].shape}, but the result is {result} of shape {(m, n)}")
    bias = _bias(seen.get("bias"), n, result)
    pitches, flip = (a.layout, b.layout), layout.transposed
    flags = [flag != bool(lies and lies.transposed) for flag, lies in zip((options.trans_a, options.trans_b), pitches, strict=True)]
    if flip and bias:
        raise OperandError("a column-major out takes no bias, which is one value per column: give a row-major out")
    workload = Gemm(m=m, n=n, k=k, trans_a=flags[0], trans_b=flags[1], dtype=how)
    operands, widths = (a.pointer, b.pointer, 0), [lies.pitch if lies else 0 for lies in pitches]
    if flip:
        workload = Gemm(m=n, n=m, k=k, trans_a=not flags[1], trans_b=not flags[0], dtype=how)
        operands, widths = (b.pointer, a.pointer, 0), widths[::-1]
    epilogue = epilogue_struct(options.alpha, options.beta, 0, options.activation)
    product = Product(workload, options.choose_schedule(workload), operands, result=result, pitches=(widths[0], widths[1], layout.pitch))
    return _Ready(product, result, (m, n), flip, epilogue)


def with_bias(epilogue: Any, bias: Matrix | None) -> Any:
    """An epilogue, or a copy that has a bias: the epilogue itself is of all threads."""
    if bias is None:
        return epilogue
    ffi, _ = library()
    own = ffi.new("pysim_cuda_epilogue *", epilogue[0])
    own.bias = ffi.cast("void *", bias.pointer)
    return own


def workspace_like(like: Any, size: int, stream: int) -> tuple[Any, int]:
    """So many bytes on the device, by the library of `like` if there is one and it can, as (owner, pointer)."""
    if not size:
        return None, 0
    memory = arrays.empty_like_kind(like, (size,), "u8") if like is not None else None
    return own_bytes(size) if memory is None else (memory, arrays.pointer(memory, "workspace", stream))


def _contiguous(x: Matrix, name: str) -> Matrix:
    if len(x.shape) != 2:
        raise OperandError(f"{name} must be a matrix; its shape is {x.shape}")
    if not all(x.shape):
        raise OperandError(f"{name} has shape {x.shape}; no size may be 0")
    if x.layout is None:
        raise OperandError(f"{name} has strides {x.strides}: neither its rows nor its columns are contiguous; pass a contiguous copy")
    return x


def multiplied(a: Matrix, b: Matrix, dtype: str | None, names: tuple[str, str] = ("a", "b")) -> str:
    """How two operands are multiplied."""
    if a.dtype != b.dtype:
        raise OperandError(f"{names[0]} is {a.dtype} and {names[1]} is {b.dtype}; both must be of one type")
    known: Sequence[str] = MULTIPLIED.get(a.dtype, ())
    if dtype is None and known and a.dtype != "u8":
        return known[0]
    if dtype is None or dtype not in known:
        allowed = f"with dtype={' or '.join(map(repr, known))}" if known else "not at all"
        raise OperandError(f"arrays of {a.dtype} are multiplied {allowed}; dtype is {dtype!r}; types are {', '.join(GEMM_DTYPES)}")
    return dtype


def check_apart(out: Matrix, seen: dict[str, Matrix]) -> None:
    for name, one in seen.items():
        if out.overlaps(one):
            raise OperandError(f"out overlaps {name}, which is read while it is written")


def _put(source: Matrix, c: Matrix, stream: int) -> None:
    """Copies c, which is read, into the result, where it is added to."""
    if (source.pointer, source.strides) == (c.pointer, c.strides):
        return
    dense = math.prod(c.shape) * SIZES[c.dtype]
    if source.strides != c.strides or source.span[1] - source.span[0] != dense or source.overlaps(c):
        raise OperandError("c must be dense, lie as the result does (row-major unless out says otherwise) and not overlap out but be it")
    copy(c.pointer, source.pointer, dense, "PYSIM_ON_DEVICE", stream)


def _bias(bias: Matrix | None, n: int, result: str) -> int:
    """The pointer of n values of the result's type, or 0."""
    if bias is None:
        return 0
    if bias.shape != (n,) or (n > 1 and bias.strides != (1,)):
        raise OperandError(f"bias has shape {bias.shape}; it must be {n} contiguous values, one per column")
    if bias.dtype != result:
        raise OperandError(f"bias is {bias.dtype}; it must be of the result's type, {result}")
    return bias.pointer
