# SPDX-License-Identifier: Apache-2.0
"""Launches one after another as one native call: between them nothing of Python runs. Where their operands lie is told in each call, as
the addresses of a few pieces of memory that they are in."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from pysim.runtime.cuda import Launch, check, library
from pysim.runtime.cuda_norm import NormLaunch


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


class NormStep(NamedTuple):
    """A norm, and where its parts and its result lie; of one with a scale for each image that, else address 0."""

    launch: NormLaunch
    parts: tuple[Place, ...]
    result: Place
    scale: Place


def _told(step: LaunchStep | NormStep) -> dict[str, Any]:
    """As the library has it."""
    if isinstance(step, LaunchStep):
        launch, places = step.launch, {name: getattr(step, name)._asdict() for name in LaunchStep._fields[2:]}
        what = {"problem": launch.problem, "schedule": launch.schedule, "workspace_bytes": launch.workspace_bytes}
        return {**what, "epilogue": step.epilogue, **places}
    parts = library()[0].new("pysim_cuda_place[]", step.parts)
    return {"norm": step.launch.norm, "parts": parts, "first": step.scale._asdict(), "result": step.result._asdict()}


class LaunchSteps:
    def __init__(self, steps: Sequence[LaunchStep | NormStep]) -> None:
        ffi, lib = library()
        self.steps, told = tuple(steps), [_told(one) for one in steps]
        self._steps, self._count, self._kept = ffi.new("pysim_cuda_step[]", told), len(steps), told  # what they point to
        self._addresses = partial(ffi.new, ffi.typeof("uint64_t[]"))
        # told the stream as a number: to make a pointer of it takes as long as the call
        self._run = ffi.cast("pysim_status (*)(const pysim_cuda_step *, int64_t, const uint64_t *, uintptr_t)", lib.pysim_cuda_run_steps)

    def run(self, bases: Sequence[int], stream: int) -> None:
        """Puts them on a stream."""
        if status := self._run(self._steps, self._count, self._addresses(bases), stream):
            check(status)
