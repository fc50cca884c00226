# SPDX-License-Identifier: Apache-2.0
"""What a peer is: a module that prepares other people's convolution or product, to be timed beside ours.

    make(workload, operands, algorithm) -> Ready     a call that puts the result where `operands.out` lies, and that is good as long as the
                                                     operands live; MissingError where the library is not here or does not take the problem
    ALGORITHMS                                       what it is asked for one after the other; ("",) of one that chooses itself
    estimate(workload, gpu) -> (seconds, version)    instead of both, of one that runs nothing

Everything is prepared that may be: pointers, sessions with the weights as constants, reordered weights. What a library does with plain
operands on every call (OpenBLAS packs both) is part of its time. CPU peers run on one thread, NCHW in and out.
"""

import ctypes.util
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pysim.algorithms.contract import DIRECT_SUM, Bound
from pysim.check.fills import Array, held
from pysim.check.reference import shapes
from pysim.errors import MissingError, NativeError, OperandError, PysimError
from pysim.problem.text import Workload
from pysim.record.plan import Layout
from pysim.runtime import cpu, cuda


class Scratch:
    """Device memory that one call at a time works in. It grows, so calls ask where it lies when they run."""

    def __init__(self) -> None:
        self._memory: cuda.DeviceArray | None = None

    @property
    def pointer(self) -> int:
        return self._memory.pointer if self._memory else 0

    def reserve(self, nbytes: int, what: str) -> None:
        """At least so many bytes; NativeError says what needs them where they cannot be had, and what there was stays."""
        had = self._memory.nbytes if self._memory else 0
        if nbytes <= had:
            return
        self._memory = None  # the device need not hold both
        try:
            self._memory = cuda.DeviceArray((nbytes,), "u8")
        except PysimError as error:
            self._memory = cuda.DeviceArray((had,), "u8") if had else None
            raise NativeError(f"{what} needs {nbytes} bytes of workspace: {error}") from None


class Operands(NamedTuple):
    """Of one call: input and weights (A and B) and where the result goes, NumPy's arrays or all on the device, with their layout."""

    x: Any
    w: Any
    out: Any
    layout: Layout = "nchw"
    scratch: Scratch | None = None

    @property
    def pointers(self) -> tuple[int, int, int]:
        """Of arrays on the device."""
        return self.x.pointer, self.w.pointer, self.out.pointer


class Ready(NamedTuple):
    """A call that may be timed. `write` is to be checked where `call` leaves its result elsewhere; `workspace_bytes` is None of a library
    that does not say; `bound` is what its result may differ by."""

    call: Callable[[], object]
    version: str
    workspace_bytes: int | None = None
    bound: Bound = DIRECT_SUM
    write: Callable[[], object] | None = None


Make = Callable[[Operands], Ready]


class Library(Protocol):
    """The module of a peer."""

    @property
    def ALGORITHMS(self) -> tuple[str, ...]: ...  # noqa: N802
    def make(self, workload: Any, operands: Operands, algorithm: str = "") -> Ready: ...


def on_host(workload: Workload, operands: Operands) -> tuple[Array, Array, Array]:
    """Operands whose raw pointers are about to be passed on: OperandError unless they are what the library is told."""
    s = shapes(workload)
    kinds = (("x", s.x, held(workload.dtype)), ("w", s.w, held(workload.dtype)), ("out", s.out, cpu.RESULT_DTYPES[workload.dtype]))
    for (name, shape, kind), array in zip(kinds, operands[:3], strict=True):
        if array.shape != shape or array.dtype != kind or not array.flags.c_contiguous:
            right = f"{workload.text} wants a C-contiguous {kind} array of shape {shape}"
            raise OperandError(f"{name} is {array.dtype} of shape {array.shape}; {right}")
    return operands.x, operands.w, operands.out


def only(dtypes: tuple[str, ...], workload: Workload, library: str) -> None:
    """MissingError for a type that a library does not compute in."""
    if workload.dtype not in dtypes:
        raise MissingError(f"{library} computes in {' and '.join(dtypes)} here, not in {workload.dtype}")


def pointer(ffi: Any, array: Array) -> Any:
    return ffi.cast("void *", array.ctypes.data)


def forced(*variables: str) -> str:
    """What the environment makes a library choose instead of what it takes for this processor itself; for its version."""
    told = [f"{name}={os.environ[name]}" for name in variables if os.environ.get(name)]
    return f" (forced by {', '.join(told)})" if told else ""


def cuda_files(name: str) -> list[str]:
    """Where lib<name> of CUDA may lie: the wheels' folders, then what the system's linker knows."""
    found = importlib.util.find_spec("nvidia")
    folders = [Path(place) for place in list(found.submodule_search_locations or [])] if found else []
    files = [file for folder in folders for part in ("cu13", name) for file in sorted((folder / part / "lib").glob(f"lib{name}.so.*"))]
    system = ctypes.util.find_library(name)
    return [str(file) for file in files] + ([system] if system else [])
