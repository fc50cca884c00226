# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own operators on a GPU: what they are expected to take, and max pools and concatenations by the library."""

import pytest
from checkout import DATA

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from emulated_torch import as_on_gpu  # noqa: E402
from torch_models import assert_close, rewritten  # noqa: E402

from pysim import planner  # noqa: E402
from pysim.machine.load import load_any  # noqa: E402
from pysim.problem.gemm import Gemm  # noqa: E402
from pysim.problem.text import parse  # noqa: E402
from pysim.torch.layers import concatenations, max_pools, pytorch_seconds  # noqa: E402


def test_a_product_of_one_row_is_expected_as_fast_as_pytorchs_reads_its_matrix():
    """0.81 to 1.28 times what 11 products took on an H100; EfficientNet-B0's classifier stays PyTorch's."""
    gpu, lines = load_any("h100"), (DATA / "h100/torch-operators.txt").read_text().splitlines()
    rows = [line.split()[2:5] for line in lines if line.startswith("row float32")]
    assert len(rows) == 11
    for filters, channels, taken in rows:
        problem = Gemm(m=1, n=int(filters), k=int(channels), trans_b=True)
        assert 0.81 < pytorch_seconds.pytorch_seconds(problem, gpu, (), True) * 1e6 / float(taken) < 1.28
    classifier = Gemm(m=1, n=1000, k=1280, trans_b=True)
    assert pytorch_seconds.pytorch_seconds(classifier, gpu, (), True) < planner.plan(classifier, gpu, accuracy="strict").seconds


def test_an_images_first_convolution_takes_what_cudnns_kernels_take():
    gpu = load_any("h200")
    patches, inner = (parse(text) for text in ("conv:mb16ic3ih224oc384kh16sh16:f16", "conv:mb16ic64ih56oc64kh3ph1:f16"))
    assert 0.8 < pytorch_seconds.pytorch_seconds(patches, gpu, (), True) / 99e-6 < 1.2  # measured
    assert pytorch_seconds.pytorch_seconds(inner, gpu, (), True) < 60e-6


POOLS = [
    (3, 2, 0, 1, True),
    (3, 1, 1, 1, False),
    (2, None, 0, 1, False),
    ((3, 2), (2, 1), (1, 0), (2, 1), True),
    ([2], [3], [1], [1], False),
    (3, 2, 1),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("channels", [8, 5])
@pytest.mark.parametrize("arguments", POOLS)
def test_pools_of_channels_last_images_have_pytorchs_bits(monkeypatch, emulated, arguments, channels, dtype):
    x = torch.randn(3, channels, 13, 14).to(dtype).to(memory_format=torch.channels_last)
    x[0, 3, 4, 5] = float("nan")
    x[1, :, :6, :6], x[2, 1, 7:, 7:], x[2, 2] = float("-inf"), float("inf"), -0.0
    x[2, 2, ::2] = 0.0
    wanted = torch.nn.functional.max_pool2d(x, *arguments)
    as_on_gpu(monkeypatch, "h200")
    pytorchs, pool = [], torch.nn.functional.max_pool2d
    monkeypatch.setattr(torch.nn.functional, "max_pool2d", lambda *given: pytorchs.append(1) or pool(*given))
    found = max_pools.max_pool(x, *arguments)
    assert not pytorchs and found.is_contiguous(memory_format=torch.channels_last)
    whole = torch.int32 if dtype is torch.float32 else torch.int16
    assert torch.equal(found.nan_to_num(9).view(whole), wanted.nan_to_num(9).view(whole))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("arguments", [(2,), (3, 2, 1, 1, True), ((2, 3, 2), (1, 2, 3), (1, 0, 1), (2, 1, 1)), ([3], None, [1])])
def test_pools_of_channels_last_volumes_have_pytorchs_bits(monkeypatch, emulated, arguments, dtype):
    x = torch.randn(2, 8, 7, 9, 10).to(dtype).to(memory_format=torch.channels_last_3d)
    x[0, 3, 4, 5, 2] = float("nan")
    x[1, :, :3, :6, :6], x[1, 1, 4:, 7:, 7:], x[1, 2] = float("-inf"), float("inf"), -0.0
    x[1, 2, ::2, 1::2] = 0.0
    wanted = torch.nn.functional.max_pool3d(x, *arguments)
    as_on_gpu(monkeypatch, "h200")
    pytorchs, pool = [], torch.nn.functional.max_pool3d
    monkeypatch.setattr(torch.nn.functional, "max_pool3d", lambda *given: pytorchs.append(1) or pool(*given))
    found = max_pools.max_pool3d(x, *arguments)
    assert not pytorchs and found.is_contiguous(memory_format=torch.channels_last_3d)
    whole = torch.int32 if dtype is torch.float32 else torch.int16
    assert torch.equal(found.nan_to_num(9).view(whole), wanted.nan_to_num(9).view(whole))
    assert max_pools.max_pool3d(x.contiguous(), *arguments).shape == wanted.shape and pytorchs


def test_other_pools_are_pytorchs(monkeypatch, emulated):
    x = torch.randn(2, 8, 13, 14).to(memory_format=torch.channels_last)
    as_on_gpu(monkeypatch, "h200")
    pytorchs, pool = [], torch.nn.functional.max_pool2d
    monkeypatch.setattr(torch.nn.functional, "max_pool2d", lambda *given: pytorchs.append(1) or pool(*given))
    others = ((x.contiguous(), {}), (x, {"return_indices": True}), (x.clone().requires_grad_(), {}), (x.double(), {}))
    for other, more in others:
        max_pools.max_pool(other, 2, **more)
    assert len(pytorchs) == len(others)
    for wrong in ({"padding": 2}, {"stride": 0}, {"kernel_size": 30}):
        with pytest.raises(RuntimeError):
            max_pools.max_pool(x, **({"kernel_size": 2} | wrong))


def test_a_models_pools_are_found_as_modules_and_as_functions(monkeypatch):
    class Pools(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.pool = torch.nn.Conv2d(3, 8, 3), torch.nn.MaxPool2d(3, 2, 1, ceil_mode=True)

        def forward(self, x):
            return torch.nn.functional.max_pool2d(self.pool(self.conv(x)), 2, stride=1)

    model, x = Pools().eval(), torch.randn(2, 3, 17, 18)
    traced, made = rewritten(model, x)
    with torch.no_grad():
        assert_close(traced(x), model(x))
    assert [node.target for node in made.module.graph.nodes].count(max_pools.max_pool) == 2


@pytest.fixture
def joined_by_pytorch(monkeypatch, emulated):
    """The calls of torch.cat, on tensors as on a GPU."""
    as_on_gpu(monkeypatch, "h200")
    found, cat = [], torch.cat
    monkeypatch.setattr(torch, "cat", lambda *given: found.append(given) or cat(*given))
    return found


def last(x):
    return x.to(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("channels", [(8, 16), (5, 3, 8), (2,)])
def test_joined_channels_have_pytorchs_bits(joined_by_pytorch, channels, dtype):
    parts = [last(torch.randn(3, one, 7, 9).to(dtype)) for one in channels]
    parts[0][0, 0, 0, :5] = torch.tensor([-0.0, float("inf"), float("-inf"), 1e-7, 0.0])  # 1e-7: below f16's smallest normal number
    parts[0][1, 1, 2, 3] = float("nan")
    found = concatenations.concatenate(parts, 1)
    assert not joined_by_pytorch and found.is_contiguous(memory_format=torch.channels_last)
    wanted, whole = torch.cat(parts, 1), torch.int32 if dtype is torch.float32 else torch.int16
    assert torch.equal(found.nan_to_num(9).view(whole), wanted.nan_to_num(9).view(whole))
    assert torch.equal(found.isnan(), wanted.isnan())


def test_other_concatenations_are_pytorchs(joined_by_pytorch):
    x, other = last(torch.randn(2, 8, 5, 6)), last(torch.randn(2, 4, 5, 6))
    many = [last(torch.randn(1, 2, 3, 3)) for _ in range(65)]
    of = (
        ([x, x], 0), ([x, x], 2), ([x, x], -3), ([x, other.half()], 1), ([x, other.contiguous()], 1), ([x.double(), x.double()], 1),
        ([x[0], x[0]], 1), ([x, other.clone().requires_grad_()], 1), ([x, torch.empty(0)], 1), (many, 1),
    )  # fmt: skip
    for tensors, axis in of:
        found, by_pytorch = concatenations.concatenate(tensors, axis), len(joined_by_pytorch)
        assert by_pytorch and torch.equal(found, torch.cat(tensors, axis))
        joined_by_pytorch.clear()
    with pytest.raises(RuntimeError):
        concatenations.concatenate([x, last(torch.randn(2, 4, 5, 7))], 1)


def test_concatenations_that_no_norm_reads_in_parts_are_replaced():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.norm = torch.nn.Conv2d(3, 4, 1), torch.nn.Conv2d(3, 2, 1), torch.nn.BatchNorm2d(6)

        def forward(self, x):
            a, b = self.one(x), self.two(x)
            return torch.cat([a, b], 1), torch.cat((a, a), dim=2), self.norm(torch.cat([b, a], 1))

    model, x = Model().eval(), torch.randn(2, 3, 5, 5)
    traced, made = rewritten(model, x)
    targets = [node.target for node in made.module.graph.nodes]
    assert (targets.count(concatenations.concatenate), targets.count(torch.cat)) == (1, 1)
    with torch.no_grad():
        for found, wanted in zip(traced(x), model(x), strict=True):
            assert_close(found, wanted)
