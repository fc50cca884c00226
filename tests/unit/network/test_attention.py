# SPDX-License-Identifier: Apache-2.0
"""Attention in blocks of keys is that of a whole matrix of scores, element by element, and touches nothing behind its arrays."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from guarded import guarded
from native_library import native
from onnx import helper

import pysim
from pysim.calibration import host
from pysim.errors import NativeError
from pysim.network.halves.narrow import computes_narrow
from pysim.runtime.attention import attention_step
from pysim.runtime.integer_steps import Quantity

pytestmark = native


def definition(q, k, v, mask, alpha, zero_rows):
    with np.errstate(all="ignore"):
        scores = alpha * (q.astype(np.float64) @ k.astype(np.float64))
        scores = scores if mask is None else scores + mask
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        return np.where(np.isnan(shares), 0, shares) @ v if zero_rows else shares @ v


def near(found, wanted, dtype):
    unit = 2.0**-24 if dtype == np.float32 else 2.0**-53
    return bool(((np.abs(found - wanted) <= 400 * unit) | (np.isnan(found) & np.isnan(wanted))).all())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(30))
def test_attention_is_its_definition_whatever_the_shapes_and_strides(seed, dtype):
    rng = np.random.default_rng(seed)
    heads = tuple(int(n) for n in rng.integers(1, 4, int(rng.integers(0, 3))))
    rows, keys, size, width = (int(n) for n in rng.choice([1, 2, 5, 6, 7, 16, 31, 49, 64, 65, 130, 400], 4))
    size, width = min(size, 70), min(width, 70)

    def made(*shape, by_columns=False):
        x = rng.standard_normal((*heads, *shape)).astype(dtype)
        return guarded(np.ascontiguousarray(x.swapaxes(-1, -2))).swapaxes(-1, -2) if by_columns else guarded(x)

    q, k, v = made(rows, size), made(size, keys, by_columns=bool(rng.integers(2))), made(keys, width)
    mask = [None, made(rows, keys), made(1, keys)][int(rng.integers(3))]
    if mask is not None and rng.integers(2):
        mask[...] = np.where(mask > 0.5, -np.inf, 0)
        mask[..., 0, :] = -np.inf  # all masked
    out = guarded(np.full((*heads, rows, width), 7, dtype))
    for zero_rows in (False, True):
        attention_step(out, q, k, v, mask, 0.3, zero_rows)()
        assert near(out, definition(q, k, v, mask, 0.3, zero_rows), dtype), (heads, rows, keys, size, width)


@pytest.mark.parametrize("seed", range(60))
def test_attention_of_bf16_rounds_operands_and_shares_once(seed):
    if not computes_narrow(host.runnable("host")):
        pytest.skip("no kernels of bf16")
    rng = np.random.default_rng(seed)
    heads = tuple(int(n) for n in rng.integers(1, 4, int(rng.integers(0, 3))))
    rows, keys, size, width = (int(n) for n in rng.choice([1, 2, 5, 6, 7, 16, 31, 33, 64, 65, 130, 400], 4))
    size, width = min(size, 70), min(width, 70)
    q, k, v = (rng.standard_normal((*heads, *shape)).astype(np.float32) for shape in ((rows, size), (size, keys), (keys, width)))
    q, k, v = guarded(q), guarded(np.ascontiguousarray(k.swapaxes(-1, -2))).swapaxes(-1, -2) if seed % 2 else guarded(k), guarded(v)
    mask = guarded(np.where(rng.random((rows, keys)) > 0.7, -np.inf, 0).astype(np.float32)) if seed % 3 else None
    if mask is not None:
        mask[0] = -np.inf
    out = guarded(np.full((*heads, rows, width), 7, np.float32))
    for zero_rows in (False, True):
        attention_step(out, q, k, v, mask, 0.3, zero_rows, narrow=True)()
        of = [x.astype(ml_dtypes.bfloat16).astype(np.float32) for x in (q, k, v)]
        wanted, scale = definition(*of, mask, 0.3, zero_rows), definition(*of[:2], np.abs(of[2]), mask, 0.3, zero_rows)
        within = np.abs(out - wanted) <= 2.0**-8 * scale + 1e-6  # each share by at most 2^-9 of it, and so their sum
        assert (within | (np.isnan(out) & np.isnan(wanted))).all(), (heads, rows, keys, size, width)


@pytest.mark.parametrize("rows", [1, 97, 197, 500])
@pytest.mark.parametrize("threads", [2, 3, 7])
def test_threads_do_not_change_a_bit(rows, threads):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((3, size, 32)).astype(np.float32) for size in (rows, 500, 500))
    alone, together = np.empty_like(q), np.empty_like(q)
    attention_step(alone, q, k.swapaxes(1, 2), v)()
    step = attention_step(together, q, k.swapaxes(1, 2), v)
    step.on_threads(threads)
    step()
    assert (alone == together).all()


@pytest.mark.parametrize("seed", range(24))
def test_queries_and_keys_of_bytes_are_their_numbers(seed):
    rng = np.random.default_rng(seed)
    heads, (rows, keys), (size, width) = tuple(rng.integers(1, 4, rng.integers(3))), rng.integers(1, 200, 2), rng.integers(1, 90, 2)
    of = [
        Quantity(
            float(np.float32(rng.uniform(0.002, 0.02))), int(rng.integers(*((-128, 128) if kind == "int8" else (0, 256)))), np.dtype(kind)
        )
        for kind in rng.choice(["int8", "uint8"], 2)
    ]
    q, k = (
        guarded(rng.integers(one.least, one.most + 1, (*heads, *shape)).astype(one.dtype))
        for one, shape in zip(of, ((rows, size), (size, keys)), strict=True)
    )
    if rng.integers(2):
        k = guarded(np.ascontiguousarray(k.swapaxes(-1, -2))).swapaxes(-1, -2)
    v, mask = guarded(rng.standard_normal((*heads, keys, width)).astype(np.float32)), None
    if rng.integers(2):
        mask = guarded(np.where(rng.random((rows, keys)) > 0.5, 0, -1).astype(np.float32))
    out = guarded(np.full((*heads, rows, width), 7, np.float32))
    attention_step(out, q, k, v, mask, 0.3, of=tuple(of))()
    numbers = [one.numbers(x).astype(np.float64) for one, x in zip(of, (q, k), strict=True)]
    assert near(out, definition(*numbers, v.astype(np.float64), mask, 0.3, False), np.float32), (heads, rows, keys, size, width)


def test_large_scores_and_nan_are_those_of_a_softmax():
    q, v = np.full((7, 4), 100, np.float32), np.arange(90, dtype=np.float32).reshape(90, 1)
    k = np.zeros((4, 90), np.float32)
    k[:, 80], out = 100, np.empty((7, 1), np.float32)
    attention_step(out, q, k, v)()
    assert (out == 80).all()  # also where the maximum rises by 40,000 in the second block
    k[0, 3] = np.nan
    attention_step(out, q, k, v)()
    assert np.isnan(out).all()
    attention_step(out, q, k, v, zero_rows=True)()
    assert (out == 0).all()


def test_misuse_is_refused():
    q, k, v = (np.ones(shape, np.float32) for shape in ((4, 8), (8, 9), (9, 5)))
    step = attention_step(q[:, :5], q, k, v)
    with pytest.raises(NativeError, match="overlap"):
        step()
    step = attention_step(np.empty((4, 5), np.float32), q, k, v)
    step.struct.workspace_bytes = 64
    with pytest.raises(NativeError, match="workspace has 64 bytes; it needs"):
        step()


def _model(tmp_path, masked, guarded_nan, scale=0.125):
    heads, length, width = 3, 50, 16
    perm = {"perm": [0, 2, 1, 3]}
    nodes = [
        helper.make_node("Transpose", ["q"], ["qt"], **perm),
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 3, 1]),
        helper.make_node("Transpose", ["v"], ["vt"], **perm),
        helper.make_node("Mul", ["qt", "scale"], ["qs"]),
        helper.make_node("MatMul", ["qs", "kt"], ["s"]),
    ]
    last = "s"
    if masked:
        nodes.append(helper.make_node("Add", ["s", "mask"], ["sm"]))
        last = "sm"
    nodes.append(helper.make_node("Softmax", [last], ["p"], axis=-1))
    last = "p"
    if guarded_nan:
        nodes += [helper.make_node("IsNaN", ["p"], ["n"]), helper.make_node("Where", ["n", "zero", "p"], ["pz"])]
        last = "pz"
    nodes += [helper.make_node("MatMul", [last, "vt"], ["o"]), helper.make_node("Transpose", ["o"], ["y"], **perm)]
    value = helper.make_tensor_value_info
    inputs = [value(name, onnx.TensorProto.FLOAT, [1, length, heads, width]) for name in "qkv"]
    inputs += [value("mask", onnx.TensorProto.FLOAT, [1, 1, length, length])] if masked else []
    held = [onnx.numpy_helper.from_array(np.float32(of), name) for name, of in (("scale", scale), ("zero", 0))]
    out = value("y", onnx.TensorProto.FLOAT, [1, length, heads, width])
    path = tmp_path / "attention.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", inputs, [out], held), opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("guarded_nan", [False, True])
def test_attention_of_a_model_is_one_operator(tmp_path, masked, guarded_nan):
    rng = np.random.default_rng(1)
    model = pysim.load(_model(tmp_path, masked, guarded_nan))
    q, k, v = (rng.standard_normal((1, 50, 3, 16)).astype(np.float32) for _ in range(3))
    mask = np.where(rng.random((1, 1, 50, 50)) < 0.3, -np.inf, 0).astype(np.float32)
    mask[..., 4, :] = -np.inf
    y = model(q, k, v, mask) if masked else model(q, k, v)
    heads = (q.transpose(0, 2, 1, 3), k.transpose(0, 2, 3, 1), v.transpose(0, 2, 1, 3))
    wanted = definition(*heads, mask if masked else None, 0.125, guarded_nan).transpose(0, 2, 1, 3)
    assert near(y, wanted, np.float32)
    assert [layer.node.op for layer in model.plan.layers] == ["Attention"]


def test_shares_that_are_also_an_output_stay(tmp_path):
    proto = onnx.load(_model(tmp_path, False, False))
    proto.graph.output.append(helper.make_tensor_value_info("p", onnx.TensorProto.FLOAT, [1, 3, 50, 50]))
    onnx.save(proto, tmp_path / "two.onnx")
    model = pysim.load(tmp_path / "two.onnx")
    assert "Attention" not in [layer.node.op for layer in model.plan.layers]
