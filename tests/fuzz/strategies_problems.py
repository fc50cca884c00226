# SPDX-License-Identifier: Apache-2.0
"""Problems of every size that the text can say, most of them beyond any memory."""

from typing import Any

from hypothesis import strategies as st

from pysim.errors import ProblemError
from pysim.problem.conv import Conv
from pysim.problem.dtypes import CONV_DTYPES, GEMM_DTYPES
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload

AXES = (("height", "kernel_h", "dilation_h", "pad_top", "pad_bottom"), ("width", "kernel_w", "dilation_w", "pad_left", "pad_right"))


def sizes(largest_bit: int = 62) -> st.SearchStrategy[int]:
    """Mostly small numbers, and powers of two with their neighbours up to 2^62."""
    near_powers = st.builds(lambda bit, more: max(1, (1 << bit) + more), st.integers(0, largest_bit), st.integers(-1, 1))
    anything = st.integers(0, largest_bit).flatmap(lambda bit: st.integers(1, 1 << bit))
    return st.one_of(st.integers(1, 9), st.integers(1, 9), st.integers(1, 300), near_powers, anything)


def products() -> st.SearchStrategy[Gemm]:
    return _valid(
        lambda **given: Gemm(**given),
        m=sizes(), n=sizes(), k=sizes(), trans_a=st.booleans(), trans_b=st.booleans(), dtype=st.sampled_from(sorted(GEMM_DTYPES)),
    )  # fmt: skip


def convolutions() -> st.SearchStrategy[Conv]:
    fields = ("batch", "channels", "filters", "height", "width", "kernel_h", "kernel_w", "stride_h", "stride_w", "dilation_h", "dilation_w")
    pads = st.one_of(st.integers(0, 3), sizes())
    return _valid(
        _convolution,
        groups=st.one_of(st.just(1), sizes()), dtype=st.sampled_from(sorted(CONV_DTYPES)), fits=st.booleans(),
        **{name: sizes() for name in fields}, **{name: pads for axis in AXES for name in axis[3:]},
    )  # fmt: skip


def _convolution(fits: bool, **given: Any) -> Conv:
    given["channels"] *= given["groups"]
    given["filters"] *= given["groups"]
    for size, kernel, dilation, before, after in AXES:  # most kernels that are drawn are larger than the image
        extent = (given[kernel] - 1) * given[dilation] + 1
        if given[size] + given[before] + given[after] < extent:
            given |= {size: extent} if fits else {before: extent // 2, after: extent - extent // 2}
    return Conv(**given)


def _valid(build: Any, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def built(given: dict[str, Any]) -> Workload | None:
        try:
            return build(**given)
        except ProblemError:
            return None

    return st.fixed_dictionaries(fields).map(built).filter(lambda workload: workload is not None)


def problems() -> st.SearchStrategy[Workload]:
    return st.one_of(products(), convolutions(), convolutions())
