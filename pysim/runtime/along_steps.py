# SPDX-License-Identifier: Apache-2.0
"""Operators along an axis, of halves, samples and recurrent layers, run by the native library (`native/operators/along.c`, `recurrent.c`).

Each is a `Step`, which is called to run. Types: float32 or float64, but for halves.
"""

from typing import Any, NamedTuple

import numpy as np

from pysim.runtime.array_steps import dtype_of
from pysim.runtime.cpu import Array, aligned, check, library
from pysim.runtime.operators import BITS, takes
from pysim.runtime.steps import Step, pointer, step_of

# pysim_fold_kind
FOLDS = {"Sum": 0, "Mean": 1, "Prod": 2, "Max": 3, "Min": 4, "ArgMax": 5, "ArgMin": 6, "CumSum": 7}
PADDINGS = {b"zeros": 0, b"border": 1, b"reflection": 2}  # pysim_padding
CELLS = {"RNN": 0, "LSTM": 1, "GRU": 2}  # pysim_recurrent_kind


class Axis(NamedTuple):
    """An array [outer][size][inner], of which `size` is the axis."""

    outer: int
    size: int
    inner: int


def fold_step(
    out: Array, x: Array, axis: Axis, kind: str, last: bool = False, exclusive: bool = False, backward: bool = False
) -> Step | None:
    """Folds x along an axis, or finds places (int64), or makes running sums. None if the arrays are unsupported."""
    if not takes(x) or out.dtype != (np.int64 if kind.startswith("Arg") else x.dtype) or not out.flags.c_contiguous:
        return None
    how = library()[0].new("pysim_fold *", [*axis, FOLDS[kind], last, exclusive, backward, dtype_of(x)])
    return step_of("FOLD", how, out, x)


def best_step(values: Array, places: Array, x: Array, largest: bool) -> Step | None:
    """The largest or smallest elements of the rows of x, in order, and their places."""
    if not takes(values, x) or places.dtype != np.int64 or not places.flags.c_contiguous:
        return None
    size, count = x.shape[-1], values.shape[-1]
    how = library()[0].new("pysim_best *", [x.size // size, size, count, not largest, dtype_of(x)])
    return step_of("BEST", how, values, x, third=places)


_HALVES = {np.dtype(np.float16): "PYSIM_F16", BITS: "PYSIM_BF16"}


def halves_step(out: Array, x: Array) -> Step | None:
    """float16 or the bits of bf16 as float32, or float32 rounded to these; None for other types."""
    rounds, kind = (True, _HALVES.get(out.dtype)) if x.dtype == np.float32 else (False, _HALVES.get(x.dtype))
    if kind is None or (x if rounds else out).dtype != np.float32 or not x.size or not x.flags.c_contiguous or not out.flags.c_contiguous:
        return None
    return step_of("HALVES", library()[0].new("pysim_halves *", [x.size, rounds, getattr(library()[1], kind)]), out, x)


class Halves:
    """The same of any dense arrays of `count` elements of one type (float16, or bits of bf16 as BITS). `rounds`: to that type, from
    float32. Any thread may call it."""

    def __init__(self, kind: "np.dtype[Any]", count: int, rounds: bool) -> None:
        ffi, lib = library()
        self._how = ffi.new("pysim_halves *", [count, rounds, getattr(lib, _HALVES[kind])])
        self._cast, self._run = ffi.cast, lib.pysim_run_halves
        self._count = count

    def __call__(self, x: Array, out: Array) -> None:
        if self._count:
            check(self._run(self._how, *(self._cast("void *", one.__array_interface__["data"][0]) for one in (x, out))))


def sample_step(out: Array, x: Array, grid: Array, nearest: bool, padding: bytes, aligned: bool) -> Step | None:
    """Samples of images x (N, C, H, W) at points (N, rows, columns, 2)."""
    if not takes(out, x, grid):
        return None
    sizes = [*x.shape, grid.shape[1] * grid.shape[2]]
    how = library()[0].new("pysim_sample *", [*sizes, PADDINGS[padding], nearest, aligned, dtype_of(x)])
    return step_of("SAMPLE", how, out, x, grid)


class Sequence(NamedTuple):
    """One direction of a recurrent layer. `sums` (steps, batch, gates hidden), `y` (steps, batch, hidden), the initial and last states
    (batch, hidden) may lie in larger arrays, but their last axis is dense."""

    sums: Array
    weights: Array  # packed (`packed_panels`)
    bias: Array | None
    y: Array | None
    first: tuple[Array | None, Array | None]
    last: tuple[Array | None, Array | None]


def recurrent_step(of: Sequence, op: str, separate: bool, is_backward: bool, hidden: int) -> Step:
    steps, batch, _ = of.sums.shape
    item, states = of.sums.dtype.itemsize, [one for one in (*of.first, *of.last) if one is not None]
    apart = [by // item for by in of.sums.strides[:2]] + ([by // item for by in of.y.strides[:2]] if of.y is not None else [hidden, hidden])
    apart += [states[0].strides[0] // item if states else hidden]
    null = library()[0].NULL
    about = [null if one is None else pointer(one) for one in (of.bias, *of.first, *of.last)]
    flags = [CELLS[op], separate, is_backward, dtype_of(of.sums)]
    ffi, lib = library()
    how, size = ffi.new("pysim_recurrent *", [steps, batch, hidden, *apart, *about, *flags]), ffi.new("int64_t *")
    check(lib.pysim_recurrent_workspace_bytes(how, size))
    workspace = aligned(int(size[0]), np.uint8)
    room = {"workspace": pointer(workspace), "workspace_bytes": workspace.nbytes}
    step = Step("RECURRENT", of=how, first=pointer(of.sums), second=pointer(of.weights), result=pointer(of.y), **room)
    step.keep(*of[:4], *of.first, *of.last, workspace)
    step.elsewhere = [(how, name) for name in ("h", "c", "last_h", "last_c")]
    return step


def packed_panels(weights: Array) -> Array:
    """Weights R' (gates, hidden, hidden), whose last axis are the columns of a product, in panels of columns."""
    gates, rows, columns = weights.shape
    panel = library()[1].PYSIM_PANEL
    count = -(-columns // panel)
    padded = np.zeros((gates, rows, count * panel), weights.dtype)
    padded[..., :columns] = weights
    return np.ascontiguousarray(padded.reshape(gates, rows, count, panel).transpose(0, 2, 1, 3))
