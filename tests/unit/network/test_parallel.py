# SPDX-License-Identifier: Apache-2.0
"""Parallel convolutions whose results are added are one; what has other windows, readers or numbers out of range stays apart."""

import numpy as np
import pytest
from graphs import Builder
from onnx_models import assert_close, by_onnxruntime, given, model_of

import pysim

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def conv(b, x, shape, kernel=3, scale=1.0, **about):
    channels, groups = b.shapes[x][1], about.get("group", 1)
    weights = scale * b.rng.standard_normal((shape[1], channels // groups, kernel, kernel))
    pads = about.pop("pads", [kernel // 2 * about.get("dilations", [1])[0]] * 4)
    inputs = [x, b.constant(weights), *([b.constant(b.rng.standard_normal(shape[1]))] if b.rng.random() < 0.5 else [])]
    return b.add("Conv", inputs, shape, pads=pads, **about)


def norm(b, x):
    numbers = [b.constant(b.rng.uniform(0.5, 1.5, b.shapes[x][1])) for _ in range(4)]
    return b.add("BatchNormalization", [x, *numbers], b.shapes[x])


def summed(b, values):
    total, *rest = values
    for one in rest:
        total = b.add("Add", [total, one][:: b.rng.choice([-1, 1])], b.shapes[total])
    return total


def ops(proto):
    return [layer.node.op for layer in model_of(proto).plan.layers if layer.node.op != "Reorder"]


def assert_right(proto):
    assert_close(model_of(proto)(given(proto)), by_onnxruntime(proto.SerializeToString(), given(proto)))


@pytest.mark.parametrize("seed", range(24))
def test_a_block_of_parallel_layers_is_one_convolution(seed):
    b = Builder(seed)
    channels, groups = [(8, 1), (8, 2), (8, 8)][seed % 3]
    dilation, normed = 1 + seed // 3 % 2, seed // 6 % 2
    b.shapes["x"] = shape = (2, channels, 11, 9)
    about = {"group": groups, "dilations": [dilation] * 2}
    parts = [conv(b, "x", shape, **about) for _ in range(3)] + [conv(b, "x", shape, 1, group=groups)] + [norm(b, "x")] * normed
    order = b.rng.permutation(len(parts))
    total = b.add("Relu", [summed(b, [parts[at] for at in order])], shape)
    proto = b.model([total])
    assert ops(proto) == ["Conv"]
    assert_right(proto)


@pytest.mark.parametrize("seed", range(4))
def test_with_strides_and_another_residual_behind_them(seed):
    b = Builder(seed)
    b.shapes["x"], shape = (1, 6, 12, 12), (1, 10, 6, 6)
    parts = [conv(b, "x", shape, strides=[2, 2]), conv(b, "x", shape, 1, strides=[2, 2]), conv(b, "x", shape, 5, strides=[2, 2])]
    other = conv(b, b.add("Tanh", ["x"], b.shapes["x"]), shape, strides=[2, 2])
    proto = b.model([summed(b, [*parts, other])])
    assert ops(proto).count("Conv") == 2
    assert_right(proto)


def test_parallel_layers_apart_in_a_sum_are_right():
    b = Builder(9)
    b.shapes["x"] = shape = (1, 4, 8, 8)
    other = conv(b, b.add("Tanh", ["x"], shape), shape)
    assert_right(b.model([summed(b, [conv(b, "x", shape), other, conv(b, "x", shape), norm(b, "x")])]))


def test_layers_of_other_windows_stay_apart():
    b = Builder(0)
    b.shapes["x"] = shape = (1, 4, 8, 8)
    left, right = (conv(b, "x", shape, 2, pads=pads) for pads in ([1, 1, 0, 0], [0, 0, 1, 1]))
    wide = conv(b, "x", shape, 3, dilations=[2, 2], pads=[2, 2, 2, 2])
    proto = b.model([summed(b, [left, right, wide])])
    assert ops(proto).count("Conv") == 3
    assert_right(proto)


def test_a_layer_that_others_read_stays():
    b = Builder(1)
    b.shapes["x"] = shape = (1, 4, 8, 8)
    first, second = conv(b, "x", shape), conv(b, "x", shape)
    proto = b.model([summed(b, [first, second]), first])
    assert ops(proto).count("Conv") == 2


def test_an_activation_before_the_sum_stays_before_it():
    b = Builder(2)
    b.shapes["x"] = shape = (1, 4, 8, 8)
    proto = b.model([summed(b, [b.add("Relu", [conv(b, "x", shape)], shape), conv(b, "x", shape)])])
    assert ops(proto).count("Conv") == 2
    assert_right(proto)


def test_weights_whose_sum_is_infinite_stay_apart():
    b = Builder(3)
    b.shapes["x"] = (1, 2, 5, 5)
    huge = b.constant(np.full((2, 2, 1, 1), 2e38))
    proto = b.model([summed(b, [b.add("Conv", ["x", huge], b.shapes["x"]) for _ in range(2)])])
    assert ops(proto).count("Conv") == 2


def test_reproducible_results_are_those_of_single_layers(tmp_path):
    b = Builder(4)
    b.shapes["x"] = shape = (1, 4, 8, 8)
    proto = b.model([summed(b, [conv(b, "x", shape), conv(b, "x", shape)])])
    onnx.save(proto, tmp_path / "two.onnx")
    layers = pysim.load(tmp_path / "two.onnx", accuracy="reproducible").plan.layers
    assert [layer.node.op for layer in layers].count("Conv") == 2


def test_a_saved_network_keeps_the_sum(tmp_path):
    b = Builder(5)
    b.shapes["x"] = shape = (1, 4, 8, 8)
    proto = b.model([summed(b, [conv(b, "x", shape), norm(b, "x")])])
    onnx.save(proto, tmp_path / "one.onnx")
    model = pysim.load(tmp_path / "one.onnx")
    model.save(tmp_path / "one.pysim")
    assert (pysim.load(tmp_path / "one.pysim")(given(proto)) == model(given(proto))).all()


def test_weights_of_a_module_that_change_are_added_again():
    torch = pytest.importorskip("torch")

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (torch.nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
            self.norm = torch.nn.BatchNorm2d(8)

        def forward(self, x):
            return torch.relu(self.first(x) + self.second(x) + self.norm(x))

    torch.manual_seed(0)
    block, x = Block().eval(), torch.randn(1, 8, 16, 16)
    fast = pysim.torch.optimize(block)
    changes = (
        lambda: block.first.weight.mul_(-2.0),
        lambda: block.second.bias.fill_(3.0),
        lambda: block.norm.running_mean.fill_(5.0),
        lambda: setattr(block, "second", torch.nn.Conv2d(8, 8, 3, padding=1)),
        lambda: block.second.weight.data.zero_(),
    )
    with torch.no_grad():
        torch.testing.assert_close(fast(x), block(x), rtol=1e-4, atol=1e-5)
        for change in changes:
            before = block(x)
            change()
            assert (block(x) != before).any()
            torch.testing.assert_close(fast(x), block(x), rtol=1e-4, atol=1e-5)
