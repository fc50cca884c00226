# SPDX-License-Identifier: Apache-2.0
"""An earlier build of pysim as a peer: the plans of a baseline, run by the native library that they were measured with.

Timed in turns on the same operands, a plan of today and that of the baseline see one computer, whatever else it does: what differs is the
plan's or the library's. `keep` copies the library and its declarations, 8 MB, beside the measurement store, at most MOST_KEPT of them. A
copy may have other tables and struct fields than this package's library: rows are found by name and fields by the declarations, and
what cannot be told so is refused.
"""

import hashlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pysim.check.bounds import bound_of
from pysim.errors import MissingError, StoreError
from pysim.file_io import written
from pysim.measure.store import default_path
from pysim.peers.peer import Operands, Ready
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.record.plan import Plan, on_cpu
from pysim.registry.cpu import kind_of
from pysim.registry.native_files import declarations
from pysim.runtime import cpu

NAME = "baseline"  # of this peer
MOST_KEPT = 16
ALGORITHMS = ("",)


def kept_in() -> Path:
    """The folder of kept libraries, beside the measurement store."""
    store = default_path()
    return store.with_name(f"{store.name}-libraries")


def keep(folder: Path) -> str:
    """Copies this package's native library into the folder; returns the copy's name. StoreError if it cannot be written."""
    library, text = cpu.library_path().read_bytes(), declarations("pysim.h").encode()
    name = hashlib.sha256(library + text).hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, content in ((".h", text), (".so", library)):
            with written(folder / f"{name}{suffix}", StoreError) as partial_file:
                partial_file.write_bytes(content)
        oldest = sorted(folder.glob("*.so"), key=lambda path: path.stat().st_mtime)[:-MOST_KEPT]
        for path in oldest:
            path.unlink(missing_ok=True)
            path.with_suffix(".h").unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{folder}: the library of the baseline cannot be kept: {error}") from None
    return name


class Library(NamedTuple):
    """A kept library that is open, and the lines of its tables."""

    opened: cpu.Opened
    tables: list[str]

    @classmethod
    def of(cls, folder: Path, name: str) -> "Library":
        """MissingError if it is gone, damaged, or of another interface."""
        import cffi

        path = folder / f"{name}.so"
        try:
            text = path.with_suffix(".h").read_bytes()
            if hashlib.sha256(path.read_bytes() + text).hexdigest()[:16] != name:
                raise MissingError(f"{path} is damaged")
            ffi = cffi.FFI()
            ffi.cdef(text.decode())
            lib = ffi.dlopen(str(path))
            its, ours = lib.pysim_abi_version(), cpu.library()[1].pysim_abi_version()
            tables = ffi.string(lib.pysim_tables()).decode().splitlines()
        except (OSError, AttributeError, UnicodeDecodeError, cffi.CDefError, cffi.FFIError) as error:
            raise MissingError(f"{path} cannot be opened: {error}") from None
        if its != ours:
            raise MissingError(f"{path} speaks ABI {its}, today's library {ours}")
        return cls((ffi, lib), tables)

    def row(self, line: str) -> int:
        """The number of a kernel, or of an algorithm with its kind of problem. MissingError if the tables lack it."""
        rows = [one for one in self.tables[1:] if (" " in one) == (" " in line)]
        if line not in rows:
            raise MissingError(f"the library of the baseline has no {line}")
        return rows.index(line)

    def numbered(self, name: str) -> int:
        return next(int(line.split()[1]) for line in self.tables[1:] if line.startswith(f"{name} ") and line.split()[1].isdecimal())

    def check(self, status: int) -> None:
        if status:
            ffi, lib = self.opened
            raise MissingError(f"the library of the baseline refuses: {ffi.string(lib.pysim_last_error()).decode()}")


class Earlier:
    """Plans by problem, with the kept libraries that run them. It is what `Peer.made` takes."""

    ALGORITHMS = ALGORITHMS

    def __init__(self, plans: Mapping[str, tuple[Plan, str]], folder: Path) -> None:
        self._plans, self._folder = plans, folder
        self._open: dict[str, Library] = {}

    def make(self, workload: Workload, operands: Operands, algorithm: str = "") -> Ready:
        """A call that writes to the operands' result."""
        if workload.text not in self._plans:
            raise MissingError("the baseline has no plan of it that can run here")
        plan, name = self._plans[workload.text]
        if name not in self._open:
            self._open[name] = Library.of(self._folder, name)
        try:
            call = _bound(self._open[name], plan, operands)
        except (AttributeError, KeyError, TypeError, ValueError, StopIteration) as error:  # a field or a constant that it lacks
            raise MissingError(f"the library of the baseline has another interface: {error}") from None
        return Ready(call, version_of(name, plan.kernel, plan.name), plan.workspace_bytes, bound_of(plan))


def version_of(library: str, kernel: str, schedule: str) -> str:
    """What must be equal for times beside an earlier plan to be times beside this one."""
    return f"library {library}, {kernel}, {hashlib.sha256(schedule.encode()).hexdigest()[:8]}"


def _bound(library: Library, plan: Plan, operands: Operands) -> Any:
    """`Launch.step(...).bound()` of a kept library, with weights prepared once."""
    (ffi, lib), w, (schedule, _) = library.opened, plan.workload, on_cpu(plan)
    problem = cpu.problem_struct(w, plan.layout, library.opened)
    rows = library.row(f"{plan.algorithm} {kind_of(w)}"), library.row(schedule.kernel)
    obeyed = ffi.new("pysim_schedule *", cpu.schedule_fields(schedule, *rows))

    def size(function: Any, *arguments: int) -> int:
        found = ffi.new("int64_t *")
        library.check(function(problem, obeyed, *arguments, found))
        return int(found[0])

    job, place = ffi.new("int64_t[]", lib.pysim_job_bytes() // 8), ffi.from_buffer
    library.check(lib.pysim_open(problem, obeyed, job, ffi.sizeof(job)))
    epilogue = ffi.new(
        "pysim_epilogue *",
        {"alpha": 1.0, "activation": library.numbered("identity"), "low": -np.inf, "high": np.inf},
    )
    weights = operands.w
    if prepared := size(lib.pysim_prepared_bytes):
        weights = cpu.aligned(prepared, np.uint8)
        library.check(lib.pysim_prepare(problem, obeyed, place(operands.w), place(weights), prepared))
    elif not isinstance(w, Gemm):
        weights = cpu.aligned(operands.w.shape, operands.w.dtype)
        weights[...] = operands.w
    workspace = cpu.aligned(size(lib.pysim_workspace_bytes, plan.threads), np.uint8)
    kept = {"first": place(operands.x), "second": place(weights), "result": place(operands.out), "workspace": place(workspace)}
    fields = {"kind": lib.PYSIM_STEP_RUN, "of": job, "epilogue": epilogue, "threads": plan.threads, "workspace_bytes": workspace.nbytes}
    step = ffi.new("pysim_step *", fields | kept)
    library.check(lib.pysim_check_step(step))
    call = partial(lib.pysim_run_checked_step, step)
    vars(call)["keep_alive"] = kept, fields
    return call
