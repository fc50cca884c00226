# SPDX-License-Identifier: Apache-2.0
"""Matrix products of arrays through the CUDA library."""

from collections.abc import Callable
from typing import Any, NamedTuple

from pysim.errors import OperandError
from pysim.problem.gemm import Gemm
from pysim.record.schedule import GpuSchedule
from pysim.runtime import arrays, cuda
from pysim.runtime.arrays import Matrix
from pysim.runtime.cuda import Activation, Array
from pysim.runtime.cuda_call import PreparedCall, call, check_bias, check_result, multiplied

Chooser = Callable[[Gemm], GpuSchedule]


class _Options(NamedTuple):
    """The arguments of `gemm` other than arrays."""

    choose: Chooser
    alpha: float
    beta: float
    trans_a: bool
    trans_b: bool
    activation: Activation
    dtype: str | None


def gemm(
    a: Any,
    b: Any,
    choose: Chooser,
    c: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    trans_a: bool = False,
    trans_b: bool = False,
    bias: Any = None,
    activation: Activation = None,
    out: Any = None,
    dtype: str | None = None,
) -> Any:
    """act(alpha op(a) op(b) + beta c + bias) on the GPU. The result is `out` or a new array of the library of a.

    All arrays are CUDA arrays, or all are host arrays, which are copied. Row- and column-major matrices, so also transposed views, are used
    in place. `dtype`: the type of the multiplication if there is a choice ("tf32" for float32, "f8" for uint8 bytes). `choose` maps the
    product that the kernel computes to a schedule. Its results are cached per layout of the operands, so equal choosers must choose
    alike. Raises OperandError for arrays that do not fit.
    """
    given = {"a": a, "b": b, "c": c if beta else None, "bias": bias, "out": out}
    return call(_make_ready, given, _Options(choose, alpha, beta, trans_a, trans_b, activation, dtype), _order)


def _order(x: Array) -> tuple[int, ...]:
    """The axis order of the device copy: column-major if the host matrix is, else row-major."""
    column_major = x.ndim == 2 and x.flags.f_contiguous and not x.flags.c_contiguous
    return (1, 0) if column_major else tuple(range(x.ndim))


def _make_ready(seen: dict[str, Matrix], options: _Options, target: Matrix | None) -> PreparedCall:
    """Checks the operands' layouts, and chooses the schedule. A column-major out is computed as C^T = op(B)^T op(A)^T."""
    a, b, c = _contiguous(seen["a"], "a"), _contiguous(seen["b"], "b"), seen.get("c")
    how = multiplied(a, b, options.dtype, ("a", "b"))
    if options.beta != 0 and c is None:
        raise OperandError(f"beta is {options.beta}, so c must be given")
    if how == "s8" and not (float(options.alpha).is_integer() and float(options.beta).is_integer()):
        raise OperandError(f"alpha is {options.alpha} and beta is {options.beta}; for s8, whose result is exact, both are whole numbers")
    (k, m), (n, depth) = a.shape[:: 1 if options.trans_a else -1], b.shape[:: 1 if options.trans_b else -1]
    if k != depth:
        raise OperandError(f"op(a) has {k} columns but op(b) has {depth} rows; expected equal numbers")
    result = target.dtype if target else c.dtype if c else cuda.result_of(how)
    check_result("product", how, result)
    layout = _layout_of_result(target, (m, n))
    if c and (c.shape != (m, n) or c.dtype != result):
        raise OperandError(f"c is {c.dtype} of shape {c.shape}, but the result is {result} of shape {(m, n)}")
    check_bias(seen.get("bias"), n, "column", result)
    if layout.transposed and "bias" in seen:
        raise OperandError("a column-major out takes no bias, which is one value per column: give a row-major out")
    lies = [x.layout or arrays.Layout(False, 0) for x in (a, b)]
    flags = [flag != one.transposed for flag, one in zip((options.trans_a, options.trans_b), lies, strict=True)]
    names, pitches = ("a", "b"), (lies[0].pitch, lies[1].pitch, layout.pitch)
    workload = Gemm(m=m, n=n, k=k, trans_a=flags[0], trans_b=flags[1], dtype=how)
    if layout.transposed:
        workload = Gemm(m=n, n=m, k=k, trans_a=not flags[1], trans_b=not flags[0], dtype=how)
        names, pitches = ("b", "a"), (lies[1].pitch, lies[0].pitch, layout.pitch)
    epilogue = cuda.epilogue_struct(options.alpha, options.beta, 0, options.activation)
    first, second = (seen[name].pointer for name in names)
    launch = cuda.Launch(workload, options.choose(workload), result=result, pitches=pitches, first=first, second=second)
    return PreparedCall(launch, names, (m, n), result, epilogue)


def _layout_of_result(target: Matrix | None, shape: tuple[int, int]) -> arrays.Layout:
    layout = target.layout if target and len(target.shape) == 2 else arrays.Layout(False, shape[1])
    if target and (target.shape != shape or layout is None):
        have = f"{target.shape}, strides {target.strides}"
        raise OperandError(f"out has {have}; expected a matrix of shape {shape} with contiguous rows or columns")
    assert layout is not None
    return layout


def _contiguous(x: Matrix, name: str) -> Matrix:
    if len(x.shape) != 2:
        raise OperandError(f"{name} must be a matrix; its shape is {x.shape}")
    if not all(x.shape):
        raise OperandError(f"{name} has shape {x.shape}; no size may be 0")
    if x.layout is None:
        raise OperandError(f"{name} has strides {x.strides}: neither its rows nor its columns are contiguous; pass a contiguous copy")
    return x
