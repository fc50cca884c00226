# SPDX-License-Identifier: Apache-2.0
"""The mark of tests that need the native library, and its functions that only tests call."""

import pytest

from pysim.arguments import Activation
from pysim.errors import MissingError
from pysim.problem.conv import Conv
from pysim.runtime import cpu
from pysim.runtime.cpu import Array, Executor


def native_is_missing() -> str:
    """Why the native library cannot be used; empty if it can."""
    try:
        cpu.library()
    except (MissingError, OSError) as error:
        return str(error)
    return ""


native = pytest.mark.skipif(bool(native_is_missing()), reason=native_is_missing() or "the native library is here")


def reference_conv(
    w: Conv,
    x: Array,
    weights: Array,
    bias: Array | None = None,
    activation: Activation = None,
    executor: Executor = cpu.LOCAL,
    residual: Array | None = None,
) -> Array:
    """The reference that defines a correct result: plain loops in C, accumulated in the next wider type. Slow."""
    ffi, lib = executor.library()
    out = cpu.aligned(w.output_shape, cpu.RESULT_DTYPES[w.dtype])
    epilogue = cpu.epilogue_struct(1.0, 0.0, bias, activation, residual)
    x = cpu.operand(x, "x", w.input_shape, w.dtype)
    weights = cpu.operand(weights, "w", w.filter_shape, w.dtype)
    pointers = (ffi.from_buffer(x), ffi.from_buffer(weights), ffi.from_buffer(out))
    cpu.check(lib.pysim_reference(cpu.problem_struct(w), epilogue, *pointers), executor)
    return out


def im2col(workload: Conv, image: Array, columns: Array, executor: Executor = cpu.LOCAL) -> None:
    """Caffe's columns[C/groups * R * S][P*Q] of one image of one group, into `columns`."""
    ffi, lib = executor.library()
    cpu.check(lib.pysim_im2col(cpu.conv_struct(workload), ffi.from_buffer(image), ffi.from_buffer(columns)), executor)
