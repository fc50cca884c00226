# SPDX-License-Identifier: Apache-2.0
"""Layers of PyTorch models as they run on a GPU, by the CUDA kernels as the CPU runs them: epilogues, folded weights, residuals."""

import contextlib
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from pysim import planner  # noqa: E402
from pysim.machine.load import load_any  # noqa: E402
from pysim.models import torch_gpu, torch_layers  # noqa: E402
from pysim.models.torch_layers import FusedLayer, Geometry  # noqa: E402
from pysim.problem.conv import Conv  # noqa: E402
from pysim.problem.gemm import Gemm  # noqa: E402
from pysim.runtime import cuda  # noqa: E402
from pysim.runtime.cuda_call import ALIGNED  # noqa: E402

BUILT = Path(__file__).parent.parent / "build-native" / "native" / "cuda" / "libpysim_cuda_emulated.so"
LIBRARY = Path(os.environ.get("PYSIM_EMULATED_CUDA_LIBRARY") or BUILT)
CONV = Conv(batch=2, channels=8, height=10, width=10, filters=16, kernel_h=3, kernel_w=3, pad_top=1, pad_left=1, pad_bottom=1, pad_right=1)
CASES = [
    ("Conv", "relu", 1e-5, "nchw"),
    ("Conv", ("clamp", 0.0, 6.0), None, "nchw"),
    ("Conv", "gelu", 1e-5, "nhwc"),
    ("Linear", "relu", None, "nchw"),
]


@pytest.fixture(autouse=True)
def _emulated(monkeypatch):
    if not LIBRARY.exists():
        pytest.skip(f"the CUDA kernels are not built to be emulated: there is no {LIBRARY}")
    torch.manual_seed(0)
    monkeypatch.setenv("PYSIM_CUDA_LIBRARY", str(LIBRARY))
    cuda.library.cache_clear()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    yield
    monkeypatch.undo()
    cuda.library.cache_clear()


class Case:
    """A layer as it would be called on an H200, and its tensors."""

    def __init__(self, kind, activation, epsilon, layout, monkeypatch):
        form = torch.channels_last if layout == "nhwc" else torch.contiguous_format
        monkeypatch.setattr(torch_layers, "_layout", lambda x: layout)
        if kind == "Conv":
            self.x, w, geometry = torch.randn(2, 8, 10, 10).to(memory_format=form), torch.randn(16, 8, 3, 3), Geometry(padding=(1, 1))
        else:
            self.x, w, geometry = torch.randn(4, 3, 32), torch.randn(16, 32), Geometry()
        numbers = [torch.rand(16) + 0.5, torch.randn(16), torch.randn(16), torch.rand(16) + 0.5] if epsilon else [None] * 4
        self.parameters, self.form = (w, torch.randn(16), *numbers), form
        self.layer = FusedLayer("layer", kind, geometry, activation, epsilon)
        problem = CONV if kind == "Conv" else Gemm(m=12, n=16, k=32, trans_b=True)
        self.native = torch_layers._Native(None, planner.plan(problem, load_any("h200"), layout=layout))

    def run(self, residual=None):
        return self.layer._on_gpu(self.native, "key", self.x, self.parameters, residual)

    def assert_right(self, residual=None):
        wanted = self.layer.own(self.x, *self.parameters, None if residual is None else residual.clone())
        found = self.run(residual)
        assert found.shape == wanted.shape and (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()
        return found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_layer_equals_pytorchs_operators(case, monkeypatch):
    one = Case(*case, monkeypatch)
    one.assert_right()
    one.parameters[0].mul_(2)
    one.assert_right()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_residual_is_added_where_it_lies_or_behind(case, monkeypatch):
    one = Case(*case, monkeypatch)
    like = one.run()
    lying = torch.empty(like.numel() + 64)
    start = -lying.data_ptr() // 4 % 64
    residual = lying[start : start + like.numel()].as_strided(like.shape, like.stride()).normal_()
    found = one.assert_right(residual)
    assert found.data_ptr() == residual.data_ptr()
    elsewhere = torch.randn(1).expand(like.shape)
    assert one.assert_right(elsewhere).data_ptr() != elsewhere.data_ptr()


def test_operands_that_begin_anywhere_are_taken(monkeypatch):
    one = Case(*CASES[0], monkeypatch)
    one.x = torch.empty(one.x.numel() + 1)[1:].reshape(one.x.shape).normal_()
    assert one.x.data_ptr() % ALIGNED and torch_gpu.GpuLaunch
    one.assert_right()
