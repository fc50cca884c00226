# SPDX-License-Identifier: Apache-2.0
"""Products of f64 by residues, on the CPU in place of a GPU: exact integers of rounded operands, within the bound of docs/accuracy.md, and
the f64 kernel's results where operands are outside it."""

import math
from collections.abc import Iterator

import emulated_cuda
import numpy as np
import pytest

from pysim import planner
from pysim.algorithms.gpu import f64i8
from pysim.problem.gemm import Gemm
from pysim.record.schedule import GpuSchedule
from pysim.registry.cuda import gemm_kernels
from pysim.runtime import cuda

ROW = next(row for row in gemm_kernels() if row.residues)
M, N, K = 20, 70, 640
Array = np.ndarray


@pytest.fixture(scope="module", autouse=True)
def native() -> Iterator[None]:
    with emulated_cuda.opened():
        yield


def products(a: Array, b: Array, layout: int = 0, group: int = 1, schedule: GpuSchedule | None = None) -> tuple[Array, Array]:
    """A B by residues, and as the f64 reference has it."""
    (m, k), n, trans = a.shape, b.shape[1], (bool(layout & 1), bool(layout & 2))
    w = Gemm(m=m, n=n, k=k, trans_a=trans[0], trans_b=trans[1], dtype="f64")
    stored = [np.ascontiguousarray(x.T if t else x) for x, t in zip((a, b), trans, strict=True)]
    left, right = (cuda.DeviceArray(x.shape, "f64").fill(x) for x in stored)
    results = []
    for one in (True, False):
        out = cuda.DeviceArray((m, n), "f64").fill(np.full((m, n), np.nan))
        launch = cuda.Launch(w, schedule or GpuSchedule(ROW.name, "data_parallel", 1, group > 1, group))
        bound = launch.on((left.pointer, right.pointer, out.pointer))
        bound.run() if one else bound.reference()
        results.append(out.read(np.empty((m, n))))
    return results[0], results[1]


def whole(x: Array, bits: int) -> Array:
    """x 2^bits as Python's integers, exactly."""
    return np.array([[int(math.ldexp(number, bits)) for number in row] for row in x], object)


def modelled(a: Array, b: Array) -> Array:
    """What the kernels compute, from the definition: rows scaled to norms of up to NORM and rounded, their exact product, one rounding."""

    def rounded(x: Array) -> tuple[Array, list[int]]:
        exponents = [math.frexp(f64i8.NORM / np.sqrt((row**2).sum()))[1] - 1 for row in x]
        return np.array([[round(math.ldexp(number, e)) for number in row] for row, e in zip(x, exponents, strict=True)], object), exponents

    (left, rows), (right, columns) = rounded(a), rounded(b.T)
    exact = left.dot(right.T)
    return np.array([[exact[i, j] / 2 ** (rows[i] + columns[j]) for j in range(len(columns))] for i in range(len(rows))])


def operands(kind: str) -> tuple[Array, Array]:
    draw = np.random.default_rng(5)
    a, b = draw.uniform(-1, 1, (M, K)), draw.uniform(-1, 1, (K, N))
    if kind == "scaled":  # rows and columns of very different size
        return a * 10.0 ** draw.integers(-90, 90, (M, 1)), b * 10.0 ** draw.integers(-90, 90, N)
    if kind == "cancelling":  # results far smaller than their products
        a[:, K // 2 :] = -a[:, : K // 2] * (1 + 1e-12)
        b[K // 2 :] = b[: K // 2]
    if kind == "log uniform":
        a, b = a * 10 ** draw.uniform(-10, 10, a.shape), b * 10 ** draw.uniform(-10, 10, b.shape)
    if kind == "graded":  # products of one size from numbers of very different size
        grades = 2.0 ** np.linspace(-60, 60, K)
        a, b = a * grades, b / grades[:, None]
    return a, b


@pytest.mark.parametrize("kind", ["uniform", "scaled", "cancelling", "log uniform", "graded"])
def test_no_result_is_off_by_more_than_the_bound_of_f64_sums(kind: str) -> None:
    a, b = operands(kind)
    found, reference = products(a, b)
    if kind in ("log uniform", "graded"):
        np.testing.assert_array_equal(found, reference)
    else:
        model = modelled(a, b)
        assert np.abs(found / model - 1).max() < 2.0**-52
        assert (found != reference).any()  # it was computed by residues
    if kind != "scaled":
        exact, magnitude = whole(a, 200).dot(whole(b, 200)), whole(abs(a), 200).dot(whole(abs(b), 200))
        assert (abs(whole(found, 400) - exact) * 2**53 <= magnitude * (K + 2)).all()


def test_layouts_and_rasterisations_change_no_bit() -> None:
    a, b = operands("uniform")
    first = products(a, b)[0]
    for layout in (1, 2, 3):
        np.testing.assert_array_equal(products(a, b, layout, group=8)[0], first)


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e308, 1e-300])
def test_numbers_that_are_not_finite_or_vanish_give_the_f64_kernels_results(number: float) -> None:
    a, b = operands("uniform")
    a[3] *= 0
    a[3, 7] = number
    found, reference = products(a, b)
    np.testing.assert_array_equal(found, reference)


@pytest.mark.parametrize("row", [row.name for row in gemm_kernels() if f64i8.runs_on_condition(row)])
def test_any_f64_row_and_decomposition_may_compute_what_is_outside_the_bound(row: str) -> None:
    a, b = operands("log uniform")
    for decomposition, splits in (("split_k", 3), ("split_k", 20), ("stream_k", 2)):
        found, reference = products(a, b, schedule=GpuSchedule(ROW.name, decomposition, splits, False, 1, row))
        np.testing.assert_array_equal(found, reference)


@pytest.mark.parametrize(
    ("text", "machine", "accuracy", "algorithm"),
    [
        ("gemm:8192x8192x8192:f64", "h200", "standard", "f64i8"),
        ("gemm:4096x4096x4096:tt:f64", "h200", "strict", "f64i8"),
        ("gemm:8192x8192x8192:f64", "h200", "ieee", "gemm"),
        ("gemm:8192x8192x8192:f64", "a100", "standard", "gemm"),
        ("gemm:8192x8192x65537:f64", "h200", "standard", "gemm"),  # sums of residues might overflow
        ("gemm:16384x512x4096:f64", "h200", "standard", "gemm"),  # conversions would take as long as the product
        ("gemm:512x512x512:f64", "h200", "standard", "gemm"),
    ],
)
def test_residues_are_planned_where_they_are_allowed_and_faster(text: str, machine: str, accuracy: str, algorithm: str) -> None:
    assert planner.plan(text, machine, accuracy=accuracy).algorithm == algorithm


@pytest.mark.parametrize("text", ["gemm:4096x4096x4096:f64", "gemm:1024x1024x65536:f64", "gemm:300x300x3000:tn:f64"])
def test_operands_outside_the_bound_are_computed_as_the_f64_kernels_are_planned(text: str) -> None:
    residues, other = (planner.plan(text, "h200", algorithm=name).launch for name in ("f64i8", "gemm"))
    assert (residues.gemm, residues.decomposition, residues.splits) == (other.kernel, other.decomposition, other.splits)


def test_rows_of_zeros_give_zeros_and_do_not_refuse_the_others() -> None:
    a, b = operands("uniform")
    a[3], b[:, 4] = 0, 0
    found, reference = products(a, b)
    assert not found[3].any() and not found[:, 4].any() and (found != reference).any()
