# SPDX-License-Identifier: Apache-2.0
"""Attention in FP32 becomes the compiler's kernel for flexible attention where TF32 is allowed and that is expected to be faster."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch_models import Captured  # noqa: E402

from pysim.machine.load import load_any  # noqa: E402
from pysim.torch.capture import between  # noqa: E402
from pysim.torch.capture.effects import effects_of  # noqa: E402
from pysim.torch.capture.rewrites import tensor_core_attention  # noqa: E402
from pysim.torch.capture.rewrites.tensor_core_attention import on_tensor_cores  # noqa: E402
from pysim.torch.precision import Settings  # noqa: E402

ALLOWED, FORBIDDEN = Settings(True, True, None), Settings(True, False, None)


class Attention(nn.Module):
    """`how`: of two attentions with the same queries, keys and values, of which the second reads the first."""

    def __init__(self, **how):
        super().__init__()
        self.how, self.mask = how, nn.Parameter(torch.zeros(300, 300))

    def forward(self, x):
        how = self.how | ({"attn_mask": self.mask} if "attn_mask" in self.how else {})
        y = functional.scaled_dot_product_attention(x, x, x, **how)
        few = x[:, ::2] if how.get("enable_gqa") else x
        return functional.scaled_dot_product_attention(y, few, few, **how)


@pytest.fixture(autouse=True)
def nothing_is_cut(monkeypatch):
    """Here operands are multiplied exactly."""
    monkeypatch.setattr(tensor_core_attention, "CUT", 0.0)


def rewritten(model, x, monkeypatch, settings=ALLOWED, accuracy="strict"):
    monkeypatch.setattr(tensor_core_attention, "settings", lambda: settings)
    module = Captured(model, x).module
    on_tensor_cores(module, effects_of(module.graph), accuracy, load_any("h200"))
    module.graph.lint()
    module.recompile()
    return module


def taken(module):
    return [node for node in module.graph.nodes if node.target is tensor_core_attention.tensor_core_attention]


@torch.no_grad()
@pytest.mark.parametrize(
    "how", [{}, {"is_causal": True}, {"scale": 0.3}, {"scale": 2}, {"dropout_p": 0.0, "is_causal": False}, {"enable_gqa": True}]
)
def test_attention_in_fp32_is_the_compilers(monkeypatch, how):
    torch.manual_seed(0)
    model, x = Attention(**how).eval(), torch.randn(2, 4, 300, 64)
    module = rewritten(model, x, monkeypatch)
    assert len(taken(module)) == 2 and len(module.graph.find_nodes(op="call_function", target=torch.full)) == 2
    (found,) = module(x)
    torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-5)
    effects = effects_of(module.graph)
    assert not effects.needs_strides and all(effects.owns(one) for one in taken(module))
    first, second = (between._attention_seconds(one, load_any("h200")) for one in taken(module))
    assert first == second and first[1] < first[0]


@torch.no_grad()
@pytest.mark.parametrize(
    ("how", "of", "settings", "accuracy"),
    [
        ({}, {}, FORBIDDEN, "strict"),
        ({}, {}, ALLOWED, "ieee"),
        ({}, {}, Settings(True, True, torch.float16), "strict"),  # autocast
        ({}, {"dtype": torch.float16}, ALLOWED, "strict"),
        ({}, {"dtype": torch.float64}, ALLOWED, "strict"),
        ({"attn_mask": True}, {}, ALLOWED, "strict"),
        ({"dropout_p": 0.5}, {}, ALLOWED, "strict"),
        ({}, {"size": (2, 4, 300, 8)}, ALLOWED, "strict"),
        ({}, {"size": (2, 4, 300, 96)}, ALLOWED, "strict"),
        ({}, {"size": (4, 300, 64)}, ALLOWED, "strict"),
    ],
)
def test_other_attention_stays_pytorchs(monkeypatch, how, of, settings, accuracy):
    x = torch.zeros(**({"size": (2, 4, 300, 64)} | of))
    module = rewritten(Attention(**how).eval(), x, monkeypatch, settings, accuracy)
    assert not taken(module) and not module.graph.find_nodes(op="call_function", target=torch.full)


@torch.no_grad()
def test_attention_that_pytorch_is_expected_to_compute_faster_stays(monkeypatch):
    monkeypatch.setattr(tensor_core_attention, "tensor_core_seconds", lambda *_: 1.0)
    assert not taken(rewritten(Attention().eval(), torch.zeros(2, 4, 300, 64), monkeypatch))


@torch.no_grad()
def test_what_tensor_cores_cut_is_multiplied_back(monkeypatch):
    """Of probabilities of one key it is what is cut of values alone, so here, where nothing is cut, results are larger by that twice."""
    monkeypatch.setattr(tensor_core_attention, "CUT", 0.25)
    x = torch.ones(2, 4, 300, 64)
    (found,) = rewritten(Attention().eval(), x, monkeypatch)(x)
    torch.testing.assert_close(found, 1.5 * x)


@torch.no_grad()
def test_accuracy_tf32_allows_it(monkeypatch):
    assert taken(rewritten(Attention().eval(), torch.zeros(2, 4, 300, 64), monkeypatch, FORBIDDEN, "tf32"))


@torch.no_grad()
def test_a_graph_that_looks_at_strides_keeps_pytorchs(monkeypatch):
    class Looks(nn.Module):
        def forward(self, x):
            y = functional.scaled_dot_product_attention(x, x, x)
            return torch.as_strided(y, (2, 2), (1, 1))

    assert not taken(rewritten(Looks().eval(), torch.zeros(2, 4, 300, 64), monkeypatch))


@torch.no_grad()
def test_without_pytorchs_functions_nothing_changes(monkeypatch):
    monkeypatch.setattr(tensor_core_attention, "_NEEDED", ("a function that another version of PyTorch has",))
    assert not taken(rewritten(Attention().eval(), torch.zeros(2, 4, 300, 64), monkeypatch))
