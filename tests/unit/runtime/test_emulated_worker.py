# SPDX-License-Identifier: Apache-2.0
"""The worker of the emulated executor, its build and its protocol: whatever happens to it is an error, never a hang or a crash."""

import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from checkout import ROOT
from command_line import cache, native, own_files  # noqa: F401
from emulation import NAME, RANDOM, built_worker, emulation, started, whole  # noqa: F401
from native_library import im2col

import pysim
from pysim import planner
from pysim.errors import MissingError, NativeError, OperandError
from pysim.machine import load as machine
from pysim.problem.conv import Conv
from pysim.problem.text import parse
from pysim.registry.cpu import cpu_kernels
from pysim.registry.native_files import native_file
from pysim.runtime import cpu as runtime
from pysim.runtime import cpu_launch, emulated, foreign
from pysim.runtime.emulated import Emulated
from pysim.runtime.foreign import POWER10

pytestmark = [native, pytest.mark.usefixtures("own_files", "built_worker"), pytest.mark.timeout(1000)]  # the first waits for the build


@pytest.fixture
def power10():
    yield from started()


# The build


@emulation
def test_two_processes_that_build_at_once_get_one_worker_and_say_once_that_they_build(tmp_path):
    """By a compiler that takes its time and writes empty files; `built_worker` is by the real one."""
    fake, log = tmp_path / POWER10.gcc, tmp_path / "log"
    fake.write_text(f"#!/bin/sh\nsleep 0.02\nfor last; do :; done\necho $last >> {log}\ntouch $last\n")
    fake.chmod(0o755)
    code = "from pysim.runtime import foreign; print(foreign.worker(foreign.POWER10))"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    pipe = subprocess.PIPE
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True, env=environment) for _ in range(2)]
    answers = [one.communicate(timeout=600) for one in both]
    assert [one.returncode for one in both] == [0, 0], answers
    assert answers[0][0] == answers[1][0]
    messages = "".join(words for _, words in answers)
    assert re.fullmatch(r"pysim: building the POWER10 kernels with .*\npysim: built in \d+ s\n", messages)
    assert log.read_text().split().count("worker") == 1
    assert len(list((tmp_path / "pysim").iterdir())) == 2  # the worker and the lock
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True).stderr == ""


@emulation
def test_other_sources_or_another_compiler_make_another_worker(tmp_path, monkeypatch):
    (compiler, *_) = POWER10.compilers()
    here = foreign.worker_file(POWER10, compiler)
    assert foreign.worker_file(POWER10, compiler._replace(version="another")) != here
    copy = copied(tmp_path)
    monkeypatch.setattr(foreign, "native_file", lambda name: copy / name)
    assert foreign.worker_file(POWER10, compiler) == here
    for name in ("algorithms/nest.c", "templates/skinny.c", "depthwise.inc", "kernels.inc", "power10/vsx.h"):
        before = foreign.worker_file(POWER10, compiler)
        (copy / name).write_text((copy / name).read_text() + "\n")
        assert foreign.worker_file(POWER10, compiler) != before, name


def test_every_file_that_the_worker_includes_makes_another_worker():
    sources = {path.resolve() for path in foreign._sources(POWER10)}
    for path in sources:
        for name in re.findall(r'^#include "(?!test/)(.+)"', path.read_text(), re.MULTILINE):  # test/: in instrumented builds alone
            places = [folder / name for folder in (path.parent, native_file("pysim.h").parent)]
            assert any(place.resolve() in sources for place in places), f"{path.name} includes {name}"


def test_the_worker_is_made_of_the_files_that_meson_builds_for_power10():
    text = (ROOT / "meson.build").read_text()
    built = set(re.findall(r"'native/((?!x86|test|cuda)[\w/]+\.c)'", text))
    found = {str(path.relative_to(native_file("pysim.h").parent)) for path in foreign._sources(POWER10) if path.suffix == ".c"}
    assert found == built - {"planner/program.c"} | {"abi/worker.c"}  # plans are made in this process


def copied(folder: Path) -> Path:
    """The sources of the worker, elsewhere."""
    root = native_file("pysim.h").parent
    for path in foreign._sources(POWER10):
        target = folder / "native" / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    return folder / "native"


@emulation
def test_a_compile_error_is_an_error_with_the_compilers_words_and_leaves_nothing(tmp_path, monkeypatch):
    copy = copied(tmp_path)
    (copy / "abi" / "probe.c").write_text("int half(\n")  # the first file that is compiled
    monkeypatch.setattr(foreign, "native_file", lambda name: copy / name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(MissingError, match=r"(?s)cannot be built.*probe\.c:1.*error"):
        foreign.worker(POWER10)
    assert [path.name for path in (tmp_path / "cache" / "pysim").iterdir()] == ["power10-worker.lock"]


@emulation
def test_a_cache_that_cannot_be_written_is_an_error_that_says_what_to_set(tmp_path, monkeypatch):
    (tmp_path / "occupied").write_text("a file, so no folder can be made here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "occupied"))
    with pytest.raises(MissingError, match="set XDG_CACHE_HOME"):
        foreign.worker(POWER10)


# The protocol


def greeting(power10) -> list[str]:
    one = emulated._Worker(power10.library() and power10._command, power10._shared)
    lines = []
    while not lines or lines[-1] != "ready":
        lines.append(one.line(time.monotonic() + 250))
    one.stop()
    return lines


@emulation
def test_both_sides_agree_about_every_struct_and_every_function_that_takes_part(power10):
    lines = greeting(power10)
    kinds, written = emulated.agreed(lines)
    assert kinds["pysim_run"] == "QSEiddDwiP" and written == "DPKN"
    assert len([line for line in lines if line.startswith("struct ")]) == 7
    for at, line in enumerate(lines):
        word, *rest = line.split()
        struct = " ".join(["struct", *rest[:2], "12", "4"])
        wrong = {"abi": "abi 99", "struct": struct, "call": line + "i", "kernel": "kernel 0 x", "ready": "hello"}.get(word)
        if wrong:
            with pytest.raises(NativeError, match="other sources"):
                emulated.agreed([*lines[:at], wrong, *lines[at + 1 :]])
    with pytest.raises(NativeError, match="ready"):
        emulated.agreed([line for line in lines if line != f"kernel {cpu_kernels()[-1].index} {cpu_kernels()[-1].name}"])
    swapped = [line.replace("QSEidd", "QESidd") for line in lines]
    with pytest.raises(NativeError, match="QESidd"):
        emulated.agreed(swapped)


CORRUPT = [
    "",
    "   ",
    "hello",
    "pysim_abort",
    "pysim_kernel_count 1",
    "pysim_kernel_at",
    "pysim_kernel_at 0",
    "pysim_kernel_at 0 @0:48 7",
    "pysim_kernel_at zero @0:48",
    "pysim_kernel_at 99999999999999999999 @0:48",
    "pysim_kernel_at 0 0",
    "pysim_kernel_at 0 @",
    "pysim_kernel_at 0 @0",
    "pysim_kernel_at 0 @0:",
    "pysim_kernel_at 0 @0:48x",
    "pysim_kernel_at 0 @0:47",
    "pysim_kernel_at 0 @0:-48",
    "pysim_kernel_at 0 @4:48",
    "pysim_kernel_at 0 @-8:48",
    "pysim_kernel_at 0 @1048576:48",
    "pysim_kernel_at 0 @88:48",
    "pysim_kernel_at 0 @9223372036854775800:48",
    "pysim_kernel_at 0 @0:9223372036854775807",
    "pysim_kernel_at 0 @99999999999999999999:48",
    "pysim_reference @0:152 @0:32 @0:8 @0:8 @0:9999999",
    "pysim_kernel_at " + "1 " * 20,
    "pysim_kernel_at 0 @0:48" + " " * 2000,
    "x" * 100000,
    "\0\0\0\0",
    "done 0",
]


@emulation
@pytest.mark.parametrize("request_line", CORRUPT, ids=[line[:50] for line in CORRUPT])
def test_a_corrupt_request_is_refused_and_the_worker_goes_on(power10, request_line):
    process = power10._worker.process
    assert power10.ask(request_line).startswith("refused ")
    assert power10.call("pysim_kernel_count") == len(pysim.registry.cpu.cpu_kernels())
    assert power10._worker.process is process


@emulation
def test_lines_of_random_bytes_and_words_are_each_answered(power10):
    names = [name.encode() for name in power10._kinds]
    pieces = [b"@0:8", b"@0:48", b"@128:136", b"@65536:8", b"@9:9", b"-", b"0", b"-1", b"4294967296", b"@1:99999999999", b"\xff\x00"]
    process = power10._worker.process
    for _ in range(1000):
        line = bytes(RANDOM.integers(0, 256, RANDOM.integers(0, 50), np.uint8)).replace(b"\n", b"")
        if RANDOM.random() < 0.8:
            words = RANDOM.integers(0, len(pieces), RANDOM.integers(0, 12))
            line = b" ".join([names[RANDOM.integers(len(names))], *(pieces[i] for i in words)])
        process.stdin.write(line + b"\n")
        assert power10._worker.line(time.monotonic() + 250).partition(" ")[0] in ("done", "refused"), line
    assert power10._worker.process is process


@emulation
def test_a_bias_that_lies_outside_its_piece_is_refused(power10):
    ffi, _ = runtime.library()
    conv = bytes(ffi.buffer(runtime.problem_struct(Conv(channels=1, height=1, width=1, filters=1, kernel_h=1, kernel_w=1))))
    size = ffi.sizeof("pysim_epilogue")
    for offset, bytes_ in ((160, 160), (8, 160), (1 << 60, 160), (size, size)):
        epilogue = ffi.new("pysim_epilogue *", [1.0, 0.0, ffi.cast("void *", offset), 0])
        power10._reserve(1 << 16)
        os.pwrite(power10._shared, conv.ljust(256) + bytes(ffi.buffer(epilogue)), 0)
        answer = power10.ask(f"pysim_reference @0:{len(conv)} @256:{bytes_} @1024:4 @2048:4 @3072:4")
        assert answer.startswith("refused argument 1: the bias lies at"), answer


@emulation
def test_the_librarys_own_refusals_come_back_as_its_sentence(power10):
    w = parse("conv:ic4ih6oc4kh3ph1")
    schedule = planner.plan(w, machine.load(NAME)).schedule
    with pytest.raises(NativeError, match="threads is -1"):
        cpu_launch.Prepared(w, whole(4, 4, 3, 3), schedule, threads=-1, executor=power10)
    assert runtime.check(power10.library()[1].pysim_kernel_count() * 0, power10) is None


@emulation
def test_an_unknown_function_is_an_error(power10):
    with pytest.raises(NativeError, match="no function pysim_probe_clock"):
        power10.library()[1].pysim_probe_clock(None)


@emulation
def test_the_memory_file_shrinks_after_a_large_call(power10, monkeypatch):
    monkeypatch.setattr(emulated, "KEPT_BYTES", 1 << 16)
    w = Conv(channels=8, height=64, width=64, filters=1, kernel_h=1, kernel_w=1)
    image, columns = whole(1, 8, 64, 64), np.zeros((8, 64 * 64), np.float32)
    for _ in range(2):
        columns[:] = np.nan
        im2col(w, image, columns, power10)
        assert np.array_equal(columns.reshape(image.shape), image)
        assert os.fstat(power10._shared).st_size == 1 << 16


@emulation
def test_memory_that_cannot_be_had_is_an_operand_error_and_the_next_call_works(power10):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    w = Conv(channels=8, height=64, width=64, filters=1, kernel_h=1, kernel_w=1)
    image, columns = whole(1, 8, 64, 64), np.zeros((8, 64 * 64), np.float32)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(OperandError, match="cannot be had"):
            im2col(w, image, columns, power10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    im2col(w, image, columns, power10)
    assert np.array_equal(columns.reshape(image.shape), image)


# A worker that dies, hangs or talks nonsense


@emulation
def test_a_worker_that_was_killed_is_an_error_that_says_so_and_the_next_call_starts_another(power10):
    first = power10._worker.process
    first.send_signal(signal.SIGKILL)
    first.wait()
    with pytest.raises(NativeError, match=r"POWER10 worker died of SIGKILL and wrote nothing \(in pysim_kernel_count\)"):
        power10.call("pysim_kernel_count")
    assert power10.call("pysim_kernel_count") == len(pysim.registry.cpu.cpu_kernels())
    assert power10._worker.process.pid != first.pid


@emulation
def test_a_crash_inside_a_kernel_is_an_error_with_what_qemu_wrote(power10, tmp_path, monkeypatch):
    """The second row of the image would lie 2 TiB behind the first, where no process has memory."""
    monkeypatch.chdir(tmp_path)
    ffi, lib = runtime.library()[0], power10.library()[1]
    conv = runtime.conv_struct(Conv(channels=1, height=1 << 30, width=1 << 10, filters=1, kernel_h=1, kernel_w=1, stride_h=1 << 29))
    columns, image = ffi.from_buffer(np.zeros((2, 1 << 10), np.float32)), ffi.from_buffer(whole(16))
    monkeypatch.setattr(power10, "_kinds", power10._kinds | {"pysim_im2col": "CDd"})  # columns first, so that the image is the last
    real = power10.ask
    monkeypatch.setattr(power10, "ask", lambda line: real(re.sub(r"(@\S+) (@\S+)$", r"\2 \1", line)))
    with pytest.raises(NativeError, match=r"died of SIGSEGV.*wrote: .*(signal 11|Segmentation)"):
        lib.pysim_im2col(conv, columns, image)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert power10.call("pysim_kernel_count") == len(pysim.registry.cpu.cpu_kernels())
    assert list(tmp_path.iterdir()) == []


@emulation
def test_a_hung_worker_is_stopped_and_the_next_call_starts_another(power10, monkeypatch):
    hung = power10._worker.process
    hung.send_signal(signal.SIGSTOP)
    monkeypatch.setenv("PYSIM_EMULATION_SECONDS", "0.3")
    with pytest.raises(NativeError, match=r"no answer to pysim_kernel_count in 0\.3 s .*and was stopped"):
        power10.call("pysim_kernel_count")
    assert hung.poll() == -signal.SIGKILL
    monkeypatch.delenv("PYSIM_EMULATION_SECONDS")
    assert power10.call("pysim_kernel_count") == len(pysim.registry.cpu.cpu_kernels())


def test_a_time_limit_that_is_no_number_is_an_error(monkeypatch):
    monkeypatch.setenv("PYSIM_EMULATION_SECONDS", "long")
    with pytest.raises(OperandError, match="3600"):
        emulated._seconds()


KERNELS = "".join(f"kernel {row.index} {row.name}\n" for row in cpu_kernels())
GREETING = f"call pysim_kernel_count\n{KERNELS}ready"


class Fake(Emulated):
    """A worker that is this Python and prints what it is told."""

    def __init__(self, code):
        super().__init__(POWER10)
        self.code = code

    def command(self):
        return [sys.executable, "-c", self.code]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import sys; sys.exit('no such CPU')", "exited with status 1; it wrote: no such CPU"),
        ("print('abi 99')\nprint('ready')", 'other sources than this library: it says "abi 99"'),
        ("print('GIF89a')\nprint('ready')", 'it says "GIF89a"'),
        (f"print({GREETING!r}, flush=True)\ninput()\nprint('42')", "with: 42"),
        (f"print({GREETING!r}, flush=True)\ninput()\nprint('done many')", "with: done many"),
        (f"import os; print({GREETING!r}, flush=True)\nos.abort()", "died of SIGABRT"),
        ("import sys; sys.stderr.write('x' * 1000000); sys.exit(7)", "exited with status 7; it wrote: x"),
    ],
)
def test_whatever_stands_in_for_a_worker_is_an_error(code, says):
    one = Fake(code)
    with pytest.raises(NativeError, match=re.escape(says)) as error:
        one.call("pysim_kernel_count")
    assert len(str(error.value)) < 3000
    assert one._worker is None


# Processes and threads


@emulation
def test_threads_wait_for_one_another(power10):
    w = parse("conv:ic4ih12oc4kh3ph1")
    schedule = planner.plan(w, machine.load(NAME)).schedule
    operands = [(whole(1, 4, 12, 12), whole(4, 4, 3, 3)) for _ in range(4)]
    results = [None] * 4

    def compute(i):
        results[i] = cpu_launch.Launch(w, schedule, executor=power10).run(*operands[i])

    threads = [threading.Thread(target=compute, args=(i,)) for i in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    for i in range(4):
        assert np.array_equal(results[i], pysim.conv2d(*operands[i], padding=1))


FORK = """
import os
from pysim.runtime.emulated import EMULATED
one = EMULATED["mma"]
count = one.call("pysim_kernel_count")
parent = one._worker.process.pid
child = os.fork()
if child == 0:
    assert one._worker is None
    assert one.call("pysim_kernel_count") == count
    assert one._worker.process.pid != parent
    print(one._worker.process.pid, flush=True)
    raise SystemExit
assert os.waitpid(child, 0)[1] == 0
assert one.call("pysim_kernel_count") == count
assert one._worker.process.pid == parent
print(parent)
"""


@emulation
def test_a_forked_child_has_its_own_worker_and_both_end_with_their_processes():
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=250, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@emulation
def test_an_interrupt_during_a_call_leaves_no_answer_behind(power10, monkeypatch):
    def interrupted(self, deadline):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(emulated._Worker, "line", interrupted)
        with pytest.raises(KeyboardInterrupt):
            power10.call("pysim_kernel_count")
    assert power10._worker is None
    assert power10.call("pysim_kernel_count") == len(pysim.registry.cpu.cpu_kernels())
