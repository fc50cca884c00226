# SPDX-License-Identifier: Apache-2.0
"""What holds for every call on device arrays: what it costs from the second one on, and whose its workspace is."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import pytest
from call_count import calls_of
from fake_gpu import host_device  # noqa: F401
from fake_torch import Tensor, torch  # noqa: F401

import pysim
from pysim import api
from pysim.runtime import cuda, cuda_call

IMAGE, FILTERS = np.ones((1, 4, 9, 9), np.float32), np.ones((6, 4, 3, 3), np.float32)
SQUARE = np.ones((4, 4), np.float32)


def test_a_second_call_on_device_tensors_asks_the_library_for_the_run_alone(torch, host_device, monkeypatch):  # noqa: F811
    calls = []

    def note(name: str) -> Any:
        def call(*arguments: Any) -> int:
            calls.append(name)
            if name.endswith("workspace_bytes"):
                arguments[-1][0] = 64
            return 0

        return call

    lib = SimpleLibrary({f"pysim_cuda_{name}": note(name) for name in ("workspace_bytes", "run")})
    ffi, _ = cuda.library()
    monkeypatch.setattr(cuda, "library", lambda: (ffi, lib))
    monkeypatch.setattr(cuda, "_run_at", lambda: lib.pysim_cuda_run)
    x, w, bias = (Tensor(one, is_cuda=True) for one in (IMAGE, FILTERS, np.ones(6, np.float32)))
    a = Tensor(SQUARE, is_cuda=True)
    for call in (lambda: pysim.conv2d(x, w, bias), lambda: pysim.gemm(a, a)):
        call()
        assert calls == ["workspace_bytes", "run"]
        calls.clear()
        torch.made.clear()
        result = call()
        assert calls == ["run"] and torch.made == [result]
        assert calls_of(call) <= 40
        calls.clear()


@pytest.fixture
def workspaces(torch, host_device, monkeypatch) -> Any:  # noqa: F811
    """Calls `conv2d` on device tensors and gives the pointer of the workspace that the launch was told, of `bytes` bytes."""
    calls, bytes_of = [], {"bytes": 64}

    def sizes(*arguments: Any) -> int:
        arguments[-1][0] = bytes_of["bytes"]
        return 0

    def run(*arguments: Any) -> int:
        calls.append(arguments[6])
        return 0

    ffi, _ = cuda.library()
    lib = SimpleLibrary({"pysim_cuda_workspace_bytes": sizes, "pysim_cuda_run": run})
    monkeypatch.setattr(cuda, "library", lambda: (ffi, lib))
    monkeypatch.setattr(cuda, "_run_at", lambda: lib.pysim_cuda_run)
    monkeypatch.setattr(cuda_call, "_workspaces", cuda_call._Workspaces())
    x, w = Tensor(IMAGE, is_cuda=True), Tensor(FILTERS, is_cuda=True)

    def call(stream: int, nbytes: int = 64) -> int:
        if bytes_of["bytes"] != nbytes:
            bytes_of["bytes"] = nbytes
            api._ready.clear()
        torch.stream = stream
        pysim.conv2d(x, w)
        return calls.pop()

    return call


def test_a_workspace_is_one_streams_and_one_threads(workspaces):
    one, other = workspaces(1), workspaces(2)
    assert one != other and workspaces(1) == one and workspaces(2) == other
    with ThreadPoolExecutor(1) as pool:
        elsewhere = pool.submit(workspaces, 1).result()
        assert elsewhere not in (one, other) and pool.submit(workspaces, 1).result() == elsewhere
    assert workspaces(1) == one


def test_a_larger_workspace_takes_the_place_of_a_smaller_one_and_serves_it(workspaces, torch):  # noqa: F811
    small = workspaces(1, 64)
    large = workspaces(1, 4096)
    torch.made.clear()
    assert small != large == workspaces(1, 64) and len(torch.made) == 1  # the result


def test_workspaces_that_are_kept_are_few_and_bounded(workspaces, torch):  # noqa: F811
    for stream in range(2 * cuda_call.STREAMS):
        workspaces(stream)
    assert len(cuda_call._workspaces.of_stream) == cuda_call.STREAMS
    for _ in range(2):
        torch.made.clear()
        workspaces(99, cuda_call.KEPT_BYTES + 1)
        assert len(torch.made) == 2  # the result and a workspace
    assert (0, 99) not in cuda_call._workspaces.of_stream._entries


def test_a_graph_that_is_captured_has_workspaces_of_its_own(workspaces, torch):  # noqa: F811
    before = workspaces(1)
    torch.capturing = True
    assert before not in (workspaces(1), workspaces(1))
    torch.capturing = False
    assert workspaces(1) == before


def test_a_workspace_that_cannot_be_had_leaves_the_one_that_was_kept(workspaces, torch, monkeypatch):  # noqa: F811
    before, empty = workspaces(1), torch.empty_strided

    def full(shape: tuple[int, ...], stride: tuple[int, ...], dtype: str, device: Any) -> Any:
        if shape == (4096,):
            raise RuntimeError("CUDA out of memory")
        return empty(shape, stride, dtype, device)

    monkeypatch.setattr(torch, "empty_strided", full)
    with pytest.raises(RuntimeError, match="CUDA out of memory"):
        workspaces(1, 4096)
    assert workspaces(1) == before


def test_each_call_has_its_own_bias(torch, host_device, monkeypatch):  # noqa: F811
    calls = []

    def run(*arguments: Any) -> int:
        calls.append(int(ffi.cast("uintptr_t", arguments[2].bias)))
        return 0

    ffi, _ = cuda.library()
    lib = SimpleLibrary({"pysim_cuda_workspace_bytes": lambda *_: 0, "pysim_cuda_run": run})
    monkeypatch.setattr(cuda, "library", lambda: (ffi, lib))
    monkeypatch.setattr(cuda, "_run_at", lambda: run)
    x, w, *biases = (Tensor(one, is_cuda=True) for one in (IMAGE, FILTERS, np.ones(6, np.float32), np.ones(6, np.float32)))
    for bias in (biases[0], biases[1], None, biases[0]):
        pysim.conv2d(x, w, bias)
        assert calls.pop() == (0 if bias is None else bias.data_ptr())


class SimpleLibrary:
    """Functions of a library by name; dtypes as the header has them."""

    def __init__(self, functions: dict[str, Any]) -> None:
        vars(self).update(functions, PYSIM_F32=0, PYSIM_CONV=0, PYSIM_GEMM=1)


@pytest.mark.parametrize("dtype", ["tf32", "f32"])
def test_a_plan_says_how_what_no_array_holds_is_multiplied(dtype, workspaces, monkeypatch):
    def as_f32(workload: Any) -> Any:  # which the stand-in for the library knows
        return msgspec.structs.replace(workload, dtype="f32")

    launched, struct = [], cuda.problem_struct
    monkeypatch.setattr(cuda, "problem_struct", lambda of, *more: launched.append(of.text) or struct(as_f32(of), *more))
    api._ready.clear()
    for text, (first, second), call in (
        ("conv:mb1ic4ih9oc6kh3", (IMAGE, FILTERS), pysim.conv2d),
        ("gemm:4x4x4", (SQUARE, SQUARE), pysim.gemm),
    ):
        plan = pysim.plan(f"{text}:{dtype}", machine="h200")
        operands = [Tensor(one, is_cuda=True) for one in (first, second)]
        plan.run(*operands)
        call(*operands, plan=plan)
        assert launched and {one.endswith(":tf32") for one in launched} == {dtype == "tf32"}
        launched.clear()
