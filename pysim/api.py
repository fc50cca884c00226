# SPDX-License-Identifier: Apache-2.0
"""The Python functions: a convolution or product is planned once per shape and machine, then runs that plan."""

from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from typing import Any, cast

from pysim import planner
from pysim.calibration import host
from pysim.comparison import cpu as comparison
from pysim.comparison import cuda as cuda_comparison
from pysim.errors import OperandError, PlanError
from pysim.frontends import onnx
from pysim.machine.load import Gpu, Machine
from pysim.peers.cpu import DEFAULT, PEERS
from pysim.problem.text import Conv, Gemm, Layer, Workload, distinct, parse, resolve
from pysim.record.measurement import Comparison
from pysim.record.plan import Layout, Plan, on_cpu
from pysim.record.schedule import GpuConvSchedule, GpuSchedule
from pysim.runtime import arrays, cuda, cuda_conv
from pysim.runtime import cpu as runtime

Pair = int | Sequence[int]


@lru_cache(maxsize=4096)
def _plan(workload: Workload, on: Machine | Gpu, layout: Layout = "nchw", memory_limit: int | None = None) -> Plan:
    return planner.plan(workload, on, layout=layout, memory_limit=memory_limit)


def plan(problem: str | Workload, machine: str | Machine | Gpu = "host", **options: Any) -> Plan:
    """The plan of least predicted cost; options as in `pysim.planner.plan` (model, micro_kernel; on a GPU layout, memory_limit, algorithm).

    `machine` is a CPU or GPU by name or file, "host" this computer's CPU, "cuda" its GPU.
    """
    return planner.plan(problem, host.any_machine(machine), **options)


def plans(problem: str | Workload, machine: str | Machine | Gpu = "host", top: int = 10, **options: Any) -> list[Plan]:
    """The `top` plans of least predicted cost, best first, each with the kernels turned down and why."""
    return planner.plans(problem, host.any_machine(machine), top, **options)


def compare(
    problem: str | Workload | Iterable[str],
    machine: str | Machine | Gpu = "host",
    peers: bool = False,
    layout: Layout = "nchw",
    memory_limit: int | None = None,
    **options: Any,
) -> list[Comparison]:
    """Predicted beside measured, after the result was checked; one Comparison per distinct problem.

    `problem` is a problem text, the name of a set, @file, model.onnx or a list of them. im2col + OpenBLAS is timed in the same run where
    it is installed, with `peers` every library that is. On a GPU a product is timed beside cuBLAS, and with `peers` stands beside what
    nvidia-matmul-heuristics expects; a convolution that lies in `layout`, planned within `memory_limit` bytes of workspace, is timed
    beside all of cuDNN's forward algorithms, of which the fastest right one is "cudnn" in `peers` and `algorithms` names it, and with
    `peers` beside PyTorch; `workspaces` has each one's bytes, `missing` why a peer did not run. Other options as in
    `pysim.comparison.cpu.compare` (state, threads, store) and `pysim.comparison.cuda.compare`. On a machine that is emulated here nothing
    is timed: its comparisons say whether the result is right.
    """
    if isinstance(problem, Conv | Gemm):
        layers = [Layer(problem)]
    else:
        layers = distinct(resolve([problem] if isinstance(problem, str) else list(problem), lambda path: onnx.read(path)[0]))
    on, makers = host.runnable_any(machine), PEERS if peers else {DEFAULT: PEERS[DEFAULT]}
    planned = [(layer, _planned(layer.workload, on, layout, memory_limit)) for layer in layers]
    if isinstance(on, Gpu):
        return list(cuda_comparison.compare(planned, on, peers=peers, **options))
    return list(comparison.compare(planned, on, makers=makers, executor=host.executor(on), **options))


def _planned(workload: Workload, on: Machine | Gpu, layout: Layout, memory_limit: int | None) -> Plan | PlanError:
    try:
        return _plan(workload, on, layout, memory_limit)
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
    plan: Plan | None = None,
    out: Any = None,
    threads: int = 1,
) -> Any:
    """y[N][M][P][Q] = x[N][C][H][W] * w[M][C/groups][R][S] + bias[M], activation None or "relu".

    x and w are float32, float64, bfloat16 (as of ml_dtypes) or int8, both the same; y and the bias are float32 for bfloat16 and int32,
    exact modulo 2^32, for int8.
    `stride` and `dilation` are one number or (height, width); `padding` also (top, left, bottom, right). The result is an array of
    the kind that x is. OperandError says what is wrong with an array. Use `prepare` to pack the filters once for many calls.
    CUDA arrays (also float16, and x that lies channels last) are taken where they lie, on their library's current stream; NumPy's on the
    CPU, or with `machine="cuda"` (or a GPU's plan) on the GPU. There, activation is any line of native/cuda/epilogues.inc.
    """
    on = plan.on if plan else machine
    if any(map(arrays.is_cuda, (x, w))) or isinstance(on, Gpu) or (isinstance(on, str) and isinstance(_known(on), Gpu)):
        where = host.CUDA if on == "host" or isinstance(on, Machine) else on
        describe = partial(conv_workload, stride=stride, padding=padding, dilation=dilation, groups=groups)
        return cuda_conv.conv2d(x, w, describe, _conv_chooser(plan, host.runnable_any(where)), bias, activation, out)
    if isinstance(activation, tuple):
        raise OperandError(f"activation {activation!r}: the CPU kernels have relu")
    image, filters = runtime.as_numpy(x, "x"), runtime.as_numpy(w, "w")
    workload = conv_workload(image.shape, filters.shape, _dtype(plan, image, filters), stride, padding, dilation, groups)
    run = prepare(workload, filters, bias, activation, _cpu(machine), threads, plan)
    return runtime.like(x, run(image, out))


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
    plan: Plan | None = None,
    out: Any = None,
    machine: str | Machine | Gpu = "host",
    threads: int = 1,
    dtype: str | None = None,
) -> Any:
    """alpha op(a) op(b) + beta c + bias, where op transposes if asked and bias has one value per column.

    dtypes as in `conv2d`, c and bias as the result; for int8 alpha and beta must be whole numbers.
    `c` is read, not written; the result goes to `out` or a new array of the kind that a is. CUDA arrays are multiplied where they lie, on
    their library's current stream; NumPy's on the CPU, or with `machine="cuda"` (or a GPU's plan) on the GPU. There, activation is any
    line of native/cuda/epilogues.inc, clamp as ("clamp", low, high), and `dtype` how elements are multiplied ("tf32", "f8").
    """
    on = plan.on if plan else machine
    if any(map(arrays.is_cuda, (a, b))) or isinstance(on, Gpu) or (isinstance(on, str) and isinstance(_known(on), Gpu)):
        where = host.CUDA if on == "host" or isinstance(on, Machine) else on
        choose = _chooser(plan, host.runnable_any(where))
        return cuda.gemm(a, b, choose, c, alpha, beta, trans_a, trans_b, bias, activation, out, dtype)
    if isinstance(activation, tuple) or dtype not in (None, *runtime.NUMPY_DTYPES):
        raise OperandError(f"activation {activation!r} and dtype {dtype!r}: the CPU kernels have relu, and compute in the arrays' type")
    left, right = runtime.as_numpy(a, "a"), runtime.as_numpy(b, "b")
    if left.ndim != 2 or right.ndim != 2:
        raise OperandError(f"a and b must be matrices; their shapes are {left.shape} and {right.shape}")
    (k, m), (n, depth) = left.shape[:: 1 if trans_a else -1], right.shape[:: 1 if trans_b else -1]
    if k != depth:
        raise OperandError(f"op(a) has {k} columns but op(b) has {depth} rows; they must agree")
    workload = Gemm(m=m, n=n, k=k, trans_a=trans_a, trans_b=trans_b, dtype=_dtype(plan, left, right))
    chosen = _fitting(plan, workload) or _plan(workload, host.runnable(_cpu(machine)))
    schedule, chosen_on = on_cpu(chosen)
    executor = host.executor(chosen_on)
    target = runtime.output(out, (m, n), workload.dtype)
    if c is not None:
        target[:] = runtime.addend(c, "c", (m, n), workload.dtype)
    elif beta != 0:
        raise OperandError(f"beta is {beta}, so c must be given")
    runtime.PreparedGemm(workload, schedule, alpha, beta, bias, activation, threads, executor)(left, right, target)
    return runtime.like(a, target)


def prepare(
    problem: str | Conv,
    weights: Any,
    bias: Any = None,
    activation: str | None = None,
    machine: str | Machine = "host",
    threads: int = 1,
    plan: Plan | None = None,
) -> runtime.Prepared:
    """A convolution with its filters packed once: `y = conv(x, out=None)`. A plan runs where its machine's plans run (`host.executor`)."""
    workload = parse(problem) if isinstance(problem, str) else problem
    if not isinstance(workload, Conv):
        raise OperandError(f"prepare packs the filters of a convolution; {workload.text} is a matrix product: call pysim.gemm")
    chosen = _fitting(plan, workload) or _plan(workload, host.runnable(machine))
    schedule, chosen_on = on_cpu(chosen)
    return runtime.Prepared(workload, weights, schedule, bias, activation, threads, host.executor(chosen_on))


def conv_workload(
    x: tuple[int, ...], w: tuple[int, ...], dtype: str, stride: Pair = 1, padding: Pair = 0, dilation: Pair = 1, groups: int = 1
) -> Conv:
    """The convolution that these shapes and parameters describe; OperandError where they do not fit together."""
    if len(x) != 4 or len(w) != 4:
        raise OperandError(f"x must be [N][C][H][W] and w [M][C/groups][R][S]; their shapes are {x} and {w}")
    if w[1] * groups != x[1]:
        raise OperandError(f"w takes {w[1]} channels x {groups} groups, but x has {x[1]} channels")
    stride_h, stride_w = _pair(stride, "stride")
    dilation_h, dilation_w = _pair(dilation, "dilation")
    pads = tuple(padding) if isinstance(padding, Sequence) and len(padding) == 4 else _pair(padding, "padding") * 2
    top, left, bottom, right = pads
    return Conv(
        batch=x[0], channels=x[1], height=x[2], width=x[3], filters=w[0], kernel_h=w[2], kernel_w=w[3], stride_h=stride_h,
        stride_w=stride_w, dilation_h=dilation_h, dilation_w=dilation_w, pad_top=top, pad_left=left, pad_bottom=bottom,
        pad_right=right, groups=groups, dtype=dtype,
    )  # fmt: skip


def _known(name: str) -> Machine | Gpu | None:
    """A machine by name, but for the two that are detected; "cuda" is a GPU whatever it is."""
    return None if name == "host" else host.any_machine(name)


def _cpu(machine: str | Machine | Gpu) -> str | Machine:
    assert not isinstance(machine, Gpu)
    return machine


def _chooser(plan: Plan | None, on: Machine | Gpu) -> cuda.Chooser:
    """The schedule of a product as the kernels see it: the given plan's, which fits any layout of its sizes, or the best one."""

    def choose(workload: Gemm) -> GpuSchedule:
        chosen = plan or _plan(workload, on)
        theirs, schedule = chosen.workload, chosen.schedule
        if not (isinstance(theirs, Gemm) and isinstance(schedule, GpuSchedule)):
            raise OperandError(f"the plan of {chosen.problem} is for {chosen.machine}; the arrays are multiplied on a GPU")
        sizes = (theirs.m, theirs.n, theirs.k, theirs.dtype)
        if sizes not in ((workload.m, workload.n, workload.k, workload.dtype), (workload.n, workload.m, workload.k, workload.dtype)):
            raise OperandError(f"the plan is for {chosen.problem}, but the arrays make {workload.text}")
        return schedule

    return choose


def _conv_chooser(plan: Plan | None, on: Machine | Gpu) -> cuda_conv.Chooser:
    """The schedule of a convolution that lies in a layout: the given plan's, or that of the best plan."""

    def choose(workload: Conv, layout: str) -> GpuConvSchedule:
        chosen = _fitting(plan, workload) or _plan(workload, on, cast("Layout", layout))
        if not isinstance(chosen.schedule, GpuConvSchedule):
            raise OperandError(f"the plan of {chosen.problem} is for {chosen.machine}; the arrays are convolved on a GPU")
        return cuda_conv.fitting(chosen.schedule, chosen.layout, layout)

    return choose


def _pair(value: Pair, name: str) -> tuple[int, ...]:
    pair = (value, value) if isinstance(value, int) else tuple(value)
    if len(pair) != 2 or not all(isinstance(item, int) for item in pair):
        raise OperandError(f"{name} is {value!r}; right is one whole number or (height, width)")
    return pair


_DTYPES = {"float32": "f32", "float64": "f64", "bfloat16": "bf16", "int8": "s8"}  # by the name of an array's dtype


def _dtype(plan: Plan | None, *arrays: Any) -> str:
    """The dtype of the problem that arrays make; uint16 carries bf16 where a plan says so."""
    names = {str(array.dtype) for array in arrays}
    if names == {"uint16"} and plan is not None and plan.workload.dtype == "bf16":
        return "bf16"
    if len(names) != 1 or not names <= _DTYPES.keys():
        bits = "; uint16 is taken for the bits of bf16 only with a plan or a problem text of that type" if "uint16" in names else ""
        right = f"the CPU kernels take {' or '.join(_DTYPES)}, the same for all"
        raise OperandError(f"the arrays are {' and '.join(sorted(names))}; {right}{bits}")
    return _DTYPES[names.pop()]


def _fitting(plan: Plan | None, workload: Workload) -> Plan | None:
    if plan is not None and plan.workload != workload:
        raise OperandError(f"the plan is for {plan.problem}, but the arrays make {workload.text}")
    return plan
