# SPDX-License-Identifier: Apache-2.0
"""The Python API. A convolution or matrix product is planned once per shape and machine; later calls run that plan.

`_ready` caches a prepared launch per call signature: shapes, types, parameters, threads, machine and plan, but no addresses.
`pysim.runtime.cuda_call.cache` does the same for arrays on a GPU. Bias, activation, out and memory are not part of the signature, so every
call checks them.
"""

import os
from collections.abc import Hashable, Iterable
from functools import lru_cache
from typing import Any, cast

import numpy as np

from pysim import planner
from pysim.arguments import MOST_THREADS, flag, number, seconds, whole, word
from pysim.caches import LruCache
from pysim.calibration import host
from pysim.comparison import compare as comparison
from pysim.comparison.compare import How
from pysim.errors import OperandError, PlanError, quoted
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.machine.load import load_any
from pysim.measure.store import Store
from pysim.onnx.layers import read as read_layers
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

Accurate = tuple[Accuracy, float | None]  # the level, and the largest accepted error relative to the results' rms
ANY: Accurate = ("standard", None)  # the default, which call signatures leave out

# signature -> the prepared launch or chooser, and the objects whose ids are in the signature: if they were freed, an id could be reused
_ready: LruCache[tuple[Any, Any, Any]] = LruCache(256)
_choosers: LruCache[tuple[Any, Any, Any]] = LruCache(256)


class Plan(values.Plan, frozen=True, kw_only=True):
    """A plan (`pysim.record.plan.Plan`) with methods that explain and run it."""

    def explain(self) -> str:
        """A text: the predicted time and its bottleneck, the loop nest or launch, a breakdown of the cycles, and why other kernels lost."""
        from pysim.explain.text import explain

        return explain(self)

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
        stride, dilation = (of.stride_h, of.stride_w), (of.dilation_h, of.dilation_w)
        padding = (of.pad_top, of.pad_left, of.pad_bottom, of.pad_right)
        return conv2d(x, w, bias, stride, padding, dilation, of.groups, activation, plan=self, out=out, threads=threads)


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

    `memory_limit` is in bytes, `error_limit` is relative to the result's rms, and the plan's costs are in cycles and seconds. The other
    arguments are described in `pysim.planner.plan`. Raises ProblemError, MachineError, and PlanError if no kernel can run the problem.
    """
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
    return list(comparison.compare(planned, on, chosen(peers, on), how, store, host.executor(on)))


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
                 blocks; C and M of a group must then be multiples of the block

    CUDA arrays, also channels last, are used in place on their library's current stream. Host arrays run on the CPU, or on the GPU with
    `machine="cuda"` or a GPU's plan. `prepare` packs filters once for many calls. Raises OperandError for arrays that do not fit, and
    PlanError and MachineError as `plan` does.
    """
    layout = _layout(plan, layout)
    windows = windows_of(stride, padding, dilation, groups)
    accurate = _accurate(accuracy, error_limit)
    threads = whole(threads, "threads", 1, MOST_THREADS)
    arrays.refuse_gradients(x=x, w=w, bias=bias, out=out, residual=residual)
    if arrays.is_cuda(x) or arrays.is_cuda(w) or _on_gpu(plan, machine):
        if layout in values.BLOCKED:
            raise OperandError(f"{layout} is a layout of the CPU's kernels; on a GPU the strides of x give the layout")
        if residual is not None:
            raise OperandError("only the CPU's kernels add a residual; on a GPU add it to the result")
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
    """(N, C, H, W) of an input of this shape in this layout."""
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
    """act(alpha op(a) op(b) + beta c + bias): op(a) is m x k, op(b) is k x n, c and the result are m x n, bias has n values.

    `trans_a`, `trans_b`: op transposes. Types, activations and errors as in `conv2d`; c and bias have the result's type, and int8 needs
    integral alpha and beta. A residual is passed as c. `c` is only read; the result goes to `out` or a new array from the library of a.
    CUDA arrays are used in place on their library's current stream. Host arrays run on the CPU, or on the GPU with `machine="cuda"` or a
    GPU's plan. `dtype`, on a GPU: how elements are multiplied ("tf32", "tf32x3", "f8").
    `accuracy` and `error_limit` are as in `pysim.plan`; leave them out if `plan` is given.
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
        raise OperandError(f"op(a) has {k} columns but op(b) has {depth} rows; expected equal numbers")
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
    """Packs the weights of a problem once. The result is called as `y = conv(x, out=None)`, or for a product as `c = product(a, out=None)`.

    `weights`: w[M][C/groups][R][S], or B. The product is act(op(a) op(B) + bias), with one bias value per column. Other arguments, types
    and errors as in `conv2d`. A plan runs on its own machine, with its own accuracy and layout. On a GPU (CUDA weights, `machine="cuda"` or
    a GPU's plan) the weights are kept in the layout that the plan reads (`pysim.runtime.cuda_prepared`).
    """
    workload = parse(problem)
    _check(plan, machine)
    arrays.refuse_gradients(weights=weights, bias=bias)
    accurate, threads = _accurate(accuracy, error_limit), whole(threads, "threads", 1, MOST_THREADS)
    layout = _layout(plan, layout)
    if arrays.is_cuda(weights) or _on_gpu(plan, machine):
        _refuse_both(plan, accurate)
        on = host.runnable_any(host.CUDA if machine == "host" or isinstance(machine, Machine) else machine)
        chosen = _as_api(_fitting(plan, workload) or planner.planned(_request(workload, on, accurate, layout)))
        return cuda_prepared.Prepared(workload, chosen.run, weights, bias, activation, chosen.layout == "nhwc")
    schedule, threads, executor = _on_cpu(workload, machine, plan, threads, accurate, layout, prepared=True)
    return cpu_launch.Prepared(workload, weights, schedule, bias, activation, threads, executor, layout)


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


def _on_cpu(
    workload: Workload,
    machine: str | Machine | Gpu,
    plan: values.Plan | None,
    threads: int,
    accurate: Accurate,
    layout: Layout = "nchw",
    prepared: bool = False,
) -> tuple[Any, int, runtime.Executor]:
    """(schedule, threads, executor) of the given plan, or else of the best plan."""
    _refuse_both(plan, accurate)
    chosen = _fitting(plan, workload)
    if chosen is None:
        on = host.runnable(cast("str | Machine", machine))
        chosen = planner.planned(_request(workload, on, accurate, layout, threads=threads, prepared=prepared))
    schedule, on = on_cpu(chosen)
    return schedule, threads, host.executor(on)


def _request(workload: Workload, on: Machine | Gpu, accurate: Accurate, layout: Layout = "nchw", **terms: Any) -> values.Request:
    return planner.request_of(workload, on, layout=layout, accuracy=accurate[0], error_limit=accurate[1], **terms)


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


def _refuse_both(plan: values.Plan | None, accurate: Accurate) -> None:
    if plan is not None and accurate != ANY:
        raise PlanError("accuracy and error_limit choose a plan, but a plan is given; pass them to pysim.plan instead")


def _chooser(make: Any, plan: values.Plan | None, machine: str | Machine | Gpu, accurate: Accurate) -> Any:
    """The function that chooses GPU schedules, cached per plan and machine. A CPU and "host" stand for the GPU of this computer."""
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
    """The plan's type if no array type expresses it, such as tf32; else None."""
    return plan.workload.dtype if plan and not BY_NAME[plan.workload.dtype].array else None


def _gemm_chooser(plan: values.Plan | None, on: Machine | Gpu, accurate: Accurate) -> cuda_gemm.Chooser:
    """Chooses the schedule of a product: the given plan's, for any operand layout and also for the transposed product, or the best one."""

    def choose(workload: Gemm) -> GpuSchedule:
        chosen = plan or planner.planned(_request(workload, on, accurate))
        theirs, schedule = chosen.workload, chosen.schedule
        if not (isinstance(theirs, Gemm) and isinstance(schedule, GpuSchedule)):
            raise OperandError(f"the plan of {chosen.problem} is for {chosen.machine}; the arrays are multiplied on a GPU")
        sizes = (theirs.m, theirs.n, theirs.k, theirs.dtype)
        if sizes not in ((workload.m, workload.n, workload.k, workload.dtype), (workload.n, workload.m, workload.k, workload.dtype)):
            raise OperandError(f"the plan is for {chosen.problem}, but the arrays make {workload.text}")
        return schedule

    return choose


def _conv_chooser(plan: values.Plan | None, on: Machine | Gpu, accurate: Accurate) -> cuda_conv.Chooser:
    """Chooses the schedule of a convolution in a layout: the given plan's, or the best one."""

    def choose(workload: Conv, layout: str) -> GpuSchedule:
        chosen = _fitting(plan, workload) or planner.planned(_request(workload, on, accurate, cast("Layout", layout)))
        if not isinstance(chosen.schedule, GpuSchedule):
            raise OperandError(f"the plan of {chosen.problem} is for {chosen.machine}; the arrays are convolved on a GPU")
        return cuda_conv.fitting(chosen.schedule, chosen.layout, layout)

    return choose


_DTYPES = {"float32": "f32", "float64": "f64", "bfloat16": "bf16", "int8": "s8"}  # by the name of an array's dtype


def _dtype(plan: values.Plan | None, *arrays: Any) -> str:
    """The problem's dtype, from the arrays' types. uint16 arrays are bf16 bits if the plan is for bf16."""
    names = {str(array.dtype) for array in arrays}
    if names == {"uint16"} and plan is not None and plan.workload.dtype == "bf16":
        return "bf16"
    if len(names) != 1 or not names <= _DTYPES.keys():
        bits = "; uint16 is taken for the bits of bf16 only with a plan or a problem text of that type" if "uint16" in names else ""
        right = f"the CPU kernels take {', '.join(_DTYPES)}, the same for all arrays"
        raise OperandError(f"the arrays are {' and '.join(sorted(names))}; {right}{bits}")
    return _DTYPES[names.pop()]


def _fitting(plan: values.Plan | None, workload: Workload) -> values.Plan | None:
    if plan is not None and plan.workload != workload:
        raise OperandError(f"the plan is for {plan.problem}, but the arrays make {workload.text}")
    return plan
