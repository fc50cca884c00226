# SPDX-License-Identifier: Apache-2.0
"""Convolutions of sequences and volumes, and transposed ones, equal PyTorch's in float64."""

import numpy as np
import pytest
from limits import SHARE

import pysim
from pysim.convolutions import _columns, _phases
from pysim.errors import NativeError, OperandError, ProblemError
from pysim.machine.load import load_any
from pysim.problem.transposed import Moves
from pysim.problem.windows import conv_of
from pysim.runtime.arrays import permuted
from pysim.runtime.cuda import interleave

torch = pytest.importorskip("torch")
RANKS = (1, 2, 3)
KINDS = {"conv1d": 1, "conv3d": 3, "conv_transpose1d": 1, "conv_transpose2d": 2, "conv_transpose3d": 3}


def drawn(rng: np.random.Generator, name: str, most: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, object]]:
    """Operands of up to `most` channels and filters a group; every third kernel is square, so that Winograd's are among them."""
    rank, groups = KINDS[name], int(rng.choice([1, 2, 3]))
    channels, filters = groups * int(rng.integers(1, most + 1)), groups * int(rng.integers(1, most + 1))
    each = {"stride": rng.integers(1, 4, rank), "dilation": rng.integers(1, 3, rank), "padding": rng.integers(0, 4, rank)}
    kernel = rng.integers(1, 5, rank)
    if rank > 1 and rng.random() < 1 / 3:
        kernel[1:], each["stride"][1:], each["dilation"][1:] = rng.choice([3, 4, 5]), rng.choice([1, 1, 2]), 1
    size = rng.integers(1, 9, rank) + each["dilation"] * (kernel - 1) * ("transpose" not in name)
    if "transpose" in name:
        each["output_padding"] = rng.integers(0, np.maximum(each["stride"], each["dilation"]))
        whole = (size - 1) * each["stride"] + each["dilation"] * (kernel - 1) + 1 + each["output_padding"]
        each["padding"] = np.minimum(each["padding"], (whole - 1) // 2)
    shape = (channels, filters // groups, *kernel) if "transpose" in name else (filters, channels // groups, *kernel)
    x, w, bias = (torch.from_numpy(rng.standard_normal(tuple(map(int, s)))) for s in ((2, channels, *size), shape, (filters,)))
    return x, w, bias, {name: tuple(map(int, one)) for name, one in each.items()} | {"groups": groups}


@pytest.mark.parametrize("name", KINDS)
def test_any_stride_padding_dilation_and_groups_give_pytorchs_result(name):
    """PYSIM_LONG=1: 2,000 of each kind, 10,000 layers; half of them in float32, of up to 40 channels a group."""
    rng = np.random.default_rng(len(name))
    for number in range(max(12, round(2000 * SHARE))):
        single = number % 2 == 1
        x, w, bias, how = drawn(rng, name, 40 if single else 3)
        operands = [one.float() if single else one for one in (x, w, bias)]
        want = getattr(torch.nn.functional, name)(*(one.double() for one in operands), **how)
        got = getattr(pysim, name)(*operands, **how)
        assert got.shape == want.shape and got.dtype == operands[0].dtype, how
        bar = 1e-4 if single else 1e-11
        assert (got - want).abs().max() <= bar * max(1.0, float(want.square().mean().sqrt())), how


@pytest.mark.parametrize(("name", "rank"), [("conv1d", 1), ("conv3d", 3), ("conv_transpose3d", 3)])
def test_padding_may_differ_between_the_two_ends(name, rank):
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((1, 2, *(6,) * rank)), rng.standard_normal((2, 2, *(3,) * rank))
    got = getattr(pysim, name)(x, w, padding=(*(0,) * rank, *(2,) * rank))
    if name == "conv_transpose3d":
        want = pysim.conv_transpose3d(x, w)[(..., *(slice(None, -2),) * rank)]
    else:
        want = getattr(pysim, name)(np.pad(x, ((0, 0), (0, 0), *((0, 2),) * rank)), w)
    assert np.allclose(got, want, atol=1e-12)


@pytest.mark.parametrize("algorithm", ["direct", "im2col"])
def test_volumes_on_a_gpu_are_pytorchs(algorithm, emulated, monkeypatch):
    """As the CPU runs the kernels; both layouts, planes and channels last."""
    rng = np.random.default_rng(7)
    monkeypatch.setattr(pysim.api.host, "runnable_any", load_any)
    for number in range(max(12, round(500 * SHARE))):
        *operands, how = drawn(rng, "conv3d", 9)
        want = torch.nn.functional.conv3d(*operands, **how).numpy()
        x, w, bias = (one.float().numpy() for one in operands)
        layout = ("nchw", "nhwc")[number % 2]
        if layout == "nhwc":
            x = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
        pads = how["padding"]
        problem = conv_of(x.shape, w.shape, how["stride"], (*pads, *pads), how["dilation"], how["groups"], "f32")
        plan = pysim.plan(problem, "v100", layout=layout, algorithm=algorithm)
        got = pysim.conv3d(x, w, bias, **how, plan=plan)
        assert got.shape == want.shape and np.abs(got - want).max() <= 1e-4 * max(1.0, np.sqrt(np.square(want).mean())), (layout, how)


@pytest.mark.parametrize("rank", RANKS)
def test_phases_are_prepared_by_any_library(rank):
    rng, name = np.random.default_rng(rank), f"conv_transpose{rank}d"
    by = Moves(torch.zeros, torch.empty, torch.flip, torch.permute)  # as on a device
    for _ in range(max(12, round(500 * SHARE))):
        x, w, bias, how = drawn(rng, name, 3)
        arguments = tuple(how[part] for part in ("stride", "padding", "output_padding", "dilation"))
        of = _phases(x.shape, w.shape, arguments, how["groups"], rank, "f64")
        assert np.array_equal(of.weights(w, by), of.weights(w.numpy())) and np.array_equal(
            of.bias(bias, by), np.repeat(bias.numpy(), of.phases)
        )


@pytest.mark.parametrize("rank", RANKS)
def test_a_gpu_interleaves_phases_as_numpy_does(rank, emulated):
    """As the CPU runs the kernels; filters in whole vectors or not, any phases, both layouts, no element outside the result."""
    rng, name = np.random.default_rng(rank), f"conv_transpose{rank}d"
    for number in range(max(40, round(500 * SHARE))):
        x, w, _, how = drawn(rng, name, 3)
        if number % 2:  # two phases of whole vectors
            how |= {"stride": tuple(int(of) for of in rng.choice([1, 2], rank)), "output_padding": (0,) * rank, "groups": 1}
            axes = zip(x.shape[2:], w.shape[2:], how["stride"], how["dilation"], how["padding"], strict=True)
            how["padding"] = tuple(min(p, ((n - 1) * s + d * (k - 1)) // 2) for n, k, s, d, p in axes)
            w = w[:, :1].repeat(1, int(rng.choice([8, 16])), *(1,) * rank)
        arguments = tuple(how[part] for part in ("stride", "padding", "output_padding", "dilation"))
        of = _phases(x.shape, w.shape, arguments, how["groups"], rank, "f64")
        problem, axes = of.problem, len(of.axes) + 2
        layout = ("nchw", "nhwc")[number // 2 % 2]
        kind = (np.float16, np.float32, np.float64)[number % 3]
        windows = tuple(axis.windows for axis in of.axes)
        y = rng.standard_normal((problem.batch, problem.filters, *windows)).astype(kind)
        lies = permuted(axes) if layout == "nhwc" else range(axes)
        given = np.ascontiguousarray(y.transpose(lies))
        room = np.full(int(np.prod(of.output_shape)) + 16, np.nan, kind)
        out = room[8:-8]
        interleave(of, layout, out.itemsize, given.ctypes.data, out.ctypes.data, 0)
        want = of.interleaved(y).transpose(lies)
        assert np.array_equal(out.reshape(want.shape), want), (how, layout, kind)
        assert np.isnan(room[:8]).all() and np.isnan(room[-8:]).all()


def test_what_is_wrong_with_phases_is_said(emulated):
    of = _phases((1, 2, 4), (2, 3, 4), ((2,), (1,), (0,), (1,)), 1, 1, "f32")
    y = np.zeros((1, of.problem.filters, of.axes[0].windows), np.float32)
    out = np.zeros(of.output_shape, np.float32)
    with pytest.raises(NativeError, match="no results"):
        interleave(of._replace(axes=(of.axes[0]._replace(out=99),)), "nchw", 4, y.ctypes.data, out.ctypes.data, 0)
    with pytest.raises(NativeError, match="2, 4 or 8"):
        interleave(of, "nchw", 3, y.ctypes.data, out.ctypes.data, 0)
    with pytest.raises(NativeError, match="NULL"):
        interleave(of, "nchw", 4, 0, out.ctypes.data, 0)


def test_results_go_to_out_and_residuals_are_added():
    rng = np.random.default_rng(2)
    for name, size, taps in (("conv1d", (20,), (3,)), ("conv3d", (4, 5, 6), (3, 1, 2)), ("conv3d", (1, 5, 6), (1, 3, 3))):
        x, w = rng.standard_normal((1, 4, *size)).astype(np.float32), rng.standard_normal((4, 4, *taps)).astype(np.float32)
        plain = getattr(pysim, name)(x, w)
        out = np.empty_like(plain)
        assert getattr(pysim, name)(x, w, residual=plain, activation="relu", out=out) is out
        assert np.allclose(out, np.maximum(2 * plain, 0), atol=1e-5)


@pytest.mark.parametrize("kind", ["numpy", "torch", "bfloat16"])
@pytest.mark.parametrize(("taps", "dilation", "groups"), [(1, 1, 2), (3, 2, 1), (4, 1, 8), (9, 1, 8), (7, 3, 4)])
def test_a_sequence_in_pieces_is_the_causal_convolution_of_all(kind, taps, dilation, groups):
    rng, most = np.random.default_rng(taps), dilation * (taps - 1)
    x, w, bias = (torch.from_numpy(rng.standard_normal(shape).astype(np.float32)) for shape in ((2, 8, 60), (8, 8 // groups, taps), (8,)))
    if kind == "bfloat16":
        x, w = x.bfloat16(), w.bfloat16()
    want = torch.nn.functional.conv1d(torch.nn.functional.pad(x.double(), (most, 0)), w.double(), bias.double(), 1, 0, dilation, groups)
    operands = [one.numpy() if kind == "numpy" else one for one in (w, bias)]
    state, found, at = None, [], 0
    for length in (1, 2, 30, 1, 6, 20):
        piece = x[..., at : at + length]
        y, state = pysim.conv1d_stream(piece.numpy() if kind == "numpy" else piece, *operands, state, dilation, groups, activation="relu")
        found.append(torch.as_tensor(y))
        at += length
        seen = torch.nn.functional.pad(x[..., :at].float(), (most, 0))
        assert torch.equal(torch.as_tensor(state).float(), seen[..., seen.shape[-1] - most :])
        assert type(state) is (np.ndarray if kind == "numpy" else torch.Tensor) and str(state.dtype) == str(
            w.numpy().dtype if kind == "numpy" else x.dtype
        )
    assert (torch.cat(found, -1) - want.relu()).abs().max() < 1e-4


@pytest.mark.parametrize("channels_last", [False, True])
def test_columns_on_a_device_lie_as_the_sequence(channels_last):
    """By PyTorch on the CPU, which moves elements as on a device."""
    x, state = torch.arange(2 * 5 * 6.0).view(2, 5, 6), -torch.arange(2 * 5 * 3.0).view(2, 5, 3)
    x = x.transpose(1, 2).contiguous().transpose(1, 2) if channels_last else x
    for past, both in ((state, torch.cat([state, x], 2)), (None, torch.nn.functional.pad(x, (3, 0)))):
        for first, count in ((0, 6), (6, 3), (2, 3), (5, 1)):
            got = _columns(x, past, 3, range(first, first + count), channels_last)
            assert torch.equal(got, both[..., first : first + count])
            assert got.transpose(1, 2).is_contiguous() if channels_last else got.is_contiguous()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x, w: pysim.conv3d(x[..., 0], w), "x must be"),
        (lambda x, w: pysim.conv1d_stream(x[..., 0, 0], w[..., 0, 0], state=x[:, :, :1, 0, 0]), "state has shape"),
        (lambda x, w: pysim.conv1d_stream(x[..., 0, 0], w[..., 0, 0], state=x[:, :, :2, 0, 0].astype("d")), "state is float64"),
        (lambda x, w: pysim.conv1d_stream(x[..., 0, 0], w[..., 0, 0], out=x), "takes none"),
        (lambda x, w: pysim.conv3d(x, w, padding=(1, 2)), "(depth, height, width) or (front"),
        (lambda x, w: pysim.conv_transpose3d(x, w, output_padding=1), "output_padding is 1"),
        (lambda x, w: pysim.conv_transpose3d(x[:, :1], w), "w takes 2 channels"),
        (lambda x, w: pysim.conv_transpose3d(x, w, padding=9), "leaves no output"),
        (lambda x, w: pysim.conv_transpose3d(x, w, out=x), "takes none"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(call, says):
    x, w = np.ones((1, 2, 4, 4, 4), np.float32), np.ones((2, 2, 3, 3, 3), np.float32)
    with pytest.raises((OperandError, ProblemError)) as caught:
        call(x, w)
    assert says in str(caught.value)
