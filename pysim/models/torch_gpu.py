# SPDX-License-Identifier: Apache-2.0
"""Launches on PyTorch's tensors on a GPU: on the current stream, workspace by PyTorch's allocator, so that CUDA graphs can capture them."""

from contextlib import nullcontext
from operator import is_ as _is
from typing import Any, NamedTuple

import torch

from pysim.once import Recent
from pysim.problem.gemm import Gemm
from pysim.record.plan import Plan
from pysim.record.schedule import GpuSchedule
from pysim.runtime import arrays, cuda
from pysim.runtime.cuda_call import ALIGNED, workspace


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
        self.form = torch.channels_last if self.layout == "nhwc" and len(self.shape) == 4 else torch.contiguous_format
        self._library = arrays.library_of(torch.Tensor)

    def takes(self, residual: Any, like: Any) -> bool:
        """Whether the result can be written over a tensor."""
        lies = residual.is_contiguous(memory_format=self.form)
        same = tuple(residual.shape) == self.shape and residual.dtype == like.dtype and residual.device == like.device
        return bool(lies and same and not residual.data_ptr() % ALIGNED)

    def __call__(self, x: Any, w: Any, bias: Any, residual: Any = None) -> Any:
        x, w = (one.clone() if one.data_ptr() % ALIGNED else one for one in (x, w))
        return self.put(x, w.data_ptr(), self.epilogue(bias, residual is not None), residual, self.shape)

    def epilogue(self, bias: Any, adds: bool) -> Any:
        told = (float(adds), 0 if bias is None else bias.data_ptr())
        return self._epilogues.get(told) or self._epilogues.put(told, cuda.epilogue_struct(1.0, *told, self._activation))

    def put(self, x: Any, w: int, epilogue: Any, residual: Any, shape: tuple[int, ...]) -> Any:
        """Of operands that begin where kernels can read them; `shape` of the result may be another one of as many elements."""
        with torch.cuda.device(x.device) if len(cuda.devices()) > 1 else nullcontext():
            y = residual
            if y is None:
                y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=self.form)
            stream = self._library.stream(x)
            _owner, work = workspace(self._launch.workspace_bytes, stream, (self._library, x, x.get_device()))
            self._launch.run(x.data_ptr(), w, y.data_ptr(), work, epilogue, stream)
        return y


class Again(NamedTuple):
    """A call that was made, for calls like it: inputs that lie alike, the same parameters, not written to since. To look up what it needs
    takes several times as long as the launch."""

    launch: GpuLaunch
    operands: tuple[Any, Any]  # weights and bias as the launch reads them: what is told lies there
    told: tuple[int, Any]  # where the weights lie, and the epilogue
    shape: tuple[int, ...]  # of the result
    like: tuple[Any, ...]  # shape, type and device of inputs
    adds: bool
    parameters: tuple[Any, ...]  # that the layer is given, and where each lay when it had been written to how often
    state: tuple[tuple[Any, int, int], ...]

    def is_like(self, x: Any, parameters: tuple[Any, ...], residual: Any) -> bool:
        if (x.shape, x.dtype, x.device) != self.like or type(x) is not torch.Tensor or (residual is not None) is not self.adds:
            return False
        if not all(map(_is, parameters, self.parameters)):
            return False
        for one, at, written in self.state:
            if one.data_ptr() != at or one._version != written:
                return False
        lies = x.is_contiguous(memory_format=self.launch.form) and not x.data_ptr() % ALIGNED
        return bool(lies and (residual is None or self.launch.takes(residual, x)))

    def __call__(self, x: Any, residual: Any) -> Any:
        return self.launch.put(x, *self.told, residual, self.shape)
