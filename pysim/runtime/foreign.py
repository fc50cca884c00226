# SPDX-License-Identifier: Apache-2.0
"""Foreign CPUs: finds compilers and an emulator for one, and cross-builds the native library into a worker program.

The worker is built once, into the user's cache, from the sources in the installed package.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from pysim.errors import MissingError
from pysim.logs import LOG
from pysim.registry.native_files import native_file

_FLAGS = ("-std=gnu11", "-Og", "-Wno-unknown-pragmas", "-Wno-psabi")  # -O1 takes longer to compile
_UNROLLED = "-O1"  # a loop's counter is an operand of instructions. -O3 takes longer to compile, and no less time in the emulator
# Folders of plain C
_ALGORITHMS = ("algorithms", "algorithms/grouped", "algorithms/integers", "algorithms/nest", "algorithms/strassen")
_ROOMS = ("abi", *_ALGORITHMS, "operators", "portable", "reference", "simulator", "threads")
_VECTORS = ("portable/vec_f32.h", "portable/vec_f64.h")  # each template is compiled for both


class Compiler(NamedTuple):
    """A C compiler for a foreign CPU: its command, the flags for ISA code, and a text that identifies its version."""

    name: str
    command: tuple[str, ...]
    isa_flags: tuple[str, ...]
    version: str


class Cpu(NamedTuple):
    """A CPU that can be emulated. Its ISA code is in native/<folder>; the rest of the library is plain C."""

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
        """The command that runs a program in the emulator; MissingError says how to install it."""
        for name in self.emulators:
            if path := shutil.which(name):
                return [path, *self.emulator_arguments]
        raise MissingError(f"{self.name} kernels run here under {self.emulators[0]}, which is not on PATH: {self.install_emulator}")

    def compilers(self) -> list[Compiler]:
        """The installed compilers, the faster one first; MissingError says how to install one."""
        usable = []
        if path := shutil.which(self.gcc):
            file = os.stat(path)
            usable.append(Compiler(path, (path,), self.gcc_flags, f"{path} {file.st_size} {file.st_mtime_ns}"))
        if version := installed("ziglang"):
            command = (sys.executable, "-m", "ziglang", "cc", "-target", self.zig_target)
            usable.append(Compiler(f"ziglang {version}", command, self.zig_flags, version))
        if not usable:
            raise MissingError(f"no compiler for {self.name} is here, neither {self.gcc} nor ziglang: {self.install_compiler}")
        return usable


def installed(package: str) -> str | None:
    """The version of a Python package, or None if it is not installed."""
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
    install_compiler="pip install ziglang, or sudo apt-get install gcc-powerpc64le-linux-gnu libc6-dev-ppc64el-cross",
)


def user_cache() -> Path | None:
    """pysim's folder in the user's cache (XDG); None if the user has no cache."""
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (configured if configured.is_absolute() else Path.home() / ".cache") / "pysim"
    except RuntimeError:
        return None


def _sources(cpu: Cpu) -> list[Path]:
    """The C files of the library, of the CPU's folder and of the worker, and all that they include, found by folder as in meson.build."""
    root = native_file("pysim.h").parent
    folders = [root / name for name in (".", *_ROOMS, "templates", "templates/integers", "templates/loops", cpu.folder)]
    return [path for folder in folders for path in sorted(folder.iterdir()) if path.suffix in (".c", ".h", ".inc")]


def plain_units() -> list[tuple[Path, tuple[str, ...]]]:
    """What the library in plain C and the worker are compiled from: files, and the flags of templates."""
    root = native_file("pysim.h").parent
    units: list[tuple[Path, tuple[str, ...]]] = [(path, ()) for room in _ROOMS for path in sorted((root / room).glob("*.c"))]
    return units + [(path, (f'-DVECTORS="{vectors}"',)) for path in sorted((root / "templates").glob("*.c")) for vectors in _VECTORS]


def worker_file(cpu: Cpu, compiler: Compiler) -> Path:
    """The path of the worker built by this compiler from the current sources."""
    folder = user_cache()
    if folder is None:
        raise MissingError(f"the {cpu.name} kernels need a folder to be built into, and the user has none: set XDG_CACHE_HOME")
    key = hashlib.sha256(repr((compiler, _FLAGS, _UNROLLED)).encode())
    for path in _sources(cpu):
        key.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return folder / f"{cpu.folder}-worker-{key.hexdigest()[:16]}"


def worker(cpu: Cpu) -> Path:
    """The worker program. Builds it if the cache lacks it, with a note on stderr.

    Raises MissingError with each compiler's messages if none can build it.
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
                fcntl.flock(lock, fcntl.LOCK_EX)  # two builds would do no harm, only duplicate work
                if not file.exists():
                    _build(cpu, compiler, file)
            return file
        except subprocess.CalledProcessError as error:
            refused.append(f"{' '.join(error.cmd)}\n{error.stderr.strip()}")
        except OSError as error:
            raise MissingError(f"the {cpu.name} kernels cannot be built into {file.parent}: {error}; set XDG_CACHE_HOME") from None
    raise MissingError(f"the {cpu.name} kernels cannot be built; {cpu.install_compiler}. The compiler says:\n" + "\n".join(refused))


def _build(cpu: Cpu, compiler: Compiler, file: Path) -> None:
    """Compiles all files, the CPU's own with its ISA flags, and installs the program atomically."""
    from concurrent.futures import ThreadPoolExecutor

    print(f"pysim: building the {cpu.name} kernels with {compiler.name}, once, into {file.parent}", file=sys.stderr, flush=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:

        def run(arguments: list[str]) -> None:
            subprocess.run([*compiler.command, *arguments], cwd=folder, capture_output=True, text=True, check=True)

        root = native_file("pysim.h").parent
        units = plain_units() + [(path, (*compiler.isa_flags, _UNROLLED)) for path in sorted((root / cpu.folder).glob("*.c"))]

        def compiled(at: int) -> str:
            source, flags = units[at]
            target = f"{at}-{source.stem}.o"
            run([*_FLAGS, *flags, f"-I{root}", "-c", str(source), "-o", target])
            return target

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compiled, range(len(units))))
        run(["-static", "-s", *objects, "-lm", "-o", "worker"])
        os.replace(Path(folder) / "worker", file)
    LOG.info("compiled the %s kernels with %s into %s", cpu.name, compiler.name, file)
    print(f"pysim: built in {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
