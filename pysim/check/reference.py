# SPDX-License-Identifier: Apache-2.0
"""Whether a contender computes the right thing: its operands, an independent reference, the verdict.

The reference is im2col by NumPy strides and a matrix product by NumPy's BLAS; it shares no code with the native
library.
1. Exact fill, every output, bit for bit. A batch repeats at most DISTINCT images in a scrambled order (a GEMM at most
   DISTINCT_ROWS rows of A), so that the reference costs the same for any batch and still every output is compared.
2. Random fill against float64 on `picked` windows (rows), within gamma_k |A||B|; every output must be finite. Exact
   fill cannot see a product rounded to fewer bits, random fill can; the windows that it picks do not matter for that.

s8 is exact on both fills. bf16 is compared with the sums of the numbers that its operands hold.

Worked number: 64 channels, 3x3, 64 filters: k = 576, so 150,000,000 / (576 * 64) = 4069 windows are picked, cut to
2048.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pysim.errors import OperandError
from pysim.measure.clock import (
    Array,
    Verdict,
    check_bound,
    check_exact,
    dtype_of,
    exact_fill,
    gamma,
    numbers_of,
    random_fill,
    result_from,
    result_of,
)
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.runtime.cpu import aligned

DISTINCT = 3
DISTINCT_ROWS = 64
PICKED_PRODUCTS = 150_000_000
MOST_PICKED, FEWEST_PICKED = 2048, 8
COLUMN_BYTES = 1 << 25  # im2col slice of the reference
CHUNK_ELEMENTS = 1 << 22  # outputs compared at a time

Make = Callable[[Array, Array], Callable[[], Array]]


class Shapes(NamedTuple):
    """Shapes of the operands (input or A, weights or B), of the result, and the length k of its sums."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    out: tuple[int, ...]
    k: int


class Trial(NamedTuple):
    """Operands and right answers of one workload, for any number of contenders. `order` says which image (row of A) of
    `exact_want` each image (row) of the exact-fill result repeats; `want` and `scale` = |A||B| belong to `picked`."""

    workload: Workload
    exact_x: Array
    exact_w: Array
    exact_want: Array
    order: Array
    x: Array
    w: Array
    picked: Array
    want: Array
    scale: Array


class Judgement(NamedTuple):
    """`max_error`: the largest |got - want| / (|A||B|) on the random fill; `call` is ready to be timed on that fill."""

    verdict: Verdict
    max_error: float
    call: Callable[[], Array]


def shapes(workload: Workload) -> Shapes:
    """The arrays that a workload takes and gives."""
    if isinstance(workload, Gemm):
        m, n, k = workload.m, workload.n, workload.k
        return Shapes((k, m) if workload.trans_a else (m, k), (n, k) if workload.trans_b else (k, n), (m, n), k)
    c = workload
    weights = (c.filters, c.channels // c.groups, c.kernel_h, c.kernel_w)
    out = (c.batch, c.filters, c.out_h, c.out_w)
    return Shapes((c.batch, c.channels, c.height, c.width), weights, out, math.prod(weights[1:]))


def bytes_of(workload: Workload) -> int:
    """Bytes of all operands and the result: what one call touches at least once."""
    s = shapes(workload)
    operands = dtype_of(workload.dtype).itemsize * (math.prod(s.x) + math.prod(s.w))
    return operands + result_of(workload.dtype).itemsize * math.prod(s.out)


def reference(workload: Workload, x: Array, w: Array) -> Array:
    """The result, in the precision of `x` and `w`, which are numbers (`numbers_of`); any number of images (rows of A) may be given.

    A convolution is computed image by image, im2col and matrix product. Raises OperandError for operands of other
    shapes.
    """
    expected = shapes(workload)
    axis = _row_axis(workload)
    others = tuple(size for i, size in enumerate(x.shape) if i != axis)
    if others != tuple(size for i, size in enumerate(expected.x) if i != axis) or w.shape != expected.w:
        right = f"{workload.text} wants {expected.x} and {expected.w}"
        raise OperandError(f"operands have shapes {x.shape} and {w.shape}; {right}")
    if isinstance(workload, Gemm):
        product: Array = (x.T if workload.trans_a else x) @ (w.T if workload.trans_b else w)
        return product
    return np.stack([_image(workload, image, w) for image in _padded(workload, x)])


def _row_axis(workload: Workload) -> int:
    """The axis of the input along which results are independent: images, or rows of op(A)."""
    return 1 if isinstance(workload, Gemm) and workload.trans_a else 0


def _padded(c: Conv, x: Array) -> Array:
    return np.pad(x, ((0, 0), (0, 0), (c.pad_top, c.pad_bottom), (c.pad_left, c.pad_right)))


def _image(c: Conv, image: Array, w: Array) -> Array:
    """One padded image [C][H][W] -> [M][P][Q], a few output rows at a time."""
    per_group = c.channels // c.groups
    filters = w.reshape(c.groups, c.filters // c.groups, -1)
    row_bytes = c.channels * c.kernel_h * c.kernel_w * c.out_w * image.itemsize
    step = max(1, COLUMN_BYTES // row_bytes)
    out = np.empty((c.filters, c.out_h, c.out_w), image.dtype)
    plane, row, column = image.strides
    taps = (c.dilation_h * row, c.dilation_w * column)
    for p in range(0, c.out_h, step):
        rows = min(step, c.out_h - p)
        windows = np.lib.stride_tricks.as_strided(
            image[:, p * c.stride_h :],
            (c.groups, per_group, c.kernel_h, c.kernel_w, rows, c.out_w),
            (per_group * plane, plane, *taps, c.stride_h * row, c.stride_w * column),
            writeable=False,
        )
        columns = windows.reshape(c.groups, filters.shape[2], rows * c.out_w)
        out[:, p : p + rows] = np.matmul(filters, columns).reshape(c.filters, rows, c.out_w)
    return out


def trial(workload: Workload, seed: int = 0) -> Trial:
    """Operands and right answers for `workload`; raises OperandError for a dtype that nothing here computes in."""
    s, dtype = shapes(workload), workload.dtype
    draw = np.random.default_rng(seed)
    axis = _row_axis(workload)
    count = s.x[axis]
    few = min(count, DISTINCT_ROWS if isinstance(workload, Gemm) else DISTINCT)
    order = np.concatenate([np.arange(few), draw.integers(0, few, count - few)])
    base = exact_fill((*s.x[:axis], few, *s.x[axis + 1 :]), s.k, dtype, seed)
    exact_x = aligned(s.x, dtype_of(dtype))
    np.take(base, order, axis=axis, out=exact_x, mode="clip")
    exact_w = exact_fill(s.w, s.k, dtype, seed + 1)
    x, w = random_fill(s.x, dtype, seed + 2), random_fill(s.w, dtype, seed + 3)
    picked = _picked(s, isinstance(workload, Gemm))
    want, scale = _picked_reference(workload, numbers_of(x, dtype), numbers_of(w, dtype), picked)
    exact_want = result_from(reference(workload, numbers_of(base, dtype), numbers_of(exact_w, dtype)), dtype)
    return Trial(workload, exact_x, exact_w, exact_want, order, x, w, picked, result_from(want, dtype), scale)


def _picked(s: Shapes, gemm: bool) -> Array:
    """Evenly spread indices of windows (over batch, P, Q) or of rows of C, the first and the last among them."""
    results = s.out[0] if gemm else s.out[0] * s.out[2] * s.out[3]
    per_result = s.k * s.out[1]
    count = min(results, max(FEWEST_PICKED, min(MOST_PICKED, PICKED_PRODUCTS // per_result)))
    return np.unique(np.linspace(0, results - 1, count).astype(np.int64))


def _picked_reference(workload: Workload, x: Array, w: Array, picked: Array) -> tuple[Array, Array]:
    """(A B, |A||B|) in float64 on the picked windows [windows][M] or rows [rows][n]."""
    if isinstance(workload, Gemm):
        a = (x.T if workload.trans_a else x)[picked].astype(np.float64)
        b = (w.T if workload.trans_b else w).astype(np.float64)
        return a @ b, np.abs(a) @ np.abs(b)
    c = workload
    n, p, q = np.unravel_index(picked, (c.batch, c.out_h, c.out_w))
    h = (p * c.stride_h)[:, None] + np.arange(c.kernel_h) * c.dilation_h
    v = (q * c.stride_w)[:, None] + np.arange(c.kernel_w) * c.dilation_w
    channels = np.arange(c.channels)
    taken = _padded(c, x)[n[:, None, None, None], channels[:, None, None], h[:, None, :, None], v[:, None, None, :]]
    columns = taken.astype(np.float64).reshape(len(picked), c.groups, -1).transpose(1, 2, 0)
    filters = w.astype(np.float64).reshape(c.groups, c.filters // c.groups, -1)
    want, scale = np.matmul(filters, columns), np.matmul(np.abs(filters), np.abs(columns))
    return want.reshape(c.filters, -1).T, scale.reshape(c.filters, -1).T


def judge(t: Trial, make: Make) -> Judgement:
    """Run what `make(x, w)` prepares on both fills; its `call` may be timed only where the verdict is passed."""
    dtype, k = t.workload.dtype, shapes(t.workload).k
    exact = _check_repeated(make(t.exact_x, t.exact_w)(), t)
    call = make(t.x, t.w)
    if not exact.passed:
        return Judgement(exact._replace(reason=f"exact fill: {exact.reason}"), math.nan, call)
    got = call()
    if not np.isfinite(got).all():
        reason = "random fill: a result is NaN, infinite or was never written"
        return Judgement(Verdict("failed", math.nan, reason), math.nan, call)
    sampled = got[t.picked] if isinstance(t.workload, Gemm) else _windows(got, t.picked)
    rounded = gamma(k, dtype)
    bound = (rounded + gamma(k, "f64")) * t.scale if rounded else 0.0  # the reference's own rounding included
    verdict = check_bound(sampled, t.want, bound)
    error = float(np.max(np.abs(sampled - t.want) / np.maximum(t.scale, np.finfo(np.float64).tiny)))
    return Judgement(verdict._replace(reason=verdict.reason and f"random fill: {verdict.reason}"), error, call)


def _windows(out: Array, picked: Array) -> Array:
    """[N][M][P][Q] -> [windows][M]."""
    n, p, q = np.unravel_index(picked, (out.shape[0], *out.shape[2:]))
    taken: Array = out[n, :, p, q]
    return taken


def _check_repeated(got: Array, t: Trial) -> Verdict:
    """`check_exact` of the whole result against the distinct answers, some images or rows at a time."""
    expected = shapes(t.workload).out
    if got.shape != expected:
        return Verdict("failed", math.nan, f"the result has shape {got.shape}, right is {expected}")
    step = max(1, CHUNK_ELEMENTS // math.prod(expected[1:]))
    worst = 0.0
    for first in range(0, expected[0], step):
        rows = slice(first, first + step)
        verdict = check_exact(got[rows], t.exact_want[t.order[rows]])
        if not verdict.passed:
            return verdict._replace(reason=f"{verdict.reason}, counted from {first} on the first axis")
        worst = max(worst, verdict.error)
    return Verdict("passed", worst)
