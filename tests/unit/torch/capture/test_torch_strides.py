# SPDX-License-Identifier: Apache-2.0
"""Results of layers that leave images channels last have PyTorch's strides where anybody could see others."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402
from torch_models import assert_close  # noqa: E402

import pysim.torch  # noqa: E402
from pysim.torch.capture.strides import _form, in_order, with_strides  # noqa: E402

pytestmark = pytest.mark.usefixtures("every_layer_is_ours")
LAST = torch.channels_last


def test_strides_are_given_by_a_copy_if_there_must_be_one():
    x = torch.randn(2, 8, 4, 4).to(memory_format=LAST)
    assert with_strides(x, x.stride()) is x and in_order(x, (0, 2, 3, 1)) is x
    for y in (with_strides(x, (128, 16, 4, 1)), in_order(x, (0, 1, 2, 3))):
        assert y.stride() == (128, 16, 4, 1) and torch.equal(y, x)
    assert in_order(x, (3, 1, 0, 2)).stride() == x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0).stride()
    thin = torch.randn(2, 8, 1, 1).to(memory_format=LAST)  # strides of axes of one element say nothing
    y = with_strides(thin, (8, 1, 8, 8))
    assert y.stride() == (8, 1, 8, 8) and y.data_ptr() == thin.data_ptr() and torch.equal(y, thin)


def test_strides_are_known_of_dense_memory_alone():
    x = torch.empty(2, 8, 4, 4)
    for dense, strides in (
        (x, (128, 16, 4, 1)),
        (x.to(memory_format=LAST), (128, 1, 32, 8)),
        (x.permute(3, 1, 0, 2), (1, 16, 128, 4)),
        (torch.empty(2, 8, 1, 4)[:, :, :, :], (32, 4, 4, 1)),
    ):
        assert _form(dense) == (with_strides, strides)
    for other in (x[:, ::2], x[:, :1].expand(2, 8, 4, 4), torch.empty(5), None, 3, torch.ones(3, 3).to_sparse()):
        assert _form(other) is None


class Several(nn.Module):
    """Results of layers, of operators behind them, and of one that is read by the next."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.pool = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 6, 1), nn.AvgPool2d(2)

    def forward(self, x):
        y = self.a(x)
        z = torch.relu(self.b(y))
        return y, z, self.pool(z), {"sum": z + 1}["sum"]


@pytest.mark.parametrize("form", [torch.contiguous_format, LAST])
def test_results_have_pytorchs_strides_for_all_sizes_of_a_batch(form, on_gpu):
    """After the second size the batch is no number of the graph."""
    model = Several().eval()
    optimized = pysim.torch.optimize(model)
    with torch.no_grad():
        for batch in (2, 3, 5, 1):
            x = torch.randn(batch, 3, 8, 6).to(memory_format=form)
            for _ in range(2):
                found, right = optimized(x), model(x)
                assert_close(found, right)
                assert [one.stride() for one in found] == [one.stride() for one in right]


def test_results_follow_the_strides_that_parameters_have_now():
    """PyTorch 2.11 calls a graph again whose parameters got other strides by `.data`, without a guard."""
    graphs, conv, x = [], nn.Conv2d(8, 8, 3, padding=1).to(memory_format=torch.channels_last), torch.randn(2, 8, 6, 6)

    def kept(module, inputs):
        graphs.append((pysim.torch.backend(module, inputs), inputs))
        return graphs[-1][0]

    with torch.no_grad():
        assert torch.compile(conv, backend=kept, dynamic=False)(x).is_contiguous(memory_format=torch.channels_last)
        conv.weight.data = conv.weight.data.contiguous()
        (y,), right = graphs[0][0](*graphs[0][1]), conv(x)
    assert y.stride() == right.stride()
    torch.testing.assert_close(y, right)


class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.normed = nn.Conv2d(8, 8, 3, padding=1), nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 8, 3))

    def forward(self, x):
        return nn.functional.instance_norm(self.conv(x)), self.conv(x).flatten(1) * 2, self.normed(x)


def first_graph(model, x):
    """What a call's first graph became, and its inputs."""
    graphs = []

    def kept(module, inputs):
        graphs.append((pysim.torch.backend(module, inputs), inputs))
        return graphs[-1][0]

    torch.compile(model, backend=kept, dynamic=False)(x)
    return graphs[0]


def test_what_a_trace_tells_views_of_is_copied_where_parameters_have_other_strides_now():
    """PyTorch 2.11 calls a graph again whose parameters became channels last, without a guard."""
    model, x = Flat(), torch.randn(2, 8, 6, 6)
    with torch.no_grad():
        call, inputs = first_graph(model, x)
        model.to(memory_format=LAST)
        found, right = call(*inputs), model(x)
    assert_close(found, right)
    assert [one.stride() for one in found] == [one.stride() for one in right]


class Reshaped(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3)

    def forward(self, x):
        return self.conv(x), x.double().reshape(-1)


def test_values_may_have_other_strides_than_a_trace_tells():
    """PyTorch 2.11 traces padding by reflection with strides that its results do not have."""
    model, x = Reshaped(), torch.randn(2, 4, 6, 6)
    with torch.no_grad():
        call, inputs = first_graph(model, x)
        other = x.to(memory_format=LAST)
        assert_close(call(*(other if one is x else one for one in inputs)), model(other))


class Strided(nn.Module):
    """Reads the strides of a value, of `of(x)`."""

    def __init__(self, of):
        super().__init__()
        self.conv, self.of = nn.Conv2d(4, 8, 3), of

    def forward(self, x):
        y = self.of(self.conv(x))
        return y.as_strided(y.shape, y.stride()) * y.stride(1)


def rolled(x):
    return torch.roll(torch.sigmoid(x), 1, 2)  # whose results are contiguous in a trace, whatever its input's strides


@torch.no_grad()
@pytest.mark.parametrize(("of", "runs"), [(rolled, "torch"), (lambda x: x.contiguous().flatten(2), "pysim")])
def test_strides_that_a_model_reads_are_those_of_eager(of, runs):
    torch._dynamo.reset()
    model, x = Strided(of).eval(), torch.randn(2, 4, 9, 9).to(memory_format=LAST)
    ours = pysim.torch.optimize(model)
    assert_close(ours(x), model(x))
    assert_close(ours(x), model(x))
    assert pysim.torch.report(ours)[0].runs == runs
