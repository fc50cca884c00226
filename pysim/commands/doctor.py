# SPDX-License-Identifier: Apache-2.0
"""`pysim doctor`: what is installed, what is missing, and the command that installs it. It changes nothing and times nothing."""

import glob
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import click

from pysim import __version__
from pysim.commands.common import document, json_option, put, size, wrapped
from pysim.errors import MissingError, PysimError
from pysim.logs import is_disabled
from pysim.machine.allowed import allowed
from pysim.registry.cpu import cpu_kernels
from pysim.registry.cuda import gemm_kernels
from pysim.runtime.foreign import POWER10, Cpu, installed, worker_file

FEATURES = ("fma", "avx2", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16", "avx512_vnni", "amx_tile", "arch_3_1", "mma")
PEER_FIXES = {
    "im2col_openblas": "pip install scipy-openblas64",
    "onednn": "pip install onednn-cpu-gomp",
    "onnxruntime": "pip install onnx onnxruntime",
}
REQUIRED = ("cffi", "click", "ml_dtypes", "msgspec", "networkx", "numpy", "rich", "scipy")
ON_OPENMP = ("torch", "intel-openmp", "mkl", "scikit-learn", "onednn-cpu-gomp")  # packages whose threads are OpenMP's
SPINNING = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0", "GOMP_SPINCOUNT": "0"}  # settings by which they sleep, not spin
STYLES = {"ok": "green", "note": "yellow", "missing": "red"}


class Check(NamedTuple):
    """The result of one check; `fix` is a command that would change it."""

    name: str
    status: Literal["ok", "note", "missing"]
    detail: str
    fix: str = ""


@click.command()
@json_option
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Show what is installed, what is missing, and the command that installs it. Exit code 0 if `pysim compare` works here, else 3.

    \b
    Example
      pysim doctor
    """
    groups = {group: list(checks()) for group, checks in GROUPS.items()}
    works = all(check.status == "ok" for check in groups["pysim"] if check.name in ("packages", "native library", "kernels"))
    if as_json:
        checks = [{"group": group, **check._asdict()} for group, checks in groups.items() for check in checks]
        document(works=works, checks=checks)
    else:
        _put(groups)
        put("")
        put("pysim compare resnet50 works here" if works else "pysim compare does not work here yet: see the missing items under pysim")
    ctx.exit(0 if works else MissingError.exit_code)


def _put(groups: dict[str, list[Check]]) -> None:
    width = max(len(check.name) for checks in groups.values() for check in checks)
    for number, (group, checks) in enumerate(groups.items()):
        if number:
            put("")
        put((group, "bold"))
        for check in checks:
            indent = " " * (width + 13)
            first, *more = wrapped(check.detail, indent).removeprefix(indent).split("\n")
            put((f"  {check.status:<9}", STYLES[check.status]), f"{check.name:<{width}}  {first}")
            for line in more:
                put(line)
            if check.fix:
                put(indent, ("fix: ", "bold"), check.fix)


# This computer


def _computer() -> Iterator[Check]:
    yield _cpu()
    yield _threads()
    yield _caches()
    yield _governor()
    yield _pinning()
    yield _load()


def _cpu() -> Check:
    from pysim.calibration.linux import CPUINFO, read_cpu

    cpu, words = read_cpu(), set()
    try:
        lines = CPUINFO.read_text(errors="replace").splitlines()
        words = set(next((line for line in lines if line.startswith(("flags", "Features"))), "").split())
    except OSError:
        pass
    features = " ".join(name for name in FEATURES if name in words) or "features not listed"
    detail = f"{cpu.name}, {os.cpu_count()} CPUs, {platform.machine()}: {features}"
    return Check("CPU", "ok", detail)


def _threads() -> Check:
    may = allowed()
    placed = f"; on CPUs {', '.join(map(str, may.cpus))}" if may.cpus else ""
    return Check("threads", "ok", f"{may.threads} at once: {may.reason}{placed}")


def _caches() -> Check:
    from pysim.calibration.linux import read_caches

    try:
        levels = [f"L{one.level} {size(one.size_bytes)} ({one.sets} x {one.ways} x {one.line_bytes} B)" for one in read_caches()]
    except PysimError as error:
        return Check("caches", "missing", str(error), "write a machine file: pysim machines show zen4 --toml > mine.toml")
    return Check("caches", "ok", ", ".join(levels))


def _governor() -> Check:
    from pysim.calibration.linux import SYSFS

    try:
        governor = (SYSFS / "cpu0" / "cpufreq" / "scaling_governor").read_text().strip()
    except OSError:
        return Check("governor", "note", "not visible (as in most virtual machines): the clock may change during a run")
    if governor == "performance":
        return Check("governor", "ok", governor)
    return Check("governor", "note", f"{governor}: the clock may change during a run", "sudo cpupower frequency-set -g performance")


def _pinning() -> Check:
    if not hasattr(os, "sched_setaffinity"):
        return Check("pinning", "note", "this system cannot pin a thread to a CPU, so timings may scatter")
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {max(allowed)})
        os.sched_setaffinity(0, allowed)
    except OSError as error:
        return Check("pinning", "note", f"refused ({error}), so timings may scatter")
    return Check("pinning", "ok", f"allowed; one thread is timed on CPU {max(allowed)} of {len(allowed)}")


def _load() -> Check:
    load, cpus = os.getloadavg()[0], os.cpu_count() or 1
    if load < 0.5:
        return Check("load", "ok", f"{load:.1f} on {cpus} CPUs")
    busy = "other processes are running, so times and ratios measured now are uncertain: the output says by how much, and has no summary"
    return Check("load", "note", f"{load:.1f} on {cpus} CPUs: {busy} where more than a third of the rounds were disturbed")


# pysim itself


def _pysim() -> Iterator[Check]:
    yield Check("version", "ok", f"pysim {__version__}, Python {platform.python_version()} at {sys.executable}")
    yield _packages()
    if is_disabled():
        yield Check("off switch", "note", "PYSIM_DISABLE is set: PyTorch models are left to PyTorch", "unset PYSIM_DISABLE")
    yield _library()
    yield _kernels()
    yield _store()


def _packages() -> Check:
    absent = [name for name in REQUIRED if installed(name) is None]
    if absent:
        return Check("packages", "missing", f"{', '.join(absent)} not installed", f"pip install {' '.join(absent)}")
    return Check("packages", "ok", ", ".join(f"{name} {installed(name)}" for name in REQUIRED))


def _library() -> Check:
    from pysim.runtime import cpu as runtime

    try:
        _, lib = runtime.library()
    except (PysimError, OSError) as error:
        return Check("native library", "missing", str(error), "sudo apt-get install gcc && pip install .   (in a checkout)")
    return Check("native library", "ok", f"{runtime.library_path()}, ABI {lib.pysim_abi_version()}")


def _kernels() -> Check:
    """How many kernels of each target run here, and why the others do not."""
    from pysim.runtime import cpu as runtime

    try:
        available = runtime.available_kernels()
    except (PysimError, OSError):
        return Check("kernels", "missing", f"none of {len(cpu_kernels())} runs without the native library")
    targets: dict[str, list[bool]] = {}
    for row in cpu_kernels():
        targets.setdefault(row.target, []).append(row.name in available)
    text = [f"{target} {sum(runs)} of {len(runs)}{_why(target, runs, available)}" for target, runs in targets.items()]
    return Check("kernels", "ok" if available else "missing", ", ".join(text))


def _why(target: str, runs: list[bool], available: frozenset[str]) -> str:
    """Why not all kernels of a target run."""
    missing = [row for row in cpu_kernels() if row.target == target and row.name not in available]
    if any(runs) and missing and all(row.left_out for row in missing):
        return " (this build leaves out those that wider vectors replace; PYSIM_TARGETS=all tools/setup)"
    return "" if all(runs) else " (needs another CPU or another build)"


def _store() -> Check:
    """The measurement store, if it exists; it is not created."""
    from pysim.measure.store import Store, default_path

    try:
        path = default_path()
        if not path.exists():
            return Check("measurements", "ok", f"none yet; they will be stored in {path}")
        with Store(path) as store:
            return Check("measurements", "ok", f"{len(store):,} in {path}")
    except (PysimError, OSError) as error:
        return Check("measurements", "missing", str(error), "set PYSIM_STORE to another path")


# Other libraries


def _libraries() -> Iterator[Check]:
    import numpy as np

    from pysim.peers import PEERS
    from pysim.peers.peer import Operands
    from pysim.problem.conv import Conv

    tiny = Conv(channels=4, height=4, width=4, filters=4, kernel_h=1, kernel_w=1)
    x, w, out = (np.ones(shape, np.float32) for shape in ((1, 4, 4, 4), (4, 4, 1, 1), (1, 4, 4, 4)))
    for name, peer in PEERS.items():
        if peer.on == "cpu":
            try:
                ready = peer.library.make(tiny, Operands(x, w, out))
            except MissingError as error:
                yield Check(name, "missing", str(error), PEER_FIXES.get(name, ""))
                continue
            out.fill(np.nan)
            ready.call()
            if bool((out == 4).all()):
                yield Check(name, "ok", ready.version)
            else:
                yield Check(name, "missing", f"{ready.version} gives wrong results for {tiny.text}", PEER_FIXES.get(name, ""))
    yield from _openmp()
    yield _package("onnx", "reads model.onnx", "pip install onnx")
    yield _package("torch", "runs PyTorch models", "pip install torch")
    yield _package("matplotlib", "draws plots", "pip install matplotlib")
    yield _package("vl-convert-python", "draws the pages of pysim report", "pip install vl-convert-python")


def _openmp() -> Iterator[Check]:
    """Whether threads of OpenMP, after a call, spin on the CPUs that the threads of pysim need."""
    here = [f"{name} {version}" for name in ON_OPENMP if (version := installed(name))]
    if not here:
        return
    passive = [f"{name}={value}" for name, value in SPINNING.items() if os.environ.get(name, "").strip().lower() == value]
    if passive:
        yield Check("OpenMP threads", "ok", f"they sleep between calls ({passive[0]})")
        return
    spin = f"those of {', '.join(here)} spin after a call, on the CPUs that pysim needs"
    detail = f"{spin}: with several threads beside them pysim may take several times as long (docs/environment.md)"
    yield Check("OpenMP threads", "note", detail, "export OMP_WAIT_POLICY=passive")


def _package(name: str, use: str, fix: str) -> Check:
    version = installed(name)
    return Check(name, "ok", f"{version}, {use}") if version else Check(name, "missing", f"not installed; it {use}", fix)


# Other machines


def _machines() -> Iterator[Check]:
    yield from _emulation(POWER10)
    wheel = installed("nvidia-cuda-nvcc")
    builds = f"builds the CUDA kernels ({len(gemm_kernels())} for matrix products)"
    if wheel:
        yield Check("nvcc", "ok", f"nvidia-cuda-nvcc {wheel}")
    else:
        yield _tool("nvcc", ("nvcc",), builds, "pip install nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-crt nvidia-nvvm")
    yield _cuda_library()
    yield _gpu()


def _emulation(cpu: Cpu) -> Iterator[Check]:
    """Whether kernels of a foreign CPU could run here under emulation; nothing is built."""
    yield _tool("QEMU", cpu.emulators, f"runs {cpu.name} kernels", cpu.install_emulator)
    compiler, ready = f"{cpu.name} compiler", f"{cpu.name} kernels"
    try:
        compilers = cpu.compilers()
    except MissingError:
        yield Check(compiler, "missing", f"neither {cpu.gcc} nor ziglang is installed; either builds {ready}", cpu.install_compiler)
        return
    yield Check(compiler, "ok", ", ".join(one.name for one in compilers))
    try:
        files = [worker_file(cpu, one) for one in compilers]
        cpu.emulator()
    except MissingError as error:
        yield Check(ready, "missing", str(error))
        return
    built = next((file for file in files if file.exists()), None)
    yield Check(ready, "ok", f"built: {built}" if built else f"will be built on first use, in {files[0].parent}")


def _tool(name: str, commands: tuple[str, ...], use: str, fix: str) -> Check:
    path = next((groups for command in commands if (groups := shutil.which(command))), None)
    if path is None:
        return Check(name, "missing", f"no {' or '.join(commands)} on PATH; it {use}", fix)
    return Check(name, "ok", f"{path}: {_answer([path, '--version'])}; it {use}")


def _answer(command: list[str]) -> str:
    """The line of a program's output that contains a version, else the first line."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout.splitlines()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"does not run ({error})"
    return next((line.strip() for line in answer if "ersion" in line or "release" in line), (answer or ["no version"])[0])


def _cuda_library() -> Check:
    from pysim.runtime import cuda

    again = "where nvcc and an NVIDIA GPU are, install this package again: pip install ."
    try:
        path = str(cuda.library_path())
    except MissingError:
        return Check("CUDA library", "missing", "no CUDA kernel is in this build", again)
    try:
        cuda.library()
    except MissingError as error:
        return Check("CUDA library", "missing", str(error), again)
    return Check("CUDA library", "ok", path)


def _gpu() -> Check:
    devices = glob.glob("/dev/nvidia[0-9]*")
    driver = Path("/proc/driver/nvidia/version")
    if not devices or not driver.exists():
        return Check("GPU", "missing", "no NVIDIA GPU with a driver; pysim plan -m h200 and pysim banks work without one")
    listing = _answer(["nvidia-smi", "-L"]) if shutil.which("nvidia-smi") else f"{len(devices)} devices"
    return Check("GPU", "ok", listing)


GROUPS: dict[str, Callable[[], Iterator[Check]]] = {
    "this computer": _computer,
    "pysim": _pysim,
    "other libraries, for compare --peers and for models": _libraries,
    "other machines": _machines,
}
