# SPDX-License-Identifier: Apache-2.0
"""Embeddings on a CPU are part of the networks that read them; what PyTorch refuses is refused with its error."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402
from torch_models import assert_close  # noqa: E402

import pysim.torch  # noqa: E402


class Words(nn.Module):
    """Two tables whose rows are added, a norm and a product."""

    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(50, 24, **options), nn.Embedding(9, 24)
        self.norm, self.out = nn.LayerNorm(24), nn.Linear(24, 40)

    def forward(self, x):
        return self.out(self.norm(self.words(x) + self.places(torch.arange(x.shape[-1]))))


def kept_by_pytorch(optimized):
    return [one.reason for one in pysim.torch.report(optimized) if one.runs == "torch"]


@torch.no_grad()
def test_an_embedding_is_part_of_the_network_and_follows_its_table(every_layer_is_ours):
    model = Words().eval()
    ours, x = pysim.torch.optimize(model), torch.randint(50, (3, 9))
    assert_close(ours(x), model(x))
    assert not kept_by_pytorch(ours)
    model.words.weight.mul_(-2)
    assert_close(ours(x), model(x))


@pytest.mark.parametrize("wrong", [-1, 50, -50, 2**40])
@torch.no_grad()
def test_an_index_that_is_none_of_the_table_raises_pytorchs_error(wrong, every_layer_is_ours):
    model = Words().eval()
    ours, x = pysim.torch.optimize(model), torch.randint(50, (3, 9))
    assert_close(ours(x), model(x))
    changed = x.clone()
    changed[1, 4] = wrong
    with pytest.raises(IndexError, match="out of range"):
        ours(changed)
    assert_close(ours(x), model(x))


class Computed(nn.Module):
    """Rows of a table that is computed, at places that are constant."""

    def __init__(self, first):
        super().__init__()
        self.out = nn.Linear(16, 24)
        self.register_buffer("at", torch.tensor([[first, 2, 3], [4, 0, 1]]))

    def forward(self, x):
        return nn.functional.embedding(self.at, self.out(x)).relu()


@torch.no_grad()
def test_constant_indices_count_from_the_end_of_no_table(every_layer_is_ours):
    model, x = Computed(4).eval(), torch.randn(5, 16)
    assert_close(pysim.torch.optimize(model)(x), model(x))
    with pytest.raises(IndexError, match="out of range"):
        pysim.torch.optimize(Computed(-1).eval())(x)


@torch.no_grad()
def test_indices_of_32_bits_stay_pytorchs(every_layer_is_ours):
    model = Words().eval()
    ours, x = pysim.torch.optimize(model), torch.randint(50, (3, 9), dtype=torch.int32)
    assert_close(ours(x), model(x))
    assert kept_by_pytorch(ours) == ["its indices are no integers of 64 bits"]


@torch.no_grad()
def test_a_table_that_each_call_scales_down_is_read_as_it_then_is(every_layer_is_ours):
    ours, model = pysim.torch.optimize(Words(max_norm=1.0).eval()), Words(max_norm=1.0).eval()
    for seed in range(2):
        torch.manual_seed(seed)
        x = torch.randint(50, (3, 9))
        assert_close(ours(x), model(x))
