# SPDX-License-Identifier: Apache-2.0
"""Masks of attention that a graph computes from sizes alone are left out where PyTorch's attention needs none."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch_models import Captured  # noqa: E402

from pysim.machine.load import load_any  # noqa: E402
from pysim.torch.capture.effects import effects_of  # noqa: E402
from pysim.torch.capture.rewrites import known_masks  # noqa: E402
from pysim.torch.capture.rewrites.known_masks import without_known_masks  # noqa: E402

INFINITE = float("-inf")


def causal(x, size):
    at = torch.arange(size, device=x.device)
    return (at[None, :] <= at[:, None]) & torch.ones((), dtype=torch.bool)


MASKS = {  # name -> the mask of queries x of a size, and is_causal in its place; None: it stays
    "all, expanded": (lambda x, size: (torch.arange(size)[None, None, :, None] >= 0).expand(2, -1, -1, size), False),
    "zeros": (lambda x, size: torch.zeros(size, size), False),
    "earlier ones": (causal, True),
    "earlier ones, infinite": (lambda x, size: torch.full((size, size), INFINITE).triu(1), True),
    "later ones": (lambda x, size: torch.ones(size, size, dtype=torch.bool).triu(), None),
    "all but one": (lambda x, size: torch.arange(size)[None, :] > 0, None),
    "earlier ones, finite": (lambda x, size: torch.full((size, size), -1e4).triu(1), None),
    "of the input": (lambda x, size: x[0, 0] == x[0, 0], None),
    "drawn": (lambda x, size: torch.rand(size, size) < 2, None),
    "written to": (lambda x, size: torch.zeros(size, size).add_(0), None),
}


class Attention(nn.Module):
    def __init__(self, mask, twice=False):
        super().__init__()
        self.mask, self.twice = mask, twice

    def forward(self, x):
        mask = self.mask(x, x.shape[-2])
        y = functional.scaled_dot_product_attention(x, x, x, mask)
        return functional.scaled_dot_product_attention(y, x, x, attn_mask=mask) if self.twice else y


@torch.no_grad()
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("twice", [False, True])
def test_masks_that_hide_nothing_or_what_comes_later_are_left_out(name, twice):
    mask, is_causal = MASKS[name]
    model, x = Attention(mask, twice).eval(), torch.randn(2, 4, 10, 10)
    module = Captured(model, x).module
    before = len(module.graph.nodes)
    without_known_masks(module.graph, effects_of(module.graph))
    module.graph.lint()
    module.recompile()
    for node in module.graph.find_nodes(op="call_function", target=functional.scaled_dot_product_attention):
        given = dict(zip(("attn_mask", "dropout_p", "is_causal"), node.args[3:], strict=False)) | node.kwargs
        assert (given["attn_mask"] is None) == (is_causal is not None) and given.get("is_causal", False) == (is_causal or False)
    assert (len(module.graph.nodes) == 3 + twice) == (is_causal is not None) and len(module.graph.nodes) <= before
    torch.manual_seed(0)
    found = module(x)
    torch.manual_seed(0)
    torch.testing.assert_close(found[0] if isinstance(found, tuple) else found, model(x))


@pytest.mark.parametrize(
    ("tokens", "tf32", "tensor_cores", "stays"),
    [(128, True, False, False), (1024, True, False, True), (1024, False, False, False), (1024, True, True, False)],
)
def test_products_in_tf32_stay_where_they_are_expected_to_be_faster(monkeypatch, tokens, tf32, tensor_cores, stays):
    """Of 8 images and 8 heads of 64 channels on an H200. `tensor_cores`: attention without a mask may run there."""
    monkeypatch.setattr(known_masks, "tf32", lambda kind: tf32)
    monkeypatch.setattr(known_masks.host, "gpu_here", lambda: load_any("h200"))
    x = torch.zeros(1).expand(8, 8, tokens, 64)
    module = Captured(Attention(lambda x, size: (torch.arange(size)[None, None, :, None] >= 0).expand(8, -1, -1, size)), x).module
    without_known_masks(module.graph, effects_of(module.graph), tensor_cores)
    (node,) = module.graph.find_nodes(op="call_function", target=functional.scaled_dot_product_attention)
    assert (node.args[3] is not None) == stays
