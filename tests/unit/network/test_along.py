# SPDX-License-Identifier: Apache-2.0
"""Native operators along an axis, of halves and samples, and recurrent steps are what NumPy's forms of them compute, NaN and infinity
included; results and operands end where pages begin that nobody may touch."""

import numpy as np
import pytest
from graphs import helper
from guarded import guarded
from native_library import native

from pysim.network.native_ops.along import SEVERAL
from pysim.network.numpy_ops.grid_sample import grid_sample
from pysim.network.numpy_ops.recurrent import recurrent
from pysim.network.numpy_ops.selecting import cum_sum, top_k
from pysim.runtime.along_steps import FOLDS, Axis, best_step, fold_step, halves_step, packed_panels, sample_step

pytestmark = native
SHAPES = [(1, 1, 1), (3, 7, 1), (40, 16, 1), (2, 33, 1), (1, 4099, 1), (2, 5, 3), (2, 9, 70), (1, 130, 17), (1, 3, 16)]
NUMPY = {"Sum": np.sum, "Mean": np.mean, "Prod": np.prod, "Max": np.max, "Min": np.min, "ArgMax": np.argmax, "ArgMin": np.argmin}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", [kind for kind in FOLDS if kind != "CumSum"])
def test_a_fold_is_numpys(kind, dtype):
    rng = np.random.default_rng(1)
    for shape in SHAPES:
        for strange in ((), (np.nan,), (np.inf,), (-np.inf,), (np.nan, np.inf, np.nan)):
            x = (
                rng.integers(-8, 9, shape).astype(dtype)
                if kind != "Prod"
                else rng.choice([-1.0, 1.0, 2.0], shape, p=[0.4, 0.55, 0.05]).astype(dtype)
            )
            x.reshape(-1)[rng.integers(0, x.size, len(strange))] = strange
            for last in (False, True) if kind.startswith("Arg") else (False,):
                out = guarded(np.empty((shape[0], shape[2]), np.int64 if kind.startswith("Arg") else dtype))
                fold_step(out, guarded(x), Axis(*shape), kind, last=last)()
                with np.errstate(all="ignore"):
                    right = NUMPY[kind](x[:, ::-1] if last else x, axis=1)
                right = shape[1] - 1 - right if last else right
                if kind == "Mean":
                    assert np.allclose(out, right, rtol=4 * np.finfo(dtype).eps, atol=0, equal_nan=True)
                else:
                    assert np.array_equal(out, right, equal_nan=True), (shape, strange, last)


def test_a_sum_of_a_million_floats_loses_no_digits():
    x = np.random.default_rng(0).random((1, 1 << 20)).astype(np.float32)
    out = np.empty(1, np.float32)
    fold_step(out, x, Axis(1, x.size, 1), "Sum")()
    assert abs(out[0] / x.astype(np.float64).sum() - 1) < 3e-7


@pytest.mark.parametrize("flags", range(4))
def test_running_sums_have_numpys_bits(flags):
    rng = np.random.default_rng(2)
    for shape in SHAPES:
        x, out = rng.standard_normal(shape).astype(np.float32), guarded(np.empty(shape, np.float32))
        about = {"exclusive": flags % 2, "reverse": flags // 2}
        fold_step(out, guarded(x), Axis(*shape), "CumSum", exclusive=bool(flags % 2), backward=bool(flags // 2))()
        assert np.array_equal(out, cum_sum([x, np.int64(1)], about))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_best_are_in_order_and_the_first_of_equal_ones(dtype):
    rng = np.random.default_rng(3)
    for rows, size, count in ((1, 1, 1), (3, 31, 4), (2, 33, 33), (2, 1000, 5), (1, 700, 256)):
        for of in (rng.integers(-9, 9, (rows, size)), rng.standard_normal((rows, size)), np.arange(rows * size).reshape(rows, size)):
            x = of.astype(dtype)
            x.reshape(-1)[rng.integers(0, x.size, 2)] = rng.choice([np.nan, np.inf, -np.inf], 2)
            for largest in (True, False):
                values, places = guarded(np.empty((rows, count), dtype)), guarded(np.empty((rows, count), np.int64))
                best_step(values, places, guarded(x), largest)()
                wanted = top_k(x, count, 1, largest)
                assert np.array_equal(values, wanted[0], equal_nan=True) and np.array_equal(places, wanted[1])


def same_bits(a, b):
    """Of all numbers; of a NaN only that it is one."""
    bits = f"u{a.dtype.itemsize}"
    return (np.isnan(a) == np.isnan(b)).all() and (np.where(np.isnan(a), 0, a.view(bits)) == np.where(np.isnan(b), 0, b.view(bits))).all()


def test_every_half_is_its_float_and_every_float_its_nearest_half():
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    wide = guarded(np.empty(halves.size - 3, np.float32))
    halves_step(wide, guarded(halves[3:]))()
    assert same_bits(wide, halves[3:].astype(np.float32))
    numbers = halves.astype(np.float32).view(np.uint32).astype(np.int64)  # and what lies beside and in the middle of two of them
    bits = (numbers[:, None] + np.array([-4097, -4096, -4095, -1, 0, 1, 4095, 4096, 4097])).reshape(-1)
    floats = np.concatenate([bits.astype(np.uint32), np.random.default_rng(4).integers(0, 1 << 32, 99999, np.uint32)]).view(np.float32)
    narrow = guarded(np.empty(floats.size, np.float16))
    halves_step(narrow, guarded(floats))()
    with np.errstate(all="ignore"):
        assert same_bits(narrow, floats.astype(np.float16))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("mode", [b"linear", b"nearest"])
def test_samples_are_numpys_wherever_the_points_are(mode, dtype):
    rng = np.random.default_rng(5)
    for images, channels, height, width, rows, columns in ((1, 1, 1, 1, 2, 3), (2, 3, 5, 4, 7, 6), (1, 5, 9, 17, 20, 19)):
        x = rng.standard_normal((images, channels, height, width)).astype(dtype)
        grid = (rng.standard_normal((images, rows, columns, 2)) * 2).astype(dtype)
        grid.reshape(-1)[:6] = -1, 1, np.nan, 1e30, -np.inf, 0.25
        for padding in (b"zeros", b"border", b"reflection"):
            for aligned in (False, True):
                out = guarded(np.empty((images, channels, rows, columns), dtype))
                sample_step(out, guarded(x), guarded(grid), mode == b"nearest", padding, aligned)()
                about = {"mode": mode, "padding_mode": padding, "align_corners": int(aligned)}
                with np.errstate(all="ignore"):
                    right = grid_sample([x, np.where(np.isfinite(grid), grid, 0)], about)
                finite = np.isfinite(grid).all(axis=-1)[:, None] & np.ones_like(out, bool)
                assert np.abs(out - right)[finite].max(initial=0) <= 64 * np.finfo(dtype).eps


def test_a_sample_beside_the_image_does_not_read_its_edge():
    x = np.full((1, 1, 2, 2), np.inf, np.float32)
    out, grid = np.empty((1, 1, 1, 1), np.float32), np.full((1, 1, 1, 2), 5, np.float32)
    sample_step(out, x, grid, False, b"zeros", False)()
    assert out.item() == 0


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("both", [False, True])
def test_recurrent_steps_are_numpys(op, both):
    rng, gates = np.random.default_rng(6), {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    for seed, (steps, batch, hidden) in enumerate([(1, 1, 1), (5, 1, 33), (3, 2, 16), (4, 7, 5), (2, 9, 64)]):
        dtype, separate, layout = [np.float32, np.float64][seed % 2], bool(seed % 3), seed % 2
        count, inputs = 1 + both, 3
        x, w = rng.standard_normal((steps, batch, inputs)), rng.standard_normal((count, gates * hidden, inputs))
        r, b = rng.standard_normal((count, gates * hidden, hidden)) / 4, rng.standard_normal((count, 2 * gates * hidden))
        states = [rng.standard_normal((count, batch, hidden)) for _ in range(1 + (op == "LSTM"))]
        x, w, r, b, *states = (one.astype(dtype) for one in (x, w, r, b, *states))
        how = {"hidden_size": hidden, "direction": "bidirectional" if both else "forward"} | (
            {"linear_before_reset": int(separate)} if op == "GRU" else {}
        )
        node = helper.make_node(op, ["x", "w", "r", "b", "", *("hc"[: len(states)])], ["y", "h", "c"][: 1 + len(states)], **how)
        wanted = recurrent(node, 17)([x, w, r, b, *states])
        of_input, of_state = b.reshape(count, 2, -1).swapaxes(0, 1).copy()
        kept = None
        if op == "GRU" and separate:
            kept = of_state[:, 2 * hidden :].copy()
            of_state[:, 2 * hidden :] = 0
        sums = np.concatenate([x @ w[at].T + of_input[at] + of_state[at] for at in range(count)], axis=-1).astype(dtype)
        packed = np.stack([packed_panels(one.reshape(gates, hidden, hidden).transpose(0, 2, 1)) for one in r])
        given = [
            sums.transpose(1, 0, 2).copy() if layout else sums,
            packed,
            kept,
            *(one.swapaxes(0, 1).copy() if layout else one for one in states),
        ]
        outs = [np.full(one.shape, np.nan, dtype) for one in wanted]
        if layout:
            outs = [outs[0].transpose(2, 0, 1, 3).copy(), *(one.swapaxes(0, 1).copy() for one in outs[1:])]
        given, outs = (
            [None if one is None else guarded(one) for one in several] + [None] * (5 - len(several)) for several in (given, outs)
        )
        about = {"op": op, "hidden": hidden, "backward": (False, True)[:count], "batch_first": bool(layout), "separate": kept is not None}
        SEVERAL["Recurrent"](outs[:3], given, about)()
        for found, right in zip(outs, wanted, strict=False):
            seen = found if not layout else found.transpose(1, 2, 0, 3) if found.ndim == 4 else found.swapaxes(0, 1)
            assert np.abs(seen - right).max() < (2e-6 if dtype == np.float32 else 1e-12)
