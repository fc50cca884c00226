# SPDX-License-Identifier: Apache-2.0
"""The only importer of the CUDA library: devices, kernels' attributes, memory, and launches of products and convolutions.

The library (libpysim_cuda.so, `native/pysim_cuda.h`) is opened when first needed. MissingError says whether the library, the driver or the
device is missing, and how to get it.
"""

import importlib.resources
import importlib.util
import math
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
from numpy.typing import NDArray

from pysim.arguments import Activation as Activation
from pysim.arguments import activation as activation_of
from pysim.caches import once
from pysim.errors import MissingError, NativeError, OperandError, PlanError
from pysim.logs import LOG
from pysim.problem import dtypes
from pysim.problem.conv import Conv
from pysim.problem.text import Workload
from pysim.problem.transposed import Phase, Transposed
from pysim.record.schedule import DECOMPOSITIONS, GpuSchedule
from pysim.registry.cuda import CONV_LAYOUTS, Attributes, ConvKernel, GemmKernel, conv_kernel, epilogues, gemm_kernel, tables
from pysim.registry.native_files import ffi_beside, refuse_other_build

Array = NDArray[Any]

# type of the multiplication -> possible types of the result, the default first
RESULTS = {one.name: one.gpu_results for one in dtypes.TABLE if one.gpu_results}
SIZES = dtypes.SIZES | {"u8": 1}  # bytes of an element


class Device(msgspec.Struct, frozen=True):
    """The properties of a CUDA device."""

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
    """The path of the CUDA library: $PYSIM_CUDA_LIBRARY, inside the installed package, or that of the distribution pysim-planner-cu13."""
    override = os.environ.get("PYSIM_CUDA_LIBRARY")
    path = Path(override) if override else Path(str(importlib.resources.files("pysim") / "native" / "libpysim_cuda.so"))
    if not override and not path.exists() and (beside := importlib.util.find_spec("pysim_cu13")) and beside.origin:
        path = Path(beside.origin).parent / "libpysim_cuda.so"
    if not path.exists():
        absent = path if override else "pysim/native/libpysim_cuda.so"  # an editable install has no folder for it
        raise MissingError(
            f"no CUDA kernel is in this build (there is no {absent}): install nvcc, or its wheels (pip install nvidia-cuda-nvcc "
            "nvidia-cuda-runtime nvidia-cuda-crt nvidia-nvvm), and then this package again with `pip install .`"
        )
    return path


@once
def library() -> tuple[Any, Any]:
    """(ffi, lib): the declarations of `pysim_cuda.h` and the opened CUDA library; needs no driver and no device."""
    path = library_path()
    ffi = ffi_beside(path, "pysim_cuda_declarations")
    try:
        lib = ffi.dlopen(str(path))
        its = _tables(ffi, lib)
    except (OSError, AttributeError) as error:
        raise MissingError(f"the CUDA library cannot be opened: {error}; reinstall the package with `pip install .`") from None
    right = "unset PYSIM_CUDA_LIBRARY or reinstall the package"
    refuse_other_build(path, its, tables(lib.PYSIM_DECLARATIONS, lib.PYSIM_CUDA_DECLARATIONS), right)
    LOG.info("opened %s", path)
    return ffi, lib


def _tables(ffi: Any, lib: Any) -> list[str]:
    """Of the library: `pysim_cuda_tables` and the names of its rows."""
    names, lines = [], ffi.string(lib.pysim_cuda_tables()).decode().splitlines()
    for kind in ("gemm", "conv"):
        info, describe = ffi.new(f"pysim_cuda_{kind}_info *"), getattr(lib, f"pysim_cuda_{kind}_at")
        for index in range(getattr(lib, f"pysim_cuda_{kind}_count")()):
            describe(index, info)
            names.append(ffi.string(info.name).decode())
    return [*lines, *names]


def check(status: int) -> None:
    """Raises an error with the library's message for any status but PYSIM_OK."""
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
    usable, info = [], ffi.new("pysim_cuda_device *")
    for index in range(count[0]):
        check(lib.pysim_cuda_device_at(index, info))
        same = {name: int(getattr(info, name)) for name in Device.__struct_fields__ if name not in ("index", "name", "capability")}
        usable.append(Device(index=index, name=ffi.string(info.name).decode(), capability=10 * info.major + info.minor, **same))
    return tuple(usable)


# Structs

_prologues: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # epilogue -> the structs that it points to


def dtype_code(dtype: str) -> int:
    return int(getattr(library()[1], f"PYSIM_{dtype.upper()}"))


def result_of(dtype: str) -> str:
    """The default type of C."""
    return RESULTS[dtype][0]


def problem_struct(w: Workload, result: str, layout: str = "nchw", pitches: tuple[int, int, int] | None = None, prepared: int = 0) -> Any:
    """The `pysim_cuda_problem` of a convolution in a layout, or of a product with these pitches of A, B and C (None: dense) and what of B
    is prepared, an address or 0."""
    ffi, lib = library()
    types = {"dtype": dtype_code(w.dtype), "c_dtype": dtype_code(result)}
    if isinstance(w, Conv):
        shape = w.sizes | {"dtype": types["dtype"]}
        conv = {"shape": shape, "layout": CONV_LAYOUTS.index(layout), "out_dtype": types["c_dtype"]}
        return ffi.new("pysim_cuda_problem *", {"kind": lib.PYSIM_CONV, "conv": conv})
    lda, ldb, ldc = pitches or (w.m if w.trans_a else w.k, w.k if w.trans_b else w.n, w.n)
    sizes = {"m": w.m, "n": w.n, "k": w.k, "lda": lda, "ldb": ldb, "ldc": ldc, "trans_a": w.trans_a, "trans_b": w.trans_b}
    sizes["prepared"] = ffi.cast("void *", prepared)
    return ffi.new("pysim_cuda_problem *", {"kind": lib.PYSIM_GEMM, "gemm": sizes | types})


def schedule_struct(s: GpuSchedule, w: Workload) -> Any:
    """The `pysim_cuda_schedule` of a schedule for a workload."""
    fields = {"splits": s.splits, "along_n": s.along_n, "group": s.group, "decomposition": DECOMPOSITIONS.index(s.decomposition)}
    rows = {"kernel": _row(w, s.kernel).index, "gemm": _row(None, s.gemm).index if s.gemm else -1}
    return library()[0].new("pysim_cuda_schedule *", fields | rows)


def _row(w: Workload | None, kernel: str) -> GemmKernel | ConvKernel:
    """The registry row of a kernel: of a convolution kernel if the workload is a Conv, else of a product kernel."""
    row = conv_kernel(kernel) if isinstance(w, Conv) else gemm_kernel(kernel)
    if row is None:
        kind = "convolution" if isinstance(w, Conv) else "kernel"
        raise PlanError(f"the registry has no CUDA {kind} {kernel!r}; `pysim kernels --cuda` lists them")
    return row


class Prologue(NamedTuple):
    """A scale and a shift that a kernel applies to a convolution's input as it loads it: device pointers or 0, with one value per channel.
    `by_image`: the scale has one value per image and channel."""

    scale: int = 0
    shift: int = 0
    by_image: bool = False
    relu: bool = False


def epilogue_struct(alpha: float, beta: float, bias: int, activation: Activation, scale: int = 0, prologue: Prologue | None = None) -> Any:
    """The `pysim_cuda_epilogue`: `bias` and `scale` are device pointers or 0, `activation` a name of epilogues.inc or ("clamp", low,
    high)."""
    ffi, _ = library()
    number, low, high = activation_of(activation, epilogues())
    largest = float(np.finfo(np.float32).max)
    bounds = [min(max(bound, -largest), largest) for bound in (low, high)]
    fields = {"alpha": alpha, "beta": beta, "bias": ffi.cast("void *", bias), "scale": ffi.cast("void *", scale), "activation": number}
    made = ffi.new("pysim_cuda_epilogue *", fields | {"low": bounds[0], "high": bounds[1]})
    if prologue:
        pointers = {"scale": ffi.cast("void *", prologue.scale), "shift": ffi.cast("void *", prologue.shift)}
        own = ffi.new("pysim_cuda_prologue *", pointers | {"by_image": prologue.by_image, "relu": prologue.relu})
        made.prologue = own
        _prologues[made] = own  # kept alive with the struct that points to it
    return made


def attributes(w: Workload, kernel: str, layout: str = "nchw") -> Attributes:
    """The compiled attributes (registers, spills ...) of the kernel that does most of the work."""
    ffi, lib = library()
    row, info = _row(w, kernel), ffi.new("pysim_cuda_attributes *")
    check(lib.pysim_cuda_attributes_of(problem_struct(w, result_of(w.dtype), layout), row.index, info))
    return Attributes(info.threads, info.registers, info.shared_bytes, info.local_bytes)


def refusal(row: GemmKernel | ConvKernel) -> str:
    """Why the first device cannot run a registry row with the library's code; "" if it can."""
    ffi, lib = library()
    devices()
    kind = lib.PYSIM_CONV if isinstance(row, ConvKernel) else lib.PYSIM_GEMM
    return ffi.string(lib.pysim_cuda_last_error()).decode() if lib.pysim_cuda_available(kind, row.index) else ""


# Memory


class DeviceArray:
    """A dense array on the current device, freed with the object. Other libraries view it through `__cuda_array_interface__`."""

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
        """Copies from a contiguous host array of the same number of bytes."""
        if host.nbytes != self.nbytes:
            raise OperandError(f"{host.nbytes} bytes do not fill {self.nbytes} bytes of device memory")
        copy(self.pointer, host.ctypes.data, host.nbytes, "PYSIM_TO_DEVICE")
        return self

    def read(self, into: Array) -> Array:
        """Copies into a contiguous host array of the same number of bytes, and waits."""
        if into.nbytes != self.nbytes:
            raise OperandError(f"{self.nbytes} bytes of device memory do not fill {into.nbytes} bytes")
        copy(into.ctypes.data, self.pointer, self.nbytes, "PYSIM_TO_HOST")
        return into


def copy(to: int, source: int, nbytes: int, direction: str, stream: int = 0) -> None:
    """Copies bytes and waits; `direction` is one of pysim_cuda_direction."""
    ffi, lib = library()
    to_from = (ffi.cast("void *", to), ffi.cast("void *", source))
    check(lib.pysim_cuda_copy(*to_from, nbytes, getattr(lib, direction), ffi.cast("void *", stream)))


def synchronize(stream: int = 0) -> None:
    """Waits for the work of a stream."""
    ffi, lib = library()
    check(lib.pysim_cuda_synchronize(ffi.cast("void *", stream)))


# Launches


def _run_at() -> Any:
    """`pysim_cuda_run` declared with integer addresses: converting five to pointers takes a microsecond, half of such a call."""
    ffi, lib = library()
    structs = "const pysim_cuda_problem *, const pysim_cuda_schedule *, const pysim_cuda_epilogue *"
    return ffi.cast(f"pysim_status (*)({structs}, uintptr_t, uintptr_t, uintptr_t, uintptr_t, int64_t, uintptr_t)", lib.pysim_cuda_run)


class Launch:
    """The structs of one problem under one schedule, without operands. `first` and `second`: addresses with the alignment of a product's
    operands; a run's operands must be aligned as well. `prepared`: what `prepare` made of a product's B, an address or 0."""

    def __init__(
        self,
        workload: Workload,
        schedule: GpuSchedule,
        *,
        result: str | None = None,
        layout: str = "nchw",
        pitches: tuple[int, int, int] | None = None,
        first: int = 0,
        second: int = 0,
        prepared: int = 0,
    ) -> None:
        ffi, lib = library()
        self._run = _run_at()
        self.problem = problem_struct(workload, result or result_of(workload.dtype), layout, pitches, prepared)
        self.schedule, size = schedule_struct(schedule, workload), ffi.new("int64_t *")
        operands = (ffi.cast("void *", pointer) for pointer in (first, second))
        check(lib.pysim_cuda_workspace_bytes(self.problem, self.schedule, *operands, size))
        self.workspace_bytes = int(size[0])

    @property
    def prepared_bytes(self) -> int:
        """Of what a run need not make again of a B that stays; 0 if it reads B alone."""
        ffi, lib = library()
        size = ffi.new("int64_t *")
        check(lib.pysim_cuda_prepared_bytes(self.problem, self.schedule, size))
        return int(size[0])

    def prepare(self, second: int, into: int, size: int, stream: int = 0) -> None:
        """Enqueues the conversion of this B into `prepared_bytes` of memory."""
        ffi, lib = library()
        pointers = (ffi.cast("void *", second), ffi.cast("void *", into))
        check(lib.pysim_cuda_prepare(self.problem, self.schedule, *pointers, size, ffi.cast("void *", stream)))

    def run(self, first: int, second: int, result: int, workspace: int, epilogue: Any, stream: int) -> None:
        """Enqueues it on a stream. Pointers are to A, B and C, or to input, filters and output."""
        if status := self._run(self.problem, self.schedule, epilogue, first, second, result, workspace, self.workspace_bytes, stream):
            check(status)

    def on(self, pointers: tuple[int, int, int], **given: Any) -> "Bound":
        """The launch bound to operands, to be run repeatedly; other arguments as in `Bound`."""
        return Bound(self, pointers, **given)


class Bound:
    """A launch with operand pointers, epilogue, workspace and stream. `make` allocates bytes on the device and returns (owner, pointer)."""

    def __init__(
        self,
        launch: Launch,
        pointers: tuple[int, int, int],
        *,
        epilogue: Any = None,
        stream: int = 0,
        make: Callable[[int], tuple[Any, int]] | None = None,
    ) -> None:
        ffi, self._lib = library()
        size = self.workspace_bytes = launch.workspace_bytes
        self._owner: Any
        self._owner, workspace = (make or own_bytes)(size) if size else (None, 0)
        *self._operands, at, self._stream = (ffi.cast("void *", pointer) for pointer in (*pointers, workspace, stream))
        self._problem, self._epilogue = launch.problem, epilogue or epilogue_struct(1.0, 0.0, 0, None)
        self._told = (launch.problem, launch.schedule, self._epilogue, *self._operands, at, size, self._stream)

    def run(self) -> None:
        """Enqueues it on the stream."""
        check(self._lib.pysim_cuda_run(*self._told))

    def reference(self) -> None:
        """Enqueues the reference instead: plain loops that accumulate in float64."""
        check(self._lib.pysim_cuda_reference(self._problem, self._epilogue, *self._operands, self._stream))

    def time(self, samples: int, warmups: int = 1) -> NDArray[np.float64]:
        """Device seconds of each of `samples` runs, each timed by two events."""
        seconds = np.empty(samples)
        check(self._lib.pysim_cuda_time(*self._told, warmups, samples, library()[0].cast("double *", seconds.ctypes.data)))
        return seconds


def own_bytes(size: int) -> tuple[Any, int]:
    """(owner, address) of device memory from this library."""
    memory = DeviceArray((size,), "u8")
    return memory, memory.pointer


@lru_cache(maxsize=256)
def _phases(axes: tuple[Phase, ...], batch: int, filters: int, layout: str, element_bytes: int) -> Any:
    missing = 3 - len(axes)
    sizes = {
        "strides": [1] * missing + [axis.stride for axis in axes],
        "starts": [0] * missing + [axis.start for axis in axes],
        "windows": [1] * missing + [axis.windows for axis in axes],
        "out": [1] * missing + [axis.out for axis in axes],
    }
    about = {"layout": CONV_LAYOUTS.index(layout), "element_bytes": element_bytes, "batch": batch, "filters": filters}
    return library()[0].new("pysim_cuda_phases *", about | sizes)


def interleave(of: Transposed, layout: str, element_bytes: int, y: int, out: int, stream: int) -> None:
    """The outputs of `of.problem` at the address y, interleaved at the address `out`, both dense in `layout`; enqueued on the stream."""
    ffi, lib = library()
    struct = _phases(of.axes, of.problem.batch, of.filters, layout, element_bytes)
    check(lib.pysim_cuda_interleave(struct, ffi.cast("void *", y), ffi.cast("void *", out), ffi.cast("void *", stream)))
