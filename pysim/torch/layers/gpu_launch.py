# SPDX-License-Identifier: Apache-2.0
"""Kernel launches on PyTorch's CUDA tensors: on the current stream, with memory from PyTorch's allocator, so CUDA graphs can capture
them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch

from pysim.caches import LruCache
from pysim.errors import PysimError
from pysim.problem.gemm import Gemm
from pysim.problem.transposed import Transposed
from pysim.record.plan import Layout, Plan
from pysim.record.schedule import GpuSchedule
from pysim.runtime import arrays, cuda
from pysim.runtime.arrays import ALIGNMENT_BYTES
from pysim.runtime.cuda_call import workspace
from pysim.runtime.cuda_norm import Norm, NormLaunch
from pysim.torch.precision import NAMES, TENSORS


def on_device_of(x: Any) -> AbstractContextManager[Any]:
    """Makes the device of a tensor the current one."""
    return torch.cuda.device(x.device) if len(cuda.devices()) > 1 else nullcontext()


def _address(x: Any) -> int:
    return 0 if x is None else int(x.data_ptr())


class TensorLayout(NamedTuple):
    """Everything about a tensor but its memory."""

    shape: Any
    stride: tuple[int, ...]
    dtype: Any
    device: Any

    @classmethod
    def of(cls, x: Any) -> "TensorLayout":
        return cls(x.shape, x.stride(), x.dtype, x.device)

    @property
    def nbytes(self) -> int:
        return int(self.shape.numel() * self.dtype.itemsize)

    @property
    def allocate(self) -> Callable[[], Any]:
        """A function that allocates an uninitialised tensor of this layout."""
        return partial(torch.empty_strided, tuple(self.shape), self.stride, dtype=self.dtype, device=self.device)


class PrologueTensors(NamedTuple):
    """The tensors of a `cuda.Prologue`."""

    scale: Any
    shift: Any
    by_image: bool = False
    relu: bool = False


def memory_format_of(plan: Plan) -> Any:
    """The memory format of a plan's operands."""
    if plan.layout != "nhwc" or isinstance(plan.workload, Gemm):
        return torch.contiguous_format
    return torch.channels_last_3d if plan.workload.is_volume else torch.channels_last


class GpuLaunch:
    """y = act(scale conv(x, w) + shift), or the product of x and w transposed; scale and shift may be None. A `residual` is added and
    overwritten by the result. A `prologue` scales, shifts and rectifies x as the kernel loads it."""

    def __init__(self, plan: Plan, activation: Any, dtype: Any = None) -> None:
        """`dtype`: the type of the result; None: the type of the operands."""
        problem, self.layout, self._activation = plan.workload, plan.layout, activation
        self.dtype = dtype or TENSORS[problem.dtype]
        assert isinstance(plan.schedule, GpuSchedule)
        self.launch = cuda.Launch(problem, plan.schedule, result=NAMES[self.dtype], layout=plan.layout)
        if isinstance(problem, Gemm):
            self.shape: tuple[int, ...] = (problem.m, problem.n)
        else:
            self.shape = problem.output_shape
        self._epilogues: LruCache[Any] = LruCache(8)  # structs, by the addresses that they contain
        self.memory_format = memory_format_of(plan)
        self.library = arrays.library_of(torch.Tensor)

    def can_read(self, x: Any) -> bool:
        """Whether the kernel can read this tensor without a copy."""
        return bool(x.is_contiguous(memory_format=self.memory_format) and not x.data_ptr() % ALIGNMENT_BYTES)

    def can_overwrite(self, residual: Any, x: Any) -> bool:
        """Whether the result for input x can overwrite this residual."""
        fits = tuple(residual.shape) == self.shape and residual.dtype == self.dtype and residual.device == x.device
        return fits and self.can_read(residual)

    def epilogue(self, scale: Any, shift: Any, has_residual: bool, prologue: PrologueTensors | None = None) -> Any:
        beta, shift_at, scale_at = float(has_residual), _address(shift), _address(scale)
        first = None
        if prologue is not None:
            first = cuda.Prologue(_address(prologue.scale), _address(prologue.shift), prologue.by_image, prologue.relu)
        key = (beta, shift_at, scale_at, first)
        struct = self._epilogues.get(key)
        return struct or self._epilogues.put(key, cuda.epilogue_struct(1.0, beta, shift_at, self._activation, scale_at, first))

    def __call__(self, x: Any, w: Any, scale: Any, shift: Any, residual: Any = None, prologue: PrologueTensors | None = None) -> Any:
        y = residual
        if y is None:
            y = torch.empty(self.shape, dtype=self.dtype, device=x.device, memory_format=self.memory_format)
        return self.into(y, x, w, scale, shift, residual is not None, prologue)

    def into(self, y: Any, x: Any, w: Any, scale: Any, shift: Any, adds: bool, prologue: PrologueTensors | None = None) -> Any:
        """The result in the memory of y; `adds`: y is the residual."""
        x, w = (tensor.clone() if tensor.data_ptr() % ALIGNMENT_BYTES else tensor for tensor in (x, w))
        with on_device_of(x):
            stream = self.library.stream(x)
            _owner, work = workspace(self.launch.workspace_bytes, stream, (self.library, x, x.get_device()))
            epilogue = self.epilogue(scale, shift, adds, prologue)
            self.launch.run(x.data_ptr(), w.data_ptr(), y.data_ptr(), work, epilogue, stream)
        return y


def interleaved(of: Transposed, y: Any, layout: Layout, form: Any) -> Any:
    """The result of a transposed convolution from the outputs `y` of its phases, those of a filter neighbours; of a sequence an image of
    one row."""
    shape = of.output_shape if len(of.axes) > 1 else (*of.output_shape[:2], 1, *of.output_shape[2:])
    if of.phases == 1 and tuple(y.shape) == shape:
        return y
    result = torch.empty(shape, dtype=y.dtype, device=y.device, memory_format=form)
    with on_device_of(y):
        cuda.interleave(of, layout, y.element_size(), y.data_ptr(), result.data_ptr(), arrays.library_of(torch.Tensor).stream(y))
    return result


_norm_launches: LruCache[NormLaunch] = LruCache(256)


class NormRecord(NamedTuple):
    """A norm that was launched on its operands without a copy: everything that a later launch on other tensors of the same layouts
    needs."""

    launch: NormLaunch
    keep_alive: tuple[Any, ...]  # the tensors that `launch` points to
    result: TensorLayout
    memory_format: Any  # of its parts and its result
    scale_is_input: bool = False  # the scale is a value of the graph, not a parameter


def run_norm(
    parts: Sequence[Any], parameters: Sequence[Any], relu: bool, epsilon: float | None, dtype: Any, by_image: bool = False
) -> tuple[Any, NormRecord] | None:
    """A norm of channels-last images, given as the parts of their concatenation; with an `epsilon`, a layer norm of the rows of one part.
    The result has the type `dtype`; None if no kernel computes it. `parameters`: center, scale and shift in float32. `by_image`: each
    image has its own scale."""
    x, by_rows = parts[0], epsilon is not None
    pixels = [(*part.shape[:1], *part.shape[2:]) for part in parts]
    if not x.numel() or (not by_rows and any(one != pixels[0] for one in pixels)):
        return None
    channels = tuple(part.shape[-1 if by_rows else 1] for part in parts)
    (center, scale, shift), types = map(_address, parameters), (NAMES.get(x.dtype, ""), NAMES.get(dtype, ""))
    image_rows = x.shape[2:].numel() if by_image else 0
    norm = Norm(*types, x.numel() // channels[0], channels, center, scale, shift, relu, by_rows, epsilon or 0.0, image_rows)
    try:
        if not norm.supported:
            return None
        launch = _norm_launches.get(norm) or _norm_launches.put(norm, NormLaunch(norm))
        with on_device_of(x):
            shape, form = (x.shape, torch.contiguous_format) if by_rows else ((len(x), sum(channels), *x.shape[2:]), torch.channels_last)
            y = torch.empty(shape, dtype=dtype, device=x.device, memory_format=form)
            launch.run([*map(_address, parts)], _address(y), arrays.library_of(torch.Tensor).stream(x))
    except PysimError:
        return None
    return y, NormRecord(launch, tuple(parameters), TensorLayout.of(y), form, by_image)


class LaunchRecord(NamedTuple):
    """A layer that was launched on its operands without a copy: everything that a later launch needs beside input, residual and result."""

    launch: GpuLaunch
    weights: Any
    epilogue: Any
    keep_alive: tuple[Any, ...]  # the tensors that `epilogue` points to
    adds_residual: bool
    memory_format: Any  # of input, residual and result
    input_norm: NormRecord | None = None  # the launch that computed the layer's input
    swapped: bool = False  # the factor was given first, the image that it multiplies second
