# SPDX-License-Identifier: Apache-2.0
"""The emulated executor: same call, same bits as on the host; whatever happens to the worker is an error, never a hang or a crash."""

import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from command_line import SMALL, document, invoke, native, ok, refused

import pysim
from pysim import comparison, emulated, host, machine, planner, runtime
from pysim.emulated import EMULATED, POWER10, Emulated
from pysim.errors import MissingError, NativeError, OperandError, PysimError
from pysim.measure import exact_fill
from pysim.registry import native_file
from pysim.store import Store
from pysim.verify import shapes
from pysim.workload import Conv, Layer, distinct, parse, resolve

try:
    POWER10.emulator()
    POWER10.compilers()
    MISSING = ""
except MissingError as error:
    MISSING = str(error)

NAME = "power10-e1050"
RANDOM = np.random.default_rng(11)
emulation = pytest.mark.skipif(bool(MISSING), reason=MISSING or "QEMU and a compiler are here")
pytestmark = [native, pytest.mark.usefixtures("own_cache")]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """One build for all of these tests, outside the user's folders."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def own_cache(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("PYSIM_STORE", str(tmp_path / "store.sqlite"))


@pytest.fixture
def power10():
    """An executor whose worker has started."""
    one = Emulated(POWER10)
    assert one.call("pysim_kernel_count") == len(pysim.registry.kernels())
    yield one
    one.close()


def whole(*shape, dtype=np.float32):
    """Small integers: any order of summation gives the same bits."""
    return RANDOM.integers(-3, 4, shape).astype(dtype)


def result_type(dtype):
    return np.int32 if dtype == np.int8 else dtype


# Who runs what


def test_a_machine_is_emulated_only_where_this_cpu_lacks_its_instructions(monkeypatch):
    power10, zen4 = machine.load(NAME), machine.load("zen4")
    monkeypatch.setattr(emulated, "_local_targets", lambda: frozenset({"portable", "avx2"}))
    assert emulated.executor_for(power10) is EMULATED["mma"]
    assert emulated.executor_for(zen4) is runtime.LOCAL
    mine = msgspec.structs.replace(power10, name="mine")
    assert emulated.executor_for(mine) is EMULATED["mma"]
    monkeypatch.setattr(emulated, "_local_targets", lambda: frozenset({"portable", "mma"}))
    assert emulated.executor_for(power10) is runtime.LOCAL
    assert host.runnable(NAME) == power10


# The same call gives the same bits


@emulation
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "s8"])
@pytest.mark.parametrize("problem", ["conv:mb2g2ic12ih9iw11oc40kh3ph1", "conv:ic37ih7iw9oc33kh1", "gemm:37x51x65", "gemm:21x35x19:tt"])
def test_a_plan_of_each_machine_gives_the_same_bits_in_every_dtype(problem, dtype):
    workload = parse(f"{problem}:{dtype}")
    s = shapes(workload)
    x, w = exact_fill(s.x, s.k, dtype, seed=1), exact_fill(s.w, s.k, dtype, seed=2)
    bias = whole(s.out[1], dtype=runtime.RESULT_DTYPES[dtype])
    plans = [pysim.plan(workload, machine=name) for name in ("host", NAME)]
    here, there = (plan.run(x, w, bias, "relu") for plan in plans)
    assert plans[1].kernel.endswith("__mma")
    assert here.dtype == there.dtype == runtime.RESULT_DTYPES[dtype]
    assert here.tobytes() == there.tobytes()
    assert here.any()


@emulation
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8])
@pytest.mark.parametrize(
    ("shape", "filters", "kernel", "given"),
    [
        ((1, 5, 9, 11), 7, (3, 3), {"padding": 1}),
        ((2, 6, 13, 8), 20, (5, 2), {"stride": (2, 3), "padding": (2, 0, 1, 3), "groups": 2}),
        ((1, 4, 10, 10), 4, (3, 3), {"dilation": (2, 3), "groups": 4}),
        ((1, 37, 7, 9), 33, (1, 1), {}),
    ],
)
def test_a_convolution_gives_the_same_bits_on_host_and_power10(shape, filters, kernel, given, dtype):
    x, w = whole(*shape, dtype=dtype), whole(filters, shape[1] // given.get("groups", 1), *kernel, dtype=dtype)
    bias = whole(filters, dtype=result_type(dtype))
    here, there = (pysim.conv2d(x, w, bias, activation="relu", machine=name, **given) for name in ("host", NAME))
    assert here.tobytes() == there.tobytes()
    assert here.any()


@emulation
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8])
@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_a_product_gives_the_same_bits_on_host_and_power10(trans_a, trans_b, dtype):
    m, n, k = 21, 35, 19
    a, b = whole(*((k, m) if trans_a else (m, k)), dtype=dtype), whole(*((n, k) if trans_b else (k, n)), dtype=dtype)
    c, bias = whole(m, n, dtype=result_type(dtype)), whole(n, dtype=result_type(dtype))
    layout = {"trans_a": trans_a, "trans_b": trans_b, "alpha": 2, "beta": -1, "bias": bias}
    here, there = (pysim.gemm(a, b, c, machine=name, **layout) for name in ("host", NAME))
    assert here.tobytes() == there.tobytes()
    assert here.any()


@emulation
def test_prepared_convolutions_and_plans_run_where_their_machine_runs():
    problem = parse("conv:mb1ic8ih10oc8kh3ph1")
    x, w, bias = whole(1, 8, 10, 10), whole(8, 8, 3, 3), whole(8)
    want = pysim.conv2d(x, w, bias, padding=1)
    conv = pysim.prepare(problem, w, bias, machine=NAME)
    assert conv.executor is EMULATED["mma"]
    out = np.full(want.shape, np.nan, np.float32)
    for _ in range(2):
        assert conv(x, out) is out
        assert np.array_equal(out, want)
    plan = pysim.plan(problem, machine=NAME)
    assert np.array_equal(plan.run(x, w, bias), want)
    assert np.array_equal(pysim.conv2d(x, w, bias, padding=1, plan=plan), want)
    product = pysim.plan("gemm:24x20x16", machine=NAME)
    a, b = whole(24, 16), whole(16, 20)
    assert np.array_equal(product.run(a, b), a @ b)


@emulation
def test_reference_and_im2col_are_the_same_there(power10):
    w = parse("conv:mb2g2ic6ih9oc4kh3sh2ph1:f64")
    x, filters, bias = whole(2, 6, 9, 9, dtype=np.float64), whole(4, 3, 3, 3, dtype=np.float64), whole(4, dtype=np.float64)
    here, there = (runtime.reference_conv(w, x, filters, bias, "relu", executor) for executor in (runtime.LOCAL, power10))
    assert here.tobytes() == there.tobytes()
    one = Conv(channels=3, height=7, width=6, filters=1, kernel_h=3, kernel_w=2)
    image = whole(1, 3, 7, 6)
    columns = [np.full((18, 25), np.nan, np.float32) for _ in range(2)]
    runtime.im2col(one, image, columns[0])
    runtime.im2col(one, image, columns[1], power10)
    assert columns[0].tobytes() == columns[1].tobytes()
    assert not np.isnan(columns[0]).any()


@emulation
def test_operands_may_be_read_only_and_strided_and_are_not_changed(power10):
    w = parse("conv:ic4ih6oc4kh3ph1")
    plan = planner.plan(w, machine.load(NAME))
    x, filters = whole(1, 4, 6, 12)[:, :, :, ::2], whole(4, 4, 3, 3)
    want = pysim.conv2d(x, filters, padding=1)
    before = x.copy()
    x.flags.writeable = filters.flags.writeable = False
    assert np.array_equal(runtime.run_conv(w, plan.schedule, x, filters, executor=power10), want)
    assert np.array_equal(x, before)


@emulation
def test_every_row_that_power10_can_run_is_available_there(power10):
    rows = {row.name for row in pysim.registry.kernels() if row.target in ("portable", "mma")}
    assert runtime.available_kernels(power10) == rows
    info = runtime.library()[0].new("pysim_kernel_info *")
    for row in pysim.registry.kernels():
        runtime.check(power10.call("pysim_kernel_at", row.index, info), power10)
        sizes = (info.windows, info.filters, info.lane_windows, info.lane_filters)
        assert sizes == (row.windows, row.filters, row.lane_windows, row.lane_filters)
        assert not info.name  # no address of another process comes back


# The command line


def reduced(layer):
    """The layer with an output of 3 x 6: a tile of 16 windows that spans rows, and an edge."""
    w = layer.workload
    height = w.dilation_h * (w.kernel_h - 1) + 1 + 2 * w.stride_h - w.pad_top - w.pad_bottom
    width = w.dilation_w * (w.kernel_w - 1) + 1 + 5 * w.stride_w - w.pad_left - w.pad_right
    small = msgspec.structs.replace(w, height=height, width=width)
    assert (small.out_h, small.out_w) == (3, 6)
    return Layer(small, layer.label, layer.count)


@emulation
def test_every_distinct_convolution_of_resnet50_is_right_there_at_a_reduced_size():
    on = machine.load(NAME)
    layers = distinct([reduced(layer) for layer in resolve(["resnet50"])])
    assert len(layers) >= 15
    planned = [(layer, planner.plan(layer.workload, on)) for layer in layers]
    found = list(comparison.compare(planned, on, executor=host.executor(on)))
    assert [(one.problem, one.reason) for one in found if not one.correct] == []
    assert len(found) == len(layers)


@emulation
def test_run_says_what_is_right_and_shows_and_stores_no_time():
    result = invoke("run", SMALL, "gemm:24x20x16:nt:f64", "-m", NAME)
    assert result.exit_code == 0, result.output
    header, *rows = result.stdout.splitlines()
    assert header.split() == ["result", "max", "error", "x", "problem"]
    assert [row.split()[0] for row in rows[:2]] == ["right", "right"]
    assert "emulated: POWER10 under qemu-ppc64le -cpu power10" in result.stderr
    assert not re.search(r"GFLOP|measured|\d [mun]s\b", result.stdout)
    for one in document("run", SMALL, "-m", NAME)["comparisons"]:
        assert one["correct"] is True and one["executor"] == "emulated"
        assert one["measured_seconds"] is None and one["samples"] == 0 and one["quartiles"] == {}
    with Store() as store:
        assert len(store) == 0
    told = invoke("run", SMALL, "-m", NAME, "--profile")
    assert (told.exit_code, told.stdout) == (2, "")
    assert "no time means anything" in told.stderr


@emulation
def test_compare_shows_static_and_simulated_beside_predicted_and_calls_neither_measured():
    result = invoke("compare", SMALL, "gemm:24x20x16", "-m", NAME)
    assert result.exit_code == 0, result.output
    header, first, second, *rest = result.stdout.splitlines()
    assert header.split() == ["result", "static+sim", "predicted", "error", "x", "problem"]
    assert [row.split()[0] for row in (first, second)] == ["right", "right"]
    assert "|log(predicted/static+simulated)|" in result.stdout
    assert [line for line in rest if "measured" in line] == [
        "static+simulated: in-core cycles of the machine file and exactly simulated caches; nothing here was measured"
    ]
    assert "im2col_openblas did not run on 2 of 2 layers: its time on this computer" in " ".join(result.stderr.split())
    found = document("compare", SMALL, "-m", NAME)
    (one,) = found["comparisons"]
    assert one["measured_seconds"] is None and one["peers"] == {} and one["static_kind"] == "static+simulated"
    assert one["static_seconds"] == pytest.approx(one["predicted_seconds"], rel=0.5)
    assert found["summary"]["static_prediction"]["kind"] == "static+simulated" and "prediction" not in found["summary"]


@emulation
@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_wrong_result_there_exits_1(command, monkeypatch):
    def broken(self, x, out=None):
        y = right(self, x, out)
        y[0, 0, 0, 0] += 1
        return y

    right = runtime.Prepared.__call__
    monkeypatch.setattr(runtime.Prepared, "__call__", broken)
    result = invoke(command, SMALL, "-m", NAME)
    assert result.exit_code == 1
    assert "WRONG" in result.stdout and "exact fill: 1 of" in result.stdout


# Missing tools


@pytest.mark.parametrize("command", ["run", "compare"])
def test_without_qemu_or_a_compiler_the_command_to_install_it_is_said(command, monkeypatch, tmp_path):
    monkeypatch.setitem(EMULATED, "mma", Emulated(POWER10))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(emulated, "installed", lambda package: None)
    assert "sudo apt-get install qemu-user" in refused(3, command, SMALL, "-m", NAME)
    qemu = tmp_path / "qemu-ppc64le"
    qemu.write_text("#!/bin/sh\n")
    qemu.chmod(0o755)
    assert "pip install 'pysim[power10]'" in refused(3, command, SMALL, "-m", NAME)
    with pytest.raises(MissingError, match="gcc-powerpc64le-linux-gnu"):
        pysim.conv2d(whole(1, 2, 5, 5), whole(3, 2, 3, 3), machine=NAME)


@emulation
def test_a_qemu_that_does_not_know_the_cpu_is_an_error_with_its_words(power10):
    one = Emulated(POWER10._replace(emulator_arguments=("-cpu", "power99")))
    with pytest.raises(NativeError, match=r"exited with status 1.*power99"):
        one.call("pysim_kernel_count")


# The build


@emulation
def test_two_processes_that_build_at_once_get_one_worker_and_say_once_that_they_build(tmp_path):
    code = "from pysim.emulated import *; print(worker(POWER10), EMULATED['mma'].call('pysim_kernel_count'))"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    pipe = subprocess.PIPE
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True, env=environment) for _ in range(2)]
    answers = [one.communicate(timeout=200) for one in both]
    assert [one.returncode for one in both] == [0, 0], answers
    assert answers[0][0] == answers[1][0]
    said = "".join(words for _, words in answers)
    assert re.fullmatch(r"pysim: building the POWER10 kernels with .*\npysim: built in \d+ s\n", said)
    assert len(list((tmp_path / "pysim").iterdir())) == 2  # the worker and the lock
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True).stderr == ""


@emulation
def test_other_sources_or_another_compiler_make_another_worker(tmp_path, monkeypatch):
    (compiler, *_) = POWER10.compilers()
    here = emulated.worker_file(POWER10, compiler)
    assert emulated.worker_file(POWER10, compiler._replace(version="another")) != here
    copy = copied(tmp_path)
    monkeypatch.setattr(emulated, "native_file", lambda name: copy / name)
    assert emulated.worker_file(POWER10, compiler) == here
    (copy / "conv" / "nest.c").write_text((copy / "conv" / "nest.c").read_text() + "\n")
    assert emulated.worker_file(POWER10, compiler) != here


def test_the_worker_is_made_of_the_files_that_meson_builds_for_power10():
    text = (Path(__file__).parent.parent / "meson.build").read_text()
    built = set(re.findall(r"'native/((?:conv/|power10/)?\w+\.c)'", text))
    found = {str(path.relative_to(native_file("pysim.h").parent)) for path in emulated._sources(POWER10) if path.suffix == ".c"}
    assert found == built | {"worker/worker.c"}


def copied(folder: Path) -> Path:
    """The sources of the worker, elsewhere."""
    root = native_file("pysim.h").parent
    for path in emulated._sources(POWER10):
        target = folder / "native" / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    return folder / "native"


@emulation
def test_a_compile_error_is_an_error_with_the_compilers_words_and_leaves_nothing(tmp_path, monkeypatch):
    copy = copied(tmp_path)
    (copy / "portable.c").write_text("int half(\n")
    monkeypatch.setattr(emulated, "native_file", lambda name: copy / name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(MissingError, match=r"(?s)cannot be built.*portable\.c:1.*error"):
        emulated.worker(POWER10)
    assert [path.name for path in (tmp_path / "cache" / "pysim").iterdir()] == ["power10-worker.lock"]


@emulation
def test_a_cache_that_cannot_be_written_is_an_error_that_says_what_to_set(tmp_path, monkeypatch):
    (tmp_path / "occupied").write_text("a file, so no folder can be made here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "occupied"))
    with pytest.raises(MissingError, match="set XDG_CACHE_HOME"):
        emulated.worker(POWER10)


# The protocol


def greeting(power10) -> list[str]:
    one = emulated._Worker(power10.library() and power10._command, power10._shared)
    lines = []
    while not lines or lines[-1] != "ready":
        lines.append(one.line(time.monotonic() + 60))
    one.stop()
    return lines


@emulation
def test_both_sides_agree_about_every_struct_and_every_function_that_takes_part(power10):
    lines = greeting(power10)
    kinds, written = emulated.agreed(lines)
    assert kinds["pysim_conv_run"] == "CSEiddDwiP" and written == "DPKN"
    assert len([line for line in lines if line.startswith("struct ")]) == 7
    for at, line in enumerate(lines):
        word, *rest = line.split()
        wrong = {"abi": "abi 99", "struct": " ".join(["struct", *rest[:2], "12", "4"]), "call": line + "i", "ready": "hello"}.get(word)
        if wrong:
            with pytest.raises(NativeError, match=r"another pysim\.h"):
                emulated.agreed([*lines[:at], wrong, *lines[at + 1 :]])
    swapped = [line.replace("CSEidd", "CESidd") for line in lines]
    with pytest.raises(NativeError, match="CESidd"):
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
    "pysim_conv_reference @0:136 @0:32 @0:8 @0:8 @0:9999999",
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
    assert power10.call("pysim_kernel_count") == len(pysim.registry.kernels())
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
        assert power10._worker.line(time.monotonic() + 60).partition(" ")[0] in ("done", "refused"), line
    assert power10._worker.process is process


@emulation
def test_a_bias_that_lies_outside_its_piece_is_refused(power10):
    ffi, _ = runtime.library()
    conv = bytes(ffi.buffer(runtime.conv_struct(Conv(channels=1, height=1, width=1, filters=1, kernel_h=1, kernel_w=1))))
    for offset, bytes_ in ((160, 160), (8, 160), (1 << 60, 160), (32, 32)):
        epilogue = ffi.new("pysim_epilogue *", [1.0, 0.0, ffi.cast("void *", offset), 0])
        power10._reserve(1 << 16)
        os.pwrite(power10._shared, conv.ljust(256) + bytes(ffi.buffer(epilogue)), 0)
        answer = power10.ask(f"pysim_conv_reference @0:136 @256:{bytes_} @1024:4 @2048:4 @3072:4")
        assert answer.startswith("refused argument 1: the bias lies at"), answer


@emulation
def test_the_librarys_own_refusals_come_back_as_its_sentence(power10):
    w = parse("conv:ic4ih6oc4kh3ph1")
    schedule = planner.plan(w, machine.load(NAME)).schedule
    with pytest.raises(NativeError, match="threads is -1"):
        runtime.Prepared(w, whole(4, 4, 3, 3), schedule, threads=-1, executor=power10)
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
        runtime.im2col(w, image, columns, power10)
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
            runtime.im2col(w, image, columns, power10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    runtime.im2col(w, image, columns, power10)
    assert np.array_equal(columns.reshape(image.shape), image)


# A worker that dies, hangs or talks nonsense


@emulation
def test_a_worker_that_was_killed_is_an_error_that_says_so_and_the_next_call_starts_another(power10):
    first = power10._worker.process
    first.send_signal(signal.SIGKILL)
    first.wait()
    with pytest.raises(NativeError, match=r"POWER10 worker died of SIGKILL and wrote nothing \(in pysim_kernel_count\)"):
        power10.call("pysim_kernel_count")
    assert power10.call("pysim_kernel_count") == len(pysim.registry.kernels())
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
    assert power10.call("pysim_kernel_count") == len(pysim.registry.kernels())
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
    assert power10.call("pysim_kernel_count") == len(pysim.registry.kernels())


def test_a_time_limit_that_is_no_number_is_an_error(monkeypatch):
    monkeypatch.setenv("PYSIM_EMULATION_SECONDS", "long")
    with pytest.raises(OperandError, match="3600"):
        emulated._seconds()


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
        ("print('abi 99')\nprint('ready')", 'another pysim.h than this library: it says "abi 99"'),
        ("print('GIF89a')\nprint('ready')", 'it says "GIF89a"'),
        ("print('call pysim_kernel_count')\nprint('ready', flush=True)\ninput()\nprint('42')", "with: 42"),
        ("print('call pysim_kernel_count')\nprint('ready', flush=True)\ninput()\nprint('done many')", "with: done many"),
        ("import os; print('call pysim_kernel_count')\nprint('ready', flush=True)\nos.abort()", "died of SIGABRT"),
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
        results[i] = runtime.run_conv(w, schedule, *operands[i], executor=power10)

    threads = [threading.Thread(target=compute, args=(i,)) for i in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    for i in range(4):
        assert np.array_equal(results[i], pysim.conv2d(*operands[i], padding=1))


FORK = """
import os
from pysim.emulated import EMULATED
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
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=100, check=False)
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
    assert power10.call("pysim_kernel_count") == len(pysim.registry.kernels())


def test_every_error_of_the_executor_is_one_of_the_packages():
    assert issubclass(MissingError, PysimError) and issubclass(NativeError, PysimError)


@emulation
def test_doctor_says_that_the_kernels_are_built(power10):
    assert re.search(r"ok +POWER10 kernels +built: ", ok("doctor")) or invoke("doctor").exit_code == 3
