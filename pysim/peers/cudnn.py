# SPDX-License-Identifier: Apache-2.0
"""cuDNN: each forward algorithm separately, on device memory.

    y[n][k][p][q] = sum_{c,r,s} x[n][c][p stride + r dilation - pad][q stride + s dilation - pad] f[k][c][r][s]     (in each group)

cuDNN is called through cffi: `cudnnConvolutionForward` of its legacy API (cuDNN API reference, cudnn_cnn; names and numbers from the
headers of 9.x). It comes from the wheels that PyTorch installs, or from the system. An algorithm rejects an unsupported problem when its
workspace size is queried, so no launch is needed to find out. Under NHWC filters are [k][r][s][c]. Accumulation is in float32 for all
types. "f32" allows only multiply-adds (CUDNN_FMA_MATH); "tf32" is float32 data with tensor cores allowed (CUDNN_TENSOR_OP_MATH).

Worked number: conv:mb32ic64ih56oc64kh3ph1 is x (32, 64, 56, 56), f (64, 64, 3, 3), y (32, 64, 56, 56), pads, strides, dilations 1.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from pysim.algorithms.interface import DIRECT_SUM
from pysim.check.bounds import transformed
from pysim.errors import MissingError, choose
from pysim.peers.peer import Operands, Ready, Scratch, cuda_files, forced
from pysim.problem.conv import Conv
from pysim.record.plan import LAYOUTS

# cudnnConvolutionFwdAlgo_t, in its order; the first three multiply matrices, the others but DIRECT transform their operands
ALGORITHMS = ("IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "GEMM", "DIRECT", "FFT", "FFT_TILING", "WINOGRAD", "WINOGRAD_NONFUSED")
GEMM_CLASS = ALGORITHMS[:3]
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


# Descriptors


class Descriptor(NamedTuple):
    """The values of a convolution's four descriptors; sizes of tensors as N C H W in any layout, of filters as K C/g R S."""

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
    """The descriptors' values; `dtype` "tf32" allows tensor cores for an f32 problem. MissingError for what the API cannot express."""
    dtype = dtype or w.dtype
    if dtype not in DTYPES or {dtype, w.dtype} not in ({dtype}, {"f32", "tf32"}):
        raise MissingError(f"cuDNN is not asked for {dtype} of {w.text}; {choose(dtype, DTYPES)}, and tf32 of f32 problems alone")
    if layout not in LAYOUTS:
        raise MissingError(f"layout is {layout!r}; {choose(layout, LAYOUTS)}")
    if (w.pad_top, w.pad_left) != (w.pad_bottom, w.pad_right):
        sides = f"{w.pad_top} above and {w.pad_bottom} below, {w.pad_left} left and {w.pad_right} right"
        raise MissingError(f"{w.text} pads {sides}; cuDNN and PyTorch pad both sides alike: copy the input into a padded one first")
    descriptor = Descriptor(
        format=LAYOUTS.index(layout),  # cudnnTensorFormat_t has their order
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
    for numbers in descriptor[3:9]:
        if max(numbers) > _LARGEST:
            raise MissingError(f"{w.text} has a size of {max(numbers)}; cuDNN's descriptors hold at most {_LARGEST}")
    return descriptor


# The library


@cache
def _library() -> tuple[Any, Any, str]:
    """(ffi, library, version); needs neither driver nor device."""
    import cffi

    ffi, errors = cffi.FFI(), []
    ffi.cdef(_DECLARED)
    for file in cuda_files("cudnn"):
        try:
            lib = ffi.dlopen(file)
            number = int(lib.cudnnGetVersion())
        except (OSError, AttributeError) as error:
            errors.append(str(error))
            continue
        if number >= 90000:
            return ffi, lib, f"cuDNN {number // 10000}.{number // 100 % 100}.{number % 100}{forced('NVIDIA_TF32_OVERRIDE')}"
        errors.append(f"{file} is version {number}, and 9 is needed")
    raise MissingError(f"cuDNN is not installed: pip install nvidia-cudnn-cu13{f' ({errors[0]})' if errors else ''}")


def version() -> str:
    """For example "cuDNN 9.28.0". MissingError where it is not installed."""
    return _library()[2]


def _check(status: int, what: str) -> None:
    """Raises MissingError with cuDNN's name for an error status, and its last message if there is one."""
    if not status:
        return
    ffi, lib, named = _library()
    message = ffi.new("char[512]")
    lib.cudnnGetLastErrorString(message, 512)
    words = ffi.string(message).decode(errors="replace").strip()
    raise MissingError(f"{named} {what}: {ffi.string(lib.cudnnGetErrorString(status)).decode()}{f' ({words})' if words else ''}")


@cache
def _handle(stream: int) -> Any:
    """A handle whose work goes to a stream. It is never destroyed: at exit the driver may be unloaded already."""
    ffi, lib, _ = _library()
    out = ffi.new("void **")
    _check(lib.cudnnCreate(out), "does not start, which needs a GPU and its driver")
    _check(lib.cudnnSetStream(out[0], ffi.cast("void *", stream)), "refuses the stream")
    return out[0]


class Forward:
    """One convolution in cuDNN; its algorithms are queried and run one at a time.

    Raises MissingError without cuDNN, for problems that its API cannot express (`describe`) and, at the first query, without a GPU.
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
        """A descriptor that is destroyed with this object."""
        ffi, lib, _ = _library()
        out = ffi.new("void **")
        _check(getattr(lib, f"cudnnCreate{kind}Descriptor")(out), f"makes no descriptor for {self.workload.text}")
        return ffi.gc(out[0], getattr(lib, f"cudnnDestroy{kind}Descriptor"))

    def workspace_bytes(self, algorithm: str, stream: int = 0) -> int:
        """Workspace bytes of an algorithm. MissingError with cuDNN's reason if it rejects the problem."""
        ffi, lib, _ = _library()
        if algorithm not in ALGORITHMS:
            raise MissingError(f"cuDNN has no algorithm {algorithm!r}; {choose(algorithm, ALGORITHMS)}")
        size = ffi.new("size_t *")
        sides = (self._x, self._filters, self._convolution, self._y)
        status = lib.cudnnGetConvolutionForwardWorkspaceSize(_handle(stream), *sides, ALGORITHMS.index(algorithm), size)
        _check(status, f"refuses {algorithm} for {self.workload.text}")
        return int(size[0])

    def call(self, algorithm: str, pointers: tuple[int, int, int], scratch: Scratch, stream: int = 0) -> Callable[[], None]:
        """A call that enqueues the convolution of device memory (x, filters, y) on a stream; the caller owns the memory.

        MissingError if the algorithm rejects the problem.
        """
        needed = self.workspace_bytes(algorithm, stream)
        ffi, lib, _ = _library()
        one, zero = ffi.new("float *", 1.0), ffi.new("float *", 0.0)
        x, filters, y = (ffi.cast("void *", pointer) for pointer in pointers)
        first = (_handle(stream), one, self._x, x, self._filters, filters, self._convolution, ALGORITHMS.index(algorithm))
        last = (needed, zero, self._y, y)

        def run() -> None:
            if status := lib.cudnnConvolutionForward(*first, ffi.cast("void *", scratch.pointer), *last):
                _check(status, f"{algorithm} failed at {self.workload.text}")

        return run


def make(workload: Conv, operands: Operands, algorithm: str = "") -> Ready:
    """Prepares one algorithm. MissingError if it rejects the problem, NativeError if its workspace cannot be allocated."""
    forward, scratch = Forward(workload, layout=operands.layout), operands.scratch or Scratch()
    needed = forward.workspace_bytes(algorithm)
    scratch.reserve(needed, algorithm)
    bound = DIRECT_SUM if algorithm in GEMM_CLASS else transformed(workload.dtype)
    return Ready(forward.call(algorithm, operands.pointers, scratch), version(), needed, bound)
