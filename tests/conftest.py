# SPDX-License-Identifier: Apache-2.0
"""Examples may take as long as a busy machine needs: hypothesis' deadline of 200 ms says nothing about the code."""

import gc
import os
import sys
import zlib
from collections.abc import Iterator

import checkout  # noqa: F401
import emulated_cuda
import pytest
from hypothesis import settings

settings.register_profile("pysim", deadline=None)
settings.load_profile("pysim")

WAYS = ("optimize", "compile")  # `torch_twins.WAYS`
LONGEST = {  # and those of PyTorch
    *("test_recipes", "test_calibrate", "test_cuda_code", "test_emulated", "test_models", "test_onnx_suite", "test_reproducible_gpu"),
    *("test_cuda_compare", "test_power10_code", "test_export_cpu", "test_export_cuda", "test_page", "test_cli_run", "test_search"),
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files come first, so that no core waits at the end. Of a test in each `way` one is run, by its name and other parameters;
    with PYSIM_LONG=1 both are."""
    items.sort(key=lambda item: item.path.stem not in LONGEST and "torch" not in item.path.parts)
    if not os.environ.get("PYSIM_LONG"):
        left_out = {item for item in items if _is_for_another_run(item)}
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [item for item in items if item not in left_out]


def _is_for_another_run(item: pytest.Item) -> bool:
    spec = getattr(item, "callspec", None)
    if spec is None or "way" not in spec.params:
        return False
    name = "-".join((item.nodeid.partition("[")[0], *(one for one in spec.id.split("-") if one not in WAYS)))
    return WAYS[zlib.crc32(name.encode()) % len(WAYS)] != spec.params["way"]


def pytest_collection_finish() -> None:
    """A capture of Dynamo ends with a garbage collection, a third of a PyTorch test's time: it need not walk through what is imported."""
    gc.collect()
    gc.freeze()
    if guards := sys.modules.get("torch._dynamo.guards"):  # it empties the CPU's caches, only to log how long a look at guards takes
        vars(guards).update(profile_guard_manager=lambda *_: 0.0)


@pytest.fixture(autouse=True)
def modules_calls_are_pytorchs(request: pytest.FixtureRequest) -> Iterator[None]:
    """A tracer of torch.fx that ends badly leaves its wrapper in the place of every module's call, where Dynamo stops.
    It is taken away, and the test that left it is named."""
    yield
    tracing = sys.modules.get("torch.fx._symbolic_trace")
    right = getattr(tracing, "_orig_module_call", None)
    if right is not None and sys.modules["torch"].nn.Module.__call__ is not right:
        sys.modules["torch"].nn.Module.__call__ = right
        print(f"{request.node.nodeid} left a tracer's wrapper in the place of nn.Module.__call__", file=sys.__stderr__)


@pytest.fixture
def emulated() -> Iterator[None]:
    """The CUDA kernels as the CPU runs them."""
    with emulated_cuda.opened():
        yield


@pytest.fixture
def every_layer_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a PyTorch model, whatever PyTorch is expected to need."""
    import torch

    from pysim.torch.layers import fused_layer, network_layer

    torch.manual_seed(0)
    for module in (fused_layer, network_layer):
        monkeypatch.setattr(module, "pytorch_seconds", lambda *_: float("inf"))


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """How a PyTorch model comes to pysim."""
    return str(request.param)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """What torch.compile keeps is forgotten after the test."""
    yield
    import torch

    torch._dynamo.reset()


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PyTorch's tensors as on a GPU, whose layers leave images channels last."""
    from emulated_torch import as_on_gpu

    with emulated_cuda.opened():
        as_on_gpu(monkeypatch, "v100")
        yield
        monkeypatch.undo()
