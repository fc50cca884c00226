# SPDX-License-Identifier: Apache-2.0
"""Accuracy reproducible of PyTorch models: whole networks on a CPU, convolutional ones on a GPU by CUDA kernels as the CPU runs them, or a
reason."""

import pytest
from native_library import native

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402

import pysim.torch  # noqa: E402
from pysim.errors import OperandError  # noqa: E402
from pysim.torch import whole  # noqa: E402
from pysim.torch.capture import on_cpu  # noqa: E402
from pysim.torch.layers.norm_layers import RowNormLayer  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_compiler")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16)
        self.wide, self.deep = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.last = nn.Linear(16, 7)

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x)))
        x = nn.functional.silu(self.wide(x) + x)
        x = nn.functional.max_pool2d(self.deep(x) * torch.sigmoid(x), 2)
        return self.last(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Dense(nn.Module):
    """A BatchNorm of a concatenation, LayerNorm, and a mean of tokens."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm, self.wide = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(11), nn.Conv2d(11, 8, 1)
        self.norm.running_mean.uniform_(-1, 1), self.norm.running_var.uniform_(0.5, 2)
        self.norm_of_rows, self.last = nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x):
        y = self.wide(torch.relu(self.norm(torch.cat([x, self.stem(x)], 1))))
        return self.last(self.norm_of_rows(y.flatten(2).transpose(1, 2)).mean(1))


@pytest.fixture
def captured_on_gpu(on_gpu, monkeypatch):
    monkeypatch.setattr(pysim.torch, "_any_on_gpu", lambda tensors: True)


@pytest.mark.parametrize("kind", [Block, Dense])
def test_an_image_has_the_same_bits_in_any_batch(captured_on_gpu, kind):
    torch.manual_seed(2)
    model, x = kind().eval(), torch.rand(3, 3, 12, 12)
    own = pysim.torch.optimize(model, "reproducible")
    with torch.no_grad():
        y = own(x)
        torch.testing.assert_close(y, model(x))
        assert {one.runs for one in pysim.torch.report(own)} == {"pysim"}
        for at in range(3):
            assert torch.equal(own(x[at : at + 1]), y[at : at + 1]), at
        assert torch.equal(own(x.flip(0)), y.flip(0))


@pytest.mark.parametrize("over_channels", [False, True])
def test_a_norm_of_rows_is_the_kernels_with_the_same_bits_at_any_address(captured_on_gpu, monkeypatch, over_channels):
    class Norms(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.last = nn.LayerNorm(24), nn.Linear(24, 5)
            nn.init.uniform_(self.norm.weight), nn.init.uniform_(self.norm.bias)

        def forward(self, x):
            return self.last(self.norm(x.permute(0, 2, 3, 1) if over_channels else x))

    torch.manual_seed(4)
    model, x = Norms().eval(), torch.rand((3, 24, 5, 7) if over_channels else (3, 5, 7, 24))
    own = pysim.torch.optimize(model, "reproducible")
    with torch.no_grad():
        want = model(x)
        monkeypatch.setattr(RowNormLayer, "by_pytorch", None), monkeypatch.setattr(whole, "norm_of_rows", None)
        y = own(x)
        torch.testing.assert_close(y, want)
        shifted = torch.empty(x.numel() + 1)[1:].view(x.shape).copy_(x)
        turned = x.contiguous(memory_format=torch.channels_last)
        for part, whole_y in ((x[1:2], y[1:2]), (shifted, y), (turned, y), (shifted, y)):
            assert torch.equal(own(part), whole_y)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8)), "group_norm is none of them"),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.Softmax(1)), "softmax is none of them"),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(4)), "adaptive_avg_pool2d of windows that differ in size"),
    ],
)
def test_what_may_depend_on_the_batch_is_refused_by_name(captured_on_gpu, model, reason):
    own = pysim.torch.optimize(model.eval(), "reproducible")
    for _ in range(2):  # and not run by PyTorch later
        with torch.no_grad(), pytest.raises(OperandError, match=reason):
            own(torch.rand(1, 3, 8, 8))


def test_a_call_that_pytorch_would_run_in_part_is_refused(captured_on_gpu):
    class Breaks(Block):
        def forward(self, x):
            y = self.stem(x)
            torch._dynamo.graph_break()
            return torch.softmax(y, 1)

    own = pysim.torch.optimize(Breaks().eval(), "reproducible")
    with torch.no_grad(), pytest.raises(OperandError, match="that are one graph"):
        own(torch.rand(1, 3, 8, 8))
    with pytest.raises(OperandError, match="this call is training, has gradients"):
        own(torch.rand(1, 3, 8, 8))


class Tokens(Block):
    """Attention without a name of its own, LayerNorm, and a table that is computed from parameters."""

    def __init__(self):
        super().__init__()
        self.norm_of_rows, self.places = nn.LayerNorm(16), nn.Parameter(torch.rand(1, 16))

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x)))
        rows = self.norm_of_rows(self.wide(x).flatten(2).transpose(1, 2) + self.places.exp())
        shares = torch.softmax(rows @ rows.transpose(1, 2), -1)
        return self.last((shares @ rows).mean(1)), x.flatten(1)[:, ::2]


@native
@pytest.mark.parametrize("kind", [Block, Tokens])
def test_on_a_cpu_an_image_has_the_same_bits_in_any_batch_with_any_strides_and_threads(kind, monkeypatch):
    torch.manual_seed(3)
    monkeypatch.setattr(on_cpu, "LIMIT", 2)  # the third kind of inputs takes the place of the first
    model, x, before = kind().eval(), torch.rand(3, 3, 12, 12), torch.get_num_threads()
    own, each = pysim.torch.optimize(model, "reproducible"), lambda y: y if isinstance(y, tuple) else (y,)
    with torch.no_grad():
        want, y = each(model(x)), each(own(x))
        torch.testing.assert_close(y, want)
        assert {one.runs for one in pysim.torch.report(own)} == {"pysim"}
        for size, threads in ((1, 2), (2, 1), (4, 2), (3, 2)):
            torch.set_num_threads(threads)
            some = x.repeat(size, 1, 1, 1)[:size].contiguous(memory_format=torch.channels_last)
            for part, whole in zip(each(own(some)), y, strict=True):
                assert torch.equal(part[:3], whole[: len(part)])
        torch.set_num_threads(before)


@native
@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (torch.sin, "leaves nothing to PyTorch on a CPU: aten.sin.default has no native operator"),
        (torch.Tensor.double, "leaves nothing to PyTorch|accuracy reproducible takes|no contract"),
        (lambda y: torch.log_softmax(y, 1), "its bits may depend on the CPU"),
        (lambda y: y + torch.rand(1), "leaves nothing to PyTorch on a CPU"),
    ],
)
def test_on_a_cpu_what_pytorch_would_compute_is_refused_by_name(last, reason):
    class Ends(Block):
        def forward(self, x):
            return last(self.stem(x))

    own = pysim.torch.optimize(Ends().eval(), "reproducible")
    for _ in range(2):  # and not run by PyTorch later
        with torch.no_grad(), pytest.raises(OperandError, match=reason):
            own(torch.rand(1, 3, 8, 8))


@native
def test_on_a_cpu_a_network_that_needs_pytorch_later_is_refused():
    own = pysim.torch.optimize(Block().eval(), "reproducible")
    with torch.no_grad():
        own(torch.rand(1, 3, 8, 8))
        with torch.autocast("cpu"), pytest.raises(OperandError, match="accuracy"):
            own(torch.rand(1, 3, 8, 8))
    with pytest.raises(OperandError, match="has gradients"):
        own(torch.rand(1, 3, 8, 8))


def test_the_compiler_and_the_backend_are_refused():
    model = Block().eval()
    with pytest.raises(OperandError, match="leave out compiler"):
        pysim.torch.optimize(model, "reproducible", compiler=True)
    with pytest.raises(OperandError, match="use optimize"):
        pysim.torch.backend(None, [], {"accuracy": "reproducible"})


@pytest.mark.parametrize("given", [{"dropout_p": 0.1}, {"attn_mask": torch.zeros(2, 2)}, {"enable_gqa": True}])
def test_on_a_gpu_attention_of_another_form_is_refused(given):
    x = torch.rand(1, 1, 2, 8)
    with pytest.raises(OperandError, match="attention with a mask, with dropout"):
        whole.attention(x, x, x, **given)


def test_on_a_gpu_attention_reads_rows_of_whole_vectors_where_they_are_and_copies_others():
    joint = torch.rand(2, 5, 3, 2, 8).permute(2, 0, 3, 1, 4)  # queries, keys and values as one product leaves them
    assert all(whole._in_vectors(one) is one for one in joint)
    for other in (torch.rand(2, 2, 5, 8)[..., 1:], torch.rand(2, 2, 8, 5).transpose(2, 3), torch.rand(161)[1:].view(2, 2, 5, 8)):
        copied = whole._in_vectors(other)
        assert copied.is_contiguous() and copied.data_ptr() % 16 == 0 and torch.equal(copied, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_on_a_gpu_no_thread_adds_a_whole_plane_and_half_precision_rounds_once(monkeypatch, dtype, form):
    pooled, windows = torch.nn.functional.avg_pool2d, []
    monkeypatch.setattr(whole.functional, "avg_pool2d", lambda x, of: windows.append(of) or pooled(x, of))
    torch.manual_seed(3)
    x = torch.rand(3, 5, 20, 24).to(dtype).to(memory_format=form)
    y = whole.mean_of_windows(x, (5, 20, 24), (20, 24), (5, 1, 1))
    assert windows == [(1, 24), (20, 1)] and y.dtype == dtype and y.shape == (3, 5, 1, 1)
    exact = x.double().mean((2, 3), keepdim=True)
    torch.testing.assert_close(y.double(), exact, rtol=0, atol=torch.finfo(dtype).eps / 2 + 1e-6)  # of results below 1
    assert torch.equal(whole.mean_of_windows(x[1:2], (5, 20, 24), (20, 24), (5, 1, 1)), y[1:2])
