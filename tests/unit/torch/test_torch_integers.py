# SPDX-License-Identifier: Apache-2.0
"""Programs quantised through PyTorch's export (PT2E), which hold quantized_decomposed operators, become integer layers."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")
pytest.importorskip("torch.ao.quantization.fx._decomposed", reason="this PyTorch has no quantized_decomposed operators")

import pysim.torch  # noqa: E402
from pysim.network import rewrites  # noqa: E402

Q = torch.ops.quantized_decomposed


class Quantized(torch.nn.Module):
    """Two convolutions with a residual, a pool and a linear layer, as a converted program calls them."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for at, shape in enumerate([(16, 3, 3, 3), (16, 16, 1, 1), (10, 16)]):
            self.register_buffer(f"w{at}", torch.randint(-127, 128, shape, generator=generator).to(torch.int8))
            self.register_buffer(f"scale{at}", torch.rand(shape[0], generator=generator) * 0.01 + 0.001)
            self.register_buffer(f"zero{at}", torch.zeros(shape[0], dtype=torch.int64))
            self.register_buffer(f"b{at}", torch.randn(shape[0], generator=generator))

    def weights(self, at):
        of = (getattr(self, f"{name}{at}") for name in ("w", "scale", "zero"))
        return Q.dequantize_per_channel.default(*of, 0, -127, 127, torch.int8)

    def through(self, x, scale, zero):
        about = scale, zero, 0, 255, torch.uint8
        return Q.dequantize_per_tensor.default(Q.quantize_per_tensor.default(x, *about), *about)

    def forward(self, x):
        x = self.through(x, 0.03, 128)
        x = self.through(torch.ops.aten.conv2d.default(x, self.weights(0), self.b0, [1, 1], [1, 1]).relu(), 0.05, 0)
        y = self.through(torch.nn.functional.conv2d(x, self.weights(1), self.b1), 0.1, 120)
        x = self.through(torch.relu(x + y), 0.06, 0)
        x = self.through(torch.nn.functional.adaptive_avg_pool2d(x, 1), 0.03, 0)
        return self.through(torch.nn.functional.linear(torch.flatten(x, 1), self.weights(2), self.b2), 0.1, 128)


@torch.no_grad()
def test_a_program_of_quantized_decomposed_operators_is_integer_layers_and_follows_its_weights(monkeypatch):
    monkeypatch.setattr(rewrites, "integer_rows", lambda *_: "s8")
    model, x = Quantized().eval(), torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    fast = torch.compile(model, backend=pysim.torch.backend)
    for _ in range(2):
        torch.testing.assert_close(fast(x), model(x), rtol=0, atol=0.101)  # a step: PyTorch multiplies by the reciprocal of a scale
        model.w1.neg_()
    layers = pysim.torch.report(fast)
    assert [(one.problem.rpartition(":")[2], one.runs) for one in layers] == [("s8", "pysim")] * 3
