# SPDX-License-Identifier: Apache-2.0
"""Launches on PyTorch's tensors on a GPU: on the current stream, memory by PyTorch's allocator, so that CUDA graphs can capture them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch

from pysim.errors import PysimError
from pysim.models.torch_precision import NAMES, TENSORS
from pysim.once import Recent
from pysim.problem.gemm import Gemm
from pysim.record.plan import Plan
from pysim.record.schedule import GpuSchedule
from pysim.runtime import arrays, cuda
from pysim.runtime.cuda_call import ALIGNED, workspace
from pysim.runtime.cuda_norm import Norm, NormLaunch


def on_device_of(x: Any) -> AbstractContextManager[Any]:
    """Makes the device of a tensor the current one."""
    return torch.cuda.device(x.device) if len(cuda.devices()) > 1 else nullcontext()


def _at(x: Any) -> int:
    return 0 if x is None else int(x.data_ptr())


class Lies(NamedTuple):
    """A tensor as it lies."""

    shape: Any
    stride: tuple[int, ...]
    dtype: Any
    device: Any

    @classmethod
    def of(cls, x: Any) -> "Lies":
        return cls(x.shape, x.stride(), x.dtype, x.device)

    @property
    def nbytes(self) -> int:
        return int(self.shape.numel() * self.dtype.itemsize)

    @property
    def make(self) -> Callable[[], Any]:
        """What makes uninitialised tensors that lie so."""
        return partial(torch.empty_strided, tuple(self.shape), self.stride, dtype=self.dtype, device=self.device)


class Begun(NamedTuple):
    """The tensors of a prologue: `cuda.Prologue`."""

    scale: Any
    shift: Any
    by_image: bool = False
    relu: bool = False


class GpuLaunch:
    """y = act(scale conv(x, w) + shift), or x times w transposed; with `residual` that is added, and written over. Either may be None.
    With a `prologue` x is scaled, shifted and bounded as it is read."""

    def __init__(self, plan: Plan, activation: Any, dtype: Any = None) -> None:
        """`dtype`: of the result, where that is not the type of what is multiplied."""
        problem, self.layout, self._activation = plan.workload, plan.layout, activation
        self.dtype = dtype or TENSORS[problem.dtype]
        assert isinstance(plan.schedule, GpuSchedule)
        self.launch = cuda.Launch(problem, plan.schedule, result=NAMES[self.dtype], layout=plan.layout)
        if isinstance(problem, Gemm):
            self.shape: tuple[int, ...] = (problem.m, problem.n)
        else:
            self.shape = (problem.batch, problem.filters, problem.out_h, problem.out_w)
        self._epilogues: Recent[Any] = Recent(8)  # by whether something is added, and where shift and scale lie
        self.form = torch.channels_last if self.layout == "nhwc" and len(self.shape) == 4 else torch.contiguous_format
        self.library = arrays.library_of(torch.Tensor)

    def reads(self, x: Any) -> bool:
        """Whether a tensor is read where it lies."""
        return bool(x.is_contiguous(memory_format=self.form) and not x.data_ptr() % ALIGNED)

    def takes(self, residual: Any, x: Any) -> bool:
        """Whether the result of x can be written over a tensor."""
        same = tuple(residual.shape) == self.shape and residual.dtype == self.dtype and residual.device == x.device
        return same and self.reads(residual)

    def epilogue(self, scale: Any, shift: Any, adds: bool, prologue: "Begun | None" = None) -> Any:
        beta, to, by = float(adds), _at(shift), _at(scale)
        told = None if prologue is None else cuda.Prologue(_at(prologue.scale), _at(prologue.shift), prologue.by_image, prologue.relu)
        key = (beta, to, by, told)
        return self._epilogues.get(key) or self._epilogues.put(key, cuda.epilogue_struct(1.0, beta, to, self._activation, by, told))

    def __call__(self, x: Any, w: Any, scale: Any, shift: Any, residual: Any = None, prologue: "Begun | None" = None) -> Any:
        x, w = (one.clone() if one.data_ptr() % ALIGNED else one for one in (x, w))
        with on_device_of(x):
            y = residual
            if y is None:
                y = torch.empty(self.shape, dtype=self.dtype, device=x.device, memory_format=self.form)
            stream = self.library.stream(x)
            _owner, work = workspace(self.launch.workspace_bytes, stream, (self.library, x, x.get_device()))
            epilogue = self.epilogue(scale, shift, residual is not None, prologue)
            self.launch.run(x.data_ptr(), w.data_ptr(), y.data_ptr(), work, epilogue, stream)
        return y


_norms: Recent[NormLaunch] = Recent(256)


class Normed(NamedTuple):
    """A norm that read its parts and wrote its result where they lay: what calls like it need beside these."""

    launch: NormLaunch
    kept: tuple[Any, ...]  # what it points to
    result: Lies
    form: Any  # in which parts and result lie
    by_factor: bool = False  # its scale is a value, too


def normed(
    parts: Sequence[Any], parameters: Sequence[Any], relu: bool, epsilon: float | None, dtype: Any, by_image: bool = False
) -> tuple[Any, Normed] | None:
    """A norm of images whose channels lie last, of all their parts, or with `epsilon` of the rows of one part, as a tensor of `dtype`; None
    where no kernel does it. `parameters` are its center, scale and shift, in float32; `by_image`: each image has a scale of its own."""
    x, by_rows = parts[0], epsilon is not None
    apart = [(*one.shape[:1], *one.shape[2:]) for one in parts]
    if not x.numel() or (not by_rows and any(one != apart[0] for one in apart)):
        return None
    channels = tuple(one.shape[-1 if by_rows else 1] for one in parts)
    (center, scale, shift), types = map(_at, parameters), (NAMES.get(x.dtype, ""), NAMES.get(dtype, ""))
    images = x.shape[2:].numel() if by_image else 0
    norm = Norm(*types, x.numel() // channels[0], channels, center, scale, shift, relu, by_rows, epsilon or 0.0, images)
    try:
        if not norm.taken:
            return None
        launch = _norms.get(norm) or _norms.put(norm, NormLaunch(norm))
        with on_device_of(x):
            shape, form = (x.shape, torch.contiguous_format) if by_rows else ((len(x), sum(channels), *x.shape[2:]), torch.channels_last)
            y = torch.empty(shape, dtype=dtype, device=x.device, memory_format=form)
            launch.run([*map(_at, parts)], _at(y), arrays.library_of(torch.Tensor).stream(x))
    except PysimError:
        return None
    return y, Normed(launch, tuple(parameters), Lies.of(y), form, by_image)


class Called(NamedTuple):
    """A launch that read and wrote its operands where they lay: what calls like it need beside input, residual and result."""

    launch: GpuLaunch
    weights: Any
    epilogue: Any
    kept: tuple[Any, ...]  # what the epilogue points to
    adds: bool
    form: Any  # in which operands and result lie
    before: Normed | None = None  # what made its input
    turned: bool = False  # of a factor and what it multiplies the factor was given first
