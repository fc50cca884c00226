# SPDX-License-Identifier: Apache-2.0
"""Others' convolutions on a GPU: each forward algorithm of cuDNN by itself, and PyTorch, on memory that is already on the device.

    y[n][k][p][q] = sum_{c,r,s} x[n][c][p stride + r dilation - pad][q stride + s dilation - pad] f[k][c][r][s]     (in each group)

cuDNN is called through cffi: `cudnnConvolutionForward` of its legacy API (cuDNN API reference, cudnn_cnn; names and numbers from the
headers of 9.x), from whichever package brought it: the wheels that PyTorch installs, or the system. What an algorithm refuses, it refuses
when its workspace is asked for, so nothing is launched to find out. Under NHWC filters lie [k][r][s][c]. Sums are float32 for all types;
"f32" allows multiply-adds alone (CUDNN_FMA_MATH), "tf32" is the same float32 memory with tensor cores allowed (CUDNN_TENSOR_OP_MATH).

Worked number: conv:mb32ic64ih56oc64kh3ph1 is x (32, 64, 56, 56), f (64, 64, 3, 3), y (32, 64, 56, 56), pads, strides, dilations 1.
"""

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from pysim.errors import MissingError, NativeError, PysimError, choose
from pysim.peers.cuda import library_files
from pysim.problem.conv import Conv
from pysim.runtime.cuda import DeviceArray

# cudnnConvolutionFwdAlgo_t, in its order; the first three multiply matrices, the others but DIRECT transform their operands
ALGORITHMS = ("IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "GEMM", "DIRECT", "FFT", "FFT_TILING", "WINOGRAD", "WINOGRAD_NONFUSED")
GEMM_CLASS = ALGORITHMS[:3]
LAYOUTS = ("nchw", "nhwc")  # cudnnTensorFormat_t
DTYPES = ("f32", "tf32", "f16", "bf16")
_DATA = {"f32": 0, "tf32": 0, "f16": 2, "bf16": 9}  # cudnnDataType_t
_SUMS = _DATA["f32"]
_MATH = {"f32": 3, "tf32": 1, "f16": 1, "bf16": 1}  # cudnnMathType_t: CUDNN_FMA_MATH, CUDNN_TENSOR_OP_MATH
_CROSS_CORRELATION = 1
_LARGEST = (1 << 31) - 1  # descriptors hold C ints
_DECLARED = """
size_t cudnnGetVersion(void);
const char *cudnnGetErrorString(int status);
void cudnnGetLastErrorString(char *message, size_t max_size);
int cudnnCreate(void **handle);
int cudnnSetStream(void *handle, void *stream);
int cudnnCreateTensorDescriptor(void **descriptor);
int cudnnDestroyTensorDescriptor(void *descriptor);
int cudnnSetTensor4dDescriptor(void *descriptor, int format, int type, int n, int c, int h, int w);
int cudnnCreateFilterDescriptor(void **descriptor);
int cudnnDestroyFilterDescriptor(void *descriptor);
int cudnnSetFilter4dDescriptor(void *descriptor, int type, int format, int k, int c, int h, int w);
int cudnnCreateConvolutionDescriptor(void **descriptor);
int cudnnDestroyConvolutionDescriptor(void *descriptor);
int cudnnSetConvolution2dDescriptor(void *descriptor, int pad_h, int pad_w, int stride_h, int stride_w, int dilation_h, int dilation_w,
                                    int mode, int type);
int cudnnSetConvolutionGroupCount(void *descriptor, int groups);
int cudnnSetConvolutionMathType(void *descriptor, int math);
int cudnnGetConvolution2dForwardOutputDim(void *convolution, void *x, void *filters, int *n, int *c, int *h, int *w);
int cudnnGetConvolutionForwardWorkspaceSize(void *handle, void *x, void *filters, void *convolution, void *y, int algorithm, size_t *bytes);
int cudnnConvolutionForward(void *handle, const void *alpha, void *x, const void *at_x, void *filters, const void *at_filters,
                            void *convolution, int algorithm, void *workspace, size_t bytes, const void *beta, void *y, void *at_y);
"""


# What a convolution is to cuDNN


class Descriptor(NamedTuple):
    """The numbers of a convolution's four descriptors; sizes of tensors as N C H W whatever the layout, filters as K C/g R S."""

    format: int
    data: int
    math: int
    x: tuple[int, int, int, int]
    filters: tuple[int, int, int, int]
    y: tuple[int, int, int, int]
    pads: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    groups: int


def describe(w: Conv, dtype: str = "", layout: str = "nchw") -> Descriptor:
    """The descriptors' numbers; `dtype` "tf32" allows tensor cores for an f32 problem. MissingError for what the API cannot say."""
    dtype = dtype or w.dtype
    if dtype not in DTYPES or {dtype, w.dtype} not in ({dtype}, {"f32", "tf32"}):
        raise MissingError(f"cuDNN is not asked for {dtype} of {w.text}; {choose(dtype, DTYPES)}, and tf32 of f32 problems alone")
    if layout not in LAYOUTS:
        raise MissingError(f"layout is {layout!r}; {choose(layout, LAYOUTS)}")
    if (w.pad_top, w.pad_left) != (w.pad_bottom, w.pad_right):
        sides = f"{w.pad_top} above and {w.pad_bottom} below, {w.pad_left} left and {w.pad_right} right"
        raise MissingError(f"{w.text} pads {sides}; cuDNN and PyTorch pad both sides alike: copy the input into a padded one first")
    found = Descriptor(
        format=LAYOUTS.index(layout),
        data=_DATA[dtype],
        math=_MATH[dtype],
        x=(w.batch, w.channels, w.height, w.width),
        filters=(w.filters, w.channels // w.groups, w.kernel_h, w.kernel_w),
        y=(w.batch, w.filters, w.out_h, w.out_w),
        pads=(w.pad_top, w.pad_left),
        strides=(w.stride_h, w.stride_w),
        dilations=(w.dilation_h, w.dilation_w),
        groups=w.groups,
    )
    for numbers in found[3:9]:
        if max(numbers) > _LARGEST:
            raise MissingError(f"{w.text} has a size of {max(numbers)}; cuDNN's descriptors hold at most {_LARGEST}")
    return found


# The library


@cache
def _library() -> tuple[Any, Any, str]:
    """(ffi, the library, its version); needs no driver and no device."""
    import cffi

    ffi, errors = cffi.FFI(), []
    ffi.cdef(_DECLARED)
    for file in library_files("cudnn"):
        try:
            lib = ffi.dlopen(file)
            number = int(lib.cudnnGetVersion())
        except (OSError, AttributeError) as error:
            errors.append(str(error))
            continue
        if number >= 90000:
            return ffi, lib, f"cuDNN {number // 10000}.{number // 100 % 100}.{number % 100}"
        errors.append(f"{file} is version {number}, and 9 is needed")
    raise MissingError(f"cuDNN is not installed: pip install nvidia-cudnn-cu13{f' ({errors[0]})' if errors else ''}")


def version() -> str:
    """Such as "cuDNN 9.28.0". MissingError where it is not installed."""
    return _library()[2]


def _check(status: int, what: str) -> None:
    """Raises MissingError with cuDNN's name of a status, and its last message where it left one."""
    if not status:
        return
    ffi, lib, named = _library()
    message = ffi.new("char[512]")
    lib.cudnnGetLastErrorString(message, 512)
    words = ffi.string(message).decode(errors="replace").strip()
    raise MissingError(f"{named} {what}: {ffi.string(lib.cudnnGetErrorString(status)).decode()}{f' ({words})' if words else ''}")


@cache
def _handle(stream: int) -> Any:
    """A handle whose work goes to a stream. It lives as long as the process: an exit may have unloaded the driver before."""
    ffi, lib, _ = _library()
    out = ffi.new("void **")
    _check(lib.cudnnCreate(out), "does not start, which needs a GPU and its driver")
    _check(lib.cudnnSetStream(out[0], ffi.cast("void *", stream)), "refuses the stream")
    return out[0]


class Forward:
    """One convolution as cuDNN sees it; its algorithms are asked and run one at a time.

    Raises MissingError without cuDNN or, at the first question, without a GPU, and for what cuDNN's API cannot say (`describe`).
    """

    def __init__(self, w: Conv, dtype: str = "", layout: str = "nchw") -> None:
        self.workload, d = w, describe(w, dtype, layout)
        ffi, lib, _ = _library()
        self._x, self._y = self._made("Tensor"), self._made("Tensor")
        self._filters, self._convolution = self._made("Filter"), self._made("Convolution")
        what = f"refuses {w.text}"
        _check(lib.cudnnSetTensor4dDescriptor(self._x, d.format, d.data, *d.x), what)
        _check(lib.cudnnSetTensor4dDescriptor(self._y, d.format, d.data, *d.y), what)
        _check(lib.cudnnSetFilter4dDescriptor(self._filters, d.data, d.format, *d.filters), what)
        places = (*d.pads, *d.strides, *d.dilations)
        _check(lib.cudnnSetConvolution2dDescriptor(self._convolution, *places, _CROSS_CORRELATION, _SUMS), what)
        _check(lib.cudnnSetConvolutionGroupCount(self._convolution, d.groups), what)
        _check(lib.cudnnSetConvolutionMathType(self._convolution, d.math), what)
        out = [ffi.new("int *") for _ in range(4)]
        _check(lib.cudnnGetConvolution2dForwardOutputDim(self._convolution, self._x, self._filters, *out), what)
        if (sizes := tuple(int(one[0]) for one in out)) != d.y:
            raise MissingError(f"{version()} says that {w.text} gives {sizes} outputs; it gives {d.y}")

    def _made(self, kind: str) -> Any:
        """A descriptor that goes with this object."""
        ffi, lib, _ = _library()
        out = ffi.new("void **")
        _check(getattr(lib, f"cudnnCreate{kind}Descriptor")(out), f"makes no descriptor for {self.workload.text}")
        return ffi.gc(out[0], getattr(lib, f"cudnnDestroy{kind}Descriptor"))

    def workspace_bytes(self, algorithm: str, stream: int = 0) -> int:
        """Bytes that an algorithm needs beside its operands. MissingError, with cuDNN's reason, where it refuses the problem."""
        ffi, lib, _ = _library()
        if algorithm not in ALGORITHMS:
            raise MissingError(f"cuDNN has no algorithm {algorithm!r}; {choose(algorithm, ALGORITHMS)}")
        size = ffi.new("size_t *")
        sides = (self._x, self._filters, self._convolution, self._y)
        status = lib.cudnnGetConvolutionForwardWorkspaceSize(_handle(stream), *sides, ALGORITHMS.index(algorithm), size)
        _check(status, f"refuses {algorithm} for {self.workload.text}")
        return int(size[0])

    def survey(self) -> tuple[dict[str, int], dict[str, str]]:
        """(algorithm -> bytes of workspace, algorithm -> why it refuses the problem)."""
        spaces: dict[str, int] = {}
        refused: dict[str, str] = {}
        for algorithm in ALGORITHMS:
            try:
                spaces[algorithm] = self.workspace_bytes(algorithm)
            except MissingError as error:
                refused[algorithm] = str(error)
        return spaces, refused

    def call(
        self, algorithm: str, pointers: tuple[int, int, int], workspace: int = 0, workspace_bytes: int = 0, stream: int = 0
    ) -> Callable[[], None]:
        """A call that puts the convolution of device memory (x, filters, y) on a stream; the memory is the caller's.

        MissingError where the algorithm refuses the problem or needs more workspace than it is given.
        """
        needed = self.workspace_bytes(algorithm, stream)
        if needed > workspace_bytes:
            given = f"of workspace for {self.workload.text}; it was given {workspace_bytes}"
            raise MissingError(f"cuDNN's {algorithm} needs {needed} bytes {given}")
        ffi, lib, _ = _library()
        one, zero = ffi.new("float *", 1.0), ffi.new("float *", 0.0)
        x, filters, y, space = (ffi.cast("void *", pointer) for pointer in (*pointers, workspace))
        arguments = (
            _handle(stream), one, self._x, x, self._filters, filters, self._convolution, ALGORITHMS.index(algorithm), space, needed, zero,
            self._y, y,
        )  # fmt: skip

        def run() -> None:
            if status := lib.cudnnConvolutionForward(*arguments):
                _check(status, f"{algorithm} failed at {self.workload.text}")

        return run


class Algorithm(NamedTuple):
    """An algorithm and one problem: a call that is ready, or why there is none; the bytes that it needs where it takes the problem."""

    call: Callable[[], object] | None
    workspace_bytes: int | None
    reason: str = ""


def algorithms(w: Conv, pointers: tuple[int, int, int], dtype: str = "", layout: str = "nchw") -> dict[str, Algorithm]:
    """Every algorithm on device memory (x, filters, y). They share one workspace, the largest that can be had, as only one runs at a time.

    Nothing is raised where cuDNN is not here or cannot say the problem: each algorithm then has that as its reason.
    """
    try:
        forward = Forward(w, dtype, layout)
        spaces, refused = forward.survey()
    except MissingError as error:
        return {name: Algorithm(None, None, str(error)) for name in ALGORITHMS}
    memory, short = None, ""
    for size in sorted(set(spaces.values()), reverse=True):
        try:
            memory = DeviceArray((size,), "u8") if size else None
            break
        except PysimError as error:
            short = str(error)
    had = memory.nbytes if memory else 0

    def one(name: str) -> Algorithm:
        if name in refused:
            return Algorithm(None, None, refused[name])
        if spaces[name] > had:
            return Algorithm(None, spaces[name], f"{name} needs {spaces[name]} bytes of workspace: {short}")
        try:
            run = forward.call(name, pointers, memory.pointer if memory else 0, had)
        except MissingError as error:
            return Algorithm(None, spaces[name], str(error))

        def call() -> object:
            return run() or memory  # which lives as long as the call

        return Algorithm(call, spaces[name])

    return {name: one(name) for name in ALGORITHMS}


# PyTorch


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except (ImportError, OSError) as error:
        raise MissingError(f"PyTorch is not installed: pip install torch ({error})") from None


def torch_version() -> str:
    """PyTorch's version and that of the cuDNN it uses. MissingError where it is not installed."""
    torch = _torch()
    return f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"


class _Memory:
    """Device memory as `__cuda_array_interface__` says it; bfloat16, which that cannot say, as int16."""

    def __init__(self, pointer: int, shape: tuple[int, ...], dtype: str) -> None:
        self._pointer, self._shape, self._dtype = pointer, shape, dtype

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        typestr = {"f16": "<f2", "bf16": "<i2"}.get(self._dtype, "<f4")
        return {"shape": self._shape, "typestr": typestr, "data": (self._pointer, False), "version": 3}


class TorchForward:
    """`torch.nn.functional.conv2d` on device memory (x, filters, y), with cuDNN's own search (`benchmark`) and TF32 off unless asked for.

    NHWC is PyTorch's channels_last. It works on PyTorch's current stream and makes an output of its own at every run. Raises MissingError
    where PyTorch or its GPU is not here, NativeError with PyTorch's words for what it refuses.
    """

    def __init__(self, w: Conv, pointers: tuple[int, int, int], dtype: str = "", layout: str = "nchw") -> None:
        d = describe(w, dtype, layout)
        self._torch = _torch()
        if not self._torch.cuda.is_available():
            raise MissingError("PyTorch sees no GPU here: it needs a build for CUDA and a driver")
        self.workload, self._tf32 = w, (dtype or w.dtype) == "tf32"
        shapes = (d.x, d.filters, d.y)
        self._x, self._filters, self._y = (
            self._view(pointer, shape, dtype or w.dtype, layout) for pointer, shape in zip(pointers, shapes, strict=True)
        )
        self._how = {"stride": d.strides, "padding": d.pads, "dilation": d.dilations, "groups": d.groups}

    def _view(self, pointer: int, shape: tuple[int, int, int, int], dtype: str, layout: str) -> Any:
        n, c, h, w = shape
        lies = shape if layout == "nchw" else (n, h, w, c)
        tensor = self._torch.as_tensor(_Memory(pointer, lies, dtype), device="cuda")
        tensor = tensor.view(self._torch.bfloat16) if dtype == "bf16" else tensor
        return tensor if layout == "nchw" else tensor.permute(0, 3, 1, 2)

    def run(self) -> Any:
        """Puts the convolution on the stream and returns its output."""
        settings = self._torch.backends.cudnn
        settings.benchmark, settings.allow_tf32 = True, self._tf32
        try:
            return self._torch.nn.functional.conv2d(self._x, self._filters, None, **self._how)
        except RuntimeError as error:
            words = str(error).partition("\n")[0]
            raise NativeError(f"PyTorch refuses {self.workload.text}: {words}") from None

    def store(self) -> None:
        """Runs, and copies the output into y."""
        self._y.copy_(self.run())

    def extra_bytes(self) -> int:
        """The most bytes of PyTorch's allocator that a run holds beside its output, its search done."""
        cuda = self._torch.cuda
        self.run()
        cuda.synchronize()
        cuda.reset_peak_memory_stats()
        before = cuda.memory_allocated()
        output = self.run()
        cuda.synchronize()
        return max(0, int(cuda.max_memory_allocated()) - int(before) - int(output.nbytes))
