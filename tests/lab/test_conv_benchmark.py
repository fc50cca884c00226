# SPDX-License-Identifier: Apache-2.0
"""The convolution benchmark without a GPU: what it checks, records and survives, its data files, and the figures it makes of them.

"Device" memory is host memory, cuDNN a stand-in that computes with NumPy on the pointers it is given, and time what a table says.
"""

import ctypes
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import conv as benchmark
import conv_data as data
import msgspec
import numpy as np
import pytest
from conv_data import Header, Line
from problems import conv

from pysim import planner
from pysim.algorithms.interface import DIRECT_SUM
from pysim.calibration import host
from pysim.check.bounds import transformed
from pysim.check.fills import held, random_fill
from pysim.check.reference import picked
from pysim.check.verdict import Verdict
from pysim.errors import MissingError, NativeError, StoreError
from pysim.machine.load import load_any
from pysim.measure.events import Events
from pysim.peers import cudnn, peer
from pysim.peers.peer import Ready, Scratch
from pysim.problem.conv import Conv
from pysim.problem.text import Layer
from pysim.record.plan import LAYOUTS
from pysim.runtime import arrays

SMALL = "conv:g2mb2ic4ih7iw6oc6kh3kw2sh2sw2ph1pw1dh1dw1"
HEADER = Header(device="NVIDIA H200", driver="13.0", versions={}, command="", date="")


def by_definition(w: Conv, x: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """The convolution, one multiply-add after another."""
    y = np.zeros((w.batch, w.filters, w.out_h, w.out_w))
    each, channels = w.filters // w.groups, w.channels // w.groups
    for n, k, p, q in np.ndindex(*y.shape):
        for c, r, s in np.ndindex(channels, w.kernel_h, w.kernel_w):
            row, column = p * w.stride_h + r * w.dilation_h - w.pad_top, q * w.stride_w + s * w.dilation_w - w.pad_left
            if 0 <= row < w.height and 0 <= column < w.width:
                y[n, k, p, q] += x[n, k // each * channels + c, row, column] * filters[k, c, r, s]
    return y


# The reference and the verdict


@pytest.mark.parametrize("text", [SMALL, "conv:mb2ic3ih5oc4oh3kh3sh2ph0", "conv:mb3ic5ih4iw9oc2kh1", "conv:g3mb1ic3ih6oc3kh3ph2"])
def test_the_reference_is_the_definition(text):
    w, draw = conv(text), np.random.default_rng(1)
    x = draw.standard_normal((w.batch, w.channels, w.height, w.width))
    filters = draw.standard_normal((w.filters, w.channels // w.groups, w.kernel_h, w.kernel_w))
    at, want, scale = picked(w, x, filters)
    assert np.array_equal(at, np.arange(w.batch * w.windows))
    for got, right in ((want, by_definition(w, x, filters)), (scale, by_definition(w, np.abs(x), np.abs(filters)))):
        np.testing.assert_allclose(got, right.transpose(0, 2, 3, 1).reshape(len(at), w.filters), rtol=1e-12, atol=1e-12)


class HostArray:
    """`DeviceArray` in host memory."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self.nbytes, self.shape = math.prod(shape) * arrays.SIZES[dtype], shape
        if self.nbytes > 1 << 30:
            raise NativeError("out of memory")
        self.memory = np.full(self.nbytes, 0x55, np.uint8)
        self.pointer = self.memory.ctypes.data

    def fill(self, array: np.ndarray) -> "HostArray":
        ctypes.memmove(self.pointer, array.ctypes.data, array.nbytes)
        return self

    def read(self, into: np.ndarray) -> np.ndarray:
        ctypes.memmove(into.ctypes.data, self.pointer, into.nbytes)
        return into


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", data.DTYPES)
def test_the_verdict_passes_the_rounded_result_in_its_layout_and_nothing_else(device, dtype, layout):
    w = conv(SMALL)
    operands = benchmark.Operands(w, dtype, [layout])
    fills = [random_fill((2, 4, 7, 6), dtype, 3), random_fill((6, 2, 3, 2), dtype, 4)]
    order = (0, 1, 2, 3) if layout == "nchw" else (0, 2, 3, 1)
    for sent, fill in zip(operands.at[layout], fills, strict=True):
        assert sent.memory.tobytes() == np.ascontiguousarray(fill.transpose(order)).tobytes()
    right = by_definition(w, *(fill.astype(np.float64) for fill in fills))

    def verdict(values: np.ndarray, transforms: bool = False) -> str:
        lies = np.ascontiguousarray(values.astype(np.float32).astype(held(operands.result)))
        ready = Ready(lambda: operands.y.fill(lies), "", bound=transformed(dtype) if transforms else DIRECT_SUM)
        return operands.check(ready, layout)[0]

    assert verdict(right.transpose(order)) == ""
    assert "elements are wrong" in verdict(right.transpose((0, 2, 3, 1) if layout == "nchw" else (0, 1, 2, 3)), True)
    off = right.transpose(order).copy()
    off[1, 1, 1, 1] += {"f32": 1e-4, "tf32": 1e-4}.get(dtype, 0.05)
    assert verdict(off).startswith("random fill: 1 of 108") and verdict(off, True) == ""
    off[1, 1, 1, 1] = np.inf
    assert "1 of 108 elements are NaN, infinite or were never written" in verdict(off, True)


class Algorithms:
    """cuDNN's algorithms of float32 NCHW by NumPy. SPOILS changes what one wrote, `SPACES` is what each asks for."""

    SPACES: ClassVar = {"IMPLICIT_GEMM": 0, "IMPLICIT_PRECOMP_GEMM": 64, "GEMM": 4096, "FFT": 1 << 40, "WINOGRAD_NONFUSED": 8192}

    def __init__(self, w: Conv, dtype: str = "", layout: str = "nchw") -> None:
        self.workload = w
        assert layout == "nchw" and w.dtype == "f32"

    def workspace_bytes(self, algorithm: str, stream: int = 0) -> int:
        if algorithm not in self.SPACES:
            raise MissingError(f"cuDNN refuses {algorithm}")
        return self.SPACES[algorithm]

    def call(self, algorithm: str, pointers: tuple[int, int, int], scratch: Scratch) -> Any:
        assert scratch.pointer or not self.SPACES[algorithm]
        w = self.workload
        shapes = ((w.batch, w.channels, w.height, w.width), (w.filters, w.channels // w.groups, w.kernel_h, w.kernel_w))
        x, filters = (
            np.frombuffer((ctypes.c_float * math.prod(shape)).from_address(at), np.float32).reshape(shape)
            for at, shape in zip(pointers, shapes, strict=False)
        )
        y = np.frombuffer((ctypes.c_float * (w.batch * w.filters * w.windows)).from_address(pointers[2]), np.float32)
        right = by_definition(w, x, filters).astype(np.float32).reshape(-1)

        def run() -> None:
            y[:] = right
            SPOILS.get(algorithm, lambda _: None)(y)

        run.algorithm = algorithm
        return run


SPOILS: dict[str, Any] = {}
SECONDS = {"IMPLICIT_GEMM": 4e-5, "IMPLICIT_PRECOMP_GEMM": 2e-5, "GEMM": 3e-3, "WINOGRAD_NONFUSED": 1e-5}


class Clock(Events):
    """A device's clock that reads SECONDS and counts the calls."""

    def __init__(self) -> None:
        pass

    calls: ClassVar[dict[str, int]] = {}

    def seconds(self, call: Any, times: int = 1) -> float:
        call()
        name = getattr(call, "algorithm", "ours")
        Clock.calls[name] = Clock.calls.get(name, 0) + 1
        return SECONDS.get(name, 5e-6)


@pytest.fixture
def device(monkeypatch):
    """A GPU of which only the arithmetic is missing; one small problem stands for each set."""
    here = SimpleNamespace(name="NVIDIA H200", driver=13000)
    for user in (benchmark, peer.cuda):
        monkeypatch.setattr(user, "DeviceArray", HostArray)
    copy = SimpleNamespace(copy=lambda to, source, size, _: ctypes.memmove(to, source, size))
    monkeypatch.setattr(benchmark, "cuda", SimpleNamespace(**vars(copy), synchronize=lambda: None, devices=lambda: [here]))
    monkeypatch.setattr(benchmark.events, "Events", Clock)
    monkeypatch.setattr(host, "gpu_here", lambda: load_any("h200"))
    monkeypatch.setattr(cudnn, "Forward", Algorithms)
    monkeypatch.setattr(cudnn, "version", lambda: "cuDNN 9.0.0")
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(data, "problems", lambda name: [Layer(conv(SMALL), f"{name}-1"), Layer(conv("conv:ic3ih5oc4kh3"), f"{name}-2")])
    SPOILS.clear()
    Clock.calls = {}
    return here


def run(out: Path, *arguments: str) -> list[Line]:
    benchmark.run(benchmark.parsed(["-o", str(out), "--dtype", "f32", "--layouts", "nchw", "--parties", "cudnn,torch", *arguments]))
    return data.lines_of([out])


def test_every_candidate_is_checked_then_timed_and_its_workspace_recorded(device, tmp_path):
    line = run(tmp_path / "a.jsonl", "--set", "opencnn", "--only", "opencnn-1")[0]
    timed = line.of("cudnn")
    assert [(one.algorithm, one.seconds, one.workspace_bytes) for one in timed.values()] == [
        (name, SECONDS[name], Algorithms.SPACES[name]) for name in ("WINOGRAD_NONFUSED", "IMPLICIT_PRECOMP_GEMM", "IMPLICIT_GEMM", "GEMM")
    ]
    assert all(one.samples == 20 and one.error is not None and one.error < 1e-6 for one in timed.values())
    # warm-ups and samples are between events; what goes before a short call is not
    assert Clock.calls == dict.fromkeys(timed and SECONDS, 23)


def test_the_device_is_kept_busy_before_a_short_call_alone(device, tmp_path, monkeypatch):
    counts: dict[str, int] = {}
    for name in SECONDS:
        SPOILS[name] = lambda _, name=name: counts.update({name: counts.get(name, 0) + 1})
    run(tmp_path / "a.jsonl", "--set", "opencnn", "--only", "opencnn-1")
    leads = {name: (count - 1 - 3) // 20 - 1 for name, count in counts.items()}  # a check, three warm-ups
    assert leads == {"WINOGRAD_NONFUSED": 6, "IMPLICIT_PRECOMP_GEMM": 3, "IMPLICIT_GEMM": 2, "GEMM": 0}


def test_a_wrong_result_and_an_unwritten_element_are_recorded_and_never_timed(device, tmp_path):
    SPOILS["GEMM"] = lambda y: y.__setitem__(0, y[0] + 1e-3)
    SPOILS["IMPLICIT_GEMM"] = lambda y: y.__setitem__(5, np.nan)
    SPOILS["WINOGRAD_NONFUSED"] = lambda y: y.__setitem__(0, y[0] + 1e-4)  # within what a transform may
    line = run(tmp_path / "a.jsonl", "--set", "opencnn", "--only", "opencnn-1")[0]
    found = {one.algorithm: one for one in line.candidates.values()}
    assert found["GEMM"].wrong.startswith("random fill: 1 of 108 elements are wrong") and found["GEMM"].seconds is None
    assert found["IMPLICIT_GEMM"].wrong.startswith("random fill: 1 of 108 elements are NaN") and found["IMPLICIT_GEMM"].error is None
    assert found["WINOGRAD_NONFUSED"].seconds and not found["WINOGRAD_NONFUSED"].wrong
    assert "GEMM" not in Clock.calls and "IMPLICIT_GEMM" not in Clock.calls


def test_reasons_are_kept_of_who_refuses_fails_or_is_not_here(device, tmp_path):
    count = [0]

    def third_call_fails(_: Any) -> None:
        count[0] += 1
        if count[0] > 10:
            raise RuntimeError("CUDA error: misaligned address\nand a long trace")

    SPOILS["GEMM"] = third_call_fails
    found = run(tmp_path / "a.jsonl", "--set", "opencnn", "--only", "opencnn-1")[0].candidates
    assert found["cudnn DIRECT"].refused == "cuDNN refuses DIRECT"
    assert found["cudnn FFT"].refused.endswith("bytes of workspace: out of memory")
    assert found["cudnn GEMM"].refused == "failed in round 7: RuntimeError: CUDA error: misaligned address"
    assert found["cudnn GEMM"].seconds is None and found["cudnn WINOGRAD_NONFUSED"].samples == 20
    assert "pip install torch" in found["torch"].refused


def test_a_run_that_was_stopped_resumes_and_loses_nothing(device, tmp_path, monkeypatch):
    out = tmp_path / "a.jsonl"
    assert len(run(out, "--set", "opencnn", "--only", "opencnn-1")) == 1
    whole = out.read_bytes()
    out.write_bytes(whole + b'{"kind":"problem","set":"opencnn","lab')
    with pytest.raises(StoreError, match="--resume goes on"):
        run(out, "--set", "opencnn")
    assert len(data.lines_of([out])) == 1
    Clock.calls = {}
    assert [line.label for line in run(out, "--set", "opencnn", "--resume")] == ["opencnn-1", "opencnn-2"]
    assert out.read_bytes().startswith(whole) and Clock.calls["GEMM"] == 23
    assert sum(isinstance(record, Header) for record in data.read(out)) == 2
    device.name = "NVIDIA H100"
    with pytest.raises(StoreError, match="measured on NVIDIA H200, and this is NVIDIA H100"):
        run(out, "--resume")


def test_no_problem_is_begun_when_the_time_is_over(device, tmp_path, capsys):
    assert run(tmp_path / "a.jsonl", "--set", "opencnn", "--seconds", "0") == []
    assert "--resume goes on" in capsys.readouterr().err


# pysim's own side, by its interface


class Launch:
    def __init__(self, schedule: Any, exact: bool) -> None:
        self.workspace_bytes, self.schedule, self.exact = 128, schedule, exact

    def run(self) -> None:
        if self.schedule.kernel == "broken":
            raise NativeError("the library refused")


class Bench:
    def __init__(self, workload: Conv, last_level_bytes: int, layout: str, made: Any) -> None:
        assert layout == data.USED[workload.dtype] and last_level_bytes == load_any("h200").l2_bytes.value

    def launch(self, schedule: Any, exact: bool) -> Launch:
        return Launch(schedule, exact)


def checked(bench: Bench, make: Any) -> tuple[Verdict, Ready]:
    for exact in (True, False):
        ready = make(exact)
        ready.call()
    assert ready.bound == DIRECT_SUM
    return Verdict("passed", 1e-7), ready


class Schedule(msgspec.Struct):
    kernel: str
    splits: int = 1


def row(name: str, algorithm: str, dtype: str) -> SimpleNamespace:
    """What the benchmark asks of a row of the registry."""
    return SimpleNamespace(name=name, algorithm=algorithm, variant="full", dtype=dtype, ablation=False, fused=False)


@pytest.fixture
def kernels(monkeypatch):
    """Three rows of a registry, of which the planner takes two, best first, in two schedules each."""
    monkeypatch.setattr(benchmark.benches, "GpuBench", Bench)
    monkeypatch.setattr(benchmark, "checked", checked)
    rows = [row(name, family, "f32") for name, family in FAMILIES.items()]
    monkeypatch.setattr(benchmark, "conv_kernels", lambda: rows)
    rejected = (SimpleNamespace(what="unfit", reason="it takes 3x3 filters"),)
    chosen = [("fast", 1, 1e-6), ("broken", 2, 2e-6), ("fast", 3, 3e-6), ("broken", 1, 4e-6)]
    found = [
        SimpleNamespace(kernel=name, schedule=Schedule(name, splits), cost=SimpleNamespace(seconds=seconds), rejected=rejected)
        for name, splits, seconds in chosen
    ]
    monkeypatch.setattr(planner, "plans", lambda problem, machine, top, layout: found)


FAMILIES = {"fast": "im2win", "broken": "winograd", "unfit": "winograd"}


def test_pysims_rows_take_part_with_their_best_schedule_or_their_reason(device, kernels, tmp_path):
    line = run(tmp_path / "a.jsonl", "--set", "opencnn", "--only", "opencnn-1", "--parties", "pysim")[0]
    fast = line.candidates["pysim fast"]
    assert line.planned == "pysim fast" and data.planned(line) is fast
    assert (fast.algorithm, fast.workspace_bytes, fast.predicted_seconds, fast.samples) == ("im2win", 128, 1e-6, 20)
    assert fast.schedule == {"kernel": "fast", "splits": 1}
    third = line.candidates["pysim fast #3"]
    assert third.schedule == {"kernel": "fast", "splits": 3} and third.algorithm == "im2win" and third.samples == 20
    assert line.candidates["pysim broken"].refused == line.candidates["pysim broken #4"].refused == "the library refused"
    assert line.candidates["pysim unfit"].refused == "it takes 3x3 filters"


def test_half_types_are_measured_in_the_layout_they_are_used_in(device, kernels, tmp_path, monkeypatch):
    rows = [row(name, "implicit", "f16") for name in FAMILIES]
    monkeypatch.setattr(benchmark, "conv_kernels", lambda: rows)
    found = run(tmp_path / "a.jsonl", "--dtype", "f16", "--set", "opencnn", "--only", "opencnn-1", "--parties", "pysim")[0]
    assert found.planned == "pysim fast nhwc" and found.candidates["pysim fast nhwc"].layout == "nhwc"
    assert found.problem.endswith(":f16")


def test_rows_are_chosen_by_name_or_by_the_planner(device, kernels, tmp_path):
    for index, (rows, names) in enumerate({("planned",): {"pysim fast"}, ("unfit", "fast"): {"pysim unfit", "pysim fast"}}.items()):
        line = run(tmp_path / f"{index}.jsonl", "--set", "opencnn", "--only", "opencnn-1", "--parties", "pysim", "--rows", *rows)[0]
        assert set(line.candidates) == names


@pytest.mark.parametrize("arguments", [["--set", "vgg"], ["--dtype", "f64"], [], ["-o", "x", "--samples", "0"]])
def test_bad_arguments_are_refused_before_anything_runs(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        benchmark.parsed(arguments)
    assert stopped.value.code == 2 and len(capsys.readouterr().err.splitlines()[-1]) > 30
