# SPDX-License-Identifier: Apache-2.0
"""Convolutions on device arrays through the CUDA library: launches, and arrays of other libraries.

    y[n][f][p][q] = act(sum over c, r, s of x[n][c][p stride + r dilation - pad][q stride + s dilation - pad] w[f][c][r][s] + bias[f])

Under NHWC x and y lie [n][h][w][c] and w [f][r][s][c]; as arrays they keep the shapes above, and their strides say so (PyTorch's
channels_last). Nothing that lies on a device is copied but filters that lie otherwise than the input does, and operands that begin off
the 16 bytes by which rows of wgmma copy.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim.errors import OperandError, PlanError
from pysim.problem.conv import Conv
from pysim.record.schedule import DECOMPOSITIONS, GpuConvSchedule
from pysim.registry.rows import CONV_LAYOUTS, Attributes, conv_kernel, gemm_kernel
from pysim.runtime import arrays, cuda
from pysim.runtime.arrays import Matrix
from pysim.runtime.cuda import RESULTS, Activation, DeviceArray, check, library

Describe = Callable[[tuple[int, ...], tuple[int, ...], str], Conv]
Chooser = Callable[[Conv, str], GpuConvSchedule]

PERMUTED = (0, 2, 3, 1)  # N C H W -> N H W C


# Structs


def conv_struct(w: Conv, result: str, layout: str) -> Any:
    """The `pysim_cuda_conv` of a convolution."""
    ffi, _ = library()
    shape = {name: getattr(w, name) for name in w.__struct_fields__ if name != "dtype"} | {"dtype": cuda.dtype_code(w.dtype)}
    return ffi.new("pysim_cuda_conv *", {"shape": shape, "layout": CONV_LAYOUTS.index(layout), "out_dtype": cuda.dtype_code(result)})


def schedule_struct(s: GpuConvSchedule) -> Any:
    """The `pysim_cuda_conv_schedule` of a schedule."""
    ffi, _ = library()
    row, gemm = conv_kernel(s.kernel), gemm_kernel(s.gemm) if s.gemm else None
    for name, found in ((s.kernel, row), (s.gemm, gemm)):
        if name is not None and found is None:
            raise PlanError(f"the registry has no CUDA kernel {name!r}; `pysim kernels --cuda` lists them")
    assert row is not None
    fields = {"kernel": row.index, "gemm": gemm.index if gemm else -1, "decomposition": DECOMPOSITIONS.index(s.decomposition)}
    return ffi.new("pysim_cuda_conv_schedule *", fields | {"splits": s.splits, "along_n": s.along_n, "group": s.group})


def workspace_bytes(w: Conv, schedule: GpuConvSchedule, layout: str = "nchw", result: str | None = None) -> int:
    """What the library says that a launch needs; needs no device. NativeError with its reason where it refuses."""
    ffi, lib = library()
    size = ffi.new("int64_t *")
    told = (conv_struct(w, result or cuda.result_of(w.dtype), layout), schedule_struct(schedule))
    check(lib.pysim_cuda_conv_workspace_bytes(*told, size))
    return int(size[0])


def attributes(w: Conv, kernel: str, layout: str = "nchw") -> Attributes:
    """What the compiler made of the kernel that would do most of the work of a convolution."""
    ffi, lib = library()
    row, info = conv_kernel(kernel), ffi.new("pysim_cuda_attributes *")
    if row is None:
        raise PlanError(f"the registry has no CUDA convolution {kernel!r}; `pysim kernels --cuda` lists them")
    check(lib.pysim_cuda_conv_attributes(conv_struct(w, cuda.result_of(w.dtype), layout), row.index, info))
    return Attributes(info.threads, info.registers, info.shared_bytes, info.local_bytes)


# Launches


class Convolution:
    """A convolution under a schedule, without its operands."""

    def __init__(self, workload: Conv, schedule: GpuConvSchedule, layout: str, result: str) -> None:
        ffi, lib = library()
        self._cast, self._pointer, self._run = ffi.cast, ffi.typeof("void *"), lib.pysim_cuda_conv_run
        self.problem, self.schedule = conv_struct(workload, result, layout), schedule_struct(schedule)
        self.workspace_bytes = workspace_bytes(workload, schedule, layout, result)

    def run(self, pointers: tuple[int, int, int], workspace: int, epilogue: Any, stream: int) -> None:
        """Puts the convolution (x, w, y by pointer) on a stream."""
        cast, kind = self._cast, self._pointer
        x, w, y = pointers
        status = self._run(
            self.problem, self.schedule, epilogue, cast(kind, x), cast(kind, w), cast(kind, y), cast(kind, workspace),
            self.workspace_bytes, cast(kind, stream),
        )  # fmt: skip
        check(status)


class Launch:
    """One convolution, ready to run again and again: operands (x, w, y) by pointer, its schedule, epilogue, workspace and stream.

    `make` gives uint8 device memory of so many bytes as (owner, pointer).
    """

    def __init__(
        self,
        workload: Conv,
        schedule: GpuConvSchedule,
        pointers: tuple[int, int, int],
        *,
        layout: str = "nchw",
        result: str | None = None,
        epilogue: Any = None,
        stream: int = 0,
        make: Callable[[int], tuple[Any, int]] | None = None,
    ) -> None:
        ffi, _ = library()
        self._convolution = Convolution(workload, schedule, layout, result or cuda.result_of(workload.dtype))
        self._epilogue = epilogue or cuda.epilogue_struct(1.0, 0.0, 0, None)
        self._pointers = tuple(ffi.cast("void *", pointer) for pointer in pointers)
        self._stream = ffi.cast("void *", stream)
        self.workspace_bytes = self._convolution.workspace_bytes
        owner, pointer = (make or cuda.own_bytes)(self.workspace_bytes) if self.workspace_bytes else (None, 0)
        self._owner, self._workspace = owner, ffi.cast("void *", pointer)

    def _told(self) -> tuple[Any, ...]:
        one = self._convolution
        return (one.problem, one.schedule, self._epilogue, *self._pointers, self._workspace, self.workspace_bytes, self._stream)

    def run(self) -> None:
        """Puts the convolution on the stream."""
        check(library()[1].pysim_cuda_conv_run(*self._told()))

    def reference(self) -> None:
        """Puts the plain loops, summed in float64, on the stream instead."""
        check(library()[1].pysim_cuda_conv_reference(self._convolution.problem, self._epilogue, *self._pointers, self._stream))

    def time(self, samples: int, warmups: int = 1) -> NDArray[np.float64]:
        """Device seconds of each of `samples` runs, between two events."""
        ffi, lib = library()
        seconds = np.empty(samples)
        check(lib.pysim_cuda_conv_time(*self._told(), warmups, samples, ffi.cast("double *", seconds.ctypes.data)))
        return seconds


# Convolutions of arrays


class Options(NamedTuple):
    """What `conv2d` is asked beside its arrays."""

    describe: Describe
    choose: Chooser
    activation: Activation
    dtype: str | None


def conv2d(
    x: Any,
    w: Any,
    describe: Describe,
    choose: Chooser,
    bias: Any = None,
    activation: Activation = None,
    out: Any = None,
    dtype: str | None = None,
) -> Any:
    """act(conv(x, w) + bias) on the GPU, N C H W; the result is `out` or a new array of the kind that x is, lying as x does.

    All arrays are CUDA arrays, or all are host arrays, which are copied. `describe` makes the problem of the shapes of x and w and of how
    they are multiplied, `choose` its schedule in a layout, both once for arrays that lie alike: equal ones answer alike. Raises
    OperandError for arrays that do not fit.
    """
    several = len(cuda.devices()) > 1
    given = {"x": x, "w": w, "bias": bias, "out": out}
    options = Options(describe, choose, activation, dtype)
    if arrays.is_cuda(x):
        with arrays.on_device_of(x) if several else nullcontext():
            return _on_device(given, options)
    cuda.check_place(given)
    return _from_host(given, options)


def lies(matrix: Matrix, layout: str) -> bool:
    """Whether a four-dimensional array lies densely in a layout; strides of dimensions of size 1 say nothing."""
    order = range(4) if layout == "nchw" else PERMUTED
    step = 1
    for axis in reversed(order):
        if matrix.shape[axis] > 1 and matrix.strides[axis] != step:
            return False
        step *= matrix.shape[axis]
    return True


def _layout_of(x: Matrix) -> str:
    if len(x.shape) != 4 or not all(x.shape):
        raise OperandError(f"x must be [N][C][H][W] with no size 0; its shape is {x.shape}")
    found = next((layout for layout in CONV_LAYOUTS if lies(x, layout)), None)
    if found is None:
        raise OperandError(f"x of shape {x.shape} has strides {x.strides}: neither NCHW nor channels last; pass a contiguous copy")
    return found


def _from_host(given: dict[str, Any], options: Options) -> Any:
    """Copies what is given to the device, computes there, and copies the result back."""
    host = {name: x if isinstance(x, np.ndarray) else np.asarray(x) for name, x in given.items() if x is not None}
    out = host.pop("out", None)
    seen = {name: arrays.view(x, name) for name, x in host.items()}
    layout = _layout_of(seen["x"]) if host["x"].ndim == 4 and lies(seen["x"], "nhwc") else "nchw"
    sent = {}
    for name, array in host.items():
        dense = np.ascontiguousarray(array.transpose(PERMUTED) if layout == "nhwc" and array.ndim == 4 else array)
        memory = DeviceArray(dense.shape, seen[name].dtype).fill(dense)
        sent[name] = seen[name]._replace(pointer=memory.pointer, device=0, owner=memory, strides=_dense(array.shape, layout))
    one = _make_ready(sent, options, None, layout)
    target, result = DeviceArray(one.shape, one.result), one.result
    _run(one, sent, target.pointer)
    names = {ours: theirs for theirs, ours in arrays.DTYPES.items()}
    kinds = {seen[name].dtype: array.dtype for name, array in host.items()}
    found = target.read(np.empty(target.shape, kinds.get(result) or np.dtype(names[result])))
    found = found.transpose(0, 3, 1, 2) if layout == "nhwc" else found
    if out is None:
        return found
    if out.shape != found.shape or out.dtype != found.dtype or not out.flags.writeable:
        raise OperandError(f"out must be a writable {found.dtype} array of shape {found.shape}")
    out[...] = found
    return given["out"]


def _dense(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Strides of an array that lies densely in a layout."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(PERMUTED if layout == "nhwc" and len(shape) == 4 else range(len(shape))):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def lying(w: Conv, layout: str) -> tuple[int, int, int, int]:
    """The output's sizes as they lie."""
    return (w.batch, w.filters, w.out_h, w.out_w) if layout == "nchw" else (w.batch, w.out_h, w.out_w, w.filters)


class _Ready(NamedTuple):
    """What convolutions of arrays that lie alike have in common."""

    convolution: Convolution
    shape: tuple[int, int, int, int]  # of y, as it lies
    layout: str
    result: str
    relays: bool  # w lies otherwise than the layout has it
    alignment: int  # bytes at multiples of which operands must begin: others are copied
    epilogue: Any  # without bias


def _on_device(given: dict[str, Any], options: Options) -> Any:
    x, out = given["x"], given["out"]
    seen, stream = cuda.views(given, x)
    target = seen.pop("out", None)
    key = (cuda.signature(seen), target and cuda.signature({"out": target}), options)
    one: _Ready = cuda.ready.get(key) or cuda.ready.put(key, _make_ready(seen, options, target))
    if target is not None:
        cuda.check_apart(target, seen)
    if one.relays:
        copied = arrays.relaid(given["w"], one.layout == "nhwc")
        if copied is None:
            raise OperandError(f"x lies {one.layout.upper()} but w has strides {seen['w'].strides}; pass a copy of w that lies so too")
        seen["w"] = arrays.view(copied, "w", stream)._replace(owner=copied)
    if target is not None:
        pointer = target.pointer
    else:
        out = arrays.empty_like_kind(x, one.shape, one.result)
        if out is None and one.layout == "nhwc":
            raise OperandError(f"a {type(x).__name__} cannot be made here to lie channels last; pass out")
        out = DeviceArray(one.shape, one.result) if out is None else out
        pointer = out.pointer if isinstance(out, DeviceArray) else arrays.pointer(out, "the result", stream)
        out = arrays.channels_second(out) if one.layout == "nhwc" else out
    _run(one, seen, pointer, x, stream)
    return out


def _make_ready(seen: dict[str, Matrix], options: Options, target: Matrix | None, layout: str | None = None) -> _Ready:
    """Checks how arrays lie, in `layout` or in the one that x and out have, and chooses the schedule of their convolution."""
    if layout is None:
        layout = _layout_of(seen["x"])
        if layout == "nchw" and target is not None and len(target.shape) == 4 and lies(seen["x"], "nhwc") and not lies(target, "nchw"):
            layout = "nhwc"  # x lies either way, and the result is wanted so
    problem, result = _problem(seen, options, target)
    if target is not None:
        _check_target(target, problem, layout)
    schedule = options.choose(problem, layout)
    row = conv_kernel(schedule.kernel)
    epilogue = cuda.epilogue_struct(1.0, 0.0, 0, options.activation)
    return _Ready(
        convolution=Convolution(problem, schedule, layout, result),
        shape=lying(problem, layout),
        layout=layout,
        result=result,
        relays=not lies(seen["w"], layout),
        alignment=row.alignment if row else 1,
        epilogue=epilogue,
    )


def _problem(seen: dict[str, Matrix], options: Options, target: Matrix | None) -> tuple[Conv, str]:
    """The convolution that the operands make, and the type of its result."""
    x, w = seen["x"], seen["w"]
    multiplied = cuda.multiplied(x, w, options.dtype, ("x", "w"))
    problem = options.describe(x.shape, w.shape, multiplied)
    result = target.dtype if target else cuda.result_of(multiplied)
    if result not in RESULTS[multiplied]:
        raise OperandError(f"a convolution of {multiplied} cannot result in {result}; it may in {' or '.join(RESULTS[multiplied])}")
    bias = seen.get("bias")
    if bias is not None and (bias.shape != (problem.filters,) or (problem.filters > 1 and bias.strides != (1,))):
        raise OperandError(f"bias has shape {bias.shape}; it must be {problem.filters} contiguous values, one per filter")
    if bias is not None and bias.dtype != result:
        raise OperandError(f"bias is {bias.dtype}; it must be of the result's type, {result}")
    return problem, result


def _check_target(out: Matrix, w: Conv, layout: str) -> None:
    shape = (w.batch, w.filters, w.out_h, w.out_w)
    if out.shape != shape or not lies(out, layout):
        raise OperandError(f"out must be of shape {shape} and lie {layout.upper()} as x does; it has {out.shape}, strides {out.strides}")


def _run(one: _Ready, seen: dict[str, Matrix], pointer: int, like: Any = None, stream: int = 0) -> None:
    """Puts the convolution of x and w (and bias) into `pointer` on the stream."""
    operands: list[Matrix | DeviceArray] = [seen["x"], seen["w"]]
    if one.alignment > 1:
        operands = [x if x.pointer % one.alignment == 0 else _moved(x, stream) for x in (seen["x"], seen["w"])]
    workspace = cuda.workspace_like(like, one.convolution.workspace_bytes, stream)
    epilogue = cuda.with_bias(one.epilogue, seen.get("bias"))
    one.convolution.run((operands[0].pointer, operands[1].pointer, pointer), workspace[1], epilogue, stream)


def _moved(one: Matrix, stream: int) -> DeviceArray:
    """A copy that begins where the copy engine can read it; waits for the stream."""
    first, last = one.span
    memory = DeviceArray((last - first,), "u8")
    cuda.copy(memory.pointer, first, last - first, "PYSIM_ON_DEVICE", stream)
    return memory


class Given(NamedTuple):
    """Describes and chooses what a plan says, and refuses arrays that make another problem."""

    workload: Conv
    schedule: GpuConvSchedule
    layout: str

    def describe(self, image: tuple[int, ...], taps: tuple[int, ...], dtype: str) -> Conv:
        w = self.workload
        shapes = ((w.batch, w.channels, w.height, w.width), (w.filters, w.channels // w.groups, w.kernel_h, w.kernel_w))
        if (image, taps, dtype) != (*shapes, w.dtype):
            raise OperandError(f"the plan is for {w.text}, x {shapes[0]} and w {shapes[1]}; the arrays are {dtype}, x {image} and w {taps}")
        return w

    def choose(self, workload: Conv, layout: str) -> GpuConvSchedule:
        return fitting(self.schedule, self.layout, layout)


_given = lru_cache(maxsize=256)(Given)  # methods of one object are equal


def run_plan(w: Conv, schedule: GpuConvSchedule, layout: str, x: Any, filters: Any, bias: Any, activation: Activation) -> Any:
    """A plan on arrays that make its problem."""
    given = _given(w, schedule, layout)
    return conv2d(x, filters, given.describe, given.choose, bias, activation, dtype=w.dtype if w.dtype in ("tf32", "tf32x3") else None)


def fitting(schedule: GpuConvSchedule, layout: str, lying: str) -> GpuConvSchedule:
    """A plan's schedule, which is for a layout. OperandError where the arrays lie otherwise."""
    if layout != lying:
        raise OperandError(f"the plan is for {layout.upper()}, but x lies {lying.upper()}; plan with layout={lying!r}")
    return schedule
