# SPDX-License-Identifier: Apache-2.0
"""Layers of PyTorch models as they run on a GPU, by the CUDA kernels as the CPU runs them: epilogues, folded weights, residuals."""

import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from pysim import planner  # noqa: E402
from pysim.check.bounds import bound_of  # noqa: E402
from pysim.frontends.torch import rewritten  # noqa: E402
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
    monkeypatch.setattr(torch_gpu.arrays, "library_of", lambda kind: Host())
    yield
    monkeypatch.undo()
    cuda.library.cache_clear()


class Host:
    """PyTorch as it makes memory on a device, here of the host."""

    def stream(self, x):
        return 0

    def keeps(self):
        return True

    def maker(self, like, shape, dtype):
        return lambda: torch.empty(shape, dtype=torch.uint8)

    def pointer(self, x, stream):
        return x.data_ptr()


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


def aligned(like):
    """A tensor that lies as another one does, where kernels can read and write it."""
    lying = torch.empty(like.numel() + 64)
    start = -lying.data_ptr() // 4 % 64
    return lying[start : start + like.numel()].as_strided(like.shape, like.stride()).normal_()


class Repeated(Case):
    """A layer that was called, and whose next calls may not look anything up."""

    def __init__(self, case, monkeypatch, adds=False):
        for module in (torch_gpu, torch_layers):
            monkeypatch.setattr(module, "ALIGNED", 64)  # what a host's memory begins at
        super().__init__(*case, monkeypatch)
        self.x = aligned(self.x)
        self.parameters = (aligned(self.parameters[0]), *self.parameters[1:])
        self.residual = aligned(self.run()) if adds else None
        monkeypatch.setattr(torch_layers, "_tf32", lambda kind: False)
        with torch.no_grad():
            self.run(self.residual)
        self.looked_up = 0
        monkeypatch.setattr(self.layer, "_looked_up", self.look_up)

    def look_up(self, x, parameters, residual):
        self.looked_up += 1
        return self.layer.own(x, *parameters, residual)

    def again(self):
        with torch.no_grad():
            return self.layer(self.x, *self.parameters, self.residual)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_call_like_the_last_one_looks_nothing_up_and_gives_the_same_bits(case, monkeypatch):
    one = Repeated(case, monkeypatch)
    one.x.normal_()
    assert (one.again() == one.run()).all()
    assert one.looked_up == 0


def test_a_residual_is_added_again_where_it_lies(monkeypatch):
    one = Repeated(CASES[0], monkeypatch, adds=True)
    one.residual.normal_()
    wanted = one.layer.own(one.x, *one.parameters, one.residual.clone())
    found = one.again()
    assert found.data_ptr() == one.residual.data_ptr()
    assert one.looked_up == 0
    assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()


@pytest.mark.parametrize(
    "what", ["shape", "type", "weights written to", "weights elsewhere", "other weights", "a residual", "a view", "gradients"]
)
def test_a_call_that_differs_from_the_last_one_is_looked_up(what, monkeypatch):
    one = Repeated(CASES[0], monkeypatch)
    w = one.parameters[0]
    if what == "shape":
        one.x = aligned(torch.empty(3, 8, 10, 10))
    elif what == "type":
        one.x, one.parameters = one.x.double(), tuple(number.double() for number in one.parameters)
    elif what == "weights written to":
        w.mul_(2)
    elif what == "weights elsewhere":
        w.data = w.data.clone()
    elif what == "other weights":
        one.parameters = (w.clone(), *one.parameters[1:])
    elif what == "a residual":
        one.residual = aligned(one.run())
    elif what == "a view":
        one.x = one.x.transpose(2, 3)
    if what == "gradients":
        one.layer(one.x.requires_grad_(), *one.parameters)
    else:
        one.again()
    assert one.looked_up == 1


def test_parameters_are_read_from_the_modules_that_they_belong_to():
    """Not by way of every module above: a layer has up to six, in modules that lie four deep."""
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())).eval()
    traced, _ = rewritten(torch.fx.symbolic_trace(model))
    assert not any(node.op == "get_attr" for node in traced.graph.nodes)
    conv, x = model[0][0], torch.randn(1, 3, 9, 9)
    with torch.no_grad():
        assert torch.allclose(traced(x), model(x), atol=1e-6)
        conv.weight.mul_(2)
        assert torch.allclose(traced(x), model(x), atol=1e-6)
        conv.weight = torch.nn.Parameter(torch.randn(4, 3, 3, 3))
        assert torch.allclose(traced(x), model(x), atol=1e-6)


def test_folded_weights_make_up_for_sums_that_come_out_too_small(monkeypatch):
    """Sums on tensor cores are cut: 6.9e-8 of them is missing in the mean at 64 products a part, which 41 layers of a network add up."""
    problem = Conv(batch=32, channels=256, height=14, width=14, filters=1024, kernel_h=1, kernel_w=1)
    plan = planner.plan(problem, load_any("h200"), algorithm="wgmma")
    assert plan.kernel.startswith("tf32x3")
    lean = bound_of(plan).lean
    assert -8e-8 < lean < -6e-8
    layer = FusedLayer("layer", "Conv", Geometry(), None, 1e-5)
    torch.manual_seed(1)
    w, numbers = torch.randn(64, 256, 1, 1), [torch.rand(64) + 0.5, torch.randn(64), torch.randn(64), torch.rand(64) + 0.5]
    plain, _ = layer._folded((w, None, *numbers))
    larger, _ = layer._folded((w, None, *numbers), lean)
    ratio = (larger.double() * plain.double()).sum() / (plain.double() ** 2).sum()
    assert abs(ratio - 1 + lean) < 5e-9
    assert bound_of(planner.plan(problem, load_any("h200"), accuracy="ieee")).lean == 0
