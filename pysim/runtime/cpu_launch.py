# SPDX-License-Identifier: Apache-2.0
"""Launches of products and convolutions on the CPU, and the workspaces that calls borrow.

A Launch has the structs and sizes of one problem under one schedule, and no arrays: `run` computes, `step` binds a run to its arrays.
`Prepared` adds prepared weights. A run borrows its workspace, so any number of threads may use one launch. All checks precede the first
write to the caller's arrays.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import msgspec
import numpy as np

from pysim.arguments import Activation, refuse_inexact
from pysim.errors import OperandError
from pysim.problem.conv import Conv
from pysim.problem.text import Workload
from pysim.record.integers import Integers
from pysim.record.plan import Layout, Plan, blocks_of, lying, on_cpu
from pysim.record.schedule import Schedule
from pysim.runtime.cpu import (
    LOCAL,
    NUMPY_DTYPES,
    Array,
    Executor,
    addend,
    aligned,
    as_numpy,
    check,
    check_apart,
    epilogue_struct,
    is_dense,
    library,
    like,
    open_job,
    operand,
    output,
    problem_struct,
    rounding_once,
    schedule_struct,
    stored_dtype,
    types_of,
)
from pysim.runtime.emulated import executor_for
from pysim.runtime.steps import Step

_LINE = 64  # bytes of a cache line
_IDLE_BYTES = 256 << 20  # of workspaces kept between calls
_ndarray = np.ndarray  # looking up a global takes half the time


class Workspaces:
    """Buffers that calls borrow. About `idle_bytes` of returned buffers are kept."""

    def __init__(self, idle_bytes: int) -> None:
        self.idle_bytes = idle_bytes
        # A stack of (bytes of this buffer and of all below it, buffer): the buffer returned last is the warmest in the caches
        self._idle: list[tuple[int, Any]] = []

    def take(self, nbytes: int) -> Any:
        """A cffi buffer of at least `nbytes`."""
        try:
            _, buffer = self._idle.pop()
        except IndexError:
            return self._make(nbytes)
        return buffer if len(buffer) >= nbytes else self._make(nbytes)

    def _make(self, nbytes: int) -> Any:
        return library()[0].from_buffer(aligned(nbytes, np.uint8))

    def give(self, buffer: Any) -> None:
        idle = self._idle
        try:
            kept = len(buffer) + (idle[-1][0] if idle else 0)
        except IndexError:  # another thread took the last buffer
            kept = len(buffer)
        if kept <= self.idle_bytes:
            idle.append((kept, buffer))


_workspaces = Workspaces(_IDLE_BYTES)


class Launch:
    """A problem under a schedule: structs, shapes of the operands, sizes of workspace and prepared weights.

    y = act(conv(x, w) + bias + residual), or C = act(alpha op(A) op(B) + beta C + bias) of dense row-major operands, one bias per column.
    `prepared_bytes`: size of the weights that every run prepares; 0 if it reads the weights themselves. `reproducible`: as a plan of that
    accuracy promises.
    """

    def __init__(
        self,
        workload: Workload,
        schedule: Schedule,
        threads: int = 1,
        executor: Executor = LOCAL,
        layout: Layout = "nchw",
        integers: Integers | None = None,
        reproducible: bool = False,
    ) -> None:
        self.workload, self.threads, self.executor, self._reproducible = workload, threads, executor, reproducible
        w, self._product = workload, not isinstance(workload, Conv)
        if isinstance(w, Conv):
            blocks = blocks_of(layout)
            self._names, self._count = ("x", "w"), w.filters
            self._first_shape = lying(w.input_shape, layout, blocks[0])
            self._second_shape: tuple[int, ...] = w.filter_shape
            self._out_shape = lying(w.output_shape, layout, blocks[1])
        else:
            self._names, self._count = ("a", "b"), w.n
            self._first_shape, self._second_shape = (w.k, w.m) if w.trans_a else (w.m, w.k), (w.n, w.k) if w.trans_b else (w.k, w.n)
            self._out_shape = w.m, w.n
        self._first_type, self._second_type, self._out_dtype = types_of(w, layout)
        self._dtype, self._weights_dtype, self._integers = NUMPY_DTYPES[self._first_type], NUMPY_DTYPES[self._second_type], integers
        if integers is not None:
            schedule = self._quantised(integers, schedule)
        self.schedule = schedule
        self._ffi, self._lib = executor.library()
        self._problem, self._schedule = problem_struct(workload, layout), schedule_struct(schedule, workload)
        native = executor.runner(self._problem, self._schedule)
        self._native = _rounding(native) if reproducible and executor is LOCAL else native
        self._native_prepare = self._lib.pysim_prepare
        self._pointer, self._null = self._ffi.from_buffer, self._ffi.NULL
        self.workspace_bytes = self._size(self._lib.pysim_workspace_bytes, threads)
        self.prepared_bytes = self._size(self._lib.pysim_prepared_bytes)

    @classmethod
    def of(cls, plan: Plan, threads: int = 1, integers: Integers | None = None) -> "Launch":
        """The launch of a CPU's plan, in this process or an emulator of its machine."""
        schedule, on = on_cpu(plan)
        return cls(plan.workload, schedule, threads, executor_for(on), plan.layout, integers, plan.accuracy == "reproducible")

    def _quantised(self, integers: Integers, schedule: Schedule) -> Schedule:
        """Takes over quantised operands. Scaled sums need one set of channels."""
        w = self.workload
        if w.dtype != "s8":
            raise OperandError(f"the problem computes in {w.dtype}; integers describe the bytes of an s8 problem")
        if self.executor.kind == "emulated":
            raise OperandError(f"quantised operands run in this process only, not in {self.executor.about}")
        self._integers = integers.checked(self._count)
        self._first_type, self._dtype, self._out_dtype = integers.first, stored_dtype(integers.first), stored_dtype(integers.stored)
        if integers.scales is None:
            return schedule
        whole = w.channels // w.groups if isinstance(w, Conv) else w.k  # a plan with channels last has all taps of them, too
        return msgspec.structs.replace(schedule, channels=max(whole, schedule.channels))

    @property
    def adds_bytes(self) -> bool:
        """Whether a residual is added to bytes."""
        return self._integers is not None and self._integers.sum is not None

    def _size(self, function: Any, *arguments: int) -> int:
        size = self._ffi.new("int64_t *")
        check(function(self._problem, self._schedule, *arguments, size), self.executor)
        return int(size[0])

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of the first operand and of the result."""
        return self._first_shape, self._out_shape

    def run(
        self,
        first: Any,
        second: Any,
        out: Any = None,
        bias: Any = None,
        activation: Activation = None,
        added: Any = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        profile: Any = None,
    ) -> Array:
        """The result, in `out` if given. `added`: the residual of a convolution; C of a product, which is only read unless it is also
        `out`. `profile`: a `pysim_profile` to fill."""
        weights, size, residual, into = self._second(second), self.prepared_bytes, None if self._product else added, out
        epilogue = self.epilogue(bias, activation, residual, alpha, beta)
        in_place = not (size or beta) and weights is second and added is bias is profile is None
        if in_place and self._run_at_once(first, second, epilogue, out):
            return cast("Array", out)
        if out is not None:
            check_apart(self._out(out), **{self._names[1]: second}, bias=bias, residual=residual)
        if self._product:
            into = self._with_c(added, beta, out, first)
        if size:
            room = _workspaces.take(size)
            try:
                y = self.run_prepared(first, self._prepare(weights, room[0:size]), epilogue, into, profile)
            finally:
                _workspaces.give(room)
        else:
            y = self.run_prepared(first, self._pointer(weights), epilogue, into, profile)
        if into is out or out is None:
            return y
        result = self._out(out)
        result[...] = y
        return result

    def profile(self, first: Any, second: Any, out: Any = None) -> dict[str, float]:
        """Runs once and splits the time: pack_seconds, kernel_seconds, packed_tiles, kernel_calls."""
        return _profiled(partial(self.run, first, second, out))

    def step(self, first: Array, second: Any, out: Array, workspace: Array, epilogue: Any = None) -> Step:
        """`run` as a step on these dense arrays, with this workspace. `second`: an array that a run reads as it is, or prepared weights."""
        pointer = self._pointer
        second = pointer(self._second(second)) if isinstance(second, np.ndarray) else second
        operands = {"first": pointer(self._first(first)), "second": second, "result": pointer(self._out(out))}
        room = {"workspace": pointer(workspace), "workspace_bytes": workspace.nbytes}
        job, epilogue = open_job(self._problem, self._schedule), epilogue or self.epilogue(None, None)
        return Step("RUN", of=job, epilogue=epilogue, threads=self.threads, **operands, **room)

    def prepare(self, weights: Any) -> Any:
        """A copy of the weights as a run reads them: a cffi pointer."""
        dense, size = self._second(weights), self.prepared_bytes
        if size:
            return self._prepare(dense, self._pointer(aligned(size, np.uint8)))
        return self._pointer(_copied(dense))

    def restore(self, prepared: Array) -> Any:
        """What `prepare` returned, of its bytes, which stay where they are if they begin on a cache line. OperandError if these are too few
        or too many."""
        right = self.prepared_bytes or math.prod(self._second_shape) * self.workload.element_bytes
        if prepared.nbytes != right:
            raise OperandError(f"prepared weights of {self.workload.text} have {prepared.nbytes:,} bytes; expected {right:,}")
        return self._pointer(prepared if prepared.ctypes.data % _LINE == 0 else _copied(prepared))

    def _prepare(self, dense: Array, room: Any) -> Any:
        check(self._native_prepare(self._problem, self._schedule, self._pointer(dense), room, self.prepared_bytes), self.executor)
        return room

    def run_prepared(self, first: Any, weights: Any, epilogue: Any, out: Any, profile: Any = None) -> Array:
        """`run` with prepared weights, a cffi pointer."""
        if profile is None and self._run_at_once(first, weights, epilogue, out):
            return cast("Array", out)
        dense, y = self._first(first), self._out(out)
        if out is not None and dense is not first:
            check_apart(y, **{self._names[0]: first})
        pointer, work = self._pointer, _workspaces.take(self.workspace_bytes)
        try:
            size = self.workspace_bytes
            status = self._native(epilogue, self.threads, pointer(dense), weights, pointer(y), work, size, profile or self._null)
        finally:
            _workspaces.give(work)
        if status:
            check_apart(y, **{self._names[0]: first})  # the library refuses overlaps, too, but does not know the names
            check(status, self.executor)
        return y

    def epilogue(self, bias: Any, activation: Activation, residual: Any = None, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """The epilogue struct: one value of the bias for each filter or column. A residual is added before the activation, and read
        without a copy."""
        if residual is not None:
            of = self._integers.sum if self._integers else None
            kind = of.residual if of else "bf16" if self._out_dtype == NUMPY_DTYPES["bf16"] else None
            residual = addend(residual, "residual", self._out_shape, self.workload.dtype, kind)
        if bias is not None:
            bias = addend(bias, "bias", (self._count,), self.workload.dtype)
        if self._reproducible:
            refuse_inexact(activation, self.workload.dtype)
        return epilogue_struct(alpha, beta, bias, activation, residual, self._integers)

    def _run_at_once(self, first: Any, second: Any, epilogue: Any, y: Any) -> bool:
        """The fast path for arrays that need no conversion; small problems take little longer than its checks. `second`: a cffi pointer or
        an array of the right shape. False: nothing was done, and the general path must run or raise."""
        if not (
            type(first) is type(y) is _ndarray
            and first.dtype is self._dtype
            and y.dtype is self._out_dtype
            and first.shape == self._first_shape
            and y.shape == self._out_shape
            and y.flags.carray
        ):
            return False
        pointer, size, work = self._pointer, self.workspace_bytes, _workspaces.take(self.workspace_bytes)
        try:
            if type(second) is _ndarray:
                second = pointer(second)
            status = self._native(epilogue, self.threads, pointer(first), second, pointer(y), work, size, self._null)
        except ValueError:  # an array is not contiguous
            return False
        finally:
            _workspaces.give(work)
        return not status

    def _with_c(self, c: Any, beta: float, out: Any, first: Any) -> Any:
        """Where the product goes: an array that contains C if it is added, else `out`."""
        if c is None and beta != 0:
            raise OperandError(f"beta is {beta}, so c must be given")
        added = None if c is None else addend(c, "c", self._out_shape, self.workload.dtype)
        if beta == 0 or added is None:
            return out
        y = self._out(out)
        if _same(added, y):
            return out
        if out is not None:
            check_apart(y, a=first, c=c)
            y = aligned(self._out_shape, y.dtype)
        y[...] = added
        return y

    def _out(self, out: Any) -> Array:
        """`out` as an array that the library can write, or a new one."""
        if type(out) is np.ndarray and out.dtype is self._out_dtype and out.shape == self._out_shape and out.flags.carray:
            return out
        return output(out, self._out_shape, self._out_dtype)

    def _first(self, x: Any) -> Array:
        """The first operand as an array that the library can read."""
        if type(x) is np.ndarray and x.dtype is self._dtype and x.shape == self._first_shape and is_dense(x):
            return x
        return operand(x, self._names[0], self._first_shape, self._first_type)

    def _second(self, w: Any) -> Array:
        """The second operand, the weights, as a dense array."""
        if type(w) is np.ndarray and w.dtype is self._weights_dtype and w.shape == self._second_shape and is_dense(w):
            return w
        return operand(w, self._names[1], self._second_shape, self._second_type)


def _copied(weights: Array) -> Array:
    """On cache lines: rows that begin there are read faster."""
    copy = aligned(weights.shape, weights.dtype)
    copy[...] = weights
    return copy


def _same(x: Array, y: Array) -> bool:
    """Whether two dense arrays of one shape begin at the same address."""
    return x is y or x.__array_interface__["data"][0] == y.__array_interface__["data"][0]


class Prepared:
    """A convolution with prepared filters, `y = conv(x, out=None)`, or a product with a prepared B, `c = product(a, out=None)`. It keeps no
    array of the caller's, and any number of threads may call it."""

    def __init__(
        self,
        workload: Workload,
        weights: Any,
        schedule: Schedule,
        bias: Any = None,
        activation: Activation = None,
        threads: int = 1,
        executor: Executor = LOCAL,
        layout: Layout = "nchw",
        integers: Integers | None = None,
        prepared: Array | None = None,
        reproducible: bool = False,
    ) -> None:
        """`prepared`: the `bytes` of another launch of this kind, in place of weights."""
        launch = self._launch = Launch(workload, schedule, threads, executor, layout, integers, reproducible)
        self.workload, self.schedule, self.threads, self.executor = workload, launch.schedule, threads, executor
        self.workspace_bytes, self.shapes = launch.workspace_bytes, launch.shapes  # of the input and of the result
        self._bias, self._activation = None if bias is None else np.array(as_numpy(bias, "bias")), activation
        self._epilogue = launch.epilogue(self._bias, activation)
        self._prepared = launch.prepare(weights) if prepared is None else launch.restore(prepared)

    @classmethod
    def of(
        cls,
        plan: Plan,
        weights: Any,
        bias: Any = None,
        activation: Activation = None,
        threads: int = 1,
        integers: Integers | None = None,
        prepared: Array | None = None,
    ) -> "Prepared":
        """A CPU's plan with these weights, in this process or an emulator of its machine."""
        schedule, on = on_cpu(plan)
        how = threads, executor_for(on), plan.layout, integers, prepared, plan.accuracy == "reproducible"
        return cls(plan.workload, weights, schedule, bias, activation, *how)

    @property
    def bytes(self) -> Array:
        """The prepared weights: how a plan of this name reads them under this build of the library."""
        return np.frombuffer(self._launch._ffi.buffer(self._prepared), np.uint8)

    @property
    def bias(self) -> Array | None:
        return self._bias

    def __call__(self, x: Any, out: Any = None, residual: Any = None) -> Any:
        """`residual`, of the result's shape, is added before the activation. The result is `out`, or a new array of the kind that x is."""
        launch = self._launch
        if residual is None:
            epilogue = self._epilogue
            if launch._run_at_once(x, self._prepared, epilogue, out):
                return out
        else:
            epilogue = launch.epilogue(self._bias, self._activation, residual)
            if out is not None and not (launch.adds_bytes and _same(residual, out)):  # the library knows which kernels may overwrite it
                check_apart(launch._out(out), residual=residual)
        y = launch.run_prepared(x, self._prepared, epilogue, out)
        if out is not None:
            return out
        return y if type(x) is _ndarray else like(x, y)

    run = __call__

    def step(self, x: Array, out: Array, workspace: Array, residual: Any = None) -> Step:
        """A repeatable call on these arrays, whose dtypes and sizes are the operands', with this workspace."""
        epilogue = self._epilogue if residual is None else self._launch.epilogue(self._bias, self._activation, residual)
        return self._launch.step(x, self._prepared, out, workspace, epilogue)

    def profile(self, x: Any, out: Any = None) -> dict[str, float]:
        """Runs once and splits the time: pack_seconds, kernel_seconds, packed_tiles, kernel_calls."""
        return _profiled(partial(self._launch.run_prepared, x, self._prepared, self._epilogue, out))


def _rounding(native: Callable[..., int]) -> Callable[..., int]:
    """A call whose multiply-adds round once, those of the epilogue too."""

    def run(*arguments: Any) -> int:
        with rounding_once():
            return native(*arguments)

    return run


def _profiled(run: Callable[..., Any]) -> dict[str, float]:
    p = library()[0].new("pysim_profile *")
    run(profile=p)
    return {name: getattr(p, name) for name in ("pack_seconds", "kernel_seconds", "packed_tiles", "kernel_calls")}
