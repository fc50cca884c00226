# SPDX-License-Identifier: Apache-2.0
"""A convolution or product of a PyTorch model with what was fused into it, as a module: y = act(norm(conv(x, w) + bias) + residual).

    y = act(scale conv(x, w) + shift + residual),   scale = s / (1 + lean), shift = (bias - mean) s + beta
                                                    with s = gamma / sqrt(var + eps), in float64, rounded once

`lean` is what sums of a plan come out larger by in the mean (`pysim.algorithms.contract.Bound`): on tensor cores, which cut, they are too
small, and layers of a network add that up.

Weights are tensors that may change. On a CPU they are multiplied by the scale and packed. On a GPU those with more elements than the
result are read where they lie, so that they are in memory once, and kernels multiply sums by the scale; the others, and those that kernels
read in another order or type than they have, are multiplied in a copy. What is made of parameters is made when first needed, and anew when
one of them is another tensor, lies elsewhere or was written to, which PyTorch counts. A layer is multiplied in the type that PyTorch would
take (`pysim.models.torch_precision`), the faster where there are two; convolutions on a GPU have channels last, however x lies: of 16 of
the 17 networks in benchmarks/data/models-h200.jsonl convolutions are predicted to take less time in all so, of ConvNeXt 4 % more.
PyTorch's own operators compute the same where gradients flow, where no kernel takes the operands, and where they are expected to be
faster; `decisions` says which and why.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from pysim import planner
from pysim.calibration import host
from pysim.check.bounds import bound_of
from pysim.errors import PysimError
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.models.expected import passes_seconds, pytorch_seconds
from pysim.models.fusion import PARAMETERS
from pysim.models.torch_gpu import Begun, Called, GpuLaunch, Normed
from pysim.models.torch_norms import FIRST, LAST, NormLayer, ProductLayer, activated
from pysim.models.torch_precision import HALF, TENSORS, ModelAccuracy, planned, settings, types_of
from pysim.models.torch_state import Derived, read_owned, settled, wants_more
from pysim.once import Recent
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.record.plan import Layout, Plan, on_cpu
from pysim.runtime.cpu_launch import Prepared
from pysim.runtime.cuda_call import ALIGNED

Parameters = tuple[Any, ...]  # w, bias, gamma, beta, mean, var, and of a norm that comes first gamma, beta, mean, var
# Of the largest weight of a filter in f16: what is below 2^-13 of it is rounded to 2^-24, the least number, as it would be at any scale
_SMALLEST, _LARGEST = 2.0**-12, 2.0**15
_KEPT = 16  # shapes of inputs that one layer keeps packed weights for


class Geometry(NamedTuple):
    """How a convolution goes over its input, as PyTorch's functional form has it; a product is the 1x1 case."""

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1


class Decision(NamedTuple):
    """Who computes a layer for inputs of one kind, and why; seconds as predicted for the plan and expected of PyTorch."""

    layer: str
    problem: str
    runs: str  # "pysim" or "torch"
    reason: str
    predicted_seconds: float | None = None
    torch_seconds: float | None = None


class _Native(NamedTuple):
    """What calls on inputs of one kind have in common; `plan` is None where PyTorch's operator stays."""

    decision: Decision
    plan: Plan | None
    begins: bool = False  # what comes first is a prologue of the kernel


class FusedLayer(torch.nn.Module):  # type: ignore[misc]  # PyTorch need not be here
    """`kind` is "Conv" or "Linear", `epsilon` that of a BatchNorm behind it, `activation` None, a name or ("clamp", low, high). `accuracy`
    `scaled` says that gamma, without a norm, is what each filter's results are multiplied by, and `over_channels` that a product is of the
    channels of images. `first` is done to the input before, on a GPU as it is read where a kernel takes that, and `accuracy`
    is what plans are asked for, and `graphed` says that calls are recorded as CUDA graphs; `owners`, modules and what their parameters are
    called, are where arguments that are not given are read: in a graph each would pass through every module that it lies in."""

    first: "NormLayer | ProductLayer | None"
    accuracy: ModelAccuracy = "strict"
    graphed: bool = False
    owners: tuple[tuple[torch.nn.Module, str] | None, ...] = (None,) * (PARAMETERS - 1)

    def __init__(
        self,
        name: str,
        kind: str,
        geometry: Geometry,
        activation: Any,
        epsilon: float | None,
        adds: bool = False,
        first: "NormLayer | ProductLayer | None" = None,
        scaled: bool = False,
        over_channels: bool = False,
    ) -> None:
        super().__init__()
        self.scaled, self.over_channels = scaled, over_channels
        self.__dict__["first"] = first  # past what registers modules, through which it would be read: it has no parameters of its own
        self.name, self.kind, self.geometry, self.activation, self.epsilon = name, kind, geometry, activation, epsilon
        self._passes = (epsilon is not None) + (activation is not None) + adds + scaled
        self._natives: Recent[_Native] = Recent(_KEPT)
        self._launches: Recent[GpuLaunch] = Recent(_KEPT)
        self._made = Derived(_KEPT)
        self._leans: Recent[float] = Recent(_KEPT)

    @property
    def decisions(self) -> list[Decision]:
        return [native.decision for native in self._natives.values()]

    def forward(
        self,
        x: Any,
        w: Any = None,
        bias: Any = None,
        gamma: Any = None,
        beta: Any = None,
        mean: Any = None,
        var: Any = None,
        residual: Any = None,
        *first: Any,
    ) -> Any:
        """The residual may be written over: nobody reads it later. `first` are the norm's parameters, or what x is multiplied by."""
        norm, factor = ((), *first) if isinstance(self.first, ProductLayer) else (first, None)
        return self.called(x, self.parameters_of((w, bias, gamma, beta, mean, var, *norm)), residual, factor)[0]

    @property
    def all_owners(self) -> tuple[tuple[torch.nn.Module, str] | None, ...]:
        return self.owners + self.first.owners if isinstance(self.first, NormLayer) else self.owners

    def parameters_of(self, given: tuple[Any, ...]) -> Parameters:
        """The parameters, each from the arguments or from its owner."""
        owners = self.all_owners
        given += (None,) * (len(owners) - len(given))
        return tuple(read_owned(given, owners))

    @property
    def stays(self) -> bool:
        """Whether PyTorch's operators compute it for all inputs that it was called with."""
        decisions = self.decisions
        return bool(decisions) and all(one.runs == "torch" for one in decisions)

    def called(self, x: Any, parameters: Parameters, residual: Any, factor: Any = None) -> tuple[Any, Called | None]:
        """The result, and, of a launch on a GPU that read its operands where they lie, what others like it need."""
        if not self.over_channels:
            return self._called(x, parameters, residual, factor)
        y, called = self._called(x.permute(LAST), parameters, None if residual is None else residual.permute(LAST), factor)
        return y.permute(FIRST), called and called._replace(form=torch.channels_last)

    def _called(self, x: Any, parameters: Parameters, residual: Any, factor: Any) -> tuple[Any, Called | None]:
        w, given = parameters[0], x
        if isinstance(self.first, ProductLayer):
            x, factor = self.first.ordered(x, factor)
        if self._stays(x, (*parameters, residual, factor)):
            return self._whole(x, parameters, residual, factor), None
        told = settings() if x.is_cuda else None
        key: tuple[Any, ...] = (x.shape, x.dtype, x.device, x.is_contiguous(), w.shape, w.dtype, told)
        key = key if factor is None else (*key, factor.shape, factor.dtype)
        native = self._natives.get(key) or self._natives.put(key, self._decided(x, w, factor))
        if native.plan is None:
            return self._whole(x, parameters, residual, factor), None
        try:
            if x.is_cuda:
                y, called = self._on_gpu(native, key, x, parameters, residual, factor)
                return y, called and called._replace(turned=x is not given)
            return self._on_cpu(native, key, self._begun(x, parameters, factor)[0], parameters[: PARAMETERS - 1], residual), None
        except (PysimError, torch.OutOfMemoryError) as error:  # before anything was written
            self._natives.put(key, self._stay(str(error), native.plan.workload, native.plan.seconds))
            return self._whole(x, parameters, residual, factor), None

    def _begun(self, x: Any, parameters: Parameters, factor: Any) -> tuple[Any, Normed | None]:
        """The input of the sums, by operators of its own, and the one pass that it was."""
        if isinstance(self.first, NormLayer):
            return self.first.called((x,), parameters[PARAMETERS - 1 :])
        return (x, None) if factor is None or self.first is None else self.first.multiplied(x, factor)

    def _whole(self, x: Any, parameters: Parameters, residual: Any, factor: Any) -> Any:
        w, bias, gamma, beta, mean, var = parameters[: PARAMETERS - 1]
        return self.own(self._begun(x, parameters, factor)[0], w, bias, gamma, beta, mean, var, residual)

    def _stays(self, x: Any, others: tuple[Any, ...]) -> bool:
        """Whether more than numbers is wanted: a gradient, autocast's types on a CPU, or what traces or transforms this call."""
        return bool((not x.is_cuda and torch.is_autocast_enabled(x.device.type)) or wants_more(x, others))

    def own(self, x: Any, w: Any, bias: Any, gamma: Any, beta: Any, mean: Any, var: Any, residual: Any = None) -> Any:
        """By PyTorch's operators, one after the other."""
        y = functional.linear(x, w, bias) if self.kind == "Linear" else functional.conv2d(x, w, bias, *self.geometry)
        if self.scaled:
            y = y * gamma.reshape(-1)
        if self.epsilon is not None:
            y = torch.batch_norm(y, gamma, beta, mean, var, False, 0.0, self.epsilon, torch.backends.cudnn.enabled)
        return activated(y if residual is None else y + residual, self.activation)

    # Which

    def _decided(self, x: Any, w: Any, factor: Any = None) -> _Native:
        problem, plan, before = None, None, 0.0
        types = types_of(x, w, self.kind, self.accuracy, settings())
        try:
            problem = self._problem(x, w, types[0]) if types else None
            if problem is None:
                return self._stay(f"x is {x.dtype} of shape {tuple(x.shape)}, which no kernel takes here", None)
            on = host.gpu_here() if x.is_cuda else host.runnable("host")
            plan = self._planned(x, w, types, on)
            begun = self._plan_begun(x, w, types, on, factor)
            if self.first is not None and isinstance(on, Gpu):
                before = passes_seconds(x.numel(), plan.workload.dtype, on, self.first.passes, self.graphed)
        except PysimError as error:
            return self._stay(str(error), problem)
        expected = pytorch_seconds(problem, on, self._passes, self.graphed)
        if begun is not None and self.first is not None and (begun.seconds or 0) <= min((plan.seconds or 0) + before, expected + before):
            reason = f"{begun.name}, its input's {self.first.name} in the kernel"
            return _Native(Decision(self.name, begun.problem, "pysim", reason, begun.seconds, expected + before), begun, True)
        if plan.seconds is not None and plan.seconds > expected:
            return self._stay("PyTorch's operator is expected to be faster", problem, plan.seconds, expected)
        return _Native(Decision(self.name, plan.problem, "pysim", plan.name, plan.seconds, expected), plan)

    def _planned(self, x: Any, w: Any, types: Sequence[str], on: Machine | Gpu, prologue: bool = False) -> Plan:
        """The fastest plan of these types; PlanError, of the first one, where there is none."""
        found, refused = [], []
        for dtype in types:
            layout: Layout = "nhwc" if x.is_cuda and self.kind == "Conv" and not prologue else "nchw"
            try:
                problem: Any = self._problem(x, w, dtype)
                found.append(planner.plan(problem, on, layout=layout, accuracy=planned(self.accuracy), prologue=prologue))
            except PysimError as error:
                refused.append(error)
        if not found:
            raise refused[0]
        return min(found, key=lambda plan: plan.seconds or 0.0)

    def _plan_begun(self, x: Any, w: Any, types: Sequence[str], on: Machine | Gpu, factor: Any) -> Plan | None:
        """The plan whose kernel does what comes first, too, which kernels do that read planes; None where there is none."""
        first = self.first
        relu = isinstance(first, NormLayer) and first.activation in (None, "relu")
        if not x.is_cuda or not x.is_contiguous() or "f32" not in types or not (relu or factor is not None):
            return None
        try:
            return self._planned(x, w, ("f32",), on, prologue=True)
        except PysimError:
            return None

    def _stay(self, reason: str, problem: Workload | None, *seconds: float | None) -> _Native:
        return _Native(Decision(self.name, problem.text if problem else "", "torch", reason, *seconds), None)

    def _problem(self, x: Any, w: Any, dtype: str) -> Workload | None:
        """What is computed in a type, or None for what no kernel takes. On a CPU a product is the 1x1 convolution that it is, with rows of
        x as windows of one image: that has its weights packed once."""
        if x.device != w.device or x.device.type not in ("cpu", "cuda") or not x.numel():
            return None
        if self.kind == "Linear":
            rows = x.numel() // x.shape[-1]
            if x.is_cuda:
                return Gemm(m=rows, n=w.shape[0], k=w.shape[1], trans_b=True, dtype=dtype)
            return Conv(channels=w.shape[1], height=1, width=rows, filters=w.shape[0], kernel_h=1, kernel_w=1, dtype=dtype)
        if x.dim() != 4:
            return None
        (stride_h, stride_w), (pad_h, pad_w), (dilation_h, dilation_w), groups = self.geometry
        return Conv(
            batch=x.shape[0], channels=x.shape[1], height=x.shape[2], width=x.shape[3], filters=w.shape[0], kernel_h=w.shape[2],
            kernel_w=w.shape[3], stride_h=stride_h, stride_w=stride_w, dilation_h=dilation_h, dilation_w=dilation_w, pad_top=pad_h,
            pad_left=pad_w, pad_bottom=pad_h, pad_right=pad_w, groups=groups, dtype=dtype,
        )  # fmt: skip

    # How

    def _on_cpu(self, native: _Native, key: Any, x: Any, parameters: tuple[Any, ...], residual: Any) -> Any:
        plan = native.plan
        assert plan is not None and isinstance(plan.workload, Conv)
        problem = plan.workload
        fits = residual is None or (self.kind == "Conv" and residual.dtype == x.dtype and tuple(residual.shape) == _out_shape(problem))
        activation = self.activation if fits else None

        def make() -> Prepared:
            w, (scale, shift) = parameters[0].detach(), self._affine(parameters)
            if scale is not None:
                w = _scaled(w, scale).to(w.dtype)
            schedule, on = on_cpu(plan)
            filters = w.reshape(*w.shape[:2], *w.shape[2:] or (1, 1)).contiguous().numpy()
            addend = None if shift is None else shift.to(w.dtype).numpy()
            return Prepared(problem, filters, schedule, addend, activation, torch.get_num_threads(), host.executor(on))

        prepared = self._made.of((key, torch.get_num_threads(), fits), parameters, make)
        image = x.detach().reshape(-1, problem.channels).t().contiguous() if self.kind == "Linear" else x.detach().contiguous()
        y = torch.empty(_out_shape(problem), dtype=x.dtype)
        shape = (problem.batch, problem.channels, problem.height, problem.width)
        added = residual.detach().contiguous().numpy() if fits and residual is not None else None
        prepared(image.reshape(shape).numpy(), y.numpy(), added)
        if self.kind == "Linear":
            y = y.reshape(problem.filters, -1).t().contiguous().reshape(*x.shape[:-1], problem.filters)
        return y if fits else activated(y + residual, self.activation)

    def _on_gpu(
        self, native: _Native, key: Any, x: Any, parameters: tuple[Any, ...], residual: Any, factor: Any = None
    ) -> tuple[Any, Called | None]:
        plan = native.plan
        assert plan is not None
        form, before = torch.channels_last if plan.layout == "nhwc" and x.dim() == 4 else torch.contiguous_format, None
        if not native.begins:
            x, before = self._begun(x, parameters, factor)
        begun = x
        dtype = TENSORS[plan.workload.dtype]
        out = self._result_type(dtype, parameters, residual)
        if x.dtype is not dtype or (plan.layout == "nhwc" and not x.is_contiguous(memory_format=form)):
            x = x.to(dtype, memory_format=form)
        parts, begins = parameters[: PARAMETERS - 1], native.begins

        lean = self._leans.get(key)
        if lean is None:
            lean = self._leans.put(key, bound_of(plan).lean)

        # where there is a copy anyway, or one that is small beside the result: to multiply all sums took 1x1 layers up to a tenth longer
        # on an H200. Weights of a converted model are rounded already: once more, and ResNet-50's error in float16 was 1.23 times PyTorch's
        problem, given_w = plan.workload, parameters[0]
        outputs = problem.m * problem.n if isinstance(problem, Gemm) else math.prod(_out_shape(problem))
        copied = given_w.dtype is not dtype or not given_w.is_contiguous(memory_format=form)
        folds = (copied or given_w.numel() < outputs) and given_w.element_size() > 2

        def make() -> tuple[Any, Any, Any]:
            w, (scale, shift) = parts[0].detach(), self._affine(parts, lean)
            if scale is None and lean and folds and self.kind == "Conv" and dtype == torch.float32:
                w = _enlarged(w, lean)
            elif scale is not None and folds and _holds(scaled := _scaled(w, scale), dtype):
                w, scale = scaled, None
            scale = None if scale is None else scale.to(torch.float64 if dtype == torch.float64 else torch.float32)
            return w.to(dtype).contiguous(memory_format=form), scale, None if shift is None else shift.to(out)

        w, scale, shift = self._made.of((form, dtype, out, x.device, lean, folds), parts, make)
        prologue = self._prologue(parameters, factor) if begins else None
        launch = self._launches.get((key, out)) or self._launches.put((key, out), GpuLaunch(plan, self.activation, out))
        image = (x.detach().reshape(-1, x.shape[-1]) if self.kind == "Linear" else x.detach()).contiguous(memory_format=form)
        shape = (*x.shape[:-1], w.shape[0]) if self.kind == "Linear" else launch.shape
        alone = self.first is None or before is not None or (begins and factor is None)  # nothing but parameters and given values beside x
        like = alone and x is begun and launch.reads(x) and not w.data_ptr() % ALIGNED and settled(parameters, self.all_owners)
        adds = residual is not None and tuple(residual.shape) == shape
        over = residual.view(launch.shape) if adds and self.kind == "Linear" and residual.is_contiguous() else residual
        if residual is None or (adds and launch.takes(over, x)):
            y = launch(image, w, scale, shift, over, prologue).reshape(shape)
            epilogue = launch.epilogue(scale, shift, adds, prologue)
            return y, Called(launch, w, epilogue, (scale, shift, prologue), adds, launch.form, before) if like else None
        y = GpuLaunch(plan, None, out)(image, w, scale, shift, prologue=prologue).reshape(shape)
        return activated(y + residual, self.activation), None

    def _result_type(self, dtype: Any, parameters: Parameters, residual: Any) -> Any:
        """PyTorch's of what is multiplied in a type: what is multiplied by, or added to, float32 is float32."""
        with_it = (parameters[2] if self.scaled else None, residual)
        return torch.float32 if dtype in HALF and any(one is not None and one.dtype == torch.float32 for one in with_it) else dtype

    def _prologue(self, parameters: Parameters, factor: Any) -> Begun:
        """What comes first, as a kernel takes it."""
        first = self.first
        if not isinstance(first, NormLayer):
            return Begun(factor.detach().contiguous(), None, True)
        gamma, beta, mean, var = norm = parameters[PARAMETERS - 1 :]

        def make() -> Begun:
            scale = (torch.ones_like(var) if gamma is None else gamma).double() / torch.sqrt(var.double() + first.epsilon)
            shift = (0 if beta is None else beta.double()) - mean.double() * scale
            return Begun(scale.float(), shift.float(), False, first.activation == "relu")

        made: Begun = self._made.of("prologue", norm, make)
        return made

    def _affine(self, parameters: tuple[Any, ...], lean: float = 0.0) -> tuple[Any, Any]:
        """(scale, shift) in float64; without a norm or a factor (None, the bias where it lies), lean or not."""
        given: list[Any] = [None if one is None else one.detach() for one in parameters]
        _, bias, gamma, beta, mean, var = given
        if self.scaled:
            scale = gamma.double().reshape(-1)
            return scale / (1 + lean), None if bias is None else bias.double() * scale
        if self.epsilon is None:
            return None, bias
        scale = (torch.ones_like(var) if gamma is None else gamma).double() / torch.sqrt(var.double() + self.epsilon)
        shift = ((0 if bias is None else bias.double()) - mean.double()) * scale + (0 if beta is None else beta.double())
        return scale / (1 + lean), shift


def _scaled(w: Any, scale: Any) -> Any:
    """Weights with each filter multiplied by its scale, in float64."""
    return w.double() * scale.reshape(-1, *[1] * (w.dim() - 1))


def _enlarged(w: Any, lean: float) -> Any:
    """Weights of f32 divided by 1 + lean, which is less than a rounding. To nearest, each would grow by a whole unit in its last place, up
    to twice what is meant: as many do as make it right in the mean (by multiples of the golden ratio, which fall evenly)."""
    exact = w.double() / (1 + lean)
    unit = (torch.nextafter(w, 2 * w).double() - w.double()).nan_to_num(0.0, 0.0, 0.0)  # away from zero; 0 of what is not finite
    turn = torch.arange(w.numel(), device=w.device, dtype=torch.float64).reshape(w.shape) * ((math.sqrt(5) - 1) / 2) % 1
    return exact + (turn - 0.5) * unit


def _holds(w: Any, dtype: Any) -> bool:
    """Whether a type keeps weights as exactly whatever their scale is: f16 only those of filters that are neither large nor small."""
    if dtype != torch.float16:
        return True
    largest = w.abs().flatten(1).amax(1)
    return bool(((largest == 0) | ((largest >= _SMALLEST) & (largest <= _LARGEST))).all())


def _out_shape(problem: Conv) -> tuple[int, ...]:
    return (problem.batch, problem.filters, problem.out_h, problem.out_w)
