# SPDX-License-Identifier: Apache-2.0
"""Arrays on a GPU: how they are seen, what a launch is told about them, and, where there is a GPU, what comes out.

Most of this runs without a GPU: there `Launch` computes with NumPy on the very pointers, pitches and flags that the library would be
given, and "device" memory is host memory behind `__cuda_array_interface__`.
"""

import ctypes
from typing import Any, cast

import numpy as np
import pytest
from fake_gpu import Clock, cuda_ffi, gpu_plan, host_device  # noqa: F401

import pysim
from pysim import planner
from pysim.calibration import host
from pysim.comparison import bench
from pysim.errors import MissingError, OperandError
from pysim.measure import clock
from pysim.peers import cublas
from pysim.problem.gemm import Gemm
from pysim.record.schedule import DECOMPOSITIONS, GpuSchedule
from pysim.registry.cuda import gemm_kernels
from pysim.runtime import arrays, cuda, cuda_call

DTYPES = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "s8": np.int8, "s32": np.int32}


class OnDevice:
    """Host memory that calls itself a CUDA array; strides as NumPy's."""

    def __init__(self, array: np.ndarray, stream: int | None = None) -> None:
        self.array, self.stream = array, stream

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        about = {"shape": self.array.shape, "typestr": self.array.dtype.str, "data": (self.array.ctypes.data, False), "version": 3}
        return about | {"strides": self.array.strides, "stream": self.stream}


class NumpyBound:
    """`Bound` by NumPy, on exactly what the library would be told."""

    def __init__(self, launch, pointers, *, epilogue=None, stream=0) -> None:
        NumpyLaunch.seen = self
        w, self.schedule, result, pitches = launch.told
        pitches = pitches or (w.m if w.trans_a else w.k, w.k if w.trans_b else w.n, w.n)
        self.workload, self.stream, self.epilogue = w, stream, epilogue or cuda.epilogue_struct(1.0, 0.0, 0, None)
        shapes = ((w.k, w.m) if w.trans_a else (w.m, w.k), (w.n, w.k) if w.trans_b else (w.k, w.n), (w.m, w.n))
        types = (w.dtype, w.dtype, result)
        self.views = [rows_at(*one) for one in zip(pointers, shapes, pitches, types, strict=True)]

    def reference(self) -> None:
        NumpyBound.run(self)

    def run(self) -> None:
        a, b, c = self.views
        e, w = self.epilogue, self.workload
        sums = (a.T if w.trans_a else a).astype(np.float64) @ (b.T if w.trans_b else b).astype(np.float64)
        value = e.alpha * sums
        if e.beta != 0:
            value += e.beta * c
        c[...] = value.astype(c.dtype)


class NumpyLaunch:
    """`Launch` by the same."""

    workspace_bytes, bound, seen = 0, NumpyBound, cast("Any", None)

    def __init__(self, workload, schedule, *, result, layout="nchw", pitches=None, first=0, second=0) -> None:
        self.told = (workload, schedule, result, pitches)

    def run(self, first, second, result, workspace, epilogue, stream) -> None:
        self.on((first, second, result), epilogue=epilogue, stream=stream).run()

    def on(self, pointers, **given) -> Any:
        return self.bound(self, pointers, **given)


def rows_at(pointer: int, shape: tuple[int, int], pitch: int, dtype: str) -> np.ndarray:
    kind = np.dtype(DTYPES["f32" if dtype == "tf32" else dtype])
    count = (shape[0] - 1) * pitch + shape[1]
    flat = np.frombuffer((ctypes.c_char * (count * kind.itemsize)).from_address(pointer), kind)
    return np.lib.stride_tricks.as_strided(flat, shape, (pitch * kind.itemsize, kind.itemsize), writeable=True)


@pytest.fixture
def device(host_device, monkeypatch):  # noqa: F811
    """A device of which only the arithmetic is missing."""
    monkeypatch.setattr(cuda, "Launch", NumpyLaunch)
    return host_device


def gemm(a: Any, b: Any, alpha: float = 1.0, beta: float = 0.0, dtype: str | None = None, activation: Any = None, **given: Any) -> Any:
    """A product by a schedule that no plan has."""
    flags = {name: given.pop(name, False) for name in ("trans_a", "trans_b")}
    operands = arrays.operands_of({"a": a, "b": b, **given})
    task = cuda_call.gemm_of(operands, alpha, beta, dtype=dtype, **flags)
    schedule = GpuSchedule("any", "data_parallel", 1, False, 1)
    return cuda_call.prepared(task, schedule, "nchw", operands, activation).run(operands)


def whole(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


# Without library, driver or device


def test_without_the_library_the_reason_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PYSIM_CUDA_LIBRARY", str(tmp_path / "none.so"))
    with pytest.raises(MissingError, match=r"no CUDA kernel is in this build \(there is no \S+\): .*nvcc.*pip install"):
        cuda.library_path()


def test_a_file_that_is_no_library_is_a_reason_too(monkeypatch, tmp_path):
    (tmp_path / "bad.so").write_bytes(b"not a library")
    monkeypatch.setenv("PYSIM_CUDA_LIBRARY", str(tmp_path / "bad.so"))
    cuda.library.cache_clear()
    try:
        with pytest.raises(MissingError, match="cannot be opened"):
            cuda.library()
    finally:
        cuda.library.cache_clear()


def test_another_gpu_than_the_one_here_is_refused_and_this_one_is_found(device):
    assert host.runnable_any("h200").name == host.gpu_here().name == "h200"
    with pytest.raises(
        MissingError,
        match=r"the GPU here is NVIDIA H200, capability 9.0, 132 SMs, 60 MiB of L2; v100 has 7.0, 80 SMs and 6 MiB: run on -m cuda",
    ):
        host.runnable_any("v100")


def test_an_h100_is_not_taken_for_an_h200_which_has_as_many_multiprocessors(device, monkeypatch):
    h100 = cuda.Device(
        0, "NVIDIA H100 80GB HBM3", 90, 132, 1 << 36, 52428800, 233472, 232448, 65536, 2048, 32, 1980000, 2619000, 13000, 13000
    )
    monkeypatch.setattr(cuda, "devices", lambda: (h100,))
    assert host.gpu_here().name == host.runnable_any("h100").name == "h100"
    with pytest.raises(MissingError, match=r"50 MiB of L2; h200 has 9.0, 132 SMs and 60 MiB"):
        host.runnable_any("h200")


def test_a_gpu_that_is_not_shipped_becomes_a_machine_with_its_own_numbers_and_assumed_ones(device, monkeypatch):
    h100 = cuda.Device(0, "NVIDIA H100 PCIe", 90, 114, 1 << 36, 52428800, 233472, 232448, 65536, 2048, 32, 1755000, 1593000, 13000, 13000)
    monkeypatch.setattr(cuda, "devices", lambda: (h100,))
    found = host.gpu_here()
    assert (found.name, found.sms.value, found.l2_bytes.value, found.frequency_hz.value) == ("cuda", 114, 52428800, 1.755e9)
    assert {"memory_bytes_per_second", "model.families.simt.launch_seconds", "fma_per_cycle.f32"} <= set(found.assumed())
    assert planner.plan("gemm:512x512x512:f16", found).machine == "cuda"


# The structs


def test_schedules_and_devices_mirror_the_librarys_structs():
    ffi = cuda_ffi()
    fields = [name for name, _ in ffi.typeof("pysim_cuda_schedule").fields]
    assert fields == [*GpuSchedule.__struct_fields__]
    info = [name for name, _ in ffi.typeof("pysim_cuda_gemm_info").fields]
    assert info == ["name", "family", "form", "dtype", *gemm_kernels()[0].tile, "capability"]
    known = {name for name, _ in ffi.typeof("pysim_cuda_device").fields}
    assert set(cuda.Device.__struct_fields__) - known == {"index", "capability"}
    assert [ffi.typeof("pysim_cuda_decomposition").relements[f"PYSIM_{name.upper()}"] for name in DECOMPOSITIONS] == [0, 1, 2]


# How arrays are seen


@pytest.mark.parametrize(
    ("array", "layout"),
    [
        (np.zeros((3, 5)), (False, 5)),
        (np.zeros((3, 5)).T, (True, 5)),
        (np.asfortranarray(np.zeros((3, 5))), (True, 3)),
        (np.zeros((3, 9))[:, :5], (False, 9)),
        (np.zeros((9, 5)).T[:, :4], (True, 5)),
        (np.zeros((1, 5)), (False, 5)),
        (np.zeros((5, 1)), (False, 1)),
        (np.zeros((5, 9))[:, :1], (False, 9)),
        (np.zeros((3, 10))[:, ::2], None),
        (np.zeros((3, 5))[::-1], None),
    ],
)
def test_layouts_are_rows_columns_or_neither(array, layout):
    found = arrays.view(OnDevice(array), "a").layout
    assert (found and tuple(found)) == layout


def test_a_cuda_array_keeps_its_stream_and_a_host_array_is_none():
    seen = arrays.view(OnDevice(np.zeros((2, 2), np.float16), stream=7), "a")
    assert (seen.stream, seen.dtype, seen.device) == (7, "f16", 0)
    assert arrays.view(np.zeros((2, 2)), "a").device is None
    assert arrays.is_cuda(OnDevice(np.zeros(1))) and not arrays.is_cuda(np.zeros(1)) and not arrays.is_cuda([1.0])
    with pytest.raises(OperandError, match="complex128"):
        arrays.view(np.zeros((2, 2), complex), "a")


# Products


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("order_a", "CF")
@pytest.mark.parametrize("order_b", "CF")
def test_row_and_column_major_operands_are_flags_not_copies(device, trans_a, trans_b, order_a, order_b):
    a = np.array(whole(*((7, 3) if trans_a else (3, 7)), seed=1), order=order_a)
    b = np.array(whole(*((5, 7) if trans_b else (7, 5)), seed=2), order=order_b)
    want = (a.T if trans_a else a) @ (b.T if trans_b else b)
    out = np.full((3, 5), np.nan, np.float32)
    found = gemm(OnDevice(a), OnDevice(b), trans_a=trans_a, trans_b=trans_b, out=OnDevice(out))
    assert np.array_equal(out, want) and np.array_equal(found.array, want)
    told = NumpyLaunch.seen
    assert told.views[0].ctypes.data == a.ctypes.data and told.views[1].ctypes.data == b.ctypes.data
    assert told.workload.trans_a == (trans_a != (order_a == "F")) and told.workload.trans_b == (trans_b != (order_b == "F"))


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("order_b", "CF")
def test_a_column_major_result_is_computed_as_its_transpose(device, trans_a, order_b):
    a, b = whole(*((7, 3) if trans_a else (3, 7)), seed=1), np.array(whole(7, 5, seed=2), order=order_b)
    out = np.full((9, 5), np.nan, np.float32, order="F")[:3]
    gemm(OnDevice(a), OnDevice(b), trans_a=trans_a, out=OnDevice(out))
    assert np.array_equal(out, (a.T if trans_a else a) @ b)
    assert (NumpyLaunch.seen.workload.m, NumpyLaunch.seen.workload.n) == (5, 3)


def test_submatrices_with_pitches_are_taken_as_they_lie(device):
    a, b, out = whole(8, 16, seed=1)[2:5, 3:10], whole(16, 12, seed=2)[1:8, 4:9], np.zeros((6, 20), np.float32)[1:4, 2:7]
    gemm(OnDevice(a), OnDevice(b), out=OnDevice(out))
    assert np.array_equal(out, a @ b) and np.count_nonzero(out.base) == np.count_nonzero(out)


@pytest.mark.parametrize("order", "CF")
def test_host_arrays_come_back_as_host_arrays(device, order):
    a, b, c = np.array(whole(4, 6), order=order), whole(5, 6, seed=3).T, whole(4, 5, seed=4)
    result = gemm(a, b, c=c, alpha=2.0, beta=3.0)
    assert isinstance(result, np.ndarray) and np.array_equal(result, 2 * (a @ b) + 3 * c)
    out = np.empty((5, 4), np.float32).T
    assert gemm(a, b, c=c, alpha=2.0, beta=3.0, out=out) is out
    assert np.array_equal(out, result)
    assert gemm(whole(2, 3, dtype=np.int8), whole(3, 2, dtype=np.int8)).dtype == np.int32


def test_c_is_read_and_only_out_is_written(device):
    a, b, c = whole(3, 4), whole(4, 5, seed=1), whole(3, 5, seed=2)
    before = c.copy()
    out = np.zeros((3, 5), np.float32)
    gemm(OnDevice(a), OnDevice(b), c=OnDevice(c), beta=1.0, out=OnDevice(out))
    assert np.array_equal(out, a @ b + c) and np.array_equal(c, before)
    gemm(OnDevice(a), OnDevice(b), c=OnDevice(c), beta=1.0, out=OnDevice(c))
    assert np.array_equal(c, a @ b + before)


def test_work_goes_to_the_stream_of_the_first_operand_and_waits_for_the_others(device):
    device.synchronized.clear()
    gemm(OnDevice(whole(2, 2), 5), OnDevice(whole(2, 2), 9), out=OnDevice(whole(2, 2), 5))
    assert NumpyLaunch.seen.stream == 5 and device.synchronized == [9]


def test_the_public_gemm_plans_for_the_gpu_that_is_here(device):
    a, b = whole(64, 32, dtype=np.float16), whole(32, 48, dtype=np.float16, seed=1)
    for result in (
        pysim.gemm(a, b, machine="cuda"),
        pysim.gemm(a, b, machine="h200"),
        pysim.gemm(a, b, plan=pysim.plan("gemm:64x48x32:f16", "h200")),
    ):
        assert np.array_equal(result, a @ b)
    assert NumpyLaunch.seen.schedule == pysim.plan("gemm:64x48x32:f16", "h200").schedule
    on_device = pysim.gemm(OnDevice(a), OnDevice(b))
    assert isinstance(on_device, cuda.DeviceArray) and np.array_equal(on_device.read(np.empty((64, 48), np.float16)), a @ b)
    assert np.array_equal(pysim.plan("gemm:64x48x32:f16", "h200").run(a, b), a @ b)
    with pytest.raises(OperandError, match="the plan is for gemm:64x48x33:f16, but the arrays make gemm:64x48x32:f16"):
        pysim.gemm(a, b, plan=pysim.plan("gemm:64x48x33:f16", "h200"))


M, N = np.zeros((3, 4), np.float32), np.zeros((4, 5), np.float32)


@pytest.mark.parametrize(
    ("arguments", "options", "says"),
    [
        ((M, np.zeros((5, 5), np.float32)), {}, "op(a) has 4 columns but op(b) has 5 rows"),
        ((M, N.astype(np.float64)), {}, "a is f32 and b is f64"),
        ((M[0], N), {}, "a must be a matrix"),
        ((M[:, :0], N[:0]), {}, "no size may be 0"),
        ((M.astype(np.int32), N.astype(np.int32)), {}, "arrays of s32 are multiplied not at all"),
        ((M, N), {"dtype": "f16"}, "with dtype='f32' or 'tf32'"),
        ((M.astype(np.uint8), N.astype(np.uint8)), {}, "arrays of u8 are multiplied with dtype='f8'"),
        ((M, N), {"beta": 1.0}, "beta is 1.0, so c must be given"),
        ((M, N), {"c": np.zeros((4, 5), np.float32), "beta": 1.0}, "c is f32 of shape (4, 5)"),
        ((M, N), {"bias": np.zeros(4, np.float32)}, "5 contiguous values, one per column"),
        ((M, N), {"bias": np.zeros(5)}, "bias is f64; expected the result's type, f32"),
        ((M, N), {"activation": "swish"}, 'activation "swish" is not known; did you mean "hard_swish"? there are: identity, relu'),
        ((M, N), {"activation": "clamp"}, "clamp needs its numbers"),
        ((M, N), {"activation": ("clamp", 2.0, 1.0)}, "low at most high"),
    ],
)
@pytest.mark.parametrize("place", ["host", "device"])
def test_what_does_not_fit_is_named(device, arguments, options, says, place):
    def put(x: Any) -> Any:
        return OnDevice(x) if place == "device" and isinstance(x, np.ndarray) else x

    with pytest.raises(OperandError) as caught:
        gemm(*map(put, arguments), **{name: put(value) for name, value in options.items()})
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("out", "says"),
    [
        (lambda a: OnDevice(np.zeros((5, 3), np.float32)), "expected a matrix of shape (3, 5)"),
        (lambda a: OnDevice(np.zeros((3, 5))), "a product of f32 cannot result in f64; it may in f32"),
        (lambda a: OnDevice(np.zeros((3, 10), np.float32)[:, ::2]), "contiguous rows or columns"),
        (lambda a: np.zeros((3, 5), np.float32), "a, b lie on a GPU but out in host memory"),
        (lambda a: OnDevice(a.reshape(-1)[:15].reshape(3, 5)), "out overlaps a"),
    ],
)
def test_an_out_that_does_not_fit_is_named_and_nothing_is_written(device, out, says):
    a = whole(8, 4)
    before = a.copy()
    with pytest.raises(OperandError) as caught:
        gemm(OnDevice(a[:3]), OnDevice(N), out=out(a))
    assert says in str(caught.value) and np.array_equal(a, before)


def test_a_matrix_whose_rows_are_scattered_is_refused_on_the_device_and_copied_from_the_host(device):
    a, b = whole(3, 8)[:, ::2], whole(4, 5)
    with pytest.raises(OperandError, match="neither its rows nor its columns are contiguous"):
        gemm(OnDevice(a), OnDevice(b))
    assert np.array_equal(gemm(a, b), a @ b)


# Comparisons, the device played by NumPy


def compared(monkeypatch, problem: str) -> Any:
    monkeypatch.setattr(planner, "plan", gpu_plan)
    monkeypatch.setattr(bench, "Events", Clock)
    monkeypatch.setattr(clock, "WARMUP_SECONDS", 0)
    monkeypatch.setattr(cublas, "cuda_files", lambda _: [])
    cublas._library.cache_clear()
    return pysim.compare(problem, machine="h200", min_seconds=0.0)[0]


@pytest.mark.parametrize(
    "problem", ["gemm:70x50x300", "gemm:33x65x128:f16:tn", "gemm:20x30x500:s8:nt", "gemm:40x20x64:f64:tt", "gemm:30x30x30:tf32"]
)
def test_a_right_plan_is_timed_beside_what_is_missing(device, monkeypatch, problem):
    one = compared(monkeypatch, problem)
    assert one.correct, one.reason
    assert one.measured_seconds == 1e-3 and one.samples >= 30 and one.predicted_seconds
    assert "cuBLAS is not installed" in one.missing["cublas"] and not one.peers
    assert one.machine == "h200" and one.plan["machine"] == "h200"
    assert one.workspaces == {"pysim": one.plan["workspace_bytes"]}


@pytest.mark.parametrize(
    ("fault", "says"), [("one element", "exact fill: 1 of"), ("unwritten", "exact fill:"), ("rounded", "random fill:")]
)
def test_a_wrong_result_is_never_timed(device, monkeypatch, fault, says):
    class Broken(NumpyBound):
        def run(self) -> None:
            a, b, c = self.views
            if fault == "unwritten":
                return
            super().run()
            if fault == "one element":
                c[-1, -1] += 1
            if fault == "rounded":
                rounded = [x.astype(np.float16).astype(np.float64) for x in (a, b)]
                c[...] = (rounded[0] @ rounded[1]).astype(np.float32)

    monkeypatch.setattr(NumpyLaunch, "bound", Broken)
    one = compared(monkeypatch, "gemm:70x50x300")
    assert not one.correct and says in one.reason and one.measured_seconds is None


# On a GPU


def _no_gpu() -> str:
    try:
        cuda.devices()
    except MissingError as error:
        return str(error)
    return ""


on_gpu = pytest.mark.skipif(bool(_no_gpu()), reason=_no_gpu() or "a GPU is here")


def _no_library() -> str:
    try:
        cuda.library()
    except MissingError as error:
        return str(error)
    return ""


@pytest.mark.skipif(bool(_no_library()), reason=_no_library() or "the library is here")
def test_the_planner_counts_the_workspace_as_the_library_does():
    for problem in ("gemm:1000x700x3000:f16", "gemm:513x100x9000:tn:s8", "gemm:64x64x4096:tt:tf32", "gemm:333x777x555:nt:bf16"):
        for plan in planner.plans(problem, "h200", 12):
            w, s = plan.workload, plan.schedule
            assert isinstance(w, Gemm) and isinstance(s, GpuSchedule)
            assert plan.workspace_bytes == cuda.Launch(w, s).workspace_bytes, (problem, s)


@on_gpu
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "s8"])
@pytest.mark.parametrize("order", "CF")
def test_products_on_the_gpu_are_numpys(dtype, order):
    kind = DTYPES[dtype]
    a, b = np.array(whole(130, 77, dtype=kind), order=order), whole(77, 65, dtype=kind, seed=1)
    want = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int32 if dtype == "s8" else kind)
    assert np.array_equal(pysim.gemm(a, b, machine="cuda"), want)


@on_gpu
def test_torch_tensors_are_multiplied_where_they_lie_on_their_stream():
    torch = pytest.importorskip("torch")
    a = torch.randint(-4, 5, (200, 96), device="cuda").to(torch.bfloat16)
    b = torch.randint(-4, 5, (130, 96), device="cuda").to(torch.bfloat16)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        c = pysim.gemm(a, b.T, activation="relu")
    stream.synchronize()
    assert isinstance(c, torch.Tensor) and c.device == a.device and c.dtype == torch.bfloat16
    assert torch.equal(c.float(), torch.relu(a.float() @ b.float().T).to(torch.bfloat16).float())


@on_gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("size", [64, 260, 1024])
def test_products_that_depend_on_one_another_wait_in_streams_and_in_graphs(dtype, size):
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)  # launches may begin before the one before them ends: each must wait before it reads, and before it writes
    first = torch.randn(40, size, device="cuda").to(kind)
    weights = [(torch.randn(size, size, device="cuda") / size**0.5).to(kind) for _ in range(3)]
    results = [torch.empty_like(first) for _ in range(2)]

    def chain(between):
        x = first
        for at in range(12):
            weight, out = weights[at % 3], results[at % 2]
            if at % 4 == 3:
                out.fill_(torch.nan)
            x = pysim.gemm(x, weight.T if at % 2 else weight, out=out)
            between()
        return x.clone()

    want = chain(torch.cuda.synchronize)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.graph(graph, stream=stream):
        got = chain(lambda: None)
    for _ in range(20):
        assert torch.equal(chain(lambda: None), want)
        graph.replay()
        assert torch.equal(got, want)


@on_gpu
def test_cupy_arrays_are_multiplied_where_they_lie():
    cupy = pytest.importorskip("cupy")
    a, b = cupy.asarray(whole(100, 64)), cupy.asarray(whole(64, 50, seed=1))
    c = pysim.gemm(a, b, bias=cupy.ones(50, cupy.float32))
    assert isinstance(c, cupy.ndarray) and np.array_equal(c.get(), a.get() @ b.get() + 1)


@on_gpu
def test_comparisons_on_the_gpu_are_right_and_stored(monkeypatch, tmp_path):
    monkeypatch.setenv("PYSIM_STORE", str(tmp_path / "store.sqlite"))
    for one in pysim.compare(["gemm:512x384x256:f16", "gemm:100x77x33", "gemm:256x256x512:tn:s8"], machine="cuda"):
        assert one.correct, one.reason
        assert one.measured_seconds and one.predicted_seconds


@on_gpu
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_convolutions_on_the_gpu_are_compared_in_each_layout_with_workspaces(layout):
    even = [f"conv:mb8ic64ih28oc64kh3ph1{dtype}" for dtype in ("", ":f16", ":tf32")]
    others = ["conv:g32mb8ic32ih28oc32kh3ph1", "conv:mb2ic3ih9oc5oh5kh3sh2ph0"]
    for one in pysim.compare([*even, *others], machine="cuda", layout=layout, min_seconds=0.01):
        assert one.correct, one.reason
        assert one.measured_seconds and one.workspaces["pysim"] == one.plan["workspace_bytes"]
        assert "cudnn" in (one.peers.keys() & one.algorithms.keys() & one.workspaces.keys()) or one.missing["cudnn"]
