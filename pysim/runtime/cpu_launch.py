# SPDX-License-Identifier: Apache-2.0
"""Launches of products and convolutions on the CPU, and the workspaces that calls borrow.

A Launch has the structs and sizes of one problem under one schedule, and no arrays. A call borrows its workspace, so any number of threads
may use one launch. A prepared convolution adds prepared filters. All checks precede the first write to the caller's arrays.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from pysim.arguments import Activation
from pysim.errors import OperandError
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.record.plan import Layout, blocked_shape, blocks_of
from pysim.record.schedule import Schedule
from pysim.runtime.cpu import (
    LOCAL,
    NUMPY_DTYPES,
    RESULT_DTYPES,
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
    schedule_struct,
)
from pysim.runtime.steps import Step

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

    `prepared_bytes`: size of the prepared weights; 0 if a run reads the weights themselves. `names`: of the operands, for messages.
    """

    names: tuple[str, str]

    def __init__(
        self,
        workload: Workload,
        shapes: tuple[tuple[int, ...], ...],
        schedule: Schedule,
        threads: int = 1,
        executor: Executor = LOCAL,
        layout: Layout = "nchw",
    ) -> None:
        self.workload, self.schedule, self.threads, self.executor = workload, schedule, threads, executor
        self._first_shape, self._second_shape, self._out_shape = shapes
        self._dtype, self._out_dtype = NUMPY_DTYPES[workload.dtype], RESULT_DTYPES[workload.dtype]
        self._ffi, self._lib = executor.library()
        self._problem, self._schedule = problem_struct(workload, layout), schedule_struct(schedule, workload)
        self._native, self._native_prepare = executor.runner(self._problem, self._schedule), self._lib.pysim_prepare
        self._pointer, self._null = self._ffi.from_buffer, self._ffi.NULL
        self.workspace_bytes = self._size(self._lib.pysim_workspace_bytes, threads)
        self.prepared_bytes = self._size(self._lib.pysim_prepared_bytes)

    def _size(self, function: Any, *arguments: int) -> int:
        size = self._ffi.new("int64_t *")
        check(function(self._problem, self._schedule, *arguments, size), self.executor)
        return int(size[0])

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of the first operand and of the result."""
        return self._first_shape, self._out_shape

    def output(self, out: Any) -> Array:
        """`out` as an array that the library can write, or a new one."""
        if type(out) is np.ndarray and out.dtype is self._out_dtype and out.shape == self._out_shape and out.flags.carray:
            return out
        return output(out, self._out_shape, self.workload.dtype)

    def first(self, x: Any) -> Array:
        """The first operand as an array that the library can read."""
        if type(x) is np.ndarray and x.dtype is self._dtype and x.shape == self._first_shape and is_dense(x):
            return x
        return operand(x, self.names[0], self._first_shape, self.workload.dtype)

    def second(self, w: Any) -> Array:
        """The second operand, the weights, as a dense array."""
        if type(w) is np.ndarray and w.dtype is self._dtype and w.shape == self._second_shape and is_dense(w):
            return w
        return operand(w, self.names[1], self._second_shape, self.workload.dtype)

    def bias(self, bias: Any) -> Array | None:
        """One value for each filter, or each column of C."""
        count = self.workload.filters if isinstance(self.workload, Conv) else self.workload.n
        return None if bias is None else addend(bias, "bias", (count,), self.workload.dtype)

    def epilogue(self, bias: Any, activation: Activation, residual: Any = None) -> Any:
        """The epilogue struct. A residual is added before the activation, and read without a copy."""
        if residual is not None:
            residual = addend(residual, "residual", self._out_shape, self.workload.dtype)
        return epilogue_struct(1.0, 0.0, self.bias(bias), activation, residual)

    def prepare(self, weights: Any, prepared: Any) -> Any:
        """Prepares dense weights in the buffer `prepared`, both cffi pointers; returns the buffer."""
        check(self._native_prepare(self._problem, self._schedule, weights, prepared, self.prepared_bytes), self.executor)
        return prepared

    def apply(self, x: Any, prepared: Any, epilogue: Any, out: Any) -> Array:
        """The convolution or product with prepared weights, a cffi pointer."""
        return out if self.run_at_once(x, prepared, epilogue, out) else self.apply_checked(x, prepared, epilogue, out)

    def apply_checked(self, x: Any, prepared: Any, epilogue: Any, out: Any, profile: Any = None) -> Array:
        """`apply` of any arrays, with the reason if they do not fit."""
        dense, y = self.first(x), self.output(out)
        if out is not None and dense is not x:
            check_apart(y, **{self.names[0]: x})
        if status := self._run(epilogue, dense, prepared, y, profile):
            check_apart(y, **{self.names[0]: x})  # the library refuses overlaps, too, but does not know the names
            check(status, self.executor)
        return y

    def step(self, x: Array, prepared: Any, epilogue: Any, y: Array, workspace: Array) -> Step:
        """`apply` as a step on these dense arrays."""
        pointer = self._ffi.from_buffer
        operands = {"first": pointer(self.first(x)), "second": prepared, "result": pointer(self.output(y))}
        room = {"workspace": pointer(workspace), "workspace_bytes": workspace.nbytes}
        job = open_job(self._problem, self._schedule)
        return Step("RUN", of=job, epilogue=epilogue, threads=self.threads, **operands, **room)

    def run_at_once(self, first: Any, second: Any, epilogue: Any, y: Any) -> bool:
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

    def _run(self, epilogue: Any, first: Array, second: Any, y: Array, profile: Any) -> int:
        """The status of the native call in a borrowed workspace; `second`: a cffi pointer."""
        pointer, work = self._pointer, _workspaces.take(self.workspace_bytes)
        try:
            status: int = self._native(
                epilogue, self.threads, pointer(first), second, pointer(y), work, self.workspace_bytes, profile or self._null
            )
        finally:
            _workspaces.give(work)
        return status


class ConvLaunch(Launch):
    """y = act(conv(x, w) + bias + residual); every call prepares the filters."""

    names = ("x", "w")

    def __init__(self, workload: Conv, schedule: Schedule, threads: int = 1, executor: Executor = LOCAL, layout: Layout = "nchw") -> None:
        w, blocks = workload, blocks_of(layout)
        shapes = (
            blocked_shape((w.batch, w.channels, w.height, w.width), blocks[0]),
            (w.filters, w.channels // w.groups, w.kernel_h, w.kernel_w),
            blocked_shape((w.batch, w.filters, w.out_h, w.out_w), blocks[1]),
        )
        super().__init__(w, shapes, schedule, threads, executor, layout)

    def __call__(self, x: Any, w: Any, bias: Any = None, activation: Activation = None, out: Any = None, residual: Any = None) -> Array:
        weights, epilogue = self._pointer(self.second(w)), self.epilogue(bias, activation, residual)
        if out is not None:
            check_apart(self.output(out), w=w, bias=bias, residual=residual)
        if not self.prepared_bytes:
            return self.apply(x, weights, epilogue, out)
        prepared = _workspaces.take(self.prepared_bytes)
        try:
            return self.apply(x, self.prepare(weights, prepared[0 : self.prepared_bytes]), epilogue, out)
        finally:
            _workspaces.give(prepared)


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
    ) -> None:
        options = schedule, threads, executor
        launch = ConvLaunch(workload, *options, layout) if isinstance(workload, Conv) else GemmLaunch(workload, *options)
        self._launch: Launch = launch
        self.workload, self.schedule, self.threads, self.executor = workload, schedule, threads, executor
        self.workspace_bytes = launch.workspace_bytes
        self._bias, self._activation = None if bias is None else np.array(as_numpy(bias, "bias")), activation
        self._epilogue = launch.epilogue(self._bias, activation)
        dense, pointer = launch.second(weights), library()[0].from_buffer
        if size := launch.prepared_bytes:
            self._prepared = launch.prepare(pointer(dense), pointer(aligned(size, np.uint8)))
        else:
            copy = aligned(dense.shape, dense.dtype)  # rows that begin on cache lines are read faster
            copy[...] = dense
            self._prepared = pointer(copy)

    def __call__(self, x: Any, out: Any = None, residual: Any = None) -> Any:
        """`residual`, of the result's shape, is added before the activation. The result is `out`, or a new array of the kind that x is."""
        launch = self._launch
        if residual is None:
            if launch.run_at_once(x, self._prepared, self._epilogue, out):
                return out
            y = launch.apply_checked(x, self._prepared, self._epilogue, out)
        else:
            epilogue = launch.epilogue(self._bias, self._activation, residual)
            if out is not None:
                check_apart(launch.output(out), residual=residual)
            y = launch.apply(x, self._prepared, epilogue, out)
        if out is not None:
            return out
        return y if type(x) is _ndarray else like(x, y)

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of the input and of the result."""
        return self._launch.shapes

    def step(self, x: Array, out: Array, workspace: Array, residual: Any = None) -> Step:
        """A repeatable call on these arrays, whose dtypes and sizes are the operands', with this workspace."""
        epilogue = self._epilogue if residual is None else self._launch.epilogue(self._bias, self._activation, residual)
        return self._launch.step(x, self._prepared, epilogue, out, workspace)

    def profile(self, x: Any, out: Any = None) -> dict[str, float]:
        """Runs once and splits the time: pack_seconds, kernel_seconds, packed_tiles, kernel_calls."""
        return _profiled(lambda into: self._launch.apply_checked(x, self._prepared, self._epilogue, out, into))


def _profiled(run: Callable[[Any], Any]) -> dict[str, float]:
    p = library()[0].new("pysim_profile *")
    run(p)
    return {name: getattr(p, name) for name in ("pack_seconds", "kernel_seconds", "packed_tiles", "kernel_calls")}


class GemmLaunch(Launch):
    """C = act(alpha op(A) op(B) + beta C + bias); dense row-major operands, one bias per column of C."""

    names = ("a", "b")

    def __init__(self, workload: Gemm, schedule: Schedule, threads: int = 1, executor: Executor = LOCAL) -> None:
        w = workload
        shapes = ((w.k, w.m) if w.trans_a else (w.m, w.k), (w.n, w.k) if w.trans_b else (w.k, w.n), (w.m, w.n))
        super().__init__(w, shapes, schedule, threads, executor)

    def __call__(
        self,
        a: Any,
        b: Any,
        c: Any = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        bias: Any = None,
        activation: Activation = None,
        out: Any = None,
    ) -> Array:
        """`c` is only read, unless it is also `out`."""
        if c is None and beta != 0:
            raise OperandError(f"beta is {beta}, so c must be given")
        if (
            c is None
            and bias is None
            and out is not None
            and self.multiply_at_once(a, b, out, epilogue_struct(alpha, beta, None, activation))
        ):
            return out
        left, right, y = self.first(a), self.second(b), self.output(out)
        dtype = self.workload.dtype
        if out is not None:
            check_apart(y, a=a, b=b, bias=bias)
        # copy C to the result only after every check
        added = None if c is None else addend(c, "c", self._out_shape, dtype)
        into = y
        if beta != 0 and added is not None and not _same(added, y):
            if out is not None:
                check_apart(y, c=c)
                into = aligned(self._out_shape, y.dtype)
            into[...] = added
        self.run(left, right, into, epilogue_struct(alpha, beta, self.bias(bias), activation))
        if into is not y:
            y[...] = into
        return y

    def multiply_at_once(self, a: Any, b: Any, y: Any, epilogue: Any) -> bool:
        """`run_at_once` with a B that needs no preparation."""
        right = type(b) is _ndarray and b.dtype is self._dtype and b.shape == self._second_shape and not self.prepared_bytes
        return right and self.run_at_once(a, b, epilogue, y)

    def run(self, a: Any, b: Any, y: Array, epilogue: Any, profile: Any = None) -> None:
        """The product; y contains C and receives the result."""
        left, second = self.first(a), self._pointer(self.second(b))
        if not self.prepared_bytes:
            if status := self._run(epilogue, left, second, y, profile):
                check(status, self.executor)
            return
        prepared = _workspaces.take(self.prepared_bytes)
        try:
            check(self._run(epilogue, left, self.prepare(second, prepared[0 : self.prepared_bytes]), y, profile), self.executor)
        finally:
            _workspaces.give(prepared)


def _same(x: Array, y: Array) -> bool:
    """Whether two dense arrays of one shape begin at the same address."""
    return x is y or x.__array_interface__["data"][0] == y.__array_interface__["data"][0]


class PreparedGemm:
    """C = alpha op(A) op(B) + beta C + bias: `c = gemm(a, b, c=None)`; c is updated in place."""

    def __init__(
        self,
        workload: Gemm,
        schedule: Schedule,
        alpha: float = 1.0,
        beta: float = 0.0,
        bias: Any = None,
        activation: Activation = None,
        threads: int = 1,
        executor: Executor = LOCAL,
    ) -> None:
        launch = self._launch = GemmLaunch(workload, schedule, threads, executor)
        self.workload, self.schedule, self.threads, self.executor = workload, schedule, threads, executor
        self.workspace_bytes = launch.workspace_bytes
        self._beta = beta
        self._epilogue = epilogue_struct(alpha, beta, launch.bias(None if bias is None else np.array(as_numpy(bias, "bias"))), activation)

    @property
    def prepares(self) -> bool:
        """Whether every call prepares B."""
        return self._launch.prepared_bytes > 0

    def step(self, a: Array, b: Array, c: Array, workspace: Array) -> Step:
        """A repeatable call on these dense arrays of the operands' dtypes, with this workspace; not for a product that prepares B."""
        return self._launch.step(a, library()[0].from_buffer(self._launch.second(b)), self._epilogue, c, workspace)

    def profile(self, a: Any, b: Any, c: Any = None) -> dict[str, float]:
        """Runs once and splits the time: pack_seconds, kernel_seconds, packed_tiles, kernel_calls."""
        return _profiled(lambda into: self(a, b, c, into))

    def __call__(self, a: Any, b: Any, c: Any = None, profile: Any = None) -> Array:
        if c is None and self._beta != 0:
            raise OperandError(f"beta is {self._beta}, so c must be given")
        if profile is None and c is not None and self._launch.multiply_at_once(a, b, c, self._epilogue):
            return c
        y = self._launch.output(c)
        self._launch.run(a, b, y, self._epilogue, profile)
        return y
