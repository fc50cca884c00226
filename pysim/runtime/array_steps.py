# SPDX-License-Identifier: Apache-2.0
"""Operators on arrays of any shape, run by the native library (`native/operators/arrays.c`): pairs of elements, rows (softmax, layer
norms), table lookups, batches of products.

Each is a `Step`, which is called to run. Types: float32 or float64.
"""

from typing import Any, NamedTuple

import numpy as np

from pysim.arguments import Activation
from pysim.problem.gemm import Gemm
from pysim.record.schedule import Schedule
from pysim.registry.cpu import rows_kinds
from pysim.runtime.cpu import Array, check, epilogue_struct, library, problem_struct, schedule_struct
from pysim.runtime.operators import NATIVE_DTYPES, as_floats, takes
from pysim.runtime.steps import Step, pointer, step_of

PAIRS = {"Add": 0, "Sub": 1, "Mul": 2, "Div": 3, "Choose": 4}  # pysim_pair_kind
_PAIR_AXES, _PRODUCT_AXES = 6, 4
Axis = tuple[int, ...]  # its size, then the stride of each array along it


def dtype_of(array: Array) -> int:
    return int(getattr(library()[1], NATIVE_DTYPES[array.dtype]))


def merged_axes(shape: tuple[int, ...], *arrays: Array) -> list[Axis]:
    """Sizes and strides in elements, with adjacent axes merged where all strides allow it. All arrays have this shape."""
    merged: list[Axis] = []
    for size, *steps in zip(shape, *([by // x.dtype.itemsize for by in x.strides] for x in arrays), strict=True):
        if size == 1:
            continue
        if merged and all(before == size * step for before, step in zip(merged[-1][1:], steps, strict=True)):
            merged[-1] = (merged[-1][0] * size, *steps)
        else:
            merged.append((size, *steps))
    return merged or [(1, *[1] * len(arrays))]


def pair_step(out: Array, a: Array, b: Array, kind: str, activation: Activation = None) -> Step | None:
    """out = act(a kind b), broadcast as in NumPy. out is dense, and may be a or b if that is dense. Choose: out = a where b is
    true; elsewhere it stays. None: these arrays are unsupported."""
    kinds = out.dtype, np.dtype(np.bool_) if kind == "Choose" else out.dtype
    fits = takes(out) and (a.dtype, b.dtype) == kinds and a.size and b.size
    if not fits or any(by < 0 for x in (a, b) for by in x.strides):
        return None
    left, right = (np.broadcast_to(x, out.shape) for x in (a, b))
    axes = merged_axes(out.shape, left, right)
    if len(axes) > _PAIR_AXES:
        return None
    sizes, *steps = ([*column] for column in zip(*axes, strict=True))
    how = library()[0].new("pysim_pair *", [sizes, *steps, len(axes), PAIRS[kind], dtype_of(out)])
    return step_of("PAIR", how, out, a, b, epilogue=epilogue_struct(1.0, 0.0, None, activation, None))


class Local(NamedTuple):
    """The factor of rows of kind `local`: (bias + alpha sum)^-beta, where sum adds the squares of `window` elements."""

    window: int
    alpha: float
    beta: float


ALONE = Local(1, 0.0, 0.0)


def rows_step(
    out: Array,
    x: Array,
    kind: str,
    scale: Array | None = None,
    shift: Array | None = None,
    epsilon: float = 0.0,
    axis: int = -1,
    local: Local = ALONE,
) -> Step | None:
    """Operators on the rows of x along an axis: softmax, log_softmax, `standard` (with scale and shift), length, or local (`epsilon` is its
    bias). A length is along the last axis. None if these arrays are unsupported."""
    of = [one for one in (scale, shift) if one is not None]
    if not takes(out, x, *of) or any(one.shape != (x.shape[axis],) for one in of):
        return None
    size, inner = x.shape[axis], int(np.prod(x.shape[axis % x.ndim + 1 :], dtype=np.int64))
    sizes = [x.size // size // inner, size, inner, local.window]
    how = library()[0].new("pysim_rows *", [*sizes, epsilon, local.alpha, local.beta, rows_kinds()[kind][0], dtype_of(x)])
    return step_of("ROWS", how, out, x, scale, shift)


def take_step(out: Array, x: Array, at: Array, axis: int, shares: Array | None = None) -> Step | None:
    """out = x.take(at, axis). With shares, which have the shape of `at`: the sum over the rows of `at` of the elements taken times their
    shares. Negative indices count from the end. None if these arrays are unsupported."""
    out, x = as_floats(out, x) if shares is None else (out, x)
    fits = at.dtype == np.int64 and at.flags.c_contiguous and at.size > 0 and (shares is None or takes(out, shares))
    if not fits or not takes(out, x):
        return None
    outer, inner = (int(np.prod(sizes, dtype=np.int64)) for sizes in (x.shape[:axis], x.shape[axis + 1 :]))
    taps = 1 if shares is None else len(shares)
    how = library()[0].new("pysim_take *", [outer, x.shape[axis], inner, at.size // taps, taps, dtype_of(x)])
    return step_of("TAKE", how, out, x, at, shares)


def take_each_step(out: Array, x: Array, at: Array, axis: int) -> Step | None:
    """out[i, j, ...] = x[..., at[i, j, ...], ...]: each element has an index along the axis. None if these arrays are unsupported."""
    out, x = as_floats(out, x)
    others = [sizes[:axis] + sizes[axis + 1 :] for sizes in (x.shape, at.shape)]
    if at.dtype != np.int64 or not at.flags.c_contiguous or not at.size or others[0] != others[1] or not takes(out, x):
        return None
    outer, inner = (int(np.prod(sizes, dtype=np.int64)) for sizes in (x.shape[:axis], x.shape[axis + 1 :]))
    how = library()[0].new("pysim_take *", [outer, x.shape[axis], inner, at.shape[axis], 0, dtype_of(x)])
    return step_of("TAKE", how, out, x, at)


class Products:
    """C = alpha A B over the last two axes of arrays; the other axes are a batch. `workload` is the product to plan, or None if A, B or C
    has neither contiguous rows nor contiguous columns."""

    def __init__(self, out: Array, a: Array, b: Array) -> None:
        self.out, self.a, self.b = out, a, b
        self.workload: Gemm | None = None
        arrays, item = (out, a, b), out.dtype.itemsize
        if out.dtype not in NATIVE_DTYPES or any(x.dtype != out.dtype or x.ndim < 2 or not x.size or min(x.strides) < 0 for x in arrays):
            return
        batch = out.shape[:-2]
        seen = [np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b)]
        orders = [_order(x.shape[-2:], [by // item for by in x.strides[-2:]]) for x in (a, b, out)]
        matrices = [x[(..., 0, 0)] for x in (*seen, out)]
        self._axes = merged_axes(batch, *matrices)
        left, right, result = orders
        if left is None or right is None or result is None or result[0] or len(self._axes) > _PRODUCT_AXES:
            return
        self._pitches = left[1], right[1], result[1]
        (m, k), n = a.shape[-2:], b.shape[-1]
        self.workload = Gemm(m=m, n=n, k=k, trans_a=left[0], trans_b=right[0], dtype="f64" if item == 8 else "f32")

    @property
    def count(self) -> int:
        return int(np.prod(self.out.shape[:-2], dtype=np.int64))

    def workspace_bytes(self, schedule: Schedule, threads: int) -> int:
        ffi, lib = library()
        size = ffi.new("int64_t *")
        assert self.workload is not None
        check(lib.pysim_workspace_bytes(self._problem(), schedule_struct(schedule, self.workload), threads, size))
        return int(size[0])

    def _problem(self) -> Any:
        assert self.workload is not None
        problem = problem_struct(self.workload)
        problem.gemm.lda, problem.gemm.ldb, problem.gemm.ldc = self._pitches
        return problem

    def step(self, schedule: Schedule, threads: int, workspace: Array, alpha: float = 1.0) -> Step:
        out, a, b, problem = self.out, self.a, self.b, self._problem()
        counts, *steps = ([*column] for column in zip(*self._axes, strict=True))
        how = library()[0].new("pysim_products *", [problem, counts, *steps, len(self._axes)])
        room = {"workspace": pointer(workspace), "workspace_bytes": workspace.nbytes}
        assert self.workload is not None
        epilogue, obeyed = epilogue_struct(alpha, 0.0, None, None, None), schedule_struct(schedule, self.workload)
        return step_of("PRODUCTS", how, out, a, b, keep=(problem, workspace), schedule=obeyed, epilogue=epilogue, threads=threads, **room)


def _order(shape: tuple[int, ...], steps: list[int]) -> tuple[bool, int] | None:
    """(whether a matrix is stored transposed, pitch of its rows or columns in elements); None if neither are contiguous."""
    (rows, columns), (down, along) = shape, steps
    if (along == 1 or columns == 1) and (down >= columns or rows == 1):
        return False, max(down, columns)
    if (down == 1 or rows == 1) and (along >= rows or columns == 1):
        return True, max(along, rows)
    return None
