# SPDX-License-Identifier: Apache-2.0
"""Native calls whose arrays are bound once, and chains of them that are one call: between them nothing of Python runs."""

from collections.abc import Sequence
from typing import Any

from pysim.runtime.cpu import check, library


class Step:
    """A call of pysim_run or of an operator between convolutions, ready to be made; it keeps what its pointers point to."""

    def __init__(self, kind: str, **fields: Any) -> None:
        ffi, lib = library()
        given = {name: value for name, value in fields.items() if value is not None}
        self.struct = ffi.new("pysim_step *", {"kind": getattr(lib, f"PYSIM_STEP_{kind}"), **given})
        self._kept = given
        self._native = lib.pysim_run_steps

    def keep(self, *arrays: Any) -> None:
        """Arrays that pointers were made of which keep nothing."""
        self._kept |= {f"array {at}": array for at, array in enumerate(arrays)}

    def __call__(self) -> None:
        check(self._native(self.struct, 1))


class Chain:
    """Steps one after another as one native call."""

    def __init__(self, steps: Sequence[Step]) -> None:
        ffi, lib = library()
        self._structs, self.steps = ffi.new("pysim_step[]", [step.struct[0] for step in steps]), tuple(steps)
        self._native = lib.pysim_run_steps

    def __call__(self) -> None:
        check(self._native(self._structs, len(self.steps)))
