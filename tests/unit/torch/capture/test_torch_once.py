# SPDX-License-Identifier: Apache-2.0
"""No part of a model's code runs twice in a call, wherever a capture fails."""

import random

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402

import pysim.torch  # noqa: E402

pytestmark = pytest.mark.usefixtures("every_layer_is_ours", "fresh_compiler")
X = torch.ones(2, 3, 6, 6)


class TwoParts(nn.Module):
    """Its first part counts, in Python and in a buffer, and draws of three generators; a break of the graph; its second part."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.calls = nn.Conv2d(3, 3, 1), 0
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        self.count += 1
        y = self.conv(x) + torch.rand(1) + random.random()
        torch._dynamo.graph_break()
        return self.second(y)

    def second(self, y):
        return y


class Refused(TwoParts):
    """PyTorch refuses what comes last."""

    def second(self, y):
        return nn.functional.conv2d(y, torch.ones(1, 2, 1, 1))


class Caught(TwoParts):
    """A part whose graph pysim refuses; what the failed capture raises is not the model's to catch."""

    def forward(self, x):
        try:
            return super().forward(x)
        except Exception:
            return -x

    def second(self, y):
        z = torch.view_as_complex(y.reshape(-1, 2))
        torch._dynamo.graph_break()
        self.calls += 10
        return torch.view_as_real(z * 2) + torch.rand(1)


def called(call, model, x=X):
    torch.manual_seed(3)
    random.seed(3)
    found = []
    for _ in range(2):
        try:
            with torch.no_grad():
                y = call(x)
        except Exception as error:
            y = type(error), str(error)
        found.append(
            (y.clone() if isinstance(y, torch.Tensor) else y, model.calls, float(model.count), float(torch.rand(1)), random.random())
        )
    return found


@pytest.mark.parametrize("kind", [Refused, Caught])
def test_each_part_runs_once_wherever_a_capture_fails(kind):
    eager, model = kind().eval(), kind().eval()
    optimized = pysim.torch.optimize(model)
    for (y, *state), (right, *wanted) in zip(called(optimized, model), called(eager, eager), strict=True):
        assert state == wanted
        if isinstance(right, torch.Tensor):
            torch.testing.assert_close(y, right)
        else:
            assert y == right
    assert (pysim.torch.report(optimized)[0].layer == "Caught") == (kind is Caught)  # and the reason is told


def test_a_wrong_call_leaves_later_calls_as_they_were():
    """Of a model whose second part refuses some sizes."""

    class Sized(TwoParts):
        def second(self, y):
            return nn.functional.conv2d(y, torch.ones(1, 3, 4, 4))

    model = Sized().eval()
    optimized = pysim.torch.optimize(model)
    with torch.no_grad():
        for size in (6, 2, 6, 2, 8):
            x = torch.ones(1, 3, size, size)
            if size == 2:
                with pytest.raises(RuntimeError, match="Kernel size can't be greater"):
                    optimized(x)
            else:
                optimized(x)
    assert model.calls == 5
    assert not optimized._pysim.refusal
    assert len(optimized._pysim.graphs) >= 2
