# SPDX-License-Identifier: Apache-2.0
"""A sequence of launches as one native call, without Python between them. Each call passes the base addresses of a few pieces of memory;
operands are at fixed offsets from these."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from pysim.runtime.cuda import Launch, check, library
from pysim.runtime.cuda_norm import NormLaunch


class Place(NamedTuple):
    """`offset` bytes after base address number `base`."""

    base: int
    offset: int = 0


class LaunchStep(NamedTuple):
    """A launch, its epilogue and the places of its operands."""

    launch: Launch
    epilogue: Any
    first: Place
    second: Place
    result: Place
    workspace: Place


class NormStep(NamedTuple):
    """A norm and the places of its parts and result. `scale`: the place of a per-image scale, else address 0."""

    launch: NormLaunch
    parts: tuple[Place, ...]
    result: Place
    scale: Place


def _struct(step: LaunchStep | NormStep) -> dict[str, Any]:
    """The fields of `pysim_cuda_step`."""
    if isinstance(step, LaunchStep):
        launch, places = step.launch, {name: getattr(step, name)._asdict() for name in LaunchStep._fields[2:]}
        what = {"problem": launch.problem, "schedule": launch.schedule, "workspace_bytes": launch.workspace_bytes}
        return {**what, "epilogue": step.epilogue, **places}
    parts = library()[0].new("pysim_cuda_place[]", step.parts)
    return {"norm": step.launch.norm, "parts": parts, "first": step.scale._asdict(), "result": step.result._asdict()}


class LaunchSteps:
    def __init__(self, steps: Sequence[LaunchStep | NormStep]) -> None:
        ffi, lib = library()
        self.steps, structs = tuple(steps), [_struct(step) for step in steps]
        self._steps, self._count, self._keep_alive = (
            ffi.new("pysim_cuda_step[]", structs),
            len(steps),
            structs,
        )  # the structs own what they point to
        self._addresses = partial(ffi.new, ffi.typeof("uint64_t[]"))
        # declared with the stream as a number: converting it to a pointer takes as long as the call
        self._run = ffi.cast("pysim_status (*)(const pysim_cuda_step *, int64_t, const uint64_t *, uintptr_t)", lib.pysim_cuda_run_steps)

    def run(self, bases: Sequence[int], stream: int) -> None:
        """Enqueues all launches on a stream."""
        if status := self._run(self._steps, self._count, self._addresses(bases), stream):
            check(status)
