# SPDX-License-Identifier: Apache-2.0
"""Groups in channel blocks that need not be whole ones: right beside float64, refused by the model where the library refuses, the same
bits for any number of threads. Every row against guard pages: native/test/check_conv.c."""

from typing import cast

import msgspec
import numpy as np
import pytest
from own_rows import UNIT, convolution, exact, operands

import pysim
from pysim.algorithms.cpu import grouped
from pysim.api import Plan
from pysim.check.bounds import gamma
from pysim.errors import PysimError
from pysim.problem.conv import Conv
from pysim.record.plan import Layout, on_cpu
from pysim.registry.cpu import Kernel, grouped_kernels
from pysim.runtime import cpu as runtime
from pysim.runtime.cpu_launch import Launch

PROBLEMS = (  # of blocks of n channels
    "g2ic{n}ih14oc{n}kh3ph1",
    "mb2g4ic{n}ih7iw9oc{two}kh3ph1",
    "g2mb1ic{three}ih10iw11oc{three}kh3sh2ph1",
    "g4ic{six}ih13iw5oc{two}kh3ph1dh1dw0",
    "g3ic{three}ih1iw1oc{three}kh3ph1",
    "g2ic{two}ih9iw28oc{six}kh5kw3ph2pw1",
)


def problems_of(row: Kernel) -> list[Conv]:
    n = row.lane_filters
    return [convolution(f"conv:{text.format(n=n, two=2 * n, three=3 * n, six=6 * n)}:{row.dtype}") for text in PROBLEMS]


def blocked(x: np.ndarray, block: int) -> np.ndarray:
    n, c, h, w = x.shape
    return np.ascontiguousarray(x.reshape(n, c // block, block, h, w).transpose(0, 1, 3, 4, 2))


def planes(y: np.ndarray) -> np.ndarray:
    n, c, h, w, block = y.shape
    return y.transpose(0, 1, 4, 2, 3).reshape(n, c * block, h, w)


def runs(row: Kernel) -> None:
    if row.name not in runtime.available_kernels():
        pytest.skip("not of this CPU")


def plan_of(problem: Conv, row: Kernel) -> Plan:
    layout = cast("Layout", f"nchw{row.lane_filters}c")
    return pysim.plan(problem, layout=layout, algorithm=grouped.NAME, micro_kernel=row.name)


@pytest.mark.parametrize("row", grouped_kernels(), ids=lambda row: row.name)
def test_every_kernel_is_within_the_bound_of_a_sum_and_threads_change_no_bit(row: Kernel) -> None:
    runs(row)
    for problem in problems_of(row):
        x, f, bias = operands(problem)
        right = exact(problem, x, f) + bias.reshape(-1, 1, 1).astype(np.float64)
        bound = gamma(f[0].size + 2, UNIT[problem.dtype]) * (exact(problem, np.abs(x), np.abs(f)) + np.abs(bias).reshape(-1, 1, 1))
        plan = plan_of(problem, row)
        given = {"bias": bias, "plan": plan, "layout": f"nchw{row.lane_filters}c"}
        y = pysim.prepare(problem.text, f, **given)(blocked(x, row.lane_filters))
        assert (np.abs(planes(y) - right) <= bound).all(), problem.text
        launch, schedule = Launch.of(plan, 1), on_cpu(plan)[0]
        assert launch.prepared_bytes == grouped.prepare(problem, schedule, plan.layout).size_bytes
        assert launch.workspace_bytes == grouped.workspace_bytes(problem, schedule, plan.layout)
        for threads in (2, 3, 9):
            assert np.array_equal(pysim.prepare(problem.text, f, threads=threads, **given)(blocked(x, row.lane_filters)), y), problem.text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"groups": 1}, "two groups or more"),
        ({"filters": 8, "groups": 8, "channels": 16}, "1 filter each"),
        ({"channels": 20}, "20 channels are not a multiple of 8"),
        ({"filters": 20}, "20 filters are not a multiple of 8"),
        ({"filters": 24, "groups": 4}, "6 filters each"),
        ({"kernel_w": 5}, "3 neighbouring taps"),
        ({"dilation_w": 2}, "3 neighbouring taps"),
        ({"stride_w": 3}, "strides of 1 and 2"),
        ({"pad_left": 2}, "one column of padding"),
        ({"pad_right": 2}, "one column of padding"),
    ],
)
def test_the_model_and_the_library_refuse_alike_and_say_why(change: dict[str, int], says: str) -> None:
    problem = msgspec.structs.replace(convolution("conv:g2ic16ih12oc16kh3ph1"), **change)
    with pytest.raises(PysimError, match=says):
        pysim.plan(problem, machine="zen3", layout="nchw8c", algorithm=grouped.NAME)
    row = next(row for row in grouped_kernels() if row.lane_filters == 8 and row.dtype == "f32")
    runs(row)
    ffi, lib = runtime.library()
    right = convolution("conv:g2ic16ih12oc16kh3ph1")
    schedule = msgspec.structs.replace(on_cpu(plan_of(right, row))[0], channels=problem.channels // problem.groups)
    size = ffi.new("int64_t *")
    of = runtime.problem_struct(problem, "nchw8c")
    assert lib.pysim_workspace_bytes(of, runtime.schedule_struct(schedule, problem), 1, size) != lib.PYSIM_OK


def test_groups_that_are_no_whole_blocks_need_no_planes() -> None:
    """Groups of 8 and 24 channels in blocks of 16: nothing else computes them there."""
    for text in ("conv:g26ic208ih14oc208kh3ph1", "conv:g14ic336ih14oc336kh3ph1"):
        plan = pysim.plan(text, machine="emerald-rapids", layout="nchw16c")
        assert plan.algorithm == grouped.NAME and plan.kernel == "f32_grouped_16x16__avx512"


def test_a_narrow_group_is_predicted_at_the_rate_of_its_tiles() -> None:
    """The worked number of the module: 204,000 cycles of computing."""
    cost = pysim.plan("conv:g26ic208ih14oc208kh3ph1", machine="zen3", layout="nchw8c", algorithm=grouped.NAME).cost
    assert sum(cost.terms[name] for name in ("kernel", "call")) == pytest.approx(204_000, rel=0.02)
