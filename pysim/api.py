# SPDX-License-Identifier: Apache-2.0
"""The Python API. A convolution or matrix product is planned once per shape and machine; later calls run that plan.

    arrays -> problem -> `Request` -> plan -> launch (`pysim.runtime`) -> its run on the arrays

`_ready` keeps the launches, one per call signature: shapes, types, parameters, threads, machine and plan, but no addresses; on a GPU also
how the arrays lie. On a CPU bias, activation, out and memory are not part of the signature, so every call checks them.
"""

import os
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, cast

import numpy as np

from pysim import planner
from pysim.arguments import MOST_THREADS, flag, number, seconds, whole, word
from pysim.caches import LruCache
from pysim.calibration import host
from pysim.comparison import compare as comparison
from pysim.comparison.compare import How
from pysim.errors import MissingError, OperandError, PlanError, quoted
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.machine.load import load_any
from pysim.measure.store import Store
from pysim.onnx.layers import read as read_layers
from pysim.peers import PeerChoice, chosen
from pysim.problem.conv import Conv
from pysim.problem.dtypes import BY_NAME
from pysim.problem.gemm import Gemm, product_of
from pysim.problem.text import Layer, Workload, distinct, parse, resolve
from pysim.problem.windows import Pair, Windows, windows_of
from pysim.record import plan as values
from pysim.record.accuracy import ACCURACIES, Accuracy
from pysim.record.measurement import Comparison
from pysim.record.plan import Footprint, Layout, MicroKernel, ModelName
from pysim.record.schedule import GpuSchedule
from pysim.record.state import TIMED, RunState, State
from pysim.runtime import arrays, cpu_launch, cuda, cuda_call
from pysim.runtime import cpu as runtime

Accurate = tuple[Accuracy, float | None]  # the level, and the largest accepted error relative to the results' rms
ANY: Accurate = ("standard", None)  # the default, which call signatures leave out

# signature -> the prepared launch, and the objects whose ids are in the signature: if they were freed, an id could be reused
_ready: LruCache[tuple[Any, Any, Any]] = LruCache(256)


class Plan(values.Plan, frozen=True, kw_only=True):
    """A plan (`pysim.record.plan.Plan`) with methods that explain and run it."""

    def explain(self) -> str:
        """A text: the predicted time and its bottleneck, the loop nest or launch, a breakdown of the cycles, and why other kernels lost."""
        from pysim.explain.text import explain

        return explain(self)

    def _repr_html_(self) -> str:
        """What notebooks show: the predicted time by its terms; the explanation when it is unfolded."""
        from pysim.explain.html import html

        return html(self)

    def run(self, x: Any, w: Any, bias: Any = None, activation: cuda.Activation = None, threads: int = 1, out: Any = None) -> Any:
        """Runs this schedule on input x and filters w, or on A and B of a matrix product, and returns the output array.

        Shapes and types as in `conv2d` and `gemm`. If this CPU lacks the machine's instructions, the plan runs in an emulator
        (docs/machines.md). Raises PlanError if no kernel has the plan's shape, MissingError without an emulator or GPU, and OperandError
        for operands that do not fit the problem.
        """
        of = self.workload
        if isinstance(of, Gemm):
            how = (None, 1.0, 0.0, of.trans_a, of.trans_b, bias, activation)
            return gemm(x, w, *how, plan=self, out=out, threads=threads, dtype=of.dtype)
        return convolved(x, w, bias, Windows.like(of), activation, plan=self, out=out, threads=threads)


class GpuPrepared:
    """A convolution `y = conv(x, out=None)` or product `c = product(a, out=None)` on a GPU whose weights are fixed.

    Weights on the device are converted once to the layout that the plan reads. Weights that already have it are not copied, and must not
    be changed. Weights in host memory are copied, and `x` must be in host memory, too. Residues of B are kept on the device (algorithm
    `residues`).
    """

    def __init__(self, plan: Plan, weights: Any, bias: Any = None, activation: cuda.Activation = None) -> None:
        w = self.workload = plan.workload
        if isinstance(w, Conv):
            name, right = "w", w.filter_shape
        else:
            name, right = "b", (w.n, w.k) if w.trans_b else (w.k, w.n)
        if (shape := tuple(np.shape(weights))) != right:
            raise OperandError(f"{name} has shape {shape}, but {w.text} needs {right}")
        self._plan, self._activation = plan, activation
        self._weights = cuda_call.constant(weights, plan.layout == "nhwc")
        self._bias = None if bias is None else cuda_call.constant(bias, False)
        self._b = None
        if isinstance(w, Gemm) and isinstance(plan.schedule, GpuSchedule):
            with _device_of(self._weights, plan.on):
                self._b = cuda_call.kept_of(w, plan.schedule, arrays.operands_of({"b": self._weights}))

    def __call__(self, x: Any, out: Any = None) -> Any:
        w = self.workload
        if self._b is None or not isinstance(w, Gemm):
            return self._plan.run(x, self._weights, self._bias, self._activation, out=out)
        arrays.refuse_gradients(a=x, out=out)
        given, how = {"a": x, "b": self._weights, "bias": self._bias, "out": out}, (1.0, 0.0, w.trans_a, w.trans_b, w.dtype)
        return _run_on_gpu(given, cuda_call.gemm_of, how, self._plan, self._plan.on, ANY, self._activation, self._b)


def _as_api(plan: values.Plan) -> Plan:
    return Plan(**{field: getattr(plan, field) for field in plan.__struct_fields__})


def plan(
    problem: str | Workload,
    machine: str | Machine | Gpu = "host",
    threads: int = 1,
    accuracy: Accuracy = "standard",
    error_limit: float | None = None,
    layout: Layout = "nchw",
    memory_limit: int | None = None,
    name: str | None = None,
    algorithm: str | None = None,
    model: ModelName = "full",
    micro_kernel: MicroKernel = None,
    input_footprint: Footprint = "packed",
    state: State = "hot",
    prepared: bool = False,
) -> Plan:
    """The plan with the lowest predicted time. `machine`: a CPU or GPU by name or .toml file; "host": this computer's CPU; "cuda": its GPU.

    `accuracy`: "standard", "strict", "ieee" or "reproducible" (docs/accuracy.md); `error_limit`: of the result's rms; `layout` as in
    `conv2d`, on a GPU "nchw" or "nhwc"; `memory_limit`: bytes of workspace; `state` of the caches: "hot", "cold" or "chained" (behind a
    layer); `prepared`: B is prepared once, not in the cost. Only this `algorithm`, `micro_kernel` (name, or tile "4x16"), schedule (`name`
    of a plan). `model`: "full" or the SConv paper's "csa", whose `input_footprint` may be "raw". PlanError if no kernel can run it."""
    terms: dict[str, Any] = {"threads": threads, "accuracy": accuracy, "error_limit": error_limit, "layout": layout, "state": state}
    terms |= {"memory_limit": memory_limit, "algorithm": algorithm, "micro_kernel": micro_kernel, "prepared": prepared}
    return _as_api(planner.plan(problem, host.any_machine(machine), model, name, input_footprint=input_footprint, **terms))


def plans(
    problem: str | Workload,
    machine: str | Machine | Gpu = "host",
    top: int = 10,
    micro_kernel: MicroKernel = None,
    state: State = "hot",
    layout: Layout = "nchw",
    memory_limit: int | None = None,
    algorithm: str | None = None,
    accuracy: Accuracy = "standard",
    error_limit: float | None = None,
) -> list[Plan]:
    """The `top` plans with the lowest predicted times, best first, each with the rejected kernels and the reasons. Arguments and errors as
    in `plan`."""
    terms: dict[str, Any] = {"accuracy": accuracy, "error_limit": error_limit, "layout": layout, "state": state}
    terms |= {"memory_limit": memory_limit, "algorithm": algorithm, "micro_kernel": micro_kernel}
    return [_as_api(one) for one in planner.plans(problem, host.any_machine(machine), top, **terms)]


def compare(
    problem: str | Workload | Iterable[str],
    machine: str | Machine | Gpu = "host",
    peers: PeerChoice = "default",
    layout: Layout = "nchw",
    memory_limit: int | None = None,
    algorithm: str | None = None,
    name: str | None = None,
    state: RunState = "hot",
    threads: int = 1,
    min_seconds: float = 0.2,
    budget_seconds: float = 30.0,
    store: Store | None = None,
    accuracy: Accuracy = "standard",
    error_limit: float | None = None,
) -> list[Comparison]:
    """Checks, then times, each distinct problem: one Comparison per problem with predicted and measured seconds.

    `problem`: a problem text, the name of a set, "@file", "model.onnx", or a list of these. `state`: the state of the caches when a call
    begins. `layout`, `memory_limit`, `algorithm`, `name`, `accuracy` and `error_limit` are as in `plan`.

    `peers` are timed in the same run if they are installed: "none"; "default" (im2col + OpenBLAS; on a GPU cuBLAS and every cuDNN
    algorithm); "all" (also oneDNN and ONNX Runtime; on a GPU PyTorch and the estimate of nvidia-matmul-heuristics); or a choice of names.
    The fastest correct cuDNN algorithm is reported as "cudnn", and `algorithms` names it.

    Each candidate is sampled for `min_seconds`, and each plan for at most `budget_seconds`. On a CPU sampling stops once all medians are
    known to half a percent. The samples go to `store`. Per candidate, `errors` has the largest measured error over the result's rms, and
    `workspaces` the bytes of workspace; `missing` says why a peer did not run. On an emulated machine results are checked, but nothing is
    timed. A problem without a plan gives a Comparison with the reason. If no problem has a plan, the first PlanError is raised.
    """
    if isinstance(problem, Conv | Gemm):
        layers = [Layer(problem)]
    else:
        words = list(problem) if np.iterable(problem) and not isinstance(problem, str | bytes) else [problem]
        layers = distinct(resolve(words, lambda model: read_layers(*model)[0]))
    if store is not None and not isinstance(store, Store):
        raise OperandError(f"store is {quoted(store)}; expected a pysim.measure.store.Store, open")
    if _layout(None, layout) in values.BLOCKED:
        raise PlanError(f"compare times NCHW and NHWC; conv2d and prepare compute in {layout}")
    least, most = seconds(min_seconds, "min_seconds"), seconds(budget_seconds, "budget_seconds")
    on, how = host.runnable_any(machine), How(threads, state, min_seconds=least, budget_seconds=most)
    word(state, "cache state", TIMED, PlanError)
    terms: dict[str, Any] = {"state": state, "layout": layout, "memory_limit": memory_limit, "algorithm": algorithm, "name": name}
    terms |= {"accuracy": accuracy, "error_limit": error_limit, "threads": threads}
    planned = comparison.plan_layers(layers, on, **terms)
    return list(comparison.compare(planned, on, chosen(peers, on), how, store))


def conv2d(
    x: Any,
    w: Any,
    bias: Any = None,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    groups: int = 1,
    activation: cuda.Activation = None,
    machine: str | Machine | Gpu = "host",
    threads: int = 1,
    accuracy: Accuracy = "standard",
    plan: values.Plan | None = None,
    out: Any = None,
    error_limit: float | None = None,
    residual: Any = None,
    layout: Layout = "nchw",
) -> Any:
    """y[N][M][P][Q] = act(x[N][C][H][W] * w[M][C/groups][R][S] + bias[M] + residual[N][M][P][Q]).

    x, w         both float32, float64, bfloat16 (ml_dtypes or PyTorch) or int8; on a GPU also float16
    y, bias      of the same type, except int32 (exact modulo 2^32) for int8, float32 for bfloat16 on a CPU, and float32 for 16-bit types on
                 a GPU if `out` is float32; y is an array of the library of x
    residual     of y's shape and type; on a CPU only, and not for int8
    activation   None, a name in native/epilogues.inc (relu, silu, gelu ...; on a GPU native/cuda/epilogues.inc) or ("clamp", low, high)
    padding      one number, (height, width) or (top, left, bottom, right); stride and dilation: one number or (height, width)
    accuracy     as in `pysim.plan`, like error_limit; leave both and layout out if a plan is given
    layout       on a CPU: under "nchw16c" (nchw8c, nchw4c) x, y and residual are [N][C/16][H][W][16]; "nchw-nchw16c" reads NCHW and writes
                 blocks; C and M of a group must then be multiples of the block. Under "nhwc" int8 x, y and residual are [N][H][W][C]

    CUDA arrays, also channels last, are used in place on their library's current stream. Host arrays run on the CPU, or on the GPU with
    `machine="cuda"` or a GPU's plan. `prepare` packs filters once for many calls. Raises OperandError for arrays that do not fit, and
    PlanError and MachineError as `plan` does.
    """
    windows = windows_of(stride, padding, dilation, groups)
    return convolved(x, w, bias, windows, activation, machine, threads, accuracy, plan, out, error_limit, residual, layout)


def convolved(
    x: Any, w: Any, bias: Any, windows: Windows, activation: cuda.Activation = None, machine: str | Machine | Gpu = "host",
    threads: int = 1, accuracy: Accuracy = "standard", plan: values.Plan | None = None, out: Any = None,
    error_limit: float | None = None, residual: Any = None, layout: Layout = "nchw",
) -> Any:  # fmt: skip
    """`conv2d` of images, or of volumes, by the rank of `windows`."""
    layout = _layout(plan, layout)
    accurate = _accurate(accuracy, error_limit)
    threads = whole(threads, "threads", 1, MOST_THREADS)
    arrays.refuse_gradients(x=x, w=w, bias=bias, out=out, residual=residual)
    if arrays.is_cuda(x) or arrays.is_cuda(w) or _on_gpu(plan, machine):
        if layout in values.BLOCKED:
            raise OperandError(f"{layout} is a layout of the CPU's kernels; on a GPU the strides of x give the layout")
        if residual is not None:
            raise OperandError("only the CPU's kernels add a residual; on a GPU add it to the result")
        given, how = {"x": x, "w": w, "bias": bias, "out": out}, (windows, _multiplied(plan))
        return _run_on_gpu(given, cuda_call.conv_of, how, plan, machine, accurate, activation)
    image, filters = runtime.as_numpy(x, "x"), runtime.as_numpy(w, "w")
    key: tuple[Hashable, ...] = (image.shape, image.dtype, filters.shape, filters.dtype, windows, threads, _identity(plan or machine))
    if accurate is not ANY:
        key += accurate
    if layout != "nchw":
        key += (layout,)
    if found := _ready.get(key):
        launch = found[0]
    else:
        workload = windows(runtime.planes(image.shape, layout), filters.shape, runtime.dtype_of(_bits(plan), image, filters))
        launch = cpu_launch.Launch.of(_planned(workload, plan, machine, accurate, threads=threads, layout=layout), threads)
        _ready.put(key, (launch, machine, plan))
    y = launch.run(image, filters, out, bias, activation, residual)
    return runtime.like(x, y) if out is None else out


def gemm(
    a: Any,
    b: Any,
    c: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    trans_a: bool = False,
    trans_b: bool = False,
    bias: Any = None,
    activation: cuda.Activation = None,
    machine: str | Machine | Gpu = "host",
    threads: int = 1,
    accuracy: Accuracy = "standard",
    plan: values.Plan | None = None,
    out: Any = None,
    dtype: str | None = None,
    error_limit: float | None = None,
) -> Any:
    """act(alpha op(a) op(b) + beta c + bias): op(a) is m x k, op(b) is k x n, c and the result are m x n, bias has n values.

    `trans_a`, `trans_b`: op transposes. Types, activations and errors as in `conv2d`; c and bias have the result's type, and int8 needs
    integral alpha and beta. A residual is passed as c. `c` is only read; the result goes to `out` or a new array from the library of a.
    CUDA arrays are used in place on their library's current stream. Host arrays run on the CPU, or on the GPU with `machine="cuda"` or a
    GPU's plan. `dtype`, on a GPU: how to multiply ("tf32", "tf32x3", "f8"). With `plan` leave out `accuracy` and `error_limit`.
    """
    alpha, beta = number(alpha, "alpha"), number(beta, "beta")
    accurate = _accurate(accuracy, error_limit)
    trans_a, trans_b = flag(trans_a, "trans_a"), flag(trans_b, "trans_b")
    threads = whole(threads, "threads", 1, MOST_THREADS)
    arrays.refuse_gradients(a=a, b=b, c=c, bias=bias, out=out)
    if arrays.is_cuda(a) or arrays.is_cuda(b) or _on_gpu(plan, machine):
        given = {"a": a, "b": b, "c": c if beta else None, "bias": bias, "out": out}
        how = (alpha, beta, trans_a, trans_b, dtype or _multiplied(plan))
        return _run_on_gpu(given, cuda_call.gemm_of, how, plan, machine, accurate, activation)
    if not (dtype is None or (isinstance(dtype, str) and dtype in runtime.NUMPY_DTYPES)):
        raise OperandError(f"dtype {quoted(dtype)}: the CPU kernels compute in the arrays' type")
    left, right = runtime.as_numpy(a, "a"), runtime.as_numpy(b, "b")
    key: tuple[Hashable, ...] = (left.shape, left.dtype, right.shape, right.dtype, trans_a, trans_b, threads, _identity(plan or machine))
    if accurate is not ANY:
        key += accurate
    if found := _ready.get(key):
        launch = found[0]
    else:
        workload = product_of(left.shape, right.shape, trans_a, trans_b, runtime.dtype_of(_bits(plan), left, right))
        launch = cpu_launch.Launch.of(_planned(workload, plan, machine, accurate, threads=threads), threads)
        _ready.put(key, (launch, machine, plan))
    y = launch.run(left, right, out, bias, activation, c, alpha, beta)
    return runtime.like(a, y) if out is None else out


def prepare(
    problem: str | Workload,
    weights: Any,
    bias: Any = None,
    activation: cuda.Activation = None,
    machine: str | Machine | Gpu = "host",
    threads: int = 1,
    plan: values.Plan | None = None,
    accuracy: Accuracy = "standard",
    error_limit: float | None = None,
    layout: Layout = "nchw",
) -> cpu_launch.Prepared | GpuPrepared:
    """Packs the weights of a problem once. The result is called as `y = conv(x, out=None)`, or for a product as `c = product(a, out=None)`.

    `weights`: w[M][C/groups][R][S], or B. The product is act(op(a) op(B) + bias), with one bias value per column. Other arguments, types
    and errors as in `conv2d`. A plan runs on its own machine, with its own accuracy and layout. On a GPU (CUDA weights, `machine="cuda"` or
    a GPU's plan) the weights are kept in the layout that the plan reads (`GpuPrepared`).
    """
    workload = parse(problem)
    _check(plan, machine)
    arrays.refuse_gradients(weights=weights, bias=bias)
    accurate, threads = _accurate(accuracy, error_limit), whole(threads, "threads", 1, MOST_THREADS)
    layout = _layout(plan, layout)
    if arrays.is_cuda(weights) or _on_gpu(plan, machine):
        made = _planned(workload, plan, _gpu_of(machine), accurate, layout=layout, prepared=isinstance(workload, Gemm))
        return GpuPrepared(_as_api(made), weights, bias, activation)
    found = _planned(workload, plan, machine, accurate, threads=threads, layout=layout, prepared=True)
    return cpu_launch.Prepared.of(found, weights, bias, activation, threads)


# Plans and machines

# the path of the cached "host" machine depends on these variables
_HOST_ENVIRONMENT = ("XDG_CACHE_HOME", "HOME")


def _identity(machine: values.Plan | str | Machine | Gpu) -> Hashable:
    """A cache key of a machine or plan: the name, for a file also its time and size, for a value its id."""
    if not isinstance(machine, str):
        return id(machine)
    if machine == "host":
        return tuple(map(os.environ.get, _HOST_ENVIRONMENT))
    if not (machine.endswith(".toml") or "/" in machine):
        return machine
    try:
        file = os.stat(machine)
    except (OSError, ValueError):  # the loader raises a better message
        return machine
    return machine, file.st_mtime_ns, file.st_size, file.st_ino


def _check(plan: Any, machine: Any) -> None:
    if plan is not None and not isinstance(plan, values.Plan):
        raise PlanError(f"plan is {quoted(plan)}; expected a plan from pysim.plan")
    if not isinstance(machine, str | Machine | Gpu):
        load_any(machine)  # raises with the accepted kinds


def _on_gpu(plan: Any, machine: Any) -> bool:
    """Whether the plan, or without a plan the machine, is for a GPU."""
    _check(plan, machine)
    on = plan.on if plan else machine
    if on == host.CUDA:
        return True
    return isinstance(on, Gpu) or (isinstance(on, str) and on != "host" and _known_gpu(on, _identity(on)))


@lru_cache(maxsize=64)
def _known_gpu(name: str, identity: Hashable) -> bool:
    return isinstance(host.any_machine(name), Gpu)


def _planned(workload: Workload, plan: values.Plan | None, machine: Any, accurate: Accurate, **terms: Any) -> values.Plan:
    """The given plan, if it fits; else the plan of the request."""
    if plan is None:
        terms |= {"accuracy": accurate[0], "error_limit": accurate[1]}
        return planner.planned(planner.request_of(workload, host.runnable_any(machine), **terms))
    if accurate != ANY:
        raise PlanError("accuracy and error_limit choose a plan, but a plan is given; pass them to pysim.plan instead")
    if plan.workload != workload and not (isinstance(plan.schedule, GpuSchedule) and _same_sizes(plan.workload, workload)):
        raise OperandError(f"the plan is for {plan.problem}, but the arrays make {workload.text}")
    return plan


def _same_sizes(one: Workload, other: Workload) -> bool:
    """Whether both are products of these sizes or of the transposed ones, whose operands may lie otherwise."""
    if not (isinstance(one, Gemm) and isinstance(other, Gemm) and one.k == other.k and one.dtype == other.dtype):
        return False
    return (one.m, one.n) in ((other.m, other.n), (other.n, other.m))


def _accurate(accuracy: Any, error_limit: Any) -> Accurate:
    """The requested accuracy, checked and hashable. PlanError for an unknown level, OperandError for a limit that is not finite."""
    if error_limit is None and type(accuracy) is str and accuracy == "standard":
        return ANY
    word(accuracy, "accuracy", ACCURACIES, PlanError)
    return accuracy, error_limit if error_limit is None else number(error_limit, "error_limit")


def _layout(plan: Any, layout: Any) -> Layout:
    """The plan's layout, or else the requested one."""
    if isinstance(plan, values.Plan):
        return plan.layout
    if type(layout) is not str or layout != "nchw":
        word(layout, "layout", values.LAYOUTS + values.BLOCKED, PlanError)
    return cast("Layout", layout)


def _bits(plan: values.Plan | None) -> str | None:
    """The type whose bits arrays of uint16 hold: bf16 if the plan is for it."""
    return "bf16" if plan is not None and plan.workload.dtype == "bf16" else None


def _multiplied(plan: values.Plan | None) -> str | None:
    """The plan's type if no array type expresses it, such as tf32; else None."""
    return plan.workload.dtype if plan and not BY_NAME[plan.workload.dtype].array else None


# On a GPU

_HERE = nullcontext()


def _gpu_of(machine: Any) -> Any:
    """A CPU and "host" stand for the GPU of this computer."""
    return host.CUDA if machine == "host" or isinstance(machine, Machine) else machine


def _device_of(array: Any, where: Any) -> AbstractContextManager[Any]:
    """Makes the device of an array the current one. MissingError without a device."""
    try:
        several = len(cuda.devices()) > 1 and arrays.is_cuda(array)
    except MissingError:
        host.runnable_any(where)  # names the machine
        raise
    return arrays.library_of(type(array)).on_device(array) if several else _HERE


def _run_on_gpu(
    given: dict[str, Any],
    task_of: Callable[..., cuda_call.Task],
    how: tuple[Any, ...],
    plan: values.Plan | None,
    machine: str | Machine | Gpu,
    accurate: Accurate,
    activation: cuda.Activation,
    kept: cuda_call.Kept | None = None,
) -> Any:
    """The result of a call on named arrays: the launch prepared for arrays that lie so, or one made for the task that they make. `kept`: of
    b, if it stays."""
    where = _gpu_of(plan.on if plan else machine)
    with _device_of(next(iter(given.values())), where):
        operands = arrays.operands_of(given)
        key = (task_of, how, activation, _identity(plan or where), accurate, operands.key, kept and kept.pointer)
        if found := _ready.get(key):
            launch = found[0]
        else:
            task = task_of(operands, *how)
            layout = plan.layout if plan and plan.layout in task.layouts else task.layouts[0]
            chosen = _planned(task.workload, plan, host.runnable_any(where), accurate, layout=layout)
            if not isinstance(chosen.schedule, GpuSchedule):
                raise OperandError(f"the plan of {chosen.problem} is for {chosen.machine}; these arrays are computed on a GPU")
            if chosen.layout != layout:
                right = f"plan with layout={layout!r}"
                raise OperandError(f"the plan is for {chosen.layout.upper()}, but x is {layout.upper()}; {right}")
            launch = cuda_call.prepared(task, chosen.schedule, layout, operands, activation, kept)
            _ready.put(key, (launch, where, plan))
        return launch.run(operands)
