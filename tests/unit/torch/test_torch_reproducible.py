# SPDX-License-Identifier: Apache-2.0
"""Accuracy reproducible of PyTorch models: whole convolutional networks on a GPU, by CUDA kernels as the CPU runs them, or a reason."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402

import pysim.torch  # noqa: E402
from pysim.errors import OperandError  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_compiler")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16)
        self.wide, self.deep = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.last = nn.Linear(16, 7)

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x)))
        x = nn.functional.silu(self.wide(x) + x)
        x = nn.functional.max_pool2d(self.deep(x) * torch.sigmoid(x), 2)
        return self.last(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


@pytest.fixture
def captured_on_gpu(on_gpu, monkeypatch):
    monkeypatch.setattr(pysim.torch, "_any_on_gpu", lambda tensors: True)


def test_an_image_has_the_same_bits_in_any_batch(captured_on_gpu):
    torch.manual_seed(2)
    model, x = Block().eval(), torch.rand(3, 3, 12, 12)
    own = pysim.torch.optimize(model, "reproducible")
    with torch.no_grad():
        y = own(x)
        torch.testing.assert_close(y, model(x))
        assert {one.runs for one in pysim.torch.report(own)} == {"pysim"}
        for at in range(3):
            assert torch.equal(own(x[at : at + 1]), y[at : at + 1]), at
        assert torch.equal(own(x.flip(0)), y.flip(0))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8)), "group_norm is none of them"),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.Softmax(1)), "softmax is none of them"),
        (nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 8, 3)), "a norm that is not behind a convolution is none"),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(4)), "adaptive_avg_pool2d of windows that differ in size"),
    ],
)
def test_what_may_depend_on_the_batch_is_refused_by_name(captured_on_gpu, model, reason):
    own = pysim.torch.optimize(model.eval(), "reproducible")
    for _ in range(2):  # and not run by PyTorch later
        with torch.no_grad(), pytest.raises(OperandError, match=reason):
            own(torch.rand(1, 3, 8, 8))


def test_a_call_that_pytorch_would_run_in_part_is_refused(captured_on_gpu):
    class Breaks(Block):
        def forward(self, x):
            y = self.stem(x)
            torch._dynamo.graph_break()
            return torch.softmax(y, 1)

    own = pysim.torch.optimize(Breaks().eval(), "reproducible")
    with torch.no_grad(), pytest.raises(OperandError, match="that are one graph"):
        own(torch.rand(1, 3, 8, 8))
    with pytest.raises(OperandError, match="this call is training, has gradients"):
        own(torch.rand(1, 3, 8, 8))


def test_a_cpu_the_compiler_and_the_backend_are_refused():
    model = Block().eval()
    with torch.no_grad(), pytest.raises(OperandError, match=r"its tensors are on a CPU; .* load it by pysim\.load"):
        pysim.torch.optimize(model, "reproducible")(torch.rand(1, 3, 8, 8))
    with pytest.raises(OperandError, match="leave out compiler"):
        pysim.torch.optimize(model, "reproducible", compiler=True)
    with pytest.raises(OperandError, match="use optimize"):
        pysim.torch.backend(None, [], {"accuracy": "reproducible"})
