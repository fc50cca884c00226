# SPDX-License-Identifier: Apache-2.0
"""Operands of one problem and their correct results, by a reference that shares no code with the kernels.

The reference is im2col by NumPy strides and a matrix product by NumPy's BLAS. Results have axes [N][M][P][Q]
(of a product [m][n], of volumes [N][M][O][P][Q]) in any memory layout.
1. Exact fill, every output. A batch repeats at most DISTINCT images in random order (a product at most DISTINCT_ROWS rows of A), so the
   reference costs the same for any batch and every output is still compared.
2. Random fill in float64 on `picked` windows (rows). Unlike the exact fill it detects products rounded to fewer bits, in any windows. On a
   GPU plain loops on the device also compute every element (`everywhere`).

Worked number: 64 channels, 3x3, 64 filters: k = 576, so 150,000,000 / (576 * 64) = 4069 windows are picked, cut to 2048.
"""

import itertools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pysim.algorithms.interface import DIRECT_SUM
from pysim.check.bounds import Sums, allowed, exact_growth, sums_of
from pysim.check.fills import Array, exact_fill, held, numbers, random_fill
from pysim.errors import OperandError, PysimError
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.runtime.cpu import aligned

DISTINCT, DISTINCT_ROWS = 3, 64
PICKED_PRODUCTS = 150_000_000
MAX_PICKED, MIN_PICKED = 2048, 8
COLUMN_BYTES = 1 << 25  # im2col slice of the reference
MEMORY = Path("/proc/meminfo")

Pair = tuple[Array, Array]


class Shapes(NamedTuple):
    """Shapes of the operands (input or A, weights or B), of the result, and the length k of its sums."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    out: tuple[int, ...]
    k: int


class Repeated(NamedTuple):
    """A result whose element i along the first axis is distinct[order[i]]."""

    distinct: Array
    order: Array

    def rows(self, at: slice) -> Array:
        taken: Array = self.distinct[self.order[at]]
        return taken


class Picked(NamedTuple):
    """Numbers of windows (over N, P, Q, of volumes N, O, P, Q) or of rows of a product, with A B (`want`) and |A||B| (`scale`)
    there in float64, each [window][M] or [row][n]."""

    at: Array
    want: Array
    scale: Array

    def of(self, result: Array) -> Array:
        """The same windows of a result."""
        if result.ndim == 2:
            return result[self.at]
        n, *window = np.unravel_index(self.at, (result.shape[0], *result.shape[2:]))
        taken: Array = np.moveaxis(result, 1, -1)[(n, *window)]
        return taken


class Trial(NamedTuple):
    """Operands (x, w) of both fills and their correct results, for any number of candidates."""

    workload: Workload
    sums: Sums
    exact: Pair
    random: Pair
    want: Repeated  # of the exact fill
    picked: Picked  # of the random one

    @property
    def nbytes(self) -> int:
        """Bytes of operands and result, all of which a call touches."""
        return sum(array.nbytes for array in self.random) + self.sums.result.itemsize * math.prod(shapes(self.workload).out)


def shapes(workload: Workload) -> Shapes:
    """The shapes of a workload's operands and result."""
    if isinstance(workload, Gemm):
        m, n, k = workload.m, workload.n, workload.k
        return Shapes((k, m) if workload.trans_a else (m, k), (n, k) if workload.trans_b else (k, n), (m, n), k)
    c = workload
    return Shapes(c.input_shape, c.filter_shape, c.output_shape, c.products)


def trial(workload: Workload, result: np.dtype[Any], on_gpu: bool = False, seed: int = 0) -> Trial:
    """Operands and correct results of a workload with results of type `result`; OperandError for a type without fills."""
    s, dtype = shapes(workload), workload.dtype
    _check_memory(workload, 2 * held(dtype).itemsize * (math.prod(s.x) + math.prod(s.w)) + result.itemsize * math.prod(s.out))
    draw, axis, growth = np.random.default_rng(seed), _row_axis(workload), exact_growth(workload)
    count = s.x[axis]
    few = min(count, DISTINCT_ROWS if isinstance(workload, Gemm) else DISTINCT)
    order = np.concatenate([np.arange(few), draw.integers(0, few, count - few)])
    base, w = exact_fill((*s.x[:axis], few, *s.x[axis + 1 :]), s.k, dtype, seed, growth), exact_fill(s.w, s.k, dtype, seed + 1, growth)
    x = np.take(base, order, axis=axis, out=aligned(s.x, held(dtype)), mode="clip")
    want = Repeated(as_result(reference(workload, numbers(base), numbers(w)), result), order)
    random = random_fill(s.x, dtype, seed + 2), random_fill(s.w, dtype, seed + 3)
    return Trial(workload, sums_of(dtype, s.k, result, on_gpu), (x, w), random, want, picked(workload, *random))


def _check_memory(workload: Workload, nbytes: int) -> None:
    """OperandError if exact and random operands with an output do not fit into memory: Linux grants more than it has, and later kills a
    process."""
    try:
        found = re.search(r"MemAvailable: +([0-9]+) kB", MEMORY.read_text())
    except OSError:  # not Linux
        return
    free = 1024 * int(found[1]) if found else nbytes
    if nbytes > free:
        needs = f"the operands and results of its check take {nbytes / 1e9:.1f} GB, and {free / 1e9:.1f} GB of memory are free"
        raise OperandError(f"{workload.text} is too large for this computer: {needs}")


def as_result(sums: Array, result: np.dtype[Any]) -> Array:
    """Sums in the result's type; integers wrap at 32 bits."""
    return sums.astype(np.int64).astype(result) if result.kind == "i" else sums.astype(result, copy=False)


# The whole result


def reference(workload: Workload, x: Array, w: Array) -> Array:
    """The result, in the precision of `x` and `w`, which are `numbers`; any number of images (rows of A) may be given.

    A convolution is computed image by image, im2col and matrix product. OperandError for operands of other shapes.
    """
    expected, axis = shapes(workload), _row_axis(workload)
    if x.shape[:axis] + x.shape[axis + 1 :] != expected.x[:axis] + expected.x[axis + 1 :] or w.shape != expected.w:
        right = f"{workload.text} wants {expected.x} and {expected.w}"
        raise OperandError(f"operands have shapes {x.shape} and {w.shape}; {right}")
    if isinstance(workload, Gemm):
        product: Array = (x.T if workload.trans_a else x) @ (w.T if workload.trans_b else w)
        return product
    return np.stack([_image(workload, image, w) for image in _padded(workload, x)]).reshape(len(x), *expected.out[1:])


def _row_axis(workload: Workload) -> int:
    """The axis of the input along which results are independent: images, or rows of op(A)."""
    return 1 if isinstance(workload, Gemm) and workload.trans_a else 0


def _padded(c: Conv, x: Array) -> Array:
    """Padded volumes, [N][C][D][H][W]."""
    volumes = x.reshape(*x.shape[:2], *(1,) * (5 - x.ndim), *x.shape[2:])
    return np.pad(volumes, ((0, 0), (0, 0), *((axis.before, axis.after) for axis in (c.slices, c.rows, c.columns))))


def _image(c: Conv, image: Array, w: Array) -> Array:
    """One padded volume [C][D][H][W] -> [M][O][P][Q], a few output rows at a time."""
    per_group = c.channels // c.groups
    filters = w.reshape(c.groups, c.filters // c.groups, -1)
    row_bytes = c.channels * c.taps * c.out_w * image.itemsize
    step = max(1, COLUMN_BYTES // row_bytes)
    out = np.empty((c.filters, c.out_d, c.out_h, c.out_w), image.dtype)
    plane, slice_, row, column = image.strides
    taps = (c.dilation_d * slice_, c.dilation_h * row, c.dilation_w * column)
    for o, p in itertools.product(range(c.out_d), range(0, c.out_h, step)):
        rows = min(step, c.out_h - p)
        windows = np.lib.stride_tricks.as_strided(
            image[:, o * c.stride_d :, p * c.stride_h :],
            (c.groups, per_group, c.kernel_d, c.kernel_h, c.kernel_w, rows, c.out_w),
            (per_group * plane, plane, *taps, c.stride_h * row, c.stride_w * column),
            writeable=False,
        )
        columns = windows.reshape(c.groups, filters.shape[2], rows * c.out_w)
        out[:, o, p : p + rows] = np.matmul(filters, columns).reshape(c.filters, rows, c.out_w)
    return out


# Some of it in float64


def picked(workload: Workload, x: Array, w: Array) -> Picked:
    """Evenly spread windows (rows of C), the first and the last included, with their correct values."""
    s = shapes(workload)
    results = s.out[0] * math.prod(s.out[2:])
    count = min(results, max(MIN_PICKED, min(MAX_PICKED, PICKED_PRODUCTS // (s.k * s.out[1]))))
    at = np.unique(np.linspace(0, results - 1, count).astype(np.int64))
    return Picked(at, *_in_float64(workload, numbers(x), numbers(w), at))


def _in_float64(workload: Workload, x: Array, w: Array, at: Array) -> Pair:
    """(A B, |A||B|) at these windows or rows."""
    if isinstance(workload, Gemm):
        a = (x.T if workload.trans_a else x)[at].astype(np.float64)
        b = (w.T if workload.trans_b else w).astype(np.float64)
        return a @ b, np.abs(a) @ np.abs(b)
    c = workload
    n, *places = np.unravel_index(at, (c.batch, c.out_d, c.out_h, c.out_w))
    axes = zip(places, (c.slices, c.rows, c.columns), strict=True)
    d, h, v = ((place * axis.stride)[:, None] + np.arange(axis.kernel) * axis.dilation for place, axis in axes)
    channels = np.arange(c.channels)[:, None, None, None]
    taken = _padded(c, x)[
        n[:, None, None, None, None], channels, d[:, None, :, None, None], h[:, None, None, :, None], v[:, None, None, None]
    ]
    columns = taken.astype(np.float64).reshape(len(at), c.groups, -1).transpose(1, 2, 0)
    filters = w.astype(np.float64).reshape(c.groups, c.filters // c.groups, -1)
    want, scale = np.matmul(filters, columns), np.matmul(np.abs(filters), np.abs(columns))
    return want.reshape(c.filters, -1).T, scale.reshape(c.filters, -1).T


# All of it, by a device


def everywhere(t: Trial, loops: Callable[[Array, Array], Array]) -> Pair:
    """(A B, |A||B|) of the random fill at every element in the result's type, by plain loops on the device, checked against NumPy.

    `loops` copies the given operands to where candidates read theirs, so the random fill itself is passed last. PysimError where the loops
    are wrong, since then nothing can be checked.
    """
    x, w = t.random
    scale = loops(np.abs(x), np.abs(w))
    want = loops(x, w)
    off = np.abs(t.picked.of(want).astype(np.float64) - t.picked.want)
    if not (off <= allowed(DIRECT_SUM, t.sums, t.picked.want, t.picked.scale)).all():
        raise PysimError(f"{t.workload.text}: the plain loops on the device do not give NumPy's result; nothing is timed")
    return want, scale
