# SPDX-License-Identifier: Apache-2.0
"""Convolutions and products of arrays on a GPU, in three steps: views of the arrays, the launch for arrays that lie so, its run.

    arrays -> Operands (`pysim.runtime.arrays`) -> `conv_of`, `gemm_of` -> Task (a problem and its possible layouts)
    Task, schedule of its plan -> `prepared` -> PreparedCall -> its `run` on Operands

    y[n][f][p][q] = act(sum over c, r, s of x[n][c][p stride + r dilation - pad][q stride + s dilation - pad] w[f][c][r][s] + bias[f])
    result        = act(alpha op(a) op(b) + beta c + bias)

Volumes have a depth more. Under NHWC the memory of x and y is [n][h][w][c] and that of w [f][r][s][c]. The arrays keep the shapes above;
only their strides differ (PyTorch's channels_last). Row- and column-major matrices, so also transposed views, are used in place. Two kinds
of device operands are copied: filters in another layout than the input's, and operands that are not aligned to 16 bytes where a kernel
loads them by TMA.

Work goes to the stream of the first array and is not waited for. NumPy arrays are copied to the device and the result back.
"""

import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from pysim.caches import LruCache
from pysim.errors import OperandError
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm, product_of
from pysim.problem.text import Workload
from pysim.record.schedule import GpuSchedule
from pysim.registry.cuda import conv_kernel, gemm_kernel
from pysim.runtime import arrays, cuda
from pysim.runtime.arrays import Matrix, Operands, channels_second, permuted
from pysim.runtime.cuda import Activation

# Largest workspace kept for a stream. PyTorch allocates larger ones in its segments of 20 MiB and more, which a kept one would hold as a
# whole: in three streams of a ResNet-50 that was 80 MB
KEPT_BYTES = 1 << 20
VECTOR_BYTES = 16  # of a load of the kernels
STREAMS = 8  # streams for which a thread keeps a workspace


class Task(NamedTuple):
    """A problem that arrays make. `layouts`: in which a convolution's kernels may read and write them, the first preferred. `names`: of
    the kernel's first and second operand; `pitches`: of a product's operands and result."""

    workload: Workload
    shape: tuple[int, ...]  # of the result
    result: str
    layouts: tuple[str, ...] = ("nchw",)
    names: tuple[str, str] = ("a", "b")
    pitches: tuple[int, int, int] | None = None
    alpha: float = 1.0
    beta: float = 0.0


def conv_of(operands: Operands, windows: Callable[[tuple[int, ...], tuple[int, ...], str], Conv], dtype: str | None) -> Task:
    """The convolution of x and w; `windows` maps their shapes and the type of the multiplication to it, `dtype` is that type if there is a
    choice ("tf32" for float32)."""
    arrays.check_devices(operands)
    x, w, out = operands.seen["x"], operands.seen["w"], operands.out
    if len(x.shape) not in (4, 5) or not all(x.shape):
        raise OperandError(f"x must be [N][C][H][W] or [N][C][D][H][W] with no size 0; its shape is {x.shape}")
    readable = arrays.lying(x)
    if not readable:
        raise OperandError(f"x of shape {x.shape} has strides {x.strides}: neither NCHW nor channels last; pass a contiguous copy")
    layouts = [layout for layout in readable if arrays.lies(out, layout)] if out and len(out.shape) == len(x.shape) else readable
    how = _multiplied(x, w, dtype, ("x", "w"))
    problem = windows(x.shape, w.shape, how)
    result = out.dtype if out else cuda.result_of(how)
    _check_result("convolution", how, result)
    _check_bias(operands.seen.get("bias"), problem.filters, "filter", result)
    shape = problem.output_shape
    if out and (out.shape != shape or not layouts):
        have, layout = f"{out.shape}, strides {out.strides}", readable[0]
        raise OperandError(f"out has {have}; expected shape {shape} in {layout.upper()}, the layout of x")
    return Task(problem, shape, result, tuple(layouts), ("x", "w"))


def gemm_of(operands: Operands, alpha: float, beta: float, trans_a: bool, trans_b: bool, dtype: str | None) -> Task:
    """The product that the kernel computes: of matrices as they lie, and C^T = op(B)^T op(A)^T for a column-major out."""
    arrays.check_devices(operands)
    seen, out = operands.seen, operands.out
    a, b, c = _contiguous(seen["a"], "a"), _contiguous(seen["b"], "b"), seen.get("c")
    how = _multiplied(a, b, dtype, ("a", "b"))
    if beta != 0 and c is None:
        raise OperandError(f"beta is {beta}, so c must be given")
    if how == "s8" and not (float(alpha).is_integer() and float(beta).is_integer()):
        raise OperandError(f"alpha is {alpha} and beta is {beta}; for s8, whose result is exact, both are whole numbers")
    product = product_of(a.shape, b.shape, trans_a, trans_b, how)
    m, n, k = product.m, product.n, product.k
    result = out.dtype if out else c.dtype if c else cuda.result_of(how)
    _check_result("product", how, result)
    layout = _layout_of_result(out, (m, n))
    if c and (c.shape != (m, n) or c.dtype != result):
        raise OperandError(f"c is {c.dtype} of shape {c.shape}, but the result is {result} of shape {(m, n)}")
    _check_bias(seen.get("bias"), n, "column", result)
    if layout.transposed and "bias" in seen:
        raise OperandError("a column-major out takes no bias, which is one value per column: give a row-major out")
    one, other = (x.layout or arrays.Layout(False, 0) for x in (a, b))
    flip_a, flip_b = trans_a != one.transposed, trans_b != other.transposed
    if layout.transposed:
        workload = Gemm(m=n, n=m, k=k, trans_a=not flip_b, trans_b=not flip_a, dtype=how)
        pitches = other.pitch, one.pitch, layout.pitch
        return Task(workload, (m, n), result, names=("b", "a"), pitches=pitches, alpha=alpha, beta=beta)
    workload = Gemm(m=m, n=n, k=k, trans_a=flip_a, trans_b=flip_b, dtype=how)
    return Task(workload, (m, n), result, pitches=(one.pitch, other.pitch, layout.pitch), alpha=alpha, beta=beta)


def _layout_of_result(target: Matrix | None, shape: tuple[int, int]) -> arrays.Layout:
    layout = target.layout if target and len(target.shape) == 2 else arrays.Layout(False, shape[1])
    if target and (target.shape != shape or layout is None):
        have = f"{target.shape}, strides {target.strides}"
        raise OperandError(f"out has {have}; expected a matrix of shape {shape} with contiguous rows or columns")
    assert layout is not None
    return layout


def _contiguous(x: Matrix, name: str) -> Matrix:
    if len(x.shape) != 2:
        raise OperandError(f"{name} must be a matrix; its shape is {x.shape}")
    if not all(x.shape):
        raise OperandError(f"{name} has shape {x.shape}; no size may be 0")
    if x.layout is None:
        raise OperandError(f"{name} has strides {x.strides}: neither its rows nor its columns are contiguous; pass a contiguous copy")
    return x


# Element type of an array -> the types in which it may be multiplied, the default first
MULTIPLIED = {
    "f32": ("f32", "tf32", "tf32x3"), "f64": ("f64",), "f16": ("f16",), "bf16": ("bf16",), "s8": ("s8",), "f8": ("f8",), "u8": ("f8",),
}  # fmt: skip


def _multiplied(first: Matrix, second: Matrix, dtype: str | None, names: tuple[str, str]) -> str:
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


def _check_result(what: str, dtype: str, result: str) -> None:
    if result not in cuda.RESULTS[dtype]:
        raise OperandError(f"a {what} of {dtype} cannot result in {result}; it may in {' or '.join(cuda.RESULTS[dtype])}")


def _check_bias(bias: Matrix | None, count: int, each: str, result: str) -> None:
    """OperandError unless bias is None or has one contiguous value of the result's type for each column or filter."""
    if bias is None:
        return
    if bias.shape != (count,) or (count > 1 and bias.strides != (1,)):
        raise OperandError(f"bias has shape {bias.shape}; expected {count} contiguous values, one per {each}")
    if bias.dtype != result:
        raise OperandError(f"bias is {bias.dtype}; expected the result's type, {result}")


# The launch for arrays that lie so


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
    allocate: Callable[[], Any] | None = None  # allocates the result; None: the library of the arrays cannot
    nbytes: dict[str, int] = {}  # noqa: RUF012  spanned by each array; never changed

    def run(self, operands: Operands) -> Any:
        """The result of the launch on arrays that lie so: `out`, or a new array of the first one's library."""
        seen, target, stream, place = operands.seen, operands.out, operands.stream, None
        if operands.host:
            out = cuda.DeviceArray(self.shape, self.result)
            pointer = out.pointer
        elif target is not None:
            out, pointer = operands.given["out"], target.pointer
            _check_apart(target, seen, self.nbytes)
        else:
            out, pointer = self._new(operands.library, stream)
        first, second = self.operands
        if self.converts_second:
            seen[second] = operands.converted(second, first, self.channels_last)
        if "c" in seen:
            _copy_c(seen["c"], pointer, target.strides if target else arrays.dense(self.shape), stream)
        if not operands.host:
            place = operands.library, operands.first, seen[first].device
        _launch(self, seen, pointer, stream, place)
        return self._sent_back(out, operands) if operands.host else out

    def _new(self, library: arrays.Library, stream: int) -> tuple[Any, int]:
        """A new array for the result, and its address."""
        if self.allocate is None:
            if self.channels_last:
                raise OperandError("the result cannot be made here to lie channels last; pass out")
            own = cuda.DeviceArray(self.shape, self.result)
            return own, own.pointer
        out = self.allocate()
        pointer = library.pointer(out, stream)
        return library.channels_second(out) if self.channels_last else out, pointer

    def _sent_back(self, result: cuda.DeviceArray, operands: Operands) -> Any:
        """A copy of the result as the host arrays are, in `out` if given."""
        given = operands.given
        kinds = {arrays.DTYPES[x.dtype.name]: x.dtype for x in map(np.asarray, given.values()) if x.dtype.name in arrays.DTYPES}
        names = {ours: theirs for theirs, ours in arrays.DTYPES.items()}
        found = result.read(np.empty(self.shape, kinds.get(self.result) or np.dtype(names[self.result])))
        found = found.transpose(channels_second(found.ndim)) if self.channels_last else found
        if given.get("out") is None:
            return found
        out = np.asarray(given["out"])
        if out.shape != found.shape or out.dtype != found.dtype or not out.flags.writeable:
            raise OperandError(f"out must be a writable {found.dtype} array of shape {found.shape}")
        out[...] = found
        return given["out"]


def constant(array: Any, channels_last: bool) -> Any:
    """A constant operand: a copy if it lies in host memory or, of a convolution, in another layout."""
    if not arrays.is_cuda(array):
        return np.array(array)
    converted = arrays.library_of(type(array)).with_layout(array, channels_last) if len(array.shape) in (4, 5) else None
    return array if converted is None else converted


class Kept(NamedTuple):
    """What stays of a constant b on the device: its owner and its address."""

    owner: Any
    pointer: int


def kept_of(w: Gemm, schedule: GpuSchedule, operands: Operands) -> Kept | None:
    """What launches of this schedule need not make again of b, made now: None if they read b alone."""
    b, stream = _contiguous(operands.seen["b"], "b"), operands.stream
    lies = b.layout or arrays.Layout(False, 0)
    own = msgspec.structs.replace(w, trans_b=w.trans_b != lies.transposed)
    launch = cuda.Launch(own, schedule, pitches=(w.m if w.trans_a else w.k, lies.pitch, w.n))
    if not (size := launch.prepared_bytes):
        return None
    library = operands.library
    make = None if operands.host else library.maker(operands.first, (size,), "u8")
    owner = make() if make else cuda.DeviceArray((size,), "u8")
    pointer = library.pointer(owner, stream) if make else owner.pointer
    launch.prepare(b.pointer, pointer, size, stream)
    cuda.synchronize(stream)  # later calls may be on other streams
    return Kept(owner, pointer)


def prepared(
    task: Task, schedule: GpuSchedule, layout: str, operands: Operands, activation: Activation, kept: Kept | None = None
) -> PreparedCall:
    """The launch of a task by this schedule, in one of the task's layouts. `kept`: of b, which is not used for a transposed result."""
    seen, out, last = operands.seen, operands.out, layout == "nhwc"
    first, second = (seen[name] for name in task.names)
    shape = tuple(task.shape[axis] for axis in permuted(len(task.shape))) if last else task.shape
    conv, addresses = isinstance(task.workload, Conv), {"first": first.pointer, "second": second.pointer}
    how: dict[str, Any] = {"layout": layout} if conv else {"pitches": task.pitches, **addresses}
    if kept and task.names == ("a", "b"):
        how["prepared"] = kept.pointer
    return PreparedCall(
        launch=cuda.Launch(task.workload, schedule, result=task.result, **how),
        operands=task.names,
        shape=shape,
        result=task.result,
        epilogue=cuda.epilogue_struct(task.alpha, task.beta, 0, activation),
        channels_last=last,
        converts_second=conv and not arrays.lies(second, layout),
        alignment=_alignment(schedule) if conv else 1,
        allocate=None if operands.host else operands.library.maker(operands.first, shape, task.result),
        nbytes={name: x.nbytes for name, x in (seen if out is None else seen | {"out": out}).items()},
    )


def _check_apart(out: Matrix, seen: dict[str, Matrix], nbytes: dict[str, int]) -> None:
    end = out.pointer + nbytes["out"]
    for name, x in seen.items():
        if name != "c" and out.pointer < x.pointer + nbytes[name] and x.pointer < end:
            raise OperandError(f"out overlaps {name}, which is read while it is written")


def _copy_c(c: Matrix, result: int, strides: tuple[int, ...], stream: int) -> None:
    """Copies c into the result, to which the launch adds."""
    if (c.pointer, c.strides) == (result, strides):
        return
    dense = int(np.prod(c.shape)) * cuda.SIZES[c.dtype]
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


def _alignment(schedule: GpuSchedule) -> int:
    """Of a convolution's operands, in bytes. Lanes that share k add in another order where rows do not begin at whole vectors, and bits
    must not depend on addresses."""
    row, product = conv_kernel(schedule.kernel), gemm_kernel(schedule.gemm or "")
    return max(row.alignment if row else 1, VECTOR_BYTES if product and product.tiles.k_warps > 1 else 1)


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
