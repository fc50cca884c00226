# SPDX-License-Identifier: Apache-2.0
"""Runs kernels of a CPU that this computer is not: the same native library, cross-built into a worker program that runs under QEMU.

    executor_for(machine) -> LOCAL, or an Emulated: its `library()` has the functions of `pysim.h` and calls them in the worker

`pysim.runtime.foreign` builds the worker. A call is one line of text each way (native/abi/worker.c describes them). Operands are
copied into a memory file that the worker maps, and results are copied out of it, so the worker cannot touch this process's memory. Before
the first call the layout of every struct and the kinds of every argument are compared. QEMU shows what kernels compute; its times say
nothing about any machine.

Worked number: `pysim_run` on 1x64x56x56 with 64 3x3 filters copies 0.8 MB in, 0.15 MB of packed filters in and 0.8 MB out:
well under a millisecond. Under emulation the kernel takes tenths of a second.
"""

import atexit
import functools
import os
import re
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any, Literal
from weakref import WeakSet

from pysim.errors import NativeError, OperandError
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.registry.cpu import cpu_kernels
from pysim.runtime import cpu as runtime
from pysim.runtime.cpu import LOCAL, Executor
from pysim.runtime.foreign import POWER10, Cpu, worker

GREETING_SECONDS = 60.0
CALL_SECONDS = 600.0  # $PYSIM_EMULATION_SECONDS overrides it
KEPT_BYTES = 64 << 20  # size to which the memory file is reduced after a call
_ALIGNMENT = 128  # a cache line of POWER, and more than any struct or vector needs


# The running worker


class _GoneError(Exception):
    """The worker closed its end of a pipe."""


class _Worker:
    """A process that answers each line with a line. Its stderr is kept for error messages."""

    def __init__(self, command: list[str], shared: int) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed by stop
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [*command, str(shared)], stdin=pipe, stdout=pipe, stderr=self._errors, bufsize=0, pass_fds=(shared,), start_new_session=True
        )
        self._unread = b""

    def send(self, line: str) -> None:
        assert self.process.stdin
        try:
            self.process.stdin.write(line.encode() + b"\n")
        except BrokenPipeError:
            raise _GoneError from None

    def line(self, deadline: float) -> str:
        """The next line. _GoneError if the worker has closed its output, TimeoutError when time.monotonic() passes `deadline`."""
        assert self.process.stdout
        ready = select.poll()
        ready.register(self.process.stdout, select.POLLIN)
        while b"\n" not in self._unread:
            if not ready.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError
            some = os.read(self.process.stdout.fileno(), 1 << 16)
            if not some:
                raise _GoneError
            self._unread += some
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace")

    def stop(self, patience: float = 0.0) -> str:
        """Waits `patience` seconds for the worker to end, then kills it. Returns how it ended, with its stderr."""
        try:
            status = self.process.wait(patience)
            how = f"died of {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            how = "was stopped"
        self._errors.seek(0)
        words = self._errors.read()[-2000:].decode(errors="replace").strip()
        self.release()
        return f"{how}; it wrote: {words}" if words else f"{how} and wrote nothing"

    def release(self) -> None:
        """Closes this side's files, upon which a running worker ends by itself."""
        for file in (self.process.stdin, self.process.stdout, self._errors):
            assert file
            file.close()


class _Functions:
    """Stands for cffi's library object: its attributes are functions that call the worker."""

    def __init__(self, executor: "Emulated") -> None:
        self._executor = executor

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("pysim_"):
            raise AttributeError(name)
        return functools.partial(self._executor.call, name)


class Emulated:
    """The executor of a foreign CPU. The first call starts the worker; if the worker died, the next call starts another.

    Calls from several threads run one at a time. A forked child starts its own worker.
    """

    kind: Literal["emulated"] = "emulated"

    def __init__(self, cpu: Cpu) -> None:
        self.cpu = cpu
        self.about = f"{cpu.name} under {' '.join([cpu.emulators[0], *cpu.emulator_arguments])}"
        self._functions = _Functions(self)
        self._reset()
        _live.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._said = threading.local()
        self._command: list[str] | None = None
        self._worker: _Worker | None = None
        self._shared = -1
        self._kinds: dict[str, str] = {}
        self._written = ""

    def library(self) -> tuple[Any, Any]:
        """(ffi, functions). Builds the worker if necessary. MissingError says what prevents building or starting it."""
        with self._lock:
            if self._command is None:
                self._command = self.command()
        return runtime.library()[0], self._functions

    def runner(self, problem: Any, schedule: Any) -> Callable[..., int]:
        """Every run sends the problem and the schedule: jobs of the worker are not kept."""
        return functools.partial(self.library()[1].pysim_run, problem, schedule)

    def command(self) -> list[str]:
        """The command that starts the worker, without the memory file's descriptor."""
        emulator = self.cpu.emulator()
        return [*emulator, str(worker(self.cpu))]

    def close(self) -> None:
        """Ends the worker and frees its memory; the next call starts another."""
        with self._lock:
            self._stop()
            if self._shared >= 0:
                os.close(self._shared)
                self._shared = -1

    def __del__(self) -> None:
        self.close()

    def call(self, name: str, *arguments: Any) -> Any:
        """Calls a function of `pysim.h` in the worker. Arguments are as for cffi, and outputs are copied back into them.

        Raises NativeError, with the worker's stderr, if the worker dies or does not answer for $PYSIM_EMULATION_SECONDS.
        """
        ffi, _ = self.library()
        if name == "pysim_last_error":
            return ffi.new("char[]", getattr(self._said, "sentence", b""))
        with self._lock:
            try:
                self._start()
                value, self._said.sentence = self._exchange(name, arguments)
                return value
            except _GoneError:
                raise NativeError(f"the {self.cpu.name} worker {self._stop(patience=5.0)} (in {name})") from None
            except TimeoutError:
                silent = f"gave no answer to {name} in {_seconds():g} s (PYSIM_EMULATION_SECONDS allows more)"
                raise NativeError(f"the {self.cpu.name} worker {silent} and {self._stop()}") from None
            except BaseException:  # an interrupted exchange leaves its answer in the pipe
                self._stop()
                raise

    def _exchange(self, name: str, arguments: tuple[Any, ...]) -> tuple[int, bytes]:
        """Copies operands in, sends the request, and copies results out. Returns the function's status and the library's message."""
        ffi, _ = runtime.library()
        if name not in self._kinds:
            raise NativeError(f"the {self.cpu.name} worker has no function {name}")
        words, pieces, end = [name], [], 0
        for kind, value in zip(self._kinds[name], arguments, strict=True):
            if kind == "i":
                words.append(str(int(value)))
            elif value == ffi.NULL:
                words.append("-")
            else:
                content = _epilogue(ffi, value) if kind == "E" else memoryview(ffi.buffer(value)).cast("B")
                words.append(f"@{end}:{len(content)}")
                pieces.append((kind, end, content, value))
                end += -(-len(content) // _ALIGNMENT) * _ALIGNMENT
        try:
            self._reserve(end)
            for kind, offset, content, _ in pieces:
                if kind != "w":
                    _copy(os.pwrite, self._shared, content, offset)
        except OSError as error:
            raise OperandError(f"{end} bytes for the {self.cpu.name} worker to share cannot be had: {error}") from None
        answer = self.ask(" ".join(words))
        done = re.fullmatch(r"done (-?\d{1,19}) (.*)", answer)
        if not done:
            raise NativeError(f"the {self.cpu.name} worker answers {name} with: {answer[:200]}")
        for kind, offset, content, value in pieces:
            if kind in self._written:
                _copy(lambda file, view, at: os.preadv(file, [view], at), self._shared, content, offset)
            if kind == "K":
                value.name = value.target = value.form = ffi.NULL  # addresses in the worker; pysim.registry.cpu has the names
        if end > KEPT_BYTES:
            os.ftruncate(self._shared, KEPT_BYTES)
        return int(done[1]), done[2].encode()

    def ask(self, request: str) -> str:
        """Sends one line and returns the line that answers it."""
        assert self._worker
        self._worker.send(request)
        return self._worker.line(time.monotonic() + _seconds())

    def _reserve(self, size: int) -> None:
        """Grows the memory file to at least this size. Pages that nobody writes take no memory."""
        if os.fstat(self._shared).st_size < size:
            os.ftruncate(self._shared, size)

    def _start(self) -> None:
        """Starts the worker and compares its ABI with this side's."""
        if self._worker:
            return
        if self._shared < 0:
            self._shared = os.memfd_create("pysim")
            self._reserve(_ALIGNMENT)
        assert self._command
        self._worker = _Worker(self._command, self._shared)
        deadline, greeting = time.monotonic() + GREETING_SECONDS, list[str]()
        while not greeting or greeting[-1] != "ready":
            greeting.append(self._worker.line(deadline))
        self._kinds, self._written = agreed(greeting)

    def _stop(self, patience: float = 0.0) -> str:
        one, self._worker = self._worker, None
        return one.stop(patience) if one else "was not running"

    def _forget(self) -> None:
        """In a forked child: closes the pipes to the parent's worker, so that nothing is shared."""
        if self._worker:
            self._worker.process.returncode = 0  # not a child of this process
            self._worker.release()
        if self._shared >= 0:
            os.close(self._shared)
        self._reset()


def _seconds() -> float:
    given = os.environ.get("PYSIM_EMULATION_SECONDS", "")
    try:
        return float(given) if given else CALL_SECONDS
    except ValueError:
        raise OperandError(f'PYSIM_EMULATION_SECONDS is "{given}"; expected a number of seconds, such as 3600') from None


def _copy(move: Any, file: int, content: Any, offset: int) -> None:
    """Copies all of `content` to or from the file, in several calls if needed: one call moves at most 2 GiB."""
    view, done = memoryview(content), 0
    while done < len(view):
        done += move(file, view[done:], offset + done)


def _epilogue(ffi: Any, value: Any) -> bytes:
    """The struct, then its bias and residual; the struct's pointers are replaced by offsets into these bytes."""
    own, content = ffi.new("pysim_epilogue *", value[0]), b""
    for field, array in zip(("bias", "residual"), runtime.addends_of(value), strict=True):
        if array is not None:
            at = -(-(ffi.sizeof("pysim_epilogue") + len(content)) // _ALIGNMENT) * _ALIGNMENT
            content = content.ljust(at - ffi.sizeof("pysim_epilogue"), b"\0") + array.tobytes()
            setattr(own, field, ffi.cast("void *", at))
    return bytes(ffi.buffer(own)) + content


def agreed(greeting: list[str]) -> tuple[dict[str, str], str]:
    """The kinds of each function's arguments, and the kinds that are copied back. NativeError if headers or registries differ."""
    ffi, lib = runtime.library()
    letters: dict[str, str] = {}
    kinds: dict[str, str] = {}
    written = ""
    kernels = [f"kernel {row.index} {row.name}" for row in cpu_kernels()]
    for line in greeting:
        try:
            word, *rest = line.split()
            if word == "abi":
                right = int(rest[0]) == lib.PYSIM_ABI_VERSION
            elif word == "struct":
                letters[rest[1]] = rest[0]
                right = (int(rest[2]), int(rest[3])) == (ffi.sizeof(rest[1]), ffi.alignof(rest[1]))
            elif word == "written":
                right, written = True, rest[0]
            elif word == "call":
                kinds[rest[0]] = "".join(rest[1:])
                right = _kinds_agree(ffi.typeof(getattr(lib, rest[0])).args, kinds[rest[0]], letters)
            elif word == "kernel":
                right = line == kernels.pop(0)
            else:
                right = word == "ready" and not kernels
        except (ValueError, IndexError, AttributeError, TypeError, ffi.error):
            right = False
        if not right:
            raise NativeError(f'the worker was built from other sources than this library: it says "{line}"; reinstall the package')
    return kinds, written


def _kinds_agree(arguments: Any, kinds: str, letters: dict[str, str]) -> bool:
    """Whether the worker's letters and the header give each argument the same kind: integer, bytes or a particular struct."""
    return len(arguments) == len(kinds) and all(
        kind == "i" if a.kind != "pointer" else kind in "dDw" if a.item.kind == "void" else kind == letters.get(a.item.cname)
        for a, kind in zip(arguments, kinds, strict=True)
    )


# Executors of machines

_live: "WeakSet[Emulated]" = WeakSet()
EMULATED = {"mma": Emulated(POWER10)}  # registry target -> the executor on CPUs that lack it


def _forget_all() -> None:
    for one in list(_live):
        one._forget()


@atexit.register
def _close_all() -> None:
    for one in list(_live):
        one.close()


os.register_at_fork(after_in_child=_forget_all)


@functools.cache
def _local_targets() -> frozenset[str]:
    return frozenset(name.rpartition("__")[2] for name in runtime.available_kernels())


def targets_of(on: Machine) -> list[str]:
    """The machine's instruction sets that have an emulator, so that they run on any computer."""
    return [unit.target for unit in on.core.units if unit.target in EMULATED]


def executor_for(on: Machine | Gpu) -> Executor:
    """The executor of a machine's plans: this process, or an emulator if this CPU lacks a unit that has one."""
    if isinstance(on, Gpu):
        return LOCAL
    return next((EMULATED[target] for target in targets_of(on) if target not in _local_targets()), LOCAL)
