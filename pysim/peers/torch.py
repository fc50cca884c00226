# SPDX-License-Identifier: Apache-2.0
"""PyTorch's convolution on device memory, after cuDNN's own algorithm search."""

import importlib
from typing import Any

from pysim.check.bounds import transformed
from pysim.errors import MissingError, NativeError
from pysim.peers.cudnn import describe
from pysim.peers.peer import Operands, Ready
from pysim.problem.conv import Conv

ALGORITHMS = ("",)


def make(workload: Conv, operands: Operands, algorithm: str = "") -> Ready:
    one = Forward(workload, operands.pointers, layout=operands.layout)
    return Ready(one.run, version(), one.extra_bytes(), transformed(workload.dtype), one.store)


def torch_here() -> Any:
    try:
        return importlib.import_module("torch")
    except (ImportError, OSError) as error:
        raise MissingError(f"PyTorch is not installed: pip install torch ({error})") from None


def version() -> str:
    """PyTorch's version and that of the cuDNN it uses. MissingError where it is not installed."""
    torch = torch_here()
    return f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"


class Memory:
    """Device memory with `__cuda_array_interface__`; bfloat16, which that lacks, as int16."""

    def __init__(self, pointer: int, shape: tuple[int, ...], dtype: str) -> None:
        self._pointer, self._shape, self._dtype = pointer, shape, dtype

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        typestr = {"f16": "<f2", "bf16": "<i2"}.get(self._dtype, "<f4")
        return {"shape": self._shape, "typestr": typestr, "data": (self._pointer, False), "version": 3}


class Forward:
    """`torch.nn.functional.conv2d` on device memory (x, filters, y), with cuDNN's own search (`benchmark`) and TF32 off unless requested.

    NHWC is PyTorch's channels_last. It works on PyTorch's current stream and allocates a new output at every run. Raises MissingError
    without PyTorch or a GPU, and NativeError with PyTorch's message for problems that it rejects.
    """

    def __init__(self, w: Conv, pointers: tuple[int, int, int], dtype: str = "", layout: str = "nchw") -> None:
        d = describe(w, dtype, layout)
        self._torch = torch_here()
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
        tensor = self._torch.as_tensor(Memory(pointer, lies, dtype), device="cuda")
        tensor = tensor.view(self._torch.bfloat16) if dtype == "bf16" else tensor
        return tensor if layout == "nchw" else tensor.permute(0, 3, 1, 2)

    def run(self) -> Any:
        """Enqueues the convolution and returns its output."""
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
        """Peak bytes of PyTorch's allocator in a run after the search, without the output."""
        cuda = self._torch.cuda
        self.run()
        cuda.synchronize()
        cuda.reset_peak_memory_stats()
        before = cuda.memory_allocated()
        output = self.run()
        cuda.synchronize()
        return max(0, int(cuda.max_memory_allocated()) - int(before) - int(output.nbytes))
