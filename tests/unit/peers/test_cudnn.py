# SPDX-License-Identifier: Apache-2.0
"""cuDNN and PyTorch as peers: what they are told of a convolution, what they refuse and how that is said, and, on a GPU, their results.

The numbers of the descriptors are checked by cuDNN itself where it is installed, which takes no GPU; calls go to a stand-in that keeps
what it was given.
"""

import gc
import sys
import weakref
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
from problems import conv

from pysim.algorithms.interface import DIRECT_SUM
from pysim.check.bounds import transformed
from pysim.check.fills import HELD, random_fill
from pysim.errors import MissingError, NativeError
from pysim.peers import cublas, cudnn, peer
from pysim.peers import torch as torch_peer
from pysim.peers.peer import Operands, Scratch
from pysim.problem.text import parse
from pysim.record.plan import LAYOUTS
from pysim.runtime import cuda
from pysim.runtime.cuda import DeviceArray

WORKED = "conv:mb32ic64ih56oc64kh3ph1"
UNEVEN = "conv:g4mb2ic8ih17iw23oc12kh5kw3sh2sw3ph2pw1dh1dw2"
TEXTS = [WORKED, UNEVEN, "conv:ic3ih9oc5kh3", "conv:mb3ic6ih7iw11oc4kh1sh2", f"{UNEVEN}:f16", "conv:g7ic7ih8oc14kh3ph1:bf16"]


@pytest.fixture
def fresh():
    """The library is looked for again, before and after."""
    remembered = (cudnn._library, cudnn._handle)
    for cached in remembered:
        cached.cache_clear()
    yield
    for cached in remembered:
        cached.cache_clear()


def installed() -> bool:
    try:
        return bool(cudnn.version())
    except MissingError:
        return False


def has_device() -> bool:
    try:
        return bool(cuda.devices())
    except MissingError:
        return False


needs_cudnn = pytest.mark.skipif(not installed(), reason="cuDNN is not installed")
needs_gpu = pytest.mark.skipif(not has_device(), reason="no GPU, or no CUDA library")


# What cuDNN is told


def test_the_descriptors_say_what_the_problem_says():
    d = cudnn.describe(conv(UNEVEN))
    assert (d.x, d.filters, d.y) == ((2, 8, 17, 23), (12, 2, 5, 3), (2, 12, 7, 7))
    assert (d.pads, d.strides, d.dilations, d.groups) == ((2, 1), (2, 3), (2, 3), 4)
    worked = cudnn.describe(conv(WORKED))
    assert (worked.x, worked.filters, worked.y) == ((32, 64, 56, 56), (64, 64, 3, 3), (32, 64, 56, 56))
    assert (worked.pads, worked.strides, worked.dilations, worked.groups) == ((1, 1), (1, 1), (1, 1), 1)


def test_multiply_adds_alone_are_allowed_unless_tf32_is_requested():
    fma, tensor_op = 3, 1  # cudnnMathType_t
    assert cudnn.describe(conv(WORKED)).math == fma
    assert cudnn.describe(conv(WORKED), "tf32") == cudnn.describe(conv(WORKED))._replace(math=tensor_op)
    assert cudnn.describe(conv(f"{WORKED}:f16")).math == tensor_op


def test_a_layout_changes_the_format_alone():
    assert cudnn.describe(conv(UNEVEN), layout="nhwc") == cudnn.describe(conv(UNEVEN))._replace(format=1)


@pytest.mark.parametrize(
    ("text", "dtype", "layout", "words"),
    [
        ("conv:ic3ih5oc4oh3kh3sh2ph0", "", "nchw", "pads 0 above and 2 below, 0 left and 2 right"),
        (f"{WORKED}:f16", "tf32", "nchw", "tf32 of f32 problems alone"),
        (f"{WORKED}:s8", "", "nchw", "not asked for s8"),
        (WORKED, "f16", "nchw", "not asked for f16"),
        (WORKED, "", "chwn", "layout is 'chwn'; did you mean \"nchw\"?"),
        ("conv:ic3ih4000000000iw1oc4kh1", "", "nchw", "size of 4000000000"),
    ],
)
def test_what_the_api_cannot_say_is_refused_in_a_sentence(text, dtype, layout, words):
    with pytest.raises(MissingError, match=words.replace("?", r"\?")):
        cudnn.describe(conv(text), dtype, layout)


# Where it is not


def test_without_the_library_the_error_says_how_to_get_it(monkeypatch, fresh):
    monkeypatch.setattr(cudnn, "cuda_files", lambda _: [])
    with pytest.raises(MissingError, match="pip install nvidia-cudnn"):
        cudnn.Forward(conv(WORKED))


def test_a_file_that_is_no_library_is_named(monkeypatch, fresh, tmp_path):
    (tmp_path / "libcudnn.so.9").write_text("nothing")
    monkeypatch.setattr(cudnn, "cuda_files", lambda _: [str(tmp_path / "libcudnn.so.9")])
    with pytest.raises(MissingError, match=r"not installed.*libcudnn\.so\.9"):
        cudnn.version()


def test_cublas_and_cudnn_are_looked_for_in_the_same_folders(monkeypatch, tmp_path):
    for part, name in (("cu13", "libcublas.so.13"), ("cudnn", "libcudnn.so.9")):
        (tmp_path / "nvidia" / part / "lib").mkdir(parents=True)
        (tmp_path / "nvidia" / part / "lib" / name).touch()
    spec = SimpleNamespace(submodule_search_locations=[tmp_path / "nvidia"])
    monkeypatch.setattr(peer.importlib.util, "find_spec", lambda _: spec)
    monkeypatch.setattr(peer.ctypes.util, "find_library", lambda name: f"lib{name}.so")
    for part, name in (("cu13", "cublas"), ("cudnn", "cudnn")):
        wheel, system = peer.cuda_files(name)
        assert wheel.startswith(str(tmp_path / "nvidia" / part / "lib" / f"lib{name}.so.")) and system == f"lib{name}.so"


def test_without_pytorch_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    for ask in (torch_peer.version, lambda: torch_peer.Forward(conv(WORKED), (0, 0, 0))):
        with pytest.raises(MissingError, match="pip install torch"):
            ask()


@needs_cudnn
@pytest.mark.skipif(has_device(), reason="there is a GPU")
def test_without_a_gpu_the_first_question_says_so():
    with pytest.raises(MissingError, match="needs a GPU and its driver: CUDNN_STATUS_NOT_INITIALIZED"):
        cudnn.Forward(conv(WORKED)).workspace_bytes("GEMM")


@needs_cudnn
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("text", TEXTS)
def test_cudnn_itself_finds_the_output_that_the_problem_has(text, layout):
    cudnn.Forward(conv(text), layout=layout)  # it compares them


# What is called


class Library:
    """A cuDNN that refuses FFT, fails in GEMM, wants 64 bytes for the others, and keeps what it was called with."""

    def __init__(self, ffi: Any) -> None:
        self.ffi, self.streams, self.ran = ffi, [], []

    def __getattr__(self, name: str) -> Any:
        assert name.startswith(("cudnnCreate", "cudnnDestroy", "cudnnSet")), name
        return lambda *arguments: 0

    def cudnnSetStream(self, handle, stream):  # noqa: N802
        self.streams.append(int(self.ffi.cast("uintptr_t", stream)))
        return 0

    def cudnnGetConvolution2dForwardOutputDim(self, convolution, x, filters, *out):  # noqa: N802
        for one, size in zip(out, (32, 64, 56, 56), strict=True):
            one[0] = size
        return 0

    def cudnnGetConvolutionForwardWorkspaceSize(self, handle, x, filters, convolution, y, algorithm, size):  # noqa: N802
        size[0] = 64
        return 3000 * (cudnn.ALGORITHMS[algorithm] == "FFT")

    def cudnnConvolutionForward(self, handle, one, *arguments):  # noqa: N802
        pointers = [int(self.ffi.cast("uintptr_t", arguments[index])) for index in (1, 3, 10, 6)]
        self.ran.append((*pointers, arguments[5], arguments[7], one[0], arguments[8][0]))
        return 5000 * (cudnn.ALGORITHMS[arguments[5]] == "GEMM")

    def cudnnGetErrorString(self, status):  # noqa: N802
        return self.ffi.new("char[]", f"CUDNN_STATUS_{status}".encode())

    def cudnnGetLastErrorString(self, message, size):  # noqa: N802
        self.ffi.buffer(message)[:7] = b"because"


@pytest.fixture
def stand_in(monkeypatch, fresh):
    import cffi

    ffi = cffi.FFI()
    library = Library(ffi)
    monkeypatch.setattr(cudnn, "_library", lambda: (ffi, library, "cuDNN 9.0.0"))
    monkeypatch.setattr(cudnn.Forward, "_made", lambda self, kind: kind)
    return library


class Memory:
    """Device memory at 77, of which there are 1000 bytes."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        if shape[0] > 1000:
            raise NativeError("out of memory")
        self.nbytes, self.pointer = shape[0], 77
        Memory.alive.add(self)

    alive: ClassVar[weakref.WeakSet[Any]] = weakref.WeakSet()


@pytest.fixture
def operands(stand_in, monkeypatch) -> Operands:
    monkeypatch.setattr(cuda, "DeviceArray", Memory)
    return Operands(*(SimpleNamespace(pointer=at) for at in (10, 20, 30)), "nchw", Scratch())


def test_a_call_passes_the_memory_the_algorithm_and_what_it_needs_of_the_workspace(stand_in, operands):
    operands.scratch.reserve(100, "another")
    run = cudnn.Forward(conv(WORKED)).call("WINOGRAD", operands.pointers, operands.scratch, stream=7)
    assert stand_in.ran == [] and stand_in.streams == [7]
    run()
    assert stand_in.ran == [(10, 20, 30, 77, cudnn.ALGORITHMS.index("WINOGRAD"), 64, 1.0, 0.0)]


def test_what_an_algorithm_refuses_is_said_in_cudnns_words_before_anything_runs(stand_in, operands):
    forward = cudnn.Forward(conv(WORKED))
    with pytest.raises(MissingError, match=rf"cuDNN 9.0.0 refuses FFT for {WORKED}: CUDNN_STATUS_3000 \(because\)"):
        forward.workspace_bytes("FFT")
    with pytest.raises(MissingError, match="refuses FFT"):
        cudnn.make(conv(WORKED), operands, "FFT")
    with pytest.raises(MissingError, match="no algorithm 'GEM'; did you mean \"GEMM\""):
        forward.workspace_bytes("GEM")
    assert stand_in.ran == []


def test_a_run_that_fails_is_an_error(stand_in, operands):
    with pytest.raises(MissingError, match=r"GEMM failed at .*CUDNN_STATUS_5000"):
        cudnn.make(conv(WORKED), operands, "GEMM").call()


def test_every_algorithm_says_its_workspace_and_what_its_result_may_differ_by(operands):
    for algorithm in cudnn.ALGORITHMS:
        if algorithm != "FFT":
            ready = cudnn.make(conv(WORKED), operands, algorithm)
            assert ready.workspace_bytes == 64 and ready.version == "cuDNN 9.0.0"
            assert ready.bound == (DIRECT_SUM if algorithm in cudnn.GEMM_CLASS else transformed("f32"))


def test_all_algorithms_share_the_largest_workspace_that_can_be_had_and_it_goes_with_them(stand_in, operands, monkeypatch):
    wanted = {"GEMM": 128, "WINOGRAD": 5000}
    monkeypatch.setattr(cudnn.Forward, "workspace_bytes", lambda _, algorithm, stream=0: wanted.get(algorithm, 64))
    found = {name: cudnn.make(conv(WORKED), operands, name) for name in ("IMPLICIT_GEMM", "GEMM", "DIRECT")}
    with pytest.raises(NativeError, match="WINOGRAD needs 5000 bytes of workspace: out of memory"):
        cudnn.make(conv(WORKED), operands, "WINOGRAD")
    for name in ("IMPLICIT_GEMM", "DIRECT"):
        found[name].call()
    assert [ran[:4] for ran in stand_in.ran] == [(10, 20, 30, 77)] * 2 and found["GEMM"].workspace_bytes == 128
    (memory,) = Memory.alive
    assert memory.nbytes == 128
    operands.scratch._memory = None
    del found, memory
    gc.collect()
    assert not Memory.alive


def test_without_cudnn_no_algorithm_is_made(monkeypatch, fresh):
    monkeypatch.setattr(cudnn, "cuda_files", lambda _: [])
    with pytest.raises(MissingError, match="pip install nvidia-cudnn"):
        cudnn.make(conv(WORKED), Operands(None, None, None), "GEMM")


def test_cublas_refuses_types_that_it_has_not():
    with pytest.raises(MissingError, match="no product of f8"):
        cublas.make(parse("gemm:16x16x16:f8"), Operands(*[SimpleNamespace(pointer=1)] * 3))


# On a GPU


@needs_gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", cudnn.DTYPES)
def test_on_a_gpu_every_peer_that_takes_a_problem_computes_it(dtype, layout):
    """A 3x3 convolution by its definition in NumPy; tolerances of half types are those of transformed operands."""
    w = conv("conv:mb3ic8ih13iw10oc16kh3ph1" + (f":{dtype}" if dtype in ("f16", "bf16") else ""))
    held = "f32" if dtype == "tf32" else dtype
    x, filters = random_fill((3, 8, 13, 10), dtype, 1), random_fill((16, 8, 3, 3), dtype, 2)
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    want = sum(
        np.einsum("nchw,kc->nkhw", padded[:, :, r : r + 13, s : s + 10], filters[:, :, r, s].astype(np.float64))
        for r in range(3) for s in range(3)
    )  # fmt: skip
    order = (0, 1, 2, 3) if layout == "nchw" else (0, 2, 3, 1)
    at = [DeviceArray(one.shape, held).fill(np.ascontiguousarray(one.transpose(order))) for one in (x, filters)]
    y, ran = DeviceArray(want.shape, held), 0
    given, problem = Operands(*at, y, layout, Scratch()), msgspec.structs.replace(w, dtype=dtype)
    calls = {"torch": lambda: torch_peer.make(problem, given).write()}
    calls |= {name: lambda name=name: cudnn.make(problem, given, name).call() for name in cudnn.ALGORITHMS}
    for name, call in calls.items():
        y.fill(np.full(y.nbytes, 0xFF, np.uint8))
        try:
            call()
        except MissingError:
            continue
        cuda.synchronize()
        found = y.read(np.empty([want.shape[axis] for axis in order], HELD[held]))
        got, wanted = found.astype(np.float64), want.transpose(order)
        assert np.abs(got - wanted).max() <= {"f32": 1e-5, "tf32": 0.02, "f16": 0.05, "bf16": 0.4}[dtype] * np.abs(wanted).max(), name
        ran += 1
    assert ran >= 1
