# SPDX-License-Identifier: Apache-2.0
"""Plans on a GPU beside cuBLAS, cuDNN and PyTorch: who is the peer, who takes no part and why, and what is shown and kept of each.

Launches and others' algorithms compute with NumPy on the very pointers, layouts and types that the libraries would be given, and take as
long as MEDIANS says.
"""

import ctypes
import gc
import math
import re
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from command_line import document, invoke
from fake_gpu import HostArray, gpu_plan, host_device, multiply  # noqa: F401

import pysim
from pysim import planner
from pysim.comparison import bench, summary
from pysim.comparison import compare as comparison
from pysim.errors import MissingError, NativeError
from pysim.machine.load import load_any
from pysim.measure import clock, events
from pysim.measure.store import Store
from pysim.peers import chosen, cublas, cudnn, peer
from pysim.peers import torch as torch_peer
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import Layer, parse
from pysim.runtime import cuda

SMALL = "conv:g2mb2ic4ih7iw6oc6kh3kw2sh2sw2ph1pw1dh1dw1"
UNEVEN = "conv:ic3ih5oc4oh3kh3sh2ph0"  # pads 0 above and 2 below
HALF = {"f16": np.float16}
MEDIANS = {"cudnn IMPLICIT_GEMM": 4e-5, "cudnn IMPLICIT_PRECOMP_GEMM": 2e-5, "cudnn GEMM": 3e-3, "cudnn WINOGRAD_NONFUSED": 1e-5}
SPACES = {"IMPLICIT_GEMM": 0, "IMPLICIT_PRECOMP_GEMM": 64, "GEMM": 4096, "FFT": 1 << 40, "WINOGRAD_NONFUSED": 8192}


def at(pointer: int, shape: tuple[int, ...], dtype: str, layout: str) -> np.ndarray:
    """Memory as an array [N][C][H][W], whatever the layout."""
    kind = np.dtype(HALF.get(dtype, np.float32))
    lies = shape if layout == "nchw" else (shape[0], shape[2], shape[3], shape[1])
    found = np.frombuffer((ctypes.c_char * (math.prod(shape) * kind.itemsize)).from_address(pointer), kind).reshape(lies)
    return found if layout == "nchw" else found.transpose(0, 3, 1, 2)


def convolve(w: Conv, pointers: tuple[int, ...], layout: str) -> np.ndarray:
    """Writes the convolution into the third operand, which it returns: tap by tap on a padded copy."""
    shapes = (
        (w.batch, w.channels, w.height, w.width),
        (w.filters, w.channels // w.groups, w.kernel_h, w.kernel_w),
        (w.batch, w.filters, w.out_h, w.out_w),
    )
    x, filters, y = (at(pointer, shape, w.dtype, layout) for pointer, shape in zip(pointers, shapes, strict=True))
    x, filters = x.astype(np.float64), filters.astype(np.float64)
    padded = np.pad(x, ((0, 0), (0, 0), (w.pad_top, w.pad_bottom), (w.pad_left, w.pad_right)))
    y_exact, each, many = np.zeros(y.shape), w.channels // w.groups, w.filters // w.groups
    for g in range(w.groups):
        for r in range(w.kernel_h):
            for s in range(w.kernel_w):
                rows = r * w.dilation_h + w.stride_h * np.arange(w.out_h)
                columns = s * w.dilation_w + w.stride_w * np.arange(w.out_w)
                taps = padded[:, g * each : (g + 1) * each][:, :, rows][:, :, :, columns]
                part = filters[g * many : (g + 1) * many, :, r, s]
                y_exact[:, g * many : (g + 1) * many] += np.einsum("nchw,kc->nkhw", taps, part)
    y[...] = y_exact
    return y


class Launch:
    """`cuda.Launch` by NumPy, with its operands. `fault` changes what a convolution wrote."""

    fault: ClassVar[Any] = staticmethod(lambda y: None)

    def __init__(self, workload, schedule, *, layout, result) -> None:
        self.workload, self.layout = workload, layout

    def on(self, pointers) -> Any:
        if isinstance(self.workload, Gemm):
            return SimpleNamespace(run=lambda: multiply(pointers), reference=lambda: multiply(pointers))
        self.told = (self.workload, pointers, self.layout)
        return self

    def reference(self) -> None:
        convolve(*self.told)

    def run(self) -> None:
        Launch.fault(convolve(*self.told))


class Forward:
    """`cudnn.Forward` by NumPy; it refuses what SPACES lacks. SPOILS changes what an algorithm wrote, or raises."""

    told: ClassVar[list[cudnn.Descriptor]] = []

    def __init__(self, w: Conv, dtype: str = "", layout: str = "nchw") -> None:
        self.workload, self.layout = w, layout
        Forward.told.append(cudnn.describe(w, dtype, layout))

    def workspace_bytes(self, algorithm: str) -> int:
        if algorithm not in SPACES:
            raise MissingError(f"cuDNN refuses {algorithm}")
        return SPACES[algorithm]

    def call(self, algorithm: str, pointers: tuple[int, int, int], scratch: peer.Scratch) -> Any:
        assert scratch.pointer or not SPACES[algorithm]

        def run() -> None:
            SPOILS.get(algorithm, lambda _: None)(convolve(self.workload, pointers, self.layout))

        run.candidate = f"cudnn {algorithm}"
        return run


class Torch:
    """PyTorch by NumPy, at 5 microseconds."""

    candidate = "torch"

    def __init__(self, w: Conv, pointers: tuple[int, int, int], dtype: str = "", layout: str = "nchw") -> None:
        cudnn.describe(w, dtype, layout)
        self.told = (w, pointers, layout)

    def store(self) -> None:
        convolve(*self.told)

    def run(self) -> None:
        SPOILS.get("torch", lambda _: None)(convolve(*self.told))

    def extra_bytes(self) -> int:
        return 12345


SPOILS: dict[str, Any] = {}


class Clock(events.Events):
    """A device's clock that reads MEDIANS, 100 microseconds for ours, and counts what it timed."""

    timed: ClassVar[dict[str, int]] = {}

    def __init__(self) -> None:
        pass

    def seconds(self, call: Any, times: int = 1) -> float:
        assert times == 1
        call()
        held = [cell.cell_contents for cell in getattr(call, "__closure__", None) or ()]
        held += [call, getattr(call, "__self__", None)]
        name = next((one.candidate for one in held if hasattr(one, "candidate")), "pysim")
        Clock.timed[name] = Clock.timed.get(name, 0) + 1
        return {"pysim": 1e-4, "torch": 5e-6, "cublas": 2e-5}.get(name) or MEDIANS[name]


@pytest.fixture(autouse=True)
def gpu(host_device, monkeypatch, tmp_path):  # noqa: F811
    """An H200 with cuDNN and PyTorch, of which only the arithmetic is NumPy's, and a plan for every problem."""
    monkeypatch.setenv("PYSIM_STORE", str(tmp_path / "store.sqlite"))
    monkeypatch.setattr(planner, "plan", gpu_plan)
    monkeypatch.setattr(cuda, "Launch", Launch)
    monkeypatch.setattr(cudnn, "Forward", Forward)
    monkeypatch.setattr(cudnn, "version", lambda: "cuDNN 9.0.0")
    monkeypatch.setattr(torch_peer, "Forward", Torch)
    monkeypatch.setattr(torch_peer, "version", lambda: "PyTorch 2.0.0")
    monkeypatch.setattr(bench, "Events", Clock)
    monkeypatch.setattr(cublas, "cuda_files", lambda _: [])
    monkeypatch.setattr(clock, "WARMUP_SECONDS", 0)
    cublas._library.cache_clear()
    SPOILS.clear()
    Forward.told, Clock.timed, Launch.fault = [], {}, staticmethod(lambda y: None)


def compared(problem: str = SMALL, **options: Any) -> Any:
    return pysim.compare(problem, "h200", min_seconds=0.0, **options)[0]


# Who the peer is


def test_the_fastest_right_algorithm_is_the_peer_and_all_were_in_the_run():
    one = compared()
    assert one.correct and one.measured_seconds == 1e-4 and one.samples >= 30 and one.predicted_seconds
    assert one.peers == {"cudnn": 1e-5} and one.algorithms == {"cudnn": "WINOGRAD_NONFUSED"} and one.versions == {"cudnn": "cuDNN 9.0.0"}
    assert one.ratios["cudnn"].value == pytest.approx(0.1) and set(one.quartiles) == {"pysim", "cudnn"}
    assert Clock.timed == dict.fromkeys(["pysim", *MEDIANS], one.samples + clock.MIN_WARMUPS)


def test_workspaces_are_those_of_the_plan_and_of_the_peer():
    one = compared("conv:mb2ic8ih12oc8kh3ph1", peers="all")
    assert one.workspaces == {"pysim": one.plan["workspace_bytes"], "cudnn": 8192, "torch": 12345}
    assert one.peers == {"cudnn": 1e-5, "torch": 5e-6} and one.versions["torch"] == "PyTorch 2.0.0" and "torch" not in one.algorithms
    assert compared("conv:mb2ic8ih12oc8kh3ph1", memory_limit=0).workspaces["pysim"] == 0


def test_a_wrong_algorithm_is_never_the_peer_and_never_timed():
    def off(y: np.ndarray) -> None:
        y[0, 0, 0, 0] += 1e-4  # more than a product may, less than a transform

    SPOILS["IMPLICIT_PRECOMP_GEMM"] = off
    SPOILS["WINOGRAD_NONFUSED"] = lambda y: y.__setitem__((1, 5, 0, 0), np.nan)
    one = compared()
    assert one.correct and one.algorithms == {"cudnn": "IMPLICIT_GEMM"} and one.peers == {"cudnn": 4e-5}
    assert one.missing["cudnn IMPLICIT_PRECOMP_GEMM"].startswith("its result is wrong: exact fill: 1 of ")
    assert "NaN" in one.missing["cudnn WINOGRAD_NONFUSED"]
    assert set(Clock.timed) == {"pysim", "cudnn IMPLICIT_GEMM", "cudnn GEMM"}
    SPOILS["WINOGRAD_NONFUSED"] = off
    assert compared().algorithms == {"cudnn": "WINOGRAD_NONFUSED"}


def test_an_algorithm_without_memory_is_reported_and_the_others_run():
    one = compared()
    assert one.missing == {"cudnn FFT": f"FFT needs {1 << 40} bytes of workspace: device memory: out of memory"}
    assert one.peers["cudnn"] == 1e-5


def test_a_peer_that_fails_when_timed_drops_out_with_its_reason():
    runs = [0]

    def fifth(_: Any) -> None:
        runs[0] += 1
        if runs[0] == 7:
            raise RuntimeError("misaligned address\nand a trace")

    SPOILS["WINOGRAD_NONFUSED"] = fifth
    one = compared()
    assert one.correct and one.algorithms == {"cudnn": "IMPLICIT_PRECOMP_GEMM"} and one.samples >= 30
    assert one.missing["cudnn WINOGRAD_NONFUSED"] == "failed when timed: RuntimeError: misaligned address"


def test_without_any_algorithm_the_plan_is_measured_all_the_same(monkeypatch):
    for algorithm in ("IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "GEMM", "WINOGRAD_NONFUSED"):
        SPOILS[algorithm] = lambda y: y.fill(0)
    one = compared()
    assert one.measured_seconds == 1e-4 and not one.peers
    assert one.missing["cudnn"].startswith("none of its algorithms ran: DIRECT, FFT_TILING, WINOGRAD refused conv:")
    monkeypatch.setattr(cudnn, "Forward", lambda *_, **__: refuse())
    one = compared(peers="all")
    assert one.missing == {"cudnn": "cuDNN is not installed"} and set(one.peers) == {"torch"}


def refuse() -> Any:
    raise MissingError("cuDNN is not installed")


def test_what_cudnn_cannot_say_is_compared_with_a_reason():
    one = compared(UNEVEN, peers="all")
    assert one.correct and one.measured_seconds and not one.peers
    assert set(one.missing) == {"cudnn"} | {"torch"}
    assert all("pads 0 above and 2 below" in reason for reason in one.missing.values())


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", ["f32", "tf32", "f16"])
def test_peers_are_given_the_type_and_the_layout_of_the_plan(dtype, layout):
    one = compared(f"{SMALL}:{dtype}", layout=layout, peers="all")
    assert one.correct, one.reason
    assert one.plan["layout"] == layout and set(one.peers) == {"cudnn", "torch"}
    (told,) = set(Forward.told)
    assert (told.format, told.data) == (cudnn.LAYOUTS.index(layout), 2 if dtype == "f16" else 0)
    assert told.math == (3 if dtype == "f32" else 1)  # cudnnMathType_t: multiply-adds alone, tensor cores


# Ours


@pytest.mark.parametrize(
    ("fault", "says"),
    [(lambda y: y.__setitem__((-1, -1, -1, -1), y[-1, -1, -1, -1] + 1), "1 of 108 elements"), (lambda y: y.fill(np.nan), "108 of 108")],
)
def test_a_wrong_result_of_ours_is_reported_and_nothing_is_timed(fault, says):
    Launch.fault = staticmethod(fault)
    found = document("compare", SMALL, "-m", "h200", code=1)["comparisons"][0]
    assert not found["correct"] and says in found["reason"] and found["measured_seconds"] is None and not found["workspaces"]
    assert Clock.timed == {} and Forward.told == []
    result = invoke("compare", SMALL, "-m", "h200")
    assert result.exit_code == 1 and "WRONG" in result.output and says in result.output


def test_one_wrong_element_of_random_operands_is_found_wherever_it_is(monkeypatch):
    """Of 450 windows NumPy looks at 50; exact operands give whole numbers, which stay right."""
    monkeypatch.setattr("pysim.check.reference.PICKED_PRODUCTS", 50 * 27 * 4)
    conv = parse("conv:mb2ic3ih15oc4kh3ph1")
    windows = bench.GpuBench(conv, 1).trial.picked.at
    assert len(windows) == 50
    image, window = divmod(next(i for i in range(conv.batch * conv.windows) if i not in windows), conv.windows)

    def spoil(y: np.ndarray) -> None:
        if (y != np.round(y)).any():
            y.reshape(conv.batch, conv.filters, conv.windows)[image, 2, window] += 0.01

    Launch.fault = staticmethod(spoil)
    one = compared("conv:mb2ic3ih15oc4kh3ph1")
    assert not one.correct and one.reason.startswith("failed: random fill: 1 of 1800 elements are wrong; the first at (")


def test_a_problem_that_device_memory_does_not_hold_is_a_reason_and_the_others_go_on(monkeypatch):
    monkeypatch.setattr(HostArray, "LIMIT", 100_000)
    found = document("compare", "conv:mb8ic64ih32oc64kh3ph1", SMALL, "-m", "h200", code=1)["comparisons"]
    assert [one["correct"] for one in found] == [False, True]
    assert found[0]["reason"] == "device memory: out of memory" and found[1]["peers"]
    assert invoke("compare", "conv:mb8ic64ih32oc64kh3ph1", "-m", "h200").exit_code == 2


def test_a_launch_that_fails_when_timed_is_a_reason(monkeypatch):
    runs = [0]

    def fourth(_: Any) -> None:
        runs[0] += 1
        if runs[0] > 3:
            raise NativeError("the launch failed")

    Launch.fault = staticmethod(fourth)
    one = compared()
    assert not one.correct and one.reason == "the launch failed" and one.measured_seconds is None


def test_the_memory_of_a_problem_is_given_back_before_the_next_one():
    alive = []
    on = load_any("h200")
    planned = [(Layer(w), gpu_plan(w, on)) for w in (parse(SMALL), parse(UNEVEN))]
    for one in comparison.compare(planned, on, chosen("all", on)):
        assert one.correct
        alive.append([thing for thing in gc.get_objects() if issubclass(type(thing), HostArray)])
    assert alive == [[], []]


def test_a_plan_is_run_alone():
    result = invoke("run", SMALL, "-m", "h200")
    assert result.exit_code == 0 and result.stdout.splitlines()[1].split()[:2] == ["100", "us"]
    with Store() as store:
        kept = [one.kernel for one in store.find(problem=parse(SMALL).text)]
    assert len(kept) == 1 and "cudnn" not in kept[0]


# What is shown and kept


def test_every_candidate_is_stored_under_its_own_name():
    with Store() as store:
        problem = compared(layout="nhwc", store=store).problem
        kept = {one.kernel: one for one in store.find(problem=problem)}
    assert len(kept) == 5 and set(kept) > set(MEDIANS)
    assert {len(one.samples) for one in kept.values()} == {30} and len({one.run for one in kept.values()}) == 1
    assert all(one.environment["layout"] == "nhwc" for one in kept.values())
    assert kept["cudnn GEMM"].environment["version"] == "cuDNN 9.0.0" and not kept["cudnn GEMM"].schedule


def product_launch(monkeypatch) -> None:
    """cuBLAS takes part in products."""

    def product(w: Any, result: str, pointers: tuple[int, int, int]) -> Any:
        def call() -> None:
            LEADS.append("cublas")
            multiply(pointers)

        call.candidate = "cublas"
        return call, "cuBLAS 13.0.0"

    monkeypatch.setattr(cublas, "product", product)


LEADS: list[str] = []


def test_a_mixed_list_shows_every_peer_and_workspace_and_a_dash_where_there_is_none(monkeypatch):
    product_launch(monkeypatch)
    result = invoke("compare", SMALL, "gemm:16x16x16", UNEVEN, "-m", "h200", "--peers", "--seconds", "0")
    assert result.exit_code == 0, result.output
    header, conv, gemm, uneven, *rest = result.stdout.splitlines()
    beside = ["cublas", "cudnn", "nvMMH", "torch", "workspace", "cudnn's", "torch's"]
    names = ["measured", "predicted", "error", "max error", *beside, "x", "problem"]
    assert re.split(r" {2,}", header.strip()) == names
    ends = [0] + [f" {header}".index(f" {name}") + len(name) for name in names[:-1]]

    def cell(row: str, name: str) -> str:
        place = names.index(name)
        return row[ends[place] : ends[place + 1]].strip()

    assert [cell(conv, name) for name in ("measured", "cublas", "cudnn", "torch", "cudnn's", "torch's")] == [
        "100 us", "-", "0.10x", "0.05x", "8 KiB", "12.06 KiB",
    ]  # fmt: skip
    assert [cell(gemm, name) for name in ("cublas", "cudnn", "torch", "workspace", "cudnn's")] == ["0.20x", "-", "-", "256 B", "-"]
    assert [cell(uneven, name) for name in ("cudnn", "torch", "cudnn's", "torch's")] == ["-"] * 4
    assert all(re.fullmatch(r"\d\.\de-\d\d", cell(row, "max error")) for row in (conv, gemm))
    told = "\n".join(rest)
    assert "cudnn" in told and "0.100x geometric mean of 1, faster on 0 (0%); cuDNN 9.0.0" in told
    assert "its fastest: WINOGRAD_NONFUSED on 1" in told
    assert "cudnn did not run on 1 of 3 layers: " in result.stderr and "cudnn FFT did not run on 1 of 3 layers: FFT needs" in result.stderr


def test_the_document_has_workspaces_and_the_algorithms_that_won():
    arguments = ("-m", "h200", "--seconds", "0", "--layout", "nhwc", "--memory-limit", "1GiB")
    found = document("compare", SMALL, "conv:mb1ic8ih9oc8kh3ph1", *arguments)
    one = found["comparisons"][0]
    assert one["workspaces"] == {"pysim": one["plan"]["workspace_bytes"], "cudnn": 8192}
    assert one["algorithms"] == {"cudnn": "WINOGRAD_NONFUSED"}
    assert one["plan"]["memory_limit_bytes"] == 1 << 30 and one["plan"]["layout"] == "nhwc"
    assert found["summary"]["peers"]["cudnn"]["algorithms"] == {"WINOGRAD_NONFUSED": 2}


def test_products_and_convolutions_are_timed_by_one_loop_that_keeps_the_device_busy(monkeypatch):
    """Calls between a check and the end: samples and warm-ups alone are timed, what goes before each sample is the candidate's own."""
    product_launch(monkeypatch)
    runs: dict[str, int] = {}
    for name in SPACES:
        SPOILS[name] = lambda _, name=name: runs.update({name: runs.get(name, 0) + 1})
    LEADS.clear()
    one, product = compared(), compared("gemm:16x16x16")
    timed = one.samples + clock.MIN_WARMUPS
    leads = {name: (count - 2 - timed) / one.samples for name, count in runs.items()}  # 2: a check on each fill
    assert leads == {"WINOGRAD_NONFUSED": 6, "IMPLICIT_PRECOMP_GEMM": 3, "IMPLICIT_GEMM": 2, "GEMM": 1}
    assert product.peers == {"cublas": 2e-5} and product.samples == one.samples
    assert (len(LEADS) - 2 - timed) / one.samples == leads["IMPLICIT_PRECOMP_GEMM"]  # which takes as long


def test_cold_candidates_rotate_over_copies_of_their_operands_in_device_memory(monkeypatch):
    seen: dict[int, int] = {}

    def note(y: np.ndarray) -> None:
        seen[y.ctypes.data] = seen.get(y.ctypes.data, 0) + 1

    Launch.fault = staticmethod(note)
    monkeypatch.setattr(comparison, "copies_for", lambda nbytes, last_level: last_level // (1 << 20))
    one = compared(state="cold", peers=())
    assert one.correct and one.state == "cold" and one.peers == {}
    assert len(seen) == 1 + load_any("h200").l2_bytes.value // (1 << 20)  # and where it was checked
    assert summary.summarise([one])["layers"] == 1


def test_what_a_gpu_has_not_is_refused():
    assert "threads is 2; h200 is a GPU" in compared(threads=2).reason
    assert "--threads is for CPUs" in invoke("compare", SMALL, "-m", "h200", "--threads", "2").output
    assert document("compare", SMALL, "-m", "h200", "--seconds", "0")["comparisons"][0]["state"] == "hot"
