# SPDX-License-Identifier: Apache-2.0
"""Kernels of a CPU that this computer lacks: the same native library, cross-built into a worker program that runs under QEMU.

    executor_for(machine) -> LOCAL, or an Emulated: its `library()` has the functions of `pysim.h` and calls them in the worker

The worker is built once into the user's cache from the sources that lie beside this package. A call is one line of text each way
(native/worker/worker.c describes them); operands are copied into a memory file that the worker maps, and results out of it, so
whatever the worker does, it cannot touch this process. Both sides compare the layout of every struct and the kinds of every
argument before the first call. QEMU proves what kernels compute. How long it takes says nothing about any machine.

Worked number: `pysim_run` on 1x64x56x56 with 64 3x3 filters copies 0.8 MB in, 0.15 MB of packed filters in and 0.8 MB out:
well under a millisecond, where the kernel takes tenths of a second under emulation.
"""

import atexit
import fcntl
import functools
import hashlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Literal, NamedTuple
from weakref import WeakSet

from pysim.errors import MissingError, NativeError, OperandError
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.registry.rows import native_file
from pysim.runtime import cpu as runtime
from pysim.runtime.cpu import LOCAL, Executor

GREETING_SECONDS = 60.0
CALL_SECONDS = 600.0  # $PYSIM_EMULATION_SECONDS replaces it
KEPT_BYTES = 64 << 20  # of the memory file between two calls
_ALIGNMENT = 128  # a cache line of POWER, and more than any struct or vector asks for
_FLAGS = ("-std=gnu11", "-O3", "-Wno-unknown-pragmas")


class Compiler(NamedTuple):
    """A C compiler for a foreign CPU: its command, the flags of ISA code, and what tells two versions apart."""

    name: str
    command: tuple[str, ...]
    isa_flags: tuple[str, ...]
    version: str


class Cpu(NamedTuple):
    """A CPU that can be emulated. Its ISA code lies in native/<folder>; all else of the library is plain C."""

    name: str
    folder: str
    emulators: tuple[str, ...]
    emulator_arguments: tuple[str, ...]
    install_emulator: str
    gcc: str
    gcc_flags: tuple[str, ...]
    zig_target: str
    zig_flags: tuple[str, ...]
    install_compiler: str

    def emulator(self) -> list[str]:
        """The command in front of a program; MissingError says how to install it."""
        for name in self.emulators:
            if path := shutil.which(name):
                return [path, *self.emulator_arguments]
        raise MissingError(f"{self.name} kernels run here under {self.emulators[0]}, which is not on PATH: {self.install_emulator}")

    def compilers(self) -> list[Compiler]:
        """Those that are here, the quicker one first; MissingError says how to install one."""
        found = []
        if path := shutil.which(self.gcc):
            file = os.stat(path)
            found.append(Compiler(path, (path,), self.gcc_flags, f"{path} {file.st_size} {file.st_mtime_ns}"))
        if version := installed("ziglang"):
            command = (sys.executable, "-m", "ziglang", "cc", "-target", self.zig_target)
            found.append(Compiler(f"ziglang {version}", command, self.zig_flags, version))
        if not found:
            raise MissingError(f"no compiler for {self.name} is here, neither {self.gcc} nor ziglang: {self.install_compiler}")
        return found


def installed(package: str) -> str | None:
    """The version of a Python package, or None where it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


POWER10 = Cpu(
    name="POWER10",
    folder="power10",
    emulators=("qemu-ppc64le", "qemu-ppc64le-static"),
    emulator_arguments=("-cpu", "power10"),
    install_emulator="sudo apt-get install qemu-user",
    gcc="powerpc64le-linux-gnu-gcc",
    gcc_flags=("-mcpu=power10",),
    zig_target="powerpc64le-linux-musl",
    zig_flags=("-mcpu=pwr10",),
    install_compiler="pip install '.[power10]', or sudo apt-get install gcc-powerpc64le-linux-gnu libc6-dev-ppc64el-cross",
)


# The worker program


def user_cache() -> Path | None:
    """pysim's folder of the user's cache (XDG); None where the user has none."""
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (configured if configured.is_absolute() else Path.home() / ".cache") / "pysim"
    except RuntimeError:
        return None


def _sources(cpu: Cpu) -> list[Path]:
    """The library's files, found by folder as meson.build lists them, with the CPU's own, and the worker."""
    root = native_file("pysim.h").parent
    folders = [root / name for name in (".", "conv", "worker", cpu.folder)]
    return [*sorted(root.glob("*.inc")), *(path for folder in folders for path in sorted(folder.glob("*.[ch]")))]


def worker_file(cpu: Cpu, compiler: Compiler) -> Path:
    """Where the worker lies that this compiler makes of these sources."""
    folder = user_cache()
    if folder is None:
        raise MissingError(f"the {cpu.name} kernels need a folder to be built into, and the user has none: set XDG_CACHE_HOME")
    key = hashlib.sha256(repr((compiler, _FLAGS)).encode())
    for path in _sources(cpu):
        key.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return folder / f"{cpu.folder}-worker-{key.hexdigest()[:16]}"


def worker(cpu: Cpu) -> Path:
    """The worker program, built if it is not in the cache yet, which is said on stderr.

    Raises MissingError with each compiler's own words where none can build it.
    """
    compilers = cpu.compilers()
    files = [worker_file(cpu, compiler) for compiler in compilers]
    for file in files:
        if file.exists():
            return file
    refused = []
    for compiler, file in zip(compilers, files, strict=True):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with open(file.parent / f"{cpu.folder}-worker.lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # two processes would do no harm, but the work twice
                if not file.exists():
                    _build(cpu, compiler, file)
            return file
        except subprocess.CalledProcessError as error:
            refused.append(f"{' '.join(error.cmd)}\n{error.stderr.strip()}")
        except OSError as error:
            raise MissingError(f"the {cpu.name} kernels cannot be built into {file.parent}: {error}; set XDG_CACHE_HOME") from None
    raise MissingError(f"the {cpu.name} kernels cannot be built; {cpu.install_compiler}. The compiler says:\n" + "\n".join(refused))


def _build(cpu: Cpu, compiler: Compiler, file: Path) -> None:
    """Compiles every file, the CPU's own with its flags, and puts the program in place in one step."""
    from concurrent.futures import ThreadPoolExecutor

    print(f"pysim: building the {cpu.name} kernels with {compiler.name}, once, into {file.parent}", file=sys.stderr, flush=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:

        def run(arguments: list[str]) -> None:
            subprocess.run([*compiler.command, *arguments], cwd=folder, capture_output=True, text=True, check=True)

        def compiled(source: Path) -> str:
            target = f"{source.parent.name}-{source.stem}.o"
            isa = compiler.isa_flags if source.parent.name == cpu.folder else ()
            include = f"-I{native_file('pysim.h').parent}"
            run([*_FLAGS, *isa, include, "-c", str(source), "-o", target])
            return target

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compiled, [path for path in _sources(cpu) if path.suffix == ".c"]))
        run(["-static", "-s", *objects, "-lm", "-o", "worker"])
        os.replace(Path(folder) / "worker", file)
    print(f"pysim: built in {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)


# The running worker


class _GoneError(Exception):
    """The worker closed its end of a pipe."""


class _Worker:
    """A process that answers lines with lines. What it writes to stderr is kept for the error that may follow."""

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
        """The next line; _GoneError where none will come, TimeoutError when time.monotonic() passes `deadline`."""
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
        """Says how it ended, or ends it where it still runs after `patience` seconds."""
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
        """Closes this side's files; a worker that still runs then ends by itself."""
        for file in (self.process.stdin, self.process.stdout, self._errors):
            assert file
            file.close()


class _Functions:
    """What cffi gives for a library, for one that runs elsewhere: attributes are functions."""

    def __init__(self, executor: "Emulated") -> None:
        self._executor = executor

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("pysim_"):
            raise AttributeError(name)
        return functools.partial(self._executor.call, name)


class Emulated:
    """The executor of a foreign CPU. The worker starts with the first call; one that died is replaced by the next call.

    Calls of several threads wait for one another. A forked child starts a worker of its own.
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
        """(ffi, functions), where the worker can be started: MissingError says what is missing; it is built if need be."""
        with self._lock:
            if self._command is None:
                self._command = self.command()
        return runtime.library()[0], self._functions

    def command(self) -> list[str]:
        """What starts the worker, the number of the memory file left out."""
        emulator = self.cpu.emulator()
        return [*emulator, str(worker(self.cpu))]

    def close(self) -> None:
        """Ends the worker and gives its memory back; the next call starts anew."""
        with self._lock:
            self._stop()
            if self._shared >= 0:
                os.close(self._shared)
                self._shared = -1

    def __del__(self) -> None:
        self.close()

    def call(self, name: str, *arguments: Any) -> Any:
        """A function of `pysim.h` in the worker: arguments as cffi takes them, what is written comes back into them.

        Raises NativeError where the worker dies or is silent for $PYSIM_EMULATION_SECONDS; what it wrote stands in the message.
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
            except BaseException:  # an exchange that is cut short leaves its answer in the pipe
                self._stop()
                raise

    def _exchange(self, name: str, arguments: tuple[Any, ...]) -> tuple[int, bytes]:
        """Copies operands in, asks, copies results out: what the function returned, and the library's sentence."""
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
                value.name = value.target = value.form = ffi.NULL  # the worker's addresses; pysim.registry.rows has the names
        if end > KEPT_BYTES:
            os.ftruncate(self._shared, KEPT_BYTES)
        return int(done[1]), done[2].encode()

    def ask(self, request: str) -> str:
        """One line there, one line back."""
        assert self._worker
        self._worker.send(request)
        return self._worker.line(time.monotonic() + _seconds())

    def _reserve(self, size: int) -> None:
        """The memory file has at least this size; what nobody writes takes no memory."""
        if os.fstat(self._shared).st_size < size:
            os.ftruncate(self._shared, size)

    def _start(self) -> None:
        """Starts the worker and compares its view of the ABI with this side's."""
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
        """In a forked child: the worker is the parent's; this side of its pipes is closed, and nothing is shared any more."""
        if self._worker:
            self._worker.process.returncode = 0  # no child of this process
            self._worker.release()
        if self._shared >= 0:
            os.close(self._shared)
        self._reset()


def _seconds() -> float:
    given = os.environ.get("PYSIM_EMULATION_SECONDS", "")
    try:
        return float(given) if given else CALL_SECONDS
    except ValueError:
        raise OperandError(f'PYSIM_EMULATION_SECONDS is "{given}"; right is a number of seconds, such as 3600') from None


def _copy(move: Any, file: int, content: Any, offset: int) -> None:
    """All of `content` to or from the file: one call moves 2 GiB at most."""
    view, done = memoryview(content), 0
    while done < len(view):
        done += move(file, view[done:], offset + done)


def _epilogue(ffi: Any, value: Any) -> bytes:
    """The struct and then the bias, which it points to by its offset in these bytes."""
    bias, own = runtime.bias_of(value), ffi.new("pysim_epilogue *", value[0])
    if bias is None:
        return bytes(ffi.buffer(own))
    own.bias = ffi.cast("void *", _ALIGNMENT)
    return bytes(ffi.buffer(own)).ljust(_ALIGNMENT, b"\0") + bias.tobytes()


def agreed(greeting: list[str]) -> tuple[dict[str, str], str]:
    """The kinds of each function's arguments and the kinds that come back; NativeError where both sides differ about anything."""
    ffi, lib = runtime.library()
    letters: dict[str, str] = {}
    kinds: dict[str, str] = {}
    written = ""
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
            else:
                right = word == "ready"
        except (ValueError, IndexError, AttributeError, TypeError, ffi.error):
            right = False
        if not right:
            raise NativeError(f'the worker was built from another pysim.h than this library: it says "{line}"; reinstall the package')
    return kinds, written


def _kinds_agree(arguments: Any, kinds: str, letters: dict[str, str]) -> bool:
    """Whether the letters say of each argument what the header says: integer, bytes or which struct."""
    return len(arguments) == len(kinds) and all(
        kind == "i" if a.kind != "pointer" else kind in "dDw" if a.item.kind == "void" else kind == letters.get(a.item.cname)
        for a, kind in zip(arguments, kinds, strict=True)
    )


# Which machine runs where

_live: "WeakSet[Emulated]" = WeakSet()
EMULATED = {"mma": Emulated(POWER10)}  # registry target -> who runs it where this CPU cannot


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
    """The instruction sets of a machine that run on any computer, because there is an emulator for CPUs that lack them."""
    return [unit.target for unit in on.core.units if unit.target in EMULATED]


def executor_for(on: Machine | Gpu) -> Executor:
    """Where the plans of a machine run: in this process, or under an emulator if there is one for a unit that this CPU lacks."""
    if isinstance(on, Gpu):
        return LOCAL
    return next((EMULATED[target] for target in targets_of(on) if target not in _local_targets()), LOCAL)
