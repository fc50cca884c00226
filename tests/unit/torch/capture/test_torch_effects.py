# SPDX-License-Identifier: Apache-2.0
"""What a captured graph writes, and what lies in the memory of what, decides where pysim's layers may stand: each model here gives other
numbers if one of the rules of `pysim.torch.capture.effects` is left out."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch_models import Captured, assert_close, rewritten, settled  # noqa: E402

import pysim.torch  # noqa: E402
from pysim.torch.capture.effects import effects_of  # noqa: E402
from pysim.torch.capture.strides import with_strides  # noqa: E402

pytestmark = pytest.mark.usefixtures("every_layer_is_ours")


@torch.library.custom_op("pysim_tests::negate_", mutates_args={"x"})
def negate_(x: torch.Tensor) -> None:
    x.neg_()


@torch.library.custom_op("pysim_tests::first_in_memory", mutates_args=())
def first_in_memory(x: torch.Tensor) -> torch.Tensor:
    return torch.as_strided(x, (16,), (1,)).clone()


@first_in_memory.register_fake
def _(x):
    return x.new_empty(16)


class Model(nn.Module):
    """A convolution, a norm, and what a function does with them."""

    def __init__(self, work):
        super().__init__()
        self.conv, self.norm, self.next, self.work = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1), work

    def forward(self, x):
        return self.work(self, x)


def statistics_written(model, x):
    y = model.conv(x)
    model.norm.running_mean.add_(1)
    return model.norm(y)


def statistics_written_in_training(model, x):
    y = model.conv(x)
    functional.batch_norm(3 + y, model.norm.running_mean, model.norm.running_var, training=True, momentum=0.5)
    return model.norm(y)


def weights_written(model, x):
    y = model.next(model.conv(x))
    model.next.weight.data.mul_(-2)
    return y + model.next(y)


def part_scaled(model, x):
    y = model.conv(x)
    y[:, :4] *= -2
    return torch.relu(y)


def part_set(model, x):
    y = model.conv(x)
    y[:, 2:5] = -1
    return torch.relu(y) + y


def written_as_out(model, x):
    y = model.conv(x)
    torch.mul(y, -1, out=y)
    return torch.relu(y)


def written_in_place(model, x):
    y = model.conv(x)
    return functional.leaky_relu(y, -1.0, inplace=True) + model.norm(y)


def written_by_another_name(model, x):
    y = model.conv(x)
    other = y.transpose(2, 3)
    other.add_(1)
    return torch.relu(y)


def written_by_an_own_operator(model, x):
    y = model.conv(x)
    negate_(y)
    return torch.relu(y)


def input_written(model, x):
    y = model.conv(x)
    x.mul_(-2)
    return torch.relu(y) + model.conv(x)


def factor_written(model, x):
    y = model.next(model.conv(x))
    factor = torch.sigmoid(y.mean((2, 3), keepdim=True))
    z = y * factor
    factor.zero_()
    return model.next(z) + factor


def sum_read_later(model, x):
    y = model.conv(x)
    z = model.next(y)
    z += y
    y.neg_()
    return torch.relu(z) + y


WRITES = [
    statistics_written, statistics_written_in_training, weights_written, part_scaled, part_set, written_as_out, written_in_place,
    written_by_another_name, written_by_an_own_operator, input_written, factor_written, sum_read_later,
]  # fmt: skip


def assert_equal(work, size=9):
    """Results, inputs and state of two calls are PyTorch's."""
    model, x = settled(Model(work)), torch.randn(2, 3, size, size)
    traced, made = rewritten(model, x.clone())  # a call, which may write
    right = copy.deepcopy(model)
    with torch.no_grad():
        for _ in range(2):
            given, other = x.clone(), x.clone()
            assert_close(traced(given), right(other))
            assert torch.equal(given, other)
            for one, wanted in zip(model.state_dict().values(), right.state_dict().values(), strict=True):
                assert torch.allclose(one.float(), wanted.float(), rtol=1e-4, atol=1e-4)
    return made


@pytest.mark.parametrize("work", WRITES)
def test_nothing_moves_over_a_write_to_what_it_reads(work):
    assert_equal(work)


@pytest.mark.parametrize("work", WRITES)
def test_nothing_moves_over_a_write_on_a_gpu_either(work, on_gpu):
    assert_equal(work)


# Memory as PyTorch lays it out


def viewed_and_written(model, x):
    y = model.conv(x)
    y.view(-1)[:50].zero_()
    return model.next(y)


def viewed_before(model, x):
    y = model.conv(x)
    flat = y.view(2, -1)
    y.mul_(2)
    return flat + model.next(y).flatten(1)


def flattened_and_written(model, x):
    y = model.conv(x)
    torch.flatten(y, 1)[:, ::3] = 7
    return model.next(y)


def read_as_it_lies(model, x):
    return torch.as_strided(model.conv(x), (4, 5), (5, 1))


def read_by_an_own_operator(model, x):
    return first_in_memory(model.conv(x))


@pytest.mark.parametrize("work", [viewed_and_written, viewed_before, flattened_and_written, read_as_it_lies, read_by_an_own_operator])
def test_memory_that_is_looked_at_lies_as_pytorchs(work, on_gpu):
    assert any(node.target is with_strides for node in assert_equal(work).module.graph.nodes)


def viewed(model, x):
    y = model.next(torch.relu(model.conv(x)))
    return y.view(y.shape[0], -1) * 2


def test_a_view_that_nothing_writes_is_a_reshape(on_gpu):
    """The layers before it leave channels last, of which a view would raise."""
    made = assert_equal(viewed)
    assert [node.target for node in made.module.graph.nodes if node.op == "call_method"] == ["reshape"]


def test_results_that_share_memory_share_it(on_gpu):
    model, x = Model(lambda model, x: [y := model.conv(x), y.flatten(1)]).eval(), torch.randn(2, 3, 9, 9)
    traced, _ = rewritten(model, x)
    with torch.no_grad():
        image, flat = traced(x)
        flat.fill_(3)
        assert (image == 3).all()


# What is told of a graph


def effects(work, train=False):
    model, x = Model(work).train(train), torch.randn(2, 3, 9, 9)
    captured = Captured(model, x)
    graph = captured.module.graph
    (output,) = (node for node in graph.nodes if node.op == "output")
    return captured, effects_of(graph), output.all_input_nodes


@pytest.mark.parametrize(
    ("work", "writes", "returns"),
    [
        (lambda model, x: model.conv(x), False, False),
        (lambda model, x: [model.conv(x), x[0]], False, True),
        (lambda model, x: x[:, :2].reshape(2, -1), False, True),
        (lambda model, x: functional.relu(x, inplace=True) + 1, True, False),
        (lambda model, x: model.conv(x.add_(1)), True, False),
        (lambda model, x: model.conv(x) + model.norm.running_var.mul_(2).sum(), True, False),
        (lambda model, x: model.conv(x).add_(1), False, False),
        (lambda model, x: model.norm.weight.detach().view(2, 4), False, True),
    ],
)
def test_writes_to_inputs_and_results_in_their_memory_are_told(work, writes, returns):
    """A CUDA graph reads copies of its inputs, so such graphs are not captured."""
    _, found, outputs = effects(work)
    assert (found.writes_inputs, found.returns_inputs(outputs)) == (writes, returns)
    captured = Captured(Model(work).eval(), torch.randn(2, 3, 9, 9)).rewrite()
    assert captured.repeatable == (not writes and not returns)


def test_a_norm_in_training_writes_its_statistics():
    _, found, _ = effects(lambda model, x: model.norm(model.conv(x)), train=True)
    assert found.writes_inputs
    _, found, _ = effects(lambda model, x: model.norm(model.conv(x)))
    assert not found.writes_inputs


def test_results_in_the_same_memory_are_told():
    for work, shared in ((lambda model, x: [y := model.conv(x), y[0]], True), (lambda model, x: [y := model.conv(x), y + 1], False)):
        _, found, outputs = effects(work)
        assert found.share_memory(outputs) == shared


def test_a_layer_ends_where_autocast_does():
    """What comes behind is computed in the type that is asked for there."""

    def left(model, x):
        with torch.autocast("cpu", torch.bfloat16):
            y = model.conv(x)
        return torch.relu(model.norm(y))

    captured, found, _ = effects(left)
    conv, norm = (next(node for node in captured.module.graph.nodes if name in str(node.target)) for name in ("conv2d", "batch_norm"))
    assert found.regions[conv] != found.regions[norm] and not found.may_move(norm)
    model, x = settled(Model(left)), torch.randn(2, 3, 9, 9)
    traced, made = rewritten(model, x)
    assert [(layer.activation, layer.epsilon) for layer in made.layers] == [(None, None)]
    with torch.no_grad():
        y, right = traced(x), model(x)
    assert y.dtype == right.dtype and torch.equal(y, right)


def test_an_operator_that_is_not_known_may_write_all_that_it_reads():
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    made = graph.call_function(lambda *given: given[0], (x, y))
    graph.output(made)
    found = effects_of(graph)
    assert found.written == {x, y} and found.returns_inputs([made]) and found.aliases[made] == {x, y}


@pytest.mark.parametrize(
    ("work", "repeatable"),
    [
        (lambda model, x: model.conv(x), True),
        (lambda model, x: functional.dropout(model.conv(x), 0.5, False), True),
        (lambda model, x: model.conv(x) + torch.rand(1), False),
        (lambda model, x: functional.dropout(model.conv(x), 0.5, True), False),
        (lambda model, x: torch.bernoulli(model.conv(x).sigmoid()), False),
        (lambda model, x: model.conv(x.mul_(2)), False),
        (lambda model, x: [model.conv(x), x[0]], False),
    ],
    ids=["layer", "no dropout", "noise", "dropout", "coins", "writes", "returns"],
)
def test_a_call_may_be_repeated_if_that_changes_nothing_and_draws_nothing(work, repeatable):
    """As a CUDA graph's warm-up repeats it."""
    _, made = rewritten(Model(work).eval(), torch.randn(2, 3, 9, 9))
    assert made.repeatable is repeatable


@pytest.mark.parametrize(
    ("work", "in_order"),
    [
        (lambda model, x: model.conv(x) + torch.randn_like(x[:, :1]), False),
        (lambda model, x: model.conv(x) + torch.rand(1), False),
        (lambda model, x: functional.dropout(model.conv(x), 0.5, False), False),
        (lambda model, x: torch.randn_like(model.conv(x)), True),
        (lambda model, x: functional.dropout(model.conv(x), 0.5, True), True),
        (lambda model, x: torch.bernoulli(model.conv(x).flatten(1).sigmoid()), True),
    ],
    ids=["like an input", "one number", "no dropout", "like a result", "dropout", "coins"],
)
def test_numbers_drawn_in_the_order_of_a_values_memory_make_a_graph_pytorchs(work, in_order):
    model, x = Model(work).eval(), torch.randn(2, 3, 9, 9).to(memory_format=torch.channels_last)
    assert effects_of(Captured(model, x).module.graph).draws_in_order is in_order
    optimized, drawn = pysim.torch.optimize(model), []
    for one in (optimized, model):
        torch.manual_seed(3)
        with torch.no_grad():
            drawn.append(one(x))
    assert_close(*drawn)
    assert ("in the order" in str(pysim.torch.report(optimized))) is in_order
