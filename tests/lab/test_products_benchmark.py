# SPDX-License-Identifier: Apache-2.0
"""lab/benchmarks/cuda/products.py, as far as it needs no GPU."""

from types import SimpleNamespace

import products
import pytest

from pysim.runtime import cuda


def opened_build(monkeypatch: pytest.MonkeyPatch, other: object) -> object:
    ffi, own = cuda.library()
    monkeypatch.setattr(cuda, "library", lambda: (SimpleNamespace(dlopen=lambda _: other, new=ffi.new, string=ffi.string), own))
    return products.other_build("other.so")


def test_a_build_of_the_same_rows_is_timed_beside(emulated: None, monkeypatch: pytest.MonkeyPatch) -> None:
    own = cuda.library()[1]
    assert opened_build(monkeypatch, own) is own


def test_a_build_without_the_last_row_is_refused(emulated: None, monkeypatch: pytest.MonkeyPatch) -> None:
    own = cuda.library()[1]
    fewer = SimpleNamespace(pysim_cuda_gemm_count=lambda: own.pysim_cuda_gemm_count() - 1, pysim_cuda_gemm_at=own.pysim_cuda_gemm_at)
    with pytest.raises(SystemExit, match=f"row {own.pysim_cuda_gemm_count() - 1}:"):
        opened_build(monkeypatch, fewer)


def test_a_build_whose_rows_stand_in_another_order_is_refused(emulated: None, monkeypatch: pytest.MonkeyPatch) -> None:
    own = cuda.library()[1]
    reordered = SimpleNamespace(
        pysim_cuda_gemm_count=own.pysim_cuda_gemm_count,
        pysim_cuda_gemm_at=lambda row, info: own.pysim_cuda_gemm_at({3: 4, 4: 3}.get(row, row), info),
    )
    with pytest.raises(SystemExit, match="row 3:"):
        opened_build(monkeypatch, reordered)
