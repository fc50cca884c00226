# SPDX-License-Identifier: Apache-2.0
"""What the operators between layers cost one by one and fused by a compiler."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from pysim.machine.load import load_any as load  # noqa: E402
from pysim.network.fusion import fuse  # noqa: E402
from pysim.torch.capture import between as between_module  # noqa: E402
from pysim.torch.capture import compiled  # noqa: E402
from pysim.torch.capture.effects import effects_of  # noqa: E402
from pysim.torch.capture.nodes import graph_of  # noqa: E402
from pysim.torch.capture.rewriting import fuses_alone  # noqa: E402
from pysim.torch.layers.compiler_seconds import fused_seconds  # noqa: E402
from pysim.torch.layers.pytorch_seconds import HOST_SECONDS  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_gpu", "fresh_compiler")


class Gate(nn.Module):
    def forward(self, x, y, z):
        return functional.silu(x) * y + z.transpose(2, 3)


class Squeezed(nn.Module):
    def forward(self, x):
        y = functional.silu(x)
        return y * functional.adaptive_avg_pool2d(y, 1)


class Joined(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.count = count

    def forward(self, x):
        return torch.cat([x * at for at in range(self.count)], 1) + 1


class Shuffled(nn.Module):
    def forward(self, x):
        return functional.pixel_shuffle(x + 1, 2) * 2


def between_of(model, *shapes, in_cuda_graph=True, dtype=torch.float32, fused=lambda graph: graph):
    """Of a graph with inputs of these shapes, in which nothing is a layer but what is `fused`."""
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    graph = torch.fx.symbolic_trace(model)
    FakeTensorProp(graph).propagate(*[torch.empty(shape, device="meta", dtype=dtype) for shape in shapes])
    for node in graph.graph.nodes:
        node.meta["example_value"] = node.meta.get("val")
    effects, on = effects_of(graph.graph), load("h200")
    nodes = fused(graph_of(graph.graph, effects)).nodes
    return compiled.seconds_between(graph.graph, nodes, nodes, effects, on, in_cuda_graph)


def cycle():
    """Seconds in which the multiprocessors together take one cycle of one of them."""
    on = load("h200")
    return 1 / (on.sms.value * on.frequency_hz.value)


def test_a_compiler_saves_what_operators_write_for_each_other():
    size, on = (1, 1, 4096, 4096), load("h200")
    between, one = between_of(Gate(), size, size, size), 4 * 2**24 / on.memory_bytes_per_second.value
    assert between.alone == pytest.approx(8 * one) and between.fused == fused_seconds(2**24, 4 * 4 * 2**24, on)
    assert compiled.expected_of(between, [], 0.0).saving == pytest.approx(between.alone - between.fused)
    assert between_of(Gate(), *[(1, 1, 1, 1)] * 3, in_cuda_graph=False).alone == pytest.approx(3 * HOST_SECONDS)


def test_a_compiler_reads_an_image_twice_around_its_mean():
    between, one = between_of(Squeezed(), (64, 256, 64, 64)), 4 * 2**26 / load("h200").memory_bytes_per_second.value
    cycles = (between_module._INDEXED["adaptive_avg_pool2d"] + between_module._BROADCAST) * 2**26  # the mean, the product
    assert between.alone == pytest.approx(2 * one + cycles * cycle(), rel=0.01)
    twice = 2 * fused_seconds(2**26, 2 * 4 * 2**26, load("h200"))  # silu and mean read x and write y; the product reads y and writes
    assert between.fused == pytest.approx(twice, rel=0.01)


def test_a_compiler_copies_long_concatenations():
    one, on = 2**24, load("h200")
    assert between_of(Joined(8), (4, 64, 256, 256)).fused == fused_seconds(8 * one, 4 * 9 * one, on)
    copied = fused_seconds(9 * one, 4 * (1 + 9) * one, on) + fused_seconds(9 * one, 4 * 2 * 9 * one, on)
    assert between_of(Joined(9), (4, 64, 256, 256)).fused == pytest.approx(copied)


def test_a_factor_of_16_bits_before_a_convolution_is_cast_first():
    class Gated(nn.Module):
        def forward(self, x, gate, w):
            return functional.conv2d(x * gate, w)

    given = Gated(), (64, 256, 64, 64), (64, 256, 1, 1), (64, 256, 1, 1)
    exact, half = (
        between_of(*given, dtype=dtype, fused=lambda graph: fuse(graph, fuses_alone)).alone for dtype in (torch.float32, torch.float16)
    )
    assert half == pytest.approx(exact / 2 + load("h200").model.pass_seconds.value)


def test_shuffles_are_copies_that_a_compiler_fuses():
    between, one = between_of(Shuffled(), (4, 64, 256, 256)), 4 * 2**24 / load("h200").memory_bytes_per_second.value
    assert between.alone == pytest.approx(4 * one + between_module._INDEXED["pixel_shuffle"] * 2**24 * cycle())
    assert between.fused == fused_seconds(2**24, 4 * (2 + 3) * 2**24, load("h200"))  # sectors of two of its eight


def test_attention_takes_the_same_by_both_and_more_with_a_mask():
    class Attention(nn.Module):
        def forward(self, q):
            return functional.scaled_dot_product_attention(q, q, q)

    class Masked(nn.Module):
        def forward(self, q, mask):
            return functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    shape = (2, 4, 50, 32)
    found = [between_of(Attention(), shape), between_of(Masked(), shape, (50, 50))]
    assert all(one.alone == one.fused > 0 for one in found) and found[0].alone < found[1].alone


def test_a_layer_that_reads_some_channels_is_charged_for_their_copy():
    class Half(nn.Module):
        def forward(self, x, w):
            return functional.conv2d(x[:, :32], w)

    class Whole(nn.Module):
        def forward(self, x, w):
            return functional.conv2d(x, w)

    assert not between_module.lies_apart(torch.empty(2, 3, 4)) and not between_module.lies_apart(torch.empty(2, 3, 4).mT)
    assert between_module.lies_apart(torch.empty(2, 3, 4)[:, 1:]) and between_module.lies_apart(torch.empty(1).expand(3))
    shape = (8, 64, 64, 64)
    assert between_of(Half(), shape, (32, 32, 1, 1)).alone > between_of(Whole(), shape, (32, 64, 1, 1)).alone == 0
