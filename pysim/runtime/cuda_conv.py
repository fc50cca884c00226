# SPDX-License-Identifier: Apache-2.0
"""Convolutions of arrays through the CUDA library.

    y[n][f][p][q] = act(sum over c, r, s of x[n][c][p stride + r dilation - pad][q stride + s dilation - pad] w[f][c][r][s] + bias[f])

Under NHWC the memory of x and y is [n][h][w][c] and that of w [f][r][s][c]. The arrays keep the shapes above; only their strides differ
(PyTorch's channels_last). Two kinds of device operands are copied: filters in another layout than the input's, and operands that are not
aligned to 16 bytes where a kernel loads them by TMA.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pysim.errors import OperandError
from pysim.problem.conv import Conv
from pysim.record.schedule import GpuSchedule
from pysim.registry.cuda import CONV_LAYOUTS, conv_kernel
from pysim.runtime import arrays, cuda
from pysim.runtime.arrays import Matrix
from pysim.runtime.cuda import Activation, Array
from pysim.runtime.cuda_call import PERMUTED, PreparedCall, call, check_bias, check_result, multiplied

Describe = Callable[[tuple[int, ...], tuple[int, ...], str], Conv]
Chooser = Callable[[Conv, str], GpuSchedule]


class _Options(NamedTuple):
    """The arguments of `conv2d` other than arrays."""

    describe: Describe
    choose: Chooser
    activation: Activation
    dtype: str | None


def conv2d(
    x: Any,
    w: Any,
    describe: Describe,
    choose: Chooser,
    bias: Any = None,
    activation: Activation = None,
    out: Any = None,
    dtype: str | None = None,
) -> Any:
    """act(conv(x, w) + bias) on the GPU, N C H W. The result is `out` or a new array of the library and layout of x.

    All arrays are CUDA arrays, or all are host arrays, which are copied. `describe` maps the shapes of x and w and the type of the
    multiplication to a problem; `choose` maps that and a layout to a schedule. Their results are cached per layout of the arrays, so equal
    functions must give equal results. `dtype`: the type of the multiplication if there is a choice ("tf32" for float32). Raises
    OperandError for arrays that do not fit.
    """

    def order(array: Array) -> tuple[int, ...]:
        """Host arrays are copied to the device in the layout of x."""
        last = array.ndim == np.ndim(x) == 4 and _layouts(arrays.view(np.asarray(x), "x")) == ["nhwc"]
        return PERMUTED if last else tuple(range(array.ndim))

    given = {"x": x, "w": w, "bias": bias, "out": out}
    return call(_make_ready, given, _Options(describe, choose, activation, dtype), order)


def lies(matrix: Matrix, layout: str) -> bool:
    """Whether a four-dimensional array is dense in a layout; strides of dimensions of size 1 are ignored."""
    order = range(4) if layout == "nchw" else PERMUTED
    step = 1
    for axis in reversed(order):
        if matrix.shape[axis] > 1 and matrix.strides[axis] != step:
            return False
        step *= matrix.shape[axis]
    return True


def _layouts(x: Matrix) -> list[str]:
    return [layout for layout in CONV_LAYOUTS if lies(x, layout)]


def _make_ready(seen: dict[str, Matrix], options: _Options, target: Matrix | None) -> PreparedCall:
    """Checks the arrays' layouts, and chooses the schedule for the layout of x and out."""
    x, w = seen["x"], seen["w"]
    layouts = _layouts_of(x, target)
    dtype = multiplied(x, w, options.dtype, ("x", "w"))
    problem = options.describe(x.shape, w.shape, dtype)
    result = target.dtype if target else cuda.result_of(dtype)
    check_result("convolution", dtype, result)
    check_bias(seen.get("bias"), problem.filters, "filter", result)
    shape = (problem.batch, problem.filters, problem.out_h, problem.out_w)
    schedule, layout = _chosen(options.choose, problem, layouts)
    if target and (target.shape != shape or not lies(target, layout)):
        have = f"{target.shape}, strides {target.strides}"
        raise OperandError(f"out has {have}; expected shape {shape} in {layout.upper()}, the layout of x")
    last = layout == "nhwc"
    row = conv_kernel(schedule.kernel)
    return PreparedCall(
        launch=cuda.Launch(problem, schedule, result=result, layout=layout),
        operands=("x", "w"),
        shape=tuple(shape[axis] for axis in PERMUTED) if last else shape,
        result=result,
        epilogue=cuda.epilogue_struct(1.0, 0.0, 0, options.activation),
        channels_last=last,
        converts_second=not lies(w, layout),
        alignment=row.alignment if row else 1,
    )


def _layouts_of(x: Matrix, target: Matrix | None) -> list[str]:
    """The layouts that x, and the result if given, both have; at least one."""
    if len(x.shape) != 4 or not all(x.shape):
        raise OperandError(f"x must be [N][C][H][W] with no size 0; its shape is {x.shape}")
    readable = _layouts(x)
    if not readable:
        raise OperandError(f"x of shape {x.shape} has strides {x.strides}: neither NCHW nor channels last; pass a contiguous copy")
    if target is None or len(target.shape) != 4:
        return readable
    return [layout for layout in readable if lies(target, layout)] or readable[:1]


def _chosen(choose: Chooser, problem: Conv, layouts: list[str]) -> tuple[GpuSchedule, str]:
    """The schedule and its layout: the first layout, or the second if x has both layouts and the plan is for the second."""
    first, *others = layouts
    try:
        return choose(problem, first), first
    except OperandError:
        if not others:
            raise
        return choose(problem, others[0]), others[0]


def fitting(schedule: GpuSchedule, layout: str, layout_of_x: str) -> GpuSchedule:
    """The schedule of a plan for `layout`. OperandError if x has another layout."""
    if layout != layout_of_x:
        raise OperandError(f"the plan is for {layout.upper()}, but x is {layout_of_x.upper()}; plan with layout={layout_of_x!r}")
    return schedule
