# SPDX-License-Identifier: Apache-2.0
"""A plan as a folder of C or CUDA that needs neither pysim nor Python: its kernel, schedule, packing, a test and a benchmark."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pysim.errors import ProblemError, quoted
from pysim.record.accuracy import Accuracy
from pysim.record.plan import Layout, MicroKernel, Plan
from pysim.record.state import State

if TYPE_CHECKING:
    from pysim.machine.cpu import Machine
    from pysim.machine.gpu import Gpu
    from pysim.problem.text import Workload


def export(
    problem: "str | Workload | Plan",
    directory: str | os.PathLike[str],
    machine: "str | Machine | Gpu" = "host",
    epilogue: str | None = None,
    threads: int = 1,
    accuracy: Accuracy = "standard",
    error_limit: float | None = None,
    layout: Layout = "nchw",
    memory_limit: int | None = None,
    name: str | None = None,
    algorithm: str | None = None,
    micro_kernel: MicroKernel = None,
    state: State = "hot",
    prepared: bool = False,
) -> Plan:
    """Writes the plan of a problem, or a plan, as C (CUDA for a GPU) into a new or empty folder: `make test` and `make benchmark` there.

    `epilogue`: an expression in x, the result, that is applied in the stores, such as "x * tanh(x)" or "x > 0 ? x : 0.1f * x": numbers,
    + - * /, comparisons with ?:, exp, log, tanh, erf, sigmoid, sqrt, abs, max and min. The other arguments choose the plan, as in
    `pysim.plan`; they are not read if a plan is given. Returns the plan. Raises PlanError for an epilogue that is not understood,
    ProblemError for a folder that is not empty or cannot be written, and the errors of `pysim.plan`.
    """
    from pysim import planner
    from pysim.calibration import host
    from pysim.standalone.expression import code_of
    from pysim.standalone.folder import check_directory, write

    try:
        folder = Path(directory)
    except TypeError:
        raise ProblemError(f"directory is {quoted(directory)}; expected the path of a new or an empty folder") from None
    check_directory(folder)
    if epilogue is not None:
        code_of(epilogue)
    if not isinstance(problem, Plan):
        terms: dict[str, Any] = {
            "threads": threads,
            "accuracy": accuracy,
            "error_limit": error_limit,
            "layout": layout,
            "memory_limit": memory_limit,
        }
        terms |= {"algorithm": algorithm, "micro_kernel": micro_kernel, "state": state, "prepared": prepared}
        problem = planner.plan(problem, host.any_machine(machine), name=name, **terms)
    write(problem, folder, epilogue)
    return problem
