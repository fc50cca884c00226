# SPDX-License-Identifier: Apache-2.0
"""Calls of products and convolutions on arrays: their layouts, the launch prepared for these (`PreparedCall`), memory, launching.

Work goes to the stream of the first array and is not waited for. NumPy arrays are copied to the device and the result back. A launch is
prepared once for arrays of the same layouts.
"""

import threading
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from pysim.caches import LruCache
from pysim.errors import OperandError
from pysim.runtime import arrays, cuda
from pysim.runtime.arrays import SIZES, Matrix
from pysim.runtime.cuda import Array

ALIGNMENT_BYTES = 256  # alignment of PyTorch's and CUDA's allocations; no kernel needs more
KEPT_BYTES = 8 << 20  # largest workspace kept for a stream; launches that need more take longer than an allocation
PERMUTED = (0, 2, 3, 1)  # N C H W -> N H W C
STREAMS = 8  # streams for which a thread keeps a workspace


class PreparedCall(NamedTuple):
    """A launch prepared for arrays of given layouts."""

    launch: cuda.Launch
    operands: tuple[str, str]  # the names of its first and second operand
    shape: tuple[int, ...]  # of the result, in the order of its memory
    result: str
    epilogue: Any  # without bias
    channels_last: bool = False  # layout of the result
    converts_second: bool = False  # the second operand must be converted to the layout of the first
    alignment: int = 1  # of operands in bytes; unaligned ones are copied


# (the arrays by the names of their arguments, options, out) -> the prepared launch
Prepare = Callable[[dict[str, Matrix], Any, Matrix | None], PreparedCall]
Order = Callable[[Array], tuple[int, ...]]  # the order of a host array's axes in its copy on the device


class _Entry(NamedTuple):
    """A prepared launch, and what depends on the library of the arrays."""

    ready: PreparedCall
    allocate: Callable[[], Any] | None  # allocates the result; None: the library of the arrays cannot
    nbytes: dict[str, int]  # spanned by each array


cache: LruCache[_Entry] = LruCache(256)  # by options and layouts of the arrays


def call(prepare: Prepare, given: dict[str, Any], options: Hashable, order: Order) -> Any:
    """Runs the launch made by `prepare` on the named arrays. The result is `out` or a new array of the first one's library."""
    first = next(iter(given.values()))
    library = arrays.library_of(type(first))
    if not library.is_cuda(first):
        _check_place(given)
        return _from_host(prepare, given, options, order)
    if len(cuda.devices()) == 1:
        return _on_device(prepare, given, options, library, first)
    with library.on_device(first):
        return _on_device(prepare, given, options, library, first)


def _check_place(given: dict[str, Any]) -> None:
    """OperandError if some arrays are on a GPU and some in host memory."""
    places = {name: arrays.is_cuda(x) for name, x in given.items() if x is not None}
    here = [name for name, on in places.items() if on]
    there = [name for name, on in places.items() if not on]
    if here and there:
        raise OperandError(f"{', '.join(here)} lie on a GPU but {', '.join(there)} in host memory; expected all in one place")


def _on_device(prepare: Prepare, given: dict[str, Any], options: Hashable, library: arrays.Library, first: Any) -> Any:
    stream = library.stream(first)
    seen = {name: arrays.view(x, name, stream) for name, x in given.items() if x is not None}
    key_parts: list[Any] = [prepare, options, type(first)]
    for name, x in seen.items():
        if x.stream is not None and x.stream != stream:
            cuda.synchronize(x.stream)
        key_parts.append((name, x.shape, x.strides, x.dtype, x.device, x.pointer % ALIGNMENT_BYTES))
    target, key = seen.pop("out", None), tuple(key_parts)
    entry = cache.get(key)
    if entry is None:
        _check_devices(given, seen, target)
        entry = cache.put(key, _entry(prepare, seen, options, target, library, first))
    ready = entry.ready
    if target is not None:
        out, pointer = given["out"], target.pointer
        _check_apart(target, seen, entry.nbytes)
    else:
        out, pointer = _result(entry, library, stream)
    if ready.converts_second:
        name = ready.operands[1]
        copied = library.with_layout(given[name], ready.channels_last)
        if copied is None:
            layout = "NHWC" if ready.channels_last else "NCHW"
            strides = seen[name].strides
            raise OperandError(
                f"{ready.operands[0]} lies {layout} but {name} has strides {strides}; pass a copy of {name} that lies so too"
            )
        seen[name] = arrays.view(copied, name, stream)
    if "c" in seen:
        _copy_c(seen["c"], pointer, target.strides if target else arrays.dense(ready.shape), stream)
    _launch(ready, seen, pointer, stream, (library, first, seen[ready.operands[0]].device))
    return out


def _check_devices(given: dict[str, Any], seen: dict[str, Matrix], target: Matrix | None) -> None:
    """OperandError if the arrays are on several devices."""
    devices = {name: x.device for name, x in seen.items()} | ({"out": target.device} if target else {})
    if len(set(devices.values())) > 1:
        _check_place(given)
        raise OperandError(f"the arrays lie on devices {', '.join(f'{name}: {on}' for name, on in devices.items())}; one is needed")


def _entry(prepare: Prepare, seen: dict[str, Matrix], options: Any, target: Matrix | None, library: arrays.Library, first: Any) -> _Entry:
    ready = prepare(seen, options, target)
    sizes = {name: x.nbytes for name, x in seen.items()} | ({"out": target.nbytes} if target else {})
    return _Entry(ready, library.maker(first, ready.shape, ready.result), sizes)


def _result(entry: _Entry, library: arrays.Library, stream: int) -> tuple[Any, int]:
    """A new array for the result, and its address."""
    ready = entry.ready
    if entry.allocate is None:
        if ready.channels_last:
            raise OperandError("the result cannot be made here to lie channels last; pass out")
        own = cuda.DeviceArray(ready.shape, ready.result)
        return own, own.pointer
    out = entry.allocate()
    pointer = library.pointer(out, stream)
    return library.channels_second(out) if ready.channels_last else out, pointer


def _check_apart(out: Matrix, seen: dict[str, Matrix], nbytes: dict[str, int]) -> None:
    end = out.pointer + nbytes["out"]
    for name, x in seen.items():
        if name != "c" and out.pointer < x.pointer + nbytes[name] and x.pointer < end:
            raise OperandError(f"out overlaps {name}, which is read while it is written")


def _copy_c(c: Matrix, result: int, strides: tuple[int, ...], stream: int) -> None:
    """Copies c into the result, to which the launch adds."""
    if (c.pointer, c.strides) == (result, strides):
        return
    dense = int(np.prod(c.shape)) * SIZES[c.dtype]
    apart = result + dense <= c.pointer or c.pointer + dense <= result
    if c.strides != strides or c.nbytes != dense or not apart:
        raise OperandError("c must be dense, lie as the result does (row-major unless out says otherwise) and not overlap out but be it")
    cuda.copy(result, c.pointer, dense, "PYSIM_ON_DEVICE", stream)


def _launch(
    ready: PreparedCall, seen: dict[str, Matrix], result: int, stream: int, place: tuple[arrays.Library, Any, int | None] | None
) -> None:
    """Launches on the stream, with a workspace from `place`: the arrays' library, one of them, their device."""
    first, second = seen[ready.operands[0]], seen[ready.operands[1]]
    if ready.alignment > 1:
        first, second = _aligned(first, ready.alignment, stream), _aligned(second, ready.alignment, stream)
    _owner, work = workspace(ready.launch.workspace_bytes, stream, place)  # kept until the work is on the stream
    bias = seen.get("bias")
    epilogue = ready.epilogue if bias is None else _with_bias(ready.epilogue, bias.pointer)
    ready.launch.run(first.pointer, second.pointer, result, work, epilogue, stream)


def _aligned(x: Matrix, alignment: int, stream: int) -> Matrix:
    """An operand, or an aligned copy, as TMA requires; copying waits for the stream."""
    if x.pointer % alignment == 0:
        return x
    memory = cuda.DeviceArray((x.nbytes,), "u8")
    cuda.copy(memory.pointer, x.pointer, x.nbytes, "PYSIM_ON_DEVICE", stream)
    return msgspec.structs.replace(x, pointer=memory.pointer, owner=memory)


@lru_cache(maxsize=1024)
def _with_bias(epilogue: Any, bias: int) -> Any:
    """A copy of an epilogue with a bias. Nothing changes either struct, so all threads share them."""
    ffi, _ = cuda.library()
    own = ffi.new("pysim_cuda_epilogue *", epilogue[0])
    own.bias = ffi.cast("void *", bias)
    return own


class _Workspaces(threading.local):
    """The workspaces of one thread, one per stream. A thread's launches on a stream run in order and may share it; the kernels of two
    threads' launches on one stream may interleave."""

    def __init__(self) -> None:
        self.of_stream: LruCache[tuple[int, Any, int]] = LruCache(STREAMS)  # device and stream -> bytes, array, pointer


_workspaces = _Workspaces()


def workspace(size: int, stream: int, place: tuple[arrays.Library, Any, int | None] | None) -> tuple[Any, int]:
    """Device memory of this size, from the arrays' own library if it can allocate: (owner, address)."""
    if not size:
        return None, 0
    if place is None:
        return cuda.own_bytes(size)
    library, like, device = place
    keeps = size <= KEPT_BYTES and library.keeps()
    mine, key = _workspaces.of_stream, (device, stream)
    if keeps and (found := mine.get(key)) and found[0] >= size:
        return found[1:]
    make = library.maker(like, (size,), "u8")
    if make is None:
        return cuda.own_bytes(size)
    memory = make()
    pointer = library.pointer(memory, stream)
    if keeps:
        mine.put(key, (size, memory, pointer))
    return memory, pointer


def forget_workspaces() -> None:
    """Frees the workspaces of this thread."""
    _workspaces.of_stream.clear()


# Host arrays


def _from_host(prepare: Prepare, given: dict[str, Any], options: Hashable, order: Order) -> Any:
    """Copies the arrays to the device, computes there, and copies the result back."""
    host = {name: np.asarray(x) for name, x in given.items() if x is not None}
    out = host.pop("out", None)
    seen = {name: _to_device(x, name, order(x)) for name, x in host.items()}
    ready = prepare(seen, options, None)
    if ready.converts_second:  # send the second operand again, in the layout of the launch
        name = ready.operands[1]
        seen[name] = _to_device(host[name], name, PERMUTED if ready.channels_last else (0, 1, 2, 3))
    target = cuda.DeviceArray(ready.shape, ready.result)
    if "c" in seen:
        _copy_c(seen["c"], target.pointer, arrays.dense(ready.shape), 0)
    _launch(ready, seen, target.pointer, 0, None)
    kinds = {arrays.DTYPES[x.dtype.name]: x.dtype for x in host.values()}
    names = {ours: theirs for theirs, ours in arrays.DTYPES.items()}
    found = target.read(np.empty(ready.shape, kinds.get(ready.result) or np.dtype(names[ready.result])))
    found = found.transpose(0, 3, 1, 2) if ready.channels_last else found
    if out is None:
        return found
    if out.shape != found.shape or out.dtype != found.dtype or not out.flags.writeable:
        raise OperandError(f"out must be a writable {found.dtype} array of shape {found.shape}")
    out[...] = found
    return given["out"]


def _to_device(x: Array, name: str, order: tuple[int, ...]) -> Matrix:
    """A dense copy of a host array on the device, its axes in this order."""
    seen = arrays.view(x, name)
    dense = np.ascontiguousarray(x.transpose(order))
    memory = cuda.DeviceArray(dense.shape, seen.dtype).fill(dense)
    by_axis = dict(zip(order, arrays.dense(dense.shape), strict=True))
    strides = tuple(by_axis[axis] for axis in range(x.ndim))
    return msgspec.structs.replace(seen, pointer=memory.pointer, strides=strides, device=0, owner=memory)


# Checks of operands


# Element type of an array -> the types in which it may be multiplied, the default first
MULTIPLIED = {
    "f32": ("f32", "tf32", "tf32x3"), "f64": ("f64",), "f16": ("f16",), "bf16": ("bf16",), "s8": ("s8",), "f8": ("f8",), "u8": ("f8",),
}  # fmt: skip


def multiplied(first: Matrix, second: Matrix, dtype: str | None, names: tuple[str, str]) -> str:
    """The type in which two operands are multiplied."""
    if first.dtype != second.dtype:
        raise OperandError(f"{names[0]} is {first.dtype} and {names[1]} is {second.dtype}; expected one type")
    known: tuple[str, ...] = MULTIPLIED.get(first.dtype, ())
    if dtype is None and known and first.dtype != "u8":
        return known[0]
    if dtype is None or dtype not in known:
        allowed = f"with dtype={' or '.join(map(repr, known))}" if known else "not at all"
        raise OperandError(f"arrays of {first.dtype} are multiplied {allowed}; dtype is {dtype!r}; types are {', '.join(cuda.RESULTS)}")
    return dtype


def check_result(what: str, dtype: str, result: str) -> None:
    if result not in cuda.RESULTS[dtype]:
        raise OperandError(f"a {what} of {dtype} cannot result in {result}; it may in {' or '.join(cuda.RESULTS[dtype])}")


def check_bias(bias: Matrix | None, count: int, each: str, result: str) -> None:
    """OperandError unless bias is None or has one contiguous value of the result's type for each column or filter."""
    if bias is None:
        return
    if bias.shape != (count,) or (count > 1 and bias.strides != (1,)):
        raise OperandError(f"bias has shape {bias.shape}; expected {count} contiguous values, one per {each}")
    if bias.dtype != result:
        raise OperandError(f"bias is {bias.dtype}; expected the result's type, {result}")
