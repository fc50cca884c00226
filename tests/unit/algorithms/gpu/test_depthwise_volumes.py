# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolutions of volumes on a GPU: what they compute, on the CPU, and where they are planned."""

from collections.abc import Iterator

import emulated_cuda
import ml_dtypes
import numpy as np
import pytest

from pysim import planner
from pysim.machine.load import load_any
from pysim.problem.conv import Conv
from pysim.problem.text import parse
from pysim.record.schedule import GpuSchedule
from pysim.registry.cuda import conv_kernels
from pysim.runtime import cuda

H200 = load_any("h200")
KINDS = {"f32": np.float32, "tf32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
ROWS = [row for row in conv_kernels() if row.algorithm == "depthwise" and row.variant == "volume"]
# 34 groups are two blocks along pairs of channels, the second with one pair; 35 are none. From 16,384 outputs on, threads have four columns
PROBLEMS = (
    "g34ic34id5ih13iw15oc34kd3kh3pd1ph1",
    "g34ic34id4ih12iw17oc34kd2kh3sh1pd0ph1",
    "g35ic35id5ih13iw15oc35kd3kh3pd1ph1",
    "g34ic34id7ih25iw27oc34kd3kh3sd2sh2pd1ph1",
    "g17ic17id7ih25iw27oc34kd3kh3sd2sh2pd1ph1",
    "g34ic34id6ih11iw13oc34kd5kh5sd1pd2ph2",
    "g36ic36id6ih11iw13oc36kd3kh5dd1pd2ph1pw2",
    "g3ic3id4ih6iw5oc6kd3kh3kw2sd2sh1dd1dh1pd2ph2pw1",
    "g2mb3ic2id1ih2iw1oc2kd3kh3pd1ph1",
)


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[None]:
    with emulated_cuda.opened():
        yield


def exact(w: Conv, x: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """Of arrays [n][c][d][h][w] and [f][1][t][r][s], in float64."""
    pads = ((0, 0), (0, 0), (w.pad_front, w.pad_back), (w.pad_top, w.pad_bottom), (w.pad_left, w.pad_right))
    padded = np.repeat(np.pad(x.astype(float), pads), w.group_filters, axis=1)
    out = np.zeros((w.batch, w.filters, w.out_d, w.out_h, w.out_w))
    for t, r, s in np.ndindex(w.kernel_d, w.kernel_h, w.kernel_w):
        firsts, counts = (t * w.dilation_d, r * w.dilation_h, s * w.dilation_w), (w.out_d, w.out_h, w.out_w)
        steps = (w.stride_d, w.stride_h, w.stride_w)
        at = tuple(slice(first, first + (n - 1) * step + 1, step) for first, n, step in zip(firsts, counts, steps, strict=True))
        out += padded[:, :, *at] * filters[:, 0, t, r, s].astype(float)[:, None, None, None]
    return out


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("text", PROBLEMS)
def test_sums_are_exact_in_both_layouts(row, layout, text) -> None:
    w, draw = parse(f"conv:{text}:{row.dtype}"), np.random.default_rng(len(text))
    kind = KINDS[row.dtype]
    x = draw.integers(-2, 3, (w.batch, w.channels, w.depth, w.height, w.width)).astype(kind)
    filters = draw.integers(-1, 2, (w.filters, 1, w.kernel_d, w.kernel_h, w.kernel_w)).astype(kind)
    out = np.full((w.batch, w.filters, w.out_d, w.out_h, w.out_w), np.nan, np.float32)
    last = layout == "nhwc"
    lie = (lambda array: np.ascontiguousarray(np.moveaxis(array, 1, -1))) if last else np.ascontiguousarray
    held = [lie(array) for array in (x, filters, out)]
    launch = cuda.Launch(w, GpuSchedule(row.name, "data_parallel", 1, False, 1), result="f32", layout=layout)
    launch.on(tuple(array.ctypes.data for array in held)).run()
    result = np.moveaxis(held[2], -1, 1) if last else held[2]
    assert np.array_equal(result, exact(w, x, filters))


def test_volumes_are_planned_with_it_in_a_few_times_the_time_of_their_bytes() -> None:
    for dtype, layout in (("f16", "nhwc"), ("f16", "nchw"), ("f32", "nchw")):
        w = parse(f"conv:g64mb2ic64id16ih56oc64kd3kh3pd1ph1:{dtype}")
        plan = planner.plan(w, "h200", layout=layout)
        assert plan.kernel.endswith("_depthwise_volume")
        moved = (w.input_elements + w.output_elements) * w.element_bytes / H200.memory_bytes_per_second.value
        assert moved < plan.seconds < 8 * moved
    assert "volume" not in planner.plan("conv:g64mb2ic64ih56oc64kh3ph1:f16", "h200").kernel
