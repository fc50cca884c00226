# SPDX-License-Identifier: Apache-2.0
"""Products of one value that the compiler computes are one product, with the results, the memory and the effects of PyTorch's."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch_models import assert_close  # noqa: E402

import pysim.torch  # noqa: E402
from pysim.torch.capture import compiled_layers  # noqa: E402
from pysim.torch.capture.rewrites import joint_products  # noqa: E402

pytestmark = pytest.mark.usefixtures("slow_compiler", "on_gpu", "fresh_compiler")
PRODUCT = torch.ops.aten.addmm.default, torch.ops.aten.mm.default


@pytest.fixture
def products(monkeypatch):
    """The sizes of the products in the graphs that the compiler was given; it has all layers."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    found = []

    def keep(graph, _):
        found.extend(tuple(node.meta["val"].shape) for node in graph.graph.nodes if node.target in PRODUCT)
        return make_boxed_func(graph.forward)

    def compile_fx(graph, inputs, config_patches):
        return aot_autograd(fw_compiler=keep)(graph, inputs)

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    monkeypatch.setattr(compiled_layers, "compiler_seconds", lambda *_: 0.0)
    monkeypatch.setattr(joint_products, "COPIED", 1.0)
    return found


class Attention(nn.Module):
    def __init__(self, bias=True, width=16, heads=2):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias) for _ in range(4))
        self.heads = heads

    def split(self, x):
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def forward(self, x):
        parts = [self.split(one(x)) for one in (self.query, self.key, self.value)]
        y = functional.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(x.shape)
        return self.out(y) + x


def rows(*shape):
    return torch.randn(shape or (2, 5, 16))


@torch.no_grad()
@pytest.mark.parametrize("bias", [False, True])
def test_queries_keys_and_values_are_one_product_whose_weights_may_change(products, bias):
    model, x = Attention(bias).eval(), rows()
    optimized = pysim.torch.optimize(model, compiler=True)
    assert_close(optimized(x), model(x))
    assert products == [(10, 48), (10, 16)]
    for one in (model.key.weight, model.value.weight, *((model.query.bias,) if bias else ())):
        one.mul_(3)
        assert_close(optimized(x), model(x))
    model.value = nn.Linear(16, 16, bias)
    assert_close(optimized(x), model(x))


class Several(nn.Module):
    def __init__(self, then):
        super().__init__()
        self.a, self.b, self.then = nn.Linear(8, 8), nn.Linear(8, 4), then

    def forward(self, x):
        return self.then(x, self.a(x), self.b(x))


@torch.no_grad()
@pytest.mark.parametrize(
    "then",
    [
        lambda x, a, b: (a, b),  # results in memory of their own
        lambda x, a, b: (a[:, 1:], b + 1),
        lambda x, a, b: a.relu_()[:, :4] * b,
    ],
)
def test_products_stay_apart_where_their_memory_is_seen(products, then):
    model, x = Several(then).eval(), rows(3, 8)
    optimized = pysim.torch.optimize(model, compiler=True)
    for found, wanted in zip(optimized(x), model(x), strict=True):
        assert_close(found, wanted)
        assert found.stride() == wanted.stride()
    assert sorted(products) == [(3, 4), (3, 8)]


class Written(Several):
    def forward(self, x):
        x = x * 2
        a = self.a(x)
        x.add_(1)
        return a[:, :4] + self.b(x)


@torch.no_grad()
def test_products_of_a_value_that_is_written_between_them_stay_apart(products):
    model, x = Written(None).eval(), rows(3, 8)
    assert_close(pysim.torch.optimize(model, compiler=True)(x), model(x))
    assert sorted(products) == [(3, 4), (3, 8)]


@torch.no_grad()
def test_weights_of_other_types_and_shared_weights(products):
    model = Several(lambda x, a, b: a[:, :4] * b).eval()
    other, x = copy.deepcopy(model), rows(3, 8)
    other.b.weight = nn.Parameter(other.a.weight[:4].clone())
    for one in (model, other):
        assert_close(pysim.torch.optimize(one, compiler=True)(x), one(x))
    assert products == [(3, 12), (3, 12)]
    products.clear()
    half = copy.deepcopy(model).half()
    torch.testing.assert_close(pysim.torch.optimize(half, compiler=True)(x.half()), half(x.half()), atol=1e-2, rtol=0)
    assert products == [(3, 12)]


@torch.no_grad()
def test_copies_of_weights_have_a_budget_of_the_parameters_bytes(products, monkeypatch):
    model, x = nn.Sequential(*[Attention() for _ in range(4)]).eval(), rows()
    for copied, joint in ((0.0, 0), (0.2, 1), (0.4, 2), (1.0, 4)):
        monkeypatch.setattr(joint_products, "COPIED", copied)
        products.clear()
        torch._dynamo.reset()
        assert_close(pysim.torch.optimize(model, compiler=True)(x), model(x))
        assert products.count((10, 48)) == joint and products.count((10, 16)) == 16 - 3 * joint


@torch.no_grad()
def test_inductor_computes_joint_products(monkeypatch):
    monkeypatch.setattr(compiled_layers, "compiler_seconds", lambda *_: 0.0)
    monkeypatch.setattr(joint_products, "COPIED", 1.0)
    model, x = Attention().eval(), rows()
    assert_close(pysim.torch.optimize(model, compiler=True)(x), model(x))
