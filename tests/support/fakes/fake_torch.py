# SPDX-License-Identifier: Apache-2.0
"""As much of PyTorch as `pysim` looks at, for tests where it is not installed: a module "torch" whose tensors are NumPy arrays that may say
that they lie on a device."""

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pysim.runtime import arrays

DTYPES = {name: f"torch.{name}" for name in ("float32", "float16", "float64", "uint8", "int8", "int32")}


class Tensor:
    """An array as a tensor; on a device it cannot be seen as an array."""

    __module__ = "torch"

    def __init__(self, array: np.ndarray, is_cuda: bool = False, requires_grad: bool = False) -> None:
        self.array, self.is_cuda, self.requires_grad = array, is_cuda, requires_grad
        self.shape, self.dtype = array.shape, f"torch.{array.dtype}"
        self.device = SimpleNamespace(type="cuda" if is_cuda else "cpu")

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        if self.is_cuda or self.requires_grad:
            raise RuntimeError("detach, and move to the CPU")
        return self.array

    def detach(self) -> "Tensor":
        return Tensor(self.array, self.is_cuda)

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def get_device(self) -> int:
        return 0

    def is_neg(self) -> bool:
        return False


@pytest.fixture
def torch(monkeypatch) -> Iterator[Any]:
    """The module; `torch.grad` says whether gradients are on, `torch.made` lists the tensors of `empty_strided`."""
    module: Any = ModuleType("torch")
    module.grad, module.made, module.stream = True, [], 7

    def empty_strided(shape: tuple[int, ...], stride: tuple[int, ...], dtype: str, device: Any) -> Tensor:
        module.made.append(Tensor(np.empty(shape, dtype.removeprefix("torch.")), device.type == "cuda"))
        return module.made[-1]

    vars(module).update(DTYPES, Tensor=Tensor, empty_strided=empty_strided, is_grad_enabled=lambda: module.grad)
    module.capturing = False
    module._C = SimpleNamespace(
        _cuda_getCurrentRawStream=lambda device: module.stream, _cuda_isCurrentStreamCapturing=lambda: module.capturing
    )
    monkeypatch.setitem(sys.modules, "torch", module)
    arrays._libraries.cache_clear()
    yield module
    arrays._libraries.cache_clear()
