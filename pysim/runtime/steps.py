# SPDX-License-Identifier: Apache-2.0
"""Native calls bound to their arrays, and chains of them that run as one native call, without Python between them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from pysim.runtime.cpu import Array, aligned, check, library

Slot = tuple[Any, str]  # a struct and its field that is an address
_OPERANDS = ("first", "second", "third", "result")


def pointer(array: Array | None) -> Any:
    return None if array is None else library()[0].cast("void *", array.ctypes.data)


def addresses(slots: Sequence[Slot]) -> list[tuple[Slot, int]]:
    """The slots with the addresses that stand there."""
    cast = library()[0].cast
    return [(slot, int(cast("intptr_t", getattr(*slot)))) for slot in slots]


class Step:
    """A call of pysim_run_job or of another native operator, bound to its arrays, which it keeps alive."""

    def __init__(self, kind: str, **fields: Any) -> None:
        ffi, lib = library()
        present = {name: value for name, value in fields.items() if value is not None}
        self.struct = ffi.new("pysim_step *", {"kind": getattr(lib, f"PYSIM_STEP_{kind}"), **present})
        self._keep_alive = present
        self._native = lib.pysim_run_steps
        self.elsewhere: list[Slot] = [(present["epilogue"], "residual")] if "epilogue" in present else []

    def keep(self, *arrays: Any) -> None:
        """Keeps arrays alive that the step only points to."""
        self._keep_alive |= {f"array {at}": array for at, array in enumerate(arrays)}

    def slots(self, of: "Step | None" = None) -> "list[Slot]":
        """Where the addresses of the arrays of a step, or of all, stand."""
        return [*((self.struct, name) for name in _OPERANDS), *self.elsewhere] if of in (None, self) else []

    def on_threads(self, threads: int) -> None:
        """Divides the call among threads if it is a map, a pool, a layout conversion, a pair, rows, a copy or attention. The bits of the
        result do not change."""
        self.struct.threads = threads

    def __call__(self) -> None:
        if status := self._native(self.struct, 1):
            check(status)

    def bound(self) -> Callable[[], None]:
        """The run as a function that checks nothing: its arguments are checked here. Later changes of the step do not change it."""
        ffi, lib = library()
        struct = ffi.new("pysim_step *", self.struct[0])
        check(lib.pysim_check_step(struct))
        call = partial(lib.pysim_run_checked_step, struct)
        vars(call)["keep_alive"] = self._keep_alive
        return call


class WorkingStep(Step):
    """A step with memory of its own for each of its threads, of as many bytes as a function of the library says."""

    def __init__(self, kind: str, **fields: Any) -> None:
        super().__init__(kind, **fields)
        self._needed = getattr(library()[1], f"pysim_{kind.lower()}_workspace_bytes")
        self.on_threads(1)

    def on_threads(self, threads: int) -> None:
        ffi = library()[0]
        size = ffi.new("int64_t *")
        check(self._needed(self.struct.of, threads, size))
        workspace = aligned(int(size[0]), np.uint8)
        self.struct.threads, self.struct.workspace_bytes = threads, workspace.nbytes
        self.struct.workspace = pointer(workspace)
        self._keep_alive |= {"workspace": workspace}


def step_of(
    kind: str,
    how: Any,
    out: Array,
    first: Array,
    second: Array | None = None,
    third: Array | None = None,
    keep: tuple[Any, ...] = (),
    **more: Any,
) -> Step:
    """A step on these arrays, as the struct `how` says; `keep`: what else it points to."""
    step = Step(kind, of=how, first=pointer(first), second=pointer(second), third=pointer(third), result=pointer(out), **more)
    step.keep(out, first, second, third, *keep)
    return step


class Chain:
    """Consecutive steps as one native call."""

    def __init__(self, steps: Sequence[Step]) -> None:
        ffi, lib = library()
        self._structs, self.steps = ffi.new("pysim_step[]", [step.struct[0] for step in steps]), tuple(steps)
        self._native = lib.pysim_run_steps

    def slots(self, of: Step | None = None) -> list[Slot]:
        places = [at for at, step in enumerate(self.steps) if of in (None, step)]
        own = [(self._structs[at], name) for at in places for name in _OPERANDS]
        return own + [slot for at in places for slot in self.steps[at].elsewhere]

    def __call__(self) -> None:
        if status := self._native(self._structs, len(self.steps)):
            check(status)
