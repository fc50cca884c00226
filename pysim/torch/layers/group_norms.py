# SPDX-License-Identifier: Apache-2.0
"""Norms of groups of channels of images and volumes as one pass over memory, beside the compiler's, which reads an image twice.

    y = f((x - mean) / sqrt(variance + epsilon) gamma + beta + residual),   channels last, one read and one write of each element
    ours    launch + (2 + residual) bytes / bandwidth / share
    theirs  statistics: bytes x (sectors read / bytes of a group's channels), and the norm with what follows, unless its reader computes it

The compiler's kernel of statistics has one group of an image in a block: of 2 channels in float16 it uses 4 bytes of each sector of 32, and
16 images of 112x112 pixels of 64 channels take 42 us on an H200, 8 times as long as their bytes; of 8 channels 15.5 us for as many bytes.

Worked number: ResNet-50 with group norms in float16, batch 16, spends 376 us in statistics and 310 in what follows them, of 1,215.
"""

from typing import Any

import torch
from torch.nn import functional

from pysim.cachemodel.gpu.windows import SECTOR_BYTES
from pysim.errors import PysimError
from pysim.machine.gpu import Gpu
from pysim.runtime import arrays
from pysim.runtime.cuda_norm import GroupNorm
from pysim.torch.layers import gpu_launch
from pysim.torch.layers.compiler_seconds import NORM_CYCLES, fused_seconds
from pysim.torch.layers.norm_layers import VECTOR_BYTES, apply_activation
from pysim.torch.precision import NAMES

LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the number of axes
# A launch whose blocks wait for each other, and the share of the bandwidth that it reaches: 15 norms in float16 took 5.8 to 48 us on an
# H200 (lab/benchmarks/cuda/norms.py), each at most as long as this, those of 8 and more channels a group half as long
_LAUNCH, _SHARE = 8.0e-6, 0.22


def norm_of(x: Any, parameters: Any, groups: int, epsilon: float, activation: Any) -> GroupNorm:
    """The kernel's problem; `parameters`: the type of gamma and beta, None for float32."""
    types = NAMES.get(x.dtype, ""), "f32" if parameters is None else NAMES.get(parameters, "")
    return GroupNorm(types[0], x.shape[0], x.shape[2:].numel(), x.shape[1], groups, epsilon, types[1], activation)


def group_norm(x: Any, residual: Any, gamma: Any, beta: Any, groups: int, epsilon: float, activation: Any) -> Any:
    """A new tensor, channels last. By PyTorch's operators where the kernel cannot read an operand."""
    form = LAST[x.dim()]
    x, residual = (one if one is None else one.contiguous(memory_format=form) for one in (x, residual))
    given = [one for one in (gamma, beta) if one is not None]
    norm = norm_of(x, given[0].dtype if given else None, groups, epsilon, activation)
    y = torch.empty_like(x, memory_format=form)
    operands = [0 if one is None else one.data_ptr() for one in (x, y, residual)]
    if not any(at % VECTOR_BYTES for at in operands) and all(one.is_contiguous() for one in given):
        scale, shift = (0 if one is None else one.data_ptr() for one in (gamma, beta))
        try:
            with gpu_launch.on_device_of(x):
                norm.run(operands[0], operands[1], scale, shift, operands[2], arrays.library_of(torch.Tensor).stream(x))
            return y
        except PysimError:
            pass
    by_pytorch = functional.group_norm(x, groups, gamma, beta, epsilon)
    return y.copy_(apply_activation(by_pytorch if residual is None else by_pytorch + residual, activation))


def result_of(x: Any, *_: Any) -> Any:
    """Its result, for tensors without memory."""
    return torch.empty_like(x, memory_format=LAST[x.dim()])


def own_seconds(x: Any, adds: bool, made_apart: bool, on: Gpu) -> float:
    """`made_apart`: what computes x is a kernel of its own then, which the compiler would have computed with the statistics."""
    moved = x.numel() * x.element_size()
    apart = fused_seconds(x.numel(), 2 * moved, on) if made_apart else 0.0
    return float(_LAUNCH + (2 + adds) * moved / on.memory_bytes_per_second.value / _SHARE + apart)


def compiler_seconds(x: Any, groups: int, adds: bool, fuses_on: bool, on: Gpu) -> float:
    """`fuses_on`: what reads the result computes the norm."""
    moved, channels = x.numel() * x.element_size(), x.shape[1] // groups * x.element_size()
    sectors = max(1.0, SECTOR_BYTES / channels)
    applied = 0.0 if fuses_on else fused_seconds(x.numel(), (2 + adds) * moved, on, NORM_CYCLES)
    return fused_seconds(x.numel(), int(sectors * moved), on) + applied
