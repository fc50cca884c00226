# SPDX-License-Identifier: Apache-2.0
"""Native operators on arrays of any shape are NumPy's, element by element, and touch nothing behind their arrays; misuse is refused."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from checkout import NATIVE
from guarded import guarded
from native_library import native
from scipy import special

from pysim import planner
from pysim.calibration import host
from pysim.errors import NativeError
from pysim.record.plan import on_cpu
from pysim.runtime import cpu
from pysim.runtime.array_steps import Local, Products, pair_step, rows_step, take_step

pytestmark = native

FUNCTIONS = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}
STRANGE = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-30, 1e30])


def numbers(rng, shape, dtype, strange=0.0):
    x = rng.standard_normal(shape)
    at = rng.random(shape) < strange
    x[at] = rng.choice(STRANGE, int(at.sum()))
    return x.astype(dtype)


def same(found, wanted):
    return bool(((found == wanted) | (np.isnan(found) & np.isnan(wanted))).all())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(40))
def test_a_pair_is_broadcast_as_numpy_does(seed, dtype):
    """Of any strides, with what is not finite, and with what follows."""
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 6))
    shape = tuple(int(n) for n in rng.integers(1, 60 if rank < 3 else 9, rank))
    operands = []
    for _ in range(2):
        own = tuple(1 if rng.random() < 0.3 else size for size in shape)[int(rng.integers(0, rank)) if rng.random() < 0.3 else 0 :]
        order = rng.permutation(len(own))
        x = guarded(numbers(rng, [own[at] for at in order], dtype, 0.05))
        operands.append(x.transpose(np.argsort(order)))
    whole = np.broadcast_shapes(*(x.shape for x in operands))
    for kind, function in FUNCTIONS.items():
        out = guarded(np.full(whole, 7, dtype))
        with np.errstate(all="ignore"):
            wanted = function(*operands)
        pair_step(out, *operands, kind)()
        assert same(out, wanted)
        pair_step(out, *operands, kind, "relu")()
        assert same(out, np.where(wanted < 0, 0, wanted))


def test_a_pair_in_the_place_of_an_operand_gives_what_it_gives_elsewhere():
    rng = np.random.default_rng(0)
    for shape in ((5, 1), (5, 7), (1,), (3, 5, 7)):
        a, b = rng.standard_normal((3, 5, 7)).astype(np.float32), rng.standard_normal(shape).astype(np.float32)
        for kind, function in FUNCTIONS.items():
            x = a.copy()
            pair_step(x, x, b, kind)()
            assert (x == function(a, b)).all()
            x = a.copy()
            pair_step(x, b, x, kind)()
            assert (x == function(b, a)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_are_softmax_layer_norm_and_length(dtype):
    rng, unit = np.random.default_rng(1), np.finfo(dtype).eps
    for size in (*range(1, 40), 64, 197, 1000):
        x = guarded(3 * rng.standard_normal((3, size)).astype(dtype) + dtype(1.5))
        scale, shift = (guarded(rng.standard_normal(size).astype(dtype)) for _ in range(2))
        out, wide = guarded(np.full(x.shape, np.nan, dtype)), x.astype(np.float64)
        rows_step(out, x, "softmax")()
        right = special.softmax(wide, axis=1)
        assert np.abs(out - right).max() <= 20 * unit * right.max() and np.abs(out.sum(1, dtype=np.float64) - 1).max() <= 8 * unit
        standard = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
        for factors in ((), (scale,), (scale, shift)):
            rows_step(out, x, "standard", *factors, epsilon=1e-5)()
            right = standard * (factors[0] if factors else 1) + (factors[1] if len(factors) > 1 else 0)
            if size > 1:
                assert np.abs(out - right).max() <= 200 * unit * np.abs(right).max()
        lengths = guarded(np.full(3, np.nan, dtype))
        rows_step(lengths, x, "length")()
        assert np.abs(lengths / np.linalg.norm(wide, axis=1) - 1).max() <= 8 * unit
        kept = x.copy()
        rows_step(out, x, "softmax")()
        rows_step(kept, kept, "softmax")()
        assert (kept == out).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(2, 5, 3), (1, 7, 16), (3, 21, 37), (2, 1, 40), (1, 3, 2500)], ids=str)
def test_rows_beside_each_other_are_softmax_and_local(shape, dtype):
    rng, unit = np.random.default_rng(3), np.finfo(dtype).eps
    x = guarded(3 * rng.standard_normal(shape).astype(dtype))
    out, wide = guarded(np.full(shape, np.nan, dtype)), x.astype(np.float64)
    rows_step(out, x, "softmax", axis=1)()
    assert np.abs(out - special.softmax(wide, axis=1)).max() <= 20 * unit
    for window, beta in ((1, 0.75), (2, 0.5), (5, 0.75), (50, -1.3)):
        before = (window - 1) // 2
        sums = np.stack([np.square(wide[:, max(0, i - before) : i + window // 2 + 1]).sum(1) for i in range(shape[1])], 1)
        right = wide * (1.5 + 0.3 * sums) ** -beta
        rows_step(out, x, "local", epsilon=1.5, axis=1, local=Local(window, 0.3, beta))()
        assert np.abs(out - right).max() <= 40 * unit * np.abs(right).max()


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("beside", [1, 3, 16, 49, 64, 100, 200])
@pytest.mark.parametrize("factors", [0, 1, 2])
def test_layer_norms_of_rows_beside_each_other(kind, beside, factors):
    rng = np.random.default_rng(beside)
    for size in (1, 7, 40, 130):
        x, of = guarded((rng.standard_normal((2, size, beside)) * 3 + 5).astype(kind)), rng.standard_normal((2, size)).astype(kind)
        out, scale, shift = guarded(np.empty_like(x)), *(one if at < factors else None for at, one in enumerate(of))
        rows_step(out, x, "standard", scale, shift, 1e-5, axis=1)()
        wide = x.astype(np.float64)
        wanted = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
        wanted = wanted * (1 if scale is None else scale[:, None]) + (0 if shift is None else shift[:, None])
        assert np.abs(out - wanted).max() <= (2e-5 if kind == np.float32 else 1e-12) * max(1, np.abs(wanted).max())
        rows_step(x, x, "standard", scale, shift, 1e-5, axis=1)()
        assert (x == out).all()


def test_rows_that_are_not_finite_are_numpys():
    """Minus infinity is no probability; a NaN, an infinity and nothing but minus infinity make a row that is none."""
    row = np.linspace(-3, 3, 21, dtype=np.float32)
    x = np.stack([row] * 6)
    x[1, 4], x[2, 7], x[3, 20], x[4, :], x[5, 1:] = -np.inf, np.nan, np.inf, -np.inf, -np.inf
    out = np.empty_like(x)
    rows_step(out, x, "softmax")()
    assert out[1, 4] == 0 and np.isfinite(out[:2]).all() and np.isnan(out[2]).all() and np.isnan(out[3, 20]) and np.isnan(out[4]).all()
    assert out[5].tolist() == [1.0] + [0.0] * 20
    for kind in ("standard", "length"):
        found = np.empty_like(x) if kind == "standard" else np.empty(6, np.float32)
        rows_step(found, x, kind)()
        assert np.isfinite(found[0]).all() and not np.isfinite(found[1:]).reshape(5, -1).all(1).any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(7,), (5, 7), (3, 5, 70), (2, 3, 4, 5)], ids=str)
def test_rows_of_a_table_are_taken_along_any_axis(shape, dtype):
    rng = np.random.default_rng(2)
    x = guarded(numbers(rng, shape, dtype, 0.1))
    for axis, size in enumerate(shape):
        at = guarded(rng.integers(-size, size, 11))
        wanted = x.take(at, axis)
        out = guarded(np.full(wanted.shape, 7, dtype))
        take_step(out, x, at, axis)()
        assert same(out, wanted)
        for taps in (1, 2, 3, 4):
            rows, shares = guarded(rng.integers(-size, size, (taps, 9))), guarded(rng.random((taps, 9)).astype(dtype))
            weights = shares.reshape(taps, -1, *[1] * (len(shape) - 1 - axis))
            with np.errstate(invalid="ignore"):
                wanted = sum(weights[tap] * x.take(rows[tap], axis) for tap in range(taps))
            out = guarded(np.full(wanted.shape, 7, dtype))
            take_step(out, x, rows, axis, shares)()
            assert np.allclose(out, wanted, rtol=1e-5 if dtype == np.float32 else 1e-13, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("seed", range(30))
def test_many_products_are_matmul(seed):
    """Of operands that are transposed, spread over axes that they lack, and of results whose rows lie apart."""
    rng = np.random.default_rng(seed)
    dtype = np.float32 if seed % 2 else np.float64
    batch = tuple(int(n) for n in rng.integers(1, 4, int(rng.integers(0, 4))))
    m, n, k = (int(n) for n in rng.integers(1, 40, 3))
    operands = []
    for rows, columns in ((m, k), (k, n)):
        own = tuple(1 if rng.random() < 0.3 else size for size in batch)
        transposed = rng.random() < 0.5
        x = guarded(rng.standard_normal((*own, columns, rows) if transposed else (*own, rows, columns)).astype(dtype))
        operands.append(x.swapaxes(-1, -2) if transposed else x)
    out = guarded(np.full((m, *batch, n), np.nan, dtype)).transpose(*range(1, len(batch) + 1), 0, len(batch) + 1)
    products = Products(out, *operands)
    schedule = on_cpu(planner.plan(products.workload, host.runnable("host")))[0]
    workspace = cpu.aligned(products.workspace_bytes(schedule, 2) + 64, np.uint8)
    products.step(schedule, 2, workspace, alpha=0.5)()
    wide = [np.abs(x.astype(np.float64)) for x in operands]
    wanted = 0.5 * np.matmul(*(x.astype(np.float64) for x in operands))
    assert (np.abs(out - wanted) <= (k + 2) * np.finfo(dtype).eps * np.matmul(*wide)).all()


def test_products_whose_matrices_have_no_dense_rows_are_not_for_the_kernels():
    x = np.zeros((4, 6, 8), np.float32)
    assert Products(np.zeros((4, 3, 4), np.float32), x[:, ::2, ::2], np.zeros((4, 4), np.float32)).workload is None
    assert Products(np.zeros((4, 6, 5), np.float32), x, np.zeros((8, 5), np.float32)).count == 4
    assert Products(np.zeros((4, 6, 5)), x, np.zeros((8, 5), np.float32)).workload is None


def refused(step, message, **fields):
    how = cpu.library()[0].cast(f"pysim_{fields.pop('of')} *", step.struct.of)
    for name, value in fields.items():
        if isinstance(value, list):
            getattr(how, name)[0] = value[0]
        else:
            setattr(how, name, value)
    with pytest.raises(NativeError, match=message):
        step()


def test_what_is_no_pair_no_rows_and_no_table_is_refused_before_anything_is_written():
    x, y = (np.ones((4, 8), np.float32) for _ in range(2))
    at, kept = np.array([0, 3]), y.copy()
    for message, fields in (("1 to 6", {"axes": 7}), ("kind is 5", {"kind": 5}), ("at least 1", {"sizes": [0]}),
                         ("int64", {"sizes": [1 << 62]}), ("at least 0", {"a_steps": [-1]}), ("f32 and f64", {"dtype": 4})):  # fmt: skip
        refused(pair_step(y, x, x, "Add"), message, of="pair", **fields)
    for message, fields in (("kind of rows is 5", {"kind": 5}), ("epsilon", {"epsilon": float("nan")}), ("at least 1", {"size": 0}),
                         ("int64", {"rows": 1 << 62}), ("local rows", {"kind": 3}), ("one by one", {"kind": 2, "inner": 2})):  # fmt: skip
        refused(rows_step(y, x, "softmax"), message, of="rows", **fields)
    out = np.ones((2, 8), np.float32)
    for message, fields in (
        ("at least 1", {"outer": 0}),
        ("int64", {"inner": 1 << 60}),
        ("there are 3 rows", {"size": 3}),
        ("no shares", {"taps": 2}),
    ):
        refused(take_step(out, x, at, 0), message, of="take", **fields)
    assert (y == kept).all() and (out == 1).all()
    for step in (pair_step(x[1:], x[:3], x[:3], "Add"), rows_step(x[1:], x[:3], "softmax"), take_step(x[:2], x, at, 0)):
        with pytest.raises(NativeError, match="overlaps"):
            step()
    assert pair_step(y[:, ::2], x[:, ::2], x[:, ::2], "Add") is None and rows_step(y, x.astype(np.float64), "softmax") is None
    assert take_step(out, x, at.astype(np.int32), 0) is None


def test_products_are_refused_before_anything_is_written():
    a, b, out = (np.ones((2, 4, 4), np.float32) for _ in range(3))
    products = Products(out, a, b)
    schedule = on_cpu(planner.plan(products.workload, host.runnable("host")))[0]
    workspace = cpu.aligned(products.workspace_bytes(schedule, 1) + 64, np.uint8)
    for message, fields in (("0 to 4", {"axes": 5}), ("at least 1", {"counts": [0]}), ("at least 0", {"b_steps": [-1]}),
                         ("at least 1", {"c_steps": [0]}), ("int64", {"counts": [1 << 62]})):  # fmt: skip
        refused(products.step(schedule, 1, workspace), message, of="products", **fields)
    assert (out == 1).all()


# Other targets than the one that is taken here


class Loops(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_void_p) for name in ("rescale", "finish", "rounded", "shifted", "map", "pool", "pair", "rows", "take", "turn")
    ]


class Finish(ctypes.Structure):
    _fields_ = [("loops", ctypes.c_void_p), ("result", ctypes.c_void_p), ("residual", ctypes.c_void_p), ("activation", ctypes.c_int32),
                ("low", ctypes.c_double), ("high", ctypes.c_double)]  # fmt: skip


@pytest.mark.skipif(not shutil.which("gcc"), reason="compiles the loops for other targets: needs gcc")
@pytest.mark.parametrize("target", ["portable", "avx2"])
def test_other_targets_compute_the_same(tmp_path, target):
    if target == "avx2" and "avx2" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this CPU has no AVX2")
    source, vectors = NATIVE / "templates" / "loops.c", "portable/vec_f32.h" if target == "portable" else "x86/vectors/vec_avx2_f32.h"
    flags = [f'-DVECTORS="{vectors}"', *(["-mavx2", "-mfma"] if target == "avx2" else [])]
    made = tmp_path / "loops.so"
    subprocess.run(["gcc", "-std=gnu11", "-Og", "-fPIC", "-shared", *flags, f"-I{NATIVE}", str(source), "-lm", "-o", str(made)], check=True)
    loops = Loops.in_dll(ctypes.CDLL(str(made)), f"pysim_loops_f32__{target}")
    ffi, rng = cpu.library()[0], np.random.default_rng(5)

    def call(name, step, *more):
        pointers = [int(ffi.cast("uintptr_t", one)) for one in (step.struct.of, *more)]
        ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(pointers))(getattr(loops, name))(*pointers)

    finish = Finish(None, None, None, 0, 0, 0)
    for size in (1, 3, 4, 5, 8, 9, 23, 100):
        x, out = guarded(numbers(rng, (4, size), np.float32, 0.05)), guarded(np.zeros((4, size), np.float32))
        wanted = np.zeros_like(out)
        for kind in FUNCTIONS:
            for other in (x, guarded(x[:, :1]), guarded(x[:1])):
                step, of = pair_step(out, x, other, kind), pair_step(wanted, x, other, kind)
                of()
                call("pair", step, ffi.cast("void *", ctypes.addressof(finish)), step.struct.first, step.struct.second, step.struct.result)
                assert same(out, wanted)
        for kind in ("softmax", "standard", "length"):
            result, right = (np.zeros(4 if kind == "length" else (4, size), np.float32) for _ in range(2))
            step = rows_step(result, x, kind, epsilon=1e-3)
            rows_step(right, x, kind, epsilon=1e-3)()
            call("rows", step, step.struct.first, step.struct.second, step.struct.third, step.struct.result)
            assert np.allclose(result, right, rtol=1e-5, atol=1e-6, equal_nan=True)
        result = guarded(np.zeros((size, 4), np.float32))
        turn = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p, ctypes.c_int64)(loops.turn)
        turn(x.ctypes.data, size, size, 4, result.ctypes.data, 4)
        assert same(result, x.T)
        at, shares = np.array([[0, 2, -1], [1, 3, -4]]), np.array([0.25, 0.5, 1], np.float32)
        result, right = (np.zeros((3, size), np.float32) for _ in range(2))
        for requested in ((at[0].copy(), 0), (at, 0, shares)):
            step = take_step(result, x, *requested)
            take_step(right, x, *requested)()
            call("take", step, step.struct.first, step.struct.second, step.struct.third, step.struct.result)
            assert np.allclose(result, right, rtol=1e-6, atol=1e-6, equal_nan=True)
