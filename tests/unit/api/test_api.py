# SPDX-License-Identifier: Apache-2.0
"""The Python functions: right on every layout of arguments, clear about wrong ones, the same bits whatever the threads."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_gpu import host_device  # noqa: F401
from native_library import native

import pysim
from pysim import api
from pysim.errors import MissingError, NativeError, OperandError
from pysim.problem.text import parse

pytestmark = native

RANDOM = np.random.default_rng(7)


def whole(*shape: int, dtype: Any = np.float32) -> Any:
    """Small integers: any order of summation gives the same bits."""
    return RANDOM.integers(-3, 4, shape).astype(dtype)


def direct(x: Any, w: Any, stride: tuple[int, int], pads: tuple[int, ...], dilation: tuple[int, int], groups: int) -> Any:
    """The definition, one kernel element at a time."""
    top, left, bottom, right = pads
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    m, c, r, s = w.shape
    p = (x.shape[2] - dilation[0] * (r - 1) - 1) // stride[0] + 1
    q = (x.shape[3] - dilation[1] * (s - 1) - 1) // stride[1] + 1
    y = np.zeros((x.shape[0], m, p, q), np.int32 if x.dtype == np.int8 else x.dtype)
    for filter_ in range(m):
        first = filter_ // (m // groups) * c
        for i in range(r):
            for j in range(s):
                rows = slice(i * dilation[0], i * dilation[0] + (p - 1) * stride[0] + 1, stride[0])
                columns = slice(j * dilation[1], j * dilation[1] + (q - 1) * stride[1] + 1, stride[1])
                y[:, filter_] += np.einsum("nchw,c->nhw", x[:, first : first + c, rows, columns], w[filter_, :, i, j], dtype=y.dtype)
    return y


@pytest.mark.parametrize(
    ("shape", "filters", "kernel", "stride", "pads", "dilation", "groups"),
    [
        ((1, 5, 9, 11), 7, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
        ((2, 6, 13, 8), 4, (5, 2), (2, 3), (2, 0, 1, 3), (1, 1), 2),
        ((3, 4, 10, 10), 4, (3, 3), (1, 2), (0, 0, 0, 0), (2, 3), 4),
        ((1, 17, 7, 7), 33, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
        ((1, 3, 30, 31), 65, (7, 7), (2, 2), (3, 3, 3, 3), (1, 1), 1),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8])
def test_conv2d_is_the_definition_bit_for_bit(shape, filters, kernel, stride, pads, dilation, groups, dtype):
    x, w = whole(*shape, dtype=dtype), whole(filters, shape[1] // groups, *kernel, dtype=dtype)
    want = direct(x, w, stride, pads, dilation, groups)
    bias = whole(filters, dtype=want.dtype)
    given = {"stride": stride, "padding": pads, "dilation": dilation, "groups": groups, "accuracy": "ieee"}
    assert np.array_equal(pysim.conv2d(x, w, **given), want)
    want = np.maximum(want + bias[:, None, None], 0)
    for threads in (1, 2, 3):
        assert np.array_equal(pysim.conv2d(x, w, bias, activation="relu", threads=threads, **given), want)


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gemm_is_the_definition_in_all_four_layouts(trans_a, trans_b, dtype):
    m, n, k = 37, 51, 65
    a, b = whole(*((k, m) if trans_a else (m, k)), dtype=dtype), whole(*((n, k) if trans_b else (k, n)), dtype=dtype)
    c, bias = whole(m, n, dtype=dtype), whole(n, dtype=dtype)
    product = (a.T if trans_a else a) @ (b.T if trans_b else b)
    layout = {"trans_a": trans_a, "trans_b": trans_b}
    assert np.array_equal(pysim.gemm(a, b, **layout), product)
    before = c.copy()
    assert np.array_equal(pysim.gemm(a, b, c, alpha=2, beta=-1, bias=bias, **layout), 2 * product - c + bias)
    assert np.array_equal(c, before)
    assert np.array_equal(pysim.gemm(a, b, bias=bias, activation="relu", **layout), np.maximum(product + bias, 0))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_padding_contributes_nothing_to_a_weight_that_is_not_finite(value, dtype):
    x, w = whole(1, 8, 6, 9, dtype=dtype), whole(7, 8, 3, 3, dtype=dtype)
    x[x == 0] = 1  # zero times infinity is NaN in the definition, too
    want = direct(x, w, (1, 1), (1, 1, 1, 1), (1, 1), 1)
    w[2, 5, 0, 1] = value  # the tap above the middle: of the first row of outputs, it lies in the padding
    want[0, 2, 1:] = value * x[0, 5, :-1]
    bias = whole(7, dtype=dtype)
    for threads in (1, 2):
        assert np.array_equal(pysim.conv2d(x, w, padding=1, threads=threads), want, equal_nan=True)
        got = pysim.conv2d(x, w, bias, padding=1, activation="relu", threads=threads)
        assert np.array_equal(got, np.maximum(want + bias[:, None, None], 0), equal_nan=True)


@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_gemm_reads_neither_product_nor_c_where_their_factor_is_zero(trans_b, dtype):
    m, n, k = 37, 51, 65
    a, b, c = whole(m, k, dtype=dtype), whole(*((n, k) if trans_b else (k, n)), dtype=dtype), whole(m, n, dtype=dtype)
    product = a @ (b.T if trans_b else b)
    out = np.full((m, n), np.nan, dtype)
    assert pysim.gemm(a, b, beta=0, trans_b=trans_b, out=out) is out
    assert np.array_equal(out, product)
    a[3, 4], b[5, 6] = np.nan, np.inf
    assert np.array_equal(pysim.gemm(a, b, c, alpha=0, beta=2, trans_b=trans_b), 2 * c)
    assert not pysim.gemm(a, b, alpha=0, trans_b=trans_b).any()


@pytest.mark.parametrize("trans_b", [False, True])
def test_an_int8_product_is_exact_and_wraps_modulo_2_to_the_32(trans_b):
    a = RANDOM.integers(-128, 128, (37, 65), np.int8)
    b = RANDOM.integers(-128, 128, (51, 65) if trans_b else (65, 51), np.int8)
    c, bias = (RANDOM.integers(-(2**31), 2**31, shape, np.int32) for shape in ((37, 51), (51,)))
    product = a.astype(np.int64) @ (b.T if trans_b else b).astype(np.int64)
    assert np.array_equal(pysim.gemm(a, b, trans_b=trans_b), product)
    want = (3 * product - 5 * c.astype(np.int64) + bias).astype(np.int32)
    assert (np.abs(3 * product - 5 * c.astype(np.int64)) > 2**31).any()
    got = pysim.gemm(a, b, c, alpha=3, beta=-5, bias=bias, trans_b=trans_b)
    assert got.dtype == np.int32 and np.array_equal(got, want)
    with pytest.raises(NativeError, match="whole numbers within int32"):
        pysim.gemm(a, b, alpha=0.5, trans_b=trans_b)


def bf16(x):
    """float32 numbers that bf16 holds, as uint16."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    assert not (bits & 0xFFFF).any()
    return (bits >> 16).astype(np.uint16)


def test_bf16_is_taken_as_bits_where_the_problem_says_so_and_gives_f32():
    x, w, bias = whole(2, 6, 9, 7), whole(5, 6, 3, 3), whole(5)
    want = np.maximum(direct(x, w, (1, 1), (1, 1, 1, 1), (1, 1), 1) + bias[:, None, None], 0)
    run = pysim.prepare("conv:mb2ic6ih9iw7oc5kh3ph1pw1:bf16", bf16(w), bias, activation="relu")
    got = run(bf16(x))
    assert got.dtype == np.float32 and np.array_equal(got, want)
    a, b = whole(20, 31), whole(31, 9)
    product = pysim.plan("gemm:20x9x31:bf16")
    assert np.array_equal(product.run(bf16(a), bf16(b)), a @ b)
    assert np.array_equal(pysim.gemm(bf16(a), bf16(b), plan=product), a @ b)
    with pytest.raises(OperandError, match="uint16 is taken for the bits of bf16 only with a plan"):
        pysim.gemm(bf16(a), bf16(b))
    with pytest.raises(OperandError, match="w is float32, but the problem computes in bf16"):
        pysim.prepare("conv:mb2ic6ih9iw7oc5kh3ph1pw1:bf16", w)


def test_arrays_of_ml_dtypes_are_known_by_the_name_of_their_dtype():
    bfloat16 = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed").bfloat16
    x, w = RANDOM.random((1, 6, 9, 9)).astype(bfloat16), RANDOM.random((5, 6, 3, 3)).astype(bfloat16)
    got = pysim.conv2d(x, w, padding=1)
    want = direct(x.astype(np.float64), w.astype(np.float64), (1, 1), (1, 1, 1, 1), (1, 1), 1)
    assert got.dtype == np.float32 and np.allclose(got, want, rtol=54 * 2.0**-24, atol=0)
    assert np.array_equal(pysim.gemm(x[0, 0], x[0, 1].T), pysim.gemm(x[0, 0], x[0, 1], trans_b=True))


def test_a_prepared_convolution_serves_many_calls_and_writes_into_out():
    w = whole(8, 4, 3, 3)
    conv = pysim.prepare("conv:mb1ic4ih9oc8kh3ph1", w)
    out = np.full((1, 8, 9, 9), np.nan, np.float32)
    for _ in range(3):
        x = whole(1, 4, 9, 9)
        assert conv(x, out) is out
        assert np.array_equal(out, direct(x, w, (1, 1), (1, 1, 1, 1), (1, 1), 1))
        assert np.array_equal(conv(x[:, :, ::-1][:, :, ::-1]), out)


def test_a_given_plan_is_the_one_that_runs():
    problem = parse("conv:mb1ic12ih10oc9kh3ph1")
    x, w = whole(1, 12, 10, 10), whole(9, 12, 3, 3)
    want = direct(x, w, (1, 1), (1, 1, 1, 1), (1, 1), 1)
    ranked = pysim.plans(problem, top=8)
    assert len({plan.schedule for plan in ranked}) == len(ranked) == 8
    for plan in ranked:
        assert pysim.prepare(problem, w, plan=plan).schedule == plan.schedule
        assert np.array_equal(pysim.conv2d(x, w, padding=1, plan=plan), want)
        assert np.array_equal(plan.run(x, w), want)


def test_arrays_of_other_libraries_come_back_in_kind():
    class Foreign:
        def __init__(self, array):
            self.array = array

        def __array__(self, dtype=None, copy=None):
            return self.array

    x, w = whole(1, 2, 5, 5), whole(3, 2, 3, 3)
    assert np.array_equal(pysim.conv2d(Foreign(x), Foreign(w)), pysim.conv2d(x, w))
    torch = pytest.importorskip("torch", reason="torch is not installed")
    y = pysim.conv2d(torch.from_numpy(x), torch.from_numpy(w))
    assert isinstance(y, torch.Tensor)
    assert np.array_equal(y.numpy(), pysim.conv2d(x, w))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x, w: pysim.conv2d(x[0], w), r"x must be \[N\]\[C\]\[H\]\[W\]"),
        (lambda x, w: pysim.conv2d(x, w[:, :1]), "w takes 1 channels x 1 groups, but x has 2"),
        (lambda x, w: pysim.conv2d(x, w.astype(np.float64)), "float32 and float64"),
        (lambda x, w: pysim.conv2d(x.astype(np.int32), w.astype(np.int32)), "int32"),
        (lambda x, w: pysim.conv2d(x, w, stride=(1, 2, 3)), "stride is"),
        (lambda x, w: pysim.conv2d(x, w, bias=np.zeros(4, np.float32)), "bias has shape"),
        (lambda x, w: pysim.conv2d(x, w, activation="swish"), 'activation "swish"'),
        (lambda x, w: pysim.conv2d(x, w, out=np.zeros((1, 3, 3, 3))), "out is float64 of shape"),
        (lambda x, w: pysim.conv2d(np.ma.masked_less(x, 0), w), r"expected x\.filled\(0\)"),
        (lambda x, w: pysim.gemm(x[0, 0], np.ma.masked_less(x[0, 0], 0)), r"expected b\.filled\(0\)"),
        (lambda x, w: pysim.conv2d(x, w, padding=1, plan=pysim.plan("conv:ic2ih5oc3kh3")), "the plan is for"),
        (lambda x, w: pysim.gemm(x[0, 0], x[0, 0], beta=1.0), "c must be given"),
        (lambda x, w: pysim.gemm(x[0, 0], w[0, 0]), "expected equal numbers"),
        (lambda x, w: pysim.gemm(x, w), "must be matrices"),
        (lambda x, w: pysim.prepare("gemm:3x3x3", w), "b has shape"),
        (lambda x, w: pysim.conv2d("text", w), 'x is "text"; expected an array'),
        (lambda x, w: pysim.conv2d(x.astype(np.float16), w.astype(np.float16)), "float16; the CPU kernels take float32, "),
        (lambda x, w: pysim.conv2d(x.astype("i1"), w.astype("i1"), bias=np.zeros(3, "f4")), "but the results of s8 are int32"),
        (lambda x, w: pysim.conv2d(x.astype("i1"), w.astype("i1"), out=np.zeros((1, 3, 3, 3), "i1")), "C-contiguous int32"),
    ],
)
def test_wrong_arguments_are_named(call, says):
    x, w = whole(1, 2, 5, 5), whole(3, 2, 3, 3)
    with pytest.raises(OperandError, match=says):
        call(x, w)


def misaligned(array):
    """The same numbers, one byte behind where an element may lie."""
    there = np.zeros(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    there[...] = array
    assert not there.flags.aligned
    return there


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_arrays_between_the_places_of_elements_are_read_and_not_written(dtype):
    """As fields of records and parts of files are."""
    rng = np.random.default_rng(5)
    x, w, a, b = (rng.random(shape).astype(dtype) for shape in ((2, 4, 6, 6), (4, 4, 3, 3), (7, 5), (5, 3)))
    bias, residual, c = (rng.random(shape).astype(dtype) for shape in ((4,), (2, 4, 6, 6), (7, 3)))
    conv, lie = pysim.prepare(f"conv:mb2ic4ih6oc4kh3ph1:f{8 * x.itemsize}", w, bias), misaligned
    y, product = pysim.conv2d(x, w, bias, padding=1, residual=residual), pysim.gemm(a, b, c, beta=1)
    assert (pysim.conv2d(lie(x), lie(w), lie(bias), padding=1, residual=lie(residual)) == y).all()
    assert (conv(lie(x), residual=lie(residual), out=np.empty_like(y)) == y).all()
    assert (pysim.gemm(lie(a), lie(b), lie(c), beta=1) == product).all()
    for call in (lambda out: conv(x, out), lambda out: pysim.gemm(a, b, out=out)):
        with pytest.raises(OperandError, match="aligned"):
            call(lie(np.zeros((2, 4, 6, 6) if call(None).ndim == 4 else (7, 3), dtype)))


def test_views_that_are_too_large_to_copy_are_operand_errors():
    with pytest.raises(OperandError, match="cannot allocate"):
        pysim.conv2d(np.broadcast_to(np.float32(1), (1, 2, 1 << 21, 1 << 21)), np.ones((1, 2, 1, 1), np.float32), stride=1 << 20)


def test_an_image_smaller_than_the_kernel_and_a_negative_stride_are_problems_not_crashes():
    with pytest.raises(pysim.PysimError):
        pysim.conv2d(whole(1, 2, 2, 2), whole(3, 2, 3, 3))
    with pytest.raises(pysim.PysimError):
        pysim.conv2d(whole(1, 2, 5, 5), whole(3, 2, 3, 3), stride=-1)


def test_kernels_of_another_machine_do_not_run_here():
    with pytest.raises(MissingError, match="h200 is a GPU"):
        pysim.conv2d(whole(1, 2, 5, 5), whole(3, 2, 3, 3), machine="h200")


def test_an_output_over_its_input_is_refused_and_nothing_is_written():
    x, w = whole(1, 3, 5, 5), whole(3, 3, 1, 1)
    before = x.copy()
    with pytest.raises(pysim.PysimError, match="overlaps"):
        pysim.conv2d(x, w, out=x)
    assert np.array_equal(x, before)


# Convolutions on a GPU, up to the call of the library


@pytest.fixture
def requested(host_device, monkeypatch):  # noqa: F811
    """Stands in for the launch on a GPU: what it is prepared for, of the last call."""
    seen = {}

    def prepared(task, schedule, layout, operands, activation, kept):
        seen.update(task=task, schedule=schedule, layout=layout, operands=operands, activation=activation)
        return SimpleNamespace(run=lambda operands: "result")

    monkeypatch.setattr(api.cuda_call, "prepared", prepared)
    return seen


def test_a_convolution_for_a_gpu_gets_its_problem_and_a_schedule_in_each_layout(requested):
    x, w = np.zeros((2, 8, 9, 9), np.float32), np.zeros((6, 4, 3, 3), np.float32)
    for layout in ("nchw", "nhwc"):
        image = x if layout == "nchw" else np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        how = {"stride": 2, "padding": 1, "groups": 2, "activation": ("clamp", 0.0, 6.0), "machine": "h200"}
        assert pysim.conv2d(image, w, **how) == "result"
        assert requested["operands"].given["x"] is image and requested["activation"] == ("clamp", 0.0, 6.0)
        assert requested["operands"].out is None
        problem = requested["task"].workload
        assert problem.text == "conv:g2mb2ic8ih9oc6kh3sh2ph1"
        assert requested["schedule"] == pysim.plan(problem, "h200", layout=layout).schedule and requested["layout"] == layout


def test_a_plan_of_a_gpu_is_kept_to_and_fits_one_problem_and_layout(requested):
    plan = pysim.plan("conv:mb2ic8ih9oc6kh3ph1", "h200", algorithm="direct")
    x, w = np.zeros((2, 8, 9, 9), np.float32), np.zeros((6, 8, 3, 3), np.float32)
    pysim.conv2d(x, w, padding=1, plan=plan)
    assert requested["schedule"] == plan.schedule
    with pytest.raises(OperandError, match="the plan is for NCHW, but x is NHWC"):
        pysim.conv2d(np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2), w, padding=1, plan=plan)
    with pytest.raises(OperandError, match="the arrays make conv:mb3"):
        pysim.conv2d(np.zeros((3, 8, 9, 9), np.float32), w, padding=1, plan=plan)


def test_an_array_whose_own_methods_fail_is_refused():
    class Broken:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

        def __dlpack__(self, **_: object) -> object:
            raise ZeroDivisionError("nothing here")

    with pytest.raises(OperandError, match="Broken, which NumPy cannot view as an array: nothing here"):
        pysim.gemm(Broken(), np.ones((2, 2), np.float32))


@pytest.mark.parametrize(("given", "shown"), [(None, "None"), ("w.npy", '"w.npy"')])
def test_what_is_no_array_is_refused_by_its_name(given: object, shown: str) -> None:
    with pytest.raises(OperandError, match=f"^w is {shown}; expected an array$"):
        pysim.conv2d(np.ones((1, 3, 8, 8), np.float32), given)
