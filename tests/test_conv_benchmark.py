# SPDX-License-Identifier: Apache-2.0
"""The convolution benchmark without a GPU: what it checks, records and survives, its data files, and the figures it makes of them.

"Device" memory is host memory, cuDNN a stand-in that computes with NumPy on the pointers it is given, and time what a table says.
"""

import ctypes
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest

from pysim import planner
from pysim.algorithms.contract import SUMS
from pysim.calibration import host
from pysim.check.bounds import transformed
from pysim.check.fills import held, random_fill
from pysim.check.reference import picked
from pysim.check.verdict import Verdict
from pysim.errors import MissingError, NativeError, ProblemError, StoreError
from pysim.machine.load import load_any
from pysim.measure.events import Events
from pysim.peers import cudnn, peer
from pysim.peers.peer import Ready, Scratch
from pysim.problem.conv import Conv
from pysim.problem.text import Layer, parse
from pysim.record.plan import LAYOUTS
from pysim.runtime import arrays

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks" / "cuda"))

import conv as benchmark  # noqa: E402
import conv_data as data  # noqa: E402
from conv_data import Contender, Header, Line  # noqa: E402

SMALL = "conv:g2mb2ic4ih7iw6oc6kh3kw2sh2ph1pw1dh1"
HEADER = Header(device="NVIDIA H200", driver="13.0", versions={}, command="", date="")


def conv(text: str) -> Conv:
    found = parse(text)
    assert isinstance(found, Conv)
    return found


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
        ready = Ready(lambda: operands.y.fill(lies), "", bound=transformed(dtype) if transforms else SUMS)
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


def test_every_contender_is_checked_then_timed_and_its_workspace_recorded(device, tmp_path):
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
    found = {one.algorithm: one for one in line.contenders.values()}
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
    found = run(tmp_path / "a.jsonl", "--set", "opencnn", "--only", "opencnn-1")[0].contenders
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


# pysim's own side, by its contract


class Launch:
    def __init__(self, schedule: Any, exact: bool) -> None:
        self.workspace_bytes, self.schedule, self.exact = 128, schedule, exact

    def run(self) -> None:
        if self.schedule.kernel == "broken":
            raise NativeError("the library refused")


class Bench:
    def __init__(self, workload: Conv, last_level_bytes: int, layout: str, seed: int) -> None:
        assert layout == data.USED[workload.dtype] and last_level_bytes == load_any("h200").l2_bytes.value

    def launch(self, schedule: Any, exact: bool) -> Launch:
        return Launch(schedule, exact)


def checked(bench: Bench, make: Any) -> tuple[Verdict, Ready]:
    for exact in (True, False):
        ready = make(exact)
        ready.call()
    assert ready.bound == SUMS
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
    fast = line.contenders["pysim fast"]
    assert line.planned == "pysim fast" and data.planned(line) is fast
    assert (fast.algorithm, fast.workspace_bytes, fast.predicted_seconds, fast.samples) == ("im2win", 128, 1e-6, 20)
    assert fast.schedule == {"kernel": "fast", "splits": 1}
    third = line.contenders["pysim fast #3"]
    assert third.schedule == {"kernel": "fast", "splits": 3} and third.algorithm == "im2win" and third.samples == 20
    assert line.contenders["pysim broken"].refused == line.contenders["pysim broken #4"].refused == "the library refused"
    assert line.contenders["pysim unfit"].refused == "it takes 3x3 filters"


def test_half_types_are_measured_in_the_layout_they_are_used_in(device, kernels, tmp_path, monkeypatch):
    rows = [row(name, "implicit", "f16") for name in FAMILIES]
    monkeypatch.setattr(benchmark, "conv_kernels", lambda: rows)
    found = run(tmp_path / "a.jsonl", "--dtype", "f16", "--set", "opencnn", "--only", "opencnn-1", "--parties", "pysim")[0]
    assert found.planned == "pysim fast nhwc" and found.contenders["pysim fast nhwc"].layout == "nhwc"
    assert found.problem.endswith(":f16")


def test_rows_are_chosen_by_name_or_by_the_planner(device, kernels, tmp_path):
    for index, (rows, names) in enumerate({("planned",): {"pysim fast"}, ("unfit", "fast"): {"pysim unfit", "pysim fast"}}.items()):
        line = run(tmp_path / f"{index}.jsonl", "--set", "opencnn", "--only", "opencnn-1", "--parties", "pysim", "--rows", *rows)[0]
        assert set(line.contenders) == names


# The data files and the figures


def line(name: str, label: str, dtype: str = "f32", planned: str = "", text: str = "", **contenders: Contender) -> Line:
    """A line of a problem that its label alone has."""
    text = text or f"conv:mb{1 + sum(map(ord, label))}ic3ih5oc4kh3"
    return Line(set=name, label=label, problem=data.text_of(conv(text), dtype), dtype=dtype, planned=planned, contenders=contenders)


def ours(seconds: float, algorithm: str = "im2win", form: str = "full", space: int = 0) -> Contender:
    return Contender(who="pysim", algorithm=algorithm, form=form, seconds=seconds, workspace_bytes=space)


def theirs(seconds: float, algorithm: str = "GEMM", space: int = 0) -> Contender:
    return Contender(who="cudnn", algorithm=algorithm, seconds=seconds, workspace_bytes=space)


def torch(seconds: float) -> Contender:
    return Contender(who="torch", seconds=seconds)


def test_the_sets_are_the_acceptance_tables():
    sizes = {name: data.problems(name) for name in data.SETS}
    assert {name: len(layers) for name, layers in sizes.items()} == {"opencnn": 16, "im2win": 12, "resnet50": 23}
    assert {layer.workload.batch for layer in sizes["opencnn"]} == {32, 64, 96, 128}
    assert {layer.workload.batch for layer in sizes["im2win"]} == {128} and {layer.workload.batch for layer in sizes["resnet50"]} == {32}
    assert all(layer.workload.pad_top == 0 for layer in sizes["im2win"])
    cv4 = next(layer.workload for layer in sizes["im2win"] if layer.label == "cv4")
    assert cv4.channels == 64 and cv4.flops == 2 * 128 * 64 * 109 * 109 * 64 * 49
    with pytest.raises(ProblemError, match="no set 'resnet'"):
        data.problems("resnet")


def test_a_file_gives_back_what_was_written_and_forgives_its_last_line_alone(tmp_path):
    out, one = tmp_path / "a.jsonl", line("im2win", "cv1", a=ours(1e-3), b=Contender(who="cudnn", algorithm="FFT", refused="no"))
    tf32 = line("im2win", "cv1", "tf32", a=ours(1e-3))
    for record in (HEADER, one, tf32):
        data.write(out, record)
    assert data.read(out) == [HEADER, one, tf32]
    assert tf32.problem == one.problem + ":tf32" and tf32.workload == one.workload
    out.write_bytes(out.read_bytes() + b'{"kind":"pro')
    assert data.lines_of([out]) == [one, tf32]
    out.write_bytes(b"{}\n" + out.read_bytes())
    with pytest.raises(StoreError, match="line 1 is no record"):
        data.read(out)


def test_a_later_file_replaces_contenders_by_name(tmp_path):
    for name, one in (("a", line("im2win", "cv1", x=ours(2.0), y=ours(3.0))), ("b", line("im2win", "cv1", x=ours(1.0)))):
        data.write(tmp_path / name, one)
    merged = data.lines_of([tmp_path / "a", tmp_path / "b"])
    assert [{name: one.seconds for name, one in found.contenders.items()} for found in merged] == [{"x": 1.0, "y": 3.0}]


def known_answers() -> list[Line]:
    """im2win 2 and 8 times as fast as the best GEMM-class; Winograd 1.5 of all and 3 of those without workspace; regrets 1 and 4."""
    mib = 1 << 20
    cv4 = next(layer for layer in data.problems("im2win") if layer.label == "cv4")
    return [
        line("im2win", "cv1", planned="b", a=ours(1.0, space=mib), b=ours(4.0, form="fused"), c=theirs(2.0), d=theirs(0.5, "FFT", 2 * mib)),
        line("im2win", "cv4", planned="a", text=cv4.workload.text, a=ours(0.01), c=theirs(0.08, "IMPLICIT_GEMM"), e=theirs(0.09)),
        line(
            "opencnn",
            "Conv2_N32",
            a=ours(2.0, "winograd"),
            b=ours(1.0, "winograd", "staged", mib),
            c=theirs(3.0, "FFT", mib),
            d=theirs(6.0),
        ),
        line("resnet50", "conv1", planned="a", a=ours(1.0, "implicit"), b=torch(1.44)),
        line("resnet50", "res2", planned="a", a=ours(1.0, "implicit"), b=torch(1.0)),
        line("resnet50", "conv1", "f16", planned="a", a=ours(2.0, "implicit"), b=torch(1.0)),
        line("resnet50", "res2", "f16", planned="a", a=ours(2.0, "implicit"), b=torch(1.0)),
    ]


def test_the_figures_of_known_times_are_the_known_ones():
    found = {one.what: (None if one.value is None else round(one.value, 9), one.met) for one in data.figures(known_answers())}
    gemm = "im2win with its transform, against cuDNN's GEMM-class algorithms"
    free = "fused Winograd without workspace, against cuDNN without any"
    assert found[f"{gemm}: geometric mean"] == (4.0, True) and found[f"{gemm}: worst layer"] == (2.0, True)
    assert found["fused Winograd, against all of cuDNN: geometric mean"] == (1.5, True)
    assert found[f"{free}: geometric mean"] == (3.0, True)
    assert found["ResNet-50, planned, against PyTorch, f32: geometric mean"] == (1.2, False)
    assert found["ResNet-50, planned, against PyTorch, f32: worst layer"] == (1.0, True)
    assert found["cv4, TFLOP/s of the direct method"] == (round(2 * 128 * 64 * 109**2 * 64 * 49 / 0.01 / 1e12, 9), True)
    assert found["planner's regret, f32: geometric mean"] == (4.0, False) and found["planner's regret, f32: worst"] == (4.0, False)
    assert found["ResNet-50, planned, against PyTorch, f16: geometric mean"] == (0.5, False)
    assert found["ResNet-50, planned, against PyTorch, bf16: geometric mean"] == (None, None)
    assert found["fused Winograd without workspace, against all of cuDNN: geometric mean"] == (1.5, True)
    assert found["fused Winograd, share of layers on which it ran without workspace"] == (1.0, True)
    assert found["im2win fused, share of layers on which it ran without workspace"] == (1.0, True)
    assert found["im2win with its tensor, share of layers with less memory than cuDNN's fastest"] == (0.5, False)


def test_the_summary_says_what_is_met_missed_and_not_measured(tmp_path):
    for one in known_answers():
        data.write(tmp_path / "a.jsonl", one)
    data.write(tmp_path / "a.jsonl", line("opencnn", "Conv3_N32", a=Contender(who="pysim", wrong="3 of 4 elements")))
    text = data.summary([tmp_path / "a.jsonl"])
    rows = {row[:82].rstrip(): row[82:].split() for row in text.splitlines() if len(row) > 82}
    assert rows["ResNet-50, planned, against PyTorch, f32: geometric mean"][:5] == ["1.20", "at", "least", "1.3", "MISS"]
    assert rows["cv4, TFLOP/s of the direct method"][:5] == ["61.04", "at", "least", "35", "met"]
    assert rows["ResNet-50, planned, against PyTorch, tf32: geometric mean"][:2] == ["no", "data"]
    assert "wrong: Conv3_N32 f32 a: 3 of 4 elements" in text and "staged" in text


@pytest.mark.parametrize("arguments", [["--set", "vgg"], ["--dtype", "f64"], [], ["-o", "x", "--samples", "0"]])
def test_bad_arguments_are_refused_before_anything_runs(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        benchmark.parsed(arguments)
    assert stopped.value.code == 2 and len(capsys.readouterr().err.splitlines()[-1]) > 30


MEASURED = [ROOT / "benchmarks" / "data" / f"conv-h200-{name}.jsonl" for name in ("f32", "networks", "f16", "tf32")]


def test_the_measured_data_are_whole_and_say_where_they_are_from():
    for path in MEASURED:
        header = data.read(path)[0]
        assert isinstance(header, Header) and "H200" in header.device and "9.19" in header.versions["cudnn"]
    lines = data.lines_of(MEASURED)
    wanted = {(name, "f32") for name in (*data.SETS, *data.NETWORKS)} | {("resnet50", "f16"), ("resnet50", "tf32")}
    assert {(one.set, one.dtype) for one in lines} == wanted
    for name, dtype in wanted:
        assert len([one for one in lines if (one.set, one.dtype) == (name, dtype)]) == len(data.problems(name))
    ours = [one for line in lines for one in line.contenders.values() if one.who == data.OURS]
    assert not any(one.wrong for one in ours)


def test_the_measured_figures_keep_their_bars():
    missed = {one.what for one in data.figures(data.lines_of(MEASURED)) if one.met is False}
    # cuDNN's fastest needs no memory on 4 layers and little on 4
    assert missed <= {"im2win with its tensor, share of layers with less memory than cuDNN's fastest"}


def test_the_model_chooses_well_among_the_measured_launches(monkeypatch):
    """What tools/fit_conv.py reports of the constants as they are; the bars are those of the planner's regret."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import fit_conv

    from pysim.machine.load import load_any
    from pysim.registry.rows import gemm_attributes

    gpu = load_any("h200")
    cases = fit_conv.read(gpu, MEASURED[:2])
    found = fit_conv.report(cases, gpu, gemm_attributes(gpu.capability_number))
    assert found["problems"] == 111 and found["launches"] > 2500
    kept = json.loads((ROOT / "benchmarks" / "data" / "conv-fit-h200.json").read_text())
    for family, constants in kept["constants"].items():
        now = {name: getattr(gpu.model.families[family], name).value for name in constants}
        assert now == pytest.approx(constants, rel=1e-3), "the report is of other constants"
    assert found["regret_mean"] <= 1.05 and found["regret_worst"] <= 1.25 and found["tau"] >= 0.7 and found["median_error"] <= 0.12
