# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tensors as if they lay on a GPU, whose CUDA kernels the CPU runs."""

from contextlib import contextmanager, nullcontext

import torch

from pysim.caches import LruCache
from pysim.machine.load import load_any
from pysim.torch import operators, precision
from pysim.torch.layers import fused_layer, gpu_launch, layer_chain


class Host:
    """PyTorch as it makes memory on a device, here of the host."""

    def stream(self, x):
        return 0

    def keeps(self):
        return True

    def maker(self, like, shape, dtype):
        return lambda: torch.empty(shape, dtype=torch.uint8)

    def pointer(self, x, stream):
        return x.data_ptr()


def as_on_gpu(monkeypatch, machine):
    """Every tensor as on that GPU, where every layer is expected to be faster than PyTorch's; TF32 is not allowed."""
    monkeypatch.setattr(gpu_launch.arrays, "library_of", lambda kind: Host())
    for module in (gpu_launch, fused_layer, layer_chain):
        monkeypatch.setattr(module, "ALIGNMENT_BYTES", 64)  # what a host's memory begins at
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(_is_on_gpu), raising=False)
    monkeypatch.setattr(fused_layer.host, "gpu_here", lambda: load_any(machine))
    monkeypatch.setattr(fused_layer, "pytorch_seconds", lambda *_: float("inf"))
    monkeypatch.setattr(gpu_launch, "on_device_of", lambda x: nullcontext())
    monkeypatch.setattr(layer_chain.cuda, "devices", lambda: (None,))
    monkeypatch.setattr(gpu_launch, "_norm_launches", LruCache(8))  # what is kept belongs to the library that is open
    monkeypatch.setattr(operators, "_launches", LruCache(8))
    monkeypatch.setattr(precision, "tf32", lambda kind: False)


def _is_on_gpu(x):
    """Those that torch.compile captures with are still the host's."""
    return type(x) in (torch.Tensor, torch.nn.Parameter)


@contextmanager
def autocast(dtype):
    """What autocast on a GPU sets, without one."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])


def aligned(like):
    """A tensor that lies as another one does, where kernels can read and write it."""
    memory = torch.empty(like.numel() + 64, dtype=like.dtype)
    start = -memory.data_ptr() // memory.element_size() % (64 // memory.element_size())
    return memory[start : start + like.numel()].as_strided(like.shape, like.stride()).normal_()
