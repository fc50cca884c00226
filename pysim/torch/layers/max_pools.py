# SPDX-License-Identifier: Apache-2.0
"""Max pools of PyTorch models on a GPU, whose convolutions leave their results channels last.

PyTorch's kernel for channels-last images takes several times what memory does: 62 us of ResNet-50's 834 in float16 at batch 16 (H200),
6.7 at the memory's bandwidth; that for volumes 60 of a 3-D U-Net's 436, where its compiler's takes 7. The library's kernel
(native/cuda/pool) gives the same bits. A volume is pooled along rows and columns, as images of its slices, then along its slices, as
images whose columns are pixels: windows are looked at in PyTorch's order.
"""

from typing import Any

import torch
from torch.nn import functional

from pysim.errors import PysimError
from pysim.runtime import arrays
from pysim.runtime.cuda_norm import MaxPool
from pysim.torch.layers import gpu_launch
from pysim.torch.layers.library_conv import memory_format_of_last
from pysim.torch.layers.norm_layers import TO_NCHW, TO_NHWC
from pysim.torch.parameters import needs_pytorch
from pysim.torch.precision import NAMES

TO_NDHWC, TO_NCDHW = (0, 2, 3, 4, 1), (0, 4, 1, 2, 3)


def max_pool(
    input: Any,  # noqa: A002  # PyTorch's name
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    axes: int = 2,
) -> Any:
    """`torch.nn.functional.max_pool2d`, the same bits; `axes`: 3 for `max_pool3d`."""
    x, arguments = input, (kernel_size, stride, padding, dilation)
    last = isinstance(x, torch.Tensor) and x.is_cuda and x.dim() == axes + 2 and memory_format_of_last(x) is not None
    if last and not return_indices and not needs_pytorch(x, ()):
        y = _of_volumes(x, *arguments, ceil_mode) if axes == 3 else _by_kernel(x, pool_of(x, *arguments, ceil_mode))
        if y is not None:
            return y
    return getattr(functional, f"max_pool{axes}d")(x, *arguments, ceil_mode, return_indices)


def max_pool3d(input: Any, *given: Any, **named: Any) -> Any:  # noqa: A002  # PyTorch's name
    """`torch.nn.functional.max_pool3d`, the same bits."""
    return max_pool(input, *given, **named, axes=3)


def _of_volumes(x: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Any:
    given = [_triple(one) for one in (kernel_size, kernel_size if stride in (None, [], ()) else stride, padding, dilation)]
    batch, channels, depth = x.shape[:3]
    slices = x.permute(TO_NDHWC).reshape(batch * depth, *x.shape[3:], channels).permute(TO_NCHW)
    kernel, strides, pads, dilations = (one[1:] for one in given)
    y = _by_kernel(slices, pool_of(slices, kernel, strides, pads, dilations, ceil_mode))
    if y is None:
        return None
    pixels = y.permute(TO_NHWC).reshape(batch, depth, -1, channels).permute(TO_NCHW)
    kernel, strides, pads, dilations = ((one[0], more) for one, more in zip(given, (1, 1, 0, 1), strict=True))
    found = _by_kernel(pixels, pool_of(pixels, kernel, strides, pads, dilations, ceil_mode))
    return None if found is None else found.permute(TO_NHWC).reshape(batch, -1, *y.shape[2:], channels).permute(TO_NCDHW)


def pool_of(x: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> MaxPool | None:
    """None: for PyTorch, which also says what is wrong with the arguments."""
    windows, strides, pads, dilations = map(_pair, (kernel_size, kernel_size if stride in (None, [], ()) else stride, padding, dilation))
    size = (x.shape[2], x.shape[3])
    if min(windows + strides + dilations) < 1 or any(pad < 0 or 2 * pad > window for pad, window in zip(pads, windows, strict=True)):
        return None
    out = tuple(_results(*axis, ceil_mode) for axis in zip(size, windows, strides, pads, dilations, strict=True))
    made = MaxPool(NAMES.get(x.dtype, ""), x.shape[0], x.shape[1], size, (out[0], out[1]), windows, strides, pads, dilations)
    return made if min(out) > 0 and made.supported else None


def _by_kernel(x: Any, pool: MaxPool | None) -> Any:
    if pool is None:
        return None
    try:
        with gpu_launch.on_device_of(x):
            y = torch.empty((len(x), pool.channels, *pool.out), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
            pool.run(x.data_ptr(), y.data_ptr(), arrays.library_of(torch.Tensor).stream(x))
    except PysimError:
        return None
    return y


def _results(size: int, window: int, stride: int, pad: int, dilation: int, ceil_mode: bool) -> int:
    """Along an axis. By `ceil_mode` a last window may leave the image if it begins in it or in the padding before it."""
    left = size + 2 * pad - dilation * (window - 1) - 1
    found = (left + (stride - 1 if ceil_mode else 0)) // stride + 1
    return found - (ceil_mode and (found - 1) * stride >= size + pad)


def _triple(value: Any) -> tuple[int, int, int]:
    each = (value,) * 3 if isinstance(value, int) else tuple(value)
    return (each[0], each[len(each) // 2], each[-1])


def _pair(value: Any) -> tuple[int, int]:
    pair = (value,) if isinstance(value, int) else tuple(value)
    return (pair[0], pair[-1])
