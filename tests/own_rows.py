# SPDX-License-Identifier: Apache-2.0
"""That an algorithm with kernels of its own and the loop nest each refuse the other's."""

from pysim import planner
from pysim.problem.text import parse
from pysim.runtime import cpu as runtime


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
