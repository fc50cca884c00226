# SPDX-License-Identifier: Apache-2.0
"""Launches on PyTorch's tensors on a GPU: on the current stream, workspace by PyTorch's allocator, so that CUDA graphs can capture them."""

from typing import Any

import torch

from pysim.problem.gemm import Gemm
from pysim.record.plan import Plan
from pysim.record.schedule import GpuConvSchedule, GpuSchedule
from pysim.runtime import arrays, cuda, cuda_conv


class GpuLaunch:
    """y = act(conv(x, w) + bias), or x times w transposed; with `residual` that is added, and written over."""

    def __init__(self, plan: Plan, activation: Any) -> None:
        problem, schedule, self.layout = plan.workload, plan.schedule, plan.layout
        if isinstance(problem, Gemm):
            assert isinstance(schedule, GpuSchedule)
            self._launch: Any = cuda.Product(problem, schedule, (0, 0, 0))
            self.shape: tuple[int, ...] = (problem.m, problem.n)
        else:
            assert isinstance(schedule, GpuConvSchedule)
            self._launch = cuda_conv.Convolution(problem, schedule, plan.layout, problem.dtype)
            self.shape = (problem.batch, problem.filters, problem.out_h, problem.out_w)
        self._epilogues = [cuda.epilogue_struct(1.0, beta, 0, activation) for beta in (0.0, 1.0)]
        self._form = torch.channels_last if self.layout == "nhwc" else torch.contiguous_format

    def takes(self, residual: Any, like: Any) -> bool:
        """Whether the result can be written over a tensor."""
        lies = residual.is_contiguous(memory_format=self._form if len(self.shape) == 4 else torch.contiguous_format)
        same = tuple(residual.shape) == self.shape and residual.dtype == like.dtype and residual.device == like.device
        return bool(lies and same and not residual.data_ptr() % cuda.ALIGNED)

    def __call__(self, x: Any, w: Any, bias: Any, residual: Any = None) -> Any:
        with torch.cuda.device(x.device):
            y = residual
            if y is None:
                y = torch.empty(self.shape, dtype=x.dtype, device=x.device)
                if len(self.shape) == 4 and self.layout == "nhwc":
                    y = torch.empty(self.shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
            x, w = (one.clone() if one.data_ptr() % cuda.ALIGNED else one for one in (x, w))
            size = self._launch.workspace_bytes
            work = torch.empty(size, dtype=torch.uint8, device=x.device) if size else None
            epilogue = self._epilogues[residual is not None]
            if bias is not None:
                epilogue = cuda.with_bias(epilogue, arrays.view(bias, "bias"))
            pointers = (x.data_ptr(), w.data_ptr(), y.data_ptr())
            self._launch.run(pointers, 0 if work is None else work.data_ptr(), epilogue, arrays.current_stream(x))
        return y
