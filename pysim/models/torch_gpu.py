# SPDX-License-Identifier: Apache-2.0
"""Launches on PyTorch's tensors on a GPU: on the current stream, workspace by PyTorch's allocator, so that CUDA graphs can capture them."""

from typing import Any

import torch

from pysim.once import Recent
from pysim.problem.gemm import Gemm
from pysim.record.plan import Plan
from pysim.record.schedule import GpuSchedule
from pysim.runtime import cuda
from pysim.runtime.cuda_call import ALIGNED


class GpuLaunch:
    """y = act(conv(x, w) + bias), or x times w transposed; with `residual` that is added, and written over."""

    def __init__(self, plan: Plan, activation: Any) -> None:
        problem, self.layout, self._activation = plan.workload, plan.layout, activation
        assert isinstance(plan.schedule, GpuSchedule)
        self._launch = cuda.Launch(problem, plan.schedule, layout=plan.layout)
        if isinstance(problem, Gemm):
            self.shape: tuple[int, ...] = (problem.m, problem.n)
        else:
            self.shape = (problem.batch, problem.filters, problem.out_h, problem.out_w)
        self._epilogues: Recent[Any] = Recent(8)  # by whether something is added, and where the bias lies
        self._form = torch.channels_last if self.layout == "nhwc" else torch.contiguous_format

    def takes(self, residual: Any, like: Any) -> bool:
        """Whether the result can be written over a tensor."""
        lies = residual.is_contiguous(memory_format=self._form if len(self.shape) == 4 else torch.contiguous_format)
        same = tuple(residual.shape) == self.shape and residual.dtype == like.dtype and residual.device == like.device
        return bool(lies and same and not residual.data_ptr() % ALIGNED)

    def __call__(self, x: Any, w: Any, bias: Any, residual: Any = None) -> Any:
        with torch.cuda.device(x.device):
            y = residual
            if y is None:
                y = torch.empty(self.shape, dtype=x.dtype, device=x.device)
                if len(self.shape) == 4 and self.layout == "nhwc":
                    y = torch.empty(self.shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
            x, w = (one.clone() if one.data_ptr() % ALIGNED else one for one in (x, w))
            size = self._launch.workspace_bytes
            work = torch.empty(size, dtype=torch.uint8, device=x.device) if size else None
            told = (float(residual is not None), 0 if bias is None else bias.data_ptr())
            epilogue = self._epilogues.get(told) or self._epilogues.put(told, cuda.epilogue_struct(1.0, *told, self._activation))
            at = 0 if work is None else work.data_ptr()
            self._launch.run(x.data_ptr(), w.data_ptr(), y.data_ptr(), at, epilogue, torch.cuda.current_stream().cuda_stream)
        return y
