# SPDX-License-Identifier: Apache-2.0
"""Views of other libraries' arrays as pointer, shape and strides: through NumPy's interface, `__cuda_array_interface__` or DLPack; and the
arrays of a call on a GPU (`Operands`), for which host arrays are copied to the device.

CUDA arrays are viewed through `__cuda_array_interface__` (version 3), or through DLPack for types that it lacks
(bfloat16). For PyTorch's tensors either takes tens of microseconds, so their own methods are called instead. `Matrix.layout` is row-major
with a pitch, or column-major, which is a transposed row-major one. A `Library` allocates arrays of the caller's library.
"""

import ctypes
import sys
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from pysim.errors import OperandError
from pysim.problem.dtypes import TABLE
from pysim.problem.transposed import Moves
from pysim.registry.cuda import CONV_LAYOUTS
from pysim.runtime import cuda
from pysim.runtime.cuda import SIZES

DTYPES = {one.array: one.name for one in TABLE if one.array} | {"uint8": "u8"}  # names of NumPy (or ml_dtypes) -> ours
ALIGNMENT_BYTES = 256  # alignment of PyTorch's and CUDA's allocations; no kernel needs more
_NAMES = {ours: theirs for theirs, ours in DTYPES.items()}
_CUDA, _CUDA_MANAGED = 2, 13  # DLPack's device types
_DLPACK = {(0, 8): "s8", (0, 32): "s32", (1, 8): "u8", (2, 16): "f16", (2, 32): "f32", (2, 64): "f64", (4, 16): "bf16", (10, 8): "f8"}
# what libraries raise for an array that they cannot export
_REFUSALS = (AttributeError, BufferError, NotImplementedError, RuntimeError, TypeError, ValueError)
_TYPESTR = {"f4": "f32", "f8": "f64", "f2": "f16", "i1": "s8", "i4": "s32", "u1": "u8"}


class Layout(NamedTuple):
    """A matrix as rows of `pitch` elements in memory: its own rows, or, transposed, its columns."""

    transposed: bool
    pitch: int


class Matrix(msgspec.Struct, frozen=True):
    """`strides` are in elements. `stream`: the stream that orders work on the array, None if its interface gives none."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: int | None  # None: host memory
    stream: int | None
    owner: Any  # keeps the memory alive

    @property
    def layout(self) -> Layout | None:
        """Row- or column-major with a pitch; None if neither rows nor columns are contiguous."""
        rows, columns = self.shape
        down, right = self.strides
        if (right == 1 or columns == 1) and (down >= columns or rows == 1):
            return Layout(False, down if rows > 1 else max(1, columns))
        if (down == 1 or rows == 1) and (right >= rows or columns == 1):
            return Layout(True, right if columns > 1 else max(1, rows))
        return None

    @property
    def nbytes(self) -> int:
        """Bytes spanned in memory, from the first element to the end of the last; strides must not be negative."""
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return (last + 1) * SIZES[self.dtype]


class _Tensor(ctypes.Structure):
    """DLTensor of DLPack (dlpack.h), the first member of the struct in a capsule named "dltensor"."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def is_cuda(x: Any) -> bool:
    """Whether an array lies on a CUDA device."""
    return library_of(type(x)).is_cuda(x)


def refuse_gradients(**given: Any) -> None:
    """OperandError for a tensor that requires a gradient, unless PyTorch's gradients are disabled: no backward pass exists here."""
    for name, x in given.items():
        if getattr(x, "requires_grad", False) is True:
            enabled = getattr(sys.modules.get("torch"), "is_grad_enabled", None)
            if enabled is None or enabled():
                right = f"pass {name}.detach(), or call under torch.no_grad()"
                raise OperandError(f"{name} requires a gradient, and none would reach it through this call: {right}")


def view(x: Any, name: str, stream: int = 0) -> Matrix:
    """A view of an array that will be used on `stream`. OperandError if it cannot be viewed or its type is unknown."""
    try:
        found = library_of(type(x)).view(x, stream)
    except _REFUSALS as error:
        raise OperandError(f"{name} is a {type(x).__name__} that does not show its memory: {error}") from None
    if found is None:
        right = ", ".join(DTYPES)
        raise OperandError(f"{name} has the type {getattr(x, 'dtype', 'unknown')}; known are {right}")
    return found


def _of_numpy(x: Any) -> Matrix | None:
    if x.dtype.name not in DTYPES:
        return None
    strides = tuple(stride // x.itemsize for stride in x.strides)
    if any(stride % x.itemsize for stride in x.strides):
        strides = tuple(0 for _ in strides)  # not a multiple of the element size: no layout that a kernel could take
    return Matrix(x.ctypes.data, x.shape, strides, DTYPES[x.dtype.name], None, None, x)


def _of_interface(x: Any) -> Matrix | None:
    """A view through `__cuda_array_interface__`; None if there is none or it cannot express the type."""
    try:
        about = x.__cuda_array_interface__
    except (AttributeError, KeyError, TypeError):
        return None
    typestr = about["typestr"]
    if typestr[1:] not in _TYPESTR or typestr[0] == ">":
        return None
    shape, dtype = tuple(map(int, about["shape"])), _TYPESTR[typestr[1:]]
    size = SIZES[dtype]
    strides = about.get("strides")
    steps = dense(shape) if strides is None else tuple(int(stride) // size for stride in strides)
    return Matrix(int(about["data"][0] or 0), shape, steps, dtype, _device_of(x), about.get("stream"), x)


def _of_dlpack(x: Any, stream: int) -> Matrix | None:
    capsule = x.__dlpack__(stream=stream or 1)  # 1: the legacy default stream
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = ctypes.cast(get(capsule, b"dltensor"), ctypes.POINTER(_Tensor)).contents
    dtype = _DLPACK.get((tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        return None
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else dense(shape)
    return Matrix((tensor.data or 0) + tensor.byte_offset, shape, strides, dtype, tensor.device_id, None, (x, capsule))


def dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of rows without gaps."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


def _device_of(x: Any) -> int:
    """The number of the device; 0 if the array does not give it."""
    try:
        return int(x.__dlpack_device__()[1])
    except _REFUSALS:
        return 0


# Libraries with arrays on a device


class Library:
    """Views and allocates arrays of one library. This base class views any array with `__cuda_array_interface__` or DLPack; it allocates
    none."""

    def is_cuda(self, x: Any) -> bool:
        try:
            return int(x.__dlpack_device__()[0]) in (_CUDA, _CUDA_MANAGED)
        except _REFUSALS:
            pass
        try:
            return x.__cuda_array_interface__ is not None
        except _REFUSALS:
            return False

    def view(self, x: Any, stream: int) -> Matrix | None:
        """A view of an array; None if its type is unknown."""
        return _of_interface(x) or _of_dlpack(x, stream) if self.is_cuda(x) else _of_numpy(np.asarray(x))

    def pointer(self, x: Any, stream: int) -> int:
        """The address of a new CUDA array."""
        return view(x, "an array made here", stream).pointer

    def stream(self, x: Any) -> int:
        """The library's current stream, else the one that the array's interface gives, else the default stream."""
        try:
            return int(x.__cuda_array_interface__.get("stream") or 0)
        except (AttributeError, KeyError, TypeError):
            return 0

    def on_device(self, x: Any) -> AbstractContextManager[Any]:
        """Makes the device of an array the current one, if the library supports that."""
        return nullcontext()

    def maker(self, like: Any, shape: tuple[int, ...], dtype: str) -> Callable[[], Any] | None:
        """A function that allocates uninitialised arrays on the device of `like`; None if the library cannot."""
        return None

    def keeps(self) -> bool:
        """Whether memory allocated now may be kept for later work on the same stream."""
        return False

    def with_layout(self, x: Any, channels_last: bool) -> Any | None:
        """A dense copy of an array of images or volumes, NCHW or channels last, made on the current stream; None if the library cannot."""
        return None

    def moves(self, like: Any) -> Moves:
        """What moves elements of arrays on the device of `like`. OperandError if the library has nothing."""
        raise OperandError(f"arrays of {type(like).__name__} are not rearranged here; pass torch or CuPy arrays")

    def channels_second(self, x: Any) -> Any:
        """An N H W C array viewed as N C H W, or of volumes N D H W C as N C D H W."""
        return x.transpose(channels_second(x.ndim))


class _Torch(Library):
    def __init__(self, module: Any) -> None:
        self._module, raw = module, getattr(module, "_C", None)
        self._raw_stream = getattr(raw, "_cuda_getCurrentRawStream", None)  # as torch.compile's own code does
        self._is_capturing = getattr(raw, "_cuda_isCurrentStreamCapturing", None)

    def is_cuda(self, x: Any) -> bool:
        return getattr(x, "is_cuda", False) is True

    def view(self, x: Any, stream: int) -> Matrix | None:
        if not x.is_cuda:
            return _of_numpy(np.asarray(x))
        dtype = _torch_dtype(x.dtype)
        if dtype is None:
            return None
        if x.is_neg():
            raise ValueError("its numbers lie there negated; pass x.resolve_neg()")
        return Matrix(x.data_ptr(), tuple(x.shape), x.stride(), dtype, x.get_device(), None, x)

    def pointer(self, x: Any, stream: int) -> int:
        return int(x.data_ptr())

    def stream(self, x: Any) -> int:
        raw = self._raw_stream
        return int(raw(x.get_device()) if raw else self._module.cuda.current_stream(x.device).cuda_stream)

    def on_device(self, x: Any) -> AbstractContextManager[Any]:
        found: AbstractContextManager[Any] = self._module.cuda.device(x.device)
        return found

    def maker(self, like: Any, shape: tuple[int, ...], dtype: str) -> Callable[[], Any] | None:
        # a microsecond less than `empty`
        return partial(self._module.empty_strided, shape, dense(shape), dtype=getattr(self._module, _NAMES[dtype]), device=like.device)

    def keeps(self) -> bool:
        """Not during a CUDA graph capture: the graph has memory of its own, and may be replayed on any stream."""
        return self._is_capturing is not None and not self._is_capturing()

    def with_layout(self, x: Any, channels_last: bool) -> Any | None:
        last = self._module.channels_last if x.dim() == 4 else self._module.channels_last_3d
        lies = last if channels_last else self._module.contiguous_format
        return x.detach().contiguous(memory_format=lies)

    def moves(self, like: Any) -> Moves:
        of = self._module
        return Moves(partial(of.zeros, device=like.device), partial(of.empty, device=like.device), of.flip, of.permute)

    def channels_second(self, x: Any) -> Any:
        return x.permute(channels_second(x.dim()))


class _Cupy(Library):
    def __init__(self, module: Any) -> None:
        self._module = module

    def stream(self, x: Any) -> int:
        return int(self._module.cuda.get_current_stream().ptr)

    def on_device(self, x: Any) -> AbstractContextManager[Any]:
        found: AbstractContextManager[Any] = self._module.cuda.Device(_device_of(x))
        return found

    def maker(self, like: Any, shape: tuple[int, ...], dtype: str) -> Callable[[], Any] | None:
        name = _NAMES[dtype]
        return None if name in ("bfloat16", "float8_e4m3fn") else partial(self._module.empty, shape, dtype=name)

    def with_layout(self, x: Any, channels_last: bool) -> Any | None:
        dense = self._module.ascontiguousarray
        return self.channels_second(dense(x.transpose(permuted(x.ndim)))) if channels_last else dense(x)

    def moves(self, like: Any) -> Moves:
        of = self._module
        return Moves(of.zeros, of.empty, of.flip, of.transpose)


class _Numpy(Library):
    def __init__(self, module: Any) -> None:
        pass

    def is_cuda(self, x: Any) -> bool:
        return False

    def view(self, x: Any, stream: int) -> Matrix | None:
        return _of_numpy(np.asarray(x))


_KNOWN: dict[str, Callable[[Any], Library]] = {"torch": _Torch, "cupy": _Cupy, "numpy": _Numpy}


def _library_of(kind: type) -> Library:
    name = kind.__module__.partition(".")[0]
    module = sys.modules.get(name)
    return _KNOWN[name](module) if name in _KNOWN and module is not None else Library()


_libraries = lru_cache(maxsize=256)(_library_of)
library_of: Callable[[type], Library] = _libraries  # array type -> its library


@lru_cache(maxsize=64)
def _torch_dtype(dtype: Any) -> str | None:
    """Our name of a torch.dtype."""
    return DTYPES.get(str(dtype).removeprefix("torch."))


# The arrays of a call


class Operands(NamedTuple):
    """The arrays of a call. `seen`: their views by the names of their arguments, without out. `key`: all of them but their memory, so
    that equal keys can share a prepared launch. `stream`: of the first array. `host`: whether they are copies of host arrays."""

    given: dict[str, Any]
    seen: dict[str, Matrix]
    out: Matrix | None
    key: Hashable
    library: Library
    stream: int = 0
    host: bool = False

    @property
    def first(self) -> Any:
        return next(iter(self.given.values()))

    def converted(self, name: str, like: str, channels_last: bool) -> Matrix:
        """A copy of an array of images or volumes that lies NCHW or channels last, as the one named `like` does."""
        if self.host:  # it is sent again
            given = np.asarray(self.given[name])
            return _to_device(given, name, permuted(given.ndim) if channels_last else tuple(range(given.ndim)))
        copied = self.library.with_layout(self.given[name], channels_last)
        if copied is None:
            layout, strides = "NHWC" if channels_last else "NCHW", self.seen[name].strides
            raise OperandError(f"{like} lies {layout} but {name} has strides {strides}; pass a copy of {name} that lies so too")
        return view(copied, name, self.stream)


def operands_of(given: dict[str, Any]) -> Operands:
    """Views of the arrays by the names of their arguments, the first one and maybe `out` among them; None is left out."""
    first = next(iter(given.values()))
    library = library_of(type(first))
    if not library.is_cuda(first):
        _check_place(given)
        host = {name: np.asarray(x) for name, x in given.items() if x is not None and name != "out"}
        sent = {name: _to_device(x, name, _order(x, name)) for name, x in host.items()}
        key = tuple((name, x.shape, x.strides, x.dtype) for name, x in sent.items())
        return Operands(given, sent, None, ("host", *key), library, host=True)
    stream = library.stream(first)
    seen = {name: view(x, name, stream) for name, x in given.items() if x is not None}
    parts: list[Any] = [type(first)]
    for name, x in seen.items():
        if x.stream is not None and x.stream != stream:
            cuda.synchronize(x.stream)
        parts.append((name, x.shape, x.strides, x.dtype, x.device, x.pointer % ALIGNMENT_BYTES))
    return Operands(given, seen, seen.pop("out", None), tuple(parts), library, stream)


def _check_place(given: dict[str, Any]) -> None:
    """OperandError if some arrays are on a GPU and some in host memory."""
    places = {name: is_cuda(x) for name, x in given.items() if x is not None}
    here = [name for name, on in places.items() if on]
    there = [name for name, on in places.items() if not on]
    if here and there:
        raise OperandError(f"{', '.join(here)} lie on a GPU but {', '.join(there)} in host memory; expected all in one place")


def check_devices(operands: Operands) -> None:
    """OperandError if the arrays are on several devices."""
    devices = {name: x.device for name, x in operands.seen.items()} | ({"out": operands.out.device} if operands.out else {})
    if len(set(devices.values())) > 1:
        _check_place(operands.given)
        raise OperandError(f"the arrays lie on devices {', '.join(f'{name}: {on}' for name, on in devices.items())}; one is needed")


def _order(x: Any, name: str) -> tuple[int, ...]:
    """The order of a host array's axes in its copy on the device: column-major or channels last if it lies so, else row-major."""
    if x.flags.c_contiguous or x.ndim not in (2, 4, 5):
        return tuple(range(x.ndim))
    if x.ndim == 2:
        return (1, 0) if x.flags.f_contiguous else (0, 1)
    return permuted(x.ndim) if lying(view(x, name)) == ["nhwc"] else tuple(range(x.ndim))


def _to_device(x: Any, name: str, order: tuple[int, ...]) -> Matrix:
    """A dense copy of a host array on the device, its axes in this order."""
    seen = view(x, name)
    copy = np.ascontiguousarray(x.transpose(order))
    memory = cuda.DeviceArray(copy.shape, seen.dtype).fill(copy)
    by_axis = dict(zip(order, dense(copy.shape), strict=True))
    strides = tuple(by_axis[axis] for axis in range(x.ndim))
    return msgspec.structs.replace(seen, pointer=memory.pointer, strides=strides, device=0, owner=memory)


@lru_cache
def permuted(rank: int) -> tuple[int, ...]:
    """The axes N C H W, or N C D H W, in the order N H W C."""
    return (0, *range(2, rank), 1)


@lru_cache
def channels_second(rank: int) -> tuple[int, ...]:
    """The axes N H W C in the order N C H W."""
    return (0, rank - 1, *range(1, rank - 1))


def lying(x: Matrix) -> list[str]:
    """The layouts in which an array of images or volumes is dense."""
    return [layout for layout in CONV_LAYOUTS if lies(x, layout)]


def lies(matrix: Matrix, layout: str) -> bool:
    """Whether an array of images or volumes is dense in a layout; strides of dimensions of size 1 are ignored."""
    rank = len(matrix.shape)
    order = range(rank) if layout == "nchw" else permuted(rank)
    step = 1
    for axis in reversed(order):
        if matrix.shape[axis] > 1 and matrix.strides[axis] != step:
            return False
        step *= matrix.shape[axis]
    return True
