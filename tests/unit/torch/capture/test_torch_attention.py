# SPDX-License-Identifier: Apache-2.0
"""Masks of attention in 16-bit types have contiguous rows in compiled graphs, which PyTorch's kernels for attention need."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import pysim.torch  # noqa: E402
from pysim.torch.capture import compiled  # noqa: E402
from pysim.torch.capture.rewrites import attention_masks  # noqa: E402

pytestmark = pytest.mark.usefixtures("slow_compiler", "on_gpu", "fresh_compiler")


class Masked(nn.Module):
    """Two attentions with one mask, of rows (`wide`: the same for all keys of a query), and a third after it was written to."""

    def __init__(self, wide, writes=False):
        super().__init__()
        self.wide, self.writes, self.scale = wide, writes, nn.Parameter(torch.ones(()))

    def forward(self, x, rows):
        mask = rows[:, :, :, None].expand(-1, -1, -1, x.shape[2]) if self.wide else rows[:, :, None, :].expand(-1, -1, x.shape[2], -1)
        if self.writes:
            mask = mask.clone().transpose(2, 3)
        y = functional.scaled_dot_product_attention(x * self.scale, x, x, attn_mask=mask)
        y = functional.scaled_dot_product_attention(y, x, x, mask)
        if self.writes:
            mask.mul_(0.5)
            y = functional.scaled_dot_product_attention(y, x, x, attn_mask=mask)
        return y


@pytest.fixture
def strides(monkeypatch):
    """The last strides of the masks that attention reads in the graphs that are compiled; they run by PyTorch's operators."""
    found = []

    def compile_fx(module, inputs, config_patches):
        for node in module.graph.find_nodes(op="call_function", target=functional.scaled_dot_product_attention):
            mask = node.kwargs.get("attn_mask", node.args[3] if len(node.args) > 3 else None)
            found.append(mask.meta["example_value"].stride(-1))
        return module.forward

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    return found


@torch.no_grad()
@pytest.mark.parametrize(
    ("wide", "dtype", "last"),
    [(True, torch.float16, 1), (True, torch.bfloat16, 1), (True, torch.float32, 0), (False, torch.float16, 1)],
)
def test_masks_of_16_bit_types_have_contiguous_rows(strides, wide, dtype, last):
    model, x, rows = Masked(wide).eval(), torch.randn(2, 3, 6, 8).to(dtype), torch.randn(2, 1, 6).to(dtype)
    found = pysim.torch.optimize(model, compiler=True)(x, rows)
    assert strides == [last, last]
    torch.testing.assert_close(found, model(x, rows), atol=1e-2, rtol=1e-2)


@torch.no_grad()
def test_a_mask_that_is_written_to_stays(strides):
    model, x, rows = Masked(True, writes=True).eval(), torch.randn(2, 3, 6, 8).half(), torch.randn(2, 1, 6).half()
    found = pysim.torch.optimize(model, compiler=True)(x, rows)
    assert strides == [6, 6, 6]
    torch.testing.assert_close(found, model(x, rows), atol=1e-2, rtol=1e-2)


@torch.no_grad()
def test_a_mask_is_copied_once(monkeypatch, strides):
    copied = []
    of = attention_masks.with_contiguous_rows
    monkeypatch.setattr(compiled, "with_contiguous_rows", lambda graph, effects: of(graph, effects) or copied.append(str(graph)))
    pysim.torch.optimize(Masked(True).eval(), compiler=True)(torch.randn(2, 3, 6, 8).half(), torch.randn(2, 1, 6).half())
    assert [one.count("call_method[target=contiguous]") for one in copied] == [1]
