# SPDX-License-Identifier: Apache-2.0
"""Convolutions of PyTorch's library, cuDNN. One with what follows in one kernel: max(0, conv(x, w) + shift + residual), channels last.

A norm's scale must be in the weights, which rounds them once more: in float16 ResNet-18 and ResNet-50 with all of their convolutions so
have errors of 1.11 and 1.06 times those of PyTorch's compiler, which rounds each convolution's result (computed in float32, random
weights).
"""

from typing import Any

import torch
from torch.nn import functional

from pysim.problem.conv import Conv
from pysim.torch.layers.conv_forms import Geometry

_VECTOR_BYTES = 16  # of a pixel's channels, in kernels for tensor cores


def convolution_relu(x: Any, w: Any, shift: Any, residual: Any, *geometry: Any) -> Any:
    """`geometry`: stride, padding and dilation. Off a GPU by PyTorch's operators."""
    x, w, residual = (one if one is None else one.contiguous(memory_format=torch.channels_last) for one in (x, w, residual))
    if x.device.type != "cuda":
        y = functional.conv2d(x, w, shift, *geometry)
        y = torch.relu(y if residual is None else y + residual)
    elif residual is None:
        y = torch.cudnn_convolution_relu(x, w, shift, *geometry, 1)
    else:
        y = torch.cudnn_convolution_add_relu(x, w, residual, 1.0, shift, *geometry, 1)
    return y.contiguous(memory_format=torch.channels_last)


def in_vectors(problem: Conv, w: Any) -> bool:
    """Whether a convolution's channels and filters fill vectors. cuDNN pads others in each call, also where PyTorch's convolution has a
    kernel without: an HRNet in float16 whose 31 layers of 18 and 36 channels were one kernel each took 1.13 times as long (H200)."""
    return not any(one * w.element_size() % _VECTOR_BYTES for one in (problem.channels, problem.filters))


def result_of(x: Any, w: Any, shift: Any, residual: Any, *geometry: Any) -> Any:
    """Its result, for tensors without memory."""
    return functional.conv2d(x, w, shift, *geometry).contiguous(memory_format=torch.channels_last)


def convolved(x: Any, w: Any, bias: Any, geometry: Geometry) -> Any:
    """By PyTorch's operator for these axes."""
    stride, padding, dilation, groups, added, *_ = geometry
    if added is not None:
        transpose = getattr(functional, f"conv_transpose{len(stride)}d")
        return transpose(x, w, bias, stride, padding, added, groups, dilation)
    return getattr(functional, f"conv{len(stride)}d")(x, w, bias, stride, padding, dilation, groups)


def memory_format_of_last(x: Any) -> Any:
    """The memory format of an image or a volume whose channels lie last and nowhere else; None for others."""
    form = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    return form if form is not None and not x.is_contiguous() and x.is_contiguous(memory_format=form) else None
