# SPDX-License-Identifier: Apache-2.0
"""Claims about algorithms with kernels of their own: their results, and that they and the loop nest refuse each other's kernels."""

from collections.abc import Sequence

import numpy as np

import pysim
from pysim import planner
from pysim.check.bounds import gamma
from pysim.problem.conv import Conv
from pysim.problem.text import parse
from pysim.record.plan import Plan
from pysim.runtime import cpu as runtime

NUMPY = {"f32": "f4", "f64": "f8"}
UNIT = {"f32": 2.0**-24, "f64": 2.0**-53}


def assert_rows_are_apart(text: str, algorithm: str) -> None:
    problem = parse(text)
    plan = planner.plan(problem, "zen4", algorithm=algorithm)
    ffi, lib = runtime.library()
    size = ffi.new("int64_t *")
    swapped = runtime.schedule_struct(plan.schedule, problem)
    swapped.algorithm = 0
    assert lib.pysim_workspace_bytes(runtime.problem_struct(problem), swapped, 1, size) == lib.PYSIM_UNSUPPORTED
    other = runtime.schedule_struct(planner.plan(problem, "zen4", algorithm="sconv").schedule, problem)
    other.algorithm = runtime.schedule_struct(plan.schedule, problem).algorithm
    assert lib.pysim_workspace_bytes(runtime.problem_struct(problem), other, 1, size) == lib.PYSIM_UNSUPPORTED
    assert f"{algorithm}.inc".encode() in ffi.string(lib.pysim_last_error())


def convolution(text: str) -> Conv:
    problem = parse(text)
    assert isinstance(problem, Conv)
    return problem


def operands(problem: Conv) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    dtype = NUMPY[problem.dtype]
    rng = np.random.default_rng(7)
    x = rng.standard_normal(problem.input_shape).astype(dtype)
    return x, rng.standard_normal(problem.filter_shape).astype(dtype), rng.standard_normal(problem.filters).astype(dtype)


def exact(w: Conv, x: np.ndarray, f: np.ndarray) -> np.ndarray:
    """The convolution by its definition, in float64."""
    axes = [w.slices] * w.is_volume + [w.rows, w.columns]
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), *((axis.before, axis.after) for axis in axes)))
    y = np.zeros(w.output_shape)
    channels, filters = w.channels // w.groups, w.filters // w.groups
    for m in range(w.filters):
        for c, *taps in np.ndindex(channels, *(axis.kernel for axis in axes)):
            starts = [tap * axis.dilation for tap, axis in zip(taps, axes, strict=True)]
            met = [slice(at, at + (axis.out - 1) * axis.stride + 1, axis.stride) for at, axis in zip(starts, axes, strict=True)]
            y[:, m] += float(f[(m, c, *taps)]) * padded[(slice(None), m // filters * channels + c, *met)]
    return y


def assert_within_the_bound_of_a_sum(problem: Conv, plans: Sequence[Plan]) -> None:
    """With a bias and a ReLU."""
    x, f, bias = operands(problem)
    added = bias.reshape(-1, *(1,) * (x.ndim - 2))
    right = np.maximum(exact(problem, x, f) + added.astype(np.float64), 0)
    bound = gamma(f[0].size + 2, UNIT[problem.dtype]) * (exact(problem, np.abs(x), np.abs(f)) + np.abs(added))
    assert plans
    for plan in plans:
        y = pysim.prepare(problem.text, f, bias=bias, activation="relu", plan=plan)(x)
        assert (np.abs(y - right) <= bound).all(), plan.name


def assert_threads_change_no_bit(problem: Conv, plans: Sequence[Plan]) -> None:
    x, f, _ = operands(problem)
    for plan in plans:
        one = pysim.prepare(problem.text, f, plan=plan, threads=1)(x)
        assert all((pysim.prepare(problem.text, f, plan=plan, threads=threads)(x) == one).all() for threads in (2, 3, 7)), plan.name


def assert_padding_alone_hides_an_infinite_weight(problem: Conv, plans: Sequence[Plan]) -> None:
    """The upper left weight of one filter meets padding in the first row and column of results alone."""
    x, f, _ = operands(problem)
    f[3, :, 0, 0] = np.inf
    for plan in plans:
        y = pysim.prepare(problem.text, f, plan=plan)(x)
        assert np.isfinite(y[:, 3, 0]).all() and np.isfinite(y[:, 3, :, 0]).all(), plan.name
        assert not np.isfinite(y[:, 3, 1:, 1:]).any(), plan.name
        assert np.isfinite(np.delete(y, 3, axis=1)).all(), plan.name
