# SPDX-License-Identifier: Apache-2.0
"""Attention that PyTorch takes apart into operators, in networks on a CPU: rows all of whose keys a mask hides are 0."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch_models import assert_close  # noqa: E402

import pysim.torch  # noqa: E402


class BiasedAttention(nn.Module):
    """A mask of three axes, which PyTorch takes apart into operators."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(3, 5, 5))

    def forward(self, x, mask):
        return functional.scaled_dot_product_attention(x, x * 0.5, x + 1, self.bias if mask is None else mask)


@torch.no_grad()
def test_attention_that_pytorch_takes_apart_runs_here_and_hides_rows(every_layer_is_ours):
    model, x = BiasedAttention().eval(), torch.randn(2, 3, 5, 8)
    ours = pysim.torch.optimize(model)
    assert_close(ours(x, None), model(x, None))
    mask = torch.randn(3, 5, 5)
    mask[1, 2] = -torch.inf
    assert not model(x, mask)[:, 1, 2].any()
    for given in (x, x.clone().fill_(torch.nan)):
        torch.testing.assert_close(ours(given, mask), model(given, mask), equal_nan=True)
    assert ours._pysim.graphs and not any("softmax" in graph._call.__self__.code for graph in ours._pysim.graphs)
    model.bias[:, 3] = -torch.inf
    assert_close(ours(x, None), model(x, None))
    assert not model(x, None)[:, :, 3].any()
