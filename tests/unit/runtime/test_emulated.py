# SPDX-License-Identifier: Apache-2.0
"""The emulated executor: same call, same bits as on the host, from Python and the command line; `test_emulated_worker` has its worker."""

import re

import msgspec
import numpy as np
import pytest
from command_line import SMALL, cache, document, invoke, native, ok, own_files, refused  # noqa: F401
from emulation import NAME, built_worker, emulation, started, whole  # noqa: F401
from native_library import im2col, reference_conv

import pysim
from pysim import planner
from pysim.calibration import host
from pysim.check.fills import exact_fill
from pysim.check.reference import shapes
from pysim.comparison import compare as comparison
from pysim.errors import MissingError, NativeError, PysimError
from pysim.machine import load as machine
from pysim.measure.store import Store
from pysim.problem.conv import Conv
from pysim.problem.text import Layer, distinct, parse, resolve
from pysim.runtime import cpu as runtime
from pysim.runtime import cpu_launch, emulated, foreign
from pysim.runtime.emulated import EMULATED, Emulated
from pysim.runtime.foreign import POWER10

pytestmark = [native, pytest.mark.usefixtures("own_files", "built_worker"), pytest.mark.timeout(1000)]  # the first waits for the build


@pytest.fixture
def power10():
    yield from started()


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


@pytest.mark.parametrize("words", [("search", SMALL), ("run", SMALL, "--profile"), ("machines", "calibrate")])
def test_what_needs_times_is_refused_before_the_emulator_is_built(words, monkeypatch):
    monkeypatch.setattr(emulated, "_local_targets", lambda: frozenset({"portable"}))
    monkeypatch.setattr(Emulated, "library", lambda self: pytest.fail("the emulator was built"))
    assert "times mean nothing" in refused(2, *words, "-m", NAME)


# The same call gives the same bits


@emulation
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "s8"])
@pytest.mark.parametrize("problem", ["conv:mb2g2ic12ih9iw11oc40kh3ph1", "conv:ic37ih7iw9oc33kh1", "gemm:37x51x65", "gemm:21x35x19:tt"])
def test_a_plan_of_each_machine_gives_the_same_bits_in_every_dtype(problem, dtype):
    workload = parse(f"{problem}:{dtype}")
    s = shapes(workload)
    x, w = exact_fill(s.x, s.k, dtype, seed=1), exact_fill(s.w, s.k, dtype, seed=2)
    bias = whole(s.out[1], dtype=runtime.RESULT_DTYPES[dtype])
    nest = "gemm" if problem.startswith("gemm") else "sconv"  # which is what runs on MMA
    plans = [pysim.plan(workload, machine=name, algorithm=nest) for name in ("host", NAME)]
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
    here, there = (reference_conv(w, x, filters, bias, "relu", executor) for executor in (runtime.LOCAL, power10))
    assert here.tobytes() == there.tobytes()
    one = Conv(channels=3, height=7, width=6, filters=1, kernel_h=3, kernel_w=2)
    image = whole(1, 3, 7, 6)
    columns = [np.full((18, 25), np.nan, np.float32) for _ in range(2)]
    im2col(one, image, columns[0])
    im2col(one, image, columns[1], power10)
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
    assert np.array_equal(cpu_launch.Launch(w, plan.schedule, executor=power10).run(x, filters), want)
    assert np.array_equal(x, before)


@emulation
def test_every_row_that_power10_can_run_is_available_there(power10):
    rows = {row.name for row in pysim.registry.cpu.cpu_kernels() if row.target in ("portable", "mma")}
    assert runtime.available_kernels(power10) == rows
    info = runtime.library()[0].new("pysim_kernel_info *")
    for row in pysim.registry.cpu.kernels():
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
    found = list(comparison.compare(planned, on, {}))
    assert [(one.problem, one.reason) for one in found if not one.correct] == []
    assert len(found) == len(layers)


@emulation
def test_run_says_what_is_right_and_shows_and_stores_no_time():
    result = invoke("run", SMALL, "gemm:24x20x16:nt:f64", "-m", NAME)
    assert result.exit_code == 0, result.output
    header, *rows = result.stdout.splitlines()
    assert header.split() == ["result", "max", "error", "x", "problem"]
    assert [row.split()[0] for row in rows[:2]] == ["right", "right"]
    assert "emulated by POWER10 under qemu-ppc64le -cpu power10" in result.stderr
    assert not re.search(r"GFLOP|measured|\d [mun]s\b", result.stdout)
    for one in document("run", SMALL, "-m", NAME)["comparisons"]:
        assert one["correct"] is True and one["executor"] == "emulated"
        assert one["measured_seconds"] is None and one["samples"] == 0 and one["quartiles"] == {}
    with Store() as store:
        assert len(store) == 0


@emulation
def test_compare_shows_static_and_simulated_beside_predicted_and_calls_neither_measured():
    result = invoke("compare", SMALL, "gemm:24x20x16", "-m", NAME)
    assert result.exit_code == 0, result.output
    header, first, second, *rest = result.stdout.splitlines()
    assert header.split() == ["result", "static+sim", "predicted", "error", "max", "error", "x", "problem"]
    assert [row.split()[0] for row in (first, second)] == ["right", "right"]
    assert "|log(predicted/static+simulated)|" in result.stdout
    assert [line for line in rest if "measured" in line] == [
        "static+simulated: in-core cycles of the machine file and exactly simulated caches; nothing is measured"
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

    right = cpu_launch.Prepared.run
    monkeypatch.setattr(cpu_launch.Prepared, "run", broken)
    result = invoke(command, SMALL, "-m", NAME)
    assert result.exit_code == 1
    assert "WRONG" in result.stdout and "exact fill: 1 of" in result.stdout


# Missing tools


@pytest.mark.parametrize("command", ["run", "compare"])
def test_without_qemu_or_a_compiler_the_command_to_install_it_is_said(command, monkeypatch, tmp_path):
    monkeypatch.setitem(EMULATED, "mma", Emulated(POWER10))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(foreign, "installed", lambda package: None)
    assert "sudo apt-get install qemu-user" in refused(3, command, SMALL, "-m", NAME)
    qemu = tmp_path / "qemu-ppc64le"
    qemu.write_text("#!/bin/sh\n")
    qemu.chmod(0o755)
    assert "pip install ziglang" in refused(3, command, SMALL, "-m", NAME)
    with pytest.raises(MissingError, match="gcc-powerpc64le-linux-gnu"):
        pysim.conv2d(whole(1, 2, 5, 5), whole(3, 2, 3, 3), machine=NAME)


@emulation
def test_a_qemu_that_does_not_know_the_cpu_is_an_error_with_its_words(power10):
    one = Emulated(POWER10._replace(emulator_arguments=("-cpu", "power99")))
    with pytest.raises(NativeError, match=r"exited with status 1.*power99"):
        one.call("pysim_kernel_count")


def test_every_error_of_the_executor_is_one_of_the_packages():
    assert issubclass(MissingError, PysimError) and issubclass(NativeError, PysimError)


@emulation
def test_doctor_says_that_the_kernels_are_built(power10):
    assert re.search(r"ok +POWER10 kernels +built:\s", ok("doctor")) or invoke("doctor").exit_code == 3
