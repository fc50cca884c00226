# SPDX-License-Identifier: Apache-2.0
"""The interface of a peer: a module that prepares another library's convolution or product, to be timed against ours.

    make(workload, operands, algorithm) -> Ready     a call that writes to `operands.out`, valid as long as the operands live; MissingError
                                                     where the library is missing or does not compute the problem
    ALGORITHMS                                       the algorithms to time; ("",) where the library chooses itself
    estimate(workload, gpu) -> (seconds, version)    instead of both, for a library that predicts and runs nothing

All preparation is done beforehand: pointers, sessions with constant weights, reordered weights. Work that a library does with plain
operands in every call (OpenBLAS packs both) counts. CPU peers run on one thread, with NCHW input and output.
"""

import ctypes.util
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pysim.algorithms.interface import DIRECT_SUM, Bound
from pysim.check.fills import Array, held
from pysim.check.reference import shapes
from pysim.errors import MissingError, NativeError, OperandError, PysimError
from pysim.problem.text import Workload
from pysim.record.plan import Layout
from pysim.runtime import cpu, cuda


class Scratch:
    """Device workspace shared by calls that run one at a time. It may be reallocated, so a call reads its address when it runs."""

    def __init__(self) -> None:
        self._memory: cuda.DeviceArray | None = None

    @property
    def pointer(self) -> int:
        return self._memory.pointer if self._memory else 0

    def reserve(self, nbytes: int, what: str) -> None:
        """Grows to at least this many bytes. NativeError names what needs them if allocation fails; the old memory stays."""
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
    """Operands of one call: input and weights (A and B), and the output, as NumPy arrays or all on the device, with their layout."""

    x: Any
    w: Any
    out: Any
    layout: Layout = "nchw"
    scratch: Scratch | None = None

    @property
    def pointers(self) -> tuple[int, int, int]:
        """Device pointers."""
        return self.x.pointer, self.w.pointer, self.out.pointer


class Ready(NamedTuple):
    """A call to be timed. `write`: a call to be checked instead, where `call` leaves its result elsewhere; `workspace_bytes`: None where
    the library does not report it; `bound`: the error bound of its result."""

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
    """Checks operands before their raw pointers are passed on: OperandError for other shapes or types."""
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
    """The kernel choice that environment variables force on a library, as part of its version; empty without one."""
    settings = [f"{name}={os.environ[name]}" for name in variables if os.environ.get(name)]
    return f" (forced by {', '.join(settings)})" if settings else ""


def cuda_files(name: str) -> list[str]:
    """Candidate paths of CUDA's lib<name>: folders of wheels, then the system's linker."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(place) for place in list(spec.submodule_search_locations or [])] if spec else []
    files = [file for folder in folders for part in ("cu13", name) for file in sorted((folder / part / "lib").glob(f"lib{name}.so.*"))]
    system = ctypes.util.find_library(name)
    return [str(file) for file in files] + ([system] if system else [])
