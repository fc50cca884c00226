# SPDX-License-Identifier: Apache-2.0
"""Fills are exact where they say so; checks let nothing wrong pass."""

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pysim.algorithms.interface import DIRECT_SUM, Bound
from pysim.check import reference
from pysim.check.bounds import Sums, allowed, gamma, sums_of, transformed
from pysim.check.fills import HELD, LARGEST, exact_fill, numbers, random_fill, unwritten
from pysim.check.reference import as_result, trial
from pysim.check.verdict import compare
from pysim.errors import OperandError
from pysim.problem.text import parse

F32 = np.dtype(np.float32)

# --------------------------------------------------------------------------------------------------------------- fills


@given(st.integers(1, 2**24), st.sampled_from(sorted(HELD.keys() - {"s32"})))
@settings(max_examples=100, deadline=None)
def test_the_largest_sum_of_an_exact_fill_is_an_integer_that_the_accumulators_hold(k: int, dtype: str) -> None:
    values = numbers(exact_fill((4000,), k, dtype))
    largest = int(np.abs(values).max())
    assert 1 <= largest <= LARGEST and np.array_equal(values, np.round(values))
    assert k * largest**2 <= {"f64": 2**53, "s8": 2**31 - 1}.get(dtype, 2**24)
    assert largest <= {"f16": 3, "bf16": 3, "f8": 1}.get(dtype, LARGEST)  # what narrow results hold


@pytest.mark.parametrize("k", [1, 27, 576, 4608])
def test_exact_fill_sums_to_the_same_bits_in_any_order(k: int) -> None:
    a, b = exact_fill((k,), k, seed=1), exact_fill((k,), k, seed=2)
    exact = sum(Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a, b, strict=True))
    draw = np.random.default_rng(0)
    for _ in range(5):
        order = draw.permutation(k)
        total = np.float32(0)
        for x, y in zip(a[order], b[order], strict=True):
            total = np.float32(total + x * y)
        assert Fraction(float(total)) == exact


def test_sums_that_grow_on_their_way_get_smaller_numbers_as_far_as_there_are_any() -> None:
    assert int(np.abs(exact_fill((4000,), 4608, growth=36)).max()) == 10
    assert int(np.abs(exact_fill((4000,), 2**24, growth=36)).max()) == 1


@pytest.mark.parametrize("dtype", sorted(HELD.keys() - {"s32"}))
def test_a_random_fill_has_the_bits_of_its_type_and_stays_in_its_range(dtype: str) -> None:
    fill = random_fill((10_000,), dtype, 5)
    assert fill.dtype == HELD[dtype] and fill.ctypes.data % 64 == 0
    values = fill.astype(np.float64)
    if dtype == "s8":
        assert (values.min(), values.max()) == (-128, 127) and len(np.unique(values)) == 256
        return
    assert -1 <= values.min() < -0.9 and 0.9 < values.max() <= 1
    wide = random_fill((10_000,), "f64" if dtype == "f64" else "f32", 5)
    kept = {"bf16": 2.0**-8, "f16": 2.0**-11, "tf32": 2.0**-10, "f8": 2.0**-4}.get(dtype, 0.0)
    least = {"f8": 2.0**-10, "f16": 2.0**-25}.get(dtype, 0.0)  # half of the smallest number
    assert np.all(np.abs(values - wide) <= np.maximum(np.abs(wide) * kept, least))
    assert dtype != "tf32" or not (fill.view(np.uint32) & 0x1FFF).any()
    assert dtype != "bf16" or len(np.unique(fill.view(np.uint16) & 0x7F)) == 128


def test_sums_of_s8_wrap_to_s32_and_others_are_rounded_once() -> None:
    sums = as_result(np.array([2.0**31, -(2.0**31) - 1, 2.0**33 + 5, -7.0]), HELD["s32"])
    assert sums.dtype == np.int32 and sums.tolist() == [-(2**31), 2**31 - 1, 5, -7]
    assert as_result(np.array([257.0, 258.0], F32), HELD["bf16"]).astype(F32).tolist() == [256.0, 258.0]


def test_random_fill_would_not_pass_for_exact() -> None:
    a, b = random_fill((4608,), seed=1), random_fill((4608,), seed=2)
    sums = {float(np.cumsum((a * b)[np.random.default_rng(i).permutation(4608)])[-1]) for i in range(5)}
    assert len(sums) > 1


def test_fills_are_seeded_aligned_and_free_of_zeros_where_promised() -> None:
    fills = (
        lambda seed: exact_fill((3, 5, 7), 9, seed=seed),
        lambda seed: random_fill((3, 5, 7), seed=seed),
    )
    for fill in fills:
        assert np.array_equal(fill(1), fill(1)) and not np.array_equal(fill(1), fill(2))
        assert fill(1).ctypes.data % 64 == 0 and fill(1).flags.c_contiguous and fill(1).dtype == np.float32
    values = exact_fill((10_000,), 9)
    assert np.all(values == np.round(values)) and np.all(values != 0) and values.min() < 0 < values.max()
    uniform = random_fill((10_000,), "f64")
    assert uniform.dtype == np.float64 and -1 <= uniform.min() < -0.99 and 0.99 < uniform.max() < 1


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_an_output_starts_as_nan(dtype: str) -> None:
    assert np.isnan(unwritten((2, 3), HELD[dtype])).all()


def test_a_sum_too_long_to_be_exact_and_a_dtype_that_nothing_computes_are_refused() -> None:
    with pytest.raises(OperandError, match="sums of 16777217 products cannot be exact in f32"):
        exact_fill((1,), 2**24 + 1)
    with pytest.raises(OperandError, match="no operand is of 'int4'; there are: f32, tf32, tf32x3, f64, f16, bf16, f8, s8, s32"):
        random_fill((1,), "int4")


# -------------------------------------------------------------------------------------------------------------- bounds


def test_gamma_is_highams_and_never_shrinks_where_sums_are_too_long_for_it() -> None:
    assert gamma(576, 2**-24) == pytest.approx(576 * 2**-24 / (1 - 576 * 2**-24))
    assert gamma(1, 2**-53) == pytest.approx(2**-53)
    assert gamma(2**23, 2**-24) == 1 < gamma(2**24, 2**-24) < gamma(2**25, 2**-24) < math.inf


def test_accumulators_round_as_the_type_and_the_place_have_it() -> None:
    units = {dtype: [sums_of(dtype, 9, F32, on_gpu).unit for on_gpu in (False, True)] for dtype in ("f32", "bf16", "f64", "f8")}
    assert units == {"f32": [2**-24, 2**-23], "bf16": [2**-24, 2**-23], "f64": [2**-53] * 2, "f8": [2**-14] * 2}


def test_what_is_allowed_is_the_sums_rounding_and_the_results_own() -> None:
    one, scale = np.array([2.0]), np.array([64.0])
    f16 = Sums(64, 2**-23, HELD["f16"])  # the worked number
    assert allowed(DIRECT_SUM, f16, one, scale)[0] == pytest.approx(7.6e-6 * 64 + 4.9e-4 * 2, rel=0.01)
    assert allowed(DIRECT_SUM, f16, one, scale, stored=2)[0] == pytest.approx(7.6e-6 * 64 + 2 * 4.9e-4 * 2, rel=0.01)
    assert not allowed(DIRECT_SUM, Sums(64, 2**-24, HELD["s32"]), one, scale).any()
    least = 2.0**-24  # of f16
    assert allowed(DIRECT_SUM, f16, 0 * one, 0 * scale)[0] == least / 2, "what rounding to a number without its leading one takes"
    grown = allowed(Bound(4.0, 0.0, ""), Sums(64, 2**-24, F32), 0 * one, scale)[0]
    assert grown == pytest.approx(4 * allowed(DIRECT_SUM, Sums(64, 2**-24, F32), 0 * one, scale)[0], rel=1e-4)


def test_transforms_are_held_to_the_root_mean_square_where_that_is_more() -> None:
    want = np.array([3.0, -4.0, 0.0, 0.0])
    found = allowed(transformed("f32"), Sums(9, 2**-24, F32), want, np.array([9.0, 9.0, 9.0, 1e6]))
    assert found[:3] == pytest.approx(1e-3 * 2.5) and found[3] > 0.5


# -------------------------------------------------------------------------------------------------------------- checks


def test_equal_arrays_pass_and_one_ulp_does_not() -> None:
    want = random_fill((4, 5), seed=1)
    assert compare(want.copy(), want).passed
    got = want.copy()
    got[2, 3] = np.nextafter(got[2, 3], np.float32(9))
    verdict = compare(got, want)
    assert verdict.status == "failed" and "1 of 20 elements are wrong; the first at (2, 3)" in verdict.reason
    assert 0 < verdict.error < 1e-6


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_element_that_is_no_number_fails_every_check(bad: float) -> None:
    want = np.ones((4, 5), np.float32)
    got = want.copy()
    got[0, 0] = bad
    assert not compare(got, want).passed
    assert not compare(got, want, np.full(want.shape, 1e30)).passed
    assert not compare(got, want, math.inf).passed
    assert not compare(want, want, np.full(want.shape, np.nan)).passed


def test_operands_that_do_not_fit_into_memory_are_refused_before_anything_is_allocated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    free = tmp_path / "meminfo"
    free.write_text("MemTotal:  100 kB\nMemAvailable:  19 kB\n")
    monkeypatch.setattr(reference, "MEMORY", free)
    with pytest.raises(OperandError, match=r"gemm:32x32x32 is too large for this computer: .* take 0.0 GB, and 0.0 GB of memory are free"):
        trial(parse("gemm:32x32x32"), F32)  # 2 (4096 + 4096) + 4096 bytes
    free.write_text("MemAvailable:  20 kB\n")
    trial(parse("gemm:32x32x32"), F32)


def test_an_unwritten_result_fails_and_says_so() -> None:
    assert "20 are NaN or were never written" in compare(unwritten((4, 5), F32), np.ones((4, 5), "f4")).reason


def test_the_bound_itself_is_allowed_and_nothing_beyond_it() -> None:
    want, off = np.full(8, 2.0), np.full(8, 0.25)
    assert compare(want + 0.25, want, off).passed
    verdict = compare(want + np.array([0, 0, 0, 0.26, 0, 0, -0.5, 0]), want, off)
    assert verdict.status == "failed" and "2 of 8" in verdict.reason and "(3,)" in verdict.reason
    assert verdict.error == pytest.approx(0.5)


def test_too_many_zeros_are_mistrusted_even_where_they_are_right() -> None:
    want = np.ones(10, np.float32)
    want[:4] = 0
    for verdict in (compare(want, want), compare(want, want, 1.0)):
        assert verdict.status == "mistrusted" and not verdict.passed and "40%" in verdict.reason
    want[0] = 1
    assert compare(want, want).passed


def test_another_shape_and_an_empty_result_do_not_pass() -> None:
    assert "(3, 2), expected (2, 3)" in compare(np.ones((3, 2)), np.ones((2, 3))).reason
    assert "(6,), expected (2, 3)" in compare(np.ones(6), np.ones((2, 3)), 1.0).reason
    assert compare(np.ones(0), np.ones(0)).status == "mistrusted"


def test_the_two_zeros_are_equal() -> None:
    want = np.array([0.0, 1.0, 2.0, 3.0])
    assert compare(np.array([-0.0, 1.0, 2.0, 3.0]), want).passed
