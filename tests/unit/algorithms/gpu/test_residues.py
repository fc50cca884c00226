# SPDX-License-Identifier: Apache-2.0
"""Products of f64 and f32 by residues, on the CPU in place of a GPU: exact integers of rounded operands, within the bound of
docs/accuracy.md, and other kernels' results where operands are outside it."""

import math
from collections.abc import Iterator

import emulated_cuda
import numpy as np
import pytest

import pysim.api
from pysim import planner
from pysim.algorithms.gpu import residues
from pysim.machine.load import load_any
from pysim.problem.gemm import Gemm
from pysim.problem.text import parse
from pysim.record.schedule import Decomposition, GpuSchedule
from pysim.registry.cuda import gemm_kernels
from pysim.runtime import cuda

ROWS = {row.dtype: row for row in gemm_kernels() if row.residues}
DTYPES = sorted(ROWS)
M, N, K = 20, 70, 640
Array = np.ndarray


@pytest.fixture(scope="module", autouse=True)
def native() -> Iterator[None]:
    with emulated_cuda.opened():
        yield


def products(a: Array, b: Array, layout: int = 0, group: int = 1, schedule: GpuSchedule | None = None) -> tuple[Array, Array]:
    """A B by residues, and as the reference has it, in the operands' type."""
    dtype = "f64" if a.dtype == np.float64 else "f32"
    (m, k), n, trans = a.shape, b.shape[1], (bool(layout & 1), bool(layout & 2))
    w = Gemm(m=m, n=n, k=k, trans_a=trans[0], trans_b=trans[1], dtype=dtype)
    stored = [np.ascontiguousarray(x.T if t else x) for x, t in zip((a, b), trans, strict=True)]
    left, right = (cuda.DeviceArray(x.shape, dtype).fill(x) for x in stored)
    results = []
    for one in (True, False):
        out = cuda.DeviceArray((m, n), dtype).fill(np.full((m, n), np.nan, a.dtype))
        launch = cuda.Launch(w, schedule or GpuSchedule(ROWS[dtype].name, "data_parallel", 1, group > 1, group))
        bound = launch.on((left.pointer, right.pointer, out.pointer))
        bound.run() if one else bound.reference()
        results.append(out.read(np.empty((m, n), a.dtype)))
    return results[0], results[1]


def whole(x: Array, bits: int) -> Array:
    """x 2^bits as Python's integers, exactly."""
    return np.array([[int(math.ldexp(number, bits)) for number in row] for row in x], object)


def modelled(a: Array, b: Array, norm: float) -> Array:
    """What the kernels compute, by definition: rows scaled to norms of up to `norm` and rounded, their exact product, one rounding."""

    def rounded(x: Array) -> tuple[Array, list[int]]:
        exponents = [math.frexp(norm / np.sqrt((row.astype(float) ** 2).sum()))[1] - 1 for row in x]
        return np.array([[round(math.ldexp(number, e)) for number in row] for row, e in zip(x, exponents, strict=True)], object), exponents

    (left, rows), (right, columns) = rounded(a), rounded(b.T)
    exact = left.dot(right.T)
    return np.array([[exact[i, j] / 2 ** (rows[i] + columns[j]) for j in range(len(columns))] for i in range(len(rows))])


def operands(kind: str, dtype: str) -> tuple[Array, Array]:
    draw = np.random.default_rng(5)
    a, b = draw.uniform(-1, 1, (M, K)), draw.uniform(-1, 1, (K, N))
    if kind == "scaled":  # rows and columns of very different size
        most = 90 if dtype == "f64" else 9
        a, b = a * 10.0 ** draw.integers(-most, most, (M, 1)), b * 10.0 ** draw.integers(-most, most, N)
    if kind == "cancelling":  # results far smaller than their products
        a[:, K // 2 :] = -a[:, : K // 2] * (1 + (1e-12 if dtype == "f64" else 1e-5))
        b[K // 2 :] = b[: K // 2]
    if kind == "log uniform":
        a, b = a * 10 ** draw.uniform(-10, 10, a.shape), b * 10 ** draw.uniform(-10, 10, b.shape)
    if kind == "graded":  # products of one size from numbers of very different size
        grades = 2.0 ** np.linspace(-60, 60, K)
        a, b = a * grades, b / grades[:, None]
    if kind == "sparse":  # half of the numbers of A vanish, as behind a ReLU
        a = np.maximum(a, 0)
    numbers = np.float64 if dtype == "f64" else np.float32
    return a.astype(numbers), b.astype(numbers)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["uniform", "scaled", "cancelling", "log uniform", "graded", "sparse"])
def test_no_result_is_off_by_more_than_the_bound_of_sums_of_the_type(kind: str, dtype: str) -> None:
    a, b = operands(kind, dtype)
    found, reference = products(a, b)
    norm, unit = residues.SCHEMES[dtype]
    if kind in ("log uniform", "graded"):
        np.testing.assert_array_equal(found, reference)
    else:
        assert np.abs(found / modelled(a, b, norm) - 1).max() < 1.01 * unit + 2.0**-52
        assert (found != reference).any()  # it was computed by residues
    if kind != "scaled":
        exact, magnitude = whole(a, 200).dot(whole(b, 200)), whole(abs(a), 200).dot(whole(abs(b), 200))
        assert (abs(whole(found, 400) - exact) * round(1 / unit) <= magnitude * (K + 2)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_layouts_and_rasterisations_change_no_bit(dtype: str) -> None:
    a, b = operands("uniform", dtype)
    first = products(a, b)[0]
    for layout in (1, 2, 3):
        np.testing.assert_array_equal(products(a, b, layout, group=8)[0], first)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n", "k"), [(40, 70, 2100), (3, 5, 30_000)])
def test_several_panels_and_rows_beyond_shared_memory_give_the_same_bits_in_every_layout(m: int, n: int, k: int, dtype: str) -> None:
    draw = np.random.default_rng(6)
    numbers = np.float64 if dtype == "f64" else np.float32
    a, b = draw.uniform(-1, 1, (m, k)).astype(numbers), (draw.uniform(-1, 1, (k, n)) * 10.0 ** draw.integers(-3, 3, n)).astype(numbers)
    first, reference = products(a, b)
    assert (first != reference).any()  # it did not compute them
    magnitude = abs(a.astype(float)) @ abs(b.astype(float))
    assert (abs(first - a.astype(float) @ b.astype(float)) <= 0.1 * k * residues.SCHEMES[dtype].unit * magnitude).all()
    for layout in (1, 2, 3):
        np.testing.assert_array_equal(products(a, b, layout)[0], first)


@pytest.mark.parametrize("layout", [0, 3])
@pytest.mark.parametrize(
    ("dtype", "number"),
    [("f64", number) for number in (np.nan, np.inf, 1e308, 1e-300)] + [("f32", number) for number in (np.nan, -np.inf, 1e38, 1e-30, 1e-44)],
)
def test_numbers_that_are_not_finite_or_vanish_give_other_kernels_results(dtype: str, number: float, layout: int) -> None:
    a, b = operands("uniform", dtype)
    a[3] *= 0
    a[3, 7] = number
    found, reference = products(a, b, layout)
    np.testing.assert_array_equal(found, reference)


@pytest.mark.parametrize(("dtype", "row"), [
    (dtype, row.name) for dtype in DTYPES for row in gemm_kernels() if residues.waits(row, dtype) and not row.ablation
])  # fmt: skip
def test_any_row_that_waits_and_any_decomposition_may_compute_what_is_outside_the_bound(dtype: str, row: str) -> None:
    a, b = operands("log uniform", dtype)
    cases: tuple[tuple[Decomposition, int], ...] = (("split_k", 3), ("split_k", 20), ("stream_k", 2))
    for decomposition, splits in cases:
        found, reference = products(a, b, schedule=GpuSchedule(ROWS[dtype].name, decomposition, splits, False, 1, row))
        np.testing.assert_array_equal(found, reference)


@pytest.mark.parametrize(
    ("text", "machine", "accuracy", "algorithm"),
    [
        ("gemm:8192x8192x8192:f64", "h200", "standard", "residues"),
        ("gemm:4096x4096x4096:tt:f64", "h200", "strict", "residues"),
        ("gemm:8192x8192x8192:f64", "h200", "ieee", "gemm"),
        ("gemm:8192x8192x8192:f64", "a100", "standard", "gemm"),
        ("gemm:8192x8192x65537:f64", "h200", "standard", "gemm"),  # sums of residues might overflow
        ("gemm:16384x1024x4096:f64", "h200", "standard", "residues"),
        ("gemm:32768x256x4096:f64", "h200", "standard", "gemm"),  # conversions would take as long as the product
        ("gemm:512x512x512:f64", "h200", "standard", "gemm"),
        ("gemm:8192x8192x8192", "h200", "standard", "residues"),
        ("gemm:4096x4096x4096:tn", "h200", "strict", "residues"),
        ("gemm:8192x8192x8192", "h200", "ieee", "gemm"),
        ("gemm:8192x8192x8192", "a100", "standard", "gemm"),
        ("gemm:16384x512x4096", "h200", "standard", "gemm"),
    ],
)
def test_residues_are_planned_where_they_are_allowed_and_faster(text: str, machine: str, accuracy: str, algorithm: str) -> None:
    assert planner.plan(text, machine, accuracy=accuracy).algorithm == algorithm


@pytest.mark.parametrize(
    "text",
    ["gemm:4096x4096x4096:f64", "gemm:1024x1024x65536:f64", "gemm:300x300x3000:tn:f64", "gemm:4096x4096x4096", "gemm:512x512x65536:nt"],
)
def test_operands_outside_the_bound_are_computed_as_planned_without_residues(text: str) -> None:
    launch, other = (planner.plan(text, "h200", algorithm=name).launch for name in ("residues", "gemm"))
    assert (launch.gemm, launch.decomposition, launch.splits) == (other.kernel, other.decomposition, other.splits)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_zeros_give_zeros_and_do_not_refuse_the_others(dtype: str) -> None:
    a, b = operands("uniform", dtype)
    a[3], b[:, 4] = 0, 0
    found, reference = products(a, b)
    assert not found[3].any() and not found[:, 4].any() and (found != reference).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("layout", "kind"), [(0, "uniform"), (1, "uniform"), (2, "sparse"), (3, "scaled"), (0, "log uniform")])
def test_what_is_kept_of_b_gives_the_same_bits_in_less_workspace(
    monkeypatch: pytest.MonkeyPatch, dtype: str, layout: int, kind: str
) -> None:
    monkeypatch.setattr(pysim.api.host, "runnable_any", lambda *_: load_any("h200"))
    a, b = operands(kind, dtype)
    w = Gemm(m=M, n=N, k=K, trans_a=bool(layout & 1), trans_b=bool(layout & 2), dtype=dtype)
    schedule = GpuSchedule(ROWS[dtype].name, "data_parallel", 1, False, 1)
    left, right = (np.ascontiguousarray(x.T if t else x) for x, t in ((a, w.trans_a), (b, w.trans_b)))
    plan = pysim.plan(w.text, "h200", algorithm="residues")
    product = pysim.prepare(w.text, right, plan=plan)
    found = products(a, b, layout, schedule=plan.schedule)[0]
    for out in (None, np.empty((M, N), a.dtype), np.empty((N, M), a.dtype).T):  # of a column-major one nothing is kept
        np.testing.assert_array_equal(product(left, out=out), found)
    np.testing.assert_array_equal(product(left * 0 if kind == "log uniform" else -left), -found if kind != "log uniform" else 0 * found)
    whole, kept = cuda.Launch(w, schedule), cuda.Launch(w, schedule, prepared=256)
    size = residues.bytes_of_b(w, ROWS[dtype])
    assert whole.workspace_bytes - kept.workspace_bytes == size == whole.prepared_bytes - 256
    assert whole.prepared_bytes == residues.prepare(w, schedule).size_bytes


def test_a_prepared_b_is_not_priced_and_other_rows_keep_nothing() -> None:
    plans = [planner.plan("gemm:4096x4096x4096:f64", "h200", algorithm="residues", prepared=prepared) for prepared in (False, True)]
    passes = [plan.cost.levels["passes"]["bytes"] for plan in plans]
    assert plans[1].cost.seconds < plans[0].cost.seconds and passes[0] - passes[1] > 4096 * 4096 * (8 + 15)
    w = parse("gemm:64x64x64:f64")
    assert isinstance(w, Gemm)
    launch = planner.plan(w, "h200", algorithm="gemm").launch
    assert cuda.Launch(w, launch).prepared_bytes == 0
    texts = ("gemm:4096x256x4096:f64", "gemm:64x16384x8192:f64", "gemm:8192x128x8192:f64")
    assert [planner.plan(text, "h200", prepared=True).algorithm for text in texts]
