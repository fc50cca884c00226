# SPDX-License-Identifier: Apache-2.0
"""Calls on a GPU that are recorded as CUDA graphs, as the CPU records them."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402
from torch_models import Residual, assert_close, block, in_threads, layers_of, settled  # noqa: E402

import pysim.torch  # noqa: E402
from pysim.errors import OperandError  # noqa: E402
from pysim.runtime import cuda_call  # noqa: E402
from pysim.torch import cuda_graph  # noqa: E402
from pysim.torch.precision import Settings  # noqa: E402

pytestmark = pytest.mark.usefixtures("every_layer_is_ours")


class Recorder:
    """Records calls as a GPU would, on the CPU: a replay writes where the recorded call wrote."""

    def __init__(self, monkeypatch):
        self.recorded, self.replayed, self.fails, self.taken_over = 0, 0, False, []
        monkeypatch.setattr(cuda_graph, "captured", self.captured)
        monkeypatch.setattr(cuda_graph, "_on_gpu", lambda x: True)
        monkeypatch.setattr(pysim.torch, "_any_on_gpu", lambda tensors: True)
        monkeypatch.setattr(cuda_graph, "_busy", lambda: False)
        monkeypatch.setattr(cuda_graph, "_stream", lambda x: 0)

    def captured(self, call, earlier, device):
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.recorded += 1
        self.taken_over.append(earlier and earlier.stream)
        results = call()

        def replay():
            self.replayed += 1
            for to, one in zip(results, call(), strict=True):
                to.copy_(one)

        stream = earlier.stream if earlier else f"stream {self.recorded}"
        return cuda_graph.CapturedGraph(SimpleNamespace(replay=replay), stream), results


@pytest.fixture
def recorder(monkeypatch):
    return Recorder(monkeypatch)


def test_calls_with_a_graph_are_recorded_once_and_give_results_of_their_own(recorder):
    model = settled(Residual())
    optimized = pysim.torch.optimize(model, cuda_graph=True)
    images = [torch.randn(2, 3, 12, 12) for _ in range(5)]
    with torch.no_grad():
        results = [optimized(x) for x in images]
        for x, y in zip(images, results, strict=True):  # none was written over by a later one
            assert_close(y, model(x))
        assert (recorder.recorded, recorder.replayed) == (1, 4)
        assert_close(optimized(torch.ones(1, 3, 9, 9)), model(torch.ones(1, 3, 9, 9)))
    assert recorder.recorded == 1


def test_what_calls_that_are_recorded_later_worked_in_is_let_go_of(recorder):
    kept = cuda_call._workspaces.of_stream
    kept.put(("cuda", 0), (1 << 20, object(), 0))
    optimized = pysim.torch.optimize(settled(block()), cuda_graph=True)
    with torch.no_grad():
        optimized(torch.ones(1, 3, 9, 9))
        assert len(kept) == 1
        optimized(torch.ones(1, 3, 9, 9))
    assert recorder.recorded == 1 and len(kept) == 0


def test_results_that_share_memory_do_so_in_copies(recorder):
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Conv2d(3, 8, 1)

        def forward(self, x):
            y = self.layer(x).flatten(2)
            return y, y[:, 1:3], y.permute(2, 0, 1)[1], y.shape[1]

    model, x = Pooled().eval(), torch.randn(2, 3, 4, 5)
    optimized = pysim.torch.optimize(model, cuda_graph=True)
    with torch.no_grad():
        for _ in range(4):
            found, right = optimized(x), model(x)
            assert_close(found[:3], right[:3])
            assert [one.stride() for one in found[:3]] == [one.stride() for one in right[:3]] and found[3] == right[3]
            for one in (found, right):
                one[1].zero_()
            assert_close(found[:3], right[:3])
    assert recorder.recorded == 1 and recorder.replayed == 3


def test_changed_weights_are_recorded_again(recorder):
    model, x = settled(block()), torch.randn(1, 3, 9, 9)
    optimized = pysim.torch.optimize(model, cuda_graph=True)
    with torch.no_grad():
        for change in (lambda: None, lambda: model[0].weight.mul_(2), lambda: setattr(model[0], "weight", nn.Parameter(-model[0].weight))):
            change()
            for _ in range(3):
                assert_close(optimized(x), model(x))
        assert recorder.recorded == 3
        model[1].running_mean.add_(1)
        assert_close(optimized(x), model(x))
    assert recorder.recorded == 4
    first, other = "stream 1", "stream 3"  # of the parameter that was replaced
    assert recorder.taken_over == [None, first, None, other]


def test_what_cannot_be_recorded_runs_as_it_is(recorder):
    model, x = settled(block()), torch.randn(1, 3, 9, 9)
    optimized, recorder.fails = pysim.torch.optimize(model, cuda_graph=True), True
    with torch.no_grad():
        for _ in range(4):
            assert_close(optimized(x), model(x))
    assert not recorder.recorded


def test_gradients_and_copies_of_a_model_with_graphs_are_its_own(recorder):
    model, x = settled(block()), torch.randn(1, 3, 9, 9)
    optimized = pysim.torch.optimize(model, cuda_graph=True)
    assert torch.equal(optimized(x), model(x)) and optimized(x).requires_grad
    with torch.no_grad():
        for _ in range(3):
            optimized(x)
        twin = copy.deepcopy(optimized)
        twin[0].weight.mul_(2)
        for _ in range(3):
            assert_close(optimized(x), model(x))
            assert not np.allclose(twin(x), model(x))


def test_threads_may_call_a_model_with_graphs(recorder):
    model = settled(block())
    optimized, images = pysim.torch.optimize(model, cuda_graph=True), [torch.randn(1, 3, 9, 9) for _ in range(4)]
    found = {}

    def run(at):
        with torch.no_grad():
            found[at] = [optimized(images[at]) for _ in range(5)]

    in_threads(run, 4)
    with torch.no_grad():
        for at, results in found.items():
            for y in results:
                assert_close(y, model(images[at]))


def test_layers_are_chosen_for_a_caller_who_records_calls(recorder):
    """Whose host does nothing for them; here nothing is recorded."""
    model, x = settled(block()), torch.randn(1, 3, 9, 9)
    optimized = pysim.torch.optimize(model, cuda_graph="caller")
    with torch.no_grad():
        for _ in range(4):
            assert_close(optimized(x), model(x))
        plain = pysim.torch.optimize(model)
        assert_close(plain(x), model(x))
    assert not recorder.recorded and {layer.in_cuda_graph for layer in layers_of(optimized)} == {True}
    assert {layer.in_cuda_graph for layer in layers_of(plain)} == {False}
    for wrong in ("callers", torch.ones(2)):
        with pytest.raises(OperandError, match='expected True, False or "caller"'):
            pysim.torch.optimize(model, cuda_graph=wrong)


def test_calls_under_other_settings_are_recorded_apart(recorder, monkeypatch):
    """What is allowed, and autocast's type, decide on the types of what a graph launches."""
    told = [Settings(False, False, None)]
    monkeypatch.setattr(cuda_graph, "settings", lambda: told[0])
    model, x = settled(block()), torch.randn(1, 3, 9, 9)
    optimized = pysim.torch.optimize(model, cuda_graph=True)
    with torch.no_grad():
        for recorded, cast in enumerate((None, torch.float16, torch.bfloat16), 1):
            told[0] = Settings(False, False, cast)
            for _ in range(3):
                assert_close(optimized(x), model(x))
            assert recorder.recorded == recorded
        told[0] = Settings(False, False, None)
        assert_close(optimized(x), model(x))
    assert recorder.recorded == 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that PyTorch can use")
def test_graphs_of_the_caller_keep_what_they_read():
    """cuBLAS's workspaces stay where graphs that the caller captured before read them, and each graph of ours has its own."""
    shapes = (48, 1 << 16), (1 << 16, 48)  # a long sum: split, its parts meet in a workspace
    x, w = (torch.randn(*shape, device="cuda", dtype=torch.float64) for shape in shapes)
    (mine, first), (kept, result) = (own_graph(lambda: x @ w) for _ in range(2))
    wanted = x @ w
    del mine, first
    made = [pysim.torch.optimize(LongSum(w * scale), cuda_graph=True) for scale in (1.0, 2.0)]
    with torch.no_grad():
        for optimized in made * 3:
            optimized(x)
    for _ in range(2):
        torch.cuda.empty_cache()
        filled = [torch.full((1 << 22,), 7.0, device="cuda") for _ in range(8)]
        if kept is not None:
            kept.replay()
            assert_close(result, wanted)
        for scale, optimized in enumerate(made, 1):
            with torch.no_grad():
                assert_close(optimized(x) / scale, wanted.relu())
        torch.cuda.synchronize()
        assert all(bool((one == 7.0).all()) for one in filled)
        kept = None  # the caller's graph does not outlive what comes now: its workspace lay in the memory of the first
        torch._C._cuda_clearCublasWorkspaces()  # as torch.compile(mode="reduce-overhead") does


class LongSum(nn.Module):
    """A product that PyTorch computes."""

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x):
        return torch.matmul(x, self.weight).relu()


def own_graph(call):
    call()  # cuBLAS begins outside the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph, result
