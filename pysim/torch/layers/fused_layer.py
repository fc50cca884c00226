# SPDX-License-Identifier: Apache-2.0
"""A convolution or product of a PyTorch model with the operators fused into it, as a module: y = act(norm(conv(x, w) + bias) + residual).

    y = act(scale conv(x, w) + shift + residual)
    scale = s / (1 + mean_error),  shift = (bias - mean) s + beta,  s = gamma / sqrt(var + eps)    in float64, rounded once

`mean_error` is the systematic relative error of a plan's results (`pysim.algorithms.interface.Bound`). Tensor cores truncate, so their
results are too small on average; over the layers of a network these errors add up, while errors of random sign average out.

Weights may change. On a CPU they are multiplied by the scale and packed. On a GPU the kernel reads the model's own weights and multiplies
its accumulators by the scale, if the weights have more elements than the result: then they are in memory only once. A copy multiplied by
the scale is kept of smaller weights, and of weights that the kernel needs in another layout or type. Everything computed from parameters is
computed on first use, and again after a parameter was replaced, moved or written to, as PyTorch's version counters tell.

The type of the multiplication is the one PyTorch would take (`pysim.torch.precision`), the faster one if there are two. Convolutions
on a GPU run channels last, whatever the layout of x: of the 17 networks in lab/data/h200/models.jsonl, 16 are predicted to be faster
that way; ConvNeXt takes 4 % longer. PyTorch's own operators run where gradients are needed, where no kernel supports the operands, and
where they are expected to be faster; `decisions` says which and why.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from pysim import planner
from pysim.caches import LruCache
from pysim.calibration import host
from pysim.check.bounds import bound_of
from pysim.errors import OperandError, PysimError
from pysim.logs import LOG
from pysim.machine.gpu import Gpu
from pysim.network.fusion import RESIDUAL_INPUT
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SIZES
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.problem.windows import conv_of
from pysim.record.plan import Layout, Plan
from pysim.runtime.arrays import ALIGNMENT_BYTES
from pysim.torch.layers.compiler_seconds import form_seconds, library_seconds
from pysim.torch.layers.conv_forms import Geometry
from pysim.torch.layers.expected_cpu import work_of
from pysim.torch.layers.gpu_launch import GpuLaunch, LaunchRecord, NormRecord, PrologueTensors, interleaved, memory_format_of
from pysim.torch.layers.library_conv import convolved, in_vectors, memory_format_of_last
from pysim.torch.layers.norm_layers import TO_NCHW, TO_NHWC, FactorLayer, NormLayer, apply_activation
from pysim.torch.layers.pytorch_seconds import passes_seconds, pytorch_seconds
from pysim.torch.parameters import ParameterCache, changes_are_seen, needs_pytorch
from pysim.torch.precision import FP32_COST, HALF, TENSORS, ModelAccuracy, errors_stay, plan_accuracy, settings, types_of

Parameters = tuple[Any, ...]  # w, bias, gamma, beta, mean, var; then gamma, beta, mean, var of a norm on the input
# Bounds of a filter's largest weight in f16: above the lower one, only weights below 2^-13 of the largest lose bits to f16's 2^-24 steps
_MIN_F16, _MAX_F16 = 2.0**-12, 2.0**15
FOLDED = "PyTorch's library is expected to be faster, with its norm and activation in one kernel"
_CACHE_SIZE = 32  # kinds of inputs, and models that share the layer, for which it keeps its plan, launch and packed weights


class Decision(NamedTuple):
    """Whether pysim or PyTorch computes a layer for one kind of input, and why; predicted seconds of the plan and of PyTorch."""

    layer: str
    problem: str
    runs: str  # "pysim" or "torch"
    reason: str
    predicted_seconds: float | None = None
    torch_seconds: float | None = None

    def log(self) -> None:
        by = "pysim" if self.runs == "pysim" else "PyTorch"
        LOG.info("layer %s runs by %s: %s", f"{self.layer} {self.problem}".strip(), by, self.reason)


class Choice(NamedTuple):
    """The choice for one kind of input; `plan` is None if PyTorch's operator runs."""

    decision: Decision
    plan: Plan | None
    uses_prologue: bool = False  # the kernel applies `input_op` in its prologue


class FusedLayer(torch.nn.Module):  # type: ignore[misc]  # PyTorch need not be here
    """`kind`: "Conv" or "Linear". `epsilon`: of a BatchNorm after it. `activation`: None, a name or ("clamp", low, high). `scaled`:
    without a norm, gamma multiplies the results of each filter. `times`: a number that they are multiplied by, with norm or bias, before
    a residual is added. `over_channels`: a product over the channels of NCHW images. `input_op`:
    applied to the input first, in the kernel's prologue if a kernel supports that. `accuracy`: requested of plans. `in_cuda_graph`: calls
    are captured in a CUDA graph. `replaced`: PyTorch's operators that it computes beside its own. `alone_seconds`: expected of PyTorch's
    convolution where no compiler lays out its operands."""

    input_op: NormLayer | FactorLayer | None
    accuracy: ModelAccuracy = "strict"
    in_cuda_graph: bool = False
    alone_seconds: float = 0.0
    only_compiled = False  # a form that graphs without the compiler do not have
    parameter_count = RESIDUAL_INPUT - 1

    def __init__(
        self,
        name: str,
        kind: str,
        geometry: Geometry,
        activation: Any,
        epsilon: float | None,
        has_residual: bool = False,
        input_op: NormLayer | FactorLayer | None = None,
        scaled: bool = False,
        over_channels: bool = False,
        times: float = 1.0,
    ) -> None:
        super().__init__()
        self.scaled, self.over_channels, self.times = scaled, over_channels, times
        self.__dict__["input_op"] = input_op  # not a submodule: reading those is slow, and this one has no parameters of its own
        self.name, self.kind, self.geometry, self.activation, self.epsilon = name, kind, geometry, activation, epsilon
        # PyTorch's operators that it replaces, the activation last
        passes = {
            "norm": epsilon is not None,
            "scale": scaled,
            "times": times != 1.0,
            "add": has_residual,
            activation[0] if isinstance(activation, tuple) else str(activation): activation is not None,
        }
        self.replaced = tuple(name for name, needed in passes.items() if needed)
        self.choices: LruCache[Choice] = LruCache(_CACHE_SIZE)
        self._launches: LruCache[GpuLaunch] = LruCache(_CACHE_SIZE)
        self.derived = ParameterCache(_CACHE_SIZE)
        self._mean_errors: LruCache[float] = LruCache(_CACHE_SIZE)

    @property
    def scales(self) -> bool:
        """Whether the sums of a filter are multiplied by a number of its own, or all by one."""
        return self.epsilon is not None or self.times != 1.0

    @property
    def decisions(self) -> list[Decision]:
        return [choice.decision for choice in self.choices.values()]

    @property
    def held_bytes(self) -> int:
        return self.derived.held_bytes

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
        *of_input_op: Any,
    ) -> Any:
        """The residual may be overwritten: nothing reads it later. `of_input_op`: the norm's parameters, or the factor."""
        norm, factor = ((), *of_input_op) if isinstance(self.input_op, FactorLayer) else (of_input_op, None)
        return self.run(x, (w, bias, gamma, beta, mean, var, *norm), residual, factor)[0]

    __call__ = forward  # skips nn.Module's search for hooks, which takes a microsecond; none can be registered here

    @property
    def always_pytorch(self) -> bool:
        """Whether every kind of input so far went to PyTorch's operators."""
        decisions = self.decisions
        return bool(decisions) and all(decision.runs == "torch" for decision in decisions)

    def run(
        self, x: Any, parameters: Parameters, residual: Any, factor: Any = None, inference: bool = False
    ) -> tuple[Any, LaunchRecord | None]:
        """The result; with a record if a GPU kernel ran without copies and later calls may repeat its launch."""
        if not self.over_channels:
            return self._run(x, parameters, residual, factor, inference)
        y, record = self._run(x.permute(TO_NHWC), parameters, None if residual is None else residual.permute(TO_NHWC), factor, inference)
        return y.permute(TO_NCHW), record and record._replace(memory_format=torch.channels_last)

    def _run(self, x: Any, parameters: Parameters, residual: Any, factor: Any, inference: bool) -> tuple[Any, LaunchRecord | None]:
        w, first_argument = parameters[0], x
        if isinstance(self.input_op, FactorLayer):
            x, factor = self.input_op.image_and_factor(x, factor)
        # parameters that are a graph's inputs are plain
        others = (residual, factor) if inference and self.derived.watched else (*parameters, residual, factor)
        if self._needs_pytorch(x, others, inference):
            self._refuse_pytorch("its operands need PyTorch's operators, for gradients or a device")
            return self._fallback(x, parameters, residual, factor), None
        key, choice = self._choice_for(x, w, factor)
        if choice.plan is None:
            self._refuse_pytorch(choice.decision.reason)
            return self._fallback(x, self._laid_out(x, parameters), residual, factor), None
        try:
            if self.geometry.added is not None:
                return self._transposed(choice.plan, key, x, parameters, residual, factor), None
            y, record = self._on_gpu(choice, key, x, parameters, residual, factor)
            return y, record and record._replace(swapped=x is not first_argument)
        except (PysimError, torch.OutOfMemoryError) as error:  # before anything was written
            if self.reproducible:
                raise
            self._put(key, self._keep_pytorch(str(error), choice.plan.workload, choice.plan.seconds))
            return self._fallback(x, parameters, residual, factor), None

    @property
    def reproducible(self) -> bool:
        return self.accuracy == "reproducible"

    def _refuse_pytorch(self, reason: str) -> None:
        """Under accuracy reproducible PyTorch computes no layer."""
        if self.reproducible:
            raise OperandError(f"accuracy reproducible: layer {self.name} has no plan of its contract: {reason}")

    def _apply_input_op(self, x: Any, parameters: Parameters, factor: Any) -> tuple[Any, NormRecord | None]:
        """The input of the convolution, computed by a launch of its own, and the record of that launch."""
        if isinstance(self.input_op, NormLayer):
            return self.input_op.run((x,), parameters[RESIDUAL_INPUT - 1 :])
        return (x, None) if factor is None or self.input_op is None else self.input_op.apply_factor(x, factor)

    def _fallback(self, x: Any, parameters: Parameters, residual: Any, factor: Any) -> Any:
        w, bias, gamma, beta, mean, var = parameters[: RESIDUAL_INPUT - 1]
        return self.by_pytorch(self._apply_input_op(x, parameters, factor)[0], w, bias, gamma, beta, mean, var, residual)

    def _needs_pytorch(self, x: Any, others: tuple[Any, ...], inference: bool) -> bool:
        """Whether PyTorch's operators are required: on a CPU, for gradients, traces and transforms."""
        return bool(not x.is_cuda or needs_pytorch(x, others, inference))

    def by_pytorch(self, x: Any, w: Any, bias: Any, gamma: Any, beta: Any, mean: Any, var: Any, residual: Any = None) -> Any:
        """The layer without its `input_op`, by PyTorch's operators."""
        y = functional.linear(x, w, bias) if self.kind == "Linear" else convolved(x, w, bias, self.geometry)
        if self.scaled:
            y = y * gamma.reshape(-1)
        if self.epsilon is not None:
            y = torch.batch_norm(y, gamma, beta, mean, var, False, 0.0, self.epsilon, torch.backends.cudnn.enabled)
        y = y if self.times == 1.0 else y * self.times
        return apply_activation(y if residual is None else y + residual, self.activation)

    # The choice

    def _choice_for(self, x: Any, w: Any, factor: Any) -> tuple[tuple[Any, ...], Choice]:
        """The key of this kind of input, and its choice."""
        key: tuple[Any, ...] = (x.shape, x.dtype, x.device, x.is_contiguous(), w.shape, w.dtype, settings())
        key = key if factor is None else (*key, factor.shape, factor.dtype)
        return key, self.choices.get(key) or self._put(key, self._choose(x, w, factor))

    def _put(self, key: Any, choice: Choice) -> Choice:
        choice.decision.log()
        return self.choices.put(key, choice)

    def _choose(self, x: Any, w: Any, factor: Any = None) -> Choice:
        problem, plan, input_op_seconds = None, None, 0.0
        types = types_of(x, w, self.kind, self.accuracy, settings())
        try:
            problem = self.problem_of(x, w, types[0]) if types else None
            if problem is None:
                return self._keep_pytorch(f"no kernel here supports x of {x.dtype} and shape {tuple(x.shape)}", None)
            on = host.gpu_here()
            plan = self.fastest_plan(x, w, types, on)
            with_prologue = self._prologue_plan(x, w, types, on, factor)
            if self.input_op is not None:
                input_op_seconds = passes_seconds(x.numel(), plan.workload.dtype, on, self.input_op.passes, self.in_cuda_graph)
        except PysimError as error:
            return self._keep_pytorch(str(error), problem)
        beside, alone = 0.0, None
        if self.geometry.added is not None:
            beside, more = form_seconds(problem, on, self.geometry, work_of(problem).output // SIZES[problem.dtype])
            alone = library_seconds(problem, on) + more
        expected = pytorch_seconds(problem, on, self.replaced, self.in_cuda_graph, alone)
        if self.reproducible:  # nothing is chosen by times, which depend on the batch
            return Choice(Decision(self.name, plan.problem, "pysim", plan.name, plan.seconds, expected), plan)
        if with_prologue is not None and self.input_op is not None:
            seconds, otherwise = with_prologue.seconds or 0, min(plan.seconds or 0, expected) + input_op_seconds
            if seconds <= otherwise:
                reason = f"{with_prologue.name}, its input's {self.input_op.name} in the kernel"
                decision = Decision(self.name, with_prologue.problem, "pysim", reason, seconds, expected + input_op_seconds)
                return Choice(decision, with_prologue, True)
        if plan.seconds is not None and plan.seconds + beside > expected:
            return self._keep_pytorch("PyTorch's operator is expected to be faster", problem, plan.seconds + beside, expected)
        return Choice(Decision(self.name, plan.problem, "pysim", plan.name, plan.seconds, expected), plan)

    def fastest_plan(self, x: Any, w: Any, types: Sequence[str], on: Gpu, prologue: bool = False) -> Plan:
        """The fastest plan of these types, FP32's where TF32's errors stay and it is about as fast; the first type's PlanError if none
        has one."""
        plans, errors = [], []
        for dtype in types:
            layout: Layout = "nhwc" if self.kind == "Conv" and not prologue else "nchw"
            try:
                problem: Any = self.problem_of(x, w, dtype)
                plans.append(planner.plan(problem, on, layout=layout, accuracy=plan_accuracy(self.accuracy), prologue=prologue))
            except PysimError as error:
                errors.append(error)
            if plans and self.reproducible:  # the fastest type may be another one for another batch
                break
        if not plans:
            raise errors[0]
        best = min(plans, key=lambda plan: plan.seconds or 0.0)
        most = (best.seconds or 0.0) * (FP32_COST if errors_stay(best.workload, x.dim()) else 0.0)
        return next((one for one in plans if one.workload.dtype == "f32" and (one.seconds or 0.0) <= most), best)

    def _prologue_plan(self, x: Any, w: Any, types: Sequence[str], on: Gpu, factor: Any) -> Plan | None:
        """The plan of a kernel that applies `input_op` in its prologue, which only kernels for NCHW do; None if there is none."""
        norm = isinstance(self.input_op, NormLayer) and self.input_op.activation in (None, "relu")
        if not x.is_contiguous() or "f32" not in types or not (norm or factor is not None):
            return None
        try:
            return self.fastest_plan(x, w, ("f32",), on, prologue=True)
        except PysimError:
            return None

    def _keep_pytorch(self, reason: str, problem: Workload | None, *seconds: float | None) -> Choice:
        return Choice(Decision(self.name, problem.text if problem else "", "torch", reason, *seconds), None)

    def problem_of(self, x: Any, w: Any, dtype: str) -> Workload | None:
        """The problem in this type, or None if no kernel supports it."""
        if x.device != w.device or x.device.type not in ("cpu", "cuda") or not x.numel():
            return None
        if self.kind == "Linear":
            return Gemm(m=x.numel() // x.shape[-1], n=w.shape[0], k=w.shape[1], trans_b=True, dtype=dtype)
        stride, padding, dilation, groups, *_ = self.geometry
        if x.dim() != len(stride) + 2:
            return None
        if (of := self.geometry.phases(x.shape, w.shape, dtype)) is not None:
            return of.problem if of.problem.is_volume == (x.dim() == 5) else None
        problem = conv_of(x.shape, w.shape, stride, (*padding, *padding), dilation, groups, dtype)
        return problem if problem.is_volume == (x.dim() == 5) else None

    def folds(self, x: Any, w: Any, problem: Workload) -> bool:
        """Whether PyTorch's library has a kernel for a layer with its ReLU, and the copy of its weights is smaller than the result."""
        if not isinstance(problem, Conv) or problem.is_volume or problem.groups > 1 or self.input_op is not None:
            return False
        if self.accuracy in ("ieee", "reproducible"):  # weights are rounded once more, and by which algorithm is the library's choice
            return False
        fits = self.geometry.is_plain and self.activation == "relu" and torch.backends.cudnn.enabled and in_vectors(problem, w)
        types = problem.dtype in ("f16", "bf16", "tf32") and x.dtype is w.dtype is TENSORS[problem.dtype]
        return bool(fits and types and w.numel() < problem.output_elements)

    def remember(self, decision: Decision, plan: Plan | None = None) -> None:
        """What was decided when the graph was compiled, in the place of what was decided before."""
        self.choices = LruCache(_CACHE_SIZE)
        self._put(decision, Choice(decision, plan))

    def left(self, reason: str, problem: str = "", *seconds: float) -> Decision:
        """That PyTorch's compiler has the layer, and why."""
        return Decision(self.name, problem, "torch", reason, *seconds)

    # The calls

    def _on_gpu(
        self, choice: Choice, key: Any, x: Any, parameters: tuple[Any, ...], residual: Any, factor: Any = None
    ) -> tuple[Any, LaunchRecord | None]:
        plan = choice.plan
        assert plan is not None
        form = memory_format_of(plan)
        prologue, input_norm = None, None
        if choice.uses_prologue:
            prologue = self._prologue_tensors(parameters, factor)
        else:
            x, input_norm = self._apply_input_op(x, parameters, factor)
        given_x, dtype = x, TENSORS[plan.workload.dtype]
        out = self.result_type(dtype, parameters, residual)
        if x.dtype is not dtype or (plan.layout == "nhwc" and not x.is_contiguous(memory_format=form)):
            x = x.to(dtype, memory_format=form)
        w, scale, shift = self.gpu_operands(plan, key, parameters[: RESIDUAL_INPUT - 1], form, out)
        launch = self._launches.get((key, out)) or self._launches.put((key, out), GpuLaunch(plan, self.activation, out))
        image = (x.detach().reshape(-1, x.shape[-1]) if self.kind == "Linear" else x.detach()).contiguous(memory_format=form)
        shape = (*x.shape[:-1], w.shape[0]) if self.kind == "Linear" else launch.shape

        def shaped(y: Any) -> Any:  # convolutions keep y: reshaping one image to its own shape would lose its channels-last strides
            return y.reshape(shape) if self.kind == "Linear" else y

        adds = residual is not None and tuple(residual.shape) == shape
        target = residual.view(launch.shape) if adds and self.kind == "Linear" and residual.is_contiguous() else residual
        if self.reproducible and adds and not launch.can_overwrite(target, x):  # added in the kernel, however it lies
            target = residual.clone(memory_format=form).view(launch.shape)
        if residual is not None and not (adds and launch.can_overwrite(target, x)):
            y = shaped(GpuLaunch(plan, None, out)(image, w, scale, shift, prologue=prologue))
            return apply_activation(y + residual, self.activation), None
        y = shaped(launch(image, w, scale, shift, target, prologue))
        # a record must contain every launch of this call and every tensor that it reads beside x, a factor and the residual
        all_launches = self.input_op is None or input_norm is not None or (choice.uses_prologue and factor is None)
        no_copies = x is given_x and launch.can_read(x) and not w.data_ptr() % ALIGNMENT_BYTES
        if not (all_launches and no_copies and changes_are_seen(parameters)):
            return y, None
        epilogue = launch.epilogue(scale, shift, adds, prologue)
        return y, LaunchRecord(launch, w, epilogue, (scale, shift, prologue), adds, launch.memory_format, input_norm)

    def _transposed(self, plan: Plan, key: Any, x: Any, parameters: Parameters, residual: Any, factor: Any) -> Any:
        """A transposed convolution: its phases with all that follows, then interleaved."""
        x, _ = self._apply_input_op(x, parameters, factor)
        form, dtype = memory_format_of(plan), TENSORS[plan.workload.dtype]
        out, of = self.result_type(dtype, parameters, residual), self.geometry.phases(x.shape, parameters[0].shape, plan.workload.dtype)
        assert of is not None
        operands = self.gpu_operands(plan, key, parameters[: RESIDUAL_INPUT - 1], form, out, by_filter=True)
        activation, is_sequence = None if residual is not None else self.activation, len(of.axes) == 1
        launch = self._launches.get((key, out, activation)) or self._launches.put((key, out, activation), GpuLaunch(plan, activation, out))
        image = (x.unsqueeze(2) if is_sequence else x).detach().to(dtype).contiguous(memory_format=form)
        y = interleaved(of, launch(image, *operands), plan.layout, form)
        y = y.squeeze(2) if is_sequence else y
        return y if residual is None else apply_activation(y + residual, self.activation)

    def _laid_out(self, x: Any, parameters: Parameters) -> Parameters:
        """The parameters with weights that lie as x does, which PyTorch's convolution would copy in each call."""
        w, form = parameters[0], memory_format_of_last(x)
        if self.kind == "Linear" or form is None or w.dim() != x.dim() or w.is_contiguous(memory_format=form):
            return parameters
        return self.derived.get(("laid out", form), (w,), lambda: w.detach().contiguous(memory_format=form)), *parameters[1:]

    def gpu_operands(
        self, plan: Plan, key: Any, parameters: Parameters, form: Any, out: Any, by_filter: bool = False
    ) -> tuple[Any, Any, Any]:
        """Weights, scale and shift as the kernel reads them, from the cache if the parameters are unchanged. `by_filter`: as
        `Geometry.of_kernel` has it."""
        mean_error = self._mean_errors.get(key)
        if mean_error is None:
            mean_error = self._mean_errors.put(key, bound_of(plan).mean_error)
        problem, weights, dtype = plan.workload, parameters[0], TENSORS[plan.workload.dtype]
        # Fold the scale into weights that are copied anyway or are smaller than the result: scaling the accumulators instead made 1x1
        # layers up to 10 % slower on an H200. Not into 16-bit weights: rounded a second time, they made ResNet-50's error in float16
        # 1.23 times PyTorch's
        outputs = problem.m * problem.n if isinstance(problem, Gemm) else problem.output_elements
        copied = not self.geometry.is_plain or weights.dtype is not dtype or not weights.is_contiguous(memory_format=form)
        folds = (copied or weights.numel() < outputs or self.reproducible) and weights.element_size() > 2

        def compute() -> tuple[Any, Any, Any]:
            w, (scale, shift) = parameters[0].detach(), self._scale_and_shift(parameters, mean_error)
            if isinstance(problem, Conv):
                w, scale, shift = self.geometry.of_kernel(problem, w, scale, shift, by_filter)
            if scale is None and mean_error and folds and self.kind == "Conv" and dtype == torch.float32:
                w = _compensate(w, mean_error)
            elif scale is not None and folds and _representable(scaled := _scale_weights(w, scale), dtype):
                w, scale = scaled, None
            scale = None if scale is None else scale.to(torch.float64 if dtype == torch.float64 else torch.float32).contiguous()
            return w.to(dtype).contiguous(memory_format=form), scale, None if shift is None else shift.to(out).contiguous()

        operands: tuple[Any, Any, Any]
        operands = self.derived.get((form, dtype, out, weights.device, mean_error, folds, by_filter), parameters, compute)
        return operands

    def folded_operands(self, parameters: Parameters, dtype: Any) -> tuple[Any, Any]:
        """Channels-last weights multiplied by the scale, and the shift, in this type; no shift where the type does not hold them."""

        def compute() -> tuple[Any, Any]:
            w, (scale, shift) = parameters[0].detach(), self._scale_and_shift(parameters)
            scaled = w if scale is None else _scale_weights(w, scale)
            if not _representable(scaled, dtype):
                return w, None
            return scaled.to(dtype).contiguous(memory_format=torch.channels_last), shift.to(dtype)

        operands: tuple[Any, Any] = self.derived.get(("folded", dtype), parameters, compute)
        return operands

    def result_type(self, dtype: Any, parameters: Parameters, residual: Any) -> Any:
        """The type that PyTorch's operators give: 16-bit operands combined with a float32 factor or residual give float32."""
        others = (parameters[2] if self.scaled else None, residual)
        return torch.float32 if dtype in HALF and any(one is not None and one.dtype == torch.float32 for one in others) else dtype

    def _prologue_tensors(self, parameters: Parameters, factor: Any) -> PrologueTensors:
        """`input_op` as the kernel's prologue."""
        norm = self.input_op
        if not isinstance(norm, NormLayer):
            return PrologueTensors(factor.detach().contiguous(), None, True)
        gamma, beta, mean, var = of_norm = parameters[RESIDUAL_INPUT - 1 :]

        def compute() -> PrologueTensors:
            scale = (torch.ones_like(var) if gamma is None else gamma).double() / torch.sqrt(var.double() + norm.epsilon)
            shift = (0 if beta is None else beta.double()) - mean.double() * scale
            return PrologueTensors(scale.float(), shift.float(), False, norm.activation == "relu")

        tensors: PrologueTensors = self.derived.get("prologue", of_norm, compute)
        return tensors

    def _scale_and_shift(self, parameters: tuple[Any, ...], mean_error: float = 0.0) -> tuple[Any, Any]:
        """(scale, shift) in float64; (None, the bias itself) without a norm or a factor."""
        detached: list[Any] = [None if one is None else one.detach() for one in parameters]
        w, bias, gamma, beta, mean, var = detached
        if self.scaled or (self.epsilon is None and self.times != 1.0):
            scale = self.times * (gamma.double().reshape(-1) if self.scaled else w.new_ones(len(w), dtype=torch.float64))
            return scale / (1 + mean_error), None if bias is None else bias.double() * scale
        if self.epsilon is None:
            return None, bias
        scale = self.times * (torch.ones_like(var) if gamma is None else gamma).double() / torch.sqrt(var.double() + self.epsilon)
        shift = ((0 if bias is None else bias.double()) - mean.double()) * scale + (0 if beta is None else self.times * beta.double())
        return scale / (1 + mean_error), shift


def _scale_weights(w: Any, scale: Any) -> Any:
    """Weights with each filter multiplied by its scale, in float64."""
    return w.double() * scale.reshape(-1, *[1] * (w.dim() - 1))


def _compensate(w: Any, mean_error: float) -> Any:
    """Float32 weights divided by 1 + mean_error, which changes each by less than a unit in the last place. Rounded to nearest, all weights
    would change by 0 or by a whole unit; here the share of weights that change is such that their mean is right. Multiples of the golden
    ratio decide which ones: their fractional parts are evenly distributed."""
    exact = w.double() / (1 + mean_error)
    unit = (torch.nextafter(w, 2 * w).double() - w.double()).nan_to_num(0.0, 0.0, 0.0)  # away from zero; 0 for weights that are not finite
    fraction = torch.arange(w.numel(), device=w.device, dtype=torch.float64).reshape(w.shape) * ((math.sqrt(5) - 1) / 2) % 1
    return exact + (fraction - 0.5) * unit


def _representable(w: Any, dtype: Any) -> bool:
    """Whether the type holds these scaled weights as exactly as the unscaled ones. F16 does unless a filter is very large or very small."""
    if dtype != torch.float16:
        return True
    largest = w.abs().flatten(1).amax(1)
    return bool(((largest == 0) | ((largest >= _MIN_F16) & (largest <= _MAX_F16))).all())
