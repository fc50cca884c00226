# SPDX-License-Identifier: Apache-2.0
"""Launches one after another as one native call: between them nothing of Python runs. Where their operands lie is told in each call, as
the addresses of a few pieces of memory that they are in."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from pysim.runtime.cuda import Launch, check, library


class Place(NamedTuple):
    """So many bytes behind one of the addresses that a call is told."""

    base: int
    offset: int = 0


class LaunchStep(NamedTuple):
    """A launch, its epilogue, and where what it reads and writes lies."""

    launch: Launch
    epilogue: Any
    first: Place
    second: Place
    result: Place
    workspace: Place


class LaunchSteps:
    def __init__(self, steps: Sequence[LaunchStep]) -> None:
        ffi, lib = library()
        told = [
            {"problem": one.launch.problem, "schedule": one.launch.schedule, "epilogue": one.epilogue,
             "workspace_bytes": one.launch.workspace_bytes, **{name: getattr(one, name)._asdict() for name in LaunchStep._fields[2:]}}
            for one in steps
        ]  # fmt: skip
        self._steps, self._count, self._kept = ffi.new("pysim_cuda_step[]", told), len(steps), tuple(steps)
        self._addresses = partial(ffi.new, ffi.typeof("uint64_t[]"))
        # told the stream as a number: to make a pointer of it takes as long as the call
        self._run = ffi.cast("pysim_status (*)(const pysim_cuda_step *, int64_t, const uint64_t *, uintptr_t)", lib.pysim_cuda_run_steps)

    def run(self, bases: Sequence[int], stream: int) -> None:
        """Puts them on a stream."""
        if status := self._run(self._steps, self._count, self._addresses(bases), stream):
            check(status)
