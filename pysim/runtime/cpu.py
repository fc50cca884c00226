# SPDX-License-Identifier: Apache-2.0
"""The only importer of the native library: cffi reads `native/pysim.h`, status codes become exceptions, arrays become pointers.

An executor decides which library is called: this computer's (LOCAL), or another CPU's in an emulator (`pysim.runtime.emulated`).
"""

import importlib.resources
import math
import os
import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, Protocol
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pysim.arguments import Activation
from pysim.arguments import activation as activation_of
from pysim.caches import once
from pysim.errors import MissingError, NativeError, OperandError, PlanError, quoted
from pysim.logs import LOG
from pysim.machine.allowed import allowed
from pysim.problem.conv import Conv
from pysim.problem.dtypes import BY_NAME
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.record.integers import Integers
from pysim.record.plan import Layout, blocks_of, native_blocks
from pysim.record.schedule import PACK, STATIONARY, Schedule
from pysim.registry.cpu import algorithms, cpu_epilogues, cpu_kernel, cpu_kernels, kind_of, tables
from pysim.registry.native_files import ffi_beside, refuse_other_build

Array = NDArray[Any]
# NumPy has no bf16: an array of ml_dtypes (known by its dtype's name), or its bits as uint16
NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32), "f64": np.dtype(np.float64), "bf16": np.dtype(np.uint16), "s8": np.dtype(np.int8)
}  # fmt: skip
RESULT_DTYPES = NUMPY_DTYPES | {"bf16": np.dtype(np.float32), "s8": np.dtype(np.int32)}  # of the result and the bias
_ALIGNMENT = 64
Opened = tuple[Any, Any]  # cffi's (ffi, lib) of a native library


def stored_dtype(name: str) -> np.dtype[Any]:
    """The NumPy type of an operand or a result; u8 and s32 are no problem's dtype."""
    others: dict[str, np.dtype[Any]] = {"s32": np.dtype(np.int32), "u8": np.dtype(np.uint8)}
    return others.get(name) or NUMPY_DTYPES[name]


def library_path() -> Path:
    """The path of the native library: $PYSIM_LIBRARY, or inside the installed package."""
    override = os.environ.get("PYSIM_LIBRARY")
    path = Path(override) if override else Path(str(importlib.resources.files("pysim") / "native" / "libpysim.so"))
    if not path.exists():
        raise MissingError(f"the native library is not at {path}; install the package with `pip install .` (needs gcc)")
    return path


@once
def library() -> Opened:
    """(ffi, lib): the declarations of `pysim.h` and the opened library."""
    ffi = ffi_beside(library_path(), "pysim_declarations")
    try:
        lib = ffi.dlopen(str(library_path()))
    except OSError as error:
        right = "unset PYSIM_LIBRARY, or " if os.environ.get("PYSIM_LIBRARY") else ""
        raise MissingError(f"the native library cannot be opened: {error}; {right}reinstall the package with `pip install .`") from None
    try:
        version = lib.pysim_abi_version()
    except AttributeError:
        raise MissingError(f"{library_path()} is another library, not pysim's; unset PYSIM_LIBRARY or reinstall the package") from None
    right = "unset PYSIM_LIBRARY or reinstall the package"
    if version != lib.PYSIM_ABI_VERSION:
        raise MissingError(f"{library_path()} speaks ABI {version}, this package {lib.PYSIM_ABI_VERSION}; {right}")
    its = ffi.string(lib.pysim_tables()).decode().splitlines() if hasattr(lib, "pysim_tables") else []
    refuse_other_build(library_path(), its, tables(lib.PYSIM_DECLARATIONS), right)
    lib.pysim_own_cpus(allowed().cpus, len(allowed().cpus))
    LOG.info("opened %s", library_path())
    return ffi, lib


class Executor(Protocol):
    """Decides which native library is called. `library` gives (ffi, lib), where lib has the functions of `pysim.h`. `runner` gives
    `pysim_run` of a problem under a schedule, as a function of the remaining arguments. The times of an "emulated" one mean nothing.
    """

    @property
    def kind(self) -> Literal["local", "emulated"]: ...
    @property
    def about(self) -> str: ...
    def library(self) -> tuple[Any, Any]: ...
    def runner(self, problem: Any, schedule: Any) -> Callable[..., int]: ...


class _Local:
    """The library of this computer's CPU, in this process."""

    kind: Literal["local"] = "local"
    about = "this computer"
    library = staticmethod(library)

    def runner(self, problem: Any, schedule: Any) -> Callable[..., int]:
        return partial(library()[1].pysim_run_job, open_job(problem, schedule))


LOCAL: Executor = _Local()


def check(status: int, executor: Executor = LOCAL) -> None:
    """Raises an error with the library's message for any status but PYSIM_OK."""
    if status:
        ffi, lib = executor.library()
        raise NativeError(ffi.string(lib.pysim_last_error()).decode())


@contextmanager
def rounding_once() -> Iterator[None]:
    """Calls of this thread whose multiply-adds of float32 round once in all operators, on any CPU."""
    _, lib = library()
    lib.pysim_round_once(1)
    try:
        yield
    finally:
        lib.pysim_round_once(-1)


class Fingerprints:
    """Fingerprints of blocks of memory, given by addresses and bytes: `changed` tells which were written to since it looked at them before.
    Of blocks larger than `whole_bytes` it reads samples."""

    def __init__(self, addresses: ArrayLike, sizes: ArrayLike, whole_bytes: int = 1024) -> None:
        self._ffi, lib = library()
        self._arrays = np.asarray(addresses, np.uintp), np.asarray(sizes, np.int64)
        self.seen, self._changed = np.zeros(self._arrays[1].size, np.uint64), np.empty(self._arrays[1].size, np.int64)
        kinds = "void *const *", "int64_t *", "uint64_t *", "int64_t *"
        given = (*self._arrays, self.seen, self._changed)
        self._places = [self._ffi.cast(kind, one.ctypes.data) for kind, one in zip(kinds, given, strict=True)]
        self._changes, self._compare, self._whole_bytes = self._ffi.new("int64_t *"), lib.pysim_fingerprints, whole_bytes

    def changed(self, first: int = 0, count: int | None = None) -> list[int]:
        """The indices of those of `count` blocks from the `first` that differ from their last look."""
        memory, sizes, seen, changed = self._places
        count = len(self.seen) if count is None else count
        check(self._compare(count, memory + first, sizes + first, self._whole_bytes, seen + first, changed, self._changes))
        return [first + self._changed.item(at) for at in range(self._changes[0])]


def open_job(problem: Any, schedule: Any) -> Any:
    """A job of the C ABI, checked once for many runs; it needs neither struct afterwards."""
    ffi, lib = library()
    job = ffi.new("int64_t[]", lib.pysim_job_bytes() // 8)
    check(lib.pysim_open(problem, schedule, job, ffi.sizeof(job)))
    return job


def available_kernels(executor: Executor = LOCAL) -> frozenset[str]:
    """Names of the registry rows that the executor's CPU and build can run."""
    ffi, lib = executor.library()
    info = ffi.new("pysim_kernel_info *")
    names = set()
    for row in cpu_kernels():
        check(lib.pysim_kernel_at(row.index, info), executor)
        if info.available:
            names.add(row.name)
    return frozenset(names)


def _dtype_code(dtype: str, lib: Any) -> int:
    if dtype not in NUMPY_DTYPES:
        raise OperandError(f"the CPU kernels compute {', '.join(NUMPY_DTYPES)}, not {dtype}")
    return int(getattr(lib, f"PYSIM_{dtype.upper()}"))


def conv_struct(w: Conv) -> Any:
    """The `pysim_conv` of a workload."""
    ffi, lib = library()
    return ffi.new("pysim_conv *", _conv_fields(w, lib))


def _conv_fields(w: Conv, lib: Any) -> dict[str, int]:
    return w.sizes | {"dtype": _dtype_code(w.dtype, lib)}


def _gemm_fields(w: Gemm, lib: Any) -> dict[str, int]:
    """The fields of a product of dense row-major operands."""
    leading = {"lda": w.m if w.trans_a else w.k, "ldb": w.k if w.trans_b else w.n, "ldc": w.n}
    return {"m": w.m, "n": w.n, "k": w.k, "trans_a": w.trans_a, "trans_b": w.trans_b, "dtype": _dtype_code(w.dtype, lib), **leading}


def problem_struct(w: Workload, layout: Layout = "nchw", of: Opened | None = None) -> Any:
    """The `pysim_problem` of a workload with dense operands; `layout` applies to convolutions; `of`: another library than this one."""
    ffi, lib = of or library()
    if isinstance(w, Conv):
        fields = {"conv": _conv_fields(w, lib) | dict(zip(("input_block", "output_block"), native_blocks(w, layout), strict=True))}
    else:
        fields = {"gemm": _gemm_fields(w, lib)}
    return ffi.new("pysim_problem *", {"kind": getattr(lib, f"PYSIM_{kind_of(w)}"), **fields})


def schedule_struct(s: Schedule, w: Workload) -> Any:
    """The `pysim_schedule` of a schedule for a workload."""
    kernel = cpu_kernel(s.kernel)
    if kernel is None:
        raise PlanError(f"the registry has no kernel {s.kernel!r}; `pysim kernels` lists them")
    algorithm = next((one.index for one in algorithms() if one.problem == kind_of(w) and s.algorithm in (None, one.name)), None)
    if algorithm is None:
        raise PlanError(f"the native library has no algorithm {s.algorithm!r} that computes {w.text}")
    return library()[0].new("pysim_schedule *", schedule_fields(s, algorithm, kernel.index))


def schedule_fields(s: Schedule, algorithm: int, kernel: int) -> dict[str, int]:
    """The fields of a `pysim_schedule` of these rows of a library's tables."""
    fields = {"windows": s.windows, "filters": s.filters, "channels": s.channels, "k2": s.k2, "k3": s.k3, "outputs": s.outputs or 0}
    return fields | {"algorithm": algorithm, "kernel": kernel, "stationary": STATIONARY.index(s.stationary), "pack": PACK.index(s.pack)}


def aligned(shape: tuple[int, ...] | int, dtype: Any) -> Array:
    """An uninitialised array aligned to a cache line."""
    dtype, shape = np.dtype(dtype), shape if isinstance(shape, tuple) else (shape,)
    nbytes = math.prod(shape) * dtype.itemsize
    try:
        raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
    except (MemoryError, ValueError) as error:
        raise OperandError(f"cannot allocate {nbytes} bytes for an array of shape {shape}") from error
    return np.ndarray(shape, dtype, raw, -raw.__array_interface__["data"][0] % _ALIGNMENT)


_PAGE = 4096  # bytes below which NumPy has memory sooner


class Results:
    """New arrays of one shape, in memory of an earlier one that nothing refers to any more: aligned memory takes longer, and large memory
    comes cleared, which takes as long as a layer that writes much. Any thread may take arrays and let go of them."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self._shape, self._dtype, self._idle = shape, np.dtype(dtype), list[Any]()  # what loans keep
        self._is_small = math.prod(shape) * self._dtype.itemsize < _PAGE

    def take(self) -> Array:
        """An uninitialised array, aligned to a cache line if it is as large as a page."""
        if self._is_small:
            return np.empty(self._shape, self._dtype)
        try:
            return np.asarray(_Loan(self._idle.pop(), self._idle))
        except IndexError:
            memory = aligned(self._shape, self._dtype)
            return np.asarray(_Loan((memory, memory.__array_interface__), self._idle))


class _Loan:
    """What an array of `Results` refers to: when no view of it is left, its memory is idle, with the interface that is slow to make."""

    __slots__ = ("__array_interface__", "_idle", "_kept")

    def __init__(self, kept: tuple[Array, dict[str, Any]], idle: list[Any]) -> None:
        self.__array_interface__, self._kept, self._idle = kept[1], kept, idle

    def __del__(self) -> None:
        if not self._idle:
            self._idle.append(self._kept)


def operand(x: Any, name: str, shape: tuple[int, ...], dtype: str) -> Array:
    """`x` as a dense array of this shape and a problem's dtype, without a copy if possible; OperandError names what differs."""
    x = as_numpy(x, name)
    if dtype == "bf16" and x.dtype.name == "bfloat16":
        x = x.view(np.uint16)
    if x.dtype != stored_dtype(dtype):
        right = "bf16: pass bfloat16 arrays (ml_dtypes), or their bits as uint16" if dtype == "bf16" else f"{stored_dtype(dtype)}"
        raise OperandError(f"{name} is {x.dtype}, but the problem computes in {right}")
    return dense(x, name, shape)


def addend(x: Any, name: str, shape: tuple[int, ...], dtype: str, of: str | None = None) -> Array:
    """A bias or C as a dense array of this shape and the result's dtype, or that of bytes `of`; errors as in `operand`."""
    x, right = as_numpy(x, name), stored_dtype(of) if of else RESULT_DTYPES[dtype]
    if x.dtype != right:
        raise OperandError(f"{name} is {x.dtype}, but " + (f"{of} is added" if of else f"the results of {dtype} are {right}"))
    return dense(x, name, shape)


def types_of(w: Workload, layout: Layout = "nchw") -> tuple[str, str, "np.dtype[Any]"]:
    """The types of the first and the second operand, and how the result is stored. Of a bf16 convolution with an output in channel blocks
    only what lies in blocks is bf16; the rest is float32 (native/pysim.h)."""
    read, written = blocks_of(layout)
    if w.dtype != "bf16" or written == 1:
        return w.dtype, w.dtype, RESULT_DTYPES[w.dtype]
    return "bf16" if read > 1 else "f32", "f32", NUMPY_DTYPES["bf16"]


def is_dense(x: Array) -> bool:
    """Whether the library can read the array in place: C-contiguous, and aligned to its element size."""
    return x.flags.c_contiguous and x.flags.aligned


def dense(x: Array, name: str, shape: tuple[int, ...]) -> Array:
    """`x` in this shape if the library can read it in place, else a copy."""
    if x.shape != shape:
        raise OperandError(f"{name} has shape {x.shape}, but the problem needs {shape}")
    if is_dense(x):
        return x
    copy = aligned(shape, x.dtype)
    copy[...] = x
    return copy


def as_numpy(x: Any, name: str) -> Array:
    """A CPU array as NumPy sees it, through the array interface, DLPack or a copy."""
    if type(x) is np.ndarray:
        return x
    if isinstance(x, np.ma.MaskedArray):
        raise OperandError(f"{name} is a masked array, and kernels do not read masks; expected {name}.filled(0), or another value")
    if isinstance(x, np.ndarray):
        return x
    if x is None or isinstance(x, str | bytes):
        raise OperandError(f"{name} is {quoted(x)}; expected an array")
    if hasattr(x, "__cuda_array_interface__") or "cuda" in str(getattr(x, "device", "")):
        raise MissingError(f"{name} lies on a GPU, and this build has no CUDA kernels; pass a CPU array")
    if getattr(x, "requires_grad", False) is True:  # NumPy refuses these; `arrays.refuse_gradients` ran before
        x = x.detach()
    try:
        if hasattr(x, "is_neg") and x.is_neg():  # DLPack lacks this flag: PyTorch's imag(conj(z)) is stored negated
            x = x.resolve_neg()
        if str(getattr(x, "dtype", "")) == "torch.bfloat16":  # a type that NumPy itself lacks
            import ml_dtypes

            return np.from_dlpack(x.view(sys.modules["torch"].int16)).view(ml_dtypes.bfloat16)
        if hasattr(x, "__dlpack__") and not hasattr(x, "__array_interface__"):
            view: Array = np.from_dlpack(x)
            return view
        return np.asarray(x)
    except Exception as error:  # another library's array may raise anything
        raise OperandError(f"{name} is a {type(x).__name__}, which NumPy cannot view as an array: {error}") from error


def planes(shape: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    """(N, C, H, W) of an input of this shape in this layout."""
    block = blocks_of(layout)[0]
    if layout == "nhwc":
        if len(shape) != 4:
            raise OperandError(f"x has shape {shape}; in layout nhwc it is (N, H, W, C)")
        return (shape[0], shape[3], *shape[1:3])
    if block == 1:
        return shape
    if len(shape) != 5 or shape[-1] != block:
        raise OperandError(f"x has shape {shape}; in layout {layout} it is (N, C/{block}, H, W, {block}), C a multiple of {block}")
    return (shape[0], shape[1] * block, *shape[2:4])


_DTYPES = {BY_NAME[name].array: name for name in NUMPY_DTYPES}  # by the name of an array's dtype


def dtype_of(bits: str | None, *arrays: Any) -> str:
    """The problem's dtype, from the arrays' types; `bits`: of uint16 arrays, if known."""
    names = {str(array.dtype) for array in arrays}
    if names == {"uint16"} and bits:
        return bits
    if len(names) != 1 or not names <= _DTYPES.keys():
        unknown = "; uint16 is taken for the bits of bf16 only with a plan or a problem text of that type" if "uint16" in names else ""
        right = f"the CPU kernels take {', '.join(_DTYPES)}, the same for all arrays"
        raise OperandError(f"the arrays are {' and '.join(sorted(names))}; {right}{unknown}")
    return _DTYPES[names.pop()]


def like(x: Any, result: Array) -> Any:
    """`result` as an array of the library of `x`, in the same memory, if that library supports DLPack."""
    if isinstance(x, np.ndarray):
        return result
    namespace = sys.modules.get(type(x).__module__.partition(".")[0])
    wrap = getattr(namespace, "from_dlpack", None)
    return wrap(result) if wrap and hasattr(x, "__dlpack__") else result


def output(out: Any, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
    """`out` as a writable view, or a new array, with the result's dtype; OperandError if `out` does not fit."""
    if out is None:
        return aligned(shape, kind)
    array = as_numpy(out, "out")
    if array is not out and not np.may_share_memory(array, as_numpy(out, "out")):
        raise OperandError(f"out is a {type(out).__name__}, which NumPy can only copy; expected a writable array")
    flags = array.flags
    if array.shape != shape or array.dtype != kind or not flags.carray:
        faults = {"read-only": not flags.writeable, "not C-contiguous": not flags.c_contiguous, "not aligned": not flags.aligned}
        found = ", ".join([f"{array.dtype} of shape {array.shape}", *(fault for fault, there in faults.items() if there)])
        raise OperandError(f"out is {found}; expected a writable, aligned and C-contiguous {kind} array of shape {shape}")
    return array


def check_apart(out: Array, **operands: Any) -> None:
    """OperandError if out overlaps an operand. The library cannot detect that where it gets a copy of the operand."""
    for name, x in operands.items():
        if x is not None and np.may_share_memory(out, as_numpy(x, name)):
            raise OperandError(f"out overlaps {name}, which is read while it is written")


_addends: WeakKeyDictionary[Any, tuple[Array | None, Array | None]] = WeakKeyDictionary()
_scales: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def epilogue_struct(
    alpha: float,
    beta: float,
    bias: Array | None,
    activation: Activation,
    residual: Array | None = None,
    integers: Integers | None = None,
) -> Any:
    """A `pysim_epilogue`. It keeps bias, residual and scales alive; `addends_of` returns the first two."""
    if bias is None and residual is None and integers is None and isinstance(activation, Hashable):
        return _plain(alpha, beta, activation)
    epilogue = _epilogue(alpha, beta, activation)
    pointer = library()[0].from_buffer
    if bias is not None:
        epilogue.bias = pointer(bias)
    if residual is not None:
        epilogue.residual = pointer(residual)
    if integers is not None:
        _set_integers(epilogue, integers)
    _addends[epilogue] = bias, residual
    return epilogue


def _set_integers(epilogue: Any, integers: Integers) -> None:
    ffi, lib = library()
    epilogue.first_unsigned, epilogue.first_zero = integers.unsigned, integers.first_zero
    if integers.scales is None:
        return
    epilogue.scales, epilogue.scale_count = ffi.from_buffer("float *", integers.scales), integers.scales.size
    epilogue.result, epilogue.result_zero = getattr(lib, f"PYSIM_{integers.result.upper()}"), integers.result_zero
    _scales[epilogue] = integers
    if (by := integers.result_scales) is not None:
        epilogue.result_scales, epilogue.result_scale_count = ffi.from_buffer("float *", by), by.size
    epilogue.shifts = ffi.NULL if integers.shifts is None else ffi.from_buffer("float *", integers.shifts)
    if integers.sum is not None:
        epilogue.sum = integers.sum.of


def _epilogue(alpha: float, beta: float, activation: Activation) -> Any:
    ffi, _ = library()
    number, low, high = activation_of(activation, cpu_epilogues())
    fields = {"alpha": alpha, "beta": beta, "activation": number, "low": low, "high": high}
    return ffi.new("pysim_epilogue *", fields)


_plain = lru_cache(maxsize=64)(_epilogue)  # structs without a bias, never modified


def addends_of(epilogue: Any) -> tuple[Array | None, Array | None]:
    """The arrays of an epilogue's bias and residual. The struct has only their addresses, not their lengths."""
    return _addends.get(epilogue, (None, None))


def _probed(name: str, *arguments: Any) -> float:
    """The number that a probe of the library writes."""
    ffi, lib = library()
    result = ffi.new("double *")
    check(getattr(lib, f"pysim_probe_{name}")(*arguments, result))
    return float(result[0])


def _probed_in(name: str, nbytes: int, *arguments: Any) -> float:
    """The same of a probe of a buffer, which is written before."""
    buffer = aligned(nbytes, np.uint8)
    buffer[:] = 0
    return _probed(name, library()[0].from_buffer(buffer), nbytes, *arguments)


def probe_clock() -> float:
    """Core clock in Hz, measured by a chain of dependent additions."""
    return _probed("clock")


def probe_fma(target: str, dtype: str) -> float:
    """Multiply-add instructions per second on one registry target."""
    return _probed("fma", target.encode(), _dtype_code(dtype, library()[1]))


def probe_read(nbytes: int, seconds: float) -> float:
    """Bytes per second of one core that reads a buffer of this size repeatedly for `seconds`."""
    return _probed_in("read", nbytes, seconds)


def probe_write(nbytes: int, seconds: float) -> float:
    """Bytes per second of one core that writes a buffer of this size."""
    return _probed_in("write", nbytes, seconds)


def probe_latency(nbytes: int, line_bytes: int, seconds: float) -> float:
    """Seconds per dependent load, over all lines of a buffer of this size in random order."""
    return _probed_in("latency", nbytes, line_bytes, seconds)


def probe_line_transfer(nbytes: int, line_bytes: int, seconds: float) -> float:
    """Seconds per line of a buffer that two CPUs of a team pass to and fro: of one line, its transfer alone. NativeError if the team has
    one CPU."""
    return _probed_in("line_transfer", nbytes, line_bytes, seconds)
