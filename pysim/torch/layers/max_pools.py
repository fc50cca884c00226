# SPDX-License-Identifier: Apache-2.0
"""Max pools of PyTorch models on a GPU, whose convolutions leave their results channels last.

PyTorch's kernel for channels-last images occupies few multiprocessors with a small pool: at batch 1 GoogLeNet's take 18 to 31 us each on an
H100. Its kernel for volumes computes one result per thread. Channels-last images, N H W C in memory, are volumes of one channel, with
depth H, height W and width C. Pooling them with windows of width 1 gives the same bits in 3 to 7 us (torch_operators.py,
lab/data/h100/torch-operators.txt). With many results the kernel for images is as fast or up to 1.4 times faster.

Worked number: 192 channels of 28x28 are 150,528 results, 1,140 per multiprocessor of an H100: 5.8 us as a volume, 19.9 us as an image.
"""

from typing import Any

import torch
from torch.nn import functional

from pysim.torch.parameters import needs_pytorch

# Results per multiprocessor up to which images are pooled as volumes: in the 62 of 90 measured pools below it, that is 0.92 to 7.0 times as
# fast; over all 90 this choice takes 1.005 times as long as the faster kernel (geometric mean)
VOLUME_RESULTS = 6144


def max_pool(
    input: Any,  # noqa: A002  # PyTorch's name
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """`torch.nn.functional.max_pool2d`, the same bits."""
    x, arguments = input, (kernel_size, stride, padding, dilation)
    last = isinstance(x, torch.Tensor) and x.is_cuda and x.dim() == 4 and not x.is_contiguous()
    if not last or return_indices or not x.is_contiguous(memory_format=torch.channels_last) or needs_pytorch(x, ()):
        return functional.max_pool2d(x, *arguments, ceil_mode, return_indices)
    kernel, strides, pads, dilations = map(_pair, (kernel_size, kernel_size if stride in (None, [], ()) else stride, padding, dilation))
    if x.numel() > strides[0] * strides[1] * VOLUME_RESULTS * _multiprocessors(x):
        return functional.max_pool2d(x, *arguments, ceil_mode)  # by its results, not counting padding
    volume = x.permute(0, 2, 3, 1).unsqueeze(1)
    y = functional.max_pool3d(volume, (*kernel, 1), (*strides, 1), (*pads, 0), (*dilations, 1), ceil_mode)
    return y.squeeze(1).permute(0, 3, 1, 2)


def _pair(value: Any) -> tuple[int, int]:
    pair = (value,) if isinstance(value, int) else tuple(value)
    return (pair[0], pair[-1])


def _multiprocessors(x: Any) -> int:
    return int(torch.cuda.get_device_properties(x.device).multi_processor_count)
