# SPDX-License-Identifier: Apache-2.0
"""The Python functions: a convolution or product is planned once per shape and machine, then runs that plan.

From the second call on, what calls that look alike have in common is not made again: `_ready` keeps it by the call's signature, which is
all but where the arrays lie (shapes and types, parameters, threads, machine, plan); `pysim.runtime.cuda_call.cache` likewise for arrays on
a GPU. What can differ between such calls (bias, activation, out, memory) is checked in each.
"""

import os
from collections.abc import Hashable, Iterable
from functools import lru_cache
from typing import Any, cast

import numpy as np

from pysim import planner
from pysim.arguments import MOST_THREADS, flag, number, seconds, whole, word
from pysim.calibration import host
from pysim.comparison import compare as comparison
from pysim.comparison.compare import How
from pysim.errors import OperandError, PlanError, quoted
from pysim.frontends import onnx
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.machine.load import load_any
from pysim.measure.store import Store
from pysim.once import LruCache
from pysim.peers import PeerChoice, chosen
from pysim.problem.conv import Conv
from pysim.problem.dtypes import BY_NAME
from pysim.problem.gemm import Gemm
from pysim.problem.text import Layer, Workload, distinct, parse, resolve
from pysim.problem.windows import Pair, windows_of
from pysim.record import plan as values
from pysim.record.accuracy import ACCURACIES, Accuracy
from pysim.record.measurement import Comparison
from pysim.record.plan import Footprint, Layout, MicroKernel, ModelName, on_cpu
from pysim.record.schedule import GpuSchedule
from pysim.record.state import TIMED, RunState, State
from pysim.runtime import arrays, cpu_launch, cuda, cuda_conv, cuda_gemm, cuda_prepared
from pysim.runtime import cpu as runtime

Accurate = tuple[Accuracy, float | None]  # what results must be: the level, and the largest error over their root mean square
ANY: Accurate = ("standard", None)  # which calls that ask for nothing have, and no others: their signatures are without it

# signature -> what is ready for such a call, and the objects whose id is in the signature
_ready: LruCache[tuple[Any, Any, Any]] = LruCache(256)
_choosers: LruCache[tuple[Any, Any, Any]] = LruCache(256)


class Plan(values.Plan, frozen=True, kw_only=True):
    """A plan (`pysim.record.plan.Plan`) that can say why and run."""

    def explain(self) -> str:
        """Predicted time and what bounds it, the loop nest or launch, where the cycles go, and why the others lost, as text."""
        from pysim.explain.text import explain

        return explain(self)

    def run(self, x: Any, w: Any, bias: Any = None, activation: cuda.Activation = None, threads: int = 1, out: Any = None) -> Any:
        """Runs this very schedule on input x and filters w (or A and B of a matrix product) and returns the output array.

        The plan of a machine whose instructions this CPU lacks runs in an emulator, if there is one (docs/power10.md). Raises PlanError
        where no kernel has the plan's shape, MissingError where no emulator or GPU is here, OperandError for operands that do not fit.
        """
        of = self.workload
        if isinstance(of, Gemm):
            how = (None, 1.0, 0.0, of.trans_a, of.trans_b, bias, activation)
            return gemm(x, w, *how, plan=self, out=out, threads=threads, dtype=of.dtype)
        stride, dilation = (of.stride_h, of.stride_w), (of.dilation_h, of.dilation_w)
        padding = (of.pad_top, of.pad_left, of.pad_bottom, of.pad_right)
        return conv2d(x, w, bias, stride, padding, dilation, of.groups, activation, plan=self, out=out, threads=threads)


def _as_api(plan: values.Plan) -> Plan:
    return Plan(**{field: getattr(plan, field) for field in plan.__struct_fields__})


@lru_cache(maxsize=4096)
def _plan(
    workload: Workload, on: Machine | Gpu, accurate: Accurate, layout: Layout = "nchw", threads: int = 1, prepared: bool = False
) -> values.Plan:
    accuracy, limit = accurate
    return planner.plan(workload, on, layout=layout, accuracy=accuracy, error_limit=limit, threads=threads, prepared=prepared)


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
    """The plan of least predicted cost. `machine` is a CPU or GPU by name or file, "host" this computer's CPU, "cuda" its GPU; the other
    arguments are as in `pysim.planner.plan`, which names the errors, too."""
    on = host.any_machine(machine)
    how = planner.Options(micro_kernel=micro_kernel, state=state, layout=layout, accuracy=accuracy, error_limit=error_limit)
    return _as_api(planner.plan(problem, on, model, input_footprint, algorithm, name, memory_limit, threads, prepared, **how))


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
    """The `top` plans of least predicted cost, best first, each with the kernels turned down and why; arguments as in `plan`."""
    on = host.any_machine(machine)
    how = planner.Options(micro_kernel=micro_kernel, state=state, layout=layout, accuracy=accuracy, error_limit=error_limit)
    return [_as_api(one) for one in planner.plans(problem, on, top, algorithm, memory_limit, **how)]


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
    """Predicted beside measured, after the result was checked; one Comparison per distinct problem.

    `problem` is a problem text, the name of a set, @file, model.onnx or a list of them; `layout`, `memory_limit`, `algorithm`, `name`,
    `accuracy` and `error_limit` are as in `plan`, `state` that of the caches when a call begins. `peers` are timed in the same run where
    they are installed: "none", "default" (im2col + OpenBLAS; on a GPU cuBLAS and all of cuDNN's algorithms, of which the fastest right one
    is "cudnn" and `algorithms` names it), "all" (oneDNN and ONNX Runtime; PyTorch, and what nvidia-matmul-heuristics expects), or some by
    name. Each contender's samples last `min_seconds`, on a CPU less where all medians are certain to half a percent before, and go to
    `store`. `errors` has each one's largest error over the root mean square of the result, measured, `workspaces` its bytes, `missing` why
    a peer did not run. On a machine that is emulated here nothing is timed: its comparisons say whether the result is right. A problem
    that has no plan gives a Comparison with the reason; where none has one, PlanError says the first.
    """
    if isinstance(problem, Conv | Gemm):
        layers = [Layer(problem)]
    else:
        words = list(problem) if np.iterable(problem) and not isinstance(problem, str | bytes) else [problem]
        layers = distinct(resolve(words, lambda model: onnx.read(*model)[0]))
    if store is not None and not isinstance(store, Store):
        raise OperandError(f"store is {quoted(store)}; right is a pysim.measure.store.Store, open")
    if _layout(None, layout) in values.BLOCKED:
        raise PlanError(f"compare times NCHW and NHWC; conv2d and prepare compute in {layout}")
    least, most = seconds(min_seconds, "min_seconds"), seconds(budget_seconds, "budget_seconds")
    on, how = host.runnable_any(machine), How(threads, state, min_seconds=least, budget_seconds=most)
    asked: dict[str, Any] = {"state": state, "layout": layout, "memory_limit": memory_limit, "algorithm": algorithm, "name": name}
    asked |= {"accuracy": accuracy, "error_limit": error_limit, "threads": threads}
    word(state, "cache state", TIMED, PlanError)
    planned = [(layer, _planned(layer.workload, on, asked)) for layer in layers]
    refused = [plan for _, plan in planned if isinstance(plan, PlanError)]
    if refused and len(refused) == len(planned):
        raise refused[0]
    return list(comparison.compare(planned, on, chosen(peers, on), how, store, host.executor(on)))


def _planned(workload: Workload, on: Machine | Gpu, asked: dict[str, Any]) -> values.Plan | PlanError:
    try:
        return planner.plan(workload, on, **asked)
    except PlanError as error:
        return error


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

    activation is None, a name in native/epilogues.inc (relu, silu, gelu ...) or ("clamp", low, high); a residual, on a CPU, is of the
    result's type and shape.
    x and w are both float32, float64, bfloat16 (of ml_dtypes or PyTorch) or int8. y and the bias are float32 for bfloat16, and int32, exact
    modulo 2^32, for int8, which takes no residual.
    `stride` and `dilation` are one number or (height, width); `padding` also (top, left, bottom, right). The result is an array of
    the kind that x is. OperandError says what is wrong with an array. Use `prepare` to pack the filters once for many calls.
    CUDA arrays (also float16, and x that lies channels last) are taken where they lie, on their library's current stream; NumPy's on the
    CPU, or with `machine="cuda"` (or a GPU's plan) on the GPU, whose activations are the lines of native/cuda/epilogues.inc.
    `accuracy` and `error_limit` are as in `pysim.plan`; a call with a plan has that plan's.
    On a CPU x, y and a residual may have channels in blocks: `layout="nchw16c"` (nchw8c, nchw4c) is [N][C/16][H][W][16], and
    `"nchw-nchw16c"` takes x as planes and gives blocks. C and M of a group are multiples of the block. A plan has a layout of its own.
    """
    layout = _layout(plan, layout)
    windows = windows_of(stride, padding, dilation, groups)
    accurate = _accurate(accuracy, error_limit)
    threads = whole(threads, "threads", 1, MOST_THREADS)
    arrays.refuse_gradients(x=x, w=w, bias=bias, out=out, residual=residual)
    if arrays.is_cuda(x) or arrays.is_cuda(w) or _on_gpu(plan, machine):
        if layout in values.BLOCKED:
            raise OperandError(f"{layout} is a layout of the CPU's kernels; on a GPU x tells how it lies")
        if residual is not None:
            raise OperandError("a residual is added by the CPU's kernels; on a GPU add it behind the call")
        return cuda_conv.conv2d(x, w, windows, _chooser(_conv_chooser, plan, machine, accurate), bias, activation, out, _multiplied(plan))
    image, filters = runtime.as_numpy(x, "x"), runtime.as_numpy(w, "w")
    key: tuple[Hashable, ...] = (image.shape, image.dtype, filters.shape, filters.dtype, windows, threads, _identity(plan or machine))
    if accurate is not ANY:
        key += accurate
    if layout != "nchw":
        key += (layout,)
    if found := _ready.get(key):
        launch = found[0]
    else:
        shape = _planes(image.shape, layout) if layout in values.BLOCKED else image.shape
        workload = windows(shape, filters.shape, _dtype(plan, image, filters))
        launch = cpu_launch.ConvLaunch(workload, *_on_cpu(workload, machine, plan, threads, accurate, layout), layout)
        _ready.put(key, (launch, machine, plan))
    y = launch(image, filters, bias, activation, out, residual)
    return runtime.like(x, y) if out is None else out


def _planes(shape: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    """(N, C, H, W) of an input that lies in a layout."""
    block = values.blocks_of(layout)[0]
    if block == 1:
        return shape
    if len(shape) != 5 or shape[-1] != block:
        raise OperandError(f"x has shape {shape}; in layout {layout} it is (N, C/{block}, H, W, {block}), C a multiple of {block}")
    return (shape[0], shape[1] * block, *shape[2:4])


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
    """alpha op(a) op(b) + beta c + bias, where op transposes if asked and bias has one value per column.

    dtypes as in `conv2d`, c and bias as the result; for int8 alpha and beta must be whole numbers.
    `c` is read, not written; the result goes to `out` or a new array of the kind that a is. CUDA arrays are multiplied where they lie, on
    their library's current stream; NumPy's on the CPU, or with `machine="cuda"` (or a GPU's plan) on the GPU. activation is a line of
    native/epilogues.inc, on a GPU of native/cuda/epilogues.inc, clamp as ("clamp", low, high); it is taken of the sum with beta c, which
    is how a product adds a residual. On a GPU `dtype` says how elements are multiplied ("tf32", "tf32x3", "f8").
    `accuracy` and `error_limit` are as in `pysim.plan`; a call with a plan has that plan's.
    """
    alpha, beta = number(alpha, "alpha"), number(beta, "beta")
    accurate = _accurate(accuracy, error_limit)
    trans_a, trans_b = flag(trans_a, "trans_a"), flag(trans_b, "trans_b")
    threads = whole(threads, "threads", 1, MOST_THREADS)
    arrays.refuse_gradients(a=a, b=b, c=c, bias=bias, out=out)
    if arrays.is_cuda(a) or arrays.is_cuda(b) or _on_gpu(plan, machine):
        choose = _chooser(_gemm_chooser, plan, machine, accurate)
        return cuda_gemm.gemm(a, b, choose, c, alpha, beta, trans_a, trans_b, bias, activation, out, dtype or _multiplied(plan))
    if not (dtype is None or (isinstance(dtype, str) and dtype in runtime.NUMPY_DTYPES)):
        raise OperandError(f"dtype {quoted(dtype)}: the CPU kernels compute in the arrays' type")
    left, right = runtime.as_numpy(a, "a"), runtime.as_numpy(b, "b")
    key: tuple[Hashable, ...] = (left.shape, left.dtype, right.shape, right.dtype, trans_a, trans_b, threads, _identity(plan or machine))
    if accurate is not ANY:
        key += accurate
    if found := _ready.get(key):
        launch = found[0]
    else:
        workload = _product(left, right, trans_a, trans_b, plan)
        launch = cpu_launch.GemmLaunch(workload, *_on_cpu(workload, machine, plan, threads, accurate))
        _ready.put(key, (launch, machine, plan))
    y = launch(left, right, c, alpha, beta, bias, activation, out)
    return runtime.like(a, y) if out is None else out


def _product(a: Any, b: Any, trans_a: bool, trans_b: bool, plan: values.Plan | None) -> Gemm:
    if a.ndim != 2 or b.ndim != 2:
        raise OperandError(f"a and b must be matrices; their shapes are {a.shape} and {b.shape}")
    (k, m), (n, depth) = a.shape[:: 1 if trans_a else -1], b.shape[:: 1 if trans_b else -1]
    if k != depth:
        raise OperandError(f"op(a) has {k} columns but op(b) has {depth} rows; they must agree")
    return Gemm(m=m, n=n, k=k, trans_a=trans_a, trans_b=trans_b, dtype=_dtype(plan, a, b))


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
) -> cpu_launch.Prepared | cuda_prepared.Prepared:
    """A convolution with its filters packed once, `y = conv(x, out=None)`, or a product with op(B) packed once, `c = product(a, out=None)`:
    activation(op(a) op(B) + bias), the bias one value per column. A plan runs on its own machine (`host.executor`), with its own accuracy
    and layout; `accuracy`, `error_limit` and `layout` are as in `pysim.conv2d`. On a GPU (CUDA weights, or `machine="cuda"`, or a GPU's
    plan) weights are kept in the layout that the plan reads (`pysim.runtime.cuda_prepared`)."""
    workload = parse(problem)
    _check(plan, machine)
    arrays.refuse_gradients(weights=weights, bias=bias)
    accurate, threads = _accurate(accuracy, error_limit), whole(threads, "threads", 1, MOST_THREADS)
    layout = _layout(plan, layout)
    if arrays.is_cuda(weights) or _on_gpu(plan, machine):
        _refuse_both(plan, accurate)
        on = host.runnable_any(host.CUDA if machine == "host" or isinstance(machine, Machine) else machine)
        chosen = _as_api(_fitting(plan, workload) or _plan(workload, on, accurate, layout))
        return cuda_prepared.Prepared(workload, chosen.run, weights, bias, activation, chosen.layout == "nhwc")
    schedule, threads, executor = _on_cpu(workload, machine, plan, threads, accurate, layout, prepared=True)
    return cpu_launch.Prepared(workload, weights, schedule, bias, activation, threads, executor, layout)


# Plans and machines

# of these variables depends where the machine "host" is kept
_HOST_ENVIRONMENT = ("XDG_CACHE_HOME", "HOME")


def _identity(machine: values.Plan | str | Machine | Gpu) -> Hashable:
    """What the machines (or plans, which have theirs) of two calls are the same by: a file by its path and when it was written, a value
    by its id."""
    if not isinstance(machine, str):
        return id(machine)
    if machine == "host":
        return tuple(map(os.environ.get, _HOST_ENVIRONMENT))
    if not (machine.endswith(".toml") or "/" in machine):
        return machine
    try:
        file = os.stat(machine)
    except (OSError, ValueError):  # which who reads it says better
        return machine
    return machine, file.st_mtime_ns, file.st_size, file.st_ino


def _check(plan: Any, machine: Any) -> None:
    if plan is not None and not isinstance(plan, values.Plan):
        raise PlanError(f"plan is {quoted(plan)}; right is what pysim.plan returns")
    if not isinstance(machine, str | Machine | Gpu):
        load_any(machine)  # which says what is right


def _on_gpu(plan: Any, machine: Any) -> bool:
    """Whether a plan, or else a machine, is for a GPU."""
    _check(plan, machine)
    on = plan.on if plan else machine
    if on == host.CUDA:
        return True
    return isinstance(on, Gpu) or (isinstance(on, str) and on != "host" and _known_gpu(on, _identity(on)))


@lru_cache(maxsize=64)
def _known_gpu(name: str, identity: Hashable) -> bool:
    return isinstance(host.any_machine(name), Gpu)


def _on_cpu(
    workload: Workload,
    machine: str | Machine | Gpu,
    plan: values.Plan | None,
    threads: int,
    accurate: Accurate,
    layout: Layout = "nchw",
    prepared: bool = False,
) -> tuple[Any, int, runtime.Executor]:
    """The schedule of a problem, threads, and who runs it: the given plan's, or the best one's."""
    _refuse_both(plan, accurate)
    chosen = _fitting(plan, workload) or _plan(workload, host.runnable(cast("str | Machine", machine)), accurate, layout, threads, prepared)
    schedule, on = on_cpu(chosen)
    return schedule, threads, host.executor(on)


def _accurate(accuracy: Any, error_limit: Any) -> Accurate:
    """What was asked for, as it can stand in a call's signature."""
    if error_limit is None and type(accuracy) is str and accuracy == "standard":
        return ANY
    word(accuracy, "accuracy", ACCURACIES, PlanError)
    return accuracy, error_limit if error_limit is None else number(error_limit, "error_limit")


def _layout(plan: Any, layout: Any) -> Layout:
    """That of a plan, or what was asked for."""
    if isinstance(plan, values.Plan):
        return plan.layout
    if type(layout) is not str or layout != "nchw":
        word(layout, "layout", values.LAYOUTS + values.BLOCKED, PlanError)
    return cast("Layout", layout)


def _refuse_both(plan: values.Plan | None, accurate: Accurate) -> None:
    if plan is not None and accurate != ANY:
        raise PlanError("accuracy and error_limit choose a plan, and this call brings one; ask pysim.plan for a plan that is so accurate")


def _chooser(make: Any, plan: values.Plan | None, machine: str | Machine | Gpu, accurate: Accurate) -> Any:
    """What chooses schedules on a GPU, one for a plan and a machine: CPUs' plans and "host" stand for the GPU that is here."""
    on = plan.on if plan else machine
    where = host.CUDA if on == "host" or isinstance(on, Machine) else on
    key: tuple[Hashable, ...] = (make, _identity(plan or where))
    if accurate is not ANY:
        key += accurate
    if found := _choosers.get(key):
        return found[0]
    _refuse_both(plan, accurate)
    return _choosers.put(key, (make(plan, host.runnable_any(where), accurate), plan, where))[0]


def _multiplied(plan: values.Plan | None) -> str | None:
    """How a plan multiplies, where no array's type says it: as tf32."""
    return plan.workload.dtype if plan and not BY_NAME[plan.workload.dtype].array else None


def _gemm_chooser(plan: values.Plan | None, on: Machine | Gpu, accurate: Accurate) -> cuda_gemm.Chooser:
    """The schedule of a product as the kernels see it: the given plan's, which fits any layout of its sizes, or the best one."""

    def choose(workload: Gemm) -> GpuSchedule:
        chosen = plan or _plan(workload, on, accurate)
        theirs, schedule = chosen.workload, chosen.schedule
        if not (isinstance(theirs, Gemm) and isinstance(schedule, GpuSchedule)):
            raise OperandError(f"the plan of {chosen.problem} is for {chosen.machine}; the arrays are multiplied on a GPU")
        sizes = (theirs.m, theirs.n, theirs.k, theirs.dtype)
        if sizes not in ((workload.m, workload.n, workload.k, workload.dtype), (workload.n, workload.m, workload.k, workload.dtype)):
            raise OperandError(f"the plan is for {chosen.problem}, but the arrays make {workload.text}")
        return schedule

    return choose


def _conv_chooser(plan: values.Plan | None, on: Machine | Gpu, accurate: Accurate) -> cuda_conv.Chooser:
    """The schedule of a convolution that lies in a layout: the given plan's, or that of the best plan."""

    def choose(workload: Conv, layout: str) -> GpuSchedule:
        chosen = _fitting(plan, workload) or _plan(workload, on, accurate, cast("Layout", layout))
        if not isinstance(chosen.schedule, GpuSchedule):
            raise OperandError(f"the plan of {chosen.problem} is for {chosen.machine}; the arrays are convolved on a GPU")
        return cuda_conv.fitting(chosen.schedule, chosen.layout, layout)

    return choose


_DTYPES = {"float32": "f32", "float64": "f64", "bfloat16": "bf16", "int8": "s8"}  # by the name of an array's dtype


def _dtype(plan: values.Plan | None, *arrays: Any) -> str:
    """The dtype of the problem that arrays make; uint16 carries bf16 where a plan says so."""
    names = {str(array.dtype) for array in arrays}
    if names == {"uint16"} and plan is not None and plan.workload.dtype == "bf16":
        return "bf16"
    if len(names) != 1 or not names <= _DTYPES.keys():
        bits = "; uint16 is taken for the bits of bf16 only with a plan or a problem text of that type" if "uint16" in names else ""
        right = f"the CPU kernels take {' or '.join(_DTYPES)}, the same for all"
        raise OperandError(f"the arrays are {' and '.join(sorted(names))}; {right}{bits}")
    return _DTYPES[names.pop()]


def _fitting(plan: values.Plan | None, workload: Workload) -> values.Plan | None:
    if plan is not None and plan.workload != workload:
        raise OperandError(f"the plan is for {plan.problem}, but the arrays make {workload.text}")
    return plan
